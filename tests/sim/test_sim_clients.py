"""Clients that die, topics that end, settings that lose: what is allowed is named, what is not is a violation (issue 3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from minikafka.broker import parts
from minikafka.broker.api.produce import handle_produce
from minikafka.broker.dispatch import settled
from minikafka.check import Checker, Expectations, Recorder, value_id
from minikafka.check.findings import (
    AbortedRead,
    Duplicate,
    Finding,
    InconsistentOffsets,
    IntNonmonotonicPoll,
    IntPollSkip,
    LostWrite,
    NonmonotonicPoll,
    NonmonotonicSend,
    PollSkip,
    Shifted,
    Unseen,
)
from minikafka.client.positions import Positions
from minikafka.errors import NOT_WRITTEN, InvalidPartitions, InvalidRecord, RequestTimedOut
from minikafka.faults import FOLLOWER, ISR, LEADER
from minikafka.replication.leader import LeaderReplica
from minikafka.sim import plan_features
from minikafka.sim.changes import RECORDS, Sent, tell_lives
from minikafka.sim.invariants import CommittedPrefixEqual, LeaderHoldsCommitted, ValidHighWatermark
from minikafka.sim.losses import DoubledRecords, Losses
from minikafka.sim.plan import Fault, Operation, Plan, PlannedTopic
from minikafka.sim.plan_features import LOOSE, PLAN_FEATURES, RISKY, SCRATCH, rotten_bits, with_features
from minikafka.sim.replica_view import OfPartition
from minikafka.sim.run import Run, run
from minikafka.sim.search import QUICK, QUICK_CLIENT
from minikafka.sim.seeds import plan_of
from minikafka.types import NO_OFFSET, TopicPartition
from minikafka.wire.messages import ProducedPartition, ProduceRequest, ProduceResponse
from minikafka.wire.records import decode_batch

LOOSELY = {LOOSE: {"acks": 1}}
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


def quick(*faults: Fault, clients: tuple[str, ...] = ("p1",), topic: str = "orders", **changes: object) -> Plan:
    """A record of each client every tenth of a second for six seconds, with settings of seconds, and these faults."""
    operations = tuple(
        Operation(at_s=round(number * 0.1, 1), client=client, topic=topic, partition=0)
        for number in range(60)
        for client in clients
    )
    plan = Plan(
        seed=5,
        settings={**QUICK, "min.insync.replicas": "2", "log.segment.bytes": "300"},
        client_settings=QUICK_CLIENT,
        operations=operations,
        faults=faults,
        duration_s=7.0,
    )
    return plan.with_(**changes)


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_every_extra_survives_json() -> None:
    """A plan is data: what a seed draws beside the plain plan is read back as it was written."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        plan = plan_of(seed)
        assert Plan.from_json(plan.to_json()) == plan
        seen.update(fault.kind for fault in plan.faults)
        seen.update(name for name in ("clients", "skew_s", "consumers") if getattr(plan, name))
    wanted = ("kill_producer", "kill_reader", "delete_records", "topic_lives", "clients", "skew_s", "consumers")
    assert [name for name in wanted if not seen[name]] == []


