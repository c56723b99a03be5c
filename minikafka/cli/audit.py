"""``minikafka audit LEDGER``: acknowledgments against what the logs hold, without a JVM.

The ledgers (``Producer(ledger=...)``, ``produce --ledger``, ``consume --ledger``, or any history of
docs/history-format.md) say what was acknowledged where, what failed, what is unknown, and what was read. The committed
records are read from the leaders (``-b``) or, with the brokers stopped, from
the data directories; every replica whose data directory is given is compared with the others, byte by byte. The
verdict, its words and its JSON are the history checker's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from msgspec.structs import replace

from minikafka.addresses import parse_bootstrap
from minikafka.blocking.brokers import CALL_TIMEOUT_S, Brokers, BrokersUnreachable
from minikafka.blocking.reading import DataLoss, NotYetCommitted, OffsetRange, RangeReader, ReadingLimits
from minikafka.check import Checker, Expectations, HistoryError, Verdict, compare_replicas, history, merged, value_id
from minikafka.check.findings import MISSING, Diverged, ReadAboveHw
from minikafka.check.history import Operation, read_history
from minikafka.cli.admin import Decorated, GivenPath, tls_files, tls_options
from minikafka.cli.running import FAILED, Failure, lone_command
from minikafka.cli.tables import EXISTING_FILE, output_option, print_json, together
from minikafka.errors import CorruptMessage
from minikafka.log.checkpoint import BadCheckpoint, parse_meta_properties
from minikafka.log.names import LOG, META_PROPERTIES, offset_name, offsets_in, partition_of
from minikafka.types import NodeId, Offset, TopicPartition
from minikafka.wire.admin import DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse
from minikafka.wire.apis import BY_NAME
from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import RecordView, decode_batch
from minikafka.world.read_disk import batches_of, is_compacted, replica_of

READER = "audit"
API_TIMEOUT_S = 60.0
"""Retries of one question to the brokers end after this long."""
POLICY = "cleanup.policy"


def compared_options(data_dir_help: str) -> Callable[[Decorated], Decorated]:
    """``LEDGER... [-b BROKERS] [--ca FILE] [--data-dir DIR]...``: what an audit compares with what."""
    existing_folder = GivenPath(exists=True, file_okay=False, path_type=Path)
    brokers = "Read the committed records from brokers."
    return together(
        partial(tls_options, logs_in=False),
        click.argument("ledgers", metavar="LEDGER...", nargs=-1, required=True, type=EXISTING_FILE),
        click.option("-b", "--bootstrap-server", "bootstrap", help=brokers),
        click.option("--data-dir", "folders", multiple=True, type=existing_folder, help=data_dir_help),
    )


@lone_command()
@compared_options("A broker's data directory, or a folder with several (repeatable).")
@output_option
def command(ledgers: tuple[Path, ...], bootstrap: str | None, folders: tuple[Path, ...], output: str) -> None:
    """Compare acknowledgments (LEDGER...) with what the logs hold.

    Examples:
      minikafka produce orders --ledger orders.jsonl -b 127.0.0.1:9092 < orders.txt
      minikafka audit orders.jsonl -b 127.0.0.1:9092
      minikafka audit orders.jsonl --data-dir /tmp/mk     # brokers stopped; /tmp/mk/broker-1 and its siblings
      minikafka audit ledgers/*.jsonl -b 127.0.0.1:9092

    Several ledgers are judged as one history: give those of all producers of a topic. Records of a producer whose
    ledger is missing count as records that nobody sent (phantom-read).
    Exit code 0: nothing found; 1: something is lost, duplicated, reordered, diverged or was read too early.
    """
    if bootstrap is None and not folders:
        raise click.UsageError("give -b, or --data-dir, or both")
    began = time.monotonic()
    try:
        audited = audit(ledgers, bootstrap, folders)
    except (HistoryError, BrokersUnreachable, NotYetCommitted, CorruptMessage) as error:
        raise Failure(f"{', '.join(map(str, ledgers))}: {error}") from error
    except DataLoss as error:
        raise Failure(
            f"{error.partition}: records were deleted or cut while they were read ({type(error).__name__}): audit "
            "again, and stop DeleteRecords or raise the topic's retention if they keep being deleted"
        ) from error
    seconds = time.monotonic() - began
    show(audited, seconds, output)
    if not audited.verdict.ok:
        raise click.exceptions.Exit(FAILED)


def show(audited: Audited, seconds: float, output: str) -> None:
    """The verdict for people or for programs."""
    if output == "json":
        replicas = {"batches": audited.batches, "bytes": audited.size, "compacted": list(audited.compacted)}
        print_json({**audited.verdict.to_json(), "seconds": round(seconds, 3), "replicas": replicas})
        return
    click.echo(audited.verdict.render())
    for name in audited.compacted:
        click.echo(
            f"{name} is compacted: of each key the last record is owed; replicas are compared record by record, and "
            "may differ in what later records have replaced"
        )
    if audited.batches:
        how = "" if audited.compacted else ", byte by byte"
        click.echo(f"replicas: {audited.batches:,} batches, {audited.size / 1e6:,.1f} MB each{how}")
    click.echo(f"{seconds:.1f} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The verdict, and how much was compared between replicas."""

    verdict: Verdict
    batches: int = 0
    size: int = 0
    compacted: tuple[str, ...] = ()
    """Topics of which only the last record of each key is owed."""


def audit(ledgers: Sequence[Path], bootstrap: str | None, folders: Iterable[Path]) -> Audited:
    """HistoryError, BrokersUnreachable, NotYetCommitted, CorruptMessage."""
    checker = Checker()
    readers = Readers()
    topics: dict[str, None] = {}
    idempotent = True
    for operation in operations_of(ledgers):
        if isinstance(operation, history.Poll | history.Assign | history.Seek):
            readers.feed(operation)
            continue
        if isinstance(operation, history.Send):
            topics[operation.topic] = None
        if isinstance(operation, history.Expect):
            idempotent = idempotent and operation.expectations.idempotent
        checker.feed(operation)
    if not topics:
        raise Failure(f"{', '.join(map(str, ledgers))}: no record was sent, there is nothing to compare")
    nodes = {node: folder for folder in folders for node, folder in node_folders(folder)}
    partitions = sorted({p for folder in nodes.values() for p in partitions_in(folder) if p.topic in topics})
    log_start: dict[TopicPartition, Offset] = {}
    polls = (
        _from_folders(nodes, partitions, log_start)
        if bootstrap is None
        else _from_brokers(bootstrap, list(topics), log_start)
    )
    for poll in polls:
        checker.feed(poll)
        readers.compare(poll)
    compacted = _compacted(bootstrap, list(topics), nodes, partitions)
    promised = Expectations(
        idempotent=idempotent, final_read_complete=True, log_start=log_start, compacted=frozenset(compacted)
    )
    checker.feed(history.Expect(expectations=promised))
    batches = size = 0
    for partition in partitions:
        holders = [node for node, folder in nodes.items() if partition in partitions_in(folder)]
        compared = compare_replicas(partition, [replica_of(nodes[node], node, partition) for node in holders])
        batches += compared.batch_count
        size += compared.size
        for finding in compared.findings:
            found = [finding] if compared.is_compacted else _record_by_record(nodes, holders, partition, finding)
            for each in found:
                checker.report(each)
    verdict = merged(checker.verdict(), readers.verdict(promised))
    return Audited(verdict=verdict, batches=batches, size=size, compacted=tuple(compacted))


def _compacted(
    bootstrap: str | None, topics: list[str], nodes: dict[NodeId, Path], partitions: list[TopicPartition]
) -> list[str]:
    """Topics with a replica that says so on disk, or whose settings say so now."""
    found = {p.topic for p in partitions for folder in nodes.values() if is_compacted(folder, p)}
    if bootstrap is not None:
        brokers = _brokers(bootstrap, CALL_TIMEOUT_S)
        resources = tuple(
            DescribeConfigsResource(resource_name=topic, configuration_keys=(POLICY,)) for topic in topics
        )
        at_once = BY_NAME["DescribeConfigs"].list_max
        for start in range(0, len(resources), at_once):
            request = DescribeConfigsRequest(resources=resources[start : start + at_once])
            answer: DescribeConfigsResponse = brokers.ask_any(request)
            found |= {
                described.resource_name
                for described in answer.results
                for config in described.configs
                if config.name == POLICY and "compact" in config.value
            }
    return sorted(found)


class Readers:
    """What consumers wrote down, held against each other and the log.

    Apart from the producers' side: what a consumer was given once is no proof that the log still has it.
    """

    def __init__(self) -> None:
        self._checker = Checker()
        self._partitions: set[TopicPartition] = set()
        self._highest: dict[tuple[TopicPartition, str], tuple[Offset, str, int]] = {}
        self._ends: dict[TopicPartition, Offset] = {}

    def feed(self, operation: history.Poll | history.Assign | history.Seek) -> None:
        """What a ledger says."""
        self._checker.feed(operation)
        if isinstance(operation, history.Poll):
            name = TopicPartition(operation.topic, operation.partition)
            self._partitions.add(name)
            below = [each for each in operation.records if each[0] < (operation.high_watermark or each[0] + 1)]
            if below:
                offset, value = max(below)
                place = (name, operation.process)
                self._highest[place] = max(
                    self._highest.get(place, (offset, value, operation.line)), (offset, value, operation.line)
                )

    def compare(self, poll: history.Poll) -> None:
        """What the log has."""
        name = TopicPartition(poll.topic, poll.partition)
        self._ends[name] = poll.high_watermark or 0
        if name in self._partitions:
            self._checker.feed(poll)

    def verdict(self, promised: Expectations) -> Verdict:
        """A record at or above the high watermark of today was above that of its time."""
        for (name, process), (offset, value, line) in sorted(self._highest.items()):
            end = self._ends.get(name, 0)
            if offset >= end:
                self._checker.report(
                    ReadAboveHw(
                        **name._asdict(), offset=offset, lines=(line,), process=process, value=value, high_watermark=end
                    )
                )
        kept = Expectations(log_start=promised.log_start, compacted=promised.compacted)
        self._checker.feed(history.Expect(expectations=kept))
        return self._checker.verdict()


def operations_of(ledgers: Sequence[Path]) -> Iterator[Operation]:
    """What the ledgers say, one after the other. Of several, processes are distinguished by their file's name too."""
    for index, path in enumerate(ledgers):
        with path.open("rb") as lines:
            for operation in read_history(lines):
                yield operation if len(ledgers) == 1 else _with_ledger_name(operation, path.name, index, len(ledgers))


def _with_ledger_name(operation: Operation, name: str, index: int, count: int) -> Operation:
    match operation:
        case history.Send():
            process = f"{name}: {operation.process}"
            return replace(operation, op=operation.op * count + index, process=process)
        case history.Acknowledged() | history.Failed() | history.Unknown():
            return replace(operation, op=operation.op * count + index)
        case history.Poll() | history.Assign() | history.Seek():
            return replace(operation, process=f"{name}: {operation.process}")
        case _:
            return operation


# ---- committed records -----------------------------------------------------------------------------------------------


def _brokers(bootstrap: str, timeout_s: float) -> Brokers:
    return Brokers(parse_bootstrap(bootstrap, https=True), api_timeout_s=timeout_s, tls=tls_files(bootstrap))


def _from_brokers(bootstrap: str, topics: list[str], log_start: dict[TopicPartition, Offset]) -> Iterator[history.Poll]:
    """Every partition from its log start, which is noted, to its high watermark, as polls."""
    brokers = _brokers(bootstrap, API_TIMEOUT_S)
    names = [
        TopicPartition(topic, number)
        for topic, known in sorted(brokers.topics(topics).items())
        for number in known.partitions
    ]
    ends, starts = brokers.ends(names), brokers.starts(names)
    log_start.update(starts)
    for name in names:
        end, epoch = ends[name]
        wanted = OffsetRange(partition=name, start=starts[name], end=end, epoch=epoch)
        for batches in RangeReader(brokers, wanted, ReadingLimits()).batches():
            records = [each for batch in batches for each in _records(batch) if starts[name] <= each.offset < end]
            yield _poll(name, records, end, batches[-1].next_offset)


def _from_folders(
    nodes: dict[NodeId, Path], partitions: list[TopicPartition], log_start: dict[TopicPartition, Offset]
) -> Iterator[history.Poll]:
    """As :func:`_from_brokers`, from the replica whose high watermark is highest."""
    for name in partitions:
        replicas = [
            replica_of(folder, node, name) for node, folder in sorted(nodes.items()) if name in partitions_in(folder)
        ]
        best = max(replicas, key=lambda replica: replica.high_watermark)
        log_start[name] = best.log_start
        start, end = best.log_start, best.high_watermark
        for batch in best.batches:
            if start <= batch.last_offset and batch.base_offset < end:
                records = [each for each in _records(RecordBatch.of(batch.data)) if start <= each.offset < end]
                yield _poll(name, records, end, batch.last_offset + 1)


def _records(batch: RecordBatch) -> list[RecordView]:
    return [] if batch.is_control else decode_batch(batch)


def _poll(name: TopicPartition, records: list[RecordView], high_watermark: Offset, after: Offset) -> history.Poll:
    return history.Poll(
        time=0.0,
        process=READER,
        topic=name.topic,
        partition=name.partition,
        records=tuple((record.offset, value_id(record.value)) for record in records),
        position_after=min(after, high_watermark),
        high_watermark=high_watermark,
    )


# ---- replicas --------------------------------------------------------------------------------------------------------


def node_folders(folder: Path) -> list[tuple[NodeId, Path]]:
    """The brokers' data directories at ``folder`` or right below it. Failure when there is none."""
    found = [each for each in (folder, *sorted(folder.iterdir())) if (each / META_PROPERTIES).is_file()]
    if not found:
        raise Failure(f"{folder} is no broker's data directory, nor does it hold one ({META_PROPERTIES} is missing)")
    return [(_node_id(each / META_PROPERTIES), each) for each in found]


def _node_id(path: Path) -> NodeId:
    try:
        return parse_meta_properties(path.read_bytes()).node_id
    except BadCheckpoint as error:
        raise Failure(f"{path} cannot be read: {error}") from error


def partitions_in(folder: Path) -> list[TopicPartition]:
    """The replicas that a data directory holds, sorted."""
    found = (partition_of(each.name) for each in folder.iterdir() if each.is_dir())
    return sorted(partition for partition in found if partition is not None)


def segments_of(folder: Path, partition: TopicPartition) -> list[Path]:
    """A replica's log files, in order."""
    place = folder / str(partition)
    return [place / offset_name(base, LOG) for base in offsets_in([each.name for each in place.iterdir()], LOG)]


def _record_by_record(
    nodes: dict[NodeId, Path], holders: list[NodeId], partition: TopicPartition, finding: Diverged
) -> list[Diverged]:
    """The records in which the batches of a finding differ; the finding itself when the records cannot tell."""
    held: dict[NodeId, dict[Offset, tuple[int, str]]] = {}
    for node in holders:
        batch = next((b for b in batches_of(nodes[node], partition) if b.base_offset == finding.offset), None)
        try:
            records = _records(RecordBatch.of(batch.data)) if batch is not None else []
        except CorruptMessage:
            records = []
        epoch = -1 if batch is None else batch.leader_epoch
        held[node] = {record.offset: (epoch, value_id(record.value)) for record in records}
    offsets = sorted({offset for rows in held.values() for offset in rows})
    result = []
    for offset in offsets:
        rows = {node: held[node].get(offset, (-1, MISSING)) for node in holders}
        usual = Counter(rows.values()).most_common(1)[0][0]
        strays = [node for node in holders if rows[node] != usual]
        if strays:
            result.append(
                Diverged(
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=offset,
                    holdings=tuple((node, *row) for node, row in rows.items()),
                    detail=f"replica {', '.join(map(str, strays))} differs from the others",
                )
            )
    return result or [finding]
