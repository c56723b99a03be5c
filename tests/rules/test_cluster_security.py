"""Settings of a secured cluster on this machine: what its caller sets wins, and nobody loses a super user."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

import pytest

from minikafka.errors import InvalidConfig, InvalidRequest
from minikafka.hosting.secured import PROTOCOLS, ClusterSecurity, ClusterTls, certificate_folder
from minikafka.wire.acls import AclOperation, ResourceType


@pytest.fixture
def certificates(tmp_path: Path) -> ClusterTls:
    """The certificates of a cluster."""
    return ClusterTls(tmp_path / "certs")


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_super_users_of_the_caller_are_joined_with_those_of_the_cluster(protocol: str, certificates: ClusterTls):
    """Without the cluster's own, brokers could not call each other, nor its clients create topics."""
    security = ClusterSecurity(protocol, {"a": "x"}, lambda: certificates)
    settings = security.broker_settings({"super.users": "User:ops", "sasl.enabled.mechanisms": "PLAIN"})
    own = ["User:admin"] if protocol == "SASL_PLAINTEXT" else ["User:broker", "User:admin"]
    assert settings["super.users"].split(";") == [*own, "User:ops"]
    assert settings["sasl.enabled.mechanisms"] == "PLAIN", "the caller's settings win"
    assert "super.users" not in security.broker_settings({"authorizer.class.name": ""})


def test_password_of_the_admin_is_the_one_that_is_given_or_a_drawn_one(certificates: ClusterTls):
    """And only a login has one."""
    given = ClusterSecurity("SASL_PLAINTEXT", {"admin": "given"}, lambda: certificates)
    assert given.password("admin") == "given"
    drawn = [ClusterSecurity("SASL_PLAINTEXT", {}, lambda: certificates).password("admin") for _ in range(2)]
    assert len({*drawn, ""}) == 3
    with pytest.raises(InvalidConfig, match="no user 'admin', only none"):
        ClusterSecurity("SSL", {}, lambda: certificates).password("admin")


def test_user_without_a_password_is_refused(certificates: ClusterTls):
    """Anybody could log in as it."""
    with pytest.raises(InvalidConfig, match="the user 'a' needs a password"):
        ClusterSecurity("SASL_PLAINTEXT", {"a": ""}, lambda: certificates)


