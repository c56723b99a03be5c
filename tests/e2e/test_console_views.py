"""Records, groups and events in the console, on a real cluster: exact contents, what is committed, and resets."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.console_kit import (
    HOSTILE,
    call,
    create,
    hold_fetches,
    patient_tab,
    produce,
    take_pictures,
    url_of,
    watched_tab,
)
from tests.e2e.haste import SHORT_SESSIONS

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

CONFIG = {**SHORT_SESSIONS, "mk.testing.endpoints.enable": "true"}
LARGE = 2**60 + 1
BEGUN_MS = int(time.time() - 3600) * 1000
"""An hour ago: brokers refuse timestamps of the future, and delete old records."""


def moment(offset: int) -> str:
    """The timestamp of the record at an offset, as people write it."""
    return datetime.fromtimestamp((BEGUN_MS + offset) / 1000, UTC).isoformat(timespec="milliseconds")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=CONFIG) as running:
        yield running


@pytest.fixture
def page(browser: Browser, cluster: LocalCluster) -> Iterator[Page]:
    with watched_tab(browser, cluster) as tab:
        yield tab
    cluster.faults.heal()


@pytest.fixture
def page_of_replicas(browser: Browser, cluster: LocalCluster) -> Iterator[Page]:
    """A follower whose log ends below an offset refuses to read there, if it has not fetched the record before it."""
    with watched_tab(browser, cluster, refusals=True) as tab:
        yield tab
    cluster.faults.heal()


def expect_offsets(page: Page, offsets: Iterable[int]) -> None:
    """These records are shown, in this order: a view may have others until it has read its own."""
    expect(page.locator("[data-offset] td:first-child")).to_have_text([str(each) for each in offsets])


def commit(cluster: LocalCluster, group: str, **offsets: int) -> None:
    """Commit offsets of partition 0 of topics."""
    listed = [{"topic": topic, "partition": 0, "offset": offset} for topic, offset in offsets.items()]
    call(cluster, f"/v1/groups/{quote(group, safe='')}/offsets", {"offsets": listed}, "PUT")


# ---- records ---------------------------------------------------------------------------------------------------------


def test_a_record_above_the_high_watermark_is_marked_until_it_is_committed(
    page_of_replicas: Page, cluster: LocalCluster
):
    """PAGE 3.5: followers that cannot fetch leave the record below a line; it changes by itself when they can."""
    page = page_of_replicas
    create(cluster, "held", partitions=3)
    listed = call(cluster, "/v1/topics/held/partitions")["partitions"]
    # Broker 1 serves the page: it reads what it leads itself, and not through a link that is held.
    number = next(each["partition"] for each in listed if each["leader"] == 1)
    path = f"/v1/topics/held/partitions/{number}"
    produce(cluster, path, {"key": "a", "value": "committed"})
    page.goto(f"{url_of(cluster)}/#/t/held/{number}/records")
    expect(page.locator("[data-offset='0']")).to_contain_text("✓ committed")
    hold_fetches(cluster, path, 1)
    produce(cluster, path, {"key": "b", "value": "perhaps"}, acks="1")
    expect(page.locator("[data-offset='2']")).to_contain_text("✗ not committed")
    expect(page.locator("tr.mark")).to_contain_text("HW 1")
    expect_offsets(page, [2, 1, 0])
    page.locator("[data-offset='2'] button").click()
    page.get_by_role("button", name="Compare the replicas").click()
    expect(page.locator("tr.details li", has_text="broker 1: batch 2 to 2")).to_have_count(1)
    expect(page.locator("tr.details li", has_text="not there")).to_have_count(2)
    expect(page.locator("main")).to_contain_text("Offsets 0 to 2, 3 records.")
    take_pictures(page, "records-above-hw")
    cluster.faults.heal()
    expect(page.locator("[data-offset='2']")).to_contain_text("✓ committed")
    expect(page.locator("tr.mark")).to_have_count(0)
    page.get_by_role("button", name="Compare the replicas").click()
    expect(page.locator("tr.details li", has_text="CRC valid")).to_have_count(3)


def test_records_from_an_offset_by_time_and_page_by_page(page: Page, cluster: LocalCluster):
    """Newest first; older and newer pages; from an offset, from the first record at a time, from the log's start."""
    path = create(cluster, "many")
    produce(cluster, path, *({"value": at, "timestamp": BEGUN_MS + at} for at in range(120)))
    page.goto(f"{url_of(cluster)}/#/t/many/0/records")
    expect(page.locator("[data-offset='119']")).to_be_visible()
    expect_offsets(page, range(119, 69, -1))
    page.get_by_role("link", name="Older").click()
    expect(page.locator("[data-offset='20']")).to_be_visible()
    expect_offsets(page, range(69, 19, -1))
    page.get_by_role("link", name="Newer").click()
    expect(page.locator("[data-offset='119']")).to_be_visible()
    for place, first in (("7", 7), (moment(33), 33), ("oldest", 0)):
        page.get_by_label("From").fill(place)
        page.get_by_role("button", name="Show").click()
        expect(page.locator(f"[data-offset='{first}']")).to_be_visible()
        expect_offsets(page, range(first + 49, first - 1, -1))
    for beyond in ("2031-01-01T00:00Z", "1000"):
        page.get_by_label("From").fill(beyond)
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_label("From")).to_have_value(beyond)
        expect(page.get_by_text("No committed record is there")).to_be_visible()
    page.get_by_role("link", name="Older").click()
    expect(page.locator("[data-offset='119']")).to_be_visible()


