"""What enters a log can be read: the walk over the records of a batch, against a plain one in Python."""

from __future__ import annotations

import gc
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikafka.errors import InvalidRecord
from minikafka.wire import frames
from minikafka.wire.batch import HEADER_SIZE, RecordBatch, checksum, verify_client
from minikafka.wire.records import BatchBuilder, Record, build_batch, decode_batch
from minikafka.wire.validate import (
    _DELTA_STARTS,
    _DELTAS,
    _are_few_sound,
    _is_uniform,
    _walk,
    are_framed,
    check_records,
    is_long,
    keyless_records,
    timestamps_of,
)

TIME = 1_700_000_000_000
LIMIT = 1 << 24
IS_COMPILED = frames.IS_COMPILED


def batch_of(values: list[bytes], *, step_ms: int = 0) -> bytes:
    return build_batch([Record(0, TIME + number * step_ms, 0, None, value) for number, value in enumerate(values)])


def resealed(data: bytes) -> bytes:
    """``data`` with the length and the checksum of what it is now."""
    patched = bytearray(data)
    patched[8:12] = (len(data) - 12).to_bytes(4)
    patched[17:21] = checksum(patched).to_bytes(4)
    return bytes(patched)


def with_body(count: int, body: bytes, *, codec: int = 0) -> bytes:
    head = bytearray(batch_of([b"x"])[:HEADER_SIZE])
    head[22] = codec
    head[23:27] = (count - 1).to_bytes(4)
    head[57:61] = count.to_bytes(4)
    return resealed(bytes(head) + body)


def is_accepted(data: bytes) -> bool:
    """Validated with and without the walk over frames: the message is the same, too."""
    faults = []
    for frames.IS_COMPILED in (IS_COMPILED, not IS_COMPILED):
        try:
            check_records(verify_client(data), LIMIT)
        except InvalidRecord as error:
            faults.append(error.message)
        else:
            faults.append("")
    frames.IS_COMPILED = IS_COMPILED
    assert faults[0] == faults[1]
    return not faults[0]


RANDOM_BODY = random.Random(5).randbytes(300)
UNREADABLE = {
    "a random body": with_body(2, RANDOM_BODY),
    "an empty body": with_body(1, b""),
    "an empty compressed body": with_body(1, b"", codec=1),
    "2^31-1 records in two": with_body(2**31 - 1, batch_of([b"a", b"b"])[HEADER_SIZE:]),
    "three records in two": with_body(3, batch_of([b"a" * 20, b"b" * 20])[HEADER_SIZE:]),
    "two records of three": with_body(2, batch_of([b"a", b"b", b"c"])[HEADER_SIZE:]),
    "bytes behind the last": with_body(1, batch_of([b"a"])[HEADER_SIZE:] + b"more"),
    "the same record twice": with_body(2, 2 * batch_of([b"a"])[HEADER_SIZE:]),
    "a record that is cut": with_body(1, batch_of([b"a" * 40])[HEADER_SIZE:-1]),
    "a header's key that is no text": with_body(
        1, build_batch([Record(0, TIME, 0, None, b"v", (("hh", b"x"),))])[HEADER_SIZE:].replace(b"hh", b"\xff\xff")
    ),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_batch_that_cannot_be_read_is_refused(what: str):
    """Its checksum is right, so that nothing but the walk, or the header's own contradiction, tells."""
    with pytest.raises(InvalidRecord, match=r"recordCount|record \d+"):
        check_records(verify_client(UNREADABLE[what]), LIMIT)


def test_message_names_the_record():
    """The place of the fault."""
    good = batch_of([b"a" * 9] * 50)
    size = (len(good) - HEADER_SIZE) // 50
    at = HEADER_SIZE + 17 * size
    cut = resealed(good[:at] + b"\x7f" + good[at + 1 :])
    with pytest.raises(InvalidRecord, match=r"record 17 of 50 cannot be read"):
        check_records(verify_client(cut), LIMIT)
    delta = resealed(good[: at + 3] + b"\2" + good[at + 4 :])
    with pytest.raises(InvalidRecord, match=r"record 17 of 50 has offset delta 1, not 17"):
        check_records(verify_client(delta), LIMIT)


@pytest.mark.parametrize("count", [1, 31, 64, 65, 4096, 8192, 8193, 20_000, 70_000])
def test_sound_batches_are_accepted(count: int):
    """Deltas of one to three bytes, chunks of the walk, and timestamps of growing size."""
    check_records(verify_client(batch_of([b"v" * 5] * count, step_ms=1)), LIMIT)
    check_records(verify_client(batch_of([b"v" * (number % 7) for number in range(count)])), LIMIT)
    check_records(verify_client(memoryview(b"xx" + batch_of([b"v" * 5] * count))[2:]), LIMIT)


def test_records_of_one_layout_are_walked_by_columns():
    """That is what keeps the price low for large batches; whatever differs is left to the codec."""
    assert _is_uniform(batch_of([b"v" * 300] * 1000, step_ms=3), 1000)
    assert _is_uniform(batch_of([b""] * 9000), 9000)
    assert not _is_uniform(batch_of([b"v" * (number % 3) for number in range(200)]), 200)


def records_of(*rows: tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]], step_ms: int = 0) -> bytes:
    builder = BatchBuilder()
    for number, (key, value, headers) in enumerate(rows):
        builder.append(TIME + number * step_ms, key, value, headers)
    return bytes(builder.build())


