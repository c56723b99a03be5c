"""What a consumer does with its group's offsets, and how it finds leaders and coordinators, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.client import routing
from minikafka.client.consumer import Consumer
from minikafka.client.group_offsets import GroupOffsets
from minikafka.client.metadata import ClusterView, Update
from minikafka.client.routing import Coordinator, Leaders
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import CommitFailed
from minikafka.errors import (
    NOT_WRITTEN,
    UNKNOWN,
    GroupAuthorizationFailed,
    LeaderNotAvailable,
    NetworkException,
    ProtocolError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from minikafka.types import Address, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire.group_messages import FetchedOffset, OffsetFetchRequest, OffsetFetchResponse
from minikafka.wire.messages import ListedOffset, ListOffsetsRequest, ListOffsetsResponse

READ = TopicPartition("orders", 0)


def consumer_of_group(meanwhile: Callable[[Consumer], None] = lambda _: None) -> Consumer:
    """It has one partition by hand, of which the group has committed offset 5."""
    config = ConsumerConfig(bootstrap_servers="127.0.0.1:1", group_id="g")
    consumer = Consumer(config, cast("Any", SimpleNamespace()))

    async def committed(partitions: list[TopicPartition]) -> dict[TopicPartition, FetchedOffset]:
        meanwhile(consumer)
        return {each: FetchedOffset(topic=each.topic, partition=each.partition, offset=5) for each in partitions}

    consumer.assign([READ])
    consumer._offsets = cast("Any", SimpleNamespace(committed=committed))
    return consumer


@pytest.mark.parametrize(
    ("meanwhile", "position"),
    [(lambda _: None, 5), (lambda consumer: consumer.seek(READ, 2), 2)],
    ids=["still", "seek"],
)
async def test_a_seek_is_not_undone_by_the_committed_offset(meanwhile: Callable[[Consumer], None], position: int):
    """S35: the application went elsewhere while the group's offset was looked up."""
    consumer = consumer_of_group(meanwhile)
    assert await consumer._look_up_committed([READ])
    assert consumer._positions.states[READ].position == position


def test_a_consumer_that_is_no_member_has_no_group_metadata():
    """KIP-447: offsets would be committed in a transaction as by hand, without the fence of a generation."""
    consumer = consumer_of_group()
    assert consumer.group_metadata().generation_id == -1, "its partitions were assigned by hand"
    consumer._member = cast("Any", SimpleNamespace(membership=lambda: None))
    with pytest.raises(CommitFailed):
        consumer.group_metadata()


def started(consumer: Consumer, changed: Callable[[], None] = lambda: None) -> Consumer:
    """As after ``start``; ``changed`` is called when it waits for news."""

    async def wait(_deadline: float) -> bool:
        changed()
        return True

    consumer._fetcher = cast("Any", SimpleNamespace(broken=None, changed=wait, wake=lambda: None))
    consumer._world = cast("Any", SimpleNamespace(clock=SimpleNamespace(now=lambda: 0.0)))
    consumer._metadata = cast("Any", SimpleNamespace())
    return consumer


async def test_no_record_is_handed_out_while_the_group_changes_hands():
    """S31: the partition may be another member's when the rebalance is over; a ``getone`` that waits goes on then."""
    waited: list[int] = []

    def rebalanced() -> None:
        waited.append(len(taken))
        gate.holding = len(waited) < 3

    taken: list[str] = []
    gate = SimpleNamespace(holding=True, enter=lambda: None, leave=lambda: None)
    consumer = started(consumer_of_group(), rebalanced)
    consumer._offsets = cast("Any", SimpleNamespace(due=lambda: None))
    consumer._gate = cast("Any", gate)
    consumer._positions = cast(
        "Any",
        SimpleNamespace(
            states={READ: None}, asked=lambda: None, opened=0, take_one=lambda _: taken.append("record") or taken[-1]
        ),
    )
    assert cast("Any", await consumer.getone()) == "record"
    assert (waited, len(taken)) == ([0, 0, 0], 1)


