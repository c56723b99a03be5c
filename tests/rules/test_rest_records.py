"""Records as JSON (HTTP conventions 2.3): what people write, what they read, and that the one can be sent as the other."""

from __future__ import annotations

import asyncio
import base64
import heapq
import json
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.errors import RecordListTooLarge
from minikafka.rest import fetch, json_text, records, topic_records
from minikafka.rest.fetch import Wanted, read_out
from minikafka.rest.host import PRODUCE_RECORD_COUNT_MAX
from minikafka.rest.records import FORMATS, RecordIn, record_in, record_out, records_in
from minikafka.web.problems import VALIDATION_ERROR_COUNT_MAX, Refused
from minikafka.wire.batch import RecordBatch, from_offset, iterate, with_fields
from minikafka.wire.decompression import DECOMPRESSED_BYTES_MAX
from minikafka.wire.markers import EndTransaction, filter_of, marker_batch
from minikafka.wire.messages import AbortedTransaction
from minikafka.wire.records import Record, build_batch, control_batch

NOW_MS = 1_700_000_000_000


def read_in(document: object, now_ms: int) -> list[RecordIn]:
    return asyncio.run(records_in(document, now_ms))


def shown(data, offset: int, *, aborted=None, limit=DECOMPRESSED_BYTES_MAX, **wanted) -> tuple[list[dict], int]:
    batches = from_offset(iterate(b"".join(data)), offset)
    return asyncio.run(read_out(batches, offset, Wanted(**wanted), aborted=aborted, limit=limit))


def faults_of(document: object) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught:
        read_in(document, NOW_MS)
    assert caught.value.status == 422
    return [(each["pointer"], each["detail"]) for each in caught.value.members["errors"]]


def one(**members: object) -> tuple[bytes | None, bytes | None]:
    (record,) = read_in(members, NOW_MS)
    return record.key, record.value


def test_strings_are_bytes_other_json_is_compact_text_and_null_is_a_tombstone():
    """Else a record written by curl could not be read by a program, or the other way round."""
    assert one(key="ann", value={"item": "tea", "count": 2}) == (b"ann", b'{"item":"tea","count":2}')
    assert one(key=42, value=[1, None, "ä"]) == (b"42", '[1,null,"ä"]'.encode())
    assert one(key=None, value=None) == (None, None)
    assert one(value="") == (None, b"")
    assert one(value=False) == (None, b"false")


def test_base64_members_carry_any_bytes():
    """JSON has no bytes."""
    assert one(key_b64="AP8=", value_b64="") == (b"\x00\xff", b"")
    assert one(value_b64=None) == (None, None)


def test_headers_are_pairs_that_may_repeat():
    """Kafka allows a name twice, an object could not hold that."""
    (record,) = read_in({"value": "x", "headers": [["trace", "a"], ["trace", None], ["raw", {"b64": "/w=="}]]}, NOW_MS)
    assert record.headers == [("trace", b"a"), ("trace", None), ("raw", b"\xff")]


@pytest.mark.parametrize(
    "given, expected",
    [
        (0, 0),
        (1_732_176_000_000, 1_732_176_000_000),
        ("2024-11-21T08:00Z", 1_732_176_000_000),
        ("2024-11-21T08:00:00.123Z", 1_732_176_000_123),
        ("2024-11-21T09:00:00+01:00", 1_732_176_000_000),
    ],
)
def test_a_timestamp_is_milliseconds_or_iso_8601(given, expected):
    """Value by value, to the millisecond and with its zone."""
    (record,) = read_in({"value": "x", "timestamp": given}, NOW_MS)
    assert record.timestamp == expected


def test_a_record_without_a_timestamp_gets_the_time_of_arrival():
    """The broker's wall clock, asked once per request."""
    assert [each.timestamp for each in read_in([{"value": 1}, {"value": 2}], NOW_MS)] == [NOW_MS, NOW_MS]


