"""Times on the command line of chaos, as in its scenarios: ``90s``, ``10m``."""

from __future__ import annotations

from typing import Any

import click

from minikafka.chaos.fields import seconds_of


class Duration(click.ParamType[float]):
    """A time with its unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; a usage error for anything else, and for less than nothing."""
        if isinstance(value, float):
            return value
        try:
            seconds = seconds_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds < 0:
            self.fail(f"{value!r}: less than nothing", param, ctx)
        return seconds
