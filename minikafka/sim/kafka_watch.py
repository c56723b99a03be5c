"""What brokers may not do to Kafka clients of the simulator: refuse what is well formed.

These clients send only APIs and versions that are offered, so a connection that a broker closes because it cannot read
a request is a violation, ``kafka_request_refused``. A failed Produce with acks=0 has to close its connection.

Rule for this file: it looks at events and decides nothing else.
"""

from __future__ import annotations

from minikafka.sim.kafka_link import Report
from minikafka.sim.world import Event, SimWorld

ACKS_0 = "a Produce request with acks=0 failed"


def watch_kafka_sessions(sim: SimWorld, report: Report) -> None:
    """Report each connection that a broker refuses, from now on."""

    def on_event(event: Event) -> None:
        if event.kind != "client_connection_refused":
            return
        why = str(event.facts["why"])
        if why.startswith(ACKS_0):
            sim.marks["kafka_acks_0_closed"] += 1
        else:
            report("kafka_request_refused", f"{event.node} closed the connection of {event.facts['remote']}: {why}")

    sim.observers.append(on_event)
