"""The doors over real HTTP before fake brokers: statuses, headers, forwarding, limits (HTTP conventions 2.2 to 2.5)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from msgspec import structs

from minikafka.errors import (
    NOT_WRITTEN,
    UNKNOWN,
    WRITTEN,
    BrokerIdNotRegistered,
    BrokerNotAvailable,
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    CorruptMessage,
    GroupIdNotFound,
    KafkaStorageError,
    LeaderNotAvailable,
    NetworkException,
    NonEmptyGroup,
    NotController,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    ProducerFenced,
    RequestTimedOut,
    UnknownMemberId,
)
from minikafka.groups.protocol import Assignment
from minikafka.rest import body, fetch, leaders, produce
from minikafka.rest.host import FETCH_BYTES_MAX, PRODUCE_RECORD_COUNT_MAX
from minikafka.rest.routes import ROUTES
from minikafka.types import TopicPartition
from minikafka.web.gate import ALWAYS
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.admin import (
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    ReassignmentAnswer,
)
from minikafka.wire.batch import RecordBatch, stamped
from minikafka.wire.records import Record, build_batch
from tests.rest.conform import check_answer
from tests.rest.fake_brokers import FakeCluster

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
FORMER_ID, PRESENT_ID = "A" * 21 + "Q", "B" * 21 + "Q"
"""Of ``orders``, before and after it was deleted and created again."""


@dataclass
class Answer:
    """One answer."""

    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        assert self.text.endswith("\n")
        return json.loads(self.text)

    def problem(self, status: int, error: str) -> Any:
        """The problem, checked for what every problem has (RFC 9457)."""
        answer = self.json
        assert (self.status, answer["status"], answer["error"]) == (status, status, error), answer
        assert self.headers["Content-Type"] == "application/problem+json"
        assert answer["message"] == answer["detail"]
        assert answer["outcome"] in ("not_written", "written", "unknown")
        assert "Traceback" not in self.text
        assert ("Retry-After" in self.headers) == (status in (429, 503))
        return answer


class Curl:
    """Requests as a person types them."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.session = aiohttp.ClientSession()

    async def __call__(self, method: str, path: str, *, at: int = 1, **options: Any) -> Answer:
        async with self.session.request(method, self.cluster.brokers[at].url + path, **options) as response:
            answer = Answer(response.status, response.headers, (await response.read()).decode())
        media_type = answer.headers.get("Content-Type", "")
        if media_type.endswith("json") and not path.startswith("/rpc/") and method != "HEAD":
            check_answer(method, path, answer.status, media_type, answer.json)
        return answer

    async def get(self, path: str, **options: Any) -> Answer:
        return await self("GET", path, **options)

    async def post(self, path: str, document: Any, **options: Any) -> Answer:
        return await self("POST", path, json=document, **options)


@pytest.fixture
async def curl() -> AsyncIterator[Curl]:
    """Two brokers; of ``orders`` broker 1 leads partition 0 and broker 2 leads partition 1."""
    async with FakeCluster(2) as cluster:
        cluster.add_topic("orders", [1, 2], **{"min.insync.replicas": "2"})
        client = Curl(cluster)
        async with client.session:
            yield client


# ---- health, cluster, topics -----------------------------------------------------------------------------------------


async def test_health_and_readiness_are_two_questions(curl):
    """A supervisor restarts what is not alive, a balancer leaves out what is not ready: mixing them kills brokers."""
    for path in ("/healthz", "/healthy", "/readyz", "/ready"):
        assert (await curl.get(path)).status == 200
    broker = curl.cluster.brokers[1]
    broker.is_ready = False
    assert (await curl.get("/healthz")).status == 200
    answer = (await curl.get("/readyz")).problem(503, "BROKER_NOT_AVAILABLE")
    assert "the controller has not unfenced it" in answer["detail"]
    broker.is_ready, broker.has_session = True, False
    (await curl.get("/readyz")).problem(503, "BROKER_NOT_AVAILABLE")
    broker.failure = "the disk failed: /x"
    assert "the disk failed" in (await curl.get("/healthz")).problem(503, "BROKER_NOT_AVAILABLE")["detail"]


async def test_a_door_without_a_broker_says_503(curl):
    """Connections come in between binding and the end of the start, and while the broker stops."""
    curl.cluster.brokers[1].doors.close()
    for path in ("/healthz", "/v1/topics", "/nothing"):
        (await curl.get(path)).problem(503, "BROKER_NOT_AVAILABLE")


async def test_the_cluster_names_brokers_controller_and_limits(curl):
    """Limits that are not told are found by accident."""
    answer = (await curl.get("/v1/cluster", at=2)).json
    assert answer["node_id"] == 2
    assert answer["controller"] == {"id": 1, "epoch": 3, "url": curl.cluster.brokers[1].url}
    assert [(each["id"], each["url"], each["fenced"]) for each in answer["brokers"]] == [
        (node, broker.url, False) for node, broker in curl.cluster.brokers.items()
    ]
    assert answer["limits"]["fetch_wait_ms_max"] == 30_000
    assert answer["limits"]["produce_records_max"] == PRODUCE_RECORD_COUNT_MAX


async def test_topics_are_created_by_the_controller_whoever_is_asked(curl):
    """Any broker answers a person (2.3); the next request may produce to the new topic."""
    document = {"name": "teas", "partitions": 2, "replication_factor": 2, "config": {"retention.ms": 5}}
    answer = await curl.post("/v1/topics", document, at=2)
    assert answer.status == 201
    assert answer.headers["Location"] == "/v1/topics/teas"
    assert (answer.headers["Mk-Served-By"], answer.headers["Mk-Leader"]) == ("1", "1")
    assert answer.json["partition_count"] == 2
    assert curl.cluster.topics["teas"].configs == {"retention.ms": "5"}
    listed = (await curl.get("/v1/topics")).json["topics"]
    assert [(each["topic"], each["partition_count"]) for each in listed] == [("orders", 2), ("teas", 2)]
    shown = (await curl.get("/v1/topics/teas")).json
    assert shown["config"] == {"retention.ms": "5"}
    assert shown["partitions"][1] == {
        "partition": 1,
        "leader": 2,
        "leader_epoch": 4,
        "partition_epoch": 7,
        "controller_epoch": 2,
        "replicas": [1, 2],
        "isr": [1, 2],
        "elr": [],
        "last_known_elr": [],
        "adding_replicas": [],
        "removing_replicas": [],
    }
    assert (await curl.post("/v1/topics", document)).problem(409, "TOPIC_ALREADY_EXISTS")["topic"] == "teas"
    gone = await curl("DELETE", "/v1/topics/teas", at=2)
    assert gone.json == {"topic": "teas", "topic_id": None, "deleted": True}
    (await curl.get("/v1/topics/teas")).problem(404, "UNKNOWN_TOPIC_OR_PARTITION")
    (await curl("DELETE", "/v1/topics/teas")).problem(404, "UNKNOWN_TOPIC_OR_PARTITION")


@pytest.mark.parametrize("again", ["refused", "changing"])
async def test_a_change_that_a_controller_may_have_recorded_before_it_stepped_down_is_unknown(curl, monkeypatch, again):
    """Its successor says that the topic exists, or there is no successor yet: neither proves that nothing was created."""
    broker = curl.cluster.brokers[curl.cluster.controller]
    create, asked = broker.on_CreateTopics, []

    async def stepping_down(request):
        asked.append(request)
        if len(asked) == 1:
            await create(request)
        if again == "changing" or len(asked) == 1:
            raise NotController("it stepped down", outcome=UNKNOWN if len(asked) == 1 else NOT_WRITTEN)
        return await create(request)

    monkeypatch.setattr(leaders, "PAUSE_S", 0.001)
    monkeypatch.setattr(broker, "on_CreateTopics", stepping_down)
    answer = await curl.post("/v1/topics", {"name": "teas"})
    problem = answer.problem(504, "TOPIC_ALREADY_EXISTS" if again == "refused" else "REQUEST_TIMED_OUT")
    assert problem["outcome"] == "unknown"
    assert len(asked) > 1


async def test_what_destroys_records_names_what_it_means(curl):
    """A copy of the request that arrives late must not destroy what was acknowledged since: not later records, not a
    topic that was created again, nor those of a leader that is away.
    """
    broker = curl.cluster.brokers[1]
    curl.cluster.ends[ORDERS_0] = 7
    deleted = await curl.post("/v1/topics/orders/partitions/0/truncate-before", {"offset": -1}, at=2)
    assert deleted.json["low_watermark"] == 7
    wanted = m.DeleteRecordsPartition(topic="orders", topic_id=FORMER_ID, partition=0, offset=7)
    assert broker.asked[-1] == m.DeleteRecordsRequest(partitions=(wanted,))
    for kind, epochs in (("unclean", (4,)), ("preferred", ())):
        await curl.post("/v1/topics/orders/partitions/0/elections", {"type": kind})
        elections = [each for each in broker.asked if isinstance(each, m.ElectLeadersRequest)]
        assert (elections[-1].election_type, elections[-1].leader_epochs) == (kind, epochs)
    await curl("DELETE", "/v1/topics/orders")
    (deletion,) = [each for each in broker.asked if isinstance(each, m.DeleteTopicsRequest)]
    assert deletion.topic_ids == {"orders": FORMER_ID}


@pytest.mark.parametrize(
    ("first", "refusal", "outcome", "status"),
    [
        (NotController("it stepped down", outcome=UNKNOWN), BrokerIdNotRegistered, UNKNOWN, 504),
        (NotController("moved"), BrokerIdNotRegistered, NOT_WRITTEN, 404),
        (NetworkException("no answer", outcome=UNKNOWN), OffsetOutOfRange, UNKNOWN, 504),
        (NotLeaderOrFollower("moved"), OffsetOutOfRange, NOT_WRITTEN, 416),
    ],
)
async def test_a_refused_repetition_of_a_change_has_the_outcome_of_all_attempts(
    curl, monkeypatch, first, refusal, outcome, status
):
    """The broker, or the records, may be gone because the first attempt was recorded and its response lost."""
    monkeypatch.setattr(leaders, "PAUSE_S", 0.001)
    broker, refusals = curl.cluster.brokers[1], [first, refusal("it is gone")]
    if refusal is BrokerIdNotRegistered:
        broker.refuse["UnregisterBroker"] = refusals
        answer = await curl("DELETE", "/v1/brokers/2", at=2)
    else:
        broker.refuse_parts[ORDERS_0] = refusals
        answer = await curl.post("/v1/topics/orders/partitions/0/truncate-before", {"offset": 3}, at=2)
    assert answer.problem(status, refusal.name)["outcome"] == outcome
    assert not refusals


COMMIT_0 = {"offsets": [{"topic": "orders", "partition": 0, "offset": 7}]}


@pytest.mark.parametrize(
    ("first", "outcome", "status"),
    [(NetworkException("no answer", outcome=UNKNOWN), UNKNOWN, 504), (NotCoordinator("moved"), NOT_WRITTEN, 413)],
)
async def test_a_commit_that_may_have_been_written_is_never_answered_as_not_written(curl, first, outcome, status):
    """Issue 13: the forwarding broker passed on the refusal of its own second attempt, with that one's outcome."""
    curl.cluster.brokers[1].refuse["OffsetCommit"] = [first, OffsetMetadataTooLarge("too large")]
    answer = await curl("PUT", "/v1/groups/g/offsets", json=COMMIT_0, at=2)
    assert answer.problem(status, "OFFSET_METADATA_TOO_LARGE")["outcome"] == outcome
    assert not curl.cluster.brokers[1].refuse["OffsetCommit"]


