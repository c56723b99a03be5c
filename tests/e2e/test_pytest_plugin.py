"""The pytest plugin, as its users have it: in a pytest of their own, with their modes and settings (issue 5)."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from minikafka.ui.journal import read_journals
from minikafka.ui.page import replay_of
from tests.tidy.sources import ROOT

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.e2e

# By module and not by entry point: what is installed here may be another tree, or an older one.
LOADED = ("-p", "no:minikafka", "-p", "minikafka.testing.plugin")
TIMEOUT_S = 500
# Without schemathesis pytest starts in half the time.
QUIET = (
    *("-p", "no:cacheprovider", "-p", "no:schemathesis", "-W", "error"),
    *("-o", "asyncio_default_fixture_loop_scope=function"),
)


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest on what the test wrote, as another process."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(*arguments: str, mode: str = "auto") -> pytest.RunResult:
        return pytester.runpytest_subprocess(*LOADED, *QUIET, f"--asyncio-mode={mode}", *arguments, timeout=TIMEOUT_S)

    return run


PLAIN = """
def test_{name}(minikafka_shared_cluster, minikafka_topic):
    kafka = minikafka_shared_cluster.sync
    kafka.create_topic(minikafka_topic)
    kafka.produce(minikafka_topic, b"tea")
    assert [record.value for record in kafka.consume(minikafka_topic, 1)] == [b"tea"]
"""

AWAITED = """
import pytest
from minikafka import Producer

{mark}
async def test_awaited(minikafka_shared_cluster, minikafka_topic):
    cluster = minikafka_shared_cluster
    await cluster.create_topic(minikafka_topic)
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        assert (await producer.send_and_wait(minikafka_topic, b"tea")).offset == 0
    await cluster.wait.high_watermark(minikafka_topic, 0, 1)
"""


@pytest.mark.parametrize("mode, mark", [("auto", ""), ("strict", "@pytest.mark.asyncio")])
def test_plain_and_asynchronous_tests_share_a_cluster(pytester, run, mode: str, mark: str):
    """Brokers have a loop of their own: neither mode of pytest-asyncio is disturbed, nor a plain test."""
    pytester.makepyfile(test_plain=PLAIN.format(name="plain"), test_awaited=AWAITED.format(mark=mark))
    run(mode=mode).assert_outcomes(passed=2)


def test_tests_are_isolated_by_topic(pytester, run):
    """One cluster, a topic for each: no two names are the same, and each is made of its test's name."""
    pytester.makepyfile(
        """
        import pytest
        SEEN = set()

        @pytest.mark.parametrize("what", ["a b", "ä/ö", "x" * 300])
        def test_named(minikafka_topic, what):
            assert minikafka_topic.startswith("test_named-")
            assert len(minikafka_topic) <= 249 and minikafka_topic.isascii() and "/" not in minikafka_topic
            assert minikafka_topic not in SEEN
            SEEN.add(minikafka_topic)

        def test_no_broker_was_started_for_a_name(minikafka_topic):
            import threading
            assert not [each for each in threading.enumerate() if "minikafka" in each.name]
        """
    )
    run().assert_outcomes(passed=4)


