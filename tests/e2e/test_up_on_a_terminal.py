"""``minikafka up`` as a person sees it: a table, a URL, commands that work as printed, and a line at the end."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Self

import pytest

pytestmark = pytest.mark.e2e

TIMEOUT_S = 180


class Terminal:
    """One ``minikafka up`` on a terminal of its own. Use it as a context manager."""

    def __init__(self, folder: Path, *arguments: str, browser: str = "") -> None:
        self._screen, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minikafka", "up", "--data-dir", str(folder), *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "400", "BROWSER": browser},
        )
        os.close(terminal)
        self.text = ""

    def until(self, words: str) -> str:
        """Everything on the screen once ``words`` have appeared."""
        while words not in self.text:
            try:
                read = os.read(self._screen, 65_536)
            except OSError:  # what Linux raises when the last process has left the terminal
                read = b""
            assert read, self.text
            self.text += read.decode().replace("\r\n", "\n")
        return self.text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        os.close(self._screen)


def test_up_shows_brokers_in_order_and_commands_that_work(tmp_path):
    """Issue 13, section 0: table, URL, three commands that run as printed, a death, the end."""
    folder = tmp_path / "a b"  # a space: what is printed must be quoted for the shell
    with Terminal(folder) as up:
        shown = up.until("Press Ctrl-C")
        rows = re.findall(r"^ *(\d)  (127\.0\.0\.1:\d+)  +(\d+)  (.*)$", shown, re.MULTILINE)
        assert [int(node) for node, *_ in rows] == [1, 2, 3]
        assert [Path(row[3]) for row in rows] == [folder / f"broker-{node}" for node in (1, 2, 3)]
        first = rows[0][1]
        assert f"http://{first}/docs" in shown
        with urllib.request.urlopen(f"http://{first}/docs", timeout=TIMEOUT_S) as page:
            assert page.status == 200

        # The port is the clients' default if it is free here; otherwise the screen says why not, and what to type.
        meets = first == "127.0.0.1:9092"
        commands = re.findall(r"^  (\S.*minikafka (?:topics|produce|consume) .*)$", shown, re.MULTILINE)
        assert len(commands) == 3
        assert meets != ("is in use, so the brokers listen on other ports" in shown)
        environment = {name: value for name, value in os.environ.items() if name != "MINIKAFKA_BOOTSTRAP"}
        said = [
            subprocess.run(
                ["bash", "-c", each], capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=environment
            ).stdout
            for each in commands
        ]
        assert said[0] == "Created topic orders.\n"
        assert sorted(said[2].split()) == ["milk", "tea"]
        assert all((f"-b {first}" in each) != meets for each in commands)

        os.kill(int(rows[1][2]), signal.SIGKILL)
        died = up.until("To restart it: ")
        assert "Broker 2 ended with SIGKILL" in died
        up.process.send_signal(signal.SIGINT)
        ended = up.until("up --data-dir")
        assert "Stopping 2 brokers" in ended
        assert f"serve '{folder}/broker-2/broker.properties'" in ended
        assert up.process.wait(TIMEOUT_S) == 0


def test_up_stops_nothing_when_its_last_broker_has_died(tmp_path):
    """The cause is the last line; "Stopping 1 broker" would be about a process that is gone."""
    with Terminal(tmp_path, "--brokers", "1", "--base-port", "0") as up:
        pid = re.search(r"^ *1  127\.0\.0\.1:\d+  +(\d+)  ", up.until("Press Ctrl-C"), re.MULTILINE)
        assert pid is not None
        os.kill(int(pid[1]), signal.SIGKILL)
        assert "Stopping" not in up.until("all brokers have ended; the last one: broker 1 ended with SIGKILL")
        assert up.process.wait(TIMEOUT_S) == 1


def test_json_lines_are_printed_on_a_terminal_on_request(tmp_path):
    """Issue 13, section 0: `-o json` prints the contract of docs/cli.md wherever the output goes, and says the end."""
    with Terminal(tmp_path, "--brokers", "1", "--base-port", "0", "-o", "json") as up:
        assert up.until('{"ready":true').startswith('{"broker":1,')
        up.process.send_signal(signal.SIGTERM)
        assert up.until('"stopped"').endswith('{"stopped":true}\n')
        assert up.process.wait(TIMEOUT_S) == 0


def test_open_opens_the_console_in_a_browser(tmp_path):
    """``--open`` runs the default browser with the address of the first broker, once the brokers are ready."""
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\necho "opened $1"\n')
    browser.chmod(0o755)
    with Terminal(tmp_path / "data", "--brokers", "1", "--base-port", "0", "--open", browser=f"{browser} %s") as up:
        console = re.search(r"Console: (http://\S+/)", up.until("Press Ctrl-C"))
        assert console is not None
        up.until(f"opened {console[1]}\n")
        up.process.send_signal(signal.SIGINT)
        up.until("Stopped.")
        assert up.process.wait(TIMEOUT_S) == 0
