"""Requests that only one broker can answer: a partition's leader, or the coordinator of a group or transaction.

:class:`Leaders` sends each leader what concerns its partitions (offsets, epochs, deletions), and what failed with a
``retriable`` error again. :class:`Coordinator` finds the coordinator, sends it requests, and finds it again when it has
moved (S32).

Rules for this file: a request to a coordinator is sent again only on errors that say "not here, not yet" and when no
answer came. All that is sent through it may be sent twice: joining and syncing by a member id, heartbeats, leaving, and
committing the same offsets. Other errors are the caller's, with the outcome of all attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from minikafka import errors as kafka
from minikafka.client.caller import Caller
from minikafka.client.metadata import AbsentPartitions, Leader, Metadata
from minikafka.client.settings import ClientConfig
from minikafka.ports import World
from minikafka.tasks import until_ended
from minikafka.types import NO_NODE, Address, NodeId, TopicPartition
from minikafka.wire.apis import in_parts
from minikafka.wire.group_messages import FindCoordinatorRequest, FindCoordinatorResponse
from minikafka.wire.messages import READ_UNCOMMITTED, ListedOffset, ListOffsetsPartition, ListOffsetsRequest
from minikafka.wire.outcomes import EarlierAttempts, error_in

Item = TypeVar("Item")
MakeRequest = Callable[[list[tuple[TopicPartition, Item, Leader]]], Any]


def named(name: object, message: str) -> str:
    """The message with ``name`` in front, unless it says it by itself."""
    return (
        message if not name or message.startswith(f"{name}: ") or f"{str(name)!r}" in message else f"{name}: {message}"
    )


class Leaders:
    """Requests to the leaders of partitions, as metadata knows them."""

    def __init__(self, config: ClientConfig, world: World, metadata: Metadata) -> None:
        self._config = config
        self._world = world
        self._metadata = metadata

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
        absent = AbsentPartitions(self._metadata.view, self._world.clock)
        attempts = self._metadata.attempts(deadline)
        for topic in dict.fromkeys(partition.topic for partition in items):
            self._metadata.follow(topic)
        while True:
            missing = {partition: item for partition, item in items.items() if partition not in answers}
            errors = await self._round(missing, make, answers, deadline, results)
            if not errors:
                return {partition: answers[partition] for partition in items}
            unsure |= dict.fromkeys(partition for partition, error in errors.items() if error.outcome == kafka.UNKNOWN)
            for partition, error in errors.items():
                no_such = absent.error(partition)
                if no_such is not None or not error.retriable:
                    last = no_such or error
                    outcome = kafka.UNKNOWN if partition in unsure else last.outcome
                    raise type(last)(named(partition, last.message), outcome=outcome, **last.facts)
            self._metadata.refresh_soon()
            if not await attempts.pause():
                partition, error = next(iter(errors.items()))
                raise kafka.RequestTimedOut(
                    attempts.why or f"{partition}: no leader answered in time: {error.message}",
                    outcome=kafka.UNKNOWN if partition in unsure else error.outcome,
                    last=error.name,
                )

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, deadline: float, isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, ListedOffset]:
        """Offsets by time (milliseconds, or LATEST -1, EARLIEST -2, MAX_TIMESTAMP -3); raises as :meth:`ask`."""

        def make(group: list[tuple[TopicPartition, int, Leader]]) -> ListOffsetsRequest:
            asked = tuple(
                ListOffsetsPartition(
                    topic=each.topic, partition=each.partition, current_leader_epoch=leader.epoch, timestamp=timestamp
                )
                for each, timestamp, leader in group
            )
            return ListOffsetsRequest(isolation_level=isolation_level, partitions=asked)

        return await self.ask(times, make, deadline=deadline)

    async def _round(
        self,
        items: Mapping[TopicPartition, Item],
        make: MakeRequest[Item],
        answers: dict[TopicPartition, Any],
        deadline: float,
        results: str,
    ) -> dict[TopicPartition, kafka.ProtocolError]:
        """Ask each leader once, all at the same time; what went wrong by partition."""
        view = self._metadata.view
        groups: dict[int, list[tuple[TopicPartition, Item, Leader]]] = {}
        errors: dict[TopicPartition, kafka.ProtocolError] = {}
        for partition, item in items.items():
            leader = view.leader(*partition)
            if leader.node == NO_NODE or leader.node not in view.brokers:
                errors[partition] = view.errors.get(partition.topic) or kafka.LeaderNotAvailable("no leader is known")
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
        errors: dict[TopicPartition, kafka.ProtocolError],
        deadline: float,
        results: str,
    ) -> None:
        patience = min(deadline, self._world.clock.now() + self._config.request_timeout_ms / 1000)
        try:
            response = await self._metadata.call(node, make(group), deadline=patience)
        except kafka.ProtocolError as error:
            errors.update((partition, error) for partition, _, _ in group)
            return
        found = {TopicPartition(each.topic, each.partition): each for each in getattr(response, results)}
        for partition, _, _ in group:
            answer = found.get(partition)
            refusal = error_of_part(answer)
            if refusal is None:
                answers[partition] = answer
                continue
            errors[partition] = refusal
            if refusal.stale_metadata or isinstance(refusal, kafka.NetworkException):
                self._metadata.learn_leader(partition, getattr(answer, "current_leader", None))


def error_of_part(part: Any) -> kafka.ProtocolError | None:
    """Return the error of one part of a response; None as the part: the response lacks it."""
    return kafka.UnknownServerError("the answer says nothing of it") if part is None else error_in(part)


def error_within(
    response: Any,
    parts: str = "partitions",
    kinds: type[kafka.ProtocolError] | tuple[type[kafka.ProtocolError], ...] = kafka.ProtocolError,
) -> kafka.ProtocolError | None:
    """Return the error of a whole response, or else the first of these kinds among its parts."""
    errors = map(error_in, getattr(response, parts))
    return error_in(response) or next((each for each in errors if isinstance(each, kinds)), None)


def as_dict(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, None]:
    """An ordered set of partitions, given as tuples of any kind."""
    return {TopicPartition(*partition): None for partition in partitions}


def as_names(names: Iterable[str], method: str) -> tuple[str, ...]:
    """The names as a tuple. InvalidRequest for a single text: ``delete_topics("t1")`` would delete t, and 1."""
    if isinstance(names, str):
        raise kafka.InvalidRequest(f"{method} takes a list of names: [{names!r}]")
    return tuple(names)


GROUP_KEY, TRANSACTION_KEY = 0, 1
"""What FindCoordinator looks up."""

LOOK_AGAIN = (
    kafka.NotCoordinator,
    kafka.CoordinatorNotAvailable,
    kafka.CoordinatorLoadInProgress,
    kafka.NetworkException,
)

REFUSED = (kafka.InvalidGroupId, kafka.GroupAuthorizationFailed, kafka.TransactionalIdAuthorizationFailed)
"""Answers to FindCoordinator after which no other broker is asked, and none again."""

FIND_PATIENCE_MS = 3_000
"""How long one broker may take to say who coordinates, the first time round; twice as long in each round after that."""

FAILOVER_S = 2.0
"""How long a coordinator mostly takes to move."""

LOOK_AFTER_MS = 3_000
"""Pause between two checks whether the coordinator has moved, while a request to it has no answer."""

ErrorOf = Callable[[Any], kafka.ProtocolError | None]
"""What is wrong with an answer as a whole."""

error_of_coordinator: ErrorOf = partial(error_within, kinds=LOOK_AGAIN)
"""The error of a whole response, or one of a partition's that says that the coordinator is elsewhere."""


