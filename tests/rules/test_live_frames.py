"""What a viewer of the cluster receives when a broker dies (issue 19, PAGE 5.3): at most 6 kB for 1,003 partitions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import zlib
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from minikafka.broker.history import History
from minikafka.config import BrokerConfig
from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from minikafka.rest import json_text
from minikafka.rest.live import FRAMES_KEPT, TOPIC_COUNT_MAX, _Channel, cluster_state
from minikafka.rest.routes import GZIP_MEMORY, GZIP_WINDOW
from minikafka.types import NO_NODE, Address, NodeId
from minikafka.wire.differences import difference
from tests.rules.test_differences import applied

SIZES = {"orders": 3, "wide": 1_000}
FRAME_BYTES_MAX = 6_000
DEAD = 3


@dataclass
class Scene:
    """The cluster as a state is written of it."""

    image: MetadataImage
    config: BrokerConfig
    access: None = None

    def address_of(self, node: NodeId) -> Address | None:
        return self.image.brokers[node].address


def partition(number: int) -> PartitionImage:
    replicas = tuple(1 + (number + each) % 3 for each in range(3))
    return PartitionImage(
        partition=number,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        controller_epoch=1,
    )


def without(each: PartitionImage, node: NodeId) -> PartitionImage:
    """Another leader, if the broker led, and an ISR without it."""
    isr = tuple(other for other in each.isr if other != node)
    return replace(each, isr=isr, leader=isr[0] if each.leader == node else each.leader)


def image_of(partitions: dict[str, tuple[PartitionImage, ...]], *, down: tuple[NodeId, ...] = ()) -> MetadataImage:
    return MetadataImage(
        brokers={
            node: BrokerImage(
                node_id=node,
                broker_epoch=node,
                incarnation_id=f"i{node}",
                host="127.0.0.1",
                port=9091 + node,
                fenced=node in down,
            )
            for node in (1, 2, 3)
        },
        topics={name: TopicImage(name=name, topic_id=name, partitions=each) for name, each in partitions.items()},
    )


def received(packer: Any, event: bytes) -> int:
    """Bytes of an event in a compressed stream."""
    return len(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH))


def test_frame_of_a_broker_that_dies_is_small():
    """A third of the leaders and all ISRs change at once; each partition's path is sent once, not once for each member."""
    alive = {name: tuple(map(partition, range(count))) for name, count in SIZES.items()}
    dead = {name: tuple(without(each, DEAD) for each in listed) for name, listed in alive.items()}
    config = BrokerConfig(node_id=1)
    before = cluster_state(Scene(image_of(alive), config), 1, None)
    after = cluster_state(Scene(image_of(dead, down=(DEAD,)), config), 1, None)
    frame = {"at_ms": 1_795_000_000_000, "changes": difference(before, after)}
    packer = zlib.compressobj(1, zlib.DEFLATED, GZIP_WINDOW, GZIP_MEMORY)
    received(packer, json_text.event("snapshot", before, "1a2b-1"))
    assert received(packer, json_text.event("frame", frame, "1a2b-2")) <= FRAME_BYTES_MAX
    assert applied(before, json.loads(json.dumps(frame["changes"]))) == after


def test_topics_with_problems_are_among_those_that_are_shown():
    """Of hundreds of topics, viewers look for those that cannot be written; the broker's own topics come last."""
    strict = replace(partition(0), isr=(1, 2))
    listed = {f"t-{number:03}": (partition(0),) for number in range(TOPIC_COUNT_MAX)}
    listed |= {"__consumer_offsets": (partition(0),), "z-1": (replace(partition(0), isr=(), leader=NO_NODE),)}
    image = image_of({**listed, "z-2": (partition(1), strict), "z-3": (strict,)})
    image.topics["z-2"] = replace(image.topics["z-2"], configs={"min.insync.replicas": "3"})
    state = cluster_state(Scene(image, BrokerConfig(node_id=1)), 1, None)
    assert [name for name in state["topics"] if not name.startswith("t-")] == ["z-1", "z-2", "z-3"]
    assert state["topics_left_out"] == 4
    assert [[each["state"] for each in state["topics"][name].values()] for name in ("z-1", "z-2", "z-3", "t-000")] == [
        ["offline"],
        ["ok", "under-min-isr"],
        ["under-replicated"],
        ["ok"],
    ]
    assert "without a leader: 1; below min ISR: 1; under-replicated: 3." in state["summary"]


class Counting(_Channel):
    """A channel whose states are given by hand."""

    async def read(self) -> dict[str, Any]:
        return await asyncio.Future()

    async def kinds(self, seen: int, count: int) -> list[str]:
        """The kinds of the first events that a viewer gets which has read the version ``seen`` of this channel."""
        found: list[str] = []
        async with asyncio.timeout(60), contextlib.aclosing(self.events(f"{self._id}-{seen}")) as events:
            while len(found) < count:
                lines = (await anext(events)).decode().splitlines()
                found += [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        return found


async def test_a_viewer_continues_only_behind_what_this_channel_has_kept():
    """An id of a version that it never had, or has dropped, is answered with the whole state."""
    host = SimpleNamespace(
        node_id=1,
        config=SimpleNamespace(testing_endpoints_enable=False),
        world=SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 7)),
        history=History(1, keep_ms=0, bytes_max=0),
    )
    channel = Counting(cast("Any", host), lambda: None)
    for number in range(FRAMES_KEPT + 5):
        channel._publish({"n": number})
    newest = FRAMES_KEPT + 5
    assert await channel.kinds(newest - 2, 3) == ["hello", "frame", "frame"]
    assert (await channel.kinds(5, FRAMES_KEPT + 1))[1:] == ["frame"] * FRAMES_KEPT
    for seen in (4, 1, newest + 1):
        assert await channel.kinds(seen, 3) == ["hello", "gap", "snapshot"]
    await channel.stop()
