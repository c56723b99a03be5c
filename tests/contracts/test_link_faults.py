"""Faults between real sockets: what callers learn, what servers saw (issue 5, testing doors)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from minikafka.errors import OutcomeUnknown, Unreachable
from minikafka.ports import Buffers, RequestContext, no_events
from minikafka.types import Address
from minikafka.wire.codec import decode_response, encode_request, encode_response
from minikafka.wire.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from minikafka.world.faults import Faults, FaultSpec
from minikafka.world.http import HttpNetwork
from minikafka.world.link_faults import LinkEnd
from minikafka.world.rpc_connection import NotAnswered
from tests.rules.replication_kit import batch_at

PATIENCE_S = 60.0
BRIEFLY_S = 0.3
"""Of a caller who shall wait in vain."""


class Node:
    """One end of the network with a handler that writes down what came."""

    def __init__(self, faults: Faults | None, name: str, nodes: dict[Address, str]) -> None:
        links = None
        if faults is not None:
            links = LinkEnd(faults, name, name_of=lambda address: nodes.get(address, "?"), events=no_events)
        self.network = HttpNetwork(links=links)
        self.seen: list[tuple[str, bytes]] = []
        self.reached = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.answer: Buffers | None = None
        """What it answers; None: what it was sent."""

    async def handle(self, api: str, body: bytes, _context: RequestContext) -> Buffers:
        self.seen.append((api, bytes(body)))
        self.reached.set()
        await self.may_answer.wait()
        return [b"answer ", body] if self.answer is None else self.answer

    async def call(self, peer: Address, api: str = "Vote", body: bytes = b"1", patience_s: float = PATIENCE_S) -> bytes:
        deadline = asyncio.get_running_loop().time() + patience_s
        return bytes(await self.network.call(peer, api, [body], deadline=deadline))


class Pair:
    """Broker 2, which calls; broker 1, which serves at ``at``; and a client that is neither."""

    def __init__(self, *, shared: bool) -> None:
        nodes: dict[Address, str] = {}
        self.faults = Faults()
        """At broker 1, and at broker 2 if it is in the same process."""
        self.one = Node(self.faults, "1", nodes)
        self.two = Node(self.faults if shared else Faults(), "2", nodes)
        self.client = Node(None, "", nodes)
        self.nodes = nodes
        self.at = Address("", 0)

    def fault(self, kind: str, link: str = "2>1", **more):
        return self.faults.add(FaultSpec(kind=kind, link=link, **more))


@asynccontextmanager
async def pair(*, shared: bool = True) -> AsyncIterator[Pair]:
    made = Pair(shared=shared)
    server = await made.one.network.serve(Address("127.0.0.1", 0), made.one.handle)
    made.at = server.address
    made.nodes[server.address] = "1"
    try:
        yield made
    finally:
        made.faults.clear()
        for node in (made.two, made.client, made.one):
            await node.network.close()


BROKERS = pytest.mark.parametrize("shared", [True, False], ids=["one process", "two processes"])


async def test_a_cut_request_did_not_happen():
    """Its sender may send again: nothing arrived, and it learns so at once."""
    async with pair() as it:
        it.fault("cut", message="request", count=1)
        with pytest.raises(Unreachable, match=r"fault 1 \(cut 2>1"):
            await it.two.call(it.at)
        assert it.one.seen == []
        assert await it.two.call(it.at) == b"answer 1"


@BROKERS
async def test_a_cut_answer_is_an_unknown_outcome(shared: bool):
    """The other half of S5: the request was carried out, and its sender cannot know."""
    async with pair(shared=shared) as it:
        it.fault("cut", "1>2", message="answer", count=1)
        with pytest.raises(OutcomeUnknown):
            await it.two.call(it.at)
        assert it.one.seen == [("Vote", b"1")]
        assert await it.two.call(it.at) == b"answer 1"


@BROKERS
async def test_a_dropped_request_is_found_out_at_the_deadline(shared: bool):
    """Silence tells nothing: outcome unknown, though it never arrived."""
    async with pair(shared=shared) as it:
        it.fault("drop", count=1)
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            await it.two.call(it.at, patience_s=BRIEFLY_S)
        assert it.one.seen == []
        assert await it.two.call(it.at) == b"answer 1"


@BROKERS
async def test_a_dropped_answer_is_found_out_at_the_deadline(shared: bool):
    """The same for its sender, and not the same for the receiver."""
    async with pair(shared=shared) as it:
        it.fault("drop", "1>2", count=1)
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            await it.two.call(it.at, patience_s=BRIEFLY_S)
        await it.one.reached.wait()
        assert it.one.seen == [("Vote", b"1")]


@BROKERS
async def test_a_link_has_a_direction_and_an_api(shared: bool):
    """Issue 5: *2 -> 1, Fetch only*."""
    async with pair(shared=shared) as it:
        fault = it.fault("drop", "2>1", api="Fetch")
        assert await it.two.call(it.at, "Vote") == b"answer 1"
        with pytest.raises(OutcomeUnknown):
            await it.two.call(it.at, "Fetch", patience_s=BRIEFLY_S)
        assert await it.client.call(it.at, "Fetch") == b"answer 1"
        assert fault.hits == 1


@BROKERS
async def test_a_held_request_arrives_when_the_fault_is_healed(shared: bool):
    """A packet of long ago (a zombie's): its sender gave up, and it arrives nevertheless."""
    async with pair(shared=shared) as it:
        fault = it.fault("hold")
        with pytest.raises(OutcomeUnknown):
            await it.two.call(it.at, body=b"late", patience_s=BRIEFLY_S)
        await fault.until_hits(1)
        assert it.one.seen == []
        it.faults.heal(fault.number)
        assert fault.held == [], "at once: the response to a DELETE shows what is held"
        async with asyncio.timeout(PATIENCE_S):
            await it.one.reached.wait()
        assert it.one.seen == [("Vote", b"late")]
        assert await it.two.call(it.at) == b"answer 1"


@BROKERS
async def test_a_delayed_request_takes_longer(shared: bool):
    """It arrives, `delay_ms` later."""
    async with pair(shared=shared) as it:
        it.fault("delay", delay_ms=60.0)
        began = time.monotonic()
        assert await it.two.call(it.at) == b"answer 1"
        assert time.monotonic() - began >= 0.06


@BROKERS
async def test_a_duplicated_request_is_handled_twice(shared: bool):
    """As through a proxy that retries: the first answer counts."""
    async with pair(shared=shared) as it:
        it.fault("duplicate", count=1)
        assert await it.two.call(it.at, body=b"x") == b"answer x"
        assert it.one.seen == [("Vote", b"x"), ("Vote", b"x")]
        await it.two.call(it.at, body=b"y")
        assert len(it.one.seen) == 3


@BROKERS
async def test_a_reordered_request_comes_after_a_later_one(shared: bool):
    """The first one waits, the next ones pass; it goes on when one of them was answered."""
    async with pair(shared=shared) as it:
        fault = it.fault("reorder", count=1, delay_ms=60_000.0)
        first = asyncio.ensure_future(it.two.call(it.at, body=b"first"))
        await fault.until_hits(1)
        assert await it.two.call(it.at, body=b"second") == b"answer second"
        assert await first == b"answer first"
        assert [body for _, body in it.one.seen] == [b"second", b"first"]
        assert (fault.hits, fault.late) == (1, {})


@BROKERS
async def test_a_reordered_answer_comes_after_a_later_one(shared: bool):
    """Answers have an order of their own."""
    async with pair(shared=shared) as it:
        fault = it.fault("reorder", "1>2", count=1, delay_ms=60_000.0)
        order: list[bytes] = []

        async def ask(body: bytes) -> None:
            order.append(await it.two.call(it.at, body=body))

        first = asyncio.ensure_future(ask(b"first"))
        await fault.until_hits(1)
        await ask(b"second")
        await first
        assert order == [b"answer second", b"answer first"]


@BROKERS
async def test_with_nothing_behind_it_a_reordered_message_is_late_only(shared: bool):
    """A caller with one request in flight sends no later one before its time is up: the wait is bounded."""
    async with pair(shared=shared) as it:
        it.fault("reorder", delay_ms=5.0, api="Vote")
        assert await it.two.call(it.at) == b"answer 1"
        it.faults.clear()
        fault = it.fault("reorder", delay_ms=60_000.0)
        late = asyncio.ensure_future(it.two.call(it.at))
        await fault.until_hits(1)
        it.faults.clear()
        assert await late == b"answer 1"


@BROKERS
@pytest.mark.parametrize("kind", ["cut", "drop", "delay"])
async def test_a_fault_strikes_answers_of_what_was_asked_before_it(shared: bool, kind: str):
    """A long poll that is parked when the link is cut: its answer does not slip through."""
    async with pair(shared=shared) as it:
        it.one.may_answer.clear()
        patience_s = 1.0 if kind == "drop" else PATIENCE_S
        calling = asyncio.ensure_future(it.two.call(it.at, patience_s=patience_s))
        await it.one.reached.wait()
        fault = it.fault(kind, "1>2", **({"delay_ms": 1.0} if kind == "delay" else {}))
        it.one.may_answer.set()
        await fault.until_hits(1)
        if kind == "delay":
            assert await calling == b"answer 1"
        else:
            with pytest.raises(OutcomeUnknown):
                await calling
        assert fault.hits == 1


@pytest.mark.parametrize(
    "kind, link, handled",
    [("cut", "client>1", 0), ("drop", "client>1", 0), ("cut", "1>client", 1), ("drop", "1>client", 1)],
)
async def test_what_clients_send_meets_its_faults_at_the_broker(kind: str, link: str, handled: int):
    """A client is whoever does not say which broker it is: Spark, curl, a producer of another process."""
    async with pair() as it:
        fault = it.fault(kind, link, count=1)
        with pytest.raises(OutcomeUnknown):
            await it.client.call(it.at, patience_s=BRIEFLY_S if kind == "drop" else PATIENCE_S)
        await fault.until_hits(1)
        assert len(it.one.seen) == handled
        assert await it.client.call(it.at) == b"answer 1"
        assert await it.two.call(it.at) == b"answer 1"


async def test_a_message_meets_its_faults_once():
    """Sender and receiver in one process share their faults: a count of one is one message, not two looks at it."""
    async with pair() as it:
        fault = it.fault("delay", delay_ms=1.0)
        await it.two.call(it.at)
        assert fault.hits == 1


async def test_fetches_of_the_metadata_log_are_an_api_of_their_own():
    """A test that starves a follower must not, unasked, also take the quorum apart."""
    body = b"".join(
        encode_request(
            FetchRequest(partitions=(FetchPartition(topic="__cluster_metadata", partition=0, fetch_offset=0),))
        )
    )
    async with pair() as it:
        it.fault("cut", api="Fetch")
        assert (await it.two.call(it.at, "Fetch", body)).startswith(b"answer")
        it.fault("cut", api="MetadataFetch")
        with pytest.raises(Unreachable):
            await it.two.call(it.at, "Fetch", body)


async def test_other_requests_that_name_the_metadata_log_keep_their_api():
    """A vote does, and so does any record that has these bytes."""
    async with pair() as it:
        it.fault("cut", api="MetadataFetch")
        assert (await it.two.call(it.at, "Produce", b"__cluster_metadata")).startswith(b"answer")
        it.fault("cut", api="Produce")
        with pytest.raises(Unreachable):
            await it.two.call(it.at, "Produce", b"__cluster_metadata")


@BROKERS
async def test_held_messages_are_released_first_or_latest_and_the_hold_goes_on(shared: bool):
    """M6: one message at a time, in order or the latest first; the others wait."""
    async with pair(shared=shared) as it:
        fault = it.fault("hold", message="request")
        calls = []
        for body in (b"1", b"2", b"3", b"4"):
            calls.append(asyncio.create_task(it.two.call(it.at, body=body)))
            await fault.until_hits(len(calls))
        assert fault.release(1) == 1
        assert await calls[0] == b"answer 1"
        assert fault.release(1, latest=True) == 1
        assert await calls[3] == b"answer 4"
        assert [each.way[2] for each in fault.held] == ["request", "request"]
        assert [body for _, body in it.one.seen] == [b"1", b"4"]
        it.faults.heal(fault.number)
        assert await asyncio.gather(calls[1], calls[2]) == [b"answer 2", b"answer 3"]
        assert fault.held == []


@BROKERS
async def test_held_fetch_and_its_held_response_say_which_offsets_they_concern(shared: bool):
    """PAGE 6: with several held messages, one can be chosen by its partition and offset; other bodies say nothing."""
    async with pair(shared=shared) as it:
        fault = it.fault("hold", "2<>1")
        wanted = (FetchPartition(topic="orders", partition=3, fetch_offset=41, high_watermark=40),)
        body = b"".join(encode_request(FetchRequest(replica_id=2, session_epoch=0, partitions=wanted)))
        it.one.answer = encode_response(
            FetchResponse(
                partitions=(
                    FetchedPartition(
                        topic="orders", partition=3, high_watermark=41, records=batch_at(41, "tea", "milk")
                    ),
                )
            )
        )
        calls = [asyncio.create_task(it.two.call(it.at, "Fetch", body))]
        await fault.until_hits(1)
        calls.append(asyncio.create_task(it.two.call(it.at, "Fetch", b"no body of a fetch")))
        await fault.until_hits(2)
        first, second = fault.held
        assert [str(each) for each in first.places] == ["orders-3 offset 41, HW 40"]
        assert second.places == ()
        assert fault.release(9, numbers=[first.number]) == 1
        await fault.until_hits(3)
        response = fault.held[-1]
        assert (response.number, response.way[2]) == (3, "answer")
        assert [str(each) for each in response.places] == ["orders-3 offsets 41 to 42, HW 41"]
        assert fault.release(9, numbers=[first.number]) == 0
        it.faults.heal(fault.number)
        await asyncio.gather(*calls)


@BROKERS
async def test_held_message_that_is_lost_has_an_unknown_outcome(shared: bool):
    """M6: as a drop; its sender learns it at its deadline."""
    async with pair(shared=shared) as it:
        fault = it.fault("hold", message="request")
        lost = asyncio.create_task(it.two.call(it.at, patience_s=BRIEFLY_S))
        await fault.until_hits(1)
        assert fault.release(5, lose=True) == 1
        with pytest.raises(OutcomeUnknown):
            await lost
        assert it.one.seen == []
        assert fault.release(1) == 0


async def test_nothing_held_back_outlives_its_sender():
    """As in the simulator: what a clog holds dies with the process that sent it."""
    async with pair() as it:
        it.fault("hold")
        calling = asyncio.ensure_future(it.two.call(it.at))
        assert await it.faults.active[1].until_hits(1) == 1
        await it.two.network.abort()
        with pytest.raises(OutcomeUnknown, match="is closed"):
            await calling
        assert it.faults.active[1].held == []
        it.faults.clear()
        assert await it.client.call(it.at, body=b"next") == b"answer next"
        assert it.one.seen == [("Vote", b"next")]


class Alone:
    """The end of node 2, whose network is ``send``, with what it reports."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.faults = Faults()
        self.events: list[tuple[str, dict[str, object]]] = []
        self.end = LinkEnd(self.faults, "2", name_of=lambda _: "1", events=self._tell)
        self.deadlines: list[float] = []
        self._answers = iter(answers)

    def _tell(self, kind: str, /, **facts: object) -> None:
        self.events.append((kind, facts))

    async def send(self, _peer: Address, _api: str, _body: Buffers, *, deadline: float) -> bytes:
        self.deadlines.append(deadline)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def call(self, deadline: float) -> bytes:
        return bytes(await self.end.call(Address("one", 1), "Vote", [b"1"], deadline=deadline, send=self.send))


@pytest.mark.parametrize("closes", [False, True])
async def test_a_cancelled_caller_is_cancelled_whatever_becomes_of_its_message(closes: bool):
    """Also in the turn in which its end closes: a caller that went on would not end with its broker."""
    alone = Alone(b"answer")
    fault = alone.faults.add(FaultSpec(kind="hold", link="2>1"))
    calling = asyncio.ensure_future(alone.call(asyncio.get_running_loop().time() + PATIENCE_S))
    await fault.until_hits(1)
    if closes:
        closing = asyncio.ensure_future(alone.end.close())
        while alone.end._under_way:  # noqa: ASYNC110 - the turn in which its message is gone
            await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    if closes:
        await closing
        return
    fault.heal()
    while not alone.deadlines:  # noqa: ASYNC110 - of the message that goes on
        await asyncio.sleep(0)


async def test_each_fault_that_duplicates_a_request_sends_it_once_more():
    """Two of them: the request arrives three times."""
    alone = Alone(b"first", b"second", b"third")
    for _ in range(2):
        alone.faults.add(FaultSpec(kind="duplicate", link="2>1"))
    assert await alone.call(asyncio.get_running_loop().time() + PATIENCE_S) == b"first"
    assert len(alone.deadlines) == 3


async def test_caller_of_a_message_that_vanished_waits_until_its_deadline():
    """It learns no earlier than in a network that its answer will not come."""
    alone = Alone()
    alone.faults.add(FaultSpec(kind="drop", link="2>1"))
    deadline = asyncio.get_running_loop().time() + BRIEFLY_S
    with pytest.raises(OutcomeUnknown):
        await alone.call(deadline)
    assert asyncio.get_running_loop().time() >= deadline


async def test_duplicate_that_fails_is_reported_and_the_first_answer_counts():
    """The caller has its answer; what becomes of the copy is in the journal."""
    alone = Alone(b"answer", Unreachable("gone"))
    alone.faults.add(FaultSpec(kind="duplicate", link="2>1"))
    assert await alone.call(asyncio.get_running_loop().time() + PATIENCE_S) == b"answer"
    assert alone.events[-1] == ("duplicate_failed", {"api": "Vote", "target": "1", "why": "gone"})


async def test_delayed_message_has_the_whole_patience_of_its_sender_once_it_is_sent():
    """Otherwise the call would be refused on the way instead of arriving late, as it does in a network."""
    alone = Alone(b"answer")
    alone.faults.add(FaultSpec(kind="delay", link="2>1", message="request", delay_ms=20.0))
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    assert await alone.call(deadline) == b"answer"
    assert deadline < alone.deadlines[0] <= asyncio.get_running_loop().time() + PATIENCE_S


@pytest.mark.parametrize(("source", "about"), [("client:billing", {"software": "kcat"}), ("3", {})])
async def test_fault_that_strikes_a_client_reports_what_is_known_about_it(source: str, about: dict[str, str]):
    """Empty facts are left out, and a broker has none."""
    alone = Alone()
    alone.faults.add(FaultSpec(kind="drop", link="*>2", message="request"))

    async def handled() -> bytes:
        raise AssertionError("it never arrives")

    with pytest.raises(NotAnswered):
        await alone.end.serve(source, "Vote", [b"1"], handled, lambda _: b"", {"software": "kcat", "client_id": ""})
    kind, facts = alone.events[-1]
    assert (kind, facts["source"], facts["target"]) == ("fault_hit", source, "2")
    assert {name: facts[name] for name in ("software", "client_id") if name in facts} == about


def refusal_in(answer: bytes) -> tuple[int, str]:
    """Error code and outcome of a response to Fetch."""
    response = decode_response("Fetch", answer)
    return response.error_code, response.outcome


@BROKERS
async def test_error_fault_answers_a_request_that_is_not_handled(shared: bool):
    """Between brokers, and for clients of /rpc: a typed response, once for each of its count."""
    async with pair(shared=shared) as it:
        it.fault("error", "*>1", api="Fetch", error="NOT_LEADER_OR_FOLLOWER", count=2)
        assert refusal_in(await it.two.call(it.at, "Fetch")) == (6, "not_written")
        assert refusal_in(await it.client.call(it.at, "Fetch")) == (6, "not_written")
        assert it.one.seen == []
        assert await it.two.call(it.at, "Fetch") == b"answer 1"


@BROKERS
async def test_error_fault_on_answers_replaces_the_answer_of_a_request_that_was_handled(shared: bool):
    """The request had its effect; its sender reads an error whose outcome is unknown."""
    async with pair(shared=shared) as it:
        link = {"link": "1>*", "api": "Fetch", "message": "answer"}
        it.fault("error", error="REQUEST_TIMED_OUT", count=2, **link)
        assert refusal_in(await it.two.call(it.at, "Fetch")) == (7, "unknown")
        assert refusal_in(await it.client.call(it.at, "Fetch")) == (7, "unknown")
        assert len(it.one.seen) == 2
        assert await it.client.call(it.at, "Fetch") == b"answer 1"


@BROKERS
async def test_error_fault_replaces_an_answer_that_was_awaited_when_it_was_set(shared: bool):
    """As for a cut: a long poll that is parked."""
    async with pair(shared=shared) as it:
        it.one.may_answer.clear()
        calling = asyncio.ensure_future(it.two.call(it.at, "Fetch"))
        await it.one.reached.wait()
        it.fault("error", "1>2", api="Fetch", error="OFFSET_OUT_OF_RANGE", message="answer")
        it.one.may_answer.set()
        assert refusal_in(await calling) == (1, "unknown")


async def test_answer_of_an_error_fault_meets_the_faults_of_answers():
    """It travels as any other; the request itself meets no later fault."""
    async with pair() as it:
        it.fault("error", api="Fetch", error="NOT_CONTROLLER")
        late = it.fault("cut", message="request")
        lost = it.fault("cut", "1>2", message="answer")
        with pytest.raises(OutcomeUnknown):
            await it.two.call(it.at, "Fetch")
        assert (it.one.seen, late.hits, lost.hits) == ([], 0, 1)


async def test_without_faults_nothing_is_between():
    """No cost when unused: the call goes straight to the wire, and a client of ours sends no extra header."""
    async with pair() as it:
        asked: list[Awaitable[bytes]] = []
        it.two.network._links.call = lambda *args, **kwargs: asked.append(args)
        assert await it.two.call(it.at) == b"answer 1"
        assert asked == []
        assert b"Mk-Node-Id: 2" in it.two.network._client._new_head(it.at, "Vote")
        assert b"Mk-Node-Id" not in it.client.network._client._new_head(it.at, "Vote")
