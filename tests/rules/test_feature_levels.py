"""The controller changes levels of features, and clients are told of them (KIP-584, KIP-1022; issue 17)."""

from __future__ import annotations

import pytest

from minikafka.errors import BY_CODE
from minikafka.quorum.image import MetadataImage
from minikafka.quorum.story import happenings
from minikafka.wire.features import (
    FEATURES,
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    finalized,
)
from minikafka.wire.kafka.offer import api_versions
from tests.rules.controller_kit import Cluster

TRANSACTIONS, GROUPS, METADATA = "transaction.version", "group.version", "metadata.version"


def update(cluster: Cluster, *updates: tuple[str, int, int], validate_only: bool = False) -> UpdateFeaturesResponse:
    request = UpdateFeaturesRequest(
        updates=tuple(FeatureUpdate(name=name, level=level, upgrade_type=kind) for name, level, kind in updates),
        validate_only=validate_only,
    )
    return cluster.commit(cluster.controller.update_features(cluster.image, request), request)


def level(cluster: Cluster, name: str = TRANSACTIONS) -> int:
    return finalized(cluster.image.features)[name]


def test_transactions_go_down_and_up_again():
    """A FeatureLevel record each; snapshots have the level, and clients learn it with a newer epoch."""
    cluster = Cluster()
    assert level(cluster) == 2
    before = cluster.image
    assert not update(cluster, (TRANSACTIONS, 1, SAFE_DOWNGRADE)).error_code
    assert level(cluster) == 1
    [found] = happenings(before, cluster.image, "asked")
    assert (found.kind, found.facts) == (
        "feature_level_changed",
        {"feature": TRANSACTIONS, "level": 1, "why": "asked"},
    )
    again = MetadataImage(cluster_id=cluster.image.cluster_id, offset=cluster.image.offset)
    assert again.replay_all(cluster.image.records(), again.offset, 1).features == cluster.image.features
    answers = [api_versions(4, image.features, image.offset) for image in (before, cluster.image)]
    assert answers[0]["finalized_features_epoch"] < answers[1]["finalized_features_epoch"]
    assert not update(cluster, (TRANSACTIONS, 2, UPGRADE)).error_code
    assert level(cluster) == 2


def test_what_changes_nothing_writes_no_record():
    """The level in use, and a dry run."""
    cluster = Cluster()
    before = cluster.image
    assert not update(cluster, (TRANSACTIONS, 2, UPGRADE), (METADATA, FEATURES[METADATA].high, UPGRADE)).error_code
    assert not update(cluster, (TRANSACTIONS, 1, SAFE_DOWNGRADE), validate_only=True).error_code
    assert cluster.image.offset == before.offset


@pytest.mark.parametrize(
    ("name", "wanted", "kind", "why"),
    [
        (TRANSACTIONS, 3, UPGRADE, "only supports versions 1-2"),
        (TRANSACTIONS, 0, UNSAFE_DOWNGRADE, "only supports versions 1-2"),
        (TRANSACTIONS, -1, SAFE_DOWNGRADE, "cannot be less than 0"),
        (TRANSACTIONS, 1, UPGRADE, "without setting the upgrade type to either safe or unsafe downgrade"),
        (TRANSACTIONS, 2, 9, "does not support the given upgrade type"),
        (GROUPS, 0, SAFE_DOWNGRADE, "only supports versions 1-1"),
        (METADATA, FEATURES[METADATA].high - 1, SAFE_DOWNGRADE, "only supports versions"),
        ("kraft.version", 1, UPGRADE, "only supports versions 0-0"),
        ("share.version", 1, UPGRADE, "does not support this feature"),
    ],
)
def test_a_level_that_cannot_be_set_is_refused_by_name(name: str, wanted: int, kind: int, why: str):
    """INVALID_UPDATE_VERSION in Kafka's words, and no other feature of the request is changed."""
    cluster = Cluster()
    response = (
        update(cluster, (TRANSACTIONS, 1, SAFE_DOWNGRADE), (name, wanted, kind))
        if name != TRANSACTIONS
        else (update(cluster, (name, wanted, kind)))
    )
    assert BY_CODE[response.error_code].name == "INVALID_UPDATE_VERSION"
    assert f"Invalid update version {wanted} for feature {name}." in response.error_message
    assert why in response.error_message
    assert level(cluster) == 2


def test_an_upgrade_that_is_called_a_downgrade_is_refused():
    """As Kafka does: the type of the request says what it may do."""
    cluster = Cluster()
    update(cluster, (TRANSACTIONS, 1, SAFE_DOWNGRADE))
    response = update(cluster, (TRANSACTIONS, 2, SAFE_DOWNGRADE))
    assert "Can't downgrade to a newer version." in response.error_message
    assert level(cluster) == 1


def test_a_feature_that_is_named_twice_is_refused():
    """Kafka's protocol has a set here; over /rpc it is a list."""
    cluster = Cluster()
    response = update(cluster, (TRANSACTIONS, 1, SAFE_DOWNGRADE), (TRANSACTIONS, 2, UPGRADE))
    assert "twice" in response.error_message
    assert level(cluster) == 2
