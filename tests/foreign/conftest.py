"""Kafka's own tools, and clients in Go and in JavaScript, run where Java, Go or Node and what they need are at hand;
elsewhere they are left out, and the run says so.
"""

from __future__ import annotations

import os

import pytest

from tests.bench.kafka_jars import NoKafka
from tests.foreign.kafka_apps import CONNECT, STREAMS, has_compiler, java_with
from tests.foreign.kafka_tools import ALL_VARIABLE, NEWEST, OLDEST, java
from tests.foreign.toolchains import why_not_confluent, why_not_go, why_not_node
from tests.left_out import leave_out


def why_not() -> str | None:
    """What keeps Kafka's tools from running here."""
    try:
        for version in (NEWEST, OLDEST):
            java(version)
    except NoKafka as missing:
        return str(missing)
    return None


def why_no_apps() -> str | None:
    """What keeps Kafka Connect and Kafka Streams from running here."""
    try:
        for name in (CONNECT, STREAMS):
            java_with(name)
    except NoKafka as missing:
        return str(missing)
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs Java, Go or Node if there is none."""
    leave_out(config, items, "every_tool", lambda: None if ALL_VARIABLE in os.environ else "make foreign runs them")
    leave_out(config, items, "java", why_not)
    leave_out(config, items, "kafka_apps", why_no_apps)
    leave_out(config, items, "java_source", lambda: None if has_compiler() else "this Java runs no source files")
    leave_out(config, items, "go", why_not_go)
    leave_out(config, items, "node", why_not_node)
    leave_out(config, items, "confluent_node", why_not_confluent)
