"""RecordBatch v2: Kafka's bytes, the checks on what arrives, the leader's stamp (KAFKA-FACTS 2, D4)."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from minikafka.errors import CorruptMessage, InvalidRecord, InvalidTimestamp, ProtocolError, UnsupportedCompressionType
from minikafka.wire import batch as layout
from minikafka.wire.batch import (
    RecordBatch,
    from_offset,
    split,
    stamped,
    stamped_log_append_time,
    verify,
    verify_client,
)
from minikafka.wire.records import Record, build_batch, decode_batch

ONE_RECORD = bytes.fromhex(
    "00000000000000000000003affffffff02e99b8dd80000000000000000018bcfe568000000018bcfe56800"
    "ffffffffffffffffffffffffffff0000000110000000026b027600"
)
TIME = 1_700_000_000_000


def made(count: int = 3, **options: object) -> bytes:
    return build_batch(
        [Record(i, TIME + i, key=b"k%d" % i, value=b"v" * 10) for i in range(count)],
        **options,  # type: ignore[arg-type]
    )


def patched(data: bytes, layout_of_field: str, at: int, value: int) -> bytes:
    """The batch with one field changed and its checksum made good again."""
    changed = bytearray(data)
    struct.pack_into(layout_of_field, changed, at, value)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def test_crc32c_is_castagnoli():
    """KAFKA-FACTS 2's vector: another polynomial would refuse every real client's batch."""
    assert crc32c(b"123456789") == 0xE3069283


def test_the_vector_of_one_record_is_built_and_read():
    """KAFKA-FACTS 2: k -> v at 1700000000000 is these 70 bytes, and they read back."""
    assert build_batch([Record(0, TIME, key=b"k", value=b"v")]) == ONE_RECORD
    batch = verify_client(ONE_RECORD)
    assert (batch.size, batch.record_count, batch.last_offset, batch.next_offset) == (70, 1, 0, 1)
    assert (batch.crc, batch.leader_epoch, batch.producer_id, batch.last_sequence) == (0xE99B8DD8, -1, -1, -1)
    assert [(r.key, r.value, r.timestamp) for r in decode_batch(batch)] == [(b"k", b"v", TIME)]


def test_the_stamp_changes_bytes_0_to_7_and_12_to_15_only():
    """KAFKA-FACTS 2: after append at offset 42, epoch 7 the checksum and the body are the producer's."""
    batch = verify_client(ONE_RECORD)
    stored = b"".join(stamped(batch, base_offset=42, leader_epoch=7))
    assert stored[:8] == (42).to_bytes(8)
    assert stored[12:16] == (7).to_bytes(4)
    assert (stored[8:12], stored[16:]) == (ONE_RECORD[8:12], ONE_RECORD[16:])
    again = verify(stored)
    assert (again.base_offset, again.leader_epoch, again.crc) == (42, 7, 0xE99B8DD8)


def test_the_stamp_copies_nothing():
    """D4: the body goes to disk and to followers as the slice that came off the wire."""
    data = made()
    body = stamped(verify_client(data), base_offset=1, leader_epoch=0)[1]
    assert isinstance(body, memoryview)
    assert body.obj is data


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_log_append_time_sets_the_bit_and_recomputes_the_checksum(compression: str):
    """KAFKA-FACTS 2: with LogAppendTime every record reads as the broker's time, its delta untouched."""
    batch = verify_client(made(40, compression=compression))
    stored = b"".join(stamped_log_append_time(batch, base_offset=5, leader_epoch=2, timestamp_ms=99))
    again = verify(stored)
    assert (again.timestamp_type, again.max_timestamp, again.base_timestamp) == (1, 99, TIME)
    assert {(r.timestamp, r.timestamp_type) for r in decode_batch(again)} == {(99, 1)}
    assert [r.offset for r in decode_batch(again)] == list(range(5, 45))


