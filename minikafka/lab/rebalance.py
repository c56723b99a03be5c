"""The rebalance as a story: three members share six partitions, one dies, one joins, partitions are added.

Played in the simulator, with the production brokers and consumers, in virtual time and always from the same seed: the
other stories of the lab carry single requests over the rules, but a group's story is made of heartbeats, timeouts and
rounds, which are the drivers'.

Rules for this file: it reports the events of members and coordinator in order. A partition *stands still* from the
moment its member gives it up, or dies, until a member has it again; what nobody had before does not stand still.

With the assignor ``uniform`` the members use the consumer protocol (KIP-848): the coordinator assigns.

It is shown as a timeline, as what stood still, or as assignors side by side; as rows and as JSON. A cell has what
changed; times are virtual seconds since the members started.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from minikafka.client.admin import AdminClient
from minikafka.client.consumer import Consumer
from minikafka.client.settings import AdminConfig, ConsumerConfig
from minikafka.client.structs import ConsumerRebalanceListener
from minikafka.errors import one_is_needed
from minikafka.groups.assignors import ASSIGNORS
from minikafka.lab.verbs import ScenarioError
from minikafka.sim.cluster import SimCluster
from minikafka.sim.world import Event, SimWorld
from minikafka.types import TopicPartition

NAME: Final = "rebalance"
STORY: Final = "Three members share six partitions; one dies, one joins, partitions are added"
REFERENCES: Final = ("KIP-429", "KIP-848")

UNIFORM: Final = "uniform"
"""The coordinator's assignor in the consumer protocol."""
STORY_ASSIGNORS: Final = (*ASSIGNORS, UNIFORM)
COMPARED: Final = ("range", "cooperative-sticky", UNIFORM)
"""An eager rebalance, a cooperative one, and the consumer protocol."""

TOPIC, GROUP = "orders", "g"
SEED = 1
BROKERS = 3
PARTITIONS, PARTITIONS_LATER = 6, 8
FIRST, LATER = ("c1", "c2", "c3"), "c4"
SETTLED_WITHIN_S = 120.0
"""Besides the times that are chosen."""
PAUSE_S = 5.0
"""Between a group that has settled and what is done to it next."""

HEARTBEATS: Final = "mk.group.consumer.heartbeats.per.second"

OPTIONS: Final[Mapping[str, str]] = {
    "assignor": "range",
    "session.timeout.ms": "10000",
    "heartbeat.interval.ms": "3000",
    HEARTBEATS: "50",
    "metadata.max.age.ms": "5000",
    "group.initial.rebalance.delay.ms": "3000",
}
"""What may be said otherwise: Kafka's defaults, with two exceptions. Partitions are looked for every 5 s (the age of
metadata), and members of the consumer protocol heartbeat as often as our brokers want by default."""

HALF_AN_HOUR_MS = 1_800_000
LIMITS: Final[Mapping[str, tuple[int, int]]] = {
    "session.timeout.ms": (6_000, HALF_AN_HOUR_MS),
    "heartbeat.interval.ms": (1, 100_000),
    HEARTBEATS: (0, 1_000_000),
    "metadata.max.age.ms": (1, HALF_AN_HOUR_MS),
    "group.initial.rebalance.delay.ms": (0, HALF_AN_HOUR_MS),
}
"""Sessions: the brokers' group.min and group.max.session.timeout.ms. Heartbeats: within the rebalance timeout."""

Owners = Mapping[str, tuple[int, ...]]
"""Member -> the partitions that it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line of the timeline."""

    at_s: float
    what: str
    generation: int
    state: str
    owners: Owners
    """After it, of every member that lives."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """What one thing that was done to the group cost."""

    cause: str
    at_s: float
    settled_s: float
    """Seconds until every partition had its owner again, and the group was stable."""
    generations: tuple[int, int]
    """Before and after."""
    stopped_s: Mapping[int, float]
    """Partition -> seconds for which it stood still, of those that did."""
    partitions: int
    """How many were read before."""

    @property
    def longest_s(self) -> float:
        return max(self.stopped_s.values(), default=0.0)

    @property
    def together_s(self) -> float:
        """Partition-seconds."""
        return sum(self.stopped_s.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A whole run."""

    options: Mapping[str, str]
    moments: tuple[Moment, ...]
    stops: tuple[Stop, ...]


