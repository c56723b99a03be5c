"""Requests to the coordinator of a group or of a transactional id, found by asking any broker.

Rule for this file: what is sent may be sent twice. A coordinator that moved, or did not answer, is looked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikafka.blocking.brokers import CALL_TIMEOUT_S, Brokers
from minikafka.errors import ProtocolError
from minikafka.types import Address
from minikafka.wire.group_messages import FindCoordinatorRequest, FindCoordinatorResponse
from minikafka.wire.outcomes import error_in

GROUP_KEY, TRANSACTION_KEY = 0, 1
"""What FindCoordinator looks up."""

FIND_SHARE = 5
"""Each broker that is asked for the coordinator has this part of the time for a request."""


class Coordinator:
    """The coordinator of one group or transactional id."""

    def __init__(self, brokers: Brokers, key: str, *, key_type: int = GROUP_KEY) -> None:
        self._brokers = brokers
        self._key = key
        self._key_type = key_type
        self._address: Address | None = None

    def ask(
        self,
        what: str,
        request: Any,
        *,
        error_of: Callable[[Any], ProtocolError | None] = error_in,
        timeout_s: float | None = None,
    ) -> Any:
        """Return the coordinator's response.

        Args:
            what: What is being done, for the sentence of BrokersUnreachable.
            request: The request; each attempt sends the same.
            error_of: What is wrong with a response; a retriable error makes another attempt.
            timeout_s: Seconds for all attempts (default: the time for retries of ``brokers``).

        Raises:
            BrokersUnreachable: No coordinator gave an answer in time.
            ProtocolError: The coordinator refused; no retry helps.
        """
        patience_s = timeout_s or CALL_TIMEOUT_S

        def attempt() -> Any:
            if self._address is None:
                # A silent broker may take a part of the time only: the others, and the coordinator, need some too.
                self._address = self._find(patience_s / FIND_SHARE)
            try:
                response = self._brokers.call(self._address, request, timeout_s=patience_s)
                error = error_of(response)
                if error is not None:
                    raise error
            except ProtocolError as error:
                if error.retriable:
                    self._address = None
                raise
            return response

        return self._brokers.retrying(what, attempt, timeout_s=timeout_s)

    def _find(self, timeout_s: float) -> Address:
        response: FindCoordinatorResponse = self._brokers.ask_any(
            FindCoordinatorRequest(keys=(self._key,), key_type=self._key_type),
            timeout_s=timeout_s,
            failure=lambda answer: error_in(answer.coordinators[0]),
        )
        found = response.coordinators[0]
        return Address(found.host, found.port)
