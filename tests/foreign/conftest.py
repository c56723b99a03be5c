"""Kafka's own tools, and clients in Go and in JavaScript, run where Java, Go or Node and what they need are at hand;
elsewhere they are left out, and the run says so.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from tests.bench import kafka_jars, kafka_processes
from tests.bench.kafka_jars import NoKafka
from tests.foreign.toolchains import why_not_go, why_not_node
from tests.left_out import leave_out

TOOLS = Path(__file__).with_name("kafka_tools_jars.txt")


@functools.cache
def java() -> tuple[Path, str]:
    """The program and the class path of Kafka's tools. NoKafka tells what is missing."""
    found = kafka_processes.find()
    tools = kafka_jars.parse(TOOLS.read_text(encoding="ascii"))
    paths = kafka_jars.fetch_all(tools, kafka_jars.cache_folder())
    return found.program, os.pathsep.join([*map(str, paths), found.class_path])


def why_not() -> str | None:
    """What keeps Kafka's tools from running here."""
    try:
        java()
    except NoKafka as missing:
        return str(missing)
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs Java, Go or Node if there is none."""
    leave_out(config, items, "java", why_not)
    leave_out(config, items, "go", why_not_go)
    leave_out(config, items, "node", why_not_node)


@pytest.fixture(scope="session", name="java")
def java_fixture() -> tuple[Path, str]:
    """See :func:`java`."""
    return java()
