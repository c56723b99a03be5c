"""TLS of a broker's listeners and of clients: settings as contexts of Python's ``ssl``.

Rules for this file:

1. A setting that cannot be used is InvalidConfig with the setting's name. The message has no part of a file's content.
2. A client is who its certificate says (``security/principals.py``). A client without a certificate is anonymous; the
   requests of one whose certificate gives no principal are refused.
3. Files are read again when they change, at the next handshake. New contexts are built whole: a certificate that was
   loaded into a context in use, and does not fit its key, would break every later handshake. What cannot be used is
   logged, and the old files stay in use.
4. TLS 1.2 is the oldest version. A resumed session is not verified again. There are no tickets, so sessions of TLS 1.3
   are not resumed; those of TLS 1.2 have an id, and Python cannot turn that off. A context keeps them, and each
   handshake uses the newest one: no session outlives the CAs that it was verified by.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from minikafka.blocking.tls import reading_pem
from minikafka.broker.event_limiter import EventLimiter
from minikafka.broker.large_turns import LargeTurns
from minikafka.config import BrokerConfig
from minikafka.errors import InvalidConfig
from minikafka.ports import Events
from minikafka.security.principals import (
    NotAuthenticated,
    PrincipalMapping,
    alternative_names,
    name_text,
    subject_of,
)
from minikafka.types import ANONYMOUS

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

# Of TLS 1.2; all suites of TLS 1.3 are as good.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)

_REVOKED = b"-----BEGIN X509 CRL-----"

# Reasons of OpenSSL for a first record that is none: other protocols, plain HTTP among them.
_NO_TLS = frozenset({"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG", "WRONG_VERSION_NUMBER"})

SMALL_READS = 64
SMALL_SIZE = 64
"""A request of Kafka's protocol that a client sends in numbers has more bytes."""

RELOAD_S = 10.0
"""Files are looked at no more often than this."""

# Permissions of users that are neither the file's owner nor in its group.
_OTHERS = 0o007


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS of one listener."""

    files: Reloaded
    mapping: PrincipalMapping
    events: EventLimiter

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next handshake."""
        return self.files.context

    def principal(self, transport: asyncio.Transport, remote: str) -> str:
        """Return the principal of a connection. Raises NotAuthenticated, after a log line, if there is none."""
        connection: ssl.SSLObject = transport.get_extra_info("ssl_object")
        certificate = connection.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        try:
            if connection.session_reused:
                _check_not_expired(connection)
            return self.mapping.principal(certificate)
        except NotAuthenticated as error:
            self.events("client_authentication_failed", remote=remote, why=str(error))
            raise


def _check_not_expired(connection: ssl.SSLObject) -> None:
    """Raise NotAuthenticated if a certificate that an earlier handshake has verified has expired since."""
    ends = (connection.getpeercert() or {}).get("notAfter")
    if isinstance(ends, str) and ssl.cert_time_to_seconds(ends) < time.time():
        raise NotAuthenticated(f"the certificate has expired ({ends})")


class HandshakeTurns:
    """Lets one handshake go on in turns of the loop (``large_turns.py``), in which no other one does."""

    def __init__(self, turns: LargeTurns) -> None:
        self._turns = turns
        self.transport: asyncio.Transport | None = None
        """Below TLS, while the handshake is under way."""
        self.early = bytearray()
        """What was read of the connection before TLS reads from it."""
        self.failure: ssl.SSLError | None = None
        """Why the handshake failed. Event loops may report a connection that was closed in its place."""
        self._waits = False
        self._is_now = False

    def has_come(self) -> bool:
        """Return True in a turn of this handshake. If it is none, the next one calls ``do_handshake`` again."""
        if not (self._is_now or self._waits):
            self._waits = True
            self._turns.call(self._take)
        return self._is_now

    def _take(self) -> None:
        self._waits = False
        if self.transport is None or self.transport.is_closing():
            return
        tls = cast("asyncio.BufferedProtocol", self.transport.get_protocol())
        early, self.early = self.early, bytearray()
        cast("memoryview", tls.get_buffer(len(early)))[: len(early)] = early
        self._is_now = True
        try:
            tls.buffer_updated(len(early))  # mostly nothing: the loop goes on with what it has
        finally:
            self._is_now = False


HANDSHAKE: ContextVar[HandshakeTurns | None] = ContextVar("minikafka.handshake", default=None)
"""Of the handshake that is begun in this context."""


