"""``minikafka quotas``: quotas of users, client ids and IP addresses (KIP-546), as ``kafka-configs.sh`` sets them."""

from __future__ import annotations

from typing import Any

import click

from minikafka import AdminClient
from minikafka.addresses import is_number
from minikafka.cli.admin import call_admin
from minikafka.cli.running import Misuse, command_group
from minikafka.cli.tables import bootstrap_option, list_options, print_found, together
from minikafka.security.quotas import (
    CLIENT_ID,
    CONNECTION,
    FETCH,
    IP,
    IP_KEYS,
    KEYS,
    MUTATION,
    PRODUCE,
    REQUEST,
    USER,
    Entity,
)

OPTIONS = {"produce": PRODUCE, "consume": FETCH, "request": REQUEST, "mutations": MUTATION, "connections": CONNECTION}
"""Options and the quotas that they stand for."""

NAMES_OF_ENTITIES = ("--for-user", "--default-user", "--client-id", "--default-client-id", "--for-ip", "--default-ip")

COLUMNS = {USER: "User", CLIENT_ID: "Client id", IP: "IP"}

DEFAULT_SHOWN = "<default>"

_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


@command_group()
def command() -> None:
    """List, set and remove quotas of users, client ids and IP addresses.

    A broker throttles clients that exceed their quota. For each kind of quota the most specific entity counts: a client
    id of a user, then the user, then the defaults, then the client id of any user. IP addresses have a quota of their
    own kind, for new connections.

    Examples:
      minikafka quotas set --for-user alice --produce 10M --consume 20M
      minikafka quotas set --default-user --request 50
      minikafka quotas set --default-ip --connections 20
      minikafka quotas list
      minikafka quotas remove --for-user alice
    """


entity_options = together(
    click.option("--for-user", "user", help="Name of the user, without User:."),
    click.option("--default-user", is_flag=True, help="All users without a quota of their own."),
    click.option("--client-id", help="Client id of the entity."),
    click.option("--default-client-id", is_flag=True, help="All client ids without a quota of their own."),
    click.option("--for-ip", "ip", help="IP address of the entity."),
    click.option("--default-ip", is_flag=True, help="All IP addresses without a quota of their own."),
)
"""The options that name an entity, by the parameters of :func:`entity_in`."""


def entity_in(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    *,
    default_user: bool,
    default_client_id: bool,
    default_ip: bool,
) -> Entity:
    """The entity that the options name; Misuse if they name none, or contradict each other."""
    parts: list[tuple[str, str | None]] = []
    for kind, name, flag, option in (
        (CLIENT_ID, client_id, default_client_id, "client-id"),
        (IP, ip, default_ip, "for-ip"),
        (USER, user, default_user, "for-user"),
    ):
        if name is not None and flag:
            raise Misuse(f"--{option} and --default-{option.removeprefix('for-')} exclude each other")
        if name == "":
            raise Misuse(f"--{option} is empty")
        if name is not None or flag:
            parts.append((kind, name))
    if not parts:
        raise Misuse(f"name an entity: {', '.join(NAMES_OF_ENTITIES)}")
    if len(parts) > 1 and any(kind == IP for kind, _ in parts):
        raise Misuse("an IP address is not combined with a user or a client id")
    return tuple(parts)


def bytes_in(text: str | None, option: str) -> float | None:
    """Bytes a second; K, M and G are powers of 1024. Misuse for another text."""
    if text is None:
        return None
    unit = text[-1:].lower() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(unit)]
    if unit not in _UNITS or not is_number(number) or not int(number):
        raise Misuse(f"--{option} {text}: bytes a second are needed, such as 1048576, 512K or 10M")
    return float(int(number) * _UNITS[unit])


def _shown(name: str | None) -> str:
    return DEFAULT_SHOWN if name is None else name


def _in_words(entity: Entity) -> str:
    return " and ".join(f"{kind} {_shown(name)}" for kind, name in reversed(entity))


