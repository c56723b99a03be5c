"""Regular expressions that members of the consumer protocol subscribe to (KIP-848): RE2's, matched in linear time.

An expression matches whole names of topics, internal topics too, as in Kafka: franz-go relies on that.

Rule for this file: what is matched is remembered until the topics change.
"""

from __future__ import annotations

from typing import Final

from minikafka.coordination.regexes import compiled
from minikafka.groups.consumer.group import Topics

FIELD: Final = "subscribed_topic_regex"


def check_regex(text: str) -> None:
    """InvalidRegularExpression unless RE2 accepts ``text``."""
    compiled(text, FIELD)


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
            pattern = compiled(text, FIELD)
            found = self._found[text] = tuple(sorted(name for name in topics if pattern.fullmatch(name)))
        return found
