"""A scenario from its file, checked as a whole: what cannot be played is refused before anything starts.

Fields are typed and located: ScenarioError names file, line, field and fix, and a field that no reader asked for is a
mistake. What a fault takes is in minikafka/faults.py; nothing is guessed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from minikafka.chaos.outcome import REASONS
from minikafka.chaos.scenario import (
    DURATION_S_MAX,
    DURATION_S_MIN,
    SHORT_SESSIONS,
    Cluster,
    Expectation,
    Group,
    Load,
    Producers,
    Scenario,
    Span,
    Step,
    Topic,
)
from minikafka.config import parse_broker, parse_topic
from minikafka.errors import InvalidConfig, InvalidRequest, did_you_mean, meant_or_listed
from minikafka.faults import ALL, CLIENT, FAULTS, MESSAGES, OTHER_NAMES, OTHERS, TO, WHOM, check_target, partition_of
from minikafka.hosting.secured import PLAINTEXT, PROTOCOLS
from minikafka.types import TopicPartition
from minikafka.world.faults import COUNT_MAX, EVERY_API, KINDS, FaultSpec

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-]+)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*(\"[^\"]*\"|[A-Za-z0-9_.\-]+)\s*=")
_TIME = re.compile(r"([+-]?\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LINE = re.compile(r"at line (\d+)")


def seconds_of(text: str) -> float:
    """A time with its unit as seconds. ValueError tells the form."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r}: a time with its unit (ms, s, m, h, d) is needed, as '5s' or '200ms'")
    return float(found[1]) * _UNIT_S[found[2]]


class ScenarioError(InvalidConfig):
    """A scenario's file cannot be played; the message begins with file and line."""


class Lines:
    """In which line of the file a field stands."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self._of: dict[str, int] = {}
        counts: dict[str, int] = {}
        here = ""
        for number, line in enumerate(text.splitlines(), start=1):
            header, key = _HEADER.fullmatch(line), _KEY.match(line)
            if header is not None:
                here = header[2]
                if header[1] == "[[":
                    counts[here] = counts.get(here, 0) + 1
                    here = f"{here}[{counts[here]}]"
                self._of.setdefault(here, number)
            elif key is not None:
                name = key[1].strip('"')
                self._of.setdefault(f"{here}.{name}" if here else name, number)

    def wrong(self, field: str, message: str) -> ScenarioError:
        """The error for a field; of one that is not there, its table's line counts."""
        where = field
        while where and where not in self._of:
            where = where.rpartition("[" if where.endswith("]") else ".")[0]
        line = f":{self._of[where]}" if where else ""
        return ScenarioError(f"{self.path}{line}: {field}: {message}", field=field)


def parse(path: Path, text: str) -> Table:
    """The file's root table. ScenarioError when it is no TOML."""
    try:
        return Table(tomllib.loads(text), "", Lines(path, text))
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        line = f":{found[1]}" if found else ""
        raise ScenarioError(f"{path}{line}: this is no TOML: {error}", field="") from None