@command.command("set")
@entity_options
@click.option("--produce", help="Bytes a second of Produce requests (K, M, G: powers of 1024).")
@click.option("--consume", help="Bytes a second of Fetch responses (K, M, G: powers of 1024).")
@click.option(
    "--request", type=click.FloatRange(min=0, min_open=True), help="Percent of a broker's event loop (100: all of it)."
)
@click.option(
    "--mutations",
    type=click.FloatRange(min=0, min_open=True),
    help="Partitions a second that the client creates and deletes, in the whole cluster.",
)
@click.option("--connections", type=click.IntRange(min=1), help="Connections a second that an IP address opens.")
@bootstrap_option
def set_quotas(
    produce: str | None,
    consume: str | None,
    request: float | None,
    mutations: float | None,
    connections: int | None,
    bootstrap: str,
    **whose: Any,
) -> None:
    """Set quotas of an entity.

    Examples:
      minikafka quotas set --for-user alice --produce 10M --consume 20M
      minikafka quotas set --for-user alice --client-id etl --produce 1M
      minikafka quotas set --default-user --request 50

    Quotas that are not named stay. IP addresses have --connections only, users and client ids the
    others. Each broker counts on its own, so a client of three brokers may use three times as much;
    --mutations counts for the whole cluster.
    """
    entity = entity_in(**whose)
    given = {
        PRODUCE: bytes_in(produce, "produce"),
        FETCH: bytes_in(consume, "consume"),
        REQUEST: request,
        MUTATION: mutations,
        CONNECTION: connections,
    }
    values = {key: value for key, value in given.items() if value is not None}
    if not values:
        raise Misuse("name a quota: --produce, --consume, --request, --mutations or --connections")
    call_admin(bootstrap, lambda admin: admin.alter_client_quotas({entity: values}))
    click.echo(f"{_in_words(entity)}: {', '.join(f'{key}={value:.12g}' for key, value in values.items())}")


@command.command("list")
@click.option("--for-user", "user", help="Only entities with this user.")
@click.option("--client-id", help="Only entities with this client id.")
@click.option("--for-ip", "ip", help="Only the entity of this IP address.")
@list_options
def list_quotas(user: str | None, client_id: str | None, ip: str | None, bootstrap: str, output: str) -> None:
    """List entities with their quotas.

    Examples:
      minikafka quotas list
      minikafka quotas list --for-user alice
      minikafka quotas list -o json
    """
    given = ((CLIENT_ID, client_id), (IP, ip), (USER, user))
    wanted: Entity = tuple((kind, name) for kind, name in given if name is not None)
    found = call_admin(bootstrap, lambda admin: admin.describe_client_quotas(wanted))
    listed = [
        {**{kind.replace("-", "_"): name for kind, name in entity}, "quotas": values}
        for entity, values in found.items()
    ]
    # A table shows what there is; programs get every column.
    kinds = [kind for kind in COLUMNS if output == "tsv" or kind != IP or any(IP in dict(each) for each in found)]
    keys = [key for key in (*KEYS, *IP_KEYS) if output == "tsv" or any(key in each for each in found.values())]
    rows = [
        (
            *(_shown(dict(entity)[kind]) if kind in dict(entity) else "-" for kind in kinds),
            *(f"{values[key]:.12g}" if key in values else "-" for key in keys),
        )
        for entity, values in found.items()
    ]
    columns = (*(COLUMNS[kind] for kind in kinds), *keys)
    print_found(output, {"quotas": listed}, columns, rows, nothing="There are no quotas.")


@command.command()
@entity_options
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    type=click.Choice(list(OPTIONS)),
    help="Quota to remove (repeatable; default: all of the entity).",
)
@bootstrap_option
def remove(quotas: tuple[str, ...], bootstrap: str, **whose: Any) -> None:
    """Remove quotas of an entity. Removing one that is not set is no error.

    Examples:
      minikafka quotas remove --for-user alice
      minikafka quotas remove --for-user alice --client-id etl --quota produce
    """
    entity = entity_in(**whose)
    keys = [OPTIONS[each] for each in quotas] or list(IP_KEYS if entity[0][0] == IP else KEYS)

    async def removed(admin: AdminClient) -> list[str]:
        known = (await admin.describe_client_quotas(entity)).get(entity, {})
        await admin.alter_client_quotas({entity: dict.fromkeys(keys)})
        return [key for key in keys if key in known]

    found = call_admin(bootstrap, removed)
    outcome = f"no longer limited by {', '.join(found)}" if found else f"was not limited by {', '.join(keys)}"
    click.echo(f"{_in_words(entity)}: {outcome}")
