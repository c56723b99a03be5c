"""Invariants over single messages, ISR changes, roles and snapshots: each reports what is wrong, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.config import TopicConfig
from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from minikafka.quorum.records import MetadataRecord, ProducerIds, encode
from minikafka.replication.follower import FollowerReplica, TruncateByLeaderEpoch
from minikafka.replication.leader import LeaderReplica, PartitionState
from minikafka.replication.partition import Partition
from minikafka.sim.invariants import CUTS_MAX, FETCHES_MAX, FetchIsDurable, OneVotePerEpoch, Progress
from minikafka.sim.metadata_invariants import (
    AppliedEqual,
    FetchOfPresentBroker,
    IsrChanges,
    PresentRole,
    QuorumHolds,
    Replayed,
)
from minikafka.sim.replica_view import ReplicaView
from minikafka.sim.verdicts import Message
from minikafka.sim.world import Event
from minikafka.types import EpochEnd
from minikafka.wire.batch import RecordBatch
from minikafka.wire.codec import encode_request, encode_response
from minikafka.wire.messages import FetchedPartition, FetchResponse, VoteRequest, VoteResponse
from minikafka.wire.records import BatchBuilder
from tests.rules.replication_kit import log_of
from tests.sim.cluster_kit import ORDERS


@dataclass
class Told:
    """The names of what was reported."""

    names: list[str] = field(default_factory=list)

    def __call__(self, name: str, what: str) -> None:
        self.names.append(name)


def event(kind: str, node: str = "n1", **facts: object) -> Event:
    return Event(0.0, node, 1, kind, {"partition": str(ORDERS), **facts}, "")


def ignored(_kind: str, /, **_facts: object) -> None:
    return None


def leader(epoch: int = 1, isr: Sequence[int] = (1, 2), broker_epoch: int = 7) -> LeaderReplica:
    state = PartitionState(replicas=(1, 2, 3), isr=tuple(isr), leader=1, leader_epoch=epoch, partition_epoch=4)
    return LeaderReplica(
        1,
        ORDERS,
        log_of((0, 3)),
        TopicConfig(),
        state,
        high_watermark=0,
        lag_time_max_s=10.0,
        broker_epoch_of=lambda _: broker_epoch,
        predecessor=None,
        now=0.0,
        events=ignored,
    )


def follower(epoch: int = 1) -> FollowerReplica:
    return FollowerReplica(
        ORDERS,
        log_of((0, 3)),
        leader=2,
        epoch=epoch,
        high_watermark=0,
        truncation=TruncateByLeaderEpoch(),
        events=ignored,
    )


def view(role: object, events: Sequence[Event], image: MetadataImage | None = None) -> ReplicaView:
    """What an invariant sees of a replica on broker 1 with this role."""
    partition = cast("Partition", SimpleNamespace(partition=ORDERS, topic_id="T", role=role))
    brokers: Any = {1: SimpleNamespace(image=image)}
    return ReplicaView(brokers, image, partition, list(events))


# ---- roles and broker epochs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "told", "names"),
    [
        (follower(2), event("batch_appended", epoch=1, role_epoch=2, leader=2), []),
        (follower(2), event("batch_appended", epoch=1, role_epoch=1, leader=2), ["changed_by_a_former_role"]),
        (leader(2), event("batch_appended", epoch=2), []),
        (leader(2), event("batch_appended", epoch=1, role_epoch=1, leader=2), ["changed_by_a_former_role"]),
        (follower(2), event("batch_appended", epoch=1), ["changed_by_a_former_role"]),
        (follower(2), event("tail_truncated", epoch=1, old=3, new=2), ["changed_by_a_former_role"]),
        (None, event("follower_hw_changed", epoch=1, old=1, new=2), ["changed_by_a_former_role"]),
        (None, event("log_restarted", old=1, new=2), []),
    ],
)
def test_only_the_present_role_changes_a_replica(role: object, told: Event, names: list[str]) -> None:
    """KIP-320: what a response to a former role's fetch does is reported, and nothing that the present role does."""
    report = Told()
    PresentRole().look(view(role, [told]), report)
    assert report.names == names


