"""Bugs of consumer groups: in the coordinator's rules and driver, in members, in assignors.

They are hunted with seeds whose plans have a group: the n-th of those in ordinary campaigns.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.client.base_member import BaseMember, PollGate
from minikafka.client.group_member import Member
from minikafka.client.group_offsets import GroupOffsets
from minikafka.client.positions import Positions
from minikafka.errors import FencedInstanceId, IllegalGeneration, UnknownMemberId
from minikafka.groups import assignors, rebalance
from minikafka.groups.assignors import RangeAssignor
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.group import Group, State
from minikafka.groups.group import Member as GroupMember
from minikafka.groups.offsets import CommittedOffsets
from minikafka.groups.rebalance import Rebalance
from minikafka.groups.records import OffsetRecord, unpacked
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import HeartbeatResponse
from tests.rules.test_group_offsets import (
    test_a_group_is_deleted_with_its_offsets_only_when_it_is_empty as deleted_groups_stay_deleted,
)
from tests.rules.test_groups import (
    test_a_heartbeat_while_preparing_keeps_the_session as heartbeats_keep_the_session,
)
from tests.rules.test_groups import (
    test_a_silent_member_is_dropped_and_the_others_rebalance as silent_member_is_dropped,
)
from tests.sim.bug import Bug
from tests.sim.planted import Planted
from tests.sim.planted_group_plans import (
    with_a_group,
    with_group,
    with_late_polls,
    with_nothing_to_fear,
    with_one_that_leaves,
    with_static_zombies,
)

# ---- the coordinator's rules -----------------------------------------------------------------------------------------


def generation_stays(original: Callable[..., None]) -> Callable[..., None]:
    """A join phase ends, and the generation is the one before, but for the first."""

    def complete(self: Rebalance, group: Group, step: Any, why: str) -> None:
        before = group.generation
        if before > 0:
            group.generation = before - 1
        original(self, group, step, why)
        if group.state is State.PREPARING:
            group.generation = before

    return complete


def any_generation(original: Callable[..., None]) -> Callable[..., None]:
    """A member commits in whatever generation it is."""

    def check(self: GroupCoordinator, request: Any, step: Any) -> None:
        group = self._groups.get(request.group_id)
        if group is not None and request.generation_id >= 0:
            request = structs.replace(request, generation_id=group.generation)
        original(self, request, step)

    return check


def any_committer(original: Callable[..., None]) -> Callable[..., None]:
    """Who is no member any more commits as before."""

    def check(self: GroupCoordinator, request: Any, step: Any) -> None:
        try:
            original(self, request, step)
        except (UnknownMemberId, FencedInstanceId, IllegalGeneration):
            return

    return check


def every_heart(original: Callable[..., Any]) -> Callable[..., Any]:
    """Strangers' heartbeats are fine."""

    def heartbeat(self: Rebalance, group: Group, *request: Any) -> Any:
        try:
            return original(self, group, *request)
        except (UnknownMemberId, IllegalGeneration):
            return HeartbeatResponse()

    return heartbeat


def instance_is_enough(original: Callable[..., Any]) -> Callable[..., Any]:
    """Whoever knows the instance id is the member, whatever its member id."""

    def member_of(self: Rebalance, group: Group, member_id: str, instance_id: str | None) -> Any:
        current = group.static.get(instance_id) if instance_id is not None else None
        return original(self, group, current or member_id, instance_id)

    return member_of


def no_look_at_the_generation(group: Group, generation: int) -> None:
    return


def generation_forgotten(original: Callable[..., Group]) -> Any:
    """A new coordinator counts from the start again."""

    def of(cls: type[Group], group_id: str, value: Any) -> Group:
        return original(group_id, replace(value, generation=0))

    return classmethod(of)


def first_one_counts(original: Callable[..., bool]) -> Callable[..., bool]:
    """On loading, what was committed first stays."""

    def replay(self: GroupCoordinator, key: bytes, value: bytes | None, **place: int) -> bool:
        record = unpacked(key, value)
        if isinstance(record, OffsetRecord) and record.partition in self._offsets.of(record.group):
            return True
        return original(self, key, value, **place)

    return replay


def counting_at_once(original: Callable[..., None]) -> Callable[..., None]:
    """What is appended counts, for members that ask for their offsets."""

    def begun(self: CommittedOffsets, records: tuple[OffsetRecord, ...]) -> None:
        original(self, records)
        for each in records:
            self.apply(each)

    return begun


def without_offsets(original: Callable[..., bool]) -> Callable[..., bool]:
    """Only groups are loaded."""

    def replay(self: GroupCoordinator, key: bytes, value: bytes | None, **place: int) -> bool:
        return isinstance(unpacked(key, value), OffsetRecord) or original(self, key, value, **place)

    return replay


def tombstones_ignored(original: Callable[..., bool]) -> Callable[..., bool]:
    def replay(self: GroupCoordinator, key: bytes, value: bytes | None, **place: int) -> bool:
        return value is None or original(self, key, value, **place)

    return replay


