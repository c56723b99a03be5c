"""Names and texts into checked settings, and back (D8).

Rules for this file: it reads no file and no environment; all of a configuration is right, or none of it is taken. An
unknown name is an error that suggests the nearest one; a name that Kafka knows and minikafka does not use is noted.

The environment has names of its own, which the Apache image reads; it comes in as a mapping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from minikafka.addresses import is_loopback
from minikafka.config.broker import BrokerConfig, table
from minikafka.config.listeners import CONNECTIONS, override_of
from minikafka.config.names import INSTEAD, KNOWN_TO_KAFKA_ONLY, OWN_PREFIX
from minikafka.config.setting import parsed_value
from minikafka.config.topic import TopicConfig
from minikafka.errors import InvalidConfig, did_you_mean
from minikafka.types import ANONYMOUS


def environment_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings named in an environment, see :func:`environment_variables`."""
    return {name: environment[variable] for name, variable in environment_variables(environment).items()}


def environment_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Setting -> the variable of an environment that gives it: ``KAFKA_...`` then ``MK_...``, the latter wins.

    The Apache image's rule: the prefix goes, upper case becomes lower, ``_`` is ``.``, ``__`` is ``_``, ``___`` is
    ``-``. ``MK_X`` is Kafka's setting ``x`` when there is one, else ``mk.x``. ``CLUSTER_ID`` needs no prefix.
    """
    return dict(_named(environment))


def environment_overruled(environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Setting, the variable that gives it, and one that says otherwise and does not count."""
    winners = environment_variables(environment)
    return [
        (name, winners[name], variable)
        for name, variable in _named(environment)
        if environment[variable] != environment[winners[name]]
    ]


