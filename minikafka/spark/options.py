"""The options of source and sink: names, defaults and refusals are those of Spark's Kafka connector.

Rules for this file: names are case-insensitive, as Spark hands them over in lower case; a value that means nothing is
an error that names the option; an option of ours that is misspelt is an error with the nearest name. ``kafka.*``
settings that have no use here are ignored, so that a job moves by changing the format's name; those that Spark's
connector refuses because it owns them are refused here too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from minikafka.addresses import parse_bootstrap
from minikafka.blocking.reading import FETCH_SIZE, POLL_TIMEOUT_MS, ReadingLimits
from minikafka.blocking.tls import ClientTls
from minikafka.errors import InvalidConfig, did_you_mean, nearest
from minikafka.types import Address, Offset, TopicPartition
from minikafka.wire.batch import CODEC_NAMES
from minikafka.wire.messages import READ_COMMITTED, READ_UNCOMMITTED

Value = TypeVar("Value")
Default = TypeVar("Default")

EARLIEST_WORD, LATEST_WORD, COMMITTED_WORD = "earliest", "latest", "committed"
EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
"""In offsets given as JSON."""

ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
DEFAULT_API_TIMEOUT_MS = 60_000
TRANSACTION_TIMEOUT_MS = 15 * 60_000
"""The most that brokers allow by default: from a task's first row to the commit of the slowest task."""
RETRY_COUNT = 3
RETRY_INTERVAL_MS = 1_000
MAX_TRIGGER_DELAY_MS = 15 * 60_000

OWNED = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "keys come as binary: cast them",
    "kafka.value.deserializer": "values come as binary: cast them",
    "kafka.key.serializer": "keys go as binary or string",
    "kafka.value.serializer": "values go as binary or string",
    "kafka.enable.auto.commit": "offsets are kept in Spark's checkpoint",
    "kafka.interceptor.classes": "there are no interceptors here",
}

PROTOCOL, TRUSTSTORE, KEYSTORE = (
    "kafka.security.protocol",
    "kafka.ssl.truststore.location",
    "kafka.ssl.keystore.location",
)
_SHARED = (
    "kafka.bootstrap.servers",
    "includeHeaders",
    "kafka.default.api.timeout.ms",
    "kafka.request.timeout.ms",
    PROTOCOL,
    TRUSTSTORE,
    KEYSTORE,
)
SOURCE_NAMES = (
    *_SHARED,
    "assign",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafka.max.partition.fetch.bytes",
    "kafka.isolation.level",
    "pushFilters",
    "commitGroup",
)
SINK_NAMES = (
    *_SHARED,
    "topic",
    "exactlyOnce",
    "exactlyOnce.plan",
    "exactlyOnce.writer",
    "transactional",
    "kafka.transaction.timeout.ms",
    "kafka.compression.type",
    "kafka.batch.size",
)
MAP_ONLY, ONE_TASK = "map-only", "one-task"
"""What ``exactlyOnce.plan`` says: a task that is run again gets the same rows, or there is one task only."""
ALSO_PASSED = frozenset({"path", "checkpointlocation", "querytimeout", "queryname"})
"""Names that Spark itself may put among the options."""


class Guarantee(Enum):
    """What the sink does about rows that are written again."""

    AT_LEAST_ONCE = "a task that is run again writes its rows again"
    TRANSACTIONAL = "a batch write: a transaction for each task, committed when the job commits"
    EXACTLY_ONCE = "a stream: a transaction for each task of each batch, which notes that the batch is written"
    SEQUENCES = "a stream: a task that is run again skips the rows that it finds, by their sequences"


class OptionError(ValueError):
    """An option is missing, contradicts another or has a value that means nothing; the sentence names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which partitions: exactly one of the three is set."""

    assign: tuple[TopicPartition, ...] | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None

    def takes_topic(self, topic: str) -> bool:
        if self.assign is not None:
            return any(each.topic == topic for each in self.assign)
        if self.topics is not None:
            return topic in self.topics
        return re.fullmatch(self.pattern or "", topic) is not None

    def takes(self, partition: TopicPartition) -> bool:
        if self.assign is not None:
            return partition in self.assign
        return self.takes_topic(partition.topic)

    @property
    def named_topics(self) -> tuple[str, ...] | None:
        """The topics that must be there; None: whatever matches."""
        if self.assign is not None:
            return tuple(sorted({each.topic for each in self.assign}))
        return self.topics