SENDER = {"producer_id": 7, "producer_epoch": 3}


@pytest.mark.parametrize(
    ("first", "outcome", "status"),
    [
        (NetworkException("no answer", outcome=UNKNOWN), UNKNOWN, 504),
        (ConcurrentTransactions("this one is being ended", outcome=UNKNOWN), UNKNOWN, 504),
        (ConcurrentTransactions("the last transaction is being ended"), NOT_WRITTEN, 409),
    ],
)
async def test_a_fenced_repetition_of_an_end_has_the_outcome_of_all_attempts(curl, first, outcome, status):
    """The transaction may be committed if the answer to the first attempt was lost and another producer took over."""
    curl.cluster.brokers[1].refuse["EndTxn"] = [first, ProducerFenced("epoch 3 is over")]
    answer = await curl.post("/v1/transactions/t:commit", SENDER, at=2)
    assert answer.problem(status, "PRODUCER_FENCED")["outcome"] == outcome
    assert not curl.cluster.brokers[1].refuse["EndTxn"]


async def test_a_commit_whose_coordinator_moves_between_attempts_has_the_outcome_of_all(curl, monkeypatch):
    """With ``?forward=never`` the client is sent to the new coordinator, and not as if nothing could be committed."""
    ending = ConcurrentTransactions("this one is being ended", outcome=UNKNOWN)
    curl.cluster.brokers[1].refuse["EndTxn"] = [ending]
    nodes = iter((1, 2))

    async def moved(request: g.FindCoordinatorRequest) -> g.FindCoordinatorResponse:
        found = g.Coordinator(key=request.keys[0], node_id=next(nodes), host="127.0.0.1", port=1)
        return g.FindCoordinatorResponse(coordinators=(found,))

    monkeypatch.setattr(curl.cluster.brokers[1], "on_FindCoordinator", moved)
    answer = await curl.post("/v1/transactions/t:commit?forward=never", SENDER, at=1)
    assert answer.problem(504, "NOT_COORDINATOR")["outcome"] == UNKNOWN


async def test_a_commit_by_hand_that_finds_members_has_the_outcome_of_all_attempts(curl):
    """The group had none when the first attempt arrived, whose response was lost."""
    lost = NetworkException("no answer", outcome=UNKNOWN)
    curl.cluster.brokers[1].refuse["OffsetCommit"] = [lost, UnknownMemberId("group g has members")]
    answer = await curl("PUT", "/v1/groups/g/offsets", json=COMMIT_0, at=2)
    assert answer.problem(504, "NON_EMPTY_GROUP")["outcome"] == UNKNOWN


@pytest.mark.parametrize("failing", ["SyncGroup", "OffsetFetch"])
async def test_a_newcomer_whose_join_fails_behind_its_admission_gets_its_member_id(curl, monkeypatch, failing):
    """S28: it holds partitions until its session ends. Without the id its client could only add another member."""
    broker = curl.cluster.brokers[1]
    joined = g.JoinGroupResponse(generation_id=1, protocol_name="range", leader="m-2", member_id="m-1")

    async def sync(_request):
        partitions = (ORDERS_0,)
        return g.SyncGroupResponse(assignment=Assignment(partitions=partitions).packed())

    async def join(_request):
        return joined

    monkeypatch.setattr(leaders, "COORDINATOR_WAIT_S", 0.001)
    monkeypatch.setattr(broker, "on_JoinGroup", join, raising=False)
    monkeypatch.setattr(broker, "on_SyncGroup", sync, raising=False)
    broker.refuse[failing] = [CoordinatorNotAvailable("an election") for _ in range(50)]
    answer = await curl.post("/v1/groups/g/members?max_wait_ms=200", {"topics": ["orders"]})
    assert answer.problem(503, "COORDINATOR_NOT_AVAILABLE")["member_id"] == "m-1"


async def test_a_group_of_more_partitions_than_one_request_may_name_is_shown_and_joined(curl, monkeypatch):
    """docs/limits.md: a broker refuses a request that names more than 2,500; topics may have more at one leader."""
    cluster, count = curl.cluster, 2_501
    cluster.add_topic("__consumer_offsets", [1])
    cluster.add_topic("wide", [2] * count)
    broker = cluster.brokers[1]
    names = tuple(TopicPartition("wide", number) for number in range(count))

    async def describe(_request):
        return g.DescribeGroupsResponse(groups=(g.DescribedGroup(group_id="g", state="Empty"),))

    async def offsets(request):
        rows = (g.FetchedOffset(**each._asdict(), offset=0) for each in names)
        asked = None if request.partitions is None else {each.partition for each in request.partitions}
        return g.OffsetFetchResponse(
            partitions=tuple(each for each in rows if asked is None or each.partition in asked)
        )

    async def join(_request):
        return g.JoinGroupResponse(generation_id=1, protocol_name="range", leader="m-2", member_id="m-1")

    async def sync(_request):
        return g.SyncGroupResponse(assignment=Assignment(partitions=names).packed())

    answers = {"DescribeGroups": describe, "OffsetFetch": offsets, "JoinGroup": join, "SyncGroup": sync}
    for api, answer in answers.items():
        monkeypatch.setattr(broker, f"on_{api}", answer, raising=False)
    lag = await curl.get("/v1/groups/g/lag", at=1)
    assert [(each["log_end"], each["lag"]) for each in lag.json["partitions"]] == [(0, 0)] * count
    joined = await curl.post("/v1/groups/g/members", {"topics": ["wide"]}, at=2)
    assert [(each["offset"], each["begin"]) for each in joined.json["committed"]] == [(0, 0)] * count


@pytest.mark.parametrize("refused", [0, 1, 2])
@pytest.mark.parametrize("change", ["reset", "delete"])
async def test_offsets_of_more_partitions_than_one_request_may_name_are_reset_and_deleted(
    curl, monkeypatch, change, refused
):
    """docs/limits.md: a request names 2,500 at the most. What fails behind a part that is done is ``unknown``."""
    cluster, count, changed = curl.cluster, 2_501, []
    cluster.add_topic("wide", [2] * count)
    names = tuple(TopicPartition("wide", number) for number in range(count))

    async def describe(_request):
        return g.DescribeGroupsResponse(groups=(g.DescribedGroup(group_id="g", state="Empty"),))

    async def offsets(_request):
        return g.OffsetFetchResponse(partitions=tuple(g.FetchedOffset(**each._asdict(), offset=3) for each in names))

    async def alter(request):
        answers = tuple(g.PartitionOutcome(topic=each.topic, partition=each.partition) for each in request.partitions)
        changed.append(len(answers))
        if len(changed) == refused:
            raise NonEmptyGroup("a member has joined")
        return (g.OffsetCommitResponse if change == "reset" else g.OffsetDeleteResponse)(partitions=answers)

    answers = {"DescribeGroups": describe, "OffsetFetch": offsets, "OffsetCommit": alter, "OffsetDelete": alter}
    for api, answer in answers.items():
        monkeypatch.setattr(cluster.brokers[1], f"on_{api}", answer, raising=False)
    if change == "reset":
        answer = await curl.post("/v1/groups/g/offsets:reset", {"to": "earliest"}, at=2)
    else:
        answer = await curl("DELETE", "/v1/groups/g/offsets?topic=wide", at=2)
    if refused:
        outcome, status = (NOT_WRITTEN, 409) if refused == 1 else (UNKNOWN, 504)
        assert answer.problem(status, "NON_EMPTY_GROUP")["outcome"] == outcome
        return
    assert answer.status == 200, answer.text
    assert [each["partition"] for each in answer.json["offsets" if change == "reset" else "deleted"]] == [*range(count)]
    assert sum(changed) == count


async def test_offsets_of_a_group_that_does_not_exist_cannot_be_deleted(curl, monkeypatch):
    """The coordinator knows the group; that it has no offsets of the topic does not say that it exists."""

    async def offsets(_request):
        return g.OffsetFetchResponse()

    async def delete(_request):
        raise GroupIdNotFound("there is no group nowhere")

    for api, answer in {"OffsetFetch": offsets, "OffsetDelete": delete}.items():
        monkeypatch.setattr(curl.cluster.brokers[1], f"on_{api}", answer, raising=False)
    answer = await curl("DELETE", "/v1/groups/nowhere/offsets?topic=orders", at=2)
    assert answer.problem(404, "GROUP_ID_NOT_FOUND")["outcome"] == NOT_WRITTEN


async def test_offsets_of_a_transaction_are_not_sent_again_without_a_response(curl):
    """A copy that arrives late would overwrite what the client commits next in the transaction: it has to abort."""
    lost = NetworkException("no answer", outcome=UNKNOWN)
    curl.cluster.brokers[1].refuse["TxnOffsetCommit"] = [lost, ProducerFenced("asked twice")]
    answer = await curl("PUT", "/v1/transactions/t/offsets", json={**SENDER, **COMMIT_0, "group": "g"}, at=2)
    assert answer.problem(504, "NETWORK_EXCEPTION")["outcome"] == UNKNOWN
    assert len(curl.cluster.brokers[1].refuse["TxnOffsetCommit"]) == 1


async def test_the_end_of_the_last_transaction_is_waited_for(curl):
    """CONCURRENT_TRANSACTIONS lasts for milliseconds: a person with curl need not see it."""
    busy = [ConcurrentTransactions("the last transaction is being ended") for _ in range(2)]
    curl.cluster.brokers[1].refuse["EndTxn"] = list(busy)
    answer = await curl.post("/v1/transactions/t:abort", SENDER, at=2)
    assert (answer.status, answer.json["producer_epoch"], answer.json["committed"]) == (200, 4, False)
    curl.cluster.brokers[1].refuse_parts[TopicPartition("orders", 0)] = busy
    headers = {"Transactional-Id": "t", "Producer-Id": "7", "Producer-Epoch": "4", "Base-Sequence": "0"}
    answer = await curl.post("/v1/topics/orders/partitions/0/records", {"value": 1}, headers=headers)
    assert answer.status == 200
    sent = [each for each in curl.cluster.brokers[1].asked if isinstance(each, m.ProduceRequest)]
    assert [(each.transactional_id, each.transaction_version) for each in sent] == [("t", 2)] * 3
    assert all(RecordBatch.of(bytes(each.partitions[0].records[0])).is_transactional for each in sent)


async def test_the_parts_of_a_repeated_commit_carry_the_outcome_of_both_attempts(curl):
    """A 207 names each partition's outcome: that of the first attempt is unknown."""
    broker = curl.cluster.brokers[1]
    broker.refuse["OffsetCommit"] = [NetworkException("no answer", outcome=UNKNOWN)]
    broker.refuse_parts[ORDERS_1] = [OffsetMetadataTooLarge("too large")]
    both = {"offsets": [*COMMIT_0["offsets"], {"topic": "orders", "partition": 1, "offset": 7}]}
    answer = await curl("PUT", "/v1/groups/g/offsets", json=both)
    assert answer.status == 207
    assert answer.json["offsets"][1]["problem"]["outcome"] == UNKNOWN


