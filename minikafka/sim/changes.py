"""An administrator at work in a running cluster: moves replicas, adds partitions and sends to them, alters settings.

==================  ===================================================================================================
``reassign``        ``orders-0=4,2,3``: moved to these brokers; ``orders-0=``: a move is taken back
``add_partitions``  ``orders=5``: the topic grows to that many; a producer of its own sends to what is new
``alter_topic``     ``orders:segment.bytes=300``: set, and with nothing behind the equals sign taken back
``alter_broker``    ``2:log.segment.bytes=600``: the same of a broker, with nothing before the colon of all brokers
``elect``           ``orders-0``: uncleanly, where nobody may lead (:meth:`Changes.elect_where_nobody_may_lead`)
``grant``           ``s1:WRITE:ALLOW``: an ACL of a tenant (``tenant_plans.py``); ``revoke`` ``s1`` deletes all of them
``set_password``    ``s1:7``: another credential of a tenant; ``set_quota`` ``s1:500``: bytes a second that it may send
==================  ===================================================================================================

What is drawn (:func:`drawn_changes`) leaves settings that hold or give up a promise of durability alone: the plan's
policy is what the run is judged by. Several settings of one target are separated by semicolons.

The administrator is the production client on a machine of its own, and sends a request again until it has an answer; a
refusal is an answer. The cluster says when a move is complete (:meth:`Changes.missing`).

One change is a topic's whole life (:class:`TopicLives`): one client creates it, sends to it, deletes it and creates it
again under its name. The client knows when a life begins and ends: it sends only between the answers to its creation
and its deletion request, and waits for every outcome before it deletes.

What the last life must hold is written to the history at the end: its own records with their outcomes, and of former
lives only those whose outcome is unknown, for such a request may arrive late. Whatever else comes back from a former
life is a record that nobody sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

from minikafka import errors as kafka
from minikafka.check import Recorder
from minikafka.client.admin import AdminClient
from minikafka.client.consumer import Consumer
from minikafka.client.producer import Producer
from minikafka.client.settings import AdminConfig, ConsumerConfig, ProducerConfig
from minikafka.client.structs import ConfigResource, NewTopic, RecordMetadata
from minikafka.ports import World
from minikafka.security.quotas import PRODUCE
from minikafka.security.scram import ITERATIONS_MIN
from minikafka.sim.cluster import SimCluster
from minikafka.sim.log_invariants import stored_batches
from minikafka.sim.plan import Fault, Operation, Plan, fault_at
from minikafka.sim.tenant_plans import GRANT, REVOKE, SECRETS, SET_PASSWORD, SET_QUOTA
from minikafka.sim.workload import started
from minikafka.types import NO_OFFSET, NodeId, Offset, TopicPartition
from minikafka.wire.acls import CLUSTER_NAME, Acl, AclFilter, AclOperation, AclPermission, ResourceType
from minikafka.wire.records import decode_batch

REASSIGN, ADD_PARTITIONS, ALTER_TOPIC, ALTER_BROKER = "reassign", "add_partitions", "alter_topic", "alter_broker"

CHANGE_FAULTS: Final = (REASSIGN, ADD_PARTITIONS, ALTER_TOPIC, ALTER_BROKER)
"""Kinds of what an administrator does."""

SETTINGS: Final = (
    ("segment.bytes", ("300", "1500", "")),
    ("min.insync.replicas", ("1", "2", "")),
    ("index.interval.bytes", ("0", "200", "")),
    ("retention.bytes", ("900", "")),
    ("max.message.bytes", ("2000", "")),
)
"""Settings of topics and what they are set to; the empty text takes them back."""


def drawn_changes(
    random: Random, *, topic: str, partitions: int, brokers: int, duration_s: float, may_move: bool
) -> list[Fault]:
    """A few changes of one topic. ``may_move``: its replicas may leave brokers."""
    changes: list[Fault] = []
    for _ in range(random.randint(1, 3) if may_move else 0):
        at_s, partition = round(random.uniform(0.2, duration_s), 3), random.randrange(partitions)
        nodes = random.sample(range(1, brokers + 1), random.choice((2, 3, 3)))
        changes.append(Fault(at_s, REASSIGN, f"{topic}-{partition}={','.join(map(str, nodes))}"))
        if random.random() < 0.3:
            after_s = random.choice((0.01, 0.1, 0.5))
            changes.append(fault_at(at_s + after_s, REASSIGN, f"{topic}-{partition}="))
    for _ in range(random.choice((0, 1, 1))):
        count = partitions + random.choice((1, 2))
        changes.append(fault_at(random.uniform(0.2, duration_s), ADD_PARTITIONS, f"{topic}={count}"))
    for _ in range(random.choice((0, 1, 2)) if changes else 2):
        name, values = random.choice(SETTINGS)
        at_s = random.uniform(0.2, duration_s)
        changes.append(fault_at(at_s, ALTER_TOPIC, f"{topic}:{name}={random.choice(values)}"))
    return changes


RECORDS: Final = 6
"""Of each life."""

PAUSE_S: Final = 0.03
"""Between two of them."""

RETRY_S: Final = 0.2
"""Before what an administrator wants is tried again: fewer brokers may live than a topic needs."""


def admin_config(cluster: SimCluster) -> AdminConfig:
    """How administrators are set: they ask again within seconds."""
    return AdminConfig(bootstrap_servers=cluster.bootstrap, request_timeout_ms=2000, default_api_timeout_ms=6000)


@dataclass(slots=True)
class Sent:
    """One record and what became of it."""

    life: int
    value: str
    offset: Offset | None = None
    error: kafka.ProtocolError | None = None


class LivesReader:
    """A production consumer that reads a topic through all of its lives, from the first record of each on.

    It stands still while the topic is deleted and created again, and learns of both when the topic has records again.
    """

    def __init__(self, cluster: SimCluster, machine: str, topic: str) -> None:
        self._machine = machine
        self._partition = TopicPartition(topic, 0)
        self._cluster = cluster
        self._read: set[bytes] = set()
        self._world = cluster.sim.of(machine)
        self._config = ConsumerConfig(
            bootstrap_servers=cluster.bootstrap,
            client_id=machine,
            auto_offset_reset="earliest",
            request_timeout_ms=2000,
        )
        cluster.sim.spawn(machine, self._run())

    async def _run(self) -> None:
        consumer = await started(lambda: Consumer(self._config, self._world), RETRY_S)
        consumer.assign([self._partition])
        while True:
            try:
                found = await consumer.getmany(timeout_ms=1000)
            except kafka.ProtocolError as error:
                self._world.events("topic_life_waits", topic=self._partition.topic, life=0, error=error.name)
                await asyncio.sleep(RETRY_S)
                continue
            self._read.update(each.value or b"" for records in found.values() for each in records)

    def pause(self) -> None:
        """SIGSTOP."""
        self._cluster.sim.pause(self._machine)

    def resume(self) -> None:
        """SIGCONT."""
        self._cluster.sim.resume(self._machine)

    def missing(self) -> str:
        """A committed record of the topic's last life that it has not read yet; empty: there is none."""
        leader = self._cluster.replica(self._cluster.leader_of(self._partition), self._partition)
        if leader is None:
            return ""  # the cluster itself is not whole
        for batch in stored_batches(leader.log, leader.log.start_offset, leader.high_watermark):
            for record in decode_batch(batch) if not batch.is_control else ():
                if (record.value or b"") not in self._read:
                    return f"the reader of {self._partition} has passed over offset {record.offset}, or waits for it"
        return ""


