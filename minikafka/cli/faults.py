"""``minikafka faults``: hurt the links of a cluster that runs with ``mk.testing.endpoints.enable=true``.

A fault is set at a broker, at one of the link's ends (docs/testing.md); any broker forwards to it. Numbers are per
broker, so a fault is called BROKER:NUMBER.
"""

from __future__ import annotations

from typing import Any

import click

from minikafka.addresses import is_number
from minikafka.cli.running import Commands, Failure, Misuse, run
from minikafka.cli.tables import bootstrap_option, list_output_option, print_json, print_table
from minikafka.cli.v1 import V1, Refusal
from minikafka.errors import UNKNOWN, BrokerIdNotRegistered, InvalidRequest
from minikafka.faults import MESSAGE_KINDS
from minikafka.world.faults import KINDS, Link

COLUMNS = ("Fault", "Kind", "Link", "Api", "Message", "Hits", "Active", "Held")
HELD_COLUMNS = ("Fault", "Id", "Api", "Message", "Link", "Held ms", "Concerns")


@click.group(
    cls=Commands,
    epilog="""\b
Examples:
  minikafka faults add cut '2>1' --api Fetch
  minikafka faults add drop '*>3' --probability 0.1 --for-ms 5000
  minikafka faults list
  minikafka faults held
  minikafka faults release 2:1 --id 3
  minikafka faults heal 2:1
  minikafka faults heal

The brokers must run with mk.testing.endpoints.enable=true. Kinds and links: docs/testing.md.""",
)
def command() -> None:
    """Cut, drop, delay, hold, duplicate or reorder messages, or answer requests with an error, for tests."""


@command.command(
    epilog="""\b
Examples:
  minikafka faults add cut '2>1' --api Fetch
  minikafka faults add delay '3<>broker' --delay-ms 200 --jitter-ms 50
  minikafka faults add drop 'client>1' --api Produce --message answer --count 1
  minikafka faults add error 'client:billing>*' --api Produce --error NOT_ENOUGH_REPLICAS --count 2"""
)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("link")
@click.option("--api", default=None, help="Apply to this API only, such as Fetch.")
@click.option("--message", type=click.Choice(MESSAGE_KINDS), default=None, help="Apply to requests or answers only.")
@click.option("--count", type=click.IntRange(1), default=None, help="Apply to this many messages, then end.")
@click.option("--probability", type=float, default=None, help="Apply to each message with this probability.")
@click.option(
    "--seed", type=click.IntRange(0), default=None, help="Seed for --probability (default: derived from mk.seed)."
)
@click.option("--for-ms", type=float, default=None, help="End the fault after this long.")
@click.option("--error", default=None, help="Kafka's name of the error with which kind error answers requests.")
@click.option("--delay-ms", type=float, default=None, help="Time by which delay and reorder hold a message.")
@click.option("--jitter-ms", type=float, default=None, help="Longest random addition to the time of a delay.")
@bootstrap_option
@list_output_option
def add(kind: str, link: str, bootstrap: str, output: str, **limits: Any) -> None:
    """Set a fault of KIND on LINK ('2>1', '3<>broker', 'client>*'), until it is healed."""
    asked = {name: value for name, value in limits.items() if value is not None}
    document = {"kind": kind, "link": link, **asked}

    async def set_it() -> dict[str, Any]:
        async with V1(bootstrap) as v1:
            answer: dict[str, Any] = await v1.anybody("POST", f"/v1/faults{_at_end_of(link)}", document)
            return answer

    answer = run(set_it)
    node = answer["broker"]
    if output == "json":
        print_json(answer)
    elif output == "tsv":
        print_table(COLUMNS, [_row(node, answer)], output)
    else:
        click.echo(
            f"Set fault {node}:{answer['id']} ({kind} {link}); `minikafka faults heal {node}:{answer['id']}` ends it."
        )


def _at_end_of(link: str) -> str:
    """The broker that shall have the fault: the sender if it is one, else the receiver, else any."""
    try:
        source, target, _ = Link.parse(link)
    except InvalidRequest:
        return ""  # the broker refuses it, with the form
    return next((f"?broker={end}" for end in (source, target) if is_number(end)), "")


