"""The roles of a quorum member, one class each, and how one becomes another (KIP-595, KIP-996).

Roles hold what is true while the role lasts and say when they want to be asked again; ``core.py`` decides. A transition
that is not a line of this table is a bug::

    from         event                 to
    unattached   election timeout      prospective   ask for pre-votes in the own epoch; nothing is saved
    unattached   vote granted          unattached    the vote is saved; a new election timeout
    unattached   leader found          follower      its id is saved
    prospective  pre-votes won         candidate     epoch + 1 and the vote for itself are saved
    prospective  pre-votes refused     follower      others still hear the leader: follow it again
    prospective  backoff over          prospective   ask again
    prospective  vote granted          unattached    as above
    prospective  leader found          follower      as above
    candidate    votes won             leader        append LeaderChange; it commits all that came before
    candidate    backoff over          prospective   the election was lost or took too long
    candidate    leader found          follower      as above
    follower     fetch timeout         prospective   a voter that no longer hears its leader
    follower     leader refused        prospective   a voter whose leader's address refuses connections
    follower     leader silent         unattached    an observer that no longer hears its leader: look for it
    follower     leader resigned       unattached    stand for election after a pause by rank among the successors
    leader       majority silent       resigned      1.5 fetch timeouts without a majority's fetches (KAFKA-15489)
    leader       stopping              resigned      a graceful stop
    resigned     election timeout      prospective   never leader again in this epoch (KAFKA-10527)
    unattached   higher epoch          unattached    the epoch is saved
    prospective  higher epoch          unattached    as above
    candidate    higher epoch          unattached    as above
    follower     higher epoch          unattached    as above
    leader       higher epoch          unattached    as above
    resigned     higher epoch          unattached    as above

A member that is no voter (an observer) is only ever unattached or follower, and never votes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from minikafka.types import NO_NODE, NO_OFFSET, Epoch, NodeId, Offset

ELECTION_TIMEOUT = "election timeout"
VOTE_GRANTED = "vote granted"
LEADER_FOUND = "leader found"
PRE_VOTES_WON = "pre-votes won"
PRE_VOTES_REFUSED = "pre-votes refused"
BACKOFF_OVER = "backoff over"
VOTES_WON = "votes won"
FETCH_TIMEOUT = "fetch timeout"
LEADER_REFUSED = "leader refused"
LEADER_SILENT = "leader silent"
LEADER_RESIGNED = "leader resigned"
MAJORITY_SILENT = "majority silent"
STOPPING = "stopping"
HIGHER_EPOCH = "higher epoch"

# Observers are only kept to be shown: brokers that are no voters. Node ids come from requests, so there is a limit.
OBSERVERS_MAX = 1000

TRANSITIONS: Mapping[tuple[str, str], str] = {
    ("unattached", ELECTION_TIMEOUT): "prospective",
    ("unattached", VOTE_GRANTED): "unattached",
    ("unattached", LEADER_FOUND): "follower",
    ("prospective", PRE_VOTES_WON): "candidate",
    ("prospective", PRE_VOTES_REFUSED): "follower",
    ("prospective", BACKOFF_OVER): "prospective",
    ("prospective", VOTE_GRANTED): "unattached",
    ("prospective", LEADER_FOUND): "follower",
    ("candidate", VOTES_WON): "leader",
    ("candidate", BACKOFF_OVER): "prospective",
    ("candidate", LEADER_FOUND): "follower",
    ("follower", FETCH_TIMEOUT): "prospective",
    ("follower", LEADER_REFUSED): "prospective",
    ("follower", LEADER_SILENT): "unattached",
    ("follower", LEADER_RESIGNED): "unattached",
    ("leader", MAJORITY_SILENT): "resigned",
    ("leader", STOPPING): "resigned",
    ("resigned", ELECTION_TIMEOUT): "prospective",
    ("unattached", HIGHER_EPOCH): "unattached",
    ("prospective", HIGHER_EPOCH): "unattached",
    ("candidate", HIGHER_EPOCH): "unattached",
    ("follower", HIGHER_EPOCH): "unattached",
    ("leader", HIGHER_EPOCH): "unattached",
    ("resigned", HIGHER_EPOCH): "unattached",
}


@dataclass(slots=True, kw_only=True)
class Role:
    """What all roles have: the three facts that ``quorum-state`` keeps."""

    name: ClassVar[str]

    epoch: Epoch
    leader_id: NodeId = NO_NODE
    """The leader of this epoch at some time, as far as known; see :attr:`live_leader_id`."""
    voted_id: NodeId = NO_NODE

    @property
    def live_leader_id(self) -> NodeId:
        """The present leader, as this member reports it to others."""
        return NO_NODE

    def next_deadline(self) -> float | None:
        """When to be asked again, or None: only when something arrives."""
        return None


@dataclass(slots=True, kw_only=True)
class Unattached(Role):
    """Knows an epoch and no living leader."""

    name: ClassVar[str] = "unattached"

    election_at: float | None
    """When to stand for election; None for observers."""

    def next_deadline(self) -> float | None:
        return self.election_at


class EpochElection:
    """One round of asking all voters for a vote: who said what, and whom to ask (again) when."""

    def __init__(self, voters: Iterable[NodeId], *, me: NodeId, ask_at: float) -> None:
        self.answers: dict[NodeId, bool] = {me: True}
        self.ask_at: dict[NodeId, float] = {voter: ask_at for voter in voters if voter != me}
        self.failures: dict[NodeId, int] = dict.fromkeys(self.ask_at, 0)
        self.voter_count = len(self.ask_at) + 1

    @property
    def majority(self) -> int:
        return self.voter_count // 2 + 1

    @property
    def won(self) -> bool:
        return sum(self.answers.values()) >= self.majority

    @property
    def lost(self) -> bool:
        """So many refused that the others are no majority."""
        refused = len(self.answers) - sum(self.answers.values())
        return self.voter_count - refused < self.majority

    @property
    def granting(self) -> list[NodeId]:
        """The voters that granted their vote, sorted."""
        return sorted(node for node, granted in self.answers.items() if granted)

    def take_due(self, now: float) -> list[NodeId]:
        """The voters to request now; each has at most one request in flight."""
        due = sorted(node for node, at in self.ask_at.items() if at <= now)
        for node in due:
            del self.ask_at[node]
        return due

    def record(self, node: NodeId, *, granted: bool) -> None:
        """``node`` has answered; only the first answer of a round counts."""
        self.ask_at.pop(node, None)
        self.answers.setdefault(node, granted)

    def record_silence(self, node: NodeId, *, now: float, backoff_s: float, backoff_max_s: float) -> None:
        """The call to ``node`` failed: ask again, ever more slowly."""
        if node not in self.answers and node in self.failures:
            self.ask_at[node] = now + min(backoff_s * 2 ** min(self.failures[node], 16), backoff_max_s)
            self.failures[node] += 1


@dataclass(slots=True, kw_only=True)
class Standing(Role):
    """What prospective and candidate share: a round of questions, its end, and a pause after it was lost."""

    epoch_election: EpochElection
    ends_at: float
    retries: int = 0
    """Rounds lost in a row before this one."""
    backoff_until: float | None = None
    """Set once the round is lost."""

    def next_deadline(self) -> float | None:
        if self.backoff_until is not None:
            return self.backoff_until
        return min((self.ends_at, *self.epoch_election.ask_at.values()))


@dataclass(slots=True, kw_only=True)
class Prospective(Standing):
    """Requests pre-votes: it finds out whether it would win an election before it disturbs the others (KIP-996)."""

    name: ClassVar[str] = "prospective"

    yields: bool = False
    """Another prospective with a better claim asked for a pre-vote: this round does not end in a candidacy."""


@dataclass(slots=True, kw_only=True)
class Candidate(Standing):
    """Stands for election in an epoch of its own."""

    name: ClassVar[str] = "candidate"


@dataclass(slots=True, kw_only=True)
class Follower(Role):
    """Fetches from the leader of its epoch."""

    name: ClassVar[str] = "follower"

    fetch_deadline: float
    """Without a good answer until then the leader is taken for dead."""
    has_fetched: bool = False
    """A good answer came in this role: the leader lives, so pre-votes are refused (KIP-996)."""
    is_refused: bool = False
    """The leader's machine has refused a connection since its last good answer: its process has ended."""
    yields_until: float = float("-inf")
    """It has granted a pre-vote since the leader's last good answer, and leaves the election to that member so long."""
    last_answer: int = 0
    """Number of the leader's last good answer, which the next fetch names."""

    @property
    def live_leader_id(self) -> NodeId:
        return self.leader_id

    def next_deadline(self) -> float | None:
        return self.fetch_deadline


