"""The broker's small drivers, each alone, in virtual time: purgatory, group commit, owned tasks, dispatch."""

from __future__ import annotations

import ast
import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from minikafka.broker import broker as broker_module
from minikafka.broker.append_throttle import AppendThrottle, Arrivals
from minikafka.broker.dispatch import Dispatcher, settled
from minikafka.broker.flusher import Flusher
from minikafka.broker.parts import Parts
from minikafka.broker.purgatory import SWEEP_SIZE_MIN, Condition, Mark, Purgatory
from minikafka.broker.quorum_applied import SnapshotFiles
from minikafka.broker.quorum_follower import MetadataFollower
from minikafka.errors import DiskFailed, DiskFull, KafkaStorageError, NotController
from minikafka.invariant import InvariantViolation
from minikafka.ports import CAUSE, File, no_events
from minikafka.quorum.files import FOLDER, snapshot_path
from minikafka.sim.world import SimWorld
from minikafka.tasks import Tasks, shielded, until_ended
from minikafka.types import EpochEnd, TopicPartition
from minikafka.wire.apis import BY_REQUEST
from minikafka.wire.codec import decode_response, encode_request
from minikafka.wire.group_messages import FindCoordinatorRequest, HeartbeatRequest
from minikafka.wire.messages import ApiVersionsRequest, MetadataRequest, MetadataResponse

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 0)


def run(body):
    """Run an async body in virtual time, in a world of its own."""
    with SimWorld(1) as sim:
        sim.of("n1")
        return sim.run(body(sim))


class Marks:
    """One partition's marks, as a waiter looks at them."""

    def __init__(self) -> None:
        self.end = 0
        self.looked = 0

    def reached(self, offset: int):
        def met() -> bool:
            self.looked += 1
            return self.end >= offset

        return met


def test_a_waiter_whose_condition_holds_does_not_wait():
    """Check, watch, check: the first check saves the whole round (KAFKA-FACTS 3.8)."""

    async def body(sim):
        purgatory, marks = Purgatory(), Marks()
        marks.end = 5
        assert await purgatory.until([Condition(Mark.LOG_END, ORDERS, 5)], marks.reached(5), sim.loop.now + 1)
        assert sim.loop.now == 0.0
        assert purgatory.parked == 0

    run(body)


def test_a_wake_up_releases_those_who_wait_for_that_much_and_no_others():
    """A produce of one record must not re-read a thousand parked requests that wait for more."""

    async def body(sim):
        purgatory, marks = Purgatory(), Marks()
        near = asyncio.ensure_future(
            purgatory.until([Condition(Mark.HIGH_WATERMARK, ORDERS, 1)], marks.reached(1), sim.loop.now + 9)
        )
        far_marks = Marks()
        far = asyncio.ensure_future(
            purgatory.until([Condition(Mark.HIGH_WATERMARK, ORDERS, 8)], far_marks.reached(8), sim.loop.now + 9)
        )
        await asyncio.sleep(0.1)
        assert purgatory.parked == 2
        marks.end = far_marks.end = 1
        purgatory.wake(Mark.LOG_END, ORDERS, 1)
        purgatory.wake(Mark.HIGH_WATERMARK, PAYMENTS, 1)
        await asyncio.sleep(0.1)
        assert not near.done(), "another mark, another partition"
        purgatory.wake(Mark.HIGH_WATERMARK, ORDERS, 1)
        assert await near is True
        assert far_marks.looked == 1
        assert await far is False
        assert sim.loop.now == pytest.approx(9.0)
        assert purgatory.parked == 0

    run(body)


