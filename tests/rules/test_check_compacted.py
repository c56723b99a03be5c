"""Compacted logs against each other, and against what producers were told (KAFKA-FACTS 1.5, 10, rules 2, 6 and 7)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from minikafka.check import LogBatch, ReplicaBatches, compare_replicas
from minikafka.check.history import Acknowledged, Expect, Expectations, Failed, Operation, Poll, Send, Unknown
from minikafka.check.replicas import Comparison
from minikafka.check.verdict import check_operations
from minikafka.cli.root import root
from minikafka.log.names import GAPS
from minikafka.log.partition_log import PartitionLog
from minikafka.types import TopicPartition
from minikafka.wire.batch import ATTRIBUTES_END, split, verify
from minikafka.wire.records import Record, build_batch
from minikafka.wire.rewrite import slices, thinned
from tests.audit_kit import read_log, write_ledger, write_log, write_replica
from tests.rules.cleaned_histories import CleanedLog, latest
from tests.rules.log_words import TIME, everything, on_disk, open_log
from tests.rules.memory_disk import MemoryDisk, run
from tests.rules.test_cleaner import COMPACT, clean, put

PLACE = TopicPartition("orders", 0)


def copy_of(log: PartitionLog) -> PartitionLog:
    """A follower's log of the same bytes."""
    copy = open_log(MemoryDisk(), COMPACT)
    copy.append_as_follower(split(everything(on_disk(log))))
    run(copy.sync())
    return copy


def replica(node: int, data: bytes, end: int) -> ReplicaBatches:
    batches = [LogBatch(b.base_offset, b.last_offset, b.leader_epoch, b.data) for b in split(data)]
    return ReplicaBatches(node=node, high_watermark=end, log_start=0, batches=batches, is_compacted=True)


def compare(*logs: bytes, end: int) -> Comparison:
    return compare_replicas(PLACE, [replica(node, data, end) for node, data in enumerate(logs, 1)])


def without(data: bytes, offset: int) -> bytes:
    """The log without one record."""
    found = b""
    for batch in split(data):
        kept = [record for record in slices(batch) if record.offset != offset]
        found += thinned(batch, kept, horizon=None)
    return found


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 40)), min_size=5, max_size=40),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000)), min_size=3, max_size=3),
    st.data(),
)
@settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck))
def test_replicas_that_were_compacted_apart_are_equal_and_a_lost_last_record_is_found(pairs, rounds, data):
    """Each to its own point and at its own time; then one record that counts is taken from one of them."""
    leader = open_log(MemoryDisk(), replace(COMPACT, segment_bytes=250))
    for key, size in pairs:
        put(leader, (key, None if size is None else "v" * size))
    leader.roll()
    run(leader.sync())
    logs = [copy_of(leader) for _ in rounds]
    end = leader.end_offset
    for log, (behind, wait_ms) in zip(logs, rounds, strict=True):
        for now_ms in (TIME, TIME + wait_ms):
            log.clean_end = None
            clean(log, high_watermark=max(0, end - behind), now_ms=now_ms)
    held = [everything(on_disk(log)) for log in logs]
    found = compare(*held, end=end)
    assert found.equal, found.findings
    assert found.is_compacted

    last = {key: offset for offset, (key, size) in enumerate(pairs)}
    alive = sorted(offset for key, offset in last.items() if pairs[offset][1] is not None)
    if alive:
        victim, offset = data.draw(st.integers(0, 2)), data.draw(st.sampled_from(alive))
        held[victim] = without(held[victim], offset)
        (finding,) = compare(*held, end=end).findings
        assert (finding.offset, finding.detail) == (offset, f"replica {victim + 1} lacks the last record of its key")


