"""``minikafka chaos``: scenarios of faults under load, and their verdicts (docs/chaos-scenarios.md).

Exit codes: 0 no promise was broken; 1 damaged, or it failed; 2 called wrongly, or the target lacks a fault; 130
interrupted.

``chaos kill`` kills a broker now and then, for people who want nothing more. It judges nothing. Containers are started
again; processes are their supervisor's business.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from itertools import count as counting
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

import click
from msgspec.structs import replace

from minikafka.chaos.machine import run as command_output
from minikafka.chaos.outcome import CLEAN
from minikafka.chaos.reading import find, library, read, seconds_of
from minikafka.chaos.runner import PICTURE, check, play
from minikafka.chaos.target import SIMULATOR, lacks, target_names
from minikafka.cli.running import FAILED, Failure, Misuse, command_group, lone_command, run
from minikafka.cli.tables import (
    EXISTING_FILE,
    FOLDER,
    console,
    list_output_option,
    output_option,
    print_found,
    print_json,
)
from minikafka.errors import WorldError
from minikafka.hosting.secured import PROTOCOLS
from minikafka.world.system import command_line, is_running


class Duration(click.ParamType[float]):
    """A time with its unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; a usage error for anything else, and for less than nothing."""
        if isinstance(value, float):
            return value
        try:
            seconds = seconds_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds < 0:
            self.fail(f"{value!r}: a duration cannot be negative", param, ctx)
        return seconds


PROJECT: Final = "minikafka"
"""What docker-compose.yml calls itself."""

PROJECT_LABEL: Final = "com.docker.compose.project"
ROLE_LABEL: Final = "com.minikafka.role=broker"


class Processes:
    """Processes of brokers by their ids."""

    none_left: Final = "no broker is left to kill: no process of --pid runs"

    def __init__(self, pids: Sequence[int]) -> None:
        """Raises Misuse for a process that is no broker."""
        self._pids = pids
        strangers = [str(pid) for pid in pids if is_running(pid) and not self._is_broker(pid)]
        if strangers:
            raise Misuse(
                f"--pid {strangers[0]}: this process is no broker of minikafka, so nothing was killed; `minikafka up` "
                "prints the process ids of its brokers"
            )

    def living(self) -> Sequence[str]:
        """Those that run; another program may have got the number of one that has ended."""
        return [str(pid) for pid in self._pids if self._is_broker(pid)]

    @staticmethod
    def _is_broker(pid: int) -> bool:
        """Return True for ``minikafka serve`` and ``minikafka join``, however they were called."""
        return any(
            program.rpartition("/")[2] == "minikafka" and command in ("serve", "join")
            for program, command in pairwise(command_line(pid))
        )

    def kill(self, victim: str) -> None:
        """SIGKILL; PermissionError when it is another user's."""
        os.kill(int(victim), signal.SIGKILL)

    def start(self, victim: str) -> bool:  # noqa: ARG002 - as Containers has it
        """Return False: it is not known here how the process was started."""
        return False


class Containers:
    """The brokers of a compose project: containers with the label ``com.minikafka.role=broker``."""

    def __init__(self, project: str) -> None:
        self.none_left: Final = (
            f"no broker is left to kill: no running container has the labels {PROJECT_LABEL}={project} and "
            f"{ROLE_LABEL}; `docker compose up` starts some. A broker of `minikafka up` is killed by its number: --pid"
        )
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


Victims: TypeAlias = Processes | Containers


@lone_command("kill")
@click.option("--pid", "pids", type=click.IntRange(min=2), multiple=True, help="Process id of a broker (repeatable).")
@click.option("--compose", "project", metavar="PROJECT", help="The brokers of a compose project.  [minikafka]")
@click.option("--random", "is_random", is_flag=True, help="Choose each broker at random (default: in turn).")
@click.option("--interval", "interval_s", type=Duration(), help="Kill again after this long, such as 30s.")
@click.option("--down", "down_s", type=Duration(), default=5.0, help="Start a container again after this.  [5s]")
@click.option("--count", type=click.IntRange(min=1), help="Number of brokers to kill.  [1, or endless with --interval]")
@click.option("--seed", type=int, help="Seed of the draws of --random.")
def kill_command(
    pids: tuple[int, ...],
    project: str | None,
    is_random: bool,
    interval_s: float | None,
    down_s: float,
    count: int | None,
    seed: int | None,
) -> None:
    """Kill one broker, or one every --interval, with SIGKILL.

    Examples:
      minikafka chaos kill --random --interval 30s
      minikafka chaos kill --compose mine --down 10s
      minikafka chaos kill --pid 4711 --pid 4712 --pid 4713 --random --interval 1m --count 2

    Without --interval one broker is killed, once. Containers are started again after --down; processes are not.
    """
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
            raise Failure(victims.none_left)
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


JOURNALS: Final = ("journal.jsonl", "broker-*/journal.jsonl", "plan.json")
"""What the replay page is made of: one journal of all brokers' processes, one of each host or container, a plan."""


