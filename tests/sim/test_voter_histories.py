"""Random histories of a voter's files: planted bugs that they find, and the rare paths that they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from minikafka.broker.quorum_applied import SnapshotFiles
from minikafka.broker.quorum_driver import QuorumDriver
from minikafka.broker.quorum_follower import MetadataFollower
from minikafka.ports import File
from minikafka.quorum.files import QUORUM_STATE_PATH, QuorumState, by_offset, encode_state, part_path, snapshot_path
from minikafka.types import EpochEnd
from tests.sim.other_voters import Breach
from tests.sim.voter_histories import VoterHistory

STEPS = 100
SEEDS_MAX = 60
"""Each bug was found within 20."""


async def _answer_before_saving(driver: QuorumDriver, state: QuorumState) -> None:
    """A vote is given before it is saved."""
    driver._spawn(driver.world.disk.publish(QUORUM_STATE_PATH, encode_state(state)), "planted")


async def _name_without_sync(files: SnapshotFiles, snapshot: EpochEnd, file: File) -> None:
    """Old segments are removed before the snapshot is durable."""
    file.close()
    files._disk.replace(part_path(snapshot), snapshot_path(snapshot))
    files.kept = tuple(sorted({*files.kept, snapshot}, key=by_offset))


async def _empty_the_log_first(
    follower: MetadataFollower, snapshot: EpochEnd, file: File, payloads: Sequence[bytes]
) -> None:
    """The log is emptied before the snapshot that takes its place is durable."""
    async with follower._member.log_lock:
        follower._log.restart_at(snapshot.end_offset)
        await follower._log.sync()
        await follower._snapshots.finish(snapshot, file)
        follower._member.applied.replace(snapshot, payloads)
    follower._snapshots.drop_others(snapshot)
    follower._core.on_snapshots(follower._snapshots.kept)
    follower._member.ring()


async def _fetch_before_syncing(driver: QuorumDriver) -> None:
    """A fetch acknowledges what only the page cache has."""
    driver.log._durability.synced_end = driver.log.end_offset


PLANTED = [
    (QuorumDriver, "_persist", _answer_before_saving),
    (QuorumDriver, "sync", _fetch_before_syncing),
    (SnapshotFiles, "finish", _name_without_sync),
    (MetadataFollower, "_begin_behind", _empty_the_log_first),
]


@pytest.mark.parametrize(("owner", "name", "bug"), PLANTED, ids=[each[2].__name__.strip("_") for each in PLANTED])
def test_planted_bugs_are_caught(owner: type, name: str, bug: Any):
    """In a history that passes without them."""
    for seed in range(SEEDS_MAX):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, bug)
            try:
                VoterHistory(seed).play(STEPS)
            except Breach:
                break
    else:
        pytest.fail(f"{SEEDS_MAX} seeds have not found it")
    VoterHistory(seed).play(STEPS)


RARE = (
    "quorum_leader_elected",
    "quorum_tail_truncated",
    "segments_deleted",
    "snapshot_fetched",
    "snapshot_taken",
    "torn_tail_dropped",
    "vote_refused_already_voted",
    "vote_refused_stale_log",
    "data_directory_closed",
    "log_failed",
)


def test_the_histories_take_the_rare_paths():
    """A history that never cuts a log says nothing about cuts."""
    marks: Counter[str] = Counter()
    for seed in range(40):
        history = VoterHistory(seed)
        history.play(STEPS)
        marks.update(history.sim.marks)
    assert [kind for kind in RARE if not marks[kind]] == []
