"""Groups of the consumer protocol (KIP-848) with an unmodified client, librdkafka, against three brokers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from minikafka import Consumer as NativeConsumer
from minikafka import LocalCluster
from minikafka.groups.consumer.heartbeat import Heartbeat
from tests.e2e.test_processes import run

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0
PARTITIONS = 6
HEARTBEAT_MS = 200


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {"group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS), "group.consumer.session.timeout.ms": "6000"}
    with LocalCluster(brokers=3, config=config) as made:
        yield made


@contextmanager
def member(cluster: LocalCluster, group: str, **config: object) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **config,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def filled(cluster: LocalCluster, topic: str, count: int) -> set[bytes]:
    cluster.sync.create_topic(topic, partitions=PARTITIONS, config={"min.insync.replicas": "2"})
    return sent(cluster, topic, range(count))


def sent(cluster: LocalCluster, topic: str, numbers: range) -> set[bytes]:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    values = {b"%d" % number for number in numbers}
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
    return values


def until(what: str, is_met: Callable[[], bool], *members: Consumer) -> list[bytes]:
    """Poll the members until it is so; the values that they read."""
    read: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while not is_met():
        assert time.monotonic() < deadline, f"in vain: {what}"
        for each in members:
            message = each.poll(0.05)
            if message is not None and message.error() is None:
                read.append(bytes(message.value() or b""))
    return read


def owned(*members: Consumer) -> list[int]:
    return sorted(each.partition for one in members for each in one.assignment())


def read_all(wanted: set[bytes], *members: Consumer) -> list[bytes]:
    read: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while not wanted <= set(read):
        assert time.monotonic() < deadline, f"missing: {sorted(wanted - set(read))[:5]}"
        for each in members:
            message = each.poll(0.05)
            if message is not None and message.error() is None:
                read.append(bytes(message.value() or b""))
    return read


def test_members_share_partitions_and_go_on_from_what_was_committed(cluster):
    """One member reads all; a second gets half without a barrier; the next life of the group goes on behind it."""
    wanted = filled(cluster, "shared", 60)
    with member(cluster, "g1") as first:
        first.subscribe(["shared"])
        assert sorted(read_all(wanted, first)) == sorted(wanted)
        assert owned(first) == list(range(PARTITIONS))
        with member(cluster, "g1") as second:
            second.subscribe(["shared"])
            until("both own three", lambda: len(owned(first)) == len(owned(second)) == 3, first, second)
            assert owned(first, second) == list(range(PARTITIONS))
            more = sent(cluster, "shared", range(60, 120))
            assert sorted(read_all(more, first, second)) == sorted(more)
        until("the first owns all again", lambda: len(owned(first)) == PARTITIONS, first)
    with member(cluster, "g1") as third:
        third.subscribe(["shared"])
        last = sent(cluster, "shared", range(120, 126))
        assert sorted(read_all(last, third)) == sorted(last)


def test_tools_see_the_type_the_state_and_the_members(cluster):
    """ListGroups and ConsumerGroupDescribe, as kafka-consumer-groups shows them; a group with members is not deleted."""
    filled(cluster, "seen", 6)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    with member(cluster, "g2", **{"client.id": "watched"}) as one:
        one.subscribe(["seen"])
        until("it owns all", lambda: len(owned(one)) == PARTITIONS, one)
        listed = {each.group_id: each for each in admin.list_consumer_groups().result().valid}
        assert listed["g2"].type is ConsumerGroupType.CONSUMER
        (described,) = (each.result() for each in admin.describe_consumer_groups(["g2"]).values())
        assert (described.state, described.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
        (seen,) = described.members
        assert seen.client_id == "watched"
        assert sorted(each.partition for each in seen.assignment.topic_partitions) == list(range(PARTITIONS))
        shown = run("groups", "members", "g2", "-b", cluster.bootstrap)
        assert "watched" in shown
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            next(iter(admin.delete_consumer_groups(["g2"]).values())).result()
    next(iter(admin.delete_consumer_groups(["g2"]).values())).result()
    assert "g2" not in {each.group_id for each in admin.list_consumer_groups().result().valid}


def test_a_group_changes_its_protocol_while_its_members_read(cluster):
    """Classic, mixed, consumer, mixed, classic (librdkafka): partitions move, and each record is read once."""
    wanted = filled(cluster, "moving", 30)
    shared = {"partition.assignment.strategy": "cooperative-sticky", "group.protocol": "classic"}
    read: list[bytes] = []
    with member(cluster, "g3", **shared) as old:
        old.subscribe(["moving"])
        read += read_all(wanted, old)
        old.commit(asynchronous=False)
        with member(cluster, "g3") as new:
            new.subscribe(["moving"])
            read += until("both own three", lambda: len(owned(old)) == len(owned(new)) == 3, old, new)
            assert owned(old, new) == list(range(PARTITIONS))
            more = sent(cluster, "moving", range(30, 60))
            read += read_all(more, old, new)
        read += until("the classic member has all again", lambda: len(owned(old)) == PARTITIONS, old)
        last = sent(cluster, "moving", range(60, 90))
        read += read_all(last, old)
    assert sorted(read) == sorted(wanted | more | last)


def test_a_member_survives_the_loss_of_its_coordinator(cluster):
    """The next leader of the group's partition has its epochs from the log: nothing is read twice, nothing is lost."""
    wanted = filled(cluster, "surviving", 60)
    with member(cluster, "g4") as one:
        one.subscribe(["surviving"])
        assert sorted(read_all(wanted, one)) == sorted(wanted)
        one.commit(asynchronous=False)
        node = coordinator_of(cluster, "g4")
        cluster.kill(node)
        more = sent(cluster, "surviving", range(60, 120))
        assert sorted(read_all(more, one)) == sorted(more)
        assert owned(one) == list(range(PARTITIONS))
        cluster.restart(node)
    with member(cluster, "g4") as again:
        again.subscribe(["surviving"])
        until("it owns all", lambda: len(owned(again)) == PARTITIONS, again)
        offsets = again.committed([TopicPartition("surviving", number) for number in range(PARTITIONS)], PATIENCE_S)
        assert [each.offset for each in offsets] == [20] * PARTITIONS


