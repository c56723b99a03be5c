"""One line of a scenario, taken apart: a verb, words, and options of the form ``name=value``.

Rule for this file: it knows no verb; the module that plays a verb says which words and options it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class ScenarioError(Exception):
    """A scenario that says nothing the lab understands; the message names the line."""


@dataclass(frozen=True, slots=True)
class Command:
    """One line, taken apart."""

    line: int
    verb: str
    words: tuple[str, ...]
    options: Mapping[str, str]

    def fail(self, why: str) -> ScenarioError:
        return ScenarioError(f"line {self.line}: {self.verb}: {why}")

    def only(self, *names: str) -> None:
        """Refuse options that mean nothing here: a typing error must not pass for a setting."""
        unknown = [name for name in self.options if name not in names]
        if unknown:
            raise self.fail(f"{', '.join(unknown)} is not known here")

    def number(self, name: str, default: int) -> int:
        text = self.options.get(name, str(default))
        try:
            return int(text)
        except ValueError as error:
            raise self.fail(f"{name}={text} is no number") from error


def parsed(line: int, text: str) -> Command:
    """The command in ``text``, which stands at ``line`` of its file."""
    verb, *rest = text.split()
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return Command(line, verb, tuple(word for word in rest if "=" not in word), options)


def seconds(text: str) -> float:
    """``500ms`` or ``31s``; ValueError for anything else."""
    if text.endswith("ms"):
        return int(text[:-2]) / 1000
    if text.endswith("s"):
        return float(text[:-1])
    raise ValueError(text)
