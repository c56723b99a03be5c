"""The table of permissions: each API has a row, and denied parts of requests get Kafka's errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from minikafka.broker.access import Access
from minikafka.broker.dispatch import Begun, screened_answer, settled
from minikafka.broker.image_directory import all_operations
from minikafka.config import BrokerConfig
from minikafka.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    ProtocolError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from minikafka.ports import INTERNAL, RequestContext
from minikafka.quorum.image import MetadataImage, TopicImage, acl_record
from minikafka.quorum.records import MetadataRecord
from minikafka.security.authorizer import Action
from minikafka.security.permissions import PERMISSIONS, Each, Permit, Screened, screen
from minikafka.wire import admin as a
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire import transaction_messages as t
from minikafka.wire.acls import Acl, AclOperation, ResourceType
from minikafka.wire.apis import APIS, BY_NAME
from minikafka.wire.codec import error_response

READ, WRITE, DESCRIBE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
DENIED_TOPIC, DENIED_GROUP = TopicAuthorizationFailed.code, GroupAuthorizationFailed.code
BROKERS_ONLY = """Vote BeginQuorumEpoch EndQuorumEpoch AlterPartition FetchSnapshot BrokerRegistration BrokerHeartbeat
    AllocateProducerIds AwaitStop Envelope RunTestHook""".split()


def permit(*allowed: tuple[AclOperation, ResourceType, str], topics: tuple[str, ...] = ()) -> Permit:
    """May do exactly this: nothing is implied."""
    return Permit(
        principal="User:alice",
        may=lambda action: tuple(action) in allowed,
        may_by_type=lambda operation, kind: any(each[:2] == (operation, kind) for each in allowed),
        topics=topics,
    )


def topics_for(operation: AclOperation, *names: str) -> Permit:
    return permit(*((operation, TOPIC, name) for name in names))


def codes(results: Any, key: str = "topic") -> dict[Any, int]:
    return {getattr(each, key): each.error_code for each in results}


def test_every_api_has_a_row():
    """An API without a row would be open to everybody, or fail for everybody."""
    assert PERMISSIONS.keys() == {api.name for api in APIS}


@pytest.mark.parametrize("name", BROKERS_ONLY)
def test_brokers_apis_need_cluster_action(name: str):
    """Who may do them can move leaders and lose records."""
    with pytest.raises(ClusterAuthorizationFailed, match="CLUSTER_ACTION on CLUSTER kafka-cluster"):
        screen(name, object(), permit())
    asked = object()
    assert screen(name, asked, permit((AclOperation.CLUSTER_ACTION, CLUSTER, "kafka-cluster"))).request is asked


@pytest.mark.parametrize(
    ("name", "step"),
    [(name, step) for name, steps in PERMISSIONS.items() for step in steps if isinstance(step, Each)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_step_names_members_of_its_messages(name: str, step: Each):
    """A refusal can be made of the names alone, and the response has a place for it."""
    api = BY_NAME[name]
    assert step.items in api.request.__struct_fields__
    assert step.results in api.response.__struct_fields__
    refusal = step.result(**{key: 2 if key in ("partition", "resource_type") else "x" for key in step.keys})
    response = api.response(**{step.results: (refusal,)})
    assert getattr(response, step.results) == (refusal,)


def test_produce_writes_what_is_allowed():
    """The other partitions get TOPIC_AUTHORIZATION_FAILED, and nothing of them reaches the log."""
    asked = m.ProduceRequest(
        partitions=tuple(m.ProducePartition(topic=name, partition=0, records=()) for name in ("a", "b"))
    )
    screened = screen("Produce", asked, topics_for(WRITE, "a"))
    assert [each.topic for each in screened.request.partitions] == ["a"]
    response = m.ProduceResponse(partitions=(m.ProducedPartition(topic="a", partition=0, base_offset=7),))
    amended = screened.amend(response)
    assert codes(amended.partitions) == {"a": 0, "b": DENIED_TOPIC}
    assert amended.partitions[1].outcome == "not_written"


def test_a_transactional_produce_needs_its_id():
    """Denied as a whole, before any topic."""
    asked = m.ProduceRequest(transactional_id="x", partitions=(m.ProducePartition(topic="a", partition=0, records=()),))
    with pytest.raises(TransactionalIdAuthorizationFailed):
        screen("Produce", asked, topics_for(WRITE, "a"))


def fetch(*names: str, **members: Any) -> m.FetchRequest:
    wanted = tuple(m.FetchPartition(topic=name, partition=0, fetch_offset=0) for name in names)
    return m.FetchRequest(partitions=wanted, **members)


@pytest.mark.parametrize(("operation", "shown"), [(DESCRIBE, 0), (READ, 1)])
def test_explain_partition_shows_producers_to_readers_only(operation: AclOperation, shown: int):
    """As DescribeProducers, which needs READ of the topic."""
    asked = m.ExplainPartitionRequest(topic="a", partition=0)
    producer = m.ActiveProducer(producer_id=1, producer_epoch=0, last_sequence=0, last_offset=0, last_timestamp=0)
    found = m.ExplainPartitionResponse(broker_id=1, producers=(producer,), producer_count=1)
    response = screen("ExplainPartition", asked, permit((DESCRIBE, TOPIC, "a"), (operation, TOPIC, "a"))).amend(found)
    assert (len(response.producers), response.producer_count) == (shown, shown)


@pytest.mark.parametrize("topic", ["__cluster_metadata", "__consumer_offsets", "__transaction_state"])
def test_raw_batches_of_the_clusters_own_logs_are_for_brokers(topic: str):
    """They hold the offsets of all groups and the state of all transactions: READ of the topic is not enough."""
    asked = m.DescribeLogRequest(topic=topic, partition=0)
    with pytest.raises(ClusterAuthorizationFailed):
        screen("DescribeLog", asked, topics_for(READ, topic))
    assert (
        screen("DescribeLog", asked, permit((AclOperation.CLUSTER_ACTION, CLUSTER, "kafka-cluster"))).request is asked
    )


def test_a_denied_fetch_does_not_reach_the_handler():
    """Without anything left there is nothing to wait for."""
    screened = screen("Fetch", fetch("a"), permit())
    assert screened.request is None
    assert codes(screened.amend(m.FetchResponse()).partitions) == {"a": DENIED_TOPIC}


def test_a_client_that_says_it_is_a_follower_is_denied():
    """Hostile test 1: its fetch would move the high watermark. READ of the topic does not help."""
    asked = fetch("a", replica_id=2)
    assert screen("Fetch", asked, topics_for(READ, "a")).request is None
    broker = permit((AclOperation.CLUSTER_ACTION, CLUSTER, "kafka-cluster"))
    assert screen("Fetch", asked, broker).request is asked


def test_the_metadata_log_is_for_brokers():
    """It will hold credentials: READ of everything does not open it."""
    asked = fetch("__cluster_metadata")
    assert screen("Fetch", asked, topics_for(READ, "__cluster_metadata")).request is None


def test_a_fetch_session_is_checked_at_every_fetch():
    """A revoked permission ends the reading of partitions that the session holds and the request does not name."""
    screened = screen("Fetch", fetch(session_id=5, session_epoch=3), topics_for(READ, "a"))
    found = m.FetchResponse(
        session_id=5,
        partitions=tuple(m.FetchedPartition(topic=name, partition=0, records=(b"x",)) for name in ("a", "b")),
    )
    amended = screened.amend(found)
    assert codes(amended.partitions) == {"a": 0, "b": DENIED_TOPIC}
    assert [list(each.records) for each in amended.partitions] == [[b"x"], []]


@pytest.mark.parametrize("found", [(), (m.FetchedPartition(topic="b", partition=0, error_code=3),)])
def test_a_denied_partition_stays_in_its_session_and_hides_if_it_exists(found: tuple[m.FetchedPartition, ...]):
    """The error comes at once, whether the partition is empty or unknown; it is there when permission is granted."""
    screened = screen("Fetch", fetch("b", session_epoch=0), permit())
    assert [each.topic for each in screened.request.partitions] == ["b"]
    assert screened.request.max_wait_ms == 0
    assert codes(screened.amend(m.FetchResponse(session_id=5, partitions=found)).partitions) == {"b": DENIED_TOPIC}


def test_metadata_of_a_denied_topic_is_the_same_whether_it_exists_or_not():
    """No id, no partitions; brokers are named in any case."""
    asked = m.MetadataRequest(topics=("there", "missing", "mine"))
    screened = screen("Metadata", asked, topics_for(DESCRIBE, "mine"))
    assert screened.request.topics == ("mine",)
    amended = screened.amend(m.MetadataResponse(topics=(m.MetadataTopic(name="mine"),)))
    assert codes(amended.topics, "name") == {"mine": 0, "there": DENIED_TOPIC, "missing": DENIED_TOPIC}
    assert {each.topic_id for each in amended.topics} == {None}


def test_metadata_of_all_topics_leaves_denied_ones_out():
    """A list is not an error."""
    screened = screen("Metadata", m.MetadataRequest(topics=None), topics_for(DESCRIBE, "a"))
    both = m.MetadataResponse(topics=(m.MetadataTopic(name="a"), m.MetadataTopic(name="b")))
    assert codes(screened.amend(both).topics, "name") == {"a": 0}


def test_metadata_creates_only_topics_that_may_be_created():
    """An existing topic needs DESCRIBE only."""
    may = permit(
        (DESCRIBE, TOPIC, "old"), (DESCRIBE, TOPIC, "new"), (DESCRIBE, TOPIC, "free"), (CREATE, TOPIC, "free"),
        topics=("old",),
    )  # fmt: skip
    asked = m.MetadataRequest(topics=("old", "new", "free"), allow_auto_topic_creation=True)
    screened = screen("Metadata", asked, may)
    assert screened.request.topics == ("old", "free")
    assert codes(screened.amend(m.MetadataResponse()).topics, "name") == {"new": DENIED_TOPIC}


def test_the_group_is_checked_before_its_topics():
    """A commit needs READ of both; without the group the whole request is denied."""
    asked = g.OffsetCommitRequest(
        group_id="g",
        partitions=tuple(g.CommitPartition(topic=name, partition=0, offset=1) for name in ("a", "b")),
    )
    with pytest.raises(GroupAuthorizationFailed):
        screen("OffsetCommit", asked, topics_for(READ, "a", "b"))
    screened = screen("OffsetCommit", asked, permit((READ, GROUP, "g"), (READ, TOPIC, "a")))
    assert [each.topic for each in screened.request.partitions] == ["a"]


def test_all_offsets_of_a_group_leave_denied_topics_out():
    """OffsetFetch for all partitions is filtered, without errors."""
    asked = g.OffsetFetchRequest(group_id="g", partitions=None)
    screened = screen("OffsetFetch", asked, permit((DESCRIBE, GROUP, "g"), (DESCRIBE, TOPIC, "a")))
    both = tuple(g.FetchedOffset(topic=name, partition=0) for name in ("a", "b"))
    assert codes(screened.amend(g.OffsetFetchResponse(partitions=both)).partitions) == {"a": 0}


@pytest.mark.parametrize(
    ("key_type", "error"), [(0, GroupAuthorizationFailed), (1, TransactionalIdAuthorizationFailed)]
)
def test_a_denied_coordinator_is_not_looked_up(key_type: int, error: type[ProtocolError]):
    """Neither is the internal topic created for it."""
    asked = g.FindCoordinatorRequest(keys=("k",), key_type=key_type)
    screened = screen("FindCoordinator", asked, permit())
    assert screened.request is None
    assert codes(screened.amend(g.FindCoordinatorResponse()).coordinators, "key") == {"k": error.code}


def test_groups_are_listed_by_cluster_or_by_group():
    """DESCRIBE of the cluster shows all, otherwise each group needs its own."""
    both = g.ListGroupsResponse(
        groups=tuple(g.ListedGroup(group_id=name, protocol_type="", state="") for name in ("a", "b"))
    )
    for may, expected in (
        (permit((DESCRIBE, CLUSTER, "kafka-cluster")), {"a", "b"}),
        (permit((DESCRIBE, GROUP, "b")), {"b"}),
        (permit(), set()),
    ):
        amended = screen("ListGroups", g.ListGroupsRequest(), may).amend(both)
        assert {each.group_id for each in amended.groups} == expected


def test_an_idempotent_producer_needs_write_of_any_topic():
    """KIP-679: or IDEMPOTENT_WRITE of the cluster; a transactional one WRITE of its id."""
    plain, named = m.InitProducerIdRequest(), m.InitProducerIdRequest(transactional_id="x")
    with pytest.raises(ClusterAuthorizationFailed):
        screen("InitProducerId", plain, permit())
    for may in (topics_for(WRITE, "a"), permit((AclOperation.IDEMPOTENT_WRITE, CLUSTER, "kafka-cluster"))):
        assert screen("InitProducerId", plain, may).request is plain
        with pytest.raises(TransactionalIdAuthorizationFailed):
            screen("InitProducerId", named, may)


def test_one_denied_partition_stops_its_transaction():
    """As in Kafka: the others are OPERATION_NOT_ATTEMPTED."""
    asked = t.AddPartitionsToTxnRequest(
        transactions=(
            t.TransactionPartitions(
                transactional_id="x",
                producer_id=1,
                producer_epoch=0,
                partitions=tuple(m.PartitionName(topic=name, partition=0) for name in ("a", "b")),
            ),
        )
    )
    may = permit((WRITE, ResourceType.TRANSACTIONAL_ID, "x"), (WRITE, TOPIC, "a"))
    screened = screen("AddPartitionsToTxn", asked, may)
    assert screened.request is None
    (refused,) = screened.amend(t.AddPartitionsToTxnResponse()).transactions
    assert codes(refused.partitions) == {"a": 55, "b": DENIED_TOPIC}


def test_settings_of_brokers_belong_to_the_cluster():
    """And those of topics to the topic."""
    asked = a.IncrementalAlterConfigsRequest(
        resources=(
            a.AlterConfigsResource(resource_name="t"),
            a.AlterConfigsResource(resource_type=a.BROKER, resource_name="1"),
        )
    )
    screened = screen("IncrementalAlterConfigs", asked, permit())
    found = screened.amend(a.IncrementalAlterConfigsResponse()).responses
    assert codes(found, "resource_name") == {"t": DENIED_TOPIC, "1": ClusterAuthorizationFailed.code}


def test_a_member_needs_its_group_and_its_topics():
    """KIP-848: the assignment would show how many partitions a denied topic has."""
    asked = g.ConsumerGroupHeartbeatRequest(group_id="g", member_epoch=0, subscribed_topic_names=("a", "b"))
    read_group = (READ, GROUP, "g")
    with pytest.raises(GroupAuthorizationFailed):
        screen("ConsumerGroupHeartbeat", asked, topics_for(DESCRIBE, "a", "b"))
    with pytest.raises(TopicAuthorizationFailed, match="DESCRIBE on TOPIC b"):
        screen("ConsumerGroupHeartbeat", asked, permit(read_group, (DESCRIBE, TOPIC, "a")))
    both = permit(read_group, (DESCRIBE, TOPIC, "a"), (DESCRIBE, TOPIC, "b"))
    assert screen("ConsumerGroupHeartbeat", asked, both).request is asked
    some = permit(read_group, (DESCRIBE, TOPIC, "a"), topics=("a", "b"))
    by_regex = g.ConsumerGroupHeartbeatRequest(group_id="g", member_epoch=0, subscribed_topic_regex=".*")
    assert screen("ConsumerGroupHeartbeat", by_regex, some).request.hidden_topics == ("b",)
    unchanged = g.ConsumerGroupHeartbeatRequest(group_id="g", member_epoch=4)
    assert screen("ConsumerGroupHeartbeat", unchanged, permit(read_group)).request is unchanged


def test_a_heartbeat_checks_no_topic_that_an_earlier_one_has_checked():
    """Each member sends several a second, and a cluster has thousands of topics. Newer metadata has another permit."""
    checked: list[str] = []

    def may(action: Action) -> bool:
        checked.append(action.resource_name)
        return action.resource_name != "b"

    mine = Permit(principal="User:alice", may=may, may_by_type=lambda *_: True, topics=("a", "b"))
    asked = g.ConsumerGroupHeartbeatRequest(group_id="g", member_epoch=4)
    for _ in range(3):
        assert screen("ConsumerGroupHeartbeat", asked, mine).request.hidden_topics == ("b",)
    assert checked == ["g", "a", "b"]


@pytest.mark.parametrize("member", ["subscribed_topic_names", "assignment", "target_assignment"])
def test_members_of_a_consumer_group_are_shown_with_all_their_topics_only(member: str):
    """As in Kafka; otherwise the names of denied topics and their partitions would be shown."""
    part = g.NamedTopicPartitions(topic_id="id", topic="b", partitions=(0,))
    value = ("b",) if member == "subscribed_topic_names" else (part,)
    group = g.DescribedConsumerGroup(
        group_id="g", state="Stable", members=(g.ConsumerMember(member_id="m", member_epoch=1, **{member: value}),)
    )
    asked = g.ConsumerGroupDescribeRequest(groups=("g", "h"))
    own = (DESCRIBE, GROUP, "g")
    screened = screen("ConsumerGroupDescribe", asked, permit(own))
    assert screened.request.groups == ("g",)
    hidden, refused = screened.amend(g.ConsumerGroupDescribeResponse(groups=(group,))).groups
    assert (hidden.error_code, hidden.members, hidden.state) == (DENIED_TOPIC, (), "")
    assert (refused.group_id, refused.error_code) == ("h", GroupAuthorizationFailed.code)
    screened = screen("ConsumerGroupDescribe", asked, permit(own, (DESCRIBE, TOPIC, "b")))
    assert screened.amend(g.ConsumerGroupDescribeResponse(groups=(group,))).groups[0] is group


def test_a_consumer_group_in_the_classic_form_is_shown_with_all_its_topics_only():
    """DescribeGroups of other protocols than Kafka's. Members of classic groups may send whatever they like."""
    asked, own = g.DescribeGroupsRequest(groups=("g",)), (DESCRIBE, GROUP, "g")
    group = g.DescribedGroup(group_id="g", state="Stable", protocol_type="consumer", topics=("b",))
    (hidden,) = screen("DescribeGroups", asked, permit(own)).amend(g.DescribeGroupsResponse(groups=(group,))).groups
    assert (hidden.error_code, hidden.topics, hidden.state) == (DENIED_TOPIC, (), "")
    allowed = screen("DescribeGroups", asked, permit(own, (DESCRIBE, TOPIC, "b")))
    assert allowed.amend(g.DescribeGroupsResponse(groups=(group,))).groups == (group,)


