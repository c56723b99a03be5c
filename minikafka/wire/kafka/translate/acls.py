"""DescribeAcls, CreateAcls, DeleteAcls (1 to 3): SECURITY_DISABLED, as from a Kafka broker without an authorizer."""

from __future__ import annotations

from typing import Any, NoReturn

from minikafka.errors import SecurityDisabled
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import Exchange, Translation


def _refused(_message: Message, _exchange: Exchange) -> NoReturn:
    raise SecurityDisabled("No authorizer is configured: minikafka has no ACLs.")


def _error(response: Any) -> Message:
    return {"error_code": response.error_code, "error_message": response.error_message}


def _describe_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    return {**_error(response), "resources": []}


def _create_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    return {"results": [_error(response) for _ in message["creations"]]}


def _delete_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    return {"filter_results": [{**_error(response), "matching_acls": []} for _ in message["filters"]]}


# No handler is reached. ApiVersions stands for an API whose response has nothing but an error.
DESCRIBE_ACLS = Translation("DescribeAcls", 1, 3, _refused, _describe_response, serves="ApiVersions")
CREATE_ACLS = Translation("CreateAcls", 1, 3, _refused, _create_response, serves="ApiVersions")
DELETE_ACLS = Translation("DeleteAcls", 1, 3, _refused, _delete_response, serves="ApiVersions")
