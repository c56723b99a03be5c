"""LocalCluster's hands for tests: faults, waits and events of three real brokers, awaited and blocking (issue 5)."""

from __future__ import annotations

import asyncio

import pytest

from minikafka import Producer
from minikafka.errors import (
    BrokerNotAvailable,
    InvalidConfig,
    InvalidRequest,
    NotEnoughReplicas,
    ProtocolError,
    RequestTimedOut,
)
from minikafka.testing.local_cluster import LocalCluster
from minikafka.ui.journal import read_journals
from minikafka.ui.page import replay_of
from minikafka.world.instruments import MachineFaults
from minikafka.world.states import Wish
from tests.e2e.haste import SHORT_LAGS

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(3, config=SHORT_LAGS) as running:
        yield running


@pytest.fixture(autouse=True)
def healed(cluster):
    """Each test leaves the cluster whole."""
    yield
    cluster.faults.heal()
    cluster.sync.wait.alive(1, 2, 3)


def others(node: int) -> list[int]:
    return [each for each in (1, 2, 3) if each != node]


def test_a_cluster_that_is_made_whole_has_machines_that_are_well():
    """A full disk or a wrong calendar of one test must not fail the next one, nor keep a broker from starting again."""
    with LocalCluster(1) as own:
        machine = own.instruments.machine("1")
        machine.calendar_ahead_ms = 3_600_000
        own.make_whole()
        assert machine == MachineFaults()
        own.sync.create_topic("orders")
        machine.disk_full = True
        with pytest.raises(ProtocolError):
            own.sync.create_topic("more")
        own.make_whole()
        assert not machine.disk_full
        own.sync.produce("orders", b"tea")


def test_brokers_that_make_a_majority_only_together_are_restarted_together():
    """After the death of all brokers: alone, the first one waits for a quorum until its time is up."""
    with LocalCluster(3) as own:
        own.sync.create_topic("orders")
        own.sync.produce("orders", b"tea")
        for node in own.node_ids:
            own.kill(node)
        with pytest.raises(BrokerNotAvailable, match=r"the quorum of .* has no leader"):
            own.restart(1, timeout_s=0.2)
        own.make_whole(timeout_s=20)  # broker 1, which runs, is not started a second time
        for node in own.node_ids:
            own.kill(node)
        own.sync.restart(2, 3)
        own.sync.wait.alive(2, 3)
        assert [record.value for record in own.sync.consume("orders", 1)] == [b"tea"]
        own.make_whole(timeout_s=20)


async def test_the_isr_shrinks_while_a_follower_cannot_fetch_and_grows_again(cluster):
    """S14, S15: with a fault as a context manager, awaiting states, without one sleep."""
    await cluster.create_topic("shrinks")
    leader = await cluster.wait.leader("shrinks")
    cut_off, near = others(leader)
    since = cluster.events.mark
    async with Producer(bootstrap_servers=cluster.bootstrap, acks=1) as producer:
        with cluster.faults.cut(f"{cut_off}>{leader}", api="Fetch") as fault:
            await producer.send_and_wait("shrinks", b"tea")
            assert sorted(await cluster.wait.isr("shrinks", 0, {leader, near})) == sorted((leader, near))
            assert await fault.wait_hits(1) >= 1
            assert await cluster.wait.high_watermark("shrinks", 0, 1) == 1
    assert not fault.is_active
    await cluster.wait.isr("shrinks", size=3)
    assert await cluster.wait.log_end("shrinks", 0, 1, replica=cut_off) == 1
    told = [event["event"] for event in cluster.events.all(partition="shrinks-0", since=since)]
    assert told.index("isr_shrunk") < told.index("isr_expanded")


async def test_requests_out_of_order_and_lost_by_chance_lose_no_record(cluster):
    """S21: an idempotent producer through reordered and lost messages; the faults end by themselves."""
    await cluster.create_topic("shuffled")
    count = hits = 0
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        while not hits:  # a machine that stands still lets their time pass without a record
            cluster.faults.reorder("client>*", api="Produce", delay_ms=20, probability=0.5, seed=5, for_ms=400)
            lossy = cluster.faults.cut("*>client", api="Produce", message="answer", probability=0.3, seed=5, for_ms=400)
            while lossy.is_active:
                await producer.send_and_wait("shuffled", b"%d" % count)
                count += 1
            hits = lossy.hits
    values = [record.value for record in await asyncio.to_thread(cluster.sync.consume, "shuffled", count)]
    assert values == [b"%d" % number for number in range(count)]
    cluster.faults.heal()


