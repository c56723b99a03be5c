"""The console in a browser, on a real cluster: first visit, lanes, a produced record, hostile contents, other origins."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from minikafka.testing.local_cluster import LocalCluster
from minikafka.wire.differences import difference
from tests.e2e.console_kit import (
    HOSTILE,
    LOOK,
    call,
    create,
    delete_topic,
    patient_tab,
    take_pictures,
    until,
    url_of,
    watched_tab,
    within,
)
from tests.e2e.test_processes import Up, run

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

READ_VALUES = """() => [...document.querySelectorAll("[data-values]")].map(
    (row) => [...row.children].map((cell) => cell.textContent))"""


MEASURE_CLICK = """() => addEventListener("click", () => {
    const begun = performance.now();
    const look = () => document.querySelector("[data-replica] .cell.committed") ? window.movedMs = performance.now() - begun : requestAnimationFrame(look);
    look();
}, { once: true, capture: true })"""
LANES_MOVE_MS, EMPTY_MS = 2000, 1000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
        yield running


@pytest.fixture
def page(browser: Browser, cluster: LocalCluster) -> Iterator[Page]:
    with watched_tab(browser, cluster) as tab:
        yield tab


def test_first_click_creates_a_topic_whose_lanes_move(page: Page, cluster: LocalCluster):
    """PAGE 9.1 and 9.3: an empty cluster shows its brokers and one button; the button starts a stream of records."""
    page.add_init_script(f"({LOOK})('main button.main')")
    create, stop = page.get_by_role("button", name="Create orders"), page.get_by_role("button", name="Stop sending")

    def show() -> dict[str, float]:
        page.goto(url_of(cluster))
        expect(create).to_be_visible()
        page.wait_for_function("() => window.shownMs > 0")
        return {"shown": page.evaluate("window.shownMs")}

    within(show, shown=EMPTY_MS)
    expect(page.locator("#health")).to_contain_text("3 of 3 brokers are up.")
    expect(page.get_by_role("region", name="Brokers").locator("tbody tr")).to_have_count(3)
    expect(page.get_by_text("There are no topics yet.")).to_be_visible()
    take_pictures(page, "empty")

    def click() -> dict[str, float]:
        if call(cluster, "/v1/topics")["topics"]:
            stop.click()
            # From another view: this one would report that its topic is gone.
            page.goto(url_of(cluster))
            delete_topic(cluster, "orders")
            show()
        page.evaluate("window.movedMs = 0")
        page.evaluate(MEASURE_CLICK)
        create.click()
        expect(page.get_by_role("heading", name="orders-0")).to_be_visible()
        expect(page.locator("[data-replica] .cell.committed").first).to_have_text("0")
        # Set with the next frame, which may follow what is seen here. A function: the page forbids evaluated text.
        page.wait_for_function("() => window.movedMs > 0")
        return {"moved": page.evaluate("window.movedMs")}

    within(click, moved=LANES_MOVE_MS)
    expect(page.locator("[data-replica] .cell.committed", has_text="3").first).to_be_visible()
    stop.click()
    expect(stop).to_have_count(0)
    take_pictures(page, "partition")


def test_minikafka_up_greets_with_its_brokers_and_one_button(browser: Browser, tmp_path: Path):
    """PAGE 9.1 as a person does it; the second is measured above."""
    with Up(tmp_path) as up:
        with watched_tab(browser, up) as page:
            page.goto(url_of(up))
            expect(page.locator("#health")).to_contain_text("3 of 3 brokers are up.")
            expect(page.get_by_role("region", name="Brokers").locator("tbody tr")).to_have_count(3)
            expect(page.get_by_role("button", name="Create orders")).to_be_visible()
        assert up.end() == 0


def test_values_are_those_of_the_api(page: Page, cluster: LocalCluster):
    """PAGE 9.5: with no traffic, the table and the lanes show LEO, HW and ISR as the API reports them."""
    call(cluster, "/v1/topics", {"name": "still", "partitions": 1, "replication_factor": 3})
    call(cluster, "/v1/topics/still/records", {"records": [{"value": "tea"}, {"value": "milk"}]})
    page.goto(f"{url_of(cluster)}/#/t/still/0")
    for node in (1, 2, 3):
        # A follower learns the high watermark with its next fetch.
        expect(page.locator(f"[data-values='{node}'] td").nth(5)).to_have_text("2")
    replicas = call(cluster, "/v1/topics/still/partitions/0")["replicas"]
    wanted = [
        [str(each["id"]), each["role"], "yes", str(each["own_leo"]), str(each["leo"]), str(each["hw"])]
        for each in replicas
    ]
    assert [row[:6] for row in page.evaluate(READ_VALUES)] == wanted
    assert page.locator(".lane .cell.committed").all_text_contents() == ["0", "1"] * 3
    described = json.loads(run("topics", "describe", "still", "-b", cluster.bootstrap, "-o", "json"))
    [described_partition] = described["topics"][0]["partitions"]
    shown = call(cluster, "/v1/topics/still/partitions/0")
    assert (described_partition["isr"], described_partition["leader_epoch"]) == (shown["isr"], shown["leader_epoch"])
    # As in Kafka, `describe` has no offsets; `offsets` has the high watermark.
    [ends] = json.loads(run("offsets", "still", "-b", cluster.bootstrap, "-o", "json"))["offsets"]
    assert {str(ends["offset"])} == {row[5] for row in wanted} == {row[4] for row in wanted}
    assert page.locator(".lane.leader").inner_text().startswith(f"{shown['leader']['id']} ♛ leader")
    expect(page.locator(".lane.leader")).to_contain_text(f"epoch {described_partition['leader_epoch']}")


def test_produced_record_shows_its_journey_to_committed(page: Page, cluster: LocalCluster):
    """PAGE 9.4, from the form: the offset, each broker that has the record, and that it is committed."""
    call(cluster, "/v1/topics", {"name": "form", "partitions": 1, "replication_factor": 3})
    page.goto(f"{url_of(cluster)}/#/t/form/0")
    page.get_by_label("Key").fill(HOSTILE)
    page.get_by_label("Value").fill(HOSTILE)
    page.get_by_role("button", name="Produce").click()
    journey = page.locator(".journey")
    expect(journey).to_contain_text("acknowledged at offset 0")
    for node in (1, 2, 3):
        expect(journey).to_contain_text(f"broker {node}: in its log")
    expect(journey.locator("li").last).to_have_text("committed")
    (record,) = call(cluster, "/v1/topics/form/partitions/0/records?offset=0")["records"]
    assert (record["key"], record["value"]) == (HOSTILE, HOSTILE)


def test_hostile_text_in_an_address_is_shown_and_never_runs(page: Page, cluster: LocalCluster):
    """The console renders names and errors as text; the policy forbids inline script as well."""
    call(cluster, "/v1/topics", {"name": "hostile", "partitions": 1, "replication_factor": 3})
    page.goto(f"{url_of(cluster)}/#/t/hostile/0")
    expect(page.locator("[data-replica]")).to_have_count(3)
    page.route("**/v1/live?*", lambda route: route.fulfill(content_type="text/event-stream", body=_hostile_events()))
    page.reload()
    expect(page.get_by_role("button", name="out of the ISR")).to_be_visible()
    page.get_by_role("button", name="out of the ISR").click()
    expect(page.locator("#explain")).to_contain_text(HOSTILE)
    expect(page.locator(".head", has_text=HOSTILE)).to_be_visible()
    assert page.evaluate("window.ran") is None
    assert page.locator("img").count() == 0


def _hostile_events() -> str:
    replica = {"id": 1, "role": HOSTILE, "in_sync": False, "why": HOSTILE, "leo": 1, "own_leo": 1, "hw": 1}
    partition = {
        "leader": None,
        "leader_epoch": 0,
        "min_insync_replicas": None,
        "high_watermark": None,
        "order": [1],
        "replicas": {"1": replica},
    }
    state = {"summary": HOSTILE, "why_watermark": HOSTILE, "partition": partition}
    return f"event: snapshot\ndata: {json.dumps(state)}\n\n"


def test_the_page_applies_differences_as_python_makes_them(page: Page, cluster: LocalCluster):
    """PAGE 7: 500 random steps, folded in the browser, give the states that the server has."""
    random = Random(19)
    states: list[dict[str, Any]] = [{}]
    for _ in range(500):
        state = states[-1]
        for _ in range(random.randint(1, 4)):
            state = _changed(state, random)
        states.append(state)
    steps = [difference(before, after) for before, after in itertools.pairwise(states)]
    assert {len(change) for changes in steps for change in changes} == {1, 2, 3}
    page.goto(url_of(cluster))
    folded = page.evaluate(
        """async (text) => {
            const steps = JSON.parse(text);
            const { apply } = await import(document.querySelector("script[src]").src);
            let state = {};
            return steps.map((changes) => JSON.stringify(state = apply(state, changes)));
        }""",
        json.dumps(
            steps
        ),  # as the stream carries them: an argument that is an object would lose members named __proto__
    )
    for text, state in zip(folded, states[1:], strict=True):
        assert json.loads(text) == state


def _changed(state: dict[str, Any], random: Random) -> dict[str, Any]:
    """Another state: a member of some object is new, changed or gone."""
    state = copy.deepcopy(state)
    place, name = state, random.choice(["topics", "__proto__", "1", "isr"])
    while isinstance(place.get(name), dict) and random.random() < 0.8:
        place, name = place[name], random.choice(["topics", "__proto__", "1", "isr"])
    place.pop(name, None)
    if random.random() < 0.8:
        place[name] = random.choice([{}, {"constructor": 1}, [1, 2], None, 2**53 - 1, True, HOSTILE])
    return state


def test_an_open_transaction_is_a_mark_in_the_leaders_lane(page: Page, cluster: LocalCluster):
    """The last stable offset is shown where it is below the high watermark, and in the leader's lane only."""
    replica = {"role": "leader", "in_sync": True, "why": "", "leo": 4, "own_leo": 4, "hw": 4}
    partition = {
        "leader": {"id": 1},
        "leader_epoch": 0,
        "min_insync_replicas": 1,
        "high_watermark": 4,
        "last_stable_offset": 2,
        "order": [1, 2],
        "replicas": {"1": {**replica, "id": 1}, "2": {**replica, "id": 2, "role": "follower"}},
    }
    state = {"summary": "", "why_watermark": "", "partition": partition}
    body = f"event: snapshot\ndata: {json.dumps(state)}\n\n"
    call(cluster, "/v1/topics", {"name": "open", "partitions": 1, "replication_factor": 3})
    page.route("**/v1/live?*", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.goto(f"{url_of(cluster)}/#/t/open/0")
    expect(page.locator("[data-replica='1'] .head")).to_contain_text("LSO 2")
    expect(page.locator(".cell.lso")).to_have_text(["2"])
    expect(page.locator("[data-replica='1'] .cell.lso")).to_have_count(1)


def test_page_of_another_version_applies_no_differences(page: Page, cluster: LocalCluster):
    """Issue 19, the page never lies: a broker that was upgraded under an open page speaks a format that the page does not know."""
    call(cluster, "/v1/topics", {"name": "upgraded", "partitions": 1, "replication_factor": 3})
    page.goto(f"{url_of(cluster)}/#/t/upgraded/0")
    expect(page.locator("[data-replica]")).to_have_count(3)
    hello = f"event: hello\ndata: {json.dumps({'v': 1, 'node': 1, 'testing': False})}\n\n"
    body = hello + _hostile_events()
    page.route("**/v1/live?*", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.reload()
    expect(page.locator("#health")).to_have_text("This broker has another version of the console. Reload the page.")
    expect(page.locator("#live")).to_have_text("not live")
    expect(page.locator("[data-replica]")).to_have_count(0)


def test_the_page_of_a_deleted_topic_is_not_live(page: Page, browser: Browser, cluster: LocalCluster):
    """Its last state stays, marked as old, until there is a topic of this name again; before, it was shown as live.

    The form that sends a record to the topic, which the page offered beside "there is no topic", is away meanwhile.
    """
    topic = {"name": "doomed", "partitions": 1, "replication_factor": 3}
    call(cluster, "/v1/topics", topic)
    page.goto(f"{url_of(cluster)}/#/t/doomed/0")
    expect(page.locator("#live")).to_have_text("● LIVE")
    produce = page.get_by_role("button", name="Produce")
    expect(produce).to_be_enabled()
    call(cluster, "/v1/topics/doomed", method="DELETE")
    expect(page.locator("#health")).to_have_text("there is no topic 'doomed'")
    expect(page.locator("#live")).to_contain_text("no data since")
    expect(page.locator("[data-replica]")).to_have_count(3)
    expect(produce).to_have_count(0)
    with watched_tab(browser, cluster, refusals=True) as tab:
        tab.goto(f"{url_of(cluster)}/#/t/doomed/0")
        expect(tab.locator("#health")).to_have_text("there is no topic 'doomed'")
        expect(tab.get_by_role("heading", name="doomed-0")).to_be_visible()
        expect(tab.locator("#view")).to_contain_text("there is no topic 'doomed'.")
        expect(tab.get_by_role("button", name="Produce")).to_have_count(0)
        call(cluster, "/v1/topics", topic)
        expect(tab.locator("[data-replica]")).to_have_count(3)
        expect(tab.locator("#view")).not_to_contain_text("there is no topic")
        tab.goto(f"{url_of(cluster)}/#/t/doomed/7")
        expect(tab.locator("#view")).to_contain_text("doomed has partitions 0 to 0, not 7.")
    expect(page.locator("#live")).to_have_text("● LIVE")
    expect(produce).to_be_enabled()


def test_a_lost_stream_is_shown_and_resumed(browser: Browser, cluster: LocalCluster):
    """The last state stays while the broker of the page is down, marked as old; the page continues when it is back."""
    call(cluster, "/v1/topics", {"name": "outage", "partitions": 1, "replication_factor": 3})
    tab = patient_tab(browser)
    tab.goto(f"{url_of(cluster)}/#/t/outage/0")
    expect(tab.locator("#live")).to_have_text("● LIVE")
    expect(tab.locator("[data-replica]")).to_have_count(3)
    tab.get_by_label("Key").fill("kept")
    cluster.kill(1)
    try:
        expect(tab.locator("#live")).to_contain_text("no data since")
        tab.get_by_role("button", name="Stay here").click()
        expect(tab.locator("[data-replica]")).to_have_count(3)
    finally:
        cluster.restart(1)
    expect(tab.locator("#live")).to_have_text("● LIVE")
    expect(tab.get_by_label("Key")).to_have_value("kept")
    tab.close()


def test_the_page_moves_to_a_broker_that_answers_later_than_its_own_is_lost(browser: Browser, cluster: LocalCluster):
    """Where no other broker answers at first, the page asks again: before, it stayed with its own broker for good."""
    tab = patient_tab(browser)
    refused: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.abort()

    tab.goto(f"{url_of(cluster)}/#/")
    expect(tab.locator("#live")).to_have_text("● LIVE")
    tab.route("**/healthz", refuse)
    cluster.kill(1)
    try:
        until(tab, lambda: len(set(refused)) == 3)
        expect(tab.locator("#bar")).to_have_text("")
        tab.unroute("**/healthz")
        expect(tab.locator("#bar")).to_contain_text("The view opens at")
        tab.get_by_role("button", name="Stay here").click()
    finally:
        cluster.restart(1)
    tab.close()


def test_a_tab_that_opens_in_the_background_reads_when_it_is_looked_at(page: Page, cluster: LocalCluster):
    """Views that read once (stories of the lab, earlier times) stayed empty for good after a middle click on their link."""
    page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => !window.isLookedAt });")
    page.goto(f"{url_of(cluster)}/#/lab")
    expect(page.get_by_role("heading", name="Lab")).to_be_visible()
    page.wait_for_load_state("networkidle")
    expect(page.get_by_role("table")).to_have_count(0)
    page.evaluate("() => { window.isLookedAt = true; dispatchEvent(new Event('visibilitychange')); }")
    expect(page.get_by_role("table")).to_be_visible()


