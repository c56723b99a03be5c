"""What a log claims to have synced, what a clean stop claims, and what the next start finds.

``synced_end_not_durable``
    When a process dies or stops, every batch below the synced end of each log is durable, and so is its file's name.
``clean_marker_before_sync``
    When the clean-shutdown marker is written, every file of every log is durable.
``recovered_less_than_promised``
    The next start finds every batch that a kill -9 or a clean stop left, and after a power cut every batch below the
    synced end.
``recovered_with_a_hole``
    Nor does it leave out, below the end of the log that it opens, a record that was not synced. (Of a log with gaps;
    one without cannot be opened with a hole.)

A disk whose sync has failed shows pages that it has forgotten: claims of later processes on it are not checked. Neither
are replicas that a fault has damaged.

Rule for this file: it only looks, when a process ends and when a data directory was opened.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from minikafka.errors import CorruptMessage
from minikafka.log.log_directory import LogDirectory
from minikafka.log.names import LOG, SWAP, offset_name, offset_of, offsets_in
from minikafka.log.partition_log import PartitionLog
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.disk import SimDisk
from minikafka.sim.log_invariants import Batch, latest, records_in, records_of, rows_of
from minikafka.sim.replica_view import Report
from minikafka.sim.world import Event
from minikafka.types import NO_OFFSET, NodeId, Offset, TopicPartition
from minikafka.wire.batch import iterate

NOT_DURABLE: Final = "synced_end_not_durable"
UNCLEAN_MARKER: Final = "clean_marker_before_sync"
LESS_FOUND: Final = "recovered_less_than_promised"
HOLE_FOUND: Final = "recovered_with_a_hole"

ENDS: Final = frozenset({"node_killed", "node_power_cut", "data_directory_closed"})


@dataclass(slots=True)
class _Promise:
    """What one log held when its process ended."""

    start: Offset
    synced_end: Offset
    end: Offset
    """What the next start must find: the log's end, after a power cut the synced end."""
    is_compacted: bool
    rows: list[Batch]


