"""``GET /v1/wait``, for tests: answer when the cluster is as asked for, in place of sleeping (``world/states.py``).

The metadata is that of the broker that is asked. Only there with ``mk.testing.endpoints.enable=true``.
"""

from __future__ import annotations

import re

from minikafka.errors import RequestTimedOut
from minikafka.rest.model import LEFT_OUT, Model, member
from minikafka.rest.parameters import INT32_MAX, INT64_MAX, Integer, Parsed, Text, Wrong
from minikafka.rest.route import Route
from minikafka.rest.schema import flag, many, nullable, one_of, ref, table, text, whole
from minikafka.rest.testing_faults import TIMEOUT_MS
from minikafka.rest.testing_hooks import instruments_of
from minikafka.rest.visit import Reply, Visit
from minikafka.types import Epoch, NodeId, Offset
from minikafka.web.problems import malformed
from minikafka.wire.limits import shown
from minikafka.world.states import ANY, SomeNode, Wish, until

_NODE = re.compile(r"\d{1,10}", re.ASCII)
_NODES = re.compile(r"\d{1,10}(,\d{1,10})*", re.ASCII)


def _some_node(given: str) -> SomeNode:
    if given == ANY:
        return ANY
    if not _NODE.fullmatch(given) or int(given) > INT32_MAX:
        raise Wrong(f"{shown(given)}: a node id is needed, or {ANY}")
    return int(given)


def _nodes(given: str) -> frozenset[NodeId]:
    if not _NODES.fullmatch(given):
        raise Wrong(f"{shown(given)}: node ids with commas are needed")
    return frozenset(map(int, given.split(",")))


def _true_or_false(given: str) -> bool:
    if given not in {"true", "false"}:
        raise Wrong(f"{shown(given)}: true or false is needed")
    return given == "true"


_SOME_NODE = {"type": "string", "pattern": f"^(?:{ANY}|[0-9]{{1,10}})$"}
_NODE_LIST = {"type": "string", "pattern": "^[0-9]{1,10}(,[0-9]{1,10})*$"}


def _whole(name: str, description: str, *, high: int = INT32_MAX) -> Integer:
    return Integer(name=name, description=description, high=high)


TOPIC = Text(name="topic", description="The topic.", length_max=249, example="orders")
PARTITION = Integer(name="partition", description="The partition.", default=0, high=INT32_MAX)
EXISTS: Parsed[bool | None] = Parsed(
    name="exists",
    description="Is the topic there?",
    default=None,
    reader=_true_or_false,
    described={"type": "boolean"},
)
LEADER: Parsed[SomeNode | None] = Parsed(
    name="leader",
    description="This broker leads the partition (`any`: some broker does), and has begun to.",
    default=None,
    reader=_some_node,
    described=_SOME_NODE,
)
LEADER_NOT = _whole("leader_not", "A broker leads the partition that is not this one.")
LEADER_EPOCH = _whole("leader_epoch_at_least", "The leader epoch has come so far.")
ISR: Parsed[frozenset[NodeId] | None] = Parsed(
    name="isr",
    description="The ISR has exactly these members.",
    default=None,
    reader=_nodes,
    described=_NODE_LIST,
    example="1,2",
)
ISR_SIZE = _whole("isr_size", "The ISR has so many members.")
REPLICA = _whole("replica", "Whose high watermark and log end are meant; else the leader's.")
HW = _whole("hw_at_least", "The high watermark has come so far.", high=INT64_MAX)
LEO = _whole("leo_at_least", "The log end offset has come so far.", high=INT64_MAX)
ALIVE: Parsed[frozenset[NodeId]] = Parsed(
    name="alive",
    description="These brokers are registered and not fenced.",
    default=frozenset(),
    reader=_nodes,
    described=_NODE_LIST,
    example="1,2,3",
)
FENCED: Parsed[frozenset[NodeId]] = Parsed(
    name="fenced",
    description="These brokers are fenced.",
    default=frozenset(),
    reader=_nodes,
    described=_NODE_LIST,
)
CONTROLLER: Parsed[SomeNode | None] = Parsed(
    name="controller",
    description="This broker is the active controller (`any`: some broker is).",
    default=None,
    reader=_some_node,
    described=_SOME_NODE,
)
CONTROLLER_NOT = _whole("controller_not", "The active controller is known and is not this broker.")

