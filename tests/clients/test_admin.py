"""The admin client against a scripted cluster in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from minikafka.client.admin import AdminClient
from minikafka.client.routing import named
from minikafka.client.settings import AdminConfig
from minikafka.client.structs import NewTopic
from minikafka.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InvalidPartitions,
    InvalidRequest,
    NotController,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from minikafka.types import NO_NODE, TopicPartition
from minikafka.wire import admin as a
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire import transaction_messages as t
from tests.clients.fake_cluster import LATE, RESET_ANSWER, RESET_REQUEST, UNREACHABLE, FakeCluster, once, play

T0 = TopicPartition("t", 0)


def admin(cluster: FakeCluster, **settings: Any) -> AdminClient:
    return AdminClient(
        AdminConfig(bootstrap_servers="broker-1:9092,broker-2:9092,broker-3:9092", **settings), cluster.world
    )


def test_topics_are_created_listed_described_and_deleted():
    """S15: what was created is there with its partitions, and gone after its deletion; errors name the topic."""

    async def story():
        cluster = FakeCluster()
        async with admin(cluster) as client:
            (created,) = await client.create_topics([NewTopic("t", 3, 3, topic_configs={"min.insync.replicas": "2"})])
            assert (created.name, created.num_partitions) == ("t", 3)
            (request,) = cluster.named("CreateTopics")
            assert request.topics[0].configs == {"min.insync.replicas": "2"}
            assert await client.list_topics() == ["t"]
            (described,) = await client.describe_topics(["t"])
            assert [each.leader for each in described.partitions] == [1, 2, 3]
            with pytest.raises(TopicAlreadyExists) as caught:
                await client.create_topics([NewTopic("t"), NewTopic("u")])
            assert caught.value.facts["topic"] == "t"
            assert await client.list_topics() == ["t", "u"]
            await client.delete_topics(["t"])
            assert await client.list_topics() == ["u"]
            with pytest.raises(UnknownTopicOrPartition, match="t"):
                await client.describe_topics(["t"])
            with pytest.raises(UnknownTopicOrPartition, match="t"):
                await client.delete_topics(["t"])

    play(story)


def test_an_assignment_by_hand_is_passed_on():
    """S18's placement can be overruled: partition -> replicas in order of preference."""

    async def story():
        cluster = FakeCluster()
        async with admin(cluster) as client:
            await client.create_topics([NewTopic("t", replica_assignments={1: [2, 3], 0: [1, 2]})])
        (request,) = cluster.named("CreateTopics")
        assert [(each.partition, each.broker_ids) for each in request.topics[0].assignments] == [
            (0, (1, 2)),
            (1, (2, 3)),
        ]

    play(story)


def test_the_controller_is_found_when_it_moved():
    """NOT_CONTROLLER: metadata is asked again and the change goes to the new one, once."""

    async def story():
        cluster = FakeCluster()
        async with admin(cluster) as client:
            cluster.controller = 3
            await client.create_topics([NewTopic("t")])
        assert "t" in cluster.topics

    play(story)


@pytest.mark.parametrize("action", [RESET_ANSWER, RESET_REQUEST, UNREACHABLE, LATE])
def test_a_creation_whose_answer_was_lost(action: str):
    """Outcome: the cluster is asked whether it happened; it ends as success, and exists once, in each case."""

    async def story():
        cluster = FakeCluster()
        cluster.faults.append(once("CreateTopics", action))
        async with admin(cluster) as client:
            (created,) = await client.create_topics([NewTopic("t", 2)])
            assert (created.name, created.error_code) == ("t", 0)
            await asyncio.sleep(5)
        if action == RESET_ANSWER:
            assert len(cluster.named("CreateTopics")) == 1, "it was there: not sent again"
        assert len(cluster.topics["t"]) == 2

    play(story)


