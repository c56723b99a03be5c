"""Errors for people: RFC 9457 problems with Kafka's name, number, ``retriable`` and ``outcome``.

The status of an error is in one table here. Two rules stand above it: what may have been written is 504, 500 or 507 (a
client must not take it for *send again*); and an error that says less than it should is never a 2xx.

An error's page also has what is behind it and where to look. Errors that say all themselves have none of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from minikafka import errors as kafka
from minikafka.errors import BY_CODE, UNKNOWN, InvalidRequest, ProtocolError
from minikafka.types import NodeId

_PARTITION = "/v1/topics/TOPIC/partitions/0"
_EXPLAIN = f"{_PARTITION}/explain"
_GROUP = "/v1/groups/GROUP"
_TRANSACTION = "/v1/transactions/TRANSACTIONAL_ID"


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
        "An election is under way, or nobody may lead: the members of the ISR are down, or, for the controller, a "
        "majority of the quorum's voters. Repeat; if it stays so, see who is missing.",
        (_EXPLAIN, "/v1/brokers", "/v1/controller"),
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
        "Another producer took the next epoch of this producer id, or its transaction has ended: this incarnation is "
        "fenced and must not write.",
        (f"{_PARTITION}/log",),
    ),
    kafka.ProducerFenced: Hint(
        "Another producer has this transactional id now, or the transaction was open for longer than its timeout and "
        "was aborted: nothing more of it can be committed. Begin again with `POST /v1/transactions`.",
        (_TRANSACTION,),
    ),
    kafka.InvalidProducerIdMapping: Hint(
        "The transactional id has another producer id, or was forgotten (transactional.id.expiration.ms). Begin again "
        "with `POST /v1/transactions`.",
        (_TRANSACTION,),
    ),
    kafka.InvalidTxnState: Hint(
        "This transaction is not open: nothing was written in it, or it has ended in the other way. Abort it if you do "
        "not know what became of its records.",
        (_TRANSACTION,),
    ),
    kafka.ConcurrentTransactions: Hint(
        "The last transaction of this producer is still being ended: repeat. If it stays so, a leader of one of its "
        "partitions is down.",
        (_TRANSACTION,),
    ),
    kafka.TransactionAbortable: Hint("The transaction can only be aborted.", (_TRANSACTION,)),
    kafka.InvalidTransactionTimeout: Hint(
        "The brokers bound it: transaction.max.timeout.ms.", ("/v1/brokers/1/configs",)
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
    kafka.ThrottlingQuotaExceeded: Hint(
        "Wait as Retry-After says; or close streams that nobody reads.", ("/v1/quotas", "/v1/cluster")
    ),
}


PROBLEM_TYPE = "application/problem+json"
PROBLEM_PAGES = "/docs/problems/"

# After this many seconds a retry of what is retriable makes sense: elections take about one.
RETRY_AFTER_S = 1

# Long addresses are cut: the number is what matters.
INSTANCE_PATH_LENGTH_MAX = 200
_CUT_ESCAPE = re.compile(r"%[0-9A-Fa-f]?$")
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_OF_A_PATH = "%/:@!$&'()*+,;="

# Nobody repairs more than this at once.
VALIDATION_ERROR_COUNT_MAX = 20

STATUS: dict[type[ProtocolError], int] = {
    each: status
    for status, family in {
        400: (
            kafka.InvalidRequest,
            kafka.InvalidRequiredAcks,
            kafka.SecurityDisabled,
            kafka.UnacceptableCredential,
            kafka.UnsupportedSaslMechanism,
            kafka.UnsupportedVersion,
        ),
        401: (kafka.SaslAuthenticationFailed,),
        403: (
            kafka.ClusterAuthorizationFailed,
            kafka.GroupAuthorizationFailed,
            kafka.TopicAuthorizationFailed,
            kafka.TransactionalIdAuthorizationFailed,
        ),
        404: (
            kafka.BrokerIdNotRegistered,
            kafka.GroupIdNotFound,
            kafka.ResourceNotFound,
            kafka.TransactionalIdNotFound,
            kafka.SnapshotNotFound,
            kafka.UnknownMemberId,
            kafka.UnknownTopicId,
            kafka.UnknownTopicOrPartition,
        ),
        409: (
            kafka.ConcurrentTransactions,
            kafka.DuplicateBrokerRegistration,
            kafka.DuplicateResource,
            kafka.DuplicateSequenceNumber,
            kafka.ElectionNotNeeded,
            kafka.FencedInstanceId,
            kafka.FencedLeaderEpoch,
            kafka.FencedMemberEpoch,
            kafka.FetchSessionIdNotFound,
            kafka.FetchSessionTopicIdError,
            kafka.IllegalGeneration,
            kafka.IllegalSaslState,
            kafka.InconsistentClusterId,
            kafka.InconsistentGroupProtocol,
            kafka.InconsistentTopicId,
            kafka.InconsistentVoterSet,
            kafka.IneligibleReplica,
            kafka.InvalidFetchSessionEpoch,
            kafka.InvalidProducerEpoch,
            kafka.InvalidProducerIdMapping,
            kafka.InvalidTxnState,
            kafka.InvalidUpdateVersion,
            kafka.MemberIdRequired,
            kafka.NewLeaderElected,
            kafka.NoReassignmentInProgress,
            kafka.NonEmptyGroup,
            kafka.GroupSubscribedToTopic,
            kafka.OperationNotAttempted,
            kafka.OutOfOrderSequenceNumber,
            kafka.ProducerFenced,
            kafka.ReassignmentInProgress,
            kafka.RebalanceInProgress,
            kafka.StaleBrokerEpoch,
            kafka.StaleMemberEpoch,
            kafka.TopicAlreadyExists,
            kafka.TransactionAbortable,
            kafka.TransactionCoordinatorFenced,
            kafka.UnknownProducerId,
            kafka.UnreleasedInstanceId,
        ),
        413: (
            kafka.GroupMaxSizeReached,
            kafka.MessageTooLarge,
            kafka.OffsetMetadataTooLarge,
            kafka.RecordListTooLarge,
        ),
        416: (kafka.OffsetOutOfRange, kafka.PositionOutOfRange),
        421: (kafka.NotController, kafka.NotCoordinator, kafka.NotLeaderOrFollower),
        422: (
            kafka.CorruptMessage,
            kafka.InvalidConfig,
            kafka.InvalidGroupId,
            kafka.InvalidPartitions,
            kafka.InvalidRecord,
            kafka.InvalidReplicaAssignment,
            kafka.InvalidReplicationFactor,
            kafka.InvalidSessionTimeout,
            kafka.InvalidTimestamp,
            kafka.InvalidTopic,
            kafka.InvalidTransactionTimeout,
            kafka.InvalidVoterKey,
            kafka.InvalidRegularExpression,
            kafka.PolicyViolation,
            kafka.UnsupportedAssignor,
            kafka.UnsupportedCompressionType,
            kafka.UnsupportedForMessageFormat,
        ),
        429: (kafka.ThrottlingQuotaExceeded,),
        500: (kafka.UnknownServerError,),
        503: (
            kafka.BrokerNotAvailable,
            kafka.CoordinatorLoadInProgress,
            kafka.CoordinatorNotAvailable,
            kafka.EligibleLeadersNotAvailable,
            kafka.LeaderNotAvailable,
            kafka.NotEnoughReplicas,
            kafka.OffsetNotAvailable,
            kafka.PreferredLeaderNotAvailable,
            kafka.ReplicaNotAvailable,
            kafka.UnknownLeaderEpoch,
            kafka.UnstableOffsetCommit,
        ),
        504: (kafka.NetworkException, kafka.NotEnoughReplicasAfterAppend, kafka.RequestTimedOut),
        507: (kafka.KafkaStorageError,),
    }.items()
    for each in family
}

Fault: TypeAlias = dict[str, Any]
"""One thing that is wrong with a request: ``pointer`` (RFC 6901), ``parameter`` or ``line``, and ``detail``."""


class Occurrences:
    """Numbers the problems that one broker's doors tell, for ``instance`` (RFC 9457, 3.1.5)."""

    def __init__(self, node: NodeId = 0, since_ms: int = 0) -> None:
        self._prefix = f"{node}.{since_ms}"
        self._count = 0

    def next(self, path: str) -> str:
        """What was asked for, and which problem: ``/v1/topics#2.1763778900123.17`` is broker 2's seventeenth since
        its start at that time (ms since 1970).
        """
        self._count += 1
        # As it came, but a URI: an escape that was cut, or was none, is none.
        shown = _NO_ESCAPE.sub("%25", _CUT_ESCAPE.sub("", path[:INSTANCE_PATH_LENGTH_MAX]))
        return f"{quote(shown, safe=_OF_A_PATH, errors='replace')}#{self._prefix}.{self._count}"


