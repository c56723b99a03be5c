"""The controller's driver: batches, answers after the commit, leadership gained and lost, sessions and timers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from minikafka.broker import controller_driver
from minikafka.errors import (
    DuplicateBrokerRegistration,
    InvalidReplicationFactor,
    InvalidRequest,
    KafkaStorageError,
    NotController,
    ProtocolError,
    RequestTimedOut,
    StaleBrokerEpoch,
)
from minikafka.ports import CAUSE
from minikafka.quorum.image import MetadataImage
from minikafka.quorum.records import MetadataRecord, RemoveTopic
from minikafka.types import Address, EpochEnd
from minikafka.wire.admin import CreatePartitionsRequest, NewPartitions
from minikafka.wire.messages import (
    AllocateProducerIdsRequest,
    AlterPartitionItem,
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    IsrMember,
    MetadataRequest,
    NewTopic,
    UnregisterBrokerRequest,
)
from tests.sim.controller_world import CLUSTER_ID, ControllerWorld, play


async def outcome(asked: Awaitable[Any]) -> tuple[str, str]:
    """(error's name, outcome) of a request that must fail."""
    with pytest.raises(ProtocolError) as caught:
        await asked
    return caught.value.name, caught.value.outcome


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_only_the_active_controller_answers():
    """A request to another node is refused, and surely not written."""

    async def story(world: ControllerWorld) -> None:
        assert await outcome(world.register(1)) == ("NOT_CONTROLLER", "not_written")
        world.quorum.lose(leader=2)
        with pytest.raises(NotController) as caught:
            await world.register(1)
        assert caught.value.facts == {"leader": 2}
        assert not world.driver.is_active

    play(story)


def test_a_bug_in_a_decision_ends_no_reign(monkeypatch: pytest.MonkeyPatch):
    """Nothing of the request is written, the controller says so and goes on: the next one would get it as well."""

    def broken(*_: object) -> None:
        raise KeyError("cleanup.policy")

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await asyncio.gather(world.register(1), world.register(2))
        monkeypatch.setitem(controller_driver._DECISIONS, ElectLeadersRequest, broken)
        asked = world.driver.handle(ElectLeadersRequest(election_type="preferred", partitions=None))
        assert await outcome(asked) == ("UNKNOWN_SERVER_ERROR", "not_written")
        [failed] = world.facts("request_failed")
        assert (failed["api"], failed["why"]) == ("ElectLeaders", "KeyError: 'cleanup.policy'")
        assert "in broken" in str(failed["traceback"])
        assert await world.register(3) > 0

    play(story)


def test_a_decision_whose_records_cannot_be_replayed_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    """What is refused as not written must not be in the batch that others' records are appended with."""
    lost, staged = RemoveTopic(topic_id="lost"), MetadataImage.staged

    def broken(image: MetadataImage, records: Sequence[MetadataRecord], *more: Any) -> MetadataImage:
        if lost in records:
            raise KeyError("lost")
        return staged(image, records, *more)

    monkeypatch.setattr(MetadataImage, "staged", broken)

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        before = len(world.quorum.batches)
        decide = world.driver.controller.delete_topics
        world.driver.controller.delete_topics = lambda *given: replace(decide(*given), records=(lost,))  # type: ignore[method-assign]
        refused = asyncio.ensure_future(outcome(world.driver.handle(DeleteTopicsRequest(topics=("t",)))))
        made = asyncio.ensure_future(world.create("beside"))
        assert await refused == ("UNKNOWN_SERVER_ERROR", "not_written")
        assert (await made).topics[0].error_code == 0
        assert world.quorum.batches[before:] == [2], "the topic and its partition"
        assert "beside" in world.metadata.image.topics

    play(story)


def test_a_registration_is_answered_with_the_offset_of_its_record():
    """KAFKA-FACTS 4.3: the broker epoch is known when the record is committed, whatever else is in the log."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        epochs = await asyncio.gather(world.register(1), world.register(2), world.register(3))
        assert sorted(epochs) == [2, 3, 4], "0 is the election's record, 1 the first controller's"
        assert {node: each.broker_epoch for node, each in world.metadata.image.brokers.items()} == dict(
            zip((1, 2, 3), epochs, strict=True)
        )
        told = {facts["broker"]: facts["broker_epoch"] for facts in world.facts("broker_registered")}
        assert told == dict(zip((1, 2, 3), epochs, strict=True))

    play(story)


def test_a_broker_that_is_fenced_may_be_unregistered_in_the_same_batch():
    """What is noted of its session after the commit finds no registration of it any more."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        epoch = world.broker(2).broker_epoch
        fencing = BrokerHeartbeatRequest(
            broker_id=2, broker_epoch=epoch, current_metadata_offset=world.metadata.image.offset, want_fence=True
        )
        before = len(world.quorum.batches)
        fenced, _ = await asyncio.gather(
            world.driver.handle(fencing), world.driver.handle(UnregisterBrokerRequest(broker_id=2))
        )
        assert fenced.is_fenced
        assert sorted(world.metadata.image.brokers) == [1]
        assert world.quorum.batches[before:] == [2], "one batch"
        assert not world.driver.sessions.alive(2, world.now())
        assert [facts["broker"] for facts in world.facts("broker_unregistered")] == [2]
        assert await world.register(2) > epoch

    play(story)


def test_who_asks_an_elected_node_waits_for_its_reign():
    """A cluster that starts sends all registrations at once: they are let in by the first commit of the reign."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.elect(1)
        asked = [asyncio.ensure_future(world.register(node, offset=0)) for node in (1, 2, 3)]
        await asyncio.sleep(1)
        assert not any(each.done() for each in asked)
        world.quorum.catch_up()
        epochs = await asyncio.gather(*asked)
        assert epochs == [2, 3, 4], "0 is the election's record, 1 the first controller's"
        assert world.quorum.batches == [4], "one commit for all"
        assert [world.broker(node).broker_epoch for node in (1, 2, 3)] == epochs
        assert not any(world.broker(node).fenced for node in (1, 2, 3)), "they had applied all that was committed"
        told = [facts["broker_epoch"] for kind in ("registered", "unfenced") for facts in world.facts(f"broker_{kind}")]
        assert told == epochs * 2

    play(story)


def test_an_election_that_comes_to_nothing_answers_who_waited():
    """Nothing was decided, so nothing is written; they ask whoever leads now."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.elect(1)
        asked = asyncio.ensure_future(outcome(world.register(1)))
        await asyncio.sleep(0)
        world.quorum.lose(leader=2)
        assert await asked == ("NOT_CONTROLLER", "not_written")
        assert world.quorum.batches == []

    play(story)


def test_room_in_a_batch_is_found_without_a_look_at_its_records():
    """It is asked for with each request: for 10,000 of them the records were read 50 million times."""

    class Unread(list[MetadataRecord]):
        def __iter__(self) -> Any:
            raise AssertionError("the records were read")

    batch = controller_driver._Batch(image=MetadataImage(), epoch=1)
    batch.records = Unread([RemoveTopic(topic_id="t")] * 9_999)
    assert batch.takes(object())
    batch.registering.add(1)
    assert not batch.takes(object())


def test_two_incarnations_of_one_broker_are_not_registered_together():
    """The second is judged by the epoch of the first, which only the written log knows."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.elect(1)
        one = asyncio.ensure_future(world.register(1, "one"))
        other = asyncio.ensure_future(outcome(world.register(1, "another")))
        two = asyncio.ensure_future(world.register(2))
        await asyncio.sleep(0)
        world.quorum.catch_up()
        assert (await one, await other, await two) == (2, ("DUPLICATE_BROKER_REGISTRATION", "not_written"), 3)
        assert world.quorum.batches == [2, 1]

    play(story)


def test_a_repeated_registration_gets_its_own_broker_epoch():
    """A registration that is repeated is decided together with that of the next process on the data directory. The
    answer to the first named the broker epoch of the second, under which it could have spoken from then on.
    """

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        first = await world.register(2, "one")
        world.quorum.lose(leader=3)
        world.quorum.elect(3)
        repeated = asyncio.ensure_future(world.register(2, "one"))
        following = asyncio.ensure_future(world.register(2, "two", previous=first))
        await asyncio.sleep(0)
        world.quorum.catch_up()
        assert await repeated == first
        assert await following == world.broker(2).broker_epoch > first

    play(story)


def test_a_broker_that_is_behind_starts_fenced():
    """What it has not applied may be what it would have to know."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.register(1, offset=world.metadata.image.offset - 1)
        assert world.broker(1).fenced
        await world.register(2, offset=world.metadata.image.offset)
        assert not world.broker(2).fenced

    play(story)


def test_requests_that_wait_are_recorded_as_one_batch():
    """One commit for all: a controller that wrote one at a time would be a queue of round trips."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        world.quorum.batches.clear()
        answers = await asyncio.gather(*(world.create(f"t{number}", factor=2) for number in range(20)))
        assert [each.topics[0].error_code for each in answers] == [0] * 20
        assert sum(world.quorum.batches) == 40
        assert len(world.quorum.batches) <= 2

    play(story)


def test_a_request_sees_those_before_it_in_its_batch():
    """Two clients create one topic at the same moment: one of them is told that it exists."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        answers = await asyncio.gather(world.create("t"), world.create("t"), world.create("t"))
        assert sorted(each.topics[0].error_code for each in answers) == [0, 36, 36]

    play(story)


def test_who_is_told_of_a_change_can_find_it():
    """No answer before the commit, and metadata_offset is where the log then ended."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        world.quorum.may_commit.clear()
        creation = asyncio.ensure_future(world.create("t"))
        await asyncio.sleep(1.0)
        assert not creation.done()
        assert "t" not in world.metadata.image.topics
        world.quorum.may_commit.set()
        answer = await creation
        assert answer.metadata_offset == world.metadata.image.offset
        assert answer.topics[0].topic_id == world.metadata.image.topics["t"].topic_id

    play(story)


def test_an_error_waits_for_the_state_it_rests_on():
    """TOPIC_ALREADY_EXISTS because of a record that is then lost would be a lie."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        world.quorum.may_commit.clear()
        asked = [asyncio.ensure_future(world.create("t")) for _ in range(2)]
        await asyncio.sleep(1.0)
        assert [each.done() for each in asked] == [False, False]
        world.quorum.may_commit.set()
        answers = await asyncio.gather(*asked)
        assert [each.topics[0].error_code for each in answers] == [0, 36]

    play(story)


def test_the_other_requests():
    """Each of the controller's APIs reaches its rule."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        await world.create("t", factor=2)
        epoch = world.broker(1).broker_epoch
        item = AlterPartitionItem(
            topic="t",
            topic_id=world.metadata.image.topics["t"].topic_id,
            partition=0,
            leader_epoch=0,
            partition_epoch=0,
            new_isr=(IsrMember(broker_id=1),),
        )
        altered = await world.driver.handle(AlterPartitionRequest(broker_id=1, broker_epoch=epoch, partitions=(item,)))
        assert (altered.partitions[0].isr, altered.partitions[0].partition_epoch) == ((1,), 1)
        ids = await world.driver.handle(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))
        assert (ids.producer_id_start, ids.producer_id_len) == (0, 1000)
        elected = await world.driver.handle(ElectLeadersRequest())
        assert elected.partitions == ()
        deleted = await world.driver.handle(DeleteTopicsRequest(topics=("t",)))
        assert deleted.topics[0].error_code == 0
        assert deleted.metadata_offset == world.metadata.image.offset
        with pytest.raises(InvalidRequest):
            await world.driver.handle(MetadataRequest())
        with pytest.raises(StaleBrokerEpoch):
            stale = BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch + 99, current_metadata_offset=0)
            await world.driver.handle(stale)

    sim = play(story)
    assert sim.marks["isr_shrunk"] == 1
    assert sim.marks["topic_created"] == sim.marks["topic_deleted"] == 1


def test_events_carry_the_cause_of_the_request():
    """D9: what the loop tells belongs to the request that made it, though the loop is another task."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        token = CAUSE.set("CreateTopics#17")
        await world.create("t")
        CAUSE.reset(token)

    sim = play(story)
    created = [event for event in sim.journal if event.kind == "topic_created"]
    assert [event.cause for event in created] == ["CreateTopics#17"]
    assert created[0].facts["why"] == "at a client's request"


# ---- leadership ------------------------------------------------------------------------------------------------------


def test_leadership_lost_after_the_append_is_unknown_before_it_not_written():
    """DESIGN: the next leader may or may not have the records; what only waited is surely nowhere."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        world.quorum.may_commit.clear()
        appended = asyncio.ensure_future(world.create("a"))
        await asyncio.sleep(0.1)
        waiting = asyncio.ensure_future(world.create("b"))
        await asyncio.sleep(0.1)
        world.quorum.lose(leader=3)
        assert await outcome(waiting) == ("NOT_CONTROLLER", "not_written")
        world.quorum.may_commit.set()
        assert await outcome(appended) == ("NOT_CONTROLLER", "unknown")
        assert await outcome(world.create("c")) == ("NOT_CONTROLLER", "not_written")
        assert world.metadata.image.topics == {}

    play(story)


def test_a_deposed_controller_may_be_elected_again():
    """The reign of a new epoch begins anew, while the old one's last append still hangs."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        world.quorum.may_commit.clear()
        appended = asyncio.ensure_future(world.create("a"))
        await asyncio.sleep(0.1)
        world.quorum.lose(leader=3)
        world.quorum.lead(3)
        world.quorum.may_commit.set()
        assert await outcome(appended) == ("NOT_CONTROLLER", "unknown")
        assert (await world.create("b")).topics[0].error_code == 0
        assert world.partition("b").controller_epoch == 3

    sim = play(story)
    assert sim.marks["controller_activated"] == 2


def test_a_reign_that_ends_before_its_first_step_decides_nothing():
    """The log is applied and a newer epoch is heard of in one turn of the loop, before the reign's task has begun."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        world.quorum.lose(leader=3)
        world.quorum.elect(3)
        waiting = asyncio.ensure_future(world.register(1))
        await asyncio.sleep(0.1)
        assert "controller_activated" not in world.kinds()
        assert not waiting.done(), "it waits for the reign to come"
        world.quorum.catch_up()
        assert await waiting == world.broker(1).broker_epoch

    sim = play(story)
    assert sim.marks["controller_activated"] == 1


def test_an_answer_that_comes_too_late_says_what_is_known():
    """timeout_ms bounds the wait: in the append the outcome is unknown, in the queue it is not written."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        world.quorum.may_commit.clear()

        def hurried(name: str) -> asyncio.Future[Any]:
            request = CreateTopicsRequest(
                topics=(NewTopic(name=name, num_partitions=1, replication_factor=1),), timeout_ms=500
            )
            return asyncio.ensure_future(world.driver.handle(request))

        first = hurried("a")
        await asyncio.sleep(0.1)
        queued = hurried("b")
        assert await outcome(first) == ("REQUEST_TIMED_OUT", "unknown")
        assert await outcome(queued) == ("REQUEST_TIMED_OUT", "not_written")
        world.quorum.may_commit.set()
        assert (await world.create("c")).topics[0].error_code == 0
        assert sorted(world.metadata.image.topics) == ["a", "c"]

    play(story)


def test_a_full_disk_is_told_and_ends_the_reign():
    """S38: what was not appended is not written. A log that has failed stays so: a controller that cannot write down
    what it decides ends with its broker, or nobody would decide any more.
    """

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        failed: list[BaseException] = []
        world.tasks[0].add_done_callback(lambda task: failed.append(task.exception() or KeyError()))
        world.quorum.failure = KafkaStorageError("the disk is full")
        assert await outcome(world.create("t")) == ("KAFKA_STORAGE_ERROR", "not_written")
        assert await outcome(world.create("t")) == ("NOT_CONTROLLER", "not_written")
        await asyncio.sleep(0)
        assert [type(each) for each in failed] == [KafkaStorageError]

    play(story)


def test_a_bug_in_a_decision_about_a_session_leaves_nobody_waiting():
    """It may have changed the session, so the reign ends: askers are answered at once, and the failure itself goes to
    the owner of the task.
    """

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        failed: list[BaseException] = []

        def broken(*_args: object, **_named: object) -> None:
            raise ZeroDivisionError

        world.driver.controller.register = broken  # type: ignore[assignment,method-assign]
        world.tasks[0].add_done_callback(lambda task: failed.append(task.exception() or KeyError()))
        asked = asyncio.ensure_future(world.register(2))
        assert await outcome(asked) == ("NOT_CONTROLLER", "not_written")
        assert [type(each) for each in failed] == [ZeroDivisionError]

    play(story)


# ---- more records than a batch may hold ------------------------------------------------------------------------------


def test_a_broker_is_fenced_whose_leaders_do_not_fit_one_batch(monkeypatch: pytest.MonkeyPatch):
    """In several batches, the fencing itself in the last: the next controller, in between, begins again."""
    monkeypatch.setattr("minikafka.broker.controller_driver.METADATA_BATCH_BYTES_MAX", 4096)

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        for number in range(6):
            await world.create(f"t{number}", partitions=15, factor=2)
        world.quorum.batches.clear()
        states: list[tuple[bool, int]] = []
        world.metadata.subscribe(
            lambda _, new: states.append((new.alive(1), sum(1 in each.isr for _, each in new.sorted_partitions())))
        )
        await keep_alive(world, 2, until=world.now() + 9.5)
        assert len(world.quorum.batches) > 1
        assert sum(world.quorum.batches) == 91
        assert [is_alive for is_alive, _ in states] == [True] * (len(states) - 1) + [False]
        assert states[-1][1] == 0
        assert {each.leader for _, each in world.metadata.image.sorted_partitions()} == {2}

    sim = play(story)
    assert sim.marks["broker_fenced"] == 1


def test_a_controller_that_is_deposed_between_two_batches_does_not_know_the_outcome(monkeypatch: pytest.MonkeyPatch):
    """Some of what it decided is recorded."""
    monkeypatch.setattr("minikafka.broker.controller_driver.METADATA_BATCH_BYTES_MAX", 1024)

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        await world.create(*(f"t{number}" for number in range(2)))
        for number in range(2, 40):
            await world.create(f"t{number}")
        names = tuple(f"t{number}" for number in range(40))
        world.metadata.subscribe(lambda _, new: world.quorum.lose() if len(new.topics) < 40 else None)
        deleting = world.driver.handle(DeleteTopicsRequest(topics=names))
        assert await outcome(deleting) == ("NOT_CONTROLLER", "unknown")
        assert 0 < len(world.metadata.image.topics) < 40

    play(story)


def test_a_request_whose_records_do_not_fit_one_batch_is_refused_alone(monkeypatch: pytest.MonkeyPatch):
    """A topic is created as a whole. What else was decided in the same turn is recorded."""
    monkeypatch.setattr("minikafka.broker.controller_driver.METADATA_BATCH_BYTES_MAX", 4096)

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        large = asyncio.ensure_future(outcome(world.create("large", partitions=100)))
        answers = await asyncio.gather(world.create("a"), world.create("b", partitions=10), world.create("c"))
        assert [each.topics[0].error_code for each in answers] == [0, 0, 0]
        assert await large == ("POLICY_VIOLATION", "not_written")
        assert sorted(world.metadata.image.topics) == ["a", "b", "c"]

    sim = play(story)
    assert "metadata_append_failed" not in sim.marks


# ---- sessions --------------------------------------------------------------------------------------------------------


async def keep_alive(world: ControllerWorld, *nodes: int, until: float) -> None:
    while world.now() < until:
        for node in nodes:
            await world.beat(node)
        await asyncio.sleep(min(2.0, max(until - world.now(), 0.0)))


def test_s14_a_silent_broker_is_fenced_when_its_session_ends():
    """S14, S19: 9 s after its last heartbeat, to the instant of virtual time, its leaders move."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2, 3)
        await world.create("t", partitions=3, factor=3)
        for node in (2, 3, 1):
            await world.beat(node)
        last = world.now()
        await keep_alive(world, 2, 3, until=last + 8.99)
        assert world.partition().leader == 1
        await asyncio.sleep(0.02)
        assert (world.partition().leader, world.partition().isr) == (2, (2, 3))
        assert not world.metadata.image.alive(1)
        await keep_alive(world, 2, 3, until=last + 30.0)
        assert world.metadata.image.eligible_brokers() == (2, 3)

    sim = play(story)
    assert sim.marks["broker_fenced"] == 1
    assert sim.marks["leader_elected"] == 1


def test_fencing_is_one_broker_at_a_time():
    """When all go silent each fencing is a batch of its own: nobody is fenced on the strength of an older one."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2, 3)
        await world.create("t", factor=3)
        world.quorum.batches.clear()
        await asyncio.sleep(20.0)
        assert world.metadata.image.eligible_brokers() == ()
        assert world.quorum.batches == [2, 2, 2]
        assert (world.partition().leader, world.partition().last_known_elr) == (-1, (3,))

    play(story)


def test_a_second_incarnation_waits_for_the_session_of_the_first():
    """A restart after kill -9 is let in when the session of the dead process is over, and not before."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        with pytest.raises(DuplicateBrokerRegistration):
            await world.register(2)
        await keep_alive(world, 1, until=world.now() + 9.1)
        assert await world.register(2) > 0
        assert not world.metadata.image.alive(2)

    play(story)


def test_a_restarted_broker_need_not_wait_for_a_session_that_the_new_controller_never_heard():
    """2 of 3 brokers die, the controller among them, and return: they register after a heartbeat's time, not 9 s."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2, 3)
        await world.create("t", factor=3)
        world.quorum.lose(leader=3)
        world.quorum.lead(5)
        begun = world.now()
        await world.beat(1)
        with pytest.raises(DuplicateBrokerRegistration):
            await world.register(2)
        await keep_alive(world, 1, until=begun + 2.0)
        assert world.metadata.image.alive(2)
        assert await world.register(2) > 0
        assert (world.metadata.image.alive(2), world.partition().isr) == (False, (1, 3))
        with pytest.raises(DuplicateBrokerRegistration):
            await world.register(1)

    play(story)


def test_a_fenced_brokers_next_life_is_let_in_at_once_after_a_change_of_controller():
    """A new controller starts clocks for the living only: a clock for the dead would keep its next life out."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        await keep_alive(world, 1, until=world.now() + 9.1)
        world.quorum.lose(leader=3)
        world.quorum.lead(5)
        assert await world.register(2) > 0

    play(story)


def test_a_new_controller_restarts_clocks_but_dates_its_predecessor_from_their_last_contact():
    """Failover of the active controller: 2 was last heard 3 s ago and goes 6 s later; 3's clock starts anew."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2, 3)
        await world.create("t", factor=3)
        world.quorum.lose(leader=2)
        heard = world.now() + 7.0
        await asyncio.sleep(10.0)
        world.quorum.last_contact = {2: heard, 3: heard - 5.0}
        elected = world.now()
        world.quorum.lead(3)
        await keep_alive(world, 1, until=heard + 8.99)
        assert world.metadata.image.eligible_brokers() == (1, 2, 3)
        await asyncio.sleep(0.02)
        assert world.metadata.image.eligible_brokers() == (1, 3)
        await keep_alive(world, 1, until=elected + 8.99)
        assert world.metadata.image.eligible_brokers() == (1, 3)
        await asyncio.sleep(0.02)
        assert world.metadata.image.eligible_brokers() == (1,)

    play(story)


def test_a_controller_that_was_cut_off_fences_nobody_before_it_could_hear_them():
    """Issue 15: after a cut of almost a session it fenced both other brokers, and no partition had enough replicas."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2, 3)
        world.quorum.heard_at = cut_at = world.now()
        await asyncio.sleep(9.5)
        assert world.metadata.image.eligible_brokers() == (1, 2, 3)
        world.quorum.heard_at = float("inf")
        await keep_alive(world, 1, 2, until=cut_at + 20.0)
        assert world.metadata.image.eligible_brokers() == (1, 2), "a broker that stays silent is fenced"

    play(story)


def test_a_controller_that_hears_again_gives_every_broker_a_full_session():
    """Scenario storm, seed 18: the cut ended 10 ms before a session, and the broker was fenced at the end of it."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2, 3)
        heard_at = world.now()
        await asyncio.sleep(8.99)
        world.quorum.resumed_at = world.now()
        await keep_alive(world, 1, 2, until=heard_at + 17.9)
        assert world.metadata.image.eligible_brokers() == (1, 2, 3)
        await keep_alive(world, 1, 2, until=heard_at + 18.1)
        assert world.metadata.image.eligible_brokers() == (1, 2), "a broker that stays silent is fenced"

    play(story)


def test_controlled_shutdown_waits_until_the_others_have_read_it():
    """Leaders move when one of the others has answered since; the broker may stop when all have applied the move."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2, 3)
        await world.create("t", partitions=3, factor=3)
        old = world.metadata.image.offset
        await world.beat(1, leaving=True)
        await world.beat(2)
        await world.beat(1, leaving=True)
        assert world.partition().leader == 1  # the others might be dead: a heartbeat may be late
        world.driver.sessions.lives(2, world.now(), world.now())
        first, twice = await asyncio.gather(world.beat(1, leaving=True), world.beat(1, leaving=True))
        assert (first.should_shut_down, twice.should_shut_down) == (False, False)
        assert world.partition().leader == 2
        moved = world.metadata.image.offset
        assert moved > old
        await world.beat(2)
        await world.beat(3, offset=moved - 1)
        assert not (await world.beat(1, leaving=True)).should_shut_down
        await world.beat(3)
        granted = await world.beat(1, leaving=True)
        assert (granted.should_shut_down, granted.is_fenced) == (True, True)
        assert await world.register(1) > 0, "its session is over: the next life need not wait"

    sim = play(story)
    assert sim.marks["controlled_shutdown_begun"] == 1


def test_a_heartbeat_of_a_former_incarnation_does_not_date_the_wish_to_shut_down():
    """It was late on its way. The wish is dated from the first one of the registered incarnation: brokers that were
    known to live only before that may be dead, and a shutdown must not rest on them.
    """

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        late = BrokerHeartbeatRequest(
            broker_id=2,
            broker_epoch=world.broker(2).broker_epoch - 1,
            current_metadata_offset=world.metadata.image.offset,
            want_shut_down=True,
        )
        with pytest.raises(StaleBrokerEpoch):
            await world.driver.handle(late)
        await asyncio.sleep(0.1)
        world.driver.sessions.lives(1, world.now(), world.now())
        await asyncio.sleep(0.1)
        await world.beat(2, leaving=True)
        assert world.driver.sessions.silent_since_asked_to_stop(2, (1,)) == {1}

    play(story)


def test_controlled_shutdown_survives_a_change_of_controller():
    """The new controller has not moved the leaders itself, yet lets the broker go when the others are as far as it is."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        await world.create("t", factor=2)
        await world.beat(1, leaving=True)
        assert not world.broker(1).in_controlled_shutdown  # broker 2 might be dead: it has not answered since
        world.driver.sessions.lives(2, world.now(), world.now())
        await world.beat(1, leaving=True)
        assert world.broker(1).in_controlled_shutdown
        world.quorum.lose(leader=3)
        world.quorum.lead(4)
        assert not (await world.beat(1, leaving=True)).should_shut_down
        await world.beat(2)
        assert (await world.beat(1, leaving=True)).should_shut_down

    play(story)


def test_a_shutdown_that_was_called_off_does_not_shorten_the_next_one():
    """A broker may stop when the others have read where its leaders moved the last time."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        await world.create("t", factor=2)

        async def leave() -> int:
            await world.beat(1, leaving=True)
            world.driver.sessions.lives(2, world.now(), world.now())
            await world.beat(1, leaving=True)
            assert world.broker(1).in_controlled_shutdown
            return world.metadata.image.offset

        await leave()
        await world.beat(2)
        assert not (await world.beat(1)).should_shut_down
        assert not (await world.beat(1)).is_fenced
        moved = await leave()
        await world.beat(2, offset=moved - 1)
        assert not (await world.beat(1, leaving=True)).should_shut_down
        await world.beat(2)
        assert (await world.beat(1, leaving=True)).should_shut_down

    play(story)


# ---- timers ----------------------------------------------------------------------------------------------------------


def test_leaders_go_home_by_themselves():
    """leader.imbalance.check.interval.seconds: 1 leads again without anybody asking."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        await world.create("t", factor=2)
        await keep_alive(world, 2, until=world.now() + 9.1)
        assert world.partition().leader == 2
        await world.register(1)
        await world.beat(1)
        item = AlterPartitionItem(
            topic="t",
            topic_id=world.metadata.image.topics["t"].topic_id,
            partition=0,
            leader_epoch=world.partition().leader_epoch,
            partition_epoch=world.partition().partition_epoch,
            new_isr=(IsrMember(broker_id=1), IsrMember(broker_id=2)),
        )
        request = AlterPartitionRequest(broker_id=2, broker_epoch=world.broker(2).broker_epoch, partitions=(item,))
        assert (await world.driver.handle(request)).partitions[0].error_code == 0
        await keep_alive(world, 1, 2, until=world.now() + 10.0)
        assert world.partition().leader == (1 if world.driver.config.auto_leader_rebalance_enable else 2)

    play(story, leader_imbalance_check_interval_seconds=5)
    play(story, leader_imbalance_check_interval_seconds=5, auto_leader_rebalance_enable=False)


def test_s20_leaderless_partitions_are_tried_again():
    """unclean.leader.election.interval.ms: a partition that was left without a leader gets one when the policy allows."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        await world.create("t", factor=2)
        await keep_alive(world, 1, until=world.now() + 9.1)
        await keep_alive(world, until=world.now() + 9.1)
        assert world.partition().leader == -1
        await world.register(2)
        await world.beat(2)
        assert world.partition().leader == -1
        # Somebody turns the policy: no event of a broker follows, only the timer looks again.
        policy = world.driver.controller.policy
        defaults = replace(policy.topic_defaults, unclean_leader_election_enable=True)
        world.driver.controller.policy = replace(policy, topic_defaults=defaults)
        await keep_alive(world, 2, until=world.now() + 6.0)
        assert (world.partition().leader, world.partition().recovered) == (2, False)

    play(story, unclean_leader_election_interval_ms=5_000)


def test_a_crowd_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch):
    """Every queue has a limit: a retriable error now is better than a timeout later."""
    monkeypatch.setattr("minikafka.broker.controller_driver.WAITING_REQUESTS_MAX", 3)

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1)
        world.quorum.may_commit.clear()
        asked = [asyncio.ensure_future(world.create("a"))]
        await asyncio.sleep(0.1)
        asked += [asyncio.ensure_future(world.create(f"t{number}")) for number in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(RequestTimedOut) as caught:
            await world.create("u")
        assert caught.value.outcome == "not_written"
        world.quorum.may_commit.set()
        answers = await asyncio.gather(*asked)
        assert [each.topics[0].error_code for each in answers] == [0, 0, 0, 0]

    play(story)


def test_the_cluster_id_is_the_data_directorys():
    """A broker of another cluster is refused by name."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        assert world.driver.controller.policy.cluster_id == CLUSTER_ID
        assert world.metadata.image.cluster_id == CLUSTER_ID

    play(story)


# ---- names of deleted topics -----------------------------------------------------------------------------------------


def test_a_deleted_topics_name_is_free_when_every_broker_has_applied_the_deletion():
    """A leader that has not applied it would acknowledge records that are meant for the new topic."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2, 3)
        await world.create("t", factor=3)
        before = world.metadata.image.offset
        world.quorum.may_commit.clear()
        deleting = asyncio.ensure_future(world.driver.handle(DeleteTopicsRequest(topics=("t",))))
        await asyncio.sleep(0.1)
        creating = asyncio.ensure_future(world.create("t", factor=3))
        world.quorum.may_commit.set()
        await deleting
        await world.beat(1)
        await world.beat(2)
        await world.beat(3, offset=before)
        assert (await world.create("u")).topics[0].error_code == 0, "another name is free"
        dry = CreateTopicsRequest(
            topics=(NewTopic(name="t", num_partitions=1, replication_factor=3),), validate_only=True
        )
        assert (await world.driver.handle(dry)).topics[0].error_code == 0
        await asyncio.sleep(1.0)
        assert not creating.done()
        await world.beat(3)
        assert (await creating).topics[0].error_code == 0

    play(story)


def test_a_deleted_topics_name_is_free_when_a_silent_broker_has_been_fenced():
    """Without a session a leader acknowledges nothing; a request that cannot wait that long is not written."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        await world.create("t", factor=2)
        await world.driver.handle(DeleteTopicsRequest(topics=("t",)))
        new = NewTopic(name="t", num_partitions=1, replication_factor=1)
        with pytest.raises(RequestTimedOut) as caught:
            await world.driver.handle(CreateTopicsRequest(topics=(new,), timeout_ms=1000))
        assert caught.value.outcome == "not_written"
        assert "the deletion of the former topic 't' is not applied by: broker 1, 2" in caught.value.message
        creating = asyncio.ensure_future(world.create("t"))
        await keep_alive(world, 1, until=world.now() + 9.1)
        assert (await creating).topics[0].error_code == 0
        assert world.broker(2).fenced
        assert world.partition().replicas == (1,)

    play(story)


def test_a_new_controller_remembers_deletions_and_hears_the_brokers_first():
    """What brokers told its predecessor it does not know; requests that wait end with its reign."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        await world.create("t", factor=2)
        await world.driver.handle(DeleteTopicsRequest(topics=("t",)))
        creating = asyncio.ensure_future(outcome(world.create("t")))
        await asyncio.sleep(0.1)
        world.quorum.lose(2)
        assert await creating == ("NOT_CONTROLLER", "not_written")
        world.quorum.lead(3)
        creating_again = asyncio.ensure_future(world.create("t"))
        await asyncio.sleep(0.1)
        assert not creating_again.done()
        await world.beat(1)
        await world.beat(2)
        assert (await creating_again).topics[0].error_code == 0

    play(story)


def test_a_controller_that_began_with_a_snapshot_hears_the_brokers_before_it_creates_a_topic():
    """The snapshot does not say that the name was a deleted topic's, which a broker may still lead."""
    snapshot: list[Any] = []

    async def before(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2)
        await world.create("t", factor=2)
        await world.driver.handle(DeleteTopicsRequest(topics=("t",)))
        snapshot.extend((world.metadata.image.offset, world.metadata.snapshot_payloads()))

    async def after(world: ControllerWorld) -> None:
        world.quorum.end, payloads = snapshot
        world.metadata.on_snapshot(EpochEnd(epoch=1, end_offset=world.quorum.end), payloads)
        world.quorum.lead(2)
        creating = asyncio.ensure_future(world.create("t"))
        await world.beat(1)
        await world.beat(2, offset=world.quorum.end - 2)
        await asyncio.sleep(0.1)
        assert not creating.done()
        await world.beat(2)
        assert (await creating).topics[0].error_code == 0

    play(before)
    play(after)


# ---- advertised addresses --------------------------------------------------------------------------------------------


def test_no_replica_is_placed_on_a_broker_whose_address_does_not_answer():
    """A ghost that registers and beats would lead topics that nobody can reach."""

    async def story(world: ControllerWorld) -> None:
        world.silent.add(Address("127.0.0.1", 9093))
        world.quorum.lead(1)
        await world.join(1, 2, 3)
        assert (await world.create("t", partitions=3, factor=2)).topics[0].error_code == 0
        assert [world.partition("t", number).replicas for number in range(3)] == [(1, 2), (2, 1), (1, 2)]
        refused = (await world.create("u", factor=3)).topics[0]
        assert (refused.error_code, refused.outcome) == (InvalidReplicationFactor.code, "not_written")
        assert [facts["broker"] for facts in world.facts("broker_unreachable")] == [3]
        grow = CreatePartitionsRequest(topics=(NewPartitions(name="t", count=6),))
        assert (await world.driver.handle(grow)).results[0].error_code == 0
        assert all(3 not in world.partition("t", number).replicas for number in range(6))
        world.silent.clear()
        await world.beat(3)
        assert (await world.create("u", factor=3)).topics[0].error_code == 0
        assert world.partition("u").replicas == (1, 2, 3)

    play(story)


def test_a_creation_waits_until_it_is_known_which_addresses_answer(monkeypatch: pytest.MonkeyPatch):
    """A cluster that has just formed creates its first topic with all of its brokers."""

    async def story(world: ControllerWorld) -> None:
        async def slowly(_: Address) -> bool:
            await asyncio.sleep(0.5)
            return True

        monkeypatch.setattr(world.driver, "_answers", slowly)
        world.quorum.lead(1)
        await world.join(1, 2, 3)
        new = NewTopic(name="t", num_partitions=1, replication_factor=3)
        with pytest.raises(RequestTimedOut, match="waits for an answer of broker 2, 3") as caught:
            await world.driver.handle(CreateTopicsRequest(topics=(new,), timeout_ms=100))
        assert caught.value.outcome == "not_written"
        assert (await world.create("t", factor=3)).topics[0].error_code == 0

    play(story)


def test_a_broker_that_died_beside_the_former_controller_still_counts_for_its_session():
    """It registered with an address that answered; whether it lives is for its session to say."""

    async def story(world: ControllerWorld) -> None:
        world.quorum.lead(1)
        await world.join(1, 2, 3)
        world.quorum.lose(2)
        world.silent.add(Address("127.0.0.1", 9093))
        world.quorum.lead(3)
        await world.beat(1)
        await world.beat(2)
        assert (await world.create("t", factor=3)).topics[0].error_code == 0

    play(story)
