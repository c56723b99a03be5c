"""The demo itself, with made-up flights: the story, the verdict, and Kafka's bytes on every broker's disk."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from aiokafka.record.memory_records import MemoryRecords

from minikafka.cli import demo
from minikafka.cli.demo_story import Flight
from minikafka.client.structs import ConsumerRecord
from minikafka.log.names import LOG

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

COUNT = 4_000
# Not in time order by key: 40 aircraft, a flight a minute, from the first of January 2013.
FIRST_MS = 1_357_000_000_000


def made_up(limit: int | None = None) -> Iterator[Flight]:
    """Flights as the data set has them, as far as the demo looks at them."""
    for number in range(limit or 0):
        value = json.dumps({"id": f"made-up/{number}", "padding": "x" * 200}).encode()
        yield Flight(b"N%d" % (number % 40), value, FIRST_MS + 60_000 * number, f"made-up/{number}")


def records_of(path) -> list[ConsumerRecord]:
    """A segment file, read by aiokafka's parser, checksums included."""
    batches = MemoryRecords(path.read_bytes())
    found = []
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        found += list(batch)
    return found


async def test_the_demo_kills_two_brokers_and_proves_that_nothing_was_lost(tmp_path, monkeypatch):
    """Issue item 9 and must-be-shown: leader and controller die by kill -9 in mid-stream, every acknowledged flight is
    read back once and in order, the replicas are byte-equal, and aiokafka's parser reads every segment file.
    """
    monkeypatch.setattr(demo, "flights", made_up)
    monkeypatch.setattr(demo, "SETTLE_TIMEOUT_S", 120.0)
    assert await demo.Demo(COUNT, tmp_path).run()

    told = json.loads((tmp_path / "verdict.json").read_text())
    assert told["ok"] is True
    assert (told["counts"]["acknowledged"], told["counts"]["offsets_read"]) == (COUNT, COUNT)
    assert (told["counts"]["replicas"], told["replicas"]["differences"]) == (18, 0)
    assert [each["what"] for each in told["failovers"]] == ["leader of most partitions", "active controller"]
    assert told["failovers"][1]["controller_s"] > 0
    assert (tmp_path / "history.jsonl").read_text().startswith('{"type":"history"')

    for node in (1, 2, 3):
        segments = sorted((tmp_path / f"broker-{node}").glob(f"flights-[0-9]*/*{LOG}"))
        assert len({segment.parent for segment in segments}) == 6
        records = [record for segment in segments for record in records_of(segment)]
        assert len(records) == COUNT
        assert len({record.value for record in records}) == COUNT
