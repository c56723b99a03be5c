"""Groups on a simulated cluster: found, formed, committed, and carried over to another coordinator (S29 to S34)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from minikafka.cli.groups import described
from minikafka.client.admin import AdminClient
from minikafka.client.routing import Coordinator
from minikafka.client.structs import OffsetAndMetadata
from minikafka.coordination.rule import partition_of
from minikafka.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidTopic,
    NotCoordinator,
    ProtocolError,
    UnknownTopicOrPartition,
    WorldError,
    error_of,
)
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.groups.records import OFFSETS_TOPIC, GroupRecord, OffsetRecord, packed, unpacked
from minikafka.log.names import offset_name
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.group_messages import (
    CommitPartition,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from minikafka.wire.messages import PartitionName
from minikafka.wire.records import BatchBuilder, decode_batch
from tests.sim.cluster_kit import ORDERS, Client, facts_of, simulated, simulated_orders, values

GROUP = "g"
LOOK_AGAIN = (NotCoordinator.code, CoordinatorNotAvailable.code, CoordinatorLoadInProgress.code)


class Asker:
    """Requests to whoever coordinates the group; looks for it again when told to, and says so when it cannot."""

    def __init__(self, cluster: SimCluster, name: str = "client") -> None:
        self.cluster = cluster
        self.name = name
        self.world = cluster.sim.of(name)
        self.member_id = ""
        self.generation = -1

    def run(self, coro: Any) -> Any:
        return self.cluster.run(coro, node=self.name)

    async def tell(self, node: NodeId, request: object, *, within_s: float = 30.0) -> Any:
        deadline = self.world.clock.now() + within_s
        return await call(self.world.network, self.cluster.address_of(node), request, deadline)

    async def coordinator(self) -> NodeId:
        while True:
            for node in self.cluster.nodes:
                try:
                    answer = await self.tell(node, FindCoordinatorRequest(keys=(GROUP,)), within_s=2.0)
                except (WorldError, ProtocolError):
                    continue
                if not answer.coordinators[0].error_code:
                    return int(answer.coordinators[0].node_id)
            await asyncio.sleep(0.1)

    async def asked(self, request: object) -> Any:
        """Whole-request errors are raised, but for those that ask to look again."""
        while True:
            node = await self.coordinator()
            try:
                answer = await self.tell(node, request, within_s=5.0)
            except (WorldError, ProtocolError):
                await asyncio.sleep(0.1)
                continue
            if answer.error_code in LOOK_AGAIN:
                await asyncio.sleep(0.1)
                continue
            return answer

    async def joined(self) -> Any:
        subscription = Subscription(topics=("orders",)).packed()
        for _ in range(2):
            answer = await self.asked(
                JoinGroupRequest(
                    group_id=GROUP,
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=4_000,
                    member_id=self.member_id,
                    protocols=(GroupProtocol(name="range", metadata=subscription),),
                )
            )
            self.member_id = answer.member_id
        self.generation = answer.generation_id
        return answer

    async def stable(self) -> bytes:
        """Join alone and get everything."""
        await self.joined()
        everything = Assignment(partitions=(ORDERS,)).packed()
        answer = await self.asked(
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=self.generation,
                member_id=self.member_id,
                assignments=(MemberAssignment(member_id=self.member_id, assignment=everything),),
            )
        )
        return bytes(answer.assignment)

    def commit_of(self, offset: int, topic: str = "orders") -> OffsetCommitRequest:
        return OffsetCommitRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            partitions=(CommitPartition(topic=topic, partition=0, offset=offset),),
        )

    async def commit(self, offset: int) -> Any:
        return (await self.asked(self.commit_of(offset))).partitions[0]

    async def committed(self) -> int:
        request = OffsetFetchRequest(group_id=GROUP, partitions=(PartitionName(topic="orders", partition=0),))
        return int((await self.asked(request)).partitions[0].offset)

    async def described(self) -> DescribedGroup:
        while True:
            group = (await self.asked(DescribeGroupsRequest(groups=(GROUP,)))).groups[0]
            if group.error_code not in LOOK_AGAIN:
                return group


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """Three brokers; the offsets topic has four partitions, and a group of one is formed at once."""
    with simulated_orders(offsets_topic_num_partitions="4", group_initial_rebalance_delay_ms="0") as cluster:
        yield cluster


def test_the_offsets_topic_is_made_when_it_is_first_needed(cluster: SimCluster):
    """S32: any broker tells the same coordinator: the leader of the partition of the group's hash."""
    asker = Asker(cluster)
    node = asker.run(asker.coordinator())
    name = TopicPartition(OFFSETS_TOPIC, partition_of(GROUP, 4))
    assert node == cluster.leader_of(name)
    state = cluster.partition(name)
    assert state is not None
    assert len(state.replicas) == 3
    told = [
        asker.run(asker.tell(each, FindCoordinatorRequest(keys=(GROUP,)))).coordinators[0] for each in cluster.nodes
    ]
    assert {each.node_id for each in told} == {node}


