"""Reassignments: the replicas of a partition move while it is in use (KIP-455, KAFKA-FACTS 4.3).

A reassignment is begun here and completes by itself, with the ISR change that brings the last replica of the target
into the ISR (:func:`elections.change_of`). Replicas leave a partition in two ways only:

- those that a reassignment removes: when it completes, and the whole target is in the ISR;
- those that it was adding: when it is cancelled, or another target is given on the way. They may have joined the ISR
  meanwhile, so this is refused where it would leave too few in-sync replicas behind: no step of a reassignment takes a
  partition below the in-sync replicas that it needs, or away from the only replicas that hold all that is committed.

Differs from Kafka, which cancels unless an unclean election would follow.
"""

from __future__ import annotations

from minikafka.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NoReassignmentInProgress,
    ProtocolError,
    UnknownTopicOrPartition,
)
from minikafka.quorum.assignment import Assignment
from minikafka.quorum.decision import ClusterPolicy, Decision
from minikafka.quorum.elections import change_of, election_for
from minikafka.quorum.image import MetadataImage, PartitionImage, TopicImage
from minikafka.quorum.records import MetadataRecord, PartitionChange
from minikafka.replication.high_watermark import effective_min_isr
from minikafka.types import NodeId, TopicPartition
from minikafka.wire.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    ReassignedPartition,
    ReassignmentAnswer,
)


def check_replicas(image: MetadataImage, replicas: tuple[NodeId, ...], where: str) -> None:
    """Raise InvalidReplicaAssignment unless a person may ask for these replicas: some, each once, all registered."""
    if not replicas or len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(f"{where}: {list(replicas)} is empty or names a broker twice")
    unknown = sorted(set(replicas) - image.brokers.keys())
    if unknown:
        raise InvalidReplicaAssignment(f"{where}: no broker is registered as {', '.join(map(str, unknown))}")


def alter_partition_reassignments(
    policy: ClusterPolicy, image: MetadataImage, request: AlterPartitionReassignmentsRequest
) -> Decision[AlterPartitionReassignmentsResponse]:
    """Begin, replace or cancel; each partition is decided on its own, an error in one is answered there."""
    records: list[MetadataRecord] = []
    answers: list[ReassignmentAnswer] = []
    seen: set[TopicPartition] = set()
    for item in request.partitions:
        tp = TopicPartition(item.topic, item.partition)
        try:
            if tp in seen:
                raise InvalidRequest(f"{tp} is named twice in one request")
            seen.add(tp)
            change = _decided(policy, image, item, may_change_factor=request.allow_replication_factor_change)
        except ProtocolError as error:
            answers.append(
                ReassignmentAnswer(
                    topic=tp.topic,
                    partition=tp.partition,
                    error_code=error.code,
                    error_message=error.message,
                    outcome=error.outcome,
                )
            )
            continue
        if change is not None:
            records.append(change)
        answers.append(ReassignmentAnswer(topic=tp.topic, partition=tp.partition))
    return Decision(
        records=tuple(records),
        response=AlterPartitionReassignmentsResponse(responses=tuple(answers)),
        cause="a reassignment was asked for",
    )


def list_partition_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """What is under way: of all partitions, or of those asked for. A partition that nobody moves is left out."""
    wanted = None if request.partitions is None else {(each.topic, each.partition) for each in request.partitions}
    return ListPartitionReassignmentsResponse(
        partitions=tuple(
            OngoingReassignment(
                topic=topic.name,
                partition=each.partition,
                replicas=each.replicas,
                adding_replicas=each.adding,
                removing_replicas=each.removing,
            )
            for topic, each in image.sorted_partitions()
            if each.assignment.under_way and (wanted is None or (topic.name, each.partition) in wanted)
        )
    )


def _decided(
    policy: ClusterPolicy, image: MetadataImage, item: ReassignedPartition, *, may_change_factor: bool
) -> PartitionChange | None:
    tp = TopicPartition(item.topic, item.partition)
    topic, partition = image.topics.get(tp.topic), image.partition(tp)
    if topic is None or partition is None:
        raise UnknownTopicOrPartition(f"there is no partition {tp}")
    if item.replicas is None:
        if not partition.assignment.under_way:
            raise NoReassignmentInProgress(f"{tp} is not being reassigned")
        wanted = partition.assignment.cancelled()
    else:
        check_replicas(image, item.replicas, str(tp))
        factor = len(partition.assignment.original)
        if not may_change_factor and len(item.replicas) != factor:
            raise InvalidReplicationFactor(
                f"{tp} has {factor} replicas, {list(item.replicas)} are {len(item.replicas)}, and the request does not "
                "allow another replication factor"
            )
        wanted = partition.assignment.reassigned(item.replicas)
    _check_what_is_dropped(policy, topic, partition, wanted)
    isr = tuple(node for node in partition.isr if node in wanted.replicas)
    return change_of(policy, image, topic, partition, isr=isr, election=election_for(policy, topic), assignment=wanted)


def _check_what_is_dropped(
    policy: ClusterPolicy, topic: TopicImage, partition: PartitionImage, wanted: Assignment
) -> None:
    """Raise InvalidReplicaAssignment where replicas would go that the partition needs; see the file's head."""
    dropped = [node for node in partition.replicas if node not in wanted.replicas]
    if not dropped:
        return
    name = f"{topic.name}-{partition.partition}"
    holders = partition.isr or partition.elr or partition.last_known_elr
    if holders and not any(node in wanted.replicas for node in holders):
        raise InvalidReplicaAssignment(
            f"{name}: only {list(holders)} hold all that is committed, and {dropped} would be dropped; let another "
            "replica catch up first"
        )
    minimum = policy.min_insync_replicas(topic)
    staying = [node for node in partition.isr if node in wanted.replicas]
    after = wanted.settled(staying)
    needed = effective_min_isr(minimum, after.replicas, after.adding)
    had = effective_min_isr(minimum, partition.replicas, partition.adding)
    if len(staying) < needed and len(partition.isr) >= had:
        raise InvalidReplicaAssignment(
            f"{name}: without {dropped} the ISR would be {staying}, and {needed} in-sync replicas are needed; let "
            "another replica catch up first"
        )
