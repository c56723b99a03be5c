"""What one setting is: a dataclass field that carries its Kafka name, its range and its meaning; and a text for it.

Rule for this file: it knows no setting by name.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

from minikafka.errors import InvalidConfig

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
DAY_MS = 86_400_000


def setting(
    name: str,
    default: Any,
    meaning: str,
    *,
    low: int | None = None,
    high: int | None = None,
    one_of: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that carries its Kafka name, range and meaning."""
    return field(
        default=default, metadata={"name": name, "meaning": meaning, "low": low, "high": high, "one_of": one_of}
    )


def parsed_value(each: Any, text: str) -> Any:
    """The value that ``text`` gives the field ``each``; InvalidConfig names it and what would be right."""
    name, low, high = each.metadata["name"], each.metadata["low"], each.metadata["high"]
    text = text.strip()
    if isinstance(each.default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidConfig(f"{name}={text!r}: say true or false", setting=name)
        return text.lower() == "true"
    if isinstance(each.default, int):
        try:
            number = int(text)
        except ValueError:
            raise InvalidConfig(f"{name}={text!r}: a whole number is needed", setting=name) from None
        if (low is not None and number < low) or number > (high if high is not None else LONG_MAX):
            upper = "" if high is None else f" and at most {high}"
            raise InvalidConfig(f"{name}={number}: at least {low}{upper} is needed", setting=name)
        return number
    if isinstance(each.default, float):
        return _parsed_fraction(name, text, low, high)
    if each.metadata["one_of"] and text not in each.metadata["one_of"]:
        raise InvalidConfig(f"{name}={text!r}: one of {', '.join(each.metadata['one_of'])} is needed", setting=name)
    return text


def _parsed_fraction(name: str, text: str, low: float, high: float | None) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= (float(LONG_MAX) if high is None else high):  # nan is not either
        upper = "" if high is None else f" and at most {high}"
        raise InvalidConfig(f"{name}={text!r}: a number of at least {low}{upper} is needed", setting=name)
    return number
