"""``spark.read`` and ``spark.readStream`` with ``format("minikafka")``, as Spark's Python Data Source API asks.

Rules for this file:

1. A reader is built several times: once in a planning process and pickled for the tasks, once in the process that
   drives a stream. All that a task needs is in its InputPartition and in the options.
2. What a batch reads is fixed by its start and end offsets and is below the high watermark (with ``read_committed``:
   the last stable offset): a batch that is run again reads the same records.
3. Nothing may depend on ``stop``: Spark kills the process instead.
"""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from minikafka.blocking.brokers import Brokers
from minikafka.blocking.reading import OffsetRange, RangeReader
from minikafka.spark import places
from minikafka.spark.decode import schema_text, to_arrow
from minikafka.spark.options import ByGroup, ByOffset, OptionError, SourceOptions, parse_sink, parse_source
from minikafka.spark.places import (
    Group,
    PartitionFacts,
    Position,
    Present,
    StreamOffset,
    certainly_present,
    from_json,
    limited,
    new_records,
    present,
    present_or_fail,
    resolve,
)
from minikafka.spark.sink import BatchWriter, StreamWriter, Travels, check_columns
from minikafka.types import NO_EPOCH, NO_OFFSET, Offset, TopicId, TopicPartition

LOGGER = logging.getLogger("minikafka.spark")

FORMAT = "minikafka"


class MiniKafkaSource(Travels, DataSource):
    """The format ``minikafka``; Spark finds it through the package ``pyspark_minikafka``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        include = self.options.get("includeheaders", self.options.get("includeHeaders", "false"))
        return schema_text(include_headers=include.strip().lower() == "true")

    def reader(self, schema: Any) -> DataSourceReader:
        options = parse_source(self.options, streaming=False)
        _refuse_schema(schema, options)
        return PushdownBatchReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        options = parse_source(self.options, streaming=True)
        _refuse_schema(schema, options)
        return StreamReader(options)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        options = parse_sink(self.options, streaming=False)
        if overwrite:
            raise OptionError('a topic cannot be overwritten: write with mode("append")')
        check_columns(_columns_of(schema), options)
        return BatchWriter(options)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, ARG002
        options = parse_sink(self.options, streaming=True)
        check_columns(_columns_of(schema), options)
        return StreamWriter(options)


def _columns_of(schema: Any) -> dict[str, str]:
    """Name and type of each column, as Spark's DDL has them."""
    return {each.name: each.dataType.simpleString() for each in schema.fields}


def _refuse_schema(schema: Any, options: SourceOptions) -> None:
    names = [column.split()[0] for column in schema_text(include_headers=False).split(", ")]
    names += ["headers"] if options.include_headers else []
    if list(schema.fieldNames()) != names:
        raise OptionError(f"the source has a schema of its own ({', '.join(names)}): select columns afterwards")


def _refuse_beyond(name: TopicPartition, given: Offset, top: Offset, option: str) -> None:
    if given > top:
        raise OptionError(f"{option}: {name} ends at {top}, not at {given}")


def _cluster_of(options: SourceOptions) -> Brokers:
    return Brokers(
        options.bootstrap,
        api_timeout_s=options.api_timeout_s,
        isolation_level=options.isolation_level,
        tls=options.tls,
    )


class RangePartition(Travels, InputPartition):
    """What one task reads."""

    def __init__(self, wanted: OffsetRange) -> None:
        self.value = wanted


def read_range(options: SourceOptions, task: InputPartition) -> Iterator[Any]:
    """The Arrow batches of one task. Spark gives a task without a value when there is nothing to read."""
    wanted = task.value
    if wanted is None:
        return
    brokers = _cluster_of(options)
    reader = RangeReader(brokers, wanted, options)
    for batches in reader.batches():
        yield from to_arrow(
            wanted.partition, batches, wanted.start, reader.end, include_headers=options.include_headers
        )


# ---- batch -----------------------------------------------------------------------------------------------------------


