"""Synchronous requests to brokers, leaders and coordinators, over http.client.

The messages are those of the asynchronous clients. :class:`Brokers` calls any broker or a partition's leader.
:class:`Coordinator` finds the coordinator of a group or of a transactional id by a request to any broker.

Rules for this file:

1. One connection per process and broker, kept for the next call and dropped on any error: a late answer can never be
   taken for another call's. Spark's workers live through many tasks, so the connections do too: to the end of the
   process. A fork shares none with its parent.
2. No threads, no asyncio: a task of Spark and an audit are plain loops.
3. What went wrong below HTTP is NetworkException; :meth:`Brokers.retrying` retries what can be retried until its time
   is up, and then says so by name. That no broker agrees with this end on TLS is TlsFailed, and that a broker demands
   a login is SaslAuthenticationFailed, both at once.
4. A request to a coordinator may be sent twice: one that moved, or did not answer, is looked up again.
"""

from __future__ import annotations

import atexit
import http.client
import os
import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from minikafka import errors as kafka
from minikafka.blocking.tls import NEEDS_TLS, TLS_PROBE_S, ClientTls, speaks_tls, tls_failure
from minikafka.types import NO_NODE, NO_OFFSET, Address, Epoch, Offset, TopicId, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.apis import BY_REQUEST, MSGPACK, RPC_PATH, in_parts
from minikafka.wire.codec import decode_response, encode_request, http_failure
from minikafka.wire.group_messages import FindCoordinatorRequest, FindCoordinatorResponse
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.outcomes import error_in

Result = TypeVar("Result")

CONNECT_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 15.0
ASK_TIMEOUT_S = 3.0
"""For what any broker can answer: after so long the next one is asked."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.05, 1.0


class BrokersUnreachable(Exception):
    """The time for retries is up: no broker answered, or no leader was there; the sentence has the last error."""


_connections: dict[tuple[Address, ClientTls | None], http.client.HTTPConnection] = {}
"""Broker and how it is called -> a connection that waits for its next call."""


def call(address: Address, request: object, *, timeout_s: float = CALL_TIMEOUT_S, tls: ClientTls | None = None) -> Any:
    """The typed answer of one broker. NetworkException when there is none, SaslAuthenticationFailed when the broker
    demands a login; the answer's own error when it is one.
    """
    api = BY_REQUEST[type(request)].name
    buffers = encode_request(request)
    connection = _connections.pop((address, tls), None)
    is_new = connection is None
    if connection is None:
        patience_s = min(CONNECT_TIMEOUT_S, timeout_s)
        connection = _new_connection(address, patience_s, tls)
        try:
            connection.connect()
        except TimeoutError as error:
            raise kafka.NetworkException(
                f"{api} to {address}: no connection, silent for {patience_s:g} s", outcome=kafka.NOT_WRITTEN
            ) from error
        except OSError as error:
            cause = _cause(error, address, tls)
            raise kafka.NetworkException(
                f"{api} to {address}: no connection: {cause}", outcome=kafka.NOT_WRITTEN
            ) from cause
    try:
        body = _exchange(connection, api, buffers, timeout_s)
        response = decode_response(api, body)
    except TimeoutError as error:
        connection.close()
        raise kafka.NetworkException(
            f"{api} to {address}: no answer, silent for {timeout_s:g} s", outcome=kafka.UNKNOWN
        ) from error
    except kafka.LoginRefused as error:
        connection.close()
        raise kafka.SaslAuthenticationFailed(f"{api} to {address}: {error}") from error
    except (kafka.RequestRefused, kafka.OutcomeUnknown) as error:
        connection.close()
        outcome = kafka.NOT_WRITTEN if isinstance(error, kafka.RequestRefused) else kafka.UNKNOWN
        raise kafka.NetworkException(f"{api} to {address}: {error}", outcome=outcome) from error
    except (OSError, http.client.HTTPException, kafka.ProtocolError) as error:
        connection.close()
        cause = _cause(error, address, tls) if is_new else error
        why = str(cause) if isinstance(cause, kafka.TlsFailed) else repr(error)
        raise kafka.NetworkException(f"{api} to {address}: no answer: {why}", outcome=kafka.UNKNOWN) from cause
    except BaseException:  # a task of Spark that is killed, Ctrl-C: the answer may still come
        connection.close()
        raise
    if connection.sock is not None:  # the broker may have ended it with its answer
        _connections[address, tls] = connection
    refusal = error_in(response)
    if isinstance(refusal, kafka.BrokerNotAvailable):
        raise kafka.NetworkException(f"{api} to {address}: {refusal.message}", outcome=refusal.outcome) from refusal
    if refusal is not None:
        raise refusal
    return response


def _cause(error: Exception, address: Address, tls: ClientTls | None) -> Exception:
    """What ended a new connection: TlsFailed if the two ends certainly do not agree on TLS, else the error itself."""
    if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return kafka.TlsFailed(tls_failure(error))
    is_closed = isinstance(error, ConnectionResetError)  # http.client's RemoteDisconnected is one
    if tls is None and is_closed and speaks_tls(address, TLS_PROBE_S):
        return kafka.TlsFailed(NEEDS_TLS)
    return error


def _new_connection(address: Address, patience_s: float, tls: ClientTls | None) -> http.client.HTTPConnection:
    """Not connected yet. Files are read for each connection, so that new certificates are used."""
    if tls is None:
        return http.client.HTTPConnection(address.host, address.port, timeout=patience_s)
    return http.client.HTTPSConnection(address.host, address.port, timeout=patience_s, context=tls.context())


def _exchange(connection: http.client.HTTPConnection, api: str, buffers: Sequence[Any], timeout_s: float) -> bytes:
    connection.sock.settimeout(timeout_s)
    connection.putrequest("POST", RPC_PATH + api, skip_accept_encoding=True)
    connection.putheader("Content-Type", MSGPACK)
    connection.putheader("Content-Length", str(sum(map(len, buffers))))
    connection.endheaders()
    for buffer in buffers:
        connection.send(buffer)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != http.client.OK:
        raise http_failure(answer.status, body)
    return body


def close_all() -> None:
    """Close the connections of this process. In a fork this lets go of its parent's, which go on there."""
    while _connections:
        _connections.popitem()[1].close()


