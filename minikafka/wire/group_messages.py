"""The pairs of the group coordinator's APIs, with Kafka's names (KAFKA-FACTS 5 and 9); rules as for ``messages.py``.

Subscriptions and assignments are opaque bytes here (``groups/protocol.py`` knows their layout). Flat where Kafka nests
topics: one entry per partition.
"""

from __future__ import annotations

from minikafka.types import NO_EPOCH, NO_NODE, NO_OFFSET, Epoch, NodeId, Offset, TopicId
from minikafka.wire.messages import Failed, Message, PartitionName, Request

NO_GENERATION = -1
"""Of requests that speak for no member: committing by hand."""

# ---- FindCoordinator -------------------------------------------------------------------------------------------------


class FindCoordinatorRequest(Request):
    """Find the coordinators of groups or transactional ids (S32)."""

    keys: tuple[str, ...]
    key_type: int = 0
    """0: groups, 1: transactional ids."""


class Coordinator(Failed):
    """One group's coordinator; ``node_id`` -1 with an error."""

    key: str
    node_id: NodeId = NO_NODE
    host: str = ""
    port: int = -1


class FindCoordinatorResponse(Failed):
    """In the order of the request."""

    coordinators: tuple[Coordinator, ...] = ()


# ---- JoinGroup -------------------------------------------------------------------------------------------------------


class GroupProtocol(Message):
    """An assignor that the member speaks, and its subscription for it; the favourite comes first."""

    name: str
    metadata: bytes


class JoinGroupRequest(Request):
    """First step of a rebalance (S33): answered when the join phase ends."""

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str = ""
    """Empty at first; then the one that MEMBER_ID_REQUIRED brought."""
    group_instance_id: str | None = None
    protocol_type: str = "consumer"
    protocols: tuple[GroupProtocol, ...]
    client_id: str = ""
    client_host: str = ""
    software: str = ""
    """Name and version of the client's library; empty: that of the connection."""
    reason: str = ""
    needs_member_id: bool = True
    """False: clients before KIP-394, which do not know MEMBER_ID_REQUIRED, join at once."""
    knows_skip_assignment: bool = True
    """False: clients before KIP-814. A static leader that comes back must not learn that it leads: it would assign."""
    hidden_topics: tuple[str, ...] = ()
    """Names among those it subscribes to that the client may not describe. The broker sets this for groups in which it
    assigns itself."""


class JoinedMember(Message):
    """For the group's leader only."""

    member_id: str
    group_instance_id: str | None = None
    metadata: bytes


class JoinGroupResponse(Failed):
    """The new generation; ``members`` is empty unless the member leads the group."""

    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    """A static member came back: its leader must not assign again (KIP-814)."""
    member_id: str = ""
    members: tuple[JoinedMember, ...] = ()


# ---- SyncGroup -------------------------------------------------------------------------------------------------------


class MemberAssignment(Message):
    member_id: str
    assignment: bytes


class SyncGroupRequest(Request):
    """Second step of a rebalance (S33): only the leader's carries assignments."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[MemberAssignment, ...] = ()


class SyncGroupResponse(Failed):
    """What this member got."""

    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


# ---- Heartbeat, LeaveGroup -------------------------------------------------------------------------------------------


class HeartbeatRequest(Request):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class HeartbeatResponse(Failed):
    """REBALANCE_IN_PROGRESS asks the member to join again."""


class LeavingMember(Message):
    """By member id, or by instance id alone (an administrator removes a static member)."""

    member_id: str = ""
    group_instance_id: str | None = None
    reason: str = ""


class LeaveGroupRequest(Request):
    group_id: str
    members: tuple[LeavingMember, ...]


class LeftMember(Failed):
    member_id: str = ""
    group_instance_id: str | None = None


class LeaveGroupResponse(Failed):
    members: tuple[LeftMember, ...] = ()


# ---- offsets ---------------------------------------------------------------------------------------------------------


class CommitPartition(Message):
    topic: str
    partition: int
    offset: Offset
    """The next one to read."""
    leader_epoch: Epoch = NO_EPOCH
    metadata: str = ""
    topic_id: TopicId | None = None
    """If set, only the topic with this id is meant, not one that was created again under its name."""


class OffsetCommitRequest(Request):
    """Without member and generation: by hand, while the group is empty."""

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None
    knows_member_epochs: bool = True
    """False: an old client, whose ``generation_id`` cannot be the epoch of a member of the consumer protocol."""
    partitions: tuple[CommitPartition, ...]


class PartitionOutcome(Failed):
    """What became of one partition of a request."""

    topic: str
    partition: int


class OffsetCommitResponse(Failed):
    partitions: tuple[PartitionOutcome, ...] = ()


class OffsetFetchRequest(Request):
    group_id: str
    partitions: tuple[PartitionName, ...] | None = None
    """None: all that the group has committed."""
    require_stable: bool = False
    """Partitions that an open transaction may still change have the error UNSTABLE_OFFSET_COMMIT (KIP-447)."""
    member_id: str | None = None
    member_epoch: int = -1
    """Of a member of the consumer protocol, which is fenced by it; -1: the request is for no member."""


class FetchedOffset(Failed):
    """``offset`` -1: nothing is committed, which is no error."""

    topic: str
    partition: int
    offset: Offset = NO_OFFSET
    leader_epoch: Epoch = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1


class OffsetFetchResponse(Failed):
    partitions: tuple[FetchedOffset, ...] = ()


class OffsetDeleteRequest(Request):
    """Forget what was committed for partitions of topics that no member subscribes to."""

    group_id: str
    partitions: tuple[PartitionName, ...]


class OffsetDeleteResponse(Failed):
    partitions: tuple[PartitionOutcome, ...] = ()


# ---- the consumer protocol (KIP-848) ---------------------------------------------------------------------------------


class TopicIdPartitions(Message):
    """Partitions of the topic with this id."""

    topic_id: TopicId
    partitions: tuple[int, ...]


class ConsumerGroupHeartbeatRequest(Request):
    """A member joins, lives, reports what it owns, and leaves by this one request. None and -1: unchanged."""

    group_id: str
    member_id: str = ""
    """Made by the client, once per process; empty only with ``makes_member_id``."""
    member_epoch: int
    """0 joins, -1 leaves, -2 leaves for a restart (static members); otherwise the epoch of the last response."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    hidden_topics: tuple[str, ...] = ()
    """Names that the client may not describe: no regular expression matches them for it. The broker sets this."""
    server_assignor: str | None = None
    topic_partitions: tuple[TopicIdPartitions, ...] | None = None
    """All partitions that the member owns."""
    client_id: str = ""
    client_host: str = ""
    makes_member_id: bool = False
    """The coordinator makes the member id (version 0 of Kafka's request)."""


