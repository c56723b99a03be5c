"""Faults of single messages in a running cluster: each strikes the messages that it names, and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from minikafka.sim import message_faults
from minikafka.sim.cluster import SimCluster
from minikafka.sim.loop import SimLoop
from minikafka.sim.message_faults import (
    DOUBLE,
    HOLD,
    KILL_GRANTING_VOTER,
    LATE,
    LOSE,
    METADATA_FETCH,
    REFUSE,
    RESET,
    Matching,
)
from minikafka.sim.plan import Fault, Plan
from minikafka.sim.plan_features import contested_votes, isr_churn, late_fetches, snapshot_starts
from minikafka.sim.run import Run, Schedule, run
from minikafka.sim.seeds import PACE, plan_of, slower
from minikafka.sim.verdicts import Deliver, Drop, Message, Reset, Verdict
from tests.sim.cluster_kit import ORDERS, Client, facts_of, simulated, simulated_orders

LINKS = [(f"n{one}", f"n{other}") for one in (1, 2, 3) for other in (1, 2, 3) if one != other]


def began(
    cluster: SimCluster, kind: str, words: str, *, lasts_s: float = 1.0, value: float = 1.0
) -> list[tuple[Message, Verdict]]:
    """Begin a fault of messages on every link; what it strikes from then on, with what becomes of it."""
    struck: list[Message] = []
    found: list[tuple[Message, Verdict]] = []
    message_faults.begin(
        kind,
        Matching(words, LINKS),
        lasts_s=lasts_s,
        value=value,
        random=Random(1),
        cluster=cluster,
        struck_one=struck.append,
    )

    def observe(message: Message, verdict: Verdict) -> None:
        if struck and struck[-1] is message:
            found.append((message, verdict))

    cluster.sim.network.observers.append(observe)
    return found


@pytest.mark.parametrize(("kind", "verdict"), [(LOSE, Drop), (RESET, Reset), (LATE, Deliver)])
def test_a_fault_strikes_the_messages_of_its_api_and_part(kind: str, verdict: type[Verdict]) -> None:
    """``MetadataFetch answer``: neither its requests, nor fetches of users' partitions."""
    with simulated() as cluster:
        cluster.create_topic("orders")
        found = began(cluster, kind, f"{METADATA_FETCH} answer", value=1.0)
        cluster.run_for(1.0)
        assert found
        assert {(message.api, message.kind) for message, _ in found} == {("Fetch", "answer")}
        assert all(b"__cluster_metadata" in message.body for message, _ in found)
        assert {type(each) for _, each in found} == {verdict}


def test_refused_requests_fail_as_refused_connections() -> None:
    """A firewall that rejects packets: callers cannot tell it from an address at which no process listens."""
    with simulated() as cluster:
        found = began(cluster, REFUSE, "BrokerHeartbeat", value=1.0)
        cluster.run_for(3.0)
        assert found
        assert {message.kind for message, _ in found} == {"request"}
        assert {verdict for _, verdict in found} == {Reset(is_refused=True)}
        causes = {str(each["why"]) for each in facts_of(cluster, "controller_silent")}
        assert any("ConnectionRefused" in why for why in causes), causes


def test_doubled_requests_arrive_twice() -> None:
    """The second copy comes later, and the first answer wins."""
    with simulated() as cluster:
        found = began(cluster, DOUBLE, "BrokerHeartbeat request", value=0.2)
        before = cluster.sim.network.marks["message_duplicated"]
        cluster.run_for(3.0)
        assert found
        assert cluster.sim.network.marks["message_duplicated"] == before + len(found)
        assert len(cluster.sim.network.doubled) == len(found)


def test_one_fetch_is_held_and_delivered_though_its_sender_died() -> None:
    """A response with records is held, no response without; it arrives after the time that was named."""
    with simulated_orders() as cluster:
        found = began(cluster, HOLD, "Fetch answer", lasts_s=2.0, value=0.0)
        cluster.run_for(2.0)
        assert found == []
        Client(cluster).send(b"a")
        [(message, verdict)] = found
        assert verdict == Deliver(2.0)
        assert b"orders" in message.body
        assert facts_of(cluster, "message_held") == [{"target": message.target, "api": "Fetch", "seconds": 2.0}]


