"""Which TLS handshakes begin, which wait, and which are closed for others."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from minikafka.world import connections
from minikafka.world.connections import Handshakes


class Shake:
    """A connection; keeps what becomes of it."""

    def __init__(self, ip: str, all_of_them: Handshakes) -> None:
        self.remote = ip
        self.has_begun = False
        self.is_aborted = False
        self._all = all_of_them

    def begin(self) -> None:
        assert not self.has_begun
        assert not self.is_aborted
        self.has_begun = True

    def abort(self) -> None:
        self.is_aborted = True
        self._all.ended(self)


async def arrive(table: Handshakes, ip: str, count: int = 1) -> list[Shake]:
    """Connections of one turn of the loop, after the turns in which those begin for which there is room."""
    made = [Shake(ip, table) for _ in range(count)]
    for each in made:
        table.arrived(each)
    await turns()
    return made


async def turns() -> None:
    """As many as a test's handshakes need."""
    for _ in range(30):
        await asyncio.sleep(0)


def begun(shakes: list[Shake]) -> int:
    return sum(each.has_begun for each in shakes)


async def test_one_address_has_half_of_the_handshakes_under_way():
    """What one address has beyond that waits, and delays no other address."""
    table = Handshakes(8)
    many = await arrive(table, "a", 20)
    assert (begun(many), table.under_way, table.waiting) == (4, 4, 16)
    others = await arrive(table, "b", 3)
    assert (begun(others), table.waiting) == (3, 16)
    table.ended(many[0])
    await turns()
    assert [each.has_begun for each in many[4:6]] == [True, False]
    for each in [*many, *others]:
        table.ended(each)
        table.ended(each)
        await turns()
    assert (begun(many), table.under_way, table.waiting) == (20, 0, 0)


async def test_addresses_take_turns():
    """A connection of another address begins after one more handshake of each address, however many wait."""
    table = Handshakes(4)
    first = [*await arrive(table, "a", 100), *await arrive(table, "b", 100)]
    (late,) = await arrive(table, "c")
    assert (table.under_way, late.has_begun) == (4, False)
    for each in [each for each in first if each.has_begun][:3]:
        table.ended(each)
    await turns()
    assert late.has_begun
    assert Counter(each.remote for each in first if each.has_begun) == {"a": 3, "b": 3}


async def test_slow_handshakes_end_for_those_that_wait(monkeypatch: pytest.MonkeyPatch):
    """Handshakes that nobody waits for have their whole time; others PATIENCE_S, the oldest first."""
    monkeypatch.setattr(connections, "PATIENCE_S", 0.1)
    monkeypatch.setattr(connections, "LOOK_S", 0.01)
    refused: list[str] = []
    table = Handshakes(4, refused.append)
    alone = [*await arrive(table, "a", 2), *await arrive(table, "b")]
    await asyncio.sleep(0.3)
    assert not any(each.is_aborted for each in alone)
    quick = await arrive(table, "c", 3)
    assert begun(quick) == 1
    await asyncio.sleep(0.05)
    # Two slots of the four may be theirs; the oldest handshake made room for the second one.
    assert [each.is_aborted for each in alone] == [True, False, False]
    assert (begun(quick), refused) == (2, ["a"])
    table.ended(quick[0])
    await turns()
    assert begun(quick) == 3
    await asyncio.sleep(0.3)
    assert [each.is_aborted for each in alone] == [True, False, False]


async def test_an_address_at_its_limit_waits_for_its_own_handshakes(monkeypatch: pytest.MonkeyPatch):
    """Closing those of others would make no room for it."""
    monkeypatch.setattr(connections, "PATIENCE_S", 0.05)
    monkeypatch.setattr(connections, "LOOK_S", 0.01)
    table = Handshakes(8)
    (other,) = await arrive(table, "b")
    slow = await arrive(table, "a", 5)
    await asyncio.sleep(0.2)
    assert not other.is_aborted
    assert [each.is_aborted for each in slow] == [True, False, False, False, False]
    assert begun(slow) == 5


async def test_beyond_the_limit_of_waiting_connections_one_of_the_address_with_the_most_is_closed(
    monkeypatch: pytest.MonkeyPatch,
):
    """The one that has waited longest; the memory that strangers can use is bounded."""
    monkeypatch.setattr(connections, "WAITING_MAX", 10)
    refused: list[str] = []
    table = Handshakes(2, refused.append)
    flood = await arrive(table, "a", 10)
    await arrive(table, "b", 2)
    assert refused == []
    assert table.waiting == 10
    (late,) = await arrive(table, "c")
    assert (refused, table.waiting, late.is_aborted) == (["a"], 10, False)
    assert [each.is_aborted for each in flood] == [False, True, *[False] * 8]
