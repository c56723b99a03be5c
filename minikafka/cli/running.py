"""How a command runs and ends: the loop, signals, exit codes, sentences on standard error.

Exit codes: 0 done; 1 it failed; 2 it was called wrongly; 130 it was interrupted, as shells have it. An error is one
sentence on standard error, with what to do next; a traceback is a bug in minikafka. Rules for this file: every command
goes through :class:`Commands`, so that no exception finds another way out.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import io
import os
import re
import select
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from minikafka import errors as kafka
from minikafka.addresses import parse_bootstrap
from minikafka.world.system import has_no_reader

Result = TypeVar("Result")

FAILED = 1
MISUSED = 2
INTERRUPTED = 130
"""128 and the number of SIGINT: what a shell reports of a command that ended by Ctrl-C."""

# A person waits at the other end: a cluster that has not answered by then is reported as silent.
ANSWER_TIMEOUT_MS = 15_000
# An election takes one to three seconds: without a controller after that there is no quorum.
CONTROLLER_TIMEOUT_MS = 5_000
CONNECT_TIMEOUT_S = 3.0
STDOUT = 1
OUTPUT_CHECK_INTERVAL_S = 0.5

SENTENCE_MAX = 1000
"""No command's first sentence is longer."""

EXAMPLES = "\n\nExamples:\n"
"""What ends the help in the docstring of a command; its examples follow, and then what else is to be said."""

KEPT_LINES = "\b\n"
"""How a paragraph begins in which click keeps the lines."""

VARIABLES = "MINIKAFKA_"
"""How the environment variables begin that stand for options. These say where brokers are and who connects."""

NAME_OTHERS = "check -b, which may name several brokers (HOST:PORT,...), and that one of them runs (`minikafka up`)"
"""What to do where no bootstrap server listens: the only one that was named may be the one broker that is down."""

NEXT_STEPS: tuple[tuple[type[Exception], str], ...] = (
    (kafka.TlsFailed, "check -b, --ca and --cert (https:// is for listeners with TLS)"),
    (kafka.Unreachable, "check -b, and that a broker runs there (`minikafka up`)"),
    (kafka.OutcomeUnknown, "look before you send again: it may have happened"),
    (kafka.NetworkException, "check -b, and that a broker runs there (`minikafka up`)"),
    (kafka.UnknownTopicOrPartition, "`minikafka topics list` shows the topics"),
    (kafka.TopicAlreadyExists, "choose another name, or delete it first"),
    (kafka.GroupIdNotFound, "`minikafka groups list` shows the groups"),
    (kafka.TransactionalIdNotFound, "`minikafka transactions list` shows the transactional ids"),
)
"""What to do next, by class of error; the first that fits is printed."""

_CLIENTS_ADVICE = re.compile("[;:] check (bootstrap_servers|that the broker runs).*")
"""What a client advises; its own parameter is -b here."""


def fill_standard_streams() -> None:
    """Descriptors 0 to 2 that are closed (``<&-``, some daemons) become /dev/null.

    Else the next file or socket would get their numbers, and uvloop ends the process when it is to close one of those.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one: those below it are open by now.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def own_name() -> str:
    """What a user types to call this program: its bare name if the shell finds it by that, else as it was called."""
    called = Path(sys.argv[0])
    found = shutil.which(called.name)
    if found is not None and called.exists() and called.samefile(found):
        return called.name
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m minikafka"
    return shlex.quote(str(called))


class Failure(click.ClickException):
    """The command failed: ``message`` says what, and what to do next."""

    exit_code = FAILED

    def show(self, file: Any = None) -> None:
        click.echo(f"minikafka: {self.message}", file=file or sys.stderr)


SURROGATES = "surrogates not allowed"
"""What Python says of a text that has bytes of the command line which are not UTF-8."""

OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
"""Errors of standard output, if an OSError names no file."""


class Misuse(Failure):
    """The command was called wrongly."""

    exit_code = MISUSED


class Interrupted(Failure):
    """Ctrl-C, or SIGTERM, came before it was done."""

    exit_code = INTERRUPTED


def put_examples_last(command: click.Command) -> None:
    """Show the examples of a command's docstring behind its options; what the command gives as epilog follows them."""
    text, _, rest = inspect.cleandoc(command.help or "").partition(EXAMPLES)
    if rest:
        examples, _, more = rest.partition("\n\n")
        command.help = text
        command.epilog = "\n\n".join(filter(None, (KEPT_LINES + EXAMPLES.lstrip() + examples, command.epilog, more)))


class Command(click.Command):
    """A command with examples in its docstring."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        put_examples_last(self)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's, but how a command connects, which most commands share, stands in a section of its own behind."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Connection options": []}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx) if isinstance(each, click.Option) else None
            if record is not None:
                is_shared = str(each.envvar).startswith(VARIABLES)
                sections["Connection options" if is_shared else "Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Commands(click.Group):
    """A group with examples in its docstring, whose commands fail with sentences; ``-h`` is help, as ``--help`` is."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 100})
        super().__init__(*args, **kwargs)
        put_examples_last(self)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        # Options such as --help and --version print here.
        with errors_as_sentences():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with errors_as_sentences():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's, but the first sentence of each command is whole."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: each for name, each in commands.items() if each is not None and not each.hidden}
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(SENTENCE_MAX)) for name, each in shown.items()])


def command_group(name: str | None = None, **more: Any) -> Callable[[Callable[..., Any]], Commands]:
    """Declare a group."""
    return click.group(name, Commands, **more)


def lone_command(name: str | None = None, **more: Any) -> Callable[[Callable[..., Any]], Command]:
    """Declare a command that is in no group, or is put into one elsewhere."""
    return click.command(name, Command, **more)


