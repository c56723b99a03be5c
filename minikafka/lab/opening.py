"""What a scenario opens with: the stage that ``cluster`` and its options describe.

Rule for this file: it builds, and refuses what it does not understand; nobody runs yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minikafka.config import parse_topic
from minikafka.errors import InvalidConfig
from minikafka.lab.command import Command
from minikafka.lab.control import Control, QuorumControl, ScriptedControl
from minikafka.lab.node import Node, Settings
from minikafka.lab.played import NodeEvent
from minikafka.lab.sentences import sentence
from minikafka.lab.stage import Stage
from minikafka.lab.truncation import TRUNCATIONS
from minikafka.types import NodeId

CHOICES = "control is script or quorum, truncation leader-epoch or high-watermark"

OWN_OPTIONS = {"brokers", "replica.lag.time.max.ms", "replica.fetch.wait.max.ms"}
"""Options of ``cluster`` that are no settings of the topic; others are taken out before the topic's are read."""


def built(options: dict[str, str], command: Command, lines: list[str], events: list[NodeEvent]) -> Stage:
    """The stage; what its nodes tell goes to ``lines`` as sentences and to ``events``. Raises ScenarioError."""
    brokers = Command(command.line, command.verb, (), options).number("brokers", 0)
    names = options.pop("names", ",".join(map(str, range(1, brokers + 1)))).split(",")
    if brokers < 1 or len(names) != brokers or command.words:
        raise command.fail("say brokers=N, and as many names if any")
    by_name = {name: node for node, name in enumerate(names, start=1)}
    assigned = options.pop("replicas", ",".join(names)).split(",")
    if not set(assigned) <= set(names):
        raise command.fail(f"replicas are among {','.join(names)}")
    replicas: tuple[NodeId, ...] = tuple(by_name[name] for name in assigned)
    controlled = options.pop("control", "script")
    elr = options.pop("eligible.leader.replicas.enable", "true") == "true"
    settings = _settings(options, command)
    if controlled not in {"script", "quorum"}:
        raise command.fail(CHOICES)
    control: Control = (
        ScriptedControl(replicas) if controlled == "script" else QuorumControl(replicas, settings.topic, elr=elr)
    )
    nodes = [
        Node(node, names[node - 1], settings, _sink(names[node - 1], names, lines, events)) for node in sorted(replicas)
    ]
    epochs = control.news().broker_epochs
    for node in nodes:
        node.broker_epoch = epochs[node.id]
    return Stage(nodes, control, lines)


def _settings(options: dict[str, str], command: Command) -> Settings:
    """Of all brokers; what is left of the options must be settings of the topic."""
    truncation = options.pop("truncation", "leader-epoch")
    numbers = Command(command.line, command.verb, (), options)
    lag_s = numbers.number("replica.lag.time.max.ms", 30_000) / 1000
    wait_s = numbers.number("replica.fetch.wait.max.ms", 500) / 1000
    try:
        topic = parse_topic({name: text for name, text in options.items() if name not in OWN_OPTIONS})
    except InvalidConfig as error:
        raise command.fail(error.message) from error
    if truncation not in TRUNCATIONS:
        raise command.fail(CHOICES)
    return Settings(topic=topic, lag_time_max_s=lag_s, fetch_wait_max_s=wait_s, truncation=TRUNCATIONS[truncation]())


def _sink(name: str, names: Sequence[str], lines: list[str], events: list[NodeEvent]) -> Callable[..., None]:
    """Where the rules of the node called ``name`` tell their events."""

    def name_of(node: NodeId) -> str:
        return names[node - 1] if 1 <= node <= len(names) else "nobody"

    def sink(kind: str, /, **facts: object) -> None:
        events.append(NodeEvent(name, kind, facts))
        text = sentence(kind, facts, name_of)
        if text:
            lines.append(f"{name}: {text}")

    return sink
