"""The contract of the import linter orders every package, and no line of it holds packages that may import each other."""

from __future__ import annotations

import re
import tomllib

from tests.tidy.sources import ROOT

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
