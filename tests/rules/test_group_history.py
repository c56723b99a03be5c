"""The history of groups: what it gives back is what the coordinator knew, within its bounds of time, bytes and work."""

from __future__ import annotations

from typing import Any

from minikafka.broker import group_history
from minikafka.broker.group_history import WEIGHT_MAX, GroupHistory
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import DescribedGroup, DescribedMember, PastGroup

MINUTE_MS = 60_000
SHARD = TopicPartition("__consumer_offsets", 7)
ORDERS = TopicPartition("orders", 0)


class Committed:
    def __init__(self, offset: int) -> None:
        self.offset = offset


class Coordinator:
    """Groups with a member and a committed offset; counts how often each was described."""

    def __init__(self, **offsets: int) -> None:
        self.offsets = offsets
        self.described: list[str] = []
        self.weights: dict[str, int] = {}

    def weight(self, name: str) -> int:
        return self.weights.get(name, 2)

    def outline(self, name: str) -> DescribedGroup:
        return DescribedGroup(group_id=name, state="Stable")

    def glances(self) -> dict[str, tuple[object, ...]]:
        return {name: (offset,) for name, offset in self.offsets.items()}

    def describe(self, name: str, *, of_any_protocol: bool) -> DescribedGroup:
        assert of_any_protocol
        self.described.append(name)
        return DescribedGroup(group_id=name, state="Stable", members=(DescribedMember(member_id=f"{name}-1"),))

    def committed_offsets(self, name: str) -> dict[TopicPartition, Committed]:
        return {ORDERS: Committed(self.offsets[name])}


def history(*, keep_ms: int = 10 * MINUTE_MS, bytes_max: int = 1_000_000) -> GroupHistory:
    return GroupHistory(keep_ms=keep_ms, bytes_max=bytes_max)


def sampled(kept: GroupHistory, at_ms: int, *coordinators: Any) -> int:
    return kept.sample(at_ms, [(TopicPartition(SHARD.topic, at), each) for at, each in enumerate(coordinators)])


def offsets(found: list[PastGroup]) -> dict[str, int | None]:
    return {each.group_id: each.offsets[0].offset if each.group is not None else None for each in found}


def test_each_time_has_the_last_sample_before_it_and_rest_costs_nothing():
    """A group is described when it has changed, and only then."""
    kept, coordinator = history(), Coordinator(billing=4, reports=1)
    assert sampled(kept, 1000, coordinator) == 2
    for at_ms in range(2000, 6000, 1000):
        assert sampled(kept, at_ms, coordinator) == 0
    coordinator.offsets["billing"] = 9
    assert sampled(kept, 6000, coordinator) == 1
    assert coordinator.described == ["billing", "reports", "billing"]
    assert kept.at(999) == []
    assert offsets(kept.at(5999)) == {"billing": 4, "reports": 1}
    assert offsets(kept.at(6000)) == {"billing": 9, "reports": 1}
    assert offsets(kept.at(9000, "reports")) == {"reports": 1}
    [past] = kept.at(5999, "billing")
    assert past.at_ms == 1000
    assert past.group is not None
    assert [each.member_id for each in past.group.members] == ["billing-1"]


def test_deleted_group_is_gone_from_then_on_and_one_that_moved_away_is_kept():
    """Another broker that coordinates a group has its later samples; this one says only what it knew."""
    kept, one, other = history(), Coordinator(billing=4), Coordinator(reports=1)
    sampled(kept, 1000, one, other)
    del one.offsets["billing"]
    sampled(kept, 2000, one, other)
    sampled(kept, 3000, one)
    assert offsets(kept.at(1500)) == {"billing": 4, "reports": 1}
    assert offsets(kept.at(3000)) == {"billing": None, "reports": 1}
    other.offsets["reports"] = 5
    assert sampled(kept, 4000, one, other) == 1, "it is back"
    assert offsets(kept.at(4000)) == {"billing": None, "reports": 5}


def test_turn_of_sampling_has_a_bounded_cost_and_all_groups_have_their_turn(monkeypatch):
    """However many groups there are."""
    monkeypatch.setattr(group_history, "LOOKED_AT_MAX", 10)
    monkeypatch.setattr(group_history, "SAMPLED_MAX", 4)
    kept = history()
    coordinators = [Coordinator(**{f"g{shard}-{n}": n for n in range(6)}) for shard in range(5)]
    counts = [sampled(kept, at_ms, *coordinators) for at_ms in range(1000, 16_000, 1000)]
    assert max(counts) == 4
    assert sum(counts) == 30
    assert len(kept.at(16_000)) == 30


def test_one_turn_describes_groups_of_bounded_weight():
    """Groups are as large as their clients like: one with 150 members of 2,000 topics held the loop for 0.2 s, each second
    in which it changed. A group that is too large for any turn is kept without its members.
    """
    kept, coordinator = history(), Coordinator(a=1, b=1, c=1, huge=1)
    coordinator.weights = {"a": WEIGHT_MAX // 2, "b": WEIGHT_MAX, "c": WEIGHT_MAX, "huge": WEIGHT_MAX + 1}
    counts = [sampled(kept, at_ms, coordinator) for at_ms in range(1000, 5000, 1000)]
    assert counts == [2, 1, 1, 0]
    assert coordinator.described == ["a", "b", "c"]
    found = {each.group_id: each for each in kept.at(5000)}
    assert [len(found[name].offsets) for name in ("a", "b", "c", "huge")] == [1, 1, 1, 0]
    huge = found["huge"].group
    assert huge is not None
    assert (huge.state, huge.members) == ("Stable", ())


def test_bounds_of_time_and_bytes_forget_the_oldest_and_keep_how_a_group_was_at_the_start():
    """A group that rests for longer than the history is still known."""
    kept, coordinator = history(keep_ms=MINUTE_MS), Coordinator(rests=1, moves=0)
    for second in range(200):
        coordinator.offsets["moves"] = second
        sampled(kept, 1000 + second * 1000, coordinator)
    assert kept.start_ms == 200_000 - MINUTE_MS
    assert offsets(kept.at(200_000)) == {"moves": 199, "rests": 1}
    assert offsets(kept.at(150_000)) == {"moves": 149, "rests": 1}
    small = history(bytes_max=5_000)
    for second in range(200):
        coordinator.offsets["moves"] = second
        sampled(small, 1000 + second * 1000, coordinator)
        assert small.size_bytes <= 5_000 + 2_000, "what a turn adds is forgotten with the next one"
    assert offsets(small.at(200_000))["moves"] == 199
    assert small.start_ms > 150_000


def test_history_that_is_switched_off_does_nothing():
    """``mk.history.minutes=0``."""
    kept, coordinator = history(keep_ms=0), Coordinator(billing=1)
    assert sampled(kept, 1000, coordinator) == 0
    assert (kept.at(2000), coordinator.described) == ([], [])
