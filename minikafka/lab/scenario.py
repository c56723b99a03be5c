"""Scenarios: their files, the library of them by name, and how a scenario is played.

A file has a story in comments, commands, and what they print::

    # What the story is about.
    cluster brokers=2 names=A,B
    produce A m0 acks=1
    ---- truncation=high-watermark
    step  what happened ...
    ---- truncation=leader-epoch
    step  what happened ...

Each ``----`` begins one expected run; the words after it override options of ``cluster``. The library's files stand
in ``scenarios/`` beside this one; ``python -m tests.scenarios.rewrite`` rewrites the expectations: review the diff.

A name on a command line is the file's below ``scenarios/`` without its ending; ``-`` may stand for ``_``, the number in
front may be left out, and it may stand for all of the name where only one story has it. For an unknown name the error
has the nearest one. A path, and the name of a file here that ends in .txt, names a file outside of the library.

:class:`ScenarioRunner` plays one: it builds the lab cluster that ``cluster`` describes, carries out each command, then
what follows by itself, and keeps every step. What a command does is in ``verbs.py``; here is what is the same for all
of them: unknown options are refused, and the rules' events become sentences (DESIGN D9). An event that the table shows
anyway has no sentence; one that explains has.

Here is also the rule that production does not have: a follower that truncates to its own high watermark (Kafka before
KIP-101), so that its two failures can be played. S22 loses an acknowledged record, S23 leaves two replicas different
for ever. Nothing in ``replication/`` can be switched to it; a replica gets it from outside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from minikafka.config import parse_topic
from minikafka.errors import InvalidConfig, nearest
from minikafka.lab.control import Control, News, QuorumControl, ScriptedControl
from minikafka.lab.lab_cluster import LabCluster
from minikafka.lab.node import Node, Settings
from minikafka.lab.played import NodeEvent, RecordFates, Run, Step, View, views_of
from minikafka.lab.table import rendered
from minikafka.lab.verbs import Command, ScenarioError, Verbs, parsed
from minikafka.log.partition_log import PartitionLog
from minikafka.replication.follower import TruncateByLeaderEpoch, TruncationRule
from minikafka.types import NO_EPOCH, Epoch, EpochEnd, NodeId, Offset


class TruncateByHighWatermark:
    """Cut to the watermark on following, and tell the leader of no epoch, so that it checks none."""

    def on_follow(self, log: PartitionLog, high_watermark: Offset) -> Offset:
        return min(high_watermark, log.end_offset)

    def last_fetched_epoch(self, log: PartitionLog) -> Epoch:  # noqa: ARG002 - the point is that it does not use the log
        return NO_EPOCH

    def on_diverging(self, log: PartitionLog, leaders: EpochEnd) -> Offset:
        """Unreachable in practice: a fetch without an epoch never gets a diverging epoch."""
        return min(leaders.end_offset, log.end_offset)


TRUNCATIONS: Mapping[str, type[TruncationRule]] = {
    "leader-epoch": TruncateByLeaderEpoch,
    "high-watermark": TruncateByHighWatermark,
}
"""By the names that ``--truncation`` takes."""


NameOf = Callable[[NodeId], str]


def sentence(kind: str, facts: Mapping[str, Any], name_of: NameOf) -> str:
    """An event in words; empty for one that adds nothing."""

    def names(nodes: Iterable[NodeId]) -> str:
        return ",".join(map(name_of, nodes))

    match kind:
        case "hw_advanced":
            has = "has" if len(facts["isr"]) == 1 else "have"
            return f"HW {facts['old']}→{facts['new']}: {names(facts['isr'])} {has} all below it"
        case "follower_hw_changed" if facts["new"] < facts["old"]:
            return f"HW goes back {facts['old']}→{facts['new']}"
        case "tail_truncated":
            below = ", below its HW" if facts["below_high_watermark"] else ""
            return f"cuts its log {facts['old']}→{facts['new']}{below}"
        case "log_restarted" if "epoch" in facts:
            return f"empties its log, which starts at {facts['new']} now"
        case "torn_tail_dropped":
            return f"recovery drops {facts['size']} bytes: {facts['reason']}"
        case "isr_proposed" if facts["old"] != facts["new"]:
            return f"wants ISR {names(facts['old'])} → {names(facts['new'])}"
        case "became_leader":
            return f"leads in epoch {facts['epoch']} from offset {facts['leo']}"
        case "became_follower":
            return f"follows {name_of(facts['leader'])} in epoch {facts['epoch']}"
        case _:
            return ""


CONTROLS: Final = ("script", "quorum")
"""By the names that ``--control`` takes."""

OWN_OPTIONS: Final = {"brokers", "names", "replicas", "control", "truncation", "eligible.leader.replicas.enable"} | {
    "replica.lag.time.max.ms",
    "replica.fetch.wait.max.ms",
}
"""Options of ``cluster`` that are no settings of the topic; all others are."""

BROKERS_MAX: Final = 100


def built(command: Command, lines: list[str], events: list[NodeEvent]) -> LabCluster:
    """The lab cluster; what its nodes tell goes to ``lines`` as sentences and to ``events``. Raises ScenarioError."""
    if command.words:
        raise command.fail(f"{' '.join(command.words)}: brokers=N is needed, and names=A,B,...")
    brokers = command.number("brokers", 0, least=1, most=BROKERS_MAX)
    names = _names(command, "names", ",".join(map(str, range(1, brokers + 1))))
    if len(names) != brokers:
        raise command.fail(f"brokers={brokers}, names={','.join(names)}: as many names are needed", "names")
    by_name = {name: node for node, name in enumerate(names, start=1)}
    assigned = _names(command, "replicas", ",".join(names))
    if not by_name.keys() >= set(assigned):
        raise command.fail(f"replicas={','.join(assigned)}: some of {','.join(names)} are needed", "replicas")
    replicas: tuple[NodeId, ...] = tuple(by_name[name] for name in assigned)
    controlled = command.choice("control", CONTROLS, "script")
    elr = command.choice("eligible.leader.replicas.enable", ("true", "false"), "true") == "true"
    settings = _settings(command)
    control: Control = (
        ScriptedControl(replicas) if controlled == "script" else QuorumControl(replicas, settings.topic, elr=elr)
    )
    nodes = [
        Node(node, names[node - 1], settings, _sink(names[node - 1], names, lines, events)) for node in sorted(replicas)
    ]
    epochs = control.news().broker_epochs
    for node in nodes:
        node.broker_epoch = epochs[node.id]
    return LabCluster(nodes, control, lines)


def _names(command: Command, option: str, default: str) -> list[str]:
    names = command.options.get(option, default).split(",")
    if "" in names or len(set(names)) < len(names):
        raise command.fail(f"{option}={','.join(names)}: names with a comma between them are needed, each once", option)
    return names


def _settings(command: Command) -> Settings:
    """Of all brokers and of the topic."""
    truncation = command.choice("truncation", TRUNCATIONS, "leader-epoch")
    lag_ms = command.number("replica.lag.time.max.ms", 30_000, least=0)
    wait_ms = command.number("replica.fetch.wait.max.ms", 500, least=0)
    try:
        topic = parse_topic({name: text for name, text in command.options.items() if name not in OWN_OPTIONS})
    except InvalidConfig as error:
        raise command.fail(error.message, str(error.facts.get("setting"))) from error
    return Settings(
        topic=topic,
        lag_time_max_s=lag_ms / 1000,
        fetch_wait_max_s=wait_ms / 1000,
        truncation=TRUNCATIONS[truncation](),
    )


def _sink(name: str, names: Sequence[str], lines: list[str], events: list[NodeEvent]) -> Callable[..., None]:
    """Where the rules of the node called ``name`` tell their events."""

    def name_of(node: NodeId) -> str:
        return names[node - 1] if 1 <= node <= len(names) else "nobody"

    def sink(kind: str, /, **facts: object) -> None:
        events.append(NodeEvent(name, kind, facts))
        text = sentence(kind, facts, name_of)
        if text:
            lines.append(f"{name}: {text}")

    return sink


Build = Callable[[Command, list[str], list[NodeEvent]], LabCluster]
""":func:`built`, or what makes another cluster of the same nodes."""

# A command's own consequences (parked fetches, proposals) end soon, or there is a bug in the scenario or in the lab.
FOLLOW_UPS_MAX = 20


def play(commands: Sequence[tuple[int, str]], overrides: Mapping[str, str], build: Build = built) -> Run:
    """Play (line number, command) pairs; ``overrides`` win over the options of ``cluster``. Raises ScenarioError."""
    taken_apart = [parsed(line, text) for line, text in commands]
    if not taken_apart or taken_apart[0].verb != "cluster":
        raise ScenarioError("a scenario begins with: cluster brokers=N")
    first, *others = taken_apart
    player = ScenarioRunner(replace(first, options={**first.options, **overrides}, overridden=overrides), build)
    for command in others:
        player.play(command)
    return player.finish()


class ScenarioRunner:
    """Plays one scenario."""

    def __init__(self, command: Command, build: Build) -> None:
        self._lines: list[str] = []
        self._events: list[NodeEvent] = []
        self._line = command.line
        self._run = Run(command.options)
        self.lab = build(command, self._lines, self._events)
        self._verbs = Verbs(self.lab)
        self._fates = RecordFates(self.lab)
        self._seen: Mapping[str, View] = {}
        for node in self.lab.nodes.values():
            node.start()
        self.lab.spread()
        self._record("all start: empty logs", with_lines=False)

    def play(self, command: Command) -> None:
        """One line, and what follows from it by itself."""
        self._line = command.line
        state = self.lab.control.news()
        what = self._verbs.do(command)
        self.lab.settle_producers()
        self._say_state_if_new(state)
        self._record(what)
        for _ in range(FOLLOW_UPS_MAX):
            if not self._follow_up():
                return
        raise command.fail("it has no end")

    def finish(self) -> Run:
        """The verdict."""
        leader, run = self.lab.leader(), self._run
        run.leader = leader.name if leader is not None else ""
        run.lost, run.diverged = self._fates.lost(), self._fates.diverged()
        return run

    # ---- recording ---------------------------------------------------------------------------------------------------

    def _record(self, what: str, *, with_lines: bool = True) -> None:
        now = views_of(self.lab)
        step = Step(
            number=len(self._run.steps),
            line=self._line,
            what=what,
            lines=tuple(self._lines) if with_lines else (),
            events=tuple(self._events),
            before=self._seen,
            after=now,
        )
        self._run.steps.append(step)
        self._fates.look(step.number)
        self._seen = now
        self._lines.clear()
        self._events.clear()

    def _say_state_if_new(self, old: News) -> None:
        if self.lab.control.news().state != old.state:
            self._verbs.say_state()

    def _follow_up(self) -> bool:
        """One consequence as a step of its own; False when there is none left."""
        lab = self.lab
        state = lab.control.news()
        fetch = lab.ready()
        if fetch is not None:
            lab.answer_parked(fetch)
            lab.deliver(fetch)
            what = f"{lab.name(fetch.node)}'s parked fetch is answered"
        else:
            waiting = [node for node in lab.proposals if lab.nodes[node].connected]
            if not waiting or not self._verbs.proposals_flow:
                return False
            what = self._verbs.settle_proposal(lab.nodes[waiting[0]])
        lab.settle_producers()
        self._say_state_if_new(state)
        self._record(what)
        return True


LIBRARY = Path(__file__).parent / "scenarios"
RULE = "----"


@dataclass(frozen=True, slots=True)
class Expected:
    """One run as the file has it."""

    options: tuple[tuple[str, str], ...]
    text: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file, read."""

    name: str
    head: str
    """Everything before the first rule, as written."""
    expected: tuple[Expected, ...]

    def play(self, options: tuple[tuple[str, str], ...] = ()) -> Run:
        """Play it, with these options over its own."""
        return play(list(self.commands()), dict(options))

    def options(self) -> dict[str, str]:
        """What its ``cluster`` says."""
        _, first = next(self.commands(), (0, ""))
        return dict(word.split("=", 1) for word in first.split() if "=" in word)

    def commands(self) -> Iterator[tuple[int, str]]:
        """Its commands with the numbers of their lines."""
        for number, line in enumerate(self.head.splitlines(), start=1):
            text = line.partition("#")[0].strip()
            if text:
                yield number, text

    def refreshed(self) -> str:
        """The file's text with what it prints now; a file without any rule gets one."""
        runs = [each.options for each in self.expected] or [()]
        parts = [self.head.rstrip("\n") + "\n"]
        for options in runs:
            parts.append(" ".join([RULE, *(f"{name}={text}" for name, text in options)]) + "\n")
            parts.append(rendered(self.play(options)))
        return "".join(parts)


