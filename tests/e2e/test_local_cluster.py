"""LocalCluster: a whole cluster inside the test's process, over real TCP and real files (S37)."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

import pytest

from minikafka import AdminClient
from minikafka.errors import BrokerNotAvailable, InvalidConfig, NetworkException, RequestTimedOut
from minikafka.hosting import cluster_files
from minikafka.hosting.cluster_files import TemporaryFolder
from minikafka.ports import Buffers
from minikafka.quorum import records
from minikafka.security.quotas import PRODUCE, USER, Entity
from minikafka.testing import sync
from minikafka.testing.local_cluster import LocalCluster
from minikafka.types import Address, TopicPartition
from minikafka.wire.messages import (
    CreateTopicsRequest,
    DescribeQuorumRequest,
    FetchPartition,
    FetchRequest,
    NewTopic,
    ProducePartition,
    ProduceRequest,
)
from minikafka.wire.records import Record, build_batch
from minikafka.world.clients import Asker, Producer
from minikafka.world.link_faults import LinkEnd
from tests.e2e.haste import SHORT_SESSIONS

pytestmark = pytest.mark.e2e

QUICK = SHORT_SESSIONS
SYNC_S_MAX = 30


def batch(*values: bytes) -> Buffers:
    return (build_batch([Record(offset=at, timestamp=1, value=value) for at, value in enumerate(values)]),)


async def created(asker: Asker, name: str, *, partitions: int = 1, replicas: int = 3, **config: str) -> None:
    quorum = await asker.ask_any(DescribeQuorumRequest())
    controller = next(each for each in quorum.endpoints if each.node_id == quorum.leader_id)
    topic = NewTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs={key.replace("_", "."): value for key, value in config.items()},
    )
    answer = await asker.ask(Address(controller.host, controller.port), CreateTopicsRequest(topics=(topic,)))
    assert answer.topics[0].error_code == 0, answer


async def produced(asker: Asker, cluster: LocalCluster, node: int, topic: str, *values: bytes, acks: int = -1):
    address = next(files.address for files in cluster.files.brokers if files.node_id == node)
    partition = ProducePartition(topic=topic, partition=0, records=batch(*values))
    return (await asker.ask(address, ProduceRequest(acks=acks, partitions=(partition,)), 60.0)).partitions[0]


async def test_one_broker_is_a_cluster(tmp_path):
    """S37: produce and fetch over HTTP with one broker, a quorum of one."""
    async with LocalCluster(1, tmp_path) as cluster, Asker(cluster.bootstrap) as asker:
        await created(asker, "orders", replicas=1)
        node = await cluster.wait.leader("orders")
        assert (await produced(asker, cluster, node, "orders", b"tea", b"milk")).base_offset == 0
        fetch = FetchRequest(partitions=(FetchPartition(topic="orders", partition=0, fetch_offset=0),))
        got = (await asker.ask_any(fetch)).partitions[0]
        assert (got.error_code, got.high_watermark) == (0, 2)
        assert b"tea" in b"".join(got.records)


async def test_a_killed_leader_loses_nothing_and_comes_back(tmp_path):
    """S16, S19: an acknowledged record survives kill -9 of its leader, which returns as a follower with the same log."""
    async with LocalCluster(3, tmp_path, QUICK) as cluster, Asker(cluster.bootstrap) as asker:
        await created(asker, "orders", min_insync_replicas="2")
        await cluster.wait.isr("orders", size=3)
        first = await cluster.wait.leader("orders")
        assert (await produced(asker, cluster, first, "orders", b"before")).error_code == 0
        await asyncio.to_thread(cluster.kill, first)
        with pytest.raises(BrokerNotAvailable):
            cluster.broker(first)
        second = await cluster.wait.leader("orders", other_than=first)
        after = await produced(asker, cluster, second, "orders", b"after")
        assert (after.error_code, after.base_offset) == (0, 1)
        await asyncio.to_thread(cluster.restart, first)
        await cluster.wait.isr("orders", size=3)
        ends = {node: log_end(cluster, node, "orders") for node in cluster.node_ids}
        assert ends == dict.fromkeys(cluster.node_ids, 2)


def log_end(cluster: LocalCluster, node: int, topic: str) -> int:
    async def asked() -> int:
        return cluster.broker(node).partitions[TopicPartition(topic, 0)].log.end_offset

    return cluster.run(asked)


async def test_nothing_is_written_or_answered_after_a_kill(tmp_path):
    """Issue item 7: `kill` fences disk and network, then cancels: its files stay as they are, its port is silent."""
    async with LocalCluster(3, tmp_path, QUICK) as cluster, Asker(cluster.bootstrap) as asker:
        await created(asker, "orders", min_insync_replicas="1")
        node = await cluster.wait.leader("orders")
        address = next(files.address for files in cluster.files.brokers if files.node_id == node)
        log = cluster.folder(node) / "orders-0" / "00000000000000000000.log"
        sending = [asyncio.ensure_future(produced(asker, cluster, node, "orders", b"x" * 1000)) for _ in range(50)]
        await asyncio.sleep(0)
        await asyncio.to_thread(cluster.kill, node)
        size = log.stat().st_size
        answers = await asyncio.gather(*sending, return_exceptions=True)
        unanswered = [answer for answer in answers if isinstance(answer, BaseException)]
        assert all(isinstance(answer, NetworkException) for answer in unanswered)
        with pytest.raises(NetworkException, match="no connection"):
            await asker.ask(address, DescribeQuorumRequest())
        assert log.stat().st_size == size
        assert not (cluster.folder(node) / ".kafka_cleanshutdown").exists()


def open_files(folder: Path) -> list[str]:
    """Files in ``folder`` that this process has open."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the others
            found.append(str(each.readlink()))
    return [path for path in found if path.startswith(f"{folder}/broker-")]


