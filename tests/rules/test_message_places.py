"""What a held message says of partitions and offsets (PAGE 6, issue 19)."""

from __future__ import annotations

import pytest

from minikafka.errors import DiskFailed
from minikafka.wire.codec import encode_request, encode_response
from minikafka.wire.messages import (
    DescribeQuorumRequest,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from minikafka.world.faults import Place, places_of
from tests.rules.replication_kit import batch, batch_at


class Region:
    """Bytes of a file, as an answer to a consumer has them."""

    def __init__(self, data: bytes, *, is_readable: bool = True) -> None:
        self._data = data
        self._is_readable = is_readable

    def __len__(self) -> int:
        return len(self._data)

    def read(self, begin: int, size: int) -> bytes:
        if not self._is_readable:
            raise DiskFailed("it is gone")
        return self._data[begin : begin + size]


FETCH = FetchRequest(
    replica_id=2,
    partitions=(
        FetchPartition(topic="orders", partition=0, fetch_offset=799, high_watermark=798),
        FetchPartition(topic="wide", partition=7, fetch_offset=3),
    ),
)
FETCHED = FetchResponse(
    partitions=(
        FetchedPartition(
            topic="orders", partition=0, high_watermark=801, records=(*batch_at(799, "a"), *batch_at(800, "b", "c"))
        ),
        FetchedPartition(topic="wide", partition=7, high_watermark=3),
    )
)
SENT = ProduceRequest(partitions=(ProducePartition(topic="orders", partition=0, records=(batch("a", "b").data,)),))
APPENDED = ProduceResponse(
    partitions=(
        ProducedPartition(topic="orders", partition=0, base_offset=802),
        ProducedPartition(topic="orders", partition=1, error_code=6),
    )
)


@pytest.mark.parametrize(
    ("api", "kind", "message", "places", "words"),
    [
        (
            "Fetch", "request", FETCH,
            (Place("orders", 0, 799, high_watermark=798), Place("wide", 7, 3)),
            ["orders-0 offset 799, HW 798", "wide-7 offset 3"],
        ),
        (
            "Fetch", "answer", FETCHED,
            (Place("orders", 0, 799, 801, 3, 801), Place("wide", 7, record_count=0, high_watermark=3)),
            ["orders-0 offsets 799 to 801, HW 801", "wide-7, HW 3"],
        ),
        ("Produce", "request", SENT, (Place("orders", 0, record_count=2),), ["orders-0, 2 records"]),
        ("Produce", "answer", APPENDED, (Place("orders", 0, 802), Place("orders", 1)), ["orders-0 offset 802", "orders-1"]),
    ],
)  # fmt: skip
def test_message_of_each_kind_says_its_partitions_and_offsets(api, kind, message, places, words):
    """The same for its body, and for a message that the connection of a Kafka client has decoded."""
    body = encode_request(message) if kind == "request" else encode_response(message)
    assert places_of(api, kind, body) == places
    assert places_of(api, kind, message) == places
    assert [str(each) for each in places] == words


def test_records_in_a_file_are_read_for_a_response_that_is_held():
    """A consumer's response below the high watermark has regions of a file in place of records."""
    whole = b"".join(batch_at(5, "a", "b"))
    response = FetchResponse(partitions=(FetchedPartition(topic="orders", partition=0, records=(Region(whole),)),))
    assert [str(each) for each in places_of("Fetch", "answer", response)] == ["orders-0 offsets 5 to 6"]
    gone = Region(whole, is_readable=False)
    response = FetchResponse(partitions=(FetchedPartition(topic="orders", partition=0, records=(gone,)),))
    assert places_of("Fetch", "answer", response) == ()


def test_other_messages_and_bodies_that_cannot_be_read_say_nothing():
    """They are held all the same."""
    assert places_of("DescribeQuorum", "request", encode_request(DescribeQuorumRequest())) == ()
    assert places_of("Fetch", "request", (b"\x00\x00\x00\x05nothing",)) == ()
    assert places_of("Produce", "answer", (b"",)) == ()
