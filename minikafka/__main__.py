"""The command line's entrance: ``minikafka``, ``mk`` and ``python -m minikafka``."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line; ends in SystemExit."""
    try:
        # Ctrl-C during the imports is an interruption like any other: no traceback.
        from minikafka.cli.root import main as run  # noqa: PLC0415

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
