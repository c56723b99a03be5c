"""What must hold of log starts: nothing is deleted that nobody asked for.

What lies below a log's start is owed by no replica, to no reader, and to no producer: each check believes the starts of
logs. So each rise of one has a reason:

``deleted_without_reason``
    A leader raises its log start only up to where a DeleteRecords request said, or where the topic has a retention. All
    other replicas begin their logs where a leader began before: those that follow, and those that were started again.

Rule for this file: it only looks. Requests count when they are sent, for any copy of one may arrive.
"""

from __future__ import annotations

import math
from collections.abc import Container

from minikafka.sim.changes import ALTER_TOPIC
from minikafka.sim.metadata_invariants import ROLE_EVENTS
from minikafka.sim.plan import Plan
from minikafka.sim.replica_view import Key, OfPartition, ReplicaView, Report
from minikafka.sim.verdicts import Message, Verdict
from minikafka.types import Offset, TopicPartition
from minikafka.wire.codec import decode_request, find_api
from minikafka.wire.messages import ALL_COMMITTED

DELETE_RECORDS = find_api("DeleteRecords")

RAISED = "log_start_raised"

RETENTION = "retention."
"""How the names of a topic's settings begin that delete records by themselves."""


class DeletionsHaveReasons(OfPartition):
    """A log start rises only where somebody asked for that."""

    name = "deleted_without_reason"
    looks_after = ROLE_EVENTS | {RAISED, "log_restarted"}

    def __init__(self) -> None:
        self.may_expire: Container[str] | None = None
        """Topics with a retention; None: it is not known which have one."""
        self._requested: dict[TopicPartition, float] = {}
        self._highest: dict[Key, Offset] = {}
        """Of all leaders' log starts."""

    def observe(self, message: Message, _verdict: Verdict) -> None:
        """``message`` was sent."""
        if message.api != DELETE_RECORDS.name or message.kind != "request":
            return
        for each in decode_request(DELETE_RECORDS, message.body).partitions:
            name = TopicPartition(each.topic, each.partition)
            end = math.inf if each.offset == ALL_COMMITTED else each.offset
            self._requested[name] = max(end, self._requested.get(name, 0))

    def look(self, view: ReplicaView, report: Report) -> None:
        start, highest = view.partition.log.start_offset, self._highest.get(view.key, 0)
        if start <= highest or view.is_hearsay:
            return
        leads = view.leader is not None or not view.kinds.isdisjoint(ROLE_EVENTS)
        if RAISED in view.kinds and leads and self._may_begin(view.name, start):
            self._highest[view.key] = start
            return
        report(
            self.name,
            f"{view.life} {view.partition!r} begins at {start}; leaders began at {highest}, "
            f"requested was up to {self._requested.get(view.name, 0)}",
        )

    def _may_begin(self, name: TopicPartition, start: Offset) -> bool:
        return self.may_expire is None or name.topic in self.may_expire or start <= self._requested.get(name, 0)


def expiring_topics(plan: Plan) -> frozenset[str]:
    """Topics that have a retention of their own, from the start or by a change at run time."""
    changes = [fault.target.partition(":") for fault in plan.faults if fault.kind == ALTER_TOPIC]
    given = {topic.name for topic in plan.topics if any(name.startswith(RETENTION) for name in topic.configs)}
    altered = {topic for topic, _, settings in changes if any(s.startswith(RETENTION) for s in settings.split(";"))}
    return frozenset(given | altered)
