"""Decisions about one partition: who leads, who is in its ISR and ELR, and whether a leader gets the ISR it asks for.

One function changes a partition, :func:`change_of`: every decision that touches an ISR or a leader goes through it, so
that the eligible leader replicas are kept and a leader is looked for each time (S19, S20, KIP-966, KAFKA-FACTS 3.9).

Order in which a leader is looked for, each one acceptable (registered, unfenced, not shutting down):

1. a preferred election only: the first replica of the assignment, if it is in the ISR
2. the present leader, if it is in the ISR
3. the first replica in assignment order that is in the ISR; with an empty ISR, in the ELR: the ISR is then that one
4. ISR and ELR empty: the last known leader, the ISR is then that one, and it must recover. Not with another data
   directory than that in which it led, and not without the partition's folder, or with a log that was cut at some
   damage: then it holds less or nothing, and what is committed may come back with the former directory, or others have
   it
5. unclean elections only: the first replica in assignment order, then those that a reassignment is still adding (they
   may hold next to nothing), and last the last known leader that holds nothing; the ISR is then that one, and it must
   recover
6. nobody: the leader is -1. With ELR the ISR may run empty; without, it keeps its last members

AlterPartition, with which a leader asks for another ISR (KIP-497, KAFKA-FACTS 3.5): the checks of
:func:`alter_partition` stand in Kafka's order, for a leader acts on the kind of the error: if its metadata is old it
waits, if a member is ineligible it proposes again. A change is made only from the partition epoch that the leader knows
(compare and set), and only with members that are alive in the incarnation that the leader has seen: the log that caught
up must be the log that joins (KIP-841, KIP-903, KAFKA-14139).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from minikafka import errors as kafka
from minikafka.quorum.assignment import Assignment
from minikafka.quorum.decision import ClusterPolicy, Decision
from minikafka.quorum.image import NO_DIR, BrokerImage, MetadataImage, PartitionImage, TopicImage
from minikafka.quorum.records import MetadataRecord, PartitionChange
from minikafka.replication.high_watermark import effective_min_isr
from minikafka.types import NO_NODE, NodeId, Offset, TopicId
from minikafka.wire import messages as m


class Election(Enum):
    """Which replicas may be chosen."""

    ONLINE = "online"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The outcome of an election: a leader, and what its election does to the ISR."""

    leader: NodeId = NO_NODE
    isr: tuple[NodeId, ...]
    clean: bool = True


def change_of(
    policy: ClusterPolicy,
    image: MetadataImage,
    topic: TopicImage,
    partition: PartitionImage,
    *,
    isr: Iterable[NodeId] | None = None,
    election: Election = Election.ONLINE,
    unclean_stop: NodeId = NO_NODE,
    was: BrokerImage | None = None,
    emptied: NodeId = NO_NODE,
    recovered: bool = False,
    assignment: Assignment | None = None,
) -> PartitionChange | None:
    """What must be recorded so that the partition fits ``image``, or None when nothing must.

    ``image`` already holds what happened to the brokers. ``isr`` is the wanted ISR (None: unchanged); ``unclean_stop``
    names a broker that may have lost its unsynced records and thus leaves the ELR; ``was`` is what was registered of it
    before; ``emptied`` names a broker that came back without this replica's folder, or with less in it than was synced:
    it leaves ISR and ELR, and is no last known leader that may lead again; ``recovered`` says that an uncleanly elected
    leader has recovered; ``assignment`` gives the partition other replicas (KIP-455). Elections are unclean only if
    ``election`` says so: see :func:`election_for`.

    A reassignment completes here, with the change that brings its last replica into the ISR.
    """
    old = partition
    target_isr = tuple(node for node in (old.isr if isr is None else isr) if node != emptied)
    minimum = policy.min_insync_replicas(topic)
    assigned = (assignment or old.assignment).settled(target_isr, minimum)
    # From here on the partition has its new replicas: who is not among them may neither stay in the ISR nor lead.
    partition = _holding(old, assigned)
    target_isr = _in_order(partition, target_isr)
    holds_nothing = emptied != NO_NODE or (was is not None and not image.brokers[was.node_id].has_one_of(was.log_dirs))
    if not target_isr and not policy.eligible_leader_replicas_enable and not holds_nothing:
        target_isr = _in_order(partition, old.isr)
    unsafe = frozenset({unclean_stop, emptied})
    elr = _eligible(policy, topic, partition, target_isr, unsafe)
    choice = _elect(image, partition, target_isr, elr, election, emptied)
    if choice.isr != target_isr and choice.clean:
        assigned = assigned.settled(choice.isr, minimum)
        partition = _holding(old, assigned)
        elr = _eligible(policy, topic, partition, choice.isr, unsafe)
    elif choice.isr != target_isr:
        elr = ()
    is_same_leader = choice.leader == old.leader and not _needs_new_epoch(old, assigned)
    last_known = _last_known(policy, partition, choice, elr, holds_nothing=holds_nothing)
    last_known_dirs = _dirs_of(image, old, last_known, was)
    if last_known == (emptied,) and image.brokers[emptied].has_one_of(last_known_dirs):
        last_known_dirs = (NO_DIR,)
    change = PartitionChange(
        topic_id=topic.topic_id,
        partition=partition.partition,
        isr=_if_new(choice.isr, old.isr),
        leader=None if is_same_leader else choice.leader,
        elr=_if_new(elr, old.elr),
        last_known_elr=_if_new(last_known, old.last_known_elr),
        last_known_dirs=None if last_known_dirs == old.last_known_dirs else last_known_dirs,
        recovered=_recovery(old, choice, reported=recovered),
        replicas=_if_new(assigned.replicas, old.replicas),
        adding=_if_new(assigned.adding, old.adding),
        removing=_if_new(assigned.removing, old.removing),
    )
    nothing = PartitionChange(topic_id=topic.topic_id, partition=partition.partition)
    return None if change == nothing else change


def election_for(policy: ClusterPolicy, topic: TopicImage) -> Election:
    """The election that happens by itself: S20, as the topic's unclean.leader.election.enable says."""
    return Election.UNCLEAN if policy.elects_unclean(topic) else Election.ONLINE


def without_broker(
    policy: ClusterPolicy,
    image: MetadataImage,
    node: NodeId,
    *,
    unclean_stop: bool = False,
    was: BrokerImage | None = None,
) -> Iterator[MetadataRecord]:
    """Take ``node`` out of every ISR, give its partitions other leaders, and after an unclean stop out of every ELR.

    ``image`` already says that the broker is not acceptable. ``was``: its former registration, if it has a new one.
    """
    for topic, partition in image.sorted_partitions():
        if node not in partition.isr and not (unclean_stop and node in partition.elr):
            continue
        change = change_of(
            policy,
            image,
            topic,
            partition,
            isr=(member for member in partition.isr if member != node),
            election=election_for(policy, topic),
            unclean_stop=node if unclean_stop else NO_NODE,
            was=was,
        )
        if change is not None:
            yield change


def leaders_for_leaderless(policy: ClusterPolicy, image: MetadataImage) -> Iterator[MetadataRecord]:
    """A leader for each partition that has none and can have one."""
    for topic, partition in image.sorted_partitions():
        if partition.leader == NO_NODE:
            change = change_of(policy, image, topic, partition, election=election_for(policy, topic))
            if change is not None:
                yield change


def with_broker(
    policy: ClusterPolicy, image: MetadataImage, node: NodeId, missing: frozenset[tuple[TopicId, int]]
) -> Iterator[PartitionChange]:
    """Changes for a broker that has been unfenced: it may lead partitions that have no leader.

    ``missing`` are the replicas whose logs its process had to create, or to cut at some damage. Where the metadata says
    that the broker held one of them, records are lost: the broker is neither in sync nor eligible, and does not count
    as the last known leader.
    """
    for topic, partition in image.sorted_partitions():
        is_lost = (topic.topic_id, partition.partition) in missing and node in (
            *partition.isr,
            *partition.elr,
            *partition.last_known_elr,
        )
        if is_lost or (partition.leader == NO_NODE and node in partition.replicas):
            change = change_of(
                policy,
                image,
                topic,
                partition,
                election=election_for(policy, topic),
                emptied=node if is_lost else NO_NODE,
            )
            if change is not None:
                yield change


def _holding(partition: PartitionImage, assigned: Assignment) -> PartitionImage:
    """``partition`` with other replicas. A last known leader that is none of them is forgotten: its log is deleted, and
    if it is added again it begins with an empty one.
    """
    last_known = tuple(node for node in partition.last_known_elr if node in assigned.replicas)
    return replace(
        partition,
        replicas=assigned.replicas,
        adding=assigned.adding,
        removing=assigned.removing,
        last_known_elr=last_known,
    )


