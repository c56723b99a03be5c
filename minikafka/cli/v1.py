"""Commands that speak HTTP with ``/v1``, and how they do.

A problem (RFC 9457) becomes its sentence; brokers that cannot be reached are passed over while another one lives.

- ``minikafka connections``: which clients and brokers are connected to each broker.
- ``minikafka explain``: why this leader, ISR, high watermark and last stable offset; the last refusal.
- ``minikafka faults``: hurt the links of a cluster that runs with ``mk.testing.endpoints.enable=true``. A fault is set
  at a broker, at one of the link's ends (docs/testing.md); any broker forwards to it. Numbers are per broker, so a
  fault is called BROKER:NUMBER.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import click

from minikafka.addresses import is_number, parse_bootstrap
from minikafka.blocking.tls import NEEDS_TLS, TLS_PROBE_S, speaks_tls
from minikafka.cli.admin import connection, parse_partition
from minikafka.cli.running import CONNECT_TIMEOUT_S, NAME_OTHERS, Failure, Misuse, command_group, lone_command, run
from minikafka.cli.tables import (
    bootstrap_option,
    columns_of,
    list_options,
    output_option,
    print_found,
    print_json,
    print_lines,
    show,
    watch_option,
)
from minikafka.errors import UNKNOWN, BrokerIdNotRegistered, InvalidRequest, OutcomeUnknown, TlsFailed
from minikafka.faults import MESSAGE_KINDS
from minikafka.types import Address
from minikafka.world.connections import user_agent
from minikafka.world.faults import KINDS, Link

ANSWER_TIMEOUT_S = 20.0


class Refusal(Failure):
    """A broker said no; ``status`` and ``problem`` have the whole of it."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        self.status = status
        self.problem = problem
        super().__init__(f"{problem.get('error', status)}: {problem.get('detail', 'no reason was given')}")