def test_what_came_before_a_change_of_role_in_the_same_step_is_not_judged() -> None:
    """One step may apply several changes of the metadata: the former role was the present one then."""
    report = Told()
    events = [event("tail_truncated", epoch=1, old=3, new=2), event("became_follower", epoch=2)]
    PresentRole().look(view(follower(2), events), report)
    assert report.names == []


def registered(broker_epoch: int, *, fenced: bool = False) -> MetadataImage:
    two = BrokerImage(node_id=2, broker_epoch=broker_epoch, incarnation_id="b", host="n2", port=1, fenced=fenced)
    return MetadataImage(offset=9, brokers={2: two})


@pytest.mark.parametrize(
    ("image", "names"),
    [
        (registered(7), []),
        (registered(8), ["superseded_fetch_counted"]),
        (registered(6), ["unknown_registration_counted"]),
        (registered(8, fenced=True), []),  # as in Kafka: who is fenced is in no ISR
        (MetadataImage(), []),
    ],
)
def test_a_fetch_of_another_broker_epoch_than_the_known_one_is_reported(image: MetadataImage, names: list[str]) -> None:
    """KIP-903: the leader's own metadata knows another registration, and the fetch counted all the same."""
    role, report = leader(), Told()
    role.record_fetch(2, 2, start_offset=0, broker_epoch=7, leader_end=3, now=1.0)
    told = event("follower_fetched", epoch=1, replica=2, offset=2)
    FetchOfPresentBroker().look(view(role, [told], image), report)
    assert report.names == names


@pytest.mark.parametrize(
    ("synced_end", "broker_epoch", "names"),
    [
        (2, 7, []),
        (1, 7, ["unsynced_tail_acknowledged"]),
        (1, 8, []),  # the former process sent the fetch; the present one has not synced that tail itself yet
        (1, -1, []),  # the present process has not registered: it has sent no fetch
    ],
)
def test_a_fetch_is_judged_by_what_the_process_that_sent_it_has_synced(
    synced_end: int, broker_epoch: int, names: list[str]
) -> None:
    """Seed 938001623: the link held a fetch while its sender was killed and started again."""
    role, report = leader(), Told()
    role.config = TopicConfig(flush_messages=1)
    role.record_fetch(2, 2, start_offset=0, broker_epoch=7, leader_end=3, now=1.0)
    seen = view(role, [event("follower_fetched", epoch=1, replica=2, offset=2)])
    log = SimpleNamespace(end_offset=3, synced_end=synced_end)
    replica = SimpleNamespace(topic_id="T", epoch=1, log=log)
    brokers: Any = seen.brokers
    brokers[2] = SimpleNamespace(
        partitions={ORDERS: replica}, lifecycle=SimpleNamespace(latest_broker_epoch=broker_epoch)
    )
    FetchIsDurable().look(seen, report)
    assert report.names == names


# ---- ISR changes -----------------------------------------------------------------------------------------------------


def proposed(isr: Sequence[int], partition_epoch: int = 4) -> Event:
    return event("isr_proposed", epoch=1, partition_epoch=partition_epoch, old=(1, 2), new=tuple(isr))


def state_of(isr: Sequence[int], partition_epoch: int, leader_epoch: int = 1) -> PartitionImage:
    return PartitionImage(
        partition=0,
        replicas=(1, 2, 3),
        isr=tuple(isr),
        leader=1,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        controller_epoch=0,
    )


def image_of(state: PartitionImage, *fenced: int) -> MetadataImage:
    brokers = {
        node: BrokerImage(
            node_id=node, broker_epoch=1, incarnation_id="i", host=f"n{node}", port=1, fenced=node in fenced
        )
        for node in (1, 2, 3)
    }
    topic = TopicImage(name="orders", topic_id="T", partitions=(state,))
    return MetadataImage(offset=9, brokers=brokers, topics={"orders": topic})