NEVER = float("-inf")

ANSWERS_MAX = 100
"""So many answers to one voter may be on their way: it repeats a fetch that gets no answer in time."""


@dataclass(slots=True)
class Progress:
    """What the leader knows of one replica, voter or observer."""

    end_offset: Offset = NO_OFFSET
    """Durable there, by its own claim: the offset of its last good fetch."""
    last_fetch_at: float | None = None
    last_caught_up_at: float | None = None
    leader_end_at_last_fetch: Offset = NO_OFFSET
    answers: int = 0
    """Number of the last answer to its fetches, in this reign."""
    answered_at: dict[int, float] = field(default_factory=dict)
    """When each of the latest answers was ready, from the one that its fetches last named."""
    followed_at: float = NEVER
    """A time at which it surely followed: see :meth:`Leader.majority_heard_at`."""

    def on_fetch(self, offset: Offset, *, leader_end: Offset, now: float) -> None:
        """A good fetch from ``offset`` while the leader's log ended at ``leader_end`` (KAFKA-FACTS 3.3)."""
        if offset >= leader_end:
            self.last_caught_up_at = now
        elif self.last_fetch_at is not None and offset >= self.leader_end_at_last_fetch:
            self.last_caught_up_at = max(self.last_caught_up_at or self.last_fetch_at, self.last_fetch_at)
        self.end_offset = offset
        self.leader_end_at_last_fetch = max(self.leader_end_at_last_fetch, leader_end)
        self.last_fetch_at = now


