"""@confluentinc/kafka-javascript, built from the sources in its npm package: its ready binaries are in no registry.

The suite is `test_go_and_node.py`, as far as it runs this client.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from tests.bench.kafka_jars import cache_folder
from tests.foreign.kafka_tools import HERE, run_pytest
from tests.foreign.suites import Addresses, NotAtHand, Suite, Verdicts, build
from tests.foreign.toolchains import CONFLUENT_VERSION, needs_node
from tests.tidy.sources import ROOT

PACKAGE = "@confluentinc/kafka-javascript"


def prepare(logs: Path) -> Path:
    """Install and build the package once."""
    try:
        needs_node()
    except RuntimeError as missing:
        raise NotAtHand(str(missing)) from missing
    folder = cache_folder() / f"kafka-javascript-{CONFLUENT_VERSION}"
    if (folder / "built").exists():
        return ROOT
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    package = {"name": "minikafka-tests-foreign", "private": True, "dependencies": {PACKAGE: CONFLUENT_VERSION}}
    (folder / "package.json").write_text(json.dumps(package), encoding="utf-8")
    install = ["npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit"]
    build(install, cwd=folder, log=logs / "install.log")
    # Dynamic: with the libraries of this machine. Static would download the sources of OpenSSL and others.
    environment = {**os.environ, "CKJS_LINKING": "dynamic", "npm_config_build_from_source": "true"}
    prefix = Path(os.path.realpath(shutil.which("node") or "")).parents[1]
    if (prefix / "include" / "node" / "node.h").exists():
        environment["npm_config_nodedir"] = str(prefix)
    build(["npm", "rebuild", PACKAGE], cwd=folder, log=logs / "build.log", env=environment)
    if not list(folder.glob(f"node_modules/{PACKAGE}/build/Release/*.node")):
        raise NotAtHand(f"npm rebuild {PACKAGE} built nothing (see {logs / 'build.log'})")
    (folder / "built").touch()
    return ROOT


def run(root: Path, _: Addresses, logs: Path) -> Verdicts:
    """Run the scenarios, which start brokers of their own."""
    command = [sys.executable, "-m", "pytest", HERE / "test_go_and_node.py", "-k", "confluent"]
    return run_pytest(command, cwd=root, log=logs / "pytest.log")


SUITE = Suite("kafka-javascript", CONFLUENT_VERSION, prepare, run, node_ids=[])
