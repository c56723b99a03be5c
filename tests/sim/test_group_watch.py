"""The watch of consumer groups judges answers of coordinators, what their log holds, and who has taken them over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.groups.group import State
from minikafka.groups.offsets import CommittedOffsets
from minikafka.groups.protocol import Assignment
from minikafka.groups.records import (
    OFFSETS_TOPIC,
    CommittedOffset,
    GroupRecord,
    GroupsRecord,
    GroupValue,
    MemberRecord,
    OffsetRecord,
    packed,
)
from minikafka.sim.group_watch import DIFFERS, NO_DEADLINE, OFFSETS_DIFFER, GroupWatch, look_at_loaded
from minikafka.sim.network import DELIVERED
from minikafka.sim.verdicts import Message
from minikafka.sim.world import Event
from minikafka.types import TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire.batch import RecordBatch
from minikafka.wire.codec import encode_request, encode_response
from minikafka.wire.messages import PartitionName
from minikafka.wire.records import Record, build_batch, decode_batch
from tests.sim.test_invariants import Told
from tests.sim.test_transaction_invariants import Log

NAME = TopicPartition(OFFSETS_TOPIC, 0)
READ = TopicPartition("orders", 0)
DEALT = Assignment(partitions=(READ,)).packed()


def offset_record(offset: int) -> OffsetRecord:
    value = CommittedOffset(offset=offset, timestamp_ms=1)
    return OffsetRecord(group="g", partition=READ, value=value)


def group_value(generation: int, *members: str) -> GroupValue:
    """A generation in which each member has all partitions."""
    return GroupValue(
        protocol_type="consumer",
        generation=generation,
        protocol="range",
        leader=members[0] if members else None,
        state_timestamp_ms=1,
        members=tuple(member_record(each) for each in members),
    )


def member_record(name: str) -> MemberRecord:
    return MemberRecord(
        member_id=name,
        instance_id=None,
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=1000,
        session_timeout_ms=10_000,
        subscription=b"",
        assignment=DEALT,
    )


def member(*, deadline: float = 10.0) -> Any:
    return SimpleNamespace(
        member_id="m",
        instance_id=None,
        assignment=DEALT,
        join_ticket=None,
        sync_ticket=None,
        session_timeout_ms=10_000,
        deadline=deadline,
    )


def shard(generation: int, *, deadline: float = 10.0, wakes_at: float = 10.0, offset: int | None = None) -> Any:
    """A coordinator that has loaded one group with the member m, and an offset of it."""
    group = SimpleNamespace(
        state=State.STABLE,
        generation=generation,
        leader="m",
        protocol="range",
        static={},
        members={"m": member(deadline=deadline)},
    )
    offsets = CommittedOffsets()
    if offset is not None:
        offsets.apply(offset_record(offset))
    coordinator = SimpleNamespace(
        _groups={"g": group}, _offsets=offsets, committed_offsets=offsets.of, next_deadline=lambda: wakes_at
    )
    return SimpleNamespace(
        coordinator=coordinator,
        is_loaded=True,
        partition=SimpleNamespace(partition=NAME),
        leader=SimpleNamespace(epoch=1),
    )


class Talk:
    """One group, whose coordinator is broker 1 of two."""

    def __init__(self) -> None:
        self.told = Told()
        self.shards: list[Any] = []
        self.sim = SimpleNamespace(
            observers=[],
            loop=SimpleNamespace(after_step=[], time=lambda: 0.0),
            network=SimpleNamespace(observers=[], answered=[]),
        )
        state = SimpleNamespace(leader=1, leader_epoch=1)
        topic = SimpleNamespace(partitions=(state,))
        image = SimpleNamespace(topics={OFFSETS_TOPIC: topic}, partition=lambda _: state)
        broker = SimpleNamespace(groups=SimpleNamespace(shards=self.shards))
        cluster = SimpleNamespace(
            nodes=(1, 2), sim=self.sim, image=lambda: image, leader_of=lambda _: 1, present=lambda: {1: broker}
        )
        watch = SimpleNamespace(report=self.told, were_rotten=(), forgiven=(), also=lambda _: None)
        self.watch = GroupWatch(cast("Any", cluster), cast("Any", watch))

    def send(self, call: int, request: Any, broker: int = 1) -> None:
        self._pass(Message(call, "request", "c1", f"n{broker}", api_of(request), b"".join(encode_request(request))))

    def answer(self, call: int, response: Any, broker: int = 1) -> None:
        message = Message(call, "answer", f"n{broker}", "c1", api_of(response), b"".join(encode_response(response)))
        self._pass(message)
        for observer in self.sim.network.answered:
            observer(message)

    def _pass(self, message: Message) -> None:
        for observer in self.sim.network.observers:
            observer(message, DELIVERED)

    def recorded(self, *records: GroupsRecord) -> None:
        """The log's next batch is committed."""
        batch = batch_of(*records)
        self.watch.batch_committed(batch, list(decode_batch(batch)))

    def commit(self, call: int, offset: int) -> None:
        """A commit is requested, and answered as successful."""
        asked = g.CommitPartition(topic="orders", partition=0, offset=offset)
        self.send(call, g.OffsetCommitRequest(group_id="g", partitions=(asked,)))

    def granted(self, call: int) -> None:
        self.answer(call, g.OffsetCommitResponse(partitions=(g.PartitionOutcome(topic="orders", partition=0),)))

    def found(self, call: int, offset: int, broker: int) -> None:
        asked = PartitionName(topic="orders", partition=0)
        self.send(call, g.OffsetFetchRequest(group_id="g", partitions=(asked,)), broker)
        answer = g.FetchedOffset(topic="orders", partition=0, offset=offset)
        self.answer(call, g.OffsetFetchResponse(partitions=(answer,)), broker)

    def sync(self, call: int, generation: int, name: str) -> None:
        self.send(call, g.SyncGroupRequest(group_id="g", generation_id=generation, member_id=name))

    def take_over(self, loaded: Any) -> None:
        """Broker 1 has loaded its log."""
        self.shards[:] = [loaded]
        event = Event(0.0, "n1", 1, "group_coordinator_loaded", {"groups": 1}, "")
        for observer in self.sim.observers:
            observer(event)
        for after in self.sim.loop.after_step:
            after()


