"""``/readyz`` on real brokers."""

from __future__ import annotations

import io
import time
import urllib.error
import urllib.request

import pytest

from minikafka.config import parse_broker
from minikafka.errors import BrokerNotAvailable
from minikafka.hosting.local_broker import LocalBroker
from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.console_kit import call, create, url_of
from tests.e2e.haste import SHORT_SESSIONS

pytestmark = pytest.mark.e2e


def readiness(cluster: LocalCluster) -> tuple[int, str]:
    """Status and body of broker 1's response."""
    try:
        with urllib.request.urlopen(f"{url_of(cluster)}/readyz") as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def until_status(cluster: LocalCluster, status: int) -> str:
    """Wait for this status of broker 1; return the body."""
    give_up = time.monotonic() + 60
    while True:
        found, body = readiness(cluster)
        if found == status:
            return body
        assert time.monotonic() < give_up, (found, body)
        time.sleep(0.05)


def test_a_broker_without_a_session_is_not_ready():
    """Without a controller its leaders refuse all clients, so a load balancer must leave it out; ``explain`` says that
    what it knows may be old.
    """
    with LocalCluster(brokers=3, config=SHORT_SESSIONS) as cluster:
        assert readiness(cluster)[0] == 200
        create(cluster, "orders")
        cluster.kill(2)
        cluster.kill(3)
        body = until_status(cluster, 503)
        assert "has no leader that it knows of (" in body
        assert body.count("Connection refused") == 2 * 2, "of both voters, in `detail` and `message`"
        explained = call(cluster, "/v1/topics/orders/partitions/0/explain")
        for part in ("leader", "isr"):
            assert (
                "broker 1 has no session with a controller, so this may be out of date" in explained[part]["sentence"]
            )
        cluster.restart(2)
        until_status(cluster, 200)


@pytest.mark.parametrize("roles", ["broker", "broker,controller"])
async def test_a_broker_with_the_id_of_another_cluster_says_so(tmp_path, roles):
    """An observer was refused 50 times a second, each time with a line "code=104" in its log, and its last line was that
    the quorum had no leader.
    """
    log = io.StringIO()
    with LocalCluster(brokers=1) as cluster:
        address = cluster.bootstrap
        settings = {
            "cluster.id": "another-cluster-000000",
            "node.id": "2",
            "process.roles": roles,
            "controller.quorum.voters": f"1@{address}" + (",2@127.0.0.1:1" if "controller" in roles else ""),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path),
        }
        broker = LocalBroker(parse_broker(settings).config, log_stream=log)
        await broker.start()
        try:
            with pytest.raises(BrokerNotAvailable, match=f"{address} is of another cluster: cluster id 'another"):
                await broker.wait_ready(2)
        finally:
            await broker.stop()
    assert 1 <= log.getvalue().count("quorum_other_cluster") <= 20
