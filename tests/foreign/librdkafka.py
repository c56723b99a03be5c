"""librdkafka's own tests, from the sources inside the npm package @confluentinc/kafka-javascript.

Each test number runs in a process of its own: a test that times out ends its process, and must not end the others.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import shutil
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from minikafka.config.security import STANDARD_AUTHORIZER
from tests.bench.kafka_jars import NoKafka, cache_folder
from tests.foreign.kafka_tools import java
from tests.foreign.suites import Addresses, NotAtHand, Suite, Verdict, Verdicts, build, run_logged

VERSION = "2.15.1"
PACKAGE = "@confluentinc/kafka-javascript@1.10.1"
SHA512 = "KVePUBn21EqCVP9mfxzEuM3SYJHHEF7X+iiC2e43QQgDSyEaksInmCGooT3w5q+cNAdkSCrK71j0ICfqoSqZLw=="
AT_ONCE = 3
TIMEOUT_S = 900.0
TIMEOUT_MULTIPLIER = 4
"""For librdkafka's own time-outs, which are set for a fast machine."""

EXCEPTIONS = {
    "0081_admin": "sets a Kerberos setting at run time and settings of a group, and needs SCRAM users; its other parts pass",
}
LEFT_OUT = re.compile(r"_share_")
"""Share groups (KIP-932) are not offered; the local tests of this kind only talk to librdkafka's mock broker."""

STATES = {"PASSED": Verdict.PASSED, "SKIPPED": Verdict.SKIPPED}
SCRIPTS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
}
"""Scripts of Kafka's distribution that tests call."""


def prepare(logs: Path) -> Path:
    """Build the library and the tests once; returns the folder of the tests."""
    for needed in ("npm", "make", "gcc", "g++"):
        if shutil.which(needed) is None:
            raise NotAtHand(f"no {needed}")
    folder = cache_folder() / f"librdkafka-{VERSION}"
    tests = folder / "package" / "deps" / "librdkafka" / "tests"
    if (folder / "built").exists():
        return tests
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    build(["npm", "pack", "--ignore-scripts", PACKAGE], cwd=folder, log=logs / "npm.log")
    [archive] = folder.glob("*.tgz")
    if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != SHA512:
        raise NotAtHand(f"{archive.name} is not the pinned file: its SHA-512 differs")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    sources = tests.parent
    for script in [
        sources / "configure",
        *sources.rglob("*.sh"),
        *(sources / "mklove").rglob("*"),
        *sources.glob("*.py"),
    ]:
        script.chmod(script.stat().st_mode | 0o100)
    build(["./configure"], cwd=sources, log=logs / "configure.log")
    build(["make", "-j2", "libs"], cwd=sources, log=logs / "libs.log")
    build(["make", "-j2", "build"], cwd=tests, log=logs / "tests.log")
    (folder / "built").touch()
    return tests


def names_of(source: str, scenario: str) -> list[str]:
    """The tests that `test.c` lists for a scenario; those that name none are for the scenario `default`."""
    listed = re.findall(r"_TEST\((\d{4}_\w+),([^;]*?)(?=_TEST\(|\};)", source.partition("struct test tests[]")[2])
    names = []
    for name, rest in listed:
        scenarios = re.findall(r'\.scenario = "([\w,]+)"', rest) or ["default"]
        # Numbers from 8000 are for running by hand.
        if name < "8" and not LEFT_OUT.search(name) and scenario in scenarios[0].split(","):
            names.append(name)
    return names


def verdict_of(name: str, report: Path) -> Verdict:
    """The result of a test in the report of its process; a process that wrote none has failed."""
    if not report.exists():
        return Verdict.FAILED
    state = json.loads(report.read_text(encoding="utf-8", errors="replace"))["tests"][name]["state"]
    return STATES.get(state, Verdict.FAILED)


def write_scripts(folder: Path) -> None:
    """Kafka's scripts, as far as tests call them, on the jars of Kafka's tools."""
    program, class_path = java()
    (folder / "bin").mkdir()
    for script, main in SCRIPTS.items():
        command = shlex.join([str(program), "-XX:TieredStopAtLevel=1", "-cp", class_path, main])
        (folder / "bin" / script).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        (folder / "bin" / script).chmod(0o755)


def run_number(tests: Path, environment: dict[str, str], logs: Path, scenario: str, number: str) -> Path:
    """Run the tests whose names begin with ``number``; returns the path of the report."""
    report = logs / f"{number}.json"
    report.unlink(missing_ok=True)
    command = [tests / "test-runner", "-Q", "-p1", "-s", scenario]
    # Tests write statistics and certificates beside themselves.
    with tempfile.TemporaryDirectory() as scratch:
        for path in tests.iterdir():
            if path.is_dir():
                (Path(scratch) / path.name).symlink_to(path)
        run_logged(
            command,
            cwd=Path(scratch),
            log=logs / f"{number}.log",
            env={**environment, "TESTS": number, "TEST_REPORT": str(report)},
            timeout_s=TIMEOUT_S,
        )
    return report


def run(tests: Path, brokers: Addresses, logs: Path, *, scenario: str) -> Verdicts:
    """Run all tests of a scenario but those of share groups, in the suite's quick mode; those that fail once more, one at a time."""
    configuration = logs / "test.conf"
    configuration.write_text(
        f"metadata.broker.list={brokers.clients}\ntest.topic.random=true\ntest.timeout.multiplier={TIMEOUT_MULTIPLIER}\n"
    )
    sources = tests.parent
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment |= {
        "RDKAFKA_TEST_CONF": str(configuration),
        "TEST_KAFKA_VERSION": "4.1.0",
        "BROKERS": brokers.clients,
        "LD_LIBRARY_PATH": f"{sources / 'src'}:{sources / 'src-cpp'}",
    }
    try:
        write_scripts(logs)
        environment["KAFKA_PATH"] = str(logs)
    except NoKafka:
        # Tests that call Kafka's scripts fail without; the message of the table names them.
        pass
    names = names_of((tests / "test.c").read_text(encoding="utf-8"), scenario)
    one = partial(run_number, tests, environment, logs, scenario)
    numbers = sorted({name[:4] for name in names})
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reports = dict(zip(numbers, pool.map(one, numbers), strict=True))
    verdicts = {name: verdict_of(name, reports[name[:4]]) for name in names}
    for name in names:
        # Some tests judge the wall time of what runs in milliseconds on a machine with nothing else to do.
        if verdicts[name] is Verdict.FAILED and name not in EXCEPTIONS:
            verdicts[name] = verdict_of(name, one(name[:4]))
    return verdicts


SETTINGS = {
    "num.partitions": "4",
    "default.replication.factor": "3",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "allow.everyone.if.no.acl.found": "true",
}
"""The clients are ANONYMOUS and make ACLs for topics of their own; everything else is open."""
SUITES = [
    Suite(
        "librdkafka",
        VERSION,
        prepare,
        partial(run, scenario="default"),
        settings=SETTINGS,
        clients="PLAINTEXT",
        exceptions=EXCEPTIONS,
    ),
    Suite(
        "librdkafka-noautocreate",
        VERSION,
        prepare,
        partial(run, scenario="noautocreate"),
        settings={**SETTINGS, "auto.create.topics.enable": "false"},
        clients="PLAINTEXT",
    ),
]
