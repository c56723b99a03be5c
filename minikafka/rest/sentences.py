"""The state of a cluster, a partition and its replicas as sentences, each with its reason (DESIGN D9).

A reason is what the rule itself went by. Sentences of events are in ``minikafka/events.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from minikafka.broker.api.describe import LOADING
from minikafka.quorum.image import NO_DIR, BrokerImage, MetadataImage, PartitionImage
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire.messages import DescribedReplica, RemoteReplica, UnstableTransaction

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEVER_MS = 2**31 * 1000
"""A leader's word for *not since I began to lead*."""


def why_in_or_out(
    node: NodeId,
    image: MetadataImage,
    partition: PartitionImage,
    seen: DescribedReplica | None,
    left_because: str,
    own: DescribedReplica | None = None,
) -> str:
    """Why a replica is, or is not, in sync. ``seen``: what the leader knows; ``left_because``: what story tells;
    ``own``: what the replica reports of itself.
    """
    if node == partition.leader:
        return f"it leads epoch {partition.leader_epoch}"
    absent = _absence(node, image, own)
    remote = next((each for each in seen.remotes if each.broker_id == node), None) if seen is not None else None
    if node in partition.isr:
        return _why_in(node, absent, seen, remote)
    reason = absent or _why_out(node, seen, remote)
    return f"{reason}; it left the ISR because {left_because}" if left_because else reason


def _why_in(node: NodeId, absent: str, seen: DescribedReplica | None, remote: RemoteReplica | None) -> str:
    if absent:
        return f"{absent}, and is in the ISR still: the controller has not taken it out yet, or nobody else is left"
    if seen is None or remote is None:
        return "it is in sync by the metadata; the leader does not answer"
    if remote.log_end_offset < 0:
        return "it is in sync by the metadata; it has not fetched from this leader yet"
    lag = seen.log_end_offset - remote.log_end_offset
    within = remote.caught_up_ms_ago <= seen.lag_time_max_ms
    if lag <= 0 and (within or remote.caught_up_ms_ago >= NEVER_MS):
        return f"it has everything: its last fetch, {remote.last_fetch_ms_ago} ms ago, asked from the log's end"
    lag_text = f"it is {_records(lag)} behind, and had" if lag > 0 else "it had everything when it last fetched; it had"
    lag_text += f" caught up {remote.caught_up_ms_ago} ms ago"
    limit = f"replica.lag.time.max.ms={seen.lag_time_max_ms}"
    if within:
        return f"{lag_text}: within {limit}"
    proposed = seen.proposed_isr is not None and node not in seen.proposed_isr
    return f"{lag_text}, longer than {limit}: the leader " + ("has asked" if proposed else "asks") + " to let it go"


def _why_out(node: NodeId, seen: DescribedReplica | None, remote: RemoteReplica | None) -> str:
    if seen is None or remote is None:
        return "it lives; no leader tells how far it is"
    if remote.log_end_offset < 0:
        return f"it lives, and has not fetched from the leader of epoch {seen.leader_epoch} yet"
    if seen.proposed_isr is not None and node in seen.proposed_isr:
        return "it has caught up: the leader has asked the controller to let it in"
    have = f"it has everything below {remote.log_end_offset}"
    if seen.lag_time_max_ms < remote.caught_up_ms_ago < NEVER_MS:
        fetched = f"; last fetch: {remote.last_fetch_ms_ago} ms ago" if remote.last_fetch_ms_ago >= 0 else ""
        limit = f"replica.lag.time.max.ms={seen.lag_time_max_ms}"
        have += f", has not caught up for {remote.caught_up_ms_ago} ms (more than {limit}{fetched})"
    if remote.log_end_offset < seen.high_watermark:
        if 0 <= remote.last_fetch_ms_ago <= seen.lag_time_max_ms:
            have = f"it is catching up: {have}"
        return f"{have}, and comes in when it reaches the high watermark {seen.high_watermark}"
    if remote.log_end_offset < seen.epoch_start_offset:
        return f"{have}, and comes in when it reaches {seen.epoch_start_offset}, where epoch {seen.leader_epoch} begins"
    if not remote.may_join:
        return f"{have}; the leader waits for the registration of its present incarnation"
    return f"{have}: its next fetch brings it in"


def _absence(node: NodeId, image: MetadataImage, own: DescribedReplica | None = None) -> str:
    """Why a broker cannot be in an ISR or lead; empty if it can. ``own``: its report, None if it does not answer."""
    broker = image.brokers.get(node)
    if broker is None:
        return f"broker {node} is not registered"
    if broker.fenced and own is not None:
        if own.role == LOADING:
            return (
                f"broker {node} is loading: its log ends at {own.log_end_offset}, and the replica takes up its role "
                "when the broker has registered and has read the metadata"
            )
        return (
            f"broker {node} answers, but is fenced: its heartbeats do not reach the controller, or it has not caught "
            "up with the metadata since its start"
        )
    if broker.fenced:
        return f"broker {node} is fenced: it is down or silent, or has not caught up with the metadata since its start"
    return f"broker {node} is shutting down" if broker.in_controlled_shutdown else ""


def why_out_of_date(node: NodeId) -> str:
    """What to add to what the metadata of a broker says while that broker may not know the newest."""
    return f"broker {node} has no session with a controller, so this may be out of date"


