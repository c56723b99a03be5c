"""Java's clients and franz-go at secured listeners: each way to log in x right, wrong, without an ACL, and renewed (issue 18).

Each client is one process, which connects in all of these ways and prints what came of each. librdkafka, aiokafka and the
clients of this project are in tests/e2e.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import javaproperties
import pytest

from minikafka import LocalCluster
from minikafka.hosting.certificates import CertificateFolder
from minikafka.hosting.secured import MECHANISM
from tests.foreign.kafka_tools import JVM, NEWEST, java, shared_classes
from tests.foreign.toolchains import HERE, output_of
from tests.tokens import AUDIENCE, ISSUER, Issuer

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 300.0
TOPIC = "orders"
OAUTHBEARER, CERTIFICATE = "OAUTHBEARER", "certificate"
WITH_PASSWORD = ("PLAIN", "SCRAM-SHA-256", MECHANISM)
SESSION_MS = 3000
UNMAPPED_MS = "8000"
"""Java's client ends its attempts with an unmapped certificate after this time."""
USERS = {"shop": 'se"c\\r, et=;', "guest": "guest"}

OUTCOMES: Mapping[str, Mapping[str, str]] = {
    "java": {
        "wrong": "SaslAuthenticationException",
        "certificate.wrong": "SslAuthenticationException",
        # After an error of ApiVersions it connects again until its time is up, whatever the error is.
        "certificate.unmapped": "TimeoutException",
        "denied": "TopicAuthorizationException",
    },
    "franz": {
        "wrong": "SASL_AUTHENTICATION_FAILED",
        # It reads no JSON of a refused token (RFC 7628), from any broker.
        "OAUTHBEARER.wrong": "unexpected data in oauth response",
        "certificate.wrong": "remote error: tls: unknown certificate authority",
        "certificate.unmapped": "SASL_AUTHENTICATION_FAILED",
        "denied": "TOPIC_AUTHORIZATION_FAILED",
    },
}
"""Each client's error for a login, or for a case of all logins; everything else must be OK."""


@dataclass(frozen=True)
class Login:
    """One way to connect."""

    way: str
    case: str
    """``right``, ``wrong`` (credential), ``denied`` (no ACL), ``renewed`` (the session) or ``unmapped`` (a certificate of
    the right CA for which no rule gives a principal).
    """

    @property
    def name(self) -> str:
        return f"{self.way}.{self.case}"

    @property
    def user(self) -> str:
        """``shop`` may write and read, ``guest`` nothing."""
        return "guest" if self.case == "denied" else "shop"

    @property
    def does(self) -> str:
        return {"right": "read", "renewed": "renew"}.get(self.case, "write")


LOGINS = [
    Login(way, case)
    for way in (*WITH_PASSWORD, OAUTHBEARER, CERTIFICATE)
    for case in ("right", "wrong", "denied", "renewed", "unmapped")
    if (way == CERTIFICATE and case != "renewed") or (way != CERTIFICATE and case != "unmapped")
]


@dataclass(frozen=True)
class Secured:
    """A broker with a SASL_SSL listener for clients and an SSL listener that requires certificates."""

    cluster: LocalCluster
    issuer: Issuer
    other_ca: CertificateFolder
    """Signs certificates that the broker does not trust."""

    @property
    def ca(self) -> Path:
        assert self.cluster.certificates is not None
        return self.cluster.certificates.ca

    def bootstrap(self, login: Login) -> str:
        return self.cluster.files.bootstrap if login.way == CERTIFICATE else self.cluster.bootstrap

    def secret(self, login: Login) -> str:
        """The password or the token."""
        if login.way == OAUTHBEARER:
            return self.issuer.token(sub=login.user, aud="spark" if login.case == "wrong" else AUDIENCE)
        return "wrong" if login.case == "wrong" else USERS[login.user]

    def certificate(self, login: Login) -> Path:
        if login.case == "wrong":
            return self.other_ca.make_client(login.user).path
        assert self.cluster.certificates is not None
        if login.case == "unmapped":
            return CertificateFolder(self.ca.parent).make_client("elsewhere", subject="CN=shop,O=Elsewhere").path
        return self.cluster.certificates.client(login.user)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder, issuer = tmp_path_factory.mktemp("secured"), Issuer()
    (folder / "keys.json").write_text(issuer.jwks(), encoding="ascii")
    other = CertificateFolder(folder / "other")
    other.make_ca()
    config = {
        "group.initial.rebalance.delay.ms": "0",
        "sasl.enabled.mechanisms": ",".join((*WITH_PASSWORD, OAUTHBEARER)),
        "connections.max.reauth.ms": str(SESSION_MS),
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/",
    }
    with LocalCluster(1, config=config, security_protocol="SASL_SSL", users=USERS) as cluster:
        cluster.sync.create_topic(TOPIC, partitions=1, replicas=1)
        cluster.sync.allow("shop", "Read", "Write", topic=TOPIC)
        cluster.sync.allow("shop", "Read", group="*")
        yield Secured(cluster, issuer, other)


