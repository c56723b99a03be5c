"""No divergence, no committed record lost: random histories over the real replicas, and bugs that they must catch.

The toy models behind KAFKA-FACTS 10 ("Checked here") said which rules matter; here the product's own classes play, and a
rule that is taken away is found. Two rules are too rarely decisive for chance: they have directed scenarios
(``join_needs_epoch_start``, ``skipped_epochs_forget_remote_ends``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minikafka.invariant import InvariantViolation
from minikafka.lab.scenario import TruncateByHighWatermark
from minikafka.replication import leader as leader_rules
from minikafka.replication.follower import TruncateByLeaderEpoch
from minikafka.replication.leader import LeaderReplica
from tests.rules.replication_histories import History, Violation

STEPS = 120


@pytest.mark.parametrize("seed", range(60))
def test_clean_elections_lose_nothing(seed: int):
    """KAFKA-FACTS 10, invariants 3, 6 to 10, 12; S16: what was below a watermark stays, on every ISR member."""
    History(seed).play(STEPS)


@pytest.mark.parametrize("seed", range(40))
def test_arbitrary_elections_never_diverge(seed: int):
    """KIP-101, KIP-279: with unclean elections records are lost, but the logs agree and become equal."""
    History(seed, clean=False).play(STEPS)


def test_the_histories_reach_what_they_are_to_prove():
    """STYLE 23: a campaign that never truncates proves nothing about truncation."""
    counts: dict[str, int] = {}
    for seed in range(30):
        history = History(seed)
        history.play(STEPS)
        for kind, count in history.counts.items():
            counts[kind] = counts.get(kind, 0) + count
    wanted = {"became_leader", "became_follower", "hw_advanced", "tail_truncated", "isr_shrunk", "isr_expanded"}
    assert wanted <= counts.keys()
    assert counts["tail_truncated"] > 20


def test_the_same_seed_gives_the_same_history():
    """A failure that cannot be repeated cannot be understood."""
    first, second = History(7), History(7)
    first.play(STEPS)
    second.play(STEPS)
    assert first.exposed == second.exposed
    assert first.counts == second.counts


def caught_within(seeds: int, **options: Any) -> str:
    """What the first seed says that does not end well."""
    for seed in range(seeds):
        try:
            History(seed, **options).play(STEPS)
        except (Violation, InvariantViolation) as caught:
            return str(caught)
    return ""


def test_truncation_by_watermark_is_caught():
    """KAFKA-1211: planted bug, as the lab has it."""
    assert "committed" in caught_within(20, truncation=TruncateByHighWatermark())


def ignore_the_isr(current: int, *, own_end: int, **_: object) -> int:
    return max(current, own_end)


def no_divergence(_role: LeaderReplica, _offset: int, _epoch: int) -> None:
    return None


def without_the_epochs_name(_rule: object, log: Any, leaders: Any) -> int:
    return min(leaders.end_offset, log.end_offset)


def proposed_only(role: LeaderReplica) -> tuple[int, ...]:
    return role.isr if role.proposal is None else role.proposal.isr


def join_at_once(role: LeaderReplica, node: int) -> bool:
    return role.remotes[node].end_offset >= 0


@pytest.mark.parametrize(
    "owner, name, planted, seeds, told",
    [
        (leader_rules, "high_watermark_after", ignore_the_isr, 5, "lacks what"),
        (LeaderReplica, "maximal_isr", property(proposed_only), 40, ""),
        (LeaderReplica, "may_join", join_at_once, 60, "lacks what"),
        (TruncateByLeaderEpoch, "on_diverging", without_the_epochs_name, 40, "never become equal"),
    ],
    ids=["watermark ignores the ISR", "maximal ISR ignored", "joins below the watermark", "KIP-101 without KIP-279"],
)
def test_a_rule_that_is_taken_away_is_missed(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, planted: Callable[..., Any], seeds: int, told: str
):
    """STYLE 22: a check that cannot fail proves nothing."""
    monkeypatch.setattr(owner, name, planted)
    found = caught_within(seeds)
    assert found, f"{name} is broken, and {seeds} seeds do not notice"
    assert told in found


def test_without_the_divergence_check_logs_differ(monkeypatch: pytest.MonkeyPatch):
    """KIP-595: the leader's comparison of epochs is what makes a follower's log a prefix of the leader's."""
    monkeypatch.setattr(LeaderReplica, "diverging", no_divergence)
    assert caught_within(10)
