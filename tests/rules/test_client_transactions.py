"""A producer's transactions: what a failure does to the open one, and the outcome of a commit that was requested twice."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.client.settings import ProducerConfig
from minikafka.client.structs import GroupMetadata
from minikafka.client.transactions import State, Transactions, offsets_of
from minikafka.errors import (
    NetworkException,
    OutcomeUnknown,
    ProducerFenced,
    ProtocolError,
    RequestTimedOut,
    TopicAuthorizationFailed,
    TransactionAbortable,
)
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import PartitionOutcome
from minikafka.wire.messages import InitProducerIdResponse
from minikafka.wire.outcomes import EarlierAttempts
from minikafka.wire.transaction_messages import EndTxnRequest, EndTxnResponse, TxnOffsetCommitResponse


class Producing:
    """A producer that has sent a record, and whose coordinator gives these answers."""

    def __init__(self, *answers: object) -> None:
        self.answers = [InitProducerIdResponse(producer_id=7, producer_epoch=0), *answers]
        self.did: list[str] = []
        self.asked: list[object] = []
        self.on_failure: Any = None
        config = ProducerConfig(bootstrap_servers="127.0.0.1:1", transactional_id="tx")
        world = SimpleNamespace(clock=SimpleNamespace(now=lambda: 0.0))
        self.transactions = Transactions(
            config,
            cast("Any", world),
            cast("Any", None),
            cast("Any", self),
            cast("Any", SimpleNamespace(has_sent=True)),
            on_doomed=lambda: self.did.append("doomed"),
        )
        self.transactions._coordinator = cast("Any", self)

    async def ask(self, request: object, *, earlier: EarlierAttempts | None = None, **_: object) -> object:
        """As the coordinator. Answers behind an OutcomeUnknown are those to a second attempt."""
        self.asked.append(request)
        while isinstance(self.answers[0], OutcomeUnknown) and earlier is not None:
            earlier.note(NetworkException("no answer", outcome="unknown"))
            self.answers.pop(0)
        answer = self.answers.pop(0)
        if isinstance(answer, asyncio.Future):
            answer = await answer
        if isinstance(answer, ProtocolError):
            raise answer
        return answer

    async def flushed(self) -> None:
        """As the sender, like the methods below."""
        self.did.append("flushed")

    def check(self) -> None: ...

    def begin_identity(self, _: object) -> None: ...

    def drop_unsent(self, _: object) -> None:
        self.did.append("dropped")

    async def begun(self) -> Transactions:
        await self.transactions.initialize()
        self.transactions.begin()
        return self.transactions


def ended(epoch: int) -> EndTxnResponse:
    return EndTxnResponse(producer_id=7, producer_epoch=epoch)


def lost() -> RequestTimedOut:
    return RequestTimedOut("no answer", outcome="unknown")


def fenced() -> EndTxnResponse:
    return EndTxnResponse.with_error(ProducerFenced("another took over"))


async def test_a_transaction_that_is_doomed_sends_nothing_more():
    """Each batch that is sent now would join the next transaction of its partition, or hold up the abort."""
    producing = Producing()
    transactions = await producing.begun()
    transactions.doom(RequestTimedOut("a batch"))
    assert transactions.state is State.DOOMED
    assert producing.did == ["doomed", "dropped"]


async def test_a_transaction_is_aborted_when_nothing_is_under_way():
    """A batch that arrives behind the abort would be in a transaction that nobody ends."""
    producing = Producing(ended(1))
    transactions = await producing.begun()
    await transactions.abort()
    assert producing.did == ["dropped", "flushed"]
    assert transactions.state is State.IDLE


async def test_the_outcome_of_a_commit_is_that_of_all_its_attempts():
    """The first call had no answer: its transaction may have been committed before the producer was fenced."""
    transactions = await Producing(lost(), fenced()).begun()
    with pytest.raises(RequestTimedOut):
        await transactions.commit()
    with pytest.raises(ProducerFenced) as raised:
        await transactions.commit()
    assert raised.value.outcome == "unknown"


async def test_the_attempts_of_a_former_transaction_say_nothing_of_the_next_one():
    """The first one was committed by the second attempt; of the next one nothing was."""
    transactions = await Producing(lost(), ended(1), fenced()).begun()
    with pytest.raises(RequestTimedOut):
        await transactions.commit()
    await transactions.commit()
    transactions.begin()
    with pytest.raises(ProducerFenced) as raised:
        await transactions.commit()
    assert raised.value.outcome == "not_written"


async def test_a_commit_that_the_coordinator_refuses_as_abortable_leaves_the_abort():
    """KIP-890: the next commit is refused without a request, the abort is not."""
    refused = EndTxnResponse.with_error(TransactionAbortable("not verified"))
    transactions = await Producing(refused, ended(1)).begun()
    with pytest.raises(TransactionAbortable):
        await transactions.commit()
    assert transactions.state is State.DOOMED
    await transactions.abort()
    assert transactions.state is State.IDLE


async def test_offsets_that_one_partition_refuses_doom_the_transaction():
    """KIP-447: the records would be committed without them, and be made once more from the same inputs."""
    refused = PartitionOutcome.failed(TopicAuthorizationFailed("no"), topic="orders", partition=0)
    producing = Producing(TxnOffsetCommitResponse(partitions=(refused,)), ended(1))
    transactions = await producing.begun()
    transactions._groups["g"] = cast("Any", producing)
    offsets = offsets_of({TopicPartition("orders", 0): 5})
    with pytest.raises(TopicAuthorizationFailed):
        await transactions.send_offsets(offsets, GroupMetadata("g"))
    assert transactions.state is State.DOOMED
    with pytest.raises(TransactionAbortable):
        await transactions.commit()


ORDERS, REFUNDS = TopicPartition("orders", 0), TopicPartition("refunds", 0)
GROUP = GroupMetadata("g")


async def sending_offsets(*answers: object) -> Transactions:
    """A producer with an open transaction; these are the answers of the group's coordinator and of its own."""
    producing = Producing(*answers)
    transactions = await producing.begun()
    transactions._groups["g"] = cast("Any", producing)
    return transactions


