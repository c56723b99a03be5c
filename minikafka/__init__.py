"""minikafka: a small Kafka in Python, with real replication.

Three brokers replicate append-only partition logs over HTTP, elect leaders through a KRaft-like quorum inside
themselves, and keep Kafka's record batches byte for byte on disk. The house has floors; an import may only point down:

    7  cli/ chaos/                            the command line; fault scenarios for whole clusters
    6  testing/ hosting/ rest/ lab/ ui/       fixtures; broker processes; /v1; stories and the replay page
       world/ sim/ spark/ web/ blocking/      the four ports, real or simulated; Spark; what these share
    5  broker/ client/                        drivers: they await, and decide nothing
    4  quorum/ groups/ transactions/          rules of the controller, of groups and transactions
       coordination/ security/ check/         what coordinators share; who may do what; the history checker
    3  replication/                           rules: who may acknowledge what
    2  log/                                   one partition on disk
    1  wire/ ports.py                         bytes and messages; the four ports
    0  config/ types.py errors.py faults.py   words

Rules (floors 1 to 4) are synchronous: ``now`` goes in, effects and the next deadline come out. Drivers (floor 5) await
and reach the world only through Clock, Network, Disk and Events. ``tests/tidy`` holds these laws.

Reading order: types, errors, ports; wire/batch; log/partition_log; replication/leader, then follower;
quorum/core and controller; broker/api/produce and fetch; sim/world.
"""

from __future__ import annotations

import sys
from importlib import import_module

from minikafka import compiled

if sys.platform == "win32":
    raise ImportError("minikafka runs on Linux and macOS; on Windows use WSL 2, or Docker")

TYPE_CHECKING = False  # typing's would load that module, which takes four times as long as all else here
if TYPE_CHECKING:
    from minikafka.client.structs import (
        CommitFailed,
        ConsumerRebalanceListener,
        ConsumerRecord,
        GroupMetadata,
        NewTopic,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        RecordMetadata,
        WakeUp,
    )
    from minikafka.testing.local_cluster import LocalCluster
    from minikafka.types import TopicPartition
    from minikafka.world.clients import AdminClient, Consumer, Producer

__all__ = [
    "AdminClient",
    "CommitFailed",
    "Consumer",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "GroupMetadata",
    "LocalCluster",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "RecordMetadata",
    "TopicPartition",
    "WakeUp",
    "__version__",
]

__version__ = "0.1.0"

# Before any rule is imported.
compiled.install()

# Looked up on first use: importing a rule must not load aiohttp.
_HOMES = {
    "AdminClient": "minikafka.world.clients",
    "Consumer": "minikafka.world.clients",
    "Producer": "minikafka.world.clients",
    "CommitFailed": "minikafka.client.structs",
    "ConsumerRebalanceListener": "minikafka.client.structs",
    "ConsumerRecord": "minikafka.client.structs",
    "LocalCluster": "minikafka.testing.local_cluster",
    "GroupMetadata": "minikafka.client.structs",
    "NewTopic": "minikafka.client.structs",
    "OffsetAndMetadata": "minikafka.client.structs",
    "OffsetAndTimestamp": "minikafka.client.structs",
    "RecordMetadata": "minikafka.client.structs",
    "TopicPartition": "minikafka.types",
    "WakeUp": "minikafka.client.structs",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """The public names also before their first use: for dir(), help() and completion."""
    return sorted({*globals(), *__all__})
