"""The structured log and journal, how a broker's process is started, and a client without a disk."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minikafka.config import BrokerConfig
from minikafka.errors import DiskFailed, OutcomeUnknown
from minikafka.events import CATALOGUE, DEBUG, INFO, WARNING
from minikafka.hosting.process import broker_environment, malloc_environment
from minikafka.ports import CAUSE, HOT_EVENTS
from minikafka.types import Address
from minikafka.world.events import EventLog, as_text
from minikafka.world.real import real_world


def test_events_are_json_lines_with_cause_and_level():
    """D9: every state change tells why."""
    stream = io.StringIO()
    events = EventLog(node="1", stream=stream, wall_ns=lambda: 1_700_000_000_123_456_789)
    token = CAUSE.set("produce-7")
    events("isr_shrunk", partition=("orders", 0), isr={3, 1}, event="hidden?")
    CAUSE.reset(token)
    events("hw_advanced", high_watermark=4)
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {
            "ts_ms": 1_700_000_000_123,
            "level": "warning",
            "node": "1",
            "event": "isr_shrunk",
            "cause": "produce-7",
            "partition": ["orders", 0],
            "isr": [1, 3],
            "event_": "hidden?",
        }
    ], "frequent events stay out of the log"


def test_the_journal_has_every_event_at_once_and_is_appended_to(tmp_path: Path):
    """What was told before a kill -9 can be read afterwards."""
    path = tmp_path / "logs" / "journal.jsonl"
    for run in range(2):
        stream = io.StringIO()
        events = EventLog(node="1", stream=stream, journal_path=str(path))
        events("hw_advanced", high_watermark=run)
        assert len(path.read_text().splitlines()) == run + 1, "written before close"
        assert stream.getvalue() == ""
        events.close()
        events("told_after_close")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["hw_advanced"] * 2
    assert "told_after_close" in stream.getvalue()


class Pipe(io.StringIO):
    """Standard error whose reader has left, and which a log collector may read again."""

    has_reader = False

    def flush(self) -> None:
        if not self.has_reader:
            raise BrokenPipeError(32, "Broken pipe")


def test_a_log_that_cannot_be_written_is_reported_once_to_the_others_and_raises_nothing(tmp_path: Path):
    """`minikafka serve 2>&1 | head`: whatever was about to report an event ended half way, and the broker hung."""
    path, stream, seen = tmp_path / "journal.jsonl", Pipe(), []
    events = EventLog(node="1", stream=stream, journal_path=str(path))
    events.observe(lambda kind, facts: seen.append((kind, facts)))
    for has_reader in (False, False, True, False):
        stream.has_reader = has_reader
        events("leader_lost", partition="orders-0")
    expected = ["leader_lost", "log_not_written", "leader_lost", "leader_lost", "leader_lost", "log_not_written"]
    assert [kind for kind, _ in seen] == expected
    assert seen[1][1] == {"where": "the log", "why": "[Errno 32] Broken pipe"}
    events.close()
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == expected


def test_a_journal_that_cannot_be_written_is_reported_to_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its disk may be another one than that of the data directory."""
    stream = io.StringIO()
    events = EventLog(node="1", stream=stream, journal_path=str(tmp_path / "journal.jsonl"))
    full = Pipe()
    monkeypatch.setattr(full, "write", lambda _: full.flush())
    events._journal.close()
    monkeypatch.setattr(events, "_journal", full)
    events("leader_lost", partition="orders-0")
    events.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["log_not_written", "leader_lost"]
    assert lines[0]["where"] == str(tmp_path / "journal.jsonl")


@pytest.mark.parametrize(
    ("given", "file_mode", "folder_mode"), [({}, 0o600, 0o700), ({"file_mode": 0o640}, 0o640, 0o750)]
)
def test_the_journal_has_the_permissions_of_other_files(
    tmp_path: Path, given: dict[str, int], file_mode: int, folder_mode: int
):
    """It names topics and users; and if it is in the data directory, it makes that folder. An old one stays as it is."""
    path = tmp_path / "data" / "journal.jsonl"
    before = os.umask(0o022)
    try:
        EventLog(journal_path=str(path), **given).close()
        assert path.stat().st_mode & 0o777 == file_mode
        assert path.parent.stat().st_mode & 0o777 == folder_mode
        path.chmod(0o644)
        EventLog(journal_path=str(path), **given).close()
        assert path.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_levels_can_be_lowered_and_observers_see_everything():
    """Metrics count events whether or not they are logged."""
    counted: list[str] = []
    stream = io.StringIO()
    quiet, loud = EventLog(stream=stream), EventLog(stream=stream, level=DEBUG)
    quiet.observe(lambda kind, _: counted.append(kind))
    quiet("hw_advanced")
    loud("hw_advanced")
    assert counted == ["hw_advanced"]
    assert len(stream.getvalue().splitlines()) == 1


def test_hot_events_are_unheard_only_while_no_log_journal_or_observer_reads_them(tmp_path: Path):
    """Rules may leave out facts that nothing reads, and nothing else."""
    stream = io.StringIO()
    events = EventLog(stream=stream)
    assert events.unheard.kinds == HOT_EVENTS
    events.observe(lambda _kind, _facts: None, only_counts=True)
    assert events.unheard.kinds == HOT_EVENTS
    events.level = DEBUG
    assert events.unheard.kinds == set(), "mk.log.level=debug, set while the broker runs"
    events.level = INFO
    assert events.unheard.kinds == HOT_EVENTS
    events.observe(lambda _kind, _facts: None)
    assert events.unheard.kinds == set()
    journaled = EventLog(stream=stream, journal_path=str(tmp_path / "journal.jsonl"))
    assert journaled.unheard.kinds == set()
    journaled.close()
    assert journaled.unheard.kinds == HOT_EVENTS


