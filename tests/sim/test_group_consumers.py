"""Consumers in groups on a simulated cluster: shared, rebalanced, committed, carried over (S29 to S36)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from minikafka.client.consumer import Consumer
from minikafka.client.group_member import Member
from minikafka.client.group_offsets import GroupOffsets
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import CommitFailed, ConsumerRebalanceListener, WakeUp
from minikafka.coordination.rule import partition_of
from minikafka.errors import InconsistentGroupProtocol, InvalidRequest, RequestTimedOut
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.sim.cluster import SimCluster
from minikafka.sim.verdicts import Deliver, Message, matching
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import MemberAssignment
from tests.sim.cluster_kit import Client, facts_of, simulated_orders
from tests.sim.group_kit import PARTITIONS, Watch, Worker, fill, read_all, shared


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """Three brokers and a topic of six partitions."""
    with simulated_orders(
        offsets_topic_num_partitions="4", group_initial_rebalance_delay_ms="500", partitions=PARTITIONS
    ) as cluster:
        yield cluster


def test_a_group_shares_the_partitions_and_each_group_reads_all(cluster: SimCluster):
    """S29: each partition has one consumer of a group; a member more than partitions is idle; groups do not share."""
    workers = [Worker(cluster, f"c{number}") for number in range(7)]
    other = Worker(cluster, "other", group="h")
    cluster.until(lambda: shared(workers, PARTITIONS), 60.0, "the group to share")
    assert sorted(len(each.numbers) for each in workers) == [0, 1, 1, 1, 1, 1, 1]
    values = fill(Client(cluster), 60)
    cluster.until(lambda: read_all(workers, values) and read_all([other], values), 60.0, "both groups to read")
    for each in (*workers, other):
        each.end()


def test_without_faults_each_record_is_read_once_however_often_the_group_changes(cluster: SimCluster):
    """Issue 6: read, work, commit; members come and go in good order while records flow."""
    client = Client(cluster)
    workers = [Worker(cluster, "c0", work_s=0.3)]
    values = fill(client, 60)
    for number in range(1, 4):
        cluster.run_for(2.0)
        workers.append(Worker(cluster, f"c{number}", work_s=0.3))
        values += fill(client, 60, first=60 * number)
    for each in workers[:2]:
        cluster.run_for(2.0)
        each.end()
        values += fill(client, 60, first=1000 + len(values))
    cluster.until(lambda: read_all(workers, values), 120.0, "all to be read")
    seen = sum((each.values for each in workers), Counter())
    assert {value: count for value, count in seen.items() if count != 1} == {}
    assert [each.refused for each in workers] == [0, 0, 0, 0]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_member_that_dies_is_replaced_after_its_session(cluster: SimCluster, strategy: str):
    """S31: nothing that was committed is read again, nothing is skipped."""
    workers = [Worker(cluster, f"c{n}", settings={"partition_assignment_strategy": strategy}) for n in range(3)]
    client = Client(cluster)
    values = fill(client, 60)
    cluster.until(lambda: read_all(workers, values) and shared(workers, PARTITIONS), 60.0, "all to be read")
    cluster.run_for(1.0)
    workers[0].kill()
    values += fill(client, 60, first=100)
    cluster.until(lambda: shared(workers[1:], PARTITIONS), 60.0, "the others to take over")
    cluster.until(lambda: read_all(workers, values), 60.0, "all to be read")
    seen = sum((each.values for each in workers), Counter())
    assert max(seen[value] for value in values[:60]) == 1, "it was committed before the member died"


def test_cooperative_members_keep_what_they_keep(cluster: SimCluster):
    """KIP-429: a newcomer takes its share, nobody else loses or stops anything."""
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    workers = [Worker(cluster, f"c{number}", settings=settings) for number in range(2)]
    cluster.until(lambda: shared(workers, PARTITIONS), 60.0, "two to share")
    for each in workers:
        each.watch.told.clear()
    before = [each.numbers for each in workers]
    workers.append(Worker(cluster, "c2", settings=settings))
    cluster.until(lambda: shared(workers, PARTITIONS) and len(workers[2].numbers) == 2, 60.0, "three to share")
    for each, had in zip(workers, before, strict=False):
        revoked = [part.partition for kind, parts in each.watch.told for part in parts if kind == "revoked"]
        assert len(revoked) == 1
        assert sorted(each.numbers + revoked) == had


def test_a_leader_that_is_just_being_told_of_its_own_topics_waits_for_the_others(cluster: SimCluster, monkeypatch):
    """S31: an answer to a question of before it knew of them has no partitions of theirs; it dealt none, and once more."""
    counts = Member._counts

    async def just_asked(self: Member, *given: Any) -> dict[str, int]:
        self._metadata.refresh_soon()
        await asyncio.sleep(0.0001)
        return await counts(self, *given)

    monkeypatch.setattr(Member, "_counts", just_asked)
    cluster.create_topic("other", partitions=2)
    cluster.settle()
    first = Worker(cluster, "first")
    cluster.until(lambda: len(first.numbers) == PARTITIONS, 60.0, "the first to have all")
    second = Worker(cluster, "second", topics=("other",))
    cluster.until(lambda: len(second.numbers) == 2, 60.0, "the second to have its own")
    dealt = [sorted(map(len, each["members"].values())) for each in facts_of(cluster, "group_assigned")]
    assert dealt == [[PARTITIONS], [2, PARTITIONS]]
    for each in (first, second):
        each.end()


def test_an_eager_rebalance_takes_everything_first(cluster: SimCluster):
    """The listener is told before and after; records in work are committed before they go."""
    first = Worker(cluster, "c0")
    cluster.until(lambda: len(first.numbers) == PARTITIONS, 60.0, "it to have all")
    second = Worker(cluster, "c1")
    cluster.until(lambda: shared([first, second], PARTITIONS) and len(second.numbers) == 3, 60.0, "both to share")
    everything = [TopicPartition("orders", number) for number in range(PARTITIONS)]
    assert first.watch.told[0] == ("assigned", everything)
    assert first.watch.told[1] == ("revoked", everything)
    assert first.watch.told[2][0] == "assigned"


def test_offsets_survive_the_whole_group(cluster: SimCluster):
    """S34: auto-commit; who comes later goes on where the group was."""
    client = Client(cluster)
    values = fill(client, 60)
    first = Worker(cluster, "c0", commits=False, settings={"auto_commit_interval_ms": 1000})
    cluster.until(lambda: read_all([first], values), 60.0, "all to be read")
    first.end()
    more = fill(client, 12, first=500)
    second = Worker(cluster, "c1", commits=False)
    cluster.until(lambda: read_all([second], more), 60.0, "the rest to be read")
    assert sum(second.values.values()) == 12
    second.end()


def test_auto_commit_never_runs_ahead_of_the_work(cluster: SimCluster):
    """S34: what is committed is what was handed out before the last poll: a crash in mid-work reads it again."""
    values = fill(Client(cluster), 60)
    first = Worker(cluster, "c0", commits=False, work_s=3.0, settings={"auto_commit_interval_ms": 100})
    cluster.until(lambda: sum(first.values.values()) >= 20, 60.0, "some to be read")
    in_work = dict(first.values)
    first.kill()
    second = Worker(cluster, "c1", commits=False)
    cluster.until(lambda: read_all([first, second], values), 60.0, "all to be read")
    again = [value for value in in_work if second.values[value]]
    assert 1 <= len(again) <= 20, "what was in work is read again, and little more"


def test_a_member_that_works_too_long_leaves_and_comes_back(cluster: SimCluster):
    """max.poll.interval.ms: the others go on without it, its late commit is refused, nothing is skipped."""
    settings = {"max_poll_interval_ms": 5_000, "rebalance_timeout_ms": 3_000}
    slow, other = (Worker(cluster, name, settings=settings) for name in ("slow", "other"))
    cluster.until(lambda: shared([slow, other], PARTITIONS), 60.0, "both to share")
    values = fill(Client(cluster), 60)
    cluster.until(lambda: read_all([slow, other], values), 60.0, "all to be read")
    slow.work_s = 30.0
    values += fill(Client(cluster, "second"), 60, first=200)
    cluster.until(lambda: len(other.numbers) == PARTITIONS, 60.0, "the other to take over")
    cluster.until(lambda: slow.refused == 1, 60.0, "the late commit to be refused")
    slow.work_s = 0.0
    cluster.until(lambda: shared([slow, other], PARTITIONS) and len(slow.numbers) == 3, 60.0, "it to be back")
    assert read_all([slow, other], values)


def test_partitions_that_are_added_are_shared_too(cluster: SimCluster):
    """S31: the group's leader sees them with its next metadata and has everyone join again."""
    workers = [Worker(cluster, f"c{n}", settings={"metadata_max_age_ms": 2_000}) for n in range(2)]
    cluster.until(lambda: shared(workers, PARTITIONS), 60.0, "both to share")
    client = Client(cluster)
    client.run(client.admin.create_partitions({"orders": 9}))
    cluster.until(lambda: shared(workers, 9), 60.0, "nine to be shared")


