"""The quorum's driver on the simulated network and disk: elections, replication, fail-over, cuts and power cuts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, cast

import pytest

from minikafka.broker.quorum_applied import SnapshotFiles
from minikafka.broker.quorum_driver import QuorumDriver
from minikafka.errors import NotController, OutcomeUnknown, RecordListTooLarge
from minikafka.quorum.files import QUORUM_STATE_PATH, QuorumState, encode_state, snapshot_path
from minikafka.rpc import call
from minikafka.sim.world import Event, SimWorld
from minikafka.types import EpochEnd
from minikafka.wire.messages import DescribeQuorumRequest, VoteRequest, VoteResponse
from tests.scenarios.production import Least
from tests.sim.quorum_cluster import CLUSTER_ID, Breach, QuorumCluster

Story = Callable[[QuorumCluster], Awaitable[Any]]


def play(story: Story, *, seed: object = 1, count: int = 3, observers: int = 0, **settings: Any) -> SimWorld:
    """Run a story; nothing may have failed unseen."""
    with SimWorld(seed) as sim:
        cluster = QuorumCluster(sim, count, observers=observers, **settings)

        async def main() -> None:
            await story(cluster)

        sim.run(main())
        assert cluster.failures == []
    return sim


def test_three_members_elect_replicate_and_tell_their_listeners():
    """DESIGN, one metadata change: append, sync, majority, then the same records in every listener."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        leader = await cluster.settled()
        await cluster.append("a", "b")
        end = await cluster.append("c")
        await cluster.settled()
        for node, member in cluster.members.items():
            assert member.listener.state == [b"a", b"b", b"c"]
            assert member.driver.applied_offset == end
            assert member.listener.news[-1] == (leader, member.driver.epoch, node == leader)

    play(story, observers=1)


def test_a_new_cluster_has_a_leader_soon():
    """Start to first record: no whole election timeout is waited for when everybody is new."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        assert await cluster.until(lambda: cluster.leader() is not None, "a leader") < 0.6

    for seed in range(5):
        play(story, seed=seed)


def test_one_member_alone_leads_at_once():
    """One voter: two syncs and it appends."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        assert await cluster.until(lambda: cluster.leader() == 1, "leads") < 0.1
        await cluster.append("a")
        cluster.kill(1, power=True)
        await cluster.start(1)
        await cluster.until(lambda: cluster.leader() == 1, "leads again")
        assert cluster.members[1].listener.state == [b"a"]

    play(story, count=1)


def test_the_listener_leads_only_when_its_state_is_complete():
    """A new controller decides on everything that was ever committed, and stops as soon as it may be deposed."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        first = await cluster.settled()
        await cluster.append("a")
        cluster.kill(first)
        second = await cluster.settled()
        listener = cluster.members[second].listener
        assert listener.leads
        assert listener.state == [b"a"]
        cluster.sim.network.isolate(f"n{second}")
        await cluster.until(lambda: not listener.leads, "deposed")
        assert listener.news[-1][0] == -1
        assert not cluster.members[second].driver.is_leader

    play(story)


@pytest.mark.parametrize(("power", "least", "most"), [(True, 1.0, 3.5), (False, 0.0, 1.0)], ids=["silent", "refused"])
def test_a_killed_leader_is_replaced_within_the_budget(power: bool, least: float, most: float):
    """The issue's budget leaves 5 s for a dead controller: fetch timeout, then pre-vote and vote, here below 3.5 s.
    A leader whose machine has power refuses connections: no member waits for the fetch timeout.
    """

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        first = await cluster.settled()
        await cluster.append("a")
        cluster.kill(first, power=power)
        taken = await cluster.until(lambda: cluster.leader() is not None, "a new leader")
        assert least < taken < most
        await cluster.append("b")
        await cluster.start(first)
        await cluster.settled()
        assert cluster.members[first].listener.state == [b"a", b"b"]

    for seed in range(8):
        play(story, seed=seed)


def test_a_graceful_stop_hands_over_at_once():
    """EndQuorumEpoch: the best successor stands without waiting for a timeout."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        first = await cluster.settled()
        await cluster.append("a")
        await cluster.settled()
        begin = cluster.sim.loop.now
        await cluster.stop(first)
        await cluster.until(lambda: cluster.leader() is not None, "a new leader")
        assert cluster.sim.loop.now - begin < 0.5

    for seed in range(5):
        play(story, seed=seed)


