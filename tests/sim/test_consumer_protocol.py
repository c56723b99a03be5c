"""Consumers of the consumer protocol on a simulated cluster (KIP-848, issue 17 Build 5)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minikafka.errors import InvalidRegularExpression, StaleMemberEpoch, UnreleasedInstanceId, UnsupportedAssignor
from minikafka.sim.cluster import SimCluster
from minikafka.sim.verdicts import Deliver, Message, Reset, Verdict, matching
from minikafka.wire.codec import decode_response
from minikafka.wire.group_messages import ConsumerGroupHeartbeatResponse
from tests.sim.cluster_kit import Client, facts_of, simulated
from tests.sim.group_kit import PARTITIONS, Worker, fill, read_all, shared

CONSUMER = {"group_protocol": "consumer"}


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """Three brokers and a topic of six partitions."""
    with simulated(
        offsets_topic_num_partitions="4",
        group_consumer_heartbeat_interval_ms="1000",
        group_consumer_session_timeout_ms="10000",
    ) as cluster:
        cluster.create_topic("orders", partitions=PARTITIONS)
        cluster.settle()
        yield cluster


def worker(cluster: SimCluster, name: str, **settings) -> Worker:
    work_s = settings.pop("work_s", 0.0)
    commits = settings.pop("commits", True)
    return Worker(cluster, name, work_s=work_s, commits=commits, settings=CONSUMER | settings)


@pytest.mark.parametrize(("rate", "per_member"), [("50", 20), ("2", 7), ("0", 5)])
def test_members_heartbeat_as_often_as_their_coordinator_wants(rate: str, per_member: int):
    """Three members within ten seconds: every 500 ms, every 1.5 s for a rate of two a second, every 2 s as configured."""
    settings = {
        "group_consumer_heartbeat_interval_ms": "2000",
        "mk_group_consumer_heartbeats_per_second": rate,
    }
    with simulated(offsets_topic_num_partitions="4", **settings) as cluster:
        cluster.create_topic("orders", partitions=PARTITIONS)
        cluster.settle()
        workers = [worker(cluster, f"c{number}") for number in range(3)]
        cluster.until(lambda: shared(workers, PARTITIONS), 60.0, "all to share")
        cluster.run_for(5.0)
        beats: list[str] = []

        def count(message: Message, _verdict: Verdict) -> None:
            if message.api == "ConsumerGroupHeartbeat" and message.kind == "request":
                beats.append(message.source)

        cluster.sim.network.observers.append(count)
        cluster.run_for(10.0)
        for each in workers:
            assert abs(beats.count(each.name) - per_member) <= 1, rate
            each.end()


def test_a_coordinator_that_is_slower_than_the_interval_is_not_asked_twice():
    """Responses take 1.2 s and the interval is 500 ms: members wait for them, and share the partitions."""
    with simulated(offsets_topic_num_partitions="4", mk_group_consumer_heartbeats_per_second="50") as cluster:
        cluster.create_topic("orders", partitions=PARTITIONS)
        cluster.settle()
        cluster.sim.network.rule(matching(Deliver(after_s=1.2), api="ConsumerGroupHeartbeat", kind="answer"))
        workers = [worker(cluster, "c0"), worker(cluster, "c1")]
        cluster.until(lambda: shared(workers, PARTITIONS), 60.0, "both to share")
        cluster.run_for(10.0)
        assert not facts_of(cluster, "heartbeat_unanswered")
        assert shared(workers, PARTITIONS)
        for each in workers:
            each.end()


def test_members_share_the_partitions_and_only_those_that_move_stop(cluster: SimCluster):
    """Each partition has one reader; a member that keeps its partitions hears of nothing else."""
    workers = [worker(cluster, "c0")]
    cluster.until(lambda: shared(workers, PARTITIONS), 60.0, "the first to have all")
    workers += [worker(cluster, "c1"), worker(cluster, "c2")]
    cluster.until(
        lambda: shared(workers, PARTITIONS) and [len(each.numbers) for each in workers] == [2, 2, 2],
        60.0,
        "all to share",
    )
    first = [what for what, _ in workers[0].watch.told]
    assert first[0] == "assigned"
    revoked = [each for what, partitions in workers[0].watch.told if what == "revoked" for each in partitions]
    assert len(revoked) == len(set(revoked)) == 4, "what is kept is never revoked"
    values = fill(Client(cluster), 60)
    cluster.until(lambda: read_all(workers, values), 60.0, "all to be read")
    for each in workers:
        each.end()


def test_without_faults_each_record_is_read_once(cluster: SimCluster):
    """Revocation waits for the application's work and its commit, and only then the next owner begins."""
    client = Client(cluster)
    workers = [worker(cluster, "c0", work_s=0.3)]
    values = fill(client, 60)
    for number in range(1, 4):
        cluster.run_for(2.0)
        workers.append(worker(cluster, f"c{number}", work_s=0.3))
        values += fill(client, 60, first=60 * number)
    cluster.until(lambda: read_all(workers, values), 120.0, "all to be read")
    workers[0].end()
    values += fill(client, 60, first=240)
    cluster.until(lambda: read_all(workers, values), 120.0, "all to be read by the rest")
    for each in workers[1:]:
        each.end()
    counts = sum((each.values for each in workers), type(workers[0].values)())
    assert set(counts.values()) == {1}
    assert sum(each.refused for each in workers) == 0


