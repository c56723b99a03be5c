"""What the cluster loses if a broker ends now, as sentences: shown before a test stops or kills it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from minikafka.config import BrokerConfig
from minikafka.quorum.image import MetadataImage, PartitionImage, TopicImage
from minikafka.types import NodeId


class Ending(NamedTuple):
    """The consequences of a broker's end."""

    effects: list[str]
    """What the cluster copes with."""
    warnings: list[str]
    """What it does not cope with: the quorum has no majority, or committed records have no copy that may lead."""


def ending_of(node: NodeId, image: MetadataImage, voters: Collection[NodeId], config: BrokerConfig) -> Ending:
    """The consequences if broker ``node`` ends, by the metadata that this broker has."""
    moving, last, below = [], [], []
    for topic, partition in image.sorted_partitions():
        name = f"{topic.name}-{partition.partition}"
        left = [each for each in partition.isr if each != node and image.alive(each)]
        if node in partition.isr and not left:
            last.append(name)
            continue
        if partition.leader == node:
            moving.append(name)
        if node in partition.isr and len(left) < _min_isr(topic, partition, config):
            below.append(name)
    effects = [f"{_count(moving, 'get', 'gets')} another leader." if moving else "No partition changes its leader."]
    if below:
        effects.append(
            f"{_count(below, 'have', 'has')} fewer in-sync replicas than min.insync.replicas: writes with "
            "acks=all are refused."
        )
    warnings = []
    majority = len(voters) // 2 + 1
    others = sum(image.alive(each) for each in voters if each != node)
    if node in voters and others < majority:
        warnings.append(
            f"{others} of {len(voters)} voters would be up: without {majority} there is no controller, and no "
            "partition gets another leader or ISR."
        )
    if last:
        warnings.append(
            f"{_count(last, 'have', 'has')} no other in-sync replica that is up: no leader, and no other certain copy "
            "of the committed records."
        )
    return Ending(effects, warnings)


def _min_isr(topic: TopicImage, partition: PartitionImage, config: BrokerConfig) -> int:
    minimum = int(topic.configs.get("min.insync.replicas", config.min_insync_replicas))
    return min(minimum, len(partition.replicas))


def _count(names: list[str], many: str, one: str) -> str:
    if len(names) == 1:
        return f"{names[0]} {one}"
    return f"{len(names)} partitions (such as {names[0]}) {many}"