@contextmanager
def errors_as_sentences() -> Any:
    """Turn expected errors into :class:`Failure` and :class:`Misuse`."""
    try:
        yield
    except click.ClickException as error:
        if type(error) is not click.ClickException:
            raise
        # Raised below the command line, which Failure belongs to.
        raise Failure(error.message) from error
    except kafka.InvalidConfig as error:
        raise Misuse(error.message) from error
    except kafka.ProtocolError as error:
        raise Failure(_sentence(error, f"{error.name}: {error.message}")) from error
    except kafka.WorldError as error:
        raise Failure(_sentence(error, str(error))) from error
    except BrokenPipeError:
        # The reader of the output left (``| head``): nothing is wrong.
        _drop_output()
        raise click.exceptions.Exit(0) from None
    except OSError as error:
        if error.filename is None and error.errno in OUTPUT_ERRORS:
            _drop_output()
        raise Failure(_system_error_text(error)) from error
    except UnicodeEncodeError as error:
        if error.reason != SURROGATES:
            raise
        raise Misuse(f"{error.object!r} is not UTF-8, as names and values on the command line must be") from error
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise Interrupted("interrupted") from None


def _sentence(error: Exception, text: str) -> str:
    causes = [error]
    while isinstance(causes[-1].__cause__, Exception):
        causes.append(causes[-1].__cause__)
    tls = next((each for each in causes if isinstance(each, kafka.TlsFailed)), error)
    for kind, step in NEXT_STEPS:
        if isinstance(tls, kind):
            return f"{_CLIENTS_ADVICE.sub('', text)}; {step}"
    return text


def _system_error_text(error: OSError) -> str:
    """Which file, and what is wrong with it; without a name it was the output that could not be written."""
    if type(error).__str__ is not OSError.__str__ or error.errno is None or error.strerror is None:
        return str(error)  # it has words of its own
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if error.errno in OUTPUT_ERRORS:
        return f"the output cannot be written: {error.strerror}"
    return error.strerror


def _drop_output() -> None:
    """Discard what could not be written: Python's last flush must not fail, which would change the exit code to 120."""
    # Output that is captured in this process has no descriptor, and output that was closed at the start is None.
    with suppress(io.UnsupportedOperation, AttributeError):
        output = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)


_ENDING = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """SIGINT and SIGTERM as a command sees them: the first asks it to stop, the second to hurry, the third ends it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.urged = asyncio.Event()
        self._task = asyncio.current_task()

    def ask(self) -> None:
        """One more signal."""
        if not self.asked.is_set():
            self.asked.set()
        elif not self.urged.is_set():
            self.urged.set()
        else:
            self.cancel()

    def cancel(self) -> None:
        """End the command where it waits."""
        if self._task is not None:
            self._task.cancel()


def run(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run on uvloop. SIGINT and SIGTERM cancel the work, which cleans up; then the command fails as interrupted."""
    return _run(lambda _: work(), Signals.cancel)


def run_until_asked(work: Callable[[Signals], Coroutine[Any, Any, Result]]) -> Result:
    """Run on uvloop; ``work`` watches the signals and ends by itself."""
    return _run(work, Signals.ask)


def _run(work: Callable[[Signals], Coroutine[Any, Any, Result]], on_signal: Callable[[Signals], None]) -> Result:
    async def with_signals() -> Result:
        signals, loop = Signals(), asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, on_signal, signals)
        return await work(signals)

    before = {number: signal.getsignal(number) for number in _ENDING}
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(with_signals())
    finally:
        # A closed loop leaves its handlers, which do nothing: no signal would end what the command does next.
        for number, handler in before.items():
            signal.signal(number, handler)


async def check_reachable(bootstrap: str) -> None:
    """Failure at once when nothing listens at any of the bootstrap servers; clients would try for a while.

    InvalidConfig for a malformed ``bootstrap``.
    """
    reason = ""
    for address in parse_bootstrap(bootstrap, https=True):
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(address.host, address.port)
        except OSError as error:
            reason = f"{address}: {error.strerror or 'no answer'}"
            continue
        writer.close()
        return
    raise Failure(f"no broker can be reached ({reason}); {NAME_OTHERS}")


async def output_reader_gone() -> None:
    """Return once the reader of standard output has left (``| head -1``), even while nothing is written.

    A write would fail, but a command that waits for records may never write again. Polled, because an event loop can
    watch pipes and sockets only, and standard output may be a file.
    """
    while not has_no_reader(STDOUT):  # noqa: ASYNC110 - nothing in this process could set an event
        await asyncio.sleep(OUTPUT_CHECK_INTERVAL_S)


async def write_output(data: bytes | bytearray) -> None:
    """Write to standard output; other tasks and signals go on while its reader takes nothing.

    A write that blocks would hold up the event loop: then no signal ends the command, and a member of a group sends no
    heartbeats. The descriptor cannot be set to non-blocking, because it is shared with other programs.
    """
    stream = sys.stdout.buffer
    output = select.poll()
    output.register(STDOUT, select.POLLOUT)
    # A pipe that is writable takes so much without blocking.
    for start in range(0, len(data), select.PIPE_BUF):
        while not output.poll(0):
            await asyncio.to_thread(output.poll, OUTPUT_CHECK_INTERVAL_S * 1000)
        stream.write(memoryview(data)[start : start + select.PIPE_BUF])
        stream.flush()


async def first_of(*works: Coroutine[Any, Any, object]) -> int:
    """Run all until one ends; which one. The others are cancelled; an exception of the one that ended is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    ended = next(index for index, task in enumerate(tasks) if not task.cancelled())
    await tasks[ended]
    return ended
