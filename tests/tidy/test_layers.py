"""The contract of the import linter orders every package, and no line of it holds packages that may import each other."""

from __future__ import annotations

import re
import tomllib

import pytest

import minikafka
from tests.tidy.sources import DOORS, FLOORS, ROOT

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
(LAYERS,) = (each["layers"] for each in CONTRACTS if each["type"] == "layers")


def test_siblings_of_a_layer_are_declared_independent():
    """With ":" in place of "|", import-linter permits circles between the packages of a line."""
    assert [layer for layer in LAYERS if ":" in layer or "(" in layer] == []


def test_each_package_and_module_has_a_layer():
    """A package that the contract does not name may import anything."""
    named = sorted(name for layer in LAYERS for name in re.findall(r"minikafka\.(\w+)", layer))
    found = (each for each in (ROOT / "minikafka").iterdir() if each.suffix == ".py" or (each / "__init__.py").exists())
    assert named == sorted({each.stem for each in found} - {"__init__"})


def packages() -> dict[str, int]:
    """Each package, and the floor on which the checks of this folder see it."""
    return {
        each.parent.name: FLOORS.get(each.parent.name, DOORS) for each in (ROOT / "minikafka").glob("*/__init__.py")
    }


def floors_of_pictures() -> dict[str, dict[str, int]]:
    """Where the package's docstring and docs/architecture.md have packages, by the number that begins or continues a line."""
    found: dict[str, dict[str, int]] = {"the docstring": {}, "docs/architecture.md": {}}
    floor = -1
    for line in (minikafka.__doc__ or "").splitlines():
        if row := re.fullmatch(r"    ([0-7 ])  (\S.*?)(?:  .*)?", line):
            floor = int(row[1]) if row[1].strip() else floor
            found["the docstring"] |= dict.fromkeys(re.findall(r"(\w+)/", row[2]), floor)
    table = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for number, where in re.findall(r"^\| ([0-7]) \| ([^|]+) \|", table, re.MULTILINE):
        found["docs/architecture.md"] |= dict.fromkeys(re.findall(r"`(\w+)/`", where), int(number))
    return found


@pytest.mark.parametrize("picture", ["the docstring", "docs/architecture.md"])
def test_the_pictures_have_each_package_on_its_floor(picture: str):
    """Issue 16, Build 1: what a stranger reads first agrees with what the checks know."""
    assert floors_of_pictures()[picture] == packages()


def test_no_floor_is_given_to_what_is_gone():
    """The list of floors names packages and modules that exist."""
    assert [
        name
        for name in FLOORS
        if not ((ROOT / "minikafka" / name).is_dir() or (ROOT / f"minikafka/{name}.py").is_file())
    ] == []