def read(path: Path) -> Scenario:
    """Read one file."""
    head: list[str] = []
    runs: list[tuple[tuple[tuple[str, str], ...], list[str]]] = []
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows' editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: this is no text: {error}") from error
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if line.split(" ")[0].strip() == RULE:
            command = parsed(number, line)
            if command.words:
                raise command.fail(f"{' '.join(command.words)}: KEY=VALUE is needed")
            runs.append((tuple(command.options.items()), []))
        elif runs:
            runs[-1][1].append(line)
        else:
            head.append(line)
    return Scenario(name_of(path), "".join(head), tuple(Expected(options, "".join(lines)) for options, lines in runs))


def library() -> list[Path]:
    """All files of the library, sorted."""
    return sorted(LIBRARY.rglob("*.txt"))


_NUMBER = re.compile(r"^s\d+_")


def name_of(path: Path) -> str:
    """The name of a file of the library: its path there, without the ending; of another file its own."""
    inside = path.relative_to(LIBRARY) if path.is_relative_to(LIBRARY) else Path(path.name)
    return inside.with_suffix("").as_posix()


def names() -> list[str]:
    """All names of the library."""
    return list(map(name_of, library()))


def short_name(name: str) -> str:
    """The name as people type it, without the number that sorts the file: ``s22_data_loss`` is ``data-loss``."""
    return _NUMBER.sub("", name).replace("_", "-")


