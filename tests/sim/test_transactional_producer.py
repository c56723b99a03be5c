"""The native producer's transactions in a simulated cluster: committed, aborted, fenced, cut off, with offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from minikafka.client.consumer import Consumer
from minikafka.client.producer import Producer
from minikafka.client.settings import ConsumerConfig, ProducerConfig
from minikafka.client.structs import GroupMetadata, NewPartitions, OffsetAndMetadata
from minikafka.coordination.rule import partition_of
from minikafka.errors import (
    NOT_WRITTEN,
    UNKNOWN,
    ConcurrentTransactions,
    IllegalGeneration,
    InvalidConfig,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    MessageTooLarge,
    ProducerFenced,
    ProtocolError,
    RequestTimedOut,
    TransactionAbortable,
    UnknownMemberId,
)
from minikafka.sim.cluster import SimCluster
from minikafka.sim.verdicts import Deliver, Drop, Hold, matching
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import TopicPartition
from minikafka.wire.transaction_messages import EndTxnResponse
from tests.sim.cluster_kit import Client, simulated
from tests.sim.test_transactions import FIRST, SECOND, log_of, markers, until_state

GROUP_PLACE = TopicPartition("orders", 0)


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    with simulated(
        transaction_state_log_num_partitions="3",
        offsets_topic_num_partitions="3",
        group_initial_rebalance_delay_ms="0",
        transaction_abort_timed_out_transaction_cleanup_interval_ms="1000",
    ) as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.settle()
        yield cluster


def client(cluster: SimCluster, name: str = "client", **settings: Any) -> Client:
    return Client(cluster, name, **{"transactional_id": "tx", "linger_ms": 0, **settings})


async def send(producer: Producer, *values: bytes) -> None:
    for value in values:
        for place in (FIRST, SECOND):
            await producer.send_and_wait(place.topic, value, partition=place.partition)


async def take_over(cluster: SimCluster) -> None:
    """Another process initializes a producer with the transactional id."""
    config = ProducerConfig(bootstrap_servers=cluster.bootstrap, transactional_id="tx")
    await Producer(config, cluster.sim.of("new")).start()


def outcomes(cluster: SimCluster, name: TopicPartition = FIRST) -> list[bool]:
    return [each.is_commit for each in markers(cluster, name)]


def open_count(cluster: SimCluster, name: TopicPartition = FIRST) -> int:
    return len(log_of(cluster, cluster.leader_of(name), name).producers.transactions)


def test_transactions_commit_and_abort(cluster: SimCluster):
    """One after the other, in both forms; each has an epoch of its own."""
    own = client(cluster)

    async def work() -> None:
        producer = own.producer
        async with producer.transaction():
            await send(producer, b"a", b"b")
        with pytest.raises(LookupError):
            async with producer.transaction():
                await send(producer, b"c")
                raise LookupError
        await producer.begin_transaction()
        await send(producer, b"d")
        await producer.commit_transaction()

    own.run(work())
    until_state(cluster, "CompleteCommit")
    for place in (FIRST, SECOND):
        assert outcomes(cluster, place) == [True, False, True]
        assert [each.producer_epoch for each in markers(cluster, place)] == [1, 2, 3]

    async def read() -> list[bytes]:
        config = ConsumerConfig(
            bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        found: list[bytes] = []
        async with Consumer(config, own.world) as reader:
            reader.assign([FIRST])
            while len(found) < 3:
                found += [
                    each.value or b"" for part in (await reader.getmany(timeout_ms=500)).values() for each in part
                ]
        return found

    assert own.run(read()) == [b"a", b"b", b"d"]


def test_transactions_commit_without_verification():
    """Batches of version 2 add their partitions in any case: they were appended, and no coordinator knew of them."""
    with simulated(
        transaction_state_log_num_partitions="3",
        offsets_topic_num_partitions="3",
        transaction_partition_verification_enable="false",
    ) as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.settle()
        own = client(cluster)

        async def work() -> None:
            async with own.producer.transaction():
                await send(own.producer, b"a")
                offsets = {FIRST: OffsetAndMetadata(1)}
                await own.producer.send_offsets_to_transaction(offsets, GroupMetadata("g"))

        own.run(work())
        until_state(cluster, "CompleteCommit")
        for place in (FIRST, SECOND):
            assert outcomes(cluster, place) == [True]
            assert open_count(cluster, place) == 0


def test_empty_transactions_cost_no_request(cluster: SimCluster):
    """The coordinator knows nothing of them; the producer goes on."""
    own = client(cluster)

    async def work() -> None:
        async with own.producer.transaction():
            pass
        await own.producer.begin_transaction()
        await own.producer.abort_transaction()
        async with own.producer.transaction():
            await send(own.producer, b"a")

    own.run(work())
    until_state(cluster, "CompleteCommit")
    assert [each.producer_epoch for each in markers(cluster, FIRST)] == [1]


def test_calls_out_of_order_are_refused(cluster: SimCluster):
    """With what to do instead; nothing is sent."""
    own = client(cluster)
    plain = Client(cluster, "plain")

    async def work() -> None:
        producer = own.producer
        with pytest.raises(InvalidRequest, match="begin_transaction first"):
            await producer.send("orders", b"x", partition=0)
        with pytest.raises(InvalidRequest, match="nothing to commit"):
            await producer.commit_transaction()
        with pytest.raises(InvalidRequest, match="nothing to abort"):
            await producer.abort_transaction()
        await producer.begin_transaction()
        with pytest.raises(InvalidRequest, match="end the transaction"):
            await producer.begin_transaction()
        await producer.commit_transaction()
        with pytest.raises(InvalidRequest, match="begin_transaction first"):
            await producer.send_many("orders", [b"x"])
        with pytest.raises(InvalidRequest, match="begin_transaction first"):
            await producer.send_offsets_to_transaction({FIRST: 1}, "g")

    own.run(work())
    with pytest.raises(InvalidRequest, match="transactional_id"):
        plain.run(plain.producer.begin_transaction())
    assert log_of(cluster, cluster.leader_of(FIRST), FIRST).end_offset == 0


@pytest.mark.parametrize(
    "settings", [{"transactional_id": ""}, {"transactional_id": "t", "acks": 1}, {"transaction_timeout_ms": 0}]
)
def test_settings_that_cannot_be_granted(settings: dict[str, Any]):
    """Before anything is sent."""
    with pytest.raises(InvalidConfig, match=next(iter(settings))):
        ProducerConfig(**settings)


def test_timeout_beyond_the_brokers_limit_is_refused(cluster: SimCluster):
    """By the coordinator, when the producer starts."""
    with pytest.raises(InvalidTransactionTimeout):
        client(cluster, transaction_timeout_ms=1_000_000)


def commit_that_is_fenced(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch, first: EndTxnResponse | None = None
) -> tuple[list[int], ProducerFenced]:
    """Another producer takes over after the first response to EndTxn, of which the client gets ``first`` in its place.

    Return the error codes that the coordinator answered with, and what the client raised.
    """
    old = client(cluster, "old")
    coordinator = old.producer._transactional()._coordinator
    ask, asked = coordinator.ask, []

    async def struck(request: Any, **options: Any) -> Any:
        asked.append(await ask(request, **options))
        if len(asked) == 1:
            await take_over(cluster)
            return first or asked[-1]
        return asked[-1]

    async def work() -> None:
        await old.producer.begin_transaction()
        await send(old.producer, b"a")
        monkeypatch.setattr(coordinator, "ask", struck)
        await old.producer.commit_transaction()

    with pytest.raises(ProducerFenced) as fenced:
        old.run(work())
    return [each.error_code for each in asked], fenced.value


def test_a_fenced_repetition_of_a_lost_commit_is_of_unknown_outcome(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch
):
    """The first attempt commits, and its response is lost; another producer takes over before the last one."""
    lost = EndTxnResponse(error_code=ConcurrentTransactions.code, outcome=UNKNOWN)
    codes, fenced = commit_that_is_fenced(cluster, monkeypatch, lost)
    assert codes == [0, ProducerFenced.code]
    assert outcomes(cluster) == [True]
    assert fenced.outcome == UNKNOWN


def test_a_fenced_commit_of_which_a_copy_was_answered_is_of_unknown_outcome(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch
):
    """Seed 950012472: a link doubled EndTxn. One copy committed; the other one's CONCURRENT_TRANSACTIONS came first."""
    cluster.sim.network.rule(matching(Deliver(0.0, again_after_s=0.0), api="EndTxn", kind="request", count=1))
    codes, fenced = commit_that_is_fenced(cluster, monkeypatch)
    assert codes == [ConcurrentTransactions.code, ProducerFenced.code]
    assert outcomes(cluster) == [True]
    assert fenced.outcome == UNKNOWN


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_fenced_commit_is_of_unknown_outcome_if_an_earlier_call_had_no_response(
    cluster: SimCluster, *, is_cancelled: bool
):
    """The earlier call has committed: *not written* would have the application write its records again."""
    old = client(cluster, "old", default_api_timeout_ms=20_000 if is_cancelled else 2_000)
    undo = cluster.sim.network.rule(matching(Drop(), api="EndTxn", kind="answer"))

    async def work() -> None:
        await old.producer.begin_transaction()
        await send(old.producer, b"a")
        with pytest.raises(TimeoutError if is_cancelled else RequestTimedOut):
            async with asyncio.timeout(5.0):
                await old.producer.commit_transaction()
        undo()
        await take_over(cluster)
        for _ in range(2):
            with pytest.raises(ProducerFenced) as fenced:
                await old.producer.commit_transaction()
            assert fenced.value.outcome == UNKNOWN

    old.run(work())
    assert outcomes(cluster) == [True]


