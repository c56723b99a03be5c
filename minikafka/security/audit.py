"""What the audit log has of decisions, and how often: a rule without a clock; ``now_s`` is monotonic.

Every refusal is noted, and every administrative operation that was allowed. A client can cause refusals as often as it
likes, so each principal has BURST entries and PER_S more each second; the next entry counts what was left out.
"""

from __future__ import annotations

from minikafka.security.authorizer import Action, Verdict
from minikafka.wire.acls import AclOperation, AclPermission, PatternType, ResourceType

ADMINISTRATIVE = frozenset({AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.ALTER_CONFIGS})
"""Operations that are noted when they are allowed."""

BURST = 50
PER_S = 5.0
PRINCIPALS_MAX = 1000
TEXT_SIZE_MAX = 255
OTHERS = ""
"""Stands for all principals beyond PRINCIPALS_MAX."""


def resource_text(action: Action) -> str:
    """``TOPIC:orders``, cut where it is too long."""
    return f"{ResourceType(action.resource_type).name}:{action.resource_name}"[:TEXT_SIZE_MAX]


def rule_text(verdict: Verdict) -> str:
    """The reason of a decision, with the ACL that decided."""
    acl = verdict.acl
    if acl is None:
        return verdict.reason
    kind, pattern = ResourceType(acl.resource_type).name, PatternType(acl.pattern_type).name
    what = f"{AclPermission(acl.permission).name} {acl.principal} {AclOperation(acl.operation).name}"
    return f"{verdict.reason}: {what} on {kind}:{pattern}:{acl.resource_name} from {acl.host}"[:TEXT_SIZE_MAX]


class AuditLimiter:
    """Which entries are written, by principal."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float, int]] = {}
        """Entries that are left, when that was, and how many were left out since the last entry."""
        self._carried = 0
        """Left out of principals that are no longer here."""

    def admit(self, principal: str, now_s: float) -> int | None:
        """How many entries were left out before this one; None: this one is left out too."""
        if principal not in self._left and len(self._left) >= PRINCIPALS_MAX:
            self._forget(now_s)
            if len(self._left) >= PRINCIPALS_MAX:
                principal = OTHERS
        left, at, left_out = self._left.get(principal, (float(BURST), now_s, 0))
        left = min(float(BURST), left + (now_s - at) * PER_S)
        if left < 1:
            self._left[principal] = left, now_s, left_out + 1
            return None
        carried, self._carried = self._carried, 0
        self._left[principal] = left - 1, now_s, 0
        return left_out + carried

    def _forget(self, now_s: float) -> None:
        for principal, (left, at, left_out) in list(self._left.items()):
            if left + (now_s - at) * PER_S >= BURST:
                self._carried += left_out
                del self._left[principal]
