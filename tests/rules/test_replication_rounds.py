"""S11 and S12 value by value: the articles' tables, asserted number by number on the rules themselves."""

from __future__ import annotations

from minikafka.replication.follower import Extend, FollowerReplica
from minikafka.replication.leader import LeaderReplica
from tests.rules.replication_kit import answer, fetched, follower, leader, write


def pair() -> tuple[LeaderReplica, FollowerReplica]:
    return leader(isr=(1, 2), replicas=(1, 2)), follower()


def take(f: FollowerReplica, given: object, asked: int) -> None:
    step = f.on_response(given, asked=asked)  # type: ignore[arg-type]
    assert isinstance(step, Extend)
    f.append(step.batches)
    f.on_durable(step.leader_high_watermark, step.leader_start_offset)


def fetch(led: LeaderReplica, f: FollowerReplica) -> None:
    """One whole round: ask, count, answer with the watermark after the count (S7), obey."""
    asked = f.next_fetch().offset
    given_before = led.log.read(asked, max_bytes=1 << 20)
    fetched(led, 2, asked)
    given = answer(led, asked)
    assert given.records == tuple(given_before.buffers), "the read comes before the count, and is the same"
    take(f, given, asked)


def numbers(led: LeaderReplica, f: FollowerReplica) -> dict[str, int]:
    return {
        "L.LEO": led.log.end_offset,
        "remote": led.remotes[2].end_offset,
        "L.HW": led.high_watermark,
        "F.LEO": f.log.end_offset,
        "F.HW": f.high_watermark,
    }


def test_one_record():
    """S11, one record: after the produce, after the first fetch (offset 0), after the second (offset 1)."""
    led, f = pair()
    fetched(led, 2, 0)  # the follower has introduced itself: its LEO is known to be 0
    write(led, "m0")
    assert numbers(led, f) == {"L.LEO": 1, "remote": 0, "L.HW": 0, "F.LEO": 0, "F.HW": 0}
    fetch(led, f)
    assert numbers(led, f) == {"L.LEO": 1, "remote": 0, "L.HW": 0, "F.LEO": 1, "F.HW": 0}
    fetch(led, f)
    assert numbers(led, f) == {"L.LEO": 1, "remote": 1, "L.HW": 1, "F.LEO": 1, "F.HW": 1}


def test_three_rounds():
    """S11, three rounds: produce and fetch, produce and fetch, fetch only."""
    led, f = pair()
    write(led, "m0")
    assert numbers(led, f) == {"L.LEO": 1, "remote": -1, "L.HW": 0, "F.LEO": 0, "F.HW": 0}
    fetch(led, f)
    assert numbers(led, f) == {"L.LEO": 1, "remote": 0, "L.HW": 0, "F.LEO": 1, "F.HW": 0}
    write(led, "m1")
    assert numbers(led, f) == {"L.LEO": 2, "remote": 0, "L.HW": 0, "F.LEO": 1, "F.HW": 0}
    fetch(led, f)
    assert numbers(led, f) == {"L.LEO": 2, "remote": 1, "L.HW": 1, "F.LEO": 2, "F.HW": 1}
    fetch(led, f)
    assert numbers(led, f) == {"L.LEO": 2, "remote": 2, "L.HW": 2, "F.LEO": 2, "F.HW": 2}


def test_a_produce_wakes_a_parked_fetch():
    """S12, other order: the fetch is counted when it arrives, read again when the produce wakes it, not counted again."""
    led, f = pair()
    fetched(led, 2, 0)  # arrives, nothing to return: parked
    write(led, "m0")
    take(f, answer(led, 0), 0)  # round 1
    assert numbers(led, f) == {"L.LEO": 1, "remote": 0, "L.HW": 0, "F.LEO": 1, "F.HW": 0}
    effect = fetched(led, 2, 1)  # arrives, acknowledges m0, is parked
    assert effect.high_watermark_moved
    assert numbers(led, f) == {"L.LEO": 1, "remote": 1, "L.HW": 1, "F.LEO": 1, "F.HW": 0}
    write(led, "m1")
    take(f, answer(led, 1), 1)  # round 2
    assert numbers(led, f) == {"L.LEO": 2, "remote": 1, "L.HW": 1, "F.LEO": 2, "F.HW": 1}
    fetched(led, 2, 2)
    take(f, answer(led, 2), 2)  # round 3: its time is over, it is answered with nothing but the watermark
    assert numbers(led, f) == {"L.LEO": 2, "remote": 2, "L.HW": 2, "F.LEO": 2, "F.HW": 2}


def test_the_answer_carries_the_watermark_after_the_count():
    """S7: Kafka of today answers with the one from before, and its follower would lag by one round more."""
    led, f = pair()
    write(led, "m0")
    fetch(led, f)
    assert led.high_watermark == 0
    fetched(led, 2, 1)
    assert answer(led, 1).high_watermark == 1


def test_the_followers_watermark_is_bounded_by_its_own_end():
    """S2, S8: a watermark beyond the log's end would promise records that are not there."""
    led, f = pair()
    write(led, "m0", "m1", "m2")
    led.high_watermark = 3
    given = answer(led, 0)
    step = f.on_response(given, asked=0)
    assert isinstance(step, Extend)
    f.append(step.batches[:1])
    f.on_durable(step.leader_high_watermark, 0)
    assert (f.log.end_offset, f.high_watermark) == (1, 1)
