"""Which modules a broker process does without."""

from __future__ import annotations

import subprocess
import sys


def test_a_broker_does_not_load_what_only_tables_need() -> None:
    """Each module costs every broker memory and time at its start."""
    assert run("import sys, minikafka.cli.foreground; print('rich.console' in sys.modules)") == "False\n"


def run(code: str) -> str:
    """What another Python prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


SERVED = """
import sys
from minikafka.cli.root import PACKAGES, defer
defer(*PACKAGES)
import minikafka.cli.foreground
from minikafka.hosting.local_broker import load_doors
from minikafka.world.http_server import FRAME_CODE, GENERAL_CODE
load_doors()
GENERAL_CODE.load()
FRAME_CODE.load()
"""


def test_a_broker_does_not_load_the_clients_of_its_libraries() -> None:
    """aiohttp's client loads all trusted certificates; of aiokafka only the record codec is used. What writes metrics as
    text loads HTTP servers, and is loaded by the first scrape. A broker needs none of this project's clients either.
    """
    unwanted = ("aiohttp.client", "aiohttp.connector", "aiokafka.client", "aiokafka.consumer", "xml.etree")
    unwanted += ("prometheus_client.exposition", "prometheus_client.metrics", "http.server", "wsgiref")
    unwanted += ("minikafka.world.clients", "minikafka.client.settings", "minikafka.check", "minikafka.testing")
    unwanted += ("minikafka.lab", "minikafka.sim")  # stories are played for the first time when one is requested
    assert run(SERVED + f"print([name for name in {unwanted} if name in sys.modules])") == "[]\n"


def test_a_deferred_package_loads_when_more_of_it_is_used() -> None:
    """Code that needs a whole package notices nothing, whichever way it imports it."""
    uses = """
import aiohttp, aiokafka, javaproperties, types
from aiohttp import ClientSession, web
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from prometheus_client import Counter, generate_latest
from crc32c import CRC32CHash, crc32c
from aiohttp import *
assert aiohttp.ClientSession is ClientSession is sys.modules["aiohttp.client"].ClientSession
assert aiohttp.web is web is sys.modules["aiohttp.web"]
assert issubclass(aiokafka.errors.KafkaConnectionError, KafkaError)
assert CRC32CHash(b"tea").checksum == crc32c(b"tea")
assert javaproperties.Properties and aiohttp.__version__ and aiohttp.hdrs and FormData
assert {type(sys.modules[name]) for name in PACKAGES} == {types.ModuleType}
try:
    javaproperties.nothing
except AttributeError as error:
    print(error)
"""
    assert run(SERVED + uses) == "module 'javaproperties' has no attribute 'nothing'\n"


def test_a_loaded_or_missing_package_is_not_deferred() -> None:
    """What is there stays, and a package that is not installed stays missing."""
    code = """
import sys, types, javaproperties
from minikafka.cli.root import defer
defer("javaproperties", "no_such_package")
print(type(sys.modules["javaproperties"]) is types.ModuleType, "no_such_package" in sys.modules)
"""
    assert run(code) == "True False\n"


def test_no_garbage_is_collected_while_a_command_loads() -> None:
    """A collection looks at every object of every module that was loaded before; afterwards it runs as before."""
    code = """
import gc, sys
import click
from minikafka.cli.root import root
seen = []
class Loading:
    def find_spec(self, name, *_):
        if name == "minikafka.config.broker":
            seen.append(gc.isenabled())
sys.meta_path.insert(0, Loading())
assert root.get_command(click.Context(root), "serve").name == "command"
print(seen, gc.isenabled())
"""
    assert run(code) == "[False] True\n"


IDLE = """
import asyncio, socket, sys, tempfile
from minikafka.cli.root import PACKAGES, defer
defer(*PACKAGES)
import minikafka.cli.foreground
from minikafka.config import parse_broker
from minikafka.hosting.local_broker import LocalBroker
from minikafka.rpc import call
from minikafka.wire.messages import MetadataRequest

async def idle(folder):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {"node.id": "1", "process.roles": "broker,controller", "log.dirs": folder}
    settings |= {"listeners": f"PLAINTEXT://{address}", "controller.quorum.voters": f"1@{address}"}
    broker = LocalBroker(parse_broker(settings).config, log_level=100)
    await broker.start()
    await broker.wait_ready(120)
    deadline = asyncio.get_running_loop().time() + 60
    response = await call(broker.broker.world.network, broker.address, MetadataRequest(), deadline)
    assert [each.node_id for each in response.brokers] == [1]
    loaded = set(sys.modules)
    await broker.stop()
    return loaded

with tempfile.TemporaryDirectory() as folder:
    loaded = asyncio.run(idle(folder))
"""


def test_an_idle_broker_has_no_code_for_visitors_and_kafka_clients() -> None:
    """Issue 15: aiohttp with the routes of /v1 is a quarter of a broker's memory. It is loaded with the first visitor, and
    Kafka's protocol with its first client.
    """
    late = ("aiohttp.web", "attr", "email", "minikafka.rest.route", "minikafka.rest.metrics.families")
    late += ("minikafka.world.http_requests", "minikafka.world.kafka_connection", "minikafka.wire.kafka.codec")
    assert run(IDLE + f"print([name for name in {late} if name in loaded])") == "[]\n"
