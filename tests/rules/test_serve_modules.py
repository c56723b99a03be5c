"""Which modules a broker process does without."""

from __future__ import annotations

import subprocess
import sys


def test_a_broker_does_not_load_what_only_tables_need() -> None:
    """Each module costs every broker memory and time at its start."""
    assert run("import sys, minikafka.cli.serve; print('rich.console' in sys.modules)") == "False\n"


def run(code: str) -> str:
    """What another Python prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


SERVED = """
import sys
from minikafka.cli.root import PACKAGES, defer
defer(*PACKAGES)
import minikafka.cli.serve
from minikafka.hosting.local_broker import load_doors, load_kafka_door
load_doors()
load_kafka_door()
"""


def test_a_broker_does_not_load_the_clients_of_its_libraries() -> None:
    """aiohttp's client loads all trusted certificates; of aiokafka only the record codec is used. What writes metrics as
    text loads HTTP servers, and is loaded by the first scrape. A broker needs none of this project's clients either.
    """
    unwanted = ("aiohttp.client", "aiohttp.connector", "aiokafka.client", "aiokafka.consumer", "xml.etree")
    unwanted += ("prometheus_client.exposition", "prometheus_client.metrics", "http.server", "wsgiref")
    unwanted += ("minikafka.world.clients", "minikafka.client.admin", "minikafka.check", "minikafka.testing")
    assert run(SERVED + f"print([name for name in {unwanted} if name in sys.modules])") == "[]\n"


def test_a_deferred_package_loads_when_more_of_it_is_used() -> None:
    """Code that needs a whole package notices nothing, whichever way it imports it."""
    uses = """
import aiohttp, aiokafka, javaproperties, types
from aiohttp import ClientSession, web
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from prometheus_client import Counter, generate_latest
from aiohttp import *
assert aiohttp.ClientSession is ClientSession is sys.modules["aiohttp.client"].ClientSession
assert aiohttp.web is web is sys.modules["aiohttp.web"]
assert issubclass(aiokafka.errors.KafkaConnectionError, KafkaError)
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
        if name == "minikafka.broker.broker":
            seen.append(gc.isenabled())
sys.meta_path.insert(0, Loading())
assert root.get_command(click.Context(root), "serve").name == "command"
print(seen, gc.isenabled())
"""
    assert run(code) == "[False] True\n"
