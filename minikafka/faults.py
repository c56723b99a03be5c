"""The vocabulary of faults: what goes wrong, whom it hits, and which messages; the same in scenarios, plans and tests.

Three executors carry faults out: the simulator (``sim/faults.py``), the ports of a real broker (``world/faults.py``,
``world/instruments.py``), and what chaos does to processes, namespaces and containers from outside (``chaos/``).

Whom a fault hits is said in words, which are resolved when it happens: who leads, who follows, who is the controller
*now*.

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

Rules for this file: who does not exist now (no leader) is nobody, and no error. A fault is a line of a table, which
says what the fault takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Literal, NamedTuple, TypeAlias

from minikafka.errors import meant_or_listed
from minikafka.types import NO_NODE, NodeId, TopicPartition

# ---- which messages --------------------------------------------------------------------------------------------------

MessageKind: TypeAlias = Literal["request", "answer"]
MESSAGE_KINDS: Final[tuple[MessageKind, ...]] = ("request", "answer")

METADATA_FETCH: Final = "MetadataFetch"
"""A ``Fetch`` of the metadata log, by which the quorum lives; ``Fetch`` means all others, as tests do."""

# ---- whom ------------------------------------------------------------------------------------------------------------

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
    """Leader, followers and ISR of one partition."""

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


def check_target(text: str, words: Iterable[str]) -> None:
    """Check that each part of ``text`` is a broker, a role with a partition, or one of ``words``.

    Raises ValueError with the nearest word.
    """
    for word in (each.strip() for each in text.split(",")):
        role, colon, _ = word.partition(":")
        number = word.removeprefix("n")
        if colon:
            _check_word(role, ROLES)
            partition_of(word)
        elif not (number.isascii() and number.isdigit()):
            _check_word(word, words)


def _check_word(word: str, words: Iterable[str]) -> None:
    known = list(words)
    if word not in known:
        raise ValueError(f"{word!r} is unknown{meant_or_listed(word, known)}")


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
    check_target(word, ("n2", ALL, CONTROLLER, PRIMARIES, "ROLE:TOPIC-NUMBER"))
    role, colon, _ = word.partition(":")
    if not colon:
        return (int(word.removeprefix("n")),)
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


# ---- what ------------------------------------------------------------------------------------------------------------

KILL: Final = "kill"
PAUSE: Final = "pause"
STOP: Final = "stop"
RESTART: Final = "restart"
ROLLING_RESTART: Final = "rolling-restart"
ISOLATE: Final = "isolate"
CUT: Final = "cut"
DELAY: Final = "delay"
LOSS: Final = "loss"
MESSAGES: Final = "messages"
POWER_LOSS: Final = "power-loss"
DISK_FULL: Final = "disk-full"
FSYNC_FAIL: Final = "fsync-fail"
SLOW_DISK: Final = "slow-disk"
CLOCK_JUMP: Final = "clock-jump"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultWord:
    """One fault: what it does, and which fields of a step belong to it beside what, whom, at and every."""

    name: str
    meaning: str
    lasts: bool = True
    """It is put right after ``for``, or at the end of the load."""
    is_link: bool = False
    """It strikes messages on links, not brokers."""
    takes: Mapping[str, bool] = field(default_factory=dict)
    """Fields, and True for those that are required."""
    plan: str = ""
    """Its kind in a plan of the simulator, if that is another word; see :attr:`kind`."""

    @property
    def kind(self) -> str:
        """Its kind in a plan of the simulator."""
        return self.plan or self.name


FAULTS: Final[Mapping[str, FaultWord]] = {
    each.name: each
    for each in (
        FaultWord(name=KILL, plan="crash", meaning="SIGKILL; started again after `for`"),
        FaultWord(name=PAUSE, meaning="SIGSTOP; SIGCONT after `for`: its connections stay open and answer nothing"),
        FaultWord(name=STOP, meaning="a controlled shutdown (SIGTERM); started again after `for`"),
        FaultWord(name=RESTART, plan="stop", meaning="a controlled shutdown, and at once a start", lasts=False),
        FaultWord(
            name=ROLLING_RESTART,
            plan="stop",
            meaning="restart of one broker after the other, each when all replicas are in sync again",
            lasts=False,
        ),
        FaultWord(
            name=ISOLATE,
            plan="cut",
            meaning="nothing passes between whom and the other brokers; with `clients`, nor between whom and clients",
            is_link=True,
            takes={"clients": False},
        ),
        FaultWord(name=CUT, meaning="nothing passes from whom to `to`: one way only", is_link=True, takes={"to": True}),
        FaultWord(
            name=DELAY,
            plan="late_link",
            meaning="messages from whom to `to` arrive `delay` later, and up to `jitter` more",
            is_link=True,
            takes={"to": False, "delay": True, "jitter": False},
        ),
        FaultWord(
            name=LOSS,
            plan="lossy_link",
            meaning="a `share` of the messages from whom to `to` vanishes",
            is_link=True,
            takes={"to": False, "share": True},
        ),
        FaultWord(
            name=MESSAGES,
            meaning="messages of one API from whom to `to` meet a fault of /v1/faults: it is of this `kind`",
            is_link=True,
            takes={
                "to": True,
                "kind": True,
                "api": False,
                "message": False,
                "count": False,
                "error": False,
                "delay": False,
                "jitter": False,
                "share": False,
            },
        ),
        FaultWord(
            name=POWER_LOSS, plan="power_cut", meaning="the machine dies with everything unsynced; on again after `for`"
        ),
        FaultWord(name=DISK_FULL, plan="disk_full", meaning="no room for a byte more; room again after `for`"),
        FaultWord(
            name=FSYNC_FAIL,
            plan="fail_sync",
            meaning="the next sync fails; a broker that stopped for it is started again after `for`",
        ),
        FaultWord(name=SLOW_DISK, plan="slow_disk", meaning="each sync takes `delay`", takes={"delay": True}),
        FaultWord(
            name=CLOCK_JUMP,
            plan="jump_clock",
            meaning="the calendar jumps `by` so much, and stays so",
            lasts=False,
            takes={"by": True},
        ),
    )
}

OTHER_NAMES: Final[Mapping[str, str]] = {
    "crash": KILL,
    "freeze": PAUSE,
    "latency": DELAY,
    "partition": ISOLATE,
    "timeout": CUT,
    "down": ISOLATE,
    "netem-delay": DELAY,
    "netem-loss": LOSS,
    "power-cut": POWER_LOSS,
}
"""Words of other tools, for hints only: a scenario has one word for one thing."""

LINK_FAULTS: Final = frozenset(each.name for each in FAULTS.values() if each.is_link)
DISK_FAULTS: Final = frozenset({POWER_LOSS, DISK_FULL, FSYNC_FAIL, SLOW_DISK})

ONE: Final = "one"
MINORITY: Final = "minority"
MAJORITY: Final = "majority"

WHOM: Final[Mapping[str, str]] = {
    ONE: "a broker that the seed draws",
    MINORITY: "as many as the cluster can lose and still have a majority",
    MAJORITY: "as few as leave no majority",
    PRIMARIES: "every broker that leads a partition",
    ALL: "every broker",
    CONTROLLER: "the active controller",
    f"{LEADER}:T-P": "who leads partition P of topic T",
    f"{FOLLOWER}:T-P": "the first of its replicas that does not lead",
    f"{ISR}:T-P": "everybody in its ISR",
    f"{MATE}:T-P": "the first in its ISR that does not lead",
    f"{ELR}:T-P": "the first of its eligible leader replicas (KIP-966)",
    "n2": "broker 2; several with commas",
}
"""The targets of a step, and what each means; T-P stands for a partition."""

TO: Final[Mapping[str, str]] = {OTHERS: "every other broker", CLIENT: "every client"}
"""Where a link may also end, beside the words of WHOM."""