@pytest.mark.parametrize("forward", ["auto", "never"])
async def test_a_leader_that_cannot_serve_is_503_and_not_a_redirect_to_itself(curl, forward):
    """Issue 13: a leader whose session with the controller has expired still believes that it leads."""
    refuse = curl.cluster.brokers[1].refuse_parts
    refuse[ORDERS_0] = [NotLeaderOrFollower("the session has run out")] * leaders.ATTEMPTS_MAX
    answer = await curl.get(f"/v1/topics/orders/partitions/0/records?offset=7&forward={forward}")
    problem = answer.problem(503, "LEADER_NOT_AVAILABLE")
    assert (problem["retriable"], problem["leader"]["id"]) == (True, 1)
    refuse[ORDERS_0] = [NotLeaderOrFollower("the session has run out")] * leaders.ATTEMPTS_MAX
    headers = {"Last-Event-ID": "41"}
    answer = await curl.get(f"/v1/topics/orders/partitions/0/stream?forward={forward}", headers=headers)
    assert answer.problem(503, "LEADER_NOT_AVAILABLE")["retriable"] is True


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/topics"),
        ("GET", "/v1/topics/orders"),
        ("GET", "/v1/topics/orders/records"),
        ("GET", "/v1/topics/orders/partitions/0"),
        ("GET", "/v1/topics/orders/partitions/0/records?offset=0"),
        ("GET", "/v1/topics/orders/partitions/0/stream"),
        ("GET", "/v1/topics/orders/partitions/0/explain"),
        ("POST", "/v1/topics/orders/records"),
        ("GET", "/v1/groups"),
    ],
)
async def test_a_broker_that_has_just_started_is_503_and_not_404(curl, method, path):
    """Issue 13: a broker that had no metadata yet answered that topics do not exist."""
    curl.cluster.topics.clear()
    curl.cluster.brokers[1].has_caught_up = False
    problem = (await curl(method, path)).problem(503, "BROKER_NOT_AVAILABLE")
    assert (problem["retriable"], problem["outcome"]) == (True, "not_written")
    for there in ("/healthz", "/v1/cluster", "/openapi.json"):
        assert (await curl.get(there)).status == 200


