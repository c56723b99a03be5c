"""Commands of the system: whether they are there, and what they said.

Rule for this file: a command that fails is an error with its own words; none may take forever.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from minikafka.errors import WorldError

ADMIN_RIGHTS: Final = (1 << 21) | (1 << 12)
"""CAP_SYS_ADMIN and CAP_NET_ADMIN of linux/capability.h."""

COMMAND_TIMEOUT_S: Final = 20.0


def forbidden(deed: str) -> str | None:
    """Why this process may not do what takes all of root's rights, as a sentence; None: it may."""
    if sys.platform != "linux":
        return f"only Linux can {deed}"
    if os.geteuid() != 0:
        return f"only root may {deed}"
    status = Path("/proc/self/status").read_text(encoding="ascii")
    rights = int(status.partition("CapEff:")[2].split()[0], 16)
    if rights & ADMIN_RIGHTS != ADMIN_RIGHTS:
        return f"root here may not {deed}: it lacks CAP_SYS_ADMIN or CAP_NET_ADMIN, as in a container"
    return None


def missing(needs: Mapping[str, str]) -> str | None:
    """What is not installed of ``needs`` (command -> the package that has it, on Debian), in words; None: nothing."""
    absent = [f"{command} (package {package})" for command, package in needs.items() if shutil.which(command) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def run(*command: str, data: str = "", timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """What a command of the system printed. WorldError with its own words when it fails."""
    try:
        done = subprocess.run(  # noqa: S603
            command, input=data, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError as error:
        raise WorldError(f"{command[0]} is not installed here") from error
    except subprocess.TimeoutExpired as error:
        raise WorldError(f"{' '.join(command)}: not done in {timeout_s:.0f} s") from error
    if done.returncode:
        raise WorldError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
