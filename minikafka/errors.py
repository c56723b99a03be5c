"""Every failure that is expected, in two families; anything else that a rule raises is a bug.

::

    ProtocolError            answered on the wire with Kafka's number; says if a retry can help and what became of
      |                      the request: not_written, written or unknown
      +-- one class per code of Kafka's Errors table (KAFKA-FACTS 8)
    WorldError               what the world did to us
      +-- Unreachable        the connection was never made: the request did not happen
      |     +-- ConnectionRefused   and the peer's machine said that nothing listens there
      +-- RequestRefused     HTTP itself refused it: the request did not happen, but a server listens
      +-- OutcomeUnknown     anything else on the network: it may have happened
      +-- DiskFull           an append was refused; the file is as before
      +-- DiskFailed         a write, read or sync failed: the log must stop and recover from disk

``InvariantViolation`` (a bug) is not in this tree on purpose: nobody catches it with the others.

At the end of this file is how errors about unknown names suggest others: "did you mean ...?".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar, Literal

Outcome = Literal["not_written", "written", "unknown"]

NOT_WRITTEN: Outcome = "not_written"
WRITTEN: Outcome = "written"
UNKNOWN: Outcome = "unknown"


MESSAGE_LENGTH_MAX = 7_000
"""Characters of an error's sentence. Many repeat the name that they refuse, which may have 32,767 bytes in a request. A
text in a response of Kafka's protocol may have no more, whatever stands around the name.
"""

_KEPT_AT_EACH_END = MESSAGE_LENGTH_MAX // 2 - 50


class ProtocolError(Exception):
    """A request that was answered with an error.

    Of a ``message`` beyond MESSAGE_LENGTH_MAX the beginning and the end are kept.
    ``outcome`` is what the caller may believe about a write: ``not_written`` (safe to send again), ``written`` or
    ``unknown``. It is set where the error is raised, for only that place knows.
    ``facts`` go into structured answers (``isr=[1]``, ``leader=2``).
    """

    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    retriable: ClassVar[bool] = False
    stale_metadata: ClassVar[bool] = False
    """Kafka's InvalidMetadataException: the client's picture of the cluster is old, refresh it."""

    record_errors: tuple[tuple[int, str], ...] = ()
    """Records for which a batch was refused: number within the batch, counted from 0, and why (KIP-467)."""

    def __init__(self, message: str = "", *, outcome: Outcome = NOT_WRITTEN, **facts: object) -> None:
        if len(message) > MESSAGE_LENGTH_MAX:
            left_out = len(message) - 2 * _KEPT_AT_EACH_END
            message = f"{message[:_KEPT_AT_EACH_END]} ... ({left_out} characters) ... {message[-_KEPT_AT_EACH_END:]}"
        super().__init__(message or self.name)
        self.message = message or self.name
        self.outcome: Outcome = outcome
        self.facts = facts


BY_CODE: dict[int, type[ProtocolError]] = {}
BY_NAME: dict[str, type[ProtocolError]] = {}


class UnknownServerError(ProtocolError):
    """A bug or a failure that has no code of its own; the broker's log has the story."""


class OffsetOutOfRange(ProtocolError):
    """The offset is below the log start or beyond the log end."""

    code, name = 1, "OFFSET_OUT_OF_RANGE"


class CorruptMessage(ProtocolError):
    """A batch's length, magic, checksum or count is wrong."""

    code, name = 2, "CORRUPT_MESSAGE"
    retriable = True


class UnknownTopicOrPartition(ProtocolError):
    """This broker does not host such a partition."""

    code, name = 3, "UNKNOWN_TOPIC_OR_PARTITION"
    retriable = True
    stale_metadata = True


class LeaderNotAvailable(ProtocolError):
    """The leader of a partition, or of the quorum (the controller), is not available."""

    code, name = 5, "LEADER_NOT_AVAILABLE"
    retriable = True
    stale_metadata = True


class NotLeaderOrFollower(ProtocolError):
    """This broker does not lead the partition."""

    code, name = 6, "NOT_LEADER_OR_FOLLOWER"
    retriable = True
    stale_metadata = True


