"""Go and Node: are they at hand, with what the programs of this folder need?"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.bench import kafka_jars

HERE = Path(__file__).parent
CONFLUENT_VERSION = "1.10.1"
GO = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
"""The Go that is here, and the modules of go.sum."""


def output_of(*command: str | Path, cwd: Path) -> str:
    """What the command prints. RuntimeError with its last line if it fails."""
    done = subprocess.run(command, cwd=cwd, env=GO, capture_output=True, text=True, timeout=300.0, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{command[0]} {command[1]}: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]}"
        )
    return done.stdout


def why_not_go() -> str | None:
    """What keeps the programs in Go from running here. Modules are fetched once, into Go's own cache."""
    if shutil.which("go") is None:
        return "no go"
    try:
        output_of("go", "mod", "download", cwd=HERE / "go")
    except RuntimeError as error:
        return str(error)
    return None


def needs_node() -> None:
    """RuntimeError if there is no Node with npm."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise RuntimeError("no node with npm")


@functools.cache
def node_modules() -> Path:
    """The folder in which kafkajs is installed. RuntimeError tells what is missing."""
    needs_node()
    package = (HERE / "node" / "package.json").read_text(encoding="utf-8")
    [version] = re.findall(r'"kafkajs": "(.+?)"', package)
    folder = kafka_jars.cache_folder() / f"kafkajs-{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            (Path(made) / "package.json").write_text(package, encoding="utf-8")
            output_of("npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit", cwd=Path(made))
            # Another worker may have been sooner.
            if not folder.exists():
                shutil.copytree(made, folder, dirs_exist_ok=True)
    return folder / "node_modules"


def confluent_modules() -> Path:
    """The folder in which @confluentinc/kafka-javascript is built. RuntimeError tells what is missing."""
    needs_node()
    folder = kafka_jars.cache_folder() / f"kafka-javascript-{CONFLUENT_VERSION}"
    if not (folder / "built").exists():
        raise RuntimeError("@confluentinc/kafka-javascript is not built: make foreign builds it in some minutes")
    return folder / "node_modules"


def why_not_confluent() -> str | None:
    """What keeps the program for @confluentinc/kafka-javascript from running here."""
    try:
        confluent_modules()
    except RuntimeError as error:
        return str(error)
    return None


def why_not_node() -> str | None:
    """What keeps the program in JavaScript from running here."""
    try:
        node_modules()
    except RuntimeError as error:
        return str(error)
    return None
