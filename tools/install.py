"""Run ``pip install`` and print what it does in a few lines: a line every few seconds, and the total at the end.

``python tools/install.py WHAT ARGUMENT...`` installs with the pip of the Python that runs it, which is upgraded first
if need be. WHAT is the heading. The whole output of pip is printed if it fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from importlib.metadata import version

# Reports progress to pipes, and knows no deprecated way to build a package.
PIP_MIN = "25.3"
INTERVAL_S = 5.0
MB = 1_000_000
UNITS = {"bytes": 1, "kB": 1000, "MB": MB, "GB": 1000 * MB}

DOWNLOADING = re.compile(r"\s*Downloading ([^\s-]+-[^\s-]+?)(?:-\S+\.whl|\.tar\.gz|\.zip)(?: \(([\d.]+) (\w+)\))?$")
PROGRESS = re.compile(r"Progress (\d+) of (\d+)$")
BUILDING = re.compile(r"\s*Building \w+ for (\S+)")
INSTALLING = re.compile(r"Installing collected packages: (.*)")


class Progress:
    """What pip is doing, by the lines that it has printed."""

    def __init__(self) -> None:
        self.doing = "looking up versions"
        """In a few words."""
        self.downloaded = 0.0
        """Bytes of all files that pip has begun to download."""
        self._file = ""

    def read(self, line: str) -> None:
        """Take one line of ``pip install --progress-bar raw`` into account."""
        if found := PROGRESS.match(line):
            received, size = int(found[1]) / MB, int(found[2]) / MB
            if received < size:
                self.doing = f"downloading {self._file}: {received:.0f} of {size:.0f} MB"
            else:
                self.doing = f"unpacking {self._file} ({size:.0f} MB)"
        elif found := DOWNLOADING.match(line):
            self._file = found[1]
            self.doing = f"downloading {self._file}"
            self.downloaded += float(found[2] or 0) * UNITS.get(found[3], 0)
        elif found := BUILDING.match(line):
            self.doing = f"building {found[1]}"
        elif found := INSTALLING.match(line):
            self.doing = f"installing {found[1].count(',') + 1} packages"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def main(what: str, *arguments: str) -> int:
    """Install; the exit code of pip."""
    install = [sys.executable, "-m", "pip", "install"]
    if _numbers(version("pip")) < _numbers(PIP_MIN):
        upgraded = subprocess.run([*install, "--quiet", "--upgrade", f"pip>={PIP_MIN}"], check=False)
        if upgraded.returncode:
            return upgraded.returncode
    command = [*install, "--progress-bar", "raw", *arguments]
    began = time.monotonic()
    progress, printed, ended = Progress(), [], threading.Event()

    def say(text: str) -> None:
        print(text, flush=True)

    def report() -> None:
        while not ended.wait(INTERVAL_S):
            say(f"    {time.monotonic() - began:3.0f} s  {progress.doing}")

    say(f"==> installing {what}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        reporting = threading.Thread(target=report)
        reporting.start()
        try:
            for line in pip.stdout or ():
                progress.read(line.rstrip("\n"))
                if not PROGRESS.match(line):
                    printed.append(line)
        finally:
            ended.set()
            reporting.join()
    if pip.returncode:
        sys.stderr.write("".join(printed))
        sys.stderr.write(f"{' '.join(command)} failed with exit code {pip.returncode}\n")
    else:
        say(f"    {time.monotonic() - began:3.0f} s  done, {progress.downloaded / MB:.0f} MB downloaded")
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
