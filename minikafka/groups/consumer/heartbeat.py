"""One ConsumerGroupHeartbeat on one group: join, stay, leave; and the removal of members whose time has run out.

Steps of a heartbeat, as in Kafka: find the member and check its epoch, merge what it says of itself, raise the group
epoch if the wanted assignment may have changed, assign, reconcile this member.

Rules for this file: synchronous; each function changes the draft only. A refused request raises ProtocolError, and its
draft is dropped.

A partition moves in steps: its owner is no longer assigned it, the owner reports that it has revoked it, it is free,
and the next heartbeat of its new owner assigns it. So no two members may ever use a partition at the same time. Kafka's
``CurrentAssignmentBuilder`` does the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from minikafka import errors as kafka
from minikafka.coordination.packing import by_topic
from minikafka.coordination.regexes import COST_MAX
from minikafka.groups.consumer.assignors import ASSIGNORS, Subscriber
from minikafka.groups.consumer.group import (
    JOIN,
    LEAVE,
    LEAVE_STATIC,
    ConsumerGroup,
    Draft,
    MemberState,
    Regexes,
    Topics,
    check_regex,
)
from minikafka.groups.consumer.records import (
    REGEX,
    Current,
    GroupEpoch,
    MemberMetadata,
    Regex,
    Target,
    TargetEpoch,
    TopicIdPartition,
)
from minikafka.groups.limits import INT32_MAX, NAME_BYTES_MAX, GroupSettings, check_group_id
from minikafka.wire import group_messages as g
from minikafka.wire.batch import NO_TIMESTAMP
from minikafka.wire.transaction_messages import TxnOffsetCommitRequest


def reconciled(
    group: ConsumerGroup,
    member_id: str,
    owned: frozenset[TopicIdPartition] | None,
    *,
    subscribed: frozenset[str] | None = None,
) -> Current:
    """The member's next step.

    Args:
        group: the group, with its newest target assignment.
        member_id: the member whose heartbeat this is.
        owned: the partitions that it reports to own; None: unknown, so it may still own all that it had.
        subscribed: the ids of the topics that it reads now; None: the same as before.
    """
    current = group.current(member_id)
    if current.state == MemberState.UNREVOKED:
        if owned is None or not owned.isdisjoint(current.revoking):
            if subscribed is None or all(each.topic_id in subscribed for each in current.assigned):
                return current
            kept = {each: at for each, at in current.assigned.items() if each.topic_id in subscribed}
            left = {each: at for each, at in current.assigned.items() if each.topic_id not in subscribed}
            return replace(current, previous_epoch=current.epoch, assigned=kept, revoking={**current.revoking, **left})
        return _next(group, member_id, owned, current.epoch + 1)
    if current.state == MemberState.STABLE and current.epoch == group.assignment_epoch:
        return current
    return _next(group, member_id, owned, current.epoch)


def _next(group: ConsumerGroup, member_id: str, owned: frozenset[TopicIdPartition] | None, epoch: int) -> Current:
    current, target = group.current(member_id), group.target(member_id)
    kept = {each: at for each, at in current.assigned.items() if each in target}
    revoking = {each: at for each, at in current.assigned.items() if each not in target}
    if revoking and (owned is None or not owned.isdisjoint(revoking)):
        # As in Kafka, the epoch before counts no more: a heartbeat with it that arrives late does not know of these
        # partitions, and would confirm their revocation.
        return Current(
            epoch=epoch, previous_epoch=current.epoch, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking
        )
    reached = group.assignment_epoch
    missing = target - kept.keys()
    free = {each for each in missing if group.owners.get(each, member_id) == member_id}
    return Current(
        epoch=reached,
        previous_epoch=current.epoch if reached != current.epoch else current.previous_epoch,
        state=MemberState.STABLE if free == missing else MemberState.UNRELEASED,
        assigned=kept | dict.fromkeys(sorted(free), reached),
    )


HASH_BYTES = 8

UNKNOWN_REGEXES_MAX = 3
"""Expressions that one heartbeat compiles, in 13 ms each at worst."""


# ---- what a request may say ------------------------------------------------------------------------------------------


def check_heartbeat(request: g.ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> None:
    """INVALID_GROUP_ID, INVALID_REQUEST, UNSUPPORTED_ASSIGNOR or INVALID_REGULAR_EXPRESSION; else nothing."""
    check_group_id(request.group_id)
    _check_texts(request)
    epoch = request.member_epoch
    if not request.member_id:
        raise kafka.InvalidRequest("member_id is empty; send the UUID that the client made for itself")
    if epoch < LEAVE_STATIC:
        raise kafka.InvalidRequest(f"member_epoch={epoch} is below -2; send 0 to join, -1 or -2 to leave")
    if epoch == LEAVE_STATIC and request.instance_id is None:
        raise kafka.InvalidRequest("member_epoch=-2 needs instance_id; only static members leave for a restart")
    if epoch == JOIN:
        _check_join(request)
    if request.server_assignor is not None and request.server_assignor not in settings.consumer_assignors:
        raise kafka.UnsupportedAssignor(
            f"assignor {request.server_assignor!r} is not offered; use one of {', '.join(settings.consumer_assignors)} "
            "(the brokers' group.consumer.assignors)"
        )
    if request.subscribed_topic_regex:
        check_regex(request.subscribed_topic_regex)


def _check_join(request: g.ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise kafka.InvalidRequest("rebalance_timeout_ms of a joining member is missing; send 0 or more")
    if request.topic_partitions is None or request.topic_partitions:
        raise kafka.InvalidRequest("topic_partitions of a joining member must be an empty list; it owns nothing")
    if request.subscribed_topic_names is None and not request.subscribed_topic_regex:
        raise kafka.InvalidRequest("subscribed_topic_names of a joining member is missing; send the topics to read")


def _check_texts(request: g.ConsumerGroupHeartbeatRequest) -> None:
    texts = [("member_id", request.member_id), ("client_id", request.client_id), ("client_host", request.client_host)]
    texts += [("subscribed_topic_names", each) for each in request.subscribed_topic_names or ()]
    for name, given in (("instance_id", request.instance_id), ("rack_id", request.rack_id)):
        if given is not None:
            if not given:
                raise kafka.InvalidRequest(f"{name} is empty; leave it out or send a value")
            texts.append((name, given))
    for name, text in texts:
        if len(text.encode()) > NAME_BYTES_MAX:
            raise kafka.InvalidRequest(f"{name} has {len(text.encode())} bytes, {NAME_BYTES_MAX} at most; shorten it")
    if not -1 <= request.rebalance_timeout_ms <= INT32_MAX:
        raise kafka.InvalidRequest(
            f"rebalance_timeout_ms={request.rebalance_timeout_ms}; send 0 to {INT32_MAX}, or -1 for unchanged"
        )


# ---- heartbeat -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Answers heartbeats by the coordinator's settings and metadata."""

    settings: GroupSettings
    topics: Topics
    regexes: Regexes
    wall_ms: int = NO_TIMESTAMP
    matched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What each of the group's regular expressions matched when it was resolved last, hidden topics among it."""

    def answer(self, draft: Draft, request: g.ConsumerGroupHeartbeatRequest) -> g.ConsumerGroupHeartbeatResponse:
        """What a checked request changes, and the response once that is committed."""
        if request.member_epoch in (LEAVE, LEAVE_STATIC):
            return self._leave(draft, request)
        group, member_id = draft.group, request.member_id
        was_member = member_id in group.members
        owned = self._find(draft, request)
        is_changed = self._merge(draft, request)
        is_changed |= self._resolve(draft, group.members[member_id].regex, frozenset(request.hidden_topics))
        before = group.current(member_id)
        current = self.advance(draft, member_id, owned, is_changed=is_changed, is_new=not was_member)
        is_full = request.member_epoch == JOIN or (
            request.rebalance_timeout_ms != -1
            and request.subscribed_topic_names is not None
            and request.topic_partitions is not None
        )
        return g.ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self.settings.consumer_interval_ms(len(group.members)),
            assignment=flat(current.assigned) if is_full or current.assigned.keys() != before.assigned.keys() else None,
        )

    def advance(
        self,
        draft: Draft,
        member_id: str,
        owned: frozenset[TopicIdPartition] | None,
        *,
        is_changed: bool,
        is_new: bool = False,
    ) -> Current:
        """Raise the group epoch if needed, assign, and return the member's next step (:func:`reconciled`)."""
        group = draft.group
        before = group.current(member_id)
        metadata_hash = hash_of(group.topics(), self.topics)
        if is_changed or metadata_hash != group.metadata_hash:
            draft.set(GroupEpoch(epoch=group.epoch + 1, metadata_hash=metadata_hash))
        if group.epoch > group.assignment_epoch:
            self._assign(draft)
        subscribed = None
        if is_changed:
            names = group.topics_of(member_id) & self.topics.keys()
            subscribed = frozenset(self.topics[each].topic_id for each in names)
        current = reconciled(group, member_id, owned, subscribed=subscribed)
        if current != before or is_new:
            draft.move(member_id, current)
        return current

    def _find(self, draft: Draft, request: g.ConsumerGroupHeartbeatRequest) -> frozenset[TopicIdPartition] | None:
        """Check who the member is; return the partitions that it owns, None if unknown."""
        group, member_id, instance_id = draft.group, request.member_id, request.instance_id
        holder = group.holder_of(instance_id) if instance_id is not None else member_id
        if request.member_epoch == JOIN:
            if member_id not in group.members and holder not in group.members:
                self.check_size(group)
            elif holder not in (None, member_id):
                self._replace(draft, str(holder), member_id)
            elif group.current(member_id).epoch == LEAVE_STATIC:
                draft.move(member_id, _rejoining(group.current(member_id)))
            elif member_id in group.members:
                # A retry, as the coordinator knows the member. It may have arrived late and know nothing of what the
                # member owns by now: only a heartbeat with an epoch confirms a revocation.
                return None
            return frozenset()
        if member_id not in group.members and (holder is None or instance_id is None):
            raise kafka.UnknownMemberId(f"group {group.group_id} has no member {member_id!r}: join again")
        if holder != member_id:
            if holder is None:
                raise kafka.UnknownMemberId(f"group {group.group_id} has no instance {instance_id}: join again")
            raise kafka.FencedInstanceId(
                f"instance {instance_id} of group {group.group_id} is another member now: stop this one, or give each "
                "process a group.instance.id of its own"
            )
        given = request.topic_partitions
        owned = None if given is None else unflat(given)
        _check_epoch(group, member_id, request.member_epoch, owned)
        return owned

    def check_size(self, group: ConsumerGroup) -> None:
        if len(group.members) >= self.settings.consumer_group_size_max:
            raise kafka.GroupMaxSizeReached(
                f"group {group.group_id} has {len(group.members)} members, group.consumer.max.size is "
                f"{self.settings.consumer_group_size_max}"
            )

    def _replace(self, draft: Draft, old_id: str, new_id: str) -> None:
        """A static member is back under another id: it takes over the target and all that is its own."""
        group = draft.group
        member, target, current = group.members[old_id], group.target(old_id), group.current(old_id)
        if current.epoch != LEAVE_STATIC and not member.is_classic:
            raise kafka.UnreleasedInstanceId(
                f"instance {member.instance_id} of group {group.group_id} is in use by member {old_id}: stop that one, "
                "or wait until its session ends"
            )
        draft.remove(old_id)
        draft.set(member, new_id)
        draft.set(Target(partitions=target), new_id)
        draft.move(new_id, _rejoining(current))

    def _merge(self, draft: Draft, request: g.ConsumerGroupHeartbeatRequest) -> bool:
        """Record what the member says of itself; return True if its subscription is another now."""
        old = draft.group.members.get(request.member_id)
        was = old if old is not None else MemberMetadata()
        if request.member_epoch == JOIN:
            # A join says all. What it leaves out is not unchanged: a static member's former process said it. Kafka
            # keeps that, and assigns topics which the new process does not read.
            was = replace(was, rack_id=None, topics=(), regex=None, server_assignor=None)
        names = request.subscribed_topic_names
        now = replace(
            was,
            instance_id=was.instance_id if request.instance_id is None else request.instance_id,
            rack_id=was.rack_id if request.rack_id is None else request.rack_id,
            client_id=request.client_id or was.client_id,
            client_host=request.client_host or was.client_host,
            topics=was.topics if names is None else tuple(sorted(set(names))),
            regex=was.regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex or None,
            rebalance_timeout_ms=(
                was.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
            ),
            server_assignor=was.server_assignor if request.server_assignor is None else request.server_assignor,
            classic=None,
        )
        if now != old:
            draft.set(now, request.member_id)
        # As in Kafka, no assignment changes when a member joins that reads nothing. The first one begins a group.
        group, before = draft.group, old if old is not None else MemberMetadata()
        return not group.epoch or now.topics != before.topics or group.matched(now.regex) != group.matched(before.regex)

    def _resolve(self, draft: Draft, own: str | None, hidden: frozenset[str]) -> bool:
        """Record what the group's regular expressions match now; True: it is something else than before.

        Kafka does this beside the heartbeats, every 10 s at most. Here an expression costs nothing while topics stay.
        As there, the permissions of the member that meets a change decide: members that may describe different topics
        must not change the assignment with each heartbeat.

        What would hold the loop for too long stays as it was: the broker matches the expression of each member before
        its heartbeat, in turns (:meth:`Regexes.match`). So those of other members follow with their own heartbeats.
        """
        group = draft.group
        wanted = {each.regex for each in group.members.values() if each.regex}
        for regex in sorted(group.regexes.keys() - wanted):
            draft.delete(REGEX, regex)
        changed = False
        cost = unknown = 0
        for regex in sorted(wanted, key=lambda each: (each != own, each)):
            old = group.regexes.get(regex)
            if not self.regexes.knows(regex, self.topics):
                unknown += 1
                if unknown <= UNKNOWN_REGEXES_MAX:
                    cost += self.regexes.cost(regex, self.topics)
                if unknown > UNKNOWN_REGEXES_MAX or cost > COST_MAX:
                    if regex in self.matched:
                        draft.matched[regex] = self.matched[regex]
                    continue
            found = draft.matched[regex] = self.regexes.matched(regex, self.topics)
            if old is not None and found == self.matched.get(regex):
                continue
            topics = tuple(name for name in found if name not in hidden)
            changed |= topics != group.matched(regex)
            if old is None or old.topics != topics:
                draft.set(Regex(topics=topics, version=1 if old is None else old.version + 1), regex)
        return changed

    def _assign(self, draft: Draft) -> None:
        """A target assignment for the group epoch."""
        group = draft.group
        ids = {name: self.topics[name].topic_id for name in group.topics() if name in self.topics}
        counts = {self.topics[name].topic_id: len(self.topics[name].partitions) for name in ids}
        subscribers = {
            member_id: Subscriber(
                topics=frozenset(ids[name] for name in group.topics_of(member_id) if name in ids),
                previous=group.target(member_id),
                instance_id=member.instance_id,
            )
            for member_id, member in group.members.items()
        }
        targets = ASSIGNORS[self.assignor_of(group)](subscribers, counts)
        for member_id in sorted(targets):
            target = frozenset(targets[member_id])
            if target != group.targets.get(member_id):
                draft.set(Target(partitions=target), member_id)
        draft.set(TargetEpoch(epoch=group.epoch))

    def assignor_of(self, group: ConsumerGroup) -> str:
        """The assignor that most members name; the first that is configured if none does."""
        votes = Counter(each.server_assignor for each in group.members.values() if each.server_assignor in ASSIGNORS)
        default = self.settings.consumer_assignors[0]
        return min(votes, key=lambda name: (-votes[name], name != default, name)) or default if votes else default

    # ---- leaving ----

    def _leave(self, draft: Draft, request: g.ConsumerGroupHeartbeatRequest) -> g.ConsumerGroupHeartbeatResponse:
        group, member_id, instance_id = draft.group, request.member_id, request.instance_id
        if instance_id is not None:
            holder = group.holder_of(instance_id)
            if holder is None:
                raise kafka.UnknownMemberId(f"group {group.group_id} has no instance {instance_id}")
            if holder != member_id:
                raise kafka.FencedInstanceId(f"instance {instance_id} of group {group.group_id} is another member now")
        if member_id not in group.members:
            raise kafka.UnknownMemberId(f"group {group.group_id} has no member {member_id!r}")
        if request.member_epoch == LEAVE_STATIC:
            # Its partitions stay its own until it is back or its session ends.
            current = group.current(member_id)
            left = replace(
                current,
                epoch=LEAVE_STATIC,
                previous_epoch=current.epoch,
                state=MemberState.STABLE,
                revoking={},
            )
            if left != current and current.epoch != LEAVE_STATIC:
                draft.move(member_id, left)
        else:
            self.remove(draft, [member_id])
        return g.ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)

    def remove(self, draft: Draft, member_ids: Iterable[str]) -> None:
        """Members that left or were fenced are gone; the others share what was theirs from their next heartbeats on."""
        group = draft.group
        for member_id in member_ids:
            draft.remove(member_id)
        emptied_ms = NO_TIMESTAMP if group.members else self.wall_ms
        metadata_hash = hash_of(group.topics(), self.topics)
        draft.set(GroupEpoch(epoch=group.epoch + 1, metadata_hash=metadata_hash, emptied_ms=emptied_ms))
        if not group.members:
            draft.set(TargetEpoch(epoch=group.epoch))


