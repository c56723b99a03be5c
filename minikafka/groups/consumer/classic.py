"""Members of the classic protocol in a group of the consumer protocol, and the way between the two (KIP-848).

- *Upgrade*: a member of the consumer protocol joins a stable classic group. Its members become members here with what
  they are assigned, at their generation as epoch; nobody stops reading.
- Such a member goes on with JoinGroup, SyncGroup and Heartbeat. Its generation is its member epoch. JoinGroup reports
  what it owns (the partitions in its subscription) and reconciles; SyncGroup brings what it may use; Heartbeat asks it
  to join again when the coordinator has something for it. An eager member owns nothing when it joins.
- *Downgrade*: the last member of the consumer protocol has left. The group is a classic one again, and rebalances.

Rules for this file: synchronous; each function reads a group or changes a draft, and raises ProtocolError for what is
refused. Kafka's ``GroupMetadataManager`` does the same (``classicGroupJoinToConsumerGroup``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from minikafka import errors as kafka
from minikafka.groups.consumer.group import LEAVE_STATIC, ConsumerGroup, Draft, MemberState, Topics
from minikafka.groups.consumer.heartbeat import Heartbeat, hash_of
from minikafka.groups.consumer.records import (
    ClassicSession,
    Current,
    GroupEpoch,
    MemberMetadata,
    Target,
    TargetEpoch,
    TopicIdPartition,
)
from minikafka.groups.group import Group, Member, State
from minikafka.groups.protocol import PROTOCOL_TYPE, Assignment, Subscription
from minikafka.groups.records import GroupRecord
from minikafka.types import TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire.batch import NO_TIMESTAMP

# ---- the way there and back ------------------------------------------------------------------------------------------


def upgraded(classic: Group, topics: Topics) -> Draft:
    """Return a draft of the group with the classic members in it.

    Raises:
        CoordinatorNotAvailable: The classic group rebalances: once it is stable, the same request succeeds.
        GroupIdNotFound: It cannot be converted: it is no group of consumers, or its assignment makes no sense.
    """
    name = classic.group_id
    if classic.members and classic.protocol_type != PROTOCOL_TYPE:
        raise kafka.GroupIdNotFound(
            f"group {name} is of type {classic.protocol_type!r}: consumers need a group of their own"
        )
    if classic.state is not State.STABLE:
        raise kafka.CoordinatorNotAvailable(f"group {name} rebalances with the classic protocol: try again")
    read = {member_id: _read(classic, member, topics) for member_id, member in classic.members.items()}
    every = Counter(each for _, assigned, _ in read.values() for each in assigned)
    if any(count > 1 for count in every.values()):
        raise kafka.GroupIdNotFound(f"group {name} has a partition that is assigned to two classic members: stop one")
    draft = Draft(ConsumerGroup(name))
    subscribed = {topic for subscription, _, _ in read.values() for topic in subscription.topics if topic in topics}
    # A cooperative rebalance may be half done: what is nobody's is assigned with the first request. Kafka leaves it so.
    is_complete = len(every) == sum(len(topics[each].partitions) for each in subscribed)
    metadata_hash = hash_of(subscribed, topics) if is_complete else 0
    draft.set(GroupEpoch(epoch=classic.generation, metadata_hash=metadata_hash))
    for member_id, member in classic.members.items():
        subscription, assigned, owned = read[member_id]
        # A cooperative member that has not yet received its assignment, or works on what it must give up, still owns
        # partitions that are nobody's by the record. It joins again once it has given them up.
        revoking = owned - every.keys() - draft.group.owners.keys()
        metadata = MemberMetadata(
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=tuple(sorted(set(subscription.topics))),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=_session(member.session_timeout_ms, member.protocols),
        )
        draft.set(metadata, member_id)
        draft.set(Target(partitions=assigned), member_id)
        current = Current(
            epoch=classic.generation,
            previous_epoch=classic.generation,
            state=MemberState.UNREVOKED if revoking else MemberState.STABLE,
            assigned=dict.fromkeys(sorted(assigned), classic.generation),
            revoking=dict.fromkeys(sorted(revoking), classic.generation),
        )
        draft.move(member_id, current)
    draft.set(TargetEpoch(epoch=classic.generation))
    return draft


_Read = tuple[Subscription, frozenset[TopicIdPartition], frozenset[TopicIdPartition]]
"""Of a classic member: its subscription, what it is assigned, and what it owned when it joined."""


def _read(classic: Group, member: Member, topics: Topics) -> _Read:
    try:
        subscription = Subscription.unpacked(member.metadata(classic.protocol or ""))
        given = Assignment.unpacked(member.assignment)
    except ValueError as error:
        raise kafka.GroupIdNotFound(
            f"group {classic.group_id} has a classic member {member.member_id} with an unreadable subscription or "
            "assignment: stop it"
        ) from error
    return subscription, _with_ids(given.partitions, topics), _with_ids(subscription.owned, topics)


def is_all_classic(group: ConsumerGroup) -> bool:
    """Return True if only members of the classic protocol are left."""
    return bool(group.members) and all(each.is_classic for each in group.members.values())


def downgraded(group: ConsumerGroup, topics: Topics) -> Group:
    """Return the classic group that a group of classic members becomes: stable, with what they are assigned.

    Its generation is that of the members: with another one they would lose their partitions before they join again.
    """
    generation = max(group.current(each).epoch for each in group.members)
    classic = Group(group.group_id, PROTOCOL_TYPE, generation=generation)
    for member_id, each in sorted(group.members.items()):
        session = each.classic or ClassicSession(session_timeout_ms=1)
        named = _named(group.current(member_id).assigned, topics)
        classic.add(
            Member(
                member_id=member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=session.session_timeout_ms,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                protocols=tuple(g.GroupProtocol(name=name, metadata=metadata) for name, metadata in session.protocols),
                assignment=Assignment(partitions=named).packed(),
                expires_at=float("inf"),
            )
        )
    classic.protocol = classic.elected_protocol()
    classic.state = State.STABLE
    classic.reads = classic.topics()
    return classic


def record_of(classic: Group) -> GroupRecord:
    """The record of a converted group with its members' assignments.

    Without a time of its state: the group has to rebalance, and a coordinator that loads this record sees that by it.
    """
    return classic.record({each.member_id: each.assignment for each in classic.members.values()}, NO_TIMESTAMP)


# ---- what such a member sends ----------------------------------------------------------------------------------------


def join(rules: Heartbeat, draft: Draft, request: g.JoinGroupRequest, new_id: str) -> g.JoinGroupResponse:
    """JoinGroup: the member reports what it owns, and reconciles. ``new_id`` is for a member without an id."""
    group = draft.group
    subscription = _subscription(group, request)
    member_id, is_back = _enter(rules, draft, request, new_id)
    owned = frozenset() if is_back else _with_ids(subscription.owned, rules.topics)
    old = group.members.get(member_id)
    now = replace(
        old or MemberMetadata(),
        instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=tuple(sorted(set(subscription.topics).difference(request.hidden_topics))),
        # Of a static member that used the consumer protocol before: classic members name their topics.
        regex=None,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=_session(request.session_timeout_ms, request.protocols),
    )
    if now != old:
        draft.set(now, member_id)
    before = old or MemberMetadata()
    is_changed = not group.epoch or (before.topics, before.regex) != (now.topics, now.regex)
    current = rules.advance(draft, member_id, owned, is_changed=is_changed)
    return g.JoinGroupResponse(
        generation_id=current.epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=request.protocols[0].name,
        member_id=member_id,
    )


def check_newcomer(rules: Heartbeat, group: ConsumerGroup, request: g.JoinGroupRequest) -> None:
    """Raise what keeps a client from joining that has no member id yet."""
    _subscription(group, request)
    rules.check_size(group)


def _subscription(group: ConsumerGroup, request: g.JoinGroupRequest) -> Subscription:
    """What a classic member subscribes to. Raises InconsistentGroupProtocol."""
    name, names = group.group_id, [each.name for each in request.protocols]
    if request.protocol_type != PROTOCOL_TYPE or not _shared(group, names):
        raise kafka.InconsistentGroupProtocol(
            f"group {name} is of type {PROTOCOL_TYPE!r}, and its classic members share none of {names}"
        )
    try:
        return Subscription.unpacked(request.protocols[0].metadata)
    except ValueError as error:
        raise kafka.InconsistentGroupProtocol(
            f"the subscription for {names[0]} cannot be read ({error}): group {name} uses the consumer protocol"
        ) from error


def _enter(rules: Heartbeat, draft: Draft, request: g.JoinGroupRequest, new_id: str) -> tuple[str, bool]:
    """The member's id, and whether it is a static member that is back and so owns nothing."""
    group, instance_id = draft.group, request.group_instance_id
    holder = group.holder_of(instance_id) if instance_id is not None else None
    if request.member_id:
        _check_member(group, request.member_id, instance_id)
        return request.member_id, False
    if holder is None:
        rules.check_size(group)
        return new_id, False
    member, target, current = group.members[holder], group.target(holder), group.current(holder)
    if not member.is_classic and current.epoch != LEAVE_STATIC:
        raise kafka.UnreleasedInstanceId(
            f"instance {instance_id} of group {group.group_id} is in use by member {holder}"
        )
    draft.remove(holder)
    draft.set(member, new_id)
    draft.set(Target(partitions=target), new_id)
    draft.move(new_id, replace(current, epoch=0, previous_epoch=0, state=MemberState.STABLE, revoking={}))
    return new_id, True


