"""Planted bugs of fencing without a session: evidence that is none, and evidence about a former process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from minikafka import errors
from minikafka.broker import controller_driver
from minikafka.broker.controller_driver import ControllerDriver
from minikafka.errors import Unreachable
from minikafka.quorum.controller import Controller, under_policy
from minikafka.quorum.controller_brokers import HeldConnection, Refusal, fence
from minikafka.quorum.decision import Decision
from minikafka.sim.message_faults import REFUSE
from minikafka.sim.plan import Fault, Plan
from minikafka.sim.seeds import plan_of
from tests.sim.planted import Planted

ON = {"mk.fence.on.refused.connection": "true"}

LATE_S = 8.0
"""Longer than the session of these plans: a broker that died has registered again by then."""

SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "750"}

LONG = {"broker.session.timeout.ms": "60000"}


def with_restarts(seed: int) -> Plan:
    """Few processes die, and are soon back."""
    plan = plan_of(seed, kinds=("crash",), faults=3)
    return plan.with_(settings={**plan.settings, **SESSIONS, **ON})


def with_resets(seed: int) -> Plan:
    """The same, where one message in four resets its connection."""
    plan = with_restarts(seed)
    return plan.with_(link={**plan.link, "reset": 0.25})


def behind_a_firewall(seed: int) -> Plan:
    """A broker restarts behind a firewall that rejects the held requests of the others: it reaches them, they do not.

    A request that was held before the firewall came ends with the session's time, which is longer than the plan.
    """
    random = Random(f"{seed}/firewall")
    plan = plan_of(seed, kinds=("crash",), faults=0)
    faults = [
        fault
        for node in random.sample((1, 2, 3), 2)
        for at_s in [round(random.uniform(0.3, 3.0), 3)]
        for fault in (
            Fault(at_s=at_s, kind="crash", target=f"n{node}", lasts_s=0.5),
            Fault(at_s=at_s + 0.3, kind=REFUSE, target=f"others>n{node}", lasts_s=5.0, value=1.0, message="AwaitStop"),
        )
    ]
    return plan.with_(settings={**plan.settings, **SESSIONS, **LONG, **ON}, faults=tuple(faults))


def counted(self: HeldConnection, begun_at: float) -> Refusal | None:
    """Two refusals are evidence, wherever they come from: both are of this node's connections."""
    self._ended_at, first = begun_at, self._ended_at  # type: ignore[has-type]
    return None if first is None else Refusal(self.broker_id, self.broker_epoch, begun_at)


def of_any_registration(policy: Any, image: Any, refusal: Refusal, *, is_heard_since: bool) -> Decision[None]:
    """The broker epoch of the evidence is not compared with the present one, nor does a heartbeat count."""
    del is_heard_since
    broker = image.brokers.get(refusal.broker_id)
    if broker is None or broker.fenced:
        return Decision(response=None)
    why = f"the process of broker {broker.node_id} has ended: connection refused by {broker.address}"
    return Decision(records=fence(policy, image, broker), response=None, cause=why)


def decided_late(original: Callable[..., None]) -> Callable[..., None]:
    """Evidence waits before the controller decides about it."""

    def decide(self: ControllerDriver, batch: Any, now: float) -> None:
        if self._refusals and not hasattr(self._refusals[0], "is_late"):
            loop = asyncio.get_running_loop()
            loop.call_later(LATE_S, self._refusals.append, LateRefusal.of(self._refusals.popleft()))
        original(self, batch, now)

    return decide


class LateRefusal(Refusal):
    """Evidence that has waited."""

    is_late = True

    @classmethod
    def of(cls, refusal: Refusal) -> LateRefusal:
        """The same evidence."""
        return cls(refusal.broker_id, refusal.broker_epoch, refusal.begun_at)


REFUSAL_CLUSTERS = (
    Planted(
        name="a_reset_fences",
        story="a connection that is reset counts as one that is refused",
        caught_by=("fenced_while_listening",),
        patches=[(controller_driver, "kafka", SimpleNamespace(**{**vars(errors), "ConnectionRefused": Unreachable}))],
        make=with_resets,
        drawn="refused_connections",
        seed=1,
    ),
    Planted(
        name="a_former_process_fences",
        story="a refused connection of a former process fences the broker that has restarted and registered since",
        caught_by=("fenced_while_listening",),
        patches=[
            (Controller, "broker_refused", under_policy(of_any_registration)),
            (ControllerDriver, "_decide_timers", decided_late(ControllerDriver._decide_timers)),
        ],
        make=with_restarts,
        drawn="refused_connections",
        seed=0,
    ),
    Planted(
        name="two_refusals_of_one_peer",
        story="two refused connections of one controller are evidence, though the address has never answered it",
        caught_by=("fenced_while_listening",),
        patches=[(HeldConnection, "refused", counted)],
        make=behind_a_firewall,
        seed=0,
    ),
)