class RequestTimedOut(ProtocolError):
    """The request's own timeout ran out; data that was appended stays."""

    code, name = 7, "REQUEST_TIMED_OUT"
    retriable = True


class BrokerNotAvailable(ProtocolError):
    """The broker is stopping or not yet started."""

    code, name = 8, "BROKER_NOT_AVAILABLE"


class ReplicaNotAvailable(ProtocolError):
    """The replica is not on this broker, or not yet."""

    code, name = 9, "REPLICA_NOT_AVAILABLE"
    retriable = True
    stale_metadata = True


class MessageTooLarge(ProtocolError):
    """A batch is larger than max.message.bytes."""

    code, name = 10, "MESSAGE_TOO_LARGE"


class OffsetMetadataTooLarge(ProtocolError):
    """Commit metadata is larger than offset.metadata.max.bytes."""

    code, name = 12, "OFFSET_METADATA_TOO_LARGE"


class NetworkException(ProtocolError):
    """The connection broke before an answer came."""

    code, name = 13, "NETWORK_EXCEPTION"
    retriable = True
    stale_metadata = True


class CoordinatorLoadInProgress(ProtocolError):
    """The coordinator still reads its log."""

    code, name = 14, "COORDINATOR_LOAD_IN_PROGRESS"
    retriable = True


class CoordinatorNotAvailable(ProtocolError):
    """The group's coordinator is not known."""

    code, name = 15, "COORDINATOR_NOT_AVAILABLE"
    retriable = True


class NotCoordinator(ProtocolError):
    """This broker does not coordinate the group."""

    code, name = 16, "NOT_COORDINATOR"
    retriable = True


class InvalidTopic(ProtocolError):
    """The topic's name is not legal, or the topic may not be used so."""

    code, name = 17, "INVALID_TOPIC_EXCEPTION"


class RecordListTooLarge(ProtocolError):
    """A batch set is larger than segment.bytes."""

    code, name = 18, "RECORD_LIST_TOO_LARGE"


class NotEnoughReplicas(ProtocolError):
    """Fewer in-sync replicas than min.insync.replicas: nothing was written."""

    code, name = 19, "NOT_ENOUGH_REPLICAS"
    retriable = True


class NotEnoughReplicasAfterAppend(ProtocolError):
    """Written, but by fewer replicas than min.insync.replicas."""

    code, name = 20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    retriable = True


class InvalidRequiredAcks(ProtocolError):
    """acks is not one of -1, 0, 1."""

    code, name = 21, "INVALID_REQUIRED_ACKS"


class IllegalGeneration(ProtocolError):
    """The group has moved to another generation."""

    code, name = 22, "ILLEGAL_GENERATION"


class InconsistentGroupProtocol(ProtocolError):
    """The member shares no assignor with the group."""

    code, name = 23, "INCONSISTENT_GROUP_PROTOCOL"


class InvalidGroupId(ProtocolError):
    """The group's name is empty or not legal."""

    code, name = 24, "INVALID_GROUP_ID"


class UnknownMemberId(ProtocolError):
    """The group does not know this member."""

    code, name = 25, "UNKNOWN_MEMBER_ID"


class InvalidSessionTimeout(ProtocolError):
    """The session timeout is outside the broker's range."""

    code, name = 26, "INVALID_SESSION_TIMEOUT"


class RebalanceInProgress(ProtocolError):
    """The group is rebalancing: join again."""

    code, name = 27, "REBALANCE_IN_PROGRESS"


class TopicAuthorizationFailed(ProtocolError):
    """The client may not do this with the topic."""

    code, name = 29, "TOPIC_AUTHORIZATION_FAILED"


class GroupAuthorizationFailed(ProtocolError):
    """The client may not use the group."""

    code, name = 30, "GROUP_AUTHORIZATION_FAILED"


class ClusterAuthorizationFailed(ProtocolError):
    """The client may not do this with the cluster."""

    code, name = 31, "CLUSTER_AUTHORIZATION_FAILED"


