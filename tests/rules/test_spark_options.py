"""Options of the Spark source and sink: names, defaults, precedence and refusals of Spark's Kafka connector (S39)."""

from __future__ import annotations

import pytest

from minikafka.blocking.tls import ClientTls
from minikafka.spark.options import (
    ByGroup,
    ByOffset,
    ByTimestamp,
    ByWord,
    Guarantee,
    OptionError,
    Selection,
    parse_duration_ms,
    parse_sink,
    parse_source,
)
from minikafka.types import TopicPartition
from minikafka.wire.messages import READ_COMMITTED, READ_UNCOMMITTED

BASE = {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "orders"}
T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def batch(**options: str):
    return parse_source({**BASE, **options}, streaming=False)


def stream(**options: str):
    return parse_source({**BASE, **options}, streaming=True)


def test_defaults_are_those_of_the_kafka_connector():
    """S39: a job moves by changing the format's name, so an option left out means the same."""
    one, other = stream(), batch()
    assert (one.starting, other.starting) == (ByWord(word="latest"), ByWord(word="earliest"))
    assert (one.ending, other.ending) == (ByWord(word="latest"), ByWord(word="latest"))
    assert (one.group_id_prefix, other.group_id_prefix) == ("spark-kafka-source", "spark-kafka-relation")
    assert one.fail_on_data_loss
    assert not one.include_headers
    assert (one.retry_count, one.retry_interval_s, one.poll_timeout_s) == (3, 1.0, 120.0)
    assert (one.max_offsets_per_trigger, one.min_offsets_per_trigger, one.max_trigger_delay_s) == (None, None, 900.0)
    assert (one.min_partitions, one.max_records_per_partition) == (None, None)
    assert not one.push_filters
    assert [str(each) for each in one.bootstrap] == ["a:1", "b:2"]


