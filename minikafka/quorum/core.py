"""The quorum's rules for one member: elections, replication of the metadata log, and what each requester may receive.

Rules for this file:

1. Nothing awaits, sleeps or draws by itself: ``now`` and a seeded Random come in, :class:`Ready` goes out.
2. Persist, then speak: whatever an input leads to is wrapped in a ``Ready``, and its ``state`` must be durable before
   its requests are sent, its answer is given, or a single byte of the log is synced for its epoch's sake.
3. Every change of role goes through :meth:`QuorumCore.become`, along the table of ``roles.py``.
4. The high watermark of a member only rises. What is below it is never cut: such a request is a bug and stops the
   broker (KAFKA-12460).
5. Epochs that others report are believed up to a bound (``epoch_max``). An epoch is saved and never falls, so that one
   message with the highest epoch would leave none to elect a leader in.

Read ``roles.py`` first, then this file, then ``voting.py`` (what members ask of each other) and ``fetching.py`` (the
rules of the log).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeAlias, TypeVar

from msgspec import Struct

from minikafka import errors as kafka
from minikafka.config import BrokerConfig
from minikafka.invariant import invariant
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import Events
from minikafka.quorum import roles
from minikafka.quorum.files import QuorumState
from minikafka.quorum.records import leader_change_batch
from minikafka.quorum.roles import (
    Candidate,
    EpochElection,
    Follower,
    Leader,
    Progress,
    Prospective,
    Resigned,
    Role,
    Standing,
    Unattached,
)
from minikafka.types import NO_NODE, Epoch, EpochEnd, NodeId, Offset
from minikafka.wire import messages as m
from minikafka.wire.batch import RecordBatch

R = TypeVar("R")
Asked: TypeAlias = m.VoteRequest | m.BeginQuorumEpochRequest | m.EndQuorumEpochRequest
Answered: TypeAlias = m.VoteResponse | m.BeginQuorumEpochResponse | m.EndQuorumEpochResponse

EPOCH_END = 2**31 - 1
"""A record batch has 32 bits for its leader's epoch; the next election needs one more."""

EPOCH_JUMP_MAX = 1_000_000
"""An epoch is believed up to so many beyond the last one in the own log. Each election that was won is in the log of a
majority, and one that is lost takes about a second: a sound member is not ahead by more."""

EPOCH_HALF = EPOCH_END // 2
"""What a member without any log believes of the answers to its own requests: the others may have led for long."""

# Pauses after lost elections are random in [0, 2^lost) times this, up to controller.quorum.election.backoff.max.ms.
ELECTION_BACKOFF_S = 0.1
# A starting voter without a leader asks for pre-votes within this part of the election timeout: they disturb nobody.
FIRST_ELECTION_PART = 0.25
# More than three voters that lose their leader together ask at different moments within this part of it: several that
# have begun to stand would split the votes. Of two, one yields.
SCATTER_PART = 0.1
SCATTERED_FROM = 4
# A follower that has heard nothing for this part of the fetch timeout grants pre-votes. While the quorum is sound, it
# hears of its leader after a third of it.
OVERDUE_PART = 0.5
# A leader that no majority has followed for this part of a broker's session was stopped or cut off: it may not have
# heard any broker. A heartbeat that was lost in a shorter interruption is repeated before the session ends.
INTERRUPTION_PART = 1 / 3
# A member that yields to another one asks, or asks again, after a pause between half of this and all of it.
YIELD_S = 0.2
# A follower that its leader has never answered waits for this part of it after a refused connection.
REFUSED_PART = 0.25
# One voter alone goes from unattached to leader in one step of time; more turns than this would never end.
DEADLINES_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Envelope:
    """A request to another voter."""

    peer: NodeId
    request: Asked


class Ready(Struct, Generic[R], frozen=True, kw_only=True):
    """What an input leads to, in this order: make ``state`` durable, then send ``send``, then answer ``reply``.

    ``state_version`` rises with each change of state; a newer durable state serves as well.
    """

    state: QuorumState
    state_version: int
    send: tuple[Envelope, ...]
    reply: R


