"""Bugs of brokers that leave: registrations that stay, replicas without a broker, a broker that is not let in again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from minikafka.broker.lifecycle import Lifecycle
from minikafka.errors import BrokerIdNotRegistered
from minikafka.quorum.controller import Controller
from minikafka.quorum.decision import Decision
from minikafka.quorum.image import MetadataImage, _Builder
from minikafka.quorum.records import UnregisterBroker
from minikafka.sim.plan import Plan
from minikafka.sim.plan_features import departing_broker
from minikafka.sim.seeds import plan_of
from minikafka.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse
from tests.sim.planted import LOSS, Planted


def with_departures(seed: int) -> Plan:
    """A broker leaves among crashes, and may come back."""
    return departing_broker(plan_of(seed, kinds=("crash", "isolate")), Random(f"{seed}/departure"))


def image_keeps_them(original: Callable[..., None]) -> Callable[..., None]:
    """The record is committed, and no image follows it."""

    def replay(self: _Builder, record: Any, offset: int) -> None:
        if not isinstance(record, UnregisterBroker):
            original(self, record, offset)

    return replay


def whatever_it_holds(image: MetadataImage, request: UnregisterBrokerRequest) -> Decision[UnregisterBrokerResponse]:
    """Nobody looks whether it is fenced, or where the replicas are."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(f"no broker {request.broker_id}")
    record = UnregisterBroker(broker_id=broker.node_id, broker_epoch=broker.broker_epoch)
    return Decision(records=(record,), response=UnregisterBrokerResponse(), cause="planted")


def stays_out(self: Lifecycle, why: str) -> bool:
    """A broker that was forgotten beats on under its former epoch."""
    self.is_fenced = True
    self._on_change()
    return False


DEPARTURE_CLUSTERS = (
    Planted(
        name="unregistered_brokers_stay_in_the_image",
        story="a broker is unregistered, and no image is without it (API 64)",
        caught_by=("not_converged",),
        patches=[(_Builder, "replay", image_keeps_them(_Builder.replay))],
        make=with_departures,
        drawn="departing_broker",
        seed=16,
        within=30,
    ),
    Planted(
        name="unregistered_with_its_replicas",
        story="a broker is unregistered while it lives or holds replicas (API 64)",
        caught_by=("replica_of_an_unregistered_broker", *LOSS),
        patches=[(Controller, "unregister", staticmethod(whatever_it_holds))],
        make=with_departures,
        drawn="departing_broker",
        seed=0,
    ),
    Planted(
        name="unregistered_brokers_do_not_come_back",
        story="a broker that was unregistered behind a cut goes on with its former broker epoch",
        caught_by=("not_converged",),
        patches=[(Lifecycle, "_register_again", stays_out)],
        make=with_departures,
        drawn="departing_broker",
        seed=8,
    ),
)
