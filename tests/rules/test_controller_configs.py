"""Settings altered at run time (KIP-226, KIP-339), and what must change with them in the same batch."""

from __future__ import annotations

import pytest

from minikafka.config import AT_RUN_TIME, OF_THE_CLUSTER, BrokerConfig, parse_broker, table
from minikafka.config.parse import Parsed
from minikafka.errors import BY_CODE, InvalidRequest
from minikafka.quorum import decision
from minikafka.quorum.decision import ClusterPolicy, Decision, broker_settings, effective, topic_defaults
from minikafka.quorum.records import ConfigRecord
from minikafka.wire.admin import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    AlterConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlteredConfigs,
    IncrementalAlterConfigsRequest,
)
from tests.rules.controller_kit import Cluster

INVALID_CONFIG = 40


def cluster_of(**options: int) -> Cluster:
    cluster = Cluster(3, **options)
    cluster.create("t", (1, 2, 3), configs={"retention.ms": "5"})
    return cluster


def settings(cluster: Cluster) -> dict[str, str]:
    return dict(cluster.image.topics["t"].configs)


def name_of(answer: AlteredConfigs) -> str:
    return BY_CODE[answer.error_code].name


def test_single_settings_are_set_and_deleted():
    """KIP-339: what is not named stays as it is."""
    cluster = cluster_of()
    assert cluster.configure(segment_bytes="1000").error_code == 0
    assert settings(cluster) == {"retention.ms": "5", "segment.bytes": "1000"}
    assert cluster.configure("t", AlterConfig(name="retention.ms", operation=DELETE)).error_code == 0
    assert settings(cluster) == {"segment.bytes": "1000"}


def test_what_is_so_already_is_not_recorded():
    """A repeated request (its answer was lost) leaves the log as it is."""
    cluster = cluster_of()
    before = cluster.image
    cluster.configure(retention_ms="5")
    cluster.configure("t", AlterConfig(name="segment.ms", operation=DELETE))
    assert cluster.image == before


def test_lists_are_appended_to_and_taken_from():
    """KIP-339, operations 2 and 3; a setting that is no list refuses them."""
    cluster = cluster_of()
    assert cluster.configure("t", AlterConfig(name="cleanup.policy", value="delete", operation=APPEND)).error_code == 0
    assert settings(cluster)["cleanup.policy"] == "delete"
    cluster.configure("t", AlterConfig(name="cleanup.policy", value="compact", operation=APPEND))
    assert settings(cluster)["cleanup.policy"] == "compact,delete"
    cluster.configure("t", AlterConfig(name="cleanup.policy", value="compact", operation=SUBTRACT))
    assert settings(cluster)["cleanup.policy"] == "delete"
    gone = cluster.configure("t", AlterConfig(name="cleanup.policy", value="delete", operation=SUBTRACT))
    assert name_of(gone) == "INVALID_CONFIG"
    assert (
        name_of(cluster.configure("t", AlterConfig(name="segment.ms", value="1", operation=APPEND))) == "INVALID_CONFIG"
    )


def test_what_is_appended_comes_behind_the_default():
    """KIP-339: a topic without a value of its own deletes old records, and goes on to do so when it compacts as well."""
    cluster = cluster_of()
    cluster.configure("t", AlterConfig(name="cleanup.policy", value="compact", operation=APPEND))
    assert settings(cluster)["cleanup.policy"] == "compact,delete"


def test_a_resource_is_changed_as_the_ones_before_it_in_the_request_have_left_things():
    """The cluster's minimum rises, which gives the partition a new epoch; the topic's own value then changes nothing."""
    cluster = cluster_of(min_isr=1)
    before = cluster.image.topics["t"].partitions[0].partition_epoch
    minimum = AlterConfig(name="min.insync.replicas", value="2")
    request = IncrementalAlterConfigsRequest(
        resources=tuple(
            AlterConfigsResource(resource_type=kind, resource_name=name, configs=(minimum,))
            for kind, name in ((BROKER, ""), (TOPIC, "t"))
        )
    )
    answer = cluster.commit(cluster.controller.incremental_alter_configs(cluster.image, request), request)
    assert [each.error_code for each in answer.responses] == [0, 0]
    assert cluster.image.topics["t"].partitions[0].partition_epoch == before + 1