def ended() -> Event:
    return event("isr_proposal_ended", epoch=1, isr=(1, 2))


def test_a_proposal_that_may_still_be_committed_counts() -> None:
    """KIP-497: a leader that withdraws it without an answer is reported; a refusal ends it, and so does a newer state."""
    for between, isr, names in (
        ((), (1, 2), ["maximal_isr_lacks_a_member"]),
        ((), (1, 2, 3), []),
        ((event("isr_proposal_refused", epoch=1, error="INELIGIBLE_REPLICA"),), (1, 2), []),
        (
            (event("isr_proposal_refused", epoch=1, error="INVALID_UPDATE_VERSION"),),
            (1, 2),
            ["maximal_isr_lacks_a_member"],
        ),
    ):
        changes, report = IsrChanges(), Told()
        for told in (proposed((1, 2, 3)), *between):
            changes.on_event(told)
        changes.look(view(leader(isr=isr), [ended()]), report)
        assert report.names == names, (between, isr)
    changes, report = IsrChanges(), Told()
    changes.on_event(proposed((1, 2, 3), partition_epoch=3))  # the leader knows partition epoch 4 by now
    changes.look(view(leader(), [ended()]), report)
    assert report.names == []


def test_a_refused_proposal_is_none_that_may_be_recorded_later() -> None:
    """The leader counts its new member no more: a late copy of the request must not be accepted."""
    refused = event("isr_proposal_refused", epoch=1, error="INELIGIBLE_REPLICA")
    before = (proposed((1, 2, 3)), refused)
    assert committed(state_of((1, 2), 4), state_of((1, 2, 3), 5), *before) == ["isr_change_without_a_proposal"]
    again = (*before, proposed((1, 2, 3), partition_epoch=5))
    assert committed(state_of((1, 2), 5), state_of((1, 2, 3), 6), *again) == []


def committed(before: PartitionImage, after: PartitionImage, *told: Event, fenced: tuple[int, ...] = ()) -> list[str]:
    changes, report = IsrChanges(), Told()
    for each in told:
        changes.on_event(each)
    changes.on_committed([(ORDERS, before, after)], image_of(after, *fenced), {}, (), report)
    return report.names


def test_each_recorded_change_names_the_partition_epoch_that_it_replaces() -> None:
    """KIP-497: a change that the leader proposed from another state is reported, unless it only removes the fenced."""
    before = state_of((1, 2), 4)
    wider, smaller = state_of((1, 2, 3), 5), state_of((1,), 5)
    assert committed(before, wider, proposed((1, 2, 3))) == []
    assert committed(before, wider, proposed((1, 2, 3), partition_epoch=3)) == ["isr_change_without_a_proposal"]
    assert committed(before, wider) == ["isr_change_without_a_proposal"]
    assert committed(before, smaller) == ["isr_change_without_a_proposal"]
    assert committed(before, smaller, fenced=(2,)) == []
    assert committed(before, state_of((1,), 5, leader_epoch=2)) == []  # an election


def test_an_election_brings_nobody_into_the_isr_but_its_leader() -> None:
    """S19, S20: an eligible or unclean leader joins by being elected; a move that is complete joins whom it proposed."""
    before, wider = state_of((1, 2), 4), state_of((1, 2, 3), 5, leader_epoch=2)
    assert committed(before, wider) == ["isr_change_without_a_proposal"]
    assert committed(before, wider, proposed((1, 2, 3), partition_epoch=3)) == ["isr_change_without_a_proposal"]
    assert committed(before, wider, proposed((1, 2, 3))) == []
    assert committed(state_of((2,), 4), state_of((1,), 5, leader_epoch=2)) == []