def test_a_wake_up_touches_those_whom_it_reaches_and_nobody_else():
    """DESIGN, Risks: produce waiters in a heap by offset; a wake-up does not cost more because more wait for later."""

    async def body(sim):
        purgatory, marks = Purgatory(), Marks()
        parked = [
            asyncio.ensure_future(
                purgatory.until([Condition(Mark.HIGH_WATERMARK, ORDERS, end)], marks.reached(end), sim.loop.now + 9)
            )
            for end in sorted(range(1, 1001), key=lambda end: end * 7919 % 1009)
        ]
        await asyncio.sleep(0.1)
        marks.end, marks.looked = 10, 0
        reached = CountingOffset(10)
        purgatory.wake(Mark.HIGH_WATERMARK, ORDERS, reached)
        await asyncio.sleep(0.1)
        assert reached.compared == 11, "the ten that are reached and the first that is not"
        assert marks.looked == 10
        assert purgatory.parked == 990
        marks.end = 1000
        purgatory.wake(Mark.HIGH_WATERMARK, ORDERS, 1000)
        assert all(await asyncio.gather(*parked))

    run(body)


class CountingOffset(int):
    """An offset that counts how often a waiter's is held against it."""

    compared = 0

    def __ge__(self, other):
        self.compared += 1
        return int(self) >= other


def test_time_outs_on_an_idle_partition_leave_nothing_behind_that_grows():
    """Entries of those who are gone are dropped lazily, but dropped: a follower's long poll times out twice a second."""

    async def body(sim):
        purgatory, marks = Purgatory(), Marks()
        for _ in range(500):
            both = [Condition(Mark.LOG_END, ORDERS, 1), Condition(Mark.LOG_END, PAYMENTS, 1)]
            assert not await purgatory.until(both, marks.reached(1), sim.loop.now + 0.5)
        held = sum(len(heap.entries) for heaps in purgatory._heaps.values() for heap in heaps.values())
        assert held <= 2 * SWEEP_SIZE_MIN
        assert purgatory.parked == 0
        assert not purgatory.is_watched(Mark.LOG_END, ORDERS)
        assert not purgatory.is_watched(Mark.LOG_END)
        purgatory.wake(Mark.LOG_END, ORDERS, 1)
        purgatory.wake_all(PAYMENTS)
        assert not any(purgatory._heaps.values())

    run(body)


def test_a_wake_up_reaches_those_who_stay_when_the_entries_of_others_are_swept_out():
    """The nearest offset comes first again: else a wake-up would end at one that waits for more."""

    async def body(sim):
        purgatory, marks = Purgatory(), Marks()

        def wait_for(end: int):
            return purgatory.park([Condition(Mark.LOG_END, ORDERS, end)], marks.reached(end), sim.loop.now + 9)

        first, far, near, *_ = [wait_for(end) for end in (1, 10, 2, *range(11, 8 + SWEEP_SIZE_MIN))]
        first.cancel()
        wait_for(20)
        marks.end = 2
        purgatory.wake(Mark.LOG_END, ORDERS, 2)
        assert await near is True
        assert sim.loop.now == 0.0
        assert far.is_parked

    run(body)


def test_a_waiter_learns_which_partitions_woke_it_and_still_waits_for_all():
    """A long poll over a thousand partitions must look at the one that has news, not at all."""

    async def body(sim):
        purgatory, marks, news = Purgatory(), Marks(), []
        conditions = [Condition(Mark.LOG_END, ORDERS, 1), Condition(Mark.LOG_END, PAYMENTS, 1)]
        waiting = asyncio.ensure_future(purgatory.park(conditions, marks.reached(3), sim.loop.now + 9, news=news))
        await asyncio.sleep(0.1)
        purgatory.wake(Mark.LOG_END, PAYMENTS, 1)
        purgatory.wake(Mark.LOG_END, PAYMENTS, 1)
        await asyncio.sleep(0.1)
        assert news == [PAYMENTS]
        purgatory.wake(Mark.LOG_END, PAYMENTS, 2)
        purgatory.wake(Mark.LOG_END, ORDERS, 1)
        await asyncio.sleep(0.1)
        assert news == [PAYMENTS, PAYMENTS, ORDERS]
        marks.end = 3
        purgatory.wake_all(ORDERS)
        assert await waiting is True

    run(body)