def test_a_cluster_of_ones_own_has_the_settings_that_are_asked_for(pytester, run):
    """Function scope, a marker for size and settings, `minikafka_settings` for all; the nearest word counts."""
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def minikafka_settings():
            return {"num.partitions": "2", "fetch.max.bytes": "2048"}
        """
    )
    pytester.makepyfile(
        """
        import pytest
        BOOTSTRAPS = set()

        @pytest.mark.minikafka(brokers=2, config={"num.partitions": "3"})
        class TestOwn:
            def test_marked(self, minikafka_cluster):
                BOOTSTRAPS.add(minikafka_cluster.bootstrap)
                config = minikafka_cluster.broker(2).config
                assert minikafka_cluster.node_ids == (1, 2)
                assert (config.num_partitions, config.fetch_max_bytes) == (3, 2048)
                assert config.default_replication_factor == 2

            @pytest.mark.minikafka(brokers=4)
            def test_nearest(self, minikafka_cluster):
                BOOTSTRAPS.add(minikafka_cluster.bootstrap)
                assert len(minikafka_cluster.node_ids) == 4

        def test_broker(minikafka_broker):
            assert minikafka_broker.node_ids == (1,)
            assert minikafka_broker.broker(1).config.num_partitions == 2
            assert minikafka_broker.bootstrap not in BOOTSTRAPS
            assert len(BOOTSTRAPS) == 2
        """
    )
    run().assert_outcomes(passed=3)


def test_the_bootstrap_servers_are_those_of_the_shared_cluster(pytester, run):
    """Issue 14, Build 6: one fixture for tests of programs that use a Kafka client; the next test finds it whole."""
    pytester.makepyfile(
        """
        def test_servers(minikafka_bootstrap_servers, minikafka_shared_cluster):
            cluster = minikafka_shared_cluster
            assert minikafka_bootstrap_servers == cluster.bootstrap_servers == cluster.sync.bootstrap_servers
            assert minikafka_bootstrap_servers == cluster.bootstrap and minikafka_bootstrap_servers.count(":") == 3
            cluster.kill(2)

        def test_whole(minikafka_bootstrap_servers, minikafka_shared_cluster):
            assert minikafka_shared_cluster.broker(2).is_ready
        """
    )
    run().assert_outcomes(passed=2)


def test_what_the_marker_does_not_know_is_an_error(pytester, run):
    """A misspelt setting must not be passed over in silence."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.minikafka(broker=5)
        def test_marker(minikafka_cluster): ...

        @pytest.mark.minikafka(config={"num.partitons": "1"})
        def test_setting(minikafka_cluster): ...

        @pytest.mark.minikafka(brokers="3")
        def test_number(minikafka_cluster): ...

        @pytest.mark.minikafka(brokers=3)
        def test_one_broker(minikafka_broker): ...

        @pytest.mark.minikafka(config=["num.partitions=1"])
        def test_settings(minikafka_broker): ...

        @pytest.mark.minikafka(security_protocol="SASL_PLAINTEXT", users=["ann"])
        def test_users(minikafka_broker): ...

        @pytest.mark.minikafka(brokers=1)
        def test_shared(minikafka_shared_cluster): ...

        @pytest.mark.minikafka(brokers=1)
        def test_without_a_cluster(): ...

        @pytest.mark.minikafka(brokers=1)
        def test_that_requests_one_by_a_call(request):
            assert len(request.getfixturevalue("minikafka_cluster").node_ids) == 1

        @pytest.mark.minikafka(brokers=1)
        class TestBoth:
            def test_some_share(self, minikafka_shared_broker): ...
            def test_some_have_none(self): ...
        """
    )
    result = run()
    result.assert_outcomes(errors=8, passed=3)  # warnings are errors here
    result.stdout.fnmatch_lines(
        [
            "*takes brokers=N, config={...}, security_protocol='SASL_SSL', * not broker*",
            "*did you mean num.partitions*",
            "*brokers='3'*: a whole number is needed*",
            "*(brokers=3) has no effect on minikafka_broker, which is one; use minikafka_cluster*",
            "*config=*num.partitions=1*: a dictionary is needed*",
            "*users=*ann*: a dictionary is needed*",
            "*has no effect on minikafka_shared_cluster*",
            "*has no effect on this test, which has no cluster; use minikafka_cluster*",
        ]
    )


def test_the_next_test_finds_a_whole_cluster(pytester, run):
    """Faults that were not healed and brokers that were killed do not fail somebody else's test."""
    pytester.makepyfile(
        """
        def test_one_hurts(minikafka_shared_cluster):
            minikafka_shared_cluster.faults.cut("*>1")
            minikafka_shared_cluster.kill(2)

        def test_two_is_whole(minikafka_shared_cluster, minikafka_topic):
            cluster = minikafka_shared_cluster
            assert cluster.faults.active() == []
            assert cluster.broker(2).is_ready
            cluster.sync.create_topic(minikafka_topic)
            cluster.sync.wait.isr(minikafka_topic, size=3)
        """
    )
    run().assert_outcomes(passed=2)


def test_the_next_test_finds_a_whole_cluster_also_when_it_was_requested_by_a_call(pytester, run):
    """``request.getfixturevalue`` is not among a test's fixture names: the fault stayed for the tests after it."""
    pytester.makepyfile(
        """
        def test_one_hurts(request):
            request.getfixturevalue("minikafka_shared_broker").faults.cut("client>*")

        def test_two_is_whole(minikafka_shared_broker):
            assert minikafka_shared_broker.faults.active() == []
        """
    )
    run().assert_outcomes(passed=2)


def test_a_test_that_stops_a_shared_cluster_is_told(pytester, run):
    """Once, at its own end; and a test may stop the cluster that is its own."""
    pytester.makepyfile(
        """
        def test_own(minikafka_broker):
            minikafka_broker.stop()

        def test_stops(minikafka_shared_broker):
            minikafka_shared_broker.stop()

        def test_another(minikafka_broker): ...
        """
    )
    result = run()
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*this test has stopped minikafka_shared_broker, which all tests share*"])


