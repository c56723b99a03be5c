"""``minikafka doctor``: report what is wrong with a cluster, or soon will be, and what to do.

:func:`gather` collects the facts with one request after the other, each with a time limit. ``doctor_checks.py`` judges
them.

Rule for this file: whatever does not answer becomes a fact, never an exception: a doctor is called when things are
broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import stat
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from ssl import SSLContext
from typing import Any

import click

from minikafka import AdminClient, __version__
from minikafka import errors as kafka
from minikafka.cli import doctor_checks as checks
from minikafka.cli.admin import client_settings, connection
from minikafka.cli.doctor_checks import Finding
from minikafka.cli.running import FAILED, Failure, Misuse, check_reachable, lone_command, run
from minikafka.cli.settings import broker_settings
from minikafka.cli.tables import EXISTING_FILE, columns_of, list_options, many, print_found
from minikafka.cli.v1 import V1
from minikafka.client.structs import ConfigResource
from minikafka.config import BrokerConfig
from minikafka.log.checkpoint import BadCheckpoint, parse_meta_properties
from minikafka.log.inspect import METADATA_OF_KAFKA, is_metadata_of_kafka
from minikafka.log.log_directory import partitions_in, without_identity
from minikafka.log.names import META_PROPERTIES
from minikafka.types import METADATA_PARTITION, Address
from minikafka.wire.acls import AclFilter
from minikafka.wire.messages import ApiVersionsRequest, DescribeReplicasRequest, MetadataRequest, MetadataResponse
from minikafka.world.clients import Asker
from minikafka.world.read_disk import ReadDisk

DIAL_TIMEOUT_S = 3.0
PLACES_MAX = 4
"""Topics or brokers that a finding names for people; of more it says how many they are."""
PATIENCE: dict[str, Any] = {"default_api_timeout_ms": 5_000, "request_timeout_ms": 2_500}

SETTINGS_ASKED = (*checks.AGREED, "queued.max.request.bytes", *checks.SETTINGS)

_SAMPLE = re.compile(
    r"^(mk_log_dir_free_bytes|mk_queued_request_bytes|process_open_fds|process_max_fds)(?:\{.*\})? (\S+)"
)


async def gather(bootstrap: str) -> checks.ClusterFacts:
    """Ask the cluster, every broker of it, and what lies around them. Raises when no bootstrap server answers."""
    await check_reachable(bootstrap)
    tls, login = connection(bootstrap)
    async with Asker(bootstrap, tls, login) as asker, V1(bootstrap, DIAL_TIMEOUT_S) as http:
        metadata: MetadataResponse = await asker.ask_any(MetadataRequest(topics=()), DIAL_TIMEOUT_S)
        registered = await _registered(http, asker, metadata)
        brokers = [await _broker(asker, http, node, address) for node, address in sorted(registered.items())]
    facts = checks.ClusterFacts(__version__, brokers)
    await _from_admin(bootstrap, facts)
    for broker in brokers:
        if all(name in broker.settings for name in checks.SETTINGS):
            shown = () if tls is None else await _shown(broker.address, tls)
            where = f"broker {broker.node_id}"
            settings = checks.settings_elsewhere(broker.settings)
            facts.security.append(checks.SecurityFacts(where=where, settings=settings, certificates=shown))
    return facts


async def _shown(address: Address, tls: SSLContext) -> tuple[checks.CertificateFacts, ...]:
    """The certificate that a broker shows; none if it does not answer."""
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            _, writer = await asyncio.open_connection(*address, ssl=tls)
            certificate = writer.get_extra_info("peercert")
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError):
        return ()
    return (checks.shown_certificate(certificate["notAfter"]),)


async def _page(http: V1, address: Address, path: str) -> str:
    """The text of a page; empty: the broker does not answer, or not with 200."""
    status, text = await http.text(address, "GET", path) or (0, "")
    return text if status == 200 else ""


async def _registered(http: V1, asker: Asker, metadata: MetadataResponse) -> dict[int, Address]:
    """Every registered broker, also those that are fenced: clients learn of the others only."""
    living = {each.node_id: Address(each.host, each.port) for each in metadata.brokers}
    for address in (*living.values(), *asker.addresses):
        text = await _page(http, address, "/v1/cluster")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            brokers = json.loads(text)["brokers"]
            found = {int(each["id"]): Address(str(each["host"]), int(each["port"])) for each in brokers}
            return found | living  # the page has brokers' own addresses, Metadata those of the listener that is used
    return living


async def _broker(asker: Asker, http: V1, node: int, address: Address) -> checks.BrokerFacts:
    facts = checks.BrokerFacts(node, address)
    try:
        before = time.time_ns()
        described = await asker.ask(address, DescribeReplicasRequest(topics=()), DIAL_TIMEOUT_S)
        after = time.time_ns()
        facts.answers_as = described.broker_id
        if described.wall_ms >= 0:
            facts.skew_ms = described.wall_ms - (before + after) // 2_000_000
            facts.skew_error_ms = (after - before) // 2_000_000
        facts.version = (await asker.ask(address, ApiVersionsRequest(), DIAL_TIMEOUT_S)).broker_version
    except kafka.ProtocolError as error:
        facts.unreachable = error.message.rpartition(f"{address}: ")[2].removeprefix("no connection: ")
        return facts
    if (ready := await http.text(address, "GET", "/readyz")) is not None:
        facts.ready = _missing(ready[1])
    for line in (await _page(http, address, "/metrics")).splitlines():
        sample = _SAMPLE.match(line)
        if sample:
            facts.metrics = {**facts.metrics, sample.group(1): float(sample.group(2))}
    return facts


def _missing(readiness: str) -> str:
    """What ``/readyz`` waits for; empty when it is ready."""
    try:
        status = json.loads(readiness)
    except ValueError:
        return ""
    return str(status.get("detail", "")) if isinstance(status, dict) else ""


async def _from_admin(bootstrap: str, facts: checks.ClusterFacts) -> None:
    try:
        async with AdminClient(**client_settings(bootstrap), **PATIENCE) as admin:
            await _ask_admin(admin, facts)
    except (kafka.ProtocolError, kafka.WorldError) as error:
        facts.quorum_silent = facts.quorum_silent or str(error)


async def _ask_admin(admin: AdminClient, facts: checks.ClusterFacts) -> None:
    facts.topics = await admin.describe_topics()
    wanted: dict[str, Any] = {"min.insync.replicas": None}
    try:
        described = await admin.describe_configs([ConfigResource("topic", each.topic, wanted) for each in facts.topics])
        facts.topic_settings = {each.resource_name: {one.name: one.value for one in each.configs} for each in described}
    except kafka.TopicAuthorizationFailed as error:
        facts.denied.append(error.message)
    asked = dict.fromkeys(SETTINGS_ASKED)
    for broker in facts.brokers:
        if not broker.unreachable:
            with contextlib.suppress(kafka.ProtocolError):
                [found] = await admin.describe_configs([ConfigResource("broker", str(broker.node_id), asked)])
                broker.settings = {each.name: each.value for each in found.configs}
    with contextlib.suppress(kafka.ProtocolError):  # there is no authorizer, or this client may not
        facts.access.acl_count = len(await admin.describe_acls(AclFilter()))
    with contextlib.suppress(kafka.ProtocolError):
        facts.access.iterations = await admin.describe_user_scram_credentials()
    try:
        facts.quorum = await admin.describe_quorum()
    except kafka.ClusterAuthorizationFailed as error:
        facts.denied.append(error.message)
    except kafka.ProtocolError as error:
        facts.quorum_silent = error.message


def directory_of(config: BrokerConfig) -> checks.DirectoryFacts:
    """What the data directory of a broker on this machine is like, by its settings."""
    folder = Path(config.log_dirs)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # a broker raises its soft limit to this
    there = folder if folder.exists() else next(each for each in folder.absolute().parents if each.exists())
    usage = os.statvfs(there)
    writable, ignores_case, mode = _tried(there)
    return checks.DirectoryFacts(
        str(folder),
        writable=writable,
        ignores_case=ignores_case,
        mode=mode,
        free_bytes=usage.f_bavail * usage.f_frsize,
        identity=_why_not_ours(folder, config.node_id, config.cluster_id),
        fd_limit=limit,
    )


def _tried(folder: Path) -> tuple[str, bool, int]:
    """Why nothing can be written there (empty: it can); whether names ignore case; permissions of a new file."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            path = Path(file.name)
            return "", path.with_name(path.name.upper()).exists(), stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return error.strerror or str(error), False, 0


