"""The admin client: topics, records, leaders and the quorum, with aiokafka's names where it has them.

Rules for this file: a change goes to the controller that metadata names and follows it when it moves. A change whose
answer was lost is not sent again blindly: a broker that knows as much as this client is asked whether it happened, and
after a repetition TOPIC_ALREADY_EXISTS (or UNKNOWN_TOPIC for a deletion) counts as the success of the first attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minikafka import errors as kafka
from minikafka.client.admin_calls import raise_first
from minikafka.client.group_operations import GroupOperations
from minikafka.client.metadata import Leader
from minikafka.client.operations import Operations
from minikafka.client.routing import as_dict, as_names
from minikafka.client.security_operations import SecurityOperations
from minikafka.client.structs import NewTopic
from minikafka.client.transaction_operations import TransactionOperations
from minikafka.types import NO_EPOCH, NO_NODE, NodeId, Offset, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.apis import in_parts
from minikafka.wire.outcomes import error_in


class AdminClient(Operations, GroupOperations, TransactionOperations, SecurityOperations):
    """Manages a cluster. Use ``async with``, or ``start`` and ``close``.

    This is the form with the world given; ``minikafka.AdminClient(bootstrap_servers=...)`` makes its own.
    """

    # ------------------------------------------------------------------------------------------------------- topics

    async def create_topics(
        self,
        new_topics: Sequence[NewTopic],
        timeout_ms: int | None = None,
        *,
        validate_only: bool = False,
        wait: bool = True,
    ) -> tuple[m.CreatedTopic, ...]:
        """Create topics; the first topic's error is raised after all were tried (``facts`` has ``topic``).

        ``wait``: return when every partition has a leader that answers and all its brokers know the topic.
        """
        deadline = self._deadline(timeout_ms)
        topics = [_new_topic(each) for each in new_topics]
        request = m.CreateTopicsRequest(
            topics=tuple(_as_wire(each) for each in topics),
            timeout_ms=self._timeout_ms(timeout_ms),
            validate_only=validate_only,
        )

        async def happened() -> m.CreateTopicsResponse | None:
            found = await self._witnessed([each.name for each in topics])
            if any(topic.error_code for topic in found) or len(found) < len(topics):
                return None
            return m.CreateTopicsResponse(
                topics=tuple(
                    m.CreatedTopic(
                        name=topic.name,
                        topic_id=topic.topic_id,
                        num_partitions=len(topic.partitions),
                        replication_factor=len(topic.partitions[0].replica_nodes) if topic.partitions else -1,
                    )
                    for topic in found
                )
            )

        if validate_only:  # nothing can have happened: to ask again is all that a lost answer takes
            response: m.CreateTopicsResponse = await self._change(request, deadline)
        else:
            response = await self._change(request, deadline, happened=happened, repeated=kafka.TopicAlreadyExists)
        raise_first(response.topics)
        if wait and not validate_only:
            await self._wait_for([each.name for each in topics], response.metadata_offset, deadline)
        return response.topics

    async def delete_topics(
        self, topics: Sequence[str], timeout_ms: int | None = None, *, wait: bool = True
    ) -> tuple[m.DeletedTopic, ...]:
        """Delete topics; errors as :meth:`create_topics`. ``wait``: until every live broker has forgotten them."""
        deadline = self._deadline(timeout_ms)
        topics = as_names(topics, "delete_topics")
        # A request without a response is sent again, and the first one may still arrive when the topic was created
        # again: it must not delete that one.
        ids = {each.name: each.topic_id for each in await self._witnessed(topics) if each.topic_id is not None}
        request = m.DeleteTopicsRequest(topics=topics, timeout_ms=self._timeout_ms(timeout_ms), topic_ids=ids)

        def is_gone(topic: m.MetadataTopic) -> bool:
            if topic.topic_id is not None and topic.name in ids:
                return topic.topic_id != ids[topic.name]
            return topic.error_code == kafka.UnknownTopicOrPartition.code

        async def happened() -> m.DeleteTopicsResponse | None:
            found = await self._witnessed(topics)
            if len(found) < len(topics) or not all(map(is_gone, found)):
                return None
            return m.DeleteTopicsResponse(topics=tuple(m.DeletedTopic(name=topic) for topic in topics))

        response: m.DeleteTopicsResponse = await self._change(
            request, deadline, happened=happened, repeated=(kafka.UnknownTopicOrPartition, kafka.UnknownTopicId)
        )
        raise_first(response.topics)
        if wait:
            await self._wait_for_brokers(
                response.metadata_offset,
                deadline,
                lambda answer: all(each.error_code for each in answer.topics),
                topics,
            )
        return response.topics

    async def _witnessed(self, topics: Sequence[str]) -> tuple[m.MetadataTopic, ...]:
        """What a broker says of the topics that knows as much of the cluster as this client; () when none answers.

        One that knows less is no witness: it may not have heard of the topic yet, or not of its deletion.
        """
        answer = await self._answer_about(topics)
        return () if answer is None or answer.metadata_offset < self._changed_at else answer.topics

    async def list_topics(self) -> list[str]:
        """The names of all topics, sorted."""
        response = await self._metadata().ask_once(None)
        return sorted(topic.name for topic in response.topics if not topic.error_code)

    # ------------------------------------------------------------------------------------------------------ records

    async def delete_records(
        self, records_to_delete: Mapping[TopicPartition, Offset], timeout_ms: int | None = None
    ) -> dict[TopicPartition, Offset]:
        """Delete the records below each offset (-1: below the high watermark); the new log start offsets."""
        # A request without a response is sent again, and the first one may still arrive when the second one was
        # answered and more records were acknowledged. So each says where the records end that it deletes, and of which
        # topic they are.
        deadline = self._deadline(timeout_ms)
        view = self._metadata().view

        def make(group: list[tuple[TopicPartition, Offset, Leader]]) -> m.DeleteRecordsRequest:
            return m.DeleteRecordsRequest(
                timeout_ms=self._timeout_ms(timeout_ms),
                partitions=tuple(
                    m.DeleteRecordsPartition(
                        topic=each.topic, topic_id=view.topic_id(each.topic), partition=each.partition, offset=offset
                    )
                    for each, offset, _ in group
                ),
            )

        wanted = {TopicPartition(*each): offset for each, offset in records_to_delete.items()}
        all_of = {partition: m.LATEST for partition, offset in wanted.items() if offset == m.ALL_COMMITTED}
        if all_of:
            ends = await self._leaders().list_offsets(all_of, deadline=deadline)
            wanted |= {partition: end.offset for partition, end in ends.items()}
        answers = await self._leaders().ask(wanted, make, deadline=deadline)
        return {partition: answer.low_watermark for partition, answer in answers.items()}

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, m.ListedOffset]:
        """Offsets by time (milliseconds, or LATEST -1, EARLIEST -2, MAX_TIMESTAMP -3)."""
        asked = {TopicPartition(*each): timestamp for each, timestamp in wanted.items()}
        return await self._leaders().list_offsets(asked, deadline=self._deadline(None))

    # ------------------------------------------------------------------------------------------------------ cluster

    async def describe_cluster(self) -> dict[str, Any]:
        """aiokafka's shape: cluster_id, controller_id, brokers (node_id, host, port, rack)."""
        response = await self._metadata().ask_once(())
        return {
            "cluster_id": response.cluster_id,
            "controller_id": response.controller_id,
            "brokers": [
                {"node_id": each.node_id, "host": each.host, "port": each.port, "rack": each.rack}
                for each in response.brokers
            ],
        }

    async def unregister_broker(self, node_id: NodeId, timeout_ms: int | None = None) -> None:
        """Forget a broker that is gone for good. It must be fenced and hold no replica: InvalidRequest otherwise."""
        await self._change(m.UnregisterBrokerRequest(broker_id=node_id), self._deadline(timeout_ms))

    async def describe_quorum(self) -> m.DescribeQuorumResponse:
        """The metadata quorum as its leader sees it (kafka-metadata-quorum)."""
        return await self._change(m.DescribeQuorumRequest(), self._deadline(None))  # type: ignore[no-any-return]

    async def elect_leaders(
        self,
        election_type: str = "preferred",
        partitions: Iterable[TopicPartition] | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, kafka.ProtocolError | None]:
        """Elect the preferred (or ``unclean``: any live) leader of these, or of all; what went wrong by partition."""
        if election_type not in ("preferred", "unclean"):
            raise kafka.InvalidRequest(f"election_type={election_type!r}: preferred or unclean is needed")
        deadline = self._deadline(timeout_ms)
        chosen = None if partitions is None else as_dict(partitions)
        if election_type == "unclean":
            return await self._elect_unclean(chosen, deadline)
        names = None if chosen is None else m.PartitionName.each(chosen)
        return await self._elect(m.ElectLeadersRequest(election_type=election_type, partitions=names), deadline)

    async def _elect_unclean(
        self, partitions: Iterable[TopicPartition] | None, deadline: float
    ) -> dict[TopicPartition, kafka.ProtocolError | None]:
        """Name the leader epochs: a copy of the request that arrives late must not elect a replica that lacks records
        while the one that has them is away for a moment.
        """
        names = None if partitions is None else tuple(dict.fromkeys(each.topic for each in partitions))
        states = {
            TopicPartition(topic.topic, each.partition): each
            for topic in await self._describe(names, deadline)
            for each in topic.partitions
        }
        if partitions is None:
            partitions = [name for name, state in states.items() if state.leader == NO_NODE]
        found: dict[TopicPartition, kafka.ProtocolError | None] = {}
        for part in in_parts(partitions):
            epochs = tuple(states[name].leader_epoch if name in states else NO_EPOCH for name in part)
            request = m.ElectLeadersRequest(
                election_type="unclean", partitions=m.PartitionName.each(part), leader_epochs=epochs
            )
            found |= await self._elect(request, deadline)
        return found

    async def _elect(
        self, request: m.ElectLeadersRequest, deadline: float
    ) -> dict[TopicPartition, kafka.ProtocolError | None]:
        response: m.ElectLeadersResponse = await self._change(request, deadline)
        return {TopicPartition(each.topic, each.partition): error_in(each) for each in response.partitions}


def _new_topic(given: Any) -> NewTopic:
    """A NewTopic, also of a plain tuple. InvalidRequest for a name alone, whose letters would be its members."""
    if not isinstance(given, tuple):
        raise kafka.InvalidRequest(f"create_topics takes NewTopic(name, num_partitions, ...), not {given!r:.80}")
    return NewTopic(*given)


def _as_wire(topic: NewTopic) -> m.NewTopic:
    return m.NewTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            m.ReplicaAssignment(partition=partition, broker_ids=tuple(brokers))
            for partition, brokers in sorted((topic.replica_assignments or {}).items())
        ),
        configs={name: str(value) for name, value in (topic.topic_configs or {}).items()},
    )
