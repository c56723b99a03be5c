"""What was injected into a cluster through ``/v1``, written again: as a test in Python, and as a scenario of chaos.

Both texts have the same sequence of acts with the same pauses, and the words of ``world/faults.py``: each member of a
FaultSpec is written in both. What one of them cannot express is a comment in it, never left out silently.

Rules for this file: it decides nothing and waits for nothing; brokers get the numbers 1, 2 and so on, in the order of
their ids. Pauses in which nothing is wrong are shortened to IDLE_S.

``GET /v1/faults:script`` returns both. Each broker remembers what it was requested to inject
(``world/instruments.py``). Only with ``mk.testing.endpoints.enable=true``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, TypeAlias

import msgspec

from minikafka import __version__
from minikafka.addresses import is_number
from minikafka.config import BrokerConfig, table
from minikafka.faults import CLIENT
from minikafka.rest.host import Host
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.route import Json
from minikafka.rest.schema import many, nullable, text
from minikafka.rest.schema import table as table_of
from minikafka.rest.testing_hooks import AT_OR_ALL, HookCall, HookRoutes, OfBrokers
from minikafka.rest.topics import setting_text
from minikafka.types import NodeId
from minikafka.world.faults import ANYONE, BROKER, EVERY_API, FaultSpec, Link
from minikafka.world.instruments import INJECTIONS_MAX, Act, Injection

IDLE_S: Final = 5.0
BEGIN_S: Final = 2.0
"""When the first fault of a scenario happens: the load runs by then."""
REST_S: Final = 6.0
"""What a scenario's load goes on after the last fault."""
FAULT_S_MIN: Final = 0.1
BROKERS_MAX: Final = 9
PARTITIONS_MAX: Final = 100
DELAY_MS_MAX: Final = 60_000.0
"""Limits of a scenario (``chaos/scenario.py``, ``chaos/reading.py``)."""
NAME: Final = "injected"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the cluster."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The cluster in which it happened."""

    nodes: tuple[NodeId, ...]
    settings: Mapping[str, str]
    """Those that decide what faults bring about."""
    topics: tuple[Topic, ...]


# ---- what happened ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Fault:
    """A fault that was set, and until when it was in force."""

    name: str
    spec: FaultSpec
    links: tuple[str, ...]
    """Where it strikes; several if it was set at a broker that is at neither named end."""
    at_s: float
    is_alone: bool
    until_s: float | None = None


@dataclass(slots=True)
class _Moment:
    """An act with its place on the time axis."""

    at_s: float
    injection: Injection
    node: int = 0
    """The number of its broker here; 0: it concerns none, or one that is gone."""
    fault: _Fault | None = None
    """Of ``set`` and ``release``."""
    ended: list[_Fault] = field(default_factory=list)
    """The faults that it ends."""


_Key: TypeAlias = tuple[NodeId | None, int | None]
"""A fault's broker and its number there."""


@dataclass(slots=True)
class _Story:
    """The acts in order, with pauses shortened."""

    moments: list[_Moment] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _story_of(injections: Sequence[Injection], setup: Setup) -> _Story:
    story = _Story()
    numbers = {node: place for place, node in enumerate(setup.nodes, start=1)}
    if any(node != number for node, number in numbers.items()):
        known = ", ".join(f"{node} is {number}" for node, number in numbers.items())
        story.notes.append(f"Brokers are numbered from 1 here: {known}.")
    standing: dict[_Key, _Fault] = {}
    at_s, count = 0.0, 0
    before: Injection | None = None
    busy = _Busy()
    for injection in sorted(injections, key=lambda each: each.at_ms):
        if before is not None:
            pause_s = max(0.0, (injection.at_ms - before.at_ms) / 1000)
            at_s = round(at_s + min(pause_s, busy.rest_s(before.at_ms) + IDLE_S), 3)
        before = injection
        key = injection.broker, injection.fault
        moment = _Moment(at_s, injection, numbers.get(injection.broker or 0, 0))
        for each in _ended_by(injection, standing):
            ended = standing.pop(each)
            ended.until_s = at_s
            moment.ended.append(ended)
        if injection.act == "set" and injection.spec is not None:
            count += 1
            moment.fault = standing[key] = _fault_of(injection, injection.spec, f"fault_{count}", numbers, at_s)
        elif injection.act == "release":
            moment.fault = next((fault for at, fault in standing.items() if _is_meant(injection, at, fault)), None)
        busy.on(injection, any_left=bool(standing))
        story.moments.append(moment)
    return story


