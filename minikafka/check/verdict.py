"""The verdict on a history: feed operations in the order of their lines, ask once at the end.

Linear in the records of the history, in time and in memory. Examples are kept up to a limit per kind, the counts are
exact. ``to_json`` is a contract: the CLI, the demo and the simulator print it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from minikafka.check import history
from minikafka.check.clients import Outcome, PollBook, SendBook
from minikafka.check.findings import KINDS, Finding, findings_json
from minikafka.check.history import Expectations, Operation, read_history
from minikafka.check.judge import Judge
from minikafka.check.replicas import ReplicaBook
from minikafka.invariant import invariant

EXAMPLES_MAX = 100
"""Per kind: a damaged run of a million records must not fill the memory with its own evidence."""

EXAMPLES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the history was made of."""

    sends: int
    acknowledged: int
    failed: int
    unknown: int
    """Includes sends whose outcome is not in the history."""
    unknown_seen: int
    """Of the unknown, those whose value was seen."""
    polls: int
    records_read: int
    """Records that polls returned, repeats included."""
    offsets_read: int
    """Distinct (partition, offset) among them."""
    unread: int
    """Acknowledged records that no reader went over; judged only with ``final_read_complete``."""
    duplicates: int
    """Values at more places than they were sent; findings only with ``idempotent``."""
    partitions: int
    replicas: int
    """Replica logs listed, one per partition and node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong, and how much was looked at."""

    findings: tuple[Finding, ...]
    """Gravest kinds first, at most ``EXAMPLES_MAX`` of each."""
    totals: dict[str, int]
    """kind -> how many there are, examples or not; kinds without a finding are not named."""
    counts: Counts
    expectations: Expectations

    @property
    def ok(self) -> bool:
        return not self.totals

    def of(self, kind: str) -> tuple[Finding, ...]:
        """The kept findings of one kind."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def to_json(self) -> dict[str, object]:
        """The contract: ``{"ok", "counts", "expectations", "findings": {kind: {"count", "meaning", "examples"}}}``."""
        return {
            "ok": self.ok,
            "counts": {name: getattr(self.counts, name) for name in Counts.__slots__},
            "expectations": {
                "idempotent": self.expectations.idempotent,
                "final_read_complete": self.expectations.final_read_complete,
                "replicas_complete": self.expectations.replicas_complete,
                "log_start": [[*name, offset] for name, offset in sorted(self.expectations.log_start.items())],
                **({"compacted": sorted(self.expectations.compacted)} if self.expectations.compacted else {}),
            },
            "findings": findings_json(self.totals, self.findings),
        }

    def render(self) -> str:
        """A short text for people: the verdict, the counts, each kind with its first examples."""
        counts = self.counts
        total = sum(self.totals.values())
        sent = f"acknowledged {counts.acknowledged:,}, failed {counts.failed:,}, unknown {counts.unknown:,}"
        read = f"at {counts.offsets_read:,} offsets of {counts.partitions:,} partitions in {counts.polls:,} polls"
        rows = [
            ("sent", counts.sends, f"{sent} (of which seen {counts.unknown_seen:,})"),
            ("read", counts.records_read, f"{read}; acknowledged and unread {counts.unread:,}"),
            ("replicas", counts.replicas, "logs compared"),
        ]
        lines = ["verdict: " + ("ok, nothing found" if self.ok else f"NOT OK, {total:,} finding{'s' * (total > 1)}")]
        lines += [f"  {name:<9} {number:>12,}  {note}" for name, number, note in rows]
        for kind in KINDS:
            if kind.kind not in self.totals:
                continue
            lines.append(f"  {kind.kind:<9} {self.totals[kind.kind]:,}: {kind.meaning}")
            examples = self.of(kind.kind)[:EXAMPLES_SHOWN]
            for finding in examples:
                seen_in = f" (lines {', '.join(map(str, finding.lines))})" if finding.lines else ""
                lines.append(f"    {finding.place()}: {finding.sentence()}{seen_in}")
            if self.totals[kind.kind] > len(examples):
                lines.append(f"    and {self.totals[kind.kind] - len(examples):,} more")
        return "\n".join(lines)


class Checker:
    """Takes a history operation by operation: ``feed`` each, then ``verdict`` once.

    ``expectations`` given here win over what the history says of itself in ``expect`` lines.
    """

    def __init__(self, expectations: Expectations | None = None) -> None:
        self._expectations = expectations or Expectations()
        self._expectations_fixed = expectations is not None
        self._kept: dict[str, list[Finding]] = {}
        self._totals: dict[str, int] = {}
        self._sends = SendBook()
        self._polls = PollBook(self.report)
        self._replicas = ReplicaBook(self.report)
        self._judged = False

    def report(self, finding: Finding) -> None:
        """Add a finding, also one that was made elsewhere (by ``compare_replicas``, say)."""
        count = self._totals.get(finding.kind, 0)
        self._totals[finding.kind] = count + 1
        if count < EXAMPLES_MAX:
            self._kept.setdefault(finding.kind, []).append(finding)

    @property
    def totals(self) -> dict[str, int]:
        """kind -> how many were found so far; what only the whole history shows is not among them yet."""
        return dict(self._totals)

    def feed(self, operation: Operation) -> None:
        """Take the next operation. Raises HistoryError when it contradicts what came before."""
        match operation:
            case history.Send():
                self._sends.on_send(operation)
            case history.Acknowledged():
                self._sends.on_acknowledged(operation)
            case history.Poll():
                self._polls.on_poll(operation)
            case history.Failed():
                self._sends.on_failed(operation)
            case history.Unknown():
                self._sends.on_unknown(operation)
            case history.Assign():
                self._polls.on_assign(operation)
            case history.Seek():
                self._polls.on_seek(operation)
            case history.Replica():
                self._replicas.on_replica(operation)
            case history.Expect(expectations=expectations):
                if not self._expectations_fixed:
                    self._expectations = expectations

    def verdict(self) -> Verdict:
        """Judge the whole; to be asked once."""
        invariant(not self._judged, "a verdict is given once")
        self._judged = True
        judge = Judge(self._sends, self._polls, self._replicas, self._expectations, self.report)
        judge.judge()
        outcomes = self._sends.outcomes
        counts = Counts(
            sends=len(self._sends.by_op),
            acknowledged=outcomes[Outcome.ACKNOWLEDGED],
            failed=outcomes[Outcome.FAILED],
            unknown=outcomes[Outcome.UNKNOWN] + outcomes[Outcome.OPEN],
            unknown_seen=judge.unknown_seen,
            polls=self._polls.polls,
            records_read=self._polls.records,
            offsets_read=judge.read_distinct,
            unread=judge.unread,
            duplicates=judge.duplicates,
            partitions=judge.partition_count,
            replicas=sum(len(logs) for logs in self._replicas.partitions.values()),
        )
        findings = tuple(finding for kind in KINDS for finding in self._kept.get(kind.kind, ()))
        return Verdict(findings=findings, totals=dict(self._totals), counts=counts, expectations=self._expectations)


def merged(one: Verdict, other: Verdict) -> Verdict:
    """Both verdicts' findings, with the counts of the first: what readers show beside the acknowledgments."""
    totals = Counter(one.totals) + Counter(other.totals)
    findings = tuple(each for kind in KINDS for verdict in (one, other) for each in verdict.of(kind.kind))
    return replace(one, findings=findings, totals=dict(totals))


def check_operations(operations: Iterable[Operation], expectations: Expectations | None = None) -> Verdict:
    """The verdict on operations in the order of their lines. Raises HistoryError."""
    checker = Checker(expectations)
    for operation in operations:
        checker.feed(operation)
    return checker.verdict()


def check_history(lines: Iterable[str | bytes], expectations: Expectations | None = None) -> Verdict:
    """The verdict on a history file, given as its lines. Raises HistoryError."""
    return check_operations(read_history(lines), expectations)