def test_the_whole_of_a_members_life(cluster: SimCluster):
    """S33, S34: join, sync, heartbeat, commit, read back, leave the group to be listed, described, deleted."""
    asker = Asker(cluster)
    assert Assignment.unpacked(asker.run(asker.stable())).partitions == (ORDERS,)
    beat = HeartbeatRequest(group_id=GROUP, generation_id=asker.generation, member_id=asker.member_id)
    assert asker.run(asker.asked(beat)).error_code == 0
    assert asker.run(asker.commit(7)).error_code == 0
    assert asker.run(asker.committed()) == 7
    node = asker.run(asker.coordinator())
    listed = asker.run(asker.tell(node, ListGroupsRequest()))
    assert [(each.group_id, each.state) for each in listed.groups] == [(GROUP, "Stable")]
    unknown = asker.run(asker.asked(asker.commit_of(1, topic="nobody"))).partitions[0]
    assert unknown.error_code == UnknownTopicOrPartition.code
    refused = asker.run(asker.asked(DeleteGroupsRequest(groups=(GROUP,)))).groups[0]
    assert error_of(refused.error_code).name == "NON_EMPTY_GROUP"
    cluster.run_for(12.0)
    assert asker.run(asker.described()).state == "Empty", "nobody beat for longer than the session"
    assert asker.run(asker.asked(DeleteGroupsRequest(groups=(GROUP,)))).groups[0].error_code == 0
    assert asker.run(asker.committed()) == -1


def test_members_and_offsets_outlive_their_coordinator(cluster: SimCluster):
    """S34: the next leader of the partition reads the log and goes on; the member notices nothing but a pause."""
    asker = Asker(cluster)
    asker.run(asker.stable())
    asker.run(asker.commit(7))
    old = asker.run(asker.coordinator())
    cluster.crash(old)
    assert asker.run(asker.committed()) == 7
    group = asker.run(asker.described())
    assert (group.state, group.generation_id, [each.member_id for each in group.members]) == (
        "Stable",
        asker.generation,
        [asker.member_id],
    )
    assert asker.run(asker.commit(9)).error_code == 0
    assert asker.run(asker.coordinator()) != old


def test_no_coordinator_believes_a_rotten_offset(cluster: SimCluster):
    """One bit of a committed offset on the disks of all replicas that can take over: it was served as the offset."""
    asker = Asker(cluster)
    asker.run(asker.stable())
    asker.run(asker.commit(7))
    old = asker.run(asker.coordinator())
    name = TopicPartition(OFFSETS_TOPIC, partition_of(GROUP, 4))
    for node in cluster.nodes:
        if node != old:
            path = f"{name}/{offset_name(0, '.log')}"
            disk = cluster.sim.disk(node_name(node))
            cluster.run(cluster.replica(node, name).log.sync(), node=node_name(node))  # type: ignore[union-attr]
            disk.bit_rot(path, disk.content_bytes(path).rindex((7).to_bytes(8)) + 7)
    cluster.crash(old)
    cluster.until(lambda: bool(facts_of(cluster, "group_coordinator_not_loaded")), 30.0, "the damage to be reported")


