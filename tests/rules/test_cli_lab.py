"""``minikafka lab``: names, tables, JSON and exit codes (issue 3, the lab)."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minikafka.cli.root import root
from minikafka.lab.compare import FIRST, compare, rows_of
from minikafka.lab.rebalance import STORY_ASSIGNORS
from minikafka.lab.scenario import LIBRARY, find, names, read, references, short_name, story
from minikafka.lab.transactions import STORIES
from tests.tidy.sources import ROOT

OWN = """\
# A story of my own (S5).
cluster brokers=2 names=A,B
produce A x acks=1
fetch B
"""


def told(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(root, ["lab", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_a_screen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command prints to a terminal of some width, without colour."""

    def shown(width: int, *arguments: str) -> str:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        with contextlib.redirect_stdout(Screen()) as screen:
            root.main(arguments, standalone_mode=False)
        return screen.getvalue()

    return shown


def json_of(*arguments: str, code: int = 0) -> dict:
    return json.loads(told(*arguments, "-o", "json", code=code).stdout)


# ---- list ------------------------------------------------------------------------------------------------------------


def test_list_names_every_story_in_one_line():
    """Issue 3 item 5: name, story, and where it comes from."""
    lines = told("list").stdout.splitlines()
    assert len(lines) == len(names()) + 2 + len(STORIES), "a head, and the stories that are no files"
    (line,) = [each for each in lines if each.startswith("data-loss ")]
    assert "lost when a follower truncates to its high watermark (KAFKA-1211; KIP-101 schedule 1)" in line


def test_list_and_compare_have_no_internal_references():
    """Requirement numbers (S22) and design decisions (D6) mean nothing to users; KIPs and Kafka's issues do."""
    internal = re.compile(r"\b[sS]\d{1,2}(\b|_)|DESIGN|\bD\d\b")
    for arguments in (("list",), ("list", "-o", "tsv"), ("compare", "data-loss"), ("compare", "rebalance")):
        assert internal.findall(told(*arguments).stdout) == []
    assert [
        each for scenario in json_of("list")["scenarios"] for each in scenario["references"] if each[0] == "S"
    ] == []


@pytest.mark.parametrize(
    "command",
    [
        "lab list",
        "lab compare data-loss",
        "lab compare rebalance",
        "lab run rebalance",
        "lab run zombie-producer",
        "chaos list",
    ],
)
def test_output_fits_80_columns(command, on_a_screen):
    """A terminal breaks longer lines in the middle of a word."""
    lines = on_a_screen(80, *command.split()).splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 80


def test_compare_on_a_narrow_screen_shows_what_both_sides_share_once(on_a_screen):
    """A line for each side only where the sides differ."""
    lines = on_a_screen(80, "lab", "compare", "data-loss").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(FIRST))
    assert [line.strip() for line in lines[at + 1 : at + 5]] == [
        "left: B down→follower LEO 1 HW 1 epoch 0",
        "right: B down→follower LEO 2 HW 1 epoch 0",
        "B: follows A in epoch 0",
        "left: B: cuts its log 2→1",
    ]


def test_list_as_json_is_a_contract():
    """docs/lab.md."""
    scenarios = {each["scenario"]: each for each in json_of("list")["scenarios"]}
    assert list(scenarios) == [*names(), "rebalance", *STORIES]
    assert scenarios["s23_divergence"]["aliases"] == ["divergence"]
    assert [each["name"] for each in scenarios.values()] == [
        line.split()[0] for line in told("list").stdout.splitlines()[1:]
    ], "the names that people see"
    assert scenarios["s22_data_loss"]["runs"][0] == {"truncation": "high-watermark"}
    assert scenarios["zombie-producer"]["references"] == ["KIP-98"], "a transactional id has one producer"
    assert [each["assignor"] for each in scenarios["rebalance"]["runs"]] == list(STORY_ASSIGNORS)
    for each in scenarios.values():
        assert each["name"] == (*each["aliases"], each["scenario"])[0]
        assert each.keys() == {"name", "scenario", "aliases", "story", "references", "runs"}
        assert len(each["story"]) > 15, each


