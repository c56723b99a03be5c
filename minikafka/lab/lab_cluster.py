"""The postman: a cluster of one partition in which each step of each request is taken when the scenario says so.

A fetch travels in three steps, each of which can be the last::

    send     the follower asks from its log's end
    handle   the leader reads, counts the fetch, answers (or parks it: nothing to return yet)
    deliver  the follower obeys; or the answer is lost

Rules for this file: it carries and reports, it decides nothing. What handlers and drivers of the broker do around a
rule (the order of checks, a second read without a second acknowledgement, an answer thrown away because role or log
have changed) it does as they do; ``tests/scenarios/test_production.py`` plays all stories with these drivers, and
compares the state after each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minikafka.broker.alter_partition_manager import OVERTAKEN, SURELY_NOT_DONE
from minikafka.errors import BY_CODE, UNKNOWN, NotLeaderOrFollower, OffsetNotAvailable, ProtocolError, RequestTimedOut
from minikafka.lab.control import Control, News
from minikafka.lab.node import READ_SIZE_MAX, Held, Node, held_in
from minikafka.replication.follower import CutTo, Extend, FollowerReplica, NextFetch, RestartAt, Wait
from minikafka.replication.leader import ACKS_ALL, LeaderReplica, Proposal
from minikafka.types import NO_NODE, Epoch, NodeId, Offset
from minikafka.wire.batch import verify_client
from minikafka.wire.messages import EpochEndOffset, FetchedPartition, Records
from minikafka.wire.records import Record, build_batch

WALL_MS_START = 1_700_000_000_000


@dataclass(slots=True)
class Fetch:
    """One follower's request on its way."""

    node: NodeId
    role: FollowerReplica
    asked: NextFetch
    leader: NodeId
    broker_epoch: int
    parked_by: LeaderReplica | None = None
    deadline: float = 0.0
    answer: FetchedPartition | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A produce request with acks=all that has been appended and not yet answered."""

    values: tuple[str, ...]
    node: NodeId
    role: LeaderReplica
    base_offset: Offset
    deadline: float


@dataclass(frozen=True, slots=True)
class Promised:
    """A record that a client may rely on, and why."""

    value: str
    offset: Offset
    why: str


class LabCluster:
    """The nodes, what is on its way between them, and the results that producers and consumers received."""

    def __init__(self, nodes: Sequence[Node], control: Control, lines: list[str]) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.control = control
        self.now = 0.0
        self.lines = lines
        """Sentences of the present step; the player empties it."""
        self.fetches: dict[NodeId, Fetch] = {}
        self.waiting: list[Waiting] = []
        self.proposals: dict[NodeId, tuple[LeaderReplica, Proposal]] = {}
        self.promised: list[Promised] = []

    def name(self, node: NodeId) -> str:
        """As the scenario names it."""
        return self.nodes[node].name if node in self.nodes else "nobody" if node == NO_NODE else str(node)

    def names(self, nodes: Sequence[NodeId]) -> str:
        return ",".join(map(self.name, nodes)) or "-"

    def say(self, sentence: str) -> None:
        self.lines.append(sentence)

    def say_error(self, who: str, error: ProtocolError) -> None:
        self.say(f"{who}: {error.name}")

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def spread(self) -> None:
        """Every node that hears reads the metadata."""
        news = self.control.news()
        for node in self.nodes.values():
            if node.reachable and node.listens and node.news != news:
                self.tell(node, news)

    def tell(self, node: Node, news: News | None = None) -> None:
        """One node reads the metadata."""
        node.take(news or self.control.news(), self.now)
        role = node.leads()
        if role is not None:
            self.submit(node, role, role.propose_recovered())

    # ---- life --------------------------------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        """The process begins, registers, reads the metadata and takes up its role."""
        clean = node.stopped_cleanly
        node.start()
        node.broker_epoch = self.control.started(node.id, clean=clean, disk=node.disk.number)
        self.spread()
        if node.reachable and node.listens:
            self.control.heard(node.id)
            self.spread()

    def end(self, node: Node, *, power: bool = False) -> None:
        """The process dies, without a word to anybody; requests that it sent or parked die with it."""
        node.power_cut() if power else node.kill()
        self._forget(node)
        for each in [each for each in self.waiting if each.node == node.id]:
            self.waiting.remove(each)
            self.say(f"producer of {' '.join(each.values)}: no answer, outcome unknown")

    def _forget(self, node: Node) -> None:
        """Drop what its process sent, and what it has not answered."""
        self.fetches = {
            each.node: each
            for each in self.fetches.values()
            if node.id != each.node and (node.id != each.leader or each.answer is not None)
        }
        self.proposals.pop(node.id, None)

    def stop(self, node: Node) -> None:
        """A controlled shutdown: leaders move first."""
        self.control.stopped(node.id)
        self.spread()
        self.settle_producers()
        self._forget(node)
        node.stop()

    def join(self, node: Node) -> None:
        """The node is reachable again."""
        node.connected = True
        if node.up:
            self.control.heard(node.id)
            self.spread()

    # ---- producers and consumers -------------------------------------------------------------------------------------

    def produce(self, node: Node, values: Sequence[str], *, acks: int, believing: Epoch, timeout_s: float) -> None:
        """Produce one batch and report the producer's result."""
        who = f"producer of {' '.join(values)}"
        try:
            role = node.seat.as_leader(believing)
            wall_ms = WALL_MS_START + round(self.now * 1000)
            records = [Record(number, wall_ms, value=value.encode()) for number, value in enumerate(values)]
            appended = role.append(verify_client(build_batch(records)), acks=acks, wall_ms=wall_ms)
        except ProtocolError as error:
            self.say(f"{who}: {error.name}, {error.outcome}")
            return
        if node.seat.config.syncs_before_acknowledging:
            node.sync()
        role.advance(self.now)
        if acks == ACKS_ALL:
            self.waiting.append(Waiting(tuple(values), node.id, role, appended.base_offset, self.now + timeout_s))
            self.settle_producers()
            return
        if acks:
            self._promise(values, appended.base_offset, "acknowledged with acks=1")
        self.say(f"{who}: {'acknowledged' if acks else 'no response'}")

    def _promise(self, values: Sequence[str], base_offset: Offset, why: str) -> None:
        self.promised += [Promised(value, offset, why) for offset, value in enumerate(values, start=base_offset)]

    def settle_producers(self) -> None:
        """Answer the producers whose records are committed, or cannot be waited for any longer."""
        for each in list(self.waiting):
            who = f"producer of {' '.join(each.values)}"
            try:
                if self.nodes[each.node].leads() is not each.role:
                    raise NotLeaderOrFollower(outcome=UNKNOWN)
                if not each.role.check_acknowledged(each.base_offset + len(each.values)):
                    if self.now < each.deadline:
                        continue
                    raise RequestTimedOut(outcome=UNKNOWN)
                self._promise(each.values, each.base_offset, "acknowledged with acks=all")
                self.say(f"{who}: acknowledged")
            except ProtocolError as error:
                self.say(f"{who}: {error.name}, {error.outcome}")
            self.waiting.remove(each)

    def consume(self, node: Node, offset: Offset, *, believing: Epoch, last_epoch: Epoch) -> None:
        """A consumer reads from ``offset``: below the high watermark, from a leader only (S3, S17)."""
        try:
            role = node.seat.as_leader(believing)
            diverging = role.diverging(offset, last_epoch)
            if diverging is not None:
                self.say(f"consumer: what it has read diverges, epoch {diverging.epoch} ends at {diverging.end_offset}")
                return
            end = role.high_watermark
            buffers = role.log.read(offset, max_bytes=READ_SIZE_MAX, end_offset=end).buffers if offset < end else ()
            if not role.log.start_offset <= offset <= role.log.end_offset:
                role.log.read(offset, max_bytes=READ_SIZE_MAX)  # says why it is out of range
        except ProtocolError as error:
            self.say_error("consumer", error)
            return
        seen = [held for buffer in buffers for held in held_in(buffer) if held.offset >= offset]
        for held in seen:
            if all((each.value, each.offset) != (held.value, held.offset) for each in self.promised):
                self.promised.append(Promised(held.value, held.offset, "read by a consumer"))
        self.say(f"consumer: reads {' '.join(held.value for held in seen) or 'nothing'}, high watermark {end}")

    def latest(self, node: Node) -> None:
        """A consumer asks where the partition ends (KIP-207)."""
        try:
            role = node.seat.as_leader()
            if not role.knows_its_watermark:
                raise OffsetNotAvailable
            self.say(f"consumer: the latest offset is {role.high_watermark}")
        except ProtocolError as error:
            self.say_error("consumer", error)

    # ---- fetches -----------------------------------------------------------------------------------------------------

    def send(self, node: Node) -> Fetch | None:
        """The follower asks; None when it follows nobody."""
        role = node.seat.role
        if not isinstance(role, FollowerReplica):
            self.say(f"{node.name} follows nobody")
            return None
        fetch = Fetch(node.id, role, role.next_fetch(), role.leader, node.broker_epoch)
        self.fetches[node.id] = fetch
        return fetch

    def handle(self, fetch: Fetch, *, wait: bool) -> None:
        """The leader reads and answers; with ``wait`` a fetch with nothing to return is parked."""
        leader = self.nodes.get(fetch.leader)
        if leader is None or not leader.reachable or not self.nodes[fetch.node].connected:
            del self.fetches[fetch.node]
            self.say(f"{self.name(fetch.leader)} is not reached")
            return
        answer = self._read(leader, fetch, acknowledge=True)
        if wait and not answer.records and not answer.error_code and answer.diverging_epoch is None:
            fetch.parked_by = leader.leads()
            fetch.deadline = self.now + leader.settings.fetch_wait_max_s
            self.say(f"nothing to return: parked at {leader.name}")
        else:
            fetch.answer = answer
        self.settle_producers()

    def _read(self, leader: Node, fetch: Fetch, *, acknowledge: bool) -> FetchedPartition:
        """As the broker's fetch handler: checks, divergence, read, and only then the acknowledgement (KAFKA-8400)."""
        seat, asked = leader.seat, fetch.asked
        try:
            role = seat.as_leader(asked.leader_epoch)
            counts = role.check_fetcher(fetch.node, fetch.broker_epoch)
            diverging = role.diverging(asked.offset, asked.last_fetched_epoch)
            if diverging is not None:
                return _answer(
                    role, diverging_epoch=EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset)
                )
            end = role.log.end_offset
            data = role.log.read(asked.offset, max_bytes=READ_SIZE_MAX)
            if acknowledge and counts:
                effect = role.record_fetch(
                    fetch.node,
                    asked.offset,
                    start_offset=asked.start_offset,
                    broker_epoch=fetch.broker_epoch,
                    leader_end=end,
                    now=self.now,
                )
                if effect.wants_in:
                    self.submit(leader, role, role.propose_expand())
            return _answer(role, records=tuple(data.buffers))
        except ProtocolError as error:
            known = leader.leads()
            return FetchedPartition(
                topic=seat.partition.topic,
                partition=seat.partition.partition,
                error_code=error.code,
                error_message=error.message,
                high_watermark=known.high_watermark if known else -1,
                log_start_offset=seat.log.start_offset if known else -1,
                log_end_offset=seat.log.end_offset if known else -1,
            )

    def ready(self) -> Fetch | None:
        """A parked fetch that is to be answered now: there is data, its time is over, or the role has changed (S12)."""
        for fetch in self.fetches.values():
            if fetch.parked_by is None or fetch.answer is not None:
                continue
            leader = self.nodes[fetch.leader]
            if (
                leader.leads() is not fetch.parked_by
                or fetch.parked_by.log.end_offset > fetch.asked.offset
                or self.now >= fetch.deadline
            ):
                return fetch
        return None

    def answer_parked(self, fetch: Fetch) -> None:
        """Read again, without a second acknowledgement."""
        fetch.answer = self._read(self.nodes[fetch.leader], fetch, acknowledge=False)

    def lose(self, fetch: Fetch) -> None:
        """The answer never arrives."""
        del self.fetches[fetch.node]
        self.say(f"the answer ({content_of(fetch.answer)}) is lost")

    def deliver(self, fetch: Fetch) -> None:
        """The follower obeys the answer, unless its role or its log's end have changed since it asked."""
        del self.fetches[fetch.node]
        node, answer, role = self.nodes[fetch.node], fetch.answer, fetch.role
        if answer is None or not node.reachable:
            self.say("the answer reaches nobody")
            return
        if node.seat.role is not role or role.log.end_offset != fetch.asked.offset:
            self.say(f"{node.name} throws the answer away: it has changed since it asked")
            return
        self.say(f"{node.name} gets {content_of(answer)}")
        if answer.error_code:
            node.events("fetch_refused", error=BY_CODE[answer.error_code].name)
        match role.on_response(answer, asked=fetch.asked.offset):
            case CutTo(offset):
                role.cut_to(offset)
            case RestartAt(offset):
                role.restart_at(offset)
            case Extend(batches, high_watermark, start_offset):
                role.append(batches)
                if batches and node.seat.config.syncs_before_acknowledging:
                    node.sync()
                role.on_durable(high_watermark, start_offset)
            case Wait(_, for_metadata):
                self.say(f"{node.name} waits {'for metadata' if for_metadata else 'and asks again'}")

    # ---- in-sync replicas --------------------------------------------------------------------------------------------

    def submit(self, node: Node, role: LeaderReplica, proposal: Proposal | None) -> None:
        """A proposal is on its way to the controller."""
        if proposal is not None:
            self.proposals[node.id] = (role, proposal)

    def check_isr(self, node: Node) -> None:
        """The leader's periodic check (S14): followers that have not caught up in time leave the ISR."""
        role = node.leads()
        if role is None:
            self.say(f"{node.name} does not lead")
            return
        self.say_lags(role)
        self.submit(node, role, role.propose_shrink(self.now))
        role.advance(self.now)  # a replica outside the ISR that stopped fetching counts until its time is up

    def say_lags(self, role: LeaderReplica) -> None:
        """Say of each follower when it was caught up last."""
        for member, remote in role.remotes.items():
            behind = role.log.end_offset - max(remote.end_offset, 0)
            ago = self.now - remote.caught_up_at()
            seen = "never caught up" if ago == float("inf") else f"caught up {ago:g} s ago"
            self.say(f"{self.name(member)}: {seen}, {behind} record{'s' * (behind != 1)} behind")

    def settle_proposal(self, node: Node) -> None:
        """The controller decides; the leader hears the answer if it listens, all brokers read what was recorded."""
        role, proposal = self.proposals.pop(node.id)
        if not node.connected:
            self.proposals[node.id] = (role, proposal)
            self.say("the controller is not reached")
            return
        answer = self.control.alter(node.id, node.broker_epoch, proposal)
        self.say(f"controller: {BY_CODE[answer.error_code].name if answer.error_code else 'recorded'}")
        if node.listens and node.leads() is role and role.proposal is proposal:
            if not answer.error_code:
                if answer.leader_epoch == role.epoch:
                    role.on_committed_state(answer.isr, answer.partition_epoch, recovered=True, now=self.now)
            elif answer.error_code in SURELY_NOT_DONE:
                role.withdraw(proposal)
                role.advance(self.now)  # who was to join holds nothing back any more
            elif answer.error_code not in OVERTAKEN:
                self.proposals[node.id] = (role, proposal)
        elif not node.listens:
            self.say(f"{node.name} does not hear it")
        self.spread()
        self.settle_producers()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def leader(self) -> Node | None:
        """The node that the controller says leads, if it runs."""
        node = self.nodes.get(self.control.news().state.leader)
        return node if node is not None and node.up else None

    def lost(self) -> list[Promised]:
        """Promised records that the leader's log does not have where they were; empty while nobody leads."""
        leader = self.leader()
        if leader is None:
            return []
        held = {record.offset: record.value for record in leader.records()}
        start = leader.seat.log.start_offset
        return [each for each in self.promised if each.offset >= start and held.get(each.offset) != each.value]

    def diverged(self) -> list[tuple[Held, Node, Held, Node]]:
        """Offsets below both high watermarks at which two running replicas differ."""
        found = []
        running = [node for node in self.nodes.values() if node.up]
        for number, one in enumerate(running):
            mine = {held.offset: held for held in one.records() if held.offset < one.seat.high_watermark}
            for other in running[number + 1 :]:
                found += [
                    (mine[held.offset], one, held, other)
                    for held in other.records()
                    if held.offset < other.seat.high_watermark and held.offset in mine and mine[held.offset] != held
                ]
        return found


def _answer(
    role: LeaderReplica, *, diverging_epoch: EpochEndOffset | None = None, records: Records = ()
) -> FetchedPartition:
    return FetchedPartition(
        topic=role.partition.topic,
        partition=role.partition.partition,
        high_watermark=role.high_watermark,
        log_start_offset=role.log.start_offset,
        log_end_offset=role.log.end_offset,
        diverging_epoch=diverging_epoch,
        records=records,
    )


def content_of(answer: FetchedPartition | None) -> str:
    """An answer in words."""
    if answer is None:
        return "none yet"
    if answer.error_code:
        return BY_CODE[answer.error_code].name
    if answer.diverging_epoch is not None:
        return f"diverging, epoch {answer.diverging_epoch.epoch} ends at {answer.diverging_epoch.end_offset}"
    values = [held.value for buffer in answer.records for held in held_in(buffer)]
    return f"{' '.join(values) or 'no records'}, HW {answer.high_watermark}"
