"""The command line without a cluster: help everywhere, exit codes, sentences, the summaries' shapes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from minikafka.cli import (
    acls,
    audit,
    certs,
    chaos,
    config,
    consume,
    demo,
    doctor,
    group_changes,
    groups,
    join,
    lab,
    log,
    produce,
    quorum,
    quotas,
    reassign,
    running,
    serve,
    sim,
    spark,
    topics,
    transactions,
    up,
    users,
    v1,
)
from minikafka.cli.produce import Tally
from minikafka.cli.quorum import to_json as quorum_json
from minikafka.cli.root import COMMANDS, completion, root
from minikafka.cli.running import Commands, run, run_until_asked
from minikafka.cli.tables import print_table, shown
from minikafka.cli.topics import to_json as topics_json
from minikafka.compiled import PACKAGE
from minikafka.config import BrokerConfig, table
from minikafka.errors import (
    GroupIdNotFound,
    MessageTooLarge,
    NetworkException,
    NotEnoughReplicas,
    OutcomeUnknown,
    ProtocolError,
    RequestTimedOut,
    TopicAlreadyExists,
    Unreachable,
)
from minikafka.hosting.cluster_files import Ports, prepare
from minikafka.types import TopicPartition
from minikafka.wire.messages import (
    DescribedPartition,
    DescribedTopic,
    DescribeQuorumResponse,
    QuorumReplica,
)

FOUND: dict[str, click.Command] = {
    "up": up.command,
    "serve": serve.command,
    "join": join.command,
    "unregister": join.unregister,
    "topics": topics.command,
    "transactions": transactions.command,
    "produce": produce.command,
    "consume": consume.command,
    "offsets": topics.offsets,
    "config": config.command,
    "acls": acls.command,
    "users": users.command,
    "quotas": quotas.command,
    "certs": certs.command,
    "reassign": reassign.command,
    "explain": v1.explain,
    "connections": v1.connections,
    "elect": reassign.elect,
    "doctor": doctor.command,
    "groups": groups.command,
    "quorum": quorum.command,
    "log": log.command,
    "audit": audit.command,
    "spark": spark.command,
    "lab": lab.command,
    "sim": sim.command,
    "chaos": chaos.command,
    "faults": v1.faults,
    "demo": demo.command,
    "completion": completion,
}


def told(*arguments: str, code: int = 0):
    result = CliRunner().invoke(root, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def paths() -> list[tuple[str, ...]]:
    """Every command and subcommand."""
    found: list[tuple[str, ...]] = [()]
    context = click.Context(root)
    for name in COMMANDS:
        found.append((name,))
        command = root.get_command(context, name)
        if isinstance(command, click.Group):
            found += [(name, each) for each in command.list_commands(context)]
    return found


@pytest.mark.parametrize("path", paths(), ids=" ".join)
def test_help_shows_examples_everywhere(path):
    """Issue item 7: `--help` with examples on every command and subcommand, `-h` as well."""
    text = told(*path, "--help").output
    assert "Examples:" in text
    assert f"  minikafka {' '.join(path)}".rstrip() in text
    assert told(*path, "-h").output == text
    assert "...\n" not in text.partition("Commands:")[2].partition("Examples:")[0], "a command's sentence is cut"


@pytest.mark.parametrize("path", paths(), ids=" ".join)
def test_examples_can_be_pasted(path):
    """Remarks beside an example are shell comments: pasted as they are, they would be arguments."""
    examples = told(*path, "--help").output.partition("Examples:")[2].partition("\n\n")[0]
    for line in examples.splitlines():
        command, _, remark = line.strip().partition("    ")
        assert not remark.strip() or remark.strip().startswith("#"), (command, remark)
        assert ", then: " not in command


@pytest.mark.parametrize("path", paths(), ids=" ".join)
def test_no_two_options_of_a_command_set_one_parameter(path):
    """`users add --password-file` was taken for the password file of --user, and refused without --user."""
    command = root
    for name in path:
        command = command.get_command(click.Context(command), name)
    names = [each.name for each in command.params]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    "typed",
    [("lab", "run", "data-loss"), ("lab", "compare", "divergence"), ("config", "show"), ("--help",), ("--version",)],
)
def test_a_reader_that_leaves_is_no_failure(typed):
    """`minikafka lab compare ... | head` is exit code 0 and silent, with tables that rich prints too."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "minikafka", *typed], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_failure_below_the_command_line_names_the_program():
    """`sim shrink` began its sentence with "Error:", as no other command does."""

    @click.command()
    def failing() -> None:
        raise click.ClickException("the plan passes")

    commands = Commands("minikafka")
    commands.add_command(failing)
    result = CliRunner().invoke(commands, ["failing"])
    assert (result.exit_code, result.stderr) == (1, "minikafka: the plan passes\n")