def test_a_leader_sees_partitions_that_are_added_to_topics_of_others(cluster: SimCluster):
    """S31: the leader need not subscribe to the topic that has grown, nor can its other members assign the new ones."""
    cluster.create_topic("other", partitions=2)
    cluster.settle()
    settings = {"metadata_max_age_ms": 2_000}
    leader = Worker(cluster, "leader", settings=settings)
    cluster.until(lambda: len(leader.numbers) == PARTITIONS, 60.0, "the leader to have all of its topic")
    member = Worker(cluster, "member", topics=("other",), settings=settings)
    cluster.until(lambda: member.numbers == [0, 1], 60.0, "the member to have the other topic")
    client = Client(cluster)
    client.run(client.admin.create_partitions({"other": 4}))
    cluster.until(lambda: member.numbers == [0, 1, 2, 3], 60.0, "the member to have the new partitions, too")
    for each in (leader, member):
        each.end()


def test_a_topic_that_is_created_later_is_read_soon(cluster: SimCluster):
    """As Java's client, a leader requests the metadata of topics that do not exist again within seconds."""
    leader = Worker(cluster, "leader")
    cluster.until(lambda: len(leader.numbers) == PARTITIONS, 60.0, "the leader to have all of its topic")
    member = Worker(cluster, "member", topics=("later",))
    alone = Worker(cluster, "alone", group="alone", topics=("later",))
    cluster.run_for(20.0)
    cluster.create_topic("later", partitions=2)
    cluster.until(lambda: member.numbers == alone.numbers == [0, 1], 10.0, "both to have the new topic")
    client = Client(cluster)
    client.run(client.admin.delete_topics(["later"]))
    cluster.until(lambda: alone.numbers == [], 10.0, "the deleted topic to be given up")
    cluster.run_for(20.0)
    cluster.create_topic("later", partitions=2)
    cluster.until(lambda: alone.numbers == [0, 1], 10.0, "the topic to be read again")
    for each in (leader, member, alone):
        each.end()


