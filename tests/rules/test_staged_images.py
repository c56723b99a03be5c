"""Images that are staged one after the other: as if each table had been copied, and without copying it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from minikafka.quorum import overlay
from minikafka.quorum.controller_topics import free_of_charge
from minikafka.quorum.image import MetadataImage, changes
from minikafka.quorum.overlay import Overlay, differing
from minikafka.quorum.story import happenings
from minikafka.wire.messages import CreateTopicsRequest, DeleteTopicsRequest, NewTopic
from tests.rules.controller_kit import Cluster

KEYS = st.integers(0, 12)
STEPS = st.lists(st.lists(st.tuples(KEYS, st.none() | st.text("ab", min_size=1, max_size=1)), max_size=4), max_size=12)


@given(st.dictionaries(KEYS, st.just("base")), STEPS)
def test_tables_are_those_of_copies(base: dict[int, str], steps: list[list[tuple[int, str | None]]]):
    """Each table keeps what it had when the next one was made from it."""
    copies, overlays = [dict(base)], [base]
    for step in steps:
        copy, laid_over = dict(copies[-1]), Overlay(overlays[-1])
        for key, value in step:
            if value is not None:
                copy[key] = laid_over[key] = value
            elif key in copy:
                del copy[key]
                del laid_over[key]
        copies.append(copy)
        overlays.append(laid_over)
    for copy, laid_over in zip(copies, overlays, strict=True):
        assert dict(laid_over) == copy
        assert len(laid_over) == len(copy)
        assert all((key in laid_over) == (key in copy) and laid_over.get(key) == copy.get(key) for key in range(13))
    for old, before in zip(copies, overlays, strict=True):
        for new, after in zip(copies, overlays, strict=True):
            expected = {key for key in old.keys() | new.keys() if old.get(key) is not new.get(key)}
            assert sorted(differing(before, after)) == sorted(expected)


def staged_and_copied(operations: list[tuple[bool, int]]) -> tuple[list[MetadataImage], list[MetadataImage]]:
    """Images after each of these creations and deletions, staged one upon the other and with tables of their own."""
    cluster = Cluster(3)
    staged, copied = [cluster.image], [cluster.image]
    for is_new, number in operations:
        name, image = f"t.{number}", staged[-1]
        if is_new:
            new = NewTopic(name=name, num_partitions=2, replication_factor=1)
            request = CreateTopicsRequest(topics=(new,), timeout_ms=1000)
            decision = cluster.controller.create_topics(image, request, cluster.ids, free_of_charge)
        else:
            gone = DeleteTopicsRequest(topics=(name,), timeout_ms=1000)
            decision = cluster.controller.delete_topics(image, gone, free_of_charge)
        staged.append(image.staged(decision.records))
        last = copied[-1]
        copied.append(last.replay_all(decision.records, last.offset + len(decision.records), last.epoch))
    return staged, copied


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=12), st.sampled_from([1, 3, 200]))
@settings(max_examples=40)
def test_a_staged_image_is_the_replayed_one(operations: list[tuple[bool, int]], changes_max: int):
    """Topics, their ids, and what is reported of each step and of all of them."""
    limit = overlay.CHANGES_MAX
    try:
        overlay.CHANGES_MAX = changes_max
        staged, copied = staged_and_copied(operations)
    finally:
        overlay.CHANGES_MAX = limit
    assert staged == copied
    for first in (0, -2):
        old, new = (staged[first:][0], staged[-1]), (copied[first:][0], copied[-1])
        assert list(happenings(*old, "")) == list(happenings(*new, ""))
        assert list(changes(*old)) == list(changes(*new))


def test_a_batch_of_many_requests_copies_no_table_for_each():
    """10,000 requests in one batch held 10,000 tables of up to 10,000 topics: minutes, and 4 GB."""
    staged, _ = staged_and_copied([(True, number) for number in range(300)])
    tables = {id(each.topics.base): each.topics.base for each in staged if isinstance(each.topics, Overlay)}
    assert len(tables) == 2
    assert all(len(each.topics.changed) <= overlay.CHANGES_MAX for each in staged[1:])
    committed = staged[0].replay_all((), staged[0].offset, 1)
    assert isinstance(committed.topics, dict)