class V1:
    """The doors of the brokers at ``bootstrap``. An async context manager."""

    def __init__(self, bootstrap: str, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.addresses: tuple[Address, ...] = parse_bootstrap(bootstrap, https=True)
        how = connection(bootstrap)
        self._tls, self._login = how.tls, how.login
        self._bootstrap = bootstrap

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        login = {} if self._login is None else {"Authorization": await self._login()}
        headers = {"User-Agent": user_agent(), **login}
        self._http = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(ssl=self._tls or True), headers=headers
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    @property
    def scheme(self) -> str:
        return "http" if self._tls is None else "https"

    async def anybody(self, method: str, path: str, document: Any = None) -> Any:
        """The answer of the first broker that can be reached. Failure when none can, Refusal when it says no.

        Raises OutcomeUnknown if a change may have reached a broker that did not answer: no other one gets it, too.
        """
        for address in self.addresses:
            answer = await self.of(address, method, path, document)
            if answer is not None:
                return answer
        if self._tls is None and any(speaks_tls(each, TLS_PROBE_S) for each in self.addresses):
            raise TlsFailed(NEEDS_TLS)
        raise Failure(f"no broker can be reached at {self._bootstrap}; {NAME_OTHERS}")

    async def of(self, address: Address, method: str, path: str, document: Any = None) -> Any:
        """The answer of one broker; None when it cannot be reached. Refusal when it says no."""
        found = await self.text(address, method, path, document)
        if found is None:
            return None
        status, text = found
        try:
            answer = json.loads(text)
        except ValueError:
            raise Failure(f"{address} is no minikafka broker: it answered {method} {path} with {text[:60]!r}") from None
        if status >= 400:
            raise Refusal(status, answer if isinstance(answer, dict) else {})
        return answer

    async def text(self, address: Address, method: str, path: str, document: Any = None) -> tuple[int, str] | None:
        """Status and body of one broker's answer; None when there is none. OutcomeUnknown: see `anybody`."""
        try:
            async with self._http.request(method, f"{self.scheme}://{address}{path}", json=document) as response:
                return response.status, await response.text()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            return None  # nothing was sent
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if method == "GET":
                return None
            raise OutcomeUnknown(f"{address} has not answered {method} {path}") from error

    async def brokers(self) -> dict[int, Address]:
        """Where every registered broker listens."""
        answer = await self.anybody("GET", "/v1/brokers")
        return {each["id"]: Address(each["host"], each["port"]) for each in answer["brokers"]}


def ask(bootstrap: str, method: str, path: str, document: Any = None) -> Any:
    """The answer of the first broker that can be reached to one request."""

    async def asked() -> Any:
        async with V1(bootstrap) as v1:
            return await v1.anybody(method, path, document)

    return run(asked)


# ---- connections -----------------------------------------------------------------------------------------------------


def _last_request(one: dict[str, Any]) -> str | None:
    version = "" if one["api_version"] is None else f" v{one['api_version']}"
    return None if one["last_request"] is None else one["last_request"] + version


CONNECTION_COLUMNS = columns_of(
    *("BROKER", "CONNECTION-ID", "PROTOCOL", "LISTENER", "REMOTE", "CLIENT-ID", "SOFTWARE", "SINCE", "REQUESTS"),
    *("RECEIVED-BYTES", "SENT-BYTES", "LAST-REQUEST", "PENDING=pending_request", "IDLE-MS"),
    **{"LAST-REQUEST": _last_request},
)
ONLY_TSV = frozenset({"LISTENER", "SINCE", "RECEIVED-BYTES", "SENT-BYTES", "IDLE-MS"})
"""Columns that the table for people lacks."""


@lone_command()
@click.option("--broker", type=click.IntRange(0), help="Only the connections of this broker.")
@click.option("--protocol", type=click.Choice(["kafka", "rpc", "http"]), help="Only connections with this protocol.")
@list_options
@watch_option
def connections(broker: int | None, protocol: str | None, bootstrap: str, output: str, watch: bool) -> None:
    """List the open connections of each broker.

    Examples:
      minikafka connections -b 127.0.0.1:9092
      minikafka connections --broker 2 --protocol kafka --watch
      minikafka connections -o json | jq -r '.brokers[].connections[].software'

    The list of each broker is what GET /v1/connections of that broker returns.
    """

    async def listed() -> list[dict[str, Any]]:
        async with V1(bootstrap) as v1:
            addresses = await v1.brokers()
            if broker is not None and broker not in addresses:
                known = ", ".join(map(str, sorted(addresses)))
                raise Failure(f"--broker {broker}: there is no such broker; the registered brokers are {known}")
            nodes = [node for node in sorted(addresses) if broker in (None, node)]
            found = await asyncio.gather(*(_connections_of(v1, node, addresses[node]) for node in nodes))
        for each in found:
            each["connections"] = [one for one in each["connections"] if protocol in (None, one["protocol"])]
        return found

    show(listed, lambda brokers: _draw_connections(brokers, output), watch=watch)


async def _connections_of(v1: V1, node: int, address: Address) -> dict[str, Any]:
    """All connections of one broker; ``reachable`` is false if it does not answer."""
    connections: list[dict[str, Any]] = []
    while True:
        after = connections[-1]["connection_id"] if connections else 0
        part = await v1.of(address, "GET", f"/v1/connections?after={after}")
        if part is None:
            return {"node_id": node, "reachable": False, "connections": []}
        connections += part["connections"]
        if not part["more"]:
            return {"node_id": node, "reachable": True, "connections": connections}


def _draw_connections(brokers: list[dict[str, Any]], output: str) -> None:
    for each in brokers if output != "json" else ():
        if not each["reachable"]:
            click.echo(f"broker {each['node_id']} does not answer", err=True)
    rows = [{"broker": each["node_id"], **one} for each in brokers for one in each["connections"]]
    shown = {name: each for name, each in CONNECTION_COLUMNS.items() if output == "tsv" or name not in ONLY_TSV}
    print_found(output, {"brokers": brokers}, shown, rows, nothing="There is no such connection.")


# ---- explain ---------------------------------------------------------------------------------------------------------


@lone_command()
@click.argument("partition")
@bootstrap_option
@output_option
@watch_option
def explain(partition: str, bootstrap: str, output: str, watch: bool) -> None:
    """Say why PARTITION (orders-0) has this leader, ISR, high watermark and last stable offset.

    Examples:
      minikafka explain orders-0
      minikafka explain orders-0 --watch
      minikafka explain orders-0 -o json | jq -r .isr.sentence

    It is what GET /v1/topics/orders/partitions/0/explain answers; events are as old as the brokers remember.
    """
    name = parse_partition(partition)

    async def asked() -> dict[str, Any]:
        async with V1(bootstrap) as v1:
            path = f"/v1/topics/{quote(name.topic, safe='')}/partitions/{name.partition}/explain"
            explained: dict[str, Any] = await v1.anybody("GET", path)
            return explained

    show(
        asked,
        lambda explained: print_json(explained) if output == "json" else print_lines(lines(explained)),
        watch=watch,
    )


def lines(explained: dict[str, Any]) -> Iterator[str]:
    """An explanation for people: each sentence, and below it what led to it, the oldest first."""
    yield f"{explained['topic']}-{explained['partition']}"
    yield f"leader          {explained['leader']['sentence']}"
    yield from _because(explained["leader"]["because"])
    yield f"isr             {explained['isr']['sentence']}"
    for member in explained["isr"]["members"]:
        yield f"                broker {member['id']}: {member['why']}"
    yield from _because(explained["isr"]["because"])
    yield f"high watermark  {explained['high_watermark']['sentence']}"
    yield from _because(explained["high_watermark"]["because"])
    yield f"last stable     {explained['last_stable_offset']['sentence']}"
    refusal = explained["last_refusal"]
    if refusal is not None:
        yield "last refusal"
        yield from _because([refusal])


def _because(events: list[dict[str, Any]]) -> Iterator[str]:
    for event in events:
        at = event["at"] or "before its start"
        yield f"    {at[:23]:<23}  broker {event['broker']}: {event['sentence']}"


# ---- faults ----------------------------------------------------------------------------------------------------------


FAULT_COLUMNS = columns_of(
    *("Fault", "Kind", "Link", "Api", "Message", "Hits", "Active", "Held=held_count"),
    Fault=lambda fault: f"{fault['broker']}:{fault['id']}",
    Active=lambda fault: "yes" if fault["active"] else "no",
)


def _concerns(message: dict[str, Any]) -> str:
    """The partitions of a held message in words."""
    shown = "; ".join(each["what"] for each in message["partitions"])
    more = message["partition_count"] - len(message["partitions"])
    return f"{shown}; {more} more" if more else shown


HELD_COLUMNS = columns_of("Fault", "Id", "Api", "Message", "Link", "Held ms", "Concerns", Concerns=_concerns)


@command_group()
def faults() -> None:
    """Cut, drop, delay, hold, duplicate or reorder messages, or answer requests with an error, for tests.

    Examples:
      minikafka faults add cut '2>1' --api Fetch
      minikafka faults add drop '*>3' --probability 0.1 --for-ms 5000
      minikafka faults list
      minikafka faults held
      minikafka faults release 2:1 --id 3
      minikafka faults heal 2:1
      minikafka faults heal

    The brokers must run with mk.testing.endpoints.enable=true. Kinds and links: docs/testing.md.
    """


@faults.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("link")
@click.option("--api", help="Apply to this API only, such as Fetch.")
@click.option("--message", type=click.Choice(MESSAGE_KINDS), help="Apply to requests or answers only.")
@click.option("--count", type=click.IntRange(1), help="Apply to this many messages, then end.")
@click.option("--probability", type=float, help="Apply to each message with this probability.")
@click.option("--seed", type=click.IntRange(0), help="Seed for --probability (default: derived from mk.seed).")
@click.option("--for-ms", type=float, help="End the fault after this long.")
@click.option("--error", help="Kafka's name of the error with which kind error answers requests.")
@click.option("--delay-ms", type=float, help="Time by which delay and reorder hold a message.")
@click.option("--jitter-ms", type=float, help="Longest random addition to the time of a delay.")
@list_options
def add(kind: str, link: str, bootstrap: str, output: str, **limits: Any) -> None:
    """Set a fault of KIND on LINK ('2>1', '3<>broker', 'client>*'), until it is healed.

    Examples:
      minikafka faults add cut '2>1' --api Fetch
      minikafka faults add delay '3<>broker' --delay-ms 200 --jitter-ms 50
      minikafka faults add drop 'client>1' --api Produce --message answer --count 1
      minikafka faults add error 'client:billing>*' --api Produce --error NOT_ENOUGH_REPLICAS --count 2
    """
    asked = {name: value for name, value in limits.items() if value is not None}
    document = {"kind": kind, "link": link, **asked}
    answer = ask(bootstrap, "POST", f"/v1/faults{_at_end_of(link)}", document)
    name = f"{answer['broker']}:{answer['id']}"
    said = f"Set fault {name} ({kind} {link}); `minikafka faults heal {name}` ends it."
    print_found(output, answer, FAULT_COLUMNS, [answer], said=said)


def _at_end_of(link: str) -> str:
    """The broker that shall have the fault: the sender if it is one, else the receiver, else any."""
    try:
        source, target, _ = Link.parse(link)
    except InvalidRequest:
        return ""  # the broker refuses it, with the form
    return next((f"?broker={end}" for end in (source, target) if is_number(end)), "")


@faults.command(name="list")
@list_options
def list_(bootstrap: str, output: str) -> None:
    """List the faults of all brokers, and what they struck.

    Examples:
      minikafka faults list
      minikafka faults list -o json | jq '.faults[].hits'
    """
    answer = ask(bootstrap, "GET", "/v1/faults?broker=all")
    nothing = "The brokers that answered have no faults." if answer["no_answer"] else "There are no faults."
    print_found(output, answer, FAULT_COLUMNS, answer["faults"], nothing=nothing)
    for each in answer["no_answer"] if output != "json" else ():
        click.echo(f"The faults of broker {each['broker']} are not listed: {each['detail']}.", err=True)


@faults.command()
@list_options
def held(bootstrap: str, output: str) -> None:
    """List the messages that faults of kind hold hold, with the partitions and offsets of Produce and Fetch.

    Examples:
      minikafka faults held
      minikafka faults held -o json | jq '.held[].partitions'
    """
    answer = ask(bootstrap, "GET", "/v1/faults?broker=all")
    messages = [
        {"fault": f"{each['broker']}:{each['id']}", **message} for each in answer["faults"] for message in each["held"]
    ]
    document = {"held": messages, "no_answer": answer["no_answer"]}
    print_found(output, document, HELD_COLUMNS, messages, nothing="No message is held.")
    for each in answer["no_answer"] if output != "json" else ():
        click.echo(f"The messages at broker {each['broker']} are not listed: {each['detail']}.", err=True)


@faults.command()
@click.argument("fault", metavar="BROKER:NUMBER")
@click.option("--id", "ids", type=click.IntRange(1), multiple=True, help="Id of a message (repeatable; default: all).")
@click.option("--count", type=click.IntRange(1), help="Number of messages to release at most.")
@click.option("--latest", is_flag=True, help="Begin with the latest message, whose sender still waits.")
@click.option("--lose", is_flag=True, help="Lose the messages; their senders get no response.")
@bootstrap_option
def release(fault: str, ids: tuple[int, ...], count: int | None, latest: bool, lose: bool, bootstrap: str) -> None:
    """Deliver messages that a fault of kind hold holds; the fault goes on holding later ones.

    Examples:
      minikafka faults release 2:1 --id 3
      minikafka faults release 2:1 --count 1 --latest
      minikafka faults release 2:1 --lose
    """
    node, number = _named(fault)
    document: dict[str, Any] = {"latest": latest, "lose": lose}
    if ids:
        document["ids"] = list(ids)
    if count is not None:
        document["count"] = count
    answer = ask(bootstrap, "POST", f"/v1/faults/{number}:release?broker={node}", document)
    click.echo(f"{'Lost' if lose else 'Delivered'} {answer['released']}.")


@faults.command()
@click.argument("faults", nargs=-1, metavar="[BROKER:NUMBER]...")
@bootstrap_option
def heal(faults: tuple[str, ...], bootstrap: str) -> None:
    """End these faults; without any, all of all brokers.

    Examples:
      minikafka faults heal 2:1
      minikafka faults heal
    """
    named = [_named(each) for each in faults]

    async def end() -> tuple[int, list[dict[str, Any]]]:
        async with V1(bootstrap) as v1:
            for node, number in named:
                try:
                    await v1.anybody("DELETE", f"/v1/faults/{number}?broker={node}")
                except Refusal as refused:
                    if refused.problem.get("error") == BrokerIdNotRegistered.name:
                        raise Misuse(refused.problem["detail"]) from None
                    raise
            if named:
                return len(named), []
            answer = await v1.anybody("DELETE", "/v1/faults?broker=all")
            return answer["healed"], answer["no_answer"]

    healed, silent = run(end)
    click.echo(f"Healed {healed}.")
    for each in silent:
        click.echo(f"The faults of broker {each['broker']} are not healed: {each['detail']}.", err=True)
    if any(each["outcome"] == UNKNOWN for each in silent):
        raise Failure("some faults may still be active; `minikafka faults list` shows them")


def _named(text: str) -> tuple[int, int]:
    node, colon, number = text.partition(":")
    if not colon or not is_number(node) or not is_number(number):
        raise Misuse(f"{text!r}: BROKER:NUMBER is needed, as `minikafka faults list` shows it")
    return int(node), int(number)