def test_auto_commits_hand_partitions_over_without_reading_twice(cluster: SimCluster):
    """Auto-commit: what was worked on is committed before the revocation is confirmed."""
    client = Client(cluster)
    workers = [worker(cluster, "c0", commits=False)]
    values = fill(client, 60)
    cluster.until(lambda: read_all(workers, values), 60.0, "all to be read")
    workers.append(worker(cluster, "c1", commits=False))
    cluster.until(lambda: shared(workers, PARTITIONS) and len(workers[1].numbers) == 3, 60.0, "both to share")
    values += fill(client, 60, first=60)
    cluster.until(lambda: read_all(workers, values), 60.0, "all to be read")
    for each in workers:
        each.end()
    counts = sum((each.values for each in workers), type(workers[0].values)())
    assert set(counts.values()) == {1}


def test_a_killed_member_is_replaced_when_its_session_ends(cluster: SimCluster):
    """The coordinator fences it; nothing that was committed is read again by the others."""
    workers = [worker(cluster, "c0"), worker(cluster, "c1")]
    cluster.until(lambda: shared(workers, PARTITIONS), 60.0, "both to share")
    values = fill(Client(cluster), 60)
    cluster.until(lambda: read_all(workers, values), 60.0, "all to be read")
    cluster.run_for(1.0)
    workers[0].kill()
    cluster.until(lambda: shared(workers[1:], PARTITIONS), 60.0, "the other to have all")
    values += fill(Client(cluster, "more"), 60, first=60)
    cluster.until(lambda: read_all(workers, values), 60.0, "all to be read")
    assert max(workers[1].values.values()) == 1
    workers[1].end()


def test_a_member_that_does_not_poll_leaves_and_comes_back(cluster: SimCluster):
    """max_poll_interval_ms: it loses its partitions, and joins again when the application asks."""
    slow, other = worker(cluster, "slow", max_poll_interval_ms=5_000), worker(cluster, "other")
    workers = [slow, other]
    cluster.until(lambda: shared(workers, PARTITIONS) and len(slow.numbers) == 3, 60.0, "both to share")
    slow.paused = True
    cluster.until(lambda: shared([other], PARTITIONS), 60.0, "the other to have all")
    assert slow.watch.told[-1][0] == "lost"
    slow.paused = False
    cluster.until(lambda: shared(workers, PARTITIONS) and len(slow.numbers) == 3, 60.0, "both to share again")
    for each in workers:
        each.end()


def test_a_static_member_finds_its_partitions_again(cluster: SimCluster):
    """-2: nobody else is assigned anything while it restarts within its session."""
    static, other = worker(cluster, "static", group_instance_id="i"), worker(cluster, "other")
    workers = [static, other]
    cluster.until(lambda: shared(workers, PARTITIONS) and len(static.numbers) == 3, 60.0, "both to share")
    before, told = static.numbers, len(other.watch.told)
    static.end()
    cluster.run_for(3.0)
    assert other.numbers == sorted(set(range(PARTITIONS)) - set(before))
    static.start()
    cluster.until(lambda: static.numbers == before, 60.0, "it to be back")
    assert len(other.watch.told) == told
    for each in workers:
        each.end()


def test_two_processes_with_one_instance_id(cluster: SimCluster):
    """UNRELEASED_INSTANCE_ID ends the second, and the first reads on."""
    first = worker(cluster, "first", group_instance_id="i")
    cluster.until(lambda: shared([first], PARTITIONS), 60.0, "the first to have all")
    second = worker(cluster, "second", group_instance_id="i")
    cluster.until(second.task.done, 60.0, "the second to end")
    assert isinstance(second.error, UnreleasedInstanceId)
    assert shared([first], PARTITIONS)
    first.end()


