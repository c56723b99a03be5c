"""The fold against the replicas themselves: after every step of a simulated cluster, both say the same."""

from __future__ import annotations

import pytest

from minikafka.replication.leader import LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.sim.log_invariants import batches_of
from minikafka.sim.plan import FSYNC, Fault, Operation, Plan
from minikafka.sim.seeds import plan_of
from minikafka.types import NO_EPOCH, TopicPartition
from minikafka.ui.journal import Entry
from minikafka.ui.record import RecordedRun
from minikafka.ui.states import (
    DOWN,
    FENCED,
    FOLLOWER,
    LEADER,
    NO_ROLE,
    STOPPED,
    UP,
    Replica,
    Run,
    Story,
    cut,
    grown,
    runs_of,
)

ORDERS = TopicPartition("orders", 0)


def directly(partition: Partition) -> dict[str, object]:
    """What the replica itself says, in the words of the fold."""
    role, log = partition.role, partition.log
    leads = isinstance(role, LeaderReplica)
    return {
        "role": NO_ROLE if role is None else LEADER if leads else FOLLOWER,
        "epoch": partition.epoch,
        "leader": partition.leader,
        "start": log.start_offset,
        "leo": log.end_offset,
        "hw": partition.high_watermark,
        "isr": role.isr if leads else (),
        "asked": role.proposal.isr if leads and role.proposal else None,
        "remotes": tuple(sorted((n, r.end_offset) for n, r in role.remotes.items())) if leads else (),
        "runs": runs_of(log.epochs.entries, log.start_offset, log.end_offset),
    }


class Compared:
    """Folds what a run tells, and after each of its steps asks the replicas."""

    def __init__(self, run: RecordedRun, name: TopicPartition = ORDERS) -> None:
        self.run = run
        self.name = name
        self.story = Story(str(name))
        self.looks = 0
        self.roles: set[str] = set()
        self._seen = 0
        run.sim.loop.after_step.append(self._after_step)

    def _after_step(self) -> None:
        entries = self.run.recording.entries
        if len(entries) == self._seen or not self.run._listening:
            return
        for entry in entries[self._seen :]:
            self.story.apply(entry)
        self._seen = len(entries)
        for node in self.run.cluster.nodes:
            told = self.story.replicas.get(node)
            partition = self.run.cluster.replica(node, self.name)
            if partition is None:
                # Nothing is claimed to serve that does not exist; a broker that starts has not taken it up yet.
                assert told is None or told.role == NO_ROLE, (node, told)
                continue
            assert told is not None, (node, partition)
            wanted = directly(partition)
            assert {name: getattr(told, name) for name in wanted} == wanted, (node, entries[-1])
            self.looks += 1
            self.roles.add(told.role)


@pytest.mark.parametrize("seed", [3, 7])
def test_every_step_says_what_the_replicas_say(seed: int):
    """Issue 3 item 7: role, epoch, LEO, HW, ISR, proposal, remote LEOs, epochs of the log; crashes and power cuts too."""
    run = RecordedRun(plan_of(seed, operations=60, faults=6))
    compared = Compared(run)
    journal, report = run.recorded()
    assert report.ok
    assert compared.looks > 100
    assert {LEADER, FOLLOWER} <= compared.roles
    kinds = {entry.kind for entry in journal.entries}
    assert {"batch_appended", "follower_fetched", "hw_advanced", "message_sent"} <= kinds


