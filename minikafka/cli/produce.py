"""``minikafka produce``: standard input to a topic, one record a line, and a summary of what became of them.

The last line of standard output is ``{"sent","acknowledged","failed","unknown"}``: *failed* is definitely not in the
log, *unknown* may be. With ``--acks 0`` nobody answers, so all are unknown.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from minikafka import Producer
from minikafka.cli.lines import lines_of
from minikafka.cli.running import (
    ANSWER_TIMEOUT_MS,
    FAILED,
    INTERRUPTED,
    Signals,
    first_of,
    run_until_asked,
    somebody_listens,
)
from minikafka.cli.tables import bootstrap_option, console, print_json
from minikafka.errors import UNKNOWN, MessageTooLarge, ProtocolError

PROGRESS_INTERVAL_S = 1.0


@click.command(
    epilog="""\b
Examples:
  printf 'ann:tea\\nbob:milk\\n' | minikafka produce orders -b 127.0.0.1:9092 --key-separator :
  seq 100000 | minikafka produce numbers -b 127.0.0.1:9092 --acks 1
  minikafka produce orders -b 127.0.0.1:9092 --rate 100 < orders.txt
  minikafka produce orders -b 127.0.0.1:9092 --ledger orders.jsonl < orders.txt    then: minikafka audit

The last line of output is {"sent":2,"acknowledged":2,"failed":0,"unknown":0}; the exit code is 0 only if all
were acknowledged."""
)
@click.argument("topic")
@bootstrap_option
@click.option(
    "--key-separator", metavar="S", default=None, help="A line is KEY S VALUE; a line without S has no key.  [no keys]"
)
@click.option(
    "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True, help="Who must have a record."
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=None, help="Records a second at most.")
@click.option(
    "--ledger",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="Append what was acknowledged where, failed or is unknown, for `minikafka audit`.  [nowhere]",
)
def command(
    topic: str, bootstrap: str, key_separator: str | None, acks: str, rate: float | None, ledger: Path | None
) -> None:
    """Send standard input to TOPIC, one record a line."""
    separator = key_separator.encode() if key_separator else None
    tally = Tally(promised=acks != "0")
    run_until_asked(lambda signals: _produce(tally, topic, bootstrap, separator, acks, rate, ledger, signals))
    print_json(tally.summary())
    for name, count in sorted(tally.errors.items()):
        click.echo(f"minikafka: {count} records: {name}", err=True)
    if tally.interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    if tally.acknowledged < tally.sent:
        raise click.exceptions.Exit(FAILED)


@dataclass(slots=True)
class Tally:
    """What became of the records."""

    promised: bool
    """Do brokers answer at all (acks other than 0)?"""
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
        told = error if isinstance(error, ProtocolError) else None
        if told is not None and told.outcome != UNKNOWN:
            self.failed += 1
        self.errors[f"{told.name}: {told.message}" if told is not None else repr(error)] += 1

    def answered(self, future: asyncio.Future[Any]) -> None:
        """A send's future is done."""
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self.refused(error)
        elif self.promised:
            self.acknowledged += 1


async def _produce(
    tally: Tally,
    topic: str,
    bootstrap: str,
    separator: bytes | None,
    acks: str,
    rate: float | None,
    ledger: Path | None,
    signals: Signals,
) -> None:
    producer = Producer(
        bootstrap_servers=bootstrap,
        ledger=ledger,
        acks="all" if acks == "all" else int(acks),
        default_api_timeout_ms=ANSWER_TIMEOUT_MS,
    )
    await somebody_listens(bootstrap)
    await producer.start()
    showing = asyncio.ensure_future(_show(tally))
    try:
        sending = _send_all(producer, topic, separator, rate, tally)
        tally.interrupted = await first_of(sending, signals.asked.wait()) != 0
        await first_of(producer.flush(), signals.urged.wait())
    finally:
        showing.cancel()
        await first_of(producer.stop(), signals.urged.wait())


async def _send_all(producer: Producer, topic: str, separator: bytes | None, rate: float | None, tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    async for lines in lines_of(sys.stdin.fileno()):
        for line in lines:
            if rate is not None:
                await asyncio.sleep(max(0.0, started + tally.sent / rate - loop.time()))
            key, found, value = line.partition(separator) if separator else (b"", b"", line)
            record = value if found or not separator else line, key if found else None
            tally.sent += 1
            try:
                future = await producer.send(topic, *record)
            except MessageTooLarge as error:
                tally.refused(error)
            except ProtocolError as error:
                # Neither the topic nor room for more: the lines after it would fare the same, each after a minute.
                tally.refused(error)
                return
            else:
                future.add_done_callback(tally.answered)
        await asyncio.sleep(0)


async def _show(tally: Tally) -> None:
    """Progress, for a person who waits at a terminal while the records come from elsewhere."""
    screen = console(stderr=True)
    if not screen.is_terminal or sys.stdin.isatty():
        return
    with screen.status("sending") as status:
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            status.update(f"{tally.sent:,} sent, {tally.acknowledged:,} acknowledged, {tally.failed:,} failed")
