"""pytest plugin: brokers for tests, in the test's own process (docs/pytest.md).

============================ ======== =================================================================================
fixture                      scope    what it is
============================ ======== =================================================================================
minikafka_cluster            test     a LocalCluster of three brokers that no other test sees
minikafka_broker             test     the same with one broker
minikafka_shared_cluster     session  three brokers for all tests: each takes a topic of its own
minikafka_shared_broker      session  the same with one broker
minikafka_topic              test     a topic's name that no other test has
minikafka_bootstrap_servers  session  the shared cluster's bootstrap.servers, for any Kafka client
minikafka_settings           session  Kafka's settings for all of these; override it in conftest.py
minikafka_tls                session  whether all of these use TLS (False); override it in conftest.py
minikafka_security_protocol  session  how clients connect to all of these (PLAINTEXT); override it in conftest.py
minikafka_users              session  passwords by user, for SASL; override it in conftest.py
============================ ======== =================================================================================

Rules for this file: it is loaded into everybody's pytest, so it imports pytest alone, starts nothing before a fixture
is asked for, and has no asynchronous fixtures: brokers run on a thread of their own, whatever loop a test has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from minikafka.testing.local_cluster import LocalCluster

BROKERS: Final = 3

QUICK: Final[Mapping[str, str]] = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "200",
    "replica.lag.time.max.ms": "1000",
    # A follower learns the high watermark with its next fetch: with an idle partition's long poll, so late at the most.
    "replica.fetch.wait.max.ms": "100",
    "controller.quorum.election.timeout.ms": "400",
    "controller.quorum.fetch.timeout.ms": "800",
    "log.segment.delete.delay.ms": "0",
}
"""Failures are noticed soon; no test depends on how soon."""

_SHARED: Final = ("minikafka_shared_cluster", "minikafka_shared_broker")
_OWN: Final = frozenset({"minikafka_cluster", "minikafka_broker"})
_ARGUMENTS: Final = frozenset({"brokers", "config", "security_protocol", "users", "tls"})
"""Of the marker."""

TOPIC_NAME_MAX = 200
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(slots=True)
class _Running:
    """A cluster that a fixture has started, and where the present test's events begin."""

    cluster: LocalCluster
    fixture: str
    begins_at: int = 0


@dataclass(slots=True)
class _Bench:
    """What one pytest process has running."""

    running: list[_Running] = field(default_factory=list)
    journals: Path | None = None
    topics: int = 0

    def used_by(self, item: pytest.Item) -> list[_Running]:
        names = getattr(item, "fixturenames", ())
        return [each for each in self.running if each.fixture in names]


_BENCH: Final = pytest.StashKey[_Bench]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--minikafka-journal-dir``."""
    parser.getgroup("minikafka").addoption(
        "--minikafka-journal-dir",
        metavar="DIR",
        help="keep the brokers' journals of failed tests here, not in pytest's temporary directory",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker, and room for what will run."""
    config.stash[_BENCH] = _Bench()
    config.addinivalue_line(
        "markers",
        "minikafka(brokers=N, config={...}, security_protocol='SASL_SSL', users={...}, tls=True): how many brokers and"
        " which of Kafka's settings the clusters of this test have that are its own, how clients connect to them, and"
        " passwords by user",
    )


# ---- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def minikafka_settings() -> Mapping[str, str]:
    """Settings by Kafka's names, laid over QUICK, for every cluster; override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def minikafka_tls() -> bool:
    """Return True if every cluster uses TLS, with certificates made once per session. Override it to change that."""
    return False


@pytest.fixture(scope="session")
def minikafka_security_protocol() -> str:
    """How clients connect to every cluster: PLAINTEXT (the default), SSL, SASL_PLAINTEXT or SASL_SSL; override it."""
    return ""


@pytest.fixture(scope="session")
def minikafka_users() -> Mapping[str, str]:
    """Passwords of the users of every cluster with SASL, by name, beside ``admin``; override this fixture."""
    return {}


@pytest.fixture(scope="session")
def minikafka_shared_cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Three brokers for all tests of the session. After each test faults are healed and dead brokers are restarted."""
    yield from _started(request, BROKERS)


