"""The replay page in a browser: it opens, steps, and shows the values of the fold, of a simulated and of a real run."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, Page, expect

from minikafka import Producer
from minikafka.sim.seeds import plan_of
from minikafka.testing.local_cluster import LocalCluster
from minikafka.types import Address, TopicPartition
from minikafka.ui.journal import Entry, Journal, read_journals
from minikafka.ui.page import Replay, page_of, replay_of, values
from minikafka.ui.record import RecordedRun
from minikafka.ui.states import Replica
from minikafka.wire.messages import CreateTopicsRequest, DescribeQuorumRequest, NewTopic
from minikafka.world.clients import Asker
from tests.e2e.conftest import EXPECT_TIMEOUT_MS
from tests.e2e.haste import SHORT_SESSIONS
from tools import build_console

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

Result = TypeVar("Result")

THREE_STEPS_AT_TEN_MS = 300
"""At a speed of ten steps a second."""

FIELDS = ("role", "epoch", "leo", "hw", "isr", "remotes", "process")

READ_TABLE = """() => Object.fromEntries([...document.querySelectorAll("#values tbody tr")].map((row) => [
    row.dataset.replica, [...row.querySelectorAll("[data-field]")].map((cell) => cell.dataset.value)]))"""

READ_LANES = """() => Object.fromEntries([...document.querySelectorAll("[data-lane]")].map((lane) => [
    lane.dataset.lane, {
        leo: lane.querySelector(".mark.leo b")?.textContent ?? null,
        hw: lane.querySelector(".mark.hw b")?.textContent ?? null,
        last: [...lane.querySelectorAll(".cell:not(.gone)")].at(-1)?.textContent ?? null,
        committed: [...lane.querySelectorAll(".cell:not(.open):not(.gone)")].at(-1)?.textContent ?? null,
    }]))"""

STEP_THROUGH = f"""() => {{
    const found = [];
    for (;;) {{
        found.push([document.body.dataset.step, ({READ_TABLE})(), ({READ_LANES})()]);
        if (document.getElementById("next").disabled) return found;
        document.getElementById("next").click();
    }} }}"""


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Replay, Path]:
    """A seed with power cuts, elections and lost messages, and its page."""
    journal, report = elsewhere(lambda: RecordedRun(plan_of(3, operations=60, faults=6)).recorded())
    assert report.ok
    return written(replay_of(journal), tmp_path_factory.mktemp("page") / "run.html")


def elsewhere(work: Callable[[], Result]) -> Result:
    """On a thread of its own: the browser's driver has an event loop running on this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def written(replay: Replay, path: Path) -> tuple[Replay, Path]:
    path.write_text(page_of(replay), encoding="utf-8")
    return replay, path


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab that counts what goes wrong and what is asked for beyond the file itself."""
    tab = browser.new_page(viewport={"width": 1360, "height": 980})
    tab.set_default_timeout(EXPECT_TIMEOUT_MS)
    wrong: list[str] = []
    tab.on("console", lambda message: wrong.append(message.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda request: None if request.url.startswith("file://") else wrong.append(request.url))
    yield tab
    tab.close()
    assert wrong == []


def opened(page: Page, path: Path) -> Page:
    page.goto(path.as_uri())
    expect(page.locator("h1")).to_contain_text("Replay of orders-0")
    return page


def states_after(replay: Replay) -> Iterator[dict[str, Replica | None]]:
    """Where every lane's replica stands before the first step, and after each."""
    standing: dict[int, Replica | None] = dict.fromkeys(replay.lanes)
    standing.update(replay.before)
    yield {str(node): replica for node, replica in standing.items()}
    for step in replay.steps:
        standing.update(step.changed)
        yield {str(node): replica for node, replica in standing.items()}


def wanted(states: dict[str, Replica | None]) -> dict[str, list[str]]:
    absent = ["", "", "", "", "", "", "absent"]
    return {node: list(values(replica)) if replica else absent for node, replica in states.items()}