@pytest.mark.parametrize(
    "change, error",
    [
        (AlterConfig(name="retention.mss", value="5"), "INVALID_CONFIG"),
        (AlterConfig(name="retention.mss", operation=DELETE), "INVALID_CONFIG"),
        (AlterConfig(name="retention.ms", value="soon"), "INVALID_CONFIG"),
        (AlterConfig(name="retention.ms"), "INVALID_REQUEST"),
        (AlterConfig(name="retention.ms", value="5", operation=7), "INVALID_REQUEST"),
        (AlterConfig(name="log.retention.ms", value="5"), "INVALID_CONFIG"),
    ],
)
def test_a_wrong_change_changes_nothing(change: AlterConfig, error: str):
    """A resource is altered as a whole or not at all."""
    cluster = cluster_of()
    before = cluster.image
    answer = cluster.configure("t", AlterConfig(name="segment.bytes", value="1000"), change)
    assert name_of(answer) == error
    assert change.name in answer.error_message
    assert cluster.image == before


@pytest.mark.parametrize(
    "kind, name, setting, value",
    [
        (TOPIC, "t", "leader.replication.throttled.replicas", "0:1,1:2"),
        (BROKER, "2", "leader.replication.throttled.rate", "1000"),
        (BROKER, "", "replica.alter.log.dirs.io.max.bytes.per.second", "1000"),
    ],
)
def test_replication_throttles_are_stored_and_can_be_deleted(kind: int, name: str, setting: str, value: str):
    """kafka-reassign-partitions --throttle sets them, and deletes them afterwards, also where none are set."""
    cluster = cluster_of()
    before = cluster.image
    assert cluster.configure(name, AlterConfig(name=setting, value=value), kind=kind).error_code == 0
    resource = cluster.image.topics[name].configs if kind == TOPIC else cluster.image.broker_configs[name]
    assert resource[setting] == value
    for _ in range(2):
        assert cluster.configure(name, AlterConfig(name=setting, operation=DELETE), kind=kind).error_code == 0
    assert cluster.image.topics == before.topics


def test_throttled_replicas_are_a_list():
    """APPEND begins with the setting's own default, not with that of cleanup.policy."""
    cluster = cluster_of()
    setting = "leader.replication.throttled.replicas"
    for value in ("0:1", "1:2"):
        assert cluster.configure("t", AlterConfig(name=setting, value=value, operation=APPEND)).error_code == 0
    assert cluster.image.topics["t"].configs[setting] == "0:1,1:2"


@pytest.mark.parametrize("operation", [SET, APPEND])
def test_a_value_is_no_longer_than_kafkas_protocol_can_show(operation: int):
    """As in Kafka: DescribeConfigs could not be answered. A longer one that is there already stops no other change."""
    cluster = cluster_of()
    setting = "leader.replication.throttled.replicas"
    longest = ",".join([*(f"{number}:1" for number in range(1000, 5680)), "10000:1"])
    longer = f"{longest},1:1"
    assert len(longest) == 32_767
    assert cluster.configure("t", AlterConfig(name=setting, value=longest)).error_code == 0
    value = longer if operation == SET else "1:1"
    refused = cluster.configure("t", AlterConfig(name=setting, value=value, operation=operation))
    assert name_of(refused) == "INVALID_CONFIG"
    assert f"{setting} has {len(longer)} bytes, 32767 at most" in refused.error_message
    assert cluster.create("u", (1, 2, 3), configs={setting: longer}).error_code == INVALID_CONFIG
    cluster.image = cluster.image.staged([ConfigRecord(resource_name="t", name=setting, value=longer)])
    assert cluster.configure(retention_ms="6").error_code == 0


def test_names_twice_and_resources_that_do_not_exist():
    """Which of two values was meant is not ours to guess."""
    cluster = cluster_of()
    twice = cluster.configure("t", AlterConfig(name="segment.ms", value="5"), AlterConfig(name="segment.ms", value="6"))
    assert name_of(twice) == "INVALID_REQUEST"
    assert name_of(cluster.configure("nobody", retention_ms="5")) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert name_of(cluster.configure("9", kind=BROKER, log_retention_ms="5")) == "BROKER_ID_NOT_REGISTERED"
    assert name_of(cluster.configure("t", kind=8, retention_ms="5")) == "INVALID_REQUEST"


