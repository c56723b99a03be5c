"""How objects of this package travel to executors: by name, with a sentence for those that lack the package.

Spark pickles readers and writers by reference; a Python without minikafka would say no more than ModuleNotFoundError,
from deep inside. The function that opens the parcel travels by value instead (it pretends to be of ``__main__``), so
that it can say what to install, and where.
"""

from __future__ import annotations

from typing import Any


def _open(module: str, name: str, state: dict[str, Any]) -> Any:
    import importlib  # noqa: PLC0415 - the function travels alone
    import socket  # noqa: PLC0415
    import sys  # noqa: PLC0415

    try:
        kind = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the Python of an executor ({sys.executable} on {socket.gethostname()}) has no {error.name}: run "
            f"`{sys.executable} -m pip install '.[spark]'` there, in a clone of minikafka; every driver and executor "
            "needs it"
        ) from error
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


_open.__module__ = "__main__"


class Travels:
    """Mixin: pickled as its module's name, its own name and its attributes."""

    def travelling(self) -> dict[str, Any]:
        """The attributes that go along."""
        return self.__dict__

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (type(self).__module__, type(self).__qualname__, self.travelling())
