"""A cluster on one machine as files: ``DIR/broker-N/broker.properties``, one per broker, and the ports that they name.

Rules for files that stay: ports are taken *before* the voters are written (DESIGN, Risks), and stay taken
(:class:`Ports`): nobody else gets the port of a broker that is down. What stands in the files wins over what is asked
for: a restart finds ports and cluster id again.

Temporary clusters have their files in memory where there is room (:class:`TemporaryFolder`). ``/dev/shm`` is not
cleared before the next boot, and what a killed test run leaves there is memory. So a process that makes a folder, there
or where other temporary files are, first removes those whose owners are dead. Rules for temporary files:

1. An owner holds a lock (flock) on its folder: the kernel releases it when the process ends, however it ends, and no
   number of a process is mistaken for another's, in containers that share the memory neither.
2. A folder gets the name under which it may be swept only when it is locked.
3. Nothing but names of this file is ever touched, and nothing of another user.
"""

from __future__ import annotations

import atexit
import dataclasses
import errno
import fcntl
import functools
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from javaproperties.reading import InvalidUEscapeError, KeyValue, parse
from javaproperties.writing import join_key_value

from minikafka.config import GIB, BrokerConfig, override_of, parse_broker, table
from minikafka.errors import InvalidConfig, in_words
from minikafka.types import Address, NodeId, uuid_text
from minikafka.world.os_disk import LOCK_NAME
from minikafka.world.system import hold_port, sync, sync_folder

MEMORY = Path("/dev/shm")  # noqa: S108 - only mkdtemp makes anything there
"""Linux's files in memory: a file is made thirty times as fast as on many disks, and a cluster begins with forty."""

ROOM_MIN = 1 * GIB
"""Less may be free there (containers have 64 MiB): then temporary files are where they always are."""

NAME: Final = "minikafka-temporary-"
"""What is found under it without an owner is removed: no name that a user would give to a data directory."""
UNLOCKED: Final = "minikafka-new-"


class TemporaryFolder:
    """A new folder for what is thrown away: in memory where there is room, unless TMPDIR says where.

    ``on_disk``: where other temporary files are, also if there is room in memory. What is not removed before goes when
    the interpreter exits.
    """

    def __init__(self, *, on_disk: bool = False) -> None:
        parent = MEMORY
        if on_disk or not _has_room():
            parent = Path(tempfile.gettempdir())
            sweep(parent)
        made = Path(tempfile.mkdtemp(prefix=UNLOCKED, dir=parent))
        self._owner = os.getpid()
        self._lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = made.rename(made.with_name(NAME + made.name.removeprefix(UNLOCKED)))
        atexit.register(self.remove)

    def remove(self) -> None:
        """With everything in it; again, or in a forked child of its owner: nothing happens."""
        if self._lock >= 0 and self._owner == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1
            atexit.unregister(self.remove)


def _has_room() -> bool:
    """Return True if files shall be in memory. What can be freed there is freed first."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK | os.X_OK):
        return False
    sweep(MEMORY)
    return shutil.disk_usage(MEMORY).free >= ROOM_MIN


def sweep(parent: Path) -> None:
    """Remove what dead owners have left in ``parent``."""
    for folder in parent.glob(f"{NAME}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # it has gone meanwhile, or is another user's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its owner lives
        else:
            if os.fstat(lock).st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


LOOPBACK = "127.0.0.1"
PROPERTIES = "broker.properties"

# More than this in one go is a slip of the keyboard: each broker is a process of some 60 MB.
BROKERS_MAX = 50

PORT_MAX = 65_535

KAFKA_PORT = 9092
"""The port that clients try when they are given no address."""

OWNED = frozenset({"node.id", "cluster.id", "controller.quorum.voters", "listeners", "log.dirs"})
"""What makes a broker this broker of this cluster: not to be overridden for all of them alike."""


class Ports:
    """Ports of the loopback interface, held for this process until :meth:`release`."""

    def __init__(self) -> None:
        self._held: dict[int, ExitStack] = {}

    @property
    def held(self) -> frozenset[int]:
        """The ports that are held now."""
        return frozenset(self._held)

    def take(self, port: int = 0, *, advice: str = "choose other ports (--base-port) or another data directory") -> int:
        """Hold ``port``, or any free one for 0. InvalidConfig, ending in ``advice``, if the port is in use."""
        if port in self._held:
            return port
        try:
            taken, self._held[taken] = hold_port(LOOPBACK, port)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise InvalidConfig(
                    f"port {port} of {LOOPBACK} cannot be used ({error.strerror}): stop what listens there, "
                    f"or {advice}",
                    setting="listeners",
                ) from error
            raise
        return taken

    def take_row(self, first: int, count: int) -> bool:
        """Hold ``count`` ports from ``first`` on; False, and then none is held, if one of them is in use."""
        try:
            for port in range(first, first + count):
                self.take(port)
        except InvalidConfig:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Let the ports go."""
        for held in self._held.values():
            held.close()
        self._held.clear()


