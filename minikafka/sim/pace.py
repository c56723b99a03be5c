"""The pace at which plans are played: drawn in few seconds, played in more.

A plan is drawn with settings so small that sessions, elections and rejoins happen every second, and then stretched:
faults, operations and every time-out by the same factor, so that the same things happen in the same order. What is not
stretched is what a single message and a single sync take. Played so, time-outs are as far from a message's way as
Kafka's defaults have them (a session of 9 s, a request of 30 s), what recovers has as long for it as in production, and
an event costs the simulator what it did before.

Rule for this file: one factor for all; a plan that was kept is played as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from minikafka.sim.message_faults import LATE_BY_VALUE
from minikafka.sim.plan import Fault, Plan

PACE: Final = 3.0

DURATIONS: Final = (".ms", "_ms", ".seconds")
"""How the names of settings end that are spans of time."""


def slower(plan: Plan, by: float = PACE) -> Plan:
    """The same plan, ``by`` times as long."""
    return plan.with_(
        duration_s=plan.duration_s * by,
        pace=plan.pace * by,
        settings=_longer(plan.settings, by),
        client_settings=_longer(plan.client_settings, by),
        clients={name: _longer(settings, by) for name, settings in plan.clients.items()},
        kafka={name: _longer(settings, by) for name, settings in plan.kafka.items()},
        transactors={name: _longer(settings, by) for name, settings in plan.transactors.items()},
        topics=tuple(replace(topic, configs=_longer(topic.configs, by)) for topic in plan.topics),
        faults=tuple(_longer_fault(each, by) for each in plan.faults),
        groups=tuple(replace(each, settings=_longer(each.settings, by)) for each in plan.groups),
        operations=tuple(replace(each, at_s=round(each.at_s * by, 4)) for each in plan.operations),
    )


def _longer_fault(fault: Fault, by: float) -> Fault:
    value = fault.value * by if fault.kind in LATE_BY_VALUE else fault.value
    return replace(fault, at_s=round(fault.at_s * by, 3), lasts_s=round(fault.lasts_s * by, 3), value=round(value, 4))


def _longer(settings: Mapping[str, Any], by: float) -> dict[str, Any]:
    """Brokers' settings are texts, clients' are numbers."""
    return {
        name: type(value)(round(int(value) * by)) if name.endswith(DURATIONS) else value
        for name, value in settings.items()
    }
