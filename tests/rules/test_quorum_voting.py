"""Who gets a vote, what must be durable before it is given, and how leaders begin and end."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.errors import BY_CODE, InconsistentClusterId
from minikafka.quorum import voting
from minikafka.quorum.core import EPOCH_JUMP_MAX, QuorumCore
from minikafka.quorum.files import QuorumState
from minikafka.quorum.roles import Follower, Prospective, Unattached
from minikafka.types import NO_NODE
from minikafka.wire.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    VoteRequest,
    VoteResponse,
)
from tests.rules.quorum_double import CLUSTER, WALL_MS, Journal, MemoryLog, Player, batch_of, make_core


def vote(**changes: Any) -> VoteRequest:
    """A request for member 1's vote by 2 in epoch 5, with a log that ends at (4, 10)."""
    facts: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "voter_id": 1,
        "candidate_id": 2,
        "candidate_epoch": 5,
        "last_epoch": 4,
        "last_epoch_end_offset": 10,
    }
    return VoteRequest(**(facts | changes))


def log_of(*epochs: int) -> MemoryLog:
    """One record for each."""
    log = MemoryLog()
    for epoch in epochs:
        log.append_as_leader(batch_of("x"), leader_epoch=epoch, wall_ms=WALL_MS)
    log.sync()
    return log


def member(
    *, state: QuorumState | None = None, log: MemoryLog | None = None, journal: Journal | None = None
) -> QuorumCore:
    return make_core(1, state=state, log=log, journal=journal)


REFUSED = [
    ("another cluster", vote(cluster_id="other"), "INCONSISTENT_CLUSTER_ID"),
    ("meant for somebody else", vote(voter_id=3), "INVALID_VOTER_KEY"),
    ("no voter", vote(candidate_id=9), "INCONSISTENT_VOTER_SET"),
    ("an epoch that is over", vote(candidate_epoch=3, last_epoch=2), "FENCED_LEADER_EPOCH"),
    ("a log of the epoch that only begins", vote(last_epoch=5), "INVALID_REQUEST"),
    ("a log of the future in a pre-vote", vote(last_epoch=6, pre_vote=True), "INVALID_REQUEST"),
    ("a negative offset", vote(last_epoch_end_offset=-1), "INVALID_REQUEST"),
    ("a negative epoch", vote(last_epoch=-1), "INVALID_REQUEST"),
]


@pytest.mark.parametrize(("what", "request_", "error"), REFUSED, ids=[row[0] for row in REFUSED])
def test_votes_that_cannot_even_be_considered(what: str, request_: VoteRequest, error: str):
    """KAFKA-FACTS 4.1: refused by name, and nothing changes."""
    core = member(state=QuorumState(epoch=4))
    ready = voting.on_vote_request(core, request_, now=1.0)
    assert BY_CODE[ready.reply.error_code].name == error
    assert (ready.reply.vote_granted, ready.reply.leader_epoch) == (False, 4)
    assert ready.state == QuorumState(epoch=4)


CASES = [
    # state saved, epochs in the own log, request, granted?
    ("no vote yet", QuorumState(epoch=4), (4,), vote(), True),
    ("voted for it", QuorumState(epoch=5, voted_id=2), (4,), vote(), True),
    ("voted for another", QuorumState(epoch=5, voted_id=3), (4,), vote(), False),
    ("voted for itself", QuorumState(epoch=5, voted_id=1), (4,), vote(), False),
    ("voted in an older epoch", QuorumState(epoch=4, voted_id=3), (4,), vote(), True),
    ("knows a leader of the epoch", QuorumState(epoch=5, leader_id=3), (4,), vote(), False),
    ("led the epoch itself", QuorumState(epoch=5, leader_id=1), (4,), vote(), False),
    ("led an older epoch", QuorumState(epoch=4, leader_id=1), (4,), vote(), True),
    ("log longer in the same epoch", QuorumState(epoch=4), (4,) * 11, vote(), False),
    ("log equal", QuorumState(epoch=4), (4,) * 10, vote(), True),
    ("log longer but of an older epoch", QuorumState(epoch=4), (3,) * 20, vote(), True),
    ("log shorter but of a newer epoch", QuorumState(epoch=4), (4,), vote(last_epoch=3), False),
    (
        "empty log against empty log",
        QuorumState(),
        (),
        vote(candidate_epoch=1, last_epoch=0, last_epoch_end_offset=0),
        True,
    ),
]


