"""What the doctor finds in facts that were gathered: each finding says where, what, and what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace as replace_struct

from minikafka.cli.doctor import directory_of as directory_of_settings
from minikafka.cli.doctor import draw
from minikafka.cli.doctor_checks import (
    ERROR,
    NOTE,
    WARNING,
    BrokerFacts,
    ClusterFacts,
    DirectoryFacts,
    Finding,
    directory_findings,
    findings,
)
from minikafka.cli.root import root
from minikafka.cli.settings import broker_settings
from minikafka.types import Address
from minikafka.wire.messages import DescribedPartition, DescribedTopic, DescribeQuorumResponse, QuorumReplica


def directory_of(file: Path) -> DirectoryFacts:
    """As `doctor FILE` looks at it."""
    return directory_of_settings(broker_settings(file, {}, ()).config)


def broker(node: int, **told: object) -> BrokerFacts:
    facts = BrokerFacts(node, Address("127.0.0.1", 9090 + node), answers_as=node, version="1", skew_ms=3)
    facts.metrics = {"mk_log_dir_free_bytes": 5e10, "process_open_fds": 50, "process_max_fds": 65536}
    facts.settings = {"min.insync.replicas": "2", "queued.max.request.bytes": "1000"}
    for name, value in told.items():
        setattr(facts, name, value)
    return facts


def partition(number: int = 0, **told: object) -> DescribedPartition:
    state = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0, "controller_epoch": 1}
    return DescribedPartition(**{"partition": number, "replicas": (1, 2, 3), "isr": (1, 2, 3), **state, **told})  # type: ignore[arg-type]


def voters(*lags: int) -> DescribeQuorumResponse:
    members = tuple(QuorumReplica(replica_id=node, lag=lag) for node, lag in enumerate(lags, start=1))
    return DescribeQuorumResponse(leader_id=1, voters=members)


def cluster(*brokers: BrokerFacts, topics: tuple[DescribedPartition, ...] = (), lags: tuple[int, ...] = (0, 0, 0)):
    facts = ClusterFacts("1", list(brokers or (broker(1), broker(2), broker(3))), voters(*lags))
    if topics:
        facts.topics = [DescribedTopic(topic="t", partitions=topics)]
        facts.topic_settings = {"t": {"min.insync.replicas": "2"}}
    return facts


def found(facts: ClusterFacts) -> list[tuple[str, str, str]]:
    told = list(findings(facts))
    assert all(each.what and each.do for each in told)
    return [(each.level, each.check, each.where) for each in told]


def test_a_healthy_cluster_has_no_findings():
    """Otherwise nobody would read them."""
    assert found(cluster(topics=(partition(),))) == []


def test_what_the_client_may_not_see_is_no_finding_about_the_cluster():
    """Before, a user without permissions read that nobody leads the quorum."""
    facts = cluster()
    facts.quorum, facts.denied = None, ["User:shop has no permission for DESCRIBE on CLUSTER kafka-cluster."]
    assert found(facts) == [(ERROR, "access", "cluster")]


@pytest.mark.parametrize(
    "told, expected",
    [
        ({"unreachable": "Connection refused"}, (ERROR, "advertised")),
        ({"answers_as": 2}, (ERROR, "advertised")),
        ({"ready": "the quorum has no leader"}, (ERROR, "ready")),
        ({"metrics": {"mk_log_dir_free_bytes": 1e8}}, (ERROR, "disk")),
        ({"metrics": {"mk_log_dir_free_bytes": 2e9}}, (WARNING, "disk")),
        ({"metrics": {"process_max_fds": 1024}}, (WARNING, "fds")),
        ({"metrics": {"process_open_fds": 60_000, "process_max_fds": 65_536}}, (ERROR, "fds")),
        ({"metrics": {"mk_queued_request_bytes": 900}}, (WARNING, "load")),
        ({"skew_ms": 5000}, (WARNING, "clock")),
        ({"skew_ms": -5000}, (WARNING, "clock")),
    ],
)
def test_one_broker(told: dict[str, object], expected: tuple[str, str]):
    """Addresses, readiness, disk, descriptors, load and clock."""
    assert found(cluster(broker(1, **told), broker(2), broker(3))) == [(*expected, "broker 1")]


def test_a_clock_is_not_blamed_for_a_slow_answer():
    """Half of the time that the question took may be on either side."""
    assert found(cluster(broker(1, skew_ms=1500, skew_error_ms=600))) == []


def test_the_right_address_of_the_wrong_broker_is_named():
    """Two brokers with one advertised address: clients of one would write to the other."""
    [finding] = findings(cluster(broker(1, answers_as=3)))
    assert "broker 3 answers" in finding.what


def test_brokers_that_differ():
    """Versions, and the settings that controller and leaders must agree on."""
    assert found(cluster(broker(1), broker(2, version="2"))) == [(WARNING, "versions", "cluster")]
    assert found(cluster(broker(1, version="2"), broker(2, version="2"))) == [(NOTE, "versions", "cluster")]
    other = broker(2, settings={"min.insync.replicas": "1"})
    assert found(cluster(broker(1), other)) == [(ERROR, "settings", "cluster")]


def test_the_quorum():
    """Without a leader nothing is decided; one loss away from that is a warning."""
    assert found(cluster(lags=(0, 0, -1))) == [(WARNING, "quorum", "cluster")]
    assert found(cluster(lags=(0,))) == [(WARNING, "quorum", "cluster")]
    assert found(cluster(lags=(0, 0, -1, 0, 0))) == []
    assert found(replace(cluster(), quorum=None, quorum_silent="no leader")) == [(ERROR, "quorum", "cluster")]


def test_a_voter_that_fetches_no_more_is_silent():
    """Its lag stays what it was when it died; a broker that was unregistered is no finding by itself, and stays a voter."""
    facts = cluster()
    first, dead, third = facts.quorum.voters
    for ms, expected in ((900, []), (40_000, [(WARNING, "quorum", "cluster")])):
        facts.quorum = replace_struct(facts.quorum, voters=(first, replace_struct(dead, last_fetch_ms_ago=ms), third))
        assert found(facts) == expected


@pytest.mark.parametrize(
    "told, expected",
    [
        ({"leader": -1, "isr": ()}, (ERROR, "min-isr")),
        ({"leader": 9}, (ERROR, "min-isr")),
        ({"isr": (1,)}, (ERROR, "min-isr")),
        ({"isr": (1, 2)}, (WARNING, "min-isr")),
        ({"isr": (1, 2, 3), "replicas": (1, 2, 3, 4)}, (WARNING, "replication")),
        ({"leader": 2}, (NOTE, "leaders")),
        ({"replicas": (4, 1, 2, 3), "adding_replicas": (4,)}, (NOTE, "reassignment")),
        ({"replicas": (1,), "isr": (1,)}, (NOTE, "replication")),
    ],
)
def test_one_partition(told: dict[str, object], expected: tuple[str, str]):
    """No leader, below or at min.insync.replicas, out of sync, away from home, on its way, without a copy."""
    where = "t" if len(told.get("replicas", ())) == 1 else "t-0"
    assert found(cluster(topics=(partition(**told),))) == [(*expected, where)]


def test_the_minimum_that_is_named_is_the_one_in_effect():
    """min.insync.replicas beyond the replication factor counts as the latter, by the rule of leaders and controllers."""
    facts = cluster(topics=(partition(replicas=(1, 2), isr=(1, 2)), partition(1, isr=(1, 2))))
    facts.topic_settings = {"t": {"min.insync.replicas": "4"}}
    below, at = findings(facts)
    assert (below.where, below.what[-16:]) == ("t-1", "(4, in effect 3)")
    assert (at.where, at.what[-16:]) == ("t-0", "(4, in effect 2)")


def test_partitions_with_the_same_trouble_are_one_finding():
    """A thousand lines would hide what they say."""
    bad = [partition(number, leader=-1, isr=()) for number in (0, 2)]
    assert found(cluster(topics=(bad[0], partition(1), bad[1]))) == [(ERROR, "min-isr", "t-0,2")]
    bad = [partition(number, leader=-1, isr=()) for number in range(50)]
    assert found(cluster(topics=tuple(bad))) == [(ERROR, "min-isr", "t-0,1,2,3,4,5,... (50 partitions)")]


def test_the_same_trouble_of_many_topics_is_one_line_for_people(capsys: pytest.CaptureFixture[str]):
    """A dead broker concerns every topic; JSON has each of them."""
    said = {"level": WARNING, "check": "replication", "what": "has replicas out of sync", "do": "look at the brokers"}
    draw([Finding(where=f"t{number}-0", **said) for number in range(200)] + [Finding(where="t1-1", **said)], 3, 0)
    assert capsys.readouterr().out.splitlines() == [
        "warning  t0-0; t1-0; t2-0; t3-0; and 197 more: has replicas out of sync",
        "         -> look at the brokers",
        "Looked at 3 brokers: 0 errors, 1 warning.",
    ]


def test_a_data_directory():
    """Space, permission, whose it is, descriptors."""

    def level(**told: object) -> list[str]:
        told_all = list(directory_findings(replace(DirectoryFacts("d"), **told)))  # type: ignore[arg-type]
        assert all(isinstance(each, Finding) for each in told_all)
        return [each.level for each in told_all]

    assert level(free_bytes=10**11, fd_limit=10**5) == []
    assert level(writable="Permission denied") == [ERROR]
    assert level(identity="it belongs to node 2") == [ERROR]
    assert level(ignores_case=True) == [NOTE]
    assert [level(mode=mode) for mode in (0o600, 0o640, 0o644, 0o777)] == [[], [], [WARNING], [WARNING]]
    assert level(free_bytes=10**9) == [WARNING]
    assert level(fd_limit=256) == [WARNING]


def test_files_are_looked_at_though_nobody_answers(tmp_path: Path):
    """`doctor FILE` before a cluster's first start, or after its last: the findings of the file are not withheld."""
    file = tmp_path / "b.properties"
    file.write_text(f"node.id=1\nlog.dirs={tmp_path}/data\n")
    (tmp_path / "data" / "orders-0").mkdir(parents=True)
    told = CliRunner().invoke(root, ["doctor", str(file), "-b", "127.0.0.1:1", "-o", "json"])
    assert told.exit_code == 1
    assert {each["check"] for each in json.loads(told.output)["findings"]} >= {"data", "bootstrap"}