def test_settings_of_a_created_topic_are_shown_with_describe_configs_only():
    """KIP-525."""
    asked = m.CreateTopicsRequest(topics=(m.NewTopic(name="t"),), include_configs=True)
    screened = screen("CreateTopics", asked, topics_for(CREATE, "t"))
    created = m.CreatedTopic(
        name="t", num_partitions=3, configs=(m.CreatedTopicConfig(name="x", value="y", config_source=5),)
    )
    (shown,) = screened.amend(m.CreateTopicsResponse(topics=(created,))).topics
    assert (shown.error_code, shown.num_partitions, shown.configs) == (0, -1, ())


def test_an_error_of_the_whole_request_is_passed_on():
    """Such a response has no parts that could be amended."""
    screened = screen("Fetch", fetch("a", "b"), topics_for(READ, "a"))
    failed = error_response(BY_NAME["Fetch"], ClusterAuthorizationFailed("no"))
    assert screened.amend(failed) is failed


# ---- at the broker ---------------------------------------------------------------------------------------------------

CLIENT = RequestContext("kafka", "CLIENTS", "10.0.0.1", principal="User:alice")


def access(*acls: Acl, **settings: Any) -> tuple[Access, list[str]]:
    """The authorizer of a broker with these entries, and the principals of denied requests."""
    records: list[MetadataRecord] = [acl_record(str(number), each) for number, each in enumerate(acls)]
    image = MetadataImage(topics={"t": TopicImage(name="t", topic_id="id")}).replay_all(records, len(records), 1)
    denied: list[str] = []

    def note(kind: str, /, **facts: Any) -> None:
        if kind == "request_denied":
            denied.append(facts["principal"])

    return Access(BrokerConfig(**settings), lambda: image, note, count(step=100).__next__), denied  # type: ignore[arg-type]


