"""A broker process with one of the simulator's planted bugs: ``python planted_serve.py BUG serve FILE ...``.

The product has no switch for this: the class is patched here, then the ordinary command line runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["MINIKAFKA_PURE"] = "1"  # nothing can be replaced in the compiled rules
sys.path.insert(0, str(Path(__file__).parents[2]))

from minikafka.cli.root import main
from tests.sim.planted import PLANTED


def serve() -> None:
    """Plant it, then do what the rest of the command says."""
    planted = {bug.name: bug for bug in PLANTED}
    with planted[sys.argv[1]].active():
        main(sys.argv[2:])


if __name__ == "__main__":
    serve()
