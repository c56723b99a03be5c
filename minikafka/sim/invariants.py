"""What must hold of one partition after every step (KAFKA-FACTS §10), one class an invariant.

Its name is what a failure is called. What must hold of the metadata stands in ``metadata_invariants.py``; ``watch.py``
asks them all.

Rules for this file: it only looks. Whatever a leader's watermark has passed is *exposed*: noted with its checksum, and
compared with every replica whose watermark passes it later, and with the log of every later leader.

Two are about what brokers send: each voter votes once per epoch, and no fetcher asks the same question for ever. A vote
counts once it has left the voter, whatever the voter then forgets. A fetcher that makes no progress tells no event.
Their observer sees every message of the network; it looks into those of two APIs only, and reads a fetch only when the
count is suspicious.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable
from typing import Any, Final, NamedTuple

from minikafka.errors import ProtocolError
from minikafka.sim.log_invariants import Batch, KeyBook, lost_sequences, records_of, rows_of, stored_batches
from minikafka.sim.metadata_invariants import ROLE_EVENTS
from minikafka.sim.replica_view import Key, OfPartition, ReplicaView, Report, number_of
from minikafka.sim.verdicts import Message, Verdict
from minikafka.sim.world import Event
from minikafka.types import Epoch, Offset, TopicPartition
from minikafka.wire.codec import decode_request, decode_response, find_api
from minikafka.wire.messages import ALL_COMMITTED


class Exposed(NamedTuple):
    """A batch that a leader's watermark has passed, and in which epoch."""

    batch: Batch
    in_epoch: Epoch


class OneLeaderPerEpoch(OfPartition):
    """At most one process of one broker ever leads a partition in an epoch (§10.9): a restarted one may have lost what
    it wrote.
    """

    name = "one_leader_per_epoch"

    def __init__(self) -> None:
        self._leaders: dict[tuple[Key, Epoch], str] = {}

    def look(self, view: ReplicaView, report: Report) -> None:
        leader = view.leader
        if leader is not None:
            process = f"{leader.me} ({view.brokers[leader.me].lifecycle.incarnation_id})"
            first = self._leaders.setdefault((view.key, leader.epoch), process)
            if first != process:
                report(self.name, f"{view.name} is led by {first} and by {process} in epoch {leader.epoch}")


class HwWithinLog(OfPartition):
    """Log start <= watermark <= log end, recovery point <= log end (§10.8, S2)."""

    name = "hw_within_log"

    def look(self, view: ReplicaView, report: Report) -> None:
        log, watermark = view.partition.log, view.partition.high_watermark
        end = log.end_offset
        # The recovery point is never beyond the synced end, and takes longer to find.
        if not log.start_offset <= watermark <= end or (log.synced_end > end and log.recovery_point > end):
            report(
                self.name,
                f"{view.life} {view.partition!r} start={log.start_offset} rp={log.recovery_point}",
            )


class HwNeverBackInEpoch(OfPartition):
    """A leader's watermark never falls within its epoch (§10.12)."""

    name = "hw_never_back_in_epoch"

    def __init__(self) -> None:
        self._highest: dict[tuple[str, Key, Epoch], Offset] = {}

    def look(self, view: ReplicaView, report: Report) -> None:
        leader = view.leader
        if leader is not None:
            key = (view.life, view.key, leader.epoch)
            highest = self._highest.get(key, -1)
            if leader.high_watermark < highest:
                report(self.name, f"{view.life} {leader!r}: the watermark was {highest}")
            self._highest[key] = max(highest, leader.high_watermark)


ISR_CHANGES: Final = frozenset({"isr_expanded", "isr_shrunk", "isr_changed", "became_leader"})
"""Events after which a leader has another ISR. Those of a controller on its broker name a ``leader_epoch``."""


def _changes_isr(event: Event) -> bool:
    return event.kind in ISR_CHANGES and "epoch" in event.facts


