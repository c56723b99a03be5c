"""The metadata log: what commits it, what a fetch gets, where a follower cuts, and what is never cut."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from minikafka.errors import BY_CODE, InconsistentClusterId, InvalidRequest
from minikafka.invariant import InvariantViolation
from minikafka.quorum import fetching
from minikafka.quorum.core import QuorumCore
from minikafka.quorum.fetching import FetchSnapshot, Wait, describe
from minikafka.quorum.files import QuorumState
from minikafka.quorum.roles import ANSWERS_MAX, Follower, Leader, Progress
from minikafka.replication.follower import CutTo, Extend
from minikafka.types import METADATA_TOPIC, Address, EpochEnd
from minikafka.wire.messages import (
    CurrentLeader,
    EpochEndOffset,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from tests.rules.quorum_double import CLUSTER, WALL_MS, Journal, MemoryLog, Player, batch_of, make_core


def leading(
    *epochs: int, epoch: int = 5, voters: tuple[int, ...] = (1, 2, 3), start: int = 0, **facts: Any
) -> QuorumCore:
    """Member 1 leads ``epoch``; its log holds a record of each of ``epochs``, then its LeaderChange."""
    log = MemoryLog(start)
    for each in epochs:
        log.append_as_leader(batch_of("x"), leader_epoch=each, wall_ms=WALL_MS)
    log.sync()
    core = make_core(1, voters=voters, log=log, **facts)
    core.role = Leader(
        epoch=epoch,
        leader_id=1,
        epoch_start=log.end_offset,
        voters={voter: Progress() for voter in voters[1:]},
        check_quorum_at=100.0,
        begin_at=dict.fromkeys(voters[1:], 100.0),
        resumed_at=0.0,
    )
    core.append(batch_of("*"), wall_ms=WALL_MS)
    return core


def following(*epochs: int, epoch: int = 5, high_watermark: int = 0, start: int = 0, **facts: Any) -> QuorumCore:
    """Member 1 follows 2 in ``epoch``."""
    log = MemoryLog(start)
    for each in epochs:
        log.append_as_leader(batch_of("x"), leader_epoch=each, wall_ms=WALL_MS)
    log.sync()
    core = make_core(1, log=log, state=QuorumState(epoch=epoch, leader_id=2), **facts)
    core.raise_high_watermark(high_watermark)
    return core


def fetch(
    offset: int, last_epoch: int, *, replica: int = 2, epoch: int = 5, high_watermark: int = -1, **facts: Any
) -> FetchRequest:
    part = FetchPartition(
        topic=METADATA_TOPIC,
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        high_watermark=high_watermark,
    )
    return FetchRequest(cluster_id=CLUSTER, replica_id=replica, partitions=(part,), **facts)


def answered(core: QuorumCore, request: FetchRequest, *, again: bool = False, now: float = 1.0) -> FetchedPartition:
    reply = fetching.on_fetch(core, request, now, again=again).reply
    assert reply is not None
    return reply.partitions[0]


# ---- what is committed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (7, (), 7),
        (7, (5,), 5),
        (7, (9, 5), 7),
        (7, (5, 5), 5),
        (3, (9, 9), 9),
        (7, (-1, -1), -1),
        (7, (9, 8, 5, 5), 7),
        (7, (9, 5, 4, 3), 5),
    ],
)
def test_the_end_of_a_majority(own: int, others: tuple[int, ...], expected: int):
    """KAFKA-FACTS 4.1: the n//2-th (from 0) of the voters' ends, largest first; the leader counts like any other."""
    voters = {n: Progress(end_offset=end) for n, end in enumerate(others, start=2)}
    role = Leader(epoch=1, epoch_start=0, voters=voters, check_quorum_at=0.0, begin_at={}, resumed_at=0.0)
    assert role.majority_end(own) == expected


def test_nothing_is_committed_before_a_record_of_the_own_epoch():
    """KAFKA-12619, Raft figure 8: a majority's copy of an older epoch's record is not enough."""
    core = leading(1, 2, 2)
    core.log.sync()
    assert core.log.end_offset == 4
    core.record_fetch(2, 3, leader_end=4, now=1.0)
    assert core.high_watermark == 0
    core.record_fetch(2, 4, leader_end=4, now=1.1)
    assert core.high_watermark == 4


