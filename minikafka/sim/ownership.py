"""Who may own what in a group: what the book on the consumer protocol and the one on changes of the protocol share.

Committed records name the owners of partitions. Answers say what members have received: a member may not receive what
another one has received and not given up. A commit is judged by what was committed when it was sent; it may be sent
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from minikafka.sim.replica_view import Report

Partitions: TypeAlias = frozenset[Any]
"""Of one kind: TopicPartition or TopicIdPartition."""


class Owned(NamedTuple):
    """What committed records say of one member."""

    epoch: int
    """Of a member of a classic group: its generation."""
    assigned: Partitions
    revoking: Partitions = frozenset()
    instance_id: str | None = None
    is_classic: bool = False
    in_classic_group: bool = False

    @property
    def all(self) -> Partitions:
        return self.assigned | self.revoking


class _Sent(NamedTuple):
    """What was committed when a commit was sent."""

    member: Owned | None
    generation: int
    owners: dict[Any, str]


@dataclass(slots=True)
class Ownership:
    """What is known of one group."""

    members: dict[str, Owned] = field(default_factory=dict)
    ever: dict[tuple[str, int], set[Partitions]] = field(default_factory=dict)
    """By member id and epoch: everything that was ever assigned to it."""
    given: dict[Any, str] = field(default_factory=dict)
    """The member that received a partition last, until it gave the partition up or was removed."""
    sent: dict[int, _Sent] = field(default_factory=dict)
    """By number of a commit."""


Known = TypeVar("Known", bound=Ownership)


class OwnershipBook(Generic[Known]):
    """All groups of one history."""

    def __init__(self, report: Report, make: Callable[[], Known]) -> None:
        self._report = report
        self._groups: defaultdict[str, Known] = defaultdict(make)

    def _name_of(self, partition: Any) -> str:
        """What a partition is called in a report."""
        return str(partition)

    def _shown(self, partitions: Partitions | None) -> str:
        return "the same" if partitions is None else "[" + ", ".join(map(self._name_of, sorted(partitions))) + "]"

    def _look_at_owners(self, group: str) -> None:
        """Look at the members after their records became committed."""
        known, owners = self._groups[group], dict[Any, str]()
        for member, now in known.members.items():
            for each in now.all:
                other = owners.setdefault(each, member)
                if other != member:
                    self._report("two_owners_recorded", f"{group}: {self._name_of(each)} is {other}'s and {member}'s")
            known.ever.setdefault((member, now.epoch), set()).add(now.assigned)

    def reported(self, group: str, member: str, owned: Partitions | None) -> None:
        """A member has sent a join or a heartbeat: it owns this (None: it does not say)."""
        known = self._groups[group]
        if owned is not None:
            known.given = {each: name for each, name in known.given.items() if name != member or each in owned}

    def answered(self, group: str, member: str, epoch: int, assigned: Partitions | None) -> bool:
        """A member has received an assignment (None: as before) for an epoch or a generation.

        Returns False for an answer that was late: its member has been removed, or will hear of a newer epoch.
        """
        known = self._groups[group]
        ever = known.ever.get((member, epoch), set())
        if not ever or (assigned is not None and assigned not in ever):
            self._report(
                "assignment_unrecorded",
                f"{group}: {member} received epoch {epoch} with {self._shown(assigned)}; committed for it are "
                f"{list(map(self._shown, ever))}",
            )
        now = known.members.get(member)
        if now is None or now.epoch != epoch:
            return False
        for each in sorted((assigned or frozenset()) & now.assigned):
            other = known.given.get(each, member)
            holder = known.members.get(other)
            is_exempt = holder is not None and holder.is_classic and holder.instance_id is not None
            if other != member and not is_exempt:
                what = f"{group}: {member} received {self._name_of(each)} in epoch {epoch}"
                self._report("given_before_revoked", f"{what}, which {other} has not given up")
            known.given[each] = member
        return True

    def commit_sent(self, op: int, group: str, member: str, generation: int = -1) -> None:
        """A member sends a commit; ``op`` names it. It may be sent again."""
        known = self._groups[group]
        owners = {each: name for name, now in known.members.items() for each in now.all}
        known.sent.setdefault(op, _Sent(known.members.get(member), generation, owners))

    def commit_granted(self, op: int, group: str, member: str, partitions: Iterable[Any]) -> None:
        """It was acknowledged for these."""
        sent, granted = self._groups[group].sent.get(op), frozenset(partitions)
        if sent is None or not granted:
            return
        was, what = sent.member, f"{group}: {member} committed"
        if was is None:
            self._report("zombie_commit", f"{what} {self._shown(granted)}, and had been removed by then")
            return
        if was.is_classic and 0 <= sent.generation < was.epoch:
            kept = frozenset() if was.in_classic_group else self._owned_since(group, member, sent.generation, was)
            if not granted <= kept:
                self._report(
                    "stale_generation_committed",
                    f"{what} {self._shown(granted - kept)} in generation {sent.generation}, and was in {was.epoch}",
                )
        for each in sorted(granted):
            owner = sent.owners.get(each, member)
            if owner != member:
                self._report("zombie_commit", f"{what} {self._name_of(each)}, and {owner} owned it by then")

    def _owned_since(self, group: str, member: str, generation: int, now: Owned) -> Partitions:
        """What a member was assigned in each of its generations since this one, and still owns (KIP-1251)."""
        ever = self._groups[group].ever
        if (member, generation) not in ever:
            return frozenset()
        lived = [
            frozenset().union(*each)
            for (name, epoch), each in ever.items()
            if name == member and generation <= epoch < now.epoch
        ]
        return now.all.intersection(*lived)