def members_needed(self: Group, protocol_type: str, names: Any) -> bool:
    """As it was: a join phase that all have left again has no assignor in common with anybody."""
    if self.state is State.EMPTY and not self.members:
        return True
    return protocol_type == self.protocol_type and not set(self.common()).isdisjoint(names)


# ---- the coordinator's driver ----------------------------------------------------------------------------------------


def answered_at_once(original: Callable[..., None]) -> Callable[..., None]:
    """What is appended counts, and is told, before it is committed."""

    def append(self: Any, write: Any) -> None:
        original(self, write)
        if self._in_flight and self._in_flight[-1].write is write:
            self._in_flight.pop()
            with self.step() as step:
                self.coordinator.committed(write, step)

    return append


def loaded_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """A new coordinator serves without having read its log."""

    async def load(self: Any) -> None:
        self.is_loaded = True
        with self.step() as step:
            self.coordinator.loaded(step)
        await asyncio.sleep(0)

    return load


# ---- members ---------------------------------------------------------------------------------------------------------


def handed_out_is_done(self: Positions) -> Any:
    """What was handed out counts as processed."""
    return self.consumed()


def stays_when_thrown_out(self: BaseMember, partitions: Sequence[TopicPartition]) -> None:
    """Nothing is dropped: it reads on."""


async def never_waits(self: PollGate) -> None:
    self.holding = True


async def nothing_is_committed(self: BaseMember, partitions: Sequence[TopicPartition]) -> None:
    """Partitions go without a commit of what was processed of them."""
    await self._call("on_partitions_revoked", partitions)
    self._drop(partitions)


async def nothing_is_found(self: GroupOffsets, partitions: Any) -> dict[TopicPartition, Any]:
    """Where the group left off is not asked for."""
    return {}


async def alone(self: PollGate) -> None:
    """As it was: who waits last for the application takes the place of who waits already."""
    if self._depth == 0 and not self.holding:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = [waiting]
        await waiting
        self._waiting = []
    self.holding = True


def leaves_and_waits(original: Callable[..., Any]) -> Callable[..., Any]:
    """As it was: who is late waits for the application, whoever else does."""

    async def thrown_out(self: Member, why: str, *, forget_id: bool, awaits_poll: bool = False) -> None:
        await original(self, why, forget_id=forget_id, awaits_poll=awaits_poll)
        if awaits_poll:
            await self._gate.hold()
            self._gate.release()
            self._must_join.set()

    return thrown_out


def nothing_is_withheld(assigned: Any, members: Any) -> Any:
    return assigned


def first_one_twice(original: Callable[..., Any]) -> Callable[..., Any]:
    """The first partition is dealt to everybody."""

    def assign(self: RangeAssignor, partitions: Any, members: Any) -> Any:
        dealt = original(self, partitions, members)
        first = next((each for given in dealt.values() for each in given), None)
        if first is None:
            return dealt
        return {member: [first, *(each for each in given if each != first)] for member, given in dealt.items()}

    return assign


def _planted(name: str, story: str, caught_by: tuple[str, ...], *patches: Any, **more: Any) -> Planted:
    make = more.pop("make", with_a_group)
    return Planted(
        name=name, story=story, caught_by=caught_by, patches=patches, seed=0, make=make, drawn="consumer_group", **more
    )


