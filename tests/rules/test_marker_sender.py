"""The sender of markers: what it does not hold up (issue 17, p50 of a commit)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from minikafka.broker.marker_sender import MarkerSender

TURNS_OF_A_RESPONSE = 4
"""The task of the request, its end, the session's turn, and the flush of the connection."""


def test_markers_are_sent_behind_the_response_to_the_commit():
    """Both become due in one step of the coordinator; the response needs some turns of the loop to its socket."""
    done: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    class Coordinator:
        markers = SimpleNamespace(next_at=0.0)

        def take_markers(self, *_: object) -> dict[int, list[Any]]:
            done.append("markers")
            self.markers.next_at = math.inf
            return {}

    class Shard:
        is_answering = True
        coordinator = Coordinator()

        def step(self) -> Any:
            return contextlib.nullcontext()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        shard = Shard()

        def spawn(work: Coroutine[Any, Any, None], _name: str) -> None:
            tasks.append(loop.create_task(work))

        sender = MarkerSender(
            1,
            cast("Any", SimpleNamespace(clock=SimpleNamespace(now=lambda: 1.0))),
            shards=lambda: cast("Any", [shard]),
            image=cast("Any", None),
            session_alive=lambda: True,
            broker_epoch=lambda: 1,
            write_here=cast("Any", None),
            spawn=cast("Any", spawn),
        )

        def respond(turns: int) -> None:
            if turns:
                loop.call_soon(respond, turns - 1)
            else:
                done.append("response")

        loop.call_soon(respond, TURNS_OF_A_RESPONSE - 1)
        sender.wake(cast("Any", shard))
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert done == ["response", "markers"]