def test_an_empty_key_separator_is_refused():
    """`--key-separator "$UNSET"` sent the keys as parts of the values."""
    assert "--key-separator is empty" in told("produce", "orders", "--key-separator", "", code=2).stderr


def test_the_table_of_commands_names_their_modules():
    """Commands are imported when they are asked for: a wrong name in the table would be found by a user."""
    assert COMMANDS.keys() == FOUND.keys()
    for name, command in FOUND.items():
        assert root.get_command(click.Context(root), name) is command
    assert root.get_command(click.Context(root), "nope") is None


def test_the_commands_of_the_issue_exist():
    """Issue 2 item 7, the synopsis; issue 3 item 5."""
    wanted = """up serve topics/create topics/list topics/describe topics/delete produce consume quorum/describe log/dump
        log/verify groups/list groups/describe groups/members groups/state groups/reset-offsets groups/delete-offsets
        groups/delete lab/list lab/run lab/compare demo""".split()
    assert {tuple(each.split("/")) for each in wanted} <= set(paths())


LISTS = """topics/list topics/describe topics/delete-records config/show config/describe config/alter offsets elect/preferred
    elect/unclean reassign/generate reassign/execute reassign/status reassign/cancel groups/list groups/describe
    groups/members groups/state groups/reset-offsets groups/delete-offsets groups/delete quorum/describe faults/add
    faults/held faults/list lab/list chaos/list doctor connections consume acls/add acls/explain acls/list acls/remove users/list
    quotas/list transactions/list transactions/describe transactions/describe-producers transactions/find-hanging transactions/abort""".split()


def test_all_that_lists_offers_tabs_and_says_so():
    """HTTP-CLI-CONVENTIONS 4.1: -o tsv beside table and json. Reports (a verdict, causes, a log's bytes) have no rows."""
    offering = set()
    for path in paths():
        command = root
        for name in path:
            command = command.get_command(click.Context(command), name)  # type: ignore[attr-defined, assignment] - a group
        for each in command.params:
            if each.name == "output" and isinstance(each.type, click.Choice) and "tsv" in each.type.choices:
                offering.add("/".join(path))
                assert "tabs" in told(*path, "--help").output
    assert offering == set(LISTS)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nope",),
        ("quorum", "describe", "-o", "tsv"),
        ("audit", "ledger", "-o", "tsv"),
        ("topics", "describe", "-o", "xml"),
        ("produce",),
        ("produce", "t", "--acks", "2"),
        ("produce", "t", "--rate", "0"),
        ("produce", "t", "--header", "h"),
        ("produce", "t", "--json", "--key", "k"),
        ("produce", "t", "--partition", "-1"),
        ("consume", "t", "-f", "%z"),
        ("consume", "t", "-f", "%s", "-o", "json"),
        ("consume", "t", "--assignor", "range"),
        ("consume", "t", "--group-protocol", "consumer"),
        ("consume", "t", "--group", "g", "--assignor", "uniform"),
        ("consume", "t", "--group", "g", "--group-protocol", "consumer", "--assignor", "sticky"),
        ("consume", "t", "--group", "g", "--group-protocol", "consumer", "--session-timeout-ms", "9000"),
        ("consume", "t", "--offset", "now"),
        ("consume", "t", "--offset", "5", "--from-beginning"),
        ("consume", "t", "--offset", "5", "--group", "g"),
        ("consume", "t", "--partition", "0", "--group", "g"),
        ("consume", "t", "--ledger", "reads.jsonl", "--group", "g"),
        ("consume", "t", "--partition", "-1"),
        ("consume", "t", "--timeout-ms", "0"),
        ("groups", "describe"),
        ("groups", "describe", "g", "--all-groups"),
        ("groups", "delete"),
        ("groups", "delete", "g", "--all-groups"),
        ("groups", "delete-offsets", "g"),
        ("groups", "reset-offsets", "g", "--to-earliest"),
        ("groups", "reset-offsets", "--topic", "t", "--to-earliest"),
        ("groups", "reset-offsets", "--all-groups", "--topic", "t", "--to-earliest", "--export"),
        ("groups", "reset-offsets", "g", "--topic", "t", "--by-duration", "PT1H", "--to-datetime", "2026-11-21"),
        ("groups", "reset-offsets", "g", "--topic", "t"),
        ("groups", "reset-offsets", "g", "--topic", "t", "--to-earliest", "--to-latest"),
        ("groups", "reset-offsets", "g", "--topic", "t", "--to-datetime", "yesterday"),
        ("quotas", "set", "--for-user", "ann", "--produce", "9" * 400),
        ("transactions", "list", "--state", "Running"),
        ("transactions", "find-hanging", "--partition", "0"),
        ("transactions", "abort", "orders-0"),
        ("transactions", "abort", "orders", "--start-offset", "0"),
        ("sim", "run", "--seeds", "0"),
        ("topics", "create", "t", "--partitions", "0"),
        ("topics", "create", "t", "--config", "retention.ms"),
        ("topics", "list", "-b", "nowhere"),
        ("serve", "/does/not/exist"),
        ("up", "--brokers", "0"),
        ("up", "--base-port", "65534"),
        ("up", "--config", "node.id=5"),
    ],
    ids=" ".join,
)
def test_a_wrong_call_is_exit_code_2_and_nothing_on_standard_output(arguments):
    """Scripts tell a wrong call (2) from a failure (1); standard output is for results."""
    result = told(*arguments, code=2)
    assert result.stdout == ""
    assert result.stderr


