"""``minikafka spark audit`` finds planted damage and nothing else, as ``minikafka audit`` does (issue 4, Build 5)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from minikafka.check import HistoryWriter
from minikafka.check.findings import Finding
from minikafka.cli import audit as plain
from minikafka.cli.audit import node_folders, partitions_in, segments_of
from minikafka.log.checkpoint import format_offsets
from minikafka.log.names import LOG_START_OFFSET_CHECKPOINT
from minikafka.spark import audit as module
from minikafka.spark.audit import Audited, BadLedger, audit
from minikafka.types import TopicPartition
from minikafka.world.read_disk import replica_of
from tests.audit_kit import DAMAGES, write_ledger, write_replica

NODES = (1, 2, 3)
COUNT = 300
AT = 144
CLEAN = TopicPartition("clean", 0)


def written(folder: Path, *names: TopicPartition) -> list[Path]:
    """A ledger of COUNT acknowledged records for each partition, and three replicas of it, each in its own cluster."""
    ledgers = []
    for name in names:
        values = [b"v%d" % index for index in range(COUNT)]
        ledgers.append(folder / f"{name.topic}.jsonl")
        write_ledger(ledgers[-1], name.topic, values)
        for node in NODES:
            write_replica(folder / name.topic / f"broker-{node}", node, name, values, per_batch=10)
    return ledgers


def data_dirs(folder: Path, name: TopicPartition) -> list[Path]:
    return [folder / name.topic / f"broker-{node}" for node in NODES]


def judged(spark, ledgers: list[Path], folders: list[Path]) -> Audited:
    """By Spark."""
    replicas = []
    for node, folder in (each for given in folders for each in node_folders(given)):
        for name in partitions_in(folder):
            known = replica_of(folder, node, name)
            replicas.append((node, name, segments_of(folder, name), known.log_start, known.high_watermark))
    return audit(spark, ledgers=ledgers, bootstrap=None, replicas=replicas)


def evidence(findings: tuple[Finding, ...]) -> set[tuple[str, str]]:
    """What is told of a finding, apart from the history's lines, the ledger's numbers and who was asked first."""
    told = []
    for each in findings:
        fields = {name: value for name, value in each.evidence().items() if name not in {"lines", "op", "ops"}}
        if each.kind == "inconsistent-offsets":
            fields["values"] = sorted(value for value, _ in each.values)
        told.append((each.kind, repr(sorted(fields.items()))))
    return set(told)


def test_both_audits_say_the_same_of_planted_damage(spark, tmp_path):
    """Must be shown: dropped, swapped, duplicated and altered, each in a topic of its own, beside one that is whole."""
    names = [TopicPartition(damage.change.__name__, 0) for damage in DAMAGES]
    ledgers = written(tmp_path, *names, CLEAN)
    for damage, name in zip(DAMAGES, names, strict=True):
        damage.plant(data_dirs(tmp_path, name), name, AT)
    found = judged(spark, ledgers, [tmp_path / ledger.stem for ledger in ledgers])
    assert found.totals == {kind: count for damage in DAMAGES for kind, count in damage.totals.items()}
    assert {(each.kind, each.topic) for each in found.findings} == {
        (kind, name.topic) for damage, name in zip(DAMAGES, names, strict=True) for kind in damage.totals
    }
    assert (found.records, found.held) == (5 * COUNT, 15 * COUNT)
    by_itself = set()
    for ledger in ledgers:
        by_itself |= evidence(plain.audit([ledger], None, [tmp_path / ledger.stem]).verdict.findings)
    named = {
        (kind, text.replace(f"{ledger.name}: ", "")) for kind, text in evidence(found.findings) for ledger in ledgers
    }
    assert by_itself <= named


def test_what_is_whole_is_not_accused(spark, tmp_path):
    """A verdict that cries wolf is not read: retention, refusals, a cut ledger; only the reader's polls are wrong."""
    [ledger] = written(tmp_path, CLEAN)
    with ledger.open("a") as file:
        more = HistoryWriter(lambda line: line.startswith('{"type":"history"') or file.write(line), lambda: 0.0)
        more._sends = COUNT
        more.failed(more.send("p", CLEAN.topic, "refused"), "NOT_ENOUGH_REPLICAS")
        more.poll("c", *CLEAN, [(50, "v50")], high_watermark=51)
        more.poll("c", *CLEAN, [(51, "v51"), (52, "x52")], high_watermark=52)
        more.poll("d", *CLEAN, [(COUNT, "gone")], high_watermark=COUNT + 1)
        file.write('{"type":"send","op":99')
    for data_dir in data_dirs(tmp_path, CLEAN):
        (data_dir / LOG_START_OFFSET_CHECKPOINT).write_bytes(format_offsets({CLEAN: 25}))
    found = judged(spark, [ledger], [tmp_path / CLEAN.topic])
    assert found.totals == {"read-above-hw": 2, "inconsistent-offsets": 1}
    assert evidence(found.findings) == evidence(plain.audit([ledger], None, [tmp_path / CLEAN.topic]).verdict.findings)
    told = {(each.kind, each.process): each for each in found.findings if each.kind == "read-above-hw"}
    assert (told["read-above-hw", "c"].offset, told["read-above-hw", "c"].value) == (52, "x52")
    assert (told["read-above-hw", "d"].offset, told["read-above-hw", "d"].high_watermark) == (COUNT, COUNT)
    assert (found.records, found.held) == (COUNT - 25, 3 * (COUNT - 25))
    assert found.sends == {"ok": COUNT, "failed": 1}


