"""``minikafka log``: what stands in log files, and what is wrong with them, without a broker.

Nothing is changed and nothing is locked: a running broker's files can be looked at (its last segment may be in motion).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from minikafka.cli.admin import GivenPath
from minikafka.cli.formats import text_or_base64, visible, visible_json
from minikafka.cli.running import FAILED, Failure, Misuse, command_group
from minikafka.cli.tables import json_line, output_option, print_json
from minikafka.errors import ProtocolError
from minikafka.log.inspect import Finding, Row, dump, verify_directory, verify_log
from minikafka.log.names import LOG, offset_name, offsets_in, partition_of
from minikafka.quorum.records import HIDDEN, decode, shown_fields
from minikafka.types import METADATA_TOPIC
from minikafka.world.read_disk import ReadDisk

METADATA_FOLDER = f"{METADATA_TOPIC}-0"

EXISTING = GivenPath(exists=True, path_type=Path)


@command_group()
def command() -> None:
    """Read and check log files, without a broker.

    Examples:
      minikafka log dump /tmp/mk/broker-1/orders-0/00000000000000000000.log --records
      minikafka log verify /tmp/mk/broker-1
    """


@command.command(name="dump")
@click.argument("path", type=EXISTING)
@click.option("--records", is_flag=True, help="Print the records of each batch, too.")
@output_option
def dump_(path: Path, records: bool, output: str) -> None:
    r"""Print the batches of a segment, or the entries of an index, a snapshot or a checkpoint.

    PATH is a file, or a partition's folder: then all of its segments.

    Examples:
      minikafka log dump /tmp/mk/broker-1/orders-0
      minikafka log dump /tmp/mk/broker-1/orders-0/00000000000000000000.log --records
      minikafka log dump /tmp/mk/broker-1/orders-0/leader-epoch-checkpoint
      minikafka log dump /tmp/mk/broker-1/orders-0/00000000000000000000.log -o json | jq .baseOffset

    The words are those of kafka-dump-log. With -o json: one object a line. On a terminal, control characters in records
    are shown as \x1b.
    """
    path = path.absolute()
    folder = path if path.is_dir() else path.parent
    disk = ReadDisk(folder)
    names = [path.name]
    if path.is_dir():
        names = [offset_name(base, LOG) for base in offsets_in(disk.names(""), LOG)]
        if not names:
            raise Failure(f"{path} holds no segments; name a partition's folder, such as DIR/broker-1/orders-0")
    damaged = False
    for name in names:
        if output == "table":
            click.echo(f"Dumping {folder / name}")
        for found in _rows(disk, name, records=records):
            row = _without_secrets(found) if folder.name == METADATA_FOLDER else found
            damaged = damaged or "error" in row
            click.echo(printed(row, output, escape=sys.stdout.isatty()))
    if damaged:
        raise Failure(f"{path} is damaged; `minikafka log verify` of the broker's directory lists all damage")


def _rows(disk: ReadDisk, name: str, *, records: bool) -> Iterator[Row]:
    try:
        yield from dump(disk, name, records=records)
    except ValueError as error:
        raise Misuse(str(error)) from error


def _without_secrets(row: Row) -> Row:
    """A row of the metadata log. A record with salts, keys or secrets is shown as JSON without them."""
    value = row.get("value")
    if not isinstance(value, bytes | bytearray | memoryview):
        return row
    try:
        record = decode(bytes(value))
    except ProtocolError:
        return row
    shown = shown_fields(record)
    if HIDDEN not in shown.values():
        return row
    return {**row, "value": json.dumps({"type": type(record).__name__, **shown}).encode()}


def _plain(row: Row) -> dict[str, Any]:
    """A row as JSON has it: bytes as text where they are UTF-8, else in base64."""
    fields: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("key", "value"):
            fields |= text_or_base64(name, None if value is None else bytes(value))
        elif name == "headers":
            shown = [(header, text_or_base64("value", content)) for header, content in value]
            fields[name] = [[header, each.get("value", each)] for header, each in shown]
        else:
            fields[name] = value
    return fields


def printed(row: Row, output: str, *, escape: bool) -> str:
    """A row as text or JSON; ``escape``: for a terminal, which control characters of records must not reach."""
    line = (json_line(_plain(row)) if output == "json" else _line(row)).encode()
    if escape:
        line = visible_json(line) if output == "json" else visible(line)
    return line.decode()


def _line(row: Row) -> str:
    """A batch or an entry in kafka-dump-log's form; records stand below their batch."""
    words = " ".join(f"{name}: {_shown(value)}" for name, value in _plain(row).items())
    return f"| {words}" if "value" in row else words


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


@command.command()
@click.argument("directory", type=GivenPath(exists=True, file_okay=False, path_type=Path))
@output_option
def verify(directory: Path, output: str) -> None:
    """Check checksums, offsets, epochs, indexes and checkpoints.

    DIRECTORY is a broker's data directory, one partition's folder, or a directory of `minikafka up`.

    Examples:
      minikafka log verify /tmp/mk/broker-1
      minikafka log verify /tmp/mk/broker-1/orders-0 -o json

    Exit code 1 when something is wrong. Meant for a stopped broker.
    """
    findings = list(_findings(directory.absolute()))
    if output == "json":
        print_json({"ok": not findings, "findings": list(map(asdict, findings))})
    else:
        for each in findings:
            click.echo(str(each))
        click.echo(f"{directory}: " + (f"{len(findings)} findings" if findings else "all is well"))
    if findings:
        raise click.exceptions.Exit(FAILED)


def _findings(directory: Path) -> Iterator[Finding]:
    """Of a partition's folder, of a broker's data directory, or of all brokers of an ``up`` directory."""
    disk = ReadDisk(directory)
    if offsets_in(disk.names(""), LOG):
        yield from verify_log(ReadDisk(directory.parent), directory.name)
        return
    brokers = [name for name in disk.names("") if name.startswith("broker-") and _holds_logs(directory / name)]
    if not brokers and not _holds_logs(directory):
        raise Failure(f"{directory} holds no logs; name a broker's data directory, such as DIR/broker-1")
    for name in brokers:
        for each in verify_directory(ReadDisk(directory / name)):
            yield replace(each, path=f"{name}/{each.path}")
    if not brokers:
        yield from verify_directory(disk)


def _holds_logs(directory: Path) -> bool:
    if not directory.is_dir():
        return False
    disk = ReadDisk(directory)
    return any(offsets_in(disk.names(name), LOG) for name in disk.names("") if partition_of(name) is not None)