@pytest.mark.parametrize("now", [(4, 2, 3), (1, 2, 3)])
async def test_a_reassignment_that_was_cancelled_is_not_complete(now: tuple[int, ...], monkeypatch):
    """`reassign execute --wait` is followed by the end of the old broker: it must have no replicas by then."""
    name = TopicPartition("orders", 0)

    async def status(*_: object) -> object:
        return [], {name: now}

    monkeypatch.setattr(reassign, "_status", status)
    refused = (
        contextlib.nullcontext() if now == (4, 2, 3) else pytest.raises(running.Failure, match="orders-0 is on 1,2,3")
    )
    with refused:
        await reassign._until_complete("127.0.0.1:1", {name: (4, 2, 3)})


@pytest.mark.parametrize(
    ("to_datetime", "by_duration"), [("1969-12-31T23:59:59.999Z", None), ("1960-01-01", None), (None, "P30000D")]
)
def test_a_reset_to_a_time_before_1970_is_one_to_the_first_record(to_datetime: str | None, by_duration: str | None):
    """Before, the last millisecond of 1969 was -1, which is the end of the log to brokers, and others were refused."""
    assert group_changes._time_ms(to_datetime, by_duration) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("up", "--data-dir", ""),
        ("join", "--data-dir", ""),
        ("demo", "--data-dir", ""),
        ("serve", ""),
        ("certs", "ca", "--dir", ""),
        ("chaos", "run", "kill-leader", "--keep", ""),
        ("produce", "t", "--ledger", ""),
        ("topics", "list", "--ca", ""),
        ("log", "verify", ""),
        ("spark", "archive", "t", "--into", "", "--checkpoint", "c"),
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused(arguments: tuple[str, ...]):
    """A shell variable that is not set is no current directory, and `--ca ""` no wish for plain text."""
    assert "the path is empty; name one (. is the current directory)." in told(*arguments, code=2).stderr


@pytest.mark.parametrize("scheme", ["kafka", "PLAINTEXT", "SASL_SSL"])
def test_bootstrap_servers_with_a_scheme_of_others_are_refused(scheme: str):
    """Before, the scheme was looked up as a part of the host's name."""
    error = told("topics", "list", "-b", f"127.0.0.1:1,{scheme}://127.0.0.1:9092", code=2).stderr
    assert f"is not host:port; leave out {scheme}://, as in 127.0.0.1:9092" in error


@pytest.mark.parametrize("job", [("archive", "t"), ("flights",)], ids=" ".join)
def test_a_spark_job_without_a_broker_fails_before_a_jvm_is_started(job: tuple[str, ...]):
    """Before, it failed after the start of Spark and the 60 s for which a query tries again."""
    result = told("spark", *job, "-b", "127.0.0.1:1", "--into", "nowhere", "--checkpoint", "nowhere", code=1)
    assert "no broker can be reached (127.0.0.1:1: Connection refused)" in result.stderr


