"""``minikafka serve``: one broker in the foreground, from a properties file.

Standard output has one JSON line, when the broker is ready; standard error has the structured log. SIGTERM and SIGINT
are a graceful stop (leaders move away first); a second one leaves without waiting for them, a third one ends it at
once, as kill -9 would.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from minikafka.cli.running import lone_command, run_until_asked
from minikafka.cli.settings import broker_settings
from minikafka.cli.tables import EXISTING_FILE, config_option
from minikafka.config import BrokerConfig, table
from minikafka.hosting.process import exec_with_malloc_environment
from minikafka.wire.garbage import without_collection


@lone_command()
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

    Examples:
      minikafka serve configs/broker.properties
      minikafka serve configs/broker-1.properties --config log.retention.ms=3600000
      KAFKA_LOG_DIRS=/var/lib/minikafka minikafka serve configs/broker.properties
      minikafka serve --list-settings

    Settings are Kafka's, from FILE, then from the environment (KAFKA_..., MK_...), then from --config;
    the later one wins.
    """
    parsed = broker_settings(file, os.environ, config)
    exec_with_malloc_environment(["-m", "minikafka", *sys.argv[1:]])
    with without_collection():
        # Not before: what this process has loaded is loaded once more.
        from minikafka.cli.foreground import serve_broker  # noqa: PLC0415
    run_until_asked(lambda signals: serve_broker(parsed, file, signals, parent_fd=parent_fd))


def _list_settings(context: click.Context) -> None:
    for name, each in sorted(table(BrokerConfig).items()):
        default = str(each.default).lower() if isinstance(each.default, bool) else each.default
        click.echo(f"{name}={default}" + (f"\n    {each.metadata['meaning']}" if each.metadata["meaning"] else ""))
    context.exit()
