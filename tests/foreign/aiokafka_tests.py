"""aiokafka's integration tests, from a checkout that the caller names: its sources in package registries have no tests.

The suite starts Kafka in a container. A `conftest.py` of ours gives it the address of a cluster instead.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.bench.kafka_jars import cache_folder
from tests.foreign.kafka_tools import run_pytest
from tests.foreign.suites import Addresses, NotAtHand, Suite, Verdicts, environment_with

VERSION = "0.14.0"
CONFTEST = Path(__file__).with_name("aiokafka_conftest.py")
REQUIREMENTS = (f"aiokafka=={VERSION}", "pytest==9.0.2", "pytest-asyncio==1.3.0", "pytest-mock==3.15.1", "cramjam")
FILES = (
    *("test_admin.py", "test_client.py", "test_conn.py", "test_consumer.py", "test_coordinator.py", "test_fetcher.py"),
    *("test_pep492.py", "test_producer.py", "test_rack_awareness.py", "test_sender.py"),
    *("test_transactional_consumer.py", "test_transactional_producer.py"),
)
"""The files with tests of a broker, but for those of SASL."""


def suite(checkout: Path | None) -> Suite:
    """The suite of this checkout; None: there is none."""

    def prepare(logs: Path) -> Path:
        if checkout is None:
            raise NotAtHand("its tests are in no package registry; --aiokafka names a checkout")
        if not (checkout / "tests" / "_testutil.py").exists():
            raise NotAtHand(f"{checkout} has no tests/_testutil.py")
        if shutil.which("openssl") is None:
            raise NotAtHand("no openssl, for the tests that connect by TLS")
        return environment_with(REQUIREMENTS, cache_folder() / f"aiokafka-{VERSION}", logs)

    def run(python: Path, brokers: Addresses, logs: Path) -> Verdicts:
        assert checkout is not None
        shutil.copytree(checkout / "tests", logs / "tests")
        shutil.copy(CONFTEST, logs / "tests" / "conftest.py")
        command = [python, "-m", "pytest", f"--bootstrap={brokers.bootstrap}", f"--tls-bootstrap={brokers.clients}"]
        command += [f"--certificates={logs / 'tls'}", "-o", "asyncio_mode=auto"]
        return run_pytest([*command, *(Path("tests") / name for name in FILES)], cwd=logs, log=logs / "pytest.log")

    # As in the suite's own container: one broker with node id 0, and these settings. Tests rely on all of it.
    settings = {"num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}
    return Suite("aiokafka", VERSION, prepare, run, node_ids=[0], settings=settings, clients="SSL")