@pytest.fixture(scope="session")
def minikafka_shared_broker(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """One broker for all tests of the session."""
    yield from _started(request, 1)


@pytest.fixture
def minikafka_cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Three brokers of this test's own; ``@pytest.mark.minikafka(brokers=5, config={...})`` changes them."""
    yield from _started(request, BROKERS)


@pytest.fixture
def minikafka_broker(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """One broker of this test's own; the marker's ``config`` is for it too."""
    yield from _started(request, 1)


@pytest.fixture(scope="session")
def minikafka_bootstrap_servers(minikafka_shared_cluster: LocalCluster) -> str:
    """``bootstrap.servers`` of the session's three brokers, for any Kafka client."""
    return minikafka_shared_cluster.bootstrap_servers


@pytest.fixture
def minikafka_topic(request: pytest.FixtureRequest) -> str:
    """A topic's name, made of the test's, that no other test of this session has. The topic is not created."""
    bench = request.config.stash[_BENCH]
    bench.topics += 1
    name = _NOT_IN_A_NAME.sub("-", request.node.name)[:TOPIC_NAME_MAX].strip("-.")
    return f"{name}-{bench.topics}"


def _started(request: pytest.FixtureRequest, brokers: int) -> Iterator[LocalCluster]:
    # Only now: a test without brokers must not pay for one.
    from minikafka.testing.local_cluster import LocalCluster  # noqa: PLC0415

    asked: dict[str, Any] = {}
    if request.scope == "function":
        for marker in request.node.iter_markers("minikafka"):
            asked = {**_checked(marker), **asked}
    if brokers > 1:
        brokers = asked.get("brokers", brokers)
    config = {
        **QUICK,
        "default.replication.factor": str(min(BROKERS, brokers)),
        **request.getfixturevalue("minikafka_settings"),
        **asked.get("config", {}),
    }
    bench = request.config.stash[_BENCH]
    if bench.journals is None:
        chosen = request.config.getoption("--minikafka-journal-dir")
        temporary = request.getfixturevalue("tmp_path_factory")
        bench.journals = Path(chosen) if chosen else temporary.getbasetemp() / "minikafka-journals"
    own = asked.keys() & {"tls", "security_protocol"}
    with LocalCluster(
        brokers,
        config=config,
        tls=asked.get("tls", not own and request.getfixturevalue("minikafka_tls")),
        security_protocol=asked.get(
            "security_protocol", "" if own else request.getfixturevalue("minikafka_security_protocol")
        ),
        users=asked.get("users", {} if own else request.getfixturevalue("minikafka_users")),
    ) as cluster:
        running = _Running(cluster, str(request.fixturename))
        bench.running.append(running)
        try:
            yield cluster
        finally:
            if running in bench.running:
                bench.running.remove(running)


def _checked(marker: pytest.Mark) -> Mapping[str, Any]:
    unknown = [*map(repr, marker.args), *(name for name in marker.kwargs if name not in _ARGUMENTS)]
    if unknown:
        raise pytest.UsageError(
            "@pytest.mark.minikafka takes brokers=N, config={...}, security_protocol='SASL_SSL', users={...} and"
            f" tls=True, not {', '.join(unknown)}"
        )
    if not isinstance(brokers := marker.kwargs.get("brokers", 1), int):
        raise pytest.UsageError(f"@pytest.mark.minikafka(brokers={brokers!r}): a whole number is needed")
    for name in ("config", "users"):
        if not isinstance(given := marker.kwargs.get(name, {}), Mapping):
            raise pytest.UsageError(f"@pytest.mark.minikafka({name}={given!r}): a dictionary is needed")
    return marker.kwargs


def _check_use(item: pytest.Item) -> None:
    """Refuse a marker that would be passed over in silence: a shared cluster runs already, a broker is one."""
    names = getattr(item, "fixturenames", ())
    asked = next((each.kwargs.get("brokers", 1) for each in item.own_markers if each.name == "minikafka"), 1)
    if asked != 1 and "minikafka_broker" in names and "minikafka_cluster" not in names:
        raise pytest.UsageError(
            f"@pytest.mark.minikafka(brokers={asked!r}) has no effect on minikafka_broker, which is one; use"
            " minikafka_cluster"
        )
    # At a class or a module the marker is for those of its tests that use a cluster.
    is_marked = any(each.name == "minikafka" for each in item.own_markers)
    shared = [each for each in _SHARED if each in names]
    if is_marked and shared and not _OWN.intersection(names):
        raise pytest.UsageError(
            f"@pytest.mark.minikafka has no effect on {shared[0]}, which all tests share; use minikafka_cluster or"
            " minikafka_broker, or override minikafka_settings for all tests"
        )
    if is_marked and not {*_OWN, "request"}.intersection(names):
        item.warn(
            pytest.PytestWarning(
                "@pytest.mark.minikafka has no effect on this test, which has no cluster; use minikafka_cluster or"
                " minikafka_broker, or remove the marker"
            )
        )


# ---- around each test ------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A shared cluster's events are this test's from here on."""
    _check_use(item)
    for each in item.config.stash[_BENCH].running:
        each.begins_at = each.cluster.events.mark


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test keeps its brokers' events."""
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    bench = item.config.stash[_BENCH]
    if not report.failed or report.when == "teardown" or bench.journals is None:
        return
    for each in bench.used_by(item):
        name = _NOT_IN_A_NAME.sub("-", item.nodeid)[-TOPIC_NAME_MAX:].strip("-.")
        checksum = crc32(item.nodeid.encode("utf-8", "backslashreplace"))  # ids may differ in what a name lacks
        path = bench.journals / f"{name}.{checksum:08x}.{each.fixture}.jsonl"
        try:
            count = each.cluster.events.write(path, since=each.begins_at)
        except OSError as error:  # raised here, it would end the whole session
            report.sections.append((f"brokers' journal ({each.fixture})", f"{path} cannot be written: {error}"))
            continue
        if count:
            advice = f"{path}\n{count} events of this test; to see them: minikafka sim show '{path}' --html run.html"
        else:  # a shared cluster that the test did not disturb
            path.unlink()
            advice = "nothing happened in the brokers during this test"
        report.sections.append((f"brokers' journal ({each.fixture})", advice))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """The next test gets a whole cluster: faults healed, dead brokers back.

    Whether this test has used it or not: ``request.getfixturevalue`` leaves no trace in a test's names.
    """
    outcome: Any = yield
    running = item.config.stash[_BENCH].running
    for each in running.copy():
        try:
            if not each.cluster.is_running:
                running.remove(each)
                pytest.fail(
                    f"this test has stopped {each.fixture}, which all tests share; use minikafka_cluster or"
                    " minikafka_broker for a cluster of its own",
                    pytrace=False,
                )
            each.cluster.make_whole()
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is the test's error, not the hook's
            if outcome.excinfo is None:
                outcome.force_exception(error)