@pytest.mark.parametrize("is_missed", [False, True])
async def test_a_stream_of_a_topic_that_was_created_again_begins_with_its_first_record(curl, is_missed, monkeypatch):
    """Issue 13: it went on at its old position, and its reader never got the new topic's first records. Also when it
    was looked for while there was none.
    """
    monkeypatch.setattr(fetch, "PAUSE_S", 0.01)
    for value in ("former 0", "former 1", "former 2"):
        assert (await curl.post("/v1/topics/orders/partitions/0/records", {"value": value})).status == 200
    url = f"{curl.cluster.brokers[1].url}/v1/topics/orders/partitions/0/stream?offset=0&heartbeat_ms=100"
    async with curl.session.get(url) as response, asyncio.timeout(30):
        lines = response.content
        assert [(await next_of(lines, "record"))["value"] for _ in range(3)] == ["former 0", "former 1", "former 2"]
        # The former topic is gone with its records, and this one has more.
        former = curl.cluster.topics.pop("orders")
        if is_missed:
            assert (await next_of(lines, "problem"))["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
        curl.cluster.topics["orders"] = replace(former, topic_id="B" * 21 + "Q")
        curl.cluster.batches.clear()
        curl.cluster.ends.clear()
        for number in range(5):
            await curl.post("/v1/topics/orders/partitions/0/records", {"value": number})
        answer = await next_of(lines, "truncated")
        assert (answer["from"], answer["to"]) == (0, 3)
        assert "deleted and created again" in answer["why"]
        assert [(await next_of(lines, "record"))["value"] for _ in range(5)] == [0, 1, 2, 3, 4]


async def test_a_stream_names_a_problem_once_each_time_that_it_comes(curl, monkeypatch):
    """Not with each attempt, and once more when the partition was read in between."""
    monkeypatch.setattr(fetch, "PAUSE_S", 0.01)
    broker = curl.cluster.brokers[1]
    url = f"{broker.url}/v1/topics/orders/partitions/0/stream?offset=0&heartbeat_ms=100"
    async with curl.session.get(url) as response, asyncio.timeout(30):
        kinds = []
        for value in range(2):
            broker.refuse_parts[ORDERS_0] = [KafkaStorageError("its disk is slow")] * 3
            while broker.refuse_parts[ORDERS_0]:
                await broker.was_asked.wait()
                broker.was_asked.clear()
            await curl.post("/v1/topics/orders/partitions/0/records", {"value": value})
            while not kinds or kinds[-1] != "record":
                line = (await response.content.readline()).decode().strip()
                kinds += [line.removeprefix("event: ")] if line in ("event: problem", "event: record") else []
            assert kinds == ["problem", "record"]
            kinds.clear()


async def test_a_stream_shows_what_an_unclean_election_took_back(curl):
    """KIP-320: the new leader's log is long enough, and yet its records are others than those that were read."""
    for value in range(3):
        await curl.post("/v1/topics/orders/partitions/0/records", {"value": value})
    url = f"{curl.cluster.brokers[1].url}/v1/topics/orders/partitions/0/stream?offset=0&heartbeat_ms=100"
    async with curl.session.get(url) as response, asyncio.timeout(30):
        assert [(await next_of(response.content, "record"))["value"] for _ in range(3)] == [0, 1, 2]
        topic, batches = curl.cluster.topics["orders"], curl.cluster.batches[ORDERS_0]
        elected = replace(topic.partitions[0], leader=2, leader_epoch=5)
        batches[1:] = [b"".join(stamped(RecordBatch.of(batches[0]), base_offset=at, leader_epoch=5)) for at in (1, 2)]
        curl.cluster.topics["orders"] = replace(topic, partitions=(elected, *topic.partitions[1:]))
        answer = await next_of(response.content, "truncated")
        assert (answer["from"], answer["to"]) == (1, 3)
        read = [await next_of(response.content, "record") for _ in range(2)]
        assert [(each["offset"], each["leader_epoch"]) for each in read] == [(1, 5), (2, 5)]


async def create_again(curl, values: list[Any], *, partitions: int = 1) -> None:
    """The topic of the tests is replaced by another one of its name, with these records in each partition."""
    curl.cluster.topics["orders"] = replace(curl.cluster.topics["orders"], topic_id=PRESENT_ID)
    curl.cluster.batches.clear()
    curl.cluster.ends.clear()
    for partition in range(partitions):
        for value in values:
            await curl.post(f"/v1/topics/orders/partitions/{partition}/records", {"value": value})


@pytest.mark.parametrize(
    ("last_event_id", "begins", "values"),
    [
        (f"{FORMER_ID}:2", (0, 3), [0, 1, 2, 3, 4]),
        (f"{FORMER_ID}:-1", (0, 0), [0, 1, 2, 3, 4]),
        (f"{PRESENT_ID}:2", None, [3, 4]),
        (f"{PRESENT_ID}:-1", None, [0, 1, 2, 3, 4]),
        ("2", None, [3, 4]),
        (f"{PRESENT_ID}:8", (5, 9), [5]),
        ("8", (5, 9), [5]),
    ],
)
async def test_a_reader_of_a_stream_that_reconnects_misses_no_record_of_a_topic_created_again(
    curl, last_event_id, begins, values
):
    """The id of an event names its topic, so that records of another topic are not taken for those that were read."""
    await create_again(curl, [0, 1, 2, 3, 4])
    url = f"{curl.cluster.brokers[1].url}/v1/topics/orders/partitions/0/stream?heartbeat_ms=100"
    async with (
        curl.session.get(url, headers={"Last-Event-ID": last_event_id}) as response,
        asyncio.timeout(30),
    ):
        assert response.status == 200
        if begins is not None:
            event_id, answer = await event_of(response.content, "truncated")
            assert (answer["from"], answer["to"]) == begins
            # Who leaves now continues here, and not where the former id was.
            assert event_id == f"{PRESENT_ID}:{begins[0] - 1}"
        if values == [5]:
            await curl.post("/v1/topics/orders/partitions/0/records", {"value": 5})
        for value in values:
            event_id, answer = await event_of(response.content, "record")
            assert (event_id, answer["value"]) == (f"{PRESENT_ID}:{value}", value)


async def test_a_reader_of_all_partitions_that_reconnects_misses_no_record_of_a_topic_created_again(curl):
    """Neither when it left before, nor when it leaves while some partitions are still read in the former topic."""
    for partition in range(2):
        for value in range(3):
            await curl.post(f"/v1/topics/orders/partitions/{partition}/records", {"value": value})
    url = f"{curl.cluster.brokers[1].url}/v1/topics/orders/records?follow=true&from=earliest&heartbeat_ms=100"
    as_events = {"Accept": "text/event-stream"}
    async with curl.session.get(url, headers=as_events) as response, asyncio.timeout(30):
        ids = [(await event_of(response.content, "record"))[0] for _ in range(6)]
        assert ids[-1] == f"{FORMER_ID}:0:3,1:3"
        await create_again(curl, [10, 11, 12, 13, 14], partitions=2)
        event_id, answer = await event_of(response.content, "truncated")
        assert (answer["from"], answer["to"]) == (0, 3)
        # Nothing is said of the other partition, whose position is still in the former topic.
        assert event_id == f"{PRESENT_ID}:{answer['partition']}:0"
    for last_event_id in (f"{FORMER_ID}:0:3,1:3", event_id):
        headers = {**as_events, "Last-Event-ID": last_event_id}
        async with curl.session.get(url, headers=headers) as response, asyncio.timeout(30):
            read = [(await event_of(response.content, "record"))[1] for _ in range(10)]
            assert sorted((each["partition"], each["value"]) for each in read) == [
                (partition, 10 + value) for partition in range(2) for value in range(5)
            ]
    for last_event_id in ("0:3,1:4", f"{PRESENT_ID}:0:3,1:4"):
        headers = {**as_events, "Last-Event-ID": last_event_id}
        async with curl.session.get(url, headers=headers) as response, asyncio.timeout(30):
            read = [(await event_of(response.content, "record"))[1] for _ in range(3)]
            assert sorted((each["partition"], each["value"]) for each in read) == [(0, 13), (0, 14), (1, 14)]


@pytest.mark.parametrize("resumes", [True, False])
async def test_a_reader_whose_next_records_are_deleted_continues_where_the_log_begins(curl, resumes):
    """A slow reader's stream ended, and who came back got 416; a follower of all partitions lost one in silence."""
    for value in range(5):
        await curl.post("/v1/topics/orders/partitions/0/records", {"value": value})
    path = f"{curl.cluster.brokers[1].url}/v1/topics/orders"
    headers = {"Accept": "text/event-stream", "Last-Event-ID": f"{FORMER_ID}:0:1,1:0" if resumes else "0:1,1:0"}
    curl.cluster.log_starts[ORDERS_0] = 3
    one = {"Last-Event-ID": f"{FORMER_ID}:0"} if resumes else {"Last-Event-ID": "0"}
    for url, sent, ids in (
        (path + "/partitions/0/stream?heartbeat_ms=100", one, [f"{FORMER_ID}:{number}" for number in (2, 3, 4)]),
        (
            path + "/records?follow=true&heartbeat_ms=100",
            headers,
            [f"{FORMER_ID}:0:3,1:0", None, f"{FORMER_ID}:0:5,1:0"],
        ),
    ):
        async with curl.session.get(url, headers=sent) as response, asyncio.timeout(30):
            event_id, answer = await event_of(response.content, "truncated")
            assert (event_id, answer["from"], answer["to"]) == (ids[0], 3, 1)
            assert "deleted" in answer["why"]
            records = [await event_of(response.content, "record") for _ in range(2)]
            assert [(each, record["value"]) for each, record in records] == [(ids[1], 3), (ids[2], 4)]
    answer = await curl.get("/v1/topics/orders/partitions/0/stream?offset=1")
    assert answer.problem(416, "OFFSET_OUT_OF_RANGE")["log_start_offset"] == 3


@pytest.mark.parametrize(
    "last_event_id", ["x", "-1", f"{FORMER_ID}", f"{FORMER_ID}:", f"{FORMER_ID}:-2", "A:1", "9" * 19]
)
async def test_an_id_of_no_event_is_refused_with_its_form(curl, last_event_id):
    """Nothing is ignored: a reader that sends another id would begin somewhere else in silence."""
    answer = await curl.get("/v1/topics/orders/partitions/0/stream", headers={"Last-Event-ID": last_event_id})
    assert "TOPIC_ID:OFFSET" in answer.problem(400, "INVALID_REQUEST")["detail"]


async def event_of(lines: aiohttp.StreamReader, kind: str) -> tuple[str | None, Any]:
    """Id and data of the next event of this kind."""
    event_id: str | None = None
    async for line in lines:
        name, _, text = line.decode().strip().partition(": ")
        if name == "id":
            event_id = text
        elif (name, text) == ("event", kind):
            return event_id, json.loads((await lines.readline()).decode().removeprefix("data: "))
        elif not name:
            event_id = None
    raise AssertionError(f"the stream ended without {kind}")


async def next_of(lines: aiohttp.StreamReader, kind: str) -> Any:
    """The data of the next event of this kind."""
    async for line in lines:
        if line.decode().strip() == f"event: {kind}":
            return json.loads((await lines.readline()).decode().removeprefix("data: "))
    raise AssertionError(f"the stream ended without {kind}")


async def test_a_dry_run_creates_nothing(curl):
    """200 and not 201: nothing is there."""
    answer = await curl.post("/v1/topics?dry_run=true", {"name": "teas"})
    assert (answer.status, answer.json["dry_run"]) == (200, True)
    assert "teas" not in curl.cluster.topics


async def test_without_forwarding_the_controller_is_named(curl):
    """421 with the right node (2.5)."""
    answer = (await curl.post("/v1/topics?forward=never", {"name": "x"}, at=2)).problem(421, "NOT_CONTROLLER")
    assert answer["controller"] == {"id": 1, "url": curl.cluster.brokers[1].url}
    assert (await curl.post("/v1/topics?forward=never", {"name": "x"}, at=1)).status == 201


async def test_without_a_controller_creation_is_503(curl, monkeypatch):
    """Retriable and not written."""
    monkeypatch.setattr(leaders, "PAUSE_S", 0.001)
    curl.cluster.controller = -1
    answer = (await curl.post("/v1/topics", {"name": "x"})).problem(503, "LEADER_NOT_AVAILABLE")
    assert (answer["retriable"], answer["outcome"]) == (True, "not_written")


async def test_a_partition_shows_its_replicas_as_the_leader_sees_them(curl):
    """Lag and last catch-up are known at the leader only; any broker shows them."""
    await curl.post("/v1/topics/orders/partitions/1/records", {"value": 1})
    answer = await curl.get("/v1/topics/orders/partitions/1")
    assert (answer.headers["Mk-Served-By"], answer.headers["Mk-Leader"]) == ("1,2", "2")
    assert answer.json["leader"] == {"id": 2, "epoch": 4, "url": curl.cluster.brokers[2].url}
    first, second = answer.json["replicas"]
    assert first == {
        "id": 1,
        "role": "follower",
        "in_sync": True,
        "why": "it is 1 record behind, and had caught up 12 ms ago: within replica.lag.time.max.ms=30000",
        "leo": 0,
        "own_leo": 1,
        "hw": 1,
        "lag_records": 1,
        "lag_ms": 12,
        "caught_up_ms_ago": 12,
        "last_fetch_ms_ago": 5,
    }
    assert (second["role"], second["leo"], second["lag_records"], second["why"]) == ("leader", 1, 0, "it leads epoch 4")
    assert answer.json["told_by"] == [1, 2]
    (await curl.get("/v1/topics/orders/partitions/1?forward=never")).problem(421, "NOT_LEADER_OR_FOLLOWER")


# ---- produce ---------------------------------------------------------------------------------------------------------


async def test_a_list_of_a_topic_with_timestamps_out_of_order_continues_at_the_first_record_that_it_left_out(curl):
    """Producers set timestamps. If only times decided, `next` could be behind a record that the list has no room for."""
    for partition, timestamps in ((0, (400, 300)), (1, (100, 200))):
        records = [{"value": each, "timestamp": each} for each in timestamps]
        await curl.post(f"/v1/topics/orders/partitions/{partition}/records", {"records": records})
    for count, continues_at in ((2, [0, 2]), (3, [1, 2]), (4, [2, 2])):
        found = (await curl.get(f"/v1/topics/orders/records?from=earliest&max_records={count}")).json
        assert [each["value"] for each in found["records"]] == [100, 200, 400, 300][:count]
        assert [each["next_offset"] for each in found["next"]] == continues_at


async def test_a_list_of_a_topic_holds_no_more_bytes_than_one_of_a_partition(curl):
    """Each partition could fill an answer, which the memory of a broker does not have room for with 1,000 partitions."""
    batch = build_batch([Record(number, 0, value=b"x" * 65_536) for number in range(160)], compression="gzip")
    for name in (ORDERS_0, ORDERS_1):
        curl.cluster.batches[name], curl.cluster.ends[name] = [batch], 160
    found = (await curl.get("/v1/topics/orders/records?from=earliest&max_records=1000")).json
    assert len(found["records"]) * 65_536 == FETCH_BYTES_MAX
    assert [each["next_offset"] for each in found["next"]] == [64, 64]


async def test_a_list_of_a_topic_has_the_problem_of_each_partition_that_cannot_be_read(curl, monkeypatch):
    """The others are shown; if none can be read, the problem is the answer."""
    monkeypatch.setattr(leaders, "PAUSE_S", 0.001)
    curl.cluster.add_topic("lost", [-1, 1, 2])
    await curl.post("/v1/topics/lost/partitions/1/records", {"value": 1})
    curl.cluster.brokers[2].refuse["ListOffsets"] = [BrokerNotAvailable("stopping")] * leaders.ATTEMPTS_MAX
    found = (await curl.get("/v1/topics/lost/records?from=earliest")).json
    assert [each["value"] for each in found["records"]] == [1]
    problems = [each.get("problem") for each in found["next"]]
    assert [each and each["error"] for each in problems] == ["LEADER_NOT_AVAILABLE", None, "LEADER_NOT_AVAILABLE"]
    assert [each["next_offset"] for each in found["next"]] == [-1, 1, -1]
    curl.cluster.add_topic("dark", [-1, -1])
    (await curl.get("/v1/topics/dark/records")).problem(503, "LEADER_NOT_AVAILABLE")


async def test_a_list_of_a_topic_begins_where_its_parameter_says(curl, monkeypatch):
    """More records than there are: at the first one. A moment after all records: nowhere, or, for a follower, at the end."""
    for value in range(5):
        await curl.post("/v1/topics/orders/partitions/0/records", {"value": value})
    curl.cluster.log_starts[ORDERS_0] = 2
    for start, values in (("-2", [3, 4]), ("-1000", [2, 3, 4]), ("latest", []), ("earliest", [2, 3, 4])):
        found = (await curl.get(f"/v1/topics/orders/records?from={start}")).json
        assert [each["value"] for each in found["records"]] == values
        assert [each["next_offset"] for each in found["next"]] == [5, 0]
    for wrong in ("-", "-1x", "-" + "9" * 19, "yesterday"):
        (await curl.get(f"/v1/topics/orders/records?from={wrong}")).problem(400, "INVALID_REQUEST")

    def at_none(on_list_offsets):
        async def answer(request):
            response = await on_list_offsets(request)
            if request.partitions[0].timestamp < 0:
                return response
            return m.ListOffsetsResponse(partitions=(structs.replace(response.partitions[0], offset=-1),))

        return answer

    for broker in curl.cluster.brokers.values():
        monkeypatch.setattr(broker, "on_ListOffsets", at_none(broker.on_ListOffsets))
    found = (await curl.get("/v1/topics/orders/records?from=2100-01-01T00:00:00Z")).json
    assert (found["records"], [each["next_offset"] for each in found["next"]]) == ([], [-1, -1])
    url = f"{curl.cluster.brokers[1].url}/v1/topics/orders/records?follow=true&from=2100-01-01T00:00:00Z"
    async with curl.session.get(url) as response, asyncio.timeout(30):
        await curl.post("/v1/topics/orders/partitions/0/records", {"value": "new"})
        assert json.loads(await response.content.readline())["value"] == "new"


@pytest.mark.parametrize(
    "last_event_id", ["0:1,0:2", "0:1,", "0", "0:", ":1", "0:" + "9" * 19, "9" * 4301 + ":1", "0:-1", f"{FORMER_ID}:"]
)
async def test_an_id_that_no_event_of_a_topic_has_is_refused(curl, last_event_id):
    """Positions that contradict each other, or are none."""
    async with asyncio.timeout(30):
        answer = await curl.get("/v1/topics/orders/records?follow=true", headers={"Last-Event-ID": last_event_id})
    assert answer.problem(400, "INVALID_REQUEST")["errors"][0]["parameter"] == "Last-Event-ID"


async def test_records_are_produced_and_read_back_through_any_broker(curl):
    """The commands of docs/tour.md."""
    records = [{"key": "ann", "value": {"item": "tea"}}, {"key": "bob", "value": "milk", "headers": [["h", "1"]]}]
    answer = await curl.post("/v1/topics/orders/records", {"records": records}, at=2)
    assert answer.status == 200
    places = answer.json["records"]
    for record, place in zip(records, places, strict=True):
        path = f"/v1/topics/orders/partitions/{place['partition']}/records?offset={place['offset']}"
        read = (await curl.get(path)).json
        found = read["records"][0]
        assert (found["key"], found["value"], found["timestamp"]) == (
            record["key"],
            record["value"],
            place["timestamp"],
        )
        assert read["leader_id"] == place["partition"] + 1


IDEMPOTENT = {"Producer-Id": "7", "Producer-Epoch": "0", "Base-Sequence": "0"}
ONE_PARTITION = "/v1/topics/orders/partitions/0/records"


@pytest.mark.parametrize(
    ("path", "headers", "said"),
    [
        (ONE_PARTITION, {"Idempotency-Key": "a"}, "Idempotency-Key is not supported"),
        (ONE_PARTITION, {"Producer-Id": "7", "Base-Sequence": "0"}, "Producer-Id needs Producer-Epoch beside it"),
        ("/v1/topics/orders/records", IDEMPOTENT, "Producer-Id needs one partition"),
        (ONE_PARTITION, {**IDEMPOTENT, "Transactional-Id": ""}, "Transactional-Id is empty"),
        (ONE_PARTITION + "?acks=1", {**IDEMPOTENT, "Transactional-Id": "t"}, "need acks=all"),
        (ONE_PARTITION, {"Kafka-Key": "a"}, "go with a raw body"),
        (ONE_PARTITION, {"Kafka-Header-A": "a"}, "go with a raw body"),
    ],
)
async def test_headers_that_do_not_fit_their_request_are_refused_before_anything_is_sent(curl, path, headers, said):
    """What a header promises would otherwise not hold: records that are written twice, or lack their key."""
    refused = (await curl.post(path, {"value": 1}, headers=headers)).problem(400, "INVALID_REQUEST")
    assert said in refused["detail"]
    assert curl.cluster.brokers[1].asked == []


@pytest.mark.parametrize(
    ("headers", "key", "shown"),
    [
        (
            b"Kafka-Key: \xff\r\nkafka-header-x: \xfe\r\nKafka-Header-: no\r\n",
            {"key_b64": "/w=="},
            [["x", {"b64": "/g=="}]],
        ),
        (b"Kafka-Key:\r\n", {"key_b64": ""}, []),
        (b"", {"key": None}, []),
    ],
)
async def test_headers_of_a_raw_body_are_kept_byte_by_byte(curl, headers, key, shown):
    """Also what is no UTF-8; names in whatever case. One without a name is no header, and a key that is left out is null."""
    address = curl.cluster.brokers[1].address
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"POST %s HTTP/1.1\r\nHost: %s\r\n" % (ONE_PARTITION.encode(), str(address).encode()))
    writer.write(b"Content-Type: text/plain\r\nContent-Length: 1\r\nConnection: close\r\n%s\r\n1" % headers)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    writer.close()
    (record,) = (await curl.get(f"{ONE_PARTITION}?format=base64")).json["records"]
    assert (record["value_b64"], record["headers"]) == ("MQ==", shown)
    assert {name: value for name, value in record.items() if name.startswith("key")} == key


