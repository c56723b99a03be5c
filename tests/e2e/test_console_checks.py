"""Acceptance checks of the console that have a time, a size, another origin or a second device in them (PAGE 9)."""

from __future__ import annotations

import base64
import http.server
import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Locator, Page, expect

from minikafka.cli.root import root
from minikafka.testing.local_cluster import LocalCluster
from tests.e2e import console_kit
from tests.e2e.console_kit import (
    LOOK,
    SLOWNESS_MAX,
    call,
    create,
    hold_fetches,
    led_by_another,
    patient_tab,
    produce,
    take_pictures,
    until,
    url_of,
    watched_tab,
    within,
)
from tests.e2e.haste import SHORT_SESSIONS

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

CONFIG = {**SHORT_SESSIONS, "mk.testing.endpoints.enable": "true"}
PAINT_MS, LANES_MS, MATRIX_MS = 300, 600, 1000
TASK_MS, FREEZE_MS = 50, 100
RECORD_SEEN_MS = 200
FRAMES_PER_S = 50
MOVED_S, SILENT_S = 5.0, 8.0
PARTITIONS = 1_000
PHONE = {"width": 400, "height": 800}

TASKS = """() => {
    window.tasks = [];
    new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((each) => Math.round(each.duration))))
        .observe({ type: "longtask", buffered: true });
}"""
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=CONFIG) as running:
        yield running


@pytest.fixture
def page(browser: Browser, cluster: LocalCluster) -> Iterator[Page]:
    with watched_tab(browser, cluster) as tab:
        yield tab
    cluster.faults.heal()


# ---- budget ----------------------------------------------------------------------------------------------------------


def test_first_paint_and_lanes_are_within_their_budget_and_no_task_is_long(browser: Browser, cluster: LocalCluster):
    """Issue 19: with a cold cache, below 300 ms and 600 ms on loopback; the main thread is never busy for 50 ms."""
    create(cluster, "quick")

    def load() -> dict[str, float]:
        with watched_tab(browser, cluster) as page:  # a context of its own: nothing is cached
            page.add_init_script(f"({TASKS})(); ({LOOK})('[data-replica]')")
            page.goto(f"{url_of(cluster)}/#/t/quick/0")
            page.wait_for_function("() => window.shownMs > 0")
            # The browser reports a paint after it, which may be after the script that runs here.
            page.wait_for_function(f"() => {FIRST_PAINT}")
            return {
                "paint": page.evaluate(f"{FIRST_PAINT}.startTime"),
                "lanes": page.evaluate("window.shownMs"),
                "task": _longest(page),
            }

    within(load, paint=PAINT_MS, lanes=LANES_MS, task=TASK_MS)


def test_no_task_is_long_while_the_partition_changes_ten_times_a_second(page: Page, cluster: LocalCluster):
    """PAGE 7: two seconds of records."""
    path = create(cluster, "lively")
    page.add_init_script(f"({TASKS})()")
    page.goto(f"{url_of(cluster)}/#/t/lively/0")
    expect(page.locator("[data-replica]")).to_have_count(3)

    def watch() -> dict[str, float]:
        page.evaluate("window.tasks.length = 0")
        for value in range(20):
            produce(cluster, path, {"value": value})
            page.wait_for_timeout(100)
        return {"task": _longest(page)}

    within(watch, task=TASK_MS)


def test_budgets_grow_with_the_load_of_the_machine_and_have_an_end(monkeypatch: pytest.MonkeyPatch):
    """Issue 16: four workers share two cores, and a page that takes forever fails on any machine."""
    monkeypatch.setattr(console_kit, "ATTEMPTS_S", 0.0)
    monkeypatch.setattr(console_kit, "WORK_S", 1e-9)
    assert console_kit.slowness() == SLOWNESS_MAX
    assert within(lambda: {"paint": PAINT_MS * SLOWNESS_MAX}, paint=PAINT_MS) == {"paint": PAINT_MS}
    with pytest.raises(AssertionError, match=r"wanted \{'paint': 300\}"):
        within(lambda: {"paint": PAINT_MS * SLOWNESS_MAX + 1}, paint=PAINT_MS)
    monkeypatch.setattr(console_kit, "WORK_S", 1e9)
    assert console_kit.slowness() == 1
    with pytest.raises(AssertionError, match="wanted"):
        within(lambda: {"paint": PAINT_MS + 1}, paint=PAINT_MS)


