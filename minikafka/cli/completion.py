"""``minikafka completion bash|zsh|fish``: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_MINIKAFKA_COMPLETE"
"""How the shell's function asks the command for completions; click's convention."""


@click.command(
    epilog="""\b
Examples:
  minikafka completion bash > ~/.local/share/bash-completion/completions/minikafka
  minikafka completion zsh > ~/.zfunc/_minikafka
  minikafka completion fish > ~/.config/fish/completions/minikafka.fish
  source <(minikafka completion bash)"""
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--name", default="minikafka", show_default=True, help="The command to complete: minikafka or mk.")
def command(shell: str, name: str) -> None:
    """Print the completion script for SHELL."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"this version of click cannot complete in {shell}")
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, name, VARIABLE).source())
