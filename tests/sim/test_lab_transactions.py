"""``minikafka lab run zombie-producer`` and the other stories of transactions: what production brokers and clients do."""

from __future__ import annotations

import json
from functools import cache

import pytest
from click.testing import CliRunner

from minikafka.cli.root import root
from minikafka.lab.transactions import STORIES, VERIFICATION, Played, Step, as_json, play, rows


@cache
def story(name: str) -> Played:
    return play(name, {})


def committed(step: Step) -> str:
    return " ".join(step.read["read_committed"])


def all_records(step: Step) -> str:
    return " ".join(step.read["read_uncommitted"])


@pytest.mark.parametrize("name", STORIES)
def test_last_stable_offset_bounds_what_a_committed_reader_sees(name: str):
    """Issue 17: LSO ≤ HW, neither goes back, and read_committed returns a part of read_uncommitted in its order."""
    before: Step | None = None
    for step in story(name).steps:
        assert step.last_stable_offset <= step.high_watermark, step
        left = iter(step.read["read_uncommitted"])
        assert all(value in left for value in step.read["read_committed"]), step
        if before is not None:
            assert before.last_stable_offset <= step.last_stable_offset
            assert before.high_watermark <= step.high_watermark
            assert committed(step).startswith(committed(before))
        before = step


def test_isolation_levels_differ_by_open_and_aborted_transactions():
    """A record without a transaction waits behind an open one; an aborted record stays for read_uncommitted."""
    steps = story("isolation-levels").steps
    assert [(each.state, all_records(each), committed(each)) for each in steps] == [
        ("Ongoing", "a", ""),
        ("Ongoing", "a b", ""),
        ("CompleteCommit", "a b", "a b"),
        ("Ongoing", "a b c", "a b"),
        ("CompleteAbort", "a b c", "a b"),
        ("CompleteAbort", "a b c d", "a b d"),
    ]


def test_zombie_is_fenced_and_its_record_is_never_committed():
    """Issue 17 point 6: it wakes up after its successor has committed."""
    steps = story("zombie-producer").steps
    assert [each.what for each in steps[-2:]] == [
        "p1 wakes up and commits: PRODUCER_FENCED",
        "p1 begins a transaction: PRODUCER_FENCED",
    ]
    assert (all_records(steps[-1]), committed(steps[-1])) == ("old new", "new")
    assert steps[-1].high_watermark == steps[-3].high_watermark, "the zombie has written nothing"


def test_decision_outlives_its_coordinator():
    """Issue 17 point 6: between PrepareCommit and the markers nothing is readable; the next coordinator sends them."""
    steps = story("coordinator-dies").steps
    assert [(each.state, each.last_stable_offset, committed(each)) for each in steps] == [
        ("Ongoing", 0, ""),
        ("PrepareCommit", 0, ""),
        ("CompleteCommit", 2, "a"),
        ("CompleteCommit", 4, "a b"),
    ]


def test_hanging_transaction_holds_the_last_stable_offset_until_it_is_aborted():
    """Issue 17 point 6: time does not help; with verification the late batch is refused and nothing hangs."""
    steps = story("hanging-transaction").steps
    assert [each.last_stable_offset for each in steps] == [1, 1, 1, 1, 1, 4]
    assert (all_records(steps[-1]), committed(steps[-1])) == ("a late b", "a b")
    refused = play("hanging-transaction", {VERIFICATION: "true"}).steps
    assert refused[1].what.endswith(": INVALID_PRODUCER_ID_MAPPING")
    assert committed(refused[-1]) == all_records(refused[-1]) == "a b"
    assert refused[-1].what == "`find-hanging` reports nothing"


def test_the_same_story_is_the_same_text():
    """The lab's rule: a story that differs from run to run teaches nothing."""
    assert rows(play("coordinator-dies", {})) == rows(story("coordinator-dies"))


def test_run_prints_a_table_or_json():
    """docs/lab.md: the JSON is a contract."""
    text = CliRunner().invoke(root, ["lab", "run", "zombie-producer"]).stdout
    assert "# zombie-producer: A producer wakes up after its successor has committed" in text
    assert "LSO" in text
    done = CliRunner().invoke(root, ["lab", "run", "hanging-transaction", "-o", "json"])
    found = json.loads(done.stdout)
    assert found == as_json(story("hanging-transaction"))
    assert found.keys() == {"scenario", "options", "steps"}
    assert found["options"] == {VERIFICATION: "false"}
    members = {"at_s", "what", "state", "high_watermark", "last_stable_offset", "read"}
    assert all(each.keys() == members for each in found["steps"])
    assert found["steps"][0]["state"] is None, "no transactional id is known yet"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "zombie-producer", "--set", "acks=1"), "no option acks=1; its options: none"),
        (("run", "hanging-transaction", "--set", f"{VERIFICATION}=maybe"), f"its options: {VERIFICATION}=true|false"),
        (("run", "coordinator-dies", "--truncation", "leader-epoch"), "no option truncation"),
        (("compare", "isolation-levels"), "no second rule set"),
    ],
)
def test_unknown_options_are_refused(arguments: tuple[str, ...], words: str):
    """Exit code 2, and nothing is played."""
    done = CliRunner().invoke(root, ["lab", *arguments])
    assert done.exit_code == 2
    assert words in done.output