def test_a_record_of_nobody_and_one_that_was_refused_are_named(spark, tmp_path):
    """aborted-read and phantom-read; the end of the log is missing: unseen."""
    name = TopicPartition("odd", 0)
    ledger = tmp_path / "odd.jsonl"
    with ledger.open("w") as file:
        writer = HistoryWriter(file.write, lambda: 0.0)
        writer.acknowledged(writer.send("p", name.topic, "a"), partition=0, offset=0)
        writer.failed(writer.send("p", name.topic, "refused"), "NOT_ENOUGH_REPLICAS")
        writer.acknowledged(writer.send("p", name.topic, "z"), partition=0, offset=9)
    for node in NODES:
        write_replica(tmp_path / "odd" / f"broker-{node}", node, name, [b"a", b"refused", b"nobody's"], per_batch=10)
    found = judged(spark, [ledger], [tmp_path / "odd"])
    assert found.totals == {"aborted-read": 1, "phantom-read": 1, "unseen": 1}
    assert evidence(found.findings) == evidence(plain.audit([ledger], None, [tmp_path / "odd"]).verdict.findings)


def test_a_record_in_another_partition_than_it_was_sent_to_is_not_where_it_was_acknowledged(spark, tmp_path):
    """As minikafka audit has it: it is missing where it belongs, and nobody sent it to where it is."""
    names = [TopicPartition("odd", number) for number in (0, 1)]
    ledger = tmp_path / "odd.jsonl"
    with ledger.open("w") as file:
        writer = HistoryWriter(file.write, lambda: 0.0)
        for offset, value in enumerate(("a", "b", "moved")):
            writer.acknowledged(writer.send("p", "odd", value, partition=0), partition=0, offset=offset)
        writer.unknown(writer.send("p", "odd", "strange", partition=0), "REQUEST_TIMED_OUT")
        writer.unknown(writer.send("p", "odd", "anywhere"), "REQUEST_TIMED_OUT")
        writer.acknowledged(writer.send("p", "odd", "chosen"), partition=1, offset=3)
    for node in NODES:
        for name, values in zip(names, ([b"a", b"b"], [b"moved", b"strange", b"anywhere", b"chosen"]), strict=True):
            write_replica(tmp_path / "odd" / f"broker-{node}", node, name, values, per_batch=10)
    by_itself = plain.audit([ledger], None, [tmp_path / "odd"]).verdict
    assert by_itself.totals == {"unseen": 1, "phantom-read": 2}
    found = judged(spark, [ledger], [tmp_path / "odd"])
    assert found.totals == by_itself.totals
    assert evidence(found.findings) == evidence(by_itself.findings)


