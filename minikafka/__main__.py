"""The command line's entrance: ``minikafka``, ``mk`` and ``python -m minikafka``."""

from __future__ import annotations

from minikafka.cli.root import main

if __name__ == "__main__":
    main()
