"""Records in batches: five codecs, Kafka's framings, builders and damage (KAFKA-FACTS 2, PERFORMANCE 3)."""

from __future__ import annotations

import struct

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from minikafka.client.batches import record_size
from minikafka.errors import CorruptMessage, InvalidRecord, UnsupportedCompressionType
from minikafka.invariant import InvariantViolation
from minikafka.wire.batch import CODEC_NAMES, HEADER_SIZE, RecordBatch, verify, verify_client
from minikafka.wire.records import (
    CONTROL_LEADER_CHANGE,
    BatchBuilder,
    Record,
    RecordView,
    build_batch,
    codec_number,
    control_batch,
    control_type_of,
    decode_batch,
    records_of,
)

TIME = 1_700_000_000_000
optional_bytes = st.none() | st.binary(max_size=60)
rows = st.lists(
    st.tuples(
        st.integers(0, 2**41),
        optional_bytes,
        optional_bytes,
        st.lists(st.tuples(st.text(max_size=5), optional_bytes), max_size=3),
    ),
    min_size=1,
    max_size=12,
)


def with_records_area(data: bytes, area: bytes) -> bytes:
    """The batch with another (compressed) records area, length and checksum made good."""
    changed = bytearray(data[:61] + area)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def test_the_compiled_codec_is_active():
    """PERFORMANCE 8: without it clients are three to ten times slower, and somebody must say so."""
    assert "_crecords" in DefaultRecordBatchBuilder.__module__


def facts_of(record: RecordView) -> tuple[object, ...]:
    """All that a record tells."""
    return record.offset, record.timestamp, record.timestamp_type, record.key, record.value, list(record.headers)


@given(rows, st.sampled_from(CODEC_NAMES), st.integers(0, 2**60))
def test_records_survive_every_codec(rows: list, compression: str, base_offset: int):
    """What was sent is what is read: keys, values, null and empty, header order, times, offsets."""
    records = [Record(0, *row[:1], key=row[1], value=row[2], headers=row[3]) for row in rows]
    batch = verify(build_batch(records, compression=compression, base_offset=base_offset, leader_epoch=3))
    found = decode_batch(batch)
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in found] == rows
    assert [r.offset for r in found] == list(range(base_offset, base_offset + len(rows)))
    assert list(map(facts_of, records_of(batch))) == list(map(facts_of, found))
    assert batch.max_timestamp == max(row[0] for row in rows)
    assert (batch.base_timestamp, batch.leader_epoch) == (rows[0][0], 3)


@pytest.mark.parametrize("compression", CODEC_NAMES[1:])
def test_compression_is_named_in_the_attributes_and_pays(compression: str):
    """The broker reads the codec from the header only."""
    batch = verify_client(build_batch([Record(0, TIME, value=b"x" * 5000)], compression=compression))
    assert CODEC_NAMES[batch.codec] == compression
    assert batch.size < 500


@pytest.mark.parametrize("compression", CODEC_NAMES)
def test_the_same_records_give_the_same_bytes(compression: str, monkeypatch: pytest.MonkeyPatch):
    """Replay of a simulated run: gzip's header holds the time of day unless it is blanked."""
    records = [Record(0, TIME, value=b"x" * 500)]
    first = build_batch(records, compression=compression)
    monkeypatch.setattr("time.time", lambda: 5e8)
    assert build_batch(records, compression=compression) == first
    verify(first)


def test_snappy_is_written_as_java_writes_it_and_read_both_ways():
    """KAFKA-FACTS 2: xerial framing from Java, one raw block from librdkafka; a reader takes both."""
    records = [Record(0, TIME, key=b"k", value=b"x" * 40_000)]
    xerial = build_batch(records, compression="snappy")
    assert xerial[61:77] == bytes.fromhex("82534e4150505900 00000001 00000001")
    plain = build_batch(records)[61:]
    raw = with_records_area(xerial, bytes(cramjam.snappy.compress_raw(plain)))
    assert [r.value for r in decode_batch(verify(raw))] == [b"x" * 40_000]
    assert [r.value for r in decode_batch(verify(xerial))] == [b"x" * 40_000]


def test_lz4_is_a_standard_frame():
    """KAFKA-FACTS 2: magic 0x184D2204, little-endian, after the plain header."""
    assert build_batch([Record(0, TIME, value=b"x" * 500)], compression="lz4")[61:65] == bytes.fromhex("04224d18")


def test_an_unknown_compression_type_is_refused_by_name():
    """A typo in compression.type must not fall back to none."""
    with pytest.raises(UnsupportedCompressionType, match="brotli"):
        codec_number("brotli")


