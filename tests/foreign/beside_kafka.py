"""The same requests to a broker of Apache Kafka and to ours, over Kafka's protocol: the answers must say the same.

A conversation (``conversations.py``) is drawn from a seed. Each side gets the same request, but for what a side has
given itself: ids of topics and producers, names of members, generations. An answer is compared without what no two
brokers have in common (addresses, ids, times, sentences). Where ours differs on purpose, :data:`ON_PURPOSE` says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from minikafka.wire.batch import HEADER_SIZE, RecordBatch
from minikafka.wire.kafka.codec import Message
from minikafka.wire.records import decode_batch
from tests.kafka.client import RawClient, errors_in

ANSWER_TIMEOUT_S = 30.0
RETRIES = 150
RETRY_PAUSE_S = 0.1
POLL_S, QUIET_S, LATE_S = 0.002, 0.05, 2.0

PARKED = frozenset({"JoinGroup", "SyncGroup"})
"""Requests that wait for those of other members."""

WAITED = 0.8
"""The part of the wait of a Fetch after which it counts as over."""

NOT_YET = frozenset({5, 6, 14, 15, 16, 51})
"""No leader or coordinator yet, or a transaction that ends: the request is repeated, as clients do."""

LEARNED_FROM = frozenset({0, 5, 79})
"""Errors of answers from which something is learned: a partition without a leader, a member id that is required."""

VOLATILE = frozenset(
    {
        *("throttle_time_ms", "error_message", "batch_index_error_message", "cluster_id", "host", "port"),
        *("log_append_time_ms", "last_timestamp", "transaction_start_time_ms", "coordinator_epoch"),
        *("log_dir", "size", "partition_size", "total_bytes", "usable_bytes", "heartbeat_interval_ms"),
    }
)
"""Fields that are no business of a comparison."""

IDENTITY = ("resource_type", "resource_name", "name", "topic", "topic_name", "topic_id", "group_id", "transactional_id")
PLACE = ("partition_index", "partition", "partition_id", "index", "member_id", "producer_id", "user", "entity_type")


@dataclass
class Given:
    """What one side has given a conversation: values by (kind, label)."""

    values: dict[tuple[str, str], Any] = field(default_factory=dict)

    def learn(self, kind: str, label: str, value: Any) -> None:
        self.values[kind, label] = value

    def label(self, kind: str, value: Any) -> str:
        """The label under which the conversation knows a value."""
        return next((label for (k, label), known in self.values.items() if k == kind and known == value), "another")


class Own(NamedTuple):
    """Stands in a request for what a side has given; ``otherwise`` if it has given nothing."""

    kind: str
    label: str
    otherwise: Any
    plus: int = 0

    def of(self, given: Given) -> Any:
        value = given.values.get((self.kind, self.label), self.otherwise)
        return value + self.plus if self.plus else value


Learn = Callable[[Given, Message], None]


class Ask(NamedTuple):
    """One request of a conversation, and what is learned from an answer without an error."""

    api: str
    version: int
    message: Message
    learn: Learn | None = None
    client: str = ""
    """Whose connection it is. A client whose request is parked sends nothing else: such a request is left out."""
    pause_s: float = 0.0
    """Time passes after it."""
    blurred: frozenset[str] = frozenset()
    """Fields of the answer that a broker chooses itself: of numbers only the sign counts, of the rest the size."""
    is_vague: bool = False
    """Only the error codes of the answer count."""
    only: str = ""
    """Of the groups in the answer, those whose name has this in it count."""
    broker: Any = 1
    """Node id of the broker that is asked, or what stands for it."""
    until: Callable[[Message], bool] | None = None
    """The request is repeated until its answer is so; None: while there is no leader or coordinator yet."""

    @property
    def is_long_poll(self) -> bool:
        """Return True if it is a Fetch that waits for records."""
        return self.api == "Fetch" and self.message.get("max_wait_ms", 0) > 0

    @property
    def may_park(self) -> bool:
        """Return True if the answer may come after those of later requests."""
        return self.api in PARKED or self.is_long_poll


def filled(value: Any, given: Given) -> Any:
    """A request's message with the side's own values."""
    if isinstance(value, Own):
        return value.of(given)
    if callable(value):
        return value(given)
    if isinstance(value, dict):
        return {name: filled(each, given) for name, each in value.items()}
    return [filled(each, given) for each in value] if isinstance(value, list) else value


# ---- what two answers have in common ---------------------------------------------------------------------------------


def comparable(value: Any, given: Given, name: str = "") -> Any:
    """An answer without what differs between any two brokers; lists of structs in an order of their own."""
    if isinstance(value, dict):
        return {key: comparable(each, given, key) for key, each in value.items() if key not in VOLATILE}
    if isinstance(value, memoryview):
        is_whole = value.nbytes == sum(map(len, whole_batches(bytes(value))))
        return (list if is_whole else CutBatches)(batches(bytes(value)))
    if isinstance(value, list):
        items = [comparable(each, given, name) for each in value]
        if name in {"partitions", "isr_nodes"} and all(isinstance(each, int) for each in items):
            return sorted(items)
        return sorted(items, key=_order) if items and isinstance(items[0], dict | str) else items
    if isinstance(value, bytes) and len(value) == len(bytes(16)):
        return "none" if value == bytes(16) else given.label("topic", value)
    if name == "producer_id" and value != -1:
        return given.label("producer", value)
    if name in {"member_id", "leader"} and value:
        return given.label("member", value)
    return bool(value) if name in {"session_id", "documentation"} else value


class CutBatches(list[tuple[Any, ...]]):
    """Batches of which a last one is cut off in the middle, and left out."""


def blurred(value: Any, names: frozenset[str], name: str = "") -> Any:
    """An answer in which of these fields only the sign or size is left."""
    if name in names and isinstance(value, int):
        return (value > 0) - (value < 0)
    if name in names and isinstance(value, bytes | list):
        return sum(len(each["partitions"]) if isinstance(each, dict) else 1 for each in value)
    if isinstance(value, dict):
        return {key: blurred(each, names, key) for key, each in value.items()}
    return type(value)(blurred(each, names) for each in value) if isinstance(value, list) else value


def seen(ask: Ask, answer: Message, given: Given) -> Any:
    """What counts of an answer."""
    if ask.is_vague:
        return {"error_code": sorted(errors_in(answer))}
    return blurred(comparable(answer, given), ask.blurred)


def _order(item: Any) -> tuple[str, str]:
    """What has the same identity is in the order of its values."""
    if not isinstance(item, dict):
        return str(item), ""
    return repr([item[key] for key in (*IDENTITY, *PLACE) if key in item]), repr(item)


def whole_batches(data: bytes) -> Iterator[bytes]:
    """Each batch. The last one may be cut off in the middle; it is left out."""
    at = 0
    while at + HEADER_SIZE <= len(data):
        end = at + RecordBatch.of(data[at:]).size
        if end > len(data):
            return
        yield data[at:end]
        at = end


def batches(data: bytes) -> Iterator[tuple[Any, ...]]:
    """(base offset, last offset delta, epoch, attributes, has a producer, producer epoch, sequence, records) of each."""
    for whole in whole_batches(data):
        found = RecordBatch.of(whole)
        records = [
            (each.offset, found.timestamp_type or each.timestamp, each.key, each.value, each.headers)
            for each in (() if found.is_control else decode_batch(whole))
        ]
        yield (
            *(found.base_offset, found.last_offset_delta, found.leader_epoch, found.attributes, found.has_producer),
            *(found.producer_epoch, found.base_sequence, records),
        )


class Difference(NamedTuple):
    """One place of an answer."""

    ask: Ask
    path: str
    kafka: Any
    ours: Any
    row: Message
    """The struct of Kafka's answer that it is in."""
    given: Given
    """What Kafka has given the conversation."""

    @property
    def member(self) -> str:
        return self.path.rpartition(".")[2]

    def __str__(self) -> str:
        late = f" with {self.row!r:.300}" if self.path == "is answered" else ""
        return (
            f"{self.ask.api} v{self.ask.version} {self.path}: Kafka {self.kafka!r:.300}, ours {self.ours!r:.300}{late}"
        )


