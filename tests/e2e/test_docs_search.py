"""The documentation as a folder on disk, without a network: search finds, and no link is broken (PAGE 9.20)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from playwright.sync_api import Browser, expect

from tests.tidy.test_docs_site import shared_site

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

LINKS = "() => [...document.querySelectorAll('a[href]')].map((each) => each.href)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_site(tmp_path_factory)


def test_search_from_disk_finds_a_word_and_opens_its_page(browser: Browser, site: Path):
    """The search index is a script of the site: nothing is requested from elsewhere."""
    context = browser.new_context(offline=True)
    tab = context.new_page()
    requested: list[str] = []
    tab.on("request", lambda request: requested.append(request.url))
    tab.goto(f"{(site / 'search.html').as_uri()}?q=truncation")
    found = tab.locator("#search-results li a")
    expect(found.first).to_be_visible()
    # The page lists what it finds one after the other.
    expect(tab.locator("#search-results li a[href*=lab]").first).to_be_visible()
    found.first.click()
    expect(tab.locator("article h1").first).to_be_visible()
    assert [each for each in requested if not each.startswith(("file:", "data:", "blob:"))] == []
    context.close()


def test_a_run_plays_in_the_page_about_replays(browser: Browser, site: Path):
    """PAGE 9.20: its lanes are in the documentation, without a network."""
    context = browser.new_context(offline=True)
    tab = context.new_page()
    tab.goto((site / "replay.html").as_uri())
    tab.locator("iframe").scroll_into_view_if_needed()
    page = tab.frame_locator("iframe")
    expect(page.locator("h1")).to_contain_text("Replay of")
    page.get_by_role("button", name="First step").click()
    expect(page.locator("body")).to_have_attribute("data-step", "0")
    page.get_by_role("button", name="play").click()
    expect(page.locator("body")).not_to_have_attribute("data-step", "0")
    expect(page.locator("[data-lane]").first).to_be_visible()
    context.close()


def test_no_link_between_pages_is_broken(browser: Browser, site: Path):
    """As a browser resolves them: files exist, and so do the places in them."""
    tab = browser.new_page()
    wrong: list[str] = []
    ids: dict[str, set[str]] = {}
    links: dict[str, list[str]] = {}
    for path in sorted(site.glob("*.html")):
        tab.goto(path.as_uri())
        ids[path.as_uri()] = set(tab.evaluate("() => [...document.querySelectorAll('[id]')].map((each) => each.id)"))
        links[path.name] = tab.evaluate(LINKS)
    tab.close()
    for name, found in links.items():
        for each in found:
            page, place = urldefrag(each)
            if not page.startswith("file:"):
                continue
            if (page not in ids and not Path(unquote(page.removeprefix("file://"))).exists()) or (
                place and page in ids and unquote(place) not in ids[page]
            ):
                wrong.append(f"{name}: {each}")
    assert wrong == []
    assert sum(map(len, links.values())) > 1000
