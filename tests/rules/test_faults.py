"""Faults as values: which messages a link carries, what cannot be asked for, how often a fault strikes (issue 5)."""

from __future__ import annotations

import asyncio

import pytest

from minikafka.errors import InvalidRequest
from minikafka.world.faults import Faults, FaultSpec, Link


@pytest.mark.parametrize(
    "text, carried, spared",
    [
        ("2>1", ["2>1"], ["1>2", "2>3", "client>1", "2>2"]),
        ("2<>1", ["2>1", "1>2"], ["2>3", "client>1"]),
        ("*>1", ["2>1", "client>1"], ["1>2", "1>client", "1>1"]),
        ("1<>*", ["1>2", "2>1", "client>1", "1>client"], ["2>3", "client>2", "1>1"]),
        ("1<>broker", ["1>2", "2>1"], ["client>1", "1>client", "2>3"]),
        ("client>*", ["client>1", "client>12"], ["1>client", "2>1"]),
        ("1>1", ["1>1"], ["1>2"]),
        (" 10 > 2 ", ["10>2"], ["1>2", "0>2"]),
    ],
)
def test_a_link_is_the_way_of_a_message(text: str, carried: list[str], spared: list[str]):
    """2 -> 1 is not 1 -> 2; wildcards leave out a node's way to itself, which no cable carries."""
    link = Link.parse(text)
    assert [way for way in carried if not link.carries(*way.split(">"))] == []
    assert [way for way in spared if link.carries(*way.split(">"))] == []


@pytest.mark.parametrize(
    "field, spec, told",
    [
        ("link", {"kind": "cut", "link": "2-1"}, "FROM>TO"),
        ("link", {"kind": "cut", "link": "brokers>1"}, "FROM>TO"),
        ("link", {"kind": "cut", "link": "2<1"}, "FROM>TO"),
        ("kind", {"kind": "cutt", "link": "2>1"}, "did you mean 'cut'"),
        ("api", {"kind": "cut", "link": "2>1", "api": "fetch"}, "did you mean 'Fetch'"),
        ("message", {"kind": "cut", "link": "2>1", "message": "reply"}, "request, answer"),
        ("count", {"kind": "cut", "link": "2>1", "count": 0}, "at least 1"),
        ("delay_ms", {"kind": "delay", "link": "2>1"}, "delay_ms"),
        ("delay_ms", {"kind": "delay", "link": "2>1", "delay_ms": -1.0}, "from 0"),
        ("jitter_ms", {"kind": "cut", "link": "2>1", "jitter_ms": 1.0}, "belongs to kind 'delay'"),
        ("message", {"kind": "duplicate", "link": "2>1", "message": "answer"}, "duplicate the request"),
    ],
)
def test_what_cannot_be_is_refused_by_name(field: str, spec: dict, told: str):
    """An error names the field and the fix: a fault that never strikes would let a test pass for nothing."""
    with pytest.raises(InvalidRequest, match=told) as refused:
        FaultSpec(**spec)
    assert refused.value.facts["field"] == field


def struck(faults: Faults, way: str, api: str = "Fetch", message: str = "request") -> list[int]:
    source, target = way.split(">")
    return [fault.number for fault in faults.on(source, target, api, message)]


def test_a_fault_strikes_its_own_api_and_message_only():
    """Issue 5: *2 -> 1, Fetch only*; a request and its answer are different messages."""
    faults = Faults()
    faults.add(FaultSpec(kind="drop", link="2>1", api="Fetch", message="request"))
    assert struck(faults, "2>1") == [1]
    assert struck(faults, "2>1", "Vote") == []
    assert struck(faults, "2>1", "MetadataFetch") == []
    assert struck(faults, "2>1", message="answer") == []


def test_a_count_is_the_next_so_many_and_the_hits_stay_to_be_read():
    """Issue 5: counts; a fault that has done its count stays in the list with its hits."""
    faults = Faults()
    fault = faults.add(FaultSpec(kind="drop", link="*>1", count=2))
    assert [struck(faults, "2>1"), struck(faults, "3>1"), struck(faults, "2>1")] == [[1], [1], []]
    assert (fault.hits, fault.is_active, list(faults.active)) == (2, False, [1])


def test_faults_strike_in_the_order_of_their_coming():
    """A delay first and a loss second are both met, and a fault healed meanwhile is not."""
    faults = Faults()
    for kind in ("hold", "duplicate", "drop"):
        faults.add(FaultSpec(kind=kind, link="2>1"))
    met = faults.on("2", "1", "Fetch", "request")
    assert next(met).spec.kind == "hold"
    faults.heal(2)
    assert [fault.spec.kind for fault in met] == ["drop"]


def test_a_duplicate_is_of_requests():
    """An answer is never struck by a duplicate: nothing would come of it."""
    faults = Faults()
    faults.add(FaultSpec(kind="duplicate", link="1<>2"))
    assert struck(faults, "1>2", message="answer") == []
    assert struck(faults, "2>1") == [1]


async def test_who_waits_for_hits_is_told():
    """Issue 5: `wait_hits(n)` returns with the n-th hit, and says so when no more can come."""
    faults = Faults()
    fault = faults.add(FaultSpec(kind="drop", link="2>1", count=2))
    waiting = asyncio.ensure_future(fault.until_hits(2))
    struck(faults, "2>1")
    await asyncio.sleep(0)
    assert not waiting.done()
    struck(faults, "2>1")
    assert await waiting == 2
    with pytest.raises(InvalidRequest, match="done its count of 2 after 2 hits"):
        await fault.until_hits(3)
    endless = faults.add(FaultSpec(kind="cut", link="3>1"))
    waiting = asyncio.ensure_future(endless.until_hits(1))
    await asyncio.sleep(0)
    assert faults.clear() == 2
    with pytest.raises(InvalidRequest, match="is healed after 0 hits"):
        await waiting
