"""The scenarios' language: one command a line, one step a command.

A line is a verb, words, and options of the form ``name=value`` (:class:`Command`). The verbs (:class:`Verbs`)::

    cluster brokers=3 [names=A,B,C] [replicas=3,1,2] [control=script|quorum] [truncation=leader-epoch|high-watermark]
            [any topic setting of Kafka's] [replica.lag.time.max.ms=..] [replica.fetch.wait.max.ms=..]
            [eligible.leader.replicas.enable=..]
                                      first command of a scenario; every broker starts with an empty log, the first
                                      of the replicas leads in epoch 0, all are in the ISR
    produce N V.. [acks=all|1|0] [believing=EPOCH] [timeout=30s]
                                      one batch with these values (acks=all by default)
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
    cut N / heal N                    no peer and no controller is reached: it cannot start, or stop in good order
    deaf N / hear N                   metadata and controller's answers do not arrive / arrive
    expire N                          its session ends
    elect N [isr=N,N]                 the script elects (ISR: by default the live members of the old one);
                                      a quorum ends the sessions of the dead and decides itself
    checkpoint N.. / sync N..         the high watermark to disk / the log to disk
    log N..                           say what the log holds
    state                             say what the controller has recorded
    place [brokers=3] [partitions=1] [factor=1]  say where replicas go (S18)

Rules for this file: it calls the lab cluster and says what was done. It knows no rule of replication.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from minikafka.errors import InvalidConfig, ProtocolError, did_you_mean
from minikafka.lab.control import ScriptedControl
from minikafka.lab.lab_cluster import Fetch, LabCluster
from minikafka.lab.node import Node
from minikafka.lab.played import views_of
from minikafka.quorum.assignment import place
from minikafka.replication.follower import FollowerReplica
from minikafka.types import NO_EPOCH


class ScenarioError(InvalidConfig):
    """A scenario that says nothing the lab understands; the message names the line."""


NUMBER_MIN, NUMBER_MAX = -1, 2**31 - 1

TIME = re.compile(r"(\d{1,9}(?:\.\d+)?)(ms|s)", re.ASCII)
"""Longer ones end after the last timestamp that a record can have."""


@dataclass(frozen=True, slots=True)
class Command:
    """One line, taken apart."""

    line: int
    verb: str
    words: tuple[str, ...]
    options: Mapping[str, str]
    overridden: Collection[str] = ()
    """Options whose values are not from this line: a command line, or the head of an expected run, gave them."""

    def fail(self, why: str, option: str = "") -> ScenarioError:
        """Return the error, with the line unless the value of ``option`` is not from it."""
        return ScenarioError(why if option in self.overridden else f"line {self.line}: {self.verb}: {why}")

    def only(self, *names: str) -> None:
        """Refuse options that mean nothing here: a typing error must not pass for a setting."""
        unknown = [name for name in self.options if name not in names]
        if unknown:
            raise self.fail(f"{', '.join(unknown)} is not known here{did_you_mean(unknown[0], names)}")

    def number(self, name: str, default: int, *, least: int = NUMBER_MIN, most: int = NUMBER_MAX) -> int:
        """Return the value of a whole number."""
        text = self.options.get(name, str(default))
        try:
            number = int(text)
        except ValueError as error:
            raise self.fail(f"{name}={text} is no number", name) from error
        if not least <= number <= most:
            raise self.fail(f"{name}={text}: {least} to {most} is needed", name)
        return number

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """Return the value of an option that has one of a few."""
        text, allowed = self.options.get(name, default), list(choices)
        if text not in (*allowed, default):
            raise self.fail(f"{name}={text}: {' or '.join(allowed)} is needed", name)
        return text

    def seconds(self, text: str) -> float:
        """Return a time such as ``500ms`` or ``31s``."""
        found = TIME.fullmatch(text)
        if found is None:
            raise self.fail(f"{text} is no time; say 500ms or 31s")
        return float(found[1]) / (1000 if found[2] == "ms" else 1)


def parsed(line: int, text: str) -> Command:
    """The command in ``text``, which stands at ``line`` of its file. Raises ScenarioError for an option given twice."""
    verb, *rest = text.split()
    words = tuple(word for word in rest if "=" not in word)
    pairs = [word.split("=", 1) for word in rest if "=" in word]
    command = Command(line, verb, words, dict(pairs))
    if len(command.options) < len(pairs):
        raise command.fail("an option is given twice")
    return command


ACKS = {"all": -1, "1": 1, "0": 0}

ROUNDS_MAX = 20
"""Followers that have not caught up after so many fetches never will: a bug in the scenario or in the lab."""


class Verbs:
    """What each command does on one lab cluster: ``power-cut`` is ``_do_power_cut``.

    Each method gives the step's headline, or raises ScenarioError.
    """

    BY_NAME: ClassVar[dict[str, Callable[[Verbs, Command], str]]] = {}

    OPTIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "produce": ("acks", "believing", "timeout"),
        "fetch": ("answer",),
        "consume": ("from", "believing", "last-epoch"),
        "elect": ("isr",),
        "place": ("brokers", "partitions", "factor"),
    }
    """Of the commands that take some."""
    WITHOUT_WORDS = ("catch-up", "state", "place")

    def __init__(self, lab: LabCluster) -> None:
        self.lab = lab
        self.proposals_flow = True
        """The controller answers ISR proposals at once."""

    def do(self, command: Command) -> str:
        """Carry out one command; what was done, in words."""
        verb = self.BY_NAME.get(command.verb)
        if verb is None:
            raise command.fail(f"no such command; there are {', '.join(sorted(self.BY_NAME))}")
        command.only(*self.OPTIONS.get(command.verb, ()))
        if command.words and command.verb in self.WITHOUT_WORDS:
            raise command.fail(f"{' '.join(command.words)} is not known here")
        return verb(self, command)

    def say_state(self) -> None:
        """The articles' ZooKeeper node, in its words (S15)."""
        news, names = self.lab.control.news(), self.lab.names
        state = news.state
        self.lab.say(
            f"state: leader {self.lab.name(state.leader)}, leader epoch {state.leader_epoch}, isr {names(state.isr)}"
            + (f", elr {names(news.elr)}" if news.elr else "")
            + (f", last leader {names(news.last_known_elr)}" if news.last_known_elr else "")
            + ("" if state.recovered else ", recovering")
            + f", version {state.partition_epoch}"
        )

    def settle_proposal(self, node: Node) -> str:
        """The controller handles the node's proposal."""
        role, proposal = self.lab.proposals[node.id]
        before, after = self.lab.names(role.isr), self.lab.names(proposal.isr)
        self.lab.settle_proposal(node)
        return f"{node.name} asks for ISR {before} → {after}" if before != after else f"{node.name} has recovered"

    # ---- which broker ------------------------------------------------------------------------------------------------

    def _nodes(self, command: Command, *, up: bool | None = True) -> list[Node]:
        by_name = {node.name: node for node in self.lab.nodes.values()}
        words = set(command.words)
        if not words or words - by_name.keys() or len(words) < len(command.words):
            raise command.fail(f"which broker? There are {', '.join(by_name)}, each named once")
        nodes = [by_name[word] for word in command.words]
        wrong = [node.name for node in nodes if up is not None and node.up is not up]
        if wrong:
            raise command.fail(f"{', '.join(wrong)} is {'down' if up else 'up'}")
        return nodes

    def _node(self, command: Command, *, up: bool | None = True) -> Node:
        nodes = self._nodes(command, up=up)
        if len(nodes) > 1:
            raise command.fail("one broker at a time")
        return nodes[0]

    @staticmethod
    def _need_controller(command: Command, node: Node) -> None:
        """A start registers, and an orderly end asks for other leaders."""
        if not node.connected:
            raise command.fail(f"{node.name} is cut off, and does not reach the controller; heal {node.name} first")

    # ---- the commands ------------------------------------------------------------------------------------------------

    def _do_produce(self, command: Command) -> str:
        values = command.words[1:]
        node = self._node(replace(command, words=command.words[:1]))
        acks = command.choice("acks", ACKS, "all")
        if not values:
            raise command.fail("which values? Say produce A m0 m1")
        self.lab.produce(
            node,
            values,
            acks=ACKS[acks],
            believing=command.number("believing", NO_EPOCH),
            timeout_s=command.seconds(command.options.get("timeout", "30s")),
        )
        epoch = command.options.get("believing")
        believing = f", believing in epoch {epoch}" if epoch else ""
        return f"produce {' '.join(values)} to {node.name}, acks={acks}{believing}"

    def _do_fetch(self, command: Command) -> str:
        lost, what = command.choice("answer", ("lost",), "") == "lost", []
        for node in self._nodes(command):
            fetch = self.lab.send(node)
            what.append(self._asks(node, fetch))
            if fetch is None:
                continue
            self.lab.handle(fetch, wait=False)
            if fetch.answer is None:
                continue
            if lost:
                self.lab.lose(fetch)
            else:
                self.lab.deliver(fetch)
        return "; ".join(what)

    def _asks(self, node: Node, fetch: Fetch | None) -> str:
        if fetch is None:
            return f"{node.name} would fetch"
        return f"{node.name} fetches from {self.lab.name(fetch.leader)} at {fetch.asked.offset}"

    def _do_catch_up(self, command: Command) -> str:
        for _ in range(ROUNDS_MAX):
            before = views_of(self.lab)
            for node in self.lab.nodes.values():
                role = node.partition.role if node.reachable and node.partition else None
                if isinstance(role, FollowerReplica) and self.lab.nodes[role.leader].reachable:
                    fetch = self.lab.send(node)
                    if fetch is not None:
                        self.lab.handle(fetch, wait=False)
                        self.lab.deliver(fetch)
            if before == views_of(self.lab):
                self.lab.lines[:] = [each for each in self.lab.lines if " gets no records" not in each]
                return "all followers fetch until nothing changes"
        raise command.fail("they never catch up")

    def _do_poll(self, command: Command) -> str:
        node = self._node(command)
        fetch = self.lab.send(node)
        if fetch is not None:
            self.lab.handle(fetch, wait=True)
            if fetch.answer is not None:
                self.lab.deliver(fetch)
        return self._asks(node, fetch)

    def _do_send(self, command: Command) -> str:
        node = self._node(command)
        return f"{self._asks(node, self.lab.send(node))}: on its way"

    def _under_way(self, command: Command, *, answered: bool) -> Fetch:
        node = self._node(command, up=None)
        fetch = self.lab.fetches.get(node.id)
        if fetch is None or (fetch.answer is not None) is not answered:
            raise command.fail(f"{node.name} has no {'answer' if answered else 'request'} on its way")
        return fetch

    def _do_handle(self, command: Command) -> str:
        fetch = self._under_way(command, answered=False)
        self.lab.handle(fetch, wait=False)
        return f"{self.lab.name(fetch.leader)} handles {self.lab.name(fetch.node)}'s fetch at {fetch.asked.offset}"

    def _do_deliver(self, command: Command) -> str:
        fetch = self._under_way(command, answered=True)
        self.lab.deliver(fetch)
        return f"the answer reaches {self.lab.name(fetch.node)}"

    def _do_lose(self, command: Command) -> str:
        fetch = self._under_way(command, answered=True)
        self.lab.lose(fetch)
        return f"the answer never reaches {self.lab.name(fetch.node)}"

    def _do_consume(self, command: Command) -> str:
        node = self._node(command)
        offset = command.number("from", 0)
        self.lab.consume(
            node,
            offset,
            believing=command.number("believing", NO_EPOCH),
            last_epoch=command.number("last-epoch", NO_EPOCH),
        )
        return f"a consumer reads from {node.name} at {offset}"

    def _do_latest(self, command: Command) -> str:
        node = self._node(command)
        self.lab.latest(node)
        return f"a consumer asks {node.name} for the latest offset"

    def _do_tick(self, command: Command) -> str:
        if len(command.words) != 1:
            raise command.fail("how long? Say 500ms or 31s")
        self.lab.now += command.seconds(command.words[0])
        return f"{command.words[0]} pass, it is {self.lab.now:g} s"

    def _do_check_isr(self, command: Command) -> str:
        node = self._node(command)
        self.lab.check_isr(node)
        return f"{node.name} looks for laggards"

    def _do_proposals(self, command: Command) -> str:
        if command.words not in {("held",), ("flow",)}:
            raise command.fail("held or flow?")
        self.proposals_flow = command.words == ("flow",)
        return "proposals " + ("reach the controller at once" if self.proposals_flow else "are slow from now on")

    def _do_settle(self, command: Command) -> str:
        node = self._node(command)
        if node.id not in self.lab.proposals:
            raise command.fail(f"{node.name} has no proposal on its way")
        return self.settle_proposal(node)

    def _do_kill(self, command: Command) -> str:
        for node in self._nodes(command):
            self.lab.end(node)
        return f"kill -9 {' '.join(command.words)}: the page cache stays"

    def _do_power_cut(self, command: Command) -> str:
        for node in self._nodes(command, up=None):
            self.lab.end(node, power=True)
        return f"power cut at {' '.join(command.words)}: what was not synced is gone"

    def _do_stop(self, command: Command) -> str:
        node = self._node(command)
        self._need_controller(command, node)
        self.lab.stop(node)
        return f"{node.name} stops in good order"

    def _do_restart(self, command: Command) -> str:
        for node in self._nodes(command, up=False):
            self._need_controller(command, node)
            self.lab.start(node)
        return f"{' '.join(command.words)} starts again"

    def _do_wipe(self, command: Command) -> str:
        node = self._node(command, up=False)
        node.disk.wipe()
        node.stopped_cleanly = False
        return f"{node.name} gets an empty disk"

    def _do_cut(self, command: Command) -> str:
        node = self._node(command)
        node.connected = False
        return f"{node.name} is cut off"

    def _do_heal(self, command: Command) -> str:
        node = self._node(command, up=None)
        self.lab.join(node)
        return f"{node.name} is reachable again"

    def _do_deaf(self, command: Command) -> str:
        node = self._node(command)
        node.listens = False
        return f"metadata does not reach {node.name} for now"

    def _do_hear(self, command: Command) -> str:
        node = self._node(command)
        node.listens = True
        self.lab.tell(node)
        return f"{node.name} reads the metadata"

    def _do_expire(self, command: Command) -> str:
        node = self._node(command, up=None)
        self.lab.control.session_ended(node.id)
        self.lab.spread()
        return f"{node.name}'s session ends"

    def _do_elect(self, command: Command) -> str:
        node = self._node(command, up=None)
        control = self.lab.control
        living = [each.id for each in self.lab.nodes.values() if each.reachable]
        if "isr" in command.options:
            named = replace(command, words=tuple(command.options["isr"].split(",")))
            living = [each.id for each in self._nodes(named, up=None)]
            if node.id not in living:
                raise command.fail(f"isr={command.options['isr']} lacks {node.name}: a leader is in its ISR")
        control.elect(node.id, living)
        self.lab.spread()
        if isinstance(control, ScriptedControl):
            return f"{node.name} is elected"
        return f"the dead's sessions end; elected: {self.lab.name(control.news().state.leader)}"

    def _do_checkpoint(self, command: Command) -> str:
        for node in self._nodes(command):
            node.checkpoint()
            self.lab.say(f"{node.name}: HW {node.seat.high_watermark} is on disk")
        return f"{' '.join(command.words)} writes its checkpoints"

    def _do_sync(self, command: Command) -> str:
        for node in self._nodes(command):
            node.sync()
            self.lab.say(f"{node.name}: durable to {node.seat.log.synced_end}")
        return f"{' '.join(command.words)} syncs its log"

    def _do_log(self, command: Command) -> str:
        for node in self._nodes(command):
            held = " ".join(f"{each.offset}:{each.value}@e{each.epoch}" for each in node.records())
            epochs = " ".join(f"({epoch},{start})" for epoch, start in node.seat.log.epochs.entries)
            self.lab.say(f"{node.name}: {held or 'nothing'}; epochs {epochs or 'none'}")
        return f"the log{'s' * (len(command.words) > 1)} of {' '.join(command.words)}"

    def _do_state(self, _command: Command) -> str:
        self.say_state()
        return "what the controller has recorded"

    def _do_place(self, command: Command) -> str:
        brokers, partitions = (
            command.number(name, default, least=1, most=1000) for name, default in (("brokers", 3), ("partitions", 1))
        )
        factor = command.number("factor", 1, least=1)
        try:
            placed = place(range(1, brokers + 1), partitions=partitions, replication_factor=factor)
        except ProtocolError as error:
            raise command.fail(error.message) from error
        for partition, replicas in enumerate(placed):
            self.lab.say(f"partition {partition}: {','.join(map(str, replicas))}")
        return f"{partitions} partitions with {factor} replicas on {brokers} brokers"


Verbs.BY_NAME.update(
    (name.removeprefix("_do_").replace("_", "-"), method)
    for name, method in vars(Verbs).items()
    if name.startswith("_do_")
)