@dataclass(slots=True, kw_only=True)
class Leader(Role):
    """Appends, answers fetches, and counts what a majority of voters has made durable."""

    name: ClassVar[str] = "leader"

    epoch_start: Offset
    """Where its own LeaderChange record lies."""
    voters: dict[NodeId, Progress]
    """The other voters."""
    observers: dict[NodeId, Progress] = field(default_factory=dict)
    check_quorum_at: float
    """Resign unless a majority has fetched by then."""
    fetched: dict[NodeId, bool] = field(default_factory=dict)
    """Other voters that fetched since the majority was last complete."""
    begin_at: dict[NodeId, float]
    """When to tell a voter, that does not fetch, who leads."""
    resumed_at: float
    """When a majority was heard again after the latest interruption (:meth:`record_fetch`); until then its election."""

    @property
    def live_leader_id(self) -> NodeId:
        return self.leader_id

    def next_deadline(self) -> float | None:
        return min((self.check_quorum_at, *self.begin_at.values())) if self.voters else None

    @property
    def other_majority(self) -> int:
        """How many other voters make a majority together with the leader."""
        return (len(self.voters) + 1) // 2

    def majority_end(self, own_durable_end: Offset) -> Offset:
        """The end of what a majority of voters has made durable; the leader counts like any other."""
        ends = sorted([own_durable_end, *(progress.end_offset for progress in self.voters.values())], reverse=True)
        return ends[len(ends) // 2]

    def majority_heard_at(self, now: float) -> float:
        """The newest time at which a majority of voters, itself counted, still followed; -inf: never in this reign.

        When a fetch is read tells nothing: it may have waited in a socket while this process was stopped, and its
        sender may have voted for another since. But who names an answer in its next fetch followed when the answer was
        ready.
        """
        heard = sorted([now, *(each.followed_at for each in self.voters.values())], reverse=True)
        return heard[len(heard) // 2]

    def is_proof_older(self, node: NodeId, moment: float) -> bool:
        """Return True if nothing shows that the voter has followed since ``moment``, and no answer since then can.

        False before the first answer: that one comes with the records of the reign's beginning.
        """
        progress = self.voters.get(node)
        if progress is None or not progress.answered_at or progress.followed_at >= moment:
            return False
        return max(progress.answered_at.values()) < moment

    def record_fetch(
        self,
        node: NodeId,
        offset: Offset,
        *,
        leader_end: Offset,
        now: float,
        timeout_s: float,
        interruption_s: float,
        last_answer: int = 0,
    ) -> None:
        """``node`` fetched from ``offset``, and the logs agree up to there: that much is durable at a voter.

        ``last_answer`` is the answer that it has had before, as :meth:`answered` numbered it; 0: it names none. If
        nothing shows for more than ``interruption_s`` that a majority followed, this process was stopped or cut off.
        """
        if node not in self.voters:
            if len(self.observers) < OBSERVERS_MAX:
                self.observers.setdefault(node, Progress())
            if node in self.observers:
                self.observers[node].on_fetch(offset, leader_end=leader_end, now=now)
            return
        progress = self.voters[node]
        progress.on_fetch(offset, leader_end=leader_end, now=now)
        # Any answer, not only the latest: a process that was stopped answers all fetches that wait in its sockets.
        if last_answer in progress.answered_at:
            heard_until = max(self.resumed_at, self.majority_heard_at(now))
            progress.followed_at = max(progress.followed_at, progress.answered_at[last_answer])
            for number in [each for each in progress.answered_at if each < last_answer]:
                del progress.answered_at[number]
            if self.majority_heard_at(now) > heard_until + interruption_s:
                self.resumed_at = now
        self.hear_from(node, now=now, timeout_s=timeout_s)

    def answered(self, node: NodeId, now: float) -> int:
        """An answer to a fetch of ``node`` is ready: its number, for the node to name; 0 for an observer."""
        progress = self.voters.get(node)
        if progress is None:
            return 0
        progress.answers += 1
        progress.answered_at[progress.answers] = now
        progress.answered_at.pop(progress.answers - ANSWERS_MAX, None)
        return progress.answers

    def hear_from(self, node: NodeId, *, now: float, timeout_s: float) -> None:
        """A voter follows: it knows the leader, and it counts for staying in office."""
        if node not in self.voters:
            return
        self.begin_at[node] = now + timeout_s / 2
        self.fetched[node] = True
        if len(self.fetched) >= self.other_majority:
            self.fetched.clear()
            self.check_quorum_at = now + 1.5 * timeout_s

    def successors(self) -> tuple[NodeId, ...]:
        """The other voters, the one with the longest log first."""
        return tuple(sorted(self.voters, key=lambda node: (-self.voters[node].end_offset, node)))


@dataclass(slots=True, kw_only=True)
class Resigned(Role):
    """Led this epoch and never will again: what it had appended and not synced may be lost (KAFKA-10527)."""

    name: ClassVar[str] = "resigned"

    election_at: float | None
    """When to stand for election; None once this member is stopping."""

    def next_deadline(self) -> float | None:
        return self.election_at