def _fetched(topics: list[Message]) -> Iterator[tuple[str, Message]]:
    """The partitions of a Fetch response, each with its name. Kafka may name a topic several times."""
    for topic in topics:
        name = topic["topic"] or topic["topic_id"]
        yield from ((f"{name}-{each['partition_index']}", each) for each in topic["partitions"])


def differences(kafka: Any, ours: Any, whole: Difference) -> Iterator[Difference]:
    """Where two parts of two answers are not the same; ``whole`` has the rest."""
    path = whole.path
    if whole.ask.api == "Fetch" and path == ".responses":
        kafka, ours = dict(_fetched(kafka)), dict(_fetched(ours))
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for name in sorted(kafka.keys() | ours.keys()):
            part = whole._replace(path=f"{path}.{name}", row=kafka)
            yield from differences(kafka.get(name), ours.get(name), part)
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for number, (one, other) in enumerate(zip(kafka, ours, strict=True)):
            yield from differences(one, other, whole._replace(path=f"{path}[{number}]"))
    elif kafka != ours:
        yield whole._replace(kafka=kafka, ours=ours)


# ---- where ours differs on purpose -----------------------------------------------------------------------------------


class Purpose(NamedTuple):
    """A difference that is meant."""

    why: str
    api: str
    is_it: Callable[[Difference], bool]
    is_end: bool = False
    """What follows depends on it: the conversation ends."""