def test_a_record_differs_by_its_kind_of_timestamp():
    """A leader's log says that it stamped the record, and its follower's that the producer did."""
    leader = open_log(MemoryDisk(), COMPACT)
    put(leader, ("a", "1"))
    run(leader.sync())
    data = everything(on_disk(leader))
    stamped = bytearray(data)
    stamped[ATTRIBUTES_END - 1] |= 0x08
    (finding,) = compare(data, bytes(stamped), end=1).findings
    assert (finding.offset, finding.detail) == (0, "replica 2 has another record")
    times = [build_batch([Record(0, time_ms, key=b"a", value=b"1")]) for time_ms in (1, 2)]
    (finding,) = compare(*times, end=1).findings
    assert finding.detail == "replica 2 has another record", "the same kind, another time"


@pytest.mark.parametrize("seed", range(20))
def test_replicas_of_a_log_with_transactions_that_were_compacted_apart_are_equal(seed: int):
    """One has removed what was aborted, another still has it, a third has not read the marker yet. A committed value is
    missed all the same.
    """
    random, history = Random(seed), CleanedLog()
    for number in range(40):
        history.send(random.randint(1, 3), [(random.choice("abcd"), f"{number}")])
        if random.random() < 0.6:
            history.end(random.randint(1, 3), commit=random.random() < 0.5)
    for number in (1, 2, 3):
        history.end(number, commit=False)
    history.roll()
    history.commit()
    bounds = [0, *(each.end for each in history.stored)]
    replicas = []
    for node in (1, 2, 3):
        log, mark = history.copy(), bounds[-1 if node == 1 else -1 - random.choice([0, 2, 9])]
        log.roll()
        run(log.sync())
        for wait_ms in (0, 2000, 4000):
            log.clean_end = None
            clean(log, high_watermark=mark, now_ms=TIME + wait_ms)
        replicas.append(replica(node, everything(on_disk(log)), mark))
    found = compare_replicas(PLACE, replicas)
    assert found.equal, found.findings

    committed = latest(history.committed())
    offset = max(offset for offset, _ in committed.values())
    replicas[1] = replica(2, without(b"".join(bytes(b.data) for b in replicas[1].batches), offset), bounds[-1])
    (finding,) = compare_replicas(PLACE, replicas).findings
    assert (finding.offset, finding.detail) == (offset, "replica 2 lacks the last record of its key")


def small(*pairs: tuple[str, str | None]) -> bytes:
    log = open_log(MemoryDisk(), COMPACT)
    for pair in pairs:
        put(log, pair)
    return everything(log)


def test_another_record_at_an_offset_is_found():
    """The same offsets and keys, another value: no compaction does that."""
    data, other = small(("a", "1"), ("b", "1"), ("a", "2")), small(("a", "1"), ("b", "X"), ("a", "2"))
    (finding,) = compare(data, other, data, end=3).findings
    assert (finding.offset, finding.detail) == (1, "replica 2 has another record")
    assert len({held for _, _, held in finding.holdings}) == 2
    twice = small(("a", "1"), ("b", "X"), ("a", "Y"))
    assert len(compare(data, twice, data, end=3).findings) == 1, "it is compared no further"
    assert compare_replicas(PLACE, [replica(1, data, 3), replica(2, data, 2)]).end_offset == 2


def test_a_tombstone_may_be_gone_but_not_before_what_it_deletes():
    """A value that is still there without its tombstone has come back to life."""
    data = small(("a", "1"), ("a", None), ("b", "1"))
    assert compare(data, without(without(data, 0), 1), end=3).equal
    (finding,) = compare(data, without(data, 1), end=3).findings
    assert (finding.offset, finding.detail) == (1, "replica 2 lacks the last record of its key")


