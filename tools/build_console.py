"""Build the console that brokers serve from its TypeScript sources (``make console``); users need no Node.

``python tools/build_console.py`` checks the types of ``web/`` and writes the built files to ``minikafka/rest/assets``;
with ``--check`` it changes nothing and names built files that differ from their sources. Node 20 with npm must be
installed; the packages of ``web/package-lock.json`` are installed into ``web/node_modules``.
"""

from __future__ import annotations

import fcntl
import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "web"
BUILT = ROOT / "minikafka" / "rest" / "assets"
MODULES = SOURCES / "node_modules"
STAMP = MODULES / ".installed"
TIMEOUT_S = 300


class Failed(Exception):
    """A command failed; what it printed."""


@functools.cache
def install() -> None:
    """Install the packages of the lock file, if they are not. Raises Failed."""
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            raise Failed(f"no {name} here (Debian, Ubuntu: apt install nodejs npm)")
    wanted = (SOURCES / "package-lock.json").read_text(encoding="utf-8")
    (ROOT / "build").mkdir(exist_ok=True)
    # Workers of pytest-xdist would install at the same time.
    with (ROOT / "build" / "console.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not STAMP.exists() or STAMP.read_text(encoding="utf-8") != wanted:
            _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
            STAMP.write_text(wanted, encoding="utf-8")


def check_types() -> None:
    """Raises Failed with the compiler's messages."""
    _run("node", str(MODULES / "typescript" / "bin" / "tsc"), "--noEmit")


def build(folder: Path) -> None:
    """Write the built files into a folder. Raises Failed."""
    _run("node", "build.mjs", str(folder))


def differences() -> list[str]:
    """Return a sentence for each built file that is not what the sources give."""
    with tempfile.TemporaryDirectory(prefix="minikafka-console-") as scratch:
        fresh = Path(scratch)
        build(fresh)
        return [
            f"{BUILT.relative_to(ROOT) / each.name} differs from its sources in web/; run: make console"
            for each in sorted(fresh.iterdir())
            if not (BUILT / each.name).exists() or (BUILT / each.name).read_bytes() != each.read_bytes()
        ]


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr).strip()}")


def main(arguments: list[str]) -> int:
    """Build, or compare; return the exit code."""
    try:
        install()
        check_types()
        if "--check" in arguments:
            wrong = differences()
            print("\n".join(wrong) or "The built console is that of web/.")
            return 1 if wrong else 0
        build(BUILT)
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    for each in sorted(BUILT.iterdir()):
        print(f"{each.relative_to(ROOT)}: {each.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
