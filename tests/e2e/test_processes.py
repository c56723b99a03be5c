"""The command line as a user has it: real processes, real pipes, real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

import psutil
import pytest

from minikafka.log.names import CLEAN_SHUTDOWN
from tests.e2e.commands import completed

pytestmark = pytest.mark.e2e

MINIKAFKA = [sys.executable, "-m", "minikafka"]
TIMEOUT_S = 180


def started(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run one command as a user starts it."""
    return subprocess.run(
        [*MINIKAFKA, *arguments], input=given, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def run(*arguments: str, given: str = "", code: int = 0) -> str:
    """Standard output of one command; its exit code must be ``code``, and nobody may see a traceback."""
    done = started(*arguments, given=given) if arguments[0] == "serve" else completed(*arguments, given=given)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


class Up:
    """A running ``minikafka up``, and what it has said."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*MINIKAFKA, "up", "--data-dir", str(folder), "--base-port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.brokers: dict[int, dict] = {}
        self.bootstrap = ""
        while not self.bootstrap:
            told = self.line()
            if told.get("ready"):
                self.bootstrap = told["bootstrap_servers"]
            else:
                self.brokers[told["broker"]] = told

    def line(self) -> dict:
        """The next JSON line."""
        text = self.process.stdout.readline()
        assert text, self.process.communicate()[1]
        return json.loads(text)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code. Every broker is gone then."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=TIMEOUT_S)
        assert "Traceback" not in errors
        assert not any(psutil.pid_exists(each["pid"]) for each in self.brokers.values())
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=TIMEOUT_S)


def test_the_tour(tmp_path):
    """Issue item 7: up, create, produce, consume, describe, kill -9, serve again, Ctrl-C; JSON as the contract has it."""
    with Up(tmp_path, "--brokers", "3", "--config", "broker.session.timeout.ms=3000") as up:
        assert sorted(up.brokers) == [1, 2, 3]
        for node, told in up.brokers.items():
            assert told.keys() == {"broker", "pid", "url", "data_dir", "config"}
            assert told["config"] == str(tmp_path / f"broker-{node}" / "broker.properties")
            assert told["url"].removeprefix("http://") in up.bootstrap.split(",")
            assert psutil.pid_exists(told["pid"])
        at = ("-b", up.bootstrap)
        run("topics", "create", "orders", "--partitions", "2", "--replication-factor", "3", *at)
        refused = run("topics", "create", "orders", "--partitions", "2", *at, code=1)
        assert "TOPIC_ALREADY_EXISTS" in refused
        assert refused.count("\n") == 1
        summary = run("produce", "orders", *at, "--key-separator", ":", given="ann:tea\nbob:milk\nalone\n")
        assert json.loads(summary) == {"sent": 3, "acknowledged": 3, "failed": 0, "unknown": 0}

        # Kill one with -9: reported, not restarted; the others carry on; `serve` brings it back.
        victim = up.brokers[1]
        os.kill(victim["pid"], signal.SIGKILL)
        death = up.line()
        assert (death["broker"], death["died"], death["returncode"]) == (1, True, -9)
        summary = run("produce", "orders", *at, given="late\n")
        assert json.loads(summary)["acknowledged"] == 1
        again = subprocess.Popen([*MINIKAFKA, "serve", victim["config"]], stdout=subprocess.PIPE, text=True)
        assert json.loads(again.stdout.readline())["broker"] == 1

        read = run("consume", "orders", *at, "--from-beginning", "--exit-at-end", "-o", "json")
        records = [json.loads(line) for line in read.splitlines()]
        assert sorted(str(each["value"]) for each in records) == ["alone", "late", "milk", "tea"]
        assert {each["key"] for each in records} == {"ann", "bob", None}
        assert set(records[0]) == {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}
        text = run("consume", "orders", *at, "--from-beginning", "--max-records", "4", "-f", "%t %s\\n")
        assert sorted(text.splitlines()) == ["orders alone", "orders late", "orders milk", "orders tea"]
        assert json.loads(run("quorum", "describe", *at, "-o", "json"))["leader_id"] in (1, 2, 3)

        again.send_signal(signal.SIGINT)
        assert again.wait(TIMEOUT_S) == 0
        again.stdout.close()
        assert up.end(signal.SIGINT) == 0
    for node in (2, 3):
        assert (tmp_path / f"broker-{node}" / CLEAN_SHUTDOWN).exists()


def test_describe_as_the_contract_has_it_and_a_restart_on_the_same_files(tmp_path):
    """Issue item 7: `topics describe` in the contract's words; an existing DIR is the same cluster, on the same ports."""
    with Up(tmp_path, "--brokers", "1") as up:
        run("topics", "create", "orders", "--partitions", "1", "--config", "retention.ms=1000", "-b", up.bootstrap)
        bootstrap = up.bootstrap
        assert up.end() == 0
    with Up(tmp_path) as up:
        assert up.bootstrap == bootstrap
        described = json.loads(run("topics", "describe", "orders", "-b", bootstrap, "-o", "json"))
        (topic,) = described["topics"]
        assert topic.keys() == {"topic", "topic_id", "config", "partitions"}
        assert (topic["topic"], topic["config"], len(topic["topic_id"])) == ("orders", {"retention.ms": "1000"}, 22)
        (partition,) = topic["partitions"]
        assert (partition["partition"], partition["leader"], partition["replicas"], partition["isr"]) == (
            0,
            1,
            [1],
            [1],
        )
        assert partition.keys() == {
            *("partition", "leader", "leader_epoch", "partition_epoch"),
            *("controller_epoch", "replicas", "isr", "elr"),
            *("last_known_elr", "adding_replicas", "removing_replicas"),
        }
        listed = json.loads(run("topics", "list", "-b", bootstrap, "-o", "json"))
        assert listed["topics"] == [
            {"topic": "orders", "topic_id": topic["topic_id"], "partition_count": 1, "replication_factor": 1}
        ]
        assert run("topics", "delete", "orders", "-b", bootstrap) == "Deleted topic orders.\n"
        assert json.loads(run("topics", "describe", "-b", bootstrap, "-o", "json")) == {"topics": []}
        assert up.end() == 0


def test_no_broker_survives_its_parent(tmp_path):
    """Rule of hosting/processes.py: kill -9 of `up` leaves nothing behind."""
    with Up(tmp_path, "--brokers", "2") as up:
        children = [psutil.Process(each["pid"]) for each in up.brokers.values()]
        up.process.kill()
        up.process.communicate(timeout=TIMEOUT_S)
        gone, alive = psutil.wait_procs(children, timeout=TIMEOUT_S)
        assert (len(gone), alive) == (2, [])


def test_a_broker_that_cannot_start_says_why_in_one_sentence(tmp_path):
    """STYLE: exit code 1 (it failed) or 2 (it was called wrongly), a sentence, no traceback."""
    good = tmp_path / "good.properties"
    good.write_text(f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'data'}\n")
    with subprocess.Popen([*MINIKAFKA, "serve", str(good)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as first:
        assert json.loads(first.stdout.readline())["broker"] == 1
        taken = run("serve", str(good), code=1)
        assert "in use by another broker" in taken.splitlines()[-1]
        first.terminate()
        assert first.wait(TIMEOUT_S) == 0
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        good.write_text(good.read_text().replace("127.0.0.1:0", address))
        taken = run("serve", str(good), code=1).splitlines()[-1]
        assert taken.startswith(f"minikafka: listener PLAINTEXT at {address}: Address already in use")
        assert taken.endswith("; stop what listens there, or change listeners")
    bad = tmp_path / "bad.properties"
    bad.write_text("num.partitons=3\n")
    assert "did you mean num.partitions?" in run("serve", str(bad), code=2)


def test_nobody_there_is_a_sentence():
    """The commonest mistake of all: no cluster runs where one looks for it."""
    told = run("produce", "orders", "-b", "127.0.0.1:1", given="x\n", code=1)
    assert "minikafka up" in told
    assert told.count("\n") == 1


def test_a_forked_command_behaves_as_a_started_one():
    """Most tests share the imports of the command line (tests/e2e/commands.py): exit code and streams must not differ."""
    for arguments, given in (
        (("produce", "orders", "-b", "127.0.0.1:1"), "x\n"),
        (("quorum", "descibe"), ""),
        (("topics", "--help"), ""),
    ):
        forked, real = completed(*arguments, given=given), started(*arguments, given=given)
        assert (forked.returncode, forked.stdout, forked.stderr) == (real.returncode, real.stdout, real.stderr)
