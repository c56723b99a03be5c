"""Regular expressions of clients, in RE2's syntax: none backtracks.

Rules for this file:

1. An expression comes from outside. Its length and the memory of its automaton are limited before it is matched.
2. The time of a match is linear in the name, and in the automaton as well: an expression of a hundred characters can
   have one of 45,000 instructions, and takes 30 ms for a name of 249 characters. So what is matched in one turn of the
   loop is limited by its cost, which is known before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, Final

from minikafka.errors import InvalidRegularExpression

BYTES_MAX: Final = 2**15 - 65
"""Of an expression: with a name beside it, it still fits into a record."""

MEMORY_BYTES_MAX: Final = 1 << 20
"""Of one compiled expression."""

SHOWN_MAX: Final = 100
"""Characters of an expression, and of what is wrong with it, in an error."""

COST_MAX: Final = 4_000_000
"""Of the matches in one turn of the loop: instructions of the automaton, times characters. Each costs 3 ns at worst,
and much less for most expressions."""


def cost_of(pattern: Any, characters: int) -> int:
    """The cost of matching names that have so many characters together."""
    return int(pattern.programsize) * characters


def parts(pattern: Any, names: Iterable[str]) -> Iterator[list[str]]:
    """The names in parts, each of which costs COST_MAX at most or is one name."""
    part: list[str] = []
    characters = 0
    for name in names:
        if part and cost_of(pattern, characters + len(name)) > COST_MAX:
            yield part
            part, characters = [], 0
        part.append(name)
        characters += len(name)
    if part:
        yield part


@functools.lru_cache(maxsize=64)
def compiled(text: str, field: str) -> Any:
    """Compile the expression in a request's ``field``. Raises InvalidRegularExpression, which names the field."""
    # Few clients send one; the library takes a megabyte.
    import re2  # noqa: PLC0415

    if len(text.encode()) > BYTES_MAX:
        raise InvalidRegularExpression(f"{field} has {len(text.encode())} bytes, {BYTES_MAX} at most; shorten it")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES_MAX
    try:
        return re2.compile(text, options)
    except re2.error as error:
        # The library's reason may end with the whole expression.
        why = _text(error.args[0] if error.args else error)[:SHOWN_MAX]
        raise InvalidRegularExpression(
            f"{field}={text[:SHOWN_MAX]!r} is no regular expression of RE2: {why}"
        ) from error


def _text(why: Any) -> str:
    return why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
