"""What is shipped beside the code agrees with the code: example settings, the compose file, the image, the metadata."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import javaproperties
import pytest
import yaml

import minikafka
from minikafka.config import BrokerConfig, environment_settings, parse_broker
from minikafka.errors import InvalidConfig
from tests.bench import java_tool_rows, kafka_jars
from tests.tidy.sources import ROOT
from tools import dist

EXAMPLES = sorted((ROOT / "configs").glob("*.properties"))
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
BROKERS = ["kafka-1", "kafka-2", "kafka-3"]


def broker_of(path_text: str) -> BrokerConfig:
    """The example as a broker reads it, where an unknown name is an error."""
    parsed = parse_broker(javaproperties.loads(path_text))
    assert parsed.notices == ()
    return parsed.config


def broker_in(service: str) -> BrokerConfig:
    """What a container of the compose file is configured to be: the image's file, then its environment."""
    base = broker_of((ROOT / "configs" / "broker.properties").read_text(encoding="latin-1"))
    parsed = parse_broker(environment_settings(COMPOSE["services"][service]["environment"]), base=base)
    assert parsed.notices == ()
    return parsed.config


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_only_settings_that_are_used(path):
    """D8: a name in our own example that the broker ignores would teach people a setting that does nothing."""
    names = [
        entry.key
        for entry in javaproperties.parse(path.read_text(encoding="latin-1"))
        if isinstance(entry, javaproperties.KeyValue)
    ]
    assert len(names) == len(set(names))
    assert broker_of(path.read_text(encoding="latin-1")).log_dirs.startswith("./minikafka-data")


def test_the_three_examples_are_one_cluster():
    """S38: three brokers, one quorum of three, on three ports of one machine."""
    brokers = [
        broker_of((ROOT / "configs" / f"broker-{n}.properties").read_text(encoding="latin-1")) for n in (1, 2, 3)
    ]
    assert [broker.node_id for broker in brokers] == [1, 2, 3]
    assert len({broker.cluster_id for broker in brokers}) == 1
    assert len({broker.log_dirs for broker in brokers}) == 3
    for broker in brokers:
        assert broker.voters == {each.node_id: each.listener for each in brokers}
        assert (broker.default_replication_factor, broker.min_insync_replicas) == (3, 2)


def test_compose_is_the_same_three_brokers():
    """S38, HTTP-CLI-CONVENTIONS 4.3: Kafka's service and variable names bring up one cluster."""
    assert [name for name, each in COMPOSE["services"].items() if "profiles" not in each] == BROKERS
    brokers = {name: broker_in(name) for name in BROKERS}
    assert [broker.node_id for broker in brokers.values()] == [1, 2, 3]
    assert len({broker.cluster_id for broker in brokers.values()}) == 1
    for name, broker in brokers.items():
        published = COMPOSE["services"][name]["ports"][0].split(":")[1]
        assert broker.advertised == (name, 19092)
        assert broker.all_advertised["PLAINTEXT_HOST"] == ("localhost", int(published))
        assert {each.name: each.address for each in broker.all_listeners} == {
            "PLAINTEXT": ("0.0.0.0", 19092),
            "CONTROLLER": ("0.0.0.0", broker.voters[broker.node_id].port),
            "PLAINTEXT_HOST": ("0.0.0.0", 9092),
        }
        assert broker.voters[broker.node_id].host == name
        assert (broker.default_replication_factor, broker.min_insync_replicas) == (3, 2)


def test_compose_publishes_on_loopback_only():
    """DESIGN (risks): without authentication nothing may be reachable from outside this machine."""
    ports = [port for each in COMPOSE["services"].values() for port in each["ports"]]
    assert ports[:3] == ["127.0.0.1:29092:9092", "127.0.0.1:39092:9092", "127.0.0.1:49092:9092"]
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_keeps_each_brokers_data_in_its_own_volume():
    """A container that is replaced must find its log again, and never another broker's."""
    mounts = [mount for name in BROKERS for mount in COMPOSE["services"][name]["volumes"]]
    volumes = [mount.split(":")[0] for mount in mounts]
    assert volumes == [name for name in COMPOSE["volumes"] if name.startswith("kafka-")]
    assert len(set(volumes)) == len(BROKERS)
    assert {mount.split(":")[1] for mount in mounts} == {"/var/lib/minikafka"}


