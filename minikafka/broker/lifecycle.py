"""This broker's life in the cluster: register, keep the session alive, leave in good order (KAFKA-FACTS 4.3).

Each process is a new incarnation with a fresh id; registering gives it a broker epoch, which fences everything that a
former incarnation may still have under way. A session is what a heartbeat *answered* keeps alive: it is dated from the
moment the answered heartbeat was sent, so a process that was stopped, or whose link is cut, knows by its own clock that
it may have been replaced, before anyone can tell it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikafka import errors as kafka
from minikafka.config import BrokerConfig
from minikafka.ports import World
from minikafka.rpc import Patience, call
from minikafka.tasks import CancelScope, Flag
from minikafka.types import NO_OFFSET, Address, Offset, TopicPartition
from minikafka.wire import messages as m

NO_BROKER_EPOCH = -1
# How soon to try again when no controller is known or it did not answer.
RETRY_PAUSE_S = 0.1
# Who wants to leave, leads nothing and has heard no controller for so long leaves: there is nothing to hand over, and
# when a cluster goes down as a whole no controller will answer any more.
UNHEARD_S = 3.0

SessionAlive = Callable[[], bool]
""":meth:`Lifecycle.session_alive`, for the handlers of requests that only a leader may serve."""

REFUSALS_MAX = 10
"""More do not make the pause between two registrations longer; it ends early when there is news."""


def session_expired(name: TopicPartition, outcome: kafka.Outcome = kafka.NOT_WRITTEN) -> kafka.NotLeaderOrFollower:
    """Return the refusal of a leader whose session with the controller has expired: another one may be elected."""
    return kafka.NotLeaderOrFollower(
        f"{name}: this broker's session with the controller has run out, it may have been replaced", outcome=outcome
    )


class ControllerCall:
    """A broker's own requests to the active controller, one at a time, given up once another node has taken its place.

    The process of the former controller may be stopped or cut off. A failover must not take longer by the timeout of a
    request to it. The caller repeats the request at the new controller, so this is only for requests that may arrive
    twice. ``controller`` returns the active controller's address, None while it is unknown.
    """

    def __init__(self, world: World, controller: Callable[[], Address | None]) -> None:
        self._world = world
        self._controller = controller
        self._sent_to: Address | None = None
        self._under_way: CancelScope | None = None

    def on_news(self) -> None:
        """Give up the request under way if another controller is known. The former one may still lead without it."""
        under_way = self._under_way
        if under_way is not None and self._controller() not in (None, self._sent_to):
            under_way.end()

    async def send(self, controller: Address, request: object, timeout_s: float) -> Any:
        """Return the response, whose errors the caller reads. Raises what `rpc.call` raises; OutcomeUnknown also when
        the request was given up.
        """
        self._sent_to = controller
        try:
            with CancelScope() as self._under_way:
                return await call(self._world.network, controller, request, self._world.clock.now() + timeout_s)
        finally:
            self._under_way = None
        raise kafka.OutcomeUnknown("another node has become the active controller")


class Lifecycle:
    """Registration and heartbeats of one incarnation."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        *,
        cluster_id: str,
        incarnation_id: str,
        previous_broker_epoch: int,
        log_dirs: tuple[str, ...],
        ignores_case: bool,
        advertised: Callable[[], Address],
        other_listeners: Callable[[], str],
        controller: Callable[[], Address | None],
        applied_offset: Callable[[], Offset],
        on_change: Callable[[], None],
        controller_heard_at: Callable[[], float],
        leads_any: Callable[[], bool],
        missing_replicas: Callable[[], tuple[m.MissingReplica, ...]],
    ) -> None:
        self.config = config
        self.world = world
        self.cluster_id = cluster_id
        self.incarnation_id = incarnation_id
        self.previous_broker_epoch = previous_broker_epoch
        self.log_dirs = log_dirs
        self.ignores_case = ignores_case
        self.broker_epoch = NO_BROKER_EPOCH
        self.latest_broker_epoch = NO_BROKER_EPOCH
        """What fetches speak for: also when it is over, until there is a newer one. Without any they would not be
        compared with who is registered now, which may be another process (KIP-903).
        """
        self.is_fenced = True
        self.refused: str | None = None
        """Why the controller does not admit this broker: shown to people who wait."""
        self.may_leave = Flag()
        self._advertised = advertised
        self._other_listeners = other_listeners
        self._controller = controller
        self._applied_offset = applied_offset
        self._on_change = on_change
        self._controller_heard_at = controller_heard_at
        self._leads_any = leads_any
        self._missing_replicas = missing_replicas
        self._answered_at = float("-inf")
        """When the active controller last answered, or this broker began to want to leave."""
        self._wants_to_leave = False
        self._session_timeout_s = config.broker_session_timeout_ms / 1000
        self._session_from = float("-inf")
        self._resumes_at: Offset = 0
        """What must be applied before a session that was interrupted counts again; 0: it is applied."""
        self._news = Flag()
        self._call = ControllerCall(world, controller)
        self._patience = Patience()
        """With heartbeats."""
        self._refusals = 0
        """Of the registration, in a row."""

    def session_alive(self) -> bool:
        """Return True if the last answered heartbeat was sent in time and this broker is not fenced.

        After one that was not in time, the broker must also have applied all that may have been decided meanwhile: its
        leaders may have moved.
        """
        # Each request of a client asks: _is_in_time without a call more.
        return (
            not self.is_fenced
            and self.world.clock.now() - self._session_from <= self._session_timeout_s
            and (not self._resumes_at or self._has_resumed())
        )

    def _has_resumed(self) -> bool:
        if self._applied_offset() < self._resumes_at:
            return False
        self._resumes_at = 0  # the applied offset never falls
        return True

    def _is_in_time(self) -> bool:
        return self.world.clock.now() - self._session_from <= self._session_timeout_s

    def _is_renewed(self) -> bool:
        """Does the session count from a recent heartbeat?

        A controller in this process that was cut off or stopped cannot renew it before a majority of the quorum follows
        again; until then heartbeats are sent more often.
        """
        return self.world.clock.now() - self._session_from <= self._session_timeout_s / 2

    def on_news(self) -> None:
        """The controller or the metadata has moved: a heartbeat now may help this broker or another one.

        While this broker waits for the response of a controller that has been replaced, its session runs out and its
        leaders acknowledge nothing.
        """
        self._news.set()
        self._call.on_news()

    def leave(self) -> None:
        """Ask for a controlled shutdown; ``may_leave`` is set when it is granted."""
        self._wants_to_leave = True
        self._answered_at = self.world.clock.now()
        self._news.set()

    async def run(self) -> None:
        """Register, then beat until cancelled; a broker that the controller forgot registers again."""
        while not self.may_leave.is_set():
            self._news.clear()
            if self.broker_epoch == NO_BROKER_EPOCH:
                settled = await self._register()
            elif self._applied_offset() <= self.broker_epoch:
                # The own registration has not been applied here yet: a heartbeat could not unfence this broker.
                settled = False
            else:
                settled = await self._beat()
            if self._wants_to_leave and self._is_left_alone():
                self.world.events("controlled_shutdown_unheard", node=self.config.node_id)
                self.may_leave.set()
            if not self.may_leave.is_set():
                await self._pause(settled)

    def _is_left_alone(self) -> bool:
        return self.world.clock.now() - self._answered_at >= UNHEARD_S and not self._leads_any()

    async def _pause(self, settled: bool) -> None:  # noqa: FBT001 - one caller, one meaning
        interval = self.config.broker_heartbeat_interval_ms / 1000
        pause = interval if settled else min(RETRY_PAUSE_S * 2**self._refusals, max(interval, RETRY_PAUSE_S))
        await self._news.wait(self.world.clock.now() + pause)

    async def _register(self) -> bool:
        controller = self._controller()
        if controller is None:
            return False
        sent, heard_at = self.world.clock.now(), self._controller_heard_at()
        request = m.BrokerRegistrationRequest(
            broker_id=self.config.node_id,
            cluster_id=self.cluster_id,
            incarnation_id=self.incarnation_id,
            host=self._advertised().host,
            port=self._advertised().port,
            listeners=self._other_listeners(),
            rack=self.config.broker_rack or None,
            previous_broker_epoch=self.previous_broker_epoch,
            current_metadata_offset=NO_OFFSET if self._wants_to_leave else self._applied_offset(),
            log_dirs=self.log_dirs,
            ignores_case=self.ignores_case,
            min_insync_replicas=self.config.min_insync_replicas,
        )
        response = await self._ask(request, self._session_timeout_s / 3)
        if not isinstance(response, m.BrokerRegistrationResponse):
            return False
        if response.error_code:
            self.refused = f"{kafka.error_name(response.error_code)}: {response.error_message}"
            self.world.events("registration_refused", node=self.config.node_id, why=self.refused)
            if response.error_code == kafka.InconsistentClusterId.code:
                raise kafka.InconsistentClusterId(response.error_message)
            # DUPLICATE_BROKER_REGISTRATION: a former incarnation's session has to run out first.
            self._refusals = min(self._refusals + 1, REFUSALS_MAX)
            return False
        self.refused = None
        self._refusals = 0
        self.broker_epoch = self.latest_broker_epoch = response.broker_epoch
        self.world.events("registered", node=self.config.node_id, broker_epoch=self.broker_epoch)
        if not response.is_fenced:
            self._resumes_at = self.broker_epoch + 1
            self._begin_session(sent, heard_at)
            self._set_fenced(fenced=False)
            if self._controller() == controller and not self._wants_to_leave:
                # What has moved meanwhile was this registration: there is nothing that a heartbeat could add.
                self._news.clear()
        self._on_change()
        return not self.is_fenced

    async def _beat(self) -> bool:
        sent, heard_at = self.world.clock.now(), self._controller_heard_at()
        request = m.BrokerHeartbeatRequest(
            broker_id=self.config.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._applied_offset(),
            want_shut_down=self._wants_to_leave,
            missing_replicas=self._missing_replicas() if self.is_fenced else (),
        )
        timeout_s = self._patience.seconds(self._session_timeout_s / 3)
        response = await self._ask(request, timeout_s)
        took_s = self.world.clock.now() - sent
        if response is not None:
            self._patience.answered(took_s)
        elif took_s >= timeout_s:
            self._patience.lost()
        if not isinstance(response, m.BrokerHeartbeatResponse):
            return False
        if response.error_code in (kafka.StaleBrokerEpoch.code, kafka.BrokerIdNotRegistered.code):
            return self._register_again(kafka.error_name(response.error_code))
        if response.error_code:
            return False
        if not self._is_in_time():
            self._resumes_at = response.metadata_offset
        self._begin_session(sent, heard_at)
        if self.is_fenced != response.is_fenced:
            self._set_fenced(fenced=response.is_fenced)
            self._on_change()
        if response.should_shut_down and request.want_shut_down:
            self.may_leave.set()
        elif response.should_shut_down:
            # Another process has asked in this broker's name.
            return self._register_again("the controller confirmed a shutdown that this broker had not requested")
        return not self.is_fenced and not self._wants_to_leave and self._is_renewed()

    def _register_again(self, why: str) -> bool:
        """Give up the registration; the next turn registers. Return False, as a heartbeat does that changed nothing."""
        self.world.events("session_lost", node=self.config.node_id, why=why)
        self.broker_epoch = NO_BROKER_EPOCH
        self.is_fenced = True
        self._on_change()
        return False

    def _begin_session(self, sent: float, heard_at: float) -> None:
        """What was ``sent`` then was answered. A controller in this same process answers also when both are cut off
        together: it counts only as far as the quorum's majority has followed it, since from then on another may have
        been elected. It may have resigned since it answered, so what counts then is ``heard_at``, when a majority had
        followed it at the time of sending.
        """
        heard_since = self._controller_heard_at()
        if heard_since == float("inf"):
            heard_since = heard_at
        self._session_from = max(self._session_from, min(sent, heard_since))

    def _set_fenced(self, *, fenced: bool) -> None:
        self.world.events("session_fenced" if fenced else "session_unfenced", node=self.config.node_id)
        self.is_fenced = fenced

    async def _ask(self, request: object, timeout_s: float) -> object | None:
        """One call to the active controller; None when there is no answer, or none from the active one."""
        address = self._controller()
        if address is None:
            return None
        try:
            response: object = await self._call.send(address, request, timeout_s)
        except (kafka.WorldError, kafka.ProtocolError) as error:
            self.world.events("controller_silent", node=self.config.node_id, why=f"{type(error).__name__}: {error}")
            return None
        if getattr(response, "error_code", 0) == kafka.NotController.code:
            return None
        self._answered_at = self.world.clock.now()
        return response