def read_acl() -> Acl:
    return Acl(resource_type=TOPIC, resource_name="t", principal="User:alice", operation=READ, host="10.0.0.1")


def test_a_request_of_a_client_is_checked_by_principal_and_address():
    """The entry is for one address."""
    checked, _ = access(read_acl())
    asked = fetch("t")
    assert checked.screen("Fetch", asked, CLIENT) is None
    elsewhere = RequestContext("kafka", "CLIENTS", "10.0.0.2", principal="User:alice")
    screened = checked.screen("Fetch", asked, elsewhere)
    assert screened is not None
    assert screened.request is None


def test_long_names_that_clients_choose_are_not_remembered():
    """Of topics that do not exist, client ids and paths: each may have 32 KB, and thousands are remembered."""
    checked, _ = access(read_acl())
    long = "x" * 32_000
    for api, context in (("Fetch", replace(CLIENT, client_id=long)), (f"GET /v1/topics/{long}", CLIENT)):
        assert checked.permit(context, api) is not checked.permit(context, api)
    anything = topics_for(READ, "t", long)
    assert screen("Fetch", fetch("t", long), anything).request is not None
    assert {action.resource_name for action in anything.allowed} == {"t"}


def test_a_denial_is_short_in_the_audit_log():
    """The name in it is the client's."""
    noted: list[dict[str, Any]] = []
    image = MetadataImage()
    checked = Access(BrokerConfig(), lambda: image, lambda _kind, /, **facts: noted.append(facts), lambda: 0.0)  # type: ignore[arg-type]
    checked.screen("Fetch", fetch("x" * 32_000), CLIENT)
    (facts,) = noted
    assert all(len(each) < 300 for each in facts.values() if isinstance(each, str))


