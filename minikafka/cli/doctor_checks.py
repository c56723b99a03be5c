"""What ``minikafka doctor`` looks for, as pure functions of what it has gathered.

A finding says where, what, and what to do. ``error``: something does not work, or soon will not; ``warning``: one more
loss, or one wrong assumption, and something will not; ``note``: worth knowing. Rules for this file: no question to
anybody, no clock; each check yields findings and knows nothing of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from minikafka.cli.kafka_layout import ids, replication_factor
from minikafka.replication.high_watermark import effective_min_isr
from minikafka.types import NO_NODE, Address, NodeId
from minikafka.wire.messages import DescribedTopic, DescribeQuorumResponse

ERROR, WARNING, NOTE = "error", "warning", "note"

# Below this a busy broker fills its disk within minutes; the alert in docs/operations.md has the same number.
FREE_BYTES_LOW = 5_000_000_000
FREE_BYTES_NONE = 500_000_000
FDS_LOW = 4096
"""A broker holds a file per segment (three with its indexes) and a connection per client."""
FDS_USED_HIGH = 0.8
SKEW_MS_MAX = 1000
"""Retention and look-ups by time go by clocks; beyond this they go wrong."""


NAMED_MAX = 6
"""Partitions that are named; of more it is said how many they are."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    level: str
    check: str
    where: str
    what: str
    do: str


@dataclass(slots=True)
class BrokerFacts:
    """What one broker reported, or why it did not."""

    node_id: NodeId
    address: Address
    unreachable: str = ""
    """Why its advertised address does not answer; empty: it does."""
    answers_as: NodeId | None = None
    """The node that answers there."""
    version: str = ""
    skew_ms: int | None = None
    """Its clock minus this machine's; None: not known."""
    skew_error_ms: int = 0
    """How far that may be wrong: half of the time that the question took."""
    ready: str = ""
    """What it waits for; empty: it is ready."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterFacts:
    """All that was gathered."""

    own_version: str
    brokers: list[BrokerFacts]
    quorum: DescribeQuorumResponse | None = None
    quorum_silent: str = ""
    """Why no broker described the quorum."""
    topics: list[DescribedTopic] = field(default_factory=list)
    topic_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Effective settings by topic."""


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """A data directory on this machine."""

    path: str
    writable: str = ""
    """Why nothing can be written there; empty: it can."""
    free_bytes: int = -1
    identity: str = ""
    """Why its meta.properties does not fit; empty: it does, or there is none yet."""
    fd_limit: int = -1


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """Everything that is to be said about a cluster."""
    for broker in facts.brokers:
        yield from _broker(broker)
    yield from _versions(facts)
    yield from _clocks(facts)
    yield from _settings(facts)
    yield from _quorum(facts)
    living = [each.node_id for each in facts.brokers if not each.unreachable]
    for topic in facts.topics:
        yield from _topic(topic, facts.topic_settings.get(topic.topic, {}), living)


def _broker(broker: BrokerFacts) -> Iterator[Finding]:
    where = f"broker {broker.node_id}"
    if broker.unreachable:
        yield Finding(
            ERROR,
            "advertised",
            where,
            f"nobody answers at its advertised address {broker.address}: {broker.unreachable}",
            "start it, or set advertised.listeners to an address that clients can reach from here",
        )
        return
    if broker.answers_as is not None and broker.answers_as != broker.node_id:
        yield Finding(
            ERROR,
            "advertised",
            where,
            f"at its advertised address {broker.address} broker {broker.answers_as} answers",
            "give every broker an advertised.listeners of its own",
        )
    if broker.ready:
        yield Finding(ERROR, "ready", where, f"not ready: {broker.ready}", "see its log; `minikafka quorum describe`")
    free = broker.metrics.get("mk_log_dir_free_bytes", -1)
    yield from _free(where, int(free))
    yield from _descriptors(where, broker.metrics.get("process_open_fds", 0), broker.metrics.get("process_max_fds", -1))
    lag = broker.metrics.get("mk_queued_request_bytes", 0)
    limit = int(broker.settings.get("queued.max.request.bytes", 0))
    if limit and lag > FDS_USED_HIGH * limit:
        yield Finding(
            WARNING,
            "load",
            where,
            f"{int(lag)} bytes of requests wait, {limit} are allowed (queued.max.request.bytes)",
            "more brokers, or fewer and larger requests",
        )