class TopicLives:
    """The lives of one topic in one run."""

    def __init__(
        self, plan: Plan, cluster: SimCluster, machine: str, fault: Fault, reader: LivesReader | None = None
    ) -> None:
        self.topic = fault.target
        self.is_done = False
        self._reader = reader
        self._machine = machine
        self._lives = int(fault.value)
        self._gap_s = fault.lasts_s
        self._sent: list[Sent] = []
        self._life = 0
        self._world: World = cluster.sim.of(machine)
        self._admin_config = admin_config(cluster)
        self._config = ProducerConfig(
            bootstrap_servers=cluster.bootstrap,
            client_id=machine,
            **plan.producer_settings,  # type: ignore[arg-type]
        )
        cluster.sim.spawn(machine, self._run())

    def missing(self) -> str:
        """What it has not done yet; empty: nothing."""
        if not self.is_done:
            return f"{self._machine} is in life {self._life} of {self._lives} of {self.topic}"
        return "" if self._reader is None else self._reader.missing()

    def tell(self, recorder: Recorder) -> None:
        """Write what the last life must, and may, hold into the history."""
        tell_lives(recorder, self._machine, self.topic, self._sent, last=self._lives)

    # ---- at work -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        admin = await started(lambda: AdminClient(self._admin_config, self._world), RETRY_S)
        producer = await started(lambda: Producer(self._config, self._world), RETRY_S)
        while self._life < self._lives:
            self._life += 1
            await self._again(lambda: self._create(admin))
            self._world.events("topic_life_began", topic=self.topic, life=self._life)
            await self._send(producer)
            if self._reader is not None:
                self._reader.resume()
            if self._life < self._lives:
                await asyncio.sleep(self._gap_s)
                if self._reader is not None:
                    self._reader.pause()
                await self._again(lambda: self._delete(admin))
                self._world.events("topic_life_ended", topic=self.topic, life=self._life)
                await asyncio.sleep(self._gap_s)
        await producer.stop()
        await admin.close()
        self.is_done = True

    async def _again(self, work: Callable[[], Awaitable[object]]) -> None:
        """Until it is done: an administrator does not give up."""
        while True:
            try:
                await work()
            except kafka.ProtocolError as error:
                self._world.events("topic_life_waits", topic=self.topic, life=self._life, error=error.name)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _create(self, admin: AdminClient) -> None:
        new = NewTopic(self.topic, num_partitions=1, replication_factor=3)
        with suppress(kafka.TopicAlreadyExists):  # by an attempt that seemed to fail
            await admin.create_topics([new], wait=False)

    async def _delete(self, admin: AdminClient) -> None:
        with suppress(kafka.UnknownTopicOrPartition):  # since an attempt that seemed to fail
            await admin.delete_topics([self.topic], wait=False)

    async def _send(self, producer: Producer) -> None:
        waiting: list[tuple[Sent, asyncio.Future[RecordMetadata]]] = []
        for number in range(RECORDS):
            sent = Sent(self._life, f"{self._machine}.{self._life}.{number}")
            self._sent.append(sent)
            try:
                waiting.append((sent, await producer.send(self.topic, sent.value.encode(), partition=0)))
            except kafka.ProtocolError as error:
                sent.error = error
            await asyncio.sleep(PAUSE_S)
        for sent, future in waiting:
            try:
                sent.offset = (await future).offset
            except kafka.ProtocolError as error:
                sent.error = error


