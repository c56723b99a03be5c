"""A scenario from its file, checked as a whole: what cannot be played is refused before anything starts.

Fields are typed and located: ScenarioError names file, line, field and fix, and a field that no table has is a
mistake. What a fault takes is in minikafka/faults.py; nothing is guessed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from minikafka.chaos.outcome import REASONS
from minikafka.chaos.scenario import (
    DURATION_S_MAX,
    DURATION_S_MIN,
    NO_FIELD,
    SHORT_SESSIONS,
    Cluster,
    Expectation,
    Group,
    Jump,
    Load,
    Producers,
    Scenario,
    Settings,
    Span,
    Step,
    Topic,
    Words,
)
from minikafka.config import parse_broker, parse_topic
from minikafka.errors import InvalidConfig, InvalidRequest, did_you_mean, meant_or_listed
from minikafka.faults import ALL, CLIENT, FAULTS, MESSAGES, OTHER_NAMES, OTHERS, TO, WHOM, check_target, partition_of
from minikafka.hosting.secured import PROTOCOLS
from minikafka.types import TopicPartition
from minikafka.world.faults import KINDS

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-]+)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*(\"[^\"]*\"|[A-Za-z0-9_.\-]+)\s*=")
_TIME = re.compile(r"([+-]?\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LINE = re.compile(r"at line (\d+)")
_UNKNOWN = re.compile("Object contains unknown field `(.*)`")
_MISSING = re.compile("Object missing required field `(.*)`")
_REFUSAL = re.compile(r"(.*?)(?: - at `\$([^`]*)`)?", re.DOTALL)
"""What msgspec says of a value, and where it is, as ``.steps[0].at``."""


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

    def check_known(
        self, field: str, value: str, words: Iterable[str], others: Mapping[str, str] | None = None
    ) -> None:
        """ScenarioError when ``value`` is none of ``words``; ``others`` are words of other tools."""
        words = list(words)
        if value not in words:
            meant = (others or {}).get(value, value)
            raise self.wrong(field, f"{value!r} is unknown{meant_or_listed(meant, words)}")


LIBRARY: Final = Path(__file__).parent / "scenarios"
SUFFIX: Final = ".toml"

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
    lines = Lines(path, text)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        line = f":{found[1]}" if found else ""
        raise ScenarioError(f"{path}{line}: this is no TOML: {error}", field="") from None
    try:
        scenario = msgspec.convert(document, Scenario, dec_hook=_value)
    except msgspec.ValidationError as error:
        raise _located(str(error), document, lines) from None
    if scenario.name != path.stem:
        raise lines.wrong("name", f"{scenario.name!r}: the file is called {path.name}, so the name is {path.stem!r}")
    load = scenario.load
    scenario = replace(
        scenario,
        cluster=_cluster(scenario.cluster, document.get("cluster", {}), lines),
        load=replace(load, producers=load.producers or (Producers(),)),
        steps=tuple(
            _checked_step(step, given, f"steps[{number}]", lines)
            for number, (step, given) in enumerate(zip(scenario.steps, document.get("steps", ()), strict=True), start=1)
        ),
        path=path,
    )
    _check(scenario, lines)
    return scenario


# ---- values ----------------------------------------------------------------------------------------------------------

_TABLES: Final[Mapping[str, type[Struct]]] = {
    "": Scenario,
    "cluster": Cluster,
    "cluster.topics": Topic,
    "load": Load,
    "load.producers": Producers,
    "load.groups": Group,
    "steps": Step,
    "expect": Expectation,
}


def _value(kind: type, value: Any) -> Any:
    """The value of one of a scenario's own types. ValueError tells the form."""
    if kind is Words:
        rows = [value] if isinstance(value, str) else value
        if not isinstance(rows, list) or not all(isinstance(row, str) and row for row in rows):
            raise ValueError(f"{value!r}: a text, or a list of texts, is needed")
        return Words(rows)
    if kind is Settings:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r}: a table of settings is needed")
        return Settings((name, _setting(name, each)) for name, each in value.items())
    if not isinstance(value, str):
        raise TypeError(f"{value!r}: a time with its unit, as '5s' or '2s..6s', is needed")
    if kind is not Span:
        return kind(_time(value, may_be_negative=kind is Jump))
    low, dots, high = value.partition("..")
    span = Span(_time(low), _time(high if dots else low))
    if span.low > span.high:
        raise ValueError(f"{value!r}: the shorter time comes first")
    return span


