"""What ``minikafka doctor`` looks for, as pure functions of the facts that it has gathered.

A finding says where, what, and what to do. ``error``: something does not work, or soon will not; ``warning``: one more
loss, or one wrong assumption, and something will not; ``note``: worth knowing.

:func:`findings` judges a cluster. :func:`security_findings` judges the security of brokers: listeners, certificates,
administrators, ACLs, users; :func:`security_of` gathers the facts of one broker's settings and of the files that they
name on this machine.

Rules for this file: no request, no clock; each check yields findings and knows nothing of the others.
"""

from __future__ import annotations

import ssl
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from minikafka.addresses import SASL_PROTOCOLS, TLS_PROTOCOLS, is_loopback
from minikafka.cli.kafka_layout import ids, replication_factor
from minikafka.config import BrokerConfig, table
from minikafka.config.setting import parsed_value
from minikafka.errors import InvalidConfig, in_words
from minikafka.hosting.secured import certificate_folder
from minikafka.replication.high_watermark import effective_min_isr
from minikafka.security.scram import ITERATIONS_DEFAULT
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


VOTER_SILENT_MS = 10_000
"""A voter that has not fetched for so long is down or cut off: a living one fetches twice a second."""

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


@dataclass(slots=True, kw_only=True)
class AccessFacts:
    """The access control lists of a cluster."""

    acl_count: int | None = None
    """None: not known, or there is no authorizer."""
    iterations: Mapping[str, Mapping[str, int]] | None = None
    """PBKDF2 iterations by user and mechanism; None: not known."""