def _fault_of(injection: Injection, spec: FaultSpec, name: str, numbers: Mapping[NodeId, int], at_s: float) -> _Fault:
    spec = replace(spec, link=_renumbered(spec.link, numbers))
    node = None if injection.broker is None else numbers.get(injection.broker)
    links = (spec.link,) if node is None or not injection.is_alone else _narrowed(spec.link, str(node))
    return _Fault(name, spec, links, at_s, injection.is_alone)


def _is_meant(injection: Injection, key: _Key, fault: _Fault) -> bool:
    """Return True if a heal or a release names this fault. Brokers of one process share their faults."""
    node, number = key
    return (injection.broker in (None, node) or not fault.is_alone) and injection.fault in (None, number)


def _ended_by(injection: Injection, standing: Mapping[_Key, _Fault]) -> list[_Key]:
    """The faults that an act ends: a heal, the end of their broker's process, and a new fault of the same number."""
    if injection.act == "heal":
        return [key for key, fault in standing.items() if _is_meant(injection, key, fault)]
    if injection.act in ("kill", "stop"):
        return [key for key, fault in standing.items() if fault.is_alone and key[0] == injection.broker]
    key = injection.broker, injection.fault
    return [key] if injection.act == "set" and key in standing else []


class _Busy:
    """Until when something is wrong with the cluster."""

    def __init__(self) -> None:
        self._until_ms = 0.0
        self._down: set[NodeId | None] = set()
        self._ill: set[NodeId | None] = set()
        self._endless = False

    def on(self, injection: Injection, *, any_left: bool) -> None:
        if injection.act in ("kill", "stop"):
            self._down.add(injection.broker)
        elif injection.act == "start":
            self._down.discard(injection.broker)
        elif injection.act == "machine":
            self._ill.discard(injection.broker)
            if any(injection.facts.values()):
                self._ill.add(injection.broker)
        elif injection.spec is not None:
            self._endless = self._endless or injection.spec.for_ms is None
            self._until_ms = max(self._until_ms, injection.at_ms + (injection.spec.for_ms or 0.0))
        elif injection.act == "heal" and not any_left:
            self._endless, self._until_ms = False, 0.0

    def rest_s(self, now_ms: float) -> float:
        """For how long from now on."""
        if self._down or self._ill or self._endless:
            return math.inf
        return max(0.0, (self._until_ms - now_ms) / 1000)


def _renumbered(link: str, numbers: Mapping[NodeId, int]) -> str:
    source, target, both_ways = Link.parse(link)
    source, target = (str(numbers.get(int(end), end)) if is_number(end) else end for end in (source, target))
    return str(Link(source, target, both_ways))


def _narrowed(link: str, node: str) -> tuple[str, ...]:
    """The links of a fault that strikes only what one broker sends and receives."""
    source, target, both_ways = Link.parse(link)
    if node in (source, target):
        return (link,)
    ways = [(source, target), (target, source)] if both_ways else [(source, target)]
    found: dict[str, None] = {}
    for first, other in ways:
        if first in (ANYONE, BROKER):
            found[f"{node}>{other}"] = None
        if other in (ANYONE, BROKER):
            found[f"{first}>{node}"] = None
    return tuple(found) or (link,)


def _when(injections: Sequence[Injection]) -> str:
    return f"{len(injections)} act{'s' if len(injections) != 1 else ''}"


# ---- a test in Python ------------------------------------------------------------------------------------------------


