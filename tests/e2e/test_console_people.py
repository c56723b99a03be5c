"""Five people's tasks with the number of their clicks, the keyboard alone, and what assistive technology gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.console_kit import (
    call,
    create,
    hold_fetches,
    led_by_another,
    produce,
    take_pictures,
    url_of,
    watched_tab,
)
from tests.e2e.haste import SHORT_LAGS, SHORT_SESSIONS

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

TEST_HOOKS = {"mk.testing.endpoints.enable": "true"}
CLICKS_MAX = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config={**SHORT_LAGS, **TEST_HOOKS}) as running:
        yield running


class Person:
    """Starts at the cluster view, and may click twice."""

    def __init__(self, page: Page, cluster: LocalCluster) -> None:
        self.page = page
        self.click_count = 0
        page.goto(url_of(cluster))

    def click(self, place: Locator) -> None:
        self.click_count += 1
        assert self.click_count <= CLICKS_MAX
        place.click()

    def open(self, topic: str, number: int = 0) -> None:
        """Select a partition of the matrix."""
        self.click(self.page.locator(f".matrix a[href='#/t/{topic}/{number}']"))


@pytest.fixture
def person(browser: Browser, cluster: LocalCluster) -> Iterator[Person]:
    with watched_tab(browser, cluster) as tab:
        yield Person(tab, cluster)
    cluster.faults.heal()


# ---- five tasks ------------------------------------------------------------------------------------------------------


def test_why_is_broker_3_out_of_the_isr(person: Person, cluster: LocalCluster):
    """PAGE 9.9, in two clicks: the partition, and the broken chip; the reason has the time, the last fetch and the setting."""
    number, _ = led_by_another(cluster, "lagging", 3)
    cluster.faults.cut("3>*", api="Fetch")
    produce(cluster, f"/v1/topics/lagging/partitions/{number}", {"value": "tea"}, acks="1")
    person.open("lagging", number)
    person.click(person.page.locator("[data-replica='3']").get_by_role("button", name="out of the ISR"))
    reason = re.compile(
        r"has not caught up for \d+ ms \(more than replica.lag.time.max.ms=800; last fetch: \d+ ms ago\)"
    )
    expect(person.page.locator("#explain")).to_contain_text(reason)


def test_where_is_my_record(person: Person, cluster: LocalCluster):
    """Two clicks: the partition, and Records; the newest record says that it is committed, and on which brokers."""
    path = create(cluster, "mine")
    produce(cluster, path, {"key": "my key", "value": "my record"})
    person.open("mine")
    person.click(person.page.get_by_role("link", name="Records"))
    row = person.page.locator("[data-offset='0']")
    expect(row).to_contain_text("my record")
    expect(row).to_contain_text("✓ committed")
    expect(row).to_contain_text("1 ✓, 2 ✓, 3 ✓")


def test_what_was_lost(browser: Browser):
    """Two clicks: the partition, and Events; a leader that died with a record of acks=1 reports what it cut on return."""
    # Followers stay in the ISR while their fetches are held: with a short lag the record would be committed.
    with (
        LocalCluster(brokers=3, config={**SHORT_SESSIONS, **TEST_HOOKS}) as cluster,
        watched_tab(browser, cluster) as page,
    ):
        number, leader = led_by_another(cluster, "lost")
        path = f"/v1/topics/lost/partitions/{number}"
        produce(cluster, path, {"value": "kept"})
        hold_fetches(cluster, path, leader)
        produce(cluster, path, {"value": "acknowledged by the leader alone"}, acks="1")
        cluster.kill(leader)
        cluster.faults.heal()
        person = Person(page, cluster)
        expect(page.locator(f".matrix a[href='#/t/lost/{number}']")).not_to_contain_text(f"leader {leader}")
        cluster.restart(leader)
        person.open("lost", number)
        # Not the link of the same name to the whole cluster's events, which is on the page before the partition's views.
        person.click(page.get_by_role("navigation", name=f"Views of lost-{number}").get_by_role("link", name="Events"))
        expect(page.locator("[data-event='tail_truncated']")).to_contain_text("The log was cut from 3 to")


def test_is_my_consumer_behind(person: Person, cluster: LocalCluster):
    """Two clicks: Groups, and the group; the list already has the lag after one."""
    path = create(cluster, "read")
    produce(cluster, path, *({"value": at} for at in range(7)))
    call(cluster, "/v1/groups/mine/offsets", {"offsets": [{"topic": "read", "partition": 0, "offset": 3}]}, "PUT")
    person.click(person.page.get_by_role("link", name="Groups"))
    expect(person.page.get_by_role("region", name="Groups")).to_contain_text("4")
    person.click(person.page.get_by_role("link", name="mine", exact=True))
    expect(person.page.get_by_text("The group is 4 records behind")).to_be_visible()


def test_what_happens_when_the_leader_dies(person: Person, cluster: LocalCluster):
    """One click: the lanes show that nothing is heard of the leader, then the next one in a new epoch with its ISR."""
    number, leader = led_by_another(cluster, "mortal")
    person.open("mortal", number)
    page = person.page
    expect(page.locator(f"[data-replica='{leader}'].leader")).to_be_visible()
    cluster.kill(leader)
    try:
        expect(page.locator(f"[data-replica='{leader}']")).to_contain_text(f"no word from broker {leader}")
        expect(page.locator(f"[data-replica='{leader}'].leader")).to_have_count(0)
        expect(page.locator(".lane.leader")).to_contain_text("epoch 1")
        expect(page.locator("#health")).to_contain_text("epoch 1")
        take_pictures(page, "leader-died")
    finally:
        cluster.restart(leader)
    expect(page.locator(f"[data-replica='{leader}']")).to_contain_text("✓ in the ISR")


# ---- keyboard and assistive technology -------------------------------------------------------------------------------

AUDIT = """() => {
    const wrong = [];
    const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const colour = (text) => text.match(/[\\d.]+/g).map(Number);
    const behind = (place) => {
        for (; place; place = place.parentElement) {
            const found = colour(getComputedStyle(place).backgroundColor);
            if (found.length === 3 || found[3] === 1) return found;
        }
        return [255, 255, 255];
    };
    const nameOf = (place) => (place.ariaLabel || place.innerText || [...(place.labels ?? [])].map((each) => each.innerText).join(" ")).trim();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const place = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !place.checkVisibility() || place.closest("[aria-hidden=true]")) continue;
        const [one, other] = [light(colour(getComputedStyle(place).color)), light(behind(place))];
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (contrast < 4.5) wrong.push(`contrast ${contrast.toFixed(1)}: ${place.outerHTML.slice(0, 80)}`);
    }
    for (const place of document.querySelectorAll("a, button, input, select, textarea, meter, [tabindex='0'], [role=region]")) {
        if (place.checkVisibility() && !nameOf(place)) wrong.push(`no name: ${place.outerHTML.slice(0, 80)}`);
        const { width, height } = place.getBoundingClientRect();
        if (place.matches("button") && place.checkVisibility() && Math.min(width, height) < 24) wrong.push(`small: ${place.outerHTML.slice(0, 80)}`);
    }
    for (const place of document.querySelectorAll("th:not([scope])")) wrong.push(`no scope: ${place.outerHTML}`);
    const levels = [...document.querySelectorAll("h1, h2, h3")].filter((each) => each.checkVisibility()).map((each) => Number(each.tagName[1]));
    if (levels[0] !== 1 || levels.filter((each) => each === 1).length !== 1) wrong.push(`headings ${levels}`);
    if (levels.some((each, at) => at && each > levels[at - 1] + 1)) wrong.push(`headings ${levels}`);
    const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
    if (new Set(ids).size !== ids.length) wrong.push(`ids ${ids}`);
    if (document.querySelectorAll("main").length !== 1 || document.querySelectorAll("header").length !== 1) wrong.push("landmarks");
    if (!document.documentElement.lang || !document.title) wrong.push("language or title");
    return wrong;
}"""


def views_of(cluster: LocalCluster) -> dict[str, str]:
    """Every view with contents, and a text that it shows when it is complete."""
    path = create(cluster, "seen")
    produce(cluster, path, {"key": "k", "value": "tea", "headers": [["a", "b"]]})
    call(cluster, "/v1/groups/seen/offsets", {"offsets": [{"topic": "seen", "partition": 0, "offset": 0}]}, "PUT")
    return {
        "#/": "seen",
        "#/t/seen/0": "Values",
        "#/t/seen/0/records": "✓ committed",
        "#/t/seen/0/events": "took up leadership",
        "#/g": "seen-0",
        "#/g/seen": "1 record behind",
        "#/e": "topic created",
    }


def test_every_view_is_legible_named_and_in_order_in_both_themes(browser: Browser, cluster: LocalCluster):
    """Contrast of text 4.5:1, a name for each control and region, targets of 24 px, headings in order, unique ids."""
    wrong: list[Any] = []
    with watched_tab(browser, cluster) as page:
        for place, text in views_of(cluster).items():
            page.goto(f"{url_of(cluster)}/{place}")
            page.reload()
            expect(page.locator("main")).to_contain_text(text)
            for theme in ("light", "dark"):
                page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
                wrong += [(place, theme, each) for each in page.evaluate(AUDIT)]
    assert wrong == []


def test_the_audit_finds_what_it_looks_for(browser: Browser):
    """A page with one fault of each kind."""
    tab = browser.new_page()
    tab.set_content(
        "<main><h1>a</h1><h3>b</h3><p style='color: #999'>pale</p><button style='width: 9px'></button><input>"
        "<table><th id=x>c</th></table><i id=x></i></main>"
    )
    found = tab.evaluate(AUDIT)
    tab.close()
    assert {each.split(":")[0].split()[0] for each in found} == {
        *("contrast", "no", "small", "headings", "ids", "landmarks", "language")
    }


def test_a_record_is_found_and_opened_with_the_keyboard_alone(browser: Browser, cluster: LocalCluster):
    """PAGE 9.19: Tab and Enter from the cluster view to a record's details; focus survives the updates of the list."""
    path = create(cluster, "keys")
    produce(cluster, path, {"key": "k", "value": "tea"})

    def tab_to(page: Page, matching: str) -> None:
        for _ in range(200):
            page.keyboard.press("Tab")
            if page.evaluate("(wanted) => document.activeElement.matches(wanted)", matching):
                return
        raise AssertionError(f"Tab does not reach {matching}")

    with watched_tab(browser, cluster) as page:
        page.goto(url_of(cluster))
        expect(page.locator("a[href='#/t/keys/0']")).to_be_visible()
        tab_to(page, "a[href='#/t/keys/0']")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="keys-0")).to_be_visible()
        tab_to(page, "a[href='#/t/keys/0/records']")
        page.keyboard.press("Enter")
        expect(page.locator("[data-offset='0']")).to_be_visible()
        tab_to(page, "[data-offset='0'] button")
        page.keyboard.press("Enter")
        expect(page.locator("tr.details")).to_contain_text("tea")
        produce(cluster, path, {"value": "milk"})
        expect(page.locator("[data-offset='1']")).to_be_visible()
        assert page.evaluate("document.activeElement.closest('tr').dataset.offset") == "0"
        page.keyboard.press("Enter")
        expect(page.locator("tr.details")).to_have_count(0)
