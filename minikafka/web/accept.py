"""What a client takes: the ``Accept`` header, read once (RFC 9110, 12.5.1)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping

from minikafka.errors import InvalidRequest
from minikafka.web.problems import Refused

JSON = "application/json"
MSGPACK = "application/msgpack"
MSGPACK_TYPES = (MSGPACK, "application/vnd.msgpack", "application/x-msgpack")

ACCEPT_LENGTH_MAX = 2_000


class Accept:
    """The wishes of one request. A header that is missing takes everything."""

    def __init__(self, given: Iterable[str]) -> None:
        self.text = ",".join(given)
        self._ranges = _ranges(self.text[:ACCEPT_LENGTH_MAX]) if self.text.strip() else {"*/*": 1.0}

    def quality(self, media_type: str) -> float:
        """The nearest range's word on a type; 0: it is not taken."""
        family = media_type.partition("/")[0]
        for each in (
            media_type,
            "application/problem+json" if media_type == JSON else media_type,
            f"{family}/*",
            "*/*",
        ):
            if each in self._ranges:
                return self._ranges[each]
        return 0.0


def unacceptable_type(accept: Accept, available: Collection[str]) -> Refused:
    """406 with what can be had."""
    words = sorted(available)
    return Refused(
        InvalidRequest(f"Accept {accept.text[:80]!r}: this answer can only be {' or '.join(words)}"),
        status=406,
        available=words,
    )


def _ranges(given: str) -> Mapping[str, float]:
    """Media range -> quality; what cannot be read as a quality counts as 1."""
    ranges: dict[str, float] = {}
    for each in given.split(","):
        kind, *parameters = (part.strip().lower() for part in each.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                with contextlib.suppress(ValueError):
                    quality = float(parameter[2:])
        ranges[kind] = quality
    return ranges
