"""The command ``minikafka`` and what hangs on it.

Rules for this file: commands are imported when they are asked for (a broker must start without loading rich).
"""

from __future__ import annotations

import importlib
import logging
import shlex
from typing import Any

import click

from minikafka import __version__, compiled
from minikafka.cli.deferred import PACKAGES, defer
from minikafka.cli.running import Commands, fill_standard_streams
from minikafka.spelling import nearest
from minikafka.wire.garbage import without_collection

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("minikafka.cli.up", "Start a cluster of several brokers on this machine."),
    "serve": ("minikafka.cli.serve", "Run one broker in the foreground."),
    "join": ("minikafka.cli.join", "Add a broker to a running cluster, in the foreground."),
    "topics": ("minikafka.cli.topics", "Create, list, describe, alter and delete topics."),
    "produce": ("minikafka.cli.produce", "Send standard input to a topic, one record a line."),
    "consume": ("minikafka.cli.consume", "Print a topic's records."),
    "offsets": ("minikafka.cli.offsets", "Show where partitions begin and end."),
    "config": ("minikafka.cli.config", "Look at settings and where they come from; alter them at run time."),
    "certs": ("minikafka.cli.certs", "Make a CA and certificates of brokers and clients for TLS."),
    "acls": ("minikafka.cli.acls", "List, add and remove access control lists."),
    "users": ("minikafka.cli.users", "List users; add, change and remove their SCRAM credentials."),
    "quotas": ("minikafka.cli.quotas", "List, set and remove quotas of users and client ids."),
    "reassign": ("minikafka.cli.reassign", "Move partitions to other brokers while they are in use."),
    "explain": ("minikafka.cli.explain", "Say why a partition has this leader, this ISR, this high watermark."),
    "connections": ("minikafka.cli.connections", "List the clients and brokers that are connected to each broker."),
    "elect": ("minikafka.cli.elect", "Elect preferred leaders, or any where none is in sync."),
    "doctor": ("minikafka.cli.doctor", "Look for what is wrong with a cluster; say what to do."),
    "groups": ("minikafka.cli.groups", "Look at consumer groups; move and delete their offsets."),
    "transactions": ("minikafka.cli.transactions", "List and describe transactions; abort hanging ones."),
    "quorum": ("minikafka.cli.quorum", "Look at the metadata quorum."),
    "log": ("minikafka.cli.log", "Read and check log files, without a broker."),
    "audit": ("minikafka.cli.audit", "Compare a producer's ledger with what the logs hold."),
    "spark": ("minikafka.cli.spark", "Run Spark jobs on topics."),
    "lab": ("minikafka.cli.lab", "Play the stories of replication step by step."),
    "sim": ("minikafka.cli.sim", "Run clusters from a seed; show any run step by step."),
    "chaos": ("minikafka.cli.chaos", "Hurt a cluster under load by a scenario; judge what came of it."),
    "faults": ("minikafka.cli.faults", "Hurt the links between brokers, for tests."),
    "demo": ("minikafka.cli.demo", "Kill brokers under load; prove that nothing is lost."),
    "completion": ("minikafka.cli.completion", "Print what a shell needs to complete commands."),
}
"""name -> (module, summary). The command is the module's attribute ``command``."""


ALIASES = {"configs": "config", "topic": "topics", "group": "groups", "consumer-groups": "groups"}
"""Other names that people try first."""

LOGGED = ("produce", "consume")
"""Commands that show on stderr which brokers do not answer."""


class LazyCommands(Commands):
    """Imports a command's module when the command is run or asked for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        # Modules and classes are no garbage: collections while they load took a seventh of the time.
        with without_collection():
            command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, which looks for similar names only among commands that it has loaded."""
        name = args[0]
        if name not in COMMANDS and name not in ALIASES and not name.startswith("-") and not ctx.resilient_parsing:
            from minikafka.cli import kafka_tools  # noqa: PLC0415 - only for a command line that is wrong

            tool = kafka_tools.tool_named(name)
            if tool is not None:
                words = [*tool.split(), *args[1:]]
                line = kafka_tools.translated(words, self._subcommands(ctx, words[0]))
                ctx.fail(f"No such command {name!r}; here it is: {line or shlex.join(['minikafka', *words])}")
            near = nearest(name, COMMANDS)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def _subcommands(self, ctx: click.Context, name: str) -> list[str]:
        command = self.get_command(ctx, name)
        return command.list_commands(ctx) if isinstance(command, click.Group) else []

    def invoke(self, ctx: click.Context) -> Any:
        """As :class:`Commands`; an option that Kafka's tool has gets the command line that it is here."""
        words = [*ctx._protected_args, *ctx.args]  # noqa: SLF001 - click has no public name for them
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            from minikafka.cli import kafka_tools  # noqa: PLC0415 - only for a command line that is wrong

            words[0] = ALIASES.get(words[0], words[0])
            instead = kafka_tools.hint(words, error.option_name, self._subcommands(ctx, words[0]))
            if instead is None:
                raise
            raise click.UsageError(f"No such option {error.option_name!r}; {instead}", error.ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=LazyCommands,
    epilog="""\b
Examples:
  minikafka up
  minikafka topics create orders --partitions 3 --replication-factor 3
  printf 'ann:tea\\nbob:milk\\n' | minikafka produce orders --key-separator :
  minikafka consume orders --from-beginning --exit-at-end -f '%p %o %k %s\\n'

Clients connect to 127.0.0.1:9092 unless -b or MINIKAFKA_BOOTSTRAP names another broker.

Exit codes: 0 done, 1 failed, 2 called wrongly, 130 interrupted.""",
)
@click.version_option(__version__, prog_name="minikafka", message=f"%(prog)s %(version)s ({compiled.description()})")
@click.pass_context
def root(ctx: click.Context) -> None:
    """A broker that Kafka clients connect to, with real replication."""
    logger = logging.getLogger("minikafka.client")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("minikafka: %(message)s"))
    # Demos and fault runs kill brokers on purpose; other commands report the error when they fail.
    handler.setLevel(logging.WARNING if ctx.invoked_subcommand in LOGGED else logging.ERROR)
    logger.addHandler(handler)
    ctx.call_on_close(lambda: logger.removeHandler(handler))


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; ends in SystemExit."""
    fill_standard_streams()
    defer(*PACKAGES)
    return root(args=arguments, prog_name="minikafka")
