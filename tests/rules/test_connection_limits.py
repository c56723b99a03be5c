"""How many connections a broker holds, and how often events that strangers cause are logged."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from minikafka.broker.event_limiter import PERIOD_S, REMOTES_MAX, EventLimiter
from minikafka.config import parse_broker
from minikafka.errors import InvalidConfig
from minikafka.security.quotas import CONNECTION, IP, QuotaIndex
from minikafka.world.connections import (
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    UNAUTHENTICATED,
    UNAUTHENTICATED_PER_IP,
    ConnectionQuota,
)

REFUSED = "client_connection_refused"


class Log:
    """Events that were passed on, and a clock."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.time = 0.0
        self.limiter = EventLimiter(self.write, lambda: self.time)

    def write(self, kind: str, /, **facts: object) -> None:
        self.lines.append((kind, facts))


@pytest.fixture
def log() -> Log:
    return Log()


def test_one_line_for_each_address_and_period(log: Log):
    """The next line counts those that were left out."""
    for _ in range(1000):
        log.limiter(REFUSED, remote="10.0.0.1", why="a")
    log.limiter(REFUSED, remote="10.0.0.2", why="b")
    log.limiter("connection_limit_exceeded", remote="10.0.0.1")
    assert log.lines == [
        (REFUSED, {"remote": "10.0.0.1", "why": "a"}),
        (REFUSED, {"remote": "10.0.0.2", "why": "b"}),
        ("connection_limit_exceeded", {"remote": "10.0.0.1"}),
    ]
    log.time = PERIOD_S
    for _ in range(2):
        log.limiter(REFUSED, remote="10.0.0.1", why="c")
    assert log.lines[3:] == [(REFUSED, {"remote": "10.0.0.1", "why": "c", "left_out": 999})]


def test_clients_behind_one_address_do_not_hide_each_other(log: Log):
    """One line for each principal."""
    for principal in ("User:alice", "User:bob", "User:alice"):
        log.limiter("request_denied", remote="10.0.0.1", principal=principal)
    assert [facts["principal"] for _, facts in log.lines] == ["User:alice", "User:bob"]


def test_many_addresses_do_not_fill_the_log(log: Log):
    """Beyond REMOTES_MAX all addresses together have one line; nothing that was left out is lost from the counts."""
    sent = 0
    for _ in range(20):
        for number in range(3 * REMOTES_MAX):
            log.limiter(REFUSED, remote=f"10.0.{number}.1")
            sent += 1
        log.time += PERIOD_S / 2
    assert len(log.lines) <= 10 * (REMOTES_MAX + 1)
    log.time += PERIOD_S
    log.lines, before = [], log.lines
    for number in range(REMOTES_MAX):
        log.limiter(REFUSED, remote=f"10.1.{number}.1")
    known = len(before) + sum(facts.get("left_out", 0) for _, facts in [*before, *log.lines])
    assert known == sent


def test_connections_are_limited_in_all_and_by_address(log: Log):
    """Each refusal names its setting; a closed connection makes room."""
    quota = ConnectionQuota(limit=3, limit_per_ip=2, events=log.limiter)
    quota.listeners.add("")
    for connection, ip in enumerate(("a", "a", "b")):
        assert quota.admits(ip)
        quota.opened(connection, ip)
    assert not quota.admits("a")
    assert not quota.admits("c")
    assert +Counter(quota.refused) == {MAX_CONNECTIONS_PER_IP: 1, MAX_CONNECTIONS: 1}
    assert log.lines == [
        ("connection_limit_exceeded", {"remote": "a", "setting": MAX_CONNECTIONS_PER_IP, "limit": 2}),
        ("connection_limit_exceeded", {"remote": "c", "setting": MAX_CONNECTIONS, "limit": 3}),
    ]
    quota.closed("one that was refused")
    quota.closed(0)
    quota.closed(0)
    assert quota.count == 2
    assert quota.admits("a")


def test_brokers_on_a_listener_of_their_own_are_exempt():
    """KIP-612 (Kafka's protected listener): clients cannot cut brokers off. On a shared listener nobody is exempt."""
    quota = ConnectionQuota(limit=1)
    quota.listeners.add("")
    quota.opened(1, "a")
    assert not quota.admits("b", "")
    quota.listeners.add("CLIENTS")
    assert quota.admits("b", "")
    assert not quota.admits("b", "CLIENTS")


