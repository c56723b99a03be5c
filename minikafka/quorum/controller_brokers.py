"""Brokers at the controller: sessions, evidence that one has ended, registration, heartbeats and fencing.

A session (:class:`Sessions`) says when the active controller last heard from a broker (S14, KAFKA-FACTS 4.3). Sessions
are soft state of one controller's reign: they are not in the metadata log, and a new controller restarts the clocks.
Only its predecessor's session is dated from their last contact: the predecessor's silence is why there is a new
controller, and counting it again would add the time of an election to the failover (DESIGN, rehearsal). A broker is
silent at the very moment its deadline comes, so a timer at `next_deadline` suffices.

A broker's process has surely ended if its connection ended and its address refuses a new one (:class:`HeldConnection`).
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

Registration, heartbeats, fencing and controlled shutdown (KAFKA-FACTS 4.3; KIP-631, KIP-841, KIP-966)::

    (unknown)      --register-->                     fenced, or, when it has applied all that is committed, unfenced
    fenced         --caught up, does not want to be fenced-->       unfenced: leaders for partitions that waited for it
    unfenced       --session expired, wants to be fenced-->         fenced: out of all ISRs, its leaders moved
    unfenced       --address refuses connections-->                 fenced: as above (:class:`HeldConnection`)
    unfenced       --wants to shut down, no partition would rest on replicas that may all be dead-->
                                                     shutting down: out of all ISRs, its leaders moved
    shutting down  --leads nothing, others know-->   fenced, and may stop
    any            --a new incarnation registers-->  fenced: as above; after an unclean stop also out of all ELRs
    fenced         --unregistered, holds no replica-->      (unknown)

Offsets that brokers report (``current_metadata_offset``) are ends: what they have applied lies below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from minikafka.addresses import is_host, parse_listeners
from minikafka.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidConfig,
    InvalidRequest,
)
from minikafka.quorum.decision import ClusterPolicy, Decision
from minikafka.quorum.elections import checked_broker, with_broker, without_broker
from minikafka.quorum.image import BrokerImage, MetadataImage
from minikafka.quorum.records import BrokerRegistrationChange, MetadataRecord, RegisterBroker, UnregisterBroker
from minikafka.replication.high_watermark import effective_min_isr
from minikafka.types import INTERNAL_TOPICS, METADATA_TOPIC, NO_OFFSET, NODE_ID_MAX, Address, NodeId, Offset, TopicId
from minikafka.wire import messages as m


@dataclass(slots=True)
class _Session:
    last_contact: float
    heard_at: float | None = None
    """When it was heard in this reign; ``last_contact`` is a grace period for a broker that was not."""
    spared_until: float = float("-inf")
    """It does not end before: the controller itself is cut off, or has just been stopped."""
    metadata_offset: Offset = NO_OFFSET
    shutdown_offset: Offset | None = None
    asked_to_stop_at: float | None = None
    asked_for_life_at: float | None = None
    """When the newest request was sent that showed its incarnation to be alive (:meth:`Sessions.lives`)."""


class Sessions:
    """Sessions of brokers: which of them are alive. All times are monotonic seconds."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sessions: dict[NodeId, _Session] = {}
        self._restarted_at = float("-inf")
        self._resumed_at = float("-inf")
        """When this controller could hear again after an interruption in this reign."""

    def restart(self, nodes: Iterable[NodeId], now: float, last_contacts: Mapping[NodeId, float] | None = None) -> None:
        """Begin a reign: every one of ``nodes`` was heard now, but those in ``last_contacts`` then."""
        known = last_contacts or {}
        self._sessions = {node: _Session(min(now, known.get(node, now))) for node in sorted(nodes)}
        self._restarted_at = now
        self._resumed_at = float("-inf")

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
        return session is not None and now < self._end(session)

    def may_live(self, node: NodeId, now: float, *, patience_s: float) -> bool:
        """Return True if the registered incarnation of the broker may live, so that no other one may register.

        A broker that was not heard in this reign has a session only for the case that it lives. A living one is heard
        within ``patience_s``; after that a restarted process need not wait for the end of a session that its own
        former incarnation had with another controller (2 of 3 brokers die, the controller among them, and return).
        If the former incarnation lives after all, the registration fences it, as the end of its session would. The
        same holds for a session that only an interruption of this controller has extended (:meth:`spare`).
        """
        session = self._sessions.get(node)
        if session is None or not self.alive(node, now):
            return False
        is_in_time = session.heard_at is not None and now < session.heard_at + self._timeout_s
        return is_in_time or now < max(session.spared_until, max(self._restarted_at, self._resumed_at) + patience_s)

    def _end(self, session: _Session) -> float:
        return max(max(session.last_contact, self._resumed_at) + self._timeout_s, session.spared_until)

    def heard_since(self, node: NodeId, moment: float) -> bool:
        """Return True if the broker was heard after ``moment``."""
        session = self._sessions.get(node)
        return session is not None and session.last_contact > moment

    def spare(self, now: float, *, connected_at: float, resumed_at: float) -> None:
        """Give silent brokers time if it is the controller that was cut off or stopped.

        ``connected_at``: the newest time at which a majority of the quorum surely followed this controller. If that is
        a third of a session ago, the silence of brokers shows nothing, and no session ends. A controller that fenced
        them as soon as it woke would leave its partitions with too few in-sync replicas, although all brokers live.

        ``resumed_at``: when a majority was heard again after the latest such interruption. From then on every broker
        has a full session, as with a new controller: a heartbeat that was lost is repeated only after its timeout.
        """
        if resumed_at > self._restarted_at:
            self._resumed_at = resumed_at
        if now - connected_at > self._timeout_s / 3:
            for node in self.expired(now):
                self._sessions[node].spared_until = now + self._timeout_s / 4

    def expired(self, now: float) -> list[NodeId]:
        """Brokers that were silent for the session timeout, longest silence first."""
        silent = [(each.last_contact, node) for node, each in self._sessions.items() if not self.alive(node, now)]
        return [node for _, node in sorted(silent)]

    def next_deadline(self) -> float | None:
        """When the next session ends unless its broker is heard."""
        return min(map(self._end, self._sessions.values()), default=None)

    # ---- controlled shutdown ----

    def asked_to_stop(self, node: NodeId, now: float, *, wants: bool = True) -> None:
        """The broker's heartbeat has (``wants``) or no longer has the wish to shut down; the first wish counts."""
        session = self._sessions.get(node)
        if session is not None and (session.asked_to_stop_at is None or not wants):
            session.asked_to_stop_at = now if wants else None

    def lives(self, node: NodeId, asked_at: float, answered_at: float) -> None:
        """The registered incarnation has answered a request that was sent at ``asked_at``.

        That counts as a heartbeat. Otherwise, of the replicas that stay when a broker shuts down, the session of one
        that lives could end before that of a dead one, because it had been cut off until a moment ago. The dead one
        would be left alone in the ISR, and lead again without what it lost.
        """
        session = self._sessions.get(node)
        if session is not None:
            session.asked_for_life_at = max(session.asked_for_life_at or asked_at, asked_at)
            self.touched(node, answered_at)

    def silent_since_asked_to_stop(self, node: NodeId, brokers: Iterable[NodeId]) -> frozenset[NodeId]:
        """Return those of ``brokers`` that may have died before ``node`` first asked to shut down.

        A heartbeat shows nothing: it may have been under way for as long as this controller stood still. Only an
        answer to a later question does (:meth:`lives`). A broker without a session may be the former incarnation of
        the controller's own node.
        """
        session = self._sessions.get(node)
        since = session.asked_to_stop_at if session is not None else None
        if since is None:
            return frozenset()
        asked_at = {other: each.asked_for_life_at for other, each in self._sessions.items()}
        return frozenset(other for other in brokers if (at := asked_at.get(other)) is None or at < since)

    def shutting_down(self, node: NodeId, offset: Offset) -> None:
        """The broker's leaders were moved by records below ``offset``; the first call counts."""
        session = self._sessions.get(node)
        if session is not None and session.shutdown_offset is None:
            session.shutdown_offset = offset

    def not_shutting_down(self, node: NodeId) -> None:
        """The broker was fenced or unfenced: where its leaders moved before does not count for its next shutdown."""
        session = self._sessions.get(node)
        if session is not None:
            session.shutdown_offset = None

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


