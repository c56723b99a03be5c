"""The examples of secured deployments agree with the code and with themselves: compose, systemd, Kubernetes."""

from __future__ import annotations

import configparser
import re
import subprocess
from typing import Any

import javaproperties
import pytest
import yaml

from minikafka.config import BrokerConfig, environment_settings, parse_broker
from minikafka.config.listeners import SaslListener
from minikafka.config.security import STANDARD_AUTHORIZER
from tests.tidy.sources import ROOT

CONFIGS = ROOT / "configs"
COMPOSE: dict[str, Any] = yaml.safe_load((CONFIGS / "compose" / "secured.yml").read_text(encoding="utf-8"))
BROKERS = ("kafka-1", "kafka-2", "kafka-3")
OBJECTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((CONFIGS / "kubernetes" / "minikafka.yaml").read_text(encoding="utf-8"))
)
USER_OF_IMAGE = 10001


def checked(settings: dict[str, str], environment: dict[str, str]) -> BrokerConfig:
    """A broker's settings from a file and the environment; a name that means nothing is an error."""
    parsed = parse_broker(environment_settings(environment), base=parse_broker(settings).config)
    assert parsed.notices == ()
    return parsed.config


def is_secured(config: BrokerConfig) -> None:
    """Brokers have certificates; clients log in over TLS; what is in plain text is on loopback, and is checked."""
    assert config.authorizer_class_name == STANDARD_AUTHORIZER
    assert config.brokers_use_tls
    assert config.ssl_client_auth == "required"
    assert not config.insecure
    for listener in config.all_listeners:
        protocol = config.protocol_of(listener.name)
        if protocol == "PLAINTEXT":
            assert listener.address.host == "127.0.0.1"
            assert listener.name not in config.internal_listeners
        elif listener.name not in config.internal_listeners:
            assert protocol == "SASL_SSL"
            assert isinstance(config.sasl_listeners[listener.name], SaslListener)
            assert config.sasl_listeners[listener.name].mechanisms == ("SCRAM-SHA-512",)
            assert config.all_advertised[listener.name].host


