"""Bugs of the sessions that serve Kafka's clients: order, pipelining, acks=0, topic ids, torn frames, acks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from msgspec import structs

from minikafka.broker.api import produce
from minikafka.broker.image_directory import ImageDirectory
from minikafka.broker.kafka_pipeline import Pipeline
from minikafka.broker.kafka_session import KafkaSession
from minikafka.sim.kafka_plans import BY_ID, kafka_clients
from minikafka.sim.plan import Fault, Operation, Plan
from minikafka.sim.seeds import plan_of
from minikafka.wire.kafka.frames import FrameReader
from minikafka.wire.messages import ProduceRequest
from tests.sim.planted import LOSS, Planted

# ---- plans -----------------------------------------------------------------------------------------------------------


def with_clients(seed: int) -> Plan:
    """Kafka clients among brokers that stand still, die, or are cut off."""
    return kafka_clients(plan_of(seed, kinds=("pause", "isolate", "crash")), Random(f"{seed}/kafka"))


def with_bursts(seed: int) -> Plan:
    """One idempotent producer with bursts of requests, some of which are late inside the broker."""
    random = Random(f"{seed}/bursts")
    plan = plan_of(seed, operations=40, faults=2, kinds=("pause",))
    topic = plan.topics[0]
    operations = tuple(
        Operation(at_s=at_s + number * 0.004, client="k1", topic=topic.name, partition=number % topic.partitions)
        for at_s in sorted(round(random.uniform(0.5, plan.duration_s), 3) for _ in range(8))
        for number in range(30)
    )
    late = Fault(at_s=0.4, kind="late_messages", target="client:k1>all", lasts_s=60.0, value=0.3)
    kafka = {"k1": {"acks": -1, "in_flight": 5, "produce": 9}}
    every = tuple(sorted((*plan.operations, *operations), key=lambda each: each.at_s))
    return plan.with_(kafka=kafka, operations=every).with_faults([replace(late, message="Produce request")])


def without_answers(seed: int) -> Plan:
    """A producer with acks=0 beside leaders that stand still until others lead, and do not lead again by themselves."""
    random = Random(f"{seed}/without")
    plan = plan_of(seed, kinds=("pause", "isolate"))
    topic = plan.topics[0]
    still = Fault(at_s=round(random.uniform(2.0, 10.0), 3), kind="pause", target=f"leader:{topic.name}-0", lasts_s=10.0)
    operations = tuple(
        Operation(at_s=at_s, client="k1", topic=topic.name, partition=random.randrange(topic.partitions))
        for at_s in sorted(round(random.uniform(0.2, plan.duration_s), 3) for _ in range(60))
    )
    every = tuple(sorted((*plan.operations, *operations), key=lambda each: each.at_s))
    return plan.with_(
        kafka={"k1": {"acks": 0, "in_flight": 5, "produce": 9}},
        operations=every,
        settings={**plan.settings, "auto.leader.rebalance.enable": "false"},
    ).with_faults([still])


def with_lives(seed: int) -> Plan:
    """A producer that names by its id a topic that is deleted and created again."""
    random = Random(f"{seed}/lives")
    plan = plan_of(seed, operations=60, faults=3, kinds=("pause", "crash"))
    lives = Fault(at_s=0.5, kind="topic_lives", target="scratch", lasts_s=random.choice((0.1, 1.0)), value=4.0)
    operations = tuple(
        Operation(at_s=round(0.6 + number * 0.05, 3), client="k1", topic="scratch", partition=0)
        for number in range(120)
    )
    kafka = {"k1": {"acks": -1, "in_flight": 5, "produce": BY_ID}}
    every = tuple(sorted((*plan.operations, *operations), key=lambda each: each.at_s))
    return plan.with_(kafka=kafka, operations=every).with_faults([lives])


# ---- what is put in place of a rule ----------------------------------------------------------------------------------


def whatever_came(self: Pipeline) -> Any:
    """The next request begins at once, whatever became of those before it."""
    if self._started == len(self._pending):
        return None
    self._started += 1
    return self._pending[self._started - 1]


def as_they_are_ready(self: Pipeline) -> list[Any]:
    """Answers leave as soon as they are there."""
    done = [each for each in list(self._pending)[: self._started] if each.is_done]
    for each in done:
        self._pending.remove(each)
        self._started -= 1
    return [each.answer for each in done if each.answer is not None]


def without_a_word(original: Callable[..., Any]) -> Callable[..., Any]:
    """A failed Produce with acks=0 leaves the connection open."""

    def encoded(self: KafkaSession, pending: Any, response: Any) -> Any:
        return None if pending.is_unanswered else original(self, pending, response)

    return encoded


def by_the_first_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """The name of a topic id is kept when its topic is deleted."""
    names: dict[str, str] = {}

    def topic_name(self: ImageDirectory, topic_id: str) -> Any:
        known = original(self, topic_id)
        if known is not None:
            names[topic_id] = known
        return names.get(topic_id)

    return topic_name


def whatever_the_id(original: Callable[..., Any]) -> Callable[..., Any]:
    """A batch is appended without a look at the topic id that its request names."""

    def append(replicas: Any, name: Any, item: Any, *given: Any) -> Any:
        return original(replicas, name, structs.replace(item, topic_id=None), *given)

    return append


def without_torn_sizes(original: Callable[..., Any]) -> Callable[..., Any]:
    """The bytes of a frame's size that come alone are dropped."""

    def filled(self: FrameReader, size: int) -> Any:
        frames = original(self, size)
        if not self.announced and 0 < self._end - self._begin < 4:
            self._begin = self._end
        return frames

    return filled


