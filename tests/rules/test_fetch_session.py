"""Fetch sessions (KIP-227): both sides remember the same, whatever is lost on the way; and what an idle round costs."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from minikafka.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from minikafka.replication.fetch_session import (
    ALL_CONSUMERS_PARTITIONS_MAX,
    CONSUMER_PARTITIONS_MAX,
    EPOCH_MAX,
    IDLE_MAX_S,
    CachedPartition,
    FetcherSession,
    FetchSession,
    FetchSessions,
    SessionRequest,
    epoch_after,
)
from minikafka.types import TopicPartition
from minikafka.wire.messages import FetchPartition, FetchRequest, PartitionName
from tests.rules.replication_kit import LAG_S, batch, leader, log_of, seat, state, write

FOLLOWER = 2
INCARNATION = 20


def name(number: int) -> TopicPartition:
    return TopicPartition("orders", number)


def question(number: int, offset: int = 0, **facts: Any) -> FetchPartition:
    wanted = {"current_leader_epoch": 5, "last_fetched_epoch": 4, "log_start_offset": 0, "topic_id": "t", **facts}
    return FetchPartition(topic="orders", partition=number, fetch_offset=offset, **wanted)


def request(session_id: int, epoch: int, *items: FetchPartition, node: int = FOLLOWER, **facts: Any) -> FetchRequest:
    incarnation = {"replica_epoch": INCARNATION if node >= 0 else -1}
    return FetchRequest(
        replica_id=node, session_id=session_id, session_epoch=epoch, partitions=items, **{**incarnation, **facts}
    )


def sessions(slots: int = 10) -> FetchSessions:
    ids = count(100)
    return FetchSessions(slots, lambda: next(ids))


def begun(cache: FetchSessions, *items: FetchPartition, node: int = FOLLOWER, now: float = 0.0) -> FetchSession:
    session = cache.begin(request(0, 0, *(items or [question(0)]), node=node), now)
    assert session is not None
    return session


# ---- the leader's side -----------------------------------------------------------------------------------------------


def test_a_session_is_brought_up_to_date_by_what_has_changed():
    """KAFKA-FACTS 3.7: id 0 and epoch 0 create; then only changed and forgotten partitions are named."""
    cache = sessions()
    session = begun(cache, question(0), question(1, 7), question(2))
    gone = (PartitionName(topic="orders", partition=2), PartitionName(topic="orders", partition=9))
    again = cache.begin(request(session.id, 1, question(0, 3), question(5), forgotten=gone), 1.0)
    assert again is session
    assert {each.partition: cached.item.fetch_offset for each, cached in session.partitions.items()} == {
        0: 3,
        1: 7,
        5: 0,
    }
    assert cache.begin(request(session.id, 2), 2.0) is session
    assert len(session.partitions) == 3


def test_the_whole_question_is_cached():
    """KAFKA-9338: with the leader epoch and the last fetched epoch, or nobody is fenced after the first request."""
    cache = sessions()
    session = begun(cache, question(0, 3), question(1, 4))
    cache.begin(request(session.id, 1, question(1, 5, current_leader_epoch=6, last_fetched_epoch=6)), 1.0)
    cache.begin(request(session.id, 2), 2.0)
    assert [each.item for each in session.partitions.values()] == [
        question(0, 3),
        question(1, 5, current_leader_epoch=6, last_fetched_epoch=6),
    ]


def test_an_epoch_out_of_turn_is_refused_and_changes_nothing():
    """A request that was sent twice, or overtaken, must not speak for the session."""
    cache = sessions()
    session = begun(cache, question(0))
    cache.begin(request(session.id, 1, question(0, 1)), 1.0)
    for epoch in (1, 3, -2):
        with pytest.raises(InvalidFetchSessionEpoch, match="expects the epoch 2"):
            cache.begin(request(session.id, epoch, question(0, 9)), 2.0)
    assert session.partitions[name(0)].item.fetch_offset == 1
    assert cache.begin(request(session.id, 2), 3.0) is session


def test_a_consumers_session_is_bounded_and_a_followers_is_not():
    """Requests are bounded, but each could add partitions, also such as do not exist: a fetch that named none was
    answered with an error for each of a million, in one turn of the loop.
    """
    cache = sessions()
    for node in (FOLLOWER, -1):
        session = begun(cache, question(0), node=node)
        step = CONSUMER_PARTITIONS_MAX // 4
        for epoch in range(1, 5):
            new = [question(number) for number in range((epoch - 1) * step, epoch * step)]
            assert cache.begin(request(session.id, epoch, *new, node=node), 1.0) is session
        assert len(session.partitions) == CONSUMER_PARTITIONS_MAX
        gone = (PartitionName(topic="orders", partition=0),)
        one_more = question(CONSUMER_PARTITIONS_MAX)
        assert cache.begin(request(session.id, 5, one_more, node=node, forgotten=gone), 1.0) is session
        if node == FOLLOWER:
            assert cache.begin(request(session.id, 6, question(0), node=node), 1.0) is session
            continue
        with pytest.raises(FetchSessionIdNotFound, match="at most 10000 partitions"):
            cache.begin(request(session.id, 6, question(0), node=node), 1.0)
        with pytest.raises(FetchSessionIdNotFound, match="there is no fetch session"):
            cache.begin(request(session.id, 7, node=node), 1.0)
        assert len(cache) == 1, "it takes no place any more"


def test_the_sessions_of_all_consumers_are_bounded_together():
    """A client without any permission filled 1,000 sessions with 10,000 partitions each, in 3.5 GB. One that finds no
    room fetches without a session; followers are not affected.
    """
    cache = sessions(1_000)
    many = [question(number) for number in range(CONSUMER_PARTITIONS_MAX)]
    full = [begun(cache, *many, node=-1) for _ in range(ALL_CONSUMERS_PARTITIONS_MAX // CONSUMER_PARTITIONS_MAX)]
    assert cache.consumer_partitions == ALL_CONSUMERS_PARTITIONS_MAX
    assert cache.begin(request(0, 0, question(0), node=-1), 1.0) is None
    assert begun(cache, *many, node=FOLLOWER).is_privileged
    gone = (PartitionName(topic="orders", partition=0),)
    assert cache.begin(request(full[0].id, 1, node=-1, forgotten=gone), 1.0) is full[0]
    other = begun(cache, question(0), node=-1)
    with pytest.raises(FetchSessionIdNotFound, match="of all consumers hold at most 250000 partitions"):
        cache.begin(request(other.id, 1, question(1), node=-1), 1.0)
    assert cache.begin(request(full[1].id, -1, node=-1), 1.0) is None
    assert cache.consumer_partitions == ALL_CONSUMERS_PARTITIONS_MAX - CONSUMER_PARTITIONS_MAX - 1
    begun(cache, question(0), node=-1, now=1_000.0)
    assert cache.consumer_partitions == 1, "idle sessions end, and the follower's never counted"


def test_partitions_with_very_long_names_count_more_than_once():
    """No topic can have them, and a session keeps them all the same."""
    cache = sessions()
    longest = 32_767
    odd = [FetchPartition(topic=f"{number:09}".ljust(longest, "x"), partition=0, fetch_offset=0) for number in range(9)]
    session = begun(cache, *odd, node=-1)
    assert cache.consumer_partitions == len(odd) * (1 + longest // 250)
    forgotten = tuple(PartitionName(topic=each.topic, partition=0) for each in odd[1:])
    cache.begin(request(session.id, 1, odd[0], node=-1, forgotten=forgotten), 1.0)
    assert cache.consumer_partitions == 1 + longest // 250


@pytest.mark.parametrize(
    "stranger",
    [{"node": 3}, {"node": -1}, {"replica_epoch": INCARNATION + 1}, {"session_id": 4711}],
    ids=["another follower", "a consumer", "another incarnation", "another id"],
)
def test_a_session_belongs_to_one_fetcher(stranger: dict[str, Any]):
    """What another one has cached is not this one's word: a broker that was wiped must not acknowledge its old log."""
    cache = sessions()
    session = begun(cache)
    facts = {"session_id": session.id, **stranger}
    with pytest.raises(FetchSessionIdNotFound):
        cache.begin(request(facts.pop("session_id"), 1, **facts), 1.0)
    assert cache.begin(request(session.id, 1), 1.0) is session


