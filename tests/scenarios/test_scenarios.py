"""The library of scenarios: every file prints what it says it prints, and the stories end as the articles say.

A change of a rule shows here as a diff of a table. ``python -m tests.scenarios.rewrite`` refreshes the expectations: review
what it wrote before committing it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import minikafka
from minikafka.lab.played import Run, Step
from minikafka.lab.scenario import LIBRARY, library, play, read
from minikafka.lab.table import RULES, changes_of, reasons, rendered, truncation_of
from minikafka.lab.verbs import ScenarioError
from minikafka.replication.leader import LeaderReplica

REQUIRED = """
    s11_one_record s11_three_rounds s12_fetch_after_produce s12_produce_wakes_parked_fetch
    s13_isr_may_shrink_to_the_leader s14_lag_is_time_not_records s15_return_to_the_isr
    s16_committed_means_every_isr_member s17_only_leaders_serve s18_placement s19_clean_election s20_unclean_off_and_on
    s22_data_loss s23_divergence join_needs_epoch_start isr_shrink_in_flight kip279_two_fast_elections
    deposed_leader_tail_is_cut restart_inside_an_epoch acks1_loss min_insync_replicas elr/last_replica_standing
""".split()
"""Stories that must stay, whatever is renamed or merged."""


def run_of(name: str, **options: str) -> Run:
    return read(LIBRARY / f"{name}.txt").play(tuple(options.items()))


@pytest.mark.parametrize("path", library(), ids=lambda path: path.relative_to(LIBRARY).with_suffix("").as_posix())
def test_a_scenario_prints_what_its_file_says(path: Path) -> None:
    """S11 to S23: the tables are the requirement, value by value."""
    scenario = read(path)
    assert scenario.expected, "no expectation: run python -m tests.scenarios.rewrite, and read what it wrote"
    for expected in scenario.expected:
        assert rendered(scenario.play(expected.options)) == expected.text


def test_the_named_stories_are_there():
    """Issue 2: S11 to S20 as transcripts, S22 and S23, and the stories of KIPs that the rules stand on."""
    assert set(REQUIRED) <= {read(path).name for path in library()}


def test_a_comment_that_names_a_scenario_finds_it():
    """STYLE 14: a rule that looks removable names the story that plays its loss; the story must exist."""
    sources = Path(minikafka.__file__).parent
    named = {
        name
        for path in sorted(sources.rglob("*.py"))
        for name in re.findall(r"\bscenarios/([a-z0-9_/]+)\.txt", path.read_text(encoding="utf-8"))
    }
    assert named
    assert named <= {read(path).name for path in library()}


def test_every_story_is_told():
    """A file without a comment on top is a table that nobody understands in a year."""
    for path in library():
        assert path.read_text(encoding="utf-8").startswith("# "), path.name


@pytest.mark.parametrize(
    "name, options, lost, diverged",
    [
        ("s22_data_loss", {"truncation": "high-watermark"}, ["m1"], 0),
        ("s22_data_loss", {"truncation": "leader-epoch"}, [], 0),
        ("s22_data_loss", {"control": "quorum"}, [], 0),
        ("s23_divergence", {"truncation": "high-watermark"}, ["m1"], 1),
        ("s23_divergence", {"truncation": "leader-epoch"}, ["m1"], 0),
        ("s23_divergence", {"control": "quorum"}, [], 0),
    ],
)
def test_truncation_to_the_high_watermark_loses_and_diverges(
    name: str, options: dict[str, str], lost: list[str], diverged: int
) -> None:
    """S22 and S23 exactly as scheduled, under both rules and under the real quorum."""
    run = run_of(name, **options)
    assert [each.value for each in run.lost] == lost
    assert len(run.diverged) == diverged


def test_the_record_of_s22_is_lost_at_the_articles_step():
    """S22: B cuts its log when it restarts, A when it returns as a follower: then m1 is nowhere."""
    run = run_of("s22_data_loss", truncation="high-watermark")
    cuts = [step.what for step in run.steps if any("cuts its log 2→1" in told for told in step.lines)]
    assert cuts == ["B starts again", "all followers fetch until nothing changes"]
    (lost,) = run.lost
    assert (lost.value, lost.offset, lost.step, lost.gone_step) == ("m1", 1, 11, 13)
    assert run.steps[11].what == "B is elected"
    assert run.steps[12].what == "A starts again", "it still has m1, alone"
    assert run.steps[13].after["A"].end_offset == 1
    assert run_of("s22_data_loss", truncation="leader-epoch").lost == []


def test_the_replicas_of_s23_part_at_the_articles_step():
    """S23: A returns with HW 2, which is its log's end, and cuts nothing: offset 1 differs from then on, for good."""
    run = run_of("s23_divergence", truncation="high-watermark")
    (parted,) = run.diverged
    assert (parted.offset, parted.step) == (1, 13)
    assert run.steps[13].what == "A starts again"
    assert {each.replica: (each.value, each.epoch) for each in parted.versions} == {"A": ("m1", 0), "B": ("m1'", 1)}
    mended = run_of("s23_divergence", truncation="leader-epoch")
    assert mended.diverged == []
    assert (mended.lost[0].step, mended.lost[0].gone_step) == (11, 14), "only A's disk had m1, until A was told to cut"


