"""Output for people and for programs: one table printer, one JSON printer, the ``-o`` option, files, ``--watch``.

Rules for this file: JSON is one object, a contract (docs/cli.md); tables are for reading, also through ``awk``: no
boxes, nothing is cut; ``tsv`` is the table's cells for ``cut``, one line of names and a line a row, whatever is in a
cell. ``NO_COLOR`` is honoured. With ``--watch`` a terminal shows each view over the last one; into a pipe each view is
printed whole, so that ``-o json`` gives one object a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import click
from msgspec import structs
from rich.cells import cell_len

from minikafka.cli.admin import Decorated, GivenPath, tls_options
from minikafka.cli.running import run

if TYPE_CHECKING:
    from rich.console import Console

    from minikafka.wire.messages import Message


GAP = "  "
PIPE_WIDTH = 10_000
"""Columns when nobody looks: a line is never folded."""
LAST_WIDTH_MIN = 24
"""What a last column must keep to be folded."""


def _output_option(kinds: Sequence[str], meaning: str) -> Callable[[Decorated], Decorated]:
    return click.option("-o", "--output", type=click.Choice(kinds), default="table", show_default=True, help=meaning)


output_option = _output_option(["table", "json"], "Text for people, or one JSON object (a contract: docs/cli.md).")
"""Of what is no table but a report."""

list_output_option = _output_option(
    ["table", "json", "tsv"], "A table for people, one JSON object (a contract: docs/cli.md), or the table with tabs."
)
"""Of all that lists."""

kafka_output_option = _output_option(
    ["table", "json", "tsv", "kafka"],
    "A table for people, one JSON object (a contract: docs/cli.md), the table with tabs, or what Kafka's own tool "
    "prints.",
)
"""Of what a tool of Kafka's lists too."""