def test_a_broker_that_has_not_read_the_metadata_decides_about_super_users_only():
    """It knows no entries yet: clients would be denied what they may do, or allowed what an entry denies."""
    is_current = False
    image = MetadataImage().replay_all([acl_record("1", read_acl())], 1, 1)
    config = BrokerConfig(super_users="User:admin", allow_everyone_if_no_acl_found=True)
    noted: list[str] = []
    checked = Access(
        config,
        lambda: image if is_current else MetadataImage(),  # type: ignore[arg-type]
        lambda kind, /, **_facts: noted.append(kind),
        lambda: 0.0,
        lambda: is_current,
    )
    admin = replace(CLIENT, principal="User:admin")
    for name in ("t", "u"):
        with pytest.raises(BrokerNotAvailable):
            checked.screen("Fetch", fetch(name), CLIENT)
        assert checked.screen("Fetch", fetch(name), admin) is None
    with pytest.raises(BrokerNotAvailable):
        checked.screen("InitProducerId", m.InitProducerIdRequest(), CLIENT)
    assert checked.screen("ApiVersions", m.ApiVersionsRequest(), CLIENT) is None
    assert checked.screen("Fetch", fetch("t"), INTERNAL) is None
    assert noted == []
    is_current = True
    assert checked.screen("Fetch", fetch("t"), CLIENT) is None


