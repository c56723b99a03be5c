"""Clients that do not read their responses are disconnected: after a time, or when they keep others' memory."""

from __future__ import annotations

import asyncio

import pytest

from minikafka.world.request_room import GRACE_S
from minikafka.world.unread_responses import LOOK_S, RESPONSE_TIMEOUT_S, Unread, UnreadResponses

LIMIT = 1000
IDLE_S = 600.0


class Connection:
    """A connection whose transport is full."""

    def __init__(
        self, responses: UnreadResponses, owner: str = "ann", held: int = 100, left: int | None = None
    ) -> None:
        self.now = Unread(owner, held, held if left is None else left)
        self.is_aborted = False
        responses.paused(self)

    def unread(self) -> Unread:
        return self.now

    def take(self, size: int) -> None:
        """Read so many bytes."""
        self.now = self.now._replace(left=self.now.left - size)

    def abort(self) -> None:
        self.is_aborted = True


class Clock:
    """The loop's time, which passes when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    async def passes(self, seconds: float) -> None:
        """Look by look."""
        end = self.now + seconds
        while self.now < end:
            self.now += LOOK_S / 2
            for _ in range(5):
                await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_a_client_that_takes_nothing_is_disconnected(clock: Clock):
    """Its requests are under way for as long, so its connection is never idle."""
    responses = UnreadResponses(LIMIT, IDLE_S)
    silent = Connection(responses)
    await clock.passes(IDLE_S - 2 * LOOK_S)
    assert not silent.is_aborted
    await clock.passes(4 * LOOK_S)
    assert silent.is_aborted


async def test_a_slow_client_stays_while_there_is_room(clock: Clock):
    """It takes something in each period."""
    responses = UnreadResponses(LIMIT, IDLE_S)
    slow = Connection(responses)
    for _ in range(4):
        await clock.passes(IDLE_S - 2 * LOOK_S)
        slow.take(1)
    assert not slow.is_aborted
    await clock.passes(IDLE_S + 2 * LOOK_S)
    assert slow.is_aborted


@pytest.mark.parametrize("times", [1, 3])
async def test_a_client_that_has_read_stays(clock: Clock, times: int):
    """However often the transport was full."""
    responses = UnreadResponses(LIMIT, IDLE_S)
    for _ in range(times):
        connection = Connection(responses)
        responses.paused(connection)
        responses.ended(connection)
        responses.ended(connection)
    await clock.passes(IDLE_S + 2 * LOOK_S)
    assert not connection.is_aborted


async def test_slow_clients_of_one_owner_leave_half_of_the_memory_to_others(clock: Clock):
    """The one that leaves most goes first, until the owner has its half; other owners stay. Before, 30 clients that read
    nothing kept 605 MB for ten minutes.
    """
    responses = UnreadResponses(LIMIT, IDLE_S)
    many = [Connection(responses, "eve", size) for size in (100, 200, 300, 200)]
    other = Connection(responses, "ann", 200)
    await clock.passes(GRACE_S - LOOK_S / 2)
    assert not any(each.is_aborted for each in many)
    await clock.passes(4 * LOOK_S)
    assert [each.is_aborted for each in [*many, other]] == [False, False, True, False, False]


async def test_slow_clients_of_many_owners_share_the_memory(clock: Clock):
    """What no owner has alone is too much together."""
    responses = UnreadResponses(LIMIT, IDLE_S)
    many = [Connection(responses, f"user-{each}", 300) for each in range(5)]
    await clock.passes(4 * LOOK_S + GRACE_S)
    assert [each.is_aborted for each in many] == [True, True, False, False, False]


async def test_a_client_that_reads_in_time_stays_while_memory_is_short(clock: Clock):
    """At a pace at which the response is read in RESPONSE_TIMEOUT_S; half of it is too slow."""
    responses = UnreadResponses(LIMIT, IDLE_S)
    size = 1500
    in_time, too_slow, silent = (Connection(responses, name, size) for name in ("ann", "bob", "eve"))
    for _ in range(int(RESPONSE_TIMEOUT_S / LOOK_S) - 5):
        in_time.take(int(size * LOOK_S / RESPONSE_TIMEOUT_S))
        too_slow.take(int(size * LOOK_S / RESPONSE_TIMEOUT_S / 2))
        await clock.passes(LOOK_S)
    assert [each.is_aborted for each in (in_time, too_slow, silent)] == [False, True, True]


async def test_one_response_stays_however_large_it_is(clock: Clock):
    """As one request does; and what is sent from files takes no memory."""
    responses = UnreadResponses(LIMIT, IDLE_S)
    large = Connection(responses, "eve", 10 * LIMIT)
    from_files = [Connection(responses, "eve", 0, left=10 * LIMIT) for _ in range(20)]
    await clock.passes(10 * LOOK_S)
    assert not large.is_aborted
    assert not any(each.is_aborted for each in from_files)