def why_fenced_or_up(broker: BrokerImage, caution: str = "") -> str:
    """The state of a broker in the metadata. ``caution``: why the metadata may be out of date."""
    if caution:
        was = "fenced" if broker.fenced else "registered and not fenced"
        return (
            f"When last heard of, broker {broker.node_id} was {was}; {caution}. "
            "A controller needs a majority of the quorum's voters: they must run and reach each other."
        )
    if broker.fenced:
        return (
            f"The controller has fenced broker {broker.node_id}: it is down, silent or starting. "
            "It cannot lead a partition or be in an ISR."
        )
    if broker.in_controlled_shutdown:
        return f"Broker {broker.node_id} is shutting down: the controller moves its leaders to other brokers."
    return f"Broker {broker.node_id} is registered and sends heartbeats to the controller."


def _cautioned(summary: str, caution: str) -> str:
    return f"{caution[:1].upper()}{caution[1:]}: {summary}" if caution else summary


def cluster_summary(
    image: MetadataImage, partitions: Sequence[PartitionImage], under_min_isr: int, caution: str = ""
) -> str:
    """The health of a cluster with these partitions. ``caution``: why the metadata may be out of date."""
    up = sum(not each.fenced for each in image.brokers.values())
    offline = sum(each.leader == NO_NODE for each in partitions)
    under = sum(len(each.isr) < len(each.replicas) for each in partitions)
    return _cautioned(
        f"{up} of {len(image.brokers)} brokers are up. Partitions: {len(partitions)}; without a leader: {offline}; "
        f"below min ISR: {under_min_isr}; under-replicated: {under}.",
        caution,
    )


def partition_summary(name: TopicPartition, partition: PartitionImage, caution: str = "") -> str:
    """Leader, epoch and ISR of a partition. ``caution``: why the metadata may be out of date."""
    leader = "none" if partition.leader == NO_NODE else partition.leader
    isr, replicas = (",".join(map(str, nodes)) for nodes in (partition.isr, partition.replicas))
    return _cautioned(
        f"{name}: leader {leader}, epoch {partition.leader_epoch}, ISR {{{isr}}} of {{{replicas}}}.", caution
    )


def why_the_watermark(seen: DescribedReplica) -> str:
    """Why the high watermark stands where it stands, by the rule (S6, S9, S10)."""
    at = f"the high watermark is {seen.high_watermark}"
    if len(seen.isr) < seen.min_isr:
        return f"{at} and does not move: the ISR {list(seen.isr)} is smaller than min.insync.replicas={seen.min_isr}"
    if seen.high_watermark == seen.log_end_offset:
        return f"{at}, the log's end: every replica in the ISR has acknowledged all records"
    if waited_for := holding(seen):
        names = ", ".join(
            f"broker {each.broker_id} ("
            + (f"acknowledged up to {each.log_end_offset}" if each.log_end_offset >= 0 else "has not fetched yet")
            + ")"
            for each in waited_for
        )
        return (
            f"{at}, the log's end is {seen.log_end_offset}: the leader waits for {names} "
            f"to acknowledge offset {seen.high_watermark}"
        )
    if seen.acknowledged_end <= seen.high_watermark:
        return f"{at} of {seen.log_end_offset}: the leader has synced its own log up to {seen.acknowledged_end}"
    return f"{at} of {seen.log_end_offset}: it moves with the next fetch or append"


def holding(seen: DescribedReplica) -> list[RemoteReplica]:
    """The replicas whose log ends the high watermark waits for, while it is below the leader's."""
    return [each for each in seen.remotes if each.holds_watermark and each.log_end_offset <= seen.high_watermark]


def timestamp_text(timestamp_ms: int) -> str | None:
    """ISO 8601 in UTC; None for a record's timestamp that no calendar has, which its producer may set."""
    if timestamp_ms < 0:
        return None
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return None


def why_the_stable_offset(seen: DescribedReplica, unstable: UnstableTransaction | None) -> str:
    """Why the last stable offset, the end for ``read_committed``, is where it is."""
    at = f"the last stable offset is {seen.last_stable_offset}"
    if unstable is None:
        return f"{at}, the high watermark: no transaction is open below it"
    transaction = f"{at}: the transaction of producer {unstable.producer_id} began at offset {unstable.first_offset}"
    started_at = timestamp_text(unstable.started_ms)
    if started_at is not None:
        transaction += f" ({started_at})"
    if unstable.marker_offset < 0:
        return f"{transaction} and is open"
    return (
        f"{transaction}, and its marker at {unstable.marker_offset} is not committed: "
        f"the high watermark is {seen.high_watermark}"
    )


def _last_leader(node: NodeId, image: MetadataImage, partition: PartitionImage) -> str:
    broker = image.brokers.get(node)
    if broker is not None and broker.came_back_empty(partition):
        if NO_DIR in partition.last_known_dirs:
            return f"broker {node}, which led last, is back without the partition's folder, or with a damaged log"
        return f"broker {node}, which led last, is back with another data directory and leads again with the former one"
    return f"broker {node}, which led last, leads again when it is back"


def why_nobody_leads(image: MetadataImage, partition: PartitionImage) -> str:
    """Replicas that could lead, and what prevents each of them."""
    may = list(partition.isr) or list(partition.elr)
    if not may:
        return (
            "nobody leads: the ISR and the ELR are empty; "
            + "".join(f"{_last_leader(node, image, partition)}; " for node in partition.last_known_elr)
            + "an unclean election can make a replica lead that lost records"
        )
    kept = "; ".join(_absence(node, image) or f"broker {node} is about to be elected" for node in may)
    return f"nobody leads: only {may} may without losing records, and {kept}"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"