def sync(group: ConsumerGroup, request: g.SyncGroupRequest, topics: Topics) -> g.SyncGroupResponse:
    """SyncGroup: what the member may use by now. RebalanceInProgress is returned, as by :func:`heartbeat`."""
    _check_member(group, request.member_id, request.group_instance_id)
    current = group.current(request.member_id)
    check_generation(group, request.member_id, request.generation_id)
    session = group.members[request.member_id].classic
    name = session.protocols[0][0] if session is not None and session.protocols else None
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, name):
        raise kafka.InconsistentGroupProtocol(f"group {group.group_id} uses {PROTOCOL_TYPE}, {name}: join again")
    if group.epoch > current.epoch and current.state != MemberState.UNREVOKED:
        return g.SyncGroupResponse.with_error(_asked_to_join(group))
    assignment = Assignment(partitions=_named(current.assigned, topics)).packed()
    return g.SyncGroupResponse(protocol_type=PROTOCOL_TYPE, protocol_name=name, assignment=assignment)


def heartbeat(group: ConsumerGroup, request: g.HeartbeatRequest) -> kafka.ProtocolError | None:
    """Heartbeat: RebalanceInProgress is returned, for the member lives; what is refused is raised."""
    _check_member(group, request.member_id, request.group_instance_id)
    check_generation(group, request.member_id, request.generation_id)
    return _asked_to_join(group) if must_rejoin(group, request.member_id) else None


