"""README and the tour run as they stand: commands, then Python programs. Their tests run in test_pytest_plugin.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.console import Shell, steps_of
from tests.e2e.test_processes import TIMEOUT_S, Up
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.e2e

README, TOUR = ROOT / "README.md", ROOT / "docs/tour.md"
DEFAULT = "127.0.0.1:9092"
FOLDER = "/tmp/minikafka"


def run_page(path: Path, commands: tuple[str, str], up: Up, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Run the commands between two texts of a page and then its programs, and return what each of them prints."""
    page = path.read_text(encoding="utf-8")
    first, last = (page[: page.index(text)].count("\n") for text in commands)
    address = up.bootstrap.split(",")[0]
    printed = {}
    with Shell(folder) as shell:
        for step in steps_of(path):
            if first < step.line < last:
                command = step.command.replace(DEFAULT, address).replace(FOLDER, str(folder / "data"))
                printed[step.command], status = shell.run(command)
                assert status == 0, f"{step.command}\n{printed[step.command]}"
    programs = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if DEFAULT in each]
    outputs = []
    for program in programs:
        done = subprocess.run(
            [sys.executable, "-c", program.replace(DEFAULT, address)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    return printed, outputs


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    """Three brokers, which the commands find although another cluster may have the default ports."""
    with Up(tmp_path / "data", "--brokers", "3") as running:
        monkeypatch.setenv("MINIKAFKA_BOOTSTRAP", running.bootstrap.split(",")[0])
        yield running
        assert running.end() == 0


def test_the_tour_runs_as_it_stands(up: Up, tmp_path: Path):
    """Issue 13, section 0: commands without -b find the cluster; the Python program has its imports and an end."""
    printed, (_, native) = run_page(TOUR, ("## curl", "## Chaos"), up, tmp_path)
    assert len(printed) == 8
    (consumed,) = (text for command, text in printed.items() if "minikafka consume" in command)
    # Records of different partitions may come in any order.
    assert sorted(consumed.split("\n")[:3]) == ["0 0 bob milk", '2 0 ann {"item":"tea","count":2}', "2 1 ann tea"]
    (dumped,) = (text for command, text in printed.items() if "log dump" in command)
    assert "baseOffset" in dumped
    sent = re.match(r"written to partition (\d) at offset (\d+)\n", native)
    assert sent is not None, native
    assert native.splitlines()[-1] == f"{sent[1]} {sent[2]} b'ann' b'tea'"


def test_readme_runs_as_it_stands(up: Up, tmp_path: Path):
    """Issue 16, item 8: the commands with curl and the programs of README, in README's order."""
    printed, (_, native) = run_page(README, ("**curl**", "**Any Kafka client**"), up, tmp_path)
    created, produced, read = printed.values()
    assert '"partition_count":3' in "".join(created.split())
    assert '"offset":0' in "".join(produced.split())
    assert '"key":"ann"' in "".join(read.split())
    assert native == "written to partition 2 at offset 1\n"