PORT_MAX = 65535

# Every broker keeps them, and every snapshot.
LISTENERS_MAX = 20
LOG_DIRS_MAX = 20
ID_LENGTH_MAX = 64
RACK_LENGTH_MAX = 255


def register(
    policy: ClusterPolicy,
    image: MetadataImage,
    request: m.BrokerRegistrationRequest,
    *,
    may_live: bool,
    caught_up: bool = False,
) -> Decision[m.BrokerRegistrationResponse]:
    """A broker's process introduces itself; its broker epoch is the offset that the record gets (-1 in the answer).

    ``may_live``: the registered incarnation may live (:meth:`Sessions.may_live`). ``caught_up``: the broker has
    applied all that is committed. Raises InconsistentClusterId, InvalidRequest, or DuplicateBrokerRegistration while
    another incarnation may live. The same incarnation again (its answer was lost) keeps its epoch.

    A broker that was never here before holds no replica: nothing is decided by letting it in, so one that has caught up
    need not wait for a heartbeat that says so. Who comes back always does: its replicas' leaders hang on it.
    """
    if request.cluster_id != policy.cluster_id:
        raise InconsistentClusterId(
            f"the broker belongs to cluster {request.cluster_id!r}, this is {policy.cluster_id!r}"
        )
    if not 0 <= request.broker_id <= NODE_ID_MAX or not 0 < len(request.incarnation_id) <= ID_LENGTH_MAX:
        raise InvalidRequest(
            f"a registration needs a node id from 0 to {NODE_ID_MAX} and an incarnation id of 1 to {ID_LENGTH_MAX} "
            "characters"
        )
    if request.rack is not None and (len(request.rack) > RACK_LENGTH_MAX or not request.rack.isprintable()):
        raise InvalidRequest(f"rack={request.rack[:20]!r}: at most {RACK_LENGTH_MAX} printable characters are taken")
    try:
        others = parse_listeners(request.listeners, "listeners")
    except InvalidConfig as error:
        raise InvalidRequest(str(error)) from error
    if len(others) > LISTENERS_MAX:
        raise InvalidRequest(f"{len(others)} listeners are more than {LISTENERS_MAX}")
    for address in (Address(request.host, request.port), *(each.address for each in others)):
        if not is_host(address.host) or not 0 < address.port <= PORT_MAX:
            # Every broker and client would try to connect to it.
            raise InvalidRequest(f"{address.host[:80]!r}, port {address.port}: nobody could listen there")
    if len(request.log_dirs) > LOG_DIRS_MAX or any(len(each) > ID_LENGTH_MAX for each in request.log_dirs):
        raise InvalidRequest(f"log_dirs: at most {LOG_DIRS_MAX} ids of {ID_LENGTH_MAX} characters are taken")
    if request.ignores_case:
        _check_case(image, request.broker_id)
    present = image.brokers.get(request.broker_id)
    registration = RegisterBroker(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        host=request.host,
        port=request.port,
        rack=request.rack,
        listeners=",".join(map(str, others)) or None,
        log_dirs=request.log_dirs or None,
        ignores_case=request.ignores_case or None,
        min_insync_replicas=request.min_insync_replicas if request.min_insync_replicas > 1 else None,
    )
    if present is None:
        registration = replace(registration, fenced=not caught_up)
        response = m.BrokerRegistrationResponse(is_fenced=not caught_up)
        return Decision(records=(registration,), response=response, cause="a new broker registered")
    if present.incarnation_id == request.incarnation_id:
        return Decision(response=m.BrokerRegistrationResponse(broker_epoch=present.broker_epoch))
    # The mark of a clean stop is the last thing that a process leaves in its data directory: a broker that shows the
    # mark of the registered incarnation comes after it, however lately that one was heard.
    clean = request.previous_broker_epoch == present.broker_epoch
    if may_live and not clean:
        raise DuplicateBrokerRegistration(
            f"broker {request.broker_id} is registered from {present.address}, and that process may still run: its "
            "session has not ended"
        )
    after = image.staged((registration,))
    # First what follows from it: if the rest is never recorded, the broker registers again.
    return Decision(
        records=(*without_broker(policy, after, request.broker_id, unclean_stop=not clean, was=present), registration),
        divisible=True,
        response=m.BrokerRegistrationResponse(),
        cause=f"broker {request.broker_id} registered again after {'a clean' if clean else 'an unclean'} stop",
    )


