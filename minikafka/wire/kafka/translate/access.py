"""ACLs (Describe, Create, DeleteAcls 1 to 3), quotas (KIP-546, 0 and 1) and SCRAM credentials (KIP-554, 0)."""

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
from minikafka.wire.credentials import (
    AlteredUser,
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import Exchange, Translation
from minikafka.wire.kafka.translate.shapes import each_answer, error_of, plain, plain_response, request_of, typed
from minikafka.wire.quotas import AlterClientQuotasRequest, AlteredQuota, DescribeClientQuotasRequest

# ---- ACLs: Kafka groups described entries by resource; ours are flat -------------------------------------------------


def _filter(message: Message) -> AclFilter:
    return typed(
        AclFilter,
        message,
        resource_type=message["resource_type_filter"],
        resource_name=message["resource_name_filter"],
        pattern_type=message["pattern_type_filter"],
        principal=message["principal_filter"],
        host=message["host_filter"],
        permission=message["permission_type"],
    )


def _entry(acl: Acl) -> Message:
    return {**plain(acl), "permission_type": acl.permission}


def _describe_acls_request(message: Message, _exchange: Exchange) -> DescribeAclsRequest:
    return DescribeAclsRequest(filter=_filter(message))


def _describe_acls_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    resources: dict[tuple[int, str, int], Message] = {}
    for acl in response.acls:
        key = (acl.resource_type, acl.resource_name, acl.pattern_type)
        resources.setdefault(key, {**plain(acl), "acls": []})["acls"].append(_entry(acl))
    return {**error_of(response), "resources": list(resources.values())}


def _create_acls_request(message: Message, _exchange: Exchange) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=tuple(
            typed(Acl, each, pattern_type=each["resource_pattern_type"], permission=each["permission_type"])
            for each in message["creations"]
        )
    )


def _create_acls_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    results = each_answer(response, response.results, CreatedAcl, message["creations"])
    return {"results": [error_of(each) for each in results]}


def _delete_acls_request(message: Message, _exchange: Exchange) -> DeleteAclsRequest:
    return DeleteAclsRequest(filters=tuple(map(_filter, message["filters"])))


def _delete_acls_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    results = each_answer(response, response.filter_results, DeletedAcls, message["filters"])
    return {
        "filter_results": [
            {
                **error_of(each),
                "matching_acls": [
                    {"error_code": 0, "error_message": None, **_entry(acl)} for acl in each.matching_acls
                ],
            }
            for each in results
        ]
    }


DESCRIBE_ACLS = Translation("DescribeAcls", 1, 3, _describe_acls_request, _describe_acls_response)
CREATE_ACLS = Translation("CreateAcls", 1, 3, _create_acls_request, _create_acls_response)
DELETE_ACLS = Translation("DeleteAcls", 1, 3, _delete_acls_request, _delete_acls_response)

# ---- quotas ----------------------------------------------------------------------------------------------------------


def _describe_quotas_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    return {**plain(response), **({"entries": None} if response.error_code else {})}


def _alter_quotas_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    # An entity that the request names twice has one result, the last one, as in Kafka.
    results = each_answer(response, response.entries, AlteredQuota, message["entries"])
    return {"entries": [plain(each) for each in {each.entity: each for each in results}.values()]}


DESCRIBE_CLIENT_QUOTAS = Translation(
    "DescribeClientQuotas", 0, 1, request_of(DescribeClientQuotasRequest), _describe_quotas_response
)
ALTER_CLIENT_QUOTAS = Translation(
    "AlterClientQuotas", 0, 1, request_of(AlterClientQuotasRequest), _alter_quotas_response
)

# ---- SCRAM credentials -----------------------------------------------------------------------------------------------


def _describe_users_request(message: Message, _exchange: Exchange) -> DescribeUserScramCredentialsRequest:
    users = message["users"]
    return DescribeUserScramCredentialsRequest(users=None if users is None else tuple(each["name"] for each in users))


def _alter_users_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    names = dict.fromkeys(each["name"] for each in (*message["deletions"], *message["upsertions"]))
    results = each_answer(response, response.results, AlteredUser, [{"user": name} for name in names])
    return {"results": [plain(each) for each in results]}


DESCRIBE_USER_SCRAM_CREDENTIALS = Translation(
    "DescribeUserScramCredentials", 0, 0, _describe_users_request, plain_response
)
ALTER_USER_SCRAM_CREDENTIALS = Translation(
    "AlterUserScramCredentials", 0, 0, request_of(AlterUserScramCredentialsRequest), _alter_users_response
)
