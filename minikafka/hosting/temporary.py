"""Folders for what is thrown away, in memory where there is room, and what killed processes left of theirs there.

``/dev/shm`` is not cleared before the next boot, and what a killed test run leaves there is memory. So a process that
makes a folder there first removes those whose owners are dead. Rules for this file:

1. An owner holds a lock (flock) on its folder: the kernel lets go of it when the process ends, however it ends, and no
   number of a process is mistaken for another's, in containers that share the memory neither.
2. A folder gets the name under which it may be swept only when it is locked.
3. Nothing but names of this file is ever touched, and nothing of another user.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from minikafka.config import GIB

MEMORY = Path("/dev/shm")  # noqa: S108 - only mkdtemp makes anything there
"""Linux's files in memory: a file is made thirty times as fast as on many disks, and a cluster begins with forty."""

ROOM_MIN = 1 * GIB
"""Less may be free there (containers have 64 MiB): then temporary files are where they always are."""

NAME: Final = "minikafka-cluster-"
UNLOCKED: Final = "minikafka-new-"


class TemporaryFolder:
    """A new folder for what is thrown away: in memory where there is room, unless TMPDIR says where."""

    def __init__(self) -> None:
        made = Path(tempfile.mkdtemp(prefix=UNLOCKED, dir=MEMORY if _has_room() else None))
        self._lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = made.rename(made.with_name(NAME + made.name.removeprefix(UNLOCKED)))

    def remove(self) -> None:
        """With everything in it; again: nothing happens."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _has_room() -> bool:
    """Shall it be in memory? What can be freed there is freed first."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK | os.X_OK):
        return False
    sweep(MEMORY)
    return shutil.disk_usage(MEMORY).free >= ROOM_MIN


def sweep(parent: Path) -> None:
    """Remove what dead owners have left in ``parent``."""
    for folder in parent.glob(f"{NAME}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # it has gone meanwhile, or is another user's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its owner lives
        else:
            if os.fstat(lock).st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
