"""The records of a fetch as columns: what the record codec finds, found for all at once (issue 4, must be shown)."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikafka.errors import CorruptMessage, InvalidRecord
from minikafka.spark import decode
from minikafka.spark.decode import columns_of, to_arrow
from minikafka.types import TopicPartition
from minikafka.wire.batch import CODEC_NAMES, RecordBatch, iterate, stamped_log_append_time
from minikafka.wire.decompression import decompressed
from minikafka.wire.records import Record, build_batch, control_batch, decode_batch

NAME = TopicPartition("orders", 3)
TIME = 1_700_000_000_000

optional_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), optional_bytes), max_size=2)
# Runs of equal records beside single ones: both ways through the lengths.
rows = st.lists(
    st.tuples(st.integers(1, 90), st.integers(-(2**40), 2**40), optional_bytes, optional_bytes, headers),
    min_size=1,
    max_size=6,
)


def batch_of(runs: list, compression: str = "none", base_offset: int = 0) -> bytes:
    records = [
        Record(0, TIME + delta, 0, key, value, named) for count, delta, key, value, named in runs for _ in range(count)
    ]
    return build_batch(records, compression=compression, base_offset=base_offset)


def read(data: bytes) -> list[RecordBatch]:
    """As a fetch's answer is read."""
    return list(iterate(memoryview(data)))


def expected(batches: list[RecordBatch]) -> list[tuple]:
    """By the codec, one object per record."""
    return [
        (
            r.key,
            r.value,
            r.offset,
            r.timestamp,
            r.timestamp_type,
            [{"key": k, "value": v} for k, v in r.headers] or None,
        )
        for batch in batches
        for r in decode_batch(batch)
    ]


def found(batches: list[RecordBatch], start: int = 0, end: int = 1 << 40) -> list[tuple]:
    """By columns."""
    return [row for arrow in to_arrow(NAME, batches, start, end, include_headers=True) for row in rows_of(arrow)]


def rows_of(arrow: pa.RecordBatch) -> list[tuple]:
    names = ("key", "value", "offset", "timestamp", "timestampType", "headers")
    told = arrow.to_pydict()
    assert set(told["topic"]) == {NAME.topic}
    assert set(told["partition"]) == {NAME.partition}
    told["timestamp"] = [each.value // 1000 for each in arrow.column("timestamp")]
    return list(zip(*(told[name] for name in names), strict=True))


@given(st.lists(st.tuples(rows, st.sampled_from(CODEC_NAMES)), min_size=1, max_size=3))
def test_columns_hold_what_the_codec_finds(given_batches):
    """Keys, values, nulls, times, offsets and headers, of several batches of all codecs, one behind the other."""
    data, end = b"", 0
    for runs, compression in given_batches:
        data += batch_of(runs, compression, base_offset=end)
        end += sum(run[0] for run in runs)
    batches = read(data)
    assert found(batches) == expected(batches)


@given(rows, st.integers(0, 300), st.integers(0, 300))
def test_a_range_is_cut_at_its_edges(runs, start, end):
    """SPARK 5: batches do not end where ranges do."""
    batches = read(batch_of(runs))
    assert found(batches, start, end) == [row for row in expected(batches) if start <= row[2] < end]


@given(
    st.lists(st.tuples(rows, st.sampled_from(("none", "zstd"))), min_size=1, max_size=4),
    st.integers(0, 300),
    st.integers(0, 300),
)
def test_batches_that_expand_far_are_decoded_in_portions(given_batches, start, end):
    """A fetch of a megabyte may expand to gigabytes, beyond what Arrow's offsets hold: it was read outside the buffer."""
    data, at = b"", 0
    for runs, compression in given_batches:
        data += batch_of(runs, compression, base_offset=at)
        at += sum(run[0] for run in runs)
    batches = read(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "EXPANDED_MAX", 2_000)
        tables = list(to_arrow(NAME, batches, start, end, include_headers=True))
        assert [row for table in tables for row in rows_of(table)] == [
            row for row in expected(batches) if start <= row[2] < end
        ]
        assert all(table.num_rows for table in tables)
        largest = max(len(decompressed(batch)) for batch in batches)
        portions = [list(map(len, bodies or ())) for _, bodies in decode._expanded(batches)]
        assert all(sum(sizes) <= max(2_000, largest) for sizes in portions)
        assert all(sum(one) + other[0] > 2_000 for one, other in pairwise(portions)), "none is smaller than it must be"


def test_portions_are_filled_one_after_the_other():
    """Two batches of some thousand bytes fit, and a larger one has a portion to itself."""
    sizes = (10, 10, 10, 10, 40, 10)
    data = b"".join(batch_of([(count, 0, None, b"v" * 90, [])], "zstd") for count in sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "EXPANDED_MAX", 2_500)
        assert [len(portion) for portion, _ in decode._expanded(read(data))] == [2, 2, 1, 1]


def test_fetch_that_is_not_compressed_is_one_batch():
    """What was fetched bounds it."""
    data = b"".join(batch_of([(50, 0, None, b"v" * 100, [])], base_offset=base) for base in (0, 50))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "EXPANDED_MAX", 100)
        (table,) = to_arrow(NAME, read(data), 0, 100, include_headers=False)
    assert table.num_rows == 100