def test_a_pattern_finds_topics_that_come_later(cluster: SimCluster):
    """S31: subscribe by pattern; internal topics match nothing."""
    worker = Worker(cluster, "c0", settings={"metadata_max_age_ms": 2_000})
    worker.end()
    config = ConsumerConfig(
        bootstrap_servers=cluster.bootstrap, group_id="p", auto_offset_reset="earliest", metadata_max_age_ms=2_000
    )

    world = cluster.sim.of("p")

    async def story() -> list[str]:
        consumer = Consumer(config, world)
        consumer.subscribe(pattern=".*(o.ders|_offsets)")
        await consumer.start()
        while len({each.topic for each in consumer.assignment()}) < 2:
            await consumer.getmany(timeout_ms=500)
        topics = sorted({each.topic for each in consumer.assignment()})
        await consumer.stop()
        return topics

    task = cluster.sim.spawn("p", story())
    cluster.run_for(5.0)
    cluster.create_topic("olders")
    cluster.until(task.done, 60.0, "both topics to be read")
    assert task.result() == ["olders", "orders"]


def test_a_static_member_comes_back_without_a_rebalance(cluster: SimCluster):
    """KIP-345: within its session nobody else is disturbed."""
    settings = {"group_instance_id": "i", "session_timeout_ms": 30_000}
    static = Worker(cluster, "s", settings=settings)
    other = Worker(cluster, "o")
    cluster.until(lambda: shared([static, other], PARTITIONS) and len(other.numbers) == 3, 60.0, "both to share")
    had = static.numbers
    other.watch.told.clear()
    static.kill()
    cluster.run_for(8.0)
    static.start()
    cluster.until(lambda: static.numbers == had, 60.0, "it to be back")
    assert other.watch.told == []


