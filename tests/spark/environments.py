"""Python environments for a cluster's machines: what pip has installed here, with or without minikafka's own wheel."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("minikafka", "pyspark_minikafka", "_editable_impl_minikafka", "__editable__")
PIP_TIMEOUT_S = 400


def build_wheel(folder: Path) -> Path:
    """The wheel of this tree; nothing is fetched."""
    _pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT))
    (found,) = folder.glob("minikafka-*.whl")
    return found


def environment(folder: Path, wheel: Path | None) -> Path:
    """A fresh environment's Python: with all that is installed here but minikafka, and with ``wheel``."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.startswith(OURS) and each.suffix != ".pth":
            (packages / each.name).symlink_to(each)
    python = folder / "bin" / "python"
    if wheel is not None:
        _pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    return python


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True, timeout=PIP_TIMEOUT_S)


def by_machine(script: Path, *, usual: Path, where: str, other: Path) -> Path:
    """A ``python`` that is another one where the environment variable ``where`` is set."""
    script.write_text(f'#!/bin/sh\n[ -z "${where}" ] || exec "{other}" "$@"\nexec "{usual}" "$@"\n')
    script.chmod(0o755)
    return script