def test_the_newest_records_are_shown_however_large_they_are(page: Page, cluster: LocalCluster):
    """Of 50 records that the view's requests cannot read at once, the newest are shown; also of what a search finds."""
    path = create(cluster, "large")
    for at in range(60):
        produce(cluster, path, {"key": f"tea {at}", "value": "x" * 300_000})
    for search in ("", "&contains=tea"):
        page.goto(f"{url_of(cluster)}/#/t/large/0/records?from=newest{search}")
        expect(page.locator("[data-offset='59']")).to_be_visible()
        shown = page.locator("[data-offset]").count()
        assert shown >= 20
        expect_offsets(page, range(59, 59 - shown, -1))
        expect(page.locator("main")).to_contain_text(f"Offsets {60 - shown} to 59")
    take_pictures(page, "records-large")


def test_a_search_finds_records_by_key_value_and_header(page: Page, cluster: LocalCluster):
    """The broker searches; the page shows what was found, and how far was searched."""
    path = create(cluster, "searched")
    produce(cluster, path, *({"key": f"k{at}", "value": "milk"} for at in range(200)))
    produce(cluster, path, {"value": "green tea"}, {"value": "x", "headers": [["drink", "tea"]]})
    page.goto(f"{url_of(cluster)}/#/t/searched/0/records")
    page.get_by_label("Contains").fill("tea")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("searched for “tea”: 2 found")).to_be_visible()
    expect_offsets(page, [201, 200])
    page.goto(f"{url_of(cluster)}/#/t/searched/0/records?contains=k19")
    expect(page.get_by_text("searched for “k19”: 11 found")).to_be_visible()
    expect_offsets(page, [*range(199, 189, -1), 19])


def test_contents_are_shown_exactly_and_never_run(page: Page, cluster: LocalCluster):
    """PAGE 9.15: large integers, bytes, a megabyte and markup as key, value and header; nothing is run."""
    path = create(cluster, "exact")
    data = base64.b64encode(bytes(range(256))).decode()
    produce(
        cluster,
        path,
        {"key": HOSTILE, "value": HOSTILE, "headers": [[HOSTILE, HOSTILE], ["raw", {"b64": "/w=="}], ["none", None]]},
        {"value": {"n": LARGE}},
        {"value_b64": data},
        {"value": None},
        {"value": "y" * 900_000},
    )
    page.goto(f"{url_of(cluster)}/#/t/exact/0/records")
    for offset in range(5):
        page.locator(f"[data-offset='{offset}'] button").click()
    shown = page.locator("tr.details")
    expect(shown).to_have_count(5)
    # Newest first.
    details = [each.locator("pre").all_text_contents() for each in shown.all()][::-1]
    assert details[0][:3] == [HOSTILE, HOSTILE, f"{HOSTILE}: {HOSTILE}\nraw: /w== (base64)\nnone: null"]
    assert details[1][1] == f'{{"n":{LARGE}}}'
    assert details[2][1] == data
    assert details[3][:2] == ["null", "null"]
    assert details[4][1].startswith("y" * 65_536 + "\n")
    expect(page.locator("[data-offset='2']")).to_contain_text("binary, 256 bytes")
    take_pictures(page, "records-contents")
    assert page.evaluate("window.ran") is None
    assert page.locator("img").count() == 0