def test_a_full_request_ends_the_session_that_it_names():
    """Epoch 0 begins anew, epoch -1 goes without."""
    cache = sessions()
    first = begun(cache, node=-1)
    second = cache.begin(request(first.id, 0, question(1), node=-1), 1.0)
    assert second is not None
    assert second.id != first.id
    assert list(second.partitions) == [name(1)]
    assert cache.begin(request(second.id, -1, question(1), node=-1), 2.0) is None
    assert len(cache) == 0


def test_a_consumers_session_without_partitions_ends():
    """As in Kafka: its answer has no session. A follower's goes on: it may be given a partition again at once."""
    gone = (PartitionName(topic="orders", partition=0),)
    cache = sessions()
    for node in (FOLLOWER, -1):
        session = begun(cache, question(0), node=node)
        left = cache.begin(request(session.id, 1, node=node, forgotten=gone), 1.0)
        assert left is (session if node == FOLLOWER else None)
    assert len(cache) == 1


def test_a_followers_next_session_replaces_its_last_one():
    """A broker that lost its memory does not fill the leader's."""
    cache = sessions()
    begun(cache)
    begun(cache, node=3)
    latest = begun(cache, now=1.0)
    assert len(cache) == 2
    assert cache.begin(request(latest.id, 1), 2.0) is latest


