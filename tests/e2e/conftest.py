"""Browser tests run where Chromium is; elsewhere they are left out, and the run says so. CI installs it (.ci/run)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from minikafka import compiled
from tests.e2e.firefox import why_not_firefox
from tests.left_out import leave_out
from tools import build_console

NAMES = ("chromium", "chromium-browser", "google-chrome")

LAUNCH_TIMEOUT_MS = 180_000
SYSTEMD = 250
"""Its first release that judges the security of a file."""

EXPECT_TIMEOUT_MS = 60_000
"""Not Playwright's five seconds: a machine may stand still for as long."""

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium_path() -> Path | None:
    """The system's Chromium."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return Path(found) if found else None


def why_not() -> str | None:
    """A sentence for people, or None: there is a browser."""
    return None if chromium_path() else "no Chromium here (Debian, Ubuntu: apt install chromium)"


def why_not_compiled() -> str | None:
    """Why the compiled rules cannot be tried here; None if they can."""
    installed = compiled.compiled_in(Path(sysconfig.get_path("platlib"), compiled.PACKAGE))
    return installed[1] or None


def why_not_web() -> str | None:
    """Why the console cannot be built here; None if it can."""
    try:
        build_console.install()
    except build_console.Failed as failure:
        return str(failure).splitlines()[0]
    return None


def why_not_systemd() -> str | None:
    """Why unit files cannot be judged here; None if they can."""
    if shutil.which("systemd-analyze") is None:
        return "no systemd-analyze here (apt install systemd)"
    version = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"systemd (\d+)", version)
    return None if found and int(found[1]) >= SYSTEMD else f"systemd {SYSTEMD} or newer is needed"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs a browser, Firefox, kcat, openssl, systemd, Node or the compiled rules, if there are none."""
    leave_out(config, items, "browser", why_not)
    leave_out(config, items, "firefox", why_not_firefox)
    leave_out(config, items, "kcat", lambda: None if shutil.which("kcat") else "no kcat here (apt install kcat)")
    leave_out(config, items, "openssl", lambda: None if shutil.which("openssl") else "no openssl (apt install openssl)")
    leave_out(config, items, "compiled", why_not_compiled)
    leave_out(config, items, "web", why_not_web)
    leave_out(config, items, "systemd", why_not_systemd)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A fresh Chromium without a window, a profile or anything to fetch."""
    expect.set_options(timeout=EXPECT_TIMEOUT_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS, timeout=LAUNCH_TIMEOUT_MS)
        yield launched
        launched.close()
