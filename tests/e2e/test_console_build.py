"""The committed console is what its sources give, where Node and npm can build it; its size and licenses hold anywhere."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from minikafka.rest.console import FILES, PAGE
from tools import build_console

INITIAL_MAX = 60_000
ALL_MAX = 150_000


@pytest.mark.web
def test_built_console_is_that_of_its_sources():
    """PAGE 7: a committed bundle drifts from its sources unless it is built again and compared, byte by byte."""
    build_console.install()
    build_console.check_types()
    assert build_console.differences() == []


def test_initial_page_script_and_style_are_small():
    """PAGE 7: below 60 kB compressed until the first view, and below 150 kB with what is loaded later."""
    initial = [each for name, each in FILES.items() if not name.startswith("charts.")]
    assert len(initial) < len(FILES)
    assert sum(len(gzip.compress(each)) for each in (PAGE, *initial)) < INITIAL_MAX
    assert sum(len(gzip.compress(each)) for each in (PAGE, *FILES.values())) < ALL_MAX


def test_licenses_of_the_built_packages_are_beside_them():
    """Each package that the bundle contains permits this only with its license text."""
    text = (build_console.BUILT / "LICENSES.txt").read_text(encoding="utf-8")
    lock = json.loads((build_console.SOURCES / "package-lock.json").read_text(encoding="utf-8"))
    shipped = {
        name.removeprefix("node_modules/"): each["version"]
        for name, each in lock["packages"].items()
        if name and not each.get("dev")
    }
    for name, version in shipped.items():
        assert f"{name} {version} (MIT)" in text
    assert text.count("Permission is hereby granted") == len(shipped)


def test_lock_file_names_no_registry():
    """The machine that installs chooses the registry: another one may be unreachable there."""
    lock = (build_console.SOURCES / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in lock
    assert re.findall(r'"integrity": "sha512-', lock)
