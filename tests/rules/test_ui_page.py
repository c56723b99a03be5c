"""The page's steps, window, size and words, without a browser (tests/e2e/test_replay_page.py has the browser)."""

from __future__ import annotations

import json
import re
from importlib import resources

import pytest
from click.testing import CliRunner

from minikafka.cli.root import root
from minikafka.events import CATALOGUE
from minikafka.sim.seeds import plan_of
from minikafka.ui import page
from minikafka.ui.journal import Entry, Journal
from minikafka.ui.page import PAGE_SIZE_MAX, NothingToShow, page_of, partitions_of, replay_of, to_json
from minikafka.ui.record import RecordedRun
from minikafka.ui.sentences import sentence_of
from minikafka.ui.states import Story


@pytest.fixture(scope="module")
def journal() -> Journal:
    """Two seconds' worth of trouble: 60 sends, six faults."""
    journal, report = RecordedRun(plan_of(3, operations=60, faults=6)).recorded()
    assert report.ok
    return journal


def entry(kind: str, at_s: float = 1.0, node: str = "n1", **facts: object) -> Entry:
    return Entry(at_s=at_s, node=node, kind=kind, facts={"partition": "orders-0", **facts})


LEADS = entry(
    "became_leader", epoch=0, replicas=[1, 2], isr=[1, 2], start=0, leo=0, hw=0, epochs=[(0, 0)], remotes={"2": -1}
)


def of(*entries: Entry, has_messages: bool = False) -> Journal:
    return Journal(title="made", entries=entries, is_simulated=True, has_messages=has_messages)