def test_last_sequence_wraps():
    """KIP-98: sequences count to 2^31-1 and go on at 0."""
    batch = RecordBatch.of(made(3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert batch.last_sequence == 0


DAMAGE = [
    ("magic", patched(ONE_RECORD, ">b", 16, 1), CorruptMessage),
    ("batchLength", ONE_RECORD + b"\0", CorruptMessage),
    ("batchLength", ONE_RECORD[:-1], CorruptMessage),
    ("header", ONE_RECORD[:60], CorruptMessage),
    ("crc", ONE_RECORD[:-1] + b"\1", CorruptMessage),
    ("baseOffset", patched(ONE_RECORD, ">q", 0, -1), InvalidRecord),
    ("lastOffsetDelta", patched(ONE_RECORD, ">i", 23, -1), InvalidRecord),
    ("recordCount", patched(ONE_RECORD, ">i", 57, 2), InvalidRecord),
    ("recordCount", patched(ONE_RECORD, ">i", 57, -1), InvalidRecord),
    ("producerId", patched(ONE_RECORD, ">q", 43, -2), InvalidRecord),
    ("baseSequence", patched(ONE_RECORD, ">i", 53, -2), InvalidRecord),
]


@pytest.mark.parametrize(("field", "data", "error"), DAMAGE)
def test_a_damaged_batch_is_refused_with_the_name_of_the_field(field: str, data: bytes, error: type[ProtocolError]):
    """KAFKA-FACTS 1.4, 2: what a follower or a recovering log must never store."""
    with pytest.raises(error, match=field):
        verify(data)


CLIENT_FAULTS = [
    ("one batch per partition", ONE_RECORD + ONE_RECORD, InvalidRecord),
    ("baseOffset", patched(ONE_RECORD, ">q", 0, 5), InvalidRecord),
    ("recordCount", patched(ONE_RECORD, ">i", 23, 4), InvalidRecord),
    ("recordCount", patched(ONE_RECORD, ">i", 57, 0), InvalidRecord),
    ("control", patched(ONE_RECORD, ">h", 21, 0x20), InvalidRecord),
    ("transactional", patched(ONE_RECORD, ">h", 21, 0x10), InvalidRecord),
    ("horizon", patched(ONE_RECORD, ">h", 21, 0x40), InvalidRecord),
    ("codec 6", patched(ONE_RECORD, ">h", 21, 6), UnsupportedCompressionType),
    ("LogAppendTime", patched(ONE_RECORD, ">h", 21, 8), InvalidTimestamp),
    ("baseSequence", patched(ONE_RECORD, ">q", 43, 7), InvalidRecord),
    ("producerEpoch", patched(patched(ONE_RECORD, ">q", 43, 7), ">i", 53, 0), InvalidRecord),
]


@pytest.mark.parametrize(("what", "data", "error"), CLIENT_FAULTS)
def test_what_a_producer_may_not_send(what: str, data: bytes, error: type[ProtocolError]):
    """KAFKA-FACTS 2, "Client batch checks": each is refused before a byte is written."""
    with pytest.raises(error, match=what):
        verify_client(data)


def test_a_sequence_without_a_producer_id_means_nothing():
    """aiokafka's plain producer sends 0, other clients send -1; Kafka takes both."""
    assert not verify_client(patched(ONE_RECORD, ">i", 53, 0)).has_producer


def test_a_compacted_batch_is_sound_for_a_follower_but_not_from_a_client():
    """Compaction removes records and keeps the span; followers store such a batch verbatim."""
    emptied = patched(ONE_RECORD, ">i", 57, 0)
    assert verify(emptied).record_count == 0


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 400))
def test_split_gives_whole_batches_and_drops_a_cut_last_one(counts: list[int], cut: int):
    """A fetch may end inside a batch; the rest comes again."""
    parts = [made(count) for count in counts]
    data = b"".join(parts)
    kept = data[: max(0, len(data) - cut)]
    whole = [bytes(batch.data) for batch in split(kept)]
    assert whole == parts[: len(whole)]
    assert len(kept) < len(b"".join(parts[: len(whole) + 1])) or len(whole) == len(parts)


@pytest.mark.parametrize("data", [b"\0" * 100, patched(ONE_RECORD, ">i", 8, 10), patched(ONE_RECORD, ">i", 8, -1)])
def test_split_refuses_what_cannot_be_a_batch(data: bytes):
    """A length below a header would never move on; zeros are what a torn write leaves."""
    with pytest.raises(CorruptMessage):
        split(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_name(data: bytes):
    """Nothing that arrives may raise anything but a typed error (h11's promise)."""
    for check in (verify, verify_client):
        with pytest.raises(ProtocolError):
            check(data)


@given(st.integers(0, 8 * len(ONE_RECORD) - 1))
def test_one_flipped_bit_outside_the_stamp_is_found(bit: int):
    """The checksum covers all but what the leader sets; length and magic are checked by themselves."""
    data = bytearray(ONE_RECORD)
    data[bit // 8] ^= 1 << bit % 8
    at = bit // 8
    if (at < 8 and not data[0] & 0x80) or 12 <= at < 16:
        assert verify(data).record_count == 1
    else:
        with pytest.raises((CorruptMessage, InvalidRecord)):
            verify(data)


def test_no_rotten_offset_makes_a_reader_pass_over_a_batch():
    """Every bit of the two offsets of a header in the midst of a response: an error, or a batch that fails its checksum."""
    good = [bytes(b"".join(stamped(RecordBatch.of(ONE_RECORD), base_offset=n, leader_epoch=0))) for n in (5, 6, 7)]
    for bit in (*range(64), *range(8 * 23, 8 * 27)):
        middle = bytearray(good[1])
        middle[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMessage):
            for each in from_offset(split(good[0] + middle + good[2]), 5):
                verify(each.data)
    whole = split(b"".join(good))
    assert [each.base_offset for each in from_offset(whole, 5)] == [5, 6, 7]
    assert [each.base_offset for each in from_offset(whole, 7)] == [7]


def test_no_rotten_offset_of_the_last_batch_leads_a_reader_beyond_the_high_watermark():
    """Every bit of its two offsets: the high watermark, the order of offsets, or its checksum shows the damage."""
    good = [bytes(b"".join(stamped(RecordBatch.of(ONE_RECORD), base_offset=n, leader_epoch=0))) for n in (5, 6)]
    for bit in (*range(64), *range(8 * 23, 8 * 27)):
        last = bytearray(good[1])
        last[bit // 8] ^= 1 << bit % 8
        for data, offset in ((good[0] + last, 5), (bytes(last), 6)):
            with pytest.raises(CorruptMessage):
                for each in from_offset(split(data), offset, end_max=7):
                    verify(each.data)


def test_the_layout_is_61_bytes():
    """KAFKA-FACTS 2: one struct holds the header, no padding."""
    assert layout.HEADER.size == layout.HEADER_SIZE == 61