def test_what_is_remembered_of_callers_ends_with_the_metadata():
    """Contexts are looked up by all of their members, and newer metadata decides from the next request on."""
    allowed = MetadataImage().replay_all([acl_record("1", read_acl())], 1, 1)
    images = [allowed]
    checked = Access(BrokerConfig(), lambda: images[-1], lambda *_, **__: None, count().__next__)  # type: ignore[arg-type]
    permit = checked.permit(CLIENT, "Fetch")
    assert permit is not None
    assert checked.permit(replace(CLIENT), "Fetch") is permit
    assert checked.screen("Fetch", fetch("t"), CLIENT) is None
    for other in (replace(CLIENT, principal="User:bob"), replace(CLIENT, remote="10.0.0.2")):
        screened = checked.screen("Fetch", fetch("t"), other)
        assert screened is not None
    images.append(MetadataImage())
    screened = checked.screen("Fetch", fetch("t"), CLIENT)
    assert screened is not None
    assert screened.request is None


@pytest.mark.parametrize(
    "context", [INTERNAL, RequestContext("rpc", "", "10.0.0.1"), RequestContext("rpc", "CONTROLLER", "10.0.0.1")]
)
def test_calls_of_brokers_are_not_checked(context: RequestContext):
    """This broker's own, and what arrives at the listeners of brokers and controllers."""
    checked, _ = access(
        listeners="BROKERS://127.0.0.1:1,CONTROLLER://127.0.0.1:2,CLIENTS://127.0.0.1:3",
        inter_broker_listener_name="BROKERS",
        controller_listener_names="CONTROLLER",
    )
    assert checked.screen("Vote", object(), context) is None


