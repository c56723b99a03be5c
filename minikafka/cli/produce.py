"""``minikafka produce``: standard input to a topic, one record a line, and a summary of what became of them.

The last line of standard output is ``{"sent","acknowledged","failed","unknown"}``: *failed* is definitely not in the
log, *unknown* may be. With ``--acks 0`` brokers do not respond, so all are unknown.

A line is a record by the options, or a JSON line as ``consume -o json`` prints it. A JSON line contains the whole
record; its old topic, partition and offset are ignored. A line that cannot be parsed is InvalidRecord with the line's
number.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click

from minikafka import AdminClient, Producer
from minikafka.cli.admin import client_settings, with_admin
from minikafka.cli.running import (
    ANSWER_TIMEOUT_MS,
    FAILED,
    INTERRUPTED,
    Signals,
    check_reachable,
    first_of,
    lone_command,
    run_until_asked,
)
from minikafka.cli.tables import OutputFile, bootstrap_option, console, many, print_json, topic_argument
from minikafka.config.setting import MIB
from minikafka.errors import UNKNOWN, InvalidRecord, MessageTooLarge, ProtocolError, UnknownTopicOrPartition
from minikafka.rest import json_text
from minikafka.rest.records import record_in
from minikafka.web.problems import Fault
from minikafka.wire.records import Headers

LINE_SIZE_MAX = 32 * MIB
"""The limit of a record is its topic's max.message.bytes; this one keeps an input without line ends out of memory."""

OLD_PLACE = ("topic", "partition", "offset")


class LineRecord(NamedTuple):
    """What is sent; no timestamp: the time of sending."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class LineForm:
    """How lines are to be read."""

    separator: bytes | None = None
    """Between key and value; a line without it has no key of its own."""
    key: bytes | None = None
    """Of lines without a key of their own."""
    null_marker: bytes | None = None
    """A key or value that is just this is null."""
    headers: Headers = ()
    is_json: bool = False

    def record(self, line: bytes, number: int) -> LineRecord:
        """The record of the ``number``-th line; InvalidRecord."""
        if self.is_json:
            return _json_record(line, number)
        key, value = self.key, line
        if self.separator is not None:
            first, found, rest = line.partition(self.separator)
            if found:
                key, value = first, rest
        marker = self.null_marker
        if marker is None:
            return LineRecord(value, key, None, self.headers)
        return LineRecord(None if value == marker else value, None if key == marker else key, None, self.headers)


def _json_record(line: bytes, number: int) -> LineRecord:
    try:
        document = json_text.parse(line)
    except json_text.NotJson as error:
        raise InvalidRecord(f"line {number}: {error}") from None
    if type(document) is dict:
        document = {name: value for name, value in document.items() if name not in OLD_PLACE}
        if type(document.get("headers")) is list:
            document["headers"] = [_header(each) for each in document["headers"]]
    faults: list[Fault] = []
    record = record_in(document, "", 0, faults)
    if faults:
        raise InvalidRecord(f"line {number}: {faults[0]['pointer'] or 'the record'}: {faults[0]['detail']}")
    return LineRecord(record.value, record.key, record.timestamp if "timestamp" in document else None, record.headers)


def _header(given: Any) -> Any:
    """``consume -o json`` and ``/v1`` name base64 differently; both are read."""
    if type(given) is list and len(given) == 2 and type(given[1]) is dict and list(given[1]) == ["value_b64"]:
        return [given[0], {"b64": given[1]["value_b64"]}]
    return given


def parse_header(text: str) -> tuple[str, bytes]:
    """``NAME=VALUE``; ValueError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--header {text!r}: NAME=VALUE is needed")
    return name, value.encode()


