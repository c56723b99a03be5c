"""A client that does not read its responses is disconnected, also while its next requests wait for room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from minikafka.world.connections import UnreadResponses

PERIOD_S = 0.02


class FakeTransport:
    """A transport that is full."""

    def __init__(self) -> None:
        self.unsent = 100
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_aborted = True


async def periods(count: int, then: Callable[[], Any] = lambda: None) -> None:
    """Wait for so many periods; call ``then`` in each."""
    for _ in range(count):
        then()
        await asyncio.sleep(PERIOD_S)


async def test_a_peer_that_takes_nothing_is_disconnected():
    """Its requests are under way for as long, so its connection is never idle."""
    transport, unread = FakeTransport(), UnreadResponses(PERIOD_S)
    unread.paused(cast("asyncio.Transport", transport))
    await periods(5)
    assert transport.is_aborted


async def test_a_slow_peer_stays():
    """It takes something in each period."""
    transport, unread = FakeTransport(), UnreadResponses(10 * PERIOD_S)
    unread.paused(cast("asyncio.Transport", transport))

    def take() -> None:
        transport.unsent -= 1

    await periods(40, take)
    assert not transport.is_aborted
    await periods(30)
    assert transport.is_aborted


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_a_peer_that_has_read_stays(times: int):
    """However often the transport was full."""
    transport, unread = FakeTransport(), UnreadResponses(PERIOD_S)
    for _ in range(times):
        unread.paused(cast("asyncio.Transport", transport))
        unread.paused(cast("asyncio.Transport", transport))
        unread.ended()
    await periods(4)
    assert not transport.is_aborted


async def test_a_connection_that_is_gone_has_nothing_to_watch():
    """The transport may end before its protocol is paused."""
    UnreadResponses(PERIOD_S).paused(None)
    await periods(2)