def test_ctrl_c_while_the_command_line_is_imported_prints_no_traceback():
    """The imports take a tenth of a second, and an interruption of them is one like any other: exit code 130."""
    program = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from minikafka.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (("tpics",), "No such command 'tpics'. Did you mean 'topics'?"),
        (("-b", "127.0.0.1:1", "topics", "list"), "No such option '-b' here: options stand behind the command, as in "),
        (("--versio",), "No such option '--versio'. Did you mean "),
        (("topics", "lst"), "No such command 'lst'. Did you mean 'list'?"),
        (("chaos", "run", "zombieleader"), "there is no scenario 'zombieleader'; did you mean zombie-leader"),
        (("chaos", "run", "xyz"), "there is no scenario 'xyz'; the library has boom-boom-minority, "),
    ],
)
def test_a_slip_of_the_keyboard_gets_the_right_word(typed, hint):
    """What people meant is mostly one letter away."""
    assert hint in told(*typed, code=2).stderr


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_command_whose_standard_streams_are_closed_does_its_work(closed):
    """As some daemons start their children: a socket that gets number 0 made uvloop end the process (SIGABRT)."""

    def close() -> None:
        for number in closed:
            os.close(number)

    ended = subprocess.run(
        [sys.executable, "-m", "minikafka", "topics", "list", "-b", "127.0.0.1:1"],
        preexec_fn=close,
        stderr=None if 2 in closed else subprocess.PIPE,
        check=False,
    )
    assert ended.returncode == 1
    assert 2 in closed or b"no broker can be reached" in ended.stderr


