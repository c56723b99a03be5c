"""``minikafka audit``: planted damage is named, a clean run is not accused (issue 4, Build 5 and must-be-shown)."""

from __future__ import annotations

import errno
import json
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from minikafka.blocking.reading import RetentionPassedPosition
from minikafka.check import HistoryWriter
from minikafka.cli.root import root
from minikafka.log.checkpoint import format_offsets
from minikafka.log.names import LOG_START_OFFSET_CHECKPOINT, META_PROPERTIES
from minikafka.types import TopicPartition
from tests.audit_kit import DAMAGES, Damage, write_ledger, write_replica

PLACE = TopicPartition("orders", 0)
PER_BATCH = 10
COUNT = 1_000
AT = 444


@dataclass
class Run:
    """A ledger of COUNT acknowledged records, and three replicas."""

    folder: Path

    def __post_init__(self) -> None:
        values = [b"v%d" % index for index in range(COUNT)]
        self.ledger = self.folder / "ledger.jsonl"
        write_ledger(self.ledger, PLACE.topic, values)
        self.data_dirs = [self.folder / f"broker-{node}" for node in (1, 2, 3)]
        for node, data_dir in enumerate(self.data_dirs, 1):
            write_replica(data_dir, node, PLACE, values, PER_BATCH)

    def audited(self, *ledgers: Path) -> tuple[int, dict[str, Any]]:
        """Exit code and JSON."""
        given = [str(each) for each in ledgers or (self.ledger,)]
        result = CliRunner().invoke(root, ["audit", *given, "--data-dir", str(self.folder), "-o", "json"])
        assert result.output.startswith("{"), (result.output, result.exception)
        return result.exit_code, json.loads(result.output)

    def totals(self, *ledgers: Path) -> dict[str, int]:
        return {kind: found["count"] for kind, found in self.audited(*ledgers)[1]["findings"].items()}


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_a_clean_run_is_clean(run):
    """Must be shown: finds nothing where nothing is wrong; says how much it looked at and how long it took."""
    code, told = run.audited()
    assert (code, told["ok"], told["findings"]) == (0, True, {})
    assert (told["counts"]["acknowledged"], told["counts"]["offsets_read"]) == (COUNT, COUNT)
    assert told["replicas"]["batches"] == COUNT // PER_BATCH
    assert told["seconds"] > 0


def test_replicas_on_a_share_that_maps_no_files_are_read(run, monkeypatch):
    """ENODEV of 9p and of FUSE with direct_io was a traceback."""

    def mapped(*_args, **_options):
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(mmap, "mmap", mapped)
    test_a_clean_run_is_clean(run)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_planted_damage_is_named_and_nothing_else(run, damage: Damage):
    """Must be shown: one record dropped, two swapped, one duplicated, one replica altered, each as what it is."""
    damage.plant(run.data_dirs, PLACE, AT)
    code, told = run.audited()
    assert (code, told["ok"]) == (1, False)
    assert {kind: found["count"] for kind, found in told["findings"].items()} == damage.totals
    assert all(f"v{AT}" in json.dumps(found) or kind == "shifted" for kind, found in told["findings"].items())


def test_what_stands_behind_a_dropped_record_is_one_stretch(run):
    """Half a log of moved records is one line in the report, with how far and from where to where."""
    DAMAGES[0].plant(run.data_dirs, PLACE, AT)
    [shift] = run.audited()[1]["findings"]["shifted"]["examples"]
    assert (shift["offset"], shift["until"], shift["distance"], shift["count"]) == (AT + 1, COUNT, -1, COUNT - AT - 1)


def test_one_altered_replica_is_named_with_its_record(run):
    """Must be shown: a replica whose bytes differ is told apart from the two that agree, down to the record."""
    DAMAGES[3].plant(run.data_dirs, PLACE, AT)
    [finding] = run.audited()[1]["findings"]["diverged"]["examples"]
    assert finding["offset"] == AT
    assert finding["holdings"] == [[1, -1, f"v{AT}"], [2, -1, f"v{AT}"], [3, -1, "altered"]]
    assert "replica 3 differs" in finding["detail"]


def test_a_consumers_ledger_shows_what_it_was_given_too_early(run):
    """read-above-hw: the fetch's answer named a high watermark at or below the record; values are held against the log."""
    early = run.folder / "consumer.jsonl"
    with early.open("w") as file:
        ledger = HistoryWriter(file.write, lambda: 0.0)
        ledger.poll("c", *PLACE, [(0, "v0"), (1, "v1")], high_watermark=2)
        ledger.poll("c", *PLACE, [(2, "v2"), (3, "x3")], high_watermark=3)
        ledger.seek("c", *PLACE, 4)
    code, told = run.audited(run.ledger, early)
    assert code == 1
    counts = {kind: found["count"] for kind, found in told["findings"].items()}
    assert counts == {"read-above-hw": 1, "inconsistent-offsets": 1}
    [finding] = told["findings"]["read-above-hw"]["examples"]
    assert (finding["offset"], finding["process"], finding["high_watermark"]) == (3, "consumer.jsonl: c", 3)


