"""Settings of a producer, a consumer and an admin client, with aiokafka's names and Kafka's meaning.

Names of aiokafka that mean nothing here are accepted with aiokafka's default value only. A setting of another Kafka
client is refused with the name that it has here, or with the reason why there is none. A name is looked up with
underscores for dots, so that Java's and librdkafka's ``batch.size`` and kafka-python's ``batch_size`` are one entry.

Rules for this file: data, checks and sentences only; every limit has a reason; a wrong value raises InvalidConfig with
the setting's name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from minikafka.addresses import is_https, parse_bootstrap
from minikafka.client.batches import IN_FLIGHT_MAX
from minikafka.config import MIB
from minikafka.errors import InvalidConfig, InvalidGroupId, UnsupportedCompressionType, did_you_mean
from minikafka.groups.assignors import ASSIGNORS, DEFAULT_STRATEGY, Assignor
from minikafka.types import Address
from minikafka.wire.batch import CODEC_NAMES

CALLED_HERE: Final[Mapping[str, str]] = {
    # kafka-python and Java
    "batch_size": "max_batch_size",
    "max_in_flight_requests": "max_in_flight_requests_per_connection",
    "fetch_max_wait_time_ms": "fetch_max_wait_ms",
    "group": "group_id",
    "bootstrap_server": "bootstrap_servers",
    "broker_list": "bootstrap_servers",
    # confluent-kafka (librdkafka)
    "metadata_broker_list": "bootstrap_servers",
    "batch_num_messages": "max_batch_size",
    "queue_buffering_max_ms": "linger_ms",
    "queue_buffering_max_kbytes": "buffer_memory",
    "queue_buffering_max_messages": "buffer_memory",
    "message_timeout_ms": "delivery_timeout_ms",
    "message_max_bytes": "max_request_size",
    "request_required_acks": "acks",
    "compression_codec": "compression_type",
    "max_in_flight": "max_in_flight_requests_per_connection",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
    "topic_metadata_refresh_interval_ms": "metadata_max_age_ms",
    "reconnect_backoff_ms": "retry_backoff_ms",
    "reconnect_backoff_max_ms": "retry_backoff_max_ms",
    "sasl_username": "sasl_plain_username",
    "sasl_password": "sasl_plain_password",
    "sasl_mechanisms": "sasl_mechanism",
    "ssl_ca_location": "ssl_cafile",
    "ssl_certificate_location": "ssl_certfile",
    "ssl_key_location": "ssl_keyfile",
    "ssl_truststore_location": "ssl_cafile",
    "ssl_keystore_location": "ssl_certfile",
}
"""Another client's name, with underscores -> the parameter here."""

_RETRIES: Final = "attempts are not counted: a record is retried until delivery_timeout_ms is over; set that instead"
_TOPICS: Final = 'topics are positional arguments: Consumer("orders", "payments", ...)'
_LOGIN: Final = (
    "this client logs in with sasl_plain_username and sasl_plain_password, with sasl_oauth_token_provider, or by its "
    "certificate (ssl_certfile)"
)
_TLS: Final = "files for TLS are ssl_cafile, ssl_certfile and ssl_keyfile; for all else give an ssl_context"
_CALLBACK: Final = "send() returns a future of the record's place; await it, or add a callback to it"

REASONS: Final[Mapping[str, str]] = {
    "retries": _RETRIES,
    "message_send_max_retries": _RETRIES,
    "topic": _TOPICS,
    "topics": _TOPICS,
    "dr_cb": _CALLBACK,
    "dr_msg_cb": _CALLBACK,
    "on_delivery": _CALLBACK,
    "enable_partition_eof": "compare position() with end_offsets() instead",
    "enable_auto_offset_store": "set enable_auto_commit=False and call commit() instead",
    "api_version_auto_timeout_ms": "there are no API versions to look for; leave it out",
}
"""Another client's name, with underscores -> why there is no such parameter, and what to do."""


def unknown(name: str, known: Collection[str]) -> InvalidConfig:
    """The error for a parameter that does not exist: it names the right one, if another client's name is known."""
    plain = name.replace(".", "_")
    here = plain if plain in known else CALLED_HERE.get(plain)
    if here in known:
        hint = f"; it is {here} here"
    elif plain in REASONS:
        hint = f"; {REASONS[plain]}"
    elif plain.startswith(("ssl_", "sasl_")):
        hint = f"; {_TLS if plain.startswith('ssl_') else _LOGIN}"
    else:
        hint = did_you_mean(plain, known)
    return InvalidConfig(f"unknown parameter {name}{hint}", setting=name)


