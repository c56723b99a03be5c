"""The judge of conversations beside Kafka has an opinion on each difference. It needs no broker to be tried.

Time alone can make any field of any answer differ, on a slow machine. The conversation is repeated then, unless the
judge itself fails.
"""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.schema import api_named
from tests.foreign.beside_kafka import Ask, Difference, Given, differences, purpose_of, seen
from tests.foreign.conversations import batch
from tests.foreign.group_conversations import slow_consumers
from tests.foreign.permissions import permissions
from tests.foreign.replicas import replicas
from tests.foreign.test_beside_kafka import CONVERSATIONS
from tests.kafka.test_codec import drawn

SEEDS, REQUESTS = range(3), 60
KINDS = {**CONVERSATIONS, "slow consumers": slow_consumers, "permissions": permissions, "replicas": replicas}


def an_answer(ask: Ask, random: Random) -> Message:
    """A response to the request whose fields are drawn; records are batches."""

    def with_batches(value: Any, name: str = "") -> Any:
        if name == "records":
            return memoryview(b"".join(batch(count) for count in random.choice(((), (1,), (2, 1)))))
        if isinstance(value, dict):
            return {key: with_batches(each, key) for key, each in value.items()}
        return [with_batches(each, name) for each in value] if isinstance(value, list) else value

    message: Message = with_batches(drawn(api_named(ask.api).response, ask.version, random))
    return message | ({"has waited": random.random() < 0.5} if ask.is_long_poll else {})


@pytest.mark.parametrize("kind", KINDS)
def test_every_difference_is_judged(kind: str):
    """For each request of a conversation any two answers may come, and one of them late."""
    for seed in SEEDS:
        random = Random(seed)
        for ask in itertools.islice(KINDS[kind](Random(seed), "x"), REQUESTS):
            theirs, ours = an_answer(ask, random), an_answer(ask, random)
            whole = Difference(ask, "", None, None, {}, Given())
            late = whole._replace(path="is answered", row=theirs)
            for each in (
                *differences(seen(ask, theirs, Given()), seen(ask, ours, Given()), whole),
                *(late._replace(kafka=is_theirs, ours=not is_theirs) for is_theirs in (True, False)),
            ):
                purpose_of(each)