def test_a_feature_moves_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream per purpose: without one feature, the others draw what they drew."""
    plain = plan_of(7, kinds=("crash",)).with_(faults=())
    monkeypatch.setattr(
        plan_features, "PLAN_FEATURES", tuple((1.0, add) for _, add in PLAN_FEATURES if add is not rotten_bits)
    )
    whole = with_features(plain)
    for _, left_out in PLAN_FEATURES:
        monkeypatch.setattr(
            plan_features,
            "PLAN_FEATURES",
            [(1.0, add) for _, add in PLAN_FEATURES if add not in (left_out, rotten_bits)],
        )
        gone = set(whole.faults) - set(with_features(plain).faults)
        monkeypatch.setattr(plan_features, "PLAN_FEATURES", [(1.0, left_out)])
        assert gone <= set(with_features(plain).faults), "only that feature's own are gone"


# ---- clients ---------------------------------------------------------------------------------------------------------


def test_a_dead_producer_is_replaced_and_a_reader_begins_anew() -> None:
    """Issue 3, dying clients: sends under way have no outcome, the next process sends the rest, nothing is doubled."""
    running = Run(
        quick(
            Fault(at_s=2.005, kind="kill_producer", target="p1", lasts_s=0.5),
            Fault(at_s=3.0, kind="kill_reader", target="c1", lasts_s=0.2, value=1.0),
            Fault(at_s=4.0, kind="kill_reader", target="g1", lasts_s=0.2),
            consumers=1,
        )
    )
    report = running.run()
    assert report.ok, report.render()
    assert report.outcomes["send"] == 60
    assert report.outcomes["ok"] >= 55
    assert [each.name for each in running.sim_clients.senders] == ["p1~2"]
    assert [each.name for each in running.sim_clients.readers] == ["c1~2", "g1~2", "final"]


def test_calendars_that_are_far_off_harm_nothing() -> None:
    """Issue 3, skewed wall clocks: sessions, elections and back-offs go by the monotonic clock."""
    report = run(
        quick(
            Fault(at_s=2.0, kind="crash", target=f"{LEADER}:orders-0", lasts_s=1.0),
            skew_s={"n1": -1800.0, "n3": 86_400.0},
        )
    )
    assert report.ok, report.render()
    assert report.outcomes["ok"] == 60


# ---- losses that are allowed -----------------------------------------------------------------------------------------


def test_acks_1_loses_and_acks_all_beside_it_does_not() -> None:
    """S24: in one partition both kinds of producer; a leader is cut off and deposed: only acks=1 records are lost."""
    lost: list[str] = []
    for one, two, three in ((1, 2, 3), (2, 1, 3), (3, 1, 2)):  # one of them leads
        alone = [Fault(at_s=2.0, kind="cut_both", target=f"n{one}>n{other}", lasts_s=3.0) for other in (two, three)]
        report = run(quick(*alone, clients=("p1", LOOSE)).with_(clients=LOOSELY))
        assert report.ok, report.render()
        lost += [told for told in report.named if told.startswith("lost-write")]
    assert lost
    assert all(f" {LOOSE}." in told for told in lost), lost


def test_acks_0_is_never_more_than_unknown() -> None:
    """acks=0: no answer is asked for, so nothing was promised and nothing can be lost."""
    alone = Fault(at_s=2.0, kind="isolate", target=f"{LEADER}:orders-0", lasts_s=3.0)
    report = run(quick(alone, clients=("p1", LOOSE)).with_(clients={LOOSE: {"acks": 0}}))
    assert report.ok, report.render()
    assert report.outcomes["unknown"] >= 60
    assert not any(told.startswith("lost-write") for told in report.named)


def unclean(seed: int) -> Plan:
    """One follower is cut off until the ISR is without it, then the ISR dies and that one is back."""
    return quick(
        Fault(at_s=1.0, kind="isolate", target=f"{FOLLOWER}:{RISKY}-0", lasts_s=3.0),
        Fault(at_s=3.8, kind="crash", target=f"{ISR}:{RISKY}-0", lasts_s=2.0),
        topic=RISKY,
        seed=seed,
        topics=(PlannedTopic(name=RISKY, partitions=1, replication_factor=3, configs=UNCLEAN),),
    )


def test_an_unclean_election_loses_by_name_and_the_replicas_agree() -> None:
    """S20: with unclean.leader.election.enable acknowledged records are lost, each is named, and all become whole."""
    reports = [run(unclean(seed)) for seed in range(4)]
    assert [report.render() for report in reports if not report.ok] == []
    named = [told for report in reports for told in report.named if told.startswith("lost-write")]
    assert named
    assert all("risky-0@" in told and "nowhere to be read" in told for told in named)


def test_without_that_setting_the_same_loss_is_a_violation() -> None:
    """The losses of an unclean election are forgiven to topics that ask for it, and to no other."""
    failures = []
    for seed in range(4):
        running = Run(unclean(seed))
        running.watch.may_be_unclean = frozenset()
        failures.append(running.run().failure)
    assert set(failures) <= {None, "committed_record_lost", "exposed_record_changed", "committed_prefix_equal"}
    assert set(failures) != {None}


@pytest.mark.parametrize(
    ("blind", "caught"),
    [
        ((), "valid_high_watermark"),
        ((ValidHighWatermark,), "committed_record_lost"),
        ((ValidHighWatermark, LeaderHoldsCommitted, CommittedPrefixEqual), "lost-write"),
    ],
)
def test_a_bug_that_shows_after_an_unclean_election_is_a_violation(
    blind: tuple[type[OfPartition], ...], caught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed from then on is owed again, by each check; all was forgiven to such a topic till the end."""
    cut_off = Fault(at_s=10.0, kind="cut_both", target=f"{LEADER}:{RISKY}-0>others", lasts_s=3.0)
    plain = unclean(2)
    plan = plain.with_(
        faults=(*plain.faults, cut_off),
        operations=tuple(replace(each, at_s=each.at_s * 2) for each in plain.operations),
        duration_s=14.0,
    )
    for each in blind:
        monkeypatch.setattr(each, "look", lambda *_: None)
    report = run(plan)
    assert report.ok, report.render()
    running, counts = Run(plan), LeaderReplica._counts

    def nobody_counts_since_then(leader: LeaderReplica, node: int, now: float) -> bool:
        return not running.watch.unclean_elections(TopicPartition(RISKY, 0)) and counts(leader, node, now)

    monkeypatch.setattr(LeaderReplica, "_counts", nobody_counts_since_then)
    assert running.run().failure == caught


