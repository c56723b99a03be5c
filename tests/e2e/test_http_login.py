"""HTTP at a listener with SASL: the users of the cluster log in with HTTP Basic, by curl, clients and commands."""

from __future__ import annotations

import asyncio
import http.client
import os
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
)
from confluent_kafka.admin import ResourceType as Kind

from minikafka import AdminClient as MinikafkaAdmin
from minikafka import Consumer, Producer
from minikafka.broker import http_login as driver
from minikafka.errors import (
    GroupAuthorizationFailed,
    ProtocolError,
    SaslAuthenticationFailed,
    TransactionalIdAuthorizationFailed,
)
from minikafka.rest import routes
from minikafka.wire import acls as wire
from minikafka.wire.acls import Acl, ResourceType
from minikafka.world import connections
from tests.certificates import authority, signed
from tests.e2e.secured import USERS, Answer, Secured, basic, eventually, request, secured

pytestmark = [pytest.mark.e2e]

READ, DESCRIBE = wire.AclOperation.READ, wire.AclOperation.DESCRIBE


def rpc(address: str, *headers: tuple[str, str], over: http.client.HTTPConnection | None = None) -> Answer:
    """One Metadata request, as msgpack, which is what the fast path takes."""
    return request(
        address,
        "/rpc/ApiVersions",
        method="POST",
        headers=[("Content-Type", "application/msgpack"), *headers],
        body=bytes.fromhex("00000001 80"),
        over=over,
    )


def allow(broker: Secured, user: str, operation: AclOperation, topic: str = "orders") -> None:
    """Create an ACL, over the listener of brokers."""
    acl = AclBinding(
        Kind.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
    )
    admin = AdminClient({"bootstrap.servers": broker.own})
    for future in admin.create_acls([acl]).values():
        future.result(60)


async def test_users_of_the_cluster_log_in_over_http(tmp_path: Path):
    """401 says how to log in; the principal is the one that the user has over SASL; ACLs apply to it."""
    async with secured(tmp_path) as broker:
        nobody = await asyncio.to_thread(broker.get, "/v1/whoami")
        assert (nobody.status, nobody.document["error"]) == (401, "SASL_AUTHENTICATION_FAILED")
        assert nobody.headers["WWW-Authenticate"].startswith('Basic realm="minikafka"')
        assert "curl --user" in nobody.document["detail"]
        for user, is_super in (("admin", True), ("ann", False)):
            answer = await asyncio.to_thread(broker.get, "/v1/whoami", user)
            found = answer.document
            assert (found["principal"], found["super_user"]) == (f"User:{user}", is_super)
            assert (found["security_protocol"], found["checked"]) == ("SASL_PLAINTEXT", True)
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert (await asyncio.to_thread(broker.get, "/v1/topics/orders", "ann")).status == 403
        await asyncio.to_thread(allow, broker, "ann", AclOperation.DESCRIBE)
        await eventually(lambda: broker.get("/v1/topics/orders", "ann").status == 200)
        probe = await asyncio.to_thread(broker.get, "/readyz")
        assert probe.status == 200
        page = await asyncio.to_thread(broker.get, "/", "ann", method="GET")
        assert page.status == 200
        assert (await asyncio.to_thread(broker.get, "/")).status == 401
        assert (await asyncio.to_thread(broker.get, "/no/such/path")).status == 401


async def test_hostile_test_20(tmp_path: Path):
    """Wrong passwords, no password after a right one on the same connection, two headers, tokens in the address."""
    async with secured(tmp_path) as broker:
        right, wrong = basic("admin", USERS["admin"]), basic("admin", "wrong")

        def attack() -> None:
            for headers, status in (([right], 200), ([wrong], 401), ([right, wrong], 400), ([], 401)):
                assert rpc(broker.clients, *headers).status == status
                assert request(broker.clients, "/v1/topics", headers=headers).status == status
            for value in ("Basic", "Basic !", "Negotiate x", "", "Bearer a.b.c"):
                assert rpc(broker.clients, ("Authorization", value)).status == 401
            connection = http.client.HTTPConnection(broker.clients, timeout=60)
            assert rpc(broker.clients, right, over=connection).status == 200
            assert rpc(broker.clients, over=connection).status == 401
            connection.close()
            for name in ("token", "access_token", "password"):
                refused = broker.get(f"/v1/topics?{name}=secret", "admin")
                assert refused.status == 400
                assert b"secret" not in refused.body
            # Without SASL credentials are not needed, and wrong ones are refused nevertheless.
            assert [rpc(broker.own, *each).status for each in ([], [right], [wrong])] == [200, 200, 401]
            assert request(broker.own, "/v1/whoami", headers=[right]).document["principal"] == "User:admin"

        await asyncio.to_thread(attack)