def test_a_leader_counts_itself_only_up_to_what_it_has_synced():
    """KAFKA-FACTS 4.1: its own unsynced tail may be gone after a power cut; two synced followers are a majority too."""
    core = leading(1)
    assert core.log.synced_end == 1
    core.record_fetch(2, 2, leader_end=2, now=1.0)
    assert core.high_watermark == 0
    core.record_fetch(3, 2, leader_end=2, now=1.0)
    assert core.high_watermark == 2
    core.append(batch_of("y"), wall_ms=WALL_MS)
    core.record_fetch(2, 3, leader_end=3, now=1.0)
    assert core.high_watermark == 2
    core.log.sync()
    assert core.on_durable()
    assert core.high_watermark == 3


def test_observers_commit_nothing():
    """Brokers that are no voters copy the log and are not counted."""
    core = leading(1)
    core.log.sync()
    core.record_fetch(9, 2, leader_end=2, now=1.0)
    assert core.high_watermark == 0
    assert core.role.observers[9].end_offset == 2


def test_a_high_watermark_never_falls():
    """Rule 4 of core.py: an older answer changes nothing."""
    core = following(1, 2, 3, high_watermark=3)
    assert not core.raise_high_watermark(2)
    assert core.high_watermark == 3
    with pytest.raises(InvariantViolation, match="beyond the log's end"):
        core.raise_high_watermark(4)


# ---- the leader's answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (fetch(0, 0, epoch=4), "FENCED_LEADER_EPOCH"),
        (fetch(0, 0, epoch=6), "UNKNOWN_LEADER_EPOCH"),
        (FetchRequest(cluster_id=CLUSTER, replica_id=2), "INVALID_REQUEST"),
        (fetch(-1, 0), "INVALID_REQUEST"),
    ],
)
def test_fetches_are_fenced_by_epoch(request_: FetchRequest, error: str):
    """KIP-320: the answer names the leader, and the offset counts for nothing."""
    core = leading(1, 2)
    part = answered(core, request_)
    assert BY_CODE[part.error_code].name == error
    assert part.current_leader == CurrentLeader(leader_id=1, leader_epoch=5)
    assert core.role.voters[2].last_fetch_at is None


def test_observer_with_an_id_beyond_32_bits_is_refused():
    """DescribeQuorum of Kafka's protocol could not name it, and failed for all other nodes as well."""
    core = leading(1, 2)
    assert BY_CODE[answered(core, fetch(0, 0, replica=2**31)).error_code].name == "INVALID_REQUEST"
    assert answered(core, fetch(0, 0, replica=2**31 - 1)).error_code == 0
    assert list(core.role.observers) == [2**31 - 1]


def test_who_does_not_lead_says_who_does():
    """NOT_LEADER_OR_FOLLOWER names the leader."""
    part = answered(following(1), fetch(0, 0))
    assert BY_CODE[part.error_code].name == "NOT_LEADER_OR_FOLLOWER"
    assert part.current_leader == CurrentLeader(leader_id=2, leader_epoch=5)


@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging"),
    [
        (0, 0, None),
        (3, 2, None),
        (5, 3, None),
        (2, 3, None),  # epoch 3 reaches beyond 2: all below is the same
        (4, 2, (2, 3)),  # epoch 2 ends at 3 here
        (3, 1, (1, 1)),
        (9, 5, (5, 6)),  # beyond the end
        (9, 4, (3, 5)),  # epoch 4 is unknown here: step down to 3
    ],
)
def test_where_logs_part(offset: int, last_epoch: int, diverging: tuple[int, int] | None):
    """KIP-101, KIP-279, KIP-595: epochs 1, 2, 2, 3, 3, then the leader's own 5."""
    core = leading(1, 2, 2, 3, 3)
    core.log.sync()
    part = answered(core, fetch(offset, last_epoch))
    if diverging is None:
        assert part.diverging_epoch is None
        assert core.role.voters[2].end_offset == offset
    else:
        assert part.diverging_epoch == EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
        assert not part.records
        assert core.role.voters[2].end_offset == -1, "a diverging fetch acknowledges nothing (KAFKA-8400)"


