"""kafka-python's own integration tests, from its source distribution."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

from minikafka.config.security import STANDARD_AUTHORIZER
from tests.bench.kafka_jars import cache_folder
from tests.foreign.kafka_tools import run_pytest
from tests.foreign.suites import Addresses, NotAtHand, Suite, Verdicts, build, environment_with

VERSION = "3.0.12"
SHA256 = "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65"
CODECS = ("lz4", "python-snappy", "zstandard")
REQUIREMENTS = (f"kafka-python=={VERSION}", "pytest", "pytest-mock", "pytest-timeout", *CODECS)
FILES = ("test_admin_integration.py", "test_consumer_integration.py", "test_producer_integration.py")

EXCEPTIONS = {
    "test_admin_integration.py::test_alter_replica_log_dirs": "needs AlterReplicaLogDirs; a broker has one log directory",
}
SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        pass

class SpawnedService:
    pass
"""


def prepare(logs: Path) -> Path:
    """Fetch the sources and install the client once; returns the client's Python."""
    folder = cache_folder() / f"kafka-python-{VERSION}-codecs"
    python = environment_with(REQUIREMENTS, folder, logs)
    archive = folder / f"kafka_python-{VERSION}.tar.gz"
    if not archive.exists():
        download = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
        build([*download, f"kafka-python=={VERSION}"], cwd=folder, log=logs / "download.log")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise NotAtHand(f"{archive.name} is not the pinned file: its SHA-256 differs")
    with tarfile.open(archive) as packed:
        packed.extractall(logs, filter="data")
    tests = logs / f"kafka_python-{VERSION}" / "test"
    # Without it, `import test` finds the standard library's package.
    (tests / "__init__.py").touch()
    # The distribution lacks this module, whose classes start Kafka's processes.
    (tests / "service.py").write_text(SERVICE, encoding="utf-8")
    return python


def run(python: Path, brokers: Addresses, logs: Path) -> Verdicts:
    """Run the tests of a broker, without those of SASL and TLS."""
    first = brokers.clients.partition(",")[0]
    variables = {"KAFKA_URI": f"kafka://{first}", "KAFKA_VERSION": "4.3.0", "KAFKA_ROOT": str(logs)}
    paths = (Path("test") / "integration" / name for name in FILES)
    root = logs / f"kafka_python-{VERSION}"
    return run_pytest([python, "-m", "pytest", *paths], cwd=root, log=logs / "pytest.log", variables=variables)


# As the suite's own broker: node id 0, and these settings. Members of groups have short session timeouts.
SETTINGS = {
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "allow.everyone.if.no.acl.found": "true",
}
SUITE = Suite(
    "kafka-python",
    VERSION,
    prepare,
    run,
    node_ids=[0],
    settings=SETTINGS,
    clients="PLAINTEXT",
    exceptions=EXCEPTIONS,
)