@pytest.mark.parametrize("bad", [True, -1, 2**63, 1.5, "yesterday", "2024-11-21T08:00", "1969-01-01T00:00Z", None, []])
def test_a_bad_timestamp_is_refused_with_its_place(bad):
    """A record must not silently get another time than it was sent with."""
    ((where, _),) = faults_of({"records": [{"value": "x"}, {"value": "x", "timestamp": bad}]})
    assert where == "/records/1/timestamp"


@pytest.mark.parametrize(
    "document, where",
    [
        ({"records": [{"value": "x"}, {"key": "k"}]}, "/records/1/value"),
        ({"records": [{"value": "x", "key": "k", "key_b64": "aw=="}]}, "/records/0/key_b64"),
        ({"records": [{"value_b64": "not base64"}]}, "/records/0/value_b64"),
        ({"records": [{"value_b64": "ä"}]}, "/records/0/value_b64"),
        ({"records": [{"value_b64": 7}]}, "/records/0/value_b64"),
        ({"records": [{"value": "x", "headers": {"a": "b"}}]}, "/records/0/headers"),
        ({"records": [{"value": "x", "headers": [["a"]]}]}, "/records/0/headers/0"),
        ({"records": [{"value": "x", "headers": [["a", 1]]}]}, "/records/0/headers/0/1"),
        ({"records": [{"value": "x", "headers": [["a", {"b64": "?"}]]}]}, "/records/0/headers/0/1/b64"),
        ({"records": ["x"]}, "/records/0"),
        ({"records": []}, "/records"),
        ({"records": {}}, "/records"),
        ({"records": [{"value": "x"}], "recods": 1}, "/recods"),
        ([], ""),
        ("x", ""),
        (7, ""),
        (None, ""),
        ({}, "/value"),
        ({"value": 1, "a/b~c": 1}, "/a~1b~0c"),
    ],
)
def test_validation_names_the_bad_member_by_a_json_pointer(document, where):
    """RFC 6901 and one sentence instead of a parser's text."""
    assert [path for path, _ in faults_of(document)] == [where]


def test_an_unknown_member_is_refused_with_the_nearest_name():
    """An ignored member is a lie about its effect."""
    ((where, detail),) = faults_of({"value": 1, "timestmap": 1})
    assert where == "/timestmap"
    assert "did you mean 'timestamp'?" in detail


def test_the_number_of_records_and_of_faults_is_bounded():
    """A body full of mistakes must not cost more than one without."""
    with pytest.raises(RecordListTooLarge):
        read_in([{"value": 1}] * (PRODUCE_RECORD_COUNT_MAX + 1), NOW_MS)
    assert len(faults_of([{"valu": 1}] * PRODUCE_RECORD_COUNT_MAX)) == VALIDATION_ERROR_COUNT_MAX
    assert len(faults_of({f"m{number}": 1 for number in range(5_000)})) == VALIDATION_ERROR_COUNT_MAX


# ---- out -------------------------------------------------------------------------------------------------------------


def out(value: bytes | None, form: str = "auto", key: bytes | None = None) -> dict[str, object]:
    told = record_out(Record(offset=3, timestamp=5, key=key, value=value), 9, form)
    assert (told.pop("offset"), told.pop("timestamp"), told.pop("leader_epoch")) == (3, 5, 9)
    assert told.pop("headers") == []
    return told