def test_a_fetch_with_nothing_to_get_is_parked_until_there_is():
    """S12: new records, a newer watermark (KIP-1166) or another epoch end the wait."""
    core = leading(1)
    core.log.sync()
    request = fetch(2, 5, high_watermark=2)
    assert fetching.on_fetch(core, request, 1.0).reply is None
    assert core.high_watermark == 2
    assert not fetching.is_due(core, request)
    core.append(batch_of("y"), wall_ms=WALL_MS)
    assert fetching.is_due(core, request)
    part = answered(core, request, again=True)
    assert len(part.records) == 1
    assert core.role.voters[2].end_offset == 2, "counted once, when it arrived"


def test_a_parked_fetch_counts_once():
    """KAFKA-8400: when it is answered, its voter may have fetched again, or be dead."""
    core = leading()
    core.log.sync()
    waiting = fetch(1, 5, high_watermark=1, max_wait_ms=500)
    fetching.on_fetch(core, waiting, 1.0)
    fetching.on_fetch(core, fetch(1, 5, high_watermark=1, max_wait_ms=500), 2.0)
    core.append(batch_of("y"), wall_ms=WALL_MS)
    fetching.on_fetch(core, fetch(2, 5), 3.0)
    assert answered(core, waiting, again=True, now=9.0).records
    progress = core.role.voters[2]
    assert (progress.end_offset, progress.last_fetch_at, core.contacts[2]) == (2, 3.0, 3.0)


@pytest.mark.parametrize(("voters", "others"), [(2, 1), (3, 1), (4, 2), (5, 2)])
def test_a_leader_stays_while_a_majority_fetches(voters: int, others: int):
    """KAFKA-15489: with itself a majority; of four voters one other is not enough."""
    role = Leader(
        epoch=1,
        epoch_start=0,
        voters={n: Progress() for n in range(2, voters + 1)},
        check_quorum_at=3.0,
        begin_at={},
        resumed_at=0.0,
    )
    for node in range(2, others + 1):
        role.hear_from(node, now=2.0, timeout_s=2.0)
    assert role.check_quorum_at == 3.0
    role.hear_from(others + 1, now=2.0, timeout_s=2.0)
    assert role.check_quorum_at == 5.0
    role.hear_from(2, now=4.0, timeout_s=2.0)
    assert role.check_quorum_at == (7.0 if others == 1 else 5.0), "a majority is counted anew each time"


def test_a_newer_high_watermark_is_told_at_once():
    """DESIGN, "the metadata watermark is late by a fetch round": the fetch carries the follower's own."""
    core = leading(1)
    core.log.sync()
    part = answered(core, fetch(2, 5, high_watermark=1))
    assert (part.high_watermark, part.records) == (2, ())
    waiting = fetch(2, 5, replica=3, high_watermark=2)
    assert fetching.on_fetch(core, waiting, 1.0).reply is None
    core.append(batch_of("y"), wall_ms=WALL_MS)
    core.observe(6, -1, now=1.0)
    assert fetching.is_due(core, waiting)
    assert BY_CODE[answered(core, waiting, again=True).error_code].name == "FENCED_LEADER_EPOCH"


def test_a_reader_that_is_no_replica_sees_what_is_committed():
    """S3 for the metadata log: tools read below the high watermark and acknowledge nothing."""
    core = leading(1)
    core.log.sync()
    assert answered(core, fetch(0, -1, replica=-1, epoch=-1, max_wait_ms=0)).records == ()
    core.record_fetch(2, 2, leader_end=2, now=1.0)
    core.append(batch_of("y"), wall_ms=WALL_MS)
    assert len(answered(core, fetch(0, -1, replica=-1, epoch=-1)).records) == 2


def fetched(core: QuorumCore, offset: int, now: float, *, replica: int, last_answer: int = 0) -> int:
    """A fetch that is read at ``now``: the number of its answer."""
    reply = fetching.on_fetch(core, fetch(offset, 1, replica=replica, session_id=last_answer), now).reply
    assert reply is not None
    return reply.session_id