def python_of(injections: Sequence[Injection], setup: Setup) -> str:
    """A module for pytest that does the same to a LocalCluster."""
    story = _story_of(injections, setup)
    body = list(_python_body(story))
    notes = "".join(f"\n{each}\n" for each in story.notes)
    uses_time = any("time.sleep" in each for each in body)
    topics = [f"kafka.create_topic({_text(each.name)}, {each.partitions}{_topic_more(each)})" for each in setup.topics]
    before, after = [], []
    for topic in setup.topics[:1]:
        before = [f'kafka.produce({_text(topic.name)}, b"before the faults")']
        after = [
            f"kafka.wait.isr({_text(topic.name)}, 0, size={topic.replication_factor})",
            f'kafka.produce({_text(topic.name)}, b"after the faults")',
        ]
    config = "\n".join(f"    {_text(name)}: {_text(value)}," for name, value in setup.settings.items())
    lines = [
        f'"""Faults that were injected through /v1 ({_when(injections)}), as a test, by minikafka {__version__}.',
        notes + '"""',
        "",
        *(["import time", ""] if uses_time else []),
        "from minikafka import LocalCluster",
        "",
        f"CONFIG = {{\n{config}\n}}" if config else "CONFIG: dict[str, str] = {}",
        "",
        "",
        "def test_injected_faults() -> None:",
        f"    with LocalCluster({len(setup.nodes)}, config=CONFIG) as cluster:",
        "        kafka = cluster.sync",
        *(f"        {each}" for each in (*topics, *before, *body)),
        "        cluster.make_whole()",
        *(f"        {each}" for each in after),
        "",
    ]
    return "\n".join(lines)


def _topic_more(topic: Topic) -> str:
    configs = ", ".join(f"{_text(name)}: {_text(value)}" for name, value in topic.configs.items())
    return f", replicas={topic.replication_factor}" + (f", config={{{configs}}}" if configs else "")


def _python_body(story: _Story) -> Iterator[str]:
    now_s = 0.0
    down: set[int] = set()
    for moment in story.moments:
        injection, node = moment.injection, moment.node
        if moment.at_s - now_s >= 0.001:
            yield f"time.sleep({_number(round(moment.at_s - now_s, 3))})"
            now_s = moment.at_s
        if injection.act == "set" and moment.fault is not None:
            for place, link in enumerate(moment.fault.links):
                call = call_of(replace(moment.fault.spec, link=link))
                yield f"{_variable(moment.fault, place)} = kafka.faults.{call}"
        elif injection.act == "release":
            yield from _python_release(moment)
        elif injection.act in ("kill", "stop") and node not in down:
            down.add(node)
            yield f"kafka.{'kill' if injection.act == 'kill' else 'terminate'}({node})"
        elif injection.act == "start" and node in down:
            down.discard(node)
            yield f"kafka.restart({node})"
        elif injection.act == "machine":
            yield f"# Left out: the machine of broker {node} became {json.dumps(injection.facts)} (PUT /v1/machine)."
        if injection.act != "set":
            yield from (
                f"{_variable(fault, place)}.heal()" for fault in moment.ended for place in range(len(fault.links))
            )


def _variable(fault: _Fault, place: int) -> str:
    return fault.name if not place else f"{fault.name}_{place + 1}"


def call_of(spec: FaultSpec) -> str:
    """The call of a method of ``cluster.faults`` that sets this fault."""
    arguments = [_text(spec.link)]
    if spec.error is not None:
        arguments.append(_text(spec.error))
    if spec.kind == "delay":
        arguments.append(_number(spec.delay_ms))
    if spec.kind == "reorder" and spec.delay_ms:
        arguments.append(f"delay_ms={_number(spec.delay_ms)}")
    if spec.jitter_ms:
        arguments.append(f"jitter_ms={_number(spec.jitter_ms)}")
    if spec.api != EVERY_API:
        arguments.append(f"api={_text(spec.api)}")
    if spec.message is not None:
        arguments.append(f"message={_text(spec.message)}")
    for name in ("count", "seed", "for_ms"):
        value = getattr(spec, name)
        if value is not None:
            arguments.append(f"{name}={_number(value)}")
    if spec.probability < 1:
        arguments.append(f"probability={spec.probability!r}")
    return f"{spec.kind}({', '.join(arguments)})"


