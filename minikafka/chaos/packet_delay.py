"""Holds packets of an NFQUEUE back for a while: netem in user space, for kernels without it.

Run as a script in the namespace of the rule, with the standard library only::

    packet_delay.py QUEUE DELAY_S JITTER_S

It writes a line when it holds the queue, and ends when its standard input closes. Packets keep their order.

Sources: linux/netfilter/nfnetlink_queue.h (messages and attributes), libnetfilter_queue (their order).
"""

from __future__ import annotations

import errno
import random
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator

NETLINK_NETFILTER = 12
SUBSYSTEM_QUEUE = 3
PACKET, VERDICT, CONFIG = 0, 1, 2
"""Kinds of message (NFQNL_MSG_...)."""
NETLINK_ERROR = 2
REQUEST, REQUEST_ACKNOWLEDGED = 1, 5
CONFIG_COMMAND, CONFIG_PARAMETERS, CONFIG_LENGTH_MAX = 1, 2, 3
BIND, COPY_META = 1, 1
PACKET_HEADER = 1
VERDICT_HEADER, ACCEPT = 2, 1
PACKETS_MAX = 65_536
SO_RCVBUFFORCE = 33
SOL_NETLINK, NETLINK_NO_ENOBUFS = 270, 5
RECEIVE_BYTES = 1 << 20
FAMILY_UNSPEC, VERSION = 0, 0
HEADER, QUEUE_HEADER, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct(">BBH"), struct.Struct("=HH")
PAYLOAD_AT = HEADER.size + QUEUE_HEADER.size


def attribute(kind: int, value: bytes) -> bytes:
    """A netlink attribute, padded to four bytes."""
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, queue: int, body: bytes, flags: int = REQUEST) -> bytes:
    """A netlink message of the queue's subsystem."""
    size = PAYLOAD_AT + len(body)
    header = HEADER.pack(size, (SUBSYSTEM_QUEUE << 8) | kind, flags, 0, 0)
    return header + QUEUE_HEADER.pack(FAMILY_UNSPEC, VERSION, queue) + body


def packets(data: bytes) -> Iterator[bytes]:
    """The ids of the packets that a read from the socket tells of. OSError when the kernel refused something."""
    at = 0
    while at + HEADER.size <= len(data):
        size, kind = struct.unpack_from("=IH", data, at)
        if kind == (SUBSYSTEM_QUEUE << 8) | PACKET:
            found = at + PAYLOAD_AT
            while found < at + size:
                length, name = ATTRIBUTE.unpack_from(data, found)
                if name & 0x7FFF == PACKET_HEADER:
                    yield data[found + ATTRIBUTE.size : found + ATTRIBUTE.size + 4]
                    break
                found += (length + 3) & ~3
        elif kind == NETLINK_ERROR:
            error = -struct.unpack_from("=i", data, at + HEADER.size)[0]
            # A packet that it no longer knows: its rule is gone, and with it what was held back.
            if error not in {0, errno.ENOENT}:
                raise OSError(error, "the kernel refused a message to its packet queue")
        at += (size + 3) & ~3


def open_queue(queue: int) -> socket.socket:
    """A socket that gets the ids of the queue's packets. OSError when another process holds it, or there are none."""
    found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    found.bind((0, 0))
    found.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 * RECEIVE_BYTES)
    found.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
    settings = (
        attribute(CONFIG_COMMAND, struct.pack(">BBH", BIND, 0, 0)),
        attribute(CONFIG_PARAMETERS, struct.pack(">IB", 0, COPY_META)),
        attribute(CONFIG_LENGTH_MAX, struct.pack(">I", PACKETS_MAX)),
    )
    for each in settings:
        found.send(message(CONFIG, queue, each, REQUEST_ACKNOWLEDGED))
        list(packets(found.recv(RECEIVE_BYTES)))
    return found


def hold_back(queue: int, delay_s: float, jitter_s: float) -> None:
    """Until standard input closes."""
    kernel = open_queue(queue)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    draw = random.Random(queue).uniform
    held: deque[tuple[float, bytes]] = deque()
    due_at = 0.0
    while True:
        now = time.monotonic()
        while held and held[0][0] <= now:
            verdict = attribute(VERDICT_HEADER, struct.pack(">I", ACCEPT) + held.popleft()[1])
            kernel.send(message(VERDICT, queue, verdict))
        ready = select.select([kernel, sys.stdin], [], [], held[0][0] - now if held else None)[0]
        if sys.stdin in ready:
            return
        if kernel in ready:
            now = time.monotonic()
            for packet in packets(kernel.recv(RECEIVE_BYTES)):
                due_at = max(due_at, now + delay_s + draw(0.0, jitter_s))
                held.append((due_at, packet))


if __name__ == "__main__":
    hold_back(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
