"""Make the pictures of README and docs from the program itself (``make pictures``): nothing is drawn by hand.

``truncation.png`` is the replay page at the moment in which a follower has truncated its log. It shows the first seed
whose busiest partition has such a step with few enough records for the lanes: it stays true when schedules change.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from minikafka.sim.seeds import plan_of
from minikafka.ui.page import Replay, page_of, replay_of
from minikafka.ui.record import RecordedRun

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/pictures/truncation.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SEEDS = range(200)
RECORDS = range(10, 19)
REMOVED_MIN = 3
WIDTH, HEIGHT = 1120, 640
SCALE = 1.5


def truncation_step(replay: Replay) -> int | None:
    """Return the number of the first step in which a log that fits the lanes loses some records, or None."""
    for step in replay.steps:
        old, new = step.entry.facts.get("old"), step.entry.facts.get("new")
        if step.entry.kind != "log_truncated" or not isinstance(old, int) or not isinstance(new, int):
            continue
        if old in RECORDS and old - new >= REMOVED_MIN:
            return step.number
    return None


def main() -> int:
    """Write the picture; return the exit code."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("No browser found. Install Chromium (Debian, Ubuntu: apt install chromium).", file=sys.stderr)
        return 1
    for seed in SEEDS:
        replay = replay_of(RecordedRun(plan_of(seed)).recorded()[0])
        if number := truncation_step(replay):
            break
    else:
        print(f"No seed below {SEEDS.stop} has a truncation that fits the picture.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "run.html"
        page.write_text(page_of(replay), encoding="utf-8")
        shown = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = shown.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SCALE)
        tab.goto(f"{page.as_uri()}#step={number}")
        tab.screenshot(path=PICTURE)
        shown.close()
    print(f"{PICTURE.relative_to(ROOT)}: seed {seed}, step {number}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
