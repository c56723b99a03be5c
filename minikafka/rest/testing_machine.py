"""``/v1/machine``, for tests: the asked broker's disk is full, slow or fails to sync; its calendar is wrong.

What is put counts as a whole: what it does not name is well again. Only there with
``mk.testing.endpoints.enable=true``; a restart of the broker's process heals it.
"""

from __future__ import annotations

from minikafka.rest.body import kind_of, parsed_object, read_body
from minikafka.rest.model import Model, member
from minikafka.rest.route import Route, json_body
from minikafka.rest.schema import flag, whole
from minikafka.rest.testing_faults import instruments_of
from minikafka.rest.visit import Reply, Visit
from minikafka.world.machine_faults import MachineFaults

SYNC_DELAY_MS_MAX = 60_000
FAILING_SYNCS_MAX = 1_000_000

CALENDAR_MS_MAX = 366 * 86_400_000
"""A year: farther off, timestamps could no longer be distinguished from nonsense."""


def _machine(visit: Visit) -> MachineFaults:
    return instruments_of(visit).machine(str(visit.host.node_id))


class _Faults(Model):
    """What is wrong with it."""

    disk_full: bool = member(flag("Every write is refused: there is no room."), example=True, default=False)
    sync_delay_ms: int = member(whole("What each sync takes more.", minimum=0, maximum=SYNC_DELAY_MS_MAX), 0, default=0)
    failing_syncs: int = member(
        whole("So many of the next syncs fail.", minimum=0, maximum=FAILING_SYNCS_MAX), 0, default=0
    )
    calendar_ahead_ms: int = member(
        whole("Ahead of the true time.", minimum=-CALENDAR_MS_MAX, maximum=CALENDAR_MS_MAX), 0, default=0
    )


class _Machine(_Faults):
    """A machine."""

    struck: int = member(whole("Writes refused, syncs delayed and failed so far."), 3)


async def get_machine(visit: Visit) -> Reply:
    """What is wrong with this broker's machine, and how often it struck."""
    return Reply(_Machine.out_of(_machine(visit)))


async def put_machine(visit: Visit) -> Reply:
    """Set all that is wrong with it; what is not named is well again."""
    kind = kind_of(visit.http)
    document = parsed_object(await read_body(visit.http, visit.host, visit.admission), kind, visit.http)
    given = _Faults.read(document).out()
    machine = _machine(visit)
    for name, value in given.items():
        setattr(machine, name, value)
    visit.host.world.events("machine_faults_set", **given)
    return Reply(_Machine.out_of(machine))


ROUTES = (
    Route(
        method="GET",
        path="/v1/machine",
        handler=get_machine,
        tag="testing",
        testing=True,
        answers={200: _Machine.answer("The machine.")},
    ),
    Route(
        method="PUT",
        path="/v1/machine",
        handler=put_machine,
        tag="testing",
        testing=True,
        body=json_body(_Faults.schema(sent=True), {"disk_full": True}),
        answers={200: _Machine.answer("It is so from now on.")},
    ),
)
