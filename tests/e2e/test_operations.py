"""Operations on a running cluster, as an administrator has them: the commands, their layouts, a fourth broker."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
import urllib.request
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner

from minikafka.cli import spark
from minikafka.cli.root import root
from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.haste import SHORT_SESSIONS

pytestmark = pytest.mark.e2e

MINIKAFKA = [sys.executable, "-m", "minikafka"]
TIMEOUT_S = 180
QUICK = SHORT_SESSIONS


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on by itself; it is gone at the end, however that came."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "MK_"))}
    running = subprocess.Popen(
        [*MINIKAFKA, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate(timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers in this process."""
    with LocalCluster(brokers=3, config=QUICK) as running:
        yield running


def told(cluster: LocalCluster, *arguments: str, code: int = 0) -> str:
    """What a command prints, asked against the cluster; of one that fails also its sentence."""
    result = CliRunner().invoke(root, [*arguments, "-b", cluster.bootstrap], prog_name="minikafka")
    assert result.exit_code == code, (result.output, result.exception)
    return result.output if code else result.stdout


def as_json(cluster: LocalCluster, *arguments: str, code: int = 0) -> dict:
    return json.loads(told(cluster, *arguments, "-o", "json", code=code))


def create(cluster: LocalCluster, name: str, partitions: int = 1, factor: int = 3) -> None:
    told(cluster, "topics", "create", name, "--partitions", str(partitions), "--replication-factor", str(factor))


def described(cluster: LocalCluster, name: str) -> list[dict]:
    [topic] = as_json(cluster, "topics", "describe", name)["topics"]
    return topic["partitions"]


def until(met: Callable[[], bool]) -> None:
    """Ask until it is so."""
    deadline = time.monotonic() + TIMEOUT_S
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_lists_with_tabs_have_the_cells_of_the_tables(cluster: LocalCluster):
    """-o tsv on all that lists: one header, as many cells in every line, nothing for people among them."""
    create(cluster, "tabs", partitions=2)
    told(cluster, "config", "alter", "--topic", "tabs", "--set", "retention.ms=5")

    def rows(*arguments: str) -> list[dict[str, str]]:
        header, *lines = (line.split("\t") for line in told(cluster, *arguments, "-o", "tsv").splitlines())
        assert all(len(line) == len(header) for line in lines)
        return [dict(zip(header, line, strict=True)) for line in lines]

    assert {"Topic": "tabs", "PartitionCount": "2", "ReplicationFactor": "3"} in rows("topics", "list")
    partitions = rows("topics", "describe", "tabs")
    assert [(each["Topic"], each["Partition"], len(each["Replicas"].split(","))) for each in partitions] == [
        ("tabs", "0", 3),
        ("tabs", "1", 3),
    ]
    assert [each["Adding"] for each in partitions] == ["-", "-"]
    [topic] = [each for each in rows("topics", "describe", "--topics-with-overrides") if each["Topic"] == "tabs"]
    assert topic["Configs"] == "retention.ms=5"
    assert rows("topics", "describe", "tabs", "--unavailable-partitions") == []
    [setting] = rows("config", "describe", "--topic", "tabs")
    assert (setting["Setting"], setting["Value"]) == ("retention.ms", "5")
    assert rows("config", "alter", "--topic", "tabs", "--delete", "retention.ms")[0]["Setting"] == "retention.ms"
    assert rows("config", "describe", "--topic", "tabs") == []
    assert [each["Offset"] for each in rows("offsets", "tabs")] == ["0", "0"]
    assert rows("topics", "delete-records", "tabs", "0:end")[0] == {"Partition": "0", "LowWatermark": "0"}
    [quorum] = rows("quorum", "describe", "--status")
    assert quorum["LeaderId"] in {each["NodeId"] for each in rows("quorum", "describe", "--replication")}
    assert rows("reassign", "status") == []
    assert rows("reassign", "generate", "tabs", "--brokers", "1,2,3") == []
    moved = rows("reassign", "generate", "tabs", "--brokers", "1,2", "--replication-factor", "2")
    assert {len(each["Proposed"].split(",")) for each in moved} == {2}
    assert rows("elect", "preferred", "tabs-0")[0]["Partition"] == "tabs-0"
    assert rows("groups", "list") == []
    for words, sentence in (
        (("groups", "list"), "There are no groups."),
        (("groups", "list", "--state", "Stable"), "No group is in that state."),
        *((("groups", what, "--all-groups"), "There are no groups.") for what in ("describe", "members", "state")),
        (("transactions", "list"), "There are no transactional ids."),
        (("transactions", "list", "--state", "Ongoing"), "No transactional id matches."),
        (("transactions", "describe-producers", "tabs-0"), "No leader of these partitions knows a producer."),
        (("connections", "--protocol", "kafka"), "There is no such connection."),
    ):
        assert told(cluster, *words) == f"{sentence}\n"
    assert {each["Level"] for each in rows("doctor")} <= {"note", "warning", "error"}


