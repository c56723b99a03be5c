"""The watch of consumers (KIP-320) judges a consumer by the responses that it has received, and by no others."""

from __future__ import annotations

from typing import Any, cast

from minikafka.sim.consumer_watch import ConsumerWatch
from minikafka.sim.network import DELIVERED, SimNetwork
from minikafka.sim.verdicts import Message
from minikafka.sim.world import SimWorld
from minikafka.wire import messages as m
from minikafka.wire.codec import encode_request, encode_response
from minikafka.wire.records import Record, build_batch

LEADER, CONSUMER = "n1", "g1"


class Conversation:
    """One consumer and one leader of orders-0, message by message."""

    def __init__(self, sim: SimWorld) -> None:
        self.names: list[str] = []
        self._network: SimNetwork = sim.network
        ConsumerWatch(sim, [CONSUMER], lambda name, _: self.names.append(name))

    def ask(self, call: int, api: str, *partitions: Any) -> None:
        request = {"Fetch": m.FetchRequest, "OffsetForLeaderEpoch": m.OffsetForLeaderEpochRequest}[api]
        body = b"".join(encode_request(cast("Any", request)(partitions=partitions)))
        self._sent(Message(call, "request", CONSUMER, LEADER, api, body))

    def fetch(self, call: int, offset: int, epoch: int) -> None:
        self.ask(
            call,
            "Fetch",
            m.FetchPartition(
                topic="orders",
                partition=0,
                current_leader_epoch=epoch,
                fetch_offset=offset,
                partition_max_bytes=1000,
            ),
        )

    def validate(self, call: int, epoch: int, last_epoch: int) -> None:
        self.ask(
            call,
            "OffsetForLeaderEpoch",
            m.EpochQuery(topic="orders", partition=0, current_leader_epoch=epoch, leader_epoch=last_epoch),
        )

    def fetched(self, call: int, *epochs: int) -> None:
        """The answer to a fetch: from offset 0 on one record for each leader epoch."""
        batches = [
            build_batch([Record(0, 1, value=b"v")], base_offset=offset, leader_epoch=epoch)
            for offset, epoch in enumerate(epochs)
        ]
        found = m.FetchedPartition(topic="orders", partition=0, high_watermark=len(epochs), records=tuple(batches))
        self.answer(call, m.FetchResponse(partitions=(found,)))

    def answer(self, call: int, response: object, *, is_received: bool = True) -> None:
        api = "Fetch" if isinstance(response, m.FetchResponse) else "OffsetForLeaderEpoch"
        message = Message(call, "answer", LEADER, CONSUMER, api, b"".join(encode_response(response)))
        self._sent(message)
        for observer in self._network.answered if is_received else ():
            observer(message)

    def _sent(self, message: Message) -> None:
        for observer in self._network.observers:
            observer(message, DELIVERED)


EMPTY_FETCH = m.FetchResponse(partitions=(m.FetchedPartition(topic="orders", partition=0),))


def diverging_at(offset: int) -> m.OffsetForLeaderEpochResponse:
    answer = m.EpochAnswer(topic="orders", partition=0, leader_epoch=0, end_offset=offset)
    return m.OffsetForLeaderEpochResponse(partitions=(answer,))


def test_the_second_response_to_a_doubled_validation_does_not_count() -> None:
    """The consumer fetches from where the logs diverge, and goes on; then the copy of its request is answered."""
    with SimWorld(1) as sim:
        talk = Conversation(sim)
        talk.validate(1, epoch=2, last_epoch=0)
        talk.answer(1, diverging_at(17))
        talk.fetch(2, offset=17, epoch=2)
        talk.answer(2, EMPTY_FETCH)
        talk.answer(1, diverging_at(17), is_received=False)
        talk.fetch(3, offset=44, epoch=2)
        assert talk.names == []


def test_a_fetch_past_the_divergence_is_reported() -> None:
    """A response that was lost binds nobody; one that was received does."""
    with SimWorld(1) as sim:
        talk = Conversation(sim)
        talk.validate(1, epoch=2, last_epoch=0)
        talk.answer(1, diverging_at(17), is_received=False)
        talk.fetch(2, offset=44, epoch=2)
        assert talk.names == []
        talk.validate(3, epoch=3, last_epoch=0)
        talk.answer(3, diverging_at(17))
        talk.fetch(4, offset=18, epoch=3)
        assert talk.names == ["fetched_past_divergence"]


def test_a_fetch_that_goes_on_in_an_epoch_that_is_not_validated_is_reported() -> None:
    """Behind what was fetched the next leader must have confirmed the position; a fetch without an epoch asks nobody."""
    with SimWorld(1) as sim:
        talk = Conversation(sim)
        talk.fetch(1, offset=0, epoch=1)
        talk.fetched(1, 0, 1)
        talk.fetch(2, offset=2, epoch=1)
        talk.answer(2, EMPTY_FETCH)
        assert talk.names == []
        talk.fetch(3, offset=2, epoch=2)
        talk.fetch(4, offset=2, epoch=-1)
        assert talk.names == ["fetched_before_validation"] * 2


def test_a_validation_asks_about_the_epoch_of_the_last_batch() -> None:
    """Not about an older one that the consumer has read before, nor about the present one."""
    with SimWorld(1) as sim:
        talk = Conversation(sim)
        talk.fetch(1, offset=0, epoch=2)
        talk.fetched(1, 0, 1)
        talk.validate(2, epoch=3, last_epoch=1)
        assert talk.names == []
        for call, last_epoch in ((3, 0), (4, 2)):
            talk.validate(call, epoch=3, last_epoch=last_epoch)
        assert talk.names == ["validated_with_wrong_epoch"] * 2


def test_a_position_that_was_confirmed_needs_the_next_leaders_word_again() -> None:
    """The first validation found no divergence; the consumer goes on, and the leader changes once more."""
    with SimWorld(1) as sim:
        talk = Conversation(sim)
        talk.fetch(1, offset=0, epoch=1)
        talk.fetched(1, 0)
        talk.validate(2, epoch=2, last_epoch=0)
        talk.answer(2, diverging_at(1))
        talk.fetch(3, offset=1, epoch=2)
        assert talk.names == []
        talk.fetch(4, offset=1, epoch=3)
        assert talk.names == ["fetched_before_validation"]
