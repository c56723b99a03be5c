"""Where a broker's settings come from: a file, then the environment, then ``--config`` flags; the later one wins.

Rules for this file: an unknown or repeated name in a file or a flag is an error; an unknown one in the environment is a
notice (``KAFKA_OPTS`` and Kubernetes' ``KAFKA_PORT`` are not ours to judge). Names and values are checked by
``minikafka.config``; nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from minikafka.config import (
    KNOWN_TO_KAFKA_ONLY,
    BrokerConfig,
    environment_overruled,
    environment_settings,
    environment_variables,
    override_of,
    parse_broker,
    table,
)
from minikafka.errors import InvalidConfig
from minikafka.hosting.cluster_files import read_properties


def parse_flags(flags: Iterable[str], option: str = "--config") -> dict[str, str]:
    """``KEY=VALUE`` texts as settings; InvalidConfig for one without ``=`` and for a repeated name."""
    settings: dict[str, str] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InvalidConfig(f"{option} {flag!r}: KEY=VALUE is needed, such as log.retention.ms=60000")
        if name in settings:
            raise InvalidConfig(f"{option} {name} is given twice; keep one of them", setting=name)
        settings[name] = value
    return settings


DEFAULT_ORIGIN = "default"


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """One broker's checked settings, the remarks about them, and where each that was given comes from."""

    config: BrokerConfig
    notices: tuple[str, ...]
    origins: Mapping[str, str]
    """Setting -> ``file PATH``, ``env VARIABLE`` or ``flag --config``."""


def broker_settings(path: Path | None, environment: Mapping[str, str], flags: Iterable[str]) -> BrokerSettings:
    """One broker's checked settings; without ``path`` no file is read.

    Relative ``log.dirs`` stay relative to the working directory, as in Kafka.

    They are checked as a whole only: a file may name a listener that just the environment's ``MK_INSECURE`` allows.
    Raises InvalidConfig.
    """
    in_file, by_flag = read_properties(path) if path is not None else {}, parse_flags(flags)
    by_variable = environment_variables(environment)
    for name, text in (in_file | by_flag).items():
        if name not in table(BrokerConfig) and name not in KNOWN_TO_KAFKA_ONLY and override_of(name) is None:
            parse_broker({name: text})  # raises, and names the nearest setting
    parsed = parse_broker(in_file | environment_settings(environment) | by_flag, lenient=True)
    origins = dict.fromkeys(in_file, f"file {path}")
    origins |= {name: f"env {variable}" for name, variable in by_variable.items()}
    origins |= dict.fromkeys(by_flag, "flag --config")
    known = table(BrokerConfig)
    notices = [
        f"{name}: {variable} says otherwise than {winner}, which counts"
        for name, winner, variable in environment_overruled(environment)
        if name in known
    ]
    return BrokerSettings(
        parsed.config,
        (*parsed.notices, *notices),
        {name: origin for name, origin in origins.items() if name in known or override_of(name) is not None},
    )
