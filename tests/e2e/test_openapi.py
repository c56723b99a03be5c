"""Issue 5: requests generated from ``/openapi.json`` against a real broker: what it says is what is answered.

Never a 500, never a hang; every status, content type and body is one that the document describes.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from minikafka.rest.routes import ROUTES
from minikafka.testing.local_cluster import LocalCluster
from minikafka.world.instruments import MachineFaults

pytestmark = pytest.mark.e2e

EXAMPLES = 30
PATIENCE_S = 60
WAIT_MS_MAX = 100
"""Generated waits are cut to this: a request may ask for minutes, and would get them."""

NAMES = {
    "topic": ["orders", "orders", "wide", "nope"],
    "partition": [0, 1, 7],
    "broker": [1, 1, 9],
    "group": ["billing", "billing", "audit", "nöpe/%"],
    "member": ["ghost", "ghöst/%"],
    "transactional_id": ["payments-1", "nöpe/%"],
}
"""Most requests hit something that exists."""

CHECKS = [status_code_conformance, response_schema_conformance, content_type_conformance]

ENDLESS = {"/v1/live", "/v1/topics/{topic}/partitions/{partition}/stream", "/v1/events/stream"}
"""Have no end; tests/e2e/test_rest_inside.py and test_testing_doors.py read them."""

ACTIONS = "/v1/brokers/{broker}/actions"
HURTS = {ACTIONS, "/v1/faults", "/v1/machine"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, config={"mk.testing.endpoints.enable": "true"}) as running:
        for name in ("orders", "wide"):
            body = json.dumps({"name": name, "partitions": 2}).encode()
            request = urllib.request.Request(f"{url_of(running)}/v1/topics", body, {"Content-Type": "application/json"})
            urllib.request.urlopen(request).read()
        yield running


def url_of(cluster: LocalCluster) -> str:
    return f"http://{cluster.bootstrap}"


def make_well(cluster: LocalCluster) -> None:
    """What a generated request did to the broker's machine ends with it."""
    machine = cluster.instruments.machine("1")
    for name, value in asdict(MachineFaults()).items():
        setattr(machine, name, value)


@pytest.fixture(scope="module")
def names(cluster: LocalCluster) -> dict[str, list[Any]]:
    with urllib.request.urlopen(f"{url_of(cluster)}/v1/cluster") as answer:
        return {**NAMES, "cluster_id": [json.load(answer)["cluster_id"], "nope"]}


@pytest.fixture(scope="module")
def operations(cluster: LocalCluster) -> dict[tuple[str, str], Any]:
    with urllib.request.urlopen(f"{url_of(cluster)}/openapi.json") as answer:
        schema = schemathesis.openapi.from_dict(json.load(answer))
    schema.config.base_url = url_of(cluster)
    found = [each.ok() for each in schema.get_all_operations()]
    return {(each.method.upper(), each.path): each for each in found}


ALWAYS_THERE = {(route.method, route.path) for route in ROUTES}
DESCRIBED = sorted(
    (each for each in ALWAYS_THERE if each[1] not in ENDLESS),
    key=lambda route: (route[1] in HURTS, route[0] == "DELETE", route[1], route[0]),
)
"""Deletions last: the others want something to be there; and what hurts the broker behind them."""

PARAMETERS = {(route.method, route.path): {each.name for each in route.parameters} for route in ROUTES}


def test_every_route_is_described(operations: dict[tuple[str, str], Any]):
    """A route that the document lacks would not be tried below."""
    assert operations.keys() == ALWAYS_THERE


@pytest.mark.parametrize("route", DESCRIBED, ids=" ".join)
def test_what_the_document_says_is_what_is_answered(
    cluster: LocalCluster,
    operations: dict[tuple[str, str], Any],
    names: dict[str, list[Any]],
    route: tuple[str, str],
):
    """Generated from the schema; a failure prints the request as a curl line."""
    operation = operations[route]

    @seed(20)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=operation.as_strategy(), data=st.data())
    def ask(case: Any, data: st.DataObject) -> None:
        for name in case.path_parameters or {}:
            if name in names:
                case.path_parameters[name] = data.draw(st.sampled_from(names[name]))
        # Has no end either.
        (case.query or {}).pop("follow", None)
        for name in ("max_wait_ms", "timeout_ms"):
            value = (case.query or {}).get(name)
            if isinstance(value, int):
                case.query[name] = min(value, WAIT_MS_MAX)
            elif value is None and name in PARAMETERS[route]:
                case.query = {**(case.query or {}), name: WAIT_MS_MAX}
        if route[1] == ACTIONS and case.path_parameters["broker"] == 1:
            # It would do as it is told; tests/e2e/test_testing_doors.py lets it.
            case.path_parameters["broker"] = 9
        try:
            response = case.call(timeout=PATIENCE_S)
        finally:
            cluster.faults.heal()
            make_well(cluster)
        assert response.status_code not in (500, 501, 502), case.as_curl_command()
        case.validate_response(response, checks=CHECKS)

    ask()
    assert cluster.broker(1).failure is None
