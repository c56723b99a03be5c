"""Apache Kafka's command-line tools: their jars, and their tests as suites of `make foreign`."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from minikafka import LocalCluster
from tests.bench import kafka_jars, kafka_processes
from tests.bench.kafka_jars import Jar, NoKafka
from tests.foreign.suites import Addresses, NotAtHand, Suite, Verdict, Verdicts, run_logged
from tests.tidy.sources import ROOT

HERE = Path(__file__).parent
NEWEST = "4.3.1"
OLDEST = "3.9.1"
TIMEOUT_S = 1200.0
JVM = (
    "-Xmx256m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""For programs that live for seconds: they mostly load classes."""
FILES = ("test_kafka_tools.py", "test_secured_tools.py")
ALL_VARIABLE = "MINIKAFKA_EVERY_TOOL"
"""Set by `make foreign`, for which the tests of all tools run."""

_LINE = re.compile(r"^(\S+::.+?) (PASSED|FAILED|SKIPPED|ERROR)\b", re.MULTILINE)
_VERDICTS = {"PASSED": Verdict.PASSED, "SKIPPED": Verdict.SKIPPED}


def jars(version: str) -> list[Jar]:
    """The pinned jars of the tools; those of the newest version complete the broker's, which `make bench` uses."""
    return kafka_jars.parse((HERE / f"kafka_tools_{version}.txt").read_text(encoding="ascii"))


@functools.cache
def java(version: str = NEWEST) -> tuple[Path, str]:
    """The Java program and the class path of Kafka's tools. NoKafka says what is missing."""
    found = kafka_processes.find()
    paths = kafka_jars.fetch_all(jars(version), kafka_jars.cache_folder() / "tools" / version)
    broker = [found.class_path] if version == NEWEST else []
    return found.program, os.pathsep.join([*map(str, paths), *broker])


@functools.cache
def shared_classes(program: Path, class_path: str) -> tuple[str, ...]:
    """Options of a tool that load its classes from an archive, which halves its processor time; () if this Java cannot.

    The first tool on a machine makes the archive. The JVM does without it when Java or the jars have changed.
    """
    key = hashlib.sha256(f"{program.resolve()} {class_path}".encode()).hexdigest()[:16]
    archive = kafka_jars.cache_folder() / "classes" / f"{key}.jsa"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder, LocalCluster(brokers=1) as cluster:
            made = Path(folder, "made.jsa")
            options = (*JVM, "-Xlog:disable", f"-XX:ArchiveClassesAtExit={made}", "-cp", class_path)
            tool = ("org.apache.kafka.tools.TopicCommand", "--list", "--bootstrap-server", cluster.bootstrap)
            subprocess.run([program, *options, *tool], capture_output=True, timeout=TIMEOUT_S, check=False)
            if not made.exists():
                return ()
            made.replace(archive)
    # Without a log: it would warn on standard output, among the tool's lines, that the archive is out of date.
    return f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"


def tool_command(version: str, folder: Path, main: str) -> list[str]:
    """The command of a tool's main class, without log lines; ``folder`` gets the files that silence them."""
    program, class_path = java(version)
    quiet = folder / "log4j2.properties"
    quiet.write_text("status=error\nrootLogger.level=off\n")
    older = folder / "log4j.properties"
    older.write_text("log4j.rootLogger=OFF\n")
    command = [str(program), *JVM, *shared_classes(program, class_path), f"-Dlog4j2.configurationFile={quiet}"]
    return [*command, f"-Dlog4j.configuration={older.as_uri()}", "-cp", class_path, main]


def verdicts_of(output: str) -> Verdicts:
    """The results in the output of `pytest -v`."""
    return {name.rpartition("/")[2]: _VERDICTS.get(outcome, Verdict.FAILED) for name, outcome in _LINE.findall(output)}


def run_pytest(
    command: list[str | Path], *, cwd: Path, log: Path, variables: Mapping[str, str] | None = None
) -> Verdicts:
    """Run pytest with the given options and environment variables in a process of its own."""
    environment = {**os.environ, ALL_VARIABLE: "1", **(variables or {})}
    options = ("-v", "-p", "no:cacheprovider", "--color=no")
    run_logged([*command, *options], cwd=cwd, log=log, env=environment, timeout_s=TIMEOUT_S)
    return verdicts_of(log.read_text(encoding="utf-8", errors="replace"))


def suite_of(version: str) -> Suite:
    """The tools of one version, run by the files of FILES, which start brokers of their own."""

    def prepare(_: Path) -> Path:
        try:
            java(version)
        except NoKafka as missing:
            raise NotAtHand(str(missing)) from missing
        return ROOT

    def run(root: Path, _: Addresses, logs: Path) -> Verdicts:
        command = [sys.executable, "-m", "pytest", *(HERE / each for each in FILES), "-k", version]
        return run_pytest(command, cwd=root, log=logs / "pytest.log")

    return Suite(f"kafka-tools-{version}", version, prepare, run, node_ids=[])


SUITES = [suite_of(NEWEST), suite_of(OLDEST)]
