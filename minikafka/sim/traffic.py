"""How many requests and bytes the brokers of a large cluster exchange while nobody produces, by API.

A simulated cluster of any size is started, gets a topic and settles; then every message between two brokers is counted
for some virtual seconds. Sizes are those of bodies: heads of HTTP and TCP are not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from minikafka.faults import METADATA_FETCH
from minikafka.sim.cluster import SimCluster
from minikafka.sim.verdicts import Message, Verdict
from minikafka.sim.world import SimWorld
from minikafka.types import METADATA_TOPIC

TOPIC: Final = "idle"
VOTERS: Final = 3
REPLICAS: Final = 3
SETTLE_S: Final = 120.0
"""Virtual seconds until every replica must be in sync."""
SETTLED_S: Final = 10.0
"""Virtual seconds that pass before messages are counted: fetch sessions have named all their partitions by then."""
LOOK_S: Final = 1.0
FETCH: Final = "Fetch"
REPLICATION: Final = "replication"
CONTROL: Final = "control"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ApiTraffic:
    """One API's messages, in the whole cluster."""

    api: str
    """``MetadataFetch`` is a Fetch of the metadata log."""
    requests_per_second: float
    bytes_per_second: float
    """Bodies of requests and responses."""

    @property
    def kind(self) -> str:
        """What the API belongs to: control or replication."""
        return REPLICATION if self.api == FETCH else CONTROL


@dataclass(frozen=True, slots=True)
class ClusterTraffic:
    """What was counted in one cluster."""

    brokers: int
    partitions: int
    virtual_s: float
    apis: tuple[ApiTraffic, ...]

    def of_kind(self, kind: str) -> ApiTraffic:
        """The sum over all APIs of this kind."""
        chosen = [each for each in self.apis if each.kind == kind]
        return ApiTraffic(
            kind, sum(each.requests_per_second for each in chosen), sum(each.bytes_per_second for each in chosen)
        )


class _Counter:
    """Counts messages between brokers as the network sends them."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.bytes: dict[str, int] = {}
        self._calls: dict[int, str] = {}
        """The API of each call without an answer."""

    def __call__(self, message: Message, _: Verdict) -> None:
        if message.kind == "request":
            api = message.api
            if api == FETCH and METADATA_TOPIC.encode() in message.body:
                api = METADATA_FETCH
            self._calls[message.call] = api
            self.requests[api] = self.requests.get(api, 0) + 1
        else:
            api = self._calls.pop(message.call, message.api)
        self.bytes[api] = self.bytes.get(api, 0) + len(message.body)


def measure(
    *, brokers: int, partitions: int, virtual_s: float, settings: Mapping[str, str], seed: int, say: Say
) -> ClusterTraffic:
    """Count the messages of an idle cluster. Raises NotReached if it does not settle."""
    with SimWorld(seed) as sim:
        cluster = SimCluster(sim, brokers=brokers, voters=min(VOTERS, brokers), settings=settings)
        cluster.boot()
        cluster.settle(SETTLE_S)
        say(f"{brokers} brokers are ready")
        cluster.create_topic(TOPIC, partitions=partitions, replication_factor=min(REPLICAS, brokers))
        for _ in range(int(SETTLE_S / LOOK_S)):
            # To look whether all is settled visits every replica: not after every step.
            cluster.run_for(LOOK_S)
            if cluster.is_settled():
                break
        cluster.settle(LOOK_S)
        cluster.run_for(SETTLED_S)
        say(f"{partitions} partitions are in sync")
        counter = _Counter()
        sim.network.observers.append(counter)
        cluster.run_for(virtual_s)
    apis = [
        ApiTraffic(api, count / virtual_s, counter.bytes.get(api, 0) / virtual_s)
        for api, count in counter.requests.items()
    ]
    apis.sort(key=lambda each: (-each.requests_per_second, each.api))
    return ClusterTraffic(brokers, partitions, virtual_s, tuple(apis))
