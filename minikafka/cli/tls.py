"""``--ca``, ``--cert`` and ``--cert-key``: with which TLS a command calls brokers.

The options stand at every command that has ``-b``. Their values are kept in click's context and not passed through
every function of a command: what makes a connection asks :func:`client_settings` or :func:`tls_context` for them.
"""

from __future__ import annotations

from collections.abc import Callable
from ssl import SSLContext
from typing import Any, TypeVar

import click

from minikafka.addresses import is_https
from minikafka.blocking.tls import ClientTls
from minikafka.client.settings import AdminConfig
from minikafka.world.clients import client_tls

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_META = "minikafka.cli.tls"

# Option, parameter of the native clients, help.
_OPTIONS = (
    ("--ca", "ssl_cafile", "PEM file with the CAs of the brokers' certificates; connects with TLS."),
    ("--cert", "ssl_certfile", "PEM file with a client certificate, and its private key unless --cert-key has it."),
    ("--cert-key", "ssl_keyfile", "PEM file with the private key of --cert."),
)


def tls_options(function: Decorated) -> Decorated:
    """The three options, also from the environment. Commands have no parameter for them."""

    def kept(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta.setdefault(_META, {})[param.name] = value

    for option, name, meaning in reversed(_OPTIONS):
        function = click.option(
            option,
            name,
            type=click.Path(dir_okay=False),
            envvar="MINIKAFKA_" + option.removeprefix("--").replace("-", "_").upper(),
            show_envvar=True,
            expose_value=False,
            callback=kept,
            help=meaning,
        )(function)
    return function


def client_settings(bootstrap: str) -> dict[str, Any]:
    """Return the parameters of a native client that connects as the command line says."""
    ctx = click.get_current_context(silent=True)
    files = {} if ctx is None else ctx.meta.get(_META, {})
    return {"bootstrap_servers": bootstrap, **files}


def tls_files(bootstrap: str = "") -> ClientTls | None:
    """Return the files that the command line names, none for ``https://``; None: brokers are called in plain text."""
    ctx = click.get_current_context(silent=True)
    files = {} if ctx is None else ctx.meta.get(_META, {})
    if not files:
        return ClientTls() if is_https(bootstrap) else None
    return ClientTls(
        cafile=files.get("ssl_cafile"), certfile=files.get("ssl_certfile"), keyfile=files.get("ssl_keyfile")
    )


def tls_context(bootstrap: str) -> SSLContext | None:
    """Return the context of TLS; None: plain text. Raises InvalidConfig if a file cannot be used."""
    return client_tls(AdminConfig(**client_settings(bootstrap)))