def _python_release(moment: _Moment) -> Iterator[str]:
    facts, fault = moment.injection.facts, moment.fault
    if fault is None:
        return
    if facts.get("ids"):
        yield f"# Messages {facts['ids']} were chosen by their ids; {fault.name}.held() lists those of this run."
    given = [str(facts["count"])] if facts.get("count") else [str(len(facts["ids"]))] if facts.get("ids") else []
    flags = [f"{name}=True" for name in ("latest", "lose") if facts.get(name)]
    yield f"{fault.name}.release({', '.join([*given, *flags])})"


# ---- a scenario of chaos ---------------------------------------------------------------------------------------------


def chaos_of(injections: Sequence[Injection], setup: Setup) -> str:
    """A file for ``minikafka chaos run``, by the name ``injected.toml``. Without a step it has only comments."""
    story = _story_of(injections, setup)
    steps, left_out, end_s = _steps(story)
    head = [
        f"# Faults that were injected through /v1 ({_when(injections)}). Written by minikafka {__version__}.",
        f"# Save it as {NAME}.toml; minikafka chaos run {NAME}.toml plays it on processes.",
        *(f"# {each}" for each in (*story.notes, *left_out)),
    ]
    if len(setup.nodes) > BROKERS_MAX:
        return "\n".join(
            [*head, f"# A scenario has {BROKERS_MAX} brokers at most; this cluster has {len(setup.nodes)}.", ""]
        )
    if not steps:
        return "\n".join([*head, "# Nothing was injected that a scenario can repeat.", ""])
    topics = setup.topics or (Topic("orders", 1, min(3, len(setup.nodes)), {}),)
    producers = [
        f'  {{ name = "p{place}-", rate = 20, topic = {_text(each.name)} }},'
        for place, each in enumerate(topics, start=1)
    ]
    return "\n".join(
        [
            *head,
            f'name = "{NAME}"',
            'teaches = "what the injected faults bring about under load"',
            "",
            "[cluster]",
            f"brokers = {len(setup.nodes)}",
            f"settings = {_table(setup.settings)}",
            "topics = [",
            *(
                f"  {{ name = {_text(each.name)}, partitions = {min(each.partitions, PARTITIONS_MAX)}, "
                f"replication-factor = {each.replication_factor}, configs = {_table(each.configs)} }},"
                for each in topics
            ),
            "]",
            "",
            "[load]",
            f'duration = "{math.ceil(end_s + REST_S)}s"',
            "producers = [",
            *producers,
            "]",
            *(line for step in steps for line in ("", "[[steps]]", *step)),
            "",
        ]
    )


def _steps(story: _Story) -> tuple[list[list[str]], list[str], float]:
    """The steps, what is left out, and when the last one is over."""
    steps: list[list[str]] = []
    left_out: list[str] = []
    end_s = 0.0
    for place, moment in enumerate(story.moments):
        injection, node, at_s = moment.injection, moment.node, BEGIN_S + moment.at_s
        earlier, later = story.moments[:place], story.moments[place + 1 :]
        found: list[tuple[list[str], float | None]] = []
        if injection.act == "set" and moment.fault is not None:
            fault = moment.fault
            lasts_s = _lasts_s(fault)
            for link in fault.links:
                ends = _chaos_links(link)
                if not ends:
                    left_out.append(f"Left out: {fault.spec.kind} {link}; a scenario names no single client.")
                elif max(fault.spec.delay_ms, fault.spec.jitter_ms) > DELAY_MS_MAX:
                    left_out.append(f"Left out: {fault.spec.kind} {link}; a scenario delays by a minute at most.")
                else:
                    found += [(_messages_step(fault.spec, *each), lasts_s) for each in ends]
        elif injection.act in ("kill", "stop"):
            found.append(([f'what = "{injection.act}"', f'whom = "n{node}"'], _until_s(moment, "start", later)))
        elif injection.act == "release":
            left_out.append("Left out: the release of held messages; a step ends its hold with `for`.")
        elif injection.act == "machine":
            lasts_s = _until_s(moment, "machine", later)
            found += _machine_steps(injection.facts, node, lasts_s, _machine_before(earlier, injection.broker))
        for lines, lasts_s in found:
            lasts = [] if lasts_s is None else [f'for = "{_number(max(FAULT_S_MIN, round(lasts_s, 3)))}s"']
            steps.append([*lines, f'at = "{_number(round(at_s, 3))}s"', *lasts])
            end_s = max(end_s, at_s + (lasts_s or 0.0) + FAULT_S_MIN)
    return steps, list(dict.fromkeys(left_out)), end_s


