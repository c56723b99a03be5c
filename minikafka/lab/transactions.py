"""Transactions as stories: a zombie, a coordinator that dies, a transaction that hangs, and the two isolation levels.

Played in the simulator, with the production brokers and clients, in virtual time and always from the same seed, as the
rebalance is (``rebalance.py``). Beside each step stands what the coordinator has recorded, where the partition's high
watermark and last stable offset are, and what its two readers have returned: one with ``read_uncommitted``, one with
``read_committed``.

Rules for this file: a story is a script of clients' calls and faults; all else that a line shows is observed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from minikafka.client.admin import AdminClient
from minikafka.client.consumer import Consumer
from minikafka.client.producer import Producer
from minikafka.client.routing import TRANSACTION_KEY
from minikafka.client.settings import AdminConfig, ConsumerConfig, ProducerConfig
from minikafka.coordination.rule import partition_of
from minikafka.errors import BY_CODE, ProtocolError
from minikafka.lab.verbs import ScenarioError
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.verdicts import Hold, matching
from minikafka.sim.world import WALL_START_MS, SimWorld
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire.messages import ProducePartition, ProduceRequest
from minikafka.wire.records import Record, build_batch

TOPIC, PARTITIONS = "orders", 3
TRANSACTIONAL_ID = "payments"
SEED = 1
BROKERS, SHARDS = 3, 3
ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
PAUSE_S = 1.0
"""After each step: readers and markers arrive."""

VERIFICATION: Final = "transaction.partition.verification.enable"
STRANGER: Final = 9_000
"""Producer id of a late batch: no coordinator knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of a story: what was done, and how everything stands a second later."""

    at_s: float
    what: str
    state: str
    """Of the transactional id, as its coordinator describes it; empty before it is known."""
    high_watermark: int
    last_stable_offset: int
    read: Mapping[str, tuple[str, ...]]
    """Isolation level -> all values that this reader has returned so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A script, and what it needs of the brokers."""

    about: str
    play: Callable[[Stage], None]
    references: tuple[str, ...] = ("KIP-98",)
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings of the brokers that may be chosen, with what they are by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A whole run."""

    name: str
    options: Mapping[str, str]
    steps: tuple[Step, ...]


def play(name: str, options: Mapping[str, str]) -> Played:
    """Play the story of that name. ScenarioError for an option that it does not have."""
    story = STORIES[name]
    for key, value in options.items():
        if key not in story.options or value not in ("true", "false"):
            allowed = ", ".join(f"{each}=true|false" for each in story.options) or "none"
            raise ScenarioError(f"{name} has no option {key}={value}; its options: {allowed}")
    chosen = {**story.options, **options}
    with SimWorld(SEED) as sim:
        cluster = SimCluster(
            sim, brokers=BROKERS, settings={"transaction.state.log.num.partitions": str(SHARDS), **chosen}
        )
        cluster.boot()
        cluster.settle()
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        cluster.settle()
        stage = Stage(cluster)
        story.play(stage)
        return Played(name=name, options=chosen, steps=tuple(stage.steps))


