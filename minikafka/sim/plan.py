"""A plan: everything that a run does, as data. A seed makes one; JSON keeps one; the shrinker cuts one down.

The fault budget (what a run must survive):

- ``fsync`` policy (``log.flush.interval.messages=1``): any number of crashes, pauses, cuts and power cuts, of all
  brokers at once too. Acknowledged records survive.
- ``page_cache`` policy (Kafka's default): the same, but a power cut happens only while every partition is whole and
  keeps a replica outside, else it is carried out as a kill -9 (``power_cut_spared``); and until all is whole again no
  other broker is killed or ended by its disk, it is stopped and resumed instead (``crash_spared``,
  ``fail_sync_spared``, ``disk_full_spared``). For the controller a kill -9 is no better than a power cut (KIP-966):
  were every replica's stop unclean, the last known leader is elected when it returns, with what its disk has kept.
- a sync that fails leaves pages that a later power cut turns into zeros, on a disk that says it is well: from then on
  the power of that machine is not cut, its process is killed instead (``power_cut_spared``).
- a power cut of a replica that no ISR needs (it is at most an eligible leader replica, KIP-966) may happen under any
  policy while the last member of each ISR lives; until all is whole again that member is not killed.
- a disk that is replaced by an empty one (``wipe``) counts as a power cut, whatever the policy, and happens to brokers
  that are no voters: a static quorum does not survive a voter that forgets its vote. Were it all that was left of an
  ISR, for the others stood still, an operator lets one of those lead: nothing may be lost by that.
- a topic with ``unclean.leader.election.enable`` may lose what it had when an unclean election takes place: its losses
  are named, not violations; so are those of records that were sent with acks=0 or acks=1 (``losses.py``).
- a bit that rots (``rot``) does so on one replica's disk, in what is committed and synced, while everything is whole;
  until an operator has put it right nobody is killed who has what that replica lacks, and nothing else happens to its
  disk. Never: bits rotten on every copy at once.

Rules for this file: it is data; ``seeds.py`` draws it, ``run.py`` carries it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from minikafka.errors import InvalidConfig

VERSION: Final = 1

VOTERS: Final = 3
"""Of every cluster; a fourth broker is none."""

FSYNC, PAGE_CACHE = "fsync", "page_cache"

CREW: Final = "crew"
"""The group of a plan that has one."""

CYCLE, AFTER, AUTO = "cycle", "after", "auto"
"""How members work; with each nothing is skipped.

