"""Rows of a cluster in the caller's process: how soon three brokers are ready, beside one bare aiohttp server.

In CPU seconds, for the work of a start is all on one thread and a busy machine doubles any other time. "Ready" is for
both: has answered. A fresh interpreter imports everything first, from compiled modules on both sides.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time

import aiohttp
from aiohttp import web

from minikafka import LocalCluster
from tests.bench.measure import Row, in_turn

FRESH_CEILING = 3.0


async def local_rows(*, rounds: int) -> list[Row]:
    """A fresh interpreter, and a process that has done it before."""
    with tempfile.TemporaryDirectory(prefix="minikafka-bench-") as compiled:
        fresh = await in_turn(lambda: _fresh("cluster", compiled), lambda: _fresh("bare", compiled), rounds=rounds)
    again = await in_turn(_cluster, _bare, rounds=3 * rounds, warm_up=3)
    return [
        Row(
            "3 brokers in a fresh process, to ready",
            "CPU ms",
            fresh.ours,
            fresh.bare,
            fresh.ratio,
            FRESH_CEILING,
            at_least=False,
            note="imports included; bare: one server",
        ),
        Row(
            "3 brokers once more in the same process, to ready",
            "CPU ms",
            again.ours,
            again.bare,
            again.ratio,
            at_least=False,
            note="bare: one server",
        ),
    ]


async def _fresh(what: str, compiled: str) -> float:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = (sys.executable, "-m", "tests.bench.fresh_start", what)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    told, _ = await process.communicate()
    return float(told) * 1000


async def _cluster() -> float:
    began = time.process_time()
    cluster = LocalCluster(3)
    await asyncio.to_thread(cluster.start)
    spent = time.process_time() - began
    await asyncio.to_thread(cluster.stop)
    return spent * 1000


async def _bare() -> float:
    async def on_get(request: web.Request) -> web.Response:
        return web.Response(body=b"ok")

    began = time.process_time()
    app = web.Application()
    app.router.add_get("/", on_get)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        await answer.read()
        spent = time.process_time() - began
    await runner.cleanup()
    return spent * 1000
