"""What the API says of itself: ``/openapi.json``, ``/docs``, and a page for each error."""

from __future__ import annotations

from minikafka.rest.parameters import Text
from minikafka.rest.problems import PROBLEM_PAGES, malformed, page_of
from minikafka.rest.route import Answer, Route
from minikafka.rest.schema import flag, shape, text, whole
from minikafka.rest.visit import Reply, Visit

SLUG = Text(
    name="slug",
    place="path",
    description="The error's name in lower case, with dashes.",
    pattern=r"[^/]+",
    needed="a name",
    example="not-enough-replicas",
)


async def get_problem_page(visit: Visit) -> Reply:
    """What the ``type`` of a problem points at."""
    page = page_of(visit[SLUG])
    if page is None:
        raise malformed(f"no problem is called {visit[SLUG][:80]!r}", status=404)
    return Reply(page)


ROUTES = (
    Route(
        method="GET",
        path=PROBLEM_PAGES + "{slug}",
        handler=get_problem_page,
        tag="docs",
        parameters=(SLUG,),
        answers={
            200: Answer(
                description="What the error means.",
                schema=shape(
                    error=text("Kafka's name."),
                    error_code=whole("Kafka's number."),
                    status=whole("The HTTP status it comes with."),
                    retriable=flag(),
                    meaning=text(),
                ),
                example={
                    "error": "NOT_ENOUGH_REPLICAS",
                    "error_code": 19,
                    "status": 503,
                    "retriable": True,
                    "meaning": "Fewer in-sync replicas than min.insync.replicas: nothing was written.",
                },
            )
        },
    ),
)
