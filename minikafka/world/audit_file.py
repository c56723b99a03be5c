"""The audit log as a file of its own: events about who did what, or tried to, as JSON lines (``mk.audit.path``)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from minikafka.world.events import as_json, journal_entry

AUDITED = frozenset(
    {
        "client_authentication_failed",
        "client_login_failed",
        "jwks_failed",
        "jwks_loaded",
        "request_allowed",
        "request_denied",
        "tls_reload_failed",
        "tls_reloaded",
    }
)
"""Kinds of events that the file has."""

TEXT_SIZE_MAX = 255


class AuditFile:
    """An observer of events. Only the owner may read the file: names of users and topics are in it."""

    def __init__(self, path: str, node: str) -> None:
        """Open or create the file. Raises OSError."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.fchmod(self._file, 0o600)
        self._node = node
        self._number = 0

    def __call__(self, kind: str, facts: Mapping[str, object]) -> None:
        """Write an event of AUDITED as one line; ``seq`` counts the lines of this process."""
        if kind not in AUDITED or self._file < 0:
            return
        self._number += 1
        cut = {name: each[:TEXT_SIZE_MAX] if isinstance(each, str) else each for name, each in facts.items()}
        entry = journal_entry(kind, cut, node=self._node, wall_ns=time.time_ns(), cause="")
        os.write(self._file, as_json({"seq": self._number, **entry}).encode())

    def close(self) -> None:
        """Later events are not kept."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