async def test_transactional_id_that_is_not_utf8_is_refused_before_anything_is_sent(curl):
    """No message of a broker can carry it: the broker stopped, as after a bug in the code that changes its log."""
    address = curl.cluster.brokers[1].address
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"POST %s HTTP/1.1\r\nHost: %s\r\n" % (ONE_PARTITION.encode(), str(address).encode()))
    writer.write(b"Transactional-Id: t\xff\r\nProducer-Id: 7\r\nProducer-Epoch: 0\r\nBase-Sequence: 0\r\n")
    writer.write(b'Content-Type: application/json\r\nContent-Length: 11\r\nConnection: close\r\n\r\n{"value":1}')
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"the header Transactional-Id is not UTF-8" in answer
    assert curl.cluster.brokers[1].asked == []


@pytest.mark.parametrize("name", ["%7B%7D", "a%7Bb", "%7D"])
async def test_braces_in_a_name_are_part_of_it(curl, name):
    """Groups and transactional ids may have them: the answer was that GET cannot be used there."""
    problem = (await curl.get(f"/v1/topics/{name}")).problem(404, "UNKNOWN_TOPIC_OR_PARTITION")
    assert problem["detail"].startswith("there is no topic")


async def test_an_expectation_that_cannot_be_met_is_refused_whatever_its_bytes(curl):
    """aiohttp's own refusal repeats the header, which failed for what is not UTF-8: an answer of 500, and a traceback."""
    address = curl.cluster.brokers[1].address
    for expected in (b"\xff", b"200-ok"):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /v1/topics HTTP/1.1\r\nHost: %s\r\nExpect: %s\r\n\r\n" % (str(address).encode(), expected))
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 417 Expectation Failed")
        assert b"cannot be met, only 100-continue" in answer


async def test_a_header_that_expects_nothing_is_no_expectation(curl):
    """An empty list has no member that cannot be met (RFC 9110, 10.1.1)."""
    address = curl.cluster.brokers[1].address
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /v1/topics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nExpect:\r\n\r\n" % str(address).encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK")


async def test_keys_go_where_kafka_puts_them_and_the_rest_sticks_together(curl):
    """S26: murmur2 of the key; one random partition for the records without one."""
    curl.cluster.add_topic("wide", [1] * 12)
    records = [{"key": "21", "value": 1}, *({"value": number} for number in range(20)), {"key": "foobar", "value": 1}]
    empty = {"key": "", "value": 1}
    answer = (await curl.post("/v1/topics/wide/records", {"records": [*records, empty]})).json["records"]
    # Kafka's own test vectors: murmur2("21") = -973932308, murmur2("foobar") = -790332482, murmur2("") = 275646681.
    assert answer.pop()["partition"] == 275646681 % 12, "an empty key is a key"
    assert answer[0]["partition"] == (-973932308 & 0x7FFFFFFF) % 12
    assert answer[-1]["partition"] == (-790332482 & 0x7FFFFFFF) % 12
    assert len({each["partition"] for each in answer[1:-1]}) == 1
    assert [each["offset"] for each in answer[1:-1]] == list(range(20))