def test_a_job_of_a_missing_topic_fails_before_spark_starts(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch):
    """With the sentence of all commands; it came after seconds, behind a page of Java's. A wrong -b is refused there, too."""
    monkeypatch.setattr(spark, "open_session", lambda *_: pytest.fail("Spark was started"))
    create(cluster, "flown")
    monkeypatch.setenv("MINIKAFKA_TOKEN", "for other commands")
    folders = ("--into", "/nowhere/into", "--checkpoint", "/nowhere/checkpoint")
    for words in (
        ("archive", "missing"),
        ("flights", "--topic", "missing"),
        ("flights", "--topic", "flown", "--summary-topic", "missing"),
    ):
        said = told(cluster, "spark", *words, *folders, code=1)
        assert said == (
            "minikafka: UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'missing'; `minikafka topics list` shows the topics\n"
        )
    nobody = ["spark", "audit", __file__, "-b", "127.0.0.1:1"]
    assert "no broker can be reached (127.0.0.1:1" in CliRunner().invoke(root, nobody).output
    assert "--user" not in told(cluster, "spark", "archive", "--help")
    assert "this command cannot log in" in told(cluster, "spark", "archive", "flown", *folders, "--user", "ann", code=2)
    secured = ["spark", "archive", "flown", *folders, "-b", f"https://{cluster.bootstrap}"]
    assert "leave it out, and connect with TLS by --ca" in CliRunner().invoke(root, secured).output


def test_a_reader_begins_and_ends_where_it_is_told(cluster: LocalCluster):
    """HTTP-CLI-CONVENTIONS 4.1: --partition, --offset and --timeout-ms, as in kafka-console-consumer and kcat."""
    create(cluster, "places", partitions=2)
    [address] = cluster.bootstrap.split(",")[:1]
    for partition in (0, 1):
        records = [{"value": f"{partition}-{number}", "timestamp": 1_000 * (number + 1)} for number in range(5)]
        path = f"http://{address}/v1/topics/places/partitions/{partition}/records"
        body = json.dumps({"records": records}).encode()
        urllib.request.urlopen(urllib.request.Request(path, body, {"Content-Type": "application/json"})).read()

    def read(*arguments: str, code: int = 0) -> list[str]:
        return sorted(told(cluster, "consume", "places", *arguments, code=code).splitlines())

    assert read("--partition", "1", "--offset", "3", "--exit-at-end") == ["1-3", "1-4"]
    assert read("--offset", "-1", "--exit-at-end") == ["0-4", "1-4"]
    for patience_ms in ("300", "3000", "30000"):  # the first record may take a while to come
        found = read("--offset", "@4000", "--timeout-ms", patience_ms)
        if len(found) == 4:
            break
    assert found == ["0-3", "0-4", "1-3", "1-4"]
    assert read("--offset", "1970-01-01T00:00:06Z", "--exit-at-end") == []
    assert read("--offset", "beginning", "--partition", "0", "--max-messages", "2") == ["0-0", "0-1"]
    assert read("--timeout-ms", "50") == []
    assert "outside 0 to 5" in "".join(read("--offset", "6", code=1))
    assert "no 7" in "".join(read("--partition", "7", code=1))


def test_a_topic_is_copied_by_two_commands(cluster: LocalCluster):
    """Keys, nulls, headers, one partition from the command line; `consume -o json | produce --json` keeps all of it."""
    create(cluster, "originals", partitions=2)
    create(cluster, "copies")

    def produce(given: str, *arguments: str, code: int = 0) -> tuple[dict, str]:
        done = subprocess.run(
            [*MINIKAFKA, "produce", *arguments, "-b", cluster.bootstrap],
            input=given, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout), done.stderr

    options = ("--key-separator", ":", "--key", "k", "--null-marker", "NULL", "-H", "trace=7", "--partition", "1")
    assert produce("ann:tea\nbob:NULL\nalone\n", "originals", *options)[0]["acknowledged"] == 3
    read = ("--from-beginning", "--exit-at-end", "-o", "json")
    lines = told(cluster, "consume", "originals", "--partition", "1", *read)
    records = [json.loads(line) for line in lines.splitlines()]
    assert [(each["key"], each["value"]) for each in records] == [("ann", "tea"), ("bob", None), ("k", "alone")]
    assert [each["headers"] for each in records] == [[["trace", "7"]]] * 3
    assert produce(lines, "copies", "--json")[0]["acknowledged"] == 3
    copies = [json.loads(line) for line in told(cluster, "consume", "copies", *read).splitlines()]
    assert [{**each, "topic": "originals", "partition": 1} for each in copies] == records
    summary, why = produce('{"value":1}\nno record\n{"value":2}\n', "copies", "--json", code=1)
    assert (summary["acknowledged"], summary["failed"]) == (1, 1)
    assert "line 2" in why


