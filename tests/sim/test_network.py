"""The simulated network: what a caller learns under each fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from minikafka.errors import OutcomeUnknown, Unreachable
from minikafka.invariant import InvariantViolation
from minikafka.parked import Parked
from minikafka.ports import RequestContext, World
from minikafka.sim.loop import SimulationFailed
from minikafka.sim.verdicts import Deliver, Drop, Hold, LinkProfile, Message, Reset, Verdict, matching
from minikafka.sim.world import SimWorld
from minikafka.types import Address

SERVER = Address("n1", 9092)


class Story:
    """A server n1 that counts what it handled, and a client n2."""

    def __init__(self, sim: SimWorld) -> None:
        self.sim = sim
        self.handled: list[str] = []
        self.answered: list[str] = []
        self.client = sim.of("n2")

    async def handle(self, api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        self.handled.append(api)
        await asyncio.sleep(float(body or b"0"))
        self.answered.append(api)
        return [api.encode(), b" ", body]

    async def boot(self) -> World:
        world = self.sim.of("n1")
        await self.sim.spawn("n1", world.network.serve(SERVER, self.handle))
        return world

    async def call(self, api: str = "Ask", body: bytes = b"", *, within_s: float = 5.0) -> bytes:
        now = self.sim.loop.time()
        return await self.client.network.call(SERVER, api, [body], deadline=now + within_s)


def run(story, seed: int = 1):
    with SimWorld(seed) as sim:
        return sim.run(story(Story(sim)))


def test_a_one_way_cut_of_answers_is_unknown_and_the_request_happened():
    """The asymmetric partition: the server acts, the client never hears."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.network.cut("n1", "n2")
        with pytest.raises(OutcomeUnknown):
            await s.call()
        assert s.answered == ["Ask"]
        s.sim.network.heal("n1", "n2")
        assert await s.call() == b"Ask "

    run(story)


def test_a_one_way_cut_of_requests_is_unknown_at_the_deadline_and_did_not_happen():
    """A caller cannot tell this from a lost answer."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.network.cut("n2", "n1")
        start = s.sim.loop.time()
        with pytest.raises(OutcomeUnknown):
            await s.call(within_s=3)
        assert s.sim.loop.time() == pytest.approx(start + 3)
        assert s.handled == []

    run(story)


def test_isolation_cuts_all_but_the_named_and_bridges_stay():
    """isolate, split and heal by node."""

    async def story(s: Story) -> None:
        network = s.sim.network
        network.isolate("n1", still_talks_to=("n3",))
        assert network.is_cut("n1", "n2")
        assert network.is_cut("n2", "n1")
        assert not network.is_cut("n1", "n3")
        assert not network.is_cut("n3", "n1")
        assert not network.is_cut("n1", "n1")
        network.heal("n1")
        assert not network.is_cut("n1", "n2")
        network.split(["n1"], ["n2"])
        assert network.is_cut("n2", "n1")
        assert not network.is_cut("n1", "bridge")
        network.heal()
        assert not network.is_cut("n2", "n1")

    run(story)


def test_a_reset_before_delivery_is_unreachable_and_after_it_unknown():
    """Reset: the outcome depends on which message it hit."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.network.rule(matching(Reset(), kind="request", count=1))
        with pytest.raises(Unreachable):
            await s.call("First")
        s.sim.network.rule(matching(Reset(), kind="answer", count=1))
        with pytest.raises(OutcomeUnknown):
            await s.call("Second")
        assert s.answered == ["Second"]
        assert s.sim.loop.time() < 1, "both are known at once"

    run(story)


def test_a_rule_can_pick_one_api_one_way():
    """Directed schedules: lose only Fetch answers of one link."""

    async def story(s: Story) -> None:
        await s.boot()
        seen: list[tuple[str, str, Verdict]] = []
        s.sim.network.observers.append(lambda m, v: seen.append((m.kind, m.api, v)))
        take_away = s.sim.network.rule(matching(Drop(), api="Fetch", kind="answer", source="n1", target="n2"))
        assert await s.call("Produce") == b"Produce "
        with pytest.raises(OutcomeUnknown):
            await s.call("Fetch")
        take_away()
        assert await s.call("Fetch") == b"Fetch "
        assert ("answer", "Fetch", Drop()) in seen
        assert ("request", "Produce", Deliver()) in seen

    run(story)