def _check_case(image: MetadataImage, node: NodeId) -> None:
    """Raise InvalidRequest if a broker whose disk ignores case would keep two topics of this cluster in one folder.

    As long as it is registered, no such topic is created (``controller_topics.py``).
    """
    seen: dict[str, str] = {}
    for name in sorted({*image.topics, *INTERNAL_TOPICS, METADATA_TOPIC}):
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidRequest(
                f"the file system of broker {node}'s data directory ignores case, so topics {other!r} and {name!r} "
                "would share a folder; move log.dirs to a file system that distinguishes case, or delete one of them "
                "at another broker"
            )


def unregister(image: MetadataImage, request: m.UnregisterBrokerRequest) -> Decision[m.UnregisterBrokerResponse]:
    """Forget a broker that is gone for good. Raises BrokerIdNotRegistered, or InvalidRequest while it is used.

    Kafka also forgets brokers that live or hold replicas. Here a broker that registers for the first time holds none:
    nothing is decided about the replicas of one that comes back under its old id. With replicas left, a data directory
    that an unclean stop has emptied would count as one of those that may lead without loss.
    """
    node = request.broker_id
    broker = image.brokers.get(node)
    if broker is None:
        raise BrokerIdNotRegistered(f"no broker {node} is registered, only {sorted(image.brokers)}")
    if not broker.fenced:
        raise InvalidRequest(f"broker {node} is alive; stop it first", member="broker_id")
    held = [f"{topic.name}-{each.partition}" for topic, each in image.sorted_partitions() if node in each.replicas]
    if held:
        some = ", ".join(held[:3]) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
        raise InvalidRequest(
            f"broker {node} has replicas of {some}; move them to other brokers, or delete the topics, first",
            member="broker_id",
        )
    return Decision(
        records=(UnregisterBroker(broker_id=node, broker_epoch=broker.broker_epoch),),
        response=m.UnregisterBrokerResponse(),
        cause=f"broker {node} was unregistered",
    )


