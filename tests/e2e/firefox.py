"""Firefox as its own users have it, driven by WebDriver BiDi: no driver beside the browser is needed.

Only what the checks of the console need: open an address, evaluate a function in the page, set the size of the window,
and what the page requested and wrote to its console.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("firefox-esr", "firefox")
LISTENING = re.compile(rb"WebDriver BiDi listening on (ws://\S+)")
START_S, ANSWER_S, SHOWN_S = 180.0, 60.0, 60.0
LOOK_S = 0.05
PREFERENCES = {
    "app.update.disabledForTesting": True,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.reportingpolicy.firstRun": False,
}


def firefox_path() -> Path | None:
    """The system's Firefox."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return Path(found) if found else None


def why_not_firefox() -> str | None:
    """A sentence for people, or None: there is a Firefox."""
    return None if firefox_path() else "no Firefox here (Debian: apt install firefox-esr)"


class Tab:
    """One tab, and what it has requested and written to its console."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._context = ""
        self.requested: list[str] = []
        self.logged: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def begin(self) -> None:
        """Start the session, and find the tab."""
        await self.command("session.new", capabilities={})
        await self.command("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"])
        tree = await self.command("browsingContext.getTree")
        self._context = tree["contexts"][0]["context"]

    async def command(self, method: str, **params: Any) -> Any:
        """Send a command of BiDi; its result. AssertionError with Firefox's message."""
        self._numbers += 1
        answer = self._answers[self._numbers] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._numbers, "method": method, "params": params})
        return await asyncio.wait_for(answer, ANSWER_S)

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            answer = self._answers.pop(told.get("id"), None)
            if answer is not None and "result" in told:
                answer.set_result(told["result"])
            elif answer is not None:
                answer.set_exception(AssertionError(f"{told['error']}: {told['message']}"))
            elif told.get("method") == "log.entryAdded":
                self.logged.append(told["params"]["text"])
            elif told.get("method") == "network.beforeRequestSent":
                self.requested.append(told["params"]["request"]["url"])

    async def open(self, url: str) -> None:
        """Go to an address, and wait until it is loaded."""
        await self.command("browsingContext.navigate", context=self._context, url=url, wait="complete")

    async def resize(self, width: int, height: int) -> None:
        """The size of the page."""
        viewport = {"width": width, "height": height}
        await self.command("browsingContext.setViewport", context=self._context, viewport=viewport)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, as JSON has it. AssertionError for an exception."""
        answer = await self.command(
            "script.evaluate",
            expression=f"(async () => JSON.stringify((await ({expression})) ?? null))()",
            target={"context": self._context},
            awaitPromise=True,
        )
        assert answer["type"] == "success", answer["exceptionDetails"]["text"]
        return json.loads(answer["result"]["value"])

    async def until(self, expression: str) -> Any:
        """The first value of an expression that is true, within SHOWN_S."""
        async with asyncio.timeout(SHOWN_S):
            while True:
                if value := await self.evaluate(expression):
                    return value
                await asyncio.sleep(LOOK_S)

    async def click(self, name: str) -> None:
        """Click the first button or link with this text, as soon as it is there."""
        matching = (
            f"[...document.querySelectorAll('button, a')].find((each) => each.textContent.includes({json.dumps(name)}))"
        )
        await self.until(f"!!{matching}")
        await self.evaluate(f"{matching}.click()")

    async def close(self) -> None:
        """End the session."""
        with contextlib.suppress(TimeoutError, AssertionError):
            await self.command("session.end")
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


@contextlib.asynccontextmanager
async def firefox(folder: Path) -> AsyncIterator[Tab]:
    """A Firefox without a window, with a new profile in ``folder``."""
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items()]
    (folder / "user.js").write_text("\n".join(lines))
    process = await asyncio.create_subprocess_exec(
        str(firefox_path()), "--headless", "--no-remote", "--profile", str(folder), "--remote-debugging-port", "0",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_S):
            while not (found := LISTENING.search(line := await process.stderr.readline())):
                assert line, "Firefox ended before it listened"
        drain = asyncio.create_task(process.stderr.read())
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{found[1].decode()}/session") as socket:
            tab = Tab(socket)
            await tab.begin()
            yield tab
            await tab.close()
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
