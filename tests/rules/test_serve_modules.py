"""Which modules a broker process does without."""

from __future__ import annotations

import subprocess
import sys


def test_a_broker_does_not_load_what_only_tables_need() -> None:
    """Each module costs every broker memory and time at its start."""
    code = "import sys, minikafka.cli.serve; print('rich.console' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
