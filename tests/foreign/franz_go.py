"""franz-go's own tests of its client (`pkg/kgo`), from the Go module proxy."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.foreign.suites import Addresses, NotAtHand, Suite, Verdict, Verdicts, build, run_logged
from tests.foreign.toolchains import GO

VERSION = "1.22.2"
TIMEOUT_S = 1800.0
PACKAGE = f"github.com/twmb/franz-go@v{VERSION}"

ACTIONS = {"pass": Verdict.PASSED, "skip": Verdict.SKIPPED, "fail": Verdict.FAILED}


def prepare(logs: Path) -> Path:
    """Compile the tests once; returns the folder of the package's sources, which some tests read."""
    if shutil.which("go") is None:
        raise NotAtHand("no go")
    downloaded = logs / "download.json"
    build(["go", "mod", "download", "-json", PACKAGE], cwd=logs, log=downloaded, env=GO)
    sources = Path(json.loads(downloaded.read_text(encoding="utf-8"))["Dir"])
    # Go's own cache makes this fast from the second time on.
    build(["go", "test", "-c", "-o", logs / "kgo.test", "./pkg/kgo"], cwd=sources, log=logs / "build.log", env=GO)
    return sources / "pkg" / "kgo"


def verdicts_of(events: str) -> Verdicts:
    """The results of top-level tests and of subtests in the events of test2json."""
    verdicts: Verdicts = {}
    for line in events.splitlines():
        event = json.loads(line)
        if "Test" in event and event["Action"] in ACTIONS:
            verdicts[event["Test"]] = ACTIONS[event["Action"]]
        elif "Test" in event and event["Action"] == "run":
            # A test that a panic or a time-out ends has no result of its own.
            verdicts[event["Test"]] = Verdict.FAILED
    return verdicts


def run(sources: Path, brokers: Addresses, logs: Path) -> Verdicts:
    """Run all tests, with replication factor 3 and 2,000 records where the default is 500,000."""
    environment = {**os.environ, "KGO_SEEDS": brokers.bootstrap, "KGO_TEST_RF": "3", "KGO_TEST_RECORDS": "2000"}
    command = ["go", "tool", "test2json", logs / "kgo.test", "-test.v=test2json"]
    command += [f"-test.timeout={TIMEOUT_S:.0f}s"]
    run_logged(command, cwd=sources, log=logs / "events.json", env=environment, timeout_s=TIMEOUT_S + 60.0)
    lines = (logs / "events.json").read_text(encoding="utf-8", errors="replace").splitlines()
    return verdicts_of("\n".join(line for line in lines if line.startswith("{")))


SUITE = Suite("franz-go", VERSION, prepare, run)