def bits(*operations: AclOperation) -> int:
    return sum(2**each for each in operations)


def test_authorized_operations_are_a_bit_field_of_what_the_client_may_do():
    """KIP-430: READ implies DESCRIBE; nothing else is allowed, and no denial is reported."""
    checked, denied = access(read_acl())
    assert checked.operations(CLIENT, TOPIC, "t") == bits(READ, DESCRIBE)
    assert checked.operations(replace(CLIENT, remote="10.0.0.2"), TOPIC, "t") == 0
    assert checked.operations(CLIENT, TOPIC, "other") == 0
    assert denied == []


def test_authorized_operations_of_the_cluster_need_describe():
    """As in Kafka: without it the field is 0, whatever else is allowed."""
    alter, create = (
        Acl(resource_type=ResourceType.CLUSTER, resource_name="kafka-cluster", principal="User:alice", operation=each)
        for each in (AclOperation.ALTER_CONFIGS, AclOperation.CREATE)
    )
    describe = structs.replace(create, operation=DESCRIBE)
    checked, _ = access(alter, create)
    assert checked.operations(CLIENT, ResourceType.CLUSTER, "kafka-cluster") == 0
    checked, _ = access(alter, create, describe)
    assert checked.operations(CLIENT, ResourceType.CLUSTER, "kafka-cluster") == bits(
        AclOperation.CREATE, DESCRIBE, AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS
    )


