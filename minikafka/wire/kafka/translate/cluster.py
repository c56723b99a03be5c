"""DescribeQuorum (0 to 2) and DescribeLogDirs (1 to 5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minikafka.types import METADATA_TOPIC
from minikafka.wire.admin import DescribeLogDirsRequest, PartitionName
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.schema import ZERO_UUID
from minikafka.wire.kafka.translate.common import Exchange, Translation, by_topic, each_once
from minikafka.wire.messages import DescribeQuorumRequest, DescribeQuorumResponse, QuorumReplica

CONTROLLER_LISTENER = "CONTROLLER"
"""Name under which the voters' endpoints are shown."""


def _quorum_request(_message: Message, _exchange: Exchange) -> DescribeQuorumRequest:
    return DescribeQuorumRequest()


def _quorum_response(message: Message, response: DescribeQuorumResponse, exchange: Exchange) -> Message:
    if response.error_code:
        return {
            "error_code": response.error_code,
            "error_message": response.error_message or None,
            "topics": [],
            "nodes": [],
        }
    wall_ms = exchange.directory.wall_ms()
    return {
        "error_code": 0,
        "topics": [
            {
                "topic_name": name,
                "partitions": [_quorum_partition(name, each, response, wall_ms) for each in partitions],
            }
            for name, partitions in each_once(
                (topic["topic_name"], [each["partition_index"] for each in topic["partitions"]])
                for topic in message["topics"]
            ).items()
        ],
        "nodes": [
            {
                "node_id": each.node_id,
                "listeners": [{"name": CONTROLLER_LISTENER, "host": each.host, "port": each.port}],
            }
            for each in response.endpoints
        ],
    }


def _quorum_partition(topic: str, partition: int, response: DescribeQuorumResponse, wall_ms: int) -> Message:
    if (topic, partition) != (METADATA_TOPIC, 0):
        return {
            "partition_index": partition,
            "error_code": 3,
            "error_message": f"only {METADATA_TOPIC}-0 has a quorum",
            "leader_id": -1,
            "leader_epoch": -1,
            "high_watermark": -1,
            "current_voters": [],
            "observers": [],
        }
    return {
        "partition_index": partition,
        "error_code": 0,
        "leader_id": response.leader_id,
        "leader_epoch": response.leader_epoch,
        "high_watermark": response.high_watermark,
        "current_voters": _replicas(response.voters, wall_ms),
        "observers": _replicas(response.observers, wall_ms),
    }


def _replicas(replicas: Iterable[QuorumReplica], wall_ms: int) -> list[Message]:
    def at(ms_ago: int) -> int:
        return wall_ms - ms_ago if ms_ago >= 0 else -1

    return [
        {
            "replica_id": each.replica_id,
            "replica_directory_id": ZERO_UUID,
            "log_end_offset": each.log_end_offset,
            "last_fetch_timestamp": at(each.last_fetch_ms_ago),
            "last_caught_up_timestamp": at(each.last_caught_up_ms_ago),
        }
        for each in replicas
    ]


DESCRIBE_QUORUM = Translation("DescribeQuorum", 0, 2, _quorum_request, _quorum_response)

# ---- DescribeLogDirs -------------------------------------------------------------------------------------------------


def _dirs_request(message: Message, _exchange: Exchange) -> DescribeLogDirsRequest:
    topics = message["topics"]
    return DescribeLogDirsRequest(
        partitions=None
        if topics is None
        else tuple(
            PartitionName(topic=topic["topic"], partition=each) for topic in topics for each in topic["partitions"]
        )
    )


def _dirs_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    return {
        "error_code": response.error_code,
        "results": [
            {
                "error_code": each.error_code,
                "log_dir": each.log_dir,
                "topics": [
                    {
                        "name": name,
                        "partitions": [
                            {
                                "partition_index": replica.partition,
                                "partition_size": replica.size_bytes,
                                "offset_lag": replica.offset_lag,
                                "is_future_key": False,
                            }
                            for replica in group
                        ],
                    }
                    for name, group in by_topic(each.replicas).items()
                ],
                "total_bytes": each.total_bytes,
                "usable_bytes": each.usable_bytes,
            }
            for each in response.results
        ],
    }


DESCRIBE_LOG_DIRS = Translation("DescribeLogDirs", 1, 5, _dirs_request, _dirs_response)
