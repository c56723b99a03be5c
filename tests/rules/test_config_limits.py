"""Settings: their limits, and that each one does something."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from minikafka.config import (
    BROKER_NAME_OF,
    KNOWN_TO_KAFKA_ONLY,
    LONG_MAX,
    NO_EFFECT,
    TOPIC_NAME_OF,
    BrokerConfig,
    TopicConfig,
    parse_broker,
    parse_topic,
    table,
    to_settings,
)
from minikafka.errors import InvalidConfig
from tests.tidy.sources import product


@pytest.mark.parametrize("name", ["segment.bytes", "segment.index.bytes", "max.message.bytes"])
def test_sizes_that_files_hold_in_32_bits_are_bounded(name: str) -> None:
    """KAFKA-FACTS 1.3: positions in an index and lengths of batches are int32; a larger segment could not be indexed."""
    assert parse_topic({name: str(2**31 - 1)})
    with pytest.raises(InvalidConfig, match="at most 2147483647"):
        parse_topic({name: str(2**31)})


@pytest.mark.parametrize(
    "name, valid, invalid",
    [
        ("compression.type", "uncompressed", "none"),
        ("compression.gzip.level", "-1", "0"),
        ("compression.gzip.level", "9", "10"),
        ("compression.gzip.level", "1", "-2"),
        ("compression.lz4.level", "17", "0"),
        ("compression.zstd.level", "-131072", "23"),
        ("preallocate", "true", "yes"),
        ("segment.jitter.ms", "5", "-1"),
        ("segment.bytes", "14", "13"),
        ("segment.ms", "1", "0"),
        ("min.cleanable.dirty.ratio", "1", "1.01"),
        ("min.cleanable.dirty.ratio", "0", "-0.01"),
        ("remote.storage.enable", "false", "true"),
        ("remote.log.copy.disable", "true", "1"),
        ("local.retention.ms", "-2", "-3"),
        ("local.retention.bytes", "-2", "-3"),
        ("leader.replication.throttled.replicas", "*", "*,0:1"),
        ("leader.replication.throttled.replicas", "0:1, 12:3", "0:1:2"),
        ("leader.replication.throttled.replicas", "0:1", "0:"),
        ("follower.replication.throttled.replicas", "", "a:b"),
    ],
)
def test_settings_that_kafkas_tools_set_are_checked_as_in_kafka(name: str, valid: str, invalid: str) -> None:
    """LogConfig's validators, also for those that do nothing here; the error names the setting."""
    assert parse_topic({name: valid})
    with pytest.raises(InvalidConfig, match=re.escape(name)) as raised:
        parse_topic({name: invalid})
    assert raised.value.facts["setting"] == name


def test_a_brokers_default_is_checked_as_the_topics_setting() -> None:
    """0 is no level of gzip."""
    assert parse_broker({"compression.type": "gzip"}).config.topic_defaults().compression_type == "gzip"
    with pytest.raises(InvalidConfig, match=r"compression\.gzip\.level=0"):
        parse_broker({"compression.gzip.level": "0"})


@pytest.mark.parametrize("name", ["log.segment.bytes", "log.index.size.max.bytes", "message.max.bytes"])
def test_the_brokers_defaults_have_the_same_bounds(name: str) -> None:
    """A broker's default is the topic's value."""
    with pytest.raises(InvalidConfig, match="at most 2147483647"):
        parse_broker({name: str(2**31)})


def test_every_topic_setting_has_its_own_default_at_the_broker() -> None:
    """D8: a topic that sets nothing gets the value of the broker's setting of that meaning, not of another one."""
    members = {name: each.name for name, each in table(BrokerConfig).items()}
    for name, of_broker in BROKER_NAME_OF.items():
        each = table(TopicConfig)[name]
        if each.metadata["one_of"]:
            value = next(one for one in each.metadata["one_of"] if one != each.default)
        elif isinstance(each.default, bool):
            value = not each.default
        else:
            value = each.metadata["low"] if each.default != each.metadata["low"] else each.default + 1
        changed = BrokerConfig(**{members[of_broker]: value}).topic_defaults()
        assert changed == replace(TopicConfig(), **{each.name: value}) != TopicConfig()


def test_defaults_of_topics_are_those_of_kafka() -> None:
    """D8, LogConfig of Kafka 4.0 (KIP-1030: a timestamp lies at most an hour ahead)."""
    hour, day = 3_600_000, 86_400_000
    assert to_settings(TopicConfig()) == {
        "cleanup.policy": "delete",
        "compression.gzip.level": "-1",
        "compression.lz4.level": "9",
        "compression.type": "producer",
        "compression.zstd.level": "3",
        "delete.retention.ms": str(day),
        "file.delete.delay.ms": "60000",
        "flush.messages": str(LONG_MAX),
        "flush.ms": str(LONG_MAX),
        "follower.replication.throttled.replicas": "",
        "index.interval.bytes": "4096",
        "leader.replication.throttled.replicas": "",
        "local.retention.bytes": "-2",
        "local.retention.ms": "-2",
        "max.compaction.lag.ms": str(LONG_MAX),
        "max.message.bytes": "1048588",
        "message.timestamp.after.max.ms": str(hour),
        "message.timestamp.before.max.ms": str(LONG_MAX),
        "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "1",
        "preallocate": "false",
        "producer.id.expiration.ms": str(day),
        "remote.log.copy.disable": "false",
        "remote.log.delete.on.disable": "false",
        "remote.storage.enable": "false",
        "retention.bytes": "-1",
        "retention.ms": str(7 * day),
        "segment.bytes": str(1024**3),
        "segment.index.bytes": str(10 * 1024**2),
        "segment.jitter.ms": "0",
        "segment.ms": str(7 * day),
        "unclean.leader.election.enable": "false",
    }


