"""Output for people and for programs: one table printer, one JSON printer, and the ``-o`` option that chooses.

Rules for this file: JSON is one object, a contract (docs/cli.md); tables are for reading, also through ``awk``: no
boxes, never cut to the width of a terminal that is not there; ``tsv`` is the table's cells for ``cut``, one line of
names and a line a row, whatever is in a cell. ``NO_COLOR`` is honoured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

PIPE_WIDTH = 10_000
"""Columns when nobody looks: a line is never folded."""


def output_option(function: Decorated) -> Decorated:
    """``-o table|json``, of what is no table but a report."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Text for people, or one JSON object (a contract: docs/cli.md).",
    )(function)


def list_output_option(function: Decorated) -> Decorated:
    """``-o table|json|tsv``, of all that lists."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "tsv"]),
        default="table",
        show_default=True,
        help="A table for people, one JSON object (a contract: docs/cli.md), or the table with tabs.",
    )(function)


def kafka_output_option(function: Decorated) -> Decorated:
    """``-o table|json|tsv|kafka``."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "tsv", "kafka"]),
        default="table",
        show_default=True,
        help="A table for people, one JSON object (a contract: docs/cli.md), the table with tabs, or what Kafka's own "
        "tool prints.",
    )(function)


def bootstrap_option(function: Decorated) -> Decorated:
    """``-b``, also from the environment."""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        default="127.0.0.1:9092",
        show_default=True,
        envvar="MINIKAFKA_BOOTSTRAP",
        show_envvar=True,
        help="host:port of some brokers, with commas; one that lives is enough.",
    )(function)


def config_option(function: Decorated) -> Decorated:
    """``--config K=V``, repeatable."""
    return click.option(
        "--config",
        "config",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting by Kafka's name; may be given again.",
    )(function)


def console(*, stderr: bool = False) -> Console:
    """Where tables and progress go."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], output: str = "table") -> None:
    """Columns as wide as their content, two blanks between; numbers stand right. With ``tsv``: a tab between."""
    rows = [tuple(row) for row in rows]
    if output == "tsv":
        print_lines(tsv_line(*row) for row in (columns, *rows))
        return
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True, overflow="ignore")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    console().print(table)


def print_lines(lines: Iterable[str]) -> None:
    """Lines as they are."""
    for line in lines:
        click.echo(line)


_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def escaped(cell: str) -> str:
    """A cell that neither ends its line nor its column: tab, line ends and backslash as in PostgreSQL's COPY."""
    return cell.translate(_ESCAPES)


def tsv_line(*cells: object) -> str:
    """One line of ``-o tsv``, without its end."""
    return "\t".join(escaped(shown(cell)) for cell in cells)


def shown(cell: object) -> str:
    """Lists with commas, as Kafka prints replicas; nothing as ``-``."""
    if isinstance(cell, list | tuple):
        return ",".join(map(str, cell)) or "-"
    return "-" if cell is None or cell == "" else str(cell)


def json_line(value: Any) -> str:
    """One object as one line, without its end."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def print_json(value: Any) -> None:
    """One object on one line, out at once: scripts wait for it."""
    click.echo(json_line(value))
    sys.stdout.flush()
