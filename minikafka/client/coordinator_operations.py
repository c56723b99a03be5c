"""The admin client's operations on consumer groups and transactions.

What an administrator asks and changes of consumer groups. Part of the admin client; names are aiokafka's.

Each group is asked of its coordinator, which is found first; a list is put together from all brokers. Changing or
deleting offsets may be sent again without harm.

What an administrator requests and changes of transactions. Part of the admin client.

Each broker lists the transactional ids that it coordinates; each leader lists the producers of its partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from minikafka.client.admin_calls import AdminCalls
from minikafka.client.caller import accepted
from minikafka.client.metadata import Leader
from minikafka.client.routing import GROUP_KEY, TRANSACTION_KEY, as_dict, error_of_coordinator, error_within
from minikafka.client.structs import OffsetAndMetadata, OffsetsPartlyChanged
from minikafka.coordination.packing import by_topic
from minikafka.errors import (
    UNKNOWN,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidRequest,
    NonEmptyGroup,
    ProtocolError,
    TransactionalIdNotFound,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from minikafka.groups.protocol import Subscription
from minikafka.transactions.hanging import OpenTransaction, still_open, suspects
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import NO_NODE, NodeId, Offset, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire import transaction_messages as t
from minikafka.wire.admin import PartitionName
from minikafka.wire.messages import ActiveProducer, DescribeProducersPartition, DescribeProducersRequest
from minikafka.wire.outcomes import error_in


class GroupOperations(AdminCalls):
    """The methods for groups."""

    # ---- looking ----

    async def list_consumer_groups(
        self, broker_ids: Sequence[NodeId] | None = None, *, states: Iterable[str] = ()
    ) -> list[g.ListedGroup]:
        """All groups of these (default: all living) brokers in the order of their names; ``states``: only in those."""
        deadline = self._deadline(None)
        request = g.ListGroupsRequest(states=tuple(states))
        nodes = await self._living() if broker_ids is None else broker_ids
        found: list[g.ListedGroup] = []
        for node in nodes:
            response: g.ListGroupsResponse = await self._once_loaded(node, request, deadline)
            found.extend(response.groups)
        return sorted(found, key=lambda group: group.group_id)

    async def describe_consumer_groups(
        self,
        group_ids: Sequence[str],
        group_coordinator_id: NodeId | None = None,  # noqa: ARG002 - aiokafka's; it is always looked up here
        include_authorized_operations: bool = False,  # noqa: FBT001, FBT002 - aiokafka's signature
    ) -> list[g.DescribedGroup]:
        """State, generation and members of each. Raises GroupIdNotFound for the first that does not exist."""
        if include_authorized_operations:
            raise InvalidRequest("include_authorized_operations: there is no authorization to tell of")
        found: list[g.DescribedGroup] = []
        for group in group_ids:
            request = g.DescribeGroupsRequest(groups=(group,))
            response = await self._ask_coordinator(group, request, _error_of_groups)
            found.extend(accepted(response, _error_of_groups).groups)
        return found

    async def find_coordinator(self, group_id: str, coordinator_type: int = GROUP_KEY) -> NodeId:
        """Return the broker that coordinates a group (S32), or with ``coordinator_type=1`` a transactional id."""
        if coordinator_type not in (GROUP_KEY, TRANSACTION_KEY):
            raise InvalidRequest(
                f"coordinator_type={coordinator_type}: 0 (a group) or 1 (a transactional id) is needed"
            )
        return await self._coordinator(group_id, key_type=coordinator_type).locate(self._deadline(None))

    async def list_consumer_group_offsets(
        self,
        group_id: str,
        group_coordinator_id: NodeId | None = None,  # noqa: ARG002 - as above
        partitions: Iterable[TopicPartition] | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, for all or for these partitions; those without are left out."""
        asked = None
        if partitions is not None:
            asked = tuple(g.GroupPartition(topic=topic, partition=number) for topic, number in as_dict(partitions))
        response: g.OffsetFetchResponse = await self._ask_group(
            group_id, g.OffsetFetchRequest(group_id=group_id, partitions=asked)
        )
        return {
            TopicPartition(each.topic, each.partition): OffsetAndMetadata(each.offset, each.metadata)
            for each in response.partitions
            if each.offset >= 0
        }

    # ---- changing ----

    async def alter_consumer_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Commit for a group that has no members.

        Raises NonEmptyGroup while it has some, UnknownTopicOrPartition when one of the partitions is not there: nothing
        is changed then. OffsetsPartlyChanged says of each what became of it, should one go just then.
        """
        for (topic, number), offset in offsets.items():
            if offset < 0:
                raise InvalidRequest(f"offset={offset} of {topic}-{number} is negative", member="offsets")
        await self._check_there(as_dict(offsets))
        request = g.OffsetCommitRequest(
            group_id=group_id,
            partitions=tuple(
                g.CommitPartition(topic=partition[0], partition=partition[1], offset=offset)
                for partition, offset in offsets.items()
            ),
        )
        try:
            response = await self._ask_group(group_id, request)
        except UnknownMemberId as error:
            raise NonEmptyGroup(f"{error.message}: stop its members first") from error
        _raise_refused(group_id, "committed", response.partitions)

    async def delete_consumer_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget what a group has committed for these, of topics that no member reads.

        Raises GroupSubscribedToTopic when a member reads one of the topics: nothing is forgotten then.
        OffsetsPartlyChanged says of each what became of it, should a member begin to read just then.
        """
        wanted = as_dict(partitions)
        await self._check_unread(group_id, wanted)
        asked = tuple(g.GroupPartition(topic=topic, partition=number) for topic, number in wanted)
        response = await self._ask_group(group_id, g.OffsetDeleteRequest(group_id=group_id, partitions=asked))
        _raise_refused(group_id, "forgotten", response.partitions)

    async def _check_there(self, partitions: Iterable[TopicPartition]) -> None:
        missing: list[str] = []
        for topic, numbers in by_topic(partitions).items():
            try:
                (found,) = await self.describe_topics([topic])
            except UnknownTopicOrPartition:
                missing.append(topic)
                continue
            known = [each.partition for each in found.partitions]
            missing += [f"{topic}-{number}" for number in numbers if number not in known]
        if missing:
            raise UnknownTopicOrPartition(f"there is no {', no '.join(missing)}: nothing was committed")

    async def _check_unread(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        (group,) = await self.describe_consumer_groups([group_id])
        read = {topic for member in group.members for topic in Subscription.readable(member.metadata).topics}
        refused = [topic for topic in by_topic(partitions) if topic in read]
        if refused:
            raise GroupSubscribedToTopic(
                f"members of group {group_id} read {', '.join(refused)}: nothing was forgotten; leave them out, or "
                "stop the members"
            )

    async def delete_consumer_groups(self, group_ids: Sequence[str]) -> None:
        """Delete groups without members, offsets and all. The first error is raised; those before it are gone.

        A retry that does not find the group counts as success if an earlier attempt may have deleted it.
        """
        for group in group_ids:
            response = await self._ask_coordinator(group, g.DeleteGroupsRequest(groups=(group,)), _error_of_groups)
            refusal = _error_of_groups(response)
            if refusal is not None and not (isinstance(refusal, GroupIdNotFound) and refusal.outcome == UNKNOWN):
                raise refusal

    async def _ask_group(self, group: str, request: Any) -> Any:
        """The coordinator's answer. Raises what refuses the whole."""
        return accepted(await self._ask_coordinator(group, request, error_of_coordinator))


def _raise_refused(group: str, what: str, outcomes: Sequence[g.PartitionOutcome]) -> None:
    """Raise what was refused: its own error when nothing was changed, else OffsetsPartlyChanged."""
    refused: dict[TopicPartition, ProtocolError] = {}
    done: list[TopicPartition] = []
    for each in outcomes:
        partition, error = TopicPartition(each.topic, each.partition), error_in(each)
        if error is None:
            done.append(partition)
        else:
            refused[partition] = error
    if not refused:
        return
    first = next(iter(refused.values()))
    reasons = "; ".join(f"{partition}: {error.name}: {error.message}" for partition, error in refused.items())
    if done:
        raise OffsetsPartlyChanged(
            f"group {group}: {what}: {', '.join(map(str, done))}; not {what}: {reasons}", done=done, refused=refused
        )
    unknown = any(error.outcome == UNKNOWN for error in refused.values())
    message = first.message if len(refused) == 1 else reasons
    raise type(first)(message, outcome=UNKNOWN if unknown else first.outcome, **first.facts)


_error_of_groups = partial(error_within, parts="groups")
_error_of_transactions = partial(error_within, parts="transactions")

MAX_TRANSACTION_TIMEOUT_MS = 900_000
"""Default of ``transaction.max.timeout.ms``: no transaction that a coordinator knows stays open for longer."""


class TransactionOperations(AdminCalls):
    """The methods for transactions."""

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        id_pattern: str = "",
    ) -> dict[NodeId, tuple[t.ListedTransaction, ...]]:
        """Return the transactional ids of every broker that coordinates some; empty filters select all.

        ``duration_ms``: only transactions that have been open for longer. ``id_pattern``: a regular expression in RE2's
        syntax that must match the whole transactional id (KIP-1152). Raises an error if the ids of one coordinator
        cannot be listed: the list is complete or there is none.
        """
        deadline = self._deadline(None)
        request = t.ListTransactionsRequest(
            states=tuple(states),
            producer_ids=tuple(producer_ids),
            duration_ms=duration_ms,
            id_pattern=id_pattern,
        )
        leaders = await self._transaction_leaders()
        found: dict[NodeId, tuple[t.ListedTransaction, ...]] = {}
        for node in sorted(await self._living()):
            response: t.ListTransactionsResponse = await self._once_loaded(node, request, deadline)
            found[node] = response.transactions
        if await self._transaction_leaders() != leaders:
            raise CoordinatorNotAvailable("a coordinator of transactions moved while they were listed: repeat it")
        return {node: listed for node, listed in found.items() if listed}

    async def _transaction_leaders(self) -> tuple[tuple[NodeId, int], ...]:
        """Leader and leader epoch of each partition of ``__transaction_state``, of which none is missing."""
        try:
            (topic,) = await self.describe_topics([TRANSACTIONS_TOPIC])
        except UnknownTopicOrPartition:
            return ()
        for each in topic.partitions:
            if each.leader == NO_NODE:
                raise CoordinatorNotAvailable(
                    f"{TRANSACTIONS_TOPIC}-{each.partition} has no leader: its transactional ids cannot be listed"
                )
        return tuple((each.leader, each.leader_epoch) for each in topic.partitions)

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[t.DescribedTransaction]:
        """Return state, producer and partitions of each. Raises TransactionalIdNotFound for the first unknown one."""
        found = []
        for name in transactional_ids:
            request = t.DescribeTransactionsRequest(transactional_ids=(name,))
            response = await self._ask_coordinator(name, request, _error_of_transactions, key_type=TRANSACTION_KEY)
            found.extend(accepted(response, _error_of_transactions).transactions)
        return found

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
        """Return the producers that the leader of each partition knows, with their open transactions."""

        def make(group: list[tuple[TopicPartition, None, Leader]]) -> DescribeProducersRequest:
            return DescribeProducersRequest(
                partitions=tuple(
                    DescribeProducersPartition(topic=each.topic, partition=each.partition) for each, _, _ in group
                )
            )

        answers = await self._leaders().ask(as_dict(partitions), make, deadline=self._deadline(None))
        return {name: answer.active for name, answer in answers.items()}

    async def open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """Return the open transactions of these partitions, as their leaders know them."""
        return [
            OpenTransaction(
                partition=name,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                coordinator_epoch=each.coordinator_epoch,
                start_offset=each.current_txn_start_offset,
                last_timestamp=each.last_timestamp,
            )
            for name, producers in (await self.describe_producers(partitions)).items()
            for each in producers
            if each.current_txn_start_offset >= 0
        ]

    async def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, older_than_ms: int = MAX_TRANSACTION_TIMEOUT_MS
    ) -> list[OpenTransaction]:
        """Return the open transactions of these partitions that no coordinator knows: they never end by themselves.

        ``older_than_ms``: only those whose last batch is older. With an authorizer, the caller needs DESCRIBE on all
        transactional ids and topics: a transaction that the caller may not see looks like a hanging one.
        """
        found = await self.open_transactions(partitions)
        old = suspects(found, {}, now_ms=self._wall_ms(), older_than_ms=older_than_ms)
        if not old:
            return []
        known = await self._partitions_of({each.producer_id for each in old})
        unknown = suspects(old, known, now_ms=self._wall_ms(), older_than_ms=older_than_ms)
        if not unknown:
            return []
        return still_open(unknown, await self.open_transactions([each.partition for each in unknown]))

    async def _partitions_of(self, producer_ids: Collection[int]) -> dict[int, frozenset[TopicPartition]]:
        """Partitions of the transactions of these producers, as their coordinators know them."""
        known: dict[int, frozenset[TopicPartition]] = {}
        listed = await self.list_transactions(producer_ids=sorted(producer_ids))
        for name in (each.transactional_id for transactions in listed.values() for each in transactions):
            try:
                (found,) = await self.describe_transactions([name])
            except TransactionalIdNotFound:
                continue  # It has expired: it has no transaction.
            partitions = frozenset(TopicPartition(each.topic, each.partition) for each in found.partitions)
            known[found.producer_id] = known.get(found.producer_id, frozenset()) | partitions
        return known

    async def abort_transaction(
        self, partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write an ABORT marker for a producer's open transaction, in one partition.

        It is meant for a hanging transaction. One that a coordinator still knows would be aborted in this partition and
        may be committed in others. Repeating the call is harmless.

        Args:
            partition: Where the transaction is open.
            producer_id: As :meth:`describe_producers` returns it, like the next two.
            producer_epoch: A lower one than the partition knows raises InvalidProducerEpoch.
            coordinator_epoch: -1 if the producer has no marker yet; a lower one than the partition knows raises
                TransactionCoordinatorFenced.
        """

        def make(group: list[tuple[TopicPartition, None, Leader]]) -> t.WriteTxnMarkersRequest:
            marker = t.TransactionMarker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                committed=False,
                coordinator_epoch=max(coordinator_epoch, 0),
                partitions=tuple(PartitionName(topic=each.topic, partition=each.partition) for each, _, _ in group),
            )
            return t.WriteTxnMarkersRequest(markers=(marker,))

        await self._leaders().ask(as_dict([partition]), make, deadline=self._deadline(None), results="markers")
