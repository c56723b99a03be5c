"""A member's commits against a scripted coordinator: which are sent again, and what their errors say (S34)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from minikafka.client.caller import Caller
from minikafka.client.group_offsets import GroupOffsets, Membership, Spot
from minikafka.client.metadata import Metadata
from minikafka.client.positions import Positions
from minikafka.client.routing import Coordinator
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import CommitFailed
from minikafka.errors import NOT_WRITTEN, UNKNOWN, ProtocolError
from minikafka.types import TopicPartition
from minikafka.wire import group_messages as g
from tests.clients.fake_cluster import RESET_ANSWER, FakeCluster, play

BOOTSTRAP = "broker-1:9092,broker-2:9092"
T0 = TopicPartition("t", 0)

ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, STALE_MEMBER_EPOCH = 22, 25, 27, 113


def refused_commit(code: int) -> g.OffsetCommitResponse:
    parts = (g.PartitionOutcome(topic="t", partition=0, error_code=code, outcome=NOT_WRITTEN),)
    return g.OffsetCommitResponse(partitions=parts)


@dataclass
class CommittingMember:
    """Commits offset 7 of a partition that it owns; ``scripted`` are the coordinator's answers, each with its step."""

    scripted: list[tuple[Any, Callable[[CommittingMember], None]]]
    membership: Membership | None = field(default_factory=lambda: Membership("m", 4, None, 1))
    generations: list[int] = field(default_factory=list)
    positions: Positions = field(default_factory=lambda: Positions(reset_policy="earliest"))
    offsets: GroupOffsets = None  # type: ignore[assignment]
    error: ProtocolError | None = None
    then: Callable[[CommittingMember], Awaitable[None]] | None = None
    """What it does afterwards."""

    async def commit(self) -> None:
        cluster = FakeCluster()

        def answered(_node: int, api: str, request: Any) -> Any:
            if api == "FindCoordinator":
                found = g.Coordinator(key=request.keys[0], node_id=1, host="broker-1", port=9092)
                return g.FindCoordinatorResponse(coordinators=(found,))
            if api != "OffsetCommit":
                return None
            self.generations.append(request.generation_id)
            answer, step = self.scripted.pop(0)
            step(self)
            return answer

        cluster.faults.append(answered)
        cluster._on_OffsetCommit = lambda _node, _request: DONE  # type: ignore[attr-defined]
        config = ConsumerConfig(bootstrap_servers=BOOTSTRAP, group_id="g")
        metadata = Metadata(config, cluster.world, Caller(cluster.world))
        await metadata.start(10.0)
        coordinator = Coordinator("g", config, cluster.world, metadata)
        self.positions.assign([T0])
        self.offsets = GroupOffsets(config, cluster.world, coordinator, self.positions, lambda: self.membership)
        try:
            await self.offsets.commit({T0: Spot(7)})
        except ProtocolError as error:
            self.error = error
        if self.then is not None:
            await self.then(self)
        await metadata.stop()
        assert not self.scripted

    def joins(self) -> None:
        self.membership = Membership("m", 4, None, 1, is_joining=True)

    def joined(self, generation: int = 5, count: int = 2) -> None:
        self.membership = Membership("m", generation, None, count)

    def leaves(self) -> None:
        self.membership = None

    def gives_up(self) -> None:
        self.joined()
        self.offsets.forget([T0])

    def has_it_again(self) -> None:
        """Given up and assigned again, from what is committed."""
        self.gives_up()
        self.positions.assign([T0])

    def stays(self) -> None:
        pass


def played(*scripted: tuple[Any, Callable[[CommittingMember], None]]) -> CommittingMember:
    member = CommittingMember(list(scripted))
    play(member.commit)
    return member


DONE = g.OffsetCommitResponse()


@pytest.mark.parametrize("first", [ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS])
def test_a_commit_refused_for_its_generation_is_sent_again_with_the_next_one(first: int):
    """Seed 945000917: a cooperative member owns its partitions while it joins, and gave them up uncommitted."""
    member = played((refused_commit(first), CommittingMember.joined), (DONE, CommittingMember.stays))
    assert (member.error, member.generations) == (None, [4, 5])


def test_a_commit_waits_for_the_generation_that_its_member_joins():
    """S34: it is refused in the former generation, and in the next one until that has its assignment."""
    member = played(
        (refused_commit(ILLEGAL_GENERATION), CommittingMember.joins),
        (refused_commit(ILLEGAL_GENERATION), CommittingMember.joined),
        (refused_commit(REBALANCE_IN_PROGRESS), lambda each: each.joined(6, 3)),
        (DONE, CommittingMember.stays),
    )
    assert (member.error, member.generations) == (None, [4, 4, 5, 6])


