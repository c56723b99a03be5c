"""Earlier states in the console, stories of the lab, producers and their transactions, on a real cluster."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.conftest import EXPECT_TIMEOUT_MS
from tests.e2e.console_kit import (
    HOSTILE,
    call,
    create,
    end_of,
    led_by_another,
    patient_tab,
    produce,
    take_pictures,
    until,
    url_of,
    watched_tab,
    watermark_of,
)
from tests.e2e.haste import SHORT_SESSIONS
from tests.e2e.test_replay_page import STEP_THROUGH

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


def test_a_pause_is_not_earlier_than_what_is_shown(page: Page, cluster: LocalCluster):
    """PAGE 9.13: the page knows the broker's clock too early, as after a hello that came late: the pause shows the present."""
    path = create(cluster, "late")
    page.goto(f"{url_of(cluster)}/#/t/late/0")
    expect(end_of(page, 1)).to_have_text("0")
    page.evaluate("() => { const now = Date.now; Date.now = () => now() - 30000; }")
    produce(cluster, path, {"value": "shown"})
    expect(end_of(page, 1)).to_have_text("1")
    page.locator("main").focus()
    page.keyboard.press("Space")
    expect(page.locator("#time")).to_contain_text("states since")
    expect(end_of(page, 1)).to_have_text("1")


def test_a_pause_reads_a_history_of_many_responses_to_its_end(page: Page, cluster: LocalCluster):
    """PAGE 9.13: the state shown is of the chosen time, however many responses the history needs up to then."""
    path = create(cluster, "busy")
    page.goto(f"{url_of(cluster)}/#/t/busy/0")
    for offset in range(15):
        produce(cluster, path, {"value": offset})
        expect(end_of(page, 1)).to_have_text(str(offset + 1))
    page.route("**/v1/history?*", lambda route: route.continue_(url=route.request.url.replace("limit=1000", "limit=1")))
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#time")).to_contain_text("states since")
    at = shown_ms(page)
    past = call(cluster, f"/v1/history?scope=busy-0&from={at}&to={at}")["before"]
    assert past["partition"]["log_end_offset"] == 15
    assert page.evaluate(READ_VALUES) == rows_of(past["partition"])


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
    tab = patient_tab(browser)
    tab.on("request", lambda request: requested.append(request.url))
    tab.goto(file.as_uri())
    expect(tab.locator("h1")).to_contain_text("told-0")
    assert requested == [file.as_uri()]
    tab.close()


