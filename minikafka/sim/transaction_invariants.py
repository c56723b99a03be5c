"""What must hold of transactions in every log after each step (KIP-98): the last stable offset, and each marker.

The truth is read from the batches of the log, and compared with what the broker derives from its producer state:

- T8: the last stable offset is the smallest of the high watermark, the first offsets of open transactions, and the
  first offsets of ended transactions whose marker is not below the high watermark. Open transactions are the log's.
- T9: it never falls while a leader leads. A transaction that lies below it ends in every later leader's log as it did.
- T3: a leader appends a marker only when the decision is committed in ``__transaction_state``.

Rules for this file: it only looks. Each batch is read once for each log: a cursor remembers the transactions so far,
and an event that cuts the log takes the cursor back.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from minikafka.log.partition_log import PartitionLog
from minikafka.replication.leader import LeaderReplica
from minikafka.sim.log_invariants import stored_batches, stored_heads, whole
from minikafka.sim.replica_view import Key, OfPartition, ReplicaView, Report, number_of
from minikafka.transactions.records import TRANSACTIONS_TOPIC, State, unpacked
from minikafka.types import Epoch, Offset, TopicPartition
from minikafka.wire.batch import CONTROL_BIT, TRANSACTIONAL_BIT, RecordBatch
from minikafka.wire.markers import EndTransaction, marker_of
from minikafka.wire.records import decode_batch

CUTS: Final = frozenset({"tail_truncated", "log_restarted"})
"""Events after which a log lacks what it had."""


class Ended(NamedTuple):
    """A transaction in one log, and its marker."""

    first: Offset
    producer_id: int
    marker: Offset
    is_commit: bool


class Marked(NamedTuple):
    """A marker in one log."""

    offset: Offset
    leader_epoch: Epoch
    marker: EndTransaction


@dataclass(slots=True)
class Spans:
    """The transactions of one log up to ``end``."""

    log: PartitionLog
    end: Offset = 0
    is_whole: bool = True
    """False: the log began later than this cursor, so transactions may have begun unseen."""
    open: dict[int, Offset] = field(default_factory=dict)
    """First offset by producer id."""
    ended: list[Ended] = field(default_factory=list)
    """All, in the order of their markers."""
    settled: int = 0
    """How many of ``ended`` have a marker below the high watermark."""

    def follow(self) -> list[Marked]:
        """Read what was appended since; return its markers."""
        if self.log.start_offset > self.end:
            self.is_whole = False
        if self.log.end_offset <= self.end:
            return []
        found = []
        for stored in stored_heads(self.log, self.end, self.log.end_offset):
            head = stored[0]
            self.end = head.next_offset
            marked = self._note(whole(*stored)) if head.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) else None
            if marked is not None:
                found.append(marked)
        return found

    def _note(self, batch: RecordBatch) -> Marked | None:
        if not batch.is_control:
            if batch.is_transactional:
                self.open.setdefault(batch.producer_id, batch.base_offset)
            return None
        marker = marker_of(batch)
        if marker is None:
            return None
        first = self.open.pop(marker.producer_id, None)
        if first is not None:
            self.ended.append(Ended(first, marker.producer_id, batch.base_offset, marker.is_commit))
        return Marked(batch.base_offset, batch.leader_epoch, marker)

    def cut(self, end: Offset) -> None:
        """The log was truncated: transactions that ended behind ``end`` are open, those that began there are not."""
        if end >= self.end:
            return
        self.end = end
        self.open = {producer: first for producer, first in self.open.items() if first < end}
        self.open |= {each.producer_id: each.first for each in self.ended if each.first < end <= each.marker}
        self.ended = [each for each in self.ended if each.marker < end]
        self.settled = min(self.settled, len(self.ended))

    def settle(self, high_watermark: Offset) -> list[Ended]:
        """The transactions whose marker has come below the high watermark since the last call."""
        before = self.settled
        while self.settled < len(self.ended) and self.ended[self.settled].marker < high_watermark:
            self.settled += 1
        return self.ended[before : self.settled]

    def stable_end(self, high_watermark: Offset, decided_end: Offset) -> Offset:
        """The last stable offset, if markers below ``decided_end`` are committed."""
        if not self.open and not self.ended:
            return high_watermark
        held = list(self.open.values())
        for each in reversed(self.ended):
            if each.marker < decided_end:
                break
            held.append(each.first)
        return min(high_watermark, max(min(held, default=high_watermark), self.log.start_offset))


class StableOffset(OfPartition):
    """T8 and T9 of each leader, and T3 of the markers that it appends."""

    name = "last_stable_offset"

    def __init__(self, were_rotten: Callable[[], Container[TopicPartition]]) -> None:
        self.decisions = Decisions(were_rotten)
        self._spans: dict[tuple[str, Key], Spans] = {}
        self._watermarks: dict[tuple[int, Key], Offset] = {}
        """The highest of each broker, over its restarts: what was once committed is committed for good."""
        self._served: dict[tuple[str, Key, Epoch], Offset] = {}
        self._outcomes: dict[Key, dict[tuple[Offset, int], Ended]] = {}
        """Of transactions below the last stable offset of any leader, by first offset and producer id."""
        self._exposed: dict[Key, dict[Epoch, Offset]] = {}
        """The highest last stable offset of each leader."""

    def look(self, view: ReplicaView, report: Report) -> None:
        self.decisions.look(view, report)
        spans, decided = self._spans_of(view), self._decided_end(view)
        leader = view.leader
        if leader is None or leader.log.is_closed:
            return
        for marked in spans.follow():
            if marked.leader_epoch == leader.epoch:
                self.decisions.look_at_marker(view, marked, report)
        stable = leader.last_stable_offset
        self._look_at_stable(view, spans, stable, decided, report)
        self._look_at_monotony(view, leader, stable, report)
        if not view.unclean:
            self._look_at_outcomes(view, spans, leader, stable, report)

    def _spans_of(self, view: ReplicaView) -> Spans:
        log, key = view.partition.log, (view.life, view.key)
        spans = self._spans.get(key)
        if spans is None or spans.log is not log:
            spans = self._spans[key] = Spans(log)
        for event in view.events if not view.kinds.isdisjoint(CUTS) else ():
            if event.kind == "tail_truncated":
                spans.cut(number_of(event, "new"))
            elif event.kind == "log_restarted":
                spans = self._spans[key] = Spans(log)
        spans.cut(log.end_offset)
        return spans

    def _decided_end(self, view: ReplicaView) -> Offset:
        """Markers below it were committed, as far as this broker can know."""
        key, watermark = (view.partition.me, view.key), view.partition.high_watermark
        known = max(self._watermarks.get(key, 0), watermark)
        for event in view.events if not view.kinds.isdisjoint(CUTS) else ():
            if event.kind in CUTS:
                known = min(known, number_of(event, "new"))
        self._watermarks[key] = known = min(max(known, watermark), view.partition.log.end_offset)
        return known

    def _look_at_stable(self, view: ReplicaView, spans: Spans, stable: Offset, decided: Offset, report: Report) -> None:
        watermark, log = view.partition.high_watermark, spans.log
        lowest, highest = spans.stable_end(watermark, watermark), spans.stable_end(watermark, decided)
        if not (lowest <= stable or not spans.is_whole) or stable > highest:
            report(
                self.name,
                f"{view.name} on {view.life}: the last stable offset is {stable}, by the log {lowest} to {highest} "
                f"(high watermark {watermark}, open {spans.open}, ended {spans.ended[-3:]})",
            )
        opened = log.producers.transactions.open
        if not opened and not spans.open:
            return
        known = {producer: first for first, producer in opened.items()}
        if spans.is_whole and known != spans.open:
            report(
                "open_transactions_differ",
                f"{view.name} on {view.life}: producer state has {known}, the log {spans.open} open",
            )

    def _look_at_monotony(self, view: ReplicaView, leader: LeaderReplica, stable: Offset, report: Report) -> None:
        key = (view.life, view.key, leader.epoch)
        served = self._served.get(key, -1)
        if stable < served:
            report(
                "stable_offset_fell",
                f"{view.name} on {view.life}: from {served} to {stable} in {leader!r}",
            )
        self._served[key] = max(served, stable)

    def _look_at_outcomes(
        self, view: ReplicaView, spans: Spans, leader: LeaderReplica, stable: Offset, report: Report
    ) -> None:
        """Readers have seen the outcome of everything below the last stable offset: no later leader knows another.

        A former leader that does not know yet that it is one may still have transactions open that its successor ended.
        """
        outcomes = self._outcomes.setdefault(view.key, {})
        for each in spans.settle(leader.high_watermark):
            known = outcomes.setdefault((each.first, each.producer_id), each)
            if known != each:
                report("stable_outcome_changed", f"{view.name} on {view.life}: {each}, exposed was {known}")
        exposed = self._exposed.setdefault(view.key, {})
        if spans.open and spans.is_whole:
            end = max((offset for epoch, offset in exposed.items() if epoch <= leader.epoch), default=0)
            behind = {producer: first for producer, first in spans.open.items() if first < end}
            if behind:
                report(
                    "stable_outcome_changed",
                    f"{view.name} on {view.life}: {behind} open, served as stable: {end}",
                )
        exposed[leader.epoch] = max(exposed.get(leader.epoch, 0), stable)


_OUTCOMES = {State.PREPARE_COMMIT: True, State.PREPARE_ABORT: False}


class Decisions:
    """The committed decisions of all transaction coordinators, and T3: a marker follows its decision."""

    def __init__(self, were_rotten: Callable[[], Container[TopicPartition]]) -> None:
        self._were_rotten = were_rotten
        self._known: set[tuple[int, int, bool]] = set()
        """Producer id and epoch of the marker, and whether it commits."""
        self._read: dict[tuple[str, Key, Epoch], Offset] = {}
        self._names: set[TopicPartition] = set()

    def look(self, view: ReplicaView, _report: Report) -> None:
        """Read what a coordinator's log has committed since."""
        leader = view.leader
        if leader is None or view.name.topic != TRANSACTIONS_TOPIC:
            return
        self._names.add(view.name)
        key = (view.life, view.key, leader.epoch)
        start, end = self._read.get(key, 0), leader.high_watermark
        self._read[key] = max(start, end)
        for batch in stored_batches(leader.log, start, end):
            for record in decode_batch(batch) if not batch.is_control else ():
                found = unpacked(record.key or b"", record.value)
                value = None if found is None else found.value
                if value is not None and value.state in _OUTCOMES:
                    self._known.add((value.producer_id, value.producer_epoch, _OUTCOMES[value.state]))

    def look_at_marker(self, view: ReplicaView, marked: Marked, report: Report) -> None:
        """A leader has appended this marker in its epoch."""
        marker = marked.marker
        if (marker.producer_id, marker.producer_epoch, marker.is_commit) in self._known:
            return
        if not any(name in self._were_rotten() for name in self._names):
            report(
                "marker_without_decision",
                f"{view.name}@{marked.offset} on {view.life}: {marker}, and no such decision is committed",
            )
