"""The script that measures the figures of issue 16 counts what it says it counts."""

from __future__ import annotations

from tests.tidy import figures

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
    """A module beside the packages stands for itself; the total is of all."""
    (tmp_path / "minikafka" / "rest" / "metrics").mkdir(parents=True)
    (tmp_path / "README.md").touch()
    for name in ("ports.py", "rest/body.py", "rest/metrics/mbeans.py"):
        (tmp_path / "minikafka" / name).write_text(SAMPLE)
    lines = {name: now for name, _, now, _ in figures.measured(tmp_path, with_walks=False)}
    assert (lines["  ports"], lines["  rest"], lines["code lines"], lines["modules"]) == (6, 12, 18, 3)


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
