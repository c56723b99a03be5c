"""What a group refuses, by Kafka's name, and in a sentence that says what to do (issue 6, bad input)."""

from __future__ import annotations

import re

import pytest

from minikafka.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    OffsetMetadataTooLarge,
    UnknownMemberId,
)
from minikafka.groups import limits
from minikafka.groups.limits import GroupSettings
from minikafka.groups.rebalance import PENDING_MAX
from tests.rules.group_kit import Desk

TOO_LONG = "x" * 40_000


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        ({"group": ""}, InvalidGroupId, "give it one"),
        ({"group": TOO_LONG}, InvalidGroupId, "choose a shorter one"),
        ({"session_ms": 1}, InvalidSessionTimeout, "from 6000 to 1800000"),
        ({"session_ms": 2_000_000}, InvalidSessionTimeout, "group.max.session.timeout.ms"),
        ({"rebalance_ms": 2**40}, InvalidRequest, "from 1 to 2147483647"),
        ({"rebalance_ms": 0}, InvalidRequest, "rebalance_timeout_ms=0"),
        ({"client": TOO_LONG}, InvalidRequest, "client_id has 40000 bytes"),
        ({"instance": TOO_LONG}, InvalidRequest, "group_instance_id has 40000 bytes"),
        ({"names": (TOO_LONG,)}, InvalidRequest, "protocols.name has 40000 bytes"),
        ({"member_id": "ghost"}, UnknownMemberId, "join without a member id"),
    ],
)
def test_a_join_that_no_record_can_hold_is_refused_by_name(wrong, error, told):
    """Issue 6, bad input: nothing is half applied, and the sentence says what to do."""
    desk = Desk()
    with pytest.raises(error, match=re.escape(told)):
        desk.join(**wrong)
    assert desk.log == []


def test_a_session_that_no_record_can_hold_is_refused_whatever_the_broker_is_configured_with():
    """group.max.session.timeout.ms may be larger than Kafka's."""
    desk = Desk(GroupSettings(session_timeout_ms_max=2**40))
    with pytest.raises(InvalidSessionTimeout, match="to 2147483647"):
        desk.join(session_ms=2**31)


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        ({"group": TOO_LONG}, InvalidGroupId, "choose a shorter one"),
        ({"offset": 2**63}, InvalidRequest, "offset=9223372036854775808 has more than 64 bits"),
        ({"generation": 7}, IllegalGeneration, "join again"),
    ],
)
def test_a_commit_that_no_record_can_hold_is_refused_by_name(wrong, error, told):
    """Issue 6, bad input."""
    desk = Desk()
    with pytest.raises(error, match=re.escape(told)):
        desk.commit(**{"offset": 1, **wrong})
    assert desk.log == []


def test_a_producer_epoch_that_no_batch_can_hold_is_refused_by_name():
    """Else the offset stays pending for ever: members that require stable offsets could not read on."""
    desk = Desk()
    with pytest.raises(InvalidRequest, match="from -1 to 32767"):
        desk.commit_in_transaction(5, producer_epoch=2**15)
    assert desk.stable_code() == 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"producer_id": 2**63}, "from 0 to 9223372036854775807"),
        ({"producer_id": -1}, "from 0 to 9223372036854775807"),
        ({"offset": 2**63}, "more than 64 bits"),
    ],
)
def test_a_transactional_commit_that_no_batch_can_hold_is_refused_by_name(wrong, told):
    """As above; the broker would stop, for such a batch cannot be packed."""
    desk = Desk()
    with pytest.raises(InvalidRequest, match=told):
        desk.commit_in_transaction(**{"offset": 5, **wrong})
    assert desk.stable_code() == 0


def test_metadata_beside_an_offset_has_a_limit():
    """offset.metadata.max.bytes, in UTF-16 units as in Kafka; never more than a record can hold."""
    desk = Desk(GroupSettings(offset_metadata_size_max=10))
    for largest in ("ä" * 10, "😀" * 5):
        assert desk.answers[desk.commit(1, metadata=largest)].partitions[0].error_code == 0
    refused = desk.answers[desk.commit(2, metadata="😀" * 5 + "a")].partitions[0]
    assert (refused.error_code, refused.outcome) == (OffsetMetadataTooLarge.code, "not_written")
    assert "metadata of 11 characters, offset.metadata.max.bytes is 10: commit less" in refused.error_message
    assert desk.committed() == 1
    desk = Desk(GroupSettings(offset_metadata_size_max=10**6))
    assert desk.answers[desk.commit(1, metadata="x" * 2**15)].partitions[0].error_code == OffsetMetadataTooLarge.code


