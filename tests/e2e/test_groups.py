"""Consumer groups through the command line: real brokers, real members (S29 to S34)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.test_processes import MINIKAFKA, Up, run

pytestmark = pytest.mark.e2e

SETTLE_S = 180.0


@pytest.fixture(scope="module")
def up(tmp_path_factory) -> Iterator[Up]:
    """Three brokers and a topic of four partitions with forty records."""
    folder: Path = tmp_path_factory.mktemp("groups")
    settings = ("group.initial.rebalance.delay.ms=200", "offsets.topic.num.partitions=4")
    with Up(folder, "--brokers", "3", *(part for each in settings for part in ("--config", each))) as cluster:
        run("topics", "create", "t", "--partitions", "4", "--replication-factor", "3", "-b", cluster.bootstrap)
        keyed = "".join(f"k{n}:{n}\n" for n in range(40))
        run("produce", "t", "-b", cluster.bootstrap, "--key-separator", ":", given=keyed)
        yield cluster


def described(up: Up, group: str) -> dict:
    return json.loads(run("groups", "describe", group, "-b", up.bootstrap, "-o", "json"))


def eventually(met: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + SETTLE_S
    while not met():
        assert time.monotonic() < until, f"waited {SETTLE_S} s for {what}"
        time.sleep(0.1)


def member(up: Up, group: str, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*MINIKAFKA, "consume", "t", "-b", up.bootstrap, "--group", group, "--client-id", name, "--from-beginning"],
        stdout=subprocess.DEVNULL,
        stderr=sys.stderr,
        text=True,
    )


def test_two_members_share_and_commit_what_they_print(up: Up):
    """S29, S34: two of four partitions each; SIGTERM commits and leaves; whoever comes later goes on there."""
    members = [member(up, "shared", name) for name in ("one", "two")]
    try:

        def is_shared() -> bool:
            names = [
                each["group"] for each in json.loads(run("groups", "list", "-b", up.bootstrap, "-o", "json"))["groups"]
            ]
            if "shared" not in names:
                return False
            found = described(up, "shared")
            counts = [len(part["partitions"]) for each in found["members"] for part in each["assignment"]]
            return found["state"] == "Stable" and counts == [2, 2]

        eventually(is_shared, "two members with two partitions each")
        found = described(up, "shared")
        assert {each["client_id"] for each in found["members"]} == {"one", "two"}
        state = json.loads(run("groups", "state", "shared", "-b", up.bootstrap, "-o", "json"))
        assert (state["assignment_strategy"], state["members"]) == ("range", 2)
        refused = run(
            "groups",
            "reset-offsets",
            "shared",
            "--topic",
            "t",
            "--to-earliest",
            "--execute",
            "-b",
            up.bootstrap,
            code=1,
        )
        assert "stop its members first" in refused
        eventually(lambda: sum(each["lag"] or 0 for each in described(up, "shared")["offsets"]) == 0, "no lag")
    finally:
        for each in members:
            each.send_signal(signal.SIGTERM)
        assert [each.wait(timeout=180) for each in members] == [130, 130]
    assert described(up, "shared")["state"] == "Empty"
    more = run("consume", "t", "-b", up.bootstrap, "--group", "shared", "--exit-at-end", "--from-beginning")
    assert more == ""


def test_internal_topics_can_be_left_out(up: Up):
    """Issue 5 item 4: fifty partitions that nobody made are not what is looked for."""

    def topics(*command: str) -> set[str]:
        told = json.loads(run(*command, "-b", up.bootstrap, "-o", "json"))
        return {each["topic"] for each in told[command[0]]}

    run(
        "groups", "describe", "nobody", "-b", up.bootstrap, code=1
    )  # the group's coordinator is looked for: the topic is made
    for command in (("topics", "list"), ("topics", "describe"), ("offsets",)):
        assert topics(*command) == {"t", "__consumer_offsets"}
        assert topics(*command, "--exclude-internal") == {"t"}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_exit_at_end_ends_a_member_without_partitions(up: Up, protocol: str):
    """More members than partitions: one of them has nothing to read, now or after it has waited."""
    group = f"crowded-{protocol}"
    run("topics", "create", group, "--partitions", "1", "--replication-factor", "3", "-b", up.bootstrap)
    run("produce", group, "-b", up.bootstrap, given="tea\n")
    consume = [*MINIKAFKA, "consume", group, "-b", up.bootstrap, "--group", group, "--from-beginning"]
    consume += ["--group-protocol", protocol]
    with subprocess.Popen(consume, stdout=subprocess.PIPE, stderr=sys.stderr, text=True) as reader:
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "tea\n"
            idle = subprocess.run(
                [*consume, "--exit-at-end"], capture_output=True, text=True, check=False, timeout=SETTLE_S
            )
        finally:
            reader.terminate()
    # Which of the two has the partition afterwards is up to the assignor.
    assert (idle.returncode, idle.stderr) == (0, "")
    assert idle.stdout in ("", "tea\n")


def test_offsets_are_reset_shown_first_and_then_done(up: Up, tmp_path: Path):
    """Issue 6: dry run unless --execute; then the group reads again from there."""
    first = run("consume", "t", "-b", up.bootstrap, "--group", "again", "--exit-at-end", "--from-beginning")
    assert sorted(map(int, first.split())) == list(range(40))
    reset = ("groups", "reset-offsets", "again", "--topic", "t", "--shift-by", "-2", "-b", up.bootstrap, "-o", "json")
    assert json.loads(run(*reset))["executed"] is False
    assert sum(each["lag"] for each in described(up, "again")["offsets"]) == 0
    done = json.loads(run(*reset, "--execute"))
    assert done["executed"] is True
    assert sum(each["lag"] for each in described(up, "again")["offsets"]) == 8
    second = run("consume", "t", "-b", up.bootstrap, "--group", "again", "--exit-at-end")
    assert len(second.split()) == 8
    kafka = run("groups", "describe", "again", "-b", up.bootstrap, "-o", "kafka").split("\n")
    assert kafka[0] == ""
    assert kafka[1].startswith("GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG ")
    assert len(kafka) == 2 + 4 + 1
    assert kafka[2].startswith("again           t               0          ")
    csv = tmp_path / "again.csv"
    exported = run("groups", "reset-offsets", "again", "--topic", "t", "--to-earliest", "--export", "-b", up.bootstrap)
    assert exported == "t,0,0\nt,1,0\nt,2,0\nt,3,0\n\n"
    as_json = json.loads(run(*reset, "--export"))
    assert (as_json["executed"], len(as_json["offsets"])) == (False, 4)
    csv.write_text(exported)
    from_file = ("groups", "reset-offsets", "again", "--from-file", str(csv), "--execute", "-b", up.bootstrap)
    assert run(*from_file, "-o", "kafka").split("\n")[1] == "GROUP           TOPIC           PARTITION  NEW-OFFSET"
    assert sum(each["lag"] for each in described(up, "again")["offsets"]) == 40
    csv.write_text("t,0\n")
    assert "line 1: 't,0': topic,partition,offset is needed" in run(*from_file, code=2)
    assert "again" in run("groups", "list", "-o", "kafka", "-b", up.bootstrap).split("\n")
    state = run("groups", "state", "again", "-o", "kafka", "-b", up.bootstrap).split("\n")
    assert state[1].split() == ["GROUP", "COORDINATOR", "(ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"]
    table = run("groups", "describe", "again", "-b", up.bootstrap)
    assert table.split()[:6] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    every = json.loads(run("groups", "describe", "--all-groups", "-b", up.bootstrap, "-o", "json"))["groups"]
    assert described(up, "again") in every
    for about in ("members", "state"):
        told = json.loads(run("groups", about, "--all-groups", "-b", up.bootstrap, "-o", "json"))["groups"]
        assert json.loads(run("groups", about, "again", "-b", up.bootstrap, "-o", "json")) in told
    assert "\nagain " in run("groups", "describe", "--all-groups", "-b", up.bootstrap, "-o", "kafka")
    all_reset = ("groups", "reset-offsets", "--all-groups", "--all-topics", "--to-latest", "--execute")
    reset_all = json.loads(run(*all_reset, "-b", up.bootstrap, "-o", "json"))["offsets"]
    assert {each["group"] for each in reset_all} >= {"again"}
    assert sum(each["lag"] for each in described(up, "again")["offsets"]) == 0
    forget = ("groups", "delete-offsets", "again", "-b", up.bootstrap, "--topic")
    assert json.loads(run(*forget, "t:1,3", "-o", "json")) == {
        "group": "again",
        "deleted": [{"topic": "t", "partitions": [1, 3]}],
    }
    committed = [each for each in described(up, "again")["offsets"] if each["committed"] is not None]
    assert [each["partition"] for each in committed] == [0, 2]
    assert run(*forget, "t:0", "-o", "kafka").startswith(
        "Request succeed for deleting offsets with topic t group again"
    )
    assert "has no partition 7" in run(*forget, "t:7", code=1)
    deleted = run("groups", "delete", "again", "-b", up.bootstrap, "-o", "kafka")
    assert deleted == "Deletion of requested consumer groups ('again') was successful.\n"
    assert "GROUP_ID_NOT_FOUND" in run("groups", "describe", "again", "-b", up.bootstrap, code=1)


def test_offsets_outlive_kill_nine_of_their_coordinator(up: Up):
    """S34: with acks of the whole ISR behind each commit."""
    run("consume", "t", "-b", up.bootstrap, "--group", "lasting", "--exit-at-end", "--from-beginning")
    coordinator = json.loads(run("groups", "state", "lasting", "-b", up.bootstrap, "-o", "json"))["coordinator"]
    os.kill(up.brokers[coordinator]["pid"], signal.SIGKILL)
    found = described(up, "lasting")
    assert sum(each["committed"] for each in found["offsets"]) == 40