@pytest.mark.parametrize(("what", "state", "epochs", "request_", "granted"), CASES, ids=[row[0] for row in CASES])
def test_who_gets_a_vote(what: str, state: QuorumState, epochs: tuple[int, ...], request_: VoteRequest, granted: bool):
    """KAFKA-FACTS 4.1: no vote yet or the same candidate, no known leader, a log at least as good. Raft 5.4.1."""
    core = member(state=state, log=log_of(*epochs))
    ready = voting.on_vote_request(core, request_, now=1.0)
    assert ready.reply.vote_granted is granted
    assert ready.reply.error_code == 0
    assert ready.state.epoch == request_.candidate_epoch, "the higher epoch is taken over in any case"
    if granted:
        assert ready.state == QuorumState(epoch=request_.candidate_epoch, voted_id=2)


def test_a_member_that_asks_for_pre_votes_remembers_whom_it_voted_for():
    """KIP-996: a pre-vote changes nothing. A second vote in the epoch could elect a second leader."""
    core = member(state=QuorumState(epoch=5, voted_id=3), log=log_of(4))
    core.on_time(100.0, WALL_MS)
    assert isinstance(core.role, Prospective)
    assert not voting.on_vote_request(core, vote(), now=100.0).reply.vote_granted
    assert voting.on_vote_request(core, vote(candidate_id=3), now=100.0).reply.vote_granted


def test_a_vote_is_part_of_what_must_be_durable_before_it_is_given():
    """Persist, then speak: the answer comes inside a Ready whose state holds the vote."""
    core = member()
    ready = voting.on_vote_request(core, vote(), now=1.0)
    assert ready.reply.vote_granted
    assert (ready.state.epoch, ready.state.voted_id) == (5, 2)
    assert ready.state_version == 2, "the epoch, then the vote"
    again = voting.on_vote_request(core, vote(), now=1.1)
    assert again.reply.vote_granted
    assert again.state_version == 2, "a repeated request rests on the same state, and waits for it as well"


def test_a_candidate_saves_its_own_vote_before_it_asks():
    """Else it could restart, forget, and vote for another in its own epoch."""
    core = make_core(1)
    deadline = core.next_deadline()
    assert deadline is not None
    asking = core.on_time(deadline, WALL_MS)
    assert [envelope.request.pre_vote for envelope in asking.send] == [True, True]
    assert (asking.state, asking.state_version) == (QuorumState(), 0), "a pre-vote saves nothing"
    yes = VoteResponse(leader_epoch=0, vote_granted=True)
    voting.on_response(core, asking.send[0].request, yes, 2, now=deadline)
    standing = core.on_time(deadline, WALL_MS)
    assert [(e.peer, e.request.pre_vote, e.request.candidate_epoch) for e in standing.send] == [
        (2, False, 1),
        (3, False, 1),
    ]
    assert standing.state == QuorumState(epoch=1, voted_id=1)
    assert standing.state_version == 1


def test_a_granted_vote_gives_the_candidate_time():
    """Whoever has voted waits a new election timeout before it stands itself."""
    core = member()
    voting.on_vote_request(core, vote(), now=7.0)
    deadline = core.next_deadline()
    assert deadline is not None
    assert 8.0 <= deadline < 9.0


def followed(*, has_fetched: bool) -> QuorumCore:
    core = member(state=QuorumState(epoch=4, leader_id=3))
    assert isinstance(core.role, Follower)
    core.role.has_fetched = has_fetched
    return core


PRE_VOTES = [
    ("unattached", lambda: member(state=QuorumState(epoch=4)), True),
    ("voted for another in this epoch", lambda: member(state=QuorumState(epoch=4, voted_id=3)), True),
    ("follows a leader that answers", lambda: followed(has_fetched=True), False),
    ("follows a leader that has not answered yet", lambda: followed(has_fetched=False), True),
    ("has resigned", lambda: member(state=QuorumState(epoch=4, leader_id=1)), True),
    ("has a better log", lambda: member(state=QuorumState(epoch=4), log=log_of(*(4,) * 11)), False),
]