@dataclass(frozen=True, slots=True, kw_only=True)
class ByWord:
    """``earliest`` or ``latest`` for all partitions."""

    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ByOffset:
    """An offset for each partition; -2 earliest, -1 latest."""

    offsets: Mapping[TopicPartition, Offset]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTimestamp:
    """The first record at or after a time in milliseconds since 1970; None of a partition: for all partitions."""

    everywhere_ms: int | None = None
    partitions_ms: Mapping[TopicPartition, int] | None = None
    latest_if_none: bool = False
    """What to do when no record is so young: take the end, or fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByGroup:
    """Where a consumer group has committed."""

    group: str


Place: TypeAlias = ByWord | ByOffset | ByTimestamp | ByGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ReadingLimits):
    """A reader's options; times in seconds, sizes in bytes."""

    bootstrap: tuple[Address, ...]
    tls: ClientTls | None = None
    selection: Selection
    starting: Place
    ending: Place
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    group_id_prefix: str
    retry_count: int
    retry_interval_s: float
    api_timeout_s: float
    push_filters: bool
    isolation_level: int = READ_UNCOMMITTED
    commit_group: str | None = None
    """The group to which offsets of finished batches are committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """A writer's options; times in seconds, sizes in bytes."""

    bootstrap: tuple[Address, ...]
    tls: ClientTls | None = None
    topic: str | None
    include_headers: bool
    guarantee: Guarantee
    plan: str | None
    """With ``EXACTLY_ONCE`` and ``SEQUENCES``: MAP_ONLY or ONE_TASK."""
    writer: str | None = None
    """With ``EXACTLY_ONCE``: a name that no other query's writer has at the same time; None: the sink was not made by
    exactly_once()."""
    transaction_timeout_ms: int
    api_timeout_s: float
    compression: str
    batch_size: int

    @property
    def has_transactions(self) -> bool:
        return self.guarantee in {Guarantee.TRANSACTIONAL, Guarantee.EXACTLY_ONCE}


