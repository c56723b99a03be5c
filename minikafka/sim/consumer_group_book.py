"""The book on groups of the consumer protocol (KIP-848): who may own what, by committed records and by answers.

================================  =====================================================================================
``two_owners_recorded``           committed records give a partition to two members, assigned or to be revoked
``member_epoch_fell``             the epoch of a member falls, though it was not removed
``epochs_disordered``             not: member epoch <= assignment epoch <= group epoch; or one of the latter falls
``given_before_revoked``          a member receives a partition, and another one that received it has neither confirmed
                                  its revocation nor been removed
``assignment_unrecorded``         a member receives an assignment or an epoch that is not committed
``zombie_commit``                 a commit is accepted from a member that was removed before, or of a partition that was
                                  another member's before
================================  =====================================================================================

Rules for this file: no I/O. Records come batch by batch, for those of one heartbeat count at once. Refusals prove
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from minikafka.groups.consumer.group import LEAVE_STATIC
from minikafka.groups.consumer.records import (
    CURRENT,
    GROUP,
    ConsumerRecord,
    Current,
    GroupEpoch,
    TargetEpoch,
    TopicIdPartition,
)

Report: TypeAlias = Callable[[str, str], None]
"""(name, what was seen)"""

Partitions: TypeAlias = frozenset[TopicIdPartition]


@dataclass(slots=True)
class _Group:
    epoch: int = 0
    assignment_epoch: int = 0
    currents: dict[str, Current] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)
    """The highest epoch of each member, while it is one."""
    ever: dict[tuple[str, int], set[Partitions]] = field(default_factory=dict)
    """By member id and epoch: everything that was ever assigned to it."""
    given: dict[TopicIdPartition, str] = field(default_factory=dict)
    """The member that received a partition last, until it confirmed the revocation or was removed."""
    sent: dict[int, tuple[bool, dict[TopicIdPartition, str]]] = field(default_factory=dict)
    """By number of a commit: whether its member was one when it was sent, and the owners then."""

    def owners(self) -> dict[TopicIdPartition, str]:
        return {each: name for name, now in self.currents.items() for each in (*now.assigned, *now.revoking)}


class ConsumerGroupBook:
    """All groups of one history."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._groups: dict[str, _Group] = {}

    def _of(self, group: str) -> _Group:
        return self._groups.setdefault(group, _Group())

    # ---- records -----------------------------------------------------------------------------------------------------

    def recorded(self, group: str, records: Iterable[ConsumerRecord]) -> None:
        """These became committed at once."""
        known = self._of(group)
        for each in records:
            value = each.value
            if isinstance(value, GroupEpoch):
                self._rises(group, "group epoch", known.epoch, value.epoch)
                known.epoch = value.epoch
            elif isinstance(value, TargetEpoch):
                self._rises(group, "assignment epoch", known.assignment_epoch, value.epoch)
                known.assignment_epoch = value.epoch
            elif isinstance(value, Current):
                known.currents[each.name] = value
            elif value is None and each.kind == CURRENT:
                self._removed(known, each.name)
            elif value is None and each.kind == GROUP:
                self._groups[group] = known = _Group(sent=known.sent)
        self._look(group, known)

    def _removed(self, known: _Group, member: str) -> None:
        known.currents.pop(member, None)
        known.highest.pop(member, None)
        known.given = {each: name for each, name in known.given.items() if name != member}

    def _rises(self, group: str, what: str, before: int, now: int) -> None:
        if now < before:
            self._report("epochs_disordered", f"{group}: the {what} fell from {before} to {now}")

    def _look(self, group: str, known: _Group) -> None:
        owners: dict[TopicIdPartition, str] = {}
        for member, now in known.currents.items():
            for each in (*now.assigned, *now.revoking):
                other = owners.setdefault(each, member)
                if other != member:
                    self._report("two_owners_recorded", f"{group}: {_shown(each)} is {other}'s and {member}'s")
            if now.epoch != LEAVE_STATIC:
                if now.epoch < known.highest.get(member, 0):
                    self._report("member_epoch_fell", f"{group}: {member} from {known.highest[member]} to {now.epoch}")
                known.highest[member] = max(now.epoch, known.highest.get(member, 0))
            known.ever.setdefault((member, now.epoch), set()).add(frozenset(now.assigned))
            if not now.epoch <= known.assignment_epoch <= known.epoch:
                self._report(
                    "epochs_disordered",
                    f"{group}: {member} at {now.epoch}, assignment {known.assignment_epoch}, group {known.epoch}",
                )

    # ---- messages ----------------------------------------------------------------------------------------------------

    def reported(self, group: str, member: str, owned: Partitions | None) -> None:
        """A member has sent a heartbeat: it owns this (None: it does not say)."""
        known = self._of(group)
        if owned is not None:
            known.given = {each: name for each, name in known.given.items() if name != member or each in owned}

    def answered(self, group: str, member: str, epoch: int, assigned: Partitions | None) -> None:
        """A member has received an answer to its heartbeat: it may use this (None: as before)."""
        known = self._of(group)
        ever = known.ever.get((member, epoch), set())
        if not ever or (assigned is not None and assigned not in ever):
            self._report(
                "assignment_unrecorded",
                f"{group}: {member} received epoch {epoch} with {_all_shown(assigned)}; committed for it are "
                f"{[_all_shown(each) for each in ever]}",
            )
        now = known.currents.get(member)
        if now is None or now.epoch != epoch:
            return  # the answer was late, and its member has been removed, or will hear of a newer epoch
        for each in sorted((assigned or frozenset()) & now.assigned.keys()):
            other = known.given.get(each, member)
            if other != member:
                self._report(
                    "given_before_revoked",
                    f"{group}: {member} received {_shown(each)} in epoch {epoch}, which {other} has not given up",
                )
            known.given[each] = member

    def commit_sent(self, op: int, group: str, member: str) -> None:
        """A member sends a commit; ``op`` names it. It may be sent again."""
        known = self._of(group)
        known.sent.setdefault(op, (member in known.currents, known.owners()))

    def commit_granted(self, op: int, group: str, member: str, partitions: Iterable[TopicIdPartition]) -> None:
        """It was acknowledged for these."""
        is_member, owners = self._of(group).sent.get(op, (True, {}))
        for each in partitions:
            owner = owners.get(each, member)
            if not is_member or owner != member:
                why = f"{owner} owned it" if is_member else "it had been removed"
                self._report("zombie_commit", f"{group}: {member} committed {_shown(each)}, and {why} by then")


def _shown(partition: TopicIdPartition) -> str:
    return f"{partition.topic_id}-{partition.partition}"


def _all_shown(partitions: Iterable[TopicIdPartition] | None) -> str:
    return "the same" if partitions is None else "[" + ", ".join(map(_shown, sorted(partitions))) + "]"