def test_an_append_of_a_leader_that_was_cut_off_ends_unknown():
    """Outcome is set where it is known: after the append it is unknown, before it not_written."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        leader = await cluster.settled()
        driver = cluster.members[leader].driver
        with pytest.raises(NotController) as early:
            await cluster.sim.spawn(f"n{leader}", driver.append([b"x"], epoch=driver.epoch - 1))
        assert early.value.outcome == "not_written"
        cluster.sim.network.isolate(f"n{leader}")
        with pytest.raises(NotController) as late:
            await cluster.append("x")
        assert late.value.outcome == "unknown"
        cluster.sim.network.heal()
        await cluster.settled()
        assert b"x" not in cluster.members[leader].listener.state

    play(story)


def test_an_append_beyond_the_limit_is_refused_whole():
    """One append is one batch: it is applied as a whole or not at all."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        await cluster.settled()
        with pytest.raises(RecordListTooLarge):
            await cluster.append("x" * (8 * 1024 * 1024))
        assert cluster.refused

    play(story, count=1)


def test_a_follower_that_hears_nothing_does_not_disturb():
    """KIP-996: cut off one way, it asks for pre-votes, is refused, and raises nobody's epoch."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        leader = await cluster.settled()
        epoch = cluster.members[leader].driver.epoch
        deaf = next(node for node in cluster.ids if node != leader)
        cluster.sim.network.cut(f"n{leader}", f"n{deaf}")
        for turn in range(20):
            if turn >= 10:
                await cluster.append(f"{turn}")
            await asyncio.sleep(0.5)
        cluster.sim.network.heal()
        assert await cluster.settled() == leader
        assert cluster.members[deaf].driver.epoch == epoch

    sim = play(story)
    assert sim.marks["vote_refused_leader_lives"] > 0
    assert sim.marks["vote_refused_stale_log"] > 0


def test_a_commit_is_known_everywhere_within_a_round_trip():
    """DESIGN, "the metadata watermark is late by a fetch round": a newer watermark ends a parked fetch (KIP-1166)."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        await cluster.settled()
        await asyncio.sleep(1.0)
        end = await cluster.append("a")
        taken = await cluster.until(
            lambda: all(member.driver.applied_offset >= end for member in cluster.members.values()), "applied", 1.0
        )
        assert taken < 0.2

    play(story, observers=2)