def test_tls_has_the_names_of_kafkas_clients():
    """A job moves by changing the format's name; SASL, which the source lacks, is not passed over in silence."""
    files = {"kafka.ssl.truststore.location": "ca.pem", "kafka.ssl.keystore.location": "me.pem"}
    pem = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.keystore.type": "pem"}
    assert batch(**{"kafka.security.protocol": "SSL"}, **files, **pem).tls == ClientTls(
        cafile="ca.pem", certfile="me.pem"
    )
    sink = {"kafka.bootstrap.servers": "a:1", "topic": "t", "kafka.security.protocol": "ssl"}
    assert parse_sink(sink, streaming=False).tls == ClientTls()
    assert batch().tls is None
    assert batch(**{"kafka.security.protocol": "PLAINTEXT"}).tls is None
    for wrong, told in (
        ({"kafka.security.protocol": "SASL_SSL"}, "has no SASL"),
        (files, "needs kafka.security.protocol=SSL"),
        ({"kafka.ssl.keystore.location": "me.pem"}, "keystore.location needs kafka.security.protocol=SSL"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.keystore.type": "PKCS12"}, "PEM is the only type"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "JKS"}, "PEM is the only type"),
    ):
        with pytest.raises(OptionError, match=told):
            batch(**wrong)


def test_names_are_case_insensitive_and_unused_kafka_settings_pass():
    """Spark hands names over in lower case; a job that sets a consumer property must still move."""
    given = {"KAFKA.bootstrap.SERVERS": "a:1", "SubscribePattern": "o.*", "FAILONDATALOSS": "False"}
    parsed = parse_source({**given, "kafka.fetch.min.bytes": "7", "path": "x"}, streaming=True)
    assert parsed.selection == Selection(pattern="o.*")
    assert parsed.fail_on_data_loss is False


def test_least_values_are_allowed():
    """One limit for both bounds of a batch, no retries, no pause between them, and a group's id before a prefix of it."""
    one = stream(minOffsetsPerTrigger="7", maxOffsetsPerTrigger="7")
    assert (one.min_offsets_per_trigger, one.max_offsets_per_trigger) == (7, 7)
    one = stream(minOffsetsPerTrigger="7", maxOffsetsPerTrigger="8")
    assert (one.min_offsets_per_trigger, one.max_offsets_per_trigger) == (7, 8)
    one = stream(**{"fetchOffset.numRetries": "0", "fetchOffset.retryIntervalMs": "0", "startingTimestamp": "0"})
    assert (one.retry_count, one.retry_interval_s, one.starting) == (0, 0.0, ByTimestamp(everywhere_ms=0))
    assert stream(**{"kafka.group.id": "g", "groupIdPrefix": "p"}).group_id_prefix == "g"
    assert stream(groupIdPrefix="p").group_id_prefix == "p"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": "a"}, "host:port"),
        ({"kafka.bootstrap.servers": "a:1"}, "exactly one of assign"),
        ({**BASE, "assign": '{"orders":[0]}'}, "assign and subscribe"),
        ({**BASE, "subscribe": ""}, "is empty"),
        ({"kafka.bootstrap.servers": "a:1", "assign": '{"orders":["x"]}'}, "assign"),
        ({"kafka.bootstrap.servers": "a:1", "assign": "{}"}, "assign"),
        ({"kafka.bootstrap.servers": "a:1", "subscribePattern": "("}, "subscribePattern"),
        ({**BASE, "startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({**BASE, "failOnDataLoss": "maybe"}, "true or false"),
        ({**BASE, "maxOffsetsPerTrigger": "0"}, "1 or more"),
        ({**BASE, "minPartitions": "-1"}, "1 or more"),
        ({**BASE, "maxTriggerDelay": "soon"}, "a time such as"),
        ({**BASE, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is above"),
        ({**BASE, "startingOffsets": "first"}, "earliest, latest or JSON"),
        ({**BASE, "startingOffsets": '{"orders":{"0":-3}}'}, "orders-0 is -3"),
        ({**BASE, "startingOffsets": '{"orders":{"0":true}}'}, "earliest, latest or JSON"),
        ({**BASE, "startingOffsetsByTimestampStrategy": "never"}, "error or latest"),
        ({**BASE, "kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({**BASE, "kafka.value.deserializer": "x"}, "cast them"),
        ({**BASE, "kafka.enable.auto.commit": "true"}, "checkpoint"),
    ],
)
def test_what_means_nothing_is_refused_by_name(options, told):
    """D8: a misspelt or contradictory option must not look as if it had an effect."""
    with pytest.raises(OptionError, match=told.replace("(", "\\(")):
        parse_source(options, streaming=True)


def test_batch_and_stream_refuse_each_other_s_ends():
    """Spark's connector: a batch cannot begin at latest or end at earliest, a stream has no end."""
    for options in (
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders":{"0":-1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"orders":{"0":-2}}'},
    ):
        with pytest.raises(OptionError, match="batch query"):
            batch(**options)
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(OptionError, match="not for streaming"):
            stream(**{name: "latest"})


def test_timestamps_win_over_offsets():
    """Precedence: startingTimestamp, startingOffsetsByTimestamp, startingOffsets."""
    offsets = {"startingOffsets": '{"orders":{"0":5,"1":-2}}'}
    assert stream(**offsets).starting == ByOffset(offsets={T0: 5, T1: -2})
    by_partition = {**offsets, "startingOffsetsByTimestamp": '{"orders":{"0":1000}}'}
    assert stream(**by_partition).starting == ByTimestamp(partitions_ms={T0: 1000})
    everywhere = {**by_partition, "startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "latest"}
    assert stream(**everywhere).starting == ByTimestamp(everywhere_ms=7, latest_if_none=True)
    assert batch(endingTimestamp="9").ending == ByTimestamp(everywhere_ms=9, latest_if_none=True)


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_times_of_partitions_are_not_negative(side: str):
    """For a broker -1 is the end of a partition: a query with a wrong time would read nothing, and not say so."""
    name = f"{side}OffsetsByTimestamp"
    assert batch(**{name: '{"orders":{"0":0}}'})
    with pytest.raises(OptionError, match=f"{name}: the time of orders-1 is -1"):
        batch(**{name: '{"orders":{"0":1000,"1":-1}}'})


def test_an_offset_of_this_source_is_a_starting_offset():
    """SPARK 5: a checkpointed offset, with its epochs and ids, may be pasted as startingOffsets."""
    text = '{"$epochs":{"orders":{"0":3}},"$ids":{"orders":"x"},"orders":{"0":12}}'
    assert stream(startingOffsets=text).starting == ByOffset(offsets={T0: 12})


def test_selections():
    """assign takes partitions, subscribe topics, subscribePattern whole names."""
    assigned = parse_source({"kafka.bootstrap.servers": "a:1", "assign": '{"orders":[1],"b":[0]}'}, streaming=True)
    assert assigned.selection.named_topics == ("b", "orders")
    assert assigned.selection.takes(T1)
    assert not assigned.selection.takes(T0)
    assert [assigned.selection.takes_topic(topic) for topic in ("orders", "b", "c")] == [True, True, False]
    assert Selection(assign=(T0, T1)).named_topics == ("orders",)
    assert Selection(topics=("a", "orders")).takes(T0)
    assert not Selection(topics=("a", "b")).takes(T0)
    assert parse_source({**BASE, "subscribe": "b, a"}, streaming=True).selection.topics == ("a", "b")
    pattern = Selection(pattern="ord")
    assert not pattern.takes(T0)
    assert Selection(pattern="ord.*").takes(T0)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        *(
            ("15m", 900_000),
            ("500ms", 500),
            ("2 hours", 7_200_000),
            ("3s", 3000),
            ("1d", 86_400_000),
            ("2MIN", 120_000),
        ),
        *((f"1 {unit}", ms) for unit, ms in (("millisecond", 1), ("sec", 1000), ("second", 1000), ("seconds", 1000))),
        *((f"1 {unit}", ms) for unit, ms in (("minute", 60_000), ("h", 3_600_000), ("days", 86_400_000))),
        pytest.param("60000", 60_000, id="without a unit, as Spark's Utils.timeStringAsMs: it was read as seconds"),
    ],
)
def test_durations(text, ms):
    """maxTriggerDelay as Spark writes times: a job moves by changing the format's name, and waits as long as before."""
    assert parse_duration_ms(text) == ms
    assert stream(maxTriggerDelay=text).max_trigger_delay_s == ms / 1000


def sink(*, streaming=True, **options):
    return parse_sink({"kafka.bootstrap.servers": "a:1"} | options, streaming=streaming)


def test_isolation_level():
    """Issue 17, Build 3: Kafka's name and default; what means nothing is refused."""
    assert batch().isolation_level == READ_UNCOMMITTED
    assert stream(**{"kafka.isolation.level": "READ_COMMITTED"}).isolation_level == READ_COMMITTED
    with pytest.raises(OptionError, match="read_uncommitted or read_committed is needed"):
        stream(**{"kafka.isolation.level": "serializable"})


def test_sink_options():
    """At-least-once by default; exactlyOnce only for streams that were looked at, transactional only for batches."""
    plain = sink()
    assert (plain.topic, plain.guarantee, plain.compression) == (None, Guarantee.AT_LEAST_ONCE, "none")
    assert (plain.transaction_timeout_ms, plain.has_transactions) == (900_000, False)
    for given in ({"exactlyOnce": "true"}, {"exactlyOnce": "sequences", "exactlyOnce.plan": "one-task"}):
        with pytest.raises(OptionError, match=r"exactly_once\(df\)"):
            sink(**given)
    for word, plan, guarantee in (
        ("true", "map-only", Guarantee.EXACTLY_ONCE),
        ("true", "one-task", Guarantee.EXACTLY_ONCE),
        ("Sequences", "map-only", Guarantee.SEQUENCES),
    ):
        parsed = sink(**{"exactlyOnce": word, "exactlyOnce.plan": plan})
        assert (parsed.guarantee, parsed.plan) == (guarantee, plan)
        assert parsed.has_transactions == (word == "true")
    with pytest.raises(OptionError, match="true, sequences or false is needed"):
        sink(exactlyOnce="perhaps")
    for word in ("true", "sequences"):
        with pytest.raises(OptionError, match=r"streaming query.*transactional=true"):
            sink(streaming=False, exactlyOnce=word)
    assert sink(topic=" ").topic is None, "rows name their topics"
    with pytest.raises(OptionError, match="for batch writes"):
        sink(transactional="true")
    whole = sink(streaming=False, transactional="true", **{"kafka.transaction.timeout.ms": "1000"})
    assert (whole.guarantee, whole.transaction_timeout_ms) == (Guarantee.TRANSACTIONAL, 1000)
    with pytest.raises(OptionError, match="did you mean topic"):
        parse_sink({"kafka.bootstrap.servers": "a:1", "topics": "t"}, streaming=True)


def test_a_writer_that_is_started_twice_has_two_names():
    """What its two queries note for their drivers must not be taken for the other's."""
    given = {"exactlyOnce": "true", "exactlyOnce.plan": "map-only", "exactlyOnce.writer": "w"}
    started: list[dict[str, str]] = [
        {},
        {"checkpointLocation": "/a"},
        {"checkpointLocation": "/b"},
        {"queryName": "/a"},
    ]
    names = [sink(**given, **each).writer for each in started]
    assert len({*names}) == 4
    assert names == [sink(**given, **each).writer for each in started]
    del given["exactlyOnce.writer"]
    assert sink(**given).writer is None


def test_a_query_may_begin_where_a_group_has_committed():
    """Issue 6, item 5: commitGroup names the group; a batch query only begins there, it commits nothing."""
    assert stream(commitGroup="g").commit_group == "g"
    assert stream(commitGroup="g").starting == ByWord(word="latest")
    assert stream(commitGroup="g", startingOffsets="Committed").starting == ByGroup(group="g")
    assert batch(commitGroup="g", startingOffsets="committed").starting == ByGroup(group="g")
    with pytest.raises(OptionError, match="startingOffsets=committed needs commitGroup"):
        stream(startingOffsets="committed")
    with pytest.raises(OptionError, match="commitGroup is empty"):
        stream(commitGroup=" ")
    with pytest.raises(OptionError, match="a batch query commits nothing"):
        batch(commitGroup="g")
    with pytest.raises(OptionError, match="did you mean commitGroup"):
        stream(commitGruop="g")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", "[1]"),
        ("startingOffsets", "{}"),
        ("startingOffsets", '{"orders":[0]}'),
        ("startingOffsets", '{"orders":5}'),
        ("subscribe", " , "),
        ("assign", '["orders"]'),
        ("assign", '{"orders":5}'),
        ("assign", '{"":[0]}'),
    ],
)
def test_json_of_another_shape_is_an_error_that_names_the_option(option: str, value: str):
    """One format was taken for the other: it was an AttributeError of Python, or a query that reads nothing."""
    options = {"kafka.bootstrap.servers": "a:1", **({} if option == "assign" else {"subscribe": "orders"})}
    with pytest.raises(OptionError, match=f"option {option} is "):
        parse_source({**options, option: value}, streaming=True)


def test_a_compression_that_does_not_exist_is_refused_when_the_query_is_planned():
    """In a task it was an error of the codec, after so many retries of Spark."""
    options = {"kafka.bootstrap.servers": "a:1", "topic": "orders"}
    assert parse_sink({**options, "kafka.compression.type": "zstd"}, streaming=False).compression == "zstd"
    with pytest.raises(OptionError, match=r"kafka\.compression\.type is 'brotli', none, gzip"):
        parse_sink({**options, "kafka.compression.type": "brotli"}, streaming=False)