FAILS = """
def test_first(minikafka_shared_cluster, minikafka_topic):
    minikafka_shared_cluster.sync.create_topic(minikafka_topic)

def test_fails(minikafka_shared_cluster, minikafka_topic):
    kafka = minikafka_shared_cluster.sync
    kafka.create_topic("orders")
    kafka.produce("orders", b"tea")
    kafka.wait.high_watermark("orders", 0, 1, replica=3)
    assert 0, "on purpose"
"""


@pytest.mark.parametrize("chosen", [True, False])
def test_a_failed_test_keeps_its_journal(pytester, run, tmp_path, chosen: bool):
    """The journal is written when a test fails, told in its report, and opened by the replay page."""
    pytester.makepyfile(FAILS)
    result = run(*(["--minikafka-journal-dir", str(tmp_path / "kept")] if chosen else []))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*brokers' journal (minikafka_shared_cluster)*", "* events of this test; to see*"])
    (told,) = re.findall(r"minikafka sim show '([^']+)' --html run.html", result.stdout.str())
    assert chosen == told.startswith(str(tmp_path / "kept"))
    journal = read_journals([pytester.path / told])
    assert replay_of(journal, partition="orders-0").steps
    assert not [entry for entry in journal.entries if "test_first" in str(entry.facts.get("topic", ""))]


def test_each_failed_test_keeps_a_journal_of_its_own(pytester, run, tmp_path):
    """Also where ids of parameters differ only in punctuation, or before the last 200 characters."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("value", ["a<b", "a>b", "1" + "x" * 250, "2" + "x" * 250], ids=str)
        def test_fails(minikafka_shared_broker, minikafka_topic, value):
            minikafka_shared_broker.sync.create_topic(minikafka_topic)
            assert 0, "on purpose"
        """
    )
    result = run("--minikafka-journal-dir", str(tmp_path / "kept"))
    result.assert_outcomes(failed=4)
    assert len(list((tmp_path / "kept").iterdir())) == 4


def test_a_test_that_fails_before_it_uses_its_cluster_keeps_no_empty_journal(pytester, run, tmp_path):
    """Its report says that nothing happened, where it advised to look at 0 events."""
    pytester.makepyfile(
        """
        def test_first(minikafka_shared_broker): ...

        def test_fails(minikafka_shared_broker):
            assert 0, "on purpose"
        """
    )
    result = run("--minikafka-journal-dir", str(tmp_path / "kept"))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*brokers' journal (minikafka_shared_broker)*", "nothing happened in the brokers*"])
    assert not list((tmp_path / "kept").iterdir())


def test_a_journal_that_cannot_be_written_does_not_end_the_session(pytester, run, tmp_path):
    """It was an INTERNALERROR: the tests after it did not run."""
    (tmp_path / "file").touch()
    pytester.makepyfile(FAILS + "\ndef test_last(): ...\n")
    result = run("--minikafka-journal-dir", str(tmp_path / "file" / "kept"))
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*test_fails*.jsonl cannot be written: *Not a directory*"])


def test_who_asks_for_nothing_pays_for_nothing():
    """The plugin is loaded into everybody's pytest: beside pytest itself it loads none but a few small modules."""
    code = """
import sys, pytest
before = set(sys.modules)
import minikafka.testing.plugin
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == (
        "['minikafka', 'minikafka.compiled', 'minikafka.testing', 'minikafka.testing.plugin']"
    )


def test_an_installed_minikafka_is_found_by_its_entry_point(pytester, monkeypatch):
    """`pip install minikafka` is all: the entry point of pyproject.toml, in a metadata folder as pip leaves it."""
    (line,) = re.findall(
        r"\[project\.entry-points\.pytest11\]\n(.+)\n", (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    metadata = pytester.mkdir("site") / "minikafka_as_installed-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: minikafka-as-installed\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[pytest11]\n{line.replace(chr(34), '')}\n")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{metadata.parent}")
    pytester.makepyfile(PLAIN.format(name="found"))
    result = pytester.runpytest_subprocess(*QUIET, "--strict-markers", timeout=TIMEOUT_S)
    result.assert_outcomes(passed=1)


def test_the_recipes_run(pytester, run):
    """docs/pytest.md: each block of Python is a file of tests, and all of them pass."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pytest.md").read_text(encoding="utf-8"), re.DOTALL)
    count = 0
    for number, block in enumerate(blocks):
        name = "conftest" if block.startswith("# conftest.py") else f"test_recipe_{number}"
        (pytester.path / f"{name}.py").write_text(block, encoding="utf-8")
        count += len(re.findall(r"^(?:async )?def test_", block, re.MULTILINE))
    assert count >= 12
    run().assert_outcomes(passed=count)