def _lasts_s(fault: _Fault) -> float | None:
    by_itself = None if fault.spec.for_ms is None else fault.spec.for_ms / 1000
    healed = None if fault.until_s is None else fault.until_s - fault.at_s
    known = [each for each in (by_itself, healed) if each is not None]
    return min(known) if known else None


def _until_s(moment: _Moment, act: Act, later: Sequence[_Moment]) -> float | None:
    """How long it takes until the next such act at the same broker."""
    acts = (each for each in later if each.injection.act == act and each.injection.broker == moment.injection.broker)
    return next((each.at_s - moment.at_s for each in acts), None)


def _chaos_links(link: str) -> list[tuple[str, str]]:
    """The link as pairs of ``whom`` and ``to``; none if it names a client by its id."""
    source, target, both_ways = Link.parse(link)
    pairs = [
        (one, other) for one in _chaos_ends(source) for other in _chaos_ends(target) if one != CLIENT or other != CLIENT
    ]
    return list(dict.fromkeys([*pairs, *(((other, one) for one, other in pairs) if both_ways else ())]))


def _chaos_ends(end: str) -> tuple[str, ...]:
    if end == ANYONE:
        return ("all", CLIENT)
    if end == BROKER:
        return ("all",)
    if end == CLIENT:
        return (CLIENT,)
    return (f"n{end}",) if is_number(end) else ()


def _messages_step(spec: FaultSpec, whom: str, to: str) -> list[str]:
    lines = ['what = "messages"', f'kind = "{spec.kind}"', f'whom = "{whom}"', f'to = "{to}"']
    if spec.api != EVERY_API:
        lines.append(f'api = "{spec.api}"')
    if spec.message is not None:
        lines.append(f'message = "{spec.message}"')
    if spec.count is not None:
        lines.append(f"count = {spec.count}")
    if spec.error is not None:
        lines.append(f'error = "{spec.error}"')
    if spec.delay_ms:
        lines.append(f'delay = "{_number(spec.delay_ms)}ms"')
    if spec.jitter_ms:
        lines.append(f'jitter = "{_number(spec.jitter_ms)}ms"')
    if spec.probability < 1:
        lines.append(f"share = {spec.probability!r}")
    return lines


def _machine_before(earlier: Sequence[_Moment], broker: NodeId | None) -> Mapping[str, Any]:
    acts = (each.injection for each in reversed(earlier))
    return next((each.facts for each in acts if each.act == "machine" and each.broker == broker), {})


def _machine_steps(
    facts: Mapping[str, Any], node: int, lasts_s: float | None, before: Mapping[str, Any]
) -> Iterator[tuple[list[str], float | None]]:
    whom = f'whom = "n{node}"'
    if facts.get("disk_full"):
        yield ['what = "disk-full"', whom], lasts_s
    if facts.get("sync_delay_ms"):
        yield ['what = "slow-disk"', whom, f'delay = "{facts["sync_delay_ms"]}ms"'], lasts_s
    if facts.get("failing_syncs"):
        yield ['what = "fsync-fail"', whom], lasts_s
    jump_ms = facts.get("calendar_ahead_ms", 0) - before.get("calendar_ahead_ms", 0)
    if jump_ms:
        yield ['what = "clock-jump"', whom, f'by = "{jump_ms}ms"'], None


def _text(value: str) -> str:
    """A text as Python, TOML and JSON write it."""
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """Without an exponent, and without a fraction that is none."""
    return str(int(value)) if value == int(value) else f"{value:.6f}".rstrip("0")


def _table(values: Mapping[str, str]) -> str:
    inner = ", ".join(f"{_text(name)} = {_text(value)}" for name, value in values.items())
    return f"{{ {inner} }}" if inner else "{}"