@pytest.mark.parametrize("text", ["1_000", " 5 ", "\u0663", "\u00b2"])
def test_settings_altered_at_run_time_are_read_strictly(text: str):
    """Every integer setting, of topics and brokers; a broker is named in digits (``\u00b2`` stopped the controller)."""
    cluster = cluster_of()
    before = cluster.image
    assert name_of(cluster.configure(retention_ms=text)) == "INVALID_CONFIG"
    assert name_of(cluster.configure("", kind=BROKER, log_retention_ms=text)) == "INVALID_CONFIG"
    assert name_of(cluster.configure("2", kind=BROKER, log_segment_bytes=text)) == "INVALID_CONFIG"
    assert name_of(cluster.configure(text, kind=BROKER, log_retention_ms="5")) == "INVALID_REQUEST"
    assert cluster.image == before


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
@pytest.mark.parametrize("resource", ["", "2"])
def test_a_list_of_topics_is_no_list_of_brokers(resource: str, operation: int):
    """APPEND to a broker's ``cleanup.policy``, which only topics have, stopped one controller after the other."""
    change = AlterConfig(name="cleanup.policy", value="compact", operation=operation)
    assert name_of(cluster_of().configure(resource, change, kind=BROKER)) == "INVALID_CONFIG"


@pytest.mark.parametrize("name", ["", ".", "a/b", "x" * 250])
def test_names_that_no_topic_can_have_are_invalid(name: str):
    """As in Kafka, which says so before it looks whether there is such a topic."""
    assert name_of(cluster_of().configure(name, retention_ms="5")) == "INVALID_TOPIC_EXCEPTION"


def test_a_resource_that_is_named_twice_is_refused_both_times():
    """Kafka changes neither, for it cannot know which one is meant."""
    cluster = cluster_of()
    before = cluster.image
    once = AlterConfig(name="retention.ms", value="5")
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=(once,))
    request = IncrementalAlterConfigsRequest(resources=(resource, resource))
    decision = cluster.controller.incremental_alter_configs(cluster.image, request)
    assert [each.error_code for each in decision.response.responses] == [InvalidRequest.code] * 2
    assert not decision.records
    assert cluster.image == before


def test_validate_only_records_nothing():
    """The answer is the one that the real request would get."""
    cluster = cluster_of()
    before = cluster.image
    assert cluster.configure(segment_bytes="1000", validate_only=True).error_code == 0
    assert name_of(cluster.configure(segment_bytes="x", validate_only=True)) == "INVALID_CONFIG"
    assert cluster.image == before


def test_the_older_form_replaces_all_settings():
    """AlterConfigs: what is not named goes back to its default."""
    cluster = cluster_of()
    resource = AlterConfigsResource(
        resource_type=TOPIC, resource_name="t", configs=(AlterConfig(name="segment.bytes", value="1000"),)
    )
    request = AlterConfigsRequest(resources=(resource,))
    [answer] = cluster.commit(cluster.controller.alter_configs(cluster.image, request), request).responses
    assert answer.error_code == 0
    assert settings(cluster) == {"segment.bytes": "1000"}


def test_a_brokers_own_setting_counts_before_the_one_for_all():
    """KIP-226: broker, all brokers, what it was started with."""
    cluster = cluster_of()
    cluster.configure("", kind=BROKER, log_retention_ms="7", log_segment_bytes="1000")
    cluster.configure("2", kind=BROKER, log_retention_ms="8")
    started_with = cluster.controller.policy.topic_defaults
    assert topic_defaults(cluster.image, 1, started_with).retention_ms == 7
    assert topic_defaults(cluster.image, 2, started_with).retention_ms == 8
    assert topic_defaults(cluster.image, 2, started_with).segment_bytes == 1000
    assert broker_settings(cluster.image, 2) == {"log.retention.ms": "8", "log.segment.bytes": "1000"}


