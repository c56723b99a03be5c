"""The same operations through ``/rpc`` and through Kafka frames: one simulated cluster each, answers in one form.

A door sends a typed request in a version of Kafka's API and returns a ``Form``: the error code of the whole response, and
one row for each item. ``KafkaDoor`` has its own translation, which shares nothing with the product's translators but the
schema. What a version cannot express is in neither form. Ids that brokers draw (members, topics) have names of their own.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from minikafka.ports import Buffers, RequestContext
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.world import SimWorld
from minikafka.types import NodeId, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.kafka.codec import Message, decode, encode
from minikafka.wire.kafka.offer import OFFERS
from minikafka.wire.kafka.schema import Field, api_named
from minikafka.wire.kafka.translate.fetch import LEADER_FROM
from tests.kafka.client import fitted

Form = tuple[int, dict[Any, dict[str, Any]]]
CLIENT = "doors"
NO_TOPIC_ID = b"no topic with it"
UNKNOWN_TOPIC_ID = 100
REPLICA_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER = 9, 6
DEADLINE_S = 120.0

OFFERED = {each.name: (each.first, each.last) for each in OFFERS.values()}


def same(names: str) -> dict[str, str]:
    """Fields that are called alike in both protocols."""
    return {name: name for name in names.split()}


@dataclass(frozen=True, slots=True)
class Shape:
    """Where Kafka's response has its rows (topics, name, partitions, index), and our name of each field of a row."""

    path: tuple[str, str, str, str]
    fields: dict[str, str]


PARTITIONED = {
    "Produce": Shape(
        ("responses", "name", "partition_responses", "index"),
        same("error_code base_offset log_append_time_ms log_start_offset error_message current_leader"),
    ),
    "Fetch": Shape(
        ("responses", "topic", "partitions", "partition_index"),
        same("error_code high_watermark last_stable_offset log_start_offset records current_leader"),
    ),
    "ListOffsets": Shape(
        ("topics", "name", "partitions", "partition_index"), same("error_code timestamp offset leader_epoch")
    ),
    "OffsetForLeaderEpoch": Shape(
        ("topics", "topic", "partitions", "partition"), same("error_code leader_epoch end_offset")
    ),
    "DeleteRecords": Shape(("topics", "name", "partitions", "partition_index"), same("error_code low_watermark")),
    "OffsetCommit": Shape(("topics", "name", "partitions", "partition_index"), same("error_code")),
    "OffsetFetch": Shape(
        ("topics", "name", "partitions", "partition_index"),
        {**same("error_code metadata"), "committed_offset": "offset", "committed_leader_epoch": "leader_epoch"},
    ),
}
BY_ID_FROM = {"Produce": 13, "Fetch": 13, "OffsetCommit": 10, "OffsetFetch": 10}
TOPICS = {
    "CreateTopics": ("topics", same("error_code error_message num_partitions replication_factor")),
    "DeleteTopics": ("responses", same("error_code error_message")),
}
FLAT = {
    "InitProducerId": "error_code producer_id producer_epoch",
    "JoinGroup": "error_code generation_id protocol_type protocol_name leader skip_assignment member_id members",
    "SyncGroup": "error_code protocol_type protocol_name assignment",
    "Heartbeat": "error_code",
    "LeaveGroup": "error_code",
}
KEPT_OF_FAILURES = ("error_code", "error_message", "current_leader", "member_id")
"""Of a failed item nothing else has a meaning."""


def fields_at(api: str, *path: str) -> dict[str, Field]:
    """Return the fields of the response at a path of names."""
    fields = api_named(api).response
    for name in path:
        fields = next(each.fields for each in fields if each.name == name)
    return {each.name: each for each in fields}


def plain(value: Any) -> Any:
    """Return a value of either protocol in one form."""
    if isinstance(value, m.CurrentLeader):
        return value.leader_id, value.leader_epoch
    if isinstance(value, dict) and "leader_epoch" in value:
        return value["leader_id"], value["leader_epoch"]
    return value


def row_of(fields: Iterable[str], read: Callable[[str], Any]) -> dict[str, Any]:
    """Return one row of a form."""
    row = {name: plain(read(name)) for name in fields}
    if "error_message" in row:
        row["error_message"] = row["error_message"] or None
    if "current_leader" in row:
        row["current_leader"] = row["current_leader"] or (-1, -1)
    if "records" in row:
        records = row["records"]
        row["records"] = b"".join(records) if isinstance(records, (tuple, list)) else bytes(records or b"")
    if row.get("error_code"):
        return {name: value for name, value in row.items() if name in KEPT_OF_FAILURES}
    return row


