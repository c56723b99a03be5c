"""How `make foreign` reads the results of other projects' suites, and what it reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal

import pytest

from minikafka.hosting.cluster_files import lay_out
from minikafka.types import Address, NodeId
from tests.foreign import franz_go, kafka_tools, librdkafka
from tests.foreign.__main__ import main, with_clients
from tests.foreign.__main__ import run as run_suite
from tests.foreign.suites import NotAtHand, Report, Suite, Verdict, build, run_logged, table

PASSED, SKIPPED, FAILED = Verdict.PASSED, Verdict.SKIPPED, Verdict.FAILED


def suite_with(**exceptions: str) -> Suite:
    """A suite with these named exceptions."""
    return Suite("some", "1.0", lambda logs: logs, lambda *_: {}, exceptions=exceptions)


def test_named_exceptions_are_no_failures():
    """An exception that failed or was not run counts as an exception; another failure makes the report bad."""
    verdicts = {"ok": PASSED, "excepted": FAILED, "out": SKIPPED}
    report = Report(suite_with(excepted="why", not_run="why not"), verdicts)
    assert (report.excepted, report.failed, report.stale, report.is_good) == (["excepted", "not_run"], [], [], True)
    worse = Report(report.suite, {**verdicts, "broken": FAILED})
    assert (worse.failed, worse.is_good) == (["broken"], False)


def test_an_exception_that_passes_is_reported():
    """So that the list does not outlive its reasons."""
    report = Report(suite_with(fixed="why"), {"fixed": PASSED})
    assert (report.excepted, report.stale, report.is_good) == ([], ["fixed"], True)
    assert "exception that passes, to be removed: fixed" in table([report])


def test_a_suite_in_which_nothing_passed_is_a_failure():
    """A suite that could not even start has no failed tests; the table says that none passed."""
    report = Report(suite_with(), {})
    assert not report.is_good
    assert "some FAILED: no test passed" in table([report])


def test_the_table_has_counts_and_names():
    """One row for each suite, then the names of exceptions and failures, and why a suite was left out."""
    ran = Report(
        suite_with(known="because"),
        {"a": PASSED, "b": PASSED, "c": SKIPPED, "known": FAILED, "bad": FAILED},
        duration_s=7.2,
    )
    out = Report(Suite("other", "2", lambda logs: logs, lambda *_: {}), {}, left_out="no go")
    lines = table([ran, out]).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["suite", "version", "passed", "skipped", "exceptions", "failed", "seconds"],
        ["some", "1.0", "2", "1", "1", "1", "7"],
        ["other", "2", "-", "-", "-", "-", "-"],
    ]
    assert lines[4:] == ["some exception: known: because", "some FAILED: bad", "other is left out: no go"]


def test_a_report_as_json():
    """The row that `-o json` prints."""
    row = Report(suite_with(known="because"), {"a": PASSED, "known": FAILED}).as_json()
    assert json.loads(json.dumps(row)) == {
        "suite": "some",
        "version": "1.0",
        "good": True,
        "left_out": None,
        "error": None,
        "duration_s": 0.0,
        "passed": 1,
        "skipped": 0,
        "exceptions": {"known": "because"},
        "stale_exceptions": [],
        "failed": [],
    }


async def test_a_suite_without_its_toolchain_is_left_out(tmp_path: Path):
    """No brokers are started for it."""

    def prepare(_: Path) -> Path:
        raise NotAtHand("no compiler")

    report = await run_suite(Suite("some", "1.0", prepare, lambda *_: {}), tmp_path / "logs")
    assert (report.left_out, report.is_good) == ("no compiler", True)


@pytest.mark.parametrize(("protocol", "uses_tls"), [("PLAINTEXT", False), ("SSL", True)])
def test_a_suite_gets_a_listener_of_its_own(tmp_path: Path, protocol: Literal["PLAINTEXT", "SSL"], uses_tls: bool):
    """Brokers advertise both listeners and use the first one among themselves; certificates are configured for SSL only."""
    node, own, clients = NodeId(1), Address("127.0.0.1", 9092), Address("127.0.0.1", 9093)
    [broker] = lay_out(tmp_path, {node: own}, config={}).brokers
    suite = Suite("some", "1.0", lambda logs: logs, lambda *_: {}, clients=protocol)
    config = with_clients(broker, clients, suite, tmp_path / "tls").config()
    listeners = {"PLAINTEXT": own, "CLIENTS": clients}
    assert {each.name: each.address for each in config.client_listeners} == config.all_advertised == listeners
    assert (config.inter_broker_listener.name, bool(config.tls_listeners)) == ("PLAINTEXT", uses_tls)


def broken(_: Path) -> Path:
    """A `prepare` with a bug."""
    raise ValueError("no such archive")


def interrupted(_: Path) -> Path:
    """A `prepare` during which the user presses Ctrl-C."""
    raise KeyboardInterrupt


def passing(name: str) -> Suite:
    """A suite whose one test passes."""
    return Suite(name, "1.0", lambda logs: logs, lambda *_: {"a": PASSED}, node_ids=[])


@pytest.fixture
def _logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run keeps its logs; those of the runs below go with pytest's folders."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.usefixtures("_logs")
def test_a_suite_that_ends_with_an_error_does_not_stop_the_next_ones(capsys: pytest.CaptureFixture[str]):
    """The run goes on, the table has all suites, and the exit code is 1."""
    suites = [Suite("first", "1.0", broken, lambda *_: {}), passing("second")]
    assert main([], suites) == 1
    printed = capsys.readouterr()
    assert "first FAILED: ValueError: no such archive" in printed.out
    assert [line.split()[0] for line in printed.out.splitlines()[:3]] == ["suite", "first", "second"]
    assert "second 1.0 ... 1 passed, 0 skipped, 0 exceptions, 0 failed" in printed.err


@pytest.mark.usefixtures("_logs")
def test_exit_code_and_json_of_a_run(capsys: pytest.CaptureFixture[str]):
    """0 if all is good; a suite that is left out changes nothing; `-o json` prints one object for each suite."""

    def missing(_: Path) -> Path:
        raise NotAtHand("no compiler")

    suites = [Suite("absent", "1.0", missing, lambda *_: {}), passing("present")]
    assert main(["-o", "json"], suites) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["suite"], row["good"], row["left_out"], row["passed"]) for row in rows] == [
        ("absent", True, "no compiler", 0),
        ("present", True, None, 1),
    ]
    assert main(["--only", "present", "-o", "json"], suites) == 0
    assert [row["suite"] for row in json.loads(capsys.readouterr().out)] == ["present"]


@pytest.mark.usefixtures("_logs")
def test_an_interrupted_run_prints_the_suites_that_have_run(capsys: pytest.CaptureFixture[str]):
    """Hours of results are not lost to Ctrl-C; the exit code is that of an interrupted program."""
    suites = [passing("first"), Suite("second", "1.0", interrupted, lambda *_: {}), passing("third")]
    assert main([], suites) == 130
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["suite", "first"]


@pytest.mark.usefixtures("_logs")
def test_preparation_alone_runs_no_tests(capsys: pytest.CaptureFixture[str]):
    """`--prepare` fetches and builds; each suite is ready or says what it lacks."""

    def fails(*_: object) -> dict[str, Verdict]:
        raise AssertionError("the suite was run")

    assert main(["--prepare"], [Suite("some", "1.0", lambda logs: logs, fails, node_ids=[])]) == 0
    assert capsys.readouterr().out == "some 1.0: ready\n"


def test_a_failed_build_says_why(tmp_path: Path):
    """The command and the last line of its output; a program that is missing is named."""
    program = "import sys; print('first'); print('the reason'); sys.exit(3)"
    with pytest.raises(NotAtHand, match="the reason"):
        build([sys.executable, "-c", program], cwd=tmp_path, log=tmp_path / "log")
    with pytest.raises(NotAtHand, match="no such-program"):
        build(["such-program"], cwd=tmp_path, log=tmp_path / "log")


def test_a_command_that_hangs_is_killed(tmp_path: Path):
    """Its log says so."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert run_logged(command, cwd=tmp_path, log=tmp_path / "log", timeout_s=0.1) == -1
    assert "killed after" in (tmp_path / "log").read_text()


