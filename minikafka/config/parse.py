"""Names and texts into checked settings, and back (D8).

Rules for this file: it reads no file and no environment; all of a configuration is right, or none of it is taken. An
unknown name is an error that suggests the nearest one; a name that Kafka knows and minikafka does not use is noted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from minikafka.addresses import PLAINTEXT, is_loopback
from minikafka.config.broker import BrokerConfig, table
from minikafka.config.names import KNOWN_TO_KAFKA_ONLY
from minikafka.config.setting import parsed_value
from minikafka.config.topic import TopicConfig
from minikafka.errors import InvalidConfig

# No setting's name is half as long; comparing a longer one takes long.
NAME_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True)
class Parsed:
    """A checked configuration and what should be told about it."""

    config: BrokerConfig
    notices: tuple[str, ...]


def unknown_setting(name: str, known: Iterable[str]) -> InvalidConfig:
    """The error for a name that is not among ``known``; it suggests the nearest one."""
    name = name if len(name) <= NAME_SHOWN_MAX else name[:NAME_SHOWN_MAX] + "..."
    # A look for very near names alone takes a tenth of the time, and one request may hold hundreds of unknown names.
    looks = (difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff) for cutoff in (0.8, 0.5))
    near = next(filter(None, looks), [])
    hint = f"; did you mean {near[0]}?" if near else "; `minikafka serve --list-settings` lists all"
    return InvalidConfig(f"unknown setting {name}{hint}", setting=name)


def parse_broker(settings: Mapping[str, str], *, base: BrokerConfig | None = None, lenient: bool = False) -> Parsed:
    """Check texts by Kafka's names and lay them over ``base``.

    ``lenient`` (for settings from the environment): an unknown name is a notice. Raises InvalidConfig with the
    setting's name and what would be right.
    """
    known = table(BrokerConfig)
    changes: dict[str, Any] = {}
    notices: list[str] = []
    for name, text in settings.items():
        each = known.get(name)
        if each is not None:
            changes[each.name] = parsed_value(each, text)
        elif name in KNOWN_TO_KAFKA_ONLY:
            notices.append(f"{name} is known to Kafka and not used by minikafka")
        elif lenient:
            notices.append(f"{name} is not a setting of minikafka: ignored")
        else:
            raise unknown_setting(name, known)
    config = BrokerConfig(**changes) if base is None else replace(base, **changes)
    check(config)
    return Parsed(config, tuple(notices))


def check(config: BrokerConfig) -> None:
    """What must hold between settings; raises InvalidConfig."""
    _check_listeners(config)
    config.topic_defaults().check()
    _ = config.allowed_hosts, config.allowed_origins
    if config.broker_session_timeout_ms <= config.broker_heartbeat_interval_ms:
        raise InvalidConfig(
            f"broker.session.timeout.ms={config.broker_session_timeout_ms} must be larger than "
            f"broker.heartbeat.interval.ms={config.broker_heartbeat_interval_ms}",
            setting="broker.session.timeout.ms",
        )
    if config.voters and config.process_roles == "broker" and config.node_id in config.voters:
        raise InvalidConfig(
            "controller.quorum.voters names this node but process.roles is broker", setting="process.roles"
        )


def _check_listeners(config: BrokerConfig) -> None:
    listeners = config.all_listeners
    if not listeners:
        raise InvalidConfig("listeners is empty: NAME://host:port is needed", setting="listeners")
    for name, address in listeners:
        if not is_loopback(address.host) and not config.insecure:
            raise InvalidConfig(
                f"listeners={config.listeners}: {address.host} is beyond loopback and minikafka has no authentication; "
                f"let {name} listen on 127.0.0.1, or say mk.insecure=true (MK_INSECURE=true) if the network is yours",
                setting="listeners",
            )
    ports = [address.port for _, address in listeners if address.port]
    if len(set(ports)) < len(ports):
        raise InvalidConfig(f"listeners={config.listeners}: two listeners share a port", setting="listeners")
    _ = config.inter_broker_listener
    known = {each.name for each in config.client_listeners}
    for name in config.all_advertised:
        if name not in known:
            raise InvalidConfig(
                f"advertised.listeners names {name}, which is no listener for clients: {', '.join(sorted(known))} are",
                setting="advertised.listeners",
            )
    for pair in filter(None, map(str.strip, config.listener_security_protocol_map.split(","))):
        name, colon, protocol = pair.partition(":")
        if not colon or protocol.strip().upper() != PLAINTEXT:
            raise InvalidConfig(
                f"listener.security.protocol.map={pair!r}: NAME:{PLAINTEXT} is needed, there is no TLS and no SASL",
                setting="listener.security.protocol.map",
            )


def parse_topic(settings: Mapping[str, str], *, base: TopicConfig | None = None) -> TopicConfig:
    """Lay a topic's own settings over the broker's defaults; raises InvalidConfig naming the setting."""
    known = table(TopicConfig)
    changes = {}
    for name, text in settings.items():
        if name not in known:
            raise unknown_setting(name, known)
        changes[known[name].name] = parsed_value(known[name], text)
    config = TopicConfig(**changes) if base is None else replace(base, **changes)
    config.check()
    return config


def to_settings(config: BrokerConfig | TopicConfig) -> dict[str, str]:
    """The texts from which ``parse_*`` gives this configuration, by Kafka's names."""
    texts = {}
    for each in fields(config):
        value = getattr(config, each.name)
        texts[each.metadata["name"]] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts
