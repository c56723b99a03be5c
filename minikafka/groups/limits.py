"""A group coordinator's settings, and what a request may contain: texts and numbers that its records can hold.

Kafka's records keep a text behind an int16 and times in an int32. What does not fit is refused by name: a record that
cannot be written must not be begun.

Rules for this file: each function raises one ProtocolError with a sentence that says what to do, or does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from minikafka import errors as kafka
from minikafka.wire.group_messages import CommitPartition, GroupProtocol, JoinGroupRequest
from minikafka.wire.transaction_messages import TxnOffsetCommitRequest

CONSUMER_INTERVAL_MS_MIN: Final = 500
"""Shortest interval between heartbeats that a coordinator chooses by itself, for groups of any size.

Below it a rebalance is hardly faster, for a partition that moves also waits for its owner's next poll and commit. Each
member would wake up its process and its coordinator for nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """What a coordinator's broker was configured with; Kafka's defaults."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    group_size_max: int = 2**31 - 1
    offset_metadata_size_max: int = 4_096
    offsets_retention_ms: int = 7 * 86_400_000
    expiry_interval_ms: int = 600_000
    """How often offsets are looked at for their age."""
    consumer_session_timeout_ms: int = 45_000
    """Of members of the consumer protocol (KIP-848); the coordinator sets it, not the client."""
    consumer_heartbeat_interval_ms: int = 5_000
    """The longest interval, that of a large group (:meth:`consumer_interval_ms`)."""
    consumer_heartbeats_per_second: int = 50
    """Heartbeats that the members of one group may send together; 0: always the longest interval, as in Kafka."""
    consumer_group_size_max: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first is the default."""
    migration_policy: str = "bidirectional"
    """Which way a group with members may change its protocol (group.consumer.migration.policy)."""

    def consumer_interval_ms(self, members: int) -> int:
        """Return the interval at which each member of a group of the consumer protocol heartbeats.

        A member learns of a new assignment from its next heartbeat, so a rebalance takes one or two intervals. Kafka's
        5 s keep very large groups from flooding their coordinator; a group of three need not wait for so long.

        Args:
            members: How many members the group has. They learn another interval from their next heartbeat.
        """
        longest = self.consumer_heartbeat_interval_ms
        if not self.consumer_heartbeats_per_second:
            return longest
        spread = -(-members * 1000 // self.consumer_heartbeats_per_second)
        return min(max(spread, CONSUMER_INTERVAL_MS_MIN), longest)

    @property
    def may_upgrade(self) -> bool:
        """Return True if a member of the consumer protocol may join a classic group with members."""
        return self.migration_policy in ("bidirectional", "upgrade")

    @property
    def may_downgrade(self) -> bool:
        """Return True if a group becomes classic when its last member of the consumer protocol leaves."""
        return self.migration_policy in ("bidirectional", "downgrade")


SUBSCRIPTIONS_BYTES_MAX = 32 * 2**20
"""Of what the members of one classic group join with. All of it is in memory. The group's record, which has it for one
assignor, is far smaller: ``max.message.bytes`` limits it.
"""

SUBSCRIPTION_BYTES_SMALL = 8 * 2**10
"""A member with no more than this joins in any case: groups of many such members are not added up at each join."""

TEXT_BYTES_MAX = 2**15 - 1
"""Of any text in a record."""

NAME_BYTES_MAX = TEXT_BYTES_MAX - 64
"""Of a client's or an instance's name: a member id is made of it and 33 characters more."""

INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1


def check_group_id(group: str) -> None:
    """INVALID_GROUP_ID."""
    if not group:
        raise kafka.InvalidGroupId("the group's name is empty: give it one (group.id)")
    if len(group.encode()) > TEXT_BYTES_MAX:
        raise kafka.InvalidGroupId(
            f"the group's name has {len(group.encode())} bytes, {TEXT_BYTES_MAX} at most: choose a shorter one"
        )


def check_join(request: JoinGroupRequest, *, session_ms_min: int, session_ms_max: int) -> None:
    """INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL, INVALID_REQUEST."""
    check_group_id(request.group_id)
    session_ms_max = min(session_ms_max, INT32_MAX)
    if not session_ms_min <= request.session_timeout_ms <= session_ms_max:
        raise kafka.InvalidSessionTimeout(
            f"session.timeout.ms={request.session_timeout_ms}: from {session_ms_min} to {session_ms_max} is allowed "
            "(the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms)"
        )
    if not 1 <= request.rebalance_timeout_ms <= INT32_MAX:
        raise kafka.InvalidRequest(
            f"rebalance_timeout_ms={request.rebalance_timeout_ms}: from 1 to {INT32_MAX} is allowed"
        )
    if not request.protocol_type or not request.protocols:
        raise kafka.InconsistentGroupProtocol("a protocol type and at least one assignor are needed")
    names = [("protocol_type", request.protocol_type), ("client_id", request.client_id)]
    names += [("client_host", request.client_host), ("group_instance_id", request.group_instance_id or "")]
    names += [("software", request.software)]
    names += [("protocols.name", each.name) for each in request.protocols]
    for member, text in names:
        if len(text.encode()) > NAME_BYTES_MAX:
            raise kafka.InvalidRequest(f"{member} has {len(text.encode())} bytes, {NAME_BYTES_MAX} at most: shorten it")


def check_subscriptions(request: JoinGroupRequest, others: Iterable[Iterable[GroupProtocol]]) -> None:
    """GROUP_MAX_SIZE_REACHED if the member's subscription does not fit beside those of the other members."""
    size = _size_of(request.protocols)
    if size > SUBSCRIPTION_BYTES_SMALL and size + sum(map(_size_of, others)) > SUBSCRIPTIONS_BYTES_MAX:
        raise kafka.GroupMaxSizeReached(
            f"the subscription of {size} bytes does not fit: all those of group {request.group_id} may have "
            f"{SUBSCRIPTIONS_BYTES_MAX} bytes; subscribe to fewer topics, or divide the group"
        )


def _size_of(protocols: Iterable[GroupProtocol]) -> int:
    return sum([len(each.metadata) for each in protocols])


def metadata_refusal(item: CommitPartition, *, size_max: int) -> kafka.OffsetMetadataTooLarge | None:
    """What is wrong with the text beside an offset; None: nothing.

    As in Kafka, offset.metadata.max.bytes limits the UTF-16 units of the text. A record limits its bytes in UTF-8.
    """
    text, place = item.metadata, f"{item.topic}-{item.partition}"
    size = len(text.encode("utf-16-le")) // 2
    if size > size_max:
        return kafka.OffsetMetadataTooLarge(
            f"{place}: metadata of {size} characters, offset.metadata.max.bytes is {size_max}: commit less of it"
        )
    if len(text.encode()) > TEXT_BYTES_MAX:
        return kafka.OffsetMetadataTooLarge(
            f"{place}: metadata of {len(text.encode())} bytes, {TEXT_BYTES_MAX} at most: commit less of it"
        )
    return None


def check_commit(item: CommitPartition) -> None:
    """INVALID_REQUEST for numbers that a record cannot hold.

    As in Kafka, a client may commit a negative offset: readers treat it as if nothing were committed.
    """
    if not -INT64_MAX - 1 <= item.offset <= INT64_MAX:
        raise kafka.InvalidRequest(
            f"{item.topic}-{item.partition}: offset={item.offset} has more than 64 bits; commit the next offset to read"
        )
    if not -INT32_MAX - 1 <= item.leader_epoch <= INT32_MAX:
        raise kafka.InvalidRequest(
            f"{item.topic}-{item.partition}: leader_epoch={item.leader_epoch} has more than 32 bits; -1: not known"
        )


def check_producer(request: TxnOffsetCommitRequest) -> None:
    """INVALID_REQUEST for a producer id or epoch that no batch can hold."""
    if not 0 <= request.producer_id <= INT64_MAX:
        raise kafka.InvalidRequest(
            f"producer_id={request.producer_id}: from 0 to {INT64_MAX} is allowed", member="producer_id"
        )
    if not -1 <= request.producer_epoch <= INT16_MAX:
        raise kafka.InvalidRequest(
            f"producer_epoch={request.producer_epoch}: from -1 to {INT16_MAX} is allowed", member="producer_epoch"
        )