def test_runs_are_the_epochs_of_the_batches():
    """The cells' colours: an offset's epoch is the one in its batch on that replica's disk."""
    operations = tuple(Operation(at_s=0.2 + n * 0.1, client="p1", topic="orders", partition=0) for n in range(30))
    faults = (Fault(at_s=1.0, kind="crash", target="leader:orders-0", lasts_s=1.0),)
    run = RecordedRun(
        Plan(
            seed=5,
            policy=FSYNC,
            operations=operations,
            faults=faults,
            duration_s=4.0,
            settings={"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "250"},
        )
    )
    checked = 0

    class Last(Compared):
        def _after_step(self) -> None:
            nonlocal checked
            super()._after_step()
            for node, told in self.story.replicas.items():
                partition = run.cluster.replica(node, ORDERS)
                if partition is None or told.process != UP or checked > 3000:
                    continue
                for batch in batches_of(partition.log, told.start, told.leo)[-3:]:
                    assert any(
                        r.base <= batch.base_offset and batch.end_offset <= r.end and r.epoch == batch.epoch
                        for r in told.runs
                    )
                    checked += 1

    compared = Last(run)
    _, report = run.recorded()
    assert report.ok
    assert checked > 100
    assert max(len(replica.runs) for replica in compared.story.replicas.values()) >= 2


def entry(kind: str, node: str = "n1", **facts: object) -> Entry:
    return Entry(at_s=1.0, node=node, kind=kind, facts={"partition": "orders-0", **facts})


def led() -> Story:
    story = Story("orders-0")
    story.apply(
        entry(
            "became_leader",
            epoch=2,
            replicas=[1, 2, 3],
            isr=[1, 2],
            start=0,
            leo=5,
            hw=3,
            epochs=[(0, 0), (2, 4)],
            remotes={"2": -1, "3": 4},
        )
    )
    return story


def test_a_role_that_is_taken_up_says_all():
    """A window may begin anywhere: who takes up a role tells where it stands."""
    assert led().replicas[1] == Replica(
        node=1,
        role=LEADER,
        leader=1,
        epoch=2,
        start=0,
        leo=5,
        hw=3,
        runs=(Run(base=0, end=4, epoch=0), Run(base=4, end=5, epoch=2)),
        isr=(1, 2),
        remotes=((2, -1), (3, 4)),
    )
    assert led().decided.replicas == (1, 2, 3)


def test_another_partitions_events_change_nothing():
    """One page, one partition: a follower's HW of payments-0 is not orders-0's."""
    story = led()
    assert story.apply(Entry(at_s=1.0, node="1", kind="hw_advanced", facts={"partition": "payments-0", "new": 9})) == ()
    assert story.replicas == led().replicas


def test_a_kill_keeps_what_the_disk_may_hold():
    """After kill -9 the log is shown as last known, without a role; a broker that opens no such log has lost it."""
    story = led()
    assert story.apply(Entry(at_s=2.0, node="n1", kind="node_killed")) == (1,)
    dead = story.replicas[1]
    assert (dead.process, dead.role, dead.leo, dead.isr, dead.remotes) == (DOWN, NO_ROLE, 5, (), ())
    assert story.apply(Entry(at_s=3.0, node="n1", kind="data_directory_opened")) == (1,)
    assert story.replicas == {}


def test_a_silent_broker_is_fenced_by_the_controllers_word():
    """A kill -9 of a real broker leaves no line of its own; another broker's controller says that it is silent."""
    story = led()
    fenced = Entry(at_s=2.0, node="3", kind="broker_fenced", facts={"broker": 1, "why": "silent"})
    assert story.apply(fenced) == (1,)
    assert (story.replicas[1].process, story.replicas[1].leo) == (FENCED, 5)
    assert story.apply(Entry(at_s=3.0, node="3", kind="broker_unfenced", facts={"broker": 1})) == (1,)
    assert story.replicas[1].process == UP


def test_a_clean_stop_is_not_a_kill():
    """A broker that has closed its logs and then ends has stopped, not died."""
    story = led()
    story.apply(Entry(at_s=2.0, node="n1", kind="data_directory_closed"))
    story.apply(Entry(at_s=2.1, node="n1", kind="node_killed"))
    assert story.replicas[1].process == STOPPED


def test_the_controllers_word_and_the_leaders_are_told_apart():
    """isr_shrunk comes from both: the leader's has `epoch`, the controller's `leader_epoch`, also on another broker."""
    story = led()
    assert story.apply(entry("isr_shrunk", "n3", leader_epoch=2, partition_epoch=9, old=[1, 2], new=[1])) == ()
    assert (story.decided.isr, story.replicas[1].isr) == ((1,), (1, 2))
    assert story.apply(entry("isr_shrunk", epoch=2, old=[1, 2], new=[1])) == (1,)
    assert story.replicas[1].isr == (1,)
    story.apply(entry("leader_lost", "n3", leader_epoch=3, partition_epoch=10, leader=-1, isr=[1]))
    assert (story.decided.leader, story.decided.epoch) == (-1, 3)
    story.apply(entry("leader_elected", "n3", leader_epoch=2, leader=1, isr=[1, 2]))
    assert story.decided.epoch == 3, "an older word changes nothing"


def test_cutting_and_growing_runs():
    """Truncation, a raised start, and offsets whose epoch was never told."""
    runs = (Run(base=0, end=4, epoch=0), Run(base=4, end=9, epoch=2))
    assert cut(runs, 0, 3) == (Run(base=0, end=3, epoch=0),)
    assert cut(runs, 5, 8) == (Run(base=5, end=8, epoch=2),)
    assert cut(runs, 0, 11)[-1] == Run(base=9, end=11, epoch=NO_EPOCH)
    assert cut((), 2, 4) == (Run(base=2, end=4, epoch=NO_EPOCH),)
    assert cut(runs, 9, 9) == ()
    assert grown(runs, 9, 12, 2)[-1] == Run(base=4, end=12, epoch=2)
    assert grown(runs, 9, 10, 3)[-1] == Run(base=9, end=10, epoch=3)
