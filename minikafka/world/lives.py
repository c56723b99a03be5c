"""What tests do to a broker as a whole: stop it in good order, kill it, start it again.

LocalCluster has all of its brokers in hand; a process of its own (``serve``) has itself, and cannot start again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from minikafka.errors import BrokerNotAvailable, InvalidRequest
from minikafka.types import NodeId

Act: TypeAlias = Callable[[NodeId], Awaitable[None]]

AFTER_THE_ANSWER_S = 0.05
"""A broker that is asked to end itself answers first."""


@dataclass(frozen=True, slots=True)
class Lives:
    """``nodes``: the brokers in hand. Each act returns when it is done; BrokerNotAvailable, InvalidRequest."""

    nodes: Callable[[], Collection[NodeId]]
    stop: Act
    """A controlled shutdown."""
    kill: Act
    """As kill -9."""
    start: Act
    """Start one that is down, on its port and its files, and wait until it is ready."""
    starts_others: bool = False
    """``start`` can start brokers of other processes too."""
    _soon: set[asyncio.Task[None]] = field(default_factory=set)

    def soon(self, act: Act, node: NodeId) -> None:
        """Do it when the answer to the present request is out."""

        async def later() -> None:
            await asyncio.sleep(AFTER_THE_ANSWER_S)
            try:
                await act(node)
            except BrokerNotAvailable:
                # The whole cluster was stopped meanwhile.
                return

        task = asyncio.create_task(later(), name=f"act-on-{node}")
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)


def own_process(node: NodeId, start_another: Act | None = None) -> Lives:
    """The life of this process, which is broker ``node`` and nothing else.

    ``start_another`` lets the program that started this process start a broker that has ended.
    """

    async def stop(_node: NodeId) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def kill(_node: NodeId) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def start(_node: NodeId) -> None:
        raise InvalidRequest(
            f"broker {node} runs as a process of its own; when it is down, the program that started it starts it again",
            field="do",
        )

    return Lives(lambda: (node,), stop, kill, start_another or start, starts_others=start_another is not None)