@command.command(
    name="list",
    epilog="""\b
Examples:
  minikafka faults list
  minikafka faults list -o json | jq '.faults[].hits'""",
)
@bootstrap_option
@list_output_option
def list_(bootstrap: str, output: str) -> None:
    """List the faults of all brokers, and what they struck."""

    async def ask() -> dict[str, Any]:
        async with V1(bootstrap) as v1:
            answer: dict[str, Any] = await v1.anybody("GET", "/v1/faults?broker=all")
            return answer

    answer = run(ask)
    if output == "json":
        print_json(answer)
        return
    print_table(COLUMNS, [_row(each["broker"], each) for each in answer["faults"]], output)
    for each in answer["no_answer"]:
        click.echo(f"The faults of broker {each['broker']} are not listed: {each['detail']}.", err=True)


def _row(node: int, fault: dict[str, Any]) -> tuple[object, ...]:
    answer = (fault[name] for name in ("kind", "link", "api", "message", "hits"))
    return (f"{node}:{fault['id']}", *answer, "yes" if fault["active"] else "no", fault["held_count"])


@command.command(
    epilog="""\b
Examples:
  minikafka faults held
  minikafka faults held -o json | jq '.held[].partitions'"""
)
@bootstrap_option
@list_output_option
def held(bootstrap: str, output: str) -> None:
    """List the messages that faults of kind hold hold, with the partitions and offsets of Produce and Fetch."""

    async def ask() -> dict[str, Any]:
        async with V1(bootstrap) as v1:
            answer: dict[str, Any] = await v1.anybody("GET", "/v1/faults?broker=all")
            return answer

    answer = run(ask)
    messages = [
        {"fault": f"{each['broker']}:{each['id']}", **message} for each in answer["faults"] for message in each["held"]
    ]
    if output == "json":
        print_json({"held": messages, "no_answer": answer["no_answer"]})
        return
    rows = [
        (each["fault"], each["id"], each["api"], each["message"], each["link"], each["held_ms"], _concerns(each))
        for each in messages
    ]
    print_table(HELD_COLUMNS, rows, output)
    for each in answer["no_answer"]:
        click.echo(f"The messages at broker {each['broker']} are not listed: {each['detail']}.", err=True)


def _concerns(message: dict[str, Any]) -> str:
    """The partitions of a held message in words."""
    shown = "; ".join(each["what"] for each in message["partitions"])
    more = message["partition_count"] - len(message["partitions"])
    return f"{shown}; {more} more" if more else shown


@command.command(
    epilog="""\b
Examples:
  minikafka faults release 2:1 --id 3
  minikafka faults release 2:1 --count 1 --latest
  minikafka faults release 2:1 --lose"""
)
@click.argument("fault", metavar="BROKER:NUMBER")
@click.option("--id", "ids", type=click.IntRange(1), multiple=True, help="Id of a message (repeatable; default: all).")
@click.option("--count", type=click.IntRange(1), default=None, help="Number of messages to release at most.")
@click.option("--latest", is_flag=True, help="Begin with the latest message, whose sender still waits.")
@click.option("--lose", is_flag=True, help="Lose the messages; their senders get no response.")
@bootstrap_option
def release(
    fault: str,
    ids: tuple[int, ...],
    count: int | None,
    latest: bool,  # noqa: FBT001 - click passes flags so
    lose: bool,  # noqa: FBT001 - click passes flags so
    bootstrap: str,
) -> None:
    """Deliver messages that a fault of kind hold holds; the fault goes on holding later ones."""
    node, number = _named(fault)
    document: dict[str, Any] = {"latest": latest, "lose": lose}
    if ids:
        document["ids"] = list(ids)
    if count is not None:
        document["count"] = count

    async def let_go() -> int:
        async with V1(bootstrap) as v1:
            answer = await v1.anybody("POST", f"/v1/faults/{number}:release?broker={node}", document)
            return int(answer["released"])

    released = run(let_go)
    click.echo(f"{'Lost' if lose else 'Delivered'} {released}.")


@command.command(
    epilog="""\b
Examples:
  minikafka faults heal 2:1
  minikafka faults heal"""
)
@click.argument("faults", nargs=-1, metavar="[BROKER:NUMBER]...")
@bootstrap_option
def heal(faults: tuple[str, ...], bootstrap: str) -> None:
    """End these faults; without any, all of all brokers."""
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
        click.echo(f"Broker {each['broker']} did not answer: {each['detail']}.", err=True)
    if any(each["outcome"] == UNKNOWN for each in silent):
        raise Failure("some faults may still be active; `minikafka faults list` shows them")


def _named(text: str) -> tuple[int, int]:
    node, colon, number = text.partition(":")
    if not colon or not is_number(node) or not is_number(number):
        raise Misuse(f"{text!r}: BROKER:NUMBER is needed, as `minikafka faults list` tells them")
    return int(node), int(number)
