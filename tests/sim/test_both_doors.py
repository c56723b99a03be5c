"""Both doors agree: the same operations through ``/rpc`` and through Kafka frames have equal answers and equal logs.

Each door has a simulated cluster of its own with the same seed. CI plays fixed examples and one fresh seed of Hypothesis,
which a failure prints; ``MINIKAFKA_DOORS_SEED`` plays it again.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, given, note, seed, settings
from hypothesis import strategies as st
from msgspec import structs

from minikafka.sim.world import SimWorld
from minikafka.types import NodeId, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.kafka.offer import OFFERS
from minikafka.wire.kafka.translate import produce
from minikafka.wire.records import Record, build_batch
from tests.sim.both_doors import CLIENT, OFFERED, Door, Form, KafkaDoor, RpcDoor, cluster_for, leader

GIVEN = os.environ.get("MINIKAFKA_DOORS_SEED")
FRESH = int(GIVEN) if GIVEN else time.time_ns() % 2**32
PHASES = (Phase.generate, Phase.shrink) if GIVEN else (Phase.generate,)
"""Shrinking takes minutes: only a seed that is played again is shrunk."""

TIME = 1_700_000_000_000
TOPICS = ("t0", "t1", "t2", "t/3")
"""The last one's name is invalid."""

OFFSETS = TopicPartition("__consumer_offsets", 0)
CONFIGS: tuple[dict[str, str], ...] = ({}, {"max.message.bytes": "300"}, {"cleanup.policy": "compact"}, {"none": "1"})
CODECS = ("none", "gzip", "zstd")


@dataclass(frozen=True)
class Operation:
    """One operation: what its numbers mean is for the method of Play with its name."""

    name: str
    numbers: tuple[int, ...]

    def __repr__(self) -> str:
        return f"{self.name}{self.numbers}"