CHUNK_SIZE = 1 << 18
# Chunks read ahead: enough to keep a producer busy, little enough that memory does not grow with the input.
CHUNKS_AHEAD = 4


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """The lines of a descriptor without their line ends, as many at a time as were read; the last may lack its end.

    A line of more than LINE_SIZE_MAX bytes is cut after one byte more. OSError when reading fails.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD)
    thread = threading.Thread(
        target=_read, args=(descriptor, room, lambda chunk: loop.call_soon_threadsafe(chunks.put_nowait, chunk))
    )
    thread.daemon = True
    thread.start()
    rest = bytearray()  # the begin of a line; a pipe has it in thousands of pieces
    while True:
        chunk = await chunks.get()
        room.release()
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            break
        first, *others = chunk.split(b"\n")
        rest += first[: LINE_SIZE_MAX + 1 - len(rest)]
        if others:
            yield [line.removesuffix(b"\r") for line in (bytes(rest), *others[:-1])]
            rest[:] = others[-1]
    if rest:
        yield [bytes(rest)]


def _read(descriptor: int, room: threading.Semaphore, give: Callable[[bytes | OSError], object]) -> None:
    try:
        while True:
            room.acquire()
            chunk = os.read(descriptor, CHUNK_SIZE)
            give(chunk)
            if not chunk:
                return
    except OSError as error:
        give(error)
    except RuntimeError:
        return  # the loop was closed: nobody wants the rest


PROGRESS_INTERVAL_S = 1.0
HINT_AFTER_S = 1.0


@lone_command()
@topic_argument
@bootstrap_option
@click.option(
    "--key-separator",
    metavar="S",
    help="Separator between key and value; a line without it has no key.  [lines are values]",
)
@click.option("--key", "-k", metavar="K", help="Key of records whose line has none.")
@click.option(
    "--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="Header added to every record (repeatable)."
)
@click.option("--null-marker", metavar="S", help="Text that stands for a null key or value.  [none]")
@click.option("--json", "is_json", is_flag=True, help="Read each line as a record in the JSON of `consume -o json`.")
@click.option(
    "--partition", "-p", type=click.IntRange(0), metavar="P", help="Partition to send all records to.  [chosen by key]"
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Replicas that must have a record before it is acknowledged.",
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum number of records per second.  [no limit]"
)
@click.option(
    "--ledger",
    type=OutputFile(),
    metavar="FILE",
    help="File to append the outcome of every record to, for `minikafka audit`.  [none]",
)
def command(
    topic: str, bootstrap: str, partition: int | None, acks: str, rate: float | None, ledger: Path | None, **form: Any
) -> None:
    r"""Send standard input to TOPIC, one record a line.

    Examples:
      printf 'ann:tea\nbob:milk\n' | minikafka produce orders -b 127.0.0.1:9092 --key-separator :
      seq 100000 | minikafka produce numbers -b 127.0.0.1:9092 --acks 1
      minikafka produce orders -b 127.0.0.1:9092 --rate 100 < orders.txt
      echo tea | minikafka produce orders --key ann --header trace=7 --partition 2
      minikafka consume orders --from-beginning --exit-at-end -o json | minikafka produce copies --json
      minikafka produce orders -b 127.0.0.1:9092 --ledger orders.jsonl < orders.txt    # for minikafka audit

    The last line of output is {"sent":2,"acknowledged":2,"failed":0,"unknown":0}; the exit code is 0 only if all
    were acknowledged.

    A TOPIC that does not exist is created with the first record if the brokers allow it (auto.create.topics.enable, on
    by default); this is reported on standard error, with its partitions and replication factor.
    """
    tally = Tally(promised=acks != "0")
    sending = Sending(topic, bootstrap, _form(**form), partition, acks, rate, ledger)
    run_until_asked(lambda signals: _produce(tally, sending, signals))
    print_json(tally.summary())
    for name, count in sorted(tally.errors.items()):
        click.echo(f"minikafka: {many(count, 'record')}: {name}", err=True)
    if tally.interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    if tally.acknowledged < tally.sent:
        raise click.exceptions.Exit(FAILED)


def _form(
    key_separator: str | None, key: str | None, headers: tuple[str, ...], null_marker: str | None, *, is_json: bool
) -> LineForm:
    if is_json and (key_separator or key is not None or headers or null_marker is not None):
        raise click.UsageError("--json lines say key and headers themselves: leave the other options out")
    if key_separator == "":
        raise click.UsageError("--key-separator is empty: leave it out if lines are values alone")
    try:
        named = tuple(map(parse_header, headers))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return LineForm(
        separator=key_separator.encode() if key_separator else None,
        key=None if key is None else key.encode(),
        null_marker=None if null_marker is None else null_marker.encode(),
        headers=named,
        is_json=is_json,
    )


@dataclass(frozen=True, slots=True)
class Sending:
    """What the command was asked for."""

    topic: str
    bootstrap: str
    form: LineForm
    partition: int | None
    acks: str
    rate: float | None
    ledger: Path | None


@dataclass(slots=True)
class Tally:
    """What became of the records."""

    promised: bool
    """True if brokers respond at all (acks other than 0)."""
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    interrupted: bool = False
    errors: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, int]:
        """The contract; what has no answer is unknown."""
        unknown = self.sent - self.acknowledged - self.failed
        return {"sent": self.sent, "acknowledged": self.acknowledged, "failed": self.failed, "unknown": unknown}

    def refused(self, error: BaseException) -> None:
        """A record got an error instead of a place."""
        refusal = error if isinstance(error, ProtocolError) else None
        if refusal is not None and refusal.outcome != UNKNOWN:
            self.failed += 1
        self.errors[f"{refusal.name}: {refusal.message}" if refusal is not None else repr(error)] += 1

    def answered(self, future: asyncio.Future[Any]) -> None:
        """A send's future is done."""
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self.refused(error)
        elif self.promised:
            self.acknowledged += 1


