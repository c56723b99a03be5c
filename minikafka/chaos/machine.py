"""What root can do to this machine: run its commands, fail system calls, cut the power of disks, and filter packets.

Commands (:func:`run`): one that fails is an error with its own words; none may take forever.

System calls of a running process that fail or take long (:class:`Injection`): strace injects that. Nothing of the
process changes but what the call returns and when. When strace ends, for whatever reason, the kernel detaches it, and
the calls are the process's own again.

Disks that can lose power (:class:`Mounts`): an ext4 file system in a file, mounted where only this run sees it::

    with Mounts() as mounts:
        disk = mounts.make(image, folder, size_mib=64)     # processes see it that are started with mounts.prefix
        disk.die()                                         # all that is not synced is gone, every write fails
        disk.revive()                                      # when nobody has a file of it open

Power is lost by ext4's own ioctl (EXT4_IOC_SHUTDOWN in fs/ext4/ioctl.c), which ends the file system without writing its
journal; what the page cache holds is dropped when it is unmounted. So a file comes back as of its last sync, as after a
real power cut, but for torn sectors: there are none. Mounts are made in a mount namespace of a child that ends with
this process, so that the kernel unmounts everything and frees the loop devices, however this process ends.

Packets that reach and leave one network namespace, that of a host of ours or of a container (:class:`PacketRules`):
iptables, and a process that delays some of them (``packet_delay.py``). All rules are in one table, which is replaced as
a whole; they name the sender or the receiver of a packet by its address.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from minikafka.chaos import packet_delay
from minikafka.chaos.scenario import Hit
from minikafka.config import MIB
from minikafka.errors import WorldError
from minikafka.faults import DELAY, LOSS

ADMIN_RIGHTS: Final = (1 << 21) | (1 << 12)
"""CAP_SYS_ADMIN and CAP_NET_ADMIN of linux/capability.h."""

COMMAND_TIMEOUT_S: Final = 20.0


def forbidden(deed: str) -> str | None:
    """Why this process may not do what takes all of root's rights, as a sentence; None: it may."""
    if sys.platform != "linux":
        return f"only Linux can {deed}"
    if os.geteuid() != 0:
        return f"only root may {deed}"
    status = Path("/proc/self/status").read_text(encoding="ascii")
    rights = int(status.partition("CapEff:")[2].split()[0], 16)
    if rights & ADMIN_RIGHTS != ADMIN_RIGHTS:
        return f"root here may not {deed}: it lacks CAP_SYS_ADMIN or CAP_NET_ADMIN, as in a container"
    return None


