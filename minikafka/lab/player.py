"""The scenarios' language: one command a line, one step a command.

::

    cluster brokers=3 [names=A,B,C] [replicas=3,1,2] [control=script|quorum] [truncation=leader-epoch|high-watermark]
            [any topic setting of Kafka's] [replica.lag.time.max.ms=..] [replica.fetch.wait.max.ms=..]
            [eligible.leader.replicas.enable=..]
                                      first command of a scenario; every broker starts with an empty log, the first
                                      of the replicas leads in epoch 0, all are in the ISR
    produce N V.. [acks=all|1|0] [believing=EPOCH] [timeout=30s]
                                      one batch with these values (acks=all unless told otherwise)
    fetch N.. [answer=lost]           each follower asks, is answered at once, obeys
    poll N                            as fetch, but with nothing to return it is parked (S12)
    catch-up                          every follower fetches until nothing changes any more
    send N / handle N / deliver N / lose N
                                      the steps of one fetch, one by one
    consume N [from=OFFSET] [believing=EPOCH] [last-epoch=EPOCH]   /   latest N
    tick TIME                         500ms, 31s
    check-isr N                       the leader looks for laggards
    proposals held|flow               keep ISR proposals on their way / let the controller answer at once
    settle N                          the controller handles N's proposal
    kill N.. / power-cut N.. / stop N / restart N.. / wipe N (an empty disk in place of a dead one's)
    cut N / heal N                    no peer and no controller is reached
    deaf N / hear N                   metadata and controller's answers do not arrive / arrive
    expire N                          its session ends
    elect N [isr=N,N]                 the script elects (ISR: the living of the old one, unless told otherwise);
                                      a quorum ends the sessions of the dead and decides itself
    checkpoint N.. / sync N..         the high watermark to disk / the log to disk
    log N..                           say what the log holds
    state                             say what the controller has recorded
    place brokers=N partitions=N factor=N        say where replicas go (S18)

Rules for this file: it parses, calls the stage, and records what changed. It knows no rule of replication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from minikafka.config import parse_topic
from minikafka.errors import InvalidConfig
from minikafka.lab.control import Control, News, QuorumControl, ScriptedControl
from minikafka.lab.fate import Difference, Fates, LostRecord
from minikafka.lab.node import Node, Settings
from minikafka.lab.sentences import sentence
from minikafka.lab.stage import Fetch, Stage
from minikafka.lab.truncation import TRUNCATIONS
from minikafka.quorum.placement import place
from minikafka.replication.follower import FollowerReplica
from minikafka.types import NO_EPOCH, Epoch, NodeId, Offset

ACKS = {"all": -1, "1": 1, "0": 0}

# A command's own consequences (parked fetches, proposals) end soon, or there is a bug in the scenario or in the lab.
FOLLOW_UPS_MAX = 20


class ScenarioError(Exception):
    """A scenario that says nothing the lab understands; the message names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One replica as the articles' tables show it."""

    role: str
    end_offset: Offset | None = None
    high_watermark: Offset | None = None
    remotes: tuple[tuple[str, Offset], ...] = ()
    isr: str = ""
    """Leader only: as committed."""
    asked: str = ""
    """Leader only: the ISR that it has asked the controller for."""
    epoch: Epoch | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """An event of a rule, and of whose replica."""

    replica: str
    kind: str
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: what happened, why, and what it changed."""

    number: int
    line: int
    """Of the command in the scenario; steps that follow from it by themselves have the same."""
    what: str
    told: tuple[str, ...]
    events: tuple[Told, ...]
    before: Mapping[str, View]
    after: Mapping[str, View]

    def changed(self) -> list[str]:
        """Names of the replicas that look different now."""
        return [name for name, view in self.after.items() if self.before.get(name) != view]


@dataclass(slots=True)
class Run:
    """A scenario as it was played."""

    options: Mapping[str, str]
    steps: list[Step] = field(default_factory=list)
    leader: str = ""
    lost: list[LostRecord] = field(default_factory=list)
    diverged: list[Difference] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Command:
    """One line, taken apart."""

    line: int
    verb: str
    words: tuple[str, ...]
    options: Mapping[str, str]

    def fail(self, why: str) -> ScenarioError:
        return ScenarioError(f"line {self.line}: {self.verb}: {why}")

    def only(self, *names: str) -> None:
        """Refuse options that mean nothing here: a typing error must not pass for a setting."""
        unknown = [name for name in self.options if name not in names]
        if unknown:
            raise self.fail(f"{', '.join(unknown)} is not known here")

    def number(self, name: str, default: int) -> int:
        text = self.options.get(name, str(default))
        try:
            return int(text)
        except ValueError as error:
            raise self.fail(f"{name}={text} is no number") from error


def _parse(line: int, text: str) -> _Command:
    verb, *rest = text.split()
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return _Command(line, verb, tuple(word for word in rest if "=" not in word), options)


def seconds(text: str) -> float:
    """``500ms`` or ``31s``; ValueError for anything else."""
    if text.endswith("ms"):
        return int(text[:-2]) / 1000
    if text.endswith("s"):
        return float(text[:-1])
    raise ValueError(text)


def play(commands: Sequence[tuple[int, str]], overrides: Mapping[str, str]) -> Run:
    """Play (line number, command) pairs; ``overrides`` win over the options of ``cluster``. Raises ScenarioError."""
    parsed = [_parse(line, text) for line, text in commands]
    if not parsed or parsed[0].verb != "cluster":
        raise ScenarioError("a scenario begins with: cluster brokers=N")
    player = Player({**parsed[0].options, **overrides}, parsed[0])
    for command in parsed[1:]:
        player.play(command)
    return player.finish()


class Player:
    """Plays one scenario."""

    def __init__(self, options: Mapping[str, str], command: _Command) -> None:
        self._told: list[str] = []
        self._events: list[Told] = []
        self._line = command.line
        self._run = Run(options)
        self._proposals_flow = True
        self.stage = _built(dict(options), command, self._told, self._events)
        self._fates = Fates(self.stage)
        self._seen: Mapping[str, View] = {}
        for node in self.stage.nodes.values():
            node.start()
        self.stage.spread()
        self._record("all start: empty logs", with_told=False)

    def play(self, command: _Command) -> None:
        """One line, and what follows from it by itself."""
        do = self._VERBS.get(command.verb)
        if do is None:
            raise command.fail(f"no such command; there are {', '.join(sorted(self._VERBS))}")
        self._line = command.line
        state = self.stage.control.news()
        what = do(self, command)
        self.stage.settle_producers()
        self._say_state_if_new(state)
        self._record(what)
        for _ in range(FOLLOW_UPS_MAX):
            if not self._follow_up():
                return
        raise command.fail("it has no end")

    def finish(self) -> Run:
        """The verdict."""
        leader, run = self.stage.leader(), self._run
        run.leader = leader.name if leader is not None else ""
        run.lost, run.diverged = self._fates.lost(), self._fates.diverged()
        return run

    # ---- recording ---------------------------------------------------------------------------------------------------

    def _record(self, what: str, *, with_told: bool = True) -> None:
        now = self._views()
        step = Step(
            number=len(self._run.steps),
            line=self._line,
            what=what,
            told=tuple(self._told) if with_told else (),
            events=tuple(self._events),
            before=self._seen,
            after=now,
        )
        self._run.steps.append(step)
        self._fates.look(step.number)
        self._seen = now
        self._told.clear()
        self._events.clear()

    def _views(self) -> dict[str, View]:
        return {node.name: self._view(node) for node in self.stage.nodes.values()}

    def _view(self, node: Node) -> View:
        if node.partition is None:
            return View(role="down")
        seat = node.partition
        leader = node.leads()
        role = "leader" if leader else "follower" if isinstance(seat.role, FollowerReplica) else "idle"
        return View(
            role=role if node.connected else f"{role}, cut off",
            end_offset=seat.log.end_offset,
            high_watermark=seat.high_watermark,
            remotes=tuple((self.stage.name(each), remote.end_offset) for each, remote in leader.remotes.items())
            if leader
            else (),
            isr=self.stage.names(leader.isr) if leader else "",
            asked=self.stage.names(leader.proposal.isr) if leader and leader.proposal else "",
            epoch=seat.epoch if seat.epoch != NO_EPOCH else None,
        )

    def _say_state_if_new(self, old: News) -> None:
        if self.stage.control.news().state != old.state:
            self._say_state()

    def _say_state(self) -> None:
        """The articles' ZooKeeper node, in its words (S15)."""
        news, names = self.stage.control.news(), self.stage.names
        state = news.state
        self.stage.say(
            f"state: leader {self.stage.name(state.leader)}, leader epoch {state.leader_epoch}, isr {names(state.isr)}"
            + (f", elr {names(news.elr)}" if news.elr else "")
            + (f", last leader {names(news.last_known_elr)}" if news.last_known_elr else "")
            + ("" if state.recovered else ", recovering")
            + f", version {state.partition_epoch}"
        )

    def _follow_up(self) -> bool:
        """One consequence as a step of its own; False when there is none left."""
        stage = self.stage
        state = stage.control.news()
        fetch = stage.ready()
        if fetch is not None:
            stage.answer_parked(fetch)
            stage.deliver(fetch)
            what = f"{stage.name(fetch.node)}'s parked fetch is answered"
        else:
            waiting = [node for node in stage.proposals if stage.nodes[node].connected]
            if not waiting or not self._proposals_flow:
                return False
            what = self._settle_proposal(stage.nodes[waiting[0]])
        stage.settle_producers()
        self._say_state_if_new(state)
        self._record(what)
        return True

    def _settle_proposal(self, node: Node) -> str:
        role, proposal = self.stage.proposals[node.id]
        before, after = self.stage.names(role.isr), self.stage.names(proposal.isr)
        self.stage.settle_proposal(node)
        return f"{node.name} asks for ISR {before} → {after}" if before != after else f"{node.name} has recovered"

    # ---- commands ----------------------------------------------------------------------------------------------------

    def _nodes(self, command: _Command, *, up: bool | None = True) -> list[Node]:
        by_name = {node.name: node for node in self.stage.nodes.values()}
        unknown = [word for word in command.words if word not in by_name]
        if unknown or not command.words:
            raise command.fail(f"which broker? There are {', '.join(by_name)}")
        nodes = [by_name[word] for word in command.words]
        wrong = [node.name for node in nodes if up is not None and node.up is not up]
        if wrong:
            raise command.fail(f"{', '.join(wrong)} is {'down' if up else 'up'}")
        return nodes

    def _node(self, command: _Command, *, up: bool | None = True) -> Node:
        nodes = self._nodes(command, up=up)
        if len(nodes) > 1:
            raise command.fail("one broker at a time")
        return nodes[0]

    def _produce(self, command: _Command) -> str:
        command.only("acks", "believing", "timeout")
        head, *values = command.words
        node = self._node(_Command(command.line, command.verb, (head,), {}))
        acks = command.options.get("acks", "all")
        if acks not in ACKS or not values:
            raise command.fail("needs values, and acks=all, 1 or 0")
        self.stage.produce(
            node,
            values,
            acks=ACKS[acks],
            believing=command.number("believing", NO_EPOCH),
            timeout_s=self._seconds(command, command.options.get("timeout", "30s")),
        )
        epoch = command.options.get("believing")
        believing = f", believing in epoch {epoch}" if epoch else ""
        return f"produce {' '.join(values)} to {node.name}, acks={acks}{believing}"

    def _seconds(self, command: _Command, text: str) -> float:
        try:
            return seconds(text)
        except ValueError as error:
            raise command.fail(f"{text} is no time; say 500ms or 31s") from error

    def _fetch(self, command: _Command) -> str:
        command.only("answer")
        what = []
        for node in self._nodes(command):
            fetch = self.stage.send(node)
            what.append(self._asks(node, fetch))
            if fetch is None:
                continue
            self.stage.handle(fetch, wait=False)
            if fetch.answer is None:
                continue
            if command.options.get("answer") == "lost":
                self.stage.lose(fetch)
            else:
                self.stage.deliver(fetch)
        return "; ".join(what)

    def _asks(self, node: Node, fetch: Fetch | None) -> str:
        if fetch is None:
            return f"{node.name} would fetch"
        return f"{node.name} fetches from {self.stage.name(fetch.leader)} at {fetch.asked.offset}"

    def _catch_up(self, command: _Command) -> str:
        command.only()
        for _ in range(FOLLOW_UPS_MAX):
            before = self._views()
            for node in self.stage.nodes.values():
                role = node.partition.role if node.reachable and node.partition else None
                if isinstance(role, FollowerReplica) and self.stage.nodes[role.leader].reachable:
                    fetch = self.stage.send(node)
                    if fetch is not None:
                        self.stage.handle(fetch, wait=False)
                        self.stage.deliver(fetch)
            if before == self._views():
                self._told[:] = [each for each in self._told if " gets no records" not in each]
                return "all followers fetch until nothing changes"
        raise command.fail("they never catch up")

    def _poll(self, command: _Command) -> str:
        command.only()
        node = self._node(command)
        fetch = self.stage.send(node)
        if fetch is not None:
            self.stage.handle(fetch, wait=True)
            if fetch.answer is not None:
                self.stage.deliver(fetch)
        return self._asks(node, fetch)

    def _send(self, command: _Command) -> str:
        command.only()
        node = self._node(command)
        return f"{self._asks(node, self.stage.send(node))}: on its way"

    def _under_way(self, command: _Command, *, answered: bool) -> Fetch:
        command.only()
        node = self._node(command, up=None)
        fetch = self.stage.fetches.get(node.id)
        if fetch is None or (fetch.answer is not None) is not answered:
            raise command.fail(f"{node.name} has no {'answer' if answered else 'request'} on its way")
        return fetch

    def _handle(self, command: _Command) -> str:
        fetch = self._under_way(command, answered=False)
        self.stage.handle(fetch, wait=False)
        return f"{self.stage.name(fetch.leader)} handles {self.stage.name(fetch.node)}'s fetch at {fetch.asked.offset}"

    def _deliver(self, command: _Command) -> str:
        fetch = self._under_way(command, answered=True)
        self.stage.deliver(fetch)
        return f"the answer reaches {self.stage.name(fetch.node)}"

    def _lose(self, command: _Command) -> str:
        fetch = self._under_way(command, answered=True)
        self.stage.lose(fetch)
        return f"the answer never reaches {self.stage.name(fetch.node)}"

    def _consume(self, command: _Command) -> str:
        command.only("from", "believing", "last-epoch")
        node = self._node(command)
        offset = command.number("from", 0)
        self.stage.consume(
            node,
            offset,
            believing=command.number("believing", NO_EPOCH),
            last_epoch=command.number("last-epoch", NO_EPOCH),
        )
        return f"a consumer reads from {node.name} at {offset}"

    def _latest(self, command: _Command) -> str:
        command.only()
        node = self._node(command)
        self.stage.latest(node)
        return f"a consumer asks {node.name} for the latest offset"

    def _tick(self, command: _Command) -> str:
        command.only()
        if len(command.words) != 1:
            raise command.fail("how long? Say 500ms or 31s")
        self.stage.now += self._seconds(command, command.words[0])
        return f"{command.words[0]} pass, it is {self.stage.now:g} s"

    def _check_isr(self, command: _Command) -> str:
        command.only()
        node = self._node(command)
        self.stage.check_isr(node)
        return f"{node.name} looks for laggards"

    def _proposals(self, command: _Command) -> str:
        command.only()
        if command.words not in {("held",), ("flow",)}:
            raise command.fail("held or flow?")
        self._proposals_flow = command.words == ("flow",)
        return "proposals " + ("reach the controller at once" if self._proposals_flow else "are slow from now on")

    def _settle(self, command: _Command) -> str:
        command.only()
        node = self._node(command)
        if node.id not in self.stage.proposals:
            raise command.fail(f"{node.name} has no proposal on its way")
        return self._settle_proposal(node)

    def _kill(self, command: _Command) -> str:
        command.only()
        for node in self._nodes(command):
            self.stage.end(node)
        return f"kill -9 {' '.join(command.words)}: the page cache stays"

    def _power_cut(self, command: _Command) -> str:
        command.only()
        for node in self._nodes(command, up=None):
            self.stage.end(node, power=True)
        return f"power cut at {' '.join(command.words)}: what was not synced is gone"

    def _stop(self, command: _Command) -> str:
        command.only()
        node = self._node(command)
        self.stage.stop(node)
        return f"{node.name} stops in good order"

    def _restart(self, command: _Command) -> str:
        command.only()
        for node in self._nodes(command, up=False):
            self.stage.start(node)
        return f"{' '.join(command.words)} starts again"

    def _wipe(self, command: _Command) -> str:
        command.only()
        node = self._node(command, up=False)
        node.disk.wipe()
        node.stopped_cleanly = False
        return f"{node.name} gets an empty disk"

    def _cut(self, command: _Command) -> str:
        command.only()
        node = self._node(command)
        node.connected = False
        return f"{node.name} is cut off"

    def _heal(self, command: _Command) -> str:
        command.only()
        node = self._node(command)
        self.stage.join(node)
        return f"{node.name} is reachable again"

    def _deaf(self, command: _Command) -> str:
        command.only()
        node = self._node(command)
        node.listens = False
        return f"metadata does not reach {node.name} for now"

    def _hear(self, command: _Command) -> str:
        command.only()
        node = self._node(command)
        node.listens = True
        self.stage.tell(node)
        return f"{node.name} reads the metadata"

    def _expire(self, command: _Command) -> str:
        command.only()
        node = self._node(command, up=None)
        self.stage.control.session_ended(node.id)
        self.stage.spread()
        return f"{node.name}'s session ends"

    def _elect(self, command: _Command) -> str:
        command.only("isr")
        node = self._node(command, up=None)
        control = self.stage.control
        living = [each.id for each in self.stage.nodes.values() if each.reachable]
        if "isr" in command.options:
            named = _Command(command.line, command.verb, tuple(command.options["isr"].split(",")), {})
            living = [each.id for each in self._nodes(named, up=None)]
        control.elect(node.id, living)
        self.stage.spread()
        if isinstance(control, ScriptedControl):
            return f"{node.name} is elected"
        return f"the dead's sessions end; elected: {self.stage.name(control.news().state.leader)}"

    def _checkpoint(self, command: _Command) -> str:
        command.only()
        for node in self._nodes(command):
            node.checkpoint()
            self.stage.say(f"{node.name}: HW {node.seat.high_watermark} is on disk")
        return f"{' '.join(command.words)} writes its checkpoints"

    def _sync(self, command: _Command) -> str:
        command.only()
        for node in self._nodes(command):
            node.sync()
            self.stage.say(f"{node.name}: durable to {node.seat.log.synced_end}")
        return f"{' '.join(command.words)} syncs its log"

    def _log(self, command: _Command) -> str:
        command.only()
        for node in self._nodes(command):
            held = " ".join(f"{each.offset}:{each.value}@e{each.epoch}" for each in node.records())
            epochs = " ".join(f"({epoch},{start})" for epoch, start in node.seat.log.epochs.entries)
            self.stage.say(f"{node.name}: {held or 'nothing'}; epochs {epochs or 'none'}")
        return f"the log{'s' * (len(command.words) > 1)} of {' '.join(command.words)}"

    def _state(self, command: _Command) -> str:
        command.only()
        self._say_state()
        return "what the controller has recorded"

    def _place(self, command: _Command) -> str:
        command.only("brokers", "partitions", "factor")
        brokers, partitions = command.number("brokers", 3), command.number("partitions", 1)
        factor = command.number("factor", 1)
        placed = place(range(1, brokers + 1), partitions=partitions, replication_factor=factor)
        for partition, replicas in enumerate(placed):
            self.stage.say(f"partition {partition}: {','.join(map(str, replicas))}")
        return f"{partitions} partitions with {factor} replicas on {brokers} brokers"

    _VERBS: ClassVar[dict[str, Callable[[Player, _Command], str]]] = {
        "produce": _produce,
        "fetch": _fetch,
        "catch-up": _catch_up,
        "poll": _poll,
        "send": _send,
        "handle": _handle,
        "deliver": _deliver,
        "lose": _lose,
        "consume": _consume,
        "latest": _latest,
        "tick": _tick,
        "check-isr": _check_isr,
        "proposals": _proposals,
        "settle": _settle,
        "kill": _kill,
        "power-cut": _power_cut,
        "stop": _stop,
        "restart": _restart,
        "wipe": _wipe,
        "cut": _cut,
        "heal": _heal,
        "deaf": _deaf,
        "hear": _hear,
        "expire": _expire,
        "elect": _elect,
        "checkpoint": _checkpoint,
        "sync": _sync,
        "log": _log,
        "state": _state,
        "place": _place,
    }


