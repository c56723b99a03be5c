"""Words that the doors of groups share: their parameters, how partitions are written, and how both are described.

Partitions of several topics are written as in the command line's JSON: ``[{"topic": "t", "partitions": [0, 1]}]``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minikafka.groups.protocol import Assignment, Subscription, by_topic
from minikafka.rest.body import FORM_NOTE, kind_of, parsed_object, read_body
from minikafka.rest.members import Members, pointer
from minikafka.rest.parameters import INT32_MAX, Text
from minikafka.rest.schema import Schema, flag, many, nullable, ref, shape, text, whole
from minikafka.rest.visit import Visit
from minikafka.types import TopicPartition
from minikafka.web.problems import Fault
from minikafka.wire.group_messages import DescribedMember
from minikafka.wire.limits import shown

# As many as one OffsetCommit names (wire/apis.py).
PARTITION_COUNT_MAX = 2_500

GROUP = Text(
    name="group",
    place="path",
    description="The group's name (group.id).",
    pattern=r"[\s\S]+",
    needed="a name",
    length_max=32_767,
    example="billing",
)
MEMBER = Text(
    name="member",
    place="path",
    description="The id that the coordinator gave to the member.",
    pattern=r"[\s\S]+",
    needed="a member id",
    length_max=32_767,
    example="curl-2f1c0d8f7f3f4e6b",
)


async def document_of(visit: Visit) -> tuple[dict[str, Any], dict[str, str]]:
    """The body as an object, and the note for who sent it as a form."""
    kind = kind_of(visit.http)
    document = parsed_object(await read_body(visit.http, visit.host, visit.admission), kind, visit.http)
    return document, {"note": FORM_NOTE} if kind == "form" else {}


# ---- in --------------------------------------------------------------------------------------------------------------


def partitions_in(members: Members, name: str, faults: list[Fault]) -> list[TopicPartition]:
    """``[{"topic", "partitions"}]``; faults are noted."""
    found: dict[TopicPartition, None] = {}
    for at, given in enumerate(members.list(name)):
        if type(given) is not dict:
            faults.append({"pointer": pointer(name, at), "detail": f"an object is needed, not {shown(given)}"})
            continue
        inner = Members(given, pointer(name, at), faults)
        topic = inner.text("topic", required=True)
        numbers = inner.list("partitions")
        inner.done()
        if not numbers or any(type(each) is not int or not 0 <= each <= INT32_MAX for each in numbers):
            inner.wrong("partitions", f"a list of partition numbers is needed, not {shown(given.get('partitions'))}")
            continue
        found.update(dict.fromkeys(TopicPartition(topic, each) for each in numbers))
    return list(found)


# ---- out -------------------------------------------------------------------------------------------------------------


def partitions_out(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    """Sorted."""
    return [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic(partitions).items()]


def assigned_to(member: DescribedMember) -> tuple[TopicPartition, ...]:
    """What a member has; nothing for one of another protocol, whose bytes are not ours to read."""
    try:
        return Assignment.unpacked(member.assignment).partitions
    except ValueError:
        return ()


def topics_of(member: DescribedMember) -> list[str]:
    """What a member subscribes to, if that is known."""
    try:
        return sorted(Subscription.unpacked(member.metadata).topics) if member.metadata else []
    except ValueError:
        return []


# ---- schemas ---------------------------------------------------------------------------------------------------------

PARTITIONS: Schema = many(shape(topic=ref("TopicName"), partitions=many(ref("PartitionNumber"))), "By topic, sorted.")
PARTITIONS_EXAMPLE = [{"topic": "orders", "partitions": [0, 1]}]
NOTE = text("What could be asked better.")
INSTANCE = nullable(text("Of a static member (group.instance.id)."))
GENERATION = whole("Of the group: one more with each rebalance.", minimum=-1, maximum=INT32_MAX)
COORDINATOR = shape(
    "The broker that coordinates the group.", optional=("url",), id=ref("NodeId"), url=text("Where it listens.")
)
COORDINATOR_EXAMPLE = {"id": 2, "url": "http://127.0.0.1:9093"}
LAG: dict[str, Schema] = {
    "topic": ref("TopicName"),
    "partition": ref("PartitionNumber"),
    "committed": nullable(whole("The next offset that the group will read; null: it has committed none.")),
    "log_end": nullable(whole("The high watermark; null: its leader cannot be asked now.")),
    "lag": nullable(whole("Records between the two; null: one of them is not known.")),
}
LAG_EXAMPLE = {"topic": "orders", "partition": 0, "committed": 41, "log_end": 44, "lag": 3}
DELETED = flag("It is gone.")
