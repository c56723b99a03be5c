"""What is behind an error, and where to look: the second half of its page. Errors that say all themselves have none."""

from __future__ import annotations

from typing import NamedTuple

from minikafka import errors as kafka
from minikafka.errors import ProtocolError

_PARTITION = "/v1/topics/TOPIC/partitions/0"
_EXPLAIN = f"{_PARTITION}/explain"
_GROUP = "/v1/groups/GROUP"


class Hint(NamedTuple):
    """What is behind an error, and paths that show more."""

    cause: str = ""
    look_at: tuple[str, ...] = ()


HINTS: dict[type[ProtocolError], Hint] = {
    kafka.OffsetOutOfRange: Hint(
        "Records before the log's start were deleted, or records at its end were never committed and cut away. Begin "
        "at `log_start_offset` or `high_watermark`, which the problem names.",
        (f"{_PARTITION}/offsets?at=earliest", f"{_PARTITION}/offsets?at=latest"),
    ),
    kafka.CorruptMessage: Hint(
        "The checksum does not fit the bytes. In a produce request: they were damaged on their way. In a read: on the "
        "disk; the log of another replica may be whole.",
        (f"{_PARTITION}/log?replica=2&records=true",),
    ),
    kafka.UnknownTopicOrPartition: Hint(
        "The name is wrong, or this broker has not heard of it yet (a fetch of the metadata log, some milliseconds).",
        ("/v1/topics",),
    ),
    kafka.LeaderNotAvailable: Hint(
        "An election is under way, or nobody may lead: the members of the ISR are down. Repeat; if it stays so, see "
        "who is missing.",
        (_EXPLAIN, "/v1/brokers"),
    ),
    kafka.NotLeaderOrFollower: Hint(
        "The leader moved. With `forward=never`, ask the broker that the problem names.",
        (_PARTITION,),
    ),
    kafka.RequestTimedOut: Hint(
        "The records are at the leader, and some in-sync replica has not acknowledged them in time. They may still be "
        "committed: with a producer id the same request may be repeated without writing twice.",
        (_PARTITION, _EXPLAIN),
    ),
    kafka.NotEnoughReplicas: Hint(
        "Fewer replicas are in sync than min.insync.replicas asks for: brokers are down or behind. Nothing was "
        "written.",
        (_PARTITION, _EXPLAIN),
    ),
    kafka.NotEnoughReplicasAfterAppend: Hint(
        "The ISR shrank after the append. The records are in the log and may be committed when replicas come back.",
        (_PARTITION, _EXPLAIN),
    ),
    kafka.MessageTooLarge: Hint(
        "The batch is larger than the topic's max.message.bytes: send fewer records at once, or raise it.",
        ("/v1/topics/TOPIC",),
    ),
    kafka.NetworkException: Hint(
        "The broker that was asked on your behalf did not answer: what became of the request is not known.",
        ("/v1/brokers", _PARTITION),
    ),
    kafka.BrokerNotAvailable: Hint("This broker starts or stops: ask another one, or later.", ("/readyz",)),
    kafka.ReplicaNotAvailable: Hint("The broker has no replica of this partition.", (_PARTITION,)),
    kafka.OutOfOrderSequenceNumber: Hint(
        "`Base-Sequence` leaves a gap: an earlier batch of this producer was not written to this partition.",
        (f"{_PARTITION}/log",),
    ),
    kafka.InvalidProducerEpoch: Hint(
        "Another producer took the next epoch of this producer id: this incarnation is fenced and must not write.",
        (f"{_PARTITION}/log",),
    ),
    kafka.NotController: Hint("With `forward=never`, ask the controller that the problem names.", ("/v1/controller",)),
    kafka.ElectionNotNeeded: Hint(
        "The partition is led by its preferred replica, or, for an unclean election, by anybody.",
        (_PARTITION,),
    ),
    kafka.PreferredLeaderNotAvailable: Hint(
        "The first replica of the assignment is down, or not in sync: it comes back by itself.",
        (_PARTITION, _EXPLAIN),
    ),
    kafka.EligibleLeadersNotAvailable: Hint("No replica lives.", ("/v1/brokers", _EXPLAIN)),
    kafka.OffsetNotAvailable: Hint(
        "A new leader does not know yet how far its predecessor had committed: one fetch of its followers tells.",
        (_PARTITION,),
    ),
    kafka.KafkaStorageError: Hint(
        "The disk under the log failed or is full; the broker hands over what it leads and stops.",
        ("/v1/brokers", "/readyz"),
    ),
    kafka.FencedLeaderEpoch: Hint("The caller's leader epoch is over; look up the present one.", (_PARTITION,)),
    kafka.UnknownLeaderEpoch: Hint("The caller knows a newer leader epoch than this broker: repeat.", (_PARTITION,)),
    kafka.GroupIdNotFound: Hint(
        "The name is wrong, or the group was deleted, or has expired (offsets.retention.minutes).", ("/v1/groups",)
    ),
    kafka.UnknownMemberId: Hint(
        "The member has left, or was silent for its session timeout, and the group has gone on without it: join "
        "without a member id. Of a commit by hand: the group has members, and only they may commit.",
        (_GROUP,),
    ),
    kafka.IllegalGeneration: Hint(
        "The group has rebalanced since: the partitions may be another member's. Nothing was committed; join again.",
        (_GROUP,),
    ),
    kafka.RebalanceInProgress: Hint(
        "The group rebalances and waits for its members: join again, with the same member id.",
        (_GROUP,),
    ),
    kafka.FencedInstanceId: Hint(
        "Another process joined with the same group.instance.id. Give each its own, or stop one of them.", (_GROUP,)
    ),
    kafka.InconsistentGroupProtocol: Hint(
        "Members must share an assignor: offer one that the others offer too.", (_GROUP,)
    ),
    kafka.InvalidSessionTimeout: Hint(
        "The brokers bound it: group.min.session.timeout.ms and group.max.session.timeout.ms.",
        ("/v1/brokers/1/configs",),
    ),
    kafka.OffsetMetadataTooLarge: Hint(
        "What stands beside an offset is bounded by offset.metadata.max.bytes: keep the rest elsewhere.",
        ("/v1/brokers/1/configs",),
    ),
    kafka.NonEmptyGroup: Hint("It has members: stop them, or remove them (DELETE of a member), and repeat.", (_GROUP,)),
    kafka.NotCoordinator: Hint("With `forward=never`, ask the broker that the problem names.", (_GROUP,)),
    kafka.CoordinatorNotAvailable: Hint(
        "The leader of the group's partition of __consumer_offsets is being elected, or cannot commit: repeat.",
        ("/v1/topics/__consumer_offsets",),
    ),
    kafka.CoordinatorLoadInProgress: Hint(
        "A new coordinator reads the group's log: repeat.", ("/v1/topics/__consumer_offsets",)
    ),
    kafka.ThrottlingQuotaExceeded: Hint("Close streams that nobody reads.", ("/v1/cluster",)),
}
