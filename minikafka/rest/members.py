"""Members of JSON objects, read once each; what is left over is refused with the nearest name."""

from __future__ import annotations

from typing import Any

from minikafka.spelling import did_you_mean
from minikafka.web.problems import VALIDATION_ERROR_COUNT_MAX, Fault
from minikafka.wire.limits import shown

_NAME_LENGTH_MAX = 200


def pointer(*parts: str | int) -> str:
    """A JSON Pointer (RFC 6901); names of unknown members are cut."""
    return "".join("/" + str(part)[:_NAME_LENGTH_MAX].replace("~", "~0").replace("/", "~1") for part in parts)


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
            self.wrong(name, f"no such member here{did_you_mean(name, self._read, quoted=True)}")
