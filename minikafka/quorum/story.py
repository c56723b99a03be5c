"""What became of the cluster between two images, in words: the events of a controller's decisions (D9).

Read off the images and not off the records, so that it tells what happened, however it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage, changes
from minikafka.quorum.overlay import differing
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType


@dataclass(frozen=True, slots=True)
class Happening:
    """One event, ready for the sink: its kind and its facts."""

    kind: str
    facts: dict[str, object]


def happenings(old: MetadataImage, new: MetadataImage, why: str) -> Iterator[Happening]:
    """Every change from ``old`` to ``new``: brokers first, then topics, then partitions, each in order."""
    if old.brokers is not new.brokers:
        for node in sorted(old.brokers.keys() - new.brokers.keys()):
            epoch = old.brokers[node].broker_epoch
            yield Happening("broker_unregistered", {"broker": node, "broker_epoch": epoch, "why": why})
        for node in sorted(new.brokers):
            if old.brokers.get(node) is not new.brokers[node]:
                yield from _broker(node, old.brokers.get(node), new.brokers[node], why)
    if old.broker_configs is not new.broker_configs:
        for name in sorted({*old.broker_configs, *new.broker_configs}):
            configs = new.broker_configs.get(name, {})
            if configs != old.broker_configs.get(name, {}):
                yield Happening("configs_altered", {"broker": name or "all", "configs": dict(configs), "why": why})
    if old.acls is not new.acls:
        for acl_id in sorted(old.acls.keys() - new.acls.keys()):
            yield Happening("acl_deleted", {**_acl(old.acls[acl_id]), "why": why})
        for acl_id in sorted(new.acls.keys() - old.acls.keys()):
            yield Happening("acl_created", {**_acl(new.acls[acl_id]), "why": why})
    if old.scram is not new.scram:
        for mechanism, name in sorted(old.scram.keys() | new.scram.keys()):
            if old.scram.get((mechanism, name)) != new.scram.get((mechanism, name)):
                kind = "user_credential_set" if (mechanism, name) in new.scram else "user_credential_deleted"
                yield Happening(kind, {"user": name, "mechanism": mechanism.label, "why": why})
    if old.quotas is not new.quotas:
        for entity in sorted(old.quotas.keys() | new.quotas.keys(), key=repr):
            quotas = new.quotas.get(entity, {})
            if quotas != old.quotas.get(entity, {}):
                name = ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in entity)
                yield Happening("client_quotas_altered", {"entity": name, "quotas": dict(quotas), "why": why})
    if old.features is not new.features:
        for name in sorted(new.features):
            if old.features.get(name) != new.features[name]:
                yield Happening("feature_level_changed", {"feature": name, "level": new.features[name], "why": why})
    if old.topic_names is not new.topic_names:
        ids = sorted(differing(old.topic_names, new.topic_names))
        for topic_id in (each for each in ids if each not in new.topic_names):
            name = old.topic_names[topic_id]
            yield Happening("topic_deleted", {"topic": name, "topic_id": topic_id, "why": why})
        for topic_id in (each for each in ids if each not in old.topic_names):
            name = new.topic_names[topic_id]
            count = len(new.topics[name].partitions)
            yield Happening("topic_created", {"topic": name, "topic_id": topic_id, "partitions": count, "why": why})
    if old.topics is not new.topics:
        yield from _topics(old, new, why)
        for tp, before, after in changes(old, new):
            if before is not None and after is not None:
                yield from _partition(tp, before, after, why)


def _acl(acl: Acl) -> dict[str, object]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": AclOperation(acl.operation).name,
        "permission": AclPermission(acl.permission).name,
        "resource_type": ResourceType(acl.resource_type).name,
        "resource_name": acl.resource_name,
        "pattern_type": PatternType(acl.pattern_type).name,
    }


def _topics(old: MetadataImage, new: MetadataImage, why: str) -> Iterator[Happening]:
    """Settings altered and partitions added, of topics that exist in both."""
    for name in sorted(differing(old.topics, new.topics)):
        before, after = old.topics.get(name), new.topics.get(name)
        if before is None or after is None or before.topic_id != after.topic_id:
            continue
        if before.configs != after.configs:
            yield Happening("configs_altered", {"topic": name, "configs": dict(after.configs), "why": why})
        if len(before.partitions) != len(after.partitions):
            facts = {"topic": name, "old": len(before.partitions), "new": len(after.partitions), "why": why}
            yield Happening("partitions_added", facts)


def _broker(node: NodeId, old: BrokerImage | None, new: BrokerImage, why: str) -> Iterator[Happening]:
    facts: dict[str, object] = {"broker": node, "broker_epoch": new.broker_epoch, "why": why}
    if old is None or old.broker_epoch != new.broker_epoch:
        yield Happening(
            "broker_registered", {**facts, "incarnation_id": new.incarnation_id, "address": str(new.address)}
        )
        if not new.fenced:
            yield Happening("broker_unfenced", facts)
        return
    if old.fenced != new.fenced:
        yield Happening("broker_fenced" if new.fenced else "broker_unfenced", facts)
    if new.in_controlled_shutdown and not old.in_controlled_shutdown:
        yield Happening("controlled_shutdown_begun", facts)


def _partition(tp: TopicPartition, old: PartitionImage, new: PartitionImage, why: str) -> Iterator[Happening]:
    facts: dict[str, object] = {
        "partition": str(tp),
        "leader_epoch": new.leader_epoch,
        "partition_epoch": new.partition_epoch,
        "why": why,
    }
    if old.leader_epoch != new.leader_epoch:
        kind = "leader_lost" if new.leader == NO_NODE else "leader_elected"
        clean = new.leader in {*old.isr, *old.elr, NO_NODE}
        yield Happening(kind, {**facts, "old": old.leader, "leader": new.leader, "isr": new.isr, "clean": clean})
    if old.isr != new.isr:
        lost, won = set(old.isr) - set(new.isr), set(new.isr) - set(old.isr)
        kind = "isr_shrunk" if not won else "isr_expanded" if not lost else "isr_changed"
        yield Happening(kind, {**facts, "old": old.isr, "new": new.isr})
    if old.elr != new.elr:
        yield Happening("elr_changed", {**facts, "old": old.elr, "new": new.elr})
    if old.assignment != new.assignment:
        kind = "reassignment_begun" if new.assignment.under_way else "reassignment_ended"
        moving = {"adding": new.adding, "removing": new.removing}
        yield Happening(kind, {**facts, "old": old.replicas, "new": new.replicas, **moving})
