"""``minikafka groups delete`` and ``delete-offsets``: groups without members, and what was committed for a topic."""

from __future__ import annotations

import click

from minikafka import AdminClient
from minikafka.cli import kafka_groups
from minikafka.cli.admin import with_admin
from minikafka.cli.group_choice import all_groups_option, check_choice, chosen, partitions_named
from minikafka.cli.running import Failure, run
from minikafka.cli.tables import bootstrap_option, kafka_output_option, print_json, print_lines, print_table
from minikafka.errors import UNKNOWN, ProtocolError
from minikafka.groups.protocol import by_topic
from minikafka.types import TopicPartition


@click.command(
    epilog="""\b
Examples:
  minikafka groups delete billing
  minikafka groups delete --all-groups"""
)
@click.argument("group", nargs=-1)
@all_groups_option
@bootstrap_option
@kafka_output_option
def delete(group: tuple[str, ...], all_groups: bool, bootstrap: str, output: str) -> None:  # noqa: FBT001 - click's flag
    """Delete groups without members, with all that they committed; the others are reported, and stay."""
    check_choice(group, all_groups=all_groups)

    async def work(admin: AdminClient) -> tuple[list[str], dict[str, ProtocolError]]:
        gone: list[str] = []
        refused: dict[str, ProtocolError] = {}
        for name in await chosen(admin, *group):
            try:
                await admin.delete_consumer_groups([name])
            except ProtocolError as error:
                refused[name] = error
            else:
                gone.append(name)
        return gone, refused

    gone, refused = run(lambda: with_admin(bootstrap, work))
    if output == "json" and (gone or not refused):
        print_json({"deleted": gone})
    elif output == "tsv" and (gone or not refused):
        print_table(("GROUP",), [(name,) for name in gone], output)
    elif gone:
        click.echo(kafka_groups.deleted(gone) if output == "kafka" else f"Deleted {', '.join(gone)}.")
    elif not refused:
        click.echo("There are no groups.", err=True)
    if refused:
        raise Failure("not deleted: " + "; ".join(_why(name, error) for name, error in refused.items()))


def _why(group: str, error: ProtocolError) -> str:
    maybe = f" ({group} may be deleted all the same: look before you do it again)" if error.outcome == UNKNOWN else ""
    return f"{error.name}: {error.message}{maybe}"


@click.command(
    name="delete-offsets",
    epilog="""\b
Examples:
  minikafka groups delete-offsets billing --topic orders
  minikafka groups delete-offsets billing --topic orders:0,2 --topic refunds""",
)
@click.argument("group")
@click.option(
    "--topic", "topics", multiple=True, required=True, metavar="TOPIC[:P,P]", help="Of these; may be given again."
)
@bootstrap_option
@kafka_output_option
def delete_offsets(group: str, topics: tuple[str, ...], bootstrap: str, output: str) -> None:
    """Forget what GROUP has committed for topics that none of its members reads."""

    async def work(admin: AdminClient) -> list[TopicPartition]:
        partitions = [each for topic in topics for each in await partitions_named(admin, topic)]
        await admin.delete_consumer_group_offsets(group, partitions)
        return sorted(dict.fromkeys(partitions))

    partitions = run(lambda: with_admin(bootstrap, work))
    if output == "json":
        deleted = [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic(partitions).items()]
        print_json({"group": group, "deleted": deleted})
    elif output == "kafka":
        print_lines(kafka_groups.offsets_deleted(group, partitions))
    elif output == "tsv":
        print_table(("GROUP", "TOPIC", "PARTITION"), [(group, *each) for each in partitions], output)
    else:
        click.echo(f"{group} has nothing committed any more for {', '.join(map(str, partitions))}.")