def _free(where: str, free: int) -> Iterator[Finding]:
    if 0 <= free < FREE_BYTES_LOW:
        level = ERROR if free < FREE_BYTES_NONE else WARNING
        yield Finding(
            level,
            "disk",
            where,
            f"{free / 1e9:.1f} GB are free on its disk; a broker whose disk is full leaves",
            "shorten retention.ms or retention.bytes (`minikafka config alter`), or give it more",
        )


def _descriptors(where: str, used: float, limit: float) -> Iterator[Finding]:
    if 0 < limit < FDS_LOW:
        yield Finding(
            WARNING,
            "fds",
            where,
            f"it may open {int(limit)} files and connections; each segment needs three, each client one",
            f"raise the limit (ulimit -n, LimitNOFILE) to {FDS_LOW} or more",
        )
    if limit > 0 and used > FDS_USED_HIGH * limit:
        yield Finding(
            ERROR,
            "fds",
            where,
            f"{int(used)} of {int(limit)} file descriptors are in use",
            "raise the limit (ulimit -n, LimitNOFILE), and restart it",
        )


def _versions(facts: ClusterFacts) -> Iterator[Finding]:
    versions = {each.node_id: each.version for each in facts.brokers if each.version}
    if len(set(versions.values())) > 1:
        who = ", ".join(f"{node} has {version}" for node, version in sorted(versions.items()))
        yield Finding(WARNING, "versions", "cluster", f"brokers differ: {who}", "bring all to the newest version")
    other = sorted({version for version in versions.values() if version != facts.own_version})
    if other and len(set(versions.values())) == 1:
        yield Finding(
            NOTE,
            "versions",
            "cluster",
            f"the brokers have {other[0]}, this command {facts.own_version}",
            "use the command of the brokers' version",
        )


def _clocks(facts: ClusterFacts) -> Iterator[Finding]:
    known = [each for each in facts.brokers if each.skew_ms is not None]
    for broker in known:
        skew = broker.skew_ms or 0
        if abs(skew) - broker.skew_error_ms > SKEW_MS_MAX:
            yield Finding(
                WARNING,
                "clock",
                f"broker {broker.node_id}",
                f"its clock is {abs(skew)} ms {'ahead of' if skew > 0 else 'behind'} this machine's",
                "let it synchronize its clock (NTP): retention and look-ups by time go by it",
            )


AGREED = ("min.insync.replicas", "unclean.leader.election.enable", "cluster.id")
"""Settings that brokers must agree on: the controller decides by its own, a leader by its own."""


def _settings(facts: ClusterFacts) -> Iterator[Finding]:
    for name in AGREED:
        values = {each.node_id: each.settings[name] for each in facts.brokers if name in each.settings}
        if len(set(values.values())) > 1:
            who = ", ".join(f"{node} has {value}" for node, value in sorted(values.items()))
            yield Finding(
                ERROR,
                "settings",
                "cluster",
                f"brokers differ in {name}: {who}",
                f"give all the same, or once for all: `minikafka config alter --all-brokers --set {name}=...`",
            )


