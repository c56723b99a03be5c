"""Regular expressions that members of the consumer protocol subscribe to (KIP-848): RE2's, matched in linear time.

An expression matches whole names of topics, internal topics too, as in Kafka: franz-go relies on that.

Rules for this file: an expression comes from outside. Its length and the memory of its automaton are limited before it
is matched, and no expression can take longer than the names are long.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from minikafka.errors import InvalidRegularExpression
from minikafka.groups.consumer.group import Topics
from minikafka.groups.limits import NAME_BYTES_MAX

MEMORY_BYTES_MAX: Final = 1 << 20
"""Of one compiled expression."""


def check_regex(text: str) -> None:
    """InvalidRegularExpression unless RE2 accepts ``text``."""
    _compiled(text)


class Regexes:
    """What expressions match among the present topics, remembered until the topics change."""

    def __init__(self) -> None:
        self._topics: Topics = {}
        self._found: dict[str, tuple[str, ...]] = {}

    def matched(self, text: str, topics: Topics) -> tuple[str, ...]:
        """The names of topics that match, sorted."""
        if topics is not self._topics:
            self._topics, self._found = topics, {}
        found = self._found.get(text)
        if found is None:
            pattern = _compiled(text)
            found = self._found[text] = tuple(sorted(name for name in topics if pattern.fullmatch(name)))
        return found


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> Any:
    # Few clusters have such members; the library takes a megabyte.
    import re2  # noqa: PLC0415

    if len(text.encode()) > NAME_BYTES_MAX:
        raise InvalidRegularExpression(
            f"subscribed_topic_regex has {len(text.encode())} bytes, {NAME_BYTES_MAX} at most; shorten it"
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES_MAX
    try:
        return re2.compile(text, options)
    except re2.error as error:
        why = error.args[0] if error.args else error
        raise InvalidRegularExpression(
            f"subscribed_topic_regex={text[:100]!r} is no regular expression of RE2: {_text(why)}"
        ) from error


def _text(why: Any) -> str:
    return why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