def test_a_batch_without_records_cannot_be_built():
    """A producer's batch has at least one record (KAFKA-FACTS 2)."""
    with pytest.raises(InvalidRecord):
        build_batch([])
    with pytest.raises(InvariantViolation):
        BatchBuilder().build()


def test_the_builder_is_full_at_its_limit_but_takes_one_record_of_any_size():
    """S25: batch.size bounds a batch; a larger record travels alone."""
    builder = BatchBuilder(size_limit=200)
    taken = 0
    while builder.append(TIME, b"k", b"v" * 20):
        taken += 1
    assert builder.record_count == taken > 1
    assert len(builder.build()) == builder.size <= 200
    alone = BatchBuilder(size_limit=200)
    assert alone.append(TIME, None, b"v" * 500)
    assert not alone.append(TIME, None, b"")


def test_extend_takes_as_many_rows_as_fit():
    """The producer's batch call: the same batch as one append after the other."""
    rows = [(TIME + i, b"k", b"v" * 20, ()) for i in range(20)]
    builder = BatchBuilder(size_limit=300)
    taken = builder.extend(rows)
    assert 1 < taken < 20
    rest = BatchBuilder(size_limit=10_000)
    assert rest.extend(rows, taken) == 20 - taken
    assert rest.extend(rows, 0, 1) == 1
    assert len(decode_batch(builder.build())) + len(decode_batch(rest.build())) == 21


def test_producer_state_may_come_late():
    """KIP-98: the sequence is given when the batch is drained, not when it is opened."""
    builder = BatchBuilder()
    builder.append(TIME, None, b"v")
    builder.set_producer_state(producer_id=9, producer_epoch=2, base_sequence=77)
    batch = verify_client(builder.build())
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (9, 2, 77, 77)
    with pytest.raises(InvariantViolation):
        builder.set_producer_state(producer_id=9, producer_epoch=2, base_sequence=78)


def test_the_size_bound_of_one_record_holds():
    """S25: max.request.size is checked before anything is queued, so the estimate may not be low."""
    for key, value, headers in ((None, b"", ()), (b"k" * 300, b"v" * 70_000, [("h", b"x" * 200), ("é", None)])):
        built = build_batch([Record(0, TIME, key=key, value=value, headers=headers)])
        assert len(built) <= HEADER_SIZE + record_size(key, value, headers)


def test_a_control_batch_names_its_type():
    """KAFKA-FACTS 2: int16 version 0, int16 type as the key; one offset; the control bit."""
    batch = verify(control_batch(CONTROL_LEADER_CHANGE, b"who", timestamp_ms=TIME, base_offset=8, leader_epoch=4))
    (record,) = decode_batch(batch)
    assert (batch.is_control, batch.is_transactional, batch.base_offset, batch.leader_epoch) == (True, False, 8, 4)
    assert (record.key, record.value, control_type_of(record)) == (b"\0\0\0\2", b"who", CONTROL_LEADER_CHANGE)
    with pytest.raises(CorruptMessage):
        control_type_of(Record(0, 0, key=b"\0"))


@given(st.sampled_from(CODEC_NAMES), st.integers(61, 400), st.integers(0, 255), st.integers(0, 200))
def test_damaged_records_raise_corrupt_message_only(compression: str, at: int, value: int, cut: int):
    """A client meets any bytes behind a good checksum: it must see CORRUPT_MESSAGE, not a codec's private error."""
    whole = build_batch(
        [Record(0, TIME, 0, b"k%d" % i, b"v" * i, [("n", b"x")]) for i in range(20)], compression=compression
    )
    area = bytearray(whole[61:])
    area[(at - 61) % len(area)] = value
    damaged = with_records_area(whole, bytes(area[: len(area) - cut]))
    try:
        found = decode_batch(verify(damaged))
    except CorruptMessage:
        with pytest.raises(CorruptMessage):
            records_of(verify(damaged))  # at once: no record is handed out of a damaged batch
    else:  # many changes leave records that can be read: that is fine too
        assert list(map(facts_of, records_of(verify(damaged)))) == list(map(facts_of, found))
    with pytest.raises(CorruptMessage):
        decode_batch(whole[:40])
    for read in (decode_batch, records_of):
        with pytest.raises(CorruptMessage):
            read(RecordBatch.of(whole + b"x"))
        with pytest.raises(CorruptMessage):
            read(RecordBatch.of(whole)._replace(record_count=21))