def files_left_open(folder: Path) -> list[str]:
    """:func:`open_files` once syncs under way have ended: a kill does not wait for its disk."""
    deadline = monotonic() + SYNC_S_MAX
    while (left := open_files(folder)) and monotonic() < deadline:
        sleep(0.01)
    return left


def test_a_stop_ends_all_brokers_also_when_one_cannot_stop(tmp_path):
    """The first that failed left the others as they were: without a clean mark, on a loop that went away under them."""

    async def fails() -> None:
        raise RuntimeError("boom")

    async def break_one() -> None:
        cluster.broker(1).quorum.stop = fails

    cluster = LocalCluster(3, tmp_path, QUICK)
    cluster.start()
    cluster.run(break_one)
    with pytest.raises(RuntimeError, match="boom"):
        cluster.stop()
    marks = [(cluster.folder(node) / ".kafka_cleanshutdown").exists() for node in (1, 2, 3)]
    assert marks == [False, True, True]
    assert files_left_open(tmp_path) == []


def test_a_kill_leaves_none_of_its_files_open(tmp_path):
    """The process lives on: each kill left a descriptor open for each partition, and the memory of deleted files."""
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        asyncio.run(cluster.create_topic("orders", partitions=3))
        assert open_files(tmp_path)
        cluster.kill(1)
        assert files_left_open(tmp_path) == []
        cluster.restart(1)
        assert open_files(tmp_path)


def test_a_broker_is_started_again_when_its_stop_has_ended(tmp_path):
    """Whoever asks over HTTP for a stop, and then for a start, need not know when the first is done."""

    async def at_once() -> None:
        stopping = asyncio.ensure_future(cluster._terminate(3))
        await asyncio.sleep(0)
        await asyncio.gather(stopping, cluster._restart(3))

    with LocalCluster(3, tmp_path, QUICK) as cluster:
        cluster.run(at_once)
        assert cluster.broker(3).is_ready


