"""What members of the quorum ask of each other: votes, and news of leaders that begin or end.

Rules for this file: functions over a :class:`QuorumCore`. A vote is given once per epoch and only to a log that is at
least as good as the own one; a pre-vote binds nobody and changes nothing (KIP-996). Every answer tells the epoch and
the leader that this member knows, and is believed in that (KAFKA-FACTS 4.1).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from minikafka import errors as kafka
from minikafka.quorum import roles
from minikafka.quorum.core import ELECTION_BACKOFF_S, Answered, Asked, QuorumCore, Ready
from minikafka.quorum.roles import Candidate, Follower, Leader, Prospective, Standing, Unattached
from minikafka.types import NO_NODE, Epoch, EpochEnd, NodeId
from minikafka.wire import messages as m

# ---- others ask ------------------------------------------------------------------------------------------------------


def on_vote_request(core: QuorumCore, request: m.VoteRequest, now: float) -> Ready[m.VoteResponse]:
    """A candidate, or one that would become one, asks for this member's vote."""
    try:
        _check_addressed(core, request.cluster_id, request.voter_id, request.candidate_id)
        positive = min(request.last_epoch, request.last_epoch_end_offset, request.candidate_epoch) >= 0
        # A candidate has raised its epoch; one that asks for pre-votes has not.
        if not positive or request.last_epoch > request.candidate_epoch - (0 if request.pre_vote else 1):
            raise kafka.InvalidRequest(f"a log of epoch {request.last_epoch} in epoch {request.candidate_epoch}")
        _check_not_over(core, request.candidate_epoch)
    except kafka.ProtocolError as error:
        return core.ready(m.VoteResponse(**_leader_facts(core), **_failure(error)))
    if not request.pre_vote:
        core.observe(request.candidate_epoch, NO_NODE, now)
    refusal = refusal_of(core, request, now)
    if refusal is None and not request.pre_vote:
        granted = Unattached(
            epoch=core.epoch, voted_id=request.candidate_id, election_at=now + core.draw_election_timeout()
        )
        core.become(granted, roles.VOTE_GRANTED)
    elif refusal == "vote_refused_stale_log":
        core.stand_instead(now)
    elif refusal is None:
        core.yield_to(request.candidate_id, EpochEnd(request.last_epoch, request.last_epoch_end_offset), now)
    core.events(
        refusal or "vote_granted",
        epoch=request.candidate_epoch,
        candidate=request.candidate_id,
        pre_vote=request.pre_vote,
        log=(request.last_epoch, request.last_epoch_end_offset),
    )
    return core.ready(m.VoteResponse(**_leader_facts(core), vote_granted=refusal is None))


Refusal: TypeAlias = Literal[
    "vote_refused_stale_log", "vote_refused_leader_lives", "vote_refused_leader_known", "vote_refused_already_voted"
]
"""The event that says why no vote is given."""


def refusal_of(core: QuorumCore, request: m.VoteRequest, now: float) -> Refusal | None:
    """Why no vote is given, or None. Logs are compared by (last epoch, end offset)."""
    role = core.role
    if (request.last_epoch, request.last_epoch_end_offset) < core.log_end:
        return "vote_refused_stale_log"
    if request.pre_vote:
        lives = isinstance(role, Leader) or (
            isinstance(role, Follower) and role.has_fetched and not core.is_leader_overdue(role, now)
        )
        return "vote_refused_leader_lives" if lives else None
    if role.leader_id != NO_NODE:
        return "vote_refused_leader_known"
    return "vote_refused_already_voted" if role.voted_id not in (NO_NODE, request.candidate_id) else None


def on_begin_epoch(
    core: QuorumCore, request: m.BeginQuorumEpochRequest, now: float
) -> Ready[m.BeginQuorumEpochResponse]:
    """A leader says that it was elected."""
    try:
        _check_addressed(core, request.cluster_id, request.voter_id, request.leader_id)
        _check_not_over(core, request.leader_epoch)
        _check_leader(core, request.leader_id, request.leader_epoch)
    except kafka.ProtocolError as error:
        return core.ready(m.BeginQuorumEpochResponse(**_leader_facts(core), **_failure(error)))
    core.observe(request.leader_epoch, request.leader_id, now, from_leader=True)
    return core.ready(m.BeginQuorumEpochResponse(**_leader_facts(core)))


