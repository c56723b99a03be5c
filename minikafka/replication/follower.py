"""The follower's rules for one partition: ask, cut, extend.

Rules for this file: nothing awaits or sleeps. A follower only pulls (S17). It asks from its log's end, says with which
epoch its log ends, and cuts back where the leader says that the two logs part: *by epoch, never by watermark* (S21;
with the watermark rule the schedules S22 and S23 lose and diverge). Its watermark is assigned from the leader's after
the records are in, so it lags by one round (S8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from minikafka.errors import BY_CODE, CorruptMessage, FencedLeaderEpoch, OffsetOutOfRange
from minikafka.invariant import invariant
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import Events, unheard_by
from minikafka.types import NO_EPOCH, UNDEFINED_EPOCH_END, Epoch, EpochEnd, NodeId, Offset, TopicPartition
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.messages import FetchedPartition


@dataclass(frozen=True, slots=True)
class NextFetch:
    """What to ask the leader for."""

    offset: Offset
    last_fetched_epoch: Epoch
    leader_epoch: Epoch
    start_offset: Offset
    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class CutTo:
    """Truncate to ``offset`` and ask again."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Extend:
    """Append ``batches`` (maybe none), make them durable if the policy says so, then call ``on_durable``."""

    batches: tuple[RecordBatch, ...]
    leader_high_watermark: Offset
    leader_start_offset: Offset


@dataclass(frozen=True, slots=True)
class RestartAt:
    """The leader's log starts beyond this one's end: drop everything and start there."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done now; ``for_metadata``: only news from the controller can help."""

    error_code: int
    for_metadata: bool


FollowerStep: TypeAlias = CutTo | Extend | RestartAt | Wait


class TruncationRule(Protocol):
    """How a follower makes its log a prefix of the leader's. Production has one; the lab has the old one too."""

    def on_follow(self, log: PartitionLog, high_watermark: Offset) -> Offset:
        """Where to cut before the first fetch (the log's end: nowhere)."""
        ...

    def last_fetched_epoch(self, log: PartitionLog) -> Epoch:
        """What a fetch tells of this log's last epoch; NO_EPOCH turns the leader's check off."""
        ...

    def on_diverging(self, log: PartitionLog, leaders: EpochEnd) -> Offset:
        """Where to cut when the leader's epoch ``leaders.epoch`` ends at ``leaders.end_offset``."""
        ...


class TruncateByLeaderEpoch:
    """KIP-101 with KIP-279 and KIP-595: step down to the largest epoch that both logs know."""

    def on_follow(self, log: PartitionLog, high_watermark: Offset) -> Offset:
        """Nowhere while an epoch is known; a log without any epoch has nothing but its watermark."""
        return log.end_offset if log.last_epoch != NO_EPOCH else min(high_watermark, log.end_offset)

    def last_fetched_epoch(self, log: PartitionLog) -> Epoch:
        return log.last_epoch

    def on_diverging(self, log: PartitionLog, leaders: EpochEnd) -> Offset:
        """The end of the epoch in whichever log it ends first.

        When this log does not know the leader's epoch, its own smaller epoch ends where foreign records begin: naming
        the epoch beside the offset is what KIP-279 added. Repeating the question steps down until one is common.
        """
        mine = log.end_offset_for(leaders.epoch)
        if mine == UNDEFINED_EPOCH_END:
            return min(leaders.end_offset, log.end_offset)
        if mine.epoch != leaders.epoch:
            return min(mine.end_offset, log.end_offset)
        return min(mine.end_offset, leaders.end_offset, log.end_offset)