class InvalidTimestamp(ProtocolError):
    """A record's timestamp is outside the accepted range."""

    code, name = 32, "INVALID_TIMESTAMP"


class UnsupportedSaslMechanism(ProtocolError):
    """The listener does not offer this SASL mechanism."""

    code, name = 33, "UNSUPPORTED_SASL_MECHANISM"


class IllegalSaslState(ProtocolError):
    """The request does not fit the state of the connection's login."""

    code, name = 34, "ILLEGAL_SASL_STATE"


class UnsupportedVersion(ProtocolError):
    """The broker does not speak this version of the API."""

    code, name = 35, "UNSUPPORTED_VERSION"


class TopicAlreadyExists(ProtocolError):
    """A topic with this name exists."""

    code, name = 36, "TOPIC_ALREADY_EXISTS"


class InvalidPartitions(ProtocolError):
    """The number of partitions is not acceptable."""

    code, name = 37, "INVALID_PARTITIONS"


class InvalidReplicationFactor(ProtocolError):
    """Below 1 or above the number of usable brokers."""

    code, name = 38, "INVALID_REPLICATION_FACTOR"


class InvalidReplicaAssignment(ProtocolError):
    """The assignment names unknown or repeated brokers."""

    code, name = 39, "INVALID_REPLICA_ASSIGNMENT"


class InvalidConfig(ProtocolError):
    """A setting's name or value is not acceptable."""

    code, name = 40, "INVALID_CONFIG"


class NotController(ProtocolError):
    """This node is not the active controller."""

    code, name = 41, "NOT_CONTROLLER"
    retriable = True


class InvalidRequest(ProtocolError):
    """The request is malformed or contradicts itself."""

    code, name = 42, "INVALID_REQUEST"


class PolicyViolation(ProtocolError):
    """The topic's policy forbids this."""

    code, name = 44, "POLICY_VIOLATION"


class OutOfOrderSequenceNumber(ProtocolError):
    """A batch's sequence leaves a gap after the last one."""

    code, name = 45, "OUT_OF_ORDER_SEQUENCE_NUMBER"


class DuplicateSequenceNumber(ProtocolError):
    """The batch was appended before."""

    code, name = 46, "DUPLICATE_SEQUENCE_NUMBER"


class InvalidProducerEpoch(ProtocolError):
    """A newer incarnation of the producer exists."""

    code, name = 47, "INVALID_PRODUCER_EPOCH"


class InvalidTxnState(ProtocolError):
    """The transaction is not in a state that allows this."""

    code, name = 48, "INVALID_TXN_STATE"


class InvalidProducerIdMapping(ProtocolError):
    """The producer id does not belong to the transactional id."""

    code, name = 49, "INVALID_PRODUCER_ID_MAPPING"


class InvalidTransactionTimeout(ProtocolError):
    """Larger than transaction.max.timeout.ms."""

    code, name = 50, "INVALID_TRANSACTION_TIMEOUT"


class ConcurrentTransactions(ProtocolError):
    """Another operation on the transaction is under way."""

    code, name = 51, "CONCURRENT_TRANSACTIONS"
    retriable = True


class TransactionCoordinatorFenced(ProtocolError):
    """A newer coordinator exists."""

    code, name = 52, "TRANSACTION_COORDINATOR_FENCED"


class TransactionalIdAuthorizationFailed(ProtocolError):
    """The client may not use the transactional id."""

    code, name = 53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


class SecurityDisabled(ProtocolError):
    """There is no authorizer, so there are no ACLs."""

    code, name = 54, "SECURITY_DISABLED"


class OperationNotAttempted(ProtocolError):
    """Not tried, because another part of the request failed."""

    code, name = 55, "OPERATION_NOT_ATTEMPTED"


class KafkaStorageError(ProtocolError):
    """The log's disk failed; the log is stopped."""

    code, name = 56, "KAFKA_STORAGE_ERROR"
    retriable = True
    stale_metadata = True


