"""Settings of single listeners, ``listener.name.<name in lower case>.<setting>``, and logins as they demand them.

Rules for this file: a password is in no text that is shown, the message of an error included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from minikafka.config.setting import INT_MAX, LONG_MAX
from minikafka.errors import InvalidConfig
from minikafka.types import RESERVED_NAMES

PREFIX = "listener.name."
HIDDEN = "[hidden]"

SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_JAAS = {f"{mechanism.lower()}.sasl.jaas.config": mechanism for mechanism in SASL_MECHANISMS}
MECHANISMS, LIFETIME = "sasl.enabled.mechanisms", "connections.max.reauth.ms"
CONNECTIONS = "max.connections"
LISTENER_SETTINGS = (CONNECTIONS, MECHANISMS, LIFETIME, *_JAAS)
"""What can be set for one listener."""


class Override(NamedTuple):
    """One setting of one listener."""

    listener: str
    """In upper case, as in ``listeners``."""
    setting: str
    text: str

    @property
    def name(self) -> str:
        """The full name of the setting."""
        return f"{PREFIX}{self.listener.lower()}.{self.setting}"

    @property
    def shown(self) -> str:
        """The text, without passwords."""
        return HIDDEN if self.setting in _JAAS else self.text


def override_of(name: str, text: str = "") -> Override | None:
    """The setting of a listener that a name stands for; None: it is none."""
    if not name.startswith(PREFIX):
        return None
    for setting in LISTENER_SETTINGS:
        listener = name.removeprefix(PREFIX).removesuffix("." + setting)
        if listener and name == f"{PREFIX}{listener}.{setting}":
            return Override(listener.upper(), setting, text)
    return None


class OwnLogin(NamedTuple):
    """Name and password of a broker."""

    user: str
    password: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslListener:
    """How clients log in at one listener."""

    mechanisms: tuple[str, ...]
    passwords: Mapping[str, str] = field(repr=False)
    """Of PLAIN, by user."""
    reauthentication_ms_max: int
    """0: sessions have no end."""
    own: OwnLogin | None = field(default=None, repr=False)
    """With which the broker logs in to other brokers (PLAIN)."""


def sasl_listener(mechanisms: str, lifetime_ms: int, overrides: tuple[Override, ...]) -> SaslListener:
    """A listener with the settings of all listeners and its own. Raises InvalidConfig."""
    name, passwords, own = MECHANISMS, None, None
    for each in overrides:
        if each.setting == MECHANISMS:
            name, mechanisms = each.name, each.text
        elif each.setting == LIFETIME:
            lifetime_ms = _milliseconds(each)
        elif each.setting in _JAAS:
            users, found = jaas_users(each.name, each.text, _JAAS[each.setting])
            if _JAAS[each.setting] == "PLAIN":
                passwords, own = users, found
    enabled = _mechanisms(name, mechanisms)
    if "PLAIN" in enabled and not passwords:
        raise InvalidConfig(
            f"{name} enables PLAIN, but the listener has no users; set its plain.sasl.jaas.config, as in "
            "listener.name.clients.plain.sasl.jaas.config",
            setting=name,
        )
    return SaslListener(mechanisms=enabled, passwords=passwords or {}, reauthentication_ms_max=lifetime_ms, own=own)


def _mechanisms(name: str, text: str) -> tuple[str, ...]:
    found = dict.fromkeys(filter(None, map(str.strip, text.split(","))))
    for each in found:
        if each not in SASL_MECHANISMS:
            supported = ", ".join(SASL_MECHANISMS)
            raise InvalidConfig(f"{name}: the mechanism {each!r} is not supported; use {supported}", setting=name)
    if not found:
        raise InvalidConfig(f"{name} is empty; set it to one of {', '.join(SASL_MECHANISMS)}", setting=name)
    return tuple(found)


def _milliseconds(override: Override) -> int:
    return _number(override, LONG_MAX)


def connection_limit(override: Override) -> int:
    """The value of a listener's ``max.connections``. Raises InvalidConfig."""
    return _number(override, INT_MAX)


def _number(override: Override, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", override.text) or int(override.text) > high:
        raise InvalidConfig(
            f"{override.name}={override.text[:40]!r}: a whole number in the digits 0 to 9 is needed, {high} at most",
            setting=override.name,
        )
    return int(override.text)


_OPTION = re.compile(r'\s+([A-Za-z0-9_.@-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";=]+))', re.DOTALL)


def jaas_users(name: str, text: str, mechanism: str) -> tuple[dict[str, str], OwnLogin | None]:
    r"""Passwords by user of a JAAS text, and with which name and password the broker logs in.

    The text is ``MODULE required username="admin" password="y" user_ann="secret" user_bob="x";``, in which ``\"`` and
    ``\\`` stand for themselves in quotes. Raises InvalidConfig, which shows no value.
    """
    module = _LOGIN_MODULES[mechanism]
    beginning = re.match(rf"\s*{re.escape(module)}\s+required(?=[\s;])", text)
    if beginning is None:
        raise InvalidConfig(f"{name} must begin with: {module} required", setting=name)
    users: dict[str, str] = {}
    own: dict[str, str] = {}
    at = beginning.end()
    while (option := _OPTION.match(text, at)) is not None:
        at = option.end()
        key, value = option[1], option[3] if option[2] is None else re.sub(r"\\(.)", r"\1", option[2], flags=re.DOTALL)
        user = key.removeprefix("user_")
        if key in ("username", "password"):
            own[key] = value
            continue
        if user in (key, *RESERVED_NAMES) or mechanism != "PLAIN":
            raise InvalidConfig(f"{name}: the option {key} is not supported", setting=name)
        if user in users or not value:
            raise InvalidConfig(
                f"{name}: {user} has {'two passwords' if user in users else 'no password'}", setting=name
            )
        users[user] = value
    if text[at:].strip() != ";":
        raise InvalidConfig(
            f'{name}: after {len(users)} users comes something else than user_NAME="PASSWORD" or the final semicolon',
            setting=name,
        )
    return users, OwnLogin(own["username"], own["password"]) if len(own) == 2 else None
