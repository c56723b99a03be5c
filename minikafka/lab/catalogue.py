"""The library by name: what each story is about, and how a name on a command line finds one.

Rules for this file: a name is the file's below ``scenarios/`` without its ending; ``-`` may stand for ``_``, the number
in front may be left out, and it may stand for all of the name where only one story has it. Whatever names no story is
answered with the nearest that does. A path names anybody's own file.
"""

from __future__ import annotations

import re
from pathlib import Path

from minikafka.lab.command import ScenarioError
from minikafka.lab.scenario import Scenario, library, read
from minikafka.spelling import nearest

_NUMBER = re.compile(r"^s\d+_")


def names() -> list[str]:
    """All names of the library."""
    return [read(path).name for path in library()]


def short_name(name: str) -> str:
    """The name as people type it, without the number that sorts the file: ``s22_data_loss`` is ``data-loss``."""
    return _NUMBER.sub("", name).replace("_", "-")


def find(name: str) -> Scenario:
    """The story of that name, or in that file. Raises ScenarioError with the nearest names."""
    known = {read(path).name: path for path in library()}
    wanted = name.removesuffix(".txt").replace("-", "_").lower()
    by_last = [
        each
        for each in known
        if wanted in {each, each.rpartition("/")[2], each.partition("_")[0], _NUMBER.sub("", each)}
    ]
    if wanted in known or len(by_last) == 1:
        return read(known.get(wanted) or known[by_last[0]])
    path = Path(name)
    if path.is_file():
        return read(path)
    spelled = {each: short_name(each) for each in known}
    spelled |= {short: short for short in spelled.values()}
    near = nearest(wanted, spelled, count=3, cutoff=0.5) or by_last
    if not near:
        near = [each for each in known if wanted in each]
    hint = (
        f"; did you mean {' or '.join(dict.fromkeys(spelled[each] for each in near))}?"
        if near
        else "; `minikafka lab list` shows all"
    )
    raise ScenarioError(f"there is no scenario {name}, and no such file{hint}")


def story(scenario: Scenario) -> str:
    """The first sentence of the comment on top, without the number that it may begin with."""
    text = re.sub(r"^(S\d|KIP-|KAFKA-)[^:]*: ", "", _comment(scenario).partition("\n")[0])
    sentence = re.match(r".+?\.(?=\s|$)", text)
    summary = (sentence.group() if sentence else text).rstrip(":.")
    # A setting keeps its small letters.
    return summary if "=" in summary.partition(" ")[0] else summary[:1].upper() + summary[1:]


def references(scenario: Scenario) -> list[str]:
    """The KIPs and issues of Kafka that the comment on top names."""
    return list(dict.fromkeys(re.findall(r"\b(?:KIP|KAFKA)-\d+\b", _comment(scenario))))


def _comment(scenario: Scenario) -> str:
    """The comment on top, a paragraph a line."""
    paragraphs = [""]
    for line in scenario.head.splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("#").strip()
        if text:
            paragraphs[-1] = f"{paragraphs[-1]} {text}".lstrip()
        else:
            paragraphs.append("")
    return "\n".join(paragraphs)