def test_results_of_go():
    """A test that began and has no result, because the program ended, has failed."""
    events = [
        {"Action": "run", "Test": "TestA"},
        {"Action": "run", "Test": "TestA/sub"},
        {"Action": "pass", "Test": "TestA/sub"},
        {"Action": "pass", "Test": "TestA"},
        {"Action": "run", "Test": "TestB"},
        {"Action": "skip", "Test": "TestB"},
        {"Action": "run", "Test": "TestC"},
        {"Action": "output", "Output": "panic: test timed out"},
        {"Action": "fail"},
    ]
    found = franz_go.verdicts_of("\n".join(map(json.dumps, events)))
    assert found == {"TestA": PASSED, "TestA/sub": PASSED, "TestB": SKIPPED, "TestC": FAILED}


def test_names_of_librdkafkas_tests():
    """Those of a scenario, without share groups and tests to be run by hand."""
    source = """
    #define _TEST(0000_not_this, 0)
    struct test tests[] = {
        _TEST(0001_one, 0),
        _TEST(0002_two,
              TEST_F_LOCAL,
              /* why */
              _THRES(.ucpu = 100.0, .scpu = 20.0)),
        _TEST(0003_other, 0, .scenario = "noautocreate"),
        _TEST(0004_both, 0, .scenario = "default,ak23"),
        _TEST(0170_share_consumer, 0),
        _TEST(8000_idle, TEST_F_MANUAL),
        {NULL}};
    """
    assert librdkafka.names_of(source, "default") == ["0001_one", "0002_two", "0004_both"]
    assert librdkafka.names_of(source, "noautocreate") == ["0003_other"]


def test_results_of_librdkafka(tmp_path: Path):
    """Whatever neither passed nor was skipped has failed; so has a process that wrote no report."""
    report = tmp_path / "report.json"
    assert librdkafka.verdict_of("a", report) is FAILED
    states = {"a": "PASSED", "b": "SKIPPED", "c": "RUNNING", "d": "DNS"}
    report.write_text(json.dumps({"tests": {name: {"state": state} for name, state in states.items()}}))
    assert [librdkafka.verdict_of(name, report) for name in states] == [PASSED, SKIPPED, FAILED, FAILED]


def test_results_of_pytest():
    """Each test by its name without the folder."""
    output = (
        "tests/test_a.py::TestA::test_one PASSED        [ 10%]\n"
        "tests/test_a.py::test_two[some case] FAILED    [ 20%]\n"
        "tests/test_b.py::test_three SKIPPED (why)      [ 30%]\n"
        "tests/test_b.py::test_four ERROR               [ 40%]\n"
        "FAILED tests/test_a.py::test_two[some case] - assert 1 == 2\n"
    )
    assert kafka_tools.verdicts_of(output) == {
        "test_a.py::TestA::test_one": PASSED,
        "test_a.py::test_two[some case]": FAILED,
        "test_b.py::test_three": SKIPPED,
        "test_b.py::test_four": FAILED,
    }
