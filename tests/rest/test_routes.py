"""The table of doors: what it says is what is served, and every line of it says enough."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections import Counter
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import aiohttp
import pytest
from aiohttp import web
from openapi_spec_validator import validate

from minikafka import rest
from minikafka.config import BrokerConfig, table
from minikafka.errors import BY_NAME, ProtocolError, TopicAuthorizationFailed
from minikafka.rest import json_text, routes
from minikafka.rest.docs import curl_of, document, operation_id_of, problem_pages, render
from minikafka.rest.parameters import values_of
from minikafka.rest.route import Route, Stream
from minikafka.rest.routes import ROUTES, Doors
from minikafka.rest.schemas import CLUSTER_ID_EXAMPLE
from minikafka.web.problems import STATUS
from minikafka.world.states import ANY
from tests.rest.conform import check, route_of
from tests.rest.fake_brokers import FakeCluster


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_a_route_declares_the_variable_parts_of_its_path(route):
    """A part that is not declared could not be read, and one that is declared twice would be read once."""
    declared = [each.name for each in route.parameters if each.place == "path"]
    assert declared == re.findall(r"\{(\w+)\}", route.path)
    names = [each.name for each in route.parameters]
    assert len(names) == len(set(names))
    assert route.handler.__doc__


def check_contents(contents):
    for media_type, (schema, example) in contents.items():
        if example is not None:
            check(schema, example)
        assert "/" in media_type


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_examples_are_what_the_schemas_say(route):
    """An example that is wrong teaches what does not work."""
    for status, answer in route.answers.items():
        assert 200 <= status < 300
        check_contents(answer.contents)
    if route.body is not None:
        check_contents(route.body.contents)


SHAPES_BY_HAND = {
    "docs.py",
    "model.py",
    "proxy.py",
    "schema.py",
    "schemas.py",
    "testing_faults.py",
    "testing_hooks.py",
}


def test_objects_are_declared_as_models():
    """Issue 16, part 2: an object that is described by hand is written again for its example and for its output."""
    sources = Path(rest.__file__).parent.glob("*.py")
    by_hand = {path.name for path in sources if re.search(r"\bshape\(", path.read_text(encoding="utf-8"))}
    assert by_hand <= SHAPES_BY_HAND, "declare a Model (rest/model.py)"


def test_no_two_routes_are_one():
    """The second would never be reached."""
    names = [re.sub(r"\{\w+\}", "{}", name_of(route)) for route in ROUTES]
    assert len(names) == len(set(names))


# ---- the description -------------------------------------------------------------------------------------------------


def test_the_description_is_openapi_3_1():
    """Every generator and fuzzer must be able to read it."""
    validate(document(ROUTES))


def test_the_description_and_the_server_have_the_same_doors():
    """What is described is mounted, what is mounted is described."""
    application = web.Application()
    Doors()(application)
    mounted = {
        (each.method, each.resource.canonical)
        for each in application.router.routes()
        if each.method not in ("HEAD", "*") and each.resource is not None
    }
    described = {
        (method.upper(), path) for path, operations in document(ROUTES)["paths"].items() for method in operations
    }
    assert mounted == described == {(route.method, route.path) for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_an_operation_says_enough(route):
    """A schema and an example for what comes back, every status that its errors have, a sentence for each parameter."""
    operation = document([route])["paths"][route.path][route.method.lower()]
    assert operation["summary"]
    for status, answer in operation["responses"].items():
        content = next(iter(answer["content"].values()))
        assert content["schema"]
        if status != "default":
            assert answer["description"]
            assert "example" in content or "examples" in content or status == "207"
    for kind in route.problems:
        assert str(STATUS[kind]) in operation["responses"]
    for parameter in operation.get("parameters", ()):
        assert parameter["description"]
        if "default" in parameter["schema"]:
            check(parameter["schema"], parameter["schema"]["default"])


def test_operation_ids_are_one_of_a_kind():
    """Generated clients name their methods so."""
    ids = [operation_id_of(route) for route in ROUTES]
    assert len(ids) == len(set(ids))


class Balanced(HTMLParser):
    """Raises when a tag is closed that is not the one that is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone():
    """Offline: no script, nothing from elsewhere; every door and every error is on it."""
    found = document(ROUTES)
    page = render(found, problem_pages()).decode()
    reader = Balanced()
    reader.feed(page)
    assert reader.open == []
    assert all(each.startswith(("#", "/docs/problems/", "/openapi.json")) for each in reader.addresses)
    assert "<script" not in page
    assert "url(" not in page
    for route in ROUTES:
        assert f"<b>{route.method}</b> <code>{route.path}</code>" in page
    for error in BY_NAME:
        assert error in page


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_the_command_of_a_route_reaches_it(route):
    """`curl --json` is a POST by itself: commands of PUT and PATCH were shown without their method and answered 405."""
    operation = document([route])["paths"][route.path][route.method.lower()]
    words = shlex.split(curl_of(route.method, route.path, operation))
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if {"--json", "--data"} & set(words) else "GET"
    path, _, query = words[-1].removeprefix("http://127.0.0.1:9092").partition("?")
    assert route_of(method, path) is route
    required = {
        each["name"] for each in operation.get("parameters", ()) if each["in"] == "query" and "required" in each
    }
    assert {name for name, _ in parse_qsl(query)} == required or query == route.query
    assert ("requestBody" in operation) == bool({"--json", "--data"} & set(words))


@pytest.mark.parametrize("path", ["/v1/brokers/{broker}/configs", "/v1/cluster/configs"])
def test_the_command_that_alters_brokers_names_settings_of_brokers(path):
    """The lines on `/docs` had a topic's setting and answered 422."""
    words = shlex.split(curl_of("PATCH", path, document(ROUTES)["paths"][path]["patch"]))
    assert set(json.loads(words[words.index("--json") + 1])["config"]) <= table(BrokerConfig).keys()


