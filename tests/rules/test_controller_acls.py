"""The controller creates and deletes access control entries."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from minikafka.broker.api.acls import AclApi
from minikafka.config import BrokerConfig
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.errors import InvalidRequest, PolicyViolation, SecurityDisabled
from minikafka.quorum import administration as rule
from minikafka.quorum.image import MetadataImage
from minikafka.quorum.story import happenings
from minikafka.wire.acls import (
    Acl,
    AclFilter,
    AclOperation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    PatternType,
    ResourceType,
)
from tests.rules.controller_kit import Cluster


def acl(name: str, operation: AclOperation = AclOperation.READ) -> Acl:
    return Acl(resource_type=ResourceType.TOPIC, resource_name=name, principal="User:alice", operation=operation)


def create(cluster: Cluster, *acls: Acl) -> CreateAclsResponse:
    request = CreateAclsRequest(creations=acls)
    return cluster.commit(cluster.controller.create_acls(cluster.image, request, cluster.ids), request)


def delete(cluster: Cluster, *filters: AclFilter) -> DeleteAclsResponse:
    request = DeleteAclsRequest(filters=filters)
    return cluster.commit(cluster.controller.delete_acls(cluster.image, request), request)


def names(cluster: Cluster) -> list[str]:
    return sorted(each.resource_name for each in cluster.image.acl_index)


def test_created_entries_are_in_the_image():
    """The response names the metadata offset at which every broker has them."""
    cluster = Cluster()
    response = create(cluster, acl("a"), acl("b"))
    assert [each.error_code for each in response.results] == [0, 0]
    assert response.metadata_offset == cluster.image.offset
    assert names(cluster) == ["a", "b"]


def test_an_entry_that_exists_is_created_again_without_a_record():
    """Kafka: success, also for equal entries of one request."""
    cluster = Cluster()
    create(cluster, acl("a"), acl("a"))
    before = cluster.image.offset
    assert [each.error_code for each in create(cluster, acl("a")).results] == [0]
    assert cluster.image.offset == before
    assert names(cluster) == ["a"]


def test_an_invalid_entry_does_not_stop_the_others():
    """Each entry has a result of its own, in the order of the request."""
    cluster = Cluster()
    response = create(cluster, acl("a"), acl(""), acl("b"))
    assert [each.error_code for each in response.results] == [0, InvalidRequest.code, 0]
    assert names(cluster) == ["a", "b"]


def test_an_id_that_is_in_use_is_not_given_again():
    """A second record with the id would stop every broker."""
    cluster = Cluster()
    request = CreateAclsRequest(creations=(acl("a"), acl("b")))
    decision = cluster.controller.create_acls(cluster.image, request, iter(["x", "x", "y"]))
    cluster.commit(decision, request)
    assert sorted(cluster.image.acls) == ["x", "y"]


def test_filters_delete_what_they_match():
    """Two filters that match the same entry both report it; it is removed once."""
    cluster = Cluster()
    create(cluster, acl("a"), acl("b"), acl("b", AclOperation.WRITE))
    response = delete(cluster, AclFilter(resource_name="b"), AclFilter(operation=AclOperation.WRITE))
    assert [len(each.matching_acls) for each in response.filter_results] == [2, 1]
    assert response.metadata_offset == cluster.image.offset
    assert names(cluster) == ["a"]


def test_a_filter_of_unknown_numbers_deletes_nothing():
    """The other filters of the request are applied."""
    cluster = Cluster()
    create(cluster, acl("a"), acl("b"))
    response = delete(cluster, AclFilter(pattern_type=PatternType.UNKNOWN), AclFilter(resource_name="a"))
    assert [each.error_code for each in response.filter_results] == [InvalidRequest.code, 0]
    assert names(cluster) == ["b"]


def test_more_deletions_than_a_batch_holds_are_refused(monkeypatch: pytest.MonkeyPatch):
    """Nothing is deleted."""
    monkeypatch.setattr(rule, "REMOVALS_MAX", 1)
    cluster = Cluster()
    create(cluster, acl("a"), acl("b"))
    with pytest.raises(PolicyViolation):
        delete(cluster, AclFilter())
    assert names(cluster) == ["a", "b"]


def test_an_entry_counts_once_for_each_filter_that_matches_it(monkeypatch: pytest.MonkeyPatch):
    """The response has it as often: thousands of filters for everything would be a response of gigabytes."""
    monkeypatch.setattr(rule, "REMOVALS_MAX", 4)
    cluster = Cluster()
    create(cluster, acl("a"), acl("b"))
    with pytest.raises(PolicyViolation):
        delete(cluster, AclFilter(), AclFilter(), AclFilter(resource_name="a"))
    assert names(cluster) == ["a", "b"]
    response = delete(cluster, AclFilter(), AclFilter())
    assert [len(each.matching_acls) for each in response.filter_results] == [2, 2]
    assert names(cluster) == []


def test_changes_of_entries_are_events():
    """An operator finds in the log who got which permission, and when it was taken away."""
    cluster = Cluster()
    before = cluster.image
    create(cluster, acl("a"))
    with_acl = cluster.image
    delete(cluster, AclFilter())
    (created,) = happenings(before, with_acl, "why")
    (deleted,) = happenings(with_acl, cluster.image, "why")
    assert (created.kind, deleted.kind) == ("acl_created", "acl_deleted")
    assert created.facts == deleted.facts
    assert created.facts["principal"] == "User:alice"
    assert created.facts["operation"] == "READ"


@pytest.mark.parametrize("authorizer", ["", STANDARD_AUTHORIZER])
def test_without_an_authorizer_no_entry_is_created(authorizer: str):
    """It would have no effect until an operator sets an authorizer, and then a surprising one."""
    reached: list[object] = []
    api = AclApi(BrokerConfig(node_id=1, authorizer_class_name=authorizer), MetadataImage)
    with nullcontext() if authorizer else pytest.raises(SecurityDisabled):
        api.to_controller(reached.append)("request")
    assert reached == (["request"] if authorizer else [])
