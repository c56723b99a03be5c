"""Random histories of a cluster: what must hold after any sequence of decisions.

A model beside the controller keeps how many records each replica has, and how many are committed: a clean election must
never choose a replica that lacks a committed one (S16, S19, KIP-966), whatever restarts, cuts and power losses came.
"""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from minikafka.errors import BrokerIdNotRegistered, InvalidRequest
from minikafka.quorum.image import MetadataImage, PartitionImage
from minikafka.quorum.records import decode, encode
from minikafka.types import TopicPartition
from minikafka.wire.admin import CreatePartitionsRequest, NewPartitions
from minikafka.wire.messages import (
    AllocateProducerIdsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    UnregisterBrokerRequest,
)
from tests.rules.controller_kit import Cluster

OPERATIONS = """
produce produce produce expand expand expand expand beat beat shrink shrink lose kill restart stop prefer retry unclean
replace create delete ids move move cancel enlarge minimum unregister
""".split()


class History:
    """A cluster of four brokers, two topics, and the model of their logs."""

    def __init__(self, *, elr: bool, unclean: bool, min_isr: int) -> None:
        self.cluster = Cluster(0, elr=elr, unclean=unclean, min_isr=min_isr)
        for node in range(1, 5):
            self.cluster.disks[node] = (f"{node}a",)
            self.cluster.start(node)
        self.elr = elr
        self.unclean_by_itself = unclean
        self.cluster.create("a", partitions=2, factor=3)
        self.cluster.create("b", partitions=1, factor=2)
        self.records: dict[tuple[TopicPartition, int], int] = defaultdict(int)
        self.committed: dict[TopicPartition, int] = defaultdict(int)
        self.held: dict[tuple[TopicPartition, int, tuple[str, ...]], bool] = defaultdict(lambda: True)
        """Did the disk ever have this replica? One that was put in after the partition was made must catch up first."""
        self.clean_elections = 0
        self.reassigned = 0
        self.kept_out = 0
        self.unregistered = 0

    @property
    def image(self) -> MetadataImage:
        return self.cluster.image

    def needed(self, tp: TopicPartition, state: PartitionImage) -> int:
        """The in-sync replicas without which nothing is committed."""
        minimum = self.cluster.controller.policy.min_insync_replicas(self.image.topics[tp.topic])
        return min(minimum, len(set(state.replicas) - set(state.adding)))

    def partitions(self) -> list[tuple[TopicPartition, PartitionImage]]:
        return [(TopicPartition(topic.name, each.partition), each) for topic, each in self.image.sorted_partitions()]

    def step(self, operation: str, node: int, pick: int) -> None:
        before = self.image
        getattr(self, operation)(node, pick)
        self.check(before)
        if operation != "unclean" and not self.unclean_by_itself:
            self.check_disks(before)

    # ---- what may happen ----

    def produce(self, node: int, pick: int) -> None:
        """acks=all: the record is committed once the whole ISR has it, and refused when the ISR is too small."""
        for tp, state in self.partitions():
            if state.leader != -1 and len(state.isr) >= self.needed(tp, state):
                for member in state.isr:
                    self.records[tp, member] = self.committed[tp] + 1
                self.committed[tp] += 1

    def lose(self, node: int, pick: int) -> None:
        """Cut off, its process lives on."""
        self.cluster.lose(node)

    def beat(self, node: int, pick: int) -> None:
        if node in self.image.brokers:
            self.cluster.heartbeat(node)

    def kill(self, node: int, pick: int) -> None:
        """Power is cut and nothing was synced; then it starts again."""
        for tp, _ in self.partitions():
            self.records[tp, node] = 0
        self.cluster.start(node)

    def replace(self, node: int, pick: int) -> None:
        """Another disk is put in, an empty one or one that was there before; what it had is what it has."""
        former = self.cluster.disks[node]
        disk = self.cluster.disks[node] = (f"{node}{'ab'[pick % 2]}",)
        for tp, _ in self.partitions():
            self.records[tp, node] = 0
            self.held.setdefault((tp, node, former), True)
            self.held.setdefault((tp, node, disk), False)
        self.cluster.start(node)

    def restart(self, node: int, pick: int) -> None:
        """A clean stop without the controller, then a start."""
        self.cluster.start(node, clean=True)

    def stop(self, node: int, pick: int) -> None:
        if node in self.image.brokers:
            self.cluster.stop(node)

    def shrink(self, node: int, pick: int) -> None:
        for tp, state in self.partitions():
            if state.leader not in {-1, node}:
                self.cluster.set_isr(*(member for member in state.isr if member != node), tp=tp)

    def expand(self, node: int, pick: int) -> None:
        """A follower has caught up with the leader and joins."""
        for tp, state in self.partitions():
            if state.leader != -1 and node in state.replicas and self.image.eligible(node):
                self.records[tp, node] = self.records[tp, state.leader]
                self.held[tp, node, self.cluster.disks[node]] = True
                self.cluster.set_isr(*sorted({*state.isr, node}), tp=tp)

    def prefer(self, node: int, pick: int) -> None:
        self.cluster.commit(self.cluster.controller.prefer_leaders(self.image))

    def retry(self, node: int, pick: int) -> None:
        self.cluster.commit(self.cluster.controller.elect_leaderless(self.image))

    def unclean(self, node: int, pick: int) -> None:
        request = ElectLeadersRequest(election_type="unclean")
        self.cluster.commit(self.cluster.controller.elect_leaders(self.image, request))

    def move(self, node: int, pick: int) -> None:
        """A partition is to have other replicas; they begin empty where they held nothing."""
        others = [other for other in range(1, 5) if other != node]
        ways = list(permutations(others, pick % 3))
        self.reassign(pick, (node, *ways[pick % len(ways)]))

    def cancel(self, node: int, pick: int) -> None:
        self.reassign(pick, None)

    def reassign(self, pick: int, target: tuple[int, ...] | None) -> None:
        """No step of a reassignment takes a partition below the in-sync replicas that it needs."""
        tp, before = self.partitions()[pick % len(self.partitions())]
        had_enough = len(before.isr) >= self.needed(tp, before)
        if self.cluster.reassign(target, tp=tp).error_code:
            return
        after = self.cluster.state(tp)
        assert not had_enough or len(after.isr) >= self.needed(tp, after), (before, after)
        self.reassigned += after != before

    def enlarge(self, node: int, pick: int) -> None:
        count = len(self.image.topics["b"].partitions) + 1
        request = CreatePartitionsRequest(topics=(NewPartitions(name="b", count=count),))
        if count <= 3:
            self.cluster.commit(self.cluster.controller.create_partitions(self.image, request))

    def minimum(self, node: int, pick: int) -> None:
        self.cluster.configure("a", min_insync_replicas=str(1 + pick % 3))

    def create(self, node: int, pick: int) -> None:
        self.cluster.create("c", partitions=1 + pick % 3, factor=1 + pick % 2, configs={"retention.ms": str(pick)})

    def delete(self, node: int, pick: int) -> None:
        request = DeleteTopicsRequest(topics=("c",))
        self.cluster.commit(self.cluster.controller.delete_topics(self.image, request))
        for tp in [tp for tp in self.committed if tp.topic == "c"]:
            del self.committed[tp]
        for key in [key for key in self.records if key[0].topic == "c"]:
            del self.records[key]
        for disk in [key for key in self.held if key[0].topic == "c"]:
            del self.held[disk]

    def ids(self, node: int, pick: int) -> None:
        broker = self.image.brokers.get(node)
        if broker is not None:
            request = AllocateProducerIdsRequest(broker_id=node, broker_epoch=broker.broker_epoch)
            self.cluster.commit(self.cluster.controller.allocate_producer_ids(self.image, request))

    def unregister(self, node: int, pick: int) -> None:
        """It is given up: what it holds is moved away, and it is forgotten once all has moved and it is fenced."""
        for number, (_, state) in enumerate(self.partitions()):
            if node in state.replicas and not state.assignment.under_way:
                self.reassign(number, tuple(other for other in (1, 2, 3, 4) if other != node)[: 1 + pick % 3])
        if pick % 2:
            self.cluster.lose(node)
        request = UnregisterBrokerRequest(broker_id=node)
        try:
            self.cluster.commit(self.cluster.controller.unregister(self.image, request))
        except (BrokerIdNotRegistered, InvalidRequest):
            return
        self.unregistered += 1

    # ---- what must hold ----

    def check(self, before: MetadataImage) -> None:
        for tp, state in self.partitions():
            self.check_state(tp, state)
            old = before.partition(tp)
            self.clean_elections += old is not None and state.leader not in {-1, old.leader} and state.recovered
            if old is not None and before.topics[tp.topic].topic_id == self.image.topics[tp.topic].topic_id:
                for gone in set(old.replicas) - set(state.replicas):
                    self.records[tp, gone] = 0
                    assert state.leader_epoch > old.leader_epoch
                assert state.leader_epoch >= old.leader_epoch
                assert state.partition_epoch >= old.partition_epoch
                assert (state.leader_epoch > old.leader_epoch) >= (state.leader != old.leader)
                assert (state.partition_epoch > old.partition_epoch) == (state != old)
            self.check_nothing_is_lost(tp, state)
        self.check_snapshot()

    def check_state(self, tp: TopicPartition, state: PartitionImage) -> None:
        assert state.leader == -1 or state.leader in state.isr, "S13"
        assert state.leader == -1 or self.image.eligible(state.leader), "KIP-841"
        assert list(state.isr) == [node for node in state.replicas if node in state.isr]
        assert set(state.elr) <= set(state.replicas) - set(state.isr)
        assert set(state.isr) <= set(state.replicas)
        assert not set(state.adding) & set(state.removing)
        assert state.assignment.target
        if state.recovered:
            assert not state.assignment.under_way or not set(state.assignment.target) <= set(state.isr), "KIP-455"
        if len(state.isr) >= self.needed(tp, state):
            assert state.elr == ()
        if self.elr:
            assert all(map(self.image.eligible, state.isr)), "KIP-841"
            assert (state.leader == -1) == (state.isr == ())
            assert bool(state.last_known_elr) <= (state.leader == -1)
        else:
            assert state.isr or state.last_known_elr, "only a new disk empties it"
            assert state.elr == ()
        assert bool(state.last_known_dirs) == bool(state.last_known_elr)

    def check_nothing_is_lost(self, tp: TopicPartition, state: PartitionImage) -> None:
        if state.leader == -1 or not self.elr:
            return
        if state.recovered:
            for member in state.isr:
                assert self.records[tp, member] >= self.committed[tp], (tp, state)
        else:
            self.committed[tp] = min(self.committed[tp], self.records[tp, state.leader])

    def check_disks(self, before: MetadataImage) -> None:
        """Nobody is elected with a disk that never had the partition, unless somebody accepts the loss."""
        for tp, state in self.partitions():
            old = before.partition(tp)
            if old is not None and old.leader != state.leader != -1:
                assert self.held[tp, state.leader, self.cluster.disks[state.leader]], (tp, state)
            waits = state.leader == -1 and not {*state.isr, *state.elr}
            self.kept_out += waits and any(map(self.image.eligible, state.last_known_elr))

    def check_snapshot(self) -> None:
        payloads = [encode(record) for record in self.image.records()]
        empty = MetadataImage(cluster_id=self.image.cluster_id)
        loaded = empty.replay_all([decode(each) for each in payloads], self.image.offset, self.image.epoch)
        assert loaded == self.image