def test_a_leader_counts_every_member_of_the_committed_isr() -> None:
    """KIP-497: the controller has committed 3, and the leader does not count it."""
    changes, report = IsrChanges(), Told()
    after = state_of((1, 2, 3), 5)
    seat = SimpleNamespace(topic_id="T", role=leader())
    brokers: Any = {1: SimpleNamespace(partitions={ORDERS: seat})}
    changes.on_event(proposed((1, 2, 3)))
    changes.on_committed([(ORDERS, state_of((1, 2), 4), after)], image_of(after), brokers, (), report)
    assert report.names == ["maximal_isr_lacks_a_member"]


# ---- votes -----------------------------------------------------------------------------------------------------------


def vote(
    watched: OneVotePerEpoch,
    report: Told,
    candidate: int,
    *,
    epoch: int = 5,
    pre_vote: bool = False,
    granted: bool = True,
) -> None:
    """Voter 2 is asked by ``candidate``, and answers."""
    asked = VoteRequest(
        cluster_id="c",
        voter_id=2,
        candidate_id=candidate,
        candidate_epoch=epoch,
        last_epoch=1,
        last_epoch_end_offset=4,
        pre_vote=pre_vote,
    )
    call = 100 * epoch + candidate
    watched.on_message(Message(call, "request", f"n{candidate}", "n2", "Vote", b"".join(encode_request(asked))), report)
    answer = b"".join(encode_response(VoteResponse(leader_epoch=epoch, vote_granted=granted)))
    watched.on_message(Message(call, "answer", "n2", f"n{candidate}", "Vote", answer), report)


def test_a_voter_votes_once_in_an_epoch_over_all_its_lives() -> None:
    """KAFKA-FACTS 10.13: the second candidate that gets a vote is one too many; pre-votes and refusals bind nobody."""
    watched, report = OneVotePerEpoch(), Told()
    vote(watched, report, 1)
    vote(watched, report, 1)
    vote(watched, report, 3, pre_vote=True)
    vote(watched, report, 3, granted=False)
    vote(watched, report, 3, epoch=6)
    assert report.names == []
    vote(watched, report, 3)
    assert report.names == ["two_votes_in_an_epoch"]


def test_a_candidate_has_voted_for_itself() -> None:
    """Its request says so, whatever it forgets by a restart."""
    watched, report = OneVotePerEpoch(), Told()
    vote(watched, report, 2)
    vote(watched, report, 1)
    assert report.names == ["two_votes_in_an_epoch"]


@pytest.mark.parametrize(
    ("log", "names"),
    [((2, 5), []), ((3, 1), []), ((2, 4), ["vote_for_a_log_behind"]), ((1, 9), ["vote_for_a_log_behind"])],
)
def test_a_vote_is_for_a_log_that_is_not_behind(log: tuple[int, int], names: list[str]) -> None:
    """Logs are compared by (last epoch, end): a longer log of an older epoch is behind."""
    report = Told()
    voter: Any = SimpleNamespace(quorum=SimpleNamespace(core=SimpleNamespace(log_end=EpochEnd(2, 5))))
    for pre_vote in (True, False):
        told = Event(0.0, "n1", 1, "vote_granted", {"epoch": 4, "candidate": 3, "pre_vote": pre_vote, "log": log}, "")
        QuorumHolds().on_event(told, "n1#1", voter, report)
    assert report.names == names


# ---- snapshots -------------------------------------------------------------------------------------------------------


def batch_at(offset: int, *records: MetadataRecord) -> RecordBatch:
    builder = BatchBuilder()
    builder.extend([(0, None, encode(record), ()) for record in records])
    data = bytearray(builder.build())
    data[:8] = offset.to_bytes(8, "big")
    return RecordBatch.of(bytes(data))


def test_an_image_equals_the_replay_of_the_whole_log() -> None:
    """D5: a single broker that began from a snapshot without the next producer id is found out by itself."""
    replayed = Replayed()
    replayed.add(batch_at(0, ProducerIds(next_producer_id=1000)))
    replayed.add(batch_at(1, ProducerIds(next_producer_id=2000)))
    replayed.add(batch_at(1, ProducerIds(next_producer_id=5)))  # known already
    equal, report = AppliedEqual(replayed), Told()
    equal.look(1, MetadataImage(offset=1, next_producer_id=1000), report)
    equal.look(1, MetadataImage(offset=2, next_producer_id=2000), report)
    assert report.names == []
    equal.look(2, MetadataImage(offset=2), report)
    assert report.names == ["metadata_differs"]