def test_every_change_has_its_rule_and_most_have_their_event():
    """DESIGN D9: which rule changed a value, and on which event; a value that no rule explains would be a hole."""
    for path in library():
        run = read(path).play()
        for step in run.steps[1:]:
            changes = changes_of(step, truncation_of(run))
            assert {each.replica for each in changes} == set(step.changed()), (path.name, step)
            for each in changes:
                assert each.rule in RULES, each
                if each.rule not in {"disk", "process", "network"}:
                    assert each.event, (path.name, step.number, each)


@pytest.mark.parametrize(
    "name, number, replica, why",
    [
        ("s11_three_rounds", 1, "L", "LEO S6"),
        ("s11_three_rounds", 4, "L", "remote LEO S5, HW S7"),
        ("s11_three_rounds", 4, "F", "LEO S8, HW S8"),
        ("s15_return_to_the_isr", 7, "1", "HW S9, ISR S14"),
        ("s15_return_to_the_isr", 11, "1", "ISR S15"),
        ("s22_data_loss", 9, "B", "LEO HW-cut, HW disk, epoch S21"),
        ("s22_data_loss", 11, "B", "remote LEO S5, ISR S19, epoch S21"),
        ("s22_data_loss", 13, "A", "LEO range, HW S2"),
        ("s22_data_loss", 10, "A", "process"),
    ],
)
def test_the_reason_stands_beside_the_change(name: str, number: int, replica: str, why: str) -> None:
    """DESIGN D9, by example: the rules' numbers are those of the requirements."""
    run = read(LIBRARY / f"{name}.txt")
    played = run.play(run.expected[0].options)
    assert reasons(changes_of(played.steps[number], truncation_of(played)), replica) == why


def test_the_story_of_the_epochs_start_needs_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-320: chance finds this rule's absence once in 400,000 histories; this schedule finds it every time."""
    story = "join_needs_epoch_start"
    told = [told for step in run_of(story).steps[:14] for told in step.lines]
    assert not any("wants ISR A,B → A,B,C" in each for each in told)
    monkeypatch.setattr(
        LeaderReplica, "may_join", lambda role, node: role.remotes[node].end_offset >= role.high_watermark
    )
    told = [told for step in run_of(story).steps[:14] for told in step.lines]
    assert any("wants ISR A,B → A,B,C" in each for each in told), "C would join without r8 and r9"


def test_the_same_scenario_gives_the_same_text():
    """A transcript that differs from run to run cannot be reviewed."""
    for path in library():
        scenario = read(path)
        assert rendered(scenario.play()) == rendered(scenario.play())