def test_settings_are_altered_and_shown(cluster: LocalCluster):
    """config alter and describe, in all three layouts; what is wrong is refused in one sentence."""
    create(cluster, "settings")
    at = ("--topic", "settings")
    assert told(cluster, "config", "alter", *at, "--set", "retention.ms=5", "--set", "segment.bytes=2000") == (
        "Altered retention.ms, segment.bytes of topic settings.\n"
    )
    found = as_json(cluster, "config", "describe", *at)
    assert (found["type"], found["name"]) == ("topic", "settings")
    assert {each["name"]: each["value"] for each in found["configs"]} == {"retention.ms": "5", "segment.bytes": "2000"}
    assert found["configs"][0]["synonyms"][1]["source"] == "DEFAULT_CONFIG"
    assert told(cluster, "config", "describe", *at, "-o", "kafka").splitlines() == [
        "Dynamic configs for topic settings are:",
        "  retention.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5, DEFAULT_CONFIG:log.retention.ms=604800000}",
        "  segment.bytes=2000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:segment.bytes=2000, DEFAULT_CONFIG:log.segment.bytes=1073741824}",
    ]
    done = told(cluster, "config", "alter", *at, "--delete", "segment.bytes", "-o", "kafka")
    assert done == "Completed updating config for topic settings.\n"
    dry = as_json(cluster, "config", "alter", *at, "--set", "retention.ms=9", "--dry-run")
    assert (dry["altered"], dry["dry_run"]) == (["retention.ms"], True)
    assert [line.split()[:2] for line in told(cluster, "config", "describe", *at).splitlines()[1:]] == [
        ["retention.ms", "5"]
    ]
    assert "did you mean retention.ms?" in told(cluster, "config", "alter", *at, "--set", "retention.mss=5", code=2)
    assert "restart" in told(cluster, "config", "alter", "--broker", "1", "--set", "node.id=5", code=2)
    told(cluster, "config", "alter", "--all-brokers", "--set", "log.retention.bytes=123456")
    every = as_json(cluster, "config", "describe", "--broker", "2", "--all")
    missing = told(cluster, "config", "describe", "--broker", "77", code=1)
    assert "no broker 77 is running; the brokers that run are 1, 2, 3" in missing, "it waited for the broker's start"
    shown = {each["name"]: (each["value"], each["source"], each["read_only"]) for each in every["configs"]}
    assert shown["log.retention.bytes"] == ("123456", "DYNAMIC_DEFAULT_BROKER_CONFIG", False)
    assert shown["node.id"] == ("2", "STATIC_BROKER_CONFIG", True)
    told(cluster, "config", "alter", "--all-brokers", "--delete", "log.retention.bytes")
    assert "Nothing was altered" in told(cluster, "config", "describe", "--all-brokers")


