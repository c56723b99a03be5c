"""A Python on Linux that has only what one on macOS has: Python runs this file at its start where PYTHONPATH names its folder.

Names that typeshed gives to Linux alone are removed, paths that macOS has not are not found, the limit of open files is
what a terminal of macOS begins with, and ``sys.platform`` says ``darwin``. Sockets are bound and polled by the rules of
BSD. What a Mac has of its own is played by what Linux has for it: F_FULLFSYNC by fsync, F_GETPATH by the links of
/proc, which only this file may read.
"""

import ctypes
import errno
import fcntl
import functools
import os
import resource
import select
import signal
import socket
import sys
import time
import types
from pathlib import Path

ABSENT = {
    os: (
        "RWF_NOWAIT RWF_APPEND RWF_DSYNC RWF_HIPRI RWF_SYNC O_DIRECT O_LARGEFILE O_NOATIME O_PATH O_RSYNC O_TMPFILE "
        "copy_file_range eventfd eventfd_read eventfd_write fdatasync getrandom getresgid getresuid getxattr listxattr "
        "memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate removexattr sched_getaffinity sched_setaffinity "
        "sched_getparam sched_getscheduler sched_setscheduler setns setresgid setresuid setxattr splice unshare"
    ),
    socket: "AF_NETLINK AF_PACKET SO_BINDTODEVICE SO_MARK SO_DOMAIN SO_PROTOCOL TCP_QUICKACK TCP_USER_TIMEOUT TCP_INFO "
    "TCP_CORK TCP_DEFER_ACCEPT TCP_KEEPIDLE SOCK_CLOEXEC SOCK_NONBLOCK MSG_NOSIGNAL MSG_MORE MSG_ERRQUEUE",
    select: "epoll",
    signal: "SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT sigtimedwait sigwaitinfo",
    fcntl: "F_ADD_SEALS F_GET_SEALS F_GETPIPE_SZ F_SETPIPE_SZ F_GETLEASE F_SETLEASE F_NOTIFY F_OFD_GETLK F_OFD_SETLK",
    resource: "prlimit RLIMIT_NICE RLIMIT_OFILE RLIMIT_RTPRIO RLIMIT_SIGPENDING RUSAGE_THREAD",
    time: "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
    errno: "EBADE EHWPOISON ENOTUNIQ EUCLEAN",
}
LINUX_ONLY = ("/proc/", "/sys/", "/dev/shm/")
F_FULLFSYNC, F_GETPATH = 51, 50
OPEN_MAX, MAXFILES_PER_PROCESS = 10_240, 61_440
INFINITE = (1 << 63) - 1
LISTEN = "0A"


def is_of_linux(path):
    return isinstance(path, str | bytes | os.PathLike) and f"{os.fsdecode(path)}/".startswith(LINUX_ONLY)


def not_found(function):
    """``function`` of ``os``, for which Linux's own folders do not exist."""

    @functools.wraps(function)
    def called(path=".", *arguments, **named):
        if is_of_linux(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return function(path, *arguments, **named)

    return called


def watch(event, arguments):
    if event == "open" and is_of_linux(arguments[0]) and not os.fsdecode(arguments[0]).startswith("/proc/net/tcp"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


def control(descriptor, command, argument=0):
    if command == F_FULLFSYNC:
        return os.fsync(descriptor) or 0
    if command == F_GETPATH:
        path = readlink(f"/proc/self/fd/{descriptor if isinstance(descriptor, int) else descriptor.fileno()}")
        if not path.startswith("/"):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return path.encode().ljust(len(argument), b"\0")
    return linux_control(descriptor, command, argument)


def limit(which):
    soft, hard = linux_limit(which)
    return (soft, INFINITE) if which == resource.RLIMIT_NOFILE else (soft, hard)


def set_limit(which, limits):
    if which == resource.RLIMIT_NOFILE:
        if limits[0] > MAXFILES_PER_PROCESS:
            raise ValueError("current limit exceeds maximum limit")
        limits = (limits[0], hard_limit)
    linux_set_limit(which, limits)


def bind(opened, address):
    if opened.family == socket.AF_UNIX and address[:1] in ("\0", b"\0"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if opened.family != socket.AF_UNIX and opened.type == socket.SOCK_STREAM and address[1]:
        # SO_REUSEADDR lets nobody have a port that another socket is bound to, also if neither listens. A socket without
        # it finds out, but TIME_WAIT hinders that one on Linux.
        with socket.socket(opened.family, opened.type) as tried:
            try:
                linux_bind(tried, address)
            except OSError:
                states = states_of(address[1])
                if not states or LISTEN in states:
                    raise
    return linux_bind(opened, address)


def states_of(port):
    """The states of connections and listeners of a local port, as numbers of linux/tcp_states.h."""
    states = set()
    for name in ("tcp", "tcp6"):
        with Path(f"/proc/net/{name}").open(encoding="ascii") as lines:
            fields = [line.split() for line in lines][1:]
        states |= {each[3] for each in fields if each[1].endswith(f":{port:04X}")}
    return states


class Poll:
    """poll(2) as XNU has it: made of filters, of which there is none for no events, and of no use for terminals."""

    def __init__(self):
        self._poll = linux_poll()
        self._events = {}

    def register(self, descriptor, events):
        self._events[descriptor] = events
        self._poll.register(descriptor, events)

    def poll(self, timeout=None):
        found = [(each, select.POLLNVAL) for each in self._events if os.isatty(each)]
        wanted = any(self._events.values())
        return found or (self._poll.poll(timeout) if wanted else [])


class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("prctl", "malloc_trim"):
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)


for module, names in ABSENT.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

linux_control, fcntl.fcntl = fcntl.fcntl, control
fcntl.F_FULLFSYNC, fcntl.F_GETPATH = F_FULLFSYNC, F_GETPATH

linux_bind, socket.socket.bind = socket.socket.bind, bind
linux_poll, select.poll = select.poll, Poll
readlink = os.readlink
for name in ("access", "listdir", "lstat", "readlink", "scandir", "stat", "statvfs"):
    setattr(os, name, not_found(getattr(os, name)))
sys.addaudithook(watch)

linux_limit, resource.getrlimit = resource.getrlimit, limit
linux_set_limit, resource.setrlimit = resource.setrlimit, set_limit
hard_limit = linux_limit(resource.RLIMIT_NOFILE)[1]
if os.environ.pop("MACOS_BEGINS", ""):
    linux_set_limit(resource.RLIMIT_NOFILE, (256, hard_limit))
resource.RLIM_INFINITY = INFINITE

# A module in C, of macOS only: the proxies of the system's settings. There are none.
proxies = types.ModuleType("_scproxy")
proxies._get_proxy_settings = proxies._get_proxies = dict
sys.modules[proxies.__name__] = proxies

ctypes.CDLL = Library
sys.platform = "darwin"
