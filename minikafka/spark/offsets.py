"""The offset of a streaming query: what Spark writes into its checkpoint, as one JSON object.

::

    {"$epochs": {"orders": {"0": 3}}, "$ids": {"orders": "Z3..."}, "orders": {"0": 12}}

Without the members that begin with ``$`` (no topic's name may) it is the JSON of Spark's Kafka source. Rules:

1. Ends are exclusive. The epoch is the leader's when the offset was committed: where that epoch ends in a later
   leader's log tells whether the records below the offset are still the same ones (KIP-101).
2. Keys are sorted, because Spark compares offsets as texts; if nothing is new, the reader returns what it was given.
3. ``$start`` stands in the end of batch 0 only. Spark does not keep the start of batch 0 and asks for it again when the
   batch is replayed: ``latest`` would then be somewhere else, and what came between would be lost.
4. ``$lost`` (kind -> partition -> records) stands in the end of a batch before which records were lost and that was
   allowed: so the query's progress shows it, and the checkpoint keeps it.
5. ``$initial`` marks an offset that a reader made up as the beginning; it never reaches a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minikafka.types import NO_EPOCH, Epoch, Offset, TopicId, TopicPartition

EPOCHS, IDS, START, INITIAL, LOST = "$epochs", "$ids", "$start", "$initial", "$lost"


class BadOffset(ValueError):
    """What Spark handed back is no offset of this source; the sentence says where."""


class Position(NamedTuple):
    """A place in a partition."""

    offset: Offset
    epoch: Epoch = NO_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """A place in every partition."""

    positions: Mapping[TopicPartition, Position]
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    start: StreamOffset | None = None
    """Where the query began; in the end of its first batch."""
    initial: bool = False
    lost: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Written, never read back."""

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        members: dict[str, Any] = {
            EPOCHS: _nested({partition: each.epoch for partition, each in self.positions.items()}),
            IDS: dict(sorted(self.topic_ids.items())),
        }
        if self.initial:
            members[INITIAL] = True
        if self.lost:
            members[LOST] = {kind: dict(sorted(each.items())) for kind, each in sorted(self.lost.items())}
        if self.start is not None:
            members[START] = self.start.to_json()
        return members | _nested({partition: each.offset for partition, each in self.positions.items()})


def _nested(numbers: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Topic -> partition -> number, sorted by both."""
    result: dict[str, dict[str, int]] = {}
    for partition in sorted(numbers):
        result.setdefault(partition.topic, {})[str(partition.partition)] = numbers[partition]
    return result


def from_json(members: Any) -> StreamOffset:
    """Read what :meth:`StreamOffset.to_json` wrote, or the offset JSON of Spark's Kafka source. Raises BadOffset."""
    if not isinstance(members, dict):
        raise BadOffset(f"an offset is a JSON object, not {members!r}")
    epochs = _flat(members.get(EPOCHS, {}), EPOCHS)
    offsets = _flat({name: each for name, each in members.items() if not name.startswith("$")}, "offsets")
    ids = members.get(IDS, {})
    start = members.get(START)
    return StreamOffset(
        positions={
            partition: Position(offset, epochs.get(partition, NO_EPOCH)) for partition, offset in offsets.items()
        },
        topic_ids=dict(ids),
        start=None if start is None else from_json(start),
        initial=members.get(INITIAL) is True,
    )


def _flat(nested: Any, what: str) -> dict[TopicPartition, int]:
    try:
        found = {
            TopicPartition(topic, int(partition)): number
            for topic, partitions in nested.items()
            for partition, number in partitions.items()
        }
    except (AttributeError, ValueError) as error:
        raise BadOffset(f"{what}: {nested!r} is not topic -> partition -> number") from error
    bad = [name for name, number in found.items() if type(number) is not int]
    if bad:
        raise BadOffset(f"{what}: {bad[0]} has {found[bad[0]]!r}, not a number")
    return found


def limited(
    begin: Mapping[TopicPartition, Offset], end: Mapping[TopicPartition, Offset], limit: int
) -> dict[TopicPartition, Offset]:
    """Ends that take about ``limit`` records: each partition its share, at least one where there is any.

    As Spark's rateLimit: a share below one record is rounded up, any other down. Partitions with nothing new keep
    their end; no end moves back.
    """
    sizes = {name: max(0, at - begin.get(name, at)) for name, at in end.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    result: dict[TopicPartition, Offset] = {}
    for name, at in end.items():
        size = sizes[name]
        if size == 0:
            result[name] = at
            continue
        taken = max(1, limit * size // total)
        result[name] = min(at, begin[name] + taken)
    return result


def new_records(begin: Mapping[TopicPartition, Position], end: Mapping[TopicPartition, Position]) -> int:
    """How many offsets lie between two places; partitions that only one of them knows do not count."""
    return sum(max(0, at.offset - begin[name].offset) for name, at in end.items() if name in begin)
