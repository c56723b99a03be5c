"""The books on consumer groups: each kind of finding, and what is none (S29 to S35)."""

from __future__ import annotations

from minikafka.check.groups import MEANINGS, GroupBook
from minikafka.types import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Told:
    """A book, and the kinds of what it reported."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.sentences: list[str] = []
        self.book = GroupBook(self.report)
        self._ops = 0

    def report(self, kind: str, what: str) -> None:
        assert kind in MEANINGS
        self.kinds.append(kind)
        self.sentences.append(what)

    def dealt(self, generation: int, **members: tuple[TopicPartition, ...]) -> None:
        """A generation as it should be: recorded, then given out by broker n1."""
        self.book.group_recorded("g", generation, members.values())
        for member, partitions in members.items():
            fence = self.book.fence("g")
            self.book.synced("g", generation, member, partitions, broker="n1", fence=min(fence, generation))

    def send(self, member: str, generation: int, offset: int, *, instance: str | None = None) -> int:
        self._ops += 1
        self.book.commit_sent(self._ops, "g", member, generation, {P0: offset}, instance=instance)
        return self._ops

    def commit(self, member: str, generation: int, offset: int) -> None:
        op = self.send(member, generation, offset)
        self.book.offset_recorded("g", P0, offset)
        self.book.commit_granted(op, "g", [P0])


def test_a_group_that_does_all_right_is_reported_nothing():
    """S31, S33, S34: two generations, commits, a late answer to the first generation's own request."""
    told = Told()
    told.dealt(1, a=(P0, P1))
    late = told.send("a", 1, 3)
    told.commit("a", 1, 3)
    told.book.handed("g", 1, "a", P0)
    told.dealt(2, a=(P1,), b=(P0,))
    told.book.commit_granted(late, "g", [P0])
    told.commit("b", 2, 5)
    told.book.handed("g", 2, "b", P0)
    told.book.handed("g", 2, "a", P1)
    told.book.found("g", P0, 5, told.book.owed("g"))
    told.book.processed("g", P0, [(offset, f"v{offset}") for offset in range(5)])
    told.book.judge("g", {P0: [(offset, f"v{offset}") for offset in range(5)], P1: [(0, "w")]}, is_calm=True)
    assert told.sentences == []


def test_two_owners_by_the_coordinator_and_by_what_they_read():
    """S29: one owner in a generation, by either word; a static member's next process is the same owner (KIP-345)."""
    told = Told()
    told.dealt(1, a=(P0,), b=(P0,))
    told.book.handed("g", 1, "a", P1)
    told.book.handed("g", 1, "b", P1)
    assert told.kinds == ["two-owners", "two-owners"]
    same = Told()
    same.book.group_recorded("g", 1, [(P0,)])
    same.book.synced("g", 1, "m1", (P0,), broker="n1", instance="i")
    same.book.synced("g", 1, "m2", (P0,), broker="n1", instance="i")
    assert same.kinds == []


def test_whoever_is_out_reads_nothing():
    """S31: what it had is another's; a zombie that has not heard of it yet is none of this."""
    told = Told()
    told.dealt(1, a=(P0,))
    told.dealt(2, b=(P0,))
    told.book.handed("g", 1, "a", P0)
    assert told.kinds == []
    told.book.handed("g", -1, "a", P0)
    assert told.kinds == ["read-outside"]


def test_an_expelled_member_takes_no_partitions():
    """S31: an assignment that is applied after the member has learned of its expulsion is another member's."""
    told = Told()
    told.book.assigned("g", 1, "a", [P0])
    told.book.assigned("g", -1, "a", [])
    assert told.kinds == []
    told.book.assigned("g", -1, "a", [P0])
    assert told.kinds == ["assigned-outside"]


def test_a_commit_that_was_reported_as_not_written_is_never_committed():
    """The outcome not_written is a promise about every attempt; doubled requests and other commits are none of it."""
    told = Told()
    since = told.book.commits_sent("g")
    told.send("a", 1, 3)
    told.book.commit_refused("g", "a", since)
    assert told.kinds == []
    told.book.offset_recorded("g", P0, 3)
    assert told.kinds == ["refused-commit"]

    before = Told()
    before.send("a", 1, 3)
    before.book.offset_recorded("g", P0, 3)
    before.book.commit_refused("g", "a", 0, {P0: 3})
    assert before.kinds == ["refused-commit"]

    fine = Told()
    fine.send("a", 1, 3)
    since = fine.book.commits_sent("g")
    fine.send("a", 1, 3)
    fine.book.commit_refused("g", "a", since, {P0: 3})
    fine.book.offset_recorded("g", P0, 3)
    assert fine.kinds == [], "the earlier commit may be the one that is there"
    others = Told()
    others.send("b", 1, 3)
    others.book.commit_refused("g", "a", 0)
    others.book.offset_recorded("g", P0, 3)
    assert others.kinds == [], "another member's was not refused"
    doubled = Told()
    op = doubled.send("a", 1, 3)
    doubled.book.commit_sent(op, "g", "a", 1, {P0: 3})
    doubled.book.commit_refused("g", "a", 0)
    doubled.book.offset_recorded("g", P0, 3)
    assert doubled.kinds == []