@pytest.mark.parametrize(("what", "make", "granted"), PRE_VOTES, ids=[row[0] for row in PRE_VOTES])
@pytest.mark.parametrize("epoch", [4, 6])
def test_a_pre_vote_changes_nothing(what: str, make: Any, granted: bool, epoch: int):
    """KIP-996: no epoch, no vote, no role changes anywhere; a member that hears its leader refuses."""
    core = make()
    role, version, deadline = core.role, core.state_version, core.next_deadline()
    ready = voting.on_vote_request(core, vote(candidate_epoch=epoch, pre_vote=True), now=0.9)
    assert ready.reply.vote_granted is granted
    assert (core.role, core.state_version, core.next_deadline()) == (role, version, deadline)


@pytest.mark.parametrize(("now", "granted"), [(0.9, False), (1.0, True), (1.9, True)])
def test_follower_grants_a_pre_vote_when_its_leader_is_overdue(now: float, granted: bool):
    """Issue 15: of two voters, the one that heard the dead leader last delayed the election by half a second."""
    core = followed(has_fetched=True)
    assert core.next_deadline() == 2.0
    assert voting.on_vote_request(core, vote(candidate_epoch=4, pre_vote=True), now=now).reply.vote_granted is granted


@pytest.mark.parametrize("pre_vote", [True, False])
def test_member_without_a_leader_stands_soon_instead_of_a_candidate_whose_log_is_behind(pre_vote: bool):
    """Issue 15: after a cut, such a candidate deposed the leader, and all waited for an election timeout."""
    core = member(state=QuorumState(epoch=5), log=log_of(*(4,) * 11))
    assert isinstance(core.role, Unattached)
    core.role.election_at = 1.5
    reply = voting.on_vote_request(core, vote(candidate_epoch=6, pre_vote=pre_vote), now=0.5).reply
    assert not reply.vote_granted
    assert isinstance(core.role, Unattached)
    assert 0.5 <= (core.next_deadline() or 0.0) <= 0.6


def test_member_that_has_voted_gives_its_candidate_time_whoever_else_asks():
    """Issue 15: a candidate whose log is behind must not shorten an election that another one may win."""
    core = member(state=QuorumState(epoch=5, voted_id=3), log=log_of(*(4,) * 11))
    before = core.next_deadline()
    voting.on_vote_request(core, vote(candidate_epoch=5), now=0.0)
    assert core.next_deadline() == before


def test_refusals_tell_why():
    """Coverage marks of campaigns: a refused vote says what refused it."""
    journal = Journal()
    voting.on_vote_request(member(log=log_of(4, 4), journal=journal), vote(last_epoch=3), now=1.0)
    voting.on_vote_request(member(state=QuorumState(epoch=5, voted_id=3), journal=journal), vote(), now=1.0)
    assert [kind for kind in journal.kinds() if kind.startswith("vote_")] == [
        "vote_refused_stale_log",
        "vote_refused_already_voted",
    ]


def prospective(me: int, *epochs: int) -> QuorumCore:
    """A member that asks for pre-votes in epoch 5."""
    core = make_core(me, state=QuorumState(epoch=5), log=log_of(*epochs))
    core.on_time(core.next_deadline() or 0.0, WALL_MS)
    assert core.role.name == "prospective"
    return core


CLAIMS = [
    # asked member, epochs in its log, end of the candidate's log, does it yield to member 2?
    ("equal logs, the higher id", 3, (4,), (4, 1), True),
    ("equal logs, the lower id", 1, (4,), (4, 1), False),
    ("a longer log, the lower id", 1, (4,), (4, 2), True),
    ("a log of a later epoch", 1, (3, 3), (4, 1), True),
    ("a shorter log gets no pre-vote at all", 3, (4, 4), (4, 1), False),
    ("empty logs, the higher id", 3, (), (0, 0), True),
    ("empty logs, the lower id", 1, (), (0, 0), False),
]


