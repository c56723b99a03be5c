"""The controller: every decision about the cluster, as pure functions of an image (DESIGN D5).

Rules for this file: a method takes an image and a request, and returns a :class:`Decision`; it changes nothing and
raises a ProtocolError when there is nothing to decide. Read decision.py first, then elections.py, then the file of the
decision: controller_brokers.py, controller_topics.py, configs.py, administration.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from minikafka import errors as kafka
from minikafka.quorum import (
    administration,
    client_quotas,
    configs,
    controller_brokers,
    controller_topics,
    elections,
)
from minikafka.quorum.decision import ClusterPolicy, Decision
from minikafka.quorum.elections import Election, change_of, leaders_for_leaderless
from minikafka.quorum.image import MetadataImage, PartitionImage, TopicImage
from minikafka.quorum.records import (
    METADATA_VERSION,
    METADATA_VERSION_LEVEL,
    FeatureLevel,
    MetadataRecord,
    PartitionChange,
    ProducerIds,
)
from minikafka.types import NO_NODE, Epoch, TopicPartition
from minikafka.wire import admin as a
from minikafka.wire import messages as m
from minikafka.wire.acls import CreateAclsResponse, DeleteAclsResponse
from minikafka.wire.credentials import AlterUserScramCredentialsResponse
from minikafka.wire.features import UpdateFeaturesRequest, UpdateFeaturesResponse
from minikafka.wire.quotas import AlterClientQuotasResponse

PRODUCER_IDS_PER_BLOCK = 1000
"""Kafka's: a broker requests a new block after so many producers; unused ids of a block are lost, which is harmless."""

# One pass of moving leaders home moves at most so many: each move is a short pause for a partition's clients.
PREFERRED_ELECTIONS_MAX = 1000

TELLING_THE_OFFSET = (
    m.CreateTopicsResponse,
    m.DeleteTopicsResponse,
    m.ElectLeadersResponse,
    m.BrokerHeartbeatResponse,
    m.UnregisterBrokerResponse,
    a.CreatePartitionsResponse,
    a.AlterConfigsResponse,
    a.IncrementalAlterConfigsResponse,
    a.AlterPartitionReassignmentsResponse,
    CreateAclsResponse,
    DeleteAclsResponse,
    AlterUserScramCredentialsResponse,
    AlterClientQuotasResponse,
    UpdateFeaturesResponse,
)
"""Answers that say where the metadata log ended when the change was applied."""

P = ParamSpec("P")
R = TypeVar("R")