def never(_: TopicPartition) -> dict[int, float]:
    """No unclean election."""
    return {}


def at(*epochs: int) -> Callable[[TopicPartition], dict[int, float]]:
    """Unclean elections in these epochs, each after as many seconds."""
    return lambda _: {epoch: float(epoch) for epoch in epochs}


def finding(kind: type[Finding], value: str, **facts: object) -> Finding:
    """One of orders-0."""
    given = {
        "topic": "orders",
        "partition": 0,
        "offset": 3,
        "value": value,
        "op": 1,
        "process": value.partition(".")[0],
    }
    return kind(**{**given, **facts})  # type: ignore[arg-type]


def test_which_findings_are_allowed() -> None:
    """A loose producer's losses are its own: what others say of the same offset must still be one value."""
    losses = Losses(Plan(seed=0, clients=LOOSELY), never)
    lost = {"held_by": (), "read_up_to": 9}
    assert losses.allows(finding(LostWrite, "loose.1", **lost))
    assert not losses.allows(finding(LostWrite, "loose.1", **lost, was_read=True)), "it was committed"
    assert losses.allows(finding(Unseen, "loose~2.1", read_up_to=1))
    with_one_leader = Losses(Plan(seed=0, clients=LOOSELY), never, has_changed_leader=lambda _: False)
    assert not with_one_leader.allows(finding(LostWrite, "loose.1", **lost)), "its leader has never changed"
    assert not losses.allows(finding(LostWrite, "p1.1", **lost))
    place = {"topic": "orders", "partition": 0, "offset": 3}
    told = ("loose.1", "the answer to loose")
    assert losses.allows(InconsistentOffsets(**place, values=(told, ("p1.1", "a poll of c1"))))
    assert not losses.allows(
        InconsistentOffsets(**place, values=(("loose.1", "a poll of c1"), ("p1.1", "a poll of c2")))
    )
    assert not losses.allows(
        InconsistentOffsets(**place, values=(("p1.1", "the answer to p1"), told, ("p1.2", "the replicas")))
    )


