"""Bugs of verification (KIP-890), of coordinators that are elected again, and of offsets in transactions.

Those that chance meets too rarely, and those that only clients of transaction version 0 can meet, have a directed test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import structs

from minikafka.broker.coordinator_shards import CoordinatorShards
from minikafka.broker.group_manager import GroupManager
from minikafka.broker.verification import Verifier
from minikafka.client import transactions as client_transactions
from minikafka.errors import InvalidProducerEpoch, InvalidTxnState, ProducerFenced
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.log import segment_store
from minikafka.log.producer_state import ProducerState
from minikafka.replication.leader import LeaderReplica
from minikafka.transactions import coordinator, transaction
from minikafka.wire.batch import SEQUENCE_COUNT
from tests.rules.test_producer_state import test_a_cut_takes_the_state_back as state_after_a_cut
from tests.rules.test_transaction_coordinator import (
    test_write_of_unknown_outcome_keeps_the_id_busy_until_it_is_committed as unknown_outcome_keeps_the_id_busy,
)
from tests.rules.test_transaction_states import RETRY
from tests.rules.test_transaction_states import test_end_of_transaction_version_2 as end_of_version_2
from tests.rules.test_verification import (
    test_later_batch_does_not_overtake_the_first_one_during_verification as later_batch_does_not_overtake,
)
from tests.rules.test_verification import (
    test_next_transaction_of_version_2_may_arrive_before_the_marker as next_transaction_may_arrive_first,
)
from tests.sim.bug import Bug
from tests.sim.cluster_kit import simulated
from tests.sim.planted_protocols import DISAGREE, with_sleepers
from tests.sim.planted_transaction_logs import STABLE
from tests.sim.planted_transactions import VISIBLE, family, struck
from tests.sim.test_transactional_offsets import test_offsets_follow_the_decision as offsets_follow
from tests.sim.test_transactional_producer import (
    test_producer_whose_transactional_id_expired_is_finished as producer_of_an_expired_id,
)

# ---- verification ----------------------------------------------------------------------------------------------------


def whatever_the_coordinator_says(original: Callable[..., Any]) -> Callable[..., Any]:
    async def verify(self: Verifier, *given: Any, **named: Any) -> dict[Any, Any]:
        await original(self, *given, **named)
        return {}

    return verify


def no_guard(_self: ProducerState, _batch: Any, _guard: Any, **_: Any) -> None:
    pass


def any_sequence(original: Callable[..., Any]) -> Callable[..., Any]:
    def begin(self: ProducerState, *given: Any, **named: Any) -> Any:
        guard = original(self, *given, **named)
        guard.lowest_sequence = SEQUENCE_COUNT
        return guard

    return begin


# ---- coordinators ----------------------------------------------------------------------------------------------------


def known_outcomes(_error: Any) -> bool:
    """A write that was not committed in time counts as not written."""
    return False


def kept_when_lost(self: CoordinatorShards[Any]) -> None:
    """A coordinator that loses its partition keeps its memory, for when it is elected again."""


def elected_with_its_memory(original: Callable[..., None]) -> Callable[..., None]:
    def begin_new(self: CoordinatorShards[Any], image: Any) -> None:
        for shard in self:
            role = shard.partition.role
            if isinstance(role, LeaderReplica) and role is not shard.leader:
                shard.leader = role
        original(self, image)

    return begin_new


COMMITS_ARE_INVALID = {
    **transaction._END_V2,
    transaction.State.COMPLETE_ABORT: (
        (transaction._I, transaction._I),
        *transaction._END_V2[transaction.State.COMPLETE_ABORT][1:],
    ),
}
"""A commit that lost against the coordinator's own abort gets an error that ends the client."""


def guard_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """A batch of an ended transaction is judged by its guard, then by its epoch."""

    def check(self: ProducerState, batch: Any, guard: Any = None, *given: Any) -> Any:
        if guard is not None:
            self._check_guard(batch, guard, is_known=batch.producer_id in self._producers)
        return original(self, batch, guard, *given)

    return check


# ---- logs ------------------------------------------------------------------------------------------------------------


def producers_as_they_were(_disk: Any, _folder: str, _segments: Any, _producers: Any, *_given: Any, **_: Any) -> None:
    """A cut takes records away, and leaves what they said about producers."""


# ---- offsets ---------------------------------------------------------------------------------------------------------


def applied_later(original: Callable[..., Any]) -> Callable[..., Any]:
    """WriteTxnMarkers is answered when the marker is committed; the offsets count a moment later."""

    def appended(self: GroupManager, name: Any, marker: Any, end_offset: int) -> None:
        asyncio.get_running_loop().call_later(2.0, original, self, name, marker, end_offset)

    return appended


def stable_or_not(original: Callable[..., Any]) -> Callable[..., Any]:
    def fetch_offsets(self: GroupCoordinator, request: Any) -> Any:
        return original(self, structs.replace(request, require_stable=False))

    return fetch_offsets