def test_produce_reports_a_topic_that_it_had_created_and_an_empty_input_creates_none(cluster: LocalCluster):
    """Brokers create what they are asked for: the user of `produce ordrs` learns of it, with partitions and replicas."""
    send = [*MINIKAFKA, "produce", "ordrs", "-b", cluster.bootstrap]

    def said(given: str) -> str:
        done = subprocess.run(send, input=given, text=True, check=True, capture_output=True, timeout=TIMEOUT_S)
        return done.stderr

    assert said("") == ""
    assert "ordrs" not in told(cluster, "topics", "list")
    assert said("a\nb\n") == (
        "minikafka: there was no topic ordrs: the brokers have created it, with 1 partition and replication factor 1\n"
    )
    assert said("c\n") == ""
    send += ["--partition", "9"]
    done = subprocess.run(send, input="d\n", text=True, check=False, capture_output=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ordrs has 1 partition, and no 9" in done.stderr, "at once: the producer would wait for it for a minute"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_consume_exits_with_130(cluster: LocalCluster, number: signal.Signals):
    """`consume` exits with 130, as `minikafka --help` says of every command that is interrupted."""
    if "read-on" not in told(cluster, "topics", "list"):
        create(cluster, "read-on")
        send = [*MINIKAFKA, "produce", "read-on", "-b", cluster.bootstrap]
        subprocess.run(send, input="a\n", text=True, check=True, capture_output=True, timeout=TIMEOUT_S)
    with process("consume", "read-on", "--from-beginning", "-b", cluster.bootstrap) as reading:
        assert reading.stdout.readline() == "a\n"
        reading.send_signal(number)
        assert reading.wait(TIMEOUT_S) == 130


@pytest.mark.parametrize("membership", [(), ("--group", "left-by-its-reader")], ids=["alone", "member"])
def test_consume_ends_when_the_reader_of_its_output_leaves_an_idle_topic(
    cluster: LocalCluster, membership: tuple[str, ...]
):
    """`consume | head -1` ends with exit code 0 although no further record comes, which a write would have to fail on."""
    name = "left-alone" if membership else "left"
    create(cluster, name)
    send = [*MINIKAFKA, "produce", name, "-b", cluster.bootstrap]
    subprocess.run(send, input="a\n", text=True, check=True, capture_output=True, timeout=TIMEOUT_S)
    with process("consume", name, "--from-beginning", *membership, "-b", cluster.bootstrap) as reading:
        assert reading.stdout.readline() == "a\n"
        reading.stdout.close()
        assert reading.wait(TIMEOUT_S) == 0
        reading.stdout = None
    if membership:
        group = as_json(cluster, "groups", "describe", "left-by-its-reader")
        assert [each["committed"] for each in group["offsets"]] == [1], group
        assert group["members"] == []


def test_a_member_commits_nothing_that_it_could_not_print(cluster: LocalCluster):
    """`consume --group billing > orders` on a full disk: the group must get these records again."""
    create(cluster, "unprinted")
    cluster.sync.produce("unprinted", b"a", b"b", partition=0)
    read = [*MINIKAFKA, "consume", "unprinted", "--from-beginning", "--group", "full-disk", "-b", cluster.bootstrap]
    with Path("/dev/full").open("w") as full:
        failed = subprocess.run(read, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=TIMEOUT_S)
    assert (failed.returncode, failed.stderr) == (
        1,
        "minikafka: the output cannot be written: No space left on device\n",
    )
    again = subprocess.run([*read, "--exit-at-end"], capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    assert again.stdout == "a\nb\n"


def test_consume_is_interrupted_while_nobody_reads_its_output(cluster: LocalCluster):
    """`consume | less`: a write that waits for the reader must not keep signals and heartbeats waiting."""
    create(cluster, "unread")
    cluster.sync.produce("unread", *[bytes(1000)] * 200, partition=0)
    with process("consume", "unread", "--from-beginning", "--group", "unread", "-b", cluster.bootstrap) as reading:
        size = fcntl.fcntl(reading.stdout, fcntl.F_GETPIPE_SZ)
        until(lambda: size - waiting_in(reading.stdout) < select.PIPE_BUF)
        reading.send_signal(signal.SIGTERM)
        assert reading.wait(TIMEOUT_S) == 130
    group = as_json(cluster, "groups", "describe", "unread")
    assert group["members"] == []
    assert all(each["committed"] * 1000 <= size for each in group["offsets"]), "it committed what it did not print"


def waiting_in(pipe: IO[str]) -> int:
    """Bytes that nobody has read yet."""
    count = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_a_terminal_shows_control_characters_escaped(cluster: LocalCluster):
    """A record must not clear the reader's screen; --raw and a pipe get its bytes."""
    create(cluster, "hostile")
    send = [*MINIKAFKA, "produce", "hostile", "-b", cluster.bootstrap]
    subprocess.run(send, input=b"\x1b[2J\x07\n", check=True, capture_output=True, timeout=TIMEOUT_S)
    read = [*MINIKAFKA, "consume", "hostile", "--from-beginning", "--exit-at-end", "-b", cluster.bootstrap]

    def on_a_terminal(*options: str) -> bytes:
        ours, theirs = os.openpty()
        try:
            subprocess.run([*read, *options], stdout=theirs, check=True, timeout=TIMEOUT_S)
            return os.read(ours, 1000)
        finally:
            os.close(ours)
            os.close(theirs)

    assert on_a_terminal() == rb"\x1b[2J\x07" + b"\r\n"
    assert on_a_terminal("--raw") == b"\x1b[2J\x07\r\n"
    piped = subprocess.run(read, check=True, capture_output=True, timeout=TIMEOUT_S).stdout
    assert piped == b"\x1b[2J\x07\n"


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("consume", b"minikafka: waiting for new records; --from-beginning also prints older ones\r\n"),
        ("produce", b"minikafka: one record a line; Ctrl-D ends the input\r\n"),
    ],
)
def test_a_command_that_waits_says_so_on_a_terminal(cluster: LocalCluster, command: str, hint: bytes):
    """`consume orders` without new records, and `produce orders` without a pipe, looked like a hang."""
    if "waited" not in told(cluster, "topics", "list"):
        create(cluster, "waited")
    ours, theirs = os.openpty()
    try:
        running = subprocess.Popen(
            [*MINIKAFKA, command, "waited", "-b", cluster.bootstrap], stdin=theirs, stdout=theirs, stderr=theirs
        )
        try:
            assert select.select([ours], [], [], TIMEOUT_S)[0], "it says nothing"
            assert os.read(ours, 1000) == hint
            running.send_signal(signal.SIGINT)
            assert running.wait(TIMEOUT_S) == 130
        finally:
            running.kill()
            running.wait()
    finally:
        os.close(ours)
        os.close(theirs)