def test_a_kill_that_is_given_up_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C, or a time limit of pytest: the tasks of the broker ran on, until one of them met the fence of its disk."""
    with LocalCluster(1) as cluster:
        broker = cluster.broker(1)
        is_at_work = asyncio.Event()

        async def never(_self: LinkEnd) -> None:
            is_at_work.set()
            await asyncio.Event().wait()

        async def given_up() -> int:
            killing = asyncio.ensure_future(cluster._kill(1))
            await is_at_work.wait()
            killing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await killing
            return len(broker._tasks._running)

        with monkeypatch.context() as patch:
            patch.setattr(LinkEnd, "close", never)
            assert cluster.run(given_up, timeout_s=60) == 0
        cluster.restart(1)


@pytest.mark.parametrize("deed", ["start", "stop", "kill"])
def test_a_stop_waits_for_brokers_that_are_started_or_ended_over_http(tmp_path, deed: str):
    """Their tasks are no caller's: the loop went away under them, and their files stayed open."""
    under_way: list[asyncio.Task[None]] = []

    async def begin() -> None:
        works = {"start": cluster._restart, "stop": cluster._terminate, "kill": cluster._kill}
        under_way.append(asyncio.ensure_future(works[deed](3)))
        await asyncio.sleep(0.005)

    cluster = LocalCluster(3, tmp_path, QUICK)
    cluster.start()
    if deed == "start":
        cluster.kill(3)
    cluster.run(begin)
    cluster.stop()
    assert under_way[0].done()
    assert files_left_open(tmp_path) == []


async def test_a_start_that_is_cancelled_leaves_no_brokers(monkeypatch: pytest.MonkeyPatch):
    """A time limit around `async with`: the thread that starts the brokers goes on, and nobody else would stop them."""
    begun, may_end = threading.Event(), threading.Event()
    start = LocalCluster._start

    async def slow(self: LocalCluster, *given: object) -> None:
        begun.set()
        await asyncio.to_thread(may_end.wait)
        await start(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalCluster, "_start", slow)
    cluster = LocalCluster(1)
    entering = asyncio.create_task(cluster.__aenter__())
    await asyncio.to_thread(begun.wait)
    entering.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert not cluster.is_running
    assert not cluster.data_dir.exists()


def test_the_sync_form_and_a_restart_of_the_whole(tmp_path):
    """The same directory is the same cluster: same ports, same id, and the topics are still there."""
    with LocalCluster(3, tmp_path, QUICK) as cluster:
        bootstrap, cluster_id = cluster.bootstrap, cluster.files.cluster_id

        async def make() -> None:
            async with Asker(bootstrap) as asker:
                await created(asker, "orders")

        asyncio.run(make())
        cluster.sync.wait.isr("orders", size=3)
    for node in (1, 2, 3):
        assert (tmp_path / f"broker-{node}" / ".kafka_cleanshutdown").exists()
    with LocalCluster(data_dir=tmp_path) as again:
        assert (again.bootstrap, again.files.cluster_id) == (bootstrap, cluster_id)
        assert again.sync.wait.leader("orders") in (1, 2, 3)


def test_a_cluster_shows_its_addresses_and_which_brokers_run(tmp_path):
    """In a debugger, and in the output of a test that failed."""
    cluster = LocalCluster(3, tmp_path, QUICK)
    assert repr(cluster) == f"<LocalCluster {cluster.bootstrap}, not running>"
    with cluster:
        cluster.sync.kill(2)
        assert repr(cluster) == f"<LocalCluster {cluster.bootstrap}, 2 of 3 brokers running>"
    assert repr(cluster) == f"<LocalCluster {cluster.bootstrap}, not running>"


def test_people_find_a_door(tmp_path):
    """D7: /readyz and /v1 on the same port, and JSON on /rpc, so that curl is enough."""
    with LocalCluster(1, tmp_path) as cluster:
        url = f"http://{cluster.bootstrap}"
        assert urllib.request.urlopen(f"{url}/readyz").status == 200
        told = json.loads(urllib.request.urlopen(f"{url}/v1/cluster").read())
        assert told["cluster_id"] == cluster.files.cluster_id
        asked = urllib.request.Request(
            f"{url}/rpc/DescribeQuorum", b"{}", {"Content-Type": "application/json"}, method="POST"
        )
        assert json.loads(urllib.request.urlopen(asked).read())["leader_id"] == 1


def test_a_temporary_directory_is_gone_afterwards():
    """A test suite must not fill the disk."""
    cluster = LocalCluster(1)
    folder = cluster.data_dir
    with cluster:
        assert (folder / "broker-1" / "meta.properties").exists()
    assert not folder.exists()


