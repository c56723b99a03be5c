"""The catalogue of events: what can happen in a cluster, with the facts, the sentence and the level of each event.

A rule or driver reports an event through the Events port by name, with facts. Everything that shows events reads them
here: the log and its levels, ``explain`` and ``/v1``, the replay page, and journals of tests.

Rules for this file:

1. A sentence says what happened at the broker that reports it; the reason is the one that the rule itself went by.
2. A fact that an older journal lacks is shown as ``?``. An event without an entry is shown by its name and facts.
3. ``fields`` are the facts that every report of the event has; reports may have more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from minikafka.types import NO_NODE

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

Facts: TypeAlias = Mapping[str, Any]
Text: TypeAlias = str | Callable[[Facts], str]
"""A template with the names of facts in braces, or a function of the facts."""


@dataclass(frozen=True, slots=True)
class EventKind:
    """One line of the catalogue."""

    name: str
    fields: tuple[str, ...]
    sentence: Text
    level: int
    reason: Text

    def what(self, facts: Facts) -> str:
        """The event as a clause, without its reason."""
        return _filled(self.sentence, facts)

    def why(self, facts: Facts) -> str:
        """The reason: the one of this kind, else the fact ``why``, else nothing."""
        return _filled(self.reason, facts) if self.reason else str(facts.get("why") or "")


def what_of(name: str, facts: Facts) -> str:
    """An event as a clause without its reason."""
    kind = CATALOGUE.get(name)
    if kind is not None:
        return kind.what(facts)
    shown = ", ".join(f"{fact}={value}" for fact, value in facts.items() if fact != "partition")
    return name.replace("_", " ") + (f": {shown}" if shown else "")


def why_of(name: str, facts: Facts) -> str:
    """The reason of an event; empty if none is known."""
    kind = CATALOGUE.get(name)
    return kind.why(facts) if kind is not None else ""


def sentence_of(name: str, facts: Facts) -> str:
    """An event and its reason as one sentence."""
    why = why_of(name, facts)
    return what_of(name, facts) + (f": {why}" if why else "")


class _Shown(dict[str, Any]):
    """Facts as a template shows them. A journal that was read back has lists where the run had tuples."""

    def __init__(self, facts: Facts) -> None:
        super().__init__({name: list(each) if isinstance(each, tuple) else each for name, each in facts.items()})

    def __missing__(self, name: str) -> str:
        return "?"


def _filled(text: Text, facts: Facts) -> str:
    shown = _Shown(facts)
    return text.format_map(shown) if isinstance(text, str) else text(shown)


# ---- sentences that depend on their facts ----------------------------------------------------------------------------


def offsets(base: int, end: int) -> str:
    """The offsets of ``[base, end)`` in words."""
    return f"offset {base}" if end == base + 1 else f"offsets {base} to {end - 1}"


def _appended(facts: Facts) -> str:
    what = f"appends {offsets(facts['base'], facts['end'])}"
    return f"{what} of epoch {facts['epoch']}" if "leader" in facts else f"{what} in epoch {facts['epoch']}"


def _why_appended(facts: Facts) -> str:
    return f"leader {facts['leader']} answered its fetch" if "leader" in facts else "a producer's batch"


def _why_advanced(facts: Facts) -> str:
    ends = ", ".join(f"broker {node} up to {end}" for node, end in facts["remotes"].items() if end >= 0)
    return f"the leader has all below it, and so does every member of the ISR {facts['isr']}" + (
        f" (acknowledged: {ends})" if ends else ""
    )


def _why_followed(facts: Facts) -> str:
    back = facts["new"] < facts["old"]
    return "the log was cut below it" if back else "the leader's answer carried it: one round behind the leader"


def _truncated(facts: Facts) -> str:
    if facts["new"] >= facts["old"]:
        return "nothing was cut"
    below = ", below its high watermark" if facts.get("below_high_watermark") else ""
    return f"the log was cut from {facts['old']} to {facts['new']}{below}"


def _diverged(facts: Facts) -> str:
    epoch, end = facts["end"]
    return f"the log of replica {facts['replica']} parted from the leader's, in which epoch {epoch} ends at {end}"


def _elected(facts: Facts) -> str:
    before = "where no broker led" if facts["old"] == NO_NODE else f"in place of broker {facts['old']}"
    return (
        f"broker {facts['leader']} became the leader in epoch {facts['leader_epoch']} with the ISR {facts['isr']}, "
        f"{before}" + ("" if facts.get("why") else _unclean(facts))
    )


def _why_elected(facts: Facts) -> str:
    return f"{facts['why']}{_unclean(facts)}" if facts.get("why") else ""


def _unclean(facts: Facts) -> str:
    return "" if facts.get("clean", True) else ", in an unclean election: records that were committed may be gone"


def _why_isr(facts: Facts) -> str:
    """Without a leader epoch the event is the partition leader's, who learns what the controller has recorded."""
    return str(facts.get("why") or "") if "leader_epoch" in facts else "the controller has recorded it"


