"""Settings of the authorizer: a configuration that cannot be administered, or that protects nothing, is refused."""

from __future__ import annotations

import pytest

from minikafka.config import parse_broker
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.errors import InvalidConfig

SECURED = {
    "listeners": "BROKERS://127.0.0.1:9092,CLIENTS://127.0.0.1:9093",
    "inter.broker.listener.name": "BROKERS",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin; User:bob",
}


def test_super_users_are_separated_by_semicolons():
    """As in Kafka."""
    config = parse_broker(SECURED).config
    assert config.super_principals == {"User:admin", "User:bob"}


def test_there_is_no_authorizer_by_default():
    """Two commands on loopback need no security."""
    config = parse_broker({}).config
    assert (config.authorizer_class_name, config.super_principals) == ("", frozenset())


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}, "authorizer.class.name"),
        ({"super.users": ""}, "super.users"),
        ({"super.users": "admin"}, "super.users"),
        ({"super.users": "User:admin;User:"}, "super.users"),
        ({"super.users": ":admin"}, "super.users"),
        ({"super.users": "User:ANONYMOUS"}, "super.users"),
        ({"super.users": "admin", "authorizer.class.name": ""}, "super.users"),
        ({"listeners": "BROKERS://127.0.0.1:9092"}, "inter.broker.listener.name"),
        ({"controller.listener.names": "CLIENTS"}, "inter.broker.listener.name"),
    ],
    ids=str,
)
def test_an_authorizer_that_cannot_work_is_refused(changes: dict[str, str], setting: str):
    """Nobody could create the first ACL, everybody could, or clients could only use the listener without checks."""
    with pytest.raises(InvalidConfig) as caught:
        parse_broker({**SECURED, **changes})
    assert caught.value.facts["setting"] == setting


TLS = {
    "listeners": "SSL://0.0.0.0:9092",
    "advertised.listeners": "SSL://kafka-1.example.com:9092",
    "inter.broker.listener.name": "SSL",
    "ssl.keystore.location": "broker.pem",
    "ssl.truststore.location": "ca.pem",
    "ssl.client.auth": "required",
    "super.users": "User:CN=broker-1",
}


def test_a_listener_with_tls_certificates_and_an_authorizer_may_be_reached_by_strangers():
    """One listener for brokers and clients: what each of them may do follows from its certificate."""
    config = parse_broker({**SECURED, **TLS}).config
    assert (config.insecure, config.brokers_use_tls, config.brokers_scheme) == (False, True, "https")


def test_brokers_with_certificates_may_let_clients_do_without():
    """ssl.client.auth=requested: brokers have names by their certificates, other clients are User:ANONYMOUS."""
    local = {"listeners": "SSL://127.0.0.1:9092", "ssl.client.auth": "requested"}
    assert parse_broker({**SECURED, **TLS, **local}).config.ssl_client_auth == "requested"


@pytest.mark.parametrize(
    ("changes", "setting", "said"),
    [
        ({"ssl.client.auth": "none"}, "listeners", "SSL lacks ssl.client.auth=required (or SASL_SSL);"),
        ({"ssl.client.auth": "requested"}, "listeners", "SSL lacks ssl.client.auth=required (or SASL_SSL);"),
        ({"authorizer.class.name": ""}, "listeners", "SSL lacks authorizer.class.name;"),
        ({"ssl.client.auth": "none", "mk.insecure": "true"}, "ssl.client.auth", "they would all be User:ANONYMOUS"),
    ],
)
def test_beyond_loopback_each_missing_protection_is_named(changes: dict[str, str], setting: str, said: str):
    """mk.insecure=true allows less, but not brokers that the authorizer could not tell from strangers."""
    with pytest.raises(InvalidConfig) as caught:
        parse_broker({**SECURED, **TLS, **changes})
    assert caught.value.facts["setting"] == setting
    assert said in caught.value.message


def test_an_insecure_network_may_have_anonymous_super_users():
    """mk.insecure says that everybody who reaches the ports is trusted."""
    assert parse_broker({**SECURED, "super.users": "User:ANONYMOUS", "mk.insecure": "true"}).config.insecure


def test_no_super_user_is_needed_where_everything_without_acls_is_allowed():
    """The first ACL can be created then."""
    config = parse_broker({**SECURED, "super.users": "", "allow.everyone.if.no.acl.found": "true"}).config
    assert config.super_principals == frozenset()
