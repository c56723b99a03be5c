"""Figures in the documents are those of one run of the benchmark: made from docs/bench.json, never typed in by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.measure import KAFKA, Row
from tests.bench.report import (
    BEGIN,
    DOCUMENTS,
    END,
    NO_KAFKA,
    PICTURE,
    README_KAFKA_ROWS,
    by_yardstick,
    completed,
    kept,
    picture,
    show,
    with_kafka_rows,
    with_sections,
    written_by,
)


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
    kafka = by_yardstick(kept())[1]
    assert not kafka or set(README_KAFKA_ROWS) <= {line["name"] for line in kafka}


def test_a_later_run_beside_kafka_replaces_those_rows_and_says_where_it_was_measured():
    """The whole takes an hour's quarter; the part beside Kafka can be measured anew alone."""
    row = Row("fetch", "MB/s", 10, 5, 2.0, beside=f"{KAFKA} 4.3.1").as_json()
    later = {**kept(), "commit": "abcdef0", "rows": [row]}
    merged = with_kafka_rows(kept(), later)
    assert by_yardstick(merged) == (by_yardstick(kept())[0], [row])
    document = DOCUMENTS[0].read_text(encoding="utf-8")
    text = with_sections(document, merged)
    section = text.partition(BEGIN.format(what="beside Kafka"))[2].partition(END)[0]
    assert "Commit abcdef0" in section
    assert f"Commit {kept()['commit']}" in text


def test_a_later_run_of_the_other_rows_leaves_those_beside_kafka():
    """`--only bare --write-docs`: with the rows beside Kafka stays where they were measured."""
    row = Row("fetch", "MB/s", 10, 5, 2.0).as_json()
    later = {name: value for name, value in kept().items() if name != "kafka_run"} | {
        "commit": "abcdef0",
        "rows": [row],
    }
    merged = completed(later, kept(), is_bare=True)
    assert by_yardstick(merged) == ([row], by_yardstick(kept())[1])
    text = with_sections(DOCUMENTS[0].read_text(encoding="utf-8"), merged)
    section = text.partition(BEGIN.format(what="beside Kafka"))[2].partition(END)[0]
    assert "Commit abcdef0" in text.partition(BEGIN.format(what="all"))[2].partition(END)[0]
    assert f"Commit {kept().get('kafka_run', kept())['commit']}" in section
    assert completed(later, kept(), is_bare=False) == later  # a whole run on a machine without Kafka


def test_rows_beside_kafka_have_tables_of_their_own():
    """The third promise: never mixed with the rows beside a bare server, and said plainly when nothing was measured."""
    rows = [Row(name, "MB/s", 10, 5, 2.0, beside=f"{KAFKA} 4.3.1") for name in README_KAFKA_ROWS]
    rows[0] = replace(rows[0], at_least=False)
    measured = [row.as_json() for row in rows]
    run = {**kept(), "rows": [*by_yardstick(kept())[0], *measured]}
    for document, what in zip(DOCUMENTS, ("beside Kafka", "a few beside Kafka"), strict=True):
        text = with_sections(document.read_text(encoding="utf-8"), run)
        section = text.partition(BEGIN.format(what=what))[2].partition(END)[0]
        told = f"Apache Kafka 4.3.1: minikafka is ahead in {len(rows) - 1} of {len(rows)} rows."
        assert told in section
        assert section.count("| 10 MB/s | 5 MB/s | 2 |") == len(measured)
        assert text.count("10 MB/s") == len(measured)
        without = with_sections(text, {**run, "rows": by_yardstick(run)[0]})
        assert NO_KAFKA in without
    assert picture(run) == picture({**run, "rows": by_yardstick(run)[0]})
    assert show(run).count("Apache Kafka 4.3.1") == 1