def _why_proposed(facts: Facts) -> str:
    old, new = set(facts["old"]), set(facts["new"])
    gone, come = sorted(old - new), sorted(new - old)
    why = [f"{gone} has not caught up for replica.lag.time.max.ms"] if gone else []
    why += [f"{come} has reached the high watermark and the start of this epoch"] if come else []
    return "; ".join(why)


def _opened_after(facts: Facts) -> str:
    return "it was closed in good order" if facts.get("clean") else "after a kill: the tail was checked"


_PROTOCOLS = {"kafka": "Kafka protocol", "rpc": "HTTP", "http": "HTTP"}


def _produce_refused(facts: Facts) -> str:
    named = f"producer {facts['client_id']!r}" if facts.get("client_id") else "a producer"
    known = [facts["software"]] if facts.get("software") else []
    known += [_PROTOCOLS[facts["protocol"]]] if facts.get("protocol") in _PROTOCOLS else []
    client = f"{named} ({', '.join(known)})" if known else named
    return f"{client} was answered {facts['error']} ({facts['outcome']})"


def _retries(facts: Facts) -> str:
    return "the producer gives up" if facts.get("final") else "the producer retries"


def _vote(how: str) -> Text:
    return lambda facts: (
        f"{how} broker {facts['candidate']} a {'pre-vote' if facts['pre_vote'] else 'vote'} "
        f"for quorum epoch {facts['epoch']}"
    )


def _kind(name: str, fields: str, sentence: Text, level: int = INFO, reason: Text = "") -> EventKind:
    return EventKind(name, tuple(fields.split()), sentence, level, reason)


_AS_AGREED = "by leader epoch, that is how far it agrees with the leader's"


def _why_restarted(facts: Facts) -> str:
    """It starts later where the leader has deleted records, earlier where its records are not the leader's."""
    if facts["new"] >= facts["old"]:
        return "the leader's log starts beyond its end"
    return "nothing that it held is in the leader's log"