def test_every_step_shows_the_folds_values(page: Page, simulated: tuple[Replay, Path]):
    """Issue 3 item 7: stepped through from the first to the last, the table and the lanes show the states' values."""
    replay, path = simulated
    opened(page, path)
    page.keyboard.press("Home")
    shown = page.evaluate(STEP_THROUGH)
    assert len(shown) == len(replay.steps) + 1
    for number, states in enumerate(states_after(replay)):
        step, values, lanes = shown[number]
        assert step == str(number)
        assert values == wanted(states)
        for node, replica in states.items():
            if replica is None or lanes[node]["leo"] is None:  # no replica, or a log left of what is shown
                continue
            assert lanes[node]["leo"] == str(replica.leo)
            assert lanes[node]["hw"] == (None if replica.hw is None else str(replica.hw))
            if lanes[node]["last"] is not None:
                assert lanes[node]["last"] == str(replica.leo - 1)
            if lanes[node]["committed"] is not None and replica.hw is not None:
                assert lanes[node]["committed"] == str(min(replica.hw, replica.leo) - 1)
    assert page.locator("#next").is_disabled()


def test_going_back_is_going_on_backwards(page: Page, simulated: tuple[Replay, Path]):
    """Back, first, last, the scrubber and an event in the list lead to the same values as stepping on."""
    replay, path = simulated
    opened(page, path)
    states = list(states_after(replay))
    page.keyboard.press("End")
    assert page.evaluate(READ_TABLE) == wanted(states[-1])
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(READ_TABLE) == wanted(states[-2])
    page.keyboard.press("ArrowRight")
    assert page.evaluate(READ_TABLE) == wanted(states[-1])
    page.get_by_role("button", name="First step").click()
    assert page.evaluate(READ_TABLE) == wanted(states[0])
    page.locator("#scrubber").fill("40")
    assert page.evaluate(READ_TABLE) == wanted(states[40])
    page.locator("#events button").first.click()
    assert page.evaluate(READ_TABLE) == wanted(states[int(page.evaluate("document.body.dataset.step"))])
    page.goto(f"{path.as_uri()}#step=7")
    page.reload()
    assert page.evaluate(READ_TABLE) == wanted(states[7])


def test_playing_goes_on_by_itself_and_stops(page: Page, simulated: tuple[Replay, Path]):
    """Play steps by itself, pause holds it; the speed can be chosen."""
    _, path = simulated
    opened(page, path)
    page.keyboard.press("Home")
    page.locator("#speed").select_option("10")
    page.get_by_role("button", name="play").click()
    # At step three or beyond: the page is looked at once a second at last, and may be seen at every tenth step only.
    expect(page.locator("body")).to_have_attribute("data-step", re.compile(r"^([3-9]|\d{2,})$"))
    page.get_by_role("button", name="pause").click()
    expect(page.get_by_role("button", name="play")).to_have_attribute("aria-pressed", "false")
    held = page.evaluate("document.body.dataset.step")
    page.wait_for_timeout(THREE_STEPS_AT_TEN_MS)
    assert page.evaluate("document.body.dataset.step") == held


def test_failures_are_red_and_one_key_away(page: Page, simulated: tuple[Replay, Path]):
    """f goes to the next failure, which is told in the colour of failures, with its reason; messages are arrows."""
    replay, path = simulated
    opened(page, path)
    page.keyboard.press("Home")
    failures = [step for step in replay.steps if step.sentence.tone == "bad"]
    assert failures
    for step in failures[:4]:
        page.keyboard.press("f")
        assert page.evaluate("document.body.dataset.step") == str(step.number)
        expect(page.locator("#what")).to_have_text(step.sentence.what)
        expect(page.locator("#now")).to_have_class("now bad")
        expect(page.locator("#why")).to_contain_text(step.sentence.why)
    assert page.evaluate("getComputedStyle(document.getElementById('what')).color") == "rgb(179, 38, 30)"
    arrow = next(step for step in replay.steps if step.sentence.arrow)
    page.locator("#scrubber").fill(str(arrow.number))
    assert page.locator("#arrows path").count() >= 2
    assert "".join(page.locator("#arrows text").all_text_contents()).replace(
        " ", ""
    ) == arrow.sentence.arrow.label.replace(" ", "")  # type: ignore[union-attr]


def test_messages_can_be_passed_over(page: Page, simulated: tuple[Replay, Path]):
    """Without "stop at messages", steps go from change to change."""
    replay, path = simulated
    opened(page, path)
    page.keyboard.press("Home")
    page.locator("#messages").uncheck()
    for _ in range(30):
        page.keyboard.press("ArrowRight")
        step = replay.steps[int(page.evaluate("document.body.dataset.step")) - 1]
        assert step.entry.kind != "message_sent" or step.sentence.tone == "bad"