@pytest.mark.parametrize(
    "content",
    [bytes(range(256)), b"[]", b"{}", b'{"version": 1}', b'{"topics": ["orders"]}', b'{"partitions": ["orders-0"]}'],
)
@pytest.mark.parametrize(
    "typed",
    [
        ("sim", "run", "FILE.json"),
        ("sim", "show", "FILE.json"),
        ("lab", "run", "FILE.json"),
        ("chaos", "run", "FILE.toml"),
        ("reassign", "execute", "FILE.json"),
        ("reassign", "generate", "--brokers", "1", "--topics-file", "FILE.json"),
        ("elect", "preferred", "--file", "FILE.json"),
        ("groups", "reset-offsets", "g", "--from-file", "FILE.json"),
        ("serve", "FILE.properties"),
        ("config", "show", "FILE.properties"),
    ],
    ids=" ".join,
)
def test_a_file_of_something_else_is_a_sentence(typed, content, tmp_path, monkeypatch):
    """The wrong file is the commonest slip after the wrong name; bytes that are no text were tracebacks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / typed[-1]).write_bytes(content)
    result = CliRunner().invoke(root, typed)
    assert result.exit_code in (1, 2), result.exception
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    assert result.stderr


def test_json_of_something_else_is_named_as_no_plan(tmp_path):
    """A plan of `reassign generate` has a version, too: the error was the bare name of a field."""
    (tmp_path / "plan.json").write_text('{"version": 1, "partitions": []}')
    found = told("sim", "show", str(tmp_path / "plan.json"), code=2)
    assert found.stderr.endswith("plan.json is no plan of a run: 'topics' is missing\n")


def test_nobody_there_is_a_sentence_that_says_what_to_do():
    """STYLE: one sentence on standard error, and no traceback."""
    result = told("topics", "list", "-b", "127.0.0.1:1", code=1)
    assert result.stderr.count("\n") == 1
    assert "which may name several brokers" in result.stderr
    assert "minikafka up" in result.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TopicAlreadyExists("orders exists"), "TOPIC_ALREADY_EXISTS: orders exists; choose another name"),
        (GroupIdNotFound("no group g"), "GROUP_ID_NOT_FOUND: no group g; `minikafka groups list` shows the groups"),
        (Unreachable("no route"), "no route; check -b"),
        (
            NetworkException("no answer; check bootstrap_servers, and that a broker runs there"),
            "NETWORK_EXCEPTION: no answer; check -b, and that a broker runs there",
        ),
        (
            NetworkException("no answer; check that the broker runs, and that the port is a minikafka broker's"),
            "NETWORK_EXCEPTION: no answer; check -b, and that a broker runs there (`minikafka up`)\n",
        ),
        (
            NetworkException("no Kafka; another program listens there: check bootstrap_servers"),
            "NETWORK_EXCEPTION: no Kafka; another program listens there; check -b, and that",
        ),
        (OutcomeUnknown("it broke"), "it broke; look before you send again"),
        (OSError(28, "No space left on device"), "minikafka: the output cannot be written: No space left on device"),
        (OSError(17, "File exists", "/data"), "minikafka: /data: File exists"),
        (OSError("in words of its own"), "minikafka: in words of its own"),
    ],
)
def test_an_expected_error_becomes_a_sentence(error, words):
    """What the world does to us is told with the next step; only bugs show a traceback."""

    @click.group(cls=Commands)
    def group() -> None:
        """A group that fails."""

    @group.command()
    def fail() -> None:
        """Fail."""
        raise error

    result = CliRunner().invoke(group, ["fail"])
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_name_that_is_not_utf8_is_a_misuse():
    """A name in Latin-1, from an old script, was a traceback of the encoder."""

    @click.group(cls=Commands)
    def group() -> None:
        """A group that sends names."""

    @group.command()
    @click.argument("name")
    def send(name: str) -> None:
        """Send a name."""
        name.encode()

    result = CliRunner().invoke(group, ["send", os.fsdecode(b"caf\xe9")])
    assert (result.exit_code, result.stderr) == (
        2,
        "minikafka: 'caf\\udce9' is not UTF-8, as names and values on the command line must be\n",
    )


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()])
def test_who_is_interrupted_says_so_as_shells_expect(error):
    """130 is 128 and SIGINT: a loop of a shell script ends there, where 1 would be one more failure."""

    @click.group(cls=Commands)
    def group() -> None:
        """A group that is interrupted."""

    @group.command()
    def wait() -> None:
        """Wait."""
        raise error

    result = CliRunner().invoke(group, ["wait"])
    assert (result.exit_code, result.stderr) == (130, "minikafka: interrupted\n")


def test_a_bug_is_not_hidden():
    """An exception that nobody expects must be seen with its traceback."""

    @click.group(cls=Commands)
    def group() -> None:
        """A group with a bug."""

    @group.command()
    def fail() -> None:
        """Fail."""
        raise ZeroDivisionError

    assert isinstance(CliRunner().invoke(group, ["fail"]).exception, ZeroDivisionError)


@pytest.mark.parametrize("runs", [run, lambda work: run_until_asked(lambda _signals: work())])
def test_signals_end_a_command_after_its_requests(runs: Callable[[Callable[[], Any]], str]):
    """Handlers of the closed loop stayed and did nothing: Spark's start ignored Ctrl-C, and its jobs SIGTERM."""

    async def work() -> str:
        return "done"

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert runs(work) == "done"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_all_settings_are_listed():
    """`serve --list-settings` is where the names are looked up."""
    text = told("serve", "--list-settings").output
    assert "broker.session.timeout.ms=9000\n    A broker whose heartbeats stop for this long is fenced.\n" in text
    for name in table(BrokerConfig):
        assert f"{name}=" in text


def test_the_version():
    """Bug reports begin with it."""
    # Where nothing is compiled, nothing was decided while conftest.py had set the variable.
    is_decided = "MINIKAFKA_PURE" in os.environ or find_spec(PACKAGE) is not None
    reason = "MINIKAFKA_PURE=1" if is_decided else "not compiled"
    assert re.fullmatch(rf"minikafka 0\.\d+\.\d+ \(pure Python: {reason}\)\n", told("--version").output)


# ---- summaries and contracts -----------------------------------------------------------------------------------------


def answer(error: ProtocolError | None = None) -> asyncio.Future[object]:
    future: asyncio.Future[object] = asyncio.Future(loop=asyncio.new_event_loop())
    if error is None:
        future.set_result(object())
    else:
        future.set_exception(error)
    future.get_loop().close()
    return future


def test_the_summary_of_produce_tells_failed_from_unknown():
    """Issue item 7: {"sent","acknowledged","failed","unknown"}; only `not_written` is failed, and silence is unknown."""
    tally = Tally(promised=True)
    tally.sent = 5
    tally.answered(answer())
    tally.answered(answer(NotEnoughReplicas("one left")))
    tally.answered(answer(RequestTimedOut("late", outcome="unknown")))
    tally.refused(MessageTooLarge("huge"))
    assert tally.summary() == {"sent": 5, "acknowledged": 1, "failed": 2, "unknown": 2}
    assert sum(tally.errors.values()) == 3
    assert json.dumps(tally.summary()).startswith('{"sent"')


