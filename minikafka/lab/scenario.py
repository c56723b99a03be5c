"""Scenario files: a story in comments, commands, and what they print; and the library of them by name.

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

A name on a command line is the file's below ``scenarios/`` without its ending; ``-`` may stand for ``_``, the number in
front may be left out, and it may stand for all of the name where only one story has it. For an unknown name the error
has the nearest one. A path names a file outside of the library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minikafka.lab.command import ScenarioError
from minikafka.lab.played import Run
from minikafka.lab.scenario_runner import play
from minikafka.lab.table import rendered
from minikafka.spelling import nearest

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
        return play(list(self.commands()), dict(options))

    def options(self) -> dict[str, str]:
        """What its ``cluster`` says."""
        _, first = next(self.commands(), (0, ""))
        return dict(word.split("=", 1) for word in first.split() if "=" in word)

    def commands(self) -> Iterator[tuple[int, str]]:
        """Its commands with the numbers of their lines."""
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


_NUMBER = re.compile(r"^s\d+_")


def names() -> list[str]:
    """All names of the library."""
    return [read(path).name for path in library()]


def short_name(name: str) -> str:
    """The name as people type it, without the number that sorts the file: ``s22_data_loss`` is ``data-loss``."""
    return _NUMBER.sub("", name).replace("_", "-")


def find(name: str) -> Scenario:
    """The story of that name, or in that file. Raises ScenarioError with the nearest names."""
    known = {read(path).name: path for path in library()}
    wanted = name.removesuffix(".txt").replace("-", "_").lower()
    by_last = [
        each
        for each in known
        if wanted in {each, each.rpartition("/")[2], each.partition("_")[0], _NUMBER.sub("", each)}
    ]
    if wanted in known or len(by_last) == 1:
        return read(known.get(wanted) or known[by_last[0]])
    path = Path(name)
    if path.is_file():
        return read(path)
    spelled = {each: short_name(each) for each in known}
    spelled |= {short: short for short in spelled.values()}
    near = nearest(wanted, spelled, count=3, cutoff=0.5) or by_last
    if not near:
        near = [each for each in known if wanted in each]
    hint = (
        f"; did you mean {' or '.join(dict.fromkeys(spelled[each] for each in near))}?"
        if near
        else "; `minikafka lab list` shows all"
    )
    raise ScenarioError(f"there is no scenario {name}, and no such file{hint}")


def story(scenario: Scenario) -> str:
    """The first sentence of the comment on top, without the number that it may begin with."""
    text = re.sub(r"^(S\d|KIP-|KAFKA-)[^:]*: ", "", _comment(scenario).partition("\n")[0])
    sentence = re.match(r".+?\.(?=\s|$)", text)
    summary = (sentence.group() if sentence else text).rstrip(":.")
    # A setting keeps its small letters.
    return summary if "=" in summary.partition(" ")[0] else summary[:1].upper() + summary[1:]


def references(scenario: Scenario) -> list[str]:
    """The KIPs and issues of Kafka that the comment on top names."""
    return list(dict.fromkeys(re.findall(r"\b(?:KIP|KAFKA)-\d+\b", _comment(scenario))))


def _comment(scenario: Scenario) -> str:
    """The comment on top, a paragraph a line."""
    paragraphs = [""]
    for line in scenario.head.splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("#").strip()
        if text:
            paragraphs[-1] = f"{paragraphs[-1]} {text}".lstrip()
        else:
            paragraphs.append("")
    return "\n".join(paragraphs)