def test_exported_page_has_the_states_and_events_of_the_live_page(
    page: Page, cluster: LocalCluster, tmp_path: Path, browser: Browser
):
    """PAGE 9.14: through records, the death and the return of a leader: for each state that the console shows of these
    minutes, the file shows the same offsets at that time, without a network; its events are the console's.
    """
    number, leader = led_by_another(cluster, "carried")
    path = f"/v1/topics/carried/partitions/{number}"
    page.goto(f"{url_of(cluster)}/#/t/carried/{number}")
    expect(end_of(page, 1)).to_have_text("0")
    for count in (1, 2, 3):
        produce(cluster, path, {"value": "not-in-the-file"})
        for node in (1, 2, 3):
            expect(watermark_of(page, node)).to_have_text(str(count))
    cluster.kill(leader)
    try:
        expect(page.locator(".lane.leader")).to_contain_text("epoch 1")
        produce(cluster, path, {"value": "not-in-the-file"})
    finally:
        cluster.restart(leader)
    expect(page.locator(f"[data-replica='{leader}']")).to_contain_text("✓ in the ISR")
    produce(cluster, path, {"value": "not-in-the-file"})
    for node in (1, 2, 3):
        expect(watermark_of(page, node)).to_have_text("5")
    with page.expect_response("**/v1/history?scope=carried-*") as answered:
        page.get_by_role("button", name="Pause").click()
    past = answered.value.json()
    assert past["next"] is None
    slider, link = page.get_by_role("slider", name="Time"), page.get_by_role("link", name="Export replay")
    with page.expect_download() as saved:
        link.click()
    began = int((link.get_attribute("href") or "").partition("from=")[2].partition("&")[0])
    file = tmp_path / "replay.html"
    saved.value.save_as(file)
    shown: dict[int, list[list[str]]] = {}
    for at in sorted(each["t"] for each in past["samples"]):
        slider.fill(str(at))
        until(page, lambda at=at: shown_ms(page) == at)  # type: ignore[misc]
        shown[at] = page.evaluate(READ_VALUES)

    with browser.new_context(offline=True) as context:
        tab = context.new_page()
        tab.set_default_timeout(EXPECT_TIMEOUT_MS)
        tab.goto(file.as_uri())
        run = json.loads(tab.locator("#run").text_content() or "")
        tab.keyboard.press("Home")
        tables = [table for _, table, _ in tab.evaluate(STEP_THROUGH)]
    assert len(tables) == len(run["steps"]) + 1
    compared = 0
    for at, rows in shown.items():
        steps = [each for each in run["steps"] if began + round(each["t"] * 1000) <= at]
        # Between an event and the next sample the file is ahead: it applies what the event says.
        sampled = {node: each["k"] == "replica_sampled" for each in steps for node in each.get("d", {})}
        for node, _, _, end, _, watermark in rows:
            if sampled.get(node) and end != "unknown":
                assert [end, watermark] == tables[len(steps)][node][2:4], (at, node)
                compared += 1
    assert compared >= 3 * 5
    # At the end, when nothing moves any more, all is equal.
    for node, role, in_sync, end, _, watermark in shown[max(shown)]:
        assert tables[-1][node][:4] == [role, "1", end, watermark]
        assert in_sync == "yes"
    new_leader = next(row for row in shown[max(shown)] if row[1] == "leader")[0]
    assert sorted(tables[-1][new_leader][4].split(",")) == ["1", "2", "3"]
    events = [(each["t"], each["n"], each["k"], each["w"]) for each in past["steps"]]
    assert {"became_leader", "leader_elected", "isr_shrunk", "isr_expanded"} <= {kind for _, _, kind, _ in events}
    in_file = [(began + round(each["t"] * 1000), each["n"], each["k"], each["w"]) for each in run["steps"]]
    assert sorted(each for each in in_file if each[2] != "replica_sampled") == sorted(events)
    # What the file says that it leaves out is not there.
    assert any(each.startswith("Records' contents are not recorded") for each in run["notes"])
    assert "not-in-the-file" not in file.read_text(encoding="utf-8")


AGO_MS, JUMP_MS = 120_000, 300_000


def test_two_minutes_back_lanes_groups_and_faults_are_of_that_time(browser: Browser):
    """PAGE 9.13: the slider goes back two minutes of the brokers' calendars, which jump ahead meanwhile; one step leads
    to what happened after the jump, and space to now, without loss.
    """
    config = {**SHORT_SESSIONS, "mk.testing.endpoints.enable": "true"}
    with LocalCluster(brokers=3, config=config) as cluster, watched_tab(browser, cluster) as page:
        path = create(cluster, "aged")

        def commit(offset: int) -> None:
            """Return when the coordinator has recorded it, and all brokers the ends of their logs."""
            one = {"topic": "aged", "partition": 0, "offset": offset}
            call(cluster, "/v1/groups/aged/offsets", {"offsets": [one]}, "PUT")
            until(page, lambda: _recorded(cluster, "aged") == ([offset], [str(offset + 1)] * 3))

        def later(at: int) -> None:
            """The calendars of all brokers are now ahead."""
            for node in (1, 2, 3):
                call(cluster, f"/v1/machine?broker={node}", {"calendar_ahead_ms": at}, "PUT")

        produce(cluster, path, {"value": "first"}, {"value": "second"})
        commit(1)
        call(cluster, "/v1/faults", {"kind": "hold", "link": "client>1", "api": "Vote"})
        before = call(cluster, "/v1/history?states=false")["to"]
        later(JUMP_MS)
        jumped = call(cluster, "/v1/history?states=false")["to"]
        assert jumped - before >= JUMP_MS
        call(cluster, "/v1/faults", method="DELETE")
        produce(cluster, path, {"value": "third"})
        commit(2)
        page.goto(f"{url_of(cluster)}/#/t/aged/0")
        for node in (1, 2, 3):
            expect(watermark_of(page, node)).to_have_text("3")
        page.get_by_role("button", name="Pause").click()
        slider = page.get_by_role("slider", name="Time")
        expect(slider).to_be_visible()
        now = shown_ms(page)
        slider.fill(str(now - AGO_MS))
        for node in (1, 2, 3):
            expect(watermark_of(page, node)).to_have_text("2")
        at = shown_ms(page)
        assert now - at == AGO_MS
        assert before < at < jumped
        past = call(cluster, f"/v1/history?scope=aged-0&from={at}&to={at}")["before"]
        assert page.evaluate(READ_VALUES) == rows_of(past["partition"])
        expect(page.locator("#bar")).to_contain_text("active at the time shown")
        expect(page.locator("#bar")).to_contain_text("hold client>1 Vote")
        produce(cluster, path, {"value": "while the page shows the past"})
        page.get_by_role("navigation").get_by_role("link", name="Groups").click()
        page.get_by_role("link", name="aged", exact=True).click()
        expect(page.get_by_text("The group is 1 record behind.")).to_be_visible()
        expect(page.locator("#live")).to_have_text("❚❚ PAUSED")
        page.goto(f"{url_of(cluster)}/#/t/aged/0?at={at}")
        expect(watermark_of(page, 1)).to_have_text("2")
        take_pictures(page, "two-minutes-ago")
        page.locator("main").focus()
        page.keyboard.press("ArrowRight")
        until(page, lambda: shown_ms(page) > jumped)
        expect(page.locator("#bar")).not_to_contain_text("active at the time shown")
        page.keyboard.press("Space")
        expect(page.locator("#live")).to_have_text("● LIVE")
        for node in (1, 2, 3):
            expect(watermark_of(page, node)).to_have_text("4")