def check_positional(client: str, given: Iterable[Any], known: Collection[str]) -> None:
    """Raise InvalidConfig for a dictionary of settings (confluent-kafka), a list of topics, or anything but text."""
    for each in given:
        if isinstance(each, Mapping):
            names = [str(name).replace(".", "_") for name in each]
            here = (name if name in known else CALLED_HERE.get(name, name) for name in names)
            call = ", ".join(f"{name}=..." for name in dict.fromkeys(here))
            raise InvalidConfig(f"settings are keyword arguments, not a dictionary: {client}({call})")
        if client != "Consumer":
            raise InvalidConfig(f"{each!r}: {client} takes keyword arguments only, such as bootstrap_servers=...")
        if not isinstance(each, str):
            raise InvalidConfig(f"{each!r} is no topic; {_TOPICS}")


DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

Bootstrap: TypeAlias = str | Sequence[str]
Serializer: TypeAlias = Callable[[Any], bytes | None]
Deserializer: TypeAlias = Callable[[bytes], Any]
Partitioner: TypeAlias = Callable[[bytes | None, Sequence[int], Sequence[int]], int]
"""(key, all partitions, partitions that have a leader) -> partition: aiokafka's signature."""

Strategy: TypeAlias = str | Assignor | Sequence[str | Assignor]

Settings = TypeVar("Settings")

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class TokenProvider(Protocol):
    """aiokafka's ``AbstractTokenProvider``."""

    async def token(self) -> str:
        """A JWT that does not end at once."""
        ...


NOT_USED_HERE: dict[str, tuple[Any, ...]] = {
    "loop": (None,),
    "api_version": (None, "auto"),
    "connections_max_idle_ms": (540_000,),
    "sasl_kerberos_service_name": ("kafka",),
    "sasl_kerberos_domain_name": (None,),
    "exclude_internal_topics": (True,),
    "consumer_timeout_ms": (200,),
    "client_rack": (None,),
}
"""Parameters of aiokafka's clients without a meaning here, and the values that are accepted for them."""


def build(kind: type[Settings], given: Mapping[str, Any]) -> Settings:
    """``kind(**given)``, where a parameter that only aiokafka knows may stand with its default value.

    Raises InvalidConfig for an unknown name (with the one that is meant, also for names of other clients) and for a
    value that cannot be granted.
    """
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    used: dict[str, Any] = {}
    for name, value in given.items():
        if name in known:
            used[name] = value
        elif name in NOT_USED_HERE:
            if value not in NOT_USED_HERE[name]:
                raise InvalidConfig(f"{name}={value!r}: minikafka has only {NOT_USED_HERE[name][0]!r}", setting=name)
        else:
            raise unknown(name, known)
    return kind(**used)


