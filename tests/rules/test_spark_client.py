"""How the Spark source asks brokers and reads a range, against brokers that answer by script (S39; SPARK 5)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec import structs

from minikafka.blocking import brokers as client
from minikafka.blocking.brokers import Brokers, BrokersUnreachable
from minikafka.blocking.reading import (
    LogTruncated,
    NotYetCommitted,
    OffsetRange,
    PartitionVanished,
    RangeReader,
    RetentionPassedPosition,
    TopicRecreated,
)
from minikafka.errors import (
    NOT_WRITTEN,
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NetworkException,
    NotController,
    NotCoordinator,
    SaslAuthenticationFailed,
    UnknownMemberId,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from minikafka.spark import places
from minikafka.spark.options import ByGroup, Selection, parse_source
from minikafka.spark.places import CommitRefused, Group, NothingCommitted, NothingToRead, Position, StreamOffset
from minikafka.types import Address, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.codec import encode_response
from minikafka.wire.records import Record, build_batch

A0 = TopicPartition("a", 0)
NODES = {1: Address("127.0.0.1", 9001), 2: Address("127.0.0.1", 9002)}


def metadata(offset, topics=("a",), *, controller=1, cluster="c", leader=1, epoch=3, topic_id="x"):
    """What a broker that has applied the metadata up to ``offset`` answers."""
    return m.MetadataResponse(
        cluster_id=cluster,
        controller_id=controller,
        metadata_offset=offset,
        brokers=tuple(m.MetadataBroker(node_id=node, host=at.host, port=at.port) for node, at in NODES.items()),
        topics=tuple(
            m.MetadataTopic(
                name=name,
                topic_id=topic_id,
                partitions=(
                    m.MetadataPartition(
                        partition=0, leader_id=leader, leader_epoch=epoch, replica_nodes=(1, 2), isr_nodes=(1, 2)
                    ),
                ),
            )
            for name in topics
        ),
    )


@pytest.fixture
def script(monkeypatch):
    """Broker -> API -> what it answers, or raises; every call is kept."""
    answers = {1: {}, 2: {}}
    nodes = {address: node for node, address in NODES.items()}

    def call(address, request, **given):
        node, api = nodes[address], type(request).__name__.removesuffix("Request")
        asked.append((node, api))
        patience.append(given.get("timeout_s"))
        answer = answers[node].get(api, NetworkException("down"))
        answer = answer(request) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    asked, patience = [], []
    monkeypatch.setattr(client, "call", call)
    monkeypatch.setattr(client.time, "sleep", lambda _: None)
    answers["asked"], answers["patience_s"] = asked, patience
    return answers


def brokers(timeout_s=0.05):
    return Brokers(list(NODES.values()), api_timeout_s=timeout_s)


def test_older_metadata_is_no_answer(script):
    """A broker that lags, or was cut off, would lead back to old leaders: the next one is asked."""
    script[1]["Metadata"] = metadata(10, leader=2, epoch=4)
    script[2]["Metadata"] = metadata(10, leader=2, epoch=4)
    cluster = brokers()
    cluster.topics(["a"])
    script[1]["Metadata"] = metadata(7, leader=1, epoch=3)
    cluster.topics(["a"])
    assert cluster.leader(A0).epoch == 4
    script[2]["Metadata"] = metadata(7)
    with pytest.raises(BrokersUnreachable, match="knows the metadata to 7, not to 10"):
        cluster.topics(["a"])


def test_what_a_starting_broker_does_not_know_is_not_gone(script):
    """Must be shown (re-creation, vanished): the active controller is asked before a topic counts as lost."""
    script[2]["Metadata"] = metadata(20, controller=2)
    place = StreamOffset(positions={A0: Position(5, 3)}, topic_ids={"a": "x"})
    selection = Selection(topics=("a",))
    script[1]["Metadata"] = metadata(3, topics=(), controller=2)
    script[2]["CreateTopics"] = NotController("elected, not yet active")
    with pytest.raises(BrokersUnreachable, match="elected, not yet active"):
        places.present(brokers(), selection, place)
    script[2]["CreateTopics"] = m.CreateTopicsResponse()
    assert places.present(brokers(), selection, place).partitions == (A0,)
    assert places.present_or_fail(brokers(), selection).partitions == (A0,)
    script[2]["Metadata"] = metadata(20, topics=(), controller=2)
    assert places.present(brokers(), selection, place).partitions == ()
    with pytest.raises(NothingToRead, match="a: no such topic"):
        places.present_or_fail(brokers(), selection)


def test_without_a_controller_nothing_is_said_to_be_gone(script):
    """While a quorum elects, an answer that a topic is missing must wait."""
    script[1]["Metadata"] = script[2]["Metadata"] = metadata(3, topics=(), controller=-1)
    with pytest.raises(BrokersUnreachable, match="no active controller"):
        places.present_or_fail(brokers(), Selection(topics=("a",)))


BRIEFLY = {"kafkaConsumer.pollTimeoutMs": "1"}

# ---- one range -------------------------------------------------------------------------------------------------------


def reader(*, end=10, start=0, epoch=3, **options):
    given = {"kafka.bootstrap.servers": "127.0.0.1:9001", "subscribe": "a"}
    parsed = parse_source(given | options, streaming=True)
    wanted = OffsetRange(partition=A0, start=start, end=end, epoch=epoch, topic_id="x")
    return RangeReader(brokers(), wanted, parsed)


def log_of(count, *, start=0, per_batch=2, high_watermark=None):
    """A leader that answers fetches from a log of so many records."""
    records = [Record(0, 1, 0, None, b"%d" % offset) for offset in range(start, count)]

    def fetch(request):
        asked = request.partitions[0]
        at = asked.fetch_offset - start
        batch = build_batch(records[at : at + per_batch], base_offset=asked.fetch_offset) if at < len(records) else b""
        return m.FetchResponse(
            partitions=(
                m.FetchedPartition(
                    topic="a",
                    partition=0,
                    high_watermark=count if high_watermark is None else high_watermark,
                    records=(memoryview(bytes(batch)),) if batch else (),
                ),
            )
        )

    return fetch


def failing(response, part, error):
    """One partition's answer that is an error."""
    return response(partitions=(part(topic="a", partition=0, error_code=error.code, error_message=str(error)),))