@pytest.mark.parametrize(
    "value, form, expected",
    [
        (b'{"a": 1}', "auto", {"value": {"a": 1}, "encoding": "json"}),
        (b"42", "auto", {"value": 42, "encoding": "json"}),
        (b"tea", "auto", {"value": "tea", "encoding": "text"}),
        (b'"tea"', "auto", {"value": '"tea"', "encoding": "text"}),
        (b"null", "auto", {"value": "null", "encoding": "text"}),
        (b"\xff", "auto", {"value_b64": "/w==", "encoding": "base64"}),
        (None, "auto", {"value": None, "encoding": "null"}),
        (b"NaN", "auto", {"value": "NaN", "encoding": "text"}),
        (b"1e999", "auto", {"value": "1e999", "encoding": "text"}),
        (b'{"a":1,"a":2}', "auto", {"value": '{"a":1,"a":2}', "encoding": "text"}),
        (b'["\\ud800"]', "auto", {"value": '["\\ud800"]', "encoding": "text"}),
        (b"[" * 5_000, "auto", {"value": "[" * 5_000, "encoding": "text"}),
        (b"9" * 5_000, "auto", {"value": "9" * 5_000, "encoding": "text"}),
        (b'"tea"', "json", {"value": "tea", "encoding": "json"}),
        (b"null", "json", {"value": None, "encoding": "json"}),
        (b"tea", "json", {"value": "tea", "encoding": "text"}),
        (b"42", "text", {"value": "42", "encoding": "text"}),
        (b"\xff", "text", {"value_b64": "/w==", "encoding": "base64"}),
        (b"42", "base64", {"value_b64": "NDI=", "encoding": "base64"}),
        (None, "base64", {"value": None, "encoding": "null"}),
    ],
)
def test_each_record_says_its_own_encoding(value, form, expected):
    """One record that is not JSON must never spoil a poll (the 406 of other proxies)."""
    assert out(value, form) == {"key": None, **expected}


def test_a_key_that_is_not_text_comes_as_base64_beside_a_json_value():
    """Key and value are encoded each by itself."""
    assert out(b"1", key=b"\xfe") == {"key_b64": "/g==", "value": 1, "encoding": "json"}
    assert out(b"1", key=b"7", form="base64") == {"key_b64": "Nw==", "value_b64": "MQ==", "encoding": "base64"}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.none() | st.binary(max_size=40) | json_values.map(json_text.compact), st.sampled_from(["auto", "text", "base64"])
)
def test_what_was_read_can_be_sent_and_is_the_same_record(value, form):
    """Reading from one topic into another with curl and jq loses nothing (compact JSON, texts and bytes alike)."""
    told = out(value, form, key=value)
    told.pop("encoding")
    (record,) = read_in(told, NOW_MS)
    assert _same(record.value, value)
    assert _same(record.key, value)


def _same(sent: bytes | None, stored: bytes | None) -> bool:
    """Equal bytes; JSON that came in another spelling (spaces, escapes, 1.0e5) means the same."""
    if sent == stored or sent is None or stored is None:
        return sent == stored
    return json.loads(sent) == json.loads(stored)


@given(st.binary(max_size=60), st.sampled_from(FORMATS))
def test_any_bytes_can_be_shown_in_every_format(data, form):
    """Never a 500 because of what somebody stored."""
    assert json.loads(json_text.text_of(out(data, form, key=data)))


# ---- batches ---------------------------------------------------------------------------------------------------------


def batches() -> list[bytes]:
    """Offsets 10 to 12, a control batch at 13, and 14 to 15."""
    first = build_batch([Record(at, NOW_MS, value=b"%d" % at) for at in range(3)], base_offset=10, leader_epoch=1)
    control = control_batch(2, b"", timestamp_ms=NOW_MS, base_offset=13, leader_epoch=2)
    second = build_batch(
        [Record(at, NOW_MS, value=b"x") for at in range(2)], base_offset=14, leader_epoch=2, compression="lz4"
    )
    return [first, control, second]


@pytest.mark.parametrize(
    "offset, count_max, expected, next_offset",
    [
        (10, 100, [10, 11, 12, 14, 15], 16),
        (11, 100, [11, 12, 14, 15], 16),
        (10, 2, [10, 11], 12),
        (10, 3, [10, 11, 12], 13),
        (12, 1, [12], 13),
        (13, 1, [14], 15),
        (15, 1, [15], 16),
    ],
)
def test_reading_starts_at_the_offset_ends_at_the_count_and_says_where_to_go_on(
    offset, count_max, expected, next_offset
):
    """A batch begins before the offset asked for; control records are for nobody; nothing is skipped or told twice."""
    data = batches()
    for form in (data, [b"".join(data)]):
        told, following = shown(form, offset, count_max=count_max, form="auto")
        assert [each["offset"] for each in told] == expected
        assert following == next_offset
    assert {each["leader_epoch"] for each in told} <= {1, 2}
    assert shown([], 16, count_max=5, form="auto") == ([], 16), "nothing to read yet"