def _setting(name: str, value: Any) -> str:
    if isinstance(value, dict | list):
        raise TypeError(f'{name} is {value!r}: write the name in quotes, as "{name}.…" = "…"')
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time(text: str, *, may_be_negative: bool = False) -> float:
    value = seconds_of(text)
    if value < 0 and not may_be_negative:
        raise ValueError(f"{text!r}: a time here is not negative")
    return value


def _located(text: str, document: Any, lines: Lines) -> ScenarioError:
    """What msgspec says of a document, with file, line and field."""
    refusal = _REFUSAL.fullmatch(text)
    said, where = (text, "") if refusal is None else (refusal[1], refusal[2] or "")
    field, value = "", document
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", where):
        field += f"[{int(index) + 1}]" if index else f".{name}" if field else name
        value = value[int(index) if index else name]
    if missing := _MISSING.fullmatch(said):
        return lines.wrong(f"{field}.{missing[1]}".lstrip("."), "is missing")
    if unknown := _UNKNOWN.fullmatch(said):
        table = _TABLES[re.sub(r"\[\d+\]", "", field)]
        known = [name for name in table.__struct_encode_fields__ if name != NO_FIELD]
        what = f"{unknown[1]!r} is unknown{meant_or_listed(unknown[1], known)}"
        return lines.wrong(f"{field}.{unknown[1]}".lstrip("."), what)
    is_limit = said.startswith("Expected") and ", got" not in said
    return lines.wrong(field, f"{said}, not {value!r}" if is_limit else said)


def _cluster(cluster: Cluster, given: Mapping[str, Any], lines: Lines) -> Cluster:
    """With its defaults, and checked."""
    lines.check_known("cluster.security-protocol", cluster.security_protocol, PROTOCOLS)
    settings = Settings({**SHORT_SESSIONS, **cluster.settings})
    try:
        parse_broker(settings)
    except InvalidConfig as error:
        raise _of_setting(error, "cluster.settings", lines) from None
    topics = []
    for number, topic in enumerate(cluster.topics or (Topic(name="orders"),), start=1):
        is_given = bool(cluster.topics) and "replication-factor" in given["topics"][number - 1]
        if is_given and topic.replication_factor > cluster.brokers:
            field = f"cluster.topics[{number}].replication-factor"
            raise lines.wrong(field, f"{topic.replication_factor}: there are {cluster.brokers} brokers")
        topics.append(replace(topic, replication_factor=min(topic.replication_factor, cluster.brokers)))
        try:
            parse_topic(topic.configs)
        except InvalidConfig as error:
            raise _of_setting(error, f"cluster.topics[{number}].configs", lines) from None
    return replace(cluster, settings=settings, topics=tuple(topics))


def _of_setting(error: InvalidConfig, field: str, lines: Lines) -> ScenarioError:
    return lines.wrong(f"{field}.{error.facts.get('setting', '')}".rstrip("."), error.message)


# ---- steps -----------------------------------------------------------------------------------------------------------

_OF_FAULT: Final = {"delay_ms": "delay", "jitter_ms": "jitter", "probability": "share"}
"""Member of a FaultSpec -> field of a step."""


