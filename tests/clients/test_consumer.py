"""The consumer against a scripted cluster in virtual time (S27, S35, S36, KIP-320)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minikafka.client.caller import Caller
from minikafka.client.consumer import Consumer
from minikafka.client.group_offsets import GroupOffsets, Membership, Spot
from minikafka.client.metadata import ABSENT_S, Metadata
from minikafka.client.positions import Positions
from minikafka.client.producer import Producer
from minikafka.client.routing import Coordinator
from minikafka.client.settings import ConsumerConfig, ProducerConfig
from minikafka.client.structs import CommitFailed, LogTruncation, NoOffsetForPartition, OffsetAndTimestamp, WakeUp
from minikafka.errors import (
    NOT_WRITTEN,
    UNKNOWN,
    CorruptMessage,
    InvalidConfig,
    InvalidGroupId,
    InvalidRequest,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    ProtocolError,
    RequestTimedOut,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from minikafka.types import NO_NODE, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from tests.clients.fake_cluster import (
    LOSE_REQUEST,
    RESET_ANSWER,
    RESET_REQUEST,
    UNREACHABLE,
    FakeCluster,
    FakePartition,
    once,
    play,
)

BOOTSTRAP = "broker-1:9092,broker-2:9092"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def consumer(cluster: FakeCluster, *topics: str, **settings: Any) -> Consumer:
    given = {"bootstrap_servers": BOOTSTRAP, "auto_offset_reset": "earliest"} | settings
    return Consumer(ConsumerConfig(**given), cluster.world, topics)


async def fill(cluster: FakeCluster, topic: str, count: int, *, partition: int = 0, per_batch: int = 5) -> None:
    async with Producer(ProducerConfig(bootstrap_servers=BOOTSTRAP, linger_ms=0), cluster.world) as producer:
        for start in range(0, count, per_batch):
            rows = [(None, b"%d" % value, None, 1000 + value) for value in range(start, min(start + per_batch, count))]
            for part in await producer.send_many(topic, rows, partition=partition):
                await part.future


def test_records_come_in_order_with_all_their_members():
    """S3, S28: offset order per partition; every field as aiokafka has it."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        async with Producer(ProducerConfig(bootstrap_servers=BOOTSTRAP), cluster.world) as producer:
            await producer.send_and_wait("t", b"value", b"key", timestamp_ms=77, headers=[("a", b"1")])
        await fill(cluster, "t", 40)
        async with consumer(cluster, "t") as reading:
            first = await reading.getone()
            assert (first.topic, first.partition, first.offset, first.timestamp, first.timestamp_type) == (
                "t",
                0,
                0,
                77,
                0,
            )
            assert (first.key, first.value, list(first.headers)) == (b"key", b"value", [("a", b"1")])
            assert (first.serialized_key_size, first.serialized_value_size, first.checksum) == (3, 5, None)
            values = []
            async for record in reading:
                values.append(int(record.value))
                if len(values) == 40:
                    break
            assert values == list(range(40))
            assert await reading.position(T0) == 41
            assert (reading.highwater(T0), reading.last_stable_offset(T0)) == (41, 41)

    play(story)


def test_a_parked_fetch_is_woken_by_a_record():
    """S12: the long poll answers as soon as there is something, not at its end."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        async with consumer(cluster, "t", auto_offset_reset="latest", fetch_max_wait_ms=5000) as reading:
            assert await reading.position(T0) == 0
            waiting = asyncio.ensure_future(reading.getone())
            await asyncio.sleep(2.0)
            before = cluster.now()
            await fill(cluster, "t", 1)
            assert (await waiting).value == b"0"
            assert cluster.now() - before < 0.1
            assert await reading.getmany(timeout_ms=300) == {}

    play(story)


def test_one_fetch_covers_all_partitions_of_a_broker():
    """S27: partitions led by one broker share its long poll."""

    async def story():
        cluster = FakeCluster()
        for partition in cluster.topic("t", 4):
            partition.leader = 1
        async with consumer(cluster, "t") as reading:
            await reading.getmany(timeout_ms=2000)
            fetches = cluster.named("Fetch")
            assert {len(fetch.partitions) for fetch in fetches} == {4}
            assert len(fetches) <= 5

    play(story)


def test_a_poll_is_bounded_by_records():
    """S36: max.poll.records, and getmany's own limit."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        await fill(cluster, "t", 30)
        async with consumer(cluster, "t", max_poll_records=8) as reading:
            polls = []
            while sum(polls) < 30:
                polls.append(sum(map(len, (await reading.getmany(timeout_ms=1000)).values())))
            assert polls == [8, 8, 8, 6]
            await reading.seek_to_beginning()
            assert [r.offset for r in (await reading.getmany(timeout_ms=1000, max_records=3))[T0]] == [0, 1, 2]

    play(story)


