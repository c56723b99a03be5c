"""``minikafka serve``: one broker in the foreground, from a properties file.

Standard output has one JSON line, when the broker is ready; standard error has the structured log. SIGTERM and SIGINT
are a graceful stop (leaders move away first); a second one leaves without waiting for them, a third one ends it at
once, as kill -9 would.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from minikafka.cli.running import Failure, Signals, first_of, run_until_asked
from minikafka.cli.settings import BrokerSettings, broker_settings
from minikafka.cli.tables import EXISTING_FILE, config_option, print_json
from minikafka.config import BrokerConfig, table
from minikafka.hosting.local_broker import LocalBroker, load_doors, load_kafka_door
from minikafka.hosting.process import Parent, calm_collector, exec_with_malloc_environment
from minikafka.wire.garbage import without_collection
from minikafka.world.instruments import own_process


@click.command(
    epilog="""\b
Examples:
  minikafka serve configs/broker.properties
  minikafka serve configs/broker-1.properties --config log.retention.ms=3600000
  KAFKA_LOG_DIRS=/var/lib/minikafka minikafka serve configs/broker.properties
  minikafka serve --list-settings

Settings are Kafka's, from FILE, then from the environment (KAFKA_..., MK_...), then from --config;
the later one wins."""
)
@click.argument("file", type=EXISTING_FILE)
@config_option
@click.option("--parent-fd", type=int, hidden=True, help="Stop when the other end of this socket closes.")
@click.option(
    "--list-settings",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, wanted: _list_settings(context) if wanted else None,
    help="Print the names, defaults and meanings of all settings.",
)
def command(file: Path, config: tuple[str, ...], parent_fd: int | None) -> None:
    """Run one broker in the foreground, with the settings in FILE.

    Prints a JSON line when it is ready: {"broker","pid","url","data_dir","config"}.
    """
    parsed = broker_settings(file, os.environ, config)
    exec_with_malloc_environment(["-m", "minikafka", *sys.argv[1:]])
    run_until_asked(lambda signals: serve_broker(parsed, file, signals, parent_fd=parent_fd))


def _list_settings(context: click.Context) -> None:
    for name, each in sorted(table(BrokerConfig).items()):
        default = str(each.default).lower() if isinstance(each.default, bool) else each.default
        click.echo(f"{name}={default}" + (f"\n    {each.metadata['meaning']}" if each.metadata["meaning"] else ""))
    context.exit()


async def serve_broker(settings: BrokerSettings, file: Path, signals: Signals, *, parent_fd: int | None = None) -> None:
    """Run the broker until a signal, or its own end, which is a Failure."""
    parent = None if parent_fd is None else await Parent.at(parent_fd)
    watching = None if parent is None else asyncio.ensure_future(_stop_with_parent(parent, signals))
    with without_collection():
        load_doors()
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
        # Neither the start nor the first client waits for it.
        await asyncio.to_thread(load_kafka_door)
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
