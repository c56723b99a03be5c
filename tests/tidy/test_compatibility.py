"""docs/compatibility.md lists the APIs and versions that the code offers, and the clients that the tests import."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.kafka.compatibility import BEGIN, DOCUMENT, END, with_table
from tests.tidy.sources import ROOT


def test_the_table_of_apis_is_that_of_the_code():
    """Issue 14: what is not offered is not claimed; `python -m tests.kafka.compatibility` rewrites the table."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert "| Produce | 0 | 3-13 (0 is advertised) | 3-13 |" in text
    assert text == with_table(text)


def test_a_version_that_was_typed_in_is_noticed():
    """Else the test above would prove nothing."""
    typed = f"{BEGIN}\n\n| Produce | 0 | 0-99 | 3-13 |\n\n{END}\n"
    assert with_table(typed) != typed
    with pytest.raises(ValueError, match="lacks"):
        with_table(BEGIN)


def test_the_python_clients_of_the_table_are_those_that_ci_installs():
    """Issue 14: a client that CI does not install is not called tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {
        name: floor
        for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]
        for name, floor in re.findall(r"^([a-z-]*kafka[a-z-]*)>=([\d.]+)", line)
    }
    listed = dict(
        re.findall(
            r"^\| ([a-z-]*kafka[a-z-]*) \| ([\d.]+) or newer", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    assert set(wanted) == {"aiokafka", "confluent-kafka", "kafka-python"}
    assert listed == wanted
