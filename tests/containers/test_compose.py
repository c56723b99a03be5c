"""The image and the compose file in a real engine: up, healthy, killed, back; what a container may not do; what stays."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.conftest import IMAGE
from tests.containers.engine import Engine
from tests.tidy.sources import ROOT

pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(1800)]

BROKERS = ("kafka-1", "kafka-2", "kafka-3")
BOOTSTRAP = ",".join(f"{name}:19092" for name in BROKERS)
"""For clients in a container of the network."""

# A state that has not come by then will not come; the busiest machine seen needs a tenth of it.
STEP_S = 120.0


class Cluster:
    """The three brokers of docker-compose.yml under names and ports of this run's own."""

    def __init__(self, engine: Engine, project: str, file: Path, ports: tuple[int, ...]) -> None:
        self.engine = engine
        self.project = project
        self.ports = dict(zip(BROKERS, ports, strict=True))
        self._compose = ("compose", "-p", project, "-f", str(file))

    def compose(self, *arguments: str, timeout_s: float = 600) -> str:
        """Run docker compose on the file."""
        return self.engine.docker(*self._compose, *arguments, timeout_s=timeout_s).stdout

    def container(self, name: str) -> str:
        """A service's container."""
        return f"{self.project}-{name}"

    def url(self, name: str) -> str:
        """Where a broker's port is published."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def get(self, name: str, path: str) -> Any:
        """A 200 answer of one broker, from the host; None when it gives none."""
        told = self.engine.http(self.url(name) + path)
        return None if told is None else json.loads(told)

    def leaders(self, name: str, topic: str) -> list[int]:
        """Of each partition, as one broker knows it; empty when it does not answer."""
        told = self.get(name, f"/v1/topics/{topic}")
        return [] if told is None else [each["leader"] for each in told["partitions"]]

    def leader(self, name: str, topic: str) -> int:
        """Of partition 0, as one broker knows it; -1 when nobody leads, or it does not answer."""
        return next(iter(self.leaders(name, topic)), -1)

    def the_leader(self, name: str, topic: str) -> int:
        """As :meth:`leader`, once there is one."""
        self.until(f"{topic} has a leader", lambda: self.leader(name, topic) != -1)
        return self.leader(name, topic)

    def isrs(self, name: str, topic: str) -> list[list[int]]:
        """As leaders, but all that are in sync, sorted."""
        told = self.get(name, f"/v1/topics/{topic}")
        return [] if told is None else [sorted(each["isr"]) for each in told["partitions"]]

    def inspect(self, name: str) -> dict[str, Any]:
        """What the engine knows of a container."""
        told: list[dict[str, Any]] = json.loads(self.engine.docker("inspect", self.container(name)).stdout)
        return told[0]

    def health(self, name: str) -> str:
        """starting, healthy, unhealthy."""
        return str(self.inspect(name)["State"]["Health"]["Status"])

    def client(self, *command: str) -> tuple[str, ...]:
        """A command of a client in a container of the brokers' network, as arguments for docker."""
        network = ("--network", f"{self.project}_default")
        return ("run", "--rm", "-i", *network, "--read-only", "--cap-drop", "ALL", IMAGE, "minikafka", *command)

    def records(self, topic: str) -> list[dict[str, Any]]:
        """Everything that the topic holds, in order of partition and offset."""
        told = self.engine.docker(
            *self.client("consume", topic, "-b", BOOTSTRAP, "--from-beginning", "--exit-at-end", "-o", "json")
        ).stdout
        rows = [json.loads(line) for line in told.splitlines()]
        return sorted(rows, key=lambda row: (row["partition"], row["offset"]))

    def until(self, what: str, met: Callable[[], bool]) -> None:
        """Ask until it is so; fails with the brokers' words after STEP_S."""
        deadline = time.monotonic() + STEP_S
        while not met():
            assert time.monotonic() < deadline, f"not in {STEP_S:.0f} s: {what}\n{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        """The last words of all brokers."""
        return self.compose("logs", "--no-color", "--tail", "40")


def free_ports() -> tuple[int, ...]:
    """One for each broker; nobody is expected to take them in the moment until the engine does."""
    with contextlib.ExitStack() as held:
        taken = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in BROKERS]
        return tuple(each.getsockname()[1] for each in taken)


def own_compose_file(folder: Path, project: str, ports: tuple[int, ...]) -> Path:
    """The shipped file, so changed that it can run beside another cluster: names, ports, and the image of this tree."""
    told = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    told["services"] = {name: each for name, each in told["services"].items() if "profiles" not in each}
    assert sorted(told["services"]) == sorted(BROKERS)
    del told["name"]
    for (name, service), port in zip(told["services"].items(), ports, strict=True):
        service["image"], service["container_name"] = IMAGE, f"{project}-{name}"
        shipped = service["ports"][0].split(":")[1]
        service["ports"] = [each.replace(shipped, str(port)) for each in service["ports"]]
        advertised = service["environment"]["KAFKA_ADVERTISED_LISTENERS"]
        service["environment"]["KAFKA_ADVERTISED_LISTENERS"] = advertised.replace(shipped, str(port))
        del service["build"]
    path = folder / "docker-compose.yml"
    path.write_text(yaml.safe_dump(told), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def cluster(engine: Engine, project: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Up and healthy; taken down with its volumes."""
    ports = free_ports()
    file = own_compose_file(tmp_path_factory.mktemp("compose"), project, ports)
    running = Cluster(engine, project, file, ports)
    try:
        running.compose("up", "--detach", "--wait", "--wait-timeout", "120")
        yield running
    finally:
        # Nothing is asserted of how these brokers end.
        running.compose("down", "--volumes", "--timeout", "0")


