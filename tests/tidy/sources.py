"""The product's source files as syntax trees, and which floor each stands on (DESIGN: floors)."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "minikafka"
TESTS = ROOT / "tests"

FLOORS = {
    "types": 0,
    "errors": 0,
    "events": 0,
    "invariant": 0,
    "config": 0,
    "addresses": 0,
    "faults": 0,
    "wire": 1,
    "ports": 1,
    "log": 2,
    "replication": 3,
    "security": 4,
    "quorum": 4,
    "coordination": 4,
    "groups": 4,
    "transactions": 4,
    "check": 4,
    "broker": 5,
    "client": 5,
    "rpc": 5,
    "tasks": 5,
    "parked": 5,
    "world": 6,
    "sim": 6,
    "rest": 6,
    "lab": 6,
    "ui": 6,
    "spark": 6,
    "testing": 6,
    "compiled": 6,
    "blocking": 6,
    "hosting": 6,
    "web": 6,
}
"""First part of a module's name below ``minikafka`` -> floor; all that is not listed is a door (7)."""

DOORS = 7


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file."""

    path: Path
    tree: ast.Module

    @property
    def module(self) -> str:
        """Dotted name; a package's ``__init__`` has the package's name."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def floor(self) -> int:
        """Floor of DESIGN's table; the face of the package (``minikafka/__init__.py``) counts as a door."""
        parts = self.module.split(".")
        return FLOORS.get(parts[1], DOORS) if len(parts) > 1 else DOORS

    def at(self, node: ast.AST) -> str:
        """``path:line`` as an editor jumps to it."""
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"

    def imports(self) -> Iterator[tuple[ast.stmt, str]]:
        """Each import as (statement, dotted name); ``from a import b`` gives ``a.b``."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node, alias.name
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield node, f"{self.absolute(node)}.{alias.name}"

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that a ``from`` import names, with leading dots resolved."""
        if not node.level:
            return node.module or ""
        package = self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        return f"{package}.{node.module}" if node.module else package


def parsed(code: str, module: str) -> Source:
    """A source made up for a test of a law: ``module`` tells where it would stand."""
    return Source(ROOT / (module.replace(".", "/") + ".py"), ast.parse(code))


def read(folder: Path) -> tuple[Source, ...]:
    """All Python files below ``folder``, sorted by path."""
    # No node becomes garbage, here or later: to look for garbage among 800,000 of them takes five times as long as to parse.
    gc.disable()
    try:
        found = [Source(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(folder.rglob("*.py"))]
        gc.freeze()
    finally:
        gc.enable()
    return tuple(found)


@cache
def product() -> tuple[Source, ...]:
    """Every file of the package."""
    return read(PRODUCT)


@cache
def suite() -> tuple[Source, ...]:
    """Every file of the tests."""
    return read(TESTS)