@command_group()
def command() -> None:
    """Hurt a cluster under load, by a scenario or at random, and judge what came of it.

    Examples:
      minikafka chaos list
      minikafka chaos run zombie-leader
      minikafka chaos run storm --duration 10m -o json
      minikafka chaos kill --random --interval 30s
    """


@command.command("list")
@click.argument("files", nargs=-1, type=EXISTING_FILE)
@list_output_option
def list_command(files: tuple[Path, ...], output: str) -> None:
    """Show the scenarios of the library (or of FILES), what each teaches, and where it can be played.

    Examples:
      minikafka chaos list
      minikafka chaos list mine.toml -o json
    """
    scenarios = [read(path) for path in files or library()]
    rows = [
        {
            "name": each.name,
            "teaches": each.teaches,
            "faults": list(each.faults()),
            "targets": [name for name in target_names() if not lacks(name, each)],
        }
        for each in scenarios
    ]
    cells = [(str(row["name"]), ",".join(row["faults"]), ",".join(row["targets"]), str(row["teaches"])) for row in rows]
    if output == "table" and sys.stdout.isatty():
        _print_narrow(cells, console().width)
        return
    print_found(output, {"scenarios": rows}, ("SCENARIO", "FAULTS", "TARGETS", "TEACHES"), cells)


def _print_narrow(rows: Sequence[tuple[str, ...]], width: int) -> None:
    """Print each scenario as sentences, folded at the terminal's width."""
    for name, faults, targets, teaches in rows:
        for line in textwrap.wrap(f"{name}: {teaches}", width, subsequent_indent="  "):
            click.echo(line)
        for line in textwrap.wrap(f"  faults: {faults}; targets: {targets}", width, subsequent_indent="  "):
            click.echo(line)


@command.command("run")
@click.argument("scenario")
@click.option(
    "--target",
    default="processes",
    show_default=True,
    help="Where the cluster runs: simulator, processes, netns or compose.",
)
@click.option("--duration", "duration_s", type=Duration(), help="Duration of the load, such as 60s or 10m.")
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Seed that decides which brokers are hit, and when."
)
@click.option(
    "--security-protocol",
    "protocol",
    type=click.Choice(PROTOCOLS),
    help="How clients connect to the cluster (default: as the scenario says); others than PLAINTEXT: netns only.",
)
@click.option(
    "--keep",
    type=FOLDER,
    metavar="DIR",
    help="Keep logs, history, journal, report and picture here.  [a temporary directory, kept when damaged or failed]",
)
@output_option
def run_command(
    scenario: str,
    target: str,
    duration_s: float | None,
    seed: int,
    protocol: str | None,
    keep: Path | None,
    output: str,
) -> None:
    """Play SCENARIO, a name of the library or a file, under load; tell what came of it.

    Examples:
      minikafka chaos run kill-loop
      minikafka chaos run zombie-leader --target simulator --seed 7
      minikafka chaos run storm --duration 10m --keep /tmp/storm
      minikafka chaos run mine.toml -o json

    Exit code 0: clean, no promise was broken (losses that the scenario's settings allow are named); 1: damaged;
    2: the file is wrong, or the target cannot make one of its faults; 130: interrupted.
    """
    chosen = read(find(scenario))
    if protocol is not None:
        chosen = replace(chosen, cluster=replace(chosen.cluster, security_protocol=protocol))
    check(chosen, target, duration_s)
    folder = keep or Path(tempfile.mkdtemp(prefix="minikafka-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    keeps = keep is not None
    try:
        if target == SIMULATOR:
            from minikafka.chaos import simulator  # noqa: PLC0415 - whole brokers: only who simulates waits for them

            outcome = simulator.play(chosen, seed=seed, folder=folder, duration_s=duration_s)
        else:
            outcome = run(lambda: play(chosen, target, seed=seed, folder=folder, duration_s=duration_s, say=_say))
        keeps = keeps or outcome.verdict != CLEAN
    except Exception:  # no interruption: a broker did not start again, say, and its log has the reason
        keeps = True
        click.echo(f"logs and history: {folder}", err=True)
        raise
    finally:
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)
    if output == "json":
        print_json({**outcome.to_json(), "folder": str(folder) if keeps else None})
    else:
        click.echo(outcome.render())
    if keeps:
        _tell_files(folder)
    if outcome.verdict != CLEAN:
        raise click.exceptions.Exit(FAILED)


def _say(text: str) -> None:
    """Progress, beside the result."""
    click.echo(f"{time.strftime('%H:%M:%S')}  {text}", err=True)


def _tell_files(folder: Path) -> None:
    click.echo(f"history, report.json and {PICTURE}: {folder}", err=True)
    journals = [path for form in JOURNALS for path in sorted(folder.glob(form))]
    if journals:
        shown = " ".join(map(str, journals))
        click.echo(f"step by step: minikafka sim show {shown} --html {folder / 'replay.html'}", err=True)


command.add_command(kill_command)
