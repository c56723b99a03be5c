"""Rows that the audit's joins leave over, as the history checker's findings."""

from __future__ import annotations

from collections import Counter
from typing import Any

from minikafka.check.findings import (
    MISSING,
    AbortedRead,
    Diverged,
    Duplicate,
    Finding,
    InconsistentOffsets,
    LostWrite,
    NonmonotonicSend,
    PhantomRead,
    ReadAboveHw,
    Shifted,
    Unseen,
)
from minikafka.types import NO_EPOCH, NO_OFFSET

READER = "audit"
"""Who read the committed records; the same name as in ``minikafka audit``."""


def _place(row: Any) -> dict[str, Any]:
    fields = row.asDict()
    number, offset = fields.get("partition"), fields.get("offset")
    return {
        "topic": row.topic,
        "partition": -1 if number is None else number,
        "offset": NO_OFFSET if offset is None else offset,
    }


def lost(row: Any) -> Finding:
    """Acknowledged and gone."""
    return LostWrite(
        **_place(row), value=row.value, op=row.op, process=row.process, held_by=(), read_up_to=row.read_up_to
    )


def unseen(row: Any) -> Finding:
    """Acknowledged and beyond all that is there."""
    return Unseen(**_place(row), value=row.value, op=row.op, process=row.process, read_up_to=row.read_up_to)


def _first(row: Any) -> dict[str, Any]:
    return {"topic": row.topic, "partition": row.at[0].partition, "offset": row.at[0].offset}


def duplicate(row: Any) -> Finding:
    """A value with its places."""
    places = tuple((each.partition, each.offset) for each in row.at)
    second = {"topic": row.topic, "partition": places[1][0], "offset": places[1][1]}
    return Duplicate(**second, value=row.value, places=places, sends=row.may_stand or 0)


def aborted(row: Any) -> Finding:
    """A value whose sends failed."""
    return AbortedRead(**_first(row), value=row.value, op=row.last_op, error=row.error or "", seen_by=READER)


def phantom(row: Any) -> Finding:
    """A value that nobody sent."""
    return PhantomRead(**_first(row), value=row.value, seen_by=READER)


def inconsistent(row: Any) -> Finding:
    """A place with all that is claimed of it."""
    return InconsistentOffsets(**_place(row), values=tuple((each.value, each.who) for each in row.claims))


def shifted(row: Any) -> Finding:
    """A stretch that moved."""
    return Shifted(
        **_place(row),
        until=row.until,
        distance=row.distance,
        count=row.count_,
        values=(row.first_value, row.last_value),
        processes=tuple(row.processes),
    )


def reordered(row: Any) -> Finding:
    """A send with the one before it."""
    return NonmonotonicSend(
        topic=row.topic,
        partition=row.partition,
        offset=row.stands_at,
        process=row.process,
        key=row.key,
        ops=(row.before_op, row.op),
        values=(row.before_value, row.value),
        offsets=(row.before_stands_at, row.stands_at),
    )


def above(row: Any) -> Finding:
    """A record of a poll."""
    return ReadAboveHw(**_place(row), process=row.process, value=row.value, high_watermark=row.high_watermark)


def diverged(row: Any) -> Finding:
    """A place with what each replica has there."""
    held = {each.node: (each.epoch, each.value) for each in row.holdings}
    owing = sorted({each.node for each in row.owing} | held.keys())
    holdings = {node: held.get(node, (NO_EPOCH, MISSING)) for node in owing}
    usual = Counter(holdings.values()).most_common(1)[0][0]
    strays = [node for node in owing if holdings[node] != usual]
    return Diverged(
        **_place(row),
        holdings=tuple((node, *holdings[node]) for node in owing),
        detail=f"replica {', '.join(map(str, strays))} differs from the others",
    )