def _asked_to_join(group: ConsumerGroup) -> kafka.ProtocolError:
    return kafka.RebalanceInProgress(f"group {group.group_id} has a newer assignment: join again")


def must_rejoin(group: ConsumerGroup, member_id: str) -> bool:
    """Return True if a classic member has to join again, to give partitions up or to receive some."""
    current = group.current(member_id)
    if current.epoch < group.epoch or current.state == MemberState.UNREVOKED:
        return True
    missing = group.target(member_id) - current.assigned.keys()
    return any(group.owners.get(each, member_id) == member_id for each in missing)


def check_generation(group: ConsumerGroup, member_id: str, generation: int) -> None:
    """ILLEGAL_GENERATION unless it is the member's epoch."""
    epoch = group.current(member_id).epoch
    if generation != epoch:
        raise kafka.IllegalGeneration(
            f"member {member_id} of group {group.group_id} is in generation {epoch}, not {generation}: join again"
        )


def _check_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
    if instance_id is not None:
        holder = group.holder_of(instance_id)
        if holder is not None and holder != member_id:
            raise kafka.FencedInstanceId(f"instance {instance_id} of group {group.group_id} is another member now")
    member = group.members.get(member_id)
    if member is None or not member.is_classic:
        raise kafka.UnknownMemberId(f"group {group.group_id} has no classic member {member_id!r}: join again")


def _shared(group: ConsumerGroup, names: Iterable[str]) -> bool:
    """Return True if all classic members support a common assignor: a downgrade needs one."""
    left = set(names)
    for each in group.members.values():
        if each.classic is not None:
            left &= {name for name, _ in each.classic.protocols}
    return bool(left)


def _session(timeout_ms: int, protocols: Iterable[g.GroupProtocol]) -> ClassicSession:
    return ClassicSession(
        session_timeout_ms=timeout_ms, protocols=tuple((each.name, bytes(each.metadata)) for each in protocols)
    )


def _with_ids(partitions: Iterable[TopicPartition], topics: Topics) -> frozenset[TopicIdPartition]:
    """Partitions by topic id; those of topics that are gone are left out."""
    return frozenset(
        TopicIdPartition(topics[topic].topic_id, number) for topic, number in partitions if topic in topics
    )


def _named(partitions: Iterable[TopicIdPartition], topics: Topics) -> tuple[TopicPartition, ...]:
    names = {each.topic_id: name for name, each in topics.items()}
    return tuple(sorted(TopicPartition(names[topic], number) for topic, number in partitions if topic in names))
