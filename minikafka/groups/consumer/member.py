"""A member of the consumer protocol, seen from the client: which heartbeat is due, what a response changes (KIP-848).

::

    outside --heartbeat with epoch 0--> member --new assignment--> reconciling --taken over--> acknowledging --+
       ^                                  ^                                                                    |
       |                                  +------------------- heartbeat with all that it owns ----------------+
       +-- fenced, unknown, left

Rules for this file: synchronous; no clock. The driver sends what :meth:`ConsumerMember.request` returns, one request at
a time, and reports what became of it.

- What must be revoked is owned until :meth:`ConsumerMember.revoked` says that the application is done with it; only the
  heartbeat after that confirms it. So the coordinator never gives a partition away that is still read.
- What is added is owned when :meth:`ConsumerMember.taken` says so, and only if it is still assigned then. A heartbeat
  that lists partitions lists these as well: for the coordinator, a partition that is not listed is given up. It would
  assign it to another member, and if its response is lost or slow, this one takes it, too.
- Fields are sent when they have changed, and all of them after a request without a response: nobody knows what the
  coordinator has heard. A heartbeat that says everything is answered with the whole assignment. Each tenth one does: a
  copy of a former one that arrived late may have got the response with the newest assignment in its place.
- Each time the member is outside of the group, a new ``life`` begins: what was begun in an earlier one changes nothing.

The rule as of Kafka 4.x: ``ConsumerMembershipManager`` and ``ConsumerHeartbeatRequestManager``.
"""

from __future__ import annotations

from dataclasses import dataclass

from minikafka.errors import FencedMemberEpoch, ProtocolError, UnknownMemberId
from minikafka.groups.consumer.group import JOIN, LEAVE, LEAVE_STATIC
from minikafka.groups.consumer.heartbeat import flat, unflat
from minikafka.groups.consumer.records import TopicIdPartition
from minikafka.wire.group_messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

FENCED = (FencedMemberEpoch, UnknownMemberId)
"""Errors after which the member gives up all partitions and joins again, with the same id."""

FULL_EVERY = 10
"""Heartbeats, of which one says everything."""

Owned = frozenset[TopicIdPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a member wants of its group, at present."""

    topics: tuple[str, ...] = ()
    regex: str | None = None
    """In RE2's syntax; the coordinator matches it against whole names."""


class ConsumerMember:
    """One consumer in one group, from its first join to its end."""

    def __init__(
        self,
        group_id: str,
        member_id: str,
        *,
        rebalance_timeout_ms: int,
        instance_id: str | None = None,
        assignor: str | None = None,
        client_id: str = "",
    ) -> None:
        """Args: ``assignor`` is the server-side assignor; None leaves the choice to the coordinator."""
        self.group_id = group_id
        self.member_id = member_id
        self.instance_id = instance_id
        self.epoch = JOIN
        """0: outside of the group."""
        self.life = 0
        """Rises when the member leaves the group, whatever the reason."""
        self.owned: Owned = frozenset()
        """What the application may use."""
        self.assigned: Owned = frozenset()
        """What the coordinator assigned last."""
        self.interval_ms: int | None = None
        """Time between heartbeats as the coordinator wants it; None before the first response."""
        self.may_be_known = False
        """True if the coordinator may know it: a join was sent, with any outcome. Then it has to leave."""
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._assignor = assignor
        self._client_id = client_id
        self._wishes = Wishes()
        self._heard: tuple[Wishes, Owned | None] | None = None
        """What the coordinator is known to have heard; None: send everything."""
        self._in_flight: tuple[Wishes, Owned | None] | None = None
        """What the coordinator will have heard when it responds."""
        self._since_full = 0
        """Heartbeats since the last one that said everything."""

    @property
    def is_outside(self) -> bool:
        """Return True if it owns nothing and has to join."""
        return self.epoch == JOIN

    @property
    def is_due(self) -> bool:
        """Return True if a heartbeat has news, and is sent before its interval ends."""
        return self.is_outside or (self._heard is not None and self._heard != (self._wishes, self.owned))

    def wish(self, wishes: Wishes) -> None:
        """Subscribe to something else."""
        self._wishes = wishes

    # ---- heartbeats ----

    def request(self) -> ConsumerGroupHeartbeatRequest:
        """Return the next heartbeat; the one before it counts as unanswered if nothing was reported."""
        if self._in_flight is not None:
            self.unanswered()
        is_full = self.is_outside or self._heard is None or self._since_full + 1 >= FULL_EVERY
        heard = None if is_full else self._heard
        self._since_full = 0 if is_full else self._since_full + 1
        wishes_are_new = heard is None or heard[0] != self._wishes
        owned_is_new = heard is None or heard[1] != self.owned
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=self._rebalance_timeout_ms if is_full else -1,
            subscribed_topic_names=self._wishes.topics if wishes_are_new else None,
            # An empty one takes the former expression back.
            subscribed_topic_regex=(self._wishes.regex or "") if wishes_are_new else None,
            server_assignor=self._assignor if is_full else None,
            topic_partitions=flat(self.owned | self.assigned) if owned_is_new else None,
            client_id=self._client_id,
        )
        # A coordinator that knows the member takes a join for a late copy: it confirms no revocation.
        is_join_of_known = self.is_outside and self.may_be_known
        self._in_flight = self._wishes, None if is_join_of_known else self.owned
        self.may_be_known = True
        return request

    def answered(self, response: ConsumerGroupHeartbeatResponse) -> None:
        """Take a response without an error to the request in flight."""
        if self._in_flight is None:
            return  # fenced or left meanwhile
        wishes, owned = self._in_flight
        self._in_flight = None
        self._heard = wishes, owned
        self.epoch = response.member_epoch
        self.interval_ms = response.heartbeat_interval_ms
        if response.assignment is None:
            return
        before, self.assigned = self.assigned, unflat(response.assignment)
        if self.assigned != before and not self.to_revoke and (not self.to_take or before - self.assigned):
            # Something was taken back before it was taken: the coordinator waits to hear that it is not owned.
            self._heard = wishes, None

    def unanswered(self) -> None:
        """No response came: the coordinator may have heard the request, or not."""
        self._in_flight = None
        self._heard = None

    def is_fencing(self, error: ProtocolError) -> bool:
        """Return True if an error means that the group continues without this member, which may join again."""
        return isinstance(error, FENCED)

    # ---- partitions ----

    @property
    def to_revoke(self) -> Owned:
        """What it owns and must give up."""
        return self.owned - self.assigned

    @property
    def to_take(self) -> Owned:
        """What it is assigned and does not use yet."""
        return self.assigned - self.owned

    def revoked(self, partitions: Owned) -> None:
        """The application does not use these any more, and what it had done with them is committed."""
        self.owned -= partitions

    def taken(self, partitions: Owned) -> None:
        """These are read from now on; those that are assigned no longer are passed over."""
        self.owned |= partitions & self.assigned

    # ---- the end ----

    def lose(self, error: ProtocolError | None = None) -> Owned:
        """The group goes on without this member; return what it had. The next request joins.

        Args:
            error: The fencing response, if there was one. A fenced member is still known by its coordinator.
        """
        lost = self.owned
        self.owned = self.assigned = frozenset()
        self.epoch = JOIN
        self.life += 1
        self._heard = self._in_flight = None
        self.may_be_known = isinstance(error, FencedMemberEpoch)
        return lost

    def leaving(self) -> ConsumerGroupHeartbeatRequest:
        """Return the request that leaves. A static member leaves for a restart: its partitions wait for it."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=LEAVE if self.instance_id is None else LEAVE_STATIC,
            instance_id=self.instance_id,
        )
