"""The command ``minikafka`` and what hangs on it.

Rules for this file: commands are imported when they are used (a broker must start without loading rich), and packages
of which a command needs a few submodules load these only.

``import aiohttp.web`` first runs ``aiohttp/__init__.py``, which loads the client and its TLS contexts with all trusted
certificates; aiokafka's loads all of its clients for the sake of its record codec, prometheus_client's two HTTP
servers, and crc32c's a parser of mail, in which it looks its own version up. A broker uses none of these: 8 MB of its
memory and a fifth of its imports' time. :func:`defer` puts a package into ``sys.modules`` without running its
``__init__.py``. Submodules are imported as before. The first use of any other name runs ``__init__.py``, so that code
that needs the whole package works unchanged.

Only the command line calls it: a library must not change how its user's process imports.
"""

from __future__ import annotations

import logging
import pkgutil
import re
import shlex
import sys
import threading
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from click.shell_completion import get_completion_class

from minikafka import __version__, compiled
from minikafka.cli.running import Commands, fill_standard_streams, lone_command
from minikafka.errors import nearest
from minikafka.wire.garbage import without_collection

PACKAGES = ("aiohttp", "aiokafka", "crc32c", "javaproperties", "prometheus_client")
HOMES = {"crc32c": "crc32c._crc32c"}
"""Submodules in which names of a deferred package are looked up before ``__init__.py`` runs."""
_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)
_LOCK = threading.RLock()


class DeferredPackage(ModuleType):
    """A package whose ``__init__.py`` has not run."""

    def __getattr__(self, name: str) -> object:
        # Python calls this only for names that the package does not have yet.
        if not self.__dict__.get("_is_loading") and find_spec(f"{self.__name__}.{name}") is not None:
            return import_module(f"{self.__name__}.{name}")
        home = HOMES.get(self.__name__)
        if home is not None and hasattr(import_module(home), name):
            return getattr(import_module(home), name)
        with _LOCK:
            if self.__dict__.get("_is_loading"):  # by this thread: __init__.py itself looks for the name
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            if type(self) is DeferredPackage:
                self._load()
        return getattr(self, name)

    def _load(self) -> None:
        loader = self.__spec__.loader if self.__spec__ is not None else None
        if loader is None:
            raise ImportError(f"{self.__name__} has no loader", name=self.__name__)
        self.__dict__["_is_loading"] = True
        try:
            loader.exec_module(self)
        finally:
            del self.__dict__["_is_loading"]
        self.__class__ = ModuleType  # type: ignore[assignment]


def defer(*names: str) -> None:
    """Let these packages load without their ``__init__.py``; those that are loaded, or missing, stay as they are."""
    for name in names:
        spec = None if name in sys.modules else find_spec(name)
        if spec is None or spec.origin is None:
            continue
        package = module_from_spec(spec)
        package.__class__ = DeferredPackage
        # Submodules of aiohttp import it from the package.
        version = _VERSION.search(Path(spec.origin).read_text(encoding="utf-8"))
        if version is not None:
            package.__version__ = version[1]  # type: ignore[attr-defined]
        sys.modules[name] = package


COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("minikafka.cli.up:command", "Start a cluster of several brokers on this machine."),
    "serve": ("minikafka.cli.serve:command", "Run one broker in the foreground."),
    "join": ("minikafka.cli.join:command", "Add a broker to a running cluster, in the foreground."),
    "unregister": ("minikafka.cli.join:unregister", "Take a broker that is gone for good out of the cluster."),
    "topics": ("minikafka.cli.topics:command", "Create, list, describe, alter and delete topics."),
    "produce": ("minikafka.cli.produce:command", "Send standard input to a topic, one record a line."),
    "consume": ("minikafka.cli.consume:command", "Print a topic's records."),
    "offsets": ("minikafka.cli.topics:offsets", "Show where partitions begin and end."),
    "config": ("minikafka.cli.config:command", "Look at settings and where they come from; alter them at run time."),
    "certs": ("minikafka.cli.certs:command", "Make a CA and certificates of brokers and clients for TLS."),
    "acls": ("minikafka.cli.acls:command", "List, add and remove access control lists."),
    "users": ("minikafka.cli.users:command", "List users; add, change and remove their SCRAM credentials."),
    "quotas": ("minikafka.cli.quotas:command", "List, set and remove quotas of users and client ids."),
    "reassign": ("minikafka.cli.reassign:command", "Move partitions to other brokers while they are in use."),
    "explain": ("minikafka.cli.v1:explain", "Say why a partition has this leader, this ISR, this high watermark."),
    "connections": ("minikafka.cli.v1:connections", "List the clients and brokers that are connected to each broker."),
    "elect": ("minikafka.cli.reassign:elect", "Elect preferred leaders, or any where none is in sync."),
    "doctor": ("minikafka.cli.doctor:command", "Look for what is wrong with a cluster; say what to do."),
    "groups": ("minikafka.cli.groups:command", "Look at consumer groups; move and delete their offsets."),
    "transactions": ("minikafka.cli.transactions:command", "List and describe transactions; abort hanging ones."),
    "quorum": ("minikafka.cli.quorum:command", "Look at the metadata quorum."),
    "log": ("minikafka.cli.log:command", "Read and check log files, without a broker."),
    "audit": ("minikafka.cli.audit:command", "Compare a producer's ledger with what the logs hold."),
    "spark": ("minikafka.cli.spark:command", "Run Spark jobs on topics."),
    "lab": ("minikafka.cli.lab:command", "Play the stories of replication step by step."),
    "sim": ("minikafka.cli.sim:command", "Run clusters from a seed; show any run step by step."),
    "chaos": ("minikafka.cli.chaos:command", "Hurt a cluster under load by a scenario; judge what came of it."),
    "faults": ("minikafka.cli.v1:faults", "Hurt the links between brokers, for tests."),
    "demo": ("minikafka.cli.demo:command", "Kill brokers under load; prove that nothing is lost."),
    "completion": ("minikafka.cli.root:completion", "Print what a shell needs to complete commands."),
}
"""name -> (module:attribute, summary)."""


ALIASES = {"configs": "config", "topic": "topics", "group": "groups", "consumer-groups": "groups"}
"""Other names that people try first."""

LOGGED = ("produce", "consume")
"""Commands that show on stderr which brokers do not answer."""


class LazyCommands(Commands):
    """Imports a command's module when the command is run or asked for its own help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; an option of commands that stands before the command is an error that says so."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities:
                raise
            raise click.UsageError(
                f"No such option {error.option_name!r} here: options stand behind the command, as in "
                "`minikafka topics list -b 127.0.0.1:9092`.",
                error.ctx,
            ) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        # Modules and classes are no garbage: collections while they load took a seventh of the time.
        with without_collection():
            command = pkgutil.resolve_name(COMMANDS[cmd_name][0])
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


@click.group(cls=LazyCommands)
@click.version_option(__version__, prog_name="minikafka", message=f"%(prog)s %(version)s ({compiled.description()})")
@click.pass_context
def root(ctx: click.Context) -> None:
    r"""A broker that Kafka clients connect to, with real replication.

    Examples:
      minikafka up
      minikafka topics create orders --partitions 3 --replication-factor 3
      printf 'ann:tea\nbob:milk\n' | minikafka produce orders --key-separator :
      minikafka consume orders --from-beginning --exit-at-end -f '%p %o %k %s\n'

    Clients connect to 127.0.0.1:9092 unless -b or MINIKAFKA_BOOTSTRAP names another broker.

    Exit codes: 0 done, 1 failed, 2 called wrongly, 130 interrupted.
    """
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


SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_MINIKAFKA_COMPLETE"
"""How the shell's function asks the command for completions; click's convention."""


@lone_command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--name", default="minikafka", show_default=True, help="The command to complete: minikafka or mk.")
def completion(shell: str, name: str) -> None:
    """Print the completion script for SHELL.

    Examples:
      minikafka completion bash > ~/.local/share/bash-completion/completions/minikafka
      minikafka completion zsh > ~/.zfunc/_minikafka
      minikafka completion fish > ~/.config/fish/completions/minikafka.fish
      source <(minikafka completion bash)
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"this version of click cannot complete in {shell}")
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, name, VARIABLE).source())
