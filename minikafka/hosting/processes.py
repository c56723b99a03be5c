"""Brokers as processes of this machine: started, watched, and hurt (``up``, the demo, the end-to-end tests).

Rules for this file:

1. A child dies with its parent, however the parent dies: it holds one end of a socket (``--parent-fd``) and stops when
   the other end closes (``process.py``).
2. A child has a session of its own: Ctrl-C reaches the parent only, which then stops the children in good order.
3. A broker that dies is reported and never restarted here: the caller decides (``BrokerProcess.start_broker``).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from minikafka.config import KIB
from minikafka.errors import WorldError
from minikafka.hosting.cluster_files import BrokerFiles, ClusterFiles, Ports, TemporaryFolder, prepare
from minikafka.hosting.process import StartBroker, broker_environment, serve_child
from minikafka.types import Address, NodeId

# Controlled shutdown may take mk.controlled.shutdown.max.wait.ms (15 s), and the last flush some seconds more.
STOP_TIMEOUT_S = 25.0

LAUNCHER = ("-m", "minikafka")
"""The interpreter's arguments to run a broker; tests start brokers with planted bugs."""

READY_TIMEOUT_S = 60.0
LAST_WORDS_SIZE = 16 * KIB


class BrokerDied(WorldError):
    """A broker's process ended though nobody asked it to; the message tells how and what it said last."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What a broker printed when it was ready."""

    node_id: NodeId
    pid: int
    url: str
    line: str
    """The JSON line, as ``serve`` printed it."""


async def _refuse_to_start(_node: NodeId) -> None:
    raise WorldError("the program that started this cluster starts no broker again")


class BrokerProcess:
    """One ``minikafka serve`` and its files.

    ``prefix`` stands before its command: something that changes where it runs, and then becomes it (``nsenter``).
    """

    def __init__(self, files: BrokerFiles, prefix: Sequence[str] = (), launcher: Sequence[str] = LAUNCHER) -> None:
        self.files = files
        self._prefix = tuple(prefix)
        self._launcher = tuple(launcher)
        self.node_id = files.node_id
        self.start_broker: StartBroker = _refuse_to_start
        """Starts another broker of the cluster when this one requests it. Set it before the start."""
        self._process: Process | None = None
        self._lifeline: asyncio.Task[None] | None = None
        """Serves this end of the socket, and closes it."""

    @property
    def pid(self) -> int:
        """The process's id; ProcessLookupError when it was never started."""
        if self._process is None:
            raise ProcessLookupError(f"broker {self.node_id} was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """As subprocess has it: negative for the signal that ended it; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start the process; :meth:`wait_ready` tells when it serves."""
        if self.is_running:
            raise BrokerDied(f"broker {self.node_id} runs already")
        self.let_go()  # of one that has ended by itself
        ours, theirs = socket.socketpair()
        self._lifeline = asyncio.ensure_future(serve_child(ours, self.start_broker))
        # A task that is cancelled before its first step closes nothing.
        self._lifeline.add_done_callback(lambda _task: ours.close())
        serve = (*self._launcher, "serve", str(self.files.path), "--parent-fd", str(theirs.fileno()))
        command = [*self._prefix, sys.executable, *serve]
        for name, value in self.files.owned().items():
            command += ["--config", f"{name}={value}"]
        try:
            with self.files.log_path.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=DEVNULL,
                    stdout=PIPE,
                    stderr=log,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env=broker_environment(os.environ),
                )
        except BaseException:
            self.let_go()  # whatever was begun ends with it
            raise
        finally:
            theirs.close()

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> Ready:
        """The broker's JSON line. BrokerDied when it ended instead; WorldError after ``timeout_s``."""
        process = self._process
        if process is None or process.stdout is None:
            raise BrokerDied(f"broker {self.node_id} was not started")
        try:
            async with asyncio.timeout(timeout_s):
                line = (await process.stdout.readline()).decode()
                if not line:
                    await process.wait()
        except TimeoutError:
            raise WorldError(
                f"broker {self.node_id} is not ready after {timeout_s:.0f} s; its log: {self.files.log_path}"
            ) from None
        if not line:
            raise BrokerDied(self.obituary())
        ready = json.loads(line)
        return Ready(ready["broker"], ready["pid"], ready["url"], line.rstrip("\n"))

    def obituary(self) -> str:
        """How it ended, and the last thing it said."""
        code = self.returncode
        how = "was not started" if code is None else f"ended with {_exit_text(code)}"
        try:
            lines = _end_of(self.files.log_path).strip().splitlines()
        except FileNotFoundError:
            lines = []
        last = f", saying: {lines[-1]}" if lines and code is not None and code > 0 else ""
        return f"broker {self.node_id} {how}{last} (log: {self.files.log_path})"

    async def wait(self) -> int:
        """Wait for its end; the return code."""
        if self._process is None:
            raise ProcessLookupError(f"broker {self.node_id} was not started")
        lifeline = self._lifeline
        code = await self._process.wait()
        if lifeline is self._lifeline:  # else the next process is being started, and this end is that one's
            self.let_go()
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process. Nothing happens when it is gone."""
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    async def kill9(self) -> None:
        """SIGKILL, and wait until it is gone: no handler ran, nothing was flushed but what the kernel holds."""
        self.send_signal(signal.SIGKILL)
        if self._process is not None:
            await self.wait()

    async def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM: a controlled shutdown. After ``timeout_s`` SIGKILL. The return code."""
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)  # a stopped process would never see the first
        try:
            async with asyncio.timeout(timeout_s):
                return await self.wait()
        except TimeoutError:
            await self.kill9()
            return -signal.SIGKILL

    async def urge(self) -> None:
        """Make it leave without waiting for the controller.

        Not by a second SIGTERM: sent too soon it is one with the first, and after another one it would be the third,
        which ends a broker at once.
        """
        self.let_go()

    async def freeze(self) -> None:
        """SIGSTOP: its connections stay open and answer nothing."""
        self.send_signal(signal.SIGSTOP)

    async def thaw(self) -> None:
        """SIGCONT."""
        self.send_signal(signal.SIGCONT)

    def let_go(self) -> None:
        """Close this end of what tells the process that its parent is there: one that still runs ends itself."""
        if self._lifeline is not None:
            self._lifeline.cancel()
            self._lifeline = None