def test_slots_are_for_those_who_use_them_and_followers_go_first():
    """KIP-227: idle for more than two minutes, a session gives way; to a follower any consumer's does."""
    cache = sessions(slots=2)
    idle, used = begun(cache, node=-1), begun(cache, node=-1)
    assert cache.begin(request(0, 0, question(0), node=-1), IDLE_MAX_S) is None
    cache.begin(request(used.id, 1, node=-1), IDLE_MAX_S)
    third = cache.begin(request(0, 0, question(0), node=-1), IDLE_MAX_S + 1)
    assert third is not None
    with pytest.raises(FetchSessionIdNotFound):
        cache.begin(request(idle.id, 1, node=-1), IDLE_MAX_S + 1)
    begun(cache, node=2, now=IDLE_MAX_S + 2)
    begun(cache, node=3, now=IDLE_MAX_S + 2)
    assert len(cache) == 2
    assert cache.begin(request(0, 0, question(0), node=4), IDLE_MAX_S + 3) is None
    assert sessions(slots=0).begin(request(0, 0, question(0)), 0.0) is None


def test_epochs_wrap_to_one():
    """0 would mean: a new session."""
    assert [epoch_after(0), epoch_after(1), epoch_after(EPOCH_MAX)] == [1, 2, 1]


def test_whoever_was_served_comes_last_next_time():
    """KIP-74: more hot partitions than fit an answer must not starve the rest."""
    session = begun(sessions(), question(0), question(1), question(2))
    session.served(name(0))
    session.served(name(7))
    assert [each.partition for each in session.partitions] == [1, 2, 0]


def follows(led, offset: int, now: float, *, node: int = FOLLOWER):
    end = led.log.end_offset
    return led.record_fetch(node, offset, start_offset=0, broker_epoch=INCARNATION, leader_end=end, now=now)


def test_a_follower_at_the_log_end_stays_in_sync_however_long_nothing_happens():
    """S14: a partition that no request names is acknowledged, and caught up, with every request of its session."""
    led = leader(log_of((0, 3)), epoch=1)
    follows(led, 3, now=0.0)
    assert led.asks_again(FOLLOWER, 3, broker_epoch=INCARNATION, now=10 * LAG_S)
    led.append(batch("x"), acks=1, wall_ms=0)
    assert FOLLOWER not in led.laggards(11 * LAG_S), "it was at the end as long as there was nothing else"
    assert FOLLOWER in led.laggards(11 * LAG_S + 1)
    assert 3 in led.laggards(11 * LAG_S), "it never asked"


