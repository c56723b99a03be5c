"""The kill -9 loop for as long as one likes: ``python -m tests.e2e.soak --minutes 60`` (``make soak``).

Each stretch has a fresh cluster, and so a verdict of its own: a failure is found within minutes, and memory does not
grow with the hours. The seed of a failed stretch is printed; its logs and its history are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tests.e2e.kill_loop import kill_loop

STRETCH_MINUTES = 10.0


def say(text: str) -> None:
    """A line with the time of day."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stdout.flush()


async def stretch(folder: Path, minutes: float, seed: int, rate: float) -> bool:
    """One cluster; was all well?"""
    ends_at = time.monotonic() + 60 * minutes

    outcome = await kill_loop(
        folder, go_on=lambda played: played < 3 or time.monotonic() < ends_at, seed=seed, rate=rate, say=say
    )
    say(str(outcome))
    return outcome.well


def main() -> int:
    """Exit code 0 when every stretch was well."""
    parser = argparse.ArgumentParser(description="kill -9 brokers under load, and check that nothing is lost")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first stretch (default: the time)")
    parser.add_argument("--rate", type=float, default=300.0, help="records a second, for each of three producers")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    ends_at = time.monotonic() + 60 * options.minutes
    while time.monotonic() < ends_at:
        left = (ends_at - time.monotonic()) / 60
        folder = Path(tempfile.mkdtemp(prefix="minikafka-soak-"))
        say(f"stretch with seed {seed} in {folder}")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if not runner.run(stretch(folder, min(STRETCH_MINUTES, left), seed, options.rate)):
                say(f"NOT WELL: seed {seed}, everything is kept in {folder}")
                return 1
        shutil.rmtree(folder)
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
