"""Journals read and written: both forms, several brokers as one run, what a kill leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minikafka.ui.journal import BadJournal, Entry, read_journals, write_journal
from minikafka.world.events import EventLog


def recorded(path: Path, node: str, *told: tuple[int, str, dict[str, object]]) -> Path:
    """What a real broker's sink writes: (milliseconds, kind, facts)."""
    now_ms = 0
    log = EventLog(node=node, journal_path=str(path), wall_ns=lambda: now_ms * 1_000_000)
    for now_ms, kind, facts in told:  # noqa: B007 - read by the clock above
        log(kind, **facts)
    log.close()
    return path


def test_brokers_journals_become_one_run(tmp_path: Path):
    """mk.journal.path of three brokers: in order of time from the first event on, each with who told it."""
    one = recorded(
        tmp_path / "1.jsonl", "1", (5_000, "became_leader", {"epoch": 1}), (5_020, "hw_advanced", {"new": 3})
    )
    two = recorded(tmp_path / "2.jsonl", "2", (5_010, "batch_appended", {"base": 0, "isr": (1, 2)}))
    journal = read_journals([one, two])
    assert [(round(each.at_s, 3), each.broker, each.kind) for each in journal.entries] == [
        (0.0, 1, "became_leader"),
        (0.01, 2, "batch_appended"),
        (0.02, 1, "hw_advanced"),
    ]
    assert journal.entries[1].facts == {"base": 0, "isr": [1, 2]}
    assert (journal.is_simulated, journal.has_messages) == (False, False)


def test_a_fact_named_as_a_word_of_the_line_comes_back(tmp_path: Path):
    """The sink writes `node_` for a fact `node`: it is that fact again, and the teller stays the teller."""
    path = recorded(tmp_path / "1.jsonl", "1", (1, "registered", {"node": 7, "broker_epoch": 4}))
    entry = read_journals([path]).entries[0]
    assert (entry.node, entry.facts) == ("1", {"node": 7, "broker_epoch": 4})


def test_a_simulations_journal_survives_the_file(tmp_path: Path):
    """Written and read: the same entries, tuples as lists."""
    entries = [
        Entry(at_s=0.25, node="n1", life=2, kind="isr_shrunk", facts={"new": [1], "cause": "x"}, cause="Fetch#3"),
        Entry(at_s=0.5, node="", kind="violation", facts={"name": "committed_record_lost"}),
        Entry(at_s=0.5, node="p1", kind="message_sent", facts={"parts": {"orders-0": {"offset": 1}}}),
    ]
    path = tmp_path / "run.jsonl"
    write_journal(entries, path)
    journal = read_journals([path])
    assert journal.entries == entries
    assert (journal.is_simulated, journal.has_messages) == (True, True)
    assert [entry.broker for entry in entries] == [1, None, None]


def test_a_line_ends_at_a_line_feed_only(tmp_path: Path):
    """A client's name may have any other character at which Python would divide lines."""
    path = tmp_path / "run.jsonl"
    names = "a\u2028b\u2029c\x85d"
    write_journal([Entry(at_s=1.0, node="n1", kind="refused", facts={"client": names})], path)
    assert read_journals([path]).entries[0].facts == {"client": names}


def test_a_line_that_a_kill_cut_short_is_passed_over(tmp_path: Path):
    """kill -9 in the middle of a write: all before it counts."""
    path = recorded(tmp_path / "1.jsonl", "1", (1, "broker_started", {}))
    with path.open("a") as file:
        file.write('{"ts_ms":17,"eve')
    assert [entry.kind for entry in read_journals([path]).entries] == ["broker_started"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no events"),
        ("not json\n{}\n", ":1: not a line of JSON"),
        ('{"event":"x"}\n', ":1: an event has"),
        ('{"ts_ms":1,"node":"1"}\n', ":1: an event has"),
        ("[1]\n", ":1: an event has"),
        ('{"ts_ms":true,"event":"x"}\n', ":1: an event has"),
    ],
)
def test_a_file_that_is_no_journal_is_named_with_its_line(tmp_path: Path, text: str, message: str):
    """An error says which line of which file, and what was expected."""
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(BadJournal, match=message):
        read_journals([path])


def test_a_simulation_and_a_real_broker_are_not_one_run(tmp_path: Path):
    """Virtual seconds and milliseconds since 1970 have no common order."""
    real = recorded(tmp_path / "1.jsonl", "1", (1, "broker_started", {}))
    simulated = tmp_path / "sim.jsonl"
    simulated.write_text(json.dumps({"t_s": 0.5, "node": "n1", "event": "node_started"}) + "\n")
    with pytest.raises(BadJournal, match="cannot be one run"):
        read_journals([real, simulated])
