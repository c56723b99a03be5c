"""A plan from its file, looked at before it is played: people write plans too.

Rule for this file: it refuses what no run could carry out, and draws nothing.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from minikafka.errors import InvalidConfig
from minikafka.faults import CLIENT_END, View, links_of, nodes_of, with_any_client
from minikafka.sim.faults import Faults
from minikafka.sim.group_plans import MEMBER_FAULTS
from minikafka.sim.plan import Fault, Plan
from minikafka.sim.plan_features import CLIENT_FAULTS
from minikafka.sim.transactor_plans import TRANSACTOR_FAULTS
from minikafka.spelling import did_you_mean


def read_plan(path: Path) -> Plan:
    """OSError; InvalidConfig for a file of something else, and for a fault that does not exist or hits nobody."""
    plan = Plan.read(path)
    for fault in plan.faults:
        try:
            _check(fault, View(tuple(range(1, plan.brokers + 1))))
        except ValueError as error:
            raise InvalidConfig(f"{path}: {fault}: {error}") from error
    return plan


def _check(fault: Fault, view: View) -> None:
    known = (*Faults.BEGIN, *CLIENT_FAULTS, *MEMBER_FAULTS, *TRANSACTOR_FAULTS)
    if fault.kind not in known:
        raise ValueError(f"there is no such kind of fault{did_you_mean(fault.kind, known)}")
    if fault.kind in Faults.BEGIN:
        is_link = ">" in fault.target
        ends = (
            set(chain(*links_of(with_any_client(fault.target)[0], view)))
            if is_link
            else set(nodes_of(fault.target, view))
        )
        strangers = sorted(ends - {CLIENT_END, *view.nodes})
        if strangers:
            raise ValueError(f"there is no broker {strangers[0]}; there are {len(view.nodes)}")
