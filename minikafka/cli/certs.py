"""``minikafka certs ca|broker|client``: certificates for TLS without an authority of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minikafka.cli.admin import Decorated
from minikafka.cli.running import command_group
from minikafka.cli.tables import FOLDER, output_option, print_json, repeatable
from minikafka.hosting.secured import CA_DAYS, DAYS, certificate_folder

if TYPE_CHECKING:
    from minikafka.hosting.certificates import Made

DIR = click.option(
    "--dir",
    "folder",
    type=FOLDER,
    default=Path("certs"),
    show_default=True,
    help="Directory of the CA and its certificates.",
)
FORCE = click.option("--force", is_flag=True, help="Replace a file that exists.")
SUBJECT = click.option(
    "--subject", default="", metavar="DN", help="Subject, the most specific part first (default: CN=NAME)."
)


def _days_option(default: int) -> Callable[[Decorated], Decorated]:
    return click.option(
        "--days",
        type=click.IntRange(1, 36_500),
        default=default,
        show_default=True,
        help="Days for which the certificate is valid.",
    )


@command_group()
def command() -> None:
    """Make certificates for TLS: a CA, and what it signs for brokers and clients.

    Examples:
      minikafka certs ca
      minikafka certs broker broker-1 --host kafka-1.example.com --host 10.0.0.1
      minikafka certs client billing

    Needs the package cryptography: pip install cryptography.
    """


@command.command()
@click.option("--subject", default="CN=minikafka CA", show_default=True, metavar="DN", help="Subject of the CA.")
@_days_option(CA_DAYS)
@DIR
@FORCE
@output_option
def ca(subject: str, days: int, folder: Path, force: bool, output: str) -> None:
    """Make a CA: ca.pem, which clients trust, and ca.key, which signs.

    Keep ca.key away from brokers and clients: it can sign a certificate for each of their names.

    Examples:
      minikafka certs ca
      minikafka certs ca --dir /etc/minikafka/tls --subject 'CN=kafka-ca,O=Example'
    """
    _show(certificate_folder(folder).make_ca(subject, days=days, force=force), output)


@command.command()
@click.argument("name")
@repeatable(
    "--host", "hosts", "Host name or IP address by which clients and brokers call the broker", "HOST", required=True
)
@SUBJECT
@_days_option(DAYS)
@DIR
@FORCE
@output_option
def broker(name: str, hosts: tuple[str, ...], subject: str, days: int, folder: Path, force: bool, output: str) -> None:
    """Make NAME.pem for a broker's ssl.keystore.location: its private key, then its certificate.

    Examples:
      minikafka certs broker broker-1 --host kafka-1.example.com --host 10.0.0.1
      minikafka certs broker broker-1 --host localhost --host 127.0.0.1 --force
    """
    made = certificate_folder(folder).make_broker(name, hosts, subject=subject, days=days, force=force)
    _show(made, output)


@command.command()
@click.argument("name")
@SUBJECT
@_days_option(DAYS)
@DIR
@FORCE
@output_option
def client(name: str, subject: str, days: int, folder: Path, force: bool, output: str) -> None:
    """Make NAME.pem for a client: its private key, then its certificate, whose subject is the principal.

    Examples:
      minikafka certs client billing
      minikafka certs client audit --subject 'CN=audit,OU=finance,O=Example'
    """
    _show(certificate_folder(folder).make_client(name, subject=subject, days=days, force=force), output)


def _show(made: Made, output: str) -> None:
    if output == "json":
        print_json(
            {
                "path": str(made.path),
                "created": made.is_new,
                "subject": made.subject,
                "hosts": list(made.hosts),
                "not_after": made.not_after.isoformat(),
            }
        )
        return
    hosts = f" for {', '.join(made.hosts)}" if made.hosts else ""
    state = "created" if made.is_new else "exists already"
    click.echo(f"{made.path} {state}: {made.subject}{hosts}, valid until {made.not_after:%Y-%m-%d}")