class BatchReader(Travels, DataSourceReader):
    """Reads from ``startingOffsets`` to ``endingOffsets``, both fixed when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(each) for each in self._split(self._ranges())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(self._options, partition)

    def _split(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        options = self._options
        return places.split(
            ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
        )

    def _ranges(self) -> list[OffsetRange]:
        options = self._options
        brokers = _cluster_of(options)
        found = present_or_fail(brokers, options.selection)
        starts = resolve(brokers, options.starting, found.partitions, "startingOffsets")
        ends = resolve(brokers, options.ending, found.partitions, "endingOffsets")
        tops = brokers.ends(found.partitions)
        log_starts = brokers.starts(found.partitions)
        ranges = []
        for name in found.partitions:
            start, end = starts[name].offset, ends[name].offset
            top, epoch = tops[name]
            _refuse_beyond(name, start, top, "startingOffsets")
            _refuse_beyond(name, end, top, "endingOffsets")
            topic_id = found.topic_ids.get(name.topic)
            facts = PartitionFacts(topic_id=topic_id, log_start=log_starts[name])
            resumed = places.resume(name, Position(start), topic_id, facts)
            if resumed.loss is not None:
                if options.fail_on_data_loss:
                    raise resumed.loss
                LOGGER.warning("going on (failOnDataLoss=false): %s", resumed.loss)
            ranges.append(OffsetRange(partition=name, start=resumed.offset, end=end, epoch=epoch, topic_id=topic_id))
        return ranges


class PushdownBatchReader(BatchReader):
    """Takes ``partition = 2 and offset >= 100`` out of the plan; needs spark.sql.python.filterPushdown.enabled=true.

    A reader that can do this fails without that setting, hence a class of its own behind the option ``pushFilters``.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._bounds: list[tuple[str, str, Any]] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            bound = _bound_of(each)
            if bound is None:
                yield each
            else:
                self._bounds.append(bound)

    def _ranges(self) -> list[OffsetRange]:
        ranges = super()._ranges()
        for column, sign, value in self._bounds:
            if column == "offset":
                ranges = [_clamped(each, sign, value) for each in ranges]
            else:
                ranges = [each for each in ranges if _holds(getattr(each.partition, column), sign, value)]
        return ranges


_SIGNS: tuple[tuple[Any, str], ...] = (
    (EqualTo, "="),
    (GreaterThan, ">"),
    (GreaterThanOrEqual, ">="),
    (LessThan, "<"),
    (LessThanOrEqual, "<="),
)


def _bound_of(each: Filter) -> tuple[str, str, Any] | None:
    sign = next((sign for kind, sign in _SIGNS if isinstance(each, kind)), None)
    if sign is None or len(each.attribute) != 1:
        return None
    column = str(each.attribute[0])
    if column in {"offset", "partition"}:
        return (column, sign, each.value) if type(each.value) is int else None
    return (column, sign, each.value) if column == "topic" and sign == "=" else None


def _holds(value: Any, sign: str, bound: Any) -> bool:
    compare = {"=": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}[sign]
    return bool(compare(value, bound))


def _clamped(each: OffsetRange, sign: str, bound: Offset) -> OffsetRange:
    start, end = each.start, each.end
    if sign in {"=", ">=", ">"}:
        start = max(start, bound + (sign == ">"))
    if sign in {"=", "<=", "<"}:
        end = min(end, bound + (sign != "<"))
    return replace(each, start=start, end=max(start, end))


# ---- stream ----------------------------------------------------------------------------------------------------------


