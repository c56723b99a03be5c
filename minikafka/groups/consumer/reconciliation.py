"""The way of one member from what it owns to its target (KIP-848; Kafka's ``CurrentAssignmentBuilder``).

A partition moves in steps: its owner is no longer assigned it, the owner reports that it has revoked it, it is free,
and the next heartbeat of its new owner assigns it. So no two members may ever use a partition at the same time.
"""

from __future__ import annotations

from minikafka.groups.consumer.group import ConsumerGroup, MemberState
from minikafka.groups.consumer.records import Current, TopicIdPartition


def reconciled(group: ConsumerGroup, member_id: str, owned: frozenset[TopicIdPartition] | None) -> Current:
    """The member's next step.

    Args:
        group: the group, with its newest target assignment.
        member_id: the member whose heartbeat this is.
        owned: the partitions that it reports to own; None: unknown, so it may still own all that it had.
    """
    current = group.current(member_id)
    if current.state == MemberState.UNREVOKED:
        if owned is None or not owned.isdisjoint(current.revoking):
            return current
        return _next(group, member_id, owned, current.epoch + 1)
    if current.state == MemberState.STABLE and current.epoch == group.assignment_epoch:
        return current
    return _next(group, member_id, owned, current.epoch)


def _next(group: ConsumerGroup, member_id: str, owned: frozenset[TopicIdPartition] | None, epoch: int) -> Current:
    current, target = group.current(member_id), group.target(member_id)
    kept = {each: at for each, at in current.assigned.items() if each in target}
    revoking = {each: at for each, at in current.assigned.items() if each not in target}
    previous = current.epoch if epoch != current.epoch else current.previous_epoch
    if revoking and (owned is None or not owned.isdisjoint(revoking)):
        return Current(
            epoch=epoch, previous_epoch=previous, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking
        )
    reached = group.assignment_epoch
    missing = target - kept.keys()
    free = {each for each in missing if group.owners.get(each, member_id) == member_id}
    return Current(
        epoch=reached,
        previous_epoch=current.epoch if reached != current.epoch else current.previous_epoch,
        state=MemberState.STABLE if free == missing else MemberState.UNRELEASED,
        assigned=kept | dict.fromkeys(sorted(free), reached),
    )