def test_the_page_on_testing_and_the_readme_run(pytester, run):
    """docs/testing.md and README.md: the tests that they show pass."""
    shown = []
    for name in ("docs/testing.md", "README.md"):
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
        shown += [each for each in blocks if "def test_" in each]
    for number, block in enumerate(shown):
        (pytester.path / f"test_{number}.py").write_text(block, encoding="utf-8")
    run().assert_outcomes(passed=3)


FIFTY = """
import pytest
from minikafka import Producer

@pytest.mark.parametrize("number", range(20))
def test_plain(minikafka_shared_cluster, minikafka_topic, number):
    kafka = minikafka_shared_cluster.sync
    kafka.create_topic(minikafka_topic, 2)
    kafka.produce(minikafka_topic, b"%d" % number, partition=1)
    assert [record.value for record in kafka.consume(minikafka_topic, 1)] == [b"%d" % number]

@pytest.mark.parametrize("number", range(20))
async def test_awaited(minikafka_shared_cluster, minikafka_topic, number):
    cluster = minikafka_shared_cluster
    await cluster.create_topic(minikafka_topic)
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        assert (await producer.send_and_wait(minikafka_topic, b"tea")).offset == 0
    assert await cluster.wait.high_watermark(minikafka_topic, 0, 1, replica=3) == 1

@pytest.mark.parametrize("number", range(10))
def test_of_its_own(minikafka_cluster, minikafka_topic, number):
    kafka = minikafka_cluster.sync
    kafka.create_topic(minikafka_topic)
    kafka.produce(minikafka_topic, b"tea")
    kafka.wait.isr(minikafka_topic, size=3)
"""


def test_a_suite_of_fifty_tests(pytester, run):
    """Issue 5: fifty tests, ten of them with three brokers of their own; the report's last line has the seconds."""
    pytester.makepyfile(FIFTY)
    run().assert_outcomes(passed=50)


TLS = """
import pytest
from confluent_kafka import Producer

{fixture}

{mark}
def test_{name}(minikafka_broker, minikafka_topic):
    cluster = minikafka_broker
    assert cluster.confluent_config()["security.protocol"] == "SSL"
    cluster.sync.create_topic(minikafka_topic)
    producer = Producer(cluster.confluent_config("shop"))
    producer.produce(minikafka_topic, b"tea")
    assert producer.flush(60) == 0
    assert [record.value for record in cluster.sync.consume(minikafka_topic, 1)] == [b"tea"]
"""

ALWAYS_TLS = """
@pytest.fixture(scope="session")
def minikafka_tls():
    return True
"""


def test_clusters_with_tls_by_marker_and_by_fixture(pytester, run):
    """Of one test, or of all tests of a module; both find the certificates that the session has made."""
    pytester.makepyfile(
        test_marked=TLS.format(name="marked", fixture="", mark="@pytest.mark.minikafka(tls=True)"),
        test_always=TLS.format(name="always", fixture=ALWAYS_TLS, mark=""),
    )
    run().assert_outcomes(passed=2)


SASL = """
import pytest
from confluent_kafka import Consumer, KafkaError, Producer

{fixtures}

{mark}
def test_{name}(minikafka_broker, minikafka_topic):
    cluster = minikafka_broker
    assert cluster.confluent_config()["security.protocol"] == "SASL_SSL"
    cluster.sync.create_topic(minikafka_topic)
    errors = []
    producer = Producer(cluster.confluent_config("shop"))
    producer.produce(minikafka_topic, b"tea", on_delivery=lambda error, _: errors.append(error.code()))
    producer.flush(60)
    assert errors == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
"""

ALWAYS_SASL = """
@pytest.fixture(scope="session")
def minikafka_security_protocol():
    return "SASL_SSL"

@pytest.fixture(scope="session")
def minikafka_users():
    return {"shop": "secret"}

@pytest.mark.minikafka(tls=True)
def test_the_marker_wins(minikafka_broker):
    assert minikafka_broker.confluent_config("shop")["security.protocol"] == "SSL"
"""


def test_clusters_with_users_by_marker_and_by_fixture(pytester, run):
    """A user without ACLs is denied; the marker of a test wins over the fixtures of its module."""
    mark = "@pytest.mark.minikafka(security_protocol='SASL_SSL', users={'shop': 'secret'})"
    pytester.makepyfile(
        test_marked=SASL.format(name="marked", fixtures="", mark=mark),
        test_always=SASL.format(name="always", fixtures=ALWAYS_SASL, mark=""),
    )
    run().assert_outcomes(passed=3)