def test_the_shipped_file_is_one_that_compose_accepts(engine: Engine):
    """Issue 5, Build 5: `docker compose config` passes, with and without the profile for observability."""
    file = ("compose", "-f", str(ROOT / "docker-compose.yml"))
    assert sorted(engine.docker(*file, "config", "--services").stdout.split()) == list(BROKERS)
    assert len(engine.docker(*file, "--profile", "obs", "config", "--services").stdout.split()) == 5


def test_up_is_healthy_and_confined(cluster: Cluster):
    """Issue 5, Build 5: healthy by /readyz, non-root, a read-only root file system, no rights, ports on loopback only."""
    for name in BROKERS:
        told = cluster.inspect(name)
        assert cluster.health(name) == "healthy"
        assert told["Config"]["User"] == "minikafka"
        assert told["HostConfig"]["ReadonlyRootfs"] is True
        assert told["HostConfig"]["CapDrop"] == ["ALL"]
        bound = [each for ports in told["NetworkSettings"]["Ports"].values() for each in ports or ()]
        assert {each["HostIp"] for each in bound} == {"127.0.0.1"}
        refused = cluster.engine.docker("exec", cluster.container(name), "touch", "/etc/minikafka/x", check=False)
        assert "Read-only file system" in refused.stderr
        assert cluster.get(name, "/readyz")["status"] == "ready"
        assert cluster.get(name, "/healthz")["status"] == "alive"
    identity = cluster.engine.docker("exec", cluster.container("kafka-1"), "id", "-u").stdout
    assert identity.strip() == "10001"
    # At the published port: there nobody knows the names of the network.
    assert {each["host"] for each in cluster.get("kafka-1", "/v1/cluster")["brokers"]} == {"localhost"}


def test_a_native_client_on_the_host_reaches_every_broker(cluster: Cluster):
    """HTTP-CLI-CONVENTIONS 4.3: it knows one published port, and is told the others, not the names of the network."""
    create = ("topics", "create", "from-host", "--partitions", "3", "--replication-factor", "3")
    bootstrap = f"localhost:{cluster.ports['kafka-2']}"
    cluster.engine.minikafka(*create, "-b", bootstrap)
    lines = "".join(f"{number}:v{number}\n" for number in range(30))
    told = cluster.engine.minikafka("produce", "from-host", "-b", bootstrap, "--key-separator", ":", data=lines)
    assert json.loads(told)["acknowledged"] == 30
    read = cluster.engine.minikafka("consume", "from-host", "-b", bootstrap, "--from-beginning", "--exit-at-end")
    assert sorted(read.split()) == sorted(f"v{number}" for number in range(30))


def test_killed_the_cluster_goes_on_and_back_it_is_in_sync(cluster: Cluster):
    """Issue 5, Must be shown: the leader is killed while a client writes; nothing acknowledged is lost or doubled."""
    create = ("topics", "create", "orders", "--partitions", "3", "--replication-factor", "3", "-b", BOOTSTRAP)
    cluster.engine.docker(*cluster.client(*create, "--config", "min.insync.replicas=2"))
    cluster.until("three in sync", lambda: cluster.isrs("kafka-1", "orders") == [[1, 2, 3]] * 3)
    leader = cluster.the_leader("kafka-1", "orders")
    others = [node for node in (1, 2, 3) if node != leader]
    victim, witness = BROKERS[leader - 1], BROKERS[leader % 3]
    writer = cluster.engine.popen(
        *cluster.client("produce", "orders", "-b", BOOTSTRAP, "--rate", "200", "--key-separator", ":")
    )
    assert writer.stdin is not None
    writer.stdin.writelines(f"{number}:before-{number}\n" for number in range(400))
    writer.stdin.flush()
    partition = "/v1/topics/orders/partitions/0"
    cluster.until(
        "the first records", lambda: (cluster.get(witness, partition) or {"high_watermark": -1})["high_watermark"] >= 20
    )

    cluster.engine.docker("kill", "--signal", "KILL", cluster.container(victim))
    cluster.until("another leader", lambda: cluster.leader(witness, "orders") in others)
    cluster.until("two in sync", lambda: cluster.isrs(witness, "orders") == [others] * 3)
    writer.stdin.writelines(f"{number}:after-{number}\n" for number in range(200))
    told, said = writer.communicate(timeout=2 * STEP_S)
    assert json.loads(told.splitlines()[-1]) == {"sent": 600, "acknowledged": 600, "failed": 0, "unknown": 0}, said
    metrics = cluster.engine.http(cluster.url(witness) + "/metrics") or ""
    assert "\nkafka_server_replicamanager_underreplicatedpartitions 0.0\n" not in metrics
    assert cluster.inspect(victim)["State"]["Running"] is False

    cluster.engine.docker("start", cluster.container(victim))
    cluster.until("the broker healthy again", lambda: cluster.health(victim) == "healthy")
    cluster.until("three in sync again", lambda: cluster.isrs(victim, "orders") == [[1, 2, 3]] * 3)
    rows = cluster.records("orders")
    wanted = [f"before-{number}" for number in range(400)] + [f"after-{number}" for number in range(200)]
    assert sorted(row["value"] for row in rows) == sorted(wanted)
    for partition in range(3):
        offsets = [row["offset"] for row in rows if row["partition"] == partition]
        assert offsets == list(range(len(offsets)))


