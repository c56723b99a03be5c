"""The examples of secured deployments run: the commands and settings of configs/compose/secured.yml, without containers."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, KafkaError, Producer

from minikafka.hosting.processes import STOP_TIMEOUT_S
from tests.e2e.test_sasl import first_error
from tests.tidy.sources import ROOT

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 120.0
BROKERS = ("kafka-1", "kafka-2", "kafka-3")
COMPOSE = yaml.safe_load((ROOT / "configs" / "compose" / "secured.yml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Deployed:
    """The brokers of the file as processes of this machine."""

    network: str
    """The first three bytes of their loopback addresses: broker N has N as its last one."""
    folder: Path

    def here(self, text: str) -> str:
        """Text of the file, with addresses and folders of this machine."""
        text = re.sub(r"\blocalhost:\d+", f"{self.network}.0:9095", text.replace("$$", "$"))
        text = re.sub(r"kafka-(\d):", rf"{self.network}.\1:", text)
        return text.replace("--host kafka-$n", f"--host {self.network}.$n")

    def environment(self, name: str) -> dict[str, str]:
        """Of a service; its listeners are on its own address."""
        number = name.removeprefix("kafka-")
        given = {key: self.here(str(value)) for key, value in COMPOSE["services"][name]["environment"].items()}
        given["KAFKA_LISTENERS"] = re.sub(
            r"//(127\.0\.0\.1)?:", f"//{self.network}.{number}:", given["KAFKA_LISTENERS"]
        )
        given["KAFKA_ADVERTISED_LISTENERS"] = given["KAFKA_ADVERTISED_LISTENERS"].replace(".0:9095", f".{number}:9095")
        given["KAFKA_LOG_DIRS"] = str(self.folder / name)
        tls = {
            key: value.replace("/etc/minikafka/tls", str(self.folder / "certs" / number))
            for key, value in given.items()
        }
        return {**os.environ, **tls}

    def command(self, *arguments: str) -> str:
        """What `docker compose exec kafka-1 minikafka ...` prints."""
        return subprocess.run(
            [sys.executable, "-m", "minikafka", *arguments],
            env=self.environment("kafka-1"),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        ).stdout

    def settings(self, user: str, password: str) -> dict[str, str]:
        """Of librdkafka at the listener CLIENTS."""
        return {
            "bootstrap.servers": ",".join(f"{self.network}.{number}:9093" for number in (1, 2, 3)),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.folder / "certs" / "1" / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
        }


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Certificates by the commands of the service `certs`, then the three brokers with their environment."""
    drawn = random.SystemRandom()
    deployed = Deployed(f"127.{drawn.randint(1, 254)}.{drawn.randint(0, 255)}", tmp_path_factory.mktemp("deployed"))
    (deployed.folder / "ca").mkdir()
    for name in BROKERS:
        (deployed.folder / "certs" / name.removeprefix("kafka-")).mkdir(parents=True)
    script = deployed.here(COMPOSE["services"]["certs"]["command"][-1])
    script = script.replace("/ca/", f"{deployed.folder}/ca/").replace("--dir /ca", f"--dir {deployed.folder}/ca")
    script = script.replace("/certs/", f"{deployed.folder}/certs/").replace("root:minikafka", "$(id -u):$(id -g)")
    script = script.replace("minikafka certs", f"{sys.executable} -m minikafka certs")
    for _ in range(2):  # `up` runs it at each start
        subprocess.run(["sh", "-ec", script], check=True, timeout=PATIENCE_S, cwd=ROOT, capture_output=True)
    with ExitStack() as running:
        started = []
        for name in BROKERS:
            process = subprocess.Popen(
                [sys.executable, "-m", "minikafka", "serve", str(ROOT / "configs" / "broker.properties")],
                env=deployed.environment(name),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            running.callback(ended, process)
            started.append(process)
        # At the end all get the signal at once: one after another, the last two would wait for a quorum that is gone.
        running.callback(lambda: [process.terminate() for process in started])
        for process in started:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith('{"broker":'), (line, ended(process))
        yield deployed


def ended(process: subprocess.Popen[str]) -> str:
    """Stop a broker; what it wrote to standard error."""
    process.terminate()
    try:
        return process.communicate(timeout=2 * STOP_TIMEOUT_S)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[1]


def test_the_three_commands_of_the_compose_file_give_a_user_who_reads_and_writes(deployed: Deployed):
    """`users add` by the broker's certificate; then SCRAM over TLS, acks=all on three replicas, ACLs for others."""
    password = deployed.command("users", "add", "admin", "--generate").split()[-1]
    shop = deployed.command("users", "add", "shop", "--generate").split()[-1]
    deployed.command("topics", "create", "orders")
    deployed.command("acls", "add", "--allow-principal", "User:shop", "--consumer", "--topic", "orders", "--group", "g")
    errors: list[KafkaError | None] = []
    for user, word in (("admin", password), ("shop", shop)):
        producer = Producer({**deployed.settings(user, word), "acks": "all"})
        producer.produce("orders", b"tea", on_delivery=lambda error, _: errors.append(error))
        producer.flush(PATIENCE_S)
    assert errors[0] is None
    assert errors[1] is not None
    assert errors[1].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer = Consumer({**deployed.settings("shop", shop), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    assert message.value() == b"tea"
    wrong = first_error(deployed.settings("admin", "wrong"))
    assert wrong.code() == KafkaError._AUTHENTICATION


def test_the_health_check_needs_no_login_and_shows_nothing_else(deployed: Deployed):
    """PROBES is in plain text and is checked: a client there is anonymous, and has no ACL."""
    ask = COMPOSE["services"]["kafka-1"]["healthcheck"]["test"]
    probe = [sys.executable, *ask[2:-1], ask[-1].replace("127.0.0.1:9092", f"{deployed.network}.1:9092")]
    subprocess.run(probe, check=True, timeout=PATIENCE_S)
    other = [*probe[:-1], probe[-1].replace("/readyz", "/v1/topics/orders")]
    refused = subprocess.run(other, check=False, timeout=PATIENCE_S, capture_output=True, text=True)
    assert "HTTP Error 403" in refused.stderr


@pytest.mark.systemd
def test_systemd_accepts_the_unit(tmp_path: Path):
    """And calls its exposure low; the broker's program is another one here, since systemd looks for it."""
    file = tmp_path / "minikafka.service"
    text = (ROOT / "configs" / "systemd" / file.name).read_text(encoding="utf-8")
    file.write_text(text.replace("/opt/minikafka/bin/minikafka", "/bin/true"), encoding="utf-8")
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(file)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", judged.stdout)
    assert found is not None
    assert float(found[1]) <= 2.0
