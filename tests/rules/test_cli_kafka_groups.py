"""``minikafka groups -o kafka``: what kafka-consumer-groups prints, byte for byte (HTTP-CLI-CONVENTIONS 4.1, issue 6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minikafka.cli import kafka_layout as layout
from minikafka.cli.group_changes import _read_csv
from minikafka.groups.offsets import Goal
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import DescribedGroup, DescribedMember, ListedGroup

O0, O1, O2 = (TopicPartition("orders", number) for number in (0, 1, 2))
T0 = TopicPartition("t", 0)


def member(name: str, **more: object) -> DescribedMember:
    told = {"member_id": f"{name}-1", "client_id": name, "client_host": "/127.0.0.1", **more}
    return DescribedMember(**told)  # type: ignore[arg-type]


def group(*members: DescribedMember, state: str = "Stable") -> DescribedGroup:
    protocol = "range" if state == "Stable" else ""
    return DescribedGroup(group_id="billing", state=state, generation_id=3, protocol=protocol, members=members)


def test_list():
    """Names alone; with --state a table whose first column has ten blanks to spare."""
    groups = [
        ListedGroup(group_id="billing", state="Stable"),
        ListedGroup(group_id="a-group-with-a-long-name", state="Empty"),
    ]
    assert list(layout.groups_listed(groups, with_states=False)) == ["billing", "a-group-with-a-long-name"]
    assert list(layout.groups_listed(groups, with_states=True)) == [
        "GROUP                              STATE               ",
        "billing                            Stable              ",
        "a-group-with-a-long-name           Empty               ",
    ]
    assert list(layout.groups_listed([], with_states=True)) == ["GROUP                     STATE               "]


def test_describe():
    """The member with the most partitions first; then what nobody reads; a dash where nothing is known."""
    assigned = {"c-1": [O2], "a-member-with-a-name-1": [O0, O1]}
    told = group(member("c"), member("a-member-with-a-name"), member("idle"))
    committed = {O0: 41, O2: 7, T0: 3}
    assert list(layout.group_offsets(told, assigned, committed, {O0: 44, O1: 2, O2: 7, T0: 3})) == [
        "",
        (
            "GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             "
            "CONSUMER-ID            HOST            CLIENT-ID"
        ),
        (
            "billing         orders          0          41              44              3               "
            "a-member-with-a-name-1 /127.0.0.1      a-member-with-a-name"
        ),
        (
            "billing         orders          1          -               2               -               "
            "a-member-with-a-name-1 /127.0.0.1      a-member-with-a-name"
        ),
        (
            "billing         orders          2          7               7               0               "
            "c-1                    /127.0.0.1      c"
        ),
        (
            "billing         t               0          3               3               0               "
            "-                      -               -"
        ),
    ]
    assert list(layout.group_offsets(group(state="Empty"), {}, {}, {})) == []


def test_what_the_tool_says_beside_a_table():
    """On standard error, an empty line in front."""
    assert layout.groups_notice(group()) is None
    assert layout.groups_notice(group(state="Empty")) == "\nConsumer group 'billing' has no active members."
    rebalancing = "\nWarning: Consumer group 'billing' is rebalancing."
    assert layout.groups_notice(group(state="PreparingRebalance")) == rebalancing
    assert layout.groups_notice(group(state="CompletingRebalance")) == rebalancing


def test_members():
    """A blank at the end of each line; static members have a column of their own; --verbose has the assignments."""
    told = group(member("c"), member("d"))
    assigned = {"c-1": [O0, O2, T0]}
    assert list(layout.group_members(told, assigned, verbose=False)) == [
        "",
        "GROUP           CONSUMER-ID     HOST            CLIENT-ID       #PARTITIONS     ",
        "billing         c-1             /127.0.0.1      c               3               ",
        "billing         d-1             /127.0.0.1      d               0               ",
    ]
    assert list(layout.group_members(told, assigned, verbose=True)) == [
        "",
        (
            "GROUP           CONSUMER-ID     HOST            CLIENT-ID       #PARTITIONS     "
            "CURRENT-EPOCH   CURRENT-ASSIGNMENT   TARGET-EPOCH    TARGET-ASSIGNMENT   "
        ),
        (
            "billing         c-1             /127.0.0.1      c               3               "
            "-               orders:0,2;t:0       -               -                   "
        ),
        (
            "billing         d-1             /127.0.0.1      d               0               "
            "-               -                    -               -                   "
        ),
    ]
    static = group(member("c", group_instance_id="one"), member("d"))
    assert list(layout.group_members(static, assigned, verbose=False)) == [
        "",
        "GROUP           CONSUMER-ID     GROUP-INSTANCE-ID HOST            CLIENT-ID       #PARTITIONS     ",
        "billing         c-1             one               /127.0.0.1      c               3               ",
        "billing         d-1                               /127.0.0.1      d               0               ",
    ]
    assert list(layout.group_members(group(state="Empty"), {}, verbose=False)) == []


def test_state():
    """The coordinator with two blanks before its id."""
    assert list(layout.group_state(group(member("c")), "127.0.0.1:9092  (1)")) == [
        "",
        "GROUP           COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE                #MEMBERS",
        "billing         127.0.0.1:9092  (1)       range                Stable               1",
    ]
    assert list(layout.group_state(group(state="Empty"), "127.0.0.1:9092  (1)"))[2] == (
        "billing         127.0.0.1:9092  (1)       -                    Empty                0"
    )


def test_reset_export_and_delete():
    """CSV as --from-file reads it, with the empty line behind it."""
    assert list(layout.group_offsets_reset({"billing": {O0: 5, O1: 10}, "b": {T0: 3}})) == [
        "",
        "GROUP           TOPIC           PARTITION  NEW-OFFSET",
        "billing         orders          0          5",
        "billing         orders          1          10",
        "b               t               0          3",
    ]
    assert list(layout.group_offsets_exported({O0: 5, O1: 10})) == ["orders,0,5", "orders,1,10", ""]
    assert layout.groups_deleted(["a", "b"]) == "Deletion of requested consumer groups ('a', 'b') was successful."


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "from a spreadsheet"])
def test_an_exported_file_is_read_again(mark: str, tmp_path: Path):
    """Spreadsheets write a byte order mark, which was read as a part of the first topic's name."""
    path = tmp_path / "offsets.csv"
    path.write_text(mark + "\n".join(layout.group_offsets_exported({O0: 5, O1: 10})), encoding="utf-8")
    assert _read_csv(path) == {O0: Goal("offset", offset=5), O1: Goal("offset", offset=10)}


def test_delete_offsets():
    """A sentence, an empty line, a table; topics and partitions in order."""
    assert list(layout.group_offsets_deleted("billing", [O0, O2, T0])) == [
        "Request succeed for deleting offsets with topic orders, t group billing",
        "",
        "TOPIC                          PARTITION       STATUS         ",
        "orders                         0               Successful     ",
        "orders                         2               Successful     ",
        "t                              0               Successful     ",
    ]