class SaslAuthenticationFailed(ProtocolError):
    """The login failed."""

    code, name = 58, "SASL_AUTHENTICATION_FAILED"


class UnknownProducerId(ProtocolError):
    """The broker has no state for this producer."""

    code, name = 59, "UNKNOWN_PRODUCER_ID"


class ReassignmentInProgress(ProtocolError):
    """A reassignment is under way."""

    code, name = 60, "REASSIGNMENT_IN_PROGRESS"


class NonEmptyGroup(ProtocolError):
    """The group still has members."""

    code, name = 68, "NON_EMPTY_GROUP"


class GroupIdNotFound(ProtocolError):
    """No such group."""

    code, name = 69, "GROUP_ID_NOT_FOUND"


class FetchSessionIdNotFound(ProtocolError):
    """The fetch session is gone: start a full one."""

    code, name = 70, "FETCH_SESSION_ID_NOT_FOUND"
    retriable = True


class InvalidFetchSessionEpoch(ProtocolError):
    """The fetch session's epoch is not the expected one."""

    code, name = 71, "INVALID_FETCH_SESSION_EPOCH"
    retriable = True


class FencedLeaderEpoch(ProtocolError):
    """The request's leader epoch is older than this broker's."""

    code, name = 74, "FENCED_LEADER_EPOCH"
    retriable = True
    stale_metadata = True


class UnknownLeaderEpoch(ProtocolError):
    """The request's leader epoch is newer than this broker's."""

    code, name = 75, "UNKNOWN_LEADER_EPOCH"
    retriable = True


class UnsupportedForMessageFormat(ProtocolError):
    """The records of this partition cannot be read in this way."""

    code, name = 43, "UNSUPPORTED_FOR_MESSAGE_FORMAT"


class UnsupportedCompressionType(ProtocolError):
    """The codec is not known."""

    code, name = 76, "UNSUPPORTED_COMPRESSION_TYPE"


class StaleBrokerEpoch(ProtocolError):
    """The broker has registered again since."""

    code, name = 77, "STALE_BROKER_EPOCH"


class OffsetNotAvailable(ProtocolError):
    """The new leader's high watermark is still behind its epoch's start."""

    code, name = 78, "OFFSET_NOT_AVAILABLE"
    retriable = True


class MemberIdRequired(ProtocolError):
    """Join again with the member id of this answer."""

    code, name = 79, "MEMBER_ID_REQUIRED"


class PreferredLeaderNotAvailable(ProtocolError):
    """The preferred replica cannot lead now."""

    code, name = 80, "PREFERRED_LEADER_NOT_AVAILABLE"
    retriable = True


class GroupMaxSizeReached(ProtocolError):
    """The group is full."""

    code, name = 81, "GROUP_MAX_SIZE_REACHED"


class FencedInstanceId(ProtocolError):
    """Another member uses this group.instance.id."""

    code, name = 82, "FENCED_INSTANCE_ID"


class EligibleLeadersNotAvailable(ProtocolError):
    """No replica that may lead is alive."""

    code, name = 83, "ELIGIBLE_LEADERS_NOT_AVAILABLE"
    retriable = True


class ElectionNotNeeded(ProtocolError):
    """The partition has the wanted leader already."""

    code, name = 84, "ELECTION_NOT_NEEDED"
    retriable = True


class NoReassignmentInProgress(ProtocolError):
    """There is no reassignment to cancel."""

    code, name = 85, "NO_REASSIGNMENT_IN_PROGRESS"


class GroupSubscribedToTopic(ProtocolError):
    """Members of the group read the topic: its offsets stay."""

    code, name = 86, "GROUP_SUBSCRIBED_TO_TOPIC"


class InvalidRecord(ProtocolError):
    """A record breaks the topic's rules."""

    code, name = 87, "INVALID_RECORD"


class UnstableOffsetCommit(ProtocolError):
    """Offsets of an open transaction are pending."""

    code, name = 88, "UNSTABLE_OFFSET_COMMIT"
    retriable = True


