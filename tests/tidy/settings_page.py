"""The tables of docs/settings.md, made from the settings that the code has.

::

    python -m tests.tidy.settings_page        # rewrites them
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from minikafka.config.broker import BrokerConfig
from minikafka.config.listeners import LISTENER_SETTINGS
from minikafka.config.names import AT_RUN_TIME, BROKER_NAME_OF
from minikafka.config.setting import INT_MAX, LONG_MAX, NO_EFFECT
from minikafka.config.topic import TopicConfig
from tests.tidy.sources import ROOT

DOCUMENT = ROOT / "docs" / "settings.md"
BEGIN = "<!-- made by `python -m tests.tidy.settings_page`: begin {} -->"
END = "<!-- made by `python -m tests.tidy.settings_page`: end {} -->"


def with_tables(text: str) -> str:
    """The document with the tables of this build."""
    tables = {"brokers": _brokers, "topics": _topics, "listeners": _listeners, "kept": _kept}
    for name, lines in tables.items():
        before, _, rest = text.partition(BEGIN.format(name))
        _, found, after = rest.partition(END.format(name))
        if not found:
            raise ValueError(f"the document lacks {BEGIN.format(name)} or {END.format(name)}")
        table = "\n".join(lines())
        text = f"{before}{BEGIN.format(name)}\n\n{table}\n\n{END.format(name)}{after}"
    return text


def _brokers() -> Iterator[str]:
    yield from ("| Setting | Default | Run time | Meaning |", "|---|---|---|---|")
    for name, each in sorted(_settings(BrokerConfig).items()):
        if name not in BROKER_NAME_OF.values() and each.metadata["meaning"] != NO_EFFECT:
            yield f"| `{name}` | {_default(each)} | {'yes' if name in AT_RUN_TIME else ''} | {_meaning(each)} |"


def _topics() -> Iterator[str]:
    yield from ("| Of a topic | Of a broker, for its topics | Default | Meaning |", "|---|---|---|---|")
    for name, each in sorted(_settings(TopicConfig).items()):
        if each.metadata["meaning"] != NO_EFFECT:
            broker = f"`{BROKER_NAME_OF[name]}`" if name in BROKER_NAME_OF else ""
            yield f"| `{name}` | {broker} | {_default(each)} | {_meaning(each)} |"


def _listeners() -> Iterator[str]:
    yield ", ".join(f"`{name}`" for name in sorted(LISTENER_SETTINGS)) + "."


def _kept() -> Iterator[str]:
    settings = _settings(BrokerConfig) | _settings(TopicConfig)
    kept = sorted(name for name, each in settings.items() if each.metadata["meaning"] == NO_EFFECT)
    yield ", ".join(f"`{name}`" for name in kept) + "."


def _settings(table: type[BrokerConfig | TopicConfig]) -> dict[str, Field[Any]]:
    return {each.metadata["name"]: each for each in fields(table) if "name" in each.metadata}


def _default(each: Field[Any]) -> str:
    value = each.default
    if value in (LONG_MAX, INT_MAX, float(LONG_MAX)):
        return "no limit"
    text = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{text}`" if text else "(empty)"


def _meaning(each: Field[Any]) -> str:
    """A sentence, and the values that can be given where they are not all that anybody would try."""
    text, one_of = str(each.metadata["meaning"]).rstrip("."), [name for name in each.metadata["one_of"] if name]
    low, high = each.metadata["low"], each.metadata["high"]
    if text.split()[0].isalpha():  # it does not begin with the name of a setting
        text = text[0].upper() + text[1:]
    text += "."
    if one_of:
        text += f" One of {', '.join(f'`{value}`' for value in one_of)}."
    elif high is not None and high < INT_MAX and str(high) not in text:
        text += f" From {low:,} to {high:,}."
    elif low is not None and low > 1:
        text += f" At least {low:,}."
    return text.replace("|", "\\|")


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
