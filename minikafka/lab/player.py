"""Plays a scenario: carries out each command, then what follows from it by itself, and keeps every step.

Rules for this file: what a command does stands in ``verbs.py``; here is only what is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minikafka.lab.command import Command, ScenarioError, parsed
from minikafka.lab.control import News
from minikafka.lab.fate import Fates
from minikafka.lab.opening import built
from minikafka.lab.played import NodeEvent, Run, Step, View, views_of
from minikafka.lab.verbs import Verbs

# A command's own consequences (parked fetches, proposals) end soon, or there is a bug in the scenario or in the lab.
FOLLOW_UPS_MAX = 20


def play(commands: Sequence[tuple[int, str]], overrides: Mapping[str, str]) -> Run:
    """Play (line number, command) pairs; ``overrides`` win over the options of ``cluster``. Raises ScenarioError."""
    taken_apart = [parsed(line, text) for line, text in commands]
    if not taken_apart or taken_apart[0].verb != "cluster":
        raise ScenarioError("a scenario begins with: cluster brokers=N")
    player = Player({**taken_apart[0].options, **overrides}, taken_apart[0])
    for command in taken_apart[1:]:
        player.play(command)
    return player.finish()


class Player:
    """Plays one scenario."""

    def __init__(self, options: Mapping[str, str], command: Command) -> None:
        self._lines: list[str] = []
        self._events: list[NodeEvent] = []
        self._line = command.line
        self._run = Run(options)
        self.stage = built(dict(options), command, self._lines, self._events)
        self._verbs = Verbs(self.stage)
        self._fates = Fates(self.stage)
        self._seen: Mapping[str, View] = {}
        for node in self.stage.nodes.values():
            node.start()
        self.stage.spread()
        self._record("all start: empty logs", with_lines=False)

    def play(self, command: Command) -> None:
        """One line, and what follows from it by itself."""
        self._line = command.line
        state = self.stage.control.news()
        what = self._verbs.do(command)
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

    def _record(self, what: str, *, with_lines: bool = True) -> None:
        now = views_of(self.stage)
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
        if self.stage.control.news().state != old.state:
            self._verbs.say_state()

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
            if not waiting or not self._verbs.proposals_flow:
                return False
            what = self._verbs.settle_proposal(stage.nodes[waiting[0]])
        stage.settle_producers()
        self._say_state_if_new(state)
        self._record(what)
        return True
