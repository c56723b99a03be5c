"""Why a run may lose what was acknowledged, and what the checker then finds: named, and no broken promise.

Rule for this file: a reason counts only where the scenario's settings really allow it; ``diverged`` is never allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from minikafka.chaos.scenario import UNCLEAN, Scenario
from minikafka.chaos.words import POWER_LOSS
from minikafka.check.findings import (
    AcknowledgedMissingOnReplica,
    Duplicate,
    Finding,
    InconsistentOffsets,
    LostWrite,
    NonmonotonicPoll,
    NonmonotonicSend,
    PollSkip,
    Shifted,
    Unseen,
)

_OF_A_LOG: Final[tuple[type[Finding], ...]] = (
    LostWrite,
    Unseen,
    Shifted,
    InconsistentOffsets,
    NonmonotonicSend,
    NonmonotonicPoll,
    PollSkip,
    AcknowledgedMissingOnReplica,
)
"""What a log that has lost its end shows: others stand in its place, and who had read it reads again."""

_LOOSE: Final[tuple[type[Finding], ...]] = (*_OF_A_LOG, Duplicate)
"""And without idempotence a record may stand there twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why acknowledged records may be gone."""

    meaning: str
    needs: str
    """What the scenario must say for it."""
    holds: Callable[[Scenario], bool]
    kinds: tuple[type[Finding], ...]


def _has_acks(acks: str) -> Callable[[Scenario], bool]:
    return lambda scenario: any(each.acks == acks for each in scenario.load.producers)


def _is_unclean(scenario: Scenario) -> bool:
    topics = scenario.cluster.topics
    return any({**scenario.cluster.settings, **topic.configs}.get(UNCLEAN) == "true" for topic in topics)


def _is_unflushed(scenario: Scenario) -> bool:
    return POWER_LOSS in scenario.faults() and not scenario.cluster.syncs_first


REASONS: Final[Mapping[str, Reason]] = {
    "acks=0": Reason(
        meaning="nobody was asked whether the records arrived",
        needs='a producer with acks = "0"',
        holds=_has_acks("0"),
        kinds=_LOOSE,
    ),
    "acks=1": Reason(
        meaning="the leader acknowledged alone, before any follower had the record",
        needs='a producer with acks = "1"',
        holds=_has_acks("1"),
        kinds=_LOOSE,
    ),
    "unclean-election": Reason(
        meaning="a replica outside the ISR was made leader, as the topic asks for",
        needs=f"{UNCLEAN}=true",
        holds=_is_unclean,
        kinds=_LOOSE,
    ),
    "unflushed": Reason(
        meaning="Kafka acknowledges what lies in the page caches; they lost power together",
        needs=f"a {POWER_LOSS} step, and no log.flush.interval.messages=1",
        holds=_is_unflushed,
        kinds=_LOOSE,
    ),
}


def allowed_kinds(reasons: tuple[str, ...]) -> frozenset[str]:
    """The kinds of finding that these reasons explain."""
    return frozenset(kind.kind for reason in reasons for kind in REASONS[reason].kinds)
