"""Bugs for what plans draw beside crashes and cuts: topics that end, log starts that move, bits that rot, clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from minikafka.broker.api import offsets
from minikafka.broker.api.producer_ids import ProducerIds
from minikafka.broker.replica_manager import ReplicaManager
from minikafka.client import positions
from minikafka.client.admin import AdminClient
from minikafka.client.routing import Coordinator
from minikafka.errors import UNKNOWN
from minikafka.log import partition_log
from minikafka.log.log_directory import LogDirectory
from minikafka.log.partition_log import PartitionLog
from minikafka.quorum.assignment import Assignment
from minikafka.replication.follower import FollowerReplica
from minikafka.sim.plan import Plan
from minikafka.sim.plan_features import online_changes, short_logs
from minikafka.sim.seeds import plan_of
from minikafka.types import TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.messages import ALL_COMMITTED, DeleteRecordsPartition, InitProducerIdResponse, MetadataRequest
from tests.clients.fake_cluster import RESET_ANSWER
from tests.clients.test_admin import test_a_broker_that_knows_less_is_no_witness as stale_is_no_witness
from tests.clients.test_consumer import (
    test_a_commit_is_not_repeated_once_its_member_has_joined_again as not_repeated,
)
from tests.rules.test_log_directory import (
    test_a_topic_created_anew_has_no_checkpoints_of_its_predecessor as no_checkpoints_of_its_predecessor,
)
from tests.rules.test_producers_after_deletion import (
    test_a_log_without_snapshots_gets_one_before_its_segments_go as snapshot_before_segments_go,
)
from tests.sim.bug import Bug
from tests.sim.planted import LOSS, Planted
from tests.sim.test_bit_rot import test_a_consumer_is_told_where_the_damage_is as consumer_is_told
from tests.sim.test_bit_rot import test_a_follower_does_not_store_the_damage as follower_does_not_store
from tests.sim.test_cluster_disks import (
    test_a_broker_that_missed_deletion_and_creation_takes_the_new_topic as missed_deletion_and_creation,
)

# ---- plans -----------------------------------------------------------------------------------------------------------


def with_short_logs(seed: int) -> Plan:
    """Retention and DeleteRecords among crashes."""
    return short_logs(plan_of(seed, kinds=("crash", "isolate")), Random(f"{seed}/short"))


def with_moves(seed: int) -> Plan:
    """Replicas move among crashes; the topic grows, its settings change."""
    return online_changes(plan_of(seed, kinds=("crash",)), Random(f"{seed}/moves"))


# ---- what is put in place of a rule ----------------------------------------------------------------------------------


def taken_as_it_is(data: Any) -> RecordBatch:
    return RecordBatch.of(data)


def whatever_lies_there(original: Callable[..., Any]) -> Callable[..., Any]:
    """The log of a topic that had this name is taken for this topic's."""

    def host(self: ReplicaManager, name: TopicPartition, topic: Any, config: Any) -> Any:
        log = self.logs.get(name)
        if log is not None:
            log.topic_id = topic.topic_id
        return original(self, name, topic, config)

    return host


async def no_snapshot(self: PartitionLog, base: int) -> None:
    """``PartitionLog._keep_producers`` without the snapshot."""


def for_any_membership(original: Callable[..., Any]) -> Callable[..., Any]:
    """A request is repeated whoever its sender is by now."""

    async def ask(self: Coordinator, request: Any, **options: Any) -> Any:
        return await original(self, request, **{**options, "is_current": lambda: True})

    return ask


def names_stay(self: LogDirectory, partition: TopicPartition) -> None:
    self._former.pop(partition, None)


def up_to_the_end(original: Callable[..., Any]) -> Callable[..., Any]:
    """Retention looks at what is there, committed or not."""

    def expired(self: PartitionLog, now_ms: int, high_watermark: int) -> Any:
        return original(self, now_ms, self.end_offset)

    return expired


def sealed_is_expired(original: Callable[..., Any]) -> Callable[..., Any]:
    """Retention looks at no setting: users' records go as soon as their segment is sealed and committed."""

    def expired(self: PartitionLog, now_ms: int, high_watermark: int) -> Any:
        if self.partition.topic.startswith("__"):
            return original(self, now_ms, high_watermark)
        return [each for each in self._store.segments[:-1] if each.next_offset <= high_watermark]

    return expired


def all_that_is_committed(original: Callable[..., Any]) -> Callable[..., Any]:
    """DeleteRecords with whatever offset is taken for one without."""

    def begin(replicas: ReplicaManager, item: DeleteRecordsPartition, *rest: Any) -> Any:
        return original(replicas, msgspec.structs.replace(item, offset=ALL_COMMITTED), *rest)

    return begin


def start_ignored(original: Callable[..., bool]) -> Callable[..., bool]:
    def on_durable(self: FollowerReplica, leader_high_watermark: int, leader_start_offset: int) -> bool:
        return original(self, leader_high_watermark, 0)

    return on_durable