def single(kind: str, name: str) -> dict[str, Any]:
    """The object of this kind and name."""
    (found,) = [each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


# ---- compose ---------------------------------------------------------------------------------------------------------


def test_compose_is_a_secured_cluster_of_three():
    """One quorum, every broker a super user by its certificate, and every host name in that certificate."""
    made = COMPOSE["services"]["certs"]["command"][-1]
    assert "certs broker kafka-$$n --host kafka-$$n --host localhost" in made
    base = (CONFIGS / "broker.properties").read_text(encoding="latin-1")
    for number, name in enumerate(BROKERS, start=1):
        service = COMPOSE["services"][name]
        environment = {key: str(value).replace("$$", "$") for key, value in service["environment"].items()}
        config = checked(javaproperties.loads(base), environment)
        is_secured(config)
        assert config.node_id == number
        assert config.voters[number] == config.advertised == (name, 9094)
        assert {f"User:{each}" for each in BROKERS} < config.super_principals
        assert {each.host for each in config.all_advertised.values()} <= {name, "localhost"}
        host, published, inside = service["ports"][0].split(":")
        assert (host, int(published)) == ("127.0.0.1", config.all_advertised["HOST"].port)
        assert {each.name: each.address.port for each in config.all_listeners}["HOST"] == int(inside)


def test_the_key_of_the_ca_is_in_no_broker():
    """With it a broker could sign a certificate of any name. Each broker has its own volumes only, certificates read-only."""
    volumes = {name: dict(each.split(":", 1) for each in COMPOSE["services"][name]["volumes"]) for name in BROKERS}
    for name, mounted in volumes.items():
        assert mounted == {f"{name}-data": "/var/lib/minikafka", f"{name}-certs": "/etc/minikafka/tls:ro"}
    assert "ca" in dict(each.split(":", 1) for each in COMPOSE["services"]["certs"]["volumes"])
    assert set(COMPOSE["volumes"]) == {"ca"}.union(*volumes.values())


def test_compose_confines_all_containers_and_asks_the_question_of_the_image():
    """The health check is that of docker-compose.yml; the container that makes certificates has no network."""
    plain = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    for name in BROKERS:
        assert COMPOSE["services"][name]["healthcheck"] == plain["services"][name]["healthcheck"]
        assert COMPOSE["services"][name]["depends_on"] == {"certs": {"condition": "service_completed_successfully"}}
    for service in COMPOSE["services"].values():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["image"] == COMPOSE["services"]["certs"]["image"]
    assert COMPOSE["services"]["certs"]["network_mode"] == "none"
    assert COMPOSE["services"]["certs"]["build"]["args"] == {"EXTRAS": "[certs]"}
    assert "\nARG EXTRAS=\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


# ---- systemd ---------------------------------------------------------------------------------------------------------


def unit() -> configparser.ConfigParser:
    """The unit file; keys that are repeated have one value a line."""

    class Repeated(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            before = self.get(key)
            super().__setitem__(key, [*before, *value] if isinstance(value, list) and before else value)

    parser = configparser.ConfigParser(strict=False, interpolation=None, dict_type=Repeated)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(CONFIGS / "systemd" / "minikafka.service", encoding="utf-8")
    return parser


def test_the_unit_gives_the_broker_what_its_settings_name():
    """The key comes as a credential; settings are known ones; the only place to write to is the state directory."""
    service = unit()["Service"]
    credentials = dict(each.split(":") for each in service["LoadCredential"].splitlines())
    environment = dict(each.split("=", 1) for each in service["Environment"].splitlines())
    for value in environment.values():
        if value.startswith("%d/"):
            assert value.removeprefix("%d/") in credentials
    config = checked({}, environment)
    assert config.log_dirs == f"/var/lib/{service['StateDirectory']}"
    assert service["StateDirectoryMode"] == "0700"
    assert service["ExecStart"].split()[1:] == ["serve", "/etc/minikafka/broker.properties"]
    assert service["User"] != "root"
    # The broker's own limits for a controlled shutdown and the last flush are below.
    assert int(service["TimeoutStopSec"].removesuffix("s")) * 1000 > 2 * config.controlled_shutdown_max_wait_ms
    assert {"NoNewPrivileges", "ProtectHome", "PrivateDevices", "ProtectKernelModules"} <= {
        key for key, value in service.items() if value == "yes"
    }
    assert service["CapabilityBoundingSet"] == ""


# ---- Kubernetes ------------------------------------------------------------------------------------------------------

SET = single("StatefulSet", "minikafka")
POD = SET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_the_selectors_find_the_pods():
    """Of the set itself, both services, the disruption budget and the spreading over machines."""
    labels = SET["spec"]["template"]["metadata"]["labels"]
    selectors = [each["spec"]["selector"] for each in OBJECTS if each["kind"] in {"StatefulSet", "PodDisruptionBudget"}]
    selectors += [each["labelSelector"] for each in POD["topologySpreadConstraints"]]
    found = [each["matchLabels"] for each in selectors]
    found += [each["spec"]["selector"] for each in OBJECTS if each["kind"] == "Service"]
    assert found == [labels] * 5
    assert single("Service", SET["spec"]["serviceName"])["spec"]["clusterIP"] == "None"
    assert single("Service", SET["spec"]["serviceName"])["spec"]["publishNotReadyAddresses"] is True


def test_ports_and_mounts_have_what_they_name():
    """Target ports are ports of the container, mounts are volumes or claims, volumes are objects of the file."""
    ports = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
    for service in (each for each in OBJECTS if each["kind"] == "Service"):
        for each in service["spec"]["ports"]:
            assert ports[each["targetPort"]] == each["port"]
    mounted = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    claims = [each["metadata"]["name"] for each in SET["spec"]["volumeClaimTemplates"]]
    assert sorted(mounted) == sorted([*claims, *(each["name"] for each in POD["volumes"])])
    volumes = {each["name"]: each for each in POD["volumes"]}
    assert single("ConfigMap", volumes["settings"]["configMap"]["name"])["data"].keys() == {"broker.properties"}
    assert f"minikafka serve {mounted['settings']}/broker.properties" in CONTAINER["command"][-1]
    # Others have no access, and the pod's group, which fsGroup is, may read.
    assert volumes["tls"]["secret"]["defaultMode"] == 0o440
    assert POD["securityContext"]["fsGroup"] == POD["securityContext"]["runAsUser"] == USER_OF_IMAGE
    assert f"--uid {USER_OF_IMAGE}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("ordinal", [0, 1, 2])
def test_every_pod_is_its_voter(ordinal: int):
    """The command of the container, run by sh with the pod's host name, gives node id and addresses."""
    of_image = dict(re.findall(r"(KAFKA_[A-Z_]+)=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8")))
    assert {"KAFKA_LISTENERS", "KAFKA_LOG_DIRS"} < of_image.keys()
    del of_image["KAFKA_ADVERTISED_LISTENERS"]  # of the example in the first comment
    script = CONTAINER["command"][-1].replace("exec minikafka serve /etc/minikafka/broker/broker.properties", "env")
    printed = subprocess.run(
        ["sh", "-ec", script],
        env={"PATH": "/usr/bin:/bin", "HOSTNAME": f"minikafka-{ordinal}", **of_image},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    environment = {each["name"]: each["value"] for each in CONTAINER["env"]}
    environment |= dict(line.split("=", 1) for line in printed.splitlines() if line.startswith("KAFKA_"))
    settings = javaproperties.loads(single("ConfigMap", "minikafka")["data"]["broker.properties"])
    config = checked(settings, environment)
    is_secured(config)
    assert config.node_id == ordinal + 1
    assert len(config.voters) == SET["spec"]["replicas"]
    assert config.voters[config.node_id] == config.advertised
    assert config.log_dirs.startswith("/var/lib/minikafka/")
    assert {each.name: each.address.port for each in config.all_listeners} == {
        "PROBES": 9092,
        **{each["name"].upper(): each["containerPort"] for each in CONTAINER["ports"]},
    }
    for path in (config.ssl_keystore_location, config.ssl_truststore_location, environment["MINIKAFKA_CERT"]):
        assert path.startswith("/etc/minikafka/tls/")


def test_the_probes_ask_the_brokers_own_loopback():
    """kubelet cannot log in; and a broker that recovers long logs is not killed for it."""
    asked = {
        name: CONTAINER[name]["exec"]["command"][-1] for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert all("http://127.0.0.1:9092/" in each for each in asked.values())
    assert "/healthz" in asked["livenessProbe"]
    assert "/readyz" in asked["readinessProbe"]
    assert CONTAINER["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
