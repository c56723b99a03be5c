"""The JSON of ``/v1`` is kept in ``recorded.json``: a change of the code that writes it must not change it by accident.

``python -m tests.rest.test_recorded_json`` writes the file from the present code.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp

from minikafka import __version__
from tests.rest.fake_brokers import FakeCluster

KEPT = Path(__file__).with_name("recorded.json")
FORM = "application/x-www-form-urlencoded"
ELECTIONS = "/v1/topics/orders/partitions/0/elections"

PARTITION = "/v1/topics/orders/partitions/0"
GROUP = "/v1/groups/billing"
RECORD = {"key": "ann", "value": {"item": "tea"}, "headers": [["source", "web"]], "timestamp": 1_795_000_000_000}
COMMIT = {"topic": "orders", "partition": 0, "offset": 1}

REQUESTS: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/healthz", None),
    ("GET", "/readyz", None),
    ("GET", "/v1/cluster", None),
    ("GET", "/v1/brokers", None),
    ("GET", "/v1/brokers/2", None),
    ("GET", "/v1/brokers/9", None),
    ("GET", "/v1/topics", None),
    ("GET", "/v1/topics/orders", None),
    ("GET", "/v1/topics/ordres", None),
    ("GET", "/v1/topics/orders/partitions", None),
    ("GET", "/v1/topics/orders/partitions/0", None),
    ("GET", "/v1/topics/orders/partitions/1", None),
    ("POST", ELECTIONS, {"type": "preferred"}),
    ("POST", ELECTIONS, '{"type": "unclean"}'),
    ("POST", ELECTIONS, {}),
    ("POST", ELECTIONS, {"type": 7}),
    ("POST", ELECTIONS, {"type": "", "tpye": "preferred"}),
    ("POST", ELECTIONS, {"type": "prefered"}),
    ("POST", "/v1/topics?dry_run=true", {"name": "tea", "partitions": 2, "config": {"min.insync.replicas": 2}}),
    ("POST", "/v1/topics", '{"name": "tea"}'),
    ("POST", "/v1/topics", {"name": "tea"}),
    ("POST", "/v1/topics", {"name": 1, "partitons": 2, "replication_factor": 0}),
    ("GET", "/v1/topics", None),
    ("DELETE", "/v1/topics/tea", None),
    ("DELETE", "/v1/topics/tea", None),
    ("GET", "/v1/whoami", None),
    ("GET", "/v1/connections?after=1000", None),
    ("POST", f"{PARTITION}/records", {"records": [RECORD]}),
    ("POST", f"{PARTITION}/records?acks=0", RECORD),
    ("GET", f"{PARTITION}/records?max_records=1", None),
    ("GET", f"{PARTITION}/log?records=true&max_batches=1", None),
    ("GET", f"{PARTITION}/epochs?replica=2", None),
    ("GET", f"{PARTITION}/offsets?at=leo", None),
    ("GET", f"{PARTITION}/offsets?at=hw", None),
    ("GET", f"{PARTITION}/explain", None),
    ("GET", PARTITION, None),
    ("POST", f"{PARTITION}/truncate-before", {"ofset": 1}),
    ("POST", "/v1/producer-ids", {"producer_id": 1}),
    ("PUT", f"{GROUP}/offsets", {"offsets": [COMMIT]}),
    ("PUT", f"{GROUP}/offsets", json.dumps({"offsets": [COMMIT]})),
    ("PUT", f"{GROUP}/offsets", {"offsets": [COMMIT, {**COMMIT, "offset": -1, "ofset": 2}, 7]}),
    ("POST", f"{GROUP}/offsets:reset", {"to": "earliest", "to_offset": 1}),
    ("POST", f"{GROUP}/offsets:reset", {"by_duration": "one hour", "topics": [{"topic": "orders", "partitions": []}]}),
    ("POST", f"{GROUP}/members", {"topics": [], "assignors": ["rnage"]}),
    ("POST", f"{GROUP}/members/m/heartbeat", {}),
    ("PATCH", "/v1/quotas", {"user": 7, "quotas": {"producer_byte_rate": "1"}}),
    ("PATCH", "/v1/topics/orders", {"config": {"retention.ms": [1]}}),
    ("POST", "/v1/topics/orders/partitions", {"cuont": 3}),
    ("PUT", f"{PARTITION}/reassignment", {"replicas": ["1"]}),
    ("GET", "/v1/lab/stories", None),
)


async def recorded() -> list[dict[str, Any]]:
    """Every request with its answer; what differs from run to run is masked."""
    exchanges = []
    async with FakeCluster(2) as cluster, aiohttp.ClientSession() as session:
        cluster.add_topic("orders", [1, 2], **{"min.insync.replicas": "2"})
        ports = {str(each.address.port): f"{node}" for node, each in cluster.brokers.items()}
        for method, path, body in REQUESTS:
            sent = {"data": body, "headers": {"Content-Type": FORM}} if isinstance(body, str) else {"json": body}
            async with session.request(
                method, cluster.brokers[1].url + path, **({} if body is None else sent)
            ) as response:
                text = await response.text()
            text = re.sub(r"\b\d{4,5}\b", lambda found: ports.get(found.group(), found.group()), text)
            answer = json.loads(re.sub(r'"ms": \d+', '"ms": 0', text))
            for name in ("instance", "build"):
                if name in answer:
                    answer[name] = "masked"
            if answer.get("version") == __version__:
                answer["version"] = "masked"
            request = f"{method} {path}" + (f" {json.dumps(body)}" if body is not None else "")
            exchanges.append({"request": request, "status": response.status, "answer": answer})
    return exchanges


async def test_the_json_of_v1_is_as_recorded():
    """Values, absent members and the order of members: clients compare texts, people compare what they saw."""
    assert json.dumps(await recorded(), indent=1) + "\n" == KEPT.read_text(encoding="utf-8")


if __name__ == "__main__":
    KEPT.write_text(json.dumps(asyncio.run(recorded()), indent=1) + "\n", encoding="utf-8")
