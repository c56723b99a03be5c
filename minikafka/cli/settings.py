"""Where a broker's settings come from: a file, then the environment, then ``--config`` flags; the later one wins.

Rules for this file: an unknown or repeated name in a file or a flag is an error; an unknown one in the environment is a
notice (``KAFKA_OPTS`` and Kubernetes' ``KAFKA_PORT`` are not ours to judge). Names and values are checked by
``minikafka.config``; nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import javaproperties

from minikafka.config import KNOWN_TO_KAFKA_ONLY, BrokerConfig, Parsed, environment_settings, parse_broker, table
from minikafka.errors import InvalidConfig


def read_properties(path: Path) -> dict[str, str]:
    """The settings of a ``.properties`` file (Java's rules: escapes, continuations, ISO-8859-1).

    Raises InvalidConfig when a name stands there twice: Java would silently take the last one.
    """
    try:
        entries = list(javaproperties.parse(path.read_text(encoding="iso-8859-1")))
    except (OSError, javaproperties.InvalidUEscapeError) as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}") from error
    settings: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, javaproperties.KeyValue):
            if entry.key in settings:
                raise InvalidConfig(f"{path}: {entry.key} stands there twice; keep one of the lines", setting=entry.key)
            settings[entry.key] = entry.value
    return settings


def parse_flags(flags: Iterable[str]) -> dict[str, str]:
    """``KEY=VALUE`` texts as settings; InvalidConfig for one without ``=`` and for a repeated name."""
    settings: dict[str, str] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InvalidConfig(f"--config {flag!r}: KEY=VALUE is needed, such as log.retention.ms=60000")
        if name in settings:
            raise InvalidConfig(f"--config {name} is given twice; keep one of them", setting=name)
        settings[name] = value
    return settings


def broker_settings(path: Path, environment: Mapping[str, str], flags: Iterable[str]) -> Parsed:
    """One broker's checked settings. Relative ``log.dirs`` stay relative to the working directory, as in Kafka.

    They are checked as a whole only: a file may name a listener that just the environment's ``MK_INSECURE`` allows.
    Raises InvalidConfig.
    """
    in_file, by_flag = read_properties(path), parse_flags(flags)
    for name, text in (in_file | by_flag).items():
        if name not in table(BrokerConfig) and name not in KNOWN_TO_KAFKA_ONLY:
            parse_broker({name: text})  # raises, and names the nearest setting
    return parse_broker(in_file | environment_settings(environment) | by_flag, lenient=True)