def test_seek_and_offsets():
    """seek goes anywhere, also into the middle of a batch; the offset calls do not move the position."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        await fill(cluster, "t", 20)
        partition.start = 5
        async with consumer(cluster) as reading:
            reading.assign([T0])
            reading.seek(T0, 12)
            assert (await reading.getone()).value == b"12"
            assert await reading.beginning_offsets([T0]) == {T0: 5}
            assert await reading.end_offsets([T0]) == {T0: 20}
            assert await reading.offsets_for_times({T0: 1007}) == {T0: OffsetAndTimestamp(7, 1007, 0)}
            assert await reading.offsets_for_times({T0: 9999}) == {T0: None}
            assert await reading.position(T0) == 13
            await reading.seek_to_end(T0)
            assert await reading.position(T0) == 20
            await reading.seek_to_beginning()
            assert (await reading.getone()).value == b"5"
            with pytest.raises(InvalidRequest):
                reading.seek(T0, -1)
            with pytest.raises(InvalidRequest, match="t-1 is not assigned"):
                reading.seek(T1, 0)

    play(story)


def test_reset_policies():
    """S35: earliest begins at the log start, latest behind the last record, none raises."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        await fill(cluster, "t", 10)
        partition.start = 3
        async with consumer(cluster, "t", auto_offset_reset="earliest") as reading:
            assert (await reading.getone()).offset == 3
        async with consumer(cluster, "t", auto_offset_reset="latest") as reading:
            assert await reading.position(T0) == 10
        async with consumer(cluster, "t", auto_offset_reset="none") as reading:
            with pytest.raises(NoOffsetForPartition):
                await reading.getone()
            with pytest.raises(NoOffsetForPartition):
                await reading.position(T0)
            reading.seek(T0, 4)
            assert (await reading.getone()).offset == 4

    play(story)


def test_an_offset_that_was_deleted():
    """S35: OFFSET_OUT_OF_RANGE resets by policy, or says which offset it was."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        await fill(cluster, "t", 10)
        partition.start = 6
        async with consumer(cluster) as reading:
            reading.assign([T0])
            reading.seek(T0, 2)
            assert (await reading.getone()).offset == 6
        async with consumer(cluster, auto_offset_reset="none") as reading:
            reading.assign([T0])
            reading.seek(T0, 2)
            with pytest.raises(OffsetOutOfRange, match="offset 2 is out of range"):
                await reading.getone()
            reading.seek(T0, 6)
            assert (await reading.getone()).offset == 6

    play(story)


@pytest.mark.parametrize("action", [UNREACHABLE, RESET_ANSWER, LOSE_REQUEST])
def test_lost_fetches_are_repeated(action: str):
    """Reading has no side effect: a lost fetch, reset or metadata answer is asked for again; nothing is skipped."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        await fill(cluster, "t", 25)
        for api in ("Fetch", "ListOffsets", "Metadata"):
            cluster.faults.append(once(api, action, count=2))
        async with consumer(cluster, "t", request_timeout_ms=1000) as reading:
            values = [int((await reading.getone()).value) for _ in range(25)]
        assert values == list(range(25))

    play(story)


def test_the_leader_moves():
    """S27, KIP-320: NOT_LEADER refreshes metadata, the new leader validates the position, reading goes on."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        await fill(cluster, "t", 10)
        async with consumer(cluster, "t") as reading:
            for expected in range(10):
                assert (await reading.getone()).offset == expected
            partition.elect(2)
            await fill(cluster, "t", 5)
            assert [(await reading.getone()).offset for _ in range(5)] == [10, 11, 12, 13, 14]
        assert len(cluster.named("OffsetForLeaderEpoch")) >= 1
        assert "position_validated" in cluster.kinds()

    play(story)


def test_a_leader_of_an_older_epoch_is_a_reason_to_request_metadata():
    """S27 (seed 938001521): the topic may have been created again; its epochs begin with 0, and metadata has its id."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        await fill(cluster, "t", 10)
        requested: list[int] = []

        def refused(_: m.OffsetForLeaderEpochRequest) -> m.OffsetForLeaderEpochResponse:
            requested.append(len(cluster.named("Metadata")))
            answer = m.EpochAnswer(topic="t", partition=0, error_code=UnknownLeaderEpoch.code)
            return m.OffsetForLeaderEpochResponse(partitions=(answer,))

        async with consumer(cluster, "t") as reading:
            for expected in range(10):
                assert (await reading.getone()).offset == expected
            cluster.faults.append(once("OffsetForLeaderEpoch", refused, count=3))
            partition.elect(2)
            await fill(cluster, "t", 5)
            assert [(await reading.getone()).offset for _ in range(5)] == [10, 11, 12, 13, 14]
        assert len(requested) == 3
        assert requested[0] < requested[1] < requested[2]

    play(story)


def test_a_frozen_leader_is_left_once_another_one_is_elected():
    """SIGSTOP: the fetch in flight is given up when metadata names the successor, not at the request timeout."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        await fill(cluster, "t", 3)
        async with consumer(cluster, "t") as reading:
            for expected in range(3):
                assert (await reading.getone()).offset == expected
            await asyncio.sleep(2.0)
            cluster.stopped.add(1)
            await asyncio.sleep(4.0)
            partition.elect(2)
            await fill(cluster, "t", 1)
            elected = cluster.now()
            assert (await reading.getone()).offset == 3
            assert cluster.now() - elected < 1.5

    play(story)


def test_an_unclean_election_is_noticed():
    """KIP-320: records that were read are gone: with none an error with both offsets, else back to the common end."""

    async def story():
        for policy in ("none", "latest"):
            cluster = FakeCluster()
            (partition,) = cluster.topic("t")
            await fill(cluster, "t", 10)
            async with consumer(cluster, auto_offset_reset=policy) as reading:
                reading.assign([T0])
                reading.seek(T0, 0)
                for _ in range(10):
                    await reading.getone()
                partition.elect(2, lose=1)
                if policy == "none":
                    with pytest.raises(LogTruncation) as caught:
                        await reading.getone()
                    assert (caught.value.facts["offset"], caught.value.facts["end_offset"]) == (10, 5)
                else:
                    await fill(cluster, "t", 3)
                    assert (await reading.getone()).offset == 5

    play(story)


def test_a_corrupt_batch_can_be_passed():
    """CORRUPT_MESSAGE names the offsets; reading goes on behind it after a seek."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        await fill(cluster, "t", 15)
        bad = bytearray(partition.batches[1])
        bad[-1] ^= 1
        partition.batches[1] = bytes(bad)
        async with consumer(cluster, "t") as reading:
            assert [(await reading.getone()).offset for _ in range(5)] == [0, 1, 2, 3, 4]
            with pytest.raises(CorruptMessage) as caught:
                await reading.getone()
            assert caught.value.facts["offset"] == 5
            reading.seek(T0, int(str(caught.value.facts["next_offset"])))
            assert (await reading.getone()).offset == 10

    play(story)


@pytest.mark.parametrize("fetch_bytes", [100, 1_048_576])
@pytest.mark.parametrize("pause_s", [0.0, 0.01, 0.7])
def test_a_corrupt_batch_is_fetched_again_when_it_was_told(fetch_bytes: int, pause_s: float):
    """Another replica, or a disk that is read anew, may have it whole: who asks on without a seek waited for ever."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        await fill(cluster, "t", 15)
        whole = partition.batches[1]
        partition.batches[1] = whole[:-1] + bytes([whole[-1] ^ 1])
        async with consumer(cluster, "t", max_partition_fetch_bytes=fetch_bytes) as reading:
            assert [(await reading.getone()).offset for _ in range(5)] == [0, 1, 2, 3, 4]
            await asyncio.sleep(pause_s)  # what lies behind is fetched ahead, or is not
            for _ in range(2):
                with pytest.raises(CorruptMessage):
                    await asyncio.wait_for(reading.getone(), 10)
            partition.batches[1] = whole
            assert (await asyncio.wait_for(reading.getone(), 10)).offset == 5

    play(story)


def coordinated(cluster: FakeCluster, committed: int) -> None:
    """A group's coordinator, which has committed the same offset everywhere."""

    def answer(_node: int, api: str, request: Any) -> Any:
        if api == "FindCoordinator":
            found = g.Coordinator(key=request.keys[0], node_id=1, host="broker-1", port=9092)
            return g.FindCoordinatorResponse(coordinators=(found,))
        if api == "OffsetFetch":
            offsets = (
                g.FetchedOffset(topic=each.topic, partition=each.partition, offset=committed)
                for each in request.partitions
            )
            return g.OffsetFetchResponse(partitions=tuple(offsets))
        return None

    cluster.faults.append(answer)


