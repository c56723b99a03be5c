"""Apache Kafka's own brokers as processes of this machine, with the settings and the Java options of its own scripts.

Each is broker and controller at once, as ours are. What differs from Kafka's defaults: addresses and folders; what a
cluster of three sets in any case (replication factor 3 and min.insync.replicas 2 for its own topics); and that a deleted
topic's files go soon, as in our brokers here. A process ends with this one, however this one ends, where ``setpriv`` is.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from minikafka.hosting.cluster_files import LOOPBACK, Ports, TemporaryFolder
from minikafka.spark.session import NoJava, java_home
from minikafka.types import Address
from tests.bench import kafka_jars
from tests.bench.kafka_jars import NoKafka

HEAP = ("-Xms1G", "-Xmx1G")
JVM = (
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    *("-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)
"""Of kafka-server-start.sh and kafka-run-class.sh."""

CLUSTER_ID = "bWluaWthZmthLWJlbmNoMQ"
STOP_TIMEOUT_S = 30.0

LOGGING = """status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


class Java(NamedTuple):
    """What starts a Kafka: the interpreter, and the jars."""

    program: Path
    class_path: str
    version: str
    """Kafka's."""
    broker_options: tuple[str, ...] = (*HEAP, *JVM)
    format_options: tuple[str, ...] = ("-Xmx256m",)

    def command(self, main: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
        return [str(self.program), *options, "-cp", self.class_path, main, *arguments]


def find() -> Java:
    """Java and the jars, fetched when they are not here. NoKafka tells what is missing."""
    try:
        home = java_home()
    except NoJava as error:
        raise NoKafka(f"Apache Kafka needs Java 17 or newer: {error}") from error
    jars = kafka_jars.pinned()
    paths = kafka_jars.fetch_all(jars, kafka_jars.cache_folder())
    program = Path(os.environ["JAVA_HOME"] if home is None else home) / "bin" / "java"
    return Java(program, os.pathsep.join(map(str, paths)), kafka_jars.kafka_version(jars))


class KafkaBroker:
    """One process, its folder and its port."""

    def __init__(self, java: Java, folder: Path, node: int, port: int) -> None:
        self.node = node
        self.address = Address(LOOPBACK, port)
        self.folder = folder
        self._java = java
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ProcessLookupError(f"Kafka {self.node} was not started")
        return self._process.pid

    @property
    def settings(self) -> Path:
        return self.folder / "server.properties"

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    async def format(self) -> None:
        """What ``kafka-storage.sh format`` does."""
        arguments = ("format", "-t", CLUSTER_ID, "-c", str(self.settings))
        await self._run(self._java.command("kafka.tools.StorageTool", *arguments, options=self._java.format_options))
        if await self.wait():
            raise RuntimeError(f"Kafka {self.node} was not formatted: {self.last_words()}")

    async def start(self) -> None:
        """Start the process; it is not ready yet."""
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        options = (*self._java.broker_options, logging)
        await self._run(self._java.command("kafka.Kafka", str(self.settings), options=options))

    async def _run(self, command: list[str]) -> None:
        tied = shutil.which("setpriv")
        prefix = [] if tied is None else [tied, "--pdeathsig", "KILL", "--"]
        # Our brokers have settings for the allocator in their environment, and a Spark those for its Java; Kafka has its own.
        others = ("MALLOC_", "JAVA_TOOL_OPTIONS")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *prefix, *command, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )

    def last_words(self) -> str:
        """The end of what it wrote."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def check(self) -> None:
        """RuntimeError when it has ended."""
        if not self.is_running:
            raise RuntimeError(f"Kafka {self.node} has ended: {self.last_words()}")

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        return 0 if self._process is None else await self._process.wait()

    async def signalled(self, number: signal.Signals) -> None:
        """Send a signal and wait for the end; SIGKILL after half a minute."""
        if self._process is None or not self.is_running:
            return
        self._process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.wait()
        except TimeoutError:
            self._process.kill()
            await self.wait()


class KafkaCluster:
    """Brokers on loopback ports, in a temporary folder beside ours; ``async with`` starts and ends them."""

    def __init__(self, java: Java, brokers: int) -> None:
        self.java = java
        self._folder = TemporaryFolder(on_disk=True)
        self._ports = Ports()
        nodes = range(1, brokers + 1)
        self.brokers = {
            node: KafkaBroker(java, self._folder.path / f"broker-{node}", node, self._ports.take()) for node in nodes
        }
        voters = {node: self._ports.take() for node in nodes}
        for broker in self.brokers.values():
            broker.folder.mkdir()
            broker.settings.write_text(server_properties(broker, voters), encoding="ascii")
            broker.folder.joinpath("log4j2.properties").write_text(LOGGING, encoding="ascii")

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{broker.address.host}:{broker.address.port}" for broker in self.brokers.values())

    @property
    def pids(self) -> list[int]:
        return [broker.pid for broker in self.brokers.values()]

    async def format(self) -> None:
        for broker in self.brokers.values():
            await broker.format()

    async def start(self) -> None:
        """Start the processes; they are not ready yet."""
        for broker in self.brokers.values():
            await broker.start()

    async def close(self) -> None:
        """Kill what runs: the folder goes with it."""
        for broker in self.brokers.values():
            await broker.signalled(signal.SIGKILL)
        self._ports.release()
        await asyncio.to_thread(self._folder.remove)

    async def __aenter__(self) -> Self:
        try:
            await self.format()
            await self.start()
        except BaseException:
            await asyncio.shield(self.close())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.close())


def server_properties(broker: KafkaBroker, voters: dict[int, int]) -> str:
    """The file of one broker; ``voters``: the controllers' ports by node."""
    replicas = len(voters)
    in_sync = (replicas + 1) // 2
    settings = {
        "process.roles": "broker,controller",
        "node.id": broker.node,
        "controller.quorum.voters": ",".join(f"{node}@{LOOPBACK}:{port}" for node, port in voters.items()),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{broker.address.port},CONTROLLER://{LOOPBACK}:{voters[broker.node]}",
        "log.dirs": broker.data,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "log.segment.delete.delay.ms": 500,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
