"""Leaves a hanging transaction in a partition: a late batch of a producer that no coordinator knows.

The brokers must run with ``transaction.partition.verification.enable=false``, or the leader refuses the batch.
"""

from __future__ import annotations

import time
import urllib.request

from minikafka.wire.apis import MSGPACK
from minikafka.wire.codec import decode_response, encode_request
from minikafka.wire.messages import ProducePartition, ProduceRequest
from minikafka.wire.records import Record, build_batch

PRODUCER_ID = 900_000
HOUR_MS = 3_600_000


def leave_hanging(address: str, topic: str, *, epoch: int = 0) -> None:
    """Append one record, an hour old, to partition 0 of ``topic``; the broker at ``address`` leads it."""
    data = build_batch(
        [Record(0, int(time.time() * 1000) - HOUR_MS, value=b"late")],
        producer_id=PRODUCER_ID,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    request = ProduceRequest(
        transactional_id="gone",
        timeout_ms=10_000,
        partitions=(ProducePartition(topic=topic, partition=0, records=(data,)),),
    )
    body = b"".join(map(bytes, encode_request(request)))
    http = urllib.request.Request(f"http://{address}/rpc/Produce", body, {"Content-Type": MSGPACK}, method="POST")
    with urllib.request.urlopen(http, timeout=60) as response:
        answer = decode_response("Produce", response.read())
    assert not answer.error_code, answer
    assert not answer.partitions[0].error_code, answer
