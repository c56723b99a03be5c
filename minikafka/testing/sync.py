"""A cluster for tests without a loop: every call returns when it is done (``cluster.sync``).

::

    kafka = cluster.sync
    kafka.create_topic("orders")
    kafka.produce("orders", b"tea", b"milk")
    with kafka.faults.cut("3>1", api="Fetch"):
        kafka.wait.isr("orders", 0, {1, 2})
    assert [record.value for record in kafka.consume("orders", 2)] == [b"tea", b"milk"]

Clients run on the brokers' loop, which has a thread of its own; so this blocks the caller and nobody else. Never call
it from a coroutine: it would hold up that coroutine's loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from minikafka.client.structs import ConsumerRecord, RecordMetadata
from minikafka.errors import RequestTimedOut
from minikafka.testing.hands import WAIT_TIMEOUT_S, ClusterFaults, ClusterWaits, FaultInHand
from minikafka.types import NodeId, Offset, TopicPartition
from minikafka.world.clients import AdminClient, Consumer, Producer

if TYPE_CHECKING:
    from minikafka.testing.local_cluster import LocalCluster

CLOSE_S: Final = 1.0
"""What records without an answer get: their brokers may be dead, and a producer would try for two minutes."""

P = ParamSpec("P")
Result = TypeVar("Result")
Owner = TypeVar("Owner")


class _Blocking:
    """Does what ``_of`` does, on the cluster's loop, and waits for it."""

    def __init__(self, cluster: LocalCluster, of: Any) -> None:
        self._cluster = cluster
        self._of = of


