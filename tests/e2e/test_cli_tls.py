"""The command line over TLS: --ca, --cert and --cert-key at every command that has -b."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from minikafka.addresses import parse_bootstrap
from minikafka.cli.root import COMMANDS, root
from minikafka.errors import InvalidConfig
from minikafka.testing.local_cluster import LocalCluster
from minikafka.testing.plugin import QUICK

pytestmark = [pytest.mark.e2e]

NAMES = {"ssl_cafile": "--ca", "ssl_certfile": "--cert"}


@pytest.fixture(scope="module")
def cluster():
    """One broker that requires client certificates."""
    with LocalCluster(1, config={**QUICK, "ssl.client.auth": "required"}, tls=True) as running:
        yield running


def command(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(root, words, env=environment)


def process(*words: str, text: str = "") -> str:
    """What a command that reads or writes records prints."""
    line = [sys.executable, "-m", "minikafka", *words]
    return subprocess.run(line, input=text, capture_output=True, text=True, check=True, timeout=120).stdout


def options(cluster: LocalCluster) -> list[str]:
    settings = cluster.client_settings("cli")
    return ["-b", cluster.bootstrap, *(word for name, option in NAMES.items() for word in (option, settings[name]))]


def test_commands_work_with_a_client_certificate(cluster: LocalCluster):
    """Through the admin client, the producer, the consumer, HTTP, and single requests."""
    tls = options(cluster)
    assert command("topics", "create", "orders", *tls).exit_code == 0
    assert '"acknowledged":2' in process("produce", "orders", *tls, text="tea\nmilk\n")
    assert process("consume", "orders", "--from-beginning", "--exit-at-end", *tls) == "tea\nmilk\n"
    for words in (
        ["topics", "describe", "orders"],
        ["offsets", "orders"],
        ["explain", "orders-0"],
        ["connections"],
        ["quorum", "describe"],
        ["groups", "list"],
        ["reassign", "status"],
        ["config", "describe", "--topic", "orders"],
    ):
        done = command(*words, *tls)
        assert done.exit_code == 0, (words, done.output)
    # It looks at pages and at requests of every broker.
    looked = command("doctor", *tls, "-o", "json")
    assert '"brokers":1' in looked.output
    assert "nobody answers" not in looked.output


def test_files_come_from_the_environment_too(cluster: LocalCluster):
    """As MINIKAFKA_BOOTSTRAP does; https:// alone needs a CA that the system trusts."""
    settings = cluster.client_settings("cli")
    files = {"MINIKAFKA_CA": settings["ssl_cafile"], "MINIKAFKA_CERT": settings["ssl_certfile"]}
    listed = command("topics", "list", "-b", f"https://{cluster.bootstrap}", **files)
    assert listed.exit_code == 0, listed.output
    refused = command("connections", "-b", f"https://{cluster.bootstrap}")
    assert refused.exit_code == 1


def test_a_file_that_cannot_be_used_is_named(cluster: LocalCluster):
    """One sentence, exit code 2."""
    for words in (["topics", "list"], ["connections"], ["consume", "orders"]):
        refused = command(*words, "-b", cluster.bootstrap, "--ca", "/no/such/file")
        assert refused.exit_code == 2
        assert "/no/such/file: the file does not exist" in refused.output


def test_plain_text_is_refused_with_what_is_needed(cluster: LocalCluster):
    """Through every kind of client, at once: it was tried for 15 s, or no broker could be reached, it said."""
    for words in (
        ["topics", "list"],
        ["consume", "orders"],
        ["connections"],
        ["explain", "orders-0"],
        ["quorum", "describe"],
    ):
        refused = command(*words, "-b", cluster.bootstrap)
        assert refused.exit_code == 1, refused.output
        assert "the broker's listener needs TLS" in refused.output
        assert "check -b, --ca and --cert" in refused.output


def test_broker_without_tls_does_not_join(cluster: LocalCluster, tmp_path: Path):
    """It could reach no voter, and said so only after a minute."""
    joining = [sys.executable, "-m", "minikafka", "join", *options(cluster), "--data-dir", str(tmp_path)]
    done = subprocess.run(joining, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")
    assert "call each other with TLS, which broker 2 is not configured for: give" in done.stderr
    assert str(tmp_path / "broker-2" / "broker.properties") in done.stderr


def test_what_connects_in_plain_text_refuses_https():
    """The source for Spark reads bootstrap servers so: its TLS is an option, without which it would send plain text."""
    with pytest.raises(InvalidConfig, match="asks for TLS, which cannot be used here"):
        parse_bootstrap("a:1,https://b:2")
    assert parse_bootstrap("a:1,https://b:2", https=True) == (("a", 1), ("b", 2))


def test_every_command_that_connects_has_the_options():
    """Also audit and spark, whose clients are not asynchronous."""
    context = click.Context(root)
    lacking = set()
    for name in COMMANDS:
        found = root.get_command(context, name)
        subcommands = found.commands.values() if isinstance(found, click.Group) else [found]
        for each in subcommands:
            given = {option for param in each.params for option in param.opts}
            if "-b" in given and not {"--ca", "--cert", "--cert-key"} <= given:
                lacking.add(name)
    assert lacking == set()


def test_an_audit_reads_over_tls(cluster: LocalCluster, tmp_path: Path):
    """Its client blocks and has connections of its own; a bad file is one sentence."""
    tls, ledger = options(cluster), str(tmp_path / "l.jsonl")
    assert command("topics", "create", "audited", *tls).exit_code == 0
    process("produce", "audited", "--ledger", ledger, *tls, text="tea\nmilk\n")
    audited = command("audit", ledger, *tls, "-o", "json")
    assert audited.exit_code == 0, audited.output
    assert '"ok":true' in audited.output
    plain = command("audit", ledger, "-b", cluster.bootstrap, "--ca", "/no/such/file")
    assert plain.exit_code == 2
    assert "/no/such/file: the file does not exist" in plain.output
    # It was tried for a minute.
    for lacking, said in (
        ((), "the broker's listener needs TLS"),
        (tls[2:4], "the broker requires a client certificate"),
    ):
        refused = command("audit", ledger, "-b", cluster.bootstrap, *lacking)
        assert refused.exit_code == 1, refused.output
        assert f"{said}; check -b, --ca and --cert" in refused.output