@dataclass(frozen=True)
class BrokerFiles:
    """One broker of the cluster, as its file says."""

    node_id: NodeId
    path: Path
    """Its ``broker.properties``."""
    address: Address
    settings: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def clients(self) -> Address:
        """The address of the listener of clients; that of brokers, if they share one."""
        return self.config().clients_listener.address

    @property
    def log_path(self) -> Path:
        """Where the process's standard error goes."""
        return self.folder / "broker.log"

    def config(self) -> BrokerConfig:
        """The checked settings; InvalidConfig."""
        return self._config

    @functools.cached_property
    def _config(self) -> BrokerConfig:
        return parse_broker(self.settings).config

    def owned(self) -> dict[str, str]:
        """The settings that no environment variable may change."""
        return {name: value for name, value in self.settings.items() if name in OWNED}


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """The brokers in order of their node ids."""

    brokers: tuple[BrokerFiles, ...]
    cluster_id: str
    notice: str = ""
    """A sentence for the user: why a new cluster did not get the preferred ports."""

    @property
    def bootstrap(self) -> str:
        """``host:port`` of all brokers, with commas."""
        return ",".join(str(broker.address) for broker in self.brokers)

    @property
    def clients_bootstrap(self) -> str:
        """``host:port`` of the listeners of clients of all brokers, with commas."""
        return ",".join(str(broker.clients) for broker in self.brokers)

    @property
    def voters(self) -> str:
        return voters_text({broker.node_id: broker.address for broker in self.brokers})


def voters_text(voters: Mapping[NodeId, Address]) -> str:
    """``controller.quorum.voters`` for these nodes."""
    return ",".join(f"{node}@{address}" for node, address in sorted(voters.items()))


def new_cluster_id() -> str:
    """16 random bytes as Kafka prints a UUID: 22 characters, none of them a leading dash."""
    while True:
        text = uuid_text(os.urandom(16))
        if not text.startswith("-"):
            return text


def prepare(
    data_dir: Path,
    ports: Ports,
    *,
    brokers: int | None = None,
    base_port: int = 0,
    preferred_port: int = 0,
    config: Mapping[str, str],
    protocol: str = "",
) -> ClusterFiles:
    """The cluster of ``data_dir``: as its files say, else newly written with ``brokers`` brokers (default 3).

    ``config`` goes into each broker's file, also of an existing cluster. ``base_port`` is broker 1's port and the
    others follow; 0: a new cluster gets the ports from ``preferred_port`` on if all of them are free, else any free
    ones. ``protocol``: that of clients, for which ``config`` has what it needs; with a SASL protocol each broker has a
    listener BROKERS, and one CLIENTS on any free port. Empty: that of the files, or PLAINTEXT. Raises InvalidConfig,
    and then nothing was written.
    """
    config = _as_text(config)
    for name in sorted(OWNED & config.keys()):
        raise InvalidConfig(f"{name} is set for each broker by itself: leave it out", setting=name)
    if brokers is not None and (type(brokers) is not int or not 1 <= brokers <= BROKERS_MAX):
        raise InvalidConfig(f"brokers={brokers!r}: a number from 1 to {BROKERS_MAX} is needed")
    found = _existing(data_dir)
    if found:
        if brokers is not None and brokers != len(found):
            raise InvalidConfig(
                f"{data_dir} holds a cluster of {len(found)} broker{'s' * (len(found) != 1)}: start it with so many "
                "(`minikafka join` adds one while it runs), or choose another directory"
            )
        own = found[0].config()
        _check_majority(data_dir, found)
        used = own.protocol_of(own.clients_listener.name)
        if protocol and protocol != used:
            raise InvalidConfig(
                f"clients connect to the brokers in {data_dir} with {used}, not {protocol}: start them with "
                f"security_protocol='{used}', or choose another directory"
            )
        cluster = _adopt(found, ports, base_port=base_port, config=config)
    else:
        count, notice = brokers or 3, ""
        if preferred_port and not base_port:
            if ports.take_row(preferred_port, count):
                base_port = preferred_port
            else:
                row = f"{preferred_port} to {preferred_port + count - 1}" if count > 1 else f"{preferred_port}"
                notice = f"the default port range ({row}) is in use, so the brokers listen on other ports"
        cluster = _lay_out(
            data_dir, ports, brokers=count, base_port=base_port, config=config, protocol=protocol or "PLAINTEXT"
        )
        cluster = dataclasses.replace(cluster, notice=notice)
    write(cluster)
    return cluster


