"""Invariants over the requests of the production consumer in front of elections (KIP-320), read from the network.

``fetched_before_validation``
    A consumer that continues behind the records it has fetched sends no Fetch in a newer leader epoch before that
    leader has answered OffsetForLeaderEpoch, and no Fetch without a leader epoch.
``validated_with_wrong_epoch``
    OffsetForLeaderEpoch asks for the leader epoch of the last batch before the position.
``fetched_past_divergence``
    After a leader has answered where the logs diverge, the consumer fetches from there or before.

A position that does not continue what was fetched (a seek, a reset) has no epoch, and is not checked. Group members are
not checked either: they may begin at offsets that were committed without an epoch.

Rule for this file: it only looks. A response counts when the consumer receives it: responses are lost, and a request
that arrives twice has two of them, the second of which is older than what the consumer knows by then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from minikafka.errors import CorruptMessage
from minikafka.sim.replica_view import Report
from minikafka.sim.verdicts import Message
from minikafka.sim.world import Event, SimWorld
from minikafka.types import NO_EPOCH, NO_OFFSET, Epoch, Offset, TopicPartition
from minikafka.wire.apis import BY_NAME
from minikafka.wire.batch import split
from minikafka.wire.codec import decode_request, decode_response
from minikafka.wire.messages import FetchedPartition

WATCHED: Final = frozenset({"Fetch", "ListOffsets", "OffsetForLeaderEpoch"})


@dataclass(slots=True)
class _Place:
    """What the answers to one consumer said about one partition."""

    next_offset: Offset = NO_OFFSET
    """Behind the last fetched batch; -1 when the position may come from elsewhere."""
    last_epoch: Epoch = NO_EPOCH
    """The leader epoch of that batch."""
    validated: Epoch = NO_EPOCH
    """The newest leader epoch in which the position was confirmed."""
    diverges_at: Offset = NO_OFFSET
    """The answer to the last validation; -1 once a fetch has succeeded since."""


class ConsumerWatch:
    """All consumers of one run that read without a group."""

    def __init__(self, sim: SimWorld, machines: Collection[str], report: Report) -> None:
        self._machines = set(machines)
        self._report = report
        self._asked: dict[int, Any] = {}
        """Requests by the number of the call."""
        self._places: dict[tuple[str, TopicPartition], _Place] = {}
        self._on_request = {
            "Fetch": self._fetch_sent,
            "ListOffsets": self._reset_sent,
            "OffsetForLeaderEpoch": self._validation_sent,
        }
        self._on_answer = {
            "Fetch": self._fetched,
            "OffsetForLeaderEpoch": self._validated,
        }
        if self._machines:
            sim.network.observers.append(self._on_sent)
            sim.network.answered.append(self._on_answered)
            sim.observers.append(self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.kind == "node_killed":
            self._machines.discard(event.node)  # what replaces it is no production consumer
        elif event.kind == "damage_refused_by_consumer":  # it seeks
            self._places = {key: place for key, place in self._places.items() if key[0] != event.node}

    def _on_sent(self, message: Message, _verdict: object) -> None:
        if message.kind != "request" or message.api not in WATCHED:
            return
        if message.source in self._machines and message.call not in self._asked:
            request = self._asked[message.call] = decode_request(BY_NAME[message.api], message.body)
            for each in request.partitions:
                self._on_request[message.api](message.source, self._place(message.source, each), each)

    def _on_answered(self, message: Message) -> None:
        if message.api not in self._on_answer or message.target not in self._machines:
            return
        request = self._asked.get(message.call)
        answer = decode_response(message.api, message.body)
        if request is None or answer.error_code:
            return
        asked = {(each.topic, each.partition): each for each in request.partitions}
        for each in answer.partitions:
            if not each.error_code:
                place = self._place(message.target, each)
                self._on_answer[message.api](place, asked[each.topic, each.partition], each)

    def _place(self, machine: str, each: Any) -> _Place:
        return self._places.setdefault((machine, TopicPartition(each.topic, each.partition)), _Place())

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _fetch_sent(self, machine: str, place: _Place, asked: Any) -> None:
        fetch = f"{machine} fetches {asked.topic}-{asked.partition} from {asked.fetch_offset}"
        epoch = asked.current_leader_epoch
        if place.next_offset == asked.fetch_offset and not 0 <= epoch <= place.validated:
            self._report("fetched_before_validation", f"{fetch} in epoch {epoch}, validated is {place.validated}")
        if place.diverges_at != NO_OFFSET and epoch >= place.validated and asked.fetch_offset > place.diverges_at:
            self._report("fetched_past_divergence", f"{fetch}, the logs diverge at {place.diverges_at}")

    def _reset_sent(self, _machine: str, place: _Place, _asked: Any) -> None:
        place.next_offset = place.diverges_at = NO_OFFSET

    def _validation_sent(self, machine: str, place: _Place, asked: Any) -> None:
        if place.next_offset != NO_OFFSET and asked.leader_epoch != place.last_epoch:
            question = f"{machine} asks about epoch {asked.leader_epoch} of {asked.topic}-{asked.partition}"
            self._report("validated_with_wrong_epoch", f"{question}, its last batch is of epoch {place.last_epoch}")

    # ---- answers -----------------------------------------------------------------------------------------------------

    def _fetched(self, place: _Place, asked: Any, answer: FetchedPartition) -> None:
        place.validated = max(place.validated, asked.current_leader_epoch)
        place.diverges_at = NO_OFFSET
        try:
            batches = [batch for buffer in answer.records for batch in split(buffer)]
        except CorruptMessage:
            place.next_offset = NO_OFFSET
            return
        if batches:
            place.next_offset, place.last_epoch = batches[-1].next_offset, batches[-1].leader_epoch

    def _validated(self, place: _Place, asked: Any, answer: Any) -> None:
        place.validated = max(place.validated, asked.current_leader_epoch)
        place.diverges_at = answer.end_offset
        if answer.end_offset < place.next_offset:
            place.next_offset = NO_OFFSET
