"""The table of roles: what it says, that each line is walked, and that nothing else is possible."""

from __future__ import annotations

import re

import pytest

from minikafka.invariant import InvariantViolation
from minikafka.quorum import fetching, roles, voting
from minikafka.quorum.core import QuorumCore
from minikafka.quorum.files import QuorumState
from minikafka.quorum.roles import Candidate, EpochElection, Follower, Leader, Prospective, Resigned, Unattached
from minikafka.wire.messages import BeginQuorumEpochRequest, EndQuorumEpochRequest, VoteRequest, VoteResponse
from tests.rules.quorum_double import CLUSTER, WALL_MS, Journal, MemoryLog, batch_of, make_core


def rows() -> list[tuple[str, str, str]]:
    """The lines of the table in the module's docstring."""
    names = "unattached|prospective|candidate|follower|leader|resigned"
    found = re.findall(rf"^    ({names}) +(\S[\w -]*?\w)  +({names})\b", roles.__doc__ or "", re.MULTILINE)
    return [(was, event, becomes) for was, event, becomes in found]


def test_the_table_in_the_docstring_is_the_table_in_the_code():
    """STYLE 6: the table is what people read; it must not lie."""
    assert {(was, event): becomes for was, event, becomes in rows()} == dict(roles.TRANSITIONS)


def pass_time(core: QuorumCore) -> None:
    deadline = core.next_deadline()
    assert deadline is not None
    core.on_time(deadline, WALL_MS)


def answer(core: QuorumCore, *, granted: bool, peer: int, pre_vote: bool) -> None:
    request = VoteRequest(
        cluster_id=CLUSTER,
        voter_id=peer,
        candidate_id=core.me,
        candidate_epoch=core.epoch,
        last_epoch=0,
        last_epoch_end_offset=0,
        pre_vote=pre_vote,
    )
    response = VoteResponse(leader_epoch=core.epoch, vote_granted=granted)
    voting.on_response(core, request, response, peer, now=1.0)


def member(role: str, *, observer: bool = False) -> QuorumCore:
    """A member in this role, by the shortest way there."""
    core = make_core(9 if observer else 1)
    if role == "unattached":
        return core
    if role == "follower":
        core.observe(3, 2, now=0.0)
        return core
    pass_time(core)
    if role == "prospective":
        return core
    answer(core, granted=True, peer=2, pre_vote=True)
    if role == "candidate":
        return core
    answer(core, granted=True, peer=3, pre_vote=False)
    if role == "resigned":
        core.stop(now=1.0)
        core.role.election_at = 2.0  # a stopping member has none; a resigned one that goes on has
    return core


def lose_round(core: QuorumCore) -> None:
    role = core.role
    assert isinstance(role, (Prospective, Candidate))
    core.on_time(role.ends_at, WALL_MS)
    assert role.backoff_until is not None


def cause(core: QuorumCore, event: str) -> None:
    """Let this event happen to the member."""
    match event:
        case roles.ELECTION_TIMEOUT | roles.FETCH_TIMEOUT | roles.LEADER_SILENT:
            pass_time(core)
        case roles.LEADER_REFUSED:
            core.on_leader_refused(core.role.leader_id, 0.0)
            pass_time(core)
        case roles.VOTE_GRANTED:
            request = VoteRequest(
                cluster_id=CLUSTER,
                voter_id=1,
                candidate_id=2,
                candidate_epoch=max(core.epoch, 1),
                last_epoch=0,
                last_epoch_end_offset=5,
            )
            core.observe(1, -1, now=0.0)
            assert voting.on_vote_request(core, request, now=1.0).reply.vote_granted
        case roles.LEADER_FOUND:
            core.observe(core.epoch, 2, now=1.0)
        case roles.PRE_VOTES_WON:
            answer(core, granted=True, peer=2, pre_vote=True)
        case roles.PRE_VOTES_REFUSED:
            core.role.leader_id = 2
            answer(core, granted=False, peer=2, pre_vote=True)
            answer(core, granted=False, peer=3, pre_vote=True)
        case roles.BACKOFF_OVER:
            lose_round(core)
            pass_time(core)
        case roles.VOTES_WON:
            answer(core, granted=True, peer=3, pre_vote=False)
        case roles.LEADER_RESIGNED:
            request = EndQuorumEpochRequest(cluster_id=CLUSTER, voter_id=1, leader_id=2, leader_epoch=3)
            voting.on_end_epoch(core, request, now=1.0)
        case roles.MAJORITY_SILENT:
            core.on_time(core.role.check_quorum_at, WALL_MS)
        case roles.STOPPING:
            core.stop(now=1.0)
        case roles.HIGHER_EPOCH:
            core.observe(core.epoch + 1, -1, now=1.0)