@pytest.mark.parametrize("waits_s", [0.0, 1.0])
def test_a_seek_to_the_beginning_beats_what_the_group_has_committed(waits_s: float):
    """S35: `assign` looks the committed offset up meanwhile; whichever answer comes first, the seek was asked for."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        await fill(cluster, "t", 15)
        coordinated(cluster, 7)
        cluster.faults.append(once("ListOffsets", RESET_REQUEST, count=3))
        async with consumer(cluster, group_id="g", enable_auto_commit=False) as reading:
            await asyncio.sleep(waits_s)
            reading.assign([T0])
            await reading.seek_to_beginning(T0)
            assert (await reading.position(T0), (await reading.getone()).offset) == (0, 0)
            reading.assign([])
            reading.assign([T0])
            await reading.seek_to_end(T0)
            assert await reading.position(T0) == 15
            reading.assign([])
            reading.assign([T0])
            assert (await reading.getone()).offset == 7

    play(story)


@pytest.mark.parametrize(
    ("first", "then", "error", "outcome"),
    [
        (RESET_ANSWER, 25, CommitFailed, UNKNOWN),
        (RESET_REQUEST, 12, OffsetMetadataTooLarge, UNKNOWN),
        (g.OffsetCommitResponse(error_code=16, outcome=UNKNOWN), 22, CommitFailed, UNKNOWN),
        (g.OffsetCommitResponse(error_code=16, outcome=NOT_WRITTEN), 22, CommitFailed, NOT_WRITTEN),
        (UNREACHABLE, 22, CommitFailed, NOT_WRITTEN),
        (RESET_ANSWER, 16, RequestTimedOut, UNKNOWN),
    ],
)
def test_a_commit_that_may_have_been_written_is_never_reported_as_not_written(
    first: Any, then: int, error: type[ProtocolError], outcome: str
):
    """Issue 13: the refusal of a retry was passed on with its own outcome, and the commit had been written."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        refusal = g.OffsetCommitResponse(error_code=then, outcome=NOT_WRITTEN)
        cluster.faults.append(once("OffsetCommit", first))
        cluster.faults.append(once("OffsetCommit", refusal, count=1000))
        coordinated(cluster, 0)
        cluster._on_OffsetCommit = lambda _node, _request: g.OffsetCommitResponse()  # type: ignore[attr-defined]
        async with consumer(cluster, group_id="g", enable_auto_commit=False, default_api_timeout_ms=5000) as reading:
            reading.assign([T0])
            with pytest.raises(error) as caught:
                await reading.commit({T0: 7})
        assert caught.value.outcome == outcome
        if isinstance(caught.value, CommitFailed):
            assert ("nothing was committed" in caught.value.message) == (outcome == NOT_WRITTEN)

    play(story)


@pytest.mark.parametrize("moves", [True, False])
def test_join_held_by_a_lost_coordinator_is_sent_to_its_successor(moves: bool):
    """A consumer that was started while its coordinator was cut off waited five minutes (rebalance_timeout_ms) for the
    response to its first request. A coordinator that has not moved receives one request only.
    """

    async def story():
        cluster = FakeCluster()
        loop = asyncio.get_running_loop()
        joined = g.JoinGroupResponse(generation_id=1, member_id="m")

        def find(_node: int, request: Any) -> Any:
            node = 2 if moves and loop.time() >= 9.0 else 1
            found = g.Coordinator(key=request.keys[0], node_id=node, host=f"broker-{node}", port=9092)
            return g.FindCoordinatorResponse(coordinators=(found,))

        async def join(node: int, _request: Any) -> Any:
            await asyncio.sleep(200.0 if node == 1 else 0.0)
            return joined

        cluster._on_FindCoordinator, cluster._on_JoinGroup = find, join  # type: ignore[attr-defined]
        config = ConsumerConfig(bootstrap_servers=BOOTSTRAP, group_id="g")
        metadata = Metadata(config, cluster.world, Caller(cluster.world))
        await metadata.start(10.0)
        request = g.JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=300_000, protocols=()
        )
        coordinator = Coordinator("g", config, cluster.world, metadata)
        assert await coordinator.ask(request, deadline=600.0, patience_ms=305_000) == joined
        assert len(cluster.named("JoinGroup")) == (2 if moves else 1)
        assert (loop.time() < 15.0) == moves
        await metadata.stop()

    play(story)


