"""What the API says of itself: ``/openapi.json``, ``/docs``, and a page for each error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minikafka.rest.docs_page import CONTENT_POLICY, render
from minikafka.rest.openapi import document, problem_pages
from minikafka.rest.parameters import Text
from minikafka.rest.route import Answer, Route
from minikafka.rest.schema import many, ref, shape, text
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
            answers={
                200: Answer(description="The page.", schema=text("HTML."), media_type=HTML, example="<!doctype html>")
            },
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
