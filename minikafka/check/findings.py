"""What can be wrong with a history: one class per finding, in the words of Jepsen's Kafka checker and a few of ours.

A finding holds the smallest evidence: the offsets, values and processes involved and the numbers of the history's
lines that show it. ``kind`` is a contract (CLI, JSON, tests). Jepsen's int-nonmonotonic-send, int-send-skip and
precommitted-read need transactions and are not here until the broker has them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from msgspec import Struct

from minikafka.types import NO_OFFSET, Epoch, NodeId, Offset

MISSING = "missing"
"""In place of a value where a replica has no record."""


class Finding(Struct, frozen=True, kw_only=True):
    """One broken promise."""

    kind: ClassVar[str]
    meaning: ClassVar[str]
    """One sentence for people, the same for all findings of the kind."""

    topic: str
    partition: int
    offset: Offset
    """Where it shows; -1 where no offset is known."""
    lines: tuple[int, ...] = ()
    """Lines of the history; empty for findings from the logs themselves."""

    def evidence(self) -> dict[str, object]:
        """The fields as JSON has them (lists for tuples); a contract."""
        return {name: _plain(getattr(self, name)) for name in self.__struct_fields__}

    def place(self) -> str:
        """``flights-3@42``, or ``flights-3`` where no offset is known."""
        at = "" if self.offset == NO_OFFSET else f"@{self.offset}"
        return f"{self.topic}-{self.partition}{at}"

    def sentence(self) -> str:
        """What was seen, in one line. Every kind has one; a test looks, for a struct cannot be an abstract class."""
        raise NotImplementedError


# -- sends -----------------------------------------------------------------------------------------------------------


class LostWrite(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "lost-write"
    meaning: ClassVar[str] = "an acknowledged record is gone: readers passed its place, or no replica has it"

    value: str
    op: int
    process: str
    held_by: tuple[NodeId, ...]
    """Replicas that have it all the same: then reading is at fault."""
    read_up_to: Offset
    """End of what was read of the partition; -1 if the acknowledgement had no offset."""
    was_read: bool = False
    """A consumer was given it at its place: it was committed, whatever its acks were."""

    def sentence(self) -> str:
        if self.held_by:
            held = f"held by {_nodes(self.held_by)}"
        elif self.offset == NO_OFFSET:
            held = "acknowledged without an offset"
        else:
            held = f"partition was read up to {self.read_up_to}"
        return f"{self.value} of {self.process} was acknowledged and is nowhere to be read ({held})"


class Unseen(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "unseen"
    meaning: ClassVar[str] = "an acknowledged record lies beyond all that was read, though the final read is complete"

    value: str
    op: int
    process: str
    read_up_to: Offset

    def sentence(self) -> str:
        return f"{self.value} of {self.process} was acknowledged; reading ended at {self.read_up_to}"


class Duplicate(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "duplicate"
    meaning: ClassVar[str] = "a value stands at more places than it was sent"

    value: str
    places: tuple[tuple[int, Offset], ...]
    """(partition, offset) of each."""
    sends: int
    """How often it was sent, failed sends not counted."""

    def sentence(self) -> str:
        places = ", ".join(f"{self.topic}-{partition}@{offset}" for partition, offset in self.places)
        return f"{self.value} was sent {_times(self.sends)} and stands at {places}"


class NonmonotonicSend(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "nonmonotonic-send"
    meaning: ClassVar[str] = "records of one process stand in another order than they were sent"

    process: str
    key: str | None
    ops: tuple[int, int]
    values: tuple[str, str]
    offsets: tuple[Offset, Offset]

    def sentence(self) -> str:
        (first, second), (first_at, second_at) = self.values, self.offsets
        return f"{self.process} sent {first} before {second}, but they stand at {first_at} and {second_at}"


class AbortedRead(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "aborted-read"
    meaning: ClassVar[str] = "a record is there whose send definitely failed"

    value: str
    op: int
    error: str
    seen_by: str

    def sentence(self) -> str:
        return f"{self.value} was refused with {self.error}, yet seen by {self.seen_by}"


class PhantomRead(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "phantom-read"
    meaning: ClassVar[str] = "a record is there that nobody sent there"

    value: str
    seen_by: str

    def sentence(self) -> str:
        return f"{self.value} was sent there by nobody, yet seen by {self.seen_by}"


class InconsistentOffsets(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "inconsistent-offsets"
    meaning: ClassVar[str] = "one offset was seen with different values"

    values: tuple[tuple[str, str], ...]
    """(value, who says so) of each."""

    def sentence(self) -> str:
        return "; ".join(f"{value} says {who}" for value, who in self.values)


class Shifted(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "shifted"
    meaning: ClassVar[str] = "records stand in their order, all the same distance from where they were acknowledged"

    until: Offset
    """End of the acknowledged offsets; ``offset`` is the first."""
    distance: int
    """By how much they moved; negative: towards the log's start."""
    count: int
    values: tuple[str, str]
    """The first and the last."""
    processes: tuple[str, ...]
    """The senders, each once, sorted."""

    def sentence(self) -> str:
        first, last = self.values
        way = "lower" if self.distance < 0 else "higher"
        place = f"acknowledged from {self.offset} to {self.until} (exclusive), {first} to {last}"
        return f"{_records(self.count)}, {place}, stand {abs(self.distance)} {way}"