# ---- run -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, truncation, lost, diverged",
    [
        ("data-loss", "high-watermark", [("m1", 1, 11, 13)], []),
        ("data-loss", "leader-epoch", [], []),
        ("divergence", "high-watermark", [("m1", 1, 11, None)], [(1, 13)]),
        ("divergence", "leader-epoch", [("m1", 1, 11, 14)], []),
    ],
)
def test_run_as_json_has_the_members_of_the_issue(name, truncation, lost, diverged):
    """Issue 3 item 5; S22 and S23 at the articles' steps, and not under leader epochs."""
    ran = json_of("run", name, "--truncation", truncation)
    assert list(ran) == ["scenario", "truncation", "lost", "diverged", "steps"]
    assert ran["truncation"] == truncation
    assert [(each["value"], each["offset"], each["step"], each["gone_step"]) for each in ran["lost"]] == lost
    assert [(each["offset"], each["step"]) for each in ran["diverged"]] == diverged
    assert [each["step"] for each in ran["steps"]] == list(range(len(ran["steps"])))


def test_a_step_as_json_has_values_changes_rules_and_causes():
    """DESIGN D9: of each change the rule, the event, and what brought it about."""
    step = json_of("run", "s11_three_rounds")["steps"][4]
    assert step["replicas"]["L"] == {
        "role": "leader",
        "leo": 2,
        "remote_leo": {"F": 1},
        "high_watermark": 1,
        "isr": ["L", "F"],
        "isr_asked": None,
        "leader_epoch": 0,
    }
    (change,) = [each for each in step["changes"] if each["replica"] == "L" and each["field"] == "high_watermark"]
    assert (change["old"], change["new"], change["rule"], change["event"]) == (0, 1, "S7", "hw_advanced")
    assert change["cause"] == step["what"] == "F fetches from L at 1"
    assert change["because"]


def test_run_prints_the_articles_table_with_reasons_and_no_colour_when_piped():
    """Issue 3 item 5: step, what happened, LEO / remote LEO / HW / ISR / epoch per replica, old → new, and why."""
    text = told("run", "data-loss", "--truncation", "high-watermark").stdout
    assert "\x1b" not in text
    head = text.splitlines()[2].split("  ")
    assert [each.strip() for each in head if each.strip()] == [
        "step",
        "what happened",
        "replica",
        "LEO",
        "remote LEO",
        "HW",
        "ISR",
        "epoch",
        "why",
    ]
    (row,) = [line for line in text.splitlines() if line.startswith("9 ")]
    assert "B starts again" in row
    assert "LEO HW-cut" in row
    assert "\nHW-cut  a returning replica cuts its log to its own HW" in text
    assert "\nlost: m1 at offset 1" in text


def test_without_options_the_story_is_played_as_its_file_first_expects_it():
    """`lab run data-loss` shows the loss; the other runs are named."""
    text = told("run", "s22").stdout
    assert "played with truncation=high-watermark; also truncation=leader-epoch; control=quorum" in text
    assert json_of("run", "data-loss")["truncation"] == "high-watermark"
    assert json_of("run", "data-loss", "--control", "quorum")["lost"] == []


@pytest.mark.parametrize("width", [80, 100])
def test_on_a_narrow_screen_what_happened_stands_above_the_replicas(width, on_a_screen):
    """No cell is folded or left out: the lines are those of the whole table, in another order."""
    lines = on_a_screen(width, "lab", "run", "data-loss").splitlines()
    assert "1     produce m0 to A, acks=all" in lines
    assert (
        lines[lines.index("1     produce m0 to A, acks=all") + 1].split() == "A leader 0→1 B:? 0 A,B 0 LEO S6".split()
    )
    table_lines = lines[
        next(at for at, line in enumerate(lines) if line.startswith("step")) : next(
            at for at, line in enumerate(lines) if line.startswith("lost: ")
        )
    ]
    assert max(map(len, table_lines)) <= width
    words = "".join(told("run", "data-loss").stdout.partition("lost: ")[0].split("\n", 2)[2].split())
    assert sorted("".join(table_lines).replace(" ", "")) == sorted(words.replace("whathappened", ""))


@pytest.mark.parametrize(
    "name", ["s22_data_loss", "s22-data-loss", "S22", "data-loss", "data_loss", "s22_data_loss.txt"]
)
def test_a_story_has_several_names(name):
    """A number is enough where only one story has it."""
    assert find(name).name == "s22_data_loss"


def test_a_story_in_a_folder_is_found_by_its_last_name():
    """elr/ is the library's own order, not the reader's."""
    assert find("last_replica_standing").name == "elr/last_replica_standing"


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("s19", "clean-election"),
        ("dataloss", "data-loss"),
        ("s22_dataloss", "data-loss"),
        ("xyz", "lab list"),
        ("", "lab list"),
        ("rebalanc", "did you mean rebalance?"),
        ("zombie_producr", "did you mean zombie-producer?"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name, nearest):
    """STYLE: what was wrong, and what to do next; exit code 2."""
    result = told("run", name, code=2)
    assert nearest in result.stderr
    assert result.stdout == ""


