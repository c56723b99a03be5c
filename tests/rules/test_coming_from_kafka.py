"""docs/coming-from-kafka.md: every command and parameter that it names exists, and is what the hints say (issue 13)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from minikafka.cli import kafka_tools
from minikafka.cli.root import root
from minikafka.client.settings import CALLED_HERE, REASONS, ConsumerConfig, ProducerConfig
from tests.tidy.sources import ROOT

PAGE = (ROOT / "docs" / "coming-from-kafka.md").read_text(encoding="utf-8")


def rows(head: str) -> Iterator[list[list[str]]]:
    """The rows of the table with this head: for each cell what stands in it as code."""
    table = PAGE.partition(head)[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:-1]]


TOOLS = [(theirs[0], each) for theirs, ours in rows("| Kafka | minikafka |") for each in ours if "minikafka " in each]
TOOLS = [(theirs, ours) for theirs, ours in TOOLS if theirs.startswith("kafka-")]


def test_the_table_was_found():
    """A parser that finds nothing checks nothing."""
    assert len(TOOLS) >= 27


@pytest.mark.parametrize(("theirs", "ours"), TOOLS)
def test_each_command_of_the_page_is_understood(theirs, ours, tmp_path, monkeypatch):
    """The right column can be typed; files that it names need not exist for that."""
    monkeypatch.chdir(tmp_path)
    for name in ("server.properties", "topics.json", "plan.json", "00000000000000000000.log"):
        (tmp_path / name).touch()
    words = shlex.split(ours)[1:]
    context = click.Context(root, **root.context_settings)
    command = root.get_command(context, words.pop(0))
    while isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
    assert command is not None
    command.make_context("minikafka", words, parent=context)
    tool = str(kafka_tools.tool_named(theirs.split()[0]))
    assert shlex.split(ours)[1] in {tool.split(maxsplit=1)[0], "up"}


@pytest.mark.parametrize(("theirs", "ours"), [each for each in TOOLS if shlex.split(each[1])[1] in kafka_tools.FORMS])
def test_the_hint_is_what_the_page_says(theirs, ours):
    """A reader of the page and somebody who types Kafka's command line learn the same."""
    tool, *options = shlex.split(theirs)
    if not options:
        return  # what it is told stands in a file
    words = [*str(kafka_tools.tool_named(tool)).split(), *options]
    assert kafka_tools.translated(words) == shlex.join(shlex.split(ours))


def test_each_setting_of_the_page_exists():
    """The middle column names parameters; what stands beside it is what the clients' errors say."""
    known = {*ProducerConfig.__dataclass_fields__, *ConsumerConfig.__dataclass_fields__}
    table = list(rows("| elsewhere | here | note |"))
    assert len(table) >= 12
    for theirs, ours, _ in table:
        assert set(ours) <= known
        for name in (each.replace(".", "_") for each in theirs if "*" not in each):
            assert name in known or name in REASONS or [CALLED_HERE[name]] == ours
