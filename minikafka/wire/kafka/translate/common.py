"""What all translators share: the form of a translation, topic ids, leaders' endpoints, and error codes by version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from minikafka.errors import BY_NAME
from minikafka.types import Address, NodeId, TopicId, uuid_bytes, uuid_text
from minikafka.wire.acls import AclOperation, ResourceType
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.schema import ZERO_UUID
from minikafka.wire.messages import CurrentLeader

Item = TypeVar("Item")

UNKNOWN_TOPIC_OR_PARTITION = BY_NAME["UNKNOWN_TOPIC_OR_PARTITION"].code
UNKNOWN_TOPIC_ID = BY_NAME["UNKNOWN_TOPIC_ID"].code
NONE = 0

NOT_ASKED = -(2**31)
"""Authorized operations that the client has not asked for."""


class Directory(Protocol):
    """What translators need of the metadata."""

    def topic_name(self, topic_id: TopicId) -> str | None:
        """Name of the topic with this id; None: there is none."""
        ...

    def topic_id(self, name: str) -> TopicId | None:
        """Id of the topic with this name; None: there is none."""
        ...

    def topics(self) -> Iterable[str]:
        """Names of all topics."""
        ...

    def nodes(self) -> Iterable[NodeId]:
        """Ids of all brokers."""
        ...

    def endpoint(self, node: NodeId) -> tuple[Address, str | None] | None:
        """Address at the client's listener, and rack, of a broker; None: not known."""
        ...

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """What the client may do with a resource (KIP-430): a bit for each AclOperation."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        ...


class Exchange:
    """One request as its translator sees it.

    A topic id is looked up once: the answer names topics as the request did, whatever the metadata says by then.
    """

    __slots__ = ("_ids", "_names", "client_id", "directory", "version")

    def __init__(self, version: int, directory: Directory, client_id: str = "") -> None:
        self.version = version
        self.directory = directory
        self.client_id = client_id
        self._names: dict[bytes, str | None] = {}
        self._ids: dict[str, bytes] = {}

    def topic_name(self, raw_id: bytes) -> str | None:
        """Name of the topic with this id (16 bytes) when it was first asked for; None: there was none."""
        if raw_id not in self._names:
            name = self._names[raw_id] = self.directory.topic_name(id_text(raw_id))
            if name is not None:
                self._ids[name] = raw_id
        return self._names[raw_id]

    def topic_id(self, name: str) -> bytes | None:
        """Id of a topic: as the request named it, else as the metadata has it; None: there is none."""
        known = self._ids.get(name)
        if known is not None:
            return known
        found = self.directory.topic_id(name)
        return None if found is None else id_bytes(found)


@dataclass(frozen=True, slots=True)
class Usual:
    """The form that nearly all requests of a busy API have, without the message between. Unrolled."""

    request: Callable[[memoryview, int, Exchange], Any]
    """(frame, where the message begins) -> the typed request; None: it has another form, or cannot be read."""
    response: Callable[[Any, Exchange], bytes | None]
    """Typed response to such a request -> its bytes; None: it has another form."""


@dataclass(frozen=True, slots=True)
class Translation:
    """How one of Kafka's APIs is served by one of ours. ``last`` is inclusive."""

    name: str
    """Kafka's name, in the schema."""
    first: int
    last: int
    request: Callable[[Message, Exchange], Any]
    """Typed request of the API ``serves``, or a list of them that are handled in order. May raise ProtocolError."""
    response: Callable[[Message, Any, Exchange], Message]
    """(Kafka's request, typed response or list of them) -> Kafka's response. ``error_code`` of the typed response is
    that of the whole request: Kafka repeats it for each topic or partition."""
    serves: str = ""
    """Our API; empty: it has the same name."""
    advertised_first: int | None = None
    """Advertised in place of ``first``, where clients need it."""
    usual: Usual | None = None

    @property
    def api(self) -> str:
        return self.serves or self.name


@lru_cache(4096)
def id_text(raw: bytes) -> TopicId:
    """A topic id as our messages write it."""
    return uuid_text(raw)


@lru_cache(4096)
def id_bytes(text: TopicId | None) -> bytes:
    """A topic id as Kafka's messages write it; no id is the zero UUID."""
    if not text:
        return ZERO_UUID
    try:
        return uuid_bytes(text)
    except ValueError:
        return ZERO_UUID


def describable(directory: Directory) -> list[str]:
    """Names of the topics that the client may describe: each has the error of a request for all topics that failed."""
    may = 1 << AclOperation.DESCRIBE
    return [name for name in directory.topics() if directory.operations(ResourceType.TOPIC, name) & may]


def by_topic(items: Iterable[Any]) -> dict[str, list[Any]]:
    """Flat items (with ``topic``) grouped by topic, in the order in which topics first occur."""
    groups: dict[str, list[Any]] = {}
    for each in items:
        group = groups.get(each.topic)
        if group is None:
            group = groups[each.topic] = []
        group.append(each)
    return groups


def leader_of(current: CurrentLeader | None) -> Message:
    """The ``current_leader`` of a partition's answer (KIP-951)."""
    if current is None:
        return {"leader_id": -1, "leader_epoch": -1}
    return {"leader_id": current.leader_id, "leader_epoch": current.leader_epoch}


def endpoints_of(answers: Iterable[Any], directory: Directory) -> list[Message]:
    """``node_endpoints`` for the leaders that answers (with ``current_leader``) name (KIP-951)."""
    nodes = {each.current_leader.leader_id for each in answers if each.current_leader is not None}
    found = []
    for node in sorted(nodes):
        known = directory.endpoint(node)
        if known is not None:
            address, rack = known
            found.append({"node_id": node, "host": address.host, "port": address.port, "rack": rack})
    return found


def code_for(code: int, version: int, since: Mapping[int, tuple[int, int]]) -> int:
    """The code as this version of the API knows it: ``since`` maps a code to (first version, older substitute)."""
    newer = since.get(code)
    return newer[1] if newer is not None and version < newer[0] else code


def each_once(topics: Iterable[tuple[str, Iterable[int]]]) -> dict[str, list[int]]:
    """Partitions by topic, in the order of the request, each of them once: the answer for one partition may be long."""
    found: dict[str, dict[int, None]] = {}
    for name, partitions in topics:
        found.setdefault(name, {}).update(dict.fromkeys(partitions))
    return {name: list(partitions) for name, partitions in found.items()}
