"""Settings of ``serve`` and the files of ``up``: where they come from, which source wins, what is refused."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
from pathlib import Path

import pytest

from minikafka.cli.settings import broker_settings, parse_flags
from minikafka.config import parse_broker
from minikafka.errors import InvalidConfig
from minikafka.hosting.cluster_files import NAME, Ports, new_cluster_id, prepare, read_properties, sweep
from minikafka.world.os_disk import LOCK_NAME


@pytest.fixture
def ports():
    """Ports that are given back when the test ends."""
    held = Ports()
    yield held
    held.release()


def written(tmp_path, text):
    path = tmp_path / "broker.properties"
    path.write_text(text, encoding="iso-8859-1")
    return path


def test_a_later_source_wins(tmp_path):
    """Issue item 7: settings by file, environment and flag, in that order."""
    path = written(tmp_path, "node.id=1\nnum.partitions=2\nlog.retention.ms=5\n")
    parsed = broker_settings(path, {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_NODE_ID": "7"}, ["num.partitions=4"])
    assert (parsed.config.node_id, parsed.config.num_partitions, parsed.config.log_retention_ms) == (7, 4, 5)
    assert parsed.notices == ()


def test_two_variables_that_differ_are_told():
    """HTTP-CLI-CONVENTIONS 4.2: KAFKA_ and MK_ are both taken; on conflict the latter wins, and says so."""
    given = {"KAFKA_LOG_ROLL_MS": "5", "MK_LOG_ROLL_MS": "9", "KAFKA_NODE_ID": "7", "MK_NODE_ID": "7"}
    parsed = broker_settings(None, given, [])
    assert (parsed.config.log_roll_ms, parsed.config.node_id) == (9, 7)
    assert parsed.notices == ("log.roll.ms: KAFKA_LOG_ROLL_MS says otherwise than MK_LOG_ROLL_MS, which counts",)


def test_an_unknown_name_is_an_error_where_we_were_spoken_to(tmp_path):
    """DESIGN (risks): unknown in a file or by flag is an error with the nearest name."""
    with pytest.raises(InvalidConfig, match=r"num\.partitons; did you mean num\.partitions"):
        broker_settings(written(tmp_path, "num.partitons=2\n"), {}, [])
    with pytest.raises(InvalidConfig, match=r"did you mean num\.partitions"):
        broker_settings(written(tmp_path, ""), {}, ["num.partitons=2"])


def test_an_unknown_name_in_the_environment_is_only_noted(tmp_path):
    """DESIGN (risks): KAFKA_OPTS and Kubernetes' KAFKA_PORT must not stop a broker."""
    parsed = broker_settings(written(tmp_path, "zookeeper.connect=x\n"), {"KAFKA_PORT": "tcp://10.0.0.1"}, [])
    assert parsed.notices == (
        "zookeeper.connect is known to Kafka and not used by minikafka",
        "port is not a setting of minikafka: ignored",
    )


def test_a_listener_beyond_loopback_needs_a_word_from_any_source(tmp_path):
    """DESIGN (risks): the file names the listener, the environment may vouch for the network."""
    path = written(tmp_path, "listeners=PLAINTEXT://0.0.0.0:9092\n")
    with pytest.raises(InvalidConfig, match=r"mk\.insecure=true"):
        broker_settings(path, {}, [])
    assert broker_settings(path, {"MK_INSECURE": "true"}, []).config.listener == ("0.0.0.0", 9092)


KAFKA_EXAMPLE = {
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093",
    "KAFKA_LISTENERS": "PLAINTEXT://:19092,CONTROLLER://:9093,PLAINTEXT_HOST://:9092",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://kafka-1:19092,PLAINTEXT_HOST://localhost:29092",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
}
"""How Kafka's own example of three combined nodes in compose is set up."""


