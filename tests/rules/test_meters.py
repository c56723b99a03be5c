"""What a broker counts: histograms and their recent past, requests by kind, and counters that events feed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.broker.dispatch import metered_as
from minikafka.broker.meters import (
    BOUNDS_NS,
    VISIT,
    EventCounts,
    Histogram,
    PurgatoryMeter,
    RequestMeter,
    RequestMeters,
    Traffic,
    Visit,
    exported_buckets,
)
from minikafka.config import TopicConfig
from minikafka.hosting.local_broker import free_bytes
from minikafka.lab.node import LabDisk
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import HOT_EVENTS, Unheard
from minikafka.rest.metrics.families import WINDOW_S, Windows
from minikafka.types import METADATA_TOPIC
from minikafka.wire.codec import find_api
from minikafka.wire.messages import FetchPartition, FetchRequest, MetadataRequest
from tests.rules.replication_kit import TP, Recorded, batch, follower

durations = st.lists(st.integers(0, 100 * 10**9), min_size=1, max_size=200)


def seen(*values: int) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    return histogram


@given(durations, st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_the_value_at_that_rank(values: list[int], quantile: float):
    """HTTP-CLI-CONVENTIONS 4.4: quantiles are estimates, and it is known how far off: one bucket, a quarter at most."""
    told = seen(*values).quantile_ns(quantile)
    rank = max(1, -(-int(quantile * len(values) * 1_000_000) // 1_000_000))
    exact = min(sorted(values)[rank - 1], BOUNDS_NS[-1])
    low = max([bound for bound in BOUNDS_NS if bound < exact], default=0)
    high = next(bound for bound in BOUNDS_NS if bound >= exact)
    assert told is not None
    assert low <= told <= high


@given(durations)
def test_exported_buckets_count_what_is_not_above_their_bound(values: list[int]):
    """Prometheus' histograms are cumulative; the last bucket holds all."""
    told = list(exported_buckets(seen(*values)))
    assert [count for _, count in told] == [sum(value <= bound * 1e9 for value in values) for bound, _ in told]
    assert told[-1] == (float("inf"), len(values))
    assert [bound for bound, _ in told[:4]] == [10e-6, 25e-6, 50e-6, 100e-6]


def test_a_histogram_without_observations_has_no_quantile():
    """Nothing seen is not zero."""
    assert Histogram().quantile_ns(0.5) is None


def test_the_recent_past_forgets_what_is_older_than_two_windows():
    """A broker that was slow an hour ago is not slow now: Kafka's quantiles decay, these are of one to two minutes."""
    windows, histogram = Windows(), seen(10**9)
    assert windows.recent("x", histogram, 0.0).count == 1, "at first everything is recent"
    histogram.observe(1000)
    assert windows.recent("x", histogram, WINDOW_S - 1).count == 2
    assert windows.recent("x", histogram, WINDOW_S).count == 2, "the first window ends here"
    histogram.observe(1000)
    assert windows.recent("x", histogram, 2 * WINDOW_S).count == 1, "only what came after the first window"
    assert windows.recent("x", histogram, 3 * WINDOW_S).count == 0
    assert histogram.count == 3
    assert windows.recent("y", histogram, 3 * WINDOW_S).count == 3, "each histogram has windows of its own"


def test_time_in_purgatory_is_the_visit_s_and_ends_with_it():
    """remotetimems is where acks=all shows: it is what a request waited, whoever else waits meanwhile."""
    ticks = iter([100, 130, 200, 207])
    meter = PurgatoryMeter(lambda: next(ticks))
    visit = Visit()
    token = VISIT.set(visit)
    try:
        with meter.parked():
            assert meter.size == 1
        with pytest.raises(TimeoutError), meter.parked():
            raise TimeoutError
    finally:
        VISIT.reset(token)
    assert (meter.size, visit.parked_ns) == (0, 37)
    meter = RequestMeter()
    meter.observe(100, visit.parked_ns)
    assert (meter.total.sum_ns, meter.remote.sum_ns, meter.local.sum_ns) == (100, 37, 63)


def test_a_wait_outside_a_request_is_nobody_s():
    """The purgatory is also used by what no request has asked for."""
    ticks = iter([1, 2])
    with PurgatoryMeter(lambda: next(ticks)).parked():
        assert VISIT.get() is None


@pytest.mark.parametrize(
    ("api", "request_", "name"),
    [
        ("Metadata", MetadataRequest(), "Metadata"),
        ("Fetch", FetchRequest(replica_id=-1), "FetchConsumer"),
        ("Fetch", FetchRequest(replica_id=2), "FetchFollower"),
        (
            "Fetch",
            FetchRequest(replica_id=2, partitions=(FetchPartition(topic=METADATA_TOPIC, partition=0, fetch_offset=0),)),
            "FetchMetadata",
        ),
    ],
)
def test_requests_are_metered_under_kafka_s_names(api: str, request_: object, name: str):
    """HTTP-CLI-CONVENTIONS 4.4: request=Produce|FetchConsumer|FetchFollower."""
    assert metered_as(find_api(api), request_) == name


