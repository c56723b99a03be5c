"""``minikafka chaos kill``: kill a broker now and then, for people who only want that.

Rules for this file: it kills what it was asked to kill and nothing else; containers are started again, processes are
their supervisor's business; it judges nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from itertools import count as counting
from random import Random
from typing import Final, Protocol

import click

from minikafka.chaos.commands import run as command_output
from minikafka.cli.chaos_duration import Duration
from minikafka.cli.running import Failure, run
from minikafka.errors import WorldError

PROJECT: Final = "minikafka"
"""What docker-compose.yml calls itself."""

PROJECT_LABEL: Final = "com.docker.compose.project"
ROLE_LABEL: Final = "com.minikafka.role=broker"


class Victims(Protocol):
    """Whom it may kill."""

    def living(self) -> Sequence[str]:
        """Who runs now."""
        ...

    def kill(self, victim: str) -> None:
        """SIGKILL."""
        ...

    def start(self, victim: str) -> bool:
        """Start it again; False: that is left to its supervisor."""
        ...


class Processes:
    """Processes by their ids."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids

    def living(self) -> Sequence[str]:
        """Those that can be signalled."""
        found = []
        for pid in self._pids:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                continue
            found.append(str(pid))
        return found

    def kill(self, victim: str) -> None:
        """SIGKILL; PermissionError when it is another user's."""
        os.kill(int(victim), signal.SIGKILL)

    def start(self, victim: str) -> bool:  # noqa: ARG002 - the port's signature
        """Nobody here knows how it was started."""
        return False


class Containers:
    """The brokers of a compose project: containers with the label ``com.minikafka.role=broker``."""

    def __init__(self, project: str) -> None:
        self._filters = ("--filter", f"label={PROJECT_LABEL}={project}", "--filter", f"label={ROLE_LABEL}")

    def living(self) -> Sequence[str]:
        """Names, sorted. Failure when no engine answers."""
        try:
            listed = command_output("docker", "ps", "--format", "{{json .Names}}", *self._filters)
        except WorldError as error:
            raise Failure(
                f"no containers can be listed: {error}; a broker of `minikafka up` is killed by its number: --pid"
            ) from error
        return sorted(json.loads(line) for line in listed.splitlines())

    def kill(self, victim: str) -> None:
        """As ``docker kill``."""
        command_output("docker", "kill", "--signal", "KILL", victim)

    def start(self, victim: str) -> bool:
        """As ``docker start``: the engine does not restart what was killed by hand."""
        command_output("docker", "start", victim)
        return True


@click.command(
    "kill",
    epilog="""\b
Examples:
  minikafka chaos kill --random --interval 30s
  minikafka chaos kill --compose mine --down 10s
  minikafka chaos kill --pid 4711 --pid 4712 --pid 4713 --random --interval 1m --count 2

Without --interval one broker is killed, once. Containers are started again after --down; processes are not.""",
)
@click.option(
    "--pid", "pids", type=click.IntRange(min=2), multiple=True, help="A broker's process; may be given again."
)
@click.option(
    "--compose", "project", default=None, metavar="PROJECT", help="The brokers of a compose project.  [minikafka]"
)
@click.option("--random", "is_random", is_flag=True, help="Draw who is next, instead of one after the other.")
@click.option("--interval", "interval_s", type=Duration(), default=None, help="Again and again, as 30s.")
@click.option("--down", "down_s", type=Duration(), default=5.0, help="Start a container again after this.  [5s]")
@click.option("--count", type=click.IntRange(min=1), default=None, help="So many.  [1, or endless with --interval]")
@click.option("--seed", type=int, default=None, help="Of the draws.")
def kill_command(
    pids: tuple[int, ...],
    project: str | None,
    is_random: bool,  # noqa: FBT001 - click passes flags so
    interval_s: float | None,
    down_s: float,
    count: int | None,
    seed: int | None,
) -> None:
    """Kill one broker, or one every --interval, with SIGKILL."""
    if pids and project is not None:
        raise click.UsageError("give --pid (several, if you like), or --compose PROJECT, not both")
    victims: Victims = Processes(pids) if pids else Containers(project or PROJECT)
    kills = count if count is not None else 1 if interval_s is None else None
    random = Random(seed) if is_random else None  # noqa: S311 - who is next needs no secret
    run(lambda: kill_on(victims, random, interval_s or 0.0, down_s, kills))


async def kill_on(victims: Victims, random: Random | None, interval_s: float, down_s: float, kills: int | None) -> None:
    """Kill ``kills`` times (None: for ever). Failure when nobody is left; what was killed is started in any case."""
    for number in counting():
        if number == kills:
            return
        living = victims.living()
        if not living:
            raise Failure("nobody to kill: no such process, or no running container with the label " + ROLE_LABEL)
        victim = random.choice(living) if random is not None else living[number % len(living)]
        victims.kill(victim)
        click.echo(f"{time.strftime('%H:%M:%S')}  killed {victim}, one of {len(living)}")
        pause_s = 0.0 if number + 1 == kills else interval_s
        try:
            await asyncio.sleep(down_s if isinstance(victims, Containers) else 0.0)
        finally:
            if victims.start(victim):
                click.echo(f"{time.strftime('%H:%M:%S')}  started {victim}")
        await asyncio.sleep(pause_s)