def test_new_producer_fences_the_old_one(cluster: SimCluster):
    """The old one's transaction is aborted, and each of its calls fails for good."""
    old = client(cluster, "old")
    old.run(old.producer.begin_transaction())
    old.run(send(old.producer, b"old"))
    new = client(cluster, "new")
    assert outcomes(cluster) == [False]
    for _ in range(2):
        with pytest.raises(ProducerFenced) as fenced:
            old.run(old.producer.commit_transaction())
        assert fenced.value.outcome == NOT_WRITTEN
    with pytest.raises(ProducerFenced, match="make a new producer"):
        old.run(old.producer.begin_transaction())
    new.run(new.producer.begin_transaction())
    new.run(send(new.producer, b"new"))
    new.run(new.producer.commit_transaction())
    until_state(cluster, "CompleteCommit")
    assert outcomes(cluster) == [False, True]


def test_failed_record_dooms_its_transaction(cluster: SimCluster):
    """It can only be aborted; the next transaction works."""
    cluster.create_topic("small", partitions=1, max_message_bytes="1000")
    cluster.settle()
    own = client(cluster)

    async def work() -> None:
        producer = own.producer
        await producer.begin_transaction()
        await send(producer, b"a")
        with pytest.raises(MessageTooLarge):
            await producer.send_and_wait("small", b"x" * 5000, partition=0)
        with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
            await producer.send("orders", b"y", partition=0)
        with pytest.raises(TransactionAbortable, match="must be aborted"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await send(producer, b"b")

    own.run(work())
    until_state(cluster, "CompleteCommit")
    assert outcomes(cluster) == [False, True]


def test_record_that_fails_while_its_commit_waits_dooms_its_transaction(cluster: SimCluster):
    """Nothing is committed without it."""
    cluster.create_topic("small", partitions=1, max_message_bytes="1000")
    cluster.settle()
    own = client(cluster)

    async def work() -> None:
        producer = own.producer
        await producer.begin_transaction()
        await send(producer, b"a")
        failing = await producer.send("small", b"x" * 5000, partition=0)
        with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
            await producer.commit_transaction()
        with pytest.raises(MessageTooLarge):
            await failing
        await producer.abort_transaction()

    own.run(work())
    until_state(cluster, "CompleteAbort")
    assert outcomes(cluster) == [False]


def test_transaction_over_its_timeout_cannot_be_committed(cluster: SimCluster):
    """The coordinator has aborted it."""
    own = client(cluster, transaction_timeout_ms=3_000)
    own.run(own.producer.begin_transaction())
    own.run(send(own.producer, b"a"))
    cluster.run_for(8.0)
    with pytest.raises(ProducerFenced):
        own.run(own.producer.commit_transaction())
    assert outcomes(cluster) == [False]


def test_producer_whose_transactional_id_expired_is_finished():
    """KAFKA-18019: with a fresh producer id it would be fenced by nobody, and a successor's records could come twice."""
    with simulated(
        transaction_state_log_num_partitions="1",
        transactional_id_expiration_ms="5000",
        transaction_remove_expired_transaction_cleanup_interval_ms="1000",
    ) as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.settle()
        own = client(cluster)
        cluster.run_for(10.0)

        async def work() -> None:
            producer = own.producer
            await producer.begin_transaction()
            with pytest.raises(InvalidProducerIdMapping):
                await producer.send_and_wait("orders", b"a", partition=0)
            with pytest.raises(InvalidProducerIdMapping):
                await producer.abort_transaction()
            with pytest.raises(InvalidProducerIdMapping, match="make a new producer"):
                await producer.begin_transaction()

        own.run(work())


def test_commit_survives_the_coordinator(cluster: SimCluster):
    """It dies while transactions are committed; no transaction is torn, none happens twice."""
    own = client(cluster)

    async def work(number: int) -> None:
        async with own.producer.transaction():
            await send(own.producer, b"%d" % number)

    for number in range(3):
        own.run(work(number))
        node = cluster.leader_of(TopicPartition(TRANSACTIONS_TOPIC, partition_of("tx", 3)))
        cluster.crash(node)
        own.run(work(10 + number))
        cluster.restart(node)
        cluster.settle()
    until_state(cluster, "CompleteCommit")
    for place in (FIRST, SECOND):
        epochs = [each.producer_epoch for each in markers(cluster, place)]
        assert (sorted(set(epochs)), open_count(cluster, place)) == (list(range(1, 7)), 0)
        assert set(outcomes(cluster, place)) == {True}


def test_commit_without_a_response_can_be_repeated(cluster: SimCluster):
    """Nobody knows whether it happened: only the same commit may follow."""
    own = client(cluster, default_api_timeout_ms=4_000, request_timeout_ms=2_000)
    own.run(own.producer.begin_transaction())
    own.run(send(own.producer, b"a"))
    for node in cluster.brokers:
        cluster.sim.network.cut_both(own.name, f"n{node}")
    with pytest.raises(RequestTimedOut):
        own.run(own.producer.commit_transaction())
    with pytest.raises(InvalidRequest, match="commit is under way"):
        own.run(own.producer.begin_transaction())
    cluster.heal()
    own.run(own.producer.commit_transaction())
    until_state(cluster, "CompleteCommit")
    assert outcomes(cluster) == [True]


def test_stop_aborts_the_open_transaction(cluster: SimCluster):
    """Readers need not wait for its timeout."""
    own = client(cluster)
    own.run(own.producer.begin_transaction())
    own.run(send(own.producer, b"a"))
    own.run(own.producer.stop())
    until_state(cluster, "CompleteAbort")
    assert outcomes(cluster) == [False]


# ---- offsets ---------------------------------------------------------------------------------------------------------


def consumer(cluster: SimCluster, own: Client, **settings: Any) -> Consumer:
    config = ConsumerConfig(
        bootstrap_servers=cluster.bootstrap,
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        **settings,
    )
    return Consumer(config, own.world, ("orders",))


def test_offsets_are_committed_with_the_records(cluster: SimCluster):
    """Consume, transform, produce: a commit moves the group, an abort does not."""
    plain = Client(cluster, "plain")
    plain.send_all([b"1", b"2", b"3"], FIRST)
    cluster.create_topic("out", partitions=1)
    cluster.settle()
    own = client(cluster)

    async def work() -> tuple[Any, Any]:
        producer, reader = own.producer, consumer(cluster, own)
        async with reader:
            records = []
            while len(records) < 3:
                for found in (await reader.getmany(timeout_ms=500)).values():
                    records += found
            with pytest.raises(LookupError):
                async with producer.transaction():
                    await producer.send("out", b"aborted", partition=0)
                    await producer.send_offsets_to_transaction({FIRST: 3}, reader.group_metadata())
                    raise LookupError
            before = await reader.committed(FIRST)
            async with producer.transaction():
                for each in records:
                    await producer.send("out", each.value + each.value, partition=0)
                await producer.send_offsets_to_transaction(
                    {FIRST: OffsetAndMetadata(records[-1].offset + 1, "done")}, reader.group_metadata()
                )
            return before, await reader.committed(FIRST)

    assert own.run(work()) == (None, 3)
    assert outcomes(cluster, TopicPartition("out", 0)) == [False, True]


def test_offsets_are_committed_without_records(cluster: SimCluster):
    """A transaction that only reads moves its group as well."""
    own = client(cluster)

    async def work() -> Any:
        async with own.producer.transaction():
            await own.producer.send_offsets_to_transaction({FIRST: 1}, GroupMetadata("g"))
        async with consumer(cluster, own) as reader:
            return await reader.committed(FIRST)

    assert own.run(work()) == 1


def test_record_that_waits_for_its_partition_until_the_transaction_has_ended_is_not_sent(cluster: SimCluster):
    """It would be in no transaction that the application has begun, or in the next one."""
    own = client(cluster)

    async def work() -> None:
        await own.producer.begin_transaction()
        await send(own.producer, b"a")
        waiting = asyncio.ensure_future(own.producer.send("orders", b"late", partition=2))
        await asyncio.sleep(0.1)
        await own.producer.commit_transaction()
        await own.admin.create_partitions({"orders": NewPartitions(3)})
        with pytest.raises(InvalidRequest, match="begin_transaction first"):
            await waiting

    own.run(work())


def test_late_copy_of_offsets_is_not_the_last_word_of_a_transaction(cluster: SimCluster):
    """The first attempt is held up until other offsets would have followed: the group went back to 5 with the commit."""
    own = client(cluster, request_timeout_ms=2000)
    network = cluster.sim.network
    network.rule(matching(Hold(), api="TxnOffsetCommit", kind="request", source=own.name, count=1))

    async def work() -> Any:
        try:
            async with own.producer.transaction():
                await own.producer.send_offsets_to_transaction({FIRST: 5}, GroupMetadata("g"))
                await own.producer.send_offsets_to_transaction({FIRST: 9}, GroupMetadata("g"))
                network.release()
                await asyncio.sleep(1.0)
        except TransactionAbortable:
            network.release()
            async with own.producer.transaction():
                await own.producer.send_offsets_to_transaction({FIRST: 9}, GroupMetadata("g"))
        async with consumer(cluster, own) as reader:
            return await reader.committed(FIRST)

    assert own.run(work()) == 9


@pytest.mark.parametrize(
    ("group", "error"),
    [
        (GroupMetadata("g", 99, "nobody"), IllegalGeneration),
        (GroupMetadata("g", -1, "nobody"), UnknownMemberId),
    ],
)
def test_outdated_member_commits_no_offsets(cluster: SimCluster, group: GroupMetadata, error: type[ProtocolError]):
    """KIP-447: the producer is the latest of its id, the consumer has lost its partitions."""
    own = client(cluster)

    async def work() -> None:
        async with consumer(cluster, own) as reader:
            await reader.getmany(timeout_ms=3000)
            await own.producer.begin_transaction()
            with pytest.raises((error, UnknownMemberId)):
                await own.producer.send_offsets_to_transaction({FIRST: 1}, group)
            with pytest.raises(TransactionAbortable):
                await own.producer.commit_transaction()
            await own.producer.abort_transaction()
            assert await reader.committed(FIRST) is None

    own.run(work())