@pytest.mark.parametrize("action", [RESET_ANSWER, RESET_REQUEST])
def test_a_deletion_whose_answer_was_lost(action: str):
    """Outcome: gone is gone; a repetition that finds nothing is the first attempt's success."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        cluster.faults.append(once("DeleteTopics", action))
        async with admin(cluster) as client:
            await client.delete_topics(["t"])
        assert cluster.topics == {}

    play(story)


def test_a_creation_that_is_refused_after_a_lost_answer_is_unknown():
    """Issue 13: the first attempt may have created the topic; the refusal of the second one does not say."""

    async def story():
        cluster = FakeCluster()
        refused = m.CreateTopicsResponse(topics=(m.CreatedTopic(name="t", error_code=44, outcome="not_written"),))
        cluster.faults.append(once("CreateTopics", RESET_REQUEST))
        cluster.faults.append(once("CreateTopics", refused))
        async with admin(cluster) as client:
            with pytest.raises(PolicyViolation) as caught:
                await client.create_topics([NewTopic("t")])
            assert caught.value.outcome == "unknown"

    play(story)


def test_a_check_of_new_partitions_that_is_refused_after_a_lost_answer_is_refused():
    """It changes nothing, so that no earlier attempt can be the reason of the refusal."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        refused = a.CreatePartitionsResponse(
            results=(a.CreatedPartitions(name="t", error_code=InvalidPartitions.code, error_message="it has 1"),)
        )
        cluster.faults.append(once("CreatePartitions", RESET_REQUEST))
        cluster.faults.append(once("CreatePartitions", refused))
        async with admin(cluster) as client:
            with pytest.raises(InvalidPartitions):
                await client.create_partitions({"t": 1}, validate_only=True)

    play(story)


@pytest.mark.parametrize(("action", "is_gone"), [(RESET_ANSWER, True), (UNREACHABLE, False)])
def test_a_group_that_is_gone_after_a_lost_answer_was_deleted(action: str, is_gone: bool):
    """A retry that does not find the group proves that the first attempt deleted it, if that attempt was sent."""

    async def story():
        cluster = FakeCluster()
        gone = g.DeleteGroupsResponse(groups=(g.DeletedGroup(group_id="g", error_code=69, outcome="not_written"),))
        cluster._on_FindCoordinator = lambda _node, request: g.FindCoordinatorResponse(  # type: ignore[attr-defined]
            coordinators=(g.Coordinator(key=request.keys[0], node_id=1, host="broker-1", port=9092),)
        )
        cluster._on_DeleteGroups = lambda _node, _request: gone  # type: ignore[attr-defined]
        cluster.faults.append(once("DeleteGroups", action))
        async with admin(cluster) as client:
            if is_gone:
                await client.delete_consumer_groups(["g"])
            else:
                with pytest.raises(GroupIdNotFound):
                    await client.delete_consumer_groups(["g"])
        assert len(cluster.named("DeleteGroups")) == 2

    play(story)


def test_a_broker_that_knows_less_is_no_witness():
    """Found by simulator seed 1448: a broker that has just started knows no topic yet; that does not prove a deletion.

    Nor does one that has not heard of a deletion prove the creation that followed it.
    """

    async def story():
        cluster = FakeCluster()
        stale: list[m.MetadataTopic] = [m.MetadataTopic(name="t", error_code=UnknownTopicOrPartition.code)]

        def behind(node: int, api: str, request: Any) -> Any:
            if "t" not in (getattr(request, "topics", None) or ()):
                return None
            if api == "Metadata":
                return m.MetadataResponse(cluster_id="fake", metadata_offset=3, topics=tuple(stale))
            if api == "DescribeTopicPartitions":
                topic = m.DescribedTopic(topic="t", error_code=stale[0].error_code, topic_id="OLD")
                return m.DescribeTopicsResponse(topics=(topic,))
            return None

        cluster.faults += [once("DeleteTopics", RESET_REQUEST), behind]
        async with admin(cluster) as client:
            await client.create_topics([NewTopic("t", 1)], wait=False)
            await client.delete_topics(["t"], wait=False)
            assert cluster.topics == {}
            stale[:] = [m.MetadataTopic(name="t", topic_id="OLD", partitions=(m.MetadataPartition(partition=0),))]
            cluster.faults.append(once("CreateTopics", RESET_REQUEST))
            await client.create_topics([NewTopic("t", 2)], wait=False)
            assert len(cluster.topics["t"]) == 2

    play(story)


