"""Producer ids: blocks of the controller, and what a client receives while there are none."""

from __future__ import annotations

import asyncio

import pytest

from minikafka.broker.api.producer_ids import EPOCH_MAX, ProducerIds
from minikafka.errors import (
    CoordinatorLoadInProgress,
    LeaderNotAvailable,
    NotController,
    ProtocolError,
    StaleBrokerEpoch,
)
from minikafka.wire.kafka.translate.common import Directory, Exchange
from minikafka.wire.kafka.translate.produce import INIT_PRODUCER_ID
from minikafka.wire.messages import AllocateProducerIdsResponse, InitProducerIdRequest, InitProducerIdResponse


def ids_of(*answers: AllocateProducerIdsResponse | None) -> ProducerIds:
    """A broker's, whose controller gives these answers; None: it gives none."""
    left = iter(answers)

    async def ask(_request: object) -> object | None:
        await asyncio.sleep(0)
        return next(left)

    return ProducerIds(1, broker_epoch=lambda: 7, ask_controller=ask)


def block(start: int, size: int) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=size)


async def test_concurrent_producers_get_different_ids_and_one_block_at_a_time():
    """The next block is requested when the last id is gone, once for all that wait."""
    ids = ids_of(block(1000, 2), block(5000, 2))
    given = await asyncio.gather(*(ids.handle_init_producer_id(InitProducerIdRequest()) for _ in range(4)))
    assert sorted(each.producer_id for each in given) == [1000, 1001, 5000, 5001]
    assert {each.producer_epoch for each in given} == {0}


async def test_a_producer_whose_epochs_are_used_up_gets_another_id():
    """The next epoch would be no int16; the one before it has a successor."""
    ids = ids_of(block(1000, 1))
    given = [
        await ids.handle_init_producer_id(InitProducerIdRequest(producer_id=7, producer_epoch=epoch))
        for epoch in (EPOCH_MAX - 1, EPOCH_MAX)
    ]
    assert [(each.producer_id, each.producer_epoch) for each in given] == [(7, EPOCH_MAX), (1000, 0)]


@pytest.mark.parametrize("error", [None, NotController, StaleBrokerEpoch])
async def test_request_without_an_id_is_retried_by_every_client(error: type[ProtocolError] | None):
    """KAFKA-14417: Java's producers before 3.4 retry COORDINATOR_LOAD_IN_PROGRESS; other codes are fatal for them."""
    answer = None if error is None else AllocateProducerIdsResponse.with_error(error("not now"))
    with pytest.raises(LeaderNotAvailable) as raised:
        await ids_of(answer).handle_init_producer_id(InitProducerIdRequest())
    refused = InitProducerIdResponse.with_error(raised.value)
    for version in range(INIT_PRODUCER_ID.first, INIT_PRODUCER_ID.last + 1):
        exchange = Exchange(version, _nothing(), "client")
        assert INIT_PRODUCER_ID.response({}, refused, exchange)["error_code"] == CoordinatorLoadInProgress.code


async def test_id_is_given_when_the_controller_answers_again():
    """A failed request of a block keeps nothing."""
    ids = ids_of(None, block(3000, 1))
    with pytest.raises(LeaderNotAvailable):
        await ids.allocate()
    assert await ids.allocate() == 3000


def _nothing() -> Directory:
    class Nothing:
        def topic_name(self, _topic_id: str) -> None:
            return None

        def topic_id(self, _name: str) -> None:
            return None

        def endpoint(self, _node: int) -> None:
            return None

    return Nothing()
