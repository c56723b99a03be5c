"""What clients and administrators are and do in one run; they come, die, and are replaced.

===================  ==================================================================================================
``kill_producer p1`` its process is killed with records under way; ``lasts_s`` later another one goes on
``kill_reader c1``   the same; ``value`` 0: the next one goes on where it stood, 1: from the start of the log
``pause_reader g1``  SIGSTOP for ``lasts_s``: it comes back to a log that has changed
``delete_records``   of a partition, ``value`` of what is committed; 1: up to the watermark, as ``-1`` says it
``topic_lives``      a topic is created, sent to, deleted and created again (``changes.py``), ``value`` times, with
                     ``lasts_s`` of rest before and after each deletion; with a fraction (2.5) a consumer reads it
``reassign`` ...     what is changed in a running cluster (``changes.py``)
===================  ==================================================================================================

Rules for this file: clients are the production classes on machines of their own; who dies leaves no answer behind, so
nobody waits for it; an administrator tries again until it has an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from minikafka.check import Recorder
from minikafka.client.admin import AdminClient
from minikafka.errors import OffsetOutOfRange, ProtocolError, UnknownTopicOrPartition
from minikafka.invariant import invariant
from minikafka.ports import World
from minikafka.sim.changes import CHANGE_FAULTS, Changes, LivesReader, TopicLives, admin_config
from minikafka.sim.cluster import SimCluster
from minikafka.sim.faults import At
from minikafka.sim.kafka_link import Report
from minikafka.sim.kafka_plans import READS
from minikafka.sim.kafka_producer import Fate, KafkaSender
from minikafka.sim.kafka_reader import KafkaReader
from minikafka.sim.plan import Fault, Operation, Plan
from minikafka.sim.tenant_plans import TENANT_CHANGES
from minikafka.sim.workload import READ_WAIT_MS, SUCCESSOR, ConsumingClient, Reader, ReadingClient, SendingClient
from minikafka.types import NO_NODE, Address, TopicPartition
from minikafka.wire.kafka.translate.common import id_bytes

C = TypeVar("C", SendingClient | KafkaSender, Reader)

ADMIN: Final = "a"
"""Machines of administrators are ``a1``, ``a2`` and so on."""

ENLARGER: Final = "e"
"""Those of producers that send to partitions that were added."""


class SimClients:
    """The clients of one run."""

    def __init__(
        self,
        plan: Plan,
        cluster: SimCluster,
        recorder: Recorder,
        at: At,
        tell: Callable[[str], None],
        report: Report,
    ) -> None:
        self.marks: Counter[str] = Counter()
        """``fault_kill_producer`` and so on: how often each kind really happened."""
        self.senders: list[SendingClient | KafkaSender] = []
        self.readers: list[Reader] = []
        self.lives: list[TopicLives] = []
        self.changes = Changes(cluster, self._admin_machine, self._send_now)
        self._plan = plan
        self._cluster = cluster
        self._recorder = recorder
        self._at = at
        self._tell = tell
        self._report = report
        self._fates: list[tuple[str, Fate]] = []
        """Processes, and their records for topics that are deleted and created again."""
        self._mortal = frozenset(fault.target for fault in plan.faults if fault.kind == "topic_lives")
        self._start_s = 0.0
        self._processes: Counter[str] = Counter()
        """How many there were on each machine."""
        self._begin: dict[str, Callable[[Fault], bool]] = {
            "kill_producer": self._kill_producer,
            "kill_reader": self._kill_reader,
            "pause_reader": self._pause_reader,
            "delete_records": self._delete_records,
            "topic_lives": self._topic_lives,
            **dict.fromkeys((*CHANGE_FAULTS, *TENANT_CHANGES), self.changes.begin),
        }

    @staticmethod
    def consumers_of(plan: Plan) -> tuple[str, ...]:
        """The machines of the production consumers of a plan."""
        return tuple(f"g{number + 1}" for number in range(plan.consumers))

    def start(self, names: Sequence[TopicPartition]) -> None:
        """Let everybody begin with what the plan says, as of now."""
        self._start_s = self._cluster.sim.loop.time()
        for machine in sorted({operation.client for operation in self._plan.operations}):
            self._send_from(machine, [each for each in self._plan.operations if each.client == machine])
        for number in range(self._plan.readers):
            self.read_with(f"c{number + 1}", names)
        for machine, settings in self._plan.kafka.items():
            if settings.get(READS):
                self._read_kafka_with(machine, names)
        for machine in self.consumers_of(self._plan):
            self._consume_with(machine, names)

    def begin(self, fault: Fault) -> None:
        """Let it happen, if whom it would hit exists."""
        invariant(fault.kind in self._begin, "a known kind of fault", fault=fault)
        if self._begin[fault.kind](fault):
            self._tell(str(fault))
            self.marks[f"fault_{fault.kind}"] += 1

    def missing(self) -> str:
        """Clients that still wait for responses or have work left; empty: none."""
        waiting = [f"{each.name} waits for {each.unanswered} answers" for each in self.senders if each.unanswered]
        waiting += [each.lost_leader() for each in self.senders if isinstance(each, KafkaSender)]
        living = [each.missing() for each in self.lives]
        return "; ".join(filter(None, [*waiting, *living, self.changes.missing()]))

    def end(self) -> None:
        """Everything is put right: a dead client comes back at once, with what it has left to send."""
        for reader in self.readers:
            self._cluster.sim.resume(reader.machine)
        for sender in list(self.senders):
            if isinstance(sender, KafkaSender) and self._cluster.sim.loop.alive(sender.machine):
                sender.look_for_leaders(self._leads)
            if sender.left and not self._cluster.sim.loop.alive(sender.machine):
                self._send_from(sender.machine, sender.left)

    def _living(self, clients: Sequence[C], fault: Fault) -> C | None:
        """The client that a fault hits; None if it does not live."""
        is_alive = self._cluster.sim.loop.alive(fault.target)
        return next((each for each in clients if is_alive and each.machine == fault.target), None)

    def _brokers(self) -> list[Address]:
        return [self._cluster.address_of(node) for node in self._cluster.nodes]

    # ---- producers ---------------------------------------------------------------------------------------------------

    def _send_now(self, operations: Sequence[Operation]) -> None:
        """From a new machine, at times from now on."""
        self._send_from(self._process_on_new(ENLARGER), operations, self._cluster.sim.loop.time())

    def _send_from(self, machine: str, operations: Sequence[Any], start_s: float | None = None) -> None:
        self.senders = [each for each in self.senders if each.machine != machine]
        if machine in self._plan.kafka:
            self.senders.append(self._kafka_sender(machine, operations))
            return
        self.senders.append(
            SendingClient(
                self._cluster.sim,
                self._process_on(machine),
                operations,
                self._recorder,
                bootstrap=self._cluster.bootstrap,
                settings={**self._plan.producer_settings, **self._plan.clients.get(machine, {})},
                start_s=self._start_s if start_s is None else start_s,
            )
        )

    def _kafka_sender(self, machine: str, operations: Sequence[Any]) -> KafkaSender:
        return KafkaSender(
            self._cluster.sim,
            self._process_on(machine),
            operations,
            self._recorder,
            brokers=self._brokers(),
            settings={**self._plan.client_settings, **self._plan.kafka[machine]},
            start_s=self._start_s,
            report=self._report,
            mortal=self._mortal,
            fates=self._fates,
        )

    def _leads(self, name: TopicPartition) -> Address | None:
        """Where the leader listens, by the newest metadata; None: there is none."""
        leader = self._cluster.leader_of(name)
        return None if leader == NO_NODE else self._cluster.address_of(leader)

    def tell_fates(self) -> None:
        """What Kafka clients sent to topics that are deleted and created again: the records that name the last one.

        The others named another topic by its id. If one of them is read, nobody has sent it.
        """
        image = self._cluster.image()
        for process, fate in self._fates:
            topic = image.topics.get(fate.topic) if image is not None else None
            if topic is not None and fate.topic_id == id_bytes(topic.topic_id):
                fate.tell(self._recorder, self._recorder.send(process, fate.topic, fate.value, partition=0))

    def _process_on(self, machine: str) -> str:
        self._processes[machine] += 1
        number = self._processes[machine]
        return machine if number == 1 else f"{machine}{SUCCESSOR}{number}"

    def _kill_producer(self, fault: Fault) -> bool:
        sim, sender = self._cluster.sim, self._living(self.senders, fault)
        if sender is None:
            return False
        sim.kill(sender.machine)
        sender.unanswered = 0

        def replace() -> None:
            if not sim.loop.alive(sender.machine):
                self._send_from(sender.machine, sender.left)

        self._at(sim.loop.time() + fault.lasts_s, replace)
        return True

    # ---- readers -----------------------------------------------------------------------------------------------------

    def read_with(
        self, machine: str, names: Sequence[TopicPartition], positions: Any = None, *, in_haste: bool = False
    ) -> ReadingClient:
        """A reader of ours; ``in_haste`` it pauses as briefly as if nothing else were slow."""
        reader = ReadingClient(
            self._cluster.sim,
            self._process_on(machine),
            names,
            self._recorder,
            brokers=self._brokers(),
            positions=positions,
            pace=1.0 if in_haste else self._plan.pace,
        )
        self.readers.append(reader)
        return reader

    def _read_kafka_with(self, machine: str, names: Sequence[TopicPartition], positions: Any = None) -> None:
        self.readers.append(
            KafkaReader(
                self._cluster.sim,
                self._process_on(machine),
                names,
                self._recorder,
                brokers=self._brokers(),
                settings=self._plan.kafka[machine],
                report=self._report,
                positions=positions,
                pace=self._plan.pace,
            )
        )

    def _consume_with(self, machine: str, names: Sequence[TopicPartition]) -> None:
        settings = {
            name: value
            for name, value in self._plan.client_settings.items()
            if name in {"request_timeout_ms", "retry_backoff_ms", "retry_backoff_max_ms"}
        }
        settings["fetch_max_wait_ms"] = int(READ_WAIT_MS * self._plan.pace)
        self.readers.append(
            ConsumingClient(
                self._cluster.sim,
                self._process_on(machine),
                names,
                self._recorder,
                bootstrap=self._cluster.bootstrap,
                settings=settings,
            )
        )

    def _kill_reader(self, fault: Fault) -> bool:
        sim, reader = self._cluster.sim, self._living(self.readers, fault)
        if reader is None:
            return False
        sim.kill(reader.machine)
        self.readers.remove(reader)
        positions = dict(reader.positions) if not fault.value else dict.fromkeys(reader.positions, 0)

        def replace() -> None:
            read = self._read_kafka_with if reader.machine in self._plan.kafka else self.read_with
            read(reader.machine, list(positions), positions)

        self._at(sim.loop.time() + fault.lasts_s, replace)
        return True

    def _pause_reader(self, fault: Fault) -> bool:
        sim, reader = self._cluster.sim, self._living(self.readers, fault)
        if reader is None:
            return False
        sim.pause(reader.machine)
        self._at(sim.loop.time() + fault.lasts_s, lambda: sim.resume(reader.machine))
        return True

    # ---- administrators ----------------------------------------------------------------------------------------------

    def _admin_machine(self) -> str:
        return self._process_on_new(ADMIN)

    def _process_on_new(self, kind: str) -> str:
        """The next machine of a kind."""
        self._processes[kind] += 1
        return f"{kind}{self._processes[kind]}"

    def _delete_records(self, fault: Fault) -> bool:
        name = TopicPartition.parsed(fault.target)
        replica = self._cluster.replica(self._cluster.leader_of(name), name)
        if replica is None:
            return False
        offset = -1 if fault.value >= 1 else int(replica.high_watermark * fault.value)
        machine = self._admin_machine()
        world = self._cluster.sim.of(machine)
        self._cluster.sim.spawn(machine, self._deleting(world, name, offset))
        return True

    async def _deleting(self, world: World, name: TopicPartition, offset: int) -> None:
        config = admin_config(self._cluster)
        try:
            async with AdminClient(config, world) as admin:
                low = await admin.delete_records({name: offset})
        except (OffsetOutOfRange, UnknownTopicOrPartition) as error:
            world.events("delete_records_refused", partition=str(name), error=error.name)
        except ProtocolError as error:
            world.events("delete_records_gave_up", partition=str(name), error=error.name)
        else:
            world.events("records_deleted", partition=str(name), low_watermark=low[name])

    def _topic_lives(self, fault: Fault) -> bool:
        is_read = fault.value % 1 != 0
        reader = LivesReader(self._cluster, self._admin_machine(), fault.target) if is_read else None
        self.lives.append(TopicLives(self._plan, self._cluster, self._admin_machine(), fault, reader))
        return True
