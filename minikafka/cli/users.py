"""``minikafka users``: users that log in with SCRAM, which are kept in the metadata log.

Rule for this file: a password comes from a prompt, a file or the environment. It is no argument, since every user of
the machine sees those.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import click

from minikafka.cli.admin import call_admin, read_secret
from minikafka.cli.running import Misuse, command_group
from minikafka.cli.tables import EXISTING_FILE, bootstrap_option, list_options, print_found, repeatable
from minikafka.errors import ResourceNotFound
from minikafka.security.scram import ITERATIONS_DEFAULT, ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS

PASSWORD_VARIABLE = "MINIKAFKA_USER_PASSWORD"  # noqa: S105 - a name
GENERATED_SIZE = 18
"""Random bytes of a generated password, which has four characters for three of them."""


@command_group()
def command() -> None:
    """List users; add, change and remove their SCRAM credentials.

    Users log in at SASL listeners of the brokers. Users of PLAIN are in the brokers' settings.

    Examples:
      minikafka users add alice
      minikafka users list
      minikafka users remove alice
    """


_mechanism_option = repeatable(
    "--mechanism", "mechanisms", "SASL mechanism of the credential", type=click.Choice(list(MECHANISMS))
)


@command.command()
@click.argument("name")
@_mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_DEFAULT,
    show_default=True,
    help="Number of iterations of PBKDF2.",
)
@click.option(
    "--password-file", type=EXISTING_FILE, help="File with the password; a newline at its end is not part of it."
)
@click.option("--generate", is_flag=True, help="Make a random password and print it.")
@bootstrap_option
def add(
    name: str, mechanisms: tuple[str, ...], iterations: int, password_file: Path | None, generate: bool, bootstrap: str
) -> None:
    """Create a user, or give it another password (default mechanism: SCRAM-SHA-512).

    Examples:
      minikafka users add alice
      minikafka users add alice --password-file alice.password
      minikafka users add alice --generate --mechanism SCRAM-SHA-256

    Without --password-file and --generate, the password is the variable MINIKAFKA_USER_PASSWORD, or is asked for.
    An existing credential of the same mechanism is replaced, and its sessions end.
    """
    if generate and password_file is not None:
        raise Misuse("--generate and --password-file exclude each other")
    password = (
        secrets.token_urlsafe(GENERATED_SIZE)
        if generate
        else read_secret(password_file, PASSWORD_VARIABLE, "Password", "--password-file, --generate", confirms=True)
    )
    wanted = tuple(dict.fromkeys(mechanisms)) or ("SCRAM-SHA-512",)

    async def work(admin: Any) -> None:
        for mechanism in wanted:
            await admin.set_user_password(name, password, mechanism, iterations=iterations)

    call_admin(bootstrap, work)
    click.echo(f"User {name} can log in with {' and '.join(wanted)}.", err=generate)
    if generate:
        click.echo(password)


@command.command("list")
@list_options
def list_users(bootstrap: str, output: str) -> None:
    """List the users with the mechanisms and iterations of their credentials.

    Examples:
      minikafka users list
      minikafka users list -o json
    """
    users = call_admin(bootstrap, lambda admin: admin.describe_user_scram_credentials())
    rows = [(name, mechanism, str(users[name][mechanism])) for name in sorted(users) for mechanism in users[name]]
    document = {"users": [{"user": row[0], "mechanism": row[1], "iterations": int(row[2])} for row in rows]}
    print_found(output, document, ("User", "Mechanism", "Iterations"), rows, nothing="There are no users.")


@command.command()
@click.argument("name")
@_mechanism_option
@bootstrap_option
def remove(name: str, mechanisms: tuple[str, ...], bootstrap: str) -> None:
    """Delete a user's credentials, or those of some mechanisms. Its sessions end; its ACLs stay.

    Examples:
      minikafka users remove alice
      minikafka users remove alice --mechanism SCRAM-SHA-256
    """

    async def work(admin: Any) -> list[str]:
        known = (await admin.describe_user_scram_credentials()).get(name)
        if known is None:
            raise ResourceNotFound(f"there is no user {name}; `minikafka users list` shows the users")
        for mechanism in mechanisms:
            if mechanism not in known:
                raise ResourceNotFound(f"User {name} has no credential of {mechanism}.")
        removed = [each for each in known if not mechanisms or each in mechanisms]
        for mechanism in removed:
            await admin.delete_user_credential(name, mechanism)
        return removed

    removed = call_admin(bootstrap, work)
    click.echo(f"User {name} can no longer log in with {' and '.join(removed)}.")