def test_acks_0_promises_nothing():
    """S24: with acks=0 nobody answers, so nothing is acknowledged and all is unknown."""
    tally = Tally(promised=False)
    tally.sent = 1
    tally.answered(answer())
    assert tally.summary() == {"sent": 1, "acknowledged": 0, "failed": 0, "unknown": 1}


def test_explanation_has_events_without_a_time():
    """A broker that starts learns from the metadata what happened before, and not when."""
    event = {"at": None, "broker": 1, "sentence": "broker 1 was elected"}
    cause = {"sentence": "broker 1 leads", "because": [event, {**event, "at": "2026-11-21T08:00:00.000+00:00"}]}
    nothing = {"sentence": "", "because": [], "members": []}
    explained = {"topic": "orders", "partition": 0, "leader": cause, "isr": nothing, "high_watermark": nothing}
    lines = list(v1.lines({**explained, "last_stable_offset": nothing, "last_refusal": None}))
    assert lines[2:4] == [
        "    before its start         broker 1: broker 1 was elected",
        "    2026-11-21T08:00:00.000  broker 1: broker 1 was elected",
    ]


def test_the_json_of_topics_describe():
    """Issue item 7, word by word (S15: the partition state)."""
    partition = DescribedPartition(
        partition=0,
        leader=2,
        leader_epoch=5,
        partition_epoch=7,
        controller_epoch=3,
        replicas=(1, 2, 3),
        isr=(2, 3),
        elr=(1,),
    )
    topic = DescribedTopic(topic="orders", topic_id="x" * 22, config={"b": "2", "a": "1"}, partitions=(partition,))
    assert topics_json([topic]) == {
        "topics": [
            {
                "topic": "orders",
                "topic_id": "x" * 22,
                "config": {"a": "1", "b": "2"},
                "partitions": [
                    {
                        "partition": 0,
                        "leader": 2,
                        "leader_epoch": 5,
                        "partition_epoch": 7,
                        "controller_epoch": 3,
                        "replicas": [1, 2, 3],
                        "isr": [2, 3],
                        "elr": [1],
                        "last_known_elr": [],
                        "adding_replicas": [],
                        "removing_replicas": [],
                    }
                ],
            }
        ]
    }


def test_the_json_of_quorum_describe():
    """docs/cli.md: lag is that of the followers; null when none is known."""
    voters = tuple(QuorumReplica(replica_id=node, log_end_offset=10 - node, lag=node - 1) for node in (1, 2, 3))
    response = DescribeQuorumResponse(cluster_id="c", leader_id=1, leader_epoch=4, high_watermark=8, voters=voters)
    told_json = quorum_json(response)
    assert (told_json["leader_id"], told_json["max_follower_lag"], told_json["observers"]) == (1, 2, [])
    assert told_json["voters"][2] == {
        "replica_id": 3,
        "log_end_offset": 7,
        "lag": 2,
        "last_fetch_ms_ago": -1,
        "last_caught_up_ms_ago": -1,
        "status": "Observer",
    }
    assert quorum_json(DescribeQuorumResponse())["max_follower_lag"] is None


def test_cells_with_tabs_between_stay_cells(capsys):
    """One line of names, a line a row: nothing that a cell holds ends its line or its column."""
    print_table(("Name", "Replicas", "N"), [("a\tb\nc\\d\r", [1, 2], 7), (None, [], "")], "tsv")
    print_table(("Name",), [], "tsv")
    assert capsys.readouterr().out == "Name\tReplicas\tN\na\\tb\\nc\\\\d\\r\t1,2\t7\n-\t-\t-\nName\n"


