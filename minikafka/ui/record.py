"""Listening to a simulation: every event, and every message that concerns a partition.

Rules for this file: it only listens; messages are decoded here and nowhere on the way, so a campaign pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from minikafka.errors import BY_CODE
from minikafka.sim.plan import Plan
from minikafka.sim.run import Report, Run
from minikafka.sim.verdicts import Deliver, Drop, Hold, Message, Reset, Verdict
from minikafka.sim.world import Event, SimWorld
from minikafka.types import METADATA_TOPIC
from minikafka.ui.journal import Entry, Journal
from minikafka.wire.apis import BY_NAME
from minikafka.wire.batch import split
from minikafka.wire.codec import decode_request, decode_response
from minikafka.world.events import plain

FATES: Final[dict[type, str]] = {Deliver: "sent", Drop: "lost", Hold: "held", Reset: "reset"}

Parts = dict[str, dict[str, object]]
"""Partition -> what a message says of it."""


class Recording:
    """The entries of one simulation, from now on."""

    def __init__(self, sim: SimWorld) -> None:
        self.entries: list[Entry] = []
        self._sim = sim
        self._asked: dict[int, Parts] = {}
        sim.observers.append(self._on_event)
        sim.network.observers.append(self._on_message)

    def close(self) -> None:
        """Listen no more."""
        self._sim.observers.remove(self._on_event)
        self._sim.network.observers.remove(self._on_message)

    def journal(self, title: str) -> Journal:
        """What was heard."""
        return Journal(title=title, entries=self.entries, is_simulated=True, has_messages=True)

    def _on_event(self, event: Event) -> None:
        self.entries.append(
            Entry(
                at_s=event.time,
                node=event.node,
                kind=event.kind,
                # As in a journal that was read back: lists for tuples, so that the words are the same.
                facts={name: plain(value) for name, value in event.facts.items()},
                cause=event.cause,
                life=event.incarnation,
            )
        )

    def _on_message(self, message: Message, verdict: Verdict) -> None:
        if message.kind == "request":
            parts = self._asked[message.call] = _parts_of_request(message)
        else:
            parts = _parts_of_answer(message, self._asked.get(message.call, {}))
        if parts:
            facts: dict[str, object] = {
                "call": message.call,
                "what": message.kind,
                "api": message.api,
                "source": message.source,
                "target": message.target,
                "fate": FATES[type(verdict)],
                "parts": parts,
            }
            self.entries.append(
                Entry(at_s=self._sim.loop.time(), node=message.source, kind="message_sent", facts=facts)
            )


def _parts_of_request(message: Message) -> Parts:
    if message.api not in {"Fetch", "Produce", "AlterPartition"}:
        return {}
    request = decode_request(BY_NAME[message.api], message.body)
    if message.api == "Fetch":
        return {
            f"{each.topic}-{each.partition}": {
                "offset": each.fetch_offset,
                "last_epoch": each.last_fetched_epoch,
                "epoch": each.current_leader_epoch,
                "hw": each.high_watermark,
                "replica": request.replica_id,
            }
            for each in request.partitions
            if each.topic != METADATA_TOPIC
        }
    if message.api == "Produce":
        return {
            f"{each.topic}-{each.partition}": {
                "acks": request.acks,
                "records": sum(batch.record_count for data in each.records for batch in split(memoryview(data))),
            }
            for each in request.partitions
        }
    return {
        f"{each.topic}-{each.partition}": {
            "isr": tuple(member.broker_id for member in each.new_isr),
            "epoch": each.leader_epoch,
        }
        for each in request.partitions
    }


def _parts_of_answer(message: Message, asked: Parts) -> Parts:
    if not asked:
        return {}
    answer = decode_response(message.api, message.body)
    if answer.error_code:
        return {name: {"error": BY_CODE[answer.error_code].name} for name in asked}
    return {f"{each.topic}-{each.partition}": dict(_partition_facts(message.api, each)) for each in answer.partitions}


def _partition_facts(api: str, part: Any) -> Iterator[tuple[str, object]]:
    if part.error_code:
        yield "error", BY_CODE[part.error_code].name
        return
    if api == "Produce":
        yield "base", part.base_offset
        if part.duplicate:
            yield "duplicate", True
    elif api == "Fetch":
        yield "hw", part.high_watermark
        if part.diverging_epoch is not None:
            yield "diverging", [part.diverging_epoch.epoch, part.diverging_epoch.end_offset]
        batches = [batch for data in part.records for batch in split(memoryview(data))]
        if batches:
            yield "base", batches[0].base_offset
            yield "end", batches[-1].next_offset
    else:
        yield "isr", tuple(part.isr)


class RecordedRun(Run):
    """A run of a plan, listened to until its verdict begins: that kills every broker to look at the disks."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.recording = Recording(self.sim)
        self._listening = True

    def _validate(self) -> None:
        self._stop_listening()
        super()._validate()

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening = False
            self.recording.close()

    def recorded(self) -> tuple[Journal, Report]:
        """Run it; the journal has every broken promise in it, where it was seen."""
        report = self.run()
        self._stop_listening()
        journal = self.recording.journal(f"seed {self.plan.seed}")
        for each in report.violations:
            violation = Entry(at_s=each.time, node="", kind="violation", facts={"name": each.name, "what": each.what})
            place = next(
                (n for n, entry in enumerate(self.recording.entries) if entry.at_s > each.time),
                len(self.recording.entries),
            )
            self.recording.entries.insert(place, violation)
        return journal, report
