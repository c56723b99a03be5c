"""A parked request: computed once, by its event, through the steps of all layers; and purgatory without tasks."""

from __future__ import annotations

import asyncio

import pytest

from minikafka.broker.meters import PurgatoryMeter
from minikafka.broker.purgatory import Condition, Mark, Purgatory
from minikafka.errors import NotController
from minikafka.parked import Parked
from minikafka.ports import CAUSE
from minikafka.sim.world import SimWorld
from minikafka.types import TopicPartition

ORDERS = TopicPartition("orders", 0)
END = Condition(Mark.LOG_END, ORDERS, 5)


def run(body):
    sim = SimWorld(1)
    return sim.run(body(sim))


def test_steps_run_from_the_inside_out_and_only_when_the_event_comes():
    """Each sees what the one before it returned or raised, as nested coroutines would."""
    seen: list[object] = []

    def handler() -> int:
        seen.append("handler")
        raise NotController("moved")

    def metered(result):
        try:
            return result()
        except NotController as error:
            seen.append(error.name)
            raise

    def encoded(result):
        with pytest.raises(NotController):
            result()
        return "encoded"

    parked = Parked(handler)
    parked.then(metered)
    parked.then(encoded)
    parked.when_ready(lambda result: seen.append(result()))
    assert seen == []
    parked.ready()
    parked.ready()
    assert seen == ["handler", "NOT_CONTROLLER", "encoded"]


def test_an_event_that_came_before_anybody_asked_is_not_lost():
    """Produce may be verified in a task first: then the watermark may move before a connection takes the result."""
    parked, seen = Parked(lambda: 7), []
    parked.ready()
    parked.when_ready(lambda result: seen.append(result()))
    assert seen == [7]


def test_a_cancelled_request_is_never_computed():
    """Its process has died."""
    parked, seen = Parked(lambda: seen.append(1)), []
    parked.when_ready(lambda result: result())
    parked.cancel()
    parked.then(lambda result: result())
    parked.ready()
    assert seen == []


def test_a_task_may_await_it_and_gets_what_its_result_must_still_wait_for():
    """The general HTTP server holds a task anyway."""

    async def body(sim):
        cold = asyncio.get_running_loop().create_future()
        parked = Parked(lambda: cold)
        waiting = asyncio.ensure_future(parked)
        await asyncio.sleep(0)
        parked.ready()
        await asyncio.sleep(0.1)
        assert not waiting.done()
        cold.set_result("warm")
        assert await waiting == "warm"
        failing = Parked(lambda: 1 // 0)
        failing.ready()
        with pytest.raises(ZeroDivisionError):
            await failing

    run(body)


def test_purgatory_looks_in_one_callback_for_all_that_a_turn_has_woken():
    """A wake-up comes from the middle of an append: nothing is looked at there. No task is needed for it."""

    async def body(sim):
        purgatory, end, looks, answers = Purgatory(), 0, [], []
        tasks = asyncio.all_tasks()

        def met() -> bool:
            looks.append(end)
            return end >= 5

        for number in range(3):
            waiter = purgatory.park([END, END._replace(offset=7)], met, sim.loop.now + 9)
            waiter.when_ready(lambda result, number=number: answers.append((number, result())))
        purgatory.wake(Mark.LOG_END, ORDERS, 6)
        end = 6
        purgatory.wake(Mark.LOG_END, ORDERS, 7)
        assert (looks, answers) == ([], [])
        await asyncio.sleep(0)
        assert (looks, answers) == ([6, 6, 6], [(0, True), (1, True), (2, True)])
        assert asyncio.all_tasks() == tasks
        assert purgatory.parked == 0

    run(body)


def test_a_request_that_an_answer_wakes_looks_a_turn_later():
    """Answering begins the next request of the connection, which may wake others: a turn of the loop stays short."""

    async def body(sim):
        purgatory, turns = Purgatory(), []
        turn = 0

        def next_one(result) -> None:
            turns.append(turn)
            if len(turns) < 4:
                purgatory.park([END], lambda: True, sim.loop.now + 9).when_ready(next_one)
                purgatory.wake(Mark.LOG_END, ORDERS, 5)

        purgatory.park([END], lambda: True, sim.loop.now + 9).when_ready(next_one)
        purgatory.wake(Mark.LOG_END, ORDERS, 5)
        for turn in range(8):  # noqa: B007 - read by next_one
            await asyncio.sleep(0)
        assert turns == sorted(set(turns))
        assert len(turns) == 4

    run(body)


def test_a_bug_in_one_answer_does_not_leave_the_others_parked():
    """The owner of the loop gets the exception; the next turn goes on with those behind it."""

    async def body():
        purgatory, answers, bugs, loop = Purgatory(), [], [], asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: bugs.append(type(context["exception"])))
        for number in range(3):
            waiter = purgatory.park([END], lambda: True, loop.time() + 9)
            waiter.when_ready(lambda _, number=number: answers.append(1 // number))
        purgatory.wake(Mark.LOG_END, ORDERS, 5)
        await asyncio.sleep(0.1)
        assert (answers, bugs) == ([1, 0], [ZeroDivisionError])

    asyncio.run(body())


def test_a_parked_request_ends_at_its_deadline_at_a_stop_or_by_being_cancelled():
    """And counts in the purgatory's metric until then, with its time; a cancelled one is not woken by its timer."""

    async def body(sim):
        meter = PurgatoryMeter(lambda: round(sim.loop.now * 1e9))
        purgatory, answers = Purgatory(), []

        def park(wait_s: float):
            waiter = purgatory.park([END], lambda: False, sim.loop.now + wait_s, meter=meter)
            waiter.when_ready(lambda result: answers.append((sim.loop.now, result())))
            return waiter

        timed, stopped, cancelled, late = park(1.0), park(9.0), park(0.5), park(0.0)
        assert (meter.size, purgatory.parked) == (4, 4)
        cancelled.cancel()
        await asyncio.sleep(2.0)
        purgatory.close()
        await asyncio.sleep(1.0)
        assert answers == [(0.0, False), (1.0, False), (2.0, False)]
        assert [each.parked_ns for each in (late, timed, stopped, cancelled)] == [0, 10**9, 2 * 10**9, 0]
        assert (meter.size, purgatory.parked) == (0, 0)

    run(body)


def test_looks_and_answers_belong_to_the_cause_of_their_request():
    """An event of a refused request names that request, not the fetch whose arrival has woken it (D9)."""

    async def body(sim):
        purgatory, causes = Purgatory(), []

        def met() -> bool:
            causes.append(CAUSE.get())
            return True

        CAUSE.set("Produce#1")
        purgatory.park([END], met, sim.loop.now + 9).when_ready(lambda _: causes.append(CAUSE.get()))
        CAUSE.set("Fetch#2")
        purgatory.wake(Mark.LOG_END, ORDERS, 5)
        await asyncio.sleep(0)
        assert causes == ["Produce#1", "Produce#1"]
        assert CAUSE.get() == "Fetch#2"

    run(body)
