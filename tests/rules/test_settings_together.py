"""Settings of brokers: names from an environment, texts of values, and what must hold between several of them."""

from __future__ import annotations

import pytest

from minikafka.addresses import is_loopback
from minikafka.config import (
    KNOWN_TO_KAFKA_ONLY,
    BrokerConfig,
    TopicConfig,
    environment_overruled,
    environment_settings,
    parse_broker,
    parse_topic,
    table,
    to_settings,
)
from minikafka.config.listeners import jaas_users
from minikafka.config.names import INSTEAD
from minikafka.errors import InvalidConfig


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({"CLUSTER_ID": "x"}, {"cluster.id": "x"}),
        ({"CLUSTER_ID": ""}, {}),
        ({"CLUSTER_ID": "x", "KAFKA_CLUSTER_ID": "y"}, {"cluster.id": "y"}),
        ({"KAFKA_NODE_ID": "1", "MK_NODE_ID": "2"}, {"node.id": "2"}),
        ({"MK_SEED": "7"}, {"mk.seed": "7"}),
        ({"KAFKA_SEED": "7"}, {"seed": "7"}),
        ({"KAFKA_A__B_C___D": "7"}, {"a_b.c-d": "7"}),
        ({"KAFKA_LISTENER_NAME_A_B_MAX_CONNECTIONS": "7"}, {"listener.name.a.b.max.connections": "7"}),
        ({"KAFKA_LISTENER_NAME_A__B_MAX_CONNECTIONS": "7"}, {"listener.name.a_b.max.connections": "7"}),
        ({"NODE_ID": "1", "XKAFKA_NODE_ID": "1"}, {}),
    ],
)
def test_variables_of_an_environment_are_settings(environment: dict[str, str], settings: dict[str, str]) -> None:
    """The Apache image's rule; an empty CLUSTER_ID, as compose passes one on that is not set, gives none."""
    assert environment_settings(environment) == settings


def test_only_variables_that_say_otherwise_are_overruled() -> None:
    """Two that agree are worth no notice."""
    environment = {"CLUSTER_ID": "x", "KAFKA_CLUSTER_ID": "x", "MK_CLUSTER_ID": "y", "KAFKA_NODE_ID": "1"}
    assert environment_overruled(environment) == [
        ("cluster.id", "MK_CLUSTER_ID", "CLUSTER_ID"),
        ("cluster.id", "MK_CLUSTER_ID", "KAFKA_CLUSTER_ID"),
    ]
    assert environment_overruled({"KAFKA_NODE_ID": "1", "MK_NODE_ID": "1"}) == []


def test_setting_of_kafka_that_is_not_used_is_a_notice_that_says_so() -> None:
    """A file for Kafka starts a broker here. A name that Kafka does not know either is an error, cut if it is long."""
    for lenient in (False, True):
        [notice] = parse_broker({"zookeeper.connect": "x"}, lenient=lenient).notices
        assert notice == "zookeeper.connect is known to Kafka and not used by minikafka"
    with pytest.raises(InvalidConfig) as raised:
        parse_broker({"x" * 5_000: "1"})
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(("name", "instead"), sorted(INSTEAD.items()))
def test_notice_names_the_setting_that_has_the_meaning_of_an_unused_one(name: str, instead: str) -> None:
    """Otherwise a file for Kafka with log.retention.hours=24 keeps records for a week, and the notice helps nobody."""
    assert name in KNOWN_TO_KAFKA_ONLY
    assert instead in table(BrokerConfig)
    [notice] = parse_broker({name: "24"}).notices
    assert notice == f"{name} is known to Kafka and not used by minikafka; set {instead}"


def test_listeners_with_any_free_port_do_not_share_it() -> None:
    """Port 0 is another one for each."""
    assert parse_broker({"listeners": "A://127.0.0.1:0,B://127.0.0.1:0"})
    for other in ("127.0.0.1", "127.0.0.2"):
        with pytest.raises(InvalidConfig, match="two listeners share a port"):
            parse_broker({"listeners": f"A://127.0.0.1:1,B://{other}:1"})


@pytest.mark.parametrize("name", ["mk.http.allowed.hosts", "mk.http.allowed.origins"])
def test_names_that_browsers_may_use_are_checked_at_the_start(name: str) -> None:
    """Not at the first request."""
    with pytest.raises(InvalidConfig) as raised:
        parse_broker({name: "a/b c"})
    assert raised.value.facts["setting"] == name