@pytest.mark.parametrize(("what", "me", "epochs", "end", "yields"), CLAIMS, ids=[row[0] for row in CLAIMS])
def test_prospective_yields_to_a_better_claim(
    what: str, me: int, epochs: tuple[int, ...], end: tuple[int, int], yields: bool
):
    """Issue 15: with its own pre-votes won, only a member that does not yield becomes a candidate."""
    core = prospective(me, *epochs)
    last_epoch, offset = end
    voting.on_vote_request(
        core, vote(voter_id=me, last_epoch=last_epoch, last_epoch_end_offset=offset, pre_vote=True), now=2.0
    )
    other = 4 - me
    asked = vote(voter_id=other, candidate_id=me, pre_vote=True)
    voting.on_response(core, asked, VoteResponse(leader_epoch=5, vote_granted=True), other, now=2.0)
    assert core.role.name == ("prospective" if yields else "candidate")


def test_member_that_has_yielded_asks_again_and_yields_no_more():
    """The other candidate may die, or hear no answers: it delays this member once, by a fifth of a second at most."""
    core = prospective(3)
    better = vote(voter_id=3, last_epoch=0, last_epoch_end_offset=0, pre_vote=True)
    assert voting.on_vote_request(core, better, now=2.0).reply.vote_granted
    again_at = core.next_deadline()
    assert again_at is not None
    assert 2.0 < again_at <= 2.2
    voting.on_vote_request(core, better, now=2.1)
    assert core.next_deadline() == again_at
    core.on_time(again_at, WALL_MS)
    voting.on_vote_request(core, better, now=again_at)
    asked = vote(voter_id=1, candidate_id=3, pre_vote=True)
    voting.on_response(core, asked, VoteResponse(leader_epoch=5, vote_granted=True), 1, now=again_at)
    assert core.role.name == "candidate"


def test_follower_that_granted_a_pre_vote_leaves_the_election_to_the_candidate_once():
    """Issue 15, found by `chaos run storm`: it asked a millisecond later, both voted for themselves, and the third voter
    was silent: the round took more than a second.
    """
    core = followed(has_fetched=True)
    asked = vote(candidate_epoch=4, pre_vote=True)
    assert voting.on_vote_request(core, asked, now=1.999).reply.vote_granted
    waits_until = core.next_deadline() or 0.0
    assert 2.0 < waits_until <= 2.199
    assert not core.on_leader_refused(3, now=2.0), "a refused connection does not hurry it"
    assert core.next_deadline() == waits_until
    assert voting.on_vote_request(core, asked, now=2.1).reply.vote_granted
    assert core.next_deadline() == waits_until, "a candidate whose answers are lost cannot hold it back again"
    core.on_time(waits_until, WALL_MS)
    assert core.role.name == "prospective"


def test_leader_that_answers_ends_the_pause_of_a_follower_that_granted_a_pre_vote():
    """The next loss of the leader is another one: it may yield again."""
    core = followed(has_fetched=True)
    role = core.role
    assert isinstance(role, Follower)
    asked = vote(candidate_epoch=4, pre_vote=True)
    voting.on_vote_request(core, asked, now=1.999)
    core.hear_leader(role, 2.05)
    assert core.next_deadline() == 2.05 + core.fetch_timeout_s
    voting.on_vote_request(core, asked, now=4.049)
    assert (core.next_deadline() or 0.0) > 4.05


@pytest.mark.parametrize("seed", range(20))
def test_pre_votes_that_cross_elect_a_leader_without_a_second_round(seed: int):
    """Issue 15, found by `chaos run storm`: two voters lost the third at once, and split the votes for over a second."""
    player = Player(3, seed=seed)
    player.crash(1)
    two, three = player.cores[2], player.cores[3]
    # Each has asked the other before either is answered.
    to_three, to_two = (
        next(each.request for each in core.on_time(core.next_deadline() or 0.0, WALL_MS).send if each.peer == peer)
        for core, peer in ((two, 3), (three, 2))
    )
    answers = [
        voting.on_vote_request(three, to_three, now=2.0).reply,
        voting.on_vote_request(two, to_two, now=2.0).reply,
    ]
    assert all(each.vote_granted for each in answers)
    player.obey(2, voting.on_response(two, to_three, answers[0], 3, now=2.0))
    player.obey(3, voting.on_response(three, to_two, answers[1], 2, now=2.0))
    player.obey(2, two.on_time(2.0, WALL_MS))
    assert (two.role.name, two.epoch) == ("leader", 1)
    assert three.role.voted_id == 2


