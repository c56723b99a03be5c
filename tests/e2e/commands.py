"""Runs commands of ``minikafka`` in processes that are forked from one that has imported the command line already.

Each command has a process, standard streams and an exit code of its own; only the second of imports is shared. A test of
how a process starts runs ``python -m minikafka`` itself. This module is also the program that forks: it reads a line of
JSON for each command and writes its exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NoReturn

from minikafka.cli.root import COMMANDS, main

TIMEOUT_S = 180
STREAMS = ("in", "out", "err")


def completed(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run one command to its end. It is killed after TIMEOUT_S, and its exit code is negative then."""
    with tempfile.TemporaryDirectory(prefix="minikafka-command-") as folder:
        Path(folder, "in").write_text(given, encoding="utf-8")
        forking = _forking()
        assert forking.stdin is not None
        assert forking.stdout is not None
        job = {"arguments": arguments, "folder": folder, "cwd": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
        forking.stdin.write(json.dumps(job) + "\n")
        forking.stdin.flush()
        code = int(forking.stdout.readline())
        out, err = (Path(folder, name).read_text(encoding="utf-8") for name in ("out", "err"))
    return subprocess.CompletedProcess(arguments, code, out, err)


@cache
def _forking() -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.commands"],
        cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def end() -> None:
        # It ends with its input.
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(timeout=TIMEOUT_S)
        process.stdout.close()

    atexit.register(end)
    return process


def _child(arguments: list[str], folder: str, cwd: str, environment: dict[str, str]) -> NoReturn:
    code = 1
    try:
        for number, name in enumerate(STREAMS):
            stream = os.open(Path(folder, name), os.O_RDONLY if name == "in" else os.O_WRONLY | os.O_CREAT)
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        sys.argv = ["minikafka", *arguments]
        signal.alarm(TIMEOUT_S)
        try:
            main()
            code = 0
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        except BaseException:
            # As the interpreter would: the test fails on the traceback.
            sys.excepthook(*sys.exc_info())
        for stream_ in (sys.stdout, sys.stderr):
            stream_.flush()
    finally:
        os._exit(code)


def serve() -> None:
    """Fork for each line of standard input."""
    for command, _ in COMMANDS.values():
        pkgutil.resolve_name(command)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            _child(job["arguments"], job["folder"], job["cwd"], job["environment"])
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        serve()