def _named(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Settings and their variables; what comes later wins."""
    known = table(BrokerConfig)
    if environment.get("CLUSTER_ID"):
        yield "cluster.id", "CLUSTER_ID"
    for prefix in ("KAFKA_", "MK_"):
        for variable in sorted(environment):
            if variable.startswith(prefix):
                rest = variable[len(prefix) :].lower()
                name = rest.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
                if prefix == "MK_" and name not in known:
                    name = OWN_PREFIX + name
                yield name, variable


# No setting's name is half as long; comparing a longer one takes long.
NAME_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True)
class Parsed:
    """A checked configuration and the remarks about it."""

    config: BrokerConfig
    notices: tuple[str, ...]


def unknown_setting(name: str, known: Iterable[str]) -> InvalidConfig:
    """The error for a name that is not among ``known``; it suggests the nearest one."""
    name = name if len(name) <= NAME_SHOWN_MAX else name[:NAME_SHOWN_MAX] + "..."
    # A look for very near names alone takes a tenth of the time, and one request may hold hundreds of unknown names.
    names, otherwise = list(known), "`minikafka serve --list-settings` lists all"
    hint = did_you_mean(name, names, cutoff=0.8) or did_you_mean(name, names, cutoff=0.5, otherwise=otherwise)
    return InvalidConfig(f"unknown setting {name}{hint}", setting=name)


def parse_broker(settings: Mapping[str, str], *, base: BrokerConfig | None = None, lenient: bool = False) -> Parsed:
    """Check texts by Kafka's names and lay them over ``base``.

    ``lenient`` (for settings from the environment): an unknown name is a notice. Raises InvalidConfig with the
    setting's name and what would be right.
    """
    known = table(BrokerConfig)
    changes: dict[str, Any] = {}
    notices: list[str] = []
    overrides = {} if base is None else {own.name: own for own in base.listener_overrides}
    for name, text in settings.items():
        each, own = known.get(name), override_of(name, text)
        if each is not None:
            changes[each.name] = parsed_value(each, text)
        elif own is not None:
            overrides[name] = own
        elif name in KNOWN_TO_KAFKA_ONLY:
            instead = f"; set {INSTEAD[name]}" if name in INSTEAD else ""
            notices.append(f"{name} is known to Kafka and not used by minikafka{instead}")
        elif lenient:
            notices.append(f"{name} is not a setting of minikafka: ignored")
        else:
            raise unknown_setting(name, known)
    changes["listener_overrides"] = tuple(overrides.values())
    config = BrokerConfig(**changes) if base is None else replace(base, **changes)
    check(config)
    return Parsed(config, tuple(notices))


def check(config: BrokerConfig) -> None:
    """What must hold between settings; raises InvalidConfig."""
    _check_listeners(config)
    _check_authorizer(config)
    config.topic_defaults().check()
    _ = config.allowed_hosts, config.allowed_origins
    if config.broker_session_timeout_ms <= config.broker_heartbeat_interval_ms:
        raise InvalidConfig(
            f"broker.session.timeout.ms={config.broker_session_timeout_ms} must be larger than "
            f"broker.heartbeat.interval.ms={config.broker_heartbeat_interval_ms}",
            setting="broker.session.timeout.ms",
        )
    if config.group_consumer_session_timeout_ms <= config.group_consumer_heartbeat_interval_ms:
        raise InvalidConfig(
            f"group.consumer.session.timeout.ms={config.group_consumer_session_timeout_ms} must be larger than "
            f"group.consumer.heartbeat.interval.ms={config.group_consumer_heartbeat_interval_ms}",
            setting="group.consumer.session.timeout.ms",
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
        lacks = () if is_loopback(address.host) or config.insecure else _missing_protection(config, name)
        if lacks:
            raise InvalidConfig(
                f"listeners={config.listeners}: {address.host} is beyond loopback and {name} lacks {', '.join(lacks)}; "
                f"set them, let {name} listen on 127.0.0.1, or say mk.insecure=true (MK_INSECURE=true) if the network "
                "is yours",
                setting="listeners",
            )
        if config.testing_endpoints_enable and not (is_loopback(address.host) or config.insecure):
            raise InvalidConfig(
                f"mk.testing.endpoints.enable=true, but {name} listens beyond loopback ({address.host}), where clients "
                "could kill brokers and read everything; leave it out, or set mk.insecure=true if the network is yours",
                setting="mk.testing.endpoints.enable",
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
    _check_sasl(config)
    _check_tokens(config)
    _check_tls(config)


def _check_sasl(config: BrokerConfig) -> None:
    logins = config.sasl_listeners
    config.connection_overrides  # noqa: B018 - raises InvalidConfig
    if config.internal_listeners & logins.keys():
        _check_logins_of_brokers(config)
    limits = config.connection_limits
    names = [each.name for each in config.all_listeners]
    for own in config.listener_overrides:
        if own.listener in limits and own.listener not in names:
            raise InvalidConfig(
                f"{own.name} is set, but {own.listener} is no listener; listeners: {', '.join(names)}", setting=own.name
            )
        if own.setting != CONNECTIONS and own.listener not in logins:
            used = ", ".join(logins) or "none"
            raise InvalidConfig(
                f"{own.name} is set, but {own.listener} is no SASL listener; SASL listeners: {used}", setting=own.name
            )


def _check_logins_of_brokers(config: BrokerConfig) -> None:
    """Brokers call all listeners of brokers and controllers with one name and password, over TLS."""
    mechanism = config.sasl_mechanism_inter_broker_protocol
    if mechanism != "PLAIN":
        scram = " (SCRAM needs users of the metadata log, which brokers read only after they have logged in)"
        raise InvalidConfig(
            f"sasl.mechanism.inter.broker.protocol={mechanism}: brokers log in to each other with PLAIN only"
            f"{scram if mechanism.startswith('SCRAM') else ''}; set PLAIN, or use SSL for the listener of brokers",
            setting="sasl.mechanism.inter.broker.protocol",
        )
    own = config.brokers_login
    for name in sorted(config.internal_listeners):
        listener = config.sasl_listeners.get(name)
        jaas = f"listener.name.{name.lower()}.plain.sasl.jaas.config"
        if listener is None or name not in config.tls_listeners:
            raise InvalidConfig(
                f"listener {name} uses {config.protocol_of(name)}, but a listener of brokers or controllers uses SASL; "
                "brokers call all of them in the same way: use SASL_SSL for each",
                setting="listener.security.protocol.map",
            )
        if "PLAIN" not in listener.mechanisms:
            raise InvalidConfig(
                f"brokers log in to listener {name} with PLAIN, which is not among its mechanisms; add it to "
                f"listener.name.{name.lower()}.sasl.enabled.mechanisms",
                setting=f"listener.name.{name.lower()}.sasl.enabled.mechanisms",
            )
        if own is None or listener.own != own or listener.passwords.get(own.user) != own.password:
            raise InvalidConfig(
                f"brokers log in to listener {name}: {jaas} must have the options username and password of this "
                "broker, the same at all listeners of brokers and controllers, and user_NAME for each broker",
                setting=jaas,
            )
        if config.authorizer_class_name and f"User:{own.user}" not in config.super_principals:
            raise InvalidConfig(
                f"super.users={config.super_users}: User:{own.user}, as which this broker logs in, is missing; add the "
                "principals of all brokers",
                setting="super.users",
            )


def _check_tokens(config: BrokerConfig) -> None:
    if not config.uses_tokens:
        return
    needed = {
        "sasl.oauthbearer.jwks.endpoint.url": config.sasl_oauthbearer_jwks_endpoint_url,
        "sasl.oauthbearer.expected.issuer": config.sasl_oauthbearer_expected_issuer,
        "sasl.oauthbearer.expected.audience": config.sasl_oauthbearer_expected_audience,
    }
    for name, value in needed.items():
        if not value.strip(" ,"):
            raise InvalidConfig(f"sasl.enabled.mechanisms has OAUTHBEARER, which needs {name}", setting=name)
    url = config.sasl_oauthbearer_jwks_endpoint_url
    if re.fullmatch(r"https://[^/?#@\s]+(/\S*)?|file:///\S+", url) is None:
        raise InvalidConfig(
            "sasl.oauthbearer.jwks.endpoint.url must be https://HOST/PATH, without credentials, or file:///PATH",
            setting="sasl.oauthbearer.jwks.endpoint.url",
        )


def _missing_protection(config: BrokerConfig, name: str) -> list[str]:
    """What a listener needs beyond loopback: encryption, authentication, and a check of what clients may do."""
    has_login = name in config.sasl_listeners
    protection = {
        "TLS (listener.security.protocol.map)": name in config.tls_listeners,
        "ssl.client.auth=required (or SASL_SSL)": has_login or config.ssl_client_auth == "required",
        "authorizer.class.name": bool(config.authorizer_class_name),
    }
    return [each for each, is_there in protection.items() if not is_there]


def _check_authorizer(config: BrokerConfig) -> None:
    supers = config.super_principals
    if not config.authorizer_class_name:
        return
    if not supers and not config.allow_everyone_if_no_acl_found:
        raise InvalidConfig(
            "authorizer.class.name is set, but super.users is empty, so nobody could create the first ACL; set "
            "super.users to the principals of administrators, such as User:admin",
            setting="super.users",
        )
    if ANONYMOUS in supers and not config.insecure:
        raise InvalidConfig(
            f"super.users contains {ANONYMOUS}, so every client without credentials could do everything; remove it, or "
            "set mk.insecure=true if the network is yours",
            setting="super.users",
        )
    if config.brokers_use_tls:
        if config.ssl_client_auth == "none" and config.brokers_login is None:
            raise InvalidConfig(
                "authorizer.class.name is set and brokers call each other with TLS, but ssl.client.auth=none, so they "
                "would all be User:ANONYMOUS; set ssl.client.auth to required or requested",
                setting="ssl.client.auth",
            )
    elif {each.name for each in config.client_listeners} == {config.inter_broker_listener.name}:
        raise InvalidConfig(
            f"authorizer.class.name is set, but clients can only use {config.inter_broker_listener}, the listener of "
            "brokers, where nothing is checked without TLS; add a listener for clients and set "
            "inter.broker.listener.name, or use TLS",
            setting="inter.broker.listener.name",
        )


def _check_tls(config: BrokerConfig) -> None:
    encrypted = config.tls_listeners
    if not encrypted:
        return
    plain = config.internal_listeners - set(encrypted)
    if plain and plain != config.internal_listeners:
        raise InvalidConfig(
            f"of the listeners of brokers and controllers {', '.join(sorted(plain))} does not use TLS and "
            f"{', '.join(sorted(config.internal_listeners - plain))} does; brokers call all of them in the same way",
            setting="listener.security.protocol.map",
        )
    if not config.ssl_keystore_location:
        raise InvalidConfig(
            f"listener {encrypted[0]} uses TLS, but ssl.keystore.location is empty; set it to a PEM file with the "
            "broker's private key and certificate chain",
            setting="ssl.keystore.location",
        )
    if (config.ssl_client_auth != "none" or config.brokers_use_tls) and not config.ssl_truststore_location:
        why = (
            "brokers call each other with TLS"
            if config.brokers_use_tls
            else f"ssl.client.auth={config.ssl_client_auth}"
        )
        raise InvalidConfig(
            f"{why}, but ssl.truststore.location is empty; set it to a PEM file with the CA certificates that sign the "
            "certificates of clients and brokers",
            setting="ssl.truststore.location",
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
    """The texts from which ``parse_*`` gives this configuration, by Kafka's names. Passwords are hidden."""
    texts = {}
    for each in table(BrokerConfig if isinstance(config, BrokerConfig) else TopicConfig).values():
        value = getattr(config, each.name)
        texts[each.metadata["name"]] = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(config, BrokerConfig):
        texts |= {own.name: own.shown for own in config.listener_overrides}
    return texts
