"""`make test` runs tests that use the system in two workers: none of them is outside their groups."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from tests.tidy.sources import ROOT, TESTS, Source, parsed, suite
from tests.workers import END_TO_END, SYSTEM, SYSTEM_FILES, SYSTEM_FOLDERS, SYSTEM_GROUPS, group_of, is_simulated, rank

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
        if group_of(path := each.path.relative_to(ROOT).as_posix()) not in SYSTEM_GROUPS
        and (used := needs(each, helpers))
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
    assert all((ROOT / file).is_file() for file in SYSTEM_FILES)


def test_the_system_begins_first():
    """Then long files; the file is the group of deterministic tests, and parameters do not matter."""
    assert group_of("tests/e2e/test_x.py::test_y[a/b::c]") == END_TO_END
    assert group_of("tests/fuzz/test_x.py::test_y[a/b::c]") == SYSTEM
    assert group_of("tests/sim/test_x.py::test_y[a/b::c]") == "tests/sim/test_x.py"
    folders = ("e2e", "spark", "sim", "rules")
    in_order = [f"tests/{folder}/test_x.py::test_y" for folder in folders]
    shuffled = [in_order[place] for place in (3, 1, 0, 2)]
    assert sorted(shuffled, key=rank) == in_order


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
