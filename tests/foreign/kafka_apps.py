"""Apache Kafka's programs that run beside brokers: Kafka Connect, Kafka Streams, and programs on Java's admin client."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

from tests.bench import kafka_jars
from tests.foreign.kafka_tools import JVM, NEWEST, java, shared_classes

HERE = Path(__file__).parent
CONNECT = "kafka_connect"
STREAMS = "kafka_streams"

LOGGING = """status = error
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


@functools.cache
def java_with(name: str) -> tuple[Path, str]:
    """The Java program, and the class path of this list of jars and Kafka's tools. NoKafka names what is missing."""
    program, tools = java(NEWEST)
    pinned = kafka_jars.parse((HERE / f"{name}_{NEWEST}.txt").read_text(encoding="ascii"))
    paths = kafka_jars.fetch_all(pinned, kafka_jars.cache_folder() / f"{name}_{NEWEST}")
    # The tools first: their archive of classes is for class paths that begin so.
    return program, os.pathsep.join([tools, *map(str, paths)])


def command(name: str, folder: Path, main: str, *arguments: str | Path) -> list[str]:
    """The command that runs a main class; its log goes to standard error."""
    program, class_path = java_with(name)
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING, encoding="ascii")
    options = (*JVM, *shared_classes(*java(NEWEST)), f"-Dlog4j2.configurationFile={logging}", "-cp", class_path)
    return [str(program), *options, main, *map(str, arguments)]


def properties(path: Path, settings: dict[str, str | Path]) -> Path:
    """Write a Java properties file."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="ascii")
    return path


def has_compiler() -> bool:
    """Return True if this Java can run a source file."""
    program, _ = java(NEWEST)
    modules = subprocess.run([program, "--list-modules"], capture_output=True, text=True, timeout=60.0, check=True)
    return "jdk.compiler@" in modules.stdout