OF_PARTITION = (LEADER, LEADER_NOT, LEADER_EPOCH, ISR, ISR_SIZE, HW, LEO)
OF_TOPIC = (EXISTS, *OF_PARTITION)
OF_CLUSTER = (ALIVE, FENCED, CONTROLLER, CONTROLLER_NOT)


def _given(visit: Visit, parameter: Integer) -> int | None:
    value = visit[parameter]
    return None if value < 0 else value


class _Seen(Model):
    """What was seen, as far as it was asked for."""

    topic: str = member(ref("TopicName"), "orders", default=None)
    exists: bool = member(flag(), example=True, default=None)
    partition: int = member(ref("PartitionNumber"), 0, default=None)
    leader: NodeId = member(ref("NodeId"), 1, default=None)
    leader_epoch: Epoch = member(ref("Epoch"), 0, default=None)
    isr: list[NodeId] = member(many(ref("NodeId")), [1, 2], default=None)
    leader_says: str = member(text("The leader itself, where it says something else than the metadata."), default=None)
    replica: NodeId = member(ref("NodeId"), default=None)
    hw: Offset | None = member(nullable(whole("The replica's high watermark.")), default=LEFT_OUT)
    leo: Offset | None = member(nullable(whole("Its log end offset.")), default=LEFT_OUT)
    controller: NodeId = member(ref("NodeId"), default=None)
    brokers: dict[str, str] = member(
        table(one_of("", "alive", "fenced"), "By node id."), {"1": "alive", "2": "alive", "3": "alive"}
    )
    waited_ms: int = member(whole("How long it took."), 812)


async def get_wait(visit: Visit) -> Reply:
    """Answer when everything is as asked for; 504 tells what is not, and what was seen last."""
    if not any(visit.gives(each) for each in (*OF_TOPIC, *OF_CLUSTER)):
        names = ", ".join(each.name for each in (*OF_TOPIC, *OF_CLUSTER))
        raise malformed(f"nothing to wait for: say at least one of {names}")
    if any(visit.gives(each) for each in OF_TOPIC) and not visit[TOPIC]:
        raise malformed("which topic?", [{"parameter": "topic", "detail": "is missing"}])
    wish = Wish(
        topic=visit[TOPIC],
        partition=visit[PARTITION],
        exists=visit[EXISTS],
        leader=visit[LEADER],
        leader_not=_given(visit, LEADER_NOT),
        leader_epoch_at_least=_given(visit, LEADER_EPOCH),
        isr=visit[ISR],
        isr_size=_given(visit, ISR_SIZE),
        replica=_given(visit, REPLICA),
        hw_at_least=_given(visit, HW),
        leo_at_least=_given(visit, LEO),
        alive=visit[ALIVE],
        fenced=visit[FENCED],
        controller=visit[CONTROLLER],
        controller_not=_given(visit, CONTROLLER_NOT),
    )
    clock = visit.host.world.clock
    began = clock.now()
    state = await until(wish, instruments_of(visit), timeout_s=visit[TIMEOUT_MS] / 1000)
    return Reply({**state.as_json(), "waited_ms": int((clock.now() - began) * 1000)})


ROUTES = (
    Route(
        method="GET",
        path="/v1/wait",
        handler=get_wait,
        tag="testing",
        testing=True,
        parameters=(TOPIC, PARTITION, *OF_TOPIC, REPLICA, *OF_CLUSTER, TIMEOUT_MS),
        problems=(RequestTimedOut,),
        answers={200: _Seen.answer("It is so.")},
    ),
)
