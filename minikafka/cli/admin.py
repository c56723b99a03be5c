"""How commands reach a cluster: TLS, credentials, an admin client, and arguments that several commands take.

``--ca``, ``--cert``, ``--user`` and so on say with which TLS and which credentials a command calls brokers. They stand
at every command that has ``-b``. Their values are kept in click's context and not passed through every function of a
command: what makes a connection asks :func:`client_settings` or :func:`connection` for them.

Rules for this file:

1. A password or token comes from a file, the environment or a prompt. It is no argument, since every user of the
   machine sees those.
2. ``minikafka serve`` takes some of these options and is no client: clients are imported where they are made.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from minikafka.addresses import is_https, is_loopback, is_number, parse_bootstrap
from minikafka.blocking.tls import ClientTls
from minikafka.cli.running import (
    ANSWER_TIMEOUT_MS,
    CONTROLLER_TIMEOUT_MS,
    VARIABLES,
    Misuse,
    Result,
    check_reachable,
    run,
)
from minikafka.errors import in_words
from minikafka.types import TopicPartition

if TYPE_CHECKING:
    from minikafka import AdminClient
    from minikafka.wire.messages import DescribedTopic
    from minikafka.world.http_client import ClientLogin

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_META = "minikafka.cli.admin"
PASSWORD_VARIABLE = "MINIKAFKA_PASSWORD"  # noqa: S105 - a name
TOKEN_VARIABLE = "MINIKAFKA_TOKEN"  # noqa: S105 - a name


class GivenPath(click.Path):
    """A path that is not empty: an empty one is mostly a shell variable that is not set, and no current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("the path is empty; name one (. is the current directory).", param, ctx)
        return super().convert(value, param, ctx)


_FILE = GivenPath(dir_okay=False)
# `users add` has a parameter password_file of its own.
_USER, _PASSWORD_FILE, _TOKEN_FILE = "login_user", "login_password_file", "login_token_file"

# Option, key of its value, type, help. The first three keys are parameters of the native clients.
_OPTIONS: tuple[tuple[str, str, Any, str], ...] = (
    ("--ca", "ssl_cafile", _FILE, "PEM file with the CAs of the brokers' certificates; connects with TLS."),
    (
        "--cert",
        "ssl_certfile",
        _FILE,
        "PEM file with a client certificate, and its private key unless --cert-key has it.",
    ),
    ("--cert-key", "ssl_keyfile", _FILE, "PEM file with the private key of --cert."),
    (
        "--user",
        _USER,
        str,
        f"User to log in as; the password is --user-password-file, the variable {PASSWORD_VARIABLE}, or asked for.",
    ),
    ("--user-password-file", _PASSWORD_FILE, _FILE, "File with the password of --user."),
    (
        "--token-file",
        _TOKEN_FILE,
        _FILE,
        f"File with a token (JWT) to log in with; also the variable {TOKEN_VARIABLE}.",
    ),
)


class Connection(NamedTuple):
    """How to call brokers."""

    tls: SSLContext | None
    """None: in plain text."""
    login: ClientLogin | None
    """None: without credentials."""


class _Token:
    """The token of a command's option, as clients want one."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def token(self) -> str:
        """See :class:`minikafka.client.settings.TokenProvider`."""
        return self._text


def tls_options(function: Decorated, *, logs_in: bool = True) -> Decorated:
    """The options, also from the environment. Commands have no parameter for them.

    Without ``logs_in``, help leaves the options of a login out: the command refuses them (:func:`tls_files`).
    """

    def kept(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta.setdefault(_META, {})[param.name] = value

    for option, name, kind, meaning in reversed(_OPTIONS):
        function = click.option(
            option,
            name,
            type=kind,
            envvar=VARIABLES + option.removeprefix("--").replace("-", "_").upper(),
            show_envvar=True,
            expose_value=False,
            callback=kept,
            hidden=not logs_in and name in (_USER, _PASSWORD_FILE, _TOKEN_FILE),
            help=meaning,
        )(function)
    return function


def client_settings(bootstrap: str) -> dict[str, Any]:
    """Return the parameters of a native client that connects as the command line says. Misuse without a password."""
    ctx = click.get_current_context(silent=True)
    given = dict({} if ctx is None else ctx.meta.get(_META, {}))
    user, password_file, token_file = (given.pop(each, None) for each in (_USER, _PASSWORD_FILE, _TOKEN_FILE))
    settings = {"bootstrap_servers": bootstrap, **given}
    uses_tls = bool(given) or is_https(bootstrap)
    if user is not None:
        if ctx is not None and _PASSWORD_FILE + "_read" in ctx.meta:
            password = ctx.meta[_PASSWORD_FILE + "_read"]
        else:
            password = read_secret(password_file, PASSWORD_VARIABLE, f"Password of {user}", "--user-password-file")
            if ctx is not None:
                ctx.meta[_PASSWORD_FILE + "_read"] = password
        settings |= {"sasl_plain_username": user, "sasl_plain_password": password}
    elif token_file is not None or (TOKEN_VARIABLE in os.environ and not _never_logs_in(ctx)):
        token = read_secret(token_file, TOKEN_VARIABLE, "Token", "--user-password-file")
        settings |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": _Token(token)}
    else:
        if password_file is not None:
            raise Misuse("--user-password-file needs --user")
        return settings
    if not uses_tls and not all(is_loopback(each.host) for each in parse_bootstrap(bootstrap)):
        raise Misuse(
            f"credentials would be sent to {bootstrap} in plain text, where others can read them; use --ca, or "
            "https:// before the address"
        )
    return {**settings, "security_protocol": "SASL_SSL" if uses_tls else "SASL_PLAINTEXT"}


def _never_logs_in(ctx: click.Context | None) -> bool:
    """Return True for a command that has the options of a login only to refuse them."""
    options = [] if ctx is None else [each for each in ctx.command.params if isinstance(each, click.Option)]
    return any(each.name == _TOKEN_FILE and each.hidden for each in options)


def tls_files(bootstrap: str = "") -> ClientTls | None:
    """Return the files that the command line names, none for ``https://``; None: brokers are called in plain text."""
    ctx = click.get_current_context(silent=True)
    given = {} if ctx is None else ctx.meta.get(_META, {})
    if any(name in given for name in (_USER, _PASSWORD_FILE, _TOKEN_FILE)):
        raise Misuse(
            "this command cannot log in: leave out --user and --token-file (or unset MINIKAFKA_USER), and name a "
            "listener that needs no login, with --ca and --cert"
        )
    files = {name: each for name, each in given.items() if name.startswith("ssl_")}
    if not files:
        return ClientTls() if is_https(bootstrap) else None
    return ClientTls(
        cafile=files.get("ssl_cafile"), certfile=files.get("ssl_certfile"), keyfile=files.get("ssl_keyfile")
    )


