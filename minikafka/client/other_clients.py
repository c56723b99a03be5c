"""Settings of other Kafka clients: what they are called here, or why there is none.

Rules for this file: data and sentences only. A name is looked up with underscores for dots, so that Java's and
librdkafka's ``batch.size`` and kafka-python's ``batch_size`` are one entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from minikafka.errors import InvalidConfig
from minikafka.spelling import did_you_mean

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
    "ssl_ca_location": "ssl_cafile",
    "ssl_certificate_location": "ssl_certfile",
    "ssl_key_location": "ssl_keyfile",
    "ssl_truststore_location": "ssl_cafile",
    "ssl_keystore_location": "ssl_certfile",
}
"""Another client's name, with underscores -> the parameter here."""

_RETRIES: Final = "attempts are not counted: a record is retried until delivery_timeout_ms is over; set that instead"
_TOPICS: Final = 'topics are positional arguments: Consumer("orders", "payments", ...)'
_NO_SASL: Final = "this client has no SASL; a client certificate (ssl_certfile) authenticates it"
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
        hint = f"; {_TLS if plain.startswith('ssl_') else _NO_SASL}"
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
