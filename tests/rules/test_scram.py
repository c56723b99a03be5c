"""SCRAM-SHA-256 and SCRAM-SHA-512: RFC 7677's example, logins of right and wrong clients, and hostile messages."""

import base64
import hashlib
import hmac
import itertools
from collections.abc import Iterator

import pytest

from minikafka.security.login import TOKEN_BYTES_MAX, LoginFailed
from minikafka.security.scram import (
    MECHANISMS,
    ScramCredential,
    ScramExchange,
    ScramMechanism,
    credential_of,
    made_up_credential,
    salted_password,
)

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
SECRET = bytes(32)


class Users:
    """Credentials in a dict."""

    def __init__(self) -> None:
        self.known: dict[tuple[ScramMechanism, str], ScramCredential] = {}

    def add(self, user: str, password: str, mechanism: ScramMechanism = SHA_256, iterations: int = 4096) -> None:
        """Create or replace a user."""
        salt = f"salt of {user}".encode()
        salted = salted_password(mechanism, password, salt, iterations)
        self.known[mechanism, user] = credential_of(mechanism, salted, salt, iterations)

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Return the credential."""
        return self.known.get((mechanism, user))

    def made_up(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """Return the credential of an unknown user."""
        return made_up_credential(mechanism, user, SECRET, [])


def entropy(size: int) -> bytes:
    """Predictable bytes."""
    return bytes(range(size))


def exchange(users: Users, mechanism: ScramMechanism = SHA_256) -> ScramExchange:
    """A login that begins."""
    return ScramExchange(mechanism, users, entropy)


class Client:
    """A client that follows RFC 5802, written apart from the server."""

    def __init__(self, user: str, password: str, digest: str = "sha256") -> None:
        self.password, self.digest = password, digest
        self.bare = f"n={user},r=clientnonce"

    def first(self) -> bytes:
        """The first message."""
        return f"n,,{self.bare}".encode()

    def final(
        self, answer: bytes, *, nonce: str | None = None, header: bytes = b"n,,", cut: int | None = None
    ) -> bytes:
        """The last message, with the changes that a hostile client would make."""
        fields = dict(part.split("=", 1) for part in answer.decode().split(","))
        salt, rounds = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac(self.digest, self.password.encode(), salt, rounds)
        key = hmac.new(salted, b"Client Key", self.digest).digest()
        stored = hashlib.new(self.digest, key).digest()
        without_proof = f"c={base64.b64encode(header).decode()},r={fields['r'] if nonce is None else nonce}"
        message = f"{self.bare},{answer.decode()},{without_proof}".encode()
        proof = bytes(a ^ b for a, b in zip(key, hmac.new(stored, message, self.digest).digest(), strict=True))[:cut]
        self.expected = hmac.new(hmac.new(salted, b"Server Key", self.digest).digest(), message, self.digest).digest()
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def test_example_of_rfc_7677() -> None:
    """The messages of RFC 7677, section 3, byte by byte, and the keys that follow from them."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salted_password(SHA_256, "pencil", salt, 4096)
    credential = credential_of(SHA_256, salted, salt, 4096)
    assert base64.b64encode(credential.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(credential.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    users = Users()
    users.known[SHA_256, "user"] = credential
    login = exchange(users)
    login._nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert login.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert login.user is None
    final = f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    assert login.respond(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert login.user == "user"


@pytest.mark.parametrize("mechanism", MECHANISMS.values())
def test_client_and_server_prove_themselves_to_each_other(mechanism: ScramMechanism) -> None:
    """Names with commas and equals signs, and passwords beyond ASCII, need no special care."""
    users = Users()
    users.add("a,b=c", "pässwörd Ⅸ", mechanism)
    client = Client("a=2Cb=3Dc", "pässwörd Ⅸ", mechanism.digest)
    login = exchange(users, mechanism)
    final = client.final(login.respond(client.first()))
    assert login.respond(final) == b"v=" + base64.b64encode(client.expected)
    assert login.user == "a,b=c"
    assert login.holds()


def failure(login: ScramExchange, *messages: bytes) -> LoginFailed:
    """The failure of the last message."""
    for each in messages[:-1]:
        login.respond(each)
    with pytest.raises(LoginFailed) as caught:
        login.respond(messages[-1])
    assert login.user is None
    return caught.value


def test_session_ends_with_its_credential() -> None:
    """A changed password, and a deleted user, end what was opened with the old password."""
    users = Users()
    users.add("ann", "old")
    client, login = Client("ann", "old"), exchange(users)
    login.respond(client.final(login.respond(client.first())))
    users.add("bob", "x")
    assert login.holds()
    users.add("ann", "new")
    assert not login.holds()
    users.known.clear()
    assert not login.holds()


def test_unknown_users_look_like_wrong_passwords() -> None:
    """Same number of messages; the salt of a name is the same at every try, and differs between names."""
    users = Users()
    users.add("ann", "right")
    users.add("bob", "right", SHA_512)
    answers = {}
    for name, reason in (("ann", "bad_password"), ("bob", "unknown_user"), ("eve", "unknown_user")):
        client, login = Client(name, "wrong"), exchange(users)
        answers[name] = login.respond(client.first())
        assert exchange(users).respond(client.first()) == answers[name]
        assert failure(login, client.final(answers[name])).reason == reason
    assert len(set(answers.values())) == len(answers)


def test_made_up_credentials_have_the_shape_of_real_ones() -> None:
    """Iterations and salt size of some user that exists; another secret gives another salt."""
    shapes = [(4096, 26), (8192, 16), (8192, 16)]
    made_up = [made_up_credential(SHA_512, f"user-{number}", SECRET, shapes) for number in range(50)]
    assert {(each.iterations, len(each.salt)) for each in made_up} == set(shapes)
    assert len({each.salt for each in made_up}) == len(made_up)
    assert {len(each.stored_key) for each in made_up} == {64}
    assert made_up_credential(SHA_512, "user-0", b"other" * 7, shapes).salt != made_up[0].salt
    assert len(made_up_credential(SHA_512, "x", SECRET, [(4096, 100)]).salt) == 100


def test_credentials_with_odd_iterations_are_not_used() -> None:
    """Kafka checks the bounds at login too: a record may come from elsewhere."""
    users = Users()
    users.add("ann", "right", iterations=1000)
    client, login = Client("ann", "right"), exchange(users)
    answer = login.respond(client.first())
    assert b"i=1000" not in answer
    assert failure(login, client.final(answer)).reason == "unknown_user"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "bad_token"),
        (b"\xff\xfe", "bad_token"),
        (b"n,,n=ann", "bad_token"),
        (b"n,,n=,r=abc", "bad_token"),
        (b"n,,n=ann,r=", "bad_token"),
        (b"n,,n=a=2cb,r=abc", "bad_token"),
        (b"n,,n=a=b,r=abc", "bad_token"),
        (b"n,,n=ann,r=a c", "bad_token"),
        (b"n,,m=x,n=ann,r=abc", "bad_token"),
        (b"n,,n=ann,r=abc\0", "bad_token"),
        (b"y,,n=ann,r=abc", "channel_binding"),
        (b"p=tls-unique,,n=ann,r=abc", "channel_binding"),
        (b"n,a=bob,n=ann,r=abc", "other_user"),
        (b"n,,n=ann,r=abc,tokenauth=true", "delegation_token"),
        (b"n,,n=" + b"a" * TOKEN_BYTES_MAX + b",r=abc", "bad_token"),
        (b"n,,n=" + b"=2C" * 5000, "bad_token"),
    ],
)
def test_first_messages_that_are_refused(message: bytes, reason: str) -> None:
    """Hostile test 9 of the first message."""
    users = Users()
    users.add("ann", "right")
    assert failure(exchange(users), message).reason == reason