@pytest.mark.parametrize(
    "step",
    [
        CommittingMember.stays,
        CommittingMember.leaves,
        CommittingMember.gives_up,
        CommittingMember.has_it_again,
        lambda each: each.joined(6),
        lambda each: each.joined(4),
        lambda each: each.positions.assign([]) or each.joined(),
    ],
    ids=["same_generation", "thrown_out", "given_up", "owned_again", "absent_from_one", "the_same_again", "unassigned"],
)
def test_a_commit_is_not_sent_again_if_its_partitions_may_have_been_anothers(step: Callable[[CommittingMember], None]):
    """S34: it fails as *not written*, and the partitions' next owner finds what was committed before."""
    member = played((refused_commit(ILLEGAL_GENERATION), step))
    assert isinstance(member.error, CommitFailed)
    assert (member.error.outcome, member.generations) == (NOT_WRITTEN, [4])


@pytest.mark.parametrize("last", [UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, 12])
def test_the_outcome_of_a_commit_that_was_sent_again_is_that_of_all_attempts(last: int):
    """The first attempt got no answer: that a later one was refused says nothing of it."""
    member = played((RESET_ANSWER, CommittingMember.joined), (refused_commit(last), CommittingMember.stays))
    assert member.error is not None
    assert (member.error.outcome, member.generations) == (UNKNOWN, [4, 5])


def test_an_unanswered_commit_with_an_old_epoch_stays_of_unknown_outcome():
    """With the consumer protocol, too."""
    member = played(
        (RESET_ANSWER, CommittingMember.stays),
        (refused_commit(STALE_MEMBER_EPOCH), CommittingMember.stays),
        (refused_commit(UNKNOWN_MEMBER_ID), CommittingMember.stays),
    )
    assert member.error is not None
    assert (member.error.outcome, member.generations) == (UNKNOWN, [4, 4, 4])


def test_a_commit_that_waits_for_another_one_fails_if_its_partitions_are_given_up_meanwhile():
    """S34: the next owner may have committed more by then; the later commit would take the offset back."""
    second: list[asyncio.Future[None]] = []

    async def given_up_while_it_waits(member: CommittingMember) -> None:
        second.append(asyncio.ensure_future(member.offsets.commit({T0: Spot(6)})))
        await asyncio.sleep(0)
        member.gives_up()

    async def story():
        steps: list[asyncio.Future[None]] = []
        member = CommittingMember(
            [(DONE, lambda each: steps.append(asyncio.ensure_future(given_up_while_it_waits(each))))]
        )
        await member.commit()
        with pytest.raises(CommitFailed, match="it has given up t-0"):
            await second[0]
        assert member.generations == [4]

    play(story)


@pytest.mark.parametrize(
    ("meanwhile", "afterwards", "commits"),
    [
        (CommittingMember.stays, CommittingMember.stays, 1),
        (CommittingMember.has_it_again, CommittingMember.stays, 2),
        (CommittingMember.stays, CommittingMember.has_it_again, 2),
    ],
    ids=["kept", "owned_again", "owned_again_later"],
)
def test_an_automatic_commit_is_left_out_only_if_this_owner_has_committed_the_same(
    meanwhile: Callable[[CommittingMember], None], afterwards: Callable[[CommittingMember], None], commits: int
):
    """S34: the partition's owner in between may have committed something else."""

    async def commits_by_itself(member: CommittingMember) -> None:
        afterwards(member)
        await member.offsets.commit_reached({T0: (7, -1)})

    answers = [(DONE, meanwhile), (DONE, CommittingMember.stays)][:commits]
    member = CommittingMember(answers, then=commits_by_itself)
    play(member.commit)
    assert (member.error, len(member.generations)) == (None, commits)


def test_a_commit_in_several_requests_of_which_one_was_written_has_an_unknown_outcome(monkeypatch):
    """The error speaks for all of its offsets; if the first request is refused, nothing was committed."""
    monkeypatch.setattr("minikafka.wire.apis.PARTITIONS_MAX", 1)
    for written, outcome in ((0, NOT_WRITTEN), (1, UNKNOWN)):
        attempts: list[TopicPartition] = []

        async def attempt(
            spots: dict[TopicPartition, Spot], _given_up: object, attempts=attempts, written=written
        ) -> None:
            attempts.extend(spots)
            if len(attempts) > written:
                raise CommitFailed("the group has gone on", outcome=NOT_WRITTEN)

        async def commit(attempt=attempt) -> None:
            offsets = GroupOffsets.__new__(GroupOffsets)
            offsets._given_up, offsets._turn = Counter(), asyncio.Lock()
            monkeypatch.setattr(offsets, "_commit", attempt, raising=False)
            await offsets.commit({T0: Spot(7), TopicPartition("t", 1): Spot(8)})

        with pytest.raises(CommitFailed) as caught:
            asyncio.run(commit())
        assert (caught.value.outcome, len(attempts)) == (outcome, written + 1)