async def test_long_keys_are_hashed_in_turns(curl, monkeypatch):
    """A key of 8 MB held the event loop for 300 ms; many short keys count as well."""
    turns = 0

    async def long_step() -> None:
        nonlocal turns
        turns += 1

    monkeypatch.setattr(produce, "long_step", long_step)
    for keys in (["x" * 5 * produce.HASHED_AT_ONCE], ["k"] * (5 * produce.HASHED_AT_ONCE // produce.KEY_COST)):
        turns = 0
        records = [produce.RecordIn(0, key.encode(), b"", ()) for key in keys]
        visit = SimpleNamespace(
            host=SimpleNamespace(image=curl.cluster.image(), world=SimpleNamespace(random=Random(0)))
        )
        await produce._partitioned(visit, "orders", records, [None] * len(records))
        assert 4 <= turns <= 6


async def test_the_forms_of_a_body(curl):
    """An object, a list of records, one record, lines, and what curl -d sends (with a note)."""
    path = "/v1/topics/orders/partitions/0/records"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    lines = {"Content-Type": "application/x-ndjson"}
    xml = {"Content-Type": "application/xml"}
    assert (await curl("POST", path, data=b"<records/>", headers=xml)).status == 415
    assert (await curl.post(path, {"records": [{"value": 1}, {"value": 2}]})).json["records"][1]["offset"] == 1
    assert (await curl.post(path, {"value": 3})).json["records"] != []
    answer = (await curl("POST", path, data=b'{"value":4}\n\n{"value":5}\n', headers=lines)).json
    assert [each["offset"] for each in answer["records"]] == [3, 4]
    answer = (await curl("POST", path, data=b'{"value":6}', headers=form)).json
    assert answer["note"] == "sent as form; use --json"
    read = (await curl.get(path + "?offset=0")).json
    assert [each["value"] for each in read["records"]] == [1, 2, 3, 4, 5, 6]
    refused = (await curl("POST", path, data=b"a=1", headers=form)).problem(415, "INVALID_REQUEST")
    assert refused["example"].startswith("curl --json")
    bad = (await curl("POST", path, data=b'{"value":4}\n{\n', headers=lines)).problem(400, "INVALID_REQUEST")
    assert bad["errors"][0]["line"] == 2


async def test_acks_0_is_202_and_says_no_offsets(curl):
    """Nothing is known then, and an offset would be a promise."""
    answer = await curl.post("/v1/topics/orders/partitions/0/records?acks=0", {"value": 1})
    assert answer.status == 202
    assert answer.json["records"] == [{"partition": 0}]
    assert curl.cluster.brokers[1].asked[-1].acks == 0
    assert (await curl.post("/v1/topics/orders/partitions/0/records?acks=1", {"value": 1})).json["acks"] == "1"


@pytest.mark.parametrize("acks", ["2", "-2", "many", ""])
async def test_other_acks_have_an_error_of_their_own(curl, acks):
    """KAFKA-FACTS, Produce 1: acks not in -1, 0, 1 -> INVALID_REQUIRED_ACKS; nothing is sent."""
    for path in ("/v1/topics/orders/records", "/v1/topics/orders/partitions/0/records"):
        bad = (await curl.post(f"{path}?acks={acks}", {"value": 1})).problem(400, "INVALID_REQUIRED_ACKS")
        assert (bad["error_code"], bad["errors"][0]["parameter"], bad["outcome"]) == (21, "acks", "not_written")
        more = (await curl.post(f"{path}?acks={acks}&ack=1", {"value": 1})).problem(400, "INVALID_REQUEST")
        assert [each["parameter"] for each in more["errors"]] == ["acks", "ack"]
    assert curl.cluster.brokers[1].asked == []


async def test_each_problem_has_a_number_of_its_own(curl):
    """RFC 9457, 3.1.5: `instance` tells one occurrence from the next, and finds it among the events."""
    first, second = [(await curl.get("/v1/topics/a%20b?x=1")).problem(400, "INVALID_REQUEST") for _ in range(2)]
    path, number = first["instance"].split("#")
    assert (path, number.split(".")[::2]) == ("/v1/topics/a%20b", ["1", "1"])
    assert second["instance"] == path + "#" + number[:-1] + "2"
    other = (await curl.get("/v1/topics/none", at=2)).problem(404, "UNKNOWN_TOPIC_OR_PARTITION")
    assert other["instance"].startswith("/v1/topics/none#2.")
    assert len((await curl.get("/" + "x" * 2000)).problem(404, "INVALID_REQUEST")["instance"]) < 300
    curl.cluster.brokers[1].refuse_parts[ORDERS_0] = [NotEnoughReplicas("too few")]
    answer = (await curl.post("/v1/topics/orders/partitions/0/records", {"value": 1})).problem(
        503, "NOT_ENOUGH_REPLICAS"
    )
    ((kind, facts),) = curl.cluster.brokers[1].reported
    assert (kind, facts["instance"], facts["error"]) == ("problem_told", answer["instance"], "NOT_ENOUGH_REPLICAS")


async def test_too_few_replicas_is_503_not_written(curl):
    """The example of 2.5."""
    error = NotEnoughReplicas("orders-0 needs 2 in-sync replicas, the ISR is [1]")
    curl.cluster.brokers[1].refuse_parts[ORDERS_0] = [error]
    answer = (await curl.post("/v1/topics/orders/partitions/0/records", {"value": 1})).problem(
        503, "NOT_ENOUGH_REPLICAS"
    )
    assert (answer["error_code"], answer["retriable"], answer["outcome"]) == (19, True, "not_written")
    assert (answer["topic"], answer["partition"], answer["min_insync_replicas"], answer["isr"]) == (
        "orders",
        0,
        2,
        [1, 2],
    )
    assert answer["leader"]["id"] == 1


async def test_a_timeout_after_the_append_is_504_unknown_and_never_sent_again(curl):
    """A second attempt could write the record twice."""
    for error in (RequestTimedOut("late", outcome=UNKNOWN), NotLeaderOrFollower("moved", outcome=UNKNOWN)):
        curl.cluster.brokers[2].asked.clear()
        curl.cluster.brokers[2].refuse_parts[ORDERS_1] = [error]
        answer = (await curl.post("/v1/topics/orders/partitions/1/records", {"value": 1})).problem(504, error.name)
        assert answer["outcome"] == "unknown"
        assert len(curl.cluster.brokers[2].asked) == 1


async def test_mixed_results_are_207_with_a_problem_each(curl):
    """The status tells that not all is well, each record what became of it."""
    curl.cluster.brokers[2].refuse_parts[ORDERS_1] = [NotEnoughReplicas("too few")]
    records = [{"key": str(number), "value": number} for number in range(10)]
    answer = await curl.post("/v1/topics/orders/records", {"records": records})
    assert answer.status == 207
    first, second = answer.json["partitions"]
    assert first["base_offset"] == 0
    assert second["problem"]["error"] == "NOT_ENOUGH_REPLICAS"
    assert second["problem"]["status"] == 503
    for place in answer.json["records"]:
        if place["partition"] == 1:
            assert place == {"partition": 1, "error": "NOT_ENOUGH_REPLICAS", "outcome": "not_written"}
        else:
            assert place["offset"] >= 0
    assert answer.headers["Mk-Leader"] == "1,2"


async def test_when_all_fails_the_worst_is_the_answer(curl):
    """Never a 2xx when nothing was written; unknown stands above everything."""
    curl.cluster.brokers[1].refuse_parts[ORDERS_0] = [RequestTimedOut("late", outcome=UNKNOWN)]
    curl.cluster.brokers[2].refuse_parts[ORDERS_1] = [NotEnoughReplicas("too few")]
    records = [{"key": str(number), "value": number} for number in range(10)]
    answer = (await curl.post("/v1/topics/orders/records", {"records": records})).problem(504, "REQUEST_TIMED_OUT")
    assert [each["problem"]["error"] for each in answer["partitions"]] == ["REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS"]


async def test_a_stale_picture_is_looked_at_again_while_nothing_was_written(curl, monkeypatch):
    """A leader that does not know yet that it leads must not be a failure for a person."""
    monkeypatch.setattr(leaders, "PAUSE_S", 0.001)
    curl.cluster.brokers[2].refuse_parts[ORDERS_1] = [NotLeaderOrFollower("not yet")] * 2
    assert (await curl.post("/v1/topics/orders/partitions/1/records", {"value": 1})).status == 200
    curl.cluster.brokers[2].refuse_parts[ORDERS_1] = [NotLeaderOrFollower("not yet")] * 2
    assert (await curl.get("/v1/topics/orders/partitions/1/records")).status == 200
    curl.cluster.brokers[2].refuse_parts[ORDERS_1] = [NotLeaderOrFollower("not yet")] * 9
    answer = (await curl.post("/v1/topics/orders/partitions/1/records", {"value": 1})).problem(
        503, "LEADER_NOT_AVAILABLE"
    )
    assert answer["outcome"] == "not_written"
    (await curl.get("/v1/topics/orders/partitions/1/records")).problem(503, "LEADER_NOT_AVAILABLE")


async def test_a_newer_leader_that_is_named_is_asked(curl, monkeypatch):
    """The answer NOT_LEADER names the leader: no need to wait for the metadata."""
    cluster = curl.cluster
    cluster.add_topic("moved", [2])
    name = TopicPartition("moved", 0)

    async def moved(request):
        answer = m.ProducedPartition(
            topic="moved",
            partition=0,
            error_code=6,
            error_message="moved",
            outcome="not_written",
            current_leader=m.CurrentLeader(leader_id=1, leader_epoch=5),
        )
        return m.ProduceResponse(partitions=(answer,))

    async def taken(request):
        return m.ProduceResponse(partitions=(m.ProducedPartition(topic="moved", partition=0, base_offset=7),))

    monkeypatch.setattr(leaders, "PAUSE_S", 0.001)
    monkeypatch.setattr(cluster.brokers[2], "on_Produce", moved)
    monkeypatch.setattr(cluster.brokers[1], "on_Produce", taken)
    answer = await curl.post(f"/v1/topics/{name.topic}/records", {"value": 1})
    assert answer.json["records"][0]["offset"] == 7
    assert answer.json["partitions"][0]["leader_id"] == 1


async def test_reassignment_waits_for_replicas_of_its_target_that_are_not_in_sync(curl, monkeypatch):
    """Neither for those in sync, nor for those that will go."""
    (partition, other) = curl.cluster.topics["orders"].partitions
    partition = replace(partition, replicas=(3, 4, 1, 2), isr=(1, 4), adding=(3, 4), removing=(2,))
    curl.cluster.topics["orders"] = replace(curl.cluster.topics["orders"], partitions=(partition, other))
    moving = OngoingReassignment(
        topic="orders", partition=0, replicas=(3, 4, 1, 2), adding_replicas=(3, 4), removing_replicas=(2,)
    )

    async def listed(_request):
        return ListPartitionReassignmentsResponse(partitions=(moving,))

    monkeypatch.setattr(curl.cluster.brokers[1], "on_ListPartitionReassignments", listed, raising=False)
    (found,) = (await curl.get("/v1/reassignments")).json["reassignments"]
    assert (found["replicas"], found["isr"], found["waits_for"]) == ([3, 4, 1, 2], [1, 4], [3])


async def test_reassignment_that_has_nothing_to_move_is_complete(curl, monkeypatch):
    """A partition that moves is not, and neither is one whose replicas only go."""
    (partition, other) = curl.cluster.topics["orders"].partitions
    asked = []

    def leaves(**changes):
        async def alter(request):
            asked.append(request.partitions[0])
            moved = replace(curl.cluster.topics["orders"], partitions=(replace(partition, **changes), other))
            curl.cluster.topics["orders"] = moved
            done = ReassignmentAnswer(topic="orders", partition=0)
            return AlterPartitionReassignmentsResponse(responses=(done,), metadata_offset=curl.cluster.offset)

        monkeypatch.setattr(curl.cluster.brokers[1], "on_AlterPartitionReassignments", alter, raising=False)

    async def moved(method, **options):
        path = "/v1/topics/orders/partitions/0/reassignment"
        found = (await curl(method, path, **options)).json
        names = ("replicas", "adding_replicas", "removing_replicas", "isr", "waits_for", "complete")
        return tuple(found[name] for name in names)

    leaves(replicas=(3, 1, 2), isr=(1, 2), adding=(3,), removing=(2,))
    assert await moved("PUT", json={"replicas": [3, 1]}) == ([3, 1, 2], [3], [2], [1, 2], [3], False)
    leaves(replicas=(1, 2), isr=(1, 2), removing=(2,))
    assert await moved("PUT", json={"replicas": [1]}) == ([1, 2], [], [2], [1, 2], [], False)
    leaves(replicas=(1, 2), isr=(1,))
    assert await moved("PUT", json={"replicas": [1, 2]}) == ([1, 2], [], [], [1], [2], True)
    assert (await moved("DELETE"))[-1] is True
    assert [each.replicas for each in asked] == [(3, 1), (1,), (1, 2), None]


@pytest.mark.parametrize("change", ["reassignment", "elections"])
async def test_a_topic_that_is_deleted_after_its_partition_was_changed_is_404_and_written(curl, monkeypatch, change):
    """Outcome: the controller has recorded the change, so it must not be reported as *not written*."""
    cluster = curl.cluster

    async def alter(_request):
        del cluster.topics["orders"]
        if change == "elections":
            return m.ElectLeadersResponse(partitions=(m.ElectedLeader(topic="orders", partition=0),))
        return AlterPartitionReassignmentsResponse(responses=(ReassignmentAnswer(topic="orders", partition=0),))

    for api in ("AlterPartitionReassignments", "ElectLeaders"):
        monkeypatch.setattr(cluster.brokers[1], f"on_{api}", alter, raising=False)
    path = f"/v1/topics/orders/partitions/0/{change}"
    if change == "reassignment":
        answer = await curl("PUT", path, json={"replicas": [1]})
    else:
        answer = await curl.post(path, {"type": "preferred"})
    assert answer.problem(404, "UNKNOWN_TOPIC_OR_PARTITION")["outcome"] == WRITTEN


async def test_without_a_leader_it_is_503(curl):
    """LEADER_NOT_AVAILABLE, retriable, not written; the others of a request still go through."""
    curl.cluster.add_topic("lost", [-1, 1])
    answer = (await curl.get("/v1/topics/lost/partitions/0/records")).problem(503, "LEADER_NOT_AVAILABLE")
    assert answer["isr"] == [1, 2]
    (await curl.post("/v1/topics/lost/partitions/0/records", {"value": 1})).problem(503, "LEADER_NOT_AVAILABLE")
    assert (await curl.post("/v1/topics/lost/records", {"value": 1})).json["records"][0]["partition"] == 1
    records = [{"key": str(number), "value": number} for number in range(10)]
    answer = await curl.post("/v1/topics/lost/records", {"records": records})
    assert answer.status == 207
    assert [each.get("error") for each in answer.json["records"]] == [
        None if each["partition"] else "LEADER_NOT_AVAILABLE" for each in answer.json["records"]
    ]
    curl.cluster.add_topic("dark", [-1, -1])
    (await curl.post("/v1/topics/dark/records", {"value": 1})).problem(503, "LEADER_NOT_AVAILABLE")


async def test_a_dead_leader_is_503_and_a_lost_answer_is_504(curl, monkeypatch):
    """Unreachable: nothing happened. No answer: nobody can tell."""
    monkeypatch.setattr(leaders, "PAUSE_S", 0.001)
    curl.cluster.brokers[2].refuse["Produce"] = [BrokerNotAvailable("stopping")] * leaders.ATTEMPTS_MAX
    answer = await curl.post("/v1/topics/orders/partitions/1/records", {"value": 1})
    assert "stopping" in answer.problem(503, "LEADER_NOT_AVAILABLE")["detail"]
    monkeypatch.setattr(leaders, "FORWARD_SLACK_S", 0.5)
    may_answer = asyncio.Event()

    async def silent(request):
        await may_answer.wait()
        return m.ProduceResponse(partitions=())

    monkeypatch.setattr(curl.cluster.brokers[2], "on_Produce", silent)
    path = "/v1/topics/orders/partitions/1/records?timeout_ms=1"
    answer = (await curl.post(path, {"value": 1})).problem(504, "NETWORK_EXCEPTION")
    assert answer["outcome"] == "unknown"
    may_answer.set()
    await curl.cluster.brokers[2].network.abort()
    answer = (await curl.post(path, {"value": 1})).problem(503, "LEADER_NOT_AVAILABLE")
    assert answer["outcome"] == "not_written"


async def test_forward_never_names_the_leader(curl):
    """421 is for clients that want to go there themselves."""
    for answer in (
        await curl.post("/v1/topics/orders/partitions/1/records?forward=never", {"value": 1}),
        await curl.get("/v1/topics/orders/partitions/1/records?forward=never"),
    ):
        problem = answer.problem(421, "NOT_LEADER_OR_FOLLOWER")
        assert problem["leader"] == {"id": 2, "epoch": 4, "url": curl.cluster.brokers[2].url}
    assert curl.cluster.brokers[2].asked == []
    assert (await curl.post("/v1/topics/orders/partitions/0/records?forward=never", {"value": 1})).status == 200


async def test_headers_for_idempotence_are_refused_not_ignored(curl):
    """Whoever sends one believes that a repetition is safe."""
    answer = await curl.post("/v1/topics/orders/records", {"value": 1}, headers={"Producer-Id": "7"})
    assert "Producer-Id" in answer.problem(400, "INVALID_REQUEST")["detail"]


# ---- fetch -----------------------------------------------------------------------------------------------------------


async def test_an_empty_poll_says_that_time_ran_out(curl):
    """Which of the two ended it is otherwise a guess."""
    answer = (await curl.get("/v1/topics/orders/partitions/1/records?offset=0&max_wait_ms=1")).json
    assert answer["wait"]["ended"] == "timeout"
    assert answer["records"] == []
    assert {name: answer[name] for name in answer if name not in ("wait", "records")} == {
        "topic": "orders",
        "partition": 1,
        "next_offset": 0,
        "high_watermark": 0,
        "last_stable_offset": 0,
        "log_start_offset": 0,
        "log_end_offset": 0,
        "leader_epoch": 4,
        "leader_id": 2,
    }


async def test_a_parked_poll_ends_with_the_data(curl):
    """S12 for people: a produce wakes the fetch that was there first."""
    path = "/v1/topics/orders/partitions/1/records"
    parked = asyncio.ensure_future(curl.get(path + "?max_wait_ms=30000"))
    await curl.cluster.brokers[2].was_asked.wait()
    await curl.post(path, {"value": "news"})
    answer = (await parked).json
    assert answer["wait"]["ended"] == "data"
    assert [each["value"] for each in answer["records"]] == ["news"]
    assert answer["next_offset"] == 1


async def test_an_offset_outside_the_log_is_416_with_the_log(curl):
    """The caller learns where to start instead."""
    answer = (await curl.get("/v1/topics/orders/partitions/1/records?offset=9")).problem(416, "OFFSET_OUT_OF_RANGE")
    assert (answer["log_start_offset"], answer["high_watermark"], answer["partition"]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("access", "count", "hint"),
    [(None, 10, "; did you mean 'orders-7'?"), (object(), 10, ""), (None, leaders.COMPARED_NAMES_MAX + 1, "")],
    ids=["plain", "authorizer", "many topics"],
)
def test_a_similar_topic_is_named_only_where_it_is_no_secret_and_costs_little(access: Any, count: int, hint: str):
    """Under an authorizer a name may be hidden from the sender; comparing with thousands of names would hold the loop."""
    topics = {f"orders-{number}": None for number in range(count)}
    host: Any = SimpleNamespace(image=SimpleNamespace(topics=topics), access=access)
    assert leaders.unknown_topic(host, "ordres-7").message == f"there is no topic 'ordres-7'{hint}"


async def test_a_partition_in_a_record_is_refused_with_the_path_that_names_it(curl):
    """Kafka's REST Proxy has it in the record."""
    answer = await curl.post("/v1/topics/orders/records", {"records": [{"value": "tea", "partition": 2}]})
    (fault,) = answer.problem(422, "INVALID_REQUEST")["errors"]
    assert fault["pointer"] == "/records/0/partition"
    assert fault["detail"].endswith("the path names the partition, as in /v1/topics/orders/partitions/2/records")


async def test_unknown_topics_and_partitions_are_404(curl):
    """In words that say what there is."""
    answer = (await curl.get("/v1/topics/none/partitions/0/records")).problem(404, "UNKNOWN_TOPIC_OR_PARTITION")
    assert "'none'" in answer["detail"]
    answer = (await curl.get("/v1/topics/orders/partitions/7/records")).problem(404, "UNKNOWN_TOPIC_OR_PARTITION")
    assert answer["detail"] == "orders has partitions 0 to 1, not 7"
    (await curl.post("/v1/topics/none/records", {"value": 1})).problem(404, "UNKNOWN_TOPIC_OR_PARTITION")
    for path in ("/v1/topics/ordres", "/v1/topics/ordres/records", "/v1/topics/ordres/partitions/0/records"):
        answer = (await curl.get(path)).problem(404, "UNKNOWN_TOPIC_OR_PARTITION")
        assert answer["detail"] == "there is no topic 'ordres'; did you mean 'orders'?"
    for number in ("x", "-1", "1.0", "99999999999", "٣"):
        (await curl.get(f"/v1/topics/orders/partitions/{number}/records")).problem(400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "query, parameter",
    [
        ("max_wait_ms=30001", "max_wait_ms"),
        ("offset=-1", "offset"),
        ("max_records=0", "max_records"),
        ("min_bytes=2000&max_bytes=1000", "min_bytes"),
        ("isolation=replica", "isolation"),
        ("fromat=json", "fromat"),
        ("format=xml", "format"),
        ("offset=1&offset=2", "offset"),
    ],
)
async def test_a_bad_parameter_is_400_and_named(curl, query, parameter):
    """An ignored parameter is a surprise later."""
    answer = (await curl.get(f"/v1/topics/orders/partitions/0/records?{query}")).problem(400, "INVALID_REQUEST")
    assert [each["parameter"] for each in answer["errors"]] == [parameter]


# ---- doors that are not there, types, limits, bugs -------------------------------------------------------------------


async def test_root_is_a_page_for_browsers_and_an_index_for_other_clients(curl):
    """Accept decides: curl gets JSON whose links work, a browser gets the page with a policy against inline script."""
    index = await curl.get("/")
    assert index.headers["Vary"] == "Accept"
    assert set(index.json["links"].values()) <= {route.path for route in ROUTES}
    browsers = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    page = await curl.get("/", headers=browsers)
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = page.headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    files = re.findall(r'"(/ui/[^"]+)"', page.text)
    assert len(files) == 2
    for path in files:
        file = await curl.get(path)
        assert file.status == 200
        assert "immutable" in file.headers["Cache-Control"]
    assert "reload" in (await curl.get("/ui/console.000000000000.js")).problem(404, "INVALID_REQUEST")["detail"]
    (await curl.get("/ui/secret.txt")).problem(400, "INVALID_REQUEST")


async def test_paths_and_methods_that_are_not_there(curl):
    """404 with the nearest path, 405 with what works; both are problems, not pages."""
    assert "/v1/topics" in (await curl.get("/v1/topic")).problem(404, "INVALID_REQUEST")["detail"]
    answer = await curl("PUT", "/v1/topics/orders")
    answer.problem(405, "INVALID_REQUEST")
    assert answer.headers["Allow"] == "GET, DELETE, PATCH"
    assert (await curl("HEAD", "/healthz")).status == 200
    (await curl.get("/v1/topics/orders/%0A")).problem(404, "INVALID_REQUEST")
    (await curl("POST", "/v1/topics/%0A")).problem(405, "INVALID_REQUEST")
    (await curl.get("/openapi-json")).problem(404, "INVALID_REQUEST")


async def test_media_types_that_cannot_be_read_or_written(curl):
    """415 shows a line that works; 406 says what there is."""
    headers = {"Content-Type": "application/xml"}
    answer = (await curl("POST", "/v1/topics", data=b"<x/>", headers=headers)).problem(415, "INVALID_REQUEST")
    assert answer["accepted"] == ["application/json", "application/msgpack"]
    assert "/v1/topics" in answer["example"]
    latin = {"Content-Type": "application/json; charset=latin-1"}
    (await curl("POST", "/v1/topics", data=b"{}", headers=latin)).problem(415, "INVALID_REQUEST")
    lines = {"Content-Type": "application/x-ndjson"}
    (await curl("POST", "/v1/topics", data=b"{}\n", headers=lines)).problem(415, "INVALID_REQUEST")
    packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    (await curl("POST", "/v1/topics", data=b"{}", headers=packed)).problem(415, "INVALID_REQUEST")
    answer = await curl.get("/v1/topics", headers={"Accept": "text/html"})
    assert answer.problem(406, "INVALID_REQUEST")["available"] == ["application/json", "application/msgpack"]
    assert (await curl.get("/v1/topics", headers={"Accept": "text/html, */*;q=0.1"})).status == 200


async def test_bodies_that_are_no_json_or_no_object(curl):
    """400 for the text, 422 for what it says."""
    headers = {"Content-Type": "application/json"}
    answer = (await curl("POST", "/v1/topics", data=b'{"name":', headers=headers)).problem(400, "INVALID_REQUEST")
    assert "line 1" in answer["detail"]
    (await curl("POST", "/v1/topics", data=b"[]", headers=headers)).problem(422, "INVALID_REQUEST")
    (await curl("POST", "/v1/topics", headers=headers)).problem(400, "INVALID_REQUEST")
    answer = (await curl.post("/v1/topics", {"name": "x", "partitons": 1})).problem(422, "INVALID_REQUEST")
    assert answer["errors"] == [{"pointer": "/partitons", "detail": "no such member here; did you mean 'partitions'?"}]


async def test_a_member_that_comes_twice_in_msgpack_is_400_beside_a_name_that_is_no_text(curl):
    """What is wrong with a body is never a failure of the broker."""
    body = b"\x83\xc4\x01a\x01\xa1b\x02\xa1b\x03"
    answer = await curl("POST", "/v1/topics", data=body, headers={"Content-Type": "application/msgpack"})
    assert "a member's name is no text" in answer.problem(400, "INVALID_REQUEST")["detail"]


async def test_a_body_beyond_the_limit_is_413(monkeypatch):
    """Announced or not."""
    async with FakeCluster(1, socket_request_max_bytes=2048) as cluster:
        cluster.add_topic("orders", [1])
        curl = Curl(cluster)
        async with curl.session:
            answer = await curl.post("/v1/topics/orders/records", {"value": "x" * 4000})
            assert answer.problem(413, "RECORD_LIST_TOO_LARGE")["body_bytes_max"] == 2048

            async def chunks() -> AsyncIterator[bytes]:
                for _ in range(5):
                    yield b" " * 1000

            headers = {"Content-Type": "application/json"}
            answer = await curl("POST", "/v1/topics/orders/records", data=chunks(), headers=headers)
            answer.problem(413, "RECORD_LIST_TOO_LARGE")
            assert (await curl.post("/v1/topics/orders/records", {"value": "x" * 1000})).status == 200


async def test_too_many_bytes_at_once_are_503(monkeypatch):
    """Back-pressure instead of memory (DESIGN, risks); a small request still gets through, whatever others hold."""
    monkeypatch.setattr(body, "ALWAYS_ADMITTED_SIZE", 500)
    async with FakeCluster(1, queued_max_request_bytes=1024) as cluster:
        cluster.add_topic("orders", [1])
        curl = Curl(cluster)
        async with curl.session:
            answer = await curl.post("/v1/topics/orders/records", {"value": "x" * 2000})
            assert answer.problem(503, "BROKER_NOT_AVAILABLE")["outcome"] == "not_written"
            doors = cluster.brokers[1].doors
            assert doors.held_bytes == 0, "what was refused is held no more"
            doors.held_bytes = 5000
            assert (await curl.post("/v1/topics/orders/records", {"value": "x"})).status == 200


async def test_a_body_that_never_ends_is_408(curl, monkeypatch):
    """A client that is gone must not hold memory for ever."""
    monkeypatch.setattr(body, "BODY_TIMEOUT_S", 0.01)
    address = curl.cluster.brokers[1].address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(
        b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    assert b"408" in await reader.readline()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "path", ["/v1/topics/orders/records", "/v1/topics/orders/partitions/1/records", "/topics/orders"]
)
@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_topic_that_is_deleted_while_a_body_is_read_is_404_and_not_written(curl, path, is_gone):
    """It was a 500 with an unknown outcome, though nothing had been sent; also a partition that the next one lacks."""

    async def body() -> AsyncIterator[bytes]:
        yield b'{"records": [{"value": 1},'
        while not curl.cluster.brokers[1].doors.held_bytes:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.001)
        former = curl.cluster.topics.pop("orders")
        if not is_gone:
            curl.cluster.topics["orders"] = replace(former, topic_id=PRESENT_ID, partitions=former.partitions[:1])
        yield b'{"value": 2}]}'

    kind = "application/vnd.kafka.json.v2+json" if path.startswith("/topics") else "application/json"
    answer = await curl("POST", path, data=body(), headers={"Content-Type": kind})
    if not is_gone and "partitions" not in path:
        assert answer.status == 200, answer.text
    elif path.startswith("/topics"):
        assert (answer.status, answer.json["error_code"]) == (404, 40401)
    else:
        assert answer.problem(404, "UNKNOWN_TOPIC_OR_PARTITION")["outcome"] == "not_written"
    assert not [facts for kind, facts in curl.cluster.brokers[1].reported if kind == "rest_failed"]


async def test_a_bug_is_a_500_without_a_traceback_and_an_event_with_one(curl, monkeypatch):
    """The person gets an answer, the developer the story."""

    async def broken(request):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(curl.cluster.brokers[1], "on_Metadata", broken)
    answer = await curl.get("/v1/cluster")
    problem = answer.problem(500, "UNKNOWN_SERVER_ERROR")
    assert problem["outcome"] == "unknown"
    assert "secret" not in answer.text
    ((kind, facts),) = curl.cluster.brokers[1].reported
    assert kind == "rest_failed"
    assert facts["instance"] == problem["instance"]
    assert "ZeroDivisionError" in str(facts["traceback"])


async def test_the_type_of_a_problem_leads_to_its_page(curl):
    """RFC 9457 3.1.1: the type should be readable."""
    problem = (await curl.get("/v1/topics/none")).problem(404, "UNKNOWN_TOPIC_OR_PARTITION")
    page = (await curl.get(problem["type"])).json
    assert (page["error"], page["error_code"], page["status"]) == ("UNKNOWN_TOPIC_OR_PARTITION", 3, 404)
    (await curl.get("/docs/problems/none")).problem(404, "INVALID_REQUEST")


async def test_a_piece_of_a_log_has_a_beginning_and_an_end(curl):
    """HTTP conventions 2.3: `from` and `to`; what begins at `to` is not in it, and `next_offset` is where to go on."""
    for value in range(4):
        await curl.post("/v1/topics/orders/partitions/0/records", {"value": value})
    path = "/v1/topics/orders/partitions/0/log?replica=1"
    for query, offsets, following in (("&from=1&to=3", [1, 2], 3), ("&to=0", [], 0), ("&from=2", [2, 3], 4)):
        answer = (await curl.get(path + query)).json
        assert ([each["base_offset"] for each in answer["batches"]], answer["next_offset"]) == (offsets, following)


@pytest.mark.parametrize(
    ("path", "status", "parameter"),
    [
        ("/v1/topics/orders/partitions/0/log?from=50&to=10", 400, "to"),
        ("/v1/topics/orders/partitions/0/log?replica=0", 404, "replica"),
        ("/v1/topics/orders/partitions/0/epochs?replica=0", 404, "replica"),
    ],
)
async def test_a_log_that_cannot_be_is_refused_by_the_name_of_its_parameter(curl, path, status, parameter):
    """HTTP conventions 2.3: no 200 with nothing in it, and no 503: to repeat the request would change nothing."""
    problem = (await curl.get(path)).problem(status, "INVALID_REQUEST")
    assert [each["parameter"] for each in problem["errors"]] == [parameter]
    assert problem["retriable"] is False


async def test_the_metadata_log_of_an_unknown_broker_is_not_found(curl):
    """As a log of a partition: nothing becomes of a repetition."""
    assert (await curl.get("/v1/controller/log?replica=0")).problem(404, "BROKER_ID_NOT_REGISTERED")[
        "retriable"
    ] is False


async def test_the_title_of_a_missing_leader_fits_a_missing_controller(curl):
    """RFC 9457 3.1.3: one title for each type, so it must be true of all of its uses."""
    page = (await curl.get("/docs/problems/leader-not-available")).json
    assert "controller" in page["meaning"]
    assert "curl http://127.0.0.1:9092/v1/controller" in page["look_at"]


# ---- web pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path,body",
    [
        ("/v1/topics", b'{"name":"planted"}'),
        ("/v1/topics/orders/partitions/0/records", b'{"value":1}'),
        ("/rpc/CreateTopics", b'{"topics":[{"name":"planted"}]}'),
    ],
)
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
async def test_a_page_elsewhere_changes_nothing_and_curl_d_does(curl, path, body, kind):
    """CSRF: what a page may send without asking is refused by its Origin; the same from curl is what it always was."""
    headers = {"Origin": "http://evil.example", **({} if kind is None else {"Content-Type": kind})}
    skipped = [] if kind else ["Content-Type"]
    answer = await curl("POST", path, data=body, headers=headers, skip_auto_headers=skipped)
    assert answer.problem(403, "INVALID_REQUEST")["setting"] == "mk.http.allowed.origins"
    assert curl.cluster.brokers[1].asked == []
    if kind == "application/x-www-form-urlencoded":
        answer = await curl("POST", path, data=body, headers={"Content-Type": kind})
        assert answer.status < 300
        assert len(curl.cluster.brokers[1].asked) > 0


