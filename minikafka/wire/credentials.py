"""SCRAM credentials of users: the messages that describe and alter them (KIP-554). Mechanisms are Kafka's numbers.

The rules of ``messages.py`` hold here too. No response has a salt or a key.
"""

from __future__ import annotations

from dataclasses import field

from minikafka.types import Offset
from minikafka.wire.messages import Failed, message


@message
class CredentialInfo:
    mechanism: int
    iterations: int


@message
class DescribeUserScramCredentialsRequest:
    users: tuple[str, ...] | None = None
    """None, and none at all: every user."""


@message
class DescribedUser(Failed):
    user: str
    credential_infos: tuple[CredentialInfo, ...] = ()


@message
class DescribeUserScramCredentialsResponse(Failed):
    results: tuple[DescribedUser, ...] = ()


@message
class ScramDeletion:
    name: str
    mechanism: int


@message
class ScramUpsertion:
    name: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)
    """As good as the password for logging in."""


@message
class AlterUserScramCredentialsRequest:
    deletions: tuple[ScramDeletion, ...] = ()
    upsertions: tuple[ScramUpsertion, ...] = ()


@message
class AlteredUser(Failed):
    user: str


@message
class AlterUserScramCredentialsResponse(Failed):
    results: tuple[AlteredUser, ...] = ()
    """One for each user that the request names."""
    metadata_offset: Offset = -1
