"""``minikafka spark audit``: the durability audit at scale, with the history checker's verdict as its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minikafka.blocking.brokers import Brokers
from minikafka.check.findings import KINDS, Finding
from minikafka.spark.audit import Audit
from minikafka.spark.options import parse_source
from minikafka.spark.places import present
from minikafka.spark.tables import BadLedger, Replicas, committed, replica_rows
from minikafka.types import Offset, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What was found; ``records`` were held against the ledger, ``held`` rows between replicas."""

    totals: dict[str, int]
    findings: tuple[Finding, ...]
    sends: dict[str, int]
    records: int
    held: int

    @property
    def ok(self) -> bool:
        return not self.totals

    def to_json(self) -> dict[str, Any]:
        """As the history checker's verdict, with the counts that there are."""
        return {
            "ok": self.ok,
            "counts": {"sends": self.sends, "records_read": self.records, "replica_records": self.held},
            "findings": {
                kind.kind: {
                    "count": self.totals[kind.kind],
                    "meaning": kind.meaning,
                    "examples": [each.evidence() for each in self.findings if each.kind == kind.kind],
                }
                for kind in KINDS
                if kind.kind in self.totals
            },
        }


def audit(
    session: Any,
    *,
    ledgers: Sequence[Path],
    bootstrap: str | None,
    replicas: Replicas,
    security: Mapping[str, str] | None = None,
) -> Audited:
    """Compare; the committed records come from brokers, or from the replica whose high watermark is highest (of
    equals the lowest node's). ``security``: the source's options of TLS. BadLedger.
    """
    judge = Audit(session, ledgers)
    try:
        brokers = None if bootstrap is None else {"kafka.bootstrap.servers": bootstrap, **(security or {})}
        return _audited(session, judge, brokers, replicas)
    finally:
        judge.close()


def _audited(session: Any, judge: Audit, source: Mapping[str, str] | None, replicas: Replicas) -> Audited:
    topics = judge.topics()
    if not topics:
        raise BadLedger("no record was sent, there is nothing to compare")
    log_starts: dict[TopicPartition, Offset]
    concerned = [each for each in replicas if each[1].topic in topics]
    if source is not None:
        data = committed(session, source, topics)
        log_starts = _starts(source, topics)
    else:
        best = {}
        for each in sorted(concerned, key=lambda each: (each[4], -each[0])):
            best[each[1]] = each
        rows = replica_rows(session, list(best.values()))
        marks = session.createDataFrame(
            [(*name, each[3], each[4]) for name, each in best.items()],
            "topic string, partition int, log_start bigint, high_watermark bigint",
        )
        log_starts = {name: each[3] for name, each in best.items()}
        below = rows.join(marks, ["topic", "partition"]).where("offset >= log_start and offset < high_watermark")
        data = below.select("topic", "partition", "offset", "value")
    starts = session.createDataFrame(
        [(*name, start) for name, start in log_starts.items()], "topic string, partition int, log_start bigint"
    )
    records = judge.judge(data, starts)
    held = judge.compare(concerned) if concerned else 0
    return Audited(
        totals=judge.totals, findings=tuple(judge.findings), sends=judge.counts(), records=records, held=held
    )


def _starts(source: Mapping[str, str], topics: list[str]) -> dict[TopicPartition, Offset]:
    """Where each log begins."""
    options = parse_source({**source, "subscribe": ",".join(topics)}, streaming=False)
    brokers = Brokers(options.bootstrap, api_timeout_s=options.api_timeout_s, tls=options.tls)
    return brokers.starts(present(brokers, options.selection).partitions)