def test_a_log_that_grows_is_cut_behind_snapshots_and_a_late_member_gets_one():
    """KAFKA-FACTS 4.3: by size; two are kept, the log starts at the older one, and FetchSnapshot brings a late member."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start(1, 2)
        await cluster.settled()
        for turn in range(60):
            await cluster.append(f"{turn:04d}" * 10)
        leader = await cluster.settled()
        log = cluster.members[leader].log
        assert log.start_offset > 0
        names = cluster.members[leader].world.disk.names("__cluster_metadata-0")
        assert len([name for name in names if name.endswith(".checkpoint")]) == 2
        assert not [name for name in names if name.startswith("00000000000000000000.")], "old segments are gone"
        await cluster.start(3)
        await cluster.settled()
        assert cluster.members[3].listener.state == cluster.members[leader].listener.state
        assert cluster.members[3].log.start_offset > 0
        for node in (1, 2, 3):
            cluster.kill(node, power=True)
        await cluster.start()
        await cluster.settled()
        assert [len(member.listener.state) for member in cluster.members.values()] == [60, 60, 60]

    sim = play(story, metadata_log_max_record_bytes_between_snapshots=1000)
    assert sim.marks["snapshot_fetched"] == 1


def test_a_fetched_snapshot_counts_also_for_a_log_that_ends_in_a_later_epoch():
    """Power is cut when the snapshot has its name and the log is not emptied yet. The log holds a record that a leader
    of a later epoch appended and nobody else has; it ends where the snapshot reaches far beyond.
    """

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        await cluster.settled()
        await cluster.append("a")
        end = cluster.members[1].log.end_offset
        assert cluster.members[1].log.last_epoch > 0
        await cluster.stop(1)
        files = SnapshotFiles(cluster.sim.of("n1"))
        await cluster.sim.spawn("n1", files.write(EpochEnd(0, end + 50), [b"a"], timestamp_ms=0))
        await cluster.start()
        await cluster.settled()
        assert cluster.members[1].log.start_offset == end + 50
        await cluster.append("b")

    play(story, count=1)


def test_a_snapshot_found_after_a_kill_is_durable_before_the_log_is_emptied_for_it():
    """kill -9 comes when the fetched snapshot has its name, and the folder is not synced yet. If the next process
    emptied the log and the power took the name, but not the removal of the segments, both would be gone.
    """

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        await cluster.settled()
        await cluster.append("a")
        end = cluster.members[1].log.end_offset
        await cluster.stop(1)
        snapshot, disk = EpochEnd(9, end + 50), cluster.sim.disk("n1")
        disk.sync_mean_s = 0.1
        files = SnapshotFiles(cluster.sim.of("n1"))
        cluster.sim.spawn("n1", files.write(snapshot, [b"a"], timestamp_ms=0))
        while not disk.exists(snapshot_path(snapshot)):  # noqa: ASYNC110 - a disk has no event
            await asyncio.sleep(0.0001)
        assert not disk.is_named(snapshot_path(snapshot))
        cluster.sim.kill("n1")
        was_durable: list[bool] = []

        def look(event: Event) -> None:
            if event.kind == "log_restarted":
                was_durable.append(disk.is_named(snapshot_path(snapshot)))

        cluster.sim.observers.append(look)
        await cluster.start()
        assert was_durable == [True]

    play(story, count=1)


def test_snapshots_are_also_taken_by_time():
    """metadata.log.max.snapshot.interval.ms; none while nothing has changed."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        await cluster.settled()
        await cluster.append("a")
        await asyncio.sleep(25.0)

    sim = play(story, metadata_log_max_snapshot_interval_ms=5000)
    assert sim.marks["snapshot_taken"] == 3


def test_quorum_state_on_disk_names_the_leader():
    """What tools read: the saved state of all members agrees with what they say."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start()
        leader = await cluster.settled()
        for node, member in cluster.members.items():
            saved = encode_state(member.driver.core.state)
            assert cluster.sim.disk(f"n{node}").durable_bytes(QUORUM_STATE_PATH) == saved
            assert member.driver.core.state.leader_id == leader
        told = await cluster.sim.spawn(f"n{leader}", cluster.members[leader].driver.handle(DescribeQuorumRequest()))
        assert told.role == "leader"
        assert [each.replica_id for each in told.voters] == [1, 2, 3]

    play(story)


async def request_vote(cluster: QuorumCluster, candidate: int) -> VoteResponse:
    """Node 3's response to a candidate of epoch 1 with an empty log."""
    request = VoteRequest(
        cluster_id=CLUSTER_ID,
        voter_id=3,
        candidate_id=candidate,
        candidate_epoch=1,
        last_epoch=0,
        last_epoch_end_offset=0,
    )
    network, deadline = cluster.sim.of(f"n{candidate}").network, asyncio.get_running_loop().time() + 1.0
    asked = call(network, cluster.voters[3], request, deadline)
    return cast("VoteResponse", await cluster.sim.spawn(f"n{candidate}", asked))


def test_a_vote_whose_response_has_not_left_is_no_vote():
    """The power goes while the vote is saved: the candidate has no response, and the vote may be given to another."""

    async def story(cluster: QuorumCluster) -> None:
        await cluster.start(3)
        granted = asyncio.Event()
        cluster.sim.observers.append(lambda event: granted.set() if event.kind == "vote_granted" else None)
        first = asyncio.ensure_future(request_vote(cluster, 1))
        await granted.wait()
        cluster.kill(3, power=True)
        with pytest.raises(OutcomeUnknown):
            await first
        await cluster.start(3)
        assert (await request_vote(cluster, 2)).vote_granted
        assert not cluster.failures

    play(story)


