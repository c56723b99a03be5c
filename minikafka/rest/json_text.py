"""JSON as text: strict on the way in, never failing on the way out.

Refused on the way in: what is not UTF-8, NaN and Infinity, numbers that no double holds, lone surrogates, a member
that comes twice (one of the two would be lost in silence), nesting deeper than DEPTH_MAX. Whatever passes can be
written again.
"""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from typing import Any

# Far deeper than any record of a person, far from the recursion limit of any Python.
DEPTH_MAX = 64

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """One sentence about what is wrong with a text."""


def parse(data: bytes | memoryview) -> Any:
    """The value that the text stands for; NotJson with one sentence."""
    try:
        text = str(data, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotJson(f"byte {error.start} is not UTF-8") from None
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON from line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise NotJson(f"nested deeper than {DEPTH_MAX}") from None
    except NotJson:
        raise
    except ValueError:
        raise NotJson("a number has more digits than can be kept") from None
    if text.count("[") + text.count("{") > DEPTH_MAX and is_deep(value):
        raise NotJson(f"nested deeper than {DEPTH_MAX}")
    if _SURROGATE_ESCAPE.search(text):
        try:
            compact(value)
        except UnicodeEncodeError:
            raise NotJson("half of a surrogate pair is not a character") from None
    return value


def compact(value: Any) -> bytes:
    """The shortest text, in UTF-8. Raises TypeError or ValueError for what JSON cannot hold (from msgpack)."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def text_of(value: Any) -> bytes:
    """An answer's text: one line, ends with a newline for a terminal's sake."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, default=str).encode() + b"\n"


def is_deep(value: Any) -> bool:
    """Is it nested deeper than DEPTH_MAX?"""
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [inner for each in level for inner in _inside(each) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its members in order; NotJson when one comes twice, or its name is no text."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = sorted(name for name, _ in pairs)
        twice = next(name for name, following in pairwise(names) if name == following)
        raise NotJson(f"the member {twice[:60]!r} comes twice in one object")
    if not all(type(name) is str for name in found):
        raise NotJson("a member's name is no text")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise NotJson(f"{text[:40]} is too large for a number")
    return number


def _refused_constant(name: str) -> Any:
    raise NotJson(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=members, parse_float=_finite, parse_constant=_refused_constant)