def test_produce_is_interrupted_while_it_waits_behind_the_end_of_its_input(cluster: LocalCluster):
    """A partition refuses acks=all: Ctrl-C seemed to do nothing until the delivery timeout of two minutes."""
    create(cluster, "refused")
    command = [*MINIKAFKA, "produce", "refused", "-b", cluster.bootstrap]
    pipe = subprocess.PIPE
    with (
        cluster.faults.error("client>*", "NOT_ENOUGH_REPLICAS", api="Produce") as refusal,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as sending,
    ):
        sending.stdin.write("tea\n")
        sending.stdin.close()
        until(lambda: refusal.hits > 0)
        sending.send_signal(signal.SIGINT)
        assert (
            sending.stderr.readline() == "minikafka: waiting for the answers to 1 record; Ctrl-C again gives them up\n"
        )
        sending.send_signal(signal.SIGINT)
        assert sending.wait(TIMEOUT_S) == 130


def test_produce_is_interrupted_while_it_connects():
    """A broker that stands still accepts connections: Ctrl-C seemed to do nothing for 15 s, and was exit code 1 then."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with process("produce", "orders", "-b", f"{host}:{port}") as sending:
            asked = [silent.accept()[0] for _ in range(2)]  # by the first one it learns that something listens there
            assert asked[1].recv(1)
            sending.send_signal(signal.SIGINT)
            assert sending.wait(TIMEOUT_S) == 130
            for each in asked:
                each.close()


def test_who_interrupts_produce_while_brokers_are_down_is_told_what_it_waits_for():
    """Ctrl-C waits for answers, up to delivery.timeout.ms: two minutes without a word looked like a hang."""
    with LocalCluster(1, config=QUICK) as cluster:
        cluster.sync.create_topic("t")
        command = [*MINIKAFKA, "produce", "t", "-b", cluster.bootstrap]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as sending:
            sending.stdin.write("a\n")
            sending.stdin.flush()
            cluster.sync.wait.high_watermark("t", 0, 1, timeout_s=TIMEOUT_S)
            cluster.kill(1)
            sending.stdin.write("b\n")
            sending.stdin.flush()
            time.sleep(0.5)  # until it is buffered; sooner only makes the count 0
            sending.send_signal(signal.SIGINT)
            lines = iter(sending.stderr.readline, "")
            # What the client logs of the broker that is down comes first.
            told = next(line for line in lines if "the client retries" not in line)
            assert re.match(r"minikafka: waiting for the answers to \d records?; Ctrl-C again", told)
            sending.send_signal(signal.SIGINT)
            assert sending.wait(TIMEOUT_S) == 130


def test_partitions_are_added_and_records_deleted(cluster: LocalCluster):
    """topics alter, offsets, topics delete-records."""
    create(cluster, "growing")
    assert told(cluster, "topics", "alter", "growing", "--partitions", "3") == "Topic growing has 3 partitions.\n"
    assert [each["partition"] for each in described(cluster, "growing")] == [0, 1, 2]
    refused = told(cluster, "topics", "alter", "growing", "--partitions", "2", code=1)
    assert "INVALID_PARTITIONS" in refused
    send = [*MINIKAFKA, "produce", "growing", "-b", cluster.bootstrap]
    subprocess.run(send, input="a\nb\nc\n", text=True, check=True, capture_output=True, timeout=TIMEOUT_S)
    ends = [each["offset"] for each in as_json(cluster, "offsets", "growing")["offsets"]]
    assert sum(ends) == 3
    full = ends.index(max(ends))
    refused = told(cluster, "topics", "delete-records", "growing", f"{full}:end", "99:1", code=1)
    assert "growing has 3 partitions, and no 99; nothing was deleted" in refused
    cut = told(cluster, "topics", "delete-records", "growing", f"{full}:end", "-o", "kafka")
    assert cut.splitlines()[-1] == f"partition: growing-{full}\tlow_watermark: {ends[full]}"
    starts = told(cluster, "offsets", "growing", "--time", "earliest", "-o", "kafka").splitlines()
    assert starts[full] == f"growing:{full}:{ends[full]}"


def test_a_partition_is_moved_by_kafkas_file(cluster: LocalCluster, tmp_path: Path):
    """reassign generate, execute, status, cancel: the files and layouts of kafka-reassign-partitions.sh."""
    create(cluster, "moving", partitions=2, factor=2)
    before = [each["replicas"] for each in described(cluster, "moving")]
    plan, rollback = tmp_path / "plan.json", tmp_path / "rollback.json"
    plan.write_text(told(cluster, "reassign", "generate", "moving", "--brokers", "1,3"))
    proposed = [each["replicas"] for each in json.loads(plan.read_text())["partitions"]]
    assert [sorted(each) for each in proposed] == [[1, 3], [1, 3]]
    told(cluster, "reassign", "execute", str(plan), "--wait", "--rollback", str(rollback))
    assert [each["replicas"] for each in described(cluster, "moving")] == proposed
    assert told(cluster, "reassign", "status", str(plan), "-o", "kafka").splitlines() == [
        "Status of partition reassignment:",
        "Reassignment of partition moving-0 is completed.",
        "Reassignment of partition moving-1 is completed.",
    ]
    told(cluster, "reassign", "status", str(rollback), code=1)
    started = told(cluster, "reassign", "execute", str(rollback), "--wait", "-o", "kafka")
    assert started.splitlines()[-1] == "Successfully started partition reassignments for moving-0,moving-1"
    assert [each["replicas"] for each in described(cluster, "moving")] == before
    assert as_json(cluster, "reassign", "status") == {"reassignments": [], "not_as_wanted": []}
    assert told(cluster, "reassign", "cancel", "--all", "-o", "kafka") == (
        "None of the specified partition reassignments are active.\n"
    )
    assert "no broker is registered as 9" in told(cluster, "reassign", "execute", "moving-0=1,9", code=1)


def test_a_broker_that_is_away_is_what_the_doctor_and_the_others_tell_of(cluster: LocalCluster):
    """A reassignment to a dead broker waits and is cancelled; partitions at their minimum, elections, the doctor."""
    create(cluster, "sick", partitions=3)
    create(cluster, "moved", factor=1)
    told(cluster, "config", "alter", "--topic", "sick", "--set", "min.insync.replicas=2")
    assert as_json(cluster, "doctor")["ok"]
    cluster.kill(3)
    try:
        until(lambda: all(len(each["isr"]) == 2 for each in described(cluster, "sick")))
        at_minimum = told(cluster, "topics", "describe", "sick", "--at-min-isr-partitions", "-o", "kafka")
        assert len(at_minimum.splitlines()) == 3
        assert at_minimum.startswith("\tTopic: sick\tPartition: 0\tLeader: 1\tReplicas: 1,2,3\tIsr: 1,2\tElr: ")
        # A topic's head would say that the topic has as many partitions as have the trouble.
        names, *rows = (
            line.split() for line in told(cluster, "topics", "describe", "--at-min-isr-partitions").splitlines()
        )
        assert names[:3] == ["Topic", "Partition", "Leader"]
        assert [row[:2] for row in rows if row[0] == "sick"] == [["sick", "0"], ["sick", "1"], ["sick", "2"]]
        assert (
            told(cluster, "topics", "describe", "sick", "--under-min-isr-partitions")
            == "No partition has that trouble.\n"
        )
        verdict = as_json(cluster, "doctor", code=1)
        by_check = {(each["check"], each["level"]) for each in verdict["findings"]}
        assert {("advertised", "error"), ("min-isr", "warning")} <= by_check
        assert "-> " in told(cluster, "doctor", code=1)

        away = described(cluster, "moved")[0]["replicas"][0]
        assert away == 1
        told(cluster, "reassign", "execute", "moved-0=3,1")
        [waiting] = as_json(cluster, "reassign", "status")["reassignments"]
        assert (waiting["adding_replicas"], waiting["waits_for"], waiting["records_left"]) == ([3], [3], 0)
        assert told(cluster, "reassign", "status", "-o", "kafka").splitlines() == [
            "Current partition reassignments:",
            "moved-0: replicas: 3,1. adding: 3.",
        ]
        assert "--additional" in told(cluster, "reassign", "execute", "sick-0=1,2", code=1)
        assert told(cluster, "reassign", "cancel", "moved-0") == "Cancelled: moved-0.\n"
    finally:
        cluster.restart(3)
    preferred = as_json(cluster, "elect", "preferred", "sick-0")
    assert [each["error"] for each in preferred["partitions"]] == ["ELECTION_NOT_NEEDED"]
    assert told(cluster, "elect", "unclean", "sick-0", "-o", "kafka") == (
        "Valid replica already elected for partitions sick-0\n"
    )


def test_topics_that_are_there_already_and_that_are_not(cluster: LocalCluster):
    """kafka-topics' --if-not-exists, --if-exists, --topics-with-overrides."""
    create(cluster, "twice")
    assert "TOPIC_ALREADY_EXISTS" in told(cluster, "topics", "create", "twice", code=1)
    assert told(cluster, "topics", "create", "twice", "--if-not-exists") == "Topic twice exists.\n"
    assert told(cluster, "topics", "create", "own", "--config", "retention.ms=5") == "Created topic own.\n"
    lines = told(cluster, "topics", "describe", "--topics-with-overrides", "-o", "kafka").splitlines()
    assert [line for line in lines if not line.startswith("Topic: ") or line.startswith("Topic: twice")] == []
    assert [line.endswith("Configs: retention.ms=5") for line in lines if line.startswith("Topic: own\t")] == [True]
    assert "Configs: retention.ms=5" in told(cluster, "topics", "describe", "own", "--topics-with-overrides")
    assert told(cluster, "topics", "describe", "twice", "--topics-with-overrides") == (
        "No topic has settings of its own.\n"
    )
    assert told(cluster, "topics", "delete", "own", "--if-exists") == "Deleted topic own.\n"
    assert told(cluster, "topics", "delete", "own", "--if-exists") == "There is no topic own.\n"
    assert "UNKNOWN_TOPIC_OR_PARTITION" in told(cluster, "topics", "delete", "own", code=1)