def fence(policy: ClusterPolicy, image: MetadataImage, broker: BrokerImage) -> tuple[MetadataRecord, ...]:
    """Records that fence ``broker``: out of every ISR, its leaders moved, and then fenced. Until it is, a controller
    that finds only some of them waits for its session or a refused connection, and fences it again.
    """
    fenced = BrokerRegistrationChange(
        broker_id=broker.node_id,
        broker_epoch=broker.broker_epoch,
        fenced=True,
        in_controlled_shutdown=False if broker.in_controlled_shutdown else None,
    )
    return *without_broker(policy, image.staged((fenced,)), broker.node_id), fenced


def broker_lost(policy: ClusterPolicy, image: MetadataImage, node: NodeId) -> Decision[None]:
    """S14, S19: the session of ``node`` has ended. Nothing is left to decide for a broker that is fenced or unknown."""
    broker = image.brokers.get(node)
    if broker is None or broker.fenced:
        return Decision(response=None)
    return Decision(
        records=fence(policy, image, broker),
        divisible=True,
        response=None,
        cause=f"broker {node} was silent for its session timeout",
    )


def broker_refused(
    policy: ClusterPolicy, image: MetadataImage, refusal: Refusal, *, is_heard_since: bool
) -> Decision[None]:
    """The connection to a broker ended, and its address refused a new one (:class:`HeldConnection`): fence it.

    Nothing is decided for a broker that is fenced, unknown or registered again, nor, ``is_heard_since``, for one that
    was heard after the refused connection began.
    """
    broker = image.brokers.get(refusal.broker_id)
    if broker is None or broker.fenced or broker.broker_epoch != refusal.broker_epoch or is_heard_since:
        return Decision(response=None)
    return Decision(
        records=fence(policy, image, broker),
        divisible=True,
        response=None,
        cause=f"the process of broker {broker.node_id} has ended: connection refused by {broker.address}",
    )


def heartbeat(
    policy: ClusterPolicy,
    image: MetadataImage,
    request: m.BrokerHeartbeatRequest,
    *,
    lowest_other_offset: Offset | None,
    shutdown_offset: Offset,
    silent: frozenset[NodeId] = frozenset(),
) -> Decision[m.BrokerHeartbeatResponse]:
    """A sign of life, and the wishes of a broker (the table in the file's head). Raises StaleBrokerEpoch.

    ``lowest_other_offset``: what every other unfenced broker has applied (None: there is no other);
    ``shutdown_offset``: the end of the records that moved this broker's leaders away. A broker may stop when it leads
    nothing and the others have read that far, so that nobody still asks it. ``silent``: brokers that may have died
    before this broker first asked to shut down; see :func:`_rests_on_silent`.
    """
    broker = checked_broker(image, request.broker_id, request.broker_epoch)
    caught_up = request.current_metadata_offset > broker.broker_epoch
    if broker.fenced:
        if request.want_shut_down or request.want_fence or not caught_up:
            return _answer(caught_up=caught_up, fenced=True, stop=request.want_shut_down)
        if not all(_is_present(image, each) for each in request.missing_replicas):
            # Newer states must be known to the broker first. Or this is a late copy, and the broker has been unfenced
            # since, holds the replica again, and may be the only one: it would be taken for lost.
            return _answer(caught_up=False, fenced=True)
        missing = frozenset((each.topic_id, each.partition) for each in request.missing_replicas)
        return _unfence(policy, image, broker, missing)
    if request.want_fence:
        why = "broker asked for it"
    elif broker.in_controlled_shutdown:
        others_know = lowest_other_offset is None or lowest_other_offset >= shutdown_offset
        if image.leads_any(broker.node_id) or not others_know:
            return _answer(caught_up=caught_up, fenced=False)
        # A broker that does not want to stop was impersonated: its next heartbeat unfences it.
        why = "controlled shutdown is complete"
    elif request.want_shut_down and not _rests_on_silent(policy, image, broker.node_id, silent):
        return _begin_shutdown(policy, image, broker, caught_up=caught_up)
    else:
        return _answer(caught_up=caught_up, fenced=False)
    records = fence(policy, image, broker)
    return _answer(records, why, caught_up=caught_up, fenced=True, stop=request.want_shut_down)