def codes(*pairs: tuple[int, int]) -> Callable[[Difference], bool]:
    """The error code is Kafka's, ours: one of these pairs."""
    return lambda found: found.member == "error_code" and (found.kafka, found.ours) in pairs


def are_read(transactions: list[Message] | None, row: Message) -> list[Message]:
    """Those of a partition's aborted transactions that begin in the records of the response."""
    end = max((base + delta for base, delta, *_ in row["records"]), default=-1)
    return [each for each in transactions or () if each["first_offset"] <= end]


def has_enough(answer: Message, asked: Message) -> bool:
    """Return True if a Fetch response has as many bytes as the request waits for.

    A partition counts with its limit if its next batch may not have fitted. A response without room for another batch
    is as long as it can be.
    """
    sizes = [len(each["records"] or b"") for topic in answer["responses"] for each in topic["partitions"]]
    limits = [each["partition_max_bytes"] for topic in asked["topics"] for each in topic["partitions"]]
    most = sum(sizes) + sum(each for each in limits if each <= SMALL_BYTES)
    return most >= min(asked["min_bytes"], asked["max_bytes"]) or asked["max_bytes"] - sum(sizes) < HEADER_SIZE


def is_filled(found: Difference) -> bool:
    """Return True if Kafka has filled the response to a session's request with a part of another partition's batch."""
    is_of_session = found.ask.message.get("session_epoch", -1) > 0
    return is_of_session and any(isinstance(each["records"], CutBatches) for each in found.row.values())


def reads_on(found: Difference) -> bool:
    """Return True if ours has the records that Kafka's has, and more behind them."""
    is_records = ".records" in found.path and isinstance(found.kafka, list)
    return is_records and bool(found.ours[: len(found.kafka)] == found.kafka)


def is_deleted(found: Difference) -> bool:
    """Return True if Kafka lists an offset below the log start, and ours does not, in a topic whose log starts are known."""
    topics, row = found.ask.message["topics"], found.row
    if len(topics) > 1 or "offset" not in row:
        return False
    start = found.given.values.get(("log start", f"{topics[0]['name']}-{row['partition_index']}"), 0)
    is_there = found.member != "offset" or found.ours == -1 or found.ours >= start
    return 0 <= row["offset"] < start and is_there


def is_unstable(found: Difference) -> bool:
    """Return True if Kafka names no record with the largest timestamp to a reader of what is committed, and ours does."""
    partitions = [each for topic in found.ask.message["topics"] for each in topic["partitions"]]
    asked = {each["timestamp"] for each in partitions if each["partition_index"] == found.row.get("partition_index")}
    is_asked = found.ask.message.get("isolation_level") == 1 and asked == {LARGEST}
    return is_asked and found.row.get("offset") == -1


def sends_next(produce: Message) -> bool:
    """Return True if all batches of a transactional Produce have the sequence that follows."""
    batches_sent = [part["records"] for topic in produce["topic_data"] for part in topic["partition_data"]]
    return bool(produce.get("transactional_id")) and all(getattr(each, "is_next", False) for each in batches_sent)