@pytest.mark.parametrize(("isolation_level", "asked"), [("read_committed", 1), ("read_uncommitted", 0)])
async def test_the_end_of_a_partition_is_that_of_the_consumers_isolation(
    isolation_level: str, asked: int, monkeypatch: pytest.MonkeyPatch
):
    """A reader of committed records that reads up to ``end_offsets`` would wait for an open transaction."""
    levels: list[int] = []

    async def list_offsets(_self: object, wanted: dict[TopicPartition, int], **options: Any) -> dict[Any, Any]:
        levels.append(options["isolation_level"])
        return {each: ListedOffset(topic=each.topic, partition=each.partition, offset=3) for each in wanted}

    monkeypatch.setattr(Leaders, "list_offsets", list_offsets)
    config = ConsumerConfig(bootstrap_servers="127.0.0.1:1", isolation_level=isolation_level)
    consumer = started(Consumer(config, cast("Any", SimpleNamespace())))
    assert await consumer.end_offsets([READ]) == {READ: 3}
    assert levels == [asked]


@pytest.mark.parametrize("by_hand", [True, False])
async def test_a_topic_that_brokers_refuse_is_an_error_in_place_of_silence(by_hand: bool):
    """As in Kafka, `poll` raises TOPIC_AUTHORIZATION_FAILED; a topic that may yet be created is waited for."""
    config, world = ConsumerConfig(bootstrap_servers="127.0.0.1:1"), cast("Any", SimpleNamespace())
    consumer = Consumer(config, world, () if by_hand else ["orders"])
    if by_hand:
        consumer.assign([READ])
    started(consumer)
    view, refreshes = ClusterView(), []
    consumer._metadata = cast("Any", SimpleNamespace(view=view, refresh_soon=lambda: refreshes.append("soon")))
    view.errors = {"payments": TopicAuthorizationFailed("no permission"), "orders": UnknownTopicOrPartition("unknown")}
    assert await consumer.getmany() == {}
    asks: list[Callable[[], Any]] = [consumer.getmany, consumer.getone]
    asks += [lambda: consumer.position(READ)] if by_hand else []
    for ask in asks:
        view.errors["orders"] = TopicAuthorizationFailed("no permission for DESCRIBE")
        with pytest.raises(TopicAuthorizationFailed, match="orders: no permission for DESCRIBE"):
            await ask()
        assert await consumer.getmany() == {}, "until another response says so: a caller that goes on does not spin"
    assert refreshes == ["soon"] * len(asks)


@pytest.mark.parametrize(
    ("error", "asked"), [(UnknownTopicOrPartition("unknown"), 1), (TopicAuthorizationFailed("no permission"), 0)]
)
def test_metadata_is_requested_until_a_topic_that_is_read_exists(error: ProtocolError, asked: int):
    """Before, a topic that was created after the consumer had begun was found after metadata_max_age_ms only."""
    config, world = ConsumerConfig(bootstrap_servers="127.0.0.1:1"), cast("Any", SimpleNamespace())
    consumer = started(Consumer(config, world, ["orders"]))
    view, refreshes = ClusterView(), []
    view.errors["orders"] = error
    consumer._metadata = cast("Any", SimpleNamespace(view=view, refresh_soon=lambda: refreshes.append("soon")))
    consumer._on_metadata(Update(accepted=True))
    assert len(refreshes) == asked