def test_answers_of_former_rounds_count_for_nothing():
    """A late yes of the last epoch, or a pre-vote's yes, must not elect anybody."""
    core = make_core(1)
    core.on_time(core.next_deadline() or 0.0, WALL_MS)
    yes = VoteResponse(leader_epoch=0, vote_granted=True)
    late = vote(voter_id=2, candidate_id=1, candidate_epoch=1, last_epoch=0)
    voting.on_response(core, late, yes, 2, now=1.0)
    assert core.role.name == "prospective"
    asked = vote(voter_id=2, candidate_id=1, candidate_epoch=0, last_epoch=0, pre_vote=True)
    voting.on_response(core, asked, yes, 2, now=1.0)
    assert core.role.name == "candidate"
    voting.on_response(core, asked, yes, 3, now=1.0)
    assert core.role.name == "candidate"


def test_a_vote_of_an_epoch_that_was_lost_does_not_count_in_the_next_one():
    """Its voter may have voted for another candidate since: two leaders could be elected in one epoch."""
    core = make_core(1)
    core.on_time(core.next_deadline() or 0.0, WALL_MS)
    yes = VoteResponse(leader_epoch=0, vote_granted=True)
    for epoch in (0, 1):
        asked = vote(voter_id=2, candidate_id=1, candidate_epoch=epoch, last_epoch=0, pre_vote=True)
        voting.on_response(core, asked, yes, 2, now=1.0)
        assert (core.role.name, core.epoch) == ("candidate", epoch + 1)
        if epoch == 0:
            core.on_time(core.role.ends_at, WALL_MS)
            core.on_time(core.role.backoff_until, WALL_MS)
    late = vote(voter_id=3, candidate_id=1, candidate_epoch=1, last_epoch=0)
    voting.on_response(core, late, yes, 3, now=9.0)
    assert core.role.name == "candidate"


def begin(leader: int, epoch: int) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(cluster_id=CLUSTER, voter_id=1, leader_id=leader, leader_epoch=epoch)


def test_a_leader_that_begins_is_saved_and_followed():
    """Persist (epoch, leader) before the answer."""
    core = member(state=QuorumState(epoch=4, voted_id=3))
    ready = voting.on_begin_epoch(core, begin(2, 5), now=1.0)
    assert isinstance(core.role, Follower)
    assert ready.state == QuorumState(epoch=5, leader_id=2)
    assert (ready.reply.leader_id, ready.reply.leader_epoch) == (2, 5)


def test_a_leader_of_an_epoch_that_is_over_learns_so():
    """A leader that was cut off finds out by the answer to its own call."""
    core = member(state=QuorumState(epoch=6, leader_id=3))
    ready = voting.on_begin_epoch(core, begin(2, 5), now=1.0)
    assert BY_CODE[ready.reply.error_code].name == "FENCED_LEADER_EPOCH"
    assert (ready.reply.leader_id, ready.reply.leader_epoch) == (3, 6)
    old = make_core(2, state=QuorumState(epoch=5))
    voting.on_response(old, begin(2, 5), ready.reply, 1, now=1.0)
    assert isinstance(old.role, Follower)
    assert (old.epoch, old.leader_id) == (6, 3)


def test_a_voter_that_lost_sight_of_its_leader_believes_only_the_leader():
    """Others may tell of a leader that they last heard seconds ago."""
    core = followed(has_fetched=True)
    core.on_time(core.next_deadline() or 0.0, WALL_MS)
    assert core.role.name == "prospective"
    core.observe(4, 3, now=3.0)
    assert core.role.name == "prospective"
    voting.on_begin_epoch(core, begin(3, 4), now=3.0)
    assert core.role.name == "follower"