def play(history: History, steps: list[tuple[str, int, int]]) -> None:
    for operation, node, pick in steps:
        history.step(operation, node, pick)


@given(
    elr=st.booleans(),
    unclean=st.booleans(),
    min_isr=st.integers(1, 3),
    steps=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(1, 4), st.integers(0, 5)), max_size=40),
)
def test_any_history_keeps_the_rules(*, elr: bool, unclean: bool, min_isr: int, steps: list[tuple[str, int, int]]):
    """S13, S16, S19, KIP-841, KIP-966: state, epochs and snapshots after every decision."""
    play(History(elr=elr, unclean=unclean, min_isr=min_isr), steps)


def test_long_histories_lose_nothing_that_was_committed():
    """Some losses need a dozen steps in the right order: many long walks, the same on every run."""
    clean_elections = reassigned = kept_out = unregistered = 0
    for seed in range(40):
        chance = random.Random(seed)
        history = History(elr=seed % 4 != 3, unclean=False, min_isr=1 + seed % 3)
        operations = [each for each in OPERATIONS if each != "unclean"]
        play(history, [(chance.choice(operations), chance.randint(1, 4), chance.randint(0, 5)) for _ in range(120)])
        clean_elections += history.clean_elections
        reassigned += history.reassigned
        kept_out += history.kept_out
        unregistered += history.unregistered
    assert clean_elections > 300
    assert reassigned > 100
    assert kept_out > 100
    assert unregistered > 0


def test_the_model_catches_an_elr_that_forgets_unclean_stops():
    """The oracle must be able to fail: with unclean stops taken for clean ones, a committed record is lost."""
    history = History(elr=True, unclean=False, min_isr=2)
    tp = TopicPartition("b", 0)
    first, second = history.cluster.state(tp).replicas
    history.step("produce", 1, 0)
    history.step("lose", second, 0)
    history.step("lose", first, 0)
    history.records[tp, second] = 0
    history.cluster.start(second, clean=True)
    try:
        history.check(history.image)
    except AssertionError:
        return
    raise AssertionError("a replica without the committed record leads, and nobody noticed")
