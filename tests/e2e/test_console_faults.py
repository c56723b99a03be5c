"""The console's drawer at brokers in processes of their own: the page's broker forwards (PAGE M6, 9.8, 9.10, issue 19)."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from minikafka import __version__
from minikafka.hosting.processes import ProcessCluster
from minikafka.types import NodeId
from tests.e2e.console_kit import call, create, produce, take_pictures, until, url_of, watched_tab
from tests.e2e.haste import SHORT_SESSIONS
from tests.e2e.test_processes import MINIKAFKA, TIMEOUT_S

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

CONFIG = {**SHORT_SESSIONS, "mk.testing.endpoints.enable": "true"}
PATIENCE_S = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Three processes, driven by a loop in a thread of its own: the browser's driver has this one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = ProcessCluster(3, data_dir=tmp_path_factory.mktemp("processes"), config=CONFIG)

    async def start_again(node: NodeId) -> None:
        await running.restart(node)

    for broker in running.brokers.values():
        broker.start_broker = start_again
    try:
        asyncio.run_coroutine_threadsafe(running.start(), loop).result(PATIENCE_S)
        yield running
    finally:
        asyncio.run_coroutine_threadsafe(running.stop(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def page(browser: Browser, cluster: ProcessCluster) -> Iterator[Page]:
    """Broker 1's page, with the drawer open."""
    with watched_tab(browser, cluster, refusals=True) as tab:
        tab.goto(f"{url_of(cluster)}/#/")
        tab.get_by_role("button", name="Faults").click()
        yield tab


def brokers_with_faults(cluster: ProcessCluster) -> list[int]:
    return [each["broker"] for each in call(cluster, "/v1/faults?broker=all")["faults"]]


def test_faults_that_could_not_be_read_are_no_failure_once_they_can_be_read(page: Page) -> None:
    """The sentence of a read that failed went only with the next button that was pressed."""
    drawer = page.locator("#faults")
    page.route("**/v1/faults?broker=all", lambda route: route.fulfill(status=503, json={"detail": "not now"}))
    expect(drawer.get_by_role("alert")).to_contain_text("They cannot be read")
    page.unroute("**/v1/faults?broker=all")
    expect(drawer.get_by_role("alert")).to_have_count(0)


def test_drawer_sets_lists_and_heals_faults_of_other_brokers(page: Page, cluster: ProcessCluster):
    """M6: the page's broker has the fault if it is at an end of the link, else the sender; either end can be chosen."""
    drawer = page.locator("#faults")
    expect(page.get_by_label("At broker")).to_have_value("1")
    expect(drawer).to_contain_text("Broker 1, which serves this page, has the fault.")
    page.get_by_role("button", name="link from 3 to 2: ok").click()
    expect(page.get_by_label("At broker")).to_have_value("3")
    expect(drawer).to_contain_text("Broker 1 forwards this to broker 3, which has the fault.")
    page.get_by_role("button", name="Set the fault").click()
    expect(page.locator("#bar")).to_contain_text("hold 3>2 Fetch requests at broker 3")
    page.get_by_label("At broker").select_option("2")
    page.get_by_role("button", name="Set the fault").click()
    expect(page.locator("#bar")).to_contain_text("2 faults are active")
    expect(page.locator("#faults li").first).to_contain_text("set by a browser")
    page.get_by_role("button", name="❚❚ Pause").click()
    expect(page.locator("#bar")).to_contain_text("2 faults are active at present")
    page.keyboard.press("Space")
    assert brokers_with_faults(cluster) == [2, 3]
    assert call(cluster, "/v1/faults")["faults"] == []
    take_pictures(page, "faults-of-others")
    page.locator("#bar").get_by_role("button", name="Heal fault 3:1").click()
    expect(drawer).to_contain_text("Fault 3:1 is healed.")
    assert brokers_with_faults(cluster) == [2]
    page.get_by_role("button", name="Heal all").click()
    expect(drawer).to_contain_text("1 fault healed.")
    expect(page.locator("#bar")).to_be_empty()


def test_links_that_a_fault_of_several_links_strikes_are_marked(page: Page, cluster: ProcessCluster):
    """Faults of the command line name many links at once. They strike what their own broker sends, and what reaches it."""
    add = [*MINIKAFKA, "faults", "add", "delay", "2<>broker", "--delay-ms", "1", "-b", cluster.bootstrap]
    subprocess.run(add, check=True, capture_output=True, timeout=TIMEOUT_S)
    expect(page.locator("#faults li").first).to_contain_text(f"set by minikafka {__version__}")
    for link in ("1 to 2", "3 to 2", "2 to 1", "2 to 3"):
        expect(page.get_by_role("button", name=f"link from {link}: delay")).to_be_visible()
    for link in ("1 to 3", "3 to 1", "client to 2", "2 to client"):
        expect(page.get_by_role("button", name=f"link from {link}: ok")).to_be_visible()
    page.get_by_role("button", name="Heal all").click()
    expect(page.locator("#bar")).to_be_empty()