class EnoughInSync(OfPartition):
    """A watermark moves only while the ISR has min.insync.replicas: else the last replica standing commits alone, and
    with it goes what consumers have seen (KAFKA-15583).
    """

    name = "committed_below_min_isr"
    looks_after = frozenset({"hw_advanced"})

    def look(self, view: ReplicaView, report: Report) -> None:
        leader = view.leader
        last = next(event for event in reversed(view.events) if event.kind == "hw_advanced" or _changes_isr(event))
        if leader is None or last.kind != "hw_advanced":
            return  # it was another ISR when the watermark moved
        least = min(view.partition.config.min_insync_replicas, len(leader.replicas) - len(leader.adding))
        if len(leader.isr) < least:
            report(self.name, f"{view.life} {leader!r} has moved, with {list(leader.isr)} of {least}")


class EpochsNeverFall(OfPartition):
    """Leader epoch and partition epoch of a replica never fall in one life (§10.12)."""

    name = "epochs_never_fall"

    def __init__(self) -> None:
        self._newest: dict[tuple[str, Key], tuple[Epoch, int]] = {}

    def look(self, view: ReplicaView, report: Report) -> None:
        partition = view.partition
        key = (view.life, view.key)
        before = self._newest.get(key, (-1, -1))
        now = (partition.epoch, partition.partition_epoch)
        if now[0] < before[0] or now[1] < before[1]:
            report(
                self.name,
                f"{view.life} {view.name}: leader and partition epoch went from {before} to {now}",
            )
        self._newest[key] = now


class ValidHighWatermark(OfPartition):
    """Every replica in the controller's ISR holds what the leader calls committed (§10.4).

    A replica that has restarted and lost its tail counts until the controller has recorded its new registration: it is
    left out from the moment of its restart.
    """

    name = "valid_high_watermark"

    def look(self, view: ReplicaView, report: Report) -> None:
        leader, image = view.leader, view.image
        if leader is None or image is None:
            return
        state = image.partition(view.name)
        if state is None or state.leader_epoch != leader.epoch:
            return
        if state.partition_epoch < leader.partition_epoch:
            return  # its ISR was answered by a controller that is gone, the record has not come round yet
        if image.topics[view.name.topic].topic_id != view.partition.topic_id:
            return
        for node in state.isr:
            replica = view.replica(node)
            registered = image.brokers.get(node)
            if replica is None or replica.failed or registered is None or replica.epoch != leader.epoch:
                continue
            if replica.topic_id != view.partition.topic_id:
                continue
            same_life = view.brokers[node].broker_epoch == registered.broker_epoch
            if same_life and replica.log.end_offset < leader.high_watermark:
                report(self.name, f"{leader!r}, but {node} in the ISR {list(state.isr)} has {replica!r}")


class FetchIsDurable(OfPartition):
    """Under sync-before-acknowledge a follower asks from its synced end: its fetch is an acknowledgement (D6).

    A late fetch of the former process is not compared with what the present process has synced: after a crash, a
    process counts a tail as unsynced until it has synced the tail itself. The leader may count such a fetch until the
    new registration is unfenced in its metadata, as in Kafka (KIP-903).
    """

    name = "unsynced_tail_acknowledged"
    looks_after = frozenset({"follower_fetched"})

    def look(self, view: ReplicaView, report: Report) -> None:
        leader = view.leader
        if leader is None or not leader.config.syncs_before_acknowledging:
            return
        for event in view.events:
            if event.kind != "follower_fetched":
                continue
            node, offset = number_of(event, "replica"), number_of(event, "offset")
            replica, remote = view.replica(node), leader.remotes.get(node)
            is_same = replica is not None and replica.topic_id == view.partition.topic_id
            if replica is None or not is_same or replica.epoch != leader.epoch or replica.log.end_offset < offset:
                continue  # it died, or has moved on since
            if remote is not None and remote.broker_epoch != view.brokers[node].lifecycle.latest_broker_epoch:
                continue  # sent by its former process
            if replica.log.synced_end < offset:
                report(self.name, f"broker {node} asked {leader!r} from {offset}, synced is {replica.log.synced_end}")


WATERMARK_EVENTS = frozenset({"hw_advanced", "follower_hw_changed"})
"""Without one of them a watermark is of before: of a former role, or of a former life."""


RESTARTS: Final = frozenset({"tail_truncated", "became_leader"})
"""After one of them a replica may have to be compared once more."""