def play(options: Mapping[str, str]) -> Story:
    """Play it. ScenarioError for an option that it does not have, or an assignor that nobody knows."""
    chosen = dict(OPTIONS)
    for name, value in options.items():
        if name not in OPTIONS:
            raise ScenarioError(f"{NAME} has no option {name}: {one_is_needed(OPTIONS, name)}")
        low, high = LIMITS.get(name, (0, 0))
        if name in LIMITS and not (re.fullmatch("[0-9]{1,9}", value) and low <= int(value) <= high):
            unit = "heartbeats" if name == HEARTBEATS else "milliseconds"
            raise ScenarioError(f"{name}={value}: a number of {unit} from {low} to {high} is needed")
        chosen[name] = value
    if chosen["assignor"] not in STORY_ASSIGNORS:
        raise ScenarioError(f"assignor={chosen['assignor']}: {one_is_needed(STORY_ASSIGNORS, chosen['assignor'])}")
    with SimWorld(SEED) as sim:
        settings = {
            "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": chosen["group.initial.rebalance.delay.ms"],
        }
        if chosen["assignor"] == UNIFORM:
            settings |= {
                "group.consumer.session.timeout.ms": chosen["session.timeout.ms"],
                "group.consumer.heartbeat.interval.ms": chosen["heartbeat.interval.ms"],
                HEARTBEATS: chosen[HEARTBEATS],
            }
        cluster = SimCluster(sim, brokers=BROKERS, settings=settings)
        cluster.boot()
        cluster.settle()
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        cluster.settle()
        stage = _Stage(cluster, chosen)
        stage.play()
        return Story(options=chosen, moments=tuple(stage.moments), stops=tuple(stage.stops))


@dataclass(eq=False)
class _Member(ConsumerRebalanceListener):
    """One consumer on a machine of its own, and what its listener received."""

    stage: _Stage
    name: str
    consumer: Consumer
    owned: tuple[int, ...] = ()

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self._lacks(_numbers(revoked), "gives up")

    def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        self._lacks(_numbers(lost), "has lost")

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        if assigned:
            self.stage.names[self.consumer.group_metadata().member_id] = self.name
            numbers = _numbers(assigned)
            self._has({*self.owned, *numbers}, f"{self.name} reads {numbers_text(numbers)}")

    def _lacks(self, numbers: list[int], what: str) -> None:
        self._has(set(self.owned).difference(numbers), f"{self.name} {what} {numbers_text(numbers)}")

    def _has(self, numbers: Iterable[int], what: str) -> None:
        self.owned = tuple(sorted(numbers))
        self.stage.owners_changed(what)

    async def live(self) -> None:
        """Ask for records for ever."""
        self.consumer.subscribe((TOPIC,), listener=self)
        await self.consumer.start()
        while True:
            await self.consumer.getmany(timeout_ms=200)


