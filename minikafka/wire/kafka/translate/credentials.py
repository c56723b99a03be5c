"""DescribeUserScramCredentials and AlterUserScramCredentials (0), KIP-554."""

from __future__ import annotations

from typing import Any

from minikafka.wire.credentials import (
    AlteredUser,
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramDeletion,
    ScramUpsertion,
)
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import Exchange, Translation
from minikafka.wire.kafka.translate.topics import error_of


def _describe_request(message: Message, _exchange: Exchange) -> DescribeUserScramCredentialsRequest:
    users = message["users"]
    return DescribeUserScramCredentialsRequest(users=None if users is None else tuple(each["name"] for each in users))


def _describe_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    return {
        **error_of(response),
        "results": [
            {
                "user": each.user,
                **error_of(each),
                "credential_infos": [
                    {"mechanism": info.mechanism, "iterations": info.iterations} for info in each.credential_infos
                ],
            }
            for each in response.results
        ],
    }


def _alter_request(message: Message, _exchange: Exchange) -> AlterUserScramCredentialsRequest:
    return AlterUserScramCredentialsRequest(
        deletions=tuple(ScramDeletion(name=each["name"], mechanism=each["mechanism"]) for each in message["deletions"]),
        upsertions=tuple(
            ScramUpsertion(
                name=each["name"],
                mechanism=each["mechanism"],
                iterations=each["iterations"],
                salt=bytes(each["salt"]),
                salted_password=bytes(each["salted_password"]),
            )
            for each in message["upsertions"]
        ),
    )


def _alter_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    results = response.results
    if response.error_code:
        names = dict.fromkeys(each["name"] for each in (*message["deletions"], *message["upsertions"]))
        results = [
            AlteredUser(user=name, error_code=response.error_code, error_message=response.error_message)
            for name in names
        ]
    return {"results": [{"user": each.user, **error_of(each)} for each in results]}


DESCRIBE_USER_SCRAM_CREDENTIALS = Translation(
    "DescribeUserScramCredentials", 0, 0, _describe_request, _describe_response
)
ALTER_USER_SCRAM_CREDENTIALS = Translation("AlterUserScramCredentials", 0, 0, _alter_request, _alter_response)