class AlertingSslObject(ssl.SSLObject):
    """Sends the TLS alert of a failed handshake, and takes turns. Event loops do neither.

    They close the connection of a failed handshake with the alert unsent. Here a failure looks like a handshake that
    waits for the client, so the loop writes what there is, the alert. The client then closes the connection; for one
    that does not, the handshake's time runs out. What is no TLS gets no alert.

    A loop goes on with all handshakes for which something has arrived: 30 ms of signatures for 64 clients that send in
    one moment. Here a handshake looks as if nothing had come until it has a turn.

    A loop reads all records that have arrived. 256 KiB of records of one byte each take 50 ms, which a few clients,
    without a login, can send all the time. So after SMALL_READS of less than SMALL_SIZE bytes each, as no
    client's requests are, it looks as if nothing more had come, and the transport goes on in a later turn. It looks so
    after a handshake in turns, too, until the connection has its protocol.
    """

    _failure: ssl.SSLError | None = None
    _turns: HandshakeTurns | None = None
    is_held = False
    """Nothing is read yet."""
    _reads = 0
    _read_size = 0
    """Bytes of these reads."""
    read_later: Callable[[], object] | None = None
    """Makes the transport go on in a later turn of the loop; None: it cannot."""

    def do_handshake(self) -> None:
        """See the class. Raises the failure when the loop tries again."""
        if self._failure is not None:
            raise self._failure
        self._turns = self._turns or HANDSHAKE.get()
        if self._turns is not None and not self._turns.has_come():
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "others have their turn")
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if self._turns is not None:
                self._turns.failure = error
            if error.reason in _NO_TLS:
                raise
            self._failure = error
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the alert must be written") from error
        self.is_held, self._turns = self._turns is not None, None

    def read(self, *arguments: Any) -> Any:
        """See the class."""
        if self.is_held:
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the connection has no protocol yet")
        if self._reads == SMALL_READS:
            is_small = self._read_size < SMALL_READS * SMALL_SIZE
            self._reads = self._read_size = 0
            if is_small and self.read_later is not None:
                self.read_later()
                raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "others have their turn")
        found: Any = super().read(*arguments)  # how many bytes were read into a buffer that was given, or these bytes
        self._reads += 1
        self._read_size += found if len(arguments) > 1 else len(found)
        return found


def handshake_failure(error: ssl.SSLError) -> str:
    """What is wrong with a client's handshake, in words."""
    if error.reason in _NO_TLS:
        return "the client does not use TLS"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client has no certificate (ssl.client.auth=required)"
    _, is_alert, alert = (error.reason or "").partition("_ALERT_")
    return f"the client refused: {alert.lower().replace('_', ' ')}" if is_alert else error.reason or str(error)


def reads_in_turns(transport: asyncio.Transport) -> None:
    """Let the small records of a connection be read in turns, once its handshake is over."""

    def go_on() -> None:
        # A transport that resumes looks for what it has not read. One that is paused does so when its owner resumes it.
        if transport.is_reading() and not transport.is_closing():
            transport.pause_reading()
            transport.resume_reading()

    loop = asyncio.get_running_loop()
    secured: AlertingSslObject = transport.get_extra_info("ssl_object")
    secured.read_later = partial(loop.call_soon, go_on)
    if secured.is_held:
        secured.is_held = False
        secured.read_later()


class Names(NamedTuple):
    """The names in the own certificate, in DER."""

    subject: bytes
    alternative: frozenset[bytes]


CheckNames: TypeAlias = Callable[["Names | None"], "Names | None"]
"""Names in the certificate in use -> those in the new one. Raises InvalidConfig if they must not differ so."""


class Reloaded:
    """A context that is built again when one of its files has changed."""

    def __init__(
        self,
        build: Callable[[], ssl.SSLContext],
        paths: Iterable[str],
        check_names: CheckNames = lambda _names: None,
    ) -> None:
        """Build the first one. ``check_names`` refuses other names in the own certificate. Raises InvalidConfig."""
        self._build = build
        self._check_names = check_names
        self._paths = tuple(filter(None, paths))
        self._read = self._state()
        self._looked_at = time.monotonic()
        self._context = build()
        self._names = check_names(None)
        self.events: Events | None = None
        """Gets ``tls_reloaded`` and ``tls_reload_failed``."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next handshake."""
        now = time.monotonic()
        if now - self._looked_at >= RELOAD_S:
            self._looked_at = now
            state = self._state()
            if state != self._read:
                self._read = state
                self._reload()
        return self._context

    def _reload(self) -> None:
        kind, facts = "tls_reloaded", {}
        try:
            context = self._build()
            self._names = self._check_names(self._names)
            self._context = context
        except InvalidConfig as error:
            kind, facts = "tls_reload_failed", {"why": error.message}
        if self.events is not None:
            self.events(kind, files=",".join(self._paths), **facts)

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_state_of, self._paths))


def _state_of(path: str) -> tuple[int, int, int] | None:
    """What changes with a file and its permissions, which decide whether it can be used; None: there is none.

    Kubernetes swaps a symbolic link, which stat follows.
    """
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size


