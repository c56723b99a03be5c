"""The laws that protect determinism and the floors (STYLE 24): shown to bite, then held against every file."""

from __future__ import annotations

import ast

import pytest

from tests.tidy import laws
from tests.tidy.sources import Source, parsed, product, suite

LAWS: tuple[laws.Law, ...] = (
    laws.no_asyncio_in_rules,
    laws.no_loop_internals_in_drivers,
    laws.no_world_outside_the_adapters,
    laws.no_iteration_over_a_set,
    laws.no_assert,
    laws.no_print,
    laws.no_code_from_data,
    laws.module_docstring,
    laws.no_import_up_the_floors,
)

BREACHES = [
    (laws.no_asyncio_in_rules, "minikafka.log.x", "import asyncio", "rules are synchronous"),
    (laws.no_asyncio_in_rules, "minikafka.quorum.x", "from asyncio import sleep", "rules are synchronous"),
    (laws.no_loop_internals_in_drivers, "minikafka.broker.x", "import threading", "await a port"),
    (laws.no_loop_internals_in_drivers, "minikafka.client.x", "await asyncio.to_thread(f)", "await a port"),
    (laws.no_world_outside_the_adapters, "minikafka.log.x", "import time", "take `now` as an argument"),
    (laws.no_world_outside_the_adapters, "minikafka.broker.x", "from os import path", "use the Disk port"),
    (laws.no_world_outside_the_adapters, "minikafka.client.x", "import random", "take a Random as an argument"),
    (laws.no_world_outside_the_adapters, "minikafka.client.x", "from random import choice", "take a Random"),
    (laws.no_world_outside_the_adapters, "minikafka.log.x", "open('x')", "use the Disk port"),
    (laws.no_world_outside_the_adapters, "minikafka.log.x", "import uuid", "World.random"),
    (laws.no_world_outside_the_adapters, "minikafka.client.x", "hash('key') % 3", "murmur2"),
    (laws.no_iteration_over_a_set, "minikafka.quorum.x", "for n in {1, 2}: pass", "sorted"),
    (laws.no_iteration_over_a_set, "minikafka.quorum.x", "x = set(a)\nfor n in x: pass", "sorted"),
    (laws.no_iteration_over_a_set, "minikafka.quorum.x", "class A:\n isr: frozenset[int]\nlist(a.isr)", "sorted"),
    (laws.no_iteration_over_a_set, "minikafka.quorum.x", "def f(isr: set[int]): return [n for n in isr]", "sorted"),
    (laws.no_iteration_over_a_set, "minikafka.quorum.x", "def f(isr: set[int]): return tuple(isr - {1})", "sorted"),
    (laws.no_iteration_over_a_set, "minikafka.quorum.x", "def f(isr: set[int]): return isr.pop()", "sorted"),
    (laws.no_iteration_over_a_set, "minikafka.quorum.x", "class A:\n def g(self) -> set[int]: ...\n[*a.g()]", "sorted"),
    (laws.no_assert, "minikafka.sim.x", "assert True", "invariant()"),
    (laws.no_print, "minikafka.world.x", "print(1)", "events sink"),
    (laws.no_code_from_data, "minikafka.cli.x", "import pickle", "msgpack or JSON"),
    (laws.no_code_from_data, "minikafka.cli.x", "eval('1')", "parse the text"),
    (laws.module_docstring, "minikafka.cli.x", "import json", "what the file owns"),
    (
        laws.no_import_up_the_floors,
        "minikafka.log.x",
        "from minikafka.replication import leader",
        "move what is shared",
    ),
    (laws.no_import_up_the_floors, "minikafka.log.x", "from ..replication import leader", "move what is shared"),
    (laws.no_import_up_the_floors, "minikafka.client.x", "from minikafka.broker import broker", "meet on the wire"),
    (laws.no_import_up_the_floors, "minikafka.sim.x", "from minikafka import cli", "move what is shared"),
]

