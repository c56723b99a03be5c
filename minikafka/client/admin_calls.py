"""How the admin client's operations reach brokers (any, one, the controller), and wait until all show a change.

Rules for this file: a change goes to the controller that metadata names and follows it when it moves. A change whose
answer was lost is not sent again blindly: a broker that knows as much as this client is asked whether it happened, and
after a repetition TOPIC_ALREADY_EXISTS (or UNKNOWN_TOPIC for a deletion) counts as the success of the first attempt.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from msgspec.structs import replace

from minikafka import errors as kafka
from minikafka.client.caller import Attempts, Caller, Client, no_controller
from minikafka.client.metadata import Metadata
from minikafka.client.routing import GROUP_KEY, Coordinator, ErrorOf, Leaders, as_names, named
from minikafka.client.settings import AdminConfig
from minikafka.invariant import invariant
from minikafka.ports import World
from minikafka.tasks import Step, in_turn
from minikafka.types import NO_NODE, NO_OFFSET, Address, NodeId, Offset, TopicPartition
from minikafka.wire import admin as a
from minikafka.wire import messages as m
from minikafka.wire.outcomes import EarlierAttempts, error_in


class AdminCalls(Client):
    """The connection of one admin client, and its ways to send requests."""

    _kind = "an admin client"

    def __init__(self, config: AdminConfig, world: World | AbstractAsyncContextManager[World]) -> None:
        super().__init__(world)
        self.config = config
        self._parts: tuple[World, Metadata, Caller] | None = None
        self._closed = False
        self._changed_at = NO_OFFSET
        """How far the metadata log reached with this client's latest change."""

    async def start(self) -> None:
        """Connect to the cluster. NetworkException when no bootstrap server answers in default_api_timeout_ms."""
        world = await self._enter_world()
        caller = Caller(world)
        metadata = Metadata(self.config, world, caller, controller_timeout_ms=self.config.controller_timeout_ms)
        self._parts = (world, metadata, caller)
        try:
            await metadata.start(self._deadline(None))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End and close."""
        self._closed = True
        steps: list[Step] = [] if self._parts is None else [self._parts[1].stop]
        await in_turn(*steps, self._resources.aclose)

    stop = close

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def describe_topics(self, topics: Sequence[str] | None = None) -> list[m.DescribedTopic]:
        """Partition states as the controller records them (S15); None: all. UnknownTopicOrPartition by name."""
        names = None if topics is None else as_names(topics, "describe_topics")
        described = await self._describe(names, self._deadline(None))
        for topic in described:
            if topic.error_code:
                error = error_in(topic)
                invariant(error is not None, "an error code without an error")
                raise type(error)(named(topic.topic, topic.error_message), topic=topic.topic)  # type: ignore[misc]
        return list(described)

    async def _describe(self, topics: tuple[str, ...] | None, deadline: float) -> tuple[m.DescribedTopic, ...]:
        response: m.DescribeTopicsResponse = await self._ask_anyone(m.DescribeTopicsRequest(topics=topics), deadline)
        return response.topics

    # ------------------------------------------------------------------------------------------------------ waiting

    async def _wait_for(self, topics: Sequence[str], offset: Offset, deadline: float) -> None:
        """Until all brokers know the topics and every partition's leader answers for it."""

        def led(answer: m.MetadataResponse) -> bool:
            return all(
                not topic.error_code and all(each.leader_id != NO_NODE for each in topic.partitions)
                for topic in answer.topics
            )

        answer = await self._wait_for_brokers(offset, deadline, led, topics)
        partitions = {
            TopicPartition(topic.name, each.partition): m.LATEST for topic in answer.topics for each in topic.partitions
        }
        try:
            await self._leaders().list_offsets(partitions, deadline=deadline)
        except kafka.ProtocolError as error:
            raise _not_yet_seen(topics, f": {error.message}") from error

    async def _answer_about(self, topics: Sequence[str]) -> m.MetadataResponse | None:
        """A broker that responds; None: no broker does now, which says nothing about what was changed."""
        try:
            return await self._metadata().ask_once(tuple(topics))
        except kafka.NetworkException:
            return None

    async def _wait_for_brokers(
        self, offset: Offset, deadline: float, met: Callable[[m.MetadataResponse], bool], topics: Sequence[str]
    ) -> m.MetadataResponse:
        """Until every broker that can be reached reflects ``offset`` of the metadata log, and ``met`` holds there."""
        world, metadata, _ = self._started()
        attempts = Attempts(world, metadata.backoff, deadline, growth_max=3)
        while True:
            answer = await self._answer_about(topics)
            if answer is not None and met(answer) and await self._all_show(answer, topics, offset, deadline, met):
                return answer
            if not await attempts.pause():
                raise _not_yet_seen(topics)

    async def _all_show(
        self,
        answer: m.MetadataResponse,
        topics: Sequence[str],
        offset: Offset,
        deadline: float,
        met: Callable[[m.MetadataResponse], bool],
    ) -> bool:
        """Return True if all brokers of ``answer`` agree. One that is down learns of it when it is back."""
        metadata = self._metadata()
        request = m.MetadataRequest(topics=tuple(topics))
        leaders = {each.leader_id for topic in answer.topics for each in topic.partitions}
        good = True
        for each in answer.brokers:
            node = metadata.address(each.node_id)
            if node is None:
                continue
            try:
                response: m.MetadataResponse = await self._call(node, request, deadline)
            except kafka.ProtocolError as error:
                good = good and isinstance(error, kafka.NetworkException) and each.node_id not in leaders
                continue
            good = good and met(response) and response.metadata_offset >= offset
        return good

    # ------------------------------------------------------------------------------------------------------ calling

    async def _call(self, address: Address, request: Any, deadline: float) -> Any:
        """The answer of one node, for which it has request_timeout_ms."""
        world, _, caller = self._started()
        patience = min(deadline, world.clock.now() + self.config.request_timeout_ms / 1000)
        return await caller.call(address, request, deadline=patience)

    async def _ask_anyone(self, request: Any, deadline: float) -> Any:
        """The answer of the first node that gives one, the controller in front: it knows first."""
        metadata = self._metadata()
        attempts = metadata.attempts(deadline)
        while True:
            last: kafka.ProtocolError | None = None
            for address in metadata.controller_first():
                try:
                    return await self._call(address, request, deadline)
                except kafka.ProtocolError as error:
                    if not error.retriable:
                        raise
                    last = error
            if not await attempts.pause():
                why = attempts.why or f"no broker answered in time: {last}"
                raise kafka.RequestTimedOut(why, last=last.name if last else "")

    async def _ask_node(self, node: NodeId, request: Any, deadline: float, attempts: Attempts | None = None) -> Any:
        """The answer of one broker, once it is known where it listens."""
        world, metadata, _ = self._started()
        attempts = attempts or metadata.attempts(deadline)
        while True:
            address = metadata.address(node)
            try:
                if address is None:
                    raise kafka.BrokerNotAvailable(f"broker {node} is not registered, or is down")
                return await self._call(address, request, deadline)
            except (kafka.BrokerNotAvailable, kafka.NetworkException) as error:
                pause_s = attempts.pause_s()
                if attempts.why:
                    raise kafka.RequestTimedOut(attempts.why, outcome=error.outcome, last=error.name) from error
                if pause_s is None:
                    raise
                world.events("broker_silent", broker=node, why=error.message)
            metadata.refresh_soon()
            await asyncio.sleep(pause_s)

    async def _once_loaded(self, node: NodeId, request: Any, deadline: float) -> Any:
        """The response of one broker, once it has read the partitions that it coordinates."""
        attempts = self._metadata().attempts(deadline, growth_max=3)
        while True:
            try:
                return await self._ask_node(node, request, deadline, attempts)
            except kafka.ProtocolError as error:
                if attempts.why or not error.retriable:
                    raise
                has_time = await attempts.pause()
                if attempts.why:
                    raise kafka.RequestTimedOut(attempts.why, outcome=error.outcome, last=error.name) from error
                if not has_time:
                    raise

    async def _change(
        self,
        request: Any,
        deadline: float,
        *,
        happened: Callable[[], Any] | None = None,
        repeated: type[kafka.ProtocolError] | tuple[type[kafka.ProtocolError], ...] = (),
    ) -> Any:
        """Send ``request`` to the controller, wherever it moves, until it answers.

        ``happened`` looks whether an attempt without an answer took effect after all, and gives the answer then;
        ``repeated`` are the errors by which a repetition shows that an earlier attempt did.
        """
        world, metadata, _ = self._started()
        attempts = Attempts(world, metadata.backoff, deadline)
        earlier = EarlierAttempts(request)
        missing = _MissingController()
        while True:
            addresses = metadata.controller_first()
            address = addresses[attempts.failed % len(addresses) if metadata.view.controller_id == NO_NODE else 0]
            try:
                response = await self._call(address, request, deadline)
                self._changed_at = max(self._changed_at, getattr(response, "metadata_offset", NO_OFFSET))
                if earlier.may_have_written and repeated:
                    response = _as_first_attempt(response, repeated)
                return earlier.answer(response)
            except (
                kafka.NotController,
                kafka.NotLeaderOrFollower,
                kafka.NetworkException,
                kafka.RequestTimedOut,
            ) as error:
                last: kafka.ProtocolError = error
                earlier.note(error)
                missing.note(address, error, world.clock.now())
            except kafka.ProtocolError as refusal:
                refusal.outcome = earlier.outcome(refusal)
                raise
            if earlier.may_have_written and happened is not None and (found := await happened()) is not None:
                return found
            pause_s = attempts.pause_s()
            if pause_s is None or missing.for_ms(world.clock.now()) >= (self.config.controller_timeout_ms or math.inf):
                outcome = earlier.outcome(last)
                why = missing.in_words() or f"the controller did not answer in time: {last.message}"
                became = "; nothing was changed" if outcome == kafka.NOT_WRITTEN else "; the change may have been made"
                raise kafka.RequestTimedOut(
                    why + became if earlier.is_change else why,
                    outcome=outcome,
                    last=last.name,
                )
            metadata.refresh_soon()
            await asyncio.sleep(pause_s)

    async def _changed(self, request: Any, timeout_ms: int | None, results: str, *, wait: bool) -> Any:
        """The controller's response. Raises the first error in its member ``results``.

        ``wait``: return when every broker that can be reached uses the change.
        """
        deadline = self._deadline(timeout_ms)
        response = await self._change(request, deadline)
        raise_first(getattr(response, results))
        if wait:
            await self._wait_for_brokers(response.metadata_offset, deadline, lambda _: True, ())
        return response

    # ------------------------------------------------------------------------------------------------------ helpers

    def _started(self) -> tuple[World, Metadata, Caller]:
        if self._parts is None or self._closed:
            raise kafka.InvalidRequest(f"the admin client {'was closed' if self._closed else 'is not started'}")
        return self._parts

    def _coordinator(self, group: str, *, key_type: int = GROUP_KEY) -> Coordinator:
        world, metadata, *_ = self._started()
        return Coordinator(group, self.config, world, metadata, key_type=key_type)

    async def _ask_coordinator(self, name: str, request: Any, error_of: ErrorOf, *, key_type: int = GROUP_KEY) -> Any:
        """The response of the coordinator of a group, or of a transactional id; with its error, if that stays."""
        coordinator = self._coordinator(name, key_type=key_type)
        return await coordinator.ask(request, deadline=self._deadline(None), error_of=error_of)

    async def _living(self) -> list[NodeId]:
        response = await self._metadata().ask_once(())
        return [each.node_id for each in response.brokers]

    def _metadata(self) -> Metadata:
        return self._started()[1]

    def _leaders(self) -> Leaders:
        world, metadata, _ = self._started()
        return Leaders(self.config, world, metadata)

    def _wall_ms(self) -> int:
        return self._started()[0].clock.wall_ms()

    def _timeout_ms(self, timeout_ms: int | None) -> int:
        return min(timeout_ms or self.config.request_timeout_ms, self.config.request_timeout_ms)

    def _deadline(self, timeout_ms: int | None) -> float:
        return self._started()[0].clock.now() + (timeout_ms or self.config.default_api_timeout_ms) / 1000


