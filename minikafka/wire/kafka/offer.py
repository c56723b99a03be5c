"""Which of Kafka's APIs this build speaks, and in which versions; and the answer to ApiVersions.

An API that does not stand here is not advertised, and a request for it closes the connection, as in Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from minikafka.errors import InvalidRequest, UnsupportedVersion
from minikafka.types import Offset
from minikafka.wire.features import FEATURES, finalized
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.schema import api_named
from minikafka.wire.kafka.translate import (
    access,
    cluster,
    consumer_groups,
    fetch,
    groups,
    metadata,
    offsets,
    produce,
    topics,
    transactions,
)
from minikafka.wire.kafka.translate.common import Translation

_TRANSLATIONS: tuple[Translation, ...] = (
    produce.PRODUCE,
    fetch.FETCH,
    offsets.LIST_OFFSETS,
    metadata.METADATA,
    groups.OFFSET_COMMIT,
    groups.OFFSET_FETCH,
    groups.FIND_COORDINATOR,
    groups.JOIN_GROUP,
    groups.HEARTBEAT,
    groups.LEAVE_GROUP,
    groups.SYNC_GROUP,
    groups.DESCRIBE_GROUPS,
    groups.LIST_GROUPS,
    groups.DELETE_GROUPS,
    groups.OFFSET_DELETE,
    consumer_groups.CONSUMER_GROUP_HEARTBEAT,
    consumer_groups.CONSUMER_GROUP_DESCRIBE,
    offsets.DELETE_RECORDS,
    produce.INIT_PRODUCER_ID,
    produce.DESCRIBE_PRODUCERS,
    offsets.OFFSET_FOR_LEADER_EPOCH,
    transactions.ADD_PARTITIONS_TO_TXN,
    transactions.ADD_OFFSETS_TO_TXN,
    transactions.END_TXN,
    transactions.WRITE_TXN_MARKERS,
    transactions.TXN_OFFSET_COMMIT,
    transactions.DESCRIBE_TRANSACTIONS,
    transactions.LIST_TRANSACTIONS,
    metadata.DESCRIBE_CLUSTER,
    topics.CREATE_TOPICS,
    topics.DELETE_TOPICS,
    topics.CREATE_PARTITIONS,
    topics.ELECT_LEADERS,
    topics.ALTER_PARTITION_REASSIGNMENTS,
    topics.LIST_PARTITION_REASSIGNMENTS,
    topics.DESCRIBE_TOPIC_PARTITIONS,
    cluster.DESCRIBE_CONFIGS,
    cluster.ALTER_CONFIGS,
    cluster.INCREMENTAL_ALTER_CONFIGS,
    cluster.LIST_CONFIG_RESOURCES,
    access.DESCRIBE_ACLS,
    access.CREATE_ACLS,
    access.DELETE_ACLS,
    access.DESCRIBE_CLIENT_QUOTAS,
    access.ALTER_CLIENT_QUOTAS,
    access.DESCRIBE_USER_SCRAM_CREDENTIALS,
    access.ALTER_USER_SCRAM_CREDENTIALS,
    cluster.DESCRIBE_QUORUM,
    cluster.DESCRIBE_LOG_DIRS,
    cluster.UPDATE_FEATURES,
    cluster.UNREGISTER_BROKER,
)

OFFERS: dict[int, Translation] = {api_named(each.name).key: each for each in _TRANSLATIONS}
"""By Kafka's key. The session itself answers ApiVersions and the APIs of logins."""

API_VERSIONS_KEY = 18
API_VERSIONS_FIRST, API_VERSIONS_LAST = 0, 4

SASL_HANDSHAKE_KEY, SASL_AUTHENTICATE_KEY = 17, 36
OF_THE_SESSION: dict[int, tuple[int, int]] = {
    SASL_HANDSHAKE_KEY: (0, 1),
    API_VERSIONS_KEY: (API_VERSIONS_FIRST, API_VERSIONS_LAST),
    SASL_AUTHENTICATE_KEY: (0, 2),
}
"""First and last version of the APIs that a session of Kafka's protocol answers itself."""

LEVEL_0_SINCE = 4
"""Version of ApiVersions whose readers accept a supported feature with the level 0 (KAFKA-17492)."""

_SOFTWARE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-.]{0,254}[A-Za-z0-9])?")
"""Names and versions of clients' libraries (KIP-511)."""


def api_versions(version: int, recorded: Mapping[str, int], epoch: Offset) -> Message:
    """The answer to ApiVersions.

    Args:
        version: Of the request; one that is offered.
        recorded: Levels of features in the metadata log.
        epoch: A number that grows with each change of them. Clients take levels only from newer ones.
    """
    ranges = [
        (key, each.first if each.advertised_first is None else each.advertised_first, each.last)
        for key, each in OFFERS.items()
    ]
    ranges.extend((key, *versions) for key, versions in OF_THE_SESSION.items())
    return {
        "error_code": 0,
        "api_keys": [
            {"api_key": key, "min_version": first, "max_version": last} for key, first, last in sorted(ranges)
        ],
        "supported_features": [
            {"name": name, "min_version": each.low, "max_version": each.high}
            for name, each in FEATURES.items()
            if each.low or version >= LEVEL_0_SINCE
        ],
        "finalized_features_epoch": epoch,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level}
            for name, level in finalized(recorded).items()
        ],
    }


def api_versions_refused() -> Message:
    """The answer, in version 0, to ApiVersions in a version that is not offered: the client asks again."""
    return {
        "error_code": UnsupportedVersion.code,
        "api_keys": [
            {"api_key": API_VERSIONS_KEY, "min_version": API_VERSIONS_FIRST, "max_version": API_VERSIONS_LAST}
        ],
    }


def software_of(message: Message) -> str:
    """Name and version of the client's library; empty when it does not say. Raises InvalidRequest for odd ones."""
    name, version = message["client_software_name"], message["client_software_version"]
    for each in (name, version):
        if each and _SOFTWARE.fullmatch(each) is None:
            raise InvalidRequest(f"{each[:80]!r} is no name or version of a client's library (KIP-511)")
    return f"{name} {version}".strip()
