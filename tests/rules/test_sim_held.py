"""What invariants compare of compacted logs (S29): the last of each key, and whatever still stands at an offset."""

from __future__ import annotations

from minikafka.sim.held import Batch, latest
from minikafka.sim.invariants import Exposed, still_owed


def row(offset: int, key: bytes, *, crc: int = 0, gone: bool = False) -> Batch:
    return Batch(offset, offset + 1, 0, crc, key, gone)


def test_the_last_of_a_key_is_owed_and_nothing_else():
    """A leader that lacks what a later record replaces is whole; so is one whose tombstones are gone."""
    rows = [row(0, b"a"), row(1, b"b"), row(2, b"a"), row(3, b"c"), row(4, b"c", gone=True)]
    exposed = [Exposed(each, 1) for each in rows]
    assert [each.batch.base_offset for each in still_owed(exposed, [])] == [1, 2]
    # The next one may be in its log, and not committed yet.
    assert [each.batch.base_offset for each in still_owed(exposed, [row(5, b"b")])] == [2]


def test_a_tombstone_is_the_same_as_nothing():
    """One replica still has it, the next one has not: neither has the key."""
    assert latest([row(0, b"a"), row(1, b"a", gone=True)]) == latest([]) == {}
    assert latest([row(0, b"a", crc=1), row(1, b"a", crc=2)]) == {b"a": row(1, b"a", crc=2)}
