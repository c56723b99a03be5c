"""``minikafka consume``: a topic's records on standard output, in kcat's formats, as JSON lines or as columns.

Without ``--group`` it reads all partitions and commits nothing. With one it is a member: it shares the partitions,
begins where the group has committed, and commits what it has printed.

It ends at ``--max-records``, at ``--exit-at-end`` (the high watermarks as they were when it began), or when it is told
to: Ctrl-C, SIGTERM, a reader that leaves. All of these are exit code 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from minikafka import Consumer
from minikafka.check import value_id
from minikafka.cli.formats import DEFAULT_FORMAT, LETTERS, BadFormat, Readable, parse_format, to_json_line
from minikafka.cli.running import ANSWER_TIMEOUT_MS, Signals, first_of, run_until_asked, somebody_listens
from minikafka.cli.tables import bootstrap_option
from minikafka.client.settings import ASSIGNORS
from minikafka.errors import UnknownTopicOrPartition
from minikafka.types import Offset, TopicPartition
from minikafka.world.ledger_file import LedgerFile

POLL_TIMEOUT_MS = 500
POLL_RECORDS_MAX = 5_000
PROCESS = "consumer"
"""This command's name in a ledger."""

Printer = Callable[[Readable], bytes]


@click.command(
    epilog="""\b
Examples:
  minikafka consume orders -b 127.0.0.1:9092 --from-beginning --exit-at-end -f '%p %o %k %s\\n'
  minikafka consume orders -b 127.0.0.1:9092 --from-beginning --max-records 10 -o json
  minikafka consume orders -b 127.0.0.1:9092
  minikafka consume orders --group billing --assignor cooperative-sticky --from-beginning -o json

\b
Letters of a format (kcat's):
"""
    + "".join(f"  %{letter}  {meaning}\n" for letter, (_, meaning) in LETTERS.items())
    + """
JSON: one object a line, {"topic","partition","offset","timestamp","key","value","headers"}; bytes that are not UTF-8
come as key_b64 and value_b64."""
)
@click.argument("topic")
@bootstrap_option
@click.option("--from-beginning", is_flag=True, help="From the first record that is kept.  [only new ones]")
@click.option("--max-records", type=click.IntRange(min=0), default=None, metavar="N", help="End after N records.")
@click.option("--exit-at-end", is_flag=True, help="End where the topic ended when this began.")
@click.option("--group", default=None, metavar="GROUP", help="Read as a member of this consumer group.")
@click.option("--assignor", type=click.Choice(list(ASSIGNORS)), default=None, help="How the group shares.  [range]")
@click.option("--instance-id", default=None, metavar="ID", help="Of a static member (group.instance.id).")
@click.option(
    "--session-timeout-ms", type=click.IntRange(1), default=None, metavar="MS", help="Of the member.  [10000]"
)
@click.option("--client-id", default=None, metavar="NAME", help="What tools show of this consumer.")
@click.option("-f", "--format", "format_", default=None, metavar="FORMAT", help="kcat's letters.  [default: '%s\\n']")
@click.option(
    "--ledger",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="Append what was read, with the high watermarks, for `minikafka audit`.  [nowhere]",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default=None, help="Columns, or a JSON object a line."
)
def command(
    topic: str,
    bootstrap: str,
    from_beginning: bool,  # noqa: FBT001 - click passes flags so
    max_records: int | None,
    exit_at_end: bool,  # noqa: FBT001
    group: str | None,
    assignor: str | None,
    instance_id: str | None,
    session_timeout_ms: int | None,
    client_id: str | None,
    format_: str | None,
    ledger: Path | None,
    output: str | None,
) -> None:
    """Print the records of TOPIC, as they come."""
    if format_ is not None and output is not None:
        raise click.UsageError("-f and -o are two ways to say the same: keep one of them")
    try:
        printer = _printer(format_, output)
    except BadFormat as error:
        raise click.UsageError(str(error)) from error
    membership: dict[str, Any] = {
        "partition_assignment_strategy": assignor,
        "group_instance_id": instance_id,
        "session_timeout_ms": session_timeout_ms,
        # A third of the session, where the usual three seconds are too long for it.
        "heartbeat_interval_ms": None if session_timeout_ms is None else max(1, min(3_000, session_timeout_ms // 3)),
    }
    membership = {name: value for name, value in membership.items() if value is not None}
    if membership and group is None:
        raise click.UsageError("--assignor, --instance-id and --session-timeout-ms need a --group")
    reading = Reading(topic, bootstrap, from_beginning, max_records, exit_at_end, printer, group, membership, client_id)
    if output == "table":
        sys.stdout.buffer.write(_columns("PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE"))
    if ledger is None:
        run_until_asked(reading.run)
        return
    with LedgerFile(ledger) as reading.ledger:
        run_until_asked(reading.run)


def _printer(format_: str | None, output: str | None) -> Printer:
    if output == "json":
        return to_json_line
    if output == "table":
        cells = [parse_format(letter) for letter in ("%p", "%o", "%D", "%k", "%s")]
        return lambda record: _columns(*(cell(record).decode(errors="replace") for cell in cells))
    return parse_format(DEFAULT_FORMAT if format_ is None else format_)


def _columns(partition: str, offset: str, timestamp: str, key: str, value: str) -> bytes:
    """A line of a table that has no end yet: widths are guessed, nothing is cut."""
    return f"{partition:>9}  {offset:>10}  {timestamp:<29}  {key:<16}  {value}".rstrip().encode() + b"\n"


@dataclass(slots=True)
class Reading:
    """One run of the command."""

    topic: str
    bootstrap: str
    from_beginning: bool
    max_records: int | None
    exit_at_end: bool
    printer: Printer
    group: str | None = None
    membership: Mapping[str, Any] = field(default_factory=dict)
    """What the consumer is told besides the group."""
    client_id: str | None = None
    printed: int = 0
    ledger: LedgerFile | None = None

    async def run(self, signals: Signals) -> None:
        """Read until there is a reason to end."""
        consumer = Consumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            auto_offset_reset="earliest" if self.from_beginning else "latest",
            max_poll_records=POLL_RECORDS_MAX,
            default_api_timeout_ms=ANSWER_TIMEOUT_MS,
            group_id=self.group,
            client_id=self.client_id,
            **self.membership,
        )
        read = self._read(consumer) if self.group is None else self._share(consumer)
        try:
            await first_of(read, signals.asked.wait())
        finally:
            sys.stdout.flush()
            await consumer.stop()

    async def _read(self, consumer: Consumer) -> None:
        await somebody_listens(self.bootstrap)
        await consumer.start()
        numbers = consumer.partitions_for_topic(self.topic) or ()
        partitions = [TopicPartition(self.topic, number) for number in sorted(numbers)]
        if not partitions:
            raise UnknownTopicOrPartition(f"there is no topic {self.topic}")
        consumer.unsubscribe()
        consumer.assign(partitions)
        if self.ledger is not None:
            self.ledger.recorder.assign(PROCESS, partitions)
        ends = await consumer.end_offsets(partitions) if self.exit_at_end else {}
        if self.from_beginning:
            await consumer.seek_to_beginning(*partitions)
        elif ends:
            for partition, end in ends.items():
                consumer.seek(partition, end)
        else:
            await consumer.seek_to_end(*partitions)
        while not self._enough and not (ends and await self._at_end(consumer, ends)):
            left = None if self.max_records is None else self.max_records - self.printed
            records = await consumer.getmany(timeout_ms=POLL_TIMEOUT_MS, max_records=left)
            for partition, batch in records.items():
                self._print(partition, batch, ends)
                self._note(partition, batch, consumer.highwater(partition))
            sys.stdout.buffer.flush()

    async def _share(self, consumer: Consumer) -> None:
        """As a member: what was printed is committed by itself, and when it ends."""
        await somebody_listens(self.bootstrap)
        await consumer.start()
        if not consumer.partitions_for_topic(self.topic):
            raise UnknownTopicOrPartition(f"there is no topic {self.topic}")
        ends: dict[TopicPartition, int] = {}
        while not self._enough:
            left = None if self.max_records is None else self.max_records - self.printed
            records = await consumer.getmany(timeout_ms=POLL_TIMEOUT_MS, max_records=left)
            for partition, batch in records.items():
                self._print(partition, batch, {})
            sys.stdout.buffer.flush()
            mine = consumer.assignment()
            if self.exit_at_end and mine:
                ends |= await consumer.end_offsets([each for each in mine if each not in ends])
                if await self._at_end(consumer, {each: ends[each] for each in consumer.assignment() & ends.keys()}):
                    return

    def _print(self, partition: TopicPartition, batch: Sequence[Readable], ends: dict[TopicPartition, int]) -> None:
        end = ends.get(partition)
        write, printer = sys.stdout.buffer.write, self.printer
        for record in batch:
            if end is None or record.offset < end:
                write(printer(record))
                self.printed += 1

    def _note(self, partition: TopicPartition, batch: Sequence[Readable], high_watermark: Offset | None) -> None:
        """The watermark may be of a later fetch: it only rises."""
        if self.ledger is not None:
            rows = [(record.offset, value_id(record.value)) for record in batch]
            self.ledger.recorder.poll(PROCESS, *partition, rows, high_watermark=high_watermark)
            self.ledger.flush()

    @property
    def _enough(self) -> bool:
        return self.max_records is not None and self.printed >= self.max_records

    async def _at_end(self, consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
        for partition, end in ends.items():
            if await consumer.position(partition) < end:
                return False
        return True