def test_the_short_way_says_what_the_long_one_would():
    """Only times move: else the request must be counted in full."""
    long, short = leader(log_of((0, 3)), epoch=1), leader(log_of((0, 3)), epoch=1)
    for led in (long, short):
        follows(led, 3, now=1.0)
    effect = follows(long, 3, now=2.0)
    assert not effect.high_watermark_moved
    assert not effect.wants_in
    assert short.asks_again(FOLLOWER, 3, broker_epoch=INCARNATION, now=2.0)
    assert long.remotes == short.remotes


def idle_session(led, now: float = 1.0, node: int = FOLLOWER) -> FetchSession:
    """A session whose only partition is idle since ``now``."""
    session = begun(sessions(), question(0, 3), node=node)
    cached = session.partitions[name(0)]
    follows(led, 3, now=now, node=node)
    cached.answered(seat(), led, led.high_watermark, 0)
    session.idle.at = now
    assert led.asks_again(node, 3, broker_epoch=INCARNATION, now=now, idle=session.idle)
    session.rests(cached)
    return session


def test_requests_count_for_idle_partitions_as_if_each_had_been_asked():
    """The sum is written down before anything changes: afterwards no request counts unseen."""
    plain, summed = leader(log_of((0, 3)), epoch=1), leader(log_of((0, 3)), epoch=1)
    follows(plain, 3, now=1.0)
    session = idle_session(summed)
    for now in (2.0, 3.0):
        assert plain.asks_again(FOLLOWER, 3, broker_epoch=INCARNATION, now=now)
        session.idle.at = now
    remote = summed.remotes[FOLLOWER]
    assert (remote.fetched_at(), remote.caught_up_at()) == (3.0, 3.0)
    for led in (plain, summed):
        led.append(batch("x"), acks=1, wall_ms=0)
    session.idle.at = 4.0
    assert plain.remotes == summed.remotes
    assert FOLLOWER in summed.laggards(3.0 + LAG_S + 1)


CHANGES = {
    "append": lambda place, led: led.append(batch("x"), acks=1, wall_ms=0),
    "watermark": lambda place, led: led.record_fetch(3, 3, **fetch_facts(led)),
    "ISR": lambda place, led: led.on_committed_state((1, 2), led.partition_epoch + 1, recovered=True, now=5.0),
    "replicas": lambda place, led: led.reassigned((1, 2, 3, 4), (4,), 5.0),
    "named again": lambda place, led: follows(led, 3, now=5.0),
    "new epoch": lambda place, led: place.apply(state(epoch=9, version=9), place.config, 5.0),
    "role given up": lambda place, led: place.rest(),
    "disk failed": lambda place, led: place.fail("broken"),
}


def fetch_facts(led) -> dict[str, Any]:
    return {"start_offset": 0, "broker_epoch": 30, "leader_end": led.log.end_offset, "now": 5.0}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_makes_an_idle_partition_active(change: str):
    """Otherwise a follower would never hear of it, or would count as in sync without a look at its question."""
    place = seat()
    place.apply(state(epoch=1), place.config, 0.0)
    write(place.role, "a", "b", "c")
    session = idle_session(place.role)
    woken = []
    session.on_stir = woken.append
    assert not session.active
    CHANGES[change](place, place.role)
    assert list(session.active) == [name(0)]
    assert woken == [session.partitions[name(0)]]


def test_a_follower_that_is_looked_at_again_leaves_the_others_idle():
    """What happens then is news for those as well: a leader that forgot them would leave their long polls waiting."""
    led = leader(log_of((0, 3)), epoch=1)
    follows(led, 3, now=0.5, node=3)
    first, second = idle_session(led), idle_session(led, node=3)
    first.update([question(0, 3)], [])
    assert list(first.active) == [name(0)]
    assert not second.active
    led.append(batch("x"), acks=1, wall_ms=0)
    assert list(second.active) == [name(0)]