TOKENS = {
    "listeners": "A://127.0.0.1:1",
    "listener.security.protocol.map": "A:PLAINTEXT,B:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "https://example.com/keys",
    "sasl.oauthbearer.expected.issuer": "i",
    "sasl.oauthbearer.expected.audience": "a",
}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("sasl.oauthbearer.jwks.endpoint.url", "http://example.com/keys"),
        ("sasl.oauthbearer.jwks.endpoint.url", "https://me:secret@example.com/keys"),
        ("sasl.oauthbearer.jwks.endpoint.url", "file://keys"),
        ("sasl.oauthbearer.expected.issuer", ""),
        ("sasl.oauthbearer.expected.audience", " , "),
    ],
)
def test_tokens_are_believed_only_by_keys_from_a_safe_place(name: str, wrong: str) -> None:
    """Keys that come unencrypted may be forged; without issuer and audience tokens for others would be accepted."""
    assert parse_broker(TOKENS).config.uses_tokens
    with pytest.raises(InvalidConfig) as raised:
        parse_broker({**TOKENS, name: wrong})
    assert raised.value.facts["setting"] == name
    assert "secret" not in str(raised.value)


def test_tokens_of_one_listener_need_keys_too() -> None:
    """Without keys, issuer and audience the listener would start and refuse every token."""
    settings = {"listeners": "A://127.0.0.1:1,B://127.0.0.1:2", "listener.security.protocol.map": "B:SASL_PLAINTEXT"}
    for name in ("listener.name.b.sasl.enabled.mechanisms", "sasl.enabled.mechanisms"):
        enabled = settings | {name: "SCRAM-SHA-256, OAUTHBEARER"}
        with pytest.raises(InvalidConfig, match=r"needs sasl\.oauthbearer\.jwks\.endpoint\.url"):
            parse_broker(enabled)
        assert parse_broker(TOKENS | enabled).config.uses_tokens
    assert not parse_broker(settings).config.uses_tokens


def test_certificates_that_are_requested_need_a_truststore() -> None:
    """Also where only clients use TLS: no certificate could be checked."""
    settings = {
        "listeners": "BROKERS://127.0.0.1:1,CLIENTS://127.0.0.1:2",
        "listener.security.protocol.map": "CLIENTS:SSL",
        "ssl.keystore.location": "broker.pem",
    }
    assert parse_broker(settings)
    for wanted in ("requested", "required"):
        assert parse_broker({**settings, "ssl.client.auth": wanted, "ssl.truststore.location": "ca.pem"})
        with pytest.raises(InvalidConfig, match=f"ssl.client.auth={wanted}, but ssl.truststore.location is empty"):
            parse_broker({**settings, "ssl.client.auth": wanted})


@pytest.mark.parametrize(
    ("session", "heartbeat"),
    [
        ("broker.session.timeout.ms", "broker.heartbeat.interval.ms"),
        ("group.consumer.session.timeout.ms", "group.consumer.heartbeat.interval.ms"),
    ],
)
def test_session_lasts_longer_than_the_interval_of_its_heartbeats(session: str, heartbeat: str) -> None:
    """With equal ones each heartbeat would come too late."""
    assert parse_broker({session: "1001", heartbeat: "1000"})
    for session_ms in ("1000", "999"):
        with pytest.raises(InvalidConfig, match="must be larger than") as raised:
            parse_broker({session: session_ms, heartbeat: "1000"})
        assert raised.value.facts["setting"] == session
        assert f"{session}={session_ms} " in raised.value.message


def test_broker_without_the_controllers_role_is_no_voter() -> None:
    """It would be counted in the quorum and never vote."""
    settings = {"node.id": "2", "process.roles": "broker"}
    others = {"controller.quorum.voters": "1@127.0.0.1:9093"}
    assert parse_broker({**settings, **others}).config.voters.keys() == {1}
    for voters in ({"controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.1:9094"}, {}):
        with pytest.raises(InvalidConfig, match="names this node") as raised:
            parse_broker({**settings, **voters})
        assert raised.value.facts["setting"] == "process.roles"


def test_listener_of_controllers_is_not_advertised() -> None:
    """Clients and brokers never learn of it, so an address of it would be ignored."""
    settings = {"listeners": "A://127.0.0.1:1,B://127.0.0.1:2", "advertised.listeners": "B://localhost:2"}
    assert parse_broker(settings).config.all_advertised.keys() == {"B"}
    with pytest.raises(InvalidConfig, match="names B, which is no listener for clients: A are"):
        parse_broker({**settings, "controller.listener.names": "B"})


