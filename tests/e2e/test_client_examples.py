"""The examples of docs/clients.md, as they stand: kcat's commands and the programs for the Python clients of Kafka."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.console import Shell, matches, steps_of
from tests.e2e.test_processes import TIMEOUT_S, Up
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.e2e

PAGE = ROOT / "docs" / "clients.md"
ADDRESS = "localhost:9092"
PROGRAMS = re.findall(r"## ([^\n]*)\n\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Stands for the page's address: brokers of `minikafka up`, with the page's topic."""
    folder = tmp_path_factory.mktemp("clients")
    with Up(folder / "data") as up:
        first = up.bootstrap.split(",")[0].replace("127.0.0.1", "localhost")
        with Shell(folder) as shell:
            _, create = commands("minikafka")
            printed, status = shell.run(f"{create.command} -b {first}")
            assert status == 0, printed
        yield first
        assert up.end() == 0


def commands(tool: str):
    """The page's commands for this tool, in order."""
    return [step for step in steps_of(PAGE) if re.search(rf"(^|\| ){tool} ", step.command)]


@pytest.mark.kcat
def test_the_examples_for_kcat_print_what_the_page_shows(address, tmp_path):
    """Issue 14, Build 6: a produced record is listed and consumed."""
    steps = commands("kcat")
    assert len(steps) == 3
    with Shell(tmp_path) as shell:
        for step in steps:
            printed, status = shell.run(step.command.replace(ADDRESS, address))
            assert status == 0, printed
            assert matches(step.output or "...", printed), f"{step.command}\nprints\n{printed}"


@pytest.mark.parametrize("client, program", PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_the_example_for_a_python_client_prints_its_record(address, client, program):
    """Issue 14, Build 6: the program of the page produces a record and consumes it."""
    assert program.count(ADDRESS) == 2
    done = subprocess.run(
        [sys.executable, "-c", program.replace(ADDRESS, address)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'tea'\n"


def test_there_is_a_program_for_each_python_client():
    """A heading that was reworded would leave its program untested."""
    assert [name for name, _ in PROGRAMS] == ["confluent-kafka (Python)", "aiokafka (Python)", "kafka-python"]
