"""What the demo shows: a live picture at a terminal, one plain line elsewhere; and what it counts as settled."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from click.testing import CliRunner
from rich.console import Console

from minikafka.chaos.watch import ClusterState, PartitionState
from minikafka.cli.demo_story import Screen, Shown
from minikafka.cli.root import root
from minikafka.types import TopicPartition


def partition(number: int, leader: int, isr: tuple[int, ...] = (1, 2, 3)) -> PartitionState:
    return PartitionState(number, leader, 4, (1, 2, 3), isr, 1_000)


def marks(*high_watermarks: int) -> tuple[tuple[int, TopicPartition, int, int], ...]:
    return tuple((node, TopicPartition("flights", 0), mark, 1_000) for node, mark in enumerate(high_watermarks, 1))


def shown(state: ClusterState) -> Shown:
    stream: Any = SimpleNamespace(sent=900, answered=800, acknowledged=790, failed=4, unknown=6)
    return Shown(stream, 1_000, lambda: state, lambda: {1: True, 2: False, 3: True})


STATE = ClusterState(1.0, 3, (partition(0, -1), partition(1, 3, (3, 1))), ())


def test_the_live_picture_tells_leaders_isr_marks_and_counts():
    """Issue item 9: live progress with rates, leaders, ISR, HW."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    console.print(Screen(console)._picture(shown(STATE)))
    text = out.getvalue()
    for words in ("3*", "none", "3,1", "1,000", "790 of 1,000 acknowledged", "100 under way", "4 failed, 6 unknown"):
        assert words in text


def test_the_plain_line_tells_the_same():
    """Issue item 9, CI: without a terminal a line is a line, with no escape codes."""
    out = io.StringIO()
    screen = Screen(Console(file=out, width=10_000))
    screen.say(screen._line(shown(STATE)))
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()
    assert "790 of 1,000 acknowledged (79 %)" in out.getvalue()
    assert "0:none(1,2,3)@1000 1:3(3,1)@1000" in out.getvalue()


def test_settled_means_that_every_replica_knows_that_all_is_committed():
    """The replicas may be compared only when each has all records and the last high watermark."""
    full = (partition(0, 1),)
    assert ClusterState(1.0, 1, full, marks(1_000, 1_000, 1_000)).settled
    assert not ClusterState(1.0, 1, full, marks(1_000, 1_000, 999)).settled
    assert not ClusterState(1.0, 1, full, marks(1_000, 1_000)).settled
    assert not ClusterState(1.0, 1, (partition(0, 1, (1, 2)),), marks(1_000, 1_000, 1_000)).settled
    assert not ClusterState(1.0, 1, (partition(0, -1),), marks(1_000, 1_000, 1_000)).settled
    assert not ClusterState().all_in_sync


def test_who_leads():
    """The first victim is the broker that leads most partitions."""
    state = ClusterState(1.0, 1, (partition(0, 2), partition(1, 1), partition(2, 2)))
    assert (state.led_by(2), state.led_by(3)) == ((0, 2), ())


def test_demo_that_cannot_begin_names_no_files(tmp_path):
    """It said where its logs and its verdict were, which it had not written."""
    (tmp_path / "file").touch()
    result = CliRunner().invoke(root, ["demo", "--fast", "--no-spark", "--data-dir", str(tmp_path / "file" / "run")])
    assert result.exit_code == 1
    assert "verdict.json" not in result.output
