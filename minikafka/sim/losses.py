"""Which findings are what was asked for: loss under settings that allow it. They are named, and are no violations.

- Records sent with acks=0 or acks=1 may be lost, doubled and reordered; never those of other producers beside them, nor
  one that a consumer was given: that was committed. Only with a leader is a record lost that it has acknowledged.
  Of a doubled one the copy that was acknowledged may be the one that is lost, or deleted before anybody read it: the
  other one stands where none was acknowledged.
- A topic with ``unclean.leader.election.enable`` may lose what was acknowledged before such an election, or while the
  former leader had not heard of it; its replicas must still become equal, so ``diverged`` is never allowed. A second
  such election may bring back what the first one lost, beside its retry: between two places of a record there were two.
- A record that is deleted (retention, DeleteRecords) before its producer was answered may be written once more: a
  replica that begins its log behind it has never heard of that producer, and takes its retry for a first send when it
  leads. Kafka's does so too (KIP-360: an unknown producer's sequence is believed). So between two places of a record
  some replica has begun its log. If the second copy, which is acknowledged, is deleted unread as well, the record seems
  to stand lower than where it was acknowledged. If only the first copy is, the second one stands behind records that
  the producer has sent later.
- A consumer whose position a leader has deleted goes on at that leader's log start. A later leader that had not heard
  of the deletion has the records still: the consumer seems to have passed over them.
- A record whose request a link delivered twice may stand though its producer reported *not written*: one copy was
  written, and the other one's refusal was heard first. A retrying proxy sends a request again by itself; if the disk is
  full at that very moment, the copy that is refused is truly not written. TCP doubles nothing, and no broker can know
  that its response is not the one that is heard (:class:`DoubledRecords`).

Rule for this file: whatever is not allowed here is a violation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from minikafka.check import value_id
from minikafka.check.findings import (
    AbortedRead,
    AcknowledgedMissingOnReplica,
    Duplicate,
    Finding,
    InconsistentOffsets,
    LostWrite,
    NonmonotonicPoll,
    NonmonotonicSend,
    PollSkip,
    Shifted,
    Unseen,
    Vanished,
)
from minikafka.sim.plan import Plan
from minikafka.sim.verdicts import Message
from minikafka.types import Epoch, Offset, TopicPartition
from minikafka.wire.batch import split
from minikafka.wire.codec import decode_request, find_api
from minikafka.wire.records import decode_batch

PRODUCE = find_api("Produce")


class DoubledRecords:
    """The values, by their ids, of records whose produce request arrived twice."""

    def __init__(self, requests: Sequence[Message]) -> None:
        self._requests = requests
        """Of all apis; others add to it while this is looked at."""
        self._opened = 0
        self._values: set[str] = set()

    def __contains__(self, value: object) -> bool:
        self._values.update(_values_of(self._requests[self._opened :]))
        self._opened = len(self._requests)
        return value in self._values


def _values_of(requests: Iterable[Message]) -> Iterator[str]:
    for message in requests:
        if message.api != PRODUCE.name:
            continue
        for part in decode_request(PRODUCE, message.body).partitions:
            for buffer in part.records:
                for batch in split(buffer):
                    yield from (value_id(record.value) for record in decode_batch(batch))


OF_LOOSE_RECORDS: Final = (LostWrite, Unseen, Duplicate, NonmonotonicSend, AcknowledgedMissingOnReplica)
"""What acks=0 and acks=1, without idempotence, do not promise."""

OF_UNCLEAN_PARTITIONS: Final = frozenset(
    {
        LostWrite,
        Unseen,
        InconsistentOffsets,
        Shifted,
        NonmonotonicPoll,
        NonmonotonicSend,
        Vanished,
    }
)
"""What an unclean election may do to clients of the lost records: others stand in their place."""

KAFKAS_MS: Final = {"broker.session.timeout.ms": 9_000, "request_timeout_ms": 30_000}
"""Defaults of what says how long after an election a client may receive what its former leader wrote."""

UNCLEAN_SETTING: Final = "unclean.leader.election.enable"


class Losses:
    """What one plan allows."""

    def __init__(
        self,
        plan: Plan,
        unclean_elections: Callable[[TopicPartition], Mapping[Epoch, float]],
        restarted_at: Callable[[TopicPartition], Collection[Offset]] = lambda _: (),
        doubled: Container[str] = (),
        time_of: Callable[[int], float] = lambda _: 0.0,
        deleted_below: Callable[[TopicPartition, float], Offset] = lambda _name, _by: 0,
        has_changed_leader: Callable[[TopicPartition], bool] = lambda _: True,
    ) -> None:
        self._unclean_elections = unclean_elections
        """Those that a partition has had, as its topic allows: epoch -> time."""
        self._restarted_at = restarted_at
        """Where replicas began their logs behind what was deleted."""
        self._deleted_below = deleted_below
        """Where some replica's log began at a time."""
        self._has_changed_leader = has_changed_leader
        """Whether a partition has ever had a second leader epoch: until then its leader has lost nothing."""
        self._time_of = time_of
        """When a line of the history was written."""
        self._doubled = doubled
        """The values of records whose produce request arrived twice."""
        clients = {**plan.clients, **plan.kafka}
        self._settings = {machine: {**plan.client_settings, **settings} for machine, settings in clients.items()}
        self._default = plan.client_settings
        self._loose = tuple(machine for machine, settings in clients.items() if _acks(settings) in (0, 1))
        spans = {**KAFKAS_MS, **plan.client_settings, **plan.settings}
        self._heard_late_s = sum(int(spans[name]) for name in KAFKAS_MS) / 1000
        self._standing: dict[TopicPartition, dict[str, list[Epoch]]] = {}

    def stands(self, name: TopicPartition, rows: Iterable[tuple[Epoch, str]]) -> None:
        """What a partition holds at the end: values, and in which epoch each was written, in the order of the log."""
        standing = self._standing[name] = {}
        for epoch, value in rows:
            standing.setdefault(value, []).append(epoch)

    def allows(self, finding: Finding) -> bool:
        """Return True if it is a loss that the settings permit."""
        name = TopicPartition(finding.topic, finding.partition)
        elections = self._unclean_elections(name)
        if elections and self._is_of_an_unclean_election(name, finding, elections):
            return True
        if isinstance(finding, Duplicate) and {partition for partition, _ in finding.places} == {name.partition}:
            offsets = sorted(offset for _, offset in finding.places)
            if self._is_of_a_deletion(name, [offsets]):
                return True
        if type(finding) is NonmonotonicSend and self._is_of_a_deletion(name, [sorted(finding.offsets)]):
            return True
        if type(finding) is PollSkip and finding.until <= self._deleted_below(name, self._time_of(finding.lines[0])):
            return True
        if isinstance(finding, AbortedRead) and finding.value in self._doubled:
            return True
        if isinstance(finding, InconsistentOffsets):
            # Several believe in this offset: without the answers to loose producers there is one value at most.
            claims = {value for value, who in finding.values if not self._is_answer_to_loose(value, who)}
            return len(claims) <= 1
        if isinstance(finding, Shifted):
            return all(map(self._is_loose, finding.processes)) or (
                finding.distance < 0 and self._is_of_a_deletion(name, _places_of(finding))
            )
        if isinstance(finding, LostWrite) and finding.was_read:
            return False
        if isinstance(finding, LostWrite | Unseen) and not self._has_changed_leader(name):
            return False
        value = str(getattr(finding, "value", "") or getattr(finding, "process", ""))
        return isinstance(finding, OF_LOOSE_RECORDS) and self._is_loose(value)

    def waits_for_commit(self, process: str) -> bool:
        """Return True if what is acknowledged to the process is committed by then: it sends with acks=all."""
        machine = process.partition("~")[0]
        return _acks(self._settings.get(machine, self._default)) not in (0, 1)

    def _is_of_an_unclean_election(
        self, name: TopicPartition, finding: Finding, elections: Mapping[Epoch, float]
    ) -> bool:
        if isinstance(finding, Duplicate):
            # It may have been read at a place where it was lost since. Where it stands twice, the leader that wrote it
            # again had it already: the one between had answered its producer that its sequence is not known.
            epochs = self._standing.get(name, {}).get(finding.value, [])
            return all(sum(one < epoch <= next_one for epoch in elections) >= 2 for one, next_one in pairwise(epochs))
        if type(finding) not in OF_UNCLEAN_PARTITIONS:
            return False
        times = [self._time_of(line) for line in finding.lines] or [0.0]
        first, last = min(elections.values()), max(elections.values()) + self._heard_late_s
        if isinstance(finding, LostWrite | Unseen):
            return max(times) <= last  # when it was acknowledged
        if isinstance(finding, NonmonotonicPoll):
            return min(times) >= first  # when a client was sent back
        return min(times) <= last

    def _is_of_a_deletion(self, name: TopicPartition, places: Iterable[Sequence[Offset]]) -> bool:
        """Return True if a replica has begun its log between any two places of each record."""
        begun = self._restarted_at(name)
        return all(
            any(one < start <= next_one for start in begun) for offsets in places for one, next_one in pairwise(offsets)
        )

    def _is_answer_to_loose(self, value: str, who: str) -> bool:
        return who.startswith("the answer to") and self._is_loose(value)

    def _is_loose(self, value: str) -> bool:
        """Return True if it is a value or a process of a producer that did not request more."""
        machine = value.partition(".")[0].partition("~")[0]
        return machine in self._loose


def _places_of(finding: Shifted) -> list[tuple[Offset, Offset]]:
    """Where the first and the last of the records stand, and where they were acknowledged; the others lie between."""
    return [(offset + finding.distance, offset) for offset in (finding.offset, finding.until - 1)]


def unclean_topics(plan: Plan) -> frozenset[str]:
    """Topics whose leaders may be elected from outside the ISR."""
    return frozenset(topic.name for topic in plan.topics if topic.configs.get(UNCLEAN_SETTING) == "true")


def _acks(settings: Mapping[str, Any]) -> object:
    return settings.get("acks", -1)
