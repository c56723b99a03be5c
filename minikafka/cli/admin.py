"""How commands reach a cluster with an admin client, and the options and arguments that several of them take."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from minikafka import AdminClient
from minikafka.addresses import is_number
from minikafka.cli.running import ANSWER_TIMEOUT_MS, Failure, Misuse, somebody_listens
from minikafka.cli.tls import client_settings
from minikafka.errors import in_words
from minikafka.types import TopicPartition
from minikafka.wire.messages import DescribedTopic

Result = TypeVar("Result")


async def with_admin(bootstrap: str, work: Callable[[AdminClient], Awaitable[Result]]) -> Result:
    """Connect, work, close. Fails at once when nobody listens at ``bootstrap``."""
    settings = client_settings(bootstrap)
    await somebody_listens(bootstrap)
    async with AdminClient(**settings, default_api_timeout_ms=ANSWER_TIMEOUT_MS) as admin:
        return await work(admin)


def parse_partition(text: str) -> TopicPartition:
    """``orders-0`` as a partition; Misuse for anything else."""
    topic, dash, number = text.rpartition("-")
    if not dash or not topic or not is_number(number):
        raise Misuse(f"{text!r} is not a partition: TOPIC-NUMBER is needed, such as orders-0")
    return TopicPartition(topic, int(number))


def read_json(path: Path, member: str) -> list[Any]:
    """The list ``member`` of a JSON file; Misuse says what is wrong with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Misuse(f"{path} cannot be read as JSON: {in_words(error)}") from error
    if not isinstance(found, dict) or not isinstance(found.get(member), list):
        raise Misuse(f'{path}: an object with a list "{member}" is needed')
    entries: list[Any] = found[member]
    return entries


def partition_in(entry: Any, path: Path) -> TopicPartition:
    """The partition that an entry of a JSON file names."""
    topic, number = (entry.get("topic"), entry.get("partition")) if isinstance(entry, dict) else (None, None)
    if not isinstance(topic, str) or not isinstance(number, int):
        raise Misuse(f'{path}: each entry needs "topic" and "partition", {json.dumps(entry)} has not')
    return TopicPartition(topic, number)


def partitions_of(topics: Iterable[DescribedTopic]) -> list[TopicPartition]:
    """Every partition of some topics."""
    return [TopicPartition(topic.topic, each.partition) for topic in topics for each in topic.partitions]


def fail_with(refused: dict[TopicPartition, str], what: str) -> None:
    """Failure naming each partition that was refused; nothing when none was."""
    if refused:
        reasons = [why if str(name) in why else f"{name}: {why}" for name, why in sorted(refused.items())]
        raise Failure(f"{what}: {'; '.join(reasons)}")
