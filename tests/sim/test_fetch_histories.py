"""Random histories of followers' fetches: planted bugs that they find, and the rare paths that they take."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from minikafka.broker.replica_fetcher import _LeaderLoop
from minikafka.replication.fetch_session import CachedPartition, FetcherSession
from minikafka.replication.leader import LeaderReplica
from minikafka.types import NodeId
from tests.sim.fetch_histories import Breach, FetchHistory

STEPS = 60
SEEDS_MAX = 60


def _never_stirred(self: LeaderReplica, node: NodeId | None = None) -> None:
    """An idle partition stays idle, whatever happens there."""


def _never_diverging(self: LeaderReplica, fetch_offset: int, last_fetched_epoch: int) -> None:
    """A fetch counts, wherever the logs part."""


def _whatever_it_lacks(self: LeaderReplica, node: NodeId) -> bool:
    """A follower joins the ISR with its first fetch."""
    return True


def _goes_on(self: FetcherSession) -> None:
    """A session goes on though nobody knows which requests the leader has counted."""


def _no_news(self: CachedPartition, high_watermark: int, start_offset: int) -> bool:
    """A watermark or log start that moved is no reason to answer."""
    return False


async def _unsynced(self: _LeaderLoop) -> None:
    """The next fetch acknowledges what only the page cache has."""


def _as_if_synced(self: _LeaderLoop, name: object) -> bool:
    return False


BUGS: dict[str, tuple[int, tuple[tuple[Any, str, Any], ...]]] = {
    "idle partitions are not stirred": (0, ((LeaderReplica, "stir", _never_stirred),)),
    "logs that part are not compared": (42, ((LeaderReplica, "diverging", _never_diverging),)),
    "followers join the ISR wherever they stand": (0, ((LeaderReplica, "may_join", _whatever_it_lacks),)),
    "a session goes on after a lost response": (2, ((FetcherSession, "lost", _goes_on),)),
    "marks that moved are no news": (0, ((CachedPartition, "has_news", _no_news),)),
    "a fetch acknowledges what is not synced": (
        14,
        (
            (_LeaderLoop, "_sync_what_is_not", _unsynced),
            (_LeaderLoop, "_is_unsynced", _as_if_synced),
        ),
    ),
}
"""What goes wrong: a seed that shows it soon, and what is replaced.

A session that takes requests of any epoch, forgets nothing, or drops the leader epoch, and a response to a former role
that is obeyed, break nothing by themselves: the leader epoch fences what is asked, and the next fetch is compared by the
last fetched epoch.
"""


@pytest.mark.parametrize(("seed", "patches"), BUGS.values(), ids=BUGS)
def test_planted_bugs_are_caught(seed: int, patches: tuple[tuple[Any, str, Any], ...]) -> None:
    """In a history that passes without them: the recorded one, or after a change of the histories another."""
    for tried in (seed, *range(SEEDS_MAX)):
        with pytest.MonkeyPatch.context() as patch:
            for owner, name, bug in patches:
                patch.setattr(owner, name, bug)
            try:
                FetchHistory(tried).play(STEPS)
            except Breach:
                break
    else:
        pytest.fail(f"{SEEDS_MAX} seeds have not found it")
    FetchHistory(tried).play(STEPS)


RARE = (
    "fetch_diverged",
    "fetch_refused",
    "fetch_session_lost",
    "isr_expanded",
    "isr_shrunk",
    "log_restarted",
    "log_start_raised",
    "replica_deleted",
    "segments_deleted",
    "tail_truncated",
)


def test_the_histories_take_the_rare_paths() -> None:
    """A history whose followers never cut their logs says nothing about what a session acknowledges afterwards."""
    marks: Counter[str] = Counter()
    for seed in range(20):
        history = FetchHistory(seed)
        history.play(STEPS)
        marks.update(history.sim.marks)
    assert [kind for kind in RARE if not marks[kind]] == []
