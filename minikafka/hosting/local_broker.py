"""One broker in the real world, with everything that hangs on its port: what ``serve`` runs, and LocalCluster thrice.

Rules for this file: it puts parts together and takes them apart in order, and decides nothing. Build it inside the
loop.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

from minikafka.broker.broker import Broker
from minikafka.broker.meters import EventCounts, Histogram, ProcessGauges
from minikafka.config import BrokerConfig
from minikafka.errors import InvalidConfig
from minikafka.ports import Events
from minikafka.rest.json_text import json_rpc
from minikafka.tasks import in_turn
from minikafka.types import Address, NodeId
from minikafka.wire.garbage import without_collection
from minikafka.wire.messages import RunTestHookRequest, RunTestHookResponse
from minikafka.world.instruments import Instruments, Lives, seeded_faults
from minikafka.world.real import LEVEL_NAMES, real_world

if TYPE_CHECKING:
    from aiohttp import web

    from minikafka.rest.metrics import MetricsDoor
    from minikafka.rest.routes import Doors
    from minikafka.security.oauth import Tokens
    from minikafka.world.http_connections import Doors as MountDoors
    from minikafka.world.jwks import JwksReader


# Four times a second: a stall of the length of a heartbeat is seen, and nobody notices the watching.
INTERVAL_S = 0.25


HISTORY_INTERVAL_S = 1.0


class LoopLag:
    """Watches the running loop from :meth:`start` to :meth:`stop`."""

    def __init__(self) -> None:
        self.seen = Histogram()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the running loop."""
        self._watch(asyncio.get_running_loop())

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + INTERVAL_S
        self._timer = loop.call_at(due, self._on_time, loop, due)

    def _on_time(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.seen.observe(max(0, round((loop.time() - due) * 1e9)))
        self._watch(loop)


class LocalBroker:
    """A broker and its world; :meth:`start` once, then :meth:`stop` or :meth:`kill`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        log_stream: TextIO | None = None,
        log_level: int | None = None,
        instruments: Instruments | None = None,
        syncs: bool = True,
        origins: Mapping[str, str] | None = None,
        lives: Lives | None = None,
    ) -> None:
        """``instruments``: those of all brokers in this process. None: its own, where the settings ask for them.
        ``syncs`` False is for a data directory that is thrown away with the process.
        ``origins``: where each setting that was given came from. ``lives``: what tests end it with, where it has
        instruments of its own.
        """
        self.config = config
        if instruments is None and config.testing_endpoints_enable:
            instruments = Instruments(self._addresses, self._running, seeded_faults(config), lives=lives)
        self._instruments = instruments
        self._doors: tuple[Doors, MetricsDoor] | None = None
        """Once a client has connected to one."""
        self._loop_lag = LoopLag()
        self._history_timer: asyncio.TimerHandle | None = None
        self._real = real_world(
            config,
            load_doors=self._load_doors,
            translate=json_rpc,
            log_stream=log_stream,
            log_level=log_level,
            instruments=instruments,
            syncs=syncs,
        )
        self._event_counts = EventCounts(self._real.events.unheard)
        self._real.events.observe(self._event_counts, only_counts=True)
        self._jwks: JwksReader | None = None
        tokens = None
        if config.uses_tokens:
            tokens, self._jwks = token_verifier(config, self._real.world.events)
        self.broker = Broker(config, self._real.world, origins=origins, tokens=tokens)
        self._real.network.logins = self.broker.http_login
        self.broker.throttle.on_index = self._real.network.quota.rates.use
        if instruments is not None and config.testing_endpoints_enable:
            self.broker.test_hooks = partial(self._run_test_hook, instruments)
        if instruments is not None:
            self._real.events.observe(self._remember_fault, only_counts=True)
        if log_level is None:
            self.broker.settings.subscribe(self._set_log_level)

    @property
    def events(self) -> Events:
        return self._real.world.events

    @property
    def address(self) -> Address:
        """Where it listens; port 0 is resolved."""
        return self.broker.address

    @property
    def failure(self) -> str | None:
        """Why it stopped by itself; None when it did not."""
        return self.broker.failure

    def _set_log_level(self, settings: BrokerConfig) -> None:
        """``mk.log.level`` can be set at run time."""
        self._real.events.level = LEVEL_NAMES[settings.log_level]

    def _remember_fault(self, kind: str, facts: Mapping[str, object]) -> None:
        """Faults of links are reported below the broker."""
        if kind in ("fault_set", "fault_over"):
            self.broker.partition_history.remember(kind, facts)

    async def _run_test_hook(self, instruments: Instruments, request: RunTestHookRequest) -> RunTestHookResponse:
        from minikafka.rest.routes import TESTING_ROUTES  # noqa: PLC0415 - see load_doors
        from minikafka.rest.testing_hooks import serve_forwarded  # noqa: PLC0415 - as above

        return await serve_forwarded(self.broker, instruments, TESTING_ROUTES, request)

    def _addresses(self) -> Mapping[NodeId, Address]:
        """Where the cluster's brokers listen, by the settings and, once there is any, the metadata."""
        known = self.broker.image.brokers if self.broker.is_open else {}
        return {**self.config.voters, **{node: each.address for node, each in known.items()}}

    def _running(self) -> Mapping[NodeId, Broker]:
        return {self.broker.node_id: self.broker} if self.broker.is_open else {}

    async def start(self) -> None:
        """Serve; DiskFailed, InvalidConfig, OSError when it cannot."""
        if self._jwks is not None:
            await self._jwks.start()
        await self.broker.start()
        for door in self._doors or ():
            door.open_to(self.broker)
        self._loop_lag.start()
        if self.broker.history.is_on:
            self._sample_history(asyncio.get_running_loop())

    def _sample_history(self, loop: asyncio.AbstractEventLoop) -> None:
        self._history_timer = loop.call_later(HISTORY_INTERVAL_S, self._sample_history, loop)
        self.broker.sample_history()

    def _stop_watching(self) -> None:
        self._loop_lag.stop()
        if self._history_timer is not None:
            self._history_timer.cancel()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when it takes part in the cluster; BrokerNotAvailable says what is missing."""
        await self.broker.wait_ready(timeout_s)

    async def wait_stopped(self) -> None:
        """Return when it has stopped, for whatever reason."""
        await self.broker.wait_stopped()

    def hurry(self) -> None:
        """Stop without waiting for leaders to move: no controller will answer, for the cluster goes down as a whole."""
        self.broker.hurry()

    async def stop(self) -> None:
        """Controlled shutdown: leaders move, all is flushed, the clean-shutdown marker is written."""
        try:
            await self.broker.stop()
        except BaseException:
            await self.kill()  # nothing of it stays
            raise
        for door in self._doors or ():
            door.close()
        self._stop_watching()
        if self._jwks is not None:
            await self._jwks.close()
        await self._real.close()

    async def kill(self) -> None:
        """As kill -9: first nothing reaches a file or a peer any more, then its tasks end.

        It goes on if the caller is cancelled: a broker that was half killed would keep its port, with nobody to end it.
        """
        self._stop_watching()
        jwks = () if self._jwks is None else (self._jwks.close,)
        await in_turn(*jwks, self._real.kill, partial(asyncio.sleep, 0), self.broker.abandon)

    # ---- the doors on its port ---------------------------------------------------------------------------------------

    def _load_doors(self) -> MountDoors:
        """The server calls this on a thread when the first request for a door comes."""
        with without_collection():
            load_doors()
        return self._mount

    def _mount(self, application: web.Application) -> None:
        make_metrics, make_doors = load_doors()
        metrics = make_metrics(self._gauges, self._event_counts)
        doors = make_doors(self._instruments, metrics.text, self._real.network.connections)
        doors(application)
        self._doors = doors, metrics
        if self.broker.is_open:
            for door in self._doors:
                door.open_to(self.broker)

    def _gauges(self) -> ProcessGauges:
        servers = self._real.network.servers
        faults = self._instruments.faults.active.values() if self._instruments is not None else ()
        return ProcessGauges(
            active_faults=sum(fault.is_active for fault in faults),
            connections=sum(server.connection_count for server in servers),
            refused_connections=self._real.network.quota.refused,
            queued_bytes=sum(server.queued_bytes for server in servers),
            free_bytes=free_bytes(self.config.log_dirs),
            loop_lag=self._loop_lag.seen,
        )


def free_bytes(folder: str) -> int:
    """Free bytes of the file system; -1 if the disk does not say, for a scrape must not fail with the disk."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1


def token_verifier(config: BrokerConfig, events: Events) -> tuple[Tokens, JwksReader]:
    """What verifies tokens as the settings say, and what reads its keys. Raises InvalidConfig without PyJWT."""
    if find_spec("jwt") is None:
        raise InvalidConfig(
            "sasl.enabled.mechanisms has OAUTHBEARER, which needs the package PyJWT: pip install pyjwt",
            setting="sasl.enabled.mechanisms",
        )
    from minikafka.security.oauth import TokenRules, Tokens  # noqa: PLC0415 - most brokers do without
    from minikafka.world.jwks import JwksReader  # noqa: PLC0415 - as above

    audiences = config.sasl_oauthbearer_expected_audience.split(",")
    tokens = Tokens(
        TokenRules(
            issuer=config.sasl_oauthbearer_expected_issuer,
            audiences=frozenset(filter(None, map(str.strip, audiences))),
            subject_claim=config.sasl_oauthbearer_sub_claim_name,
            skew_s=config.sasl_oauthbearer_clock_skew_seconds,
            prefix=config.oauth_principal_prefix,
        )
    )
    return tokens, JwksReader(config, tokens, events)


def load_doors() -> tuple[type[MetricsDoor], type[Doors]]:
    """Import the doors' code, which is large, and which a broker without visitors never needs."""
    from minikafka.rest.metrics import MetricsDoor  # noqa: PLC0415
    from minikafka.rest.routes import Doors  # noqa: PLC0415

    return MetricsDoor, Doors