def test_a_control_batch_alone_moves_the_next_offset():
    """Else a reader would ask for the same nothing for ever."""
    assert shown([batches()[1]], 13, count_max=5, form="auto") == ([], 14)


def test_a_batch_that_cannot_be_opened_does_not_stop_the_reader():
    """The broker stores what it may not open: a liar's batch must not poison the partition for curl."""
    good = RecordBatch.of(batches()[2])
    damaged = with_fields(good, base_offset=14, leader_epoch=2) + b"\xff" * (good.size - 61)
    told, next_offset = shown([batches()[0], damaged], 10, count_max=100, form="auto")
    assert [each["encoding"] for each in told] == ["json", "json", "json", "unreadable"]
    assert (told[-1]["offset"], told[-1]["last_offset"], next_offset) == (14, 15, 16)


@pytest.mark.parametrize(
    "wanted, expected",
    [("tea", [0, 2]), ("k1", [1]), ("trace", [3]), ("id-7", [3]), ("TEA", []), ("ä", [4])],
)
def test_a_search_shows_records_that_contain_the_text(wanted, expected):
    """Key, value, and names and values of headers, byte by byte; the next request starts behind what was searched."""
    data = build_batch(
        [
            Record(0, 1, value=b"tea"),
            Record(1, 1, key=b"k1", value=None),
            Record(2, 1, key=b"tea", value=b""),
            Record(3, 1, value=b"x", headers=[("trace", b"id-7"), ("none", None)]),
            Record(4, 1, value="ä".encode()),
        ]
    )
    found, next_offset = shown([data], 0, count_max=9, form="auto", contains=wanted.encode())
    assert ([each["offset"] for each in found], next_offset) == (expected, 5)


def test_a_search_ends_when_the_answer_is_full_or_its_budget_is_read():
    """It goes on behind the last record that it searched, whether that was found or not."""
    data = build_batch([Record(at, 1, value=b"tea" if at % 2 else b"milk") for at in range(8)])
    assert [
        ([each["offset"] for each in found], next_offset)
        for found, next_offset in (shown([data], at, count_max=2, form="auto", contains=b"tea") for at in (0, 4))
    ] == [([1, 3], 4), ([5, 7], 8)]
    large = build_batch([Record(at, 1, value=bytes(100_000)) for at in range(140)], compression="zstd")
    assert shown([large], 0, count_max=9, form="auto", contains=b"tea") == ([], 84)
    assert shown([large], 84, count_max=9, form="auto", contains=b"tea") == ([], 140)


# ---- JSON itself -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, why",
    [
        (b"", "line 1, column 1"),
        (b"{", "line 1"),
        (b'{"a":1}\n{', "line 2, column 1"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"NaN", "NaN is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
        (b"1e400", "too large"),
        (b"1" * 5_000, "digits"),
        (b'{"a":1,"b":2,"a":3}', "'a' comes twice"),
        (b'"\\ud800"', "surrogate"),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64"),
        (b"[" * 100_000, "nested deeper than 64"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "nested deeper than 64"),
    ],
)
def test_what_is_not_json_is_told_in_one_sentence(text, why):
    """And without the parser's own words."""
    with pytest.raises(json_text.NotJson, match=why):
        json_text.parse(text)


def test_deep_but_legal_json_passes():
    """The limit stands where it says."""
    text = b"[" * 64 + b"]" * 64
    assert json_text.compact(json_text.parse(text)) == text
    assert json_text.parse(b'"\\ud83d\\ude00"') == "😀"
    assert json_text.parse(b'\xef\xbb\xbf{"many": [' + b",".join([b"[1]"] * 500) + b"]}")["many"][499] == [1]


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_parsing_raises_nothing_but_notjson_and_what_it_accepts_can_be_written(data):
    """Never a 500 for bad input."""
    try:
        value = json_text.parse(data)
    except json_text.NotJson:
        return
    assert json_text.parse(json_text.compact(value)) == value
    assert base64.b64encode(json_text.text_of(value))