def test_members_outlive_the_coordinator_and_the_controller(cluster: SimCluster):
    """S34: brokers die one after the other; each record that was acknowledged is read, commits go on."""
    workers = [Worker(cluster, f"c{number}") for number in range(3)]
    client = Client(cluster)
    values = fill(client, 30)
    for round_ in range(3):
        coordinator = cluster.leader_of(TopicPartition(OFFSETS_TOPIC, partition_of("g", 4)))
        victim = coordinator if round_ % 2 == 0 else cluster.controller()
        cluster.crash(victim)
        more = values = values + fill(client, 30, first=100 * (round_ + 1))
        cluster.until(lambda more=more: read_all(workers, more), 120.0, "all to be read")
        cluster.restart(victim)
        cluster.settle()
    cluster.until(lambda: shared(workers, PARTITIONS), 60.0, "all to be shared")
    assert [each.error for each in workers] == [None, None, None]


def test_seek_to_committed_begins_again_where_nothing_is_committed(cluster: SimCluster):
    """A transform job whose first transaction of a partition was aborted reads its input again (docs/transactions.md)."""
    values = fill(Client(cluster), 12)
    partition = TopicPartition("orders", 1)
    config = ConsumerConfig(bootstrap_servers=cluster.bootstrap, group_id="m", auto_offset_reset="earliest")

    world = cluster.sim.of("m")

    async def story() -> list[bytes]:
        consumer = Consumer(config, world)
        consumer.assign([partition])
        await consumer.start()
        first = await consumer.getone()
        assert await consumer.seek_to_committed() == {partition: None}
        again = await consumer.getone()
        await consumer.stop()
        return [first.value, again.value]

    assert cluster.run(story(), node="m") == [values[1]] * 2


def test_commits_by_hand_with_metadata_and_their_limits(cluster: SimCluster):
    """S34, S35: offsets given, read back by another, refused when negative or without a group; assign and a group."""
    values = fill(Client(cluster), 12)
    partition = TopicPartition("orders", 1)
    config = ConsumerConfig(bootstrap_servers=cluster.bootstrap, group_id="m", auto_offset_reset="earliest")

    world = cluster.sim.of("m")

    async def story() -> list[bytes]:
        one = Consumer(config, world)
        one.assign([partition])
        await one.start()
        assert await one.committed(partition) is None
        assert (await one.getone()).value == b"1"
        await one.commit({partition: (1, "half")})
        await one.stop()
        other = Consumer(config, world)
        await other.start()
        other.assign([partition])
        assert await other.committed(partition) == 1
        found = await other.getone()
        assert await other.position(partition) == 2
        assert await other.seek_to_committed() == {partition: 1}
        assert (await other.getone()).value == found.value
        other.wakeup()
        with pytest.raises(WakeUp):
            await other.getone()
        await other.stop()
        return [found.value]

    assert cluster.run(story(), node="m") == [values[7]]


async def reading(consumer: Consumer) -> Consumer:
    """The same, subscribed to orders, with the first records in hand."""
    consumer.subscribe(["orders"])
    await consumer.start()
    await consumer.getmany(timeout_ms=10_000)
    return consumer


async def cut_off_for_longer_than_its_session(cluster: SimCluster, machine: str) -> None:
    """Its group goes on without it meanwhile."""
    cluster.sim.network.isolate(machine)
    await asyncio.sleep(15.0)
    cluster.sim.network.heal()


def test_a_zombies_commit_is_refused(cluster: SimCluster):
    """The group went on: CommitFailed, nothing was committed."""
    config = ConsumerConfig(
        bootstrap_servers=cluster.bootstrap, group_id="z", auto_offset_reset="earliest", enable_auto_commit=False
    )
    fill(Client(cluster), 12)
    world = cluster.sim.of("z")

    async def story() -> None:
        consumer = await reading(Consumer(config, world))
        await cut_off_for_longer_than_its_session(cluster, "z")
        with pytest.raises(CommitFailed, match="nothing was committed"):
            await consumer.commit({TopicPartition("orders", 0): 1})
        assert await consumer.committed(TopicPartition("orders", 0)) is None
        await consumer.stop()

    cluster.run(story(), node="z")
    assert facts_of(cluster, "group_member_left")