class ThrottlingQuotaExceeded(ProtocolError):
    """More of this is under way than one broker serves: try again later."""

    code, name = 89, "THROTTLING_QUOTA_EXCEEDED"
    retriable = True


class ProducerFenced(ProtocolError):
    """A newer producer with this transactional id exists."""

    code, name = 90, "PRODUCER_FENCED"


class ResourceNotFound(ProtocolError):
    """The named thing does not exist."""

    code, name = 91, "RESOURCE_NOT_FOUND"


class DuplicateResource(ProtocolError):
    """The request names a thing twice."""

    code, name = 92, "DUPLICATE_RESOURCE"


class UnacceptableCredential(ProtocolError):
    """The credential does not meet the requirements."""

    code, name = 93, "UNACCEPTABLE_CREDENTIAL"


class InconsistentVoterSet(ProtocolError):
    """The node is not a voter of this quorum."""

    code, name = 94, "INCONSISTENT_VOTER_SET"


class InvalidUpdateVersion(ProtocolError):
    """The partition epoch is not the current one, or a feature cannot get this level."""

    code, name = 95, "INVALID_UPDATE_VERSION"


class SnapshotNotFound(ProtocolError):
    """No such snapshot."""

    code, name = 98, "SNAPSHOT_NOT_FOUND"


class PositionOutOfRange(ProtocolError):
    """The position is beyond the snapshot's end."""

    code, name = 99, "POSITION_OUT_OF_RANGE"


class UnknownTopicId(ProtocolError):
    """No topic has this id."""

    code, name = 100, "UNKNOWN_TOPIC_ID"
    retriable = True
    stale_metadata = True


class DuplicateBrokerRegistration(ProtocolError):
    """Another live broker uses this node.id."""

    code, name = 101, "DUPLICATE_BROKER_REGISTRATION"


class BrokerIdNotRegistered(ProtocolError):
    """No broker with this id is registered."""

    code, name = 102, "BROKER_ID_NOT_REGISTERED"


class InconsistentTopicId(ProtocolError):
    """The topic was deleted and created again."""

    code, name = 103, "INCONSISTENT_TOPIC_ID"
    retriable = True
    stale_metadata = True


class InconsistentClusterId(ProtocolError):
    """The node belongs to another cluster."""

    code, name = 104, "INCONSISTENT_CLUSTER_ID"


class TransactionalIdNotFound(ProtocolError):
    """The transaction coordinator has no record of this transactional id."""

    code, name = 105, "TRANSACTIONAL_ID_NOT_FOUND"


class FetchSessionTopicIdError(ProtocolError):
    """A topic id changed in the fetch session."""

    code, name = 106, "FETCH_SESSION_TOPIC_ID_ERROR"
    retriable = True


class IneligibleReplica(ProtocolError):
    """A proposed ISR member is fenced, stopping or re-registered."""

    code, name = 107, "INELIGIBLE_REPLICA"


class NewLeaderElected(ProtocolError):
    """The change made another replica the leader."""

    code, name = 108, "NEW_LEADER_ELECTED"


class FencedMemberEpoch(ProtocolError):
    """The member's epoch is old: join again."""

    code, name = 110, "FENCED_MEMBER_EPOCH"


class UnreleasedInstanceId(ProtocolError):
    """The instance id is still in use."""

    code, name = 111, "UNRELEASED_INSTANCE_ID"


class UnsupportedAssignor(ProtocolError):
    """The coordinator does not know this assignor."""

    code, name = 112, "UNSUPPORTED_ASSIGNOR"


class StaleMemberEpoch(ProtocolError):
    """The member's epoch is behind."""

    code, name = 113, "STALE_MEMBER_EPOCH"


class TransactionAbortable(ProtocolError):
    """The transaction must be aborted."""

    code, name = 120, "TRANSACTION_ABORTABLE"


class InvalidVoterKey(ProtocolError):
    """The voter's key is not that of this node."""

    code, name = 125, "INVALID_VOTER_KEY"