@dataclass(slots=True)
class ClusterFacts:
    """All that was gathered."""

    own_version: str
    brokers: list[BrokerFacts]
    quorum: DescribeQuorumResponse | None = None
    quorum_silent: str = ""
    """Why no broker described the quorum."""
    denied: list[str] = field(default_factory=list)
    """What this client may not look at."""
    topics: list[DescribedTopic] = field(default_factory=list)
    topic_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Effective settings by topic."""
    security: list[SecurityFacts] = field(default_factory=list)
    """Of the brokers whose settings are known."""
    access: AccessFacts = field(default_factory=AccessFacts)


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """A data directory on this machine."""

    path: str
    writable: str = ""
    """Why nothing can be written there; empty: it can."""
    ignores_case: bool = False
    mode: int = 0
    """Permissions of a file that was made with 0600."""
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
    for each in facts.security:
        yield from security_findings(each)
    yield from access_findings(facts.access)


def _broker(broker: BrokerFacts) -> Iterator[Finding]:
    where = f"broker {broker.node_id}"
    if broker.unreachable:
        what = f"nobody answers at its advertised address {broker.address}: {broker.unreachable}"
        do = "start it, or set advertised.listeners to an address that clients can reach from here"
        yield Finding(ERROR, "advertised", where, what, do)
        return
    if broker.answers_as is not None and broker.answers_as != broker.node_id:
        what = f"at its advertised address {broker.address} broker {broker.answers_as} answers"
        do = "give every broker an advertised.listeners of its own"
        yield Finding(ERROR, "advertised", where, what, do)
    if broker.ready:
        yield Finding(ERROR, "ready", where, f"not ready: {broker.ready}", "see its log; `minikafka quorum describe`")
    free = broker.metrics.get("mk_log_dir_free_bytes", -1)
    yield from _free(where, int(free))
    yield from _descriptors(where, broker.metrics.get("process_open_fds", 0), broker.metrics.get("process_max_fds", -1))
    lag = broker.metrics.get("mk_queued_request_bytes", 0)
    limit = int(broker.settings.get("queued.max.request.bytes", 0))
    if limit and lag > FDS_USED_HIGH * limit:
        what = f"{int(lag)} bytes of requests wait, {limit} are allowed (queued.max.request.bytes)"
        do = "more brokers, or fewer and larger requests"
        yield Finding(WARNING, "load", where, what, do)


def _free(where: str, free: int) -> Iterator[Finding]:
    if 0 <= free < FREE_BYTES_LOW:
        level = ERROR if free < FREE_BYTES_NONE else WARNING
        what = f"{free / 1e9:.1f} GB are free on its disk; a broker whose disk is full leaves"
        do = "shorten retention.ms or retention.bytes (`minikafka config alter`), or give it more"
        yield Finding(level, "disk", where, what, do)


def _descriptors(where: str, used: float, limit: float) -> Iterator[Finding]:
    if 0 < limit < FDS_LOW:
        what = f"it may open {int(limit)} files and connections; each segment needs three, each client one"
        do = f"raise the limit (ulimit -n, LimitNOFILE) to {FDS_LOW} or more"
        yield Finding(WARNING, "fds", where, what, do)
    if limit > 0 and used > FDS_USED_HIGH * limit:
        what = f"{int(used)} of {int(limit)} file descriptors are in use"
        do = "raise the limit (ulimit -n, LimitNOFILE), and restart it"
        yield Finding(ERROR, "fds", where, what, do)


def _versions(facts: ClusterFacts) -> Iterator[Finding]:
    versions = {each.node_id: each.version for each in facts.brokers if each.version}
    if len(set(versions.values())) > 1:
        who = ", ".join(f"{node} has {version}" for node, version in sorted(versions.items()))
        yield Finding(WARNING, "versions", "cluster", f"brokers differ: {who}", "bring all to the newest version")
    other = sorted({version for version in versions.values() if version != facts.own_version})
    if other and len(set(versions.values())) == 1:
        what = f"the brokers have {other[0]}, this command {facts.own_version}"
        do = "use the command of the brokers' version"
        yield Finding(NOTE, "versions", "cluster", what, do)


def _clocks(facts: ClusterFacts) -> Iterator[Finding]:
    known = [each for each in facts.brokers if each.skew_ms is not None]
    for broker in known:
        skew = broker.skew_ms or 0
        if abs(skew) - broker.skew_error_ms > SKEW_MS_MAX:
            what = f"its clock is {abs(skew)} ms {'ahead of' if skew > 0 else 'behind'} this machine's"
            do = "let it synchronize its clock (NTP): retention and look-ups by time go by it"
            yield Finding(WARNING, "clock", f"broker {broker.node_id}", what, do)


AGREED = ("min.insync.replicas", "unclean.leader.election.enable", "cluster.id")
"""Settings that brokers must agree on: the controller decides by its own, a leader by its own."""


def _settings(facts: ClusterFacts) -> Iterator[Finding]:
    for name in AGREED:
        values = {each.node_id: each.settings[name] for each in facts.brokers if name in each.settings}
        if len(set(values.values())) > 1:
            who = ", ".join(f"{node} has {value}" for node, value in sorted(values.items()))
            what = f"brokers differ in {name}: {who}"
            do = f"give all the same, or once for all: `minikafka config alter --all-brokers --set {name}=...`"
            yield Finding(ERROR, "settings", "cluster", what, do)


def _quorum(facts: ClusterFacts) -> Iterator[Finding]:
    quorum = facts.quorum
    if facts.denied:
        what = f"not all could be looked at: {' '.join(facts.denied)}"
        do = "log in as a super user, or as one who may DESCRIBE and DESCRIBE_CONFIGS the cluster and all topics"
        yield Finding(ERROR, "access", "cluster", what, do)
    if quorum is None and facts.denied:
        return
    if quorum is None:
        what = f"nobody leads the metadata quorum: {facts.quorum_silent}"
        do = "see that a majority of controller.quorum.voters runs and that they reach each other"
        yield Finding(ERROR, "quorum", "cluster", what, do)
        return
    silent = [
        each.replica_id
        for each in quorum.voters
        if each.replica_id != quorum.leader_id and (each.lag < 0 or each.last_fetch_ms_ago > VOTER_SILENT_MS)
    ]
    majority = len(quorum.voters) // 2 + 1
    if silent and len(quorum.voters) - len(silent) <= majority:
        what = f"voters {ids(silent)} of {len(quorum.voters)} are silent: one more, and nothing can be decided"
        do = "bring them back"
        yield Finding(WARNING, "quorum", "cluster", what, do)
    if len(quorum.voters) == 1 and len(facts.brokers) > 1:
        what = f"one voter, {ids(each.replica_id for each in quorum.voters)}: when it is away nothing can be decided"
        do = "three voters survive the loss of one (controller.quorum.voters, when a cluster is made)"
        yield Finding(WARNING, "quorum", "cluster", what, do)


def _topic(topic: DescribedTopic, settings: Mapping[str, str], living: list[NodeId]) -> Iterator[Finding]:
    troubles: dict[str, list[int]] = {}
    minimum = int(settings.get("min.insync.replicas", 1))
    minimums: dict[int, int] = {}
    for each in topic.partitions:
        needed = minimums[each.partition] = effective_min_isr(minimum, each.replicas, each.adding_replicas)
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
    yield from _trouble_findings(topic, minimum, minimums, troubles)
    factors = Counter(replication_factor(each) for each in topic.partitions)
    if factors and max(factors) == 1 and len(living) > 1:
        what = "each partition has one replica: while its broker is down, its records cannot be read"
        do = "`minikafka reassign generate --brokers ... --replication-factor 3`"
        yield Finding(NOTE, "replication", topic.topic, what, do)


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


def _trouble_findings(
    topic: DescribedTopic, minimum: int, minimums: Mapping[int, int], troubles: Mapping[str, list[int]]
) -> Iterator[Finding]:
    """``minimums``: what counts in each partition, never more than its replicas, where ``minimum`` is configured."""
    for kind, (level, check, what, do) in _TROUBLES.items():
        numbers = troubles.get(kind)
        if numbers:
            many = len(numbers) > NAMED_MAX
            where = f"{topic.topic}-{ids(numbers[:NAMED_MAX])}" + (f",... ({len(numbers)} partitions)" if many else "")
            effective = {minimums[each] for each in numbers}
            which = f"{minimum}, in effect {ids(sorted(effective))}" if effective != {minimum} else f"{minimum}"
            detail = f" ({which})" if kind in {"under", "at"} else ""
            yield Finding(level, check, where, what + detail, do)


def directory_findings(facts: DirectoryFacts) -> Iterator[Finding]:
    """Everything that is to be said about a data directory on this machine."""
    if facts.writable:
        what = f"nothing can be written there: {facts.writable}"
        yield Finding(ERROR, "disk", facts.path, what, "own it, or choose other log.dirs")
    if facts.ignores_case:
        what = "its file system ignores case: topics whose names differ only in case are refused in the whole cluster"
        yield Finding(NOTE, "disk", facts.path, what, "see docs/operations.md, which file systems")
    if facts.mode & OTHERS:
        what = f"its file system ignores permissions: all users can read records ({facts.mode:04o})"
        yield Finding(WARNING, "disk", facts.path, what, "mount it with a umask of 077, or choose other log.dirs")
    if facts.identity:
        yield Finding(ERROR, "data", facts.path, facts.identity, "see docs/operations.md, data directories")
    yield from _free(facts.path, facts.free_bytes)
    yield from _descriptors(facts.path, 0, facts.fd_limit)


DAY_S = 86_400
DAYS_LOW = 30
"""A certificate that ends sooner is a warning: a new one takes an order, and a round through all brokers."""

OTHERS = 0o007
"""Permissions of users that are neither a file's owner nor in its group."""