def is_stale_of_static(epoch: Any) -> bool:
    """Return True if a request has the epoch before the present one of a member with an instance id."""
    return isinstance(epoch, Own) and epoch.label in {"s", "s again"} and epoch.plus < 0


def is_leaderless(found: Difference) -> bool:
    """Return True if a Produce or Fetch names one partition, and that has no leader."""
    topics, partitions = ("topic_data", "partition_data") if found.ask.api == "Produce" else ("topics", "partitions")
    named = [(topic, part) for topic in found.ask.message[topics] for part in topic[partitions]]
    if len(named) != 1:
        return False
    [(topic, part)] = named
    place = f"{topic.get('name') or topic['topic']}-{part.get('index', part.get('partition'))}"
    return bool(found.given.values.get(("leader", place)) == -1)


def has_partitions_of_several_sizes(found: Difference) -> bool:
    """Return True if the partitions of the topic in which they differ have not all the same number of replicas."""
    names = sorted(each["name"] for each in found.ask.message["topics"])
    number = int(found.path.removeprefix(".topics[").partition("]")[0])
    return number < len(names) and len(found.given.values.get(("numbers of replicas", names[number]), ())) > 1


def member(*names: str) -> Callable[[Difference], bool]:
    return lambda found: found.member in names


LARGEST = -3
CLOCKS_MS, LOGGER, FENCED_MEMBER_EPOCH, OUT_OF_ORDER_SEQUENCE = 1000, 8, 110, 45
SMALL_BYTES = 100
"""Of a partition: a limit below the size of some batches."""
SMALL_RESPONSE_BYTES = 1000
"""Of a response: fewer than a conversation produces."""
MIN_ISR = "min.insync.replicas"
FOLLOWERS_SERVE_SINCE = 11
"""Version of Fetch from which Kafka's followers serve consumers (KIP-392)."""
FIRST_FAULT = "which of several faults is named first"

