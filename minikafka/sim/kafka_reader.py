"""A reader of Kafka's protocol in a simulation: Fetch with sessions, ListOffsets, and leader epochs (KIP-320).

It reads whole partitions in order, again and again from where it stands, and keeps a fetch session with each leader.
Behind a change of leader epoch it asks OffsetForLeaderEpoch first, and goes back to where the logs part.

Rules for this file: it has the face of ``ReadingClient``; what was read is recorded with the watermark beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from minikafka.check import Recorder
from minikafka.errors import OffsetOutOfRange
from minikafka.sim.kafka_link import KafkaCluster, KafkaLink, Report
from minikafka.sim.workload import CALL_S, READ_PAUSE_S, READ_WAIT_MS, Reader
from minikafka.sim.world import SimWorld
from minikafka.types import NO_EPOCH, Address, Epoch, Offset, TopicPartition

BY_ID_FROM: Final = 13
EARLIEST, LATEST = -2, -1
FETCH_BYTES: Final = 1 << 20


class _Session:
    """The fetch session with one leader, on one connection."""

    def __init__(self, link: KafkaLink) -> None:
        self.link = link
        self.session_id = 0
        self.epoch = 0
        self.fetched: dict[TopicPartition, tuple[Offset, Epoch]] = {}
        """What the leader knows of each partition."""


class KafkaReader(Reader):
    """Reads partitions over Kafka's protocol."""

    def __init__(
        self,
        sim: SimWorld,
        name: str,
        partitions: Sequence[TopicPartition],
        recorder: Recorder,
        *,
        brokers: Sequence[Address],
        settings: Mapping[str, Any],
        report: Report,
        positions: Mapping[TopicPartition, Offset] | None = None,
        pace: float = 1.0,
    ) -> None:
        super().__init__(sim, name, partitions, recorder, positions or dict.fromkeys(partitions, 0))
        self._epochs: dict[TopicPartition, Epoch] = {}
        """Leader epoch of the last batch that was read."""
        self._validated: dict[TopicPartition, Epoch] = {}
        """Leader epoch under which the position is known to be right."""
        self._pace = pace
        self._fetch_version = int(settings.get("fetch", 12))
        self._call_s = CALL_S * pace
        self._sessions: dict[Address, _Session] = {}
        self._cluster = KafkaCluster(
            self._world,
            self.machine,
            brokers,
            {"Fetch": self._fetch_version},
            timeout_s=self._call_s,
            report=report,
        )
        sim.spawn(self.machine, self._run())

    async def _run(self) -> None:
        wait_ms = 0
        while True:
            if self._cluster.is_stale or any(self._cluster.address_of_leader(name) is None for name in self.positions):
                await self._cluster.refresh({name.topic for name in self.positions})
            before = dict(self.positions)
            for link, names in self._by_leader().items():
                valid = [name for name in names if await self._is_valid(link, name)]
                if valid and not link.is_lost:
                    await self._fetch(link, valid, wait_ms)
            wait_ms = int(READ_WAIT_MS * self._pace) if self.positions == before else 0
            await asyncio.sleep(READ_PAUSE_S * self._pace)

    def _by_leader(self) -> dict[KafkaLink, list[TopicPartition]]:
        found: dict[KafkaLink, list[TopicPartition]] = {}
        for name in self.positions:
            link = self._cluster.link_to(name)
            if link is not None:
                found.setdefault(link, []).append(name)
        return found

    # ---- positions ---------------------------------------------------------------------------------------------------

    async def _is_valid(self, link: KafkaLink, name: TopicPartition) -> bool:
        """Behind an election the leader says where its log parts from what was read (KIP-320)."""
        known = self._cluster.leaders.get(name)
        if known is None:
            return False
        read = self._epochs.get(name, NO_EPOCH)
        if read == NO_EPOCH or self._validated.get(name) == known.epoch:
            return True
        row = {"partition": name.partition, "current_leader_epoch": known.epoch, "leader_epoch": read}
        message = {"topics": [{"topic": name.topic, "partitions": [row]}]}
        answer = await link.call("OffsetForLeaderEpoch", message, self._call_s)
        if answer is None:
            return False
        part = answer["topics"][0]["partitions"][0]
        if part["error_code"]:
            self._cluster.is_stale = True
            return False
        if 0 <= part["end_offset"] < self.positions[name]:
            self._go_back(name, part["end_offset"], part["leader_epoch"])
        self._validated[name] = known.epoch
        return True

    async def _reset(self, link: KafkaLink, name: TopicPartition) -> None:
        """To what is still there: retention has passed this reader, or a log was cut."""
        bounds = []
        for timestamp in (EARLIEST, LATEST):
            row = {"partition_index": name.partition, "timestamp": timestamp}
            message = {"replica_id": -1, "topics": [{"name": name.topic, "partitions": [row]}]}
            answer = await link.call("ListOffsets", message, self._call_s)
            part = None if answer is None else answer["topics"][0]["partitions"][0]
            if part is None or part["error_code"]:
                self._cluster.is_stale = True
                return
            bounds.append(part["offset"])
        bounded = min(max(self.positions[name], bounds[0]), bounds[1])
        if bounded != self.positions[name]:
            self._go_back(name, bounded, NO_EPOCH)

    def _go_back(self, name: TopicPartition, offset: Offset, epoch: Epoch) -> None:
        self._seek(name, offset)
        self._epochs[name] = epoch

    # ---- fetching ----------------------------------------------------------------------------------------------------

    async def _fetch(self, link: KafkaLink, names: Sequence[TopicPartition], wait_ms: int) -> None:
        session = self._sessions.get(link.address)
        if session is None or session.link is not link:
            session = self._sessions[link.address] = _Session(link)
        leaders = {name: self._cluster.leaders[name] for name in names if name in self._cluster.leaders}
        wanted = {name: (self.positions[name], known.epoch) for name, known in leaders.items()}
        changed = [name for name, what in wanted.items() if not session.epoch or session.fetched.get(name) != what]
        gone = [name for name in session.fetched if name not in wanted]
        ids = {known.topic_id: name.topic for name, known in leaders.items()}
        message = {
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES,
            "session_id": session.session_id,
            "session_epoch": session.epoch,
            "topics": [
                {
                    "topic": name.topic,
                    "topic_id": leaders[name].topic_id,
                    "partitions": [
                        {
                            "partition": name.partition,
                            "current_leader_epoch": leaders[name].epoch,
                            "fetch_offset": self.positions[name],
                            "partition_max_bytes": FETCH_BYTES,
                        }
                    ],
                }
                for name in changed
            ],
            "forgotten_topics_data": [
                {"topic": name.topic, "topic_id": known.topic_id, "partitions": [name.partition]}
                for name in gone
                if (known := self._cluster.leaders.get(name)) is not None
            ],
        }
        answer = await link.call("Fetch", message, self._call_s + wait_ms / 1000)
        if answer is None or answer["error_code"]:
            self._sessions.pop(link.address, None)
            self._cluster.is_stale = self._cluster.is_stale or answer is None
            return
        session.session_id = answer["session_id"]
        session.epoch = session.epoch + 1 if answer["session_id"] else 0
        session.fetched = wanted
        for topic in answer["responses"]:
            for part in topic["partitions"]:
                name = TopicPartition(topic["topic"] or ids.get(topic["topic_id"], ""), part["partition_index"])
                if name in wanted:
                    await self._received(link, name, part)

    async def _received(self, link: KafkaLink, name: TopicPartition, part: dict[str, Any]) -> None:
        if part["error_code"] == OffsetOutOfRange.code:
            await self._reset(link, name)
            return
        if part["error_code"]:
            self._cluster.is_stale = True
            return
        position = self.positions[name]
        records = () if part["records"] is None else (bytes(part["records"]),)
        batches = self._take(name, records, part["high_watermark"])
        if batches:
            self._epochs[name] = batches[-1].leader_epoch
            known = self._cluster.leaders.get(name)
            self._validated[name] = known.epoch if known is not None else NO_EPOCH
            self._world.events("kafka_records_read", partition=str(name), first=position, end=self.positions[name])
