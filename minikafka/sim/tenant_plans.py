"""What a seed draws about access control: tenants at a checked listener, and what administrators permit meanwhile.

Tenants send whatever they can think of, permitted or not (``tenants.py``). Targets of the changes: ``s1:WRITE:ALLOW``
creates this entry for the topic of tenants, ``s1:*:*`` as ``revoke`` deletes all entries of a tenant; ``s1:7`` gives it
another password, ``s1:2000`` a quota in bytes a second.

Rules for this file: it draws, nothing here runs.
"""

from __future__ import annotations

from random import Random
from typing import Final

from minikafka.sim.plan import Plan, PlannedTopic, fault_at

TENANTS: Final = ("s1", "s2")
SECRETS: Final = "secrets"
"""The topic of tenants. What they write there is in no history."""

GRANT, REVOKE, SET_PASSWORD, SET_QUOTA = "grant", "revoke", "set_password", "set_quota"
TENANT_CHANGES: Final = (GRANT, REVOKE, SET_PASSWORD, SET_QUOTA)
"""Kinds of what administrators do about tenants."""

AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OPERATIONS: Final = ("WRITE", "WRITE", "READ", "READ", "ALL", "ALTER")
"""ALTER is of the cluster, all others are of the topic."""


def with_tenants(plan: Plan, random: Random) -> Plan:
    """Tenants, and changes of what they may do."""
    faults = []
    for _ in range(random.randint(12, 24)):
        at_s, tenant = random.uniform(0.1, plan.duration_s), random.choice(TENANTS)
        kind = random.choice((GRANT, GRANT, GRANT, REVOKE, REVOKE, SET_PASSWORD, SET_QUOTA))
        target = tenant
        if kind == GRANT:
            target = f"{tenant}:{random.choice(OPERATIONS)}:{random.choice(('ALLOW', 'ALLOW', 'DENY'))}"
        elif kind == SET_PASSWORD:
            target = f"{tenant}:{random.randint(1, 9)}"
        elif kind == SET_QUOTA:
            target = f"{tenant}:{random.choice((500, 5000))}"
        faults.append(fault_at(at_s, kind, target))
    return plan.with_(
        settings={**plan.settings, "authorizer.class.name": AUTHORIZER, "super.users": "User:admin"},
        topics=(*plan.topics, PlannedTopic(name=SECRETS, partitions=1, replication_factor=3)),
    ).with_faults(faults)


def has_tenants(plan: Plan) -> bool:
    """Return True if the plan is about access control."""
    return any(topic.name == SECRETS for topic in plan.topics)