def test_acknowledgments_to_all_but_loose_producers_say_that_a_record_is_committed() -> None:
    """S16, S24: whatever the process's number on its machine, and wherever its acks are set."""
    losses = Losses(Plan(seed=0, clients=LOOSELY), never)
    assert [losses.waits_for_commit(each) for each in ("p1", "p1~2", "loose", "loose~2")] == [True, True, False, False]
    assert not Losses(Plan(seed=0, client_settings={"acks": 1}), never).waits_for_commit("p1")


def test_a_shift_is_allowed_where_all_that_moved_may_be_lost() -> None:
    """An acks=1 record that was written twice, and whose acknowledged copy is gone (seeds 1795323215, 1795323325)."""
    losses = Losses(Plan(seed=0, clients=LOOSELY), never)
    place = {"topic": "orders", "partition": 0, "offset": 3}

    def moved(*processes: str) -> Shifted:
        facts = {"until": 6, "distance": -2, "count": 3, "values": ("loose.1", "loose.3")}
        return Shifted(**place, **facts, processes=processes)  # type: ignore[arg-type]

    assert losses.allows(moved("loose"))
    assert losses.allows(moved("loose", "loose~2"))
    assert not losses.allows(moved("loose", "p1"))
    assert not losses.allows(moved("p1"))
    assert Losses(Plan(seed=0), at(1)).allows(moved("p1"))


def test_a_double_that_still_stands_is_no_loss() -> None:
    """After an unclean election a value may have been read elsewhere before; twice in the log is a duplicate."""
    losses = Losses(Plan(seed=0), at(1))
    twice = Duplicate(topic="orders", partition=0, offset=1, value="p1.1", places=((0, 1), (0, 2)), sends=1)
    losses.stands(TopicPartition("orders", 0), [(0, "p1.0"), (1, "p1.1")])
    assert losses.allows(twice)
    losses.stands(TopicPartition("orders", 0), [(0, "p1.1"), (1, "p1.1")])
    assert not losses.allows(twice)


def test_a_second_unclean_election_may_bring_a_lost_record_back_beside_its_retry() -> None:
    """Seed 1795325791 of a soak: the first leader, from whom it was taken, leads again after the retry's one."""
    twice = Duplicate(topic="orders", partition=0, offset=1, value="p1.1", places=((0, 1), (0, 2)), sends=1)
    for elections, epochs, allowed in (
        (at(1), (0, 1), False),
        (at(1, 2), (0, 2), True),
        (at(1, 2), (0, 1), False),  # whoever took it back has not led yet
        (at(1, 2), (2, 2), False),  # written twice by one leader
        (at(1, 2), (2, 3), False),
        (at(1, 2, 4), (0, 2, 4), False),
        (at(1, 2, 3, 4), (0, 2, 4), True),
    ):
        losses = Losses(Plan(seed=0), elections)
        losses.stands(TopicPartition("orders", 0), [(epoch, "p1.1") for epoch in epochs])
        assert losses.allows(twice) == allowed, epochs


def test_what_came_long_after_the_last_unclean_election_is_not_allowed() -> None:
    """Nor what came before the first: an answer of the former leader may be heard for a session and a request."""
    place = {"topic": "orders", "partition": 0, "offset": 3}
    plan = Plan(seed=0, settings={"broker.session.timeout.ms": "1000"}, client_settings={"request_timeout_ms": 2000})

    def allows(kind: type[Finding], *times: float, **facts: object) -> bool:
        losses = Losses(plan, at(10, 20), time_of=times.__getitem__)
        return losses.allows(kind(**place, lines=tuple(range(len(times))), **facts))  # type: ignore[arg-type]

    lost = {"value": "p1.1", "op": 1, "process": "p1", "held_by": (), "read_up_to": 9}
    assert allows(LostWrite, 1.0, 22.9, **lost)
    assert not allows(LostWrite, 1.0, 23.1, **lost)
    claims = {"values": (("p1.1", "the answer to p1"), ("p1.2", "a poll of c1"))}
    assert allows(InconsistentOffsets, 5.0, 99.0, **claims)
    assert not allows(InconsistentOffsets, 30.0, 99.0, **claims)
    back = {"process": "c1", "expected": 5}
    assert allows(NonmonotonicPoll, 99.0, **back)
    assert not allows(NonmonotonicPoll, 9.0, **back)
    assert not allows(IntNonmonotonicPoll, 99.0, **back), "within one answer nobody is elected"


