"""``/v1/quotas``: client quotas of users and client ids; any broker forwards changes to the controller."""

from __future__ import annotations

from typing import Any

from minikafka.errors import InvalidRequest, PolicyViolation, RequestTimedOut
from minikafka.quorum.client_quotas import describe_client_quotas
from minikafka.rest.body import Members
from minikafka.rest.operations import change, document_of
from minikafka.rest.parameters import FORWARD
from minikafka.rest.route import CONTROLLER_PROBLEMS, Answer, Route, json_body
from minikafka.rest.schema import flag, many, nullable, shape, table, text
from minikafka.rest.topics import DRY_RUN, TIMEOUT_MS
from minikafka.rest.visit import Reply, Visit
from minikafka.security.quotas import CLIENT_ID, KEYS, USER
from minikafka.web.problems import Fault, unacceptable
from minikafka.wire.limits import shown
from minikafka.wire.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    EntityPart,
    QuotaAlteration,
    QuotaChange,
    QuotaEntry,
)

_TYPES = {"user": USER, "client_id": CLIENT_ID}


async def get_quotas(visit: Visit) -> Reply:
    """All client quotas, by entity, as this broker uses them."""
    found = describe_client_quotas(visit.host.image, DescribeClientQuotasRequest())
    return Reply({"quotas": [_entry_out(each) for each in found.entries]})


def _entry_out(entry: QuotaEntry) -> dict[str, Any]:
    names = {each.entity_type: each.entity_name for each in entry.entity}
    members = {member: names[kind] for member, kind in _TYPES.items() if kind in names}
    return {**members, "quotas": {each.key: each.value for each in entry.values}}


async def patch_quotas(visit: Visit) -> Reply:
    """Set quotas of a user, a client id or both; null removes one."""
    dry_run = visit[DRY_RUN]
    document, note = await document_of(visit)
    entry = _alteration_in(document)
    request = AlterClientQuotasRequest(entries=(entry,), validate_only=dry_run)
    await change(visit, request, lambda response: response.entries, dry_run=dry_run)
    names = {member: document[member] for member in _TYPES if member in document}
    return Reply({**names, "altered": document["quotas"], "dry_run": dry_run, **note})


def _alteration_in(document: dict[str, Any]) -> QuotaAlteration:
    faults: list[Fault] = []
    members = Members(document, "", faults)
    entity = []
    for member, kind in _TYPES.items():
        name = members.any(member)
        if name is not None and type(name) is not str:
            members.wrong(member, f"a text, or null for the default, is needed, not {shown(name)}")
        elif member in document:
            entity.append(EntityPart(entity_type=kind, entity_name=name))
    quotas = members.object("quotas")
    members.done()
    if not entity and not faults:
        members.wrong("user", "a user, a client_id or both are needed")
    if not quotas and not faults:
        members.wrong("quotas", f"at least one of {', '.join(KEYS)} is needed")
    inner = Members(quotas, "/quotas", faults)
    ops = []
    for key in quotas:
        value = inner.any(key)
        if value is None:
            ops.append(QuotaChange(key=key, remove=True))
        elif type(value) in (int, float):
            ops.append(QuotaChange(key=key, value=float(value)))
        else:
            inner.wrong(key, f"a number or null is needed, not {shown(value)}")
    if faults:
        raise unacceptable(faults)
    return QuotaAlteration(entity=tuple(entity), ops=tuple(ops))


# ---- the doors -------------------------------------------------------------------------------------------------------

_USER = nullable(text("Name of the user, without `User:`; null: all users without a quota of their own."))
_CLIENT_ID = nullable(text("Client id; null: all client ids without a quota of their own."))
_ENTITY = {"user": _USER, "client_id": _CLIENT_ID}
_MEANING = f"By Kafka's names: {', '.join(f'`{key}`' for key in KEYS)}."
_CHANGES = table({"type": ["number", "null"]}, f"{_MEANING} null removes a quota.")

ROUTES = (
    Route(
        method="GET",
        path="/v1/quotas",
        handler=get_quotas,
        tag="cluster",
        answers={
            200: Answer(
                description="The quotas.",
                schema=shape(
                    quotas=many(
                        shape(
                            "The quotas of a user, of a client id, or of both together.",
                            optional=("user", "client_id"),
                            **_ENTITY,
                            quotas=table({"type": "number"}, _MEANING),
                        )
                    )
                ),
                example={"quotas": [{"user": "alice", "quotas": {"producer_byte_rate": 1_048_576.0}}]},
            )
        },
    ),
    Route(
        method="PATCH",
        path="/v1/quotas",
        handler=patch_quotas,
        tag="cluster",
        parameters=(DRY_RUN, TIMEOUT_MS, FORWARD),
        body=json_body(
            shape("Quotas to alter.", optional=("user", "client_id"), **_ENTITY, quotas=_CHANGES),
            {"user": "alice", "quotas": {"producer_byte_rate": 1_048_576, "consumer_byte_rate": None}},
        ),
        answers={
            200: Answer(
                description="Altered, and used by the live brokers; or, in a dry run, it could be.",
                schema=shape(
                    optional=("note", "user", "client_id"),
                    **_ENTITY,
                    altered=_CHANGES,
                    dry_run=flag("Nothing was altered."),
                    note=text("What could be asked better."),
                ),
                example={
                    "user": "alice",
                    "altered": {"producer_byte_rate": 1_048_576, "consumer_byte_rate": None},
                    "dry_run": False,
                },
            )
        },
        problems=(*CONTROLLER_PROBLEMS, RequestTimedOut, InvalidRequest, PolicyViolation),
    ),
)
