"""No module is dead: each is imported by another one of the product, or is a door (an entry point, a package's face)."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ROOT / "minikafka"
DOOR_PACKAGES = ("pyspark_minikafka",)
"""Shipped beside it: Spark looks for a package of that name."""

DOORS = {"__main__", "__init__"}
"""Started by name, or imported with their package."""


def name_of(path: Path) -> str:
    """``minikafka/log/names.py`` as ``minikafka.log.names``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported_by(path: Path) -> set[str]:
    """Every module that a file may import, also inside functions; ``from a import b`` may mean the module ``a.b``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("minikafka."):
            names.add(node.value.partition(":")[0])  # loaded lazily, by name
    return names


def test_every_module_is_imported_or_a_door() -> None:
    """Code that nothing reaches is not tested by use, and misleads readers."""
    files = sorted(PRODUCT.rglob("*.py"))
    reached: set[str] = set()
    for path in [*files, *(file for package in DOOR_PACKAGES for file in sorted((ROOT / package).rglob("*.py")))]:
        reached |= imported_by(path) - {name_of(path)}
    entry_points = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dead = [
        name_of(path)
        for path in files
        if path.stem not in DOORS and name_of(path) not in reached and f'"{name_of(path)}' not in entry_points
    ]
    assert dead == []