def test_the_same_without_a_loop(cluster):
    """Plain tests block where others await; a leader that only clients reach is a zombie, and another one leads."""
    kafka = cluster.sync
    kafka.create_topic("blocking", 2)
    kafka.produce("blocking", b"tea", b"milk", partition=0)
    first = kafka.wait.leader("blocking", 0)
    since = kafka.events.mark
    with kafka.faults.isolate(first, from_clients=False) as fault:
        assert fault.wait_hits(1) >= 1
        second = kafka.wait.leader("blocking", 0, other_than=first)
        kafka.wait.fenced(first)
        assert kafka.wait.controller(other_than=first) != first
    elected = kafka.events.wait("leader_elected", partition="blocking-0", since=since)
    assert (elected["old"], elected["leader"]) == (first, second)
    kafka.wait.isr("blocking", 0, {1, 2, 3})
    assert [record.value for record in kafka.consume("blocking", 2, partition=0)] == [b"tea", b"milk"]
    assert [record.value for record in kafka.consume("blocking", 1, partition=0, offset=1)] == [b"milk"]
    for timeout_s in (0.2, 2.0, 20.0):  # what is there may take a while to be read
        with pytest.raises(RequestTimedOut, match=r"gave \d records, wanted: 3") as told:
            kafka.consume("blocking", 3, timeout_s=timeout_s)
        if len(told.value.facts["seen"]) == 2:
            break
    assert [record.value for record in told.value.facts["seen"]] == [b"tea", b"milk"]


async def test_a_test_reads_what_was_committed(cluster):
    """Without a loop, too: records of an aborted transaction are read on request only."""
    await cluster.create_topic("committed")
    async with Producer(bootstrap_servers=cluster.bootstrap, transactional_id="payments") as producer:
        for value in (b"tea", b"aborted", b"milk"):
            await producer.begin_transaction()
            await producer.send_and_wait("committed", value)
            await (producer.abort_transaction() if value == b"aborted" else producer.commit_transaction())
    await cluster.wait.high_watermark("committed", 0, 6)

    def values(count: int, **given: str) -> list[bytes]:
        return [record.value for record in cluster.sync.consume("committed", count, **given)]

    assert await asyncio.to_thread(values, 2, isolation_level="read_committed") == [b"tea", b"milk"]
    assert await asyncio.to_thread(values, 3) == [b"tea", b"aborted", b"milk"]
    with pytest.raises(InvalidConfig, match="isolation_level='commited'"):
        cluster.sync.consume("committed", 1, isolation_level="commited")


async def test_a_broker_that_does_not_exist_is_named(cluster):
    """A misspelt number in a test is an error there, and not a fault that never strikes."""
    with pytest.raises(InvalidRequest, match="link '1>9': there is no broker 9, only 1, 2, 3"):
        cluster.faults.cut("1>9")
    with pytest.raises(InvalidRequest, match="there is no broker 9"):
        cluster.faults.isolate(9)
    with pytest.raises(BrokerNotAvailable, match="there is no broker 9, only 1, 2, 3"):
        cluster.kill(9)
    assert cluster.faults.active() == []


async def test_a_wait_that_is_called_wrongly_says_so(cluster):
    """An ISR of which nothing is expected was an empty one. A misspelled event was a time-out, or one that never happened."""
    with pytest.raises(InvalidRequest, match="needs members or size"):
        await cluster.wait.isr("orders")
    await cluster.create_topic("misspelled")
    with pytest.raises(InvalidRequest, match="there is no event 'became_leder'; did you mean 'became_leader'"):
        await cluster.events.wait("became_leder")
    with pytest.raises(InvalidRequest, match="there is no event 'isr_shrank'; did you mean 'isr_shrunk'"):
        assert cluster.events.all("leader_elected", "isr_shrank") == []


async def test_a_lost_answer_is_an_unknown_outcome_and_a_retry_is_a_duplicate(cluster):
    """Issue 5: losing the answer is not losing the request: the record is there, and sent again it is there twice."""
    await cluster.create_topic("twice")
    sent = cluster.faults.cut("*>client", api="Produce", count=1)
    async with Producer(bootstrap_servers=cluster.bootstrap, enable_idempotence=False) as producer:
        assert (await producer.send_and_wait("twice", b"tea")).offset == 1
    assert sent.hits == 1
    sent = cluster.faults.cut("*>client", api="Produce", count=1)
    async with Producer(bootstrap_servers=cluster.bootstrap, enable_idempotence=True) as producer:
        assert (await producer.send_and_wait("twice", b"milk")).offset == 2
    assert sent.hits == 1
    assert await cluster.wait.log_end("twice", 0, 3) == 3


