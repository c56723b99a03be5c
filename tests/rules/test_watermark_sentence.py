"""The sentence about the high watermark while the leader's own value is not there (issue 19)."""

from __future__ import annotations

import pytest

from minikafka.quorum.image import PartitionImage
from minikafka.rest.partitions import watermark_sentence
from minikafka.rest.views import Views
from minikafka.types import NO_NODE, NodeId
from minikafka.wire.messages import DescribedReplica, ExplainPartitionResponse

FOLLOWING = DescribedReplica(
    topic="orders",
    partition=0,
    role="follower",
    leader_epoch=2,
    log_start_offset=0,
    high_watermark=12,
    log_end_offset=14,
    last_stable_offset=12,
)


def image(leader: NodeId) -> PartitionImage:
    return PartitionImage(
        partition=0,
        replicas=(1, 2),
        isr=(1, 2),
        leader=leader,
        leader_epoch=3,
        partition_epoch=3,
        controller_epoch=1,
    )


@pytest.mark.parametrize(
    ("leader", "views", "sentence"),
    [
        (NO_NODE, {}, "nobody leads, so the high watermark does not move"),
        # An earlier time of which no value was recorded looks as a broker that does not answer: the sentence is true of both.
        (1, {}, "there is no word from leader 1; it alone knows the high watermark"),
        (
            1,
            {1: ExplainPartitionResponse(broker_id=1)},
            "there is no word from leader 1; it alone knows the high watermark",
        ),
        (
            1,
            {1: ExplainPartitionResponse(broker_id=1, replica=FOLLOWING)},
            "leader 1 has not taken up epoch 3; it alone knows the high watermark",
        ),
    ],
)
def test_sentence_without_the_leaders_value(leader: NodeId, views: Views, sentence: str):
    """It claims nothing about a broker that merely has not been heard or recorded."""
    assert watermark_sentence(image(leader), views) == sentence