def _built(options: dict[str, str], command: _Command, told: list[str], events: list[Told]) -> Stage:
    """The stage that ``cluster`` and its options describe; nobody runs yet."""

    def number(name: str, default: int) -> int:
        return _Command(command.line, command.verb, (), options).number(name, default)

    brokers = number("brokers", 0)
    names = options.pop("names", ",".join(map(str, range(1, brokers + 1)))).split(",")
    if brokers < 1 or len(names) != brokers or command.words:
        raise command.fail("say brokers=N, and as many names if any")
    by_name = {name: node for node, name in enumerate(names, start=1)}
    assigned = options.pop("replicas", ",".join(names)).split(",")
    if not set(assigned) <= set(names):
        raise command.fail(f"replicas are among {','.join(names)}")
    replicas: tuple[NodeId, ...] = tuple(by_name[name] for name in assigned)
    truncation, controlled = options.pop("truncation", "leader-epoch"), options.pop("control", "script")
    elr = options.pop("eligible.leader.replicas.enable", "true") == "true"
    lag_s = number("replica.lag.time.max.ms", 30_000) / 1000
    wait_s = number("replica.fetch.wait.max.ms", 500) / 1000
    own = {"brokers", "replica.lag.time.max.ms", "replica.fetch.wait.max.ms"}
    try:
        topic = parse_topic({name: text for name, text in options.items() if name not in own})
    except InvalidConfig as error:
        raise command.fail(error.message) from error
    if truncation not in TRUNCATIONS or controlled not in {"script", "quorum"}:
        raise command.fail("control is script or quorum, truncation leader-epoch or high-watermark")
    settings = Settings(
        topic=topic, lag_time_max_s=lag_s, fetch_wait_max_s=wait_s, truncation=TRUNCATIONS[truncation]()
    )
    control: Control = ScriptedControl(replicas) if controlled == "script" else QuorumControl(replicas, topic, elr=elr)

    def name_of(node: NodeId) -> str:
        return names[node - 1] if 1 <= node <= brokers else "nobody"

    def sink_of(name: str) -> Callable[..., None]:
        def sink(kind: str, /, **facts: object) -> None:
            events.append(Told(name, kind, facts))
            text = sentence(kind, facts, name_of)
            if text:
                told.append(f"{name}: {text}")

        return sink

    nodes = [Node(node, names[node - 1], settings, sink_of(names[node - 1])) for node in sorted(replicas)]
    epochs = control.news().broker_epochs
    for node in nodes:
        node.broker_epoch = epochs[node.id]
    return Stage(nodes, control, told)
