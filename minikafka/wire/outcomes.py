"""The outcome of a request that was sent more than once, or that has several parts.

Rules for this file: a request is ``not_written`` only if each of its attempts, and each part of it, is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from msgspec.structs import replace

from minikafka.errors import NOT_WRITTEN, UNKNOWN, WRITTEN, Outcome, ProtocolError, error_of
from minikafka.wire.apis import BY_REQUEST
from minikafka.wire.messages import Failed

Answer = TypeVar("Answer", bound=Failed)


def outcome_in(answer: Failed) -> Outcome:
    """Return the outcome that a failed answer states, ignoring its parts; without a statement it did not write."""
    return answer.outcome if answer.outcome in {WRITTEN, UNKNOWN} else NOT_WRITTEN


def failure_of(answer: Failed) -> ProtocolError:
    """Return the error of a response, or of one part of it, that has failed."""
    return error_of(answer.error_code, answer.error_message, outcome=outcome_in(answer))


def error_in(answer: Failed) -> ProtocolError | None:
    """Return the error that a response, or one part of it, carries; None if it succeeded."""
    return failure_of(answer) if answer.error_code else None


def outcome_of_all(answer: Failed) -> Outcome:
    """Return the outcome of a whole answer: ``unknown`` when its parts differ."""
    parts = [part for _, each in _parts_of(answer) for part in each]
    if answer.error_code or not parts:
        return outcome_in(answer) if answer.error_code else WRITTEN
    first, *others = map(outcome_of_all, parts)
    return first if all(each == first for each in others) else UNKNOWN


class EarlierAttempts:
    """Remembers whether an earlier attempt of one request may have taken effect.

    The refusal of a retry says nothing about an earlier attempt whose outcome was unknown: that attempt may have been
    written before the coordinator moved, or may still be written. Requests that change nothing have no such past.
    """

    __slots__ = ("is_change", "may_have_written")

    def __init__(self, request: object) -> None:
        self.is_change = BY_REQUEST[type(request)].changes
        self.may_have_written = False

    def note(self, failure: ProtocolError | Failed) -> None:
        """Record an attempt that is about to be repeated."""
        outcome = failure.outcome if isinstance(failure, ProtocolError) else outcome_of_all(failure)
        if self.is_change and outcome != NOT_WRITTEN:
            self.may_have_written = True

    def give_up(self) -> None:
        """Record an attempt whose caller waits no longer."""
        self.may_have_written = self.may_have_written or self.is_change

    def outcome(self, error: ProtocolError) -> Outcome:
        """Return the outcome of all attempts, the last of which failed with ``error``."""
        return UNKNOWN if self.may_have_written and error.outcome == NOT_WRITTEN else error.outcome

    def answer(self, answer: Answer) -> Answer:
        """Return the last attempt's answer, in which a failed part is ``unknown`` if an earlier attempt may be."""
        return _without_certainty(answer) if self.may_have_written else answer


def _parts_of(answer: Failed) -> Iterator[tuple[str, tuple[Failed, ...]]]:
    """Yield the members of an answer that hold results of their own."""
    for name in answer.__struct_fields__:
        value = getattr(answer, name)
        if isinstance(value, tuple) and value and all(isinstance(each, Failed) for each in value):
            yield name, value


def _without_certainty(answer: Answer) -> Answer:
    changed: dict[str, Any] = {name: tuple(map(_without_certainty, parts)) for name, parts in _parts_of(answer)}
    if answer.error_code and outcome_in(answer) == NOT_WRITTEN:
        changed["outcome"] = UNKNOWN
    return replace(answer, **changed) if changed else answer
