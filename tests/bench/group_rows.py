"""Groups: how long a rebalance of fifty members takes, and how many offsets are committed a second.

All fifty consumers live in this process, on one loop. Beside a rebalance stand as many bare requests as it needs at the
least (a join and a sync for each member), beside commits bare POSTs of the same bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from minikafka import Consumer
from minikafka.rpc import call
from minikafka.types import Address, TopicPartition
from minikafka.wire.codec import encode_request
from minikafka.wire.group_messages import CommitPartition, FindCoordinatorRequest, OffsetCommitRequest
from tests.bench.measure import CpuMeter, Row, closed_loop, in_turn
from tests.bench.rows import Both, both

MEMBERS = 50
PARTITIONS = 200
HEARTBEAT_MS = 500
COMMIT_LANES = 16
SETTLED_WITHIN_S = 60.0


async def rebalance_rows(*, rounds: int) -> list[Row]:
    """The fiftieth member comes; until each of the fifty has its four partitions."""
    rows = []
    async with both(1) as sides:
        await sides.ours.create("g", 1, PARTITIONS)
        for name, assignor in (("eager", "range"), ("cooperative", "cooperative-sticky")):
            async with _group(sides, f"g-{name}", assignor) as group:
                pair = await in_turn(group.grow, lambda: _bare(sides), rounds=rounds, warm_up=1)
            rows.append(
                Row(
                    f"rebalance, {MEMBERS} members, {PARTITIONS} partitions, {name}",
                    "ms",
                    pair.ours,
                    pair.bare,
                    pair.ratio,
                    at_least=False,
                    same_work=False,
                    note=f"heartbeat.interval.ms={HEARTBEAT_MS}; bare: {2 * MEMBERS} requests",
                )
            )
    return rows


async def _bare(sides: Both) -> float:
    run = await closed_loop(lambda _: sides.bare.post(b"join"), count=2 * MEMBERS, concurrency=MEMBERS)
    return run.seconds * 1000


class _Group:
    """Members that all ask for records, so that a rebalance never waits for an application."""

    def __init__(self, bootstrap: str, name: str, assignor: str) -> None:
        self._settings = {
            "bootstrap_servers": bootstrap,
            "group_id": name,
            "partition_assignment_strategy": (assignor,),
            "heartbeat_interval_ms": HEARTBEAT_MS,
        }
        self._members: list[tuple[Consumer, asyncio.Task[None]]] = []

    async def join(self, count: int) -> None:
        """So many members more, at once."""
        consumers = [Consumer("g", **self._settings) for _ in range(count)]
        await asyncio.gather(*(consumer.start() for consumer in consumers))
        self._members += [(consumer, asyncio.ensure_future(_poll(consumer))) for consumer in consumers]

    async def leave(self, count: int) -> None:
        """The newest ones go, in good order."""
        for _ in range(count):
            consumer, polling = self._members.pop()
            polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await polling
            await consumer.stop()

    async def settled(self) -> None:
        """Every partition has one owner, and every member its share."""
        share = PARTITIONS // len(self._members)
        async with asyncio.timeout(SETTLED_WITHIN_S):
            while not self._is_settled(share):
                for _, polling in self._members:
                    if polling.done():
                        polling.result()
                await asyncio.sleep(0.005)

    def _is_settled(self, share: int) -> bool:
        owned = [consumer.assignment() for consumer, _ in self._members]
        if min(map(len, owned)) < share:
            return False
        return sum(map(len, owned)) == PARTITIONS == len(set[TopicPartition]().union(*owned))

    async def grow(self) -> float:
        """One member fewer, and when that has settled, the time in ms that one more takes."""
        await self.leave(1)
        await self.settled()
        began = time.perf_counter()
        await self.join(1)
        await self.settled()
        return (time.perf_counter() - began) * 1000


async def _poll(consumer: Consumer) -> None:
    while True:
        await consumer.getmany(timeout_ms=1000)


@contextlib.asynccontextmanager
async def _group(sides: Both, name: str, assignor: str) -> AsyncIterator[_Group]:
    group = _Group(sides.ours.running.bootstrap, name, assignor)
    try:
        await group.join(MEMBERS)
        await group.settled()
        yield group
    finally:
        await group.leave(len(group._members))


async def commit_rows(*, rounds: int, count: int) -> list[Row]:
    """OffsetCommit requests of one partition each, of a group without members; one broker, sixteen in flight."""
    cpu: list[float] = []
    async with both(1) as sides:
        await sides.ours.create("c", 1, 1)
        coordinator = await _coordinator(sides, "c")

        def request(offset: int) -> OffsetCommitRequest:
            spot = CommitPartition(topic="c", partition=0, offset=offset)
            return OffsetCommitRequest(group_id="c", partitions=(spot,))

        async def commit(lane: int) -> None:
            answer = await call(sides.ours.network, coordinator, request(lane), sides.ours.deadline())
            if answer.error_code or answer.partitions[0].error_code:
                raise RuntimeError(f"{answer.error_message} {answer.partitions}")

        body = b"".join(encode_request(request(0)))

        async def ours() -> float:
            meter = CpuMeter(sides.ours.pids)
            run = await closed_loop(commit, count=count, concurrency=COMMIT_LANES)
            cpu.append(meter.lap() * 1e6 / count)
            return run.per_second

        async def bare() -> float:
            run = await closed_loop(lambda _: sides.bare.post(body), count=count, concurrency=COMMIT_LANES)
            return run.per_second

        pair = await in_turn(ours, bare, rounds=rounds)
    name = f"offset commits, one partition each, c={COMMIT_LANES}"
    note = f"broker's CPU {min(cpu):.0f} µs a commit"
    return [Row(name, "commits/s", pair.ours, pair.bare, pair.ratio, note=note)]


async def _coordinator(sides: Both, group: str) -> Address:
    """Where it is, once its partition of ``__consumer_offsets`` has been made and read."""
    for _ in range(400):
        answer = await call(
            sides.ours.network, sides.ours.first, FindCoordinatorRequest(keys=(group,)), sides.ours.deadline()
        )
        found = answer.coordinators[0]
        if not found.error_code:
            return Address(found.host, found.port)
        await asyncio.sleep(0.05)
    raise RuntimeError(f"{group} has no coordinator")