def heard_at(core: QuorumCore, now: float) -> float:
    role = core.role
    assert isinstance(role, Leader)
    return role.majority_heard_at(now)


def test_a_majority_followed_when_the_answers_that_it_names_were_ready():
    """A voter that fetches on has had the answer before; the moment at which its next fetch is read proves nothing."""
    core = leading(1)
    assert heard_at(core, 1.0) == float("-inf")
    first = fetched(core, 1, 1.0, replica=2)
    assert heard_at(core, 1.5) == float("-inf"), "it may have been sent at any time"
    second = fetched(core, 1, 2.0, replica=2, last_answer=first)
    assert heard_at(core, 9.0) == 1.0
    assert fetched(core, 1, 3.0, replica=2, last_answer=second) == 3
    assert heard_at(core, 9.0) == 2.0


def test_a_fetch_that_waited_while_its_leader_was_stopped_does_not_count():
    """SIGSTOP of a controller: the fetches in its sockets, read when it woke, revived its own session, and it
    acknowledged a record with acks=1 although others had elected a leader (test_kill_loop, one run in five).
    """
    core = leading(1)
    numbers = {voter: fetched(core, 1, 1.0, replica=voter) for voter in (2, 3)}
    for voter, number in numbers.items():
        numbers[voter] = fetched(core, 1, 2.0, replica=voter, last_answer=number)
    assert heard_at(core, 2.0) == 1.0
    # Stopped from here to 50.0. Both had asked again, and voter 2 twice, since nobody answered.
    for voter in (2, 3, 2):
        fetched(core, 1, 50.0, replica=voter, last_answer=numbers[voter])
    assert heard_at(core, 50.0) == 2.0


def test_an_answer_that_is_named_counts_although_later_ones_were_given():
    """Issue 15: a controller that woke answered all fetches in its sockets at once, then ignored what its voters named."""
    core = leading(1)
    first = fetched(core, 1, 1.0, replica=2)
    fetched(core, 1, 50.0, replica=2, last_answer=first)
    woken = fetched(core, 1, 50.0, replica=2, last_answer=first)
    fetched(core, 1, 50.0, replica=2, last_answer=first)
    assert heard_at(core, 50.0) == 1.0
    fetched(core, 1, 51.0, replica=2, last_answer=woken)
    assert heard_at(core, 51.0) == 50.0
    fetched(core, 1, 52.0, replica=2, last_answer=first)
    assert heard_at(core, 52.0) == 50.0, "a fetch that was late takes nothing back"


def resumed_at(core: QuorumCore) -> float:
    role = core.role
    assert isinstance(role, Leader)
    return role.resumed_at


def test_a_leader_that_was_stopped_knows_when_a_majority_was_heard_again():
    """Issue 15: until then it could hear no broker, and its silence is its own (:meth:`Sessions.spare`)."""
    core = leading(1)
    began_at = resumed_at(core)
    number = fetched(core, 1, began_at + 0.5, replica=2)
    for moment in (1.0, 3.9):
        number = fetched(core, 1, began_at + moment, replica=2, last_answer=number)
    assert resumed_at(core) == began_at, "no gap was longer than a third of a session of nine seconds"
    # Stopped for eight seconds. The fetch in the socket names an answer from before, only the next one shows more.
    woken = fetched(core, 1, began_at + 12.0, replica=2, last_answer=number)
    assert resumed_at(core) == began_at
    number = fetched(core, 1, began_at + 12.1, replica=2, last_answer=woken)
    assert resumed_at(core) == began_at + 12.1
    fetched(core, 1, began_at + 12.6, replica=2, last_answer=number)
    assert resumed_at(core) == began_at + 12.1


def test_an_interruption_right_after_the_election_counts():
    """Nothing was heard before it: it begins with the reign."""
    core = leading(1)
    began_at = resumed_at(core)
    number = fetched(core, 1, began_at + 8.0, replica=3)
    fetched(core, 1, began_at + 8.1, replica=3, last_answer=number)
    assert resumed_at(core) == began_at + 8.1


