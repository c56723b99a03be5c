"""What the application asked to read: topics, all topics of a pattern, or partitions chosen by hand.

Rule for this file: it is one of the three, and says so by InvalidRequest before anything has changed. Who reads which
partition then is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from minikafka.client.structs import ConsumerRebalanceListener
from minikafka.errors import InvalidRequest


class Subscription:
    """A consumer's choice at present."""

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}
        """Subscribed to, in the order given; of a pattern those that match at present."""
        self.pattern: re.Pattern[str] | None = None
        self.listener: ConsumerRebalanceListener | None = None
        self._by_hand = False

    def __bool__(self) -> bool:
        """Is something subscribed to?"""
        return bool(self.topics) or self.pattern is not None

    def choose_by_hand(self) -> None:
        """Partitions are assigned by the application from now on."""
        if self:
            raise InvalidRequest("the consumer is subscribed to topics: unsubscribe() before assign()")
        self._by_hand = True

    def choose(self, topics: Iterable[str], pattern: str | None, listener: ConsumerRebalanceListener | None) -> None:
        """These topics, or all whose whole name matches ``pattern``; instead of an earlier subscription."""
        if isinstance(topics, str):
            raise InvalidRequest(f"subscribe takes a list of topics: [{topics!r}]")
        if self._by_hand:
            raise InvalidRequest("the consumer has partitions assigned: unsubscribe() before subscribe()")
        if listener is not None and not isinstance(listener, ConsumerRebalanceListener):
            raise InvalidRequest(f"listener={listener!r}: a ConsumerRebalanceListener is needed")
        chosen = dict.fromkeys(topics)
        if bool(chosen) == (pattern is not None):
            raise InvalidRequest("subscribe needs at least one topic, or a pattern, and not both")
        try:
            self.pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise InvalidRequest(f"pattern={pattern!r} is no regular expression: {error}") from error
        self.topics = chosen
        self.listener = listener

    def clear(self) -> None:
        """Nothing is chosen."""
        self.topics = {}
        self.pattern = None
        self.listener = None
        self._by_hand = False

    def match(self, pattern: re.Pattern[str], names: Sequence[str]) -> bool:
        """The cluster has these topics; True when others than before match the present pattern."""
        matching = dict.fromkeys(name for name in sorted(names) if pattern.fullmatch(name))
        if matching == self.topics or pattern is not self.pattern:
            return False
        self.topics = matching
        return True
