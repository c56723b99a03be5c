"""Sessions: when the active controller last heard from each broker (S14, KAFKA-FACTS 4.3).

Soft state of one controller's reign: it is not in the metadata log, and a new controller restarts the clocks. Only its
predecessor's session is dated from their last contact: the predecessor's silence is why there is a new controller, and
counting it again would add the time of an election to the failover (DESIGN, rehearsal).

Rule for this file: a broker is silent at the very moment its deadline comes, so a timer at `next_deadline` suffices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minikafka.types import NO_OFFSET, NodeId, Offset


@dataclass(slots=True)
class _Session:
    last_contact: float
    heard_at: float | None = None
    """When it was heard in this reign; ``last_contact`` is a grace period for a broker that was not."""
    metadata_offset: Offset = NO_OFFSET
    shutdown_offset: Offset | None = None
    asked_to_stop_at: float | None = None


class Sessions:
    """Who is alive. All times are monotonic seconds."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sessions: dict[NodeId, _Session] = {}

    def restart(self, nodes: Iterable[NodeId], now: float, last_contacts: Mapping[NodeId, float] | None = None) -> None:
        """Begin a reign: every one of ``nodes`` was heard now, but those in ``last_contacts`` then."""
        known = last_contacts or {}
        self._sessions = {node: _Session(min(now, known.get(node, now))) for node in sorted(nodes)}

    def touched(self, node: NodeId, now: float, *, metadata_offset: Offset = NO_OFFSET) -> None:
        """A valid registration or heartbeat came; ``metadata_offset`` is the end of what the broker has applied."""
        session = self._sessions.setdefault(node, _Session(now))
        session.last_contact = max(session.last_contact, now)
        session.heard_at = now
        session.metadata_offset = max(session.metadata_offset, metadata_offset)

    def begun(self, node: NodeId, now: float) -> None:
        """A new incarnation registered: what the old one had applied counts no more."""
        self._sessions[node] = _Session(now, heard_at=now)

    def ended(self, node: NodeId) -> None:
        """The broker was fenced or has left; it is heard again or not at all."""
        self._sessions.pop(node, None)

    def alive(self, node: NodeId, now: float) -> bool:
        session = self._sessions.get(node)
        return session is not None and now < session.last_contact + self._timeout_s

    def heard_since(self, node: NodeId, moment: float) -> bool:
        """Was the broker heard after ``moment``?"""
        session = self._sessions.get(node)
        return session is not None and session.last_contact > moment

    def expired(self, now: float) -> list[NodeId]:
        """Brokers that were silent for the session timeout, longest silence first."""
        silent = [(each.last_contact, node) for node, each in self._sessions.items() if not self.alive(node, now)]
        return [node for _, node in sorted(silent)]

    def next_deadline(self) -> float | None:
        """When the next session ends unless its broker is heard."""
        contacts = [session.last_contact for session in self._sessions.values()]
        return min(contacts) + self._timeout_s if contacts else None

    # ---- controlled shutdown ----

    def asked_to_stop(self, node: NodeId, now: float, *, wants: bool = True) -> None:
        """The broker's heartbeat has (``wants``) or no longer has the wish to shut down; the first wish counts."""
        session = self._sessions.get(node)
        if session is not None and (session.asked_to_stop_at is None or not wants):
            session.asked_to_stop_at = now if wants else None

    def unheard_since_asked_to_stop(self, node: NodeId, brokers: Iterable[NodeId]) -> frozenset[NodeId]:
        """Return those of ``brokers`` that have not been heard since ``node`` first asked to shut down.

        A broker without a session has not: it may be the former incarnation of the controller's own node.
        """
        session = self._sessions.get(node)
        since = session.asked_to_stop_at if session is not None else None
        if since is None:
            return frozenset()
        heard_at = {other: each.heard_at for other, each in self._sessions.items()}
        return frozenset(other for other in brokers if (at := heard_at.get(other)) is None or at < since)

    def shutting_down(self, node: NodeId, offset: Offset) -> None:
        """The broker's leaders were moved by records below ``offset``; the first call counts."""
        session = self._sessions.get(node)
        if session is not None and session.shutdown_offset is None:
            session.shutdown_offset = offset

    def shutdown_offset(self, node: NodeId) -> Offset | None:
        """The end of the records that moved this broker's leaders; None when this controller did not move them."""
        session = self._sessions.get(node)
        return None if session is None else session.shutdown_offset

    def lowest_offset(self, nodes: Iterable[NodeId]) -> Offset | None:
        """What every one of ``nodes`` has applied (-1: one of them has not said yet); None without nodes."""
        offsets = [
            NO_OFFSET if session is None else session.metadata_offset for session in map(self._sessions.get, nodes)
        ]
        return min(offsets, default=None)