@pytest.mark.parametrize(
    ("first", "outcome"), [(RESET_ANSWER, UNKNOWN), (RESET_REQUEST, UNKNOWN), (UNREACHABLE, NOT_WRITTEN)]
)
def test_a_commit_is_not_repeated_once_its_member_has_joined_again(first: Any, outcome: str):
    """A coordinator that takes over before a generation's assignment is committed gives the same number out again.

    The member has the same id in it, so that only the member knows that its old commit is not of this generation.
    """

    async def story():
        cluster = FakeCluster()
        memberships = [Membership("m", 4, None, 1)]
        coordinated(cluster, 0)

        def lost(_node: int, api: str, _request: Any) -> Any:
            if api != "OffsetCommit":
                return None
            memberships[:] = [Membership("m", 4, None, 2)]
            return first

        cluster.faults.append(lost)
        cluster._on_OffsetCommit = lambda _node, _request: g.OffsetCommitResponse()  # type: ignore[attr-defined]
        config = ConsumerConfig(bootstrap_servers=BOOTSTRAP, group_id="g")
        metadata = Metadata(config, cluster.world, Caller(cluster.world))
        await metadata.start(10.0)
        coordinator = Coordinator("g", config, cluster.world, metadata)
        offsets = GroupOffsets(
            config, cluster.world, coordinator, Positions(reset_policy="earliest"), lambda: memberships[0]
        )
        with pytest.raises(CommitFailed) as caught:
            await offsets.commit({T0: Spot(7)})
        assert caught.value.outcome == outcome
        assert len(cluster.named("OffsetCommit")) == 1
        await metadata.stop()

    play(story)


def test_a_commit_that_only_some_partitions_refuse_is_not_reported_as_not_written():
    """The first partition's error carried its own outcome, as if nothing had been committed."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t", 2)
        parts = (
            g.PartitionOutcome(topic="t", partition=0),
            g.PartitionOutcome(topic="t", partition=1, error_code=12, outcome=NOT_WRITTEN),
        )
        cluster.faults.append(once("OffsetCommit", g.OffsetCommitResponse(partitions=parts)))
        coordinated(cluster, 0)
        async with consumer(cluster, group_id="g", enable_auto_commit=False) as reading:
            reading.assign([T0, TopicPartition("t", 1)])
            with pytest.raises(OffsetMetadataTooLarge) as caught:
                await reading.commit({T0: 7, TopicPartition("t", 1): 7})
        assert caught.value.outcome == UNKNOWN

    play(story)


def test_an_application_that_fails_after_a_commit_does_not_take_it_back():
    """With ``enable_auto_commit``: at its end, what it had done with by its last poll was committed behind that."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        await fill(cluster, "t", 15)
        coordinated(cluster, 7)
        cluster._on_OffsetCommit = lambda _node, _request: g.OffsetCommitResponse()  # type: ignore[attr-defined]
        reading = consumer(cluster, group_id="g")
        with pytest.raises(LookupError):
            async with reading:
                reading.assign([T0])
                for _ in range(3):
                    await asyncio.wait_for(reading.getone(), 10)
                await reading.commit()
                raise LookupError
        committed = [each.partitions[0].offset for each in cluster.named("OffsetCommit")]
        assert committed == [10]

    play(story)


@pytest.mark.parametrize("before_start", [True, False])
def test_a_group_without_a_coordinator_is_told_and_looked_for_on(before_start: bool):
    """S32, S35: whoever caught the error and asked on got nothing any more, however well the coordinator was again."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        await fill(cluster, "t", 15)
        cluster.faults.append(lambda _node, api, _: UNREACHABLE if api == "FindCoordinator" and down else None)
        coordinated(cluster, 7)
        down = True
        reading = consumer(cluster, group_id="g", enable_auto_commit=False)
        if before_start:
            reading.assign([T0])
        async with reading:
            if not before_start:
                reading.assign([T0])
            for _ in range(2):
                with pytest.raises(RequestTimedOut, match="no coordinator answered"):
                    await asyncio.wait_for(reading.getone(), 100)
            down = False
            assert (await asyncio.wait_for(reading.getone(), 10)).offset == 7

    play(story)


def test_a_member_reports_once_that_there_is_no_controller():
    """`consume --group` without a quorum named only refused connections: the member looked for a coordinator alone."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        cluster.controller = NO_NODE
        cluster.faults.append(lambda _node, api, _: UNREACHABLE if api == "FindCoordinator" else None)
        reading = consumer(cluster, "t", group_id="g")
        async with reading:
            assert await reading.getmany(timeout_ms=15_000) == {}
        assert cluster.kinds().count("controller_missing") == 1

    play(story)