def _needs_new_epoch(partition: PartitionImage, assigned: Assignment) -> bool:
    """Return True if the leader, also the same one, must begin a new epoch with this assignment.

    When replicas go: nobody may count or serve them in the old epoch. When a reassignment ends: the number of in-sync
    replicas that is needed may rise with it, and the leader learns that from the metadata alone. Notified of the new
    ISR by the answer to its proposal, it would go on in between with the old number: 1. [1,2] gains 3,
    min.insync.replicas=3, and 3 joins the ISR; 2. the answer says {1,2,3}; 3. 3 falls behind, the leader proposes
    {1,2}: now 3 is an eligible leader replica, for the ISR is too small to commit; 4. the leader still needs two, and
    commits without 3.
    """
    has_gone = not frozenset(partition.replicas) <= frozenset(assigned.replicas)
    return has_gone or (partition.assignment.under_way and not assigned.under_way)


def _in_order(partition: PartitionImage, nodes: Iterable[NodeId]) -> tuple[NodeId, ...]:
    """``nodes`` in assignment order: an ISR has one spelling only."""
    wanted = frozenset(nodes)
    return tuple(node for node in partition.replicas if node in wanted)


def _if_new(value: tuple[NodeId, ...], old: tuple[NodeId, ...]) -> tuple[NodeId, ...] | None:
    return None if value == old else value


def _eligible(
    policy: ClusterPolicy,
    topic: TopicImage,
    partition: PartitionImage,
    isr: tuple[NodeId, ...],
    unsafe: frozenset[NodeId],
) -> tuple[NodeId, ...]:
    """The ELR beside ``isr`` (KIP-966).

    Below min.insync.replicas the high watermark stands still, so a replica that leaves the ISR from then on (or by
    leaving takes it below) keeps holding all that is committed, unless it is ``unsafe``: it stopped uncleanly, so that
    its page cache may be gone, or its folder is gone.
    """
    if len(isr) >= effective_min_isr(policy.min_insync_replicas(topic), partition.replicas, partition.adding):
        return ()
    if not policy.eligible_leader_replicas_enable:
        # None are made, but an ELR from before the switch is all that an empty ISR can come back from.
        return () if isr else tuple(node for node in partition.elr if node not in unsafe)
    return _in_order(partition, {*partition.elr, *partition.isr} - {*isr} - unsafe)


def _elect(
    image: MetadataImage,
    partition: PartitionImage,
    isr: tuple[NodeId, ...],
    elr: tuple[NodeId, ...],
    election: Election,
    emptied: NodeId,
) -> _Choice:
    """The order in the file's head."""
    electable = isr or elr

    def holds_nothing(node: NodeId) -> bool:
        return node == emptied or image.brokers[node].came_back_empty(partition)

    def may_lead(node: NodeId) -> bool:
        return node in electable and image.eligible(node)

    candidates = (partition.leader, *partition.replicas)
    if election is Election.PREFERRED:
        candidates = (partition.replicas[0], *candidates)
    for node in candidates:
        if may_lead(node):
            return _Choice(leader=node, isr=isr or (node,))
    if not electable:
        for node in partition.last_known_elr:
            if image.eligible(node) and not holds_nothing(node):
                return _Choice(leader=node, isr=(node,), clean=False)
    if election is Election.UNCLEAN:
        living = [node for node in (*partition.assignment.original, *partition.adding) if image.eligible(node)]
        if living:
            node = min(living, key=holds_nothing)
            return _Choice(leader=node, isr=(node,), clean=False)
    return _Choice(isr=isr)


def _last_known(
    policy: ClusterPolicy,
    partition: PartitionImage,
    choice: _Choice,
    elr: tuple[NodeId, ...],
    *,
    holds_nothing: bool,
) -> tuple[NodeId, ...]:
    """The last leader of a partition whose ISR ran empty: set once, forgotten when a replica leads again.

    If a reassignment has dropped it (:func:`_holding`), the last one to leave the ELR takes its place. Without ELR the
    ISR itself names it, except a broker that came back and ``holds_nothing``.
    """
    if choice.leader != NO_NODE:
        return ()
    if choice.isr or partition.last_known_elr or not (policy.eligible_leader_replicas_enable or holds_nothing):
        return partition.last_known_elr
    if partition.leader != NO_NODE:
        return (partition.leader,)
    last = partition.isr or (() if elr else partition.elr)
    return last if len(last) == 1 else ()


def _dirs_of(
    image: MetadataImage, old: PartitionImage, last_known: tuple[NodeId, ...], was: BrokerImage | None
) -> tuple[str, ...]:
    """The data directory in which the last known leader led, recorded when it became that."""
    if last_known == old.last_known_elr:
        return old.last_known_dirs
    brokers = (was if was is not None and was.node_id == node else image.brokers.get(node) for node in last_known)
    return tuple(each for broker in brokers if broker is not None for each in broker.log_dirs)


def _recovery(partition: PartitionImage, choice: _Choice, *, reported: bool) -> bool | None:
    """KIP-704: an uncleanly elected leader recovers until it says that it has."""
    after = choice.clean and (partition.recovered or reported)
    return None if after == partition.recovered else after