def test_what_a_lost_member_works_on_is_not_committed_by_its_next_life(cluster: SimCluster):
    """S33, S34 (seed 62172): thrown out in the midst of its work, it joins when it asks for records, and not before."""
    partition = TopicPartition("orders", 0)
    config = ConsumerConfig(
        bootstrap_servers=cluster.bootstrap, group_id="l", auto_offset_reset="earliest", enable_auto_commit=False
    )
    fill(Client(cluster), 12)
    world = cluster.sim.of("l")

    async def story() -> None:
        consumer = await reading(Consumer(config, world))
        await consumer.commit({partition: 2})
        await cut_off_for_longer_than_its_session(cluster, "l")
        await asyncio.sleep(30.0)
        assert "group_member_thrown_out" in kinds(cluster, "l")
        with pytest.raises(CommitFailed, match="it is not in the group now"):
            await consumer.commit({partition: 1})
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=500)
        assert await consumer.committed(partition) == 2
        await consumer.commit({partition: 1})
        await consumer.stop()

    cluster.run(story(), node="l")


def test_an_assignment_that_cannot_be_read_ends_the_member_and_it_leaves(cluster: SimCluster, monkeypatch):
    """A leader in another language may give anything: a typed error, and the others need not wait for the session."""
    deal = Member._deal

    def garbage(self: Member, *given: object) -> tuple[MemberAssignment, ...]:
        return tuple(replace(each, assignment=b"\x00\x01\xff") for each in deal(self, *given))  # type: ignore[arg-type]

    monkeypatch.setattr(Member, "_deal", garbage)
    config = ConsumerConfig(bootstrap_servers=cluster.bootstrap, group_id="x", client_id="x", session_timeout_ms=30_000)
    world = cluster.sim.of("x")

    async def story() -> None:
        consumer = Consumer(config, world)
        consumer.subscribe(["orders"])
        await consumer.start()
        with pytest.raises(InconsistentGroupProtocol, match=r"no assignment.*stop the member that leads"):
            await consumer.getmany(timeout_ms=20_000)
        await asyncio.sleep(1.0)
        assert [facts["why"] for facts in facts_of(cluster, "group_member_left")] == [
            "left: it failed: InconsistentGroupProtocol"
        ]
        with pytest.raises(InconsistentGroupProtocol):
            await consumer.getone()
        await consumer.stop()

    cluster.run(story(), node="x")


def test_commits_of_a_member_do_not_overtake_each_other(cluster: SimCluster):
    """S34: while one is under way the next one waits, or the older offset would be the last word."""
    under_way: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def watch(message: Message, _verdict: object) -> None:
        if message.api == "OffsetCommit":
            member = message.source if message.kind == "request" else message.target
            under_way[member] += 1 if message.kind == "request" else -1
            most[member] = max(most[member], under_way[member])

    settings = {"auto_commit_interval_ms": 100, "request_timeout_ms": 20_000}
    first = Worker(cluster, "c0", commits=False, settings=settings)
    cluster.until(lambda: len(first.numbers) == PARTITIONS, 60.0, "it to have all")
    cluster.sim.network.observers.append(watch)
    cluster.sim.network.rule(matching(Deliver(3.0), api="OffsetCommit", kind="request", count=1))
    client = Client(cluster)
    values = fill(client, 6)
    cluster.until(lambda: under_way["c0"] == 1, 60.0, "it to commit")
    values += fill(client, 6, first=100)
    cluster.until(lambda: read_all([first], values), 60.0, "it to read on")
    second = Worker(cluster, "c1", commits=False, settings=settings)
    cluster.until(lambda: shared([first, second], PARTITIONS) and len(second.numbers) == 3, 60.0, "both to share")
    assert most["c0"] == 1
    assert sum(second.values.values()) == 0


def kinds(cluster: SimCluster, node: str) -> list[str]:
    """Of the events that one machine has told."""
    return [event.kind for event in cluster.sim.journal if event.node == node]