def _longest(page: Page) -> float:
    return max([0, *page.evaluate("window.tasks")])


# ---- records ---------------------------------------------------------------------------------------------------------


def test_record_of_another_client_appears_within_200_ms(page: Page, cluster: LocalCluster):
    """PAGE 9.4: Records follow the log; measured from the response to the producer."""
    path = create(cluster, "followed")
    produce(cluster, path, {"value": "first"})
    page.goto(f"{url_of(cluster)}/#/t/followed/0/records")
    expect(page.locator("[data-offset='0']")).to_contain_text("✓ committed")
    offset = 0

    def send() -> dict[str, float]:
        nonlocal offset
        offset += 1
        page.wait_for_timeout(500)
        page.evaluate(f"window.shownMs = 0; ({LOOK})(\"[data-offset='{offset}'] .chip:not(.out)\")")
        produce(cluster, path, {"value": offset})
        sent_ms = time.time() * 1000
        page.wait_for_function("() => window.shownMs > 0")
        return {"seen": page.evaluate("performance.timeOrigin + window.shownMs") - sent_ms}

    within(send, seen=RECORD_SEEN_MS)


def test_megabyte_of_random_bytes_is_shown_exactly_without_a_freeze(page: Page, cluster: LocalCluster):
    """PAGE 9.15: opening its details keeps the main thread for less than 100 ms."""
    path = create(cluster, "large")
    data = base64.b64encode(Random(19).randbytes(1_000_000)).decode()
    produce(cluster, path, {"value_b64": data})
    page.add_init_script(f"({TASKS})()")

    def view() -> dict[str, float]:
        page.goto(f"{url_of(cluster)}/#/t/large/0/records")
        page.reload()
        page.locator("[data-offset='0'] button").click()
        expect(page.locator("[data-offset='0']")).to_contain_text("binary, 1,000,000 bytes")
        value = page.locator("tr.details pre").nth(1).text_content() or ""
        assert value.startswith(data[:65_536] + "\n"), value[:80]
        return {"task": _longest(page)}

    within(view, task=FREEZE_MS)


# ---- many partitions -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_thousand_partitions_are_quick_to_draw_and_an_election_of_many_is_one_line(browser: Browser):
    """PAGE 9.16: the matrix within a second, scrolling at 50 frames a second, and one line for all elections of a kill."""
    # On a loaded machine, brokers with so many partitions are late with their heartbeats: only the kill may move leaders.
    # A broker that is killed is fenced at once, since connections to it are refused.
    patient = {**CONFIG, "broker.session.timeout.ms": "60000"}
    with LocalCluster(brokers=3, config=patient) as cluster, watched_tab(browser, cluster) as page:
        call(cluster, "/v1/topics", {"name": "wide", "partitions": PARTITIONS, "replication_factor": 3})
        cells = page.locator(".matrix.small a[href^='#/t/wide/']")
        page.goto(url_of(cluster))
        expect(cells).to_have_count(PARTITIONS, timeout=180_000)
        page.add_init_script(f"({LOOK})(\".matrix a[href='#/t/wide/{PARTITIONS - 1}']\")")

        def draw() -> dict[str, float]:
            page.reload()
            page.wait_for_function("() => window.shownMs > 0")
            return {"matrix": page.evaluate("window.shownMs")}

        within(draw, matrix=MATRIX_MS)
        within(lambda: {"frame": 1000 / page.evaluate(SCROLL)}, frame=1000 / FRAMES_PER_S)
        # Broker 1 serves the page, and the controller decides: with its own death a second one would.
        controller = call(cluster, "/v1/cluster")["controller"]["id"]
        victim = next(node for node in (2, 3) if node != controller)
        led = sum(each["leader"] == victim for each in call(cluster, "/v1/topics/wide/partitions")["partitions"])
        assert led > PARTITIONS // 4
        cluster.kill(victim)
        try:
            page.goto(f"{url_of(cluster)}/#/e")
            elected = page.locator("[data-event='leader_elected']", has_text=f"{led} partitions")
            expect(elected).to_have_count(1)
        finally:
            cluster.restart(victim)