KILL_BROKER = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        if b"serve" in file.read().split(b"\\0") and pid != "1":
            os.kill(int(pid), signal.SIGKILL)
"""


def test_a_restart_policy_brings_a_crashed_broker_back(cluster: Cluster):
    """FAULTS 3: the shipped file restarts nothing; who sets a policy gets a broker back that the engine did not stop."""
    name = "kafka-2"
    before = cluster.records("orders")
    cluster.engine.docker("update", "--restart", "on-failure:3", cluster.container(name))
    # The container ends with the broker, sometimes before the command in it does.
    cluster.engine.docker("exec", cluster.container(name), "python", "-IS", "-c", KILL_BROKER, check=False)
    cluster.until("it was restarted", lambda: cluster.inspect(name)["RestartCount"] == 1)
    cluster.until("three in sync again", lambda: cluster.isrs(name, "orders") == [[1, 2, 3]] * 3)
    cluster.engine.docker("update", "--restart", "no", cluster.container(name))
    assert cluster.records("orders") == before


def test_a_frozen_broker_is_replaced_and_comes_back_as_a_follower(cluster: Cluster):
    """FAULTS 3: docker pause; the others time out, and what it believed when it wakes harms nobody (zombie leader)."""
    create = ("topics", "create", "frozen", "--partitions", "1", "--replication-factor", "3", "-b", BOOTSTRAP)
    cluster.engine.docker(*cluster.client(*create, "--config", "min.insync.replicas=2"))
    leader = cluster.the_leader("kafka-1", "frozen")
    victim, witness = BROKERS[leader - 1], BROKERS[leader % 3]
    cluster.engine.docker("pause", cluster.container(victim))
    try:
        cluster.until("another leader", lambda: cluster.leader(witness, "frozen") not in {leader, -1})
        done = cluster.engine.docker(*cluster.client("produce", "frozen", "-b", BOOTSTRAP), data="one\ntwo\n")
        assert json.loads(done.stdout)["acknowledged"] == 2
    finally:
        cluster.engine.docker("unpause", cluster.container(victim))
    cluster.until("three in sync again", lambda: cluster.isrs(victim, "frozen") == [[1, 2, 3]])
    assert [row["value"] for row in cluster.records("frozen")] == ["one", "two"]


def test_a_rolling_upgrade_and_a_lost_volume(cluster: Cluster):
    """docs/operations.md, word for word: containers are replaced one by one, and one of them begins with nothing."""
    before = cluster.records("orders")
    for name in BROKERS:
        if name == "kafka-2":
            cluster.compose("rm", "--force", "--stop", name)
            cluster.engine.docker("volume", "rm", f"{cluster.project}_kafka-2-data")
        cluster.compose("up", "--detach", "--no-deps", "--force-recreate", "--wait", name)
        cluster.until("three in sync", lambda: cluster.isrs("kafka-1", "orders") == [[1, 2, 3]] * 3)
    assert cluster.records("orders") == before


def test_stopped_in_good_order_and_up_again_with_its_volumes(cluster: Cluster):
    """Issue 5, Build 5: SIGTERM is a controlled shutdown within the grace period; volumes outlive containers."""
    before = cluster.records("orders")
    cluster.compose("stop", "--timeout", "30", "kafka-2")
    state = cluster.inspect("kafka-2")["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)
    said = cluster.compose("logs", "--no-color", "kafka-2").splitlines()
    assert "clean=true" in [line for line in said if "broker_stopped" in line][-1]
    assert cluster.isrs("kafka-1", "orders") == [[1, 3]] * 3
    assert set(cluster.leaders("kafka-1", "orders")) <= {1, 3}
    cluster.compose("start", "kafka-2")
    cluster.until("three in sync", lambda: cluster.isrs("kafka-1", "orders") == [[1, 2, 3]] * 3)
    cluster.compose("down", "--timeout", "30")
    cluster.compose("up", "--detach", "--wait", "--wait-timeout", "120")
    assert cluster.records("orders") == before