def test_refusals_of_members_say_what_to_do():
    """Issue 6, bad input: unknown member, old generation, an assignor that nobody shares, a fenced instance."""
    desk = Desk()
    [member] = desk.stable(1)
    generation = desk.coordinator.describe("g").generation_id
    with pytest.raises(UnknownMemberId, match="no member 'ghost': join again"):
        desk.heartbeat("ghost", generation)
    with pytest.raises(IllegalGeneration, match=f"in generation {generation}, not 7: join again"):
        desk.heartbeat(member, 7)
    with pytest.raises(IllegalGeneration, match="nothing was committed, join again"):
        desk.commit(1, member_id=member, generation=7)
    with pytest.raises(InconsistentGroupProtocol, match=r"share none of \['sticky'\]: offer range"):
        desk.join(names=("sticky",))
    with pytest.raises(UnknownMemberId, match="only its members may commit"):
        desk.commit(1)
    desk = Desk()
    ticket = desk.join(instance="i")
    desk.pass_time(0)
    old = desk.answers[ticket].member_id
    desk.join(instance="i")
    with pytest.raises(FencedInstanceId, match=r"stop this one, or give each process a group.instance.id of its own"):
        desk.heartbeat(old, 1, instance="i")


def test_a_request_that_names_no_member_removes_none():
    """Without a member id and an instance id; the instance id of a member may be empty."""
    desk = Desk()
    ticket = desk.join(instance="")
    desk.pass_time(0)
    member_id = desk.answers[ticket].member_id
    (left,) = desk.leave("").members
    assert (left.error_code, desk.heartbeat(member_id, 1, instance="").error_code) == (UnknownMemberId.code, 0)
    (left,) = desk.leave("", instance="").members
    assert left.error_code == 0


def test_member_ids_that_nobody_joins_with_are_bounded():
    """KIP-394's first answer costs memory until the session ends: beyond the bound it is refused, for a while."""
    desk = Desk()
    given = [desk.answers[desk.join()].member_id for _ in range(PENDING_MAX)]
    with pytest.raises(CoordinatorNotAvailable, match="join again in a while") as caught:
        desk.join()
    assert (caught.value.retriable, caught.value.outcome) == (True, "not_written")
    desk.join(given[0])
    assert desk.answers[desk.join()].error_code == 79, "one has joined: there is room for one id"
    with pytest.raises(CoordinatorNotAvailable):
        desk.join()
    desk.pass_time(10.0)
    assert desk.answers[desk.join()].error_code == 79, "those ids have ended with their session"
    desk.join(instance="i")


def test_subscriptions_of_a_group_have_a_limit(monkeypatch: pytest.MonkeyPatch):
    """Each member may send a megabyte, and sessions last up to half an hour. Small ones are no reason to refuse."""
    monkeypatch.setattr(limits, "SUBSCRIPTION_BYTES_SMALL", 1000)
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_BYTES_MAX", 5000)
    desk = Desk()
    large = tuple(f"topic-{number:03}" for number in range(150))
    member_id, _ = desk.join_new(topics=large)
    desk.join(member_id, topics=(*large, "one-more"))
    desk.join(instance="i", topics=large)
    with pytest.raises(GroupMaxSizeReached, match="5000 bytes; subscribe to fewer topics"):
        desk.join(topics=large)
    with pytest.raises(GroupMaxSizeReached):
        desk.join(member_id, topics=(*large, *(f"more-{number:03}" for number in range(200))))
    desk.join(instance="i", topics=large)
    desk.join_new()
    desk.join(group="other", topics=large)


def test_a_static_member_comes_back_to_a_full_group():
    """KIP-345 and group.max.size: it takes its own place and no other's; a stranger is refused."""
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=0, group_size_max=1))
    desk.join(instance="i")
    desk.pass_time(0)
    assert desk.answers[desk.join(instance="i")].error_code == 0
    with pytest.raises(GroupMaxSizeReached):
        desk.join(instance="j")
    with pytest.raises(GroupMaxSizeReached):
        desk.join()
