"""A SPARK_HOME of a test's own: what pip installed, by links, and a private ``work`` for executors of local-cluster.

It lacks Spark's copy of its Python sources (``python/lib/pyspark.zip``), which precedes the installed package in the path of
each Python that Spark starts. Python keeps no byte code for a zip file: every such process would compile the modules that
it imports, which takes 0.8 s of its 1.0 s of CPU. A query in transactions starts 25 of them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

JAVA_OPTIONS = {
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
}
"""For JVMs that live for a minute: to compile well costs them twice the processor time that it saves, and to verify the
bytecode of Spark's classes a sixth of the time in which a session starts.
"""


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