def test_single_listeners_have_limits_of_their_own(log: Log):
    """listener.name.<name>.max.connections: strangers at one listener take no connections from another one."""
    limits = parse_broker(
        {
            "listeners": "BROKERS://127.0.0.1:1,CLIENTS://127.0.0.1:2,WEB://127.0.0.1:3",
            "inter.broker.listener.name": "BROKERS",
            "listener.name.clients.max.connections": "2",
            "listener.name.web.max.connections": "0",
        }
    ).config.connection_limits
    assert limits == {"CLIENTS": 2, "WEB": 0}
    quota = ConnectionQuota(limit=10, by_listener=limits, events=log.limiter)
    quota.opened(0, "a", "")
    for connection in (1, 2):
        assert quota.admits("a", "CLIENTS")
        quota.opened(connection, "a", "CLIENTS")
    assert [quota.admits("b", each) for each in ("CLIENTS", "WEB", "")] == [False, False, True]
    quota.closed(1)
    quota.closed(1)
    assert quota.admits("b", "CLIENTS")
    assert quota.refused[MAX_CONNECTIONS] == 2
    assert log.lines == [
        ("connection_limit_exceeded", {"remote": "b", "setting": MAX_CONNECTIONS, "limit": 2, "listener": "CLIENTS"}),
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("listener.name.web.max.connections", "5", "WEB is no listener; listeners: PLAINTEXT"),
        ("listener.name.plaintext.max.connections", "-1", "a whole number"),
        ("listener.name.plaintext.max.connections", "9999999999", "2147483647 at most"),
    ],
)
def test_wrong_limits_of_listeners_stop_the_start(name: str, text: str, said: str):
    """Each error names the setting."""
    with pytest.raises(InvalidConfig, match=said) as caught:
        parse_broker({"listeners": "PLAINTEXT://127.0.0.1:1", name: text})
    assert caught.value.facts["setting"] == name


def test_single_addresses_have_limits_of_their_own(log: Log):
    """max.connections.per.ip.overrides: more or fewer than others, as sockets write the address."""
    overrides = parse_broker({"max.connections.per.ip.overrides": "10.0.0.1:2, [0::1]:0"}).config.connection_overrides
    assert overrides == {"10.0.0.1": 2, "::1": 0}
    quota = ConnectionQuota(limit_per_ip=1, overrides=overrides, events=log.limiter)
    for connection, ip in enumerate(("10.0.0.1", "10.0.0.1", "10.0.0.2")):
        assert quota.admits(ip)
        quota.opened(connection, ip)
    assert [quota.admits(ip) for ip in ("10.0.0.1", "10.0.0.2", "::1", "10.0.0.3")] == [False, False, False, True]
    assert [facts["limit"] for _, facts in log.lines] == [2, 1, 0]


@pytest.mark.parametrize(
    "text", ["localhost:5", "127.0.0.1", "127.0.0.1:-1", "127.0.0.1:x", ":5", "127.0.0.1:9999999999"]
)
def test_wrong_overrides_stop_the_start(text: str):
    """Names are not looked up, unlike in Kafka: an address is needed."""
    with pytest.raises(InvalidConfig, match=r"max\.connections\.per\.ip\.overrides"):
        parse_broker({"max.connections.per.ip.overrides": text})


class Stranger:
    """A connection that has not logged in."""

    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_strangers_push_out_the_oldest_stranger(log: Log):
    """Neither a client that has logged in nor one of another address or listener pays for them."""
    quota = ConnectionQuota(unauthenticated=4, unauthenticated_per_ip=2, events=log.limiter)
    known, other, beside = Stranger(), Stranger(), Stranger()
    quota.login_began(known, "a", "CLIENTS")
    quota.login_ended(known, "CLIENTS")
    quota.login_began(other, "b", "CLIENTS")
    quota.login_began(beside, "a", "WEB")
    strangers = [Stranger() for _ in range(10)]
    for each in strangers:
        quota.login_began(each, "a", "CLIENTS")
    assert [each.is_aborted for each in strangers] == [True] * 8 + [False] * 2
    assert [each.is_aborted for each in (known, other, beside)] == [False, False, False]
    quota.login_ended(strangers[0], "CLIENTS")  # its end comes later: it does not count twice
    for ip in ("c", "d"):
        quota.login_began(Stranger(), ip, "CLIENTS")
    assert other.is_aborted  # the oldest of the listener
    assert +Counter(quota.refused) == {UNAUTHENTICATED_PER_IP: 8, UNAUTHENTICATED: 1}
    assert [(facts["setting"], facts["remote"]) for _, facts in log.lines] == [
        (UNAUTHENTICATED_PER_IP, "a"),
        (UNAUTHENTICATED, "b"),
    ]


def test_quotas_of_addresses_do_not_hold_for_the_listener_of_brokers(log: Log):
    """If clients have another one: brokers that share an address with clients go on reaching each other."""
    quota = ConnectionQuota(events=log.limiter, now=lambda: 0.0)
    quota.rates.use(QuotaIndex({((IP, "10.0.0.7"),): {CONNECTION: 1.0}}))
    quota.listeners.add("")
    assert [quota.throttle_ms("10.0.0.7") for _ in range(11)] == [0] * 10 + [1000]
    quota.listeners.add("CLIENTS")
    assert quota.throttle_ms("10.0.0.7") == 0
    assert quota.throttle_ms("10.0.0.7", "CLIENTS") == 1000
    assert quota.refused[CONNECTION] == 2
    assert log.lines == [
        ("connection_limit_exceeded", {"remote": "10.0.0.7", "setting": CONNECTION, "limit": 1}),
    ]