def test_a_silent_broker_does_not_keep_the_coordinator_from_being_found(cluster: SimCluster):
    """S32: it may be the first to be asked; a member that looks again has a session's time, ten seconds, for it all."""
    client = Client(cluster, "admin")
    node = client.run(client.admin.find_coordinator(GROUP))
    silent = next(each for each in cluster.nodes if each not in (node, cluster.controller()))
    cluster.pause(silent)
    metadata = client.admin._metadata()
    firsts: list[str] = []
    for _ in range(8):
        finder = Coordinator(GROUP, client.admin.config, client.world, metadata)
        assert client.run(finder.locate(client.world.clock.now() + 5.0)) == node
        firsts.append(str(metadata.any_addresses()[0]))
    assert str(cluster.address_of(silent)) in firsts, "it is first at times"


def test_a_topic_deleted_while_nobody_coordinates_leaves_no_offsets(cluster: SimCluster):
    """The coordinator is dead, the next one is not there yet: it reads offsets of what is gone, and drops them."""
    asker, client = Asker(cluster), Client(cluster, "admin")
    asker.run(asker.commit(7))
    name = TopicPartition(OFFSETS_TOPIC, partition_of(GROUP, 4))
    old = cluster.leader_of(name)
    cluster.crash(old)
    client.run(client.admin.delete_topics(["orders"], wait=False))
    assert cluster.leader_of(name) == old, "nobody was elected meanwhile"
    assert asker.run(asker.committed()) in (7, -1)
    cluster.run_for(2.0)
    assert asker.run(asker.committed()) == -1
    assert asker.run(asker.coordinator()) != old


def test_a_group_is_described_whose_topic_is_gone_or_has_no_leader(cluster: SimCluster):
    """``groups describe``: what cannot be known is left open, and nothing is waited for."""
    asker, client = Asker(cluster), Client(cluster, "admin")
    cluster.create_topic("lonely", replication_factor=1)
    cluster.settle()
    assert asker.run(asker.commit(7)).error_code == 0
    asker.run(asker.asked(asker.commit_of(3, topic="lonely")))
    lonely = TopicPartition("lonely", 0)
    dead = cluster.leader_of(lonely)
    cluster.crash(dead)
    cluster.until(lambda: cluster.leader_of(lonely) == NO_NODE and cluster.leader_of(ORDERS) != dead, 60.0, "elections")
    assert asker.run(asker.committed()) == 7
    gone = TopicPartition("gone", 0)

    async def with_gone(*_: object) -> dict[TopicPartition, OffsetAndMetadata]:
        found = await AdminClient.list_consumer_group_offsets(client.admin, GROUP)
        return {**found, gone: OffsetAndMetadata(1, "")}

    client.admin.list_consumer_group_offsets = with_gone  # type: ignore[method-assign]
    began = asker.world.clock.now()
    told = client.run(described(client.admin, GROUP))
    assert [(each.partition, each.committed, each.log_end, each.lag) for each in told.lags] == [
        (gone, 1, None, None),
        (lonely, 3, None, None),
        (ORDERS, 7, 0, 0),
    ]
    assert told.to_json()["offsets"][0]["log_end"] is None
    assert len(list(told.kafka())) == len(told.rows()) + 2
    assert asker.world.clock.now() - began < 10.0, "nobody was waited for"


def test_a_coordinator_that_is_cut_off_commits_nothing(cluster: SimCluster):
    """What it took without its followers is unknown to who asked, and not in the group's offsets afterwards."""
    asker = Asker(cluster)
    asker.run(asker.stable())
    asker.run(asker.commit(7))
    old = asker.run(asker.coordinator())
    others = [node for node in cluster.nodes if node != old]
    for other in others:
        cluster.cut(old, other)
        cluster.cut(other, old)

    async def commit_at_the_old_one() -> tuple[int, str]:
        answer = await asker.tell(old, asker.commit_of(100))
        (partition,) = answer.partitions
        return partition.error_code, partition.outcome

    code, outcome = asker.run(commit_at_the_old_one())
    assert (code, outcome) == (CoordinatorNotAvailable.code, "unknown")
    cluster.run_for(15.0)
    assert asker.run(asker.committed()) == 7
    answer = asker.run(asker.tell(old, asker.commit_of(200)))
    assert answer.error_code == NotCoordinator.code
    cluster.heal()
    cluster.settle()
    assert asker.run(asker.committed()) == 7