class Refused(Exception):
    """An error whose status, headers or members are set where it is raised."""

    def __init__(
        self,
        error: ProtocolError,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = status_of(error) if status is None else status
        self.headers = dict(headers or {})
        self.members = members

    @classmethod
    def of(cls, raised: Refused | ProtocolError) -> Refused:
        """Return what was raised, with the status of its error if it has none of its own."""
        return raised if isinstance(raised, Refused) else cls(raised)

    def problem(self, instance: str | None = None) -> dict[str, Any]:
        """Return the members of the problem; see :func:`problem_of`."""
        return problem_of(self.error, status=self.status, instance=instance, **self.members)


def malformed(
    detail: str,
    faults: Sequence[Fault] = (),
    *,
    status: int = 400,
    error: type[ProtocolError] = InvalidRequest,
    **members: Any,
) -> Refused:
    """A request that cannot be understood; nothing was done."""
    refused = Refused(error(detail), status=status, **members)
    if faults:
        refused.members["errors"] = list(faults[:VALIDATION_ERROR_COUNT_MAX])
    return refused


def unacceptable(faults: Sequence[Fault]) -> Refused:
    """422: the JSON is well formed and says something that is not possible."""
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return malformed(f"{first['pointer'] or 'the body'}: {first['detail']}{more}", faults, status=422)


def status_of(error: ProtocolError) -> int:
    """The HTTP status that says the same."""
    status = STATUS.get(type(error), 500)
    if error.outcome == UNKNOWN and (status < 500 or status == 503):
        return 504
    return status


def problem_of(
    error: ProtocolError, *, status: int | None = None, instance: str | None = None, **members: object
) -> dict[str, Any]:
    """The members of the problem: RFC 9457's first, Kafka's next, then the facts of this case.

    Without ``instance``, which only a whole answer of ``/v1`` has, there is none.
    """
    kind = type(error)
    status = status_of(error) if status is None else status
    problem: dict[str, Any] = {
        "type": PROBLEM_PAGES + slug_of(kind),
        "title": title_of(kind),
        "status": status,
        "detail": error.message,
        **({} if instance is None else {"instance": instance}),
        "error": error.name,
        "error_code": error.code,
        "message": error.message,
        "retriable": is_retriable(kind, status),
        "outcome": error.outcome,
    }
    for name, value in (*error.facts.items(), *members.items()):
        problem.setdefault(name, _plain(value))
    return problem


def is_retriable(kind: type[ProtocolError], status: int) -> bool:
    """Return True if the same request may succeed later: as Kafka says, and for every 503.

    Kafka's table does not call BROKER_NOT_AVAILABLE retriable, because its clients see a closed connection instead.
    """
    return kind.retriable or status == 503


def _plain(value: object) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, Iterable):
        return [_plain(each) for each in value]
    return str(value)


def title_of(kind: type[ProtocolError]) -> str:
    """The same for every problem of a type (RFC 9457, 3.1.3)."""
    return (kind.__doc__ or kind.name).strip().splitlines()[0].removesuffix(".")


def slug_of(kind: type[ProtocolError]) -> str:
    """``NOT_ENOUGH_REPLICAS`` as the last part of an address."""
    return kind.name.lower().replace("_", "-")


def page_of(slug: str) -> dict[str, Any] | None:
    """What the address in ``type`` answers: what an error means, what is behind it, and what to look at."""
    kind = next((each for each in BY_CODE.values() if slug_of(each) == slug), None)
    if kind is None:
        return None
    hint = HINTS.get(kind, Hint())
    return {
        "type": PROBLEM_PAGES + slug,
        "error": kind.name,
        "error_code": kind.code,
        "status": STATUS[kind],
        "retriable": is_retriable(kind, STATUS[kind]),
        "meaning": re.sub(r"\s+", " ", kind.__doc__ or "").strip(),
        "cause": hint.cause,
        "look_at": [f"curl http://127.0.0.1:9092{path}" for path in hint.look_at],
    }