def test_a_flood_of_appends_gives_the_loop_its_turns():
    """DESIGN, Risks: bytes written per loop turn are bounded, so that heartbeats go out between two batches."""

    async def body(sim):
        append_throttle, turn, written = AppendThrottle(bytes_max=100), 0, {}

        async def tick() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        async def append(count: int) -> None:
            for _ in range(count):
                await append_throttle.admit(30)
                written[turn] = written.get(turn, 0) + 30

        ticking = asyncio.ensure_future(tick())
        await asyncio.gather(*(append(10) for _ in range(5)))
        ticking.cancel()
        assert sum(written.values()) == 1500
        assert max(written.values()) <= 100 + 30
        assert sim.loop.now == 0.0
        await append_throttle.admit(10_000)

    run(body)


def test_a_request_waits_for_the_last_one_of_each_of_its_partitions():
    """One that is done does not let those pass that arrived behind a later one."""
    arrivals = Arrivals()
    first, second = arrivals.enter([ORDERS]), arrivals.enter([ORDERS])
    other = arrivals.enter([PAYMENTS])
    both = arrivals.enter([ORDERS, PAYMENTS])
    assert both.earlier == [second.appended, other.appended]
    arrivals.leave(first)
    arrivals.leave(second)
    assert not arrivals.is_free([ORDERS])
    arrivals.leave(other)
    arrivals.leave(both)
    assert arrivals.is_free([ORDERS, PAYMENTS])


def test_a_waiter_looks_again_after_a_wake_up_that_was_too_early():
    """A wake-up too many costs time, never a wrong answer."""

    async def body(sim):
        purgatory, marks = Purgatory(), Marks()
        waiting = asyncio.ensure_future(
            purgatory.until([Condition(Mark.LOG_END, ORDERS, 1)], marks.reached(3), sim.loop.now + 9)
        )
        await asyncio.sleep(0.1)
        purgatory.wake(Mark.LOG_END, ORDERS, 2)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        marks.end = 3
        purgatory.wake(Mark.LOG_END, ORDERS, 3)
        assert await waiting is True

    run(body)


def test_what_the_condition_raises_ends_the_wait_and_a_role_change_asks_it():
    """Nothing may wait for an epoch that is gone (DESIGN, metadata change 4)."""

    async def body(sim):
        purgatory, gone = Purgatory(), []

        def met() -> bool:
            if gone:
                raise NotController("the role changed", outcome="unknown")
            return False

        waiting = asyncio.ensure_future(
            purgatory.until([Condition(Mark.HIGH_WATERMARK, ORDERS, 1)], met, sim.loop.now + 9)
        )
        await asyncio.sleep(0.1)
        gone.append(True)
        purgatory.wake_all(ORDERS)
        with pytest.raises(NotController):
            await waiting
        assert sim.loop.now < 1

    run(body)


def test_a_stopping_broker_releases_everyone():
    """One parked fetch must not cost the whole shutdown time-out."""

    async def body(sim):
        purgatory, marks = Purgatory(), Marks()
        waiting = asyncio.ensure_future(
            purgatory.until([Condition(Mark.LOG_END, ORDERS, 1)], marks.reached(1), sim.loop.now + 300)
        )
        await asyncio.sleep(0.1)
        purgatory.close()
        assert await waiting is False
        assert not await purgatory.until([Condition(Mark.LOG_END, ORDERS, 1)], marks.reached(1), sim.loop.now + 300)
        assert sim.loop.now < 1

    run(body)


class SlowLog:
    """A log whose sync takes a second and covers what stood there when it began."""

    def __init__(self) -> None:
        self.synced_end = 0
        self.end_offset = 0
        self.syncs = 0
        self.is_closed = False
        self.failure: Exception | None = None

    async def sync(self) -> None:
        covered = self.end_offset
        self.syncs += 1
        await asyncio.sleep(1)
        if self.is_closed:
            return
        if self.failure:
            raise self.failure
        self.synced_end = covered