class PowerWatch:
    """All data directories of one run."""

    def __init__(self, cluster: SimCluster, report: Report) -> None:
        self.rotten: Container[tuple[NodeId, TopicPartition]] = ()
        """Replicas whose disk is damaged."""
        self.were_rotten: Container[TopicPartition] = ()
        self._cluster = cluster
        self._report = report
        self._nodes = {node_name(node): node for node in cluster.nodes}
        self._promised: dict[NodeId, dict[TopicPartition, _Promise]] = {}
        self._closed: dict[NodeId, LogDirectory] = {}
        """The logs of the last process of each node."""
        self._opened: list[NodeId] = []
        """Nodes whose data directory was opened in this step."""
        cluster.sim.observers.append(self._on_event)
        cluster.sim.loop.after_step.append(self._after_step)

    def _on_event(self, event: Event) -> None:
        node = self._nodes.get(event.node)
        if node is None:
            return
        if event.kind == "data_directory_opened":
            self._opened.append(node)
        elif event.kind == "disk_wiped":
            self._promised.pop(node, None)
        elif event.kind in ENDS and (event.kind != "data_directory_closed" or event.facts["clean"]):
            self._ended(node, event.kind)

    # ---- the end of a process ----------------------------------------------------------------------------------------

    def _ended(self, node: NodeId, kind: str) -> None:
        logs = self._logs(node) if self._is_working(node) or kind == "data_directory_closed" else None
        disk = self._cluster.sim.disk(node_name(node))
        if logs is not None:
            if kind == "data_directory_closed":
                self._look_at_marker(node, disk, logs)
                self._closed[node] = logs
                self._promised[node] = {
                    name: _promise_of_files(disk, name, log)
                    for name, log in logs.logs.items()
                    if name not in self.were_rotten and log._store.swapping is None
                }
            else:
                self._closed[node] = logs
                self._look_at_claims(node, disk, logs)
                self._promised[node] = {
                    name: _promise(log)
                    for name, log in logs.logs.items()
                    if (node, name) not in self.rotten and name not in self.were_rotten
                }
        if kind == "node_power_cut":
            for promise in self._promised.get(node, {}).values():
                promise.end = promise.synced_end
        if disk.failed_in is not None:
            self._promised.pop(node, None)

    def _is_working(self, node: NodeId) -> bool:
        """Return True if a process of it has neither failed nor stopped by itself."""
        return node in self._cluster.living()

    def _logs(self, node: NodeId) -> LogDirectory | None:
        return getattr(self._cluster.brokers[node], "logs", None)

    def _look_at_claims(self, node: NodeId, disk: SimDisk, logs: LogDirectory) -> None:
        """Whatever counts as synced is on the platter."""
        if disk.failed_in is not None and disk.failed_in is not self._cluster.sim.loop.incarnations[node_name(node)]:
            return
        for name, log in logs.logs.items():
            if (node, name) in self.rotten or log._store.swapping is not None:
                continue  # while compaction replaces a segment, the old or the new one has the name
            for segment in log._store.segments:
                path = f"{name}/{offset_name(segment.base_offset, LOG)}"
                unsynced = _first_unsynced(disk, path)
                if unsynced is not None and log.start_offset <= unsynced < log.synced_end:
                    ends = f"{path} of broker {node} is durable below {unsynced}, synced end is {log.synced_end}"
                    self._report(NOT_DURABLE, ends)

    def _look_at_marker(self, node: NodeId, disk: SimDisk, logs: LogDirectory) -> None:
        if disk.failed_in is not None:
            return
        for name in logs.logs:
            for each in disk.names(str(name)):
                path = f"{name}/{each}"
                if not disk.is_durable(path) and offset_of(each, LOG) is not None:
                    self._report(UNCLEAN_MARKER, f"{path} of broker {node} is not durable")

    # ---- the next start ----------------------------------------------------------------------------------------------

    def _after_step(self) -> None:
        while self._opened:
            node = self._opened.pop()
            logs = self._logs(node)
            if logs is None or logs is self._closed.get(node):
                continue  # opened by the run itself, for its own comparison at the end
            for name, promise in self._promised.pop(node, {}).items():
                if name not in self.were_rotten:
                    self._compare(node, name, promise, logs.get(name))

    def _compare(self, node: NodeId, name: TopicPartition, promise: _Promise, log: PartitionLog | None) -> None:
        if log is not None and promise.is_compacted:
            self._look_for_a_hole(node, promise, log)
        if promise.end <= promise.start:
            return
        if log is None:
            self._report(LESS_FOUND, f"{name} of broker {node} is gone, promised was up to {promise.end}")
            return
        start = max(promise.start, log.start_offset)
        held = [row for row in promise.rows if start <= row.base_offset and row.end_offset <= promise.end]
        found = [row for row in _rows(log, is_compacted=promise.is_compacted) if start <= row.base_offset < promise.end]
        same = latest(found) == latest(held) if promise.is_compacted else found[: len(held)] == held
        if log.end_offset < promise.end or not same:
            found_text = f"{log!r} holds {list(map(str, found))}"
            self._report(LESS_FOUND, f"{name} of broker {node}: {found_text}, promised were {list(map(str, held))}")

    def _look_for_a_hole(self, node: NodeId, promise: _Promise, log: PartitionLog) -> None:
        """Above what was synced, where nothing was compacted. What was cut off may come back, in its own epoch."""
        start = max(promise.end, log.start_offset)
        held = [row for row in promise.rows if start <= row.base_offset < log.end_offset and not row.is_tombstone]
        if not held:
            return
        last = {row.key: row.base_offset for row in records_of(log, start, log.end_offset)}
        for row in held:
            is_same_log = log.epochs.epoch_at(row.base_offset) == row.epoch
            if is_same_log and last.get(row.key, NO_OFFSET) < row.base_offset:
                self._report(HOLE_FOUND, f"{log!r} of broker {node} lacks {row}, which it held")


def _promise(log: PartitionLog) -> _Promise:
    is_compacted = log.config.compacts or log.has_gaps
    return _Promise(
        start=log.start_offset,
        synced_end=min(log.synced_end, log.end_offset),
        end=log.end_offset,
        is_compacted=is_compacted,
        rows=_rows(log, is_compacted=is_compacted),
    )


def _promise_of_files(disk: SimDisk, name: TopicPartition, log: PartitionLog) -> _Promise:
    """What a log that was closed in good order has left: it can be read no more, and all of it is synced."""
    start, end, is_compacted = log.start_offset, log.end_offset, log.config.compacts or log.has_gaps
    paths = [f"{name}/{offset_name(base, LOG)}" for base in offsets_in(disk.names(str(name)), LOG)]
    batches = [batch for path in paths for batch in iterate(disk.content_bytes(path)) if batch.next_offset > start]
    return _Promise(
        start=start,
        synced_end=end,
        end=end,
        is_compacted=is_compacted,
        rows=records_in(batches, start, end)
        if is_compacted
        else [Batch(each.base_offset, each.next_offset, each.leader_epoch, each.crc) for each in batches],
    )


def _rows(log: PartitionLog, *, is_compacted: bool) -> list[Batch]:
    return rows_of(log, log.start_offset, log.end_offset, is_compacted=is_compacted)


def _first_unsynced(disk: SimDisk, path: str) -> Offset | None:
    """The base offset of the first batch of a file that a power cut could take; None: there is none."""
    if not disk.exists(path) or disk.is_durable(path):
        return None
    content, durable = disk.content_bytes(path), disk.durable_bytes(path)
    position = 0
    is_named = disk.is_named(path) or disk.is_named(path, path + SWAP)  # the next start finishes a swap
    try:
        for batch in iterate(content):
            end = position + batch.size
            if not is_named or durable[position:end] != content[position:end]:
                return batch.base_offset
            position = end
    except CorruptMessage:
        return None
    return None