def _as_text(config: Mapping[str, object]) -> dict[str, str]:
    """Settings as they stand in a file; Python's numbers and truths are taken too: ``{"num.partitions": 3}``."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in config.items()}


def write(cluster: ClusterFiles) -> None:
    """Write all brokers' files. Raises InvalidConfig, and then nothing was written."""
    for broker in cluster.brokers:
        broker.config()
    for broker in cluster.brokers:
        _write(broker)


def join(
    data_dir: Path, *, node_id: NodeId, cluster_id: str, voters: str, port: int = 0, config: Mapping[str, str]
) -> BrokerFiles:
    """Write the files of one more broker, which is no voter, for a cluster that runs; what is there is used again.

    ``port`` 0: any free one. Raises InvalidConfig, and then nothing was written.
    """
    for name in sorted(OWNED & config.keys()):
        raise InvalidConfig(f"{name} is set by itself: leave it out", setting=name)
    folder = data_dir.absolute() / f"broker-{node_id}"
    path = folder / PROPERTIES
    known = read_properties(path) if path.exists() else {}
    if known and known.get("cluster.id") != cluster_id:
        raise InvalidConfig(
            f"{path} is of cluster {known.get('cluster.id')}, this is {cluster_id}: choose another directory"
        )
    ports = Ports()
    try:
        taken = parse_broker(known).config.listener.port if known else ports.take(port, advice="choose another --port")
    finally:
        ports.release()
    settings = {
        "cluster.id": cluster_id,
        "node.id": str(node_id),
        "process.roles": "broker",
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{LOOPBACK}:{taken}",
        "log.dirs": str(folder),
    }
    broker = BrokerFiles(node_id, path, Address(LOOPBACK, taken), {**known, **config, **settings})
    broker.config()
    _write(broker)
    return broker


def _existing(data_dir: Path) -> list[BrokerFiles]:
    found: dict[NodeId, BrokerFiles] = {}
    # Absolute, as in a new cluster: `serve` with this file must find the same folder from wherever it is called.
    for path in sorted(data_dir.absolute().glob(f"broker-*/{PROPERTIES}")):
        settings = read_properties(path)
        if "node.id" not in settings:
            # By its default it would be another broker, the only voter of a new cluster: a power loss left it empty.
            raise InvalidConfig(f"{path} has no node.id: restore the file, or choose another directory")
        parsed = parse_broker(settings).config
        node = parsed.node_id
        if node in found:
            raise InvalidConfig(f"{found[node].path} and {path} both have node.id={node}: remove the copy")
        found[node] = BrokerFiles(node, path, parsed.listener, settings)
    return [found[node] for node in sorted(found)]


def read_properties(path: Path) -> dict[str, str]:
    """The settings of a ``.properties`` file (Java's rules: escapes, continuations, ISO-8859-1).

    Raises InvalidConfig when a name stands there twice: Java would silently take the last one.
    """
    try:
        entries = list(parse(path.read_text(encoding="iso-8859-1")))
    except (OSError, InvalidUEscapeError) as error:
        raise InvalidConfig(f"{path}: cannot be read: {in_words(error)}") from error
    settings: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, KeyValue):
            if entry.key in settings:
                raise InvalidConfig(f"{path}: {entry.key} stands there twice; keep one of the lines", setting=entry.key)
            settings[entry.key] = entry.value
    return settings


def _check_majority(data_dir: Path, found: list[BrokerFiles]) -> None:
    """Raise InvalidConfig if these brokers can never elect a controller: a first start was interrupted, say."""
    voters = found[0].config().voters
    lacking = sorted(voters.keys() - {each.node_id for each in found})
    if 2 * len(lacking) >= len(voters) > 1:
        folders = ", ".join(f"broker-{node}" for node in lacking)
        raise InvalidConfig(
            f"{data_dir} lacks {folders} of a cluster with {len(voters)} voters, so no controller can be elected: "
            "restore what is missing, or choose another directory"
        )