@dataclass(eq=False)
class _Stage:
    """The cluster, the members, and the timeline while it grows."""

    cluster: SimCluster
    options: Mapping[str, str]
    moments: list[Moment] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self.names: dict[str, str] = {}
        """By member id: the client's name, once it has partitions."""
        self._state, self._generation = "", 0
        self._began_s = self.cluster.sim.loop.now
        self._free_since: dict[int, float] = {}
        self._stopped_s: dict[int, float] = {}
        self.cluster.sim.observers.append(self._observe)

    # ---- the script --------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """All of it."""
        self._start(f"{', '.join(FIRST)} start", *FIRST)
        self._settle(PARTITIONS)
        self._do(f"{FIRST[1]} is killed", lambda what: self._kill(what, FIRST[1]), PARTITIONS)
        self._do(f"{LATER} starts", lambda what: self._start(what, LATER), PARTITIONS)
        added = PARTITIONS_LATER - PARTITIONS
        self._do(f"{added} partitions are added", self._add_partitions, PARTITIONS_LATER)

    def _do(self, what: str, act: Callable[[str], None], partitions: int) -> None:
        """Do something to the group, which also tells it, and measure until the group has settled."""
        self.cluster.run_for(PAUSE_S)
        began, before = self._now(), self._generation
        readers = len(_all_of(self._owners()))
        self._stopped_s.clear()
        self._free_since.clear()
        act(what)
        self._settle(partitions)
        self.stops.append(
            Stop(
                cause=what,
                at_s=began,
                settled_s=self._now() - began,
                generations=(before, self._generation),
                stopped_s=dict(sorted(self._stopped_s.items())),
                partitions=readers,
            )
        )

    def _start(self, what: str, *names: str) -> None:
        for name in names:
            self._members[name] = _Member(self, name, Consumer(self._config(name), self.cluster.sim.of(name)))
        self._tell(what)
        for name in names:
            self.cluster.sim.spawn(name, self._members[name].live())

    def _config(self, name: str) -> ConsumerConfig:
        protocol: dict[str, Any] = {
            "partition_assignment_strategy": (self.options["assignor"],),
            "session_timeout_ms": int(self.options["session.timeout.ms"]),
            "heartbeat_interval_ms": int(self.options["heartbeat.interval.ms"]),
        }
        if self.options["assignor"] == UNIFORM:
            protocol = {"group_protocol": "consumer", "group_remote_assignor": UNIFORM}
        return ConsumerConfig(
            bootstrap_servers=self.cluster.bootstrap,
            group_id=GROUP,
            client_id=name,
            metadata_max_age_ms=int(self.options["metadata.max.age.ms"]),
            **protocol,
        )

    def _kill(self, what: str, name: str) -> None:
        self.cluster.sim.kill(name)
        del self._members[name]
        self.owners_changed(what)

    def _add_partitions(self, what: str) -> None:
        self._tell(what)
        admin = AdminClient(AdminConfig(bootstrap_servers=self.cluster.bootstrap), self.cluster.asking_world())
        self.cluster.run(self._grown(admin))

    @staticmethod
    async def _grown(admin: AdminClient) -> None:
        await admin.start()
        await admin.create_partitions({TOPIC: PARTITIONS_LATER})
        await admin.close()

    def _settle(self, partitions: int) -> None:
        """Every member has its share of all partitions, and the group is stable."""
        low, high = partitions // len(self._members), -(-partitions // len(self._members))

        def met() -> bool:
            owners = self._owners()
            fair = all(low <= len(each) <= high for each in owners.values())
            return fair and self._state == "Stable" and sorted(_all_of(owners)) == list(range(partitions))

        times_s = sum(int(value) for name, value in self.options.items() if name.endswith(".ms")) / 1000
        self.cluster.until(met, SETTLED_WITHIN_S + times_s, f"{partitions} partitions to be shared")

    # ---- the timeline ------------------------------------------------------------------------------------------------

    def owners_changed(self, what: str) -> None:
        """A member has given up or taken over a partition: note which partitions are read by nobody."""
        now, read = self._now(), set(_all_of(self._owners()))
        was = set(_all_of(self.moments[-1].owners))
        for number in sorted(was - read):
            self._free_since[number] = now
        for number in sorted(read & self._free_since.keys()):
            since = self._free_since.pop(number)
            self._stopped_s[number] = self._stopped_s.get(number, 0.0) + now - since
        self._tell(what)

    def _observe(self, event: Event) -> None:
        facts = event.facts
        if facts.get("group") != GROUP:
            return
        why = str(facts.get("why", ""))
        if event.kind == "group_state_changed":
            self._state, self._generation = str(facts["new"]), int(str(facts["generation"]))
            self._tell(f"group: {facts['old']} → {facts['new']}", why)
        elif event.kind == "group_member_left":
            self._tell(f"group: {facts['member']} is no member any more", why)
        elif event.kind == "group_rejoin":
            self._tell(f"{event.node} joins again", why)
        elif event.kind == "group_assigned":
            self._tell(f"{event.node} leads, and deals by {facts['assignor']}", _dealt(facts["members"]))

    def _tell(self, what: str, why: str = "") -> None:
        self.moments.append(
            Moment(
                at_s=self._now(),
                what=self._with_names(what),
                generation=self._generation,
                state=self._state,
                owners=self._owners(),
                why=self._with_names(why),
            )
        )

    def _with_names(self, text: str) -> str:
        """Member ids are long and random: their client ids say who it is."""
        for member, name in self.names.items():
            text = text.replace(member, name)
        return re.sub(r"\b(c\d)-[A-Za-z0-9_-]+", r"\1", text)

    def _now(self) -> float:
        return self.cluster.sim.loop.now - self._began_s

    def _owners(self) -> Owners:
        return {name: member.owned for name, member in sorted(self._members.items())}