@pytest.mark.parametrize("how", ["named", "forgotten", "all"])
def test_a_session_counts_no_idle_partition_that_its_fetcher_asks_about_otherwise(how: str):
    """A question that may be refused, or is no longer asked, says nothing about what the follower holds."""
    led = leader(log_of((0, 3)), epoch=1)
    session = idle_session(led)
    match how:
        case "named":
            session.update([question(0, 3, current_leader_epoch=99)], [])
        case "forgotten":
            session.update([], [PartitionName(topic="orders", partition=0)])
        case _:
            session.look_at_all()
    session.idle.at = 100.0
    led.append(batch("x"), acks=1, wall_ms=0)
    assert led.remotes[FOLLOWER].fetched_at() == 1.0
    assert FOLLOWER in led.laggards(1.0 + LAG_S + 1)
    assert list(session.active) == ([] if how == "forgotten" else [name(0)])


@pytest.mark.parametrize(
    ("isr", "offset", "epoch", "at"),
    [
        ((1, 3), 3, INCARNATION, 3),
        ((1, 2, 3), 2, INCARNATION, 3),
        ((1, 2, 3), 3, 19, 3),
        ((1, 2, 3), 2, INCARNATION, 2),
    ],
    ids=["wants in", "acknowledges something else", "another incarnation", "not at the end"],
)
def test_the_short_way_is_refused_where_there_is_more_to_do(isr, offset, epoch, at):
    """A fetch that moves the follower's end, or lets it join, has effects."""
    led = leader(log_of((0, 3)), isr=isr, epoch=1)
    follows(led, at, now=1.0)
    before = replace(led.remotes[FOLLOWER])
    assert not led.asks_again(FOLLOWER, offset, broker_epoch=epoch, now=2.0)
    assert led.remotes[FOLLOWER] == before


def test_a_question_is_quiet_only_while_nothing_could_change_its_answer():
    """New records, a mark that moved, another role: each must be looked at."""
    place = seat()
    place.apply(state(isr=(1,)), place.config, 0.0)
    role = place.role
    cached = CachedPartition(question(0))
    assert cached.quiet_leader(is_follower=True) is None, "not asked yet"
    cached.answered(place, role, 0, 0)
    assert cached.quiet_leader(is_follower=True) is role
    role.append(batch("a"), acks=1, wall_ms=0)
    assert cached.quiet_leader(is_follower=True) is None
    assert cached.quiet_leader(is_follower=False) is role, "a consumer reads below the watermark"
    role.advance(0.0)
    assert cached.quiet_leader(is_follower=False) is None
    at_the_end = CachedPartition(question(0, 1))
    at_the_end.answered(place, role, 0, 0)
    assert at_the_end.quiet_leader(is_follower=True) is None, "the watermark is news"
    at_the_end.answered(place, role, 1, 0)
    assert at_the_end.quiet_leader(is_follower=True) is role
    role.log.raise_start(1)
    assert at_the_end.quiet_leader(is_follower=True) is None, "the log start is news"
    at_the_end.answered(place, role, 1, 1)
    place.apply(state(isr=(1,), epoch=1, version=1), place.config, 1.0)
    assert at_the_end.quiet_leader(is_follower=True) is None, "another epoch: the question must be fenced"
    at_the_end.refused()
    assert at_the_end.has_news(1, 1)


# ---- the fetcher's side ----------------------------------------------------------------------------------------------


def asked(fetcher: FetcherSession, *items: FetchPartition) -> tuple[tuple[int, int], list[int], list[int]]:
    """(id, epoch), partitions named, partitions forgotten."""
    made = fetcher.next_request({name(item.partition): item for item in items})
    named = [item.partition for item in made.partitions]
    return (made.session_id, made.session_epoch), named, [each.partition for each in made.forgotten]


