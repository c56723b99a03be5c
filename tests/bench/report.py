"""The figures as people read them: a table for the terminal, and a table and a picture for the documents.

What a run measured is kept in ``docs/bench.json``; the sections between the markers, and the picture, are made from that
file and from nothing else. A test of tests/tidy makes them again and compares: no figure is typed in by hand.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from rich.console import Console
from rich.table import Table

from tests.bench.measure import BARE, KAFKA
from tests.tidy.sources import ROOT

RESULT = ROOT / "docs/bench.json"
PICTURE = ROOT / "docs/bench.svg"
DOCUMENTS = (ROOT / "docs/performance.md", ROOT / "README.md")
BEGIN = "<!-- figures of make bench begin: {what} -->"
END = "<!-- figures of make bench end -->"

README_KAFKA_ROWS = (
    "produce acks=1 RF 1, 1000 KiB, c=4",
    "produce acks=all RF 3, 1000 KiB, c=4",
    "fetch 1000 KiB, c=4",
    "p50 acks=all RF 3, one 1 KiB record, c=1",
    "p99 acks=all RF 3, one 1 KiB record, c=1",
    "frames: produce acks=1 RF 1, 100 B, 32 connections x 1",
    "small requests, acks=all RF 3, 100 B, c=32",
    "confluent-kafka producer acks=all RF 3, 100 B",
    "kafka-producer-perf-test acks=all RF 3, 100 B",
    "kill -9 of a leader, to the next ack",
    "start to first acknowledged record, 3 brokers",
    "resident memory, idle broker",
)
"""Rows of README's table; docs/performance.md has all. A kept run that could not measure Apache Kafka has none of them."""

NO_KAFKA = "Apache Kafka was not measured in this run: it needs Java 17 and its jars."

Result = dict[str, Any]
Line = dict[str, Any]


def figure(value: float) -> str:
    """Four significant digits, no exponent."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def bound(line: Line) -> str:
    """The floor or the ceiling of the ratio; empty without one."""
    if line["floor"] is None:
        return ""
    return f"{'≥' if line['bound'] == 'at least' else '≤'} {line['floor']:g}"


def verdict(line: Line) -> str:
    return "" if line["reached"] is None else "reached" if line["reached"] else "MISSED"


def by_yardstick(result: Result) -> tuple[list[Line], list[Line]]:
    """The rows beside a bare server (or what their note says), and those beside Apache Kafka."""
    lines = result["rows"]
    is_kafka = [line.get("beside", BARE).startswith(KAFKA) for line in lines]
    return (
        [line for line, it_is in zip(lines, is_kafka, strict=True) if not it_is],
        [line for line, it_is in zip(lines, is_kafka, strict=True) if it_is],
    )


def show(result: Result) -> str:
    """A table for a terminal, and one more for the rows beside Kafka."""
    console = Console(width=150)
    with console.capture() as captured:
        for lines in filter(None, by_yardstick(result)):
            console.print(_table(lines))
    return f"{captured.get()}{provenance(result)}\n"


def _table(lines: list[Line]) -> Table:
    beside = lines[0].get("beside", BARE)
    table = Table(title=f"minikafka beside {beside} (medians of rounds in turn)")
    for heading in ("row", "unit", "ours", "bare" if beside == BARE else "Kafka", "ratio", "floor", "", "note"):
        table.add_column(heading, justify="right" if heading not in ("row", "unit", "", "note") else "left")
    for line in lines:
        cells = (line["name"], line["unit"], figure(line["ours"]), figure(line["bare"]), f"{line['ratio']:.3g}")
        table.add_row(*cells, bound(line), verdict(line), line["note"])
    return table


HEADER = ("commit", "quick", "cores", "load_before", "seconds", "versions")


def with_kafka_rows(whole: Result, kafka_run: Result) -> Result:
    """``whole`` with the rows beside Apache Kafka of another run, and where those were measured."""
    rows = by_yardstick(whole)[0] + by_yardstick(kafka_run)[1]
    return {**whole, "rows": rows, "kafka_run": {name: kafka_run[name] for name in HEADER}}


def completed(result: Result, kept: Result, *, is_bare: bool) -> Result:
    """A result with the rows of ``kept`` that its run left out: those beside Kafka if ``is_bare``, or all others if it has
    only those. A whole run is returned unchanged. ValueError if ``is_bare`` and there is no such row.
    """
    if is_bare:
        if not by_yardstick(result)[0]:
            raise ValueError("--only bare: the result has no row beside a bare server")
        return with_kafka_rows(result, {**kept, **kept.get("kafka_run", {})})
    return result if by_yardstick(result)[0] else with_kafka_rows(kept, result)


def provenance(result: Result) -> str:
    """Where and how the figures were measured, as one sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    how = "`--quick`, " if result["quick"] else ""
    return (
        f"Commit {result['commit']}, {how}{result['cores']} cores, {versions}; load before the run "
        f"{result['load_before']:.2f}; {result['seconds'] / 60:.0f} minutes."
    )


# ---- documents -------------------------------------------------------------------------------------------------------


def write_documents(result: Result) -> None:
    """Keep the result, and bring the documents and the picture to it."""
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PICTURE.write_text(picture(result), encoding="utf-8")
    for document in DOCUMENTS:
        document.write_text(with_sections(document.read_text(encoding="utf-8"), result), encoding="utf-8")