def end(leader: int, epoch: int) -> EndQuorumEpochRequest:
    return EndQuorumEpochRequest(cluster_id=CLUSTER, voter_id=1, leader_id=leader, leader_epoch=epoch)


def test_a_second_leader_of_an_epoch_is_not_believed():
    """Anybody can send such a request; it must neither move a member to another leader nor stop it."""
    journal = Journal()
    core = member(state=QuorumState(epoch=4, leader_id=3), journal=journal)
    role = core.role
    for ready in (voting.on_begin_epoch(core, begin(2, 4), now=1.0), voting.on_end_epoch(core, end(2, 4), now=1.0)):
        assert BY_CODE[ready.reply.error_code].name == "INVALID_REQUEST"
        assert (ready.reply.leader_id, ready.reply.leader_epoch) == (3, 4)
    assert core.role is role
    voting.on_response(core, vote(), VoteResponse(leader_epoch=4, leader_id=2), 2, now=1.0)
    assert core.role is role
    assert "quorum_leader_disputed" in journal.kinds()


def test_the_epoch_and_leader_of_another_cluster_are_not_believed():
    """A voter's address leads to a member of another cluster. Its answer ended the reign of a leader, and made a member
    follow a leader that was never elected here. It is as good as no answer: the voter is asked again.
    """
    facts: dict[str, Any] = {"error_code": InconsistentClusterId.code, "leader_epoch": 9, "leader_id": 3}
    standing = prospective(1)
    asked_for = vote(voter_id=2, candidate_id=1, candidate_epoch=standing.epoch, pre_vote=True)
    voting.on_response(standing, asked_for, VoteResponse(**facts), 2, now=2.0)
    assert (standing.epoch, standing.role.name, standing.contacts) == (5, "prospective", {})
    assert isinstance(standing.role, Prospective)
    assert standing.role.epoch_election.answers == {1: True}
    assert 2 in standing.role.epoch_election.ask_at
    following = member(state=QuorumState(epoch=4, leader_id=2))
    voting.on_response(following, begin(1, 4), BeginQuorumEpochResponse(**facts), 3, now=2.0)
    assert (following.epoch, following.leader_id) == (4, 2)


# ---- epochs that nobody can have reached -----------------------------------------------------------------------------


def asked(kind: str, core: QuorumCore, epoch: int) -> str:
    """The name of the error with which a request of that epoch is answered; empty: none."""
    if kind == "vote":
        error = voting.on_vote_request(core, vote(candidate_epoch=epoch), now=1.0).reply.error_code
    elif kind == "begin":
        error = voting.on_begin_epoch(core, begin(2, epoch), now=1.0).reply.error_code
    else:
        error = voting.on_end_epoch(core, end(2, epoch), now=1.0).reply.error_code
    return BY_CODE[error].name if error else ""


@pytest.mark.parametrize("kind", ["vote", "begin", "end"])
def test_a_request_from_an_epoch_beyond_the_bound_is_refused(kind: str):
    """An epoch is saved and never falls: believed once, the highest one would end all elections."""
    core = member(state=QuorumState(epoch=4), log=log_of(4))
    for epoch in (4 + EPOCH_JUMP_MAX + 1, 2**31 - 2):
        assert asked(kind, core, epoch) == "INVALID_REQUEST"
        assert (core.epoch, core.state_version) == (4, 0)
    assert asked(kind, core, 4 + EPOCH_JUMP_MAX) == ""
    assert core.epoch == 4 + EPOCH_JUMP_MAX
    assert asked(kind, core, core.epoch + 1) == "INVALID_REQUEST", "the bound follows the log, not what was told"


def test_an_answer_from_an_epoch_beyond_the_bound_is_ignored():
    """A member that believed such a request, in an older build, must not spread it."""
    journal = Journal()
    core = member(state=QuorumState(epoch=4), log=log_of(4), journal=journal)
    voting.on_response(core, vote(), VoteResponse(leader_epoch=2**31 - 2, leader_id=2), 2, now=1.0)
    assert (core.epoch, core.leader_id) == (4, NO_NODE)
    assert "quorum_epoch_refused" in journal.kinds()


