"""``minikafka doctor``: what is wrong with a cluster, or soon will be, and what to do."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from minikafka.cli.doctor_checks import ERROR, NOTE, WARNING, Finding, directory_findings, findings
from minikafka.cli.doctor_facts import Gathered, directory_of, gather
from minikafka.cli.doctor_security import access_findings, security_findings, security_of
from minikafka.cli.running import FAILED, Failure, Misuse, run, somebody_listens
from minikafka.cli.settings import broker_settings
from minikafka.cli.tables import bootstrap_option, list_output_option, many, print_json, print_table
from minikafka.errors import InvalidConfig

ORDER = {ERROR: 0, WARNING: 1, NOTE: 2}


@click.command(
    epilog="""\b
Examples:
  minikafka doctor -b 127.0.0.1:9092
  minikafka doctor /tmp/mk/broker-1/broker.properties
  minikafka doctor --strict -o json

Looks at: every advertised address (is it the right broker that answers?), readiness, disk space, file
descriptors, clocks, versions, settings that brokers must agree on, the quorum, partitions without a leader,
below min.insync.replicas or one loss away from it; and at security: listeners beyond loopback, certificates, super
users, ACLs, users. With FILE also: the data directory and the certificates of a broker on this machine (space,
permission, whose it is, host names, expiry), whether it runs or not.

Exit codes: 0 nothing is broken, 1 something is (--strict: or may soon be), 2 called wrongly."""
)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--offline", is_flag=True, help="Look at FILE ... only; ask nobody.")
@click.option("--strict", is_flag=True, help="Warnings fail as well.")
@bootstrap_option
@list_output_option
def command(files: tuple[Path, ...], offline: bool, strict: bool, bootstrap: str, output: str) -> None:  # noqa: FBT001 - click's form
    """Look for what is wrong with a cluster; say what to do."""
    if offline and not files:
        raise Misuse("--offline looks at files: name a broker's properties")
    found: list[Finding] = []
    for file in files:
        try:
            config = broker_settings(file, os.environ, ()).config
        except InvalidConfig as refused:
            found.append(
                Finding(ERROR, "settings", str(file), refused.message, "change the setting: no broker starts so")
            )
            continue
        found.extend(directory_findings(directory_of(config)))
        found.extend(security_findings(security_of(str(file), config)))
    asked = 0
    if not offline:
        try:
            facts = run(lambda: _gathered(bootstrap))
        except Failure as failure:
            if not files:
                raise
            found.append(Finding(ERROR, "bootstrap", "cluster", failure.message, "--offline looks at the files alone"))
        else:
            asked = len(facts.brokers)
            found.extend(findings(facts))
            for each in facts.security:
                found.extend(security_findings(each))
            found.extend(access_findings(facts.access))
    found.sort(key=lambda each: ORDER[each.level])
    broken = any(each.level == ERROR or (strict and each.level == WARNING) for each in found)
    if output == "json":
        print_json({"ok": not broken, "brokers": asked, "findings": [asdict(each) for each in found]})
    elif output == "tsv":
        rows = [(each.level, each.where, each.what, each.do) for each in found]
        print_table(("Level", "Where", "What", "Do"), rows, output)
    else:
        _draw(found, asked, len(files))
    if broken:
        raise click.exceptions.Exit(FAILED)


async def _gathered(bootstrap: str) -> Gathered:
    await somebody_listens(bootstrap)
    return await gather(bootstrap)


def _draw(found: list[Finding], brokers: int, directories: int) -> None:
    for each in found:
        click.echo(f"{each.level:<8} {each.where}: {each.what}")
        click.echo(f"{'':<8} -> {each.do}")
    looked = [many(brokers, "broker")] if brokers else []
    looked += [f"{directories} data director{'ies' if directories != 1 else 'y'}"] if directories else []
    errors, warnings = (sum(each.level == level for each in found) for level in (ERROR, WARNING))
    click.echo(f"Looked at {' and '.join(looked) or 'nothing'}: {many(errors, 'error')}, {many(warnings, 'warning')}.")