def _dealt(members: object) -> str:
    """``c1 0,1; c2 2,3``."""
    if not isinstance(members, Mapping):
        return ""
    numbers = {member: [int(str(each).rpartition("-")[2]) for each in given] for member, given in members.items()}
    return "; ".join(sorted(f"{member} {numbers_text(dealt)}" for member, dealt in numbers.items()))


def _numbers(partitions: Sequence[TopicPartition]) -> list[int]:
    return sorted(each.partition for each in partitions)


def _all_of(owners: Owners) -> list[int]:
    return [number for numbers in owners.values() for number in numbers]


def numbers_text(numbers: Iterable[int]) -> str:
    """``0,1``; a dash for none."""
    return ",".join(map(str, numbers)) or "-"


def timeline_rows(story: Story) -> list[tuple[str, ...]]:
    """Head and lines: time in seconds, what happened, generation, state, what each member reads, why."""
    names = sorted({name for moment in story.moments for name in moment.owners})
    rows: list[tuple[str, ...]] = [("time", "what happened", "gen", "state", *names, "why")]
    before: Moment | None = None
    for moment in story.moments:
        owned = [_cell(name, before, moment) for name in names]
        generation = "" if before is not None and before.generation == moment.generation else str(moment.generation)
        state = "" if before is not None and before.state == moment.state else moment.state
        rows.append((f"{moment.at_s:.3f}", moment.what, generation, state, *owned, moment.why))
        before = moment
    return rows


def _cell(name: str, before: Moment | None, moment: Moment) -> str:
    """What a member reads; an arrow where that has just changed, nothing for who does not live."""
    if name not in moment.owners:
        return "✗" if before is not None and name in before.owners else ""
    now = numbers_text(moment.owners[name])
    was = numbers_text(before.owners[name]) if before is not None and name in before.owners else now
    return now if was == now else f"{was}→{now}"


def stop_rows(story: Story) -> list[tuple[str, ...]]:
    """Head and lines: what was done, and what stood still for how long."""
    rows: list[tuple[str, ...]] = [("what was done", "gen", "settled after", "stopped", "longest stop", "all stops")]
    for stop in story.stops:
        first, last = stop.generations
        rows.append(
            (
                stop.cause,
                f"{first} → {last}",
                f"{stop.settled_s:.3f} s",
                f"{len(stop.stopped_s)} of {stop.partitions}",
                f"{stop.longest_s:.3f} s",
                f"{stop.together_s:.3f} s",
            )
        )
    return rows


def compared_rows(*stories: Story) -> list[tuple[str, ...]]:
    """Head and lines: the same things done to all, side by side."""
    rows: list[tuple[str, ...]] = [("what was done", "", *(each.options["assignor"] for each in stories))]
    for stops in zip(*(each.stops for each in stories), strict=True):
        figures = (
            ("stopped", [f"{len(each.stopped_s)} of {each.partitions}" for each in stops]),
            ("longest stop", [f"{each.longest_s:.3f} s" for each in stops]),
            ("all stops", [f"{each.together_s:.3f} s" for each in stops]),
            ("settled after", [f"{each.settled_s:.3f} s" for each in stops]),
            ("generations", [str(each.generations[1] - each.generations[0]) for each in stops]),
        )
        rows += [(stops[0].cause if number == 0 else "", name, *cells) for number, (name, cells) in enumerate(figures)]
    return rows


def as_json(story: Story) -> dict[str, Any]:
    """One run: exactly scenario, options, timeline, stops. Times are virtual seconds."""
    return {
        "scenario": NAME,
        "options": dict(story.options),
        "timeline": [
            {
                "at_s": round(moment.at_s, 6),
                "what": moment.what,
                "generation": moment.generation,
                "state": moment.state,
                "owners": {name: list(numbers) for name, numbers in moment.owners.items()},
                "why": moment.why,
            }
            for moment in story.moments
        ],
        "stops": [
            {
                "cause": stop.cause,
                "at_s": round(stop.at_s, 6),
                "settled_s": round(stop.settled_s, 6),
                "generations": list(stop.generations),
                "partitions": stop.partitions,
                "stopped_s": {str(number): round(seconds, 6) for number, seconds in stop.stopped_s.items()},
                "longest_s": round(stop.longest_s, 6),
                "together_s": round(stop.together_s, 6),
            }
            for stop in story.stops
        ],
    }