@pytest.mark.parametrize(
    "resource, setting, told",
    [
        ("", "node_id", "restart"),
        ("1", "log_dirs", "restart"),
        ("1", "min_insync_replicas", "for all brokers"),
        ("1", "unclean_leader_election_enable", "for all brokers"),
        ("1", "retention_ms", "log.retention.ms"),
        ("", "log_retention_mss", "log.retention.ms"),
        ("1", "num_partitions", "for all brokers"),
        ("1", "broker_session_timeout_ms", "broker.session.timeout.ms is read-only at run time"),
        ("", "num_io_threads", "known to Kafka and not used"),
    ],
)
def test_what_a_broker_cannot_be_told_at_run_time(resource: str, setting: str, told: str):
    """The message says what would work."""
    answer = cluster_of().configure(resource, kind=BROKER, **{setting: "1"})
    assert name_of(answer) == "INVALID_CONFIG"
    assert told in answer.error_message


def test_brokers_settings_beyond_the_defaults_of_topics_are_set_for_one_or_for_all():
    """KIP-226: a broker's own, all brokers', what it was started with; values are checked when they are set."""
    cluster = cluster_of()
    started_with = BrokerConfig(node_id=2, replica_fetch_wait_max_ms=100)
    assert effective(cluster.image, 2, started_with) == (started_with, [])
    cluster.configure("", kind=BROKER, replica_lag_time_max_ms="7000", num_partitions="4")
    cluster.configure("2", kind=BROKER, replica_lag_time_max_ms="8000")
    one, two = (effective(cluster.image, node, started_with)[0] for node in (1, 2))
    assert (one.replica_lag_time_max_ms, two.replica_lag_time_max_ms) == (7000, 8000)
    assert (two.num_partitions, two.replica_fetch_wait_max_ms) == (4, 100)
    cluster.configure("2", AlterConfig(name="replica.lag.time.max.ms", operation=DELETE), kind=BROKER)
    assert effective(cluster.image, 2, started_with)[0].replica_lag_time_max_ms == 7000

    before = cluster.image
    refused = cluster.configure("2", kind=BROKER, replica_lag_time_max_ms="0")
    assert (name_of(refused), "at least 1" in refused.error_message) == ("INVALID_CONFIG", True)
    assert cluster.image == before


def test_decisions_check_the_settings_of_brokers_once_until_one_of_them_changes(monkeypatch: pytest.MonkeyPatch):
    """A check of all settings takes longer than the decision about a heartbeat, which needs them too."""
    cluster = cluster_of()
    policy = ClusterPolicy(cluster_id="c", node_id=2, started_with=BrokerConfig(node_id=2))
    cluster.configure("", kind=BROKER, num_partitions="4")
    checked: list[dict[str, str]] = []

    def parse(settings: dict[str, str], *, base: BrokerConfig) -> Parsed:
        checked.append(settings)
        return parse_broker(settings, base=base)

    monkeypatch.setattr(decision, "parse_broker", parse)
    assert [policy.under(cluster.image).num_partitions for _ in range(3)] == [4, 4, 4]
    cluster.configure("", kind=BROKER, num_partitions="5")
    assert [policy.under(cluster.image).num_partitions for _ in range(3)] == [5, 5, 5]
    assert checked == [{"num.partitions": "4"}, {"num.partitions": "5"}]


def test_the_controller_decides_by_what_was_set_at_run_time():
    """How many partitions and replicas a topic gets, whether it may be deleted, how often leaders go home."""
    cluster = cluster_of()
    policy = ClusterPolicy.of(BrokerConfig(node_id=1), "c")
    assert policy.under(cluster.image) is policy
    settings_for_all = {"num_partitions": "5", "default_replication_factor": "3", "delete_topic_enable": "false"}
    cluster.configure("", kind=BROKER, **settings_for_all, leader_imbalance_check_interval_seconds="7")
    decides = policy.under(cluster.image)
    assert (decides.num_partitions, decides.default_replication_factor, decides.delete_topic_enable) == (5, 3, False)
    assert (policy.leader_rebalance_interval_s, decides.leader_rebalance_interval_s) == (300.0, 7.0)
    cluster.configure("", kind=BROKER, auto_leader_rebalance_enable="false")
    assert policy.under(cluster.image).leader_rebalance_interval_s is None