def _blocking(
    method: Callable[Concatenate[Owner, P], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[_Blocking, P], Result]:
    """The same method, which returns when it is done."""

    def call(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return self._cluster.run(lambda: method(self._of, *args, **kwargs))

    update_wrapper(call, method)
    return call


class SyncWaits(_Blocking):
    """As ``cluster.wait``."""

    until = _blocking(ClusterWaits.until)
    topic = _blocking(ClusterWaits.topic)
    topic_gone = _blocking(ClusterWaits.topic_gone)
    leader = _blocking(ClusterWaits.leader)
    isr = _blocking(ClusterWaits.isr)
    high_watermark = _blocking(ClusterWaits.high_watermark)
    log_end = _blocking(ClusterWaits.log_end)
    alive = _blocking(ClusterWaits.alive)
    fenced = _blocking(ClusterWaits.fenced)
    controller = _blocking(ClusterWaits.controller)


class SyncEvents(_Blocking):
    """As ``cluster.events``; ``all``, ``mark`` and ``write`` block nobody and are the same."""

    def wait(self, *kinds: str, **wanted: Any) -> dict[str, object]:
        """As :meth:`ClusterEvents.wait`, blocking."""
        return self._cluster.run(lambda: self._cluster.events.wait(*kinds, **wanted))

    @property
    def mark(self) -> int:
        return self._cluster.events.mark

    @property
    def all(self) -> Callable[..., list[dict[str, object]]]:
        return self._cluster.events.all

    @property
    def write(self) -> Callable[..., int]:
        return self._cluster.events.write


class SyncFault(FaultInHand):
    """A fault in a test without a loop."""

    def wait_hits(self, count: int = 1, *, timeout_s: float = WAIT_TIMEOUT_S) -> int:
        """Return when it has struck so often. RequestTimedOut; InvalidRequest when it never will."""
        return self._stage.run(lambda: self._struck(count, timeout_s))


class SyncCluster:
    """``cluster.sync``."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.faults: ClusterFaults[SyncFault] = ClusterFaults(cluster, SyncFault)
        self.wait = SyncWaits(cluster, cluster.wait)
        self.events = SyncEvents(cluster, cluster.events)
        self._producers: dict[str, Producer] = {}
        self._starting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Two threads that produce at once share a producer: a second one would be nobody's to stop."""

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the listeners of clients of all brokers, with commas."""
        return self.cluster.bootstrap

    @property
    def bootstrap_servers(self) -> str:
        """The same, as Kafka's clients name it."""
        return self.cluster.bootstrap_servers

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]], timeout_s: float | None = None) -> Result:
        """Run any coroutine function beside the brokers; TimeoutError after ``timeout_s``."""
        return self.cluster.run(work, timeout_s)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replicas: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """As :meth:`LocalCluster.create_topic`."""
        self.run(lambda: self.cluster.create_topic(topic, partitions, replicas=replicas, config=config))

    def allow(self, name: str, *operations: str, topic: str = "", group: str = "", transactional_id: str = "") -> None:
        """As :meth:`LocalCluster.allow`."""
        self.run(
            lambda: self.cluster.allow(name, *operations, topic=topic, group=group, transactional_id=transactional_id)
        )

    def produce(
        self,
        topic: str,
        *values: bytes,
        key: bytes | None = None,
        partition: int | None = None,
        acks: int | str = "all",
    ) -> list[RecordMetadata]:
        """Send each value and wait until all are acknowledged; where they lie, in order."""

        async def sent() -> list[RecordMetadata]:
            producer = await self._producer(str(acks))
            sending = [await producer.send(topic, value, key=key, partition=partition) for value in values]
            return [await each for each in sending]

        return self.run(sent)

    async def _producer(self, acks: str) -> Producer:
        async with self._starting[acks]:
            producer = self._producers.get(acks)
            if producer is None:
                producer = Producer(acks=acks, **self.cluster.client_settings())
                await producer.start()
                self._producers[acks] = producer  # not before: one that could not start is no use to the next call
            return producer

    def consume(
        self,
        topic: str,
        count: int,
        *,
        partition: int | None = None,
        offset: Offset | None = None,
        isolation_level: str = "read_uncommitted",
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> list[ConsumerRecord]:
        """The first ``count`` records from ``offset`` (None: the beginning) of one partition, or of all.

        ``isolation_level="read_committed"`` leaves out records of open and aborted transactions. RequestTimedOut when
        fewer come, with those as its fact ``seen``, or when there is no such topic by then.
        """

        async def read() -> list[ConsumerRecord]:
            got: list[ConsumerRecord] = []
            await self.cluster.wait.topic(topic, timeout_s=timeout_s)
            numbers = {partition} if partition is not None else await self._partitions(topic)
            wanted = [TopicPartition(topic, number) for number in sorted(numbers)]
            async with Consumer(isolation_level=isolation_level, **self.cluster.client_settings()) as consumer:
                consumer.assign(wanted)
                if offset is None:
                    await consumer.seek_to_beginning(*wanted)
                else:
                    for each in wanted:
                        consumer.seek(each, offset)
                try:
                    async with asyncio.timeout(timeout_s):
                        while len(got) < count:
                            got.append(await consumer.getone())
                except TimeoutError:
                    raise RequestTimedOut(
                        f"after {timeout_s:g} s {topic} gave {len(got)} records, wanted: {count}", seen=got
                    ) from None
            return got

        return self.run(read)

    async def _partitions(self, topic: str) -> frozenset[int]:
        # Not as a producer, which would have a mistyped topic created.
        async with AdminClient(**self.cluster.client_settings()) as admin:
            (described,) = await admin.describe_topics([topic])
        return frozenset(each.partition for each in described.partitions)

    def kill(self, node: NodeId) -> None:
        """As :meth:`LocalCluster.kill`."""
        self.cluster.kill(node)

    def terminate(self, node: NodeId) -> None:
        """As :meth:`LocalCluster.terminate`."""
        self.cluster.terminate(node)

    def restart(self, node: NodeId, *more: NodeId) -> None:
        """As :meth:`LocalCluster.restart`."""
        self.cluster.restart(node, *more)

    async def close(self) -> None:
        """On the brokers' loop: end the producers; what they still hold is given up."""
        producers, self._producers = list(self._producers.values()), {}
        for producer in producers:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await producer.stop()