def test_compose_confines_the_brokers():
    """Issue 5, Build 5: nothing but the volume can be written, no rights, time for a controlled shutdown."""
    for name in BROKERS:
        service = COMPOSE["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert (service["init"], service["stop_grace_period"]) == (True, "30s")
        assert service["labels"] == {"com.minikafka.role": "broker"}


def test_compose_and_the_image_ask_the_same_question():
    """HTTP-CLI-CONVENTIONS 4.3: healthy is ready, in Docker and in compose alike."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    asked = json.loads(re.search(r"HEALTHCHECK .*?CMD (\[.*?\])$", dockerfile, re.DOTALL | re.MULTILINE)[1])  # type: ignore[index]
    assert "http://127.0.0.1:9092/readyz" in asked[-1]
    for name in BROKERS:
        assert COMPOSE["services"][name]["healthcheck"]["test"] == ["CMD", *asked]


def test_the_profile_for_observability_finds_its_files_and_its_brokers():
    """Issue 5, Build 5: `--profile obs` starts Prometheus and Grafana with what this tree ships."""
    watching = {name: each for name, each in COMPOSE["services"].items() if "profiles" in each}
    assert {name: each["profiles"] for name, each in watching.items()} == {"prometheus": ["obs"], "grafana": ["obs"]}
    for service in watching.values():
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"]), "a version that does not move"
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], mount
    folder = ROOT / "configs" / "observability"
    scraped = yaml.safe_load((folder / "prometheus.yml").read_text(encoding="utf-8"))
    assert scraped["scrape_configs"][0]["static_configs"][0]["targets"] == [f"{name}:9092" for name in BROKERS]
    source = yaml.safe_load((folder / "grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    dashboard = json.loads((folder / "grafana/dashboards/minikafka.json").read_text(encoding="utf-8"))
    asked = {target["datasource"]["uid"] for panel in dashboard["panels"] for target in panel.get("targets", ())}
    assert asked == {source["datasources"][0]["uid"]}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_image_will_not_listen_beyond_loopback_unasked():
    """DESIGN (risks): a listener without authentication is refused unless mk.insecure is said."""
    image = dict(
        re.findall(r"(KAFKA_[A-Z_]+)=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8").partition("USER")[0])
    )
    del image["KAFKA_ADVERTISED_LISTENERS"]  # of the example in the first comment
    with pytest.raises(InvalidConfig, match=re.escape("mk.insecure=true")):
        parse_broker(environment_settings(image))
    accepted = parse_broker(environment_settings(image | {"MK_INSECURE": "true"})).config
    assert (accepted.listener, accepted.log_dirs) == (("0.0.0.0", 9092), "/var/lib/minikafka")


def test_version_is_declared_once():
    """A wheel whose metadata and `minikafka --version` disagree makes every bug report a riddle."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert pyproject["project"]["dynamic"] == ["version"]
    assert "version" not in pyproject["project"]
    assert pyproject["tool"]["hatch"]["version"] == {"path": "minikafka/__init__.py"}
    assert dist.version() == minikafka.__version__
    assert f"## [{minikafka.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_image_can_be_built_from_the_wheel_of_make_dist():
    """The wheel that was checked is the one that is shipped; without its name the image is built from the sources."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (default,) = re.findall(r"^ARG WHEEL=(.*)$", dockerfile, re.MULTILINE)
    assert (ROOT / default).is_file()
    assert "${WHEEL}" in dockerfile
    assert "!dist/*.whl" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "--build-arg WHEEL=" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_types_are_shipped():
    """Without py.typed, mypy reads an installed minikafka as untyped."""
    assert (ROOT / "minikafka" / "py.typed").is_file()


@pytest.mark.parametrize("path", [kafka_jars.LIST, java_tool_rows.TOOLS], ids=lambda path: path.name)
def test_the_benchmark_finds_its_lists_of_jars(path):
    """A renamed list was noticed after eight minutes of measuring."""
    assert kafka_jars.parse(path.read_text(encoding="ascii"))
