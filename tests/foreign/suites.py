"""What a foreign suite is to `make foreign`, and what its results amount to."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal


class NotAtHand(Exception):
    """A suite cannot run here: the message names the missing toolchain or sources."""


class Verdict(StrEnum):
    """The result of one test."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


Verdicts = dict[str, Verdict]
"""The result of each test, by the name that the suite gives it."""


@dataclass(frozen=True)
class Addresses:
    """Where a suite finds the brokers: ``host:port``, with commas; empty if there are none."""

    bootstrap: str = ""
    clients: str = ""
    """The listener that the suite's ``clients`` asks for."""


@dataclass(frozen=True)
class Suite:
    """A test suite of another project."""

    name: str
    version: str
    prepare: Callable[[Path], Path]
    """Fetches and builds the suite, with the given folder for logs; returns where it is. NotAtHand if that is impossible."""
    run: Callable[[Path, Addresses, Path], Verdicts]
    """Runs the suite: what ``prepare`` returned, the brokers' addresses, the folder for logs."""
    node_ids: Sequence[int] = (1, 2, 3)
    """The brokers' node ids; empty if the suite starts brokers by itself."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the brokers."""
    clients: Literal["", "PLAINTEXT", "SSL"] = ""
    """Protocol of the listener CLIENTS, which brokers then have beside their own; authorizers check only that one.
    For SSL the certificates are in the folder `tls` of the logs.
    """
    exceptions: Mapping[str, str] = field(default_factory=dict)
    """Tests that are known to fail, or are not run, with the reason."""


@dataclass(frozen=True)
class Report:
    """The results of a suite."""

    suite: Suite
    verdicts: Verdicts
    left_out: str | None = None
    """Why the suite did not run."""
    error: str | None = None
    """What ended the suite before it had results."""
    duration_s: float = 0.0

    def names(self, verdict: Verdict) -> list[str]:
        """Tests with this result."""
        return sorted(name for name, each in self.verdicts.items() if each is verdict)

    @property
    def excepted(self) -> list[str]:
        """Named exceptions that failed or were not run."""
        if self.left_out is not None or self.error is not None:
            return []
        return sorted(
            name for name in self.suite.exceptions if self.verdicts.get(name, Verdict.FAILED) is Verdict.FAILED
        )

    @property
    def failed(self) -> list[str]:
        """Tests that failed and are not named exceptions."""
        return [name for name in self.names(Verdict.FAILED) if name not in self.suite.exceptions]

    @property
    def stale(self) -> list[str]:
        """Named exceptions that passed: their names should be removed from the list."""
        return [name for name in self.names(Verdict.PASSED) if name in self.suite.exceptions]

    @property
    def why_none_passed(self) -> str | None:
        """Why a suite that was not left out has no passed test; None if one passed."""
        if self.left_out is not None or self.names(Verdict.PASSED):
            return None
        return self.error or "no test passed"

    @property
    def is_good(self) -> bool:
        """True if the suite was left out, or ran and only named exceptions failed."""
        return self.why_none_passed is None and not self.failed

    @property
    def summary(self) -> str:
        """The counts in one line."""
        if self.left_out is not None:
            return f"left out: {self.left_out}"
        if self.error is not None:
            return f"FAILED: {self.error}"
        passed, skipped = len(self.names(Verdict.PASSED)), len(self.names(Verdict.SKIPPED))
        return f"{passed} passed, {skipped} skipped, {len(self.excepted)} exceptions, {len(self.failed)} failed"

    def as_json(self) -> dict[str, Any]:
        """A row of `-o json`."""
        return {
            "suite": self.suite.name,
            "version": self.suite.version,
            "good": self.is_good,
            "left_out": self.left_out,
            "error": self.why_none_passed,
            "duration_s": round(self.duration_s, 1),
            "passed": len(self.names(Verdict.PASSED)),
            "skipped": len(self.names(Verdict.SKIPPED)),
            "exceptions": {name: self.suite.exceptions[name] for name in self.excepted},
            "stale_exceptions": self.stale,
            "failed": self.failed,
        }


def table(reports: Sequence[Report]) -> str:
    """The reports as a table, with the names of exceptions and failures below."""
    header = ("suite", "version", "passed", "skipped", "exceptions", "failed", "seconds")
    rows = [header]
    notes = []
    for report in reports:
        suite = report.suite
        if report.left_out is not None:
            rows.append((suite.name, suite.version, *("-" * (len(header) - 2))))
            notes.append(f"{suite.name} is left out: {report.left_out}")
            continue
        counts = (report.names(Verdict.PASSED), report.names(Verdict.SKIPPED), report.excepted, report.failed)
        rows.append((suite.name, suite.version, *(str(len(names)) for names in counts), f"{report.duration_s:.0f}"))
        if report.why_none_passed is not None:
            notes.append(f"{suite.name} FAILED: {report.why_none_passed}")
        notes += [f"{suite.name} exception: {name}: {suite.exceptions[name]}" for name in report.excepted]
        notes += [f"{suite.name} exception that passes, to be removed: {name}" for name in report.stale]
        notes += [f"{suite.name} FAILED: {name}" for name in report.failed]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def run_logged(
    command: Sequence[str | Path], *, cwd: Path, log: Path, env: Mapping[str, str] | None = None, timeout_s: float
) -> int:
    """Run a command with its output in ``log``; returns its exit code, or -1 if it was killed after ``timeout_s``."""
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=env,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            output.write(f"killed after {timeout_s:.0f} s\n".encode())
            return -1
    return done.returncode


def build(command: Sequence[str | Path], *, cwd: Path, log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a step of ``prepare``. NotAtHand with the last line of its output if it fails."""
    try:
        code = run_logged(command, cwd=cwd, log=log, env=env, timeout_s=1800.0)
    except FileNotFoundError as error:
        raise NotAtHand(f"no {command[0]}") from error
    if code:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise NotAtHand(f"{' '.join(map(str, command[:3]))} failed: {''.join(last)} (see {log})")


def environment_with(requirements: Sequence[str], folder: Path, logs: Path) -> Path:
    """The Python of a virtual environment in ``folder``, made on the first use. NotAtHand if a package cannot be had."""
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, clear=True, with_pip=True)
        build([python, "-m", "pip", "install", "--quiet", *requirements], cwd=folder, log=logs / "pip.log")
        (folder / "installed").touch()
    return python
