"""``minikafka users``: where passwords come from, and what the commands do with users."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from minikafka.cli import users
from minikafka.cli.admin import client_settings
from minikafka.cli.root import root
from minikafka.errors import ResourceNotFound


class Admin:
    """Users in a dict."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, int]] = {}
        self.passwords: dict[tuple[str, str], str] = {}

    async def describe_user_scram_credentials(self, names: list[str] | None = None) -> dict[str, dict[str, int]]:
        for name in names or ():
            if name not in self.known:
                raise ResourceNotFound(f"no user {name}")
        return {name: dict(self.known[name]) for name in names or self.known}

    async def set_user_password(self, user: str, password: str, mechanism: str, *, iterations: int) -> None:
        self.known.setdefault(user, {})[mechanism] = iterations
        self.passwords[user, mechanism] = password

    async def delete_user_credential(self, user: str, mechanism: str) -> None:
        del self.known[user][mechanism]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    """What the commands reach in place of brokers."""
    found = Admin()

    def call_admin(bootstrap: str, work: Any) -> Any:
        client_settings(bootstrap)  # refuses what the real one refuses
        return asyncio.run(work(found))

    monkeypatch.setattr(users, "call_admin", call_admin)
    monkeypatch.delenv(users.PASSWORD_VARIABLE, raising=False)
    return found


def call(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(root, ["users", *arguments], **options)


def test_a_password_comes_from_a_file(admin: Admin, tmp_path: Path) -> None:
    """Without the newline at its end; other spaces are part of it. It is not the password of --user, who logs in."""
    path = tmp_path / "p"
    path.write_text(" sécret \n", encoding="utf-8")
    found = call("add", "ann", "--password-file", str(path))
    assert (found.exit_code, found.output) == (0, "User ann can log in with SCRAM-SHA-512.\n")
    assert admin.passwords == {("ann", "SCRAM-SHA-512"): " sécret "}
    assert admin.known == {"ann": {"SCRAM-SHA-512": 8192}}


def test_a_password_comes_from_the_environment(admin: Admin) -> None:
    """And can be used with several mechanisms."""
    options = ["--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512", "--iterations", "4096"]
    found = call("add", "ann", *options, env={users.PASSWORD_VARIABLE: "secret"})
    assert found.exit_code == 0
    assert "secret" not in found.output
    assert admin.known == {"ann": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}}
    assert set(admin.passwords.values()) == {"secret"}


def test_a_password_comes_from_a_prompt(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for twice, and not shown."""
    monkeypatch.setattr(
        "minikafka.cli.admin.sys", type("Terminal", (), {"stdin": type("In", (), {"isatty": lambda: True})})
    )
    found = call("add", "ann", input="secret\nsecret\n")
    assert found.exit_code == 0
    assert "secret" not in found.output
    assert admin.passwords == {("ann", "SCRAM-SHA-512"): "secret"}


def test_a_generated_password_is_printed(admin: Admin) -> None:
    """Alone on standard output, and another one each time."""
    first, second = call("add", "ann", "--generate").stdout, call("add", "bob", "--generate").stdout
    assert {first.strip(), second.strip()} == set(admin.passwords.values())
    assert first != second
    assert len(first.strip()) == 24


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "ann"], "no password is given"),
        (["add", "ann", "--password-file", "EMPTY"], "the password is empty"),
        (["add", "ann", "--password-file", "BINARY"], "cannot be read"),
        (["add", "ann", "--password-file", "EMPTY", "--generate"], "exclude each other"),
        (["add", "ann", "--password", "secret"], "No such option"),
        (["add", "ann", "--iterations", "1000"], "4096<=x<=16384"),
        (["add", "ann", "--mechanism", "PLAIN"], "is not one of"),
    ],
)
def test_calls_that_are_refused(admin: Admin, tmp_path: Path, arguments: list[str], said: str) -> None:
    """Nothing is changed; a password as an argument is no option."""
    for name, data in (("EMPTY", b"\n"), ("BINARY", b"\xff")):
        (tmp_path / name).write_bytes(data)
    found = call(*(str(tmp_path / each) if each in ("EMPTY", "BINARY") else each for each in arguments))
    assert found.exit_code == 2
    assert said in found.output
    assert admin.known == {}


def test_list_and_remove(admin: Admin) -> None:
    """A user is removed as a whole, or one of its mechanisms."""
    assert call("list").output == "There are no users.\n"
    admin.known = {"bob": {"SCRAM-SHA-512": 8192}, "ann": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 8192}}
    assert [line.split() for line in call("list", "-o", "tsv").output.splitlines()[-3:]] == [
        ["ann", "SCRAM-SHA-256", "4096"],
        ["ann", "SCRAM-SHA-512", "8192"],
        ["bob", "SCRAM-SHA-512", "8192"],
    ]
    assert '{"user":"bob","mechanism":"SCRAM-SHA-512","iterations":8192}' in call("list", "-o", "json").output.replace(
        " ", ""
    ).replace("\n", "")
    found = call("remove", "ann", "--mechanism", "SCRAM-SHA-256")
    assert found.output == "User ann can no longer log in with SCRAM-SHA-256.\n"
    assert call("remove", "ann").exit_code == 0
    assert admin.known["ann"] == {}
    assert "there is no user eve; `minikafka users list` shows the users" in call("remove", "eve").output
    for arguments in (["remove", "eve"], ["remove", "bob", "--mechanism", "SCRAM-SHA-256"]):
        assert call(*arguments).exit_code != 0
    assert admin.known["bob"] == {"SCRAM-SHA-512": 8192}
