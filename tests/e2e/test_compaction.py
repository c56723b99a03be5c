"""Compaction on real files: written, compacted, read, verified and audited by what users have (S29)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from click.testing import CliRunner

from minikafka import AdminClient, Consumer, ConsumerRecord, LocalCluster, Producer, TopicPartition
from minikafka.cli.root import root
from minikafka.client.structs import NewTopic
from minikafka.log.names import GAPS

SOON = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.segment.bytes": "20000",
    "mk.memory.tails.bytes": "0",
}
COUNT, KEYS, TRANSACTIONS = 1500, 20, 40


async def fill_and_read(data_dir: Path, ledger: Path) -> dict[bytes | None, bytes | None]:
    """Write, wait for every broker's compaction, read from the beginning: the last value of each key."""
    async with LocalCluster(brokers=3, data_dir=data_dir, config=SOON) as cluster:
        async with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic("kv", 1, 3, topic_configs={"cleanup.policy": "compact"})])
        async with Producer(
            bootstrap_servers=cluster.bootstrap, ledger=str(ledger), max_batch_size=2000, max_request_size=8000
        ) as producer:
            for number in range(COUNT):
                await producer.send("kv", b"v%d" % number, key=b"k%d" % (number % KEYS))
            await producer.flush()
        async with asyncio.timeout(60):
            while not all((data_dir / f"broker-{node}/kv-0/{GAPS}").exists() for node in (1, 2, 3)):  # noqa: ASYNC110 - files of brokers on another thread
                await asyncio.sleep(0.1)
        found: dict[bytes | None, bytes | None] = {}
        async with Consumer("kv", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            offset = -1
            while offset < COUNT - 1:
                record = await consumer.getone()
                assert record.offset > offset
                offset, found[record.key] = record.offset, record.value
        return found


def test_a_compacted_topic_is_read_verified_and_audited(tmp_path: Path) -> None:
    """The latest value of each key is read; `log verify` finds sound files, `audit` says why records may be gone."""
    data_dir, ledger = tmp_path / "data", tmp_path / "ledger.jsonl"
    found = asyncio.run(fill_and_read(data_dir, ledger))
    assert found == {b"k%d" % (number % KEYS): b"v%d" % number for number in range(COUNT)}
    for node in (1, 2, 3):
        verified = CliRunner().invoke(root, ["log", "verify", str(data_dir / f"broker-{node}")])
        assert verified.exit_code == 0, verified.output
    audited = CliRunner().invoke(root, ["audit", str(ledger), "--data-dir", str(data_dir)])
    assert audited.exit_code == 0, audited.output
    assert "kv is compacted" in audited.output


async def write_transactions(data_dir: Path) -> tuple[list[ConsumerRecord], list[ConsumerRecord]]:
    """Commit and abort in turns on three brokers that compact: what each isolation level reads afterwards."""
    async with LocalCluster(brokers=3, data_dir=data_dir, config=SOON) as cluster:
        async with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic("kv", 1, 3, topic_configs={"cleanup.policy": "compact"})])
        async with Producer(bootstrap_servers=cluster.bootstrap, transactional_id="t") as producer:
            for number in range(TRANSACTIONS):
                await producer.begin_transaction()
                for key in range(5):
                    await producer.send("kv", value_of(number), key=b"k%d" % key)
                await producer.flush()  # an abort drops what is not yet sent
                await (producer.commit_transaction() if number % 2 else producer.abort_transaction())
        async with asyncio.timeout(60):
            while not all(is_clean(data_dir / f"broker-{node}/kv-0") for node in (1, 2, 3)):  # noqa: ASYNC110 - files of brokers on another thread
                await asyncio.sleep(0.1)
        return await read(cluster, "read_committed"), await read(cluster, "read_uncommitted")


def value_of(number: int) -> bytes:
    return b"#%d" % number + b"." * 500


def is_clean(folder: Path) -> bool:
    """Return True if nothing of an aborted transaction, an even one, is left in a sealed segment."""
    sealed = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log"))[:-1])
    return bool(sealed) and not re.search(rb"#[0-9]*[02468][.]", sealed)


async def read(cluster: LocalCluster, isolation_level: str) -> list[ConsumerRecord]:
    """All records up to the last stable offset."""
    place, found = TopicPartition("kv", 0), []
    async with Consumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level=isolation_level
    ) as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        async with asyncio.timeout(60):
            while await consumer.position(place) < end:
                found += (await consumer.getmany(timeout_ms=500)).get(place, [])
    return found


def test_a_compacted_topic_with_transactions_keeps_the_last_committed_values(tmp_path: Path) -> None:
    """Aborted records are gone from sealed segments, for read_uncommitted too, and have replaced nothing."""
    committed, uncommitted = asyncio.run(write_transactions(tmp_path))
    assert {record.key: record.value for record in committed} == {
        b"k%d" % key: value_of(TRANSACTIONS - 1) for key in range(5)
    }
    aborted = [record for record in uncommitted if int((record.value or b"").strip(b"#.")) % 2 == 0]
    assert all(record.offset > TRANSACTIONS * 3 for record in aborted)
    assert len(uncommitted) < TRANSACTIONS * 5 / 2
    for node in (1, 2, 3):
        verified = CliRunner().invoke(root, ["log", "verify", str(tmp_path / f"broker-{node}")])
        assert verified.exit_code == 0, verified.output
