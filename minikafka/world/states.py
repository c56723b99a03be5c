"""States of a cluster that a test can await, and how they are seen.

The metadata is read at the broker of this process that has the newest; who leads, and with which ISR, counts when the
leader itself has taken it up too. Log end and high watermark are the leader's unless a replica is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from minikafka.broker.broker import Broker
from minikafka.errors import BrokerNotAvailable, ProtocolError, RequestTimedOut, WorldError
from minikafka.rpc import call
from minikafka.types import NO_EPOCH, NO_NODE, Epoch, NodeId, Offset, TopicPartition
from minikafka.wire import messages as m
from minikafka.world.instruments import Instruments

ANY: Final = "any"
SomeNode: TypeAlias = NodeId | Literal["any"]

# Without news: what a broker of another process does is not reported here.
LOOK_AGAIN_S = 0.05

# A broker of another process that does not answer so soon is looked at again later.
ANSWER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What shall be so, all at once; None: whatever it is."""

    topic: str = ""
    exists: bool | None = None
    """True if the topic is there."""
    partition: int = 0
    leader: SomeNode | None = None
    """This broker, or ``any``, leads the partition, and has begun to."""
    leader_not: NodeId | None = None
    leader_epoch_at_least: Epoch | None = None
    isr: frozenset[NodeId] | None = None
    isr_size: int | None = None
    replica: NodeId | None = None
    """The replica whose log end and high watermark count; None: the leader."""
    hw_at_least: Offset | None = None
    leo_at_least: Offset | None = None
    alive: frozenset[NodeId] = frozenset()
    """Registered and not fenced."""
    fenced: frozenset[NodeId] = frozenset()
    controller: SomeNode | None = None
    controller_not: NodeId | None = None

    @property
    def asks_for_leader(self) -> bool:
        """True if the leader must be known."""
        return not (self.leader is None and self.leader_not is None and self.leader_epoch_at_least is None)

    @property
    def asks_for_isr(self) -> bool:
        return self.isr is not None or self.isr_size is not None

    @property
    def asks_for_offsets(self) -> bool:
        return self.hw_at_least is not None or self.leo_at_least is not None

    @property
    def asks_for_partition(self) -> bool:
        return self.asks_for_leader or self.asks_for_isr or self.asks_for_offsets

    @property
    def asks_for_controller(self) -> bool:
        return self.controller is not None or self.controller_not is not None


@dataclass(slots=True, kw_only=True)
class State:
    """What was seen, as far as the wish asks for it."""

    brokers: dict[NodeId, str] = field(default_factory=dict)
    """``alive`` or ``fenced``."""
    controller: NodeId | None = None
    topic: str | None = None
    exists: bool | None = None
    partition: int | None = None
    leader: NodeId = NO_NODE
    leader_epoch: Epoch = NO_EPOCH
    isr: tuple[NodeId, ...] = ()
    leader_says: str = ""
    """What the leader itself says of its role, if that is not the same."""
    replica: NodeId | None = None
    hw: Offset | None = None
    leo: Offset | None = None

    def as_json(self) -> dict[str, object]:
        """For JSON and sentences: what is known, without what was not asked for."""
        document: dict[str, object] = {}
        if self.controller is not None:
            document["controller"] = self.controller
        if self.topic is not None:
            document |= {"topic": self.topic, "exists": self.exists}
        if self.partition is not None:
            document |= {
                "partition": self.partition,
                "leader": self.leader,
                "leader_epoch": self.leader_epoch,
                "isr": list(self.isr),
            }
            if self.leader_says:
                document["leader_says"] = self.leader_says
        if self.replica is not None:
            document |= {"replica": self.replica, "hw": self.hw, "leo": self.leo}
        return {**document, "brokers": {str(node): how for node, how in sorted(self.brokers.items())}}


# ---- seeing ----------------------------------------------------------------------------------------------------------


async def look(wish: Wish, brokers: Mapping[NodeId, Broker]) -> State:
    """The state as of now. BrokerNotAvailable when no broker of this process runs."""
    if not brokers:
        raise BrokerNotAvailable("no broker runs here")
    watched = max(brokers.values(), key=lambda broker: broker.image.offset)
    image = watched.image
    state = State(brokers={node: "fenced" if each.fenced else "alive" for node, each in image.brokers.items()})
    if wish.asks_for_controller:
        state.controller = await _controller(brokers)
    if wish.topic:
        state.topic, state.exists = wish.topic, wish.topic in image.topics
    if wish.asks_for_partition:
        await _look_at_partition(wish, state, watched, brokers)
    return state


async def _look_at_partition(wish: Wish, state: State, watched: Broker, brokers: Mapping[NodeId, Broker]) -> None:
    name = TopicPartition(wish.topic, wish.partition)
    partition = watched.image.partition(name)
    if partition is None:
        return
    state.partition = wish.partition
    state.leader, state.leader_epoch, state.isr = partition.leader, partition.leader_epoch, partition.isr
    leading = await _replica(state.leader, name, watched, brokers)
    if leading is None:
        state.leader_says = f"broker {state.leader} does not answer" if state.leader != NO_NODE else ""
    elif leading.role != "leader" or leading.leader_epoch != state.leader_epoch:
        state.leader_says = f"{leading.role} in epoch {leading.leader_epoch}"
    elif sorted(leading.isr) != sorted(state.isr):
        state.leader_says = f"the ISR is {sorted(leading.isr)}"
    if wish.asks_for_offsets:
        whose = state.leader if wish.replica is None else wish.replica
        seen = leading if whose == state.leader else await _replica(whose, name, watched, brokers)
        state.replica = whose
        if seen is not None:
            state.hw, state.leo = seen.high_watermark, seen.log_end_offset