def test_the_variables_of_kafka_s_compose_example_mean_what_they_mean_there(tmp_path):
    """HTTP-CLI-CONVENTIONS 4.3: who has such a file changes the image and says that the network is theirs."""
    parsed = broker_settings(written(tmp_path, ""), {**KAFKA_EXAMPLE, "MK_INSECURE": "true"}, [])
    assert parsed.notices == ()
    config = parsed.config
    assert [str(each) for each in config.all_listeners] == [
        "PLAINTEXT://0.0.0.0:19092",
        "CONTROLLER://0.0.0.0:9093",
        "PLAINTEXT_HOST://0.0.0.0:9092",
    ]
    assert [each.name for each in config.client_listeners] == ["PLAINTEXT", "PLAINTEXT_HOST"]
    assert (config.listener, config.advertised) == (("0.0.0.0", 19092), ("kafka-1", 19092))
    assert config.all_advertised["PLAINTEXT_HOST"] == ("localhost", 29092)
    assert config.voters[1] == ("kafka-1", 9093)


TWO = "A://127.0.0.1:1,B://127.0.0.1:2"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"listeners": "SASL_SSL://127.0.0.1:9092"},
            "brokers log in to listener SASL_SSL with PLAIN, which is not among its mechanisms",
        ),
        ({"listeners": "SSL://127.0.0.1:9092"}, "listener SSL uses TLS, but ssl.keystore.location is empty"),
        (
            {"listeners": "SSL://127.0.0.1:9092", "ssl.keystore.location": "k"},
            "brokers call each other with TLS, but ssl.truststore.location is empty",
        ),
        ({"listeners": "A://127.0.0.1:1,a://127.0.0.1:2"}, "names A twice"),
        ({"listeners": "A://127.0.0.1:1,B://127.0.0.1:1"}, "two listeners share a port"),
        ({"listeners": ""}, "listeners is empty"),
        ({"listeners": "A B://127.0.0.1:1"}, "PLAINTEXT://host:port is needed"),
        ({"listeners": "PLAINTEXT://127.0.0.1:1,X://:2"}, "let X listen on 127.0.0.1"),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:1,X://:2"},
            "X lacks TLS (listener.security.protocol.map), ssl.client.auth=required (or SASL_SSL), authorizer.class.name;",
        ),
        ({"advertised.listeners": "OTHER://localhost:1"}, "names OTHER, which is no listener for clients: PLAINTEXT"),
        ({"inter.broker.listener.name": "NONE"}, "one of the listeners for clients is needed, which are PLAINTEXT"),
        ({"controller.listener.names": "PLAINTEXT"}, "which are none"),
        (
            {"listener.security.protocol.map": "PLAINTEXT:SSL"},
            "listener PLAINTEXT uses TLS, but ssl.keystore.location is empty",
        ),
        ({"listener.security.protocol.map": "PLAINTEXT:KERBEROS"}, "NAME:PROTOCOL is needed, with a protocol of"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "NAME:PROTOCOL is needed"),
        (
            {
                "listeners": TWO,
                "listener.security.protocol.map": "A:PLAINTEXT,B:HTTPS",
                "controller.listener.names": "B",
            },
            "of the listeners of brokers and controllers A does not use TLS and B does",
        ),
        ({"listeners": TWO, "listener.security.protocol.map": "B:SSL"}, "ssl.keystore.location is empty"),
        (
            {
                "listeners": TWO,
                "listener.security.protocol.map": "B:SSL",
                "ssl.keystore.location": "k",
                "ssl.client.auth": "required",
            },
            "ssl.client.auth=required, but ssl.truststore.location is empty",
        ),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type='JKS': one of PEM is needed"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "one of TLSv1.2,TLSv1.3"),
    ],
)
def test_listeners_that_cannot_work_are_refused_by_name(settings, said):
    """A listener that nobody can reach costs an evening: the sentence names the setting and what would be right."""
    with pytest.raises(InvalidConfig, match=re.escape(said)):
        parse_broker(settings)


def test_a_name_that_stands_twice_is_refused(tmp_path):
    """LIBRARIES (javaproperties): Java takes the last line in silence, and the wrong one is found hours later."""
    with pytest.raises(InvalidConfig, match=r"node\.id stands there twice"):
        read_properties(written(tmp_path, "node.id=1\nnode.id=2\n"))
    with pytest.raises(InvalidConfig, match="given twice"):
        parse_flags(["node.id=1", "node.id=2"])


@pytest.mark.parametrize("flag", ["node.id", "=5", " =5"])
def test_a_flag_needs_a_name_and_a_value(flag):
    """A typing mistake must not become a setting."""
    with pytest.raises(InvalidConfig, match="KEY=VALUE is needed"):
        parse_flags([flag])


