"""The Docker engine behind the local ``docker`` command, driven through that command line, with compose.

Rule for this file: whether there is an engine is known in seconds; a command that fails is an error with its words.
"""

from __future__ import annotations

import asyncio
import json
import os
from functools import cache
from pathlib import Path
from typing import Any, Final

import minikafka
from minikafka.chaos.commands import missing, run
from minikafka.errors import WorldError

ASK_S: Final = 20.0
WORK_S: Final = 300.0
"""What builds and starts may have to fetch, unpack and install."""

IMAGE_VARIABLE: Final = "MINIKAFKA_IMAGE"
SOURCES: Final = Path(minikafka.__file__).parents[1]


@cache
def why_not() -> str | None:
    """Why no containers can be run here, as a sentence; None: an engine with compose answers. Asked once."""
    if (absent := missing({"docker": "docker.io"})) is not None:
        return absent
    for question in (("docker", "compose", "version"), ("docker", "info")):
        try:
            run(*question, timeout_s=ASK_S)
        except WorldError:
            return (
                f"`{' '.join(question)}` fails: an engine with compose must answer (docs/chaos.md says how to get one)"
            )
    return None


async def docker(*arguments: str, data: str = "", timeout_s: float = WORK_S) -> str:
    """What the docker client printed. WorldError.

    It has ended when this ends, after a cancellation too: what is taken down next is not put up beside that.
    """
    asked = asyncio.ensure_future(asyncio.to_thread(run, "docker", *arguments, data=data, timeout_s=timeout_s))
    try:
        return await asyncio.shield(asked)
    finally:
        if not asked.done():
            await asyncio.gather(asked, return_exceptions=True)


async def inspect(container: str) -> dict[str, Any]:
    """What the engine knows of a container. WorldError when there is none."""
    found: list[dict[str, Any]] = json.loads(await docker("container", "inspect", container))
    return found[0]


def image_name() -> str:
    """What containers run: MINIKAFKA_IMAGE, else what docker-compose.yml calls it."""
    return os.environ.get(IMAGE_VARIABLE) or f"minikafka:{minikafka.__version__}"


async def need_image(image: str) -> None:
    """Build the image of these sources if the engine has none of that name. WorldError when there are no sources."""
    if (await docker("image", "ls", "--quiet", image)).strip():
        return
    if not (SOURCES / "Dockerfile").exists():
        raise WorldError(f"the engine has no image {image}: build it with `docker build -t {image} .` in the sources")
    await docker("build", "--tag", image, str(SOURCES))
