"""``minikafka join``: one more broker for a running cluster, in the foreground. ``minikafka unregister``: one fewer.

The new broker is no voter of the metadata quorum. It holds nothing until partitions are created on it, or moved to it
with ``minikafka reassign``.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from minikafka import AdminClient
from minikafka.blocking.tls import speaks_tls
from minikafka.cli.admin import call_admin
from minikafka.cli.foreground import serve_broker
from minikafka.cli.running import CONNECT_TIMEOUT_S, Failure, lone_command, run_until_asked
from minikafka.cli.settings import broker_settings, parse_flags
from minikafka.cli.tables import bootstrap_option, config_option, data_dir_option
from minikafka.hosting.cluster_files import join, voters_text
from minikafka.hosting.process import exec_with_malloc_environment
from minikafka.types import Address, NodeId
from minikafka.wire.messages import DescribeQuorumResponse


@lone_command()
@data_dir_option("Where the broker's files are kept, in DIR/broker-N.")
@click.option("--node-id", type=click.IntRange(0), metavar="N", help="Id of the broker.  [default: the next free id]")
@click.option(
    "--port", type=click.IntRange(1, 65_535), metavar="P", help="Port of the broker.  [default: any free port]"
)
@config_option
@bootstrap_option
def command(data_dir: Path, node_id: int | None, port: int | None, config: tuple[str, ...], bootstrap: str) -> None:
    """Add a broker on this machine to a running cluster, in the foreground.

    Prints a JSON line when it is ready: {"broker","pid","url","data_dir","config"}.

    Examples:
      minikafka join -b 127.0.0.1:9092 --data-dir /tmp/mk
      minikafka join -b 127.0.0.1:9092 --data-dir /tmp/mk --node-id 4 --port 9095
      minikafka reassign generate --brokers 1,2,3,4 > plan.json && minikafka reassign execute plan.json --wait

    Writes DIR/broker-N/broker.properties; the same command, or `minikafka serve` with that file, starts it again.
    """
    settings = parse_flags(config)
    known, quorum = call_admin(bootstrap, _cluster)
    node = max(known) + 1 if node_id is None else node_id
    voters = {each.node_id: Address(each.host, each.port) for each in quorum.endpoints}
    wanted = [each.replica_id for each in quorum.voters]
    if not all(each in voters for each in wanted):
        raise Failure("the quorum does not tell where its voters listen; write broker.properties by hand")
    if node in wanted:
        raise Failure(f"node {node} is a voter of this cluster: start it with `minikafka serve` and its own file")
    files = join(
        data_dir,
        node_id=node,
        cluster_id=quorum.cluster_id,
        voters=voters_text({each: voters[each] for each in wanted}),
        port=port or 0,
        config=settings,
    )
    parsed = broker_settings(files.path, os.environ, ())
    leader = voters.get(quorum.leader_id)
    if leader is not None and not parsed.config.brokers_use_tls and speaks_tls(leader, CONNECT_TIMEOUT_S):
        raise Failure(
            f"the brokers of this cluster call each other with TLS, which broker {node} is not configured for: give "
            f"{files.path} the TLS settings of the others, and start it with `minikafka serve`"
        )
    exec_with_malloc_environment(["-m", "minikafka", "serve", str(files.path)])
    run_until_asked(lambda signals: serve_broker(parsed, files.path, signals))


@lone_command()
@click.argument("node_id", type=click.IntRange(0), metavar="BROKER")
@bootstrap_option
def unregister(node_id: int, bootstrap: str) -> None:
    """Take a broker that is gone for good out of the cluster's list.

    It must be stopped, and have no replica left: move its partitions to other brokers first. A broker that starts with
    this id later joins as a new one.

    Examples:
      minikafka reassign generate --brokers 1,2,3 > plan.json && minikafka reassign execute plan.json --wait
      minikafka unregister 4
    """
    call_admin(bootstrap, lambda admin: admin.unregister_broker(node_id))
    click.echo(f"Broker {node_id} is no longer registered.")


async def _cluster(admin: AdminClient) -> tuple[list[NodeId], DescribeQuorumResponse]:
    """The registered brokers that live, and the quorum."""
    brokers = (await admin.describe_cluster())["brokers"]
    return [each["node_id"] for each in brokers], await admin.describe_quorum()