def test_a_flag_keeps_what_follows_the_first_equals_sign():
    """Values such as voters and journals contain the sign."""
    assert parse_flags(["mk.journal.path=a=b"]) == {"mk.journal.path": "a=b"}


def test_properties_are_read_by_javas_rules(tmp_path):
    """D8: a file written for Kafka means the same here: continuations, escapes, ISO-8859-1, colons."""
    path = written(
        tmp_path, "# note\ncontroller.quorum.voters=1@a:1,\\\n   2@b:2\nbroker.rack : caf\\u00e9\nlog.dirs /x\n"
    )
    assert read_properties(path) == {
        "controller.quorum.voters": "1@a:1,2@b:2",
        "broker.rack": "café",
        "log.dirs": "/x",
    }


def test_a_missing_file_is_a_sentence(tmp_path):
    """A path that does not exist is an everyday mistake, not a traceback."""
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_properties(tmp_path / "none.properties")


# ---- the files of a cluster ------------------------------------------------------------------------------------------


def test_up_binds_before_it_writes_the_voters(tmp_path, ports):
    """DESIGN (risks): port 0 with a static quorum; every broker's file names the same voters with real ports."""
    cluster = prepare(tmp_path, ports, brokers=3, config={"min.insync.replicas": "2"})
    configs = [broker.config() for broker in cluster.brokers]
    assert [config.node_id for config in configs] == [1, 2, 3]
    assert len({config.cluster_id for config in configs}) == 1
    assert len({config.listener.port for config in configs}) == 3
    for config in configs:
        assert config.voters == {each.node_id: each.listener for each in configs}
        assert config.min_insync_replicas == 2
    with pytest.raises(OSError, match="in use"), socket.create_server(("127.0.0.1", configs[0].listener.port)) as _:
        # A held port can still be listened on by a broker (SO_REUSEADDR, as create_server has it) ...
        socket.create_server(("127.0.0.1", configs[0].listener.port))  # ... but by one only.
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", configs[1].listener.port))


def test_a_restart_finds_ports_and_cluster_id_again(tmp_path, ports, monkeypatch):
    """Issue item 7: an existing data directory is the same cluster, with what the flags add.

    However it was named: a relative log.dirs would be an empty broker for whoever runs `serve` from elsewhere.
    """
    first = prepare(tmp_path, ports, brokers=2, config={})
    ports.release()
    monkeypatch.chdir(tmp_path.parent)
    again = prepare(Path(tmp_path.name), ports, config={"log.retention.ms": "77"})
    assert (again.bootstrap, again.cluster_id, again.voters) == (first.bootstrap, first.cluster_id, first.voters)
    assert [broker.config().log_retention_ms for broker in again.brokers] == [77, 77]
    assert [broker.config().log_dirs for broker in again.brokers] == [
        broker.config().log_dirs for broker in first.brokers
    ]
    assert all(broker.path.is_absolute() for broker in again.brokers)


def test_a_directory_that_holds_another_cluster_is_not_overwritten(tmp_path, ports):
    """Two voters' logs under a quorum of three would be a new cluster on old data."""
    prepare(tmp_path, ports, brokers=2, config={})
    with pytest.raises(InvalidConfig, match="holds a cluster of 2 brokers: start it with so many "):
        prepare(tmp_path, ports, brokers=3, config={})
    with pytest.raises(InvalidConfig, match="has its ports already"):
        prepare(tmp_path, ports, base_port=1, config={})