def test_group_commit_rides_the_next_sync():
    """D6: one sync in flight per log; whoever comes during it shares the next one."""

    async def body(sim):
        log, tasks = SlowLog(), Tasks(lambda name, error: pytest.fail(f"{name}: {error}"))
        flusher = Flusher(ORDERS, log, tasks.spawn, lambda *_: None)
        log.end_offset = 1
        first = asyncio.ensure_future(flusher.durable(1))
        await asyncio.sleep(0.5)
        log.end_offset = 50
        others = [asyncio.ensure_future(flusher.durable(end)) for end in range(2, 51)]
        await asyncio.gather(first, *others)
        assert log.syncs == 2
        assert sim.loop.now == pytest.approx(2.0)

    run(body)


def test_what_is_appended_during_a_sync_is_synced_without_another_request():
    """A marker and a commit wait for the high watermark, not for the sync: nobody else would ask for the next one."""

    async def body(sim):
        log, tasks, synced = SlowLog(), Tasks(lambda name, error: pytest.fail(f"{name}: {error}")), []
        flusher = Flusher(ORDERS, log, tasks.spawn, lambda _: None, lambda: synced.append(log.synced_end))
        log.end_offset = 1
        flusher.start()
        await asyncio.sleep(0.5)
        log.end_offset = 2
        flusher.start()
        log.end_offset = 3  # with acks=1: nobody asks for this one
        await asyncio.sleep(5)
        assert (synced, log.syncs) == ([1, 3], 2)
        log.end_offset, log.is_closed = 4, True
        flusher.start()
        await asyncio.sleep(5)
        assert log.syncs == 3

    run(body)


def test_a_cancelled_request_leaves_the_sync_running():
    """The sync belongs to the broker: others ride on it."""

    async def body(sim):
        log, tasks = SlowLog(), Tasks(lambda name, error: pytest.fail(f"{name}: {error}"))
        flusher = Flusher(ORDERS, log, tasks.spawn, lambda *_: None)
        log.end_offset = 1
        first = asyncio.ensure_future(flusher.durable(1))
        second = asyncio.ensure_future(flusher.durable(1))
        await asyncio.sleep(0.5)
        first.cancel()
        await second
        assert log.syncs == 1

    run(body)


def test_a_failed_sync_is_told_and_nobody_is_acknowledged():
    """After a failed fsync the page cache may have dropped data: outcome unknown, never success."""

    async def body(sim):
        failed = []
        log, tasks = SlowLog(), Tasks(lambda name, error: pytest.fail(f"{name}: {error}"))
        flusher = Flusher(ORDERS, log, tasks.spawn, failed.append)
        log.end_offset, log.failure = 1, DiskFailed("EIO")
        with pytest.raises(KafkaStorageError) as raised:
            await flusher.durable(1)
        assert raised.value.outcome == "unknown"
        assert failed == ["EIO"]
        with pytest.raises(KafkaStorageError):
            await flusher.durable(1)

    run(body)


def test_a_task_that_fails_is_told_and_a_cancelled_one_is_not():
    """A fetcher that dies silently looks like three time-outs."""

    async def body(sim):
        told = []
        tasks = Tasks(lambda name, error: told.append((name, str(error))))

        async def fails() -> None:
            raise ValueError("a bug")

        tasks.spawn(fails(), "bad")
        tasks.spawn(asyncio.sleep(100), "idle")
        await asyncio.sleep(0.1)
        await tasks.end()
        assert told == [("bad", "a bug")]
        assert sim.loop.now < 1

    run(body)


def test_tasks_that_have_ended_cost_no_callback():
    """gather() needs fewer for them since Python 3.12: a seed would name another run there."""

    async def body(sim):
        async def fails():
            raise ValueError("once")

        async def steps_until_ended(*tasks):
            before = sim.loop.steps
            await until_ended(tasks)
            assert all(task.done() for task in tasks)
            return sim.loop.steps - before

        ended = [asyncio.ensure_future(each) for each in (asyncio.sleep(0), fails(), asyncio.sleep(9))]
        ended[2].cancel()
        await asyncio.sleep(1)
        assert await steps_until_ended(*ended) == 0
        alone = await steps_until_ended(asyncio.ensure_future(asyncio.sleep(1)))
        assert await steps_until_ended(*ended, asyncio.ensure_future(asyncio.sleep(1))) == alone

    run(body)


