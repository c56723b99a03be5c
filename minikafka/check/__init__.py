"""The history checker: the results that clients received and what replicas hold, judged in linear time.

What this floor knows: operations with their outcome (history.py), logs of replicas, and the rules that Kafka's
promises come down to. What it does not know: brokers, networks, files, time. The demo, the simulator, chaos and the
audits all end here, so that "nothing was lost" has one meaning.

Read history.py (the format), findings.py (what can be wrong, in the words of Jepsen's Kafka checker), then verdict.py
(how it is found): clients.py and replicas.py keep the books that it judges.
"""

from __future__ import annotations

from minikafka.check.findings import Finding
from minikafka.check.history import Expectations, HistoryError, HistoryWriter, Recorder, read_history, value_id
from minikafka.check.replicas import LogBatch, ReplicaBatches, compare_replicas
from minikafka.check.verdict import Checker, Verdict, check_history, check_operations, merged

__all__ = [
    "Checker",
    "Expectations",
    "Finding",
    "HistoryError",
    "HistoryWriter",
    "LogBatch",
    "Recorder",
    "ReplicaBatches",
    "Verdict",
    "check_history",
    "check_operations",
    "compare_replicas",
    "merged",
    "read_history",
    "value_id",
]
