"""What an administrator asks and changes of consumer groups. Part of the admin client; names are aiokafka's.

Each group is asked of its coordinator, which is found first; a list is put together from all brokers. Changing or
deleting offsets may be sent again without harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from minikafka import errors as kafka
from minikafka.client.admin_calls import AdminCalls
from minikafka.client.caller import accepted
from minikafka.client.routing import GROUP_KEY, TRANSACTION_KEY, as_dict, as_names, error_of_coordinator, error_within
from minikafka.client.structs import OffsetAndMetadata, OffsetsPartlyChanged
from minikafka.coordination.packing import by_topic
from minikafka.groups.protocol import Subscription
from minikafka.types import NodeId, Offset, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
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
            raise kafka.InvalidRequest("include_authorized_operations: there is no authorization to tell of")
        found: list[g.DescribedGroup] = []
        for group in as_names(group_ids, "describe_consumer_groups"):
            request = g.DescribeGroupsRequest(groups=(group,))
            response = await self._ask_coordinator(group, request, _error_of_groups)
            found.extend(accepted(response, _error_of_groups).groups)
        return found

    async def find_coordinator(self, group_id: str, coordinator_type: int = GROUP_KEY) -> NodeId:
        """Return the broker that coordinates a group (S32), or with ``coordinator_type=1`` a transactional id."""
        if coordinator_type not in (GROUP_KEY, TRANSACTION_KEY):
            raise kafka.InvalidRequest(
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
        asked = None if partitions is None else m.PartitionName.each(as_dict(partitions))
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
                raise kafka.InvalidRequest(f"offset={offset} of {topic}-{number} is negative", member="offsets")
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
        except kafka.UnknownMemberId as error:
            raise kafka.NonEmptyGroup(f"{error.message}: stop its members first", outcome=error.outcome) from error
        _raise_refused(group_id, "committed", response.partitions)

    async def delete_consumer_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget what a group has committed for these, of topics that no member reads.

        Raises GroupSubscribedToTopic when a member reads one of the topics: nothing is forgotten then.
        OffsetsPartlyChanged says of each what became of it, should a member begin to read just then.
        """
        wanted = as_dict(partitions)
        await self._check_unread(group_id, wanted)
        asked = m.PartitionName.each(wanted)
        response = await self._ask_group(group_id, g.OffsetDeleteRequest(group_id=group_id, partitions=asked))
        _raise_refused(group_id, "forgotten", response.partitions)

    async def _check_there(self, partitions: Iterable[TopicPartition]) -> None:
        missing: list[str] = []
        for topic, numbers in by_topic(partitions).items():
            try:
                (found,) = await self.describe_topics([topic])
            except kafka.UnknownTopicOrPartition:
                missing.append(topic)
                continue
            known = [each.partition for each in found.partitions]
            missing += [f"{topic}-{number}" for number in numbers if number not in known]
        if missing:
            raise kafka.UnknownTopicOrPartition(f"there is no {', no '.join(missing)}: nothing was committed")

    async def _check_unread(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        (group,) = await self.describe_consumer_groups([group_id])
        read = {topic for member in group.members for topic in Subscription.readable(member.metadata).topics}
        refused = [topic for topic in by_topic(partitions) if topic in read]
        if refused:
            raise kafka.GroupSubscribedToTopic(
                f"members of group {group_id} read {', '.join(refused)}: nothing was forgotten; leave them out, or "
                "stop the members"
            )

    async def delete_consumer_groups(self, group_ids: Sequence[str]) -> None:
        """Delete groups without members, offsets and all. The first error is raised; those before it are gone.

        A retry that does not find the group counts as success if an earlier attempt may have deleted it.
        """
        for group in as_names(group_ids, "delete_consumer_groups"):
            response = await self._ask_coordinator(group, g.DeleteGroupsRequest(groups=(group,)), _error_of_groups)
            refusal = _error_of_groups(response)
            if refusal is not None and not (
                isinstance(refusal, kafka.GroupIdNotFound) and refusal.outcome == kafka.UNKNOWN
            ):
                raise refusal

    async def _ask_group(self, group: str, request: Any) -> Any:
        """The coordinator's answer. Raises what refuses the whole."""
        return accepted(await self._ask_coordinator(group, request, error_of_coordinator))


def _raise_refused(group: str, what: str, outcomes: Sequence[g.PartitionOutcome]) -> None:
    """Raise what was refused: its own error when nothing was changed, else OffsetsPartlyChanged."""
    refused: dict[TopicPartition, kafka.ProtocolError] = {}
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
    unknown = any(error.outcome == kafka.UNKNOWN for error in refused.values())
    message = first.message if len(refused) == 1 else reasons
    raise type(first)(message, outcome=kafka.UNKNOWN if unknown else first.outcome, **first.facts)


_error_of_groups = partial(error_within, parts="groups")