class FollowerReplica:
    """The role of following one leader in one leader epoch."""

    def __init__(
        self,
        partition: TopicPartition,
        log: PartitionLog,
        *,
        leader: NodeId,
        epoch: Epoch,
        high_watermark: Offset,
        truncation: TruncationRule,
        events: Events,
    ) -> None:
        self.partition = partition
        self.log = log
        self.leader = leader
        self.epoch = epoch
        self.high_watermark = high_watermark
        self.truncation = truncation
        self.events = events
        self._unheard = unheard_by(events)
        self.isr: tuple[NodeId, ...] = ()
        cut = truncation.on_follow(log, high_watermark)
        if cut < log.end_offset:
            self.cut_to(cut)

    def __repr__(self) -> str:
        return (
            f"<{self.partition} follower e{self.epoch} leo={self.log.end_offset} hw={self.high_watermark} "
            f"leader={self.leader}>"
        )

    @property
    def last_stable_offset(self) -> Offset:
        """As on a leader, by the watermark that is known here."""
        return self.log.stable_end(self.high_watermark)

    def next_fetch(self) -> NextFetch:
        """Ask from the log's end: under sync-before-acknowledge the driver has synced it before, so the offset is the
        acknowledgement (S5).
        """
        return NextFetch(
            offset=self.log.end_offset,
            last_fetched_epoch=self.truncation.last_fetched_epoch(self.log),
            leader_epoch=self.epoch,
            start_offset=self.log.start_offset,
            high_watermark=self.high_watermark,
        )

    def on_response(self, answer: FetchedPartition, *, asked: Offset) -> FollowerStep:
        """What to do with the leader's answer to a fetch from ``asked``; raises CorruptMessage for bad batches.

        The driver makes sure that role and log end are still those of the request.
        """
        invariant(asked == self.log.end_offset, "the answer fits the log", asked=asked, log=self.log)
        if answer.error_code == OffsetOutOfRange.code:
            return self._on_out_of_range(answer)
        if answer.error_code:
            return Wait(answer.error_code, for_metadata=BY_CODE.get(answer.error_code) is FencedLeaderEpoch)
        if answer.diverging_epoch is not None:
            # Truncate first: neither watermark nor log start may be taken from an answer that says "you differ"
            # (KAFKA-14704).
            leaders = EpochEnd(answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
            cut = self.truncation.on_diverging(self.log, leaders)
            if self.log.start_offset < cut <= answer.log_start_offset:
                # Only records that the leader has deleted would be left, and it does not know where the logs part: its
                # epochs below its start are forgotten. They may be another leader's, which were lost: a producer's
                # retry of one would be taken for a duplicate.
                return RestartAt(answer.log_start_offset)
            return CutTo(cut)
        if answer.has_gaps:
            self.log.note_gaps()
        batches = tuple(batch for buffer in answer.records for batch in split(memoryview(buffer)))
        inside = batches and batches[0].base_offset < asked <= batches[0].last_offset
        if inside and self.log.start_offset < asked <= answer.log_start_offset:
            # The leader's log starts inside this batch, and every record of this replica lies below that start. The
            # last ones may differ from the batch without a diverging epoch: epochs below the start are forgotten.
            return RestartAt(asked)
        return Extend(batches, answer.high_watermark, answer.log_start_offset)

    def _on_out_of_range(self, answer: FetchedPartition) -> FollowerStep:
        if 0 <= answer.log_end_offset < self.log.end_offset:
            return CutTo(answer.log_end_offset)
        if answer.log_start_offset > self.log.end_offset:
            return RestartAt(answer.log_start_offset)
        return Wait(answer.error_code, for_metadata=False)

    def append(self, batches: Sequence[RecordBatch]) -> None:
        """Store batches verbatim (S8). Raises CorruptMessage when they do not continue the log."""
        if not batches:
            return
        first, end = batches[0], self.log.end_offset
        if first.base_offset < end <= first.last_offset and self.log.start_offset == end:
            # This empty log was restarted at the leader's log start, which lies inside this batch (KAFKA-6975).
            self.log.restart_at(first.base_offset)
        if first.base_offset < self.log.end_offset:
            raise CorruptMessage(f"{self.partition}: batch at {first.base_offset} is below the log end {end}")
        self.log.append_as_follower(batches)
        self._tell_appended(batches)

    def _tell_appended(self, batches: Sequence[RecordBatch]) -> None:
        """One event for each leader epoch in what was appended: as a rule there is one."""
        start = 0
        for number, batch in enumerate(batches):
            is_last = number + 1 == len(batches)
            if is_last or batches[number + 1].leader_epoch != batch.leader_epoch:
                if not self._unheard.counted("batch_appended"):
                    self.events(
                        "batch_appended",
                        partition=str(self.partition),
                        epoch=batch.leader_epoch,
                        base=batches[start].base_offset,
                        end=batch.next_offset,
                        leader=self.leader,
                        role_epoch=self.epoch,
                    )
                start = number + 1

    def cut_to(self, offset: Offset) -> None:
        """Drop everything from ``offset`` on; the watermark never stays beyond the log's end."""
        old = self.log.end_offset
        self.log.truncate_to(offset)
        name, end = str(self.partition), self.log.end_offset
        if end == old:
            # At most an epoch without records was forgotten (KAFKA-10706): no warning, no records are gone.
            self.events("nothing_truncated", partition=name, epoch=self.epoch, end=end)
        else:
            below = end < self.high_watermark
            self.events(
                "tail_truncated", partition=name, epoch=self.epoch, old=old, new=end, below_high_watermark=below
            )
        self._assign_watermark(min(self.high_watermark, self.log.end_offset))

    def restart_at(self, offset: Offset) -> None:
        """Empty the log and start it at ``offset``; the watermark goes with it (KAFKA-9491)."""
        old = self.log.end_offset
        self.log.restart_at(offset)
        self.events("log_restarted", partition=str(self.partition), epoch=self.epoch, old=old, new=offset)
        self._assign_watermark(offset)

    def on_durable(self, leader_high_watermark: Offset, leader_start_offset: Offset) -> bool:
        """The answer's records are in (and synced, under that policy). True if the watermark moved.

        The watermark is assigned, not maxed: after a change of leader it may go down (KAFKA-FACTS 3.4). Raises
        KafkaStorageError when the log cannot begin at the leader's start.
        """
        old = self.high_watermark
        bounded = max(self.log.start_offset, min(leader_high_watermark, self.log.end_offset))
        self._assign_watermark(bounded)
        if leader_start_offset > self.log.start_offset:
            self.log.raise_start(min(leader_start_offset, self.log.end_offset))
            self._assign_watermark(max(self.high_watermark, self.log.start_offset))
        return self.high_watermark != old

    def _assign_watermark(self, new: Offset) -> None:
        invariant(new <= self.log.end_offset, "watermark within the log (S2)", new=new, log=self.log)
        if new != self.high_watermark and not self._unheard.counted("follower_hw_changed"):
            self.events(
                "follower_hw_changed", partition=str(self.partition), epoch=self.epoch, old=self.high_watermark, new=new
            )
        self.high_watermark = new
