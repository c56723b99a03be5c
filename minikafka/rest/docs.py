"""The API's description of itself: ``/openapi.json`` (OpenAPI 3.1), ``/docs``, and a page for each error.

The description is made from the table of routes that serves, so that the two cannot differ. What every route has in
common stands here once: the problems that any request may meet, and the headers of any answer.

``/docs`` is the description as one page of HTML that loads nothing and runs no script. Rule for this file: every text
goes through :func:`_text`; what stands between back quotes becomes code.
"""

from __future__ import annotations

import functools
import html
import inspect
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any
from urllib.parse import urlencode

from minikafka import __version__
from minikafka import errors as kafka
from minikafka.broker.http_login import WRONG
from minikafka.rest.host import place_of
from minikafka.rest.json_text import long_step
from minikafka.rest.parameters import Parameter, Text
from minikafka.rest.route import Answer, Body, Contents, ErrorForm, Json, Page, Route, Routes, Visit, text_answer
from minikafka.rest.schema import Schema, many, ref, shape
from minikafka.rest.schemas import CLUSTER_ID_EXAMPLE, SCHEMAS
from minikafka.web import problems
from minikafka.web.accept import JSON, MSGPACK
from minikafka.web.problems import PROBLEM_PAGES, malformed, title_of

ROUTES = Routes("docs")
TAGS = {
    "records": "Produce, read, stream, and find positions.",
    "topics": "Create, show and delete topics.",
    "partitions": "Replicas and why they are in or out of sync; logs, epochs, causes; elections and deletions.",
    "groups": "Consumer groups: members, committed offsets and lag; a person can be a member.",
    "transactions": "Transactional ids, and the producers of a partition with their open transactions.",
    "proxy": "The produce routes of Confluent REST Proxy, v2 and v3.",
    "cluster": "Brokers, the controller, and its log.",
    "health": "For supervisors and balancers.",
    "docs": "What this API says of itself.",
    "testing": "Only with `mk.testing.endpoints.enable=true`: faults, awaited states, the journal.",
}

DESCRIPTION = """\
What curl can do to a minikafka broker. Any broker answers: what only a partition's leader or the active controller
can do is forwarded once (`Mk-Served-By` and `Mk-Leader` tell who was asked; `?forward=never` turns it off).

Bodies and answers are JSON; `application/msgpack` says the same both ways and keeps bytes as they are. An error
is a problem (RFC 9457) with Kafka's `error` and `error_code`, whether a repetition can help (`retriable`), and what
became of a write (`outcome`). What is not understood is refused by name, never ignored.

The protocol between brokers is at `POST /rpc/{Api}`, which takes JSON as well where no batches travel.
"""

STATUS_WORDS = {
    400: "The request cannot be understood.",
    401: "The login failed, or the listener needs one.",
    403: "A web page of another origin, or an unknown `Host`.",
    404: "There is no such thing.",
    406: "It cannot be said in a type that `Accept` takes.",
    408: "The body did not come in time.",
    409: "The caller's view of things is old, or they are so already.",
    413: "The body, or a batch, is too large.",
    415: "A body of this type cannot be read.",
    416: "The offset is outside the log.",
    421: "Another broker can do it; only with `forward=never`.",
    422: "It is understood, and it is not possible.",
    429: "Too much of this is under way.",
    503: "It cannot be done now; nothing was written.",
    504: "It may have been done, or may not.",
    507: "The disk failed; `outcome` says whether a change may have been done.",
}

INSTANCE = "/v1/topics/orders#2.1763778900123.17"

# Of any route; and of those that read a body.
COMMON: dict[int, kafka.ProtocolError] = {
    400: kafka.InvalidRequest("parameter ofset: no such parameter here; did you mean 'offset'?"),
    401: kafka.SaslAuthenticationFailed(WRONG),
    403: kafka.InvalidRequest("Host 'evil.example' is not a name that this broker knows"),
    406: kafka.InvalidRequest("Accept 'text/html': this answer can only be application/json or application/msgpack"),
    503: kafka.BrokerNotAvailable("the broker is starting or has stopped"),
}
OF_BODIES: dict[int, kafka.ProtocolError] = {
    408: kafka.InvalidRequest("the body was not complete after 30 s"),
    413: kafka.RecordListTooLarge("the body has 9000000 bytes or more, the limit is 8388608"),
    415: kafka.InvalidRequest("Content-Type 'application/xml' cannot be read here"),
    422: kafka.InvalidRequest("/records/3/key_b64: not base64"),
}