class Door:
    """A cluster of its own, and one way into it."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster

    def topic_id(self, name: str) -> bytes:
        """Return the topic's id as Kafka's messages have it."""
        image = self.cluster.image()
        topic = image.topics.get(name) if image is not None else None
        return NO_TOPIC_ID if topic is None else base64.urlsafe_b64decode(topic.topic_id + "==")

    def ask(self, node: NodeId, request: Any, version: int) -> Form:
        """Send one request and return its answer when the cluster is at rest."""
        return self.ask_all(node, [request], version)[0]

    def ask_all(self, node: NodeId, requests: list[Any], version: int) -> list[Form]:
        """Send requests half a second apart, each on a connection of its own."""

        async def later(index: int, request: Any) -> Form:
            await asyncio.sleep(0.5 * index)
            return await self.exchange(node, request, version)

        async def all_of_them() -> list[Form]:
            return list(await asyncio.gather(*(later(index, each) for index, each in enumerate(requests))))

        forms = self.cluster.run(all_of_them(), node=self.machine(node))
        self.cluster.settle()
        return forms

    def machine(self, node: NodeId) -> str:
        """Return the machine that a client's code runs on."""
        raise NotImplementedError

    async def exchange(self, node: NodeId, request: Any, version: int) -> Form:
        """Send one request."""
        raise NotImplementedError

    def logs(self) -> dict[str, bytes]:
        """Return the files of all replicas of topics that clients wrote to."""
        found = {}
        for node in self.cluster.nodes:
            disk = self.cluster.sim.disk(node_name(node))
            for path in disk.files():
                folder, _, file = path.partition("/")
                is_kept = file.endswith((".log", ".index", ".timeindex")) or file == "leader-epoch-checkpoint"
                if folder.startswith("t") and not folder.endswith("-delete") and is_kept:
                    found[f"{node}:{path}"] = disk.content_bytes(path)
        return found


class RpcDoor(Door):
    """``/rpc`` with msgpack, from a machine of its own."""

    def machine(self, node: NodeId) -> str:
        self.world = self.cluster.sim.of("client")
        return "client"

    async def exchange(self, node: NodeId, request: Any, version: int) -> Form:
        # Kafka's clients may send these to any broker, which forwards them.
        to = self.cluster.controller() if isinstance(request, (m.CreateTopicsRequest, m.DeleteTopicsRequest)) else node
        deadline = self.world.clock.now() + DEADLINE_S
        response = await call(self.world.network, self.cluster.address_of(to), request, deadline)
        return self.form(type(request).__name__.removesuffix("Request"), request, response, version)

    def form(self, api: str, request: Any, response: Any, version: int) -> Form:
        if api == "Produce" and request.acks == 0:
            return 0, {}
        if api in FLAT:
            return 0, {"": self._flat(api, request, response, version)}
        if api in TOPICS:
            path, names = TOPICS[api]
            known = [name for name, field in fields_at(api, path).items() if name in names and field.is_in(version)]
            return 0, {each.name: row_of(known, each.__getattribute__) for each in response.topics}
        shape, has_code = PARTITIONED[api], has_whole_code(api, version)
        if response.error_code and has_code:
            return response.error_code, {}
        known = known_fields(api, version)
        rows = {}
        answers = {(each.topic, each.partition): each for each in response.partitions}
        for item in request.partitions:
            key = item.topic, item.partition
            by_id = version >= BY_ID_FROM.get(api, version + 1)
            if by_id and self.topic_id(item.topic) == NO_TOPIC_ID:
                rows[key] = self._unknown(known)
                continue
            answer = response if response.error_code else answers[key]
            read = lambda name, answer=answer: getattr(answer, shape.fields[name], None)  # noqa: E731
            row = rows[key] = row_of(known, read)
            if row["error_code"] == REPLICA_NOT_AVAILABLE:
                row["error_code"] = NOT_LEADER_OR_FOLLOWER
        return 0, rows

    @staticmethod
    def _unknown(known: list[str]) -> dict[str, Any]:
        """Return the answer for a topic id that no topic has."""
        return row_of(known, {"error_code": UNKNOWN_TOPIC_ID}.get)

    @staticmethod
    def _flat(api: str, request: Any, response: Any, version: int) -> dict[str, Any]:
        code = response.error_code
        if api == "LeaveGroup":
            return {"error_code": code or response.members[0].error_code}
        fields = fields_at(api)
        row = row_of([name for name in FLAT[api].split() if fields[name].is_in(version)], response.__getattribute__)
        if api == "JoinGroup":
            row["member_id"] = row["member_id"] or request.member_id
            if not code:
                row["members"] = {each.member_id: each.metadata for each in response.members}
        return row


