"""``minikafka config``: a broker's settings before it starts, and settings of a running cluster.

``show`` reads what ``serve`` would read and talks to nobody; ``describe`` and ``alter`` ask a running cluster, as
``kafka-configs.sh`` does. The group answers to ``configs`` too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from minikafka.cli import kafka_layout
from minikafka.cli.admin import call_admin, with_admin
from minikafka.cli.running import Failure, Misuse, command_group
from minikafka.cli.settings import DEFAULT_ORIGIN, broker_settings, parse_flags
from minikafka.cli.tables import (
    EXISTING_FILE,
    columns_of,
    config_option,
    kafka_list_options,
    list_output_option,
    print_found,
    repeatable,
    together,
    watch_option,
)
from minikafka.cli.tables import show as show_again
from minikafka.client.structs import ConfigChange, ConfigResource
from minikafka.config import BrokerConfig, to_settings
from minikafka.wire import admin as a

if TYPE_CHECKING:
    from minikafka import AdminClient
    from minikafka.types import NodeId

DYNAMIC = frozenset({a.DYNAMIC_TOPIC, a.DYNAMIC_BROKER, a.DYNAMIC_DEFAULT_BROKER})


@command_group()
def command() -> None:
    """Look at settings and where they come from; alter them while the cluster runs.

    Examples:
      minikafka config show configs/broker.properties
      minikafka config describe --topic orders
      minikafka config alter --topic orders --set retention.ms=3600000 --delete segment.bytes
      minikafka config alter --all-brokers --set log.retention.ms=3600000
    """


# ---- show ------------------------------------------------------------------------------------------------------------


@command.command()
@click.argument("file", required=False, type=EXISTING_FILE)
@config_option
@click.option("--changed", is_flag=True, help="Show only settings that differ from their defaults.")
@list_output_option
def show(file: Path | None, config: tuple[str, ...], changed: bool, output: str) -> None:
    """Show every setting of a broker that FILE, the environment and --config give, and where each comes from.

    The later one wins: default, FILE, KAFKA_ variables, MK_ variables, --config.

    Examples:
      minikafka config show
      minikafka config show configs/broker.properties --config log.retention.ms=3600000
      KAFKA_LOG_DIRS=/var/lib/minikafka minikafka config show configs/broker.properties --changed
      minikafka config show configs/broker.properties -o json

    Nothing is started and nobody is asked: it is what `minikafka serve` would run with.
    """
    parsed = broker_settings(file, os.environ, config)
    values, defaults = to_settings(parsed.config), to_settings(BrokerConfig())
    settings = [
        {
            "name": name,
            "value": value,
            "origin": parsed.origins.get(name, DEFAULT_ORIGIN),
            "default": defaults.get(name, ""),
        }
        for name, value in sorted(values.items())
        if not changed or value != defaults.get(name)
    ]
    document = {"settings": settings, "notices": list(parsed.notices)}
    columns = columns_of("Setting=name", "Value", "Origin")
    print_found(output, document, columns, settings, nothing="All settings have their defaults.")
    for notice in parsed.notices if output != "json" else ():
        click.echo(notice, err=True)


# ---- describe --------------------------------------------------------------------------------------------------------


_resource_options = together(
    click.option("--topic", help="Settings of the topic with this name."),
    click.option("--broker", type=click.IntRange(0), metavar="ID", help="Settings of the broker with this id."),
    click.option("--all-brokers", is_flag=True, help="Settings that were altered for all brokers."),
)


@command.command()
@_resource_options
@click.option("--all", "everything", is_flag=True, help="Show all settings, also those that were not altered.")
@kafka_list_options
@watch_option
def describe(everything: bool, bootstrap: str, output: str, watch: bool, **whose: Any) -> None:
    """Show settings of a topic or broker that were altered at run time (--all: every one), and who says what.

    Examples:
      minikafka config describe --topic orders
      minikafka config describe --topic orders --all
      minikafka config describe --broker 1 --all -o json
      minikafka config describe --all-brokers -o kafka
    """
    resource = _resource(**whose)

    async def described(admin: AdminClient) -> a.DescribedConfigs:
        if whose["broker"] is not None:
            await _check_runs(admin, whose["broker"])
        [found] = await admin.describe_configs([resource], include_synonyms=True, include_documentation=True)
        return found

    show_again(
        lambda: with_admin(bootstrap, described),
        lambda found: _draw(resource, found, output, everything=everything),
        watch=watch,
    )


async def _check_runs(admin: AdminClient, broker: NodeId) -> None:
    """Raise Failure unless ``broker`` runs: it alone knows its settings, and a client would wait for its start."""
    running = sorted(each["node_id"] for each in (await admin.describe_cluster())["brokers"])
    if broker not in running:
        known = ", ".join(map(str, running))
        raise Failure(f"--broker {broker}: no broker {broker} is running; the brokers that run are {known}")


def _draw(resource: ConfigResource, found: a.DescribedConfigs, output: str, *, everything: bool) -> None:
    configs = [each for each in found.configs if everything or each.config_source in DYNAMIC]
    kind, chosen = str(resource.resource_type), structs.replace(found, configs=tuple(configs))
    print_found(
        output,
        {"type": kind, "name": resource.name, "configs": [_to_json(each) for each in configs]},
        ("Setting", "Value", "Source", "Otherwise"),
        [_row(each) for each in configs],
        kafka=kafka_layout.configs_described(kind, chosen, everything=everything),
        nothing="Nothing was altered at run time; --all shows every setting.",
    )


def _row(each: a.DescribedConfig) -> tuple[object, ...]:
    first, *rest = each.synonyms
    source = a.SOURCE_NAMES[each.config_source] + (f" ({first.origin})" if first.origin else "")
    return each.name, each.value, source, [f"{other.value} ({a.SOURCE_NAMES[other.source]})" for other in rest]


def _to_json(each: a.DescribedConfig) -> Mapping[str, Any]:
    return {
        "name": each.name,
        "value": each.value,
        "source": a.SOURCE_NAMES[each.config_source],
        "read_only": each.read_only,
        "documentation": each.documentation or "",
        "synonyms": [
            {"name": other.name, "value": other.value, "source": a.SOURCE_NAMES[other.source], "origin": other.origin}
            for other in each.synonyms
        ],
    }


# ---- alter -----------------------------------------------------------------------------------------------------------


@command.command()
@_resource_options
@repeatable("--set", "sets", "Set a setting to a value", "KEY=VALUE")
@repeatable("--delete", "deletes", "Reset a setting to its default", "KEY")
@repeatable("--append", "appends", "Add values to a setting that is a list", "KEY=VALUE")
@repeatable("--subtract", "subtracts", "Remove values from a setting that is a list", "KEY=VALUE")
@click.option("--dry-run", is_flag=True, help="Check the change without making it.")
@kafka_list_options
def alter(
    sets: tuple[str, ...],
    deletes: tuple[str, ...],
    appends: tuple[str, ...],
    subtracts: tuple[str, ...],
    dry_run: bool,
    bootstrap: str,
    output: str,
    **whose: Any,
) -> None:
    """Alter settings of a topic, of one broker or of all, without a restart.

    Returns when every broker that can be reached uses them. What cannot be changed so is refused with the reason.

    Examples:
      minikafka config alter --topic orders --set retention.ms=3600000 --set segment.bytes=1048576
      minikafka config alter --topic orders --delete retention.ms
      minikafka config alter --all-brokers --set min.insync.replicas=2
      minikafka config alter --broker 2 --set log.retention.ms=3600000 --dry-run
    """
    changes: dict[str, str | ConfigChange | None] = dict(parse_flags(sets, "--set"))
    others: list[tuple[str, ConfigChange | None]] = [(name, None) for name in deletes]
    for operation, texts in (("append", appends), ("subtract", subtracts)):
        others += [
            (name, ConfigChange(operation, value)) for name, value in parse_flags(texts, f"--{operation}").items()
        ]
    for name, change in others:
        if name in changes:
            raise Misuse(f"{name} is named twice")
        changes[name] = change
    if not changes:
        raise Misuse("say what to change: --set KEY=VALUE, --delete KEY, --append or --subtract KEY=VALUE")
    resource = _resource(**whose)._replace(configs=changes)
    call_admin(bootstrap, lambda admin: admin.incremental_alter_configs([resource], validate_only=dry_run))
    kind = str(resource.resource_type)
    of_what = f"{kind} {resource.name}" if resource.name else "all brokers"
    print_found(
        output,
        {"type": kind, "name": resource.name, "altered": sorted(changes), "dry_run": dry_run},
        ("Type", "Name", "Setting"),
        [(kind, resource.name, name) for name in sorted(changes)],
        kafka=[kafka_layout.configs_altered(kind, resource.name)],
        said=f"{'Would alter' if dry_run else 'Altered'} {', '.join(sorted(changes))} of {of_what}.",
    )


def _resource(topic: str | None, broker: int | None, *, all_brokers: bool) -> ConfigResource:
    if sum((topic is not None, broker is not None, all_brokers)) != 1:
        raise Misuse("name exactly one of --topic T, --broker ID and --all-brokers")
    if topic is not None:
        return ConfigResource("topic", topic)
    return ConfigResource("broker", "" if broker is None else str(broker))
