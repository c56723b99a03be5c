"""An archive of the classes that Spark loads, which halves the processor time that a JVM needs for a session and its first query.

It is made once for an installed Spark, which takes 50 s of CPU and saves 6 s for each session, and lies beside it in the
environment: ``make clean`` removes both. The JVM does without it when Java, the jars or their order have changed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from minikafka.spark.session import open_session
from minikafka.testing.local_cluster import LocalCluster
from tests.spark.spark_home import INTERPRETED, JAVA_OPTIONS
from tests.tidy.sources import ROOT

TIMEOUT_S = 500
PREFIX = "spark-classes-"


def pyspark() -> Path:
    """The folder of the installed Spark, with its jars."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def archive_for(java_home: Path) -> Path:
    """The archive of this Java and this Spark."""
    told = hashlib.sha256(f"{java_home.resolve()}".encode())
    for jar in sorted(pyspark().glob("jars/*.jar")):
        status = jar.stat()
        told.update(f"{jar} {status.st_size} {status.st_mtime_ns}\n".encode())
    return Path(sys.prefix, f"{PREFIX}{told.hexdigest()[:16]}.jsa")


@functools.cache
def java_options(java_home: Path) -> Mapping[str, str]:
    """Environment variables for JVMs of this Java, with the archive. The first call on a machine makes the archive."""
    # A Java without an archive of its own classes cannot add to it; the machine's own Python is no place for it.
    if not (java_home / "lib" / "server" / "classes.jsa").exists() or sys.prefix == sys.base_prefix:
        return JAVA_OPTIONS
    archive = archive_for(java_home)
    if not archive.exists() and not _make(archive):
        return JAVA_OPTIONS
    # Without a log: each JVM of another class path would warn on standard output that the archive is not for it.
    return {name: f"{value} -XX:SharedArchiveFile={archive} -Xlog:disable" for name, value in JAVA_OPTIONS.items()}


def _make(archive: Path) -> bool:
    """Make the archive in place of older ones. Return False if this Java or this environment does not allow it."""
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            made = Path(folder, "made.jsa")
            # Not for the JVM that only composes the command of the other.
            options = {"SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"}
            # The archive holds the paths of the jars. A SPARK_HOME of a test has links to them, which count as the same.
            places = {"SPARK_HOME": str(pyspark()), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
            subprocess.run(
                [sys.executable, "-m", "tests.spark.shared_classes"],
                cwd=folder,
                env={**os.environ, **JAVA_OPTIONS, **options, **places},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_S,
                check=False,
            )
            if not made.exists():
                return False
            for older in archive.parent.glob(f"{PREFIX}*.jsa"):
                older.unlink(missing_ok=True)
            made.replace(archive)
    except OSError:
        return False
    return True


def main() -> None:
    """Load the classes that the tests need: a session, a batch query, and a stream into files."""
    session = open_session("classes", "local[2]", INTERPRETED)
    gateway = session.sparkContext._gateway
    with LocalCluster(brokers=1) as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.sync.create_topic("classes")
        cluster.sync.produce("classes", b"1")
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "classes"}
        session.read.format("minikafka").options(**options).load().groupBy("partition").count().collect()
        rows = session.readStream.format("minikafka").options(**options, startingOffsets="earliest").load()
        writer = rows.selectExpr("value").writeStream.trigger(availableNow=True).format("parquet")
        writer.options(path=f"{folder}/rows", checkpointLocation=f"{folder}/checkpoint").start().awaitTermination()
    session.stop()
    # The JVM writes the archive when it ends, and it ends with its standard input.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(TIMEOUT_S)


if __name__ == "__main__":
    main()
