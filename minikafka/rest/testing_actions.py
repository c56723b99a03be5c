"""``/v1/brokers/{id}/actions``, for tests: stop, kill and start a broker, let it stand still, keep it from fetching.

Every broker takes actions on any other: on those of its own process (``LocalCluster``) also when they are down. To a
broker of another process it forwards them (``testing_hooks.py``). Such a broker, once it has ended, is started by the
program that started both (``hosting/process.py``).

A pause is a fault (``world/faults.py``), listed with the others: nothing that the broker sends or is sent arrives until
it is healed, while its own clocks go on. Only there with ``mk.testing.endpoints.enable=true``.

Before a test stops or kills a broker, :func:`ending_of` says what the cluster loses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from minikafka.config import BrokerConfig
from minikafka.errors import BrokerIdNotRegistered, BrokerNotAvailable
from minikafka.quorum.image import MetadataImage
from minikafka.rest.cluster import BROKER, registered
from minikafka.rest.leaders import min_isr
from minikafka.rest.model import Model, member
from minikafka.rest.route import Json, Reply, Visit
from minikafka.rest.testing_hooks import Done, HookCall, HookRoutes
from minikafka.types import NodeId
from minikafka.web.problems import unacceptable
from minikafka.world.faults import FaultSpec, paused, paused_fetching
from minikafka.world.instruments import Injection, Instruments, Lives


class Ending(NamedTuple):
    """The consequences of a broker's end."""

    effects: list[str]
    """What the cluster copes with."""
    warnings: list[str]
    """What it does not cope with: the quorum has no majority, or committed records have no copy that may lead."""


def ending_of(node: NodeId, image: MetadataImage, voters: Collection[NodeId], config: BrokerConfig) -> Ending:
    """The consequences if broker ``node`` ends, by the metadata that this broker has."""
    moving, last, below = [], [], []
    for topic, partition in image.sorted_partitions():
        name = f"{topic.name}-{partition.partition}"
        left = [each for each in partition.isr if each != node and image.alive(each)]
        # As in an election: without an ISR an eligible leader replica leads, which has all that is committed.
        if node in partition.isr and not left and not any(each != node and image.alive(each) for each in partition.elr):
            last.append(name)
            continue
        if partition.leader == node:
            moving.append(name)
        if node in partition.isr and len(left) < min_isr(config, topic, partition):
            below.append(name)
    effects = [f"{_count(moving, 'get', 'gets')} another leader." if moving else "No partition changes its leader."]
    if below:
        effects.append(
            f"{_count(below, 'have', 'has')} fewer in-sync replicas than min.insync.replicas: writes with "
            "acks=all are refused."
        )
    warnings = []
    majority = len(voters) // 2 + 1
    others = sum(image.alive(each) for each in voters if each != node)
    if node in voters and others < majority:
        warnings.append(
            f"{others} of {len(voters)} voters would be up: without {majority} there is no controller, and no "
            "partition gets another leader or ISR."
        )
    if last:
        warnings.append(
            f"{_count(last, 'have', 'has')} no other in-sync replica that is up: no leader, and no other certain copy "
            "of the committed records."
        )
    return Ending(effects, warnings)


def _count(names: list[str], many: str, one: str) -> str:
    if len(names) == 1:
        return f"{names[0]} {one}"
    return f"{len(names)} partitions (such as {names[0]}) {many}"


ROUTES = HookRoutes("testing", testing=True)
ACTIONS: Final = ("stop", "kill", "start", "pause", "resume", "pause_fetching", "resume_fetching")

ELSEWHERE: Final[Mapping[str, str]] = {
    "fill_disk": 'PUT /v1/machine {"disk_full": true} at that broker',
    "clock_skew": 'PUT /v1/machine {"calendar_ahead_ms": 3600000} at that broker',
    "power_loss": "the simulator's: a real disk keeps what the kernel was given",
    "flip_bit": "the simulator's; or flip it in the broker's data directory while it is down",
}
"""Words for what is done in another place."""


