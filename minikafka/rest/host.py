"""What the doors need of a broker, and the limits that they keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from minikafka.config import MIB, BrokerConfig
from minikafka.ports import INTERNAL, RequestContext, World
from minikafka.quorum.image import BrokerImage, MetadataImage
from minikafka.types import Address, NodeId
from minikafka.wire.messages import CurrentLeader, DescribeQuorumResponse

if TYPE_CHECKING:
    from minikafka.broker.access import Access
    from minikafka.broker.history import History
    from minikafka.broker.throttle import Throttle

# Reading JSON holds the loop; what a body may hold beside its bytes is bounded as well (body.py).
BODY_BYTES_MAX = 8 * MIB

# Ten thousand records of 100 bytes fill one batch of the default max.message.bytes.
PRODUCE_RECORD_COUNT_MAX = 10_000

# An answer is built in memory, as text three to five times as large as the records.
FETCH_BYTES_MAX = 8 * MIB
FETCH_RECORD_COUNT_MAX = 10_000

# Proxies and people give up on a silent connection after 30 to 60 seconds.
WAIT_MS_MAX = 30_000
TIMEOUT_MS_MAX = 60_000
TIMEOUT_MS_DEFAULT = 30_000

# A stream costs a connection, a parked fetch and a task, here and at the leader.
STREAM_COUNT_MAX = 100
STREAM_COUNT_MAX_OF_ONE = 50
"""Of one user, or of one address of clients without a name: nobody takes the streams of all others."""

# A reader that takes nothing for so long is gone; what is held for it until then is one chunk.
STREAM_WRITE_TIMEOUT_S = 30.0

# What an answer by another broker may take beyond the request's own wait.
FORWARD_SLACK_S = 5.0


class Scene(Protocol):
    """The cluster at one time, which is what a state is written of: the present one, or an earlier one."""

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def image(self) -> MetadataImage:
        """The cluster as this broker knew it."""

    @property
    def access(self) -> Access | None:
        """What clients may do; None: everything."""

    def address_of(self, node: NodeId) -> Address | None:
        """Where another broker listens."""


class Host(Scene, Protocol):
    """The broker behind the doors (``minikafka.broker.broker.Broker``), and the present state of the cluster."""

    @property
    def world(self) -> World: ...

    @property
    def node_id(self) -> NodeId: ...

    @property
    def is_ready(self) -> bool:
        """Registered, unfenced, metadata caught up."""

    @property
    def has_session(self) -> bool:
        """Its session with the controller has not run out; without one its leaders refuse all clients."""

    def check_caught_up(self) -> None:
        """Raise BrokerNotAvailable until this broker has read the metadata since its start."""

    def missing(self) -> str:
        """What it still waits for before it is ready, as a sentence."""

    @property
    def throttle(self) -> Throttle:
        """Quotas of clients."""

    @property
    def history(self) -> History:
        """What this broker knew lately."""

    @property
    def failure(self) -> str | None:
        """Why the broker stopped by itself."""

    async def answer(self, api: str, request: object, context: RequestContext = INTERNAL) -> Any:
        """The typed response; raises ProtocolError for a failure of the whole request."""

    async def forward(self, peer: Address, request: object, context: RequestContext, deadline: float) -> Any:
        """The typed response of another broker to a request of a client. Raises as :func:`minikafka.rpc.call` does, and
        ProtocolError.
        """


def leader_members(scene: Scene, leader: CurrentLeader | DescribeQuorumResponse, listener: str) -> dict[str, Any]:
    """``leader`` in answers and problems to a client of this listener."""
    return {"id": leader.leader_id, "epoch": leader.leader_epoch, **broker_members(scene, leader.leader_id, listener)}


def broker_members(scene: Scene, node: NodeId, listener: str) -> dict[str, Any]:
    """Id and address of a broker, in answers and problems to a client of this listener; no address if unregistered."""
    broker = scene.image.brokers.get(node)
    return {"id": node} if broker is None else {"id": node, "url": place_of(scene, broker, listener)["url"]}


def place_of(scene: Scene, broker: BrokerImage, listener: str) -> dict[str, Any]:
    """Where a client of this listener finds a broker. As in Kafka's Metadata, it sees no other listener's address."""
    address = broker.address_at(listener)
    name = listener or scene.config.inter_broker_listener.name
    scheme = "https" if name in scene.config.tls_listeners else "http"
    return {"host": address.host, "port": address.port, "url": f"{scheme}://{address}"}


def limits_of(host: Host) -> dict[str, int]:
    """What ``GET /v1/cluster`` states."""
    return {
        "body_bytes_max": body_bytes_max(host),
        "produce_records_max": PRODUCE_RECORD_COUNT_MAX,
        "produce_timeout_ms_max": TIMEOUT_MS_MAX,
        "fetch_bytes_max": min(FETCH_BYTES_MAX, host.config.fetch_max_bytes),
        "fetch_records_max": FETCH_RECORD_COUNT_MAX,
        "fetch_wait_ms_max": WAIT_MS_MAX,
        "streams_max": STREAM_COUNT_MAX,
    }


def body_bytes_max(host: Host) -> int:
    """The largest body that ``/v1`` reads."""
    return min(BODY_BYTES_MAX, host.config.socket_request_max_bytes)