def test_the_table_of_what_can_change_names_brokers_settings():
    """A name that is no setting could never be set, and would be offered as the nearest one."""
    assert sorted(AT_RUN_TIME - table(BrokerConfig).keys()) == []
    assert sorted(OF_THE_CLUSTER - AT_RUN_TIME) == []


def test_a_lower_minimum_ends_the_elr_and_every_proposal_under_way():
    """KIP-966: with ISR {1} and a minimum of 1 the leader commits alone, so 2 and 3 are no longer eligible; and a
    leader that does not know the new minimum cannot change its ISR before it does.
    """
    cluster = cluster_of(min_isr=2)
    cluster.set_isr(1, 2)
    cluster.set_isr(1)
    assert cluster.state().elr == (2,)
    under_way = cluster.proposal(1, 3)
    cluster.configure(min_insync_replicas="1")
    assert cluster.state().elr == ()
    assert BY_CODE[cluster.propose(under_way).error_code].name == "INVALID_UPDATE_VERSION"


@pytest.mark.parametrize("resource, kind", [("t", TOPIC), ("", BROKER)])
def test_a_higher_minimum_fences_leaders_that_do_not_know_it(resource: str, kind: int):
    """The story in configs.py: otherwise 2 would be an eligible leader while leader 1 still commits alone."""
    cluster = cluster_of(min_isr=1)
    shrink = cluster.proposal(1)
    epoch = cluster.state().leader_epoch
    assert cluster.configure(resource, kind=kind, min_insync_replicas="2").error_code == 0
    assert BY_CODE[cluster.propose(shrink).error_code].name == "INVALID_UPDATE_VERSION"
    assert cluster.state().leader_epoch == epoch
    cluster.set_isr(1)
    assert cluster.state().elr == (2, 3)


def test_a_topics_own_minimum_is_not_moved_by_the_brokers():
    """Only partitions whose minimum changes get a new partition epoch."""
    cluster = cluster_of()
    cluster.configure(min_insync_replicas="2")
    before = cluster.state()
    cluster.configure("", kind=BROKER, min_insync_replicas="3")
    assert cluster.state() is before


@pytest.mark.parametrize("resource, kind", [("t", TOPIC), ("", BROKER)])
def test_unclean_elections_switched_on_happen_at_once(resource: str, kind: int):
    """S20: a partition that waits for its last in-sync replica gets another leader in the same batch."""
    cluster = cluster_of()
    cluster.set_isr(1)
    cluster.lose(1)
    assert cluster.state().leader == -1
    cluster.configure(resource, kind=kind, unclean_leader_election_enable="true")
    assert cluster.leader() == (2, (2,))
    assert not cluster.state().recovered


def test_a_topic_created_later_gets_the_brokers_new_defaults():
    """What is checked against defaults is checked against those of now."""
    cluster = cluster_of()
    cluster.configure("", kind=BROKER, min_insync_replicas="2")
    cluster.create("u", (1, 2, 3))
    policy = cluster.controller.policy.under(cluster.image)
    assert policy.min_insync_replicas(cluster.image.topics["u"]) == 2


@pytest.mark.parametrize(("minimum", "unclean"), [("two", "perhaps"), ("0", ""), ("", "yes")])
def test_a_topics_settings_that_this_build_cannot_read_do_not_count_in_decisions(minimum: str, unclean: str):
    """As at brokers, where the defaults count in their place. Each controller that had to fence a broker ended."""
    cluster = Cluster(3, min_isr=2, unclean=True)
    cluster.create("t", (1, 2, 3))
    values = {"min.insync.replicas": minimum, "unclean.leader.election.enable": unclean}
    records = tuple(ConfigRecord(resource_name="t", name=name, value=value) for name, value in values.items())
    cluster.commit(Decision(records=records, response=None))
    policy, topic = cluster.controller.policy, cluster.image.topics["t"]
    assert (policy.min_insync_replicas(topic), policy.elects_unclean(topic)) == (2, True)
    cluster.lose(1)
    cluster.lose(2)
    assert cluster.image.topics["t"].partitions[0].elr == (2,)