def test_a_refused_read_is_a_sentence_and_repeated(browser: Browser, cluster: LocalCluster):
    """What cannot be read is said; nothing pretends to be an empty log, and the records come when they can be read."""
    path = create(cluster, "refused")
    produce(cluster, path, {"value": "tea"})
    tab = patient_tab(browser)
    problem = {"error": "NOT_LEADER_OR_FOLLOWER", "detail": HOSTILE}
    tab.route(re.compile("/records[?]"), lambda route: route.fulfill(status=503, json=problem))
    tab.goto(f"{url_of(cluster)}/#/t/refused/0/records")
    expect(tab.get_by_role("alert")).to_have_text(f"NOT_LEADER_OR_FOLLOWER: {HOSTILE}")
    tab.unroute(re.compile("/records[?]"))
    expect(tab.locator("[data-offset='0']")).to_contain_text("tea")
    expect(tab.get_by_role("alert")).to_have_count(0)
    assert tab.evaluate("window.ran") is None
    tab.close()


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_shows_its_lag_and_is_reset_with_preview_and_undo(page: Page, cluster: LocalCluster):
    """PAGE 9.17: the preview equals the result, and undo commits what was committed before, with its metadata."""
    path = create(cluster, "read")
    produce(cluster, path, *({"value": at} for at in range(10)))
    kept = {"topic": "read", "partition": 0, "offset": 4, "metadata": "checkpoint 7"}
    call(cluster, "/v1/groups/billing/offsets", {"offsets": [kept]}, "PUT")
    page.goto(f"{url_of(cluster)}/#/g")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="billing", exact=True))
    expect(row).to_contain_text("read-0")
    expect(row.locator("td").nth(2)).to_have_text("6")
    take_pictures(page, "groups")
    page.get_by_role("link", name="billing", exact=True).click()
    expect(page.get_by_text("The group is 6 records behind")).to_be_visible()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Nothing is changed yet")).to_be_visible()
    assert call(cluster, "/v1/groups/billing/offsets")["offsets"][0]["committed"] == 4
    preview = page.get_by_role("region", name="New offsets").inner_text()
    take_pictures(page, "group")
    page.get_by_role("button", name="Reset the offsets").click()
    expect(page.get_by_text("The offsets are reset.")).to_be_visible()
    assert page.get_by_role("region", name="New offsets").inner_text() == preview
    expect(page.get_by_text("The group is 10 records behind")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("as they were before the reset")).to_be_visible()
    expect(page.get_by_text("The group is 6 records behind")).to_be_visible()
    [restored] = call(cluster, "/v1/groups/billing/offsets")["offsets"]
    assert (restored["committed"], restored["metadata"]) == (4, "checkpoint 7")


def test_undo_names_the_offsets_that_cannot_be_restored(page: Page, cluster: LocalCluster):
    """PAGE 9.17: an undo of which a part fails (one of the topics was deleted since) does not claim to be complete."""
    for name in ("undo-kept", "undo-gone"):
        create(cluster, name)
    commit(cluster, "undone", **{"undo-kept": 0, "undo-gone": 0})
    page.goto(f"{url_of(cluster)}/#/g/undone")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Reset the offsets").click()
    expect(page.get_by_text("The offsets are reset.")).to_be_visible()
    call(cluster, "/v1/topics/undo-gone", method="DELETE")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("alert")).to_contain_text("Not restored: undo-gone-0")


@pytest.mark.parametrize(
    "goal, value, expected",
    [("latest", "", 10), ("to_offset", "7", 7), ("shift_by", "-2", 2), ("to_datetime", moment(5), 5)],
    ids=["latest", "to_offset", "shift_by", "to_datetime"],
)
def test_offsets_are_reset_to_each_goal(page: Page, cluster: LocalCluster, goal: str, value: str, expected: int):
    """The form's five goals are those of the API; the first is tested above."""
    path = create(cluster, f"goal-{goal}")
    produce(cluster, path, *({"value": at, "timestamp": BEGUN_MS + at} for at in range(10)))
    commit(cluster, f"to-{goal}", **{f"goal-{goal}": 4})
    page.goto(f"{url_of(cluster)}/#/g/to-{goal}")
    page.get_by_label("Move all committed offsets to").select_option(goal)
    if value:
        page.get_by_label("Value").fill(value)
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Reset the offsets").click()
    expect(page.get_by_text("The offsets are reset.")).to_be_visible()
    assert call(cluster, f"/v1/groups/to-{goal}/offsets")["offsets"][0]["committed"] == expected