@pytest.mark.parametrize(("was", "event", "becomes"), rows())
def test_every_line_of_the_table_is_walked(was: str, event: str, becomes: str):
    """KIP-595, KIP-996: each transition happens, and for its own reason."""
    core = member(was, observer=event == roles.LEADER_SILENT)
    assert core.role.name == was
    journal = Journal()
    core.events = journal
    cause(core, event)
    told = [(facts["because"], facts["role"]) for kind, facts in journal if kind == "quorum_role_changed"]
    assert (event, becomes) in told
    assert core.role.name == becomes or event == roles.VOTE_GRANTED


def test_a_transition_that_is_no_line_of_the_table_is_a_bug():
    """A follower cannot become a leader without an election."""
    core = member("follower")
    with pytest.raises(InvariantViolation, match="table"):
        core.become(Resigned(epoch=3, leader_id=1, election_at=None), roles.STOPPING)


def test_an_observer_never_stands():
    """Brokers that are no voters follow and look for leaders, and that is all."""
    core = make_core(9)
    assert core.next_deadline() is None
    core.observe(3, 2, now=0.0)
    assert isinstance(core.role, Follower)
    pass_time(core)
    assert isinstance(core.role, Unattached)
    assert core.next_deadline() is None


def test_one_voter_alone_leads_at_once():
    """Start to first record is fast with one voter: no timeout is waited for, and its own sync commits."""
    core = make_core(voters=(1,), now=5.0)
    assert core.next_deadline() == 5.0
    ready = core.on_time(5.0, WALL_MS)
    assert isinstance(core.role, Leader)
    assert ready.state == QuorumState(epoch=1, leader_id=1, voted_id=1)
    assert core.high_watermark == 0
    core.log.sync()
    assert core.on_durable()
    assert core.high_watermark == 1


# ---- what a restart makes of what was saved --------------------------------------------------------------------------


def test_a_leader_that_restarts_has_resigned():
    """KAFKA-10527: it may have lost an unsynced tail; another record at (epoch, offset) would be a second name."""
    core = make_core(1, state=QuorumState(epoch=4, leader_id=1, voted_id=1))
    assert isinstance(core.role, Resigned)
    assert (core.epoch, core.leader_id) == (4, -1)
    assert core.state_version == 0


def test_a_leader_that_has_resigned_does_not_follow_itself():
    """If its pre-votes are refused it asks again: nobody else is known to lead its epoch."""
    core = member("resigned")
    pass_time(core)
    for peer in (2, 3):
        answer(core, granted=False, peer=peer, pre_vote=True)
    assert core.role.name == "prospective"
    assert core.role.backoff_until is not None


@pytest.mark.parametrize("role", ["unattached", "leader", "resigned"])
def test_a_member_that_stops_does_not_stand_for_election(role: str):
    """It would end the reign of another member only to stop."""
    core = member(role)
    core.stop(now=1.5)
    assert core.next_deadline() is None


def test_a_follower_that_restarts_goes_on_following():
    """Its leader may have noticed nothing."""
    core = make_core(1, state=QuorumState(epoch=4, leader_id=2, voted_id=3))
    assert isinstance(core.role, Follower)
    assert (core.epoch, core.leader_id, core.role.voted_id) == (4, 2, 3)


def test_a_vote_survives_a_restart():
    """Invariant 13: asked again in the same epoch, it stands by its vote."""
    core = make_core(1, state=QuorumState(epoch=4, voted_id=3))
    for candidate, granted in ((2, False), (3, True)):
        request = VoteRequest(
            cluster_id=CLUSTER,
            voter_id=1,
            candidate_id=candidate,
            candidate_epoch=4,
            last_epoch=3,
            last_epoch_end_offset=10,
        )
        assert voting.on_vote_request(core, request, now=0.1).reply.vote_granted is granted


def test_a_log_that_is_ahead_of_the_state_file_decides_the_epoch():
    """A member never goes back behind an epoch it holds records of."""
    log = MemoryLog()
    log.append_as_leader(batch_of("x"), leader_epoch=7, wall_ms=WALL_MS)
    core = make_core(1, log=log, state=QuorumState(epoch=4, leader_id=1))
    assert isinstance(core.role, Unattached)
    assert core.epoch == 7
    assert core.state_version == 1


# ---- time ------------------------------------------------------------------------------------------------------------


