"""The table of APIs: name, Kafka's key, versions spoken, request and response.

A key of 1000 and above is minikafka's own. Versions are minikafka's: Kafka's numbers count changes of Kafka's layout.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from minikafka.wire import acls as c
from minikafka.wire import admin as a
from minikafka.wire import credentials as s
from minikafka.wire import features as f
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire import quotas as q
from minikafka.wire import transaction_messages as t


# Each exists once. As keys of caches they are hashed for each request: by identity, not by all fields.
@dataclass(frozen=True, slots=True, eq=False)
class Api:
    name: str
    key: int
    request: type
    response: type
    min_version: int = 1
    max_version: int = 1
    carries_records: bool = False
    """Raw batches travel behind the head, in at least one direction: no JSON."""
    changes: bool = False
    """The request changes what is stored, so its outcome matters after a retry (see ``outcomes.py``). Not set for
    members of groups: their latest answer replaces earlier ones."""
    reads: bool = False
    """Its handler changes nothing in the broker (some ask the controller for a topic): a bug in it stops no broker."""
    list_max: int = 2_500
    """The longest list in a request: partitions, topics, members. Larger requests are split by their senders."""
    head_bytes_max: int = 1024 * 1024
    """The largest head of a request (JSON: twice that)."""


_SMALL: Final[dict[str, Any]] = {"list_max": 500, "head_bytes_max": 64 * 1024}

APIS: tuple[Api, ...] = (
    Api("Produce", 0, m.ProduceRequest, m.ProduceResponse, carries_records=True, changes=True),
    Api("Fetch", 1, m.FetchRequest, m.FetchResponse, carries_records=True, list_max=4_000),
    Api("ListOffsets", 2, m.ListOffsetsRequest, m.ListOffsetsResponse, reads=True),
    Api("Metadata", 3, m.MetadataRequest, m.MetadataResponse, reads=True),
    Api("OffsetCommit", 8, g.OffsetCommitRequest, g.OffsetCommitResponse, changes=True),
    Api("OffsetFetch", 9, g.OffsetFetchRequest, g.OffsetFetchResponse, reads=True),
    Api("FindCoordinator", 10, g.FindCoordinatorRequest, g.FindCoordinatorResponse, reads=True),
    Api("JoinGroup", 11, g.JoinGroupRequest, g.JoinGroupResponse),
    Api("Heartbeat", 12, g.HeartbeatRequest, g.HeartbeatResponse, **_SMALL),
    Api("LeaveGroup", 13, g.LeaveGroupRequest, g.LeaveGroupResponse),
    Api("SyncGroup", 14, g.SyncGroupRequest, g.SyncGroupResponse, head_bytes_max=4 * 1024 * 1024),
    Api("DescribeGroups", 15, g.DescribeGroupsRequest, g.DescribeGroupsResponse, reads=True),
    Api("ListGroups", 16, g.ListGroupsRequest, g.ListGroupsResponse, reads=True, **_SMALL),
    Api("ApiVersions", 18, m.ApiVersionsRequest, m.ApiVersionsResponse, reads=True, **_SMALL),
    Api("CreateTopics", 19, m.CreateTopicsRequest, m.CreateTopicsResponse, changes=True),
    Api("DeleteTopics", 20, m.DeleteTopicsRequest, m.DeleteTopicsResponse, changes=True),
    Api("DeleteRecords", 21, m.DeleteRecordsRequest, m.DeleteRecordsResponse, changes=True),
    Api("InitProducerId", 22, m.InitProducerIdRequest, m.InitProducerIdResponse, **_SMALL),
    Api("OffsetForLeaderEpoch", 23, m.OffsetForLeaderEpochRequest, m.OffsetForLeaderEpochResponse, reads=True),
    Api("AddPartitionsToTxn", 24, t.AddPartitionsToTxnRequest, t.AddPartitionsToTxnResponse, changes=True),
    Api("AddOffsetsToTxn", 25, t.AddOffsetsToTxnRequest, t.AddOffsetsToTxnResponse, changes=True, **_SMALL),
    Api("EndTxn", 26, t.EndTxnRequest, t.EndTxnResponse, changes=True, **_SMALL),
    Api("WriteTxnMarkers", 27, t.WriteTxnMarkersRequest, t.WriteTxnMarkersResponse, changes=True),
    Api("TxnOffsetCommit", 28, t.TxnOffsetCommitRequest, t.TxnOffsetCommitResponse, changes=True),
    Api("DescribeAcls", 29, c.DescribeAclsRequest, c.DescribeAclsResponse, reads=True, **_SMALL),
    Api("CreateAcls", 30, c.CreateAclsRequest, c.CreateAclsResponse, changes=True),
    Api("DeleteAcls", 31, c.DeleteAclsRequest, c.DeleteAclsResponse, changes=True),
    Api("DescribeConfigs", 32, a.DescribeConfigsRequest, a.DescribeConfigsResponse, reads=True, list_max=200),
    Api("AlterConfigs", 33, a.AlterConfigsRequest, a.AlterConfigsResponse, changes=True),
    Api("DescribeLogDirs", 35, a.DescribeLogDirsRequest, a.DescribeLogDirsResponse, reads=True),
    Api("CreatePartitions", 37, a.CreatePartitionsRequest, a.CreatePartitionsResponse, changes=True),
    Api("DeleteGroups", 42, g.DeleteGroupsRequest, g.DeleteGroupsResponse, changes=True),
    Api("ElectLeaders", 43, m.ElectLeadersRequest, m.ElectLeadersResponse, changes=True),
    Api(
        "IncrementalAlterConfigs", 44, a.IncrementalAlterConfigsRequest, a.IncrementalAlterConfigsResponse, changes=True
    ),
    Api(
        "AlterPartitionReassignments",
        45,
        a.AlterPartitionReassignmentsRequest,
        a.AlterPartitionReassignmentsResponse,
        changes=True,
    ),
    Api(
        "ListPartitionReassignments",
        46,
        a.ListPartitionReassignmentsRequest,
        a.ListPartitionReassignmentsResponse,
        reads=True,
    ),
    Api("OffsetDelete", 47, g.OffsetDeleteRequest, g.OffsetDeleteResponse, changes=True),
    Api(
        "DescribeClientQuotas", 48, q.DescribeClientQuotasRequest, q.DescribeClientQuotasResponse, reads=True, **_SMALL
    ),
    Api("AlterClientQuotas", 49, q.AlterClientQuotasRequest, q.AlterClientQuotasResponse, changes=True),
    Api(
        "DescribeUserScramCredentials",
        50,
        s.DescribeUserScramCredentialsRequest,
        s.DescribeUserScramCredentialsResponse,
        reads=True,
    ),
    Api(
        "AlterUserScramCredentials",
        51,
        s.AlterUserScramCredentialsRequest,
        s.AlterUserScramCredentialsResponse,
        changes=True,
    ),
    Api("Vote", 52, m.VoteRequest, m.VoteResponse, **_SMALL),
    Api("BeginQuorumEpoch", 53, m.BeginQuorumEpochRequest, m.BeginQuorumEpochResponse, **_SMALL),
    Api("EndQuorumEpoch", 54, m.EndQuorumEpochRequest, m.EndQuorumEpochResponse, **_SMALL),
    Api("DescribeQuorum", 55, m.DescribeQuorumRequest, m.DescribeQuorumResponse, reads=True, **_SMALL),
    Api("AlterPartition", 56, m.AlterPartitionRequest, m.AlterPartitionResponse),
    Api("UpdateFeatures", 57, f.UpdateFeaturesRequest, f.UpdateFeaturesResponse, changes=True, **_SMALL),
    Api("Envelope", 58, m.EnvelopeRequest, m.EnvelopeResponse, carries_records=True, **_SMALL),
    Api("FetchSnapshot", 59, m.FetchSnapshotRequest, m.FetchSnapshotResponse, carries_records=True, **_SMALL),
    Api("DescribeProducers", 61, m.DescribeProducersRequest, m.DescribeProducersResponse, reads=True),
    Api("BrokerRegistration", 62, m.BrokerRegistrationRequest, m.BrokerRegistrationResponse),
    Api("BrokerHeartbeat", 63, m.BrokerHeartbeatRequest, m.BrokerHeartbeatResponse, list_max=10_000),
    Api("UnregisterBroker", 64, m.UnregisterBrokerRequest, m.UnregisterBrokerResponse, changes=True, **_SMALL),
    Api("DescribeTransactions", 65, t.DescribeTransactionsRequest, t.DescribeTransactionsResponse, reads=True),
    Api("ListTransactions", 66, t.ListTransactionsRequest, t.ListTransactionsResponse, reads=True, **_SMALL),
    Api("AllocateProducerIds", 67, m.AllocateProducerIdsRequest, m.AllocateProducerIdsResponse, **_SMALL),
    Api("ConsumerGroupHeartbeat", 68, g.ConsumerGroupHeartbeatRequest, g.ConsumerGroupHeartbeatResponse),
    Api("ConsumerGroupDescribe", 69, g.ConsumerGroupDescribeRequest, g.ConsumerGroupDescribeResponse, reads=True),
    Api("DescribeTopicPartitions", 75, m.DescribeTopicsRequest, m.DescribeTopicsResponse, reads=True),
    Api("DescribeReplicas", 1000, m.DescribeReplicasRequest, m.DescribeReplicasResponse, reads=True),
    Api("DescribeLog", 1001, m.DescribeLogRequest, m.DescribeLogResponse, reads=True, carries_records=True, **_SMALL),
    Api("ExplainPartition", 1002, m.ExplainPartitionRequest, m.ExplainPartitionResponse, reads=True, **_SMALL),
    Api("AwaitStop", 1003, m.AwaitStopRequest, m.AwaitStopResponse, **_SMALL),
    Api("ReadHistory", 1004, m.ReadHistoryRequest, m.ReadHistoryResponse, reads=True, **_SMALL),
    Api("RunTestHook", 1005, m.RunTestHookRequest, m.RunTestHookResponse, **_SMALL),
    Api("ReadGroupHistory", 1006, g.ReadGroupHistoryRequest, g.ReadGroupHistoryResponse, reads=True, **_SMALL),
)

_LARGE_WITHOUT_RECORDS = 8 * 1024 * 1024
"""The largest head in JSON."""


def request_bytes_max(api_name: str) -> int:
    """The largest body of a request, for servers that have not read it: only Produce carries record batches, and an
    Envelope may carry a Produce.
    """
    return sys.maxsize if api_name in ("Produce", "Envelope") else _LARGE_WITHOUT_RECORDS


RPC_PATH = "/rpc/"
"""Where requests are posted to, followed by the API's name (D7)."""
MSGPACK = "application/msgpack"

BY_NAME = {api.name: api for api in APIS}
BY_REQUEST = {api.request: api for api in APIS}

PARTITIONS_MAX = 2_000
"""Partitions in one request: within the limits of every API for the longest names of topics."""
Item = TypeVar("Item")


def in_parts(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield lists of at most PARTITIONS_MAX items, one for each request."""
    rest = iter(items)
    while part := list(islice(rest, PARTITIONS_MAX)):
        yield part