def test_whoever_is_put_out_before_it_takes_its_partitions_takes_none(cluster: SimCluster):
    """KIP-429: told to give some up it works too long, and is out: what it was to keep is another's by then."""
    settings = {
        "partition_assignment_strategy": "cooperative-sticky",
        "max_poll_interval_ms": 5_000,
        "rebalance_timeout_ms": 3_000,
    }
    slow = Worker(cluster, "slow", settings=settings)
    cluster.until(lambda: len(slow.numbers) == PARTITIONS, 60.0, "it to have all")
    slow.work_s = 20.0
    # It joins while it has nothing to do, and is handed records before it hears what it was given.
    cluster.sim.network.rule(matching(Deliver(2.0), api="JoinGroup", kind="answer", target="slow", count=1))
    other = Worker(cluster, "other", settings=settings)
    cluster.until(lambda: "group_rejoin" in kinds(cluster, "slow"), 60.0, "the rebalance to begin")
    fill(Client(cluster), 60)
    cluster.until(lambda: "group_member_thrown_out" in kinds(cluster, "slow"), 60.0, "it to be out")
    slow.work_s = 0.0
    cluster.until(lambda: slow.numbers != [], 60.0, "it to have some again")
    assert slow.consumer._member.generation > 0
    cluster.until(lambda: shared([slow, other], PARTITIONS) and len(slow.numbers) == 3, 60.0, "both to share")


def test_a_heartbeat_of_a_former_generation_that_comes_late_puts_nobody_out(cluster: SimCluster):
    """The member has joined again since it was sent: what it is answered says nothing of the present generation."""
    worker = Worker(cluster, "c0", settings={"metadata_max_age_ms": 200})
    cluster.until(lambda: shared([worker], PARTITIONS), 60.0, "it to have all")
    late: list[Message] = []
    cluster.sim.network.observers.append(
        lambda message, _: late.append(message) if message.api == "Heartbeat" else None
    )
    cluster.sim.network.rule(matching(Deliver(2.5), api="Heartbeat", kind="request", count=1))
    cluster.until(lambda: late != [], 60.0, "it to send a heartbeat")
    client = Client(cluster)
    client.run(client.admin.create_partitions({"orders": 9}))
    cluster.until(lambda: shared([worker], 9), 2.0, "nine to be its own")
    cluster.until(lambda: len(late) > 1, 5.0, "it to be answered")
    assert late[1].kind == "answer"
    cluster.run_for(1.0)
    assert "group_member_thrown_out" not in kinds(cluster, "c0")


def test_a_static_leader_that_came_back_sees_new_partitions(cluster: SimCluster):
    """KIP-814: it deals nothing when it returns, and looks after the group's topics all the same (seed 8089)."""
    settings = {"group_instance_id": "i", "session_timeout_ms": 30_000, "metadata_max_age_ms": 2_000}
    worker = Worker(cluster, "s", settings=settings)
    cluster.until(lambda: shared([worker], PARTITIONS), 60.0, "it to have all")
    worker.kill()
    worker.start()
    cluster.until(lambda: shared([worker], PARTITIONS), 60.0, "it to be back")
    client = Client(cluster)
    client.run(client.admin.create_partitions({"orders": 9}))
    cluster.until(lambda: shared([worker], 9), 60.0, "nine to be its own")


def test_a_member_that_cannot_learn_where_to_begin_joins_again(cluster: SimCluster, monkeypatch):
    """S31: it was given partitions, and nobody could say what was committed: they must not stand still for ever."""
    late = iter([True])
    committed = GroupOffsets.committed

    async def too_late_once(self: GroupOffsets, partitions: Iterable[TopicPartition]) -> dict:
        if next(late, False):
            raise RequestTimedOut("group g: no coordinator answered in time")
        return await committed(self, partitions)

    monkeypatch.setattr(GroupOffsets, "committed", too_late_once)
    worker = Worker(cluster, "c0")
    values = fill(Client(cluster), 12)
    cluster.until(lambda: read_all([worker], values), 60.0, "all to be read")
    assert next(late, None) is None
    worker.end()