# -- polls -----------------------------------------------------------------------------------------------------------


class NonmonotonicPoll(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "nonmonotonic-poll"
    meaning: ClassVar[str] = "a process read an offset again or went back, with no seek or assignment between"

    process: str
    expected: Offset
    """The lowest offset that could have come."""

    def sentence(self) -> str:
        return f"{self.process} was to go on at {self.expected} and got {self.offset}"


class IntNonmonotonicPoll(NonmonotonicPoll, frozen=True, kw_only=True):
    kind: ClassVar[str] = "int-nonmonotonic-poll"
    meaning: ClassVar[str] = "within one poll offsets repeat or go back"


class PollSkip(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "poll-skip"
    meaning: ClassVar[str] = "between two polls a process passed over records that exist"

    process: str
    until: Offset
    """End of what was passed over; ``offset`` is the first record in it."""
    count: int

    def sentence(self) -> str:
        return f"{self.process} passed over {_records(self.count)} from {self.offset} to {self.until} (exclusive)"


class IntPollSkip(PollSkip, frozen=True, kw_only=True):
    kind: ClassVar[str] = "int-poll-skip"
    meaning: ClassVar[str] = "within one poll a process passed over records that exist"


class ReadAboveHw(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "read-above-hw"
    meaning: ClassVar[str] = "a consumer was given a record at or above the high watermark"

    process: str
    value: str
    high_watermark: Offset

    def sentence(self) -> str:
        return f"{self.process} got {self.value} while the high watermark was {self.high_watermark}"


class Vanished(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "vanished"
    meaning: ClassVar[str] = "a consumer was given a record that no replica has any more"

    process: str
    value: str

    def sentence(self) -> str:
        return f"{self.process} got {self.value}, and no replica has it"


# -- replicas --------------------------------------------------------------------------------------------------------


class Diverged(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "diverged"
    meaning: ClassVar[str] = "replicas differ below their high watermarks"

    holdings: tuple[tuple[NodeId, Epoch, str], ...]
    """(node, leader epoch, value or digest or ``missing``) of each replica whose high watermark is above the offset."""
    detail: str = ""

    def sentence(self) -> str:
        held = ", ".join(f"{node} has {_holding(epoch, value)}" for node, epoch, value in self.holdings)
        return f"{held}{'; ' if self.detail else ''}{self.detail}"


class AcknowledgedMissingOnReplica(Finding, frozen=True, kw_only=True):
    kind: ClassVar[str] = "acknowledged-missing-on-replica"
    meaning: ClassVar[str] = "an acknowledged record is not on a replica that must have it"

    value: str
    op: int
    holdings: tuple[tuple[NodeId, str], ...]
    """(node, what it has there instead or ``missing``) of each replica without it."""

    def sentence(self) -> str:
        held = ", ".join(
            f"replica {node} has {'nothing' if value == MISSING else value}" for node, value in self.holdings
        )
        return f"{self.value} was acknowledged; {held} there"


KINDS: tuple[type[Finding], ...] = (
    LostWrite,
    Duplicate,
    InconsistentOffsets,
    Shifted,
    NonmonotonicSend,
    AbortedRead,
    PhantomRead,
    Unseen,
    NonmonotonicPoll,
    IntNonmonotonicPoll,
    PollSkip,
    IntPollSkip,
    ReadAboveHw,
    Vanished,
    Diverged,
    AcknowledgedMissingOnReplica,
)
"""Every kind, the gravest first: the order of reports."""


def findings_json(totals: Mapping[str, int], findings: Collection[Finding]) -> dict[str, object]:
    """The part of a verdict's JSON that says what was found; ``totals``: how many of each kind."""
    return {
        kind.kind: {
            "count": totals[kind.kind],
            "meaning": kind.meaning,
            "examples": [each.evidence() for each in findings if each.kind == kind.kind],
        }
        for kind in KINDS
        if kind.kind in totals
    }


def _plain(value: object) -> object:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _nodes(nodes: tuple[NodeId, ...]) -> str:
    return "replica" + ("s " if len(nodes) > 1 else " ") + ", ".join(map(str, nodes))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _holding(epoch: Epoch, value: str) -> str:
    return "nothing" if value == MISSING else f"{value} (epoch {epoch})"