@pytest.mark.parametrize(
    ("kind", "field"), [(TOPIC, 0b110111111000), (GROUP, 0b110101001000), (ResourceType.CLUSTER, 0b1111110100000)]
)
def test_without_a_check_every_operation_of_the_type_is_authorized(kind: ResourceType, field: int):
    """At listeners of brokers, for super users, and without an authorizer; Kafka's bits."""
    checked, _ = access(super_users="User:alice")
    name = "kafka-cluster" if kind == ResourceType.CLUSTER else "x"
    assert checked.operations(CLIENT, kind, name) == field
    assert checked.operations(RequestContext("rpc", "", "10.0.0.1"), kind, name) == field
    assert all_operations(CLIENT, kind, name) == field


def test_a_super_user_may_do_everything():
    """Without any entry."""
    checked, denied = access(super_users="User:alice;User:bob")
    assert checked.screen("Vote", object(), CLIENT) is None
    assert denied == []


def test_a_denied_request_is_an_event():
    """It names the principal."""
    checked, denied = access()
    with pytest.raises(ClusterAuthorizationFailed, match="User:alice has no permission"):
        checked.screen("CreateAcls", object(), CLIENT)
    assert denied == ["User:alice"]


def test_a_denied_part_of_a_request_is_an_event():
    """Each topic that the response names with an error, in every kind of list."""
    checked, denied = access()
    produce = m.ProduceRequest(
        partitions=tuple(m.ProducePartition(topic=name, partition=0, records=b"") for name in ("t", "u"))
    )
    for number, (api, request, response) in enumerate(
        (
            ("Produce", produce, m.ProduceResponse()),
            ("Fetch", fetch("t", "u"), m.FetchResponse()),
            ("Metadata", m.MetadataRequest(topics=("t", "u")), m.MetadataResponse()),
        )
    ):
        screened = checked.screen(api, request, CLIENT)
        assert screened is not None
        screened.amend(response)
        assert len(denied) == 2 * (number + 1), api