def test_a_fetcher_names_what_has_changed():
    """Idle partitions cost nothing; a watermark that moved is no reason to ask anew."""
    fetcher = FetcherSession()
    assert asked(fetcher, question(0), question(1)) == ((0, 0), [0, 1], [])
    fetcher.answered(100)
    assert asked(fetcher, question(0, high_watermark=9), question(1)) == ((100, 1), [], [])
    fetcher.answered(100)
    assert asked(fetcher, question(0, 4), question(2)) == ((100, 2), [0, 2], [1])
    fetcher.answered(100)
    assert asked(fetcher, question(0, 4), question(2)) == ((100, 3), [], [])


@pytest.mark.parametrize(
    "change",
    [
        {"fetch_offset": 1},
        {"current_leader_epoch": 6},
        {"last_fetched_epoch": 5},
        {"log_start_offset": 1},
        {"topic_id": "u"},
        {"partition_max_bytes": 1},
    ],
)
def test_each_part_of_the_question_counts(change: dict[str, Any]):
    """What the leader decides by must be what it has cached."""
    fetcher = FetcherSession()
    asked(fetcher, question(0))
    fetcher.answered(100)
    assert asked(fetcher, structs.replace(question(0), **change))[1] == [0]


def test_a_fetcher_that_does_not_know_begins_anew():
    """No answer, no session, another's session: everything is named again, and the old session ends."""
    fetcher = FetcherSession()
    for answer in (None, 0, 77):
        asked(fetcher, question(0))
        fetcher.answered(100)
        asked(fetcher, question(0))
        fetcher.lost() if answer is None else fetcher.answered(answer)
        assert asked(fetcher, question(0)) == ((100, 0), [0], [])
        fetcher.lost()


def test_an_answer_that_could_not_be_used_is_asked_for_again():
    """Its role had changed: the leader believes that it has told, the follower has not heard."""
    fetcher = FetcherSession()
    asked(fetcher, question(0), question(1))
    fetcher.answered(100)
    fetcher.unheard(name(0))
    fetcher.unheard(name(8))
    assert asked(fetcher, question(0), question(1))[1:] == ([0], [])
    fetcher.answered(100)
    fetcher.unheard(name(0))
    assert asked(fetcher, question(1))[1:] == ([], [0]), "the leader still has it"


def test_a_first_request_names_what_one_request_may():
    """The session grows request by request; what the leader has is not forgotten for it."""
    fetcher = FetcherSession(named_max=2)
    items = [question(number) for number in range(5)]
    assert asked(fetcher, *items) == ((0, 0), [0, 1], [])
    fetcher.answered(100)
    assert asked(fetcher, *items) == ((100, 1), [2, 3], [])
    fetcher.answered(100)
    assert asked(fetcher, *items) == ((100, 2), [4], [])
    fetcher.answered(100)
    made = fetcher.next_request({name(item.partition): item for item in items})
    assert (made.partitions, made.forgotten, made.is_partial) == ((), (), False)


@pytest.mark.parametrize("session_id", [100, 0], ids=["session", "no session"])
def test_partitions_that_all_change_take_turns(session_id: int):
    """More than one request names: those that waited longest come first, and none counts at its former offset."""
    fetcher = FetcherSession(named_max=2)
    rounds = []
    for offset in range(6):
        _, named, forgotten = asked(fetcher, *(question(number, offset) for number in range(5)))
        assert len(forgotten) <= 2
        rounds.append(named)
        fetcher.answered(session_id)
    assert rounds[:3] == [[0, 1], [2, 3], [4, 0]]
    for number in range(5):
        turns = [number in named for named in rounds]
        assert max(len(list(gap)) for has_turn, gap in groupby(turns) if not has_turn) <= 2


def test_more_than_one_request_forgets_begins_anew():
    """A new session costs less than requests that only forget; the full request ends the old one."""
    fetcher = FetcherSession(named_max=2)
    for _ in range(2):
        asked(fetcher, *map(question, range(4)))
        fetcher.answered(100)
    assert asked(fetcher, question(9)) == ((100, 0), [9], [])


