"""Suggestions for names that do not exist: "did you mean ...?"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LENGTH_MAX = 100
"""Characters of a name that are compared. No known name is as long, and comparing a longer one takes long."""
CUTOFF = 0.6
"""Similarity that a suggestion needs, from 0 to 1; difflib's own default."""


def nearest(name: str, known: Iterable[str], *, count: int = 1, cutoff: float = CUTOFF) -> list[str]:
    """Return up to ``count`` of the known names that are similar to ``name``, the most similar first."""
    return difflib.get_close_matches(name[:LENGTH_MAX], list(known), n=count, cutoff=cutoff)


def did_you_mean(
    name: str,
    known: Iterable[str],
    *,
    otherwise: str = "",
    quoted: bool = False,
    count: int = 1,
    cutoff: float = CUTOFF,
) -> str:
    """Return the end of an error about an unknown name.

    Args:
        name: The name that does not exist.
        known: The names that exist.
        otherwise: What to say if no known name is similar.
        quoted: Put the suggestions in quotes.
        count: How many suggestions there may be.
        cutoff: Similarity that a suggestion needs.

    Returns:
        ``; did you mean A or B?``, or ``; OTHERWISE``, or an empty string.
    """
    near = nearest(name, known, count=count, cutoff=cutoff)
    if near:
        return f"; did you mean {' or '.join(repr(each) if quoted else each for each in near)}?"
    return f"; {otherwise}" if otherwise else ""


def one_is_needed(known: Iterable[str], given: str, *, count: str = "one") -> str:
    """Return the demand for one of the known words: ``one of A, B is needed; did you mean 'A'?``."""
    words = list(known)
    return f"{count} of {', '.join(words)} is needed{did_you_mean(given, words, quoted=True)}"


def meant_or_listed(given: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'A'?`` for a word that is similar to a known one, else the list of the known words."""
    words = list(known)
    return did_you_mean(given, words, quoted=True, otherwise=f"one of {', '.join(words)} is needed")