def test_a_topic_that_is_new_to_a_running_consumer_is_asked_about_at_once():
    """S27: as in Kafka's clients (requestUpdateForNewTopics), the pause between two requests is for old topics."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        cluster.topic("u")
        await fill(cluster, "t", 5)
        await fill(cluster, "u", 5)
        async with consumer(cluster) as reading:
            for name in ("t", "u"):
                await asyncio.sleep(0.05)
                before = cluster.now()
                reading.unsubscribe()
                reading.subscribe([name])
                assert (await reading.getone()).topic == name
                assert cluster.now() - before < 0.02

    play(story)


def test_who_waits_for_metadata_is_not_content_with_an_earlier_question():
    """S27: the answer that is under way says nothing of a topic that is followed since (Kafka: partial updates)."""

    async def story():
        cluster = FakeCluster()
        for name in ("t", "u"):
            cluster.topic(name)
        metadata = Metadata(ConsumerConfig(bootstrap_servers=BOOTSTRAP), cluster.world, Caller(cluster.world))
        await metadata.start(10)
        await asyncio.sleep(1)
        asked = len(cluster.named("Metadata"))
        metadata.follow("t")
        while len(cluster.named("Metadata")) == asked:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0)
        metadata.follow("u")
        await metadata.refreshed(cluster.now() + 10)
        assert [metadata.view.partition_count(name) for name in ("t", "u")] == [1, 1]
        waiting = asyncio.ensure_future(metadata.refreshed(cluster.now() + 10))
        await asyncio.sleep(0)
        await metadata.stop()
        with pytest.raises(RequestTimedOut, match="stopped"):
            await waiting

    play(story)


def test_pause_and_resume():
    """A paused partition is not handed out; the others are; resume goes on where it was."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t", 2)
        await fill(cluster, "t", 3, partition=0)
        await fill(cluster, "t", 3, partition=1)
        async with consumer(cluster, "t") as reading:
            await reading.position(T0)
            reading.pause(T0)
            assert reading.paused() == {T0}
            seen = [(await reading.getone()).partition for _ in range(3)]
            assert seen == [1, 1, 1]
            assert await reading.getmany(timeout_ms=500) == {}
            waiting = asyncio.ensure_future(reading.getone(T0))
            await asyncio.sleep(0.1)
            reading.resume(T0)
            assert (await waiting).offset == 0

    play(story)


def test_subscribe_gives_all_partitions_and_new_ones():
    """Without a group a subscription is everything, and grows with metadata (S27)."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 2)
        async with consumer(cluster, metadata_max_age_ms=1000) as reading:
            reading.subscribe(["t", "later"])
            assert reading.subscription() == {"t", "later"}
            await asyncio.sleep(0.2)
            assert reading.assignment() == {T0, T1}
            partitions.append(FakePartition(leader=2))
            cluster.topic("later")
            await asyncio.sleep(1.5)
            assert reading.assignment() == {T0, T1, TopicPartition("t", 2), TopicPartition("later", 0)}
            assert reading.partitions_for_topic("t") == {0, 1, 2}
            assert reading.partitions_for_topic("no") is None
            assert await reading.topics() == {"t", "later"}
            with pytest.raises(InvalidRequest, match="unsubscribe"):
                reading.assign([T0])
            reading.unsubscribe()
            assert reading.assignment() == frozenset()
            reading.assign([T0])
            with pytest.raises(InvalidRequest, match="unsubscribe"):
                reading.subscribe(["t"])

    play(story)


def test_a_hungry_partition_does_not_wait_for_a_parked_fetch():
    """A full buffer leaves its broker's long poll; when it is read the partition is fetched at once, beside it."""

    async def story():
        cluster = FakeCluster()
        for partition in cluster.topic("t", 2):
            partition.leader = 1
        await fill(cluster, "t", 200, per_batch=10)
        async with consumer(cluster, "t", fetch_max_wait_ms=5000, max_partition_fetch_bytes=2000) as reading:
            await reading.getone()
            await asyncio.sleep(1.0)
            before = cluster.now()
            for _ in range(199):
                await reading.getone()
            assert cluster.now() - before < 1.0
        assert max(len(fetch.partitions) for fetch in cluster.named("Fetch")) == 2

    play(story)


