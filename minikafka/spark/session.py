"""A SparkSession for the jobs: the Java that there is, loopback when the master is local, UTC, no web page."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from minikafka.spark.java import java_home

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