def test_the_coordinator_matches_patterns(cluster: SimCluster):
    """RE2 at the broker: a topic that appears is read from its beginning by one member."""

    class Matching(Worker):
        async def live(self) -> None:
            try:
                self.consumer.subscribe(pattern="ord.*", listener=self.watch)
                await self.consumer.start()
                while not self.ending:
                    await self.poll()
                await self.consumer.stop()
            except Exception as error:
                self.error = error
                raise

    workers = [Matching(cluster, name, settings=CONSUMER) for name in ("c0", "c1")]
    cluster.until(lambda: shared(workers, PARTITIONS), 60.0, "both to share")
    cluster.create_topic("ordinary", partitions=1)
    cluster.create_topic("other", partitions=1)

    def topics() -> list[str]:
        return sorted(each.topic for one in workers for each in one.consumer.assignment())

    cluster.until(lambda: topics().count("ordinary") == 1, 60.0, "the new topic to be assigned")
    assert "other" not in topics()
    assert "ordinary" in {topic for one in workers for topic in one.consumer.subscription()}
    for each in workers:
        each.end()


@pytest.mark.parametrize(
    ("settings", "error"), [({"group_remote_assignor": "sticky"}, UnsupportedAssignor)], ids=["assignor"]
)
def test_what_no_joining_again_helps_ends_the_consumer(cluster: SimCluster, settings, error):
    """The error is the application's: its next call raises it."""
    one = worker(cluster, "c0", **settings)
    cluster.until(one.task.done, 60.0, "the consumer to end")
    assert isinstance(one.error, error)


def test_the_coordinator_dies(cluster: SimCluster):
    """The next leader of the offsets' partition has read epochs and assignments: nobody loses a partition."""
    workers = [worker(cluster, "c0"), worker(cluster, "c1")]
    cluster.until(lambda: shared(workers, PARTITIONS) and len(workers[0].numbers) == 3, 60.0, "both to share")
    told = [len(each.watch.told) for each in workers]
    coordinator = workers[0].consumer._coordinator._node
    cluster.crash(coordinator)
    values = fill(Client(cluster), 30)
    cluster.until(lambda: read_all(workers, values), 90.0, "all to be read")
    cluster.run_for(5.0)
    assert [len(each.watch.told) for each in workers] == told
    cluster.restart(coordinator)
    for each in workers:
        each.end()


def test_an_assignment_whose_response_is_lost_is_sent_again(cluster: SimCluster):
    """The heartbeat that is repeated says everything, so its response does: else both sides would rest with partitions
    that no member reads, for the epoch stays when what was missing becomes free.
    """
    lost: list[ConsumerGroupHeartbeatResponse] = []

    def lose_an_assignment(message: Message) -> Verdict | None:
        if (message.api, message.kind, message.target) != ("ConsumerGroupHeartbeat", "answer", "c1") or lost:
            return None
        response = decode_response("ConsumerGroupHeartbeat", message.body)
        if not response.assignment:
            return None
        lost.append(response)
        return Reset()

    workers = [worker(cluster, "c0")]
    cluster.until(lambda: shared(workers, PARTITIONS), 60.0, "the first to have all")
    cluster.sim.network.rule(lose_an_assignment)
    workers.append(worker(cluster, "c1"))
    cluster.until(lambda: bool(lost), 60.0, "an assignment to be lost")
    cluster.until(lambda: shared(workers, PARTITIONS) and len(workers[1].numbers) == 3, 60.0, "both to share")
    for each in workers:
        each.end()


def test_a_commit_of_an_older_epoch_is_repeated_with_the_new_one(cluster: SimCluster):
    """STALE_MEMBER_EPOCH: the coordinator is ahead of this member by a heartbeat; nothing is lost by trying again."""
    workers = [worker(cluster, "c0")]
    cluster.until(lambda: shared(workers, PARTITIONS), 60.0, "it to have all")
    member = workers[0].consumer._member
    stale = [StaleMemberEpoch("one heartbeat behind")]
    ask = member._coordinator.ask

    async def once_stale(request, **given):
        answer = await ask(request, **given)
        if type(request).__name__ == "OffsetCommitRequest" and stale:
            error = stale.pop()
            parts = tuple(
                type(each)(topic=each.topic, partition=each.partition, error_code=error.code, error_message=str(error))
                for each in answer.partitions
            )
            return type(answer)(partitions=parts)
        return answer

    member._coordinator.ask = once_stale
    values = fill(Client(cluster), 6)
    cluster.until(lambda: read_all(workers, values), 60.0, "all to be read")
    cluster.run_for(2.0)
    assert not stale
    assert workers[0].refused == 0
    workers[0].end()


def test_a_pattern_that_re2_refuses_is_an_error_by_name(cluster: SimCluster):
    """A back-reference is a regular expression of Python's, and none of RE2's."""

    class Refused(Worker):
        async def live(self) -> None:
            self.consumer.subscribe(pattern=r"(o)\1")
            await self.consumer.start()
            try:
                await self.consumer.getmany(timeout_ms=20_000)
            except InvalidRegularExpression as error:
                self.error = error
            await self.consumer.stop()

    one = Refused(cluster, "c0", settings=CONSUMER)
    cluster.until(one.task.done, 60.0, "it to end")
    assert isinstance(one.error, InvalidRegularExpression)
