"""``/v1/lab/stories``: the lab's stories, played over the real rules, in the form of the live stream.

A story is played when it is first asked for, on a thread, and kept: the same story always gives the same steps. Only
stories of the library are played, never a file that a client names. The lab is loaded with the first request for one:
most brokers that serve ``/v1`` play none.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from minikafka.errors import did_you_mean
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import Choice, Text
from minikafka.rest.route import Json, Routes, Visit
from minikafka.rest.schema import many, text
from minikafka.web.problems import malformed
from minikafka.wire.differences import difference

if TYPE_CHECKING:
    from minikafka.lab.played import View
    from minikafka.lab.scenario import Scenario

ROUTES = Routes("docs")
STEPS_MAX = 1_000
AS_IS = "as_written"
"""What the story's own text says."""
STORY = Text(
    "story",
    "The story's name.",
    place="path",
    pattern=r"[a-z0-9-]{1,80}",
    needed="the name of a story, such as data-loss,",
    example="data-loss",
)
TRUNCATION = Choice(
    "truncation",
    "How followers cut their logs: by leader epoch, or to their own high watermark as before KIP-101.",
    default=AS_IS,
    options=(AS_IS, "leader-epoch", "high-watermark"),
)
CONTROL = Choice(
    "control", "Who elects: the script, or the real controller.", default=AS_IS, options=(AS_IS, "script", "quorum")
)


@functools.cache
def _library() -> dict[str, Scenario]:
    """The stories by the names under which people know them."""
    from minikafka.lab.scenario import LIBRARY, library, read, short_name  # noqa: PLC0415 - see the head of this file

    return {short_name(path.relative_to(LIBRARY).with_suffix("").name): read(path) for path in library()}


_ABOUT = text("What it shows, in a sentence.")


class _Story(Model):
    """A story of the lab."""

    name: str = member(example="data-loss")
    about: str = member(_ABOUT, "Two fast failures lose a record")
    references: list[str] = member("KIPs and issues of Kafka.", [])


class _Stories(Model):
    """The stories of the lab."""

    stories: list[_Story] = many_of(_Story)


class _PlayedStep(Model):
    """A step of a story."""

    number: int = member("As the lab counts it.", 1)
    line: int = member("Of the command in the story's text.", 9)
    w: str = member("What happened.", "produce m0 to A")
    lines: list[str] = member("What the rules reported.", [])
    changes: list[Any] = member(
        many({"type": "array"}, "As in a live `frame`."), [[["partition", "log_end_offset"], 1]]
    )


class _Played(Model):
    """A story's states and steps."""

    name: str = member(example="data-loss")
    options: dict[str, str] = member(
        {"type": "object", "description": "Options of the story's cluster."}, {"brokers": "2"}
    )
    before: dict[str, Any] = member(
        {"type": "object", "description": "In the form of a `snapshot` of a partition."},
        {"summary": "all start", "partition": {"high_watermark": 0}},
    )
    steps: list[Any] = many_of(_PlayedStep)
    lost: list[str] = member("Records that were acknowledged and that the leader lacks at the end.", [])
    diverged: list[str] = member("Offsets at which two replicas hold different committed records.", [])
    text: str = member("The table that `minikafka lab run` prints.", "step  what happened\n")
    about: str = member(_ABOUT, "Two fast failures lose a record")


@ROUTES.at("GET /v1/lab/stories", _Stories.answer("The stories."))
async def get_stories(_visit: Visit) -> Json:
    """The stories of the lab."""
    from minikafka.lab.scenario import references, story  # noqa: PLC0415 - see the head of this file

    found = sorted(_library().items())
    stories = [_Story(name=name, about=story(each), references=list(references(each))) for name, each in found]
    return _Stories(stories=stories).out()


@ROUTES.at(
    "GET /v1/lab/stories/{story}",
    _Played.answer("The state before the story, and what each step changes."),
    parameters=(TRUNCATION, CONTROL),
)
async def get_story(visit: Visit) -> Json:
    """Play a story: the state before it, and what each step changes."""
    from minikafka.lab.verbs import ScenarioError  # noqa: PLC0415 - see the head of this file

    name, options = visit[STORY], {"truncation": visit[TRUNCATION], "control": visit[CONTROL]}
    if name not in _library():
        raise malformed(f"there is no story {name!r}{did_you_mean(name, _library())}", status=404)
    chosen = tuple((each, value) for each, value in options.items() if value != AS_IS)
    try:
        found = await visit.host.world.offload(lambda: played(name, chosen))
    except ScenarioError as error:
        raise malformed(f"the story {name} cannot be played with these options: {error}") from None
    return found


@functools.lru_cache(64)
def played(name: str, options: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """A story's states and steps. Raises ScenarioError."""
    from minikafka.lab.scenario import story  # noqa: PLC0415 - see the head of this file
    from minikafka.lab.table import rendered  # noqa: PLC0415 - as above

    run = _library()[name].play(options)
    first, *steps = run.steps[:STEPS_MAX]
    before = state = _state(first.after, first.what)
    rows = []
    for step in steps:
        after = _state(step.after, step.what)
        rows.append(_PlayedStep.out_of(step, w=step.what, lines=list(step.lines), changes=difference(state, after)))
        state = after
    return _Played(
        name=name,
        options=dict(run.options),
        before=before,
        steps=rows,
        lost=[str(each) for each in run.lost],
        diverged=[str(each) for each in run.diverged],
        text=rendered(run, why=True),
        about=story(_library()[name]),
    ).out()


def _state(views: Any, summary: str) -> dict[str, Any]:
    """Replicas by their names, as the live stream has those of a partition."""
    leaders = [name for name, view in views.items() if view.role.startswith("leader")]
    # A deposed leader that has not heard of it leads on in its old epoch.
    leader = max(leaders, key=lambda name: views[name].epoch, default=None)
    known = {} if leader is None else dict(views[leader].remotes)
    isr = [] if leader is None else views[leader].isr.split(",")
    return {
        "summary": summary,
        "partition": {
            "leader": leader,
            "leader_epoch": None if leader is None else views[leader].epoch,
            "isr": isr,
            "high_watermark": None if leader is None else views[leader].high_watermark,
            "log_end_offset": None if leader is None else views[leader].end_offset,
            "order": list(views),
            "replicas": {name: _replica(name, view, known, isr) for name, view in views.items()},
        },
    }


def _replica(name: str, view: View, known: dict[str, int], isr: list[str]) -> dict[str, Any]:
    end = known.get(name, view.end_offset)
    return {
        "id": name,
        "role": view.role.partition(",")[0],
        "cut_off": view.role.endswith("cut off"),
        "in_sync": name in isr,
        "leo": None if end is None or end < 0 else end,
        "own_leo": view.end_offset,
        "hw": view.high_watermark,
        "epoch": view.epoch,
        "asked": view.asked.split(",") if view.asked else None,
    }
