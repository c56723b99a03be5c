"""Scenario files: a story in comments, commands, and what they print.

::

    # What the story is about.
    cluster brokers=2 names=A,B
    produce A m0 acks=1
    ---- truncation=high-watermark
    step  what happened ...
    ---- truncation=leader-epoch
    step  what happened ...

Each ``----`` begins one expected run; the words after it override options of ``cluster``. The library's files stand
in ``scenarios/`` beside this one; ``python -m minikafka.lab rewrite`` rewrites the expectations: review the diff.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minikafka.lab.command import ScenarioError
from minikafka.lab.played import Run
from minikafka.lab.player import play
from minikafka.lab.table import rendered

LIBRARY = Path(__file__).parent / "scenarios"
RULE = "----"


@dataclass(frozen=True, slots=True)
class Expected:
    """One run as the file has it."""

    options: tuple[tuple[str, str], ...]
    text: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file, read."""

    name: str
    head: str
    """Everything before the first rule, as written."""
    expected: tuple[Expected, ...]

    def play(self, options: tuple[tuple[str, str], ...] = ()) -> Run:
        """Play it, with these options over its own."""
        return play(list(self._commands()), dict(options))

    def options(self) -> dict[str, str]:
        """What its ``cluster`` says."""
        _, first = next(self._commands(), (0, ""))
        return dict(word.split("=", 1) for word in first.split() if "=" in word)

    def _commands(self) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(self.head.splitlines(), start=1):
            text = line.partition("#")[0].strip()
            if text:
                yield number, text

    def refreshed(self) -> str:
        """The file's text with what it prints now; a file without any rule gets one."""
        runs = [each.options for each in self.expected] or [()]
        parts = [self.head.rstrip("\n") + "\n"]
        for options in runs:
            parts.append(" ".join([RULE, *(f"{name}={text}" for name, text in options)]) + "\n")
            parts.append(rendered(self.play(options)))
        return "".join(parts)


def read(path: Path) -> Scenario:
    """Read one file."""
    head: list[str] = []
    runs: list[tuple[tuple[tuple[str, str], ...], list[str]]] = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: this is no text: {error}") from error
    for line in text.splitlines(keepends=True):
        if line.split(" ")[0].strip() == RULE:
            pairs = [word.partition("=") for word in line.split()[1:]]
            runs.append((tuple((name, text) for name, _, text in pairs), []))
        elif runs:
            runs[-1][1].append(line)
        else:
            head.append(line)
    name = path.relative_to(LIBRARY).with_suffix("").as_posix() if path.is_relative_to(LIBRARY) else path.stem
    return Scenario(name, "".join(head), tuple(Expected(options, "".join(lines)) for options, lines in runs))


def library() -> list[Path]:
    """All files of the library, sorted."""
    return sorted(LIBRARY.rglob("*.txt"))


def rewrite() -> list[Path]:
    """Refresh the library's files; those that have changed."""
    changed = []
    for path in library():
        text = read(path).refreshed()
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed
