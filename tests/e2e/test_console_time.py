"""Faults in the console, topics, and the way to another broker, on real clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.console_kit import (
    HOSTILE,
    call,
    create,
    end_of,
    patient_tab,
    produce,
    take_pictures,
    url_of,
    watched_tab,
)
from tests.e2e.haste import SHORT_SESSIONS

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

CONFIG = {**SHORT_SESSIONS, "mk.testing.endpoints.enable": "true"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=CONFIG) as running:
        yield running


@pytest.fixture
def page(browser: Browser, cluster: LocalCluster) -> Iterator[Page]:
    with watched_tab(browser, cluster) as tab:
        yield tab
    cluster.faults.heal()


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_a_fault_is_set_with_an_end_seen_on_every_view_and_healed(page: Page, cluster: LocalCluster):
    """PAGE 9.8 to 9.10: a held fetch stops the high watermark with a reason; the bar is everywhere; it ends after 30 s."""
    path = create(cluster, "struck")
    leader = call(cluster, path)["leader"]["id"]
    follower = next(node for node in (1, 2, 3) if node != leader)
    page.goto(f"{url_of(cluster)}/#/t/struck/0")
    expect(end_of(page, leader)).to_have_text("0")
    page.locator("main").focus()
    page.keyboard.press("x")
    page.get_by_role("button", name=f"link from {follower} to {leader}: ok").click()
    expect(page.locator("#faults form")).to_contain_text("leaves the ISR")
    take_pictures(page, "faults")
    page.get_by_role("button", name="Set the fault").click()
    expect(page.locator("#bar")).to_contain_text(f"hold {follower}>{leader} Fetch requests")
    [fault] = call(cluster, "/v1/faults")["faults"]
    assert (fault["kind"], fault["api"], fault["for_ms"]) == ("hold", "Fetch", 30_000)
    produce(cluster, path, {"value": "a"}, acks="1")
    produce(cluster, path, {"value": "b"}, acks="1")
    expect(end_of(page, leader)).to_have_text("2")
    expect(page.locator(".why")).to_contain_text(f"broker {follower}")
    page.keyboard.press("Escape")
    for view in ("#/", "#/t", "#/g", "#/e", "#/lab"):
        page.goto(f"{url_of(cluster)}/{view}")
        expect(page.locator("#bar")).to_contain_text("1 fault is active")
    page.get_by_role("button", name="Heal all").click()
    expect(page.locator("#bar")).not_to_contain_text("active")
    assert call(cluster, "/v1/faults")["faults"] == []


def test_a_fault_that_is_left_alone_ends_after_half_a_minute(page: Page, cluster: LocalCluster):
    """PAGE 9.10: the form sets an end in 30 s by default, and a fault ends by itself, whatever the page does (the shortest
    that the form offers: 10 s).
    """
    page.goto(url_of(cluster))
    page.get_by_role("button", name="Faults").click()
    page.get_by_role("button", name="Set the fault").click()
    expect(page.locator("#bar")).to_contain_text("1 fault is active")
    assert call(cluster, "/v1/faults")["faults"][0]["for_ms"] == 30_000
    page.get_by_role("button", name="Heal all").click()
    expect(page.locator("#bar")).not_to_contain_text("active")
    page.get_by_label("Ends after").select_option("10 s")
    page.get_by_role("button", name="Set the fault").click()
    expect(page.locator("#bar")).to_contain_text("1 fault is active")
    expect(page.locator("#bar")).not_to_contain_text("active", timeout=120_000)
    page.get_by_role("button", name="Set the fault").click()
    expect(page.locator("#bar")).to_contain_text("1 fault is active")
    page.get_by_role("button", name="Heal all").click()
    expect(page.locator("#bar")).not_to_contain_text("active")


def test_an_endless_fault_and_a_kill_need_a_second_click(page: Page, cluster: LocalCluster):
    """PAGE 6: what cannot be undone by waiting is asked for twice; a killed broker is started from the page again."""
    page.goto(url_of(cluster))
    page.get_by_role("button", name="Faults").click()
    page.get_by_label("Ends after").select_option("until healed")
    page.get_by_role("button", name="Set the fault").click()
    page.get_by_role("button", name="Yes, until it is healed").click()
    expect(page.locator("#bar")).to_contain_text("hold 2>1 Fetch")
    assert call(cluster, "/v1/faults")["faults"][0]["for_ms"] is None
    page.get_by_role("button", name="Heal all").click()
    third = page.locator(".actions").nth(2)
    third.get_by_role("button", name="Kill").click()
    expect(third).to_contain_text("Select it again to kill broker 3.")
    third.get_by_role("button", name="Kill broker 3: sure?").click()
    expect(page.locator("main")).to_contain_text("✗ fenced")
    third.get_by_role("button", name="Start").click()
    expect(page.locator("main")).not_to_contain_text("✗ fenced")


def test_the_page_moves_to_another_broker_when_its_own_stops(browser: Browser):
    """PAGE 9.11: the same view, at a broker that answers."""
    with LocalCluster(brokers=3, config=SHORT_SESSIONS) as cluster:
        create(cluster, "moved")
        others = [f"http://{each}" for each in cluster.bootstrap.split(",")[1:]]
        tab = patient_tab(browser)
        with tab.expect_response("**/v1/brokers"):  # the addresses of the others
            tab.goto(f"{url_of(cluster)}/#/t/moved/0")
        expect(tab.locator("[data-replica]")).to_have_count(3)
        cluster.kill(1)
        tab.wait_for_url(lambda url: any(url == f"{each}/#/t/moved/0" for each in others))
        expect(tab.locator("[data-replica]")).to_have_count(3)
        expect(tab.locator("#live")).to_have_text("● LIVE")
        tab.close()


# ---- topics and producers --------------------------------------------------------------------------------------------


def test_topics_and_their_settings_are_text(page: Page, cluster: LocalCluster):
    """A topic's partitions and settings; a setting whose value is markup stays text."""
    path = create(cluster, "listed")
    produce(cluster, path, {"value": "tea"})
    page.goto(f"{url_of(cluster)}/#/t")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="listed", exact=True))
    expect(row).to_contain_text("3")
    take_pictures(page, "topics")
    page.get_by_role("link", name="listed", exact=True).click()
    expect(page.get_by_role("region", name="Partitions")).to_contain_text("✓ in sync")
    page.route(
        "**/v1/topics/listed", lambda route: route.fulfill(json={"config": {HOSTILE: HOSTILE}, "partitions": []})
    )
    page.reload()
    expect(page.get_by_role("region", name="Settings").locator("td")).to_have_text([HOSTILE, HOSTILE])
    take_pictures(page, "topic")
    assert page.evaluate("window.ran") is None
    assert page.locator("img").count() == 0