class CommittedPrefixEqual(OfPartition):
    """Below any two watermarks the records are the same, and stay so (§10.2, §10.3, §10.6, §10.10)."""

    name = "committed_prefix_equal"

    def __init__(self) -> None:
        self.exposed: dict[Key, dict[Offset, Exposed]] = {}
        self.by_key: dict[Key, KeyBook] = {}
        """Of what is compacted."""
        self._compared: dict[tuple[str, Key], Offset] = {}

    def look(self, view: ReplicaView, report: Report) -> None:
        key = (view.life, view.key)
        watermark = view.partition.high_watermark
        start = self._compared.get(key, 0)
        for event in view.events if not view.kinds.isdisjoint(RESTARTS) else ():
            if event.kind == "tail_truncated":
                start = min(start, number_of(event, "new"))
            elif event.kind == "became_leader" and number_of(event, "epoch") in view.unclean:
                start = 0  # what it has is what counts from now on
        self._compared[key] = watermark
        if start >= watermark:
            return
        exposed = self.exposed.setdefault(view.key, {})
        exposing = self._exposing_epoch(view)
        # In which epoch that was is not known then: the batch's own is the first that it can have been.
        is_of_before = view.leader is None and view.kinds.isdisjoint(WATERMARK_EVENTS)
        is_compacted = view.partition.config.compacts
        if is_compacted and exposing is not None:
            batches = stored_batches(view.partition.log, start, watermark)
            self.by_key.setdefault(view.key, KeyBook()).note_transactions(batches)
        for batch in rows_of(view.partition.log, start, watermark, is_compacted=is_compacted):
            known = exposed.get(batch.base_offset)
            if known is not None and exposing is not None and view.is_given_up(known.in_epoch):
                known = None
            if known is not None and known.batch != batch:
                report(
                    "exposed_record_changed",
                    f"{view.name} on {view.life}: {batch}, exposed was {known.batch}",
                )
            elif known is None and exposing is not None:
                exposed[batch.base_offset] = Exposed(batch, batch.epoch if is_of_before else exposing)
                if is_compacted:
                    self.by_key.setdefault(view.key, KeyBook()).note(batch, view.time)
            elif known is None:
                report(
                    self.name,
                    f"{view.name} on {view.life}: {batch} is below its watermark, no leader exposed it",
                )

    @staticmethod
    def _exposing_epoch(view: ReplicaView) -> Epoch | None:
        """In which epoch this replica leads, or led earlier in this step (one step may apply several changes)."""
        if view.leader is not None:
            return view.leader.epoch
        led = [number_of(event, "epoch") for event in view.events if event.kind == "hw_advanced"]
        if view.is_hearsay and not led:
            return view.partition.epoch
        return max(led, default=None)

    def of(self, key: Key) -> Iterable[Exposed]:
        """All that was exposed of a partition."""
        return self.exposed.get(key, {}).values()


class CommittedEnds(OfPartition):
    """Nothing has to hold here: it notes how far leaders have committed, for what clients receive."""

    name = "committed_ends"
    looks_after = frozenset({"hw_advanced"})

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, Offset] = {}

    def of(self, name: TopicPartition) -> Offset:
        """The highest watermark that any leader has had, of whatever topic has had the name."""
        return self._ends.get(name, 0)

    def look(self, view: ReplicaView, _report: Report) -> None:
        ends = [number_of(event, "new") for event in view.events if event.kind == "hw_advanced"]
        self._ends[view.name] = max(self.of(view.name), *ends)


class LeaderHoldsCommitted(OfPartition):
    """A new leader has every record that an earlier epoch exposed (§10.3, §10.11)."""

    name = "committed_record_lost"
    looks_after = frozenset({"became_leader"})

    def __init__(self, committed: CommittedPrefixEqual) -> None:
        self._committed = committed

    def look(self, view: ReplicaView, report: Report) -> None:
        leader = view.leader
        if leader is None:
            return
        log, is_compacted = leader.log, view.partition.config.compacts
        held = {batch.base_offset: batch for batch in rows_of(log, 0, log.end_offset, is_compacted=is_compacted)}
        expected = [each for each in self._committed.of(view.key) if not view.is_given_up(each.in_epoch)]
        if is_compacted:
            expected = still_owed(expected, held.values())
        for batch, in_epoch in expected:
            is_owed = in_epoch < leader.epoch and batch.base_offset >= log.start_offset
            if is_owed and held.get(batch.base_offset) != batch:
                report(
                    self.name,
                    f"{view.name} {batch}, exposed in epoch {in_epoch}; the leader of epoch {leader.epoch}, broker "
                    f"{leader.me}, has {held.get(batch.base_offset, 'nothing')}",
                )
                return


