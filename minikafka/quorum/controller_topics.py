"""Topics at the controller: created, enlarged, deleted, and moved to other brokers (KAFKA-FACTS 3.9, 4.3; S18, S28).

Each topic of a request is decided on its own, in order, and sees those before it; an error in one is answered there.

Reassignments (KIP-455): the replicas of a partition move while it is in use. A reassignment is begun here and completes
by itself, with the ISR change that brings its last new replica into the ISR (:func:`elections.change_of`). Replicas
leave a partition in two ways only:

- those that a reassignment removes: when it completes, and enough of the target is in the ISR (``assignment.py``);
- those that it was adding: when it is cancelled, or another target is given on the way. They may have joined the ISR
  meanwhile, so this is refused where it would leave too few in-sync replicas behind: no step of a reassignment takes a
  partition below the in-sync replicas that it needs, or away from the only replicas that hold all that is committed.

Differs from Kafka, which cancels unless an unclean election would follow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Final, TypeAlias

from minikafka import errors as kafka
from minikafka.config import parse_topic
from minikafka.quorum.assignment import Assignment, place
from minikafka.quorum.decision import ClusterPolicy, Decision
from minikafka.quorum.elections import change_of, election_for
from minikafka.quorum.image import MetadataImage, PartitionImage, TopicImage
from minikafka.quorum.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChange,
    PartitionRecord,
    RemoveTopic,
    TopicRecord,
)
from minikafka.replication.high_watermark import effective_min_isr
from minikafka.types import INTERNAL_TOPICS, METADATA_TOPIC, NO_TOPIC_ID, NodeId, TopicId, TopicPartition
from minikafka.wire import admin as a
from minikafka.wire import messages as m
from minikafka.wire.limits import KAFKA_TEXT_BYTES_MAX

_DOT_OR_UNDERSCORE = re.compile("[._]")

PARTS_LOOKED_UP_MAX: Final = 6
"""Of a topic's name, between dots and underscores: 32 names could be the same in metrics."""


def check_replicas(image: MetadataImage, replicas: tuple[NodeId, ...], where: str) -> None:
    """Raise InvalidReplicaAssignment unless a person may ask for these replicas: some, each once, all registered."""
    if not replicas or len(set(replicas)) < len(replicas):
        raise kafka.InvalidReplicaAssignment(f"{where}: {list(replicas)} is empty or names a broker twice")
    unknown = sorted(set(replicas) - image.brokers.keys())
    if unknown:
        raise kafka.InvalidReplicaAssignment(f"{where}: no broker is registered as {', '.join(map(str, unknown))}")


def alter_partition_reassignments(
    policy: ClusterPolicy, image: MetadataImage, request: a.AlterPartitionReassignmentsRequest
) -> Decision[a.AlterPartitionReassignmentsResponse]:
    """Begin, replace or cancel; each partition is decided on its own, an error in one is answered there."""
    records: list[MetadataRecord] = []
    answers: list[a.ReassignmentAnswer] = []
    seen: set[TopicPartition] = set()
    for item in request.partitions:
        tp = TopicPartition(item.topic, item.partition)
        try:
            if tp in seen:
                raise kafka.InvalidRequest(f"{tp} is named twice in one request")
            seen.add(tp)
            change = _decided(policy, image, item, may_change_factor=request.allow_replication_factor_change)
        except kafka.ProtocolError as error:
            answers.append(a.ReassignmentAnswer.failed(error, topic=tp.topic, partition=tp.partition))
            continue
        if change is not None:
            records.append(change)
        answers.append(a.ReassignmentAnswer(topic=tp.topic, partition=tp.partition))
    return Decision(
        records=tuple(records),
        divisible=True,
        response=a.AlterPartitionReassignmentsResponse(responses=tuple(answers)),
        cause="a client asked for a reassignment",
    )