def test_a_double_of_what_was_deleted_is_allowed_where_a_replica_began_behind_it() -> None:
    """KIP-360: a replica that never saw the producer's records takes a retry for a first send (seed 845)."""
    twice = Duplicate(topic="orders", partition=0, offset=16, value="p1.1", places=((0, 16), (0, 17)), sends=1)
    for begun, allowed in (((), False), ((16,), False), ((17,), True), ((3, 17, 20), True), ((20,), False)):
        losses = Losses(Plan(seed=0), never, lambda name, begun=begun: begun)  # type: ignore[misc]
        assert losses.allows(twice) is allowed, begun
    elsewhere = Duplicate(topic="orders", partition=0, offset=1, value="p1.1", places=((0, 1), (1, 2)), sends=1)
    assert not Losses(Plan(seed=0), never, lambda name: range(99)).allows(elsewhere)


def test_a_consumer_may_pass_over_what_a_leader_had_deleted() -> None:
    """Seed 941001163: its position was deleted there; the next leader had not heard of it, and had the records still."""
    place = {"topic": "orders", "partition": 0, "offset": 14, "lines": (0,), "process": "w1", "until": 18, "count": 4}
    for kind, start, time, allowed in (
        (PollSkip, 18, 1.0, True),
        (PollSkip, 17, 1.0, False),
        (PollSkip, 18, 3.0, False),  # deleted later
        (IntPollSkip, 18, 1.0, False),
    ):
        losses = Losses(
            Plan(seed=0),
            never,
            time_of=lambda _line: 2.0,
            deleted_below=lambda _name, by, start=start, time=time: start if time <= by else 0,  # type: ignore[misc]
        )
        assert losses.allows(kind(**place)) is allowed  # type: ignore[arg-type]


def test_a_record_that_was_deleted_twice_stands_where_it_was_first_read() -> None:
    """Seed 940002466: the second copy was acknowledged, and deleted before anyone read it."""
    for distance, begun, allowed in (
        (-2, (), False),
        (-2, (3, 5), True),
        (-2, (3,), False),
        (-2, (6,), False),
        (2, (5,), False),
    ):
        moved = Shifted(
            topic="orders",
            partition=0,
            offset=4,
            until=6,
            distance=distance,
            count=2,
            values=("p1.1", "p1.2"),
            processes=("p1",),
        )
        losses = Losses(Plan(seed=0), never, lambda name, begun=begun: begun)  # type: ignore[misc]
        assert losses.allows(moved) is allowed, (distance, begun)


def test_a_record_that_was_deleted_unread_may_stand_behind_a_later_one() -> None:
    """Seed 1795999953: its answer was lost, and a leader that had begun its log behind it took the retry for new."""
    for begun, allowed in (((), False), ((4,), True), ((3,), False), ((17,), False)):
        swapped = NonmonotonicSend(
            topic="orders",
            partition=0,
            offset=3,
            process="p1",
            key=None,
            ops=(1, 2),
            values=("p1.2", "p1.3"),
            offsets=(16, 3),
        )
        losses = Losses(Plan(seed=0), never, lambda _, begun=begun: begun)  # type: ignore[misc]
        assert losses.allows(swapped) is allowed, begun