GUARDED = frozenset({401, 403})
"""The checks of hosts, origins and credentials come before every route, so their errors are problems everywhere."""

HEADERS = {
    "Mk-Served-By": {"description": "The brokers that were asked, by id.", "schema": {"type": "string"}},
    "Mk-Leader": {"description": "The leader, or the controller, that decided.", "schema": {"type": "string"}},
    "Mk-Api-Version": {"description": "The version of this API.", "schema": {"type": "string"}},
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The whole description."""
    paths: dict[str, dict[str, Any]] = {}
    tags: dict[str, None] = {}
    examples: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, examples)
        tags.setdefault(route.tag)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "minikafka",
            "version": __version__,
            "summary": "A broker with Kafka's protocol and real replication, for curl.",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This broker; any other answers as well."}],
        "tags": [{"name": name, "description": TAGS[name]} for name in tags],
        "paths": paths,
        # Which of them a request needs depends on the listener; the first is none.
        "security": [{}, {"basic": []}, {"bearer": []}],
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic", "description": "Name and password of a user."},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
            "examples": examples,
            "headers": HEADERS,
        },
    }


def operation_id_of(route: Route) -> str:
    """``get_v1_topics_topic``: one of a kind, as its method and path are."""
    return re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").rstrip("_")


def words_of(route: Route) -> tuple[str, str]:
    """The first sentence of what the handler says of itself, and the rest."""
    text = inspect.cleandoc(route.handler.__doc__ or "").replace("``", "`")
    summary, _, more = text.partition("\n\n")
    return " ".join(summary.split()), " ".join(more.split())


def _operation(route: Route, examples: dict[str, Any]) -> dict[str, Any]:
    summary, more = words_of(route)
    operation: dict[str, Any] = {"operationId": operation_id_of(route), "tags": [route.tag], "summary": summary}
    if more:
        operation["description"] = more
    if route.query:
        operation[EXAMPLE_QUERY] = route.query
    if route.parameters:
        operation["parameters"] = [_parameter(each) for each in route.parameters]
    if route.body is not None:
        operation["requestBody"] = _request_body(route.body)
    responses = {str(status): _answer(answer) for status, answer in sorted(route.answers.items())}
    for status, errors in problems_of(route).items():
        responses[str(status)] = _problems(status, errors, examples, None if status in GUARDED else route.errors)
    responses["default"] = {"description": "Any other problem.", "content": _problem_content({}, route.errors)}
    return {**operation, "responses": responses}


def _parameter(parameter: Parameter[Any]) -> dict[str, Any]:
    schema = dict(parameter.schema())
    default = parameter.shown_default()
    if default is not None and parameter.place != "path":
        schema["default"] = default
    required = {"required": True} if parameter.place == "path" or parameter.required else {}
    example = {} if parameter.example is None else {"example": parameter.example}
    head = {"name": parameter.name, "in": parameter.place, "description": parameter.description}
    return {**head, **required, "schema": schema, **example}


def _request_body(body: Body) -> dict[str, Any]:
    description = {"description": body.description} if body.description else {}
    return {"required": body.required, "content": _content(body.contents), **description}


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "description": answer.description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in HEADERS},
        "content": _content(answer.contents),
    }


def _content(contents: Contents) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for media_type, (schema, example) in contents.items():
        found[media_type] = {"schema": schema, **({"example": example} if example is not None else {})}
        if media_type == JSON:
            found[MSGPACK] = {"schema": schema}
    return found


# ---- problems --------------------------------------------------------------------------------------------------------


def problems_of(route: Route) -> dict[int, list[kafka.ProtocolError]]:
    """Status -> an example of each error that it may stand for."""
    common = COMMON if route.body is None else {**COMMON, **OF_BODIES}
    found = {status: [error] for status, error in common.items()}
    for kind in route.problems:
        error = kind(title_of(kind))
        found.setdefault(problems.status_of(error), []).append(error)
    return dict(sorted(found.items()))


def _problems(
    status: int, errors: list[kafka.ProtocolError], examples: dict[str, Any], form: ErrorForm | None
) -> dict[str, Any]:
    """One status; its examples are kept in ``examples``, for many routes have the same."""
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(error.name for error in errors))
    references = {}
    for error in errors:
        name = f"{'' if form is None else 'proxy-'}{problems.slug_of(type(error))}-{status}"
        refused = problems.Refused(error, status=status)
        value = refused.problem(INSTANCE) if form is None else form.body_of(refused)
        examples[name] = {"summary": title_of(type(error)), "value": value}
        references[name] = {"$ref": f"#/components/examples/{name}"}
    return {"description": f"{STATUS_WORDS[status]} {names}", "content": _problem_content(references, form)}


def _problem_content(examples: dict[str, Any], form: ErrorForm | None) -> dict[str, Any]:
    content: Schema = {"schema": ref("Problem") if form is None else form.schema}
    media_type = problems.PROBLEM_TYPE if form is None else form.media_type
    return {media_type: {**content, **({"examples": examples} if examples else {})}, MSGPACK: content}


def problem_pages() -> list[dict[str, Any]]:
    """What every error means, by its number."""
    slugs = sorted({problems.slug_of(kind) for kind in kafka.ProtocolError.__subclasses__()})
    pages = [page for page in map(problems.page_of, slugs) if page is not None]
    return sorted(pages, key=lambda page: int(page["error_code"]))


HTML = "text/html"

SLUG = Text(
    "slug",
    "The error's name in lower case, with dashes.",
    place="path",
    pattern=r"[^/]+",
    needed="a name",
    example="not-enough-replicas",
)


PAGE_EXAMPLE = problems.page_of("not-enough-replicas")
_DESCRIPTION_SCHEMA: Schema = {"type": "object", "required": ["openapi", "info", "paths"]}
_DESCRIPTION = Answer("The description.", {JSON: (_DESCRIPTION_SCHEMA, {"openapi": "3.1.0", "info": {}, "paths": {}})})


@functools.cache
def _described(*, testing: bool) -> Json:
    """The description of all routes, with or without those for tests."""
    from minikafka.rest.routes import ROUTES as ALL  # noqa: PLC0415 - that module imports this one

    return document(route for route in ALL if testing or not route.testing)


@functools.cache
def _page(*, testing: bool) -> bytes:
    return render(_described(testing=testing), problem_pages())


@ROUTES.at("GET /openapi", _DESCRIPTION)
@ROUTES.at("GET /openapi.json", _DESCRIPTION)
async def get_openapi(visit: Visit) -> Json:
    """This API, in OpenAPI 3.1."""
    described = _described(testing=visit.host.config.testing_endpoints_enable)
    await long_step()  # the first time it was just made, and to write it takes as long
    return described


@ROUTES.at("GET /docs", text_answer("The page.", HTML, "<!doctype html>", "HTML."))
async def get_docs(visit: Visit) -> Page:
    """This API for people: one page that needs nothing from anywhere else."""
    page = _page(testing=visit.host.config.testing_endpoints_enable)
    broker = visit.host.image.brokers.get(visit.host.node_id)
    if broker is not None:  # known once the broker has registered
        url: str = place_of(visit.host, broker, visit.context.listener)["url"]
        page = page.replace(HOST.encode(), html.escape(url).encode())
    if cluster_id := visit.host.image.cluster_id:
        page = page.replace(CLUSTER_ID_EXAMPLE.encode(), html.escape(cluster_id).encode())
    return Page(page, f"{HTML}; charset=utf-8", {"Content-Security-Policy": CONTENT_POLICY})


@ROUTES.at(
    f"GET {PROBLEM_PAGES.rstrip('/')}",
    Answer("All errors.", {JSON: (shape(problems=many(ref("ProblemPage"))), {"problems": [PAGE_EXAMPLE]})}),
)
async def get_problem_pages(_visit: Visit) -> Json:
    """Every error that this API knows."""
    return {"problems": problem_pages()}


@ROUTES.at(f"GET {PROBLEM_PAGES}{{slug}}", Answer("What the error means.", {JSON: (ref("ProblemPage"), PAGE_EXAMPLE)}))
async def get_problem_page(visit: Visit) -> Json:
    """What the ``type`` of a problem points at: its meaning, its cause, and what to look at."""
    page = problems.page_of(visit[SLUG])
    if page is None:
        raise malformed(f"no problem is called {visit[SLUG][:80]!r}", status=404)
    return page


CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

HOST = "http://127.0.0.1:9092"
"""The address in examples; the page is shown with the address of its broker in its place."""

EXAMPLE_QUERY = "x-example-query"
"""Member of an operation: the query of its command, beside the parameters that are required."""

STYLE = (resources.files(__package__) / "docs.css").read_text(encoding="utf-8")


def render(document: dict[str, Any], pages: Iterable[dict[str, Any]]) -> bytes:
    """The page, in UTF-8."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>minikafka {_text(document['info']['version'])}: /v1</title><style>",
        f"{STYLE}</style></head><body><main>",
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
                    parts.extend(_shown_operation(method.upper(), path, operation))
    parts.extend(_errors(pages))
    parts.append("</main></body></html>\n")
    return "\n".join(parts).encode()


def _text(given: object) -> str:
    """Escaped, with code where back quotes are."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(str(given)))


def _row(*cells: object) -> str:
    return f"<tr>{''.join(f'<td>{_text(each)}</td>' for each in cells)}</tr>"


def _shown_operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f'<details id="{_text(operation["operationId"])}"><summary><b>{method}</b> <code>{_text(path)}</code>'
    yield f"<span>{_text(operation['summary'])}</span></summary>"
    if "description" in operation:
        yield f"<p>{_text(operation['description'])}</p>"
    yield f"<pre><code>{html.escape(curl_of(method, path, operation))}</code></pre>"
    if operation.get("parameters"):
        yield "<table><tr><th>parameter</th><th>in</th><th>what it takes</th><th></th></tr>"
        for each in operation["parameters"]:
            yield _row(f"`{each['name']}`", each["in"], takes(each["schema"]), each["description"])
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
            errors.append(_row(status, answer["description"]))
    yield f"<table>{''.join(errors)}</table>"


def _errors(pages: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield '<h2 id="errors">errors</h2><p>Each has a page of its own at the address in its <code>type</code>.</p>'
    yield "<table><tr><th>error</th><th>number</th><th>status</th><th>retriable</th><th>meaning</th></tr>"
    for page in pages:
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
    parameters = operation.get("parameters", ())
    examples = {each["name"]: str(each["example"]) for each in parameters if "example" in each}
    address = HOST + re.sub(r"\{(\w+)\}", lambda found: examples.get(found[1], found[1]), path)
    query = {each["name"]: each["example"] for each in parameters if each["in"] == "query" and each.get("required")}
    shown = urlencode(query) or operation.get(EXAMPLE_QUERY, "")
    address += f"?{shown}" if shown else ""
    contents = operation.get("requestBody", {}).get("content", {})
    kind = JSON if JSON in contents else next(iter(contents), "")
    words = ["curl"]
    if method != ("POST" if kind else "GET"):
        words += ["-X", method]
    if kind:
        body = json.dumps(contents[kind].get("example", {}), ensure_ascii=False)
        words += ["--json", body] if kind == JSON else ["-H", f"Content-Type: {kind}", "--data", body]
    if "text/event-stream" in operation["responses"].get("200", {}).get("content", {}):
        words.append("-N")
    return shlex.join([*words, address])