def tell_lives(recorder: Recorder, process: str, topic: str, sent: Iterable[Sent], *, last: int) -> None:
    """The sends of the last life with their outcomes; of those before it the ones that nobody knows the outcome of."""
    for each in sent:
        is_unknown = each.error is not None and each.error.outcome != kafka.NOT_WRITTEN
        if each.life != last and not is_unknown:
            continue
        op = recorder.send(process, topic, each.value, partition=0)
        if each.life != last:
            continue
        if each.error is None:
            # -1: a leader that had been restarted knew that the batch is in the log, and not where.
            recorder.acknowledged(op, partition=0, offset=None if each.offset == NO_OFFSET else each.offset)
        elif is_unknown:
            recorder.unknown(op, each.error.name)
        else:
            recorder.failed(op, each.error.name)


ELECT: Final = "elect"
"""Never drawn: it is what an operator does about what came of other faults."""

SENDS_EACH: Final = 8
"""Records for each partition that was added."""

REFUSALS: Final = (
    kafka.ElectionNotNeeded,
    kafka.InvalidPartitions,
    kafka.InvalidReplicaAssignment,
    kafka.NoReassignmentInProgress,
)
"""Answers: another was first, or a broker is not known."""


class Changes:
    """What administrators do in one run."""

    def __init__(
        self, cluster: SimCluster, machine: Callable[[], str], send: Callable[[list[Operation]], None]
    ) -> None:
        """``machine`` names a new machine, ``send`` lets a producer send these, at times from now on."""
        self._cluster = cluster
        self._machine = machine
        self._send = send
        self._at_work: dict[str, Fault] = {}
        self.departed: Container[NodeId] = ()
        """Brokers that an operator has removed: their settings cannot be altered."""
        self._do: dict[str, Callable[[AdminClient, World, str], Awaitable[None]]] = {
            REASSIGN: self._reassign,
            ADD_PARTITIONS: self._add_partitions,
            ALTER_TOPIC: self._alter_topic,
            ALTER_BROKER: self._alter_broker,
            ELECT: self._elect,
            GRANT: self._grant,
            REVOKE: self._revoke,
            SET_PASSWORD: self._set_password,
            SET_QUOTA: self._set_quota,
        }

    def begin(self, fault: Fault) -> bool:
        """An operator sets out to do it."""
        machine = self._machine()
        world = self._cluster.sim.of(machine)
        self._at_work[machine] = fault
        self._cluster.sim.spawn(machine, self._carry_out(machine, world, fault))
        return True

    def elect_where_nobody_may_lead(self) -> None:
        """The last leader is back with an empty disk: an operator sees that, and lets another replica lead."""
        targets = {fault.target for fault in self._at_work.values() if fault.kind == ELECT}
        for name in self._cluster.waiting_for_a_lost_disk():
            if str(name) not in targets:
                self.begin(Fault(at_s=self._cluster.sim.loop.time(), kind=ELECT, target=str(name)))

    def missing(self) -> str:
        """Clients without a response, and what is in progress; empty: nothing."""
        waiting = [f"{machine} waits for {fault.kind} {fault.target}" for machine, fault in self._at_work.items()]
        image = self._cluster.image()
        moving = [] if image is None else [each for each in image.sorted_partitions() if each[1].assignment.under_way]
        return "; ".join([*waiting, *(f"{topic.name}-{state.partition} is moved" for topic, state in moving)])

    async def _carry_out(self, machine: str, world: World, fault: Fault) -> None:
        while True:
            try:
                async with AdminClient(admin_config(self._cluster), world) as admin:
                    await self._do[fault.kind](admin, world, fault.target)
            except REFUSALS as error:
                world.events(f"{fault.kind}_refused", target=fault.target, error=error.name)
                break
            except kafka.ProtocolError as error:
                if isinstance(error, kafka.BrokerIdNotRegistered) and self._is_of_departed(fault):
                    world.events(f"{fault.kind}_refused", target=fault.target, error=error.name)
                    break
                world.events("change_waits", change=fault.kind, target=fault.target, error=error.name)
                await asyncio.sleep(RETRY_S)
            else:
                break
        del self._at_work[machine]

    def _is_of_departed(self, fault: Fault) -> bool:
        broker = fault.target.partition(":")[0]
        return fault.kind == ALTER_BROKER and broker.isdigit() and int(broker) in self.departed

    async def _reassign(self, admin: AdminClient, world: World, target: str) -> None:
        partition, _, brokers = target.partition("=")
        nodes = [int(node) for node in brokers.split(",")] if brokers else None
        [error] = (await admin.alter_partition_reassignments({TopicPartition.parsed(partition): nodes})).values()
        if error is not None:
            raise error
        world.events("move_begun" if nodes else "move_taken_back", replica_set=partition, nodes=brokers)

    async def _add_partitions(self, admin: AdminClient, world: World, target: str) -> None:
        topic, _, count = target.partition("=")
        image = self._cluster.image()
        known = image.topics.get(topic) if image is not None else None
        before = len(known.partitions) if known is not None else int(count)
        await admin.create_partitions({topic: int(count)}, wait=False)
        world.events("topic_enlarged", topic=topic, count=int(count))
        self._send(
            [
                Operation(at_s=round(number * 0.05, 4), client="", topic=topic, partition=partition)
                for number in range(SENDS_EACH)
                for partition in range(before, int(count))
            ]
        )

    async def _alter_topic(self, admin: AdminClient, world: World, target: str) -> None:
        await self._alter(admin, "topic", target)
        world.events("topic_altered", topic=target.partition(":")[0], setting=target.partition(":")[2])

    async def _alter_broker(self, admin: AdminClient, world: World, target: str) -> None:
        await self._alter(admin, "broker", target)
        world.events("broker_altered", broker=target.partition(":")[0], setting=target.partition(":")[2])

    @staticmethod
    async def _alter(admin: AdminClient, kind: str, target: str) -> None:
        resource, _, settings = target.partition(":")
        pairs = [setting.partition("=") for setting in settings.split(";")]
        given = {name: value or None for name, _, value in pairs}
        await admin.incremental_alter_configs([ConfigResource(kind, resource, given)], wait=False)

    async def _elect(self, admin: AdminClient, world: World, target: str) -> None:
        [error] = (await admin.elect_leaders("unclean", [TopicPartition.parsed(target)])).values()
        if error is not None:
            raise error
        world.events("elected_by_hand", replica_set=target)

    async def _grant(self, admin: AdminClient, world: World, target: str) -> None:
        tenant, operation, permission = target.split(":")
        of_cluster = operation == AclOperation.ALTER.name
        acl = Acl(
            resource_type=ResourceType.CLUSTER if of_cluster else ResourceType.TOPIC,
            resource_name=CLUSTER_NAME if of_cluster else SECRETS,
            principal=f"User:{tenant}",
            operation=AclOperation[operation],
            permission=AclPermission[permission],
        )
        await admin.create_acls([acl], wait=False)
        world.events("tenant_granted", tenant=tenant, operation=operation, permission=permission)

    async def _revoke(self, admin: AdminClient, world: World, target: str) -> None:
        await admin.delete_acls([AclFilter(principal=f"User:{target}")], wait=False)
        world.events("tenant_revoked", tenant=target)

    async def _set_password(self, admin: AdminClient, world: World, target: str) -> None:
        tenant, _, password = target.partition(":")
        await admin.set_user_password(tenant, password, "SCRAM-SHA-256", iterations=ITERATIONS_MIN, wait=False)
        world.events("tenant_password_set", tenant=tenant)

    async def _set_quota(self, admin: AdminClient, world: World, target: str) -> None:
        tenant, _, limit = target.partition(":")
        await admin.alter_client_quotas({(("user", tenant),): {PRODUCE: float(limit)}}, wait=False)
        world.events("tenant_quota_set", tenant=tenant, limit=int(limit))


RETENTION: Final = "retention."
"""How the names of a topic's settings begin that delete records by themselves."""


def expiring_topics(plan: Plan) -> frozenset[str]:
    """Topics that have a retention of their own, from the start or by a change at run time."""
    changes = [fault.target.partition(":") for fault in plan.faults if fault.kind == ALTER_TOPIC]
    given = {topic.name for topic in plan.topics if any(name.startswith(RETENTION) for name in topic.configs)}
    altered = {topic for topic, _, settings in changes if any(s.startswith(RETENTION) for s in settings.split(";"))}
    return frozenset(given | altered)