def test_a_rule_can_delay_and_hold():
    """Deliver(after) and Hold are verdicts too."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.network.rule(matching(Deliver(2.0), api="Slow", kind="request"))
        start = s.sim.loop.time()
        await s.call("Slow")
        assert s.sim.loop.time() >= start + 2
        s.sim.network.rule(matching(Hold(), api="Held", count=1))
        held = asyncio.ensure_future(s.call("Held"))
        await asyncio.sleep(2)
        assert not held.done()
        s.sim.network.release()
        assert await held == b"Held "

    run(story)


def test_a_duplicated_request_is_handled_twice_and_answered_once():
    """A retrying proxy: idempotence must survive it."""

    async def story(s: Story) -> None:
        await s.boot()
        sent: list[Message] = []
        answered: list[Message] = []
        s.sim.network.observers.append(lambda message, _: sent.append(message))
        s.sim.network.answered.append(answered.append)
        s.sim.network.shape("n2", "n1", LinkProfile(duplicate=1.0))
        assert await s.call() == b"Ask "
        await asyncio.sleep(1)
        assert s.handled == ["Ask", "Ask"]
        assert [message.kind for message in sent].count("answer") == 2
        assert [(message.kind, message.body) for message in answered] == [("answer", b"Ask ")]
        assert [message.api for message in s.sim.network.doubled] == ["Ask"]

    run(story)


def test_a_request_that_is_sent_twice_is_unknown_when_one_copy_breaks():
    """The first copy is handled slowly, and the second one finds its connection reset."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.network.shape("n2", "n1", LinkProfile(duplicate=1.0))
        verdicts = iter((Deliver(), Reset()))
        s.sim.network.rule(lambda message: next(verdicts) if message.kind == "request" else None)
        with pytest.raises(OutcomeUnknown, match="connection reset before Ask was sent"):
            await s.call(body=b"1")
        await asyncio.sleep(2)
        assert s.answered == ["Ask"]

    run(story)


def test_a_request_whose_second_copy_is_lost_has_come_once():
    """What a doubled request excuses (``DoubledRecords`` in ``losses.py``) is not for requests of which one copy arrived."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.network.shape("n2", "n1", LinkProfile(duplicate=1.0))
        s.sim.network.rule(matching(Drop(), kind="request", count=1))
        assert await s.call() == b"Ask "
        await asyncio.sleep(1)
        assert s.handled == ["Ask"]
        assert s.sim.network.doubled == []

    run(story)


def test_loss_is_drawn_per_message():
    """Some calls get through a lossy link, some do not."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.network.profile = LinkProfile(loss=0.3)
        outcomes = await asyncio.gather(*(s.call() for _ in range(50)), return_exceptions=True)
        lost = sum(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)
        assert 10 < lost < 45
        assert len(s.handled) > 50 - lost, "some answers were lost, not the requests"

    run(story)


def test_a_clogged_link_delivers_late_but_not_for_the_dead():
    """Swizzle-clogging; a heal must not resurrect messages of a dead incarnation."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.network.clog("n2", "n1")
        alive = asyncio.ensure_future(s.call("Late", within_s=60))
        dead = s.sim.of("n3")
        s.sim.network.clog("n3", "n1")
        s.sim.spawn("n3", dead.network.call(SERVER, "Dead", [], deadline=60))
        await asyncio.sleep(5)
        s.sim.kill("n3")
        s.sim.network.release("n2", "n1")
        assert await alive == b"Late "
        s.sim.network.release()
        await asyncio.sleep(5)
        assert s.handled == ["Late"]

    run(story)


def test_killing_the_server_resets_waiting_callers():
    """The kernel closes a dead process's connections: delivered means unknown, at once."""

    async def story(s: Story) -> None:
        await s.boot()
        call = asyncio.ensure_future(s.call(body=b"4", within_s=60))
        await asyncio.sleep(1)
        s.sim.kill("n1")
        with pytest.raises(OutcomeUnknown):
            await call
        assert s.sim.loop.time() < 2
        with pytest.raises(Unreachable):
            await s.call()
        assert s.answered == []
        await s.boot()
        assert await s.call() == b"Ask "

    run(story)


def test_a_power_cut_is_silence():
    """No machine, no reset: only the deadline tells."""

    async def story(s: Story) -> None:
        await s.boot()
        call = asyncio.ensure_future(s.call(body=b"4", within_s=10))
        await asyncio.sleep(1)
        s.sim.power_cut("n1")
        with pytest.raises(OutcomeUnknown):
            await call
        assert s.sim.loop.time() == pytest.approx(10)
        with pytest.raises(OutcomeUnknown):
            await s.call(within_s=1)
        s.sim.of("n1")
        with pytest.raises(Unreachable):
            await s.call(within_s=1)

    run(story)


def test_a_request_for_a_dead_incarnation_does_not_reach_the_next_one():
    """A connection belongs to the process that accepted it."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.network.rule(matching(Deliver(1.0), kind="request", count=1))
        call = asyncio.ensure_future(s.call())
        await asyncio.sleep(0.5)
        s.sim.kill("n1")
        await s.boot()
        with pytest.raises(Unreachable):
            await call
        assert s.handled == []

    run(story)


def test_a_paused_server_answers_after_it_resumes():
    """SIGSTOP: the kernel still accepts; a zombie leader wakes up to old requests."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.pause("n1")
        call = asyncio.ensure_future(s.call(within_s=60))
        await asyncio.sleep(20)
        assert s.handled == []
        s.sim.resume("n1")
        assert await call == b"Ask "

    run(story)