def holder(*next_producer_ids: int) -> Any:
    """A broker whose metadata log has one record a batch."""
    batches = [batch_at(offset, ProducerIds(next_producer_id=each)) for offset, each in enumerate(next_producer_ids)]
    buffers = [each.data for each in batches]
    tail = SimpleNamespace(read=lambda offset, **_: SimpleNamespace(buffers=buffers[offset:]))
    return SimpleNamespace(
        quorum=SimpleNamespace(log=SimpleNamespace(start_offset=0, end_offset=len(batches), tail=tail), epoch=1)
    )


def test_what_is_committed_is_replayed_and_is_the_same_for_every_voter() -> None:
    """KAFKA-FACTS 10.13, D5: the first commit of an offset is the truth for images and for all that commit it later."""
    replayed, report = Replayed(), Told()
    holds = QuorumHolds(replayed)
    for life, voter, new in (("n1#1", holder(1000, 2000), 1), ("n1#1", holder(1000, 2000), 2)):
        holds.on_event(event("quorum_hw_advanced", new=new), life, voter, report)
    image = replayed.at(2)
    assert image is not None
    assert image.next_producer_id == 2000
    holds.on_event(event("quorum_hw_advanced", new=2), "n2#1", holder(1000, 2000), report)
    assert report.names == []
    holds.on_event(event("quorum_hw_advanced", new=2), "n3#1", holder(1000, 3000), report)
    assert report.names == ["committed_metadata_differs"]


# ---- no progress -----------------------------------------------------------------------------------------------------


def answers(progress: Progress, report: Told, count: int, *, error_code: int = 0, each_s: float = 0.001) -> None:
    partition = FetchedPartition(topic="orders", partition=0, error_code=error_code)
    body = b"".join(encode_response(FetchResponse(partitions=(partition,))))
    for number in range(count):
        progress.on_message(Message(1, "answer", "n1", "n2", "Fetch", body), number * each_s, report)


def test_a_follower_that_fetches_without_progress_is_named() -> None:
    """Progress begins the count again, and refusals do not count: the fetcher backs off after them."""
    progress, report = Progress(), Told()
    answers(progress, report, FETCHES_MAX - 1)
    progress.on_event(event("batch_appended", node="n2"), report)
    answers(progress, report, FETCHES_MAX - 1)
    assert report.names == []
    answers(progress, report, 1)
    assert report.names == ["no_progress"]
    progress, report = Progress(), Told()
    answers(progress, report, 3 * FETCHES_MAX, error_code=6)
    assert report.names == []


def test_a_quiet_follower_is_not_named() -> None:
    """Its leader holds each fetch for as long as it asks for: 500 of them in four minutes are no loop. Histories of
    reassignments in which a client waited for its acknowledgement that long failed.
    """
    progress, report = Progress(), Told()
    answers(progress, report, 3 * FETCHES_MAX, each_s=0.1)
    assert report.names == []
    answers(progress, report, FETCHES_MAX)
    assert report.names == ["no_progress"]


def test_a_follower_that_truncates_at_one_place_over_and_over_is_named() -> None:
    """By its sixth time in one epoch; elsewhere, and in another epoch, it is another place."""
    progress, report = Progress(), Told()
    for number in range(CUTS_MAX):
        progress.on_event(event("tail_truncated", epoch=1, old=9, new=5), report)
        progress.on_event(event("tail_truncated", epoch=1, old=9, new=6 + number), report)
        progress.on_event(event("tail_truncated", epoch=2 + number, old=9, new=5), report)
    assert report.names == []
    progress.on_event(event("tail_truncated", epoch=1, old=9, new=5), report)
    assert report.names == ["no_progress"]