class Play:
    """Plays operations on one door. What it sends depends on earlier answers only."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.answers: list[Any] = []
        self.producers: dict[int, list[int]] = {}
        """Producer -> its id, epoch and next sequence."""
        self.members: dict[tuple[str, int], tuple[str, int]] = {}
        """Group and member -> its id and generation."""
        self._names: dict[str, str] = {"": ""}
        """A member id's name in answers."""

    def play(self, operation: Operation) -> None:
        """Keep the answers under names that both doors have."""
        forms: list[Form] = getattr(self, operation.name)(*operation.numbers)
        self.answers.append((operation, self._named(forms)))

    def _named(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._named(key): self._named(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return tuple(self._named(each) for each in value)
        return self._names.get(value, value) if isinstance(value, str) else value

    def _leader(self, topic: str, partition: int, shift: int = 0) -> NodeId:
        return (leader(self.door.cluster, topic, partition) - 1 + shift) % 3 + 1

    @staticmethod
    def _version(api: str, number: int) -> int:
        first, last = OFFERED[api]
        return last - number % (last - first + 1)

    # ---- topics ------------------------------------------------------------------------------------------------------

    def create(self, topic: int, partitions: int, replicas: int, config: int, number: int) -> list[Form]:
        """Replicas are assigned, so that the controller draws no leader, unless the counts are out of bounds."""
        new = m.NewTopic(name=TOPICS[topic], num_partitions=partitions, replication_factor=replicas)
        if partitions > 0 and 0 < replicas <= 3:
            assigned = tuple(
                m.ReplicaAssignment(
                    partition=each, broker_ids=tuple((topic + each + one) % 3 + 1 for one in range(replicas))
                )
                for each in range(partitions)
            )
            new = m.NewTopic(name=TOPICS[topic], assignments=assigned, configs=CONFIGS[config])
        version = self._version("CreateTopics", number)
        return [self.door.ask(1 + number % 3, m.CreateTopicsRequest(topics=(new,)), version)]

    def delete(self, topic: int, number: int) -> list[Any]:
        """The logs are compared before they go."""
        request = m.DeleteTopicsRequest(topics=(TOPICS[topic],))
        return [self.door.logs(), self.door.ask(1 + number % 3, request, self._version("DeleteTopics", number))]

    # ---- records -----------------------------------------------------------------------------------------------------

    def init(self, producer: int, number: int) -> list[Form]:
        """A new id, or the next epoch of the one that it has."""
        known = self.producers.get(producer, [-1, -1])
        version = self._version("InitProducerId", number)
        own = version >= 3 and number % 2
        request = m.InitProducerIdRequest(producer_id=known[0], producer_epoch=known[1]) if own else None
        form = self.door.ask(1 + producer, request or m.InitProducerIdRequest(), version)
        row = form[1][""]
        if not row["error_code"]:
            self.producers[producer] = [row["producer_id"], row["producer_epoch"], 0]
        return [form]

    def produce(
        self, topic: int, partition: int, producer: int, shift: int, older: int, acks: int, kind: int, number: int
    ) -> list[Form]:
        """``shift`` moves the sequence, ``older`` the epoch; kinds of batches are good, damaged and absent."""
        name = TOPICS[topic]
        count = 1 + number % 3
        pid, epoch, sequence = self.producers.get(producer, [-1, -1, -1])
        if pid >= 0:
            sequence, epoch = max(0, sequence + shift), max(0, epoch + older)
        codec, version = CODECS[number % 3], self._version("Produce", number)
        if codec == "zstd":
            # Kafka's protocol refuses it below; over /rpc there are no versions.
            version = max(version, produce.ZSTD_FROM)
        values = [b"%d:%d" % (number, each) * (1 + number % 40) for each in range(count)]
        batch = build_batch(
            [Record(0, TIME + number, each, b"key" if kind else None, value) for each, value in enumerate(values)],
            compression=codec,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        if kind == 2:
            batch = batch[:-1] + bytes([batch[-1] ^ 1])
        item = m.ProducePartition(topic=name, partition=partition, records=() if kind == 3 else (batch,))
        request = m.ProduceRequest(acks=acks, timeout_ms=5000, client_id=CLIENT, partitions=(item,))
        to = self._leader(name, partition, shift=number % 10 == 9)
        form = self.door.ask(to, request, version)
        if pid >= 0 and not form[1].get((name, partition), {}).get("error_code") and acks:
            self.producers[producer][2] = sequence + count
        return [form]

    def fetch(self, topic: int, partition: int, offset: int, epoch: int, last: int, number: int) -> list[Form]:
        """Two partitions, one of which may not exist."""
        version = self._version("Fetch", number)
        items = tuple(
            m.FetchPartition(
                topic=TOPICS[topic],
                partition=each,
                current_leader_epoch=epoch if version >= 9 else -1,
                fetch_offset=offset,
                last_fetched_epoch=last if version >= 12 else -1,
                partition_max_bytes=50 if number % 5 == 4 else 1 << 20,
            )
            for each in (partition, partition + 1)
        )
        request = m.FetchRequest(max_wait_ms=50, min_bytes=number % 2, isolation_level=0, partitions=items)
        return [self.door.ask(self._leader(TOPICS[topic], partition, number % 10 == 9), request, version)]

    def list_offsets(self, topic: int, partition: int, timestamp: int, epoch: int, number: int) -> list[Form]:
        """Special timestamps, and those of records."""
        version = self._version("ListOffsets", number)
        lowest = -1 if version < 2 else -2
        item = m.ListOffsetsPartition(
            topic=TOPICS[topic],
            partition=partition,
            current_leader_epoch=epoch if version >= 4 else -1,
            timestamp=TIME + timestamp if timestamp >= 0 else max(timestamp, -3 if version >= 7 else lowest),
        )
        return [
            self.door.ask(self._leader(TOPICS[topic], partition), m.ListOffsetsRequest(partitions=(item,)), version)
        ]

    def epoch_end(self, topic: int, partition: int, epoch: int, current: int, number: int) -> list[Form]:
        """OffsetForLeaderEpoch."""
        item = m.EpochQuery(topic=TOPICS[topic], partition=partition, current_leader_epoch=current, leader_epoch=epoch)
        request = m.OffsetForLeaderEpochRequest(partitions=(item,))
        version = self._version("OffsetForLeaderEpoch", number)
        return [self.door.ask(self._leader(TOPICS[topic], partition), request, version)]

    def delete_records(self, topic: int, partition: int, offset: int, number: int) -> list[Form]:
        """Up to the high watermark (-1), up to an offset, or too far."""
        item = m.DeleteRecordsPartition(topic=TOPICS[topic], partition=partition, offset=offset)
        request = m.DeleteRecordsRequest(partitions=(item,))
        version = self._version("DeleteRecords", number)
        return [self.door.ask(self._leader(TOPICS[topic], partition), request, version)]

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _coordinator(self) -> NodeId:
        return leader(self.door.cluster, "__consumer_offsets", 0)

    def _ask_group(self, request: Any, number: int) -> Form:
        api = type(request).__name__.removesuffix("Request")
        return self.door.ask(self._coordinator(), request, self._version(api, number))

    def find(self, group: int, number: int) -> list[Form]:
        """Where the coordinator is, which creates the offsets topic. The broker is drawn by the controller."""
        keys = (f"g{group}",)

        async def ask() -> None:
            await self.door.cluster.brokers[1].answer("FindCoordinator", g.FindCoordinatorRequest(keys=keys))

        while self.door.cluster.leader_of(OFFSETS) < 1:
            self.door.cluster.run(ask(), node="n1")
            self.door.cluster.settle()
        return []

    def join(self, group: int, members: int, number: int) -> list[Form]:
        """Members of a set (bits) join together and synchronize: a group without them removes its other members."""
        self.find(group, number)
        name = f"g{group}"
        slots = [each for each in range(3) if members >> each & 1]
        # Version 0 has no rebalance timeout of its own: the join would wait for the session timeout of absent members.
        version = max(1, self._version("JoinGroup", number))
        everything: list[Form] = []
        waiting = slots
        for _ in range(2):
            forms = self.door.ask_all(
                self._coordinator(), [self._joining(name, each, version, number) for each in waiting], version
            )
            everything += forms
            again = []
            for slot, (_, rows) in zip(waiting, forms, strict=True):
                row = rows[""]
                self._names.setdefault(row["member_id"], f"{name}/{slot}")
                if row["error_code"] == 79:
                    self.members[name, slot] = (row["member_id"], -1)
                    again.append(slot)
                elif row["error_code"]:
                    self.members.pop((name, slot), None)
                else:
                    self.members[name, slot] = (row["member_id"], row["generation_id"])
            if not again:
                break
            waiting = again
        joined = [each for each in slots if (name, each) in self.members]
        requests = [self._syncing(name, each, everything) for each in joined]
        return everything + self.door.ask_all(self._coordinator(), requests, self._version("SyncGroup", number))

    def _joining(self, group: str, slot: int, version: int, number: int) -> g.JoinGroupRequest:
        known, _ = self.members.get((group, slot), ("", -1))
        return g.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=300_000,
            rebalance_timeout_ms=5_000,
            member_id=known,
            protocols=(g.GroupProtocol(name="range", metadata=b"%d" % (slot + number % 2)),),
            client_id=CLIENT,
            needs_member_id=version >= 4,
        )

    def _syncing(self, group: str, slot: int, forms: list[Form]) -> g.SyncGroupRequest:
        member_id, generation = self.members[group, slot]
        rows = [rows[""] for _, rows in forms]
        leads = [row for row in rows if row.get("leader") == member_id and row["member_id"] == member_id]
        given = tuple(
            g.MemberAssignment(member_id=each, assignment=b"for " + metadata)
            for row in leads[-1:]
            for each, metadata in row["members"].items()
        )
        return g.SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=given,
        )

    def _member(self, group: int, member: int, shift: int) -> dict[str, Any]:
        member_id, generation = self.members.get((f"g{group}", member), ("", -1))
        return {"group_id": f"g{group}", "member_id": member_id, "generation_id": generation + shift}

    def heartbeat(self, group: int, member: int, shift: int, number: int) -> list[Form]:
        """In a generation that may be wrong."""
        self.find(group, number)
        return [self._ask_group(g.HeartbeatRequest(**self._member(group, member, shift)), number)]

    def leave(self, group: int, member: int, number: int) -> list[Form]:
        """A member that may have left before."""
        self.find(group, number)
        member_id, _ = self.members.get((f"g{group}", member), ("none", -1))
        leaving = g.LeavingMember(member_id=member_id)
        return [self._ask_group(g.LeaveGroupRequest(group_id=f"g{group}", members=(leaving,)), number)]

    def commit(
        self, group: int, member: int, shift: int, topic: int, partition: int, offset: int, number: int
    ) -> list[Form]:
        """As a member, or by hand."""
        self.find(group, number)
        version = self._version("OffsetCommit", number)
        item = g.CommitPartition(
            topic=TOPICS[topic],
            partition=partition,
            offset=offset,
            leader_epoch=0 if version >= 6 else -1,
            metadata="m" * (number % 3),
        )
        return [
            self._ask_group(g.OffsetCommitRequest(**self._member(group, member, shift), partitions=(item,)), number)
        ]

    def committed(self, group: int, topic: int, number: int) -> list[Form]:
        """What was committed for two partitions."""
        self.find(group, number)
        items = tuple(m.PartitionName(topic=TOPICS[topic], partition=each) for each in (0, 1))
        return [self._ask_group(g.OffsetFetchRequest(group_id=f"g{group}", partitions=items), number)]


def drawn(name: str, *numbers: st.SearchStrategy[int] | int) -> st.SearchStrategy[Operation]:
    """Operations of one kind; an integer n stands for 0 to n-1. The last number draws the version and details."""
    parts = [st.integers(0, each - 1) if isinstance(each, int) else each for each in numbers]
    return st.tuples(*parts, st.integers(0, 59)).map(lambda given: Operation(name, given))


def mostly(usual: int, *others: int) -> st.SearchStrategy[int]:
    """The usual value in most cases."""
    return st.sampled_from((usual,) * (3 * len(others)) + others)


TOPIC = st.sampled_from((0, 0, 0, 1, 1, 2, 3))
PARTITION = st.sampled_from((0, 0, 0, 1, 7))
OFFSET = st.sampled_from((0, 0, 1, 2, 3, 5, 8, 1000, -1))
PRODUCE = drawn(
    "produce",
    TOPIC,
    PARTITION,
    st.sampled_from((0, 0, 1, 2)),
    st.sampled_from((0, 0, 0, -1, -2, 1)),
    st.sampled_from((0, 0, 0, 0, -1, 1)),
    mostly(-1, 0, 1, 2),
    mostly(1, 0, 2, 3),
)
OPERATIONS = st.one_of(
    PRODUCE,
    PRODUCE,
    PRODUCE,
    PRODUCE,
    drawn("init", 2),
    drawn("create", 4, st.sampled_from((1, 2, 0, -2)), st.sampled_from((1, 3, 0, 4)), 4),
    drawn("delete", st.sampled_from((0, 1, 1, 2, 2, 3))),
    drawn("fetch", TOPIC, PARTITION, OFFSET, mostly(-1, 0, 5), mostly(-1, 0, 5)),
    drawn("fetch", TOPIC, PARTITION, OFFSET, mostly(-1, 0, 5), mostly(-1, 0, 5)),
    drawn("list_offsets", TOPIC, PARTITION, st.sampled_from((-1, -2, -3, 0, 20, 70)), mostly(-1, 0, 5)),
    drawn("epoch_end", TOPIC, PARTITION, st.sampled_from((0, 0, 1, -1)), mostly(-1, 0, 5)),
    drawn("delete_records", TOPIC, PARTITION, OFFSET),
    drawn("join", 2, st.integers(1, 7)),
    drawn("heartbeat", 2, 3, mostly(0, -1, 1)),
    drawn("leave", 2, 3),
    drawn("commit", 2, 4, mostly(0, -1, 1), TOPIC, PARTITION, OFFSET),
    drawn("committed", 2, TOPIC),
)
FIRST = [Operation("create", (0, 2, 3, 0, 0)), Operation("create", (1, 1, 1, 1, 1)), Operation("init", (0, 0))]


def played(kind: type[Door], operations: list[Operation], key: int) -> tuple[list[Any], dict[str, bytes]]:
    """Return the answers and the logs of one door."""
    with SimWorld(f"doors {key}") as sim:
        play = Play(kind(cluster_for(sim)))
        for operation in (*FIRST, *operations):
            play.play(operation)
        return play.answers, play.door.logs()


def check(operations: list[Operation], key: int = 0) -> list[Any]:
    """Play on both doors and compare; return the answers."""
    rpc_answers, rpc_logs = played(RpcDoor, operations, key)
    kafka_answers, kafka_logs = played(KafkaDoor, operations, key)
    for (operation, rpc), (_, kafka) in zip(rpc_answers, kafka_answers, strict=True):
        assert rpc == kafka, f"{operation}: /rpc and Kafka frames disagree"
    assert rpc_logs.keys() == kafka_logs.keys()
    for name, data in rpc_logs.items():
        assert data == kafka_logs[name], f"{name} differs"
    return rpc_answers


def codes_of(answers: list[Any]) -> Counter[tuple[str, int]]:
    """Count the error codes of all answers by operation."""
    codes: Counter[tuple[str, int]] = Counter()
    for operation, forms in answers:
        for whole, rows in (form for form in forms if isinstance(form, tuple)):
            codes.update([(operation.name, whole)] if whole else [])
            codes.update((operation.name, row["error_code"]) for row in rows.values())
    return codes


@settings(max_examples=8, phases=PHASES)
@given(st.lists(OPERATIONS, min_size=20, max_size=40))
def test_both_doors_agree(operations: list[Operation]):
    """The same examples in every run."""
    note(f"operations: {operations}")
    check(operations)


@seed(FRESH)
@settings(max_examples=6, database=None, phases=PHASES)
@given(st.lists(OPERATIONS, min_size=20, max_size=40))
def test_both_doors_agree_under_a_fresh_seed(operations: list[Operation]):
    """Other examples in every run."""
    note(f"again: MINIKAFKA_DOORS_SEED={FRESH} python -m pytest tests/sim/test_both_doors.py -k fresh")
    note(f"operations: {operations}")
    check(operations, FRESH)


SCRIPT = [
    Operation("produce", (0, 0, 2, 0, 0, -1, 1, 0)),
    *(Operation("produce", (0, 0, 0, 0, 0, -1, 1, number)) for number in range(11)),
    Operation("produce", (0, 0, 0, -1, 0, -1, 1, 8)),
    Operation("produce", (0, 0, 0, 1, 0, 1, 1, 1)),
    Operation("produce", (0, 0, 0, 0, 0, -1, 2, 2)),
    Operation("produce", (0, 1, 2, 0, 0, 0, 1, 3)),
    Operation("produce", (0, 1, 2, 0, 0, 2, 1, 4)),
    Operation("produce", (0, 0, 2, 0, 0, -1, 1, 9)),
    Operation("produce", (2, 0, 2, 0, 0, 2, 1, 0)),
    *(Operation("fetch", (0, 0, offset, -1, -1, number)) for offset, number in ((0, 0), (3, 7), (5, 14), (1000, 1))),
    Operation("fetch", (0, 0, 0, 5, -1, 0)),
    *(Operation("list_offsets", (0, 0, each, -1, 0)) for each in (-1, -2, -3, 5)),
    Operation("epoch_end", (0, 0, 0, -1, 0)),
    Operation("delete_records", (0, 0, 5, 0)),
    Operation("delete_records", (0, 0, 1000, 1)),
    Operation("fetch", (0, 0, 0, -1, -1, 2)),
    Operation("join", (0, 7, 0)),
    *(Operation("heartbeat", (0, member, 0, member)) for member in range(3)),
    Operation("heartbeat", (0, 0, -1, 0)),
    Operation("commit", (0, 0, 0, 0, 0, 5, 5)),
    Operation("commit", (0, 0, -1, 0, 0, 5, 2)),
    Operation("committed", (0, 0, 0)),
    Operation("join", (0, 3, 1)),
    Operation("leave", (0, 0, 0)),
    Operation("leave", (0, 0, 4)),
    Operation("delete", (0, 1)),
    Operation("fetch", (0, 0, 0, -1, -1, 0)),
]
EXPECTED = {
    *(
        (name, 0)
        for name in "produce fetch list_offsets epoch_end delete_records join heartbeat commit committed".split()
    ),
    *(("leave", 0), ("delete", 0), ("create", 0), ("init", 0)),
    ("produce", 2),
    ("produce", 6),
    ("produce", 21),
    ("produce", 45),
    ("produce", 100),
    ("fetch", 1),
    ("fetch", 75),
    ("fetch", 100),
    ("delete_records", 1),
    ("join", 79),
    ("heartbeat", 22),
    ("commit", 22),
    ("leave", 25),
}


def test_a_script_reaches_successes_and_failures_of_every_api():
    """Both doors agree on each, and what the property compares is not only unknown topics."""
    answers = check(SCRIPT)
    assert codes_of(answers).keys() >= EXPECTED


def wrong_offset(response: Any, exchange: Any) -> bytes | None:
    """A translator that is off by one."""
    off = tuple(structs.replace(each, base_offset=each.base_offset + 1) for each in response.partitions)
    usual = produce.PRODUCE.usual
    assert usual is not None
    return usual.response(structs.replace(response, partitions=off), exchange)


def without_acks(message: Any, exchange: Any) -> Any:
    """A translator that loses requests that nobody hears of."""
    request = produce.PRODUCE.request(message, exchange)
    return request if request.acks else structs.replace(request, partitions=())


def test_a_wrong_answer_is_found(monkeypatch):
    """A base offset that is off by one."""
    usual = produce.PRODUCE.usual
    assert usual is not None
    off_by_one = dataclasses.replace(usual, response=wrong_offset)
    monkeypatch.setitem(OFFERS, 0, dataclasses.replace(produce.PRODUCE, usual=off_by_one))
    with pytest.raises(AssertionError, match=r"produce.*disagree"):
        check(SCRIPT[:2])


def test_a_lost_write_is_found(monkeypatch):
    """A request with acks=0 has no answer: only the logs differ."""
    monkeypatch.setitem(OFFERS, 0, dataclasses.replace(produce.PRODUCE, request=without_acks))
    with pytest.raises(AssertionError, match="differs"):
        check([Operation("produce", (0, 0, 2, 0, 0, 0, 1, 3))])
