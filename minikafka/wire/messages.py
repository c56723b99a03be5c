"""One frozen request/response pair per API, with Kafka's names (KAFKA-FACTS 9; flat where Kafka nests topics).

Rules for this file: data only. A field whose type is :data:`Records` travels outside the head: the head carries its
size, the bytes follow raw. Every response can carry an error of its own kind in ``error_code`` (0 = none),
``error_message`` and ``outcome``; per-partition results carry the same three. Offsets and epochs are -1 when absent.
New messages are subclasses of :class:`Message`, requests of :class:`Request`. Read ``apis.py`` for which pair belongs
to which name, ``codec.py`` for how they become bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self, dataclass_transform

import msgspec

from minikafka.errors import ProtocolError
from minikafka.ports import Buffers
from minikafka.types import Epoch, NodeId, Offset, TopicId

if TYPE_CHECKING:
    Records = Buffers
    """Raw record batches: going out a sequence of buffers, coming in one memoryview in a tuple (empty tuple: none)."""
else:
    # msgspec reads and writes the size that stands in the head in their place.
    Records = Any


class _MessageMeta(msgspec.StructMeta):
    """Members are given by name, as Kafka's schemas add to them in the middle."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _MessageMeta:
        return super().__new__(mcs, name, bases, namespace, kw_only=True, **options)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Message(
    msgspec.Struct, metaclass=_MessageMeta, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """The class of all requests and responses, and of what they consist of. Lists are tuples."""


class Request(Message, tag_field="v", tag=1):
    """The class of all requests. Member ``v`` of a head is the version, ``Api.max_version``."""


class Failed(Message):
    """Mixin of all that can carry an error; ``error_code`` 0 is success."""

    error_code: int = 0
    error_message: str = ""
    outcome: str = ""
    """For writes: ``not_written``, ``written`` or ``unknown``; empty on success."""

    @classmethod
    def failed(cls, error: ProtocolError | None, **members: Any) -> Self:
        """This answer to a write, or this part of one, with its error and outcome; None: it succeeded."""
        return cls(**members) if error is None else cls.with_error(error, outcome=error.outcome, **members)

    @classmethod
    def with_error(cls, error: ProtocolError, **members: Any) -> Self:
        """This answer to a request that writes nothing, or this part of one, with its error."""
        return cls(error_code=error.code, error_message=error.message, **members)


class NodeEndpoint(Message):
    node_id: NodeId
    host: str
    port: int


class CurrentLeader(Message):
    """Sent with NOT_LEADER_OR_FOLLOWER and epoch errors, so that a client need not ask again."""

    leader_id: NodeId
    leader_epoch: Epoch
    topic_id: TopicId | None = None
    """Of the partition's topic: one that was created again under the name begins with epoch 0."""


class EpochEndOffset(Message):
    epoch: Epoch
    end_offset: Offset


# ---- Produce ---------------------------------------------------------------------------------------------------------


class ProducePartition(Message):
    topic: str
    partition: int
    records: Records
    """Exactly one v2 batch."""
    sequencing: int = 0
    """PLAIN, PIPELINED or FOLLOWS of ``wire/batch.py``."""
    topic_id: TopicId | None = None
    """If set, only the topic with this id is meant, not one that was created again under its name."""


class ProduceRequest(Request):
    acks: int = -1
    timeout_ms: int = 30_000
    client_id: str | None = None
    transactional_id: str | None = None
    """Set if batches of the request may be part of a transaction."""
    transaction_version: int = 0
    """2: the partitions are added to the producer's transaction (KIP-890); before, they must have been."""
    partitions: tuple[ProducePartition, ...]


class RecordError(Message):
    """Why one record of a batch was refused; the whole batch is (KIP-467)."""

    batch_index: int
    """Number within the batch, counted from 0."""
    message: str = ""


class ProducedPartition(Failed):
    topic: str
    partition: int
    base_offset: Offset = -1
    log_append_time_ms: int = -1
    log_start_offset: Offset = -1
    leader_epoch: Epoch = -1
    duplicate: bool = False
    """The batch had been appended before (idempotence); ``base_offset`` is where."""
    current_leader: CurrentLeader | None = None
    record_errors: tuple[RecordError, ...] = ()
    """For INVALID_RECORD and INVALID_TIMESTAMP: the records that are to blame, if they are known."""


class ProduceResponse(Failed):
    partitions: tuple[ProducedPartition, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()


# ---- Fetch -----------------------------------------------------------------------------------------------------------

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class PartitionName(Message):
    """One partition, in all messages that name partitions and say nothing else of them."""

    topic: str
    partition: int

    @classmethod
    def each(cls, partitions: Iterable[tuple[str, int]]) -> tuple[PartitionName, ...]:
        """Name partitions, which are TopicPartitions or other pairs."""
        return tuple(cls(topic=topic, partition=number) for topic, number in partitions)


class FetchPartition(Message):
    topic: str
    partition: int
    topic_id: TopicId | None = None
    current_leader_epoch: Epoch = -1
    fetch_offset: Offset
    last_fetched_epoch: Epoch = -1
    log_start_offset: Offset = -1
    high_watermark: Offset = -1
    """The fetching replica's own high watermark; the leader answers at once when its own is newer (KIP-1166)."""
    partition_max_bytes: int = 1_048_576


class FetchRequest(Request):
    cluster_id: str | None = None
    replica_id: NodeId = -1
    """-1: a consumer."""
    replica_epoch: int = -1
    """The fetching broker's broker epoch (KIP-903)."""
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 0x7FFFFFFF
    isolation_level: int = READ_UNCOMMITTED
    session_id: int = 0
    session_epoch: int = -1
    partitions: tuple[FetchPartition, ...] = ()
    forgotten: tuple[PartitionName, ...] = ()


class AbortedTransaction(Message):
    """Batches of this producer from ``first_offset`` up to its next ABORT marker are of an aborted transaction."""

    producer_id: int
    first_offset: Offset


class FetchedPartition(Failed):
    topic: str
    partition: int
    high_watermark: Offset = -1
    last_stable_offset: Offset = -1
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    """With ``read_committed``: whose batches among ``records`` readers leave out. None with ``read_uncommitted``."""
    log_start_offset: Offset = -1
    log_end_offset: Offset = -1
    diverging_epoch: EpochEndOffset | None = None
    """The fetcher's log differs: it must cut back (KIP-595)."""
    snapshot_id: EpochEndOffset | None = None
    """The metadata log no longer reaches back so far: fetch this snapshot."""
    current_leader: CurrentLeader | None = None
    has_gaps: bool = False
    """Our own: compaction has left offsets out of this log, whatever its ``cleanup.policy`` is now."""
    records: Records = ()

    @property
    def readable_end(self) -> Offset | None:
        """Where the records end that this response may hold for a reader; None: the leader has not said."""
        return self.high_watermark if self.high_watermark >= 0 else None


class FetchResponse(Failed):
    session_id: int = 0
    partitions: tuple[FetchedPartition, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()


# ---- ListOffsets, OffsetForLeaderEpoch, DeleteRecords ----------------------------------------------------------------

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
"""Positions in tiered storage (KIP-405, KIP-1005, KIP-1023). Without it, nothing is tiered."""


class ListOffsetsPartition(Message):
    topic: str
    partition: int
    current_leader_epoch: Epoch = -1
    timestamp: int
    """Milliseconds since 1970, or one of the six constants above."""


class ListOffsetsRequest(Request):
    replica_id: NodeId = -1
    isolation_level: int = READ_UNCOMMITTED
    partitions: tuple[ListOffsetsPartition, ...]


class ListedOffset(Failed):
    topic: str
    partition: int
    timestamp: int = -1
    offset: Offset = -1
    leader_epoch: Epoch = -1
    current_leader: CurrentLeader | None = None


class ListOffsetsResponse(Failed):
    partitions: tuple[ListedOffset, ...] = ()


class EpochQuery(Message):
    topic: str
    partition: int
    current_leader_epoch: Epoch = -1
    leader_epoch: Epoch


class OffsetForLeaderEpochRequest(Request):
    replica_id: NodeId = -1
    partitions: tuple[EpochQuery, ...]


class EpochAnswer(Failed):
    topic: str
    partition: int
    leader_epoch: Epoch = -1
    end_offset: Offset = -1


class OffsetForLeaderEpochResponse(Failed):
    partitions: tuple[EpochAnswer, ...] = ()


ALL_COMMITTED: Offset = -1
"""DeleteRecords up to the high watermark."""


class DeleteRecordsPartition(Message):
    topic: str
    topic_id: TopicId | None = None
    """If set, only the topic with this id is meant, not one that was created again."""
    partition: int
    offset: Offset
    """Records below it go. A copy of a request with ALL_COMMITTED that arrives late deletes more."""


class DeleteRecordsRequest(Request):
    timeout_ms: int = 30_000
    partitions: tuple[DeleteRecordsPartition, ...]


class DeletedRecords(Failed):
    topic: str
    partition: int
    low_watermark: Offset = -1


class DeleteRecordsResponse(Failed):
    partitions: tuple[DeletedRecords, ...] = ()


# ---- Metadata --------------------------------------------------------------------------------------------------------


class MetadataRequest(Request):
    topics: tuple[str, ...] | None = None
    """None: all topics."""
    allow_auto_topic_creation: bool = False


class MetadataBroker(Message):
    node_id: NodeId
    host: str
    port: int
    rack: str | None = None


class MetadataPartition(Failed):
    partition: int
    leader_id: NodeId = -1
    leader_epoch: Epoch = -1
    replica_nodes: tuple[NodeId, ...] = ()
    isr_nodes: tuple[NodeId, ...] = ()
    offline_replicas: tuple[NodeId, ...] = ()


class MetadataTopic(Failed):
    name: str
    topic_id: TopicId | None = None
    is_internal: bool = False
    partitions: tuple[MetadataPartition, ...] = ()


class MetadataResponse(Failed):
    cluster_id: str = ""
    controller_id: NodeId = -1
    brokers: tuple[MetadataBroker, ...] = ()
    topics: tuple[MetadataTopic, ...] = ()
    metadata_offset: Offset = -1
    """How much of the metadata log this answer reflects: clients keep the newest."""


class DescribeTopicsRequest(Request):
    """Kafka's DescribeTopicPartitions, with what ``topics describe`` prints (S15)."""

    topics: tuple[str, ...] | None = None


class DescribedPartition(Message):
    partition: int
    leader: NodeId
    leader_epoch: Epoch
    partition_epoch: int
    controller_epoch: Epoch
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    elr: tuple[NodeId, ...] = ()
    last_known_elr: tuple[NodeId, ...] = ()
    adding_replicas: tuple[NodeId, ...] = ()
    removing_replicas: tuple[NodeId, ...] = ()


class DescribedTopic(Failed):
    topic: str
    topic_id: TopicId = ""
    config: dict[str, str] = {}
    partitions: tuple[DescribedPartition, ...] = ()


class DescribeTopicsResponse(Failed):
    topics: tuple[DescribedTopic, ...] = ()


# ---- Topics ----------------------------------------------------------------------------------------------------------


class ReplicaAssignment(Message):
    partition: int
    broker_ids: tuple[NodeId, ...]


class NewTopic(Message):
    name: str
    num_partitions: int = -1
    """-1: the broker's num.partitions."""
    replication_factor: int = -1
    """-1: the broker's default.replication.factor."""
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: dict[str, str] = {}


class CreateTopicsRequest(Request):
    topics: tuple[NewTopic, ...]
    timeout_ms: int = 30_000
    validate_only: bool = False
    include_configs: bool = False
    """Return the settings of each created topic (KIP-525)."""


class CreatedTopicConfig(Message):
    name: str
    value: str
    config_source: int


class CreatedTopic(Failed):
    name: str
    topic_id: TopicId | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: tuple[CreatedTopicConfig, ...] = ()


class CreateTopicsResponse(Failed):
    topics: tuple[CreatedTopic, ...] = ()
    throttle_time_ms: int = 0
    """How long the controller throttles the client, by ``controller_mutation_rate``."""
    metadata_offset: Offset = -1
    """The metadata log's end after the change: a client may wait until a broker's Metadata answer reaches it."""


class DeleteTopicsRequest(Request):
    topics: tuple[str, ...]
    timeout_ms: int = 30_000
    topic_ids: dict[str, TopicId] = {}
    """By name. If set for a topic, only the topic with this id is meant, not one that was created again."""


class DeletedTopic(Failed):
    name: str
    topic_id: TopicId | None = None


class DeleteTopicsResponse(Failed):
    topics: tuple[DeletedTopic, ...] = ()
    throttle_time_ms: int = 0
    metadata_offset: Offset = -1


class ElectLeadersRequest(Request):
    election_type: str = "preferred"
    """``preferred`` or ``unclean``."""
    partitions: tuple[PartitionName, ...] | None = None
    """None: all partitions."""
    leader_epochs: tuple[Epoch, ...] = ()
    """Of ``partitions``, in their order. A partition that has another leader epoch needs no election."""


class ElectedLeader(Failed):
    topic: str
    partition: int


class ElectLeadersResponse(Failed):
    partitions: tuple[ElectedLeader, ...] = ()
    metadata_offset: Offset = -1


class UnregisterBrokerRequest(Request):
    """Forget a broker that is gone for good."""

    broker_id: NodeId


class UnregisterBrokerResponse(Failed):
    metadata_offset: Offset = -1


# ---- Idempotent producers --------------------------------------------------------------------------------------------


class InitProducerIdRequest(Request):
    transactional_id: str | None = None
    """None: an idempotent producer without transactions, which any broker serves."""
    transaction_timeout_ms: int = 60_000
    producer_id: int = -1
    """With ``producer_epoch``: what the producer has had, if it goes on (KIP-360)."""
    producer_epoch: int = -1


class InitProducerIdResponse(Failed):
    producer_id: int = -1
    producer_epoch: int = -1


class DescribeProducersPartition(Message):
    topic: str
    partition: int
    producer_id: int = -1
    """-1: all producers of the partition, as in Kafka."""


class DescribeProducersRequest(Request):
    partitions: tuple[DescribeProducersPartition, ...]


class ActiveProducer(Message):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: Offset
    last_timestamp: int
    coordinator_epoch: Epoch = -1
    """Of the last marker of its transactions; -1: there was none."""
    current_txn_start_offset: Offset = -1
    """First offset of its open transaction; -1: none is open."""


class DescribedProducer(Failed):
    topic: str
    partition: int
    producer_id: int = -1
    producer_epoch: int = -1
    """-1: the partition does not know the producer."""
    last_sequence: int = -1
    """Of its last batch, which is below the high watermark; OFFSET_NOT_AVAILABLE while it is not."""
    last_offset: Offset = -1
    active: tuple[ActiveProducer, ...] = ()
    """All producers whose state the log holds, if the request names no producer; also those above the watermark."""


class DescribeProducersResponse(Failed):
    partitions: tuple[DescribedProducer, ...] = ()


class AllocateProducerIdsRequest(Request):
    broker_id: NodeId
    broker_epoch: int


class AllocateProducerIdsResponse(Failed):
    producer_id_start: int = -1
    producer_id_len: int = 0


# ---- Brokers and controller ------------------------------------------------------------------------------------------


class BrokerRegistrationRequest(Request):
    broker_id: NodeId
    cluster_id: str
    incarnation_id: str
    host: str
    port: int
    rack: str | None = None
    listeners: str = ""
    """``NAME://host:port,...`` as clients of other listeners receive them; empty: all receive ``host`` and ``port``."""
    previous_broker_epoch: int = -1
    """From the clean-shutdown marker; anything but the last epoch means an unclean stop (KIP-966)."""
    current_metadata_offset: Offset = -1
    """The end of what the broker has applied (our own addition): who has applied all need not stay fenced."""
    log_dirs: tuple[str, ...] = ()
    """``directory.id`` of its data directory; empty: it does not tell."""
    ignores_case: bool = False
    """The file system of its data directory does not distinguish case (our own addition)."""
    min_insync_replicas: int = 1
    """Its own default of topics' min.insync.replicas (our own addition): see ``ClusterPolicy.under``."""


class BrokerRegistrationResponse(Failed):
    broker_epoch: int = -1
    is_fenced: bool = True
    """False: let in at once, no heartbeat need ask for it (our own addition)."""


class MissingReplica(Message):
    topic_id: TopicId
    partition: int
    partition_epoch: int = -1
    """Of the state in which the broker missed it; -1: it does not say."""


class BrokerHeartbeatRequest(Request):
    broker_id: NodeId
    broker_epoch: int
    current_metadata_offset: Offset
    want_fence: bool = False
    want_shut_down: bool = False
    missing_replicas: tuple[MissingReplica, ...] = ()
    """While fenced: replicas that this broker held, and whose logs its process had to create, or to cut at damage (our
    own addition)."""


class BrokerHeartbeatResponse(Failed):
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False
    metadata_offset: Offset = -1
    """What the controller had applied when it answered (our own addition): a broker that was away long enough to be
    replaced is back when it knows as much."""


class IsrMember(Message):
    broker_id: NodeId
    broker_epoch: int = -1


class AlterPartitionItem(Message):
    topic: str
    topic_id: TopicId
    partition: int
    leader_epoch: Epoch
    partition_epoch: int
    new_isr: tuple[IsrMember, ...]
    recovered: bool = True
    """False while an uncleanly elected leader still recovers (KIP-704)."""


class AlterPartitionRequest(Request):
    broker_id: NodeId
    broker_epoch: int
    partitions: tuple[AlterPartitionItem, ...]


class AlteredPartition(Failed):
    topic: str
    partition: int
    leader_id: NodeId = -1
    leader_epoch: Epoch = -1
    partition_epoch: int = -1
    isr: tuple[NodeId, ...] = ()


class AlterPartitionResponse(Failed):
    partitions: tuple[AlteredPartition, ...] = ()


# ---- Quorum ----------------------------------------------------------------------------------------------------------


class VoteRequest(Request):
    cluster_id: str
    voter_id: NodeId
    """The voter that is requested."""
    candidate_id: NodeId
    candidate_epoch: Epoch
    last_epoch: Epoch
    last_epoch_end_offset: Offset
    pre_vote: bool = False


class VoteResponse(Failed):
    leader_id: NodeId = -1
    leader_epoch: Epoch = -1
    vote_granted: bool = False


class BeginQuorumEpochRequest(Request):
    cluster_id: str
    voter_id: NodeId
    leader_id: NodeId
    leader_epoch: Epoch


class BeginQuorumEpochResponse(Failed):
    leader_id: NodeId = -1
    leader_epoch: Epoch = -1


class EndQuorumEpochRequest(Request):
    cluster_id: str
    voter_id: NodeId
    leader_id: NodeId
    leader_epoch: Epoch
    preferred_successors: tuple[NodeId, ...] = ()


class EndQuorumEpochResponse(Failed):
    leader_id: NodeId = -1
    leader_epoch: Epoch = -1


class FetchSnapshotRequest(Request):
    cluster_id: str
    replica_id: NodeId
    current_leader_epoch: Epoch
    snapshot_id: EpochEndOffset
    position: int = 0
    max_bytes: int = 1_048_576


class FetchSnapshotResponse(Failed):
    snapshot_id: EpochEndOffset | None = None
    size: int = 0
    position: int = 0
    current_leader: CurrentLeader | None = None
    unaligned_records: Records = ()


class DescribeQuorumRequest(Request):
    pass


class QuorumReplica(Message):
    replica_id: NodeId
    log_end_offset: Offset = -1
    lag: int = -1
    last_fetch_ms_ago: int = -1
    last_caught_up_ms_ago: int = -1
    status: str = "Observer"
    """Leader, Follower or Observer, as kafka-metadata-quorum prints it."""


class DescribeQuorumResponse(Failed):
    cluster_id: str = ""
    leader_id: NodeId = -1
    leader_epoch: Epoch = -1
    high_watermark: Offset = -1
    voters: tuple[QuorumReplica, ...] = ()
    observers: tuple[QuorumReplica, ...] = ()
    endpoints: tuple[NodeEndpoint, ...] = ()
    role: str = ""
    """The answering node's own role."""


# ---- What a replica knows, for people and checks ---------------------------------------------------------------------


class DescribeReplicasRequest(Request):
    """Our own: the answering broker's view of the partitions that it hosts."""

    topics: tuple[str, ...] | None = None


class RemoteReplica(Message):
    broker_id: NodeId
    log_end_offset: Offset
    caught_up_ms_ago: int
    in_sync: bool
    last_fetch_ms_ago: int = -1
    """-1: it has not fetched from this leader."""
    holds_watermark: bool = False
    """True if it must have a record before the record is committed (S10: also one that is about to join the ISR)."""
    may_join: bool = False
    """Far enough, and in its registered incarnation."""


class UnstableTransaction(Message):
    """The transaction that holds the last stable offset of a partition below its high watermark."""

    producer_id: int
    first_offset: Offset
    marker_offset: Offset = -1
    """Offset of its marker, which is not yet committed; -1: the transaction is open."""
    started_ms: int = -1
    """Timestamp of its first batch, milliseconds since 1970; -1: retention has deleted that batch."""


class DescribedReplica(Message):
    topic: str
    partition: int
    role: str
    leader_epoch: Epoch
    log_start_offset: Offset
    high_watermark: Offset
    log_end_offset: Offset
    isr: tuple[NodeId, ...] = ()
    maximal_isr: tuple[NodeId, ...] = ()
    remotes: tuple[RemoteReplica, ...] = ()
    acknowledged_end: Offset = -1
    """The leader's own end in the watermark rule: the synced one, under sync-before-acknowledge."""
    epoch_start_offset: Offset = -1
    """Where the present leader's epoch begins."""
    min_isr: int = -1
    proposed_isr: tuple[NodeId, ...] | None = None
    """What the controller has been asked for and has not yet recorded."""
    lag_time_max_ms: int = -1
    failure: str = ""
    """Why the replica is offline."""
    last_stable_offset: Offset = -1


class DescribeReplicasResponse(Failed):
    broker_id: NodeId = -1
    broker_epoch: int = -1
    wall_ms: int = -1
    """What the broker's clock says, milliseconds since 1970: who asks can see that it is wrong."""
    replicas: tuple[DescribedReplica, ...] = ()


class DescribeLogRequest(Request):
    """Our own: the answering broker's own log of one partition, committed or not; also of the metadata log."""

    topic: str
    partition: int
    offset: Offset = -1
    """Where to begin; -1: at the log's start. Batches are whole: the first is the one that holds ``offset``."""
    max_bytes: int = 1_048_576


class EpochStart(Message):
    leader_epoch: Epoch
    start_offset: Offset


class DescribeLogResponse(Failed):
    broker_id: NodeId = -1
    role: str = ""
    leader_epoch: Epoch = -1
    log_start_offset: Offset = -1
    high_watermark: Offset = -1
    log_end_offset: Offset = -1
    synced_end: Offset = -1
    segment_count: int = 0
    size_bytes: int = 0
    epochs: tuple[EpochStart, ...] = ()
    """The leader-epoch cache (S21)."""
    records: Records = ()


class ExplainPartitionRequest(Request):
    """Our own: what the answering broker knows of one partition, and what happened to it lately (DESIGN D9)."""

    topic: str
    partition: int


class StoryEntry(Message):
    """One event that the broker remembers."""

    event: str
    at_ms: int = -1
    """Milliseconds since 1970; -1: read from the metadata log at the start, so nobody here saw when."""
    cause: str = ""
    """Id of the request or timer that it happened for."""
    facts_json: str = "{}"


class ExplainPartitionResponse(Failed):
    broker_id: NodeId = -1
    replica: DescribedReplica | None = None
    """None: the broker has none."""
    story: tuple[StoryEntry, ...] = ()
    """Oldest first."""
    unstable: UnstableTransaction | None = None
    """None: the last stable offset is the high watermark, or the broker is not the leader."""
    watermark_moved: StoryEntry | None = None
    """The last time that the high watermark moved."""
    refused: StoryEntry | None = None
    """The last produce request that was refused, or not acknowledged."""
    producers: tuple[ActiveProducer, ...] = ()
    """Of the leader: producers with open transactions, then those that wrote last; not all if there are many."""
    producer_count: int = 0


class ReadHistoryRequest(Request):
    """Our own: what the answering broker knew of one partition at earlier times, and what happened to it."""

    topic: str | None = None
    """None: only the events, of all partitions and brokers."""
    partition: int = -1
    from_ms: int = 0
    """Milliseconds since 1970."""
    to_ms: int = 0
    max_rows: int = 1_000
    """The most samples, and the most events, of one response."""


class PastReplica(Message):
    """A replica as its broker reported it at one time."""

    at_ms: int
    broker_id: NodeId
    replica: DescribedReplica | None = None
    """None: the broker had none, or did not answer."""
    is_followed: bool = True
    """False: from here on the answering broker knows nothing of the replica, until its next sample."""


class ReadHistoryResponse(Failed):
    broker_id: NodeId = -1
    wall_ms: int = -1
    """The broker's time when it answered."""
    start_ms: int = -1
    """What is older is not complete."""
    end_ms: int = -1
    """Up to here everything is in the response: ``to_ms``, or less if there was more than ``max_rows``."""
    samples: tuple[PastReplica, ...] = ()
    """Of each replica the last one up to ``from_ms``, then those up to ``end_ms``, oldest first."""
    events: tuple[StoryEntry, ...] = ()
    """Oldest first. Of a partition, the latest ones before ``from_ms`` are the first."""


class AwaitStopRequest(Request):
    """Our own: the active controller holds one at each broker, to notice that its process has ended."""

    max_wait_ms: int = 0


class AwaitStopResponse(Failed):
    is_stopping: bool = False
    """False: the time is up, and the broker goes on."""
    broker_epoch: int = -1
    """Of the latest registration of the process that answers; -1: it has not registered yet."""


class EnvelopeRequest(Request):
    """Kafka's Envelope (KIP-590): a request of a client that another broker has received, and who sent it.

    Only brokers may send it. The receiver checks the permissions of the client by its own metadata.
    """

    api: str
    """Name of the API of ``request``."""
    request_principal: str
    """Principal of the client, as the broker where the request entered has authenticated it."""
    client_host_address: str = ""
    """IP address of the client; empty: not known."""
    listener: str = ""
    """Name of the listener where the request entered."""
    client_id: str = ""
    software: str = ""
    """Name and version of the client's library."""
    api_version: int = -1
    """Kafka's version of the API, if the request entered over Kafka's protocol."""
    broker_id: NodeId = -1
    """The broker where the request entered."""
    request: Records
    """Body of the request, as in ``/rpc``."""


class EnvelopeResponse(Failed):
    """An error is one of the envelope; those of the request are in ``response``."""

    response: Records = ()
    """Body of the response, as in ``/rpc``."""


class RunTestHookRequest(Request):
    """Our own, as Kafka's Envelope (KIP-590): a request to a testing route of ``/v1`` that another broker has received
    for this one, and who sent it. Only brokers may send it; the receiver checks the permissions of the sender that it
    names.
    """

    broker_id: NodeId
    """The broker that shall serve it."""
    route: str
    """Method and path as in the table of routes: ``DELETE /v1/faults/{fault}``."""
    path: dict[str, str] = {}
    """The variable parts of the path."""
    query: dict[str, str] = {}
    body: bytes = b""
    body_kind: str = "json"
    """``json`` or ``msgpack``."""
    principal: str = ""
    remote: str = ""
    listener: str = ""
    client_id: str = ""
    software: str = ""
    """Name and version of the sender's program."""


class RunTestHookResponse(Failed):
    status: int = 0
    """Of the HTTP response, also of a failure."""
    document: bytes = b""
    """Its body as JSON; of a failure, further members of the problem."""
    location: str = ""
    """Its ``Location``; empty: it has none."""


class ApiVersionsRequest(Request):
    client_id: str | None = None


class ApiVersion(Message):
    api: str
    api_key: int
    min_version: int
    max_version: int


class ApiVersionsResponse(Failed):
    apis: tuple[ApiVersion, ...] = ()
    broker_version: str = ""
