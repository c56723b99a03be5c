"""Earlier states in the console, stories of the lab, producers and their transactions, on a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.console_kit import HOSTILE, call, create, produce, take_pictures, url_of, watched_tab
from tests.e2e.haste import SHORT_SESSIONS

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

READ_VALUES = """() => [...document.querySelectorAll("[data-values]")].map(
    (row) => [...row.children].slice(0, 6).map((cell) => cell.textContent))"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=SHORT_SESSIONS) as running:
        yield running


@pytest.fixture
def page(browser: Browser, cluster: LocalCluster) -> Iterator[Page]:
    with watched_tab(browser, cluster) as tab:
        yield tab


def end_of(page: Page, node: int) -> Any:
    """The cell with the log end offset of a replica."""
    return page.locator(f"[data-values='{node}'] td").nth(3)


def word(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def rows_of(partition: dict[str, Any]) -> list[list[str]]:
    """The table as it must be for a state of the API."""
    replicas = [partition["replicas"][str(node)] for node in partition["order"]]
    return [
        [
            str(each["id"]),
            each["role"],
            "yes" if each["in_sync"] else "no",
            word(each["own_leo"]),
            word(None if each["lag_records"] is None else each["leo"]),
            word(each["hw"]),
        ]
        for each in replicas
    ]


def shown_ms(page: Page) -> int:
    """The time that the paused page shows, of its link."""
    href = page.get_by_role("link", name="Link to this time").get_attribute("href")
    assert href is not None
    return int(href.rpartition("at=")[2])


# ---- time ------------------------------------------------------------------------------------------------------------


def test_a_pause_shows_what_the_api_says_and_steps_go_back(page: Page, cluster: LocalCluster):
    """PAGE 9.5 and 9.13: table and history agree at each step; new records do not move it; space returns to now."""
    path = create(cluster, "paused")
    page.goto(f"{url_of(cluster)}/#/t/paused/0")
    expect(end_of(page, 1)).to_have_text("0")
    for offset in range(3):
        produce(cluster, path, {"value": offset})
        for node in (1, 2, 3):
            expect(end_of(page, node)).to_have_text(str(offset + 1))
    page.locator("main").focus()
    page.keyboard.press("Space")
    expect(page.locator("#time")).to_contain_text("states since")
    produce(cluster, path, {"value": "newer"})
    visited = []
    for _ in range(6):
        at = shown_ms(page)
        past = call(cluster, f"/v1/history?scope=paused-0&from={at}&to={at}")["before"]
        assert page.evaluate(READ_VALUES) == rows_of(past["partition"])
        # Before the leader's first sample its log end is unknown, to the page as to the API.
        end = past["partition"]["log_end_offset"]
        visited.append(-1 if end is None else end)
        page.keyboard.press("ArrowLeft")
        expect(page.get_by_role("link", name="Link to this time")).not_to_have_attribute(
            "href", f"#/t/paused/0?at={at}"
        )
    assert visited[0] == 3
    assert visited == sorted(visited, reverse=True)
    assert visited[-1] < 3
    expect(page.get_by_role("button", name="Produce")).to_be_disabled()
    page.keyboard.press("ArrowRight")
    take_pictures(page, "paused")
    slider = page.get_by_role("slider", name="Time")
    slider.fill(slider.get_attribute("min") or "")
    expect(page.locator("main")).to_contain_text("At this time: there is no topic 'paused'")
    page.locator("main").focus()
    page.keyboard.press("Space")
    expect(page.locator("#live")).to_have_text("● LIVE")
    expect(end_of(page, 1)).to_have_text("4")


def test_events_are_jumped_to_linked_and_exported(page: Page, cluster: LocalCluster, tmp_path: Path, browser: Browser):
    """PAGE 9.13 and 9.14: back to an event, the same time by a link, and a file that shows it without a broker."""
    path = create(cluster, "told")
    produce(cluster, path, {"value": "tea"})
    page.goto(f"{url_of(cluster)}/#/t/told/0")
    expect(end_of(page, 1)).to_have_text("1")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#time")).to_contain_text("states since")
    page.get_by_role("button", name="◀ event").click()
    expect(page.locator("#time [role=status]")).to_contain_text("broker")
    at = shown_ms(page)
    page.goto(f"{url_of(cluster)}/#/t/told/0?at={at}")
    page.reload()
    expect(page.locator("#live")).to_have_text("❚❚ PAUSED")
    expect(page.locator("#time")).to_contain_text("states since")
    assert shown_ms(page) == at
    with page.expect_download() as saved:
        page.get_by_role("link", name="Export replay").click()
    file = tmp_path / "replay.html"
    saved.value.save_as(file)
    assert file.stat().st_size < 2_000_000
    requested: list[str] = []
    tab = browser.new_page()
    tab.on("request", lambda request: requested.append(request.url))
    tab.goto(file.as_uri())
    expect(tab.locator("h1")).to_contain_text("told-0")
    assert requested == [file.as_uri()]
    tab.close()


def test_records_events_and_groups_are_those_of_the_time_shown(page: Page, cluster: LocalCluster):
    """PAGE 9.13: every view of an earlier time is of that time, or says that it is not."""
    path = create(cluster, "then")
    commit = {"topic": "then", "partition": 0}

    def sample(offset: int) -> int:
        """Commit an offset; a time at which the coordinator has recorded it."""
        call(cluster, "/v1/groups/then/offsets", {"offsets": [{**commit, "offset": offset}]}, "PUT")
        while True:
            found = call(cluster, "/v1/history/groups")
            offsets = [
                one["committed"] for each in found["groups"] if each["group"] == "then" for one in each["offsets"]
            ]
            if offsets == [offset]:
                return int(found["at"])
            page.wait_for_timeout(100)

    page.goto(f"{url_of(cluster)}/#/t/then/0")
    produce(cluster, path, {"value": "first"}, {"value": "second"})
    for node in (1, 2, 3):
        expect(page.locator(f"[data-values='{node}'] td").nth(5)).to_have_text("2")
    at = sample(1)
    produce(cluster, path, {"value": "later"})
    expect(end_of(page, 1)).to_have_text("3")
    sample(3)
    page.goto(f"{url_of(cluster)}/#/t/then/0/records?at={at}")
    expect(page.locator("main")).to_contain_text("The records that were committed at this time")
    expect(page.locator("[data-offset='1']")).to_contain_text("✓ committed")
    expect(page.locator("[data-offset]")).to_have_count(2)
    take_pictures(page, "records-then")
    page.goto(f"{url_of(cluster)}/#/t/then/0/events?at={at}")
    expect(page.locator("[data-event='became_leader']")).to_have_count(1)
    expect(page.locator("main")).to_contain_text("the ten minutes before")
    page.goto(f"{url_of(cluster)}/#/g?at={at}")
    expect(page.get_by_role("row").filter(has_text="then")).to_contain_text("Empty")
    page.get_by_role("link", name="then", exact=True).click()
    expect(page.get_by_text("The group is 1 record behind.")).to_be_visible()
    expect(page.locator("#live")).to_have_text("❚❚ PAUSED")
    take_pictures(page, "group-then")
    page.get_by_role("button", name="● Live").click()
    expect(page.get_by_text("The group has committed everything up to the high watermark")).to_be_visible()
    page.goto(f"{url_of(cluster)}/#/t?at={at}")
    expect(page.get_by_role("note")).to_contain_text("This view shows the present, not")
    page.goto(f"{url_of(cluster)}/#/t/then/0/records")
    page.get_by_role("button", name="● Live").click()
    expect(page.locator("[data-offset]")).to_have_count(3)


def test_events_of_the_cluster_need_no_test_hooks(page: Page, cluster: LocalCluster):
    """They come from the history that every broker keeps; no request fails."""
    create(cluster, "kept")
    page.goto(f"{url_of(cluster)}/#/e")
    expect(page.locator("[data-event='became_leader']", has_text="kept-0")).to_have_count(1)


# ---- stories ---------------------------------------------------------------------------------------------------------


def test_a_story_is_played_under_both_rules_side_by_side(page: Page, cluster: LocalCluster):
    """PAGE 9.18: the step at which the rules part is that of `minikafka lab compare`; one key moves both; the loss is named."""
    page.goto(f"{url_of(cluster)}/#/lab")
    take_pictures(page, "lab")
    page.get_by_role("link", name="data-loss", exact=True).click()
    expect(page.locator("main")).to_contain_text("The two rules part at step 9.")
    runs = page.locator(".run")
    expect(runs).to_have_count(2)
    page.get_by_role("button", name="Where they part").click()
    expect(runs.locator(".lead")).to_have_text(["9. B starts again", "9. B starts again"])
    ends = [each.locator("[data-replica='B'] .head").inner_text() for each in runs.all()]
    assert ["LEO 2" in ends[0], "LEO 1" in ends[1]] == [True, True]
    take_pictures(page, "story")
    page.locator("main").focus()
    page.keyboard.press("ArrowRight")
    expect(runs.locator(".lead")).to_have_text(["10. kill -9 A: the page cache stays"] * 2)
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    expect(runs.last).to_contain_text("Lost: m1")
    expect(runs.first).to_contain_text("No acknowledged record is lost.")
    text = call(cluster, "/v1/lab/stories/data-loss?truncation=high-watermark")["text"]
    assert runs.last.locator("pre").text_content() == text


# ---- producers -------------------------------------------------------------------------------------------------------


def test_an_open_transaction_is_in_the_list_of_producers(page: Page, cluster: LocalCluster):
    """Issue 19.4: the producer, and the first offset of its open transaction, as the partition's leader knows them."""
    create(cluster, "paid")
    producer = {"producer_id": 4000, "producer_epoch": 3, "last_sequence": 6, "last_timestamp": 1_795_259_231_681}
    page.route("**/v1/live?*", lambda route: route.fulfill(content_type="text/event-stream", body=_with(producer)))
    page.goto(f"{url_of(cluster)}/#/t/paid/0")
    rows = page.get_by_role("region", name="Producers").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("since offset 41: it holds the LSO")
    expect(rows.last).to_contain_text("none")
    expect(page.locator("main")).to_contain_text(HOSTILE)
    assert page.evaluate("window.ran") is None


def _with(producer: dict[str, int]) -> str:
    """A stream with one state: two producers, the first with an open transaction."""
    partition = {
        "leader": None,
        "leader_epoch": 0,
        "min_insync_replicas": 1,
        "high_watermark": None,
        "order": [],
        "replicas": {},
    }
    producers = {
        "4000": {**producer, "transaction_start_offset": 41},
        "4001": {**producer, "producer_id": 4001, "transaction_start_offset": None},
    }
    state = {
        "summary": "",
        "why_watermark": "",
        "why_stable_offset": HOSTILE,
        "partition": partition,
        "producers": producers,
        "producer_count": 2,
    }
    return f"event: snapshot\ndata: {json.dumps(state)}\n\n"
