"""Faults as values: which messages a link carries, what cannot be asked for, how often a fault strikes (issue 5)."""

from __future__ import annotations

import asyncio

import pytest

from minikafka.errors import NOT_WRITTEN, UNKNOWN, InvalidRequest, NotLeaderOrFollower
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
        ("client>1", ["client:billing>1"], ["1>client:billing"]),
        ("client:billing<>*", ["client:billing>1", "2>client:billing"], ["client>1", "client:bill>1", "2>1"]),
        ("1<>broker", ["1>2"], ["client:billing>1", "1>client:billing"]),
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
        ("jitter_ms", {"kind": "reorder", "link": "2>1", "jitter_ms": 1.0}, "belongs to kind 'delay'"),
        ("delay_ms", {"kind": "cut", "link": "2>1", "delay_ms": 1.0}, "belongs to kind 'delay' and 'reorder'"),
        ("probability", {"kind": "cut", "link": "2>1", "probability": 0.0}, "more than 0 and at most 1"),
        ("probability", {"kind": "cut", "link": "2>1", "probability": 1.5}, "more than 0 and at most 1"),
        ("seed", {"kind": "cut", "link": "2>1", "seed": -1}, "from 0"),
        ("for_ms", {"kind": "cut", "link": "2>1", "for_ms": 0.0}, "more than 0"),
        ("message", {"kind": "duplicate", "link": "2>1", "message": "answer"}, "duplicate the request"),
        ("error", {"kind": "error", "link": "2>1", "api": "Fetch"}, "Kafka's name of an error"),
        (
            "error",
            {"kind": "error", "link": "2>1", "api": "Fetch", "error": "not_leader"},
            "did you mean 'NOT_LEADER_OR",
        ),
        ("error", {"kind": "cut", "link": "2>1", "error": "NOT_CONTROLLER"}, "belongs to kind 'error'"),
        ("api", {"kind": "error", "link": "2>1", "error": "NOT_CONTROLLER"}, "needs an api"),
        (
            "api",
            {"kind": "error", "link": "2>1", "api": "ApiVersions", "error": "NOT_CONTROLLER"},
            "cannot be answered",
        ),
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


@pytest.mark.parametrize("text", ["2>1", "3<>broker", "client:7>1", "*>*"])
def test_link_between_known_brokers_is_accepted(text: str):
    """Issue 5: ends without a number, and numbers of client ids, name no broker."""
    Link.parse(text).check_brokers((1, 2, 3))


@pytest.mark.parametrize("text", ["9>1", "1<>9", "client>9"])
def test_link_of_unknown_broker_is_refused(text: str):
    """A misspelt number would make a fault that never strikes, and a test that passes for it."""
    with pytest.raises(InvalidRequest, match="there is no broker 9, only 1, 2, 3") as refused:
        Link.parse(text).check_brokers((3, 1, 2))
    assert refused.value.facts["field"] == "link"


def test_a_fault_strikes_its_own_api_and_message_only():
    """Issue 5: *2 -> 1, Fetch only*; a request and its answer are different messages."""
    faults = Faults()
    faults.add(FaultSpec(kind="drop", link="2>1", api="Fetch", message="request"))
    assert struck(faults, "2>1") == [1]
    assert struck(faults, "2>1", "Vote") == []
    assert struck(faults, "2>1", "MetadataFetch") == []
    assert struck(faults, "2>1", message="answer") == []


@pytest.mark.parametrize("message, outcome", [(None, NOT_WRITTEN), ("request", NOT_WRITTEN), ("answer", UNKNOWN)])
def test_error_fault_strikes_requests_unless_it_names_answers(message: str | None, outcome: str):
    """A request that was answered with an error was not handled; one whose answer was replaced may have been."""
    faults = Faults()
    spec = FaultSpec(kind="error", link="client>1", api="Produce", error="NOT_LEADER_OR_FOLLOWER", message=message)
    fault = faults.add(spec)
    where = message or "request"
    assert struck(faults, "client>1", "Produce", "answer" if where == "request" else "request") == []
    assert struck(faults, "client>1", "Fetch", where) == []
    assert struck(faults, "client>1", "Produce", where) == [1]
    error = fault.error(where)
    assert (type(error), error.outcome) == (NotLeaderOrFollower, outcome)
    assert str(error) == f"fault 1 (error client>1, Produce{f' {message}s' if message else ''})"


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


