"""What tests of the console share: a tab that fails on any message, calls of the API, pictures."""

from __future__ import annotations

import hashlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from playwright.sync_api import Browser, Locator, Page

from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.conftest import EXPECT_TIMEOUT_MS

PICTURES = Path("build/console")
REFUSAL = "the server responded with a status of"
HEIGHT = "Math.max(document.documentElement.scrollHeight, document.getElementById('faults').scrollHeight)"
ATTEMPTS = 12
ATTEMPTS_S = 120.0
"""Of a measurement on a machine that does other work too: as many, and for so many seconds."""
WORK_ROUNDS, WORK_S = 50_000, 0.03
"""A piece of work, and the seconds that it takes on a quiet machine like those that the budgets were set on."""
SLOWNESS_MAX = 6.0
"""A page that takes longer than this many budgets fails on any machine."""
LOOK = """(place) => {
    const look = () => document.querySelector(place) ? window.shownMs = performance.now() : requestAnimationFrame(look);
    look();
}"""
"""Notes when an element is first there, in milliseconds since the page was opened."""
HOSTILE = "<img src=x onerror=window.ran=1>"


class Reachable(Protocol):
    """A cluster whose brokers listen."""

    @property
    def bootstrap(self) -> str: ...


@contextmanager
def watched_tab(browser: Browser, cluster: Reachable, *, refusals: bool = False) -> Iterator[Page]:
    """A tab that fails the test on a console message, an error, or a request to another address.

    ``refusals``: the test provokes problems of the API, which browsers report on the console.
    """
    tab = patient_tab(browser)
    tab.set_viewport_size({"width": 1400, "height": 900})
    wrong: list[str] = []
    home = url_of(cluster)
    tab.on("console", lambda each: None if refusals and REFUSAL in each.text else wrong.append(each.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda request: None if request.url.startswith((home, "data:")) else wrong.append(request.url))
    yield tab
    tab.close()
    assert wrong == [], wrong


def patient_tab(browser: Browser) -> Page:
    """A tab whose actions wait as long as `expect` does: a machine may stand still for longer than Playwright's 30 s."""
    tab = browser.new_page()
    tab.set_default_timeout(EXPECT_TIMEOUT_MS)
    return tab


def url_of(cluster: Reachable) -> str:
    """The address of broker 1."""
    return f"http://{cluster.bootstrap.split(',')[0]}"


def call(cluster: Reachable, path: str, body: Any = None, method: str | None = None) -> Any:
    """The response of broker 1; HTTPError for a refusal."""
    data = None if body is None else json.dumps(body).encode()
    sent = urllib.request.Request(url_of(cluster) + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(sent) as answer:
        return json.load(answer)


def create(cluster: Reachable, topic: str, *, partitions: int = 1) -> str:
    """A topic with three replicas; the path of its partition 0. The faults of a test before may have ended just now: a
    controller that stepped down may have created it, and its successor says so.
    """
    wanted = {"name": topic, "partitions": partitions, "replication_factor": 3}
    deadline = time.monotonic() + EXPECT_TIMEOUT_MS / 1000
    may_be_there = False
    while True:
        try:
            call(cluster, "/v1/topics", wanted)
        except urllib.error.HTTPError as error:
            problem = json.load(error)
            may_be_there |= problem["outcome"] == "unknown"
            if may_be_there and problem["error"] == "TOPIC_ALREADY_EXISTS":
                break
            is_worth_another = error.code == HTTPStatus.SERVICE_UNAVAILABLE or problem["outcome"] == "unknown"
            if not is_worth_another or time.monotonic() > deadline:
                raise AssertionError(problem) from error
            time.sleep(0.2)
        else:
            break
    return f"/v1/topics/{topic}/partitions/0"


def delete_topic(cluster: Reachable, topic: str) -> None:
    """The response has no body."""
    urllib.request.urlopen(urllib.request.Request(f"{url_of(cluster)}/v1/topics/{topic}", method="DELETE")).close()


def led_by_another(cluster: Reachable, topic: str, node: int = 1) -> tuple[int, int]:
    """A partition of a new topic that ``node`` does not lead, and its leader. Broker 1 serves the page."""
    create(cluster, topic, partitions=3)
    listed = call(cluster, f"/v1/topics/{topic}/partitions")["partitions"]
    return next((each["partition"], each["leader"]) for each in listed if each["leader"] != node)


def produce(cluster: Reachable, path: str, *records: dict[str, Any], acks: str = "all") -> None:
    """Write records to a partition."""
    call(cluster, f"{path}/records?acks={acks}", {"records": list(records)})


def hold_fetches(cluster: LocalCluster, path: str, leader: int) -> None:
    """Hold the fetches of both followers, and write a record, which those that wait at the leader still take along."""
    held = cluster.faults.hold(f"*>{leader}", api="Fetch")
    produce(cluster, path, {"value": "the last that followers fetch"}, acks="1")
    deadline = time.monotonic() + EXPECT_TIMEOUT_MS / 1000
    while held.hits < 2:
        assert time.monotonic() < deadline, held
        time.sleep(0.01)


def until(page: Page, met: Callable[[], object]) -> None:
    """Return when ``met()`` is true; AssertionError when patience ends. The tab's own events go on meanwhile."""
    deadline = time.monotonic() + EXPECT_TIMEOUT_MS / 1000
    while not met():
        assert time.monotonic() < deadline, "the condition was not met in time"
        page.wait_for_timeout(50)


def slowness() -> float:
    """Return how many times longer than WORK_S a fixed piece of work takes now: 1 to SLOWNESS_MAX. It needs no GIL."""
    began = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", WORK_ROUNDS)
    return min(max(1.0, (time.perf_counter() - began) / WORK_S), SLOWNESS_MAX)


def within(measure: Callable[[], dict[str, float]], **budget: float) -> dict[str, float]:
    """The best of each value, once all are within the budget; AssertionError with all measurements if that does not happen.

    Budgets are those of a quiet machine. This one does other work too: each value is divided by the machine's slowness, the
    smaller one of before and after its measurement, and there are at least ATTEMPTS of them, and as many as fit into
    ATTEMPTS_S.
    """
    deadline = time.monotonic() + ATTEMPTS_S
    found: list[tuple[float, dict[str, float]]] = []
    while len(found) < ATTEMPTS or time.monotonic() < deadline:
        before, measured = slowness(), measure()
        found.append((min(before, slowness()), measured))
        best = {name: min(each[name] / slow for slow, each in found) for name in budget}
        if all(best[name] <= most for name, most in budget.items()):
            return best
    raise AssertionError(f"wanted {budget}, measured (slowness, values) {found}")


def end_of(page: Page, node: int) -> Locator:
    """The cell with the log end offset of a replica."""
    return page.locator(f"[data-values='{node}'] td").nth(3)


def watermark_of(page: Page, node: int) -> Locator:
    """The cell with the high watermark of a replica."""
    return page.locator(f"[data-values='{node}'] td").nth(5)


def take_pictures(page: Page, name: str) -> None:
    """At both widths, in both themes; kept under build/ for people to look at."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for width in (1400, 400):
        for theme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            # A chart follows the width of its section one frame later.
            page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
            # As high as the contents: what stays at the foot of the window must not cover them.
            page.set_viewport_size({"width": width, "height": max(900, page.evaluate(HEIGHT))})
            page.screenshot(path=PICTURES / f"{name}-{width}-{theme}.png")
    page.set_viewport_size({"width": 1400, "height": 900})
