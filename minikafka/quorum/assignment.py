"""Which brokers hold a partition: chosen for a new topic or to spread topics again (S18), and during a reassignment.

A reassignment (KIP-455)::

    [1,2,3]                          the partition's replicas
    --to [4,2,3]-->                  replicas [4,2,3,1], adding [4], removing [1]
    --4 catches up, joins the ISR--> complete: replicas [4,2,3]
    --cancelled before that-->       back to what is not adding: [1,2,3] (in the order that is left)

A broker that is away holds up only what it is to receive. Where the replicas do not become fewer, those that stay need
not be in sync: all that come, and of the target as many as ``min.insync.replicas`` asks for, are enough. Kafka (4.3)
completes even with fewer.

A second reassignment on the way starts from what is not adding: replicas that were only on their way in are dropped.

Rules for this file: pure values; which replica may be dropped when, and which one leads then, stands in
controller_topics.py and elections.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from minikafka.errors import InvalidReplicationFactor
from minikafka.replication.high_watermark import effective_min_isr
from minikafka.types import NodeId, TopicPartition


class Assignment(Struct, frozen=True, kw_only=True):
    """The replicas of a partition in order of preference, and those that come and go."""

    replicas: tuple[NodeId, ...]
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()

    @property
    def under_way(self) -> bool:
        """Return True if a reassignment is not yet complete."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[NodeId, ...]:
        """Where the reassignment leads to."""
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def original(self) -> tuple[NodeId, ...]:
        """Where it came from, as far as that is still held."""
        return tuple(node for node in self.replicas if node not in self.adding)

    def reassigned(self, target: tuple[NodeId, ...]) -> Assignment:
        """On the way to ``target``: its replicas first, in its order, behind them those that are to go."""
        original = self.original
        replicas = (*target, *(node for node in original if node not in target))
        return Assignment(
            replicas=replicas,
            adding=tuple(node for node in target if node not in original),
            removing=tuple(node for node in original if node not in target),
        )

    def cancelled(self) -> Assignment:
        """As before the reassignment."""
        return Assignment(replicas=self.original)

    def settled(self, isr: Iterable[NodeId], min_insync_replicas: int) -> Assignment:
        """Complete, if ``isr`` has the whole target, or what this file's head says; otherwise unchanged."""
        in_sync = frozenset(isr)
        staying = sum(node in in_sync for node in self.target)
        if len(self.adding) >= len(self.removing) and in_sync.issuperset(self.adding):
            needed = effective_min_isr(min_insync_replicas, self.target)
        else:
            needed = len(self.target)
        return Assignment(replicas=self.target) if self.under_way and staying >= needed else self


def place(
    brokers: Iterable[NodeId], *, partitions: int, replication_factor: int, start: int = 0
) -> tuple[tuple[NodeId, ...], ...]:
    """The replicas of each partition, the preferred leader first.

    S18: with n brokers, sorted, partition i's j-th replica is on broker (start + i + j) mod n. ``brokers`` are those
    that are usable now. Raises InvalidReplicationFactor, which says how many there are.
    """
    usable = sorted(brokers)
    if not 1 <= replication_factor <= len(usable):
        named = f" ({', '.join(map(str, usable))})" if usable else ""
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: {len(usable)} usable broker{'s' * (len(usable) != 1)}{named}",
            usable_brokers=usable,
        )
    return tuple(
        tuple(usable[(start + number + turn) % len(usable)] for turn in range(replication_factor))
        for number in range(partitions)
    )


def spread(
    current: Mapping[TopicPartition, Sequence[NodeId]],
    brokers: Iterable[NodeId],
    *,
    replication_factor: int | None = None,
) -> dict[TopicPartition, tuple[NodeId, ...]]:
    """Where the partitions could lie on ``brokers``: replicas and preferred leaders evenly, with few moves.

    What lies on one of these brokers stays there unless that broker has too much; nothing is moved twice.
    ``replication_factor``: another one than each partition has. Raises InvalidReplicationFactor when there are fewer
    brokers than replicas.
    """
    usable = sorted(dict.fromkeys(brokers))
    held: dict[NodeId, dict[TopicPartition, None]] = {node: {} for node in usable}
    placed: dict[TopicPartition, list[NodeId]] = {}
    wanted: dict[TopicPartition, int] = {}
    for name in sorted(current):
        wanted[name] = len(current[name]) if replication_factor is None else replication_factor
        if not 1 <= wanted[name] <= len(usable):
            raise InvalidReplicationFactor(f"{name}: {wanted[name]} replicas on the brokers {usable}")
        placed[name] = [node for node in current[name] if node in held][: wanted[name]]
        for node in placed[name]:
            held[node][name] = None
    for name, replicas in placed.items():
        while len(replicas) < wanted[name]:
            node = min((each for each in usable if each not in replicas), key=lambda each: (len(held[each]), each))
            replicas.append(node)
            held[node][name] = None
    _level(placed, held)
    return _with_leaders(placed, len(usable))


def _level(placed: dict[TopicPartition, list[NodeId]], held: dict[NodeId, dict[TopicPartition, None]]) -> None:
    """Move one replica at a time from the broker with most to the one with fewest, until they differ by one at most."""
    while True:
        fewest = min(held, key=lambda node: (len(held[node]), node))
        most = max(held, key=lambda node: (len(held[node]), -node))
        if len(held[most]) - len(held[fewest]) <= 1:
            return
        # Who has more than one more holds at least one that the other does not.
        name = next(each for each in held[most] if each not in held[fewest])
        placed[name][placed[name].index(most)] = fewest
        del held[most][name]
        held[fewest][name] = None


def _with_leaders(placed: dict[TopicPartition, list[NodeId]], brokers: int) -> dict[TopicPartition, tuple[NodeId, ...]]:
    """A replica of each partition in front, so that no broker is preferred for more than its share."""
    share = -(-len(placed) // brokers)
    led: dict[NodeId, int] = {}
    found: dict[TopicPartition, tuple[NodeId, ...]] = {}
    for name, replicas in placed.items():
        first = replicas[0]
        if led.get(first, 0) >= share:
            first = min(replicas, key=lambda node: (led.get(node, 0), replicas.index(node)))
        led[first] = led.get(first, 0) + 1
        found[name] = (first, *(node for node in replicas if node != first))
    return found
