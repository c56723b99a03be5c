"""How often the members of a group of the consumer protocol heartbeat: the coordinator's rule (issue 17, rebalance time)."""

from __future__ import annotations

import itertools

import pytest

from minikafka.config import parse_broker
from minikafka.errors import InvalidConfig
from minikafka.groups.consumer.group import ConsumerGroup
from minikafka.groups.consumer.records import MemberMetadata, Regex, record
from minikafka.groups.limits import CONSUMER_INTERVAL_MS_MIN, GroupSettings
from tests.rules.test_consumer_groups import ConsumerDesk


@pytest.mark.parametrize(
    ("members", "interval_ms"),
    [(1, 500), (3, 500), (25, 500), (26, 520), (50, 1000), (200, 4000), (250, 5000), (251, 5000), (100_000, 5000)],
)
def test_small_groups_heartbeat_often_and_large_ones_as_in_kafka(members: int, interval_ms: int):
    """The defaults, as docs/groups.md states them."""
    assert GroupSettings().consumer_interval_ms(members) == interval_ms


@pytest.mark.parametrize("longest_ms", [1, 100, 499, 500, 5000, 15_000])
@pytest.mark.parametrize("rate", [1, 7, 50, 1_000])
def test_the_interval_has_its_bounds_and_the_group_its_budget(longest_ms: int, rate: int):
    """Never above the configured interval; never below the floor unless that interval is; between them, within the rate."""
    settings = GroupSettings(consumer_heartbeat_interval_ms=longest_ms, consumer_heartbeats_per_second=rate)
    intervals = [settings.consumer_interval_ms(members) for members in range(1, 1_000)]
    assert all(min(CONSUMER_INTERVAL_MS_MIN, longest_ms) <= each <= longest_ms for each in intervals)
    assert all(one <= other for one, other in itertools.pairwise(intervals))
    for members, interval_ms in enumerate(intervals, start=1):
        assert interval_ms == longest_ms or members * 1000 <= rate * interval_ms


@pytest.mark.parametrize("longest_ms", [100, 5000])
def test_a_rate_of_zero_is_kafkas_interval(longest_ms: int):
    """Switched off: groups of all sizes have the configured interval."""
    settings = GroupSettings(consumer_heartbeat_interval_ms=longest_ms, consumer_heartbeats_per_second=0)
    assert {settings.consumer_interval_ms(members) for members in (1, 50, 1_000)} == {longest_ms}


def test_members_learn_a_new_interval_from_their_next_heartbeat():
    """A group that grows from 3 to 100 and shrinks again: each response has the interval for the members of that moment."""
    desk = ConsumerDesk()
    desk.topic(4)
    assert [desk.enter(f"m{number}").heartbeat_interval_ms for number in range(3)] == [500] * 3
    last = [desk.enter(f"m{number}").heartbeat_interval_ms for number in range(3, 100)][-1]
    assert last == 2000
    epoch = desk.group().members[0].member_epoch
    assert desk.beat("m0", epoch).heartbeat_interval_ms == 2000
    for number in range(2, 100):
        assert desk.beat(f"m{number}", -1).error_code == 0
    epoch = desk.group().members[0].member_epoch
    assert desk.beat("m0", epoch).heartbeat_interval_ms == 500


def test_a_short_interval_ends_no_session_earlier():
    """A member of a group with an interval of 500 ms is removed after group.consumer.session.timeout.ms, as ever."""
    desk = ConsumerDesk()
    desk.topic(4)
    assert desk.enter("a").heartbeat_interval_ms == 500
    desk.pass_time(44.9)
    assert [each.member_id for each in desk.group().members] == ["a"]
    desk.pass_time(0.2)
    assert desk.group().members == ()


@pytest.mark.parametrize("interval_ms", ["45000", "50000"])
def test_an_interval_that_is_not_shorter_than_the_session_is_refused(interval_ms: str):
    """As by Kafka: members would be removed between two heartbeats."""
    with pytest.raises(InvalidConfig, match=r"group\.consumer\.session\.timeout\.ms=45000 must be larger") as raised:
        parse_broker({"group.consumer.heartbeat.interval.ms": interval_ms})
    assert raised.value.facts["setting"] == "group.consumer.session.timeout.ms"


def test_a_negative_rate_is_refused():
    """The error names the setting."""
    with pytest.raises(InvalidConfig, match=r"mk\.group\.consumer\.heartbeats\.per\.second"):
        parse_broker({"mk.group.consumer.heartbeats.per.second": "-1"})


def test_the_topics_of_a_group_are_those_of_all_its_members():
    """Equal subscriptions are looked at once, for each heartbeat needs the names; different ones all count."""
    group = ConsumerGroup("g")
    group.apply(record("g", Regex(topics=("rx-a", "rx-b"), version=1), "rx-.*"))
    subscriptions = {
        "a": (("t",), None),
        "b": (("t",), None),
        "c": (("t", "u"), None),
        "d": ((), "rx-.*"),
        "e": ((), "no"),
    }
    for name, (topics, regex) in subscriptions.items():
        group.apply(record("g", MemberMetadata(topics=topics, regex=regex), name))
    assert group.topics() == {"t", "u", "rx-a", "rx-b"} == frozenset().union(*map(group.topics_of, group.members))