def test_who_unsubscribes_and_assigns_commits_for_no_member(cluster: SimCluster):
    """S34: a consumer that was a member, and reads by hand now, may still commit to the empty group."""
    partition = TopicPartition("orders", 1)
    config = ConsumerConfig(
        bootstrap_servers=cluster.bootstrap, group_id="u", auto_offset_reset="earliest", enable_auto_commit=False
    )
    world = cluster.sim.of("u")

    async def story() -> None:
        consumer = Consumer(config, world)
        consumer.subscribe(["orders"])
        await consumer.start()
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=500)
        consumer.unsubscribe()
        consumer.assign([partition])
        await asyncio.sleep(2.0)
        await consumer.commit({partition: 1})
        assert await consumer.committed(partition) == 1
        await consumer.stop()

    cluster.run(story(), node="u")


def test_a_consumer_whose_listener_fails_at_the_end_leaves_the_group_and_closes(cluster: SimCluster):
    """S29: the others must not wait for its session, whatever the application's own code does."""

    class Broken(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
            raise ZeroDivisionError(len(revoked))

        def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
            """Nothing to do."""

    config = ConsumerConfig(bootstrap_servers=cluster.bootstrap, group_id="b", auto_offset_reset="earliest")
    world = cluster.sim.of("b")

    async def story() -> None:
        before = asyncio.all_tasks()
        consumer = Consumer(config, world)
        consumer.subscribe(["orders"], listener=Broken())
        await consumer.start()
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=500)
        with pytest.raises(ZeroDivisionError):
            await consumer.stop()
        await asyncio.sleep(0.1)
        left = sorted(task.get_name() for task in asyncio.all_tasks() - before)
        assert not [name for name in left if name.startswith(("group-", "client-", "consumer-"))], left

    cluster.run(story(), node="b")
    assert [each["why"] for each in facts_of(cluster, "group_member_left")] == ["left: the consumer was closed"]


def test_who_unsubscribes_in_the_midst_of_a_rebalance_reads_by_hand_at_once(cluster: SimCluster):
    """Nothing is handed out while a rebalance goes on; who is no member any more is not kept waiting for its end."""
    values = fill(Client(cluster), 12)
    partition = TopicPartition("orders", 1)
    settings = {"rebalance_timeout_ms": 20_000, "heartbeat_interval_ms": 500}
    other = Worker(cluster, "other", group="h", settings=settings)
    config = ConsumerConfig(
        bootstrap_servers=cluster.bootstrap,
        group_id="h",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **settings,
    )
    world, watch = cluster.sim.of("h"), Watch()

    async def story() -> list[bytes]:
        consumer = Consumer(config, world)
        consumer.subscribe(["orders"], listener=watch)
        await consumer.start()
        while len(consumer.assignment()) != 3:
            await consumer.getmany(timeout_ms=500)
        cluster.sim.pause("other")
        Worker(cluster, "third", group="h", settings=settings)
        while consumer.assignment():
            await consumer.getmany(timeout_ms=500)
        consumer.unsubscribe()
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found = await consumer.getmany(timeout_ms=5_000)
        await consumer.stop()
        return [each.value for each in found.get(partition, [])]

    assert cluster.run(story(), node="h") == values[1::PARTITIONS]
    cluster.sim.resume("other")
    other.ending = True


def test_who_unsubscribes_is_told_what_it_gave_up(cluster: SimCluster):
    """S31: partitions go with a word to the listener that had them, not to the one of the next subscription."""
    config = ConsumerConfig(bootstrap_servers=cluster.bootstrap, group_id="k", auto_offset_reset="earliest")
    world, first, second = cluster.sim.of("k"), Watch(), Watch()

    async def story() -> None:
        consumer = Consumer(config, world)
        consumer.subscribe(["orders"], listener=first)
        await consumer.start()
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=500)
        consumer.unsubscribe()
        consumer.subscribe(["orders"], listener=second)
        while not second.told:
            await consumer.getmany(timeout_ms=500)
        await consumer.stop()

    cluster.run(story(), node="k")
    assert [kind for kind, _ in first.told] == ["assigned", "revoked"]
    assert [kind for kind, _ in second.told] == ["assigned", "revoked"]
    assert first.told[1][1] == [TopicPartition("orders", number) for number in range(PARTITIONS)]