TOPICS_MAX: Final = 10
INTERNAL: Final = "__"
"""How the names of Kafka's own topics begin."""

ALWAYS: Final = (
    "broker.session.timeout.ms",
    "broker.heartbeat.interval.ms",
    "replica.lag.time.max.ms",
    "replica.socket.timeout.ms",
)
IF_SET: Final = (
    "replica.fetch.wait.max.ms",
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "log.flush.interval.messages",
    "controller.quorum.election.timeout.ms",
    "controller.quorum.fetch.timeout.ms",
    "mk.fence.on.refused.connection",
)
"""Settings that decide what faults bring about. Scenarios have other times than Kafka's unless a file says them."""


def _script(bodies: Sequence[Any]) -> dict[str, Any]:
    injections = sorted((each for body in bodies for each in body["injections"]), key=lambda each: each["at_ms"])
    parsed = msgspec.convert(injections, list[Injection])
    setup = bodies[0]["setup"] if bodies else asdict(Setup(nodes=(), settings={}, topics=()))
    found = msgspec.convert(setup, Setup)
    script = _Script(python=python_of(parsed, found), chaos=chaos_of(parsed, found), setup=setup, injections=injections)
    return script.out()


def _setup_of(host: Host) -> Setup:
    image, known = host.image, table(BrokerConfig)
    values = {name: getattr(host.config, known[name].name) for name in (*ALWAYS, *IF_SET)}
    settings = {
        name: setting_text(value) for name, value in values.items() if name in ALWAYS or value != known[name].default
    }
    topics = [
        Topic(name, len(topic.partitions), max(len(each.replicas) for each in topic.partitions), dict(topic.configs))
        for name, topic in sorted(image.topics.items())
        if not name.startswith(INTERNAL)
    ]
    return Setup(nodes=tuple(sorted(image.brokers)), settings=settings, topics=tuple(topics[:TOPICS_MAX]))


class _Setup(Model):
    """The cluster now."""

    nodes: list[NodeId] = member("Its brokers.", [1, 2, 3])
    settings: dict[str, str] = member(
        table_of(text(), "Settings that decide what faults bring about."), {"replica.lag.time.max.ms": "30000"}
    )
    topics: list[Any] = member(many({"type": "object"}, f"The first {TOPICS_MAX}."), [])


class _Act(Model):
    """Something that was injected."""

    at_ms: int = member("When, in milliseconds since 1970.", 1_795_270_217_937)
    act: str = member("What.", "kill", enum=["set", "heal", "release", "kill", "stop", "start", "machine"])
    broker: NodeId | None = member("The broker that it concerns; null: all.", 3)
    fault: int | None = member("The fault's number at that broker; null: all of its faults.")
    spec: dict[str, Any] | None = member(
        nullable({"type": "object", "description": "Of `set`: the fault, as `POST /v1/faults` has it."})
    )
    is_alone: bool = member("The broker's process has its faults for itself.", example=True)
    facts: dict[str, Any] = member({"type": "object", "description": "Of `machine` and `release`: the request."}, {})


class _Script(OfBrokers):
    """What was injected, written again."""

    python: str = member("A module for pytest, with a `LocalCluster`.", "from minikafka import LocalCluster\n")
    chaos: str = member("A file for `minikafka chaos run`, by the name `injected.toml`.", 'name = "injected"\n')
    setup: Any = one(_Setup)
    injections: list[Any] = many_of(_Act, f"Oldest first, the latest {INJECTIONS_MAX} of each broker.")


ROUTES = HookRoutes("testing", testing=True)


@ROUTES.hook("GET /v1/faults:script", _Script.answer("The texts."), node_in=AT_OR_ALL, merge=_script)
async def get_script(call: HookCall) -> Json:
    """What requests to the broker have injected so far, as a test in Python and as a scenario of chaos.

    With `broker=all`, of all brokers that answer. Faults that code of the brokers' own process has set are left out.
    """
    injections = [asdict(each) for each in call.instruments.injections]
    return _script([{"setup": asdict(_setup_of(call.host)), "injections": injections}])