ON_PURPOSE = (
    Purpose("file.delete.delay.ms is another one in the bench's Kafka", "CreateTopics", member("configs")),
    *(
        Purpose(FIRST_FAULT, api, codes((37, 40), (38, 40), (36, 40), (40, 17), (40, 3), (42, 3), (40, 42), (42, 40)))
        for api in ("CreateTopics", "AlterConfigs", "IncrementalAlterConfigs")
    ),
    Purpose("cleanup.policy is not empty", "IncrementalAlterConfigs", codes((0, 40))),
    Purpose("what is only validated has no id", "CreateTopics", lambda d: bool(d.ask.message.get("validate_only"))),
    Purpose("our integers are all LONG", "DescribeConfigs", member("config_type")),
    Purpose(
        "each has settings that the other lacks",
        "DescribeConfigs",
        lambda d: bool(d.kafka and d.ours) and d.member == "configs",
    ),
    Purpose("Kafka sets min.insync.replicas for all brokers (KIP-966)", "DescribeConfigs", member("config_source")),
    Purpose("the log start is said where it is known to matter", "Produce", lambda d: d.member == "log_start_offset"),
    Purpose("a batch that cannot be read is CORRUPT_MESSAGE, not INVALID_RECORD", "Produce", codes((87, 2))),
    Purpose("a batch that cannot be read is no error of the server", "Produce", codes((-1, 2), (-1, 87))),
    Purpose(
        "the next sequence follows the last record; in Kafka that of a request whose verification failed comes first",
        "Produce",
        lambda d: d.row.get("error_code") == OUT_OF_ORDER_SEQUENCE and sends_next(d.ask.message),
        is_end=True,
    ),
    Purpose("a missing transactional id is no matter of permissions", "Produce", codes((53, 87))),
    Purpose(
        FIRST_FAULT, "Produce", lambda d: d.member == "error_code" and (d.ours == 21 or {d.kafka, d.ours} == {32, 87})
    ),
    Purpose(
        "the time of an append",
        "ListOffsets",
        lambda d: d.member == "timestamp" and min(d.kafka, d.ours) >= 0 and abs(d.kafka - d.ours) < CLOCKS_MS,
    ),
    Purpose("the largest timestamp is that of a record that is not deleted", "ListOffsets", is_deleted),
    Purpose("the largest timestamp is that of a record below the last stable offset", "ListOffsets", is_unstable),
    Purpose(
        "a partition that is named again is answered again",
        "Fetch",
        lambda d: d.kafka is None and isinstance(d.ours, dict) and not (d.ours["error_code"] or d.ours["records"]),
    ),
    Purpose(
        "an OFFSET_OUT_OF_RANGE says where the log is",
        "Fetch",
        lambda d: d.member in {"high_watermark", "log_start_offset"} and d.kafka == -1,
    ),
    Purpose(
        "one fetch reads on in the next segment, which takes room from other partitions",
        "Fetch",
        lambda d: reads_on(d) and d.ask.message.get("max_bytes", 0) < SMALL_RESPONSE_BYTES,
        is_end=True,
    ),
    Purpose("one fetch reads on in the next segment", "Fetch", reads_on),
    Purpose(
        "a session's response has whole batches; Kafka fills it with a part of one, and other partitions find no room",
        "Fetch",
        lambda d: d.kafka is None and isinstance(d.ours, dict) and bool(d.ours["records"]) and is_filled(d),
        is_end=True,
    ),
    Purpose(
        "a partition that there is not ends the wait of the others, too",
        "Fetch",
        lambda d: d.member == "has waited" and d.kafka and bool(errors_in(d.row) & {3, 100}),
    ),
    Purpose(
        "a wait ends when its offset is deleted, even if there is too little to read",
        "Fetch",
        lambda d: d.path == "is answered" and d.ours and 1 in errors_in(d.row),
        is_end=True,
    ),
    Purpose(
        "a batch counts with its size; in Kafka with partition_max_bytes at most if it comes while the fetch waits",
        "Fetch",
        lambda d: d.path == "is answered" and d.ours and d.ask.is_long_poll and has_enough(d.row, d.ask.message),
        is_end=True,
    ),
    Purpose(
        "Kafka deletes the partitions of a topic one after the other",
        "Fetch",
        lambda d: d.ask.is_long_poll and codes((0, 3), (0, 100))(d),
        is_end=True,
    ),
    Purpose(
        "the last stable offset is not below the log's start",
        "Fetch",
        lambda d: d.member == "last_stable_offset" and d.kafka < d.row["log_start_offset"] == d.ours,
    ),
    Purpose(
        "aborted transactions behind Kafka's last record: Kafka may list them, ours may read on in the next segment",
        "Fetch",
        lambda d: d.member == "aborted_transactions" and are_read(d.kafka, d.row) == are_read(d.ours, d.row),
    ),
    Purpose(
        FIRST_FAULT,
        "OffsetCommit",
        lambda d: d.member == "error_code" and d.kafka in {3, 29} and d.ours in {22, 25, 27, 35, 79, 82, 113},
    ),
    Purpose(
        "a partition that a static member has kept counts as assigned at the same epoch; in Kafka at an earlier one",
        "OffsetCommit",
        lambda d: codes((0, 113))(d) and is_stale_of_static(d.ask.message["generation_id_or_member_epoch"]),
        is_end=True,
    ),
    *(
        Purpose("no group has the empty name (KIP-289)", api, lambda d: d.member == "error_code" and d.ours == 24)
        for api in ("OffsetCommit", "OffsetDelete")
    ),
    *(
        Purpose("a partition stands once in a commit", api, lambda d: d.member == "error_code" and d.ours == 42, True)
        for api in ("OffsetCommit", "TxnOffsetCommit")
    ),
    Purpose("a missing member id is no error of the server", "OffsetFetch", codes((-1, 25))),
    Purpose(
        "all offsets are those that a transaction may still add, too",
        "OffsetFetch",
        lambda d: d.member in {"topics", "partitions"} and 88 in errors_in(d.ours) - errors_in(d.kafka),
    ),
    Purpose("a group that is gone: the member joins again", "OffsetCommit", codes((69, 22), (69, 25), (25, 22))),
    Purpose("a group that is gone: the member joins again", "TxnOffsetCommit", codes((25, 22))),
    Purpose(FIRST_FAULT, "OffsetCommit", codes((12, 113))),
    Purpose(FIRST_FAULT, "TxnOffsetCommit", codes((12, 22))),
    Purpose(FIRST_FAULT, "TxnOffsetCommit", lambda d: d.member == "error_code" and d.kafka in {3, 29}),
    Purpose("a join that failed leaves no group", "DeleteGroups", codes((0, 69))),
    *(
        Purpose("a join that failed leaves no group", "DescribeGroups", is_it)
        for is_it in (lambda d: (d.kafka, d.ours) == ("Empty", "Dead"), codes((0, 69)), member("authorized_operations"))
    ),
    Purpose("a join that failed leaves no group", "OffsetDelete", lambda d: d.ours in (69, [])),
    Purpose(
        "a group is described before its first record", "DescribeGroups", lambda d: d.row.get("group_state") == "Dead"
    ),
    Purpose(
        "Kafka takes the next leader from a hash map",
        "JoinGroup",
        lambda d: (
            d.member == "leader"
            and ("generation_id" in d.ask.blurred or d.given.values.get(("leader", "since")) == d.row["generation_id"])
        ),
        is_end=True,
    ),
    Purpose(
        "Kafka leaves the SyncGroup of a removed member open",
        "SyncGroup",
        lambda d: d.path == "is answered" and d.ours,
        is_end=True,
    ),
    Purpose(
        "a group without members and offsets is gone",
        "ListGroups",
        lambda d: d.member == "groups" and not d.ours and not any(each["protocol_type"] for each in d.kafka),
    ),
    Purpose(FIRST_FAULT, "JoinGroup", codes((25, 23))),
    Purpose("a member that is gone gets an id that is new", "JoinGroup", codes((0, 25)), is_end=True),
    Purpose(
        "a refusal may or may not repeat the member's id",
        "JoinGroup",
        lambda d: d.member == "member_id" and d.row.get("error_code", 0) not in (0, 79),
    ),
    Purpose("a group that is gone: the member joins again", "ConsumerGroupHeartbeat", codes((69, 25))),
    Purpose(
        "the epoch before counts until the next one; in Kafka not from a member that has waited for partitions since",
        "ConsumerGroupHeartbeat",
        lambda d: (
            d.row.get("error_code") == FENCED_MEMBER_EPOCH
            and getattr(d.ask.message["member_epoch"], "kind", "") == "former epoch"
        ),
        is_end=True,
    ),
    Purpose(FIRST_FAULT, "ConsumerGroupHeartbeat", codes((69, 42), (25, 42), (82, 42))),
    Purpose(
        "another expression that matches the same topics is no reason for a new epoch",
        "ConsumerGroupDescribe",
        lambda d: (
            d.member == "group_state"
            and d.ours == "Stable"
            and all(each["assignment"] == each["target_assignment"] for each in d.row["members"])
        ),
        is_end=True,
    ),
    Purpose(
        "each cluster has a metadata log of its own",
        "DescribeQuorum",
        member("leader_epoch", "high_watermark", "log_end_offset", "last_fetch_timestamp", "last_caught_up_timestamp"),
    ),
    Purpose(
        "levels that only Kafka has: kraft.version 1, transaction.version 0",
        "UpdateFeatures",
        lambda d: d.ours == (95 if d.member == "error_code" else []),
    ),
    Purpose(
        "only an open transaction has a duration",
        "ListTransactions",
        lambda d: d.member == "transaction_states" and d.ask.message["duration_filter"] >= 0,
    ),
    Purpose("any broker accepts changes to another broker's settings", "AlterConfigs", codes((42, 102))),
    Purpose("any broker accepts changes to another broker's settings", "IncrementalAlterConfigs", codes((42, 102))),
    Purpose("Kafka sets min.insync.replicas for all brokers (KIP-966)", "AlterConfigs", codes((40, 0))),
    Purpose(
        "Kafka sets min.insync.replicas for all brokers (KIP-966)",
        "DescribeConfigs",
        lambda d: d.member == "configs" and not d.ours and {each["name"] for each in d.kafka} == {MIN_ISR},
    ),
    Purpose("unknown settings are refused", "AlterConfigs", codes((0, 40))),
    Purpose("unknown operations are no error of the server", "IncrementalAlterConfigs", codes((-1, 40), (-1, 3))),
    *(
        Purpose("groups and client metrics have no settings", api, lambda d: d.row.get("resource_type") in {16, 32})
        for api in ("AlterConfigs", "IncrementalAlterConfigs", "DescribeConfigs")
    ),
    Purpose(
        "there are no loggers with levels",
        "ListConfigResources",
        lambda d: d.member == "config_resources" and not d.ours and d.kafka[0]["resource_type"] == LOGGER,
    ),
    Purpose("what Metadata lists is listed to the same clients", "ListConfigResources", lambda d: bool(d.ask.client)),
    Purpose("one error for all users", "DescribeUserScramCredentials", lambda d: d.member == "results" and not d.ours),
    Purpose(
        "a client that is denied learns no topics' names",
        "ElectLeaders",
        lambda d: d.member == "replica_election_results" and not d.ours,
    ),
    Purpose("a denial comes before a look at the topics", "DeleteTopics", codes((3, 29))),
    Purpose(
        "only leaders serve consumers",
        "Fetch",
        lambda d: d.ask.version >= FOLLOWERS_SERVE_SINCE and is_leaderless(d),
    ),
    *(
        Purpose(
            "where there is no leader, none is named",
            api,
            lambda d: d.member in {"leader_id", "leader_epoch"} and d.ours == -1 and is_leaderless(d),
        )
        for api in ("Produce", "Fetch")
    ),
    Purpose(
        "min.insync.replicas counts in each partition; Kafka's controller has the replicas of the topic's first one count",
        "DescribeTopicPartitions",
        lambda d: d.member == "eligible_leader_replicas" and has_partitions_of_several_sizes(d),
    ),
    Purpose(
        "a broker from which a reassignment has taken a partition is not eligible to lead it",
        "DescribeTopicPartitions",
        lambda d: (
            d.member == "eligible_leader_replicas"
            and d.ours == [each for each in d.kafka if each in d.row["replica_nodes"]]
        ),
    ),
    Purpose("nothing is said of what there is not", "DescribeTransactions", member("producer_id", "producer_epoch")),
    Purpose(
        "a producer that is only being confirmed is not shown",
        "DescribeProducers",
        lambda d: d.member == "active_producers" and len(d.kafka) > len(d.ours),
    ),
)