def test_a_vote_found_after_a_kill_is_durable_before_it_is_given_again():
    """kill -9 comes when the saved vote has its name, and the folder is not synced yet. The next process reads the vote
    from the page cache, and repeats it to the candidate; then the power goes.
    """

    async def story(cluster: QuorumCluster) -> None:
        disk = cluster.sim.disk("n3")
        disk.sync_mean_s = 0.1
        disk.draws = Least  # type: ignore[assignment]
        await cluster.start(3)
        first = asyncio.ensure_future(request_vote(cluster, 1))
        while not disk.exists(QUORUM_STATE_PATH):  # noqa: ASYNC110 - a disk has no event
            await asyncio.sleep(0.0001)
        assert not disk.is_named(QUORUM_STATE_PATH)
        cluster.kill(3)
        with pytest.raises(OutcomeUnknown):
            await first
        await cluster.start(3)
        assert (await request_vote(cluster, 1)).vote_granted
        cluster.kill(3, power=True)
        await cluster.start(3)
        assert not (await request_vote(cluster, 2)).vote_granted

    play(story)


def test_a_disk_that_fails_to_sync_stops_the_member_before_it_speaks():
    """DESIGN: a failed sync is fatal for the log; the task ends in the error, the broker stops."""
    with SimWorld(3) as sim:
        cluster = QuorumCluster(sim)

        async def main() -> None:
            await cluster.start()
            leader = await cluster.settled()
            sim.disk(f"n{leader}").fail_next_sync("__cluster_metadata-0")
            append = asyncio.ensure_future(cluster.append("x"))
            await asyncio.sleep(1.0)
            cluster.kill(leader, power=True)
            append.cancel()
            failures.extend(cluster.failures)
            cluster.failures.clear()
            await cluster.settled()

        failures: list[str] = []
        sim.run(main())
        assert ["DiskFailed" in failure for failure in failures] == [True]


# ---- campaigns -------------------------------------------------------------------------------------------------------


async def campaign(cluster: QuorumCluster, seed: object, *, rounds: int) -> None:
    """Faults at random while every leader appends; in the end all is healed, and all must agree."""
    sim, draw = cluster.sim, Random(f"{seed}/campaign")
    nodes = list(cluster.ids)

    async def start(*which: int) -> None:
        await cluster.start(*which)
        for node in which:
            cluster.write_from(node, pause_s=0.1)

    def cut_all() -> None:
        for node in list(cluster.members):
            cluster.kill(node, power=True)

    await start(*nodes)
    for _ in range(rounds):
        await asyncio.sleep(draw.choice((0.02, 0.3, 1.0, 3.0)))
        one, other = draw.sample(nodes, 2)
        down = [node for node in nodes if node not in cluster.members]
        match draw.choice(FAULTS):
            case "kill" if one in cluster.members and not sim.loop.incarnations[f"n{one}"].paused:
                cluster.kill(one)
            case "power" if one in cluster.members:
                cluster.kill(one, power=True)
            case "all":
                cut_all()
            case "start" if down:
                await start(*down)
            case "cut":
                sim.network.cut(f"n{one}", f"n{other}")
            case "isolate":
                sim.network.isolate(f"n{one}")
            case "pause" if one in cluster.members:
                sim.pause(f"n{one}")
                await asyncio.sleep(draw.choice((0.5, 4.0)))
                sim.resume(f"n{one}")
            case _:
                sim.network.heal()
        if cluster.failures:
            raise Breach(str(cluster.failures))
    sim.network.heal()
    await start(*[node for node in nodes if node not in cluster.members])
    await cluster.until(lambda: cluster.leader() is not None, "a leader in the end", 60.0)
    for node in list(cluster.members):
        cluster.kill(node)
    await cluster.start()
    await cluster.settled()
    check_history(cluster)