class ConsumerGroupHeartbeatResponse(Failed):
    """``assignment``: all that the member may use from now on; None: unchanged."""

    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TopicIdPartitions, ...] | None = None


class ConsumerGroupDescribeRequest(Request):
    groups: tuple[str, ...]


class NamedTopicPartitions(Message):
    """Partitions of one topic; the name is empty if the topic is gone."""

    topic_id: TopicId
    topic: str = ""
    partitions: tuple[int, ...]


class ConsumerMember(Message):
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    assignment: tuple[NamedTopicPartitions, ...] = ()
    """What the member may own now."""
    target_assignment: tuple[NamedTopicPartitions, ...] = ()
    """What it will own once all members have reconciled."""
    is_classic: bool = False

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that it subscribes to by name, owns, or will own."""
        parts = (*self.assignment, *self.target_assignment)
        return (*self.subscribed_topic_names, *(part.topic for part in parts))


class DescribedConsumerGroup(Failed):
    group_id: str
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[ConsumerMember, ...] = ()


class ConsumerGroupDescribeResponse(Failed):
    groups: tuple[DescribedConsumerGroup, ...] = ()


# ---- groups ----------------------------------------------------------------------------------------------------------


class ListGroupsRequest(Request):
    """Of this coordinator; every broker must be asked for all."""

    states: tuple[str, ...] = ()
    """Empty: any."""
    types: tuple[str, ...] = ()
    """``classic`` and ``consumer``; empty: any."""


class ListedGroup(Message):
    group_id: str
    protocol_type: str = ""
    state: str
    group_type: str = "classic"


class ListGroupsResponse(Failed):
    groups: tuple[ListedGroup, ...] = ()


class DescribeGroupsRequest(Request):
    groups: tuple[str, ...]


class DescribedMember(Message):
    member_id: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    software: str = ""
    """Empty if the client does not send it, and after a change of the coordinator until the member's next heartbeat."""
    metadata: bytes = b""
    assignment: bytes = b""


class DescribedGroup(Failed):
    """A group that does not exist is Dead, as in Kafka, with GROUP_ID_NOT_FOUND."""

    group_id: str
    state: str = ""
    generation_id: int = NO_GENERATION
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[DescribedMember, ...] = ()
    topics: tuple[str, ...] = ()
    """What the members of a group of the consumer protocol subscribe to and are assigned: a reader needs DESCRIBE."""


class DescribeGroupsResponse(Failed):
    groups: tuple[DescribedGroup, ...] = ()


class DeleteGroupsRequest(Request):
    groups: tuple[str, ...]


class DeletedGroup(Failed):
    group_id: str


class DeleteGroupsResponse(Failed):
    groups: tuple[DeletedGroup, ...] = ()


class ReadGroupHistoryRequest(Request):
    """Our own: the groups that the answering broker coordinated at an earlier time."""

    group_id: str | None = None
    """None: all of them."""
    at_ms: int = 0
    """Milliseconds since 1970."""


class PastOffset(Message):
    topic: str
    partition: int
    offset: Offset


class PastGroup(Message):
    """A group as its coordinator recorded it."""

    at_ms: int
    group_id: str
    group: DescribedGroup | None = None
    """None: it was deleted."""
    offsets: tuple[PastOffset, ...] = ()
    """What it had committed."""


class ReadGroupHistoryResponse(Failed):
    start_ms: int = 0
    """What is older is not complete; 0: the broker has recorded no groups."""
    groups: tuple[PastGroup, ...] = ()
    """The last record of each group up to that time."""