SETTINGS = (
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "controller.listener.names",
    "authorizer.class.name",
    "super.users",
    "ssl.client.auth",
)
"""Names of the settings by which a broker is judged that runs elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFacts:
    """A PEM file that a setting names, or a certificate that a broker has shown (``path`` empty)."""

    path: str = ""
    setting: str = ""
    trouble: str = ""
    """Why it cannot be used; empty: it can."""
    seconds_left: float | None = None
    """Until it ends; None: not known."""
    hosts: frozenset[str] | None = None
    """Names and addresses that it is for; None: not known, or of no interest."""
    mode: int = 0
    has_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityFacts:
    """One broker."""

    where: str
    settings: BrokerConfig
    """Not checked as a whole: of a broker elsewhere only SETTINGS are known."""
    certificates: tuple[CertificateFacts, ...] = ()


def security_findings(facts: SecurityFacts) -> Iterator[Finding]:
    """All findings on one broker."""
    yield from _listeners(facts)
    names = _called_by(facts.settings)
    for each in facts.certificates:
        yield from _certificate(facts.where, each, names)
    config = facts.settings
    if config.authorizer_class_name and not config.super_users.strip():
        what = "authorizer.class.name is set and super.users is empty: nobody can change ACLs if one is wrong"
        do = "set super.users to the principals of administrators, such as User:admin"
        yield Finding(WARNING, "super-users", facts.where, what, do)


def _listeners(facts: SecurityFacts) -> Iterator[Finding]:
    config = facts.settings
    for name, address in config.all_listeners:
        if is_loopback(address.host):
            continue
        protocol = config.protocol_of(name)
        place = f"listener {name} ({address}, {protocol})"
        if protocol not in TLS_PROTOCOLS:
            what = f"{place} is in plain text beyond loopback: the network reads and changes everything"
            secure = "SASL_SSL" if protocol in SASL_PROTOCOLS else "SSL or SASL_SSL"
            do = f"use {secure} in listener.security.protocol.map, or listen on 127.0.0.1"
            yield Finding(WARNING, "listeners", facts.where, what, do)
        if protocol not in SASL_PROTOCOLS and not (protocol in TLS_PROTOCOLS and config.ssl_client_auth == "required"):
            what = f"{place} serves clients that it does not know"
            do = "set ssl.client.auth=required, or use SASL_SSL in listener.security.protocol.map"
            yield Finding(WARNING, "listeners", facts.where, what, do)
        if not config.authorizer_class_name:
            what = f"{place} lets every client do everything: there is no authorizer"
            do = "set authorizer.class.name and super.users (docs/security.md)"
            yield Finding(WARNING, "listeners", facts.where, what, do)


def _called_by(config: BrokerConfig) -> frozenset[str]:
    """Names by which clients and brokers call the TLS listeners, and which certificates must therefore have."""
    names = set(config.tls_listeners)
    advertised = config.all_advertised
    found = {advertised[name].host for name in names if name in advertised}
    found |= {
        each.address.host
        for each in config.all_listeners
        if each.name in names and each.name not in advertised and each.address.host not in {"0.0.0.0", "::"}  # noqa: S104 - compared
    }
    return frozenset(found)


def _certificate(where: str, facts: CertificateFacts, called_by: frozenset[str]) -> Iterator[Finding]:
    certificate = f"{facts.setting}={facts.path}" if facts.path else "the certificate that it shows"
    if facts.trouble:
        what, do = f"{certificate}: {facts.trouble}", f"give {facts.setting} a PEM file"
        yield Finding(ERROR, "certificates", where, what, do)
        return
    if facts.has_key and facts.mode & OTHERS:
        what = f"{certificate}: every user of the machine may access the private key, so the broker does not start"
        do = f"chmod o-rwx {facts.path}"
        yield Finding(ERROR, "certificates", where, what, do)
    left = facts.seconds_left
    if left is not None and left <= DAYS_LOW * DAY_S:
        what = f"{certificate} {'has expired' if left <= 0 else f'expires in {left / DAY_S:.0f} days'}"
        do = "replace the file (`minikafka certs broker NAME ... --force`); brokers that run read it within 10 s"
        yield Finding(ERROR if left <= 0 else WARNING, "certificates", where, what, do)
    missing = sorted(called_by - facts.hosts) if facts.hosts is not None else []
    if missing:
        what = f"{certificate} is not for {', '.join(missing)}, by which the broker is called: clients refuse it"
        hosts = " ".join(f"--host {each}" for each in missing)
        do = f"make it for all names: `minikafka certs broker NAME {hosts} ... --force`"
        yield Finding(ERROR, "certificates", where, what, do)


def access_findings(facts: AccessFacts) -> Iterator[Finding]:
    """All findings on ACLs and users."""
    if facts.acl_count == 0:
        what = "an authorizer is on and there are no ACLs: super users may do everything, all others nothing"
        do = "`minikafka acls add --allow-principal User:NAME --producer --topic ...`"
        yield Finding(WARNING, "acls", "cluster", what, do)
    for user, mechanisms in sorted((facts.iterations or {}).items()):
        weak = {name: count for name, count in mechanisms.items() if count < ITERATIONS_DEFAULT}
        if weak:
            users = ", ".join(f"{name} with {count}" for name, count in sorted(weak.items()))
            what = f"{users} iterations: with a copy of the metadata log a weak password is guessed sooner"
            do = f"`minikafka users add {user}` sets the password again, with {ITERATIONS_DEFAULT}"
            yield Finding(NOTE, "users", f"user {user}", what, do)


# ---- gathering -------------------------------------------------------------------------------------------------------


def security_of(where: str, config: BrokerConfig) -> SecurityFacts:
    """The facts of a broker on this machine: its settings and their files."""
    certificates = []
    if config.tls_listeners:
        certificates.append(_file("ssl.keystore.location", config.ssl_keystore_location, has_key=True))
        if config.ssl_truststore_location:
            certificates.append(_file("ssl.truststore.location", config.ssl_truststore_location, has_key=False))
    return SecurityFacts(where=where, settings=config, certificates=tuple(certificates))


def settings_elsewhere(settings: Mapping[str, str]) -> BrokerConfig:
    """What is known of a broker that runs elsewhere, for :class:`SecurityFacts`; other settings have their defaults."""
    known = table(BrokerConfig)
    return BrokerConfig(**{known[name].name: parsed_value(known[name], settings[name]) for name in SETTINGS})


def shown_certificate(not_after: str) -> CertificateFacts:
    """Of a certificate that a broker has shown: ``notAfter`` as Python's ``ssl`` gives it."""
    return CertificateFacts(seconds_left=ssl.cert_time_to_seconds(not_after) - time.time())


def _file(setting: str, path: str, *, has_key: bool) -> CertificateFacts:
    facts = CertificateFacts(path=path, setting=setting, has_key=has_key)
    try:
        facts = replace(facts, mode=Path(path).stat().st_mode)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if has_key:
            # Without a password OpenSSL would ask for that of an encrypted key on the terminal.
            context.load_cert_chain(path, password="")
        else:
            context.load_verify_locations(path)
    except ssl.SSLError as error:
        wanted = "a private key that fits its certificate" if has_key else "CA certificates"
        return replace(facts, trouble=f"{error.reason or 'not PEM'}; {wanted} in PEM is needed")
    except OSError as error:
        return replace(facts, trouble=f"cannot be read: {in_words(error)}")
    try:
        made = certificate_folder(Path(path).parent).read(Path(path))
    except InvalidConfig:  # without the package cryptography the rest is not known
        return facts
    return replace(
        facts, seconds_left=made.not_after.timestamp() - time.time(), hosts=frozenset(made.hosts) if has_key else None
    )
