"""Conversations with fetches that wait: drawn from a seed as in ``conversations.py``.

What ends such a wait comes from another connection: an append, the end of a transaction, or a topic that is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from minikafka.wire.kafka.codec import Message
from tests.foreign.beside_kafka import Ask, Given, Learn, Own
from tests.foreign.conversations import Batch, Draw, batch, created, learn_producer, some, topic_id, version

BY_ID_FROM = 13
SHORT_MS, LONG_MS = 300, 50_000
"""A conversation waits for the end of the short wait, and ends before the long one."""
PAUSE_S = 0.15
"""Both brokers do the rest of some requests after their answer."""


def waits(random: Random, unique: str) -> Iterator[Ask]:
    """Fetches of two consumers wait for records, beside appends, transactions and topics that go and grow."""
    names = [f"{letter}{unique}" for letter in "pqr"]
    transactional = f"x{unique}"
    by_id = random.random() < 0.5
    clients = ("one", "two")
    epochs = dict.fromkeys(clients, 0)
    levels = {client: random.choice([0, 1]) for client in clients}
    open_in: set[str] = set()
    """Partitions with an open transaction: what is beyond their last stable offset Kafka answers at once, ours waits."""
    known = dict.fromkeys(names[:2], 2)
    """Topics that there are, and their partitions. What there is not ends no wait in Kafka, in ours it does."""
    lost = False
    """A session may have partitions of a topic that is gone."""
    goes = not by_id or random.random() < 0.5
    """Topics are deleted. A session by ids ends then in ours, in Kafka it does not."""
    ends_transactions = random.random() < 0.5
    """The end of a transaction ends all waits in Kafka, whatever there is to read then."""
    yield created(random, *((name, 2, {}) for name in names[:2]))
    yield Ask("FindCoordinator", 4, {"key_type": 1, "coordinator_keys": [transactional]})
    message = {"transactional_id": transactional, "transaction_timeout_ms": 60_000}
    yield Ask("InitProducerId", 4, message, learn_producer(transactional))

    def where(name: str) -> Message:
        return {"name": name, "topic": name, "topic_id": topic_id(name)}

    def learn_end(place: str, count: int) -> Learn:
        def learn(given: Given, answer: Message) -> None:
            base = answer["responses"][0]["partition_responses"][0]["base_offset"]
            given.learn("end", place, base + count)

        return learn

    def row(name: str, number: int, client: str, *, is_limited: bool = True) -> Message:
        place = f"{name}-{number}"
        end, beyond = Own("end", place, 0), Own("end", place, 0, 1)
        offsets = [end, end, end, end, 0, 1, beyond]
        if levels[client] and place in open_in:
            offsets = [0, beyond, *[Own("stable", place, 0)] * 5]
        return {
            "partition": number,
            "current_leader_epoch": random.choice([-1] * 10 + [0, 0, 3]),
            "fetch_offset": random.choice(offsets),
            "partition_max_bytes": random.choice([100_000, 100_000, 100_000, 100, 1] if is_limited else [100_000]),
        }

    def wanted(names: list[str], client: str, *, is_limited: bool = True) -> list[Message]:
        """Partitions of these topics. ``is_limited``: some with room for less than the next batch."""

        def rows(name: str) -> list[Message]:
            return [row(name, each, client, is_limited=is_limited) for each in some(random, list(range(known[name])))]

        return [{**where(name), "partitions": rows(name)} for name in names]

    def unknown(name: str, client: str) -> Message:
        return {**where(name), "partitions": [row(name, 9 if name in known else 0, client)]}

    def fetch_version() -> int:
        return random.choice([each for each in range(7, 19) if (each >= BY_ID_FROM) == by_id])

    def waiting(client: str, topics: list[Message], **more: Any) -> Message:
        return {
            "replica_id": -1,
            "max_wait_ms": random.choice([LONG_MS, LONG_MS, LONG_MS, SHORT_MS, 0]),
            "min_bytes": random.choice([1, 0] if ends_transactions else [1, 1, 75, 100, 200, 400, 1000, 10**6, 0, -1]),
            "max_bytes": random.choice([2**20, 2**20, 2**20, 2**20, 150, 1]),
            "isolation_level": levels[client],
            "session_epoch": -1,
            "topics": topics,
            **more,
        }

    def asked(client: str, message: Message, learn: Learn | None = None) -> Ask:
        pause_s = SHORT_MS / 1000 * 1.3 if message["max_wait_ms"] == SHORT_MS else 0.0
        return Ask("Fetch", fetch_version(), message, learn, client, pause_s)

    def fetch() -> Iterator[Ask]:
        client = random.choice(clients)
        topics = wanted(some(random, list(known), (1, 1, 2, 2, 3)), client)
        if not topics or random.random() < 0.1:
            shorter = {"max_wait_ms": random.choice([SHORT_MS, 0])}
            yield asked(client, waiting(client, [*topics, unknown(random.choice(names), client)], **shorter))
        else:
            yield asked(client, waiting(client, topics))

    def fetch_in_session() -> Iterator[Ask]:
        client = random.choice(clients)
        if not known:
            # Without partitions ours has no session, Kafka an empty one.
            yield from fetch()
            return
        at = epochs[client] = random.choice([epochs[client] + 1] * 8 + [1]) if epochs[client] else 1
        if at == 1:
            # The first request of a session: all of it.
            topics = wanted(some(random, list(known), (1, 2, 2)), client, is_limited=False)

            def learn(given: Given, answer: Message) -> None:
                given.learn("session", client, answer["session_id"])

            yield asked(client, waiting(client, topics, session_id=0, session_epoch=0, max_wait_ms=0), learn)
            return
        topics = wanted(some(random, list(known), (0, 0, 1, 2)), client, is_limited=False)
        session = Own("session", client, 0)
        shorter = {"max_wait_ms": SHORT_MS} if lost else {}
        yield asked(client, waiting(client, topics, session_id=session, session_epoch=at - 1, **shorter))

    def produce() -> Iterator[Ask]:
        name, number, count = random.choice(names), random.choice([0, 1]), random.choice([1, 1, 2, 5])
        rows = [{"index": number, "records": [batch(count)]}]
        message = {
            "acks": random.choice([-1, 1]),
            "timeout_ms": 5000,
            "topic_data": [where(name) | {"partition_data": rows}],
        }
        yield Ask("Produce", version(random, "Produce", 3), message, learn_end(f"{name}-{number}", count))

    def as_producer() -> Message:
        return {
            "transactional_id": transactional,
            "producer_id": Own("producer", transactional, -1),
            "producer_epoch": Own("epoch", transactional, -1),
        }

    def produce_in_transaction() -> Iterator[Ask]:
        name, number, count = random.choice(names[:2]), random.choice([0, 1]), random.choice([1, 2])
        old = {f"v3_and_below_{key}": value for key, value in as_producer().items()}
        yield Ask("AddPartitionsToTxn", 3, {**old, "v3_and_below_topics": [{"name": name, "partitions": [number]}]})
        sent = Batch(transactional, count)
        sent.place, sent.is_transactional = f"{name}-{number}", True
        rows = [{"index": number, "records": sent}]
        message = {"transactional_id": transactional, "acks": -1, "timeout_ms": 5000}
        end = learn_end(sent.place, count)
        is_first = sent.place not in open_in
        open_in.add(sent.place)

        def learn(given: Given, answer: Message) -> None:
            sent.learn(given, answer)
            end(given, answer)
            if is_first:
                given.learn("stable", sent.place, answer["responses"][0]["partition_responses"][0]["base_offset"])

        topics = [where(name) | {"partition_data": rows}]
        yield Ask("Produce", version(random, "Produce", 3), {**message, "topic_data": topics}, learn)

    def end_transaction() -> Iterator[Ask]:
        message = {**as_producer(), "committed": random.random() < 0.6}
        open_in.clear()
        yield Ask("EndTxn", 3, message, learn_producer(transactional), pause_s=PAUSE_S)

    def delete_records() -> Iterator[Ask]:
        name, number = random.choice(names[:2]), random.choice([0, 1])
        rows = [{"partition_index": number, "offset": random.choice([-1, 1])}]
        yield Ask("DeleteRecords", 2, {"topics": [{"name": name, "partitions": rows}], "timeout_ms": 3000})

    def delete_topic() -> Iterator[Ask]:
        nonlocal lost
        name = random.choice(names)
        lost = known.pop(name, None) is not None or lost
        places = [f"{name}-{number}" for number in range(3)]
        open_in.difference_update(places)

        def learn(given: Given, _answer: Message) -> None:
            for place in places:
                given.learn("end", place, 0)

        yield Ask("DeleteTopics", 5, {"topic_names": [name], "timeout_ms": 9000}, learn, pause_s=2 * PAUSE_S)

    def create_topic() -> Iterator[Ask]:
        name = random.choice(names)
        known.setdefault(name, 2)
        yield created(random, (name, 2, {}))._replace(pause_s=2 * PAUSE_S)

    def grow() -> Iterator[Ask]:
        name = random.choice(names)
        if name in known:
            known[name] = 3
        message = {"topics": [{"name": name, "count": 3, "assignments": None}], "timeout_ms": 9000}
        yield Ask("CreatePartitions", 3, message, pause_s=2 * PAUSE_S)

    in_session = fetch_in_session if not (by_id and goes) else fetch
    kinds = (
        *(fetch, fetch, fetch, in_session, in_session, produce, produce, produce),
        *((produce_in_transaction, end_transaction) if ends_transactions else (produce,)),
    )
    rare = (delete_records, delete_topic if goes else grow, create_topic, grow)
    while True:
        yield from random.choice(rare if random.random() < 0.12 else kinds)()


WAITS: dict[str, Draw] = {"waits": waits}
