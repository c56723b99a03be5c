"""Fields of a scenario's file: typed, located, and no one passed over. Every mistake names file, line, field and fix.

Rules for this file: it knows TOML and units, not what a scenario means; a field that nobody asked for is a mistake.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from minikafka.chaos.scenario import Span
from minikafka.errors import InvalidConfig
from minikafka.spelling import did_you_mean

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-]+)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*(\"[^\"]*\"|[A-Za-z0-9_.\-]+)\s*=")
_TIME = re.compile(r"([+-]?\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LINE = re.compile(r"at line (\d+)")


def seconds_of(text: str) -> float:
    """A time with its unit as seconds. ValueError tells the form."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r}: a time with its unit (ms, s, m, h, d) is needed, as '5s' or '200ms'")
    return float(found[1]) * _UNIT_S[found[2]]


class ScenarioError(InvalidConfig):
    """A scenario's file cannot be played; the message begins with file and line."""


class Lines:
    """In which line of the file a field stands."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self._of: dict[str, int] = {}
        counts: dict[str, int] = {}
        here = ""
        for number, line in enumerate(text.splitlines(), start=1):
            header, key = _HEADER.fullmatch(line), _KEY.match(line)
            if header is not None:
                here = header[2]
                if header[1] == "[[":
                    counts[here] = counts.get(here, 0) + 1
                    here = f"{here}[{counts[here]}]"
                self._of.setdefault(here, number)
            elif key is not None:
                name = key[1].strip('"')
                self._of.setdefault(f"{here}.{name}" if here else name, number)

    def wrong(self, field: str, message: str) -> ScenarioError:
        """The error for a field; of one that is not there, its table's line counts."""
        where = field
        while where and where not in self._of:
            where = where.rpartition("[" if where.endswith("]") else ".")[0]
        line = f":{self._of[where]}" if where else ""
        return ScenarioError(f"{self.path}{line}: {field}: {message}", field=field)


def parse(path: Path, text: str) -> Table:
    """The file's root table. ScenarioError when it is no TOML."""
    try:
        return Table(tomllib.loads(text), "", Lines(path, text))
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        line = f":{found[1]}" if found else ""
        raise ScenarioError(f"{path}{line}: this is no TOML: {error}", field="") from None


class Table:
    """A table of the file: ask for each field once, then :meth:`done`."""

    def __init__(self, members: Mapping[str, Any], place: str, lines: Lines) -> None:
        self._members = dict(members)
        self._asked: dict[str, None] = {}
        self._place = place
        self._lines = lines

    def wrong(self, name: str, message: str) -> ScenarioError:
        """The error for a member."""
        return self._lines.wrong(f"{self._place}.{name}" if self._place else name, message)

    def gives(self, name: str) -> bool:
        """Is it there?"""
        return name in self._members

    def _take(self, name: str, kind: type | tuple[type, ...], what: str, default: Any) -> Any:
        self._asked[name] = None
        if name not in self._members:
            if default is ...:
                raise self.wrong(name, f"is missing: {what} is needed")
            return default
        value = self._members[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(name, f"{value!r}: {what} is needed")
        return value

    def text(self, name: str, default: Any = ..., *, one_of: Collection[str] = ()) -> str:
        """A string."""
        value = str(self._take(name, str, "a text in quotes", default))
        if one_of and name in self._members:
            self.known(name, value, one_of)
        return value

    def known(self, name: str, value: str, words: Iterable[str], others: Mapping[str, str] | None = None) -> None:
        """ScenarioError when ``value`` is none of ``words``; ``others`` are words of other tools."""
        words = list(words)
        if value in words:
            return
        meant = (others or {}).get(value, value)
        hint = did_you_mean(meant, words, quoted=True, otherwise=f"one of {', '.join(words)} is needed")
        raise self.wrong(name, f"{value!r} is unknown{hint}")

    def texts(self, name: str, default: Any = ...) -> tuple[str, ...]:
        """A string, or a list of such."""
        value = self._take(name, (str, list), "a text, or a list of texts", default)
        rows = [value] if isinstance(value, str) else list(value)
        if not all(isinstance(row, str) and row for row in rows):
            raise self.wrong(name, f"{value!r}: texts in quotes are needed")
        return tuple(rows)

    def whole(self, name: str, default: int, *, low: int, high: int) -> int:
        """A whole number."""
        value = self._take(name, int, "a whole number", default)
        if not low <= value <= high:
            raise self.wrong(name, f"{value}: from {low} to {high} is possible")
        return int(value)

    def number(self, name: str, default: Any = ..., *, low: float, high: float) -> float:
        """A number."""
        value = self._take(name, (int, float), "a number", default)
        if not low <= value <= high:
            raise self.wrong(name, f"{value}: from {low:g} to {high:g} is possible")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """``true`` or ``false``."""
        return bool(self._take(name, bool, "true or false", default))

    def seconds(self, name: str, default: Any = ..., *, may_be_negative: bool = False) -> float:
        """One time with its unit."""
        text = self._take(name, str, "a time with its unit, as '5s' or '200ms',", default)
        return self._seconds(name, text, may_be_negative=may_be_negative) if isinstance(text, str) else float(text)

    def span(self, name: str) -> Span | None:
        """A time, or two with ``..`` between them; None when it is not there."""
        text = self._take(name, str, "a time with its unit, as '5s' or '2s..6s',", None)
        if text is None:
            return None
        low, dots, high = text.partition("..")
        span = Span(self._seconds(name, low), self._seconds(name, high if dots else low))
        if span.low > span.high:
            raise self.wrong(name, f"{text!r}: the shorter time comes first")
        return span

    def _seconds(self, name: str, text: str, *, may_be_negative: bool = False) -> float:
        try:
            value = seconds_of(text)
        except ValueError as error:
            raise self.wrong(name, str(error)) from None
        if value < 0 and not may_be_negative:
            raise self.wrong(name, f"{text!r}: a time here is not negative")
        return value

    def settings(self, name: str) -> dict[str, str]:
        """A table of settings by Kafka's names; numbers and flags are taken as texts."""
        found = self._take(name, dict, "a table of settings", {})
        settings = {}
        for key, value in found.items():
            if isinstance(value, dict | list):
                raise self.wrong(f"{name}.{key}", f'{value!r}: write the name in quotes, as "{key}.…" = "…"')
            settings[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return settings

    def table(self, name: str) -> Table:
        """A table; an empty one when it is not there."""
        found = self._take(name, dict, f"a table [{name}]", {})
        return Table(found, f"{self._place}.{name}" if self._place else name, self._lines)

    def tables(self, name: str) -> list[Table]:
        """A list of tables, ``[[name]]``; counted from 1 in messages."""
        full = f"{self._place}.{name}" if self._place else name
        found = self._take(name, list, f"a list of tables [[{full}]]", [])
        if not all(isinstance(each, dict) for each in found):
            raise self.wrong(name, f"a list of tables [[{full}]] is needed")
        return [Table(each, f"{full}[{number}]", self._lines) for number, each in enumerate(found, start=1)]

    def done(self) -> None:
        """ScenarioError for a member that nobody has asked for."""
        for name in self._members:
            if name not in self._asked:
                self.known(name, name, list(self._asked))