SCROLL = """() => new Promise((done) => {
    const [begun, seconds] = [performance.now(), 1];
    let frames = 0;
    const next = () => {
        frames += 1;
        scrollTo(0, (frames * 7) % 600);
        if (performance.now() - begun < seconds * 1000) requestAnimationFrame(next);
        else done(frames / ((performance.now() - begun) / 1000));
    };
    requestAnimationFrame(next);
})"""
"""Frames a second while the page scrolls."""


# ---- other origins ---------------------------------------------------------------------------------------------------


def test_page_of_another_origin_can_neither_set_a_fault_nor_kill_a_broker(browser: Browser, cluster: LocalCluster):
    """PAGE 9.12, with test hooks: JSON, a body without preflight, a form, an iframe and a link, and all are in vain."""
    home = url_of(cluster)
    fault = json.dumps({"kind": "hold", "link": "2>1"})
    tab = patient_tab(browser)
    with _foreign_site() as address:
        tab.goto(address)
        outcomes = tab.evaluate(
            """async ([home, fault]) => {
                const failed = (error) => error.name;
                const send = (path, body, options) => fetch(home + path, { method: "POST", body, ...options }).then((it) => it.type, failed);
                return [
                    await send("/v1/faults", fault, { headers: { "Content-Type": "application/json" } }),
                    await send("/v1/faults", fault, { headers: { "Content-Type": "text/plain" }, mode: "no-cors" }),
                    await send("/v1/brokers/3/actions", '{"do":"kill"}', { mode: "no-cors" }),
                    await fetch(`${home}/v1/faults`, { method: "DELETE" }).then((it) => it.type, failed),
                ];
            }""",
            [home, fault],
        )
        # An opaque response is one that the browser hides: the broker refused the request, as the state below shows.
        assert outcomes == ["TypeError", "opaque", "opaque", "TypeError"]
        tab.set_content(
            f"<iframe src='{home}/'></iframe>"
            f"<form method=post enctype=text/plain action='{home}/v1/brokers/3/actions'><input name='{{&quot;do' value=1></form>"
        )
        frame = tab.locator("iframe").element_handle().content_frame()
        assert frame is not None
        assert frame.locator("#health").count() == 0
        with tab.expect_response(f"{home}/v1/brokers/3/actions") as answer:
            tab.evaluate("document.forms[0].submit()")
        assert answer.value.status == 403
    tab.close()
    assert call(cluster, "/v1/faults")["faults"] == []
    assert [each["fenced"] for each in call(cluster, "/v1/brokers")["brokers"]] == [False] * 3


class _Blank(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class _foreign_site:  # noqa: N801 - used as a function
    """A site on another port of this machine: the same host, another origin."""

    def __enter__(self) -> str:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Blank)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


# ---- the way to another broker ---------------------------------------------------------------------------------------


