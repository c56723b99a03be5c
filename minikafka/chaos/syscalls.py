"""System calls of a running process that fail or take long: strace's injection.

Rules for this file: nothing of the process changes but what the call returns and when; when strace ends, whyever, the
kernel lets the process go and its calls are its own again.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Final

from minikafka.chaos.commands import forbidden, missing
from minikafka.errors import WorldError

SYNCS: Final = "fsync,fdatasync"


def why_not() -> str | None:
    """Why no call can be changed here, as a sentence; None: it can."""
    return forbidden("change the system calls of any process") or missing({"strace": "strace"})


class Injection:
    """Syncs of one process and of its threads are changed from the construction until :meth:`close`."""

    def __init__(self, pid: int, *, delay_s: float = 0.0, fails_next: bool = False) -> None:
        """``delay_s``: every sync takes so much longer; ``fails_next``: the next one of each thread fails with EIO."""
        effects = [f"delay_enter={round(delay_s * 1_000_000)}"] if delay_s else []
        if fails_next:
            effects += ["error=EIO", "when=1"]
        inject = ":".join([f"inject={SYNCS}", *effects])
        # Its words go to its standard error: first that it has attached, then each changed call, which nobody reads.
        command = ["strace", "-f", "-p", str(pid), "-e", f"trace={SYNCS}", "-e", inject]
        self._process = subprocess.Popen(  # noqa: S603
            [*command, "-o", os.devnull],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        line = self._process.stderr.readline() if self._process.stderr is not None else b""
        if b" attached" not in line:
            self.close()
            raise WorldError(f"strace cannot attach to process {pid}: {line.decode(errors='replace').strip()}")

    def close(self) -> None:
        """Let the process go."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