@pytest.mark.parametrize("goal", ["to_offset", "shift_by", "to_datetime"])
@pytest.mark.parametrize("value", ["", "seven"])
def test_a_reset_without_a_value_that_means_something_is_refused(
    browser: Browser, cluster: LocalCluster, goal: str, value: str
):
    """PAGE 9.17: neither an empty field nor a word is offset 0; the broker's sentence is shown, and no button resets."""
    if not any(each["group"] == "no-value" for each in call(cluster, "/v1/groups")["groups"]):
        create(cluster, "no-value")
        commit(cluster, "no-value", **{"no-value": 0})
    with watched_tab(browser, cluster, refusals=True) as page:
        page.goto(f"{url_of(cluster)}/#/g/no-value")
        page.get_by_label("Move all committed offsets to").select_option(goal)
        page.get_by_role("textbox", name="Value").fill(value)
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("alert")).to_contain_text(goal)
        expect(page.get_by_role("button", name="Reset the offsets")).to_have_count(0)


def test_a_group_with_members_names_them_and_is_not_reset(page: Page, cluster: LocalCluster):
    """PAGE 9.17: the members that have to stop are named."""
    create(cluster, "busy")
    member = call(cluster, "/v1/groups/working/members", {"topics": ["busy"], "client_id": HOSTILE})
    page.goto(f"{url_of(cluster)}/#/g/working")
    expect(page.get_by_text(f"stop {member['member_id']} first")).to_be_visible()
    expect(page.get_by_role("button", name="Preview")).to_have_count(0)
    expect(page.get_by_role("region", name="Members")).to_contain_text(HOSTILE)
    assert page.evaluate("window.ran") is None


def test_markup_as_the_name_of_a_group_is_a_name(page: Page, cluster: LocalCluster):
    """In the list, in the group's own view, and in the page's title."""
    create(cluster, "named")
    commit(cluster, HOSTILE, named=0)
    page.goto(f"{url_of(cluster)}/#/g")
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    expect(page.get_by_text("committed everything up to the high watermark")).to_be_visible()
    expect(page).to_have_title(re.compile(f"^{re.escape(HOSTILE)}"))
    assert page.evaluate("window.ran") is None
    assert page.locator("img").count() == 0


def test_an_unknown_group_is_a_sentence(browser: Browser, cluster: LocalCluster):
    """Its name may be mistyped; the view says what the broker answered."""
    tab = patient_tab(browser)
    tab.goto(f"{url_of(cluster)}/#/g/none")
    expect(tab.get_by_role("alert")).to_contain_text("GROUP_ID_NOT_FOUND")
    expect(tab.get_by_role("alert")).not_to_contain_text("No data since")
    tab.close()


# ---- events ----------------------------------------------------------------------------------------------------------


def test_events_of_a_partition_tell_an_election_in_sentences(page: Page, cluster: LocalCluster):
    """From the brokers' memory, without test hooks: a mark for each event on its broker's track, and the reason."""
    create(cluster, "told", partitions=3)
    listed = call(cluster, "/v1/topics/told/partitions")["partitions"]
    number, leader = next((each["partition"], each["leader"]) for each in listed if each["leader"] != 1)
    page.goto(f"{url_of(cluster)}/#/t/told/{number}/events")
    expect(page.locator("[data-event='became_leader']")).to_contain_text("It took up leadership of epoch 0")
    cluster.kill(leader)
    try:
        expect(page.locator("[data-event='leader_elected']").last).to_contain_text("became the leader in epoch 1")
    finally:
        cluster.restart(leader)
    expect(page.locator("[data-event='isr_expanded']").first).to_be_visible()
    page.get_by_role("button", name="leader elected").first.click()
    expect(page.locator("#explain")).to_contain_text("became the leader in epoch 1")
    page.get_by_role("button", name="Close").click()
    take_pictures(page, "events")


def test_events_of_the_cluster_are_sentences_and_new_ones_come_by_themselves(page: Page, cluster: LocalCluster):
    """Brokers, topics and elections on one track per broker that reported one, also where test hooks are on."""
    page.goto(f"{url_of(cluster)}/#/e")
    expect(page.locator("[data-event='broker_started']").first).to_be_visible()
    expect(page.locator(".track").first).to_be_visible()
    create(cluster, "fresh")
    expect(page.locator("[data-event='topic_created']", has_text="Topic fresh was created")).to_have_count(1)
    take_pictures(page, "events-cluster")
