"""The seat of one replica: one role at a time, fenced by leader epoch and partition epoch.

Rules for this file: a role is an object; a new leader epoch makes a new object, so that a driver that held the old one
across an await notices by identity. The watermark outlives roles (a new leader starts with the follower's).
Requests are checked here in Kafka's order: epoch older, epoch newer, not leader.
"""

from __future__ import annotations

from minikafka.config import TopicConfig
from minikafka.errors import FencedLeaderEpoch, KafkaStorageError, NotLeaderOrFollower, UnknownLeaderEpoch
from minikafka.invariant import invariant
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import Events
from minikafka.replication.follower import FollowerReplica, TruncateByLeaderEpoch, TruncationRule
from minikafka.replication.leader import BrokerEpochOf, LeaderReplica, PartitionState
from minikafka.types import NO_EPOCH, NO_NODE, Epoch, NodeId, Offset, TopicId, TopicPartition

# An old log has seen many leaders; a line of the structured log shows the latest of them.
EPOCHS_TOLD_MAX = 20


class Partition:
    """One partition's replica on this broker."""

    def __init__(
        self,
        me: NodeId,
        partition: TopicPartition,
        topic_id: TopicId,
        log: PartitionLog,
        config: TopicConfig,
        *,
        high_watermark: Offset,
        lag_time_max_s: float,
        broker_epoch_of: BrokerEpochOf,
        events: Events,
        truncation: TruncationRule | None = None,
    ) -> None:
        self.me = me
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.config = config
        self.lag_time_max_s = lag_time_max_s
        self.broker_epoch_of = broker_epoch_of
        self.events = events
        self.truncation = truncation or TruncateByLeaderEpoch()
        self.role: LeaderReplica | FollowerReplica | None = None
        self.leader: NodeId = NO_NODE
        self.epoch: Epoch = NO_EPOCH
        self.partition_epoch = -1
        self.failed: str | None = None
        """Why this replica is offline: its disk failed. It stays so until the broker restarts."""
        self._resting_watermark = max(log.start_offset, min(high_watermark, log.end_offset))

    def __repr__(self) -> str:
        if self.role is not None:
            return repr(self.role)
        return f"<{self.partition} idle e{self.epoch} leo={self.log.end_offset} hw={self.high_watermark}>"

    @property
    def high_watermark(self) -> Offset:
        """The watermark of the present role, or the one that the last role left."""
        return self.role.high_watermark if self.role is not None else self._resting_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """The end of what consumers with ``read_committed`` may read, by the watermark known here."""
        return self.log.stable_end(self.high_watermark)

    # ---- what the controller says ------------------------------------------------------------------------------------

    def apply(self, state: PartitionState, config: TopicConfig, now: float) -> bool:
        """Take up the role that ``state`` gives this replica. True if the role object changed.

        An older partition epoch than the known one is ignored. Within a leader epoch only the ISR can change; a new
        leader epoch always means a new role, also under the same leader: a follower that skipped epochs must verify
        its log again (KAFKA-7164).
        """
        self.configure(config)
        if state.partition_epoch < self.partition_epoch or self.failed:
            return False
        invariant(state.leader_epoch >= self.epoch, "leader epochs never fall", new=state.leader_epoch, old=self.epoch)
        new_epoch = state.leader_epoch > self.epoch or self.role is None
        self.partition_epoch = state.partition_epoch
        if not new_epoch:
            if isinstance(self.role, LeaderReplica):
                self.role.reassigned(state.replicas, state.adding, now)
                self.role.on_committed_state(state.isr, state.partition_epoch, recovered=state.recovered, now=now)
            elif isinstance(self.role, FollowerReplica):
                self.role.isr = state.isr
            return False
        self.stir()
        self.leader, self.epoch = state.leader, state.leader_epoch
        self._resting_watermark = self.high_watermark
        if state.leader == self.me:
            self._lead(state, now)
        elif state.leader == NO_NODE:
            self.role = None
            self.events("became_leaderless", **self._standing(state))
        else:
            self._follow(state)
        return True

    def _lead(self, state: PartitionState, now: float) -> None:
        # What the leader knows of its followers stays true only if nobody else has led in between: under another leader
        # they may have cut their logs, also when this broker has missed that epoch (played by
        # scenarios/skipped_epochs_forget_remote_ends.txt).
        predecessor = self.role if isinstance(self.role, LeaderReplica) else None
        if predecessor is not None and predecessor.epoch + 1 != state.leader_epoch:
            predecessor = None
        self.role = LeaderReplica(
            self.me,
            self.partition,
            self.log,
            self.config,
            state,
            high_watermark=self._resting_watermark,
            lag_time_max_s=self.lag_time_max_s,
            broker_epoch_of=self.broker_epoch_of,
            predecessor=predecessor,
            now=now,
            events=self.events,
        )
        remotes = {str(node): remote.end_offset for node, remote in self.role.remotes.items()}
        self.events("became_leader", **self._standing(state), remotes=remotes)
        self.role.advance(now)

    def _follow(self, state: PartitionState) -> None:
        self.events("became_follower", **self._standing(state), leader=state.leader)
        self.role = FollowerReplica(
            self.partition,
            self.log,
            leader=state.leader,
            epoch=state.leader_epoch,
            high_watermark=self._resting_watermark,
            truncation=self.truncation,
            events=self.events,
        )
        self.role.isr = state.isr

    def _standing(self, state: PartitionState) -> dict[str, object]:
        """Where this replica stands as it takes up a role: a reader of the events can begin here."""
        return {
            "partition": str(self.partition),
            "epoch": state.leader_epoch,
            "replicas": state.replicas,
            "isr": state.isr,
            "start": self.log.start_offset,
            "leo": self.log.end_offset,
            "hw": self._resting_watermark,
            "epochs": self.log.epochs.entries[-EPOCHS_TOLD_MAX:],
        }

    def configure(self, config: TopicConfig, *, lag_time_max_s: float | None = None) -> None:
        """The topic's settings have changed, or the broker's; ``lag_time_max_s`` None: as before."""
        self.config = config
        self.log.config = config
        if lag_time_max_s is not None:
            self.lag_time_max_s = lag_time_max_s
        if isinstance(self.role, LeaderReplica):
            self.role.config = config
            self.role.lag_time_max_s = self.lag_time_max_s

    def stir(self) -> None:
        """Look again at idle followers (:meth:`LeaderReplica.stir`), if this replica leads."""
        if isinstance(self.role, LeaderReplica):
            self.role.stir()

    def rest(self) -> None:
        """Give up the role: the replica moves away, or the broker stops."""
        if self.role is not None:
            self.events("role_given_up", partition=str(self.partition), epoch=self.epoch)
        self.stir()
        self._resting_watermark = self.high_watermark
        self.role = None
        self.leader = NO_NODE

    def fail(self, why: str) -> None:
        """The disk failed: this replica answers nothing any more until the broker restarts."""
        self.rest()
        self.failed = why
        self.events("replica_failed", partition=str(self.partition), why=why)

    # ---- what requests ask -------------------------------------------------------------------------------------------

    def as_leader(self, current_leader_epoch: Epoch = NO_EPOCH) -> LeaderReplica:
        """The leader role, for a request that believes in ``current_leader_epoch`` (NO_EPOCH: it does not say).

        Raises FencedLeaderEpoch, UnknownLeaderEpoch, NotLeaderOrFollower, KafkaStorageError.
        """
        if self.failed:
            raise KafkaStorageError(f"{self.partition} on broker {self.me} is offline: {self.failed}")
        if current_leader_epoch != NO_EPOCH:
            self.check_epoch(current_leader_epoch)
        if not isinstance(self.role, LeaderReplica):
            raise NotLeaderOrFollower(
                f"broker {self.me} does not lead {self.partition}: broker {self.leader} does, in epoch {self.epoch}",
                leader=self.leader,
                leader_epoch=self.epoch,
            )
        return self.role

    def check_epoch(self, current_leader_epoch: Epoch) -> None:
        """Fence a request by the leader epoch that it believes in (KIP-320); NO_EPOCH passes."""
        if current_leader_epoch == NO_EPOCH:
            return
        if current_leader_epoch < self.epoch:
            raise FencedLeaderEpoch(
                f"{self.partition}: epoch {current_leader_epoch} is over, it is {self.epoch} now",
                leader=self.leader,
                leader_epoch=self.epoch,
            )
        if current_leader_epoch > self.epoch:
            raise UnknownLeaderEpoch(
                f"{self.partition}: epoch {current_leader_epoch} is news to broker {self.me}, which knows {self.epoch}"
            )
