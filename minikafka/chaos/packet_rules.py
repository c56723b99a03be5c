"""What becomes of packets that reach and leave one network namespace: iptables, and a process that holds some back.

Rules for this file: one table of rules, which is replaced as a whole; what it says of a packet's sender or receiver is
an address. The namespace may be that of a host of ours or of a container.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minikafka.chaos import packet_delay
from minikafka.chaos.machine import run
from minikafka.chaos.scenario import Hit
from minikafka.errors import WorldError
from minikafka.faults import DELAY, LOSS

QUEUES_MAX: Final = 65_535
"""Numbers of NFQUEUE's queues are 16 bits."""

NEEDS: Final[Mapping[str, str]] = {"iptables-restore": "iptables", "nsenter": "util-linux"}
"""Command -> the package that has it, on Debian."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What becomes of packets on one passage; several may hold, the first that takes the packet counts."""

    drops: bool = False
    """None passes."""
    refuses_calls: bool = False
    """No connection can be begun this way; one that the target began works."""
    loses: float = 0.0
    """Share of packets that vanish; TCP sends them again."""
    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Up to so much more; the order is kept."""


Rule = tuple[str, Filter]
"""The other end's address, and what becomes of its packets."""


def filter_of(hit: Hit) -> Filter:
    """What a fault of links does to packets."""
    strike = hit.strike
    if hit.what == DELAY:
        return Filter(delay_s=strike.delay_s, jitter_s=strike.jitter_s)
    return Filter(loses=strike.share) if hit.what == LOSS else Filter(drops=True)


class PacketRules:
    """The rules of one namespace; ``prefix`` must stand before a command that is to run in it."""

    def __init__(self, prefix: Sequence[str]) -> None:
        self.prefix = tuple(prefix)
        self._delays: dict[Filter, _Delay] = {}
        self._text = ""

    def set(self, incoming: Iterable[Rule], outgoing: Iterable[Rule] = ()) -> None:
        """What becomes of packets from and to these addresses: this, and nothing that was set before. WorldError."""
        wanted = [("INPUT -s", *each) for each in sorted(incoming, key=repr)]
        wanted += [("OUTPUT -d", *each) for each in sorted(outgoing, key=repr)]
        slow = dict.fromkeys(each for _, _, each in wanted if each.delay_s)
        for each in slow:
            if each not in self._delays:
                self._delays[each] = _Delay(self.prefix, each, self._free_queue())
        text = rules_text(wanted, {each: self._delays[each].queue for each in slow})
        if text != self._text:
            run(*self.prefix, "iptables-restore", data=text)
            self._text = text
        for each in [each for each in self._delays if each not in slow]:
            self._delays.pop(each).close()

    def _free_queue(self) -> int:
        taken = {each.queue for each in self._delays.values()}
        return next(number for number in range(QUEUES_MAX) if number not in taken)

    def close(self) -> None:
        """Nobody holds packets back any more; the rules stay until the namespace goes."""
        for each in self._delays.values():
            each.close()
        self._delays.clear()


def rules_text(wanted: Iterable[tuple[str, str, Filter]], queues: Mapping[Filter, int]) -> str:
    """What iptables-restore is to read. ``wanted``: chain and direction, address, what becomes of the packets;
    ``queues``: of those that delay.
    """
    drops, slow = [], []
    for where, address, each in wanted:
        packets = f"-A {where} {address}"
        if each.drops:
            drops.append(f"{packets} -j DROP")
        if each.refuses_calls:
            drops.append(f"{packets} -p tcp --syn -j DROP")
        if each.loses:
            drops.append(f"{packets} -m statistic --mode random --probability {each.loses:.4f} -j DROP")
        if each.delay_s:
            # Passed on at once by the kernel when the one who holds them back has died.
            slow.append(f"{packets} -j NFQUEUE --queue-num {queues[each]} --queue-bypass")
    return "\n".join(["*filter", ":INPUT ACCEPT [0:0]", ":OUTPUT ACCEPT [0:0]", *drops, *slow, "COMMIT", ""])


class _Delay:
    """The process that holds packets back; it ends with this one."""

    def __init__(self, prefix: Sequence[str], wanted: Filter, queue: int) -> None:
        self.queue = queue
        script = Path(packet_delay.__file__)
        values = (str(queue), str(wanted.delay_s), str(wanted.jitter_s))
        self._process = subprocess.Popen(  # noqa: S603
            [*prefix, sys.executable, "-IS", str(script), *values],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if self._process.stdout is None or not self._process.stdout.readline():
            self.close()
            raise WorldError("packets cannot be held back here: the kernel gives no NFQUEUE")

    def close(self) -> None:
        """End it; what it held back is lost."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()