def test_no_fault_strikes_the_requests_that_heal_faults():
    """M6: a broker that is cut off is healed through another one."""
    faults = Faults()
    faults.add(FaultSpec(kind="cut", link="*>*"))
    assert [each.number for each in faults.on("1", "2", "Fetch", "request")] == [1]
    for message in ("request", "answer"):
        assert list(faults.on("1", "2", "RunTestHook", message)) == []
    with pytest.raises(InvalidRequest):
        FaultSpec(kind="cut", link="*>*", api="RunTestHook")


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
    with pytest.raises(InvalidRequest, match="is over after 0 hits"):
        await waiting


def struck_of(faults: Faults, count: int) -> list[int]:
    """Which of so many messages are struck."""
    return [number for number in range(count) if struck(faults, "2>1")]


def test_chance_follows_from_the_seed_alone():
    """Issue 5: a probability is drawn from the run's seed, so that the run can be done again; a rule may bring its own.
    What another fault draws does not change it.
    """
    spec = FaultSpec(kind="drop", link="2>1", probability=0.25)
    first, again, other = Faults(seed=7), Faults(seed=7), Faults(seed=8)
    for faults in (first, again, other):
        faults.add(spec)
    again.add(FaultSpec(kind="delay", link="2>1", api="Vote", delay_ms=1, jitter_ms=9, probability=0.5))
    hits = struck_of(first, 400)
    assert 60 < len(hits) < 140
    assert struck_of(again, 400) == hits != struck_of(other, 400)
    assert first.active[1].hits == len(hits)

    own = FaultSpec(kind="drop", link="2>1", probability=0.25, seed=99)
    assert Faults(seed=7).add(own).seed == Faults(seed=8).add(own).seed == 99


def test_what_was_set_and_how_it_ended_is_told_with_its_seed():
    """Issue 5: the journal has all that is needed to set the same faults again; the first node tells."""
    told: list[tuple[str, dict]] = []
    faults = Faults(seed=7)
    fault = faults.add(FaultSpec(kind="drop", link="2>1", api="Fetch", probability=0.5))
    faults.join("1", lambda kind, /, **facts: told.append((kind, facts)))
    faults.join("2", lambda kind, /, **facts: told.append((kind, facts)))
    assert told == [
        (
            "fault_set",
            {"fault": 1, "what": "drop", "link": "2>1", "api": "Fetch", "delay_ms": 0.0, "jitter_ms": 0.0}
            | {"probability": 0.5, "seed": fault.seed},
        )
    ]
    faults.heal(1)
    assert told[1:] == [("fault_over", {"fault": 1, "hits": 0, "why": "it was healed"})]


async def test_a_fault_ends_by_itself():
    """`for_ms`: it strikes no more, lets go what it held, tells so, and stays in the list with its hits."""
    told: list[tuple[str, dict]] = []
    faults = Faults()
    faults.join("1", lambda kind, /, **facts: told.append((kind, facts)))
    fault = faults.add(FaultSpec(kind="hold", link="2>1", for_ms=5.0))
    assert struck(faults, "2>1") == [1]
    await fault.healed.wait()
    assert struck(faults, "2>1") == []
    assert (fault.is_active, fault.hits, list(faults.active)) == (False, 1, [1])
    assert told[-1] == ("fault_over", {"fault": 1, "hits": 1, "why": "its 5 ms are over"})
    faults.heal(1)
    assert len(told) == 2
    with pytest.raises(InvalidRequest, match="is over after 1 hits"):
        await fault.until_hits(2)


def test_before_the_start_no_time_passes():
    """A fault that shall end by itself needs a clock; nothing is half added."""
    faults = Faults()
    with pytest.raises(InvalidRequest, match="before the brokers are started"):
        faults.add(FaultSpec(kind="cut", link="2>1", for_ms=5.0))
    assert faults.active == {}
    assert faults.add(FaultSpec(kind="cut", link="2>1")).number == 1
