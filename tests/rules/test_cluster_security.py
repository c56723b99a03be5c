"""Settings of a secured cluster on this machine: what its caller sets wins, and nobody loses a super user."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from minikafka.errors import InvalidConfig
from minikafka.hosting.secured import ClusterSecurity, ClusterTls, certificate_folder


@pytest.fixture
def certificates(tmp_path: Path) -> ClusterTls:
    """The certificates of a cluster."""
    return ClusterTls(tmp_path / "certs")


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_super_users_of_the_caller_are_joined_with_those_of_the_cluster(protocol: str, certificates: ClusterTls):
    """Without the cluster's own, brokers could not call each other, nor its clients create topics."""
    security = ClusterSecurity(protocol, {"a": "x"}, lambda: certificates)
    settings = security.broker_settings({"super.users": "User:ops", "sasl.enabled.mechanisms": "PLAIN"})
    own = ["User:admin"] if protocol == "SASL_PLAINTEXT" else ["User:broker", "User:admin"]
    assert settings["super.users"].split(";") == [*own, "User:ops"]
    assert settings["sasl.enabled.mechanisms"] == "PLAIN", "the caller's settings win"
    assert "super.users" not in security.broker_settings({"authorizer.class.name": ""})


def test_password_of_the_admin_is_the_one_that_is_given_or_a_drawn_one(certificates: ClusterTls):
    """And only a login has one."""
    given = ClusterSecurity("SASL_PLAINTEXT", {"admin": "given"}, lambda: certificates)
    assert given.password("admin") == "given"
    drawn = [ClusterSecurity("SASL_PLAINTEXT", {}, lambda: certificates).password("admin") for _ in range(2)]
    assert len({*drawn, ""}) == 3
    with pytest.raises(InvalidConfig, match="no user 'admin', only none"):
        ClusterSecurity("SSL", {}, lambda: certificates).password("admin")


def test_user_without_a_password_is_refused(certificates: ClusterTls):
    """Anybody could log in as it."""
    with pytest.raises(InvalidConfig, match="the user 'a' needs a password"):
        ClusterSecurity("SASL_PLAINTEXT", {"a": ""}, lambda: certificates)


def test_import_error_that_is_a_bug_is_not_taken_for_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise it would send its reader to install what is there."""
    monkeypatch.delitem(sys.modules, "minikafka.hosting.certificates", raising=False)
    monkeypatch.setitem(sys.modules, "minikafka.hosting.cluster_files", None)
    with pytest.raises(ImportError, match="cluster_files"):
        certificate_folder(tmp_path)