def list_partition_reassignments(
    image: MetadataImage, request: a.ListPartitionReassignmentsRequest
) -> a.ListPartitionReassignmentsResponse:
    """What is under way: of all partitions, or of those asked for. A partition that nobody moves is left out."""
    wanted = None if request.partitions is None else {(each.topic, each.partition) for each in request.partitions}
    return a.ListPartitionReassignmentsResponse(
        partitions=tuple(
            a.OngoingReassignment(
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
    policy: ClusterPolicy, image: MetadataImage, item: a.ReassignedPartition, *, may_change_factor: bool
) -> PartitionChange | None:
    tp = TopicPartition(item.topic, item.partition)
    topic, partition = image.topics.get(tp.topic), image.partition(tp)
    if topic is None or partition is None:
        raise kafka.UnknownTopicOrPartition(f"there is no partition {tp}")
    if item.replicas is None:
        if not partition.assignment.under_way:
            raise kafka.NoReassignmentInProgress(f"{tp} is not being reassigned")
        wanted = partition.assignment.cancelled()
    else:
        check_replicas(image, item.replicas, str(tp))
        factor = len(partition.assignment.original)
        if not may_change_factor and len(item.replicas) != factor:
            raise kafka.InvalidReplicationFactor(
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
        raise kafka.InvalidReplicaAssignment(
            f"{name}: only {list(holders)} hold all that is committed, and {dropped} would be dropped; let another "
            "replica catch up first"
        )
    minimum = policy.min_insync_replicas(topic)
    staying = [node for node in partition.isr if node in wanted.replicas]
    after = wanted.settled(staying, minimum)
    needed = effective_min_isr(minimum, after.replicas, after.adding)
    had = effective_min_isr(minimum, partition.replicas, partition.adding)
    if len(staying) < needed and len(partition.isr) >= had:
        raise kafka.InvalidReplicaAssignment(
            f"{name}: without {dropped} the ISR would be {staying}, and {needed} in-sync replicas are needed; let "
            "another replica catch up first"
        )


# What a request creates is one batch of the metadata log: 10,000 partition records with few replicas stay below 2 MiB.
# Kafka has the same limit.
PARTITIONS_PER_REQUEST_MAX = 10_000

TOPIC_NAME_LENGTH_MAX = 249
"""Kafka's: a directory's name is the topic's with a suffix, and file systems end at 255."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise InvalidTopic unless a topic may have this name."""
    if not name:
        raise kafka.InvalidTopic("a topic needs a name")
    if name in {".", ".."}:
        raise kafka.InvalidTopic(f"{name!r} cannot be the name of a directory")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise kafka.InvalidTopic(f"the topic's name has {len(name)} characters, {TOPIC_NAME_LENGTH_MAX} are allowed")
    if _LEGAL_NAME.fullmatch(name) is None:
        raise kafka.InvalidTopic(f"topic {name!r}: letters a-z and A-Z, digits, '.', '_' and '-' are allowed")
    if name == METADATA_TOPIC:
        raise kafka.InvalidTopic(f"{name} is the quorum's own log")


def check_setting_lengths(settings: Mapping[str, str]) -> None:
    """Raise InvalidConfig for a value that is too long for Kafka's protocol: DescribeConfigs could not show it."""
    for name, value in settings.items():
        size = len(value.encode())
        if size > KAFKA_TEXT_BYTES_MAX:
            raise kafka.InvalidConfig(
                f"{name} has {size} bytes, {KAFKA_TEXT_BYTES_MAX} at most: shorten it", setting=name
            )


Charge: TypeAlias = Callable[[int], None]
"""Counts so many partitions that a request creates or deletes. Raises ThrottlingQuotaExceeded: they are refused."""


def free_of_charge(_partitions: int) -> None:
    """The :data:`Charge` of a client without a quota."""


def create_topics(
    policy: ClusterPolicy,
    image: MetadataImage,
    request: m.CreateTopicsRequest,
    topic_ids: Iterator[TopicId],
    charge: Charge = free_of_charge,
) -> Decision[m.CreateTopicsResponse]:
    """Create each topic that can be; ``topic_ids`` gives random ones. With ``validate_only`` nothing is recorded."""
    named = Counter(topic.name for topic in request.topics)
    similar: dict[str, str] = {}
    """Of this request: by its name in metrics, the topic that is about to be created."""
    ignoring = [node for node, broker in image.brokers.items() if broker.ignores_case]
    folders = {each.lower(): each for each in (*image.topics, *INTERNAL_TOPICS, METADATA_TOPIC)} if ignoring else {}
    """Topics by their folders on disks that ignore case, if a broker has one."""
    records: list[MetadataRecord] = []
    answers: list[m.CreatedTopic] = []
    partitions_left = PARTITIONS_PER_REQUEST_MAX
    for topic in request.topics:
        try:
            if named[topic.name] > 1:
                raise kafka.InvalidRequest(f"topic {topic.name!r} is named more than once in one request")
            _check_free(image, similar, topic.name)
            other = folders.get(topic.name.lower(), topic.name)
            if other != topic.name:
                raise kafka.InvalidTopic(
                    f"topic {topic.name!r} would share a folder with {other!r}: the file system of broker "
                    f"{ignoring[0]}'s data directory ignores case; choose another name, or move its log.dirs"
                )
            configs = dict(sorted(topic.configs.items()))
            parse_topic(configs, base=policy.topic_defaults)
            check_setting_lengths(configs)
            placed = tuple(_placed(policy, image, topic, partitions_left))
            charge(len(placed))
        except kafka.ProtocolError as error:
            answers.append(m.CreatedTopic.failed(error, name=topic.name))
            continue
        partitions_left -= len(placed)
        similar[_metric_name(topic.name)] = topic.name
        if ignoring:
            folders[topic.name.lower()] = topic.name
        topic_id = _unused(image, topic_ids)
        answers.append(
            m.CreatedTopic(
                name=topic.name,
                topic_id=None if request.validate_only else topic_id,
                num_partitions=len(placed),
                replication_factor=len(placed[0]),
            )
        )
        if not request.validate_only:
            records.append(TopicRecord(name=topic.name, topic_id=topic_id))
            records.extend(ConfigRecord(resource_name=topic.name, name=name, value=configs[name]) for name in configs)
            records.extend(_partition(image, topic_id, number, replicas) for number, replicas in enumerate(placed))
    return Decision(
        records=tuple(records), response=m.CreateTopicsResponse(topics=tuple(answers)), cause="at a client's request"
    )


def delete_topics(
    policy: ClusterPolicy, image: MetadataImage, request: m.DeleteTopicsRequest, charge: Charge = free_of_charge
) -> Decision[m.DeleteTopicsResponse]:
    """Delete each topic that exists, with its id where the request has one.

    Raises PolicyViolation for the whole when delete.topic.enable is false.
    """
    if not policy.delete_topic_enable:
        raise kafka.PolicyViolation("topics may not be deleted: delete.topic.enable=false")
    records: list[MetadataRecord] = []
    answers: list[m.DeletedTopic] = []
    named_times = Counter(request.topics)
    for name in named_times:
        topic = image.topics.get(name)
        try:
            if named_times[name] > 1:
                raise kafka.InvalidRequest(f"topic {name!r} is named more than once in one request")
            named = request.topic_ids.get(name)
            if named is not None and (topic is None or topic.topic_id != named):
                raise kafka.UnknownTopicId(f"there is no topic {name!r} with the id {named}")
            if topic is None:
                raise kafka.UnknownTopicOrPartition(f"there is no topic {name!r}")
            charge(len(topic.partitions))
        except kafka.ProtocolError as error:
            answers.append(m.DeletedTopic.failed(error, name=name))
            continue
        records.append(RemoveTopic(topic_id=topic.topic_id))
        answers.append(m.DeletedTopic(name=name, topic_id=topic.topic_id))
    return Decision(
        records=tuple(records),
        divisible=True,
        response=m.DeleteTopicsResponse(topics=tuple(answers)),
        cause="at a client's request",
    )


def create_partitions(
    image: MetadataImage, request: a.CreatePartitionsRequest, charge: Charge = free_of_charge
) -> Decision[a.CreatePartitionsResponse]:
    """Give each topic more partitions; the new ones begin empty, and keys may land elsewhere than before."""
    named = Counter(topic.name for topic in request.topics)
    records: list[MetadataRecord] = []
    answers: list[a.CreatedPartitions] = []
    partitions_left = PARTITIONS_PER_REQUEST_MAX
    for asked in request.topics:
        try:
            if named[asked.name] > 1:
                raise kafka.InvalidRequest(f"topic {asked.name!r} is named more than once in one request")
            topic = image.topics.get(asked.name)
            if topic is None:
                raise kafka.UnknownTopicOrPartition(f"there is no topic {asked.name!r}")
            if asked.name in INTERNAL_TOPICS:
                raise kafka.InvalidPartitions(
                    f"topic {asked.name!r} keeps its {len(topic.partitions)} partitions: with another number, other "
                    "coordinators would be responsible for groups or transactional ids, and know nothing of them"
                )
            placed = _placed_in_addition(image, topic, asked, partitions_left)
            charge(len(placed))
        except kafka.ProtocolError as error:
            answers.append(a.CreatedPartitions.failed(error, name=asked.name))
            continue
        partitions_left -= len(placed)
        answers.append(a.CreatedPartitions(name=asked.name))
        first = len(topic.partitions)
        records.extend(
            _partition(image, topic.topic_id, number, replicas) for number, replicas in enumerate(placed, start=first)
        )
    return Decision(
        records=() if request.validate_only else tuple(records),
        response=a.CreatePartitionsResponse(results=tuple(answers)),
        cause="a client asked for more partitions",
    )


def _placed_in_addition(
    image: MetadataImage, topic: TopicImage, asked: a.NewPartitions, partitions_left: int
) -> tuple[tuple[NodeId, ...], ...]:
    """The replicas of each new partition: S18 goes on where it stopped, with the topic's replication factor."""
    present = len(topic.partitions)
    new = asked.count - present
    if new <= 0:
        raise kafka.InvalidPartitions(f"topic {topic.name!r} has {present} partitions: {asked.count} would not be more")
    if new > partitions_left:
        raise kafka.InvalidPartitions(
            f"topic {topic.name!r}: at most {PARTITIONS_PER_REQUEST_MAX} partitions in one request"
        )
    factor = len(topic.partitions[0].assignment.target)
    if asked.assignments is None:
        return place(image.eligible_brokers(), partitions=new, replication_factor=factor, start=present)
    if len(asked.assignments) != new:
        raise kafka.InvalidReplicaAssignment(
            f"topic {topic.name!r}: {len(asked.assignments)} assignments for {new} new partitions"
        )
    placed = tuple(each.broker_ids for each in asked.assignments)
    for number, replicas in enumerate(placed, start=present):
        where = f"topic {topic.name!r}, partition {number}"
        check_replicas(image, replicas, where)
        if len(replicas) != factor:
            raise kafka.InvalidReplicaAssignment(f"{where}: {list(replicas)} are not {factor}, as partition 0 has")
        _check_alive(image, replicas, where)
    return placed


def _check_alive(image: MetadataImage, replicas: tuple[NodeId, ...], where: str) -> None:
    if not any(map(image.eligible, replicas)):
        raise kafka.InvalidReplicaAssignment(f"{where}: all of {list(replicas)} are fenced or shutting down")


def _metric_name(name: str) -> str:
    """Kafka's metrics print '.' as '_': two topics that differ only there would share them."""
    return name.replace(".", "_")


def _check_free(image: MetadataImage, similar: dict[str, str], name: str) -> None:
    check_topic_name(name)
    if name in image.topics:
        raise kafka.TopicAlreadyExists(f"topic {name!r} exists")
    other = similar.get(_metric_name(name)) or _similar_topic(image, name)
    if other is not None:
        raise kafka.InvalidTopic(f"topic {name!r} collides with {other!r}: '.' and '_' count as one in metric names")


def _similar_topic(image: MetadataImage, name: str) -> str | None:
    """An existing topic with the same name in metrics.

    Usually the few names that it could have are looked up: a search in all topics would make the creation of many
    topics, one after the other, slower with each.
    """
    parts = _DOT_OR_UNDERSCORE.split(name)
    if len(parts) == 1:
        return None
    if len(parts) <= PARTS_LOOKED_UP_MAX:
        others = ["".join(each) for each in product(*([part + ".", part + "_"] for part in parts[:-1]), parts[-1:])]
        return next((each for each in others if each in image.topics), None)
    metric_name = _metric_name(name)
    return next((each for each in sorted(image.topics) if _metric_name(each) == metric_name), None)


def _unused(image: MetadataImage, topic_ids: Iterator[TopicId]) -> TopicId:
    return next(each for each in topic_ids if each != NO_TOPIC_ID and each not in image.topic_names)


def _placed(
    policy: ClusterPolicy, image: MetadataImage, topic: m.NewTopic, partitions_left: int
) -> Iterator[tuple[NodeId, ...]]:
    if topic.assignments:
        yield from _assigned(image, topic, partitions_left)
        return
    partitions = policy.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    if not 1 <= partitions <= partitions_left:
        raise kafka.InvalidPartitions(
            f"topic {topic.name!r}: {partitions} partitions; at least 1 and, in one request, at most "
            f"{PARTITIONS_PER_REQUEST_MAX} are allowed"
        )
    factor = policy.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    yield from place(image.eligible_brokers(), partitions=partitions, replication_factor=factor)


def _assigned(image: MetadataImage, topic: m.NewTopic, partitions_left: int) -> Iterator[tuple[NodeId, ...]]:
    """A manual assignment, checked: partitions 0 to n-1, known brokers, one replication factor, someone to lead."""
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise kafka.InvalidRequest(
            f"topic {topic.name!r}: either an assignment or numbers of partitions and replicas, not both"
        )
    by_number = sorted(topic.assignments, key=lambda each: each.partition)
    if [each.partition for each in by_number] != list(range(len(by_number))):
        raise kafka.InvalidReplicaAssignment(
            f"topic {topic.name!r}: partitions are numbered from 0 without gap or repeat"
        )
    if len(by_number) > partitions_left:
        raise kafka.InvalidPartitions(
            f"topic {topic.name!r}: at most {PARTITIONS_PER_REQUEST_MAX} partitions in one request"
        )
    for each in by_number:
        brokers, where = each.broker_ids, f"topic {topic.name!r}, partition {each.partition}"
        check_replicas(image, brokers, where)
        if len(brokers) != len(by_number[0].broker_ids):
            raise kafka.InvalidReplicaAssignment(f"{where}: all partitions need the same number of replicas")
        _check_alive(image, brokers, where)
        yield brokers


def _partition(image: MetadataImage, topic_id: TopicId, number: int, replicas: tuple[NodeId, ...]) -> PartitionRecord:
    """A new partition: in sync are those that live, the first of them leads, both epochs are 0."""
    isr = tuple(filter(image.eligible, replicas))
    return PartitionRecord(topic_id=topic_id, partition=number, replicas=replicas, isr=isr, leader=isr[0])
