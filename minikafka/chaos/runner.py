"""A scenario on real brokers: by name (:func:`play`), then step by step (:class:`Run`).

:func:`play` is what the command line and the tests call: one scenario on one target. A fault that the target lacks is
refused before anything is started. Files go into the run's folder: ``history.jsonl``, the brokers' journal,
``report.json``, the scenario itself, and ``throughput.svg``: what was acknowledged each second, and when which fault
was in force. The picture has no scripts, fonts or links; every text in it is escaped.

The phases of a run:

1. *Faults*: producers and groups work; strikes happen; it is watched whether brokers die by themselves and whether the
   history is broken already.
2. *Peace*: everything is put right while the load goes on, until every partition acknowledges again.
3. *Convergence*: the load ends; every replica must be in sync, with one end and one watermark, within the time stated.
4. *Verdict*: everything is read back, brokers stop, replicas are compared byte by byte, the checker judges.

Rules for this file: it drives any :class:`Target`; the target is closed however the run ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from minikafka.chaos.load import Compared, Ledger, Work, compare, judge, read_back
from minikafka.chaos.outcome import CLEAN, Figures, Outcome, Recovery
from minikafka.chaos.scenario import DURATION_S_MAX, DURATION_S_MIN, Hit, Scenario, Strike, hit_of, strikes_of
from minikafka.chaos.target import CannotMake, Target, lacks, target_class
from minikafka.chaos.watch import ClusterState, Watch
from minikafka.check import Expectations, Verdict
from minikafka.client.settings import AdminConfig, build
from minikafka.client.structs import NewTopic
from minikafka.errors import InvalidConfig, TopicAlreadyExists, WorldError
from minikafka.faults import FAULTS, RESTART, ROLLING_RESTART, STOP, Standing, View
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.world.clients import AdminClient, Asker, client_tls

LOOK_S: Final = 0.1
REPORT_EVERY_S: Final = 5.0

BEGIN_S: Final = 60.0
"""A new cluster's topics have leaders and full ISRs by then."""

STEP_S: Final = 90.0
"""One broker of a rolling restart is in sync again by then."""

ANSWERS_S: Final = 30.0
"""Once every partition acknowledges again, all records under way have their answer by then."""


