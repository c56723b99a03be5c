"""Which records were in requests that a link delivered twice.

A retrying proxy sends a request again by itself. One copy may be written and the other one refused (the disk is full at
that very moment); a client that receives only the refusal reports *not written*, which is true of the copy that was
refused. TCP doubles nothing, and no broker can know that its answer is not the one that is heard. So a record that
stands though it was refused is forgiven to those requests, and to no other.

Rule for this file: it names records, whatever became of them; what is allowed to them is said in ``losses.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from minikafka.check import value_id
from minikafka.sim.verdicts import Message
from minikafka.wire.batch import split
from minikafka.wire.codec import decode_request, find_api
from minikafka.wire.records import decode_batch

PRODUCE = find_api("Produce")


class DoubledRecords:
    """The values, by their ids, of records whose produce request arrived twice."""

    def __init__(self, requests: Sequence[Message]) -> None:
        self._requests = requests
        """Of all apis; others add to it while this is looked at."""
        self._opened = 0
        self._values: set[str] = set()

    def __contains__(self, value: object) -> bool:
        self._values.update(_values_of(self._requests[self._opened :]))
        self._opened = len(self._requests)
        return value in self._values


def _values_of(requests: Iterable[Message]) -> Iterator[str]:
    for message in requests:
        if message.api != PRODUCE.name:
            continue
        for part in decode_request(PRODUCE, message.body).partitions:
            for buffer in part.records:
                for batch in split(buffer):
                    yield from (value_id(record.value) for record in decode_batch(batch))