def printed(command: list[str], given: str = "") -> dict[str, str]:
    """The program's lines: name and outcome."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    names = {each.name for each in LOGINS}
    found = (line.partition(" ") for line in done.stdout.splitlines())
    return {name: outcome for name, _, outcome in found if name in names}


def java_settings(secured: Secured, login: Login, folder: Path) -> dict[str, str]:
    """What a user of Java's clients writes down."""
    settings = {
        "test.does": login.does,
        # An unmapped certificate fails when the client's patience is over.
        "test.waits": str(login.case in {"renewed", "unmapped"}).lower(),
        "bootstrap.servers": secured.bootstrap(login),
        "security.protocol": "SSL" if login.way == CERTIFICATE else "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secured.ca),
    }
    if login.case == "unmapped":
        settings["max.block.ms"] = UNMAPPED_MS
    if login.way == CERTIFICATE:
        return settings | {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(secured.certificate(login))}
    if login.way == OAUTHBEARER:
        token = folder / f"{login.name}.token"
        token.write_text(secured.secret(login), encoding="ascii")
        return settings | {
            "sasl.mechanism": OAUTHBEARER,
            "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            ),
            "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        }
    settings |= secured.cluster.java_config(login.user, login.way)
    if login.case == "wrong":
        module = settings["sasl.jaas.config"].partition(" required ")[0]
        settings["sasl.jaas.config"] = f'{module} required username="{login.user}" password="wrong";'
    return settings


@pytest.fixture(scope="module")
def by_java(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("java")
    for login in LOGINS:
        text = javaproperties.dumps(java_settings(secured, login, folder), timestamp=False)
        (folder / f"{login.name}.properties").write_text(text, encoding="ascii")
    quiet = tmp_path_factory.mktemp("quiet") / "log4j2.properties"
    quiet.write_text("status=error\nrootLogger.level=off\n")
    program, class_path = java(NEWEST)
    tokens = ",".join(each.as_uri() for each in folder.glob("*.token"))
    return printed(
        [
            *(str(program), *JVM, *shared_classes(program, class_path), f"-Dlog4j2.configurationFile={quiet}"),
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens}",
            *("-cp", class_path, str(HERE / "Secured.java"), str(folder), TOPIC),
        ]
    )


@pytest.fixture(scope="module")
def by_franz(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    program = tmp_path_factory.mktemp("go") / "secured"
    output_of("go", "build", "-o", program, "./secured", cwd=HERE / "go")
    lines = []
    for login in LOGINS:
        given = {"name": login.name, "does": login.does, "bootstrap": secured.bootstrap(login), "user": login.user}
        if login.way == CERTIFICATE:
            given["certificate"] = str(secured.certificate(login))
        else:
            given |= {"mechanism": login.way, "secret": secured.secret(login)}
        lines.append(json.dumps(given))
    return printed([str(program), TOPIC, str(secured.ca)], "\n".join(lines))


def check(client: str, login: Login, outcomes: Mapping[str, str]) -> None:
    """What came of one login is what it should be."""
    expected = OUTCOMES[client]
    assert outcomes[login.name] == expected.get(login.name, expected.get(login.case, "OK")), outcomes


every_login = pytest.mark.parametrize("login", LOGINS, ids=[each.name for each in LOGINS])


@pytest.mark.java
@pytest.mark.java_source
@every_login
def test_java(by_java: dict[str, str], login: Login):
    """Producer, and where the login is right also a consumer of a group."""
    check("java", login, by_java)


@pytest.mark.go
@every_login
def test_franz_go(by_franz: dict[str, str], login: Login):
    """The same through franz-go."""
    check("franz", login, by_franz)
