"""`make test` runs tests that use the system in all workers but one: none of them counts as one that computes."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.tidy.sources import ROOT, TESTS, Source, parsed, suite
from tests.workers import (
    LONG_FILES,
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    WHOLE_FOLDERS,
    GroupScheduling,
    group_of,
    is_simulated,
    rank,
    rotated,
    uses_system,
)

SYSTEM_MODULES = {
    "http.server",
    "minikafka.LocalCluster",
    "minikafka.world.http",
    "minikafka.testing.local_cluster",
    "minikafka.world.real",
    "multiprocessing",
    "playwright",
    "pty",
    "pyspark",
    "socket",
    "socketserver",
}


def needs(source: Source, helpers: dict[str, Source]) -> set[str]:
    """Return the modules of SYSTEM_MODULES that a test file imports, itself or by its helpers."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [source]
    while waiting:
        for _, name in waiting.pop().imports():
            parts = name.split(".")
            prefixes = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
            found |= prefixes & SYSTEM_MODULES
            new = sorted((prefixes & helpers.keys()) - seen)
            seen.update(new)
            waiting += [helpers[each] for each in new]
    return found


def test_what_uses_the_system_is_in_its_group():
    """A test file that imports sockets, brokers on ports, browsers or Spark."""
    helpers = {each.module: each for each in suite()}
    files = [each for each in suite() if each.path.name.startswith("test_")]
    outside = {
        path: used
        for each in files
        if not uses_system(path := each.path.relative_to(ROOT).as_posix()) and (used := needs(each, helpers))
    }
    assert not outside, f"add these files to SYSTEM_FILES (tests/workers.py): {outside}"


@pytest.mark.parametrize("code", ["import socket", "from minikafka import LocalCluster", "from tests.helper import x"])
def test_an_import_is_found(code: str):
    """Directly or by a helper."""
    helper = parsed("from minikafka.world.real import real_world", "tests.helper")
    assert needs(parsed(code, "tests.rules.test_x"), {helper.module: helper})
    assert not needs(parsed("import asyncio", "tests.rules.test_x"), {helper.module: helper})


def test_the_group_names_what_exists():
    """A file or folder that was renamed would leave the group in silence."""
    assert all((TESTS / folder).is_dir() for folder in SYSTEM_FOLDERS)
    assert set(WHOLE_FOLDERS) < set(SYSTEM_FOLDERS)
    assert all((ROOT / file).is_file() for file in (*SYSTEM_FILES, *LONG_FILES))
    assert all(uses_system(file) and group_of(file) == file for file in LONG_FILES)


def test_the_system_begins_first():
    """Whole folders, long files, all others; a test's group is its file or a whole folder, and parameters do not matter."""
    assert group_of("tests/e2e/test_x.py::test_y[a/b::c]") == "tests/e2e/test_x.py"
    assert group_of("tests/spark/test_x.py::test_y[a/b::c]") == "tests/spark"
    assert group_of("tests/sim/test_x.py::test_y[a/b::c]") == "tests/sim/test_x.py"
    files = [f"tests/{folder}/test_x.py" for folder in (*WHOLE_FOLDERS, "e2e", "sim", "rules")]
    files[3:3] = LONG_FILES[:2]
    in_order = [f"{file}::test_y" for file in files]
    shuffled = [in_order[place] for place in (3, 5, 1, 0, 6, 4, 7, 2)]
    assert sorted(shuffled, key=rank) == in_order
    assert [uses_system(group_of(each)) for each in in_order] == [True] * 6 + [False] * 2


class Worker:
    """A worker of pytest-xdist that only notes what it should run."""

    shutting_down = False

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id=id(self))
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_one_worker_begins_with_what_computes():
    """Issue 16: three of four workers wait for the system, and each takes what the others have left."""
    groups = [f"tests/spark/test_{each}.py" for each in "ab"]
    groups += [f"tests/{folder}/test_{each}.py" for folder in ("e2e", "rules") for each in "abcdef"]
    tests = [f"{group}::test_{number}" for group in groups for number in range(4)]
    config = SimpleNamespace(getvalue=lambda _: ["popen"] * 4, option=SimpleNamespace(loadscopereorder=False))
    scheduling = GroupScheduling(config)
    workers = [Worker() for _ in range(4)]
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, tests)
    scheduling.schedule()
    ran: dict[Worker, list[str]] = {worker: [] for worker in workers}
    rounds = []
    while scheduling.has_pending:
        now = []
        for worker in workers:
            if len(worker.given) > len(ran[worker]):
                index = worker.given[len(ran[worker])]
                now.append(tests[index])
                ran[worker].append(tests[index])
                scheduling.mark_test_complete(worker, index)
        rounds.append(now)
    assert sorted(test for run in ran.values() for test in run) == sorted(tests)
    assert [uses_system(each) for each in rounds[0]] == [True, True, True, False]
    computing = [sum(not uses_system(each) for each in now) for now in rounds]
    # Eight groups that use the system are too many for one round of three: the fourth worker computes meanwhile.
    assert set(computing[:8]) == {1}
    [with_spark] = [worker for worker in workers if any("spark" in each for each in ran[worker])]
    assert [each for each in ran[with_spark] if "spark" in each] == tests[:8]


def test_workers_begin_to_collect_at_different_files():
    """Issue 16: so each of them rewrites the assertions of some files, and finds the others' on disk."""
    files = [f"test_{each}.py" for each in "abcdefgh"]
    orders = [rotated(files, f"gw{number}", 4) for number in range(4)]
    assert [order[0] for order in orders] == files[::2]
    assert all(sorted(order) == files for order in orders)
    assert rotated([], "gw3", 4) == []


def test_contracts_on_simulated_ports_do_not_use_the_system(request):
    """`make check` runs them; all other tests of the system's groups bear its mark."""
    arms = (TESTS / "contracts" / "arms.py").read_text(encoding="utf-8")
    assert 'parametrize("arm_name"' in arms
    for name in re.findall(r'"(\w+)": \w+Arm\b', arms):
        item = SimpleNamespace(callspec=SimpleNamespace(params={"arm_name": name}))
        assert is_simulated(item) == (name == "simulated")
    assert '"simulated": SimulatedArm' in arms
    assert not is_simulated(request.node)
    assert request.node.get_closest_marker("system") is None


def test_make_check_leaves_out_what_uses_the_system():
    """The mark was set after pytest had selected by marks: ``-m "not system"`` left nothing out."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-m",
        "not system",
        "tests/contracts/test_network.py",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    nodes = [line for line in done.stdout.splitlines() if "::" in line]
    assert nodes
    assert all("[simulated" in node for node in nodes), nodes
