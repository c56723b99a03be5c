"""The benchmark's side of Apache Kafka: what can be held true without a Java (the third promise, issue 5 Build 6)."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11
from aiokafka.protocol.metadata import MetadataRequest_v4
from aiokafka.protocol.produce import ProduceRequest_v8, ProduceResponse_v8

from minikafka.spark.session import NoJava
from minikafka.types import Address
from tests.bench import kafka_jars, kafka_processes, kafka_rows, kafka_wire
from tests.bench.kafka_jars import Jar, NoKafka, cache_folder, fetch_all, kafka_version, parse, pinned
from tests.bench.kafka_wire import BrokerError, Connections, fetch_answer, fetch_request, produce_answer

CORRELATION = bytes(4)


def test_the_pinned_list_is_one_kafka_and_what_it_needs():
    """A broker of another version than its libraries would be something else than Apache Kafka."""
    jars = pinned()
    own = {jar.path.split("/")[-2] for jar in jars if jar.path.startswith("org/apache/kafka/")}
    assert own == {kafka_version(jars)}
    assert len({jar.name for jar in jars}) == len(jars)
    assert [jar.path for jar in jars] == sorted(jar.path for jar in jars)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "a/b.jar",
        f"{'a' * 63}  a/b.jar",
        f"{'A' * 64}  a/b.jar",
        f"{'a' * 64} a/b.jar",
        f"{'a' * 64}  ../b.jar",
        f"{'a' * 64}  /b.jar",
        f"{'a' * 64}  a/b.zip",
        f"{'a' * 64}  a/b.jar?x",
    ],
)
def test_a_line_that_is_no_pin_is_refused(line):
    """What is fetched and run is what the list says, so the list says it in one way."""
    with pytest.raises(ValueError, match="SHA-256"):
        parse(f"{'b' * 64}  a/ok.jar\n{line}\n")


def test_a_jar_is_fetched_once_and_only_if_it_is_the_pinned_one(tmp_path):
    """Another file than the pinned one never reaches the cache, nor a Java."""
    repository, cache = tmp_path / "repository", tmp_path / "cache"
    (repository / "a").mkdir(parents=True)
    (repository / "a" / "b-1.jar").write_bytes(b"kafka")
    jar = Jar("a/b-1.jar", hashlib.sha256(b"kafka").hexdigest())
    place = cache / "b-1.jar"
    assert fetch_all([jar], cache, repository.as_uri()) == [place]
    assert place.read_bytes() == b"kafka"
    (repository / "a" / "b-1.jar").write_bytes(b"other")
    assert fetch_all([jar], cache, repository.as_uri()) == [place]
    place.write_bytes(b"damaged")
    with pytest.raises(NoKafka, match=r"not the file that kafka_jars\.txt pins"):
        fetch_all([jar], cache, repository.as_uri())
    assert place.read_bytes() == b"damaged"
    (repository / "a" / "b-1.jar").unlink()
    with pytest.raises(NoKafka, match=kafka_jars.REPOSITORY_VARIABLE):
        fetch_all([jar], cache, repository.as_uri())


async def test_without_a_java_there_is_a_sentence_and_no_row(monkeypatch, capsys):
    """The part is optional: `make bench` measures the rest."""

    def none() -> None:
        raise NoJava("Tried: nothing. Install one")

    monkeypatch.setattr(kafka_processes, "java_home", none)
    assert await kafka_rows.kafka_rows(kafka_rows.QUICK) == []
    assert capsys.readouterr().err.startswith("Apache Kafka is left out: Apache Kafka needs Java 17 or newer: ")


def test_three_brokers_are_set_up_as_ours_are():
    """Equal replicas, equal in-sync replicas; what is not said is Kafka's default."""
    java = kafka_processes.Java(Path("java"), "jars", "4.3.1")
    broker = kafka_processes.KafkaBroker(java, Path("/data/broker-2"), 2, 9092)
    lines = kafka_processes.server_properties(broker, {1: 11, 2: 12, 3: 13}).splitlines()
    settings = dict(line.split("=", maxsplit=1) for line in lines)
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13"
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:12"
    assert (settings["min.insync.replicas"], settings["offsets.topic.replication.factor"]) == ("2", "3")
    assert not [name for name in settings if "flush" in name]


def test_the_cache_is_where_the_environment_says(tmp_path):
    """Its own variable, else the XDG one."""
    given = {"MINIKAFKA_BENCH_CACHE": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"}
    assert cache_folder(given) == tmp_path
    assert str(cache_folder({"XDG_CACHE_HOME": "/elsewhere"})) == "/elsewhere/minikafka-bench"


def test_requests_are_those_of_aiokafkas_classes():
    """An encoder by hand, held against one that real brokers are used with."""
    batch = b"the batch"
    produce = ProduceRequest_v8(None, -1, kafka_wire.TIMEOUT_MS, [("tea", [(3, batch)])])
    assert b"".join(kafka_wire.produce_request("tea", 3, batch, -1)) == kafka_wire.struct_request(produce)
    fetch = FetchRequest_v11(-1, 500, 1, 4096, 0, 0, -1, [("tea", [(3, -1, 77, -1, 4096)])], [], "")
    assert fetch_request("tea", 3, 77, 4096) == kafka_wire.struct_request(fetch)


def produce_response(code: int) -> bytes:
    told = [] if not code else [(0, "why")]
    return CORRELATION + ProduceResponse_v8([("tea", [(3, code, 41, -1, 0, told, None)])], 0).encode()


def fetch_response(code: int, partition_code: int, records: bytes, aborted: list[tuple[int, int]] | None) -> bytes:
    partition = (3, partition_code, 100, 90, 0, aborted, -1, records)
    return CORRELATION + FetchResponse_v11(0, code, 0, [("tea", [partition])]).encode()


def test_answers_are_read_as_aiokafka_writes_them():
    """Where the records are depends on what stands before them."""
    assert produce_answer(produce_response(0)).base_offset == 41
    for aborted in (None, [], [(7, 12), (8, 13)]):
        assert fetch_answer(fetch_response(0, 0, b"records", aborted)) == b"records"
    assert fetch_answer(fetch_response(0, 0, b"", None)) == b""


def test_an_error_code_is_never_taken_for_an_acknowledgement():
    """A benchmark that counted refusals would be fast."""
    with pytest.raises(BrokerError, match="Produce with error 19"):
        produce_answer(produce_response(19))
    with pytest.raises(BrokerError, match="partition with error 1"):
        fetch_answer(fetch_response(0, 1, b"", None))
    with pytest.raises(BrokerError, match="Fetch with error 71"):
        fetch_answer(fetch_response(71, 0, b"", None))


@pytest.mark.parametrize("size", [0, 5, 16 * 1024 - 4, 16 * 1024, 300_000])
async def test_an_answer_may_come_in_pieces(size):
    """TCP has no frames; small answers are read with their head, large ones into their place."""
    answer = bytes(index % 251 for index in range(size))
    asked = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while length := await reader.read(4):
            asked.append(await reader.readexactly(int.from_bytes(length)))
            frame = len(answer).to_bytes(4) + answer
            for piece in (frame[:1], frame[1:3], frame[3:9], frame[9:]):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connections = Connections()
    async with server:
        peer = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        request = kafka_wire.struct_request(MetadataRequest_v4(["tea"], False))
        for _ in range(2):
            assert await connections.call(peer, request) == answer
        assert asked == [request[4:]] * 2
        connections.close()
        with pytest.raises(kafka_wire.Lost):
            await connections.call(peer, request)
