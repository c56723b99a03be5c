"""``minikafka config show``, completion, and what operations commands refuse before they ask anybody."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from minikafka.cli.reassign import Progress, _wanted, progress_line
from minikafka.cli.root import root
from minikafka.cli.running import Misuse
from minikafka.client.structs import Reassignment
from minikafka.types import TopicPartition
from tests.tidy.sources import ROOT


def told(*arguments: str, code: int = 0, env: dict[str, str] | None = None) -> str:
    result = CliRunner().invoke(root, arguments, env=env, prog_name="minikafka")
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_each_value_is_shown_with_its_origin(tmp_path: Path):
    """Default, file, KAFKA_, MK_, flag: the later one wins, and the winner is named."""
    file = tmp_path / "b.properties"
    file.write_text("num.partitions=2\nlog.retention.ms=5\nlog.roll.ms=6\n")
    env = {"KAFKA_LOG_RETENTION_MS": "7", "KAFKA_LOG_ROLL_MS": "8", "MK_LOG_ROLL_MS": "9", "KAFKA_NONSENSE": "1"}
    shown = json.loads(told("config", "show", str(file), "--config", "fetch.max.bytes=5000", "-o", "json", env=env))
    by_name = {each["name"]: (each["value"], each["origin"]) for each in shown["settings"]}
    assert by_name["num.partitions"] == ("2", f"file {file}")
    assert by_name["log.retention.ms"] == ("7", "env KAFKA_LOG_RETENTION_MS")
    assert by_name["log.roll.ms"] == ("9", "env MK_LOG_ROLL_MS")
    assert by_name["fetch.max.bytes"] == ("5000", "flag --config")
    assert by_name["log.segment.bytes"] == ("1073741824", "default")
    assert sorted(shown["notices"]) == [
        "log.roll.ms: KAFKA_LOG_ROLL_MS says otherwise than MK_LOG_ROLL_MS, which counts",
        "nonsense is not a setting of minikafka: ignored",
    ]


def test_show_needs_no_file_and_can_leave_out_defaults():
    """What an empty environment gives; --changed shows nothing then."""
    table = told("config", "show", "--changed", "--config", "num.partitions=3")
    assert [line.split() for line in table.splitlines()] == [
        ["Setting", "Value", "Origin"],
        ["num.partitions", "3", "flag", "--config"],
    ]
    assert told("config", "show", "--changed") == "All settings have their defaults.\n"
    assert "num.partitions" in told("configs", "show"), "configs is another name of it"


def test_the_settings_of_the_systemd_example_are_complete_with_the_variables_of_its_unit():
    """configs/systemd: the properties alone lack the certificates; nothing in both is ignored."""
    folder = ROOT / "configs" / "systemd"
    unit = (folder / "minikafka.service").read_text(encoding="utf-8")
    variables = dict(re.findall(r"^Environment=(\w+)=(\S+)$", unit, re.MULTILINE))
    assert len(variables) == 3
    assert "ssl.keystore.location is empty" in told("config", "show", str(folder / "broker.properties"), code=2)
    shown = json.loads(told("config", "show", str(folder / "broker.properties"), "-o", "json", env=variables))
    assert shown["notices"] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_the_command(shell: str):
    """The script names the command and the variable by which it asks."""
    script = told("completion", shell)
    assert "minikafka" in script
    assert "_MINIKAFKA_COMPLETE" in script
    assert " mk" in told("completion", shell, "--name", "mk")


def test_a_shell_gets_the_commands():
    """What the script runs at each tab."""
    env = {"_MINIKAFKA_COMPLETE": "bash_complete", "COMP_WORDS": "minikafka re", "COMP_CWORD": "1"}
    assert told(env=env).split() == ["plain,reassign"]
    env = {"_MINIKAFKA_COMPLETE": "bash_complete", "COMP_WORDS": "minikafka topics de", "COMP_CWORD": "2"}
    assert told(env=env).split() == ["plain,delete", "plain,delete-records", "plain,describe"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("config", "alter", "--topic", "t"),
        ("config", "alter", "--set", "a=1"),
        ("config", "alter", "--topic", "t", "--broker", "1", "--set", "a=1"),
        ("config", "alter", "--topic", "t", "--set", "a=1", "--delete", "a"),
        ("config", "alter", "--topic", "t", "--set", "a"),
        ("config", "describe"),
        ("elect", "preferred"),
        ("elect", "preferred", "orders-0", "--all"),
        ("elect", "unclean", "orders"),
        ("reassign", "execute"),
        ("reassign", "execute", "orders-0=4,x"),
        ("reassign", "execute", "orders-0=4,2", "orders-0=1,2"),
        ("reassign", "cancel"),
        ("reassign", "cancel", "orders"),
        ("reassign", "generate", "--brokers", "1,x"),
        ("offsets", "--time", "yesterday"),
        ("topics", "delete-records", "t", "0"),
        ("topics", "delete-records", "t", "0:1", "0:2"),
        ("quorum", "describe", "--status", "--replication"),
    ],
    ids=" ".join,
)
def test_called_wrongly(arguments: tuple[str, ...]):
    """Exit code 2 and a sentence, before anybody is asked."""
    assert "minikafka: " in told(*arguments, code=2)


def test_moves_are_read_from_kafkas_file_and_from_arguments(tmp_path: Path):
    """kafka-reassign-partitions' JSON, with or without log_dirs; what is wrong with a file is said."""
    file = tmp_path / "plan.json"
    entry = {"topic": "orders", "partition": 0, "replicas": [4, 2], "log_dirs": ["any", "any"]}
    file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    assert _wanted([str(file), "my-topic-1=1,2"]) == {
        TopicPartition("orders", 0): (4, 2),
        TopicPartition("my-topic", 1): (1, 2),
    }
    for text in ("[]", "{", '{"partitions":[{"topic":"t"}]}', '{"partitions":[{"topic":"t","partition":0}]}'):
        file.write_text(text)
        with pytest.raises(Misuse, match=r"plan\.json"):
            _wanted([str(file)])


def test_what_a_reassignment_still_waits_for():
    """Replicas of the target that are not in sync, and the records that the slowest of them lacks."""
    moving = Reassignment((4, 5, 2, 1), (4, 5), (1,))
    progress = Progress(TopicPartition("t", 0), moving, isr=(1, 2, 4), leader_end=100, leader_start=10)
    assert progress.missing == (5,)
    assert progress.records_left() == 90
    progress.ends = {5: 80}
    assert progress.records_left() == 20
    progress.leader_end = -1
    assert progress.records_left() is None


def test_progress_of_many_moves_is_one_short_line():
    """`reassign execute --wait` of a plan for all topics printed 41 partitions, each with its state, on a line of 3 KB."""
    moving = Reassignment((1, 2), (2,), ())
    moves = [Progress(TopicPartition("t", number), moving, isr=(1,), leader_end=9) for number in range(7)]
    assert progress_line(moves[:2]) == "t-0 waits for 2 (9 records to go); t-1 waits for 2 (9 records to go)"
    assert progress_line(moves[:6]).endswith("; t-4 waits for 2 (9 records to go); and 1 more partition")
    assert progress_line(moves).endswith("; and 2 more partitions")