def test_only_files_that_stay_are_synced(tmp_path):
    """A temporary cluster is thrown away with its files; in a directory of the user's own a sync is a sync."""
    with LocalCluster(1) as temporary, LocalCluster(1, tmp_path) as kept:
        assert [cluster.broker(1).world.disk.syncs for cluster in (temporary, kept)] == [False, True]


def test_what_cannot_work_is_told():
    """Errors are sentences: an unknown setting, an unknown node, a node that runs, a cluster that does not."""
    with pytest.raises(InvalidConfig, match="brokers='3': a number from 1 to 50 is needed"):
        LocalCluster(brokers="3")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="did you mean"):
        LocalCluster(1, config={"num.partitons": "1"})
    with pytest.raises(InvalidConfig, match="config must be a dictionary of names and values, not a list"):
        LocalCluster(1, config=["num.partitions=1"])  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="users must be a dictionary of names and values, not a set"):
        LocalCluster(1, users={"ann"}, security_protocol="SASL_PLAINTEXT")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="data_dir is empty"):
        LocalCluster(1, data_dir="")
    cluster = LocalCluster(1, log_stream=io.StringIO())
    with pytest.raises(BrokerNotAvailable, match="not started"):
        cluster.run(lambda: asyncio.sleep(0))
    with cluster:
        with pytest.raises(BrokerNotAvailable, match="kill or terminate it first"):
            cluster.restart(1)
        with pytest.raises(BrokerNotAvailable, match="no broker '1', only 1"):
            cluster.kill("1")
        with pytest.raises(BrokerNotAvailable, match="no broker 9, only 1"):
            cluster.restart(9)


def test_pythons_own_numbers_and_truths_are_settings():
    """`{"num.partitions": 3}` is what everybody writes first."""
    config = {"num.partitions": 3, "auto.create.topics.enable": False, "log.cleaner.io.max.bytes.per.second": 1.5e6}
    with LocalCluster(1, config=config) as cluster:  # type: ignore[arg-type]  # as users do
        found = cluster.files.brokers[0].config()
        assert (found.num_partitions, found.auto_create_topics_enable) == (3, False)


def test_who_waits_is_told_when_the_cluster_is_stopped():
    """A thread that waited for a record waited for ever, and so did a task of another loop."""
    cluster = LocalCluster(1)
    cluster.start()
    cluster.sync.create_topic("t")
    ended: Future[BaseException | None] = Future()

    def read() -> None:
        try:
            cluster.sync.consume("t", 1, timeout_s=600)
        except BaseException as error:  # handed to the test
            ended.set_result(error)

    async def wait() -> None:
        waiting = asyncio.ensure_future(cluster.wait.high_watermark("t", 0, 7, timeout_s=600))
        while len(cluster._callers) < 2:  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # until the reader waits for a record; stopped sooner, it is told the same
        await asyncio.to_thread(cluster.stop)
        with pytest.raises(BrokerNotAvailable, match="stopped meanwhile"):
            await waiting

    thread = threading.Thread(target=read)
    thread.start()
    asyncio.run(wait())
    thread.join(120)
    error = ended.result(0)
    assert isinstance(error, BrokerNotAvailable)
    assert "stopped meanwhile" in str(error)


def test_a_cluster_is_stopped_soon_though_records_have_no_answer():
    """A test that fails while its brokers are down must not wait for delivery.timeout.ms at its end."""
    with LocalCluster(1) as cluster:
        kafka = cluster.sync
        kafka.create_topic("t")
        kafka.produce("t", b"tea")
        kafka.kill(1)

        async def send() -> Producer:
            producer = await kafka._producer("all")
            producer._accumulator._delivery_timeout_s = 1e9  # waiting for it would end with the suite's time limit
            await producer.send("t", b"milk")
            return producer

        producer = kafka.run(send)
    assert producer._accumulator.size == 0


