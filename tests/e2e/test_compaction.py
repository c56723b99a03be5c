"""Compaction on real files: written, compacted, read, verified and audited by what users have (S29)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from click.testing import CliRunner

from minikafka import AdminClient, Consumer, LocalCluster, Producer
from minikafka.cli.root import root
from minikafka.client.structs import NewTopic
from minikafka.log.names import GAPS

SOON = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.segment.bytes": "20000",
    "mk.memory.tails.bytes": "0",
}
COUNT, KEYS = 1500, 20


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