FRAMED = {
    "no key and no value": records_of(*[(None, None, [])] * 3),
    "empty ones": records_of(*[(b"", b"", [])] * 3),
    "lengths of one to three bytes": records_of(
        *[(bytes(size), bytes(size), []) for size in (63, 64, 8191, 8192, 500_000)]
    ),
    "headers": records_of(*[(None, b"v", [("key", b"value"), ("", None), ("k" * 300, b"")])] * 40),
    "deltas of one to three bytes": records_of(*[(None, b"v", [])] * 9000, step_ms=7),
    "timestamps far apart and back": records_of(*[(b"k", b"v", [])] * 5, step_ms=-(1 << 40)),
}
ABSTAINED = {
    "a field of 1 MiB": (1, records_of((None, bytes(1 << 20), []))),
    "a header's key that is not ASCII": (1, records_of((None, b"", [("schl\u00fcssel", b"")]))),
    "a length that is longer than it needs to be": (1, with_body(1, b"\x8c\x80\x80\x00\0\0\0\1\1\0")),
}


@pytest.mark.parametrize("what", FRAMED)
def test_frames_of_sound_records_are_walked(what: str):
    """The fast walk accepts what producers send, and nothing that is cut, longer, or counted wrongly."""
    data = FRAMED[what]
    count = RecordBatch.of(data).record_count
    assert are_framed(data, count)
    assert not are_framed(data, count + 1)
    assert not are_framed(data, count - 1)
    assert not are_framed(data[:-1], count)
    assert not are_framed(data + b"\0", count)
    assert is_accepted(data)


@pytest.mark.parametrize("what", ABSTAINED)
def test_what_the_walk_over_frames_abstains_from_the_codec_decides(what: str):
    """It abstains from few sound batches; they are accepted all the same."""
    count, data = ABSTAINED[what]
    assert not are_framed(data, count)
    assert is_accepted(data)


def test_no_unreadable_batch_is_framed():
    """Whatever the walk over frames accepts is not looked at again."""
    for data in UNREADABLE.values():
        assert not are_framed(data, min(RecordBatch.of(data).record_count, 100))


def test_frames_are_walked_in_parts(monkeypatch: pytest.MonkeyPatch):
    """The interpreter gets its turn between them; each part begins with the right number."""
    parts = []
    walk = frames.walk
    monkeypatch.setattr(frames, "walk", lambda *part: (parts.append(part[2:]), walk(*part))[1])
    data = batch_of([b""] * 70_000)
    assert are_framed(data, 70_000)
    assert parts == [(0, 65_536), (65_536, 70_000)]


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_walked_too(compression: str):
    """Decompressed within a limit; the message says what is wrong either way."""
    records = [Record(0, TIME, 0, None, b"v" * 9) for _ in range(100)]
    good = build_batch(records, compression=compression)
    check_records(verify_client(good), LIMIT)
    fewer = bytearray(good)
    fewer[23:27], fewer[57:61] = (98).to_bytes(4), (99).to_bytes(4)
    with pytest.raises(InvalidRecord, match="bytes follow record 98, the last"):
        check_records(verify_client(resealed(bytes(fewer))), LIMIT)
    with pytest.raises(InvalidRecord, match=r"expands to more than 900 bytes|do not fit 900 bytes"):
        check_records(verify_client(good), 900)
    other = {"gzip": 4, "snappy": 1, "lz4": 1, "zstd": 3}[compression]
    with pytest.raises(InvalidRecord, match="records: "):
        check_records(verify_client(with_body(100, good[HEADER_SIZE:], codec=other)), LIMIT)
    plain = batch_of([b"v" * 9] * 100)[HEADER_SIZE:]
    with pytest.raises(InvalidRecord, match="records: "):
        check_records(verify_client(with_body(100, plain, codec=other)), LIMIT)