def test_held_fetch_is_delivered_and_the_high_watermark_moves(page: Page, cluster: ProcessCluster):
    """PAGE 9.8: hold the fetches of a follower, write a record, and deliver fetches one at a time."""
    path = create(cluster, "held")
    leader = call(cluster, path)["leader"]["id"]
    follower = next(node for node in (1, 2, 3) if node != leader)
    page.goto(f"{url_of(cluster)}/#/t/held/0")
    page.get_by_role("button", name=f"link from {follower} to {leader}: ok").click()
    page.get_by_role("button", name="Set the fault").click()
    held = page.locator("#faults li")
    expect(held).to_contain_text(f"Fetch request {follower}>{leader}, held for")
    produce(cluster, path, {"value": "tea"}, acks="1")
    produce(cluster, path, {"value": "milk"}, acks="1")
    row = page.locator(f"[data-values='{leader}'] td")
    expect(row.nth(3)).to_have_text("2")
    expect(page.locator(".why")).to_contain_text(f"broker {follower}")
    take_pictures(page, "faults-held")
    watermark = row.nth(5)
    assert watermark.inner_text() in {"0", "1"}
    held.get_by_role("button", name="Deliver latest").click()
    expect(page.locator("#faults")).to_contain_text("1 message delivered.")

    def is_committed() -> bool:
        """Deliver one more if not. Between two fetches none is held: then nothing is delivered."""
        if watermark.inner_text() == "2":
            return True
        held.get_by_role("button", name="Deliver latest").click()
        return False

    until(page, is_committed)
    expect(held).to_contain_text("holds")
    page.get_by_role("button", name="Heal all").click()
    expect(page.locator("#bar")).to_be_empty()


def test_held_messages_name_their_offsets_and_the_right_one_moves_the_watermark(page: Page, cluster: ProcessCluster):
    """PAGE 9.8 and 6: the fetch of offset 1, and no other message, tells the leader that the record is there."""
    path = create(cluster, "named")
    leader = call(cluster, path)["leader"]["id"]
    follower = next(node for node in (1, 2, 3) if node != leader)
    page.goto(f"{url_of(cluster)}/#/t/named/0")
    expect(page.locator(f"[data-values='{follower}'] td").nth(3)).to_have_text("0")
    page.get_by_role("button", name=f"link from {follower} to {leader}: ok").click()
    page.get_by_label("Ends after").select_option("600")
    page.get_by_role("button", name="Set the fault").click()
    first = page.locator("[data-held]", has_text="named-0 offset 0").first
    watermark = page.locator(f"[data-values='{leader}'] td").nth(5)
    produce(cluster, path, {"value": "tea"}, acks="1")
    second = page.locator("[data-held]", has_text="named-0 offset 1").first

    def is_held() -> bool:
        """The fetch that waited at the leader when the fault was set has brought the record; else a held one does."""
        if second.is_visible():
            return True
        if first.is_visible():
            first.get_by_role("button", name="Deliver").click()
        return False

    until(page, is_held)
    take_pictures(page, "faults-named")
    assert watermark.inner_text() == "0"
    number = second.get_attribute("data-held")
    fault = call(cluster, "/v1/faults?broker=all")["faults"][0]
    kept = [each for each in fault["held"] if str(each["id"]) == number]
    assert [one["offset"] for each in kept for one in each["partitions"] if one["topic"] == "named"] == [1]
    second.get_by_role("button", name=f"Deliver message {number} ").click()
    expect(watermark).to_have_text("1")
    page.get_by_role("button", name="Heal all").click()


def test_what_was_injected_is_copied_as_python_and_as_a_scenario(page: Page, cluster: ProcessCluster):
    """Issue 19: both texts are the broker's; the page copies them, and shows them where a browser does not let it."""
    page.get_by_role("button", name="Set the fault").click()
    expect(page.locator("#bar")).to_contain_text("hold 2>1 Fetch")
    page.get_by_role("button", name="Heal all").click()
    page.get_by_role("button", name="Copy as Python").click()
    expect(page.locator("#faults .said")).to_contain_text("Save it as test_injected.py.")
    shown = page.get_by_role("region", name="test_injected.py")
    expect(shown).to_contain_text('kafka.faults.hold("2>1", api="Fetch", message="request", for_ms=30000)')
    if page.locator("#explain").is_visible():
        page.get_by_role("button", name="Close").last.click()
    page.get_by_role("button", name="Copy as chaos file").click()
    expect(page.get_by_role("region", name="injected.toml")).to_contain_text('kind = "hold"')
    script = call(cluster, "/v1/faults:script?broker=all")
    assert page.get_by_role("region", name="injected.toml").inner_text() == script["chaos"]
    take_pictures(page, "faults-script")