def test_the_command_that_waits_says_for_what():
    """The line on `/docs` had no query and answered 400: there was nothing to wait for."""
    words = shlex.split(curl_of("GET", "/v1/wait", document(ROUTES)["paths"]["/v1/wait"]["get"]))
    query = parse_qsl(words[-1].partition("?")[2])
    route = route_of("GET", "/v1/wait")
    values, _ = values_of(route.parameters, path={}, query={name: [value] for name, value in query}, headers={})
    assert (values["topic"], values["leader"]) == ("orders", ANY)


async def test_the_commands_on_the_page_have_the_address_and_the_cluster_id_of_its_broker():
    """A line copied from the page of a broker on another port went to whatever listens on 9092, and the cluster id of
    the proxy's routes had to be looked up first.
    """
    async with FakeCluster(1) as cluster, aiohttp.ClientSession() as http:
        url = cluster.brokers[1].url
        async with http.get(f"{url}/docs") as answer:
            page = await answer.text()
        assert f"curl {url}/v1/topics" in page
        assert "127.0.0.1:9092" not in page
        assert f"{url}/v3/clusters/{cluster.image().cluster_id}/topics/orders/records" in page
        assert CLUSTER_ID_EXAMPLE not in page
        for method, path, parameter in (
            ("GET", "/v1/history/replay", "partition"),
            ("DELETE", "/v1/groups/g/offsets", "topic"),
        ):
            async with http.request(method, f"{url}{path}") as answer:
                problem = await answer.json()
                assert (answer.status, problem["errors"][0]["parameter"]) == (400, parameter)
                assert problem["detail"].startswith(f"parameter {parameter}: is missing; such as {parameter}=orders")


def test_the_page_escapes_what_it_shows():
    """A description is text."""
    found = document(ROUTES)
    found["info"]["description"] = '<b onclick="x">&'
    assert "&lt;b onclick=&quot;x&quot;&gt;&amp;" in render(found, []).decode()


def test_hints_lead_to_doors_that_exist():
    """A page that sends people to a 404 is worse than none."""
    for page in problem_pages():
        for line in page["look_at"]:
            path = line.removeprefix("curl http://127.0.0.1:9092")
            assert route_of("GET", path) is not None, line


async def test_the_description_is_served_with_what_is_open():
    """Testing doors are described where they are open, and nowhere else."""
    for testing in (False, True):
        async with FakeCluster(1, testing_endpoints_enable=testing) as cluster, aiohttp.ClientSession() as http:
            url = cluster.brokers[1].url
            for path in ("/openapi.json", "/openapi"):
                async with http.get(url + path) as response:
                    found = await response.json()
                    assert ("/v1/wait" in found["paths"]) == testing
            async with http.get(url + "/docs", headers={"Accept": "text/html,*/*;q=0.8"}) as response:
                assert response.content_type == "text/html"
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                assert ("/v1/wait" in await response.text()) == testing
            async with http.get(url + "/docs/problems") as response:
                assert len((await response.json())["problems"]) == len(BY_NAME)


@pytest.mark.parametrize("ends", ["denied", "server stops"])
async def test_a_reader_that_takes_nothing_does_not_hold_up_the_end_of_its_stream(monkeypatch, ends):
    """What is written last waited without a limit: a reader that had lost its permission kept one of the streams."""
    monkeypatch.setattr(routes, "STREAM_WRITE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(routes, "LOOK_S", 0.01)
    monkeypatch.setattr(routes, "RECHECK_S", 0.0)
    aborted = asyncio.Event()
    ending = asyncio.Event()

    async def write(_data: bytes) -> None:
        await asyncio.Event().wait()

    async def silence() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def refused(*_: Any) -> ProtocolError:
        return TopicAuthorizationFailed("no more")

    visit = SimpleNamespace(
        http=SimpleNamespace(transport=SimpleNamespace(abort=aborted.set)),
        host=SimpleNamespace(world=SimpleNamespace(clock=SimpleNamespace(now=asyncio.get_running_loop().time))),
        doors=SimpleNamespace(ending=ending),
        count_bytes=lambda _: 0,
    )
    monkeypatch.setattr(routes, "_refusal_now", refused)
    if ends != "denied":
        monkeypatch.setattr(routes, "RECHECK_S", 1e9)
        ending.set()
    stream = Stream(silence(), json_text.EVENT_STREAM, farewell=json_text.FAREWELL)
    async with asyncio.timeout(30):
        await routes._pump(None, visit, SimpleNamespace(write=write), stream, routes._plain)
    assert aborted.is_set()


async def test_a_reader_that_leaves_before_its_stream_begins_is_no_failure(monkeypatch: pytest.MonkeyPatch):
    """The log had an error with a traceback, as after a bug, for each client that gave up in that moment."""

    async def has_left(*_: Any) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(web.StreamResponse, "prepare", has_left)
    doors = SimpleNamespace(streams=Counter())
    visit = SimpleNamespace(
        http=SimpleNamespace(headers=SimpleNamespace(getall=lambda *_: ()), method="GET"),
        host=SimpleNamespace(node_id=1),
        context=SimpleNamespace(principal="User:ann", remote="127.0.0.1"),
        doors=doors,
        served_by=[],
        leaders=[],
    )

    async def chunks() -> AsyncIterator[bytes]:
        yield b""

    response = await routes._streamed(None, visit, Stream(chunks(), json_text.EVENT_STREAM))
    assert not response.prepared
    assert not doors.streams