def test_page_is_at_another_broker_within_five_seconds(browser: Browser):
    """PAGE 9.11: the same view, and it is live."""
    with LocalCluster(brokers=3, config=SHORT_SESSIONS) as cluster:
        create(cluster, "moved")
        home, *others = [f"http://{each}" for each in cluster.bootstrap.split(",")]
        tab = patient_tab(browser)

        def move() -> dict[str, float]:
            with tab.expect_response(f"{home}/v1/brokers"):  # the addresses of the others
                tab.goto(f"{home}/#/t/moved/0")
            expect(tab.locator("[data-replica]")).to_have_count(3)
            begun = time.monotonic()
            cluster.kill(1)
            tab.wait_for_url(lambda url: any(url == f"{each}/#/t/moved/0" for each in others))
            expect(tab.locator("[data-replica]")).to_have_count(3)
            moved_s = time.monotonic() - begun
            cluster.restart(1)
            return {"moved": moved_s}

        within(move, moved=MOVED_S)
        tab.close()


# ---- a dead leader ---------------------------------------------------------------------------------------------------


def test_produce_form_says_what_became_of_a_record_whose_leader_is_dead(page: Page, cluster: LocalCluster):
    """PAGE 9.6 and 9.7: the form says what happened; each stage of the way back has a sentence; the page announces it."""
    number, leader = led_by_another(cluster, "deadly")
    path = f"/v1/topics/deadly/partitions/{number}"
    produce(cluster, path, {"value": "kept"})
    page.goto(f"{url_of(cluster)}/#/t/deadly/{number}")
    lane = page.locator(f"[data-replica='{leader}']")
    expect(lane).to_contain_text("✓ in the ISR")
    cluster.kill(leader)
    try:
        page.get_by_label("Value").fill("while it is dead")
        page.get_by_role("button", name="Produce").click()
        # Either the election was waited for, or the form has Kafka's name of the error.
        outcome = page.locator(".journey li, main .failed").first
        expect(outcome).to_be_visible()
        assert re.match(r"acknowledged at offset 1 |[A-Z_]+: .", outcome.inner_text()), outcome.inner_text()
        expect(lane).to_contain_text(f"no word from broker {leader}")
        expect(lane.locator(".cell.unknown").first).to_be_visible()
        expect(page.locator("#health")).to_contain_text("epoch 1")
        assert page.locator("#health").get_attribute("role") == "status"
        lane.get_by_role("button", name="out of the ISR").click()
        expect(page.locator("#explain")).to_contain_text(f"roker {leader}")
        page.get_by_role("button", name="Close").click()
    finally:
        cluster.restart(leader)
    expect(lane).to_contain_text("✓ in the ISR")
    lane.get_by_role("button", name="in the ISR").click()
    expect(page.locator("#explain")).not_to_be_empty()


def test_lane_of_a_killed_leader_has_no_word_within_eight_seconds(page: Page, cluster: LocalCluster):
    """PAGE 9.6: its offsets are unknown, and no longer those of before."""
    number, leader = led_by_another(cluster, "silenced")
    lane = page.locator(f"[data-replica='{leader}']")
    page.goto(f"{url_of(cluster)}/#/t/silenced/{number}")

    def silence() -> dict[str, float]:
        expect(lane).not_to_contain_text("no word")
        begun = time.monotonic()
        cluster.kill(leader)
        expect(lane).to_contain_text(f"no word from broker {leader}")
        silent_s = time.monotonic() - begun
        expect(page.locator(f"[data-values='{leader}'] td").nth(3)).to_have_text("unknown")
        cluster.restart(leader)
        return {"silent": silent_s}

    within(silence, silent=SILENT_S)


ANNOUNCED = """() => {
    window.announced = [];
    const place = document.querySelector(".election");
    new MutationObserver(() => window.announced.push(place.textContent)).observe(place, { childList: true, characterData: true, subtree: true });
    return place.role;
}"""


