"""What a run did, as a hash: equal runs have equal traces.

Rule for this file: it receives lines and makes none; they name who ran by birth number and function name, never by an
address.
"""

from __future__ import annotations

import hashlib


class Trace:
    """A running sha256 over everything that happened, and the lines themselves when asked for."""

    def __init__(self, *, keep_lines: bool = False) -> None:
        self.lines: list[str] | None = [] if keep_lines else None
        self.fresh: list[str] = []
        """Where a line is added."""
        self._hash = hashlib.sha256()

    def digest(self) -> None:
        """Take over what is fresh."""
        self._hash.update("\n".join([*self.fresh, ""]).encode())
        if self.lines is not None:
            self.lines.extend(self.fresh)
        self.fresh.clear()

    def hexdigest(self) -> str:
        """The hash so far: equal for equal runs. :attr:`lines` are complete up to here."""
        self.digest()
        return self._hash.hexdigest()
