"""The console in Firefox: the acceptance checks that need no protocol of Chromium's (PAGE 9.1, 9.3, 9.5, 9.13, 9.15, 9.20)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.console_kit import HOSTILE, call, create, produce, url_of
from tests.e2e.firefox import firefox
from tests.e2e.haste import SHORT_SESSIONS

pytestmark = [pytest.mark.e2e, pytest.mark.firefox, pytest.mark.slow]

VALUES = "[...document.querySelectorAll('[data-values]')].map((row) => [...row.children].slice(0, 6).map((cell) => cell.textContent))"
TEXT = "document.body.innerText"


async def test_console_works_in_firefox(tmp_path: Path):
    """From an empty cluster to records, an earlier time, hostile contents and a phone's width, without a message."""
    async with LocalCluster(3, config=SHORT_SESSIONS) as cluster, firefox(tmp_path) as tab:
        home = url_of(cluster)
        await tab.open(home)
        await tab.until(f"{TEXT}.includes('3 of 3 brokers are up.') && {TEXT}.includes('There are no topics yet.')")
        await tab.click("Create orders")
        await tab.until("[...document.querySelectorAll('.cell.committed')].some((each) => each.textContent === '1')")
        await tab.click("Stop sending")

        path = await asyncio.to_thread(create, cluster, "still")
        await asyncio.to_thread(produce, cluster, path, {"key": HOSTILE, "value": HOSTILE}, {"value": "milk"})
        await tab.open(f"{home}/#/t/still/0")
        await tab.until(f"{VALUES}.length === 3 && {VALUES}.every((row) => row[5] === '2')")
        assert await tab.evaluate(VALUES) == await asyncio.to_thread(_rows, cluster, path)

        await tab.open(f"{home}/#/t/still/0/records")
        await tab.until("document.querySelectorAll('[data-offset]').length === 2")
        await tab.evaluate("document.querySelectorAll('[data-offset] button').forEach((each) => each.click())")
        shown = await tab.until("[...document.querySelectorAll('tr.details pre')].map((each) => each.textContent)")
        assert HOSTILE in shown
        assert await tab.evaluate("[window.ran ?? null, document.images.length]") == [None, 0]

        await tab.open(f"{home}/#/t/still/0")
        await tab.click("Pause")
        await tab.until(f"{TEXT}.includes('states since')")
        then = await tab.evaluate("document.getElementById('shown-time').textContent")
        await tab.click("◀ step")
        await tab.until(f"document.getElementById('shown-time').textContent !== '{then}'")
        await tab.click("● Live")
        await tab.until("document.getElementById('live').textContent === '● LIVE'")

        await tab.resize(400, 800)
        await tab.until("innerWidth === 400 && document.documentElement.scrollWidth <= 400")
        elsewhere = [each for each in tab.requested if not each.startswith((home, "data:", "about:"))]
        assert (elsewhere, tab.logged) == ([], [])


def _rows(cluster: LocalCluster, path: str) -> list[Any]:
    replicas = call(cluster, path)["replicas"]
    return [
        [str(each["id"]), each["role"], "yes", str(each["own_leo"]), str(each["leo"]), str(each["hw"])]
        for each in replicas
    ]
