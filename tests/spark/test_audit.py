"""``minikafka spark audit`` finds planted damage and nothing else (issue 4, Build 5)."""

from __future__ import annotations

from pathlib import Path

from minikafka.check import HistoryWriter
from minikafka.spark.jobs.audit import audit
from minikafka.types import TopicPartition
from minikafka.wire.records import Record, build_batch

NAME = TopicPartition("orders", 0)
COUNT = 300


def files_of(folder: Path, node: int, values: list[bytes]) -> tuple:
    """One replica's only segment."""
    path = folder / f"{node}.log"
    records = [Record(0, 1, 0, None, value) for value in values]
    batches = [build_batch(records[at : at + 10], base_offset=at) for at in range(0, len(records), 10)]
    path.write_bytes(b"".join(batches))
    return node, NAME, [path], 0, len(values)


def judged(spark, folder: Path, values: list[bytes], third: list[bytes] | None = None):
    """The verdict on a ledger of COUNT acknowledged records, a poll, and three replicas."""
    with (folder / "ledger.jsonl").open("w") as file:
        ledger = HistoryWriter(file.write, lambda: 0.0)
        for index in range(COUNT):
            op = ledger.send("p", NAME.topic, f"v{index}", partition=0)
            ledger.acknowledged(op, partition=0, offset=index)
        refused = ledger.send("p", NAME.topic, "refused")
        ledger.failed(refused, "NOT_ENOUGH_REPLICAS")
        ledger.poll("c", *NAME, [(5, "v5")], high_watermark=5)
    replicas = [files_of(folder, 1, values), files_of(folder, 2, values), files_of(folder, 3, third or values)]
    return audit(spark, ledger=str(folder / "ledger.jsonl"), bootstrap=None, replicas=replicas, log_starts={NAME: 0})


def test_planted_damage_is_named(spark, tmp_path):
    """Must be shown: dropped, swapped, duplicated, altered, refused and unknown records, and a read above the HW."""
    values = [b"v%d" % index for index in range(COUNT)]
    values[30], values[31] = values[31], values[30]
    damaged = [*values[:100], *values[101:], b"v200", b"refused", b"nobody"]
    third = list(damaged)
    third[250] = b"changed"
    found = judged(spark, tmp_path, damaged, third)
    assert found.totals == {
        "lost-write": 1,
        "duplicate": 1,
        "aborted-read": 1,
        "phantom-read": 1,
        "nonmonotonic-send": 1,
        "diverged": 1,
        "read-above-hw": 1,
    }
    told = {finding.kind: finding for finding in found.findings}
    assert told["lost-write"].value == "v100"
    assert told["duplicate"].places == ((0, 199), (0, 299))
    assert told["nonmonotonic-send"].values == ("v30", "v31")
    assert (told["diverged"].offset, told["diverged"].holdings[2]) == (250, (3, -1, "changed"))
    assert told["read-above-hw"].offset == 5
    assert found.sends == {"ok": COUNT, "failed": 1}


def test_what_is_whole_is_not_accused(spark, tmp_path):
    """A verdict that cries wolf is not read; only the poll above its watermark is left."""
    found = judged(spark, tmp_path, [b"v%d" % index for index in range(COUNT)])
    assert found.totals == {"read-above-hw": 1}
    assert (found.records, found.held) == (COUNT, 3 * COUNT)
