"""docs/settings.md lists the settings that the code has."""

from __future__ import annotations

import pytest

from tests.tidy.settings_page import BEGIN, DOCUMENT, END, with_tables


def test_the_tables_are_those_of_the_code():
    """D8: one table of settings; `python -m tests.tidy.settings_page` rewrites what is made of it."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert "| `segment.bytes` | `log.segment.bytes` | `1073741824` |" in text
    assert text == with_tables(text)


def test_a_default_that_was_typed_in_is_noticed():
    """Else the test above would prove nothing."""
    text = DOCUMENT.read_text(encoding="utf-8")
    typed = text.replace("| `default.replication.factor` | `1` |", "| `default.replication.factor` | `3` |")
    assert text != typed
    assert with_tables(typed) == text
    with pytest.raises(ValueError, match="lacks"):
        with_tables(f"{BEGIN} {END}")