def test_it_reads_in_light_and_in_dark(page: Page, simulated: tuple[Replay, Path]):
    """Both palettes: text and paper are far apart, WCAG's 4.5 to 1 or more."""
    _, path = simulated
    opened(page, path)
    contrast = """() => {
        const light = (text) => { const [r, g, b] = text.match(/\\d+/g).map(Number).map((c) => c / 255)
            .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const paper = light(getComputedStyle(document.body).backgroundColor);
        return ["#what", "#subtitle", "#clock"].map((name) => light(getComputedStyle(document.querySelector(name)).color))
            .map((ink) => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)).concat([paper]); }"""
    page.emulate_media(color_scheme="light")
    *inks, paper_light = page.evaluate(contrast)
    assert min(inks) >= 4.5
    page.emulate_media(color_scheme="dark")
    *inks, paper_dark = page.evaluate(contrast)
    assert min(inks) >= 4.5
    assert paper_light > 0.8
    assert paper_dark < 0.2


@pytest.mark.web
def test_axe_finds_nothing_at_either_width_in_both_themes(page: Page, simulated: tuple[Replay, Path]):
    """The rules of axe-core, with contrast and landmarks, at a step with arrows and cells."""
    build_console.install()
    axe = (build_console.MODULES / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    opened(page, simulated[1])
    page.keyboard.press("f")
    page.evaluate(axe)
    wrong: list[Any] = []
    for width in (1280, 420):
        page.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            found = page.evaluate(
                "axe.run().then(({ violations }) => violations.map((each) => [each.id, each.nodes[0].html]))"
            )
            wrong += [(width, theme, *each) for each in found]
    assert wrong == []


def test_a_broken_promise_is_shown_first(page: Page, tmp_path: Path):
    """A failing run says so at the top, and leads there."""
    facts = {"partition": "orders-0", "epoch": 0, "replicas": [1], "isr": [1], "start": 0, "leo": 0, "hw": 0}
    entries = [
        Entry(at_s=1.0, node="n1", kind="became_leader", facts={**facts, "epochs": [(0, 0)], "remotes": {}}),
        Entry(at_s=2.0, node="", kind="violation", facts={"name": "committed_record_lost", "what": "offset 3 is gone"}),
    ]
    journal = Journal(title="seed 9", entries=entries, is_simulated=True, has_messages=True)
    _, path = written(replay_of(journal), tmp_path / "broken.html")
    opened(page, path)
    expect(page.locator("#broken")).to_contain_text("committed_record_lost. offset 3 is gone")
    expect(page.locator("#number")).to_have_text("step 2 of 2")
    expect(page.locator("#verdict")).to_have_text("1 guarantee was broken.")
    page.keyboard.press("Home")
    page.get_by_role("button", name="show it").click()
    expect(page.locator("#number")).to_have_text("step 2 of 2")


def test_it_opens_at_the_first_step_with_a_leader(page: Page, simulated: tuple[Replay, Path]):
    """Three empty lanes, before anything has happened, tell a reader nothing."""
    replay, path = simulated
    opened(page, path)
    first = next(
        number
        for number, states in enumerate(states_after(replay))
        if any(replica is not None and replica.role == "leader" for replica in states.values())
    )
    assert first > 0
    assert page.evaluate("document.body.dataset.step") == str(first)
    assert page.locator(".badge.leader").count() == 1


def test_a_run_that_passed_says_what_its_red_steps_are(page: Page, simulated: tuple[Replay, Path]):
    """A seed that passed had "41 failures": red steps are injected faults, and what came of them."""
    replay, path = simulated
    opened(page, path)
    bad = [step.entry.kind for step in replay.steps if step.sentence.tone == "bad"]
    faults = sum(kind == "message_sent" or kind.startswith(("node_", "link_")) for kind in bad)
    assert 0 < faults < len(bad)
    expect(page.locator("#verdict")).to_have_text(
        f"All guarantees held. Marked red: {faults} faults and {len(bad) - faults} failures that they may have caused."
    )
    assert "failure" not in page.locator("#subtitle").inner_text()


CUT_OFF = """() => [...document.querySelectorAll("body *")].filter((each) => {
    const box = each.getBoundingClientRect();
    const style = getComputedStyle(each);
    return (box.width && (box.right > innerWidth + 1 || box.left < -1))
        || (style.overflow !== "visible" && each.scrollWidth > each.clientWidth + 1);
}).map((each) => `${each.tagName}.${each.getAttribute("class")}#${each.id}`)"""


@pytest.mark.parametrize("width", [320, 420])
def test_nothing_is_cut_off_on_a_telephone(page: Page, simulated: tuple[Replay, Path], width: int):
    """The replay of an incident is read where the mail is read: no part of any step lies beyond the screen."""
    replay, path = simulated
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, path)
    for step in range(0, len(replay.steps) + 1, 11):
        page.locator("#scrubber").fill(str(step))
        assert page.evaluate("document.documentElement.scrollWidth") <= width, step
        assert page.evaluate(CUT_OFF) == [], step
    page.locator(".notes summary").click()
    assert page.evaluate(CUT_OFF) == []


