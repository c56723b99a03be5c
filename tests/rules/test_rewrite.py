"""Batches that compaction thins out: offsets, sequences and bytes of what stays (KIP-98, KIP-534)."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import example, given
from hypothesis import strategies as st

from minikafka.errors import CorruptMessage
from minikafka.wire.batch import CODEC_NAMES, DELETE_HORIZON_BIT, NO_TIMESTAMP, RecordBatch, verify, with_fields
from minikafka.wire.records import Record, build_batch, decode_batch
from minikafka.wire.rewrite import delete_horizon, emptied, slices, thinned, with_body

TIME = 1_700_000_000_000
HORIZON = TIME + 86_400_000

records_of_a_batch = st.lists(
    st.builds(
        lambda time, key, value, headers: Record(0, time, key=key, value=value, headers=headers),
        st.integers(0, 2**45),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=8,
)


def told(records: list) -> list:
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records]


def batch_of(records: list[Record], codec: str = "none") -> RecordBatch:
    return verify(
        build_batch(
            records,
            compression=codec,
            producer_id=7,
            producer_epoch=2,
            base_sequence=11,
            base_offset=40,
            leader_epoch=3,
        )
    )


@given(records_of_a_batch, st.sampled_from(CODEC_NAMES), st.data(), st.none() | st.integers(0, 2**45))
def test_what_stays_is_what_was_there(records, codec, data, horizon):
    """S9, KIP-534: record by record, read by aiokafka's parser as well as ours, with and without a delete horizon."""
    batch = batch_of(records, codec)
    kept = [record for record in slices(batch) if data.draw(st.booleans())]
    offsets = {record.offset for record in kept}
    new = verify(thinned(batch, kept, horizon=horizon))

    assert told(decode_batch(new)) == told([r for r in decode_batch(batch) if r.offset in offsets])
    assert told(list(DefaultRecordBatch(bytes(new.data)))) == told(decode_batch(new))
    assert (new.base_offset, new.last_offset, new.leader_epoch) == (40, batch.last_offset, 3)
    assert (new.producer_id, new.producer_epoch, new.base_sequence, new.last_sequence) == (
        7,
        2,
        11,
        batch.last_sequence,
    )
    if kept:
        assert delete_horizon(new) == horizon
        assert new.max_timestamp == max(record.timestamp for record in kept)
        # Thinned once more, and its horizon stays.
        again = verify(thinned(new, list(slices(new))[:1], horizon=None))
        assert told(decode_batch(again)) == told(decode_batch(new))[:1]
        assert delete_horizon(again) == horizon


@given(records_of_a_batch, st.sampled_from(CODEC_NAMES))
def test_slices_tell_what_the_codec_tells(records, codec):
    """Two parsers, one truth: what cleaning reads is what clients read."""
    batch = batch_of(records, codec)
    assert [(s.offset, s.timestamp, s.key and bytes(s.key), s.has_value) for s in slices(batch)] == [
        (r.offset, r.timestamp, r.key, r.value is not None) for r in decode_batch(batch)
    ]


def beyond_64_bits(deltas: list[int]) -> RecordBatch:
    """A batch of TIME whose records have these timestamp deltas, as a producer of its own making may send them."""
    body = b""
    for number, delta in enumerate(deltas):
        tail = bytes((number << 1, 2)) + b"%d" % number + b"\x02v\x00"
        inner = b"\x00" + varint_of(delta) + tail
        body += varint_of(len(inner)) + inner
    model = batch_of([Record(0, TIME, key=b"0", value=b"v") for _ in deltas])
    return verify(with_body(model, body, attributes=model.attributes))


def varint_of(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    packed = bytearray()
    while rest >= 0x80:
        packed.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*packed, rest))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=5), st.none() | st.integers(0, 2**45))
@example([0, 2**63 - 1], None)
@example([-(2**63), 0], HORIZON)
def test_timestamps_beyond_64_bits_stay_what_readers_take_them_for(deltas, horizon):
    """A broker reads no deltas before it appends a batch, so that compaction meets each of them."""
    batch = beyond_64_bits(deltas)
    assert [each.timestamp for each in slices(batch)] == [each.timestamp for each in decode_batch(batch)]
    new = verify(thinned(batch, list(slices(batch))[1:], horizon=horizon))
    assert told(decode_batch(new)) == told(decode_batch(batch))[1:]
    assert new.max_timestamp == max(each.timestamp for each in decode_batch(new))


def test_an_empty_batch_keeps_span_and_sequence():
    """What a producer's last batch becomes: its next sequence is known though no record is left."""
    batch = batch_of([Record(0, TIME, key=b"a", value=b"1"), Record(0, TIME + 5, key=b"b", value=b"2")], "zstd")
    new = verify(emptied(batch))
    assert (new.record_count, new.size, new.codec) == (0, 61, 0)
    assert (new.base_offset, new.last_offset, new.last_sequence, new.max_timestamp) == (40, 41, 12, TIME + 5)
    assert new.newest_timestamp == NO_TIMESTAMP
    assert decode_batch(new) == []
    assert list(DefaultRecordBatch(bytes(new.data))) == []
    assert bytes(new.data) == thinned(batch, [], horizon=HORIZON)


def test_log_append_time_stays_the_time_of_all_records():
    """message.timestamp.type=LogAppendTime: the batch's time counts, not the deltas."""
    plain = batch_of([Record(0, 5, key=b"a", value=b"1"), Record(0, 9, key=b"b", value=b"2")])
    head = with_fields(plain, attributes=plain.attributes | 8, max_timestamp=TIME)
    stamped = verify(head + plain.data[61:])
    new = verify(thinned(stamped, list(slices(stamped))[:1], horizon=HORIZON))
    assert [record.timestamp for record in decode_batch(new)] == [TIME]
    assert new.max_timestamp == TIME
    assert new.attributes == 8 | DELETE_HORIZON_BIT


@given(st.integers(61, 120), st.integers(0, 255))
def test_damaged_records_are_told_and_never_invented(position, byte):
    """The checksum is right here: only the records' own structure can tell."""
    batch = batch_of([Record(0, TIME, key=b"key", value=b"value" * 5), Record(0, TIME, key=b"k", value=None)])
    data = bytearray(batch.data)
    if position >= len(data):
        return
    data[position] = byte
    try:
        found = [record.offset for record in slices(RecordBatch.of(bytes(data)))]
    except CorruptMessage as error:
        found = [error.message[:9]]
    assert len(found) == 2 or found == ["records: "]


def test_bytes_behind_the_records_are_damage():
    """They would be lost without a word when the batch is written anew."""
    batch = batch_of([Record(0, TIME, key=b"key", value=b"value")])
    with pytest.raises(CorruptMessage, match="3 bytes follow the last of 1"):
        list(slices(RecordBatch.of(bytes(batch.data) + b"abc")))
