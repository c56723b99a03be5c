"""Runs the ``console`` blocks of a page of docs in one shell and holds what they print against what the page says.

Rules of a page: a line that begins with ``$`` is a command; it goes on in lines that begin with ``>``, or after one
that ends in a backslash. What follows is its output, compared as a whole, with ``...`` for any text. A command without output on the page may print anything, but
every command must succeed, unless its line ends in ``# fails``. The six ports from the page's ``--base-port`` on, or from
"the ports from N on", stand for six that are free.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

BASE_PORT = re.compile(r"(?:--base-port|the ports from) (\d+)")
PORTS = 6
PATIENCE_S = 180.0
SESSION_MS = 120_000
"""No page waits for the end of a session: brokers that they kill refuse connections. On a machine that does other work, a living broker
may be silent for longer than the default of 9 s; it would be fenced, and the leaders and epochs of a page would be others."""
FAILS = "# fails"


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a page."""

    line: int
    command: str
    output: str

    @property
    def may_fail(self) -> bool:
        return self.command.endswith(FAILS)


def steps_of(page: Path) -> Iterator[Step]:
    """The commands of the page, in order."""
    inside, line, command, output = False, 0, "", []
    for number, text in enumerate([*page.read_text(encoding="utf-8").splitlines(), "```"], start=1):
        starts = inside and text.startswith("$ ")
        if text.startswith("```") or starts:
            if command:
                yield Step(line, command, "\n".join(output))
            command, output = "", []
        if text.startswith("```"):
            inside = text == "```console"
        elif starts:
            line, command = number, text[2:]
        elif inside and command.endswith("\\"):
            command += "\n" + text.removeprefix("> ")
        elif inside and command and not output and text.startswith("> "):
            command += "\n" + text[2:]
        elif inside:
            output.append(text)


def matches(said: str, printed: str) -> bool:
    """Is ``printed`` what the page says, with ``...`` for anything? White space does not count: lines are broken."""
    pattern = ".*?".join(re.escape(part) for part in "".join(said.split()).split("..."))
    return re.fullmatch(pattern, "".join(printed.split())) is not None


def free_ports(count: int) -> int:
    """The first of some ports in a row that nobody listens on."""
    for first in range(21_000 + os.getpid() % 9_000, 32_000, count):
        try:
            for port in range(first, first + count):
                with socket.create_server(("127.0.0.1", port)):
                    pass
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


class Shell:
    """One bash in which a page's commands run, and everything that they start. Use it as a context manager."""

    def __init__(self, folder: Path, base_port: int = 0) -> None:
        self._base_port = base_port
        self._free_port = free_ports(PORTS)
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "PYTHON": sys.executable,
                "KAFKA_BROKER_SESSION_TIMEOUT_MS": str(SESSION_MS),
            },
            text=True,
            start_new_session=True,
        )
        self.run('minikafka() { "$PYTHON" -m minikafka "$@"; }')

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._bash.pid, number)
                self._bash.wait(timeout=60)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        for stream in (self._bash.stdin, self._bash.stdout):
            if stream is not None:
                stream.close()

    def _ported(self, text: str, *, back: bool = False) -> str:
        for at in range(PORTS if self._base_port else 0):
            here, there = str(self._base_port + at), str(self._free_port + at)
            text = text.replace(*((there, here) if back else (here, there)))
        return text

    def run(self, command: str) -> tuple[str, int]:
        """What a command prints, and its exit status; AssertionError when it takes too long."""
        bash = self._bash
        assert bash.stdin is not None
        assert bash.stdout is not None
        bash.stdin.write(f"{self._ported(command)}\nprintf '\\n@@%s\\n' $?\n")
        bash.stdin.flush()
        timer = threading.Timer(PATIENCE_S, os.killpg, (bash.pid, signal.SIGKILL))
        timer.start()
        lines: list[str] = []
        try:
            for text in bash.stdout:
                if text.startswith("@@"):
                    return self._ported("".join(lines), back=True), int(text[2:])
                lines.append(text)
        finally:
            timer.cancel()
        raise AssertionError(f"{command}\ndid not end in {PATIENCE_S:g} s, or ended the shell:\n{''.join(lines)}")


def run_page(page: Path, folder: Path) -> int:
    """Run the page; AssertionError where it does not tell the truth. How many commands there were."""
    count = 0
    base_port = BASE_PORT.search(page.read_text(encoding="utf-8"))
    with Shell(folder, int(base_port[1]) if base_port else 0) as shell:
        for step in steps_of(page):
            count += 1
            printed, status = shell.run(step.command)
            where = f"{page.name}, line {step.line}: {step.command}"
            assert (status == 0) != step.may_fail, f"{where}\nended with {status}:\n{printed}"
            if step.output.strip():
                assert matches(step.output, printed), f"{where}\nprints\n{printed}\nand not\n{step.output}"
    return count