def test_an_answer_is_bounded_by_what_it_shows():
    """A few kilobytes of zstd were 1.2 GB on 62e114e: the answer ends when it is full, and says where to go on."""
    records = [Record(at, 1, value=bytes(100_000)) for at in range(140)]
    data = build_batch(records, compression="zstd")
    assert len(data) < 100_000
    told, next_offset = shown([data], 0, count_max=10_000, form="base64")
    assert (len(told), next_offset) == (84, 84)
    rest, next_offset = shown([data], 84, count_max=10_000, form="base64")
    assert ([each["offset"] for each in rest], next_offset) == (list(range(84, 140)), 140)


def test_a_batch_that_expands_too_far_is_one_unreadable_entry():
    """Its reader goes on behind it; it costs no more than the limit."""
    data = build_batch([Record(0, 1, value=bytes(3_000_000)), Record(1, 1, value=b"")], compression="zstd")
    tracemalloc.start()
    try:
        told, next_offset = shown([data], 0, count_max=10, form="auto", limit=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert (told[0]["encoding"], told[0]["last_offset"], next_offset) == ("unreadable", 1, 2)
    assert "expands to more than 1000000 bytes" in told[0]["detail"]


@pytest.mark.parametrize("value", [b"[" * 5_000, b"[" + b"[]," * 50_000 + b"[]]", b"[" + b"1," * 50_000 + b"1]"])
def test_a_value_of_very_many_parts_is_shown_as_text(value: bytes):
    """To read it as JSON would hold up every other request."""
    told = record_out(Record(0, 1, value=value), 0, "auto")
    assert (told["encoding"], told["value"]) == ("text", value.decode())


@pytest.mark.parametrize("number", ["1e999", "-1E+400", "1" + "0" * 400 + ".5"])
@pytest.mark.parametrize("padding", ["", "1.5," * 60_000, '"e.E",' * 30_000])
def test_numbers_beyond_a_double_are_refused_among_many(number: str, padding: str):
    """They are looked for one by one, or, where there are many fractions, after reading."""
    for text in (f"[{padding}{number}]", f'[{padding}{{"a": [{number}]}}]'):
        with pytest.raises(json_text.NotJson, match="too large"):
            json_text.parse(text.encode())
    assert json_text.parse(f"[{padding}1e300]".encode())[-1] == 1e300


def test_a_large_answer_is_the_same_text_in_turns():
    """Written piece by piece, it is what it would be in one."""
    answer = {
        "a": [{"n": at, "s": "\u00e9"} for at in range(2_001)],
        "b": [],
        "c": [[1, [2]]],
        "d": {"x": None},
        "e": [1],
    }
    assert asyncio.run(json_text.text_in_turns(answer)) == json_text.text_of(answer)
    assert asyncio.run(json_text.text_in_turns([1])) == b"[1]\n"


LARGE_STEP = json_text.TURN_BYTES + 20_000
"""Bytes of records of 10 KB that one step of a large answer may take: it ends with the record that fills it."""


async def most_in_a_turn(begun: list[Callable[[], Awaitable[object]]], sizes: list[int]) -> int:
    """Call all at once; the most bytes that they noted in ``sizes`` in one turn of the loop."""
    most = 0
    loop = asyncio.get_running_loop()

    def tick() -> None:
        nonlocal most, ticking
        most = max(most, sum(sizes))
        sizes.clear()
        ticking = loop.call_soon(tick)

    ticking = loop.call_soon(tick)
    await asyncio.gather(*(each() for each in begun))
    ticking.cancel()
    return most


def test_steps_of_many_large_answers_have_turns_of_their_own(monkeypatch):
    """One step of one of them in each turn of the loop. Before, all of them took one in each, and 30 readers of 8 MiB
    delayed a Produce request by 9 s on a busy machine.
    """
    sizes: list[int] = []

    def noted_record(record, *rest):
        sizes.append(len(record.value))
        return record_out(record, *rest)

    def noted_text(value):
        text = text_of(value)
        sizes.append(len(text) if len(text) > LARGE_STEP else 0)
        return text

    text_of = json_text.text_of
    monkeypatch.setattr(fetch, "record_out", noted_record)
    monkeypatch.setattr(json_text, "text_of", noted_text)
    batches = [
        build_batch([Record(number, 0, value=b"x" * 10_000) for number in range(20)], base_offset=at * 20)
        for at in range(3)
    ]
    data = b"".join(batches)

    async def read() -> None:
        found, _ = await read_out(iterate(data), 0, Wanted(count_max=1000, form="auto"))
        assert len(found) == 60

    async def write() -> None:
        await json_text.text_in_turns({"records": ["x" * 200] * 2_000})

    assert asyncio.run(most_in_a_turn([read] * 10, sizes)) <= LARGE_STEP
    piece = len(text_of(["x" * 200] * json_text.ELEMENTS_AT_ONCE))
    assert LARGE_STEP < piece == asyncio.run(most_in_a_turn([write] * 10, sizes))


@given(
    parts=st.lists(st.lists(st.integers(0, 20), max_size=6), min_size=1, max_size=12),
    count_max=st.integers(1, 8),
)
def test_a_list_of_a_topic_holds_few_records_more_than_it_shows(parts: list[list[int]], count_max: int):
    """It shows those that a merge of all partitions would show, and each partition continues at its first one left out."""

    async def found() -> tuple[list[dict], list[int]]:
        list_ = topic_records._Found(len(parts), count_max)
        for partition, times in enumerate(parts):
            records = [{"timestamp": time, "offset": offset} for offset, time in enumerate(times)]
            await list_.add(partition, records, len(times))
            assert sum(map(len, list_._lists)) < 2 * count_max
        return list_.cut(), [each.next_offset for each in list_.next_offsets()]

    everything = [
        [{"partition": partition, "timestamp": time, "offset": offset} for offset, time in enumerate(times)]
        for partition, times in enumerate(parts)
    ]
    merged = list(heapq.merge(*everything, key=lambda each: (each["timestamp"], each["partition"])))
    shown, next_offsets = asyncio.run(found())
    assert shown == merged[:count_max]
    assert next_offsets == [sum(each["partition"] == at for each in shown) for at in range(len(parts))]


def test_a_body_of_many_records_is_read_in_turns_of_its_own(monkeypatch):
    """As answers are: other requests wait for a step of one body, not for a step of each."""
    sizes: list[int] = []

    def noted(given, *rest):
        sizes.append(len(given["value"]))
        return record_in(given, *rest)

    monkeypatch.setattr(records, "record_in", noted)

    async def read() -> None:
        await json_text.long_step()  # as after each step before
        await records_in([{"value": "x" * 10_000}] * 60, NOW_MS)

    assert asyncio.run(most_in_a_turn([read] * 10, sizes)) <= LARGE_STEP


def test_aborted_records_are_left_out_and_passed_over():
    """`next_offset` is behind them: the next request does not get them again."""
    records = [Record(0, NOW_MS, value=b"x")]
    options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True, "leader_epoch": 0}
    data = [build_batch(records, base_offset=offset, **options) for offset in (0, 2)]
    marker = marker_batch(EndTransaction(7, 0, False, 1), timestamp_ms=NOW_MS, base_offset=1, leader_epoch=0)
    fetched = [data[0], marker, data[1]]
    aborted = filter_of((AbortedTransaction(producer_id=7, first_offset=0),))
    told, next_offset = shown(fetched, 0, aborted=aborted, count_max=9, form="auto")
    assert ([record["offset"] for record in told], next_offset) == ([2], 3)
    told, next_offset = shown(
        fetched[:2],
        0,
        aborted=filter_of((AbortedTransaction(producer_id=7, first_offset=0),)),
        count_max=9,
        form="auto",
    )
    assert (told, next_offset) == ([], 2)
    assert filter_of(()) is None