def test_earlier_time_shows_the_faults_that_were_active_then(page: Page, cluster: ProcessCluster):
    """PAGE 9.13: a time within the life of a fault names it, a time after its end does not; the present is apart."""
    fault = call(cluster, "/v1/faults?broker=2", {"kind": "hold", "link": "client>2", "api": "Vote"})
    steps = "/v1/history?states=false&kind=fault_set,fault_over&broker=2&from=1"
    seen = call(cluster, steps)["steps"][-1]["t"]
    call(cluster, f"/v1/faults/{fault['id']}?broker=2", method="DELETE")
    over = next(each["t"] for each in call(cluster, steps)["steps"] if each["k"] == "fault_over" and each["t"] >= seen)
    bar = page.locator("#bar")
    page.goto(f"{url_of(cluster)}/#/?at={seen}")
    expect(bar).to_contain_text("active at the time shown")
    expect(bar).to_contain_text("hold client>2 Vote at broker 2, set")
    expect(bar).not_to_contain_text("active now")
    take_pictures(page, "faults-then")
    page.goto(f"{url_of(cluster)}/#/?at={over}")
    expect(bar).to_be_empty()


def test_fault_that_has_ended_by_itself_is_not_shown_as_active(page: Page, cluster: ProcessCluster):
    """PAGE 9.10: the bar names active faults only; the drawer keeps what they struck until it is removed."""
    call(cluster, "/v1/faults?broker=2", {"kind": "hold", "link": "client>2", "api": "Vote", "for_ms": 1})
    ended = page.locator("#faults li")
    expect(ended).to_contain_text("at broker 2, over; struck 0")
    expect(page.locator("#bar")).to_be_empty()
    ended.get_by_role("button", name="Remove fault 2:").click()
    expect(page.locator("#faults")).to_contain_text("No fault is set.")


def test_paused_broker_is_healed_and_a_killed_one_is_started_again(page: Page, cluster: ProcessCluster):
    """M6: a killed broker cannot confirm its end, nothing is done at a dead one, and its parent starts it again."""
    create(cluster, "struck")
    drawer, third = page.locator("#faults"), page.locator(".actions").nth(2)
    third.get_by_role("button", name="Pause").click()
    expect(page.locator("#bar")).to_contain_text("hold 3<>* at broker 3, until healed")
    expect(page.locator("main")).to_contain_text("✗ fenced")
    page.get_by_role("button", name="Heal all").click()
    expect(page.locator("main")).not_to_contain_text("✗ fenced")
    led_by_third = any(each["id"] == 3 and each["leader_count"] for each in call(cluster, "/v1/brokers")["brokers"])
    third.get_by_role("button", name="Kill").click()
    expect(third).to_contain_text("another leader." if led_by_third else "No partition changes its leader.")
    third.get_by_role("button", name="Kill broker 3: sure?").click()
    expect(drawer).to_contain_text("Broker 3 has accepted kill and ends now; it cannot report its end.")
    expect(drawer).to_contain_text("No word from broker 3: its faults are not listed.")
    third.get_by_role("button", name="Pause").click()
    expect(drawer.get_by_role("alert")).to_contain_text("BROKER_NOT_AVAILABLE: broker 3 at 127.0.0.1:")
    expect(drawer.get_by_role("alert")).to_contain_text("nothing was done there")
    second = page.locator(".actions").nth(1)
    second.get_by_role("button", name="Stop", exact=True).click()
    expect(second).to_contain_text("1 of 3 voters would be up: without 2 there is no controller")
    confirm = second.get_by_role("button", name="Stop broker 2: sure?")
    expect(confirm).to_be_disabled()
    second.get_by_label("Type 2 to stop broker 2.").fill("3")
    expect(confirm).to_be_disabled()
    second.get_by_label("Type 2 to stop broker 2.").fill("2")
    expect(confirm).to_be_enabled()
    take_pictures(page, "faults-of-a-dead-broker")
    second.get_by_role("button", name="Cancel").click()
    expect(confirm).to_have_count(0)
    third.get_by_role("button", name="Start").click()
    expect(drawer).to_contain_text("Broker 3: start is done.")
    expect(drawer).not_to_contain_text("No word from broker 3")
    expect(page.locator("main")).not_to_contain_text("✗ fenced")
