"""The documentation as a site: `make docs` builds it from the pages of this folder with Sphinx, furo and MyST."""

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from minikafka import __version__
from minikafka.sim.campaign import ALL_PLANS
from minikafka.sim.seeds import FAMILIES
from minikafka.ui.page import page_of, replay_of
from minikafka.ui.record import RecordedRun

project = "minikafka"
version = release = __version__
project_copyright = "the minikafka authors"

extensions = ["myst_parser"]
# Pages link to each other's headings by the anchors that GitHub gives them.
myst_heading_anchors = 4
# A link without a target is an error, but for blocks of code in formats that no lexer knows.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"minikafka {release}"
# Nothing of the reader's visit goes to other hosts, and the pages' sources are in the repository.
html_show_sourcelink = False
html_copy_source = False

REPLAY_SEED = 7


def _show_replay(_app: Sphinx, name: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """Put the replay page that the build made into the page that describes it."""
    if name == "replay":
        frame = (
            f'<p><iframe src="_static/replay.html" title="Seed {REPLAY_SEED}, step by step" loading="lazy" '
            'style="width:100%;height:760px;border:1px solid var(--color-background-border)"></iframe></p>'
        )
        head, at, rest = context["body"].partition('<section id="what-it-shows">')
        context["body"] = head + frame + at + rest


def _write_replay(app: Sphinx, error: Exception | None) -> None:
    """Run a seed with the rules as they are now, and make its replay page."""
    if error is None and app.builder.name == "html":
        journal, _ = RecordedRun(FAMILIES[ALL_PLANS](REPLAY_SEED)).recorded()
        page = page_of(replay_of(journal))
        Path(app.outdir, "_static", "replay.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("html-page-context", _show_replay)
    app.connect("build-finished", _write_replay)