def test_defaults_can_be_set() -> None:
    """What a tool shows of a broker or a topic can stand in its file."""
    assert parse_broker(to_settings(BrokerConfig())).config == BrokerConfig()
    assert parse_topic(to_settings(TopicConfig())) == TopicConfig()


@pytest.mark.parametrize("config", [BrokerConfig, TopicConfig])
def test_every_setting_has_an_effect(config: type[BrokerConfig | TopicConfig]) -> None:
    """D8, implemented: used, or its help says that it is stored for Kafka's tools and has no effect."""
    read = {name for source in product() for name in re.findall(r"\.([a-z_0-9]+)\b", source.path.read_text())}
    # A broker's default of a topic's setting is used where that is.
    topics = {name: each.name for name, each in table(TopicConfig).items()}
    read |= {
        known.name for name, known in table(BrokerConfig).items() if topics.get(TOPIC_NAME_OF.get(name, "")) in read
    }
    settings = table(config).values()
    unused = {each.name for each in settings if each.name not in read}
    assert unused <= {each.name for each in settings if each.metadata["meaning"] == NO_EFFECT}


def test_what_follows_from_a_topics_settings_follows_changed_settings_too() -> None:
    """Kept values of a topic (issue 16, a produce request): settings never change in place, and a copy computes its own."""

    def kept(config: TopicConfig) -> tuple[object, ...]:
        return config.compacts, config.roll_ms, config.syncs_before_acknowledging, config.uses_append_time

    before = parse_topic({"segment.ms": "5000", "max.compaction.lag.ms": "3000"})
    assert kept(before) == (False, 5000, False, False)
    settings = {"cleanup.policy": "compact,delete", "flush.messages": "1", "message.timestamp.type": "LogAppendTime"}
    after = parse_topic(settings, base=before)
    assert kept(after) == kept(replace(after)) == (True, 3000, True, True)
    assert kept(replace(after, cleanup_policy="delete", flush_messages=2, segment_ms=7000)) == (
        False,
        7000,
        False,
        True,
    )
    with pytest.raises(FrozenInstanceError):
        after.flush_messages = 2  # type: ignore[misc]
    assert "compacts" not in table(TopicConfig).keys() | {each.name for each in table(TopicConfig).values()}


def test_no_name_is_both_used_and_unused() -> None:
    """A notice that a setting is not used must be true."""
    assert not KNOWN_TO_KAFKA_ONLY & table(BrokerConfig).keys()


NOT_WHOLE = ["1_000", " 5 ", "5 ", "\t5", "5\n", "\u0663", "\u00b2", "+5", "5.0", "0x10", "1e3", "", "-", "9" * 5_000]


@pytest.mark.parametrize("text", NOT_WHOLE)
def test_integer_settings_take_the_digits_0_to_9_and_nothing_else(text: str) -> None:
    """Python's int also takes 1_000, spaces and the digits of other scripts: Kafka would read another number, or none."""
    for parse, config in ((parse_topic, TopicConfig), (parse_broker, BrokerConfig)):
        whole = [each for each in fields(config) if type(each.default) is int]
        assert whole
        for each in whole:
            with pytest.raises(InvalidConfig, match="a whole number in the digits 0 to 9 is needed") as raised:
                parse({each.metadata["name"]: text})
            assert len(raised.value.message) < 200


@pytest.mark.parametrize("text", ["0_5", " 0.5", "nan", "inf", ".5", "\u0663", "0x1p-1", "1e9999"])
def test_fractions_are_read_as_strictly(text: str) -> None:
    """min.cleanable.dirty.ratio and its like."""
    for parse, config in ((parse_topic, TopicConfig), (parse_broker, BrokerConfig)):
        for each in (each for each in fields(config) if type(each.default) is float):
            with pytest.raises(InvalidConfig, match="a number in the digits 0 to 9 is needed"):
                parse({each.metadata["name"]: text})
    assert parse_topic({"min.cleanable.dirty.ratio": "0.25"}).min_cleanable_dirty_ratio == 0.25
    assert parse_topic({"min.cleanable.dirty.ratio": "1e-1"}).min_cleanable_dirty_ratio == 0.1


def test_fraction_without_an_upper_limit_may_be_kafkas_default() -> None:
    """Tools of Kafka show log.cleaner.io.max.bytes.per.second as Double.MAX_VALUE; what is larger is named as such."""
    name = "log.cleaner.io.max.bytes.per.second"
    kafkas = "1.7976931348623157E308"
    assert parse_broker({name: kafkas}).config.log_cleaner_io_max_bytes_per_second == float(kafkas)
    for text in ("1.8E308", "9e999"):
        with pytest.raises(InvalidConfig, match=f"={text}: at least 1 and at most 1.79"):
            parse_broker({name: text})
    with pytest.raises(InvalidConfig, match="=0: at least 1 is needed"):
        parse_broker({name: "0"})
    with pytest.raises(InvalidConfig, match=f"at least 1 and at most {LONG_MAX} is needed"):
        parse_broker({"num.partitions": str(LONG_MAX + 1)})


@pytest.mark.parametrize("port", ["\u0663", "\u00b2", "9_2", "65536", "", "9" * 5_000])
def test_ports_and_ids_of_addresses_are_read_as_strictly(port: str) -> None:
    """``\u00b2`` is a digit for Python and no number: it was a traceback."""
    for name, text in (
        ("listeners", f"PLAINTEXT://127.0.0.1:{port}"),
        ("controller.quorum.voters", f"1@127.0.0.1:{port}"),
        ("controller.quorum.voters", f"{port}@127.0.0.1:x"),
    ):
        with pytest.raises(InvalidConfig):
            parse_broker({name: text})
