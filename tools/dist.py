"""Build the wheel and the sdist into ``dist/``, check them, and run three brokers from the installed wheel.

``python tools/dist.py`` does what a release needs, and publishes nothing (``make dist``):

1. build both from this tree, and a wheel from the unpacked sdist: the two wheels must be equal byte by byte;
2. check their metadata, and that the wheel holds every file of the packages;
3. install the wheel into a new environment, start three brokers from it, and write and read records.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

from packaging.metadata import Metadata
from packaging.utils import parse_sdist_filename, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PACKAGES = ("minikafka", "pyspark_minikafka")
COMPILE_VARIABLE = "MINIKAFKA_COMPILE"
TIMEOUT_S = 600

# Runs in the new environment, which has nothing of this tree.
THREE_BROKERS = """
import asyncio, subprocess, sys, tempfile
from pathlib import Path
import minikafka
from minikafka.hosting.processes import ProcessCluster

assert Path(minikafka.__file__).is_relative_to(sys.prefix), minikafka.__file__
command = Path(sys.executable).parent / "minikafka"

def run(*arguments, data=""):
    done = subprocess.run([command, *arguments], input=data, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout

async def main(folder):
    async with ProcessCluster(brokers=3, data_dir=Path(folder)) as cluster:
        at = ("-b", cluster.bootstrap)
        create = ("topics", "create", "smoke", "--partitions", "3", "--replication-factor", "3")
        await asyncio.to_thread(run, *create, *at)
        sent = [f"record {number}" for number in range(100)]
        await asyncio.to_thread(run, "produce", "smoke", *at, data="\\n".join(sent) + "\\n")
        printed = await asyncio.to_thread(run, "consume", "smoke", "--from-beginning", "--exit-at-end", *at)
        assert sorted(printed.splitlines()) == sorted(sent), printed

assert run("--version").startswith(f"minikafka {minikafka.__version__} ")
with tempfile.TemporaryDirectory(prefix="minikafka-dist-") as folder:
    asyncio.run(main(folder))
"""


def version() -> str:
    """Return the version of this tree."""
    text = (ROOT / "minikafka" / "__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(found)


def build(source: Path, folder: Path, *targets: str) -> None:
    """Build the targets (``wheel``, ``sdist``) of a source tree into a folder. The rules are never compiled here."""
    environment = {name: value for name, value in os.environ.items() if name != COMPILE_VARIABLE}
    options = [each for target in targets for each in ("-t", target)]
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), *options, cwd=source, environment=environment)


def wheel_in(folder: Path) -> Path:
    """Return the one wheel of a folder."""
    (found,) = folder.glob("*.whl")
    return found


def sdist_in(folder: Path) -> Path:
    """Return the one sdist of a folder."""
    (found,) = folder.glob("*.tar.gz")
    return found


def wheel_of_tree() -> Path:
    """Build the wheel into ``dist/``, where the image's build finds it, in place of older ones."""
    for old in DIST.glob("*.whl"):
        old.unlink()
    build(ROOT, DIST, "wheel")
    return wheel_in(DIST)


def metadata_of(wheel: Path, sdist: Path) -> Metadata:
    """Return the validated metadata, which wheel and sdist must share. Raises ValueError."""
    with ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        of_wheel = archive.read(name)
    with tarfile.open(sdist) as archive_of_sdist:
        (member,) = [
            each for each in archive_of_sdist.getmembers() if each.name.count("/") == 1 and "PKG-INFO" in each.name
        ]
        file = archive_of_sdist.extractfile(member)
        of_sdist = file.read() if file else b""
    if of_wheel != of_sdist:
        raise ValueError(f"the metadata of {wheel.name} and {sdist.name} differ")
    return Metadata.from_email(of_wheel, validate=True)


def metadata_faults(metadata: Metadata) -> Iterator[str]:
    """Yield what validation accepts and a release must not have."""
    if str(metadata.version) != version():
        yield f"version {metadata.version} is not that of the package, {version()}"
    if metadata.description_content_type != "text/markdown" or not (metadata.description or "").startswith(
        "# minikafka"
    ):
        yield "the description is not README.md"
    for field in ("summary", "license_expression", "license_files", "requires_python", "requires_dist", "classifiers"):
        if not getattr(metadata, field):
            yield f"{field} is empty"


def name_faults(wheel: Path, sdist: Path) -> Iterator[str]:
    """Yield names of files that index and pip would read as another project or version."""
    for name, found in (
        (wheel.name, parse_wheel_filename(wheel.name)[:2]),
        (sdist.name, parse_sdist_filename(sdist.name)),
    ):
        if (found[0], str(found[1])) != ("minikafka", version()):
            yield f"{name} names {found[0]} {found[1]}"


def content_faults(wheel: Path) -> Iterator[str]:
    """Yield files of the packages that the wheel lacks or has in addition."""
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.split("/")[0] in PACKAGES}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    yield from (f"{wheel.name} lacks {name}" for name in sorted(wanted - held))
    yield from (f"{wheel.name} has {name}, which this tree has not" for name in sorted(held - wanted))


def rebuilt_faults(wheel: Path, sdist: Path, folder: Path) -> Iterator[str]:
    """Yield a sentence if the sdist builds another wheel than this tree does."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    build(source, folder / "built", "wheel")
    if wheel_in(folder / "built").read_bytes() != wheel.read_bytes():
        yield f"{sdist.name} builds another wheel than this tree"


def run_three_brokers(wheel: Path, folder: Path) -> None:
    """Install the wheel with its dependencies into a new environment, and use it there."""
    venv.create(folder / "environment", with_pip=False)
    python = str(folder / "environment" / "bin" / "python")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    _run(*pip, "install", "--quiet", str(wheel))
    _run(*pip, "check")
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MINIKAFKA", "MK_"))
    }
    _run(python, "-I", "-c", THREE_BROKERS, cwd=folder, environment=inherited)


def main() -> int:
    """Do it all; 1 if something is wrong."""
    print("==> building dist/", flush=True)
    for old in [*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")]:
        old.unlink()
    build(ROOT, DIST, "wheel", "sdist")
    wheel, sdist = wheel_in(DIST), sdist_in(DIST)
    with tempfile.TemporaryDirectory(prefix="minikafka-dist-") as scratch:
        rebuilt, installed = Path(scratch, "rebuilt"), Path(scratch, "installed")
        rebuilt.mkdir()
        installed.mkdir()
        print("==> checking metadata and contents", flush=True)
        faults = [
            *name_faults(wheel, sdist),
            *metadata_faults(metadata_of(wheel, sdist)),
            *content_faults(wheel),
            *rebuilt_faults(wheel, sdist, rebuilt),
        ]
        if faults:
            print("\n".join(faults), file=sys.stderr)
            return 1
        print("==> three brokers from the wheel, in a new environment", flush=True)
        run_three_brokers(wheel, installed)
    print(f"{wheel.relative_to(ROOT)} and {sdist.relative_to(ROOT)} can be released")
    return 0


def _run(*command: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {done.returncode}\n{done.stdout}")


if __name__ == "__main__":
    sys.exit(main())
