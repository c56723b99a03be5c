"""A long family of ``/metrics`` is written in pieces, so that a scrape does not hold other requests up."""

from __future__ import annotations

import pytest
from prometheus_client.exposition import generate_latest

from minikafka.broker.meters import Histogram
from minikafka.groups.coordinator import Standing
from minikafka.groups.group import State
from minikafka.rest.metrics import SAMPLES_MAX, _Families, in_pieces, without_header
from minikafka.rest.metrics.families import (
    Groups,
    Windows,
    counter,
    gauge,
    group_families,
    histogram,
    percentiles_ms,
)


def seen(value: int) -> Histogram:
    one = Histogram()
    one.observe(1000 * value)
    return one


FAMILIES = {
    "gauge": lambda rows: gauge("standing", 'of "it"\nall', ("topic",), (((f"t{n}",), float(n)) for n in range(rows))),
    "counter": lambda rows: counter("happened", "how often", ("topic",), (((f"t{n}",), float(n)) for n in range(rows))),
    "histogram": lambda rows: histogram("took", "seconds", ("api",), (((f"a{n}",), seen(n)) for n in range(rows))),
    "summary": lambda rows: percentiles_ms(
        "took_ms", "milliseconds", "api", ((f"a{n}", seen(n)) for n in range(rows)), Windows(), 0.0
    ),
}


@pytest.mark.parametrize("rows", [0, 1, SAMPLES_MAX, SAMPLES_MAX + 1, 3 * SAMPLES_MAX])
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_pieces_of_a_family_are_its_text(kind: str, rows: int) -> None:
    """A piece that ended differently would be a broken exposition, which Prometheus rejects as a whole."""
    whole = generate_latest(_Families([FAMILIES[kind](rows)]))
    first, *rest = [
        (len(piece.samples), generate_latest(_Families([piece]))) for piece in in_pieces(FAMILIES[kind](rows))
    ]
    assert first[1] + b"".join(without_header(text) for _, text in rest) == whole
    assert all(count <= SAMPLES_MAX for count, _ in [first, *rest])


def test_every_group_is_counted_in_one_state():
    """KIP-848: a group of the consumer protocol that gets a new assignment was in none."""
    groups = Groups([Standing(state.value, state, 1, {}) for state in State])
    families = {each.name.rpartition("_")[2]: each for each in group_families(groups, 100)}
    (count,) = families.pop("numgroups").samples
    by_state = {name: each.samples[0].value for name, each in families.items() if name.startswith("numgroups")}
    assert by_state.keys() == {f"numgroups{state.value.lower()}" for state in State}
    assert sum(by_state.values()) == count.value == len(State)