_KINDS: Final = (
    # ---- replication -------------------------------------------------------------------------------------------------
    _kind("batch_appended", "partition epoch base end", _appended, DEBUG, _why_appended),
    _kind(
        "follower_fetched",
        "partition epoch replica offset",
        "learns that replica {replica} has all below {offset}",
        DEBUG,
        "replica {replica} asks from offset {offset}: a fetch is the acknowledgement",
    ),
    _kind(
        "hw_advanced",
        "partition epoch old new remotes isr",
        "the high watermark went from {old} to {new}",
        DEBUG,
        _why_advanced,
    ),
    _kind(
        "follower_hw_changed",
        "partition epoch old new",
        "the high watermark went from {old} to {new}",
        DEBUG,
        _why_followed,
    ),
    _kind("tail_truncated", "partition epoch old new below_high_watermark", _truncated, WARNING, _AS_AGREED),
    _kind("log_truncated", "partition old new", _truncated, INFO, _AS_AGREED),
    _kind(
        "nothing_truncated",
        "partition epoch end",
        "nothing was cut: the log ends at {end}, where it agrees with the leader's",
        DEBUG,
    ),
    _kind(
        "log_restarted",
        "partition old new",
        "the log was emptied, and starts at {new} now",
        INFO,
        _why_restarted,
    ),
    _kind(
        "became_leader",
        "partition epoch leo hw isr remotes",
        "it took up leadership of epoch {epoch}, which begins at offset {leo}, with the high watermark {hw}",
    ),
    _kind(
        "became_follower",
        "partition epoch leo hw leader",
        "it follows broker {leader} in epoch {epoch}, with a log up to {leo} and the high watermark {hw}",
    ),
    _kind("became_leaderless", "partition epoch", "it learned that nobody leads epoch {epoch}"),
    _kind(
        "replica_sampled",
        "partition epoch start leo hw",
        "its log ends at {leo}, with the high watermark {hw}",
        DEBUG,
        "a sample: what led to it since the sample before is not kept",
    ),
    _kind("role_given_up", "partition epoch", "gives up its role", DEBUG, "it stops, or the replica moves away"),
    _kind("replica_failed", "partition why", "the replica went offline", ERROR),
    _kind("replica_deleted", "partition", "the replica was deleted"),
    _kind(
        "replicas_changed",
        "partition epoch old new adding",
        "the leader counts the replicas {new} from here on, of which {adding} are being added",
    ),
    _kind(
        "isr_proposed",
        "partition epoch partition_epoch old new",
        "the leader asked the controller for the ISR {new}, it was {old}",
        INFO,
        _why_proposed,
    ),
    _kind("isr_proposal_ended", "partition epoch isr", "the leader's proposal is over, the ISR stays {isr}"),
    _kind("isr_proposal_refused", "partition epoch error why", "the controller refused the ISR: {error}"),
    _kind("isr_proposal_failed", "why", "the leader's proposals did not reach the controller"),
    _kind("fetch_diverged", "partition replica end", _diverged),
    _kind("fetch_refused", "error", "its fetch was refused: {error}"),
    _kind("fetch_failed", "leader why partitions", "its fetch from broker {leader} failed", WARNING),
    _kind("fetch_corrupt", "partition leader why", "it received damaged records from broker {leader}", WARNING),
    _kind("fetch_session_lost", "leader error", "its fetch session at broker {leader} ended: {error}"),
    _kind("produce_refused", "partition error outcome why", _produce_refused, DEBUG),
    # ---- logs and data directories -----------------------------------------------------------------------------------
    _kind(
        "log_opened",
        "partition clean start end",
        "opens its log: offsets {start} to {end}",
        DEBUG,
        _opened_after,
    ),
    _kind("log_start_raised", "partition start", "the log starts at {start} now"),
    _kind("log_failed", "partition doing error", "the disk failed during {doing}: {error}", ERROR),
    _kind("log_retired", "partition folder", "the log of a deleted replica waits in {folder} for its removal"),
    _kind("log_set_aside", "partition folder why", "the log was set aside as {folder}", WARNING),
    _kind(
        "logs_lost",
        "partitions",
        "logs that were here when the broker stopped are gone or shorter: {partitions}",
        WARNING,
    ),
    _kind("segment_rolled", "partition base", "begins a new segment at {base}"),
    _kind(
        "segments_deleted",
        "partition count start",
        "deletes {count} segments, the log starts at {start}",
        INFO,
        "retention",
    ),
    _kind("segment_set_aside", "partition path size reason", "sets {path} aside: {reason}", WARNING),
    _kind(
        "log_compacted",
        "partition records_before records_after clean_end dirty_ratio",
        "compacts its log: {records_before} records become {records_after}, clean up to {clean_end}",
        INFO,
        "{dirty_ratio} of it was dirty",
    ),
    _kind("log_uncleanable", "partition why", "leaves its log uncompacted", ERROR),
    _kind("compaction_put_off", "partition why", "puts compaction off", WARNING),
    _kind("torn_tail_dropped", "partition size reason", "recovery drops {size} bytes: {reason}", WARNING),
    _kind("damage_read", "partition why", "damage was found while reading the log", WARNING),
    _kind("index_rebuilt", "partition why", "rebuilds the indexes of a segment in memory: {why}", WARNING),
    _kind("checkpoint_unreadable", "path error", "{path} cannot be read: {error}", WARNING),
    _kind("unclean_close", "partition error", "the log could not be closed in good order: {error}", WARNING),
    _kind("data_directory_opened", "clean logs", "has opened its data directory: {logs} logs"),
    _kind("data_directory_closed", "clean", "has closed its data directory in good order"),
    # ---- the controller's decisions ----------------------------------------------------------------------------------
    _kind("leader_elected", "partition leader_epoch old leader isr clean why", _elected, INFO, _why_elected),
    _kind("leader_lost", "partition leader_epoch why", "nobody could lead from epoch {leader_epoch} on", WARNING),
    _kind("isr_shrunk", "partition old new", "the ISR shrank from {old} to {new}", WARNING, _why_isr),
    _kind("isr_expanded", "partition old new", "the ISR grew from {old} to {new}", INFO, _why_isr),
    _kind("isr_changed", "partition old new", "the ISR changed from {old} to {new}", INFO, _why_isr),
    _kind("elr_changed", "partition old new why", "the eligible leader replicas went from {old} to {new}"),
    _kind(
        "reassignment_begun",
        "partition old new adding removing why",
        "its replicas began to move from {old}: {adding} are added, and {removing} go when all of the others are in "
        "sync",
    ),
    _kind("reassignment_ended", "partition old new why", "its replicas are {new}, they were {old}"),
    _kind("topic_created", "topic topic_id partitions why", "topic {topic} was created, partitions: {partitions}"),
    _kind("topic_deleted", "topic topic_id why", "topic {topic} was deleted"),
    _kind("partitions_added", "topic old new why", "topic {topic} has {new} partitions, it had {old}"),
    _kind("configs_altered", "configs why", "settings were altered: {configs}"),
    _kind("acl_created", "principal operation permission resource_type resource_name why", "an ACL was created"),
    _kind("acl_deleted", "principal operation permission resource_type resource_name why", "an ACL was deleted"),
    _kind("client_quotas_altered", "entity quotas why", "client quotas of {entity} are now {quotas}"),
    _kind("feature_level_changed", "feature level why", "feature {feature} has level {level}"),
    _kind("broker_registered", "broker broker_epoch why", "broker {broker} has registered, epoch {broker_epoch}"),
    _kind("broker_unregistered", "broker broker_epoch why", "broker {broker} has left the cluster for good"),
    _kind("broker_fenced", "broker broker_epoch why", "broker {broker} is fenced", WARNING),
    _kind("broker_unfenced", "broker broker_epoch why", "broker {broker} is unfenced"),
    _kind(
        "broker_unreachable", "broker address", "the connection to broker {broker} ended and {address} refuses", WARNING
    ),
    _kind("controlled_shutdown_begun", "broker broker_epoch why", "broker {broker} shuts down in good order"),
    # ---- the quorum --------------------------------------------------------------------------------------------------
    _kind(
        "quorum_leader_elected",
        "epoch leader votes start",
        "leads the metadata quorum in epoch {epoch}",
        INFO,
        "a majority voted for it",
    ),
    _kind("quorum_role_changed", "role epoch leader because", "is {role} in quorum epoch {epoch}", INFO, "{because}"),
    _kind("vote_granted", "epoch candidate pre_vote log", _vote("granted"), INFO),
    _kind(
        "vote_refused_stale_log",
        "epoch candidate pre_vote log",
        _vote("refused"),
        INFO,
        lambda facts: "its metadata log ends at offset {1} of epoch {0}, behind this broker's".format(*facts["log"]),
    ),
    _kind(
        "vote_refused_leader_lives", "epoch candidate pre_vote log", _vote("refused"), INFO, "the present leader lives"
    ),
    _kind(
        "vote_refused_leader_known", "epoch candidate pre_vote log", _vote("refused"), INFO, "this epoch has a leader"
    ),
    _kind(
        "vote_refused_already_voted",
        "epoch candidate pre_vote log",
        _vote("refused"),
        INFO,
        "this broker has voted for another candidate in this epoch",
    ),
    _kind("quorum_hw_advanced", "epoch old new", "the metadata is committed up to {new}, before up to {old}", DEBUG),
    _kind("quorum_epoch_lowered", "old new highest", "lowers the quorum epoch from {old} to {new}", WARNING),
    _kind("quorum_epoch_refused", "epoch highest leader", "refuses quorum epoch {epoch} of leader {leader}", WARNING),
    _kind(
        "quorum_leader_disputed", "epoch leader told", "two leaders of quorum epoch {epoch}: {leader}, {told}", WARNING
    ),
    _kind("quorum_other_cluster", "peer why", "voter {peer} answers for another cluster: {why}", WARNING),
    _kind("quorum_leader_refused", "epoch leader why", "refuses leader {leader} of quorum epoch {epoch}"),
    _kind("quorum_tail_truncated", "epoch old new", "the metadata log was cut from {old} to {new}", WARNING),
    _kind(
        "quorum_fetch_damaged",
        "leader offset reason",
        "metadata from {leader} is damaged at {offset}: {reason}",
        WARNING,
    ),
    _kind(
        "quorum_fetch_diverged",
        "offset last_epoch epoch end",
        "a voter's metadata log parted from the leader's, in which epoch {epoch} ends at {end}",
    ),
    _kind("quorum_fetch_refused", "error code leader epoch", "leader {leader} refused a fetch of metadata: {error}"),
    _kind("quorum_farewell_unheard", "epoch", "no voter responded when it resigned in quorum epoch {epoch}"),
    _kind("quorum_farewell_unsaid", "epoch why", "it could not resign in quorum epoch {epoch}"),
    _kind("pre_vote_yielded", "epoch candidate", "leaves the election of a controller to {candidate}"),
    _kind("election_lost", "role epoch votes", "lost the election of quorum epoch {epoch} as {role}"),
    _kind("controller_activated", "node epoch", "is the active controller, quorum epoch {epoch}"),
    _kind("controller_deposed", "node epoch why", "is no longer the active controller"),
    _kind("controller_resigned", "node epoch", "resigned as the active controller"),
    _kind("metadata_append_failed", "epoch why", "the controller could not append to the metadata log", ERROR),
    _kind("snapshot_taken", "end_offset epoch records", "took a metadata snapshot up to {end_offset}"),
    _kind("snapshot_loaded", "end_offset epoch records", "loaded a metadata snapshot up to {end_offset}"),
    _kind("snapshot_fetched", "end_offset epoch records", "fetched a metadata snapshot up to {end_offset}"),
    _kind("snapshot_damaged", "end_offset epoch reason", "the snapshot of {end_offset} is damaged: {reason}", WARNING),
    # ---- brokers and their sessions ----------------------------------------------------------------------------------
    _kind("broker_started", "node", "serves"),
    _kind("broker_stopped", "node clean why", "has stopped"),
    _kind("broker_failed", "node why", "stops by itself", ERROR),
    _kind("request_failed", "api why", "cannot answer {api}, and has changed nothing: {why}", ERROR),
    _kind("registered", "node broker_epoch", "has registered with the controller, epoch {broker_epoch}"),
    _kind("registration_refused", "node why", "the controller refuses its registration", WARNING),
    _kind("session_lost", "node why", "has lost its session with the controller", WARNING),
    _kind("session_fenced", "node", "learns that it is fenced"),
    _kind("session_unfenced", "node", "learns that it is unfenced"),
    _kind("controller_silent", "node why", "the controller does not respond", WARNING),
    _kind("controlled_shutdown_gave_up", "node", "stops before all of its leaders have moved", WARNING),
    _kind("controlled_shutdown_unheard", "node", "no controller has responded to its controlled shutdown"),
    _kind("settings_changed", "node settings", "settings changed: {settings}"),
    _kind("setting_ignored", "notice", "{notice}"),
    _kind("log_not_written", "where why", "cannot write events to {where}; they are left out", WARNING),
    _kind("broker_config_unusable", "node why", "ignores a setting that was set at run time"),
    _kind("topic_config_unusable", "topic why", "ignores a setting of topic {topic}", WARNING),
    _kind("change_not_yet_applied", "node offset", "has not applied a change of its own yet, offset {offset}"),
    _kind("topic_creation_unseen", "topics", "created topics that its metadata does not show yet: {topics}"),
    # ---- groups and transactions -------------------------------------------------------------------------------------
    _kind("group_coordinator_loaded", "groups", "a group coordinator has loaded {groups} groups"),
    _kind(
        "group_state_changed",
        "group old new generation members protocol why",
        "group {group} went from {old} to {new}, generation {generation}, members: {members}",
    ),
    _kind("group_member_left", "group member why", "member {member} left group {group}"),
    _kind(
        "group_member_replaced",
        "group instance old new",
        "member {new} replaced {old} as instance {instance} of group {group}",
    ),
    _kind("group_deleted", "group", "group {group} was deleted"),
    _kind("group_offsets_expired", "group partitions", "offsets of group {group} expired: {partitions}"),
    _kind("group_records_skipped", "", "records of groups that cannot be read were skipped", WARNING),
    _kind("offsets_topic_not_created", "topic why", "topic {topic} could not be created"),
    _kind(
        "transaction_coordinator_loaded",
        "transactional_ids markers",
        "a transaction coordinator has loaded {transactional_ids} transactional ids, {markers} with markers to send",
    ),
    _kind(
        "transaction_timed_out",
        "transactional_id producer_id producer_epoch timeout_ms",
        "the transaction of {transactional_id} timed out after {timeout_ms} ms",
    ),
    _kind("transactional_id_expired", "transactional_id", "transactional id {transactional_id} expired"),
    _kind(
        "marker_appended",
        "partition offset producer_id producer_epoch coordinator_epoch committed",
        "a marker of producer {producer_id} ended its transaction at offset {offset}",
    ),
    _kind(
        "marker_refused", "partition producer_id error why", "a marker of producer {producer_id} was refused: {error}"
    ),
    _kind("markers_not_sent", "node to markers why", "{markers} markers did not reach broker {to}"),
    # ---- connections and requests ------------------------------------------------------------------------------------
    _kind(
        "client_login_failed", "remote listener client mechanism", "refused a login of {remote} at {listener}", WARNING
    ),
    _kind("jwks_loaded", "keys", "verifies tokens with {keys} keys"),
    _kind("jwks_failed", "why", "cannot read the keys that verify tokens", WARNING),
    _kind("tls_reloaded", "", "its listeners use the certificate files as they are now"),
    _kind("tls_reload_failed", "why", "its listeners keep the former certificate", WARNING),
    _kind("tls_handshake_failed", "remote why", "closed the connection of {remote}: its TLS handshake failed", WARNING),
    _kind("client_authentication_failed", "remote why", "refused the client certificate of {remote}", WARNING),
    _kind(
        "client_connection_refused", "remote client error why", "closed the connection of {remote}: {error}", WARNING
    ),
    _kind("connections_not_accepted", "remote why", "cannot accept connections for now", WARNING),
    _kind(
        "connection_limit_exceeded",
        "remote setting limit",
        "closed the connection of {remote}: {setting}={limit}",
        WARNING,
    ),
    _kind("request_denied", "api principal remote why operation resource rule", "denied {api} to {principal}"),
    _kind(
        "request_allowed",
        "api principal remote operation resource rule",
        "let {principal} do {operation} on {resource}",
        INFO,
        "{rule}",
    ),
    _kind("problem_told", "method status error detail", "{method} was answered {status} {error}", DEBUG, "{detail}"),
    _kind("rest_failed", "method path error", "{method} {path} failed: {error}", ERROR),
    # ---- clients -----------------------------------------------------------------------------------------------------
    _kind(
        "produce_attempt_failed",
        "partition error outcome final",
        "a produce request failed: {error}, outcome {outcome}",
        INFO,
        _retries,
    ),
    _kind("delivery_failed", "partition records error outcome", "a producer gives up: {error}"),
    _kind("producer_broken", "error", "a producer can send no more: {error}"),
    _kind("producer_epoch_bumped", "partition identity", "a producer continues with the next epoch"),
    _kind("init_producer_id_failed", "error message", "a producer received no producer id: {error}"),
    _kind("metadata_refresh_failed", "error", "a client could not refresh its metadata: {error}"),
    _kind("metadata_failed", "error", "a client's metadata failed: {error}"),
    _kind("controller_missing", "why", "a client cannot work: {why}"),
    _kind("broker_silent", "broker why", "broker {broker} does not respond to a client"),
    _kind("consumer_broken", "error", "a consumer can read no more: {error}"),
    _kind("consumer_request_failed", "partition error", "a consumer's request failed: {error}"),
    _kind("position_reset", "partition offset", "a consumer reset its position to {offset}"),
    _kind("position_validated", "partition position end", "a consumer validated its position {position}"),
    _kind("topics_not_listed", "why", "a consumer could not list the topics"),
    _kind("auto_commit_failed", "group why outcome", "an automatic commit of group {group} failed"),
    _kind("group_assigned", "group generation assignor", "a member assigned generation {generation} of group {group}"),
    _kind("group_join_again", "group why", "a member joins group {group} again"),
    _kind("group_rejoin", "group member why", "member {member} must join group {group} again"),
    _kind("group_leave_unanswered", "group why", "leaving group {group} was not confirmed"),
    _kind("group_member_failed", "group why", "a member of group {group} failed"),
    _kind("group_member_thrown_out", "group member why", "member {member} was removed from group {group}"),
    _kind("heartbeat_unanswered", "group why", "a heartbeat in group {group} was not answered"),
    # ---- faults, of tests and of the simulator -----------------------------------------------------------------------
    _kind("fault_set", "fault", "a fault was set: {fault}"),
    _kind("fault_hit", "fault", "a fault applied: {fault}", DEBUG),
    _kind("fault_released", "fault messages lost", "a fault released messages that it held: {fault}, {messages}"),
    _kind("fault_over", "fault hits why", "a fault ended: {fault}"),
    _kind("machine_faults_set", "", "the faults of the broker's machine were set"),
    _kind("duplicate_failed", "api target why", "a duplicate of {api} did not reach {target}"),
    _kind("action_asked", "do broker", "a test asked for {do} at broker {broker}"),
    _kind("node_started", "", "the process starts"),
    _kind("node_killed", "", "kill -9", INFO, "a fault, or the end of its process"),
    _kind("node_power_cut", "", "the power is cut: what was not synced may be lost", INFO, "a fault"),
    _kind("node_paused", "", "SIGSTOP: the process stands still", INFO, "a fault"),
    _kind("node_resumed", "", "SIGCONT: the process continues"),
    _kind("node_isolated", "still_talks_to", "is cut off from all other nodes", INFO, "a fault"),
    _kind("link_cut", "target", "everything from it to {target} is lost", INFO, "a fault"),
    _kind("link_clogged", "target", "everything from it to {target} is held back", INFO, "a fault"),
    _kind("links_healed", "target", "cut links work again"),
    _kind("links_released", "target held", "{held} messages that were held back go out"),
    _kind("clock_jumped", "seconds", "its calendar jumps by {seconds} s", INFO, "a fault"),
    _kind("violation", "name", "PROMISE BROKEN: {name}"),
)

CATALOGUE: Final[Mapping[str, EventKind]] = {each.name: each for each in _KINDS}
"""All kinds of events of brokers and clients, and those of the simulator that its replay shows, by name."""


def level_of(name: str, facts: Facts) -> int:
    """How important an event is, as a level of ``logging``."""
    if name == "leader_elected" and facts.get("clean") is False:
        return WARNING
    kind = CATALOGUE.get(name)
    return kind.level if kind is not None else INFO
