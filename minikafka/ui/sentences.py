"""Each event as the replay page shows it: its sentence and reason, how grave it is, and the arrow that it draws.

Sentences of events are in ``minikafka/events.py``; here are those of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from minikafka.events import ERROR, WARNING, level_of, offsets, what_of, why_of
from minikafka.types import NO_NODE
from minikafka.ui.journal import Entry

Facts = Mapping[str, Any]
Tone = Literal["", "good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Arrow:
    """A message between two lanes."""

    source: str
    target: str
    label: str
    fate: str
    """``sent``, ``arrived``, ``lost``, ``held``, ``reset``."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """An event in words."""

    what: str
    why: str = ""
    tone: Tone = ""
    arrow: Arrow | None = None


def sentence_of(entry: Entry, partition: str, *, draws_effects: bool) -> Sentence:
    """The event in words. ``draws_effects``: messages were not recorded, so what they brought about draws the arrow."""
    if entry.kind == "message_sent":
        return _message(entry.facts, partition)
    kind, facts = entry.kind, entry.facts
    arrow = _arrow(entry) if draws_effects else None
    return Sentence(what_of(kind, facts), why_of(kind, facts), tone_of(kind, facts), arrow)


def names(nodes: Iterable[object]) -> str:
    """``{1,2,3}``"""
    return "{" + ",".join(map(str, nodes)) + "}"


def counted(records: int) -> str:
    """``1 record``, ``2 records``."""
    return "1 record" if records == 1 else f"{records} records"


def called(node: str) -> str:
    """``broker 2`` for ``n2`` and ``2``; a client by its name."""
    digits = node.removeprefix("n")
    return f"broker {digits}" if digits.isdigit() else node or "a client"


# ---- events ----------------------------------------------------------------------------------------------------------

TONES: Final[Mapping[str, Tone]] = {
    **dict.fromkeys(("became_leader", "broker_unfenced", "hw_advanced", "isr_expanded", "session_unfenced"), "good"),
    **dict.fromkeys(
        (
            "clock_jumped",
            "fetch_diverged",
            "fetch_refused",
            "isr_changed",
            "isr_proposal_failed",
            "isr_proposal_refused",
            "log_restarted",
            "log_truncated",
            "produce_attempt_failed",
            "session_fenced",
        ),
        "warn",
    ),
    **dict.fromkeys(
        (
            "became_leaderless",
            "broker_fenced",
            "delivery_failed",
            "fetch_corrupt",
            "leader_lost",
            "link_clogged",
            "link_cut",
            "node_isolated",
            "node_killed",
            "node_paused",
            "node_power_cut",
            "violation",
        ),
        "bad",
    ),
}
"""Kinds whose tone does not follow from their level: the page shows what a partition gains or loses."""

WITHOUT_PARTITION: Final = frozenset(
    {
        "broker_failed",
        "broker_fenced",
        "broker_registered",
        "broker_started",
        "broker_unfenced",
        "broker_unregistered",
        "clock_jumped",
        "controller_activated",
        "data_directory_closed",
        "data_directory_opened",
        "fetch_failed",
        "isr_proposal_failed",
        "link_clogged",
        "link_cut",
        "links_healed",
        "links_released",
        "node_isolated",
        "node_killed",
        "node_paused",
        "node_power_cut",
        "node_resumed",
        "node_started",
        "quorum_leader_elected",
        "request_failed",
        "session_fenced",
        "session_lost",
        "session_unfenced",
        "violation",
    }
)
"""Events that concern every partition; others that name none are not shown."""


def tone_of(kind: str, facts: Facts) -> Tone:
    """How grave an event is for a partition."""
    if kind == "follower_hw_changed" and facts["new"] < facts["old"]:
        return "warn"
    is_lost = facts.get("below_high_watermark") or (kind == "leader_elected" and facts.get("clean") is False)
    if is_lost or (kind == "produce_attempt_failed" and facts.get("final")):
        return "bad"
    level = level_of(kind, facts)
    return TONES.get(kind) or ("bad" if level >= ERROR else "warn" if level >= WARNING else "")


def _arrow(entry: Entry) -> Arrow | None:
    """What an event shows of a message, where messages were not recorded."""
    facts: Facts = entry.facts
    if entry.kind == "follower_fetched":
        return Arrow(str(facts["replica"]), entry.node, f"fetch from {facts['offset']}", "arrived")
    if entry.kind != "batch_appended":
        return None
    base, end = facts["base"], facts["end"]
    if "leader" in facts:
        return Arrow(str(facts["leader"]), entry.node, offsets(base, end), "arrived")
    return Arrow("a producer", entry.node, counted(end - base), "arrived")


# ---- messages --------------------------------------------------------------------------------------------------------

FATE_WORDS: Final = {"lost": "lost on the way", "reset": "the connection broke", "held": "held back on the way"}


def _message(facts: Facts, partition: str) -> Sentence:
    part: Facts = facts["parts"].get(partition, {})
    api, fate = str(facts["api"]), str(facts["fate"])
    source, target = str(facts["source"]), str(facts["target"])
    label = _request_label(api, part) if facts["what"] == "request" else _answer_label(api, part)
    verb = "→" if facts["what"] == "request" else "answers"
    lead = f"{called(source)} {verb} {called(target)}: {label}"
    if fate != "sent":
        return Sentence(f"{lead}, {FATE_WORDS[fate]}", "a fault on the link", "bad", Arrow(source, target, label, fate))
    tone: Tone = "warn" if "error" in part or "diverging" in part else ""
    why = f"{called(target)} asked, in {api} call {facts['call']}" if facts["what"] == "answer" else ""
    return Sentence(lead, why, tone, Arrow(source, target, label, fate))


def _request_label(api: str, part: Facts) -> str:
    if api == "Produce":
        acks = {-1: "all"}.get(part["acks"], part["acks"])
        return f"produce {counted(part['records'])}, acks={acks}"
    if api == "AlterPartition":
        return f"wants ISR {names(part['isr'])}"
    who = "" if part["replica"] != NO_NODE else "consumer: "
    return f"{who}fetch from {part['offset']}"


def _answer_label(api: str, part: Facts) -> str:
    if "error" in part:
        return str(part["error"])
    if api == "Produce":
        return f"appended at {part['base']}" + (" before" if part.get("duplicate") else "")
    if api == "AlterPartition":
        return f"ISR is {names(part['isr'])}"
    if "diverging" in part:
        epoch, end = part["diverging"]
        return f"logs part: epoch {epoch} ends at {end}"
    records = offsets(part["base"], part["end"]) if "end" in part else "nothing new"
    return f"{records}, HW {part['hw']}"
