"""Which findings are what was asked for: loss under settings that allow it. They are named, and are no violations.

- Records sent with acks=0 or acks=1 may be lost, doubled and reordered; never those of other producers beside them.
  Of a doubled one the copy that was acknowledged may be the one that is lost, or deleted before anybody read it: the
  other one stands where nobody was told.
- A topic with ``unclean.leader.election.enable`` may lose what was acknowledged, once such an election took place; its
  replicas must still become equal, so ``diverged`` is never allowed. A second such election may bring back the first
  one's loss beside its retry: a record stands at most as often as there were such elections.
- A record that is deleted (retention, DeleteRecords) before its producer was told of it may be written once more: a
  replica that begins its log behind it has never heard of that producer, and takes its retry for a first send when it
  leads. Kafka's does so too (KIP-360: an unknown producer's sequence is believed).
- A record whose request a link delivered twice may stand though its producer was told *not written*: one copy was
  written, and the other one's refusal was heard first (``doubled.py``).

Rule for this file: whatever is not allowed here is a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final

from minikafka.check.findings import (
    AbortedRead,
    AcknowledgedMissingOnReplica,
    Duplicate,
    Finding,
    InconsistentOffsets,
    LostWrite,
    NonmonotonicPoll,
    NonmonotonicSend,
    Shifted,
    Unseen,
)
from minikafka.sim.plan import Plan
from minikafka.types import Offset, TopicPartition

OF_LOOSE_RECORDS: Final = (LostWrite, Unseen, Duplicate, NonmonotonicSend, AcknowledgedMissingOnReplica)
"""What acks=0 and acks=1, without idempotence, do not promise."""

OF_UNCLEAN_PARTITIONS: Final = (
    LostWrite,
    Unseen,
    InconsistentOffsets,
    Shifted,
    NonmonotonicPoll,
    NonmonotonicSend,
)
"""What an unclean election may do to those who were told of, or had read, what is gone: others stand in its place."""

UNCLEAN_SETTING: Final = "unclean.leader.election.enable"


class Losses:
    """What one plan allows."""

    def __init__(
        self,
        plan: Plan,
        may_have_lost: Callable[[TopicPartition], int],
        begun_anew_at: Callable[[TopicPartition], Offset] = lambda _: 0,
        doubled: Container[str] = (),
    ) -> None:
        self._may_have_lost = may_have_lost
        """How many unclean elections has the partition had, as its topic allows?"""
        self._begun_anew_at = begun_anew_at
        """Where a replica began its log behind what was deleted."""
        self._doubled = doubled
        """The values of records whose produce request arrived twice."""
        self._loose = tuple(machine for machine, settings in plan.clients.items() if _acks(settings) in (0, 1))
        self._standing: dict[TopicPartition, Counter[str]] = {}

    def stands(self, name: TopicPartition, values: Iterable[str]) -> None:
        """What a partition holds at the end."""
        self._standing[name] = Counter(values)

    def allows(self, finding: Finding) -> bool:
        """Is it a loss that the settings allow?"""
        name = TopicPartition(finding.topic, finding.partition)
        if self._may_have_lost(name) and self._is_of_an_unclean_election(name, finding):
            return True
        if isinstance(finding, Duplicate) and self._is_of_a_deletion(name, finding):
            return True
        if isinstance(finding, AbortedRead) and finding.value in self._doubled:
            return True
        if isinstance(finding, InconsistentOffsets):
            # Several believe in this offset: without the answers to loose producers there is one value at most.
            claims = {value for value, who in finding.values if not self._is_answer_to_loose(value, who)}
            return len(claims) <= 1
        if isinstance(finding, Shifted):
            return all(self._is_loose(process) for process in finding.processes)
        value = str(getattr(finding, "value", "") or getattr(finding, "process", ""))
        return isinstance(finding, OF_LOOSE_RECORDS) and self._is_loose(value)

    def _is_of_an_unclean_election(self, name: TopicPartition, finding: Finding) -> bool:
        if isinstance(finding, Duplicate):
            # Read at one place before it was lost there, and sent again to another.
            return self._standing.get(name, Counter())[finding.value] <= self._may_have_lost(name)
        return isinstance(finding, OF_UNCLEAN_PARTITIONS)

    def _is_of_a_deletion(self, name: TopicPartition, finding: Duplicate) -> bool:
        *before, _ = sorted(offset for _, offset in finding.places)
        is_one_partition = {partition for partition, _ in finding.places} == {name.partition}
        return is_one_partition and all(offset < self._begun_anew_at(name) for offset in before)

    def _is_answer_to_loose(self, value: str, who: str) -> bool:
        return who.startswith("the answer to") and self._is_loose(value)

    def _is_loose(self, value: str) -> bool:
        """Is it a value or a process of a producer that has not asked for more?"""
        machine = value.partition(".")[0].partition("~")[0]
        return machine in self._loose


def unclean_topics(plan: Plan) -> frozenset[str]:
    """Whose leaders may be elected from outside the ISR."""
    return frozenset(topic.name for topic in plan.topics if topic.configs.get(UNCLEAN_SETTING) == "true")


def _acks(settings: Mapping[str, Any]) -> object:
    return settings.get("acks", -1)
