"""Python environments for a cluster's machines: what pip has installed here, with or without minikafka's own wheel."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

OURS = ("minikafka", "pyspark_minikafka", "_editable_impl_minikafka", "__editable__")
PIP_TIMEOUT_S = 400


def environment(folder: Path, wheel: Path | None) -> Path:
    """A fresh environment's Python: with all that is installed here but minikafka, and with ``wheel``."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.startswith(OURS) and each.suffix != ".pth":
            (packages / each.name).symlink_to(each)
    python = folder / "bin" / "python"
    if wheel is not None:
        # Each program compiles the modules that it imports, a tenth of them.
        options = ("--quiet", "--no-compile", "--no-deps", "--no-index")
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel)]
        subprocess.run(pip, check=True, timeout=PIP_TIMEOUT_S)
    return python


def by_machine(script: Path, *, usual: Path, where: str, other: Path) -> Path:
    """A ``python`` that is another one where the environment variable ``where`` is set."""
    script.write_text(f'#!/bin/sh\n[ -z "${where}" ] || exec "{other}" "$@"\nexec "{usual}" "$@"\n')
    script.chmod(0o755)
    return script
