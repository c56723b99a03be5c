"""Where a consumer stands in each of its partitions, and what it has fetched ahead (S35, S36, KIP-320).

:class:`PartitionState` is the state of one partition and decides nothing; :class:`Positions` decides what to fetch,
reset or validate next.

Rules for this file:

1. No asyncio, no clock, no I/O: what to fetch, reset or validate goes out; answers come in with the version of the
   state that they were asked for. A seek makes a new version, so whatever is under way for the old one is ignored.
2. Records go to the application in offset order, from the position on; gaps are normal; control batches, and batches
   of aborted transactions, are passed over. The position moves only when records are returned (or a gap is passed).
3. A batch is opened when its records are wanted. What cannot be read is an error at its place: everything before it is
   delivered first, the position stays in front of it, and a seek leads past it.
4. After a change of leader epoch nothing is fetched before the new leader confirmed the last fetched epoch.
5. A position belongs to a topic id. When the topic is deleted and created again, all its records are new: they are read
   from the first one on, whatever ``auto.offset.reset`` says; ``none`` is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from minikafka.client.metadata import Leader
from minikafka.client.settings import Deserializer
from minikafka.client.structs import ConsumerRecord, LogTruncation, NoOffsetForPartition
from minikafka.errors import CorruptMessage, OffsetOutOfRange, ProtocolError
from minikafka.types import NO_EPOCH, NO_NODE, NO_OFFSET, Epoch, NodeId, Offset, TopicId, TopicPartition
from minikafka.wire.batch import RecordBatch, from_offset, split, verify
from minikafka.wire.markers import filter_of
from minikafka.wire.messages import EpochAnswer, FetchedPartition, ListedOffset
from minikafka.wire.records import RecordView, records_of


@dataclass(slots=True, eq=False)
class PartitionState:
    """One assigned partition."""

    partition: TopicPartition
    version: int
    """Rises at each seek and reset; an answer asked for under another version is stale."""
    position: Offset | None = None
    """Offset of the next record to hand out; None until a reset finds one."""
    reset: str | None = None
    """``earliest`` or ``latest`` while the position has to be looked up."""
    fetch_offset: Offset = NO_OFFSET
    """Where the next fetch begins: behind everything that is buffered."""
    fetch_epoch: Epoch = NO_EPOCH
    """Leader epoch of the last fetched batch, -1 if unknown: what a new leader has to confirm."""
    validated_epoch: Epoch = NO_EPOCH
    """The leader epoch under which the fetch offset is known to be right."""
    topic_id: TopicId | None = None
    """Of the topic that the position is in, once it is known."""
    batches: deque[RecordBatch] = field(default_factory=deque)
    """Fetched and not opened."""
    buffered_size: int = 0
    opened: RecordBatch | None = None
    """The batch that is being handed out."""
    records: list[ConsumerRecord] = field(default_factory=list)
    """The next records of it; those before ``cursor`` have been handed out."""
    cursor: int = 0
    unmade: Iterator[RecordView] = field(default_factory=lambda: iter(()))
    """Those behind ``records``, ``unmade_count`` of them."""
    unmade_count: int = 0
    opened_epoch: Epoch = NO_EPOCH
    """Leader epoch of the batch that was opened last: of the record before the position."""
    processed: tuple[Offset, Epoch] | None = None
    """Position and epoch when the application last asked for records: what it is done with."""
    paused: bool = False
    busy: bool = False
    """A fetch, reset or validation is under way."""
    retry_at: float = 0.0
    error: ProtocolError | None = None
    """To be raised once everything before it has been handed out."""
    out_of_range: bool = False
    high_watermark: Offset | None = None
    last_stable_offset: Offset | None = None
    log_start_offset: Offset | None = None

    @property
    def has_buffered(self) -> bool:
        """Return True if records were fetched and not yet returned to the application."""
        return self.opened is not None or bool(self.batches)

    def drop_buffered(self) -> None:
        """Forget what was fetched ahead, and what stood behind it."""
        self.batches.clear()
        self.close()
        self.buffered_size = 0
        self.error = None
        self.out_of_range = False

    def close(self) -> None:
        """Forget the opened batch."""
        self.opened = None
        self.records = []
        self.cursor = self.unmade_count = 0
        self.unmade = iter(())

    def __repr__(self) -> str:
        flags = "".join(
            f" {name}" for name, on in (("paused", self.paused), ("busy", self.busy), ("error", self.error)) if on
        )
        return f"<position {self.partition} at={self.position} fetch={self.fetch_offset} e{self.fetch_epoch}{flags}>"


# Of an opened batch so many records are made at a time: few enough that those of one poll are gone before Python has
# looked for garbage among them, which costs three times what making them does.
RECORDS_AT_ONCE = 250

EARLIEST, LATEST, NONE = "earliest", "latest", "none"
NEVER = float("inf")

LeaderOf = Callable[[TopicPartition], Leader]
TopicIdOf = Callable[[str], TopicId | None]


@dataclass(slots=True)
class Wanted:
    """What a driver should ask for now, by node; and when to look again."""

    fetches: dict[NodeId, list[PartitionState]] = field(default_factory=dict)
    resets: dict[NodeId, list[PartitionState]] = field(default_factory=dict)
    validations: dict[NodeId, list[PartitionState]] = field(default_factory=dict)
    leaderless: bool = False
    deadline: float = NEVER


class Positions:
    """All assigned partitions, in order of assignment."""

    def __init__(
        self,
        *,
        reset_policy: str,
        check_crcs: bool = True,
        key_of: Deserializer | None = None,
        value_of: Deserializer | None = None,
        buffer_size_low: int = 524_288,
    ) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self._reset_policy = reset_policy
        self._check_crcs = check_crcs
        self._key_of = key_of
        self._value_of = value_of
        self._buffer_size_low = buffer_size_low
        """A partition with no more than this many fetched bytes left is fetched again."""
        self._ready: deque[PartitionState] = deque()
        """Partitions with something to hand out, in turn."""
        self._version = 0
        self._handed: dict[TopicPartition, PartitionState] = {}
        """Partitions of which something was handed out since the application last asked."""
        self.opened = 0
        """Batches opened and errors handed out so far: when it rises, fetching may go on."""

    # ------------------------------------------------------------------------------------------------- assignment

    def assign(self, partitions: Iterable[TopicPartition], *, held: bool = False) -> None:
        """Exactly these from now on; those that stay keep their position.

        ``held``: new ones have none, and are not asked for, until :meth:`begin_at`, :meth:`release` or a seek.
        """
        wanted = dict.fromkeys(partitions)
        for partition in [each for each in self.states if each not in wanted]:
            self._unready(self.states.pop(partition))
        for partition in wanted:
            if partition not in self.states:
                state = PartitionState(partition, 0)
                self.states[partition] = state
                if held:
                    self._renew(state)
                else:
                    self._begin_reset(state)

    def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Hand out records from ``offset`` on."""
        state = self.states[partition]
        self._renew(state)
        state.position = state.fetch_offset = offset
        state.processed = offset, NO_EPOCH

    def begin_at(self, partition: TopicPartition, offset: Offset, epoch: Epoch) -> None:
        """Begin where a group has left off; ``epoch`` (-1: not known) has to be confirmed by the leader (KIP-320)."""
        self.seek(partition, offset)
        state = self.states[partition]
        state.fetch_epoch = state.opened_epoch = epoch
        if epoch != NO_EPOCH:
            state.validated_epoch = 0

    def release(self, partition: TopicPartition) -> None:
        """A held partition that nobody has committed for: auto.offset.reset decides."""
        self._begin_reset(self.states[partition])

    def is_held(self, partition: TopicPartition) -> bool:
        """Return True if it has no position, and no reset looks one up."""
        state = self.states.get(partition)
        return state is not None and state.position is None and state.reset is None

    def refuse(self, partitions: Iterable[TopicPartition], error: ProtocolError) -> None:
        """Where these begin could not be looked up: the application gets the error."""
        for partition in partitions:
            if self.is_held(partition):
                state = self.states[partition]
                state.error = error
                self._make_ready(state)

    def asked(self) -> None:
        """The application asks for records: it is done with what it had."""
        for partition, state in self._handed.items():
            if self.states.get(partition) is state and state.position is not None:
                state.processed = state.position, state.opened_epoch
        self._handed.clear()

    def committed(self, partition: TopicPartition, offset: Offset, epoch: Epoch) -> None:
        """The group has ``offset`` by now: of what was handed out, the application is done with all before it."""
        state = self.states.get(partition)
        if state is None or state.position is None or state.processed is None:
            return
        if state.processed[0] < offset <= state.position:
            state.processed = offset, epoch

    def processed(self) -> dict[TopicPartition, tuple[Offset, Epoch]]:
        """What the application is done with: the next offset, and the leader epoch before it."""
        return {name: state.processed for name, state in self.states.items() if state.processed is not None}

    def consumed(self) -> dict[TopicPartition, tuple[Offset, Epoch]]:
        """All positions: what was handed out, done with or not."""
        return {
            name: (state.position, state.opened_epoch)
            for name, state in self.states.items()
            if state.position is not None
        }

    def request_reset(self, partition: TopicPartition, policy: str) -> None:
        """Look the position up: ``earliest`` or ``latest``."""
        state = self.states[partition]
        self._renew(state)
        state.reset = policy

    def pause(self, partition: TopicPartition, *, paused: bool) -> None:
        """Stop or go on handing out its records; what is buffered stays."""
        self.states[partition].paused = paused

    def _renew(self, state: PartitionState) -> None:
        self._version += 1
        state.version = self._version
        state.drop_buffered()
        self._unready(state)
        state.position = state.reset = None
        state.fetch_offset = NO_OFFSET
        state.fetch_epoch = state.validated_epoch = state.opened_epoch = NO_EPOCH
        state.processed = None
        state.busy = False
        state.retry_at = 0.0

    def _begin_reset(self, state: PartitionState) -> None:
        """By auto.offset.reset; ``none`` is an error that the application gets (S35)."""
        position = state.position
        self._renew(state)
        if self._reset_policy == NONE:
            state.error = NoOffsetForPartition(
                f"{state.partition} has no position and auto_offset_reset is none: seek first", offset=position
            )
            self._make_ready(state)
        else:
            state.reset = self._reset_policy

    # ------------------------------------------------------------------------------------------- what to ask for

    def wanted(self, leader_of: LeaderOf, now: float, topic_id_of: TopicIdOf = lambda _: None) -> Wanted:
        """Everything that can be asked for now. The driver marks what it asks for ``busy``."""
        for state in self.states.values():
            topic_id = topic_id_of(state.partition.topic)
            if topic_id is not None and topic_id != state.topic_id:
                if state.topic_id is not None:
                    self._created_again(state)
                state.topic_id = topic_id
        wanted = Wanted()
        for state in self.states.values():
            if state.busy or state.error is not None or (state.out_of_range and not self._settle_out_of_range(state)):
                continue
            if state.position is None and state.reset is None:
                continue
            fetching = state.reset is None
            if fetching and (state.paused or state.buffered_size > self._buffer_size_low):
                continue
            if state.retry_at > now:
                wanted.deadline = min(wanted.deadline, state.retry_at)
                continue
            leader = leader_of(state.partition)
            if leader.node == NO_NODE:
                wanted.leaderless = True
                continue
            if not fetching:
                wanted.resets.setdefault(leader.node, []).append(state)
            elif state.fetch_epoch >= 0 and leader.epoch > state.validated_epoch >= 0:
                wanted.validations.setdefault(leader.node, []).append(state)
            else:
                state.validated_epoch = leader.epoch
                wanted.fetches.setdefault(leader.node, []).append(state)
        return wanted

    def _created_again(self, state: PartitionState) -> None:
        """The topic was deleted and created again: the position, and what was fetched, are of the former one."""
        position, reset = state.position, state.reset
        if position is None and reset is None:
            return  # it is held, or waits for a seek
        self._renew(state)
        if position is None or self._reset_policy != NONE:
            state.reset = reset or EARLIEST
            return
        state.error = LogTruncation(
            f"{state.partition}: the topic was deleted and created again, records up to {position} were of the former "
            "one: seek first",
            offset=position,
            end_offset=0,
        )
        self._make_ready(state)

    def _settle_out_of_range(self, state: PartitionState) -> bool:
        """Once all that was fetched has been handed out: reset, or raise. True when the state can be asked for."""
        if state.has_buffered:
            return False
        state.out_of_range = False
        if self._reset_policy != NONE:
            self._begin_reset(state)
            return True
        state.error = OffsetOutOfRange(
            f"{state.partition}: offset {state.position} is out of range and auto_offset_reset is none: seek first",
            offset=state.position,
        )
        self._make_ready(state)
        return False

    # ---------------------------------------------------------------------------------------------------- answers

    def topic_id(self, partition: TopicPartition) -> TopicId | None:
        """The id of the topic that the position in this partition belongs to; None: not known."""
        state = self.states.get(partition)
        return None if state is None else state.topic_id

    def is_current(self, state: PartitionState, version: int) -> bool:
        """Return True if the response to a request under ``version`` is still wanted."""
        return state.version == version and self.states.get(state.partition) is state

    def reset_done(self, state: PartitionState, version: int, answer: ListedOffset, leader_epoch: Epoch) -> None:
        """The position as looked up at the leader of ``leader_epoch``."""
        if self.is_current(state, version):
            state.busy = False
            state.reset = None
            state.position = state.fetch_offset = answer.offset
            state.processed = answer.offset, NO_EPOCH
            state.fetch_epoch, state.validated_epoch = answer.leader_epoch, leader_epoch

    def failed(self, state: PartitionState, version: int, error: ProtocolError, retry_at: float) -> None:
        """A request failed: try again at ``retry_at``, or tell the application if that cannot help."""
        if not self.is_current(state, version):
            return
        state.busy = False
        if error.retriable and not isinstance(error, CorruptMessage):
            state.retry_at = retry_at
        elif isinstance(error, OffsetOutOfRange):
            state.out_of_range = True
        else:
            state.error = type(error)(f"{state.partition}: {error.message}", outcome=error.outcome, **error.facts)
            self._make_ready(state)

    def validated(self, state: PartitionState, version: int, leader_epoch: Epoch, answer: EpochAnswer) -> None:
        """What the leader of ``leader_epoch`` says of the last fetched epoch (KIP-320)."""
        if not self.is_current(state, version) or state.position is None:
            return
        state.busy = False
        state.validated_epoch = leader_epoch
        if answer.end_offset == NO_OFFSET:
            self._truncated(state, NO_OFFSET, NO_EPOCH)
        elif answer.end_offset < state.position:
            self._truncated(state, answer.end_offset, answer.leader_epoch)
        elif answer.end_offset < state.fetch_offset:
            # Only records that nobody has seen are gone: fetch them again.
            state.drop_buffered()
            self._unready(state)
            state.fetch_offset = state.position
            state.fetch_epoch = answer.leader_epoch

    def _truncated(self, state: PartitionState, end_offset: Offset, epoch: Epoch) -> None:
        position = state.position
        if self._reset_policy == NONE:
            state.drop_buffered()
            state.error = LogTruncation(
                f"{state.partition}: records up to {position} were read, the log now parts at {end_offset}: seek first",
                offset=position,
                end_offset=end_offset,
            )
            self._unready(state)
            self._make_ready(state)
        elif end_offset == NO_OFFSET:
            self._begin_reset(state)
        else:
            validated = state.validated_epoch
            self.seek(state.partition, end_offset)
            state.fetch_epoch, state.validated_epoch = epoch, validated

    def fetched(self, state: PartitionState, version: int, offset: Offset, answer: FetchedPartition) -> bool:
        """Batches for a fetch at ``offset``; True when there is something new to hand out."""
        if not self.is_current(state, version):
            return False
        state.busy = False
        if state.fetch_offset != offset:
            return False  # a batch before it could not be read: it is fetched again from there
        state.high_watermark = answer.high_watermark
        state.last_stable_offset = answer.last_stable_offset
        state.log_start_offset = answer.log_start_offset
        if not answer.records:
            return False
        data = answer.records[0] if len(answer.records) == 1 else b"".join(bytes(each) for each in answer.records)
        try:
            batches = split(data)
            if not batches:
                raise CorruptMessage(f"{len(data)} bytes hold no whole batch")
        except CorruptMessage as error:
            state.error = self._corrupt(state, error, offset, None)
            self._make_ready(state)
            return True
        aborted = filter_of(answer.aborted_transactions)
        next_offset = None
        try:
            for batch in from_offset(batches, offset, end_max=answer.readable_end):
                next_offset = batch.next_offset
                # What the position passes over is a batch without records.
                is_aborted = aborted is not None and aborted.skips(batch)
                state.batches.append(batch._replace(record_count=0) if is_aborted else batch)
                state.buffered_size += batch.size
                state.fetch_offset, state.fetch_epoch = batch.next_offset, batch.leader_epoch
        except CorruptMessage as error:
            behind = None if next_offset == state.fetch_offset else next_offset
            state.error = self._corrupt(state, error, state.fetch_offset, behind)
            self._make_ready(state)
            return True
        if state.batches:
            self._make_ready(state)
        return bool(state.batches)

    def _corrupt(
        self, state: PartitionState, error: ProtocolError, offset: Offset, next_offset: Offset | None
    ) -> CorruptMessage:
        advice = f"; seek to {next_offset} to pass over it" if next_offset is not None else ""
        return CorruptMessage(
            f"{state.partition}: the batch at offset {offset} cannot be read: {error.message}{advice}",
            offset=offset,
            next_offset=next_offset,
        )

    # ------------------------------------------------------------------------------------------------- handing out

    def take(
        self, count_max: int | None, only: Mapping[TopicPartition, None] | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to ``count_max`` buffered records of partitions that are not paused (S36); their positions move.

        Raises a partition's error when it is the first thing there is to hand out.
        """
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        left = count_max if count_max is not None else -1
        for _ in range(len(self._ready)):
            state = self._ready[0]
            if state.paused or (only is not None and state.partition not in only):
                self._ready.rotate(-1)
                continue
            while left and self._has_next(state, taken):
                end = len(state.records) if left < 0 else min(len(state.records), state.cursor + left)
                found = state.records[state.cursor : end] if state.cursor or end < len(state.records) else state.records
                left -= len(found) if left > 0 else 0
                self._handed[state.partition] = state
                if state.partition in taken:
                    taken[state.partition].extend(found)
                else:
                    taken[state.partition] = found if found is not state.records else list(found)
                self._advance(state, end)
            if state.error is not None and not state.has_buffered:
                if not taken:
                    self._raise(state)
                self._ready.rotate(-1)
            elif state.has_buffered:
                self._ready.rotate(-1)
            else:
                self._unready(state)
            if left == 0:
                break
        return taken

    def take_one(self, only: Mapping[TopicPartition, None] | None = None) -> ConsumerRecord | None:
        """The next record, or None; as :meth:`take`. Partitions take turns batch by batch."""
        for _ in range(len(self._ready)):
            state = self._ready[0]
            if state.paused or (only is not None and state.partition not in only):
                self._ready.rotate(-1)
                continue
            if state.cursor < len(state.records) or self._open_next(state):
                record = state.records[state.cursor]
                self._handed[state.partition] = state
                self._advance(state, state.cursor + 1)
                if state.opened is None and not state.records:
                    self._ready.rotate(-1)
                return record
            if state.error is not None:
                self._raise(state)
            self._unready(state)
        return None

    def _advance(self, state: PartitionState, cursor: int) -> None:
        state.position = state.records[cursor - 1].offset + 1
        if cursor < len(state.records):
            state.cursor = cursor
            return
        state.records, state.cursor = [], 0
        if state.opened is not None and not state.unmade_count:
            # Behind the last record a batch may have lost more to compaction.
            state.position = state.opened.next_offset
            state.close()

    def _has_next(self, state: PartitionState, taken: Collection[TopicPartition]) -> bool:
        """As :meth:`_open_next`; what a deserializer raises waits until what was ``taken`` before it is handed out."""
        try:
            return self._open_next(state)
        except Exception:
            if not taken:
                raise
            return False  # nothing was passed over: it is raised by the next call

    def _open_next(self, state: PartitionState) -> bool:
        """Open batches until one has a record to hand out; False at the end of the buffer or at an error."""
        while state.cursor >= len(state.records):
            batch = state.opened
            if batch is None:
                if not state.batches or not self._open(state, state.batches[0]):
                    return False
            elif state.unmade_count:
                self._make_some(state, batch)
            else:
                state.position = batch.next_offset
                state.close()
        return True

    def _open(self, state: PartitionState, batch: RecordBatch) -> bool:
        """Begin with a batch; False when it cannot be read: that is the state's error then."""
        try:
            if self._check_crcs:
                verify(batch.data)
            state.unmade = iter(()) if batch.is_control or not batch.record_count else records_of(batch)
        except ProtocolError as error:
            state.drop_buffered()
            state.fetch_offset = state.position if state.position is not None else batch.base_offset
            state.error = self._corrupt(state, error, batch.base_offset, batch.next_offset)
            return False
        state.unmade_count = 0 if batch.is_control else batch.record_count
        state.opened = state.batches.popleft()
        state.opened_epoch = batch.leader_epoch
        state.buffered_size -= batch.size
        self.opened += 1
        return True

    def _make_some(self, state: PartitionState, batch: RecordBatch) -> None:
        """The next records of the opened batch.

        What a deserializer raises is raised when every record before it has been handed out, and again each time until
        a seek: it is as if the batch were not opened yet.
        """
        count = min(RECORDS_AT_ONCE, state.unmade_count)
        made: list[ConsumerRecord] = []
        try:
            self._make(state, islice(state.unmade, count), made)
        except BaseException as error:
            state.close()
            state.batches.appendleft(batch)
            state.buffered_size += batch.size
            if not made or not isinstance(error, Exception):
                error.add_note(f"in the first record of {state.partition} from offset {state.position} on")
                raise
        else:
            state.unmade_count -= count
        state.records, state.cursor = made, 0

    def _make(self, state: PartitionState, some: Iterable[RecordView], records: list[ConsumerRecord]) -> None:
        """Of these records those from the position on. Hot: once per record."""
        topic, partition = state.partition
        position = state.position if state.position is not None else 0
        key_of, value_of = self._key_of, self._value_of
        new = tuple.__new__
        append = records.append
        for each in some:
            offset = each.offset
            if offset < position:
                continue
            key: Any = each.key
            value: Any = each.value
            key_size = -1 if key is None else len(key)
            value_size = -1 if value is None else len(value)
            if key_of is not None:
                key = key_of(key)
            if value_of is not None:
                value = value_of(value)
            append(
                new(
                    ConsumerRecord,
                    (
                        topic,
                        partition,
                        offset,
                        each.timestamp,
                        each.timestamp_type,
                        key,
                        value,
                        None,
                        key_size,
                        value_size,
                        each.headers or (),
                    ),
                )
            )

    def _raise(self, state: PartitionState) -> None:
        """Hand out an error. What needs a seek stays until there is one; the rest is tried again."""
        error = state.error
        if error is None:
            return
        self._ready.rotate(-1)
        if not isinstance(error, OffsetOutOfRange):
            state.error = None
            self._unready(state)
            self.opened += 1
        raise type(error)(error.message, outcome=error.outcome, **error.facts)

    def _make_ready(self, state: PartitionState) -> None:
        if state not in self._ready:
            self._ready.append(state)

    def _unready(self, state: PartitionState) -> None:
        if state in self._ready:
            self._ready.remove(state)
