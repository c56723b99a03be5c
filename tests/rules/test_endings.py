"""What a broker's end would mean, as the console says before it stops or kills one (PAGE 6, issue 19)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minikafka.config import BrokerConfig
from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from minikafka.rest.testing_actions import ending_of
from minikafka.types import NodeId

CONFIG = BrokerConfig()


def image_of(isrs: dict[str, tuple[NodeId, ...]], *, down: tuple[NodeId, ...] = (), **configs: str) -> MetadataImage:
    """Three brokers, and topics with one partition on all of them, led by the first of their ISR."""
    brokers = {
        node: BrokerImage(node_id=node, broker_epoch=node, incarnation_id="i", host="h", port=1, fenced=node in down)
        for node in (1, 2, 3)
    }
    topics = {
        name: TopicImage(
            name=name,
            topic_id=name,
            configs=configs,
            partitions=(
                PartitionImage(
                    partition=0,
                    replicas=(1, 2, 3),
                    isr=isr,
                    leader=isr[0],
                    leader_epoch=0,
                    partition_epoch=0,
                    controller_epoch=1,
                ),
            ),
        )
        for name, isr in isrs.items()
    }
    return MetadataImage(cluster_id="c", offset=1, epoch=1, brokers=brokers, topics=topics)


def test_leader_with_enough_others_only_moves():
    """No warning: the cluster is made for this."""
    image = image_of({"a": (1, 2, 3), "b": (1, 2, 3), "c": (2, 3, 1)})
    ending = ending_of(1, image, (1, 2, 3), CONFIG)
    assert (ending.effects, ending.warnings) == (["2 partitions (such as a-0) get another leader."], [])
    assert ending_of(3, image, (1, 2, 3), CONFIG).effects == ["No partition changes its leader."]


def test_isr_below_the_minimum_is_an_effect():
    """Writes with acks=all are refused, and nothing is lost."""
    image = image_of({"a": (1, 2)}, **{"min.insync.replicas": "2"})
    ending = ending_of(1, image, (1, 2, 3), CONFIG)
    assert ending.effects[1].startswith("a-0 has fewer in-sync replicas than min.insync.replicas")
    assert ending.warnings == []


def test_replicas_that_are_being_added_are_not_needed_for_writes():
    """A topic with one replica gets two more (KIP-455): its leader alone may acknowledge until they have caught up."""
    image = image_of({"a": (1, 2)}, **{"min.insync.replicas": "2"})
    [growing] = [replace(each, adding=(2, 3)) for each in image.topics["a"].partitions]
    image = replace(image, topics={"a": replace(image.topics["a"], partitions=(growing,))})
    assert ending_of(2, image, (1, 2, 3), CONFIG).effects == ["No partition changes its leader."]


@pytest.mark.parametrize("others_down", [(), (2,)])
def test_last_replica_in_sync_is_a_warning(others_down: tuple[NodeId, ...]):
    """A member of the ISR that is down does not count: nobody knows that it comes back."""
    image = image_of({"a": (1, 2) if others_down else (1,)}, down=others_down)
    ending = ending_of(1, image, (1, 3), CONFIG)
    assert ending.effects == ["No partition changes its leader."]
    assert "a-0 has no other in-sync replica that is up" in ending.warnings[-1]


@pytest.mark.parametrize(("down", "warnings"), [((), 0), ((2,), 1)])
def test_eligible_leader_replica_that_is_up_leads_after_the_last_of_the_isr(down: tuple[NodeId, ...], warnings: int):
    """KIP-966: it was not caught up enough for the ISR, and has all committed records: below the minimum none are."""
    image = image_of({"a": (1,)}, down=down, **{"min.insync.replicas": "2"})
    [alone] = [replace(each, elr=(2,)) for each in image.topics["a"].partitions]
    image = replace(image, topics={"a": replace(image.topics["a"], partitions=(alone,))})
    ending = ending_of(1, image, (1, 3), CONFIG)
    assert len([each for each in ending.warnings if "no other in-sync replica" in each]) == warnings
    assert ("a-0 gets another leader." in ending.effects) is (warnings == 0)


def test_majority_of_voters_that_would_be_gone_is_a_warning():
    """Of three voters two must be up; a broker that is no voter takes none away."""
    image = image_of({}, down=(2,))
    [warning] = ending_of(1, image, (1, 2, 3), CONFIG).warnings
    assert warning.startswith("1 of 3 voters would be up: without 2 there is no controller")
    assert ending_of(3, image, (1, 2), CONFIG).warnings == []
    assert ending_of(1, image_of({}), (1, 2, 3), CONFIG).warnings == []
    assert len(ending_of(1, image_of({}), (1,), CONFIG).warnings) == 1
