"""The books on consumer groups: who owned what, what was committed and found again, and what was never read.

It records what was seen on the way between members and coordinators, what stands in ``__consumer_offsets`` in the
order in which it was committed there, and what members did with records. Times do not matter, the order does: a fence
counts for those requests that were *sent* after it was reported.

Rules for this file: no I/O, and nothing is believed of a refusal: only what was granted can be wrong. A request's
``op`` is any number that names it; it may be answered more than once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from minikafka.types import NO_OFFSET, Offset, TopicPartition

MEANINGS: Final[Mapping[str, str]] = {
    "two-owners": "two members had the same partition in one generation",
    "assigned-outside": "a member began to read partitions after the group had answered that it is no longer a member",
    "read-outside": "a member read on after the group had answered that it is no longer a member",
    "zombie-commit": "a commit was accepted from a member without which the group had gone on",
    "zombie-heartbeat": "a heartbeat of an old generation was answered as if the member still belonged",
    "zombie-sync": "an assignment of an old generation was given out",
    "assignment-unrecorded": "an assignment was given out that is not committed",
    "generation-back": "a group's generation fell, or one generation has two assignments",
    "commit-unrecorded": "a commit was acknowledged that is not committed",
    "offset-unrecorded": "a member received an offset that had not been committed",
    "commit-unasked": "an offset was committed that no member asked for",
    "refused-commit": "a commit was reported as not written, and is committed",
    "commit-back": "a committed offset went back, and nobody had reset it",
    "commit-lost": "an acknowledged commit was not found again",
    "group-skip": "the group has committed past a record that no member ever processed",
    "group-repeat": "a record was processed twice, though nothing had gone wrong",
}
"""Kinds of finding, and what each says."""

Report: TypeAlias = Callable[[str, str], None]
"""(kind, what was seen)"""

Commits: TypeAlias = Mapping[TopicPartition, Offset]


@dataclass(slots=True)
class _Commit:
    """A request to commit, and what was already known when it was sent."""

    member: str
    instance: str | None
    generation: int
    offsets: Commits
    fence: int
    instance_is: str | None
    copies: int = 1
    """How often it was sent: what was sent twice may be heard twice, the second time late."""
    is_refused: bool = False
    """Its member received the outcome not_written."""


@dataclass(slots=True)
class _Group:
    fence: int = -1
    """The newest generation of which an assignment was given out."""
    fences: dict[str, int] = field(default_factory=dict)
    """The same by broker that gave it."""
    instances: dict[str, str] = field(default_factory=dict)
    """Instance id to the member id that was last given an assignment."""
    owners: dict[tuple[int, TopicPartition], str] = field(default_factory=dict)
    """By the coordinator's word."""
    readers: dict[tuple[int, TopicPartition], str] = field(default_factory=dict)
    """By what members were handed."""
    generation: int = -1
    """Of the newest committed record."""
    assignments: dict[int, list[tuple[TopicPartition, ...]]] = field(default_factory=dict)
    """Committed assignments, by generation."""
    commits: dict[int, _Commit] = field(default_factory=dict)
    """By op."""
    recorded: dict[TopicPartition, Offset] = field(default_factory=dict)
    """What is committed now."""
    ever: dict[TopicPartition, Counter[Offset]] = field(default_factory=dict)
    """What ever was, and how often."""
    floor: dict[TopicPartition, Offset] = field(default_factory=dict)
    """What was acknowledged: to be found from now on."""
    processed: dict[TopicPartition, Counter[tuple[Offset, str]]] = field(default_factory=dict)


