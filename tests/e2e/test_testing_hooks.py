"""Faults and lives of any broker through any other one, each in a process of its own (PAGE M6, issue 19)."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import aiohttp
import pytest

from minikafka.hosting.processes import ProcessCluster
from tests.e2e.commands import completed
from tests.e2e.test_processes import Up, run
from tests.e2e.test_testing_doors import QUICK, Curl, act

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HOOKS = "mk.testing.endpoints.enable"


async def test_broker_that_is_cut_off_paused_frozen_or_dead_is_acted_on_through_another(tmp_path: Path):
    """No fault strikes the way by which it is healed; what cannot be known is said to be unknown."""
    async with (
        ProcessCluster(3, data_dir=tmp_path, config=QUICK) as running,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        curl = Curl(session, [f"http://{address}" for address in running.bootstrap.split(",")])
        fault = await curl("POST", "/v1/faults?broker=3", 201, json={"kind": "cut", "link": "1<>3"})
        assert fault["broker"] == 3
        paused = await act(curl, 3, "pause")
        for at in (1, 2):
            await curl.get("/v1/wait?fenced=3", at=at)
        listed = await curl.get("/v1/faults?broker=all", at=2)
        assert [(each["broker"], each["id"]) for each in listed["faults"]] == [(3, 1), (3, paused["faults"][0])]
        assert (await act(curl, 3, "resume", at=2))["faults"] == paused["faults"]
        struck = await curl.get(f"/v1/faults/{fault['id']}?broker=3&wait_hits=1")
        assert struck["hits"] > 0
        assert (await curl("DELETE", "/v1/faults?broker=all"))["healed"] == 1
        await curl.get("/v1/wait?alive=1,2,3")

        await running.brokers[3].freeze()
        lost = await act(curl, 3, "pause", 504)
        assert (lost["error"], lost["outcome"]) == ("NETWORK_EXCEPTION", "unknown")
        silent = (await curl.get("/v1/faults?broker=all"))["no_answer"]
        assert [(each["broker"], each["outcome"]) for each in silent] == [(3, "not_written")]
        await running.brokers[3].thaw()
        await curl("DELETE", "/v1/faults?broker=3")
        await curl.get("/v1/wait?alive=1,2,3")

        at = ("-b", running.bootstrap.split(",")[0])
        added = await asyncio.to_thread(run, "faults", "add", "hold", "*>3", "--api", "Vote", *at)
        assert added.startswith("Set fault 3:")
        assert "3:" in await asyncio.to_thread(run, "faults", "list", *at)

        assert not (await act(curl, 3, "kill", 202))["done"]
        assert await running.brokers[3].wait() == -signal.SIGKILL
        for word in ("kill", "start"):
            refused = await act(curl, 3, word, 503)
            assert (refused["error"], refused["outcome"]) == ("BROKER_NOT_AVAILABLE", "not_written")
        assert "cannot be reached" in await asyncio.to_thread(run, "faults", "heal", "3:1", *at, code=1)
        healed = await asyncio.to_thread(completed, "faults", "heal", *at)
        assert (healed.returncode, healed.stdout) == (0, "Healed 0.\n")
        assert healed.stderr.startswith("The faults of broker 3 are not healed: ")
        listed = json.loads(await asyncio.to_thread(run, "faults", "list", "-o", "json", *at))
        assert (listed["faults"], [each["broker"] for each in listed["no_answer"]]) == ([], [3])


async def test_up_starts_a_killed_broker_again_when_another_one_requests_it(tmp_path: Path):
    """M6: a process that has ended cannot start itself; the program that started it can. It stops all at its end."""
    with Up(tmp_path, "--brokers", "3", *(f"--config={name}={value}" for name, value in QUICK.items())) as up:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            curl = Curl(session, [f"http://{address}" for address in up.bootstrap.split(",")])
            running = await act(curl, 3, "start", 503)
            assert "broker 3 was not started: broker 3 runs already" in running["detail"]
            first = up.brokers[3]["pid"]
            for node, at in ((3, 1), (1, 1)):
                await act(curl, node, "kill", 202, at=at)
                death = await asyncio.to_thread(up.line)
                assert (death["broker"], death["died"], death["returncode"]) == (node, True, -signal.SIGKILL)
                other = 2 if node == 1 else 1
                started = await act(curl, node, "start", at=other)
                assert started == {"node_id": node, "do": "start", "done": True, "faults": []}
                again = await asyncio.to_thread(up.line)
                assert again["broker"] == node
                up.brokers[node] = again
            assert up.brokers[3]["pid"] != first
            await curl.get("/v1/wait?alive=1,2,3", at=2)
        assert up.end() == 0


async def test_broker_without_test_hooks_refuses_what_another_one_forwards(tmp_path: Path):
    """The setting must be on at both brokers."""
    async with (
        ProcessCluster(2, data_dir=tmp_path, config=QUICK) as running,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        curl = Curl(session, [f"http://{address}" for address in running.bootstrap.split(",")])
        await running.brokers[2].terminate()
        settings = running.brokers[2].files.path
        text = settings.read_text(encoding="utf-8")
        assert f"{HOOKS}=true" in text
        settings.write_text(text.replace(f"{HOOKS}=true", f"{HOOKS}=false"), encoding="utf-8")
        await running.restart(2)
        refused = await act(curl, 2, "kill", 422)
        assert (refused["error"], refused["outcome"]) == ("POLICY_VIOLATION", "not_written")
        assert "broker 2: this broker has no test hooks" in refused["detail"]
        await curl("GET", "/v1/faults", 404, at=2)
        assert running.brokers[2].is_running
