"""Faults of single messages: those of one API are lost, late or doubled, one of them is held, a voter dies as it votes.

======================= ================================================================================================
``lose_messages``       for its time, a share of them is lost: ``value``, 1 is all
``reset_messages``      for its time, a share of them breaks its connection, as callers notice
``refuse_messages``     for its time, a share of the requests is refused, as by a firewall that rejects packets
``late_messages``       for its time, each takes up to ``value`` seconds more, so that they overtake each other
``double_messages``     for its time, each request arrives again up to ``value`` seconds later
``hold_message``        the next one alone is held for ``lasts_s``; its sender is killed ``value`` seconds after it has
                        sent it and restarted at once (0: it lives); the message is delivered all the same
``kill_granting_voter`` for ``value`` votes: the voter that grants one is killed when its response has left; restarted
                        after ``lasts_s``
======================= ================================================================================================

``Fault.message`` says which messages: ``Vote``, ``AlterPartition request``, ``Fetch answer``. Fetches of the metadata
log are called ``MetadataFetch``. ``Fault.target`` is a link in the words of ``minikafka/faults.py``. Requests of
Kafka's clients are struck inside the broker's connection (``streams.py``); none of them is doubled.

Rule for this file: a held message of a dead process is one that was on its way already; it is delivered once, and only
to the process that it was sent to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Final

from minikafka.faults import CLIENT, METADATA_FETCH
from minikafka.replication.fetch_session import FULL_EPOCH
from minikafka.sim.cluster import SimCluster
from minikafka.sim.verdicts import Deliver, Drop, Message, Reset, Rule, Verdict
from minikafka.sim.world import Event
from minikafka.types import METADATA_TOPIC
from minikafka.wire.codec import decode_request, decode_response, find_api

LOSE, RESET, REFUSE, LATE = "lose_messages", "reset_messages", "refuse_messages", "late_messages"
DOUBLE, HOLD = "double_messages", "hold_message"
KILL_GRANTING_VOTER: Final = "kill_granting_voter"

MESSAGE_FAULTS: Final = (LOSE, RESET, REFUSE, LATE, DOUBLE, HOLD)

LATE_BY_VALUE: Final = frozenset({LATE, DOUBLE, HOLD})
"""Faults whose value is a time."""

Undo = Callable[[], None]


class Matching:
    """The messages that a fault strikes: of one API, on some directed links."""

    def __init__(self, words: str, links: Collection[tuple[str, str]], brokers: frozenset[str] = frozenset()) -> None:
        api, _, self._kind = words.partition(" ")
        self._api = "Fetch" if api == METADATA_FETCH else api
        self._is_metadata = api == METADATA_FETCH
        self._links = frozenset(links)
        self._brokers = brokers
        self._is_about_clients = any(CLIENT in link for link in self._links)

    def __call__(self, message: Message) -> bool:
        if message.api != self._api or not self._is_on_its_links(message):
            return False
        if self._kind and message.kind != self._kind:
            return False
        return self._api != "Fetch" or (METADATA_TOPIC.encode() in message.body) == self._is_metadata

    def _is_on_its_links(self, message: Message) -> bool:
        link = (message.source, message.target)
        if link in self._links or not self._is_about_clients:
            return link in self._links
        source, target = (end if end in self._brokers else CLIENT for end in link)
        return (source, target) in self._links


def begin(
    kind: str,
    matches: Matching,
    *,
    lasts_s: float,
    value: float,
    random: Random,
    cluster: SimCluster,
    struck_one: Callable[[Message], None],
) -> Undo:
    """Begin a fault of messages; the result ends it. ``struck_one`` is called with each message that it strikes."""
    network = cluster.sim.network

    def struck(message: Message) -> Verdict | None:
        if not matches(message):
            return None
        verdict = _verdict(kind, message, lasts_s, value, random)
        if verdict is not None:
            struck_one(message)
            if kind == HOLD:
                network.tell("message_held", message.source, target=message.target, api=message.api, seconds=lasts_s)
                undo()
        return verdict

    rule: Rule = struck
    undo = network.rule(rule, of_requests=True)
    return undo


def _verdict(kind: str, message: Message, lasts_s: float, value: float, random: Random) -> Verdict | None:
    if kind in (LOSE, RESET):
        struck = Drop() if kind == LOSE else Reset()
        return struck if random.random() < value else None
    if kind == REFUSE:
        return Reset(is_refused=True) if message.kind == "request" and random.random() < value else None
    if kind == LATE:
        return Deliver(random.uniform(0.0, value))
    if kind == DOUBLE:
        return Deliver(again_after_s=random.uniform(0.0, value)) if message.kind == "request" else None
    return Deliver(lasts_s) if _is_worth_holding(message) else None


def _is_worth_holding(message: Message) -> bool:
    """True for what changes something though it is late: a response with records, a fetch that needs no session."""
    if message.api != "Fetch" or not message.body:
        return True
    if message.kind == "request":
        return bool(decode_request(find_api("Fetch"), message.body).session_epoch <= FULL_EPOCH)
    return any(each.records for each in decode_response("Fetch", message.body).partitions)


def on_granted_vote(cluster: SimCluster, voters: Collection[str], count: int, kill: Callable[[str], None]) -> Undo:
    """Call ``kill`` with the name of each of ``voters`` that has granted a vote, ``count`` times; the result ends it.

    It is called when the response has been sent: the vote counts then, whatever the voter forgets.
    """
    sim = cluster.sim
    granting: set[str] = set()
    left = count

    def watch(event: Event) -> None:
        if event.kind == "vote_granted" and event.node in voters and not event.facts["pre_vote"]:
            granting.add(event.node)

    def sent(message: Message, _: Verdict) -> None:
        nonlocal left
        if message.api == "Vote" and message.kind == "answer" and message.source in granting and left:
            left -= 1
            granting.discard(message.source)
            sim.loop.happen_at(sim.loop.now, lambda: kill(message.source))

    sim.observers.append(watch)
    sim.network.observers.append(sent)

    def undo() -> None:
        if watch in sim.observers:
            sim.observers.remove(watch)
            sim.network.observers.remove(sent)

    return undo
