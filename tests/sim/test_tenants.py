"""The simulator with access control: tenants, their watch, and that the watch reports what it must (SECURITY, issue 18)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minikafka.ports import RequestContext
from minikafka.quorum.image import MetadataImage
from minikafka.sim.run import Run
from minikafka.sim.seeds import tenant_plan_of
from minikafka.sim.tenant_plans import SECRETS, TENANT_CHANGES
from minikafka.sim.tenants import PermissionWatch
from minikafka.wire import messages as m
from minikafka.wire.acls import Acl, AclOperation, AclPermission, ResourceType

WRITE = m.ProduceRequest(partitions=(m.ProducePartition(topic=SECRETS, partition=0, records=()),))
WRITTEN = m.ProduceResponse(partitions=(m.ProducedPartition(topic=SECRETS, partition=0, base_offset=0),))
REFUSED = m.ProduceResponse(partitions=(m.ProducedPartition(topic=SECRETS, partition=0, error_code=29),))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_cluster_with_tenants_passes(seed: int):
    """Permissions, credentials and quotas change under faults; tenants did something, and were refused something."""
    run = Run(tenant_plan_of(seed))
    report = run.run()
    assert report.ok, report.render()
    assert report.marks["done_for_tenants"] > 0
    assert any(event.kind == "request_denied" for event in run.sim.journal)
    assert {fault.kind for fault in run.plan.faults} & set(TENANT_CHANGES)


def image(offset: int, *permissions: AclPermission) -> MetadataImage:
    """ACLs of s1 for WRITE on the topic."""
    acls = {
        str(number): Acl(
            resource_type=ResourceType.TOPIC,
            resource_name=SECRETS,
            principal="User:s1",
            operation=AclOperation.WRITE,
            permission=permission,
        )
        for number, permission in enumerate(permissions)
    }
    return MetadataImage(offset=offset, acls=acls)


class Judged:
    """A watch over one broker, and a cluster of which the test says what is newest."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.newest = image(5, AclPermission.ALLOW)
        self.loop = SimpleNamespace(time=lambda: self.now)
        self.now = 0.0
        cluster: Any = SimpleNamespace(image=lambda: self.newest, sim=SimpleNamespace(loop=self.loop))
        plan = tenant_plan_of(0)
        plan = plan.with_(settings={**plan.settings, "broker.session.timeout.ms": "1000"})
        self.watch = PermissionWatch(plan, cluster, lambda name, _what: self.reports.append(name))

    def judge(self, had: MetadataImage, response: m.ProduceResponse = WRITTEN) -> list[str]:
        broker: Any = SimpleNamespace(node_id=1)
        self.watch._judge(broker, had, RequestContext("rpc", "CLIENTS", "s1", principal="User:s1"), WRITE, response)
        return self.reports


def test_what_no_acl_allows_is_reported():
    """By the metadata that the broker had: a DENY wins, and no entry is a denial. A refusal is never reported."""
    assert Judged().judge(image(5, AclPermission.ALLOW)) == []
    assert Judged().judge(image(5)) == ["acted_without_permission"]
    assert Judged().judge(image(5, AclPermission.ALLOW, AclPermission.DENY)) == ["acted_without_permission"]
    assert Judged().judge(image(5), REFUSED) == []


def test_a_broker_that_acts_by_old_metadata_for_too_long_is_reported():
    """A round later it may; after its session it may not."""
    it = Judged()
    it.judge(image(5, AclPermission.ALLOW))
    it.newest = image(6)
    assert it.judge(image(5, AclPermission.ALLOW)) == []
    it.now = 3.9
    assert it.judge(image(5, AclPermission.ALLOW)) == []
    it.now = 4.1
    assert it.judge(image(5, AclPermission.ALLOW)) == ["revoked_acts_on"]