def test_who_came_after_a_tombstone_was_gone_may_keep_what_it_deleted():
    """As in Kafka, where a replica is away for longer than delete.retention.ms; found by a soak (seed 1795320671)."""
    data = small(("a", "1"), ("a", None), ("b", "1"))
    late, others = without(data, 1), without(without(data, 0), 1)

    def found(missed: dict[bytes, int], *more: bytes) -> list[int]:
        first = replace(replica(1, late, 3), missed=missed)
        rest = [replica(node, each, 3) for node, each in enumerate((others, *more), 2)]
        return [finding.offset for finding in compare_replicas(PLACE, [first, *rest]).findings]

    assert found({b"a": 1}) == []
    assert found({}) == [0]
    assert found({b"b": 1}) == [0]
    assert found({b"a": 0}) == [0], "another one, before the record"
    assert found({b"a": 1}, late) == [0], "a replica that had it all along has it back to life"


def test_who_came_after_a_tombstone_was_gone_may_lack_it_beside_who_has_it_still():
    """The leader's was gone, a third replica has not compacted yet; found by a soak (seed 1795323222)."""
    data = small(("a", "1"), ("a", None), ("b", "1"))
    late, tombstone, gone = without(data, 1), without(data, 0), without(without(data, 0), 1)

    def found(missed: dict[bytes, int], *others: bytes) -> list[int]:
        first = replace(replica(1, late, 3), missed=missed)
        rest = [replica(node, each, 3) for node, each in enumerate(others, 2)]
        return [finding.offset for finding in compare_replicas(PLACE, [first, *rest]).findings]

    assert found({b"a": 1}, tombstone, gone) == []
    assert found({b"a": 1}, data, gone) == []
    assert found({}, tombstone, gone) == [1]
    assert found({b"b": 1}, tombstone, gone) == [1]
    assert found({b"a": 0}, tombstone, gone) == [1], "another one, before the record"
    assert found({b"a": 1}, without(data, 2)) == [2], "of a value it says nothing"


def test_a_successor_above_its_watermark_is_no_reason():
    """It was not committed there when the earlier record went."""
    data = small(("a", "1"), ("b", "1"), ("a", "2"))
    lacking = [replica(1, data, 3), replica(2, without(data, 0), 2)]
    (finding,) = compare_replicas(PLACE, lacking).findings
    assert finding.offset == 0


def test_a_batch_with_a_horizon_is_the_same_records():
    """KIP-534 moves the base timestamp on the replica that was cleaned, and nothing that a reader sees."""
    data = small(("a", None), ("b", "1"))
    dated = b"".join(verify(thinned(b, list(slices(b)), horizon=TIME + 99)).data for b in split(data))
    assert dated != data
    assert compare(data, dated, end=2).equal


# ---- histories -------------------------------------------------------------------------------------------------------


def history(
    sent: Sequence[tuple[str | None, str]],
    read: list[int],
    *,
    compacted: bool = True,
    lost: dict[int, tuple[str, str]] | None = None,
    unanswered: Sequence[Operation] = (),
    all_read: bool = True,
) -> dict[str, int]:
    """Findings of a history in which ``sent`` (key, value) were acknowledged in order, and only ``read`` were seen.

    ``lost``: offset -> a record that was acknowledged there first, and is nowhere. ``unanswered``: more operations.
    """
    operations: list[Operation] = list(unanswered)
    acknowledged: list[tuple[str, int, str | None, str]] = [
        ("loose", offset, *each) for offset, each in (lost or {}).items()
    ]
    acknowledged += [("p", offset, *each) for offset, each in enumerate(sent)]
    for op, (who, offset, key, value) in enumerate(acknowledged):
        operations.append(
            Send(op=op, time=0.0, process=who, topic="orders", partition=0, key=key, value=value, sequence=None)
        )
        operations.append(Acknowledged(op=op, time=0.0, partition=0, offset=offset, leader_epoch=0))
    operations.append(
        Poll(
            time=0.0,
            process="reader",
            topic="orders",
            partition=0,
            records=[(offset, sent[offset][1]) for offset in read],
            position_before=0,
            position_after=len(sent),
            high_watermark=len(sent),
        )
    )
    topics = frozenset({"orders"} if compacted else ())
    operations.append(Expect(expectations=Expectations(final_read_complete=all_read, compacted=topics)))
    return check_operations(operations).totals


