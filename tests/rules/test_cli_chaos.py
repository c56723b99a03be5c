"""``minikafka chaos``: list for people and programs, and kill for people who only want to kill a broker (S38)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from minikafka.chaos.reading import library
from minikafka.cli import chaos
from minikafka.cli.root import root
from minikafka.errors import WorldError


def told(*arguments: str, code: int = 0):
    result = CliRunner().invoke(root, ["chaos", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_the_list_tells_what_each_teaches_and_where_it_can_be_played():
    """Issue 7 Build 1: `chaos list`; a fault that a target lacks keeps the scenario off it."""
    rows = json.loads(told("list", "-o", "json").stdout)["scenarios"]
    assert [row["name"] for row in rows] == [path.stem for path in library()]
    targets = {row["name"]: row["targets"] for row in rows}
    assert {"simulator", "processes"} <= set(targets["kill-loop"])
    assert "processes" not in targets["power-loss-all"]
    assert "zombie-leader" in told("list").stdout


def test_a_protocol_that_the_target_cannot_use_is_refused_before_anything_starts():
    """The option takes the place of the scenario's own `security-protocol`."""
    result = told("run", "kill-loop", "--target", "processes", "--security-protocol", "SASL_SSL", code=2)
    assert "processes cannot use SASL_SSL: only netns can" in result.stderr


@pytest.mark.parametrize(
    "names", [("journal.jsonl",), ("broker-1/journal.jsonl", "broker-2/journal.jsonl"), ("plan.json",)]
)
def test_a_kept_run_says_how_to_make_the_replay_page(names: tuple[str, ...], tmp_path, capsys):
    """Issue 7 Build 1: of the journal of all processes, of those of hosts and containers, of the simulator's plan."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    chaos._tell_files(tmp_path)
    shown = " ".join(str(tmp_path / name) for name in names)
    assert f"minikafka sim show {shown} --html {tmp_path / 'replay.html'}" in capsys.readouterr().err


@pytest.mark.parametrize("error", [WorldError("broker 2 ended with 1 (log: ...)"), KeyboardInterrupt()])
def test_a_run_that_fails_keeps_the_logs_of_its_brokers(error: BaseException, tmp_path, monkeypatch):
    """The error names a log that has the reason. A run that is interrupted leaves no files."""

    async def fails(*_: object, folder: Path, **__: object) -> None:
        (folder / "broker-2.log").touch()
        raise error

    monkeypatch.setattr(chaos, "play", fails)
    monkeypatch.setattr(chaos.tempfile, "mkdtemp", lambda **_: str(tmp_path / "run"))
    result = told("run", "kill-loop", code=1 if isinstance(error, WorldError) else 130)
    kept = (tmp_path / "run/broker-2.log").exists()
    assert (kept, str(tmp_path / "run") in result.stderr) == (isinstance(error, WorldError),) * 2


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen]]:
    """Processes that may be killed, because their command lines are those of brokers."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", "-m", "minikafka", "serve"]
    started = [subprocess.Popen(command) for _ in range(3)]
    while not all(chaos.command_line(each.pid) for each in started):
        time.sleep(0.01)  # just after Popen has returned, a process may have none yet
    yield started
    for each in started:
        each.kill()
        each.wait()


def test_one_process_is_killed_and_no_other(sleepers):
    """Without --interval it is one kill, of one that was named."""
    pids = [str(each.pid) for each in sleepers[:2]]
    output = told("kill", "--pid", pids[0], "--pid", pids[1], "--random", "--seed", "3").stdout
    dead = [each for each in sleepers if each.poll() is None]
    killed = next(pid for pid in pids if f"killed {pid}, one of 2" in output)
    victim = next(each for each in sleepers if str(each.pid) == killed)
    assert victim.wait(120) == -9
    assert sleepers[2].poll() is None
    assert len(dead) >= 2


def test_a_process_that_is_no_broker_is_not_killed(sleepers):
    """Any process with the number died: a slip in a pid ended an editor. No broker that was named with it is killed."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        named = ("--pid", str(sleepers[0].pid), "--pid", str(other.pid))
        assert f"--pid {other.pid}: this process is no broker of minikafka" in told("kill", *named, code=2).stderr
        assert [sleepers[0].poll(), other.poll()] == [None, None]
    finally:
        other.kill()
        other.wait()


def test_a_process_whose_command_line_is_not_there_yet_is_not_killed(sleepers, monkeypatch):
    """In its first moments a process has none, and kernel threads never have one. It counted as ended."""
    other = sleepers[1].pid
    known = chaos.command_line
    monkeypatch.setattr(chaos, "command_line", lambda pid: [] if pid == other else known(pid))
    named = ("--pid", str(sleepers[0].pid), "--pid", str(other))
    assert f"--pid {other}: this process is no broker of minikafka" in told("kill", *named, code=2).stderr
    assert sleepers[0].poll() is None


def test_a_load_of_years_is_refused():
    """As in a file: 10d is a slip for 10m."""
    assert "from 1s to 7d is possible" in told("run", "storm", "--duration", "8d", code=2).stderr
    assert (
        "from 1s to 7d is possible" in told("run", "storm", "--duration", "1ms", "--target", "simulator", code=2).stderr
    )


def test_nobody_to_kill(monkeypatch):
    """It says so; with nobody named it is the project of docker-compose.yml, by its label, and nothing else."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(chaos, "command_output", lambda *command: asked.append(command) or "")
    assert (
        "no running container has the labels com.docker.compose.project=minikafka"
        in told("kill", "--random", "--interval", "30s", code=1).stderr
    )
    assert [each[1] for each in asked] == ["ps"]
    assert "label=com.docker.compose.project=minikafka" in asked[0]
    assert "not both" in told("kill", "--pid", "4194303", "--compose", "mine", code=2).stderr
    assert "no process of --pid runs" in told("kill", "--pid", "4194303", code=1).stderr


def test_without_an_engine_it_says_how_processes_are_killed(monkeypatch):
    """Whoever ran `minikafka up` has no containers."""

    def fails(*_: str) -> str:
        raise WorldError("docker ps: is the daemon running?")

    monkeypatch.setattr(chaos, "command_output", fails)
    told_so = told("kill", "--random", code=1).stderr
    assert "docker ps: is the daemon running?" in told_so
    assert "--pid" in told_so


def test_containers_are_killed_in_turn_and_started_again(monkeypatch):
    """Issue 7: of a compose project; docker does not restart what was killed by hand, so this does."""
    asked: list[tuple[str, ...]] = []

    def docker(*command: str) -> str:
        asked.append(command)
        return '"kafka-2"\n"kafka-1"\n' if command[1] == "ps" else ""

    monkeypatch.setattr(chaos, "command_output", docker)
    output = told("kill", "--compose", "mine", "--interval", "1ms", "--down", "1ms", "--count", "3").stdout
    assert [each[1:] for each in asked if each[1] != "ps"] == [
        (verb, *rest, name)
        for name in ("kafka-1", "kafka-2", "kafka-1")
        for verb, rest in (("kill", ("--signal", "KILL")), ("start", ()))
    ]
    assert "label=com.docker.compose.project=mine" in asked[0]
    assert output.count("started kafka-1") == 2