def on_end_epoch(core: QuorumCore, request: m.EndQuorumEpochRequest, now: float) -> Ready[m.EndQuorumEpochResponse]:
    """A leader resigns: the best successor stands at once, the others a little later."""
    try:
        _check_addressed(core, request.cluster_id, request.voter_id, request.leader_id)
        _check_not_over(core, request.leader_epoch)
        _check_leader(core, request.leader_id, request.leader_epoch)
    except kafka.ProtocolError as error:
        return core.ready(m.EndQuorumEpochResponse(**_leader_facts(core), **_failure(error)))
    core.observe(request.leader_epoch, request.leader_id, now)
    role = core.role
    if isinstance(role, Follower) and role.leader_id == request.leader_id:
        left = Unattached(
            epoch=role.epoch,
            leader_id=role.leader_id,
            voted_id=role.voted_id,
            election_at=now + _pause_of_successor(core, request.preferred_successors),
        )
        core.become(left, roles.LEADER_RESIGNED)
    return core.ready(m.EndQuorumEpochResponse(**_leader_facts(core)))


def _pause_of_successor(core: QuorumCore, successors: tuple[NodeId, ...]) -> float:
    if core.me not in successors:
        return core.draw_election_timeout()
    return successors.index(core.me) * ELECTION_BACKOFF_S * (1 + core.random.random())


# ---- others answer ---------------------------------------------------------------------------------------------------


def on_response(core: QuorumCore, request: Asked, response: Answered, peer: NodeId, now: float) -> Ready[None]:
    """``peer`` has answered one of our requests."""
    if response.error_code == kafka.InconsistentClusterId.code:
        # The epoch and leader that it names are those of its own quorum.
        core.events("quorum_other_cluster", peer=peer, why=response.error_message)
        return on_no_response(core, request, peer, now)
    core.hear(peer, now)
    core.observe(response.leader_epoch, response.leader_id, now)
    role = core.role
    if isinstance(response, m.VoteResponse) and isinstance(role, Standing) and _is_current(core, request):
        role.epoch_election.record(peer, granted=response.vote_granted)
        core.count_votes(role, now)
    return core.ready(None)


def on_no_response(core: QuorumCore, request: Asked, peer: NodeId, now: float) -> Ready[None]:
    """The call failed; whether ``peer`` has seen it is unknown. Voters are asked again while the round lasts."""
    role = core.role
    if isinstance(role, Standing) and _is_current(core, request):
        role.epoch_election.record_silence(
            peer, now=now, backoff_s=core.retry_backoff_s, backoff_max_s=core.election_timeout_s
        )
    return core.ready(None)


def _is_current(core: QuorumCore, request: Asked) -> bool:
    """Return True if the request belongs to the round in progress."""
    if not isinstance(request, m.VoteRequest) or request.candidate_epoch != core.epoch:
        return False
    return isinstance(core.role, Prospective if request.pre_vote else Candidate)


# ---- small things ----------------------------------------------------------------------------------------------------


def _check_addressed(core: QuorumCore, cluster_id: str, voter_id: NodeId, sender: NodeId) -> None:
    core.check_cluster(cluster_id)
    if voter_id != core.me:
        raise kafka.InvalidVoterKey(f"meant for voter {voter_id}, this is {core.me}")
    if sender not in core.voters or not core.is_voter:
        raise kafka.InconsistentVoterSet(f"{sender} and {core.me} must both be among the voters {list(core.voters)}")


def _check_not_over(core: QuorumCore, epoch: Epoch) -> None:
    if epoch > core.epoch_max:
        raise kafka.InvalidRequest(
            f"epoch {epoch} is not believed: this member's epoch is {core.epoch}, its log's {core.log_end.epoch}, and "
            f"no sound member is beyond {core.epoch_max}"
        )
    if epoch < core.epoch:
        raise kafka.FencedLeaderEpoch(f"epoch {epoch} is over, this is {core.epoch}")


def _check_leader(core: QuorumCore, leader_id: NodeId, epoch: Epoch) -> None:
    known = core.role.leader_id
    if epoch == core.epoch and known not in (NO_NODE, leader_id):
        raise kafka.InvalidRequest(f"node {known} was elected in epoch {epoch}, not node {leader_id}")


def _leader_facts(core: QuorumCore) -> dict[str, Any]:
    return {"leader_id": core.leader_id, "leader_epoch": core.epoch}


def _failure(error: kafka.ProtocolError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message, "outcome": error.outcome}