def _is_present(image: MetadataImage, missing: m.MissingReplica) -> bool:
    """Return True if the partition is in the state in which the broker missed its replica, or if it did not say."""
    topic = image.topic_by_id(missing.topic_id)
    known = topic.partitions[missing.partition : missing.partition + 1] if topic is not None else ()
    return missing.partition_epoch == -1 or any(each.partition_epoch == missing.partition_epoch for each in known)


def _unfence(
    policy: ClusterPolicy, image: MetadataImage, broker: BrokerImage, missing: frozenset[tuple[TopicId, int]]
) -> Decision[m.BrokerHeartbeatResponse]:
    unfenced = BrokerRegistrationChange(broker_id=broker.node_id, broker_epoch=broker.broker_epoch, fenced=False)
    after = image.staged((unfenced,))
    changes = list(with_broker(policy, after, broker.node_id, missing))
    # Nothing may rest on a log that is lost once the broker may lead.
    lost = [each for each in changes if (each.topic_id, each.partition) in missing]
    others = [each for each in changes if (each.topic_id, each.partition) not in missing]
    records: tuple[MetadataRecord, ...] = (*lost, unfenced, *others)
    return _answer(records, f"broker {broker.node_id} has caught up", caught_up=True, fenced=False)


def _rests_on_silent(policy: ClusterPolicy, image: MetadataImage, node: NodeId, silent: frozenset[NodeId]) -> bool:
    """Return True if some partition without ``node`` would rest on replicas that may all be dead already.

    The broker that asks to shut down then stays until one of them answers or their sessions end. Otherwise committed
    records are lost although one replica was whole all the time: 1. replica 3 of [1,2,3] loses power, and with it what
    its page cache held; 2. replica 2 is cut off and fenced; 3. replica 1, which leads, shuts down within the session
    timeout of 3: the ISR is {3}; 4. replica 3 restarts, leaves the ISR after its unclean stop, and leads as the last
    known leader. Steps 2 and 3 may also change places: two silent replicas are as good as one. A replica that the
    shutdown makes eligible to lead (KIP-966), because fewer than min.insync.replicas are left, is not lost, so nothing
    waits for it.
    """
    for topic, partition in image.sorted_partitions():
        rest = [member for member in partition.isr if member != node]
        if node in partition.isr and rest and silent.issuperset(rest):
            least = effective_min_isr(policy.min_insync_replicas(topic), partition.replicas, partition.adding)
            if len(rest) >= least or not policy.eligible_leader_replicas_enable:
                return True
    return False


def _begin_shutdown(
    policy: ClusterPolicy, image: MetadataImage, broker: BrokerImage, *, caught_up: bool
) -> Decision[m.BrokerHeartbeatResponse]:
    leaving = BrokerRegistrationChange(
        broker_id=broker.node_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=True
    )
    after = image.staged((leaving,))
    records: tuple[MetadataRecord, ...] = (*without_broker(policy, after, broker.node_id), leaving)
    return _answer(records, f"broker {broker.node_id} shuts down", caught_up=caught_up, fenced=False)


def _answer(
    records: tuple[MetadataRecord, ...] = (), cause: str = "", *, caught_up: bool, fenced: bool, stop: bool = False
) -> Decision[m.BrokerHeartbeatResponse]:
    response = m.BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=fenced, should_shut_down=stop)
    return Decision(records=records, divisible=True, response=response, cause=cause)
