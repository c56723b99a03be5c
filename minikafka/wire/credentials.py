"""SCRAM credentials of users: the messages that describe and alter them (KIP-554). Mechanisms are Kafka's numbers.

The rules of ``messages.py`` hold here too. No response has a salt or a key.
"""

from __future__ import annotations

from minikafka.types import Offset
from minikafka.wire.messages import Failed, Message, Request


class CredentialInfo(Message):
    mechanism: int
    iterations: int


class DescribeUserScramCredentialsRequest(Request):
    users: tuple[str, ...] | None = None
    """None, and none at all: every user."""


class DescribedUser(Failed):
    user: str
    credential_infos: tuple[CredentialInfo, ...] = ()


class DescribeUserScramCredentialsResponse(Failed):
    results: tuple[DescribedUser, ...] = ()


class ScramDeletion(Message):
    name: str
    mechanism: int


class ScramUpsertion(Message):
    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes
    """As good as the password for logging in."""

    def __repr__(self) -> str:
        return f"ScramUpsertion(name={self.name!r}, mechanism={self.mechanism}, iterations={self.iterations})"


class AlterUserScramCredentialsRequest(Request):
    deletions: tuple[ScramDeletion, ...] = ()
    upsertions: tuple[ScramUpsertion, ...] = ()


class AlteredUser(Failed):
    user: str


class AlterUserScramCredentialsResponse(Failed):
    results: tuple[AlteredUser, ...] = ()
    """One for each user that the request names."""
    metadata_offset: Offset = -1
