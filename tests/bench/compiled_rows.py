"""Brokers on the compiled rules beside brokers on their Python sources: CPU of small produce requests."""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack

from minikafka import compiled
from minikafka.world.real import real_world
from tests.bench.arms import Ours, cluster
from tests.bench.frame_rows import PIPELINES, Framed, Pipelines
from tests.bench.loads import PARTITIONS
from tests.bench.measure import Row, in_turn
from tests.bench.rows import small_batch


async def compiled_rows(*, rounds: int, requests: int) -> list[Row]:
    """One broker on each side, Kafka's protocol, acks=1; nothing where the rules are not compiled."""
    if compiled.build() != compiled.COMPILED:
        sys.stderr.write(f"compiled rules are left out: {compiled.description()}\n")
        return []
    rows = []
    batch = small_batch(100)
    async with AsyncExitStack() as stack:
        real = await stack.enter_async_context(real_world())
        arms = []
        for pure in ("0", "1"):
            os.environ[compiled.PURE_VARIABLE] = pure
            arm = Framed(Ours(real.network, await stack.enter_async_context(cluster(1))))
            stack.callback(arm.connections.close)
            await arm.create("c", 1)
            for partition in range(PARTITIONS):
                await arm.produce("c", partition, batch, 1)
            arms.append(arm)
        for connections, depth, _ in PIPELINES:
            ours, pure_python = (
                Pipelines(arm, "c", batch, acks=1, count=requests, connections=connections, depth=depth) for arm in arms
            )
            await in_turn(ours, pure_python, rounds=rounds, warm_up=2)
            name = f"CPU of a produce request over frames, 100 B, {connections} connections x {depth}, compiled"
            cpu = (ours.cpu_us, pure_python.cpu_us)
            rows.append(
                Row(name, "µs", *cpu, cpu[0] / cpu[1], at_least=False, note="bare: pure Python", same_work=False)
            )
    return rows