def test_a_voter_is_killed_when_its_vote_has_left() -> None:
    """As often as named, and only voters that have granted a vote."""
    killed: list[str] = []
    with simulated() as cluster:

        def kill(name: str) -> None:
            killed.append(name)
            cluster.sim.kill(name)

        controller = cluster.controller()
        message_faults.on_granted_vote(cluster, ["n1", "n2", "n3"], 1, kill)
        cluster.crash(controller)
        cluster.run_for(3.0)
        [name] = killed
        votes = [event.node for event in cluster.sim.journal if event.kind == "vote_granted" and event.time > 1.0]
        assert name in votes
        assert name != f"n{controller}"


def test_what_is_to_be_done_sooner_is_done_in_time() -> None:
    """A fault that happens while time passes is put right when it says so, not at the next thing in the plan."""
    plan = plan_of(3, operations=1, faults=0, kinds=("crash",)).with_(operations=(), readers=0, faults=())
    running = Run(plan)
    done: list[float] = []
    loop = running.sim.loop
    running.schedule.at(
        0.5, lambda: loop.happen_at(1.0, lambda: running.schedule.at(1.25, lambda: done.append(loop.now)))
    )
    running.run()
    assert done == [1.25]


def test_a_schedule_interrupts_the_passing_of_time() -> None:
    """Only for what is due before the moment that time passes to."""
    rung: Counter[str] = Counter()
    schedule = Schedule(interrupt=lambda: rung.update(["rung"]))
    schedule.next_s = 2.0
    schedule.at(3.0, lambda: None)
    assert not rung
    schedule.at(1.0, lambda: None)
    assert rung["rung"] == 1
    assert SimLoop(1).alarmed is False


def test_times_of_messages_are_stretched_with_the_plan() -> None:
    """How late a message is follows the pace; which share is lost does not."""
    faults = [
        Fault(at_s=1.0, kind=kind, target="n1>n2", lasts_s=1.0, value=0.5, message="Vote") for kind in (LATE, LOSE)
    ]
    played = slower(plan_of(1, faults=0, kinds=("crash",)).with_(faults=tuple(faults)))
    assert [fault.value for fault in played.faults] == [0.5 * PACE, 0.5]
    assert all(fault.message == "Vote" for fault in played.faults)


KINDS = {
    isr_churn: {LOSE, RESET, LATE, DOUBLE},
    late_fetches: {HOLD},
    contested_votes: {LATE, LOSE, KILL_GRANTING_VOTER},
    snapshot_starts: {"alter_broker"},
}


@pytest.mark.parametrize("draw", KINDS, ids=[draw.__name__ for draw in KINDS])
def test_each_extra_draws_its_faults_and_its_plans_pass(draw: Callable[[Plan, Random], Plan]) -> None:
    """Ten plans have every kind between them; two of them are played."""
    plain = [plan_of(seed, kinds=("crash",), faults=2, operations=60) for seed in range(10)]
    plans = [draw(plan.with_(duration_s=plan.duration_s / PACE), Random(plan.seed)) for plan in plain]
    assert {fault.kind for plan in plans for fault in plan.faults} >= KINDS[draw]
    for plan in plans[:2]:
        report = run(Plan.from_json(slower(plan).to_json()))
        assert report.ok, report.render()


def test_settings_of_brokers_are_altered_at_run_time() -> None:
    """``alter_broker``: of one broker and of all, several at once."""
    plan = plan_of(5, kinds=("crash",), faults=0, operations=10)
    targets = ("2:log.segment.bytes=700;log.index.interval.bytes=100", ":log.segment.bytes=900")
    faults = [Fault(at_s=1.0 + number, kind="alter_broker", target=target) for number, target in enumerate(targets)]
    running = Run(plan.with_(faults=tuple(faults)))
    report = running.run()
    assert report.ok, report.render()
    image = running.cluster.brokers[1].image
    assert image.partition(ORDERS) is not None
    assert image.broker_configs == {
        "2": {"log.segment.bytes": "700", "log.index.interval.bytes": "100"},
        "": {"log.segment.bytes": "900"},
    }