def test_import_error_that_is_a_bug_is_not_taken_for_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise it would send its reader to install what is there."""
    monkeypatch.delitem(sys.modules, "minikafka.hosting.certificates", raising=False)
    monkeypatch.setitem(sys.modules, "minikafka.hosting.cluster_files", None)
    with pytest.raises(ImportError, match="cluster_files"):
        certificate_folder(tmp_path)


def test_missing_part_of_the_package_is_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A broken installation of ``cryptography`` is named with what to do, as one that is not there."""
    monkeypatch.delitem(sys.modules, "minikafka.hosting.certificates", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(InvalidConfig, match="needs the package cryptography"):
        certificate_folder(tmp_path)


def test_users_need_a_protocol_with_logins(certificates: ClusterTls):
    """With TLS alone their passwords would mean nothing."""
    for protocol in ("PLAINTEXT", "SSL"):
        with pytest.raises(InvalidConfig, match=f"it is '{protocol}'"):
            ClusterSecurity(protocol, {"a": "x"}, lambda: certificates)


def test_error_about_an_unknown_user_has_names_and_no_passwords():
    """Rule 2: it is printed, and logged."""
    security = ClusterSecurity("SASL_PLAINTEXT", {"shop": "hunter2"}, lambda: pytest.fail("it uses no TLS"))
    with pytest.raises(InvalidConfig, match="only admin, shop;") as caught:
        security.password("nobody")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_python_clients_show_a_certificate_where_they_do_not_log_in(
    protocol: str, certificates: ClusterTls, monkeypatch: pytest.MonkeyPatch
):
    """Without it they would be User:ANONYMOUS; beside a login it would say nothing."""
    loaded: list[str] = []
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", lambda _, path: loaded.append(path))
    users = {"shop": "x"} if protocol == "SASL_SSL" else {}
    ClusterSecurity(protocol, users, lambda: certificates).aiokafka(AT, "shop", "PLAIN")
    assert loaded == ([] if users else [str(certificates.client("shop"))])


AT = "127.0.0.1:9092"
LOGIN = 'required username="shop" password="q\\"u\\\\o";'
"""JAAS options of the user ``shop``, quoted as Java reads them."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_get_what_their_protocol_needs_and_nothing_else(protocol: str, certificates: ClusterTls):
    """TLS: the CA. SASL: a login. TLS without SASL: a certificate. Python's native clients call the brokers' listener."""
    users = {"shop": 'q"u\\o'} if protocol.startswith("SASL") else {}
    security = ClusterSecurity(protocol, users, lambda: certificates)
    ca, own = str(certificates.ca), str(certificates.client("shop"))
    uses_tls, uses_sasl = protocol.endswith("SSL"), bool(users)
    needs_certificate = uses_tls and not uses_sasl
    base = {"bootstrap.servers": AT, "security.protocol": protocol}
    assert security.librdkafka(AT, "shop", "PLAIN") == {
        **base,
        **({"ssl.ca.location": ca} if uses_tls else {}),
        **({"ssl.certificate.location": own, "ssl.key.location": own} if needs_certificate else {}),
        **({"sasl.mechanism": "PLAIN", "sasl.username": "shop", "sasl.password": users["shop"]} if uses_sasl else {}),
    }
    modules = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-512": "scram.ScramLoginModule"}
    for mechanism, module in modules.items():
        jaas = f"org.apache.kafka.common.security.{module} {LOGIN}"
        assert security.java(AT, "shop", mechanism) == {
            **base,
            **({"ssl.truststore.type": "PEM", "ssl.truststore.location": ca} if uses_tls else {}),
            **({"ssl.keystore.type": "PEM", "ssl.keystore.location": own} if needs_certificate else {}),
            **({"sasl.mechanism": mechanism, "sasl.jaas.config": jaas} if uses_sasl else {}),
        }
    native = {"ssl_cafile": ca, "ssl_certfile": own} if uses_tls else {}
    assert security.native(AT, "shop") == {"bootstrap_servers": AT, **native}
    aiokafka = security.aiokafka(AT, "shop", "PLAIN")
    assert ("ssl_context" in aiokafka, "sasl_plain_password" in aiokafka) == (uses_tls, uses_sasl)
    assert security.brokers_protocol == ("SSL" if uses_tls else "PLAINTEXT")


def test_acls_are_for_each_resource_that_is_named():
    """Without operations everything is allowed there; names are Kafka's, however they are written."""
    security = ClusterSecurity("SASL_PLAINTEXT", {}, lambda: pytest.fail("it uses no TLS"))
    named = {"topic": "orders", "group": "g", "transactional_id": "t"}
    kinds = {
        "topic": ResourceType.TOPIC,
        "group": ResourceType.GROUP,
        "transactional_id": ResourceType.TRANSACTIONAL_ID,
    }
    for kind, name in named.items():
        (acl,) = security.acls("shop", (), **{kind: name})
        assert (acl.resource_type, acl.resource_name, acl.operation) == (kinds[kind], name, AclOperation.ALL)
        assert acl.principal == "User:shop"
    several = security.acls("shop", ("Read", "DESCRIBE_CONFIGS", "describeConfigs"), topic="orders", group="g")
    assert [(each.resource_name, each.operation) for each in several] == [
        (name, operation)
        for name in ("orders", "g")
        for operation in (AclOperation.READ, AclOperation.DESCRIBE_CONFIGS, AclOperation.DESCRIBE_CONFIGS)
    ]
    with pytest.raises(InvalidRequest, match="no resource is named"):
        security.acls("shop", ("Read",))
    for unusable in ("Any", "Unknown", "Reed"):
        with pytest.raises(InvalidRequest, match=f"'{unusable}' is no operation"):
            security.acls("shop", (unusable,), topic="orders")


def test_names_of_users_have_a_hundred_characters_at_most(certificates: ClusterTls):
    """They are common names of certificates, too."""
    assert ClusterSecurity("SASL_PLAINTEXT", {"a" * 100: "x"}, lambda: certificates).password("a" * 100) == "x"
    for name in ("a" * 101, "", "a b", "a\n"):
        with pytest.raises(InvalidConfig, match="a name of letters"):
            ClusterSecurity("SASL_PLAINTEXT", {name: "x"}, lambda: certificates)


def test_super_users_and_principals_follow_the_mapping_rules_of_the_caller(certificates: ClusterTls):
    """A certificate is who the rules say, and brokers that no rule matches could not call each other."""
    security = ClusterSecurity("SSL", {}, lambda: certificates)
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/of-$1/",
    }
    settings = security.broker_settings(config)
    assert settings["super.users"] == "User:of-broker;User:of-admin"
    assert settings["ssl.client.auth"] == "requested"
    assert security.broker_settings({**config, "ssl.client.auth": "required"})["ssl.client.auth"] == "required"
    assert security.principal("shop") == "User:of-shop"
    with pytest.raises(InvalidConfig, match="the cluster's own certificates need a rule that matches"):
        security.broker_settings({**config, "ssl.principal.mapping.rules": "RULE:^OU=(.*)$/$1/"})