class Table:
    """A table of the file: ask for each field once, then :meth:`done`."""

    def __init__(self, members: Mapping[str, Any], place: str, lines: Lines) -> None:
        self._members = dict(members)
        self._asked: dict[str, None] = {}
        self._place = place
        self._lines = lines

    def wrong(self, name: str, message: str) -> ScenarioError:
        """The error for a member."""
        return self._lines.wrong(f"{self._place}.{name}" if self._place else name, message)

    def gives(self, name: str) -> bool:
        """Return True if the record is there."""
        return name in self._members

    def _take(self, name: str, kind: type | tuple[type, ...], what: str, default: Any) -> Any:
        self._asked[name] = None
        if name not in self._members:
            if default is ...:
                raise self.wrong(name, f"is missing: {what} is needed")
            return default
        value = self._members[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(name, f"{value!r}: {what} is needed")
        return value

    def text(self, name: str, default: Any = ..., *, one_of: Collection[str] = ()) -> str:
        """A string."""
        value = str(self._take(name, str, "a text in quotes", default))
        if one_of and name in self._members:
            self.known(name, value, one_of)
        return value

    def known(self, name: str, value: str, words: Iterable[str], others: Mapping[str, str] | None = None) -> None:
        """ScenarioError when ``value`` is none of ``words``; ``others`` are words of other tools."""
        words = list(words)
        if value in words:
            return
        meant = (others or {}).get(value, value)
        raise self.wrong(name, f"{value!r} is unknown{meant_or_listed(meant, words)}")

    def texts(self, name: str, default: Any = ...) -> tuple[str, ...]:
        """A string, or a list of such."""
        value = self._take(name, (str, list), "a text, or a list of texts", default)
        rows = [value] if isinstance(value, str) else list(value)
        if not all(isinstance(row, str) and row for row in rows):
            raise self.wrong(name, f"{value!r}: texts in quotes are needed")
        return tuple(rows)

    def whole(self, name: str, default: int, *, low: int, high: int) -> int:
        """A whole number."""
        value = self._take(name, int, "a whole number", default)
        if not low <= value <= high:
            raise self.wrong(name, f"{value}: from {low} to {high} is possible")
        return int(value)

    def number(self, name: str, default: Any = ..., *, low: float, high: float) -> float:
        """A number."""
        value = self._take(name, (int, float), "a number", default)
        if not low <= value <= high:
            raise self.wrong(name, f"{value}: from {low:g} to {high:g} is possible")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """``true`` or ``false``."""
        return bool(self._take(name, bool, "true or false", default))

    def seconds(self, name: str, default: Any = ..., *, may_be_negative: bool = False) -> float:
        """One time with its unit."""
        text = self._take(name, str, "a time with its unit, as '5s' or '200ms',", default)
        return self._seconds(name, text, may_be_negative=may_be_negative) if isinstance(text, str) else float(text)

    def span(self, name: str) -> Span | None:
        """A time, or two with ``..`` between them; None when it is not there."""
        text = self._take(name, str, "a time with its unit, as '5s' or '2s..6s',", None)
        if text is None:
            return None
        low, dots, high = text.partition("..")
        span = Span(self._seconds(name, low), self._seconds(name, high if dots else low))
        if span.low > span.high:
            raise self.wrong(name, f"{text!r}: the shorter time comes first")
        return span

    def _seconds(self, name: str, text: str, *, may_be_negative: bool = False) -> float:
        try:
            value = seconds_of(text)
        except ValueError as error:
            raise self.wrong(name, str(error)) from None
        if value < 0 and not may_be_negative:
            raise self.wrong(name, f"{text!r}: a time here is not negative")
        return value

    def settings(self, name: str) -> dict[str, str]:
        """A table of settings by Kafka's names; numbers and flags are taken as texts."""
        found = self._take(name, dict, "a table of settings", {})
        settings = {}
        for key, value in found.items():
            if isinstance(value, dict | list):
                raise self.wrong(f"{name}.{key}", f'{value!r}: write the name in quotes, as "{key}.…" = "…"')
            settings[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return settings

    def table(self, name: str) -> Table:
        """A table; an empty one when it is not there."""
        found = self._take(name, dict, f"a table [{name}]", {})
        return Table(found, f"{self._place}.{name}" if self._place else name, self._lines)

    def tables(self, name: str) -> list[Table]:
        """A list of tables, ``[[name]]``; counted from 1 in messages."""
        full = f"{self._place}.{name}" if self._place else name
        found = self._take(name, list, f"a list of tables [[{full}]]", [])
        if not all(isinstance(each, dict) for each in found):
            raise self.wrong(name, f"a list of tables [[{full}]] is needed")
        return [Table(each, f"{full}[{number}]", self._lines) for number, each in enumerate(found, start=1)]

    def done(self) -> None:
        """ScenarioError for a member that nobody has asked for."""
        for name in self._members:
            if name not in self._asked:
                self.known(name, name, list(self._asked))


LIBRARY: Final = Path(__file__).parent / "scenarios"
SUFFIX: Final = ".toml"

BROKERS_MAX: Final = 9
"""Each is a process of some 60 MB; more brokers make no more kinds of fault."""

RATE_MAX: Final = 20_000.0
BY_S_MAX: Final = 366 * 86_400.0
DELAY_S_MAX: Final = 60.0

VALUE_FIELDS: Final = ("clients", "to", "delay", "jitter", "share", "by", "kind", "api", "message", "count", "error")
"""Fields of a step that belong to some faults only."""


def library() -> list[Path]:
    """The files that come with minikafka, sorted."""
    return sorted(LIBRARY.glob(f"*{SUFFIX}"))


def find(name: str) -> Path:
    """A scenario of the library by its name, or any file by its path. ScenarioError when there is neither."""
    path = Path(name)
    if path.suffix == SUFFIX or "/" in name:
        if not path.is_file():
            raise ScenarioError(f"{name}: there is no such file", field="")
        return path
    path = LIBRARY / f"{name}{SUFFIX}"
    if not path.is_file():
        known = [each.stem for each in library()]
        hint = did_you_mean(name, known, count=3, otherwise=f"the library has {', '.join(known)}")
        raise ScenarioError(f"there is no scenario {name!r}{hint}", field="")
    return path


def read(path: Path) -> Scenario:
    """The scenario of a file. ScenarioError, OSError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: this is no text: {error}", field="") from error
    return scenario_of(path, text)


def scenario_of(path: Path, text: str) -> Scenario:
    """As :func:`read`, of a text; ``path`` is for messages, and its name is the scenario's."""
    root = parse(path, text)
    name = root.text("name")
    if name != path.stem:
        raise root.wrong("name", f"{name!r}: the file is called {path.name}, so the name is {path.stem!r}")
    scenario = Scenario(
        name=name,
        teaches=root.text("teaches"),
        source=root.text("source", ""),
        cluster=_cluster(root.table("cluster")),
        load=_load(root.table("load")),
        steps=tuple(_step(each) for each in root.tables("steps")),
        expect=_expectation(root.table("expect")),
        path=path,
    )
    root.done()
    _check(scenario, root)
    return scenario


def _cluster(table: Table) -> Cluster:
    brokers = table.whole("brokers", 3, low=1, high=BROKERS_MAX)
    settings = {**SHORT_SESSIONS, **table.settings("settings")}
    try:
        parse_broker(settings)
    except InvalidConfig as error:
        raise table.wrong(f"settings.{error.facts.get('setting', '')}".rstrip("."), error.message) from None
    topics = tuple(_topic(each, brokers) for each in table.tables("topics")) or Cluster().topics
    protocol = table.text("security-protocol", PLAINTEXT, one_of=PROTOCOLS)
    table.done()
    return Cluster(brokers=brokers, security_protocol=protocol, settings=settings, topics=topics)


def _topic(table: Table, brokers: int) -> Topic:
    topic = Topic(
        name=table.text("name"),
        partitions=table.whole("partitions", 3, low=1, high=100),
        replication_factor=table.whole("replication-factor", min(3, brokers), low=1, high=brokers),
        configs=table.settings("configs"),
    )
    table.done()
    try:
        parse_topic(topic.configs)
    except InvalidConfig as error:
        raise table.wrong(f"configs.{error.facts.get('setting', '')}".rstrip("."), error.message) from None
    return topic


def _load(table: Table) -> Load:
    load = Load(
        duration_s=table.seconds("duration", 20.0),
        producers=tuple(_producers(each) for each in table.tables("producers")) or Load().producers,
        groups=tuple(_group(each) for each in table.tables("groups")),
    )
    table.done()
    if not DURATION_S_MIN <= load.duration_s <= DURATION_S_MAX:
        raise table.wrong("duration", f"{load.duration_s:g} s: from 1s to 7d is possible")
    return load


def _producers(table: Table) -> Producers:
    producers = Producers(
        name=table.text("name", "p"),
        count=table.whole("count", 1, low=1, high=100),
        acks=table.text("acks", "all", one_of=("all", "1", "0")),
        rate=table.number("rate", 50.0, low=0.1, high=RATE_MAX),
        topic=table.text("topic", "orders"),
    )
    table.done()
    return producers


def _group(table: Table) -> Group:
    group = Group(
        name=table.text("name"),
        members=table.whole("members", 1, low=1, high=50),
        topic=table.text("topic", "orders"),
    )
    table.done()
    return group


def _expectation(table: Table) -> Expectation:
    expect = Expectation(loss=table.texts("loss", []), converge_s=table.seconds("converge", 60.0))
    for reason in expect.loss:
        table.known("loss", reason, REASONS)
    table.done()
    return expect


# ---- steps -----------------------------------------------------------------------------------------------------------


def _step(table: Table) -> Step:
    what = table.texts("what")
    for word in what:
        table.known("what", word, FAULTS, OTHER_NAMES)
    lasts, at, every = table.span("for"), table.span("at"), table.span("every")
    whom = table.texts("whom", [ALL] if all(word == "rolling-restart" for word in what) else ...)
    delay_s, jitter_s = table.seconds("delay", 0.0), table.seconds("jitter", 0.0)
    share = table.number("share", 0.0, low=0.0, high=1.0)
    step = Step(
        what=what,
        whom=whom,
        to=table.text("to", ""),
        at=at,
        every=every,
        lasts=lasts,
        clients=table.flag("clients", default=False),
        delay_s=delay_s,
        jitter_s=jitter_s,
        share=share,
        by_s=table.seconds("by", 0.0, may_be_negative=True),
        messages=_messages(table, delay_s, jitter_s, share),
    )
    table.done()
    _check_step(step, table)
    return step


_OF_FAULT: Final = {"delay_ms": "delay", "jitter_ms": "jitter", "probability": "share"}
"""Member of a FaultSpec -> field of a step."""


def _messages(table: Table, delay_s: float, jitter_s: float, share: float) -> FaultSpec | None:
    """The fault of a step whose `what` is `messages`; the other fields of a step are checked by :func:`_check_step`."""
    kind = table.text("kind", "")
    api, message, error = table.text("api", EVERY_API), table.text("message", ""), table.text("error", "")
    count = table.whole("count", 0, low=1 if table.gives("count") else 0, high=COUNT_MAX)
    if not table.gives("kind"):
        return None
    table.known("kind", kind, KINDS)
    try:
        return FaultSpec(
            kind=kind,  # type: ignore[arg-type]  # one of KINDS, as is checked above
            link="*>*",
            api=api,
            message=message or None,  # type: ignore[arg-type]  # checked by FaultSpec
            count=count or None,
            delay_ms=delay_s * 1000,
            jitter_ms=jitter_s * 1000,
            probability=share if table.gives("share") else 1.0,
            error=error or None,
        )
    except InvalidRequest as wrong:
        field = str(wrong.facts["field"])
        raise table.wrong(_OF_FAULT.get(field, field), wrong.message) from None


def _check_step(step: Step, table: Table) -> None:
    if step.at is None and step.every is None:
        raise table.wrong("at", "is missing: say when, at = '3s', or every = '5s', or both")
    if step.every is not None and step.every.low <= 0:
        raise table.wrong("every", "a pause between two faults is longer than nothing")
    for field in VALUE_FIELDS:
        takes = [FAULTS[word].takes.get(field) for word in step.what]
        if table.gives(field) and all(each is None for each in takes):
            raise table.wrong(field, f"belongs to {_with_field(field)}, not to {', '.join(step.what)}: leave it out")
        if not table.gives(field) and any(takes):
            raise table.wrong(field, f"is missing: {', '.join(step.what)} needs it")
    if table.gives("for") and not any(FAULTS[word].lasts for word in step.what):
        raise table.wrong("for", f"{', '.join(step.what)} is over at once: leave it out")
    if step.share == 0 and table.gives("share"):
        raise table.wrong("share", "0 is no loss: leave the step out")
    if step.by_s == 0 and table.gives("by"):
        raise table.wrong("by", "a jump by nothing is none: leave the step out")
    if MESSAGES in step.what and len(set(step.what)) > 1:
        raise table.wrong("what", f"{MESSAGES} takes fields that other faults lack: give it a step of its own")
    if max(step.delay_s, step.jitter_s) > DELAY_S_MAX:
        raise table.wrong("delay", f"at most {DELAY_S_MAX:g} s is possible: use pause or cut")
    if abs(step.by_s) > BY_S_MAX:
        raise table.wrong("by", "a year is the most that a clock jumps here")
    for word in step.whom:
        _check_target(word, "whom", table, (*WHOM, CLIENT) if MESSAGES in step.what else WHOM)
    if step.to:
        _check_target(step.to, "to", table, (*WHOM, *TO))


def _with_field(field: str) -> str:
    return ", ".join(name for name, each in FAULTS.items() if field in each.takes)


def _check_target(text: str, field: str, table: Table, words: Iterable[str]) -> None:
    try:
        check_target(text, words)
    except ValueError as error:
        raise table.wrong(field, str(error)) from None


# ---- as a whole ------------------------------------------------------------------------------------------------------


def _check(scenario: Scenario, root: Table) -> None:
    if not scenario.steps:
        raise root.wrong("steps", "there is none: say what shall happen, with [[steps]]")
    topics = {topic.name for topic in scenario.cluster.topics}
    if len(topics) < len(scenario.cluster.topics):
        raise root.wrong("cluster.topics", "two topics have one name")
    machines = [machine for each in scenario.load.producers for machine in each.machines()]
    if len(set(machines)) < len(machines):
        raise root.wrong("load.producers", "two producers have one name: give the second entry another `name`")
    for number, load in enumerate(scenario.load.producers, start=1):
        _check_topic(load.topic, topics, f"load.producers[{number}].topic", root)
    for number, group in enumerate(scenario.load.groups, start=1):
        _check_topic(group.topic, topics, f"load.groups[{number}].topic", root)
    for number, step in enumerate(scenario.steps, start=1):
        _check_step_fits(step, f"steps[{number}]", scenario, root)
    if scenario.fixed_s() > scenario.load.duration_s:
        raise root.wrong(
            "load.duration",
            f"the load lasts {scenario.load.duration_s:g} s and the last step is over after {scenario.fixed_s():g} s:"
            " make it longer",
        )
    for reason in scenario.expect.loss:
        if not REASONS[reason].holds(scenario):
            raise root.wrong("expect.loss", f"{reason!r} needs {REASONS[reason].needs}")


def _check_topic(topic: str, topics: set[str], field: str, root: Table) -> None:
    if topic not in topics:
        raise root.wrong(field, f"there is no topic {topic!r}; [[cluster.topics]] has {', '.join(sorted(topics))}")


def _check_step_fits(step: Step, place: str, scenario: Scenario, root: Table) -> None:
    """Brokers and partitions that the step names exist."""
    known = set(scenario.cluster.names())
    ends = [("whom", text) for text in step.whom] + ([("to", step.to)] if step.to else [])
    for field, text in ends:
        for word in (each.strip() for each in text.split(",")):
            if ":" in word:
                name: TopicPartition = partition_of(word)
                if name not in known:
                    raise root.wrong(f"{place}.{field}", f"there is no partition {name} in this cluster")
            elif word[1:].isdigit() and not 1 <= int(word[1:]) <= scenario.cluster.brokers:
                raise root.wrong(f"{place}.{field}", f"{word}: brokers are n1 to n{scenario.cluster.brokers}")
            elif word in {OTHERS, CLIENT} and "," in text:
                raise root.wrong(f"{place}.{field}", f"{word} stands alone")