def test_librdkafka_and_the_native_consumer_share_a_group(cluster):
    """A mixed group: partitions move between the two clients, and each record is read once."""
    wanted = filled(cluster, "mixed", 60)
    with member(cluster, "g5", **{"enable.auto.commit": True, "auto.commit.interval.ms": 100}) as one:
        one.subscribe(["mixed"])
        read = read_all(wanted, one)

        async def share() -> list[bytes]:
            found: list[bytes] = []
            async with NativeConsumer(
                "mixed",
                bootstrap_servers=cluster.bootstrap,
                group_id="g5",
                group_protocol="consumer",
                auto_offset_reset="earliest",
            ) as native:
                await polled(one, native, found, read, lambda: len(owned(one)) == len(native.assignment()) == 3)
                more = await asyncio.to_thread(sent, cluster, "mixed", range(60, 120))
                await polled(one, native, found, read, lambda: more <= {*read, *found})
                mine = sorted(each.partition for each in native.assignment())
                assert sorted((*owned(one), *mine)) == list(range(PARTITIONS))
            return found

        found = asyncio.run(share())
        until("librdkafka has all again", lambda: len(owned(one)) == PARTITIONS, one)
    assert sorted(read + found) == sorted({b"%d" % number for number in range(120)})
    assert found


async def polled(
    one: Consumer, native: NativeConsumer, found: list[bytes], read: list[bytes], is_met: Callable[[], bool]
) -> None:
    """Poll both clients until it is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_met():
        assert time.monotonic() < deadline, "in vain"
        for records in (await native.getmany(timeout_ms=50)).values():
            found += [each.value or b"" for each in records]
        message = await asyncio.to_thread(one.poll, 0.05)
        if message is not None and message.error() is None:
            read.append(bytes(message.value() or b""))


def test_the_command_line_reads_as_a_member(cluster):
    """`consume --group-protocol consumer`: reads all, commits, and the group is one of the consumer protocol."""
    wanted = filled(cluster, "printed", 12)
    arguments = ("consume", "printed", "-b", cluster.bootstrap, "--group", "g6", "--group-protocol", "consumer")
    printed = run(*arguments, "--assignor", "uniform", "--from-beginning", "--max-records", "12")
    assert sorted(printed.split()) == sorted(each.decode() for each in wanted)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    listed = {each.group_id: each for each in admin.list_consumer_groups().result().valid}
    assert (listed["g6"].type, listed["g6"].state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.EMPTY)


def coordinator_of(cluster: LocalCluster, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    return int(next(iter(admin.describe_consumer_groups([group]).values())).result().coordinator.id)


def test_static_members_come_back_to_their_partitions(cluster):
    """A static member that leaves for a restart keeps its partitions: the other member gets none of them."""
    filled(cluster, "static", 12)
    with member(cluster, "g5", **{"group.instance.id": "a"}) as first:
        with member(cluster, "g5", **{"group.instance.id": "b"}) as second:
            first.subscribe(["static"])
            second.subscribe(["static"])
            until("both own three", lambda: len(owned(first)) == len(owned(second)) == 3, first, second)
            of_second = owned(second)
        with member(cluster, "g5", **{"group.instance.id": "b"}) as back:
            back.subscribe(["static"])
            until("it is back", lambda: owned(back) == of_second, first, back)
            assert len(owned(first)) == 3


def test_a_regular_expression_is_resolved_by_the_coordinator(cluster: LocalCluster):
    """librdkafka sends what begins with ^ as it was given; a topic that is created later joins without a new subscription."""
    wanted = filled(cluster, "rx-tea", 20)
    with member(cluster, "by-regex") as one:
        one.subscribe(["^rx-.*"])
        read = read_all(wanted, one)
        later = filled(cluster, "rx-juice", 20)
        read += read_all(later, one)
        assert {each.topic for each in one.assignment()} == {"rx-tea", "rx-juice"}
    assert len(read) == 40


def test_members_obey_the_interval_that_their_group_gets_as_it_grows(monkeypatch: pytest.MonkeyPatch):
    """Two heartbeats a second: one member has 500 ms, four have two seconds each, and the one that is left 500 ms again.

    The member of another group, which never grows, is the clock: a loaded machine slows both groups down.
    """
    beats: Counter[str] = Counter()
    intervals: dict[str, int] = {}
    answer = Heartbeat.answer

    def watched(self: Heartbeat, draft, request):
        response = answer(self, draft, request)
        beats[request.client_id] += 1
        intervals[request.client_id] = response.heartbeat_interval_ms
        return response

    monkeypatch.setattr(Heartbeat, "answer", watched)
    config = {"mk.group.consumer.heartbeats.per.second": "2", "group.consumer.heartbeat.interval.ms": "40000"}
    names = ["a", "b", "c", "d"]
    with LocalCluster(brokers=1, config=config) as cluster, ExitStack() as stack, ExitStack() as leavers:
        cluster.sync.create_topic("paced", partitions=4)

        def joined(group: str, name: str, until_it_leaves: ExitStack) -> Consumer:
            made = until_it_leaves.enter_context(member(cluster, group, **{"client.id": name}))
            made.subscribe(["paced"])
            return made

        def measured(count: int) -> Counter[str]:
            """Heartbeats while the clock has had so many."""
            before = beats.copy()
            until("the clock", lambda: beats["clock"] >= before["clock"] + count, *members)
            return beats - before

        members = [joined("still", "clock", stack), joined("growing", "a", stack)]
        until("both own all", lambda: all(len(owned(each)) == 4 for each in members), *members)
        assert (intervals["clock"], intervals["a"]) == (500, 500)
        assert measured(6)["a"] >= 3, "its configured interval is 40 s"
        members += [joined("growing", name, leavers) for name in names[1:]]
        until("each owns one", lambda: all(len(owned(each)) == 1 for each in members[1:]), *members)
        until("all have learned it", lambda: {intervals.get(name) for name in names} == {2000}, *members)
        measured(4)
        found = measured(12)
        assert all(0 < found[name] <= 6 for name in names), found
        del members[2:]
        leavers.close()
        until("the first owns all again", lambda: len(owned(members[1])) == 4, *members)
        assert intervals["a"] == 500
        assert measured(6)["a"] >= 3