class _MissingController:
    """Whether a change finds no controller: each broker that it was sent to refuses connections, or knows none."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._found: dict[Address, str] = {}

    def note(self, peer: Address, error: kafka.ProtocolError, now: float) -> None:
        """Record an attempt that failed."""
        if error.outcome != kafka.NOT_WRITTEN or isinstance(error, kafka.RequestTimedOut):
            # A controller that does not answer is another matter: it may carry out the request.
            self._since, self._found = None, {}
            return
        self._since = now if self._since is None else self._since
        if isinstance(error, kafka.NetworkException):
            # The client and the network name API and peer in front of the reason.
            self._found[peer] = f"{peer}: {error.message.rpartition(f' to {peer}: ')[2]}"
        else:
            self._found[peer] = f"{peer} knows no controller"

    def for_ms(self, now: float) -> float:
        """Return for how long no controller was found."""
        return 0.0 if self._since is None else (now - self._since) * 1000

    def in_words(self) -> str:
        """Return what each broker said; empty if the last attempt may have reached a controller."""
        if not self._found:
            return ""
        return no_controller(self._found.values())


def raise_first(answers: Sequence[m.Failed]) -> None:
    """Raise the first error among the parts of an answer; its facts name the topic or resource that it is about."""
    for each in answers:
        error = error_in(each)
        if error is None:
            continue
        if isinstance(each, m.CreatedTopic | m.DeletedTopic):
            raise type(error)(named(each.name, error.message), outcome=error.outcome, topic=each.name)
        if isinstance(each, a.CreatedPartitions | a.AlteredConfigs | a.DescribedConfigs):
            name = each.name if isinstance(each, a.CreatedPartitions) else each.resource_name
            raise type(error)(error.message, outcome=error.outcome, resource=name)
        raise error


def _not_yet_seen(topics: Sequence[str], why: str = "") -> kafka.RequestTimedOut:
    """The controller has recorded the change: whatever goes wrong from then on, it was written."""
    return kafka.RequestTimedOut(
        f"the change of {', '.join(topics) or 'the settings'} is done, but not all brokers show it yet{why}",
        outcome=kafka.WRITTEN,
    )


def _as_first_attempt(
    response: Any, repeated: type[kafka.ProtocolError] | tuple[type[kafka.ProtocolError], ...]
) -> Any:
    """A repetition's answer, where "it is so already" means that the attempt without an answer did it."""
    member = "topics" if hasattr(response, "topics") else "results"
    answers = tuple(
        replace(each, error_code=0, error_message="", outcome="") if isinstance(error_in(each), repeated) else each
        for each in getattr(response, member)
    )
    return replace(response, **{member: answers})
