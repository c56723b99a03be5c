"""Whom a fault hits, in words: who leads, who follows, who is the controller *now*, resolved when the fault happens.

=================== ====================================================================================================
``n2``              broker 2; several with commas: ``n1,n3``
``all``             every broker
``controller``      the active controller
``primaries``       every broker that leads a partition (Jepsen's word)
``leader:T-P``      who leads the partition
``follower:T-P``    the first of its replicas that does not lead
``isr:T-P``         everybody in its ISR
``mate:T-P``        the first member of its ISR that does not lead
``elr:T-P``         the first of its eligible leader replicas (KIP-966)
=================== ====================================================================================================

A link is ``A>B``, one way; each end is one of these, or ``others`` (every broker that is not at the other end), or
``client`` (every node that is no broker); the simulator also knows ``client:k1``, one client by its machine, which is
its client id.

Rule for this file: who does not exist now (no leader) is nobody, and no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Final, NamedTuple, TypeAlias

from minikafka.types import NO_NODE, NodeId, TopicPartition

ALL: Final = "all"
CONTROLLER: Final = "controller"
PRIMARIES: Final = "primaries"
LEADER: Final = "leader"
FOLLOWER: Final = "follower"
ISR: Final = "isr"
MATE: Final = "mate"
ELR: Final = "elr"
ROLES: Final = (LEADER, FOLLOWER, ISR, MATE, ELR)
"""Words with a partition behind them."""

OTHERS: Final = "others"
CLIENT: Final = "client"

End: TypeAlias = NodeId
"""One end of a link: a broker, or CLIENT_END."""

CLIENT_END: Final[End] = 0
"""Every node that is no broker; no broker has this id."""


class Standing(NamedTuple):
    """Who stands where in one partition."""

    leader: NodeId
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    elr: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """What is known of a cluster when a fault happens."""

    nodes: tuple[NodeId, ...]
    controller: NodeId = NO_NODE
    partitions: Mapping[TopicPartition, Standing] = field(default_factory=dict)


def partition_of(word: str) -> TopicPartition:
    """``leader:orders-0`` names orders-0. ValueError when no partition stands there."""
    topic, dash, number = word.partition(":")[2].rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdigit():
        raise ValueError(f"{word!r} names no partition: ROLE:TOPIC-NUMBER is needed, as leader:orders-0")
    return TopicPartition(topic, int(number))


def nodes_of(words: str, view: View) -> tuple[NodeId, ...]:
    """The brokers that ``words`` mean now, each once, in order; empty when there is nobody. ValueError."""
    found: dict[NodeId, None] = {}
    for word in words.split(","):
        found.update(dict.fromkeys(_nodes_of_word(word.strip(), view)))
    found.pop(NO_NODE, None)
    return tuple(found)


def _nodes_of_word(word: str, view: View) -> tuple[NodeId, ...]:
    if word == ALL:
        return view.nodes
    if word == CONTROLLER:
        return (view.controller,)
    if word == PRIMARIES:
        return tuple(sorted({each.leader for each in view.partitions.values()}))
    role, colon, _ = word.partition(":")
    if not colon:
        number = word.removeprefix("n")
        if not (number.isascii() and number.isdigit()):
            raise ValueError(f"{word!r} is nobody: n2, {ALL}, {CONTROLLER}, {PRIMARIES} or ROLE:TOPIC-NUMBER is needed")
        return (int(number),)
    standing = view.partitions.get(partition_of(word))
    if standing is None:
        return ()
    if role == ISR:
        return standing.isr
    if role == ELR:
        return standing.elr[:1]
    if role == MATE:
        return tuple(node for node in standing.isr if node != standing.leader)[:1]
    if role == FOLLOWER:
        return tuple(node for node in standing.replicas if node != standing.leader)[:1]
    return (standing.leader,)


def links_of(words: str, view: View) -> tuple[tuple[End, End], ...]:
    """The directed links that ``A>B`` means now; none from a broker to itself."""
    source, _, target = words.partition(">")
    if source == OTHERS:
        ends = _rest(nodes_of(target, view), view), nodes_of(target, view)
    elif target == OTHERS:
        ends = nodes_of(source, view), _rest(nodes_of(source, view), view)
    else:
        ends = _ends(source, view), _ends(target, view)
    return tuple((one, other) for one, other in product(*ends) if one != other)


def with_any_client(words: str) -> tuple[str, str]:
    """The link with ``client`` in place of ``client:ID``, and that id; an empty id when the link names none."""
    ends = words.split(">")
    named = [end.removeprefix(f"{CLIENT}:") for end in ends if end.startswith(f"{CLIENT}:")]
    if not named:
        return words, ""
    return ">".join(CLIENT if end.startswith(f"{CLIENT}:") else end for end in ends), named[0]


def _ends(words: str, view: View) -> tuple[End, ...]:
    return (CLIENT_END,) if words == CLIENT else nodes_of(words, view)


def _rest(nodes: tuple[NodeId, ...], view: View) -> tuple[NodeId, ...]:
    return tuple(node for node in view.nodes if node not in nodes) if nodes else ()