def missing(needs: Mapping[str, str]) -> str | None:
    """What is not installed of ``needs`` (command -> the package that has it, on Debian), in words; None: nothing."""
    absent = [f"{command} (package {package})" for command, package in needs.items() if shutil.which(command) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def run(*command: str, data: str = "", timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """What a command of the system printed. WorldError with its own words when it fails."""
    try:
        done = subprocess.run(  # noqa: S603
            command, input=data, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError as error:
        raise WorldError(f"{command[0]} is not installed here") from error
    except subprocess.TimeoutExpired as error:
        raise WorldError(f"{' '.join(command)}: not done in {timeout_s:.0f} s") from error
    if done.returncode:
        raise WorldError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


SYNCS: Final = "fsync,fdatasync"


def why_no_injection() -> str | None:
    """Why no call can be changed here, as a sentence; None: it can."""
    return forbidden("change the system calls of any process") or missing({"strace": "strace"})


class Injection:
    """Syncs of one process and of its threads are changed from the construction until :meth:`close`."""

    def __init__(self, pid: int, *, delay_s: float = 0.0, fails_next: bool = False) -> None:
        """``delay_s``: every sync takes so much longer; ``fails_next``: the next one of each thread fails with EIO."""
        effects = [f"delay_enter={round(delay_s * 1_000_000)}"] if delay_s else []
        if fails_next:
            effects += ["error=EIO", "when=1"]
        inject = ":".join([f"inject={SYNCS}", *effects])
        # Its words go to its standard error: first that it has attached, then each changed call, which nobody reads.
        command = ["strace", "-f", "-p", str(pid), "-e", f"trace={SYNCS}", "-e", inject]
        self._process = subprocess.Popen(  # noqa: S603
            [*command, "-o", os.devnull],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        line = self._process.stderr.readline() if self._process.stderr is not None else b""
        if b" attached" not in line:
            self.close()
            raise WorldError(f"strace cannot attach to process {pid}: {line.decode(errors='replace').strip()}")

    def close(self) -> None:
        """Let the process go."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


SHUTDOWN: Final = 0x8004587D
"""EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32)."""
WITHOUT_JOURNAL: Final = struct.pack("I", 2)
"""EXT4_GOING_FLAGS_NOLOGFLUSH."""

LAID_OUT: Final = ("-E", "lazy_itable_init=0,lazy_journal_init=0")
BALLAST: Final = "ballast"
BALLAST_BYTES_MIN: Final = 4096
UNMOUNT_TIMEOUT_S: Final = 20.0
BUSY_PAUSE_S: Final = 0.05

NEEDS: Final[Mapping[str, str]] = {
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
    "umount": "mount",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
"""Command -> the package that has it, on Debian."""


def why_no_mounts() -> str | None:
    """Why no disk can be made here, as a sentence; None: it can."""
    if (reason := forbidden("mount a disk") or missing(NEEDS)) is not None:
        return reason
    return None if Path("/dev/loop-control").exists() else "this kernel has no loop devices"


class Mounts:
    """A mount namespace of this run's own. Use it with ``with``, or close it."""

    def __init__(self) -> None:
        self._disks: list[LoopDisk] = []
        # It says when it is there, and ends when the pipe to it closes.
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; read -r end"],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if self._holder.stdout is None or not self._holder.stdout.readline():
            self.close()
            raise WorldError("no mount namespace can be made")

    @property
    def prefix(self) -> tuple[str, ...]:
        """What must stand before a command that is to see the disks; the process keeps its id and working directory."""
        return ("nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", f"--wd={Path.cwd()}")

    def seen_from_here(self, path: Path) -> Path:
        """Where this process finds a path of a disk; while the mounts are open."""
        return Path(f"/proc/{self._holder.pid}/root{path.absolute()}")

    def make(self, image: Path, folder: Path, size_mib: int) -> LoopDisk:
        """A new disk, mounted on ``folder``; ``image`` grows with each write. WorldError."""
        with image.open("wb") as file:
            file.truncate(size_mib * MIB)
        # Nothing reserved for root, and everything laid out now: no thread of the kernel does it later.
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=8", "-N", "4096", *LAID_OUT, str(image))
        folder.mkdir(parents=True, exist_ok=True)
        disk = LoopDisk(self, image, folder)
        disk.mount()
        self._disks.append(disk)
        return disk

    def close(self) -> None:
        """Unmount everything. A process that still uses it keeps it until it ends."""
        for disk in self._disks:
            disk.close()
        self._disks.clear()
        for pipe in (self._holder.stdin, self._holder.stdout):
            if pipe is not None:
                pipe.close()
        self._holder.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoopDisk:
    """One disk; :meth:`Mounts.make` makes it."""

    def __init__(self, mounts: Mounts, image: Path, folder: Path) -> None:
        self._mounts = mounts
        self.image = image
        self.folder = folder.absolute()
        """Where processes with the mounts' prefix see it."""
        self._is_mounted = False

    @property
    def here(self) -> Path:
        """Where this process sees it."""
        return self._mounts.seen_from_here(self.folder)

    def mount(self) -> None:
        """Mount it, which replays its journal. WorldError."""
        run(*self._mounts.prefix, "mount", "-o", "loop,noatime", str(self.image), str(self.folder))
        self._is_mounted = True

    def sync(self) -> None:
        """What was written so far survives a power loss."""
        run(*self._mounts.prefix, "sync", "--file-system", str(self.folder))

    def die(self) -> None:
        """Power is lost: nothing more reaches the disk, every write and sync fails with EIO."""
        descriptor = os.open(self.here, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, WITHOUT_JOURNAL)
        finally:
            os.close(descriptor)

    def revive(self) -> None:
        """Power is back. Processes that had files open must have ended; WorldError when not."""
        self.unmount()
        self.mount()

    def fill(self) -> int:
        """Leave no room, by one file of ballast; its size in bytes."""
        descriptor = os.open(self.here / BALLAST, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size, step = os.fstat(descriptor).st_size, 64 * MIB
            while step >= BALLAST_BYTES_MIN:
                try:
                    os.posix_fallocate(descriptor, size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2
                else:
                    size += step
            return size
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Throw the ballast off."""
        (self.here / BALLAST).unlink(missing_ok=True)

    def unmount(self) -> None:
        """WorldError when a process still has a file of it open after UNMOUNT_TIMEOUT_S."""
        if not self._is_mounted:
            return
        deadline = time.monotonic() + UNMOUNT_TIMEOUT_S
        while True:
            try:
                run(*self._mounts.prefix, "umount", str(self.folder))
                break
            except WorldError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(BUSY_PAUSE_S)
        self._is_mounted = False

    def close(self) -> None:
        """Unmount it, and remove its image: an image that a process still writes to goes when that process ends."""
        with suppress(WorldError):
            self.unmount()
        self.image.unlink(missing_ok=True)


# ---- packets ---------------------------------------------------------------------------------------------------------


QUEUES_MAX: Final = 65_535
"""Numbers of NFQUEUE's queues are 16 bits."""

RULES_NEED: Final[Mapping[str, str]] = {"iptables-restore": "iptables", "nsenter": "util-linux"}
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
        """Release all packets that are held back; the rules stay until the namespace goes."""
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