class Stage:
    """The cluster, its clients, and the steps while a story is played."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.steps: list[Step] = []
        self.admin = AdminClient(AdminConfig(bootstrap_servers=cluster.bootstrap), cluster.asking_world())
        cluster.run(self.admin.start())
        self.coordinator: NodeId = cluster.run(self.admin.find_coordinator(TRANSACTIONAL_ID, TRANSACTION_KEY))
        places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        # Markers must travel, and the death of the coordinator must not be that of the leader.
        self.place = next(each for each in places if cluster.leader_of(each) != self.coordinator)
        self._read: dict[str, list[str]] = {level: [] for level in ISOLATION_LEVELS}
        for level in ISOLATION_LEVELS:
            config = ConsumerConfig(
                bootstrap_servers=cluster.bootstrap,
                client_id=level,
                isolation_level=level,
                auto_offset_reset="earliest",
            )
            consumer = Consumer(config, cluster.sim.of(level))
            cluster.sim.spawn(level, self._follow(consumer, self._read[level]))
        self._began_s = cluster.sim.loop.now

    async def _follow(self, consumer: Consumer, values: list[str]) -> None:
        await consumer.start()
        consumer.assign([self.place])
        while True:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                values += [(each.value or b"").decode() for each in records]

    # ---- what a script does ------------------------------------------------------------------------------------------

    def step(self, what: str, pause_s: float = PAUSE_S) -> None:
        """Let things settle, and note how they stand."""
        self.cluster.run_for(pause_s)
        leader = self.cluster.replica(self.cluster.leader_of(self.place), self.place)
        if leader is None:
            raise ScenarioError(f"{self.place} has no leader after: {what}")
        self.steps.append(
            Step(
                at_s=self.cluster.sim.loop.now - self._began_s,
                what=what,
                state=self._state(),
                high_watermark=leader.high_watermark,
                last_stable_offset=leader.last_stable_offset,
                read={level: tuple(values) for level, values in self._read.items()},
            )
        )

    def _state(self) -> str:
        try:
            [found] = self.cluster.run(self.admin.describe_transactions([TRANSACTIONAL_ID]))
        except ProtocolError:
            return ""
        return found.state

    def producer(self, name: str, transactional_id: str | None = TRANSACTIONAL_ID) -> Producer:
        """A producer on a machine of its own, started."""
        config = ProducerConfig(
            bootstrap_servers=self.cluster.bootstrap, client_id=name, transactional_id=transactional_id
        )
        made = Producer(config, self.cluster.sim.of(name))
        self.cluster.run(made.start(), node=name)
        return made

    def send(self, name: str, producer: Producer, value: str) -> None:
        """Send a record and wait for its acknowledgement."""
        work = producer.send_and_wait(TOPIC, value.encode(), partition=self.place.partition)
        self.cluster.run(work, node=name)

    def tried(self, name: str, work: Coroutine[Any, Any, object]) -> str:
        """What comes of a call: ``accepted``, or the name of the error."""

        async def outcome() -> str:
            try:
                await work
            except ProtocolError as error:
                return error.name
            return "accepted"

        return self.cluster.run(outcome(), node=name)

    def late_batch(self, value: str) -> str:
        """A batch of a transaction that no coordinator knows; what the leader responds."""
        records = build_batch(
            [Record(0, WALL_START_MS, value=value.encode())],
            producer_id=STRANGER,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        partition = ProducePartition(topic=TOPIC, partition=self.place.partition, records=(records,))
        request = ProduceRequest(transactional_id="forgotten", timeout_ms=5000, partitions=(partition,))
        world = self.cluster.sim.of("late")
        address = self.cluster.address_of(self.cluster.leader_of(self.place))
        answer = self.cluster.run(call(world.network, address, request, world.clock.now() + 10.0), node="late")
        code = answer.partitions[0].error_code
        return BY_CODE[code].name if code else "accepted"


# ---- the stories -----------------------------------------------------------------------------------------------------


def _isolation_levels(stage: Stage) -> None:
    one, plain = stage.producer("p1"), stage.producer("p2", None)
    run = stage.cluster.run
    run(one.begin_transaction(), node="p1")
    stage.send("p1", one, "a")
    stage.step("p1 begins a transaction and sends a")
    stage.send("p2", plain, "b")
    stage.step("p2 sends b, without a transaction: it lies behind an open one")
    run(one.commit_transaction(), node="p1")
    stage.step("p1 commits: a marker takes an offset of its own")
    run(one.begin_transaction(), node="p1")
    stage.send("p1", one, "c")
    stage.step("p1 begins another transaction and sends c")
    run(one.abort_transaction(), node="p1")
    stage.step("p1 aborts: c stays in the log, behind it the marker")
    stage.send("p2", plain, "d")
    stage.step("p2 sends d")


def _zombie_producer(stage: Stage) -> None:
    one = stage.producer("p1")
    stage.cluster.run(one.begin_transaction(), node="p1")
    stage.send("p1", one, "old")
    stage.step("p1 begins a transaction and sends old")
    stage.cluster.sim.pause("p1")
    stage.step("p1 stops, as in a long garbage collection; its process lives")
    two = stage.producer("p2")
    stage.step("p2 starts with the same transactional id: the coordinator aborts p1's transaction")
    stage.cluster.run(two.begin_transaction(), node="p2")
    stage.send("p2", two, "new")
    stage.cluster.run(two.commit_transaction(), node="p2")
    stage.step("p2 sends new in a transaction, and commits")
    stage.cluster.sim.resume("p1")
    outcome = stage.tried("p1", one.commit_transaction())
    stage.step(f"p1 wakes up and commits: {outcome}")
    outcome = stage.tried("p1", one.begin_transaction())
    stage.step(f"p1 begins a transaction: {outcome}")


def _coordinator_dies(stage: Stage) -> None:
    one = stage.producer("p1")
    stage.cluster.run(one.begin_transaction(), node="p1")
    stage.send("p1", one, "a")
    stage.step("p1 begins a transaction and sends a")
    source = node_name(stage.coordinator)
    stage.cluster.sim.network.rules.append(matching(Hold(), api="WriteTxnMarkers", source=source))
    stage.cluster.run(one.commit_transaction(), node="p1")
    stage.step(f"p1 commits; the markers of broker {stage.coordinator}, the coordinator, are held up")
    stage.cluster.crash(stage.coordinator)
    shard = TopicPartition(TRANSACTIONS_TOPIC, partition_of(TRANSACTIONAL_ID, SHARDS))
    stage.cluster.until(
        lambda: stage.cluster.leader_of(shard) not in (stage.coordinator, NO_NODE), 30.0, "another coordinator"
    )
    after = stage.cluster.run(stage.admin.find_coordinator(TRANSACTIONAL_ID, TRANSACTION_KEY))
    stage.step(f"broker {stage.coordinator} dies; broker {after} reads the decision and sends the markers")
    stage.cluster.run(one.begin_transaction(), node="p1")
    stage.send("p1", one, "b")
    stage.cluster.run(one.commit_transaction(), node="p1")
    stage.step("p1 sends b in another transaction, and commits")


def _hanging_transaction(stage: Stage) -> None:
    plain = stage.producer("p2", None)
    stage.send("p2", plain, "a")
    stage.step("p2 sends a, without a transaction")
    stage.step(f"a batch of a transaction that ended long ago arrives late: {stage.late_batch('late')}")
    stage.send("p2", plain, "b")
    stage.step("p2 sends b")
    stage.step("a minute passes, the time after which a coordinator aborts a transaction", 65.0)
    found = stage.cluster.run(stage.admin.find_hanging_transactions([stage.place], older_than_ms=0))
    for each in found:
        stage.step(f"`find-hanging` reports the transaction that begins at offset {each.start_offset}")
        abort = stage.admin.abort_transaction(
            stage.place,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            coordinator_epoch=each.coordinator_epoch,
        )
        stage.cluster.run(abort)
        stage.step("`transactions abort` writes its marker")
    if not found:
        stage.step("`find-hanging` reports nothing")


STORIES: Final[Mapping[str, Story]] = {
    "isolation-levels": Story(
        about="A committed and an aborted transaction, read with read_uncommitted and with read_committed",
        play=_isolation_levels,
    ),
    "zombie-producer": Story(about="A producer wakes up after its successor has committed", play=_zombie_producer),
    "coordinator-dies": Story(
        about="A transaction coordinator dies between its decision and the markers", play=_coordinator_dies
    ),
    "hanging-transaction": Story(
        about="A transaction that no coordinator knows holds back the last stable offset",
        play=_hanging_transaction,
        references=("KIP-664", "KIP-890"),
        options={VERIFICATION: "false"},
    ),
}


# ---- how they are shown ----------------------------------------------------------------------------------------------


def rows(played: Played) -> list[tuple[str, ...]]:
    """Head and lines: time in virtual seconds, what happened, state, HW, LSO, what each reader has returned."""
    found: list[tuple[str, ...]] = [("time", "what happened", "transaction", "HW", "LSO", *ISOLATION_LEVELS)]
    for each in played.steps:
        read = (" ".join(each.read[level]) for level in ISOLATION_LEVELS)
        marks = (str(each.high_watermark), str(each.last_stable_offset))
        found.append((f"{each.at_s:.3f}", each.what, each.state, *marks, *read))
    return found


def as_json(played: Played) -> dict[str, Any]:
    """One run: exactly scenario, options, steps. Times are virtual seconds."""
    return {
        "scenario": played.name,
        "options": dict(played.options),
        "steps": [
            {
                "at_s": round(each.at_s, 6),
                "what": each.what,
                "state": each.state or None,
                "high_watermark": each.high_watermark,
                "last_stable_offset": each.last_stable_offset,
                "read": {level: list(values) for level, values in each.read.items()},
            }
            for each in played.steps
        ],
    }