def checked_broker(image: MetadataImage, broker_id: NodeId, broker_epoch: Offset) -> BrokerImage:
    """The registration that a request speaks for; StaleBrokerEpoch when it is not the current one, or none is."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise kafka.StaleBrokerEpoch(f"broker {broker_id} is not registered")
    if broker.broker_epoch != broker_epoch:
        raise kafka.StaleBrokerEpoch(
            f"broker {broker_id} says epoch {broker_epoch}, its registration has epoch {broker.broker_epoch}"
        )
    return broker


def alter_partition(
    policy: ClusterPolicy, image: MetadataImage, request: m.AlterPartitionRequest
) -> Decision[m.AlterPartitionResponse]:
    """Decide each partition on its own; an error in one is answered there. Raises StaleBrokerEpoch for the whole."""
    checked_broker(image, request.broker_id, request.broker_epoch)
    records: list[MetadataRecord] = []
    answers: list[m.AlteredPartition] = []
    seen: set[tuple[str, int]] = set()
    for item in request.partitions:
        try:
            if (item.topic_id, item.partition) in seen:
                raise kafka.InvalidRequest(f"{item.topic}-{item.partition} is named twice in one request")
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
        except kafka.ProtocolError as error:
            if isinstance(error, kafka.IneligibleReplica):
                # The leader takes this refusal as the end of its proposal. A copy of the request may come once the
                # member is eligible again, and must find another partition epoch.
                records.append(PartitionChange(topic_id=item.topic_id, partition=item.partition))
            answers.append(m.AlteredPartition.failed(error, topic=item.topic, partition=item.partition))
    return Decision(
        records=tuple(records),
        divisible=True,
        response=m.AlterPartitionResponse(partitions=tuple(answers)),
        cause=f"leader {request.broker_id} proposed the ISR",
    )


def _state(item: m.AlterPartitionItem, partition: PartitionImage) -> m.AlteredPartition:
    return m.AlteredPartition(
        topic=item.topic,
        partition=item.partition,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=partition.isr,
    )


def _checked(image: MetadataImage, sender: NodeId, item: m.AlterPartitionItem) -> tuple[TopicImage, PartitionImage]:
    """The partition that ``item`` may change; the checks of KAFKA-FACTS 3.5 in order."""
    topic = image.topic_by_id(item.topic_id)
    if topic is None:
        raise kafka.UnknownTopicId(f"no topic has the id {item.topic_id} (asked for as {item.topic})")
    if not 0 <= item.partition < len(topic.partitions):
        raise kafka.UnknownTopicOrPartition(f"{topic.name} has no partition {item.partition}")
    partition = topic.partitions[item.partition]
    name = f"{topic.name}-{item.partition}"
    if item.leader_epoch > partition.leader_epoch or item.partition_epoch > partition.partition_epoch:
        raise kafka.NotController(f"{name}: the request knows a newer state than this controller")
    if item.leader_epoch < partition.leader_epoch:
        raise kafka.FencedLeaderEpoch(f"{name}: leader epoch {item.leader_epoch}, now {partition.leader_epoch}")
    if sender != partition.leader:
        raise kafka.InvalidRequest(f"{name}: {sender} does not lead, {partition.leader} does")
    if item.partition_epoch < partition.partition_epoch:
        raise kafka.InvalidUpdateVersion(
            f"{name}: partition epoch {item.partition_epoch}, now {partition.partition_epoch}"
        )
    _check_members(name, partition, item)
    for member in item.new_isr:
        _check_eligible(image, name, member)
    return topic, partition


def _check_members(name: str, partition: PartitionImage, item: m.AlterPartitionItem) -> None:
    members = [member.broker_id for member in item.new_isr]
    if len(set(members)) < len(members) or not set(members) <= set(partition.replicas):
        raise kafka.InvalidRequest(
            f"{name}: the ISR {members} is not a part of the replicas {list(partition.replicas)}"
        )
    if partition.leader not in members:
        raise kafka.InvalidRequest(f"{name}: the ISR {members} lacks the leader {partition.leader} (S13)")
    if not item.recovered and len(members) > 1:
        raise kafka.InvalidRequest(
            f"{name}: a leader that still recovers cannot have an ISR of {len(members)} (KIP-704)"
        )
    if not item.recovered and partition.recovered:
        raise kafka.InvalidRequest(f"{name}: the partition has recovered, it cannot go back")


def _check_eligible(image: MetadataImage, name: str, member: m.IsrMember) -> None:
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
    raise kafka.IneligibleReplica(f"{name}: replica {member.broker_id} {why}")
