"""``minikafka sim traffic``: what is counted, and how it is printed."""

from __future__ import annotations

import json

from click.testing import CliRunner

from minikafka.cli.sim import command
from minikafka.sim.traffic import CONTROL, REPLICATION, measure

SMALL = ("traffic", "--brokers", "4", "--partitions", "8", "--seconds", "4")


def test_idle_followers_fetch_once_per_wait_and_leader() -> None:
    """Each of four brokers holds a fetch at each leader that it follows, for replica.fetch.wait.max.ms."""
    said: list[str] = []
    settings = {"replica.fetch.wait.max.ms": "1000", "broker.heartbeat.interval.ms": "500"}
    counted = measure(brokers=4, partitions=8, virtual_s=10.0, settings=settings, seed=1, say=said.append)
    by_api = {each.api: each for each in counted.apis}
    assert set(by_api) == {"Fetch", "MetadataFetch", "BrokerHeartbeat"}
    assert 4.0 <= by_api["Fetch"].requests_per_second <= 12.0, "one to three leaders each, once a second"
    assert 7.0 <= by_api["BrokerHeartbeat"].requests_per_second <= 9.0
    assert counted.of_kind(REPLICATION).bytes_per_second == by_api["Fetch"].bytes_per_second > 0
    control = by_api["MetadataFetch"].requests_per_second + by_api["BrokerHeartbeat"].requests_per_second
    assert counted.of_kind(CONTROL).requests_per_second == control
    assert said == ["4 brokers are ready", "8 partitions are in sync"]


def test_the_table_has_a_line_for_each_kind_and_api() -> None:
    """People compare brokers; programs read the same figures as JSON."""
    table = CliRunner().invoke(command, SMALL)
    assert table.exit_code == 0, table.output
    names = [line.split()[1] for line in table.stdout.splitlines()[1:]]
    assert names == ["control", "MetadataFetch", "BrokerHeartbeat", "replication", "Fetch"]
    told = CliRunner().invoke(command, [*SMALL, "-o", "json"])
    (cluster,) = json.loads(told.stdout)["clusters"]
    assert (cluster["brokers"], cluster["partitions"], cluster["virtual_seconds"]) == (4, 8, 4.0)
    assert cluster["replication"] == cluster["apis"]["Fetch"]


def test_an_unusable_setting_is_refused_before_anything_runs() -> None:
    """A simulation of minutes must not end with a misspelled value."""
    refused = CliRunner().invoke(command, [*SMALL, "--config", "replica.fetch.wait.max.ms=soon"])
    assert refused.exit_code != 0
    assert "replica.fetch.wait.max.ms" in str(refused.exception) + refused.output