def _why_not_ours(folder: Path, node_id: int, cluster_id: str) -> str:
    path = folder / META_PROPERTIES
    if not path.exists():
        if not folder.is_dir():
            return ""
        disk = ReadDisk(folder)
        return without_identity(partitions_in(disk, disk.names("")))
    try:
        found = parse_meta_properties(path.read_bytes())
    except (OSError, BadCheckpoint) as error:
        return f"{META_PROPERTIES} cannot be read: {kafka.in_words(error)}"
    if is_metadata_of_kafka(ReadDisk(folder)):
        return f"{METADATA_PARTITION} {METADATA_OF_KAFKA}"
    if found.node_id != node_id:
        return f"it belongs to node {found.node_id}, the file says node.id={node_id}"
    if cluster_id and found.cluster_id != cluster_id:
        return f"it belongs to cluster {found.cluster_id}, the file says cluster.id={cluster_id}"
    return ""


ORDER = {checks.ERROR: 0, checks.WARNING: 1, checks.NOTE: 2}


@lone_command()
@click.argument("files", nargs=-1, metavar="[FILE]...", type=EXISTING_FILE)
@click.option("--offline", is_flag=True, help="Examine only FILE ..., without a request to a broker.")
@click.option("--strict", is_flag=True, help="Exit with 1 also for warnings.")
@list_options
def command(files: tuple[Path, ...], offline: bool, strict: bool, bootstrap: str, output: str) -> None:
    """Look for what is wrong with a cluster; say what to do.

    Examples:
      minikafka doctor -b 127.0.0.1:9092
      minikafka doctor /tmp/mk/broker-1/broker.properties
      minikafka doctor --strict -o json

    Looks at: every advertised address (is it the right broker that answers?), readiness, disk space, file
    descriptors, clocks, versions, settings that brokers must agree on, the quorum, partitions without a leader,
    below min.insync.replicas or one loss away from it; and at security: listeners beyond loopback, certificates, super
    users, ACLs, users. With FILE also: the data directory and the certificates of a broker on this machine (space,
    permission, whose it is, host names, expiry), whether it runs or not.

    Exit codes: 0 nothing is broken, 1 something is (--strict: or may soon be), 2 called wrongly.
    """
    if offline and not files:
        raise Misuse("--offline looks at files: name a broker's properties")
    found: list[Finding] = []
    for file in files:
        try:
            config = broker_settings(file, os.environ, ()).config
        except kafka.InvalidConfig as refused:
            found.append(
                Finding(checks.ERROR, "settings", str(file), refused.message, "change the setting: no broker starts so")
            )
            continue
        found.extend(checks.directory_findings(directory_of(config)))
        found.extend(checks.security_findings(checks.security_of(str(file), config)))
    asked = 0
    if not offline:
        try:
            facts = run(lambda: gather(bootstrap))
        except Failure as failure:
            if not files:
                raise
            found.append(
                Finding(checks.ERROR, "bootstrap", "cluster", failure.message, "--offline looks at the files alone")
            )
        else:
            asked = len(facts.brokers)
            found.extend(checks.findings(facts))
    found.sort(key=lambda each: ORDER[each.level])
    broken = any(each.level == checks.ERROR or (strict and each.level == checks.WARNING) for each in found)
    if output == "table":
        draw(found, asked, len(files))
    else:
        document = {"ok": not broken, "brokers": asked, "findings": list(map(asdict, found))}
        print_found(output, document, columns_of("Level", "Where", "What", "Do"), found)
    if broken:
        raise click.exceptions.Exit(FAILED)


def _merged(found: list[Finding]) -> list[Finding]:
    """Findings for people: one for all places of which the same is said. A dead broker concerns hundreds of topics."""
    alike: dict[Finding, list[str]] = {}
    for each in found:
        alike.setdefault(replace(each, where=""), []).append(each.where)
    return [replace(said, where=_places(places)) for said, places in alike.items()]


def _places(places: list[str]) -> str:
    more = len(places) - PLACES_MAX
    return "; ".join(places[:PLACES_MAX]) + (f"; and {more} more" if more > 0 else "")


def draw(found: list[Finding], brokers: int, directories: int) -> None:
    """Print the report for people."""
    found = _merged(found)
    for each in found:
        click.echo(f"{each.level:<8} {each.where}: {each.what}")
        click.echo(f"{'':<8} -> {each.do}")
    looked = [many(brokers, "broker")] if brokers else []
    looked += [f"{directories} data director{'ies' if directories != 1 else 'y'}"] if directories else []
    errors, warnings = (sum(each.level == level for each in found) for level in (checks.ERROR, checks.WARNING))
    click.echo(f"Looked at {' and '.join(looked) or 'nothing'}: {many(errors, 'error')}, {many(warnings, 'warning')}.")