def under_policy(
    decide: Callable[Concatenate[ClusterPolicy, MetadataImage, P], R],
) -> Callable[Concatenate[Controller, MetadataImage, P], R]:
    """A method that decides under the controller's policy, with what was set at run time laid over it."""

    @functools.wraps(decide)
    def method(self: Controller, image: MetadataImage, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return decide(self.policy.under(image), image, *args, **kwargs)

    return method


class Controller:
    """Decides. Stateless but for its policy: the state is the image, and sessions are the driver's."""

    def __init__(self, policy: ClusterPolicy) -> None:
        self.policy = policy

    register = under_policy(controller_brokers.register)
    heartbeat = under_policy(controller_brokers.heartbeat)
    broker_lost = under_policy(controller_brokers.broker_lost)
    broker_refused = under_policy(controller_brokers.broker_refused)
    unregister = staticmethod(controller_brokers.unregister)
    create_topics = under_policy(controller_topics.create_topics)
    delete_topics = under_policy(controller_topics.delete_topics)
    alter_partition_reassignments = under_policy(controller_topics.alter_partition_reassignments)
    alter_partition = under_policy(elections.alter_partition)
    create_partitions = staticmethod(controller_topics.create_partitions)
    create_acls = staticmethod(administration.create_acls)
    delete_acls = staticmethod(administration.delete_acls)
    alter_user_scram_credentials = staticmethod(administration.alter_user_scram_credentials)
    alter_client_quotas = staticmethod(client_quotas.alter_client_quotas)

    # ---- reign ----

    def activated(self, image: MetadataImage) -> Decision[None]:
        """What a new controller records first: the layout of the log, once in a cluster's life."""
        if image.features.get(METADATA_VERSION) == METADATA_VERSION_LEVEL:
            return Decision(response=None)
        level = FeatureLevel(name=METADATA_VERSION, level=METADATA_VERSION_LEVEL)
        return Decision(records=(level,), response=None, cause="the cluster's first controller")

    # ---- brokers ----

    def allocate_producer_ids(
        self, image: MetadataImage, request: m.AllocateProducerIdsRequest
    ) -> Decision[m.AllocateProducerIdsResponse]:
        """The next block of producer ids, for one broker. Raises StaleBrokerEpoch."""
        broker = elections.checked_broker(image, request.broker_id, request.broker_epoch)
        start = image.next_producer_id
        record = ProducerIds(
            broker_id=broker.node_id,
            broker_epoch=broker.broker_epoch,
            next_producer_id=start + PRODUCER_IDS_PER_BLOCK,
        )
        response = m.AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=PRODUCER_IDS_PER_BLOCK)
        return Decision(records=(record,), response=response, cause=f"broker {broker.node_id} asked for producer ids")

    # ---- settings ----

    def incremental_alter_configs(
        self, image: MetadataImage, request: a.IncrementalAlterConfigsRequest
    ) -> Decision[a.IncrementalAlterConfigsResponse]:
        """See :func:`configs.incremental_alter_configs`."""
        return configs.incremental_alter_configs(self.policy, image, request)

    def alter_configs(self, image: MetadataImage, request: a.AlterConfigsRequest) -> Decision[a.AlterConfigsResponse]:
        """See :func:`configs.alter_configs`."""
        return configs.alter_configs(self.policy, image, request)

    # ---- access control ----

    def update_features(self, image: MetadataImage, request: UpdateFeaturesRequest) -> Decision[UpdateFeaturesResponse]:
        """See :func:`feature_levels.update_features`."""
        return administration.update_features(self.policy.node_id, image, request)

    # ---- partitions ----

    def elect_leaderless(self, image: MetadataImage) -> Decision[None]:
        """S20: try again for every partition without a leader."""
        records = tuple(leaders_for_leaderless(self.policy.under(image), image))
        return Decision(records=records, divisible=True, response=None, cause="leaderless partitions are tried again")

    def prefer_leaders(self, image: MetadataImage) -> Decision[None]:
        """Move leaders home: to the first replica of the assignment, where it is in the ISR."""
        policy = self.policy.under(image)
        records: list[MetadataRecord] = []
        for topic, partition in image.sorted_partitions():
            if len(records) == PREFERRED_ELECTIONS_MAX:
                break
            change = _preferred(policy, image, topic, partition)
            if change is not None:
                records.append(change)
        return Decision(records=tuple(records), response=None, cause="leaders return to their preferred replica")

    def elect_leaders(self, image: MetadataImage, request: m.ElectLeadersRequest) -> Decision[m.ElectLeadersResponse]:
        """Elections by an administrator. Raises InvalidRequest for an unknown type of election.

        Asked for all partitions, those that need no election are left out of the answer. With leader epochs a copy of
        the request that arrives late elects nobody: the first one has moved them on.
        """
        if request.election_type not in {"preferred", "unclean"}:
            raise kafka.InvalidRequest(f"election_type={request.election_type!r}: say preferred or unclean")
        if request.leader_epochs and len(request.leader_epochs) != len(request.partitions or ()):
            raise kafka.InvalidRequest(
                "leader_epochs: one is needed for each of the partitions", member="leader_epochs"
            )
        election = Election(request.election_type)
        named = [TopicPartition(each.topic, each.partition) for each in request.partitions or ()]
        epochs = dict(zip(named, request.leader_epochs, strict=False))
        asked = list(dict.fromkeys(named))
        if request.partitions is None:
            asked = [TopicPartition(topic.name, each.partition) for topic, each in image.sorted_partitions()]
        policy = self.policy.under(image)
        records: list[MetadataRecord] = []
        answers: list[m.ElectedLeader] = []
        for tp in asked:
            refusal: kafka.ProtocolError | None = None
            try:
                records.append(_elected(policy, image, tp, election, epochs.get(tp)))
            except kafka.ProtocolError as error:
                refusal = error
            if request.partitions is not None or not isinstance(refusal, kafka.ElectionNotNeeded):
                answers.append(m.ElectedLeader.failed(refusal, topic=tp.topic, partition=tp.partition))
        return Decision(
            records=tuple(records),
            divisible=True,
            response=m.ElectLeadersResponse(partitions=tuple(answers)),
            cause=f"a client asked for a {request.election_type} election",
        )


def _preferred(
    policy: ClusterPolicy, image: MetadataImage, topic: TopicImage, partition: PartitionImage
) -> PartitionChange | None:
    preferred = partition.replicas[0]
    if partition.leader in {preferred, NO_NODE} or preferred not in partition.isr or not image.eligible(preferred):
        return None
    return change_of(policy, image, topic, partition, election=Election.PREFERRED)


def _elected(
    policy: ClusterPolicy, image: MetadataImage, tp: TopicPartition, election: Election, epoch: Epoch | None
) -> PartitionChange:
    topic, partition = image.topics.get(tp.topic), image.partition(tp)
    if topic is None or partition is None:
        raise kafka.UnknownTopicOrPartition(f"there is no partition {tp}")
    if epoch not in (None, partition.leader_epoch):
        raise kafka.ElectionNotNeeded(f"{tp} has leader epoch {partition.leader_epoch}, not {epoch} any more")
    if election is Election.PREFERRED:
        if partition.leader == partition.replicas[0]:
            raise kafka.ElectionNotNeeded(f"{tp} is led by its preferred replica {partition.leader}")
        change = change_of(policy, image, topic, partition, election=election)
        if change is None or change.leader != partition.replicas[0]:
            raise kafka.PreferredLeaderNotAvailable(f"{tp}: replica {partition.replicas[0]} is not alive and in sync")
        return change
    if partition.leader != NO_NODE:
        raise kafka.ElectionNotNeeded(f"{tp} is led by {partition.leader}")
    change = change_of(policy, image, topic, partition, election=election)
    if change is None or change.leader is None:
        raise kafka.EligibleLeadersNotAvailable(f"{tp}: none of the replicas {list(partition.replicas)} is alive")
    return change


def completed(response: R, request: object, image: MetadataImage) -> R:
    """The answer once its records are applied to ``image``: with what only the log could say."""
    if isinstance(response, m.BrokerRegistrationResponse) and isinstance(request, m.BrokerRegistrationRequest):
        if response.broker_epoch >= 0:  # a repeated registration: meanwhile another incarnation may have registered
            return response
        return replace(response, broker_epoch=image.brokers[request.broker_id].broker_epoch)
    if isinstance(response, TELLING_THE_OFFSET):
        return replace(response, metadata_offset=image.offset)
    return response