async def test_an_offset_of_zero_is_committed_too_and_open_transactions_are_awaited():
    """A group that has read nothing may say so; -1 is nothing. KIP-447: the answer must not be older than a commit."""
    requests: list[OffsetFetchRequest] = []

    async def ask(request: OffsetFetchRequest, **_: object) -> OffsetFetchResponse:
        requests.append(request)
        found = [
            FetchedOffset(topic="orders", partition=number, offset=offset) for number, offset in enumerate((0, -1))
        ]
        return OffsetFetchResponse(partitions=tuple(found))

    offsets = GroupOffsets(
        ConsumerConfig(bootstrap_servers="127.0.0.1:1", group_id="g"),
        cast("Any", SimpleNamespace(clock=SimpleNamespace(now=lambda: 0.0))),
        cast("Any", SimpleNamespace(group="g", ask=ask)),
        cast("Any", None),
        lambda: None,
    )
    found = await offsets.committed([READ, TopicPartition("orders", 1)])
    assert {name: each.offset for name, each in found.items()} == {READ: 0}
    assert [each.require_stable for each in requests] == [True]


class Brokers:
    """Two brokers as a coordinator's client sees them; ``found`` are the answers to FindCoordinator."""

    def __init__(self, *found: g.Coordinator) -> None:
        self.found = list(found)
        self.asked: list[int] = []
        """Ports, in the order of the requests to the coordinator."""
        self.refused_at: set[int] = set()
        self.locked_at: set[int] = set()
        self.outcome = NOT_WRITTEN
        self.answers_after = 0
        """Turns of the loop."""
        self.now_s = 0.0
        self.pauses = self.refreshes = 0
        self.why = None
        self.coordinator = Coordinator(
            "g",
            ConsumerConfig(bootstrap_servers="127.0.0.1:1"),
            cast("Any", SimpleNamespace(clock=SimpleNamespace(now=lambda: self.now_s))),
            cast("Any", self),
        )
        self.coordinator._caller = cast("Any", self)

    def any_addresses(self) -> list[Address]:
        return [Address("h", 1), Address("h", 2)]

    def attempts(self, _deadline: float) -> Any:
        self.pauses = 0
        return self

    async def pause(self) -> bool:
        self.pauses += 1
        self.now_s += 1.0
        return self.pauses < 5

    def refresh_soon(self) -> None:
        self.refreshes += 1

    async def call(self, _address: Address, _request: object, **_: object) -> g.FindCoordinatorResponse:
        if not self.found:
            raise NetworkException("nobody is there")
        return g.FindCoordinatorResponse(coordinators=(self.found.pop(0),))

    async def ask(self, address: Address, _request: object, **_: object) -> g.HeartbeatResponse:
        self.asked.append(address.port)
        for _ in range(self.answers_after):
            await asyncio.sleep(0)
        if address.port in self.refused_at:
            raise NetworkException("nobody is there", outcome=self.outcome)
        if address.port in self.locked_at:
            raise SaslAuthenticationFailed("the token has expired")
        return g.HeartbeatResponse()


def at(port: int) -> g.Coordinator:
    return g.Coordinator(key="g", node_id=port, host="h", port=port)


HEARTBEAT = g.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


async def test_a_coordinator_that_does_not_answer_is_looked_up_again():
    """It may have died, and another broker coordinates the group now."""
    brokers = Brokers(at(1), at(2))
    brokers.refused_at = {1}
    await brokers.coordinator.ask(HEARTBEAT, deadline=9.0)
    await brokers.coordinator.ask(HEARTBEAT, deadline=9.0)
    assert brokers.asked == [1, 2, 2]


async def test_metadata_is_requested_when_a_coordinator_fails_for_longer_than_a_failover_takes():
    """Only metadata says that the quorum is lost; two short failovers, a minute apart, are none that takes long."""
    brokers = Brokers(at(1), at(2), at(1))
    for now_s, port in ((0.0, 1), (60.0, 2)):
        brokers.now_s, brokers.refused_at = now_s, {port}
        await brokers.coordinator.ask(HEARTBEAT, deadline=99.0)
    assert (brokers.asked, brokers.refreshes) == ([1, 2, 2, 1], 0)
    brokers.refused_at, brokers.found = {1}, [at(1), at(1), at(2)]
    await brokers.coordinator.ask(HEARTBEAT, deadline=99.0)
    assert (brokers.asked[4:], brokers.refreshes) == ([1, 1, 1, 2], 1)