def test_what_a_doubled_request_explains_is_named_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy written, the other one's refusal heard first (seed 90296): named for those requests' records only."""
    arrived: set[bytes] = set()
    refused: list[str] = []

    async def second_copy_refused(replicas: Any, request: ProduceRequest, **given: Any) -> ProduceResponse:
        if request.client_id != LOOSE:
            return await settled(handle_produce(replicas, request, **given))
        (part,) = request.partitions
        batch = b"".join(map(bytes, part.records))
        if batch in arrived:
            refused.extend(value_id(record.value) for record in decode_batch(batch))
            answer = ProducedPartition(
                topic=part.topic, partition=part.partition, error_code=InvalidRecord.code, outcome=NOT_WRITTEN
            )
            return ProduceResponse(partitions=(answer,))
        arrived.add(batch)
        response = await settled(handle_produce(replicas, request, **given))
        await asyncio.sleep(0.05)
        return response

    monkeypatch.setattr(parts, "handle_produce", second_copy_refused)
    plan = quick(clients=("p1", LOOSE), consumers=1, link={"delay_mean_s": 0.001, "duplicate": 0.2})
    running = Run(plan.with_(clients=LOOSELY))
    report = running.run()
    assert report.ok, report.render()
    aborted = [told for told in report.named if told.startswith("aborted-read")]
    assert [told.split(" was refused")[0].split(": ")[-1] for told in aborted] == refused
    assert 1 < len(refused) < 60
    doubled = DoubledRecords(running.sim.network.doubled)
    assert all(each in doubled for each in refused)
    assert not all(f"{LOOSE}.{number}" in doubled for number in range(60))
    arrived.clear()
    strict = Run(plan.with_(clients=LOOSELY))
    strict.losses = Losses(strict.plan, strict.watch.unclean_elections, strict.watch.restarted_at)
    assert strict.run().failure == "aborted-read"


def test_a_refused_record_that_stands_is_allowed_to_doubled_requests_only() -> None:
    """Whoever sent it: a request with a sequence can be refused in one copy as well."""
    losses = Losses(Plan(seed=0, clients=LOOSELY), never, doubled={"loose.1", "p1.1"})
    for value, allowed in (("loose.1", True), ("p1.1", True), ("loose.11", False), ("p1.2", False)):
        place = {"topic": "orders", "partition": 0, "offset": 3}
        stands = AbortedRead(**place, value=value, op=1, error="KAFKA_STORAGE_ERROR", seen_by="w1")  # type: ignore[arg-type]
        assert losses.allows(stands) is allowed, value
    assert not losses.allows(finding(LostWrite, "p1.1", held_by=(), read_up_to=9))


# ---- topics ----------------------------------------------------------------------------------------------------------


def test_a_topic_lives_again_under_faults() -> None:
    """S18: deleted and created anew while brokers crash; the last life holds its own records and none of the others."""
    lives = Fault(at_s=0.3, kind="topic_lives", target=SCRATCH, lasts_s=0.1, value=4.0)
    crash = Fault(at_s=1.0, kind="crash", target="controller", lasts_s=1.0)
    stop = Fault(at_s=2.5, kind="stop", target="n2", lasts_s=0.5)
    running = Run(quick(lives, crash, stop))
    report = running.run()
    assert report.ok, report.render()
    assert report.marks["topic_life_ended"] == 3
    name = TopicPartition(SCRATCH, 0)
    ids = {
        event.facts["topic_id"]
        for event in running.sim.journal
        if event.kind == "topic_created" and event.facts["topic"] == SCRATCH
    }
    assert len(ids) == 4
    assert name in running.cluster.partition_names() or report.marks["replica_deleted"]


@pytest.mark.parametrize("gap_s", [0.0, 0.1])
@pytest.mark.parametrize("forgets_positions", [True, False])
def test_a_consumer_reads_a_topic_through_all_its_lives(
    gap_s: float, forgets_positions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 13: a consumer that goes on at its position of the former topic is found: it passes over records."""
    if not forgets_positions:
        monkeypatch.setattr(Positions, "_created_again", lambda *_: None)
    lives = Fault(at_s=0.3, kind="topic_lives", target=SCRATCH, lasts_s=gap_s, value=4.5)
    report = run(quick(lives))
    assert report.ok is forgets_positions, report.render()
    if not forgets_positions:
        assert "the reader of scratch-0 has passed over offset 0" in report.violations[0].what