def test_a_producer_that_could_not_start_is_not_kept():
    """The next call of produce begins anew."""
    with LocalCluster(1) as cluster:
        kafka = cluster.sync
        kafka.create_topic("t")
        cluster.kill(1)
        with pytest.raises(TimeoutError):
            kafka.run(lambda: kafka._producer("all"), timeout_s=0.3)
        cluster.restart(1)
        assert [each.offset for each in kafka.produce("t", b"tea")] == [0]


def test_threads_that_produce_at_once_share_a_producer(monkeypatch: pytest.MonkeyPatch):
    """Each made one, and all but the last were still at work when the brokers' loop was closed."""
    made = []

    class Counted(Producer):
        async def start(self) -> None:
            made.append(self)
            while len(self._kafka.cluster._callers) < 2:  # noqa: ASYNC110 - another thread's call, on its way
                await asyncio.sleep(0.001)
            await super().start()

    monkeypatch.setattr(sync, "Producer", Counted)
    with LocalCluster(1) as cluster:
        kafka = Counted._kafka = cluster.sync
        kafka.create_topic("t")
        with ThreadPoolExecutor(2) as pool:
            told = list(pool.map(lambda value: kafka.produce("t", value), (b"tea", b"milk")))
        assert sorted(each.offset for (each,) in told) == [0, 1]
    assert [each._stopping for each in made] == [True]


def test_work_that_is_cancelled_is_not_a_cluster_that_was_stopped():
    """``run`` told whoever awaited something cancelled that the cluster was gone."""

    async def cancelled() -> None:
        waiting = asyncio.get_running_loop().create_future()
        waiting.cancel()
        await waiting

    with LocalCluster(1) as cluster:
        with pytest.raises(CancelledError):
            cluster.run(cancelled)
        assert cluster.run(lambda: asyncio.sleep(0, "it goes on")) == "it goes on"


def test_reading_a_mistyped_topic_says_so_and_creates_none():
    """It was created to be counted, and then "gave 0 records"; one that comes meanwhile is read."""
    with LocalCluster(1) as cluster:
        kafka = cluster.sync
        for partition in (None, 0):
            with pytest.raises(RequestTimedOut, match="the topic 'ordrs' does not exist"):
                kafka.consume("ordrs", 1, partition=partition, timeout_s=0.3)
        with pytest.raises(RequestTimedOut):
            kafka.wait.topic("ordrs", timeout_s=0.1)
        later = threading.Timer(0.3, lambda: kafka.produce("orders", b"tea"))
        later.start()
        assert [record.value for record in kafka.consume("orders", 1)] == [b"tea"]
        later.join()


def test_a_cluster_is_started_again(tmp_path: Path):
    """Its files, ports and topics are the same; a temporary one has no files any more, and leaves none behind."""
    cluster = LocalCluster(1, tmp_path)
    with cluster:
        bootstrap = cluster.bootstrap
        cluster.sync.create_topic("t")
        cluster.sync.produce("t", b"tea")
    with cluster:
        assert cluster.bootstrap == bootstrap
        assert [record.value for record in cluster.sync.consume("t", 1)] == [b"tea"]
    temporary_one = LocalCluster(1)
    with temporary_one:
        pass
    with pytest.raises(InvalidConfig, match="make a new one"):
        temporary_one.start()
    assert not temporary_one.data_dir.exists()


