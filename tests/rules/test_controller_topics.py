"""Topics: names, numbers, assignments, settings; created and deleted (S18, S28)."""

from __future__ import annotations

import pytest

from minikafka.config import TopicConfig
from minikafka.errors import BY_CODE, InvalidRequest, PolicyViolation, UnknownTopicId
from minikafka.quorum.controller import Controller
from minikafka.quorum.decision import ClusterPolicy
from minikafka.types import NO_TOPIC_ID, uuid_text
from minikafka.wire.messages import CreateTopicsRequest, DeleteTopicsRequest, NewTopic, ReplicaAssignment
from tests.rules.controller_kit import Cluster


@pytest.mark.parametrize(
    "name, legal",
    [
        ("a", True),
        ("Orders.eu-west_1", True),
        ("x" * 249, True),
        ("...", True),
        ("x" * 250, False),
        ("", False),
        (".", False),
        ("..", False),
        ("a b", False),
        ("a/b", False),
        ("ä", False),
        ("a\n", False),
        ("__cluster_metadata", False),
    ],
)
def test_legal_names(name: str, legal: bool):
    """S28: a topic's name becomes a directory; Kafka's rule, so that topics can move between the two."""
    answer = Cluster(1).create(name, partitions=1, factor=1)
    assert answer.error_code == (0 if legal else 17)


def test_names_that_collide_in_metrics():
    """a.b and a_b would be one name in Kafka's metrics; also inside one request."""
    cluster = Cluster(1)
    cluster.create("a.b")
    assert cluster.create("a_b").error_code == 17
    answers = cluster.create_all(NewTopic(name="c.d"), NewTopic(name="c_d"), NewTopic(name="e.f"))
    assert [each.error_code for each in answers] == [0, 17, 0]


def test_topics_that_differ_only_in_case_need_disks_that_distinguish_case():
    """On one that does not, both would have one folder: records were lost, and topics got those of others."""
    cluster = Cluster(3)
    assert [cluster.create(name).error_code for name in ("Orders", "orders")] == [0, 0]
    cluster = Cluster(2)
    cluster.ignoring_case = {3}
    cluster.start(3)
    assert cluster.create("Orders", factor=1).error_code == 0
    for name in ("orders", "ORDERS"):
        answer = cluster.create(name, factor=1)
        assert answer.error_code == 17
        assert f"'{name}' would share a folder with 'Orders'" in answer.error_message
        assert "broker 3's data directory ignores case" in answer.error_message
    answers = cluster.create_all(
        *(NewTopic(name=name) for name in ("Teas", "teas", "__Consumer_Offsets", "x.Y", "x.y"))
    )
    assert [each.error_code for each in answers] == [0, 17, 17, 0, 17]
    assert cluster.create("__CLUSTER_METADATA", factor=1).error_code == 17
    assert cluster.create("__consumer_offsets").error_code == 0
    cluster.commit(cluster.controller.delete_topics(cluster.image, DeleteTopicsRequest(topics=("Orders",))))
    assert cluster.create("orders").error_code == 0
    cluster.ignoring_case.clear()
    cluster.register(3)
    assert cluster.create("Orders").error_code == 0


@pytest.mark.parametrize("name", ["a.b", "a_b.c", "_a.", "a.b_c.d.e.f", "a.b_c.d.e.f.g", "..a__.b_.c"])
def test_collisions_are_found_in_names_of_many_parts(name: str):
    """Few variants are looked up, many are searched for."""
    cluster = Cluster(1)
    assert cluster.create(name).error_code == 0
    for other in {name.replace(".", "_"), name.replace("_", ".")} - {name}:
        answer = cluster.create(other)
        assert answer.error_code == 17
        assert repr(name) in answer.error_message
    assert cluster.create(name + "x").error_code == 0


def test_a_topic_that_exists_is_told():
    """36, and nothing about the present topic changes."""
    cluster = Cluster(1)
    cluster.create("t")
    before = cluster.image
    assert BY_CODE[cluster.create("t", partitions=7).error_code].name == "TOPIC_ALREADY_EXISTS"
    assert cluster.image == before


