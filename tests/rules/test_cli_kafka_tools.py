"""Command lines of Kafka's own tools: the error says what the same is here (issue 13)."""

from __future__ import annotations

import shlex

import click
import pytest
from click.testing import CliRunner

from minikafka.cli import kafka_tools
from minikafka.cli.root import ALIASES, COMMANDS, root


def said(line: str) -> str:
    """The last line of what a wrong command line prints; it ends with 2."""
    result = CliRunner().invoke(root, shlex.split(line), prog_name="minikafka")
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    return result.stderr.splitlines()[-1]


FORMS = [
    ("topics --list", "topics list"),
    (
        "topics --create --topic orders --partitions 3 --replication-factor 3 --bootstrap-server h:1",
        "topics create orders --partitions 3 --replication-factor 3 -b h:1",
    ),
    ("topics --bootstrap-server=h:1 --describe", "topics describe -b h:1"),
    ("topics create --topic orders --partitions 3", "topics create orders --partitions 3"),
    ("topics -b h:1 list", "topics list -b h:1"),
    ("kafka-topics.sh --zookeeper h:1 --delete --topic orders", "topics delete orders -b h:1"),
    ("groups --describe --group g --members --verbose", "groups members g"),
    (
        "kafka-consumer-groups --group g --reset-offsets --to-earliest --topic t --execute",
        "groups reset-offsets g --to-earliest --topic t --execute",
    ),
    (
        "config --alter --entity-type topics --entity-name t --add-config retention.ms=5,segment.bytes=9",
        "config alter --topic t --set retention.ms=5 --set segment.bytes=9",
    ),
    ("configs --describe --entity-type brokers --entity-default", "config describe --all-brokers"),
    ("reassign --verify --reassignment-json-file f.json", "reassign status f.json"),
    ("elect --election-type PREFERRED --all-topic-partitions", "elect preferred --all"),
    ("elect --election-type unclean --topic a --partition 3", "elect unclean a-3"),
    ("offsets --topic orders", "offsets orders"),
    (
        "kafka-acls.sh --bootstrap-server h:1 --add --allow-principal User:alice --operation Read --topic orders",
        "acls add -b h:1 --allow-principal User:alice --operation Read --topic orders",
    ),
    ("acls --list --topic orders", "acls list --topic orders"),
    ("acls --remove --force --deny-principal User:bob --group g", "acls remove --deny-principal User:bob --group g"),
    (
        "kafka-transactions.sh --bootstrap-server h:1 describe --transactional-id pay",
        "transactions describe pay -b h:1",
    ),
    ("transactions abort --topic t --partition 3 --start-offset 7", "transactions abort t-3 --start-offset 7"),
    ("log dump --files a.log --print-data-log", "log dump a.log --records"),
    ("kafka-metadata-quorum.sh --bootstrap-server h:1 describe --status", "quorum describe -b h:1 --status"),
    ("kafka-console-consumer.sh --topic t --from-beginning", "consume --topic t --from-beginning"),
]


@pytest.mark.parametrize(("line", "here"), FORMS)
def test_a_command_line_of_kafkas_tools_is_answered_with_the_one_here(line, here):
    """The proposed line can be pasted."""
    assert said(line).endswith(f"; here it is: minikafka {here}")


@pytest.mark.parametrize("here", [here for _, here in FORMS])
def test_the_proposed_command_line_is_understood(here):
    """Every proposal is parsed without an error: a hint that fails in turn would be worse than none."""
    words = shlex.split(here)
    context = click.Context(root, **root.context_settings)
    command = root.get_command(context, words.pop(0))
    while isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
    if "f.json" in words or "a.log" in words:
        words = [__file__ if each in {"f.json", "a.log"} else each for each in words]
    command.make_context("minikafka", words, parent=context)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("consume t --property print.key=true", "-f '%k %s"),
        ("produce t --producer-property acks=1", "--acks"),
        ("topics list --command-config client.properties", "TLS and a login are --ca"),
        ("topics alter orders --config retention.ms=5", "minikafka config alter --topic TOPIC --set KEY=VALUE"),
        ("frobnicate", "No such command 'frobnicate'."),
        ("topics list --nonsense --bootstrap-server h:1", "No such option '--nonsense'."),
        ("consume t --from-beginnig", "Did you mean '--from-beginning'?"),
    ],
)
def test_other_options_are_explained_or_left_to_the_parser(line, words):
    """What has another form is named; what is a typing mistake gets no wrong advice."""
    message = said(line)
    assert words in message
    assert "here it is" not in message


@pytest.mark.parametrize("command", ["consume", "produce"])
def test_the_topic_may_be_an_option(command):
    """`--topic orders` and kcat's `-t orders` are in people's fingers; two different topics are a mistake."""
    parent = click.Context(root, **root.context_settings)
    for form in (["orders"], ["--topic", "orders"], ["-t", "orders"], ["--topic", "orders", "orders"]):
        context = root.get_command(parent, command).make_context(command, list(form), parent=parent)
        assert context.params["topic"] == "orders"
        assert "topic_option" not in context.params
    assert said(f"{command} --topic orders payments").endswith(
        "Two topics were given, orders and payments: keep one of them."
    )
    assert said(command).endswith("Missing argument 'TOPIC'.")


def test_every_tool_leads_to_a_command():
    """Tables of names rot silently."""
    for command in [*kafka_tools.TOOLS.values(), *ALIASES.values()]:
        assert command.split()[0] in COMMANDS
