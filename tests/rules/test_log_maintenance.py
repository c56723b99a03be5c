"""When a broker's periodic work is done, in virtual time: pauses, settings that move, turns that take long."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from minikafka.broker.live_settings import LiveSettings
from minikafka.broker.log_maintenance import RETENTION_FIRST_S, LogMaintenance
from minikafka.config import BrokerConfig, TopicConfig
from minikafka.errors import DiskFailed
from minikafka.ports import no_events
from minikafka.quorum.image import MetadataImage
from minikafka.sim.world import SimWorld


class Logs:
    """The checkpoints of a data directory: when each began; ``takes_s`` is how long the disk needs."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.takes_s = 0.0
        self.error: DiskFailed | None = None

    async def checkpoint_high_watermarks(self, _marks: object) -> None:
        self.began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error

    async def checkpoint_recovery_points(self) -> None:
        """Not looked at here."""

    async def checkpoint_start_offsets(self) -> None:
        """Not looked at here."""


class Replicas:
    """A broker without partitions; when its ISRs were looked at."""

    def __init__(self, sim: SimWorld) -> None:
        self.clock = sim.of("n1").clock
        self.partitions: dict[Any, Any] = {}
        self.flushers: dict[Any, Any] = {}
        self.logs = Logs()
        self.shrunk: list[float] = []

    def shrink_isrs(self) -> None:
        self.shrunk.append(self.clock.now())

    def unlink_due(self) -> None:
        """Not looked at here."""

    def sync_if_due(self, _partition: object) -> None:
        """Not looked at here."""


class Cared:
    """LogMaintenance at work, with a clock that begins at 0."""

    def __init__(self, sim: SimWorld, **settings: int) -> None:
        self.sim = sim
        self.replicas = Replicas(sim)
        self.live = LiveSettings(BrokerConfig(node_id=1, **settings), no_events)
        self.told: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        log_maintenance = LogMaintenance(
            self.replicas,  # type: ignore[arg-type] - what is used of it is there
            self.live,
            on_disk_failure=self.told.append,
            spawn=self._spawn,
        )
        self._spawn(log_maintenance.run(), "log-maintenance")

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.append(task)
        return task

    def alter(self, **settings: str) -> None:
        told = {name.replace("_", "."): text for name, text in settings.items()}
        self.live.on_image(MetadataImage(), replace(MetadataImage(), broker_configs={"": told}))


def run(body):
    """Run an async body in virtual time, in a world of its own."""
    with SimWorld(1) as sim:
        sim.of("n1")
        return sim.run(body(sim))


def test_a_pause_counts_from_the_end_of_a_turn_and_holds_up_no_other_work():
    """A disk that needs four seconds for a checkpoint of each five: ISRs are looked at every second all the same."""

    async def body(sim):
        cared = Cared(sim, replica_high_watermark_checkpoint_interval_ms=5000, replica_lag_time_max_ms=2000)
        cared.replicas.logs.takes_s = 4.0
        await asyncio.sleep(20.5)
        assert cared.replicas.logs.began == [5.0, 14.0]
        assert cared.replicas.shrunk == [float(second) for second in range(1, 21)]

    run(body)


def test_a_turn_that_is_cancelled_before_it_begins_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    """A broker that stops: a coroutine that nobody awaits is a warning, which ended a CI run."""
    spawn = Cared._spawn

    def cancelled(self: Cared, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = spawn(self, coroutine, name)
        if name == "hw-checkpoint":
            task.cancel()
        return task

    monkeypatch.setattr(Cared, "_spawn", cancelled)

    async def body(sim):
        cared = Cared(sim, replica_high_watermark_checkpoint_interval_ms=5000)
        await asyncio.sleep(6)
        assert cared.replicas.logs.began == []

    run(body)
    gc.collect()


def test_a_pause_is_as_long_as_the_setting_says_now():
    """KIP-226: shorter at once, from the last turn on; longer as well."""

    async def body(sim):
        cared = Cared(sim, replica_lag_time_max_ms=20_000)
        await asyncio.sleep(3.0)
        cared.alter(replica_lag_time_max_ms="8000")
        await asyncio.sleep(6.0)
        assert cared.replicas.shrunk == [4.0, 8.0]
        cared.alter(replica_lag_time_max_ms="40000")
        await asyncio.sleep(20.0)
        assert cared.replicas.shrunk == [4.0, 8.0, 28.0]

    run(body)


def test_a_disk_that_failed_is_told_once_and_left_alone():
    """The broker stops: there is nothing more to write."""

    async def body(sim):
        cared = Cared(sim, replica_high_watermark_checkpoint_interval_ms=1000)
        cared.replicas.logs.error = DiskFailed("it burns")
        await asyncio.sleep(5.0)
        assert (cared.told, cared.replicas.logs.began) == (["it burns"], [1.0])

    run(body)


def test_the_first_retention_check_does_not_wait_for_its_interval():
    """Kafka's comes 30 s after the start, and then every five minutes."""

    async def body(sim):
        looked: list[float] = []

        class Expiring(dict[Any, Any]):
            def values(self) -> Any:
                looked.append(sim.loop.now)
                return ()

        cared = Cared(sim, replica_high_watermark_checkpoint_interval_ms=10**9, log_retention_check_interval_ms=300_000)
        cared.replicas.partitions = Expiring()
        await asyncio.sleep(RETENTION_FIRST_S + 301.0)
        assert looked == [RETENTION_FIRST_S, RETENTION_FIRST_S + 300.0]

    run(body)


def test_a_log_that_is_always_appended_to_is_synced_every_flush_ms():
    """Kafka counts from the last flush. Counted from when it was last found synced, it was synced every second."""

    async def body(sim):
        synced_at: list[float] = []

        class Busy:
            """A log with one new record at each look."""

            failed, config = None, TopicConfig(flush_ms=10_000)
            synced_end, wants_sync, wants_checkpoint = 0, False, False
            log = property(lambda self: self)
            end_offset = property(lambda self: int(sim.loop.now * 10))

            def start(self) -> None:
                synced_at.append(sim.loop.now)
                self.synced_end = self.end_offset

        cared = Cared(sim)
        busy = Busy()
        cared.replicas.partitions = {"busy": busy}
        cared.replicas.flushers = {"busy": busy}
        await asyncio.sleep(60.5)
        gaps = [round(later - earlier) for earlier, later in pairwise(synced_at)]
        assert len(gaps) >= 4
        assert set(gaps) <= {10, 11}, gaps

    run(body)
