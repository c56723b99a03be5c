"""Bits that rot on one replica's disk while its broker runs, and the operator who puts that right.

Within the budget: what rots is below the watermark and synced, every replica was in sync when it did, and until it is
put right nobody else may lose what only the others still have (``faults.py`` asks :meth:`Rot.spares`). A bit flips in
what the checksum covers: the 16 bytes before it (offset, length, leader epoch) have none in Kafka's format, and nothing
could tell.

The operator comes when the fault's time is up and the ISR can spare the replica, stops its broker (SIGTERM, so that
others lead before it goes), and:

- ``value`` 0: the recovery points are taken away, so that the next start walks every batch, cuts the log at the damage
  and fetches the rest again;
- ``value`` 1: the replica's folder is taken away.

Rules for this file: while it is rotten a replica is looked at by no invariant; afterwards it is equal to the others, or
the run fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from minikafka.errors import CorruptMessage
from minikafka.log.names import CLEAN_SHUTDOWN, LOG, RECOVERY_POINT_CHECKPOINT, offset_name, offsets_in
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.disk import SimDisk
from minikafka.types import NodeId, Offset, TopicPartition
from minikafka.wire.batch import iterate

LOOK_S: Final = 0.5
"""How often the operator looks whether the replica can be spared."""

STOP_S: Final = 5.0
"""How long it is waited for a broker to end by itself."""

CHECKED_FROM: Final = 17
"""Where in a batch what the checksum covers begins: with the checksum itself."""

At = Callable[[float, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class _Place:
    """A batch in a file."""

    path: str
    position: int
    size: int
    base_offset: Offset


class BitRot:
    """What is rotten in one cluster."""

    def __init__(
        self,
        cluster: SimCluster,
        at: At,
        *,
        is_current: Callable[[NodeId], bool],
        on_repair: Callable[[NodeId], None],
    ) -> None:
        self.rotten: dict[tuple[NodeId, TopicPartition], bool] = {}
        """Replicas, and whether their folder is to be taken away."""
        self.were_rotten: dict[TopicPartition, None] = {}
        self.under_repair: dict[NodeId, None] = {}
        """Brokers whose process the operator has stopped and starts again."""
        self._cluster = cluster
        self._at = at
        self._is_current = is_current
        """True if the controller knows a broker's incarnation. Until then an ISR may name a former one."""
        self._on_repair = on_repair
        """Called with the broker that has lost records now: until all is whole again that counts as a lost disk."""
        self._random = Random(f"{cluster.sim.seed}/rot")

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Brokers whose disks are damaged."""
        return tuple(sorted({node for node, _ in self.rotten}))

    def begin(self, node: NodeId, *, lasts_s: float, folder: bool) -> bool:
        """Let a bit flip, and call the operator; False when nothing on that disk could be it."""
        places = sorted(self._places(node), key=lambda each: (each[0], each[1].base_offset))
        if not places:
            return False
        name, place = self._random.choice(places)
        at = place.position + self._random.randrange(CHECKED_FROM, place.size)
        disk = self._disk(node)
        disk.bit_rot(place.path, at)
        self.rotten[node, name] = folder
        self.were_rotten[name] = None
        self._cluster.sim.tell("bit_rotten", node_name(node), replica=str(name), base=place.base_offset, byte=at)
        self._at(self._cluster.sim.loop.time() + lasts_s, lambda: self._repair(node, name))
        return True

    def call_the_operator(self) -> None:
        """Begin or resume the repair of whatever is rotten now: all faults end here, and with them its timers.

        A repair that is under way looks again a moment later: a leader that has just been resumed may be found silent
        and fenced, and then the rotten replica is needed, rotten or not.
        """
        for node, name in list(self.rotten):
            if node in self.under_repair:
                self._again(functools.partial(self._replace, node, name, STOP_S))
            else:
                self._repair(node, name)

    def spares(self, victims: Container[NodeId]) -> bool:
        """Return True if these faults would remove what the damaged replicas need to be restored."""
        image = self._cluster.image()
        if image is None:
            return bool(self.rotten)
        for _, name in self.rotten:
            state = image.partition(name)
            if state is not None and not self._sound(state.isr, name, victims):
                return True
        return False

    def _sound(self, isr: tuple[NodeId, ...], name: TopicPartition, victims: Container[NodeId]) -> list[NodeId]:
        living = self._cluster.living()
        return [
            node
            for node in isr
            if node in living and node not in victims and (node, name) not in self.rotten and self._is_current(node)
        ]

    # ---- where a bit may flip ----------------------------------------------------------------------------------------

    def _places(self, node: NodeId) -> Iterator[tuple[TopicPartition, _Place]]:
        """Batches of user partitions that are committed, synced, not in memory alone, and in sync elsewhere."""
        disk, image = self._disk(node), self._cluster.image()
        for name in self._cluster.partition_names():
            replica = self._cluster.replica(node, name)
            if replica is None or replica.failed or (node, name) in self.rotten:
                continue
            state = None if image is None else image.partition(name)
            if state is None or not set(state.isr) - {node}:
                continue
            for base in offsets_in(disk.names(str(name)), LOG):
                path = f"{name}/{offset_name(base, LOG)}"
                for place in _batches(disk, path):
                    if replica.log.start_offset <= place.base_offset < replica.high_watermark:
                        yield name, place

    def _disk(self, node: NodeId) -> SimDisk:
        return self._cluster.sim.disk(node_name(node))

    # ---- the operator ------------------------------------------------------------------------------------------------

    def _repair(self, node: NodeId, name: TopicPartition) -> None:
        """As soon as every partition of the broker has another member in its ISR."""
        cluster = self._cluster
        if (node, name) not in self.rotten or node in self.under_repair:
            return
        if not self._can_be_spared(node):
            self._again(lambda: self._repair(node, name))
            return
        self.under_repair[node] = None
        cluster.sim.spawn(node_name(node), cluster.brokers[node].stop())
        self._again(lambda: self._replace(node, name, STOP_S))

    def _again(self, do: Callable[[], None]) -> None:
        self._at(self._cluster.sim.loop.time() + LOOK_S, do)

    def _replace(self, node: NodeId, name: TopicPartition, patience_s: float) -> None:
        """Once the process has ended, or will not."""
        cluster = self._cluster
        if cluster.alive(node) and not cluster.brokers[node]._stopped.is_set() and patience_s > 0:
            self._again(lambda: self._replace(node, name, patience_s - LOOK_S))
            return
        del self.under_repair[node]
        if not self._can_be_spared(node):
            # Others have left the ISR meanwhile: it is needed, rotten or not.
            cluster.restart(node)
            self._again(lambda: self._repair(node, name))
            return
        disk, folder = self._disk(node), self.rotten.pop((node, name))
        cluster.crash(node)
        for path in [str(name)] if folder else [CLEAN_SHUTDOWN, RECOVERY_POINT_CHECKPOINT]:
            disk.remove_for_good(path)
        cluster.sim.tell("rot_repaired", node_name(node), replica=str(name), folder=folder)
        self._on_repair(node)
        cluster.restart(node)

    def _can_be_spared(self, node: NodeId) -> bool:
        """Return True if another in-sync replica has all that it has. What is here alone waits for its return."""
        image = self._cluster.image()
        if image is None:
            return False
        return all(
            self._sound(state.isr, TopicPartition(topic.name, state.partition), (node,))
            for topic, state in image.sorted_partitions()
            if node in state.replicas and set(state.replicas) != {node}
        )


def _batches(disk: SimDisk, path: str) -> Iterator[_Place]:
    """The whole batches of a file, up to its durable end, in the form that reads return."""
    durable, content = disk.durable_bytes(path), disk.content_bytes(path)
    position = 0
    try:
        for batch in iterate(durable):
            if content[position : position + batch.size] != durable[position : position + batch.size]:
                return
            yield _Place(path, position, batch.size, batch.base_offset)
            position += batch.size
    except CorruptMessage:
        return  # what was torn by a power cut, or has rotted before