atexit.register(close_all)
os.register_at_fork(after_in_child=close_all)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The leader of a partition, as a broker reported it."""

    address: Address
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic, as a broker reported it."""

    topic_id: TopicId | None
    partitions: tuple[int, ...]


class Brokers:
    """A cluster, known by some of its brokers. Every method raises BrokersUnreachable when its time is up."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        api_timeout_s: float,
        isolation_level: int = m.READ_UNCOMMITTED,
        tls: ClientTls | None = None,
    ) -> None:
        """Args: ``isolation_level`` says where :meth:`ends` are and what :meth:`fetch` may return, as in Kafka.

        ``tls``: None: brokers are called in plain text.
        """
        self._tls = tls
        self.isolation_level = isolation_level
        self._bootstrap = tuple(bootstrap)
        self._api_timeout_s = api_timeout_s
        self._known: tuple[Address, ...] = ()
        self._seen = ("", NO_OFFSET)
        """Cluster id and end of the newest metadata that any broker has reported."""
        self._silent: dict[Address, None] = {}
        """Brokers that did not respond to the last request that any broker can answer."""
        self._leaders: dict[TopicPartition, Leader] = {}
        self._topics: dict[str, Topic] = {}

    def call(self, address: Address, request: object, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """As the function of this name, as this cluster is called."""
        return call(address, request, timeout_s=timeout_s, tls=self._tls)

    # ---- retries -----------------------------------------------------------------------------------------------------

    def retrying(self, what: str, attempt: Callable[[], Result], *, timeout_s: float | None = None) -> Result:
        """Call ``attempt`` until it succeeds; its retriable errors are retried with growing pauses and new metadata."""
        ends_at = time.monotonic() + (self._api_timeout_s if timeout_s is None else timeout_s)
        pause_s = BACKOFF_FIRST_S
        while True:
            try:
                return attempt()
            except kafka.ProtocolError as error:
                if not error.retriable:
                    raise
                if error.stale_metadata:
                    self.forget_leaders()
                if time.monotonic() + pause_s >= ends_at:
                    raise BrokersUnreachable(f"{what}: given up after the last error: {error}") from error
            time.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - jitter needs no secret
            pause_s = min(BACKOFF_MAX_S, pause_s * 2)

    def forget_leaders(self) -> None:
        """Refresh before the next call."""
        self._leaders.clear()

    def ask_any(
        self,
        request: object,
        *,
        timeout_s: float = ASK_TIMEOUT_S,
        failure: Callable[[Any], kafka.ProtocolError | None] = error_in,
    ) -> Any:
        """The first answer of any broker; NetworkException, with what each of them did, when none gives one, and
        TlsFailed when it is for TLS that none does.

        Who is silent for ``timeout_s`` is passed over, and asked last until it answers. An answer whose ``failure``
        can be retried is passed over too, any other failure is raised. Metadata older than what this object
        has seen is no answer: that broker is behind the others, or just started.
        """
        errors: list[kafka.ProtocolError] = []
        for address in sorted(dict.fromkeys((*self._known, *self._bootstrap)), key=lambda each: each in self._silent):
            try:
                response = self.call(address, request, timeout_s=timeout_s)
            except kafka.NetworkException as error:
                errors.append(error)
                self._silent[address] = None
                continue
            self._silent.pop(address, None)
            refusal = failure(response)
            if refusal is not None and not refusal.retriable:
                raise refusal
            if refusal is not None:
                errors.append(
                    kafka.NetworkException(f"{address}: {refusal.name}: {refusal.message}", outcome=refusal.outcome)
                )
                continue
            if not isinstance(response, m.MetadataResponse):
                return response
            cluster_id, offset = self._seen
            if cluster_id != response.cluster_id or response.metadata_offset >= offset:
                self._seen = (response.cluster_id, response.metadata_offset)
                return response
            errors.append(
                kafka.NetworkException(f"{address} knows the metadata to {response.metadata_offset}, not to {offset}")
            )
        message = "; ".join(each.message for each in errors) or "no bootstrap servers"
        if errors and all(isinstance(each.__cause__, kafka.TlsFailed) for each in errors):
            raise kafka.TlsFailed(message)  # which is not retried: time does not mend it
        outcome = kafka.UNKNOWN if any(each.outcome == kafka.UNKNOWN for each in errors) else kafka.NOT_WRITTEN
        raise kafka.NetworkException(message, outcome=outcome)

    def _ask_controller(self, request: m.MetadataRequest) -> m.MetadataResponse:
        """The active controller's answer: it has all that was ever recorded, any other broker may lack the end."""
        metadata: m.MetadataResponse = self.ask_any(m.MetadataRequest(topics=()))
        place = next((each for each in metadata.brokers if each.node_id == metadata.controller_id), None)
        if place is None:
            raise kafka.LeaderNotAvailable("the cluster has no active controller at present")
        address = Address(place.host, place.port)
        # To be elected is not yet to be active; this is answered by an active one only, and creates nothing.
        self.call(address, m.CreateTopicsRequest(topics=()))
        response: m.MetadataResponse = self.call(address, request)
        return response

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None, *, certain: bool = False) -> dict[str, Topic]:
        """The topics that exist, of ``names`` or of all; internal ones are left out.

        ``certain``: what is not among them does not exist. Without it a broker may be asked that has just started.
        """
        wanted = None if names is None else tuple(sorted(names))
        ask = self._ask_controller if certain else self.ask_any
        return self.retrying("asking for metadata", lambda: self._refresh(wanted, ask))

    def _refresh(
        self, names: tuple[str, ...] | None, ask: Callable[[m.MetadataRequest], m.MetadataResponse]
    ) -> dict[str, Topic]:
        response = ask(m.MetadataRequest(topics=names))
        nodes = {each.node_id: Address(each.host, each.port) for each in response.brokers}
        self._known = tuple(nodes.values())
        found: dict[str, Topic] = {}
        for topic in response.topics:
            error = error_in(topic)
            if isinstance(error, kafka.UnknownTopicOrPartition):
                continue
            if error is not None:
                raise error
            if topic.is_internal and names is None:
                continue
            found[topic.name] = Topic(
                topic_id=topic.topic_id, partitions=tuple(sorted(each.partition for each in topic.partitions))
            )
            for each in topic.partitions:
                name = TopicPartition(topic.name, each.partition)
                if each.leader_id != NO_NODE and each.leader_id in nodes:
                    self._leaders[name] = Leader(address=nodes[each.leader_id], epoch=each.leader_epoch)
                else:
                    self._leaders.pop(name, None)
        self._topics.update(found)
        return found

    def leader(self, partition: TopicPartition) -> Leader:
        """One attempt: from memory, or from a broker. LeaderNotAvailable, UnknownTopicOrPartition."""
        known = self._leaders.get(partition)
        if known is not None:
            return known
        topic = self._refresh((partition.topic,), self.ask_any).get(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            raise kafka.UnknownTopicOrPartition(f"{partition} does not exist")
        known = self._leaders.get(partition)
        if known is None:
            raise kafka.LeaderNotAvailable(f"{partition} has no leader at present")
        return known

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has; UnknownTopicOrPartition after the time for retries as a sentence."""

        def attempt() -> int:
            known = self._topics.get(topic) or self._refresh((topic,), self.ask_any).get(topic)
            if known is None:
                raise kafka.UnknownTopicOrPartition(f"no broker knows the topic {topic}")
            return len(known.partitions)

        return self.retrying(f"looking for the topic {topic}", attempt)

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[Address, list[TopicPartition]]:
        groups: dict[Address, list[TopicPartition]] = {}
        for partition in sorted(partitions):
            groups.setdefault(self.leader(partition).address, []).append(partition)
        return groups

    def _ask_leaders(
        self, what: str, names: Iterable[TopicPartition], make: Callable[[list[TopicPartition]], object]
    ) -> dict[TopicPartition, Any]:
        """The leaders' answers for partitions; a retry asks only for those that are still without one."""
        found: dict[TopicPartition, Any] = {}

        def attempt() -> dict[TopicPartition, Any]:
            groups = self._by_leader(name for name in names if name not in found)
            for address, part in [(address, part) for address, group in groups.items() for part in in_parts(group)]:
                for each in self.call(address, make(part)).partitions:
                    error = error_in(each)
                    if error is not None:
                        raise error
                    found[TopicPartition(each.topic, each.partition)] = each
            return found

        return self.retrying(what, attempt)

    # ---- positions ---------------------------------------------------------------------------------------------------

    def list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[Offset, Epoch]]:
        """Offset and leader epoch for a time in ms (or LATEST, EARLIEST) per partition; offset -1: no such record."""

        def make(group: list[TopicPartition]) -> m.ListOffsetsRequest:
            asked = tuple(
                m.ListOffsetsPartition(topic=name.topic, partition=name.partition, timestamp=times[name])
                for name in group
            )
            return m.ListOffsetsRequest(isolation_level=self.isolation_level, partitions=asked)

        found = self._ask_leaders("asking for offsets", times, make)
        return {name: (each.offset, each.leader_epoch) for name, each in found.items()}

    def epoch_ends(self, epochs: Mapping[TopicPartition, Epoch]) -> dict[TopicPartition, Offset]:
        """Where the largest epoch up to the given one ends in the leader's log; -1 when it knows none."""

        def make(group: list[TopicPartition]) -> m.OffsetForLeaderEpochRequest:
            asked = tuple(
                m.EpochQuery(topic=name.topic, partition=name.partition, leader_epoch=epochs[name]) for name in group
            )
            return m.OffsetForLeaderEpochRequest(partitions=asked)

        found = self._ask_leaders("asking where epochs end", epochs, make)
        return {name: each.end_offset for name, each in found.items()}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[Offset, Epoch]]:
        """End of what may be read (high watermark, or last stable offset), and leader epoch of each."""
        return self.list_offsets(dict.fromkeys(partitions, m.LATEST))

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Log start of each."""
        return {name: at for name, (at, _) in self.list_offsets(dict.fromkeys(partitions, m.EARLIEST)).items()}

    # ---- reading and writing: one attempt each -----------------------------------------------------------------------

    def fetch(
        self,
        partition: TopicPartition,
        offset: Offset,
        *,
        epoch: Epoch,
        topic_id: TopicId | None,
        max_bytes: int,
        max_wait_ms: int,
    ) -> m.FetchedPartition:
        """One fetch from the leader, fenced by its epoch and the topic's id. Its error is raised."""
        request = m.FetchRequest(
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            isolation_level=self.isolation_level,
            partitions=(
                m.FetchPartition(
                    topic=partition.topic,
                    partition=partition.partition,
                    topic_id=topic_id,
                    current_leader_epoch=epoch,
                    fetch_offset=offset,
                    partition_max_bytes=max_bytes,
                ),
            ),
        )
        timeout_s = CALL_TIMEOUT_S + max_wait_ms / 1000
        response: m.FetchResponse = self.call(self.leader(partition).address, request, timeout_s=timeout_s)
        answer = response.partitions[0]
        error = error_in(answer)
        if error is not None:
            raise error
        return answer

    def produce(
        self,
        batches: Sequence[tuple[TopicPartition, bytes | bytearray]],
        *,
        timeout_s: float,
        transactional_id: str | None = None,
    ) -> list[m.ProducedPartition]:
        """Send a batch for each of some partitions of one leader, acks=all; the answers in order, errors not raised.

        With ``transactional_id`` the partitions join the producer's transaction (transaction version 2).
        """
        request = m.ProduceRequest(
            timeout_ms=int(timeout_s * 1000),
            transactional_id=transactional_id,
            transaction_version=TRANSACTION_V2 if transactional_id else 0,
            partitions=tuple(
                m.ProducePartition(topic=name.topic, partition=name.partition, records=(batch,))
                for name, batch in batches
            ),
        )
        address = self.leader(batches[0][0]).address
        response: m.ProduceResponse = self.call(address, request, timeout_s=timeout_s + CALL_TIMEOUT_S)
        return list(response.partitions)

    def new_producer_id(self) -> tuple[int, int]:
        """(producer id, epoch), never given to anybody else."""
        response = self.retrying("asking for a producer id", lambda: self.ask_any(m.InitProducerIdRequest()))
        return response.producer_id, response.producer_epoch