def purpose_of(found: Difference) -> Purpose | None:
    """Why ours is meant to differ there; None: it is not."""
    return next((each for each in ON_PURPOSE if each.api == found.ask.api and each.is_it(found)), None)


# ---- both sides ------------------------------------------------------------------------------------------------------


async def log_in(client: RawClient, user: str, password: str) -> None:
    """SASL PLAIN."""
    await client.call("SaslHandshake", 1, {"mechanism": "PLAIN"})
    answer = await client.call("SaslAuthenticate", 2, {"auth_bytes": f"\0{user}\0{password}".encode()})
    assert not answer["error_code"], answer


class Side:
    """One cluster, and what it has given this conversation."""

    def __init__(
        self, bootstrap: str, passwords: Mapping[str, str] = MappingProxyType({}), given: Given | None = None
    ) -> None:
        """``bootstrap`` names all brokers, by node id from 1 on. ``passwords``: of the clients that log in, by name."""
        self._addresses = dict(enumerate(bootstrap.split(","), 1))
        self._passwords = passwords
        self._clients: dict[tuple[str, int], RawClient] = {}
        self._open: dict[int, tuple[Ask, asyncio.Task[Message]]] = {}
        self.given = given or Given()

    def begin(self, number: int, ask: Ask) -> None:
        """Send a request; :meth:`answered` has its number when it is answered."""
        self._open[number] = ask, asyncio.create_task(self._ask(ask))

    @property
    def open(self) -> set[int]:
        """The requests whose answers were not taken."""
        return set(self._open)

    def answered(self) -> set[int]:
        """Those among them that are answered."""
        return {number for number, (_, task) in self._open.items() if task.done()}

    def is_waiting(self, client: str) -> bool:
        """Return True if a request of the client is open."""
        return any(ask.client == client for ask, _ in self._open.values())

    def take(self, number: int) -> tuple[Ask, Message]:
        """A request that is answered, and its answer, from which is learned."""
        ask, task = self._open.pop(number)
        answer = task.result()
        if ask.only:
            answer["groups"] = [each for each in answer["groups"] if ask.only in each["group_id"]]
        if ask.learn is not None and not errors_in(answer) - LEARNED_FROM:
            ask.learn(self.given, answer)
        return ask, answer

    async def _ask(self, ask: Ask) -> Message:
        """The answer; a request that finds no leader or coordinator yet is repeated."""
        message, node = filled(ask.message, self.given), filled(ask.broker, self.given)
        for _ in range(RETRIES):
            client = self._clients.get((ask.client, node))
            if client is None:
                host, _, port = self._addresses[node].partition(":")
                client = self._clients[ask.client, node] = await RawClient.at(host, int(port))
                if ask.client in self._passwords:
                    await log_in(client, ask.client, self._passwords[ask.client])
            began = time.monotonic()
            answer = await client.call(ask.api, ask.version, message)
            if ask.is_long_poll:
                answer["has waited"] = (time.monotonic() - began) * 1000 >= message["max_wait_ms"] * WAITED
            if ask.until(answer) if ask.until is not None else not errors_in(answer) & NOT_YET:
                break
            await asyncio.sleep(RETRY_PAUSE_S)
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for _, task in self._open.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._open.values()), return_exceptions=True)
        for client in self._clients.values():
            await client.close()


