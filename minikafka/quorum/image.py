"""The cluster as of one committed offset: immutable, replaced once per committed batch.

State changes only here, by replaying records (DESIGN D5); a caller may keep an image, compare it by identity and read
it without a lock. A new image shares everything that the batch did not touch: a changed partition copies its
own topic's tuple and the table of topic references, never the other partitions.

Rule for decisions made from an image: go through brokers and topics in sorted order. Two nodes that hold equal images
(one replayed the log, one loaded a snapshot) may hold them in different insertion order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import assert_never

import msgspec

from minikafka.addresses import parse_listeners
from minikafka.invariant import invariant
from minikafka.quorum.assignment import Assignment
from minikafka.quorum.overlay import Overlay, differing
from minikafka.quorum.records import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    AccessControlEntry,
    BrokerRegistrationChange,
    ClientQuota,
    ClusterSecret,
    ConfigRecord,
    FeatureLevel,
    MetadataRecord,
    PartitionChange,
    PartitionRecord,
    ProducerIds,
    RegisterBroker,
    RemoveAccessControlEntry,
    RemoveTopic,
    RemoveUserScramCredential,
    TopicRecord,
    UnregisterBroker,
    UserScramCredential,
)
from minikafka.security.authorizer import AclIndex
from minikafka.security.quotas import CLIENT_ID, IP, USER, Entity, QuotaIndex
from minikafka.security.scram import ScramCredential, ScramMechanism
from minikafka.types import NO_EPOCH, NO_NODE, Address, Epoch, Listener, NodeId, Offset, TopicId, TopicPartition
from minikafka.wire.acls import Acl

NO_DIR = "-"
"""In ``PartitionImage.last_known_dirs``: the last known leader came back without the partition's folder, or with a
damaged log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """One registered broker."""

    node_id: NodeId
    broker_epoch: Offset
    """The offset of its registration record: rises with each incarnation."""
    incarnation_id: str
    host: str
    port: int
    rack: str | None = None
    listeners: tuple[Listener, ...] = ()
    """Where clients of other listeners find it."""
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[str, ...] = ()
    """``directory.id`` of its data directory: another one is another disk. Empty: it did not tell."""
    ignores_case: bool = False
    """The file system of its data directory does not distinguish case."""
    min_insync_replicas: int = 1
    """What topics that say nothing get where it leads, unless the metadata says something."""

    @property
    def address(self) -> Address:
        """Where brokers find it."""
        return Address(self.host, self.port)

    def address_at(self, listener: str) -> Address:
        """Where a client finds it that asked at this listener of some broker."""
        return next((each.address for each in self.listeners if each.name == listener), self.address)

    @property
    def eligible(self) -> bool:
        """Return True if it may lead and be in an ISR: unfenced and not shutting down (KIP-841)."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_one_of(self, log_dirs: tuple[str, ...]) -> bool:
        """Return True if it still has one of these data directories, or if one side did not say."""
        return not log_dirs or not self.log_dirs or not set(log_dirs).isdisjoint(self.log_dirs)

    def came_back_empty(self, partition: PartitionImage) -> bool:
        """Return True if this broker led the partition last and has lost its log since.

        Its data directory is another one, or it came back without the partition's folder or its synced records
        (``NO_DIR``).
        """
        return self.node_id in partition.last_known_elr and not self.has_one_of(partition.last_known_dirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """The state of one partition (S15), in assignment order (AR) where order matters."""

    partition: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    leader: NodeId
    """-1: nobody leads."""
    leader_epoch: Epoch
    partition_epoch: int
    controller_epoch: Epoch
    """Epoch of the controller that made the last change."""
    elr: tuple[NodeId, ...] = ()
    """Eligible leader replicas: not in sync, yet sure to hold all that is committed (KIP-966)."""
    last_known_elr: tuple[NodeId, ...] = ()
    """The last leader, once ISR and ELR may both run empty (KIP-966)."""
    last_known_dirs: tuple[str, ...] = ()
    """The data directory in which it led; empty: unknown; ``NO_DIR``: the folder is gone from there, or damaged."""
    recovered: bool = True
    """False from an unclean election until its leader says that it has recovered (KIP-704)."""
    adding: tuple[NodeId, ...] = ()
    """Replicas that a reassignment adds: not counted until it is complete (KIP-455)."""
    removing: tuple[NodeId, ...] = ()
    """Replicas that a reassignment takes away when it is complete."""

    @property
    def assignment(self) -> Assignment:
        """The replicas with what a reassignment is doing to them."""
        return Assignment(replicas=self.replicas, adding=self.adding, removing=self.removing)

    def changed(self, change: PartitionChange, controller_epoch: Epoch) -> PartitionImage:
        """The partition after ``change``: partition epoch + 1, leader epoch + 1 iff the change names a leader."""
        leader = self.leader if change.leader is None else change.leader
        isr = self.isr if change.isr is None else change.isr
        replicas = self.replicas if change.replicas is None else change.replicas
        invariant(leader == NO_NODE or leader in isr, "S13: the leader is not in the ISR", leader=leader, isr=isr)
        if change.replicas is not None:
            invariant(set(isr) <= set(replicas), "the ISR is not within the replicas", isr=isr, replicas=replicas)
        return PartitionImage(
            partition=self.partition,
            replicas=replicas,
            isr=isr,
            leader=leader,
            leader_epoch=self.leader_epoch + (change.leader is not None),
            partition_epoch=self.partition_epoch + 1,
            controller_epoch=controller_epoch,
            elr=self.elr if change.elr is None else change.elr,
            last_known_elr=self.last_known_elr if change.last_known_elr is None else change.last_known_elr,
            last_known_dirs=self.last_known_dirs if change.last_known_dirs is None else change.last_known_dirs,
            recovered=self.recovered if change.recovered is None else change.recovered,
            adding=self.adding if change.adding is None else change.adding,
            removing=self.removing if change.removing is None else change.removing,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """One topic; ``partitions[i]`` is partition i."""

    name: str
    topic_id: TopicId
    configs: Mapping[str, str] = field(default_factory=dict)
    """The settings it was given, as texts by Kafka's names; `config.parse_topic` lays them over the defaults."""
    partitions: tuple[PartitionImage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """Everything that the metadata log says up to ``offset``."""

    cluster_id: str = ""
    offset: Offset = 0
    """End of what is applied: the offset after the last record."""
    epoch: Epoch = NO_EPOCH
    """Epoch of the last record applied."""
    brokers: Mapping[NodeId, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[TopicId, str] = field(default_factory=dict)
    next_producer_id: int = 0
    features: Mapping[str, int] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings given to brokers at run time, by the broker's id as text; "" holds those for all brokers."""
    acls: Mapping[str, Acl] = field(default_factory=dict)
    """Access control entries by id."""
    scram: Mapping[tuple[ScramMechanism, str], ScramCredential] = field(default_factory=dict)
    """SCRAM credentials by mechanism and user."""
    cluster_secret: bytes = field(default=b"", repr=False)
    """Known to all brokers and to no client; empty while there has never been a credential."""
    quotas: Mapping[Entity, Mapping[str, float]] = field(default_factory=dict)
    """Client quotas by entity; entities without a quota are left out."""
    quota_index: QuotaIndex = field(default_factory=QuotaIndex, compare=False, repr=False)
    """The same quotas, with what applies to clients remembered: replaced only with ``quotas``."""
    acl_index: AclIndex = field(default_factory=AclIndex, compare=False, repr=False)
    """The same entries by the resources that they apply to, with cached decisions: replaced only with ``acls``."""

    # ---- reading ----

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def eligible(self, node: NodeId) -> bool:
        """Registered, unfenced and not shutting down: may lead and be in an ISR (KIP-841)."""
        broker = self.brokers.get(node)
        return broker is not None and broker.eligible

    def alive(self, node: NodeId) -> bool:
        """Registered and unfenced: clients can reach it, though it may be about to stop."""
        broker = self.brokers.get(node)
        return broker is not None and not broker.fenced

    def is_anybody_leaving(self) -> bool:
        """Return True if a broker in controlled shutdown waits for the others to read that its leaders moved."""
        return any(broker.in_controlled_shutdown and not broker.fenced for broker in self.brokers.values())

    def eligible_brokers(self) -> tuple[NodeId, ...]:
        """Sorted ids of the brokers that may lead (S18: brokers sorted)."""
        return tuple(node for node in sorted(self.brokers) if self.brokers[node].eligible)

    def sorted_partitions(self) -> Iterator[tuple[TopicImage, PartitionImage]]:
        """Every partition with its topic, by topic name and partition number."""
        for name in sorted(self.topics):
            topic = self.topics[name]
            for partition in topic.partitions:
                yield topic, partition

    def leads_any(self, node: NodeId) -> bool:
        return any(partition.leader == node for topic in self.topics.values() for partition in topic.partitions)

    # ---- replaying ----

    def replay_all(
        self, records: Sequence[MetadataRecord], offset: Offset, epoch: Epoch, *, is_staged: bool = False
    ) -> MetadataImage:
        """The image after one committed batch.

        ``offset`` is the end of the batch, its records lie directly before it; ``epoch`` is its leader epoch. A record
        that contradicts the image raises InvariantViolation: it was committed, so this is a bug. ``is_staged``: the
        image is one of many that a batch of decisions needs, and shares the table of topics with the others.
        """
        invariant(offset >= self.offset, "metadata is replayed in order", offset=offset, applied=self.offset)
        builder = _Builder(self, epoch, is_staged=is_staged)
        for position, record in enumerate(records, start=offset - len(records)):
            builder.replay(record, position)
        return builder.image(offset)

    def staged(self, records: Sequence[MetadataRecord], epoch: Epoch | None = None) -> MetadataImage:
        """The image as it would be if ``records`` were committed next: what later decisions of a batch see."""
        offset = self.offset + len(records)
        return self.replay_all(records, offset, self.epoch if epoch is None else epoch, is_staged=True)

    def records(self) -> list[MetadataRecord]:
        """The state as records, for a snapshot: replayed on an empty image of the same offset they give this one."""
        records: list[MetadataRecord] = [
            FeatureLevel(name=name, level=self.features[name]) for name in sorted(self.features)
        ]
        records.extend(_registration(self.brokers[node]) for node in sorted(self.brokers))
        records.extend(
            ConfigRecord(resource_type=BROKER_RESOURCE, resource_name=name, name=setting, value=settings[setting])
            for name, settings in sorted(self.broker_configs.items())
            for setting in sorted(settings)
        )
        for name in sorted(self.topics):
            topic = self.topics[name]
            records.append(TopicRecord(name=name, topic_id=topic.topic_id))
            records.extend(
                ConfigRecord(resource_name=name, name=setting, value=topic.configs[setting])
                for setting in sorted(topic.configs)
            )
            records.extend(_whole_partition(topic.topic_id, partition) for partition in topic.partitions)
        if self.next_producer_id:
            records.append(ProducerIds(next_producer_id=self.next_producer_id))
        records.extend(acl_record(acl_id, self.acls[acl_id]) for acl_id in sorted(self.acls))
        if self.cluster_secret:
            records.append(ClusterSecret(secret=self.cluster_secret))
        records.extend(scram_record(*key, self.scram[key]) for key in sorted(self.scram))
        records.extend(_quota_records(self.quotas))
        return records


def changes(
    old: MetadataImage, new: MetadataImage
) -> Iterator[tuple[TopicPartition, PartitionImage | None, PartitionImage | None]]:
    """Every partition that differs, by identity, with its old and new state, sorted; None: it does not exist.

    A topic that was deleted and created again under its name between the images is reported twice: first as gone, then
    as new, so that the new partition is not taken for the old one.
    """
    for name in sorted(differing(old.topics, new.topics)):
        before, after = old.topics.get(name), new.topics.get(name)
        if before is not None and after is not None and before.topic_id == after.topic_id:
            yield from _partition_changes(name, before.partitions, after.partitions)
            continue
        yield from _partition_changes(name, before.partitions if before else (), ())
        yield from _partition_changes(name, (), after.partitions if after else ())


def _partition_changes(
    name: str, before: tuple[PartitionImage, ...], after: tuple[PartitionImage, ...]
) -> Iterator[tuple[TopicPartition, PartitionImage | None, PartitionImage | None]]:
    for number in range(max(len(before), len(after))):
        old = before[number] if number < len(before) else None
        new = after[number] if number < len(after) else None
        if old is not new:
            yield TopicPartition(name, number), old, new


class _Builder:
    """The next image while it is made: every table is copied at its first change, and only then.

    A staged image lays its changes of topics over the table that there is.
    """

    def __init__(self, base: MetadataImage, epoch: Epoch, *, is_staged: bool) -> None:
        self._base = base
        self._epoch = epoch
        self._is_staged = is_staged
        self._brokers: dict[NodeId, BrokerImage] | None = None
        self._topics: dict[str, TopicImage] | Overlay[str, TopicImage] | None = None
        self._topic_names: dict[TopicId, str] | Overlay[TopicId, str] | None = None
        self._features: dict[str, int] | None = None
        self._broker_configs: dict[str, Mapping[str, str]] | None = None
        self._acls: dict[str, Acl] | None = None
        self._scram: dict[tuple[ScramMechanism, str], ScramCredential] | None = None
        self._quotas: dict[Entity, Mapping[str, float]] | None = None
        self._cluster_secret = base.cluster_secret
        self._next_producer_id = base.next_producer_id
        self._partitions: dict[str, list[PartitionImage]] = {}
        """The partitions of the topics that this batch touches, by topic name."""

    def image(self, offset: Offset) -> MetadataImage:
        for name, partitions in self._partitions.items():
            topics = self._own_topics()
            topics[name] = replace(topics[name], partitions=tuple(partitions))
        base = self._base
        return MetadataImage(
            cluster_id=base.cluster_id,
            offset=offset,
            epoch=self._epoch,
            brokers=base.brokers if self._brokers is None else self._brokers,
            topics=base.topics if self._topics is None else self._topics,
            topic_names=base.topic_names if self._topic_names is None else self._topic_names,
            next_producer_id=self._next_producer_id,
            features=base.features if self._features is None else self._features,
            broker_configs=base.broker_configs if self._broker_configs is None else self._broker_configs,
            acls=base.acls if self._acls is None else self._acls,
            scram=base.scram if self._scram is None else self._scram,
            cluster_secret=self._cluster_secret,
            quotas=base.quotas if self._quotas is None else self._quotas,
            quota_index=base.quota_index if self._quotas is None else QuotaIndex(self._quotas),
            acl_index=base.acl_index
            if self._acls is None
            else AclIndex(self._acls[acl_id] for acl_id in sorted(self._acls)),
        )

    def replay(self, record: MetadataRecord, offset: Offset) -> None:  # one line per kind of record
        match record:
            case PartitionChange():
                self._change_partition(record)
            case PartitionRecord():
                self._add_partition(record)
            case RegisterBroker():
                self._register(record, offset)
            case BrokerRegistrationChange():
                self._change_registration(record)
            case UnregisterBroker():
                broker = self._own_brokers().pop(record.broker_id, None)
                is_current = broker is not None and broker.broker_epoch == record.broker_epoch
                invariant(is_current, "a registration that is not the current one is removed", record=record)
            case TopicRecord():
                self._add_topic(record)
            case ConfigRecord():
                self._configure(record)
            case RemoveTopic():
                self._remove_topic(record)
            case ProducerIds():
                invariant(record.next_producer_id >= self._next_producer_id, "producer ids go back", record=record)
                self._next_producer_id = record.next_producer_id
            case FeatureLevel():
                if self._features is None:
                    self._features = dict(self._base.features)
                self._features[record.name] = record.level
            case AccessControlEntry():
                acls = self._own_acls()
                invariant(record.id not in acls, "an id of an access control entry is used twice", record=record)
                acls[record.id] = _acl_in(record)
            case RemoveAccessControlEntry():
                removed = self._own_acls().pop(record.id, None)
                invariant(removed is not None, "an access control entry that does not exist is removed", record=record)
            case UserScramCredential():
                credential = msgspec.convert(record, ScramCredential, from_attributes=True)
                self._own_scram()[ScramMechanism(record.mechanism), record.name] = credential
            case RemoveUserScramCredential():
                gone = self._own_scram().pop((ScramMechanism(record.mechanism), record.name), None)
                invariant(gone is not None, "a credential that does not exist is removed", record=record)
            case ClientQuota():
                self._set_quota(record)
            case ClusterSecret():
                invariant(not self._cluster_secret, "the cluster's secret is written twice")
                self._cluster_secret = record.secret
            case _:
                assert_never(record)

    # ---- access control entries ----

    def _own_acls(self) -> dict[str, Acl]:
        if self._acls is None:
            self._acls = dict(self._base.acls)
        return self._acls

    def _own_scram(self) -> dict[tuple[ScramMechanism, str], ScramCredential]:
        if self._scram is None:
            self._scram = dict(self._base.scram)
        return self._scram

    def _set_quota(self, record: ClientQuota) -> None:
        if self._quotas is None:
            self._quotas = dict(self._base.quotas)
        entity = _entity_in(record)
        values = {key: value for key, value in self._quotas.pop(entity, {}).items() if key != record.key}
        if record.value is not None:
            values[record.key] = record.value
        if values:
            self._quotas[entity] = values

    # ---- brokers ----

    def _own_brokers(self) -> dict[NodeId, BrokerImage]:
        if self._brokers is None:
            self._brokers = dict(self._base.brokers)
        return self._brokers

    def _register(self, record: RegisterBroker, offset: Offset) -> None:
        self._own_brokers()[record.broker_id] = BrokerImage(
            node_id=record.broker_id,
            broker_epoch=offset if record.broker_epoch is None else record.broker_epoch,
            incarnation_id=record.incarnation_id,
            host=record.host,
            port=record.port,
            rack=record.rack,
            listeners=parse_listeners(record.listeners or "", "listeners"),
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=record.log_dirs or (),
            ignores_case=bool(record.ignores_case),
            min_insync_replicas=record.min_insync_replicas or 1,
        )

    def _change_registration(self, record: BrokerRegistrationChange) -> None:
        brokers = self._own_brokers()
        broker = brokers.get(record.broker_id)
        invariant(
            broker is not None and broker.broker_epoch == record.broker_epoch,
            "a change of a registration that is not the current one",
            record=record,
            broker=broker,
        )
        broker = brokers[record.broker_id]
        brokers[record.broker_id] = replace(
            broker,
            fenced=broker.fenced if record.fenced is None else record.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown
            if record.in_controlled_shutdown is None
            else record.in_controlled_shutdown,
        )

    # ---- topics ----

    def _own_topics(self) -> dict[str, TopicImage] | Overlay[str, TopicImage]:
        if self._topics is None:
            self._topics = Overlay(self._base.topics) if self._is_staged else dict(self._base.topics)
        return self._topics

    def _own_topic_names(self) -> dict[TopicId, str] | Overlay[TopicId, str]:
        if self._topic_names is None:
            names = self._base.topic_names
            self._topic_names = Overlay(names) if self._is_staged else dict(names)
        return self._topic_names

    def _name_of(self, topic_id: TopicId) -> str:
        names = self._base.topic_names if self._topic_names is None else self._topic_names
        name = names.get(topic_id)
        invariant(name is not None, "a record of a topic that does not exist", topic_id=topic_id)
        return names[topic_id]

    def _own_partitions(self, topic_id: TopicId) -> list[PartitionImage]:
        name = self._name_of(topic_id)
        partitions = self._partitions.get(name)
        if partitions is None:
            topics = self._base.topics if self._topics is None else self._topics
            partitions = self._partitions[name] = list(topics[name].partitions)
        return partitions

    def _add_topic(self, record: TopicRecord) -> None:
        topics, names = self._own_topics(), self._own_topic_names()
        invariant(record.name not in topics, "a topic is created twice", record=record)
        invariant(record.topic_id not in names, "a topic id is used twice", record=record)
        topics[record.name] = TopicImage(name=record.name, topic_id=record.topic_id)
        names[record.topic_id] = record.name

    def _remove_topic(self, record: RemoveTopic) -> None:
        name = self._name_of(record.topic_id)
        del self._own_topic_names()[record.topic_id]
        del self._own_topics()[name]
        self._partitions.pop(name, None)

    def _configure(self, record: ConfigRecord) -> None:
        if record.resource_type == BROKER_RESOURCE:
            self._configure_broker(record)
            return
        topics = self._own_topics()
        invariant(
            record.resource_type == TOPIC_RESOURCE and record.resource_name in topics,
            "a setting of a resource that does not exist",
            record=record,
        )
        topic = topics[record.resource_name]
        topics[record.resource_name] = replace(topic, configs=_with_setting(topic.configs, record))

    def _configure_broker(self, record: ConfigRecord) -> None:
        if self._broker_configs is None:
            self._broker_configs = dict(self._base.broker_configs)
        settings = _with_setting(self._broker_configs.pop(record.resource_name, {}), record)
        if settings:
            self._broker_configs[record.resource_name] = settings

    def _add_partition(self, record: PartitionRecord) -> None:
        partitions = self._own_partitions(record.topic_id)
        invariant(record.partition == len(partitions), "partitions come in order", record=record)
        invariant(
            record.leader == NO_NODE or record.leader in record.isr, "S13: the leader is not in the ISR", record=record
        )
        partitions.append(
            PartitionImage(
                partition=record.partition,
                replicas=record.replicas,
                isr=record.isr,
                leader=record.leader,
                leader_epoch=record.leader_epoch,
                partition_epoch=record.partition_epoch,
                controller_epoch=self._epoch if record.controller_epoch is None else record.controller_epoch,
                elr=record.elr,
                last_known_elr=record.last_known_elr,
                last_known_dirs=record.last_known_dirs or (),
                recovered=record.recovered,
                adding=record.adding or (),
                removing=record.removing or (),
            )
        )

    def _change_partition(self, record: PartitionChange) -> None:
        partitions = self._own_partitions(record.topic_id)
        invariant(0 <= record.partition < len(partitions), "a change of a partition that does not exist", record=record)
        partitions[record.partition] = partitions[record.partition].changed(record, self._epoch)


def acl_record(acl_id: str, acl: Acl) -> AccessControlEntry:
    """The record that creates an entry."""
    return AccessControlEntry(
        id=acl_id,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def scram_record(mechanism: ScramMechanism, name: str, credential: ScramCredential) -> UserScramCredential:
    """The record that gives a user a credential."""
    return UserScramCredential(name=name, mechanism=mechanism, **asdict(credential))


def quota_record(entity: Entity, key: str, value: float | None) -> ClientQuota:
    """The record that sets a quota, or removes it (None)."""
    names = {kind: () if name is None else (name,) for kind, name in entity}
    return ClientQuota(users=names.get(USER), client_ids=names.get(CLIENT_ID), ips=names.get(IP), key=key, value=value)


def _quota_records(quotas: Mapping[Entity, Mapping[str, float]]) -> list[ClientQuota]:
    """All quotas, sorted."""
    records = [quota_record(entity, key, value) for entity, values in quotas.items() for key, value in values.items()]
    return sorted(
        records,
        key=lambda each: (*(_by_name(names) for names in (each.users, each.client_ids, each.ips)), each.key),
    )


def _by_name(names: tuple[str, ...] | None) -> tuple[bool, tuple[str, ...]]:
    return names is None, names or ()


def _entity_in(record: ClientQuota) -> Entity:
    parts = ((CLIENT_ID, record.client_ids), (IP, record.ips), (USER, record.users))
    return tuple((kind, names[0] if names else None) for kind, names in parts if names is not None)


def _acl_in(record: AccessControlEntry) -> Acl:
    return Acl(
        resource_type=record.resource_type,
        resource_name=record.resource_name,
        pattern_type=record.pattern_type,
        principal=record.principal,
        host=record.host,
        operation=record.operation,
        permission=record.permission_type,
    )


def _with_setting(settings: Mapping[str, str], record: ConfigRecord) -> dict[str, str]:
    """``settings`` with the record's set, or without it."""
    others = {name: value for name, value in settings.items() if name != record.name}
    return others if record.value is None else others | {record.name: record.value}


def _registration(broker: BrokerImage) -> RegisterBroker:
    return RegisterBroker(
        broker_id=broker.node_id,
        incarnation_id=broker.incarnation_id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack,
        listeners=",".join(map(str, broker.listeners)) or None,
        broker_epoch=broker.broker_epoch,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_dirs or None,
        ignores_case=broker.ignores_case or None,
        min_insync_replicas=broker.min_insync_replicas if broker.min_insync_replicas > 1 else None,
    )


def _whole_partition(topic_id: TopicId, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        topic_id=topic_id,
        partition=partition.partition,
        replicas=partition.replicas,
        isr=partition.isr,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        controller_epoch=partition.controller_epoch,
        elr=partition.elr,
        last_known_elr=partition.last_known_elr,
        recovered=partition.recovered,
        adding=partition.adding or None,
        removing=partition.removing or None,
        last_known_dirs=partition.last_known_dirs or None,
    )
