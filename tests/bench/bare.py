"""The yardstick: a bare aiohttp server that reads a body and answers, or answers with bytes. Prints its port."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web

BODY_MAX = 256 * 1024 * 1024


async def on_post(request: web.Request) -> web.Response:
    """Read the whole body, answer two bytes."""
    await request.read()
    return web.Response(body=b"ok")


async def on_get(request: web.Request) -> web.Response:
    """Answer as many bytes as the path says."""
    return web.Response(
        body=PAYLOADS.setdefault(int(request.match_info["size"]), bytes(int(request.match_info["size"])))
    )


PAYLOADS: dict[int, bytes] = {}


async def serve() -> None:
    """Listen on a free loopback port until stdin ends."""
    app = web.Application(client_max_size=BODY_MAX)
    app.router.add_post("/", on_post)
    app.router.add_get("/{size}", on_get)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve())
