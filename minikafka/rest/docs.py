"""The API's description of itself: ``/openapi.json``, ``/docs``, and a page for each error.

``/docs`` is the description as one page of HTML that loads nothing and runs no script. Rule for this file: every text
goes through :func:`_text`; what stands between back quotes becomes code.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from minikafka.rest.openapi import document, problem_pages
from minikafka.rest.parameters import Text
from minikafka.rest.route import Answer, Route, text_answer
from minikafka.rest.schema import many, ref, shape
from minikafka.rest.visit import Page, Reply, Visit
from minikafka.web.problems import PROBLEM_PAGES, malformed, page_of

HTML = "text/html"
HTML_UTF8 = "text/html; charset=utf-8"

SLUG = Text(
    name="slug",
    place="path",
    description="The error's name in lower case, with dashes.",
    pattern=r"[^/]+",
    needed="a name",
    example="not-enough-replicas",
)


async def get_problem_pages(_visit: Visit) -> Reply:
    """Every error that this API knows."""
    return Reply({"problems": problem_pages()})


async def get_problem_page(visit: Visit) -> Reply:
    """What the ``type`` of a problem points at: its meaning, its cause, and what to look at."""
    page = page_of(visit[SLUG])
    if page is None:
        raise malformed(f"no problem is called {visit[SLUG][:80]!r}", status=404)
    return Reply(page)


class Description:
    """The description of a table of routes, made once: as JSON and as a page."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._documents: dict[bool, dict[str, Any]] = {}
        self._pages: dict[bool, bytes] = {}
        """With and without the routes for tests."""

    def _document(self, *, testing: bool) -> dict[str, Any]:
        if testing not in self._documents:
            self._documents[testing] = document([route for route in self._routes if testing or not route.testing])
        return self._documents[testing]

    async def get_openapi(self, visit: Visit) -> Reply:
        """This API, in OpenAPI 3.1."""
        return Reply(self._document(testing=visit.host.config.testing_endpoints_enable))

    async def get_docs(self, visit: Visit) -> Page:
        """This API for people: one page that needs nothing from anywhere else."""
        testing = visit.host.config.testing_endpoints_enable
        if testing not in self._pages:
            self._pages[testing] = render(self._document(testing=testing), problem_pages())
        return Page(self._pages[testing], HTML_UTF8, {"Content-Security-Policy": CONTENT_POLICY})


PAGE_EXAMPLE = page_of("not-enough-replicas")


def routes_of(others: Sequence[Route]) -> tuple[Route, ...]:
    """The routes that tell of ``others``, and of themselves."""
    routes: list[Route] = [*others]
    description = Description(routes)
    own = [
        *(
            Route(
                method="GET",
                path=path,
                handler=description.get_openapi,
                tag="docs",
                answers={
                    200: Answer(
                        description="The description.",
                        schema={"type": "object", "required": ["openapi", "info", "paths"]},
                        example={"openapi": "3.1.0", "info": {}, "paths": {}},
                    )
                },
            )
            for path in ("/openapi.json", "/openapi")
        ),
        Route(
            method="GET",
            path="/docs",
            handler=description.get_docs,
            tag="docs",
            answers={200: text_answer("The page.", HTML, "<!doctype html>", "HTML.")},
        ),
        Route(
            method="GET",
            path=PROBLEM_PAGES.rstrip("/"),
            handler=get_problem_pages,
            tag="docs",
            answers={
                200: Answer(
                    description="All errors.",
                    schema=shape(problems=many(ref("ProblemPage"))),
                    example={"problems": [PAGE_EXAMPLE]},
                )
            },
        ),
        Route(
            method="GET",
            path=PROBLEM_PAGES + "{slug}",
            handler=get_problem_page,
            tag="docs",
            parameters=(SLUG,),
            answers={200: Answer(description="What the error means.", schema=ref("ProblemPage"), example=PAGE_EXAMPLE)},
        ),
    ]
    routes.extend(own)
    return tuple(own)


CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

HOST = "http://127.0.0.1:9092"
JSON = "application/json"