class _Given:
    """The options as they were given, taken one by one."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in names}
        for name in sorted(self._values):
            if name in OWNED:
                raise OptionError(f"option {name} cannot be set: {OWNED[name]}")
            if name in known or name in ALSO_PASSED or name.startswith("kafka."):
                continue
            near = [known[each] for each in nearest(name, known)]
            raise OptionError(f"unknown option {name}{did_you_mean(near[0], near) if near else ''}")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return None if value is None else value.strip()

    def parsed(self, name: str, parse: Callable[[str], Value], wanted: str, default: Default) -> Value | Default:
        """What an option says; ``default`` if it is not given, and OptionError with what is ``wanted``."""
        value = self.text(name)
        if value is None:
            return default
        try:
            return parse(value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # AttributeError: another JSON
            raise OptionError(f"option {name} is {value!r}, {wanted} is needed") from error

    def flag(self, name: str, *, default: bool) -> bool:
        return self.parsed(name, lambda text: {"true": True, "false": False}[text.lower()], "true or false", default)

    def count(self, name: str, default: Default, *, least: int = 1) -> int | Default:
        def parse(text: str) -> int:
            number = int(text)
            if number < least:
                raise ValueError(number)
            return number

        return self.parsed(name, parse, f"a whole number of {least} or more", default)

    def bootstrap(self) -> tuple[Address, ...]:
        value = self.text("kafka.bootstrap.servers")
        if not value:
            raise OptionError("option kafka.bootstrap.servers must be set: host:port of some brokers, with commas")
        try:
            return parse_bootstrap(value)
        except InvalidConfig as error:
            raise OptionError(f"option kafka.bootstrap.servers: {error.message}") from error

    def tls(self) -> ClientTls | None:
        """The files of TLS, which every task reads on its machine; None: brokers are called in plain text."""
        protocol = (self.text(PROTOCOL) or "PLAINTEXT").upper()
        if protocol not in {"PLAINTEXT", "SSL"}:
            raise OptionError(
                f"option {PROTOCOL} is {protocol!r}: this source has no SASL; use SSL and a client certificate, or "
                "PLAINTEXT"
            )
        for name in (TRUSTSTORE, KEYSTORE):
            if self.text(name) is not None and protocol != "SSL":
                raise OptionError(f"option {name} needs {PROTOCOL}=SSL")
            kind = name.replace(".location", ".type")
            if (self.text(kind) or "PEM").upper() != "PEM":
                raise OptionError(f"option {kind} is {self.text(kind)!r}: PEM is the only type")
        return (
            None if protocol == "PLAINTEXT" else ClientTls(cafile=self.text(TRUSTSTORE), certfile=self.text(KEYSTORE))
        )


def parse_source(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """All options of a reader. Raises OptionError."""
    given = _Given(options, SOURCE_NAMES)
    least, most = given.count("minOffsetsPerTrigger", None), given.count("maxOffsetsPerTrigger", None)
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
    prefix = "spark-kafka-source" if streaming else "spark-kafka-relation"
    return SourceOptions(
        bootstrap=given.bootstrap(),
        tls=given.tls(),
        selection=_selection(given),
        starting=_starting(given, streaming=streaming),
        ending=_ending(given, streaming=streaming),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_s=given.parsed(
            "maxTriggerDelay", parse_duration_ms, "a time such as 15m", MAX_TRIGGER_DELAY_MS
        )
        / 1000,
        min_partitions=given.count("minPartitions", None),
        max_records_per_partition=given.count("maxRecordsPerPartition", None),
        include_headers=given.flag("includeHeaders", default=False),
        group_id_prefix=given.text("kafka.group.id") or given.text("groupIdPrefix") or prefix,
        poll_timeout_s=given.count("kafkaConsumer.pollTimeoutMs", POLL_TIMEOUT_MS) / 1000,
        retry_count=given.count("fetchOffset.numRetries", RETRY_COUNT, least=0),
        retry_interval_s=given.count("fetchOffset.retryIntervalMs", RETRY_INTERVAL_MS, least=0) / 1000,
        api_timeout_s=given.count("kafka.default.api.timeout.ms", DEFAULT_API_TIMEOUT_MS) / 1000,
        fetch_size=given.count("kafka.max.partition.fetch.bytes", FETCH_SIZE),
        push_filters=given.flag("pushFilters", default=False),
        isolation_level=given.parsed(
            "kafka.isolation.level",
            lambda text: ISOLATION_LEVELS[text.lower()],
            " or ".join(ISOLATION_LEVELS),
            READ_UNCOMMITTED,
        ),
        commit_group=_commit_group(given, streaming=streaming),
    )


def parse_sink(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """All options of a writer. Raises OptionError."""
    given = _Given(options, SINK_NAMES)
    guarantee = _guarantee(given, streaming=streaming)
    plan = given.text("exactlyOnce.plan")
    plans = {Guarantee.EXACTLY_ONCE: (MAP_ONLY, ONE_TASK), Guarantee.SEQUENCES: (MAP_ONLY,)}.get(guarantee)
    if plans is not None and plan not in plans:
        raise OptionError(
            f"exactlyOnce={given.text('exactlyOnce')}: a Python sink cannot see whether a task that is run again gets "
            "the same rows: use minikafka.spark.sink.exactly_once(df), which looks at the query"
        )
    compression = given.text("kafka.compression.type") or "none"
    if compression not in CODEC_NAMES:
        raise OptionError(f"option kafka.compression.type is {compression!r}, {', '.join(CODEC_NAMES)} are known")
    return SinkOptions(
        bootstrap=given.bootstrap(),
        tls=given.tls(),
        topic=given.text("topic") or None,
        include_headers=given.flag("includeHeaders", default=False),
        guarantee=guarantee,
        plan=plan,
        writer=_writer(given) if guarantee is Guarantee.EXACTLY_ONCE else None,
        transaction_timeout_ms=given.count("kafka.transaction.timeout.ms", TRANSACTION_TIMEOUT_MS),
        api_timeout_s=given.count("kafka.default.api.timeout.ms", DEFAULT_API_TIMEOUT_MS) / 1000,
        compression=compression,
        batch_size=given.count("kafka.batch.size", 256 * 1024),
    )


def _writer(given: _Given) -> str | None:
    """One writer can be started twice, with two checkpoints or under two names."""
    name = given.text("exactlyOnce.writer")
    if name is None:
        return None
    started = "\0".join(given.text(each) or "" for each in ("checkpointLocation", "queryName"))
    return f"{name}-{hashlib.blake2b(started.encode(), digest_size=8).hexdigest()}"


def _guarantee(given: _Given, *, streaming: bool) -> Guarantee:
    words = {
        "false": Guarantee.AT_LEAST_ONCE,
        "true": Guarantee.EXACTLY_ONCE,
        "sequences": Guarantee.SEQUENCES,
    }
    guarantee = given.parsed(
        "exactlyOnce", lambda text: words[text.lower()], "true, sequences or false", Guarantee.AT_LEAST_ONCE
    )
    transactional = given.flag("transactional", default=False)
    if not streaming:
        if guarantee is not Guarantee.AT_LEAST_ONCE:
            raise OptionError(
                "exactlyOnce=true needs a streaming query: a batch write that is run again has no number by which its "
                "records could be known; transactional=true shows its records only if the whole job succeeds"
            )
        return Guarantee.TRANSACTIONAL if transactional else guarantee
    if transactional:
        raise OptionError("transactional=true is for batch writes; a streaming query takes exactlyOnce=true")
    return guarantee


def parse_duration_ms(text: str) -> int:
    """``15m``, ``500ms``, ``2 hours``, ``500`` (milliseconds, as in Spark): milliseconds; ValueError."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None:
        raise ValueError(text)
    unit = found[2].removesuffix("s") if found[2] not in {"ms", "s"} else found[2]
    scales = {"": 1, "ms": 1, "millisecond": 1, "s": 1000, "sec": 1000, "second": 1000}
    scales |= {"m": 60_000, "min": 60_000, "minute": 60_000, "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000}
    scales["day"] = 86_400_000
    return int(found[1]) * scales[unit]


# ---- which partitions ------------------------------------------------------------------------------------------------


def _selection(given: _Given) -> Selection:
    names = [name for name in ("assign", "subscribe", "subscribePattern") if given.text(name) is not None]
    if len(names) != 1:
        found = " and ".join(names) if names else "none of them"
        raise OptionError(f"exactly one of assign, subscribe, subscribePattern must be set, not {found}")
    text = given.text(names[0]) or ""
    if not text:
        raise OptionError(f"option {names[0]} is empty")
    if names[0] == "assign":
        return Selection(assign=given.parsed("assign", _parse_assign, 'JSON such as {"orders":[0,1]}', None))
    if names[0] == "subscribe":
        topics = sorted({topic.strip() for topic in text.split(",") if topic.strip()})
        if not topics:
            raise OptionError(f"option subscribe is {text!r}: the names of topics are needed, with commas")
        return Selection(topics=tuple(topics))
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"option subscribePattern is {text!r}: {error}") from error
    return Selection(pattern=text)