def complete_at_once(self: Assignment, _isr: object, _minimum: int) -> Assignment:
    return Assignment(replicas=self.target) if self.under_way else self


async def one_for_all(self: ProducerIds, request: Any) -> InitProducerIdResponse:
    """Every producer is number 7."""
    return InitProducerIdResponse(producer_id=7, producer_epoch=request.producer_epoch + 1)


async def anybody(self: AdminClient, topics: Sequence[str]) -> Any:
    """The word of any broker, however little it knows."""
    response = await self._ask_anyone(MetadataRequest(topics=tuple(topics)), self._deadline(None))
    return response.topics


EXTRA_CLUSTERS = (
    Planted(
        name="retention_above_the_watermark",
        story="retention deletes what is not committed yet",
        caught_by=("hw_within_log",),
        patches=[(PartitionLog, "expired_segments", up_to_the_end(PartitionLog.expired_segments))],
        make=with_short_logs,
        drawn="short_logs",
        seed=0,
    ),
    Planted(
        name="retention_without_a_setting",
        story="records expire in topics that have no retention (ours)",
        caught_by=("deleted_without_reason",),
        patches=[(PartitionLog, "expired_segments", sealed_is_expired(PartitionLog.expired_segments))],
        make=with_short_logs,
        drawn="short_logs",
        seed=3,
    ),
    Planted(
        name="more_deleted_than_requested",
        story="DeleteRecords deletes up to the watermark, whatever offset it names (ours)",
        caught_by=("deleted_without_reason",),
        patches=[(offsets, "_begin_deletion", all_that_is_committed(offsets._begin_deletion))],
        make=with_short_logs,
        drawn="short_logs",
        seed=9,
    ),
    Planted(
        name="followers_keep_what_is_deleted",
        story="a follower does not take the leader's log start",
        caught_by=("not_converged",),
        patches=[(FollowerReplica, "on_durable", start_ignored(FollowerReplica.on_durable))],
        make=with_short_logs,
        drawn="short_logs",
        seed=0,
    ),
    Planted(
        name="moved_before_caught_up",
        story="a reassignment is complete at once: old replicas go, whatever the new ones have (KIP-455)",
        caught_by=("isr_within_replicas", *LOSS, "valid_high_watermark", "not_converged"),
        patches=[(Assignment, "settled", complete_at_once)],
        make=with_moves,
        drawn="online_changes",
        seed=0,
    ),
    Planted(
        name="one_producer_id_for_all",
        story="two idempotent producers have one id: one's records are taken for repetitions of the other's (KIP-98)",
        caught_by=("lost-write", "unseen", "inconsistent-offsets", "aborted-read", "duplicate"),
        patches=[(ProducerIds, "handle_init_producer_id", one_for_all)],
        seed=0,
        kinds=("crash",),
    ),
)


def commit_is_not_repeated() -> None:
    not_repeated(RESET_ANSWER, UNKNOWN)


commit_is_not_repeated.__name__ = not_repeated.__name__


def _drilled(area: str, name: str, story: str, patch: tuple[Any, str, Any], told_in: Callable[[], None]) -> Bug:
    return Bug(name=name, source="ours", area=area, story=story, patches=(patch,), ground="drill", told_in=told_in)


EXTRA_DRILLS = (
    _drilled(
        "replication",
        "log_of_a_former_topic",
        "a replica goes on in the log of a deleted topic that had its name",
        (ReplicaManager, "_host", whatever_lies_there(ReplicaManager._host)),
        missed_deletion_and_creation,
    ),
    _drilled(
        "replication",
        "damage_is_passed_on",
        "a follower stores what it is given, and looks at no checksum",
        (partition_log, "verify", taken_as_it_is),
        follower_does_not_store,
    ),
    _drilled(
        "clients",
        "consumer_looks_at_no_checksum",
        "the consumer hands out a batch whose checksum is wrong",
        (positions, "verify", taken_as_it_is),
        consumer_is_told,
    ),
    _drilled(
        "log recovery",
        "checkpoints_outlive_their_topic",
        "a topic that is created again has its predecessor's start, watermark and recovery point (ours, found by seed 1033)",
        (LogDirectory, "_take_out_of_checkpoints", names_stay),
        no_checkpoints_of_its_predecessor,
    ),
    _drilled(
        "clients",
        "any_broker_is_a_witness",
        "a broker that has just started, and knows no topic, proves a deletion (ours, found by seed 1448)",
        (AdminClient, "_witnessed", anybody),
        stale_is_no_witness,
    ),
    _drilled(
        "log recovery",
        "producers_go_with_their_segments",
        "retention deletes records without a snapshot of their producers (KIP-98; ours, found by seed 910300075)",
        (PartitionLog, "_keep_producers", no_snapshot),
        snapshot_before_segments_go,
    ),
    _drilled(
        "groups",
        "commits_outlive_their_membership",
        "a commit is repeated into a generation that was given out twice (ours, found by seed 911000012)",
        (Coordinator, "ask", for_any_membership(Coordinator.ask)),
        commit_is_not_repeated,
    ),
)
