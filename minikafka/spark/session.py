"""A SparkSession for the jobs: the Java that there is, loopback when the master is local, UTC, no web page."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from minikafka.spark.java import java_home

LOOPBACK = "127.0.0.1"


class NoSpark(Exception):
    """pyspark is not installed."""


def prepare_environment(master: str) -> None:
    """Set JAVA_HOME and what workers need, before the JVM starts. NoJava."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    if master.startswith("local"):
        # Or Spark binds to the machine's outer address.
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def open_session(name: str, master: str, settings: Mapping[str, str] | None = None) -> Any:
    """A session, made or found. NoSpark, NoJava."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NoSpark(f"Spark is not installed ({error}): pip install 'minikafka[spark]'") from error
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
