"""Kafka's binary protocol: schema, codec, frames, and translation to and from the messages of ``wire/messages.py``.

Rules for this package: bytes in, bytes out; nothing here awaits, opens a socket or knows a broker's state. What the
translation needs of the metadata (the name of a topic id) is passed in.
"""

from __future__ import annotations

FIRST_BYTE_MAX = 0x06
"""First byte of a frame of at most 100 MiB: what begins so is neither HTTP (a letter) nor TLS (0x16)."""
