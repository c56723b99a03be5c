"""Issue 5: batches that a hostile or broken client sends, against real brokers.

What is wrong in the header or fails the checksum moves no log end. What is wrong *inside* a sound checksum is stored, for
brokers open no records (DESIGN D4): consumers are told CORRUPT_MESSAGE with the offsets, and go on behind them.
"""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Iterator
from random import Random
from typing import Self

import pytest

from minikafka import Consumer
from minikafka.errors import BY_CODE, CorruptMessage
from minikafka.testing.local_cluster import LocalCluster
from minikafka.types import TopicPartition
from minikafka.wire.batch import CHECKED_START, HEADER_SIZE, LENGTH_END, RECORD_SIZE_MIN, checksum
from minikafka.wire.codec import decode_response, encode_request
from minikafka.wire.messages import ProducedPartition, ProducePartition, ProduceRequest, ProduceResponse
from minikafka.wire.records import BatchBuilder

pytestmark = pytest.mark.e2e

SEED = 20
PATIENCE_S = 60
NOW_MS = 1_795_000_000_000
EPOCH_FIELD = range(12, 16)
"""The leader epoch: the leader stamps it, whatever a client says."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
        yield running


@pytest.fixture(scope="module")
def trusting() -> Iterator[LocalCluster]:
    """Brokers that append batches without a look at their records, as releases before the check did."""
    with LocalCluster(brokers=3, config={"mk.validate.records": "false"}) as running:
        yield running


def batch_of(*values: bytes) -> bytearray:
    builder = BatchBuilder()
    for value in values:
        builder.append(NOW_MS, None, value)
    return bytearray(builder.build())


def sealed(batch: bytearray) -> bytearray:
    """With the length and the checksum that its bytes have."""
    struct.pack_into(">i", batch, 8, len(batch) - LENGTH_END)
    struct.pack_into(">I", batch, CHECKED_START - 4, checksum(batch))
    return batch


class Wire:
    """A connection to the leader of a topic's only partition."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.topic = topic
        cluster.sync.create_topic(topic)
        self.leader = cluster.sync.wait.leader(topic)
        self.http = http.client.HTTPConnection(
            *cluster.bootstrap.split(",")[self.leader - 1].split(":"), timeout=PATIENCE_S
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def produce(self, batch: bytes | bytearray) -> ProducedPartition:
        part = ProducePartition(topic=self.topic, partition=0, records=(bytes(batch),))
        body = b"".join(encode_request(ProduceRequest(acks=-1, partitions=(part,))))
        self.http.request("POST", "/rpc/Produce", body, {"Content-Type": "application/msgpack"})
        response = self.http.getresponse()
        assert response.status == 200
        answer = decode_response("Produce", response.read())
        assert isinstance(answer, ProduceResponse)
        return (
            answer.partitions[0]
            if answer.partitions
            else ProducedPartition(
                topic=self.topic, partition=0, error_code=answer.error_code, error_message=answer.error_message
            )
        )

    def get(self, path: str) -> dict:
        self.http.request("GET", f"/v1/topics/{self.topic}/{path}")
        response = self.http.getresponse()
        assert response.status == 200
        return json.loads(response.read())

    @property
    def log_end(self) -> int:
        return self.get("partitions/0")["log_end_offset"]


def damaged(sound: bytes) -> Iterator[bytes]:
    """Every bit of the header flipped, every length cut to, bits of the records, and noise."""
    random = Random(SEED)
    for at in range(HEADER_SIZE):
        if at not in EPOCH_FIELD:
            for bit in range(8):
                yield sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :]
    yield from (sound[:size] for size in range(len(sound)))
    for _ in range(500):
        at = random.randrange(HEADER_SIZE, len(sound))
        yield sound[:at] + bytes([sound[at] ^ 1 << random.randrange(8)]) + sound[at + 1 :]
    yield from (random.randbytes(random.randrange(200)) for _ in range(100))
    yield sound + sound
    yield sound + b"\0"