def test_the_doctor_offline_needs_a_file():
    """It said that all was well with nothing."""
    told = CliRunner().invoke(root, ["doctor", "--offline"])
    assert told.exit_code == 2
    assert "name a broker's properties" in told.output


def test_a_data_directory_is_looked_at_by_its_properties_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whether the broker runs or not; one that does not exist yet is judged by where it would be."""
    for name in ("KAFKA_NODE_ID", "KAFKA_LOG_DIRS"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "b.properties"
    file.write_text(f"node.id=1\ncluster.id=c\nlog.dirs={tmp_path}/data\n")
    new = directory_of(file)
    assert (new.path, new.writable, new.identity) == (f"{tmp_path}/data", "", "")
    assert new.free_bytes > 0
    assert (new.ignores_case, new.mode) == (False, 0o600)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "orders-0").mkdir()
    assert "holds orders-0, but no meta.properties" in directory_of(file).identity
    meta = tmp_path / "data" / "meta.properties"
    for text, told in (
        ("version=1\nnode.id=2\ncluster.id=c\n", "belongs to node 2"),
        ("version=1\nnode.id=1\ncluster.id=x\n", "belongs to cluster x"),
        ("version=3\n", "cannot be read: version=3"),
        ("version=1\nnode.id=1\ncluster.id=c\n", ""),
    ):
        meta.write_text(text)
        assert told in directory_of(file).identity
        assert bool(told) == bool(directory_of(file).identity)
