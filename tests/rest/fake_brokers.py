"""A cluster of fake brokers behind the real doors and the real network: enough to show what the doors do.

Each fake answers the few typed requests that the doors use, from one shared memory. What a broker should refuse next is
set by the test. Nothing here replicates; the real broker has its own test in tests/e2e.
"""

from __future__ import annotations

import asyncio
from random import Random
from types import TracebackType
from typing import Any, Self

from msgspec import structs

from minikafka.broker.access import Access
from minikafka.broker.envelopes import send_on
from minikafka.broker.history import History
from minikafka.broker.throttle import Throttle
from minikafka.config import BrokerConfig
from minikafka.errors import (
    BrokerNotAvailable,
    InconsistentTopicId,
    NotController,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    ProtocolError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from minikafka.ports import INTERNAL, Buffers, RequestContext, World
from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from minikafka.rest.json_text import json_rpc
from minikafka.rest.routes import TESTING_ROUTES, Doors
from minikafka.rest.testing_hooks import serve_forwarded
from minikafka.rpc import call
from minikafka.types import Address, NodeId, TopicPartition
from minikafka.web.gate import Gate
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire import transaction_messages as t
from minikafka.wire.batch import RecordBatch, stamped
from minikafka.wire.codec import decode_request, encode_response, error_response, find_api
from minikafka.world.http import HttpNetwork
from minikafka.world.instruments import Instruments, Lives
from minikafka.world.real import SystemClock


class FakeCluster:
    """Brokers 1 to n that share topics; broker 1 is the controller."""

    def __init__(self, brokers: int = 2, **config: Any) -> None:
        self.topics: dict[str, TopicImage] = {}
        self.batches: dict[TopicPartition, list[bytes]] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.offset = 0
        self.controller = 1
        self.listener = ""
        """Name of the listener of all brokers, as in contexts of requests."""
        self.news = asyncio.Event()
        self.brokers = {
            node: FakeBroker(self, node, BrokerConfig(node_id=node, **config)) for node in range(1, brokers + 1)
        }

    async def __aenter__(self) -> Self:
        for broker in self.brokers.values():
            await broker.start(self.listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.news.set()
        for broker in self.brokers.values():
            await broker.network.close()

    def add_topic(self, name: str, leaders: list[NodeId], **config: str) -> None:
        """A topic whose partition i is led by ``leaders[i]``; -1: by nobody."""
        nodes = tuple(self.brokers)
        self.topics[name] = TopicImage(
            name=name,
            topic_id="A" * 21 + "Q",
            configs=config,
            partitions=tuple(
                PartitionImage(
                    partition=at,
                    replicas=nodes,
                    isr=nodes,
                    leader=leader,
                    leader_epoch=4,
                    partition_epoch=7,
                    controller_epoch=2,
                )
                for at, leader in enumerate(leaders)
            ),
        )
        self.offset += 1

    def end(self, name: TopicPartition) -> int:
        return self.ends.get(name, 0)

    def image(self) -> MetadataImage:
        brokers = {
            node: BrokerImage(
                node_id=node,
                broker_epoch=node,
                incarnation_id="i",
                host=each.address.host,
                port=each.address.port,
                fenced=not each.is_ready,
            )
            for node, each in self.brokers.items()
        }
        return MetadataImage(
            cluster_id="C" * 21 + "Q", offset=self.offset, epoch=3, brokers=brokers, topics=dict(self.topics)
        )


class FakeBroker:
    """What the doors need of a broker."""

    def __init__(self, cluster: FakeCluster, node: NodeId, config: BrokerConfig) -> None:
        self.cluster = cluster
        self.node_id = node
        self.config = config
        self.is_ready = True
        self.has_session = True
        self.has_caught_up = True
        self.failure: str | None = None
        self.access: Access | None = None
        self.throttle = Throttle(config, SystemClock())
        self.history = History(node, keep_ms=60_000, bytes_max=1_000_000)
        self.refuse: dict[str, list[ProtocolError]] = {}
        """API -> errors for the whole of the next requests."""
        self.refuse_parts: dict[TopicPartition, list[ProtocolError]] = {}
        """Partition -> errors for it in the next requests."""
        self.producers: tuple[m.ActiveProducer, ...] = ()
        """Of every partition."""
        self.asked: list[Any] = []
        self.envelopes: list[m.EnvelopeRequest] = []
        self.was_asked = asyncio.Event()
        self.reported: list[tuple[str, dict[str, object]]] = []
        self.acts: list[NodeId] = []
        """Brokers that a test route has stopped, killed or started."""
        self.instruments: Instruments | None = None
        """What the testing doors act with, as in a process of its own."""
        if config.testing_endpoints_enable:
            self.instruments = Instruments(dict, dict, lives=Lives(lambda: (node,), self._act, self._act, self._act))
            self.instruments.faults.join(str(node), lambda _kind, /, **_facts: None)
        self.doors = Doors(self.instruments)
        self.network = HttpNetwork(load_doors=lambda: self.doors, translate=json_rpc, gate=Gate.of(config))
        self.world = World(
            clock=SystemClock(),
            network=self.network,
            disk=None,  # type: ignore[arg-type]
            events=lambda kind, /, **facts: self.reported.append((kind, facts)),
            random=Random(7),
            entropy=Random(8).randbytes,
        )

    async def _act(self, node: NodeId) -> None:
        self.acts.append(node)

    async def start(self, listener: str) -> None:
        self.server = await self.network.serve(Address("127.0.0.1", 0), self.handle, listener=listener)
        self.address = self.server.address
        self.doors.open_to(self)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def image(self) -> MetadataImage:
        return self.cluster.image()

    def check_caught_up(self) -> None:
        if not self.has_caught_up:
            raise BrokerNotAvailable(f"broker {self.node_id} has not read the metadata")

    def missing(self) -> str:
        return "the controller has not unfenced it"

    def address_of(self, node: NodeId) -> Address | None:
        known = self.cluster.brokers.get(node)
        return known.address if known else None

    async def forward(self, peer: Address, request: Any, context: RequestContext, deadline: float) -> Any:
        if self.access is None or self.access.is_trusted(context):
            return await call(self.network, peer, request, deadline)
        return await send_on(self.network, peer, request, deadline, context=context, broker_id=self.node_id)

    async def handle(self, api_name: str, body: bytes, _context: RequestContext) -> Buffers:
        try:
            api = find_api(api_name)
            if api_name == "Envelope":
                envelope: m.EnvelopeRequest = decode_request(api, body)
                self.envelopes.append(envelope)
                inner = await self.handle(envelope.api, bytes(envelope.request[0]), _context)
                return encode_response(m.EnvelopeResponse(response=inner))
            return encode_response(await self.answer(api_name, decode_request(api, body)))
        except ProtocolError as error:
            return encode_response(error_response(find_api("ApiVersions"), error))

    async def answer(self, api: str, request: Any, _context: RequestContext = INTERNAL) -> Any:
        self.asked.append(request)
        self.was_asked.set()
        if self.refuse.get(api):
            raise self.refuse[api].pop(0)
        return await getattr(self, "on_" + api)(request)

    # ---- handlers ----

    async def on_RunTestHook(self, request: m.RunTestHookRequest) -> m.RunTestHookResponse:
        assert self.instruments is not None
        return await serve_forwarded(self, self.instruments, TESTING_ROUTES, request)

    async def on_Metadata(self, request: m.MetadataRequest) -> m.MetadataResponse:
        return m.MetadataResponse(
            cluster_id=self.image.cluster_id,
            controller_id=self.cluster.controller,
            metadata_offset=self.cluster.offset,
        )

    async def on_DescribeTopicPartitions(self, request: m.DescribeTopicsRequest) -> m.DescribeTopicsResponse:
        wanted = sorted(self.cluster.topics) if request.topics is None else request.topics
        return m.DescribeTopicsResponse(
            topics=tuple(
                m.DescribedTopic(
                    topic=name,
                    topic_id=self.cluster.topics[name].topic_id,
                    config=dict(self.cluster.topics[name].configs),
                    partitions=tuple(
                        m.DescribedPartition(
                            partition=each.partition,
                            leader=each.leader,
                            leader_epoch=each.leader_epoch,
                            partition_epoch=each.partition_epoch,
                            controller_epoch=each.controller_epoch,
                            replicas=each.replicas,
                            isr=each.isr,
                        )
                        for each in self.cluster.topics[name].partitions
                    ),
                )
                for name in wanted
            )
        )

    def _must_control(self) -> None:
        if self.cluster.controller != self.node_id:
            raise NotController("not me")

    async def on_CreateTopics(self, request: m.CreateTopicsRequest) -> m.CreateTopicsResponse:
        self._must_control()
        (topic,) = request.topics
        if topic.name in self.cluster.topics:
            reported = m.CreatedTopic(
                name=topic.name, error_code=TopicAlreadyExists.code, error_message="exists", outcome="not_written"
            )
            return m.CreateTopicsResponse(topics=(reported,))
        count = max(topic.num_partitions, 1)
        if not request.validate_only:
            nodes = sorted(self.cluster.brokers)
            self.cluster.add_topic(topic.name, [nodes[at % len(nodes)] for at in range(count)], **topic.configs)
        created = m.CreatedTopic(name=topic.name, topic_id="B" * 22, num_partitions=count, replication_factor=2)
        return m.CreateTopicsResponse(topics=(created,), metadata_offset=self.cluster.offset)

    async def on_DeleteTopics(self, request: m.DeleteTopicsRequest) -> m.DeleteTopicsResponse:
        self._must_control()
        (name,) = request.topics
        if self.cluster.topics.pop(name, None) is None:
            reported = m.DeletedTopic(name=name, error_code=3, error_message="no such topic", outcome="not_written")
            return m.DeleteTopicsResponse(topics=(reported,))
        return m.DeleteTopicsResponse(topics=(m.DeletedTopic(name=name),), metadata_offset=self.cluster.offset)

    async def on_ElectLeaders(self, request: m.ElectLeadersRequest) -> m.ElectLeadersResponse:
        self._must_control()
        elected = tuple(m.ElectedLeader(topic=each.topic, partition=each.partition) for each in request.partitions)
        return m.ElectLeadersResponse(partitions=elected, metadata_offset=self.cluster.offset)

    async def on_DescribeReplicas(self, request: m.DescribeReplicasRequest) -> m.DescribeReplicasResponse:
        replicas = []
        for topic in self.cluster.topics.values():
            for part in topic.partitions:
                name = TopicPartition(topic.name, part.partition)
                leading = part.leader == self.node_id
                end = self.cluster.end(name)
                replicas.append(
                    m.DescribedReplica(
                        topic=name.topic,
                        partition=name.partition,
                        role="leader" if leading else "follower",
                        leader_epoch=part.leader_epoch,
                        log_start_offset=0,
                        high_watermark=end,
                        log_end_offset=end,
                        last_stable_offset=end,
                        isr=part.isr,
                        lag_time_max_ms=30_000,
                        min_isr=2,
                        remotes=tuple(
                            m.RemoteReplica(
                                broker_id=node,
                                log_end_offset=end - 1,
                                caught_up_ms_ago=12,
                                in_sync=True,
                                last_fetch_ms_ago=5,
                            )
                            for node in part.replicas
                            if node != self.node_id
                        ),
                    )
                )
        return m.DescribeReplicasResponse(broker_id=self.node_id, replicas=tuple(replicas))

    async def on_ExplainPartition(self, request: m.ExplainPartitionRequest) -> m.ExplainPartitionResponse:
        described = await self.on_DescribeReplicas(m.DescribeReplicasRequest())
        asked = (request.topic, request.partition)
        replica = next((each for each in described.replicas if (each.topic, each.partition) == asked), None)
        return m.ExplainPartitionResponse(
            broker_id=self.node_id, replica=replica, producers=self.producers, producer_count=len(self.producers)
        )

    async def on_DescribeLog(self, request: m.DescribeLogRequest) -> m.DescribeLogResponse:
        name = TopicPartition(request.topic, request.partition)
        part = self._checked_replica(name)
        start, end = self.cluster.log_starts.get(name, 0), self.cluster.end(name)
        offset = start if request.offset == -1 else request.offset
        if not start <= offset <= end:
            raise OffsetOutOfRange(f"{name}: offset {offset} is outside {start}..{end}")
        found = [each for each in self.cluster.batches.get(name, []) if RecordBatch.of(each).next_offset > offset]
        return m.DescribeLogResponse(
            broker_id=self.node_id,
            role="leader" if part.leader == self.node_id else "follower",
            leader_epoch=part.leader_epoch,
            log_start_offset=start,
            high_watermark=end - 1 if end else 0,
            log_end_offset=end,
            synced_end=end,
            segment_count=1,
            size_bytes=sum(map(len, found)),
            epochs=(m.EpochStart(leader_epoch=2, start_offset=0), m.EpochStart(leader_epoch=4, start_offset=1)),
            records=tuple(found),
        )

    def _checked_replica(self, name: TopicPartition) -> PartitionImage:
        part = self.image.partition(name)
        if part is None:
            raise UnknownTopicOrPartition("not here")
        return part

    def _checked(self, name: TopicPartition) -> PartitionImage:
        refusals = self.refuse_parts.get(name)
        if refusals:
            raise refusals.pop(0)
        part = self.image.partition(name)
        if part is None:
            raise UnknownTopicOrPartition("not here")
        if part.leader != self.node_id:
            raise NotLeaderOrFollower("not me")
        return part

    async def on_FindCoordinator(self, request: g.FindCoordinatorRequest) -> g.FindCoordinatorResponse:
        (key,) = request.keys
        return g.FindCoordinatorResponse(
            coordinators=(g.Coordinator(key=key, node_id=1, host="127.0.0.1", port=self.address.port),)
        )

    async def on_OffsetCommit(self, request: g.OffsetCommitRequest) -> g.OffsetCommitResponse:
        reported = []
        for each in request.partitions:
            done = g.PartitionOutcome(topic=each.topic, partition=each.partition)
            refusals = self.refuse_parts.get(TopicPartition(each.topic, each.partition))
            reported.append(_failed(done, refusals.pop(0)) if refusals else done)
        return g.OffsetCommitResponse(partitions=tuple(reported))

    async def on_EndTxn(self, request: t.EndTxnRequest) -> t.EndTxnResponse:
        return t.EndTxnResponse(producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1)

    async def on_Produce(self, request: m.ProduceRequest) -> m.ProduceResponse:
        reported = []
        for item in request.partitions:
            name = TopicPartition(item.topic, item.partition)
            try:
                epoch = self._checked(name).leader_epoch
            except ProtocolError as error:
                reported.append(_failed(m.ProducedPartition(topic=name.topic, partition=name.partition), error))
                continue
            (records,) = item.records
            batch = RecordBatch.of(bytes(records))
            base = self.cluster.end(name)
            data = b"".join(stamped(batch, base_offset=base, leader_epoch=epoch))
            self.cluster.batches.setdefault(name, []).append(data)
            self.cluster.ends[name] = base + batch.record_count
            reported.append(
                m.ProducedPartition(
                    topic=name.topic, partition=name.partition, base_offset=base, leader_epoch=epoch, log_start_offset=0
                )
            )
        self.cluster.news.set()
        return m.ProduceResponse(partitions=tuple(reported))

    async def on_Fetch(self, request: m.FetchRequest) -> m.FetchResponse:
        (item,) = request.partitions
        name = TopicPartition(item.topic, item.partition)
        start, end = self.cluster.log_starts.get(name, 0), self.cluster.end(name)
        reported = m.FetchedPartition(
            topic=name.topic,
            partition=name.partition,
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=start,
            log_end_offset=end,
        )
        try:
            self._checked(name)
            if item.topic_id not in (None, self.cluster.topics[name.topic].topic_id):
                raise InconsistentTopicId(f"{name.topic} does not have the id {item.topic_id}")
            if not start <= item.fetch_offset <= end:
                raise OffsetOutOfRange(f"{name}: offset {item.fetch_offset} is outside {start} to {end}")
        except ProtocolError as error:
            return m.FetchResponse(partitions=(_failed(reported, error),))
        if item.fetch_offset == end and request.max_wait_ms:
            self.cluster.news.clear()
            try:
                async with asyncio.timeout(request.max_wait_ms / 1000):
                    await self.cluster.news.wait()
            except TimeoutError:
                return m.FetchResponse(partitions=(reported,))
            end = self.cluster.end(name)
        found = [
            each for each in self.cluster.batches.get(name, []) if RecordBatch.of(each).next_offset > item.fetch_offset
        ]
        reported = structs.replace(
            reported, high_watermark=end, last_stable_offset=end, log_end_offset=end, records=tuple(found)
        )
        return m.FetchResponse(partitions=(reported,))

    async def on_OffsetForLeaderEpoch(self, request: m.OffsetForLeaderEpochRequest) -> m.OffsetForLeaderEpochResponse:
        (item,) = request.partitions
        name = TopicPartition(item.topic, item.partition)
        self._checked(name)
        batches = map(RecordBatch.of, self.cluster.batches.get(name, []))
        end = max((each.next_offset for each in batches if each.leader_epoch <= item.leader_epoch), default=0)
        answer = m.EpochAnswer(**name._asdict(), leader_epoch=item.leader_epoch, end_offset=end)
        return m.OffsetForLeaderEpochResponse(partitions=(answer,))

    async def on_ListOffsets(self, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
        listed = []
        for item in request.partitions:
            name = TopicPartition(item.topic, item.partition)
            self._checked(name)
            offset = self.cluster.log_starts.get(name, 0) if item.timestamp == m.EARLIEST else self.cluster.end(name)
            listed.append(m.ListedOffset(topic=name.topic, partition=name.partition, offset=offset))
        return m.ListOffsetsResponse(partitions=tuple(listed))

    async def on_DeleteRecords(self, request: m.DeleteRecordsRequest) -> m.DeleteRecordsResponse:
        (item,) = request.partitions
        name = TopicPartition(item.topic, item.partition)
        self._checked(name)
        self.cluster.log_starts[name] = item.offset
        deleted = m.DeletedRecords(topic=name.topic, partition=name.partition, low_watermark=item.offset)
        return m.DeleteRecordsResponse(partitions=(deleted,))


def _failed(answer: Any, error: ProtocolError) -> Any:
    return structs.replace(answer, error_code=error.code, error_message=error.message, outcome=error.outcome)