LAWFUL = [
    (laws.no_asyncio_in_rules, "minikafka.broker.x", "import asyncio"),
    (laws.no_world_outside_the_adapters, "minikafka.world.x", "import time, socket\nopen('x')"),
    (laws.no_world_outside_the_adapters, "minikafka.client.x", "from random import Random"),
    (laws.no_iteration_over_a_set, "minikafka.quorum.x", "for n in sorted({1, 2}): pass"),
    (laws.no_iteration_over_a_set, "minikafka.quorum.x", "def f(isr: set[int]): return min(n for n in isr)"),
    (laws.no_iteration_over_a_set, "minikafka.quorum.x", "def f(isr: set[int]): return {n + 1 for n in isr}"),
    (laws.no_iteration_over_a_set, "minikafka.quorum.x", "def f(isr: list[int]): return [n for n in isr]"),
    (laws.no_iteration_over_a_set, "minikafka.world.x", "for n in {1, 2}: pass"),
    (laws.no_print, "minikafka.cli.x", "print(1)"),
    (laws.no_import_up_the_floors, "minikafka.cli.x", "from minikafka.broker import broker"),
    (laws.no_import_up_the_floors, "minikafka.broker.x", "from minikafka import __version__"),
]


@pytest.mark.parametrize(("law", "module", "code", "replacement"), BREACHES)
def test_each_law_bites_and_names_the_replacement(law: laws.Law, module: str, code: str, replacement: str):
    """STYLE 22: a check that cannot fail proves nothing; STYLE 24: its message says what to do instead."""
    found = list(law(parsed(code, module)))
    assert found
    assert replacement in found[0]
    assert found[0].startswith(module.replace(".", "/") + ".py:")


@pytest.mark.parametrize(("law", "module", "code"), LAWFUL)
def test_each_law_leaves_the_replacement_alone(law: laws.Law, module: str, code: str):
    """A law that forbids its own replacement would be switched off within a week."""
    assert list(law(parsed(code, module))) == []


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_product_keeps_the_law(law: laws.Law):
    """DESIGN (floors) and STYLE 24: the simulator proves nothing about code that reads a clock behind its back."""
    breaches = [breach for source in product() for breach in law(source)]
    assert not breaches, "\n" + "\n".join(breaches)


def test_the_product_is_found():
    """If the walk over the tree found nothing, every law would pass."""
    assert {"minikafka", "minikafka.types", "minikafka.ports"} <= {source.module for source in product()}


def unreached(sources: tuple[Source, ...], doors: set[str]) -> list[str]:
    """Modules that no module which is itself in use imports (a dead ring keeps nobody alive)."""
    modules = {source.module: source for source in sources}
    reached: set[str] = set()
    todo = sorted(doors & modules.keys())
    while todo:
        module = todo.pop()
        if module in reached:
            continue
        reached.add(module)
        for _, name in modules[module].imports():
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                candidate = ".".join(parts[:length])
                if candidate in modules and candidate not in reached:
                    todo.append(candidate)
    return sorted(modules.keys() - reached)


def test_an_unused_module_is_noticed():
    """The reachability check must see a module that only a dead module imports."""
    sources = (
        parsed("from a import b", "a.__main__"),
        parsed("", "a.b"),
        parsed("import a.d", "a.c"),
        parsed("import a.c", "a.d"),
    )
    assert unreached(sources, {"a.__main__"}) == ["a.c", "a.d"]


def test_every_test_says_why_it_matters():
    """STYLE 18: a failing test is read by someone who did not write it."""
    silent = [
        f"{source.at(node)}: {node.name} has no docstring, name the requirement it covers (S12, KIP-101, ...)"
        for source in suite()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert not silent, "\n" + "\n".join(silent)


def test_every_test_module_says_what_it_covers():
    """A folder of tests is read by its first lines."""
    silent = [breach for source in suite() for breach in laws.module_docstring(source)]
    assert not silent, "\n" + "\n".join(silent)


def test_no_test_is_skipped_or_expected_to_fail():
    """House rule: a test that does not run proves nothing; it is fixed or removed."""
    marks = {"skip", "skipif", "xfail", "importorskip"}
    skipped = [
        f"{source.at(node)}: {node.attr} is banned, make the test run everywhere or remove it"
        for source in suite()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and node.attr in marks
    ]
    assert not skipped, "\n" + "\n".join(skipped)


def test_the_walk_reads_this_folder():
    """If the tests were not found, the laws about tests would pass."""
    assert "tests.tidy.test_laws" in {source.module for source in suite()}
