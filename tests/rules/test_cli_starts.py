"""Where a reader begins and ends: kafka-console-consumer's and kcat's words (HTTP-CLI-CONVENTIONS 4.1)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from minikafka import GroupMetadata
from minikafka.cli import consume
from minikafka.cli.consume import BEGINNING, Reading, Start, assigned_to_others, parse_start
from minikafka.errors import OffsetOutOfRange, TopicAuthorizationFailed
from minikafka.groups.protocol import Assignment
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import DescribedGroup, DescribedMember

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", Start("beginning")),
        ("earliest", Start("beginning")),
        ("end", Start("end")),
        ("latest", Start("end")),
        ("0", Start("offset", 0)),
        ("41", Start("offset", 41)),
        ("-10", Start("last", 10)),
        ("-0", Start("last", 0)),
        ("@1763712000000", Start("time", 1_763_712_000_000)),
        ("s@5", Start("time", 5)),
        ("2025-11-21T08:00Z", Start("time", 1_763_712_000_000)),
        ("2025-11-21T09:00:00.250+01:00", Start("time", 1_763_712_000_250)),
    ],
)
def test_the_words_people_know(text: str, start: Start):
    """What people's fingers type, in both tools' forms."""
    assert parse_start(text) == start


@pytest.mark.parametrize(
    "text", ["", "-", "@", "s@", "s5", "--5", "@-5", "-@5", "1e3", "stored", "2025-11-21T08:00", "9" * 19, "٣"]
)
def test_what_says_no_place_is_refused_with_the_forms(text: str):
    """A time without a zone could be anybody's; a typing mistake must not read from elsewhere."""
    with pytest.raises(ValueError, match="beginning"):
        parse_start(text)


def test_places_in_a_log():
    """The last N never lie before the log's start; a time after the last record is the end."""
    begin, end = 10, 20
    for start, at_time, place in (
        (Start("beginning"), None, 10),
        (Start("end"), None, 20),
        (Start("offset", 10), None, 10),
        (Start("offset", 20), None, 20),
        (Start("last", 3), None, 17),
        (Start("last", 0), None, 20),
        (Start("last", 99), None, 10),
        (Start("time", 5), 12, 12),
        (Start("time", 5), None, 20),
    ):
        assert start.within(ORDERS_0, begin, end, at_time) == place


@pytest.mark.parametrize("offset", [9, 21])
def test_an_offset_outside_of_the_log_is_an_error(offset: int):
    """Silently reading from elsewhere is what auto.offset.reset does to people."""
    with pytest.raises(OffsetOutOfRange, match=f"orders-0: offset {offset} is outside 10 to 20"):
        Start("offset", offset).within(ORDERS_0, 10, 20, None)


def group_of(state: str, **assigned: tuple[TopicPartition, ...]) -> DescribedGroup:
    members = tuple(
        DescribedMember(member_id=member, assignment=Assignment(partitions=partitions).packed())
        for member, partitions in assigned.items()
    )
    return DescribedGroup(group_id="billing", state=state, members=members)


def test_a_member_is_at_its_end_when_the_others_have_all_partitions():
    """--exit-at-end of a member without partitions: in a stable group, and not between two cooperative rounds."""
    both = {ORDERS_0, ORDERS_1}
    elsewhere = TopicPartition("other", 0)
    assert assigned_to_others(group_of("Stable", me=(), one=(ORDERS_0, elsewhere), two=(ORDERS_1,)), "me", both)
    for state in ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Empty"):
        assert not assigned_to_others(group_of(state, me=(), one=(ORDERS_0, ORDERS_1)), "me", both)
    assert not assigned_to_others(group_of("Stable", me=(), one=(ORDERS_0,)), "me", both)
    assert not assigned_to_others(group_of("Stable", me=(ORDERS_1,), one=(ORDERS_0,)), "me", both)
    assert not assigned_to_others(group_of("Stable", one=(ORDERS_0, ORDERS_1)), "me", both)
    assert not assigned_to_others(group_of("Stable", me=(), one=(ORDERS_0,)), "me", set())
    foreign = DescribedMember(member_id="foreign", assignment=b"?")
    group = DescribedGroup(group_id="billing", state="Stable", members=(DescribedMember(member_id="me"), foreign))
    assert not assigned_to_others(group, "me", both)


def test_a_member_that_may_not_describe_the_group_reads_on(monkeypatch: pytest.MonkeyPatch):
    """Other members may read topics that its user may not describe."""

    async def refuses(*_: object) -> None:
        raise TopicAuthorizationFailed("secret")

    monkeypatch.setattr(consume, "with_admin", refuses)
    consumer = SimpleNamespace(
        assignment=frozenset,
        group_metadata=lambda: GroupMetadata("billing", 1, "me"),
        partitions_for_topic=lambda _: {0},
    )
    reading = Reading("orders", "127.0.0.1:1", BEGINNING, (), bytes, {"group_id": "billing"}, None, True, None)
    assert asyncio.run(reading._others_have_all(consumer)) is False