def test_a_zombies_commit():
    """S33: sent after a newer generation was given out; or by whoever had the instance before."""
    told = Told()
    told.dealt(1, a=(P0,))
    told.dealt(2, b=(P0,))
    told.commit("a", 1, 3)
    assert told.kinds == ["zombie-commit"]
    told.commit("a", 0, 4)
    assert told.kinds == ["zombie-commit", "zombie-commit"]
    static = Told()
    static.book.group_recorded("g", 1, [(P0,)])
    for member in ("m1", "m2"):
        static.book.synced("g", 1, member, (P0,), broker="n1", instance="i")
    op = static.send("m1", 1, 3, instance="i")
    static.book.offset_recorded("g", P0, 3)
    static.book.commit_granted(op, "g", [])
    assert static.kinds == [], "it was refused"
    static.book.commit_granted(op, "g", [P0])
    assert static.kinds == ["zombie-commit"]


def test_a_refusal_is_never_wrong_and_by_hand_is_no_zombie():
    """S34: what nobody granted is no finding; a commit without a member speaks for no generation."""
    told = Told()
    told.dealt(1, a=(P0,))
    told.dealt(2, b=(P0,))
    told.send("a", 1, 3)
    told.book.commit_granted(1, "g", [])
    told.commit("", -1, 4)
    assert told.kinds == []


def test_what_a_zombie_must_not_be_granted_besides():
    """S33: a heartbeat and an assignment of an old generation; each broker answers for what it has told itself."""
    told = Told()
    told.dealt(2, a=(P0,))
    told.book.heartbeat_granted("g", 1, "z", told.book.fence("g", "n2"))
    assert told.kinds == []
    told.book.heartbeat_granted("g", 1, "z", told.book.fence("g", "n1"))
    told.book.synced("g", 1, "z", (), broker="n1", fence=2, is_log_known=False)
    assert told.kinds == ["zombie-heartbeat", "zombie-sync"]
    told.book.heartbeat_granted("g", 2, "a", told.book.fence("g", "n1"))
    assert len(told.kinds) == 2, "it belongs"


def test_an_answer_that_comes_late_lowers_no_fence():
    """S33: it was asked for before the next generation was given out, which goes on to fence its members."""
    told = Told()
    told.dealt(1, a=(P0,))
    told.dealt(2, b=(P0,))
    told.book.synced("g", 1, "a", (P0,), broker="n1", fence=1)
    assert (told.book.fence("g"), told.book.fence("g", "n1")) == (2, 2)
    told.commit("a", 1, 3)
    assert told.kinds == ["zombie-commit"]


def test_generations_rise_and_each_has_one_assignment():
    """S33: what is committed of a group; who has which may be told in another order, and a deleted group begins anew."""
    told = Told()
    told.book.group_recorded("g", 2, [(P0,), (P1,)])
    told.book.group_recorded("g", 2, [(P1,), (P0,)])
    assert told.kinds == []
    told.book.group_recorded("g", 2, [(P0, P1), ()])
    told.book.group_recorded("g", 1, [(P0,), (P1,)])
    assert told.kinds == ["generation-back", "generation-back"]
    told.book.group_deleted("g")
    told.book.group_recorded("g", 1, [])
    assert len(told.kinds) == 2


def test_nothing_is_told_before_it_is_committed():
    """S34: neither an assignment nor a commit; unless a damaged disk hides what is committed."""
    told = Told()
    told.book.synced("g", 1, "a", (P0,), broker="n1")
    told.book.commit_granted(told.send("a", 1, 3), "g", [P0])
    assert told.kinds == ["assignment-unrecorded", "commit-unrecorded"]
    hidden = Told()
    hidden.book.synced("g", 1, "a", (P0,), broker="n1", is_log_known=False)
    hidden.book.commit_granted(hidden.send("a", 1, 3), "g", [P0], is_log_known=False)
    assert hidden.kinds == []


