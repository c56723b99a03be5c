"""The rules of one connection that speaks Kafka's protocol: order, pipelining, acks=0, refusals."""

from __future__ import annotations

import asyncio
import gc
import struct
import warnings
from collections.abc import Coroutine, Generator
from dataclasses import replace
from typing import Any

import pytest

from minikafka.broker.dispatch import Begun
from minikafka.broker.event_limiter import EventLimiter
from minikafka.broker.kafka_login import LoginRules
from minikafka.broker.kafka_pipeline import LARGE_FRAME, LISTING_KEYS, PENDING_MAX
from minikafka.broker.kafka_session import METADATA_KEY, WIDE_COUNT, KafkaDoor, KafkaSession
from minikafka.broker.large_turns import LargeTurns
from minikafka.broker.meters import RequestMeters
from minikafka.errors import BrokerNotAvailable, InvalidRequest, NotCoordinator, NotLeaderOrFollower
from minikafka.parked import Parked
from minikafka.ports import RequestContext
from minikafka.quorum.image import MetadataImage, PartitionImage, TopicImage
from minikafka.wire.group_messages import (
    DeleteGroupsResponse,
    HeartbeatResponse,
    ListGroupsResponse,
    OffsetFetchResponse,
)
from minikafka.wire.kafka.codec import decode, encode
from minikafka.wire.kafka.schema import api_named
from minikafka.wire.kafka.translate.common import id_text
from minikafka.wire.messages import MetadataResponse, ProducedPartition, ProduceResponse

ALTER_REPLICA_LOG_DIRS_KEY = 34
PARTITION = PartitionImage(
    partition=0, leader=1, replicas=(1,), isr=(1,), leader_epoch=0, partition_epoch=0, controller_epoch=0
)


