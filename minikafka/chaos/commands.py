"""Commands of the system: whether they are there, and what they said.

Rule for this file: a command that fails is an error with its own words; none may take forever.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

from minikafka.errors import WorldError

COMMAND_TIMEOUT_S: Final = 20.0


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
