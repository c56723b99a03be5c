"""When the compiled rules are used: always all of them, and only if they are those of the sources beside them."""

from __future__ import annotations

import sys
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from minikafka import compiled
from tools.compile_rules import MODULES, is_current, source_of, why_not

TYPES, LEADER = "minikafka.types", "minikafka.replication.leader"


def package(folder: Path, *modules: str, suffix: str = EXTENSION_SUFFIXES[0]) -> Path:
    """A package of compiled modules: empty files, with the digests of today's sources."""
    folder.mkdir()
    for name in (compiled.LIBRARY, *modules):
        (folder / f"{name}{suffix}").touch()
    lines = [f"{sha256(source_of(name).read_bytes()).hexdigest()}  {name}\n" for name in modules]
    (folder / "SOURCES").write_text("".join(lines))
    return folder


@pytest.fixture(name="rules")
def a_fresh_finder(tmp_path, monkeypatch):
    """A finder that has not decided, a folder on sys.path, and no wish for pure Python."""
    monkeypatch.setenv(compiled.PURE_VARIABLE, "0")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return compiled.CompiledRules()


def test_compiled_modules_replace_their_sources(rules, tmp_path):
    """The finder answers for the compiled modules and the library that they share, and for nothing else."""
    folder = package(tmp_path / compiled.PACKAGE, TYPES, LEADER)
    for name in (TYPES, LEADER, compiled.LIBRARY):
        assert rules.find_spec(name, None).origin == str(folder / f"{name}{EXTENSION_SUFFIXES[0]}")
    assert rules.find_spec("minikafka.errors", None) is None
    assert rules.find_spec("json", None) is None
    assert rules.why_not == ""


@pytest.mark.parametrize("value", ["1", "true"])
def test_the_environment_asks_for_pure_python(rules, tmp_path, monkeypatch, value: str):
    """MINIKAFKA_PURE selects the sources although compiled modules are there."""
    package(tmp_path / compiled.PACKAGE, TYPES)
    monkeypatch.setenv(compiled.PURE_VARIABLE, value)
    assert rules.find_spec(TYPES, None) is None
    assert rules.why_not == f"MINIKAFKA_PURE={value}"


def test_an_edited_source_disables_all_compiled_modules(rules, tmp_path):
    """A stale extension module beside edited sources would run code that nobody sees."""
    sources = package(tmp_path / compiled.PACKAGE, TYPES, LEADER) / "SOURCES"
    digest = sources.read_text().split()[2]
    sources.write_text(sources.read_text().replace(digest, "0" * 64))
    assert rules.find_spec(TYPES, None) is None
    assert rules.why_not == f"{LEADER} has changed since it was compiled; run: make compiled"


def test_a_removed_source_disables_all_compiled_modules(rules, tmp_path):
    """A module that no longer exists counts as changed."""
    folder = package(tmp_path / compiled.PACKAGE, TYPES)
    (folder / f"minikafka.gone{EXTENSION_SUFFIXES[0]}").touch()
    with (folder / "SOURCES").open("a") as file:
        file.write(f"{'0' * 64}  minikafka.gone\n")
    assert rules.files() == {}
    assert rules.why_not.startswith("minikafka.gone has changed")


def test_modules_for_another_python_are_not_used(rules, tmp_path):
    """An environment's folder may be shared by two interpreters."""
    package(tmp_path / compiled.PACKAGE, TYPES, suffix=".cpython-39-x86_64-linux-gnu.so")
    assert rules.files() == {}
    assert rules.why_not.startswith("compiled for another Python than cpython-")


def test_a_package_that_was_not_finished_is_not_used(rules, tmp_path):
    """SOURCES is written last."""
    (package(tmp_path / compiled.PACKAGE, TYPES) / "SOURCES").unlink()
    assert rules.files() == {}
    assert rules.why_not == "not compiled"


def test_other_modules_do_not_cause_the_decision(rules, tmp_path, monkeypatch):
    """A pytest plugin imports minikafka.testing before conftest.py sets MINIKAFKA_PURE."""
    package(tmp_path / compiled.PACKAGE, TYPES)
    assert rules.find_spec("minikafka.testing", None) is None
    monkeypatch.setenv(compiled.PURE_VARIABLE, "1")
    assert rules.find_spec(TYPES, None) is None
    assert rules.why_not == "MINIKAFKA_PURE=1"


def test_without_a_package_the_rules_are_pure_python(rules):
    """The usual case of a machine without a C compiler."""
    assert rules.files() == {}
    assert rules.why_not == "not compiled"


def test_the_reason_why_a_machine_cannot_compile(monkeypatch):
    """The environment's wish comes first, then what is missing."""
    monkeypatch.setenv(compiled.PURE_VARIABLE, "1")
    assert why_not() == "MINIKAFKA_PURE is set"
    monkeypatch.delenv(compiled.PURE_VARIABLE)
    monkeypatch.setenv("CC", "no-such-compiler -pthread")
    assert why_not() == "no C compiler (no-such-compiler)"


def test_every_compiled_module_exists():
    """The list names modules of this tree, each once."""
    assert len(set(MODULES)) == len(MODULES)
    assert [name for name in MODULES if not source_of(name).is_file()] == []


def test_a_module_that_joins_the_list_is_compiled(tmp_path):
    """A package that was complete before the list grew, or whose sources have changed, is compiled again."""
    assert is_current(package(tmp_path / "all", *MODULES))
    assert not is_current(package(tmp_path / "fewer", *MODULES[1:]))
    assert not is_current(tmp_path / "none")