class Line:
    """A connection, a session on it, and handlers that answer when the test lets them."""

    parks = False
    """Requests that wait are answered by an event, without a task."""

    def __init__(self, logins: LoginRules | None = None, *, waited_s: float = 0.0, refusal: str = "") -> None:
        """``waited_s`` is how long ago the connection was accepted."""
        self.sent: list[bytes] = []
        self.is_closed = False
        self.is_paused = False
        self.received_bytes = self.handled_bytes = 0
        self.asked: list[tuple[str, Any, RequestContext]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.prompt: dict[str, Any] = {}
        """Answers that are given at once, by API."""
        self.gates: list[asyncio.Future[Any]] = []
        """One for each request that waits, in the order of their coming."""
        self.begins_at_once = True
        """Do Produce requests count as appended when they have begun?"""
        self.image = MetadataImage()
        self.is_current = True
        """The broker has read the metadata."""
        self.door = door = KafkaDoor(
            answering=self.answering,
            meters=RequestMeters(),
            image=lambda: self.image,
            wall_ms=lambda: 0,
            events=EventLimiter(lambda kind, /, **facts: self.events.append((kind, facts)), lambda: 0.0),
            logins=None if logins is None else {"CLIENTS": logins},
            is_current=lambda: self.is_current,
        )
        self.opened_at = 0.0 if logins is None else asyncio.get_running_loop().time() - waited_s
        self.frame_bytes_max: int | None = None
        self.principals: list[str] = []
        listener = "" if logins is None else "CLIENTS"
        context = RequestContext("kafka", listener, "127.0.0.1", refusal=refusal)
        self.session = KafkaSession(door, self, context)

    def answering(self, api: str, request: Any, context: RequestContext) -> Any:
        self.asked.append((api, request, context))
        if api in self.prompt:
            answer = self.prompt[api]
            if isinstance(answer, Exception):
                raise answer
            return answer
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        waiting = parked(gate) if self.parks else gate
        return Begun(waiting) if api == "Produce" and self.begins_at_once else waiting

    # ---- the connection ----

    def send(self, answer: Any) -> None:
        self.sent.append(b"".join(answer))

    def handled(self, size: int) -> None:
        self.handled_bytes += size

    def close(self) -> None:
        self.is_closed = True

    def await_login(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max

    def logged_in(self, principal: str) -> None:
        self.frame_bytes_max = None
        self.principals.append(principal)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    # ---- the client ----

    def ask(self, name: str, version: int, message: dict[str, Any], correlation: int = 1, client: bytes = b"c") -> None:
        api = api_named(name)
        head = struct.pack(">hhih", api.key, version, correlation, len(client)) + client
        head += b"\0" * api.is_flexible(version)
        frame = head + b"".join(encode(name, "request", version, message))
        self.received_bytes += len(frame)
        self.session.received(memoryview(frame))

    def produce(self, correlation: int, *, acks: int = -1) -> None:
        partition = {"index": 0, "records": [b"%d" % correlation]}
        message = {"acks": acks, "timeout_ms": 1, "topic_data": [{"name": "t", "partition_data": [partition]}]}
        self.ask("Produce", 8, message, correlation)

    def heartbeat(self, correlation: int) -> None:
        self.ask("Heartbeat", 2, {"group_id": "g", "generation_id": 1, "member_id": "m"}, correlation)

    def fetch(self, correlation: int = 1) -> None:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10**9, "log_start_offset": -1}
        self.ask(
            "Fetch",
            10,
            {
                "replica_id": -1,
                "max_wait_ms": 0,
                "min_bytes": 1,
                "max_bytes": 10**9,
                "isolation_level": 0,
                "session_id": 0,
                "session_epoch": -1,
                "topics": [{"topic": "t", "partitions": [{**partition, "current_leader_epoch": -1}]}],
                "forgotten_topics_data": [],
                "rack_id": "",
            },
            correlation,
        )

    @property
    def answered(self) -> list[int]:
        """Correlation ids in the order in which answers left."""
        return [struct.unpack_from(">i", each, 4)[0] for each in self.sent]


@pytest.fixture(params=["tasks", "parked"], autouse=True)
def _both_forms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a request that waits has a task or is parked makes no difference to any of these tests."""
    monkeypatch.setattr(Line, "parks", request.param == "parked")


def parked(gate: asyncio.Future[Any]) -> Parked:
    """A request that the gate answers."""
    waiting = Parked(gate.result)
    gate.add_done_callback(lambda _: waiting.ready())
    return waiting


def produced(code: int = 0) -> ProduceResponse:
    return ProduceResponse(partitions=(ProducedPartition(topic="t", partition=0, base_offset=3, error_code=code),))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_faults_of_the_link_do_not_change_when_the_next_produce_begins():
    """Issue 14: a server with faults handles requests as one without; only what a fault strikes waits."""
    line = Line()
    let_go = asyncio.Event()
    met: list[tuple[str, str]] = []

    async def meet_faults(client_id: str, api: str, _request: object, handle: Any) -> Any:
        met.append((client_id, api))
        if len(met) == 3:
            await let_go.wait()
        return await handle()

    line.session.meet_faults = meet_faults
    for correlation in range(1, 5):
        line.produce(correlation)
    await settle()
    # The third one is held before it is appended, so the fourth one must not begin.
    assert (len(line.asked), len(met)) == (2, 3)
    let_go.set()
    await settle()
    assert len(line.asked) == 4
    assert met == [("c", "Produce")] * 4


async def test_answers_leave_in_the_order_of_the_requests():
    """Although the second and third are ready first."""
    line = Line()
    for number in (1, 2, 3):
        line.produce(number)
    assert len(line.gates) == 3
    for gate in (line.gates[2], line.gates[1]):
        gate.set_result(produced())
        await settle()
        assert line.answered == []
    line.gates[0].set_result(produced())
    await settle()
    assert line.answered == [1, 2, 3]


async def test_a_produce_waits_until_the_one_before_it_is_appended():
    """Batches are appended in the order in which they were sent."""
    line = Line()
    line.begins_at_once = False
    line.produce(1)
    line.produce(2)
    assert len(line.gates) == 1
    line.gates[0].set_result(produced())
    await settle()
    assert len(line.gates) == 2


async def test_other_requests_are_handled_one_at_a_time():
    """As in Kafka: a Heartbeat begins when the Produce before it is answered, a Produce when the Heartbeat is."""
    line = Line()
    line.produce(1)
    line.heartbeat(2)
    line.produce(3)
    assert [api for api, _, _ in line.asked] == ["Produce"]
    line.gates[0].set_result(produced())
    await settle()
    assert [api for api, _, _ in line.asked] == ["Produce", "Heartbeat"]
    line.gates[1].set_result(HeartbeatResponse())
    await settle()
    assert [api for api, _, _ in line.asked] == ["Produce", "Heartbeat", "Produce"]
    assert line.answered == [1, 2]


async def test_a_connection_with_many_requests_is_not_read():
    """And is read again when some of them are answered."""
    line = Line()
    for number in range(PENDING_MAX):
        assert not line.is_paused
        line.produce(number)
    assert line.is_paused
    line.gates[0].set_result(produced())
    await settle()
    assert not line.is_paused


async def test_nothing_begins_while_the_client_does_not_read_its_answers():
    """A slow reader holds the memory of its own answers and of no others."""
    line = Line()
    line.prompt["Heartbeat"] = HeartbeatResponse()
    line.session.room(has_room=False)
    line.heartbeat(1)
    assert line.asked == []
    line.session.room(has_room=True)
    assert line.answered == [1]


async def test_acks_0_has_no_answer():
    """The next request's answer is the next that leaves."""
    line = Line()
    line.prompt["Produce"] = produced()
    line.prompt["Heartbeat"] = HeartbeatResponse()
    line.produce(1, acks=0)
    line.heartbeat(2)
    assert line.answered == [2]
    assert not line.is_closed


async def test_acks_0_closes_the_connection_on_an_error():
    """It is all that the client can notice (as in Kafka), and the log says why."""
    line = Line()
    line.prompt["Produce"] = produced(NotLeaderOrFollower.code)
    line.produce(1, acks=0)
    assert line.is_closed
    assert line.answered == []
    assert line.events[0][0] == "client_connection_refused"


@pytest.mark.parametrize("others", [0, 1])
async def test_acks_0_closes_the_connection_on_an_unknown_topic_id(others: int):
    """Seed 651804564: the topic was deleted and created again, and the client sent to its former leader for ever."""
    line = Line()
    known = bytes(range(1, 17))
    line.image = MetadataImage(topic_names={id_text(known): "t"})
    line.prompt["Produce"] = ProduceResponse(partitions=produced().partitions * others)
    data = [{"index": 0, "records": [b"1"]}]
    topics = [{"topic_id": each, "partition_data": data} for each in (known, bytes(range(2, 18)))]
    message = {"transactional_id": None, "acks": 0, "timeout_ms": 1, "topic_data": topics[1 - others :]}
    line.ask("Produce", 13, message)
    assert len(line.asked[0][1].partitions) == others
    assert line.is_closed
    assert line.sent == []
    assert "error 100" in line.events[0][1]["why"]


async def test_an_api_that_is_not_offered_closes_the_connection():
    """With the API's name in the log."""
    for key, version, name in ((ALTER_REPLICA_LOG_DIRS_KEY, 0, "API key 34"), (0, 2, "Produce")):
        line = Line()
        line.session.received(memoryview(struct.pack(">hhih", key, version, 1, 0) + b"\0" * 40))
        assert line.is_closed
        assert name in line.events[0][1]["why"]
        line.heartbeat(2)
        assert line.asked == []


async def test_refused_connections_of_one_address_have_one_line_in_the_log():
    """A stranger cannot fill the log: sessions of one broker share the limit."""
    line = Line()
    for _ in range(3):
        line.session.malformed(InvalidRequest("no frame"))
    assert [kind for kind, _ in line.events] == ["client_connection_refused"]


async def test_a_message_that_cannot_be_read_closes_the_connection():
    """Nothing of it reaches a handler."""
    line = Line()
    line.session.received(memoryview(struct.pack(">hhih", 12, 2, 1, 0) + b"\x00\x7fshort"))
    assert line.is_closed
    assert line.asked == []
    assert "Heartbeat request version 2" in line.events[0][1]["why"]


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
async def test_api_versions(version: int):
    """Every version is answered, and tells clients the library's name from version 3 on (KIP-511)."""
    line = Line()
    line.prompt["Heartbeat"] = HeartbeatResponse()
    line.ask("ApiVersions", version, {"client_software_name": "librdkafka", "client_software_version": "2.16.1"}, 9)
    answer = decode("ApiVersions", "response", version, memoryview(line.sent[0]), 8)
    offered = {each["api_key"]: (each["min_version"], each["max_version"]) for each in answer["api_keys"]}
    assert answer["error_code"] == 0
    assert offered[0] == (0, 13), "librdkafka before 2.11.1 stops compressing without version 0 (KAFKA-18659)"
    assert offered[18] == (0, 4)
    assert ALTER_REPLICA_LOG_DIRS_KEY not in offered
    levels = {each["name"]: each["max_version_level"] for each in answer["finalized_features"]}
    known = {"group.version": 1, "metadata.version": 30, "transaction.version": 2}
    assert levels == (known if version >= 3 else {})
    supported = {each["name"]: (each["min_version"], each["max_version"]) for each in answer["supported_features"]}
    assert supported.get("transaction.version") == ((1, 2) if version >= 3 else None)
    # Older readers refuse a level of 0 (KAFKA-17492).
    assert supported.get("kraft.version") == ((0, 0) if version >= 4 else None)
    line.heartbeat(10)
    assert line.asked[-1][2].software == ("librdkafka 2.16.1" if version >= 3 else "")
    assert line.asked[-1][2].client_id == "c"


async def test_api_versions_in_an_unknown_version():
    """Answered in version 0 with UNSUPPORTED_VERSION and its own range, so that the client asks again (KIP-511)."""
    line = Line()
    line.session.received(memoryview(struct.pack(">hhih", 18, 5, 3, 0) + b"\0anything"))
    answer = decode("ApiVersions", "response", 0, memoryview(line.sent[0]), 8)
    assert answer["error_code"] == 35
    assert answer["api_keys"] == [{"api_key": 18, "min_version": 0, "max_version": 4}]
    assert not line.is_closed


async def test_api_versions_with_an_odd_software_name():
    """INVALID_REQUEST, as in Kafka; the name goes nowhere."""
    line = Line()
    line.ask("ApiVersions", 3, {"client_software_name": "a\nb", "client_software_version": "1"})
    assert decode("ApiVersions", "response", 3, memoryview(line.sent[0]), 8)["error_code"] == 42


async def test_a_failure_of_the_whole_request_is_answered_in_the_form_of_its_api():
    """Produce has no place for it but each partition."""
    line = Line()
    line.prompt["Produce"] = InvalidRequest("odd")
    line.produce(1)
    answer = decode("Produce", "response", 8, memoryview(line.sent[0]), 8)
    partition = answer["responses"][0]["partition_responses"][0]
    assert (partition["error_code"], partition["error_message"]) == (42, "odd")


async def test_a_broker_that_stops_closes_the_connection():
    """Clients then ask another; BROKER_NOT_AVAILABLE would be final for them."""
    line = Line()
    line.prompt["Heartbeat"] = BrokerNotAvailable("stopping")
    line.heartbeat(1)
    assert line.is_closed
    assert line.sent == []


async def test_memory_of_frames_is_given_back_with_their_answers():
    """The connection counts large frames against queued.max.request.bytes until then."""
    line = Line()
    line.produce(1)
    assert line.handled_bytes == 0
    line.gates[0].set_result(produced())
    await settle()
    assert line.handled_bytes > 0


async def test_a_closed_connection_gets_no_answers():
    """Its requests finish all the same: an append that has begun is not taken back."""
    line = Line()
    line.produce(1)
    line.session.closed()
    line.gates[0].set_result(produced())
    await settle()
    assert line.sent == []
    assert not line.session.is_busy


async def test_what_a_client_sent_before_it_left_is_still_handled():
    """A producer with acks=0 closes its connection right after sending, and Kafka handles what came whole."""
    line = Line()
    line.begins_at_once = False
    for correlation in (1, 2, 3):
        line.produce(correlation, acks=0)
    line.session.room(has_room=False)
    line.session.closed()
    assert len(line.asked) == 1
    for number in range(3):
        line.gates[number].set_result(produced())
        await settle()
    assert [api for api, _, _ in line.asked] == ["Produce"] * 3
    assert line.sent == []
    assert not line.session.is_busy


async def test_nothing_begins_after_the_process_died():
    """Requests that wait are lost with it, as those that never came."""
    line = Line()
    line.begins_at_once = False
    line.produce(1)
    line.produce(2)
    line.session.cancel()
    line.session.closed()
    await settle()
    assert len(line.asked) == 1


async def test_a_parked_request_is_answered_by_its_event_without_a_task():
    """Its answer leaves in the call of the event, and what was behind it begins there."""
    line = Line()
    waiting = Parked(produced)
    line.prompt["Produce"] = Begun(waiting)
    before = asyncio.all_tasks()
    line.produce(1)
    line.heartbeat(2)
    assert [api for api, _, _ in line.asked] == ["Produce"]
    waiting.ready()
    assert line.answered == [1]
    assert [api for api, _, _ in line.asked] == ["Produce", "Heartbeat"]
    assert Line.parks == (asyncio.all_tasks() == before)
    waiting.ready()
    assert line.answered == [1], "an event that comes twice answers once"


async def test_a_parked_request_whose_result_must_be_awaited_gets_a_task():
    """A fetch whose records are not in the page cache: they are read beside the loop."""
    line = Line()
    records = asyncio.get_running_loop().create_future()
    waiting = Parked(lambda: records)
    line.prompt["Produce"] = Begun(waiting)
    line.produce(1)
    waiting.ready()
    await settle()
    assert line.answered == []
    records.set_result(produced())
    await settle()
    assert line.answered == [1]
    assert not line.session.is_busy


async def test_a_parked_request_dies_with_its_process():
    """Its event may come later, from a timer of the loop: nothing is computed or sent then."""
    line, asked = Line(), []
    waiting = Parked(lambda: asked.append(1))
    line.prompt["Produce"] = Begun(waiting)
    line.produce(1)
    line.session.cancel()
    waiting.ready()
    assert (asked, line.sent) == ([], [])


async def test_a_parked_answer_that_cannot_be_encoded_closes_the_connection():
    """A bug of a translator: the exception reaches the owner of the event, and the client does not wait for ever."""
    line = Line()
    waiting = Parked(lambda: ProduceResponse(partitions=(None,)))  # type: ignore[arg-type]
    line.prompt["Produce"] = Begun(waiting)
    line.produce(1)
    with pytest.raises(AttributeError):
        waiting.ready()
    assert line.is_closed


async def test_a_prompt_answer_that_cannot_be_encoded_closes_the_connection():
    """Frames that are handled in a later turn of the loop have no transport around them that would end by itself."""
    line = Line()
    line.prompt["Produce"] = ProduceResponse(partitions=(None,))  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        line.produce(1)
    assert line.is_closed


async def test_a_request_that_has_not_run_when_the_process_dies_leaves_no_coroutine():
    """With faults on the link each request is a coroutine; Python warns of one that nobody awaited."""
    line = Line()
    met = []

    async def meet_faults(_client_id: str, api: str, _request: object, handle: Any) -> Any:
        met.append(api)
        return await handle()

    line.session.meet_faults = meet_faults
    line.produce(1)
    line.session.cancel()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        await settle()
        gc.collect()
    assert (met, told) == ([], [])


class Compiled(Coroutine[Any, Any, Any]):
    """A coroutine that may not be closed once it has run, as compiled ones (found by seed 955000008)."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def __await__(self) -> Generator[Any, Any, Any]:
        self.steps.append("awaited")
        return (yield from asyncio.get_running_loop().create_future())

    def send(self, value: Any) -> Any:
        raise NotImplementedError

    def throw(self, *error: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        self.steps.append("closed")


@pytest.mark.parametrize("has_run", [False, True])
async def test_coroutine_of_a_request_is_closed_only_if_it_was_never_awaited(has_run: bool):
    """A compiled coroutine that is closed after its end raises AttributeError, which the owner of the loop received."""
    line, answer = Line(), Compiled()
    line.prompt["Produce"] = answer
    line.produce(1)
    if has_run:
        await settle()
    line.session.cancel()
    await settle()
    assert answer.steps == (["awaited"] if has_run else ["closed"])


async def test_contexts_of_long_client_ids_are_not_kept():
    """Each may have 32 KB, on each of thousands of connections."""
    line = Line()
    line.prompt["Metadata"] = MetadataResponse()
    for client in (b"short", b"x" * 32_000, b"y" * 32_000):
        line.ask("Metadata", 1, {"topics": []}, client=client)
        for _ in range(3):
            await settle()
    assert [context.client_id[:5] for _, _, context in line.asked] == ["short", "xxxxx", "yyyyy"]
    assert [client for _, client in line.session._contexts] == [b"short"]


async def test_contexts_name_the_client():
    """A connection may carry requests of several client ids."""
    line = Line()
    line.prompt["Metadata"] = MetadataResponse()
    for client in (b"one", b"two", b"one"):
        line.ask("Metadata", 1, {"topics": None}, client=client)
    assert [context.client_id for _, _, context in line.asked] == ["one", "two", "one"]
    assert {(context.protocol, context.remote, context.api_version) for _, _, context in line.asked} == {
        ("kafka", "127.0.0.1", 1)
    }


async def test_a_produce_that_is_appended_late_lets_the_next_one_begin_then():
    """A long batch is validated beside the loop: its handler returns an awaitable that results in Begun."""
    line = Line()
    line.begins_at_once = False
    line.produce(1)
    line.produce(2)
    rest = asyncio.get_running_loop().create_future()
    line.gates[0].set_result(Begun(rest))
    await settle()
    assert len(line.gates) == 2
    line.gates[1].set_result(produced())
    await settle()
    assert line.answered == []
    rest.set_result(produced())
    await settle()
    assert line.answered == [1, 2]


async def test_several_requests_of_one_message_are_answered_in_order_whether_or_not_they_wait():
    """OffsetFetch for three groups: the second waits; a failed one does not affect the others."""
    line = Line()
    line.prompt["OffsetFetch"] = OffsetFetchResponse()
    line.ask("OffsetFetch", 8, {"groups": [{"group_id": name, "topics": None} for name in "abc"]}, 1)
    assert line.answered == [1]
    assert [request.group_id for _, request, _ in line.asked] == ["a", "b", "c"]
    del line.prompt["OffsetFetch"]
    line.ask("OffsetFetch", 8, {"groups": [{"group_id": name, "topics": None} for name in "de"]}, 2)
    assert len(line.gates) == 1
    line.gates[0].set_exception(NotCoordinator("another broker is"))
    await settle()
    line.gates[1].set_result(OffsetFetchResponse())
    await settle()
    assert line.answered == [1, 2]
    answer = decode("OffsetFetch", "response", 8, memoryview(line.sent[1]), 9)
    assert [each["error_code"] for each in answer["groups"]] == [NotCoordinator.code, 0]


async def test_large_frame_is_decoded_handled_and_answered_in_separate_turns():
    """Other connections are served in between, and later requests of this one wait."""
    line = Line()
    line.prompt["DeleteGroups"] = DeleteGroupsResponse(groups=())
    line.prompt["Heartbeat"] = HeartbeatResponse()
    line.ask("DeleteGroups", 1, {"groups_names": ["g" * 9] * (LARGE_FRAME // 10)}, 1)
    line.heartbeat(2)
    states = [(len(line.asked), len(line.sent))]
    for _ in range(10):
        await asyncio.sleep(0)
        states.append((len(line.asked), len(line.sent)))
    assert states[0] == (0, 0)
    assert (1, 0) in states
    assert line.answered == [1, 2]
    line.ask("DeleteGroups", 1, {"groups_names": ["g"]}, 3)
    assert line.answered == [1, 2, 3], "a small one is answered at once"


async def test_thousands_of_requests_in_one_message_need_no_deep_stack():
    """Each of them is handled in a turn of its own."""
    line = Line()
    line.prompt["OffsetFetch"] = OffsetFetchResponse()
    groups = [{"group_id": f"g{number}", "topics": None} for number in range(3_000)]
    line.ask("OffsetFetch", 8, {"groups": groups}, 1)
    for _ in range(2 * len(groups) + 10):
        await asyncio.sleep(0)
    assert [request.group_id for _, request, _ in line.asked] == [each["group_id"] for each in groups]
    answer = decode("OffsetFetch", "response", 8, memoryview(line.sent[0]), 9)
    assert len(answer["groups"]) == len(groups)


async def test_frame_that_is_too_large_for_its_api_closes_the_connection():
    """As /rpc bounds the heads of requests: 64 KiB for ListGroups."""
    line = Line()
    line.ask("ListGroups", 4, {"states_filter": ["s" * 60_000]}, 1)
    assert not line.is_closed
    line.session.cancel()
    line = Line()
    line.ask("ListGroups", 4, {"states_filter": ["s" * 70_000]}, 1)
    assert line.is_closed
    assert "65536 are accepted" in line.events[0][1]["why"]


@pytest.mark.parametrize(
    "software, label",
    [
        (("confluent-kafka-python", "2.16.1"), "confluent-kafka-python"),
        (("home-made", "1"), "other"),
        (None, "unknown"),
    ],
)
async def test_open_connections_are_counted_by_the_name_of_a_known_library(software: Any, label: str):
    """KIP-511; a label is never a text that a client chose."""
    line = Line()
    if software is not None:
        named = {"client_software_name": software[0], "client_software_version": software[1]}
        line.ask("ApiVersions", 3, named)
    assert line.door.software() == {label: 1}
    line.session.closed()
    assert line.door.software() == {}


async def test_bytes_of_frames_are_counted_for_the_protocol():
    """Beside the bytes of /rpc, not among them."""
    line = Line()
    line.prompt["Produce"] = produced()
    line.produce(1)
    meter = line.door.meters.by_protocol["kafka", "Produce"]
    assert (meter.bytes_in > 0, meter.bytes_out) == (True, len(line.sent[0]))


async def test_a_request_without_records_has_a_bounded_size():
    """A Fetch request has none: its topics' names, in 100 MB, were kept in a session. Those of Produce may be larger."""
    line = Line()
    name = "x" * 32_000
    topics = [{"topic": name, "partitions": []}] * 40
    fetch = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1, "session_id": 0, "session_epoch": 0, "topics": topics}
    fetch |= {"replica_id": -1, "isolation_level": 0, "forgotten_topics_data": []}
    line.ask("Fetch", 7, fetch)
    assert line.is_closed
    assert not line.asked
    line = Line()
    partition = {"index": 0, "records": [bytes(2 << 20)]}
    message = {"acks": 1, "timeout_ms": 1, "topic_data": [{"name": "t", "partition_data": [partition]}]}
    line.ask("Produce", 8, message)
    assert not line.is_closed


