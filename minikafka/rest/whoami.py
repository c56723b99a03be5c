"""``/v1/whoami``: the caller as the broker sees it, which is what ACLs and ``super.users`` must name."""

from __future__ import annotations

from minikafka.rest.model import Model, member
from minikafka.rest.route import Route
from minikafka.rest.schema import flag, one_of, text
from minikafka.rest.visit import Reply, Visit


class _WhoAmI(Model):
    """The sender of a request."""

    principal: str = member(
        text(
            "Principal, as ACLs and `super.users` name it. `User:ANONYMOUS`: the client has neither logged in nor sent "
            "a certificate."
        ),
        "User:CN=billing,O=example",
    )
    host: str = member(text("IP address of the client, as hosts of ACLs name it."), "127.0.0.1")
    listener: str = member(text("Name of the listener."), "CLIENTS")
    security_protocol: str = member(
        one_of(
            "`SSL`: the connection uses TLS. `SASL`: each request needs credentials.",
            "PLAINTEXT",
            "SSL",
            "SASL_PLAINTEXT",
            "SASL_SSL",
        ),
        "SSL",
    )
    checked: bool = member(flag("Requests of this client need permissions."), True)  # noqa: FBT003 - an example
    super_user: bool = member(flag("The principal is one of `super.users`."), False)  # noqa: FBT003 - an example


async def get_whoami(visit: Visit) -> Reply:
    """The principal of the caller, and whether its requests need permissions."""
    context, config = visit.context, visit.host.config
    listener = context.listener or config.inter_broker_listener.name
    return Reply(
        _WhoAmI(
            principal=context.principal,
            host=context.remote,
            listener=listener,
            security_protocol=("SASL_" if listener in config.sasl_listeners else "")
            + ("SSL" if listener in config.tls_listeners else "PLAINTEXT"),
            checked=visit.permit is not None,
            super_user=context.principal in config.super_principals,
        ).out()
    )


ROUTES = (
    Route(
        method="GET",
        path="/v1/whoami",
        handler=get_whoami,
        tag="cluster",
        answers={200: _WhoAmI.answer("The caller.")},
    ),
)