def test_a_silent_controller_ends_in_unknown():
    """Outcome: without any answer the error says that the change may happen yet."""

    async def story():
        cluster = FakeCluster()
        cluster.faults.append(once("CreateTopics", RESET_REQUEST, count=99))
        async with admin(cluster, default_api_timeout_ms=3000) as client:
            with pytest.raises(RequestTimedOut) as caught:
                await client.create_topics([NewTopic("t")])
            assert caught.value.outcome == "unknown"
        cluster.faults.append(once("CreateTopics", UNREACHABLE, count=99))
        cluster.faults.pop(0)
        async with admin(cluster, default_api_timeout_ms=3000) as client:
            with pytest.raises(RequestTimedOut) as caught:
                await client.create_topics([NewTopic("t")])
            assert caught.value.outcome == "not_written"

    play(story)


@pytest.mark.parametrize(("timeout_ms", "ends_s"), [(None, 20.0), (5_000, 5.0)])
def test_a_change_without_a_quorum_says_that_no_controller_is_reachable(timeout_ms: int | None, ends_s: float):
    """Two of three brokers are dead: the error names what each broker said, and that nothing was changed."""

    def no_quorum(node: int, api: str, _: Any) -> Any:
        if node != 1:
            return UNREACHABLE
        if api == "CreateTopics":
            return m.CreateTopicsResponse(error_code=NotController.code, error_message="node 1 is not the controller")
        return None

    async def story():
        cluster = FakeCluster()
        cluster.controller = NO_NODE
        cluster.faults.append(no_quorum)
        async with admin(cluster, default_api_timeout_ms=20_000, controller_timeout_ms=timeout_ms) as client:
            began = cluster.now()
            with pytest.raises(RequestTimedOut) as caught:
                await client.create_topics([NewTopic("t")])
            assert ends_s - 1.5 <= cluster.now() - began <= ends_s + 1.5
            assert caught.value.outcome == "not_written"
            assert caught.value.message.startswith("no controller is reachable (")
            assert "broker-1:9092 knows no controller" in caught.value.message
            assert "broker-2:9092: " in caught.value.message
            assert caught.value.message.endswith("must run; nothing was changed")

    play(story)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.describe_consumer_groups(["g"]),
        lambda client: client.find_coordinator("g"),
        lambda client: client.list_consumer_groups(),
        lambda client: client.list_transactions(),
        lambda client: client.delete_records({TopicPartition("t", 1): 1}),
        lambda client: client.list_offsets({TopicPartition("t", 0): -1}),
    ],
    ids=["describe groups", "find", "list groups", "list transactions", "delete records", "list offsets"],
)
def test_calls_to_leaders_and_coordinators_end_early_without_a_quorum(call: Callable[[AdminClient], Awaitable[Any]]):
    """Issue 13: without a controller a broker has no session, so no leader and no coordinator responds. The commands
    `groups describe`, `transactions list` and `topics delete-records` said so after 16 to 20 seconds.
    """

    def no_quorum(node: int, api: str, _: Any) -> Any:
        if node != 1:
            return UNREACHABLE
        if api == "FindCoordinator":
            unknown = g.Coordinator(key="g", error_code=CoordinatorNotAvailable.code)
            return g.FindCoordinatorResponse(coordinators=(unknown,))
        if api == "ListGroups":
            return g.ListGroupsResponse()
        if api == "ListTransactions":
            return t.ListTransactionsResponse(error_code=CoordinatorNotAvailable.code)
        if api == "ListOffsets":
            refused = m.ListedOffset(topic="t", partition=0, error_code=NotLeaderOrFollower.code)
            return m.ListOffsetsResponse(partitions=(refused,))
        return None

    async def story():
        cluster = FakeCluster()
        cluster.topic("t", 3)
        cluster.controller = NO_NODE
        cluster.faults.append(no_quorum)
        async with admin(cluster, default_api_timeout_ms=20_000, controller_timeout_ms=5_000) as client:
            began = cluster.now()
            with pytest.raises(RequestTimedOut) as caught:
                await call(client)
            assert 4.0 <= cluster.now() - began <= 6.5
            assert caught.value.message.startswith("no controller is reachable (")
            assert "broker-1:9092 knows no controller" in caught.value.message
            assert "broker-2:9092: " in caught.value.message

    play(story)


