"""Acceptance checks of the console that need a small screen, a large topic, the keyboard or axe (PAGE 9.6, 9.7, 9.16, 9.19, 9.20)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.console_kit import call, create, led_by_another, produce, take_pictures, url_of, watched_tab
from tests.e2e.haste import SHORT_SESSIONS
from tools import build_console

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

CONFIG = {**SHORT_SESSIONS, "mk.testing.endpoints.enable": "true"}
PHONE = {"width": 400, "height": 800}
PARTITION_COUNT = 300
"""Enough for the small form of the matrix: a thousand takes half a minute to create on a busy machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=CONFIG) as running:
        yield running


@pytest.fixture
def page(browser: Browser, cluster: LocalCluster) -> Iterator[Page]:
    with watched_tab(browser, cluster) as tab:
        yield tab
    cluster.faults.heal()


@pytest.mark.web
def test_axe_finds_nothing_in_any_view_in_both_themes(browser: Browser, cluster: LocalCluster):
    """PAGE 9.19: the rules of axe-core, with contrast, on every view with contents."""
    build_console.install()
    axe = (build_console.MODULES / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    path = create(cluster, "seen")
    produce(cluster, path, {"key": "k", "value": "tea", "headers": [["a", "b"]]})
    call(cluster, "/v1/groups/seen/offsets", {"offsets": [{"topic": "seen", "partition": 0, "offset": 0}]}, "PUT")
    views = {
        "#/": "seen",
        "#/t": "seen",
        "#/t/seen": "in sync",
        "#/t/seen/0": "Producers and transactions",
        "#/t/seen/0/records": "✓ committed",
        "#/t/seen/0/events": "took up leadership",
        "#/g": "seen-0",
        "#/g/seen": "1 record behind",
        "#/e": "topic created",
        "#/lab": "data-loss",
        "#/lab/data-loss": "part at step",
        "docs": "What curl can do to a minikafka broker",
    }
    wrong: list[Any] = []
    with watched_tab(browser, cluster) as page:
        for view, text in views.items():
            page.goto(f"{url_of(cluster)}/{view}")
            page.reload()
            expect(page.locator("main")).to_contain_text(text)
            if view == "#/t/seen/0":
                page.get_by_role("button", name="Faults").click()
                page.get_by_role("button", name="Pause", exact=True).first.wait_for()
            page.evaluate(axe)
            for theme in ("light", "dark"):
                page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
                found = page.evaluate(
                    "axe.run().then(({ violations }) => violations.map((each) => [each.id, each.nodes[0].html]))"
                )
                wrong += [(view, theme, *each) for each in found]
    assert wrong == []


@pytest.mark.parametrize("width", [320, 420, 1280])
def test_the_api_reference_does_not_scroll_sideways(page: Page, cluster: LocalCluster, width: int):
    """Tables of parameters and errors wrap, on a phone too; only examples scroll, each by itself."""
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{url_of(cluster)}/docs")
    page.evaluate("() => { for (const each of document.querySelectorAll('details')) each.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_dead_leader_and_its_return_are_told_in_events(page: Page, cluster: LocalCluster):
    """PAGE 9.6 and 9.7: no word, one election with its reason, then the way back into the ISR."""
    number, leader = led_by_another(cluster, "mortal")
    page.goto(f"{url_of(cluster)}/#/t/mortal/{number}")
    lane = page.locator(f"[data-replica='{leader}']")
    expect(lane).to_contain_text("✓ in the ISR")
    cluster.kill(leader)
    try:
        expect(lane).to_contain_text(f"no word from broker {leader}")
        expect(page.locator(".lane.leader")).to_contain_text("epoch 1")
        page.get_by_role("navigation", name=f"Views of mortal-{number}").get_by_role("link", name="Events").click()
        expect(page.locator("[data-event='leader_elected']")).to_have_count(1)
        expect(page.locator("[data-event='leader_elected']")).to_contain_text(f"broker {leader}")
    finally:
        cluster.restart(leader)
    expect(page.locator("[data-event='isr_expanded']").first).to_be_visible()
    page.get_by_role("link", name="Lanes").click()
    expect(lane).to_contain_text("✓ in the ISR")
    expect(lane).to_contain_text("LEO")


def test_a_phone_produces_a_record_shows_it_and_goes_back_in_time(page: Page, cluster: LocalCluster):
    """PAGE 9.20: at 400 px nothing scrolls sideways, a record is produced and seen, and buttons are 44 px high."""
    create(cluster, "phone")
    page.set_viewport_size(PHONE)
    page.goto(f"{url_of(cluster)}/#/")
    expect(page.locator("#health")).to_contain_text("3 of 3 brokers are up.")
    page.locator(".matrix a[href='#/t/phone/0']").click()
    page.get_by_label("Value").fill("tea")
    page.get_by_role("button", name="Produce").click()
    expect(page.locator(".journey li").last).to_have_text("committed")
    page.get_by_role("link", name="Records").click()
    expect(page.locator("[data-offset='0']")).to_contain_text("tea")
    page.get_by_role("link", name="Lanes").click()
    page.get_by_role("button", name="❚❚ Pause").click()
    expect(page.locator("#live")).to_have_text("❚❚ PAUSED")
    expect(page.get_by_role("button", name="◀ event")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    small = page.evaluate(
        "[...document.querySelectorAll('button')].filter((each) => each.checkVisibility() && !each.matches('.chip') "
        "&& each.getBoundingClientRect().height < 44).map((each) => each.textContent)"
    )
    assert small == []


def test_many_partitions_are_small_cells_with_their_words(page: Page, cluster: LocalCluster):
    """PAGE 9.16: a large topic is a dense matrix; each cell still says leader and ISR, and opens its partition."""
    call(cluster, "/v1/topics", {"name": "wide", "partitions": PARTITION_COUNT, "replication_factor": 3})
    page.goto(url_of(cluster))
    cells = page.locator(".matrix.small a[href^='#/t/wide/']")
    expect(cells).to_have_count(PARTITION_COUNT)
    assert (cells.last.get_attribute("aria-label") or "").startswith(f"{PARTITION_COUNT - 1}: leader ")
    take_pictures(page, "wide")
    cells.last.click()
    expect(page.get_by_role("heading", name=f"wide-{PARTITION_COUNT - 1}")).to_be_visible()


def test_faults_are_set_and_healed_with_the_keyboard_alone(page: Page, cluster: LocalCluster):
    """PAGE 9.19: faults are set and healed without a mouse; a field that has the focus keeps its letters."""
    create(cluster, "keyed")
    page.goto(f"{url_of(cluster)}/#/t/keyed/0")
    expect(page.locator("[data-replica]")).to_have_count(3)
    page.keyboard.press("x")
    page.get_by_role("button", name="Set the fault").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#bar")).to_contain_text("1 fault is active")
    page.get_by_role("button", name="Heal all").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#bar")).not_to_contain_text("active")
    page.keyboard.press("Escape")
    expect(page.locator("#faults")).to_be_hidden()
    page.keyboard.press("p")
    page.keyboard.type("x p")
    expect(page.get_by_label("Value")).to_have_value("x p")
    expect(page.locator("#faults")).to_be_hidden()
    page.locator("main").focus()
    page.keyboard.press("Space")
    expect(page.locator("#live")).to_have_text("❚❚ PAUSED")
    page.keyboard.press("Space")
    expect(page.locator("#live")).to_have_text("● LIVE")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()


# ---- budget ----------------------------------------------------------------------------------------------------------

REQUESTS_MAX = 6
"""The page, its style and script, the stream, the brokers, and the faults."""

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]"
MEASURE = """() => {
    window.measured = { lanes: 0, tasks: [] };
    new PerformanceObserver((list) => window.measured.tasks.push(...list.getEntries().map((each) => Math.round(each.duration))))
        .observe({ type: "longtask", buffered: true });
    const look = () => document.querySelector("[data-replica]") ? window.measured.lanes = performance.now() : requestAnimationFrame(look);
    look();
}"""


def test_the_first_view_needs_few_requests(browser: Browser, cluster: LocalCluster):
    """PAGE 7: with a cold cache. The times are printed, not judged: they are those of this machine and its other work."""
    create(cluster, "quick")
    requested: list[str] = []
    with watched_tab(browser, cluster) as page:
        page.add_init_script(f"({MEASURE})()")
        page.on("request", lambda request: requested.append(request.url))
        page.goto(f"{url_of(cluster)}/#/t/quick/0")
        expect(page.locator("[data-replica]")).to_have_count(3)
        page.wait_for_function("() => window.measured.lanes > 0")
        page.wait_for_function(f"() => {FIRST_PAINT}")
        paint = page.evaluate(f"{FIRST_PAINT}.startTime")
        measured = page.evaluate("window.measured")
        sys.stdout.write(
            f"first paint {paint:.0f} ms, lanes {measured['lanes']:.0f} ms, tasks over 50 ms: {measured['tasks']}\n"
        )
    wanted = [each for each in requested if not each.startswith("data:")]
    assert len(set(wanted)) <= REQUESTS_MAX, wanted
