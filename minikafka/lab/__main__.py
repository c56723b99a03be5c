"""``python -m minikafka.lab rewrite``: refresh the expectations of all scenario files; review the diff."""

from __future__ import annotations

import sys

from minikafka.lab.scenario import rewrite


def main(arguments: list[str]) -> int:
    """0 when it did what it was asked for."""
    if arguments != ["rewrite"]:
        sys.stderr.write("python -m minikafka.lab rewrite\n")
        return 2
    for path in rewrite():
        sys.stdout.write(f"{path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