def find(name: str, others: Iterable[str] = ()) -> Scenario:
    """The story of that name, or in that file. Raises ScenarioError with the nearest names, also among ``others``."""
    path = Path(name)
    if path.suffix == ".txt" and path.is_file():
        return read(path)  # also if it has the name of a story: it may be a changed copy of that story
    known = dict(zip(names(), library(), strict=True))
    wanted = name.removesuffix(".txt").replace("-", "_").lower()
    by_last = [
        each
        for each in known
        if wanted in {each, each.rpartition("/")[2], each.partition("_")[0], _NUMBER.sub("", each)}
    ]
    if wanted in known or len(by_last) == 1:
        return read(known.get(wanted) or known[by_last[0]])
    if path.is_file():
        return read(path)
    spelled = {each: short_name(each) for each in known} | {each.replace("-", "_"): each for each in others}
    spelled |= {short: short for short in spelled.values()}
    near = nearest(wanted, spelled, count=3, cutoff=0.5) or by_last
    hint = (
        f"; did you mean {' or '.join(dict.fromkeys(spelled[each] for each in near))}?"
        if near
        else "; `minikafka lab list` shows all"
    )
    raise ScenarioError(f"there is no scenario {name}, and no such file{hint}")


def story(scenario: Scenario) -> str:
    """The first sentence of the comment on top, without the number that it may begin with."""
    text = re.sub(r"^(S\d|KIP-|KAFKA-)[^:]*: ", "", _comment(scenario).partition("\n")[0])
    sentence = re.match(r".+?\.(?=\s|$)", text)
    summary = (sentence.group() if sentence else text).rstrip(":.")
    # A setting keeps its small letters.
    return summary if "=" in summary.partition(" ")[0] else summary[:1].upper() + summary[1:]


def references(scenario: Scenario) -> list[str]:
    """The KIPs and issues of Kafka that the comment on top names."""
    return list(dict.fromkeys(re.findall(r"\b(?:KIP|KAFKA)-\d+\b", _comment(scenario))))


def _comment(scenario: Scenario) -> str:
    """The comment on top, a paragraph a line."""
    paragraphs = [""]
    for line in scenario.head.splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("#").strip()
        if text:
            paragraphs[-1] = f"{paragraphs[-1]} {text}".lstrip()
        else:
            paragraphs.append("")
    return "\n".join(paragraphs)
