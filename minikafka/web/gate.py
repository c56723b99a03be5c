"""Origin and host checks: the rule that keeps web pages out of a broker that a browser on the same machine can reach.

A web page must not do what the owner of the browser may: a browser sends *its* requests from inside, and adds passwords
and client certificates by itself. Two ways are closed here, before anything else is done with a request:

1. **Another name.** A page of ``evil.example`` lets that name point to 127.0.0.1 (DNS rebinding): for the browser the
   broker is then of the page's own origin, and all that it answers can be read. So ``Host`` must be an address, a name
   of loopback, a name that the broker's settings say (listeners, advertised listeners, voters), or one of
   ``mk.http.allowed.hosts``. Beyond loopback (``mk.insecure=true``) names outside the public DNS are taken as well,
   such as compose's ``kafka-1``: no page's owner can let them point anywhere.
2. **Another origin.** Any page may send a form or a text to any address without asking (CSRF). Browsers say so: what
   comes with an ``Origin`` that is neither this server's own nor one of ``mk.http.allowed.origins`` is refused, and so
   is what ``Sec-Fetch-Site`` says is from elsewhere. That a page could not read the answer to a GET is not enough: it
   could keep streams open, and tell from the status which topics exist. A link that a person follows is answered.

curl, clients and brokers send neither ``Origin`` nor ``Sec-Fetch-Site``.

Refused here as well, unread: credentials that come in plain text from beyond loopback, twice, or in the address, where
logs would keep them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from minikafka.addresses import is_loopback
from minikafka.config import BrokerConfig
from minikafka.errors import InvalidConfig
from minikafka.web.problems import Refused, malformed

# RFC 6761, 6762 and 8375, and what ICANN keeps for private use: nobody can register a name below these.
PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".test", ".home.arpa")

# A page of an allowed origin may send and read all that this API has.
PREFLIGHT_ANSWER = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    # "*" does not cover Authorization (Fetch standard).
    "Access-Control-Allow-Headers": "*, Authorization",
    "Access-Control-Max-Age": "600",
}
EXPOSED = "Mk-Served-By, Mk-Leader, Mk-Api-Version, Location, Retry-After, WWW-Authenticate"

ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of each answer of the general server."""

SECRETS_IN_QUERIES = frozenset({"token", "access_token", "password"})
"""Parameters by which other servers take credentials (RFC 6750, 2.3)."""

