"""``python -m tests.fuzz [--requests N | --minutes M] [--seed S] [--protocol P]``: exit code 0 when nothing was wrong, else 1."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.run import PROTOCOLS, fuzz


def say(text: str) -> None:
    """A paragraph, at once."""
    sys.stdout.write(text + "\n\n")
    sys.stdout.flush()


def main() -> int:
    """Run once and print the counts."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="hostile requests against a broker process"
    )
    parser.add_argument("--requests", type=int, default=None, help="number of requests (default: 100,000)")
    parser.add_argument("--minutes", type=float, default=None, help="run for this long instead")
    parser.add_argument("--seed", type=int, default=None, help="first seed (default: from the time of day)")
    parser.add_argument(
        "--protocol", choices=PROTOCOLS, default="both", help="protocol of the requests (default: both)"
    )
    parser.add_argument(
        "--connections", type=int, default=5_000, help="connections to open at a time at the end (default: 5,000)"
    )
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    requests = 100_000 if options.requests is None and options.minutes is None else options.requests
    seconds = None if options.minutes is None else 60 * options.minutes
    counts = fuzz(
        seed,
        requests=requests,
        seconds=seconds,
        protocol=options.protocol,
        connections=options.connections,
        say=say,
    )
    say(counts.render())
    return 1 if counts.faults else 0


if __name__ == "__main__":
    sys.exit(main())