class Coordinator:
    """The coordinator of one group, or of one transactional id."""

    def __init__(
        self, group: str, config: ClientConfig, world: World, metadata: Metadata, *, key_type: int = GROUP_KEY
    ) -> None:
        self.group = group
        self._key_type = key_type
        self._named = f"group {group}" if key_type == GROUP_KEY else f"transactional id {group}"
        self._config = config
        self._world = world
        self._metadata = metadata
        self._caller = Caller(world)
        self._address: Address | None = None
        self._node: NodeId = NO_NODE
        self._rounds = 0
        """How often all brokers were asked in vain."""
        self._failing_since: float | None = None
        """When the first of the latest attempts failed."""

    async def ask(
        self,
        request: Any,
        *,
        deadline: float,
        patience_ms: int | None = None,
        error_of: ErrorOf = error_in,
        is_current: Callable[[], bool] = lambda: True,
        again: Callable[[], Any] | None = None,
        earlier: EarlierAttempts | None = None,
    ) -> Any:
        """The coordinator's answer, whatever error it carries but those that ask to look again.

        Args:
            request: The request.
            deadline: When to stop repeating it.
            patience_ms: How long one attempt may take (default: request_timeout_ms).
            error_of: What is wrong with a response as a whole.
            is_current: False once the request speaks for a membership that has ended: it is not repeated then. A
                coordinator that took over may give out the same generation again, to the same member.
            again: Makes the request of each further attempt; None: it is the same.
            earlier: Remembers the attempts, for a caller that needs to know of those whose response was lost.

        Raises:
            RequestTimedOut: At ``deadline``.
            IllegalGeneration: The membership ended.

        An error's outcome is that of all attempts: it is unknown if any attempt may have been written.
        """
        attempts = self._metadata.attempts(deadline)
        earlier = EarlierAttempts(request) if earlier is None else earlier
        while True:
            try:
                response = await self._attempt(request, deadline, patience_ms or self._config.request_timeout_ms)
                error = error_of(response)
                if not isinstance(error, LOOK_AGAIN):
                    self._failing_since = None
                    return earlier.answer(response)
                earlier.note(response)
            except (kafka.NetworkException, kafka.CoordinatorNotAvailable) as failed:
                error = failed
                earlier.note(failed)
            except kafka.ProtocolError as refusal:
                # Of this attempt, before it was sent: the client may not look up the coordinator, or log in, any more.
                refusal.outcome = earlier.outcome(refusal)
                raise
            if not isinstance(error, kafka.CoordinatorLoadInProgress):
                self._address = None
            self._look_for_a_controller()
            if not await attempts.pause():
                raise kafka.RequestTimedOut(
                    attempts.why or f"{self._named}: no coordinator answered in time: {error.message}",
                    outcome=earlier.outcome(error),
                    last=error.name,
                )
            if not is_current():
                raise kafka.IllegalGeneration(
                    f"{self._named}: the membership ended before a coordinator answered: {error.message}",
                    outcome=earlier.outcome(error),
                )
            if again is not None:
                request = again()

    async def locate(self, deadline: float) -> NodeId:
        """Which broker it is. RequestTimedOut when none knows by ``deadline``."""
        attempts = self._metadata.attempts(deadline)
        while True:
            try:
                await self._find(deadline)
            except (kafka.NetworkException, kafka.CoordinatorNotAvailable) as error:
                if not await attempts.pause():
                    why = attempts.why or f"{self._named}: no coordinator is known: {error.message}"
                    raise kafka.RequestTimedOut(why) from error
            else:
                return self._node

    def _look_for_a_controller(self) -> None:
        """Request metadata if attempts fail for longer than a failover takes: only it says that the quorum is lost."""
        now = self._world.clock.now()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now >= self._failing_since + FAILOVER_S:
            self._metadata.refresh_soon()

    async def _attempt(self, request: Any, deadline: float, patience_ms: int) -> Any:
        address = self._address or await self._find(deadline)
        until = min(deadline, self._world.clock.now() + patience_ms / 1000)
        answer = asyncio.ensure_future(self._caller.ask(address, request, deadline=until))
        successor = asyncio.ensure_future(self._successor(address, until))
        try:
            await asyncio.wait((answer, successor), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            message = f"{address} did not answer, and {successor.result()} coordinates {self._named} now"
            raise kafka.NetworkException(message, outcome=kafka.UNKNOWN)
        finally:
            answer.cancel()
            successor.cancel()
            await until_ended((answer, successor))

    async def _successor(self, address: Address, deadline: float) -> Address:
        """Return the coordinator's address once it is no longer ``address``.

        A coordinator holds a join for minutes, and one that was cut off never answers it.
        """
        while True:
            await asyncio.sleep(LOOK_AFTER_MS / 1000)
            # That the lookup is refused says nothing of the request.
            with contextlib.suppress(kafka.ProtocolError):
                found = await self._find(deadline)
                if found != address:
                    return found

    async def _find(self, deadline: float) -> Address:
        """Ask one broker after the other. CoordinatorNotAvailable when none knows it yet."""
        last: kafka.ProtocolError = kafka.CoordinatorNotAvailable(f"{self._named}: no broker is known")
        # One that is silent must not take a member's whole session.
        patience_ms = min(self._config.request_timeout_ms, FIND_PATIENCE_MS * 2 ** min(self._rounds, 10))
        for address in self._metadata.any_addresses():
            until = min(deadline, self._world.clock.now() + patience_ms / 1000)
            try:
                response: FindCoordinatorResponse = await self._caller.call(
                    address, FindCoordinatorRequest(keys=(self.group,), key_type=self._key_type), deadline=until
                )
            except kafka.NetworkException as error:
                last = error
                continue
            (found,) = response.coordinators
            refusal = error_in(found)
            if refusal is None:
                self._rounds = 0
                self._address, self._node = Address(found.host, found.port), found.node_id
                return self._address
            if isinstance(refusal, REFUSED):
                raise refusal
            last = refusal
        self._rounds += 1
        raise kafka.CoordinatorNotAvailable(last.message)
