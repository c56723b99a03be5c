"""How much one response describes: each name once, and no more than a response has room for."""

from __future__ import annotations

import pytest

from minikafka.errors import CoordinatorLoadInProgress, ProtocolError, UnknownMemberId
from minikafka.wire import response_room
from minikafka.wire.group_messages import (
    ConsumerMember,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribedMember,
    FetchedOffset,
    NamedTopicPartitions,
    OffsetFetchResponse,
)
from minikafka.wire.messages import PartitionName
from minikafka.wire.response_room import (
    RESPONSE_BYTES_MAX,
    described,
    size_of_consumer_group,
    size_of_group,
    size_of_offsets,
    size_of_transaction,
)
from minikafka.wire.transaction_messages import DescribedTransaction


def group(name: str, size: int) -> DescribedGroup:
    """A group with one member of so many bytes."""
    return DescribedGroup(group_id=name, members=(DescribedMember(member_id="m", metadata=bytes(size)),))


def failed(error: ProtocolError, name: str) -> DescribedGroup:
    return DescribedGroup.with_error(error, group_id=name)


def test_a_name_that_is_given_many_times_is_described_once():
    """A request of a kilobyte had a response of 320 MB, which held the loop for 0.8 s."""
    asked = []

    def describe(name: str) -> DescribedGroup:
        asked.append(name)
        return group(name, 1)

    found = described(["a", "b", "a"] * 400, describe, size_of_group, failed)
    assert [each.group_id for each in found] == asked == ["a", "b"]


def test_a_full_response_has_a_retriable_error_for_the_other_names():
    """Clients request these again; what was described fits, but for its last entry."""
    found = described("abcd", lambda name: group(name, RESPONSE_BYTES_MAX // 2), size_of_group, failed)
    assert [each.error_code for each in found] == [0, 0, CoordinatorLoadInProgress.code, CoordinatorLoadInProgress.code]
    assert CoordinatorLoadInProgress.retriable
    assert "'c'" in found[2].error_message


def test_the_first_name_is_described_however_large_it_is():
    """Otherwise nobody could describe it at all."""
    found = described("ab", lambda name: group(name, 2 * RESPONSE_BYTES_MAX), size_of_group, failed)
    assert [each.error_code for each in found] == [0, CoordinatorLoadInProgress.code]


def test_names_that_are_refused_take_no_room():
    """They keep the error of their own."""

    def describe(name: str) -> DescribedGroup:
        raise UnknownMemberId(name)

    codes = {each.error_code for each in described(map(str, range(2_500)), describe, size_of_group, failed)}
    assert codes == {UnknownMemberId.code}


@pytest.mark.parametrize(
    "large",
    [
        size_of_group(group("g", 1_000_000)),
        size_of_consumer_group(
            DescribedConsumerGroup(
                group_id="g",
                members=(ConsumerMember(member_id="m", member_epoch=1, subscribed_topic_names=("t" * 200,) * 5_000),),
            )
        ),
        size_of_consumer_group(
            DescribedConsumerGroup(
                group_id="g",
                members=(
                    ConsumerMember(
                        member_id="m",
                        member_epoch=1,
                        assignment=(NamedTopicPartitions(topic_id="", partitions=tuple(range(100_000))),),
                    ),
                ),
            )
        ),
        size_of_offsets(
            OffsetFetchResponse(partitions=(FetchedOffset(topic="t", partition=0, metadata="m" * 4_000),) * 250)
        ),
        size_of_transaction(
            DescribedTransaction(transactional_id="x", partitions=(PartitionName(topic="t", partition=0),) * 40_000)
        ),
    ],
)
def test_what_clients_choose_counts(large: int):
    """Metadata, names of topics, partitions: about a megabyte each."""
    assert 900_000 < large < 2_000_000


def test_rows_count_beside_their_texts():
    """Many small members take time, not bytes."""
    members = (DescribedMember(member_id="m"),) * 100
    assert size_of_group(DescribedGroup(group_id="g", members=members)) > 100 * response_room.ROW_BYTES
