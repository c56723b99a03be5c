"""The pages that people type along with: every command runs, and prints what the page says."""

from __future__ import annotations

import pytest

from tests.e2e.console import matches, run_page, steps_of
from tests.tidy.sources import ROOT

PAGES = ("first-hour.md", "lesson-truncation.md", "groups.md", "secured-cluster.md", "transactions.md")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_tells_the_truth(name, tmp_path):
    """A page that rots teaches people that nothing here can be believed."""
    assert run_page(ROOT / "docs" / name, tmp_path) > 10


def test_a_page_that_lies_is_found_out(tmp_path):
    """The player must be able to fail: by output, by status, and by a command that should have failed."""
    for text in ("$ echo one\ntwo", "$ false", "$ true # fails"):
        page = tmp_path / "page.md"
        page.write_text(f"```console\n{text}\n```\n")
        with pytest.raises(AssertionError, match=r"page\.md, line 2"):
            run_page(page, tmp_path)


def test_commands_and_outputs_are_told_apart(tmp_path):
    """Continued lines belong to their command, other blocks to nobody."""
    page = tmp_path / "page.md"
    page.write_text(
        "```json\n$ no\n```\n```console\n$ echo \\\n  a b\na\nb\n$ x=1\n```\nprose\n```console\n$ echo $x\n1\n```\n"
    )
    assert [(each.line, each.output) for each in steps_of(page)] == [(5, "a\nb"), (9, ""), (13, "1")]
    assert run_page(page, tmp_path) == 3
    assert matches("a ... z", "a b\n z")
    assert not matches("a ...", "b a c")