async def test_other_offsets_do_not_follow_an_attempt_without_a_response():
    """A copy of that request that arrives late would be the last word: the group would go back when this commits."""
    done = TxnOffsetCommitResponse()
    transactions = await sending_offsets(OutcomeUnknown(), done, done, ended(1), done)
    await transactions.send_offsets(offsets_of({ORDERS: 5}), GROUP)
    await transactions.send_offsets(offsets_of({ORDERS: 5, REFUNDS: 2}), GROUP)
    with pytest.raises(TransactionAbortable, match="offset 5 of orders-0 may arrive after that for offset 9"):
        await transactions.send_offsets(offsets_of({ORDERS: 9}), GROUP)
    assert transactions.state is State.DOOMED
    await transactions.abort()
    transactions.begin()
    await transactions.send_offsets(offsets_of({ORDERS: 9}), GROUP)
    assert transactions.state is State.OPEN


async def test_offsets_follow_each_other_when_each_request_had_its_response():
    """A transaction may commit offsets more than once."""
    done = TxnOffsetCommitResponse()
    transactions = await sending_offsets(done, done, ended(1))
    await transactions.send_offsets(offsets_of({ORDERS: 5}), GROUP)
    await transactions.send_offsets(offsets_of({ORDERS: 9}), GROUP)
    await transactions.commit()
    assert transactions.state is State.IDLE


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_commit_waits_for_offsets_that_are_under_way(is_refused: bool):
    """Of a call that was not awaited: the records would be committed without them, or with them, by chance."""
    response: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    transactions = await sending_offsets(response, ended(1))
    sending = asyncio.ensure_future(transactions.send_offsets(offsets_of({ORDERS: 5}), GROUP))
    await asyncio.sleep(0)
    committing = asyncio.ensure_future(transactions.commit())
    for _ in range(5):
        await asyncio.sleep(0)
    asked = cast("Any", transactions._groups["g"]).asked
    assert not any(isinstance(each, EndTxnRequest) for each in asked)
    if not is_refused:
        response.set_result(TxnOffsetCommitResponse())
        await committing
        assert transactions.state is State.IDLE
        return
    refused = PartitionOutcome.failed(TopicAuthorizationFailed("no"), topic="orders", partition=0)
    response.set_result(TxnOffsetCommitResponse(partitions=(refused,)))
    with pytest.raises(TransactionAbortable):
        await committing
    with pytest.raises(TopicAuthorizationFailed):
        await sending
    assert not any(isinstance(each, EndTxnRequest) for each in asked)


async def test_a_commit_does_not_wait_for_offsets_of_the_transaction_before():
    """They were under way when that one was aborted: its epoch has fenced them."""
    response: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    transactions = await sending_offsets(response, ended(1), ended(2))
    sending = asyncio.ensure_future(transactions.send_offsets(offsets_of({ORDERS: 5}), GROUP))
    await asyncio.sleep(0)
    await transactions.abort()
    transactions.begin()
    async with asyncio.timeout(1.0):
        await transactions.commit()
    response.set_exception(ProducerFenced("epoch 0 is over"))
    with pytest.raises(ProducerFenced):
        await sending
    assert transactions.state is State.IDLE
