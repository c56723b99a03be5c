"""Random histories of a correct cluster have no finding; one random damage is always found, and by its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from minikafka.check.history import Expectations, Operation, Recorder, Send, read_history, to_line
from minikafka.check.verdict import Verdict, check_operations
from minikafka.types import TopicPartition

COMPLETE = Expectations(final_read_complete=True, replicas_complete=True)
TOPIC = "t"
NODES = (1, 2, 3)


@dataclass
class Cluster:
    """What a correct run leaves behind: logs of two partitions, and what became of each send."""

    random: Random
    logs: dict[int, list[str]] = field(default_factory=lambda: {0: [], 1: []})
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    replicas: dict[tuple[int, int], list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.operations.append, lambda: 0.0)

    def produce(self, count: int) -> None:
        """Three processes; every send is acknowledged, refused, or unknown and perhaps written."""
        for number in range(count):
            value = f"v{number}"
            partition = self.random.randrange(2)
            process = f"p{self.random.randrange(3)}"
            op = self.recorder.send(process, TOPIC, value, key=str(partition))
            fate = self.random.choice(["ok"] * 6 + ["failed", "unknown", "unknown-written", "open"])
            if fate in {"ok", "unknown-written"}:
                self.places[value] = (partition, len(self.logs[partition]))
                self.logs[partition].append(value)
            if fate == "ok":
                self.recorder.acknowledged(op, partition=partition, offset=self.places[value][1], leader_epoch=3)
                self.acknowledged.append(value)
            elif fate == "failed":
                self.recorder.failed(op, "NOT_ENOUGH_REPLICAS")
            elif fate.startswith("unknown"):
                self.recorder.unknown(op, "REQUEST_TIMED_OUT")
            if self.random.random() < 0.1:
                self.read_some()

    def read_some(self) -> None:
        """A consumer that begins anywhere and goes on for a few polls."""
        partition = self.random.randrange(2)
        log = self.logs[partition]
        position = self.random.randrange(len(log) + 1)
        process = f"c{self.random.randrange(2)}"
        self.recorder.seek(process, TOPIC, partition, position)
        for _ in range(self.random.randrange(4)):
            position = self.poll(process, partition, position, log)

    def poll(self, process: str, partition: int, position: int, log: list[str]) -> int:
        end = min(len(log), position + self.random.randrange(5))
        rows = [(offset, log[offset]) for offset in range(position, end)]
        self.recorder.poll(
            process,
            TOPIC,
            partition,
            rows,
            position_before=position,
            position_after=end,
            high_watermark=len(log),
        )
        return end

    def finish(self) -> Verdict:
        """The final read of everything and the replicas' logs."""
        self.recorder.assign("final", [TopicPartition(TOPIC, partition) for partition in self.logs])
        for partition, log in self.logs.items():
            position = 0
            while position < len(log):
                position = self.poll("final", partition, position, log)
            for node in NODES:
                held = self.replicas.get((node, partition), log)
                rows = [(offset, 3, value) for offset, value in enumerate(held)]
                self.recorder.replica(node, TOPIC, partition, high_watermark=len(log), rows=rows)
        return check_operations(self.operations, COMPLETE)


def cluster(seed: int) -> Cluster:
    """A run of forty sends with at least two acknowledged in one partition."""
    made = Cluster(Random(seed))
    made.produce(40)
    return made


seeds = st.integers(0, 2**32)


@settings(max_examples=60)
@given(seeds)
def test_a_correct_run_has_no_finding(seed: int) -> None:
    """No false alarm, whatever the mix of outcomes, readers and positions; through lines of JSON all the same."""
    made = cluster(seed)
    verdict = made.finish()
    assert verdict.ok, verdict.render()
    again = check_operations(read_history([to_line(operation) for operation in made.operations]), COMPLETE)
    assert again.to_json() == verdict.to_json()


@settings(max_examples=60)
@given(seeds, st.data())
def test_a_dropped_acknowledged_record_is_lost(seed: int, data: st.DataObject) -> None:
    """Cut off the end, or out of the middle with all after it moved up (a log that was rewritten)."""
    made = cluster(seed)
    value = data.draw(st.sampled_from(made.acknowledged))
    partition, offset = made.places[value]
    del made.logs[partition][offset]
    verdict = made.finish()
    assert value in {finding.evidence()["value"] for finding in verdict.of("lost-write")}, verdict.render()


@settings(max_examples=60)
@given(seeds, st.data())
def test_two_swapped_records_are_named(seed: int, data: st.DataObject) -> None:
    """Two acknowledged records of one partition at each other's place, on every replica."""
    made = cluster(seed)
    partition = data.draw(st.sampled_from([0, 1]))
    here = [value for value in made.acknowledged if made.places[value][0] == partition]
    one, two = data.draw(st.permutations(here))[:2]
    log = made.logs[partition]
    first, second = made.places[one][1], made.places[two][1]
    log[first], log[second] = log[second], log[first]
    verdict = made.finish()
    named = {finding.offset for finding in verdict.of("inconsistent-offsets")}
    assert named == {first, second}, verdict.render()
    assert "lost-write" not in verdict.totals
    processes = {send.value: send.process for send in made.operations if isinstance(send, Send)}
    if processes[one] == processes[two]:
        assert verdict.of("nonmonotonic-send"), verdict.render()


@settings(max_examples=60)
@given(seeds, st.data())
def test_a_duplicated_record_is_named(seed: int, data: st.DataObject) -> None:
    """An acknowledged record appended once more at the end of a log."""
    made = cluster(seed)
    value = data.draw(st.sampled_from(made.acknowledged))
    partition = data.draw(st.sampled_from([0, 1]))
    made.logs[partition].append(value)
    verdict = made.finish()
    assert verdict.totals == {"duplicate": 1}, verdict.render()
    assert verdict.findings[0].evidence()["value"] == value


@settings(max_examples=60)
@given(seeds, st.data())
def test_an_altered_replica_is_named(seed: int, data: st.DataObject) -> None:
    """One record on one replica is another one."""
    made = cluster(seed)
    value = data.draw(st.sampled_from(made.acknowledged))
    node = data.draw(st.sampled_from(NODES))
    partition, offset = made.places[value]
    held = list(made.logs[partition])
    held[offset] = "damaged"
    made.replicas[node, partition] = held
    verdict = made.finish()
    (finding,) = verdict.of("diverged")
    assert (finding.partition, finding.offset) == (partition, offset)
    (missing,) = verdict.of("acknowledged-missing-on-replica")
    assert missing.evidence()["holdings"] == [[node, "damaged"]]
    assert set(verdict.totals) == {"diverged", "acknowledged-missing-on-replica"}, verdict.render()