def read(range_reader):
    return [batch.base_offset for batches in range_reader.batches() for batch in batches]


def test_reading_goes_on_at_the_next_leader(script, caplog):
    """Must be shown: a leader that dies in mid-read costs a warning, not a task."""
    script[1]["Metadata"] = metadata(1)
    whole = log_of(10)
    script[1]["Fetch"] = lambda request: (
        whole(request) if request.partitions[0].fetch_offset < 4 else LeaderNotAvailable("died")
    )
    begun = reader().batches()
    found = [next(begun)[0].base_offset, next(begun)[0].base_offset]
    script[1]["Metadata"] = metadata(2, leader=2, epoch=4)
    script[2] |= {"Metadata": metadata(2, leader=2, epoch=4), "Fetch": whole}
    script[2]["OffsetForLeaderEpoch"] = m.OffsetForLeaderEpochResponse(
        partitions=(m.EpochAnswer(topic="a", partition=0, leader_epoch=3, end_offset=10),)
    )
    found += [batch.base_offset for batches in begun for batch in batches]
    assert found == [0, 2, 4, 6, 8]
    assert "a-0: reading goes on at 4, epoch 4, after" in caplog.text


def test_a_range_that_was_cut_ends_where_the_logs_part(script, caplog):
    """KIP-101: never records of another history; without failOnDataLoss what is behind belongs to the next batch."""
    script[1] |= {"Metadata": metadata(2, epoch=5), "Fetch": log_of(20)}
    script[1]["OffsetForLeaderEpoch"] = m.OffsetForLeaderEpochResponse(
        partitions=(m.EpochAnswer(topic="a", partition=0, leader_epoch=3, end_offset=6),)
    )
    with pytest.raises(LogTruncated, match=r"10 was committed in epoch 3.* at 6: 4 records are gone"):
        read(reader())
    allowed = reader(failOnDataLoss="false")
    assert read(allowed) == [0, 2, 4]
    assert allowed.end == 6
    assert "4 records are gone" in caplog.text


