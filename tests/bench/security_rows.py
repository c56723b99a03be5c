"""What security costs: brokers with TLS, an authorizer, quotas or logins beside brokers without, in turn (issue 18).

The yardstick of each row, *bare* in the table, is named in its note. Certificates are of curve P-256.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp

from minikafka import AdminClient, LocalCluster
from minikafka.blocking.tls import client_context
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.hosting.cluster_files import LOOPBACK, ClusterFiles, Ports, lay_out, write
from minikafka.hosting.processes import ProcessCluster
from minikafka.hosting.secured import (
    ADMIN,
    MECHANISM,
    PLAINTEXT,
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    WITH_SASL,
    ClusterSecurity,
    ClusterTls,
)
from minikafka.ports import Network
from minikafka.security.authorizer import AclIndex, Action, Authorizer, Caller
from minikafka.types import ANONYMOUS, Address, NodeId
from minikafka.wire.acls import Acl, AclOperation, PatternType, ResourceType
from minikafka.world.real import real_world
from tests.bench.arms import CONFIG, Ours
from tests.bench.latency_rows import two_rows
from tests.bench.loads import CONCURRENCY, SMALL_LANES, OneAtATime, Reading, SmallRequests, Writing
from tests.bench.measure import CpuMeter, Row, closed_loop, in_turn
from tests.bench.rows import BATCH_SIZES, KIB, batch_of, records_in, small_batch
from tests.rules.test_scram import Client

TOPIC = "s"
LITERAL_ACLS, PREFIXED_ACLS = 1000, 20
HUGE = 1e15
"""A quota that nobody reaches."""
HTTP_LANES = 8
USERS = {"alice": "the password of a bench"}


class Guarded(Ours):
    """A cluster whose topics are made at the listener of brokers, while records may go to that of clients."""

    def __init__(self, network: Network, running: ProcessCluster, security: ClusterSecurity, clients: str) -> None:
        super().__init__(network, running)
        self.security = security
        self.clients = clients
        """Of the listener of clients; that of brokers if there is no other one."""
        host, _, port = clients.partition(",")[0].rpartition(":")
        self.first = Address(host, int(port))

    def admin(self) -> AdminClient:
        return AdminClient(**self.security.native(self.running.bootstrap, ADMIN))


@contextlib.asynccontextmanager
async def guarded(
    brokers: int, protocol: str, settings: Mapping[str, str] | None = None, *, has_clients: bool = False
) -> AsyncIterator[Guarded]:
    """Broker processes. ``has_clients``: with a listener CLIENTS in plain text, which the authorizer checks."""
    with tempfile.TemporaryDirectory(prefix="minikafka-bench-") as name:
        folder, ports = Path(name), Ports()
        security = ClusterSecurity(protocol, {}, lambda: ClusterTls(folder / "certs"))
        own, clients = (
            {NodeId(node): Address(LOOPBACK, ports.take(0)) for node in range(1, brokers + 1)} for _ in range(2)
        )
        ports.release()
        config = {**CONFIG, "min.insync.replicas": str((brokers + 1) // 2), **(settings or {})}
        if has_clients:
            config["inter.broker.listener.name"] = "BROKERS"
        files: ClusterFiles = lay_out(
            folder,
            own,
            config=security.broker_settings(config),
            protocol=protocol,
            clients=clients if has_clients or protocol in WITH_SASL else None,
        )
        write(files)
        tls = None
        if security.certificates is not None:
            tls = client_context(
                cafile=str(security.certificates.ca), certfile=str(security.certificates.client(ADMIN))
            )
        async with ProcessCluster(data_dir=folder) as running, real_world(client_tls=tls) as real:
            arm = Guarded(
                real.network, running, security, files.clients_bootstrap if has_clients else running.bootstrap
            )
            if security.uses_sasl:
                arm.clients = files.clients_bootstrap
                async with arm.admin() as admin:
                    await security.add_users(admin)
            yield arm


def beside(rows: list[Row], bare: str) -> list[Row]:
    """The rows with their yardstick's name."""
    return [replace(row, note=f"bare: {bare}{row.note and '; '}{row.note}", same_work=False) for row in rows]