class _Ending(Model):
    """What the cluster loses if the broker ends now, by the metadata of the broker that answers."""

    node_id: NodeId = member(example=3)
    effects: list[str] = member("What the cluster copes with.", example=["orders-0 gets another leader."])
    warnings: list[str] = member(
        "No majority of voters, or no in-sync replica: a person should confirm this twice.", example=[]
    )


@ROUTES.at("GET /v1/brokers/{broker}/actions", _Ending.answer("What it would mean."), problems=(BrokerIdNotRegistered,))
async def get_actions(visit: Visit) -> Json:
    """What `stop` and `kill` of a broker would mean now, as sentences."""
    host, node = visit.host, registered(visit).node_id
    voters = host.config.voters if host.config.controller_quorum_voters else {host.node_id: None}
    ending = ending_of(node, host.image, voters, host.config)
    return _Ending.out_of(ending, node_id=node)


class _Wanted(Model):
    """What to do to it."""

    do: str = member("One of these.", "pause_fetching", enum=ACTIONS)


class _Action(Model):
    """What was done."""

    node_id: NodeId = member(example=1)
    do: str = member("What was requested.", "pause_fetching", enum=ACTIONS)
    done: bool = member("It is done; if not, it is about to be.", example=True)
    faults: list[int] = member("The numbers of the faults that were set, or healed.", [])


def starts_here(instruments: Instruments, document: Mapping[str, Any]) -> bool:
    """A process that has ended cannot serve ``start``; a broker with the same parent lets that start it."""
    return document.get("do") == "start" and instruments.lives is not None and instruments.lives.starts_others


def _injected(done: Done) -> Iterator[Injection]:
    """What an action did; a pause is a fault."""
    word = done.document["do"]
    if word in ("kill", "stop", "start"):
        yield done.injection(word)
        return
    spec = paused_fetching(done.broker or 0) if word.endswith("fetching") else paused(done.broker or 0)
    for number in done.body["faults"]:
        if word.startswith("resume"):
            yield done.injection("heal", fault=number)
        else:
            yield done.injection("set", fault=number, spec=spec)


@ROUTES.hook(
    "POST /v1/brokers/{broker}/actions",
    {
        200: _Action.answer("It is done.", faults=[1]),
        202: _Action.answer("The broker is about to end.", do="kill", done=False),
    },
    node_in=BROKER,
    served_here=starts_here,
    body=_Wanted.body(),
    injects=_injected,
)
async def post_action(call: HookCall) -> Reply:
    """Run the action, and respond when it is done; 202 when the broker ends itself, right after the response."""
    node, word = call.node, str(call.document.get("do"))
    if word in ELSEWHERE:
        raise unacceptable([{"pointer": "/do", "detail": f"{word}: {ELSEWHERE[word]}"}])
    _Wanted.read(call.document)
    lives = _lives(call)
    call.host.world.events("action_asked", do=word, broker=node)
    if act := {"stop": lives.stop, "kill": lives.kill, "start": lives.start}.get(word):
        if node == call.host.node_id and word != "start":
            lives.soon(act, node)
            return Reply(_Action(node_id=node, do=word, done=False, faults=[]).out(), 202)
        await act(node)
    faults = [] if act else _paused(call, word)
    return Reply(_Action(node_id=node, do=word, done=True, faults=faults).out())


def _lives(call: HookCall) -> Lives:
    lives = call.instruments.lives
    if lives is None or (call.node not in lives.nodes() and not starts_here(call.instruments, call.document)):
        raise BrokerNotAvailable(f"broker {call.node} was started without what tests act with")
    return lives


def _paused(call: HookCall, word: str) -> list[int]:
    """The faults that were set, or healed."""
    spec: FaultSpec = paused_fetching(call.node) if word.endswith("fetching") else paused(call.node)
    faults = call.instruments.faults
    standing = [number for number, fault in faults.active.items() if fault.spec == spec]
    if word.startswith("resume"):
        for number in standing:
            faults.heal(number)
        return standing
    return standing or [faults.add(spec, by=call.software).number]