def api_of(message: Any) -> str:
    return type(message).__name__.removesuffix("Request").removesuffix("Response")


def batch_of(*records: GroupsRecord) -> RecordBatch:
    rows = [Record(number, 1, 0, *packed(each)) for number, each in enumerate(records)]
    return RecordBatch.of(build_batch(rows))


def test_an_acknowledged_commit_must_be_committed() -> None:
    """S34: before the answer, in the log that clients of the next coordinator depend on."""
    talk = Talk()
    talk.commit(1, 5)
    talk.recorded(offset_record(5))
    talk.granted(1)
    assert talk.told.names == []
    talk.commit(2, 6)
    talk.granted(2)
    assert talk.told.names == ["commit-unrecorded"]


def test_an_offset_that_a_member_receives_is_committed() -> None:
    """S34: a member that reads on from a pending commit has skipped records if the next coordinator does not know it."""
    talk = Talk()
    talk.commit(1, 5)
    talk.recorded(offset_record(5))
    talk.commit(2, 6)
    talk.found(3, 5, broker=1)
    talk.found(4, -1, broker=2)
    assert talk.told.names == []
    talk.found(5, 6, broker=1)
    assert talk.told.names == ["offset-unrecorded"]


def test_an_acknowledged_commit_is_found_at_the_coordinator() -> None:
    """Another broker may answer with what it loaded before it lost the partition."""
    talk = Talk()
    talk.commit(0, 3)
    talk.recorded(offset_record(3))
    talk.commit(1, 5)
    talk.recorded(offset_record(5))
    talk.granted(1)
    talk.found(2, 3, broker=2)
    talk.found(3, 5, broker=1)
    assert talk.told.names == []
    talk.found(4, 3, broker=1)
    assert talk.told.names == ["commit-lost"]


