"""A leader that is killed by kill -9, with default settings: its partitions fail over without waiting for its session."""

from __future__ import annotations

import pytest

from minikafka import AdminClient, NewTopic, Producer
from minikafka.hosting.processes import ProcessCluster

pytestmark = pytest.mark.e2e

TOPIC = "orders"


def fencings(cluster: ProcessCluster, dead: int) -> list[str]:
    """The log lines of the survivors that tell why ``dead`` was fenced."""
    lines = [
        line
        for files in cluster.files.brokers
        for line in files.log_path.read_text(encoding="utf-8").splitlines()
        if files.node_id != dead
    ]
    return [line for line in lines if "broker_fenced" in line and f" broker={dead} " in line]


@pytest.mark.parametrize("is_controller", [False, True], ids=["a_leader", "a_leader_and_the_active_controller"])
async def test_a_killed_leader_is_fenced_by_the_refused_connection(is_controller: bool):
    """Issue 15, build 5: the next acks=all record is acknowledged; the cause of the fencing is no expired session."""
    async with (
        ProcessCluster(3) as cluster,
        AdminClient(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
    ):
        await admin.create_topics([NewTopic(TOPIC, 3, 3)])
        partitions = (await admin.describe_topics([TOPIC]))[0].partitions
        controller = (await admin.describe_quorum()).leader_id
        chosen = next(each for each in partitions if (each.leader == controller) == is_controller)
        await producer.send_and_wait(TOPIC, b"before", partition=chosen.partition)
        await cluster.kill9(chosen.leader)
        after = await producer.send_and_wait(TOPIC, b"after", partition=chosen.partition)
        assert after.offset == 1
        told = fencings(cluster, chosen.leader)
        assert len(told) == 1, told
        assert "connection refused by" in told[0]


async def test_without_the_setting_the_session_decides():
    """mk.fence.on.refused.connection=false: as in Kafka."""
    settings = {
        "mk.fence.on.refused.connection": "false",
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "300",
    }
    async with (
        ProcessCluster(3, config=settings) as cluster,
        AdminClient(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
    ):
        await admin.create_topics([NewTopic(TOPIC, 1, 3)])
        leader = (await admin.describe_topics([TOPIC]))[0].partitions[0].leader
        await cluster.kill9(leader)
        await producer.send_and_wait(TOPIC, b"after", partition=0)
        (told,) = fencings(cluster, leader)
        assert "was silent for its session timeout" in told