def show_state(page: Page, cluster: LocalCluster, *, summary: str = "", caution: str = "", left_out: int = 0) -> None:
    """Serve a state of the cluster without topics as the live stream; broker 3 is fenced."""
    brokers = call(cluster, "/v1/brokers")["brokers"]
    state = {
        "summary": summary,
        "caution": caution,
        "controller": None,
        "brokers": {str(each["id"]): {**each, "fenced": each["id"] == 3, "why": caution} for each in brokers},
        "topics": {},
        "topics_left_out": left_out,
    }
    body = f"event: snapshot\ndata: {json.dumps(state)}\n\n"
    page.route("**/v1/live?*", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def test_a_topic_that_the_live_state_leaves_out_has_its_partitions(page: Page, cluster: LocalCluster):
    """The state has those of 50 topics; the page of another topic reads them from /v1/topics."""
    create(cluster, "left-out", partitions=2)
    show_state(page, cluster, left_out=1)
    page.goto(f"{url_of(cluster)}/#/t/left-out")
    expect(page.get_by_role("region", name="Partitions").locator("tbody tr")).to_have_text(
        [re.compile(rf"^left-out-{number}\d.*✓ in syncRecords$") for number in (0, 1)]
    )
    page.goto(url_of(cluster))
    expect(page.get_by_text("1 more topic under Topics.")).to_be_visible()


def test_a_broker_without_a_controller_does_not_call_others_up(page: Page, cluster: LocalCluster):
    """The state is the last that the broker knew, and the page says so: no broker is shown as up."""
    caution = "broker 1 has no session with a controller, so this may be out of date"
    show_state(page, cluster, summary=f"{caution}: 3 of 3 brokers are up.", caution=caution)
    page.goto(url_of(cluster))
    expect(page.locator(".chip")).to_have_text(["? was up", "? was up", "✗ fenced"])
    expect(page.locator("#health")).to_contain_text(caution)


def test_producers_are_unknown_while_no_leader_reports_them(page: Page, cluster: LocalCluster):
    """A leader that has not taken up its epoch has said nothing: that is not the same as having no producers."""
    partition = {
        "leader": {"id": 1},
        "leader_epoch": 1,
        "min_insync_replicas": None,
        "high_watermark": None,
        "order": [1],
        "replicas": {
            "1": {"id": 1, "role": "unknown", "in_sync": True, "why": "", "leo": None, "own_leo": None, "hw": None}
        },
    }
    state = {"summary": "", "why_watermark": "", "partition": partition, "producers": {}, "producer_count": 0}
    body = f"event: snapshot\ndata: {json.dumps(state)}\n\n"
    page.route("**/v1/live?*", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.goto(f"{url_of(cluster)}/#/t/elected/0")
    expect(page.locator("main")).to_contain_text("No leader reports its producers.")
    expect(page.locator("main")).not_to_contain_text("The leader knows no")


@pytest.mark.parametrize("width", [768, 1280])
def test_a_long_topic_name_hides_no_column(page: Page, cluster: LocalCluster, width: int):
    """Names have up to 249 characters: the list of topics wraps them, and the last column stays in the window."""
    name = "long-topic-name." * 15 + "long-topi"
    call(cluster, "/v1/topics", {"name": name, "partitions": 1, "replication_factor": 3})
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{url_of(cluster)}/#/t")
    expect(page.get_by_role("link", name=name)).to_be_visible()
    right = page.get_by_role("columnheader", name="Size").bounding_box()
    assert right is not None
    assert right["x"] + right["width"] <= width
    assert page.locator(".scroll").evaluate("each => each.scrollWidth <= each.clientWidth")
    delete_topic(cluster, name)


def test_cluster_view_lists_partitions_and_opens_one(page: Page, cluster: LocalCluster):
    """From the cluster view one click, or the keyboard alone, opens a partition's lanes."""
    call(cluster, "/v1/topics", {"name": "listed", "partitions": 3, "replication_factor": 3})
    page.goto(url_of(cluster))
    entry = page.locator(".matrix a", has_text="ISR").first
    expect(entry).to_be_visible()
    take_pictures(page, "cluster")
    entry.focus()
    page.keyboard.press("Enter")
    expect(page.locator("[data-replica]")).to_have_count(3)


def test_another_page_cannot_frame_the_console(browser: Browser, cluster: LocalCluster):
    """Clickjacking: a page of another origin that frames the console gets nothing to click on."""
    tab = patient_tab(browser)
    tab.set_content(f"<iframe src='{url_of(cluster)}/'></iframe>")
    frame = tab.locator("iframe").element_handle().content_frame()
    assert frame is not None
    assert frame.locator("#health").count() == 0
    tab.close()


def test_a_page_of_another_origin_can_neither_read_nor_write(browser: Browser, cluster: LocalCluster):
    """PAGE 9.12: reading, the live stream, JSON, a body without preflight and a form are five attempts that fail."""
    call(cluster, "/v1/topics", {"name": "guarded", "partitions": 1, "replication_factor": 3})
    tab = patient_tab(browser)
    records = f"{url_of(cluster)}/v1/topics/guarded/partitions/0/records"
    outcomes = tab.evaluate(
        """async ([home, records]) => {
            const failed = (error) => error.name;
            const body = JSON.stringify({ records: [{ value: "foreign" }] });
            const send = (options) => fetch(records, { method: "POST", body, ...options }).then((it) => it.type, failed);
            return [
                await fetch(`${home}/v1/cluster`).then((it) => it.type, failed),
                await new Promise((resolve) => {
                    const source = new EventSource(`${home}/v1/live`);
                    source.onopen = () => resolve("open");
                    source.onerror = () => { source.close(); resolve("error"); };
                }),
                await send({ headers: { "Content-Type": "application/json" } }),
                await send({ headers: { "Content-Type": "text/plain" }, mode: "no-cors" }),
            ];
        }""",
        [url_of(cluster), records],
    )
    # The browser hides the response to the request without preflight; the broker has refused it, as shown below.
    assert outcomes == ["TypeError", "error", "TypeError", "opaque"]
    tab.set_content(f"<form method=post enctype=text/plain action='{records}'><input name=a value=b></form>")
    with tab.expect_response(records) as answer:
        tab.evaluate("document.forms[0].submit()")
    assert answer.value.status == 403
    assert call(cluster, "/v1/topics/guarded/partitions/0")["log_end_offset"] == 0
    tab.close()