def _parse_assign(text: str) -> tuple[TopicPartition, ...]:
    topics = json.loads(text)
    found = sorted(
        TopicPartition(_is_text(topic), _is_number(partition))
        for topic, partitions in topics.items()
        for partition in partitions
    )
    if not found:
        raise ValueError(text)
    return tuple(found)


def _is_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


def _is_number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(value)
    return value


def parse_partition_numbers(text: str) -> dict[TopicPartition, int]:
    """``{"topic":{"0":23}}``, also as an offset of this source prints it (members with ``$`` are passed over)."""
    found: dict[TopicPartition, int] = {}
    for topic, partitions in json.loads(text).items():
        if topic.startswith("$"):
            continue
        for partition, number in partitions.items():
            found[TopicPartition(topic, int(partition))] = _is_number(number)
    if not found:
        raise ValueError(text)
    return found


# ---- from where, to where --------------------------------------------------------------------------------------------


def _commit_group(given: _Given, *, streaming: bool) -> str | None:
    group = given.text("commitGroup")
    if group == "":
        raise OptionError("option commitGroup is empty: give the group's name")
    if group is not None and not streaming and (given.text("startingOffsets") or "").lower() != COMMITTED_WORD:
        raise OptionError(
            "option commitGroup: a batch query commits nothing; it only begins there, with startingOffsets=committed"
        )
    return group