class QuorumCore:
    """One member's view of the quorum. Snapshots are reported by :meth:`on_snapshots`, oldest first."""

    def __init__(
        self,
        me: NodeId,
        voters: Iterable[NodeId],
        log: PartitionLog,
        state: QuorumState,
        config: BrokerConfig,
        random: Random,
        events: Events,
        *,
        cluster_id: str,
        snapshots: Iterable[EpochEnd] = (),
        now: float,
        wall_ms: int,
    ) -> None:
        self.me = me
        self.voters = tuple(sorted(voters))
        self.log = log
        self.cluster_id = cluster_id
        self.random = random
        self.events = events
        self.election_timeout_s = config.controller_quorum_election_timeout_ms / 1000
        self.fetch_timeout_s = config.controller_quorum_fetch_timeout_ms / 1000
        self.fetch_wait_max_ms = config.controller_quorum_fetch_wait_max_ms
        """For how long a leader may hold a fetch that has nothing to get; so late is news of a dead connection, too."""
        self.interruption_s = max(
            config.broker_session_timeout_ms / 1000 * INTERRUPTION_PART, self.fetch_timeout_s * OVERDUE_PART
        )
        self.backoff_max_s = config.controller_quorum_election_backoff_max_ms / 1000
        self.acts_on_refusals = config.fence_on_refused_connection
        self.retry_backoff_s = max(config.controller_quorum_retry_backoff_ms, 1) / 1000
        self.wall_ms = wall_ms
        """The calendar at the last :meth:`on_time`; only control records are stamped with it."""
        self.state = state
        self.state_version = 0
        self.snapshots = tuple(snapshots)
        self.high_watermark: Offset = max(self.log.start_offset, self.newest_snapshot.end_offset)
        self.contacts: dict[NodeId, float] = {}
        """When each other node was last heard of: its fetch, or its answer to ours."""
        self._outbox: list[Envelope] = []
        self.role: Role = self._first_role(now)
        self._note_state()

    def __repr__(self) -> str:
        role = self.role
        return (
            f"<quorum n{self.me} {role.name} e{role.epoch} leader={role.live_leader_id} voted={role.voted_id}"
            f" leo={self.log.end_offset} durable={self.log.synced_end} hw={self.high_watermark}>"
        )

    # ---- what is known -----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch:
        return self.role.epoch

    @property
    def leader_id(self) -> NodeId:
        """The present leader, NO_NODE when unknown."""
        return self.role.live_leader_id

    @property
    def is_voter(self) -> bool:
        return self.me in self.voters

    @property
    def newest_snapshot(self) -> EpochEnd:
        """(0, 0) when there is none: the empty state."""
        return self.snapshots[-1] if self.snapshots else EpochEnd(0, 0)

    @property
    def log_end(self) -> EpochEnd:
        """Last epoch and end of what this member holds; a log that was emptied for a snapshot ends where that does."""
        return EpochEnd(
            max(self.log.last_epoch, self.newest_snapshot.epoch if self.snapshots else -1), self.log.end_offset
        )

    @property
    def epoch_max(self) -> Epoch:
        """The highest epoch that a request may name."""
        logged = self.log_end.epoch
        return min((logged if logged >= 0 else self.epoch) + EPOCH_JUMP_MAX, EPOCH_END - 1)

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_time`, or None."""
        return self.role.next_deadline()

    def on_snapshots(self, snapshots: Iterable[EpochEnd]) -> None:
        """These snapshots are whole on disk, oldest first; all they hold is committed."""
        self.snapshots = tuple(snapshots)
        self.raise_high_watermark(self.newest_snapshot.end_offset)

    def raise_high_watermark(self, new: Offset) -> bool:
        """Everything below ``new`` is committed, and this log holds it. True if that is news."""
        if new <= self.high_watermark:
            return False
        invariant(new <= self.log.end_offset, "committed beyond the log's end", new=new, quorum=self)
        self.events("quorum_hw_advanced", epoch=self.epoch, old=self.high_watermark, new=new)
        self.high_watermark = new
        return True

    # ---- time --------------------------------------------------------------------------------------------------------

    def stand_now(self, now: float) -> None:
        """Ask for votes at once, if this member has no leader and waits for its turn, or for its next attempt: for who
        has started all members together, and knows that they can answer.
        """
        role = self.role
        if isinstance(role, Unattached) and role.election_at is not None:
            role.election_at = min(role.election_at, now)
        elif isinstance(role, Standing):
            role.epoch_election.ask_at.update((peer, min(at, now)) for peer, at in role.epoch_election.ask_at.items())

    def on_time(self, now: float, wall_ms: int) -> Ready[None]:
        """Handle what is due; then :meth:`next_deadline` lies ahead."""
        self.wall_ms = wall_ms
        turns = 0
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            self._on_deadline(now)
            turns += 1
            invariant(turns < DEADLINES_AT_ONCE, "deadlines move on", quorum=self, now=now)
        return self.ready(None)

    def _on_deadline(self, now: float) -> None:
        role = self.role
        match role:
            case Unattached() | Resigned():
                self._ask_for_pre_votes(now, because=roles.ELECTION_TIMEOUT)
            case Follower() if self.is_voter:
                part = SCATTER_PART if len(self.voters) >= SCATTERED_FROM else 0.0
                scatter = self.random.random() * part * self.election_timeout_s
                because = roles.LEADER_REFUSED if role.is_refused else roles.FETCH_TIMEOUT
                self._ask_for_pre_votes(now, because=because, ask_at=now + scatter)
            case Follower():
                # Any voter will tell who leads, and be it the same again.
                self.become(Unattached(epoch=role.epoch, election_at=None), roles.LEADER_SILENT)
            case Standing() if role.backoff_until is not None:
                self._ask_for_pre_votes(now, because=roles.BACKOFF_OVER, retries=role.retries + 1)
            case Standing() if role.ends_at <= now:
                self._round_lost(role, now)
            case Standing():
                for peer in role.epoch_election.take_due(now):
                    self._send_vote_request(peer, pre_vote=isinstance(role, Prospective))
            case Leader() if role.check_quorum_at <= now:
                self._resign(now, roles.MAJORITY_SILENT)
            case Leader():
                for peer in sorted(peer for peer, at in role.begin_at.items() if at <= now):
                    role.begin_at[peer] = now + self.fetch_timeout_s / 2
                    self._send(peer, self._begin_request(peer))

    # ---- elections: this member stands -------------------------------------------------------------------------------

    def _ask_for_pre_votes(self, now: float, *, because: str, ask_at: float | None = None, retries: int = 0) -> None:
        role = self.role
        epoch_election = EpochElection(self.voters, me=self.me, ask_at=now if ask_at is None else ask_at)
        prospective = Prospective(
            epoch=role.epoch,
            leader_id=role.leader_id,
            voted_id=role.voted_id,
            epoch_election=epoch_election,
            ends_at=now + self.draw_election_timeout(),
            retries=retries,
        )
        self.become(prospective, because)
        self.count_votes(prospective, now)

    def _stand(self, prospective: Prospective, now: float) -> None:
        """Begin an epoch and vote for oneself in it."""
        candidate = Candidate(
            epoch=prospective.epoch + 1,
            voted_id=self.me,
            epoch_election=EpochElection(self.voters, me=self.me, ask_at=now),
            ends_at=now + self.draw_election_timeout(),
            retries=prospective.retries,
        )
        self.become(candidate, roles.PRE_VOTES_WON)
        self.count_votes(candidate, now)

    def count_votes(self, role: Standing, now: float) -> None:
        """Go on as soon as the round is won or cannot be won any more."""
        if role.epoch_election.won:
            if isinstance(role, Prospective):
                if not role.yields:
                    self._stand(role, now)
            else:
                self._lead(role, now)
        elif role.epoch_election.lost and role.backoff_until is None:
            if isinstance(role, Prospective) and role.leader_id not in (NO_NODE, self.me):
                # A majority still hears the leader, or it would not refuse: follow it again. The next candidate finds a
                # follower that has heard nothing yet, and gets its pre-vote.
                self._follow(role.leader_id, now, because=roles.PRE_VOTES_REFUSED)
            else:
                self._round_lost(role, now)

    def yield_to(self, candidate: NodeId, log_end: EpochEnd, now: float) -> None:
        """``candidate`` has been granted a pre-vote: leave the election to it, if it has the better claim.

        Otherwise two of three voters that lose their leader at the same moment split the votes:

        1. each grants the other's pre-vote, so both win that round and vote for themselves in the next epoch;
        2. each refuses the other's vote, and the third voter is dead: no answer ends the round before its timeout.

        The longer log has the better claim, then the lower id: of any two, one goes on. A member yields in its first
        round only, so that a candidate whose answers are lost cannot hold it back. A follower has not asked yet, and
        its grant may be all that the candidate needs: whatever its own claim, it waits before it asks, once.
        """
        role = self.role
        if isinstance(role, Follower) and role.yields_until == roles.NEVER:
            pause = min(YIELD_S, self.fetch_timeout_s / 4) * (0.5 + self.random.random() / 2)
            role.yields_until = now + pause
            role.fetch_deadline = max(role.fetch_deadline, role.yields_until)
            return
        if not isinstance(role, Prospective) or role.yields or role.retries or role.backoff_until is not None:
            return
        own_end = EpochEnd(max(self.log_end.epoch, 0), self.log_end.end_offset)  # as a request has it
        if (log_end, -candidate) > (own_end, -self.me):
            role.yields = True
            role.backoff_until = now + YIELD_S * (0.5 + self.random.random() / 2)
            self.events("pre_vote_yielded", epoch=role.epoch, candidate=candidate)

    def stand_instead(self, now: float) -> None:
        """A candidate was refused because its log is behind: without a leader, ask for pre-votes soon.

        The candidate may have ended the reign of a leader that could go on, and cannot win. A member that can would
        otherwise wait for an election timeout.
        """
        role = self.role
        if isinstance(role, Unattached) and role.election_at is not None and role.voted_id == NO_NODE:
            role.election_at = min(role.election_at, now + ELECTION_BACKOFF_S * self.random.random())

    def _round_lost(self, role: Standing, now: float) -> None:
        pause = ELECTION_BACKOFF_S * self.random.randrange(1, 2 ** min(role.retries + 1, 10))
        role.backoff_until = now + min(pause, self.backoff_max_s) * (0.5 + self.random.random() / 2)
        self.events("election_lost", role=role.name, epoch=role.epoch, votes=role.epoch_election.granting)

    def _lead(self, candidate: Standing, now: float) -> None:
        """The votes are won: append the record that commits all that came before it."""
        epoch, others = candidate.epoch, [voter for voter in self.voters if voter != self.me]
        leader = Leader(
            epoch=epoch,
            leader_id=self.me,
            voted_id=self.me,
            epoch_start=self.log.end_offset,
            voters={voter: Progress() for voter in others},
            check_quorum_at=now + 1.5 * self.fetch_timeout_s,
            begin_at=dict.fromkeys(others, now),
            resumed_at=now,
        )
        self.become(leader, roles.VOTES_WON)
        granting = candidate.epoch_election.granting
        batch = leader_change_batch(self.me, voters=self.voters, granting=granting, timestamp_ms=self.wall_ms)
        self.append(RecordBatch.of(batch), wall_ms=self.wall_ms)
        self.events("quorum_leader_elected", epoch=epoch, leader=self.me, votes=granting, start=leader.epoch_start)

    def _send_vote_request(self, peer: NodeId, *, pre_vote: bool) -> None:
        end = self.log_end
        self._send(
            peer,
            m.VoteRequest(
                cluster_id=self.cluster_id,
                voter_id=peer,
                candidate_id=self.me,
                candidate_epoch=self.epoch,
                last_epoch=max(end.epoch, 0),
                last_epoch_end_offset=end.end_offset,
                pre_vote=pre_vote,
            ),
        )

    # ---- a leader ends -----------------------------------------------------------------------------------------------

    def stop(self, now: float) -> Ready[None]:
        """End gracefully: a leader names its successors; nobody stands for election any more."""
        if isinstance(self.role, Leader):
            self._resign(now, roles.STOPPING)
        if isinstance(self.role, (Unattached, Resigned)):
            self.role.election_at = None
        return self.ready(None)

    def _resign(self, now: float, because: str) -> None:
        role = self.role
        invariant(isinstance(role, Leader), "only a leader resigns", quorum=self)
        if not isinstance(role, Leader):
            return
        successors = role.successors()
        resigned = Resigned(
            epoch=role.epoch, leader_id=self.me, voted_id=role.voted_id, election_at=now + self.draw_election_timeout()
        )
        self.become(resigned, because)
        for peer in successors:
            self._send(
                peer,
                m.EndQuorumEpochRequest(
                    cluster_id=self.cluster_id,
                    voter_id=peer,
                    leader_id=self.me,
                    leader_epoch=role.epoch,
                    preferred_successors=successors,
                ),
            )

    # ---- the log of a leader -----------------------------------------------------------------------------------------

    def append(self, batch: RecordBatch, *, wall_ms: int) -> Offset:
        """Append one batch as leader; the end offset at which it is committed. What the log raises, it raises."""
        role = self.role
        invariant(isinstance(role, Leader), "only a leader appends", quorum=self)
        invariant(
            self.log.end_offset == 0 or self.log_end.epoch <= role.epoch,
            "epochs never decrease along a log",
            quorum=self,
        )
        self.log.append_as_leader(batch, leader_epoch=role.epoch, wall_ms=wall_ms)
        return self.log.end_offset

    def record_fetch(
        self, node: NodeId, offset: Offset, *, leader_end: Offset, now: float, last_answer: int = 0
    ) -> None:
        """Leader: a good fetch from ``offset`` says that all below is durable at ``node``; the watermark may rise."""
        role = self.role
        if isinstance(role, Leader):
            self.hear(node, now)
            role.record_fetch(
                node,
                offset,
                leader_end=leader_end,
                now=now,
                timeout_s=self.fetch_timeout_s,
                interruption_s=self.interruption_s,
                last_answer=last_answer,
            )
            self.advance_high_watermark()

    def hear(self, node: NodeId, now: float) -> None:
        """``node`` lives. Ids of observers come from requests: there is a limit to how many are remembered."""
        if node in self.voters or node in self.contacts or len(self.contacts) < roles.OBSERVERS_MAX:
            self.contacts[node] = now

    def hear_leader(self, follower: Follower, now: float) -> None:
        """Follower: a good answer came from the leader."""
        follower.has_fetched = True
        follower.is_refused = False
        follower.yields_until = roles.NEVER
        follower.fetch_deadline = now + self.fetch_timeout_s

    def is_leader_overdue(self, follower: Follower, now: float) -> bool:
        """Is the leader so late that another voter, which has waited for the whole fetch timeout, may be right?

        Voters of a dead leader have last heard it at different moments, up to an idle fetch apart. If each waited for
        its own fetch timeout, the last one would decide when the next leader is elected.
        """
        return now >= follower.fetch_deadline - (1 - OVERDUE_PART) * self.fetch_timeout_s

    def on_leader_refused(self, leader_id: NodeId, now: float) -> bool:
        """The leader's machine refused a connection. Return True if this member stands for election sooner by that.

        A follower that the leader has answered asks for pre-votes now. Any other waits for a part of the election
        timeout: a firewall may refuse in the leader's place, again and again. Pre-votes disturb nobody, and members
        that the leader still answers refuse them (KIP-996).
        """
        role = self.role
        if not self.acts_on_refusals or not isinstance(role, Follower) or role.leader_id != leader_id:
            return False
        pause = 0.0 if role.has_fetched else REFUSED_PART * self.election_timeout_s
        stands_at = max(now + pause, role.yields_until)
        if role.is_refused or role.fetch_deadline <= stands_at:
            return False
        role.is_refused = True
        role.fetch_deadline = stands_at
        self.events("quorum_leader_refused", epoch=role.epoch, leader=leader_id, why="connection refused")
        return True

    def on_durable(self) -> bool:
        """The log was synced. A leader counts its own log only as far as that; True if the high watermark moved."""
        return self.advance_high_watermark()

    def advance_high_watermark(self) -> bool:
        """Leader: raise it to what a majority of voters has made durable, past a record of its *own* epoch.

        A majority's copy of an older epoch's record is not enough (KAFKA-12619): a voter with a longer log of a newer
        epoch could still be elected and cut it.
        """
        role = self.role
        if not isinstance(role, Leader):
            return False
        candidate = role.majority_end(self.log.synced_end)
        return candidate > role.epoch_start and self.raise_high_watermark(candidate)

    # ---- transitions -------------------------------------------------------------------------------------------------

    def observe(self, epoch: Epoch, leader_id: NodeId, now: float, *, from_leader: bool = False) -> None:
        """Take in an epoch that another member reports and, unless ``leader_id`` is NO_NODE, its leader.

        What cannot be is reported by an event and ignored: an epoch beyond the bound, and a second leader of one epoch.
        """
        if epoch > self.epoch:
            highest = self.epoch_max if self.log_end.epoch >= 0 else EPOCH_HALF
            if epoch > highest:
                self.events("quorum_epoch_refused", epoch=epoch, highest=highest, leader=leader_id)
                return
            election_at = now + self.draw_election_timeout() if self.is_voter else None
            self.become(Unattached(epoch=epoch, election_at=election_at), roles.HIGHER_EPOCH)
        role = self.role
        if epoch < role.epoch or leader_id in (NO_NODE, self.me) or leader_id not in self.voters:
            return
        if role.leader_id not in (NO_NODE, leader_id):
            # Two majorities would have elected them: a member has voted twice, or a stranger pretends to be a member.
            self.events("quorum_leader_disputed", epoch=epoch, leader=role.leader_id, told=leader_id)
            return
        # A voter that lost sight of a leader of its epoch believes the leader itself, not what others last heard.
        if role.leader_id == NO_NODE or (from_leader and not isinstance(role, Follower)):
            self._follow(leader_id, now, because=roles.LEADER_FOUND)

    def _follow(self, leader_id: NodeId, now: float, *, because: str) -> None:
        role = self.role
        follower = Follower(
            epoch=role.epoch, leader_id=leader_id, voted_id=role.voted_id, fetch_deadline=now + self.fetch_timeout_s
        )
        self.become(follower, because)

    def become(self, role: Role, because: str) -> None:
        """Change the role, along the table."""
        old = self.role
        invariant(
            roles.TRANSITIONS.get((old.name, because)) == role.name,
            "a transition of the table",
            was=old.name,
            why=because,
        )
        invariant(role.epoch >= old.epoch, "the epoch never falls", old=old.epoch, new=role.epoch)
        self.role = role
        self._note_state()
        self.events(
            "quorum_role_changed",
            role=role.name,
            epoch=role.epoch,
            leader=role.live_leader_id,
            because=because,
        )

    def _note_state(self) -> None:
        role = self.role
        state = QuorumState(epoch=role.epoch, leader_id=role.leader_id, voted_id=role.voted_id)
        if state != self.state:
            self.state = state
            self.state_version += 1

    def _first_role(self, now: float) -> Role:
        """What a member is after a start, by what it had saved."""
        state, log_epoch = self.state, self.log_end.epoch
        highest = self.epoch_max if log_epoch >= 0 else EPOCH_HALF
        if state.epoch > highest:
            # Saved by a build that believed any epoch. Half the bound ahead lies beyond every epoch in which this
            # member can have voted by an election, and within the bound of members whose logs end in another epoch.
            state = QuorumState(epoch=max(log_epoch, 0) + EPOCH_JUMP_MAX // 2)
            self.events("quorum_epoch_lowered", old=self.state.epoch, new=state.epoch, highest=highest)
        soon: float | None = now + self.random.random() * FIRST_ELECTION_PART * self.election_timeout_s
        if self.voters == (self.me,):
            soon = now
        if not self.is_voter:
            soon = None
        if log_epoch > state.epoch:
            # The log was synced, the state file is older: an observer that became a voter, or a copied directory.
            return Unattached(epoch=log_epoch, election_at=soon)
        if state.leader_id == self.me and self.is_voter:
            return Resigned(epoch=state.epoch, leader_id=self.me, voted_id=state.voted_id, election_at=soon)
        if state.leader_id in self.voters:
            return Follower(
                epoch=state.epoch,
                leader_id=state.leader_id,
                voted_id=state.voted_id,
                fetch_deadline=now + self.fetch_timeout_s,
            )
        return Unattached(epoch=state.epoch, voted_id=state.voted_id, election_at=soon)

    # ---- small things ------------------------------------------------------------------------------------------------

    def draw_election_timeout(self) -> float:
        """Random in [T, 2T)."""
        return self.election_timeout_s * (1 + self.random.random())

    def check_cluster(self, cluster_id: str | None) -> None:
        """Raise InconsistentClusterId for a request from another cluster."""
        if cluster_id is not None and cluster_id != self.cluster_id:
            raise kafka.InconsistentClusterId(f"cluster id {cluster_id!r}, this is {self.cluster_id!r}")

    def check_epoch(self, epoch: Epoch) -> None:
        """Raise FencedLeaderEpoch or UnknownLeaderEpoch when the asker lives in another epoch."""
        if epoch < self.epoch:
            raise kafka.FencedLeaderEpoch(f"epoch {epoch} is over, this is {self.epoch}")
        if epoch > self.epoch:
            raise kafka.UnknownLeaderEpoch(f"epoch {epoch} is not known yet, this is {self.epoch}")

    def _begin_request(self, peer: NodeId) -> m.BeginQuorumEpochRequest:
        return m.BeginQuorumEpochRequest(
            cluster_id=self.cluster_id, voter_id=peer, leader_id=self.me, leader_epoch=self.epoch
        )

    def _send(self, peer: NodeId, request: Asked) -> None:
        self._outbox.append(Envelope(peer, request))

    def ready(self, reply: R) -> Ready[R]:
        """Wrap an answer in what must be durable and sent before it."""
        send = tuple(self._outbox)
        self._outbox.clear()
        return Ready(state=self.state, state_version=self.state_version, send=send, reply=reply)