# What a person would put in place of a variable part.
EXAMPLES = {"topic": "orders", "partition": "0", "broker": "1", "slug": "not-enough-replicas"}

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --strong: #06c; }
@media (prefers-color-scheme: dark) { :root { --strong: #6bf; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: .6rem; overflow-x: auto; border-radius: 4px; }
code { background: var(--soft); padding: 0 .2em; border-radius: 3px; } pre code { background: none; padding: 0; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .2rem .8rem; }
summary { cursor: pointer; padding: .3rem 0; } summary b { color: var(--strong); }
summary span { opacity: .8; margin-left: .6rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); }
nav a { margin-right: 1rem; } a { color: var(--strong); }
"""


def render(document: dict[str, Any], problems: Iterable[dict[str, Any]]) -> bytes:
    """The page, in UTF-8."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>minikafka {_text(document['info']['version'])}: /v1</title><style>{STYLE}</style></head><body>",
        f"<h1>minikafka {_text(document['info']['version'])}</h1>",
        *(f"<p>{_text(each)}</p>" for each in document["info"]["description"].split("\n\n")),
        "<nav>",
        *(f'<a href="#{_text(tag["name"])}">{_text(tag["name"])}</a>' for tag in document["tags"]),
        '<a href="#errors">errors</a><a href="/openapi.json">openapi.json</a></nav>',
    ]
    for tag in document["tags"]:
        parts.append(f'<h2 id="{_text(tag["name"])}">{_text(tag["name"])}</h2><p>{_text(tag["description"])}</p>')
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if tag["name"] in operation["tags"]:
                    parts.extend(_operation(method.upper(), path, operation))
    parts.extend(_errors(problems))
    parts.append("</body></html>\n")
    return "\n".join(parts).encode()


def _text(given: object) -> str:
    """Escaped, with code where back quotes are."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(str(given)))


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f'<details id="{_text(operation["operationId"])}"><summary><b>{method}</b> <code>{_text(path)}</code>'
    yield f"<span>{_text(operation['summary'])}</span></summary>"
    if "description" in operation:
        yield f"<p>{_text(operation['description'])}</p>"
    yield f"<pre><code>{html.escape(curl_of(method, path, operation))}</code></pre>"
    if operation.get("parameters"):
        yield "<table><tr><th>parameter</th><th>in</th><th>what it takes</th><th></th></tr>"
        for each in operation["parameters"]:
            yield (
                f"<tr><td><code>{_text(each['name'])}</code></td><td>{_text(each['in'])}</td>"
                f"<td>{_text(takes(each['schema']))}</td><td>{_text(each['description'])}</td></tr>"
            )
        yield "</table>"
    body = operation.get("requestBody")
    if body is not None:
        yield f"<p>Body: {', '.join(f'<code>{_text(each)}</code>' for each in body['content'])}. "
        yield f"{_text(body.get('description', ''))}</p>"
    yield from _answers(operation["responses"])
    yield "</details>"


def _answers(responses: dict[str, Any]) -> Iterator[str]:
    errors = []
    for status, answer in responses.items():
        if status.startswith("2"):
            yield f"<p><b>{_text(status)}</b> {_text(answer['description'])}</p>"
            content = next(iter(answer["content"].values()))
            if "example" in content:
                yield f"<pre><code>{html.escape(_shown(content['example']))}</code></pre>"
        elif status != "default":
            errors.append(f"<tr><td>{_text(status)}</td><td>{_text(answer['description'])}</td></tr>")
    yield f"<table>{''.join(errors)}</table>"


def _errors(problems: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield '<h2 id="errors">errors</h2><p>Each has a page of its own at the address in its <code>type</code>.</p>'
    yield "<table><tr><th>error</th><th>number</th><th>status</th><th>retriable</th><th>meaning</th></tr>"
    for page in problems:
        yield (
            f'<tr><td><a href="{_text(page["type"])}">{_text(page["error"])}</a></td><td>{page["error_code"]}</td>'
            f"<td>{page['status']}</td><td>{'yes' if page['retriable'] else ''}</td>"
            f"<td>{_text(page['meaning'])} {_text(page['cause'])}</td></tr>"
        )
    yield "</table>"


def _shown(example: Any) -> str:
    return example if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False)


def takes(schema: dict[str, Any]) -> str:
    """A parameter's schema in words."""
    if "anyOf" in schema:
        return " or ".join(takes(each) for each in schema["anyOf"])
    values = ", ".join(map(str, schema["enum"])) if "enum" in schema else schema.get("format", schema.get("type", ""))
    if "minimum" in schema:
        values = f"{schema['minimum']} to {schema['maximum']}"
    return f"{values} (default {schema['default']})" if "default" in schema else values


def curl_of(method: str, path: str, operation: dict[str, Any]) -> str:
    """A line that works."""
    address = HOST + re.sub(r"\{(\w+)\}", lambda found: EXAMPLES.get(found[1], found[1]), path)
    content = operation.get("requestBody", {}).get("content", {}).get(JSON)
    words = ["curl"]
    if content is not None:
        words += ["--json", json.dumps(content.get("example", {}), ensure_ascii=False)]
    elif method != "GET":
        words += ["-X", method]
    if "text/event-stream" in operation["responses"].get("200", {}).get("content", {}):
        words.append("-N")
    return shlex.join([*words, address])
