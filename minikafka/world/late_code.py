"""Code that a broker loads when a connection first needs it.

Imports take a tenth of a second and more, so they run on a thread: the connection waits, and the event loop serves the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from importlib import import_module

from minikafka.wire.garbage import without_collection


class LateCode:
    """Modules that are loaded together. A process has one object for them."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._is_loaded = False

    def is_loaded(self, then: Callable[[], None]) -> bool:
        """Return True if the modules are loaded. If not, load them, and call ``then`` in the running loop."""
        if not self._is_loaded:
            loading = asyncio.get_running_loop().run_in_executor(None, self.load)
            loading.add_done_callback(partial(_go_on, then))
        return self._is_loaded

    def load(self) -> None:
        """Load them now, in this thread."""
        with without_collection():
            for module in self._modules:
                import_module(module)
        self._is_loaded = True


def _go_on(then: Callable[[], None], loading: asyncio.Future[None]) -> None:
    if not loading.cancelled():
        loading.result()  # a failed import is a bug, which the loop's exception handler gets
        then()
