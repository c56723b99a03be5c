"""AlterPartition: a leader asks for another ISR (KIP-497, KAFKA-FACTS 3.5).

The checks stand in Kafka's order, for a leader acts on the kind of the error: if its metadata is old it waits,
if a member is ineligible it proposes again. A change is made only from the partition epoch that the leader knows
(compare and set), and only with members that are alive in the incarnation that the leader has seen: the log that caught
up must be the log that joins (KIP-841, KIP-903, KAFKA-14139).
"""

from __future__ import annotations

from minikafka.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
    ProtocolError,
    StaleBrokerEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from minikafka.quorum.decision import ClusterPolicy, Decision
from minikafka.quorum.elections import change_of, election_for
from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from minikafka.quorum.records import MetadataRecord
from minikafka.types import NodeId, Offset
from minikafka.wire.messages import (
    AlteredPartition,
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    IsrMember,
)


def checked_broker(image: MetadataImage, broker_id: NodeId, broker_epoch: Offset) -> BrokerImage:
    """The registration that a request speaks for; StaleBrokerEpoch when it is not the current one, or none is."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise StaleBrokerEpoch(f"broker {broker_id} is not registered")
    if broker.broker_epoch != broker_epoch:
        raise StaleBrokerEpoch(
            f"broker {broker_id} says epoch {broker_epoch}, its registration has epoch {broker.broker_epoch}"
        )
    return broker


def alter_partition(
    policy: ClusterPolicy, image: MetadataImage, request: AlterPartitionRequest
) -> Decision[AlterPartitionResponse]:
    """Decide each partition on its own; an error in one is answered there. Raises StaleBrokerEpoch for the whole."""
    checked_broker(image, request.broker_id, request.broker_epoch)
    records: list[MetadataRecord] = []
    answers: list[AlteredPartition] = []
    seen: set[tuple[str, int]] = set()
    for item in request.partitions:
        try:
            if (item.topic_id, item.partition) in seen:
                raise InvalidRequest(f"{item.topic}-{item.partition} is named twice in one request")
            seen.add((item.topic_id, item.partition))
            topic, partition = _checked(image, request.broker_id, item)
            change = change_of(
                policy,
                image,
                topic,
                partition,
                isr=(member.broker_id for member in item.new_isr),
                election=election_for(policy, topic),
                recovered=item.recovered,
            )
            if change is not None:
                records.append(change)
                partition = partition.changed(change, image.epoch)
            answers.append(_state(item, partition))
        except ProtocolError as error:
            answers.append(
                AlteredPartition(
                    topic=item.topic,
                    partition=item.partition,
                    error_code=error.code,
                    error_message=error.message,
                    outcome=error.outcome,
                )
            )
    return Decision(
        records=tuple(records),
        response=AlterPartitionResponse(partitions=tuple(answers)),
        cause=f"leader {request.broker_id} proposed the ISR",
    )


def _state(item: AlterPartitionItem, partition: PartitionImage) -> AlteredPartition:
    return AlteredPartition(
        topic=item.topic,
        partition=item.partition,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=partition.isr,
    )


def _checked(image: MetadataImage, sender: NodeId, item: AlterPartitionItem) -> tuple[TopicImage, PartitionImage]:
    """The partition that ``item`` may change; the checks of KAFKA-FACTS 3.5 in order."""
    topic = image.topic_by_id(item.topic_id)
    if topic is None:
        raise UnknownTopicId(f"no topic has the id {item.topic_id} (asked for as {item.topic})")
    if not 0 <= item.partition < len(topic.partitions):
        raise UnknownTopicOrPartition(f"{topic.name} has no partition {item.partition}")
    partition = topic.partitions[item.partition]
    name = f"{topic.name}-{item.partition}"
    if item.leader_epoch > partition.leader_epoch or item.partition_epoch > partition.partition_epoch:
        raise NotController(f"{name}: the request knows a newer state than this controller")
    if item.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(f"{name}: leader epoch {item.leader_epoch}, now {partition.leader_epoch}")
    if sender != partition.leader:
        raise InvalidRequest(f"{name}: {sender} does not lead, {partition.leader} does")
    if item.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersion(f"{name}: partition epoch {item.partition_epoch}, now {partition.partition_epoch}")
    _check_members(name, partition, item)
    for member in item.new_isr:
        _check_eligible(image, name, member)
    return topic, partition


def _check_members(name: str, partition: PartitionImage, item: AlterPartitionItem) -> None:
    members = [member.broker_id for member in item.new_isr]
    if len(set(members)) < len(members) or not set(members) <= set(partition.replicas):
        raise InvalidRequest(f"{name}: the ISR {members} is not a part of the replicas {list(partition.replicas)}")
    if partition.leader not in members:
        raise InvalidRequest(f"{name}: the ISR {members} lacks the leader {partition.leader} (S13)")
    if not item.recovered and len(members) > 1:
        raise InvalidRequest(f"{name}: a leader that still recovers cannot have an ISR of {len(members)} (KIP-704)")
    if not item.recovered and partition.recovered:
        raise InvalidRequest(f"{name}: the partition has recovered, it cannot go back")


def _check_eligible(image: MetadataImage, name: str, member: IsrMember) -> None:
    """KIP-841 and KIP-903; a member's epoch of -1 is not known to the leader and is not compared."""
    broker = image.brokers.get(member.broker_id)
    if broker is None:
        why = "is not registered"
    elif broker.fenced:
        why = "is fenced"
    elif broker.in_controlled_shutdown:
        why = "is shutting down"
    elif member.broker_epoch not in (-1, broker.broker_epoch):
        why = f"has epoch {broker.broker_epoch}, not {member.broker_epoch}: it has restarted since"
    else:
        return
    raise IneligibleReplica(f"{name}: replica {member.broker_id} {why}")