def test_an_assignment_of_an_older_generation_is_given_to_those_only_that_had_asked_before() -> None:
    """S33: what was requested before the next generation was in force may be answered late."""
    talk = Talk()
    given = g.SyncGroupResponse(assignment=DEALT)
    for generation in (1, 2):
        talk.sync(generation, generation, "m")
    for generation in (1, 2):
        talk.recorded(GroupRecord(group="g", value=group_value(generation, "m")))
        talk.answer(generation, given)
    assert talk.told.names == []
    talk.sync(3, 1, "m")
    talk.answer(3, given)
    assert talk.told.names == ["zombie-sync"]


def test_each_take_over_is_compared_with_the_newest_record() -> None:
    """Also the second one on the same broker."""
    talk = Talk()
    talk.recorded(GroupRecord(group="g", value=group_value(1, "m")))
    talk.recorded(GroupRecord(group="g", value=group_value(2, "m")))
    talk.take_over(shard(2))
    assert talk.told.names == []
    talk.take_over(shard(1))
    assert talk.told.names == [DIFFERS]


@pytest.mark.parametrize(
    ("loaded", "names"), [(4, []), (3, [OFFSETS_DIFFER]), (5, [OFFSETS_DIFFER]), (None, [OFFSETS_DIFFER])]
)
def test_a_coordinator_loads_the_offsets_that_are_committed(loaded: int | None, names: list[str]) -> None:
    """S34: neither less nor more, whether a member looks them up or not."""
    talk = Talk()
    for call, offset in ((1, 3), (2, 4)):
        talk.commit(call, offset)
        talk.recorded(offset_record(offset))
    talk.recorded(GroupRecord(group="g", value=group_value(1, "m")))
    talk.take_over(shard(1, offset=loaded))
    assert talk.told.names == names


def test_offsets_that_count_by_the_markers_of_transactions_are_not_compared() -> None:
    """KIP-98: they are judged with the loops that committed them (check/transactions.py)."""
    talk = Talk()
    batch = RecordBatch.of(build_batch([Record(0, 1, 0, *packed(offset_record(3)))], transactional=True, producer_id=1))
    talk.watch.batch_committed(batch, list(decode_batch(batch)))
    talk.take_over(shard(0, offset=3))
    assert OFFSETS_DIFFER not in talk.told.names


def test_a_watermark_within_a_batch_hides_no_record_of_it() -> None:
    """The batch is read as a whole when the watermark has passed its end."""
    talk = Talk()
    log = Log(bytes(batch_of(offset_record(3), offset_record(4)).data))
    for offset in (3, 4):
        talk.commit(offset, offset)
    for high_watermark in (1, 2):
        partition = SimpleNamespace(log=log, high_watermark=high_watermark)
        talk.watch.look(cast("Any", SimpleNamespace(name=NAME, key=(NAME, "id"), partition=partition)), talk.told)
    talk.granted(3)
    talk.granted(4)
    assert talk.told.names == []


@pytest.mark.parametrize(
    ("loaded", "names"),
    [
        (shard(1), []),
        (shard(2), [DIFFERS]),
        (shard(1, deadline=10.5), [NO_DEADLINE]),
        (shard(1, wakes_at=10.5), [NO_DEADLINE]),
    ],
)
def test_a_loaded_member_expires_in_time(loaded: Any, names: list[str]) -> None:
    """Within its session timeout, and the coordinator wakes up for it."""
    told = Told()
    look_at_loaded(loaded, {"g": group_value(1, "m")}, 0.0, told)
    assert told.names == names
