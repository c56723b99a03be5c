"""``/v1/faults`` and ``/v1/machine``, for tests: faults of links, of this broker's disk, and of its calendar.

``/v1/faults`` cuts, drops, delays, holds, duplicates or reorders what travels on a link, or answers it with an error
(``world/faults.py``). A fault is set at the broker that receives the request or that ``?broker=`` names, and applies to
what that broker sends and receives; brokers of one process (``LocalCluster``) share their faults.

``/v1/machine`` makes the broker's disk full or slow, lets its syncs fail, or sets its calendar wrong. A PUT replaces
all of it: what it does not name is well again. A restart of the broker's process heals it.

Both exist only with ``mk.testing.endpoints.enable=true``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from minikafka.errors import InvalidRequest, RequestTimedOut
from minikafka.faults import MESSAGE_KINDS
from minikafka.rest.host import WAIT_MS_MAX
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import Integer
from minikafka.rest.route import Json, Reply
from minikafka.rest.schema import many, whole
from minikafka.rest.schemas import Place
from minikafka.rest.testing_hooks import AT_OR_ALL, Done, HookCall, HookRoutes, OfBrokers
from minikafka.types import NodeId, Offset
from minikafka.web.problems import malformed, unacceptable
from minikafka.world.faults import (
    APIS,
    COUNT_MAX,
    DELAY_MS_MAX,
    EVERY_API,
    KINDS,
    SEED_MAX,
    Fault,
    FaultSpec,
    Held,
    Link,
)
from minikafka.world.instruments import Injection

ROUTES = HookRoutes("testing", testing=True)
MACHINE_ROUTES = HookRoutes("testing", testing=True)

HELD_SHOWN_MAX = 20
PLACES_SHOWN_MAX = 20
"""Partitions of a held message: a fetch of a broker can concern thousands."""
WAIT_MS_DEFAULT = 10_000


FAULT = Integer("fault", "The fault's number.", place="path", default=-1, low=1, high=COUNT_MAX, example=1)
WAIT_HITS = Integer("wait_hits", "Answer when the fault has struck so many messages.", default=0, low=1, high=COUNT_MAX)
TIMEOUT_MS = Integer(
    "timeout_ms", "How long to wait for that; then 504.", default=WAIT_MS_DEFAULT, low=1, high=WAIT_MS_MAX
)


class _Spec(Model):
    """A fault."""

    kind: str = member(
        "`cut` breaks the connection, `drop` loses the message silently, `error` answers the request with `error`.",
        "cut",
        enum=KINDS,
    )
    link: str = member("The way of the message: `2>1`; `2<>1` both ways; also `broker`, `client`, `*`.", "2>1")
    api: str = member(
        "Only these; `MetadataFetch` is a Fetch of the metadata log.", "Fetch", default=EVERY_API, enum=APIS
    )
    message: str | None = member(
        "Only requests, or only answers: they travel opposite ways.", default=None, shown=True, enum=MESSAGE_KINDS
    )
    count: int | None = member("Only the next so many.", default=None, shown=True, minimum=1, maximum=COUNT_MAX)
    delay_ms: float = member("Of `delay`, `reorder`.", 0.0, default=0.0, minimum=0, maximum=int(DELAY_MS_MAX))
    jitter_ms: float = member("Up to so much more.", 0.0, default=0.0, minimum=0, maximum=int(DELAY_MS_MAX))
    probability: float = member(
        "Of striking each message; drawn from the seed.", 1.0, default=1.0, exclusiveMinimum=0, maximum=1
    )
    seed: int | None = member(
        "Of the draws; null: made of `mk.seed` and the fault's number.",
        41_887_029_551_207,
        default=None,
        shown=True,
        minimum=0,
        maximum=SEED_MAX,
    )
    error: str | None = member(
        "Kafka's name of the error of kind `error`: `NOT_LEADER_OR_FOLLOWER`.", default=None, shown=True
    )
    for_ms: float | None = member(
        "It ends by itself.", default=None, shown=True, exclusiveMinimum=0, maximum=int(DELAY_MS_MAX)
    )


class _Release(Model):
    """Which of the held messages go."""

    ids: list[int] | None = member(
        many(whole(minimum=1, maximum=COUNT_MAX), "Only these messages, by their `id`.", maxItems=HELD_SHOWN_MAX),
        default=None,
    )
    count: int = member("The most that go.", example=1, default=COUNT_MAX, minimum=1, maximum=COUNT_MAX)
    latest: bool = member(
        "Begin with the latest message: its sender still waits for the response.", example=True, default=False
    )
    lose: bool = member("Lose them; their senders get no response.", example=False, default=False)


class _Concerned(Place):
    """A partition that a held message concerns."""

    offset: Offset | None = member(
        "Fetch request: the first offset that it requests. Responses: the first record's.", 41
    )
    last_offset: Offset | None = member("Fetch response: the last record's.")
    record_count: int | None = member("Produce request, Fetch response: records.")
    high_watermark: Offset | None = member("Fetch: the one that its sender knows.", 41)
    what: str = member("The same for people.", "orders-0 offset 41")


class _Held(Model):
    """A message that a fault holds."""

    id: int = member("Its number at its fault, for `:release`.", 1, source="number")
    link: str = member("From which broker or client to which.", "2>1")
    api: str = member("Its API.", "Fetch")
    message: str = member("What it is.", "request", enum=MESSAGE_KINDS)
    held_ms: int = member("How long it has been held.", 412)
    partition_count: int = member("Partitions that it names. A fetch session leaves out those without news.", 1)
    partitions: list[Any] = many_of(
        _Concerned, f"Of Produce, Fetch and their responses, the first {PLACES_SHOWN_MAX}; of other APIs, none."
    )


class _Numbered(Model):
    """A fault's place."""

    id: int = member("Its number at this broker.", 1)
    broker: NodeId = member(example=1)