def data_in(html: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data = json.loads(found.group(1))
    assert isinstance(data, dict)
    return data


def test_the_page_carries_every_step_and_nothing_from_elsewhere(journal: Journal):
    """One self-contained file under 2 MB: no address, no import, a policy that forbids any."""
    replay = replay_of(journal)
    html = page_of(replay)
    assert len(html.encode()) < PAGE_SIZE_MAX
    assert data_in(html) == json.loads(json.dumps(to_json(replay)))
    assert "default-src 'none'" in html
    frame = html.replace(re.search(r'id="run">(.*?)</script>', html, re.DOTALL).group(1), "")  # type: ignore[union-attr]
    assert re.findall(r"(?:https?:)?//[\w.-]+", frame.replace("http://www.w3.org/2000/svg", "")) == []
    assert not re.search(r"\b(?:src|href)\s*=|@import|\bfetch\(|\bimport\(", frame)


def test_the_assets_stay_small_and_by_hand():
    """Under 60 KB together: no framework, no build."""
    folder = resources.files("minikafka.ui") / "assets"
    assert sum(len((folder / f"replay.{kind}").read_bytes()) for kind in ("html", "css", "js")) < 60_000


def test_applying_the_pages_changes_gives_the_folds_states(journal: Journal):
    """The script only applies what is written down: doing the same here ends where the fold ends."""
    replay = replay_of(journal)
    data = to_json(replay)
    standing = json.loads(json.dumps(data["before"]))
    for row in json.loads(json.dumps(data["steps"])):
        for node, change in row.get("d", {}).items():
            if change is None:
                del standing[node]
            else:
                standing[node] = {**standing.get(node, {}), **change}
    story = Story(replay.partition)
    for each in journal.entries:
        story.apply(each)
    wanted = {str(node): page.replica_to_json(replica) for node, replica in story.replicas.items()}
    assert standing == json.loads(json.dumps(wanted))


def test_a_window_begins_where_the_run_stood(journal: Journal):
    """--from: what was before is folded, not shown, and the page says how much that was."""
    whole = replay_of(journal)
    middle = whole.steps[len(whole.steps) // 2].entry.at_s
    late = replay_of(journal, from_s=middle)
    early = replay_of(journal, to_s=middle)
    assert late.before
    assert {step.entry.at_s >= middle for step in late.steps} == {True}
    assert {step.entry.at_s <= middle for step in early.steps} == {True}
    assert late.notes[0].startswith("Outside the chosen window: ")
    after = dict(early.before)
    for step in [step for step in early.steps if step.entry.at_s < middle]:
        after.update({node: replica for node, replica in step.changed.items() if replica is not None})
    assert {node: replica.leo for node, replica in late.before.items()} == {n: r.leo for n, r in after.items()}


def test_what_does_not_fit_is_left_out_and_said():
    """A long journal: the first steps that fit; with a broken promise, the last ones, the states of before folded in."""
    many = [entry("batch_appended", 1.0 + n / 1000, epoch=0, base=n, end=n + 1, why="x" * 250) for n in range(6000)]
    replay = replay_of(of(LEADS, *many))
    assert len(page_of(replay).encode()) < PAGE_SIZE_MAX
    assert 1000 < len(replay.steps) < 6001
    assert replay.steps[0].entry.kind == "became_leader"
    assert any("did not fit into 2 MB" in note for note in replay.notes)
    broken = Entry(at_s=99.0, node="", kind="violation", facts={"name": "committed_record_lost", "what": "offset 3"})
    ending = replay_of(of(LEADS, *many, broken))
    assert len(page_of(ending).encode()) < PAGE_SIZE_MAX
    assert ending.steps[-1].entry.kind == "violation"
    assert ending.steps[0].number == 1
    first = ending.steps[0].entry.facts["base"]
    assert (ending.before[1].role, ending.before[1].leo) == ("leader", first)


def test_the_partition_with_the_most_events_is_shown_and_the_others_are_named():
    """One partition a page; the reader is told of the others."""
    other = Entry(at_s=2.0, node="n1", kind="segment_rolled", facts={"partition": "payments-1", "base": 1})
    metadata = Entry(at_s=2.0, node="n1", kind="log_opened", facts={"partition": "__cluster_metadata-0"})
    journal = of(LEADS, entry("segment_rolled", 1.5, base=1), other, metadata)
    assert partitions_of(journal) == {"orders-0": 2, "payments-1": 1}
    replay = replay_of(journal)
    assert replay.partition == "orders-0"
    assert any("payments-1" in note for note in replay.notes)
    assert replay_of(journal, partition="payments-1").partition == "payments-1"
    with pytest.raises(NothingToShow, match="nothing of nope-0, but of orders-0, payments-1"):
        replay_of(journal, partition="nope-0")
    with pytest.raises(NothingToShow, match="between these times"):
        replay_of(journal, from_s=50.0)
    with pytest.raises(NothingToShow, match="no events of any partition"):
        replay_of(of(metadata))


def test_text_from_a_journal_cannot_end_the_script():
    """A journal is data: a name that looks like markup stays text."""
    nasty = entry("produce_attempt_failed", 2.0, node="p1", error="</script><script>alert(1)</script><!--", outcome="?")
    html = page_of(replay_of(of(LEADS, nasty)))
    assert "alert(1)</script>" not in html
    assert "<script>alert" not in html.split('id="run">')[1].split("</script>")[0].replace(
        "<\\/script><script>alert", ""
    )
    assert "</script><script>alert(1)</script><!--" in str(data_in(html)["steps"])
    titled = page_of(replay_of(Journal(title="<b>&", entries=[LEADS], is_simulated=True, has_messages=False)))
    assert "<title>orders-0 · &lt;b>&amp;</title>" in titled


def message(part: dict[str, object], **facts: object) -> Entry:
    told_facts = {"call": 1, "what": "request", "api": "Fetch", "source": "n2", "target": "n1", "fate": "sent"} | facts
    return Entry(at_s=2.0, node="n2", kind="message_sent", facts={**told_facts, "parts": {"orders-0": part}})


def test_messages_are_arrows_and_lost_ones_are_failures():
    """What the network saw: a line from lane to lane; a lost one red; one that repeats the last is left out."""
    asked = {"offset": 3, "last_epoch": 0, "epoch": 0, "hw": 2, "replica": 2}
    again = message(asked)
    lost = message(asked, fate="lost")
    records = message({"hw": 3, "base": 3, "end": 5}, what="answer", source="n1", target="n2")
    replay = replay_of(of(LEADS, message(asked), again, lost, records, has_messages=True))
    arrows = [step.sentence.arrow for step in replay.steps if step.sentence.arrow]
    assert [(a.source, a.target, a.label, a.fate) for a in arrows] == [
        ("n2", "n1", "fetch from 3", "sent"),
        ("n2", "n1", "fetch from 3", "lost"),
        ("n1", "n2", "offsets 3 to 4, HW 3", "sent"),
    ]
    assert [step.sentence.tone for step in replay.steps] == ["good", "", "bad", ""]
    assert any(note.startswith("1 fetches and answers") for note in replay.notes)


def test_without_messages_their_effects_draw_the_arrows():
    """Real brokers: the fetch that was counted, the records that were appended."""
    fetched = entry("follower_fetched", epoch=0, replica=2, offset=3)
    appended = entry("batch_appended", node="n2", epoch=0, base=3, end=5, leader=1)
    arrows = [sentence_of(each, "orders-0", draws_effects=True).arrow for each in (fetched, appended)]
    assert [(a.source, a.target, a.label) for a in arrows if a] == [
        ("2", "n1", "fetch from 3"),
        ("1", "n2", "offsets 3 to 4"),
    ]
    assert sentence_of(fetched, "orders-0", draws_effects=False).arrow is None


def test_a_reason_is_what_the_rule_went_by():
    """D9: why the watermark moved, why the ISR is to change, why a log is cut."""
    advanced = entry("hw_advanced", epoch=1, old=3, new=5, remotes={"2": 5, "3": 2}, isr=[1, 2])
    assert (
        sentence_of(advanced, "orders-0", draws_effects=True).why
        == "the leader has all below it, and so does every member of the ISR [1, 2] (acknowledged: broker 2 up to 5, "
        "broker 3 up to 2)"
    )
    proposed = entry("isr_proposed", epoch=1, old=[1, 2, 3], new=[1, 2])
    assert "replica.lag.time.max.ms" in sentence_of(proposed, "orders-0", draws_effects=True).why
    cut = entry("tail_truncated", epoch=1, old=5, new=3, below_high_watermark=True)
    assert sentence_of(cut, "orders-0", draws_effects=True).tone == "bad"
    unclean = entry("leader_elected", leader=2, leader_epoch=4, isr=[2], clean=False, why="unclean is allowed")
    assert sentence_of(unclean, "orders-0", draws_effects=True).tone == "bad"
    unknown = sentence_of(entry("something_new", answer=42), "orders-0", draws_effects=True)
    assert unknown.what == "something new: answer=42"


def test_every_sentence_can_be_said_of_a_poor_journal(journal: Journal):
    """Events of this run all have sentences that hold; the run had most of them."""
    kinds = set()
    for each in journal.entries:
        if each.kind in CATALOGUE:
            assert sentence_of(each, "orders-0", draws_effects=True).what
            kinds.add(each.kind)
    assert len(kinds) > 20


def test_the_table_has_the_pages_values(journal: Journal):
    """`sim show` without --html prints the same steps, values and notes."""
    replay = replay_of(journal)
    text = page.text_of(replay)
    moved = next(step for step in replay.steps if step.entry.kind == "hw_advanced")
    line = next(each for each in text.splitlines() if each.startswith(f"{moved.number} "))
    node, replica = next(iter(moved.changed.items()))
    assert replica is not None
    assert re.split(r"\s{2,}", line)[4:] == [f"broker {node}", *filter(None, page.values(replica))]
    assert replay.notes[-1] in text


@pytest.mark.parametrize("option", ["--html", "--journal"])
def test_show_checks_its_paths_before_it_runs(option, tmp_path, monkeypatch):
    """A run may take a minute: a path that cannot be written is an error before it, not after it."""
    monkeypatch.setattr("minikafka.cli.sim.RecordedRun", lambda _plan: pytest.fail("the seed was run"))
    for path, reason in ((tmp_path / "none" / "run.html", "there is no directory"), (tmp_path, "is a directory")):
        result = CliRunner().invoke(root, ["sim", "show", "7", option, str(path)])
        assert result.exit_code == 2
        assert reason in result.stderr


def test_show_runs_a_seed_and_reads_its_journal_back(tmp_path):
    """`sim show SEED_OR_JOURNAL --html FILE`: from the seed and from its written journal the same page."""
    runner = CliRunner()
    plan = tmp_path / "plan.json"
    plan.write_text(plan_of(3, operations=20, faults=2).to_json())
    pages = [tmp_path / "one.html", tmp_path / "two.html"]
    kept = tmp_path / "run.jsonl"
    first = runner.invoke(root, ["sim", "show", str(plan), "--html", str(pages[0]), "--journal", str(kept)])
    assert first.exit_code == 0, first.output
    second = runner.invoke(root, ["sim", "show", str(kept), "--html", str(pages[1])])
    assert second.exit_code == 0, second.output
    one, two = (data_in(each.read_text()) for each in pages)
    assert one["title"] == "seed 3"
    assert two["title"] == "run.jsonl"
    assert {**one, "title": ""} == {**two, "title": ""}
    nothing = runner.invoke(root, ["sim", "show", str(kept), "--partition", "nope-0"])
    assert nothing.exit_code == 1
    assert "nothing of nope-0" in nothing.output
    missing = runner.invoke(root, ["sim", "show", str(tmp_path / "no.jsonl")])
    assert missing.exit_code == 2
    assert "a seed is a number" in missing.output