class GroupBook:
    """All groups of one history."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._groups: dict[str, _Group] = {}

    def _of(self, group: str) -> _Group:
        return self._groups.setdefault(group, _Group())

    # ---- generations -------------------------------------------------------------------------------------------------

    def fence(self, group: str, broker: str | None = None) -> int:
        """The newest generation that is known to be in force, by this broker's word or anybody's."""
        known = self._of(group)
        return known.fence if broker is None else known.fences.get(broker, -1)

    def group_recorded(self, group: str, generation: int, assignments: Iterable[tuple[TopicPartition, ...]]) -> None:
        """A group's record was committed."""
        known, dealt = self._of(group), sorted(assignments)
        if generation < known.generation:
            self._report("generation-back", f"{group}: generation {generation} after {known.generation}")
        before = known.assignments.setdefault(generation, dealt)
        if before != dealt:
            self._report("generation-back", f"{group}: generation {generation} is {dealt}, and was {before}")
        known.generation = generation

    def group_deleted(self, group: str) -> None:
        """Its tombstone was committed: another group may have its name."""
        self._groups.pop(group, None)

    def synced(
        self,
        group: str,
        generation: int,
        member: str,
        partitions: tuple[TopicPartition, ...],
        *,
        broker: str,
        instance: str | None = None,
        fence: int = -1,
        is_log_known: bool = True,
    ) -> None:
        """An assignment was given out; ``fence`` was in force when it was asked for."""
        known = self._of(group)
        if generation < fence:
            self._report("zombie-sync", f"{group}: {member} synced for generation {generation}, in force is {fence}")
        if is_log_known and partitions not in known.assignments.get(generation, []):
            self._report(
                "assignment-unrecorded",
                f"{group}: {member} was given {_shown(partitions)} in generation {generation}, which is not committed",
            )
        owner = instance or member
        for partition in partitions:
            first = known.owners.setdefault((generation, partition), owner)
            if first != owner:
                self._report(
                    "two-owners", f"{group}: {partition} is {first}'s and {owner}'s in generation {generation}"
                )
        known.fence = max(known.fence, generation)
        known.fences[broker] = max(known.fences.get(broker, -1), generation)
        if instance is not None:
            known.instances[instance] = member

    def heartbeat_granted(self, group: str, generation: int, member: str, fence: int) -> None:
        """``fence``: of the broker that granted it, when it was asked."""
        if generation < fence:
            self._report(
                "zombie-heartbeat",
                f"{group}: {member} of generation {generation} received a successful answer, in force is {fence}",
            )

    def handed(self, group: str, generation: int, process: str, partition: TopicPartition) -> None:
        """A member was handed records, in what it took for its generation (-1: it knew that it was out)."""
        if generation < 0:
            self._report("read-outside", f"{group}: {process} was handed records of {partition}")
            return
        first = self._of(group).readers.setdefault((generation, partition), process)
        if first != process:
            self._report("two-owners", f"{group}: {first} and {process} read {partition} in generation {generation}")

    def assigned(self, group: str, generation: int, process: str, partitions: Iterable[TopicPartition]) -> None:
        """Note that a member begins to read these, in its generation (-1: it knows that it was expelled)."""
        shown = _shown(partitions)
        if generation < 0 and shown != _shown(()):
            self._report("assigned-outside", f"{group}: {process} was expelled, and takes {shown}")

    # ---- commits -----------------------------------------------------------------------------------------------------

    def commit_sent(
        self, op: int, group: str, member: str, generation: int, offsets: Commits, *, instance: str | None = None
    ) -> None:
        """A member asks; the same request may be sent again."""
        known = self._of(group)
        holder = known.instances.get(instance) if instance is not None else None
        if op in known.commits:
            known.commits[op].copies += 1
        else:
            known.commits[op] = _Commit(member, instance, generation, offsets, known.fence, holder)

    def commit_granted(
        self, op: int, group: str, partitions: Iterable[TopicPartition], *, is_log_known: bool = True
    ) -> None:
        """It was acknowledged for these."""
        known = self._of(group)
        commit = known.commits.get(op)
        if commit is None:
            return  # it was sent to a group of that name that is gone
        granted = list(partitions)
        if granted and 0 <= commit.generation < commit.fence:
            reason = f"generation {commit.generation}, in force was {commit.fence}"
            self._report("zombie-commit", f"{group}: {commit.member} committed {_as_text(commit.offsets)} in {reason}")
        if granted and commit.instance_is is not None and commit.instance_is != commit.member:
            reason = f"instance {commit.instance} was {commit.instance_is} by then"
            self._report("zombie-commit", f"{group}: {commit.member} committed {_as_text(commit.offsets)}, {reason}")
        for partition in granted:
            offset = commit.offsets[partition]
            if is_log_known and offset not in known.ever.get(partition, {}):
                self._report(
                    "commit-unrecorded", f"{group}: {partition} at {offset} was acknowledged to {commit.member}"
                )
            if known.recorded.get(partition, offset) >= offset:
                known.floor[partition] = max(offset, known.floor.get(partition, 0))

    def commits_sent(self, group: str) -> int:
        """The number of requests to commit so far, for :meth:`commit_refused`."""
        return len(self._of(group).commits)

    def commit_refused(self, group: str, member: str, since: int, offsets: Commits | None = None) -> None:
        """Note that a commit was reported as *not written*.

        Args:
            group: The group.
            member: The member id that committed.
            since: What :meth:`commits_sent` returned before the commit began: all its attempts were sent after that.
            offsets: What was committed; None if nothing else was committed meanwhile.
        """
        known = self._of(group)
        for commit in list(known.commits.values())[since:]:
            is_attempt = commit.member == member and (offsets is None or commit.offsets == offsets)
            # Nobody can promise anything about a request that the network doubles: the other copy may come late.
            if is_attempt and commit.copies == 1:
                commit.is_refused = True
                for partition, offset in commit.offsets.items():
                    self._look_for_refused(group, partition, offset)

    def _look_for_refused(self, group: str, partition: TopicPartition, offset: Offset) -> None:
        """An offset is recorded more often than requests may have written it: a refused one has been."""
        known = self._of(group)
        asked = [each for each in known.commits.values() if each.offsets.get(partition) == offset]
        times = known.ever.get(partition, Counter())[offset]
        if times > sum(each.copies for each in asked if not each.is_refused) and any(each.is_refused for each in asked):
            who = ", ".join(dict.fromkeys(each.member for each in asked if each.is_refused))
            self._report(
                "refused-commit", f"{group}: {partition} at {offset}, which was not_written according to {who}'s answer"
            )

    def offset_recorded(self, group: str, partition: TopicPartition, offset: Offset | None) -> None:
        """An offset's record was committed; None: it was deleted."""
        known = self._of(group)
        if offset is None:
            known.recorded.pop(partition, None)
            known.floor.pop(partition, None)
            return
        before = known.recorded.get(partition, 0)
        ever = known.ever.setdefault(partition, Counter())
        askers = [each for each in known.commits.values() if each.offsets.get(partition) == offset]
        if not askers:
            self._report("commit-unasked", f"{group}: {partition} at {offset}")
        elif offset < before and 0 < ever[offset] < sum(each.copies for each in askers):
            known.floor[partition] = offset  # the same request once more, which came late
        elif offset < before:
            who = ", ".join(dict.fromkeys(f"{each.member} in generation {each.generation}" for each in askers))
            self._report("commit-back", f"{group}: {partition} went from {before} to {offset}, asked for by {who}")
        known.recorded[partition] = offset
        ever[offset] += 1
        self._look_for_refused(group, partition, offset)

    def reset(self, group: str, partition: TopicPartition, offset: Offset) -> None:
        """A user set the group's offsets back: what it commits may be there, or anywhere after."""
        known = self._of(group)
        known.recorded[partition] = offset
        known.floor[partition] = offset

    def committed(self, group: str, partition: TopicPartition) -> Offset:
        """What stands in the log now; -1: nothing."""
        return self._of(group).recorded.get(partition, NO_OFFSET)

    def owed(self, group: str) -> dict[TopicPartition, Offset]:
        """What every later request must find, at least."""
        return dict(self._of(group).floor)

    def found(
        self, group: str, partition: TopicPartition, offset: Offset, owed: Mapping[TopicPartition, Offset]
    ) -> None:
        """What a coordinator answered (-1: nothing) to a request that was sent when ``owed`` was."""
        least = min(owed.get(partition, NO_OFFSET), self._of(group).floor.get(partition, NO_OFFSET))
        if offset < least:
            self._report("commit-lost", f"{group}: {partition} was acknowledged at {least}, and was found at {offset}")

    def received(self, group: str, partition: TopicPartition, offset: Offset) -> None:
        """An offset of a coordinator (-1: none) has reached a member, which reads on from there."""
        if offset != NO_OFFSET and not self._of(group).ever.get(partition, Counter())[offset]:
            self._report(
                "offset-unrecorded",
                f"{group}: {partition} at {offset} had not been committed when a member received it",
            )

    # ---- records -----------------------------------------------------------------------------------------------------

    def processed(self, group: str, partition: TopicPartition, records: Iterable[tuple[Offset, str]]) -> None:
        """A member is done with these (offset, value)."""
        self._of(group).processed.setdefault(partition, Counter()).update(records)

    def judge(self, group: str, logs: Mapping[TopicPartition, Iterable[tuple[Offset, str]]], *, is_calm: bool) -> None:
        """At the end, against what the partitions hold. ``is_calm``: nothing went wrong in this history."""
        known = self._of(group)
        for partition, rows in sorted(logs.items()):
            done = known.processed.get(partition, Counter())
            end = known.recorded.get(partition, 0)
            skipped = [(offset, value) for offset, value in rows if offset < end and not done[offset, value]]
            if skipped:
                offset, value = skipped[0]
                more = f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""
                self._report("group-skip", f"{group}: {value} at {partition}@{offset}{more}, committed is {end}")
            again = [each for each, count in done.items() if count > 1]
            if is_calm and again:
                offset, value = again[0]
                self._report(
                    "group-repeat", f"{group}: {value} at {partition}@{offset} was processed {done[again[0]]} times"
                )


def _shown(partitions: Iterable[TopicPartition]) -> str:
    return "[" + ", ".join(map(str, partitions)) + "]"


def _as_text(offsets: Commits) -> str:
    return ", ".join(f"{partition} at {offset}" for partition, offset in offsets.items())