def has_whole_code(api: str, version: int) -> bool:
    """Return True if the response has a place for an error of the whole request."""
    if api == "OffsetFetch":
        return version >= 2
    code = fields_at(api).get("error_code")
    return code is not None and code.is_in(version)


def known_fields(api: str, version: int) -> list[str]:
    """Return the fields of a partition's row that this version has, and fills."""
    shape = PARTITIONED[api]
    empty = {"current_leader"} if api == "Fetch" and version < LEADER_FROM else set()
    topics, _, partitions, _ = shape.path
    prefix = ("groups",) if api == "OffsetFetch" and version >= 8 else ()
    fields = fields_at(api, *prefix, topics, partitions)
    return [name for name in shape.fields if name in fields.keys() - empty and fields[name].is_in(version)]


class Connection:
    """One connection of Kafka's protocol; ``answered`` is its one answer, or None."""

    opened_at = 0.0

    def __init__(self, *, is_answered: bool) -> None:
        self._is_answered = is_answered
        self.answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def send(self, answer: Buffers) -> None:
        self._end(b"".join(answer))

    def handled(self, size: int) -> None:
        if not self._is_answered:
            self._end(None)

    def close(self) -> None:
        self._end(None)

    def await_login(self, frame_bytes_max: int) -> None: ...

    def logged_in(self, principal: str) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def _end(self, answer: bytes | None) -> None:
        if not self.answered.done():
            self.answered.set_result(answer)


class KafkaDoor(Door):
    """Frames to the production session of a broker."""

    def machine(self, node: NodeId) -> str:
        return node_name(node)

    async def exchange(self, node: NodeId, request: Any, version: int) -> Form:
        name = type(request).__name__.removesuffix("Request")
        api = api_named(name)
        head = struct.pack(">hhih", api.key, version, 7, len(CLIENT)) + CLIENT.encode()
        head += b"\0" * api.is_flexible(version)
        message = fitted(api.request, kafka_request(request, version, self.topic_id))
        asked = {topic: self.topic_id(topic) for topic in topics_of(request)}
        frame = head + b"".join(encode(name, "request", version, message))
        is_answered = not (name == "Produce" and request.acks == 0)
        connection = Connection(is_answered=is_answered)
        context = RequestContext("kafka", "", "client")
        session = self.cluster.brokers[node].open_kafka_session(connection, context)
        session.received(memoryview(frame))
        answer = await connection.answered
        session.closed()
        if not is_answered:
            return 0, {}
        assert answer is not None, f"{name} version {version} closed the connection: {request}"
        assert struct.unpack_from(">ii", answer) == (len(answer) - 4, 7)
        response = decode(name, "response", version, memoryview(answer), 8 + api.is_flexible(version))
        return self.form(name, response, version, {raw: topic for topic, raw in asked.items()})

    @staticmethod
    def form(api: str, response: Message, version: int, names: dict[bytes, str]) -> Form:
        if api in FLAT:
            return 0, {"": KafkaDoor._flat(api, response, version)}
        if api in TOPICS:
            path, fields = TOPICS[api]
            schema = fields_at(api, path)
            known = [name for name in schema if name in fields and schema[name].is_in(version)]
            return 0, {each["name"]: row_of(known, each.get) for each in response[path]}
        if api == "OffsetFetch" and version >= 8:
            (response,) = response["groups"]
        if has_whole_code(api, version) and response["error_code"]:
            return response["error_code"], {}
        topics, name, partitions, index = PARTITIONED[api].path
        known = known_fields(api, version)
        by_id = version >= BY_ID_FROM.get(api, version + 1)
        return 0, {
            (names[topic["topic_id"]] if by_id else topic[name], each[index]): row_of(known, each.get)
            for topic in response[topics]
            for each in topic[partitions]
        }

    @staticmethod
    def _flat(api: str, response: Message, version: int) -> dict[str, Any]:
        if api == "LeaveGroup":
            inner = response["members"][0]["error_code"] if version >= 3 and response["members"] else 0
            return {"error_code": response["error_code"] or inner}
        fields = fields_at(api)
        row = {name: response[name] for name in FLAT[api].split() if fields[name].is_in(version)}
        if api == "JoinGroup":
            row["protocol_name"] = row["protocol_name"] or None
            row["members"] = {each["member_id"]: each["metadata"] for each in row["members"]}
        return row_of(row, row.__getitem__)


def topics_of(request: Any) -> list[str]:
    """Return the topics that a request names by partition."""
    return [each.topic for each in getattr(request, "partitions", ()) or ()]