def test_ones_own_file_is_played(tmp_path):
    """Issue 3 item 5: text files; the language is in docs/lab.md."""
    path = tmp_path / "my-story.txt"
    path.write_text(OWN)
    ran = json_of("run", str(path))
    assert ran["scenario"] == "my-story"
    assert ran["steps"][2]["replicas"]["B"]["leo"] == 1
    assert "A story of my own (S5)" in told("run", str(path)).stdout


@pytest.mark.parametrize("name", ["Coordinator_Dies", "coordinator-dies"])
def test_a_simulated_story_has_several_names(name: str):
    """docs/lab.md: case, - and _ do not matter, in no name."""
    assert json_of("run", name)["scenario"] == "coordinator-dies"


def test_a_copy_of_a_story_is_played_from_its_file(tmp_path, monkeypatch):
    """A teacher copies a file of the library, changes it, and plays the copy under its name."""
    text = (LIBRARY / "s22_data_loss.txt").read_text(encoding="utf-8").partition("----")[0]
    (tmp_path / "s22_data_loss.txt").write_text(text.replace("m0", "mine"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "produce mine to A" in told("run", "s22_data_loss.txt").stdout
    assert "produce mine to A" not in told("run", "s22_data_loss").stdout


def test_a_mistake_in_ones_own_file_names_its_line(tmp_path):
    """A typing error must not pass for a story."""
    path = tmp_path / "my-story.txt"
    path.write_text(OWN + "fetsch B\n")
    assert "line 5: fetsch: no such command" in told("run", str(path), code=2).stderr


def test_exit_code_1_when_a_run_does_not_come_to_what_its_file_says(tmp_path):
    """The scenario's own expectation is its verdict: the same file serves as a test."""
    path = tmp_path / "my-story.txt"
    path.write_text(OWN)
    text = read(path).refreshed()
    path.write_text(text)
    told("run", str(path))
    told("run", str(path), "--truncation", "leader-epoch")  # the default by name
    path.write_text(text.replace("lost: nothing", "lost: x"))
    result = told("run", str(path), code=1)
    assert "'lost: x'" in result.stderr
    told("run", str(path), "--truncation", "high-watermark")  # of such a run the file says nothing
    path.write_text(text.rstrip("\n"))
    told("run", str(path))  # an editor may leave out the last line's end, or add an empty line
    path.write_text(text.replace("diverged: nothing", ""))
    assert "it says '(the end)', here is 'diverged: nothing'" in told("run", str(path), code=1).stderr


@pytest.mark.parametrize(
    "arguments, why",
    [
        (("--set", "flush.mesages=1"), "did you mean flush.messages"),
        (("--set", "brokers"), "KEY=VALUE"),
        (("--set", "min.insync.replicas=1", "--set", "min.insync.replicas=2"), "once"),
        (("--set", "foo=1"), "minikafka: unknown setting foo"),
        (("--assignor", "range"), "minikafka: unknown setting assignor"),
        (("--truncation", "none"), "high-watermark"),
        (("--control", "zookeeper"), "quorum"),
    ],
)
def test_a_wrong_option_is_exit_code_2(arguments, why):
    """Scripts tell a wrong call (2) from a story that ended otherwise (1)."""
    assert why in told("run", "power_loss", *arguments, code=2).stderr


def test_a_setting_changes_the_story():
    """DESIGN D6: what power loss takes is a matter of a setting."""
    assert [each["value"] for each in json_of("run", "power_loss")["lost"]] == ["a"]
    assert json_of("run", "power_loss", "--set", "flush.messages=1")["lost"] == []


# ---- compare ---------------------------------------------------------------------------------------------------------


def test_compare_marks_the_first_step_that_differs_and_names_the_lost():
    """Issue 3 item 5: one schedule under two rule sets; S22 parts where B cuts its log, or does not."""
    text = told("compare", "data-loss").stdout
    (marked,) = [line for line in text.splitlines() if line.startswith(FIRST)]
    assert "B starts again" in marked
    assert "the first step that differs: 9, B starts again" in text
    assert "truncation=high-watermark: lost: m1 at offset 1" in text
    assert "truncation=leader-epoch: lost: nothing" in text


def test_the_two_commands_of_the_tour_tell_what_their_comments_say():
    """The crash that loses m1 under one rule loses nothing under the other."""
    commands = [line for line in (ROOT / "docs/tour.md").read_text(encoding="utf-8").splitlines() if " lab " in line]
    assert [line.partition("#")[0].split()[3:] for line in commands if "#" in line] == [
        ["run", "data-loss", "--truncation", "high-watermark"],
        ["compare", "data-loss"],
    ]
    assert "\nlost: m1 at offset 1" in told("run", "data-loss", "--truncation", "high-watermark").stdout
    assert "truncation=leader-epoch: lost: nothing" in told("compare", "data-loss").stdout


def test_compare_as_json():
    """docs/lab.md."""
    both = json_of("compare", "divergence")
    assert both["first_difference"] == {"step": "14", "what": "all followers fetch until nothing changes"}
    assert [len(both[side]["diverged"]) for side in ("left", "right")] == [1, 0]
    assert both["left"]["options"] == {"truncation": "high-watermark"}
    differing = [each for each in both["steps"] if each["differs"]]
    assert differing[0]["left"]["step"] == differing[0]["right"]["step"] == 14


def test_compare_any_two_settings():
    """Rule sets are settings as well: one replica's acknowledgement, or two."""
    both = json_of(
        "compare", "min_insync_replicas", "--left", "min.insync.replicas=1", "--right", "min.insync.replicas=2"
    )
    assert both["left"]["options"] == {"min.insync.replicas": "1"}
    assert both["first_difference"] is not None
    same = told(
        "compare", "s11_one_record", "--left", "min.insync.replicas=1", "--right", "min.insync.replicas=1"
    ).stdout
    assert "no step differs" in same
    assert not any(line.startswith(FIRST) for line in same.splitlines())


def test_compare_names_the_options_of_both_sides():
    """Without the options that both have, neither table nor JSON says how to play it again."""
    arguments = ("compare", "data-loss", "--control", "quorum")
    both = json_of(*arguments)
    assert both["left"]["options"] == {"control": "quorum", "truncation": "high-watermark"}
    assert both["right"]["options"] == {"control": "quorum", "truncation": "leader-epoch"}
    assert "control=quorum truncation=leader-epoch: lost: nothing" in told(*arguments).stdout


def test_compare_aligns_steps_of_the_same_command():
    """Under the real quorum the ISR changes by itself at times: such a step stands alone, and the rest stays in line."""
    both = compare(read(LIBRARY / "s22_data_loss.txt"), {"control": "script"}, {"control": "quorum"})
    assert any(pair.left is None for pair in both.pairs)
    assert all(pair.left.line == pair.right.line for pair in both.pairs if pair.left and pair.right)
    assert len({len(row) for row in rows_of(both)}) == 1


# ---- the library -----------------------------------------------------------------------------------------------------


def test_every_story_has_a_sentence_and_the_sources_that_it_names():
    """A list that explains nothing helps nobody; every story is found by the name that the list shows."""
    scenarios = [find(name) for name in names()]
    assert all("\n" not in story(each) for each in scenarios)
    assert references(find("data-loss")) == ["KAFKA-1211", "KIP-101"]
    assert [find(short_name(name)).name for name in names()] == names()


def test_every_name_runs_from_the_command_line():
    """`lab run NAME` of every name that `lab list` prints, exit code 0: the file's own verdict."""
    for name in names():
        told("run", name, "-o", "json")


def test_all_runs_that_a_file_expects_are_checked_by_the_command():
    """The options of a run, spelled out, find the file's expectation of it."""
    for name in ("s22_data_loss", "s23_divergence", "power_loss"):
        for expected in read(LIBRARY / f"{name}.txt").expected:
            options = [word for key, value in expected.options for word in ("--set", f"{key}={value}")]
            told("run", name, *options)


@pytest.mark.parametrize(
    "command", ["lab run data-loss", "lab run rebalance", "lab compare rebalance", "lab run coordinator-dies"]
)
def test_documented_tables_are_what_the_command_prints(command: str):
    """docs/lab.md shows excerpts: each line of them is one that the command prints now, in the same order."""
    text = (ROOT / "docs/lab.md").read_text(encoding="utf-8")
    printed = told(*command.split()[1:]).stdout.splitlines()
    head = next(line for line in printed if line.startswith(("step ", "time ", "what was done ")))
    (excerpt,) = [block for block in re.findall(r"^```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if head in block]
    lines = excerpt.splitlines()[excerpt.splitlines().index(head) :]
    rest = iter(printed)
    assert [line for line in lines if line not in rest] == [], "copy the lines again from the command"
    assert len(lines) > 4


def test_documented_commands_exist():
    """docs/lab.md names every command of the language, so that a story can be written from it."""
    text = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
    from minikafka.lab.verbs import Verbs

    assert [verb for verb in Verbs.BY_NAME if f"`{verb}" not in text] == []
