"""Assertions that stay on under ``python -O``: a broken invariant is a bug and stops the broker."""

from __future__ import annotations


class InvariantViolation(Exception):
    """A rule of the protocol does not hold: a bug in minikafka, never an expected failure."""


def invariant(holds: bool, what: str, **facts: object) -> None:  # noqa: FBT001 - reads as `invariant(a <= b, "...")`
    """Raise :class:`InvariantViolation` with ``facts`` unless ``holds``."""
    if not holds:
        details = " ".join(f"{name}={value!r}" for name, value in facts.items())
        raise InvariantViolation(f"{what} ({details})" if details else what)
