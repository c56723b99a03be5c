"""CreatePartitions: more partitions for a topic that is in use (S18, S31)."""

from __future__ import annotations

import pytest

from minikafka.errors import InvalidPartitions
from minikafka.types import INTERNAL_TOPICS, TopicPartition
from minikafka.wire.admin import (
    CreatedPartitions,
    CreatePartitionsRequest,
    NewPartitionReplicas,
    NewPartitions,
)
from tests.rules.controller_kit import Cluster


def enlarge(
    cluster: Cluster, count: int, *replicas: tuple[int, ...], name: str = "t", validate_only: bool = False
) -> CreatedPartitions:
    assignments = tuple(NewPartitionReplicas(broker_ids=each) for each in replicas) or None
    asked = NewPartitions(name=name, count=count, assignments=assignments)
    request = CreatePartitionsRequest(topics=(asked,), validate_only=validate_only)
    return cluster.commit(cluster.controller.create_partitions(cluster.image, request), request).results[0]


def replicas_of(cluster: Cluster) -> list[tuple[int, ...]]:
    return [each.replicas for each in cluster.image.topics["t"].partitions]


def test_placement_goes_on_where_it_stopped():
    """S18: partition i's j-th replica is on broker (i + j) mod n, also when it comes later."""
    cluster = Cluster(3)
    cluster.create("t", partitions=2, factor=2)
    old = cluster.image.topics["t"].partitions
    assert enlarge(cluster, 5).error_code == 0
    assert replicas_of(cluster) == [(1, 2), (2, 3), (3, 1), (1, 2), (2, 3)]
    assert cluster.image.topics["t"].partitions[:2] == old
    new = cluster.state(TopicPartition("t", 4))
    assert (new.leader, new.isr, new.leader_epoch, new.partition_epoch) == (2, (2, 3), 0, 0)


def test_partitions_that_come_during_a_reassignment_have_the_replicas_of_its_target():
    """Those that it is still removing are no part of the replication factor."""
    cluster = Cluster(3)
    cluster.create("t", partitions=1, factor=1)
    cluster.reassign((3,))
    assert cluster.state(TopicPartition("t", 0)).replicas == (3, 1)
    assert enlarge(cluster, 2).error_code == 0
    assert replicas_of(cluster)[1:] == [(2,)]


def test_replicas_may_be_named():
    """The preferred leader first; a fenced broker may be among them, not alone."""
    cluster = Cluster(3)
    cluster.create("t", partitions=1, factor=2)
    cluster.lose(3)
    assert enlarge(cluster, 3, (2, 1), (3, 2)).error_code == 0
    assert replicas_of(cluster)[1:] == [(2, 1), (3, 2)]
    assert cluster.leader(TopicPartition("t", 2)) == (2, (2,))


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_number_of_partitions_of_a_coordinators_log_stays(name: str):
    """It maps names to coordinators: with another number, groups lose their offsets, and zombies are not fenced."""
    cluster = Cluster(3)
    cluster.create(name, partitions=2, factor=2)
    before = cluster.image
    assert enlarge(cluster, 5, name=name).error_code == InvalidPartitions.code
    assert cluster.image == before


@pytest.mark.parametrize(
    "count, replicas, error",
    [
        (2, (), 37),
        (1, (), 37),
        (0, (), 37),
        (20_000, (), 37),
        (4, ((1, 2),), 39),
        (3, ((1, 1),), 39),
        (3, ((1, 9),), 39),
        (3, ((3,),), 39),
        (4, ((1, 2), (1,)), 39),
        (3, ((2,),), 39),
        (3, ((2, 1, 3),), 39),
    ],
)
def test_what_cannot_be_is_refused(count: int, replicas: tuple[tuple[int, ...], ...], error: int):
    """37 and 39 as Kafka's; the topic stays as it is."""
    cluster = Cluster(3)
    cluster.create("t", partitions=2, factor=2)
    cluster.lose(3)
    before = cluster.image
    assert enlarge(cluster, count, *replicas).error_code == error
    assert cluster.image == before


def test_unknown_topics_topics_named_twice_and_a_dry_run():
    """Each topic of a request has its own answer."""
    cluster = Cluster(3)
    cluster.create("t", partitions=2, factor=2)
    before = cluster.image
    assert enlarge(cluster, 3, name="nobody").error_code == 3
    assert enlarge(cluster, 3, validate_only=True).error_code == 0
    twice = CreatePartitionsRequest(topics=(NewPartitions(name="t", count=3), NewPartitions(name="t", count=4)))
    answers = cluster.commit(cluster.controller.create_partitions(cluster.image, twice)).results
    assert [each.error_code for each in answers] == [42, 42]
    assert cluster.image == before
