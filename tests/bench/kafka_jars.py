"""Apache Kafka's own broker, fetched once: the jars that ``kafka_jars.txt`` pins by path and SHA-256, and nothing else.

The list is what ``org.apache.kafka:kafka_2.13`` needs at run time, and the logging back end of its own distribution. A
file whose digest differs is never given to a Java.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name("kafka_jars.txt")
REPOSITORY_VARIABLE = "MINIKAFKA_BENCH_MAVEN"
CACHE_VARIABLE = "MINIKAFKA_BENCH_CACHE"
REPOSITORY = "https://repo1.maven.org/maven2"
TIMEOUT_S = 60.0
AT_ONCE = 4

_LINE = re.compile(r"([0-9a-f]{64})  ((?:[\w.-]+/)+[\w.-]+\.jar)")
_VERSION = re.compile(r"/kafka_2\.13-([\d.]+)\.jar")


class NoKafka(Exception):
    """Apache Kafka cannot be had here; the sentence says why and what would help."""


class Jar(NamedTuple):
    """One line of the list."""

    path: str
    """Below the repository: group, artifact, version, file."""
    sha256: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def is_in(self, content: bytes) -> bool:
        """Is that the file that was pinned?"""
        return hashlib.sha256(content).hexdigest() == self.sha256


def parse(text: str) -> list[Jar]:
    """The list's lines, as ``sha256sum`` writes them. ValueError for anything else."""
    jars = []
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None or ".." in found[2]:
            raise ValueError(f"not a SHA-256, two spaces and a jar's path: {line!r}")
        jars.append(Jar(found[2], found[1]))
    return jars


def pinned() -> list[Jar]:
    """What the list says."""
    return parse(LIST.read_text(encoding="ascii"))


def kafka_version(jars: list[Jar]) -> str:
    """Of the broker in the list."""
    return next(found[1] for jar in jars if (found := _VERSION.search(jar.path)))


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where jars are kept between runs."""
    given = environment.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minikafka-bench"


def fetch_all(jars: list[Jar], folder: Path, repository: str | None = None) -> list[Path]:
    """All jars in ``folder``, from there or from the repository. NoKafka when one cannot be had or is another file."""
    base = (repository or os.environ.get(REPOSITORY_VARIABLE) or REPOSITORY).rstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda jar: _fetch(jar, folder, base), jars))


def _fetch(jar: Jar, folder: Path, base: str) -> Path:
    place = folder / jar.name
    if place.exists() and jar.is_in(place.read_bytes()):
        return place
    url = f"{base}/{jar.path}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content = answer.read()
    except (OSError, ValueError) as error:  # URLError is an OSError; ValueError: not a URL
        raise NoKafka(
            f"{url} cannot be fetched ({error}): a repository of yours can be named by {REPOSITORY_VARIABLE}"
        ) from error
    if not jar.is_in(content):
        raise NoKafka(f"{url} is not the file that {LIST.name} pins: its SHA-256 differs")
    fresh = place.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(place)
    return place
