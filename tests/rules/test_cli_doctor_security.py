"""What the doctor finds in the security of brokers: each finding says where, what, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from minikafka.cli.doctor_checks import (
    DAY_S,
    ERROR,
    NOTE,
    WARNING,
    AccessFacts,
    CertificateFacts,
    SecurityFacts,
    access_findings,
    security_findings,
    security_of,
    settings_elsewhere,
)
from minikafka.cli.root import root
from minikafka.config import BrokerConfig, parse_broker, to_settings
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.hosting.certificates import CertificateFolder

TLS = {"listeners": "SSL://0.0.0.0:9093", "advertised.listeners": "SSL://kafka-1.example.com:9093"}
SAFE = {
    **TLS,
    "ssl.client.auth": "required",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "ssl.keystore.location": "k.pem",
    "ssl.truststore.location": "ca.pem",
}


def found(config: BrokerConfig, *certificates: CertificateFacts) -> list[tuple[str, str]]:
    told = list(security_findings(SecurityFacts(where="broker 1", settings=config, certificates=certificates)))
    assert all(each.what and each.do and each.where == "broker 1" for each in told)
    return [(each.level, each.check) for each in told]


def elsewhere(**changes: str) -> BrokerConfig:
    """Settings of a broker that runs, as they are described."""
    settings = to_settings(BrokerConfig()) | SAFE
    return settings_elsewhere(settings | {name.replace("_", "."): value for name, value in changes.items()})


def test_a_secured_broker_and_one_on_loopback_have_no_findings():
    """Otherwise nobody would read them."""
    assert found(elsewhere()) == []
    assert found(BrokerConfig()) == []
    good = CertificateFacts(
        path="k.pem", has_key=True, mode=0o640, hosts=frozenset({"kafka-1.example.com"}), seconds_left=90 * DAY_S
    )
    assert found(elsewhere(), good) == []


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"listeners": "PLAINTEXT://0.0.0.0:9092", "advertised_listeners": ""}, 2),
        ({"listeners": "SASL://0.0.0.0:9092", "listener_security_protocol_map": "SASL:SASL_PLAINTEXT"}, 1),
        ({"ssl_client_auth": "requested"}, 1),
        ({"authorizer_class_name": ""}, 1),
    ],
)
def test_a_listener_beyond_loopback(changes: dict[str, str], count: int):
    """Plain text, clients without a name, no authorizer; mk.insecure=true lets a broker start so."""
    changes = {"advertised_listeners": "", **changes}
    assert found(elsewhere(**changes)) == [(WARNING, "listeners")] * count


def test_an_authorizer_without_an_administrator():
    """With allow.everyone.if.no.acl.found a broker starts so."""
    assert found(elsewhere(super_users=" ")) == [(WARNING, "super-users")]


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        ({"trouble": "cannot be read: Permission denied"}, ERROR),
        ({"mode": 0o644, "has_key": True}, ERROR),
        ({"seconds_left": -1.0}, ERROR),
        ({"seconds_left": 29 * DAY_S}, WARNING),
        ({"hosts": frozenset({"kafka-2.example.com"})}, ERROR),
    ],
)
def test_a_certificate(facts: dict[str, Any], level: str):
    """Unreadable, readable by others, expired, about to expire, for other names."""
    certificate = CertificateFacts(path="k.pem", setting="ssl.keystore.location", **facts)
    assert found(elsewhere(), certificate) == [(level, "certificates")]


def test_acls_and_users():
    """An authorizer without ACLs lets super users alone in; few iterations are a note."""
    assert list(access_findings(AccessFacts())) == []
    assert list(access_findings(AccessFacts(acl_count=1, iterations={"ann": {"SCRAM-SHA-512": 8192}}))) == []
    told = list(access_findings(AccessFacts(acl_count=0, iterations={"ann": {"SCRAM-SHA-256": 4096}})))
    assert [(each.level, each.check, each.where) for each in told] == [
        (WARNING, "acls", "cluster"),
        (NOTE, "users", "user ann"),
    ]
    assert "minikafka users add ann" in told[1].do


def test_the_files_of_a_broker_on_this_machine(tmp_path: Path):
    """As `minikafka certs` makes them; then with another name, another mode, another content, and gone."""
    folder = CertificateFolder(tmp_path)
    folder.make_ca()
    folder.make_broker("k", ["kafka-1.example.com", "127.0.0.1"])
    settings = {**SAFE, "ssl.keystore.location": str(folder.path("k")), "ssl.truststore.location": str(folder.ca)}
    settings["super.users"] = "User:CN=k"

    def levels(**changes: str) -> list[str]:
        config = parse_broker({**settings, **{key.replace("_", "."): each for key, each in changes.items()}}).config
        return [f"{each.level} {each.what}" for each in security_findings(security_of("b", config))]

    assert levels() == []
    [other] = levels(advertised_listeners="SSL://kafka-9.example.com:9093")
    assert "is not for kafka-9.example.com" in other
    folder.path("k").chmod(0o644)
    [open_to_all] = levels()
    assert "every user of the machine may access the private key" in open_to_all
    folder.path("k").write_text("no PEM")
    assert "a private key that fits its certificate in PEM is needed" in levels()[0]
    folder.path("k").unlink()
    assert "cannot be read" in levels()[0]
    folder.make_client("k", days=5)
    assert [each.split()[0] for each in levels()] == ["warning", "error"]  # it ends soon, and has no host names


def test_the_command_says_why_a_file_starts_no_broker(tmp_path: Path):
    """A listener beyond loopback in plain text, an authorizer without super users: the sentence names the setting."""
    file = tmp_path / "b.properties"
    file.write_text(f"node.id=1\nlog.dirs={tmp_path}\nlisteners=PLAINTEXT://0.0.0.0:9092\n")
    told = CliRunner().invoke(root, ["doctor", str(file), "--offline", "-o", "json"])
    assert told.exit_code == 1
    [finding] = json.loads(told.output)["findings"]
    assert (finding["level"], finding["check"]) == (ERROR, "settings")
    assert "beyond loopback" in finding["what"]