def still_owed(exposed: Iterable[Exposed], held: Iterable[Batch]) -> list[Exposed]:
    """Of a compacted log: tombstones may be gone, and whatever a later record of its key replaces."""
    exposed = list(exposed)
    newest: dict[bytes | None, Offset] = {}
    for record in (*(each.batch for each in exposed), *held):
        newest[record.key] = max(record.base_offset, newest.get(record.key, record.base_offset))
    return [
        each for each in exposed if not each.batch.is_tombstone and newest[each.batch.key] == each.batch.base_offset
    ]


DELETE_RECORDS: Final = find_api("DeleteRecords")
START_RAISED: Final = "log_start_raised"


class DeletionsHaveReasons(OfPartition):
    """A log start rises only for a reason: each check believes log starts, and demands nothing below them.

    A leader raises its log start only up to where a DeleteRecords request said, or where the topic has a retention. All
    other replicas begin their logs where a leader began before: those that follow, and those that were started again.
    Requests count when they are sent, for any copy of one may arrive.
    """

    name = "deleted_without_reason"
    looks_after = ROLE_EVENTS | {START_RAISED, "log_restarted"}

    def __init__(self) -> None:
        self.may_expire: Container[str] | None = None
        """Topics with a retention; None: it is not known which have one."""
        self._requested: dict[TopicPartition, float] = {}
        self._highest: dict[Key, Offset] = {}
        """Of all leaders' log starts."""

    def observe(self, message: Message, _verdict: Verdict) -> None:
        """``message`` was sent."""
        if message.api != DELETE_RECORDS.name or message.kind != "request":
            return
        for each in decode_request(DELETE_RECORDS, message.body).partitions:
            name = TopicPartition(each.topic, each.partition)
            end = math.inf if each.offset == ALL_COMMITTED else each.offset
            self._requested[name] = max(end, self._requested.get(name, 0))

    def look(self, view: ReplicaView, report: Report) -> None:
        start, highest = view.partition.log.start_offset, self._highest.get(view.key, 0)
        if start <= highest or view.is_hearsay:
            return
        leads = view.leader is not None or not view.kinds.isdisjoint(ROLE_EVENTS)
        if START_RAISED in view.kinds and leads and self._may_begin(view.name, start):
            self._highest[view.key] = start
            return
        report(
            self.name,
            f"{view.life} {view.partition!r} begins at {start}; leaders began at {highest}, "
            f"requested was up to {self._requested.get(view.name, 0)}",
        )

    def _may_begin(self, name: TopicPartition, start: Offset) -> bool:
        return self.may_expire is None or name.topic in self.may_expire or start <= self._requested.get(name, 0)


