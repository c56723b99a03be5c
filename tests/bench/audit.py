"""The durability audit at scale: each planted damage in a million records is named, a clean run is not accused.

Usage: python -m tests.bench.audit [--records 1000000] [--spark] [--only WORD]

Three replicas of one partition and the producer's ledger are written; then ``minikafka audit`` (with ``--spark``:
``minikafka spark audit``) runs on them as they are and once for each damage of tests/audit_kit.py, in a process of its
own. Exit code 1 when a verdict is not the expected one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from minikafka.types import TopicPartition
from tests.audit_kit import DAMAGES, Damage, write_ledger, write_replica

NAME = TopicPartition("orders", 0)
NODES = (1, 2, 3)
PER_BATCH = 1_000


def written(folder: Path, count: int) -> None:
    """A run as it should be."""
    values = [b"order-%d" % index for index in range(count)]
    write_ledger(folder / "ledger.jsonl", NAME.topic, values)
    for node in NODES:
        write_replica(folder / "clean" / f"broker-{node}", node, NAME, values, PER_BATCH)


def audited(folder: Path, damage: Damage | None, count: int, command: list[str]) -> bool:
    """One line of the report: what was found, in how many seconds; was it what was planted?"""
    data = folder / "clean"
    if damage is not None:
        data = folder / "damaged"
        shutil.copytree(folder / "clean", data)
        damage.plant([data / f"broker-{node}" for node in NODES], NAME, count // 2)
    arguments = [str(folder / "ledger.jsonl"), "--data-dir", str(data), "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "minikafka", *command, *arguments], stdout=subprocess.PIPE, check=False
    )
    told = json.loads(done.stdout)
    found = {kind: each["count"] for kind, each in told["findings"].items()}
    wanted = {} if damage is None else damage.totals
    right = found == wanted and done.returncode == bool(wanted)
    name = "nothing" if damage is None else damage.name
    sys.stdout.write(f"{name:<20} {told['seconds']:>7.1f} s  {found or 'nothing found'}{'' if right else '  WRONG'}\n")
    sys.stdout.flush()
    if damage is not None:
        shutil.rmtree(data)
    return right


def main() -> None:
    """Write, plant, audit, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.audit", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--spark", action="store_true", help="minikafka spark audit, which needs the extra")
    parser.add_argument("--only", default="", help="only damage whose name contains this")
    given = parser.parse_args()
    command = ["spark", "audit"] if given.spark else ["audit"]
    with tempfile.TemporaryDirectory(prefix="minikafka-audit-") as name:
        folder = Path(name)
        written(folder, given.records)
        sys.stdout.write(f"{' '.join(command)}: {given.records:,} records, three replicas\n")
        chosen = [None, *DAMAGES] if not given.only else [each for each in DAMAGES if given.only in each.name]
        right = [audited(folder, damage, given.records, command) for damage in chosen]
    sys.exit(not all(right))


if __name__ == "__main__":
    main()
