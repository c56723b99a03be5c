"""`minikafka serve` under cProfile: SIGUSR2 starts the profiler, and the next one writes what it saw to a file."""

from __future__ import annotations

import cProfile
import itertools
import os
import signal
import sys
from pathlib import Path

from minikafka.__main__ import main

FOLDER = "MINIKAFKA_BENCH_PROFILES"
"""The environment variable that names the folder of the written profiles, PID.prof each."""


def _toggle_on_signal() -> None:
    profiler, calls = cProfile.Profile(), itertools.count()
    path = Path(os.environ[FOLDER]) / f"{os.getpid()}.prof"

    def toggle(*_: object) -> None:
        if next(calls) % 2 == 0:
            profiler.enable()
        else:
            profiler.disable()
            profiler.dump_stats(path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)

    signal.signal(signal.SIGUSR2, toggle)


if __name__ == "__main__":
    _toggle_on_signal()
    sys.exit(main())