class Run:
    """One run of one scenario on one target."""

    def __init__(
        self,
        scenario: Scenario,
        target: Target,
        *,
        seed: int,
        duration_s: float | None,
        folder: Path,
        say: Callable[[str], object],
    ) -> None:
        self._scenario = scenario
        self._target = target
        self._seed = seed
        self._duration_s = scenario.load.duration_s if duration_s is None else duration_s
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._ledger = Ledger(folder / HISTORY)
        topics = {each.topic for each in scenario.load.producers}
        self._names = scenario.cluster.names()
        self._figures = Figures([name for name in self._names if name.topic in topics])
        self._work = Work(self._ledger, self._figures, self._loop.time)
        self._watch: Watch
        self._leaders: dict[TopicPartition, NodeId] = {}
        self._died: dict[str, None] = {}
        self._spared: list[str] = []
        self._restart: tuple[float, float] | None = None
        self._missing = ""
        self._deeds: dict[asyncio.Task[None], None] = {}
        """What the target is doing to the cluster now."""

    async def run(self) -> Outcome:
        """All of it. WorldError when the cluster cannot be started or a fault cannot be carried out."""
        target = self._target
        try:
            self._say(f"starting {len(target.nodes)} brokers")
            await target.start()
            await self._create_topics()
            async with self._asker() as asker:
                self._watch = Watch(asker, target.addresses, *(topic.name for topic in self._scenario.cluster.topics))
                outcome = await _beside(self._play(), self._watch.run())
            if self._missing:
                return outcome
            ends = await read_back(self._ledger, target.client_settings, self._names, lambda _: None)
            folders = await target.stop()
            self._say("brokers stopped; comparing the replicas byte by byte")
            compared = await asyncio.to_thread(compare, self._ledger, folders, ends)
            verdict = await asyncio.to_thread(judge, self._ledger)
            return self._judged(outcome, verdict, compared)
        finally:
            await asyncio.shield(self._close())

    def _asker(self) -> Asker:
        settings = self._target.client_settings
        return Asker(settings["bootstrap_servers"], client_tls(build(AdminConfig, dict(settings))))

    async def _close(self) -> None:
        try:
            await self._work.close()
        finally:
            self._ledger.close()
            await self._target.close()

    async def _create_topics(self) -> None:
        async with AdminClient(**self._target.client_settings) as admin:
            for topic in self._scenario.cluster.topics:
                wanted = NewTopic(
                    topic.name, topic.partitions, topic.replication_factor, topic_configs=dict(topic.configs)
                )
                try:
                    await admin.create_topics([wanted])
                except TopicAlreadyExists:
                    self._say(f"topic {topic.name} is there already")

    # ---- faults ------------------------------------------------------------------------------------------------------

    async def _play(self) -> Outcome:
        """The load, from its beginning to convergence."""
        if await self._watch.until(_all_in_sync(self._scenario.cluster.names()), BEGIN_S) is None:
            raise WorldError(f"the topics of the new cluster are not in sync after {BEGIN_S:.0f} s: {self._lacks()}")
        partitions = {topic.name: topic.partitions for topic in self._scenario.cluster.topics}
        await self._work.start(
            self._scenario.load, partitions, self._target.client_settings, self._target.kafka_settings
        )
        strikes = strikes_of(self._scenario, self._seed, self._duration_s)
        self._say(f"load for {self._duration_s:g} s, {len(strikes)} faults")
        striking = [asyncio.ensure_future(self._strike(each)) for each in strikes]
        try:
            await self._until(self._duration_s, striking)
            for task in striking:
                task.cancel()
            for ended in await asyncio.gather(*striking, return_exceptions=True):
                if isinstance(ended, Exception):  # since the last look
                    raise ended
            await asyncio.gather(*self._deeds)  # begun before the end, and not to be left halfway
        finally:
            under_way = [*striking, *self._deeds]
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        return await self._peace()

    async def _whole(self, deed: Coroutine[Any, Any, None]) -> None:
        """To its end, also when its strike ends before with the load: half a fault cannot be put right.

        A system call's injection, say, would be begun by a thread and known to nobody.
        """
        doing = asyncio.ensure_future(deed)
        self._deeds[doing] = None
        doing.add_done_callback(self._forget)
        await asyncio.shield(doing)

    def _forget(self, deed: asyncio.Task[None]) -> None:
        """One that failed is kept: its waiter may have been cancelled."""
        if deed.cancelled() or deed.exception() is None:
            del self._deeds[deed]

    async def _until(self, at_s: float, striking: Iterable[asyncio.Task[None]]) -> None:
        """Watch until that time of the load, and until a rolling restart that is under way has ended."""
        reported_s = 0.0
        while (now_s := self._work.now()) < at_s or (self._restart is not None and self._restart[1] < 0):
            self._look()
            for task in striking:
                if task.done() and (error := task.exception()) is not None:
                    raise error
            if now_s - reported_s >= REPORT_EVERY_S:
                reported_s = now_s
                self._say(self._progress())
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        """Checks on the way: clients live, brokers die of faults only, leaders are counted."""
        self._work.check()
        for node, obituary in self._target.died().items():
            if obituary not in self._died:
                self._died[obituary] = None
                self._say(f"BROKER {node} ENDED BY ITSELF: {obituary}")
        for each in self._watch.state.partitions:
            name = TopicPartition(each.topic, each.partition)
            if each.leader != NO_NODE:
                known = self._leaders.setdefault(name, each.leader)
                self._figures.failovers += known != each.leader
                self._leaders[name] = each.leader

    def _progress(self) -> str:
        figures, found = self._figures, self._ledger.totals
        wrong = f"; FOUND {', '.join(f'{kind} {count}' for kind, count in found.items())}" if found else ""
        return f"{figures.acknowledged:,} of {figures.sent:,} acknowledged, groups read {self._work.read:,}{wrong}"

    def view(self) -> View:
        """Leader, ISR and log ends of each partition, by the newest responses."""
        state = self._watch.state
        return View(
            self._target.nodes,
            state.controller,
            {
                TopicPartition(each.topic, each.partition): Standing(each.leader, each.replicas, each.isr)
                for each in state.partitions
            },
        )

    async def _strike(self, strike: Strike) -> None:
        """One fault, from its time on, until it is put right or the load ends."""
        await asyncio.sleep(strike.at_s - self._work.now())
        hit = hit_of(strike, self.view())
        if hit is None:
            self._spared.append(str(strike))
            self._say(f"{strike}: nobody to hit")
            return
        self._say(f"fault {strike.number}: {hit}" + (f" for {strike.lasts_s:g} s" if strike.lasts_s else ""))
        recovery = self._figures.began(strike.number, str(hit), self._work.now())
        if strike.what in {RESTART, ROLLING_RESTART}:
            await self._restart_all(hit, recovery)
            return
        await self._whole(self._target.begin(hit))
        if FAULTS[strike.what].lasts:
            await asyncio.sleep(self._duration_s if strike.lasts_s is None else strike.lasts_s)
            await self._whole(self._target.end(hit))
        recovery.healed_s = self._work.now()

    async def _restart_all(self, hit: Hit, recovery: Recovery) -> None:
        """Restart at once, or one after the other, each when all are in sync."""
        stop = replace(hit.strike, what=STOP)
        began_s = self._work.now()
        rolling = hit.what == ROLLING_RESTART
        if rolling:
            self._restart = (began_s, -1.0)
        for nodes in [(node,) for node in hit.nodes] if rolling else [hit.nodes]:
            one = Hit(strike=stop, nodes=nodes)
            await self._whole(self._target.begin(one))
            await self._whole(self._target.end(one))
            if rolling and await self._seen(_all_in_sync(self._names), STEP_S) is None:
                raise WorldError(f"broker {nodes[0]} is not in sync {STEP_S:.0f} s after its restart: {self._lacks()}")
        recovery.healed_s = self._work.now()
        if rolling:
            self._restart = (began_s, recovery.healed_s)

    # ---- peace -------------------------------------------------------------------------------------------------------

    async def _peace(self) -> Outcome:
        """Everything is put right; the load goes on until all partitions acknowledge, then ends; all must converge."""
        self._say("everything is put right")
        await self._target.heal()
        healed_s = self._work.now()
        for each in self._figures.open:
            if each.healed_s is None:
                each.healed_s = healed_s
        deadline_s = healed_s + self._scenario.expect.converge_s
        while self._figures.open and self._work.now() < deadline_s:
            self._look()
            await asyncio.sleep(LOOK_S)
        stuck = [str(name) for name in self._figures.silent_since(healed_s) if self._work.waiting[name]]
        late = self._work.now() >= deadline_s
        answered = await self._work.finish(max(1.0, min(ANSWERS_S, deadline_s - self._work.now() + 1.0)))
        settled = await self._seen(_settled(self._names), max(1.0, deadline_s - self._work.now()))
        self._look()
        if settled is None:
            self._missing = self._lacks()
        elif late and stuck:
            self._missing = f"all replicas are in sync, but {', '.join(stuck)} acknowledged nothing any more"
        elif not answered:
            self._say("some records have no answer; they count as unknown")
        return self._outcome(None if self._missing else self._work.now() - healed_s)

    async def _seen(self, condition: Callable[[ClusterState], bool], timeout_s: float) -> float | None:
        """When it was seen to be so, by questions asked from now on."""
        since = self._loop.time()
        return await self._watch.until(lambda state: state.at > since and condition(state), timeout_s)

    def _lacks(self) -> str:
        """What is not in sync, as a sentence."""
        state = self._watch.state
        running = self._target.addresses()
        reasons = [f"broker {node} does not run" for node in self._target.nodes if node not in running]
        seen = {TopicPartition(each.topic, each.partition): each for each in state.partitions}
        for name in self._names:
            each = seen.get(name)
            if each is None:
                reasons.append(f"{name} is unknown")
            elif each.leader == NO_NODE or set(each.isr) != set(each.replicas):
                reasons.append(f"{name} has leader {each.leader}, ISR {sorted(each.isr)} of {sorted(each.replicas)}")
        return "; ".join(reasons) or f"logs differ: {sorted(state.marks)}"

    # ---- verdict -----------------------------------------------------------------------------------------------------

    def _outcome(self, converged_s: float | None) -> Outcome:
        """What is known before the verdict."""
        outcome = Outcome(
            scenario=self._scenario,
            target=self._target.name,
            seed=self._seed,
            duration_s=self._duration_s,
            figures=self._figures,
            findings={},
            missing=self._missing,
            converged_s=converged_s,
            died=list(self._died),
            spared=self._spared,
            troubles=self._work.troubles,
            read=self._work.read,
            restart=self._restart,
        )
        if self._missing:
            # Nothing complete can be read: what the clients' own words show must do.
            self._ledger.recorder.expect(Expectations(idempotent=True))
            self._ledger.close()
            outcome = self._judged(outcome, self._ledger.verdict(), None)
        return outcome

    @staticmethod
    def _judged(outcome: Outcome, verdict: Verdict, compared: Compared | None) -> Outcome:
        findings = dict(verdict.totals)
        if compared is not None:
            outcome.batches = compared.batches
            if compared.differences and "diverged" not in findings:
                findings["diverged"] = compared.differences
        outcome.findings = findings
        damage = outcome.damage
        outcome.examples = [f"{each.place()}: {each.sentence()}" for each in verdict.findings if each.kind in damage]
        return outcome


