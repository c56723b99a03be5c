"""What one setting is: a dataclass field that carries its Kafka name, its range and its meaning; and a text for it.

Rule for this file: it knows no setting by name.
"""

from __future__ import annotations

import re
import sys
from dataclasses import field
from typing import Any

from minikafka.errors import InvalidConfig

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
DAY_MS = 86_400_000
_SHOWN_MAX = 40


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


NO_EFFECT = "no effect in minikafka; accepted and shown for Kafka's tools"


def kept_setting(name: str, default: Any, *, low: int | None = None) -> Any:
    """A setting of Kafka's that is checked, stored and shown, and that changes nothing here."""
    return setting(name, default, NO_EFFECT, low=low)


def parsed_value(each: Any, text: str) -> Any:
    """The value that ``text`` gives the field ``each``; InvalidConfig names it and what would be right."""
    name, low, high = each.metadata["name"], each.metadata["low"], each.metadata["high"]
    if isinstance(each.default, int | float) and not isinstance(each.default, bool):
        return _parsed_number(each, name, text, low, high)
    text = text.strip()
    if isinstance(each.default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidConfig(f"{name}={text!r}: say true or false", setting=name)
        return text.lower() == "true"
    if each.metadata["one_of"] and text not in each.metadata["one_of"]:
        raise InvalidConfig(f"{name}={text!r}: one of {', '.join(each.metadata['one_of'])} is needed", setting=name)
    return text


# What Python's int and float also take (1_000, spaces, digits of other scripts, nan) is refused: Kafka's readers of the
# same text would refuse it, or read another number.
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_FRACTION = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,19})?([eE][-+]?[0-9]{1,3})?")


def _parsed_number(each: Any, name: str, text: str, low: float | None, high: float | None) -> int | float:
    is_whole = isinstance(each.default, int)
    if not (_WHOLE if is_whole else _FRACTION).fullmatch(text):
        kind = "a whole number" if is_whole else "a number"
        shown = repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")
        raise InvalidConfig(
            f"{name}={shown}: {kind} in the digits 0 to 9 is needed, with nothing around it", setting=name
        )
    number = int(text) if is_whole else float(text)
    highest = high if high is not None else LONG_MAX if is_whole else sys.float_info.max
    if (low is not None and number < low) or number > highest:
        upper = f" and at most {highest}" if high is not None or number > highest else ""
        raise InvalidConfig(f"{name}={text}: at least {low}{upper} is needed", setting=name)
    return number
