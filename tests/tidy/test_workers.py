"""`make test` runs few tests that use the system at the same time: the scheduler knows all of them."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from tests.tidy.sources import ROOT, TESTS, Source, parsed, suite
from tests.workers import (
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    SYSTEM_GROUPS_MAX,
    WHOLE_FOLDERS,
    GroupScheduling,
    group_of,
    is_simulated,
    rank,
    uses_the_system,
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
        if not uses_the_system(path := each.path.relative_to(ROOT).as_posix()) and (used := needs(each, helpers))
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
    assert set(WHOLE_FOLDERS) <= set(SYSTEM_FOLDERS)
    assert all((ROOT / file).is_file() for file in SYSTEM_FILES)


def test_the_system_begins_first():
    """Then long files. A group is a file, or a folder with a session fixture; parameters do not matter."""
    assert group_of("tests/e2e/test_x.py::test_y[a/b::c]") == "tests/e2e/test_x.py"
    assert group_of("tests/spark/test_x.py::test_y[a/b::c]") == "tests/spark"
    assert group_of("tests/sim/test_x.py::test_y[a/b::c]") == "tests/sim/test_x.py"
    folders = ("spark", "e2e", "sim", "rules")
    in_order = [f"tests/{folder}/test_x.py::test_y" for folder in folders]
    shuffled = [in_order[place] for place in (3, 1, 0, 2)]
    assert sorted(shuffled, key=rank) == in_order


def test_folders_with_session_fixtures_are_whole():
    """Two workers would build two images, or start two JVMs."""
    shared = {
        path.parent.name
        for path in TESTS.glob("*/conftest.py")
        if 'scope="session"' in path.read_text(encoding="utf-8")
    }
    assert shared <= set(WHOLE_FOLDERS)


class Worker:
    """A worker of pytest-xdist that only records which tests it receives."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.sent: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_few_groups_that_use_the_system_run_at_once():
    """Two, as long as deterministic tests are left; then all workers take what is left."""
    tests = [
        *(f"tests/e2e/test_{number}.py::test_{each}" for number in range(6) for each in range(3)),
        *(f"tests/rules/test_{number}.py::test_{each}" for number in range(2) for each in range(3)),
    ]
    config = SimpleNamespace(
        getvalue=lambda _: ["popen"] * 3,
        option=SimpleNamespace(loadscopereorder=False, tx=["popen"] * 3),
        getoption=lambda *_: 3,
    )
    scheduling = GroupScheduling(config)  # type: ignore[arg-type]
    workers = [Worker(str(number)) for number in range(3)]
    for worker in workers:
        scheduling.add_node(worker)  # type: ignore[arg-type]
        scheduling.add_node_collection(worker, tests)  # type: ignore[arg-type]
    scheduling.schedule()
    done: list[str] = []
    most = 0
    while any(worker.sent for worker in workers):
        running = [worker for worker in workers if worker.sent]
        at_once = sum(uses_the_system(tests[worker.sent[0]]) for worker in running)
        if any(not uses_the_system(tests[index]) for worker in workers for index in worker.sent):
            most = max(most, at_once)
        for worker in running:
            index = worker.sent.pop(0)
            done.append(tests[index])
            scheduling.mark_test_complete(worker, index)  # type: ignore[arg-type]
    assert sorted(done) == sorted(tests)
    assert most == SYSTEM_GROUPS_MAX


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
