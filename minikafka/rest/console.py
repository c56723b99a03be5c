"""``GET /``: the console for browsers, and an index of the API for every other client.

The page reads ``/v1`` of the broker that serves it, so it costs nothing while no page is open. Its script and style are
files of their own whose names contain a hash of their contents: browsers may keep them forever, and the content
security policy needs no exception for inline script.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from importlib import resources
from typing import Final

from minikafka import __version__
from minikafka.rest.host import place_of
from minikafka.rest.model import Model, member
from minikafka.rest.parameters import Text
from minikafka.rest.route import Answer, Page, Reply, Routes, Visit
from minikafka.rest.schema import text
from minikafka.types import NodeId
from minikafka.web.accept import JSON
from minikafka.web.problems import malformed

ROUTES = Routes("docs")
HTML: Final = "text/html"
ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+")
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{peers}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
SECURITY_HEADERS: Final = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
MEDIA_TYPES: Final = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
ASSETS: Final = ("style.css", "charts.js", "console.js")
"""Built from ``web/``. A script comes behind those that it imports: the names that it imports have hashes too."""
LINKS: Final = {
    "api": "/docs",
    "openapi": "/openapi.json",
    "cluster": "/v1/cluster",
    "brokers": "/v1/brokers",
    "topics": "/v1/topics",
    "groups": "/v1/groups",
    "controller": "/v1/controller",
    "health": "/healthz",
    "metrics": "/metrics",
}


class _Index(Model):
    """Entry point of the API: where to find the rest."""

    name: str = member(example="minikafka")
    version: str = member(example=__version__)
    node_id: NodeId = member(example=1)
    links: dict[str, str] = member("Paths on this broker.", LINKS)


def _load() -> tuple[bytes, dict[str, bytes]]:
    """The page, and its files under names that contain a hash of their contents."""
    folder = resources.files(__package__) / "assets"
    page = (folder / "console.html").read_text(encoding="utf-8")
    files: dict[str, bytes] = {}
    hashed: dict[str, str] = {}
    for name in ASSETS:
        contents = (folder / name).read_text(encoding="utf-8")
        for used, under in hashed.items():
            contents = contents.replace(f'"./{used}"', f'"./{under}"')
        stem, _, extension = name.partition(".")
        hashed[name] = f"{stem}.{hashlib.sha256(contents.encode()).hexdigest()[:12]}.{extension}"
        files[hashed[name]] = contents.encode()
        page = page.replace(f'"/ui/{name}"', f'"/ui/{hashed[name]}"')
    return page.encode(), files


PAGE, FILES = _load()
FILE = Text(
    "file",
    "Name of a file of the console, as the page refers to it.",
    place="path",
    pattern=r"[a-z]+\.[0-9a-f]{12}\.(js|css)",
    needed="a file name with a hash",
    example=next(iter(FILES)),
)


def content_policy(origins: Iterable[str]) -> str:
    """The page may connect to the other brokers, only to see whether one is alive: their answers cannot be read."""
    peers = "".join(f" {each}" for each in origins if ORIGIN.fullmatch(each))
    return CONTENT_POLICY.format(peers=peers)


@ROUTES.at(
    "GET /",
    Answer(
        "The index, or the page if the client prefers HTML.",
        {JSON: (_Index.reference(), _Index.example()), HTML: (text("HTML."), "<!doctype html>")},
    ),
)
async def get_root(visit: Visit) -> Page | Reply:
    """The console if the client prefers HTML to JSON, as browsers do; otherwise an index of the API."""
    if visit.accept.quality(HTML) > visit.accept.quality(JSON):
        brokers, listener = visit.host.image.brokers, visit.context.listener
        policy = content_policy(place_of(visit.host, brokers[node], listener)["url"] for node in sorted(brokers))
        headers = {**SECURITY_HEADERS, "Content-Security-Policy": policy, "Cache-Control": "no-cache", "Vary": "Accept"}
        return Page(PAGE, f"{HTML}; charset=utf-8", headers)
    index = _Index(name="minikafka", version=__version__, node_id=visit.host.node_id, links=LINKS)
    return Reply(index.out(), headers={"Vary": "Accept"})


@ROUTES.at(
    "GET /ui/{file}",
    Answer(
        "The file.",
        {
            "text/javascript": (text("JavaScript or CSS."), "export {};"),
            "text/css": (text("CSS."), "body { margin: 0 }"),
        },
    ),
)
async def get_file(visit: Visit) -> Page:
    """A script or a style sheet of the console."""
    name = visit[FILE]
    if name not in FILES:
        raise malformed(f"the console has no file {name!r}; reload the page: the broker was updated", status=404)
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Page(FILES[name], MEDIA_TYPES[name.rpartition(".")[2]], headers)