ORDERS = TopicPartition("orders", 0)

QUICK = {**SHORT_SESSIONS, "min.insync.replicas": "2"}


async def produced(bootstrap: str, values: int) -> None:
    async with Producer(bootstrap_servers=bootstrap, acks="all") as producer:
        for number in range(values):
            await producer.send_and_wait("orders", str(number).encode(), partition=0)


async def topic_created(bootstrap: str) -> None:
    async with Asker(bootstrap) as asker:
        quorum = await asker.ask_any(DescribeQuorumRequest())
        controller = next(each for each in quorum.endpoints if each.node_id == quorum.leader_id)
        topic = NewTopic(name="orders", num_partitions=1, replication_factor=3)
        answer = await asker.ask(Address(controller.host, controller.port), CreateTopicsRequest(topics=(topic,)))
        assert answer.topics[0].error_code == 0, answer


class RealRun:
    """Three brokers over TCP and files, with one journal; their leader is killed and comes back."""

    def __init__(self, folder: Path) -> None:
        self.journal_path = folder / "cluster.jsonl"
        self.folder = folder
        self.direct: dict[str, tuple[str, str, str]] = {}
        """Epoch, LEO and HW as each replica said itself, at the end."""

    def play(self) -> None:
        config = {**QUICK, "mk.journal.path": str(self.journal_path)}
        with LocalCluster(brokers=3, data_dir=self.folder / "data", config=config) as cluster:
            asyncio.run(topic_created(cluster.bootstrap))
            asyncio.run(produced(cluster.bootstrap, 5))
            leader = cluster.run(lambda: leader_of(cluster))
            cluster.kill(leader)
            asyncio.run(produced(cluster.bootstrap, 4))
            cluster.restart(leader)
            self.direct = asyncio.run(self.settled(cluster))
            shutil.copy(self.journal_path, self.folder / "kept.jsonl")

    async def settled(self, cluster: LocalCluster) -> dict[str, tuple[str, str, str]]:
        async with asyncio.timeout(60):
            found = cluster.run(lambda: standing(cluster))
            while len(set(found.values())) > 1:
                await asyncio.sleep(0.05)
                found = cluster.run(lambda: standing(cluster))
        return found


async def standing(cluster: LocalCluster) -> dict[str, tuple[str, str, str]]:
    found = {}
    for node in cluster.node_ids:
        partition = cluster.broker(node).partitions[ORDERS]
        found[str(node)] = (str(partition.epoch), str(partition.log.end_offset), str(partition.high_watermark))
    return found


async def leader_of(cluster: LocalCluster) -> int:
    state = cluster.broker(cluster.node_ids[0]).image.partition(ORDERS)
    assert state is not None
    return state.leader


def test_a_journal_of_real_brokers_opens_on_the_same_page(page: Page, tmp_path: Path):
    """mk.journal.path of three brokers, one of them killed: the last values are the replicas' own."""
    run = RealRun(tmp_path)
    elsewhere(run.play)
    journal = read_journals([tmp_path / "kept.jsonl"])
    replay, html = written(replay_of(journal, partition="orders-0"), tmp_path / "real.html")
    opened(page, html)
    expect(page.locator("#subtitle")).to_contain_text("a journal of real brokers")
    page.keyboard.press("End")
    shown = {node: dict(zip(FIELDS, values, strict=True)) for node, values in page.evaluate(READ_TABLE).items()}
    assert {node: (row["epoch"], row["leo"], row["hw"]) for node, row in shown.items()} == run.direct
    assert {row["leo"] for row in shown.values()} == {"9"}
    assert sorted(row["role"] for row in shown.values()) == ["follower", "follower", "leader"]
    assert any(step.sentence.arrow for step in replay.steps)
    page.locator(".notes summary").click()
    expect(page.locator("#notes")).to_contain_text("Real brokers record what a message brought about")