def _starting(given: _Given, *, streaming: bool) -> Place:
    strategy = (given.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in {"error", "latest"}:
        raise OptionError(f"option startingOffsetsByTimestampStrategy is {strategy!r}, error or latest is needed")
    timed = _timed(given, "starting", latest_if_none=strategy == "latest")
    if timed is not None:
        return timed
    if (given.text("startingOffsets") or "").lower() == COMMITTED_WORD:
        group = given.text("commitGroup")
        if not group:
            raise OptionError("startingOffsets=committed needs commitGroup: where which group has committed?")
        return ByGroup(group=group)
    default = LATEST_WORD if streaming else EARLIEST_WORD
    place = _worded(given, "startingOffsets", default)
    if not streaming:
        latest = isinstance(place, ByWord) and place.word == LATEST_WORD
        if latest or (isinstance(place, ByOffset) and LATEST_OFFSET in place.offsets.values()):
            raise OptionError("startingOffsets: a batch query cannot begin at latest (-1)")
    return place


def _ending(given: _Given, *, streaming: bool) -> Place:
    names = [
        name
        for name in ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
        if given.text(name) is not None
    ]
    if streaming and names:
        raise OptionError(f"option {names[0]} is not for streaming queries: they have no end")
    timed = _timed(given, "ending", latest_if_none=True)
    if timed is not None:
        return timed
    place = _worded(given, "endingOffsets", LATEST_WORD)
    earliest = isinstance(place, ByWord) and place.word == EARLIEST_WORD
    if earliest or (isinstance(place, ByOffset) and EARLIEST_OFFSET in place.offsets.values()):
        raise OptionError("endingOffsets: a batch query cannot end at earliest (-2)")
    return place


def _timed(given: _Given, side: str, *, latest_if_none: bool) -> ByTimestamp | None:
    everywhere = given.count(f"{side}Timestamp", None, least=0)
    if everywhere is not None:
        return ByTimestamp(everywhere_ms=everywhere, latest_if_none=latest_if_none)
    wanted = 'JSON such as {"orders":{"0":1700000000000}}'
    name = f"{side}OffsetsByTimestamp"
    each = given.parsed(name, parse_partition_numbers, wanted, None)
    if each is None:
        return None
    # For a broker -1 and -2 are no times: they are the end and the beginning.
    bad = sorted(partition for partition, time_ms in each.items() if time_ms < 0)
    if bad:
        raise OptionError(f"option {name}: the time of {bad[0]} is {each[bad[0]]}; milliseconds since 1970 are needed")
    return ByTimestamp(partitions_ms=each, latest_if_none=latest_if_none)


def _worded(given: _Given, name: str, default: str) -> Place:
    text = given.text(name)
    if text is None:
        return ByWord(word=default)
    if text.lower() in {EARLIEST_WORD, LATEST_WORD}:
        return ByWord(word=text.lower())
    wanted = 'earliest, latest or JSON such as {"orders":{"0":23,"1":-2}}'
    offsets = given.parsed(name, parse_partition_numbers, wanted, {})
    bad = sorted(partition for partition, offset in offsets.items() if offset < EARLIEST_OFFSET)
    if bad:
        raise OptionError(f"option {name}: the offset of {bad[0]} is {offsets[bad[0]]}")
    return ByOffset(offsets=offsets)