VERIFICATION_CLUSTERS = (
    struck(
        name="transactional_batches_not_verified",
        story="a leader appends transactional batches whatever the coordinator says: a late one hangs (KAFKA-14402)",
        caught_by=(*VISIBLE, *STABLE, "not_converged", "complete_without_markers", "marker_of_another_transaction"),
        patches=[
            (Verifier, "verify", whatever_the_coordinator_says(Verifier.verify)),
            (ProducerState, "_check_guard", no_guard),
        ],
        seed=3,
    ),
    family(
        name="coordinators_elected_again_keep_their_memory",
        story="a coordinator that is elected again goes on with what it knew in its last term (KAFKA-9235, KAFKA-18137)",
        caught_by=(
            "transaction_state_illegal",
            "transaction_epoch_fell",
            "marker_without_decision",
            "a_transaction_moved_between_states_that_do_not_follow_each_other",
            "the_epoch_of_a_producer_fell",
            "producer_fenced_by_nobody",
            "not_converged",
            *VISIBLE,
        ),
        patches=[
            (CoordinatorShards, "end_lost", kept_when_lost),
            (CoordinatorShards, "begin_new", elected_with_its_memory(CoordinatorShards.begin_new)),
        ],
        seed=3,
    ),
    family(
        name="unstable_offsets_are_read",
        make=with_sleepers,
        drawn="loops that sleep",
        story="OffsetFetch ignores require_stable: a member begins before what a decided transaction commits (KIP-447)",
        caught_by=DISAGREE,
        patches=[(GroupCoordinator, "fetch_offsets", stable_or_not(GroupCoordinator.fetch_offsets))],
        seed=2,
    ),
)


def _drilled(source: str, name: str, story: str, patch: tuple[Any, str, Any], told_in: Callable[[], None]) -> Bug:
    return Bug(
        name=name, source=source, area="transactions", story=story, patches=(patch,), ground="drill", told_in=told_in
    )


def a_cut_takes_the_producers_back() -> None:
    """After a truncation, leaders and followers know of producers what the records say that are left."""
    state_after_a_cut(12)


def a_late_commit_is_fenced() -> None:
    """Producers recover from PRODUCER_FENCED by a new producer; INVALID_TXN_STATE ends a thread of Kafka Streams."""
    end_of_version_2(transaction.State.COMPLETE_ABORT, True, RETRY, ProducerFenced)


def complete_offsets_can_be_read() -> None:
    """Once a transaction is complete, its offsets count."""
    settings = {"transaction_state_log_num_partitions": "3", "offsets_topic_num_partitions": "3"}
    with simulated(**settings, group_initial_rebalance_delay_ms="0") as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.settle()
        offsets_follow(cluster, 2, True)


VERIFICATION_DRILLS = (
    _drilled(
        "KAFKA-14920",
        "sequences_overtake_while_verified",
        "a batch overtakes an earlier one whose verification is under way, in a partition that does not know its producer",
        (ProducerState, "begin_verification", any_sequence(ProducerState.begin_verification)),
        later_batch_does_not_overtake,
    ),
    _drilled(
        "KAFKA-9666",
        "unknown_writes_count_as_refused",
        "a decision that is not committed in time counts as not written: another request overtakes it",
        (coordinator, "is_unknown", known_outcomes),
        unknown_outcome_keeps_the_id_busy,
    ),
    _drilled(
        "KAFKA-12153, KAFKA-6683",
        "cuts_leave_producer_state",
        "a follower that truncates keeps what the removed records said about producers",
        (segment_store, "replay_producers", producers_as_they_were),
        a_cut_takes_the_producers_back,
    ),
    _drilled(
        "KAFKA-17507",
        "markers_answered_before_their_offsets_count",
        "a marker in __consumer_offsets is answered before the group coordinator has applied it",
        (GroupManager, "marker_appended", applied_later(GroupManager.marker_appended)),
        complete_offsets_can_be_read,
    ),
    _drilled(
        "KAFKA-18019",
        "expired_ids_are_not_fatal",
        "a producer whose transactional id has expired goes on, though nothing fences it any more",
        (client_transactions, "_FENCED", (ProducerFenced, InvalidProducerEpoch, InvalidTxnState)),
        producer_of_an_expired_id,
    ),
    _drilled(
        "KAFKA-20785",
        "lost_commits_are_invalid",
        "a commit that comes after the coordinator's abort is answered INVALID_TXN_STATE, which is fatal for clients",
        (transaction, "_END_V2", COMMITS_ARE_INVALID),
        a_late_commit_is_fenced,
    ),
    _drilled(
        "KAFKA-19690",
        "guards_are_checked_before_the_epoch",
        "a batch of a producer that slept over its timeout is answered INVALID_TXN_STATE, which is fatal for clients",
        (ProducerState, "check", guard_first(ProducerState.check)),
        next_transaction_may_arrive_first,
    ),
)
