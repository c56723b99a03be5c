"""The script that measures the figures of issue 16 counts what it says it counts."""

from __future__ import annotations

from collections import Counter

from tests.tidy import figures
from tests.tidy.sources import PRODUCT, ROOT

SAMPLE = '''"""A module
docstring."""

# A comment.
LIMIT = 3  # beside code
"""Of an attribute."""
def f(
    x: int,
) -> str:
    """Of a function."""
    return """two
lines"""
'''


def test_code_lines_leave_out_blank_lines_comments_and_docstrings():
    """Attribute docstrings count as docstrings; a string that is used and each line of a long call count as code."""
    assert figures.code_lines(SAMPLE) == 6


def test_every_module_counts_once_in_its_package(tmp_path):
    """A module beside the packages stands for itself; later features count apart, in a line for each feature."""
    for name in ("ports.py", "rest/body.py", "rest/metrics/mbeans.py", "rest/live.py", "security/plain.py"):
        path = tmp_path / "minikafka" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SAMPLE)
    (tmp_path / "README.md").touch()
    lines = {name: now for name, _, now, _ in figures.measured(tmp_path, with_walks=False) if "word" not in name}
    assert lines == {
        "code lines (features of 62e114e)": 18,
        "  ports": 6,
        "  rest": 12,
        "modules (features of 62e114e)": 3,
        "later: security: TLS, logins, ACLs, quotas": "6 in 1",
        "later: the console, live states, history": "6 in 1",
        "code lines, modules of all features": "30 in 5",
    }


def test_table_of_later_features_names_each_module_once():
    """Issue 16 wants later features counted apart. Each entry exists, and no module is in two entries."""
    places = [place for each in figures.LATER.values() for place in each]
    found = Counter(
        name
        for name in (path.relative_to(PRODUCT).as_posix() for path in figures.modules(ROOT))
        for place in places
        if figures.is_below(name, place)
    )
    assert [name for name, times in found.items() if times > 1] == []
    assert [place for place in places if not any(figures.is_below(name, place) for name in found)] == []


def test_words_count_as_whole_words_also_across_lines(tmp_path):
    """In the product, the docs and README; nowhere else."""
    for folder in ("minikafka", "docs", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "minikafka" / "a.py").write_text("# Told: it is left as\n# it is.\nuntold = 1\n")
    (tmp_path / "docs" / "a.md").write_text("Whoever is told")
    (tmp_path / "tests" / "a.py").write_text("# anew")
    (tmp_path / "README.md").write_text("somebody")
    assert figures.words(tmp_path) == {"told": 2, "whoever": 1, "anew": 0, "somebody": 1, "as it is": 1}


def test_table_prints_each_figure_beside_the_one_before():
    """A figure without a predecessor or a wish leaves its cell empty."""
    lines = iter([("modules", 440, 495, "at most 320"), ("  ports", None, 1141, None)])
    assert figures.table(lines).splitlines() == [
        "figure   62e114e  this tree  wanted",
        "modules      440        495  at most 320",
        "  ports               1,141",
    ]