def test_a_partition_is_explained(cluster: LocalCluster):
    """D9 at the command line: the sentences of /v1's explain, with what led to them; JSON is its answer."""
    create(cluster, "explained")
    [partition] = described(cluster, "explained")
    text = told(cluster, "explain", "explained-0").splitlines()
    assert text[0] == "explained-0"
    assert f"leader          broker {partition['leader']} leads epoch 0" in text[1]
    assert any(line.startswith("isr             the ISR is") for line in text)
    assert any(line.startswith("high watermark  ") for line in text)
    assert as_json(cluster, "explain", "explained-0")["isr"]["isr"] == partition["isr"]
    assert "is not a partition" in told(cluster, "explain", "explained", code=2)
    assert "there is no topic" in told(cluster, "explain", "nobody-0", code=1)


def test_faults_at_the_command_line():
    """Set, listed with their hits, healed; what cannot be is told in the words of /v1/faults."""
    with LocalCluster(2, config={**QUICK, "mk.testing.endpoints.enable": "true"}) as cluster:
        fault = as_json(
            cluster, "faults", "add", "delay", "*>*", "--delay-ms", "1", "--for-ms", "600000", "--seed", "7"
        )
        assert (fault["broker"], fault["id"], fault["kind"], fault["seed"]) == (1, 1, "delay", 7)
        assert told(cluster, "faults", "add", "drop", "1>2", "--api", "Vote", "--probability", "0.5").startswith(
            "Set fault 1:2 (drop 1>2)"
        )
        until(lambda: as_json(cluster, "faults", "list")["faults"][0]["hits"] > 0)
        assert "1:2" in told(cluster, "faults", "list")
        assert told(cluster, "faults", "held") == "No message is held.\n"
        assert told(cluster, "faults", "heal", "1:1") == "Healed 1.\n"
        assert "has no fault 1" in told(cluster, "faults", "heal", "1:1", code=1)
        assert told(cluster, "faults", "heal") == "Healed 1.\n"
        assert told(cluster, "faults", "list") == "There are no faults.\n"
        assert told(cluster, "faults", "list", "-o", "tsv").startswith("Fault\tKind\t")
        assert "FROM>TO" in told(cluster, "faults", "add", "cut", "2-1", code=1)
        assert "did you mean" in told(cluster, "faults", "add", "cut", "2>1", "--api", "fetch", code=1)
        refuses = ("faults", "add", "error", "client:billing>*", "--api", "Produce", "--count", "2")
        fault = as_json(cluster, *refuses, "--error", "NOT_LEADER_OR_FOLLOWER")
        assert (fault["error"], fault["message"], fault["count"]) == ("NOT_LEADER_OR_FOLLOWER", None, 2)
        assert "Kafka's name of an error" in told(cluster, *refuses, code=1)
        assert "BROKER:NUMBER" in told(cluster, "faults", "heal", "7", code=2)
        assert "no broker 9" in told(cluster, "faults", "heal", "9:1", code=2)


