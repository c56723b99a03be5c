"""Each line of ``--help`` and each setting's meaning reads alone: people see one line, not its neighbours (ENGLISH 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import click
import pytest

from minikafka.cli.root import root
from minikafka.config import BrokerConfig, TopicConfig

WORDS_MIN = 4

PREPOSITIONS = frozenset(
    "about above across after against along among around as at before behind below beneath beside between beyond by "
    "despite down during except for from in inside into like near of off on onto out outside over per past since than "
    "through till to toward under until up upon via with within without".split()
)


def reads_alone(line: str) -> bool:
    """Return False for a line that is too short to be understood, or that continues another one."""
    words = line.replace("`", "").split()
    return len(words) >= WORDS_MIN and words[0].strip("(,").lower() not in PREPOSITIONS


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """A command and all commands below it, each with its command line."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


def help_lines() -> Iterator[tuple[str, str]]:
    """Where a line stands, and the line: summaries of commands, and all options."""
    for path, command in commands(root, "minikafka"):
        yield path, command.get_short_help_str(limit=200)
        for option in command.params:
            if isinstance(option, click.Option):
                yield f"{path} {option.opts[0]}", option.help or ""


def meanings() -> Iterator[tuple[str, str]]:
    """Names of settings with their meanings, as ``minikafka serve --list-settings`` and DescribeConfigs show them."""
    for kind in (BrokerConfig, TopicConfig):
        for each in (each for each in dataclasses.fields(kind) if each.init):
            yield f"{kind.__name__}: {each.metadata.get('name', each.name)}", each.metadata["meaning"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", False),
        ("So many seeds.", False),
        ("Of the chance; else made of the broker's mk.seed.", False),
        ("`by` seconds, or more of them", False),
        ("see segment.bytes", False),
        ("Number of seeds to run.", True),
        ("Default of segment.bytes for topics that set none.", True),
    ],
)
def test_a_line_that_needs_its_neighbours_is_noticed(line: str, expected: bool):
    """A check that cannot fail proves nothing."""
    assert reads_alone(line) is expected


def test_every_line_of_help_reads_alone():
    """Somebody who searches ``--help`` for one option reads one line."""
    lines = list(help_lines())
    assert len(lines) > 300, "the walk over the commands found too little"
    assert [f"{place}: {line}" for place, line in lines if not reads_alone(line)] == []


def test_every_meaning_of_a_setting_reads_alone():
    """Kafka's tools show one setting's documentation at a time."""
    lines = list(meanings())
    assert len(lines) > 100, "the tables of settings were not found"
    assert [f"{place}: {line}" for place, line in lines if not reads_alone(line)] == []