def test_read_committed_leaves_aborted_batches_out_and_waits_for_the_last_stable_offset(script):
    """Issue 17, Build 3: the position passes over aborted batches; what is open is not there yet."""
    script[1]["Metadata"] = metadata(1)
    producers = {0: 7, 2: 8, 4: 7}
    records = [Record(0, 1, 0, None, b"x")] * 2

    def fetch(request):
        assert request.isolation_level == m.READ_COMMITTED
        at = request.partitions[0].fetch_offset
        batches = b"".join(
            bytes(
                build_batch(
                    records, base_offset=base, producer_id=pid, producer_epoch=0, base_sequence=base, transactional=True
                )
            )
            for base, pid in producers.items()
            if base >= at
        )
        answer = m.FetchedPartition(
            topic="a",
            partition=0,
            high_watermark=9,
            last_stable_offset=6,
            aborted_transactions=(m.AbortedTransaction(producer_id=7, first_offset=0),),
            records=(memoryview(batches),) if batches else (),
        )
        return m.FetchResponse(partitions=(answer,))

    script[1]["Fetch"] = fetch
    given = {"kafka.bootstrap.servers": "127.0.0.1:9001", "subscribe": "a"} | BRIEFLY
    parsed = parse_source(given, streaming=True)
    cluster = Brokers(list(NODES.values()), api_timeout_s=0.05, isolation_level=m.READ_COMMITTED)
    whole = RangeReader(cluster, OffsetRange(partition=A0, start=0, end=6, epoch=3, topic_id="x"), parsed)
    found = [(batch.base_offset, batch.record_count) for batches in whole.batches() for batch in batches]
    assert found == [(0, 0), (2, 2), (4, 0)]
    beyond = RangeReader(cluster, OffsetRange(partition=A0, start=0, end=8, epoch=3, topic_id="x"), parsed)
    with pytest.raises(NotYetCommitted, match="last stable offset is 6"):
        list(beyond.batches())


def test_a_range_below_the_log_start_is_told_apart(script):
    """Retention in mid-batch: an error by name, or the rest."""
    out = m.FetchResponse(
        partitions=(m.FetchedPartition(topic="a", partition=0, error_code=1, error_message="out of range"),)
    )
    rest = log_of(10, start=4)
    script[1]["Metadata"] = metadata(1)
    script[1]["Fetch"] = lambda request: out if request.partitions[0].fetch_offset < 4 else rest(request)
    script[1]["ListOffsets"] = m.ListOffsetsResponse(
        partitions=(m.ListedOffset(topic="a", partition=0, offset=4, leader_epoch=3),)
    )
    with pytest.raises(RetentionPassedPosition, match="stood at 0, the log begins at 4"):
        read(reader())
    assert read(reader(failOnDataLoss="false")) == [4, 6, 8]


@pytest.mark.parametrize(("after", "loss"), [({"topics": ()}, PartitionVanished), ({"topic_id": "y"}, TopicRecreated)])
def test_a_topic_that_goes_while_it_is_read(script, after, loss):
    """Must be shown (re-creation): named, or the range ends; a broker that is behind is no proof."""
    inconsistent = m.FetchResponse(
        partitions=(m.FetchedPartition(topic="a", partition=0, error_code=103, error_message="another id"),)
    )
    whole = log_of(10)
    script[1] |= {"Metadata": metadata(1), "CreateTopics": m.CreateTopicsResponse()}
    doubts = [True]
    script[1]["Fetch"] = lambda request: inconsistent if doubts.pop() else whole(request)
    doubts[:] = [False] * 5 + [True]
    assert read(reader()) == [0, 2, 4, 6, 8]
    script[1]["Fetch"] = lambda request: inconsistent if request.partitions[0].fetch_offset == 4 else whole(request)
    begun = reader().batches()
    assert [next(begun)[0].base_offset, next(begun)[0].base_offset] == [0, 2]
    script[1]["Metadata"] = metadata(2, **after)
    with pytest.raises(loss, match="a-0: it was deleted"):
        next(begun)
    script[1]["Metadata"] = metadata(3)
    allowed = reader(failOnDataLoss="false")
    begun = allowed.batches()
    assert [next(begun)[0].base_offset, next(begun)[0].base_offset] == [0, 2]
    script[1]["Metadata"] = metadata(4, **after)
    assert list(begun) == []
    assert allowed.end == 4


