"""The check of the demo's Spark job: the same aggregation in plain Python, and what it says when they differ (S39)."""

from __future__ import annotations

import json

from click.testing import CliRunner

from minikafka.cli.demo import DAY_MS, directly, run_job
from minikafka.cli.demo_story import Flight
from minikafka.cli.root import root


def flight(day: int, carrier: str, delay: int | None) -> Flight:
    value = json.dumps({"origin": "JFK", "carrier": carrier, "dep_delay": delay}).encode()
    return Flight(b"k", value, day * DAY_MS + 5, f"{day}/{carrier}/{delay}")


FLIGHTS = [
    flight(1, "AA", 20),
    flight(1, "AA", None),
    flight(2, "AA", -5),
    flight(2, "UA", 15),
    flight(3, "UA", 99),
]
SUMMARY = {
    "windows": 3,
    "lines": [
        {"origin": "JFK", "carrier": "AA", "flights": 3, "late": 1, "delay_sum": 15, "delay_known": 2},
        {"origin": "JFK", "carrier": "UA", "flights": 1, "late": 1, "delay_sum": 15, "delay_known": 1},
    ],
}


def test_closed_windows_are_counted_as_the_job_counts_them():
    """Build 7: late from 15 minutes, unknown delays left out of sums, windows that are still open left out of all."""
    assert directly(FLIGHTS, 3 * DAY_MS).differences(SUMMARY) == []


def test_a_difference_is_told_with_its_place():
    """A check that could not fail would prove nothing: one flight more, one window less."""
    told = directly([*FLIGHTS, flight(0, "UA", 1)], 3 * DAY_MS).differences(SUMMARY)
    assert told[0].startswith("JFK/UA: Spark [1, 1, 15, 1], directly [2, 1, 16, 2]")
    assert told[1] == "windows: Spark 3, directly 4"


async def test_a_silent_job_is_still_reported(tmp_path, monkeypatch):
    """Issue 13, section 0: Spark said nothing for minutes, and looked like a hang. What the JVM prints is not shown."""
    heard = tmp_path / "heard"
    job = tmp_path / "job"
    job.write_text(
        "#!/bin/sh\necho 'WARN: of the JVM' >&2\necho 'flights: starting' >&2\n"
        f"until [ -e {heard} ]; do sleep 0.05; done\necho '{{}}'\n"
    )
    job.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(job))
    monkeypatch.setattr("minikafka.cli.demo.QUIET_INTERVAL_S", 0.05)
    told: list[str] = []

    def say(text: str) -> None:
        told.append(text)
        if "still at work" in text:
            heard.touch()

    assert await run_job("127.0.0.1:1", "flights", "delays", tmp_path, say) == {}
    assert "starting" in told
    assert not any("JVM" in each for each in told)


def test_a_folder_with_an_earlier_run_is_refused(tmp_path):
    """Its cluster has the topics; the advice was to delete them, of which the demo's user knows nothing."""
    (tmp_path / "history.jsonl").touch()
    done = CliRunner().invoke(root, ["demo", "--no-spark", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert done.output == f"minikafka: {tmp_path} holds an earlier run: choose another directory\n"
