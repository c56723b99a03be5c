"""Which groups a command is about, and which partitions of a topic: words that the commands of groups share.

A group is chosen by its name, or all that there are with ``--all-groups``, as kafka-consumer-groups has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from minikafka import AdminClient
from minikafka.errors import InvalidRequest
from minikafka.types import TopicPartition

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def group_or_all(function: Decorated) -> Decorated:
    """``[GROUP] [--all-groups]``."""
    given = click.argument("group", required=False)
    return given(all_groups_option(function))


def all_groups_option(function: Decorated) -> Decorated:
    """``--all-groups``."""
    return click.option("--all-groups", is_flag=True, help="All that there are, instead of a name.")(function)


def check_choice(given: object, *, all_groups: bool) -> None:
    """A wrong call before anybody is asked: exactly one of the two."""
    if bool(given) == all_groups:
        raise click.UsageError("either GROUP or --all-groups is needed")


async def chosen(admin: AdminClient, *groups: str | None) -> list[str]:
    """The groups named; all that there are when there is none."""
    named = [each for each in groups if each]
    return named or [each.group_id for each in await admin.list_consumer_groups()]


async def partitions_named(admin: AdminClient, text: str) -> list[TopicPartition]:
    """``TOPIC`` is all of its partitions, ``TOPIC:0,2`` are these; InvalidRequest for one that is not there."""
    topic, _, numbers = text.partition(":")
    known = [each.partition for each in (await admin.describe_topics([topic]))[0].partitions]
    if not numbers:
        return [TopicPartition(topic, number) for number in sorted(known)]
    try:
        wanted = sorted({int(number) for number in numbers.split(",")})
    except ValueError as error:
        raise InvalidRequest(f"--topic {text!r}: TOPIC or TOPIC:0,2 is the form") from error
    unknown = [number for number in wanted if number not in known]
    if unknown:
        raise InvalidRequest(f"--topic {text!r}: {topic} has no partition {unknown[0]}")
    return [TopicPartition(topic, number) for number in wanted]