def _end_of(path: Path) -> str:
    """The last LAST_WORDS_SIZE bytes: logs grow long, and chaos asks several times a second."""
    with path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_WORDS_SIZE))
        return log.read().decode(errors="replace")


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class Stoppable(Protocol):
    """A broker that can be asked to leave."""

    @property
    def is_running(self) -> bool: ...

    async def terminate(self) -> int:
        """A controlled shutdown."""
        ...

    async def urge(self) -> None:
        """It shall leave without one."""
        ...


async def stop_all(brokers: Collection[Stoppable]) -> None:
    """SIGTERM to all brokers of a cluster at once, and wait for all.

    Once too few run for a quorum, no controller can let the others go: they leave without. If some cannot be ended, the
    first of their errors is raised once all others have.
    """
    errors: list[BaseException] = []
    ending = {asyncio.ensure_future(broker.terminate()) for broker in brokers if broker.is_running}
    urged = False
    while ending:
        if 2 * len(ending) <= len(brokers) and not urged:
            urged = True
            for broker in brokers:
                await broker.urge()
        ended, ending = await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        errors += filter(None, [each.exception() for each in ended])
    if errors:
        raise errors[0]


class ProcessCluster:
    """Brokers as processes, on loopback ports that are held while this object lives.

    ``data_dir`` None: a temporary one that is removed at the end. The ports are those of cluster_files.prepare(). Use
    ``async with``, which starts and stops it.
    """

    def __init__(
        self,
        brokers: int | None = None,
        *,
        data_dir: str | Path | None = None,
        base_port: int = 0,
        preferred_port: int = 0,
        config: Mapping[str, str] | None = None,
        launcher: Sequence[str] = LAUNCHER,
    ) -> None:
        self._temporary = TemporaryFolder(on_disk=True) if data_dir is None else None
        self._ports = Ports()
        self.data_dir = self._temporary.path if self._temporary is not None else Path(data_dir or ".")
        try:
            self.files: ClusterFiles = prepare(
                self.data_dir,
                self._ports,
                brokers=brokers,
                base_port=base_port,
                preferred_port=preferred_port,
                config=config or {},
            )
        except BaseException:
            self._clean_up()
            raise
        self.brokers = {files.node_id: BrokerProcess(files, launcher=launcher) for files in self.files.brokers}

    @property
    def bootstrap(self) -> str:
        """``host:port`` of all brokers, with commas."""
        return self.files.bootstrap

    @property
    def bootstrap_servers(self) -> str:
        """The same, as Kafka's clients name it: ``bootstrap.servers`` for every client, also for those of Kafka."""
        return self.bootstrap

    def addresses(self) -> dict[NodeId, Address]:
        """Where each broker listens whose process exists; a stopped one's (SIGSTOP) does."""
        return {node: broker.files.address for node, broker in self.brokers.items() if broker.is_running}

    async def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start all brokers and wait until each is ready. BrokerDied, WorldError: then all were stopped again."""
        try:
            for broker in self.brokers.values():
                await broker.start()
            for broker in self.brokers.values():
                await broker.wait_ready(timeout_s)
        except BaseException:
            await asyncio.shield(self.stop())
            raise

    async def stop(self) -> None:
        """SIGTERM to all at once, wait for all; then let go of ports and temporary files."""
        try:
            await stop_all(self.brokers.values())
        finally:
            for broker in self.brokers.values():
                broker.let_go()
            self._clean_up()

    def _clean_up(self) -> None:
        self._ports.release()
        if self._temporary is not None:
            self._temporary.remove()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def kill9(self, node: NodeId) -> None:
        """kill -9, and wait until the process is gone."""
        await self.brokers[node].kill9()

    async def terminate(self, node: NodeId) -> int:
        """A controlled shutdown of one broker; its exit code."""
        return await self.brokers[node].terminate()

    async def restart(self, node: NodeId, timeout_s: float = READY_TIMEOUT_S) -> Ready:
        """Start a broker that has ended, and wait until it is ready."""
        await self.brokers[node].start()
        return await self.brokers[node].wait_ready(timeout_s)

    def folder(self, node: NodeId) -> Path:
        """The broker's data directory."""
        return self.brokers[node].files.folder