def read_secret(path: str | Path | None, variable: str, prompt: str, options: str, *, confirms: bool = False) -> str:
    """A password from a file, the environment or a prompt. Misuse if there is none, or an empty one.

    Args:
        path: The file.
        variable: The environment variable.
        prompt: What a terminal asks.
        options: Where else the password may come from, for the error.
        confirms: It is typed twice: it is a new one.
    """
    if path is not None:
        try:
            secret = Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise Misuse(f"{path} cannot be read: {in_words(error)}") from error
    elif variable in os.environ:
        secret = os.environ[variable]
    elif sys.stdin.isatty():
        secret = click.prompt(prompt, hide_input=True, confirmation_prompt=confirms, err=True)
    else:
        raise Misuse(f"no password is given: use {options}, or the variable {variable}")
    if not secret:
        raise Misuse("the password is empty" if confirms else f"{path or variable} is empty")
    return secret


def connection(bootstrap: str) -> Connection:
    """Return how a command calls brokers. Raises InvalidConfig if a file cannot be used, Misuse without a password."""
    from minikafka.client.settings import AdminConfig  # noqa: PLC0415 - see the head of this file
    from minikafka.world.clients import client_login, client_tls  # noqa: PLC0415 - as above

    config = AdminConfig(**client_settings(bootstrap))
    return Connection(client_tls(config), client_login(config))


async def with_admin(bootstrap: str, work: Callable[[AdminClient], Awaitable[Result]]) -> Result:
    """Connect, work, close. Fails at once when nobody listens at ``bootstrap``."""
    settings = client_settings(bootstrap)
    await check_reachable(bootstrap)
    settings |= {"default_api_timeout_ms": ANSWER_TIMEOUT_MS, "controller_timeout_ms": CONTROLLER_TIMEOUT_MS}
    from minikafka import AdminClient  # noqa: PLC0415 - see the head of this file

    async with AdminClient(**settings) as admin:
        return await work(admin)


def call_admin(bootstrap: str, work: Callable[[AdminClient], Awaitable[Result]]) -> Result:
    """Run :func:`with_admin` in an event loop of its own."""
    return run(lambda: with_admin(bootstrap, work))


def parse_partition(text: str) -> TopicPartition:
    """``orders-0`` as a partition; Misuse for anything else."""
    topic, dash, number = text.rpartition("-")
    if not dash or not topic or not is_number(number):
        raise Misuse(f"{text!r} is not a partition: TOPIC-NUMBER is needed, such as orders-0")
    return TopicPartition(topic, int(number))


def read_json(path: Path, member: str) -> list[Any]:
    """The list ``member`` of a JSON file; Misuse says what is wrong with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Misuse(f"{path} cannot be read as JSON: {in_words(error)}") from error
    if not isinstance(found, dict) or not isinstance(found.get(member), list):
        raise Misuse(f'{path}: an object with a list "{member}" is needed')
    entries: list[Any] = found[member]
    return entries


def partition_in(entry: Any, path: Path) -> TopicPartition:
    """The partition that an entry of a JSON file names."""
    topic, number = (entry.get("topic"), entry.get("partition")) if isinstance(entry, dict) else (None, None)
    if not isinstance(topic, str) or not isinstance(number, int):
        raise Misuse(f'{path}: each entry needs "topic" and "partition", {json.dumps(entry)} has not')
    return TopicPartition(topic, number)


def partitions_of(topics: Iterable[DescribedTopic]) -> list[TopicPartition]:
    """Every partition of some topics."""
    return [TopicPartition(topic.topic, each.partition) for topic in topics for each in topic.partitions]