def test_offsets_of_a_partition_without_a_leader():
    """Bounded: default_api_timeout_ms, and the error says which partition."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        partition.leader = -1
        async with consumer(cluster, default_api_timeout_ms=2000) as reading:
            with pytest.raises(RequestTimedOut, match="t-0"):
                await reading.end_offsets([T0])
            with pytest.raises(RequestTimedOut):
                reading.assign([T0])
                await reading.position(T0)

    play(story)


def test_stop_ends_those_who_wait():
    """async for ends, getone raises, nothing hangs; before start nothing works."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        reading = consumer(cluster, "t")
        with pytest.raises(InvalidRequest, match="not started"):
            await reading.getone()
        await reading.start()

        async def read_all() -> int:
            return len([record async for record in reading])

        iterating = asyncio.ensure_future(read_all())
        waiting = asyncio.ensure_future(reading.getone())
        await asyncio.sleep(1.0)
        await reading.stop()
        assert await iterating == 0
        with pytest.raises(InvalidRequest, match="was stopped"):
            await waiting

    play(story)


def test_settings_of_groups_are_checked():
    """S29, S30: what cannot work is refused by name before anything is sent."""
    with pytest.raises(InvalidGroupId, match="is empty"):
        ConsumerConfig(group_id="")
    with pytest.raises(InvalidConfig, match="group_instance_id needs a group_id"):
        ConsumerConfig(group_instance_id="i")
    with pytest.raises(InvalidConfig, match="heartbeat_interval_ms=10000: less than session_timeout_ms"):
        ConsumerConfig(group_id="g", heartbeat_interval_ms=10_000)
    with pytest.raises(InvalidConfig, match="one of range, roundrobin, sticky, cooperative-sticky"):
        ConsumerConfig(group_id="g", partition_assignment_strategy="rang")
    with pytest.raises(InvalidConfig, match="each once"):
        ConsumerConfig(group_id="g", partition_assignment_strategy=("range", "range"))
    assert [each.name for each in ConsumerConfig(group_id="g").assignors()] == ["range", "cooperative-sticky"]
    with pytest.raises(InvalidConfig, match="auto_offset_reset"):
        ConsumerConfig(auto_offset_reset="first")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="group_id=5: a str is needed, such as group_id='5'"):
        ConsumerConfig(group_id=5)  # type: ignore[arg-type]
    for servers in (9092, [9092]):
        with pytest.raises(InvalidConfig, match=r"bootstrap_servers=\[?9092\]?: HOST:PORT, or a list of these"):
            ConsumerConfig(bootstrap_servers=servers)  # type: ignore[arg-type]


def test_a_consumer_without_a_choice_says_so():
    """As in Kafka's client (IllegalStateException): getone() waited for ever, in silence."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        await fill(cluster, "t", 1)
        async with consumer(cluster) as reading:
            with pytest.raises(InvalidRequest, match=r"call subscribe\(\) or assign\(\) first"):
                await reading.getone()
            assert await reading.getmany(timeout_ms=10) == {}
            reading.subscribe(["t"])
            assert (await asyncio.wait_for(reading.getone(), 10)).offset == 0

    play(story)


def test_producer_and_consumer_through_a_storm():
    """S3, KIP-98, KIP-320: with elections and lost calls a reader sees each record once, in order, without a gap."""

    async def story():
        cluster = FakeCluster(seed=5)
        partitions = cluster.topic("t", 2)
        calm = False

        def trouble(_node: int, api: str, _request: Any) -> Any:
            if (
                not calm
                and api in ("Produce", "Fetch", "OffsetForLeaderEpoch", "Metadata")
                and cluster.random.random() < 0.15
            ):
                return cluster.random.choice([RESET_ANSWER, UNREACHABLE])
            return None

        seen: dict[int, list[int]] = {0: [], 1: []}
        async with (
            consumer(cluster, "t") as reading,
            Producer(ProducerConfig(bootstrap_servers=BOOTSTRAP, linger_ms=0), cluster.world) as producer,
        ):
            cluster.faults.append(trouble)

            async def produce() -> None:
                for index in range(400):
                    await producer.send("t", b"%d" % index, partition=index % 2)
                    await asyncio.sleep(0.01)
                    if index % 40 == 20:
                        partitions[index // 40 % 2].elect(1 + cluster.random.randrange(3))

            writing = asyncio.ensure_future(produce())
            while sum(map(len, seen.values())) < 400:
                record = await reading.getone()
                assert record.offset == len(seen[record.partition])
                seen[record.partition].append(int(record.value))
            calm = True
            await writing
        assert seen == {0: list(range(0, 400, 2)), 1: list(range(1, 400, 2))}

    play(story)


def test_the_position_in_a_partition_that_does_not_exist_is_an_error_once_metadata_has_confirmed_it():
    """It waited default_api_timeout_ms (60 s) and said only that the position could not be looked up."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t", 3)
        missing = TopicPartition("t", 7)
        async with consumer(cluster) as reading:
            reading.assign([missing])
            for look_up in (reading.position, reading.seek_to_end, lambda each: reading.end_offsets([each])):
                before = cluster.now()
                with pytest.raises(UnknownTopicOrPartition, match="t has 3 partitions, numbers 0 to 2; there is no 7"):
                    await look_up(missing)
                assert ABSENT_S <= cluster.now() - before < ABSENT_S + 2.0

    play(story)