def _rejoining(current: Current) -> Current:
    return replace(current, epoch=0, previous_epoch=0, state=MemberState.STABLE, revoking={})


def _check_epoch(group: ConsumerGroup, member_id: str, epoch: int, owned: frozenset[TopicIdPartition] | None) -> None:
    current = group.current(member_id)
    if epoch == current.epoch:
        return
    if (
        epoch == current.previous_epoch
        and epoch < current.epoch
        and owned is not None
        and owned <= current.assigned.keys()
    ):
        return  # the response with the newer epoch was lost
    raise kafka.FencedMemberEpoch(
        f"member {member_id} of group {group.group_id} is at epoch {current.epoch}, not {epoch}: give up all "
        "partitions and join again"
    )


# ---- offsets ---------------------------------------------------------------------------------------------------------


def check_committer(
    group: ConsumerGroup, request: g.OffsetCommitRequest | TxnOffsetCommitRequest, topics: Topics
) -> None:
    """Raise unless the request is of a member at an epoch at which it owned the partitions (KIP-848, KIP-1251)."""
    epoch = request.generation_id
    if epoch < 0 and not group.members:
        return
    member = group.members.get(request.member_id)
    is_old = isinstance(request, g.OffsetCommitRequest) and not request.knows_member_epochs
    if member is not None and is_old and not member.is_classic:
        raise kafka.UnsupportedVersion(
            f"group {group.group_id} uses the consumer protocol: its members commit with OffsetCommit 9 or newer"
        )
    check_member(group, request.member_id, epoch, floor=_lowest_epoch(group, request, topics))


