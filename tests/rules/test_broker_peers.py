"""What brokers make of each other's answers: refusals, damage, errors of another version. Nothing stops a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from minikafka.broker.alter_partition_manager import AlterPartitionManager
from minikafka.broker.append_throttle import AppendThrottle
from minikafka.broker.flusher import Flusher
from minikafka.broker.live_settings import LiveSettings
from minikafka.broker.meters import Traffic
from minikafka.broker.purgatory import Condition, Mark, Purgatory
from minikafka.broker.replica_fetcher import ReplicaFetchers
from minikafka.config import BrokerConfig
from minikafka.errors import ConnectionRefused, IneligibleReplica, OutcomeUnknown, error_name, error_of
from minikafka.ports import Buffers, World
from minikafka.replication.partition import Partition
from minikafka.sim.world import SimWorld
from minikafka.types import Address
from minikafka.wire.apis import BY_NAME
from minikafka.wire.batch import stamped
from minikafka.wire.codec import decode_request, encode_response
from minikafka.wire.messages import AlteredPartition, AlterPartitionResponse, FetchedPartition
from tests.rules.replication_kit import TP, Recorded, answer, batch, fetched, leader, seat, state, write


def world_with(sim: SimWorld, network: Any, events: Recorded) -> World:
    """The ports of broker 1, with another network and a sink that can be asked."""
    return replace(sim.of("n1"), network=network, events=events)


class Answers:
    """A network on which every call gets this answer."""

    def __init__(self, response: object) -> None:
        self.response = response

    async def call(self, _peer: Address, _api: str, _body: Buffers, *, deadline: float) -> bytes:
        """The same for everyone."""
        del deadline
        return b"".join(bytes(each) for each in encode_response(self.response))


class Proposing:
    """The leader of a partition with the ISR 1, 2, whose follower 3 may join it, and the manager of its ISR changes."""

    def __init__(self, sim: SimWorld, network: Any) -> None:
        self.controller = Address("n1", 1)
        self.purgatory = Purgatory()
        self.manager = AlterPartitionManager(
            BrokerConfig(),
            world_with(sim, network, Recorded()),
            controller=lambda: self.controller,
            broker_epoch=lambda: 10,
            purgatory=self.purgatory,
        )
        self.eligible = {1: 10, 2: 20, 3: 30}
        self.partition = seat(eligible=self.eligible)
        self.partition.apply(state(isr=(1, 2)), self.partition.config, 0.0)
        self.role = self.partition.as_leader()

    def expand(self) -> Any:
        """Propose that 3 joins, and return the proposal."""
        proposal = self.role.propose_expand()
        self.manager.submit(self.partition, self.role, proposal)
        return proposal


def played(story: Callable[[SimWorld], Coroutine[Any, Any, None]]) -> None:
    """Play the story on a machine n1."""
    with SimWorld(1) as sim:
        sim.of("n1")
        sim.run(story(sim))


def test_a_refused_member_holds_no_record_back() -> None:
    """3.5: INELIGIBLE_REPLICA withdraws the proposal. While it was in flight the joining replica counted (KIP-497); if
    it is the only one that lacks a record, nothing but this answer can commit it, and whoever waits must hear of it.
    """

    async def story(sim: SimWorld) -> None:
        refusal = AlteredPartition(
            topic=TP.topic, partition=TP.partition, error_code=IneligibleReplica.code, error_message="3 is fenced"
        )
        proposing = Proposing(sim, Answers(AlterPartitionResponse(partitions=(refusal,))))
        role = proposing.role
        write(role, "a")
        fetched(role, 2, 1)
        fetched(role, 3, 1)
        proposing.expand()
        write(role, "b")
        fetched(role, 2, 2)
        del proposing.eligible[3]
        assert (role.high_watermark, role.maximal_isr) == (1, (1, 2, 3))
        committed = sim.spawn(
            "n1",
            proposing.purgatory.until(
                [Condition(Mark.HIGH_WATERMARK, TP, 2)], lambda: role.high_watermark >= 2, sim.loop.now + 60
            ),
        )
        sim.spawn("n1", proposing.manager.run())
        assert await committed is True
        assert sim.loop.now < 1.0
        assert role.proposal is None

    played(story)


def test_an_answer_of_the_next_epoch_changes_nothing_in_this_one() -> None:
    """KIP-455: the ISR change has completed a reassignment, and the number of replicas that is needed may rise with it.
    The role would commit with the new ISR and the old number until the metadata comes, which has both.
    """

    async def story(sim: SimWorld) -> None:
        done = AlteredPartition(
            topic=TP.topic, partition=TP.partition, leader_id=1, leader_epoch=1, isr=(1, 2, 3), partition_epoch=2
        )
        proposing = Proposing(sim, Answers(AlterPartitionResponse(partitions=(done,))))
        fetched(proposing.role, 3, 0)
        proposal = proposing.expand()
        sim.spawn("n1", proposing.manager.run())
        await asyncio.sleep(0.5)
        assert (proposing.role.isr, proposing.role.proposal) == ((1, 2), proposal)

    played(story)


class FrozenController:
    """A network whose broker n1 answers nothing; every other one commits each proposal."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []

    async def call(self, peer: Address, api: str, body: Buffers, *, deadline: float) -> bytes:
        loop = asyncio.get_running_loop()
        self.asked.append((peer.host, loop.time()))
        if peer.host == "n1":
            await asyncio.sleep(deadline - loop.time())
            raise OutcomeUnknown("no answer in time")
        item = decode_request(BY_NAME[api], b"".join(bytes(each) for each in body)).partitions[0]
        done = AlteredPartition(
            topic=item.topic,
            partition=item.partition,
            leader_id=1,
            leader_epoch=item.leader_epoch,
            isr=tuple(each.broker_id for each in item.new_isr),
            partition_epoch=item.partition_epoch + 1,
        )
        return b"".join(bytes(each) for each in encode_response(AlterPartitionResponse(partitions=(done,))))