def with_one_replica(original: Callable[..., Any]) -> Callable[..., Any]:
    """acks=all is handled as acks=1."""

    def answer(self: KafkaSession, pending: Any, api: str, request: Any, context: Any) -> Any:
        if isinstance(request, ProduceRequest) and request.acks == -1:
            request = structs.replace(request, acks=1)
        return original(self, pending, api, request, context)

    return answer


SESSION_CLUSTERS = (
    Planted(
        name="answers_as_they_are_ready",
        story="answers of a Kafka connection leave as soon as they are ready, not in the order of the requests",
        caught_by=("answers_out_of_order",),
        patches=[(Pipeline, "next", whatever_came), (Pipeline, "answered", as_they_are_ready)],
        make=with_bursts,
        drawn="kafka_clients",
        seed=0,
    ),
    Planted(
        name="produce_begins_before_the_append",
        story="a Produce request is handled before the one in front of it on its connection is appended",
        caught_by=("pipelined_append_out_of_order",),
        patches=[(Pipeline, "next", whatever_came)],
        make=with_bursts,
        drawn="kafka_clients",
        seed=0,
    ),
    Planted(
        name="acks_0_fails_in_silence",
        story="a failed Produce with acks=0 does not close its connection, and the client never finds the leader",
        caught_by=("not_converged",),
        patches=[(KafkaSession, "_encoded", without_a_word(KafkaSession._encoded))],
        make=without_answers,
        drawn="kafka_clients",
        seed=3,
    ),
    Planted(
        name="topic_ids_outlive_their_topic",
        story="the id of a deleted topic means the topic that was created under its name",
        caught_by=("phantom-read",),
        patches=[
            (ImageDirectory, "topic_name", by_the_first_name(ImageDirectory.topic_name)),
            (produce, "_append", whatever_the_id(produce._append)),
        ],
        make=with_lives,
        drawn="kafka_clients",
        seed=2,
    ),
    Planted(
        name="torn_sizes_are_dropped",
        story="a connection that is torn inside a frame's size loses these bytes",
        caught_by=("kafka_request_refused",),
        patches=[(FrameReader, "filled", without_torn_sizes(FrameReader.filled))],
        make=with_clients,
        drawn="kafka_clients",
        seed=0,
    ),
    Planted(
        name="acks_all_of_kafka_clients_is_one",
        story="acks=all of a Kafka client is answered after the leader's append",
        caught_by=("acknowledged_before_committed", *LOSS),
        patches=[(KafkaSession, "_answer", with_one_replica(KafkaSession._answer))],
        make=with_clients,
        drawn="kafka_clients",
        seed=63,
    ),
)
