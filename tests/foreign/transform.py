"""The transform job of tests/e2e/transform_rounds.py with franz-go and with Kafka's own client for Java.

``python -m tests.foreign.transform --rounds 20 --client franz-go``
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.transform_rounds import Client, command_line
from tests.foreign.kafka_apps import STREAMS, command
from tests.foreign.toolchains import HERE, output_of


def _franz_go(folder: Path) -> list[str]:
    program = folder / "transform"
    output_of("go", "build", "-o", program, "./transform", cwd=HERE / "go")
    return [str(program)]


def _java(folder: Path) -> list[str]:
    return command(STREAMS, folder, str(HERE / "Transform.java"))


CLIENTS = {each.name: each for each in (Client("franz-go", _franz_go), Client("java", _java))}

if __name__ == "__main__":
    sys.exit(command_line(CLIENTS, sys.argv[1:]))
