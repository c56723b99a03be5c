"""Make ``minikafka/wire/kafka/schema.json`` from the message definitions inside a ``kafka-clients`` jar.

::

    python tests/kafka/make_schema.py kafka-clients-4.3.1.jar

Only what decides about bytes is kept (names, types, versions, tags, defaults), in the form that ``schema.py`` reads:

- an API is ``{"key", "versions": [first, last], "flexible": first or null, "request": [field], "response": [field]}``;
- a field is ``[name, type, first version, last version or null, {more}]``; ``struct`` and ``[]struct`` have ``fields``;
- ``more`` has ``null`` (first version in which null is allowed), ``tag`` (number and first version), ``default`` (when it
  is not the type's zero), ``fields``, and ``optional`` (the definition says ``ignorable``, or has a default).
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

APIS = """
    Produce Fetch ListOffsets Metadata OffsetCommit OffsetFetch FindCoordinator JoinGroup Heartbeat LeaveGroup SyncGroup
    DescribeGroups ListGroups SaslHandshake ApiVersions CreateTopics DeleteTopics DeleteRecords InitProducerId
    OffsetForLeaderEpoch AddPartitionsToTxn AddOffsetsToTxn EndTxn WriteTxnMarkers TxnOffsetCommit DescribeAcls
    CreateAcls DeleteAcls DescribeConfigs AlterConfigs DescribeLogDirs SaslAuthenticate CreatePartitions DeleteGroups
    ElectLeaders IncrementalAlterConfigs AlterPartitionReassignments ListPartitionReassignments OffsetDelete
    DescribeClientQuotas AlterClientQuotas DescribeUserScramCredentials AlterUserScramCredentials DescribeQuorum
    UpdateFeatures DescribeCluster DescribeProducers UnregisterBroker DescribeTransactions ListTransactions
    ConsumerGroupHeartbeat ConsumerGroupDescribe ListConfigResources DescribeTopicPartitions
""".split()

ZERO: dict[str, object] = {"string": "", "bool": False, "bytes": "", "records": None, "uuid": None, "float64": 0.0}


def read(jar: zipfile.ZipFile, name: str) -> dict[str, Any]:
    """One definition: JSON with comments on lines of their own, or behind a value."""
    text = jar.read(f"common/message/{name}.json").decode()
    loaded: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return loaded


def snake(name: str) -> str:
    """``TopicData`` is ``topic_data``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def span(versions: str) -> tuple[int, int | None]:
    """``3+`` is (3, None), ``0-12`` is (0, 12), ``2`` is (2, 2)."""
    first, plus, last = re.fullmatch(r"(\d+)(\+)?(?:-(\d+))?", versions).groups()  # type: ignore[union-attr]
    return int(first), None if plus else int(last or first)


def field(given: dict[str, Any], common: dict[str, Any]) -> list[Any]:
    """One field in our form."""
    kind = given["type"]
    base = kind.removeprefix("[]")
    more: dict[str, Any] = {}
    fields = given.get("fields") or common.get(base)
    first, last = span(given["versions"])
    if fields is not None:
        more["fields"] = [field(each, common) for each in fields]
        kind = kind.replace(base, "struct")
    if "nullableVersions" in given:
        more["null"] = span(given["nullableVersions"])[0]
    if "tag" in given:
        more["tag"] = [given["tag"], span(given["taggedVersions"])[0]]
    default = given.get("default")
    if default is not None:
        value = parsed(default, kind)
        if value != ZERO.get(kind, 0):
            more["default"] = value
    if default is not None or given.get("ignorable") or given["name"] == "ThrottleTimeMs":
        more["optional"] = True
    row = [snake(given["name"]), kind, first, last]
    return [*row, more] if more else row


def parsed(default: Any, kind: str) -> Any:
    """A default as the definitions write it: numbers and truth values may be text."""
    if default == "null":
        return None
    if kind == "string":
        return default
    if kind == "bool":
        return str(default).lower() == "true"
    return int(str(default), 0)


def main(path: Path) -> None:
    """Print the schema."""
    version = re.search(r"kafka-clients-([\d.]+)\.jar", path.name)
    apis: dict[str, Any] = {}
    with zipfile.ZipFile(path) as jar:
        for name in APIS:
            request, response = read(jar, f"{name}Request"), read(jar, f"{name}Response")
            first, last = span(request["validVersions"])
            flexible = request["flexibleVersions"]
            api: dict[str, Any] = {
                "key": request["apiKey"],
                "versions": [first, first if last is None else last],
                "flexible": None if flexible == "none" else span(flexible)[0],
            }
            for side, given in (("request", request), ("response", response)):
                common = {each["name"]: each["fields"] for each in given.get("commonStructs", ())}
                api[side] = [field(each, common) for each in given["fields"]]
            apis[name] = api
    source = f"org.apache.kafka:kafka-clients:{version[1] if version else '?'}"
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(api, separators=(',', ':'))}" for name, api in apis.items())
    sys.stdout.write(f'{{"source":"{source}","apis":{{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