class GoneWhenCopied(OfPartition):
    """Nothing has to hold here: it notes what compaction had taken elsewhere when a replica came to copy it."""

    name = "gone_when_copied"
    looks_after = frozenset({"batch_appended"})

    def __init__(self, committed: CommittedPrefixEqual) -> None:
        self._committed = committed
        self._looked_at: dict[tuple[str, Key], Offset] = {}
        self._never_had: dict[tuple[str, Key], set[Offset]] = {}
        self._missed: dict[tuple[str, TopicPartition], dict[bytes, Offset]] = {}

    def never_had(self, node: str, key: Key) -> Collection[Offset]:
        """What a replica lacks since it copied that part of the log, so that no compaction of its own took it."""
        return self._never_had.get((node, key), ())

    def tombstones(self, node: str, name: TopicPartition) -> dict[bytes, Offset]:
        """Key -> offset of the last one that a replica missed, for the end."""
        return self._missed.get((node, name), {})

    def look(self, view: ReplicaView, _report: Report) -> None:
        book = self._committed.by_key.get(view.key)
        if book is None:
            return
        for event in view.events:
            if event.kind == "batch_appended":
                place = (event.node, view.key)
                base, end = number_of(event, "base"), number_of(event, "end")
                looked_at = self._looked_at.get(place)
                if looked_at is None:
                    # Nothing was exposed before. A compacted leader's first batch may leave a gap in front of itself.
                    held = records_of(view.partition.log, view.partition.log.start_offset, base)
                    looked_at = max((record.base_offset + 1 for record in held), default=base)
                start = min(base, looked_at)
                self._looked_at[place] = end
                if "leader" in event.facts:
                    self._note(view, book, event, start)

    def _note(self, view: ReplicaView, book: KeyBook, event: Event, start: Offset) -> None:
        """What was gone when a follower copied up to here."""
        end = number_of(event, "end")
        held = {record.base_offset for record in records_of(view.partition.log, start, end)}
        gone = [offset for offset in book.exposed(start, end) if offset not in held]
        place = (event.node, view.key)
        kept = {offset for offset in self._never_had.get(place, ()) if not start <= offset < end}
        self._never_had[place] = kept.union(gone)
        self._note_tombstones(view, event, {at: book.tombstones[at] for at in gone if at in book.tombstones}, start)

    def _note_tombstones(self, view: ReplicaView, event: Event, gone: dict[Offset, bytes], start: Offset) -> None:
        """Those that its leader still has were not gone there."""
        leader = view.replica(number_of(event, "leader")) if gone and not view.is_hearsay else None
        if leader is not None and leader.topic_id == view.partition.topic_id:
            kept = {record.base_offset for record in records_of(leader.log, start, number_of(event, "end"))}
            gone = {at: key for at, key in gone.items() if at not in kept}
        missed = self._missed.setdefault((event.node, view.name), {})
        for offset, key in gone.items():
            missed[key] = max(offset, missed.get(key, offset))


class CompactionKeepsLatest(OfPartition):
    """After a round of compaction: what was exposed and is gone had to go; each producer's last sequence is there."""

    name = "compaction_lost_record"
    looks_after = frozenset({"log_compacted"})

    def __init__(self, committed: CommittedPrefixEqual, copied: GoneWhenCopied) -> None:
        self._committed = committed
        self._copied = copied
        self.calendars_are_right = True
        """False: a broker's clock may say that a tombstone's time is over whenever it likes."""

    def look(self, view: ReplicaView, report: Report) -> None:
        book = self._committed.by_key.get(view.key)
        events = [event for event in view.events if event.kind == "log_compacted"]
        if book is None or not events:
            return
        log, watermark = view.partition.log, view.partition.high_watermark
        retention_s = view.partition.config.delete_retention_ms / 1000 if self.calendars_are_right else 0.0
        here = {record.base_offset for record in records_of(log, log.start_offset, watermark)}
        here.update(self._copied.never_had(events[0].node, view.key))
        for record, in_epoch in self._committed.of(view.key):
            if not log.start_offset <= record.base_offset < watermark or record.base_offset in here:
                continue
            if view.is_given_up(in_epoch):
                continue
            if not book.may_be_gone(record, end=log.end_offset, time=view.time, delete_retention_s=retention_s):
                report(
                    self.name,
                    f"{view.name} on {view.life}: {record} of {record.key!r} is gone, hw {watermark}",
                )
                return
        lost = lost_sequences(log, watermark)
        if lost:
            report("compaction_lost_sequence", f"{view.name} on {view.life}: of producers {lost}")


FETCHES_MAX: Final = 500
"""Responses to one fetcher from one leader without any progress of the fetcher; refusals are not counted, because the
fetcher backs off after them.
"""

FETCHES_WITHIN_S: Final = 25.0
"""Virtual seconds in which they come. A quiet cluster has as many in a longer time: its leaders hold each fetch for
``replica.fetch.wait.max.ms``, which is at least 100 ms in plans.
"""

CUTS_MAX: Final = 5
"""Truncations of one role to one offset. In one epoch a leader's log only grows: a second one is rare, a sixth a loop.
"""

CUTS: Final = {
    "tail_truncated": "new",
    "nothing_truncated": "end",
    "log_restarted": "new",
    "quorum_tail_truncated": "new",
}
"""Events of truncations, and the fact that says where."""