def _quorum(facts: ClusterFacts) -> Iterator[Finding]:
    quorum = facts.quorum
    if quorum is None:
        yield Finding(
            ERROR,
            "quorum",
            "cluster",
            f"nobody leads the metadata quorum: {facts.quorum_silent}",
            "see that a majority of controller.quorum.voters runs and that they reach each other",
        )
        return
    silent = [each.replica_id for each in quorum.voters if each.replica_id != quorum.leader_id and each.lag < 0]
    majority = len(quorum.voters) // 2 + 1
    if silent and len(quorum.voters) - len(silent) <= majority:
        yield Finding(
            WARNING,
            "quorum",
            "cluster",
            f"voters {ids(silent)} of {len(quorum.voters)} are silent: one more, and nothing can be decided",
            "bring them back",
        )
    if len(quorum.voters) == 1 and len(facts.brokers) > 1:
        yield Finding(
            WARNING,
            "quorum",
            "cluster",
            f"one voter, {ids(each.replica_id for each in quorum.voters)}: when it is away nothing can be decided",
            "three voters survive the loss of one (controller.quorum.voters, when a cluster is made)",
        )


def _topic(topic: DescribedTopic, settings: Mapping[str, str], living: list[NodeId]) -> Iterator[Finding]:
    troubles: dict[str, list[int]] = {}
    minimum = int(settings.get("min.insync.replicas", 1))
    for each in topic.partitions:
        needed = effective_min_isr(minimum, each.replicas, each.adding_replicas)
        in_sync = len(each.isr)
        if each.leader == NO_NODE or each.leader not in living:
            troubles.setdefault("offline", []).append(each.partition)
        elif in_sync < needed:
            troubles.setdefault("under", []).append(each.partition)
        elif in_sync == needed and replication_factor(each) > 1:
            troubles.setdefault("at", []).append(each.partition)
        elif in_sync < replication_factor(each):
            troubles.setdefault("behind", []).append(each.partition)
        if each.leader in living and each.leader != each.replicas[0] and each.replicas[0] in each.isr:
            troubles.setdefault("away", []).append(each.partition)
        if each.adding_replicas or each.removing_replicas:
            troubles.setdefault("moving", []).append(each.partition)
    yield from _told(topic, minimum, troubles)
    factors = Counter(replication_factor(each) for each in topic.partitions)
    if factors and max(factors) == 1 and len(living) > 1:
        yield Finding(
            NOTE,
            "replication",
            topic.topic,
            "each partition has one copy: with its broker its records are away",
            "`minikafka reassign generate --brokers ... --replication-factor 3`",
        )


_TROUBLES = {
    "offline": (ERROR, "min-isr", "has no living leader", "bring back a broker of its last in-sync replicas"),
    "under": (ERROR, "min-isr", "refuses acks=all: its ISR is below min.insync.replicas", "bring replicas back"),
    "at": (
        WARNING,
        "min-isr",
        "would refuse acks=all after one more loss: its ISR is at min.insync.replicas",
        "bring replicas back, or see that min.insync.replicas is below the replication factor",
    ),
    "behind": (WARNING, "replication", "has replicas out of sync", "see the brokers that are missing: log, disk"),
    "away": (NOTE, "leaders", "is not led by its preferred replica", "`minikafka elect preferred --all`"),
    "moving": (NOTE, "reassignment", "is being reassigned", "`minikafka reassign status`"),
}


def _told(topic: DescribedTopic, minimum: int, troubles: Mapping[str, list[int]]) -> Iterator[Finding]:
    for kind, (level, check, what, do) in _TROUBLES.items():
        numbers = troubles.get(kind)
        if numbers:
            many = len(numbers) > NAMED_MAX
            where = f"{topic.topic}-{ids(numbers[:NAMED_MAX])}" + (f",... ({len(numbers)} partitions)" if many else "")
            detail = f" ({minimum})" if kind in {"under", "at"} else ""
            yield Finding(level, check, where, what + detail, do)


def directory_findings(facts: DirectoryFacts) -> Iterator[Finding]:
    """Everything that is to be said about a data directory on this machine."""
    if facts.writable:
        what = f"nothing can be written there: {facts.writable}"
        yield Finding(ERROR, "disk", facts.path, what, "own it, or choose other log.dirs")
    if facts.identity:
        yield Finding(ERROR, "data", facts.path, facts.identity, "see docs/operations.md, data directories")
    yield from _free(facts.path, facts.free_bytes)
    yield from _descriptors(facts.path, 0, facts.fd_limit)
