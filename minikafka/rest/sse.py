"""Server-Sent Events, and the lines of JSON that say the same: how streams are written."""

from __future__ import annotations

from typing import Any

from minikafka.rest import json_text

EVENT_STREAM = "text/event-stream"
NDJSON = "application/x-ndjson"

RETRY = b"retry: 1000\n\n"
HEARTBEAT = b": heartbeat\n\n"
FAREWELL = b'event: end\ndata: {"why": "the broker stops"}\n\n'


def event(kind: str, data: dict[str, Any], number: object = None) -> bytes:
    """One event; ``number`` is what a reader that reconnects says as ``Last-Event-ID``."""
    head = b"" if number is None else b"id: %b\n" % str(number).encode()
    # JSON in one line holds no line break of its own.
    return head + b"event: " + kind.encode() + b"\ndata: " + json_text.text_of(data) + b"\n"
