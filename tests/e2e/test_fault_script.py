"""The texts of ``/v1/faults:script`` run: a test in Python passes, a scenario of chaos is clean (issue 19)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import pytest

from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.haste import SHORT_LAGS
from tests.e2e.test_testing_doors import Curl, act

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RUN_S = 180


async def printed(folder: Path, module: str, *arguments: str) -> str:
    """Standard output of ``python -m``, which must succeed."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, cwd=folder, stdout=pipe, stderr=pipe
    )
    out, errors = await asyncio.wait_for(process.communicate(), RUN_S)
    assert process.returncode == 0, (out + errors).decode()
    return out.decode()


async def test_what_was_injected_runs_as_a_test_and_as_a_scenario(tmp_path: Path):
    """Held fetches, a kill and a slow disk of a session at a broker come about again, in a process of their own."""
    config = {**SHORT_LAGS, "mk.testing.endpoints.enable": "true"}
    async with (
        LocalCluster(3, config=config) as cluster,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        curl = Curl(session, [f"http://{address}" for address in cluster.bootstrap.split(",")])
        await curl("POST", "/v1/topics", 201, json={"name": "orders", "partitions": 2, "replication_factor": 3})
        leader = (await curl.get("/v1/wait?topic=orders&partition=0&leader=any&isr_size=3"))["leader"]
        follower, other = (node for node in (1, 2, 3) if node != leader)
        hold = {"kind": "hold", "link": f"{follower}>broker", "api": "Fetch", "message": "request", "for_ms": 30_000}
        fault = await curl("POST", "/v1/faults", 201, json=hold)
        await curl("POST", "/v1/topics/orders/partitions/0/records?acks=1", json={"value": "tea"})
        await curl.get(f"/v1/wait?topic=orders&partition=0&isr={min(leader, other)},{max(leader, other)}")
        await curl("DELETE", f"/v1/faults/{fault['id']}")
        at = leader
        await act(curl, other, "kill", at=at)
        await curl.get(f"/v1/wait?fenced={other}", at=at)
        await act(curl, other, "start", at=at)
        await curl("PUT", "/v1/machine?broker=1", json={"sync_delay_ms": 20})
        script = await curl.get("/v1/faults:script?broker=all")
    assert [each["act"] for each in script["injections"]] == ["set", "heal", "kill", "start", "machine"]

    test, scenario = tmp_path / "test_injected.py", tmp_path / "injected.toml"
    test.write_text(script["python"], encoding="utf-8")
    scenario.write_text(script["chaos"], encoding="utf-8")
    assert "1 passed" in await printed(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(test))
    report = json.loads(await printed(tmp_path, "minikafka", "chaos", "run", str(scenario), "-o", "json"))
    assert (report["verdict"], report["acknowledged"] > 0) == ("clean", True)
    struck = [each["what"] for each in report["faults"]]
    assert [each.split()[0] for each in struck] == ["hold", "kill", "slow-disk"], struck