async def test_large_frames_of_all_connections_take_turns():
    """One is decoded, handled or answered in a turn of the loop: a hundred that came together held it for 11 s, and the
    broker lost its session. Small requests of others are answered at once.
    """
    lines = [Line() for _ in range(10)]
    turns = lines[0].door.turns
    for line in lines:
        line.door.turns = turns
        line.prompt["DeleteGroups"] = DeleteGroupsResponse(groups=())
        line.ask("DeleteGroups", 1, {"groups_names": ["g" * 9] * (LARGE_FRAME // 10)}, 1)
    other = Line()
    other.prompt["Heartbeat"] = HeartbeatResponse()
    other.heartbeat(7)
    assert other.answered == [7]
    before = 0
    for _ in range(80):
        await asyncio.sleep(0)
        handled = sum(len(line.asked) for line in lines)
        assert handled - before <= 1
        before = handled
    assert all(line.answered == [1] for line in lines)


async def test_a_large_frame_is_not_begun_after_its_connection_was_closed():
    """Its turn comes later."""
    line = Line()
    line.ask("DeleteGroups", 1, {"groups_names": ["g" * 9] * (LARGE_FRAME // 10)}, 1)
    line.session.cancel()
    for _ in range(3):
        await settle()
    assert not line.asked


async def test_a_large_frame_that_cannot_be_read_closes_the_connection_in_its_turn():
    """And says why, as a small one."""
    line = Line()
    line.session.received(memoryview(struct.pack(">hhih", 42, 1, 1, -1) + b"\xff" * LARGE_FRAME))
    for _ in range(3):
        await settle()
    assert line.is_closed
    assert line.events[0][0] == "client_connection_refused"


async def test_a_turn_that_nobody_awaits_any_more_ends():
    """The task of a request may be cancelled while it waits; the next one has its turn all the same."""
    turns, order = LargeTurns(), []
    waiting = [asyncio.ensure_future(turns.next()) for _ in range(3)]
    waiting[2].add_done_callback(lambda _: order.append("last"))
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait_for(waiting[2], 10)
    await settle()
    assert order == ["last"]
    turns.call(lambda: order.append("again"))
    await settle()
    assert order == ["last", "again"]


@pytest.mark.parametrize("partitions", [WIDE_COUNT, WIDE_COUNT + 1])
async def test_metadata_of_a_wide_cluster_takes_turns(partitions: int):
    """A hundred clients that connected at the same moment held a broker of 2,500 partitions for 2 s, with 20 bytes each."""
    line = Line()
    line.prompt["Metadata"] = MetadataResponse()
    topic = TopicImage(name="t", topic_id="AAECAwQFBgcICQoLDA0ODw", partitions=(PARTITION,) * partitions)
    line.image = replace(line.image, topics={"t": topic})
    line.ask("Metadata", 1, {"topics": None})
    assert line.answered == ([1] if partitions == WIDE_COUNT else [])
    for _ in range(3):
        await settle()
    assert line.answered == [1]


async def test_lists_take_turns():
    """The size of a response is not that of its request."""
    line = Line()
    line.prompt["ListGroups"] = ListGroupsResponse()
    line.ask("ListGroups", 0, {})
    assert line.answered == []
    for _ in range(3):
        await settle()
    assert line.answered == [1]


def test_requests_for_lists_are_named_by_their_keys():
    """The table has numbers."""
    names = """
        DescribeGroups ListGroups DescribeAcls DescribeConfigs DescribeLogDirs ListPartitionReassignments
        DescribeClientQuotas DescribeUserScramCredentials DescribeProducers ListTransactions ConsumerGroupDescribe
        DescribeTopicPartitions
    """.split()
    assert {api_named(name).key for name in names} == LISTING_KEYS
    assert api_named("Metadata").key == METADATA_KEY