async def tls_rows(*, rounds: int, megabytes: int, count: int) -> list[Row]:
    """Throughput of one broker, and the latency of one record on three, with TLS on all connections and without."""
    size = BATCH_SIZES[-1]
    batch, rows = batch_of(size), []
    carried = megabytes * 1_000_000 // len(batch)
    async with guarded(1, SSL) as ours, guarded(1, PLAINTEXT) as bare:
        writes = [Writing(arm, batch, replicas=1, acks=1, count=carried) for arm in (ours, bare)]
        reads = [Reading(arm, "f", batch, records_in(size), count=carried) for arm in (ours, bare)]
        for each in reads:
            await each.fill()
        for name, arms in (("produce acks=1 RF 1,", writes), ("fetch", reads)):
            pair = await in_turn(*arms, rounds=rounds)
            cpu = " / ".join(f"{arm.cpu_ms_per_mb:.2f}" for arm in arms)
            label = f"{name} {size // KIB} KiB, c={CONCURRENCY}, TLS"
            note = f"broker's CPU {cpu} ms/MB"
            rows.append(Row(label, "MB/s", pair.ours, pair.bare, pair.ratio, 0.3, note=note))
    async with guarded(3, SSL) as ours, guarded(3, PLAINTEXT) as bare:
        record = batch_of(KIB + 16)
        lone = []
        for arm in (ours, bare):
            await arm.create("l", 3, 1)
            lone.append(OneAtATime(arm, "l", record, acks=-1, count=count))
        name = "acks=all RF 3, one 1 KiB record, c=1, TLS"
        rows += await two_rows(name, lone[0], lone[1], rounds=rounds, ceiling=1.8)
    return beside(rows, "plain text")


def acls() -> list[Acl]:
    """Many, of which one allows what is measured."""
    literal = [(f"t{number}", PatternType.LITERAL) for number in range(LITERAL_ACLS - 1)]
    prefixed = [(f"p{number}.", PatternType.PREFIXED) for number in range(PREFIXED_ACLS)]
    return [
        Acl(
            resource_type=ResourceType.TOPIC,
            resource_name=name,
            pattern_type=pattern,
            principal=ANONYMOUS,
            operation=AclOperation.WRITE,
        )
        for name, pattern in [*literal, *prefixed, (TOPIC, PatternType.LITERAL)]
    ]


async def access_rows(*, rounds: int, count: int) -> list[Row]:
    """Small requests with an authorizer and many ACLs, and with quotas that are not reached."""
    batch = small_batch(KIB)
    authorizer = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"}
    async with (
        guarded(1, PLAINTEXT, authorizer, has_clients=True) as checking,
        guarded(1, PLAINTEXT, has_clients=True) as limiting,
        guarded(1, PLAINTEXT, has_clients=True) as bare,
    ):
        async with checking.admin() as admin:
            await admin.create_acls(acls())
        async with limiting.admin() as admin:
            quotas = dict.fromkeys(("producer_byte_rate", "consumer_byte_rate", "request_percentage"), HUGE)
            await admin.alter_client_quotas({(("user", None),): quotas})
        loads = []
        for arm in (checking, limiting, bare):
            await arm.create(TOPIC, 1)
            loads.append(SmallRequests(arm, TOPIC, batch, acks=1, count=count))
        rows = []
        for what, load in zip(
            (f"{LITERAL_ACLS + PREFIXED_ACLS} ACLs", "quotas that are not reached"), loads[:2], strict=True
        ):
            pair = await in_turn(load, loads[2], rounds=rounds, warm_up=2)
            name = f"small requests, acks=1 RF 1, 1 KiB, c={SMALL_LANES}, {what}"
            note = f"broker's CPU {load.cpu_us:.0f} / {loads[2].cpu_us:.0f} µs a request"
            rows.append(Row(name, "requests/s", pair.ours, pair.bare, pair.ratio, 0.95, note=note))
    return beside(rows, "neither authorizer nor quotas")


# ---- logins ----------------------------------------------------------------------------------------------------------


class Logins:
    """Connections to a SASL_SSL listener, with the login and without, one after the other."""

    def __init__(self, arm: Guarded, count: int) -> None:
        assert arm.security.certificates is not None
        self._arm = arm
        self._context = client_context(cafile=str(arm.security.certificates.ca))
        self._password = arm.security.password(ADMIN)
        self._count = count
        host, _, port = arm.clients.rpartition(":")
        self._address = Address(host, int(port))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._address, ssl=self._context)

    async def login(self) -> None:
        reader, writer = await self.connect()
        client = Client(ADMIN, self._password, "sha512")
        await _asked(reader, writer, 17, 1, struct.pack(">h", len(MECHANISM)) + MECHANISM.encode())
        challenge = await _authenticate(reader, writer, client.first())
        await _authenticate(reader, writer, client.final(challenge))
        await _close(writer)

    async def only_connect(self) -> None:
        _, writer = await self.connect()
        await _close(writer)

    def cpu_of(self, step: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[float]]:
        """Measures the broker's CPU of one step in µs."""

        async def measured() -> float:
            meter = CpuMeter(self._arm.pids)
            await closed_loop(lambda _: step(), count=self._count, concurrency=1)
            return meter.lap() * 1e6 / self._count

        return measured


