"""Children that are forked from the process of a LocalCluster (multiprocessing's ``fork``) keep nothing of its brokers."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minikafka.errors import BrokerNotAvailable
from minikafka.hosting.cluster_files import TemporaryFolder
from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.haste import SHORT_SESSIONS

pytestmark = [
    pytest.mark.e2e,
    # Python 3.12 and newer warn of a fork in a process with threads; up to 3.14 a filter cannot make it an error.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"),
]

FORK = multiprocessing.get_context("fork")


@contextmanager
def idle_child() -> Iterator[None]:
    """A child that has begun, and does nothing until the block ends."""
    theirs, ours = FORK.Pipe()

    def idle() -> None:
        theirs.send("it has given up what it must not keep")
        theirs.recv()

    child = FORK.Process(target=idle)
    child.start()
    try:
        assert ours.poll(60), "the child does not begin"
        ours.recv()
        yield
    finally:
        ours.send(None)
        child.join()


def in_child(work: Callable[[], str]) -> str:
    """Run ``work`` in a forked child; return its result, or the name and the text of its exception."""

    def call() -> None:
        try:
            ours.send(work())
        except Exception as error:
            ours.send(f"{type(error).__name__}: {error}")

    theirs, ours = FORK.Pipe(duplex=False)
    child = FORK.Process(target=call)
    child.start()
    try:
        assert theirs.poll(60), "the child does not end"
        return str(theirs.recv())
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_SSL"])
def test_a_killed_broker_ends_and_restarts_beside_a_forked_child(protocol: str):
    """Its addresses refuse connections, its open connections end, and its ports and files are free for a restart."""
    with LocalCluster(3, config=SHORT_SESSIONS, security_protocol=protocol) as cluster:
        kafka = cluster.sync
        kafka.create_topic("orders")
        leader = kafka.wait.leader("orders")
        brokers, clients = (
            addresses.split(",")[leader - 1] for addresses in (cluster.files.bootstrap, cluster.bootstrap)
        )
        with _connected(brokers) as first, _connected(clients) as second, idle_child():
            cluster.kill(leader)
            for address, connection in ((brokers, first), (clients, second)):
                with pytest.raises(ConnectionRefusedError):
                    _connected(address)
                assert _ended(connection)
            kafka.wait.leader("orders", other_than=leader)
            kafka.produce("orders", b"tea")
            cluster.restart(leader)
            kafka.wait.isr("orders", size=3)


def _connected(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_cluster_starts_again_beside_a_forked_child(tmp_path: Path):
    """Ports and directories of a stopped cluster are free, also where a child was forked while it ran."""
    cluster = LocalCluster(1, tmp_path)
    with cluster, idle_child():
        cluster.stop()
        cluster.start()
        cluster.sync.create_topic("orders")
        cluster.sync.produce("orders", b"tea")


def test_a_forked_child_is_sent_to_the_address_of_the_brokers():
    """The brokers' thread is not in the child: calls there raise an error that says what to use, and none of them waits."""
    with LocalCluster(1) as cluster:
        kafka = cluster.sync
        kafka.create_topic("orders")
        for call in (
            lambda: kafka.produce("orders", b"tea"),
            lambda: cluster.kill(1),
            lambda: cluster.faults.cut("client>1"),
            cluster.start,
            kafka.faults.heal,
        ):
            answer = in_child(lambda call=call: repr(call()))  # type: ignore[misc]
            assert answer.startswith(BrokerNotAvailable.__name__), answer
            assert f"bootstrap.servers={cluster.bootstrap}" in answer
            assert not cluster.faults.active()


def test_a_forked_child_that_leaves_the_block_leaves_the_cluster_alone():
    """A child that unwinds through ``with`` stops nothing and removes no files."""
    with LocalCluster(1) as cluster:
        cluster.sync.create_topic("orders")
        cluster.sync.produce("orders", b"tea")
        assert in_child(lambda: str(cluster.stop())) == "None"
        assert [record.value for record in cluster.sync.consume("orders", 1)] == [b"tea"]
        assert cluster.data_dir.is_dir()


def test_a_child_may_have_a_cluster_of_its_own():
    """A forked process starts a LocalCluster like any other."""

    def own() -> str:
        with LocalCluster(1) as cluster:
            cluster.sync.create_topic("orders")
            return str(cluster.sync.produce("orders", b"tea")[0].offset)

    with LocalCluster(1):
        assert in_child(own) == "0"


def test_a_temporary_folder_is_removed_by_its_owner_only():
    """A child that exits runs the exit handlers of its parent too."""
    folder = TemporaryFolder()
    pid = os.fork()
    if pid == 0:
        folder.remove()
        os._exit(0)
    os.waitpid(pid, 0)
    assert folder.path.is_dir()
    folder.remove()
    assert not folder.path.exists()
