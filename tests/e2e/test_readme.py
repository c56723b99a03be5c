"""README's tour runs as it stands: the commands, then the Python program. Its tests are run in test_pytest_plugin.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.e2e.console import Shell, steps_of
from tests.e2e.test_processes import TIMEOUT_S, Up
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.e2e

README = ROOT / "README.md"
DEFAULT = "127.0.0.1:9092"
FOLDER = "/tmp/minikafka"


def test_the_tour_runs_as_it_stands(tmp_path, monkeypatch):
    """Issue 13, section 0: commands without -b find the cluster; the Python program has its imports and an end."""
    page = README.read_text(encoding="utf-8")
    first, last = (page[: page.index(words)].count("\n") for words in ("**curl**", "**Chaos.**"))
    data = tmp_path / "data"
    with Up(data, "--brokers", "3") as up:
        address = up.bootstrap.split(",")[0]
        # Stands for the default address: another cluster may have that on this machine.
        monkeypatch.setenv("MINIKAFKA_BOOTSTRAP", address)
        with Shell(tmp_path) as shell:
            printed = {}
            for step in steps_of(README):
                if first < step.line < last:
                    command = step.command.replace(DEFAULT, address).replace(FOLDER, str(data))
                    printed[step.command], status = shell.run(command)
                    assert status == 0, f"{step.command}\n{printed[step.command]}"
        assert len(printed) == 8
        (consumed,) = (text for command, text in printed.items() if "minikafka consume" in command)
        # Records of different partitions may come in any order.
        assert sorted(consumed.split("\n")[:3]) == ["0 0 bob milk", '2 0 ann {"item":"tea","count":2}', "2 1 ann tea"]
        (dumped,) = (text for command, text in printed.items() if "log dump" in command)
        assert "baseOffset" in dumped

        (program,) = (each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "asyncio.run" in each)
        done = subprocess.run(
            [sys.executable, "-c", program.replace(DEFAULT, address)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        sent = re.match(r"written to partition (\d) at offset (\d+)\n", done.stdout)
        assert sent is not None, done.stdout
        assert done.stdout.splitlines()[-1] == f"{sent[1]} {sent[2]} b'ann' b'tea'"
        assert up.end() == 0