def test_answers_that_nobody_names_are_forgotten():
    """Memory is bounded, whatever a voter sends."""
    core = leading(1)
    for number in range(1, 3 * ANSWERS_MAX):
        assert fetched(core, 1, float(number), replica=2) == number
    assert isinstance(core.role, Leader)
    assert len(core.role.voters[2].answered_at) == ANSWERS_MAX
    fetched(core, 1, 999.0, replica=2, last_answer=1)
    assert heard_at(core, 999.0) == float("-inf")


def test_an_idle_fetch_is_answered_at_once_when_it_must_prove_that_its_voter_follows():
    """Issue 15: after a cut, a controller's own broker had no session for an idle fetch longer than necessary."""
    core = leading(1)
    core.log.sync()
    number = fetched(core, 1, 1.0, replica=2)
    idle = fetch(2, 5, replica=2, high_watermark=2, session_id=number)
    assert fetching.on_fetch(core, idle, 1.4).reply is None, "the answer is half a second old at the most"
    proving = fetching.on_fetch(core, idle, 9.0).reply
    assert proving is not None
    assert fetching.on_fetch(core, idle, 9.1).reply is None, "its answer is on its way"
    named = fetch(2, 5, replica=2, high_watermark=2, session_id=proving.session_id)
    assert fetching.on_fetch(core, named, 9.2).reply is None
    assert heard_at(core, 9.2) == 9.0


def test_a_follower_names_the_last_good_answer_of_its_leader():
    """And none of another leader's, or of another epoch."""
    core = following(1)
    ask = fetching.next_fetch(core)
    assert ask is not None
    assert ask.request.session_id == 0
    part = FetchedPartition(
        topic=METADATA_TOPIC, partition=0, current_leader=CurrentLeader(leader_id=2, leader_epoch=5)
    )
    fetching.on_fetch_response(core, ask, FetchResponse(session_id=7, partitions=(part,)), 1.0)
    again = fetching.next_fetch(core)
    assert again is not None
    assert again.request.session_id == 7
    core.observe(6, 3, now=2.0)
    other = fetching.next_fetch(core)
    assert other is not None
    assert (other.peer, other.request.session_id) == (3, 0)


# ---- snapshots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "last_epoch", "snapshot"),
    [
        (10, 2, None),  # just behind the oldest snapshot
        (11, 3, None),
        (0, 0, (3, 12)),
        (9, 2, (3, 12)),
        (10, 1, (3, 12)),  # another history up to there
        (12, 1, (3, 12)),
    ],
)
def test_a_log_that_no_longer_reaches_back_is_entered_through_a_snapshot(
    offset: int, last_epoch: int, snapshot: tuple[int, int] | None
):
    """KAFKA-FACTS 4.3: the log starts at 10, where the older of two snapshots ends."""
    core = leading(3, 3, 4, start=10, snapshots=(EpochEnd(2, 10), EpochEnd(3, 12)))
    part = answered(core, fetch(offset, last_epoch))
    assert part.snapshot_id == (EpochEndOffset(epoch=snapshot[0], end_offset=snapshot[1]) if snapshot else None)


@pytest.mark.parametrize(
    ("offset", "last_epoch", "snapshot"),
    [
        (12, 3, (4, 14)),
        (13, 3, (4, 14)),
        (12, 4, None),  # where the log starts, in the epoch of the snapshot there
        (13, 4, None),
        (5, 2, (4, 14)),  # the snapshot below the log start is no place to begin from
    ],
)
def test_a_snapshot_below_the_log_start_says_nothing_about_a_followers_history(
    offset: int, last_epoch: int, snapshot: tuple[int, int] | None
):
    """The log start has been raised to 12, and the snapshot at 5 is still there (or there again after a power cut).

    A deposed leader of epoch 3 comes back with a tail that was never committed. Compared with the snapshot at 5, its
    epoch seemed to be part of this log: it got the records from 12 on, and kept its own below.
    """
    core = leading(4, 4, 4, start=12, snapshots=(EpochEnd(2, 5), EpochEnd(4, 12), EpochEnd(4, 14)))
    part = answered(core, fetch(offset, last_epoch))
    assert part.snapshot_id == (EpochEndOffset(epoch=snapshot[0], end_offset=snapshot[1]) if snapshot else None)


