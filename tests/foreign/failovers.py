"""Conversations about groups and transactions whose coordinator may end: those with one broker, sent to where it is.

Each side has its coordinators on brokers of its own: a request goes to the one that the side has found last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from minikafka.types import NodeId
from minikafka.wire.kafka.codec import Message
from tests.foreign.beside_kafka import Ask, Given
from tests.foreign.replicas import NODES

GROUP_APIS = frozenset(
    {
        *("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch", "OffsetDelete"),
        *("ConsumerGroupHeartbeat", "TxnOffsetCommit"),
    }
)
TRANSACTION_APIS = frozenset({"InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"})
NAMES_OF = {
    "DescribeGroups": "groups",
    "ConsumerGroupDescribe": "group_ids",
    "DescribeTransactions": "transactional_ids",
}
"""Requests that may name several, and where: here they name one that the conversation has."""

COORDINATOR, DOWN = "coordinator", "down"


def is_down(given: Given, node: NodeId) -> bool:
    """Return True if the side's broker does not run."""
    return bool(given.values.get((DOWN, "")) == node)


class Coordinated:
    """A conversation with one broker, as one with three. What is not about one coordinator is left out."""

    def __init__(self, asks: Iterator[Ask], ports_down: Collection[int]) -> None:
        """``ports_down``: of the brokers that do not run, which may still be named as coordinators."""
        self._asks = asks
        self._ports_down = ports_down
        self._key_types: dict[str, int] = {}

    @property
    def first_key(self) -> str:
        """The first group or transactional id."""
        return next(iter(self._key_types))

    def found(self) -> Iterator[Ask]:
        """Find all coordinators again, and wait until they answer."""
        for key, key_type in self._key_types.items():
            yield self._finding(key, key_type)
            if key_type == 0:
                yield self._routed(Ask("DescribeGroups", 5, {"groups": [key]}), key)

    def __iter__(self) -> Iterator[Ask]:
        for ask in self._asks:
            if ask.api == "CreateTopics":
                topics = [{**each, "replication_factor": len(NODES)} for each in ask.message["topics"]]
                yield ask._replace(message={**ask.message, "topics": topics}, broker=_living)
            elif ask.api == "FindCoordinator":
                self._key_types |= dict.fromkeys(ask.message["coordinator_keys"], ask.message["key_type"])
                yield from self.found()
            else:
                named = self._named(ask)
                if named is not None:
                    yield named

    def _named(self, ask: Ask) -> Ask | None:
        message = ask.message
        names = NAMES_OF.get(ask.api)
        if names is not None:
            known = [each for each in message[names] if each in self._key_types]
            return self._routed(ask._replace(message={**message, names: known[:1]}), known[0]) if known else None
        name = "group_id" if ask.api in GROUP_APIS else "transactional_id" if ask.api in TRANSACTION_APIS else ""
        key = message.get(name)
        return self._routed(ask, key) if key in self._key_types else None

    def _routed(self, ask: Ask, key: str) -> Ask:
        def coordinator(given: Given) -> Any:
            return given.values.get((COORDINATOR, key), 1)

        return ask._replace(broker=coordinator)

    def _finding(self, key: str, key_type: int) -> Ask:
        def learn(given: Given, answer: Message) -> None:
            given.learn(COORDINATOR, key, answer["coordinators"][0]["node_id"])

        def is_there(answer: Message) -> bool:
            [found] = answer["coordinators"]
            return not found["error_code"] and found["port"] not in self._ports_down

        message = {"key_type": key_type, "coordinator_keys": [key]}
        return Ask("FindCoordinator", 4, message, learn, broker=_living, blurred=frozenset({"node_id"}), until=is_there)


def _living(given: Given) -> NodeId:
    return next(node for node in NODES if not is_down(given, node))
