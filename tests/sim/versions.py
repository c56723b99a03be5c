"""The same seed on every Python at hand: newer interpreters, each in an environment of its own, and their journals.

``python -m tests.sim.versions [SEED ...]`` compares them and says what it found; exit 1 when they differ.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEWER = tuple(f"python3.{minor}" for minor in range(sys.version_info.minor + 1, 20))
SEEDS = (3, 18)
INSTALL_TIMEOUT_S = 240
RUN_TIMEOUT_S = 500


def newer() -> list[str]:
    """Working interpreters newer than this one: on PATH, or of pyenv; one of each version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found: dict[str, str] = {}
    for name in NEWER:
        places = [shutil.which(name), *sorted(map(str, pyenv.glob(f"*/bin/{name}")))]
        for place in filter(None, places):
            told = subprocess.run([place, "-c", "import ensurepip"], capture_output=True, check=False)
            if told.returncode == 0:
                found.setdefault(name, place)
    return list(found.values())


def environments(folder: Path, *, newest_only: bool = False) -> list[str]:
    """Interpreters of :func:`newer` with what the simulator needs; where that cannot be installed it is said."""
    pythons = newer()[-1:] if newest_only else newer()
    made = [environment(python, folder / str(index)) for index, python in enumerate(pythons)]
    return [each for each in made if each is not None]


def environment(python: str, folder: Path) -> str | None:
    """An environment made with ``python``; its interpreter. None without a package index to install from."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    own = str(folder / "bin" / "python")
    # This environment's pip, and no wheel of this tree: to install one and build the other takes longer than the rest.
    pip = [sys.executable, "-m", "pip", "--python", own, "--disable-pip-version-check"]
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    install = [*pip, "install", "--quiet", "--no-compile", *dependencies]
    try:
        subprocess.run(install, capture_output=True, text=True, check=True, timeout=INSTALL_TIMEOUT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{python} is left out, its dependencies could not be installed: {error}\n{error.stderr}")  # noqa: T201
        return None
    return own


def journal(python: str, seed: int, *, hash_seed: str = "0") -> str:
    """SHA-256 of the journal that a fresh interpreter writes of the seed's run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        subprocess.run(
            [python, "-m", "minikafka", "sim", "show", str(seed), "--journal", str(path)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            timeout=RUN_TIMEOUT_S,
        )
        written = path.read_bytes()
    if written.count(b"\n") < 100 or not re.search(rb'"event":"hw_advanced"', written):
        raise RuntimeError(f"seed {seed}: the journal says nothing")
    return hashlib.sha256(written).hexdigest()


def compared(pythons: Iterable[str], seeds: Iterable[int]) -> dict[int, dict[str, str]]:
    """Seed to interpreter to its journal's hash; each interpreter has another hash seed."""
    interpreters = list(pythons)
    return {
        seed: {python: journal(python, seed, hash_seed=str(index)) for index, python in enumerate(interpreters)}
        for seed in seeds
    }


def main(arguments: list[str]) -> int:
    """Compare, print a line a seed."""
    with tempfile.TemporaryDirectory() as folder:
        found = compared([sys.executable, *environments(Path(folder))], map(int, arguments or map(str, SEEDS)))
    for seed, hashes in found.items():
        verdict = "the same" if len(set(hashes.values())) == 1 else f"DIFFERENT {hashes}"
        print(f"seed {seed}: {len(hashes)} interpreters, journals {verdict}")  # noqa: T201
    return int(any(len(set(hashes.values())) > 1 for hashes in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