class StreamReader(Travels, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Drives a stream: where it stands, how far the next batch goes, which task reads what."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._brokers: Brokers | None = None
        self._initial: StreamOffset | None = None
        self._target: Mapping[TopicPartition, Position] | None = None
        self._latest: Mapping[TopicPartition, Position] = {}
        self._batch_at = time.monotonic()
        self._group: Group | None = None
        self._committed: tuple[Mapping[TopicPartition, Position], Mapping[str, TopicId]] = ({}, {})

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(self._options, partition)

    # ---- on the driver -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            brokers = self._cluster()
            found = present_or_fail(brokers, self._options.selection)
            positions = resolve(brokers, self._options.starting, found.partitions, "startingOffsets")
            if isinstance(self._options.starting, (ByOffset, ByGroup)):
                for name, top in self._ends(found).items():
                    _refuse_beyond(name, positions[name].offset, top.offset, "startingOffsets")
            self._initial = StreamOffset(positions=positions, topic_ids=found.topic_ids, initial=True)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark cannot carry a least and a most together: both are seen to in latestOffset.
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        selection, brokers = self._options.selection, self._cluster()
        # Where losses are allowed, a topic that is gone is one: latestOffset counts it.
        lossy = not self._options.fail_on_data_loss
        self._target = self._ends(
            certainly_present(brokers, selection) if lossy else present_or_fail(brokers, selection)
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the query's progress: the newest ends of what may be read."""
        return StreamOffset(positions=self._latest).to_json() if self._latest else None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002 - see above
        begin = from_json(start)
        found = present(self._cluster(), self._options.selection, begin)
        latest = self._ends(found)
        self._latest = latest
        if self._target is not None:
            # What Trigger.AvailableNow promised to read; a re-created topic may end before it. A partition that was
            # created since then, and that the start knows already, stays where it is: it is not gone.
            target = {name: begin.positions[name] for name in latest if name in begin.positions} | dict(self._target)
            latest = {
                name: min(latest[name], at, key=lambda each: each.offset)
                for name, at in target.items()
                if name in latest
            }
        latest = self._not_behind(begin, latest, found)
        topics = {name.topic for name in latest}
        found = replace(found, topic_ids={topic: each for topic, each in found.topic_ids.items() if topic in topics})
        known = self._batch_begins(begin, latest, found)
        if self._must_wait(known, latest):
            return self._unchanged(begin, start)
        self._batch_at = time.monotonic()
        taken = self._limited(known, latest)
        end = StreamOffset(
            positions=taken,
            topic_ids=found.topic_ids,
            start=replace(begin, initial=False, start=None) if begin.initial else None,
            begins={name: known[name].offset for name in taken if name not in begin.positions},
        )
        if self._is_nothing_new(begin, end):
            if self._target is not None and not begin.initial:
                # Trigger.AvailableNow ends here, and Spark would not say that its last batch is done.
                self.commit(start)
            return self._unchanged(begin, start)
        # Losses are found before the batch is written down, so that its end can say what was lost.
        starts, losses = self._checked(begin, end)
        self._raise_unless_allowed(losses)
        same = {name: each.offset for name, each in begin.positions.items()}
        begins = {name: offset for name, offset in starts.items() if offset != same.get(name)}
        return replace(end, lost=_counted(losses), begins=begins).to_json()

    def _unchanged(self, begin: StreamOffset, start: dict[str, Any]) -> dict[str, Any]:
        """Nothing new. A query that is about to begin writes down where, in an empty batch, before anything can come.

        Not with Trigger.AvailableNow: it would end after that batch.
        """
        if begin.initial and self._target is None:
            beginning = replace(begin, initial=False)
            return replace(beginning, start=beginning).to_json()
        return start

    def _not_behind(
        self, begin: StreamOffset, latest: Mapping[TopicPartition, Position], found: Present
    ) -> dict[TopicPartition, Position]:
        """``latest``, never below where the query stands in the same log: a batch must not read what was read.

        A leader that was replaced and has not heard of it yet tells an older end. A log that was cut has a shorter one.
        """
        behind = {
            name: at
            for name, at in begin.positions.items()
            if name in latest
            and latest[name].offset < at.offset
            and begin.topic_ids.get(name.topic) in {None, found.topic_ids.get(name.topic)}
        }
        if not behind:
            return dict(latest)
        epochs = {name: at.epoch for name, at in behind.items() if at.epoch != NO_EPOCH}
        epoch_ends = self._cluster().epoch_ends(epochs) if epochs else {}
        kept = {}
        for name, at in behind.items():
            epoch_end = epoch_ends.get(name, NO_OFFSET)
            # Up to where a cut log parts from ours all was read, also what is not yet committed (or stable) there.
            is_cut = NO_OFFSET < epoch_end < at.offset
            kept[name] = Position(max(latest[name].offset, epoch_end), latest[name].epoch) if is_cut else at
        return dict(latest) | kept

    def _must_wait(self, begin: Mapping[TopicPartition, Position], latest: Mapping[TopicPartition, Position]) -> bool:
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        waited_s = time.monotonic() - self._batch_at
        return new_records(begin, latest) < least and waited_s < self._options.max_trigger_delay_s

    def _batch_begins(
        self, begin: StreamOffset, latest: Mapping[TopicPartition, Position], found: Present
    ) -> dict[TopicPartition, Position]:
        """Where the next batch begins in each partition, for the options that limit its size.

        In a log that was re-created or cut, or that begins later by now, that is not where the query stands.
        """
        known = self._with_new_partitions(begin.positions, latest)
        options = self._options
        until = StreamOffset(positions=latest, topic_ids=found.topic_ids)
        is_limited = options.max_offsets_per_trigger is not None or options.min_offsets_per_trigger is not None
        if not is_limited or self._is_nothing_new(begin, until):
            return known
        starts, _ = self._checked(begin, until)
        return known | {name: Position(offset, known[name].epoch) for name, offset in starts.items()}

    def _with_new_partitions(
        self, begin: Mapping[TopicPartition, Position], latest: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, Position]:
        """A partition that the start does not know is read from its beginning."""
        new = [name for name in latest if name not in begin]
        known = dict(begin)
        if new:
            known |= {name: Position(at) for name, at in self._cluster().starts(new).items()}
        return known

    def _limited(
        self, begin: Mapping[TopicPartition, Position], latest: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, Position]:
        most = self._options.max_offsets_per_trigger
        if most is None:
            return dict(latest)
        ends = limited(
            {name: each.offset for name, each in begin.items()},
            {name: each.offset for name, each in latest.items()},
            most,
        )
        return {name: Position(ends[name], each.epoch) for name, each in latest.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        until = from_json(end)
        # Batch 0 carries its own start: what Spark hands over was made up again if the batch is a replay.
        begin = until.start if until.start is not None else from_json(start)
        starts, losses = self._checked(begin, until)
        self._raise_unless_allowed(losses)
        for each in losses:
            LOGGER.warning("going on (failOnDataLoss=false): %s", each.loss)
        # Tasks are cut from what the checkpoint says alone: a sink knows by a task's number what it has written. What
        # is gone since then is left out of the parts, and one that has become empty keeps its number.
        begins = {**starts, **{name: at.offset for name, at in begin.positions.items()}, **until.begins}
        ranges = [
            OffsetRange(
                partition=name,
                start=begins[name],
                end=each.offset,
                epoch=each.epoch,
                topic_id=until.topic_ids.get(name.topic),
            )
            for name, each in sorted(until.positions.items())
            if name in begins
        ]
        options = self._options
        parts = places.split(
            ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
        )
        return [
            RangePartition(replace(each, start=min(each.end, max(each.start, starts.get(each.partition, each.end)))))
            for each in parts
        ]

    def _checked(
        self, begin: StreamOffset, until: StreamOffset
    ) -> tuple[dict[TopicPartition, Offset], list[places.Resumed]]:
        """Where each partition is read from, and what is lost, after its log was held against the checkpoint."""
        brokers = self._cluster()
        losses: list[places.Resumed] = []

        def note(resumed: places.Resumed) -> Offset:
            if resumed.loss is not None:
                losses.append(resumed)
            return resumed.offset

        there = present(brokers, self._options.selection, begin, until)
        for name in places.missing(begin.positions, until.positions):
            note(places.resume(name, begin.positions[name], None, None))
        alive = [name for name in until.positions if name in frozenset(there.partitions)]
        for name in places.missing(until.positions, alive):
            note(places.resume(name, until.positions[name], None, None))
        log_starts = brokers.starts(alive)
        epochs = {
            name: begin.positions[name].epoch
            for name in alive
            if name in begin.positions and begin.positions[name].epoch != NO_EPOCH
        }
        epoch_ends = brokers.epoch_ends(epochs) if epochs else {}
        starts: dict[TopicPartition, Offset] = {}
        for name in alive:
            ended = until.topic_ids.get(name.topic)
            facts = PartitionFacts(
                topic_id=there.topic_ids.get(name.topic),
                log_start=log_starts[name],
                epoch_end=epoch_ends.get(name, NO_OFFSET),
            )
            if ended not in {None, facts.topic_id}:
                # The batch was planned for a topic that is gone: its end means nothing in the new one.
                note(places.resume(name, until.positions[name], ended, facts))
                continue
            position = begin.positions.get(name, Position(until.begins.get(name, log_starts[name])))
            starts[name] = note(places.resume(name, position, begin.topic_ids.get(name.topic), facts))
        return starts, losses

    def _is_nothing_new(self, begin: StreamOffset, end: StreamOffset) -> bool:
        """Return True if no batch is due.

        None is for a new leader alone, but one is for a log that was cut and has grown as long again.
        """
        if begin.positions.keys() != end.positions.keys() or dict(begin.topic_ids) != dict(end.topic_ids):
            return False
        pairs = [(name, at, end.positions[name]) for name, at in begin.positions.items()]
        if any(at.offset != now.offset for _, at, now in pairs):
            return False
        epochs = {name: at.epoch for name, at, now in pairs if at.epoch not in {NO_EPOCH, now.epoch}}
        epoch_ends = self._cluster().epoch_ends(epochs) if epochs else {}
        return not any(NO_OFFSET < at < begin.positions[name].offset for name, at in epoch_ends.items())

    def _raise_unless_allowed(self, losses: list[places.Resumed]) -> None:
        for each in losses:
            if each.loss is not None and self._options.fail_on_data_loss:
                raise each.loss

    def _ends(self, found: Present) -> dict[TopicPartition, Position]:
        return {name: Position(*each) for name, each in self._cluster().ends(found.partitions).items()}

    def _cluster(self) -> Brokers:
        if self._brokers is None:
            self._brokers = _cluster_of(self._options)
        return self._brokers

    def commit(self, end: dict[str, Any]) -> None:
        """Commit a finished batch's offsets to the group, if any. Spark's checkpoint keeps the query's place."""
        place = from_json(end)
        positions_and_ids = (place.positions, place.topic_ids)
        if self._options.commit_group is None or positions_and_ids == self._committed:
            return
        if self._group is None:
            self._group = Group(self._cluster(), self._options.commit_group)
        self._group.commit(*positions_and_ids)
        self._committed = positions_and_ids

    def travelling(self) -> dict[str, Any]:
        """Tasks need no more than a fresh reader."""
        return StreamReader(self._options).__dict__


def _counted(losses: list[places.Resumed]) -> dict[str, dict[str, int]]:
    """Kind -> partition -> records that are gone (0: nobody can tell)."""
    counts: dict[str, dict[str, int]] = {}
    for each in losses:
        if each.loss is not None:
            counts.setdefault(type(each.loss).__name__, {})[str(each.loss.partition)] = each.lost_count
    return counts
