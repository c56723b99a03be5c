"""Messages are values: compared, hashed, shown and copied by their members, which are given by name."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from msgspec.structs import replace

from minikafka.wire.apis import APIS, BY_NAME
from minikafka.wire.credentials import ScramUpsertion
from minikafka.wire.messages import CurrentLeader, Failed, Message, NodeEndpoint


class _Plain(Message):
    """A message with one field that is a list of texts."""

    node_id: int
    names: tuple[str, ...] = ()


@dataclasses.dataclass(slots=True, kw_only=True, unsafe_hash=True)
class _Generated:
    node_id: int
    names: tuple[str, ...] = ()


def test_messages_are_equal_hashed_and_shown_as_dataclasses():
    """The oracle is a dataclass of the same fields, all of whose methods are generated."""
    values = [(1, ()), (1, ("a",)), (2, ("a",)), (1, ("a",))]
    ours = [_Plain(node_id=number, names=names) for number, names in values]
    oracle = [_Generated(node_id=number, names=names) for number, names in values]
    assert [[one == other for one in ours] for other in ours] == [[one == other for one in oracle] for other in oracle]
    assert hash(ours[1]) == hash(ours[3])
    assert len(set(ours)) == len(set(oracle)) == 3
    assert [repr(one) for one in ours] == [repr(one).replace("_Generated", "_Plain") for one in oracle]
    assert ours[0] != oracle[0]
    assert replace(ours[0], names=("a",)) == ours[1]
    assert pickle.loads(pickle.dumps(ours[2])) == ours[2]


def test_messages_of_two_kinds_differ():
    """Equal values do not make a request equal to another kind of request."""
    assert NodeEndpoint(node_id=1, host="a", port=2) != CurrentLeader(leader_id=1, leader_epoch=2)
    assert Failed() == Failed()
    with pytest.raises(TypeError, match="Missing required argument 'port'"):
        NodeEndpoint(node_id=1, host="a")


def test_no_message_generates_what_all_share():
    """Else each of them would cost a broker half a millisecond at its start."""
    shared = {
        (kind.__eq__, kind.__hash__, kind.__repr__) for api in BY_NAME.values() for kind in (api.request, api.response)
    }
    assert len(shared) == 1


def test_members_are_checked_and_have_defaults_of_their_own():
    """A message is frozen; an empty map as default belongs to one message."""

    class Tea(Failed):
        name: str
        origins: dict[str, str] = {}  # noqa: RUF012 - each message gets its own
        minutes: int = 3

    with pytest.raises(TypeError, match="Missing required argument 'name'"):
        Tea()  # type: ignore[call-arg]
    first, second = Tea(name="sencha", error_code=2), Tea(name="assam", minutes=4)
    assert (first.name, first.origins, first.minutes, first.error_code) == ("sencha", {}, 3, 2)
    assert first.origins is not second.origins
    assert replace(first, minutes=5) == Tea(name="sencha", error_code=2, minutes=5)
    assert Failed().error_code == 0
    with pytest.raises(TypeError, match="Unexpected keyword argument 'milk'"):
        Tea(name="assam", milk=True)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="immutable"):
        first.minutes = 4  # type: ignore[misc]


def test_a_salted_password_is_not_shown():
    """A secret: what is as good as the password for logging in stays out of logs and errors."""
    shown = repr(ScramUpsertion(name="ann", mechanism=1, iterations=4096, salt=b"grain", salted_password=b"secret"))
    assert shown == "ScramUpsertion(name='ann', mechanism=1, iterations=4096)"


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_requests_carry_the_version_of_their_api(api):
    """A receiver that knows more versions must not take an old request for a new one."""
    config = api.request.__struct_config__
    assert (config.tag_field, config.tag) == ("v", api.max_version)