def nested(items: Iterable[Any], inner: str, row: Callable[[Any], Any], topic_id: Callable[[str], bytes]) -> list[Any]:
    """Return partitions in Kafka's topics, which old versions name by name and new ones by id."""
    topics: dict[str, list[Any]] = {}
    for each in items:
        topics.setdefault(each.topic, []).append(row(each))
    return [{"name": topic, "topic": topic, "topic_id": topic_id(topic), inner: rows} for topic, rows in topics.items()]


def kafka_request(request: Any, version: int, topic_id: Callable[[str], bytes]) -> Message:
    """Return the request as Kafka's clients send it."""
    plainly = {name: getattr(request, name) for name in getattr(request, "__struct_fields__", ())}
    match request:
        case m.ProduceRequest():

            def row(each: Any) -> Any:
                return {"index": each.partition, "records": each.records or None}

            topics = nested(request.partitions, "partition_data", row, topic_id)
            return {"acks": request.acks, "timeout_ms": request.timeout_ms, "topic_data": topics}
        case m.FetchRequest():

            def row(each: Any) -> Any:
                names = "partition current_leader_epoch fetch_offset last_fetched_epoch partition_max_bytes"
                return {name: getattr(each, name) for name in names.split()}

            return {**plainly, "topics": nested(request.partitions, "partitions", row, topic_id)}
        case m.ListOffsetsRequest():

            def row(each: Any) -> Any:
                return {
                    "partition_index": each.partition,
                    "current_leader_epoch": each.current_leader_epoch,
                    "timestamp": each.timestamp,
                }

            return {"replica_id": -1, "topics": nested(request.partitions, "partitions", row, topic_id)}
        case m.OffsetForLeaderEpochRequest():

            def row(each: Any) -> Any:
                return {name: getattr(each, name) for name in ("partition", "current_leader_epoch", "leader_epoch")}

            return {"replica_id": -1, "topics": nested(request.partitions, "partitions", row, topic_id)}
        case m.DeleteRecordsRequest():

            def row(each: Any) -> Any:
                return {"partition_index": each.partition, "offset": each.offset}

            topics = nested(request.partitions, "partitions", row, topic_id)
            return {"timeout_ms": request.timeout_ms, "topics": topics}
        case g.OffsetCommitRequest():

            def row(each: Any) -> Any:
                return {
                    "partition_index": each.partition,
                    "committed_offset": each.offset,
                    "committed_leader_epoch": each.leader_epoch,
                    "committed_metadata": each.metadata,
                }

            topics = nested(request.partitions, "partitions", row, topic_id)
            return {**plainly, "generation_id_or_member_epoch": request.generation_id, "topics": topics}
        case g.OffsetFetchRequest():
            topics = nested(request.partitions or (), "partition_indexes", lambda each: each.partition, topic_id)
            group = {"group_id": request.group_id, "topics": topics}
            return {"groups": [group]} if version >= 8 else group
        case m.CreateTopicsRequest():
            return {
                **plainly,
                "topics": [
                    {
                        "name": each.name,
                        "num_partitions": each.num_partitions,
                        "replication_factor": each.replication_factor,
                        "assignments": [
                            {"partition_index": one.partition, "broker_ids": list(one.broker_ids)}
                            for one in each.assignments
                        ],
                        "configs": [{"name": name, "value": value} for name, value in each.configs.items()],
                    }
                    for each in request.topics
                ],
            }
        case m.DeleteTopicsRequest():
            topics = [{"name": name, "topic_id": bytes(16)} for name in request.topics]
            return {"timeout_ms": request.timeout_ms, "topic_names": list(request.topics), "topics": topics}
        case g.JoinGroupRequest():
            protocols = [{"name": each.name, "metadata": each.metadata} for each in request.protocols]
            return {**plainly, "protocols": protocols}
        case g.SyncGroupRequest():
            given = [{"member_id": each.member_id, "assignment": each.assignment} for each in request.assignments]
            return {**plainly, "assignments": given}
        case g.LeaveGroupRequest():
            members = [{"member_id": each.member_id} for each in request.members]
            return {**plainly, "member_id": request.members[0].member_id, "members": members}
        case _:
            return plainly


def cluster_for(sim: SimWorld) -> SimCluster:
    """Boot three brokers whose logs depend on nothing but the requests."""
    settings = {
        "group.initial.rebalance.delay.ms": "3000",
        "log.retention.ms": "-1",
        "offsets.topic.num.partitions": "1",
        "auto.create.topics.enable": "false",
    }
    cluster = SimCluster(sim, settings=settings)
    cluster.boot()
    cluster.settle()
    return cluster


def leader(cluster: SimCluster, topic: str, partition: int) -> NodeId:
    """Return the partition's leader, or broker 1 if there is none."""
    found = cluster.leader_of(TopicPartition(topic, partition))
    return found if found > 0 else 1
