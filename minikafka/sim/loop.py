"""An event loop with virtual time whose every choice comes from a seed.

Order: first in, first out inside a node (asyncio promises that), seeded choice between nodes (any order between
processes is real). A node that is chosen has its *turn*: it runs until nothing of it is ready. Nodes share nothing, and
a message takes a timer even when it takes no time, so nobody could tell turns from a finer mixture; but how many
callbacks an ``await`` takes is asyncio's own affair, and differs between versions of Python: no choice may depend on
it. Time jumps to the next timer when nothing is ready. Nothing outside can be reached: every loop method that would do
so raises :class:`Escaped` with its name.

Rules for this file:

1. A step is decided by queues, timers and the seed only; never by an address, a hash of a string or a real clock.
   Tasks and futures hash to their birth number, so that sets of them (``asyncio.wait``, ``TaskGroup``) iterate equally.
2. The trace names who ran by birth number and function name; ``repr`` shows addresses and is banned.
3. What is made for each step is a msgspec Struct, as are messages, events, writes and the batches that invariants
   compare: making one runs no Python code, and costs a quarter of a tuple with names.
4. A dead incarnation never runs again. Its tasks stay referenced until :meth:`SimLoop.close`, or the garbage collector
   would run their ``finally`` blocks in the midst of another's.

The trace is a hash of what a run did: equal runs have equal traces. Tasks and futures belong to a life of a node
(:class:`Incarnation`).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import hashlib
import heapq
import logging
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from random import Random
from types import FunctionType
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from msgspec import Struct

from minikafka.invariant import invariant


@dataclass(eq=False, slots=True)
class Incarnation:
    """One life of one node: a process between its start and its end."""

    node: str
    number: int
    alive: bool = True
    paused: bool = False
    queue: deque[SimHandle] = field(default_factory=deque)
    tasks: dict[int, SimTask] = field(default_factory=dict)
    """Unfinished tasks by birth number."""
    label: str = ""
    """Node and number, as traces name it."""
    has_turn: bool = False
    """True while it runs, or is among the tasks from which the loop chooses the next."""

    def __post_init__(self) -> None:
        self.label = f"{self.node}#{self.number}"

    def __str__(self) -> str:
        return self.label


NODE: ContextVar[Incarnation | None] = ContextVar("NODE", default=None)
"""The node whose code runs; None is the simulation itself (the test's script, the links between nodes)."""


def current_node() -> str:
    """The name of the node whose code runs; empty for the simulation itself."""
    incarnation = NODE.get()
    return incarnation.node if incarnation is not None else ""


class SimHandle(Struct, eq=False):
    """What asyncio's Handle and TimerHandle are, without what only real loops and debuggers need of them."""

    callback: Callable[..., object] | None
    """None: it was cancelled. A timer stays in the heap then, what it would have called need not."""
    args: tuple[Any, ...]
    context: Context
    home: Incarnation
    """On whose queue it runs."""

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None


class SimTimer(SimHandle, eq=False):
    """What ``call_at`` and ``call_later`` return."""

    due: float

    def when(self) -> float:
        return self.due


Happening: TypeAlias = Callable[[], object]
"""Something that the simulation itself does at its time."""


def _birth(born: Any) -> int:
    """The hash of a task or future: given by the loop, to a future when its hash is first asked for."""
    try:
        birth: int = born.birth
    except AttributeError:
        birth = born.birth = born.get_loop().next_birth()
    return birth


class SimTask(asyncio.Task[Any]):
    """A task whose hash is the order of its birth."""

    birth: int
    home: Incarnation
    label: str
    """As traces name it: birth number and function name, never an address."""

    __hash__ = _birth


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is the order in which it first stood in a set."""

    birth: int

    __hash__ = _birth


def name_of(thing: object) -> str:
    """The qualified name of a function, coroutine or partial; else of its type."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    name: str = getattr(thing, "__qualname__", "")
    kind: Any = type(thing)
    return name or _name_of_type(kind)


@functools.lru_cache
def _name_of_type(kind: Any) -> str:
    """The name of a type. That of a coroutine of a compiled method is ``method_Class_gen``: here it has the name that
    it has in the Python sources, so that traces of both builds are the same.
    """
    name: str = kind.__qualname__
    if not name.endswith("_gen"):
        return name
    name = name.removesuffix("_gen")
    classes = [each for each, what in vars(sys.modules[kind.__module__]).items() if isinstance(what, type)]
    owner = max((each for each in classes if name.endswith(f"_{each}")), key=len, default="")
    return f"{owner}.{name.removesuffix(f'_{owner}')}" if owner else name


class Trace:
    """Everything that happened, in order. Most runs pass and nobody reads theirs: lines are formatted on demand."""

    def __init__(self) -> None:
        self.entries: list[object] = []
        """A virtual time, and then who has the turn or what happens; what each step runs; events. None of it changes
        later. No tuples: the garbage collector would visit each of them."""

    def lines(self) -> list[str]:
        """All of it, as text."""
        return [_line(entry) for entry in self.entries]

    def hexdigest(self) -> str:
        """The sha256 of all lines: equal for equal runs."""
        return hashlib.sha256("\n".join([*self.lines(), ""]).encode()).hexdigest()


def _line(entry: object) -> str:
    if isinstance(entry, (float, int)):
        return f"{entry:.9f}"
    return str(entry)


logger = logging.getLogger(__name__)

_ALL_TASKS: Any = getattr(asyncio.tasks, "_scheduled_tasks", None)
"""Where asyncio.all_tasks() finds tasks: a WeakSet, of another name since Python 3.12."""
if _ALL_TASKS is None:
    _ALL_TASKS = asyncio.tasks._all_tasks  # type: ignore[attr-defined]


def _listed(task: asyncio.Task[Any]) -> None:
    """Note a task for asyncio.all_tasks(), but no simulated one. The weak reference, with a hash and a callback in
    Python, costs as much as all else at a task's birth, and :class:`Incarnation` holds them anyway.
    """
    if type(task) is not SimTask:
        WeakSet.add(_ALL_TASKS, task)


T = TypeVar("T")

# A broker handles some hundred callbacks at one instant; a loop that never lets time pass makes more than this soon.
LIVELOCK_STEPS = 200_000

# So many may wait before the cancelled ones among them are looked for.
TIMERS_MAX = 200

# Closing a coroutine that awaits in its `finally` suspends it again; more rounds than this is a loop without end.
CLOSE_ROUNDS = 20


class Escaped(Exception):
    """Code under simulation reached for the real world through this loop method."""


class Deadlock(Exception):
    """Nothing is ready and no timer is set, yet a task waits."""


class Livelock(Exception):
    """Callbacks without end at one virtual instant."""


class SimulationFailed(Exception):
    """Tasks or callbacks failed and nobody looked at it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that ended in an exception which nobody awaited."""

    time: float
    node: str
    message: str
    error: BaseException | None


class SeededChoice:
    """Choose among ready nodes by a seed; ``None`` is plain FIFO, the trace that reads best."""

    def __init__(self, seed: object) -> None:
        self._random = Random(f"{seed}/schedule") if seed is not None else None

    def __call__(self, count: int) -> int:
        return self._random.randrange(count) if self._random is not None else 0


# typeshed marks every method of AbstractEventLoop abstract; the missing ones are added below, as escapes.
_Base: Any = asyncio.AbstractEventLoop


class SimLoop(_Base):  # type: ignore[misc]
    """The simulated event loop.

    ``choose(count)`` picks one of ``count`` ready nodes; it is asked only when there are two or more.
    """

    def __init__(self, seed: object, *, choose: Callable[[int], int] | None = None) -> None:
        self.now = 0.0
        self.steps = 0
        self.trace = Trace()
        self.failures: list[Failure] = []
        self.after_step: list[Callable[[], None]] = []
        """Called after each step with an event: the place for invariants."""
        self.has_event = False
        """The step under way has reported an event."""
        self.lists_tasks = True
        """asyncio.all_tasks() finds the tasks of this loop."""
        self.alarmed = False
        """Something failed, or a check has failed: :meth:`run_until_alarm` ends with this turn."""
        self.world = Incarnation("", 0)
        """The simulation itself; it never dies."""
        self.incarnations: dict[str, Incarnation] = {}
        """The newest incarnation of each node."""
        self._buried: list[Incarnation] = []
        self._choose = choose if choose is not None else SeededChoice(seed)
        self._ready: list[Incarnation] = []
        self._timers: list[tuple[float, int, SimTimer | Happening]] = []
        self._timers_set = 0
        self._timers_max = TIMERS_MAX
        self._births = 0
        self._steps_max = LIVELOCK_STEPS
        """As many as there may be at this instant."""
        self._closed = False
        self._interrupted = False
        self._takes_signals = False
        """Ctrl-C is taken by :meth:`interruptible`."""
        self.create_future = functools.partial(SimFuture, loop=self)
        """Make a future of this loop."""

    # ------------------------------------------------------------------------------------- nodes

    def incarnate(self, node: str) -> Incarnation:
        """Begin a new life of ``node``; what is left of the last one is killed."""
        invariant(node != "", "a node needs a name")
        last = self.incarnations.get(node)
        if last is not None:
            self.kill(node)
        incarnation = Incarnation(node, last.number + 1 if last is not None else 1)
        self.incarnations[node] = incarnation
        return incarnation

    def alive(self, node: str) -> bool:
        """Return True if an incarnation of ``node`` is alive (a paused one is)."""
        incarnation = self.incarnations.get(node)
        return incarnation is not None and incarnation.alive

    def kill(self, node: str) -> None:
        """Kill -9: nothing of the node's present incarnation ever runs again."""
        incarnation = self.incarnations[node]
        if not incarnation.alive:
            return
        incarnation.alive = False
        incarnation.paused = False
        self._buried.append(incarnation)
        self._unready(incarnation)

    def pause(self, node: str) -> None:
        """SIGSTOP: time goes on, the node does not; what arrives waits for it."""
        incarnation = self.incarnations[node]
        invariant(incarnation.alive, "only a living node can be paused", node=node)
        incarnation.paused = True
        self._unready(incarnation)

    def resume(self, node: str) -> None:
        """SIGCONT."""
        incarnation = self.incarnations[node]
        if incarnation.alive and incarnation.paused:
            incarnation.paused = False
            if incarnation.queue and not incarnation.has_turn:
                self._offer(incarnation)

    def context_of(self, incarnation: Incarnation | None) -> Context:
        """A copy of the present context that runs as ``incarnation``."""
        context = contextvars.copy_context()
        context.run(NODE.set, incarnation)
        return context

    def spawn(self, node: str, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task on the living incarnation of ``node``."""
        incarnation = self.incarnations[node]
        invariant(incarnation.alive, "only a living node runs tasks", node=node)
        return self.create_task(coro, context=self.context_of(incarnation))

    # ------------------------------------------------------------------------------------- running

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run ``coro`` as the simulation's own task until it is done."""
        with self._running():
            main: asyncio.Task[T] = self.create_task(coro, context=self.context_of(None))
            while not main.done():
                if not self._turn(None):
                    raise Deadlock(self._who_waits())
        return main.result()

    def run_until(self, deadline: float | None = None, met: Callable[[], bool] | None = None) -> bool:
        """Run until ``met()`` holds, or virtual time ``deadline`` (seconds) is reached, or nothing is left to run.

        ``met`` is asked between turns. True when it held (or, without ``met``, when the deadline was reached).
        """
        with self._running():
            while met is None or not met():
                if not self._turn(deadline):
                    if deadline is None:
                        return False
                    self._advance(max(self.now, deadline))
                    return met is None
        return True

    def run_until_alarm(self, deadline: float) -> None:
        """Run until virtual time ``deadline`` (seconds), or through the turn in which :attr:`alarmed` is set."""
        with self._running():
            while not self.alarmed:
                if not self._turn(deadline):
                    self._advance(max(self.now, deadline))
                    return

    def alarm(self) -> None:
        """End :meth:`run_until_alarm` with this turn."""
        self.alarmed = True

    def _turn(self, limit: float | None) -> bool:
        """Let one node run all that is ready of it. False when nothing is left before virtual time ``limit``."""
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt
        ready = self._ready
        if not ready:
            if not self._fire_timers(limit):
                return False
            if not ready:
                return True
        incarnation = ready.pop(self._choose(len(ready)) if len(ready) > 1 else 0)
        trace = self.trace.entries
        trace.append(self.now)
        trace.append(incarnation.label)
        queue = incarnation.queue
        while queue and incarnation.alive and not incarnation.paused:
            handle = queue.popleft()
            if handle.callback is not None:
                self._step(handle, handle.callback, trace)
            del handle  # as in a step
        incarnation.has_turn = False
        if queue:
            self._offer(incarnation)
        return True

    def _step(self, handle: SimHandle, callback: Callable[..., object], trace: list[object]) -> None:
        """Run one callback."""
        task: Any = None
        if type(callback) is FunctionType:
            label = callback.__qualname__
        elif type(task := getattr(callback, "__self__", None)) is SimTask:
            label = task.label
        else:
            task, label = None, getattr(callback, "__qualname__", "") or name_of(callback)
        trace.append(label)
        self.steps += 1
        if self.steps > self._steps_max:
            raise Livelock(f"t={self.now:.6f} step {self.steps}: {handle.home} {label}")
        try:
            handle.context.run(callback, *handle.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio does: context, and the loop goes on
            context = {"message": f"Exception in callback {label}", "exception": error}
            handle.context.run(self.call_exception_handler, context)
        if task is not None and task.done():
            task.home.tasks.pop(task.birth, None)
        # The traceback of a task that failed holds this frame (since Python 3.12), and so would keep the task from
        # reporting, as it goes, that nobody has looked at its failure.
        del handle, callback, task
        if self.has_event:
            self._look()

    def _happen(self, happening: Happening, trace: list[object]) -> None:
        """Let something happen that the simulation itself has set. Nobody's code runs, so it needs no context: where no
        node runs, NODE is None.
        """
        label = getattr(happening, "__qualname__", "") or name_of(happening)
        trace.append(self.now)
        trace.append(label)
        self.steps += 1
        if self.steps > self._steps_max:
            raise Livelock(f"t={self.now:.6f} step {self.steps}: {self.world} {label}")
        try:
            happening()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as in a step
            self.call_exception_handler({"message": f"Exception in callback {label}", "exception": error})
        if self.has_event:
            self._look()

    def _look(self) -> None:
        """Check what may be wrong after a step with an event."""
        self.has_event = False
        for check in self.after_step:
            check()

    def _fire_timers(self, limit: float | None) -> bool:
        """Advance to the next timer not after ``limit``. Of all that are due then, those of nodes become ready, and
        what the simulation itself has set (messages that arrive, syncs that end) happens.
        """
        timers = self._timers
        while timers and type(timers[0][2]) is SimTimer and timers[0][2].callback is None:
            heapq.heappop(timers)
        if not timers or (limit is not None and timers[0][0] > limit):
            return False
        if timers[0][0] > self.now:
            self._advance(timers[0][0])
        now, world = self.now, self.world
        trace = self.trace.entries
        while timers and timers[0][0] <= now:
            due = heapq.heappop(timers)[2]
            if type(due) is not SimTimer:
                self._happen(due, trace)  # type: ignore[arg-type]
            elif due.callback is None:
                continue
            elif due.home is world:
                trace.append(now)
                self._step(due, due.callback, trace)
            else:
                due.home.queue.append(due)
                if not due.home.has_turn:
                    self._offer(due.home)
        return True

    def _advance(self, now: float) -> None:
        """Let time pass until ``now``, if that is later."""
        if now > self.now:
            self.now = now
            self._steps_max = self.steps + LIVELOCK_STEPS

    @contextmanager
    def _running(self) -> Generator[None]:
        invariant(not self._closed, "the loop is closed")
        invariant(asyncio._get_running_loop() is None, "another event loop runs here")
        with self.interruptible():
            hooks = sys.get_asyncgen_hooks()
            sys.set_asyncgen_hooks(finalizer=self._finish_generator)
            asyncio._set_running_loop(self)
            if not self.lists_tasks:
                _ALL_TASKS.add = _listed
            try:
                yield
            finally:
                if not self.lists_tasks:
                    del _ALL_TASKS.add
                asyncio._set_running_loop(None)
                sys.set_asyncgen_hooks(*hooks)

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """Let Ctrl-C count between two turns: raised between a coroutine's birth and its task's, it would leave the
        coroutine to the garbage collector, which complains on standard error. The second one counts at once.

        Each run of the loop is such a block. Around many short runs, one block changes the signal's handler once.
        """
        takes_signals = (
            not self._takes_signals
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if not takes_signals:
            yield
            return
        self._takes_signals = True
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._takes_signals = False
        if self._interrupted:  # in the last turn
            self._interrupted = False
            raise KeyboardInterrupt

    def _interrupt(self, *_: object) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.create_task(generator.aclose())

    # ------------------------------------------------------------------------------------- the end

    def check(self) -> None:
        """Raise SimulationFailed when a task or callback failed unseen."""
        gc.collect()
        if self.failures:
            first = self.failures[0]
            sentences = "; ".join(
                f"t={f.time:.3f} {f.node or 'world'}: {f.message} {f.error!r}" for f in self.failures[:5]
            )
            raise SimulationFailed(f"{len(self.failures)} failures: {sentences}") from first.error

    def close(self) -> None:
        """Throw away every unfinished task, the dead ones' too. What their ``finally`` does reaches nothing."""
        if self._closed:
            return
        self._closed = True
        for incarnation in (self.world, *self._buried, *self.incarnations.values()):
            incarnation.alive = False
            for task in incarnation.tasks.values():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close_coroutine(task.get_coro())
            incarnation.queue.clear()
        self._ready.clear()
        self._timers.clear()

    # ------------------------------------------------------------------------------------- asyncio's side

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self.now

    def next_birth(self) -> int:
        """The next birth number of a task or future."""
        self._births += 1
        return self._births

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None, **_: object
    ) -> asyncio.Task[T]:
        """Start a task on the node of ``context`` (default: the node that runs)."""
        return self._born(coro, self.next_birth(), name or "task", context or contextvars.copy_context())

    def create_task_at_once(self, coro: Coroutine[Any, Any, object], birth: int) -> None:
        """Start a task with a birth number that was given out before. A callback calls this: the task's first step is
        the rest of this step.
        """
        task = self._born(coro, birth, "task", contextvars.copy_context())
        first = task.home.queue.pop()
        first.context.run(first.callback)  # type: ignore[arg-type]
        if task.done():
            task.home.tasks.pop(birth, None)
        del task, first  # as in a step

    def _born(self, coro: Coroutine[Any, Any, object], birth: int, name: str, context: Context) -> SimTask:
        task = SimTask.__new__(SimTask)
        task.birth = birth  # before it is made: asyncio may put it into a set then
        task.label = f"{birth} {name_of(coro)}"
        task.home = home = context.get(NODE, None) or self.world
        home.tasks[birth] = task
        SimTask.__init__(task, coro, loop=self, name=name, context=context)
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> SimHandle:
        """Queue a callback on the node of its context."""
        if context is None:
            context = contextvars.copy_context()
        home = context.get(NODE, None) or self.world
        handle = SimHandle(callback, args, context, home)
        home.queue.append(handle)
        if not home.has_turn:
            self._offer(home)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimTimer:
        """Queue a callback ``delay`` virtual seconds from now."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimTimer:
        """Queue a callback at virtual time ``when``; equal times keep the order of these calls."""
        if context is None:
            context = contextvars.copy_context()
        handle = SimTimer(callback, args, context, context.get(NODE, None) or self.world, when)
        if len(self._timers) >= self._timers_max:
            self._drop_cancelled_timers()
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, handle))
        return handle

    def happen_at(self, when: float, happening: Happening) -> None:
        """Something that the simulation itself does at virtual time ``when``: nobody's code, nobody's queue."""
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, happening))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect what went wrong unseen; :meth:`check` tells it."""
        error = context.get("exception")
        if not self._closed:
            self.failures.append(Failure(self.now, current_node(), str(context.get("message")), error))
            self.alarmed = True

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """As :meth:`call_exception_handler`."""
        self.call_exception_handler(context)

    def get_exception_handler(self) -> None:
        """None: failures are collected."""

    get_debug = bool  # False: asyncio's debug mode reads the real clock. Asked at the birth of each future.

    def get_task_factory(self) -> None:
        """None: tasks are SimTasks."""

    def is_running(self) -> bool:
        """True between the ends of a run."""
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        """True after :meth:`close`."""
        return self._closed

    async def shutdown_asyncgens(self) -> None:
        """Nothing: generators are finished as they are dropped."""

    async def shutdown_default_executor(self) -> None:
        """Nothing: there is no executor."""

    def _drop_cancelled_timers(self) -> None:
        # Most timers are time-outs that did not happen: without this the heap would hold them to the end.
        # In place: this may happen while they are being fired, and one that is due must not be fired from two lists.
        self._timers[:] = [
            entry for entry in self._timers if type(entry[2]) is not SimTimer or entry[2].callback is not None
        ]
        heapq.heapify(self._timers)
        self._timers_max = max(TIMERS_MAX, 2 * len(self._timers))

    def _offer(self, incarnation: Incarnation) -> None:
        """It has something to run: it may be chosen, if it can run at all."""
        if incarnation.alive and not incarnation.paused:
            incarnation.has_turn = True
            self._ready.append(incarnation)

    def _unready(self, incarnation: Incarnation) -> None:
        if incarnation in self._ready:
            self._ready.remove(incarnation)
            incarnation.has_turn = False

    def _who_waits(self) -> str:
        names = [
            f"{incarnation} {name_of(task.get_coro())}"
            for incarnation in (self.world, *self.incarnations.values())
            for task in incarnation.tasks.values()
            if incarnation.alive
        ]
        return f"t={self.now:.6f} step {self.steps}; waiting: {', '.join(names) or 'nobody'}"


def _close_coroutine(coro: object) -> None:
    """Close a coroutine even if its ``finally`` awaits; errors of an abandoned coroutine concern nobody.

    From the innermost outwards, as often as a clean-up begins something new: one that is let go while it still awaits
    is closed by Python itself, which has a word to say about that.
    """
    for _ in range(CLOSE_ROUNDS):
        chain: list[object] = [coro]
        while hasattr(awaited := getattr(chain[-1], "cr_await", None), "close"):
            chain.append(awaited)
        refused = False
        for each in reversed(chain):
            # Each by itself: a compiled one whose clean-up failed refuses to be closed again, in every round.
            try:
                each.close()  # type: ignore[attr-defined]
            except Exception as error:  # noqa: BLE001 - it awaited again, or a fenced port refused its clean-up, as it should
                refused = True
                logger.debug("closing an abandoned %s: %r", name_of(coro), error)
        if not refused:
            return


def _escape(name: str) -> Callable[..., object]:
    def method(_self: SimLoop, *_: object, **__: object) -> object:
        raise Escaped(name)

    method.__name__ = method.__qualname__ = name
    return method


for _name in sorted(dir(asyncio.AbstractEventLoop)):
    if not _name.startswith("_") and _name not in vars(SimLoop):
        setattr(SimLoop, _name, _escape(_name))