def test_a_record_that_was_acknowledged_without_an_offset_may_be_deleted_or_sent_twice(spark, tmp_path):
    """As minikafka audit has it: it stood below the log start if a later record of its process did (S28)."""
    name = TopicPartition("old", 0)
    ledger = tmp_path / "old.jsonl"
    with ledger.open("w") as file:
        writer = HistoryWriter(file.write, lambda: 0.0)

        def acknowledged(process: str, value: str, offset: int | None) -> None:
            writer.acknowledged(writer.send(process, "old", value, partition=0), partition=0, offset=offset)

        acknowledged("p", "deleted", None)
        acknowledged("q", "a", 0)
        for offset, value in enumerate("bcde", 1):
            acknowledged("p", value, offset)
        acknowledged("p", "lost", None)
        acknowledged("p", "twice", None)
        writer.unknown(writer.send("p", "old", "twice", partition=0), "REQUEST_TIMED_OUT")
        acknowledged("q", "gone", None)
        acknowledged("q", "f", 6)
    for node in NODES:
        folder = tmp_path / "old" / f"broker-{node}"
        write_replica(folder, node, name, [b"a", b"b", b"c", b"d", b"e", b"twice", b"f"], per_batch=1)
        (folder / LOG_START_OFFSET_CHECKPOINT).write_bytes(format_offsets({name: 3}))
    by_itself = plain.audit([ledger], None, [tmp_path / "old"]).verdict
    assert by_itself.totals == {"lost-write": 2}
    assert {each.value for each in by_itself.of("lost-write")} == {"lost", "gone"}
    found = judged(spark, [ledger], [tmp_path / "old"])
    assert found.totals == by_itself.totals
    assert evidence(found.findings) == evidence(by_itself.findings)


def test_records_that_are_deleted_while_an_audit_begins_are_no_lost_writes(spark, kafka, tmp_path, monkeypatch):
    """Committed data is read from where its log is said to begin, or the audit fails by the loss's name."""
    topic = kafka.topic(1)
    values = [b"v%d" % index for index in range(10)]
    kafka.write(topic, 0, values)
    ledger = tmp_path / "l.jsonl"
    write_ledger(ledger, topic, values)
    starts_of = module._starts

    def deleted_afterwards(*arguments):
        found = starts_of(*arguments)
        kafka.delete_records(topic, 0, 5)
        return found

    monkeypatch.setattr(module, "_starts", deleted_afterwards)
    with pytest.raises(PySparkException, match=f"RetentionPassedPosition: {topic}-0: .* 5 lost"):
        audit(spark, ledgers=[ledger], bootstrap=kafka.bootstrap, replicas=[])
    monkeypatch.undo()
    found = audit(spark, ledgers=[ledger], bootstrap=kafka.bootstrap, replicas=[])
    assert (found.ok, found.records) == (True, 5)
    kafka.delete(topic)
    with pytest.raises(PySparkException, match=f"NothingToRead: {topic}: no such topic"):
        audit(spark, ledgers=[ledger], bootstrap=kafka.bootstrap, replicas=[])


def test_a_line_that_means_nothing_is_shown(spark, tmp_path):
    """Only a last line without an end may be damaged."""
    ledger = tmp_path / "l.jsonl"
    ledger.write_text('{"type":"history","version":1}\n{"type":"se\n{"type":"se')
    with pytest.raises(BadLedger, match=r"l.jsonl: .*se is no line"):
        judged(spark, [ledger], [])
    ledger.write_text('{"type":"dance"}\n')
    with pytest.raises(BadLedger, match="unknown type 'dance'"):
        judged(spark, [ledger], [])
    ledger.write_text("")
    with pytest.raises(BadLedger, match="nothing to compare"):
        judged(spark, [ledger], [])
