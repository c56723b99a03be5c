"""The audit log (security/audit.py, world/events.py, broker/access.py): what is noted, how often, and who may read it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from minikafka.broker.access import Access
from minikafka.config import BrokerConfig
from minikafka.ports import RequestContext
from minikafka.quorum.image import MetadataImage
from minikafka.security import audit
from minikafka.security.audit import BURST, AuditLimiter
from minikafka.security.authorizer import AclIndex, Action, Caller, Verdict
from minikafka.wire.acls import CLUSTER_NAME, Acl, AclOperation, AclPermission, PatternType, ResourceType
from minikafka.world.events import AuditFile, EventLog

ANN = RequestContext("kafka", "CLIENTS", "10.0.0.7", client_id="shop", principal="User:ann")
ADMIN = RequestContext("http", "CLIENTS", "10.0.0.8", principal="User:admin")
ALTER_CLUSTER = Action(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
READ_ORDERS = Action(AclOperation.READ, ResourceType.TOPIC, "orders")


def access(now: list[float]) -> tuple[Access, list[tuple[str, dict[str, Any]]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    config = BrokerConfig(super_users="User:admin")
    events = lambda kind, /, **facts: found.append((kind, facts))  # noqa: E731
    return Access(config, MetadataImage, events, lambda: now[0]), found


def decide(it: Access, context: RequestContext, *actions: Action) -> bool:
    permit = it.permit(context, "SomeApi")
    assert permit is not None
    return permit.denial(actions) is None


def test_refusals_and_administration_are_noted_with_their_rule():
    """Reading and writing that is allowed is not: it happens thousands of times a second."""
    it, found = access([0.0])
    assert not decide(it, ANN, READ_ORDERS)
    assert decide(it, ADMIN, READ_ORDERS)
    assert decide(it, ADMIN, ALTER_CLUSTER)
    assert [kind for kind, _ in found] == ["request_denied", "request_allowed"]
    denied, allowed = found[0][1], found[1][1]
    assert {**denied, "why": ""} == {
        "api": "SomeApi", "principal": "User:ann", "remote": "10.0.0.7", "listener": "CLIENTS", "client": "shop",
        "operation": "READ", "resource": "TOPIC:orders", "rule": "no ACL applies to the resource", "why": "",
    }  # fmt: skip
    assert (allowed["principal"], allowed["operation"], allowed["resource"]) == (
        "User:admin",
        "ALTER",
        f"CLUSTER:{CLUSTER_NAME}",
    )
    assert allowed["rule"] == "the principal is one of super.users"


def test_the_rule_names_the_acl_that_decided():
    """An administrator sees which entry to change."""
    acl = Acl(
        resource_type=ResourceType.TOPIC, resource_name="ord", pattern_type=PatternType.PREFIXED, principal="User:ann",
        host="*", operation=AclOperation.READ, permission=AclPermission.DENY,
    )  # fmt: skip
    verdict = AclIndex([acl]).verdict(Caller("User:ann", "10.0.0.7"), READ_ORDERS)
    assert audit.rule_text(verdict) == "an ACL denies it: DENY User:ann READ on TOPIC:PREFIXED:ord from *"
    assert len(audit.rule_text(Verdict(True, "x" * 200, acl))) <= 255


def test_a_principal_cannot_fill_the_log_and_others_are_not_affected():
    """Entries that were left out are counted in the next one."""
    now = [0.0]
    it, found = access(now)
    for _ in range(BURST + 100):
        decide(it, ANN, READ_ORDERS)
    assert len(found) == BURST
    assert decide(it, ADMIN, ALTER_CLUSTER)
    assert "left_out" not in found[-1][1]
    now[0] += 1.0
    decide(it, ANN, READ_ORDERS)
    assert found[-1][1]["left_out"] == 100


def test_the_table_of_principals_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """Further principals share one place; what was left out of forgotten ones is still counted."""
    monkeypatch.setattr(audit, "PRINCIPALS_MAX", 3)
    limiter = AuditLimiter()
    for number in range(10):
        assert limiter.admit(f"User:{number}", 0.0) is not None
    assert len(limiter._left) <= 4
    for _ in range(BURST + 5):
        limiter.admit("User:0", 0.0)
    counts = [limiter.admit(f"User:late-{number}", 1000.0) for number in range(3)]
    assert sum(filter(None, counts)) == 6


def test_the_file_is_of_its_owner_and_has_nothing_but_audited_events(tmp_path: Path):
    """A line a decision; texts that clients chose are cut and cannot begin a line of their own."""
    path = tmp_path / "logs" / "audit.jsonl"
    path.parent.mkdir()
    path.touch(0o644)
    file = AuditFile(str(path), "1")
    log = EventLog()
    log.observe(file, only_counts=True)
    log("broker_started", node=1)
    log("request_denied", principal="User:ann", resource='TOPIC:x\n{"seq":9}', client="c" * 9999, password="p")
    log("client_login_failed", remote="10.0.0.7", user="ann")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(each["seq"], each["event"]) for each in lines] == [(1, "request_denied"), (2, "client_login_failed")]
    assert (len(lines[0]["client"]), lines[0]["password"]) == (255, "[hidden]")
    file.close()
    log("request_denied", principal="User:ann")
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2


def test_a_decision_that_cannot_be_written_is_made_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The disk of the audit log is full: its lines have a gap in their numbers, and the broker's log says why."""
    path, log, seen = tmp_path / "audit.jsonl", EventLog(), []
    file = AuditFile(str(path), "1", log.attempt)
    log.observe(file, only_counts=True)
    log.observe(lambda kind, facts: seen.append((kind, facts.get("where"))))

    def is_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("minikafka.world.events.os.write", is_full)
        log("request_denied", principal="User:ann")
    log("request_denied", principal="User:bob")
    file.close()
    assert seen == [("log_not_written", str(path)), ("request_denied", None), ("request_denied", None)]
    assert [json.loads(line)["seq"] for line in path.read_text().splitlines()] == [2]