def test_more_partitions_than_one_request_may_name_are_asked_for_in_several(script):
    """docs/limits.md: a broker refuses a request that names more than 2,500. A leader may have more of a topic."""
    count, sizes = 2_501, []
    wide = metadata(1).topics[0]
    partitions = tuple(structs.replace(wide.partitions[0], partition=number) for number in range(count))
    script[1]["Metadata"] = structs.replace(metadata(1), topics=(structs.replace(wide, partitions=partitions),))

    def listed(request):
        sizes.append(len(request.partitions))
        rows = (
            m.ListedOffset(topic="a", partition=each.partition, offset=each.partition) for each in request.partitions
        )
        return m.ListOffsetsResponse(partitions=tuple(rows))

    script[1]["ListOffsets"] = listed
    names = [TopicPartition("a", number) for number in range(count)]
    assert brokers().starts(names) == {name: name.partition for name in names}
    assert max(sizes) <= 2_500


def test_a_group_of_many_partitions_is_read_and_committed_in_several_requests(script):
    """As above, for the offsets of a group beside a query."""
    sizes, names = [], [TopicPartition("a", number) for number in range(2_501)]

    def fetched(request):
        sizes.append(len(request.partitions))
        rows = (g.FetchedOffset(topic="a", partition=each.partition, offset=7) for each in request.partitions)
        return g.OffsetFetchResponse(partitions=tuple(rows))

    def committing(request):
        sizes.append(len(request.partitions))
        rows = (g.PartitionOutcome(topic="a", partition=each.partition) for each in request.partitions)
        return g.OffsetCommitResponse(partitions=tuple(rows))

    script[1] |= {"FindCoordinator": coordinator(1), "OffsetFetch": fetched, "OffsetCommit": committing}
    group = Group(brokers(), "g")
    found = group.committed(names)
    assert found.keys() == set(names)
    group.commit(found)
    assert max(sizes) <= 2_500
    assert sum(sizes) == 2 * len(names)


def test_fewer_records_than_planned_are_an_error(script):
    """SPARK 5: a high watermark that stays below the plan ends the task by name, never with fewer rows."""
    script[1] |= {"Metadata": metadata(1), "Fetch": log_of(8)}
    with pytest.raises(NotYetCommitted, match=r"10 was committed .* the leader's high watermark is 8"):
        read(reader(failOnDataLoss="false", **BRIEFLY))


def test_a_partition_without_a_leader_ends_the_task_in_time(script):
    """Must be shown (broker down): a clear error after kafkaConsumer.pollTimeoutMs."""
    script[1]["Metadata"] = metadata(1, leader=-1)
    with pytest.raises(BrokersUnreachable, match=r"a-0: no answer within 0.001 s: .*no leader at present"):
        read(reader(**BRIEFLY))


def test_the_time_that_the_caller_takes_for_a_batch_is_no_wait_for_the_next_one(script, monkeypatch):
    """SPARK 5: kafkaConsumer.pollTimeoutMs bounds the wait for records. A task that works longer on a batch goes on."""
    now = [0.0]
    monkeypatch.setattr(client.time, "monotonic", lambda: now[0])
    whole, errors = log_of(10), []
    script[1] |= {"Metadata": metadata(1), "Fetch": lambda request: errors.pop() if errors else whole(request)}
    found = []
    for batches in reader(**{"kafkaConsumer.pollTimeoutMs": "1000"}).batches():
        found += [batch.base_offset for batch in batches]
        now[0] += 5.0
        errors[:] = [LeaderNotAvailable("an election")]
    assert found == [0, 2, 4, 6, 8]


