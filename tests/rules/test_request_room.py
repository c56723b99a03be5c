"""Room for large requests: nobody's slow requests take all of it."""

from __future__ import annotations

from minikafka.world.connections import owner_of
from minikafka.world.request_room import STRANGERS, RequestRoom

MIB = 1 << 20


class Frame:
    """A connection whose frame waits for room."""

    def __init__(self, room: RequestRoom, owner: str, announced: int) -> None:
        self.room = room
        self.owner = owner
        self.announced = announced
        self.is_admitted = room.take(owner, announced)
        if not self.is_admitted:
            room.wait(self)

    def admit_waiting(self) -> bool:
        self.is_admitted = self.room.take(self.owner, self.announced)
        return self.is_admitted


def test_one_owner_holds_half_of_the_room():
    """Slow senders of one user, and all that have not logged in, leave the rest to others."""
    for owner in ("User:eve", STRANGERS, "10.0.0.7"):
        room = RequestRoom(64 * MIB)
        slow = [Frame(room, owner, MIB) for _ in range(100)]
        assert sum(each.is_admitted for each in slow) == 32
        assert Frame(room, "User:good", 20 * MIB).is_admitted
        assert not Frame(room, "User:good", 20 * MIB).is_admitted


def test_a_request_of_any_size_is_admitted_to_an_empty_room():
    """One that is larger than a half, or than all of it, would otherwise wait forever."""
    room = RequestRoom(64 * MIB)
    assert Frame(room, "User:good", 40 * MIB).is_admitted
    assert Frame(room, "User:other", 20 * MIB).is_admitted
    room.release("User:good", 40 * MIB)
    room.release("User:other", 20 * MIB)
    assert Frame(room, "User:good", 100 * MIB).is_admitted
    assert not Frame(room, "User:other", MIB).is_admitted


def test_an_owner_with_its_share_is_passed_over_when_there_is_room_again():
    """Thousands of its requests wait in front of those of others."""
    room = RequestRoom(64 * MIB)
    first = [Frame(room, "User:eve", MIB) for _ in range(1000)]
    Frame(room, "User:bob", 30 * MIB)
    late = Frame(room, "User:good", 10 * MIB)
    assert not late.is_admitted
    room.release("User:bob", 30 * MIB)
    room.wake()
    assert late.is_admitted
    assert sum(each.is_admitted for each in first) == 32
    room.release("User:eve", MIB)
    room.wake()
    assert sum(each.is_admitted for each in first) == 33


def test_owners_take_turns_and_a_large_request_is_not_starved():
    """The first that does not fit keeps its place in front of smaller ones."""
    room = RequestRoom(64 * MIB)
    Frame(room, "User:a", 30 * MIB)
    Frame(room, "User:b", 30 * MIB)
    large, small, more = (
        Frame(room, *each) for each in [("User:c", 40 * MIB), ("User:d", 5 * MIB), ("User:c", 5 * MIB)]
    )
    room.release("User:a", 10 * MIB)
    room.wake()
    assert not any(each.is_admitted for each in (large, small, more))
    room.release("User:a", 20 * MIB)
    room.wake()
    assert not large.is_admitted
    room.release("User:b", 30 * MIB)
    room.wake()
    assert large.is_admitted
    assert small.is_admitted
    assert not more.is_admitted, "c has its share"
    room.release("User:c", 40 * MIB)
    room.wake()
    assert more.is_admitted
    assert not room.is_awaited


def test_owners_take_turns_also_when_one_has_many_requests():
    """An owner's second request waits until each of the others has had a turn."""
    room = RequestRoom(32 * MIB)
    Frame(room, "User:x", 16 * MIB)
    Frame(room, "User:y", 16 * MIB)
    first, second, other = (Frame(room, owner, 8 * MIB) for owner in ("User:a", "User:a", "User:b"))
    room.release("User:x", 16 * MIB)
    room.wake()
    assert [each.is_admitted for each in (first, second, other)] == [True, False, True]


def test_a_request_that_looks_for_room_in_vain_keeps_its_place():
    """It asks to wait once more, as a connection does."""
    room = RequestRoom(32 * MIB)
    Frame(room, "User:x", 32 * MIB)
    first, second = (Frame(room, "User:a", 16 * MIB) for _ in range(2))
    room.wait(first)
    room.release("User:x", 16 * MIB)
    room.wake()
    assert [each.is_admitted for each in (first, second)] == [True, False]


def test_a_connection_that_left_does_not_wait():
    """Its place in the queue is gone."""
    room = RequestRoom(MIB)
    Frame(room, "User:a", MIB)
    gone = Frame(room, "User:b", MIB)
    assert room.is_awaited
    room.leave(gone)
    room.leave(gone)
    assert not room.is_awaited


def test_owners_are_users_or_addresses():
    """Clients without a name count by their address."""
    assert owner_of("User:ann", "10.0.0.7") == "User:ann"
    assert owner_of("User:ANONYMOUS", "10.0.0.7") == "10.0.0.7"