GROUP_KEY, TRANSACTION_KEY = 0, 1
"""What FindCoordinator looks up."""

FIND_SHARE = 5
"""Each broker that is asked for the coordinator has this part of the time for a request."""


class Coordinator:
    """The coordinator of one group or transactional id."""

    def __init__(self, brokers: Brokers, key: str, *, key_type: int = GROUP_KEY) -> None:
        self._brokers = brokers
        self._key = key
        self._key_type = key_type
        self._address: Address | None = None

    def ask(
        self,
        what: str,
        request: Any,
        *,
        error_of: Callable[[Any], kafka.ProtocolError | None] = error_in,
        timeout_s: float | None = None,
    ) -> Any:
        """Return the coordinator's response.

        Args:
            what: What is being done, for the sentence of BrokersUnreachable.
            request: The request; each attempt sends the same.
            error_of: What is wrong with a response; a retriable error makes another attempt.
            timeout_s: Seconds for all attempts (default: the time for retries of ``brokers``).

        Raises:
            BrokersUnreachable: No coordinator gave an answer in time.
            ProtocolError: The coordinator refused; no retry helps.
        """
        patience_s = timeout_s or CALL_TIMEOUT_S

        def attempt() -> Any:
            if self._address is None:
                # A silent broker may take a part of the time only: the others, and the coordinator, need some too.
                self._address = self._find(patience_s / FIND_SHARE)
            try:
                response = self._brokers.call(self._address, request, timeout_s=patience_s)
                error = error_of(response)
                if error is not None:
                    raise error
            except kafka.ProtocolError as error:
                if error.retriable:
                    self._address = None
                raise
            return response

        return self._brokers.retrying(what, attempt, timeout_s=timeout_s)

    def _find(self, timeout_s: float) -> Address:
        response: FindCoordinatorResponse = self._brokers.ask_any(
            FindCoordinatorRequest(keys=(self._key,), key_type=self._key_type),
            timeout_s=timeout_s,
            failure=lambda answer: error_in(answer.coordinators[0]),
        )
        found = response.coordinators[0]
        return Address(found.host, found.port)