def test_a_replaced_record_is_not_owed_and_the_last_one_is():
    """An acknowledged value that a later one of its key replaced is no lost write; nor is it a skip of the reader."""
    sent = [("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")]
    assert history(sent, [1, 2, 3]) == {}
    assert history(sent, [1, 2, 3], compacted=False)["lost-write"] == 1
    assert history(sent, [0, 1, 3])["lost-write"] == 1
    assert history(sent, [0, 1, 2, 3]) == {}
    assert history([("a", "1"), (None, "2"), ("b", "3")], [0, 2]) == {}, "compaction removes records without a key"


def test_a_record_does_not_replace_itself():
    """The last record of its key was acknowledged and passed over, in a run whose readers need not have read all."""
    sent = [("a", "1"), ("b", "2"), ("c", "3")]
    assert history(sent, [0, 2], all_read=False) == {"lost-write": 1, "int-poll-skip": 1}


def test_where_two_records_claim_one_place_each_is_judged_by_itself():
    """Found by a soak (seed 1795318506): an acks=1 record was lost with its leader, another took its offset and was
    replaced by a later one of its key. The reader skipped nothing, and only the first one is lost.
    """
    sent = [("a", "1"), ("b", "2"), ("c", "3"), ("b", "4")]
    claimed_twice = {"inconsistent-offsets": 1}
    assert history(sent, [0, 2, 3], lost={1: ("x", "0")}) == {**claimed_twice, "lost-write": 1}
    assert history(sent, [0, 2, 3], lost={1: ("c", "0")}) == claimed_twice
    assert history(sent, [0, 1, 3], lost={2: ("x", "0")}) == {**claimed_twice, "lost-write": 2, "int-poll-skip": 1}
    assert history(sent, [0, 1, 3], lost={2: ("b", "0")}) == {**claimed_twice, "lost-write": 1}


def test_a_record_that_is_lost_itself_has_replaced_nothing():
    """An acks=1 record is lost with its leader; the one that it would have replaced is owed, whoever sent it. Only what
    stands, or is a tombstone, can have replaced something.
    """
    sent = [("a", "1"), ("b", "2"), ("c", "3")]
    assert history(sent, [0, 1, 2], lost={3: ("a", "0")}) == {"unseen": 1}
    assert history(sent, [1, 2], lost={3: ("a", "0")}) == {"unseen": 1, "lost-write": 1, "poll-skip": 1}
    assert history(sent, [1, 2], lost={3: ("a", "~null")}) == {}
    assert history(sent, [1, 2], lost={3: ("a", "0")}, all_read=False) == {}, "it may not have been read yet"


def test_a_record_whose_offset_was_not_told_is_owed_unless_something_of_its_key_is_there():
    """An old duplicate is acknowledged without an offset: nobody knows what came after it, but what there is at all."""
    sent, nowhere = [("a", "1"), ("b", "2")], Acknowledged(op=99, time=0.0, partition=0, offset=None, leader_epoch=0)

    def of(key: str | None, value: str = "0") -> dict[str, int]:
        (old,) = tombstone("x", answer=None)
        return history(sent, [0, 1], unanswered=[structs.replace(old, key=key, value=value), nowhere])

    assert of("x") == {"lost-write": 1}
    assert of("a") == of(None) == of("x", "~null") == {}
    (old,) = tombstone("x", answer=None)
    deleted = [structs.replace(each, op=98) for each in tombstone("x")]
    kept = structs.replace(old, value="0")
    assert history(sent, [0, 1], unanswered=[kept, nowhere, *deleted]) == {}, (
        "a tombstone of its key may have been there"
    )


def test_a_tombstone_is_not_owed():
    """Nobody can tell from a history when its time was over."""
    assert history([("a", "1"), ("a", "~null"), ("b", "2")], [2]) == {}


