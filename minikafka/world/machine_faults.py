"""What is wrong with one broker's machine, for tests: its disk is full, slow or fails to sync; its calendar is wrong.

Rules for this file: set on the loop, looked at on the loop and by the disk's threads, so each is one attribute. A full
disk refuses a write before it begins; a failing sync has not reached the disk; the monotonic clock is never touched.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from threading import Lock

_COUNTING = Lock()
"""Several threads sync, and count."""


@dataclass(slots=True)
class MachineFaults:
    """Of one machine; nothing is wrong at first."""

    disk_full: bool = False
    """No room for another byte."""
    sync_delay_ms: float = 0.0
    """What each sync takes more."""
    failing_syncs: int = 0
    """So many of the next syncs fail."""
    calendar_ahead_ms: int = 0
    """Ahead of the true time; behind it when negative."""
    struck: int = 0
    """Writes refused, syncs delayed and failed so far."""

    def before_write(self) -> None:
        """OSError (ENOSPC) when the disk is full."""
        if self.disk_full:
            self.struck += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def before_sync(self) -> None:
        """On a thread of the disk: wait as long as a slow disk; OSError (EIO) when this sync fails."""
        delay_s = self.sync_delay_ms / 1000
        if delay_s:
            with _COUNTING:
                self.struck += 1
            time.sleep(delay_s)
        with _COUNTING:
            fails = self.failing_syncs > 0
            self.failing_syncs -= fails
            self.struck += fails
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
