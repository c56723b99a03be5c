"""A Docker engine to test with: the one that answers here, else the one of tests/rig, in a network namespace of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.tidy.sources import ROOT
from tools.dist import wheel_of_tree

RIG = ROOT / "tests" / "rig" / "docker_rig.sh"

# Whether something answers is known soon; what builds and starts may have to pull, unpack and install.
ASK_S = 60
WORK_S = 900

FETCH = """
import sys, urllib.request
data = sys.stdin.buffer.read() or None
headers = {"Content-Type": "application/json"} if data else {}
with urllib.request.urlopen(urllib.request.Request(sys.argv[1], data=data, headers=headers), timeout=10) as answer:
    sys.stdout.buffer.write(answer.read())
"""


@dataclass(frozen=True)
class Engine:
    """``environment`` leads the docker client to it; ``prefix`` leads other commands to where it publishes ports."""

    environment: Mapping[str, str]
    prefix: tuple[str, ...] = ()

    def docker(
        self, *arguments: str, timeout_s: float = 240, data: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run the docker client; what it said is in the failure."""
        done = subprocess.run(
            ["docker", *arguments],
            env=dict(self.environment),
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"docker {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done

    def minikafka(self, *arguments: str, data: str = "", image: str = "", timeout_s: float = 240) -> str:
        """Run this tree's command line where ports are published; what it printed. ``image``: of brokers that it runs."""
        done = subprocess.run(
            [*self.prefix, sys.executable, "-m", "minikafka", *arguments],
            env={**self.environment, "PYTHONPATH": str(ROOT), "MINIKAFKA_IMAGE": image},
            input=data,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"minikafka {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the docker client with pipes."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(["docker", *arguments], env=dict(self.environment), text=True, **pipes)

    def http(self, url: str, data: str = "") -> str | None:
        """The body of a 200 answer at a published port; None when there is none."""
        done = subprocess.run(
            [*self.prefix, sys.executable, "-IS", "-c", FETCH, url],
            input=data,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return done.stdout if done.returncode == 0 else None


def answers(environment: Mapping[str, str]) -> bool:
    """Is there an engine, with compose v2?"""
    if shutil.which("docker") is None:
        return False
    for question in (["docker", "compose", "version"], ["docker", "info"]):
        try:
            done = subprocess.run(question, env=dict(environment), capture_output=True, timeout=ASK_S, check=False)
        except subprocess.TimeoutExpired:
            return False
        if done.returncode:
            return False
    return True


def rig_is_ready() -> bool:
    """Has the rig what it needs, and may it be used?"""
    if os.geteuid() != 0:
        return False
    return subprocess.run([RIG, "ready"], capture_output=True, timeout=ASK_S, check=False).returncode == 0


def why_not() -> str | None:
    """A sentence for people, or None: there is an engine to test with."""
    if answers(os.environ) or rig_is_ready():
        return None
    return "no Docker engine with compose answers here (or, as root: tests/rig/docker_rig.sh deps, then base)"


@contextlib.contextmanager
def engine_with_image(tag: str) -> Iterator[Engine]:
    """An engine that has the image of this tree, built from its wheel as `make image` does."""
    options = ("--build-arg", f"WHEEL={wheel_of_tree().relative_to(ROOT).as_posix()}")
    if answers(os.environ):
        engine = Engine(dict(os.environ))
        engine.docker("build", "-t", tag, *options, str(ROOT), timeout_s=WORK_S)
        yield engine
        return
    folder = Path(os.environ.get("RIG", "/tmp/minikafka-rig"))
    with (folder / "lock").open("w") as lock:
        # One at a time; what a killed run has left behind is taken down first.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _rig("down")
        _rig("build", str(ROOT), tag, *options)
        _rig("up")
        namespace = os.environ.get("RIG_NS", "minikafka-rig")
        client = {"DOCKER_HOST": f"unix://{folder}/docker.sock", "DOCKER_CONFIG": str(folder / "client")}
        try:
            yield Engine({**os.environ, **client}, ("nsenter", f"--net=/run/netns/{namespace}"))
        finally:
            _rig("down")


def _rig(*arguments: str) -> None:
    # Not a pipe: the engine that it starts would hold it open.
    with (Path(os.environ.get("RIG", "/tmp/minikafka-rig")) / "rig.log").open("a+") as told:
        began = told.tell()
        done = subprocess.run([RIG, *arguments], stdout=told, stderr=told, timeout=WORK_S, check=False)
        told.seek(began)
        assert done.returncode == 0, f"docker_rig.sh {' '.join(arguments)}\n{told.read()[-4000:]}"