def tombstone(key: str, partition: int | None = 0, answer: type[Unknown | Failed] | None = Unknown) -> list[Operation]:
    """Sent, and what its producer was told: nobody knows whether it was written, that it was not, or nothing."""
    sent = Send(
        op=99, time=0.0, process="q", topic="orders", partition=partition, key=key, value="~null", sequence=None
    )
    return [sent] if answer is None else [sent, answer(op=99, time=0.0, error="REQUEST_TIMED_OUT")]


def test_a_tombstone_of_unknown_outcome_may_have_deleted_what_is_gone():
    """Found by a soak (seed 1795322757): it was written, its producer was told REQUEST_TIMED_OUT, and compaction took
    what it deletes. Nothing but its key says so: all tombstones look alike to a reader, and this one goes as well.
    """
    sent, read = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "~null")], [1, 2]
    assert history(sent, read, unanswered=tombstone("a")) == {}
    assert history(sent, read, unanswered=tombstone("a", partition=None)) == {}, "the partitioner chose"
    assert history(sent, read, unanswered=tombstone("a", answer=None)) == {}, "open at the end"
    assert history(sent[:3], [0, 1], unanswered=tombstone("c"))["unseen"] == 1, "nothing stood above the last one"
    assert history(sent[:3], read, unanswered=tombstone("a"))["lost-write"] == 1, "values stand wherever it could have"
    assert history(sent[:2] + sent[3:], [1], unanswered=tombstone("a")) == {}, "of a hole it is not known"
    assert history(sent[:3], read, unanswered=tombstone("a"), all_read=False) == {}, (
        "more may stand above what was read"
    )
    lost = history(sent, read)
    assert lost["lost-write"] == 1
    assert history(sent, read, unanswered=tombstone("b")) == lost, "of another key"
    assert history(sent, read, unanswered=tombstone("a", partition=1)) == lost, "of another partition"
    assert history(sent, read, unanswered=tombstone("a", answer=Failed)) == lost, "known not to be written"
    assert history(sent, read, unanswered=tombstone("a"), compacted=False) == history(sent, read, compacted=False)


def test_audit_says_that_a_topic_is_compacted_and_accuses_nobody(tmp_path: Path):
    """Ledger, three replicas, one of them compacted: clean, with a sentence; a lost last value is found."""
    values = [b"v%d" % index for index in range(40)]
    ledger = tmp_path / "ledger.jsonl"
    write_ledger(ledger, PLACE.topic, values)
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for line in lines:
        if line["type"] == "send":
            line["key"] = "k" + str(int(line["value"][1:]) % 7)
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folders = [tmp_path / f"broker-{node}" for node in (1, 2, 3)]
    log = open_log(MemoryDisk(), COMPACT)
    for index, value in enumerate(values):
        put(log, (f"k{index % 7}", value.decode()))
    run(log.sync())
    whole = [bytes(batch.data) for batch in split(everything(on_disk(log)))]
    clean(log)
    short = [bytes(batch.data) for batch in split(everything(on_disk(log)))]
    for node, folder in enumerate(folders, 1):
        write_replica(folder, node, PLACE, values, 10)
        write_log(folder, PLACE, short if node != 2 else whole)
        if node != 2:
            (folder / str(PLACE) / GAPS).touch()

    def audited() -> tuple[int, str]:
        result = CliRunner().invoke(root, ["audit", str(ledger), "--data-dir", str(tmp_path)])
        return result.exit_code, result.output

    code, told = audited()
    assert code == 0, told
    assert "orders is compacted: of each key the last record is owed" in told
    write_log(folders[2], PLACE, split_without(read_log(folders[2] / str(PLACE)), 38))
    (folders[2] / str(PLACE) / GAPS).touch()
    code, told = audited()
    assert code == 1
    assert "lacks the last record of its key" in told


def split_without(batches: list[bytes], offset: int) -> list[bytes]:
    return [bytes(batch.data) for batch in split(without(b"".join(batches), offset))]