def test_a_handler_finishes_though_its_client_left():
    """aiohttp with handler_cancellation off does so; the simulator must too."""

    async def story(s: Story) -> None:
        await s.boot()
        with pytest.raises(OutcomeUnknown):
            await s.call(body=b"3", within_s=1)
        await asyncio.sleep(5)
        assert s.answered == ["Ask"]

    run(story)


def test_a_handler_that_raises_fails_the_run():
    """Errors are answers; an escape is a bug."""

    async def broken(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        raise ValueError("a bug")

    async def story(s: Story) -> None:
        world = s.sim.of("n1")
        await s.sim.spawn("n1", world.network.serve(SERVER, broken))
        with pytest.raises(OutcomeUnknown):
            await s.call()

    with pytest.raises(SimulationFailed, match="a bug"):
        run(story)


def test_a_handler_that_answers_at_once_or_parks_has_no_task_and_the_trace_names_its_request() -> None:
    """Issue 13: a task for each request costs as much as what many handlers do."""
    tasks: list[object] = []

    def at_once(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        tasks.append(_current_task())
        return [api.encode(), body]

    async def later(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        tasks.append(_current_task())
        return [api.encode(), body]

    def parked(api: str, body: bytes, _context: RequestContext) -> Parked:
        return at_its_event(lambda: at_once(api, body, _context))

    def parked_twice(api: str, body: bytes, _context: RequestContext) -> Parked:
        return at_its_event(lambda: at_its_event(lambda: later(api, body, _context)))

    async def story(s: Story) -> None:
        world = s.sim.of("n1")
        for port, handler in ((9092, at_once), (9093, later), (9094, parked), (9095, parked_twice)):
            await s.sim.spawn("n1", world.network.serve(Address("n1", port), handler))
            deadline = s.sim.loop.time() + 5.0
            assert await s.client.network.call(Address("n1", port), "Ask", [b"!"], deadline=deadline) == b"Ask!"
        assert [task is not None for task in tasks] == [False, True, False, True]
        lines = s.sim.loop.trace.lines()
        assert [line.partition(" ")[2] for line in lines if line.endswith("handle Ask")] == ["handle Ask"] * 5
        assert s.sim.loop.incarnations["n1"].tasks == {}

    run(story)


def at_its_event(result: Callable[[], object]) -> Parked:
    """What a handler returns whose event comes a second later."""
    parked = Parked(result)
    asyncio.get_running_loop().call_later(1.0, parked.ready)
    return parked


def _current_task() -> object:
    return asyncio.current_task()


def test_serving_outside_of_a_node_is_refused():
    """Else the handlers' tasks would survive the node's death."""

    async def story(s: Story) -> None:
        with pytest.raises(InvariantViolation):
            await s.sim.of("n1").network.serve(SERVER, s.handle)

    run(story)


def test_links_draw_from_streams_of_their_own():
    """Traffic on one link must not change the delays of another."""

    async def story(s: Story, *, noise: bool) -> list[float]:
        await s.boot()
        times: list[float] = []
        other = s.sim.of("n3")
        for _ in range(5):
            if noise:
                await other.network.call(SERVER, "Noise", [], deadline=s.sim.loop.time() + 9)
            start = s.sim.loop.time()
            await s.call()
            times.append(round(s.sim.loop.time() - start, 9))
        return times

    def timed(*, noise: bool) -> list[float]:
        async def told(s: Story) -> list[float]:
            return await story(s, noise=noise)

        return run(told)

    assert timed(noise=False) == timed(noise=True)


def test_messages_tell_who_what_and_how_much():
    """Invariant checkers watch the wire."""

    async def story(s: Story) -> None:
        await s.boot()
        seen: list[Message] = []
        s.sim.network.observers.append(lambda m, _: seen.append(m))
        await s.call("Ask", b"0")
        assert seen == [
            Message(1, "request", "n2", "n1", "Ask", b"0"),
            Message(1, "answer", "n1", "n2", "Ask", b"Ask 0"),
        ]

    run(story)


def test_a_link_carries_so_many_bytes_a_second() -> None:
    """A message waits until those before it are through; the other direction is a link of its own."""
    took: list[tuple[str, float]] = []

    async def story(sim: SimWorld) -> None:
        one, other = sim.of("n1"), sim.of("n2")

        async def echo(_api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
            return [body]

        async def call(name: str, size: int = 500) -> None:
            await one.network.call(Address("n2", 9092), "Echo", [bytes(size)], deadline=60.0)
            took.append((name, round(sim.loop.time(), 6)))

        await sim.spawn("n2", other.network.serve(Address("n2", 9092), echo))
        sim.network.profile = LinkProfile(delay_mean_s=0.0)
        sim.network.shape("n1", "n2", LinkProfile(delay_mean_s=0.0, bytes_per_s=1000.0))
        calls = [sim.spawn("n1", call(name)) for name in "abc"]
        await asyncio.gather(*calls, sim.spawn("n1", call("an empty one", 0)))

    with SimWorld(1) as sim:
        sim.run(story(sim))
        assert took == [("a", 0.5), ("b", 1.0), ("c", 1.5), ("an empty one", 1.5)]
        assert sim.network.marks["message_queued"] == 3
