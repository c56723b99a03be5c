"""Failed attempts to reach brokers: when to log them, and what the final error says about them.

Rules for this file: synchronous; ``now`` is an argument. An address counts as failed until it answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from minikafka.errors import Unreachable, WorldError
from minikafka.types import Address

LOG_INTERVAL_S = 5.0
"""Pause between two log lines about the same address."""


@dataclass(slots=True)
class _Attempts:
    since: float
    count: int = 0
    reason: str = ""
    advice: str = ""
    logged_at: float = float("-inf")

    def in_words(self, now: float) -> str:
        times = "1 attempt" if self.count == 1 else f"{self.count} attempts in {now - self.since:.1f} s"
        return f"{self.reason} ({times})"


class ConnectionFailures:
    """The addresses that have not answered since their last failure."""

    def __init__(self) -> None:
        self._failing: dict[Address, _Attempts] = {}

    def failed(self, peer: Address, error: BaseException, now: float) -> str | None:
        """Count a failed attempt. Return a line for the log for the first one, and then every LOG_INTERVAL_S."""
        attempts = self._failing.setdefault(peer, _Attempts(since=now))
        attempts.count += 1
        # The network names API and peer in front of the reason; here each line names the peer.
        attempts.reason = str(error).rpartition(f" to {peer}: ")[2]
        if isinstance(error, Unreachable):
            attempts.advice = "check bootstrap_servers, and that a broker runs there"
        else:
            attempts.advice = "check that the broker runs, and that the port is a minikafka broker's"
        if now - attempts.logged_at < LOG_INTERVAL_S:
            return None
        attempts.logged_at = now
        problem = "cannot connect to" if isinstance(error, Unreachable) else "no response from"
        return f"{problem} {peer}: {attempts.in_words(now)}; the client retries"

    def answered(self, peer: Address) -> None:
        """Forget the failures of an address that works."""
        self._failing.pop(peer, None)

    def summary(self, now: float) -> str:
        """Describe every failing address with its last reason, and what to do; empty if there is none."""
        tried = "; ".join(f"{peer}: {attempts.in_words(now)}" for peer, attempts in self._failing.items())
        advice = dict.fromkeys(attempts.advice for attempts in self._failing.values())
        return f"{tried}; {'; '.join(advice)}" if tried else ""


def cause_of(error: BaseException) -> BaseException:
    """Return the world's own error behind a client's error, or the error itself."""
    return error.__cause__ if isinstance(error.__cause__, WorldError) else error