def together(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """Options and arguments of several commands as one decorator, in the order in which a command has them."""

    def decorated(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


EXISTING_FILE = GivenPath(exists=True, dir_okay=False, path_type=Path)
FOLDER = GivenPath(file_okay=False, path_type=Path)


class OutputFile(GivenPath):
    """A file that the command will write: that it can be written is checked before the work, not after it."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        folder = path.parent
        if not folder.is_dir():
            self.fail(f"{path} cannot be written: there is no directory {folder}; create it first.", param, ctx)
        if not os.access(folder, os.W_OK) and not path.exists():
            self.fail(f"{path} cannot be written: directory {folder} is not writable.", param, ctx)
        return path


def bootstrap_option(function: Decorated, *, logs_in: bool = True) -> Decorated:
    """``-b`` and the options of TLS and of a login, also from the environment."""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        default="127.0.0.1:9092",
        show_default=True,
        envvar="MINIKAFKA_BOOTSTRAP",
        show_envvar=True,
        metavar="HOST:PORT,...",
        help="Addresses of one or more brokers; one that can be reached is enough.",
    )(tls_options(function, logs_in=logs_in))


list_options = together(bootstrap_option, list_output_option)
"""Of commands that list what brokers answer."""

kafka_list_options = together(bootstrap_option, kafka_output_option)
"""Of those that a tool of Kafka's has too."""


def topic_argument(function: Decorated) -> Decorated:
    """``TOPIC``, or ``--topic TOPIC`` as Kafka's console tools have it (kcat's ``-t``)."""

    def chosen(ctx: click.Context, _param: click.Parameter, named: str | None) -> str:
        topics = {each for each in (named, ctx.params.pop("topic_option", None)) if each is not None}
        if not topics:
            raise click.UsageError("Missing argument 'TOPIC'.", ctx)
        if len(topics) > 1:
            raise click.UsageError(f"Two topics were given, {' and '.join(sorted(topics))}: keep one of them.", ctx)
        return topics.pop()

    option = click.option(
        "--topic", "-t", "topic_option", is_eager=True, metavar="TOPIC", help="The same as the argument."
    )
    return option(click.argument("topic", required=False, metavar="TOPIC", callback=chosen)(function))


def repeatable(
    name: str, parameter: str, meaning: str, metavar: str | None = None, **more: Any
) -> Callable[[Decorated], Decorated]:
    """An option that may be given several times; ``more`` is what click takes."""
    return click.option(name, parameter, multiple=True, metavar=metavar, help=f"{meaning} (repeatable).", **more)


config_option = repeatable("--config", "config", "Setting, by Kafka's name", "KEY=VALUE")


def data_dir_option(meaning: str) -> Callable[[Decorated], Decorated]:
    """``--data-dir`` of commands that start brokers."""
    default = Path("minikafka-data")
    return click.option("--data-dir", type=FOLDER, default=default, show_default=True, metavar="DIR", help=meaning)


def console(*, stderr: bool = False) -> Console:
    """Where tables and progress go; with ``NO_COLOR`` neither colour nor bold."""
    from rich.console import Console  # noqa: PLC0415 - a broker uses this module's options only

    class PipedConsole(Console):
        """A reader that left (``| head``) is no failure, as after :func:`print_lines`; rich would exit with 1."""

        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    return PipedConsole(
        file=stream,
        width=None if stream.isatty() else PIPE_WIDTH,
        highlight=False,
        soft_wrap=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


Columns: TypeAlias = Mapping[str, str | Callable[[Any], object]]
"""Title of each column -> its cell: a member of what a row shows, by its name, or what a function makes of it."""


def columns_of(*titles: str, **made: Callable[[Any], object]) -> Columns:
    """Declare columns: ``LeaderEpoch`` shows the member ``leader_epoch``, ``State=status`` the member ``status``.

    ``made`` has functions that make the cells of a column, by its title.
    """
    found = (each.partition("=") for each in titles)
    return {title: made.get(title, member or _snake_case(title)) for title, _, member in found}


def _snake_case(title: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[- ]", "_", title).lower()


def print_found(
    output: str,
    document: Any,
    columns: Sequence[str] | Columns,
    rows: Sequence[Any],
    *,
    kafka: Iterable[str] = (),
    nothing: str = "",
    said: str = "",
) -> None:
    """What a command has found or done, as ``output`` has it.

    ``columns`` and ``rows`` are those of :func:`print_table`. People read ``nothing`` in place of an empty table, and
    ``said`` in place of any.
    """
    if output == "json":
        print_json(document)
    elif output == "kafka":
        print_lines(kafka)
    elif output == "tsv" or not (said or (nothing and not rows)):
        print_table(columns, rows, output)
    else:
        click.echo(said or nothing)


def print_table(columns: Sequence[str] | Columns, rows: Iterable[Any], output: str = "table") -> None:
    """Columns as wide as their content, two blanks between; numbers stand right. With ``tsv``: a tab between.

    Nothing is cut: at a terminal the last column is folded if there is room for that, else lines run on.

    Args:
        columns: Titles alone, or how each column's cell is made.
        rows: Rows of cells; with columns that make them, an object or a dictionary for each row.
        output: ``table`` or ``tsv``.
    """
    rows = rows_of(columns, rows) if isinstance(columns, Mapping) else list(map(tuple, rows))
    if output == "tsv":
        print_lines(tsv_line(*row) for row in (columns, *rows))
        return
    table = [tuple(columns), *(tuple(shown(cell).translate(_CONTROLS) for cell in row) for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    screen = console()
    room = screen.width - sum(widths[:-1]) - len(GAP) * (len(widths) - 1)
    if LAST_WIDTH_MIN <= room < widths[-1]:
        table = [line for row in table for line in _folded(row, room)]
    right = [bool(rows) and all(isinstance(row[index], int) for row in rows) for index in range(len(columns))]
    names, *lines = (GAP.join(map(_padded, row, widths, right)).rstrip() for row in table)
    click.echo(names if screen.color_system is None else click.style(names, bold=True))
    print_lines(lines)


def rows_of(columns: Columns, found: Iterable[Any]) -> list[tuple[object, ...]]:
    """Make a row of each of ``found``, which are objects or dictionaries."""
    reads = [_reader(each) if isinstance(each, str) else each for each in columns.values()]
    return [tuple(read(each) for read in reads) for each in found]


def _reader(name: str) -> Callable[[Any], object]:
    return lambda each: each[name] if isinstance(each, dict) else attrgetter(name)(each)


def _folded(row: tuple[str, ...], room: int) -> Iterator[tuple[str, ...]]:
    """The row as several, of which the later ones have the last cell's further lines only."""
    *cells, last = row
    for piece in textwrap.wrap(last, room) or [""]:
        yield *cells, piece
        cells = [""] * len(cells)


def _padded(cell: str, width: int, right: bool) -> str:
    blanks = " " * (width - cell_len(cell))
    return blanks + cell if right else cell + blanks


def print_lines(lines: Iterable[str]) -> None:
    """Lines as they are."""
    for line in lines:
        click.echo(line)


_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}
"""A client's name must neither break a table nor steer a terminal."""
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


def many(count: int, what: str) -> str:
    """``1 broker``, ``2 brokers``."""
    return f"{count} {what}{'s' * (count != 1)}"


def partition_name(document: Mapping[str, Any]) -> str:
    """``orders-0``, of a JSON object that names a partition."""
    return f"{document['topic']}-{document['partition']}"


def as_document(record: Message) -> dict[str, Any]:
    """The members of a message without messages in it, under their names; tuples are lists, as in JSON."""
    return {name: list(each) if isinstance(each, tuple) else each for name, each in structs.asdict(record).items()}


def json_line(value: Any) -> str:
    """One object as one line, without its end."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def print_json(value: Any) -> None:
    """One object on one line, out at once: scripts wait for it."""
    click.echo(json_line(value))
    sys.stdout.flush()


Shown = TypeVar("Shown")

EVERY_S = 2.0
CLEAR = "\x1b[H\x1b[2J"
"""To the upper left corner, and nothing left of the last view."""


watch_option = click.option("--watch", is_flag=True, help=f"Show it again every {EVERY_S:.0f} seconds, until Ctrl-C.")


def show(ask: Callable[[], Awaitable[Shown]], draw: Callable[[Shown], None], *, watch: bool) -> None:
    """Ask and draw once, or until it is interrupted."""

    async def once() -> Shown:
        return await ask()

    if not watch:
        draw(run(once))
        return

    async def again_and_again() -> None:
        try:
            while True:
                answer = await ask()
                if sys.stdout.isatty():
                    click.echo(CLEAR, nl=False)
                draw(answer)
                sys.stdout.flush()
                await asyncio.sleep(EVERY_S)
        except asyncio.CancelledError:
            return

    run(again_and_again)