def kept() -> Result:
    """The result that the documents are made from."""
    result: Result = json.loads(RESULT.read_text(encoding="utf-8"))
    return result


def with_sections(text: str, result: Result) -> str:
    """The document with its generated sections made anew; ValueError when a marker has no end."""
    bare, kafka = by_yardstick(result)
    sections = {
        "all": [provenance(result), "", *_all_rows(bare, "bare")],
        "beside Kafka": [NO_KAFKA],
        "a few beside Kafka": [NO_KAFKA],
    }
    if kafka:
        told = standing(kafka)
        measured = [provenance(result["kafka_run"]), ""] if "kafka_run" in result else []
        sections["beside Kafka"] = [*measured, told, "", *_all_rows(kafka, "Kafka")]
        sections["a few beside Kafka"] = [*_rows_of_the_readme(kafka), "", told]
    for what, section in sections.items():
        begin = BEGIN.format(what=what)
        if begin in text:
            before, _, rest = text.partition(begin)
            _, end, after = rest.partition(END)
            if not end:
                raise ValueError(f"{begin} has no {END}")
            text = "\n".join((before + begin, "", *section, "", END + after))
    return text


def standing(kafka: list[Line]) -> str:
    """In how many of the rows beside Kafka we are ahead, and which Kafka it was."""
    ahead = sum(line["ratio"] >= 1 if line["bound"] == "at least" else line["ratio"] <= 1 for line in kafka)
    return f"{kafka[0]['beside']}: minikafka is ahead in {ahead} of {len(kafka)} rows."


def _all_rows(lines: list[Line], yardstick: str) -> list[str]:
    table = [f"| row | ours | {yardstick} | ratio | floor | |", "|---|---:|---:|---:|---|---|"]
    for line in lines:
        ours, bare = (f"{figure(line[arm])} {line['unit']}" for arm in ("ours", "bare"))
        told = "; ".join(filter(None, (verdict(line), line["note"])))
        table.append(f"| {line['name']} | {ours} | {bare} | {line['ratio']:.3g} | {bound(line)} | {told} |")
    return table


def _rows_of_the_readme(lines: list[Line]) -> list[str]:
    known = {line["name"]: line for line in lines}
    table = ["| | minikafka | Kafka | ratio |", "|---|---:|---:|---:|"]
    for name in README_KAFKA_ROWS:
        if name in known:
            line = known[name]
            ours, bare = (f"{figure(line[arm])} {line['unit']}" for arm in ("ours", "bare"))
            table.append(f"| {name} | {ours} | {bare} | {line['ratio']:.3g} |")
    return table


# ---- the picture -----------------------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT, HEIGHT_OF_ROW, TOP = 980, 400, 190, 22, 56
LOWEST, HIGHEST = 0.02, 2.0


def picture(result: Result) -> str:
    """Bars of what share of the bare side's speed each row reaches, on a logarithmic scale; longer is better."""
    lines = [line for line in by_yardstick(result)[0] if line["same_work"]]
    height = TOP + HEIGHT_OF_ROW * len(lines) + 24
    frame = f'width="{WIDTH}" height="{height}"'
    title = "Speed beside a bare aiohttp server doing the same transfer (1 = as fast; logarithmic)"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} font-family="sans-serif" font-size="12">',
        f'<rect {frame} fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="15" fill="#222222">{title}</text>',
    ]
    for tick in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2):
        x = _x_of(tick)
        parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{height - 20}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x}" y="{TOP - 12}" text-anchor="middle" fill="#666666">{tick:g}</text>')
    for number, line in enumerate(lines):
        parts += _bar(line, TOP + HEIGHT_OF_ROW * number)
    return "\n".join([*parts, "</svg>", ""])


def _bar(line: Line, y: int) -> list[str]:
    is_share = line["bound"] == "at least"
    speed = line["ratio"] if is_share else 1 / line["ratio"]
    colour = "#c0392b" if line["reached"] is False else "#2e7d57" if line["reached"] else "#5b7ea6"
    middle = y + HEIGHT_OF_ROW // 2 + 4
    parts = [
        f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end" fill="#222222">{escape(line["name"])}</text>',
        f'<rect x="{LEFT}" y="{y + 4}" width="{_x_of(speed) - LEFT}" height="{HEIGHT_OF_ROW - 8}" fill="{colour}"/>',
        f'<text x="{WIDTH - RIGHT + 10}" y="{middle}" fill="#222222">{figure(line["ours"])} {escape(line["unit"])}</text>',
    ]
    if line["floor"] is not None:
        x = _x_of(line["floor"] if is_share else 1 / line["floor"])
        parts.append(f'<line x1="{x}" x2="{x}" y1="{y + 1}" y2="{y + HEIGHT_OF_ROW - 1}" stroke="#222222"/>')
    return parts


def _x_of(speed: float) -> int:
    inside = min(max(speed, LOWEST), HIGHEST)
    share = math.log(inside / LOWEST) / math.log(HIGHEST / LOWEST)
    return round(LEFT + share * (WIDTH - LEFT - RIGHT))


def written_by(path: Path) -> str:
    """What the document would be."""
    return with_sections(path.read_text(encoding="utf-8"), kept())