class _Fault(_Spec, _Numbered):
    """A fault, and what it did."""

    set_by: str = member(
        "Program that set it, from its `User-Agent`; empty: not known, or the test itself.", "curl 8.14.1"
    )
    ends_in_ms: int | None = member(
        "Time until it ends by itself; null: it is over, or only healing ends it.", minimum=0
    )
    hits: int = member("How many messages it struck.", 0)
    active: bool = member("It will strike again.", example=True)
    held_count: int = member("How many messages it holds.", 0)
    held: list[Any] = many_of(
        _Held, f"The latest {HELD_SHOWN_MAX} of them, in the order in which they came.", example=[]
    )


class _AllFaults(OfBrokers):
    """Faults of the brokers."""

    faults: list[Any] = many_of(_Fault)


class _Healed(OfBrokers):
    """How many faults are healed."""

    healed: int = member("How many.", 1)


class _Released(Model):
    """How many messages are released."""

    released: int = member("How many.", 1)
    fault: Any = one(_Fault)


def _all_faults(bodies: Sequence[Any]) -> dict[str, Any]:
    return {"faults": [fault for each in bodies for fault in each["faults"]]}


def _set(done: Done) -> Iterator[Injection]:
    spec = FaultSpec(**{each.name: done.body[each.name] for each in fields(FaultSpec)})
    if spec.probability == 1 and not spec.jitter_ms:
        spec = replace(spec, seed=None)  # nothing is drawn from it
    yield done.injection("set", fault=done.body["id"], spec=spec)


@ROUTES.hook("GET /v1/faults", _AllFaults.answer("Every fault."), node_in=AT_OR_ALL, merge=_all_faults)
async def get_faults(call: HookCall) -> Json:
    """Every fault that is not healed, in the order in which they strike."""
    return {"faults": [_out(fault, call) for fault in call.instruments.faults.active.values()]}


@ROUTES.hook(
    "POST /v1/faults",
    {201: _Fault.answer("It strikes from now on.")},
    body=_Spec.body({"kind": "cut", "link": "2>1", "api": "Fetch"}),
    injects=_set,
)
async def post_fault(call: HookCall) -> Reply:
    """Set a fault; it strikes from now on, until it is deleted or has done its count."""
    faults = call.instruments.faults
    given = _Spec.read(call.document)
    host = call.host
    try:
        spec = FaultSpec(**vars(given))
        link = Link.parse(spec.link)
        # A broker that has just started knows the voters before it has read the metadata.
        link.check_brokers({*host.image.brokers, *host.config.voters, *map(int, faults.nodes)})
        if not link.ends_at(faults.nodes):
            here = ", ".join(sorted(faults.nodes))
            raise InvalidRequest(
                f"broker {here} is at neither end of {spec.link}: set it at one of these two, with ?broker="
            )
    except InvalidRequest as error:
        place = error.facts.get("field", "link")
        raise unacceptable([{"pointer": f"/{place}", "detail": error.message}]) from None
    fault = faults.add(spec, by=call.software)
    return Reply(_out(fault, call), 201, {"Location": f"/v1/faults/{fault.number}"})


@ROUTES.hook(
    "GET /v1/faults/{fault}",
    _Fault.answer("The fault.", hits=3),
    parameters=(WAIT_HITS, TIMEOUT_MS),
    problems=(RequestTimedOut,),
    wait_s=lambda visit: visit[TIMEOUT_MS] / 1000 if visit.gives(WAIT_HITS) else 0.0,
)
async def get_fault(call: HookCall) -> Json:
    """One fault and how often it struck; ``wait_hits`` waits for that."""
    fault = _fault(call)
    if call.gives(WAIT_HITS):
        wanted, timeout_ms = call[WAIT_HITS], call[TIMEOUT_MS]
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await fault.until_hits(wanted)
        except TimeoutError:
            raise RequestTimedOut(
                f"after {timeout_ms} ms {fault} has {fault.hits} hits, wanted: {wanted}", seen=_out(fault, call)
            ) from None
    return _out(fault, call)