FAULTS = ("kill", "power", "all", "start", "start", "cut", "isolate", "pause", "heal", "heal")


def check_history(cluster: QuorumCluster) -> None:
    """What was acknowledged is there once, what was refused is not, and all listeners have the same."""
    if cluster.failures:
        raise Breach(str(cluster.failures))
    states = [member.listener.state for member in cluster.members.values()]
    if any(state != states[0] for state in states):
        raise Breach("the listeners differ")
    counts = Counter(states[0])
    lost = [value for value in cluster.written if counts[value] != 1]
    if lost:
        raise Breach(f"acknowledged, but there {[counts[value] for value in lost]} times: {lost}")
    if any(counts[value] for value in cluster.refused):
        raise Breach("refused, but there")
    if any(counts[value] > 1 for value in cluster.unknown):
        raise Breach("unknown, and there more than once")


def run_campaign(seed: object, *, rounds: int = 25, count: int = 3) -> tuple[SimWorld, QuorumCluster]:
    with SimWorld(seed) as sim:
        cluster = QuorumCluster(
            sim, count, metadata_log_max_record_bytes_between_snapshots=3000, controller_quorum_request_timeout_ms=1000
        )
        sim.run(campaign(cluster, seed, rounds=rounds))
    return sim, cluster


@pytest.mark.parametrize("seed", range(6))
def test_faults_of_all_kinds_lose_nothing_that_was_acknowledged(seed: int):
    """Invariants 10 and 13 of KAFKA-FACTS: one leader per epoch, one vote, committed metadata for ever."""
    sim, cluster = run_campaign(seed, count=5 if seed == 5 else 3)
    assert len(cluster.written) > 10
    assert sim.marks["quorum_leader_elected"] > 1


def test_the_campaign_takes_the_rare_paths():
    """STYLE 23: a campaign that never truncates proves nothing about truncation."""
    marks: Counter[str] = Counter()
    for seed in (100, 101, 102):
        marks.update(run_campaign(seed, rounds=40)[0].marks)
    for kind in ("quorum_tail_truncated", "snapshot_taken", "vote_refused_stale_log", "election_lost"):
        assert marks[kind], kind


def test_the_same_seed_gives_the_same_trace():
    """Replay is exact."""
    assert run_campaign(5, rounds=12)[0].loop.trace.hexdigest() == run_campaign(5, rounds=12)[0].loop.trace.hexdigest()


def cut_power_at_elections(seed: object, *, rounds: int) -> None:
    """Again and again the power fails everywhere, a moment after somebody was elected."""
    with SimWorld(seed) as sim:
        cluster, draw = QuorumCluster(sim), Random(f"{seed}/cuts")

        async def main() -> None:
            for _ in range(rounds):
                # Elections, not epochs: a member that forgot its vote may win the same epoch once more.
                before = sim.marks["quorum_leader_elected"]
                await cluster.start()
                await cluster.until(lambda before=before: sim.marks["quorum_leader_elected"] > before, "an election")
                await asyncio.sleep(draw.uniform(0.0, 0.01))
                for node in cluster.ids:
                    cluster.kill(node, power=True)
            await cluster.start()
            await cluster.append("a", node=await cluster.settled())
            await cluster.settled()
            check_history(cluster)

        sim.run(main())


def test_planted_vote_not_synced_is_caught(monkeypatch: pytest.MonkeyPatch):
    """The rule "persist, then speak" is needed: without waiting for the disk a vote is forgotten and given again."""

    async def without_waiting(driver: QuorumDriver, state: QuorumState) -> None:
        driver._spawn(driver.world.disk.publish(QUORUM_STATE_PATH, encode_state(state)), "planted")

    for seed in range(5):
        cut_power_at_elections(f"planted/{seed}", rounds=10)
    monkeypatch.setattr(QuorumDriver, "_persist", without_waiting)
    for seed in range(20):
        try:
            cut_power_at_elections(f"planted/{seed}", rounds=10)
        except Breach as breach:
            found = str(breach)
            break
    else:
        found = "nothing"
    assert "two leaders in epoch" in found or "voted twice" in found