def test_a_port_that_is_taken_is_told_by_its_number(tmp_path, ports):
    """The commonest reason for which a cluster does not start."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(InvalidConfig, match=f"port {port} of 127.0.0.1 cannot be used"):
            prepare(tmp_path, ports, brokers=1, base_port=port, config={})
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_runs_already_is_named_as_the_reason(tmp_path, ports):
    """`minikafka up` in a second terminal: its own brokers have the ports."""
    first = prepare(tmp_path, ports, brokers=1, config={})
    ports.release()
    address = first.brokers[0].address
    lock = tmp_path / "broker-1" / LOCK_NAME
    lock.touch()
    with socket.create_server(address), lock.open("rb") as held:
        with pytest.raises(InvalidConfig, match=f"port {address.port} of 127.0.0.1 cannot be used"):
            prepare(tmp_path, ports, config={})
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InvalidConfig, match=f"broker 1 of the cluster in .* is running already, at {address}: "):
            prepare(tmp_path, ports, config={})
    assert prepare(tmp_path, ports, config={}).bootstrap == first.bootstrap


def test_the_command_in_a_brokers_file_can_be_pasted(tmp_path, ports):
    """A folder may have spaces in its name."""
    (broker,) = prepare(tmp_path / "a disk", ports, brokers=1, config={}).brokers
    assert broker.path.read_text().splitlines()[0].endswith(f": minikafka serve '{broker.path}'")


def first_of_free_ports(count):
    """The first of ``count`` ports in a row that nothing listens on."""
    for first in range(20_000 + os.getpid() % 9_000, 32_000, count):
        found = Ports()
        if found.take_row(first, count):
            found.release()
            return first
    raise AssertionError("no free ports")


def test_a_new_cluster_gets_the_preferred_ports_if_all_of_them_are_free(tmp_path, ports):
    """Issue 13, section 0: `up` and the clients meet at the default port."""
    first = first_of_free_ports(3)
    cluster = prepare(tmp_path, ports, brokers=3, preferred_port=first, config={})
    assert [broker.address.port for broker in cluster.brokers] == [first, first + 1, first + 2]
    assert cluster.notice == ""


def test_a_new_cluster_gets_other_ports_and_says_so_if_a_preferred_one_is_in_use(tmp_path, ports):
    """Issue 13, section 0: a second cluster starts all the same; no preferred port stays reserved."""
    first = first_of_free_ports(3)
    with socket.create_server(("127.0.0.1", first + 2)):
        cluster = prepare(tmp_path, ports, brokers=3, preferred_port=first, config={})
        assert not {broker.address.port for broker in cluster.brokers} & set(range(first, first + 3))
        assert f"({first} to {first + 2}) is in use" in cluster.notice
    with socket.socket() as unshared:
        unshared.bind(("127.0.0.1", first))
    ports.release()
    again = prepare(tmp_path, ports, preferred_port=first, config={})
    assert (again.bootstrap, again.notice) == (cluster.bootstrap, "")


def test_two_clusters_that_start_at_once_do_not_get_the_same_ports(tmp_path, ports):
    """Neither listens yet, and both sockets have SO_REUSEADDR: the kernel would bind them to one port."""
    first = first_of_free_ports(2)
    prepare(tmp_path / "one", ports, brokers=2, preferred_port=first, config={})
    others = Ports()
    try:
        second = prepare(tmp_path / "two", others, brokers=2, preferred_port=first, config={})
        assert not {broker.address.port for broker in second.brokers} & {first, first + 1}
        assert "is in use" in second.notice
        with pytest.raises(InvalidConfig, match=f"port {first} of 127.0.0.1 cannot be used"):
            prepare(tmp_path / "three", others, brokers=2, base_port=first, config={})
    finally:
        others.release()


def test_a_data_directory_may_be_named_in_any_script(tmp_path, ports):
    """Files of properties are ISO 8859-1."""
    folder = tmp_path / "данные"
    first = prepare(folder, ports, brokers=1, config={})
    ports.release()
    again = prepare(folder, ports, config={})
    assert again.brokers == first.brokers
    assert again.brokers[0].config().log_dirs == str(folder / "broker-1")


def test_a_directory_that_was_moved_is_where_it_is_now(tmp_path, ports):
    """Its brokers would begin with empty logs in the former place, or write into the cluster that it was copied from."""
    prepare(tmp_path / "former", ports, brokers=1, config={})
    ports.release()
    (tmp_path / "former").rename(tmp_path / "present")
    (broker,) = prepare(tmp_path / "present", ports, config={}).brokers
    assert broker.config().log_dirs == str(tmp_path / "present" / "broker-1")


def test_one_of_two_voters_is_no_majority(tmp_path, ports):
    """Half of them elect no controller either."""
    prepare(tmp_path, ports, brokers=2, config={})
    ports.release()
    shutil.rmtree(tmp_path / "broker-2")
    with pytest.raises(InvalidConfig, match="lacks broker-2 of a cluster with 2 voters"):
        prepare(tmp_path, ports, config={})


def test_folders_of_other_users_are_not_swept(tmp_path, monkeypatch):
    """One without a lock is not taken for a dead owner's if it is not this user's."""
    (tmp_path / f"{NAME}x").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    sweep(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [f"{NAME}x"]
    monkeypatch.undo()
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_without_most_of_its_voters_is_refused(tmp_path, ports):
    """The first `up` was killed between two files: it would wait a minute for a controller, and not say why."""
    prepare(tmp_path, ports, brokers=3, config={})
    ports.release()
    shutil.rmtree(tmp_path / "broker-3")
    assert len(prepare(tmp_path, ports, config={}).brokers) == 2  # they are a majority
    ports.release()
    shutil.rmtree(tmp_path / "broker-2")
    with pytest.raises(InvalidConfig, match=r"lacks broker-2, broker-3 of a cluster with 3 voters"):
        prepare(tmp_path, ports, config={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "broker-2/broker.properties has no node.id: restore the file"),
        ("node.id=1\n", "broker-2/broker.properties both have node.id=1: remove the copy"),
        ("log.dirs=C:\\users\n", "broker-2/broker.properties: cannot be read: Invalid .* escape"),
        ("node.id=2\nlog.retention.ms=1\nlog.retention.ms=2\n", "log.retention.ms stands there twice; keep one"),
    ],
)
def test_a_brokers_file_that_is_damaged_or_a_copy_is_refused(tmp_path, ports, text: str, message: str):
    """An empty one was a new cluster of one broker, a copy the same broker twice, the third a traceback.

    Of the last one a line was lost: the files are written again.
    """
    prepare(tmp_path, ports, brokers=2, config={})
    ports.release()
    (tmp_path / "broker-2" / "broker.properties").write_text(text)
    with pytest.raises(InvalidConfig, match=message):
        prepare(tmp_path, ports, config={})


def test_the_ports_of_an_existing_cluster_cannot_be_changed_and_the_message_says_so(tmp_path, ports):
    """`--base-port` does not help there, so it must not be advised."""
    cluster = prepare(tmp_path, ports, brokers=1, config={})
    ports.release()
    port = cluster.brokers[0].address.port
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(InvalidConfig, match="choose another data directory") as refused,
    ):
        prepare(tmp_path, ports, config={})
    assert "--base-port" not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "brokers"), [({"node.id": "5"}, 3), ({"listeners": "x"}, 3), ({"no.such": "1"}, 3), ({}, 0), ({}, 51)]
)
def test_what_would_break_a_cluster_is_refused_before_anything_is_written(tmp_path, ports, config, brokers):
    """One node.id for three brokers, or a setting that none of them would accept."""
    with pytest.raises(InvalidConfig):
        prepare(tmp_path, ports, brokers=brokers, config=config)
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_id_is_what_the_broker_accepts():
    """KAFKA-FACTS 1: 22 characters of URL-safe base64."""
    for _ in range(200):
        made = new_cluster_id()
        assert len(made) == 22
        assert not made.startswith("-")
        assert parse_broker({"cluster.id": made}).config.cluster_id == made


def test_files_are_durable_before_they_are_found(tmp_path: Path, ports: Ports, monkeypatch: pytest.MonkeyPatch):
    """A power failure during the first start left files that were empty or half written."""
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().relative_to(tmp_path)}")
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> Path:
        assert source.read_bytes(), "what is renamed has been written"
        done.append(f"rename to {target.relative_to(tmp_path)}")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    prepare(tmp_path / "data", ports, brokers=1, config={})
    [draft, rename, *folders] = done
    assert draft.startswith("sync data/broker-1/.broker.properties.")
    assert rename == "rename to data/broker-1/broker.properties"
    assert folders == ["sync data/broker-1", "sync data", "sync ."]
    assert [each.name for each in (tmp_path / "data" / "broker-1").iterdir()] == ["broker.properties"]
    assert (tmp_path / "data" / "broker-1" / "broker.properties").stat().st_mode & 0o777 == 0o600