@ROUTES.hook(
    "POST /v1/faults/{fault}:release",
    _Released.answer("They are released.", fault=_Fault.example(kind="hold", hits=3)),
    body=_Release.body({"count": 1, "latest": True}),
    injects=lambda done: [done.injection("release", fault=done.values[FAULT.name], facts=dict(done.document))],
)
async def post_release(call: HookCall) -> Json:
    """Let messages go that a fault of kind `hold` holds; it goes on holding later ones."""
    fault = _fault(call)
    asked = _Release.read(call.document)
    if fault.spec.kind != "hold":
        raise malformed(f"fault {fault.number} is of kind {fault.spec.kind}: only hold holds messages")
    if unknown := [each for each in asked.ids or () if each not in {held.number for held in fault.held}]:
        raise malformed(f"fault {fault.number} does not hold message {unknown[0]}: it was released before", status=404)
    released = call.instruments.faults.release(
        fault, asked.count, latest=asked.latest, lose=asked.lose, numbers=asked.ids
    )
    return {"released": released, "fault": _out(fault, call)}


@ROUTES.hook(
    "DELETE /v1/faults/{fault}",
    _Fault.answer("It is healed.", hits=3, active=False),
    injects=lambda done: [done.injection("heal", fault=done.values[FAULT.name])],
)
async def delete_fault(call: HookCall) -> Json:
    """Heal one fault; what it held back goes on its way."""
    fault = _fault(call)
    call.instruments.faults.heal(fault.number)
    return _out(fault, call)


_HEAL_ALL: dict[str, Any] = {
    "node_in": AT_OR_ALL,
    "merge": lambda bodies: {"healed": sum(each["healed"] for each in bodies)},
    "injects": lambda done: [done.injection("heal")],
}


@ROUTES.hook("DELETE /v1/faults", _Healed.answer("All are healed."), **_HEAL_ALL)
async def delete_faults(call: HookCall) -> Json:
    """Heal all faults."""
    return {"healed": call.instruments.faults.clear()}


@ROUTES.hook("POST /v1/faults:reset", _Healed.answer("All are healed."), **_HEAL_ALL)
async def post_reset(call: HookCall) -> Json:
    """Heal all faults, by the name that Toxiproxy's users know.

    The same as `DELETE /v1/faults`.
    """
    return await delete_faults(call)


def _fault(call: HookCall) -> Fault:
    number = call[FAULT]
    fault = call.instruments.faults.active.get(number)
    if fault is None:
        raise malformed(
            f"broker {call.node} has no fault {number}: it was healed, or set at another broker", status=404
        )
    return fault


def _held_out(held: Held) -> dict[str, Any]:
    source, target, message = held.way
    return _Held.out_of(
        held,
        link=f"{source}>{target}",
        message=message,
        held_ms=max(0, round((asyncio.get_running_loop().time() - held.since) * 1000)),
        partition_count=len(held.places),
        partitions=[_Concerned.out_of(each, what=str(each)) for each in held.places[:PLACES_SHOWN_MAX]],
    )


def _out(fault: Fault, call: HookCall) -> dict[str, Any]:
    return _Fault.out_of(
        fault.spec,
        id=fault.number,
        broker=call.node,
        seed=fault.seed,
        set_by=fault.set_by,
        ends_in_ms=call.instruments.faults.ends_in_ms(fault),
        hits=fault.hits,
        active=fault.is_active,
        held_count=len(fault.held),
        held=[_held_out(each) for each in fault.held[-HELD_SHOWN_MAX:]],
    )


SYNC_DELAY_MS_MAX = 60_000
FAILING_SYNCS_MAX = 1_000_000

CALENDAR_MS_MAX = 366 * 86_400_000
"""A year: farther off, timestamps could no longer be distinguished from nonsense."""


class _Faults(Model):
    """What is wrong with it."""

    disk_full: bool = member("Every write is refused: there is no room.", example=True, default=False)
    sync_delay_ms: int = member("What each sync takes more.", 0, default=0, minimum=0, maximum=SYNC_DELAY_MS_MAX)
    failing_syncs: int = member("So many of the next syncs fail.", 0, default=0, minimum=0, maximum=FAILING_SYNCS_MAX)
    calendar_ahead_ms: int = member(
        "Ahead of the true time.", 0, default=0, minimum=-CALENDAR_MS_MAX, maximum=CALENDAR_MS_MAX
    )


class _Machine(_Faults):
    """A machine."""

    struck: int = member("Writes refused, syncs delayed and failed so far.", 3)


@MACHINE_ROUTES.hook("GET /v1/machine", _Machine.answer("The machine."))
async def get_machine(call: HookCall) -> Json:
    """What is wrong with a broker's machine, and how often it struck."""
    return _Machine.out_of(call.instruments.machine(str(call.node)))


@MACHINE_ROUTES.hook(
    "PUT /v1/machine",
    _Machine.answer("It is so from now on."),
    body=_Faults.body({"disk_full": True}),
    injects=lambda done: [done.injection("machine", facts={name: done.body[name] for name in _Faults.example()})],
)
async def put_machine(call: HookCall) -> Json:
    """Set all that is wrong with it; what is not named is well again."""
    given = _Faults.read(call.document).out()
    machine = call.instruments.machine(str(call.node))
    for name, value in given.items():
        setattr(machine, name, value)
    call.host.world.events("machine_faults_set", **given)
    return _Machine.out_of(machine)