def test_a_topic_named_twice_in_one_request_is_not_created():
    """Which of the two was meant is not ours to guess."""
    cluster = Cluster(1)
    answers = cluster.create_all(NewTopic(name="t"), NewTopic(name="u"), NewTopic(name="t", num_partitions=3))
    assert [each.error_code for each in answers] == [42, 0, 42]
    assert list(cluster.image.topics) == ["u"]


@pytest.mark.parametrize(
    "partitions, factor, error",
    [(0, 1, 37), (-2, 1, 37), (10_001, 1, 37), (1, 0, 38), (1, -2, 38), (1, 4, 38), (10_000, 1, 0)],
)
def test_numbers(partitions: int, factor: int, error: int):
    """37 and 38 as Kafka's; the limit keeps one request one batch."""
    assert Cluster(3).create("t", partitions=partitions, factor=factor).error_code == error


def test_the_limit_of_partitions_holds_for_the_whole_request():
    """A batch of the metadata log must stay small, however the topics are cut."""
    answers = Cluster(1).create_all(NewTopic(name="a", num_partitions=9_000), NewTopic(name="b", num_partitions=9_000))
    assert [each.error_code for each in answers] == [0, 37]


def test_the_limit_of_partitions_holds_for_assignments_of_several_topics():
    """Thousands of partitions with an assignment of their own are as many records."""
    assignments = tuple(ReplicaAssignment(partition=number, broker_ids=(1,)) for number in range(6_000))
    topics = [NewTopic(name=name, assignments=assignments) for name in "ab"]
    assert [each.error_code for each in Cluster(1).create_all(*topics)] == [0, 37]


def test_too_few_brokers_are_told_by_number():
    """The message says what would work."""
    cluster = Cluster(3)
    cluster.lose(2)
    answer = cluster.create("t", partitions=1, factor=3)
    assert answer.error_code == 38
    assert "2 usable brokers (1, 3)" in answer.error_message


def test_defaults_are_the_brokers():
    """-1: num.partitions and default.replication.factor."""
    cluster = Cluster(3)
    policy = ClusterPolicy(cluster_id="cluster", num_partitions=4, default_replication_factor=2)
    cluster.controller = Controller(policy)
    answer = cluster.create("t")
    assert (answer.num_partitions, answer.replication_factor) == (4, 2)


def test_settings_are_checked_and_kept():
    """40 with the nearest name; what is accepted stands in the image as it was said."""
    cluster = Cluster(1)
    wrong = cluster.create("t", configs={"retention.mss": "5"})
    assert wrong.error_code == 40
    assert "retention.ms" in wrong.error_message
    assert cluster.create("t", configs={"min.insync.replicas": "none"}).error_code == 40
    assert cluster.create("t", configs={"retention.ms": "5", "min.insync.replicas": "2"}).error_code == 0
    assert cluster.image.topics["t"].configs == {"retention.ms": "5", "min.insync.replicas": "2"}


def test_the_answer_tells_the_new_topic_and_where_the_log_now_ends():
    """metadata_offset: a client may wait until a broker's Metadata answer reaches it."""
    cluster = Cluster(3)
    request = CreateTopicsRequest(topics=(NewTopic(name="t", num_partitions=2, replication_factor=3),))
    decision = cluster.controller.create_topics(cluster.image, request, cluster.ids)
    response = cluster.commit(decision, request)
    assert response.metadata_offset == cluster.image.offset
    assert response.topics[0].topic_id == cluster.image.topics["t"].topic_id
    assert len(response.topics[0].topic_id or "") == 22


def test_validate_only_says_what_would_happen():
    """Nothing is recorded."""
    cluster = Cluster(3)
    before = cluster.image
    answers = cluster.create_all(NewTopic(name="t", replication_factor=3), NewTopic(name="."), validate_only=True)
    assert [(each.error_code, each.replication_factor, each.topic_id) for each in answers] == [
        (0, 3, None),
        (17, -1, None),
    ]
    assert cluster.image == before


def test_topic_ids_are_never_zero_and_never_used_twice():
    """The zero UUID means no id on disk (partition.metadata)."""
    cluster = Cluster(1)
    one = uuid_text(b"\1" * 16)
    cluster.ids = iter([NO_TOPIC_ID, one, one, uuid_text(b"\2" * 16)])  # type: ignore[assignment]
    answers = (cluster.create("t"), cluster.create("u"))
    assert [each.topic_id for each in answers] == [one, uuid_text(b"\2" * 16)]


