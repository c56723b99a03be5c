"""Chooses between the rules that mypyc has compiled and their Python sources; the two are the same code.

``tools/compile_rules.py`` writes the package ``minikafka_compiled``: extension modules, and a file ``SOURCES`` with the
SHA-256 and the name of each module that it compiled. Compiled modules call each other directly in C, so a process uses
all of them or none. It uses none if MINIKAFKA_PURE is set, if they are built for another Python, or if a source has
changed since.

Rules for this file: it decides once, when the first of these modules is imported, and imports nothing of minikafka.
Every program that imports minikafka imports this file: it loads ``pathlib`` and ``importlib.util`` only where compiled
modules are installed, and never ``importlib.abc`` or ``typing``, which would multiply the time of ``import minikafka``.
Type checkers treat a variable named TYPE_CHECKING as true, wherever it comes from.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

PURE_VARIABLE = "MINIKAFKA_PURE"
"""Environment variable: any value but an empty one and 0 selects the Python sources."""

PACKAGE = "minikafka_compiled"
LIBRARY = "minikafka_rules__mypyc"
"""The shared library that holds the code of all compiled modules."""

COMPILED, PURE = "compiled", "pure Python"


class CompiledRules:
    """Finds the compiled modules in place of their sources; an entry of ``sys.meta_path``."""

    def __init__(self) -> None:
        self._names: frozenset[str] | None = None
        self._files: dict[str, Path] | None = None
        self.why_not = ""
        """Why the Python sources are used; empty if they are not."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - a finder's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return where a compiled module is; None for all other modules."""
        if not fullname.startswith("minikafka") or fullname not in self._compiled_names():
            return None
        file = self.files().get(fullname)
        if file is None:
            return None
        from importlib.util import spec_from_file_location  # noqa: PLC0415 - see the rules for this file

        return spec_from_file_location(fullname, file)

    def _compiled_names(self) -> frozenset[str]:
        # Other modules must not cause the decision: a pytest plugin is imported before conftest.py sets MINIKAFKA_PURE.
        if self._names is None:
            folder = _folder()
            self._names = frozenset() if folder is None else frozenset((LIBRARY, *_sources(folder)))
        return self._names

    def files(self) -> dict[str, Path]:
        """Return the extension module of each compiled module; nothing if the Python sources are to be used."""
        if self._files is None:
            self._files, self.why_not = _choose()
        return self._files


def is_pure() -> bool:
    """Return True if the environment asks for the Python sources."""
    return os.environ.get(PURE_VARIABLE, "") not in ("", "0")


def _choose() -> tuple[dict[str, Path], str]:
    if is_pure():
        return {}, f"{PURE_VARIABLE}={os.environ[PURE_VARIABLE]}"
    folder = _folder()
    return compiled_in(folder) if folder is not None else ({}, "not compiled")


def _folder() -> Path | None:
    spec = PathFinder.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    from pathlib import Path  # noqa: PLC0415 - see the rules for this file

    return Path(next(iter(spec.submodule_search_locations)))


def _sources(folder: Path) -> dict[str, str]:
    try:
        words = (folder / "SOURCES").read_text(encoding="utf-8").split()
    except OSError:
        return {}
    return dict(zip(words[1::2], words[::2], strict=True))


def compiled_in(folder: Path) -> tuple[dict[str, Path], str]:
    """Return the compiled modules in ``folder`` by name, or nothing and the reason why they cannot be used."""
    from hashlib import sha256  # noqa: PLC0415 - needed only where compiled modules are installed
    from pathlib import Path  # noqa: PLC0415

    root = Path(__file__).parent.parent
    sources = _sources(folder)
    if not sources:
        return {}, "not compiled"
    files = {name: folder / f"{name}{EXTENSION_SUFFIXES[0]}" for name in (LIBRARY, *sources)}
    if not all(file.is_file() for file in files.values()):
        return {}, f"compiled for another Python than {sys.implementation.cache_tag}"
    for name, digest in sources.items():
        source = root.joinpath(*name.split(".")).with_suffix(".py")
        try:
            if sha256(source.read_bytes()).hexdigest() == digest:
                continue
        except OSError:
            pass
        return {}, f"{name} has changed since it was compiled; run: make compiled"
    return files, ""


RULES = CompiledRules()


def install() -> None:
    """Let imports find the compiled modules."""
    if RULES not in sys.meta_path:
        sys.meta_path.insert(0, RULES)


def build() -> str:
    """Return "compiled" or "pure Python": what this process runs."""
    return COMPILED if RULES.files() else PURE


def description() -> str:
    """As :func:`build`, with the reason if it is pure Python."""
    return build() if RULES.files() else f"{PURE}: {RULES.why_not}"