def server_contexts(config: BrokerConfig) -> dict[str, Reloaded]:
    """Return the context of each TLS listener, by name. Raises InvalidConfig, as :func:`server_context`.

    As in Kafka, ``ssl.client.auth`` is for SSL listeners: at SASL_SSL listeners clients have no certificate.
    """
    paths = config.ssl_keystore_location, config.ssl_truststore_location
    plain, with_login = config, replace(config, ssl_client_auth="none")
    check_names = partial(_checked_names, config)
    return {
        name: Reloaded(
            partial(server_context, with_login if name in config.sasl_listeners else plain), paths, check_names
        )
        for name in config.tls_listeners
    }


def server_context(config: BrokerConfig) -> ssl.SSLContext:
    """Return the context of a TLS listener.

    Raises:
        InvalidConfig: A file cannot be used, or every user of the machine may read the private key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = sorted(_VERSIONS[each] for each in config.ssl_enabled_protocols.split(","))
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.sslobject_class = AlertingSslObject
    _load_key(context, config.ssl_keystore_location)
    if config.ssl_client_auth != "none":
        load_trust(context, config.ssl_truststore_location)
    context.verify_mode = _VERIFY[config.ssl_client_auth]
    return context


def reloaded_broker_context(config: BrokerConfig) -> Reloaded:
    """As :func:`broker_context`, read again when the files change."""
    paths = config.ssl_keystore_location, config.ssl_truststore_location
    return Reloaded(partial(broker_context, config), paths, partial(_checked_names, config))


def broker_context(config: BrokerConfig) -> ssl.SSLContext:
    """Return the context with which a broker calls brokers: as a client that has the broker's certificate.

    Where brokers log in to each other, nobody asks for the certificate.

    Raises:
        InvalidConfig: As :func:`server_context`; or the certificate's principal is not one of ``super.users``.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_key(context, config.ssl_keystore_location)
    load_trust(context, config.ssl_truststore_location)
    if config.authorizer_class_name and config.brokers_login is None:
        _check_own_principal(config)
    return context


def _own_certificate(config: BrokerConfig) -> bytes:
    """The broker's own certificate in DER; empty if the file has none."""
    first = _CERTIFICATE.search(Path(config.ssl_keystore_location).read_text(encoding="ascii", errors="replace"))
    return b"" if first is None else ssl.PEM_cert_to_DER_cert(first[0])


def _checked_names(config: BrokerConfig, before: Names | None) -> Names | None:
    """The names in the own certificate. Raises InvalidConfig if they are others than ``before``, as Kafka does: clients
    and brokers know this broker by them.
    """
    try:
        certificate = _own_certificate(config)
        names = Names(subject_of(certificate), alternative_names(certificate))
    except (OSError, NotAuthenticated):
        return before  # what cannot be read is refused as a whole
    if before is not None and not config.ssl_allow_dn_changes and names.subject != before.subject:
        raise InvalidConfig(
            f"the new certificate is for {name_text(names.subject)}, the one in use for {name_text(before.subject)}; "
            "set ssl.allow.dn.changes=true to allow this",
            setting="ssl.allow.dn.changes",
        )
    if before is not None and not config.ssl_allow_san_changes and not names.alternative >= before.alternative:
        raise InvalidConfig(
            "the new certificate lacks names or addresses (SAN) of the one in use; set ssl.allow.san.changes=true to "
            "allow this",
            setting="ssl.allow.san.changes",
        )
    return names


def _check_own_principal(config: BrokerConfig) -> None:
    """Otherwise no broker would serve this one, and nothing but timeouts would show it."""
    try:
        own = PrincipalMapping(config.ssl_principal_mapping_rules).principal(_own_certificate(config))
    except NotAuthenticated as error:
        raise InvalidConfig(f"the broker's own certificate: {error}", setting="ssl.keystore.location") from error
    if own not in config.super_principals:
        raise InvalidConfig(
            f"super.users={config.super_users}: {own}, which this broker is by its certificate, is missing; add the "
            "principals of all brokers",
            setting="super.users",
        )


def _load_key(context: ssl.SSLContext, path: str) -> None:
    name = "ssl.keystore.location"
    wanted = "an unencrypted private key followed by its certificate chain is needed, in PEM"
    with reading_pem(name, path, wanted):
        if Path(path).stat().st_mode & _OTHERS:
            raise InvalidConfig(
                f"{name}={path}: every user of this machine may access the private key; run chmod o-rwx on the file",
                setting=name,
            )
        # Without a password OpenSSL would ask for that of an encrypted key on the terminal.
        context.load_cert_chain(path, password="")


def load_trust(context: ssl.SSLContext, path: str, *, name: str = "ssl.truststore.location") -> None:
    """Trust the CAs in a file, which the setting ``name`` has. Raises InvalidConfig.

    If the file has lists of revoked certificates (CRL), certificates are checked against them.
    """
    with reading_pem(name, path, "CA certificates in PEM are needed"):
        context.load_verify_locations(cafile=path)
        if _REVOKED in Path(path).read_bytes():
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