def test_offsets_go_forward_and_are_asked_for():
    """S34: back only by a reset; nobody commits but by a request."""
    told = Told()
    told.commit("a", 1, 5)
    told.commit("a", 1, 3)
    told.book.offset_recorded("g", P0, 9)
    assert told.kinds == ["commit-back", "commit-unasked"]
    expired = Told()
    expired.commit("a", 1, 5)
    expired.book.offset_recorded("g", P0, None)
    assert expired.book.committed("g", P0) == -1
    expired.commit("a", 1, 3)
    assert expired.kinds == [], "nothing was there any more"
    reset = Told()
    reset.commit("a", 1, 5)
    reset.book.reset("g", P0, 0)
    reset.commit("a", 1, 3)
    assert reset.kinds == []


def test_a_request_that_was_sent_twice_may_be_heard_late():
    """S34: Kafka's requests have no numbers; the repetition is no finding, and is what will be found."""
    told = Told()
    told.commit("a", 1, 3)
    told.book.commit_sent(1, "g", "a", 1, {P0: 3})
    told.commit("a", 1, 5)
    told.book.offset_recorded("g", P0, 3)
    told.book.found("g", P0, 3, told.book.owed("g"))
    assert told.kinds == []
    told.book.offset_recorded("g", P0, 5)
    told.book.offset_recorded("g", P0, 3)
    assert told.kinds == ["commit-back"], "it was heard as often as it was sent"


def test_an_acknowledged_commit_is_found_by_whoever_asks_later():
    """S34: the next coordinator too; who asked before may find less, and a deleted offset is owed no more."""
    told = Told()
    before = told.book.owed("g")
    told.commit("a", 1, 5)
    told.book.found("g", P0, -1, before)
    told.book.found("g", P0, 7, told.book.owed("g"))
    assert told.kinds == []
    told.book.found("g", P0, 3, told.book.owed("g"))
    assert told.kinds == ["commit-lost"]
    told.book.offset_recorded("g", P0, None)
    told.book.found("g", P0, -1, told.book.owed("g"))
    assert told.kinds == ["commit-lost"]


def test_an_acknowledgment_that_comes_late_takes_nothing_back():
    """S34: two commits are written in their order, and acknowledged in the other one."""
    told = Told()
    first, second = told.send("a", 1, 3), told.send("a", 1, 5)
    for offset in (3, 5):
        told.book.offset_recorded("g", P0, offset)
    for op in (second, first):
        told.book.commit_granted(op, "g", [P0])
    told.book.found("g", P0, 3, told.book.owed("g"))
    assert told.kinds == ["commit-lost"]


def test_a_request_that_was_sent_before_a_reset_may_find_the_offset_that_was_set_back():
    """S34: the coordinator answered it after the reset."""
    told = Told()
    told.commit("a", 1, 5)
    owed = told.book.owed("g")
    told.book.reset("g", P0, 2)
    told.book.found("g", P0, 2, owed)
    assert told.kinds == []


def test_an_acknowledgment_that_comes_after_a_reset_promises_nothing():
    """S34: the offset that was set back is what later requests find."""
    told = Told()
    op = told.send("a", 1, 9)
    told.book.offset_recorded("g", P0, 9)
    told.book.reset("g", P0, 5)
    told.book.commit_granted(op, "g", [P0])
    told.book.found("g", P0, 5, told.book.owed("g"))
    assert told.kinds == []


def test_skipped_and_repeated_records():
    """S34: below what is committed everything was processed; twice only where something had gone wrong."""
    told = Told()
    told.commit("a", 1, 3)
    told.book.processed("g", P0, [(0, "x"), (2, "z"), (2, "z")])
    rows = [(0, "x"), (1, "y"), (2, "z"), (3, "not committed yet")]
    told.book.judge("g", {P0: rows}, is_calm=False)
    assert told.kinds == ["group-skip"]
    assert "y at t-0@1" in told.sentences[0]
    told.book.judge("g", {P0: rows}, is_calm=True)
    assert told.kinds == ["group-skip", "group-skip", "group-repeat"]


def test_the_last_record_below_a_commit_is_judged_too():
    """S34: a committed offset is the next one to read."""
    told = Told()
    told.commit("a", 1, 2)
    told.book.processed("g", P0, [(0, "x")])
    told.book.judge("g", {P0: [(0, "x"), (1, "y"), (2, "z")]}, is_calm=True)
    assert told.kinds == ["group-skip"]
