"""``minikafka consume``: a topic's records on standard output, in kcat's formats, as JSON, as columns or with tabs.

Without ``--group`` it reads all partitions and commits nothing. With one it is a member: it shares the partitions,
begins where the group has committed, and commits what it has printed.

``--offset`` is written as for kafka-console-consumer and kcat; a number outside of the log is an error, never another
place.

It ends at ``--max-records``, at ``--exit-at-end`` (the high watermarks as they were when it began), after
``--timeout-ms`` without a record, or when the reader of its output leaves: exit code 0. Ctrl-C and SIGTERM end it with
exit code 130, after a member of a group has committed what it printed.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from minikafka import CommitFailed, Consumer, OffsetAndTimestamp
from minikafka import errors as kafka
from minikafka.check import value_id
from minikafka.cli.admin import client_settings, with_admin
from minikafka.cli.formats import (
    DEFAULT_FORMAT,
    LETTERS,
    BadFormat,
    parse_format,
    to_json_line,
    to_tsv_line,
    visible,
    visible_json,
)
from minikafka.cli.running import (
    ANSWER_TIMEOUT_MS,
    INTERRUPTED,
    KEPT_LINES,
    Signals,
    check_reachable,
    first_of,
    lone_command,
    output_reader_gone,
    run_until_asked,
    write_output,
)
from minikafka.cli.tables import OutputFile, bootstrap_option, many, topic_argument
from minikafka.client.structs import ConsumerRecord
from minikafka.config import KIB
from minikafka.groups.assignors import ASSIGNORS
from minikafka.groups.group import State
from minikafka.groups.protocol import Assignment
from minikafka.rest.records import moment_ms
from minikafka.types import Offset, TopicPartition
from minikafka.wire.group_messages import DescribedGroup
from minikafka.world.clients import LedgerFile

FORMS = "beginning (earliest), end (latest), N, -N (the last N), @MS or an ISO 8601 moment with a time zone"
DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class Start:
    """``offset`` and ``last`` have a number of records, ``time`` has milliseconds since 1970."""

    kind: Literal["beginning", "end", "offset", "last", "time"]
    number: int = 0

    def within(self, name: TopicPartition, begin: Offset, end: Offset, at_time: Offset | None) -> Offset:
        """The offset in a log from ``begin`` to ``end`` (exclusive); ``at_time``: of the first record since, if any.

        Raises OffsetOutOfRange.
        """
        match self.kind:
            case "beginning":
                return begin
            case "end":
                return end
            case "last":
                return max(begin, end - self.number)
            case "time":
                return end if at_time is None else at_time
        if not begin <= self.number <= end:
            raise kafka.OffsetOutOfRange(f"{name}: offset {self.number} is outside {begin} to {end}")
        return self.number


BEGINNING = Start("beginning")
END = Start("end")


def parse_start(text: str) -> Start:
    """One of FORMS (``s@MS`` is kcat's); ValueError with one sentence."""
    if text in ("beginning", "earliest"):
        return BEGINNING
    if text in ("end", "latest"):
        return END
    number = text.removeprefix("s").removeprefix("@") if text.startswith(("@", "s@")) else text.removeprefix("-")
    if number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX:
        kind: Literal["offset", "last", "time"] = "last" if text.startswith("-") else "offset"
        return Start("time" if "@" in text else kind, int(number))
    try:
        return Start("time", moment_ms(text))
    except ValueError:
        raise ValueError(f"{text!r}: {FORMS} is needed") from None


POLL_TIMEOUT_MS = 500
POLL_RECORDS_MAX = 5_000
OUTPUT_SIZE = 64 * KIB
COLUMNS = ("PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE")
PROCESS = "consumer"
"""This command's name in a ledger."""

Printer = Callable[[ConsumerRecord], bytes]


@lone_command(
    epilog=f"{KEPT_LINES}Letters of a format (kcat's):\n"
    + "\n".join(f"  %{letter}  {meaning}" for letter, (_, meaning) in LETTERS.items())
)
@topic_argument
@bootstrap_option
@click.option("--from-beginning", is_flag=True, help="Start at the first record that is retained.  [at the end]")
@click.option("--offset", "start", metavar="WHERE", help=f"Where to start in each partition: {FORMS}.")
@click.option(
    "--partition",
    "only",
    type=click.IntRange(0),
    multiple=True,
    metavar="P",
    help="Partition to read (repeatable).  [all]",
)
@click.option(
    "--max-records",
    "--max-messages",
    "max_records",
    type=click.IntRange(min=0),
    metavar="N",
    help="Exit after N records.",
)
@click.option("--exit-at-end", is_flag=True, help="Exit at the offsets where the topic ended when the command started.")
@click.option(
    "--timeout-ms", type=click.IntRange(1), metavar="MS", help="Exit when no record has arrived for this long."
)
@click.option("--group", metavar="GROUP", help="Read as a member of this consumer group.")
@click.option(
    "--assignor",
    type=click.Choice([*ASSIGNORS, "uniform"]),
    help="How the group's partitions are assigned: range or uniform with --group-protocol consumer.  [range]",
)
@click.option(
    "--group-protocol",
    type=click.Choice(["classic", "consumer"]),
    help="Protocol of the member: consumer lets the coordinator assign (KIP-848).  [classic]",
)
@click.option("--instance-id", metavar="ID", help="Id of a static member (group.instance.id).")
@click.option(
    "--session-timeout-ms", type=click.IntRange(1), metavar="MS", help="Session timeout of the member.  [10000]"
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    help="Records to print: all, or no records of open and aborted transactions.  [read_uncommitted]",
)
@click.option("--client-id", metavar="NAME", help="Client id that tools show for this consumer.")
@click.option(
    "-f", "--format", "format_", metavar="FORMAT", help="Output format, in kcat's letters (below).  [default: '%s\\n']"
)
@click.option("--raw", is_flag=True, help="Print control characters to a terminal as they are.  [escaped]")
@click.option(
    "--ledger",
    type=OutputFile(),
    metavar="FILE",
    help="File to append every record's offset to, with high watermarks, for `minikafka audit`.  [none]",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "tsv"]),
    help="Aligned columns, one JSON object per line, or the columns with tabs.",
)
def command(
    topic: str,
    bootstrap: str,
    from_beginning: bool,
    start: str | None,
    only: tuple[int, ...],
    max_records: int | None,
    exit_at_end: bool,
    timeout_ms: int | None,
    group: str | None,
    assignor: str | None,
    group_protocol: str | None,
    instance_id: str | None,
    session_timeout_ms: int | None,
    isolation_level: str,
    client_id: str | None,
    format_: str | None,
    raw: bool,
    ledger: Path | None,
    output: str | None,
) -> None:
    r"""Print the records of TOPIC, as they come.

    Examples:
      minikafka consume orders -b 127.0.0.1:9092 --from-beginning --exit-at-end -f '%p %o %k %s\n'
      minikafka consume orders -b 127.0.0.1:9092 --from-beginning --max-records 10 -o json
      minikafka consume orders -b 127.0.0.1:9092
      minikafka consume orders --partition 2 --offset 41 --max-records 1
      minikafka consume orders --offset -10 --exit-at-end
      minikafka consume orders --offset 2026-11-21T08:00Z --timeout-ms 5000
      minikafka consume orders --group billing --assignor cooperative-sticky --from-beginning -o json
      minikafka consume orders --isolation-level read_committed --from-beginning --exit-at-end

    JSON: one object a line, {"topic","partition","offset","timestamp","key","value","headers"}; bytes that are not
    UTF-8 come as key_b64 and value_b64.

    On a terminal, control characters in keys, values and headers are shown as \x1b; --raw prints them as they are.
    Output into a pipe or a file is never changed.

    Exit codes: 0 at --max-records, --exit-at-end or --timeout-ms, 130 after Ctrl-C or SIGTERM, else 1 or 2.
    """
    if format_ is not None and output is not None:
        raise click.UsageError("-f and -o are two ways to say the same: keep one of them")
    if start is not None and from_beginning:
        raise click.UsageError("--from-beginning and --offset are two ways to say the same: keep one of them")
    if group is not None and (only or start is not None):
        raise click.UsageError(
            "--partition and --offset do not go with --group: the group assigns partitions and keeps offsets"
        )
    if group is not None and ledger is not None:
        raise click.UsageError("--ledger does not go with --group: the reads of a member are not recorded")
    try:
        begin = parse_start(start) if start is not None else BEGINNING if from_beginning else END
        printer = _printer(format_, output, escape=not raw and sys.stdout.isatty())
    except (BadFormat, ValueError) as error:
        raise click.UsageError(str(error)) from error
    is_classic = group_protocol != "consumer"
    if not is_classic and session_timeout_ms is not None:
        raise click.UsageError(
            "--session-timeout-ms is for the classic protocol: the brokers' group.consumer.session.timeout.ms decides"
        )
    if assignor is not None and assignor not in (ASSIGNORS if is_classic else ("uniform", "range")):
        raise click.UsageError(f"--assignor {assignor} is not for the {group_protocol or 'classic'} protocol")
    membership: dict[str, Any] = {
        "group_protocol": group_protocol,
        "partition_assignment_strategy" if is_classic else "group_remote_assignor": assignor,
        "group_instance_id": instance_id,
        "session_timeout_ms": session_timeout_ms,
        # A third of the session, where the usual three seconds are too long for it.
        "heartbeat_interval_ms": None if session_timeout_ms is None else max(1, min(3_000, session_timeout_ms // 3)),
    }
    membership = {name: value for name, value in membership.items() if value is not None}
    if membership and group is None:
        raise click.UsageError("--assignor, --group-protocol, --instance-id and --session-timeout-ms need a --group")
    settings = {"group_id": group, "client_id": client_id, "isolation_level": isolation_level, **membership}
    reading = Reading(topic, bootstrap, begin, only, printer, settings, max_records, exit_at_end, timeout_ms)
    if output == "table":
        click.echo(_columns(*COLUMNS), nl=False)
    elif output == "tsv":
        click.echo("\t".join(COLUMNS))
    with nullcontext() if ledger is None else LedgerFile(ledger) as reading.ledger:
        is_interrupted = run_until_asked(reading.run)
    if is_interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


def _printer(format_: str | None, output: str | None, *, escape: bool) -> Printer:
    """How a record is printed; ``escape``: for a terminal, which control characters must not reach."""
    if output == "json":
        return (lambda record: visible_json(to_json_line(record))) if escape else to_json_line
    if output == "tsv":
        return (lambda record: visible(to_tsv_line(record))) if escape else to_tsv_line
    shown = visible if escape else bytes
    if output == "table":
        cells = [parse_format(letter, shown) for letter in ("%p", "%o", "%D", "%k", "%s")]
        return lambda record: _columns(*(cell(record).decode(errors="replace") for cell in cells))
    return parse_format(DEFAULT_FORMAT if format_ is None else format_, shown)


def _columns(partition: str, offset: str, timestamp: str, key: str, value: str) -> bytes:
    """A line of a table that has no end yet: widths are guessed, nothing is cut."""
    return f"{partition:>9}  {offset:>10}  {timestamp:<29}  {key:<16}  {value}".rstrip().encode() + b"\n"


def assigned_to_others(group: DescribedGroup, member_id: str, partitions: AbstractSet[TopicPartition]) -> bool:
    """Return True if the group is stable, and members other than this one have all of these partitions.

    Without the second condition a member would leave between the two rounds of a cooperative rebalance: in the first
    one it gets nothing, because the others still have what they give up.
    """
    if group.state != State.STABLE.value or not partitions:
        return False
    if member_id not in {each.member_id for each in group.members}:
        return False
    others = [each for each in group.members if each.member_id != member_id]
    return partitions <= {part for each in others for part in Assignment.readable(each.assignment).partitions}


@dataclass(slots=True)
class Reading:
    """One run of the command."""

    topic: str
    bootstrap: str
    begin: Start
    only: Sequence[int]
    """These partitions; none: all."""
    printer: Printer
    settings: Mapping[str, Any]
    """The consumer's: group and membership, client id, and isolation level."""
    max_records: int | None
    """When to stop by itself: after so many records, at the end of the topic, or without a record for this long."""
    exit_at_end: bool
    timeout_ms: int | None
    printed: int = 0
    last_s: float = 0.0
    """When a record came last, or reading began."""
    ledger: LedgerFile | None = None

    async def run(self, signals: Signals) -> bool:
        """Read until there is a reason to end; True if that was a signal."""
        consumer = Consumer(
            self.topic,
            **client_settings(self.bootstrap),
            auto_offset_reset="latest" if self.begin == END else "earliest",
            max_poll_records=POLL_RECORDS_MAX,
            default_api_timeout_ms=ANSWER_TIMEOUT_MS,
            **self.settings,
        )
        return await first_of(self._read(consumer), signals.asked.wait(), output_reader_gone()) == 1

    async def _read(self, consumer: Consumer) -> None:
        await check_reachable(self.bootstrap)
        # If this is cancelled or fails in the middle of its output, a member does not commit what is not printed.
        async with consumer:
            await (self._read_all(consumer) if self.settings["group_id"] is None else self._share(consumer))

    async def _read_all(self, consumer: Consumer) -> None:
        partitions = await self._partitions(consumer)
        consumer.unsubscribe()
        consumer.assign(partitions)
        if self.ledger is not None:
            self.ledger.recorder.assign(PROCESS, partitions)
        ends = await consumer.end_offsets(partitions) if self.exit_at_end else {}
        await self._seek(consumer, partitions, ends)
        self.last_s = asyncio.get_running_loop().time()
        if self.begin == END and not self.exit_at_end and sys.stdout.isatty() and sys.stderr.isatty():
            click.echo("minikafka: waiting for new records; --from-beginning also prints older ones", err=True)
        while not self._enough and not (ends and await self._at_end(consumer, ends)):
            records = await self._polled(consumer)
            for partition, batch in records.items():
                await self._print(partition, batch, ends)
                self._note(partition, batch, consumer.highwater(partition))

    async def _numbers(self, consumer: Consumer) -> frozenset[int]:
        numbers = consumer.partitions_for_topic(self.topic)
        if not numbers:
            await consumer.getmany()  # raises the reason if it is another one, such as no permission
            raise kafka.UnknownTopicOrPartition(f"there is no topic {self.topic}")
        return numbers

    async def _partitions(self, consumer: Consumer) -> list[TopicPartition]:
        numbers = await self._numbers(consumer)
        missing = sorted(set(self.only) - numbers)
        if missing:
            raise kafka.UnknownTopicOrPartition(
                f"{self.topic} has {many(len(numbers), 'partition')}, and no {missing[0]}"
            )
        return [TopicPartition(self.topic, number) for number in sorted(set(self.only) or numbers)]

    async def _seek(
        self, consumer: Consumer, partitions: Sequence[TopicPartition], ends: Mapping[TopicPartition, Offset]
    ) -> None:
        """The two ends need no answer first: one partition without a leader does not keep back the others."""
        if self.begin == BEGINNING:
            await consumer.seek_to_beginning(*partitions)
            return
        if self.begin == END and not ends:
            await consumer.seek_to_end(*partitions)
            return
        ends = ends or await consumer.end_offsets(partitions)
        begins = await consumer.beginning_offsets(partitions)
        moments: Mapping[TopicPartition, OffsetAndTimestamp | None] = {}
        if self.begin.kind == "time":
            moments = await consumer.offsets_for_times(dict.fromkeys(partitions, self.begin.number))
        found = {name: moment.offset for name, moment in moments.items() if moment is not None}
        for name in partitions:
            consumer.seek(name, self.begin.within(name, begins[name], ends[name], found.get(name)))

    async def _polled(self, consumer: Consumer) -> Mapping[TopicPartition, Sequence[ConsumerRecord]]:
        """The next records; it waits no longer than for the end of ``--timeout-ms``."""
        most, timeout_ms = self.max_records, self.timeout_ms
        loop = asyncio.get_running_loop()
        wait_ms = POLL_TIMEOUT_MS
        if timeout_ms is not None:
            left_ms = timeout_ms - (loop.time() - self.last_s) * 1000
            wait_ms = max(1, min(wait_ms, math.ceil(left_ms)))
        records = await consumer.getmany(timeout_ms=wait_ms, max_records=None if most is None else most - self.printed)
        if records:
            self.last_s = loop.time()
        return records

    async def _share(self, consumer: Consumer) -> None:
        """As a member: what was printed is committed by itself, and when it ends."""
        await self._numbers(consumer)
        ends: dict[TopicPartition, int] = {}
        self.last_s = asyncio.get_running_loop().time()
        while not self._enough:
            records = await self._polled(consumer)
            for partition, batch in records.items():
                await self._print(partition, batch, {})
            if self.exit_at_end and await self._share_is_read(consumer, ends):
                return

    async def _share_is_read(self, consumer: Consumer, ends: dict[TopicPartition, Offset]) -> bool:
        """Return True if the member has read its partitions up to ``ends``, or if the other members have them all.

        ``ends``: where the partitions ended when they were first assigned to this member; it adds new ones.
        """
        mine = consumer.assignment()
        if not mine:
            return await self._others_have_all(consumer)
        ends |= await consumer.end_offsets([each for each in mine if each not in ends])
        if consumer.assignment() != mine:
            return False
        try:
            return await self._at_end(consumer, {each: ends[each] for each in mine})
        except kafka.InvalidRequest:
            return False  # a partition was lost meanwhile: the group has gone on without this member

    async def _others_have_all(self, consumer: Consumer) -> bool:
        try:
            me = consumer.group_metadata()
            (group,) = await with_admin(self.bootstrap, lambda admin: admin.describe_consumer_groups([me.group_id]))
        except (CommitFailed, kafka.GroupIdNotFound):
            return False  # not a member yet, or no longer
        except (kafka.GroupAuthorizationFailed, kafka.TopicAuthorizationFailed):
            return False  # other members read topics that this user may not describe: it is not known
        numbers = consumer.partitions_for_topic(self.topic) or frozenset()
        partitions = {TopicPartition(self.topic, number) for number in numbers}
        return not consumer.assignment() and assigned_to_others(group, me.member_id, partitions)

    async def _print(
        self, partition: TopicPartition, batch: Sequence[ConsumerRecord], ends: dict[TopicPartition, int]
    ) -> None:
        end = ends.get(partition)
        waiting, printer = bytearray(), self.printer
        for record in batch:
            if end is None or record.offset < end:
                waiting += printer(record)
                self.printed += 1
                if len(waiting) >= OUTPUT_SIZE:
                    await write_output(waiting)
                    waiting.clear()
        await write_output(waiting)

    def _note(self, partition: TopicPartition, batch: Sequence[ConsumerRecord], high_watermark: Offset | None) -> None:
        """The watermark may be of a later fetch: it only rises."""
        if self.ledger is not None:
            rows = [(record.offset, value_id(record.value)) for record in batch]
            self.ledger.recorder.poll(PROCESS, *partition, rows, high_watermark=high_watermark)
            self.ledger.flush()

    @property
    def _enough(self) -> bool:
        most, timeout_ms = self.max_records, self.timeout_ms
        if timeout_ms is not None and asyncio.get_running_loop().time() - self.last_s >= timeout_ms / 1000:
            return True
        return most is not None and self.printed >= most

    async def _at_end(self, consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
        for partition, end in ends.items():
            if await consumer.position(partition) < end:
                return False
        return True
