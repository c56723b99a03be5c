"""Messages behave as dataclasses, although only their constructors are generated."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from minikafka.wire.apis import BY_NAME
from minikafka.wire.messages import CurrentLeader, Failed, NodeEndpoint, message


@message
class _Plain:
    """As a message, with one field that is a list of texts."""

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
    assert [hash(one) for one in ours] == [hash(one) for one in oracle]
    assert [repr(one) for one in ours] == [repr(one).replace("_Generated", "_Plain") for one in oracle]
    assert ours[0] != oracle[0]
    assert dataclasses.replace(ours[0], names=("a",)) == ours[1]
    assert pickle.loads(pickle.dumps(ours[2])) == ours[2]


def test_messages_of_two_kinds_differ():
    """Equal values do not make a request equal to another kind of request."""
    assert NodeEndpoint(node_id=1, host="a", port=2) != CurrentLeader(leader_id=1, leader_epoch=2)
    assert Failed() == Failed()
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'port'"):
        NodeEndpoint(node_id=1, host="a")


def test_no_message_generates_what_all_share():
    """Else each of them would cost a broker half a millisecond at its start."""
    shared = {
        (kind.__eq__, kind.__hash__, kind.__repr__) for api in BY_NAME.values() for kind in (api.request, api.response)
    }
    assert len(shared) == 1


def test_init_is_generated_for_the_first_message_of_its_kind():
    """A broker makes messages of a quarter of the kinds that it knows; each checks its members as a dataclass does."""

    @message
    class Tea(Failed):
        name: str
        origins: dict[str, str] = dataclasses.field(default_factory=dict)
        minutes: int = 3

    stub = Tea.__init__
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'name'"):
        Tea()  # type: ignore[call-arg]
    first, second = Tea(name="sencha", error_code=2), Tea(name="assam", minutes=4)
    assert Tea.__init__ is not stub
    assert (first.name, first.origins, first.minutes, first.error_code) == ("sencha", {}, 3, 2)
    assert first.origins is not second.origins
    assert dataclasses.replace(first, minutes=5) == Tea(name="sencha", error_code=2, minutes=5)
    assert Failed().error_code == 0
    with pytest.raises(TypeError, match="unexpected keyword argument 'milk'"):
        Tea(name="assam", milk=True)  # type: ignore[call-arg]