def test_topics_that_are_gone_are_no_longer_told():
    """Labels are bounded by what exists, not by what ever existed."""
    traffic = Traffic(lambda: 0)
    for name in ("a", "b"):
        traffic.topic(name).messages_in += 1
    traffic.keep_topics({"b": object()})
    assert list(traffic.topics) == ["b"]


def test_events_are_counted_once_though_leader_and_controller_tell_the_same():
    """isrshrinks counts at the partition's leader, as in Kafka; the controller's account of it carries its epoch."""
    counts = EventCounts()
    counts("isr_shrunk", {"partition": "orders-0", "epoch": 4, "old": (1, 2), "new": (1,)})
    counts("isr_shrunk", {"partition": "orders-0", "partition_epoch": 9, "old": (1, 2), "new": (1,)})
    assert counts.count("isr_shrunk") == 2
    assert counts.isr_changes == {"isr_changed": 0, "isr_expanded": 0, "isr_shrunk": 1}


def test_events_that_were_only_counted_are_in_the_metrics():
    """A hot event that nothing reads is counted where it occurs; reported or not, it occurred."""
    unheard = Unheard(HOT_EVENTS)
    counts = EventCounts(unheard)
    assert counts.by_kind == {}
    assert unheard.counted("batch_appended")
    counts("batch_appended", {"partition": "orders-0"})
    counts("log_opened", {"partition": "orders-0"})
    assert counts.by_kind == {"batch_appended": 2, "log_opened": 1}
    assert counts.count("batch_appended") == 2
    unheard.kinds = frozenset()
    assert not unheard.counted("batch_appended")
    assert counts.count("batch_appended") == 2


def test_unclean_elections_and_cut_records_are_counted():
    """The two things that an operator must hear of at once: possible loss, and what a follower cut off."""
    counts = EventCounts()
    counts("leader_elected", {"clean": True})
    counts("leader_elected", {"clean": False})
    counts("log_truncated", {"partition": "orders-0", "old": 12, "new": 9})
    counts("tail_truncated", {"partition": "orders-0", "epoch": 2, "old": 12, "new": 9})
    counts("log_truncated", {"partition": "__cluster_metadata-0", "old": 5, "new": 4})
    assert (counts.count("leader_elected"), counts.unclean_elections) == (2, 1)
    assert counts.truncated_records == {"divergence": 3, "metadata_divergence": 1}


def test_records_of_a_log_that_is_cut_to_nothing_are_counted():
    """S2: after an unclean election all records of a follower may go; the log then reports that it was restarted."""
    counts, events = EventCounts(), Recorded()
    log = PartitionLog.open(LabDisk(), TP, TopicConfig(), events=events)
    log.append_as_leader(batch("a", "b", "c"), leader_epoch=0, wall_ms=0)
    follower(log, epoch=9, events=events).cut_to(0)
    for kind, facts in events:
        counts(kind, facts)
    assert log.end_offset == 0
    assert counts.truncated_records == {"divergence": 3, "metadata_divergence": 0}


def test_free_bytes_of_a_disk_that_is_gone_are_not_known(tmp_path: Path):
    """A scrape must not fail when the disk does: then all other metrics would be missing, too."""
    assert free_bytes(str(tmp_path)) > 0
    assert free_bytes(str(tmp_path / "gone")) == -1


def test_requests_are_counted_by_protocol_and_summed_by_name():
    """Families without a protocol label keep the sum over all protocols."""
    meters = RequestMeters()
    for protocol, total_ns in (("kafka", 1_000_000), ("kafka", 3_000_000), ("rpc", 2_000_000)):
        meter = meters.of("Produce", protocol)
        meter.observe(total_ns, 1_000)
        meter.bytes_in += 10
        meter.bytes_out += 1
    meters.of("Produce", "rpc").failed("INVALID_REQUEST")
    meters.of("Fetch", "rpc").observe(5, 0)
    kafka, summed = meters.by_protocol["kafka", "Produce"], meters.by_name()["Produce"]
    assert (kafka.total.count, kafka.total.sum_ns, kafka.bytes_in) == (2, 4_000_000, 20)
    assert (summed.total.count, summed.total.sum_ns, summed.remote.sum_ns) == (3, 6_000_000, 3_000)
    assert (summed.bytes_in, summed.bytes_out, summed.errors) == (30, 3, {"INVALID_REQUEST": 1})
    assert sorted(meters.by_name()) == ["Fetch", "Produce"]
