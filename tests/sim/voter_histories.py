"""Random histories of one voter's durable files: its vote, its metadata log, its snapshots (S1, S21, KAFKA-FACTS 4.1).

One voter with the real driver, rules and files on the simulated disk; the other two are a model (``other_voters.py``).
Votes, elections, fetches, snapshots, checkpoints, failing syncs and full disks are mixed with kill -9, power failures
and clean stops, also in the midst of a start. After each start the voter must have what it promised before:

- no second vote in an epoch, and no lower epoch than it has ever named;
- what its fetches acknowledged, and what a completed sync covered;
- a log without a hole behind its snapshot, and the state that a replay of the committed log gives;
- after a clean stop, everything.

No start may fail, except for a disk that fails or is full while it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_changes
from random import Random
from typing import Any

from minikafka.broker.broker import METADATA_LOG_CONFIG, METADATA_TOPIC_ID
from minikafka.broker.quorum_driver import QuorumDriver
from minikafka.config import BrokerConfig
from minikafka.errors import DiskFailed, DiskFull, KafkaStorageError, NotController
from minikafka.log.log_directory import LogDirectory
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import Buffers, RequestContext, World
from minikafka.quorum.files import QUORUM_STATE_PATH
from minikafka.sim.disk import FencedDisk, SimDisk
from minikafka.sim.loop import Incarnation
from minikafka.sim.world import Event, SimWorld
from minikafka.tasks import Tasks
from minikafka.types import (
    METADATA_PARTITION,
    METADATA_TOPIC,
    NO_NODE,
    Address,
    Epoch,
    EpochEnd,
    NodeId,
    Offset,
)
from minikafka.wire import messages as m
from minikafka.wire.batch import split
from minikafka.wire.codec import decode_request, encode_response, find_api
from tests.rules.log_words import everything, on_disk
from tests.sim.other_voters import CLUSTER_ID, ME, OTHERS, Breach, Entry, OtherVoters, Promises, entries_of

NODE = "n1"
STORAGE = (DiskFailed, DiskFull, KafkaStorageError)
"""The documented ends of a process whose disk fails."""
PAUSES_S = (0.0, 0.001, 0.004, 0.02, 0.1)
START_S_MAX = 60.0
CATCH_UP_TURNS = 200
MOMENTS = (
    "vote_granted",
    "quorum_role_changed",
    "quorum_leader_elected",
    "quorum_tail_truncated",
    "quorum_hw_advanced",
    "segment_rolled",
    "snapshot_taken",
    "snapshot_fetched",
    "log_restarted",
    "log_start_raised",
    "data_directory_opened",
)
"""Events after which a failure may come at once."""
END: Offset = 2**63 - 1
"""Behind all records."""
DRAIN_S = 0.1
"""All messages of a dead process have arrived by then."""


class LateFolders(FencedDisk):
    """The disk of a process that may be killed between the change of a name and the sync of its folder."""

    def __init__(self, disk: SimDisk, incarnation: Incarnation, random: Random) -> None:
        super().__init__(disk, incarnation)
        self._random = random

    async def sync_folder(self, folder: str) -> None:
        await asyncio.sleep(self._random.choice((0.0, 0.001, 0.01)))
        await super().sync_folder(folder)


@dataclass
class Replay:
    """The listener of one life: it checks that it is given the committed log."""

    promises: Promises
    state: list[bytes]

    def on_commit(self, base_offset: Offset, leader_epoch: Epoch, payloads: Sequence[bytes]) -> None:
        self.promises.commit(base_offset, leader_epoch, payloads)
        self.state.extend(payloads)

    def on_snapshot(self, snapshot: EpochEnd, payloads: Sequence[bytes]) -> None:
        if list(payloads) != self.promises.state_at(snapshot.end_offset):
            raise Breach(f"snapshot {snapshot} is not the replay of the committed log")
        self.state = list(payloads)

    def on_leader(self, leader_id: NodeId, epoch: Epoch, i_lead: bool) -> None:
        """Nothing to do."""

    def snapshot_payloads(self) -> Sequence[bytes]:
        return tuple(self.state)


@dataclass(kw_only=True)
class Life:
    """One process of the voter."""

    directory: LogDirectory
    log: PartitionLog
    driver: QuorumDriver
    tasks: Tasks
    listener: Replay


class VoterHistory:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"voter/{seed}")
        self.promises = Promises()
        self.others = OtherVoters(self.random, self.promises)
        self.settings: dict[str, Any] = {
            "controller_quorum_election_timeout_ms": 300,
            "controller_quorum_fetch_timeout_ms": 400,
            "controller_quorum_election_backoff_max_ms": 200,
            "controller_quorum_request_timeout_ms": 500,
            "metadata_log_max_record_bytes_between_snapshots": self.random.choice((150, 500, 3000)),
        }
        self.is_alone = self.random.random() < 0.15
        """It is the only voter: what it appends is committed when it is durable."""
        self.segment_bytes = self.random.choice((300, METADATA_LOG_CONFIG.segment_bytes))
        self.life: Life | None = None
        self.held: list[Entry] = []
        """The log when the last life ended."""
        self.synced: list[Entry] = []
        """What of it no power failure takes."""
        self.is_power = False
        """The power went since then."""
        self.own_values = 0
        self.failures: list[BaseException] = []
        """Of the present life."""
        self.is_faulty = False
        """The disk may fail in this life."""
        self.last_candidate = NO_NODE
        self.aimed_at = ""
        """The kind of event that the next failure follows."""
        self.moment = asyncio.Event()
        self.sim: SimWorld
        self.disk: SimDisk

    def play(self, steps: int) -> None:
        """``steps`` random steps; then the voter must catch up. Raises Breach."""
        with SimWorld(f"voter/{self.seed}") as self.sim:
            self.disk = self.sim.disk(NODE)
            self.disk.sync_mean_s = self.random.choice((0.0005, 0.002, 0.01))
            self.sim.observers.append(self._watch)
            self.sim.run(self._play(steps))

    async def _play(self, steps: int) -> None:
        ask = self.ask
        actions: list[Callable[[], object]] = (
            [ask(self.append)] * 6
            + [self.checkpoint] * 4
            + [self.wait] * 4
            + [self.fail_a_sync] * 1
            + [self.fill_disk] * 1
            + [self.free_disk] * 2
            + [self.kill] * 2
            + [self.power_cut] * 2
            + [self.aim] * 4
            + [self.stop] * 1
        )
        if not self.is_alone:
            actions += self._actions_of_others()
        for node in OTHERS:
            await self.sim.spawn(f"n{node}", self._serve(node, self.sim.of(f"n{node}")))
        self.sim.spawn("n2", self._follow())
        await self.start()
        # While the log is empty, no sync of it covers what else lies in its folder.
        first = [ask(self.request_vote)] * 4 + [self.aim] * 3 + [self.kill, self.power_cut]
        first_count = 0 if self.is_alone else self.random.choice((0, 0, 20))
        for number in range(steps):
            done = self.random.choice(first if number < first_count else actions)()
            if isinstance(done, Awaitable):
                await done
            if await self._is_struck(self.random.choice(PAUSES_S)):
                await self._strike()
            await self._look_at_failures()
        await self._catch_up()

    def _actions_of_others(self) -> list[Callable[[], object]]:
        others, ask = self.others, self.ask
        actions: list[Callable[[], object]] = (
            [others.write] * 8
            + [others.commit] * 6
            + [others.take_snapshot] * 1
            + [others.run_ahead] * 2
            + [others.elect] * 4
            + [ask(self.announce)] * 5
            + [ask(self.request_vote)] * 4
            + [self.resign] * 1
            + [self.lose_patience] * 2
        )
        return actions + [self.replace_disk] * (self.random.random() < 0.2)

    async def _is_struck(self, seconds: float) -> bool:
        """Wait for the moment of the next failure. False: it did not come within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self.moment.wait()
        except TimeoutError:
            return False
        return True

    async def _strike(self) -> None:
        """A few syncs later the process ends, or the power goes; or first the one and, soon after the next start, the
        other.
        """
        self.moment.clear()
        await asyncio.sleep(self.random.uniform(0.0, 4 * self.disk.sync_mean_s))
        is_power = self.random.random() < 0.5
        await self._end(is_power=is_power)
        await self.start()
        if not is_power and self.random.random() < 0.5:
            if not self.is_alone:
                self.ask(self.request_vote)()
            await asyncio.sleep(self.random.uniform(0.0, 4 * self.disk.sync_mean_s))
            await self._end(is_power=True)
            await self.start()

    def _watch(self, event: Event) -> None:
        if event.node == NODE and event.kind == self.aimed_at:
            self.aimed_at = ""
            self.moment.set()
        # What is about to be cut off, or to go behind a snapshot, may come back with the power.
        if event.kind in ("quorum_tail_truncated", "snapshot_taken") and self.life is not None:
            self._note(self.life.log)

    # ---- the other voters ----

    async def _serve(self, node: NodeId, world: World) -> None:
        async def handler(api: str, body: bytes, _context: RequestContext) -> Buffers:
            return encode_response(await self.others.answer(node, decode_request(find_api(api), body)))

        await world.network.serve(Address(f"n{node}", 9000 + node), handler)

    async def _follow(self) -> None:
        """While the voter leads, the others fetch from it; most often not while they are not patient."""
        while True:
            await asyncio.sleep(self.random.uniform(0.005, 0.1))
            if self.others.leader == ME and self.random.random() < (0.9 if self.others.are_patient else 0.1):
                self.ask(self.fetch)()

    def ask(self, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """What begins ``work``, a request and the use of its response, in the voter's process, and ends with it."""

        async def run() -> None:
            try:
                await work()
            except STORAGE as error:
                # The request is answered with an error, and the process goes on unless a task of it fails.
                if not self.is_faulty:
                    self.failures.append(error)
            except Breach as breach:
                self.failures.append(breach)

        def begin() -> None:
            if self.life is not None:
                self.sim.spawn(NODE, run())

        return begin

    async def handle(self, request: Any) -> Any:
        """The response as it leaves the process."""
        assert self.life is not None
        response = await self.life.driver.handle(request)
        if isinstance(response, (m.VoteResponse, m.BeginQuorumEpochResponse, m.EndQuorumEpochResponse)):
            self.promises.speaks(response.leader_epoch)
            self.others.observe(response.leader_epoch)
        return response

    async def request_vote(self) -> None:
        """For either of them, in a new epoch or in the present one, for a log that may be shorter than theirs."""
        others, random = self.others, self.random
        candidate, pre_vote = random.choice(OTHERS), random.random() < 0.3
        epoch, end = others.epoch, others.end
        if random.random() < 0.2 and others.log:
            entry = random.choice(others.log)
            end = EpochEnd(entry.epoch, entry.end)
        if not pre_vote:
            last = others.votes.get((self.last_candidate, epoch))
            if last == self.last_candidate and random.random() < 0.5:
                candidate = last  # it repeats a request without a response
            self.last_candidate = candidate
            if epoch in others.leaders or end.epoch >= epoch or random.random() < 0.4:
                epoch += 1
            if others.votes.setdefault((candidate, epoch), candidate) != candidate:
                return
            others.observe(epoch)
        acknowledged = self.promises.acknowledged_end
        response = await self.handle(
            m.VoteRequest(
                cluster_id=CLUSTER_ID,
                voter_id=ME,
                candidate_id=candidate,
                candidate_epoch=epoch,
                last_epoch=end.epoch,
                last_epoch_end_offset=end.end_offset,
                pre_vote=pre_vote,
            )
        )
        if response.vote_granted and end < acknowledged:
            raise Breach(f"voted for a log that ends at {end}, but has acknowledged {acknowledged}")
        if response.vote_granted and not pre_vote:
            self.promises.vote(epoch, candidate)

    async def announce(self) -> None:
        """Their leader says that it was elected."""
        others = self.others
        if others.lead:
            await self.handle(
                m.BeginQuorumEpochRequest(
                    cluster_id=CLUSTER_ID, voter_id=ME, leader_id=others.leader, leader_epoch=others.epoch
                )
            )

    def resign(self) -> None:
        """Their leader ends, with a word or without."""
        others = self.others
        leader, epoch = others.leader, others.epoch
        if not others.lead:
            return
        others.leader = NO_NODE

        async def say() -> None:
            await self.handle(
                m.EndQuorumEpochRequest(
                    cluster_id=CLUSTER_ID,
                    voter_id=ME,
                    leader_id=leader,
                    leader_epoch=epoch,
                    preferred_successors=self.random.choice(((ME,), (), (5 - leader, ME))),
                )
            )

        if self.random.random() < 0.5:
            self.ask(say)()

    def lose_patience(self) -> None:
        self.others.are_patient = not self.others.are_patient

    async def fetch(self) -> None:
        """One of them fetches from the voter, which leads."""
        others = self.others
        end, epoch = others.end, others.epoch
        others.claimed_end = max(others.claimed_end, end.end_offset)
        asked = m.FetchPartition(
            topic=METADATA_TOPIC,
            partition=METADATA_PARTITION.partition,
            current_leader_epoch=epoch,
            fetch_offset=end.end_offset,
            last_fetched_epoch=end.epoch,
            high_watermark=others.high_watermark,
        )
        response = await self.handle(
            m.FetchRequest(
                cluster_id=CLUSTER_ID,
                replica_id=self.random.choice(OTHERS),
                max_wait_ms=self.random.choice((0, 50)),
                max_bytes=self.random.choice((1, 1 << 20)),
                partitions=(asked,),
            )
        )
        answer = response.partitions[0]
        if (others.leader, others.epoch, others.end) != (ME, epoch, end) or self.random.random() < 0.1:
            return
        if answer.error_code:
            others.observe(answer.current_leader.leader_epoch)
            others.leader = NO_NODE
        elif answer.snapshot_id is not None:
            raise Breach(f"offers a snapshot to a log with all that is committed: {answer.snapshot_id}")
        elif answer.diverging_epoch is not None:
            own = others.end_of(answer.diverging_epoch.epoch)
            others.cut(min(answer.diverging_epoch.end_offset, own.end_offset))
        else:
            others.copy([batch for buffer in answer.records for batch in split(buffer)])
            others.raise_high_watermark(min(answer.high_watermark, others.end.end_offset))

    # ---- the voter ----

    async def append(self) -> None:
        """As the leader; what is acknowledged is in the others' log."""
        life = self.life
        assert life is not None
        if not life.driver.is_leader:
            return
        payloads = []
        for _ in range(self.random.randint(1, 2)):
            self.own_values += 1
            payloads.append(f"v{self.own_values}".encode() + b"x" * self.random.randint(0, 60))
        try:
            end = await life.driver.append(payloads, epoch=life.driver.epoch)
        except NotController:
            return
        if self.is_alone:
            return
        if not any(entry.end == end and entry.payloads == tuple(payloads) for entry in self.others.log):
            raise Breach(f"acknowledged at {end} what no other voter has")

    def checkpoint(self) -> None:
        if self.life is not None:
            directory = self.life.directory
            self.ask(
                self.random.choice(
                    (
                        directory.checkpoint_recovery_points,
                        directory.checkpoint_recovery_points,
                        directory.checkpoint_start_offsets,
                        lambda: directory.checkpoint_high_watermarks({}),
                    )
                )
            )()

    async def wait(self) -> None:
        if await self._is_struck(self.random.uniform(0.2, 1.5)):
            await self._strike()

    # ---- faults ----

    def aim(self) -> None:
        """At the next event of a kind: what it announces is not durable yet."""
        self.aimed_at = self.random.choice(MOMENTS)

    def fail_a_sync(self) -> None:
        self.is_faulty = True
        self.disk.fail_next_sync(self.random.choice(("", f"{METADATA_PARTITION}", QUORUM_STATE_PATH)))

    def fill_disk(self) -> None:
        self.is_faulty = True
        self.disk.capacity_bytes = self.disk.used_bytes() + self.random.randint(0, 600)

    def free_disk(self) -> None:
        self.disk.capacity_bytes = None

    async def _look_at_failures(self) -> None:
        """A process whose disk has failed ends. What a failed sync has left in the page cache goes with the power."""
        for failure in self.failures:
            if isinstance(failure, Breach):
                raise failure
            if not (isinstance(failure, STORAGE) and self.is_faulty):
                raise Breach(f"{type(failure).__name__}: {failure}") from failure
        if self.failures or self.disk.failed_in is not None:
            await self._end(is_power=self.disk.failed_in is not None or self.random.random() < 0.5)
            await self.start()

    async def kill(self) -> None:
        await self._end(is_power=False)
        await self.start()

    async def power_cut(self) -> None:
        await self._end(is_power=True)
        await self.start()

    async def stop(self) -> None:
        """A clean stop, maybe interrupted; the power may go after it."""
        life = self.life
        assert life is not None
        stopping = self.sim.spawn(NODE, self._stop(life))
        await asyncio.wait({stopping}, timeout=self.random.choice((0.01, 0.1, 30.0)))
        was_stopped = stopping.done() and stopping.result()
        await self._end(is_power=self.random.random() < 0.5, was_stopped=was_stopped)
        await self.start()

    async def _stop(self, life: Life) -> bool:
        """As a broker does it; False: without the marker."""
        await life.driver.stop()
        await life.tasks.end()
        self._note(life.log)
        return await life.directory.close(broker_epoch=7, high_watermarks={}, together=asyncio.gather)

    async def replace_disk(self) -> None:
        """A new disk, without any memory. No promise of the old one counts, and the others have all that is committed."""
        if self.others.log:
            await self._end(is_power=True)
            self.disk.wipe()
            self.held, self.synced = [], []
            self.promises.acknowledged.clear()
            self.promises.votes.clear()
            self.promises.epoch = 0
            await self.start()

    async def _end(self, *, is_power: bool, was_stopped: bool = False) -> None:
        """The process ends. Its page cache stays, unless the power goes, too."""
        is_power = is_power or self.disk.failed_in is not None
        if self.life is not None:
            log = self.life.log
            if not log.is_closed:
                self._note(log)
            self.synced = [
                each for each in self.held if was_stopped or (not log.is_closed and each.end <= log.synced_end)
            ]
            self.is_power = False
        self.is_power |= is_power
        self.life = None
        if is_power:
            self.sim.power_cut(NODE)
            self.disk.failed_in = None
        else:
            self.sim.kill(NODE)
        self.disk.forgive()
        await asyncio.sleep(DRAIN_S)

    def _note(self, log: PartitionLog) -> None:
        self.held = entries_of(everything(on_disk(log)))
        if self.is_alone:  # an epoch that nobody else has heard of, and that is not saved, may begin again
            self.promises.ever.update(self.held)
        else:
            self.promises.write(self.held)

    # ---- the next start ----

    async def start(self) -> None:
        """Start, maybe more than once: a start may be interrupted, or meet a disk that fails."""
        while self.life is None:
            self.failures.clear()
            self.is_faulty = self.disk.capacity_bytes is not None
            world = self.sim.of(NODE)
            disk = LateFolders(self.disk, self.sim.loop.incarnations[NODE], self.random)
            opening = self.sim.spawn(NODE, self._open(with_changes(world, disk=disk)))
            is_interrupted = self.random.random() < 0.25
            await asyncio.wait(
                {opening}, timeout=self.random.uniform(0, 20 * self.disk.sync_mean_s) if is_interrupted else START_S_MAX
            )
            try:
                if opening.done():
                    self.life = opening.result()
                elif not is_interrupted:
                    raise Breach("a start that does not end")
                else:
                    await self._end(is_power=self.random.random() < 0.5)
            except STORAGE as error:
                if not self.is_faulty:
                    raise Breach(f"start failed: {type(error).__name__}: {error}") from error
                self.free_disk()
                await self._end(is_power=self.random.random() < 0.5)

    async def _open(self, world: World) -> Life:
        """As the broker does it."""
        config = with_changes(METADATA_LOG_CONFIG, segment_bytes=self.segment_bytes)
        directory = await LogDirectory.open(
            world.disk,
            node_id=ME,
            cluster_id=CLUSTER_ID,
            directory_id="d",
            config_of=lambda _: config,
            events=world.events,
            tail_budget_bytes=0,
        )
        log = directory.get(METADATA_PARTITION) or directory.create(
            METADATA_PARTITION, topic_id=METADATA_TOPIC_ID, config=config
        )
        tasks = Tasks(lambda _, error: self.failures.append(error))
        listener = Replay(self.promises, [])
        driver = QuorumDriver(
            BrokerConfig(node_id=ME, **self.settings),
            world,
            cluster_id=CLUSTER_ID,
            voters={node: Address(f"n{node}", 9000 + node) for node in ((ME,) if self.is_alone else (ME, *OTHERS))},
            log=log,
            spawn=tasks.spawn,
            listener=listener,
        )
        await driver.start()
        life = Life(directory=directory, log=log, driver=driver, tasks=tasks, listener=listener)
        self._compare(life)
        return life

    def _compare(self, life: Life) -> None:
        """What must be there after a start."""
        promises, core, log = self.promises, life.driver.core, life.log
        if core.epoch < promises.epoch:
            raise Breach(f"epoch {core.epoch}, but has named {promises.epoch}")
        voted = promises.votes.get(core.epoch, core.role.voted_id)
        if core.role.voted_id != voted:
            raise Breach(f"has forgotten its vote for {voted} in epoch {core.epoch}")
        snapshot = core.newest_snapshot
        if not log.start_offset <= snapshot.end_offset <= log.end_offset:
            raise Breach(f"a hole between {snapshot} and {log!r}")
        found = [entry for entry in entries_of(everything(on_disk(log))) if entry.end > log.start_offset]
        for entry in found:
            if entry not in promises.ever:
                raise Breach(f"nobody wrote {entry}")
            if log.epochs.epoch_at(entry.base) != entry.epoch:
                raise Breach(f"epochs {log.epochs.entries} of a log with {entry}")
        promised = [("acknowledged", each) for each in promises.acknowledged]
        if found or log.start_offset < snapshot.end_offset:
            # Else the log was begun again behind a snapshot, and what its tail had was of no leader any more.
            promised += [("synced", each) for each in self.synced]
            if life.directory.was_clean or not self.is_power:
                promised += [("there", each) for each in self.held]
        for what, entry in promised:
            if entry.end > snapshot.end_offset and entry not in found:
                raise Breach(f"lost what was {what}: {entry}, of {log!r} behind {snapshot}; {log.report}")
        if self.is_alone:
            committed = promises.state_at(log.end_offset)
            if committed != promises.state_at(END):
                raise Breach(f"{log!r} lacks what was committed: {promises.state_at(END)[len(committed) :]}")

    async def _catch_up(self) -> None:
        """With a sound disk and a leader, the voter gets all that is committed."""
        self.disk.capacity_bytes = None
        self.others.are_patient = True
        await self._end(is_power=True)
        await self.start()
        for _ in range(CATCH_UP_TURNS):
            if not self.is_alone:
                if not self.others.lead:
                    self.others.elect()
                self.others.commit()
                self.ask(self.announce)()
            await asyncio.sleep(0.1)
            await self._look_at_failures()
            life = self.life
            if life is not None and self._has_caught_up(life):
                if life.listener.state != self.promises.state_at(END):
                    raise Breach("the state is not the replay of the committed log")
                return
        raise Breach(f"does not catch up: {self.life and self.life.driver}, the others end at {self.others.end}")

    def _has_caught_up(self, life: Life) -> bool:
        applied = life.driver.applied_offset
        if self.is_alone:
            return life.driver.is_leader and applied == life.log.end_offset
        return self.others.lead and applied == self.others.high_watermark == self.others.end.end_offset