def test_every_hot_event_is_left_out_of_the_default_log():
    """Else the log would miss what rules only count."""
    assert {CATALOGUE[kind].level for kind in HOT_EVENTS} == {DEBUG}


def test_the_log_for_people_is_a_line_of_words_and_an_indented_traceback():
    """Issue 5: text by default; a line can be searched and cut with the usual tools."""
    stream = io.StringIO()
    events = EventLog(node="1", stream=stream, render=as_text, wall_ns=lambda: 1_700_000_000_123_456_789)
    token = CAUSE.set("Produce#7")
    events("isr_shrunk", partition="orders-0", old=(1, 2, 3), new=(), remotes={"2": 4}, note="")
    CAUSE.reset(token)
    events("broker_failed", node=1, why="a task failed: x=1", traceback="Traceback\n  line\n", clean=False)
    assert stream.getvalue() == (
        "2023-11-14T22:13:20.123Z WARNING isr_shrunk node=1 cause=Produce#7 partition=orders-0 old=1,2,3 new=none"
        ' remotes={"2":4}\n'
        '2023-11-14T22:13:20.123Z ERROR   broker_failed node=1 why="a task failed: x=1" clean=false\n'
        "    Traceback\n"
        "      line\n"
    )


@pytest.mark.parametrize("text", ["two words", "a=b", 'say "x"', "line\nbreak", "\x1b[31mred", "\u202egpj"])
def test_nothing_that_a_client_sends_can_forge_a_line_of_the_log(text: str):
    """A topic's name or a client's reason may hold anything; a log line is one line, and no terminal obeys it."""
    stream = io.StringIO()
    EventLog(stream=stream, render=as_text)("fetch_failed", why=text)
    (line,) = stream.getvalue().split("\n")[:-1]
    assert line.isprintable()
    assert json.loads(line.partition("why=")[2]) == text


def test_secrets_are_written_nowhere(tmp_path: Path):
    """Issue 5: no secrets in logs, whoever passes one as a fact."""
    stream = io.StringIO()
    path = tmp_path / "journal.jsonl"
    events = EventLog(stream=stream, journal_path=str(path))
    events("broker_started", sasl_password="hunter2", token="hunter2", topic="hunter")
    events.close()
    for text in (stream.getvalue(), path.read_text()):
        assert "hunter2" not in text
        assert '"sasl_password":"[hidden]"' in text


def test_an_unclean_election_is_a_warning():
    """It may lose committed records: nobody should have to raise the level to hear of it."""
    stream = io.StringIO()
    events = EventLog(stream=stream, level=WARNING)
    events("leader_elected", clean=True)
    events("leader_elected", clean=False)
    assert len(stream.getvalue().splitlines()) == 1


def test_a_brokers_environment_keeps_what_the_user_set():
    """PERFORMANCE section 1, M; the user knows better."""
    environment = broker_environment({"MALLOC_TOP_PAD_": "7", "HOME": "/nowhere"})
    assert environment["MALLOC_TOP_PAD_"] == "7"
    assert environment["HOME"] == "/nowhere"
    assert environment["MALLOC_MMAP_THRESHOLD_"] == malloc_environment()["MALLOC_MMAP_THRESHOLD_"]


def test_a_process_starts_itself_again_with_the_environment_once():
    """Same pid, so that a supervisor does not notice."""
    code = (
        "import os, sys\n"
        "from minikafka.hosting.process import exec_with_malloc_environment\n"
        "print(os.getpid(), os.environ.get('MALLOC_TRIM_THRESHOLD_'), flush=True)\n"
        "exec_with_malloc_environment(['-c', sys.argv[1], sys.argv[1]])\n"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code, code], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    (first, unset), (second, value) = (line.split() for line in done.stdout.splitlines())
    assert first == second
    assert (unset, value) == ("None", malloc_environment()["MALLOC_TRIM_THRESHOLD_"])


async def test_a_client_has_no_disk():
    """Touching it says so instead of writing somewhere."""
    async with real_world() as real:
        with pytest.raises(DiskFailed, match="client"):
            real.world.disk.open("log")


async def test_a_brokers_world_comes_from_its_config(tmp_path: Path):
    """log.dirs, node.id, limits and the journal."""
    config = BrokerConfig(
        node_id=7,
        log_dirs=str(tmp_path / "data"),
        journal_path=str(tmp_path / "journal.jsonl"),
        log_format="json",
    )
    stream = io.StringIO()
    async with real_world(config, log_stream=stream) as real:
        real.world.disk.open("log").close()
        real.world.events("broker_started")
    assert (tmp_path / "data" / "log").exists()
    assert json.loads(stream.getvalue())["node"] == "7"
    assert (tmp_path / "journal.jsonl").read_text() == stream.getvalue()


async def test_a_closed_or_killed_world_makes_no_more_calls(tmp_path: Path):
    """Kill fences the network too."""
    for end in ("close", "kill"):
        real = real_world(data_dir=str(tmp_path))
        await getattr(real, end)()
        with pytest.raises(OutcomeUnknown):
            await real.network.call(Address("127.0.0.1", 1), "Any", [], deadline=real.world.clock.now() + 1)
