"""How much one response describes: a request of a kilobyte must not have a response of a gigabyte.

A request may name a thousand groups, the same one a thousand times, and what a group or a transaction holds is chosen
by its clients. So each name is described once, and when a response has RESPONSE_BYTES_MAX the other names have a
retriable error: clients request those again. The first name is always described, however large it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from minikafka.errors import CoordinatorLoadInProgress, ProtocolError
from minikafka.wire.group_messages import ConsumerMember, DescribedConsumerGroup, DescribedGroup, OffsetFetchResponse
from minikafka.wire.transaction_messages import DescribedTransaction

RESPONSE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of all that one response describes. It is made and encoded in one turn of the loop."""

ROW_BYTES: Final = 512
"""Counted for a member or an offset beside its texts: so much time does it take."""
NUMBER_BYTES: Final = 16

_Described = TypeVar("_Described")


class Room:
    """What is left of one response."""

    def __init__(self, bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        self._left = bytes_max

    def check(self, name: str) -> None:
        """Raise CoordinatorLoadInProgress if the response is full."""
        if self._left <= 0:
            raise CoordinatorLoadInProgress(
                f"the response is full ({RESPONSE_BYTES_MAX} bytes): request {name!r} again, with fewer names"
            )

    def take(self, size: int) -> None:
        """Count what was described."""
        self._left -= size


def described(
    names: Iterable[str],
    describe: Callable[[str], _Described],
    size_of: Callable[[_Described], int],
    failed: Callable[[ProtocolError, str], _Described],
) -> tuple[_Described, ...]:
    """Describe each name once, in order. ``failed`` makes the entry of one that raised a ProtocolError."""
    room = Room()
    found = []
    for name in dict.fromkeys(names):
        try:
            room.check(name)
            one = describe(name)
        except ProtocolError as error:
            one = failed(error, name)
        else:
            room.take(size_of(one))
        found.append(one)
    return tuple(found)


def size_of_group(group: DescribedGroup) -> int:
    """The members of a classic group."""
    return sum(
        ROW_BYTES + len(each.metadata) + len(each.assignment) + len(each.member_id) + len(each.client_id)
        for each in group.members
    )


def size_of_consumer_group(group: DescribedConsumerGroup) -> int:
    """The members of a group of the consumer protocol."""
    return sum(map(_size_of_member, group.members))


def _size_of_member(member: ConsumerMember) -> int:
    owned = [*member.assignment, *member.target_assignment]
    return (
        ROW_BYTES
        + len(member.member_id)
        + len(member.client_id)
        + len(member.subscribed_topic_regex or "")
        + sum(NUMBER_BYTES + len(name) for name in member.subscribed_topic_names)
        + sum(NUMBER_BYTES * (4 + len(each.partitions)) + len(each.topic) for each in owned)
    )


def size_of_offsets(response: OffsetFetchResponse) -> int:
    """The committed offsets of a group."""
    return sum(ROW_BYTES + len(each.metadata) for each in response.partitions)


def size_of_transaction(transaction: DescribedTransaction) -> int:
    """The partitions of a transaction."""
    return ROW_BYTES + NUMBER_BYTES * 2 * len(transaction.partitions)