WITHOUT_LOGIN = frozenset({"/healthz", "/healthy", "/readyz", "/ready"})
"""Paths that probes may GET without a login: they say no more than whether the broker serves."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?)\.?(?::[0-9]{0,5})?", re.IGNORECASE)
_SHOWN_LENGTH_MAX = 80


@dataclass(frozen=True, slots=True)
class Asked:
    """What the head of a request says of who asks; texts as they came."""

    method: str
    hosts: Sequence[str]
    needs_host: bool = True
    """HTTP/1.1 does (RFC 9112, 3.2)."""
    origin: str | None = None
    site: str | None = None
    """``Sec-Fetch-Site``."""
    is_link: bool = False
    """A person opens it in a window of its own (``Sec-Fetch-Mode: navigate``, ``Sec-Fetch-Dest: document``)."""
    asks_before: bool = False
    """A browser asks for a page whether it may (CORS preflight)."""
    authorizations: int = 0
    """Number of ``Authorization`` headers."""
    query_names: Collection[str] = ()
    """Names of the parameters in the address."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What one listener takes. ``names`` are lower-case hosts, ``.example`` is all below it, ``*`` is any."""

    names: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    takes_private_names: bool = False
    scheme: str = "http"
    """Scheme of the listener's own pages; a page of the other scheme has another origin, whatever its host. Behind a
    proxy that ends TLS, its origin must be in ``mk.http.allowed.origins``."""
    takes_plain_credentials: bool = False
    """Credentials may come without TLS: at loopback, or by ``mk.http.plain.credentials``."""
    is_local: bool = True
    """The listener is on loopback."""

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        """Of a broker with these settings, for a listener on loopback."""
        addresses = [
            *(listener.address for listener in config.all_listeners),
            *config.all_advertised.values(),
            *config.voters.values(),
        ]
        return cls(
            names=frozenset(_as_sent(each.host) for each in addresses) | config.allowed_hosts,
            origins=config.allowed_origins,
            takes_plain_credentials=config.http_plain_credentials,
        )

    def at(self, host: str) -> Self:
        """Of the listener at ``host``."""
        return replace(self, takes_private_names=not is_loopback(host), is_local=is_loopback(host))

    def knows(self, given: str) -> bool:
        """Return True if the value of a ``Host`` header, with or without a port, is a name of this broker."""
        match = _HOST.fullmatch(given)
        return match is not None and self._is_known(match[1].lower())

    def _is_known(self, host: str) -> bool:
        if host == "localhost" or host.endswith(".localhost") or host in self.names or "*" in self.names:
            return True
        if _is_address(host):
            return True
        if self.takes_private_names and ("." not in host or host.endswith(PRIVATE_SUFFIXES)):
            return True
        return any(name.startswith(".") and host.endswith(name) for name in self.names)

    def refusal(self, asked: Asked) -> Refused | None:
        """Why a request must not be looked at; None: it may."""
        if len(asked.hosts) != 1:
            if not asked.hosts and not asked.needs_host:
                return None
            return malformed(f"one Host header is needed, here are {len(asked.hosts)} (RFC 9112)")
        host = asked.hosts[0].strip()
        match = _HOST.fullmatch(host)
        if match is None:
            return malformed(f"Host {host[:_SHOWN_LENGTH_MAX]!r} is no host")
        if not self._is_known(match[1].lower()):
            return malformed(
                f"Host {host[:_SHOWN_LENGTH_MAX]!r} is not a name that this broker knows; use its address or an "
                "advertised name, or add the name to mk.http.allowed.hosts",
                status=403,
                setting="mk.http.allowed.hosts",
            )
        return self._refusal_of_page(asked, host) or self._refusal_of_credentials(asked)

    def _refusal_of_page(self, asked: Asked, host: str) -> Refused | None:
        origin, site = asked.origin, asked.site
        if origin is not None and self.shares_with(origin):
            return None
        is_own = origin is None or origin.lower() == f"{self.scheme}://{host.lower()}"
        if is_own and site in (None, "same-origin", "none"):
            return None
        if origin is None and asked.method == "GET" and asked.is_link:
            return None
        page = "a web page of another site" if origin is None else f"a page of origin {origin[:_SHOWN_LENGTH_MAX]!r}"
        return malformed(
            f"{page} may not send {asked.method[:20]} to this broker; mk.http.allowed.origins lists those that may",
            status=403,
            setting="mk.http.allowed.origins",
        )

    def _refusal_of_credentials(self, asked: Asked) -> Refused | None:
        named = SECRETS_IN_QUERIES.intersection(asked.query_names)
        if named:
            return malformed(
                f"the address has a parameter {min(named)!r}: addresses are logged, so credentials belong into the "
                "header Authorization"
            )
        if asked.authorizations > 1:
            return malformed(f"{asked.authorizations} Authorization headers came; send one (RFC 9110, 5.3)")
        if asked.authorizations and self.scheme == "http" and not (self.is_local or self.takes_plain_credentials):
            return malformed(
                "credentials came over plain HTTP, where others can read them: change the password, and use a "
                "listener with TLS; mk.http.plain.credentials=true allows it",
                status=403,
                setting="mk.http.plain.credentials",
            )
        return None

    def shares_with(self, origin: str) -> bool:
        """Return True if pages of this origin may read responses."""
        return origin.lower() in self.origins

    def sharing(self, origin: str | None) -> Mapping[str, str]:
        """The headers that let a page read an answer (CORS); caches learn that answers differ by origin."""
        if not self.origins:
            return {}
        if origin is None or not self.shares_with(origin):
            return {"Vary": "Origin"}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": EXPOSED,
            "Vary": "Origin",
        }


def _as_sent(host: str) -> str:
    """A name of a setting as clients send it; InvalidConfig when nobody could."""
    try:
        return host.lower() if host.isascii() else host.encode("idna").decode()
    except UnicodeError as error:
        raise InvalidConfig(f"{host!r} is no host name: {error}") from None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
