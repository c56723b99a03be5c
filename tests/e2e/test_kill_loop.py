"""Real processes under fire: kill -9 in a loop, and a leader that was frozen past its session."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import pytest

from minikafka.errors import BY_CODE, NotLeaderOrFollower
from minikafka.hosting.processes import ProcessCluster
from minikafka.ports import Buffers
from minikafka.types import Address
from minikafka.wire.batch import split
from minikafka.wire.messages import (
    DescribeQuorumRequest,
    DescribeTopicsRequest,
    FetchPartition,
    FetchRequest,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
)
from minikafka.wire.records import Record, build_batch, decode_batch
from minikafka.world.clients import Asker
from tests.e2e.haste import SHORT_SESSIONS
from tests.e2e.kill_loop import SETTINGS, TOPIC, create_topic, kill_loop

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROUNDS = 10


async def test_ten_rounds_of_kill_9_lose_duplicate_and_reorder_nothing(tmp_path):
    """Issue (must be shown), S16, S19, KIP-101, KIP-98: acks=all holds through the deaths of leader, follower and
    controller; order per partition is kept; the replicas are byte-equal below HW.
    """
    outcome = await kill_loop(tmp_path, go_on=lambda played: played < ROUNDS)
    assert outcome.well, str(outcome)
    assert outcome.rounds == ROUNDS
    assert outcome.verdict.counts.acknowledged > 100 * ROUNDS
    assert outcome.verdict.counts.unread == 0
    assert outcome.compared.batches > 0


def addresses(cluster: ProcessCluster) -> dict[int, Address]:
    return {files.node_id: files.address for files in cluster.files.brokers}


async def state_of(asker: Asker, address: Address, partition: int):
    answer = await asker.ask(address, DescribeTopicsRequest(topics=(TOPIC,)))
    return next(each for each in answer.topics[0].partitions if each.partition == partition)


async def active_controller(asker: Asker, at: dict[int, Address]) -> int:
    for address in at.values():
        with contextlib.suppress(NotLeaderOrFollower):
            return (await asker.ask(address, DescribeQuorumRequest())).leader_id
    raise AssertionError("no broker is the active controller")


async def until(asker: Asker, address: Address, partition: int, condition):
    async with asyncio.timeout(120):
        while True:
            state = await state_of(asker, address, partition)
            if condition(state):
                return state
            await asyncio.sleep(0.05)


def batch(value: bytes) -> Buffers:
    return (build_batch([Record(offset=0, timestamp=1, value=value)]),)


async def told(asker: Asker, address: Address, partition: int, value: bytes, acks: int) -> ProducedPartition:
    part = ProducePartition(topic=TOPIC, partition=partition, records=batch(value))
    request = ProduceRequest(acks=acks, partitions=(part,))
    return (await asker.ask(address, request, 300.0)).partitions[0]


async def written(asker: Asker, at: dict[int, Address], asked: int, partition: int, value: bytes) -> int:
    """The broker that has acknowledged the value, with acks=all, as a leader that broker ``asked`` names.

    Whoever was elected a moment ago may not know it yet, and writes nothing.
    """
    async with asyncio.timeout(120):
        while True:
            leader = (await until(asker, at[asked], partition, lambda seen: seen.leader >= 0)).leader
            answer = await told(asker, at[leader], partition, value, -1)
            if answer.error_code == 0:
                return leader
            assert answer.outcome == "not_written", answer
            await asyncio.sleep(0.05)


async def values_at(asker: Asker, address: Address, partition: int) -> list[bytes | None]:
    fetch = FetchRequest(partitions=(FetchPartition(topic=TOPIC, partition=partition, fetch_offset=0),))
    answer = (await asker.ask(address, fetch)).partitions[0]
    assert answer.error_code == 0, answer
    return [record.value for each in split(b"".join(answer.records)) for record in decode_batch(each)]


@pytest.mark.parametrize("is_controller", [False, True], ids=["a broker", "the controller"])
async def test_a_leader_frozen_past_its_session_refuses_what_it_is_told(tmp_path, is_controller: bool):
    """DESIGN (zombie leaders): SIGSTOP of a leader past its session; what waits in its sockets meanwhile is refused by
    the process when it wakes, with acks=all and with acks=1, and is in nobody's log.

    Fetches of the metadata log wait in the sockets of a controller, too: they prove nothing when it wakes.
    """
    config = {**SETTINGS, **SHORT_SESSIONS}
    async with ProcessCluster(3, data_dir=tmp_path, config=config) as cluster, Asker(cluster.bootstrap) as asker:
        await create_topic(cluster.bootstrap)
        at = addresses(cluster)
        controller = await active_controller(asker, at)
        leaders = {each: (await until(asker, at[1], each, lambda seen: len(seen.isr) == 3)).leader for each in range(3)}
        partition = next(each for each, leader in leaders.items() if (leader == controller) is is_controller)
        frozen = await written(asker, at, 1, partition, b"before")
        assert frozen == leaders[partition]
        other = next(node for node in at if node != frozen)
        cluster.brokers[frozen].send_signal(signal.SIGSTOP)
        zombie = [asyncio.ensure_future(told(asker, at[frozen], partition, b"zombie", acks)) for acks in (1, -1, 1)]
        await until(asker, at[other], partition, lambda seen: seen.leader not in (frozen, -1))
        leader = await written(asker, at, other, partition, b"after")
        assert not any(each.done() for each in zombie)
        cluster.brokers[frozen].send_signal(signal.SIGCONT)
        for answer in await asyncio.gather(*zombie):
            assert answer.error_code != 0, "a zombie leader acknowledged"
            assert BY_CODE[answer.error_code].name == "NOT_LEADER_OR_FOLLOWER"
            assert answer.outcome == "not_written"
        await until(asker, at[other], partition, lambda seen: len(seen.isr) == 3)
        assert await values_at(asker, at[leader], partition) == [b"before", b"after"]