def test_batches_that_take_long_are_known_from_their_headers():
    """They are validated beside the loop: many records, large bodies, compressed ones earlier than others."""
    short = [b"v" * 10] * 1000
    assert not is_long(verify_client(batch_of(short)), LIMIT)
    assert not is_long(verify_client(batch_of([b"v" * 1000] * 1000)), LIMIT)
    assert is_long(verify_client(batch_of([b"v" * 1000] * 1200)), LIMIT)
    assert is_long(verify_client(batch_of([b""] * 70_000)), LIMIT)
    noise = build_batch([Record(0, TIME, 0, None, random.Random(1).randbytes(9000))], compression="gzip")
    assert is_long(verify_client(noise), LIMIT)
    tiny = build_batch([Record(0, TIME, 0, None, b"v")], compression="zstd")
    assert not is_long(verify_client(tiny), LIMIT)
    assert is_long(verify_client(tiny), 64 * LIMIT)


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("no number")


def _is_readable(data: bytes, count: int) -> bool:
    """The plain walk: one field after the other, as Kafka's documentation has them."""
    at = HEADER_SIZE
    try:
        for number in range(count):
            length, start = _number(data, at, len(data))
            end = start + length
            if length < 1 or end > len(data):
                return False
            _, at = _number(data, start + 1, end)
            delta, at = _number(data, at, end)
            for _ in ("key", "value"):
                size, at = _number(data, at, end)
                at += max(size, 0)
            headers, at = _number(data, at, end)
            for _ in range(headers):
                size, at = _number(data, at, end)
                if size < 0:
                    return False
                data[at : at + size].decode()
                at += size
                value_size, at = _number(data, at, end)
                at += max(value_size, 0)
                if at > end:
                    return False
            if delta != number or headers < 0 or at != end or data[start] >= 0x80:
                return False
    except ValueError:
        return False
    return at == len(data)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_batches_are_judged_as_by_a_plain_walk(seed: int):
    """Nothing unreadable is accepted, and nothing else is refused; (the codec also refuses lengths below -1.)"""
    drawn = random.Random(seed)
    refused = 0
    for _ in range(400):
        count = drawn.choice([1, 3, 40, 130])
        size = drawn.choice([0, 3, 150])
        builder = BatchBuilder()
        for number in range(count):
            value = bytes(size if count > 3 and size else drawn.randrange(80))
            headers = [("h", b"x")] if not size and drawn.random() < 0.2 else []
            builder.append(TIME + number // 50, None if size else bytes(drawn.randrange(3)), value, headers)
        data = bytearray(builder.build())
        for _ in range(drawn.choice([0, 1, 1, 2])):
            at = drawn.randrange(HEADER_SIZE, len(data))
            kind = drawn.random()
            if kind < 0.6:
                data[at] = drawn.choice([data[at] ^ 1 << drawn.randrange(8), 0x80, 0xFF, 0, 2])
            elif kind < 0.8 and len(data) - at > 3:
                del data[at : at + drawn.randrange(1, 3)]
            else:
                data[at:at] = drawn.randbytes(2)
        judged = resealed(bytes(data))
        accepted = is_accepted(judged)
        refused += not accepted
        if accepted:
            assert _is_readable(judged, count), judged.hex()
            assert len(decode_batch(judged)) == count
        elif _is_readable(judged, count):
            with pytest.raises(InvalidRecord, match=r"cannot be read|do not fit"):
                check_records(verify_client(judged), LIMIT)
    assert refused > 100


TEXTS = st.binary(max_size=3) | st.sampled_from([b"v" * 63, b"v" * 64, b"v" * 200])
RECORDS = st.lists(
    st.tuples(
        st.integers(-70, 9000),
        st.none() | TEXTS,
        st.none() | TEXTS,
        st.lists(st.tuples(st.sampled_from(["", "h"]), st.none() | TEXTS), max_size=2),
    ),
    min_size=1,
    max_size=8,
)
EDITS = st.lists(
    st.tuples(st.integers(0, 4000), st.sampled_from(["set", "flip", "cut", "insert"]), st.integers(0, 255)), max_size=2
)


@settings(max_examples=200, deadline=None)
@given(rows=RECORDS, repeats=st.sampled_from([1, 1, 40, 150]), edits=EDITS)
def test_any_batch_is_judged_as_by_a_plain_walk(rows, repeats, edits):
    """Both walks accept the same bodies: sound ones, changed ones and cut ones, of equal and of unequal records."""
    builder = BatchBuilder()
    for step, key, value, headers in rows * repeats:
        builder.append(TIME + step, key, value, headers)
    data = bytearray(builder.build())
    for number, kind, byte in edits:
        at = HEADER_SIZE + number % max(len(data) - HEADER_SIZE, 1)
        if kind == "cut":
            del data[at : at + 1 + byte]
        elif kind == "insert":
            data[at:at] = bytes((byte,))
        elif at < len(data):
            data[at] = byte if kind == "set" else data[at] ^ 1 << byte % 8
    judged = resealed(bytes(data))
    is_readable = _is_readable(judged, len(rows) * repeats)
    assert is_accepted(judged) == is_readable
    if are_framed(judged, len(rows) * repeats):
        assert is_readable
    else:
        assert edits, "it abstains from no batch that a producer builds of these"


def test_walk_runs_without_garbage_collection():
    """The codec makes an object for each header: collections meanwhile would double what such a body costs."""
    builder = BatchBuilder()
    builder.append(TIME, None, b"", [("", None)] * 20_000)
    batch = verify_client(bytes(builder.build()))
    collections = []

    def count(phase: str, _: dict[str, int]) -> None:
        collections.append(phase)

    assert gc.isenabled()
    gc.callbacks.append(count)
    try:
        check_records(batch, LIMIT)
        assert collections.count("start") <= 1, "one may follow the walk"
        assert gc.isenabled()
        with pytest.raises(InvalidRecord):
            check_records(verify_client(UNREADABLE["a random body"]), LIMIT)
        assert gc.isenabled()
    finally:
        gc.callbacks.remove(count)


def test_records_without_a_key_are_counted():
    """What a compacted topic refuses; the walk finds unreadable records, too."""
    records = [Record(0, TIME, 0, b"k" if number % 3 else None, b"v") for number in range(10)]
    assert keyless_records(verify_client(build_batch(records)), LIMIT) == [0, 3, 6, 9]
    with pytest.raises(InvalidRecord, match="cannot be read"):
        keyless_records(verify_client(UNREADABLE["a random body"]), LIMIT)
    with pytest.raises(InvalidRecord, match="cannot be read"):
        timestamps_of(verify_client(UNREADABLE["a random body"]), LIMIT)


FEW = [name for name, data in UNREADABLE.items() if RecordBatch.of(data).record_count < 32]


@pytest.mark.parametrize("name", FEW)
def test_the_short_form_for_small_batches_refuses_what_the_walk_refuses(name: str) -> None:
    """The unrolled form only accepts; what it does not accept, the walk reports."""
    batch = RecordBatch.of(UNREADABLE[name])
    if not batch.codec:
        assert not _are_few_sound(UNREADABLE[name], batch.record_count)
    with pytest.raises(InvalidRecord):
        check_records(batch, LIMIT)


@pytest.mark.parametrize("count", [1, 2, 31])
def test_the_short_form_accepts_small_sound_batches(count: int) -> None:
    """Keys, values, headers, and absent ones; the walk accepts the same."""
    rows = [(b"k", b"v" * 20, [("h", b"x")]), (None, None, []), (b"", b"", [("h", None)])]
    builder = BatchBuilder()
    for number in range(count):
        builder.append(TIME + number, *rows[number % 3])
    data = bytes(builder.build())
    assert _are_few_sound(data, count)
    assert _walk(verify_client(data), data) == []
    assert not _are_few_sound(data, count + 1)


def test_columns_of_offset_deltas_are_their_varints():
    """The columns that runs of records are compared with have the bytes of each delta's varint."""
    columns = [
        tuple(bytes(each) for each in zip(*map(zigzag, range(start, end)), strict=True))
        for start, end in itertools.pairwise(_DELTA_STARTS)
    ]
    assert columns == _DELTAS


def zigzag(number: int) -> list[int]:
    """The varint of a number that is not negative."""
    left, encoded = 2 * number, []
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return [*encoded, left]