# ---- a group beside a query ------------------------------------------------------------------------------------------


def coordinator(node):
    """Any broker says that ``node`` coordinates every group."""
    at = NODES[node]

    def answer(request):
        found = tuple(g.Coordinator(key=key, node_id=node, host=at.host, port=at.port) for key in request.keys)
        return g.FindCoordinatorResponse(coordinators=found)

    return answer


def committed(offset, epoch=3):
    return g.OffsetFetchResponse(
        partitions=(g.FetchedOffset(topic="a", partition=0, offset=offset, leader_epoch=epoch),)
    )


def outcome(error=None):
    told = {} if error is None else {"error_code": error.code, "error_message": error.message}
    return g.OffsetCommitResponse(partitions=(g.PartitionOutcome(topic="a", partition=0, **told),))


def test_a_query_begins_where_its_group_has_committed(script):
    """Issue 6, item 5: with the epoch, so that a log that was cut is noticed; typed when nothing is committed."""
    script[1]["FindCoordinator"] = coordinator(2)
    script[2]["OffsetFetch"] = committed(7)
    place = ByGroup(group="g")
    assert places.resolve(brokers(), place, (A0,), "startingOffsets") == {A0: Position(7, 3)}
    script[2]["OffsetFetch"] = committed(0)
    assert places.resolve(brokers(), place, (A0,), "startingOffsets") == {A0: Position(0, 3)}
    script[2]["OffsetFetch"] = committed(-1)
    with pytest.raises(NothingCommitted, match="group g has committed nothing"):
        places.resolve(brokers(), place, (A0,), "startingOffsets")


def test_a_coordinator_that_moved_is_found_again(script):
    """S32."""
    script[1]["FindCoordinator"] = coordinator(1)
    found = [NotCoordinator("moved"), committed(7)]
    script[1]["OffsetFetch"] = lambda _: found.pop(0)
    assert Group(brokers(timeout_s=5), "g").committed([A0]) == {A0: Position(7, 3)}
    assert [api for _, api in script["asked"]] == ["FindCoordinator", "OffsetFetch"] * 2


def test_an_absent_coordinator_does_not_stop_a_query_and_a_refusal_does(script, caplog, monkeypatch):
    """Whoever watches sees an older place, which the next batch mends; a group of others is not fought over."""
    monkeypatch.setattr(places, "COMMIT_TIMEOUT_S", 0.05)
    script[1]["FindCoordinator"] = g.FindCoordinatorResponse(
        coordinators=(g.Coordinator(key="g", error_code=CoordinatorNotAvailable.code, error_message="electing"),)
    )
    Group(brokers(), "g").commit({A0: Position(5, 3)})
    assert "group g shows an older place of this query" in caplog.text
    script[1]["FindCoordinator"] = coordinator(1)
    script[1]["OffsetCommit"] = UnknownMemberId("group g is Stable: only its members may commit")
    with pytest.raises(CommitRefused, match=r"commitGroup=g: UNKNOWN_MEMBER_ID: .* give the query a group of its own"):
        Group(brokers(), "g").commit({A0: Position(5, 3)})
    for gone in (UnknownTopicOrPartition("deleted"), UnknownTopicId("re-created")):
        script[1]["OffsetCommit"] = outcome(gone)
        caplog.clear()
        Group(brokers(), "g").commit({A0: Position(5, 3)})
        assert caplog.text == ""
    sent = []
    script[1]["OffsetCommit"] = lambda request: sent.append(request) or outcome()
    Group(brokers(), "g").commit({A0: Position(5, 3)})
    assert sent == [
        g.OffsetCommitRequest(
            group_id="g", partitions=(g.CommitPartition(topic="a", partition=0, offset=5, leader_epoch=3),)
        )
    ]
    Group(brokers(), "g").commit({A0: Position(5, 3)}, {"a": "x"})
    assert [each.topic_id for each in sent[1].partitions] == ["x"], "never for a topic created again since"


