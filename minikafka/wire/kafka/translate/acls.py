"""DescribeAcls, CreateAcls, DeleteAcls (1 to 3). Kafka groups described entries by resource; ours are flat."""

from __future__ import annotations

from typing import Any

from minikafka.wire.acls import (
    Acl,
    AclFilter,
    CreateAclsRequest,
    CreatedAcl,
    DeleteAclsRequest,
    DeletedAcls,
    DescribeAclsRequest,
)
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import Exchange, Translation
from minikafka.wire.kafka.translate.topics import error_of


def _filter(message: Message) -> AclFilter:
    return AclFilter(
        resource_type=message["resource_type_filter"],
        resource_name=message["resource_name_filter"],
        pattern_type=message["pattern_type_filter"],
        principal=message["principal_filter"],
        host=message["host_filter"],
        operation=message["operation"],
        permission=message["permission_type"],
    )


def _resource(acl: Acl) -> Message:
    return {
        "resource_type": acl.resource_type,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type,
    }


def _entry(acl: Acl) -> Message:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


# ---- DescribeAcls ----------------------------------------------------------------------------------------------------


def _describe_request(message: Message, _exchange: Exchange) -> DescribeAclsRequest:
    return DescribeAclsRequest(filter=_filter(message))


def _describe_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    resources: dict[tuple[int, str, int], Message] = {}
    for acl in response.acls:
        key = (acl.resource_type, acl.resource_name, acl.pattern_type)
        resources.setdefault(key, {**_resource(acl), "acls": []})["acls"].append(_entry(acl))
    return {**error_of(response), "resources": list(resources.values())}


# ---- CreateAcls ------------------------------------------------------------------------------------------------------


def _create_request(message: Message, _exchange: Exchange) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=tuple(
            Acl(
                resource_type=each["resource_type"],
                resource_name=each["resource_name"],
                pattern_type=each["resource_pattern_type"],
                principal=each["principal"],
                host=each["host"],
                operation=each["operation"],
                permission=each["permission_type"],
            )
            for each in message["creations"]
        )
    )


def _create_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    results = response.results
    if response.error_code:
        refused = CreatedAcl(error_code=response.error_code, error_message=response.error_message)
        results = [refused] * len(message["creations"])
    return {"results": [error_of(each) for each in results]}


# ---- DeleteAcls ------------------------------------------------------------------------------------------------------


def _delete_request(message: Message, _exchange: Exchange) -> DeleteAclsRequest:
    return DeleteAclsRequest(filters=tuple(map(_filter, message["filters"])))


def _delete_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    results = response.filter_results
    if response.error_code:
        refused = DeletedAcls(error_code=response.error_code, error_message=response.error_message)
        results = [refused] * len(message["filters"])
    return {
        "filter_results": [
            {
                **error_of(each),
                "matching_acls": [
                    {"error_code": 0, "error_message": None, **_resource(acl), **_entry(acl)}
                    for acl in each.matching_acls
                ],
            }
            for each in results
        ]
    }


DESCRIBE_ACLS = Translation("DescribeAcls", 1, 3, _describe_request, _describe_response)
CREATE_ACLS = Translation("CreateAcls", 1, 3, _create_request, _create_response)
DELETE_ACLS = Translation("DeleteAcls", 1, 3, _delete_request, _delete_response)