- ``cycle``: read, process, commit, and only then ask for more
- ``after``: what is processed is committed every few polls, and before partitions are given up
- ``auto``: the consumer commits by itself what was processed before the present poll
"""

CLASSIC, CONSUMER = "classic", "consumer"
"""The protocols of groups: JoinGroup and SyncGroup, or ConsumerGroupHeartbeat (KIP-848)."""

MIGRATING: Final = "migrating"
"""A group whose members begin with the classic protocol, and change it while the others work."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong at ``at_s`` and is put right ``lasts_s`` later (virtual seconds); or what people do to
    a running cluster (``sim_clients.py``).
    """

    at_s: float
    kind: str
    target: str
    """In the words of ``minikafka/faults.py``: ``n2``, ``leader:orders-0``, a link ``n1>n2``; a client, partition."""
    lasts_s: float = 0.0
    value: float = 0.0
    """How strong, where that has a meaning (seconds)."""
    message: str = ""
    """Which messages a fault of messages strikes, in the words of ``message_faults.py``: ``Fetch answer``."""

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.2f} s" if self.lasts_s else ""
        value = f" ({self.value:g})" if self.value else ""
        message = f" [{self.message}]" if self.message else ""
        return f"t={self.at_s:.2f} {self.kind} {self.target}{message}{value}{lasts}"


def fault_at(at_s: float, kind: str, target: str, lasts_s: float = 0.0, value: float = 0.0, message: str = "") -> Fault:
    """Return a fault with times in whole milliseconds: people read and edit plans."""
    return Fault(round(at_s, 3), kind, target, round(lasts_s, 3), round(value, 4), message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One record that a producer sends."""

    at_s: float
    client: str
    topic: str
    partition: int
    key: str = ""
    """None if empty; see ``kafka_plans.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTopic:
    """A topic that exists from the start."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """One group: its members are machines ``w1``, ``w2`` and so on."""

    name: str = CREW
    topic: str = "orders"
    members: int = 2
    static: Sequence[str] = ()
    """Machines whose members are static: their instance id is the machine's name."""
    late: Mapping[str, float] = field(default_factory=dict)
    """Machines that join later, and when (virtual seconds)."""
    style: str = CYCLE
    work_s: float = 0.05
    """How long a member processes what one poll brings."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the consumers."""
    is_calm: bool = False
    """Nothing goes wrong: each record is processed exactly once."""
    protocol: str = CLASSIC

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> PlannedGroup:
        """As it stands in JSON."""
        return cls(**{**row, "static": tuple(row["static"])})

    @property
    def machines(self) -> tuple[str, ...]:
        """Of the members."""
        return tuple(f"w{number}" for number in range(1, self.members + 1))

    @property
    def has_exactly_once(self) -> bool:
        """Return True if a member commits what it has processed before another member may receive it."""
        return self.is_calm and self.style != AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of one run."""

    seed: int
    brokers: int = 3
    voters: int = VOTERS
    policy: str = PAGE_CACHE
    settings: Mapping[str, str] = field(default_factory=dict)
    client_settings: Mapping[str, int | str] = field(default_factory=dict)
    """Of producers, and in part of consumers; batches of a partition are sent one by one unless it says otherwise."""
    clients: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    """Producers with settings of their own beside those: ``{"p2": {"acks": 1}}``."""
    kafka: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    """Clients of Kafka's protocol by machine, with their settings beside those: ``{"k1": {"acks": -1, "in_flight": 5,
    "produce": 13}, "kr1": {"reads": 1, "fetch": 12}}``; versions of APIs are Kafka's. Operations say what they send."""
    transactors: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    """Transactional producers by machine, which is their transactional id too, with settings of their own."""
    loops: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    """Processes that read, transform and write in transactions, in the same way (``looper.py``)."""
    skew_s: Mapping[str, float] = field(default_factory=dict)
    """How far the calendars of nodes are ahead."""
    consumers: int = 0
    """Readers that use the production consumer."""
    groups: tuple[PlannedGroup, ...] = ()
    """Consumer groups (``group_workload.py``)."""
    topics: tuple[PlannedTopic, ...] = (PlannedTopic(name="orders", partitions=1, replication_factor=3),)
    link: Mapping[str, float] = field(default_factory=dict)
    """Of every link: delay_mean_s, loss, reset, duplicate."""
    sync_mean_s: float = 0.002
    readers: int = 1
    pace: float = 1.0
    """How many times longer the readers pause than they would: what they wait is no setting."""
    duration_s: float = 10.0
    """Of the safety phase."""
    faults: tuple[Fault, ...] = ()
    operations: tuple[Operation, ...] = ()
    within_budget: bool = True
    """False: a power cut happens whatever it costs; then invariants forgive lost records and the checker names them."""
    fifo: bool = False
    """Run ready nodes in plain FIFO order instead of a seeded one: the trace that reads best."""

    def to_json(self) -> str:
        """A readable text: one fault, one operation a line."""
        row = {"version": VERSION, **asdict(self)}
        lists = {name: row.pop(name) for name in ("faults", "operations")}
        head = json.dumps(row, indent=1)[:-2]
        parts = [
            f' "{name}": [\n' + ",\n".join("  " + json.dumps(each) for each in items) + "\n ]"
            for name, items in lists.items()
        ]
        return head + ",\n" + ",\n".join(parts) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what :meth:`to_json` wrote. ValueError for another version."""
        row: Any = json.loads(text)
        if not isinstance(row, dict) or row.pop("version", None) != VERSION:
            raise ValueError(f"a plan of version {VERSION} is needed")
        row["topics"] = tuple(PlannedTopic(**each) for each in row["topics"])
        row["groups"] = tuple(PlannedGroup.from_row(each) for each in row.get("groups", ()))
        row["faults"] = tuple(Fault(**each) for each in row["faults"])
        row["operations"] = tuple(Operation(**each) for each in row["operations"])
        return cls(**row)

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan of a file. OSError; InvalidConfig for a file of something else."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else error
            raise InvalidConfig(f"{path} is no plan of a run: {why}") from error

    @property
    def producer_settings(self) -> dict[str, int | str]:
        """Settings of producers of ours. Plans that are older than pipelined batches do without them."""
        return {"max_in_flight_batches": 1, **self.client_settings}

    def with_(self, **changes: Any) -> Plan:
        """A changed copy."""
        return replace(self, **changes)

    def with_faults(self, faults: Iterable[Fault]) -> Plan:
        """A copy with more faults."""
        return replace(self, faults=tuple(sorted((*self.faults, *faults), key=lambda fault: fault.at_s)))