def test_names_of_listeners_are_compared_in_upper_case_and_without_spaces() -> None:
    """As Kafka does."""
    config = parse_broker(
        {
            "listeners": "brokers://127.0.0.1:1, Clients://127.0.0.1:2,quorum://127.0.0.1:3",
            "inter.broker.listener.name": " brokers ",
            "controller.listener.names": " quorum ,",
            "listener.name.clients.max.connections": "5",
        }
    ).config
    assert [each.name for each in config.client_listeners] == ["BROKERS", "CLIENTS"]
    assert (config.inter_broker_listener.name, config.clients_listener.name) == ("BROKERS", "CLIENTS")
    assert config.internal_listeners == {"BROKERS", "QUORUM"}
    assert config.connection_limits == {"CLIENTS": 5}
    alone = parse_broker({}).config
    assert alone.clients_listener == alone.inter_broker_listener


@pytest.mark.parametrize(
    "host",
    [
        "127.example.com",
        "127.0.0.1.example.com",
        "127.0.0.1x",
        "127.",
        "localhost.example.com",
        "127.0.0.256",
        "127.256.1",
    ],
)
def test_name_that_begins_like_a_loopback_address_is_none(host: str) -> None:
    """It may point anywhere: plain listeners are refused there, and passwords are not sent there in plain text."""
    assert not is_loopback(host)
    with pytest.raises(InvalidConfig, match="is beyond loopback"):
        parse_broker({"listeners": f"PLAINTEXT://{host}:9092"})


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.255.255.254", "127.1", "127.9.65535", "127.16777215", "::1", "[::1]"]
)
def test_loopback_has_several_addresses(host: str) -> None:
    """All of 127.0.0.0/8, in the forms that sockets take."""
    assert is_loopback(host)


def test_node_alone_votes_at_the_address_that_others_would_use() -> None:
    """The advertised one, if there is one."""
    settings = {"node.id": "4", "listeners": "PLAINTEXT://127.0.0.1:1"}
    assert parse_broker(settings).config.voters == {4: ("127.0.0.1", 1)}
    advertised = {"advertised.listeners": "PLAINTEXT://kafka.example.com:2"}
    assert parse_broker({**settings, **advertised}).config.voters == {4: ("kafka.example.com", 2)}


def test_yes_and_no_are_true_and_false_in_any_case_and_between_spaces() -> None:
    """As in Kafka, also where they come from a file with Windows's ends of lines."""
    for text, value in (("true", True), (" TRUE\r", True), ("False ", False)):
        config = parse_broker({"delete.topic.enable": text}).config
        assert config.delete_topic_enable is value
        assert to_settings(config)["delete.topic.enable"] == str(value).lower()
    for text in ("yes", "1", "", "truefalse"):
        with pytest.raises(InvalidConfig, match="say true or false"):
            parse_broker({"delete.topic.enable": text})
    assert parse_topic({"compression.type": " zstd "}).compression_type == "zstd"


def test_each_codec_has_its_own_level() -> None:
    """snappy, and topics that brokers do not compress, have none."""
    levels = {"compression.gzip.level": "1", "compression.lz4.level": "2", "compression.zstd.level": "4"}
    codecs = {"gzip": 1, "lz4": 2, "zstd": 4, "snappy": None, "producer": None, "uncompressed": None}
    for codec, level in codecs.items():
        assert parse_topic({**levels, "compression.type": codec}).compression_level == level


def test_bounds_of_a_setting_are_allowed() -> None:
    """The lowest and the highest value, and nothing beyond."""
    for name, lowest, highest in (
        ("mk.history.minutes", 0, 1440),
        ("mk.tls.handshakes.max", 2, 2**31 - 1),
        ("node.id", 0, 2**31 - 1),
        ("fetch.max.bytes", 1024, 2**63 - 1),
        ("num.partitions", 1, 2**63 - 1),
    ):
        for value in (lowest, highest):
            assert parse_broker({name: str(value)})
        for value in (lowest - 1, highest + 1):
            with pytest.raises(InvalidConfig, match=f"={value}: at least {lowest}"):
                parse_broker({name: str(value)})
    assert parse_topic({"retention.ms": "-1"}, base=TopicConfig()).retention_ms == -1


def test_login_of_a_broker_has_a_name_and_a_password() -> None:
    """With one of the two it has none, in a text for Kafka that has only users."""
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    assert jaas_users("n", f'{plain} username="a" password="b";', "PLAIN")[1] == ("a", "b")
    for options in ("", ' username="a"', ' password="b"'):
        assert jaas_users("n", f"{plain}{options};", "PLAIN")[1] is None