def test_election_is_announced_once_with_its_reason(page: Page, cluster: LocalCluster):
    """PAGE 9.6 and 9.19: a region that screen readers read says who leads, and why; later changes of the ISR add nothing."""
    number, leader = led_by_another(cluster, "elected")
    page.goto(f"{url_of(cluster)}/#/t/elected/{number}")
    lane = page.locator(f"[data-replica='{leader}']")
    expect(lane).to_contain_text("✓ in the ISR")
    assert page.evaluate(ANNOUNCED) == "status"
    cluster.kill(leader)
    try:
        expect(page.locator(".election")).to_contain_text(re.compile(rf"^Broker \d leads epoch 1: .*broker {leader}"))
        take_pictures(page, "election")
    finally:
        cluster.restart(leader)
    expect(lane).to_contain_text("✓ in the ISR")
    announced = page.evaluate("window.announced")
    assert [each for each in announced if "epoch 1:" in each] == announced[:1]


def explanation(page: Page, lane: Locator) -> str:
    """What a replica's chip explains now; empty when the click missed it."""
    lane.get_by_role("button", name="the ISR").click()
    if not page.locator("#explain").is_visible():
        return ""  # The lane was drawn while the mouse was down, and its chip moved from under it.
    text = page.locator("#explain p").inner_text()
    page.get_by_role("button", name="Close").click()
    return text


def test_each_stage_of_a_dead_leaders_return_has_a_sentence(page: Page, cluster: LocalCluster):
    """PAGE 9.7: it loads, cuts what nobody else has, catches up and is in the ISR again."""
    number, leader = led_by_another(cluster, "returning")
    path = f"/v1/topics/returning/partitions/{number}"
    produce(cluster, path, {"value": "kept"})
    hold_fetches(cluster, path, leader)
    produce(cluster, path, {"value": "of this leader alone"}, acks="1")
    cluster.kill(leader)
    cluster.faults.heal()
    page.goto(f"{url_of(cluster)}/#/t/returning/{number}")
    lane = page.locator(f"[data-replica='{leader}']")
    expect(page.locator(".lane.leader")).to_contain_text("epoch 1")
    expect(lane).to_contain_text(f"no word from broker {leader}")
    # How much of the second record was replicated is a matter of time.
    end = call(cluster, path)["log_end_offset"]
    catching_up = f"it is catching up: it has everything below {end}"
    produce(cluster, path, {"value": "of the next leader"})
    registration = cluster.faults.hold(f"{leader}>*", api="BrokerRegistration", message="request")
    fetches = cluster.faults.hold(f"{leader}>*", api="Fetch", message="request")
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(cluster.restart, leader)
        try:
            expect(lane).to_contain_text(f"{leader} loading")
            until(page, lambda: f"roker {leader} is loading: its log ends at 3" in explanation(page, lane))
            take_pictures(page, "loading")
            registration.heal()
            until(page, lambda: "has not fetched from the leader of epoch 1 yet" in explanation(page, lane))
            while True:
                # One fetch at a time: the first one learns where the logs part, the next one asks from there.
                until(page, fetches.held)
                if catching_up in next(each["why"] for each in call(cluster, path)["replicas"] if each["id"] == leader):
                    break
                fetches.release(1, latest=True)
            until(page, lambda: catching_up in explanation(page, lane))
            take_pictures(page, "catching-up")
        finally:
            cluster.faults.heal()
            back.result()
    expect(lane).to_contain_text("✓ in the ISR")
    until(page, lambda: "it has everything" in explanation(page, lane))
    page.get_by_role("navigation", name=f"Views of returning-{number}").get_by_role("link", name="Events").click()
    expect(page.locator("[data-event='tail_truncated']")).to_contain_text(f"The log was cut from 3 to {end}")


# ---- keyboard, contrast, a phone -------------------------------------------------------------------------------------


