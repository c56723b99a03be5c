"""The compiled rules behave as their sources: the tests of the rules, fixed seeds, and brokers as processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.tidy.sources import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.compiled]

TIMEOUT_S = 500
COMPILED = {**os.environ, "MINIKAFKA_PURE": "0"}
REPEATED = {**COMPILED, "HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE", "again")}
PURE = {**os.environ, "MINIKAFKA_PURE": "1"}

FILES = (
    "tests/contracts/test_disk.py",
    "tests/contracts/test_os_disk.py",
    "tests/kafka/test_frames.py",
    "tests/kafka/test_produce_translation.py",
    "tests/kafka/test_session.py",
    "tests/kafka/test_session_quotas.py",
    "tests/rules/test_cleaner.py",
    "tests/rules/test_codec.py",
    "tests/rules/test_fetch_session.py",
    "tests/rules/test_log_epochs.py",
    "tests/rules/test_log_index.py",
    "tests/rules/test_log_recovery.py",
    "tests/rules/test_meters.py",
    "tests/rules/test_parked.py",
    "tests/rules/test_partition_log.py",
    "tests/rules/test_producer_state.py",
    "tests/rules/test_quotas.py",
    "tests/rules/test_replication_follower.py",
    "tests/rules/test_replication_high_watermark.py",
    "tests/rules/test_replication_histories.py",
    "tests/rules/test_replication_leader.py",
    "tests/rules/test_replication_partition.py",
    "tests/rules/test_replication_rounds.py",
    "tests/rules/test_validate.py",
    "tests/e2e/test_local_cluster.py::test_people_find_a_door",
    "tests/e2e/test_processes.py::test_the_tour",
)
NEED_SOURCES = (
    # Replace functions of the rules, which compiled callers call directly.
    "test_a_rule_that_is_taken_away_is_missed",
    "test_frames_are_walked_in_parts",
    # Closes a coroutine that has ended: nothing in CPython, an AttributeError in mypyc. asyncio never does that.
    "test_a_stop_in_the_midst_of_a_round_and_then_a_power_cut_lose_nothing",
)

SEEDS = """
import sys
from minikafka import compiled
from minikafka.sim.run import run
from minikafka.sim.seeds import plan_of
print(compiled.build(), file=sys.stderr)
for seed in (1, 3, 18):
    report = run(plan_of(seed, operations=60, faults=6))
    print(seed, report.trace, report.steps, report.virtual_s, sorted(report.marks.items()))
"""

CLUSTER = """
import json, urllib.request
from minikafka import LocalCluster
with LocalCluster(1) as cluster:
    print(json.load(urllib.request.urlopen(f"http://{cluster.bootstrap}/v1/cluster"))["build"])
"""

THROWN = """
from minikafka import compiled
from minikafka.broker.dispatch import settled

class Waiting:
    def __await__(self):
        return self
    def __iter__(self):
        return self
    def __next__(self):
        return None
    def throw(self, *thrown):
        print(compiled.build(), thrown)
        raise thrown[0]

answer = settled(Waiting())
answer.send(None)
try:
    answer.throw(OSError("a failed sync"))
except OSError as error:
    print(error)
"""


def python(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_tests_of_the_rules_pass_on_the_compiled_rules():
    """The same tests as on the sources, except those that replace parts of the rules."""
    wanted = " and ".join(f"not {name}" for name in NEED_SOURCES)
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-k", wanted)
    done = python("-m", "pytest", *options, *FILES, environment=REPEATED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_fixed_seeds_have_the_same_traces_on_both_builds():
    """Every step and every event of a simulated cluster is the same, byte for byte."""
    compiled, pure = python("-c", SEEDS, environment=COMPILED), python("-c", SEEDS, environment=PURE)
    assert (compiled.stderr, pure.stderr) == ("compiled\n", "pure Python\n")
    assert compiled.stdout == pure.stdout
    assert len(compiled.stdout.splitlines()) == 3


@pytest.mark.parametrize(
    "environment, build", [(COMPILED, "compiled"), (PURE, "pure Python")], ids=["compiled", "pure"]
)
def test_the_version_and_the_cluster_name_the_build(environment: dict[str, str], build: str):
    """A bug report and a figure of a benchmark say which of the two ran."""
    version = python("-m", "minikafka", "--version", environment=environment).stdout
    assert version.partition(" (")[2].startswith(build), version
    assert python("-c", CLUSTER, environment=environment).stdout == f"{build}\n"


@pytest.mark.parametrize(
    "environment, build", [(COMPILED, "compiled"), (PURE, "pure Python")], ids=["compiled", "pure"]
)
def test_an_exception_is_passed_on_as_one_argument(environment: dict[str, str], build: str):
    """Of three, as mypyc's own runtime passes on, Python 3.12 and newer warn: where warnings are errors, in place of the
    exception.
    """
    thrown = python("-c", THROWN, environment=environment)
    assert thrown.stdout == f"{build} (OSError('a failed sync'),)\na failed sync\n", thrown.stderr