def committing(cluster: FakeCluster) -> list[int]:
    """A group's coordinator, which has committed nothing yet; the offsets that it is given, in order."""
    given: list[int] = []

    def commit(_node: int, request: Any) -> Any:
        given.extend(each.offset for each in request.partitions)
        return g.OffsetCommitResponse(
            partitions=tuple(
                g.PartitionOutcome(topic=each.topic, partition=each.partition) for each in request.partitions
            )
        )

    coordinated(cluster, -1)
    cluster._on_OffsetCommit = commit  # type: ignore[attr-defined]
    return given


@pytest.mark.parametrize("enabled", [True, False])
def test_a_consumer_commits_by_itself_only_if_it_is_configured_to(enabled: bool):
    """S34: with each poll after the interval what was processed before it, and at the end all that was returned."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        await fill(cluster, "t", 10)
        given = committing(cluster)
        settings = {"enable_auto_commit": enabled, "auto_commit_interval_ms": 100}
        async with consumer(cluster, group_id="g", **settings) as reading:
            reading.assign([T0])
            for _ in range(3):
                await reading.getone()
                await asyncio.sleep(0.2)
        assert given == ([1, 2, 3] if enabled else [])

    play(story)


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_record_in_work_when_the_application_fails_is_not_committed(one_by_one: bool, fails: bool):
    """S34: at least once. `async with` commits the records before it at the end, and a restart reads this one again."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        await fill(cluster, "t", 10)
        given = committing(cluster)

        async def work(reading: Consumer) -> None:
            for at in range(2):
                found = (
                    [await reading.getone()]
                    if one_by_one
                    else (await reading.getmany(timeout_ms=1000, max_records=3))[T0]
                )
                assert found
                if at and fails:
                    raise RuntimeError(found)

        async def application() -> None:
            async with consumer(cluster, group_id="g", auto_commit_interval_ms=600_000) as reading:
                reading.assign([T0])
                await work(reading)

        if fails:
            with pytest.raises(RuntimeError):
                await application()
        else:
            await application()
        assert given == [(1 if one_by_one else 3) * (1 if fails else 2)]

    play(story)


def test_a_wakeup_ends_a_poll_and_no_other_call():
    """A commit raised WakeUp and committed nothing, though only getone and getmany were to be woken."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        await fill(cluster, "t", 10)
        given = committing(cluster)
        async with consumer(cluster, group_id="g", enable_auto_commit=False) as reading:
            reading.assign([T0])
            assert (await reading.getone()).offset == 0
            reading.wakeup()
            await reading.commit()
            assert given == [1]
            assert await reading.position(T0) == 1
            assert await reading.end_offsets([T0]) == {T0: 10}
            await reading.seek_to_beginning(T0)
            with pytest.raises(WakeUp):
                await reading.getone()
            waiting = asyncio.ensure_future(reading.getmany(timeout_ms=60_000))
            assert [each.offset for each in (await waiting)[T0]] == list(range(10))
            waiting = asyncio.ensure_future(reading.getmany(timeout_ms=60_000))
            await asyncio.sleep(1.0)
            reading.wakeup()
            with pytest.raises(WakeUp):
                await waiting

    play(story)