async def _produce(tally: Tally, asked: Sending, signals: Signals) -> None:
    producer = Producer(
        **client_settings(asked.bootstrap),
        ledger=asked.ledger,
        acks="all" if asked.acks == "all" else int(asked.acks),
        default_api_timeout_ms=ANSWER_TIMEOUT_MS,
        max_request_size=LINE_SIZE_MAX,
    )
    if await first_of(_connect(producer, asked.bootstrap), signals.asked.wait()) != 0:
        tally.interrupted = True
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        click.echo("minikafka: one record a line; Ctrl-D ends the input", err=True)
    showing = asyncio.ensure_future(_show(tally))
    hinting = asyncio.ensure_future(_hint(tally, signals))
    try:
        sending = _send_all(producer, asked, tally)
        tally.interrupted = await first_of(sending, signals.asked.wait()) != 0
        gives_up = await first_of(producer.flush(), signals.urged.wait()) != 0
        tally.interrupted = tally.interrupted or gives_up
    finally:
        showing.cancel()
        hinting.cancel()
        await first_of(producer.stop(), signals.urged.wait())


async def _connect(producer: Producer, bootstrap: str) -> None:
    await check_reachable(bootstrap)
    await producer.start()


async def _send_all(producer: Producer, asked: Sending, tally: Tally) -> None:
    topic, rate, partition, record_of = asked.topic, asked.rate, asked.partition, asked.form.record
    loop = asyncio.get_running_loop()
    started = loop.time()
    is_missing = False
    async for lines in lines_of(sys.stdin.fileno()):
        if tally.sent == 0 and lines:
            is_missing = await _is_missing(asked)
        for line in lines:
            if rate is not None:
                await asyncio.sleep(max(0.0, started + tally.sent / rate - loop.time()))
            tally.sent += 1
            if len(line) > LINE_SIZE_MAX:
                tally.refused(MessageTooLarge(f"line {tally.sent} has more than {LINE_SIZE_MAX} bytes"))
                continue
            try:
                value, key, timestamp_ms, headers = record_of(line, tally.sent)
                future = await producer.send(topic, value, key, partition, timestamp_ms, headers)
            except MessageTooLarge as error:
                tally.refused(error)
            except ProtocolError as error:
                # No such line, topic or partition, or no room: the lines after it would fare the same.
                tally.refused(error)
                return
            else:
                future.add_done_callback(tally.answered)
                if is_missing:
                    is_missing = False
                    await _report_created(asked)
        await asyncio.sleep(0)


async def _is_missing(asked: Sending) -> bool:
    """Return True if the topic does not exist yet.

    Raises UnknownTopicOrPartition where the topic lacks the partition: the producer itself would wait for a minute.
    """
    topic, partition = asked.topic, asked.partition

    async def partitions_of_it(admin: AdminClient) -> int | None:
        if topic not in await admin.list_topics():
            return 0
        return None if partition is None else len((await admin.describe_topics([topic]))[0].partitions)

    count = None
    with suppress(ProtocolError):  # no word on it: the send itself tells what is wrong
        count = await with_admin(asked.bootstrap, partitions_of_it)
    if count is not None and partition is not None and 0 < count <= partition:
        raise UnknownTopicOrPartition(f"{topic} has {many(count, 'partition')}, and no {partition}")
    return count == 0


async def _report_created(asked: Sending) -> None:
    """Brokers with auto.create.topics.enable create what a producer asks for, also where its name is mistyped."""
    with suppress(ProtocolError):
        [topic] = await with_admin(asked.bootstrap, lambda admin: admin.describe_topics([asked.topic]))
        replicas = min(len(each.replicas) for each in topic.partitions)
        click.echo(
            f"minikafka: there was no topic {asked.topic}: the brokers have created it, with"
            f" {many(len(topic.partitions), 'partition')} and replication factor {replicas}",
            err=True,
        )


async def _hint(tally: Tally, signals: Signals) -> None:
    """Ctrl-C while records wait for brokers, also behind the end of the input: say why nothing happens."""
    await signals.asked.wait()
    await asyncio.sleep(HINT_AFTER_S)
    count = tally.summary()["unknown"]
    click.echo(f"minikafka: waiting for the answers to {many(count, 'record')}; Ctrl-C again gives them up", err=True)


async def _show(tally: Tally) -> None:
    """Progress, for a person who waits at a terminal while the records come from elsewhere."""
    screen = console(stderr=True)
    if not screen.is_terminal or sys.stdin.isatty():
        return
    with screen.status("sending") as status:
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            status.update(f"{tally.sent:,} sent, {tally.acknowledged:,} acknowledged, {tally.failed:,} failed")
