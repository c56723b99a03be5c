"""Credentials of HTTP requests (security/http_login.py): headers, remembered passwords, and failures by address."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from minikafka.broker.http_login import HttpLogins
from minikafka.broker.image_credentials import ImageCredentials
from minikafka.config import BrokerConfig
from minikafka.errors import BrokerNotAvailable
from minikafka.quorum.image import MetadataImage
from minikafka.security import http_login
from minikafka.security.http_login import (
    FAILURES_MAX,
    LATE_S_MAX,
    REMEMBERED_S,
    Failures,
    PasswordLogin,
    RightPasswords,
    TokenLogin,
    check_of,
    parse_authorization,
)
from minikafka.security.login import LoginFailed
from minikafka.security.oauth import TokenRules, Tokens
from minikafka.security.scram import ScramCredential, ScramMechanism, credential_of, made_up_credential, salted_password

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


def credential(password: str, mechanism: ScramMechanism = SHA_512, salt: bytes = b"salt") -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, salt, 4096), salt, 4096)


class Users:
    """The credentials of a cluster."""

    def __init__(self, **users: ScramCredential) -> None:
        self.known = {(SHA_512, name): each for name, each in users.items()}

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self.known.get((mechanism, user))

    def made_up(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        return made_up_credential(mechanism, user, b"secret", ())

    def unknown_users_mechanism(self, mechanisms: Sequence[ScramMechanism], _user: str) -> ScramMechanism:
        return mechanisms[0]


def basic(text: str | bytes) -> str:
    return "Basic " + base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def test_basic_is_split_at_the_first_colon_and_is_utf_8():
    """RFC 7617: a name has no colon, a password may."""
    assert parse_authorization(basic("ann:pass:word Ⅸ")) == PasswordLogin("ann", "pass:word Ⅸ")
    assert parse_authorization(basic("ann:x").replace("Basic", "bASIC  ")) == PasswordLogin("ann", "x")
    assert parse_authorization("bearer a.b.c") == TokenLogin("a.b.c")


@pytest.mark.parametrize(
    "value",
    ["", "Basic", "Basic ", "Basic !!!", basic("ann"), basic(":x"), basic("ann:"), basic(b"ann:\xff"), "Bearer",
     "Bearer ", "Digest username=ann", basic("a" * 256 + ":x"), "Negotiate abc", "ann:x"],
)  # fmt: skip
def test_other_headers_are_no_credentials(value: str):
    """They fail like a wrong password, and never raise anything else."""
    with pytest.raises(LoginFailed):
        parse_authorization(value)


def test_a_password_is_checked_with_the_strongest_mechanism_of_the_user():
    """A user who has only SHA-256 logs in with that."""
    users = Users(ann=credential("right"))
    users.known[SHA_256, "bob"] = credential("right", SHA_256)
    for user, mechanism in (("ann", SHA_512), ("bob", SHA_256)):
        check = check_of(users, (SHA_512, SHA_256), user)
        assert check.mechanism is mechanism
        assert check.is_right("right")
        assert not check.is_right("Right")


def test_an_unknown_user_costs_the_same_and_has_no_right_password():
    """Hostile test 10, over HTTP: the made up credential is the same at each try."""
    checks = [check_of(Users(), (SHA_512, SHA_256), "nobody") for _ in range(2)]
    assert checks[0] == checks[1]
    assert (checks[0].known, checks[0].mechanism) == (None, SHA_512)
    assert not checks[0].is_right("")


@pytest.mark.parametrize("of_users", [{SHA_256}, {SHA_512}, {SHA_256, SHA_512}])
def test_an_unknown_user_is_checked_with_a_mechanism_of_users_who_exist(of_users: set[ScramMechanism]):
    """PBKDF2 takes several times as long with SHA-512: the time of the answer told which users exist."""
    scram = {(each, f"user-{each}"): credential("x", each) for each in of_users}
    image = MetadataImage(scram=scram, cluster_secret=b"secret")
    users = ImageCredentials(lambda: image, bytes)
    unknown = [check_of(users, (SHA_512, SHA_256), f"nobody-{number}") for number in range(40)]
    assert {each.mechanism for each in unknown} == of_users
    assert not any(each.is_right("x") for each in unknown[:4])
    again = [check_of(users, (SHA_512, SHA_256), f"nobody-{number}") for number in range(40)]
    assert [each.mechanism for each in again] == [each.mechanism for each in unknown]


def test_without_users_an_unknown_one_is_checked_with_the_strongest_mechanism():
    """There is nobody to be like; a user of a mechanism that is not enabled cannot log in."""
    for scram in ({}, {(SHA_512, "ann"): credential("x")}):
        image = MetadataImage(scram=scram)
        users = ImageCredentials(lambda image=image: image, bytes)
        assert check_of(users, (SHA_256,), "nobody").mechanism is SHA_256


def test_a_right_password_is_remembered_only_with_its_credential():
    """A changed or deleted user is not let in by an old password."""
    right, old, new = RightPasswords(b"key"), credential("right"), credential("right", salt=b"other")
    login = PasswordLogin("ann", "right")
    right.add(login, old, 10.0)
    assert right.has(login, old, 10.0 + REMEMBERED_S - 1)
    assert not right.has(login, old, 10.0 + REMEMBERED_S)
    for other in (new, None):
        assert not right.has(login, other, 11.0)
    for wrong in (PasswordLogin("ann", "Right"), PasswordLogin("annr", "ight"), PasswordLogin("bob", "right")):
        assert not right.has(wrong, old, 11.0)


def test_neither_a_password_nor_its_hash_is_kept():
    """The names in the table depend on a key of the process."""
    login = PasswordLogin("ann", "right")
    tables = []
    for key in (b"one", b"two"):
        right = RightPasswords(key)
        right.add(login, credential("right"), 0.0)
        tables.append(right._known.keys())
    assert tables[0].isdisjoint(tables[1])
    assert all(len(name) == 32 for table in tables for name in table)


def test_the_table_of_right_passwords_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """What has ended goes first."""
    monkeypatch.setattr(http_login, "REMEMBERED_MAX", 3)
    right, known = RightPasswords(b"key"), credential("x")
    for number in range(3):
        right.add(PasswordLogin(f"u{number}", "x"), known, float(number))
    right.add(PasswordLogin("late", "x"), known, REMEMBERED_S + 1.5)
    assert len(right) == 2
    for number in range(5):
        right.add(PasswordLogin(f"v{number}", "x"), known, REMEMBERED_S + 1.6)
        assert len(right) <= 3


def test_an_address_has_ten_failures_and_then_one_a_second():
    """Hostile test 22: other addresses are not affected."""
    failures = Failures()
    assert [failures.take("a", 5.0) for _ in range(FAILURES_MAX + 2)] == [True] * FAILURES_MAX + [False] * 2
    assert failures.take("b", 5.0)
    assert [failures.take("a", at) for at in (5.9, 6.1, 6.2, 7.2)] == [False, True, False, True]


def test_over_kafkas_protocol_an_address_learns_later_of_further_failures():
    """320 guesses a second of one address were answered; nobody is locked out, also not behind the same address."""
    failures = Failures()
    assert [failures.failed("a", 0.0) for _ in range(FAILURES_MAX + 3)] == [0.0] * FAILURES_MAX + [1.0, 2.0, 3.0]
    assert [failures.failed("a", 0.0) for _ in range(100)][-1] == LATE_S_MAX
    assert failures.failed("b", 0.0) == 0.0
    assert failures.failed("a", 1000.0) == 0.0


def test_addresses_beyond_the_table_learn_late_too(monkeypatch: pytest.MonkeyPatch):
    """The table of addresses is bounded."""
    monkeypatch.setattr(http_login, "ADDRESSES_MAX", 2)
    failures = Failures()
    assert [failures.failed(each, 0.0) for each in "abc"] == [0.0, 0.0, LATE_S_MAX]


def test_a_right_password_is_no_failure():
    """An attempt that succeeds is given back, and an address with all attempts takes no room."""
    failures = Failures()
    for _ in range(100):
        assert failures.take("a", 1.0)
        failures.give_back("a", 1.0)
    assert failures._left == {}


def test_the_table_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """Full of addresses with failures, it refuses new ones until theirs are over."""
    monkeypatch.setattr(http_login, "ADDRESSES_MAX", 2)
    failures = Failures()
    assert [failures.take(each, 0.0) for each in "abc"] == [True, True, False]
    assert failures.take("c", 2.0)


async def test_a_token_that_cannot_be_verified_yet_is_not_refused():
    """The keys are on their way: 503, which clients repeat, and no failure of the address."""
    rules = TokenRules(issuer="https://issuer", audiences=frozenset({"kafka"}))
    world: Any = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: 0.0, wall_ms=lambda: 0),
        events=lambda _kind, /, **_facts: None,
        entropy=bytes,
        offload=None,
    )
    config = BrokerConfig(sasl_enabled_mechanisms="OAUTHBEARER")
    login = HttpLogins(config, world, MetadataImage, tokens=Tokens(rules)).at("CLIENTS")
    header = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"1"}').decode().rstrip("=")
    for _ in range(2 * FAILURES_MAX):
        with pytest.raises(BrokerNotAvailable):
            await login.principal(f"Bearer {header}.e30.c2ln", "10.0.0.7")
