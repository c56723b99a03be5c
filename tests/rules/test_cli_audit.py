"""``minikafka audit``: planted damage is named, a clean run is not accused (issue 4, Build 5 and must-be-shown)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from minikafka.check import HistoryWriter, value_id
from minikafka.cli.root import root
from minikafka.log.checkpoint import MetaProperties, format_meta_properties, format_offsets
from minikafka.log.names import LOG, META_PROPERTIES, REPLICATION_OFFSET_CHECKPOINT, offset_name
from minikafka.types import TopicPartition
from minikafka.wire.records import Record, build_batch

PLACE = TopicPartition("orders", 0)
NODES = (1, 2, 3)
PER_BATCH = 10
COUNT = 1_000

Values = list[bytes]
Damage = Callable[[Values], Values]


def unharmed(values: Values) -> Values:
    return values


def write_replica(folder: Path, node: int, values: Values) -> None:
    """One broker's data directory, as after a clean stop."""
    log = folder / f"broker-{node}" / str(PLACE)
    log.mkdir(parents=True)
    meta = MetaProperties(cluster_id="c", node_id=node, directory_id="d")
    (log.parent / META_PROPERTIES).write_bytes(format_meta_properties(meta))
    (log.parent / REPLICATION_OFFSET_CHECKPOINT).write_bytes(format_offsets({PLACE: len(values)}))
    batches = [
        build_batch([Record(0, 1, 0, None, value) for value in values[base : base + PER_BATCH]], base_offset=base)
        for base in range(0, len(values), PER_BATCH)
    ]
    (log / offset_name(0, LOG)).write_bytes(b"".join(batches))


def audited(tmp_path: Path, everywhere: Damage = unharmed, on_node_3: Damage = unharmed, count: int = COUNT):
    """Exit code and JSON for a ledger of ``count`` acknowledged records and logs with damage."""
    values = [b"v%d" % index for index in range(count)]
    with (tmp_path / "ledger.jsonl").open("w") as file:
        ledger = HistoryWriter(file.write, lambda: 0.0)
        for offset, value in enumerate(values):
            op = ledger.send("p", PLACE.topic, value_id(value), partition=0)
            ledger.acknowledged(op, partition=0, offset=offset)
    for node in NODES:
        held = everywhere(list(values))
        write_replica(tmp_path, node, on_node_3(held) if node == 3 else held)
    arguments = ["audit", str(tmp_path / "ledger.jsonl"), "--data-dir", str(tmp_path), "-o", "json"]
    result = CliRunner().invoke(root, arguments)
    assert result.output, result.exception
    return result.exit_code, json.loads(result.output)


def examples(told, kind):
    return told["findings"].get(kind, {"examples": []})["examples"]


def test_a_clean_run_is_clean(tmp_path):
    """Must be shown: finds nothing where nothing is wrong; says how much it looked at and how long it took."""
    code, told = audited(tmp_path)
    assert (code, told["ok"], told["findings"]) == (0, True, {})
    assert (told["counts"]["acknowledged"], told["counts"]["offsets_read"]) == (COUNT, COUNT)
    assert told["replicas"]["batches"] == COUNT // PER_BATCH
    assert told["seconds"] > 0


def dropped(values: Values) -> Values:
    return values[:500] + values[501:]


def swapped(values: Values) -> Values:
    values[300], values[301] = values[301], values[300]
    return values


def duplicated(values: Values) -> Values:
    return [*values, values[700]]


def altered(values: Values) -> Values:
    values[444] = b"V444"
    return values


@pytest.mark.parametrize(
    ("damage", "kind", "named"),
    [(dropped, "lost-write", "v500"), (swapped, "nonmonotonic-send", "v301"), (duplicated, "duplicate", "v700")],
)
def test_damage_in_the_committed_log_is_named(tmp_path, damage, kind, named):
    """Must be shown: one record dropped, two swapped, one duplicated: each in the checker's words, with the record."""
    code, told = audited(tmp_path, everywhere=damage)
    assert (code, told["ok"]) == (1, False)
    assert any(named in json.dumps(each) for each in examples(told, kind))


def test_one_altered_replica_is_named_with_its_record(tmp_path):
    """Must be shown: a replica whose bytes differ is told apart from the two that agree, down to the record."""
    code, told = audited(tmp_path, on_node_3=altered)
    assert code == 1
    assert list(told["findings"]) == ["diverged"]
    [finding] = examples(told, "diverged")
    assert finding["offset"] == 444
    assert finding["holdings"] == [[1, -1, "v444"], [2, -1, "v444"], [3, -1, "V444"]]
    assert "replica 3 differs" in finding["detail"]


def test_a_misused_audit_says_what_it_needs(tmp_path):
    """One sentence, with what to do next."""
    ledger = tmp_path / "l.jsonl"
    ledger.write_text("nonsense\n")
    assert CliRunner().invoke(root, ["audit", str(ledger)]).exit_code == 2
    result = CliRunner().invoke(root, ["audit", str(ledger), "--data-dir", str(tmp_path)])
    assert (result.exit_code, "line 1" in result.output) == (1, True)
