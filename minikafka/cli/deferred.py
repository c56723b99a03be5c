"""Packages of which a command needs a few submodules load these only.

``import aiohttp.web`` first runs ``aiohttp/__init__.py``, which loads the client and its TLS contexts with all trusted
certificates; aiokafka's loads all of its clients for the sake of its record codec, and prometheus_client's two HTTP
servers. A broker uses none of these: 7 MB of its memory and a sixth of its imports' time. :func:`defer` puts a package
into ``sys.modules`` without running its ``__init__.py``. Submodules are imported as before. The first use of any other
name runs ``__init__.py``, so that code that needs the whole package works unchanged.

Rule for this file: only the command line calls it. A library must not change how its user's process imports.
"""

from __future__ import annotations

import re
import sys
import threading
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

PACKAGES = ("aiohttp", "aiokafka", "javaproperties", "prometheus_client")
_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)
_LOCK = threading.RLock()


class DeferredPackage(ModuleType):
    """A package whose ``__init__.py`` has not run."""

    def __getattr__(self, name: str) -> object:
        # Python calls this only for names that the package does not have yet.
        if not self.__dict__.get("_is_loading") and find_spec(f"{self.__name__}.{name}") is not None:
            return import_module(f"{self.__name__}.{name}")
        with _LOCK:
            if self.__dict__.get("_is_loading"):  # by this thread: __init__.py itself looks for the name
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            if type(self) is DeferredPackage:
                self._load()
        return getattr(self, name)

    def _load(self) -> None:
        loader = self.__spec__.loader if self.__spec__ is not None else None
        if loader is None:
            raise ImportError(f"{self.__name__} has no loader", name=self.__name__)
        self.__dict__["_is_loading"] = True
        try:
            loader.exec_module(self)
        finally:
            del self.__dict__["_is_loading"]
        self.__class__ = ModuleType  # type: ignore[assignment]


def defer(*names: str) -> None:
    """Let these packages load without their ``__init__.py``; those that are loaded, or missing, stay as they are."""
    for name in names:
        spec = None if name in sys.modules else find_spec(name)
        if spec is None or spec.origin is None:
            continue
        package = module_from_spec(spec)
        package.__class__ = DeferredPackage
        # Submodules of aiohttp import it from the package.
        version = _VERSION.search(Path(spec.origin).read_text(encoding="utf-8"))
        if version is not None:
            package.__version__ = version[1]  # type: ignore[attr-defined]
        sys.modules[name] = package
