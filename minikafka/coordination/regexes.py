"""Regular expressions of clients, in RE2's syntax: no expression takes longer than what it is matched with is long.

Rule for this file: an expression comes from outside. Its length and the memory of its automaton are limited before it
is matched.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from minikafka.errors import InvalidRegularExpression

BYTES_MAX: Final = 2**15 - 65
"""Of an expression: with a name beside it, it still fits into a record."""

MEMORY_BYTES_MAX: Final = 1 << 20
"""Of one compiled expression."""


@functools.lru_cache(maxsize=256)
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
        why = error.args[0] if error.args else error
        raise InvalidRegularExpression(
            f"{field}={text[:100]!r} is no regular expression of RE2: {_text(why)}"
        ) from error


def _text(why: Any) -> str:
    return why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