PROGRESS: Final = frozenset(
    {
        "became_follower",
        "became_leader",
        "batch_appended",
        "follower_hw_changed",
        "log_start_raised",
        "node_started",
        "quorum_hw_advanced",
        "quorum_role_changed",
        "replica_failed",
        "segment_rolled",
        "snapshot_fetched",
    }
)
"""Events of a fetcher that make its next question another one."""


class OneVotePerEpoch:
    """A node's vote in an epoch is for one candidate, over all its lives (KAFKA-FACTS 10.13)."""

    name = "two_votes_in_an_epoch"

    def __init__(self) -> None:
        self._asked: dict[int, Any] = {}
        """Requests that have no response yet, by the number of their call."""
        self._votes: dict[tuple[int, Epoch], int] = {}
        self._vote = find_api("Vote")

    def on_message(self, message: Message, report: Report) -> None:
        """A request for a vote, or the response to one, was sent."""
        if message.kind == "request":
            request = self._asked[message.call] = decode_request(self._vote, message.body)
            if not request.pre_vote:  # a candidate has voted for itself
                self._note(request.candidate_id, request.candidate_epoch, request.candidate_id, report)
            return
        request = self._asked.get(message.call)
        if request is not None and not request.pre_vote and decode_response("Vote", message.body).vote_granted:
            self._note(request.voter_id, request.candidate_epoch, request.candidate_id, report)

    def _note(self, voter: int, epoch: Epoch, candidate: int, report: Report) -> None:
        first = self._votes.setdefault((voter, epoch), candidate)
        if first != candidate:
            report(self.name, f"broker {voter} voted for {first} and for {candidate} in epoch {epoch}")


class Progress:
    """A follower neither fetches nor truncates at the same place over and over."""

    name = "no_progress"

    def __init__(self) -> None:
        self._responses: dict[str, dict[str, tuple[int, float]]] = {}
        """Fetcher -> by leader, how many responses since the fetcher made progress, and the time of the first."""
        self._cuts: Counter[tuple[object, ...]] = Counter()

    def on_event(self, event: Event, report: Report) -> None:
        """A broker reported an event."""
        if event.kind in PROGRESS:
            self._responses.pop(event.node, None)
        elif event.kind in CUTS:
            facts = event.facts
            end = number_of(event, CUTS[event.kind])
            place = (event.node, event.incarnation, facts.get("partition"), facts.get("epoch"), end)
            self._cuts[place] += 1
            if self._cuts[place] == CUTS_MAX + 1:
                report(self.name, f"{event.node}#{event.incarnation} {event.kind} {dict(facts)}: {CUTS_MAX + 1} times")

    def on_message(self, message: Message, now: float, report: Report) -> None:
        """The response to a fetch was sent to a broker."""
        responses = self._responses.setdefault(message.target, {})
        count, since = responses.get(message.source, (0, now))
        responses[message.source] = count + 1, since
        if count + 1 >= FETCHES_MAX:
            del responses[message.source]
            if now - since < FETCHES_WITHIN_S and not _is_refused(message.body):
                loop = f"{FETCHES_MAX} responses of {message.source} to fetches of {message.target} without progress"
                report(self.name, f"{loop}; the latest: {decode_response('Fetch', message.body)!r}"[:500])


def _is_refused(body: bytes) -> bool:
    """Return True if any part of the response says that the fetcher has to wait."""
    try:
        response = decode_response("Fetch", body)
    except ProtocolError:
        return True
    return bool(response.error_code) or any(each.error_code for each in response.partitions)


class SentMessages:
    """The observer of the network for both."""

    def __init__(self, brokers: Collection[str], now: Callable[[], float], report: Report) -> None:
        self.progress = Progress()
        self._now = now
        self._votes = OneVotePerEpoch()
        self._brokers = frozenset(brokers)
        self._report = report

    def observe(self, message: Message, _verdict: Verdict) -> None:
        """``message`` was sent; whether it arrives does not matter."""
        api = message.api
        if api == "Fetch":
            if message.kind == "answer" and message.target in self._brokers:
                self.progress.on_message(message, self._now(), self._report)
        elif api == "Vote":
            self._votes.on_message(message, self._report)