def test_too_few_replicas_refuse_a_commit_and_write_nothing():
    """min.insync.replicas holds for offsets too: outcome not_written."""
    name = TopicPartition(OFFSETS_TOPIC, 0)
    with simulated(brokers=5, offsets_topic_num_partitions="1") as cluster:
        cluster.create_topic("orders")
        asker = Asker(cluster)
        assert asker.run(asker.commit(7)).error_code == 0
        state = cluster.partition(name)
        assert state is not None
        for node in state.replicas:
            if node != state.leader:
                cluster.crash(node)
        cluster.until(lambda: cluster.partition(name).isr == (state.leader,), 60.0, "the ISR to shrink")
        end = cluster.replica(state.leader, name).log.end_offset
        answer = asker.run(asker.commit(9))
        assert (answer.error_code, answer.outcome) == (CoordinatorNotAvailable.code, "not_written")
        assert cluster.replica(state.leader, name).log.end_offset == end
        assert asker.run(asker.committed()) == 7


def test_records_of_later_kafkas_disable_no_group(cluster: SimCluster):
    """An offset of version 4 (Kafka 4.1) is read; records of unknown versions are skipped and reported once."""
    asker = Asker(cluster)
    assert asker.run(asker.commit(7)).error_code == 0
    name = TopicPartition(OFFSETS_TOPIC, partition_of(GROUP, 4))
    leader = cluster.replica(cluster.leader_of(name), name)
    assert leader is not None
    key, _ = packed(OffsetRecord(group=GROUP, partition=ORDERS, value=None))
    of_kafka_4_1 = b"\0\4" + (9).to_bytes(8) + b"\0\0\0\0" + b"\1" + bytes(8) + b"\1\0\x10" + bytes(16)
    builder = BatchBuilder()
    for each in ((key, of_kafka_4_1), (key, b"\0\5"), (b"\0\x09\0\1h", b"\0\0"), (b"\0\x09\0\1i", None)):
        builder.append(asker.world.clock.wall_ms(), *each)
    leader.as_leader().append(RecordBatch.of(bytes(builder.build())), acks=-1, wall_ms=asker.world.clock.wall_ms())
    cluster.settle()
    old = asker.run(asker.coordinator())
    cluster.crash(old)
    assert asker.run(asker.committed()) == 9
    told = [each for each in facts_of(cluster, "group_records_skipped") if each["partition"] == str(name)]
    assert [(each["count"], each["versions"]) for each in told] == [
        (3, {"key 1, value 5": 1, "key 9, value 0": 1, "key 9, value none": 1})
    ]


def test_the_log_is_kafkas_and_the_same_on_every_replica(cluster: SimCluster):
    """The last word of each key says what the group is; a client may not write there."""
    asker = Asker(cluster)
    asker.run(asker.stable())
    asker.run(asker.commit(3))
    asker.run(asker.commit(5))
    cluster.settle()
    name = TopicPartition(OFFSETS_TOPIC, partition_of(GROUP, 4))
    logs = [values(cluster, node, name) for node in cluster.nodes]
    assert logs[0] == logs[1] == logs[2]
    replica = cluster.replica(1, name)
    assert replica is not None
    found = []
    part = replica.log.read(0, max_bytes=1 << 20)
    for batch in (each for buffer in part.buffers for each in split(buffer)):
        found += [unpacked(record.key or b"", record.value) for record in decode_batch(batch)]
    offsets = [each.value.offset for each in found if isinstance(each, OffsetRecord) and each.value is not None]
    groups = [each.value.generation for each in found if isinstance(each, GroupRecord) and each.value is not None]
    assert (offsets, groups) == ([3, 5], [asker.generation])
    leader = cluster.leader_of(name)
    assert Client(cluster, "other").tell(leader, b"x", acks=-1, name=name).error_code == InvalidTopic.code