def _all_in_sync(names: Iterable[TopicPartition]) -> Callable[[ClusterState], bool]:
    count = len(tuple(names))
    return lambda state: state.all_in_sync and len(state.partitions) == count


def _settled(names: Iterable[TopicPartition]) -> Callable[[ClusterState], bool]:
    count = len(tuple(names))
    return lambda state: state.settled and len(state.partitions) == count


async def _beside(work: Coroutine[Any, Any, Outcome], other: Coroutine[Any, Any, None]) -> Outcome:
    """The result of ``work``; ``other`` runs beside it, ends with it, and its failure is the work's."""
    main, aside = asyncio.ensure_future(work), asyncio.ensure_future(other)
    try:
        await asyncio.wait((main, aside), return_when=asyncio.FIRST_COMPLETED)
        if not main.done():
            await aside
        return await main
    finally:
        main.cancel()
        aside.cancel()
        await asyncio.gather(main, aside, return_exceptions=True)


WIDTH: Final = 960
HEIGHT: Final = 320
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 64, 28
LABELS_MAX: Final = 24
"""More faults than that are drawn without a word: they would cover each other."""


def picture(outcome: Outcome) -> str:
    """The SVG."""
    rates = outcome.figures.per_second() or [0]
    end_s = max(outcome.duration_s, len(rates), 1.0)
    highest = max(*rates, 1)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(at_s: float) -> float:
        return round(LEFT + wide * min(at_s, end_s) / end_s, 1)

    def y(rate: float) -> float:
        return round(TOP + tall * (1 - rate / highest), 1)

    colour = "#2a7a3b" if outcome.verdict == CLEAN else "#b00020"
    title = f"{outcome.scenario.name} on {outcome.target}, seed {outcome.seed}"
    summary = f"{outcome.figures.acknowledged:,} in all, lost {outcome.count('lost'):,}"
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11"'
    word = f'<tspan fill="{colour}">{outcome.verdict}</tspan>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}: {word}</text>',
        f'<text x="{LEFT}" y="34" fill="#555555">acknowledged records per second; {summary}</text>',
    ]
    parts += _faults(outcome, x, tall)
    points = " ".join(f"{x(second)},{y(rate)} {x(second + 1)},{y(rate)}" for second, rate in enumerate(rates))
    parts.append(f'<polyline fill="none" stroke="#1f4e9c" stroke-width="1.5" points="{points}"/>')
    parts.append(f'<path d="M{LEFT} {TOP}V{TOP + tall}H{WIDTH - RIGHT}" fill="none" stroke="#555555"/>')
    parts += [
        f'<text x="{LEFT - 6}" y="{y(rate) + 4}" text-anchor="end">{rate:,}</text>'
        for rate in (0, highest // 2, highest)
    ]
    step_s = max(1, round(end_s / 10))
    parts += [
        f'<text x="{x(at_s)}" y="{HEIGHT - 10}" text-anchor="middle">{at_s} s</text>'
        for at_s in range(0, int(end_s) + 1, step_s)
    ]
    return "\n".join([*parts, "</svg>", ""])


def _faults(outcome: Outcome, place: Callable[[float], float], tall: int) -> list[str]:
    parts = []
    recoveries = outcome.figures.recoveries
    for index, each in enumerate(recoveries):
        begin, end = place(each.began_s), place(each.healed_s if each.healed_s is not None else outcome.duration_s)
        wide = max(1.5, round(end - begin, 1))
        parts.append(
            f'<rect x="{begin}" y="{TOP}" width="{wide}" height="{tall}" fill="#e0a030" fill-opacity="0.3">'
            f"<title>{escape(each.what)}</title></rect>"
        )
        if len(recoveries) <= LABELS_MAX:
            row = 46 + 10 * (index % 2)
            parts.append(f'<text x="{begin}" y="{row}" font-size="9" fill="#7a5a10">{escape(each.what[:28])}</text>')
    return parts


HISTORY: Final = "history.jsonl"
REPORT: Final = "report.json"
PICTURE: Final = "throughput.svg"


def check(scenario: Scenario, target: str, duration_s: float | None) -> None:
    """CannotMake when the target lacks a fault, or the load would be over before the scenario is, or not in a week."""
    missing = lacks(target, scenario)
    if missing:
        raise CannotMake(f"{scenario.name}: {'; '.join(missing)}", scenario=scenario.name)
    if duration_s is not None and not DURATION_S_MIN <= duration_s <= DURATION_S_MAX:
        raise CannotMake(f"--duration {duration_s:g}s: from 1s to 7d is possible, as in a file", scenario=scenario.name)
    if duration_s is not None and duration_s < scenario.fixed_s():
        raise CannotMake(
            f"--duration {duration_s:g}s: {scenario.name} has faults until {scenario.fixed_s():g} s, its load"
            " must last as long",
            scenario=scenario.name,
        )


def _check_unused(folder: Path) -> None:
    """Raise InvalidConfig if there was a run in this folder: its records would be duplicates in the next one."""
    for old in (folder / HISTORY, folder / REPORT, *folder.glob("broker*")):
        if old.exists():
            raise InvalidConfig(f"{folder} holds an earlier run ({old.name}): choose another directory")


async def play(
    scenario: Scenario,
    target: str,
    *,
    seed: int,
    folder: Path,
    duration_s: float | None = None,
    say: Callable[[str], object] = lambda _: None,
    made: type[Target] | None = None,
) -> Outcome:
    """Play it and write the files. CannotMake, WorldError; InvalidConfig if ``folder`` has an earlier run.

    ``made``: another class for the target, for tests.
    """
    check(scenario, target, duration_s)
    _check_unused(folder)
    (folder / scenario.path.name).write_bytes(scenario.path.read_bytes())
    make = made or target_class(target)
    run = Run(scenario, make(scenario, folder), seed=seed, duration_s=duration_s, folder=folder, say=say)
    outcome = await run.run()
    write(outcome, folder)
    return outcome


def write(outcome: Outcome, folder: Path) -> None:
    """The report for programs, and the picture."""
    report = json.dumps(outcome.to_json(), indent=1, ensure_ascii=False) + "\n"
    (folder / REPORT).write_text(report, encoding="utf-8")
    (folder / PICTURE).write_text(picture(outcome), encoding="utf-8")
