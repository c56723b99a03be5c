"""``/v1/connections``: the clients and brokers that are connected to this broker, and what each of them does now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import INT64_MAX, Integer
from minikafka.rest.route import Route
from minikafka.rest.schema import flag, nullable, one_of, ref, text, whole
from minikafka.rest.visit import Reply, Visit
from minikafka.types import NodeId
from minikafka.world.connections import PROTOCOLS, OpenConnection

COUNT_MAX = 1000
"""Describing a connection costs the broker some microseconds, during which it does nothing else."""

AFTER = Integer(
    name="after",
    description="Leave out connections with this id or a smaller one, to read the next part of a long list.",
    default=0,
    high=INT64_MAX,
    example=17,
)
LIMIT = Integer(
    name="limit",
    description="Maximum number of connections in the response.",
    default=COUNT_MAX,
    low=1,
    high=COUNT_MAX,
    example=100,
)


class _Connection(Model):
    """One open connection."""

    connection_id: int = member(whole("Number of the connection among all that this broker has accepted."), 17)
    protocol: str | None = member(
        nullable(
            one_of(
                "`kafka`: Kafka's binary protocol. `rpc`: only plain `POST /rpc`, as brokers and native clients send. "
                "`http`: other HTTP requests. Null: the peer has not sent a request yet.",
                *PROTOCOLS,
            )
        ),
        "kafka",
    )
    listener: str = member(text("Name of the listener."), "PLAINTEXT")
    remote: str = member(text("Address and port of the peer."), "127.0.0.1:50412")
    principal: str = member(text("Principal of the client certificate, or `User:ANONYMOUS`."), "User:CN=billing")
    client_id: str = member(text("Client id of the last request; empty if the client sends none."), "billing")
    software: str = member(
        text("Name and version of the client's library; empty if the client does not send them."), "librdkafka 2.16.1"
    )
    since: str = member(text("When the connection was accepted."), "2026-11-22T09:30:00.000+00:00")
    requests: int = member(whole("Requests received on the connection."), 812)
    received_bytes: int = member(whole(), 96231)
    sent_bytes: int = member(whole(), 8123)
    last_request: str | None = member(
        nullable(text("API of the last request, or method and path of an HTTP request.")), "Fetch"
    )
    api_version: int | None = member(nullable(whole("Version of that API in Kafka's protocol.")), 17)
    pending_request: str | None = member(
        nullable(text("The oldest request that is not answered yet, such as a Fetch that waits for records.")), "Fetch"
    )
    idle_ms: int = member(whole("Time since the last request arrived or the last response was sent."), 204)


class _Connections(Model):
    """Open connections of one broker, the oldest first."""

    node_id: NodeId = member(ref("NodeId"), 1)
    connections: list[Any] = many_of(_Connection)
    more: bool = member(flag("The list is longer: read the rest with `after`."), False)  # noqa: FBT003 - an example


async def get_connections(visit: Visit) -> Reply:
    """The open connections of the broker that answers: who is connected, and what each connection waits for."""
    limit = visit[LIMIT]
    listed = visit.connections(after=visit[AFTER], limit=limit + 1) if visit.connections is not None else []
    clock, main = visit.host.world.clock, visit.host.config.inter_broker_listener.name
    now, wall_ms = clock.now(), clock.wall_ms()

    def out(each: OpenConnection) -> dict[str, Any]:
        accepted_ms = wall_ms - round((now - each.record.opened_at) * 1000)
        return _Connection.out_of(
            each,
            connection_id=each.record.number,
            listener=each.listener or main,
            principal=each.record.principal,
            since=datetime.fromtimestamp(accepted_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            requests=each.record.requests,
            received_bytes=each.record.received,
            sent_bytes=each.record.sent,
            idle_ms=max(0, round(each.idle_s * 1000)),
        )

    connections = [out(each) for each in listed[:limit]]
    more = len(listed) > limit
    return Reply(_Connections(node_id=visit.host.node_id, connections=connections, more=more).out())


ROUTES = (
    Route(
        method="GET",
        path="/v1/connections",
        handler=get_connections,
        tag="cluster",
        parameters=(AFTER, LIMIT),
        answers={200: _Connections.answer("Open connections of this broker.")},
    ),
)
