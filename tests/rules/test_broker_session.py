"""A broker's session with the controller, by its own clock: from when it counts, and who may vouch for it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from minikafka.broker.lifecycle import UNHEARD_S, Lifecycle
from minikafka.config import BrokerConfig
from minikafka.errors import DuplicateBrokerRegistration, OutcomeUnknown, StaleBrokerEpoch
from minikafka.ports import World
from minikafka.sim.world import SimWorld
from minikafka.types import Address
from minikafka.wire.codec import encode_response
from minikafka.wire.messages import BrokerHeartbeatResponse, BrokerRegistrationResponse

SESSION_S: Final = BrokerConfig().broker_session_timeout_ms / 1000
NOT_LEADING: Final = float("inf")
"""What the quorum's member says of itself when it does not lead: others vouch then."""


class Controller:
    """The active controller, in the broker's own process or not: a network that answers for it."""

    def __init__(self, *, heard_at: float) -> None:
        self.heard_at = heard_at
        """When a majority of voters last followed this process."""
        self.metadata_offset = 1
        """The end of the metadata, as heartbeats say it."""
        self.asked: list[tuple[str, str]] = []
        """Host and API of each request."""
        self.silent: set[str] = set()
        """Hosts that answer nothing."""
        self.has_forgotten = False
        """It knows no such broker, and does not register it either."""
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens between its answer and the moment when that is read."""

    async def call(self, peer: Address, api: str, _body: object, *, deadline: float, **_: Any) -> bytes:
        self.asked.append((peer.host, api))
        await asyncio.sleep(0.001)
        if peer.host in self.silent:
            await asyncio.sleep(deadline - asyncio.get_running_loop().time())
            raise OutcomeUnknown("no answer in time")
        answers: dict[str, object] = {
            "BrokerRegistration": BrokerRegistrationResponse(broker_epoch=0, is_fenced=False),
            "BrokerHeartbeat": BrokerHeartbeatResponse(is_fenced=False, metadata_offset=self.metadata_offset),
        }
        if self.has_forgotten:
            answers = {
                "BrokerRegistration": BrokerRegistrationResponse(error_code=DuplicateBrokerRegistration.code),
                "BrokerHeartbeat": BrokerHeartbeatResponse(error_code=StaleBrokerEpoch.code),
            }
        body = b"".join(bytes(each) for each in encode_response(answers[api]))
        self.meanwhile()
        return body


class Life:
    """One broker that was registered at once, and has beaten once since."""

    def __init__(self, sim: SimWorld, world: World, controller: Controller) -> None:
        self.sim, self.controller = sim, controller
        self.applied_offset = 5
        """The end of the metadata that the broker has applied."""
        self.active: Address | None = Address("n1", 9092)
        self.leads = True
        self.lifecycle = Lifecycle(
            BrokerConfig(),
            dataclasses.replace(world, network=controller),  # type: ignore[arg-type]
            cluster_id="c",
            incarnation_id="i",
            previous_broker_epoch=-1,
            log_dirs=(),
            ignores_case=False,
            advertised=lambda: Address("n1", 9092),
            other_listeners=lambda: "",
            controller=lambda: self.active,
            applied_offset=lambda: self.applied_offset,
            on_change=lambda: None,
            controller_heard_at=lambda: controller.heard_at,
            leads_any=lambda: self.leads,
            missing_replicas=lambda: (),
        )

    @property
    def now(self) -> float:
        return self.sim.loop.time()

    def run_for(self, duration_s: float) -> None:
        self.sim.loop.run_until(self.now + duration_s)

    def elect(self, active: Address | None) -> None:
        """This process hears that another controller was elected, or that the former one leads no more."""

        async def hear() -> None:
            self.active = active
            self.lifecycle.on_news()

        self.sim.spawn("n1", hear())
        self.run_for(0.01)

    def step_down(self) -> None:
        """Another one was elected, and this process has just heard of it."""
        self.controller.heard_at = NOT_LEADING


@contextmanager
def living(*, heard_at: float, meanwhile: Callable[[Life], None] = lambda _: None) -> Iterator[Life]:
    with SimWorld(1) as sim:
        world = sim.of("n1")
        life = Life(sim, world, Controller(heard_at=heard_at))
        life.controller.meanwhile = lambda: meanwhile(life)
        sim.spawn("n1", life.lifecycle.run())
        life.run_for(0.1)
        yield life


def test_another_process_vouches_from_when_it_was_asked() -> None:
    """S14: each heartbeat that is answered counts from when it was sent."""
    with living(heard_at=NOT_LEADING) as life:
        for _ in range(30):
            assert life.lifecycle.session_alive()
            life.run_for(1.0)


def test_a_controller_in_the_same_process_vouches_as_far_as_a_majority_followed_it() -> None:
    """KAFKA-15489: a controller that is cut off answers its own broker, too."""
    with living(heard_at=0.0) as life:
        life.run_for(SESSION_S - 0.2)
        assert life.lifecycle.session_alive()
        life.run_for(0.2)
        assert not life.lifecycle.session_alive()
        life.controller.heard_at = life.now
        life.run_for(2.1)
        assert life.lifecycle.session_alive()


@pytest.mark.parametrize("is_first", [True, False], ids=["at registration", "by a heartbeat"])
def test_a_controller_that_resigned_before_its_answer_was_read_does_not_vouch(is_first: bool) -> None:
    """A stopped process wakes: its controller still answers its own broker, then hears that another was elected, and
    the answer is read. It would have counted from the wake-up, and this broker's leaders would have taken records.
    """
    with living(heard_at=float("-inf"), meanwhile=Life.step_down if is_first else _nothing) as life:
        if not is_first:
            life.controller.meanwhile = life.step_down
            while life.controller.heard_at != NOT_LEADING:
                life.run_for(0.01)
        assert not life.lifecycle.session_alive()
        life.run_for(2.1)
        assert life.lifecycle.session_alive(), "the next one was answered by another process"


def test_session_that_was_interrupted_counts_again_once_the_metadata_of_its_heartbeat_is_applied() -> None:
    """S14: its leaders may have moved while it was not heard. What is applied stays so: it is compared once."""
    with living(heard_at=0.0) as life:
        life.run_for(SESSION_S)
        assert not life.lifecycle.session_alive()
        life.applied_offset, life.controller.heard_at, life.controller.metadata_offset = 5, NOT_LEADING, 7
        life.run_for(2.1)
        assert not life.lifecycle.session_alive()
        life.applied_offset = 6
        assert not life.lifecycle.session_alive()
        life.applied_offset = 7
        assert life.lifecycle.session_alive()
        life.controller.metadata_offset = 9
        life.run_for(2.1)
        assert life.lifecycle.session_alive(), "a session without an interruption need not wait"


def test_a_heartbeat_to_a_replaced_controller_is_given_up() -> None:
    """Issue 15: the former controller was stopped, and leaders refused records until its response was overdue."""
    with living(heard_at=NOT_LEADING) as life:
        life.controller.silent.add("n1")
        asked = len(life.controller.asked)
        while len(life.controller.asked) == asked:
            life.run_for(0.01)
        life.elect(None)
        assert len(life.controller.asked) == asked + 1, "the only one that is known is still the former one"
        life.elect(Address("n2", 9092))
        assert life.controller.asked[asked + 1 :] == [("n2", "BrokerHeartbeat")]
        life.run_for(SESSION_S - 0.1)
        assert life.lifecycle.session_alive()


def test_heartbeats_hurry_while_the_controller_in_the_same_process_cannot_vouch() -> None:
    """Issue 15: a controller that was cut off gets its broker's session back as soon as a majority follows again."""
    with living(heard_at=0.0) as life:
        life.run_for(SESSION_S - 0.2)
        life.run_for(1.0)
        assert not life.lifecycle.session_alive()
        life.controller.heard_at = life.now
        life.run_for(0.15)
        assert life.lifecycle.session_alive()


@pytest.mark.parametrize("leads", [True, False])
def test_a_broker_that_no_controller_hears_leaves_only_if_it_leads_nothing(leads: bool) -> None:
    """When the whole cluster goes down no controller answers any more; until then one may still move its leaders."""
    with living(heard_at=NOT_LEADING) as life:
        life.controller.silent.add("n1")
        life.run_for(5.0)
        life.leads = leads
        life.lifecycle.leave()
        life.run_for(UNHEARD_S - 0.5)
        assert not life.lifecycle.may_leave.is_set(), "it has only now begun to ask"
        life.run_for(SESSION_S)
        assert life.lifecycle.may_leave.is_set() is not leads


def test_a_broker_that_the_controller_forgot_has_no_session() -> None:
    """It was unregistered while it could not be reached: until it has registered again its leaders take no records."""
    with living(heard_at=NOT_LEADING) as life:
        life.controller.has_forgotten = True
        life.run_for(2.1)
        assert not life.lifecycle.session_alive()
        life.controller.has_forgotten = False
        life.run_for(2.1)
        assert life.lifecycle.session_alive()


def _nothing(_: Life) -> None:
    return