async def settled(kafka: Side, ours: Side, number: int, *, may_park: bool) -> set[int]:
    """Wait for answers; return those that are there from both.

    A request that may be parked counts as parked when neither side has answered anything for :data:`QUIET_S`. What one
    side alone has answered, the other one has :data:`LATE_S` for.
    """
    loop = asyncio.get_running_loop()
    began = changed = loop.time()
    seen: tuple[set[int], set[int]] | None = None
    while True:
        now = loop.time()
        both = kafka.answered(), ours.answered()
        if both != seen:
            seen, changed = both, now
        if number in both[0] & both[1] or may_park or now - began > ANSWER_TIMEOUT_S:
            is_all = both[0] == kafka.open == ours.open == both[1]
            if is_all or now - changed > (QUIET_S if both[0] == both[1] else LATE_S):
                return both[0] & both[1]
        await asyncio.sleep(POLL_S)


async def first_difference(
    kafka: str,
    ours: str,
    conversation: Iterator[Ask],
    pauses: Mapping[str, float],
    passwords: Mapping[str, str] = MappingProxyType({}),
    given: tuple[Given, Given] | None = None,
) -> tuple[Difference, list[Ask]] | None:
    """The first place that differs and is not meant to, with the requests up to there.

    ``given`` is what both sides have given before, and receives more.
    """
    said: list[Ask] = []
    before = given or (Given(), Given())
    async with Side(kafka, passwords, before[0]) as one, Side(ours, passwords, before[1]) as other:
        for number, ask in enumerate(conversation):
            if one.is_waiting(ask.client):
                continue
            said.append(ask)
            for side in (one, other):
                side.begin(number, ask)
            ready = await settled(one, other, number, may_park=ask.may_park)
            if ask.pause_s:
                await asyncio.sleep(ask.pause_s)
                ready = await settled(one, other, number, may_park=True)
            answers = [(one.take(each), other.take(each)) for each in sorted(ready)]
            for (answered, theirs), (_, mine) in answers:
                whole = Difference(answered, "", None, None, {}, one.given)
                for each in differences(seen(answered, theirs, one.given), seen(answered, mine, other.given), whole):
                    purpose = purpose_of(each)
                    if purpose is None or purpose.is_end:
                        return None if purpose is not None else (each, said)
            for each in sorted(one.answered() ^ other.answered()):
                is_theirs = each in one.answered()
                answered, answer = (one if is_theirs else other).take(each)
                late = Difference(answered, "is answered", is_theirs, not is_theirs, answer, one.given)
                return None if purpose_of(late) is not None else (late, said)
            await asyncio.sleep(pauses.get(ask.api, 0.0))
    return None