def _recorded(cluster: LocalCluster, group: str) -> tuple[list[int], list[str]]:
    """The committed offsets of a group and the high watermarks of the partition of that name, as the history has them."""
    groups = call(cluster, "/v1/history/groups")["groups"]
    now = call(cluster, "/v1/history?states=false")["to"]
    state = call(cluster, f"/v1/history?scope={group}-0&from={now}&to={now}")["before"]
    offsets = [one["committed"] for each in groups if each["group"] == group for one in each["offsets"]]
    return offsets, [row[5] for row in rows_of(state["partition"])] if "partition" in state else []


def test_records_events_and_groups_are_those_of_the_time_shown(page: Page, cluster: LocalCluster):
    """PAGE 9.13: every view of an earlier time is of that time, or says that it is not."""
    path = create(cluster, "then")
    commit = {"topic": "then", "partition": 0}

    def sample(offset: int) -> int:
        """Commit an offset; a time at which the coordinator has recorded it."""
        call(cluster, "/v1/groups/then/offsets", {"offsets": [{**commit, "offset": offset}]}, "PUT")
        found: dict[str, Any] = {}

        def is_recorded() -> bool:
            found.update(call(cluster, "/v1/history/groups"))
            mine = [each["offsets"] for each in found["groups"] if each["group"] == "then"]
            return [one["committed"] for each in mine for one in each] == [offset]

        until(page, is_recorded)
        return int(found["at"])

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


def test_a_transaction_holds_the_last_stable_offset_until_it_is_committed(page: Page, cluster: LocalCluster):
    """Issue 19.4: the mark in the leader's lane, the reason, and the producer; the commit moves the mark."""
    path = create(cluster, "billed")
    produce(cluster, path, {"value": "before"})
    sender = call(cluster, "/v1/transactions", {"transactional_id": "billing"})
    head = {
        "Content-Type": "application/json",
        "Transactional-Id": "billing",
        "Producer-Id": str(sender["producer_id"]),
        "Producer-Epoch": str(sender["producer_epoch"]),
        "Base-Sequence": "0",
    }
    body = json.dumps({"records": [{"value": "tea"}, {"value": "milk"}]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url_of(cluster)}{path}/records", body, head)):
        pass
    page.goto(f"{url_of(cluster)}/#/t/billed/0")
    leader = page.locator(".lane.leader")
    expect(leader.locator(".head")).to_contain_text("LSO 1")
    expect(leader.locator(".cell.lso")).to_have_text(["1"])
    section = page.locator("section", has=page.get_by_role("heading", name="Producers and transactions"))
    expect(section).to_contain_text("The last stable offset is 1")
    expect(section.locator("tbody tr")).to_contain_text(["since offset 1: it holds the LSO"])
    take_pictures(page, "transaction")
    ended = {"producer_id": sender["producer_id"], "producer_epoch": sender["producer_epoch"]}
    call(cluster, "/v1/transactions/billing:commit", ended)
    expect(leader.locator(".head")).to_contain_text("LSO 4")
    expect(section.locator("tbody tr")).to_contain_text(["none"])


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