GROUP_CLUSTERS = (
    _planted(
        "generation_not_bumped",
        "a rebalance ends in the generation in which it began (S33)",
        ("generation-back", "two-owners"),
        (Rebalance, "_complete_join", generation_stays(Rebalance._complete_join)),
    ),
    _planted(
        "commits_of_old_generations",
        "a commit is taken whatever generation it speaks of (S33)",
        ("zombie-commit", "commit-back"),
        (GroupCoordinator, "_check_committer", any_generation(GroupCoordinator._check_committer)),
        make=with_static_zombies,
    ),
    _planted(
        "commits_of_strangers",
        "a commit is taken from any former member",
        ("zombie-commit", "commit-back"),
        (GroupCoordinator, "_check_committer", any_committer(GroupCoordinator._check_committer)),
        within=60,
    ),
    _planted(
        "heartbeats_of_strangers",
        "a heartbeat of an unknown member, or of an old generation, is answered well",
        ("zombie-heartbeat", "not_converged"),
        (Rebalance, "heartbeat", every_heart(Rebalance.heartbeat)),
    ),
    _planted(
        "old_generations_sync",
        "the coordinator does not look at the generation of heartbeats and syncs",
        ("zombie-sync", "zombie-heartbeat", "generation-back", "assignment-unrecorded", "not_converged"),
        (rebalance, "_check_generation", no_look_at_the_generation),
        make=with_static_zombies,
    ),
    _planted(
        "replaced_instances_live_on",
        "a static member that was replaced is heard as before (KIP-345)",
        ("zombie-commit", "commit-back"),
        (Rebalance, "member_of", instance_is_enough(Rebalance.member_of)),
        make=with_static_zombies,
    ),
    _planted(
        "new_coordinators_count_anew",
        "generations begin again with each coordinator",
        ("loaded_group_differs", "generation-back", "two-owners"),
        (Group, "of", generation_forgotten(Group.of)),
    ),
    _planted(
        "first_commit_counts",
        "a new coordinator takes the first offset of each partition, not the last",
        ("loaded_offsets_differ", "commit-lost", "commit-back"),
        (GroupCoordinator, "replay", first_one_counts(GroupCoordinator.replay)),
    ),
    _planted(
        "offsets_not_loaded",
        "a new coordinator loads groups and no offsets",
        ("loaded_offsets_differ", "commit-lost", "commit-back"),
        (GroupCoordinator, "replay", without_offsets(GroupCoordinator.replay)),
    ),
    _planted(
        "coordinator_serves_unloaded",
        "a new coordinator answers before it has read its log",
        ("loaded_group_differs", "commit-lost", "generation-back", "commit-back", "two-owners"),
        (CoordinatorShard, "_load", loaded_at_once(CoordinatorShard._load)),
    ),
    _planted(
        "group_answers_before_the_commit",
        "commits and assignments are acknowledged as soon as they are appended",
        ("commit-unrecorded", "assignment-unrecorded", "commit-lost"),
        (CoordinatorShard, "_append", answered_at_once(CoordinatorShard._append)),
    ),
    _planted(
        "offsets_found_before_the_commit",
        "a member receives offsets that are appended and not committed yet",
        ("offset-unrecorded",),
        (CommittedOffsets, "begun", counting_at_once(CommittedOffsets.begun)),
        (CommittedOffsets, "is_pending", lambda *_: False),
        within=80,
    ),
    _planted(
        "dealt_before_given_up",
        "cooperative assignors give a partition to its next owner while the one before has it (KIP-429)",
        ("group-repeat", "two-owners"),
        (assignors, "_withhold_what_others_own", nothing_is_withheld),
        make=with_nothing_to_fear("cycle", "cooperative-sticky"),
    ),
    _planted(
        "committed_before_processed",
        "auto-commit commits what was handed out, processed or not (S34)",
        ("group-skip",),
        (Positions, "processed", handed_out_is_done),
        make=with_group(settings={}, style="auto", work_s=0.9),
    ),
    _planted(
        "thrown_out_and_reading",
        "a member that was thrown out goes on with its partitions",
        ("read-outside",),
        (BaseMember, "_drop", stays_when_thrown_out),
    ),
    _planted(
        "rebalance_in_the_midst_of_work",
        "a rebalance takes partitions from an application at work on their records",
        ("group-repeat", "group-skip"),
        (PollGate, "hold", never_waits),
        make=with_nothing_to_fear("cycle"),
    ),
    _planted(
        "given_up_uncommitted",
        "auto-commit forgets what was processed of partitions that go",
        ("group-repeat",),
        (BaseMember, "_give_up", nothing_is_committed),
        make=with_nothing_to_fear("auto"),
    ),
    _planted(
        "begins_anywhere_but_there",
        "a member does not ask where the group left off",
        ("group-repeat", "commit-back"),
        (GroupOffsets, "committed", nothing_is_found),
    ),
    _planted(
        "dealt_twice",
        "the range assignor deals one partition to everybody",
        ("two-owners",),
        (RangeAssignor, "assign", first_one_twice(RangeAssignor.assign)),
    ),
    _planted(
        "late_member_waits_twice",
        "a member that is late for its poll during a rebalance never joins again (ours, found by seed 59)",
        ("not_converged",),
        (PollGate, "hold", alone),
        (Member, "_thrown_out", leaves_and_waits(Member._thrown_out)),
        make=with_late_polls,
    ),
    _planted(
        "left_by_all_closed_to_all",
        "a member that comes while all others leave a first join phase is refused (ours, found by seed 280)",
        ("unexpected_InconsistentGroupProtocol", "not_converged"),
        (Group, "supports", members_needed),
        make=with_one_that_leaves,
    ),
)


def _drilled(name: str, story: str, patch: tuple[Any, str, Any], told_in: Callable[[], None]) -> Bug:
    return Bug(name=name, source="ours", area="groups", story=story, patches=(patch,), ground="drill", told_in=told_in)


def unheard(original: Callable[..., Any]) -> Callable[..., Any]:
    """A heartbeat is answered, and not noted."""

    def heartbeat(self: Rebalance, group: Group, *request: Any) -> Any:
        member = group.members.get(request[0].member_id)
        before = member.expires_at if member is not None else 0.0
        try:
            return original(self, group, *request)
        finally:
            if member is not None:
                member.expires_at = before

    return heartbeat


GROUP_DRILLS = (
    _drilled(
        "sessions_never_end",
        "a member that is silent for ever keeps its partitions",
        (GroupMember, "deadline", property(lambda _: math.inf)),
        silent_member_is_dropped,
    ),
    _drilled(
        "heartbeats_do_not_count",
        "a session ends though its member is heard",
        (Rebalance, "heartbeat", unheard(Rebalance.heartbeat)),
        heartbeats_keep_the_session,
    ),
    _drilled(
        "tombstones_ignored",
        "a new coordinator finds offsets that were deleted",
        (GroupCoordinator, "replay", tombstones_ignored(GroupCoordinator.replay)),
        deleted_groups_stay_deleted,
    ),
)
