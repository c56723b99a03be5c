"""``/v1/machine``, for tests: the asked broker's disk is full, slow or fails to sync; its calendar is wrong.

What is put counts as a whole: what it does not name is well again. Only there with
``mk.testing.endpoints.enable=true``; a restart of the broker's process heals it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from minikafka.rest.body import kind_of, parsed_object, read_body
from minikafka.rest.members import Members
from minikafka.rest.problems import Fault as Wrong
from minikafka.rest.problems import unacceptable
from minikafka.rest.route import Answer, Route, json_body
from minikafka.rest.schema import Schema, flag, shape, whole
from minikafka.rest.testing_faults import instruments_of
from minikafka.rest.visit import Reply, Visit
from minikafka.world.machine_faults import MachineFaults

SYNC_DELAY_MS_MAX = 60_000
FAILING_SYNCS_MAX = 1_000_000

CALENDAR_MS_MAX = 366 * 86_400_000
"""A year: farther off, timestamps would no longer be told from nonsense."""


def _machine(visit: Visit) -> MachineFaults:
    return instruments_of(visit).machine(str(visit.host.node_id))


async def get_machine(visit: Visit) -> Reply:
    """What is wrong with this broker's machine, and how often it struck."""
    return Reply(asdict(_machine(visit)))


async def put_machine(visit: Visit) -> Reply:
    """Set all that is wrong with it; what is not named is well again."""
    kind = kind_of(visit.http)
    document = parsed_object(await read_body(visit.http, visit.host, visit.admission), kind, visit.http)
    wrong: list[Wrong] = []
    given = _given(Members(document, "", wrong))
    if wrong:
        raise unacceptable(wrong)
    machine = _machine(visit)
    for name, value in given.items():
        setattr(machine, name, value)
    visit.host.world.events("machine_faults_set", **given)
    return Reply(asdict(machine))


def _given(members: Members) -> dict[str, Any]:
    full = members.any("disk_full")
    if full is not None and type(full) is not bool:
        members.wrong("disk_full", "true or false is needed")
    given = {
        "disk_full": bool(full),
        "sync_delay_ms": members.integer("sync_delay_ms", 0, low=0, high=SYNC_DELAY_MS_MAX),
        "failing_syncs": members.integer("failing_syncs", 0, low=0, high=FAILING_SYNCS_MAX),
        "calendar_ahead_ms": members.integer("calendar_ahead_ms", 0, low=-CALENDAR_MS_MAX, high=CALENDAR_MS_MAX),
    }
    members.done()
    return given


_STATE: dict[str, Schema] = {
    "disk_full": flag("Every write is refused: there is no room."),
    "sync_delay_ms": whole("What each sync takes more.", minimum=0, maximum=SYNC_DELAY_MS_MAX),
    "failing_syncs": whole("So many of the next syncs fail.", minimum=0, maximum=FAILING_SYNCS_MAX),
    "calendar_ahead_ms": whole("Ahead of the true time.", minimum=-CALENDAR_MS_MAX, maximum=CALENDAR_MS_MAX),
}
_MACHINE = shape("A machine.", **_STATE, struck=whole("Writes refused, syncs delayed and failed so far."))
_EXAMPLE = {"disk_full": True, "sync_delay_ms": 0, "failing_syncs": 0, "calendar_ahead_ms": 0, "struck": 3}

ROUTES = (
    Route(
        method="GET",
        path="/v1/machine",
        handler=get_machine,
        tag="testing",
        testing=True,
        answers={200: Answer(description="The machine.", schema=_MACHINE, example=_EXAMPLE)},
    ),
    Route(
        method="PUT",
        path="/v1/machine",
        handler=put_machine,
        tag="testing",
        testing=True,
        body=json_body(shape("What is wrong with it.", optional=tuple(_STATE), **_STATE), {"disk_full": True}),
        answers={200: Answer(description="It is so from now on.", schema=_MACHINE, example=_EXAMPLE)},
    ),
)
