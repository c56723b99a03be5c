"""The words of scenarios: faults (Pumba's and Toxiproxy's names where they have one) and whom they hit (Jepsen's).

Rule for this file: a fault is a line of a table, which says what the fault takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from minikafka.sim.fault_targets import ALL, CLIENT, CONTROLLER, FOLLOWER, ISR, LEADER, OTHERS, PRIMARIES

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
    """Field -> must it be given?"""


FAULTS: Final[Mapping[str, FaultWord]] = {
    each.name: each
    for each in (
        FaultWord(name=KILL, meaning="SIGKILL; started again after `for`"),
        FaultWord(name=PAUSE, meaning="SIGSTOP; SIGCONT after `for`: its connections stay open and answer nothing"),
        FaultWord(name=STOP, meaning="a controlled shutdown (SIGTERM); started again after `for`"),
        FaultWord(name=RESTART, meaning="a controlled shutdown, and at once a start", lasts=False),
        FaultWord(
            name=ROLLING_RESTART,
            meaning="restart of one broker after the other, each when all replicas are in sync again",
            lasts=False,
        ),
        FaultWord(
            name=ISOLATE,
            meaning="nothing passes between whom and the other brokers; with `clients`, nor between whom and clients",
            is_link=True,
            takes={"clients": False},
        ),
        FaultWord(name=CUT, meaning="nothing passes from whom to `to`: one way only", is_link=True, takes={"to": True}),
        FaultWord(
            name=DELAY,
            meaning="messages from whom to `to` arrive `delay` later, and up to `jitter` more",
            is_link=True,
            takes={"to": False, "delay": True, "jitter": False},
        ),
        FaultWord(
            name=LOSS,
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
        FaultWord(name=POWER_LOSS, meaning="the machine dies with everything unsynced; on again after `for`"),
        FaultWord(name=DISK_FULL, meaning="no room for a byte more; room again after `for`"),
        FaultWord(
            name=FSYNC_FAIL, meaning="the next sync fails; a broker that stopped for it is started again after `for`"
        ),
        FaultWord(name=SLOW_DISK, meaning="each sync takes `delay`", takes={"delay": True}),
        FaultWord(
            name=CLOCK_JUMP, meaning="the calendar jumps `by` so much, and stays so", lasts=False, takes={"by": True}
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
    "n2": "broker 2; several with commas",
}
"""Whom a step hits, and what it means; T-P stands for a partition."""

TO: Final[Mapping[str, str]] = {OTHERS: "every other broker", CLIENT: "every client"}
"""Where a link may also end, beside the words of WHOM."""