def test_a_table_is_not_cut_where_there_is_no_terminal(capsys):
    """Issue item 7: tables for people, also through a pipe: a line is a line, however long."""
    print_table(("Name", "N"), [("x" * 300, 7), ("short", 12)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["Name", "N"], ["x" * 300, "7"], ["short", "12"]]
    assert "\x1b" not in "".join(lines)


def test_a_state_that_no_group_can_have_is_a_misuse():
    """As kafka-consumer-groups: a mistyped one looked as if no group were in it."""
    result = CliRunner().invoke(root, ["groups", "list", "--state", "empty,Stabel", "-b", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "--state 'Stabel': one of Empty, PreparingRebalance, CompletingRebalance, Stable, Assigning" in result.output


class Terminal(io.StringIO):
    """Standard output of somebody who looks."""

    def isatty(self) -> bool:
        return True


def at_a_terminal(
    monkeypatch, columns: tuple[str, ...], *rows: tuple[object, ...], no_color: str | None = "1", kind: str = "xterm"
) -> str:
    """What somebody at 60 columns sees of a table."""
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("COLUMNS", "60")
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    with contextlib.redirect_stdout(Terminal()) as screen:
        print_table(columns, rows)
    return screen.getvalue()


def test_a_narrow_terminal_folds_the_last_column_and_cuts_nothing(monkeypatch):
    """Issue item 7: names were cut that are to be typed (scenarios, groups)."""
    story = "one thing after another " * 4
    told = at_a_terminal(monkeypatch, ("Scenario", "N", "Teaches"), ("a-name-of-some-length", 7, story))
    _, *lines = told.splitlines()
    assert lines[0].split()[:2] == ["a-name-of-some-length", "7"]
    assert " ".join(lines).split()[2:] == story.split()
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_a_terminal_too_narrow_for_a_table_gets_whole_cells(monkeypatch, kind):
    """`groups describe` is wider than most terminals: lines run on, as those of Kafka's tools."""
    cells = ("g" * 20, "t" * 20, "c" * 40, "127.0.0.1")
    told = at_a_terminal(monkeypatch, ("GROUP", "TOPIC", "CONSUMER-ID", "HOST"), cells, kind=kind)
    _, row = told.splitlines()
    assert tuple(row.split()) == cells


def test_a_cell_cannot_steer_the_terminal(capsys):
    """Names of groups and clients are whatever somebody sent; numbers stand right, and no line ends in blanks."""
    print_table(("GROUP", "N", "HOST"), [("a\x1b[2J\nb", 7, ""), ("c", 12, "h")])
    assert capsys.readouterr().out == "GROUP         N  HOST\na\\x1b[2J\\nb   7  -\nc            12  h\n"


@pytest.mark.parametrize(("value", "is_plain"), [(None, False), ("", False), ("1", True)])
def test_no_color_is_plain_text(monkeypatch, value, is_plain):
    """https://no-color.org: not empty means none; bold names of columns are an escape sequence too."""
    told = at_a_terminal(monkeypatch, ("Name", "N"), ("orders", 7), no_color=value)
    assert ("\x1b" not in told) is is_plain


@pytest.mark.parametrize(("cell", "text"), [((1, 2), "1,2"), ((), "-"), (None, "-"), ("", "-"), (0, "0")])
def test_cells(cell, text):
    """Replicas as Kafka prints them; nothing is a dash, but zero is a number."""
    assert shown(cell) == text


def test_help_shows_how_a_command_connects_behind_its_own_options():
    """Seven options that most commands share pushed the command's own ones out of the first screen."""
    own, shared = CliRunner().invoke(root, ["topics", "create", "--help"]).output.split("\nConnection options:\n")
    assert "--partitions" in own
    assert "--bootstrap-server" not in own
    assert all(option in shared for option in ("-b, --bootstrap-server", "--ca FILE", "--user TEXT"))
    assert "Connection options" not in CliRunner().invoke(root, ["up", "--help"]).output


def test_help_of_a_command_that_cannot_log_in_offers_no_login():
    """`minikafka audit --user ann` is refused."""
    text = CliRunner().invoke(root, ["audit", "--help"]).output
    assert "--ca FILE" in text
    assert "--user" not in text
    assert "--token-file" not in text


def test_command_that_restarts_a_broker_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A data directory may have blanks in its name. The other terminal is in another folder: the path is absolute."""
    monkeypatch.chdir(tmp_path)
    ports = Ports()
    (files,) = prepare(Path("my data"), ports, brokers=1, config={}).brokers
    ports.release()
    broker = SimpleNamespace(node_id=1, pid=7, returncode=-9, obituary=lambda: "", files=files)
    up.JsonReport(None).died(broker)  # type: ignore[arg-type]
    command = json.loads(capsys.readouterr().out)["restart"]
    assert shlex.split(command) == ["minikafka", "serve", str(tmp_path / "my data/broker-1/broker.properties")]


def test_output_that_was_closed_at_the_start_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """`minikafka topics list >&-`: Python has no stream then, and an error of a disk became a traceback."""
    monkeypatch.setattr(sys, "stdout", None)
    running._drop_output()
