"""Logins over Kafka's protocol: SaslHandshake and SaslAuthenticate from their frames to the rules and back.

A token travels in SaslAuthenticate, or, after a SaslHandshake in version 0, as a frame without any header (KIP-43).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from minikafka.broker.image_credentials import ImageCredentials
from minikafka.config import BrokerConfig, SaslListener
from minikafka.errors import IllegalSaslState, ProtocolError
from minikafka.ports import Buffers
from minikafka.quorum.image import MetadataImage
from minikafka.security.login import Exchange
from minikafka.security.oauth import OAUTHBEARER, OAuthExchange, Tokens
from minikafka.security.plain import PLAIN, PlainExchange
from minikafka.security.sasl import SaslLogin, SaslPolicy, Stage
from minikafka.security.scram import MECHANISMS, ScramExchange
from minikafka.wire.kafka.codec import decode, encode
from minikafka.wire.kafka.frames import API_VERSIONS_KEY, Header, response_head, sized
from minikafka.wire.kafka.offer import SASL_AUTHENTICATE_KEY, SASL_HANDSHAKE_KEY

LOGIN_TIMEOUT_S = 10.0
"""A connection whose client has not logged in so long after its acceptance is closed. Kafka has no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRules:
    """What one listener demands of its connections."""

    policy: SaslPolicy
    failure_delay_s: float
    frame_bytes_max: int


def login_rules(
    config: BrokerConfig,
    image: Callable[[], MetadataImage],
    entropy: Callable[[int], bytes],
    tokens: Tokens | None = None,
    wall_ms: Callable[[], int] = lambda: 0,
) -> Mapping[str, LoginRules]:
    """The rules of the SASL listeners, by their names in contexts. Without ``tokens`` OAUTHBEARER is not offered."""
    main = config.inter_broker_listener.name
    oauth = {} if tokens is None else {OAUTHBEARER: partial(OAuthExchange, tokens, wall_ms)}
    credentials = ImageCredentials(image, entropy)
    return {
        "" if name == main else name: LoginRules(
            policy=SaslPolicy(
                mechanisms={
                    each: _beginning(each, listener, credentials, entropy)
                    for each in listener.mechanisms
                    if each != OAUTHBEARER
                }
                | (oauth if OAUTHBEARER in listener.mechanisms else {}),
                reauthentication_ms_max=listener.reauthentication_ms_max,
            ),
            failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
            frame_bytes_max=config.sasl_server_max_receive_size,
        )
        for name, listener in config.sasl_listeners.items()
    }


def _beginning(
    mechanism: str, listener: SaslListener, credentials: ImageCredentials, entropy: Callable[[int], bytes]
) -> Callable[[], Exchange]:
    if mechanism == PLAIN:
        return partial(PlainExchange, listener.passwords)
    return partial(ScramExchange, MECHANISMS[mechanism], credentials, entropy)


class KafkaLogin:
    """The login of one connection."""

    def __init__(self, rules: LoginRules) -> None:
        self.rules = rules
        self.sasl = SaslLogin(rules.policy)
        self._has_headers = True

    @property
    def expects_bare_token(self) -> bool:
        """Return True if the next frame is a token without a header."""
        return self.sasl.stage is Stage.EXCHANGE and not self._has_headers

    def refusal(self, key: int, now_ms: int) -> str:
        """Why a request of this API is not served now; empty: it is. SASL's own APIs are always."""
        stage = self.sasl.stage
        if stage is Stage.OPEN:
            end = self.sasl.end_of(now_ms)
            return f"the session of {self.sasl.user} is over ({end})" if end else ""
        if stage is Stage.NEW and key == API_VERSIONS_KEY:
            return ""
        return "a client that has not logged in may only send ApiVersions, SaslHandshake and SaslAuthenticate"

    def bare_token(self, token: bytes, now_ms: int) -> Buffers:
        """The answer to a token without a header. Raises ProtocolError: the protocol has no answer then."""
        response = self.sasl.authenticate(token, now_ms)
        return sized([bytearray(4) + response.token])

    def answer(self, header: Header, frame: memoryview, now_ms: int) -> tuple[Buffers, ProtocolError | None]:
        """The answer to SaslHandshake or SaslAuthenticate, and the error in it. Raises ProtocolError for bad bytes."""
        if header.key == SASL_HANDSHAKE_KEY:
            message = decode("SaslHandshake", "request", header.version, frame, header.body_at)
            return self._handshake(header, message["mechanism"], now_ms)
        message = decode("SaslAuthenticate", "request", header.version, frame, header.body_at)
        return self._authenticate(header, bytes(message["auth_bytes"]), now_ms)

    def _handshake(self, header: Header, mechanism: str, now_ms: int) -> tuple[Buffers, ProtocolError | None]:
        try:
            if header.version == 0 and self.sasl.stage is Stage.OPEN:
                raise IllegalSaslState("A session is renewed by SaslHandshake in version 1.")
            self.sasl.handshake(mechanism, now_ms)
        except ProtocolError as error:
            return handshake_answer(header, error.code, self.sasl.enabled), error
        self._has_headers = header.version > 0
        return handshake_answer(header, 0, self.sasl.enabled), None

    def _authenticate(self, header: Header, token: bytes, now_ms: int) -> tuple[Buffers, ProtocolError | None]:
        try:
            response = self.sasl.authenticate(token, now_ms)
        except ProtocolError as error:
            return authenticate_answer(header, error), error
        answer = {
            "error_code": 0,
            "error_message": None,
            "auth_bytes": response.token,
            "session_lifetime_ms": response.lifetime_ms,
        }
        return _framed(header, "SaslAuthenticate", answer), None


SASL_KEYS = frozenset({SASL_HANDSHAKE_KEY, SASL_AUTHENTICATE_KEY})


def answer_without_sasl(header: Header) -> Buffers:
    """The answer to SaslHandshake or SaslAuthenticate at a listener that does not use SASL."""
    error = IllegalSaslState("This listener does not use SASL.")
    if header.key == SASL_HANDSHAKE_KEY:
        return handshake_answer(header, error.code, ())
    return authenticate_answer(header, error)


def handshake_answer(header: Header, code: int, mechanisms: tuple[str, ...]) -> Buffers:
    """SaslHandshake's response."""
    return _framed(header, "SaslHandshake", {"error_code": code, "mechanisms": list(mechanisms)})


def authenticate_answer(header: Header, error: ProtocolError) -> Buffers:
    """SaslAuthenticate's response with an error."""
    answer = {"error_code": error.code, "error_message": error.message, "auth_bytes": b"", "session_lifetime_ms": 0}
    return _framed(header, "SaslAuthenticate", answer)


def _framed(header: Header, name: str, answer: dict[str, Any]) -> Buffers:
    return sized(encode(name, "response", header.version, answer, response_head(header)))