def _adopt(found: list[BrokerFiles], ports: Ports, *, base_port: int, config: Mapping[str, str]) -> ClusterFiles:
    if base_port and found[0].address.port != base_port:
        raise InvalidConfig(
            f"the cluster in {found[0].folder.parent} has its ports already, from {found[0].address.port}: leave out"
            " --base-port, or choose another directory"
        )
    brokers = []
    for broker in found:
        for address in {broker.address, broker.clients}:
            try:
                ports.take(address.port, advice="choose another data directory (a cluster keeps its ports)")
            except InvalidConfig as error:
                if not _is_in_use(broker.folder):
                    raise
                raise InvalidConfig(
                    f"broker {broker.node_id} of the cluster in {broker.folder.parent} is running already, at"
                    f" {broker.clients}: use it, or stop it first"
                ) from error
        # The folder may have been moved or copied since.
        moved = {"log.dirs": str(broker.folder)}
        brokers.append(BrokerFiles(broker.node_id, broker.path, broker.address, {**broker.settings, **config, **moved}))
    return ClusterFiles(tuple(brokers), brokers[0].settings.get("cluster.id", ""))


def _is_in_use(folder: Path) -> bool:
    """Return True if a broker holds the lock of this data directory."""
    try:
        with (folder / LOCK_NAME).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it has none, or the file system has no locks
        return False
    return False


def _lay_out(
    data_dir: Path, ports: Ports, *, brokers: int, base_port: int, config: Mapping[str, str], protocol: str
) -> ClusterFiles:
    last = base_port + brokers - 1
    if last > PORT_MAX:
        raise InvalidConfig(
            f"--base-port {base_port}: {brokers} brokers need the ports up to {last}; {PORT_MAX} is the last there is",
            setting="listeners",
        )
    nodes = range(1, brokers + 1)
    addresses = {node: Address(LOOPBACK, ports.take(base_port + node - 1 if base_port else 0)) for node in nodes}
    clients = {node: Address(LOOPBACK, ports.take()) for node in nodes} if protocol.startswith("SASL_") else None
    return lay_out(data_dir, addresses, config=config, protocol=protocol, clients=clients)


def lay_out(
    data_dir: Path,
    addresses: Mapping[NodeId, Address],
    *,
    config: Mapping[str, str],
    logs: str = "",
    protocol: str = "PLAINTEXT",
    clients: Mapping[NodeId, Address] | None = None,
) -> ClusterFiles:
    """The files of a new cluster, unwritten; each broker is a voter and a controller.

    ``logs``: a folder below each broker's own for its logs alone, a disk say. ``clients``: addresses of a listener
    CLIENTS beside the listener BROKERS; ``config`` has the protocols of both.
    """
    cluster_id = new_cluster_id()
    files = []
    for node, address in sorted(addresses.items()):
        folder = data_dir.absolute() / f"broker-{node}"
        settings = {
            "cluster.id": cluster_id,
            "node.id": str(node),
            "process.roles": "broker,controller",
            "controller.quorum.voters": voters_text(addresses),
            "listeners": f"BROKERS://{address},CLIENTS://{clients[node]}" if clients else f"{protocol}://{address}",
            "log.dirs": str(folder / logs),
            **config,
        }
        files.append(BrokerFiles(node, folder / PROPERTIES, address, settings))
    return ClusterFiles(tuple(files), cluster_id)


def _write(broker: BrokerFiles) -> None:
    """Write the broker's file if it is not so already."""
    unknown = [name for name in broker.settings if name not in table(BrokerConfig) and override_of(name) is None]
    lines = [f"# Broker {broker.node_id}. Start it by itself: minikafka serve {shlex.quote(str(broker.path))}"]
    lines += [f"# {name} means nothing to minikafka" for name in unknown]
    lines += [join_key_value(name, value) for name, value in broker.settings.items()]
    # Values are escaped; the comments have the path, which may be in any script.
    text = ("\n".join(lines) + "\n").encode("iso-8859-1", "backslashreplace")
    if broker.path.exists() and broker.path.read_bytes() == text:
        return
    replace_file(broker.path, text)


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write the file and make it durable: a power failure leaves the file before or this one, and no part of it.

    Folders that are missing are made. Passwords of PLAIN, or private keys, may be in it: ``mode`` is that of its first
    byte.
    """
    missing = [each for each in path.parents if not each.exists()]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(content)
            file.flush()
            sync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    # The names, too: that of the file, and those of the folders that were made for it.
    for folder in (path.parent, *(each.parent for each in missing)):
        sync_folder(folder)
