"""The table of APIs in docs/compatibility.md, made from the offer of the code.

::

    python -m tests.kafka.compatibility        # rewrites the table
"""

from __future__ import annotations

from minikafka.wire.kafka.offer import OF_THE_SESSION, OFFERS
from minikafka.wire.kafka.schema import api_named
from tests.kafka.samples import api_names
from tests.tidy.sources import ROOT

DOCUMENT = ROOT / "docs" / "compatibility.md"
BEGIN = "<!-- made by `python -m tests.kafka.compatibility`: begin -->"
END = "<!-- made by `python -m tests.kafka.compatibility`: end -->"


def table() -> str:
    """One line for each API that is offered, and the names of those in the schema that are not."""
    offered = {key: (each.name, each.first, each.last, each.advertised_first) for key, each in OFFERS.items()}
    own = {key: api for api in map(api_named, api_names()) if (key := api.key) in OF_THE_SESSION}
    offered |= {key: (api.name, *OF_THE_SESSION[key], None) for key, api in own.items()}
    lines = ["| API | key | versions | Kafka 4.3.1 |", "|---|---:|---|---|"]
    for key, (name, first, last, advertised) in sorted(offered.items()):
        kafka = api_named(name)
        note = "" if advertised is None else f" ({advertised} is advertised)"
        lines.append(f"| {name} | {key} | {_span(first, last)}{note} | {_span(kafka.first, kafka.last)} |")
    names = {name for name, *_ in offered.values()}
    missing = sorted((each for each in map(api_named, api_names()) if each.name not in names), key=lambda api: api.key)
    if missing:
        lines += ["", "Not offered: " + ", ".join(f"{each.name} ({each.key})" for each in missing) + "."]
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The document with the table of this build."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the document lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