def focus_on(page: Page, matching: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(300):
        page.keyboard.press("Tab")
        if page.evaluate("(wanted) => document.activeElement.matches(wanted)", matching):
            return
    raise AssertionError(f"Tab does not reach {matching}")


def test_first_topic_a_held_fetch_and_a_step_back_need_no_mouse(browser: Browser):
    """PAGE 9.19: checks 3, 8 and 13 with Tab, Enter, space and arrows."""
    with LocalCluster(brokers=3, config=CONFIG) as cluster, watched_tab(browser, cluster) as page:
        page.goto(url_of(cluster))
        expect(page.get_by_text("There are no topics yet.")).to_be_visible()
        focus_on(page, "main button.main")
        page.keyboard.press("Enter")
        expect(page.locator("[data-replica] .cell.committed", has_text="1").first).to_be_visible()
        page.keyboard.press("x")
        expect(page.locator("#faults")).to_be_visible()
        leader = call(cluster, "/v1/topics/orders/partitions/0")["leader"]["id"]
        follower = next(node for node in (1, 2, 3) if node != leader)
        focus_on(page, f"[aria-label='link from {follower} to {leader}: ok']")
        page.keyboard.press("Enter")
        focus_on(page, "#faults form button.main")
        page.keyboard.press("Enter")
        expect(page.locator("[data-held]").first).to_contain_text(f"Fetch request {follower}>{leader}")
        focus_on(page, "[aria-label^='Deliver message']")
        page.keyboard.press("Enter")
        expect(page.locator("#faults .said")).to_contain_text("1 message delivered.")
        page.keyboard.press("Escape")
        page.locator("main").focus()
        page.keyboard.press("Space")
        expect(page.locator("#time")).to_contain_text("states since")
        shown = page.locator("#shown-time").inner_text()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#shown-time")).not_to_have_text(shown)
        page.keyboard.press("Space")
        expect(page.locator("#live")).to_have_text("● LIVE")


def test_lanes_keep_their_marks_with_forced_colors_and_reduced_motion(page: Page, cluster: LocalCluster):
    """PAGE 7: in a high-contrast theme backgrounds and shadows are gone; the bars of HW and LEO are borders there."""
    path = create(cluster, "contrast")
    produce(cluster, path, {"value": "tea"})
    page.goto(f"{url_of(cluster)}/#/t/contrast/0")
    expect(page.locator(".cell.committed").first).to_be_visible()
    page.emulate_media(forced_colors="active", reduced_motion="reduce")
    bar = page.locator(".lane.leader .cell.hw")
    expect(bar).to_have_css("border-left-width", "5px")
    expect(page.locator(".lane.leader .cell.committed")).to_have_css("border-top-style", "solid")
    # Some may have begun before the setting changed.
    page.wait_for_function("() => document.getAnimations().length === 0")
    produce(cluster, path, {"value": "milk"})
    expect(page.locator(".cell.committed", has_text="1").first).to_be_visible()
    assert page.evaluate("document.getAnimations().length") == 0


def test_lanes_are_understood_without_colors(page: Page, cluster: LocalCluster):
    """PAGE 9.19: the picture in shades of gray, for people to look at; what differs, differs in its words too."""
    path = create(cluster, "gray")
    leader = call(cluster, path)["leader"]["id"]
    cluster.faults.hold(f"*>{leader}", api="Fetch")
    produce(cluster, path, {"value": "tea"}, {"value": "milk"}, acks="1")
    page.goto(f"{url_of(cluster)}/#/t/gray/0")
    expect(page.locator(".lane.leader")).to_contain_text("LEO 2")
    page.evaluate("document.documentElement.style.filter = 'grayscale(1)'")
    take_pictures(page, "gray")


def test_phone_shows_an_empty_cluster_a_dead_leader_and_an_earlier_time(browser: Browser):
    """PAGE 9.20: checks 1, 6 and 13 at 400 px, with nothing beside the page."""
    with LocalCluster(brokers=3, config=CONFIG) as cluster, watched_tab(browser, cluster) as page:
        page.set_viewport_size(PHONE)
        page.goto(url_of(cluster))
        expect(page.locator("#health")).to_contain_text("3 of 3 brokers are up.")
        expect(page.get_by_role("button", name="Create orders")).to_be_visible()
        number, leader = led_by_another(cluster, "mortal")
        page.goto(f"{url_of(cluster)}/#/t/mortal/{number}")
        lane = page.locator(f"[data-replica='{leader}']")
        expect(lane).to_contain_text("✓ in the ISR")
        cluster.kill(leader)
        try:
            expect(lane).to_contain_text(f"no word from broker {leader}")
            expect(page.locator(".lane.leader")).to_contain_text("epoch 1")
        finally:
            cluster.restart(leader)
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("slider", name="Time")).to_be_visible()
        slider = page.get_by_role("slider", name="Time")
        slider.fill(slider.get_attribute("min") or "")
        expect(page.locator("#live")).to_have_text("❚❚ PAUSED")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.get_by_role("button", name="● Live").click()
        expect(page.locator("#live")).to_have_text("● LIVE")