async def test_hostile_test_21(tmp_path: Path):
    """A page of another origin whose browser adds the password by itself: nothing is done, before or after a login."""
    async with secured(tmp_path, {"mk.http.allowed.origins": "http://friend.example"}) as broker:
        right = basic("admin", USERS["admin"])
        form = ("Content-Type", "application/x-www-form-urlencoded")

        def attack() -> None:
            evil = [("Origin", "http://evil.example")]
            for headers in (evil, [("Sec-Fetch-Site", "cross-site")], [*evil, ("Sec-Fetch-Mode", "no-cors")]):
                for method, path in (("POST", "/v1/topics"), ("GET", "/v1/topics"), ("DELETE", "/v1/topics/orders")):
                    answer = request(
                        broker.clients, path, method=method, headers=[right, form, *headers], body=b'{"name": "x"}'
                    )
                    assert answer.status == 403
                    assert "Access-Control-Allow-Origin" not in answer.headers
            assert request(broker.clients, "/v1/topics", headers=[right, ("Host", "evil.example")]).status == 403
            names = [each["topic"] for each in broker.get("/v1/topics", "admin").document["topics"]]
            assert names == ["orders"]
            friend = ("Origin", "http://friend.example")
            before = request(
                broker.clients,
                "/v1/topics",
                method="OPTIONS",
                headers=[friend, ("Access-Control-Request-Method", "GET")],
            )
            assert (before.status, "Authorization" in before.headers["Access-Control-Allow-Headers"]) == (204, True)
            assert "Access-Control-Allow-Credentials" not in before.headers
            script = request(broker.clients, "/v1/topics", headers=[friend, ("Sec-Fetch-Mode", "cors")])
            assert script.status == 401
            assert not script.headers["WWW-Authenticate"].startswith("Basic")
            assert script.headers["Access-Control-Allow-Origin"] == "http://friend.example"

        await asyncio.to_thread(attack)


async def test_hostile_test_22(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Many wrong passwords from one address: 429 after ten, no hash for the others, and nobody is locked out."""
    hashes: list[str] = []
    check = driver.HttpLogin._compute

    async def counted(self: Any, login: Any) -> bool:
        hashes.append(login.user)
        return await check(self, login)

    monkeypatch.setattr(driver.HttpLogin, "_compute", counted)
    async with secured(tmp_path) as broker:
        assert (await asyncio.to_thread(broker.get, "/v1/whoami", "ann")).status == 200
        began = len(hashes)

        def attack() -> list[int]:
            connection = http.client.HTTPConnection(broker.clients, timeout=60)
            statuses = []
            for number in range(200):
                answer = request(
                    broker.clients, "/v1/whoami", headers=[basic("ann", f"wrong {number}")], over=connection
                )
                statuses.append(answer.status)
                if answer.status == 429:
                    assert answer.headers["Retry-After"] == "1"
                connection.close()
                if number % 20 == 0:
                    assert broker.get("/v1/whoami", "ann").status == 200
            connection.close()
            return statuses

        statuses = await asyncio.to_thread(attack)
        assert set(statuses) == {401, 429}
        assert statuses[:10] == [401] * 10
        assert len(hashes) - began == statuses.count(401)
        assert statuses.count(429) > 100
        other = ("127.0.0.2", 0)
        connection = http.client.HTTPConnection(broker.clients, timeout=60, source_address=other)
        assert (await asyncio.to_thread(rpc, broker.clients, basic("ann", USERS["ann"]), over=connection)).status == 200
        connection.close()


HALF_HEAD, PROBE = b"GET /v1/whoami HTTP/1.1\r\n", b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def connected(broker: Secured, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has sent something and has the answer, if one is due."""
    host, _, port = broker.clients.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    if sent is PROBE:
        async with asyncio.timeout(60):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


@pytest.mark.parametrize("sent", [b"", b"G", HALF_HEAD, PROBE])
async def test_connections_without_a_login_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes):
    """Hostile test 11 over HTTP: whatever strangers send, a further connection closes the oldest, and none of a user."""
    monkeypatch.setattr(connections, "LOGIN_TIMEOUT_S", 3600.0)
    async with secured(tmp_path, {"mk.unauthenticated.connections.per.ip.max": "4"}) as broker:
        ann = http.client.HTTPConnection(broker.clients, timeout=60)
        login = [basic("ann", USERS["ann"])]
        answer = await asyncio.to_thread(request, broker.clients, "/v1/whoami", headers=login, over=ann)
        assert answer.status == 200
        strangers = [await connected(broker, sent) for _ in range(12)]
        for reader, _ in strangers[:8]:
            async with asyncio.timeout(60):
                assert await reader.read() == b""
        assert not any(reader.at_eof() for reader, _ in strangers[8:])
        answer = await asyncio.to_thread(request, broker.clients, "/v1/whoami", headers=login, over=ann)
        assert answer.status == 200
        ann.close()
        for _, writer in strangers:
            writer.close()


