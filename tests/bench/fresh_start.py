"""From a fresh interpreter to a server that has answered: ``python -m tests.bench.fresh_start bare|cluster``.

Prints the process's CPU seconds at that moment, imports included: what a test session pays before its first test.
"""

from __future__ import annotations

import asyncio
import sys
import time


async def bare() -> None:
    """One aiohttp server on uvloop, and one request that it answers."""
    import aiohttp
    from aiohttp import web

    async def on_get(request: web.Request) -> web.Response:
        return web.Response(body=b"ok")

    app = web.Application()
    app.router.add_get("/", on_get)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert await answer.read() == b"ok"
    tell()
    await runner.cleanup()


def cluster() -> None:
    """Three brokers that have elected a controller, registered and been let in: each has answered the others."""
    from minikafka.testing.local_cluster import LocalCluster

    with LocalCluster(3):
        tell()


def tell() -> None:
    """CPU seconds of this process."""
    sys.stdout.write(f"{time.process_time()}\n")


if __name__ == "__main__":
    if sys.argv[1] == "bare":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            loop.run(bare())
    else:
        cluster()