class InvalidRegularExpression(ProtocolError):
    """The regular expression cannot be used."""

    code, name = 128, "INVALID_REGULAR_EXPRESSION"


for _class in ProtocolError.__subclasses__():
    BY_CODE[_class.code] = _class
    BY_NAME[_class.name] = _class


def error_name(code: int) -> str:
    """Kafka's name of an answered ``code``; a peer of another version may send one that is not known here."""
    known = BY_CODE.get(code)
    return known.name if known is not None else f"error {code}"


def error_of(code: int, message: str = "", *, outcome: Outcome = NOT_WRITTEN) -> ProtocolError:
    """The exception for an answered ``code``; a code that this version does not know is an UnknownServerError."""
    known = BY_CODE.get(code)
    if known is None:
        return UnknownServerError(f"error code {code}: {message}", outcome=UNKNOWN)
    return known(message, outcome=outcome)


class WorldError(Exception):
    """Something outside the process failed."""


class Unreachable(WorldError):
    """No connection was made: the request did not happen."""


class ConnectionRefused(Unreachable):
    """The peer's machine answered that nothing listens at the address: the process that did has ended."""


class TlsFailed(Unreachable):
    """The two ends do not agree on TLS: plain text against TLS, or a certificate that one of them does not accept."""


class RequestRefused(WorldError):
    """The server refused the request before it read it (HTTP 403, 413, 415, ...): the request did not happen."""


class LoginRefused(RequestRefused):
    """The server refused the credentials of a request (HTTP 401), or wants some."""


class OutcomeUnknown(WorldError):
    """The request may have happened; nobody can tell from here."""


class NotABroker(OutcomeUnknown):
    """Another program listens at this address: its answer is not that of a broker."""


class DiskFull(WorldError):
    """The append was refused and the file is as it was."""


class DiskFailed(WorldError):
    """A write, read or sync failed; after a failed sync the page cache may have dropped data."""


def in_words(error: BaseException) -> str:
    """What went wrong, for people: of the system's errors without their number (``[Errno 111]``)."""
    return getattr(error, "strerror", None) or str(error) or repr(error)


# ---- suggestions -----------------------------------------------------------------------------------------------------


LENGTH_MAX = 100
"""Characters of a name that are compared. No known name is as long, and comparing a longer one takes long."""
CUTOFF = 0.6
"""Similarity that a suggestion needs, from 0 to 1; difflib's own default."""


def nearest(name: str, known: Iterable[str], *, count: int = 1, cutoff: float = CUTOFF) -> list[str]:
    """Return up to ``count`` of the known names that are similar to ``name``, the most similar first."""
    return difflib.get_close_matches(name[:LENGTH_MAX], list(known), n=count, cutoff=cutoff)


def did_you_mean(
    name: str,
    known: Iterable[str],
    *,
    otherwise: str = "",
    quoted: bool = False,
    count: int = 1,
    cutoff: float = CUTOFF,
) -> str:
    """Return the end of an error about an unknown name.

    Args:
        name: The name that does not exist.
        known: The names that exist.
        otherwise: What to say if no known name is similar.
        quoted: Put the suggestions in quotes.
        count: How many suggestions there may be.
        cutoff: Similarity that a suggestion needs.

    Returns:
        ``; did you mean A or B?``, or ``; OTHERWISE``, or an empty string.
    """
    near = nearest(name, known, count=count, cutoff=cutoff)
    if near:
        return f"; did you mean {' or '.join(repr(each) if quoted else each for each in near)}?"
    return f"; {otherwise}" if otherwise else ""


def one_is_needed(known: Iterable[str], given: str, *, count: str = "one") -> str:
    """Return the demand for one of the known words: ``one of A, B is needed; did you mean 'A'?``."""
    words = list(known)
    return f"{count} of {', '.join(words)} is needed{did_you_mean(given, words, quoted=True)}"


def meant_or_listed(given: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'A'?`` for a word that is similar to a known one, else the list of the known words."""
    words = list(known)
    return did_you_mean(given, words, quoted=True, otherwise=f"one of {', '.join(words)} is needed")
