"""Figures in the documents are those of one run of the benchmark: made from docs/bench.json, never typed in by hand."""

from __future__ import annotations

import pytest

from tests.bench.report import BEGIN, DOCUMENTS, PICTURE, README_ROWS, kept, picture, with_sections, written_by


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_shows_what_the_kept_run_measured(document):
    """Issue 5: every figure comes from `make bench`; `python -m tests.bench --from docs/bench.json --write-docs`."""
    text = document.read_text(encoding="utf-8")
    assert BEGIN.partition("{")[0] in text
    assert text == written_by(document)


def test_the_picture_is_of_the_kept_run():
    """Issue 5: a table and a picture, of the same run."""
    assert PICTURE.read_text(encoding="utf-8") == picture(kept())


def test_a_figure_that_was_typed_in_is_noticed():
    """Else this file would prove nothing."""
    begin = BEGIN.format(what="all")
    typed = f"{begin}\n| fetch | 9,999 MB/s |\n<!-- figures of make bench end -->\n"
    made = with_sections(typed, kept())
    assert made != typed
    assert with_sections(made, kept()) == made
    with pytest.raises(ValueError, match="has no"):
        with_sections(begin, kept())


def test_the_rows_of_the_readme_are_measured():
    """A row that was renamed would vanish from the README without a word."""
    assert set(README_ROWS) <= {line["name"] for line in kept()["rows"]}