def test_faults_need_the_testing_endpoints(cluster: LocalCluster):
    """The sentence names the setting."""
    assert "mk.testing.endpoints.enable=true" in told(cluster, "faults", "add", "cut", "2>1", code=1)
    assert "mk.testing.endpoints.enable=true" in told(cluster, "faults", "list", code=1)


def test_the_quorum_in_kafkas_layout(cluster: LocalCluster):
    """quorum describe --status and --replication."""
    status = told(cluster, "quorum", "describe", "--status", "-o", "kafka").splitlines()
    assert [line.partition(":")[0] for line in status] == [
        *("ClusterId", "LeaderId", "LeaderEpoch", "HighWatermark"),
        *("MaxFollowerLag", "MaxFollowerLagTimeMs", "CurrentVoters", "CurrentObservers"),
    ]
    replication = told(cluster, "quorum", "describe", "--replication", "-o", "kafka").splitlines()
    assert [line.split("\t")[-2].strip() for line in replication] == ["Status", "Leader", "Follower", "Follower"]
    assert told(cluster, "topics", "list", "-o", "kafka").splitlines() == sorted(
        each["topic"] for each in as_json(cluster, "topics", "list")["topics"]
    )


def test_a_view_is_shown_again_until_it_is_interrupted(cluster: LocalCluster):
    """--watch: one JSON object a line into a pipe; Ctrl-C is its end, and exit code 0."""
    create(cluster, "watched")
    with process("topics", "describe", "watched", "--watch", "-o", "json", "-b", cluster.bootstrap) as watching:
        for _ in range(2):
            assert json.loads(watching.stdout.readline())["topics"][0]["topic"] == "watched"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(TIMEOUT_S) == 0