def test_what_a_list_leaves_out_is_no_event():
    """The client has not asked for it by name, and is told nothing about it."""
    checked, denied = access()
    topics, groups = (
        m.MetadataResponse(topics=(m.MetadataTopic(name="t"),)),
        g.ListGroupsResponse(groups=(g.ListedGroup(group_id="g", state="Stable"),)),
    )
    everything = (("Metadata", m.MetadataRequest(topics=None), topics), ("ListGroups", g.ListGroupsRequest(), groups))
    for api, request, response in everything:
        screened = checked.screen(api, request, CLIENT)
        assert screened is not None
        assert screened.amend(response) == type(response)()
    assert denied == []


@pytest.mark.parametrize("form", ["at once", "awaited", "begun"])
async def test_denied_parts_are_added_in_every_form_of_an_answer(form: str):
    """A Produce answers with Begun, a fetch with an awaitable or at once."""
    screened = Screened("left", (lambda response: m.FetchResponse(session_id=response.session_id + 1),))

    async def later(answer: Any) -> Any:
        await asyncio.sleep(0)
        return answer

    answers: dict[str, Callable[[Any], Any]] = {
        "at once": lambda _: m.FetchResponse(session_id=1),
        "awaited": lambda _: later(m.FetchResponse(session_id=1)),
        "begun": lambda _: later(Begun(later(m.FetchResponse(session_id=1)))),
    }
    answer = await settled(screened_answer(BY_NAME["Fetch"], screened, answers[form]))
    assert answer.session_id == 2


def test_a_handler_is_not_called_without_anything_left():
    """It could create topics, or wait."""
    screened = Screened(None, (lambda response: response,))
    calls: list[Any] = []
    assert screened_answer(BY_NAME["Fetch"], screened, calls.append) == m.FetchResponse()
    assert calls == []


def test_an_action_reads_as_kafka_names_it():
    """Errors and events show it."""
    assert str(Action(READ, TOPIC, "t")) == "READ on TOPIC t"