@pytest.mark.parametrize(
    "text, why",
    [
        ("produce A x", "begins with"),
        ("cluster brokers=0", "brokers"),
        ("cluster brokers=2 names=A", "names"),
        ("cluster brokers=2 truncation=none", "truncation"),
        ("cluster brokers=2 min.isr=1", "min.isr"),
        ("cluster brokers=2\nfrobnicate 1", "no such command"),
        ("cluster brokers=2\nfetch 9", "which broker"),
        ("cluster brokers=2\nkill 1\nkill 1", "is down"),
        ("cluster brokers=2\nrestart 1", "is up"),
        ("cluster brokers=2\ntick 5", "no time"),
        ("cluster brokers=2\ndeliver 2", "on its way"),
        ("cluster brokers=2\nproduce 1 a ack=1", "ack is not known here; did you mean acks"),
        ("cluster brokers=2 A B", "line 1: cluster: A B"),
        ("cluster brokers=2 brokers=3", "given twice"),
        ("cluster brokers=2 names=A,A", "names=A,A: .* each once"),
        ("cluster brokers=2 replicas=1,1 control=quorum", "replicas=1,1: .* each once"),
        ("cluster brokers=2 replicas=1,3", "replicas=1,3: some of 1,2"),
        ("cluster brokers=2 eligible.leader.replicas.enable=maybe", "maybe: true or false is needed"),
        ("cluster brokers=2 replica.lag.time.max.ms=-1", "replica.lag.time.max.ms=-1: 0 to"),
        ("cluster brokers=2\nproduce", "which broker"),
        ("cluster brokers=2\nproduce 1", "which values"),
        ("cluster brokers=2\nproduce 1 a acks=2", "acks=2: all or 1 or 0"),
        ("cluster brokers=2\nproduce 1 a acks=1 acks=0", "given twice"),
        ("cluster brokers=2\nproduce 1 a timeout=nans", "nans is no time"),
        ("cluster brokers=2\ntick -5s", "-5s is no time"),
        ("cluster brokers=2\ntick 1e300s", "1e300s is no time"),
        ("cluster brokers=2\nkill 1 1", "each named once"),
        ("cluster brokers=2\nkill 1\nrestart 1 1", "each named once"),
        ("cluster brokers=2\nfetch 2 answer=late", "answer=late: lost is needed"),
        ("cluster brokers=2\ncatch-up 1", "1 is not known here"),
        ("cluster brokers=2\nkill 1\nelect 2 isr=1", "isr=1 lacks 2"),
        ("cluster brokers=2\nplace brokers=2 factor=3", "line 2: place: replication factor 3"),
        ("cluster brokers=2\nplace partitions=-1", "partitions=-1: 1 to"),
        ("cluster brokers=2\ncut 1\nstop 1", "line 3: stop: 1 is cut off"),
        ("cluster brokers=2\ncut 1\nkill 1\nrestart 1", "line 4: restart: 1 is cut off"),
    ],
)
def test_a_scenario_with_a_mistake_says_where(text: str, why: str) -> None:
    """A typing error must not pass for a story."""
    with pytest.raises(ScenarioError, match=why):
        play(list(enumerate(text.splitlines(), start=1)), {})


def test_values_from_elsewhere_are_not_blamed_on_a_line():
    """Who gives an option on the command line looks for the mistake there, not in the file."""
    story = [(7, "cluster brokers=2 min.insync.replicas=1")]
    for name, text in (("foo", "1"), ("min.insync.replicas", "many"), ("brokers", "0"), ("truncation", "none")):
        with pytest.raises(ScenarioError, match=f"^(unknown setting )?{name}"):
            play(story, {name: text})
    with pytest.raises(ScenarioError, match=r"^line 7: cluster: unknown setting foo"):
        play([(7, "cluster brokers=2 foo=1")], {"min.insync.replicas": "2"})


def test_the_head_of_an_expected_run_is_checked(tmp_path: Path):
    """A word that is no option is a mistake of its own line."""
    path = tmp_path / "story.txt"
    path.write_text("cluster brokers=1\n---- quorum\nlost: nothing\n")
    with pytest.raises(ScenarioError, match="line 2: ----: quorum: KEY=VALUE"):
        read(path)


def test_an_editors_mark_at_the_beginning_of_a_file_is_no_text(tmp_path: Path):
    """Editors of Windows save UTF-8 with a byte order mark."""
    path = tmp_path / "story.txt"
    path.write_text("\ufeff# A story.\ncluster brokers=1\n", encoding="utf-8")
    assert read(path).head.startswith("# A story")
    assert read(path).play().steps


def steps_of(text: str) -> list[Step]:
    return play(list(enumerate(text.splitlines(), start=1)), {}).steps


def test_an_elected_leader_is_in_its_isr():
    """S13, and the invariant LeaderInIsr: also if the script elects a broker that is dead, or cut off."""
    for end in ("kill 2\nelect 2", "cut 2\nelect 2\nheal 2"):
        assert "isr 1,2" in str([step.lines for step in steps_of(f"cluster brokers=2\n{end}\nstate")][-1])


@pytest.mark.parametrize("control", ["script", "quorum"])
def test_fetches_at_a_leader_that_stops_end_with_it(control: str):
    """The follower's request is lost with its connection; its next one goes to the leader of then."""
    text = f"cluster brokers=3 control={control}\npoll 2\nsend 3\nstop 1\nrestart 1\nfetch 3\ncatch-up\nlog 1 2 3"
    assert not any("parked" in step.what for step in steps_of(text)[3:])


def test_refreshing_an_unchanged_file_changes_nothing():
    """The rewrite keeps stories and options, and only renews what is printed."""
    for path in library():
        assert read(path).refreshed() == path.read_text(encoding="utf-8")
