"""Query parameters and members of JSON objects, read once each; what is left over is refused with the nearest name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from minikafka.rest.problems import VALIDATION_ERROR_COUNT_MAX, Fault, malformed

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def nearest(name: str, known: Collection[str]) -> str:
    """`` ; did you mean ...`` or nothing."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def shown(value: Any) -> str:
    """A value short enough for a sentence."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Query:
    """The parameters of one request. Read all, then :meth:`done` raises for everything that is wrong, at once."""

    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        self._given = given
        self._read: list[str] = []
        self._faults: list[Fault] = []

    def _text(self, name: str) -> str | None:
        self._read.append(name)
        values = self._given.get(name, ())
        if len(values) > 1:
            self._wrong(name, f"comes {len(values)} times")
        return values[0] if values else None

    def _wrong(self, name: str, detail: str) -> None:
        self._faults.append({"parameter": name, "detail": detail})

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        text = self._text(name)
        if text is None:
            return default
        if not _WHOLE_NUMBER.fullmatch(text) or not low <= int(text) <= high:
            self._wrong(name, f"{shown(text)}: a whole number from {low} to {high} is needed")
            return default
        return int(text)

    def choice(self, name: str, options: Sequence[str], default: str) -> str:
        """One of ``options``."""
        text = self._text(name)
        if text is None:
            return default
        if text not in options:
            self._wrong(name, f"{shown(text)}: one of {', '.join(options)} is needed{nearest(text, options)}")
            return default
        return text

    def flag(self, name: str) -> bool:
        """``true`` or ``false``; false when it is not there."""
        return self.choice(name, ("true", "false"), "false") == "true"

    def refuse(self, name: str, detail: str) -> None:
        """Note something wrong that this class cannot know."""
        self._wrong(name, detail)

    def done(self) -> None:
        """400 for all that was found wrong, and for parameters that nobody read."""
        for name in self._given:
            if name not in self._read:
                self._wrong(name, f"no such parameter here{nearest(name, self._read)}")
        if self._faults:
            first = self._faults[0]
            raise malformed(f"query parameter {first['parameter']}: {first['detail']}", self._faults)


def pointer(*parts: str | int) -> str:
    """A JSON Pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


class Members:
    """The members of one JSON object; faults gather in the list that the caller shares between objects."""

    def __init__(self, members: dict[str, Any], path: str, faults: list[Fault]) -> None:
        self._members = members
        self._path = path
        self._faults = faults
        self._read: list[str] = []

    def wrong(self, name: str, detail: str) -> None:
        """Note a fault of one member."""
        self._faults.append({"pointer": self._path + pointer(name), "detail": detail})

    def any(self, name: str) -> Any:
        """The member as it came, or None."""
        self._read.append(name)
        return self._members.get(name)

    def text(self, name: str, *, required: bool = False) -> str:
        """A text; empty when it is missing."""
        value = self.any(name)
        if type(value) is str:
            return value
        if required and name not in self._members:
            self.wrong(name, "is missing")
        elif name in self._members:
            self.wrong(name, f"a text is needed, not {shown(value)}")
        return ""

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        if name not in self._members:
            self._read.append(name)
            return default
        value = self.any(name)
        if type(value) is not int or not low <= value <= high:
            self.wrong(name, f"a whole number from {low} to {high} is needed, not {shown(value)}")
            return default
        return value

    def object(self, name: str) -> dict[str, Any]:
        """An object; empty when it is missing."""
        value = self.any(name)
        if type(value) is dict:
            return value
        if name in self._members:
            self.wrong(name, f"an object is needed, not {shown(value)}")
        return {}

    def list(self, name: str) -> list[Any]:
        """A list; empty when it is missing."""
        value = self.any(name)
        if type(value) is list:
            return value
        if name in self._members:
            self.wrong(name, f"a list is needed, not {shown(value)}")
        return []

    def done(self) -> None:
        """Note the members that nobody read."""
        unknown = [name for name in self._members if name not in self._read]
        for name in unknown[:VALIDATION_ERROR_COUNT_MAX]:
            self.wrong(name, f"no such member here{nearest(name, self._read)}")
