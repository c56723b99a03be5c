"""The documentation as a site: every page has its place, every link its target, and nothing comes from other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

LOADED = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"|<link[^>]*rel="stylesheet"[^>]*href="([^"]+)\"""")


def build_site(folder: Path) -> Path:
    """The built site. A page outside the table of contents or a link without a target is an error."""
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", folder / "state", "docs", folder / "html"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


def test_each_page_is_built(site):
    """A page that the table of contents leaves out would be found by nobody."""
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}


def test_pages_load_nothing_from_other_hosts(site):
    """The site works offline, and its readers are known to nobody else."""
    loaded = {(a or b) for path in site.glob("*.html") for a, b in LOADED.findall(path.read_text(encoding="utf-8"))}
    assert len(loaded) > 3
    assert not [address for address in loaded if "//" in address]