def _at_least(settings: object, low: int, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise InvalidConfig(f"{name}={value!r}: a whole number of at least {low} is needed", setting=name)


def _one_of(settings: object, name: str, *choices: str) -> None:
    value = getattr(settings, name)
    if value not in choices:
        wanted = " or ".join(choices) if len(choices) == 2 else f"one of {', '.join(choices)}"
        raise InvalidConfig(f"{name}={value!r}: {wanted} is needed", setting=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What all three clients share."""

    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP
    """``host:port`` of some brokers, as one text with commas or a list."""
    client_id: str | None = None
    request_timeout_ms: int = 30_000
    """How long one request may take before its outcome counts as unknown."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    """Pauses between attempts double from the first to the second, with jitter."""
    metadata_max_age_ms: int = 300_000
    """Metadata is requested again after this long without any error (S27)."""
    default_api_timeout_ms: int = 60_000
    """Bound of the calls that are not records: offsets, topics, positions."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """``SSL``: connect with TLS. So do ``https://`` in ``bootstrap_servers`` and each of the four settings ``ssl_...``.
    ``SASL``: send credentials.
    """
    sasl_mechanism: Literal["PLAIN", "OAUTHBEARER"] = "PLAIN"
    """``PLAIN``: user and password (HTTP Basic). ``OAUTHBEARER``: a token."""
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = field(default=None, repr=False)
    sasl_oauth_token_provider: TokenProvider | None = field(default=None, repr=False)
    """Has a coroutine method ``token()`` that returns a JWT; it is called for each request."""
    ssl_context: Any = None
    """An ``SSLContext`` of Python, in place of the three files."""
    ssl_cafile: str | None = None
    """PEM file with the CAs that sign the certificates of brokers; None: the CAs of the system."""
    ssl_certfile: str | None = None
    """PEM file with the client's certificate, for brokers that want one."""
    ssl_keyfile: str | None = None
    """PEM file with the private key; None: it is in ``ssl_certfile``."""

    def __post_init__(self) -> None:
        _one_of(self, "security_protocol", *PROTOCOLS)
        self._check_login()
        if self.ssl_context is not None and (self.ssl_cafile or self.ssl_certfile or self.ssl_keyfile):
            raise InvalidConfig(
                "ssl_context takes the place of ssl_cafile, ssl_certfile and ssl_keyfile; leave one of the two out",
                setting="ssl_context",
            )
        if self.ssl_keyfile and not self.ssl_certfile:
            raise InvalidConfig("ssl_keyfile needs ssl_certfile, the certificate of the key", setting="ssl_keyfile")
        _at_least(self, 1, "request_timeout_ms", "retry_backoff_ms", "metadata_max_age_ms", "default_api_timeout_ms")
        _at_least(self, self.retry_backoff_ms, "retry_backoff_max_ms")
        _ = self.bootstrap

    def _check_login(self) -> None:
        if self.sasl_mechanism not in ("PLAIN", "OAUTHBEARER"):
            raise InvalidConfig(
                f"sasl_mechanism={self.sasl_mechanism!r}: minikafka's clients log in over HTTP, with a password "
                "(PLAIN, also of SCRAM users) or a token (OAUTHBEARER)",
                setting="sasl_mechanism",
            )
        needed = (
            {"sasl_plain_username": self.sasl_plain_username, "sasl_plain_password": self.sasl_plain_password}
            if self.sasl_mechanism == "PLAIN"
            else {"sasl_oauth_token_provider": self.sasl_oauth_token_provider}
        )
        for name, value in needed.items():
            if self.uses_login and not value:
                raise InvalidConfig(
                    f"security_protocol={self.security_protocol} and sasl_mechanism={self.sasl_mechanism} need {name}",
                    setting=name,
                )
            if value and not self.uses_login:
                raise InvalidConfig(
                    f"{name} needs security_protocol=SASL_SSL, or SASL_PLAINTEXT at listeners without TLS",
                    setting="security_protocol",
                )
        if ":" in (self.sasl_plain_username or ""):
            raise InvalidConfig(
                "sasl_plain_username has a colon, which HTTP cannot carry", setting="sasl_plain_username"
            )

    @property
    def uses_login(self) -> bool:
        """Return True if all requests have credentials."""
        return self.security_protocol.startswith("SASL_")

    @property
    def bootstrap(self) -> tuple[Address, ...]:
        """The bootstrap servers as addresses."""
        return parse_bootstrap(self._servers, https=True)

    @property
    def uses_tls(self) -> bool:
        """Return True if all connections are made with TLS."""
        files = self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile
        is_tls = self.security_protocol in ("SSL", "SASL_SSL")
        return is_tls or self.ssl_context is not None or any(files) or is_https(self._servers)

    @property
    def _servers(self) -> str:
        servers = self.bootstrap_servers
        try:
            return servers if isinstance(servers, str) else ",".join(servers)
        except TypeError as error:
            raise InvalidConfig(
                f"bootstrap_servers={servers!r}: HOST:PORT, or a list of these, is needed", setting="bootstrap_servers"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """A producer's settings (S24 to S27); names are aiokafka's, with Kafka's for what aiokafka lacks."""

    acks: int | str = "all"
    """0: no wait; 1: the leader's append; ``all`` or -1: every member of the ISR. Numbers may be text, as in Java."""
    enable_idempotence: bool | None = None
    """None: on if acks is ``all``. With it a retry neither duplicates nor reorders (KIP-98)."""
    compression_type: str | None = None
    """none, gzip, snappy, lz4 or zstd."""
    max_batch_size: int = 1 * MIB
    """Kafka's batch.size: largest batch in bytes before compression. A record that is larger gets a batch of its own. A
    full batch is sent without waiting for ``linger_ms``. (Kafka's default is 16 KiB. Each batch is a request of its
    own here, so larger batches under backlog are what makes a producer fast.)
    """
    linger_ms: int = 5
    max_request_size: int = MIB
    """Largest request and largest record in bytes; a larger record is refused with MessageTooLarge."""
    buffer_memory: int = 32 * MIB
    """Bytes of records accepted and not yet acknowledged; beyond it ``send`` waits."""
    max_block_ms: int = 60_000
    """How long ``send`` waits for metadata and for buffer memory."""
    delivery_timeout_ms: int = 120_000
    """From ``send`` to the last attempt: every future has an answer by then."""
    max_in_flight_requests_per_connection: int = 5
    """Requests at once per broker."""
    max_in_flight_batches: int = 5
    """Batches of one partition that are sent at once, 1 to 5; leaders check their order by the sequences (KIP-98).
    Without idempotence, and in transactions, it is one at a time."""
    partitioner: Partitioner | None = None
    """None: murmur2 of the key, or a sticky partition without a key (S26)."""
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    transactional_id: str | None = None
    """Send records in transactions. Of all producers with the same id only the latest one may write."""
    transaction_timeout_ms: int = 60_000
    """The coordinator aborts a transaction that stays open for longer; brokers limit it by
    ``transaction.max.timeout.ms``."""
    allow_auto_create_topics: bool = True
    """Metadata requests may create a missing topic, if the brokers' auto.create.topics.enable permits it too."""

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        if self.acks not in (0, 1, -1, "all", "0", "1", "-1") or isinstance(self.acks, bool):
            raise InvalidConfig(f"acks={self.acks!r}: one of 0, 1, 'all' is needed", setting="acks")
        if self.enable_idempotence and self.required_acks != -1:
            raise InvalidConfig(f"enable_idempotence needs acks='all', not acks={self.acks}", setting="acks")
        if (self.compression_type or "none") not in CODEC_NAMES:
            raise UnsupportedCompressionType(
                f"compression_type={self.compression_type!r}: one of {', '.join(CODEC_NAMES)} is needed"
            )
        if self.transactional_id == "":
            raise InvalidConfig("transactional_id is empty; leave it out or give a name", setting="transactional_id")
        if self.transactional_id is not None and not self.idempotent:
            raise InvalidConfig(
                f"transactional_id={self.transactional_id!r} needs acks='all' and idempotence",
                setting="transactional_id",
            )
        _at_least(self, 0, "linger_ms", "max_block_ms")
        _at_least(self, 1, "max_batch_size", "buffer_memory", "delivery_timeout_ms", "transaction_timeout_ms")
        _at_least(self, 1, "max_in_flight_requests_per_connection", "max_in_flight_batches")
        if self.max_in_flight_batches > IN_FLIGHT_MAX:
            raise InvalidConfig(
                f"max_in_flight_batches={self.max_in_flight_batches}: at most {IN_FLIGHT_MAX}; a leader remembers no "
                "more batches of a producer",
                setting="max_in_flight_batches",
            )
        # Room for the 61 bytes of a batch's header and a record of some use.
        _at_least(self, 128, "max_request_size")

    @property
    def required_acks(self) -> int:
        """``acks`` as the wire has it: 0, 1 or -1."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def idempotent(self) -> bool:
        """Return True if idempotence is on. None follows acks."""
        return self.required_acks == -1 if self.enable_idempotence is None else self.enable_idempotence


SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_MS = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """A consumer's settings (S27, S35, S36); names are aiokafka's."""

    group_id: str | None = None
    """The group that shares the partitions of the topics subscribed to, and for which offsets are committed."""
    group_protocol: Literal["classic", "consumer"] = "classic"
    """``consumer``: the coordinator assigns, and no rebalance stops all members (KIP-848)."""
    group_remote_assignor: str | None = None
    """With ``group_protocol="consumer"``: the coordinator's assignor (uniform, range); None: its own choice."""
    group_instance_id: str | None = None
    """A static member: it keeps its partitions over a restart within its session (KIP-345)."""
    auto_offset_reset: Literal["earliest", "latest", "none"] = "latest"
    """Where to start without a valid position; ``none`` raises (S35)."""
    max_poll_records: int | None = 500
    """Most records that one ``getmany`` returns (S36); None: no limit."""
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    """A broker answers a fetch at ``fetch_min_bytes`` or after this long."""
    fetch_max_bytes: int = 50 * MIB
    max_partition_fetch_bytes: int = MIB
    """Soft limits per answer and per partition in it: the first batch comes whole."""
    check_crcs: bool = True
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    """Of a group: how often what was read is committed, when records are asked for (S34)."""
    max_poll_interval_ms: int = 300_000
    """An application that asks for no records for so long leaves the group, until it asks again."""
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    """The group goes on without a member that is silent for so long."""
    heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS
    rebalance_timeout_ms: int | None = None
    """How long the group waits for this member to join a rebalance; None: max_poll_interval_ms."""
    partition_assignment_strategy: Strategy = DEFAULT_STRATEGY
    """Assignors by name (range, roundrobin, sticky, cooperative-sticky) or as objects; the favourite first (S30)."""

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        for name in ("group_id", "group_instance_id"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidConfig(f"{name}={value!r}: a str is needed, such as {name}={str(value)!r}", setting=name)
        if self.group_id is not None and not self.group_id:
            raise InvalidGroupId("group_id is empty: give the group a name, or leave it out")
        if self.group_id is None and self.group_instance_id is not None:
            raise InvalidConfig("group_instance_id needs a group_id", setting="group_instance_id")
        _at_least(self, 1, "auto_commit_interval_ms", "max_poll_interval_ms", "session_timeout_ms")
        _at_least(self, 1, "heartbeat_interval_ms")
        if self.rebalance_timeout_ms is not None:
            _at_least(self, 1, "rebalance_timeout_ms")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise InvalidConfig(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms}: less than session_timeout_ms="
                f"{self.session_timeout_ms} is needed, a third of it is usual",
                setting="heartbeat_interval_ms",
            )
        self.assignors()
        self._check_protocol()
        _one_of(self, "auto_offset_reset", "earliest", "latest", "none")
        _one_of(self, "isolation_level", "read_uncommitted", "read_committed")
        _at_least(self, 0, "fetch_min_bytes", "fetch_max_wait_ms")
        _at_least(self, 1, "fetch_max_bytes", "max_partition_fetch_bytes")
        if self.max_poll_records is not None:
            _at_least(self, 1, "max_poll_records")

    def _check_protocol(self) -> None:
        """InvalidConfig, naming a setting that the group's protocol does not have."""
        _one_of(self, "group_protocol", "classic", "consumer")
        if self.group_protocol == "classic":
            if self.group_remote_assignor is not None:
                raise InvalidConfig(
                    'group_remote_assignor needs group_protocol="consumer"; members of the classic protocol have '
                    "partition_assignment_strategy",
                    setting="group_remote_assignor",
                )
            return
        for name, default, instead in (
            ("partition_assignment_strategy", DEFAULT_STRATEGY, "group_remote_assignor"),
            ("session_timeout_ms", SESSION_TIMEOUT_MS, "the brokers' group.consumer.session.timeout.ms"),
            ("heartbeat_interval_ms", HEARTBEAT_INTERVAL_MS, "the brokers' group.consumer.heartbeat.interval.ms"),
        ):
            if getattr(self, name) != default:
                raise InvalidConfig(
                    f'{name} cannot be set with group_protocol="consumer": {instead} decides', setting=name
                )

    def assignors(self) -> tuple[Assignor, ...]:
        """The assignors of ``partition_assignment_strategy``; InvalidConfig for an unknown name."""
        given = self.partition_assignment_strategy
        chosen = [given] if isinstance(given, str) or not isinstance(given, Sequence) else list(given)
        found = tuple(_assignor(each) for each in chosen)
        if not found or len({each.name for each in found}) < len(found):
            raise InvalidConfig(
                "partition_assignment_strategy: at least one assignor is needed, each once",
                setting="partition_assignment_strategy",
            )
        return found


def _assignor(given: str | Assignor) -> Assignor:
    if not isinstance(given, str):
        return given
    found = ASSIGNORS.get(given)
    if found is None:
        raise InvalidConfig(
            f"partition_assignment_strategy={given!r}: one of {', '.join(ASSIGNORS)}, or an Assignor, is needed",
            setting="partition_assignment_strategy",
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig(ClientConfig):
    """An admin client's settings."""

    controller_timeout_ms: int | None = None
    """How long calls wait for the controller, a leader or a coordinator while brokers know no controller: without a
    quorum. None: until ``default_api_timeout_ms``, or the call's own ``timeout_ms``, has passed."""

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        if self.controller_timeout_ms is not None:
            _at_least(self, 1, "controller_timeout_ms")