def test_election_timeouts_are_drawn_between_once_and_twice_the_setting():
    """KAFKA-FACTS 4.1: random in [T, 2T), so that voters do not stand together."""
    core = make_core(controller_quorum_election_timeout_ms=1000)
    drawn = [core.draw_election_timeout() for _ in range(200)]
    assert 1.0 <= min(drawn) < 1.1
    assert 1.9 < max(drawn) < 2.0


def test_the_pause_after_a_lost_election_grows_up_to_the_setting():
    """KAFKA-FACTS 4.1: random in 100 ms x [0, 2^retries), never beyond election.backoff.max."""
    core = make_core(voters=(1, 2, 3), controller_quorum_election_backoff_max_ms=400)
    pauses = []
    pass_time(core)
    for _ in range(12):
        role = core.role
        assert isinstance(role, Prospective)
        core.on_time(role.ends_at, WALL_MS)
        assert role.backoff_until is not None
        pauses.append(role.backoff_until - role.ends_at)
        pass_time(core)
    assert pauses[0] <= 0.1
    assert 0.2 <= max(pauses) <= 0.4


def test_who_is_told_that_all_are_there_asks_at_once():
    """Issue 5, start of a cluster in one process: a wait that only guards against asking too early is cut short."""
    core = make_core(1)
    later = core.next_deadline()
    assert later is not None
    assert later > 0.0
    core.stand_now(0.0)
    ready = core.on_time(0.0, WALL_MS)
    assert isinstance(core.role, Prospective)
    assert [(envelope.peer, envelope.request.pre_vote) for envelope in ready.send] == [(2, True), (3, True)]
    core.role.epoch_election.record_silence(2, now=0.0, backoff_s=0.5, backoff_max_s=1.0)
    core.stand_now(0.1)
    assert [envelope.peer for envelope in core.on_time(0.1, WALL_MS).send] == [2]


@pytest.mark.parametrize("role", ["leader", "follower", "resigned"])
def test_who_has_or_had_a_leader_is_not_hurried(role: str):
    """An election while the leader is heard would only disturb."""
    core = member(role)
    before, deadline = core.role, core.next_deadline()
    core.stand_now(0.0)
    assert (core.role, core.next_deadline()) == (before, deadline)


def test_a_leader_that_hears_no_majority_resigns_after_one_and_a_half_fetch_timeouts():
    """KAFKA-15489: cut off from the voters it must not believe for ever that it leads."""
    core = member("leader")
    role = core.role
    assert isinstance(role, Leader)
    assert role.check_quorum_at == pytest.approx(1.0 + 3.0)
    core.record_fetch(2, 0, leader_end=1, now=2.0)
    assert role.check_quorum_at == pytest.approx(5.0)
    core.record_fetch(9, 0, leader_end=1, now=4.0)
    assert role.check_quorum_at == pytest.approx(5.0), "an observer's fetch does not count"
    ready = core.on_time(5.0, WALL_MS)
    assert isinstance(core.role, Resigned)
    assert [envelope.request.preferred_successors for envelope in ready.send] == [(2, 3), (2, 3)]


def test_silent_voters_are_told_again_who_leads():
    """KAFKA-FACTS 4.1: BeginQuorumEpoch goes to those who do not fetch, every half fetch timeout."""
    core = member("leader")
    first = core.on_time(1.0, WALL_MS)
    assert [envelope.peer for envelope in first.send] == [2, 3]
    core.record_fetch(3, 0, leader_end=1, now=1.9)
    again = core.on_time(2.0, WALL_MS)
    assert [(envelope.peer, type(envelope.request)) for envelope in again.send] == [(2, BeginQuorumEpochRequest)]


def test_a_round_of_votes():
    """A majority of all voters, not of those who answered; only the first answer counts."""
    epoch_election = EpochElection((1, 2, 3, 4, 5), me=1, ask_at=0.0)
    assert epoch_election.take_due(0.0) == [2, 3, 4, 5]
    assert epoch_election.take_due(0.0) == []
    epoch_election.record(2, granted=False)
    epoch_election.record(2, granted=True)
    epoch_election.record(3, granted=True)
    assert not epoch_election.won
    assert not epoch_election.lost
    epoch_election.record_silence(4, now=1.0, backoff_s=0.02, backoff_max_s=1.0)
    assert epoch_election.take_due(1.0) == []
    assert epoch_election.take_due(1.02) == [4]
    epoch_election.record(4, granted=False)
    epoch_election.record(5, granted=False)
    assert epoch_election.lost
    assert epoch_election.granting == [1, 3]


def test_nobody_to_ask_while_an_election_is_under_way():
    """A voter without a leader does not fetch: a leader will call, or it will stand."""
    assert not fetching.has_whom_to_ask(member("prospective"))
    assert fetching.next_fetch(member("candidate")) is None
