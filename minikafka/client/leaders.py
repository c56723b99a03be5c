"""Questions that only leaders answer (offsets, epochs, deletions): asked by leader, asked again by ``retriable``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from minikafka.client.caller import Backoff, in_parts
from minikafka.client.cluster_view import Leader
from minikafka.client.metadata import Metadata
from minikafka.client.settings import ClientConfig
from minikafka.errors import (
    UNKNOWN,
    LeaderNotAvailable,
    NetworkException,
    ProtocolError,
    RequestTimedOut,
    UnknownServerError,
)
from minikafka.ports import World
from minikafka.types import NO_NODE, TopicPartition
from minikafka.wire.outcomes import error_in

Item = TypeVar("Item")
MakeRequest = Callable[[list[tuple[TopicPartition, Item, Leader]]], Any]


def named(name: object, message: str) -> str:
    """The message with ``name`` in front, unless it says it by itself."""
    return message if message.startswith(f"{name}: ") or f"{str(name)!r}" in message else f"{name}: {message}"


class Leaders:
    """Asks the leaders of partitions, as metadata knows them."""

    def __init__(self, config: ClientConfig, world: World, metadata: Metadata) -> None:
        self._config = config
        self._world = world
        self._metadata = metadata
        self._backoff = Backoff(world.random, base_ms=config.retry_backoff_ms, max_ms=config.retry_backoff_max_ms)

    async def ask(
        self,
        items: Mapping[TopicPartition, Item],
        make: MakeRequest[Item],
        *,
        deadline: float,
        results: str = "partitions",
    ) -> dict[TopicPartition, Any]:
        """One successful answer per partition. ``results``: the member of the response that lists them.

        Raises the first error that a retry cannot help, RequestTimedOut at ``deadline``. Its outcome is unknown once
        any attempt's was: a later refusal says nothing of an earlier one.
        """
        answers: dict[TopicPartition, Any] = {}
        unsure: dict[TopicPartition, None] = {}
        attempts = 0
        for topic in dict.fromkeys(partition.topic for partition in items):
            self._metadata.follow(topic)
        while True:
            missing = {partition: item for partition, item in items.items() if partition not in answers}
            errors = await self._round(missing, make, answers, deadline, results)
            if not errors:
                return {partition: answers[partition] for partition in items}
            unsure |= dict.fromkeys(partition for partition, error in errors.items() if error.outcome == UNKNOWN)
            for partition, error in errors.items():
                if not error.retriable:
                    outcome = UNKNOWN if partition in unsure else error.outcome
                    raise type(error)(named(partition, error.message), outcome=outcome, **error.facts)
            self._metadata.refresh_soon()
            attempts += 1
            pause_s = self._backoff.pause_s(attempts)
            if self._world.clock.now() + pause_s >= deadline:
                partition, error = next(iter(errors.items()))
                raise RequestTimedOut(
                    f"{partition}: no leader answered in time: {error.message}",
                    outcome=UNKNOWN if partition in unsure else error.outcome,
                    last=error.name,
                )
            await asyncio.sleep(pause_s)

    async def _round(
        self,
        items: Mapping[TopicPartition, Item],
        make: MakeRequest[Item],
        answers: dict[TopicPartition, Any],
        deadline: float,
        results: str,
    ) -> dict[TopicPartition, ProtocolError]:
        """Ask each leader once, all at the same time; what went wrong by partition."""
        view = self._metadata.view
        groups: dict[int, list[tuple[TopicPartition, Item, Leader]]] = {}
        errors: dict[TopicPartition, ProtocolError] = {}
        for partition, item in items.items():
            leader = view.leader(*partition)
            if leader.node == NO_NODE or leader.node not in view.brokers:
                errors[partition] = view.errors.get(partition.topic) or LeaderNotAvailable("no leader is known")
            else:
                groups.setdefault(leader.node, []).append((partition, item, leader))
        calls = [
            self._ask_node(node, part, make, answers, errors, deadline, results)
            for node, group in groups.items()
            for part in in_parts(group)
        ]
        await asyncio.gather(*calls)
        return errors

    async def _ask_node(
        self,
        node: int,
        group: list[tuple[TopicPartition, Item, Leader]],
        make: MakeRequest[Item],
        answers: dict[TopicPartition, Any],
        errors: dict[TopicPartition, ProtocolError],
        deadline: float,
        results: str,
    ) -> None:
        patience = min(deadline, self._world.clock.now() + self._config.request_timeout_ms / 1000)
        try:
            response = await self._metadata.call(node, make(group), deadline=patience)
        except ProtocolError as error:
            errors.update((partition, error) for partition, _, _ in group)
            return
        found = {TopicPartition(each.topic, each.partition): each for each in getattr(response, results)}
        for partition, _, _ in group:
            answer = found.get(partition)
            refusal = error_in(answer) if answer is not None else UnknownServerError("the answer says nothing of it")
            if refusal is None:
                answers[partition] = answer
                continue
            errors[partition] = refusal
            if refusal.stale_metadata or isinstance(refusal, NetworkException):
                self._metadata.learn_leader(partition, getattr(answer, "current_leader", None))


def as_dict(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, None]:
    """An ordered set of partitions, given as tuples of any kind."""
    return {TopicPartition(*partition): None for partition in partitions}
