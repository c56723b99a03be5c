"""One broker in the foreground, until a signal or its own end: what ``serve`` and ``join`` run."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from minikafka.cli.running import Failure, Signals, first_of
from minikafka.cli.settings import BrokerSettings
from minikafka.cli.tables import print_json
from minikafka.hosting.local_broker import LocalBroker
from minikafka.hosting.process import Parent, calm_collector
from minikafka.world.instruments import own_process
from minikafka.world.system import allow_descriptors, wake_with_parent


async def serve_broker(settings: BrokerSettings, file: Path, signals: Signals, *, parent_fd: int | None = None) -> None:
    """Run the broker until a signal, or its own end, which is a Failure."""
    parent = None
    if parent_fd is not None:
        wake_with_parent()
        parent = await Parent.at(parent_fd)
    watching = None if parent is None else asyncio.ensure_future(_stop_with_parent(parent, signals))
    allow_descriptors()
    calm_collector()
    config = settings.config
    node = LocalBroker(
        config, origins=settings.origins, lives=own_process(config.node_id, None if parent is None else parent.start)
    )
    for notice in settings.notices:
        node.events("setting_ignored", notice=notice)
    try:
        if await first_of(node.start(), signals.asked.wait()) == 0:
            await _until_asked(node, file, signals)
            await _stop(node, signals)
        else:
            await node.kill()
    except BaseException:
        await node.kill()
        raise
    finally:
        if watching is not None:
            watching.cancel()
    if node.failure is not None:
        raise Failure(f"broker {config.node_id} stopped by itself: {node.failure}")


async def _until_asked(node: LocalBroker, file: Path, signals: Signals) -> None:
    config = node.config
    timeout_s = config.initial_broker_registration_timeout_ms / 1000
    if await first_of(node.wait_ready(timeout_s), node.wait_stopped(), signals.asked.wait()) == 0:
        ready = {
            "broker": config.node_id,
            "pid": os.getpid(),
            "url": f"{node.config.brokers_scheme}://{node.address}",
            "data_dir": config.log_dirs,
            "config": str(file),
        }
        print_json(ready)
        await first_of(node.wait_stopped(), signals.asked.wait())


async def _stop(node: LocalBroker, signals: Signals) -> None:
    """A controlled shutdown, cut short by a second signal."""

    async def hurry() -> None:
        await signals.urged.wait()
        node.hurry()

    hurrying = asyncio.ensure_future(hurry())
    try:
        await node.stop()
    finally:
        hurrying.cancel()


async def _stop_with_parent(parent: Parent, signals: Signals) -> None:
    """Stop without waiting for leaders to move: the parent is gone, and its other children too."""
    await parent.until_gone()
    signals.asked.set()
    signals.urged.set()