async def test_a_page_by_another_name_reads_nothing(curl):
    """DNS rebinding: all doors, health included; nothing is forwarded."""
    for path in ("/v1/topics", "/healthz", "/metrics", "/docs", "/v1/topics/orders/partitions/0/stream", "/nothing"):
        answer = await curl.get(path, headers={"Host": "evil.example:9092"})
        assert answer.problem(403, "INVALID_REQUEST")["setting"] == "mk.http.allowed.hosts"
    assert curl.cluster.brokers[1].asked == []


async def test_a_path_without_a_route_is_named_with_its_method(curl):
    """A caller sees which request was wrong; where no route is near, the page that lists all is named."""
    nearest = (await curl.post("/v1/topcs", {})).problem(404, "INVALID_REQUEST")
    assert nearest["detail"] == "no route matches POST /v1/topcs; did you mean /v1/topics?"
    lost = (await curl.get("/zzzzzz")).problem(404, "INVALID_REQUEST")
    assert lost["detail"] == "no route matches GET /zzzzzz; GET /docs lists all"


async def test_a_page_of_an_allowed_origin_uses_all_of_it():
    """CORS: preflights are answered; answers, problems and streams can be read."""
    async with FakeCluster(1, http_allowed_origins="http://ui.example") as cluster:
        cluster.add_topic("orders", [1])
        curl = Curl(cluster)
        page = {"Origin": "http://ui.example"}
        async with curl.session:
            asks = {**page, "Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "x"}
            answer = await curl("OPTIONS", "/v1/topics/orders", headers=asks)
            assert answer.status == 204
            assert "PATCH" in answer.headers["Access-Control-Allow-Methods"]
            for path, status in (("/v1/topics", 200), ("/nothing", 404)):
                answer = await curl.get(path, headers=page)
                assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (status, "http://ui.example")
                assert "Mk-Leader" in answer.headers["Access-Control-Expose-Headers"]
            assert (await curl.post("/v1/topics/orders/records", {"value": 1}, headers=page)).status == 200
            answer = await curl.get("/v1/topics", headers={"Origin": "http://evil.example"})
            answer.problem(403, "INVALID_REQUEST")
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert (await curl.get("/v1/topics")).headers["Vary"] == "Origin"
            link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
            assert (await curl.get("/docs", headers=link)).status == 200
            assert (await curl.get("/docs", headers={**link, "Sec-Fetch-Dest": "iframe"})).status == 403
            url = cluster.brokers[1].url + "/v1/topics/orders/partitions/0/stream"
            async with curl.session.get(url, headers=page) as response:
                assert response.headers["Access-Control-Allow-Origin"] == "http://ui.example"


async def test_headers_of_all_answers_come_once(curl):
    """The first request, for which the application is made, later ones, problems, and /rpc."""
    asked = [("GET", "/v1/topics"), ("GET", "/v1/topics"), ("GET", "/nothing"), ("POST", "/rpc/ApiVersions")]
    for method, path in asked:
        answer = await curl(method, path, data=b"{}", headers={"Content-Type": "application/json"})
        for name, value in ALWAYS.items():
            assert answer.headers.getall(name) == [value], path


# ---- JSON on /rpc ----------------------------------------------------------------------------------------------------


async def test_the_protocol_itself_speaks_json(curl):
    """D7: curl-able replication; codes in the head, status 200."""
    answer = await curl.post("/rpc/Metadata", {"topics": []})
    assert (answer.status, answer.json["controller_id"]) == (200, 1)
    assert answer.headers["Content-Type"] == "application/json"
    answer = await curl.post("/rpc/Metadata", {"topic": []})
    assert answer.json["error_code"] == 42
    assert "did you mean 'topics'?" in answer.json["error_message"]
    assert (await curl.post("/rpc/Metadta", {})).json["error_code"] == 42
    headers = {"Content-Type": "application/json"}
    assert (await curl("POST", "/rpc/Metadata", headers=headers)).json["controller_id"] == 1
    assert (await curl("POST", "/rpc/Metadata", data=b"{", headers=headers)).json["error_code"] == 42
    answer = await curl("POST", "/rpc/Metadata", data=b'{"topics":["\\ud800"]}', headers=headers)
    assert "surrogate" in answer.json["error_message"]


async def test_a_fetch_in_json_shows_sizes_in_the_place_of_batches(curl):
    """What a follower sees, without the bytes."""
    await curl.post("/v1/topics/orders/partitions/0/records", {"value": "x"})
    ask = {"partitions": [{"topic": "orders", "partition": 0, "fetch_offset": 0}]}
    answer = (await curl.post("/rpc/Fetch", ask)).json["partitions"][0]
    assert answer["high_watermark"] == 1
    assert answer["records"] == len(curl.cluster.batches[ORDERS_0][0])


async def test_rpc_does_not_forward(curl):
    """D7: the protocol stays honest; only people are forwarded."""
    ask = {"partitions": [{"topic": "orders", "partition": 1, "fetch_offset": 0}], "max_wait_ms": 0}
    assert (await curl.post("/rpc/Fetch", ask)).json["partitions"][0]["error_code"] == 6


async def test_errors_of_other_brokers_keep_their_names(curl):
    """A forwarded refusal is the leader's, word for word."""
    curl.cluster.brokers[2].refuse_parts[ORDERS_1] = [CorruptMessage("crc: 1 is not 2")]
    answer = (await curl.post("/v1/topics/orders/partitions/1/records", {"value": 1})).problem(422, "CORRUPT_MESSAGE")
    assert answer["detail"] == "crc: 1 is not 2"
    curl.cluster.brokers[1].refuse["DescribeTopicPartitions"] = [LeaderNotAvailable("x")]
    (await curl.get("/v1/topics")).problem(503, "LEADER_NOT_AVAILABLE")


async def test_a_topic_can_be_placed_by_hand(curl):
    """The preferred leader is the first of a list: whoever teaches elections wants to choose it."""
    bad = await curl.post("/v1/topics", {"name": "placed", "assignments": [[1], "2"]})
    assert bad.problem(422, "INVALID_REQUEST")["errors"][0]["pointer"] == "/assignments/1"
    await curl.post("/v1/topics", {"name": "placed", "assignments": [[2, 1], [1, 2]]})
    (topic,) = curl.cluster.brokers[1].asked[-2].topics
    assert [each.broker_ids for each in topic.assignments] == [(2, 1), (1, 2)]
    assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
