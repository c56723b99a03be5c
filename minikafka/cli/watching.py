"""``--watch``: the same view again and again, until Ctrl-C.

At a terminal the view is drawn over the last one; into a pipe each view is printed whole, so that ``-o json`` gives one
object a line. Ctrl-C is the way to end it, and no failure.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from minikafka.cli.running import run

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Shown = TypeVar("Shown")

EVERY_S = 2.0
CLEAR = "\x1b[H\x1b[2J"
"""To the upper left corner, and nothing left of the last view."""


def watch_option(function: Decorated) -> Decorated:
    """``--watch``."""
    return click.option("--watch", is_flag=True, help=f"Show it again every {EVERY_S:.0f} seconds, until Ctrl-C.")(
        function
    )


def show(ask: Callable[[], Awaitable[Shown]], draw: Callable[[Shown], None], *, watch: bool) -> None:
    """Ask and draw once, or until it is interrupted."""

    async def once() -> Shown:
        return await ask()

    if not watch:
        draw(run(once))
        return

    async def again_and_again() -> None:
        try:
            while True:
                answer = await ask()
                if sys.stdout.isatty():
                    click.echo(CLEAR, nl=False)
                draw(answer)
                sys.stdout.flush()
                await asyncio.sleep(EVERY_S)
        except asyncio.CancelledError:
            return

    run(again_and_again)