def test_a_snapshot_is_fetched_in_pieces_from_the_leader_of_the_epoch():
    """FetchSnapshot is fenced like a fetch, and counts as a sign of life of a voter."""
    core = leading(3, 3, 4, start=10, snapshots=(EpochEnd(2, 10), EpochEnd(3, 12)))

    def ask(end: int, *, epoch: int = 5) -> FetchSnapshotRequest:
        return FetchSnapshotRequest(
            cluster_id=CLUSTER,
            replica_id=2,
            current_leader_epoch=epoch,
            snapshot_id=EpochEndOffset(epoch=3, end_offset=end),
        )

    assert fetching.on_fetch_snapshot(core, ask(12), now=3.0) == EpochEnd(3, 12)
    assert core.role.check_quorum_at == pytest.approx(6.0)
    for request, name in ((ask(11), "SNAPSHOT_NOT_FOUND"), (ask(12, epoch=4), "FENCED_LEADER_EPOCH")):
        with pytest.raises(Exception) as raised:
            fetching.on_fetch_snapshot(core, request, now=3.0)
        assert raised.value.name == name


@pytest.mark.parametrize("max_bytes", [-1, -(2**63)])
def test_a_fetch_of_negatively_many_bytes_of_a_snapshot_is_refused(max_bytes: int):
    """The disk was to read them, refused, and the active controller stopped as if the disk had failed."""
    core = leading(3, 3, 4, start=10, snapshots=(EpochEnd(2, 10), EpochEnd(3, 12)))
    request = FetchSnapshotRequest(
        cluster_id=CLUSTER,
        replica_id=2,
        current_leader_epoch=5,
        snapshot_id=EpochEndOffset(epoch=3, end_offset=12),
        max_bytes=max_bytes,
    )
    with pytest.raises(InvalidRequest, match=f"max_bytes={max_bytes} must not be negative"):
        fetching.on_fetch_snapshot(core, request, now=3.0)


def test_a_follower_begins_anew_behind_the_snapshot():
    """The emptied log ends where the snapshot does, in its epoch, and all of it is committed."""
    core = following(1, 1, high_watermark=1)
    ask = fetching.next_fetch(core)
    assert ask is not None
    answer = answer_of(snapshot_id=EpochEndOffset(epoch=3, end_offset=12))
    assert fetching.on_fetch_response(core, ask, answer, 1.0).reply == FetchSnapshot(EpochEnd(3, 12))
    core.log.restart_at(12)
    core.on_snapshots([EpochEnd(3, 12)])
    again = fetching.next_fetch(core)
    assert again is not None
    assert (again.offset, again.request.partitions[0].last_fetched_epoch, core.high_watermark) == (12, 3, 12)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"position": 5}, False),
        ({"error_code": 98}, False),
        ({"unaligned_records": ()}, False),
        ({"current_leader": CurrentLeader(leader_id=3, leader_epoch=6)}, False),
    ],
)
def test_pieces_of_a_snapshot_that_are_not_kept(changes: dict[str, Any], kept: bool):
    """Wrong place, an error, nothing in it, or another leader: give up and fetch again."""
    core = following(1)
    ask = fetching.next_fetch(core)
    assert ask is not None
    facts: dict[str, Any] = {"position": 0, "size": 9, "unaligned_records": (b"123",)}
    response = FetchSnapshotResponse(**(facts | changes))
    assert fetching.on_snapshot_chunk(core, ask, response, position=0, now=1.0) is kept


# ---- the follower's steps --------------------------------------------------------------------------------------------


def answer_of(**facts: Any) -> FetchResponse:
    return FetchResponse(partitions=(FetchedPartition(topic=METADATA_TOPIC, partition=0, **facts),))


def step_of(core: QuorumCore, now: float = 1.0, **facts: Any) -> Any:
    ask = fetching.next_fetch(core)
    assert ask is not None
    return fetching.on_fetch_response(core, ask, answer_of(**facts), now).reply