# ---- both ------------------------------------------------------------------------------------------------------------

OFFSETS = st.dictionaries(st.integers(0, 4), st.integers(0, 3), max_size=5)
FATES = st.sampled_from(["answered", "request lost", "answer lost", "sent twice", "an old one again"])


@given(st.lists(st.tuples(OFFSETS, FATES, st.integers(0, 4)), min_size=1, max_size=30), st.sampled_from([2, 5]))
def test_what_the_leader_acknowledges_is_what_the_fetcher_asked_for(rounds, named_max):
    """Every request that is counted stands for exactly the fetcher's present offsets, whatever was lost before it."""
    cache, fetcher, sent = sessions(), FetcherSession(named_max), []
    for number, (offsets, fate, unheard) in enumerate(rounds):
        wanted = {name(each): question(each, offset) for each, offset in offsets.items()}
        made = fetcher.next_request(wanted)
        sent.append(made)
        if fate == "an old one again":
            told(cache, sent[number // 2], number)
        session = None if fate == "request lost" else told(cache, made, number)
        if isinstance(session, FetchSession):
            counted = {each: cached.item for each, cached in session.partitions.items()}
            assert counted.items() <= wanted.items()
            assert counted == wanted or made.is_partial
            if fate == "sent twice":
                told(cache, made, number)
        if fate in ("request lost", "answer lost") or isinstance(session, Exception):
            fetcher.lost()
        else:
            fetcher.answered(session.id if session is not None else 0)
            fetcher.unheard(name(unheard))


STEPS = st.lists(st.tuples(OFFSETS, st.sampled_from(["answered", "lost", "unheard"]), st.integers(0, 4)), max_size=30)


@given(STEPS, st.sampled_from([2, 5]))
def test_a_look_at_what_was_touched_finds_what_a_look_at_all_does(steps, named_max):
    """For speed the fetcher passes only those partitions whose question may have changed.

    Once a request has no room for all of them, each of the two may leave others out: what the leader has cached then
    must be what is wanted, or a part of it while more is to be named.
    """
    plain, quick = FetcherSession(named_max), FetcherSession(named_max)
    caches: list[dict[TopicPartition, FetchPartition]] = [{}, {}]
    before: dict[TopicPartition, FetchPartition] = {}
    are_alike = True
    for offsets, fate, number in steps:
        wanted = {name(each): question(each, offset) for each, offset in sorted(offsets.items())}
        touched = [each for each in sorted({*wanted, *before}) if wanted.get(each) != before.get(each)]
        made, quickly = plain.next_request(wanted), quick.next_request(wanted, touched)
        for request, cached in zip((made, quickly), caches, strict=True):
            if request.session_epoch == 0:
                cached.clear()
            for gone in request.forgotten:
                del cached[name(gone.partition)]
            cached.update((name(item.partition), item) for item in request.partitions)
            assert cached.items() <= wanted.items()
            assert request.is_partial or cached == wanted
        are_alike = are_alike and not made.is_partial
        if are_alike:
            assert sorted(map(repr, made.partitions)) == sorted(map(repr, quickly.partitions))
            assert set(made.forgotten) == set(quickly.forgotten)
            assert (made.session_epoch, made.is_partial) == (quickly.session_epoch, quickly.is_partial)
        for fetcher in (plain, quick):
            fetcher.lost() if fate == "lost" else fetcher.answered(100)
            if fate == "unheard":
                fetcher.unheard(name(number))
        before = wanted


def told(cache: FetchSessions, made: SessionRequest, now: float) -> FetchSession | Exception | None:
    """The request arrives; what the leader makes of it."""
    try:
        return cache.begin(
            request(made.session_id, made.session_epoch, *made.partitions, forgotten=made.forgotten), now
        )
    except (FetchSessionIdNotFound, InvalidFetchSessionEpoch) as refused:
        return refused
