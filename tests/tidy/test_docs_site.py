"""The documentation as a site: every page has its place, every link its target, and nothing comes from other hosts."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

LOADED = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"|<link[^>]*rel="stylesheet"[^>]*href="([^"]+)\"""")


def build_site(folder: Path) -> None:
    """Build the site in ``folder/html``. A page outside the table of contents or a link without a target is an error."""
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", folder / "state", "docs", folder / "html"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr


def shared_site(factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all workers of this run: each of them has a folder of its own below the run's."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            build_site(folder)
            (folder / "built").touch()
    return folder / "html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_site(tmp_path_factory)


def test_each_page_is_built(site):
    """A page that the table of contents leaves out would be found by nobody."""
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}


def test_pages_load_nothing_from_other_hosts(site):
    """The site works offline, and its readers are known to nobody else."""
    loaded = {(a or b) for path in site.glob("*.html") for a, b in LOADED.findall(path.read_text(encoding="utf-8"))}
    assert len(loaded) > 3
    assert not [address for address in loaded if "//" in address]
