"""``GET /v1/faults:script``: what was injected so far, as a test in Python and as a scenario of chaos, ready to run.

Each broker remembers what it was requested to inject (``world/instruments.py``); ``fault_script.py`` writes both texts.
Only with ``mk.testing.endpoints.enable=true``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from minikafka.config import BrokerConfig, table
from minikafka.rest.fault_script import Setup, Topic, chaos_of, python_of
from minikafka.rest.host import Host
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.route import Reply
from minikafka.rest.schema import flag, many, nodes, nullable, one_of, text, whole
from minikafka.rest.schema import table as table_of
from minikafka.rest.testing_hooks import AT_OR_ALL, NO_ANSWER, HookCall, hook_route
from minikafka.types import NodeId
from minikafka.world.faults import FaultSpec
from minikafka.world.instruments import INJECTIONS_MAX, Injection

TOPICS_MAX: Final = 10
INTERNAL: Final = "__"
"""How the names of Kafka's own topics begin."""

ALWAYS: Final = (
    "broker.session.timeout.ms",
    "broker.heartbeat.interval.ms",
    "replica.lag.time.max.ms",
    "replica.socket.timeout.ms",
)
IF_SET: Final = (
    "replica.fetch.wait.max.ms",
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "log.flush.interval.messages",
    "controller.quorum.election.timeout.ms",
    "controller.quorum.fetch.timeout.ms",
    "mk.fence.on.refused.connection",
)
"""Settings that decide what faults bring about. Scenarios have other times than Kafka's unless a file says them."""


async def get_script(call: HookCall) -> Reply:
    """What requests to the broker have injected so far, as a test in Python and as a scenario of chaos.

    With `broker=all`, of all brokers that answer. Faults that code of the brokers' own process has set are left out.
    """
    return Reply(_script([{"setup": _setup_out(call.host), "injections": list(_injections_out(call))}]))


def _script(bodies: Sequence[Any]) -> dict[str, Any]:
    injections = sorted((each for body in bodies for each in body["injections"]), key=lambda each: each["at_ms"])
    parsed = [_injection_in(each) for each in injections]
    setup = bodies[0]["setup"] if bodies else {"nodes": [], "settings": {}, "topics": []}
    found = Setup(
        nodes=tuple(setup["nodes"]),
        settings=setup["settings"],
        topics=tuple(Topic(**each) for each in setup["topics"]),
    )
    script = _Script(python=python_of(parsed, found), chaos=chaos_of(parsed, found), setup=setup, injections=injections)
    return script.out()


def _injections_out(call: HookCall) -> Iterator[dict[str, Any]]:
    for each in call.instruments.injections:
        yield {**asdict(each), "spec": None if each.spec is None else asdict(each.spec)}


def _injection_in(document: Mapping[str, Any]) -> Injection:
    spec = document["spec"]
    return Injection(**{**document, "spec": None if spec is None else FaultSpec(**spec)})


def _setup_out(host: Host) -> dict[str, Any]:
    image, known = host.image, table(BrokerConfig)
    values = {name: getattr(host.config, known[name].name) for name in (*ALWAYS, *IF_SET)}
    return {
        "nodes": sorted(image.brokers),
        "settings": {
            name: _text_of(value) for name, value in values.items() if name in ALWAYS or value != known[name].default
        },
        "topics": [
            {
                "name": name,
                "partitions": len(topic.partitions),
                "replication_factor": max(len(each.replicas) for each in topic.partitions),
                "configs": dict(topic.configs),
            }
            for name, topic in sorted(image.topics.items())
            if not name.startswith(INTERNAL)
        ][:TOPICS_MAX],
    }


def _text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Setup(Model):
    """The cluster now."""

    nodes: list[NodeId] = member(nodes("Its brokers."), [1, 2, 3])
    settings: dict[str, str] = member(
        table_of(text(), "Settings that decide what faults bring about."), {"replica.lag.time.max.ms": "30000"}
    )
    topics: list[Any] = member(many({"type": "object"}, f"The first {TOPICS_MAX}."), [])


class _Act(Model):
    """Something that was injected."""

    at_ms: int = member(whole("When, in milliseconds since 1970."), 1_795_270_217_937)
    act: str = member(one_of("What.", "set", "heal", "release", "kill", "stop", "start", "machine"), "kill")
    broker: NodeId | None = member(nullable(whole("The broker that it concerns; null: all.")), 3)
    fault: int | None = member(nullable(whole("The fault's number at that broker; null: all of its faults.")))
    spec: dict[str, Any] | None = member(
        nullable({"type": "object", "description": "Of `set`: the fault, as `POST /v1/faults` has it."})
    )
    is_alone: bool = member(flag("The broker's process has its faults for itself."), example=True)
    facts: dict[str, Any] = member({"type": "object", "description": "Of `machine` and `release`: the request."}, {})


class _Script(Model):
    """What was injected, written again."""

    python: str = member(text("A module for pytest, with a `LocalCluster`."), "from minikafka import LocalCluster\n")
    chaos: str = member(text("A file for `minikafka chaos run`, by the name `injected.toml`."), 'name = "injected"\n')
    setup: Any = one(_Setup)
    injections: list[Any] = many_of(_Act, f"Oldest first, the latest {INJECTIONS_MAX} of each broker.")
    no_answer: list[Any] | None = member(NO_ANSWER, default=None)


ROUTES = (
    hook_route(
        "GET",
        "/v1/faults:script",
        get_script,
        node_in=AT_OR_ALL,
        merge=_script,
        answers={200: _Script.answer("The texts.")},
    ),
)