TIMED_OUT = RequestTimedOut("late", outcome="unknown")
REFUSED = InvalidPartitions("none", outcome="not_written")


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (["2.0", "2.1"], []),
        (["2.0", "1.1", "2.1"], []),  # a request of the first life that nobody answered came late
        (["1.0", "2.0", "2.1"], ["phantom-read"]),  # what was acknowledged in the first life came back
        (["2.0", "1.2", "2.1"], ["phantom-read"]),  # what was refused in it
        (["2.0"], ["unseen"]),
        (["2.0", "2.1", "2.2"], ["aborted-read"]),
    ],
)
def test_what_a_later_life_may_hold(read: list[str], expected: list[str]) -> None:
    """Records of a deleted topic do not come back, but for those whose fate nobody knows."""
    sent = [
        Sent(1, "1.0", offset=0),
        Sent(1, "1.1", error=TIMED_OUT),
        Sent(1, "1.2", error=REFUSED),
        Sent(2, "2.0", offset=read.index("2.0")),
        Sent(2, "2.1", offset=read.index("2.1") if "2.1" in read else 1),
        Sent(2, "2.2", error=REFUSED),
    ]
    checker = Checker()
    recorder = Recorder(checker.feed, lambda: 0.0)
    tell_lives(recorder, "a1", SCRATCH, sent, last=2)
    recorder.poll("final", SCRATCH, 0, list(enumerate(read)), position_before=0, position_after=len(read))
    recorder.expect(Expectations(final_read_complete=True))
    assert sorted(checker.verdict().totals) == expected
    assert RECORDS > 1


def test_what_is_in_the_log_at_a_forgotten_place() -> None:
    """Seed 943002854: a restarted leader knows that it has a batch, and not where; all of them seemed to lie at one place."""
    checker = Checker()
    recorder = Recorder(checker.feed, lambda: 0.0)
    tell_lives(recorder, "a1", SCRATCH, [Sent(1, "1.0", offset=NO_OFFSET), Sent(1, "1.1", offset=NO_OFFSET)], last=1)
    recorder.poll("final", SCRATCH, 0, [(0, "1.0"), (1, "1.1")], position_before=0, position_after=2)
    recorder.expect(Expectations(final_read_complete=True))
    assert not checker.verdict().totals


def test_log_starts_move_under_faults() -> None:
    """KAFKA-FACTS 1.5: DeleteRecords and retention while leaders change; what is above the log start is all there."""
    topic = PlannedTopic(name="orders", partitions=1, replication_factor=3, configs={"retention.bytes": "600"})
    settings = {**quick().settings, "log.retention.check.interval.ms": "300", "log.segment.delete.delay.ms": "100"}
    running = Run(
        quick(
            Fault(at_s=2.0, kind="delete_records", target="orders-0", value=1.0),
            Fault(at_s=2.2, kind="crash", target=f"{LEADER}:orders-0", lasts_s=1.0),
            Fault(at_s=4.0, kind="delete_records", target="orders-0", value=0.5),
            Fault(at_s=4.5, kind="power_cut", target="n2", lasts_s=0.5),
            Fault(at_s=5.0, kind="kill_reader", target="c1", value=1.0),
            topics=(topic,),
            settings=settings,
        )
    )
    report = running.run()
    assert report.ok, report.render()
    assert report.outcomes["ok"] == 60
    assert report.marks["segments_deleted"] > 3
    assert report.marks["records_deleted"] > 0
    assert report.marks["reader_reset"] > 0, "a reader that was overtaken by the log start went on there"