def test_a_fourth_broker_joins_and_takes_its_share(tmp_path: Path):
    """`minikafka join`: a process that is no voter; partitions are moved to it while they are in use; it comes back."""
    with LocalCluster(brokers=3, config=QUICK) as cluster:
        create(cluster, "orders", partitions=4)
        send = [*MINIKAFKA, "produce", "orders", "-b", cluster.bootstrap]
        values = [f"value {number}" for number in range(500)]
        subprocess.run(send, input="\n".join(values), text=True, check=True, capture_output=True, timeout=TIMEOUT_S)
        joining = ["join", "-b", cluster.bootstrap, "--data-dir", str(tmp_path)]
        for attempt in range(2):
            again = joining if attempt == 0 else ["serve", str(tmp_path / "broker-4" / "broker.properties")]
            with process(*again) as fourth:
                assert json.loads(fourth.stdout.readline())["broker"] == 4
                [observer] = as_json(cluster, "quorum", "describe")["observers"]
                assert (observer["replica_id"], observer["status"]) == (4, "Observer")
                plan = tmp_path / "plan.json"
                plan.write_text(told(cluster, "reassign", "generate", "--brokers", "1,2,3,4"))
                told(cluster, "reassign", "execute", str(plan), "--wait")
                held = [each["replicas"] for each in described(cluster, "orders")]
                assert sum(4 in each for each in held) == 3
                assert [each["replicas"] for each in json.loads(plan.read_text())["partitions"]] == held
                until(lambda: all(len(each["isr"]) == 3 for each in described(cluster, "orders")))
                told(cluster, "elect", "preferred", "--all")
                assert [each["leader"] for each in described(cluster, "orders")] == [each[0] for each in held]
                read = [*MINIKAFKA, "consume", "orders", "--from-beginning", "--exit-at-end", "-b", cluster.bootstrap]
                found = subprocess.run(read, text=True, check=True, capture_output=True, timeout=TIMEOUT_S).stdout
                assert sorted(found.splitlines()) == sorted(values)
                if attempt == 1:
                    alive = told(cluster, "unregister", "4", code=1)
                    assert "broker 4 is alive; stop it first" in alive
                fourth.terminate()
                assert fourth.wait(TIMEOUT_S) == 0
        leaves_for_good(cluster, tmp_path / "plan.json")


def leaves_for_good(cluster: LocalCluster, plan: Path) -> None:
    """`minikafka unregister`: once its partitions are moved away, and it is stopped, nobody lists it any more."""
    held = told(cluster, "unregister", "4", code=1)
    assert "broker 4 has replicas of orders-" in held
    assert "move them to other brokers" in held
    plan.write_text(told(cluster, "reassign", "generate", "--brokers", "1,2,3"))
    told(cluster, "reassign", "execute", str(plan), "--wait")
    brokers = f"http://{cluster.bootstrap.partition(',')[0]}/v1/brokers"

    def registered() -> list[int]:
        with urllib.request.urlopen(brokers, timeout=TIMEOUT_S) as page:
            return [each["id"] for each in json.load(page)["brokers"]]

    assert registered() == [1, 2, 3, 4]
    with urllib.request.urlopen(urllib.request.Request(f"{brokers}/4", method="DELETE"), timeout=TIMEOUT_S) as page:
        assert json.load(page) == {"id": 4, "unregistered": True}
    assert registered() == [1, 2, 3]
    assert "no broker 4 is registered" in told(cluster, "unregister", "4", code=1)
