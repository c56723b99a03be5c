"""Invariants over what brokers send: each voter votes once per epoch, and no fetcher asks the same question for ever.

Both are properties of messages. A vote counts once it has left the voter, whatever the voter then forgets. A fetcher
that makes no progress tells no event.

Rule for this file: an observer of the network sees every message; it looks into those of two APIs only, and reads a
fetch only when the count is suspicious.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from minikafka.errors import ProtocolError
from minikafka.sim.replica_view import Report, number_of
from minikafka.sim.verdicts import Message, Verdict
from minikafka.sim.world import Event
from minikafka.types import Epoch
from minikafka.wire.codec import decode_request, decode_response, find_api

FETCHES_MAX: Final = 500
"""Responses to one fetcher from one leader without any progress of the fetcher; refusals are not counted, because the
fetcher backs off after them.
"""

CUTS_MAX: Final = 5
"""Truncations of one role to one offset. In one epoch a leader's log only grows: a second one is rare, a sixth a loop.
"""

CUTS: Final = {
    "tail_truncated": "new",
    "nothing_truncated": "end",
    "log_restarted": "new",
    "quorum_tail_truncated": "new",
}
"""Events of truncations, and the fact that says where."""

PROGRESS: Final = frozenset(
    {
        "became_follower",
        "became_leader",
        "batch_appended",
        "follower_hw_changed",
        "log_start_raised",
        "node_started",
        "quorum_hw_advanced",
        "quorum_role_changed",
        "replica_failed",
        "segment_rolled",
        "snapshot_fetched",
    }
)
"""Events of a fetcher that make its next question another one."""


class OneVotePerEpoch:
    """A node's vote in an epoch is for one candidate, over all its lives (KAFKA-FACTS 10.13)."""

    name = "two_votes_in_an_epoch"

    def __init__(self) -> None:
        self._asked: dict[int, Any] = {}
        """Requests that have no response yet, by the number of their call."""
        self._votes: dict[tuple[int, Epoch], int] = {}
        self._vote = find_api("Vote")

    def on_message(self, message: Message, report: Report) -> None:
        """A request for a vote, or the response to one, was sent."""
        if message.kind == "request":
            request = self._asked[message.call] = decode_request(self._vote, message.body)
            if not request.pre_vote:  # a candidate has voted for itself
                self._note(request.candidate_id, request.candidate_epoch, request.candidate_id, report)
            return
        request = self._asked.get(message.call)
        if request is not None and not request.pre_vote and decode_response("Vote", message.body).vote_granted:
            self._note(request.voter_id, request.candidate_epoch, request.candidate_id, report)

    def _note(self, voter: int, epoch: Epoch, candidate: int, report: Report) -> None:
        first = self._votes.setdefault((voter, epoch), candidate)
        if first != candidate:
            report(self.name, f"broker {voter} voted for {first} and for {candidate} in epoch {epoch}")


class Progress:
    """A follower neither fetches nor truncates at the same place over and over."""

    name = "no_progress"

    def __init__(self) -> None:
        self._responses: dict[str, Counter[str]] = {}
        """Fetcher -> by leader, how many responses since the fetcher made progress."""
        self._cuts: Counter[tuple[object, ...]] = Counter()

    def on_event(self, event: Event, report: Report) -> None:
        """A broker reported an event."""
        if event.kind in PROGRESS:
            self._responses.pop(event.node, None)
        elif event.kind in CUTS:
            facts = event.facts
            end = number_of(event, CUTS[event.kind])
            place = (event.node, event.incarnation, facts.get("partition"), facts.get("epoch"), end)
            self._cuts[place] += 1
            if self._cuts[place] == CUTS_MAX + 1:
                report(self.name, f"{event.node}#{event.incarnation} {event.kind} {dict(facts)}: {CUTS_MAX + 1} times")

    def on_message(self, message: Message, report: Report) -> None:
        """The response to a fetch was sent to a broker."""
        responses = self._responses.get(message.target)
        if responses is None:
            responses = self._responses[message.target] = Counter()
        responses[message.source] += 1
        if responses[message.source] >= FETCHES_MAX:
            responses[message.source] = 0
            if not _is_refused(message.body):
                loop = f"{FETCHES_MAX} responses of {message.source} to fetches of {message.target} without progress"
                report(self.name, f"{loop}; the latest: {decode_response('Fetch', message.body)!r}"[:500])


def _is_refused(body: bytes) -> bool:
    """Does any part of the response say that the fetcher has to wait?"""
    try:
        response = decode_response("Fetch", body)
    except ProtocolError:
        return True
    return bool(response.error_code) or any(each.error_code for each in response.partitions)


class SentMessages:
    """The observer of the network for both."""

    def __init__(self, brokers: Collection[str], report: Report) -> None:
        self.progress = Progress()
        self._votes = OneVotePerEpoch()
        self._brokers = frozenset(brokers)
        self._report = report

    def observe(self, message: Message, _verdict: Verdict) -> None:
        """``message`` was sent; whether it arrives does not matter."""
        api = message.api
        if api == "Fetch":
            if message.kind == "answer" and message.target in self._brokers:
                self.progress.on_message(message, self._report)
        elif api == "Vote":
            self._votes.on_message(message, self._report)
