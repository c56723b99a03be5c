"""When a broker's process has surely ended: its connection ended, and its address refuses a new one.

Each voter of the quorum holds one request at each unfenced broker. The operating system closes the connections of a
dead process at once and refuses new ones, so that the active controller fences such a broker without waiting for its
session. The other voters only remember that an address has answered and that its connection has ended, for the case
that they become the active controller.

::

    not reached   --answered-->   held        the address can be reached from here
    held          --ended-->      ended       the process may have died, or the network reset the connection
    ended         --answered-->   held        it lives
    ended         --refused-->    not reached, and evidence to fence the broker

Each of these is needed:

1. An end alone is no evidence: networks reset connections, servers close idle ones.
2. A refusal alone is no evidence: a firewall that rejects packets answers in the broker's place. Only an address that
   has answered counts, and after a fencing it must answer again.
3. The refused connection must begin after the end, and both belong to one registration: a broker that has restarted
   and registered again is another process. The decision compares the broker epoch once more.
4. A broker that was heard after the refused connection began lives: the decision ignores the evidence.

One observer is enough, the active controller itself. A second one could only prevent a needless fencing, where
something on the way between the controller and a living broker begins to refuse (a new REJECT rule). It would add a
round trip to each failover, and without a third broker the session would decide. Nor are refusals counted: two
refused connections of one node take the same way and show no more than one.

Silence (a cut cable, a stopped process, a machine without power) is no refusal: such a broker keeps its session.
Fencing is always safe, because epochs and sessions decide which broker may write.
"""

from __future__ import annotations

from dataclasses import dataclass

from minikafka.types import NodeId, Offset


@dataclass(frozen=True, slots=True)
class Refusal:
    """Evidence that the process of one registration has ended."""

    broker_id: NodeId
    broker_epoch: Offset
    begun_at: float
    """When the refused connection was begun, in seconds of the monotonic clock."""


class HeldConnection:
    """What is known of the address of one registration. Times are monotonic seconds."""

    def __init__(self, broker_id: NodeId, broker_epoch: Offset) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self._is_reached = False
        self._ended_at: float | None = None

    @property
    def is_held(self) -> bool:
        """The last request was answered: the next one may be held by the broker."""
        return self._is_reached and self._ended_at is None

    def answered(self) -> None:
        """The broker has answered a request."""
        self._is_reached, self._ended_at = True, None

    def ended(self, now: float) -> None:
        """A request has failed, or the broker has said that it stops."""
        if self.is_held:
            self._ended_at = now

    def refused(self, begun_at: float) -> Refusal | None:
        """A connection that was begun at ``begun_at`` was refused; the evidence, if it is one."""
        if self._ended_at is None or begun_at < self._ended_at:
            return None
        self._is_reached, self._ended_at = False, None
        return Refusal(self.broker_id, self.broker_epoch, begun_at)
