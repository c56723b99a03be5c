"""``python -m tests.scenarios.rewrite``: refresh the expectations of the library's files, and print which have changed."""

from __future__ import annotations

import sys

from minikafka.lab.scenario import library, read

if __name__ == "__main__":
    for path in library():
        text = read(path).refreshed()
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path.name}\n")