def _checked_step(step: Step, given: Mapping[str, Any], place: str, lines: Lines) -> Step:
    """The step, whose fields fit together; ``given`` are those that the file has."""

    def wrong(field: str, message: str) -> ScenarioError:
        return lines.wrong(f"{place}.{field}", message)

    what = ", ".join(step.what)
    for word in step.what:
        lines.check_known(f"{place}.what", word, FAULTS, OTHER_NAMES)
    if not step.whom:
        if any(word != "rolling-restart" for word in step.what):
            raise wrong("whom", "is missing: a text, or a list of texts is needed")
        step = replace(step, whom=Words([ALL]))
    if step.at is None and step.every is None:
        raise wrong("at", "is missing: say when, at = '3s', or every = '5s', or both")
    if step.every is not None and step.every.low <= 0:
        raise wrong("every", "a pause between two faults is longer than nothing")
    for field in VALUE_FIELDS:
        takes = [FAULTS[word].takes.get(field) for word in step.what]
        if field in given and all(each is None for each in takes):
            owners = ", ".join(name for name, each in FAULTS.items() if field in each.takes)
            raise wrong(field, f"belongs to {owners}, not to {what}: leave it out")
        if field not in given and any(takes):
            raise wrong(field, f"is missing: {what} needs it")
    if "for" in given and not any(FAULTS[word].lasts for word in step.what):
        raise wrong("for", f"{what} is over at once: leave it out")
    if not step.share and "share" in given:
        raise wrong("share", "0 is no loss: leave the step out")
    if not step.by_s and "by" in given:
        raise wrong("by", "a jump by nothing is none: leave the step out")
    if MESSAGES in step.what:
        if len(set(step.what)) > 1:
            raise wrong("what", f"{MESSAGES} takes fields that other faults lack: give it a step of its own")
        lines.check_known(f"{place}.kind", step.kind, KINDS)
        try:
            step.fault_of_messages()
        except InvalidRequest as error:
            field = str(error.facts["field"])
            raise wrong(_OF_FAULT.get(field, field), error.message) from None
    if max(step.delay_s, step.jitter_s) > DELAY_S_MAX:
        raise wrong("delay", f"at most {DELAY_S_MAX:g} s is possible: use pause or cut")
    if abs(step.by_s) > BY_S_MAX:
        raise wrong("by", "a year is the most that a clock jumps here")
    whom = (*WHOM, CLIENT) if MESSAGES in step.what else WHOM
    ends: list[tuple[str, str, Iterable[str]]] = [("whom", word, whom) for word in step.whom]
    for field, word, words in ends + ([("to", step.to, (*WHOM, *TO))] if step.to else []):
        try:
            check_target(word, words)
        except ValueError as error:
            raise wrong(field, str(error)) from None
    return step


# ---- as a whole ------------------------------------------------------------------------------------------------------


def _check(scenario: Scenario, lines: Lines) -> None:
    duration_s = scenario.load.duration_s
    if not DURATION_S_MIN <= duration_s <= DURATION_S_MAX:
        raise lines.wrong("load.duration", f"{duration_s:g} s: from 1s to 7d is possible")
    for reason in scenario.expect.loss:
        lines.check_known("expect.loss", reason, REASONS)
    if not scenario.steps:
        raise lines.wrong("steps", "there is none: say what shall happen, with [[steps]]")
    topics = {topic.name for topic in scenario.cluster.topics}
    if len(topics) < len(scenario.cluster.topics):
        raise lines.wrong("cluster.topics", "two topics have one name")
    machines = [machine for each in scenario.load.producers for machine in each.machines()]
    if len(set(machines)) < len(machines):
        raise lines.wrong("load.producers", "two producers have one name: give the second entry another `name`")
    for number, producers in enumerate(scenario.load.producers, start=1):
        lines.check_known(f"load.producers[{number}].acks", producers.acks, ("all", "1", "0"))
        _check_topic(producers.topic, topics, f"load.producers[{number}].topic", lines)
    for number, group in enumerate(scenario.load.groups, start=1):
        _check_topic(group.topic, topics, f"load.groups[{number}].topic", lines)
    for number, step in enumerate(scenario.steps, start=1):
        _check_step_fits(step, f"steps[{number}]", scenario, lines)
    if scenario.fixed_s() > scenario.load.duration_s:
        raise lines.wrong(
            "load.duration",
            f"the load lasts {scenario.load.duration_s:g} s and the last step is over after {scenario.fixed_s():g} s:"
            " make it longer",
        )
    for reason in scenario.expect.loss:
        if not REASONS[reason].holds(scenario):
            raise lines.wrong("expect.loss", f"{reason!r} needs {REASONS[reason].needs}")


def _check_topic(topic: str, topics: set[str], field: str, lines: Lines) -> None:
    if topic not in topics:
        raise lines.wrong(field, f"there is no topic {topic!r}; [[cluster.topics]] has {', '.join(sorted(topics))}")


def _check_step_fits(step: Step, place: str, scenario: Scenario, lines: Lines) -> None:
    """Brokers and partitions that the step names exist."""
    known = set(scenario.cluster.names())
    ends = [("whom", text) for text in step.whom] + ([("to", step.to)] if step.to else [])
    for field, text in ends:
        for word in (each.strip() for each in text.split(",")):
            if ":" in word:
                name: TopicPartition = partition_of(word)
                if name not in known:
                    raise lines.wrong(f"{place}.{field}", f"there is no partition {name} in this cluster")
            elif word[1:].isdigit() and not 1 <= int(word[1:]) <= scenario.cluster.brokers:
                raise lines.wrong(f"{place}.{field}", f"{word}: brokers are n1 to n{scenario.cluster.brokers}")
            elif word in {OTHERS, CLIENT} and "," in text:
                raise lines.wrong(f"{place}.{field}", f"{word} stands alone")