def test_what_a_consumer_was_given_is_no_proof_that_the_log_has_it(run):
    """Acknowledged, read, and gone: lost all the same, and read too early; the log's end is below it."""
    with run.ledger.open("a") as file:
        ledger = HistoryWriter(lambda line: "history" in line or file.write(line), lambda: 0.0)
        ledger._sends = COUNT
        ledger.acknowledged(ledger.send("p", PLACE.topic, "last", partition=0), partition=0, offset=COUNT)
        ledger.poll("c", *PLACE, [(COUNT - 1, f"v{COUNT - 1}"), (COUNT, "last")], high_watermark=COUNT + 1)
    code, told = run.audited()
    assert code == 1
    assert {kind: found["count"] for kind, found in told["findings"].items()} == {"unseen": 1, "read-above-hw": 1}
    [finding] = told["findings"]["read-above-hw"]["examples"]
    assert (finding["offset"], finding["value"], finding["high_watermark"]) == (COUNT, "last", COUNT)


def test_retention_is_no_loss(run):
    """Below the log start nothing is owed, in the middle of a batch too."""
    for data_dir in run.data_dirs:
        (data_dir / LOG_START_OFFSET_CHECKPOINT).write_bytes(format_offsets({PLACE: 25}))
    assert run.totals() == {}


def test_ledgers_of_several_producers_are_one_history(run):
    """Same names and numbers in both: each file's processes and sends are its own."""
    lines = run.ledger.read_text().splitlines(keepends=True)
    one, two = run.folder / "one.jsonl", run.folder / "two.jsonl"
    one.write_text("".join(lines[:501]))
    two.write_text(lines[0] + "".join(lines[501:]).replace('"op":', '"op":1'))
    assert run.totals(one, two) == run.totals(two, one) == {}
    assert run.totals(one) == {"phantom-read": COUNT - 250}


def test_a_ledger_that_was_cut_is_read_up_to_the_cut(run):
    """kill -9 of the producer: the send whose answer was not written is unknown, and may stand in the log."""
    run.ledger.write_bytes(run.ledger.read_bytes()[:-20])
    code, told = run.audited()
    assert (code, told["counts"]["unknown"], told["counts"]["unknown_seen"]) == (0, 1, 1)


def test_a_producer_without_idempotence_may_duplicate(run):
    """The ledger says so itself: {"type":"expect","idempotent":false}."""
    DAMAGES[2].plant(run.data_dirs, PLACE, AT)
    assert run.totals() == {"duplicate": 1}
    with run.ledger.open("a") as file:
        file.write('{"type":"expect","idempotent":false}\n')
    assert run.totals() == {}


def test_a_misused_audit_says_what_it_needs(tmp_path):
    """One sentence, with what to do next."""
    ledger = tmp_path / "l.jsonl"
    ledger.write_text("nonsense\n")
    assert CliRunner().invoke(root, ["audit", str(ledger)]).exit_code == 2
    result = CliRunner().invoke(root, ["audit", str(ledger), "--data-dir", str(tmp_path)])
    assert (result.exit_code, "line 1" in result.output) == (1, True)
    ledger.write_text("")
    result = CliRunner().invoke(root, ["audit", str(ledger), "--data-dir", str(tmp_path)])
    assert (result.exit_code, "nothing to compare" in result.output) == (1, True)


@pytest.mark.parametrize("name", [META_PROPERTIES, LOG_START_OFFSET_CHECKPOINT])
def test_a_damaged_small_file_is_named(run, name: str):
    """A data directory is audited just when something has gone wrong with it."""
    damaged = run.data_dirs[0] / name
    damaged.write_bytes(b"\xff not a checkpoint")
    result = CliRunner().invoke(root, ["audit", str(run.ledger), "--data-dir", str(run.folder)])
    assert result.exit_code == 1
    assert f"{damaged} cannot be read" in result.output.replace("\n", " ")


def test_records_that_go_away_while_they_are_read_end_the_audit_with_a_sentence(tmp_path, monkeypatch):
    """Retention, or a truncation by a new leader."""

    def gone(*_: Any) -> None:
        raise RetentionPassedPosition(TopicPartition("orders", 1), "the log begins at 7")

    monkeypatch.setattr("minikafka.cli.audit.audit", gone)
    ledger = tmp_path / "ledger"
    ledger.write_text("", encoding="utf-8")
    result = CliRunner().invoke(root, ["audit", str(ledger), "-b", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "orders-1: records were deleted or cut while they were read (RetentionPassedPosition)" in result.output
    assert isinstance(result.exception, SystemExit)