async def test_fewer_than_min_isr_refuse_and_say_that_nothing_was_written(cluster):
    """acks=all below min.insync.replicas: NOT_ENOUGH_REPLICAS, outcome *not_written*."""
    await cluster.create_topic("refused", config={"min.insync.replicas": "2"})
    leader = await cluster.wait.leader("refused")
    async with Producer(bootstrap_servers=cluster.bootstrap, acks=1) as nudge:
        cut = [cluster.faults.cut(f"{other}>{leader}", api="Fetch") for other in others(leader)]
        await nudge.send_and_wait("refused", b"alone")
        await cluster.wait.isr("refused", 0, {leader})
    for delivery_timeout_ms in (600, 3_000, 15_000):  # slow machines need more; or its end came while one was asked
        async with Producer(
            bootstrap_servers=cluster.bootstrap,
            request_timeout_ms=delivery_timeout_ms // 2,
            delivery_timeout_ms=delivery_timeout_ms,
            linger_ms=0,
        ) as producer:
            with pytest.raises(ProtocolError) as refused:
                await producer.send_and_wait("refused", b"never")
        if isinstance(refused.value, NotEnoughReplicas) and refused.value.outcome == "not_written":
            break
    assert isinstance(refused.value, NotEnoughReplicas)
    assert refused.value.outcome == "not_written"
    for fault in cut:
        fault.heal()
    await cluster.wait.isr("refused", size=3)
    assert await cluster.wait.log_end("refused", 0, 1) == 1


async def test_a_wait_in_vain_tells_what_it_saw(cluster):
    """A bounded wait: the error has the last state, in words and as facts."""
    await cluster.create_topic("vain")
    leader = await cluster.wait.leader("vain")
    wish = Wish(topic="vain", leader=leader, isr=frozenset({leader}), hw_at_least=7, alive=frozenset({9}))
    with pytest.raises(RequestTimedOut) as told:
        await cluster.wait.until(wish, timeout_s=0.1)
    for part in ("broker 9 is not registered", f"wanted: [{leader}]", f"hw of broker {leader} is 0, wanted: 7"):
        assert part in told.value.message
    assert told.value.facts["seen"]["isr"] == [1, 2, 3]
    with pytest.raises(RequestTimedOut, match="there is no partition vain-5"):
        await cluster.wait.isr("vain", 5, size=1, timeout_s=0.05)
    with pytest.raises(RequestTimedOut, match="'vain' is there"):
        await cluster.wait.topic_gone("vain", timeout_s=0.05)
    with pytest.raises(RequestTimedOut, match="no isr_shrunk of vain-0 happened"):
        await cluster.events.wait("isr_shrunk", partition="vain-0", timeout_s=0.05)
    fault = cluster.faults.drop("1>1", api="Vote")
    with pytest.raises(RequestTimedOut, match="has 0 hits, wanted: 1"):
        await fault.wait_hits(1, timeout_s=0.05)
    with pytest.raises(InvalidRequest, match="did you mean 'Vote'"):
        cluster.faults.drop("1>2", api="Votes")
    assert [each.number for each in cluster.faults.active()] == [fault.number]


async def test_waits_of_several_at_once_do_not_disturb_each_other(cluster):
    """Waits are coroutines of the caller's loop: gathered, cancelled, timed out as any other."""
    waiting = [asyncio.ensure_future(cluster.wait.topic(f"later-{number}")) for number in range(3)]
    waiting[2].cancel()
    for number in range(2):
        await cluster.create_topic(f"later-{number}")
    await asyncio.gather(*waiting[:2])
    with pytest.raises(asyncio.CancelledError):
        await waiting[2]


async def test_the_events_are_a_journal_that_the_replay_page_shows(cluster, tmp_path):
    """Issue 5: the journal of a test is opened by `minikafka sim show`."""
    await cluster.create_topic("replayed")
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        await producer.send_and_wait("replayed", b"tea")
    await cluster.wait.high_watermark("replayed", 0, 1, replica=3)
    count = cluster.events.write(tmp_path / "journal.jsonl")
    journal = read_journals([tmp_path / "journal.jsonl"])
    assert len(journal.entries) == count <= len(list(cluster.events))  # the brokers go on telling
    replay = replay_of(journal, partition="replayed-0")
    assert replay.partition == "replayed-0"
    assert len(replay.steps) > 3