def test_an_isr_change_that_waits_for_a_replaced_controller_is_sent_to_the_new_one_at_once() -> None:
    """Issue 15: it waited for the timeout of the frozen controller, and acks=all waited with it. The partition epoch
    makes a second arrival harmless.
    """

    async def story(sim: SimWorld) -> None:
        network = FrozenController()
        proposing = Proposing(sim, network)
        manager, role = proposing.manager, proposing.role
        fetched(role, 3, 0)
        proposing.expand()
        sim.spawn("n1", manager.run())
        await asyncio.sleep(0.1)
        manager.on_new_controller()
        await asyncio.sleep(0.1)
        assert [host for host, _ in network.asked] == ["n1"], "the only controller that is known"
        proposing.controller, elected_at = Address("n2", 1), sim.loop.now
        manager.on_new_controller()
        await asyncio.sleep(0.01)
        assert network.asked[1:] == [("n2", pytest.approx(elected_at, abs=1e-3))]
        assert role.isr == (1, 2, 3)
        assert role.proposal is None

    played(story)


def fetchers_of(sim: SimWorld, following: Partition, events: Recorded, network: Any = None) -> ReplicaFetchers:
    """The fetchers of a follower. Without a network their loops never run: the test applies responses itself."""

    def spawn(coroutine: Coroutine[Any, Any, None], _name: str) -> Any:
        if network is not None:
            return sim.spawn("n1", coroutine)
        coroutine.close()
        return SimpleNamespace(done=lambda: False)

    fetchers = ReplicaFetchers(
        LiveSettings(BrokerConfig(), events),
        world_with(sim, network, events),
        partitions={TP: following},
        flushers={TP: Flusher(TP, following.log, spawn, pytest.fail)},
        purgatory=Purgatory(),
        append_throttle=AppendThrottle(),
        spawn=spawn,
        address_of=lambda _node: None if network is None else Address("n1", 1),
        broker_epoch=lambda: 20,
        on_storage_failure=lambda _name, why: pytest.fail(why),
        traffic=Traffic(lambda: 0),
    )
    fetchers.assign(following)
    return fetchers