async def test_a_connection_without_a_login_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A probe of health is no login: before, such a connection could stay for connections.max.idle.ms."""
    monkeypatch.setattr(connections, "LOGIN_TIMEOUT_S", 2.0)
    async with secured(tmp_path) as broker:
        ann = http.client.HTTPConnection(broker.clients, timeout=60)
        login = [basic("ann", USERS["ann"])]
        assert (await asyncio.to_thread(request, broker.clients, "/readyz", over=ann)).status == 200
        answer = await asyncio.to_thread(request, broker.clients, "/v1/whoami", headers=login, over=ann)
        assert answer.status == 200
        strangers = [await connected(broker, sent) for sent in (b"", b"G", HALF_HEAD, PROBE)]
        for reader, writer in strangers:
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()
        local = ann.sock.getsockname()
        answer = await asyncio.to_thread(request, broker.clients, "/v1/whoami", headers=login, over=ann)
        assert (answer.status, ann.sock.getsockname()) == (200, local)
        ann.close()


async def test_a_changed_or_deleted_user_is_refused_at_the_next_request(tmp_path: Path):
    """Hostile test 15, over HTTP: a remembered password does not outlive the credential, also on an open connection."""
    async with secured(tmp_path) as broker, MinikafkaAdmin(bootstrap_servers=broker.own) as admin:
        connection = http.client.HTTPConnection(broker.clients, timeout=60)
        old, new = basic("ann", USERS["ann"]), basic("ann", "new")

        def status(header: tuple[str, str]) -> int:
            found = request(broker.clients, "/v1/whoami", headers=[header], over=connection).status
            if found == 401:
                connection.close()
            return found

        assert await asyncio.to_thread(status, old) == 200
        await admin.set_user_password("ann", "new", iterations=4096)
        await eventually(lambda: status(old) == 401)
        assert await asyncio.to_thread(status, new) == 200
        await admin.delete_user_credential("ann", "SCRAM-SHA-512")
        await eventually(lambda: status(new) == 401)
        connection.close()


async def test_python_clients_log_in(tmp_path: Path):
    """Producer, consumer and admin client; a wrong password is an authentication error at once, not a timeout."""
    async with secured(tmp_path) as broker:
        settings = {
            "bootstrap_servers": broker.clients,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "admin",
        }
        right = {**settings, "sasl_plain_password": USERS["admin"]}
        async with Producer(**right) as producer:
            await producer.send_and_wait("orders", b"tea")
        async with Consumer("orders", auto_offset_reset="earliest", **right) as consumer:
            assert (await consumer.getone()).value == b"tea"
        async with MinikafkaAdmin(**right) as admin:
            assert set(await admin.describe_user_scram_credentials()) == {"admin", "ann"}
        for wrong in ({**settings, "sasl_plain_password": "x"}, {"bootstrap_servers": broker.clients}):
            with pytest.raises(SaslAuthenticationFailed):
                async with MinikafkaAdmin(**wrong) as admin:
                    await admin.list_topics()
            with pytest.raises(SaslAuthenticationFailed):
                async with Producer(**wrong) as producer:
                    await producer.send_and_wait("orders", b"tea")
            with pytest.raises(SaslAuthenticationFailed):
                async with Consumer("orders", auto_offset_reset="earliest", **wrong) as consumer:
                    await consumer.getone()
        ann = {**settings, "sasl_plain_username": "ann", "sasl_plain_password": USERS["ann"]}
        async with Producer(**ann, max_block_ms=5000, delivery_timeout_ms=5000) as producer:
            with pytest.raises(ProtocolError):
                await producer.send_and_wait("orders", b"x")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("may_describe", [False, True])
async def test_clients_without_permission_for_their_group_fail_at_once(
    tmp_path: Path, protocol: str, *, may_describe: bool
):
    """As in Kafka. Before, the client looked for a coordinator until its deadline, a consumer for ever."""
    async with secured(tmp_path) as broker:
        settings = {
            "bootstrap_servers": broker.clients,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_plain_username": "ann",
            "sasl_plain_password": USERS["ann"],
        }
        acls = [Acl(resource_type=ResourceType.TOPIC, resource_name="orders", principal="User:ann", operation=READ)]
        if may_describe:
            group = Acl(resource_type=ResourceType.GROUP, resource_name="g", principal="User:ann", operation=DESCRIBE)
            acls.append(group)
        async with MinikafkaAdmin(bootstrap_servers=broker.own) as admin:
            await admin.create_acls(acls)
        with pytest.raises(GroupAuthorizationFailed):
            async with Consumer("orders", group_id="g", group_protocol=protocol, **settings) as consumer:
                await consumer.getone()
        with pytest.raises(TransactionalIdAuthorizationFailed):
            async with Producer(**settings, transactional_id="x") as producer:
                await producer.begin_transaction()


async def test_commands_log_in(tmp_path: Path):
    """--user with the password in a file or in the environment; it is no argument."""
    file = tmp_path / "password"
    file.write_text(USERS["admin"] + "\n", encoding="utf-8")

    def minikafka(*words: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "minikafka", *words]
        return subprocess.run(
            line,
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **environment},
            check=False,
        )

    async with secured(tmp_path / "data") as broker:
        login = ["-b", broker.clients, "--user", "admin"]

        def use() -> None:
            by_file = [*login, "--user-password-file", str(file)]
            assert minikafka("produce", "orders", *by_file, text="tea\n").returncode == 0
            assert minikafka("consume", "orders", "--from-beginning", "--exit-at-end", *by_file).stdout == "tea\n"
            secret = {"MINIKAFKA_PASSWORD": USERS["admin"]}
            for words in (["topics", "list"], ["connections"], ["explain", "orders-0"], ["reassign", "status"]):
                done = minikafka(*words, *login, **secret)
                assert done.returncode == 0, done.stderr
            wrong = minikafka("topics", "list", *login, MINIKAFKA_PASSWORD="wrong")
            assert wrong.returncode == 1
            assert "SASL_AUTHENTICATION_FAILED" in wrong.stderr
            assert "Traceback" not in wrong.stderr
            missing = minikafka("topics", "list", *login)
            assert (missing.returncode, "--user-password-file" in missing.stderr) == (2, True)
            plain = minikafka("topics", "list", "-b", "kafka.example:9092", "--user", "admin", MINIKAFKA_PASSWORD="x")
            assert (plain.returncode, "in plain text" in plain.stderr) == (2, True)

        await asyncio.to_thread(use)


@pytest.mark.openssl
async def test_curl_over_tls(tmp_path: Path):
    """SASL_SSL serves HTTPS too."""
    authority(tmp_path, "ca")
    settings = {
        "listener.security.protocol.map": "BROKERS:PLAINTEXT,CLIENTS:SASL_SSL",
        "ssl.keystore.location": str(signed(tmp_path, "broker", by="ca")),
    }
    async with secured(tmp_path / "data", settings) as broker:

        def curl(*words: str, password: str = "") -> str:
            config = f'user = "ann:{password}"' if password else ""
            line = ["curl", "-sS", "--cacert", str(tmp_path / "ca.pem"), "-K", "-", "-w", " %{http_code}", *words]
            done = subprocess.run(line, input=config, capture_output=True, text=True, timeout=60, check=True)
            return done.stdout

        url = f"https://{broker.clients}/v1/whoami"
        found = await asyncio.to_thread(curl, url, password=USERS["ann"])
        assert found.endswith(" 200")
        assert '"User:ann"' in found
        assert '"SASL_SSL"' in found
        assert (await asyncio.to_thread(curl, url, password="wrong")).endswith(" 401")
        assert (await asyncio.to_thread(curl, url)).endswith(" 401")
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        right = {"sasl_plain_username": "admin", "sasl_plain_password": USERS["admin"]}
        async with MinikafkaAdmin(
            bootstrap_servers=broker.clients, security_protocol="SASL_SSL", ssl_context=context, **right
        ) as admin:
            assert await admin.list_topics()


async def test_a_stream_ends_with_the_permission_or_the_credentials_of_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Hostile tests 7 and 15, over HTTP: Server-Sent Events end with the event ``denied``, not at the next request."""
    monkeypatch.setattr(routes, "RECHECK_S", 0.2)
    async with secured(tmp_path) as broker, MinikafkaAdmin(bootstrap_servers=broker.own) as admin:
        await asyncio.to_thread(allow, broker, "ann", AclOperation.READ)

        def ends_after(change: threading.Event, begun: threading.Event) -> bytes:
            """What a stream says after a change."""
            connection = http.client.HTTPConnection(broker.clients, timeout=60)
            try:
                path = "/v1/topics/orders/partitions/0/stream?heartbeat_ms=100"
                connection.request("GET", path, headers=dict([basic("ann", USERS["ann"])]))
                answer = connection.getresponse()
                assert answer.status == 200
                answer.read(16)
                begun.set()
                assert change.wait(60)
                return answer.read()
            finally:
                connection.close()

        await eventually(lambda: broker.get("/v1/topics/orders/partitions/0/records?offset=0", "ann").status == 200)
        for change in ("acl", "password"):
            changed, begun = threading.Event(), threading.Event()
            reading = asyncio.create_task(asyncio.to_thread(ends_after, changed, begun))
            await asyncio.to_thread(begun.wait, 60)
            if change == "acl":
                await asyncio.to_thread(disallow, broker)
            else:
                await admin.set_user_password("ann", "new", iterations=4096)
            changed.set()
            said = await asyncio.wait_for(reading, 60)
            assert (b"event: denied" if change == "password" else b"event: ") in said
            wanted = b"TOPIC_AUTHORIZATION_FAILED" if change == "acl" else b"SASL_AUTHENTICATION_FAILED"
            assert wanted in said
            if change == "acl":
                await asyncio.to_thread(allow, broker, "ann", AclOperation.READ)
                await eventually(
                    lambda: broker.get("/v1/topics/orders/partitions/0/records?offset=0", "ann").status == 200
                )


def disallow(broker: Secured) -> None:
    """Delete all ACLs."""
    every = AclBindingFilter(
        Kind.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    admin = AdminClient({"bootstrap.servers": broker.own})
    for future in admin.delete_acls([every]).values():
        future.result(60)


async def test_without_security_the_same_requests_are_served(tmp_path: Path):
    """The hostile tests show something: with security off, what they refuse is done, and nobody is asked who it is."""
    off = {
        "listener.security.protocol.map": "BROKERS:PLAINTEXT,CLIENTS:PLAINTEXT",
        "authorizer.class.name": "",
        "super.users": "",
    }
    async with secured(tmp_path, off) as broker:

        def use() -> None:
            json_type = ("Content-Type", "application/json")
            assert rpc(broker.clients).status == 200
            assert broker.get("/v1/topics/orders").status == 200
            created = request(
                broker.clients, "/v1/topics", method="POST", headers=[json_type], body=b'{"name": "by-a-stranger"}'
            )
            assert created.status == 201
            found = broker.get("/v1/whoami").document
            assert (found["principal"], found["checked"]) == ("User:ANONYMOUS", False)

        await asyncio.to_thread(use)
