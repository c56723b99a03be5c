"""The real world of one broker or client: aiohttp, the operating system's files and clocks.

::

    async with real_world(config, data_dir="/var/lib/minikafka") as real:
        broker = Broker(config, real.world)
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from random import Random
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO, cast

from minikafka.broker.event_limiter import EventLimiter
from minikafka.config import BrokerConfig
from minikafka.config.listeners import OwnLogin
from minikafka.errors import DiskFailed
from minikafka.events import INFO
from minikafka.ports import Disk, World
from minikafka.security.principals import PrincipalMapping
from minikafka.web.gate import Gate
from minikafka.world.connections import ConnectionQuota, FreedMemory
from minikafka.world.events import AuditFile, EventLog, as_json, as_text
from minikafka.world.http import HttpNetwork
from minikafka.world.http_client import ClientLogin
from minikafka.world.http_server import Translate
from minikafka.world.instruments import Instruments, MachineFaults
from minikafka.world.link_faults import LinkEnd
from minikafka.world.os_disk import OsDisk
from minikafka.world.tls import ServerTls, reloaded_broker_context, server_contexts

if TYPE_CHECKING:
    from minikafka.world.http_connections import LoadDoors


class SystemClock:
    """The running loop's clock and the machine's calendar; build it inside the loop."""

    def __init__(self, faults: MachineFaults | None = None) -> None:
        self._faults = faults or MachineFaults()
        self.now: Callable[[], float] = asyncio.get_running_loop().time
        """Monotonic seconds (uvloop steps by a millisecond)."""
        self.ticks_ns: Callable[[], int] = time.perf_counter_ns
        """Monotonic nanoseconds for metrics."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000 + self._faults.calendar_ahead_ms


LEVEL_NAMES = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
"""The values of ``mk.log.level``."""


class NoDisk:
    """A client's disk: there is none, and touching it says so."""

    def __getattr__(self, name: str) -> NoReturn:
        raise DiskFailed(f"a client has no disk ({name})")


class RealWorld:
    """The ports of one incarnation, and what must be closed with them. Build it inside the loop."""

    def __init__(
        self,
        *,
        data_dir: str | None,
        network: HttpNetwork,
        events: EventLog,
        syncs: bool = True,
        faults: MachineFaults | None = None,
        file_mode: int = 0o600,
    ) -> None:
        self.network = network
        self.events = events
        self.disk = OsDisk(data_dir, syncs=syncs, faults=faults, file_mode=file_mode) if data_dir is not None else None
        self.world = World(
            clock=SystemClock(faults),
            network=network,
            disk=self.disk if self.disk is not None else cast("Disk", NoDisk()),
            events=events,
            random=Random(),
            entropy=secrets.token_bytes,
            offload=asyncio.to_thread,
        )

    async def close(self) -> None:
        """Close the servers and connections, then the disk, then the journal."""
        await self.network.close()
        if self.disk is not None:
            self.disk.close()
        self.events.close()

    async def kill(self) -> None:
        """As kill -9 would: nothing of this incarnation reaches a file or a peer any more. Cancel its tasks after."""
        if self.disk is not None:
            self.disk.fence()
        try:
            await self.network.abort()
        finally:
            self.events.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _basic(login: OwnLogin) -> str:
    return "Basic " + b64encode(f"{login.user}:{login.password}".encode()).decode()


def real_world(
    config: BrokerConfig | None = None,
    *,
    data_dir: str | None = None,
    load_doors: LoadDoors | None = None,
    translate: Translate | None = None,
    log_stream: TextIO | None = None,
    log_level: int | None = None,
    instruments: Instruments | None = None,
    syncs: bool = True,
    client_tls: SSLContext | None = None,
    client_login: ClientLogin | None = None,
) -> RealWorld:
    """The real world of a broker (``config``), or of a client (nothing). Call it inside the running loop.

    ``data_dir`` is the broker's ``log.dirs`` unless given. Events go to ``log_stream`` (default for a broker: stderr)
    from ``log_level`` on (default: ``mk.log.level``) and, all of them, to ``mk.journal.path``. ``instruments``
    let tests hurt and watch this broker. With ``client_tls`` a client connects with TLS, and with ``client_login`` it
    sends credentials.
    """
    level = log_level if log_level is not None else INFO if config is None else LEVEL_NAMES[config.log_level]
    if config is None:
        network = HttpNetwork(client_tls=None if client_tls is None else lambda: client_tls, client_login=client_login)
        return RealWorld(data_dir=data_dir, network=network, events=EventLog(stream=log_stream, level=level))
    contexts = server_contexts(config)
    calling = reloaded_broker_context(config) if config.brokers_use_tls else None
    mapping = PrincipalMapping(config.ssl_principal_mapping_rules)
    options: dict[str, Any] = {
        "gate": Gate.of(config),
        "request_max_bytes": config.socket_request_max_bytes,
        "queued_max_bytes": config.queued_max_request_bytes,
        "idle_timeout_s": config.connections_max_idle_ms / 1000,
        "client_id": f"broker-{config.node_id}",
    }
    events = EventLog(
        node=str(config.node_id),
        stream=log_stream if log_stream is not None else sys.stderr,
        level=level,
        render=as_json if config.log_format == "json" else as_text,
        journal_path=config.journal_path,
        file_mode=int(config.file_mode, 8),
    )
    if config.audit_path:
        audit = AuditFile(config.audit_path, str(config.node_id), events.attempt)
        events.observe(audit, only_counts=True)
        events.on_close.append(audit.close)
    clock = SystemClock(None)
    limiter = EventLimiter(events, clock.now)
    # The brokers' own listener has no name in contexts.
    main = config.inter_broker_listener.name
    options["tls"] = {
        "" if name == main else name: ServerTls(reloaded, mapping, limiter) for name, reloaded in contexts.items()
    }
    for reloaded in (*contexts.values(), *(() if calling is None else (calling,))):
        reloaded.events = events
    options["login_listeners"] = {"" if name == main else name for name in config.sasl_listeners}
    own = config.brokers_login
    options["client_login"] = None if own is None else partial(_basic, own)
    options["client_tls"] = None if calling is None else lambda: calling.context
    options["quota"] = ConnectionQuota(
        limit=config.max_connections,
        limit_per_ip=config.max_connections_per_ip,
        overrides=config.connection_overrides,
        by_listener={"" if name == main else name: each for name, each in config.connection_limits.items()},
        unauthenticated=config.unauthenticated_connections_max,
        unauthenticated_per_ip=config.unauthenticated_connections_per_ip_max,
        handshakes=config.tls_handshakes_max,
        events=limiter,
        on_closed=FreedMemory().connection_closed,
    )
    links = None
    if instruments is not None:
        node = str(config.node_id)
        events.observe(instruments.ring.observer(node))
        links = LinkEnd(instruments.faults, node, name_of=instruments.name_of, events=events)
    return RealWorld(
        data_dir=data_dir if data_dir is not None else config.log_dirs,
        network=HttpNetwork(load_doors=load_doors, translate=translate, links=links, **options),
        events=events,
        syncs=syncs,
        file_mode=int(config.file_mode, 8),
        faults=None if instruments is None else instruments.machine(str(config.node_id)),
    )
