"""A real browser on the machine of a real broker: pages elsewhere get nothing and change nothing (web/gate.py)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.conftest import EXPECT_TIMEOUT_MS, FLAGS, LAUNCH_TIMEOUT_MS, chromium_path

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

REQUEST = """async ([url, options]) => {
    try {
        const answer = await fetch(url, options);
        return [answer.type, answer.status, await answer.text()];
    } catch (error) { return ["failed", 0, String(error)]; } }"""


class _Blank(BaseHTTPRequestHandler):
    """A page of some other site, by whatever name it was asked for."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
        """Nobody reads it."""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """The port of a web server on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Blank) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server.server_port
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def cluster(elsewhere: int) -> Iterator[LocalCluster]:
    """One broker that lets the pages of ``localhost`` in, not those of ``127.0.0.1``."""
    config = {"mk.http.allowed.origins": f"http://localhost:{elsewhere}", "mk.testing.endpoints.enable": "true"}
    with LocalCluster(brokers=1, config=config) as running:
        yield running


@pytest.fixture(scope="module")
def rebound() -> Iterator[Browser]:
    """A browser for which every name below ``evil.example`` points to this machine."""
    with sync_playwright() as playwright:
        rule = "--host-resolver-rules=MAP *.evil.example 127.0.0.1"
        launched = playwright.chromium.launch(
            executable_path=chromium_path(), args=[*FLAGS, rule], timeout=LAUNCH_TIMEOUT_MS
        )
        yield launched
        launched.close()


def ask(page: Page, url: str, **options: Any) -> list[Any]:
    answer: list[Any] = page.evaluate(REQUEST, [url, options])
    return answer


def test_pages_see_and_do_what_their_origin_and_name_allow(cluster: LocalCluster, elsewhere: int, rebound: Browser):
    """One browser, three pages: elsewhere, of an allowed origin, and one that rebinds its name to the broker."""
    url = f"http://{cluster.bootstrap}"
    page = rebound.new_page()
    page.set_default_timeout(EXPECT_TIMEOUT_MS)

    page.goto(f"http://127.0.0.1:{elsewhere}/")
    simple = {"method": "POST", "mode": "no-cors", "headers": {"Content-Type": "text/plain"}}
    for path, body in (("/v1/topics", '{"name":"planted"}'), ("/rpc/CreateTopics", '{"topics":[{"name":"planted"}]}')):
        assert ask(page, url + path, body=body, **simple)[0] == "opaque"  # it was sent; the page cannot see more
        form = {**simple, "headers": {"Content-Type": "application/x-www-form-urlencoded"}}
        assert ask(page, url + path, body=body, **form)[0] == "opaque"
        json = {"method": "POST", "headers": {"Content-Type": "application/json"}}
        assert ask(page, url + path, body=body, **json)[0] == "failed"  # the preflight says no
    assert ask(page, url + "/v1/faults", method="POST", mode="no-cors", body="{}")[0] == "opaque"
    assert ask(page, url + "/v1/topics")[0] == "failed"

    page.goto(f"http://localhost:{elsewhere}/")
    kind, status, told = ask(page, url + "/v1/topics")
    assert (kind, status, "planted" in told) == ("cors", 200, False)
    made = ask(page, url + "/v1/topics", body='{"name":"wanted"}', **json)
    assert made[:2] == ["cors", 201]
    assert ask(page, url + "/v1/topics/wanted", method="DELETE")[:2] == ["cors", 200]

    page.goto(f"http://www.evil.example:{elsewhere}/")
    assert page.title() == "a page"  # the name does point here
    answer = page.goto(f"http://www.evil.example:{cluster.bootstrap.rpartition(':')[2]}/v1/topics")
    assert answer is not None
    assert (answer.status, "mk.http.allowed.hosts" in answer.text()) == (403, True)
    own = page.goto(url + "/docs")
    assert own is not None
    assert own.status == 200
    page.close()