def test_stopping_does_not_wait_for_a_controller_that_is_gone(tmp_path):
    """DESIGN (stopping): the last brokers of a cluster that goes down have no quorum to ask; they leave without."""
    # Whoever waited for a controller would wait for an hour, and fail by the suite's time limit.
    with LocalCluster(3, tmp_path, {"mk.controlled.shutdown.max.wait.ms": "3600000"}):
        pass
    assert (tmp_path / "broker-3" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize(
    "free, said, in_memory",
    [(cluster_files.ROOM_MIN, None, True), (cluster_files.ROOM_MIN - 1, None, False), (1 << 40, "said", False)],
)
def test_temporary_files_are_in_memory_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, said: str | None, in_memory: bool
):
    """Half of a cluster's start was making files; a container has 64 MiB there, and who sets TMPDIR knows why."""
    memory, elsewhere = tmp_path / "memory", tmp_path / "elsewhere"
    memory.mkdir()
    elsewhere.mkdir()
    monkeypatch.setattr(cluster_files, "MEMORY", memory)
    monkeypatch.setattr(cluster_files.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(cluster_files.tempfile, "tempdir", str(elsewhere))
    monkeypatch.delenv("TMPDIR", raising=False)
    if said is not None:
        monkeypatch.setenv("TMPDIR", said)
    folder = TemporaryFolder()
    assert folder.path.parent == (memory if in_memory else elsewhere)
    folder.remove()
    folder.remove()
    assert [*memory.iterdir(), *elsewhere.iterdir()] == []


def test_a_cluster_that_is_never_stopped_leaves_no_folder(tmp_path: Path):
    """A script may end without ``stop``; the end of a child that it has forked removes nothing."""
    program = """
import os, sys
from minikafka import LocalCluster
cluster = LocalCluster(1)
cluster.start()
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
print(cluster.data_dir, cluster.data_dir.exists())
"""
    # Python 3.12 and newer warn of a fork in a process with threads, as a LocalCluster has.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    folder, exists = ended.stdout.split()
    assert (Path(folder).parent, exists) == (tmp_path, "True")
    assert (list(tmp_path.iterdir()), ended.stderr) == ([], "")


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, in_memory: bool):
    """kill -9 cleans nothing up, and these files are memory. Those of the living stay, and what is not ours."""
    program = (
        "import pathlib, sys, time; from minikafka.hosting import cluster_files;"
        "cluster_files.MEMORY, cluster_files.ROOM_MIN = pathlib.Path(sys.argv[1]), 0;"
        "print(cluster_files.TemporaryFolder().path, flush=True); time.sleep(600)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    if not in_memory:
        environment["TMPDIR"] = str(tmp_path)
    (tmp_path / "minikafka-other").mkdir()

    def owner() -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-c", program, str(tmp_path)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        folder = process.stdout.readline().strip()
        assert folder, "the process ended before it had a folder; the test would write into the working directory"
        return process, Path(folder)

    processes = []
    try:
        processes += [owner(), owner()]
        (dead, left), (_, kept) = processes
        (left / "broker-1").mkdir()
        (left / "broker-1" / "00000000000000000000.log").write_bytes(b"x")
        dead.kill()
        dead.wait()
        processes.append(owner())
        assert not left.exists()
        assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "minikafka-other", kept, processes[2][1]])
    finally:
        for process, _ in processes:
            process.kill()
            process.communicate()


def test_an_older_build_does_not_start_on_metadata_that_it_does_not_know(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Hostile test 25: what it cannot read may be the very quota or ACL that it must use. It says which record."""
    with LocalCluster(1, tmp_path) as cluster:
        quotas = {((USER, "ann"),): {PRODUCE: 1e6}}
        cluster.run(lambda: alter_quotas(cluster, quotas))
    monkeypatch.delitem(records._LAYOUTS, records._KEYS[records.ClientQuota])
    with pytest.raises(
        BrokerNotAvailable, match="metadata record with key 14 and version 1 is not known to this build"
    ):
        LocalCluster(1, tmp_path).start()


async def alter_quotas(cluster: LocalCluster, quotas: Mapping[Entity, Mapping[str, float | None]]) -> None:
    async with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.alter_client_quotas(quotas)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("produce", r"cluster\.sync\.produce\(\).*Producer\(\*\*cluster\.client_settings\(\)\)"),
        ("consume", r"cluster\.sync\.consume\(\).*Consumer\(\*\*cluster\.client_settings\(\)\)"),
        ("bootstrap_server", r"did you mean bootstrap_servers\?$"),
        ("elect_a_pope", r"'elect_a_pope'$"),
    ],
)
def test_a_name_that_a_cluster_does_not_have_is_an_error_with_the_name_that_was_meant(name: str, hint: str):
    """`await cluster.produce(...)` was an AttributeError without a hint; the blocking calls are on `cluster.sync`."""
    cluster = LocalCluster(brokers=1)
    with pytest.raises(AttributeError, match=hint):
        getattr(cluster, name)
    assert not hasattr(cluster, name)
    cluster.stop()