def test_an_election_does_not_end_calls_to_leaders_early():
    """What counts is how long brokers have known no controller, without a break."""

    def one_is_down(node: int, _api: str, _: Any) -> Any:
        return UNREACHABLE if node == 2 else None

    async def story():
        cluster = FakeCluster()
        cluster.topic("t", 3)
        cluster.faults.append(one_is_down)
        async with admin(cluster, default_api_timeout_ms=20_000, controller_timeout_ms=5_000) as client:
            asking = asyncio.ensure_future(client.list_offsets({TopicPartition("t", 1): -1}))
            for controller in (NO_NODE, 3, NO_NODE, 3):
                cluster.controller = controller
                await asyncio.sleep(4.0)
            cluster.faults.clear()
            assert (await asking)[TopicPartition("t", 1)].offset == 0

    play(story)


def test_a_client_reports_once_that_there_is_no_controller():
    """`minikafka consume` and programs print it: connections that are refused do not say that the quorum is lost."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t", 3)
        cluster.controller = NO_NODE
        cluster.faults.append(once("ListOffsets", UNREACHABLE, count=10_000))
        async with admin(cluster, default_api_timeout_ms=12_000) as client:
            with pytest.raises(RequestTimedOut, match=r"t-0: no leader answered in time"):
                await client.list_offsets({TopicPartition("t", 0): -1})
        assert cluster.kinds().count("controller_missing") == 1

    play(story)


def test_a_change_that_a_dying_controller_may_have_made_is_unknown_without_a_quorum():
    """The answer was lost before the quorum was: "nothing was changed" would be untrue."""
    sent: list[int] = []

    def dies(node: int, api: str, _: Any) -> Any:
        if api == "CreateTopics" and not sent:
            sent.append(node)
            return RESET_REQUEST
        return UNREACHABLE if sent else None

    async def story():
        cluster = FakeCluster()
        cluster.faults.append(dies)
        async with admin(cluster, default_api_timeout_ms=20_000, controller_timeout_ms=5_000) as client:
            with pytest.raises(RequestTimedOut) as caught:
                await client.create_topics([NewTopic("t")])
            assert caught.value.outcome == "unknown"
            assert caught.value.message.startswith("no controller is reachable (")
            assert caught.value.message.endswith("; the change may have been made")

    play(story)


def test_create_waits_until_every_broker_knows_and_leaders_answer():
    """wait=True: the next produce must not meet a broker that has not heard of the topic."""

    async def story():
        cluster = FakeCluster()
        behind_until = 3.0

        def slow(node: int, api: str, request: Any) -> Any:
            if api == "Metadata" and node == 3 and cluster.now() < behind_until and "t" in (request.topics or ()):
                return m.MetadataResponse(
                    cluster_id="fake",
                    metadata_offset=10,
                    topics=(m.MetadataTopic(name="t", error_code=UnknownTopicOrPartition.code),),
                )
            if api == "ListOffsets" and cluster.now() < 5.0:
                refused = m.ListedOffset(topic="t", partition=0, error_code=NotLeaderOrFollower.code)
                return m.ListOffsetsResponse(partitions=(refused,))
            return None

        cluster.faults.append(slow)
        async with admin(cluster) as client:
            await client.create_topics([NewTopic("t", 1)])
            assert 5.0 <= cluster.now() < 7.0
            await client.create_topics([NewTopic("quick")], wait=False)
            cluster.dead.add(2)
            await client.create_topics([NewTopic("u", 1)])
            assert cluster.now() < 9.0, "a dead broker that leads nothing is not waited for"

    play(story)


def test_records_are_deleted_at_their_leaders():
    """DeleteRecords goes to each leader; the new log start comes back; NOT_LEADER is followed."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 2)
        partitions[0].end = partitions[1].end = 9
        async with admin(cluster) as client:
            await client.list_offsets({T0: m.EARLIEST})
            partitions[0].elect(3)
            deleted = await client.delete_records({T0: 4, TopicPartition("t", 1): -1})
            assert deleted == {T0: 4, TopicPartition("t", 1): 9}
            listed = await client.list_offsets({T0: m.EARLIEST})
            assert listed[T0].offset == 4
            refused = m.DeletedRecords(topic="t", partition=0, error_code=OffsetOutOfRange.code)
            cluster.faults.append(once("DeleteRecords", lambda _r: m.DeleteRecordsResponse(partitions=(refused,))))
            with pytest.raises(OffsetOutOfRange, match="t-0"):
                await client.delete_records({T0: 99})

    play(story)


