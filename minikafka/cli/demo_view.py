"""The demo's screen: a live table at a terminal, plain lines elsewhere.

Rules for this file: it shows what others know and changes nothing; without a terminal a line stays a line (CI logs).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from minikafka.chaos.watch import ClusterState
from minikafka.cli.demo_story import Stream
from minikafka.types import NO_NODE, NodeId

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