def test_a_voter_claims_only_what_is_durable():
    """KAFKA-FACTS 4.1: the fetch offset is a durability claim; asking with an unsynced tail is a bug."""
    core = following(1, 1)
    ask = fetching.next_fetch(core)
    assert ask is not None
    assert (ask.peer, ask.offset, ask.epoch) == (2, 2, 5)
    core.log.append_as_leader(batch_of("y"), leader_epoch=5, wall_ms=WALL_MS)
    with pytest.raises(InvariantViolation, match="syncs before it asks"):
        fetching.next_fetch(core)


def test_a_good_answer_extends_the_log_and_shows_that_the_leader_lives():
    """The fetch timeout starts again, and pre-votes of others are refused from now on."""
    core = following(1)
    step = step_of(core, now=1.5, records=(batch_of("y").data,), high_watermark=1, log_start_offset=0)
    assert isinstance(step, Extend)
    assert (len(step.batches), step.leader_high_watermark) == (1, 1)
    assert isinstance(core.role, Follower)
    assert core.role.has_fetched
    assert core.next_deadline() == pytest.approx(3.5)
    assert core.contacts == {2: 1.5}


@pytest.mark.parametrize(
    ("epochs", "diverging", "cut"),
    [
        ((1, 1, 2), (1, 2), 2),
        ((1, 1, 1), (1, 2), 2),
        ((1, 3, 3), (2, 5), 1),  # epoch 2 is unknown here: the own epoch 1 ends at 1
        ((1, 2, 2), (2, 9), 3),
        ((4, 4), (3, 7), 0),
    ],
)
def test_a_diverging_follower_cuts_to_the_largest_common_epoch(
    epochs: tuple[int, ...], diverging: tuple[int, int], cut: int
):
    """KIP-279, KAFKA-FACTS 3.6: the same rule as for user partitions."""
    step = step_of(following(*epochs), diverging_epoch=EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]))
    assert step == CutTo(cut)


def test_a_cut_below_the_high_watermark_is_fatal():
    """KAFKA-12460: committed metadata is never truncated; a leader that asks for it has not got it."""
    core = following(1, 1, 1, high_watermark=2)
    with pytest.raises(InvariantViolation, match="never cut"):
        step_of(core, diverging_epoch=EpochEndOffset(epoch=1, end_offset=1))


def test_an_answer_of_an_epoch_that_is_over_is_thrown_away():
    """KAFKA-FACTS 3.5: what came in flight from a former leader is not appended."""
    core = following(1)
    ask = fetching.next_fetch(core)
    assert ask is not None
    core.observe(6, 3, now=1.0)
    answer = answer_of(records=(batch_of("y").data,), high_watermark=1)
    assert isinstance(fetching.on_fetch_response(core, ask, answer, 1.0).reply, Wait)


def test_an_error_that_names_the_new_leader_is_followed():
    """No timeout is waited for: the next fetch goes there."""
    core = following(1)
    step = step_of(core, error_code=6, current_leader=CurrentLeader(leader_id=3, leader_epoch=7))
    assert step == Wait(1.0)
    assert (core.epoch, core.leader_id) == (7, 3)
    other = following(1)
    assert step_of(other, error_code=6).until == pytest.approx(1.02)
    assert other.leader_id == 2
    assert isinstance(other.events, Journal)
    kind, facts = other.events[-1]
    assert (kind, facts["error"], facts["code"]) == ("quorum_fetch_refused", "NOT_LEADER_OR_FOLLOWER", 6)


def test_what_a_member_of_another_cluster_answers_is_ignored():
    """Its address is a voter's by mistake: its epoch and leader are those of another quorum."""
    facts = CurrentLeader(leader_id=3, leader_epoch=7)
    core = following(1)
    step = step_of(core, error_code=InconsistentClusterId.code, current_leader=facts)
    assert step == Wait(1.0 + core.election_timeout_s)  # a wrong setting does not go away within a pause of 20 ms
    ask = fetching.next_fetch(core)
    assert ask is not None
    part = FetchSnapshotResponse(error_code=InconsistentClusterId.code, current_leader=facts)
    assert not fetching.on_snapshot_chunk(core, ask, part, position=0, now=1.0)
    assert (core.epoch, core.leader_id, core.contacts) == (5, 2, {})