@pytest.mark.parametrize("ends", ["stop", "unsubscribe", "unsubscribe and stop", "unsubscribe and subscribe"])
@pytest.mark.parametrize("names_them", [True, False])
def test_what_the_listener_commits_at_the_end_is_committed(cluster: SimCluster, ends: str, names_them: bool):
    """S31, S34: the last word to the listener comes while the member is still in the group, as in Kafka's close().

    Whatever the application does next, it is committed in the name of the member that goes; without offsets it is where
    that member stood.
    """
    fill(Client(cluster), 24)
    partition = TopicPartition("orders", 2)
    config = ConsumerConfig(
        bootstrap_servers=cluster.bootstrap, group_id="e", auto_offset_reset="earliest", enable_auto_commit=False
    )
    world = cluster.sim.of("e")

    class Last(Watch):
        async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:  # type: ignore[override]
            super().on_partitions_revoked(revoked)
            await asyncio.wait_for(consumer.commit({partition: 1} if names_them else None), 30)

    consumer, watch = Consumer(config, world), Last()

    async def story() -> None:
        consumer.subscribe(["orders"], listener=watch)
        await consumer.start()
        read = 0
        while read < 24:
            read += sum(map(len, (await consumer.getmany(timeout_ms=500)).values()))
        if ends != "stop":
            consumer.unsubscribe()
        if ends == "unsubscribe":
            await asyncio.sleep(1.0)
        if ends == "unsubscribe and subscribe":
            consumer.subscribe(["orders"])
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=500)
        await consumer.stop()
        with pytest.raises(InvalidRequest, match="stopped"):
            await consumer.commit({partition: 5})

    cluster.run(story(), node="e")
    assert [kind for kind, _ in watch.told] == ["assigned", "revoked"]
    client = Client(cluster)
    found = client.run(client.admin.list_consumer_group_offsets("e"))
    everything = {TopicPartition("orders", number): 24 // PARTITIONS for number in range(PARTITIONS)}
    assert {name: each.offset for name, each in found.items()} == ({partition: 1} if names_them else everything)


def test_who_unsubscribes_commits_where_it_was_and_not_what_it_reads_next(cluster: SimCluster):
    """S34: with auto-commit, the positions of the member that goes; those assigned by hand meanwhile are no member's."""
    fill(Client(cluster), 24)
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    config = ConsumerConfig(
        bootstrap_servers=cluster.bootstrap, group_id="a", auto_offset_reset="earliest", auto_commit_interval_ms=600_000
    )
    world = cluster.sim.of("a")

    async def story() -> dict[TopicPartition, int | None]:
        consumer = Consumer(config, world)
        consumer.subscribe(["orders"])
        await consumer.start()
        read: Counter[TopicPartition] = Counter()
        while read.total() < 24:
            found = await consumer.getmany(timeout_ms=500)
            read.update({partition: len(records) for partition, records in found.items()})
        consumer.unsubscribe()
        consumer.assign([second])
        consumer.seek(second, 0)
        await asyncio.sleep(1.0)
        committed = {partition: await consumer.committed(partition) for partition in (first, second)}
        await consumer.stop()
        return committed

    assert cluster.run(story(), node="a") == {first: 4, second: 4}


def test_what_a_member_works_on_when_its_application_fails_is_read_again(cluster: SimCluster):
    """S34: at least once. Auto-commit at the end of `async with` leaves out what was in work when an error came."""
    fill(Client(cluster), 24)
    config = ConsumerConfig(
        bootstrap_servers=cluster.bootstrap, group_id="a", auto_offset_reset="earliest", auto_commit_interval_ms=600_000
    )
    world = cluster.sim.of("a")

    async def story() -> tuple[set[bytes | None], set[bytes | None]]:
        done: set[bytes | None] = set()
        with pytest.raises(RuntimeError):
            async with Consumer(config, world, ["orders"]) as consumer:
                async for record in consumer:
                    if len(done) == 10:
                        raise RuntimeError("in the middle of its work")
                    done.add(record.value)
        rest: set[bytes | None] = set()
        async with Consumer(config, world, ["orders"]) as consumer:
            while found := await consumer.getmany(timeout_ms=10_000):
                rest.update(record.value for records in found.values() for record in records)
        return done, rest

    done, rest = cluster.run(story(), node="a")
    assert (len(done), len(rest), done & rest) == (10, 14, set())