# ---- manual assignments ----------------------------------------------------------------------------------------------


def test_a_manual_assignment_is_taken_as_it_is():
    """Fenced replicas are not in the first ISR; the first live one leads."""
    cluster = Cluster(3)
    cluster.lose(3)
    assert cluster.create("t", (3, 1), (2, 3)).error_code == 0
    told = [(each.replicas, each.isr, each.leader) for each in cluster.image.topics["t"].partitions]
    assert told == [((3, 1), (1,), 1), ((2, 3), (2,), 2)]


@pytest.mark.parametrize(
    "replicas",
    [[(1, 1)], [()], [(1, 9)], [(1, 2), (1,)], [(3,)]],
    ids=["twice", "nobody", "unknown", "uneven", "none alive"],
)
def test_assignments_that_are_refused(replicas: list[tuple[int, ...]]):
    """39, for the whole topic."""
    cluster = Cluster(3)
    cluster.lose(3)
    assert cluster.create("t", *replicas).error_code == 39
    assert "t" not in cluster.image.topics


@pytest.mark.parametrize("numbers", [(1, 2), (0, 2), (0, 0)])
def test_partitions_of_an_assignment_are_numbered_from_0(numbers: tuple[int, int]):
    """No gap, no repeat."""
    assignments = tuple(ReplicaAssignment(partition=number, broker_ids=(1,)) for number in numbers)
    assert Cluster(1).create_all(NewTopic(name="t", assignments=assignments))[0].error_code == 39


def test_an_assignment_in_any_order_is_sorted_by_partition():
    """The order in a request says nothing."""
    cluster = Cluster(2)
    assignments = tuple(ReplicaAssignment(partition=number, broker_ids=(2 - number,)) for number in (1, 0))
    cluster.create_all(NewTopic(name="t", assignments=assignments))
    assert [each.replicas for each in cluster.image.topics["t"].partitions] == [(2,), (1,)]


def test_an_assignment_and_numbers_exclude_each_other():
    """Two sources for one fact."""
    assert Cluster(1).create("t", (1,), partitions=1).error_code == 42


# ---- deletion --------------------------------------------------------------------------------------------------------


def delete(cluster: Cluster, *names: str, ids: dict[str, str] | None = None) -> list[int]:
    request = DeleteTopicsRequest(topics=names, topic_ids=ids or {})
    return [each.error_code for each in cluster.commit(cluster.controller.delete_topics(cluster.image, request)).topics]


def test_deleting():
    """Each name is answered once, a repeated one with a refusal, as in Kafka; a topic that is created again has another id."""
    cluster = Cluster(1)
    first = cluster.create("t", configs={"retention.ms": "5"}).topic_id
    assert delete(cluster, "t", "none", "t") == [InvalidRequest.code, 3]
    assert delete(cluster, "t", "none") == [0, 3]
    assert not cluster.image.topics
    assert not cluster.image.topic_names
    second = cluster.create("t").topic_id
    assert second != first
    assert cluster.image.topics["t"].configs == {}


def test_deleting_by_an_id():
    """KIP-516, S28: a request that was under way while the topic was created again does not delete the new topic."""
    cluster = Cluster(1)
    former = str(cluster.create("t").topic_id)
    assert delete(cluster, "t", ids={"t": former}) == [0]
    assert delete(cluster, "t", ids={"t": former}) == [UnknownTopicId.code]
    new = str(cluster.create("t").topic_id)
    assert delete(cluster, "t", ids={"t": former}) == [UnknownTopicId.code]
    assert cluster.image.topics["t"].topic_id == new
    assert delete(cluster, "t", ids={"t": new}) == [0]


def test_deleting_may_be_forbidden():
    """delete.topic.enable=false."""
    cluster = Cluster(1)
    cluster.create("t")
    cluster.controller = Controller(
        ClusterPolicy(cluster_id="cluster", topic_defaults=TopicConfig(), delete_topic_enable=False)
    )
    with pytest.raises(PolicyViolation):
        delete(cluster, "t")