def test_a_member_without_a_log_learns_a_far_epoch_from_answers_only():
    """The others may have led for long before it joined; whoever answers at a voter's address is asked by this member."""
    core = member()
    assert asked("begin", core, EPOCH_JUMP_MAX + 1) == "INVALID_REQUEST"
    voting.on_response(core, vote(), VoteResponse(leader_epoch=3 * EPOCH_JUMP_MAX, leader_id=2), 2, now=1.0)
    assert (core.epoch, core.leader_id) == (3 * EPOCH_JUMP_MAX, 2)
    voting.on_response(core, vote(), VoteResponse(leader_epoch=2**31 - 2, leader_id=2), 2, now=1.0)
    assert core.epoch == 3 * EPOCH_JUMP_MAX


def test_a_saved_epoch_beyond_the_bound_is_lowered_at_the_start():
    """The way back for members whose log ends in different epochs: each is within the others' bound."""
    poisoned = QuorumState(epoch=2**31 - 2, voted_id=2)
    journal = Journal()
    behind, ahead = (member(state=poisoned, log=log_of(epoch), journal=journal) for epoch in (4, 9))
    assert behind.state == QuorumState(epoch=4 + EPOCH_JUMP_MAX // 2)
    assert behind.state_version == 1, "it is saved before anything is said"
    assert "quorum_epoch_lowered" in journal.kinds()
    assert asked("vote", behind, ahead.epoch + 1) == ""
    assert member(state=poisoned).epoch == EPOCH_JUMP_MAX // 2
    near = QuorumState(epoch=4 + EPOCH_JUMP_MAX, voted_id=2)
    assert member(state=near, log=log_of(4)).state == near


@pytest.mark.parametrize(
    ("successors", "low", "high"), [((1, 2), 0.0, 0.0), ((2, 1), 0.1, 0.2), ((2,), 1.0, 2.0), ((), 1.0, 2.0)]
)
def test_successors_stand_in_the_order_of_their_logs(successors: tuple[int, ...], low: float, high: float):
    """KAFKA-FACTS 4.1: END_QUORUM_EPOCH starts elections with 0, then growing delay."""
    core = followed(has_fetched=True)
    request = EndQuorumEpochRequest(
        cluster_id=CLUSTER, voter_id=1, leader_id=3, leader_epoch=4, preferred_successors=successors
    )
    ready = voting.on_end_epoch(core, request, now=5.0)
    assert isinstance(core.role, Unattached)
    assert ready.reply.leader_id == NO_NODE
    deadline = core.next_deadline()
    assert deadline is not None
    assert 5.0 + low <= deadline <= 5.0 + high
    assert voting.on_vote_request(core, vote(candidate_epoch=4, pre_vote=True), now=5.0).reply.vote_granted


def test_a_higher_epoch_in_any_answer_ends_leadership():
    """Raft's first rule for all servers."""
    player = Player()
    leader = player.settle()
    core = player.cores[leader]
    voting.on_response(core, begin(leader, core.epoch), VoteResponse(leader_epoch=core.epoch + 3), 2, now=player.now)
    assert isinstance(core.role, Unattached)
    assert core.state == QuorumState(epoch=core.epoch)


def test_a_cut_off_leader_is_replaced_and_joins_again_without_disturbance():
    """KIP-996: the one that comes back has not raised its epoch, so the new leader stays."""
    player = Player()
    first = player.settle()
    player.cut_off(first)
    player.run(8.0)
    second = player.leader()
    assert second not in (None, first)
    epoch = player.cores[second].epoch
    assert player.cores[first].role.name in ("resigned", "prospective")
    player.heal()
    assert player.settle() == second
    player.run(5.0)
    assert {core.epoch for core in player.cores.values()} == {epoch}


def test_a_graceful_stop_hands_over_within_a_second():
    """No timeout is waited for: the successor stands at once."""
    player = Player()
    first = player.settle()
    player.run(1.0)
    player.obey(first, player.cores[first].stop(player.now))
    started = player.now
    player.crash(first)
    second = player.settle()
    assert second != first
    assert player.now - started < 0.5
