"""What happens to the demo's brokers while the flights stream in, chapter by chapter, and how long each took.

::

    at 25 %   kill -9 the broker that leads most partitions; measure until each of them acknowledges again
    at 50 %   restart it, wait until it is in every ISR
    at 65 %   kill -9 the active controller; measure the same, and until there is another controller
    at 85 %   restart it, wait until it is in every ISR

The stream is held back where it would outrun the story: two dead brokers of three would be another story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from minikafka.chaos.watch import ClusterState, Watch
from minikafka.cli.demo_stream import Stream
from minikafka.errors import WorldError
from minikafka.hosting.processes import ProcessCluster
from minikafka.types import NO_NODE, NodeId

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