def test_a_follower_goes_on_while_its_leader_refuses_connections_for_hours() -> None:
    """Without a quorum no leader is elected. After 1,024 refused fetches, 17 minutes, the pause between two of them was
    no longer a number, and the broker stopped itself: "OverflowError: int too large to convert to float".
    """
    events = Recorded()

    class Refuses:
        async def call(self, peer: Address, api: str, _body: Buffers, *, deadline: float) -> bytes:
            del deadline
            raise ConnectionRefused(f"{api} to {peer}: Connection refused")

    with SimWorld(1) as sim:
        following = seat(me=2)
        following.apply(state(leader=1), following.config, 0.0)
        sim.loop.call_soon(lambda: fetchers_of(sim, following, events, Refuses()))
        sim.loop.run_until(2 * 3600.0)
        before = len(events.of("fetch_failed"))
        assert before > 7000, "once a second, the longest pause"
        sim.loop.run_until(2 * 3600.0 + 10)
        assert len(events.of("fetch_failed")) > before


def test_a_log_that_begins_again_is_synced_before_the_next_fetch() -> None:
    """Whatever the policy of syncs: old records could come back before those of the next response."""
    events = Recorded()
    synced: list[bool] = []

    class Refuses:
        async def call(self, _peer: Address, _api: str, _body: Buffers, *, deadline: float) -> bytes:
            del deadline
            synced.append(not following.log.restart_is_unsynced)
            raise ConnectionRefused("n1")

    with SimWorld(1) as sim:
        following = seat(me=2)
        following.apply(state(leader=1), following.config, 0.0)
        following.log.restart_at(7)
        assert following.log.restart_is_unsynced
        sim.loop.call_soon(lambda: fetchers_of(sim, following, events, Refuses()))
        sim.loop.run_until(10.0)
    assert synced, "it was fetched"
    assert all(synced)


def test_a_replica_that_is_gone_is_asked_for_no_longer() -> None:
    """Its former leader would answer each request with an error, at once: the long poll of all others would end."""
    following = seat(2)
    following.apply(state(), following.config, 0.0)
    with SimWorld(1) as sim:
        fetchers = fetchers_of(sim, following, Recorded())
        loop = fetchers._loops[1]
        assert list(loop._next_fetches(sim.loop.now)) == [TP]
        fetchers.drop(TP)
        assert list(loop._next_fetches(sim.loop.now)) == []


def damaged_base_offset(data: bytes) -> bytes:
    """The one field that no checksum covers, with its sign bit flipped."""
    return bytes([data[0] ^ 0x80]) + data[1:]


def damaged_body(data: bytes) -> bytes:
    """A byte that the checksum covers."""
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("damage", [damaged_base_offset, damaged_body])
def test_a_damaged_answer_pauses_one_partition(damage: Any) -> None:
    """A follower refuses what its checks refuse, says so, and asks again later; the broker goes on."""
    events = Recorded()
    leading = leader()
    write(leading, "a")
    following = seat(2, events=events)
    following.apply(state(), following.config, 0.0)
    good = answer(leading, 0)
    data = b"".join(bytes(each) for each in stamped(batch("a"), base_offset=0, leader_epoch=0))
    bad = structs.replace(good, records=(damage(data),))
    with SimWorld(1) as sim:
        fetchers = fetchers_of(sim, following, events)
        loop = fetchers._loops[1]
        role = following.role
        asked = role.next_fetch()  # type: ignore[union-attr]
        assert loop._apply(TP, role, bad, asked) is None  # type: ignore[arg-type]
        assert [each["partition"] for each in events.of("fetch_corrupt")] == ["orders-0"]
        assert loop.following[TP] > sim.loop.now, "it is asked for again after a pause"
        assert loop._apply(TP, role, good, asked) is not None  # type: ignore[arg-type]
        assert following.log.end_offset == 1


def test_an_error_of_another_version_is_no_bug() -> None:
    """A newer peer may answer with a code that this version has no name for; events and messages tell its number."""
    assert error_name(6) == "NOT_LEADER_OR_FOLLOWER"
    assert error_name(9999) == "error 9999"
    unknown = error_of(9999, "whatever")
    assert (unknown.code, unknown.outcome, unknown.retriable) == (-1, "unknown", False)
    events = Recorded()
    following = seat(2, events=events)
    following.apply(state(), following.config, 0.0)
    with SimWorld(1) as sim:
        fetchers = fetchers_of(sim, following, events)
        role = following.role
        refusal = FetchedPartition(topic=TP.topic, partition=TP.partition, error_code=9999)
        assert fetchers._loops[1]._apply(TP, role, refusal, role.next_fetch()) is None  # type: ignore[arg-type,union-attr]
        assert [each["error"] for each in events.of("fetch_refused")] == ["error 9999"]
