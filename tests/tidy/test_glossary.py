"""docs/glossary.md: one line a term, sorted, each with a module that exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
ROW = re.compile(r"\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| `(?P<where>[^`|]+)` \|")


class Term(NamedTuple):
    """One line of the glossary."""

    term: str
    meaning: str
    where: str


def tables(text: str) -> list[list[Term]]:
    """The rows of each table; ValueError for one that is no term with a meaning and a module."""
    found: list[list[Term]] = []
    for line in text.splitlines():
        if line.startswith("| term "):
            found.append([])
        elif line.startswith("|") and not line.startswith("|---"):
            row = ROW.fullmatch(line)
            if row is None:
                raise ValueError(line)
            found[-1].append(Term(**row.groupdict()))
    return found


def terms() -> list[Term]:
    """All terms."""
    return [each for table in tables(GLOSSARY.read_text(encoding="utf-8")) for each in table]


def test_a_row_without_a_module_is_noticed():
    """A check that cannot fail proves nothing."""
    with pytest.raises(ValueError, match="lonely"):
        tables("| term | meaning | where |\n|---|---|---|\n| lonely | It has no module. | |")


def test_every_term_names_a_file_that_exists():
    """A reader goes from the term to the code; modules move."""
    found = terms()
    assert len(found) > 60, "the tables were not found"
    assert [each for each in found if not (ROOT / each.where).is_file()] == []


def test_no_term_has_two_lines():
    """One meaning a term; where a word has two, the term says which."""
    names = [each.term for each in terms()]
    assert sorted(names) == sorted(set(names))


def test_the_terms_of_each_table_are_sorted():
    """Readers look terms up."""
    for table in tables(GLOSSARY.read_text(encoding="utf-8")):
        names = [each.term.lower() for each in table]
        assert names == sorted(names)


def test_every_meaning_is_a_sentence():
    """It begins with a capital letter or a name in code, and ends with a full stop."""
    assert [each for each in terms() if not re.fullmatch(r"[`A-Z].*\.", each.meaning)] == []