def test_a_long_batch_of_growing_deltas_is_one_batch():
    """Lengths change by a byte where offset and time need one more: runs end there and begin again."""
    records = [Record(0, TIME + index, 0, None, b"v" * 20) for index in range(20_000)]
    batches = read(build_batch(records, base_offset=7))
    assert found(batches) == expected(batches)


def test_log_append_time_is_every_records_time():
    """The batch's time counts, not the records'."""
    batch = RecordBatch.of(batch_of([(3, 5, None, b"v", [])]))
    stored = b"".join(stamped_log_append_time(batch, base_offset=9, leader_epoch=1, timestamp_ms=TIME + 99))
    assert [row[3:5] for row in found(read(stored))] == [(TIME + 99, 1)] * 3


@pytest.mark.parametrize("beyond", [2**63 - 1, -(2**63), 9_223_372_036_854_776])
def test_a_timestamp_that_spark_cannot_hold_is_null(beyond: int):
    """One record of a careless producer does not stop a query: the records beside it keep their times."""
    batch = build_batch([Record(0, each, value=b"v") for each in (TIME, beyond, TIME + 1)])
    (arrow,) = to_arrow(NAME, read(batch), 0, 3, include_headers=False)
    assert [each.value for each in arrow.column("timestamp")] == [TIME * 1000, None, (TIME + 1) * 1000]


def test_control_batches_are_left_out():
    """Markers take an offset and are not given to applications."""
    data = batch_of([(2, 0, b"k", b"v", [])])
    marker = control_batch(2, b"", timestamp_ms=TIME, base_offset=2)
    more = batch_of([(2, 0, b"k", b"v", [])], base_offset=3)
    assert [row[2] for row in found(read(data + marker + more))] == [0, 1, 3, 4]
    assert found(read(marker)) == []


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_aborted_batches_are_left_out(compression: str):
    """The reader of a range says so by a count of 0 (read_committed); their bytes are still there."""
    data = b"".join(batch_of([(2, 0, b"k", b"v", [])], compression, base_offset=base) for base in (0, 2, 4))
    batches = read(data)
    batches[1] = batches[1]._replace(record_count=0)
    assert [row[2] for row in found(batches)] == [0, 1, 4, 5]
    assert found([batches[1]]) == []


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("0f000000010276 00", id="negative length"),
        pytest.param("10000000010276 00ff", id="byte behind the headers of a record"),
        pytest.param("14000000010276 02026801 00", id="byte behind the last record"),
        pytest.param("040080", id="number without an end"),
    ],
)
def test_records_that_do_not_fill_their_batch_are_damaged(body: str):
    """One record with the value ``v`` is ``0e 00 00 00 01 02 76 00``; lengths are zigzag numbers."""
    header = batch_of([(1, 0, None, b"v", [])])[:61]
    assert len(columns_of([RecordBatch.of(header + bytes.fromhex("0e00000001027600"))])) == 1
    with pytest.raises(CorruptMessage):
        columns_of([RecordBatch.of(header + bytes.fromhex(body))])


@settings(max_examples=300)
@given(rows, st.sampled_from(CODEC_NAMES), st.integers(0), st.integers(1, 255))
def test_damage_ends_in_corrupt_message_or_in_records_of_the_batch(runs, compression, place, change):
    """Behind the checksum too: nothing but CorruptMessage comes out, and nothing outside the buffer is read."""
    data = bytearray(batch_of(runs, compression))
    data[61 + place % (len(data) - 61)] ^= change
    with pytest.raises((CorruptMessage, InvalidRecord)):
        found(read(bytes(data)))
    with contextlib.suppress(CorruptMessage):
        columns = columns_of([RecordBatch.of(bytes(data))])
        for starts, lengths in (
            (columns.key_starts, columns.key_lengths),
            (columns.value_starts, columns.value_lengths),
        ):
            assert (starts + lengths <= len(columns.data)).all()
            assert (starts >= 0).all()
            assert (lengths >= -1).all()