async def _replica(
    node: NodeId, name: TopicPartition, watched: Broker, brokers: Mapping[NodeId, Broker]
) -> m.DescribedReplica | None:
    """What ``node`` says of its replica; None when it has none, or does not answer."""
    request = m.DescribeReplicasRequest(topics=(name.topic,))
    response: m.DescribeReplicasResponse
    try:
        if node in brokers:
            response = await brokers[node].answer("DescribeReplicas", request)
        else:
            address = watched.address_of(node)
            if address is None:
                return None
            deadline = watched.world.clock.now() + ANSWER_S
            response = await call(watched.world.network, address, request, deadline)
    except (ProtocolError, WorldError):
        return None
    return next((each for each in response.replicas if each.partition == name.partition), None)


async def _controller(brokers: Mapping[NodeId, Broker]) -> NodeId:
    """The quorum's leader by the newest epoch that a broker of this process knows; NO_NODE when none is known."""
    newest = m.DescribeQuorumResponse()
    for broker in brokers.values():
        try:
            quorum: m.DescribeQuorumResponse = await broker.answer("DescribeQuorum", m.DescribeQuorumRequest())
        except ProtocolError:
            continue
        if (quorum.leader_epoch, quorum.leader_id) > (newest.leader_epoch, newest.leader_id):
            newest = quorum
    return newest.leader_id


# ---- comparing -------------------------------------------------------------------------------------------------------


def unmet(wish: Wish, state: State) -> list[str]:
    """Sentences on what still differs from the wish; empty when nothing does."""
    return [*_unmet_cluster(wish, state), *_unmet_topic(wish, state)]


def _unmet_cluster(wish: Wish, state: State) -> list[str]:
    wrong = [
        f"broker {node} is {state.brokers.get(node, 'not registered')}, wanted: {wanted}"
        for wanted, nodes in (("alive", wish.alive), ("fenced", wish.fenced))
        for node in sorted(nodes)
        if state.brokers.get(node) != wanted
    ]
    if wish.asks_for_controller:
        wrong += _unmet_node("the controller", state.controller, wish.controller, wish.controller_not)
    return wrong


def _unmet_topic(wish: Wish, state: State) -> list[str]:
    if wish.exists is not None and state.exists is not wish.exists:
        return [f"the topic {wish.topic!r} {'is there' if state.exists else 'does not exist'}"]
    if not wish.asks_for_partition:
        return []
    if state.partition is None:
        return [f"there is no partition {wish.topic}-{wish.partition}"]
    wrong = []
    if wish.asks_for_leader:
        wrong += _unmet_node("the leader", state.leader, wish.leader, wish.leader_not)
        if wish.leader_epoch_at_least is not None and state.leader_epoch < wish.leader_epoch_at_least:
            wrong.append(f"the leader epoch is {state.leader_epoch}, wanted: at least {wish.leader_epoch_at_least}")
    if wish.isr is not None and frozenset(state.isr) != wish.isr:
        wrong.append(f"the ISR is {sorted(state.isr)}, wanted: {sorted(wish.isr)}")
    if wish.isr_size is not None and len(state.isr) != wish.isr_size:
        wrong.append(f"the ISR is {sorted(state.isr)}, wanted: {wish.isr_size} members")
    silent = state.leader_says.endswith("not answer")
    if state.leader_says and not wrong and (wish.asks_for_leader or (wish.asks_for_isr and not silent)):
        wrong.append(f"the metadata says so, the leader not yet: {state.leader_says}")
    for word, seen, least in (("hw", state.hw, wish.hw_at_least), ("leo", state.leo, wish.leo_at_least)):
        if least is not None and (seen is None or seen < least):
            wrong.append(f"{word} of broker {state.replica} is {'unknown' if seen is None else seen}, wanted: {least}")
    return wrong


def _unmet_node(who: str, seen: NodeId | None, wanted: SomeNode | None, unwanted: NodeId | None) -> list[str]:
    if seen is None or seen == NO_NODE:
        return [f"{who} is unknown"]
    if wanted not in {None, ANY, seen}:
        return [f"{who} is {seen}, wanted: {wanted}"]
    return [f"{who} is {seen}, wanted: another one"] if seen == unwanted else []


# ---- waiting ---------------------------------------------------------------------------------------------------------


async def until(wish: Wish, instruments: Instruments, *, timeout_s: float) -> State:
    """The state, as soon as the condition holds. RequestTimedOut tells what is missing; its fact ``seen`` the last
    state.

    Looked at after each event, so that no state of an event's length is missed by a pause.
    """
    loop, ring = asyncio.get_running_loop(), instruments.ring
    began = loop.time()
    while True:
        end = ring.end
        state = await look(wish, instruments.brokers())
        missing = unmet(wish, state)
        if not missing:
            return state
        left_s = began + timeout_s - loop.time()
        if left_s <= 0:
            raise RequestTimedOut(f"after {timeout_s:g} s still: {'; '.join(missing)}", seen=state.as_json())
        await ring.until_news(end, min(left_s, LOOK_AGAIN_S))