def test_a_shielded_future_costs_the_same_callbacks_under_each_python():
    """asyncio.shield() needs one more since Python 3.14: a seed would name another run there."""

    async def body(sim):
        async def steps_of(waiting):
            before = sim.loop.steps
            assert await waiting == "done"
            return sim.loop.steps - before

        alone = await steps_of(asyncio.ensure_future(asyncio.sleep(1, "done")))
        inner = asyncio.ensure_future(asyncio.sleep(1, "done"))
        assert await steps_of(shielded(inner)) == alone + 2
        assert await steps_of(shielded(inner)) == 0

    run(body)


def test_a_shielded_future_goes_on_when_its_waiter_is_cancelled():
    """A failure or a cancellation of its own reaches the waiter."""

    async def body(sim):
        async def fails():
            await asyncio.sleep(1)
            raise ValueError("once")

        inner = asyncio.ensure_future(asyncio.sleep(2, "done"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await shielded(inner)
        assert await shielded(inner) == "done"
        assert sim.loop.now == pytest.approx(2)
        with pytest.raises(ValueError, match="once"):
            await shielded(asyncio.ensure_future(fails()))
        cancelled = asyncio.ensure_future(asyncio.sleep(9))
        sim.loop.call_later(1, cancelled.cancel)
        with pytest.raises(asyncio.CancelledError):
            await shielded(cancelled)

    run(body)


def dispatch(handlers, api, body, *, is_open=True):
    """Send one body through a dispatcher; the decoded answer and what it told about bugs."""
    bugs = []
    dispatcher = Dispatcher(
        handlers,
        events=no_events,
        on_bug=lambda name, error: bugs.append((name, str(error))),
        is_open=is_open,
        ticks_ns=lambda: 0,
    )

    async def send(_sim):
        return b"".join(bytes(each) for each in await settled(dispatcher.dispatch(api, body)))

    return decode_response(api if api == "Metadata" else "ApiVersions", run(send)), bugs


METADATA_BODY = b"".join(bytes(each) for each in encode_request(MetadataRequest()))


def test_a_handler_gets_a_typed_request_and_a_cause():
    """D9: every event that a request brings about can name it."""
    seen = []

    async def handler(request, context):
        seen.append((request, CAUSE.get()))
        return MetadataResponse(cluster_id="c")

    answer, bugs = dispatch({"Metadata": handler}, "Metadata", METADATA_BODY)
    assert answer.cluster_id == "c"
    assert seen == [(MetadataRequest(), "Metadata#1")]
    assert not bugs


def test_expected_errors_are_answers_and_bugs_are_told():
    """A handler that raises anything but ProtocolError has a bug: the caller learns *unknown*, the broker stops."""

    async def refuses(_request, context):
        raise NotController("ask 2")

    async def breaks(_request, context):
        raise ZeroDivisionError("oops")

    answer, bugs = dispatch({"Metadata": refuses}, "Metadata", METADATA_BODY)
    assert (answer.error_code, answer.error_message, answer.outcome, bugs) == (41, "ask 2", "not_written", [])
    heartbeat = b"".join(map(bytes, encode_request(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))))
    answer, bugs = dispatch({"Heartbeat": breaks}, "Heartbeat", heartbeat)
    assert (answer.error_code, answer.outcome) == (-1, "unknown")
    assert bugs == [("handler of Heartbeat", "oops")]


def api_name(request: object) -> str:
    """As the table of APIs names it."""
    return BY_REQUEST[type(request)].name


@pytest.mark.parametrize(
    "error, stops", [(ZeroDivisionError("oops"), False), (InvariantViolation("oops"), True), (DiskFailed("oops"), True)]
)
@pytest.mark.parametrize(
    "request_sent",
    [ApiVersionsRequest(), MetadataRequest(topics=()), FindCoordinatorRequest(keys=("g",))],
    ids=api_name,
)
def test_a_bug_of_a_handler_that_reads_stops_no_broker(request_sent: Any, error: Exception, *, stops: bool):
    """It has changed nothing, and clients repeat what fails: the next broker would stop as well. A broken invariant or
    disk is another matter.
    """
    name = api_name(request_sent)

    def breaks(_request, context):
        raise error

    bugs, events = [], []
    dispatcher = Dispatcher(
        {name: breaks},
        events=lambda kind, **facts: events.append((kind, facts)),
        on_bug=lambda where, error: bugs.append((where, str(error))),
        is_open=True,
        ticks_ns=lambda: 0,
    )

    async def send(_sim):
        body = b"".join(map(bytes, encode_request(request_sent)))
        return b"".join(map(bytes, await settled(dispatcher.dispatch(name, body))))

    assert decode_response(name, run(send)).error_code == -1
    assert bugs == ([(f"handler of {name}", "oops")] if stops else [])
    failed = [facts for kind, facts in events if kind == "request_failed"]
    assert [(each["api"], each["why"]) for each in failed] == ([] if stops else [(name, "ZeroDivisionError: oops")])


def test_malformed_bodies_and_closed_brokers_are_answered():
    """Bad input and bad moments get a typed error, never a hang."""
    assert dispatch({}, "Metadata", b"\x00")[0].error_code == 42
    assert dispatch({}, "NoSuchApi", b"")[0].error_code == 42
    assert dispatch({}, "Metadata", METADATA_BODY, is_open=False)[0].error_code == 8


def noted_files(files: SnapshotFiles) -> list[File]:
    """Every file that it begins from now on."""
    begun: list[File] = []
    begin = files.begin

    def noted(snapshot: EpochEnd) -> File:
        begun.append(begin(snapshot))
        return begun[-1]

    files.begin = noted  # type: ignore[method-assign]
    return begun


@pytest.mark.parametrize("why", ["stopped", "full", "sync fails"])
def test_an_own_snapshot_that_is_not_written_to_its_end_leaves_no_file_open(why: str):
    """The member is stopped in the midst of it, or its disk is full, or fails."""

    async def body(sim: SimWorld) -> None:
        files = SnapshotFiles(sim.of("n2"))
        begun = noted_files(files)
        disk = sim.disk("n2")
        if why == "full":
            disk.capacity_bytes = 10
        elif why == "sync fails":
            disk.fail_next_sync()
        writing = asyncio.ensure_future(files.write(EpochEnd(1, 10), [b"x" * 100] * 3, timestamp_ms=0))
        await asyncio.sleep(0)
        if why == "stopped":
            writing.cancel()
        with pytest.raises((asyncio.CancelledError, DiskFailed, DiskFull)):
            await writing
        with pytest.raises(DiskFailed, match="closed"):
            begun[0].append([b"x"])

    run(body)


@pytest.mark.parametrize("error", [asyncio.CancelledError, DiskFull])
def test_a_snapshot_that_is_not_fetched_to_its_end_leaves_no_file_open(error: type[BaseException]):
    """The member is stopped, or its disk is full, between two parts."""

    async def body(sim: SimWorld) -> None:
        world = sim.of("n2")
        files = SnapshotFiles(world)
        begun = noted_files(files)
        config = SimpleNamespace(node_id=1, controller_quorum_request_timeout_ms=2000)
        member = SimpleNamespace(world=world, log=None, snapshots=files, core=None, cluster_id="c", config=config)
        follower = MetadataFollower(member)  # type: ignore[arg-type] - what it needs of one

        async def stopped(*_: object) -> None:
            raise error

        follower._call_leader = stopped  # type: ignore[method-assign,assignment]
        with pytest.raises(error):
            await follower._fetch_snapshot(SimpleNamespace(epoch=1, peer=2), EpochEnd(1, 10))  # type: ignore[arg-type]
        with pytest.raises(DiskFailed, match="closed"):
            begun[0].append([b"x"])

    run(body)


def test_snapshots_that_a_crash_left_behind_are_removed_at_the_next_start():
    """The process ended after it had written the third one, and before it removed the first."""

    async def body(sim: SimWorld) -> None:
        files = SnapshotFiles(sim.of("n2"))
        for end in (10, 20, 30):
            await files.write(EpochEnd(1, end), [b"%d" % end], timestamp_ms=0)
        files = SnapshotFiles(sim.of("n2"))
        assert files.load() == [b"30"]
        assert files.kept == (EpochEnd(1, 20), EpochEnd(1, 30))
        assert sorted(sim.of("n2").disk.names(FOLDER)) == [
            name.removeprefix(f"{FOLDER}/") for name in map(snapshot_path, files.kept)
        ]

    run(body)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_snapshot_that_is_given_up_leaves_no_file(is_damaged: bool):
    """The leader has replaced it, or what came is damaged: the next fetch names another one, under another name."""

    async def body(sim: SimWorld) -> None:
        world = sim.of("n2")
        files = SnapshotFiles(world)
        config = SimpleNamespace(node_id=1, controller_quorum_request_timeout_ms=2000)
        core = SimpleNamespace(retry_backoff_s=0.02)
        member = SimpleNamespace(world=world, log=None, snapshots=files, core=core, cluster_id="c", config=config)
        follower = MetadataFollower(member)  # type: ignore[arg-type] - what it needs of one

        async def fetched(_ask: object, _snapshot: EpochEnd, file: File) -> bool:
            file.append([b"half of it"])
            return is_damaged

        async def paused(_wait: object) -> None:
            """No pause."""

        follower._fetch_parts = fetched  # type: ignore[method-assign]
        follower._pause = paused  # type: ignore[method-assign]
        await follower._fetch_snapshot(SimpleNamespace(epoch=1, peer=2), EpochEnd(1, 10))  # type: ignore[arg-type]
        assert world.disk.names(FOLDER) == []

    run(body)


def reaching_lambdas(source: str) -> list[str]:
    """Lambdas that reach an attribute of an attribute of ``self``: another part, by a way that no tool follows."""
    return [
        ast.unparse(each)
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.Lambda)
        and any(
            isinstance(one, ast.Attribute)
            and isinstance(one.value, ast.Attribute)
            and isinstance(one.value.value, ast.Name)
            and one.value.value.id == "self"
            and not one.value.attr.startswith("_")
            for one in ast.walk(each.body)
        )
    ]


def test_parts_reach_each_other_by_name_and_not_through_lambdas_of_the_broker() -> None:
    """An editor leads from a constructor's argument to the method of Parts, and from there to the part."""
    assert reaching_lambdas("Lifecycle(epoch=lambda: self.lifecycle.broker_epoch)") == [
        "lambda: self.lifecycle.broker_epoch"
    ]
    assert reaching_lambdas(inspect.getsource(broker_module)) == []


def test_a_part_that_is_not_made_yet_cannot_be_asked() -> None:
    """A default answer would hide that parts are made in the wrong order."""
    with pytest.raises(AttributeError, match="lifecycle"):
        Parts().has_registered()


@pytest.mark.parametrize(("epoch", "has_registered"), [(-1, False), (0, True), (7, True)])
def test_a_broker_has_registered_once_it_has_an_epoch(epoch: int, has_registered: bool) -> None:
    """The epoch is the offset of the registration record, so that 0 is one."""
    parts = Parts()
    parts.lifecycle = SimpleNamespace(broker_epoch=epoch)  # type: ignore[assignment]
    assert (parts.broker_epoch(), parts.has_registered()) == (epoch, has_registered)
