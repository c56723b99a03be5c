"""Carries ISR proposals to the controller: one AlterPartition in flight per broker, one per partition (KIP-497).

What an answer means (KAFKA-FACTS 3.5):

- done: the leader adopts the returned state, unless it knows a newer one;
- surely not done (INELIGIBLE_REPLICA, OPERATION_NOT_ATTEMPTED): the leader falls back to the committed state;
- overtaken (fenced, older partition epoch, unknown topic, invalid): the proposal stays pending until the metadata
  arrives, since it may or may not have been applied;
- anything else, and every network failure: ask again. The partition epoch makes a repeated request harmless. So a
  request to a controller that has been replaced is given up, and sent to its successor at once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from minikafka import errors as kafka
from minikafka.broker.lifecycle import ControllerCall
from minikafka.broker.purgatory import Purgatory
from minikafka.config import BrokerConfig
from minikafka.ports import World
from minikafka.replication.leader import LeaderReplica, Proposal
from minikafka.replication.partition import Partition
from minikafka.tasks import Flag
from minikafka.types import Address, TopicId, TopicPartition
from minikafka.wire import messages as m

# Kafka's pause after a request that failed as a whole.
RETRY_PAUSE_S = 0.05

# One request stays far within the controller's limits (wire/limits.py), whatever the replication factor.
PROPOSALS_MAX = 500

SURELY_NOT_DONE = frozenset({kafka.IneligibleReplica.code, kafka.OperationNotAttempted.code})
OVERTAKEN = frozenset(
    {
        kafka.FencedLeaderEpoch.code,
        kafka.InvalidUpdateVersion.code,
        kafka.InvalidRequest.code,
        kafka.NewLeaderElected.code,
        kafka.UnknownTopicId.code,
        kafka.UnknownTopicOrPartition.code,
    }
)


class AlterPartitionManager:
    """The queue of proposals and the loop that sends them."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        *,
        controller: Callable[[], Address | None],
        broker_epoch: Callable[[], int],
        purgatory: Purgatory,
    ) -> None:
        self.config = config
        self.world = world
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._pending: dict[TopicPartition, tuple[Partition, LeaderReplica, Proposal]] = {}
        self._wanted = Flag()
        self._call = ControllerCall(world, controller)
        self._news = Flag()
        """Another controller is known since the latest request was begun."""
        self._purgatory = purgatory

    def submit(self, partition: Partition, leader: LeaderReplica, proposal: Proposal | None) -> None:
        """Send a proposal when the line is free; None is nothing to send."""
        if proposal is not None:
            self._pending[partition.partition] = (partition, leader, proposal)
            self._wanted.set()

    def on_new_controller(self) -> None:
        """Send what waits for the former controller to the new one."""
        self._news.set()
        self._call.on_news()

    async def run(self) -> None:
        """Send what is wanted, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            sending = self._still_wanted()
            if len(sending) > PROPOSALS_MAX:
                sending = dict(islice(sending.items(), PROPOSALS_MAX))
                for name in sending:  # the others come first next time
                    self._pending[name] = self._pending.pop(name)
                self._wanted.set()
            self._news.clear()
            if sending and not await self._send(sending):
                await self._news.wait(self.world.clock.now() + RETRY_PAUSE_S)
                self._wanted.set()

    def _still_wanted(self) -> dict[TopicPartition, tuple[Partition, LeaderReplica, Proposal]]:
        """Drop proposals that a newer state, or a new role, has overtaken."""
        self._pending = {
            name: (partition, leader, proposal)
            for name, (partition, leader, proposal) in self._pending.items()
            if partition.role is leader and leader.proposal is proposal
        }
        return dict(self._pending)

    async def _send(self, sending: dict[TopicPartition, tuple[Partition, LeaderReplica, Proposal]]) -> bool:
        """One request; False if any of it must be sent again."""
        address = self._controller()
        if address is None:
            return False
        request = m.AlterPartitionRequest(
            broker_id=self.config.node_id,
            broker_epoch=self._broker_epoch(),
            partitions=tuple(
                item_of(partition.partition, partition.topic_id, proposal)
                for partition, _, proposal in sending.values()
            ),
        )
        timeout_s = self.config.controller_quorum_request_timeout_ms / 1000
        try:
            response: m.AlterPartitionResponse = await self._call.send(address, request, timeout_s)
        except (kafka.WorldError, kafka.ProtocolError) as error:
            self.world.events("isr_proposal_failed", why=f"{type(error).__name__}: {error}")
            return False
        if response.error_code:
            self.world.events(
                "isr_proposal_failed", why=f"{kafka.error_name(response.error_code)}: {response.error_message}"
            )
            return False
        complete = True
        for answer in response.partitions:
            name = TopicPartition(answer.topic, answer.partition)
            if name in sending:
                complete = self._settle(name, *sending[name], answer) and complete
        return complete

    def _settle(
        self,
        name: TopicPartition,
        partition: Partition,
        leader: LeaderReplica,
        proposal: Proposal,
        answer: m.AlteredPartition,
    ) -> bool:
        """Act on one partition's answer; False if it must be asked again."""
        if partition.role is not leader or leader.proposal is not proposal:
            return True
        if answer.error_code == 0:
            self._pending.pop(name, None)
            if answer.leader_epoch == leader.epoch and leader.on_committed_state(
                answer.isr, answer.partition_epoch, recovered=True, now=self.world.clock.now()
            ):
                self._purgatory.wake_committed(name, leader)
            return True
        error = kafka.error_name(answer.error_code)
        self.world.events(
            "isr_proposal_refused", partition=str(name), epoch=leader.epoch, error=error, why=answer.error_message
        )
        if answer.error_code in SURELY_NOT_DONE:
            self._pending.pop(name, None)
            leader.withdraw(proposal)
            # Who was to join holds nothing back any more; that alone may commit records, and nobody may fetch soon.
            if leader.advance(self.world.clock.now()):
                self._purgatory.wake_committed(name, leader)
            return True
        if answer.error_code in OVERTAKEN:
            self._pending.pop(name, None)
            return True
        return False


def item_of(name: TopicPartition, topic_id: TopicId, proposal: Proposal) -> m.AlterPartitionItem:
    """A proposal as the controller is asked (KIP-497)."""
    return m.AlterPartitionItem(
        topic=name.topic,
        topic_id=topic_id,
        partition=name.partition,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        new_isr=tuple(
            m.IsrMember(broker_id=node, broker_epoch=epoch)
            for node, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True)
        ),
        recovered=True,
    )