def test_a_damaged_header_or_checksum_moves_no_log_end(cluster: LocalCluster):
    """A thousand ways: each is refused with an error that names what is wrong, and nothing was written."""
    with Wire(cluster, "damaged") as wire:
        sound = bytes(batch_of(b"tea", b"milk"))
        assert wire.produce(sound).error_code == 0
        count = 0
        for each in damaged(sound):
            answer = wire.produce(each)
            assert answer.error_code, each
            assert BY_CODE[answer.error_code].name in {
                "CORRUPT_MESSAGE", "INVALID_RECORD", "INVALID_TIMESTAMP", "UNSUPPORTED_COMPRESSION_TYPE", "INVALID_REQUEST"
            }, each  # fmt: skip
            assert answer.outcome == "not_written"
            count += 1
            if count % 100 == 0:
                assert wire.log_end == 2
        assert (count > 1_000, wire.log_end) == (True, 2)
        assert wire.produce(sound).base_offset == 2
        assert cluster.broker(wire.leader).failure is None


def garbage_inside() -> Iterator[bytearray]:
    """Sound headers and checksums; what should be records is noise, or is compressed noise."""
    random = Random(SEED)
    for codec in (0, 0, 0, 1, 2, 3, 4):
        batch = batch_of(b"tea", b"milk")
        batch[HEADER_SIZE:] = random.randbytes(random.randrange(2 * RECORD_SIZE_MIN, 80))
        struct.pack_into(">h", batch, CHECKED_START, codec)
        yield sealed(batch)


def test_garbage_inside_a_valid_checksum_is_refused(cluster: LocalCluster):
    """Header and checksum are sound; the walk over the records finds that nobody could read them."""
    with Wire(cluster, "refused") as wire:
        for batch in garbage_inside():
            answer = wire.produce(batch)
            assert BY_CODE[answer.error_code].name == "INVALID_RECORD"
            assert answer.outcome == "not_written"
        assert wire.log_end == 0


def test_long_batches_are_validated_in_a_thread(cluster: LocalCluster):
    """Compressed ones of more than 8 KiB: a sound one is appended, one that counts wrongly is refused."""
    random = Random(SEED)
    builder = BatchBuilder(compression="zstd")
    for _ in range(500):
        builder.append(NOW_MS, None, random.randbytes(60))
    sound = bytearray(builder.build())
    wrong = bytearray(sound)
    struct.pack_into(">i", wrong, 23, 498)
    struct.pack_into(">i", wrong, 57, 499)
    with Wire(cluster, "long") as wire:
        answer = wire.produce(sealed(wrong))
        assert (BY_CODE[answer.error_code].name, answer.outcome) == ("INVALID_RECORD", "not_written")
        assert "bytes follow record 498, the last" in answer.error_message
        assert wire.produce(sound).base_offset == 0
        assert wire.log_end == 500


async def test_garbage_inside_a_valid_checksum_is_told_and_passed(trusting: LocalCluster):
    """Replicated, told with the offsets to readers of every kind, and reading goes on behind it."""
    cluster = trusting
    with Wire(cluster, "garbage") as wire:
        bad: list[int] = []
        for batch in garbage_inside():
            answer = wire.produce(batch)
            assert (answer.error_code, answer.error_message) == (0, "")
            bad.append(answer.base_offset)
            good = wire.produce(batch_of(b"good")).base_offset
            assert good == answer.base_offset + 2
        assert sorted(cluster.broker(wire.leader).image.topics["garbage"].partitions[0].isr) == [1, 2, 3]

        read, refused = [], []
        async with Consumer("garbage", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            while len(read) < len(bad):
                try:
                    read.append((await consumer.getone()).value)
                except CorruptMessage as error:
                    refused.append(error.facts["offset"])
                    consumer.seek(TopicPartition("garbage", 0), error.facts["next_offset"])
        assert read == [b"good"] * len(bad)
        assert refused == bad

        told = wire.get("partitions/0/records?offset=0")["records"]
        unreadable = [each for each in told if each["encoding"] == "unreadable"]
        assert [(each["offset"], each["last_offset"]) for each in unreadable] == [
            (offset, offset + 1) for offset in bad
        ]
        assert [each["value"] for each in told if each["encoding"] != "unreadable"] == ["good"] * len(bad)