def test_an_observer_without_a_leader_asks_any_voter():
    """Who leads comes back with the refusal."""
    core = make_core(9)
    ask = fetching.next_fetch(core)
    assert ask is not None
    assert ask.peer in (1, 2, 3)
    answer = answer_of(error_code=74, current_leader=CurrentLeader(leader_id=2, leader_epoch=4))
    assert fetching.on_fetch_response(core, ask, answer, 1.0).reply == Wait(1.0)
    assert (core.role.name, core.leader_id, core.epoch) == ("follower", 2, 4)


# ---- several members together ----------------------------------------------------------------------------------------


def test_a_committed_record_reaches_everybody_and_the_news_of_it_too():
    """Three members: append, replicate, commit; the followers learn of the commit with their next fetch."""
    player = Player(observers=1)
    player.settle()
    end = player.append("a")
    player.run(0.3)
    assert [core.high_watermark for core in player.cores.values()] == [end] * 4
    assert {tuple(log.texts()) for log in player.logs.values()} == {("1:*", "1:a")}


def test_an_unreplicated_tail_of_a_deposed_leader_is_cut():
    """What only the old leader had was never committed; the logs are equal in the end."""
    player = Player()
    first = player.settle()
    player.append("kept")
    player.run(0.3)
    player.cut_off(first)
    player.append("lost", "lost too")
    player.run(9.0)
    second = player.leader()
    assert second not in (None, first)
    player.append("new")
    player.run(0.3)
    player.heal()
    player.settle()
    player.run(0.5)
    assert len({tuple(log.texts()) for log in player.logs.values()}) == 1
    texts = player.logs[first].texts()
    assert [text.split(":")[1] for text in texts if "*" not in text] == ["kept", "new"]


def test_describe_shows_how_far_everybody_is():
    """DescribeQuorum: the leader knows ages and lags; another member names the leader."""
    player = Player(observers=1)
    leader = player.settle()
    player.append("a")
    player.run(0.3)
    voters = {node: Address("h", 9000 + node) for node in player.voters}
    told = describe(player.cores[leader], voters, player.now)
    assert [(each.replica_id, each.lag) for each in told.voters] == [(1, 0), (2, 0), (3, 0)]
    assert sorted(each.status for each in told.voters) == ["Follower", "Follower", "Leader"]
    assert [(each.replica_id, each.status) for each in told.observers] == [(4, "Observer")]
    other = next(node for node in player.voters if node != leader)
    refused = describe(player.cores[other], voters, player.now)
    assert (BY_CODE[refused.error_code].name, refused.leader_id, refused.role) == (
        "NOT_LEADER_OR_FOLLOWER",
        leader,
        "follower",
    )


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_keep_what_was_committed(seed: int):
    """Invariants 10 and 13 under crashes, power cuts and cut links: the player checks them after every round."""
    draw = Random(f"history/{seed}")
    player = Player(draw.choice((3, 3, 5)), seed=seed)
    for turn in range(120):
        match draw.randrange(14):
            case 0 | 1 | 2 | 3 if player.leader() is not None:
                player.append(f"{seed}.{turn}")
            case 4:
                player.cut_off(draw.choice(player.nodes))
            case 5:
                player.cuts.add((draw.choice(player.nodes), draw.choice(player.nodes)))
            case 6 | 7:
                player.heal()
            case 8 if len(player.cores) > 1:
                player.crash(draw.choice(sorted(player.cores)), power=draw.random() < 0.5)
            case 9 | 10:
                for node in player.nodes:
                    if node not in player.cores:
                        player.start(node)
            case _:
                player.run(draw.uniform(0.1, 3.0))
    player.heal()
    for node in player.nodes:
        if node not in player.cores:
            player.start(node)
    player.settle(30.0)
    player.append("the end")
    player.run(1.0)
    assert len({tuple(log.texts()) for log in player.logs.values()}) == 1
    assert len(player.committed) == player.logs[1].end_offset
