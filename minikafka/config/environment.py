"""Settings that an environment names, as the Apache image reads them.

Rule for this file: the environment comes in as a mapping; nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from minikafka.config.broker import BrokerConfig, table
from minikafka.config.names import OWN_PREFIX


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
