"""The last events in memory: numbered, chosen, awaited, and written as a journal that the replay page reads."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

from minikafka.ui.journal import read_journals
from minikafka.world.events import TEXT_LENGTH_MAX, EventLog, EventRing, Wanted, as_text


def filled(size: int = 100) -> EventRing:
    ring = EventRing(size)
    one, two = ring.observer("1"), ring.observer("2")
    one("isr_shrunk", {"partition": "orders-0", "old": (1, 2), "new": (1,)})
    two("hw_advanced", {"partition": "orders-0", "new": 4})
    one("hw_advanced", {"partition": "orders-1", "new": 5})
    return ring


def kinds(rows) -> list[str]:
    return [row.kind for row in rows]


def test_brokers_share_one_numbering():
    """Who reads on from a number misses nothing and sees nothing twice."""
    ring = filled()
    assert [(row.seq, row.node) for row in ring.rows()] == [(1, "1"), (2, "2"), (3, "1")]
    assert [row.seq for row in ring.rows(3)] == [3]
    assert (ring.start, ring.end) == (1, 4)


def test_rows_are_chosen_by_kind_partition_and_node():
    """Issue 5: /v1/events filters by kind and partition."""
    ring = filled()
    assert kinds(ring.rows(wanted=Wanted(kinds=("isr_shrunk",)))) == ["isr_shrunk"]
    assert kinds(ring.rows(wanted=Wanted(partition="orders-1"))) == ["hw_advanced"]
    assert kinds(ring.rows(wanted=Wanted(node="1"), limit=1)) == ["isr_shrunk"]


def test_only_the_newest_are_kept_and_their_numbers_stay():
    """The ring is bounded: a reader that came too late sees from the numbers what it missed."""
    ring = filled(size=2)
    assert ([row.seq for row in ring.rows(1)], ring.start) == ([2, 3], 2)


async def test_who_waits_for_news_is_woken_by_the_next_event():
    """Await a state instead of sleeping: it is looked at after each event."""
    ring = filled()
    assert await ring.until_news(3, 10.0)
    waiting = asyncio.ensure_future(ring.until_news(ring.end, 10.0))
    await asyncio.sleep(0)
    ring.observer("3")("leader_elected", {})
    assert await waiting
    assert not await ring.until_news(ring.end, 0.001)


def test_what_is_written_is_a_journal(tmp_path):
    """A failed test's journal is opened by `minikafka sim show`: the same lines as of mk.journal.path."""
    journal = tmp_path / "journal.jsonl"
    ring = EventRing()
    log = EventLog(node="2", journal_path=str(journal), wall_ns=lambda: 5_000_000)
    log.observe(ring.observer("2"))
    log("isr_shrunk", partition="orders-0", new=frozenset({3, 1}), node=2)
    log.close()
    assert ring.write(tmp_path / "ring.jsonl") == 1
    kept, written = read_journals([journal]).entries[0], read_journals([tmp_path / "ring.jsonl"]).entries[0]
    assert dict(written.facts) == {**kept.facts, "seq": 1}
    assert (written.kind, written.node) == (kept.kind, kept.node) == ("isr_shrunk", "2")
    assert ring.write(tmp_path / "rest.jsonl", start=2) == 0


def test_a_text_that_a_client_chose_is_cut_in_events(tmp_path: Path):
    """Names of groups and members may have 32,767 characters: each change of a group was logged with all of them, and the
    newest 100,000 events would have taken 3 GB. A traceback is ours, and stays whole.
    """
    stream, ring, journal = io.StringIO(), EventRing(), tmp_path / "journal.jsonl"
    log = EventLog(node="1", stream=stream, journal_path=str(journal), render=as_text)
    log.observe(ring.observer("1"))
    facts = {"group": "g" * 32_767, "old": "Empty", "generation": 1, "traceback": "t" * 5_000}
    log("group_state_changed", **facts)
    log.close()
    [row] = ring.rows()
    assert row.facts == {**facts, "group": "g" * (TEXT_LENGTH_MAX - 100) + "... (32767 characters)"}
    assert len(journal.read_text()) < 5_000 + 2 * TEXT_LENGTH_MAX
    assert len(stream.getvalue()) < 5_000 + 2 * TEXT_LENGTH_MAX
    log("group_state_changed", group="g" * TEXT_LENGTH_MAX)
    assert list(ring.rows())[1].facts == {"group": "g" * TEXT_LENGTH_MAX}
