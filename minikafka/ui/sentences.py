"""Each event as a sentence, with why it happened (DESIGN D9), how grave it is, and the arrow that it draws.

Rules for this file: a reason is what the rule itself went by, taken from the event's facts; an event without a sentence
of its own is shown by its name and facts, so that nothing is hidden for want of words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

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
    say = SAY.get(entry.kind)
    what = say(entry.facts, entry) if say is not None else Sentence(_plainly(entry))
    return what if draws_effects or what.arrow is None else Sentence(what.what, what.why, what.tone)


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


def offsets(base: int, end: int) -> str:
    """Offsets of ``[base, end)`` in words."""
    return f"offset {base}" if end == base + 1 else f"offsets {base} to {end - 1}"


def _plainly(entry: Entry) -> str:
    facts = ", ".join(f"{name}={value}" for name, value in entry.facts.items() if name != "partition")
    return entry.kind.replace("_", " ") + (f": {facts}" if facts else "")


# ---- replication -----------------------------------------------------------------------------------------------------


def _appended(facts: Facts, entry: Entry) -> Sentence:
    base, end = facts["base"], facts["end"]
    where = offsets(base, end)
    if "leader" in facts:
        what = f"appends {where} of epoch {facts['epoch']}, as the leader has it"
        arrow = Arrow(str(facts["leader"]), entry.node, where, "arrived")
        return Sentence(what, f"leader {facts['leader']} answered its fetch", arrow=arrow)
    return Sentence(
        f"appends {where} in epoch {facts['epoch']}",
        "a producer's batch",
        arrow=Arrow("a producer", entry.node, counted(end - base), "arrived"),
    )


def _fetched(facts: Facts, entry: Entry) -> Sentence:
    replica, offset = facts["replica"], facts["offset"]
    return Sentence(
        f"learns that replica {replica} has all below {offset}",
        f"replica {replica} asks from offset {offset}: a fetch is the acknowledgement",
        arrow=Arrow(str(replica), entry.node, f"fetch from {offset}", "arrived"),
    )


def _hw_advanced(facts: Facts, _: Entry) -> Sentence:
    ends = ", ".join(f"{node} at {end}" for node, end in facts["remotes"].items() if int(node) in facts["isr"])
    why = f"every member of the ISR {names(facts['isr'])} has all below {facts['new']}" + (f" ({ends})" if ends else "")
    return Sentence(f"high watermark {facts['old']} → {facts['new']}: committed", why, "good")


def _follower_hw(facts: Facts, _: Entry) -> Sentence:
    back = facts["new"] < facts["old"]
    why = "the log was cut below it" if back else "the leader's answer carried it: one round behind the leader"
    return Sentence(f"high watermark {facts['old']} → {facts['new']}", why, "warn" if back else "")


def _truncated(facts: Facts, _: Entry) -> Sentence:
    what = f"cuts its log {facts['old']} → {facts['new']}"
    why = "its log and the leader's part there, by leader epoch"
    if facts.get("below_high_watermark"):
        return Sentence(f"{what}, below its high watermark", why, "bad")
    return Sentence(what, why, "warn")


def _became_leader(facts: Facts, _: Entry) -> Sentence:
    return Sentence(
        f"leads epoch {facts['epoch']}, which begins at offset {facts['leo']}",
        f"the controller's record names it, with the ISR {names(facts['isr'])}",
        "good",
    )


def _became_follower(facts: Facts, _: Entry) -> Sentence:
    return Sentence(
        f"follows broker {facts['leader']} in epoch {facts['epoch']}",
        "the controller's record names that leader; its own log counts from its last epoch on",
    )


def _leaderless(facts: Facts, _: Entry) -> Sentence:
    return Sentence(
        f"has no leader in epoch {facts['epoch']}", "no member of the ISR is alive, by the controller", "bad"
    )


def _isr_proposed(facts: Facts, _: Entry) -> Sentence:
    old, new = set(facts["old"]), set(facts["new"])
    gone, come = sorted(old - new), sorted(new - old)
    why = []
    if gone:
        why.append(f"{names(gone)} has not caught up for replica.lag.time.max.ms")
    if come:
        why.append(f"{names(come)} has reached the high watermark and the start of this epoch")
    return Sentence(
        f"asks for the ISR {names(facts['new'])}, it is {names(facts['old'])}", "; ".join(why) or "recovered"
    )


def _isr_moved(word: str, tone: Tone) -> Callable[[Facts, Entry], Sentence]:
    def say(facts: Facts, _: Entry) -> Sentence:
        by_controller = "leader_epoch" in facts
        what = f"ISR {word}: {names(facts['old'])} → {names(facts['new'])}"
        if by_controller:
            return Sentence(f"controller: {what}", str(facts.get("why", "")), tone)
        return Sentence(what, "the controller has recorded it", tone)

    return say


def _elected(facts: Facts, _: Entry) -> Sentence:
    clean = bool(facts.get("clean", True))
    what = f"controller: broker {facts['leader']} leads epoch {facts['leader_epoch']}, ISR {names(facts['isr'])}"
    if not clean:
        return Sentence(f"{what}: an unclean election", str(facts.get("why", "")), "bad")
    return Sentence(what, str(facts.get("why", "")))


def _leader_lost(facts: Facts, _: Entry) -> Sentence:
    return Sentence(f"controller: nobody leads from epoch {facts['leader_epoch']} on", str(facts.get("why", "")), "bad")


# ---- processes, links ------------------------------------------------------------------------------------------------


def _fixed(what: str, why: str = "", tone: Tone = "") -> Callable[[Facts, Entry], Sentence]:
    return lambda facts, _: Sentence(what, str(facts.get("why", why)), tone)


def _with(template: str, tone: Tone = "", why: str = "") -> Callable[[Facts, Entry], Sentence]:
    def say(facts: Facts, _: Entry) -> Sentence:
        # As a list is written in {..}: a journal that was read back has lists where the run had tuples.
        known = {
            name: names(value) if isinstance(value, (list, tuple)) else value
            for name, value in facts.items()
            if name != "why"
        }
        reason = why or str(facts.get("why", ""))
        return Sentence(template.format_map(_Facts(known)), reason, tone)

    return say


class _Facts(dict[str, Any]):
    """A fact that an older journal lacks is shown as a question mark."""

    def __missing__(self, name: str) -> str:
        return "?"


def _links_healed(_: Facts, entry: Entry) -> Sentence:
    where = f" of {entry.node}" if entry.node else ""
    return Sentence(f"cut links{where} work again")


def _log_opened(facts: Facts, _: Entry) -> Sentence:
    what = f"opens its log: offsets {facts['start']} to {facts['end']}"
    return Sentence(what, "it was closed in good order" if facts.get("clean") else "after a kill: the tail was checked")


def _produce_failed(facts: Facts, _: Entry) -> Sentence:
    final = bool(facts.get("final"))
    return Sentence(
        f"a producer is refused: {facts.get('error')}, outcome {facts.get('outcome')}",
        "it gives up" if final else "it tries again",
        "bad" if final else "warn",
    )


SAY: Final[Mapping[str, Callable[[Facts, Entry], Sentence]]] = {
    "batch_appended": _appended,
    "follower_fetched": _fetched,
    "hw_advanced": _hw_advanced,
    "follower_hw_changed": _follower_hw,
    "tail_truncated": _truncated,
    "nothing_truncated": _with("has nothing to cut: its log ends at {end}, where the leader's agrees with it"),
    "log_truncated": _truncated,
    "log_restarted": _with("empties its log, which starts at {new} now", "warn", "the leader's log starts beyond it"),
    "log_opened": _log_opened,
    "log_start_raised": _with("its log starts at {start} now"),
    "segments_deleted": _with("deletes {count} segments, its log starts at {start}", "", "retention"),
    "log_compacted": _with(
        "compacts its log: {records_before} records become {records_after}, clean up to {clean_end}",
        "",
        "{dirty_ratio} of it was dirty",
    ),
    "log_uncleanable": _with("leaves its log uncompacted: {why}", "bad"),
    "compaction_put_off": _with("puts compaction off: {why}", "warn"),
    "segment_rolled": _with("begins a new segment at {base}"),
    "torn_tail_dropped": _with("recovery drops {size} bytes: {reason}", "warn"),
    "became_leader": _became_leader,
    "became_follower": _became_follower,
    "became_leaderless": _leaderless,
    "role_given_up": _fixed("gives up its role", "it stops, or the replica moves away"),
    "replica_failed": _with("its replica is offline until it restarts", "bad"),
    "log_failed": _with("the disk failed during {doing}: {error}", "bad"),
    "isr_proposed": _isr_proposed,
    "isr_proposal_ended": _with("its proposal is over, the ISR stays {isr}"),
    "isr_proposal_refused": _with("the controller refuses its proposal: {error}", "warn"),
    "isr_proposal_failed": _with("its proposal did not get through", "warn"),
    "isr_shrunk": _isr_moved("shrinks", "warn"),
    "isr_expanded": _isr_moved("grows", "good"),
    "isr_changed": _isr_moved("changes", "warn"),
    "leader_elected": _elected,
    "leader_lost": _leader_lost,
    "elr_changed": _with("controller: eligible leaders {old} → {new}"),
    "fetch_diverged": _with("tells replica {replica} where their logs part: {end}", "warn", "the epochs differ"),
    "fetch_refused": _with("its fetch is refused: {error}", "warn"),
    "fetch_failed": _with("its fetch from broker {leader} failed", "warn"),
    "fetch_corrupt": _with("gets damaged records from broker {leader}", "bad"),
    "produce_attempt_failed": _produce_failed,
    "delivery_failed": _with("a producer gives up: {error}", "bad"),
    "node_started": _fixed("the process starts"),
    "node_killed": _fixed("kill -9", "a fault, or the end of its process", "bad"),
    "node_power_cut": _fixed("the power is cut: what was not synced may be lost", "a fault", "bad"),
    "node_paused": _fixed("SIGSTOP: the process is held", "a fault", "bad"),
    "node_resumed": _fixed("SIGCONT: the process goes on"),
    "node_isolated": _fixed("is cut off from everybody", "a fault", "bad"),
    "link_cut": _with("everything from it to {target} is lost", "bad", "a fault"),
    "link_clogged": _with("everything from it to {target} is held back", "bad", "a fault"),
    "links_healed": _links_healed,
    "links_released": _with("what was held back goes out: {held} messages"),
    "clock_jumped": _with("its calendar jumps by {seconds} s", "warn", "a fault"),
    "broker_started": _fixed("serves"),
    "data_directory_opened": _with("has opened its data directory: {logs} logs"),
    "data_directory_closed": _fixed("has stopped in good order"),
    "broker_failed": _fixed("stops by itself", tone="bad"),
    "broker_fenced": _with("controller: broker {broker} is fenced", "bad"),
    "broker_unfenced": _with("controller: broker {broker} is unfenced", "good"),
    "broker_registered": _with("controller: broker {broker} has registered, epoch {broker_epoch}"),
    "session_lost": _with("has lost its session with the controller", "warn"),
    "session_fenced": _fixed("learns that it is fenced", tone="warn"),
    "session_unfenced": _fixed("learns that it is unfenced", tone="good"),
    "quorum_leader_elected": _with("leads the metadata quorum in epoch {epoch}", "", "a majority voted for it"),
    "controller_activated": _with("is the active controller, quorum epoch {epoch}"),
    "violation": _with("PROMISE BROKEN: {name}", "bad"),
}
"""Kind -> its sentence. Events without a partition are shown only if they stand here."""


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