async def _asked(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: int, version: int, message: bytes
) -> bytes:
    """The body of the answer to a request."""
    frame = struct.pack(">hhih", key, version, 1, -1) + message
    writer.write(struct.pack(">i", len(frame)) + frame)
    size = int.from_bytes(await reader.readexactly(4), "big")
    return (await reader.readexactly(size))[4:]


async def _authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> bytes:
    """The server's answer to a token. RuntimeError for a refusal."""
    answer = await _asked(reader, writer, 36, 0, struct.pack(">i", len(token)) + token)
    code, size = struct.unpack_from(">hh", answer)
    if code:
        raise RuntimeError(f"the login failed: {answer!r}")
    at = 4 + max(size, 0)
    return answer[at + 4 : at + 4 + int.from_bytes(answer[at : at + 4], "big")]


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()


async def login_rows(*, rounds: int, logins: int, requests: int) -> list[Row]:
    """The broker's CPU of a SCRAM login over TLS, and requests with HTTP Basic whose password is remembered."""
    rows = []
    async with guarded(1, SASL_SSL) as arm:
        measured = Logins(arm, logins)
        pair = await in_turn(
            measured.cpu_of(measured.login), measured.cpu_of(measured.only_connect), rounds=rounds, warm_up=2
        )
        name = f"broker's CPU of a TLS connection with a {MECHANISM} login"
        rows += beside(
            [Row(name, "µs", pair.ours, pair.bare, pair.ratio, 2.0, at_least=False)], "the TLS connection alone"
        )
    async with guarded(1, SASL_PLAINTEXT) as arm, aiohttp.ClientSession() as session:
        text = base64.b64encode(f"{ADMIN}:{arm.security.password(ADMIN)}".encode()).decode()

        def asking(address: str, headers: Mapping[str, str]) -> Callable[[], Awaitable[float]]:
            async def one(_: int) -> None:
                async with session.get(f"http://{address}/v1/whoami", headers=headers) as answer:
                    answer.raise_for_status()
                    await answer.read()

            async def run() -> float:
                return (await closed_loop(one, count=requests, concurrency=HTTP_LANES)).per_second

            return run

        basic = asking(arm.clients, {"Authorization": f"Basic {text}"})
        pair = await in_turn(basic, asking(arm.running.bootstrap, {}), rounds=rounds, warm_up=2)
        name = f"GET /v1/whoami with HTTP Basic, c={HTTP_LANES}"
        row = Row(name, "requests/s", pair.ours, pair.bare, pair.ratio, 0.9)
        rows += beside([row], "without credentials, at the listener of brokers")
    return rows


async def decision_rows(*, rounds: int) -> list[Row]:
    """One decision of the authorizer, for an action that it has not decided before and for one that it has."""
    caller, authorizer = Caller(ANONYMOUS, LOOPBACK), Authorizer()
    actions = [Action(AclOperation.WRITE, ResourceType.TOPIC, f"t{number}") for number in range(LITERAL_ACLS - 1)]
    index = AclIndex()

    async def decide() -> float:
        began = time.perf_counter()
        for action in actions:
            authorizer.authorize(index, caller, action)
        return (time.perf_counter() - began) * 1e6 / len(actions)

    async def first_time() -> float:
        nonlocal index
        index = AclIndex(acls())
        return await decide()

    pair = await in_turn(first_time, decide, rounds=4 * rounds, warm_up=2)
    name = f"a decision of the authorizer, {LITERAL_ACLS + PREFIXED_ACLS} ACLs"
    row = Row(name, "µs", pair.ours, pair.bare, pair.ratio, at_least=False, note="5 and 0.5 µs at most are the aims")
    return beside([row], "the same decision again")


async def start_rows(*, rounds: int) -> list[Row]:
    """Three brokers in the caller's process, as a test has them; certificates are made once."""

    async def start(protocol: str) -> float:
        cluster = LocalCluster(3, security_protocol=protocol, users=USERS if protocol == SASL_SSL else None)
        began = time.perf_counter()
        await asyncio.to_thread(cluster.start)
        spent = time.perf_counter() - began
        await asyncio.to_thread(cluster.stop)
        return spent * 1000

    pair = await in_turn(lambda: start(SASL_SSL), lambda: start(PLAINTEXT), rounds=2 * rounds, warm_up=2)
    name = "start of 3 brokers in a test's process, TLS, authorizer and a user"
    return beside([Row(name, "ms", pair.ours, pair.bare, pair.ratio, 1.5, at_least=False)], "without security")


async def security_rows(*, rounds: int, megabytes: int, count: int) -> list[Row]:
    """All of them."""
    rows = await tls_rows(rounds=rounds, megabytes=megabytes, count=count)
    rows += await access_rows(rounds=2 * rounds, count=10 * count)
    rows += await login_rows(rounds=rounds, logins=count, requests=4 * count)
    return rows + await decision_rows(rounds=rounds) + await start_rows(rounds=rounds)