# ---- the lab ---------------------------------------------------------------------------------------------------------


def test_story_in_the_page_is_that_of_the_command_line(page: Page, cluster: LocalCluster):
    """PAGE 9.18: the texts are those of `minikafka lab run`, and the rules part where `lab compare` says."""

    def printed(*arguments: str) -> str:
        with ThreadPoolExecutor(1) as pool:  # the browser's driver has a loop in this thread
            result = pool.submit(CliRunner().invoke, root, ["lab", *arguments]).result()
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    page.goto(f"{url_of(cluster)}/#/lab/data-loss")
    expect(page.locator(".run")).to_have_count(2)
    for rule, place in (("leader-epoch", 0), ("high-watermark", 1)):
        shown = page.locator(".run pre").nth(place).text_content() or ""
        head, table = printed("run", "data-loss", "--truncation", rule).split("\nstep ", 1)
        assert head.startswith("# data-loss: ")
        assert shown.strip() == f"step {table}".strip()
    assert re.search(r"^>> +9 ", printed("compare", "data-loss"), re.MULTILINE)
    expect(page.locator("main")).to_contain_text("The two rules part at step 9.")


def test_rules_part_also_where_only_contents_differ(page: Page, cluster: LocalCluster):
    """In `divergence` every LEO and HW is the same at the end, and one record is not; a step beyond the end is the last."""
    page.goto(f"{url_of(cluster)}/#/lab/divergence?step=99")
    expect(page.locator("main")).to_contain_text("The two rules part at step 14.")
    expect(page.locator(".run").last).to_contain_text("The logs differ at offset 1")
    shown = page.get_by_role("main").locator("output")
    step, last = (int(each) for each in re.findall(r"\d+", shown.text_content() or ""))
    assert step == last
    page.get_by_role("button", name="Back").click()
    expect(shown).to_have_text(f"step {last - 1} of {last}")


def test_a_story_shows_which_broker_is_cut_off(page: Page, cluster: LocalCluster):
    """PAGE 9.18: the lanes say what the table's role says, also in the steps after the cut, and of a leader."""
    page.goto(f"{url_of(cluster)}/#/lab/deposed-leader-tail-is-cut?step=5")
    expect(page.locator(".run")).to_have_count(2)
    for run in page.locator(".run").all():
        expect(run.locator("[data-replica='1'] b")).to_have_text("1 ♛ leader, cut off")
        expect(run.locator("[data-replica='2'] b")).to_have_text("2 follower")


def test_curl_gets_an_index_with_links_and_a_browser_the_page(cluster: LocalCluster):
    """PAGE 9.2."""
    for accept, kind in (("*/*", "application/json"), ("text/html", "text/html")):
        request = urllib.request.Request(f"{url_of(cluster)}/", headers={"Accept": accept})
        with urllib.request.urlopen(request) as response:
            assert response.headers.get_content_type() == kind
            body = response.read()
        assert (b'"links"' in body) == (kind == "application/json")