async def test_a_client_without_permission_asks_no_other_broker():
    """All give the same answer: the application learns of it at once, and not by a timeout."""
    brokers = Brokers(*[g.Coordinator.with_error(GroupAuthorizationFailed("no"), key="g")] * 2)
    with pytest.raises(GroupAuthorizationFailed):
        await brokers.coordinator.ask(HEARTBEAT, deadline=9.0)
    assert len(brokers.found) == 1


COMMIT = g.OffsetCommitRequest(group_id="g", partitions=())


async def test_a_lookup_that_is_refused_leaves_an_attempt_without_a_response_unknown():
    """The first attempt may have been written: the client's permission was taken away only after that."""
    brokers = Brokers(at(1), g.Coordinator.with_error(GroupAuthorizationFailed("no"), key="g"))
    brokers.refused_at, brokers.outcome = {1}, UNKNOWN
    with pytest.raises(GroupAuthorizationFailed) as raised:
        await brokers.coordinator.ask(COMMIT, deadline=9.0)
    assert raised.value.outcome == UNKNOWN


async def test_a_login_that_is_refused_leaves_an_attempt_without_a_response_unknown():
    """As above: the second attempt finds that its credentials have expired."""
    brokers = Brokers(at(1), at(2))
    brokers.refused_at, brokers.locked_at, brokers.outcome = {1}, {2}, UNKNOWN
    with pytest.raises(SaslAuthenticationFailed) as raised:
        await brokers.coordinator.ask(COMMIT, deadline=9.0)
    assert raised.value.outcome == UNKNOWN


async def test_a_lookup_that_is_refused_does_not_end_the_wait_for_a_response(monkeypatch: pytest.MonkeyPatch):
    """While a coordinator is slow, the client looks whether there is another one; the request may be written by then."""
    monkeypatch.setattr(routing, "LOOK_AFTER_MS", 0)
    brokers = Brokers(at(1), g.Coordinator.with_error(GroupAuthorizationFailed("no"), key="g"))
    brokers.answers_after = 5
    await brokers.coordinator.ask(HEARTBEAT, deadline=9.0)
    assert (brokers.asked, brokers.found) == ([1], [])


async def test_a_leader_that_has_answered_is_not_asked_once_more():
    """One partition's leader is not known yet: what the other one has done is not done twice."""
    asked: list[list[int]] = []

    async def call(_node: int, request: ListOffsetsRequest, **_: object) -> ListOffsetsResponse:
        asked.append([each.partition for each in request.partitions])
        late = len(asked) == 1
        return ListOffsetsResponse(
            partitions=tuple(
                ListedOffset.with_error(LeaderNotAvailable("soon"), topic="orders", partition=each.partition)
                if late and each.partition
                else ListedOffset(topic="orders", partition=each.partition, offset=3)
                for each in request.partitions
            )
        )

    async def pause() -> bool:
        return True

    view = SimpleNamespace(
        leader=lambda *_: SimpleNamespace(node=1, epoch=0), brokers={1}, errors={}, partition_count=lambda _: 2
    )
    metadata = SimpleNamespace(
        view=view,
        attempts=lambda _: SimpleNamespace(pause=pause, why=None),
        follow=lambda _: None,
        call=call,
        learn_leader=lambda *_: None,
        refresh_soon=lambda: None,
    )
    leaders = Leaders(
        ConsumerConfig(bootstrap_servers="127.0.0.1:1"),
        cast("Any", SimpleNamespace(clock=SimpleNamespace(now=lambda: 0.0))),
        cast("Any", metadata),
    )
    found = await leaders.list_offsets({READ: -1, TopicPartition("orders", 1): -1}, deadline=9.0)
    assert [each.offset for each in found.values()] == [3, 3]
    assert asked == [[0, 1], [1]]