def check_member(group: ConsumerGroup, member_id: str, epoch: int, *, floor: int | None = None) -> None:
    """UNKNOWN_MEMBER_ID, or STALE_MEMBER_EPOCH; ``floor`` is the lowest epoch before the member's that passes."""
    if member_id not in group.members:
        raise kafka.UnknownMemberId(f"group {group.group_id} has no member {member_id!r}: join again")
    now = group.current(member_id).epoch
    if epoch == now or (floor is not None and floor <= epoch < now):
        return
    if group.members[member_id].is_classic:
        raise kafka.IllegalGeneration(
            f"member {member_id} of group {group.group_id} is in generation {now}, not {epoch}: join again"
        )
    raise kafka.StaleMemberEpoch(
        f"member {member_id} of group {group.group_id} is at epoch {now}, not {epoch}: heartbeat, then try again"
    )


def _lowest_epoch(
    group: ConsumerGroup, request: g.OffsetCommitRequest | TxnOffsetCommitRequest, topics: Topics
) -> int | None:
    """The epoch since which the member has owned all partitions of the request; None: it does not own one of them."""
    current = group.current(request.member_id)
    lowest = 0
    for each in request.partitions:
        topic = topics.get(each.topic)
        partition = TopicIdPartition(topic.topic_id if topic is not None else "", each.partition)
        since = current.assigned.get(partition, current.revoking.get(partition))
        if since is None:
            return None
        lowest = max(lowest, since)
    return lowest


# ---- parts -----------------------------------------------------------------------------------------------------------


def hash_of(names: Iterable[str], topics: Topics) -> int:
    """A hash of the topics that exist among ``names``: another one if any is created, deleted or has more partitions.

    Kafka's own hash is another one; a coordinator that reads a foreign one assigns once more than needed.
    """
    found = [(name, topics[name].topic_id, len(topics[name].partitions)) for name in sorted(names) if name in topics]
    if not found:
        return 0
    digest = hashlib.blake2b(repr(found).encode(), digest_size=HASH_BYTES).digest()
    return int.from_bytes(digest, "big", signed=True)


def flat(partitions: Iterable[TopicIdPartition]) -> tuple[g.TopicIdPartitions, ...]:
    """As messages carry partitions."""
    return tuple(
        g.TopicIdPartitions(topic_id=topic_id, partitions=tuple(numbers))
        for topic_id, numbers in by_topic(partitions).items()
    )


def unflat(given: Iterable[g.TopicIdPartitions]) -> frozenset[TopicIdPartition]:
    """Partitions of a message as a set."""
    return frozenset(TopicIdPartition(each.topic_id, number) for each in given for number in each.partitions)
