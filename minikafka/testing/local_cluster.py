"""A whole cluster inside the caller's process: real TCP on loopback, real files, one background thread for all brokers.

For tests and for trying things out::

    with LocalCluster(brokers=3) as cluster:
        ...                                  # clients: bootstrap_servers=cluster.bootstrap
        cluster.kill(1)                      # as kill -9
        cluster.restart(1)

Rules for this file: brokers run on a thread of their own, so that a blocking caller does not stall them; every public
method may be called from any thread but that one. A process cannot be paused in part: for SIGSTOP see ProcessCluster.
A child that is forked from the process (multiprocessing's ``fork``) has none of it: there these methods raise
BrokerNotAvailable, and ``stop`` does nothing. The child has copies of all descriptors of its parent. With them the port
of a broker that was killed would still accept connections, its open connections would not end, and its data directory
and port would stay locked, for as long as the child lives. So it gives them up (:func:`_give_up`). The brokers' thread
is not copied, so nothing in the child uses them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import socket
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO, TypeVar

import uvloop

from minikafka.broker.broker import Broker
from minikafka.errors import BrokerNotAvailable, InvalidConfig, did_you_mean
from minikafka.events import WARNING
from minikafka.hosting.cluster_files import BrokerFiles, ClusterFiles, Ports, TemporaryFolder, prepare
from minikafka.hosting.local_broker import LocalBroker
from minikafka.hosting.secured import ADMIN, MECHANISM, PLAINTEXT, SSL, WITH_TLS, ClusterSecurity, ClusterTls
from minikafka.invariant import invariant
from minikafka.tasks import in_turn, until_ended
from minikafka.testing.hands import ClusterEvents, ClusterFaults, ClusterWaits, FaultHandle
from minikafka.types import NodeId
from minikafka.world.instruments import Instruments, Lives, seeded_faults
from minikafka.world.system import allow_descriptors, open_descriptors

if TYPE_CHECKING:
    from minikafka.testing.sync import SyncCluster

Result = TypeVar("Result")

READY_TIMEOUT_S = 60.0


class LocalCluster:
    """``brokers`` brokers in this process. Use it as a context manager (``with`` or ``async with``), or start and stop.

    ``data_dir`` None: a temporary one (``cluster_files.py``), removed by ``stop``; nothing in it is synced to disk.
    ``config`` has settings by Kafka's names for every broker. ``log_stream`` gets the brokers' warnings; None: nobody.
    ``security_protocol`` is Kafka's word for how clients connect: ``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT`` or
    ``SASL_SSL``. With TLS every connection uses it, also between brokers, with certificates that the cluster makes
    (:attr:`certificates`). With SASL an authorizer checks every client; the super user ``admin`` and ``users``
    (passwords by name) can log in with every mechanism. ``tls=True`` is short for ``security_protocol="SSL"``.
    """

    def __init__(
        self,
        brokers: int | None = None,
        data_dir: str | Path | None = None,
        config: Mapping[str, str] | None = None,
        *,
        log_stream: TextIO | None = None,
        security_protocol: str = "",
        users: Mapping[str, str] | None = None,
        tls: bool = False,
    ) -> None:
        _check_types(data_dir, config=config, users=users)
        self._temporary = TemporaryFolder() if data_dir is None else None
        self._ports = Ports()
        self.data_dir = self._temporary.path if self._temporary is not None else Path(data_dir or ".")
        self._log_stream = log_stream
        self._nodes: dict[NodeId, LocalBroker] = {}
        self._starting: dict[NodeId, asyncio.Task[Any] | None] = {}
        self._ending: dict[NodeId, asyncio.Event] = {}
        """Brokers that are being stopped or killed: they hold their port and their files until that is done."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sync: SyncCluster | None = None
        self._callers: dict[asyncio.Task[Any], None] = {}
        """What other threads and loops wait for."""
        self._ends = False
        self._is_of_parent = False
        """This process was forked from that of the brokers."""
        try:
            protocol = security_protocol or (SSL if tls else PLAINTEXT)
            if tls and protocol not in WITH_TLS:
                raise InvalidConfig(f"tls=True contradicts security_protocol={protocol!r}: leave one of them out")
            self._security = ClusterSecurity(protocol, users or {}, self._certificates)
            self.certificates: ClusterTls | None = self._security.certificates
            """Of a cluster with TLS: its CA, and certificates for clients."""
            settings = self._security.broker_settings(config or {})
            self.files: ClusterFiles = prepare(
                self.data_dir, self._ports, brokers=brokers, config=settings, protocol=protocol
            )
        except BaseException:
            self._clean_up()
            raise
        self.instruments = Instruments(
            lambda: {each.node_id: each.address for each in self.files.brokers},
            lambda: {node: each.broker for node, each in self._nodes.items() if each.broker.is_open},
            seeded_faults(self.files.brokers[0].config()),
            lives=Lives(lambda: self.node_ids, self._terminate, self._kill, self._restart),
        )
        self.faults: ClusterFaults[FaultHandle] = ClusterFaults(self, FaultHandle)
        """Cut, drop, delay, hold, duplicate and reorder what travels between brokers and clients."""
        self.wait = ClusterWaits(self)
        """Await a leader, an ISR, an offset."""
        self.events = ClusterEvents(self)
        """The brokers' events."""
        _owned_here().add(self)

    # ---- for callers -------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the listeners of clients of all brokers, with commas."""
        return self.files.clients_bootstrap

    @property
    def bootstrap_servers(self) -> str:
        """The same, as Kafka's clients name it: ``bootstrap.servers`` for every client, also for those of Kafka."""
        return self.bootstrap

    def client_settings(self, name: str = ADMIN) -> dict[str, str]:
        """Return the parameters with which minikafka's own clients connect: ``Producer(**cluster.client_settings())``.

        They do not log in: they call the listener of brokers. There a certificate makes the client the same
        principal that SASL does; under ``SASL_PLAINTEXT`` they may do everything.

        Args:
            name: Of a cluster with TLS: the client's certificate is for ``CN=name``. The default is a super user, if
                there is an authorizer.
        """
        return self._security.native(self.files.bootstrap, name)

    def confluent_config(self, name: str = ADMIN, mechanism: str = MECHANISM) -> dict[str, str]:
        """Return the configuration of librdkafka's clients: ``confluent_kafka.Producer(cluster.confluent_config())``.

        Args:
            name: The user who logs in, or the owner of the certificate. The default is a super user.
            mechanism: ``SCRAM-SHA-512``, ``SCRAM-SHA-256`` or ``PLAIN``; of a cluster with SASL.

        Raises:
            InvalidConfig: The cluster has no such user.
        """
        return self._security.librdkafka(self.bootstrap, name, mechanism)

    def java_config(self, name: str = ADMIN, mechanism: str = MECHANISM) -> dict[str, str]:
        """Return the properties of Java's clients and of Kafka's tools; arguments as for :meth:`confluent_config`."""
        return self._security.java(self.bootstrap, name, mechanism)

    def aiokafka_config(self, name: str = ADMIN, mechanism: str = MECHANISM) -> dict[str, Any]:
        """Return the parameters of aiokafka's clients; arguments as for :meth:`confluent_config`."""
        return self._security.aiokafka(self.bootstrap, name, mechanism)

    async def allow(
        self, name: str, *operations: str, topic: str = "", group: str = "", transactional_id: str = ""
    ) -> None:
        """Create ACLs and wait until every broker uses them: ``await cluster.allow("shop", "Write", topic="orders")``.

        Args:
            name: The user, or the owner of the certificate ``CN=name``.
            operations: Kafka's names, such as ``Read``; none: ``All``.
            topic: The name of a topic; ``*``: all.
            group: The name of a consumer group, likewise.
            transactional_id: A transactional id, likewise.

        Raises:
            InvalidRequest: An operation is unknown, or no resource is named.
            SecurityDisabled: The cluster has no authorizer.
        """
        from minikafka.world.clients import AdminClient  # noqa: PLC0415 - as for `sync`

        acls = self._security.acls(name, operations, topic=topic, group=group, transactional_id=transactional_id)
        async with AdminClient(**self.client_settings()) as admin:
            await admin.create_acls(acls)

    def __repr__(self) -> str:
        running = [each for each in self.node_ids if each in self._nodes]
        state = f"{len(running)} of {len(self.node_ids)} brokers running" if self.is_running else "not running"
        return f"<LocalCluster {self.bootstrap}, {state}>"

    @property
    def is_running(self) -> bool:
        """Return True if the cluster is started and not stopped; brokers may be down."""
        return self._loop is not None

    @property
    def node_ids(self) -> tuple[NodeId, ...]:
        """All brokers of the cluster, running or not."""
        return tuple(files.node_id for files in self.files.brokers)

    def broker(self, node: NodeId) -> Broker:
        """The running broker; look at it only from inside :meth:`run`. BrokerNotAvailable when it is down."""
        if node not in self._nodes:
            if node not in self.node_ids:
                brokers = ", ".join(map(str, self.node_ids))
                raise BrokerNotAvailable(f"there is no broker {node!r}, only {brokers}")
            raise BrokerNotAvailable(f"broker {node} is not running")
        return self._nodes[node].broker

    def folder(self, node: NodeId) -> Path:
        """The broker's data directory."""
        return self._files_of(node).folder

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]], timeout_s: float | None = None) -> Result:
        """Run a coroutine on the brokers' loop and return its result; TimeoutError after ``timeout_s``."""
        future = self._begun(work)
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            if not self._ends:
                raise
            raise BrokerNotAvailable("the cluster was stopped meanwhile") from None
        except BaseException:  # its time is up, or Ctrl-C was pressed here
            future.cancel()
            raise

    async def on_loop(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """As :meth:`run`, for coroutines of any other loop, or of the brokers' own."""
        future = self._begun(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            mine = asyncio.current_task()
            if self._ends and (mine is None or not mine.cancelling()):
                raise BrokerNotAvailable("the cluster was stopped meanwhile") from None
            raise

    def _begun(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> concurrent.futures.Future[Result]:
        self._check_owner()
        if self._loop is None:
            raise BrokerNotAvailable("the cluster is not started")

        async def owned() -> Result:
            task = asyncio.current_task()
            invariant(task is not None, "a coroutine of a loop without a task")
            self._callers[task] = None  # type: ignore[index]  # the invariant above
            try:
                return await work()
            finally:
                del self._callers[task]  # type: ignore[arg-type]  # as above

        return asyncio.run_coroutine_threadsafe(owned(), self._loop)

    def at_once(self, work: Callable[[], Result]) -> Result:
        """Call a function on the brokers' loop and return its result; here, when the cluster is not started."""
        self._check_owner()
        if self._loop is None or threading.current_thread() is self._thread:
            return work()

        async def called() -> Result:
            return work()

        return self.run(called)

    if not TYPE_CHECKING:  # For type checkers a misspelled name is an error.

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError for a name that does not exist, with the one that was meant."""
            raise AttributeError(f"a LocalCluster has no {name!r}{_meant(name)}")

    @property
    def sync(self) -> SyncCluster:
        """The same cluster for tests without a loop, with a producer and a consumer."""
        if self._sync is None:
            # Clients are a quarter of all that there is to import: for those who use them from here.
            from minikafka.testing.sync import SyncCluster  # noqa: PLC0415

            self._sync = SyncCluster(self)
        return self._sync

    async def create_topic(
        self, topic: str, partitions: int = 1, *, replicas: int | None = None, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic (``replicas`` None: three, or one on each broker) and wait until it has leaders."""
        from minikafka.client.structs import NewTopic  # noqa: PLC0415 - as for `sync`
        from minikafka.world.clients import AdminClient  # noqa: PLC0415

        count = replicas if replicas is not None else min(3, len(self.files.brokers))
        async with AdminClient(**self.client_settings()) as admin:
            await admin.create_topics([NewTopic(topic, partitions, count, topic_configs=dict(config or {}))])

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start all brokers and wait until each is ready. When one is not, all are stopped again."""
        self._check_owner()
        if self._thread is not None:
            return
        if self._ends:
            self._begin_again()
        allow_descriptors()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="minikafka-brokers", daemon=True)
        self._thread.start()
        try:
            self.run(lambda: self._start(self.files.brokers, timeout_s))
            if self._security.uses_sasl:
                self.run(self._add_users)
        except BaseException:
            self.stop()
            raise

    def _begin_again(self) -> None:
        """After :meth:`stop`: its ports were let go, and may belong to another process now. InvalidConfig."""
        if self._temporary is not None:
            raise InvalidConfig("the files of this temporary cluster are gone: make a new one, or give it a data_dir")
        self.files = prepare(self.data_dir, self._ports, config={})
        self._sync = None
        self._ends = False
        _owned_here().add(self)

    def stop(self) -> None:
        """Controlled shutdown of every broker; then the thread ends and temporary files go.

        Calls that still wait for the cluster get BrokerNotAvailable.
        """
        self._ends = True
        if self._thread is None or self._loop is None:
            self._clean_up()
            return
        try:
            self.run(self._stop)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._thread = self._loop = None
            self._clean_up()

    def kill(self, node: NodeId) -> None:
        """As kill -9: from one moment on it writes nothing to disk and answers nobody; then its tasks end."""
        self.run(lambda: self._kill(node))

    def terminate(self, node: NodeId) -> None:
        """A controlled shutdown of one broker."""
        self.run(lambda: self._terminate(node))

    def restart(self, node: NodeId, *more: NodeId, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start brokers that are down, on their ports and their files, and wait until they are ready.

        A broker is ready only while a majority runs: start those that a majority needs together, in one call.
        """
        self.run(lambda: self._restart(node, *more, timeout_s=timeout_s))

    def make_whole(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Heal all faults, of machines too, restart brokers that are down or stopped by themselves, and wait until all
        are alive.
        """
        self.at_once(self.instruments.heal_machines)
        up = [node for node, each in self._nodes.items() if each.broker.is_open and each.failure is None]
        if self.faults.heal() == 0 and len(up) == len(self.node_ids):
            return
        down = [node for node in self.node_ids if node not in up]
        for node in down:
            if node in self._nodes:
                self.kill(node)
        if down:
            self.restart(*down, timeout_s=timeout_s)
        self.sync.wait.alive(*self.node_ids, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Its thread goes on: nobody else would stop these brokers.
            await in_turn(partial(until_ended, [starting]), partial(asyncio.to_thread, self.stop))
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    # ---- on the brokers' loop ----------------------------------------------------------------------------------------

    async def _start(self, files: tuple[BrokerFiles, ...], timeout_s: float) -> None:
        for each in files:
            node = LocalBroker(
                each.config(),
                log_stream=self._log_stream or _NOBODY,
                log_level=WARNING,
                instruments=self.instruments,
                syncs=self._temporary is None,
            )
            try:
                await node.start()
            except BaseException:
                await node.kill()
                raise
            self._nodes[each.node_id] = node
        if len(files) == len(self.files.brokers):
            # All are there: nobody need wait, as the members of a cluster that starts piece by piece must.
            self._nodes[files[0].node_id].broker.quorum.stand_now()
        for each in files:
            await self._nodes[each.node_id].wait_ready(timeout_s)

    async def _add_users(self) -> None:
        """Their SCRAM credentials; those of PLAIN are in the settings."""
        from minikafka.world.clients import AdminClient  # noqa: PLC0415 - as for `sync`

        async with AdminClient(**self.client_settings()) as admin:
            await self._security.add_users(admin)

    async def _kill(self, node: NodeId) -> None:
        await self._end(node, LocalBroker.kill)

    async def _terminate(self, node: NodeId) -> None:
        await self._end(node, LocalBroker.stop)

    async def _end(self, node: NodeId, how: Callable[[LocalBroker], Coroutine[Any, Any, None]]) -> None:
        self.broker(node)
        ended = self._ending[node] = asyncio.Event()
        try:
            await how(self._nodes.pop(node))
        finally:
            ended.set()
            del self._ending[node]

    async def _restart(self, *nodes: NodeId, timeout_s: float = READY_TIMEOUT_S) -> None:
        task = asyncio.current_task()
        starting = dict.fromkeys(nodes, task)
        files = tuple(map(self._files_of, starting))
        for node in starting:
            if node in self._nodes or node in self._starting:
                raise BrokerNotAvailable(f"broker {node} is running: kill or terminate it first")
        if self._ends:
            raise BrokerNotAvailable("the cluster is being stopped")
        self._starting.update(starting)
        try:
            for node in starting:
                if node in self._ending:
                    await self._ending[node].wait()
            await self._start(files, timeout_s)
        finally:
            for node in starting:
                del self._starting[node]

    async def _stop(self) -> None:
        """All at once. Those that are left when no quorum is possible any more do not wait for a controller; nor does
        anybody whose files are thrown away: nobody will miss a leader.
        """
        self.instruments.faults.clear()
        # Brokers are also started and ended over HTTP, by tasks that are no caller's.
        tasks = dict.fromkeys((*self._callers, *self._starting.values()))
        waiting = [task for task in tasks if task is not None and task is not asyncio.current_task()]
        for task in waiting:
            task.cancel()
        await until_ended(waiting)
        for being_ended in list(self._ending.values()):
            await being_ended.wait()
        if self._sync is not None:
            await self._sync.close()
        nodes, self._nodes = dict(self._nodes), {}
        ending = {asyncio.ensure_future(node.stop()) for node in nodes.values()}
        ended: list[asyncio.Task[None]] = []
        while ending:
            if 2 * len(ending) <= len(self.files.brokers) or self._temporary is not None:
                for node in nodes.values():
                    node.hurry()
            done, ending = await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
            ended += done
        for task in ended:
            task.result()

    # ---- in a forked child -------------------------------------------------------------------------------------------

    def leave_to_parent(self) -> None:
        """Give up, in a child, all that belongs to the brokers: they run in the process that it was forked from."""
        self._is_of_parent = True
        self._thread = self._loop = None
        _give_up(self._ports.held, self.data_dir.resolve())
        self._ports.release()

    def _check_owner(self) -> None:
        if self._is_of_parent:
            raise BrokerNotAvailable(
                "the brokers run in the process that this one was forked from; use a client with "
                f"bootstrap.servers={self.bootstrap} here, or another LocalCluster"
            )

    # ---- files -------------------------------------------------------------------------------------------------------

    def _files_of(self, node: NodeId) -> BrokerFiles:
        for files in self.files.brokers:
            if files.node_id == node:
                return files
        raise BrokerNotAvailable(f"this cluster has no broker {node}, only {', '.join(map(str, self.node_ids))}")

    def _certificates(self) -> ClusterTls:
        """Those of this process, which all temporary clusters share, or those beside the files of the cluster."""
        return _certificates_of_process() if self._temporary is not None else ClusterTls(self.data_dir / "certs")

    def _clean_up(self) -> None:
        _owned_here().discard(self)
        self._ports.release()
        if self._temporary is not None:
            self._temporary.remove()


@functools.cache
def _owned_here() -> weakref.WeakSet[LocalCluster]:
    """Return the clusters that hold ports and files in this process."""
    owned: weakref.WeakSet[LocalCluster] = weakref.WeakSet()

    def leave_to_parent() -> None:
        for cluster in list(owned):
            cluster.leave_to_parent()
        owned.clear()

    os.register_at_fork(after_in_child=leave_to_parent)
    return owned


def _check_types(data_dir: str | Path | None, **dictionaries: object) -> None:
    """Raise InvalidConfig, with a sentence, for arguments that later calls would misunderstand."""
    if data_dir is not None and not os.fspath(data_dir):
        raise InvalidConfig("data_dir is empty: name a directory, or leave it out for a temporary one")
    for name, given in dictionaries.items():
        if given is not None and not isinstance(given, Mapping):
            # Not what it holds: passwords of users may be in it.
            raise InvalidConfig(f"{name} must be a dictionary of names and values, not a {type(given).__name__}")


@functools.cache
def _certificates_of_process() -> ClusterTls:
    return ClusterTls(TemporaryFolder().path)


def _meant(name: str) -> str:
    """Return the end of the error about an unknown name of a cluster."""
    if name in ("produce", "consume"):
        client = "Producer" if name == "produce" else "Consumer"
        return (
            f"; did you mean cluster.sync.{name}()? In a coroutine, `async with {client}(**cluster.client_settings())`"
            " is a client"
        )
    return did_you_mean(name, [each for each in dir(LocalCluster) if not each.startswith("_")])


class _Nobody:
    """A stream that nobody reads."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing is kept."""


_NOBODY: Any = _Nobody()


def _give_up(ports: Collection[int], folder: Path) -> None:
    """Give up this process's copies of brokers' descriptors: sockets bound to one of ``ports``, files in ``folder``.

    Each becomes a copy of /dev/null: objects that still have its number then close that, not a newer file.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for number, path in open_descriptors():
            if (path is not None and path.is_relative_to(folder)) or _port_of(number) in ports:
                os.dup2(null, number, inheritable=False)
    finally:
        os.close(null)


def _port_of(descriptor: int) -> int | None:
    """Return the local port of a TCP socket; None for anything else."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        name = found.getsockname()
    finally:
        found.detach()
    return int(name[1]) if found.family in (socket.AF_INET, socket.AF_INET6) else None