def test_authzid_of_the_same_name_and_unknown_extensions_are_accepted() -> None:
    """As in Kafka."""
    users = Users()
    users.add("ann", "right")
    assert exchange(users).respond(b"n,a=ann,n=ann,r=abc,x=y").startswith(b"r=abc")


def _hostile(client: Client, answer: bytes) -> Iterator[bytes]:
    nonce = answer.decode().split(",")[0][2:]
    yield client.final(answer, nonce="x" + nonce)
    yield client.final(answer, nonce=nonce + "x")
    yield client.final(answer, nonce="clientnonce")
    yield client.final(answer, nonce="clientnonceclientnonce" + nonce)
    yield client.final(answer, header=b"y,,")
    yield client.final(answer, header=b"n,a=ann,")
    yield client.final(answer, cut=0)
    yield client.final(answer, cut=31)
    yield client.final(answer).removesuffix(b"=") + b"AA="
    yield client.final(answer).replace(b"p=", b"p=!")
    yield client.final(answer).split(b",p=")[0]
    yield b"p=" + base64.b64encode(bytes(32))
    yield client.first()


@pytest.mark.parametrize("number", range(13))
def test_last_messages_that_are_refused(number: int) -> None:
    """Hostile tests 8 and 9: a longer nonce, the client's nonce alone, another header, proofs of other sizes."""
    users = Users()
    users.add("ann", "right")
    client, login = Client("ann", "right"), exchange(users)
    answer = login.respond(client.first())
    hostile = next(itertools.islice(_hostile(client, answer), number, None))
    assert failure(login, hostile).reason == "bad_token"
    assert failure(login, client.final(answer)).reason == "bad_token"


def test_librdkafka_before_2_6_1_repeats_its_nonce_and_logs_in() -> None:
    """Its own nonce stands in front of the whole one (librdkafka #4895); a replay fails as any other does."""
    users = Users()
    users.add("ann", "right")
    client, login = Client("ann", "right"), exchange(users)
    answer = login.respond(client.first())
    final = client.final(answer, nonce="clientnonce" + answer.decode().split(",")[0][2:])
    assert login.respond(final).startswith(b"v=")
    assert login.user == "ann"
    other = ScramExchange(SHA_256, users, lambda size: b"x" * size)
    assert failure(other, client.first(), final).reason == "bad_token"


def test_messages_of_another_exchange_are_refused() -> None:
    """A replayed last message has another nonce."""
    users = Users()
    users.add("ann", "right")
    client, login = Client("ann", "right"), exchange(users)
    final = client.final(login.respond(client.first()))
    other = ScramExchange(SHA_256, users, lambda size: b"x" * size)
    assert failure(other, client.first(), final).reason == "bad_token"
    login.respond(final)
    with pytest.raises(LoginFailed):
        login.respond(final)


def test_credentials_hide_their_keys() -> None:
    """Their text may reach a log."""
    users = Users()
    users.add("ann", "right")
    assert repr(users.known[SHA_256, "ann"]) == "ScramCredential(iterations=4096)"