def test_a_silent_broker_costs_a_part_of_the_time_and_is_asked_last(script):
    """A commit has five seconds: one broker that says nothing must not take them all, nor begin every search."""
    script[1]["FindCoordinator"] = NetworkException("FindCoordinator to 127.0.0.1:9001: no answer, silent for 1 s")
    script[2]["FindCoordinator"] = coordinator(2)
    script[2]["OffsetCommit"] = outcome()
    known = Brokers(tuple(NODES.values()), api_timeout_s=5)
    Group(known, "g").commit({A0: Position(5, 3)})
    assert script["asked"] == [(1, "FindCoordinator"), (2, "FindCoordinator"), (2, "OffsetCommit")]
    assert script["patience_s"] == [1.0, 1.0, 5.0]
    script["asked"].clear()
    Group(known, "h").commit({A0: Position(5, 3)})
    assert script["asked"] == [(2, "FindCoordinator"), (2, "OffsetCommit")]


def test_a_broker_that_knows_no_coordinator_is_not_the_last_word(script):
    """Without a session with the controller it cannot tell: the next one is asked, and not the same one again."""
    script[1]["FindCoordinator"] = g.FindCoordinatorResponse(
        coordinators=(g.Coordinator(key="g", error_code=CoordinatorNotAvailable.code, error_message="no session"),)
    )
    script[2]["FindCoordinator"] = coordinator(2)
    script[2]["OffsetCommit"] = outcome()
    Group(Brokers(tuple(NODES.values()), api_timeout_s=5), "g").commit({A0: Position(5, 3)})
    assert script["asked"][-1] == (2, "OffsetCommit")


def test_brokers_that_do_not_answer_are_named():
    """One that listens and says nothing, one where nobody listens: the error has both, and what each of them did."""
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.create_server(("127.0.0.1", 0)) as closed:
        mute_at, closed_at = (Address("127.0.0.1", each.getsockname()[1]) for each in (mute, closed))
        closed.close()
        with pytest.raises(NetworkException) as caught:
            Brokers((mute_at, closed_at), api_timeout_s=1).ask_any(m.MetadataRequest(topics=()), timeout_s=0.05)
    assert f"Metadata to {mute_at}: no answer, silent for 0.05 s; " in caught.value.message
    assert f"Metadata to {closed_at}: no connection: " in caught.value.message
    assert caught.value.outcome == "unknown"


@contextmanager
def answering_once(head: bytes, body: bytes) -> Iterator[Address]:
    """A server that answers one request, and then listens no longer."""

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        server.close()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 %bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))

    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=answer, args=(server,))
    thread.start()
    yield Address("127.0.0.1", server.getsockname()[1])
    thread.join()


def test_a_listener_that_demands_a_login_is_named_at_once():
    """S39: credentials that are wanted do not come with time, so nothing is retried."""
    body = json.dumps({"status": 401, "detail": "this listener needs a login", "outcome": "not_written"}).encode()
    head = b"401 Unauthorized\r\nContent-Type: application/problem+json\r\n"
    with answering_once(head, body) as at, pytest.raises(SaslAuthenticationFailed, match="listener needs a login") as e:
        Brokers((at,), api_timeout_s=0.2).topics(["a"])
    assert f"Metadata to {at}: " in str(e.value)


def test_a_connection_that_the_broker_has_ended_with_its_answer_is_not_used_again():
    """S39: a broker that stops says so with its last answer. What is called next has not been sent, and waits as long as
    it may.
    """
    body = b"".join(encode_response(m.MetadataResponse(cluster_id="c", controller_id=1)))
    request = m.MetadataRequest(topics=())
    with answering_once(b"200 OK\r\nConnection: close\r\n", body) as at:
        assert client.call(at, request).cluster_id == "c"
    with pytest.raises(NetworkException, match="no connection") as caught:
        client.call(at, request)
    assert caught.value.outcome == NOT_WRITTEN
