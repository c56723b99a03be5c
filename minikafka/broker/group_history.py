"""What this broker knew lately of the groups that it coordinates: members, state and committed offsets, once a second.

Bounded in time and bytes as ``history.py``, beside which it stands, and under the same rules: it remembers and decides
nothing, callers pass the time, and a turn of sampling has a bounded cost. A group that another broker coordinates from
now on has its later samples there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from minikafka.wire.codec import decode_response, encode_response
from minikafka.wire.group_messages import PastGroup, PastOffset, ReadGroupHistoryResponse

if TYPE_CHECKING:
    from minikafka.groups.coordinator import GroupCoordinator
    from minikafka.types import TopicPartition

LOOKED_AT_MAX = 500
"""Groups that one turn of sampling looks at: to look at one costs about 2 µs, and 0.1 µs for each of its partitions."""
SAMPLED_MAX = 20
"""Groups that one turn of sampling describes: those that have changed; about 50 µs each."""
WEIGHT_MAX = 20_000
"""Members, names of topics, partitions and offsets in the groups that one turn of sampling describes; about 1 µs each.
A group that is larger is kept without its members and offsets.
"""
_ROW_BYTES = 200


class _Row(NamedTuple):
    """A group at one moment."""

    at_ms: int
    group: str
    packed: bytes
    """Empty: the group was deleted."""


class GroupHistory:
    """The memory of one broker; see the head of this file."""

    def __init__(self, *, keep_ms: int, bytes_max: int) -> None:
        self._keep_ms = keep_ms
        self._bytes_max = bytes_max
        self.start_ms = 0
        """What was before is not complete; 0: nothing is kept yet."""
        self.size_bytes = 0
        self._rows: deque[_Row] = deque()
        self._before: dict[str, _Row] = {}
        """The newest of the forgotten rows of each group."""
        self._seen: dict[TopicPartition, dict[str, tuple[object, ...]]] = {}
        """What the last turns saw of the groups of each coordinator."""
        self._next = 0
        self._room = 0
        """Of WEIGHT_MAX, what this turn of sampling has left."""

    def sample(self, at_ms: int, coordinators: Sequence[tuple[TopicPartition, GroupCoordinator]]) -> int:
        """One turn: keep the groups that have changed since their last turn; how many.

        Args:
            at_ms: Milliseconds since 1970.
            coordinators: Those that answer, by partition of the offsets topic.
        """
        if not self.is_on:
            return 0
        self.start_ms = self.start_ms or at_ms
        answering = {name for name, _ in coordinators}
        for name in [each for each in self._seen if each not in answering]:
            del self._seen[name]  # another broker coordinates them now
        looked_at = count = 0
        self._room = WEIGHT_MAX
        for step in range(len(coordinators)):
            if looked_at >= LOOKED_AT_MAX or count >= SAMPLED_MAX or self._room <= 0:
                break
            name, coordinator = coordinators[(self._next + step) % len(coordinators)]
            glances = coordinator.glances()
            looked_at += len(glances)
            count += self._sample_of(at_ms, name, coordinator, glances, SAMPLED_MAX - count)
        else:
            step = len(coordinators)
        self._next = (self._next + step) % max(1, len(coordinators))
        self._forget(at_ms)
        return count

    def _sample_of(
        self,
        at_ms: int,
        name: TopicPartition,
        coordinator: GroupCoordinator,
        glances: dict[str, tuple[object, ...]],
        count_max: int,
    ) -> int:
        seen = self._seen.setdefault(name, {})
        for group in [each for each in seen if each not in glances]:
            del seen[group]
            self._keep(_Row(at_ms, group, b""))
        changed = [group for group, glance in glances.items() if seen.get(group) != glance][:count_max]
        for number, group in enumerate(changed):
            if self._room <= 0:
                return number
            weight = coordinator.weight(group)
            self._room -= min(weight, WEIGHT_MAX)
            seen[group] = glances[group]
            self._keep(_Row(at_ms, group, _packed(at_ms, group, coordinator, is_whole=weight <= WEIGHT_MAX)))
        return len(changed)

    def _keep(self, row: _Row) -> None:
        self._rows.append(row)
        self.size_bytes += _ROW_BYTES + len(row.packed)

    def _forget(self, now_ms: int) -> None:
        until = now_ms - self._keep_ms
        while self._rows and (self._rows[0].at_ms < until or self.size_bytes > self._bytes_max):
            row = self._rows.popleft()
            self.start_ms = max(self.start_ms, row.at_ms + 1)
            before = self._before.pop(row.group, None)
            self.size_bytes -= 0 if before is None else _ROW_BYTES + len(before.packed)
            if row.packed:
                self._before[row.group] = row
            else:
                self.size_bytes -= _ROW_BYTES
        self.start_ms = max(self.start_ms, until)

    @property
    def is_on(self) -> bool:
        """False: the settings leave it no time."""
        return self._keep_ms > 0

    def at(self, at_ms: int, group: str | None = None) -> list[PastGroup]:
        """Each group (or this one) as it was at a time, by its last sample until then. Without a ``group``: deleted."""
        found = {name: row for name, row in self._before.items() if group in (None, name)}
        for row in self._rows:
            if row.at_ms > at_ms:
                break
            if group in (None, row.group):
                found[row.group] = row
        return [_unpacked(row) for name, row in sorted(found.items()) if row.at_ms <= at_ms]


def _packed(at_ms: int, group: str, coordinator: GroupCoordinator, *, is_whole: bool) -> bytes:
    past = PastGroup(
        at_ms=at_ms,
        group_id=group,
        group=coordinator.describe(group, of_any_protocol=True) if is_whole else coordinator.outline(group),
        offsets=tuple(
            PastOffset(topic=name.topic, partition=name.partition, offset=each.offset)
            for name, each in coordinator.committed_offsets(group).items()
            if is_whole and each.offset >= 0
        ),
    )
    return b"".join(encode_response(ReadGroupHistoryResponse(groups=(past,))))


def _unpacked(row: _Row) -> PastGroup:
    if not row.packed:
        return PastGroup(at_ms=row.at_ms, group_id=row.group)
    response: ReadGroupHistoryResponse = decode_response("ReadGroupHistory", row.packed)
    return response.groups[0]