def test_a_deletion_of_records_that_is_refused_after_a_lost_answer_is_unknown():
    """The first attempt may have raised the log start; the refusal of the second one says nothing of it."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        refused = m.DeletedRecords(topic="t", partition=0, error_code=OffsetOutOfRange.code, outcome="not_written")
        cluster.faults.append(once("DeleteRecords", RESET_REQUEST))
        cluster.faults.append(once("DeleteRecords", m.DeleteRecordsResponse(partitions=(refused,))))
        async with admin(cluster) as client:
            with pytest.raises(OffsetOutOfRange) as caught:
                await client.delete_records({T0: 4})
            assert caught.value.outcome == "unknown"

    play(story)


def test_cluster_quorum_and_elections():
    """describe_cluster has aiokafka's shape; the quorum is described by its leader; elections report by partition."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        cluster.controller = 2
        async with admin(cluster) as client:
            described = await client.describe_cluster()
            assert (described["cluster_id"], described["controller_id"], len(described["brokers"])) == ("fake", 2, 3)
            assert described["brokers"][0] == {"node_id": 1, "host": "broker-1", "port": 9092, "rack": None}
            quorum = await client.describe_quorum()
            assert (quorum.leader_id, quorum.leader_epoch) == (2, 3)
            assert await client.elect_leaders("preferred", [T0]) == {T0: None}
            with pytest.raises(InvalidRequest):
                await client.elect_leaders("sometimes")

    play(story)


def test_before_start_nothing_works():
    """A client that was not started says so."""

    async def story():
        with pytest.raises(InvalidRequest, match="not started"):
            await admin(FakeCluster()).list_topics()

    play(story)


@pytest.mark.parametrize(
    "method",
    [
        "create_topics",
        "delete_topics",
        "describe_topics",
        "describe_consumer_groups",
        "delete_consumer_groups",
        "describe_transactions",
        "describe_user_scram_credentials",
    ],
)
def test_a_name_is_no_list_of_names(method: str):
    """`delete_topics("ab")` deleted the topics a and b."""

    async def story():
        cluster = FakeCluster()
        async with admin(cluster) as client:
            with pytest.raises(InvalidRequest, match=f"{method} takes"):
                await getattr(client, method)("ab")

    play(story)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("orders-0: offset 9 is too far", "orders-0: offset 9 is too far"),
        ("there is no 'orders-0'", "there is no 'orders-0'"),
        ("it has no leader", "orders-0: it has no leader"),
    ],
)
def test_what_is_wrong_with_a_partition_names_it_once(message: str, told: str):
    """`orders-0: orders-0: offset 9 ...`."""
    assert named(TopicPartition("orders", 0), message) == told
