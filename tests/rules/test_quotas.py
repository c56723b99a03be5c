"""Client quotas as a rule: precedence, rates, throttle times, and bounded memory (SECURITY 5.1, 5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.security import quotas as rule
from minikafka.security.quotas import (
    CLIENT_ID,
    CONNECTION,
    FETCH,
    IP,
    KEYS,
    MUTATION,
    PRODUCE,
    REQUEST,
    USER,
    Bound,
    Bucket,
    ConnectionRates,
    Entity,
    QuotaIndex,
    Quotas,
    Rate,
)

NAMES = ("ann", "bob", "")
LIMITS = st.floats(min_value=1, max_value=1e9)


def entities() -> list[Entity]:
    """Every entity of a few users and client ids."""
    found: list[Entity] = []
    for user, client in product((*NAMES, None, "absent"), repeat=2):
        parts = [(CLIENT_ID, client), (USER, user)]
        entity = tuple(part for part in parts if part[1] != "absent")
        if entity:
            found.append(entity)
    return found


def reference(quotas: Mapping[Entity, Mapping[str, float]], key: str, user: str, client: str) -> Bound | None:
    """Kafka's table of precedence, as a ranking of all entities that match."""
    ranking = [("x", "x"), ("x", "d"), ("x", "-"), ("d", "x"), ("d", "d"), ("d", "-"), ("-", "x"), ("-", "d")]

    def form(entity: Entity, kind: str, name: str) -> str | None:
        names = dict(entity)
        if kind not in names:
            return "-"
        return "d" if names[kind] is None else "x" if names[kind] == name else None

    matching = {}
    for entity, values in quotas.items():
        forms = form(entity, USER, user), form(entity, CLIENT_ID, client)
        if key in values and None not in forms:
            matching[ranking.index(forms)] = (forms, values[key])
    if not matching:
        return None
    (of_user, of_client), limit = matching[min(matching)]
    return Bound(Bucket(key, None if of_user == "-" else user, None if of_client == "-" else client), limit)


@given(
    st.dictionaries(st.sampled_from(entities()), st.dictionaries(st.sampled_from(KEYS), LIMITS, min_size=1)),
    st.sampled_from(KEYS),
    st.sampled_from(NAMES),
    st.sampled_from((*NAMES, "etl")),
)
def test_precedence_is_kafkas(quotas: dict[Entity, dict[str, float]], key: str, user: str, client: str) -> None:
    """Each key has its own most specific entity; the bucket is shared by those that its entity does not distinguish."""
    index = QuotaIndex(quotas)
    expected = reference(quotas, key, user, client)
    assert index.bound(key, user, client) == expected
    assert index.bound(key, user, client) == expected  # remembered


def test_what_applies_is_remembered_for_a_bounded_number_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client ids are text that anyone can invent."""
    monkeypatch.setattr(rule, "KNOWN_MAX", 10)
    index = QuotaIndex({((USER, "ann"),): {PRODUCE: 5.0}})
    for number in range(100):
        assert index.bound(PRODUCE, "ann", f"c{number}") == Bound(Bucket(PRODUCE, "ann", None), 5.0)
        assert len(index._known) <= 10


def test_long_client_ids_are_remembered_by_their_hash() -> None:
    """Each may have 32 KB, and shares its rate with nobody."""
    index = QuotaIndex({((CLIENT_ID, None),): {PRODUCE: 5.0}})
    bounds = [index.bound(PRODUCE, "ann", text * 32_000) for text in "xxy"]
    assert bounds[0] == bounds[1] != bounds[2]
    assert all(each is not None and each.limit == 5.0 for each in bounds)
    assert all(len(name or "") < 100 for key in index._known for name in key)
    assert all(each is not None and len(each.bucket.client_id or "") < 100 for each in bounds)


STEPS = st.lists(st.tuples(st.floats(min_value=0, max_value=4), st.integers(min_value=0, max_value=1000)), max_size=40)


def amounts_that_count(events: list[tuple[float, float]], now: float) -> tuple[float, float]:
    """Kafka's SampledStat from its definition: all that counts at ``now``, and over how many seconds."""
    samples: list[tuple[float, list[tuple[float, float]]]] = []
    for at, amount in events:
        samples = [each for each in samples if at - each[1][-1][0] < 11]
        if samples and at - samples[-1][0] < 1:
            samples[-1][1].append((at, amount))
        else:
            samples.append((at - (at - samples[-1][0]) % 1 if samples else at, [(at, amount)]))
    samples = [each for each in samples if now - each[1][-1][0] < 11]
    age = now - samples[0][0] if samples else 0.0
    return sum(amount for _, sample in samples for _, amount in sample), age + max(0, 10 - int(age))


@given(STEPS, st.floats(min_value=0, max_value=15), LIMITS)
def test_a_rate_is_the_amount_of_the_last_eleven_samples(
    steps: list[tuple[float, int]], after_s: float, limit: float
) -> None:
    """As Kafka's Rate over SampledStat: at least ten whole samples are waited for. The leaky bucket throttles longer
    where that forgets.
    """
    rate, events, now, level = Rate(), [], 100.0, 0.0
    for pause_s, amount in steps:
        now += pause_s
        rate.add(amount, limit, now)
        level = max(0.0, level - pause_s * limit) + amount
        events.append((now, float(amount)))
    now += after_s
    total, window_s = amounts_that_count(events, now)
    assert rate.measure(now) == pytest.approx(total / window_s)
    of_rate_s = (total / window_s - limit) / limit * window_s
    of_bucket_s = (level - after_s * limit) / limit - 10
    assert rate.throttle_ms(limit, now) == pytest.approx(1000 * max(0, of_rate_s, of_bucket_s), abs=1)


def test_throttle_time_is_what_brings_the_rate_back_to_the_limit() -> None:
    """KIP-13: (rate - limit) / limit x window. 30 KB at once, at 1 KB/s: three times the window of ten seconds."""
    quotas = Quotas(QuotaIndex({((USER, "ann"),): {PRODUCE: 1000.0}}))
    assert quotas.count(PRODUCE, "ann", "", 10_000, 0.0) == 0
    assert quotas.count(PRODUCE, "ann", "", 20_000, 0.0) == 20_000
    assert quotas.throttled_ms((PRODUCE,), "ann", "", 5.0) == 15_000
    assert quotas.throttled_ms((FETCH, REQUEST), "ann", "", 5.0) == 0
    assert quotas.throttled_ms((PRODUCE,), "bob", "", 5.0) == 0


def test_a_throttle_time_that_a_client_was_given_is_not_shortened_by_a_later_request() -> None:
    """It waits for the time of the first response; by the second one the rate has forgotten the first amount."""
    quotas = Quotas(QuotaIndex({((USER, "ann"),): {PRODUCE: 1000.0}}))
    quotas.count(PRODUCE, "ann", "", 30_000, 0.0)
    assert quotas.count(PRODUCE, "ann", "", 0, 10.5) == 19_500
    assert quotas.count(PRODUCE, "ann", "", 0, 11.5) == 8_500
    assert quotas.throttled_ms((PRODUCE,), "ann", "", 11.5) == 18_500


def test_a_client_without_a_quota_is_not_counted() -> None:
    """No bucket, no throttling."""
    quotas = Quotas(QuotaIndex({((USER, "ann"),): {PRODUCE: 1.0}}))
    assert quotas.count(PRODUCE, "bob", "etl", 1e9, 0.0) == 0
    assert quotas.count(FETCH, "ann", "etl", 1e9, 0.0) == 0
    assert quotas.burst_bytes(FETCH, "ann", "") is None
    assert len(quotas) == 0


def test_a_fetch_that_was_taken_back_does_not_count() -> None:
    """A throttled response is sent without its records, so its client is not charged for them."""
    quotas = Quotas(QuotaIndex({((USER, "ann"),): {FETCH: 100.0}}))
    assert quotas.burst_bytes(FETCH, "ann", "") == 1000
    assert quotas.count(FETCH, "ann", "", 5000, 0.0) == 40_000
    quotas.take_back(FETCH, "ann", "", 5000, 0.0)
    assert quotas.count(FETCH, "ann", "", 1000, 0.1) == 0


def test_time_of_the_loop_throttles_for_one_sample_at_most() -> None:
    """As Kafka caps request throttling: a slow request must not silence a client for minutes."""
    quotas = Quotas(QuotaIndex({((USER, None),): {REQUEST: 1.0}}))
    assert quotas.count(REQUEST, "ann", "", 5_000, 0.0) == 1000


@given(st.integers(min_value=1, max_value=50), st.integers(min_value=1, max_value=30), st.booleans())
def test_a_client_that_obeys_stays_within_its_quota(connections: int, kib: int, whole_user: bool) -> None:
    """Hostile test 23, as a rule: many connections and a new client id for each request do not raise the rate of a
    user beyond his quota and one burst, and buckets stay few.
    """
    limit, size, until_s = 10_240.0, kib * 1024, 90.0
    entity: Entity = ((USER, "mallory"),) if whole_user else ((USER, None),)
    quotas = Quotas(QuotaIndex({entity: {PRODUCE: limit}}))
    ready = [0.0] * connections
    sent = requests = 0
    while (now := min(ready)) < until_s:
        at = ready.index(now)
        throttle_ms = quotas.count(PRODUCE, "mallory", f"id-{requests}", size, now)
        sent, requests = sent + size, requests + 1
        ready[at] = now + max(0.02, throttle_ms / 1000)
    assert sent <= limit * (until_s + 10) + connections * size
    assert len(quotas) == 1


def test_buckets_are_bounded_and_old_ones_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand client ids of one user are ten thousand buckets at most; an hour without use drops one."""
    monkeypatch.setattr(rule, "KNOWN_MAX", 100)
    quotas = Quotas(QuotaIndex({((CLIENT_ID, None),): {PRODUCE: 10.0}}))
    for number in range(1000):
        quotas.count(PRODUCE, "ann", f"c{number}", 1, 0.0)
        quotas.count(PRODUCE, "ann", "busy", 1, 0.0)
    assert len(quotas) == 100
    assert quotas.count(PRODUCE, "ann", "busy", 0, 0.0) > 0  # used again and again: never dropped
    quotas.count(PRODUCE, "ann", "late", 1, 3601.0)
    assert len(quotas) == 1


def test_new_quotas_count_at_once_and_keep_rates() -> None:
    """A lower limit throttles what was within the old one."""
    quotas = Quotas(QuotaIndex({((USER, "ann"),): {PRODUCE: 1000.0}}))
    assert quotas.count(PRODUCE, "ann", "", 10_000, 0.0) == 0
    quotas.index = QuotaIndex({((USER, "ann"),): {PRODUCE: 500.0}})
    assert quotas.count(PRODUCE, "ann", "", 0, 0.0) == 10_000


ANN: Entity = ((USER, "ann"),)


def test_mutations_overdraw_their_bucket_once() -> None:
    """KIP-599, with the numbers of Kafka's own test: ten a second, of which eleven seconds may come at once."""
    quotas = Quotas(QuotaIndex({ANN: {MUTATION: 10.0}}))
    assert quotas.mutate("ann", "", 100, 0.0, strict=True) == 0
    assert quotas.mutate("ann", "", 90, 0.0, strict=True) == 0
    assert quotas.mutate("ann", "", 1, 0.0, strict=True) == 8000
    assert quotas.mutate("ann", "", 1, 5.0, strict=True) == 3000
    assert quotas.mutate("ann", "", 1, 8.0, strict=True) == 0
    assert quotas.mutate("bob", "", 10**6, 0.0, strict=True) == 0


def test_mutations_of_old_clients_are_made_and_throttled() -> None:
    """They do not know the error: the time is that after which the bucket is not overdrawn any more."""
    quotas = Quotas(QuotaIndex({ANN: {MUTATION: 10.0}}))
    assert quotas.mutate("ann", "", 100, 0.0, strict=False) == 0
    assert quotas.mutate("ann", "", 90, 0.0, strict=False) == 8000
    assert quotas.mutate("ann", "", 90, 1.0, strict=False) == 16_000


@given(st.lists(st.tuples(st.floats(min_value=0, max_value=20), st.integers(min_value=1, max_value=200)), max_size=60))
def test_mutations_never_exceed_the_rate_and_one_request(steps: list[tuple[float, int]]) -> None:
    """Whatever a client tries: what eleven seconds allow, and the request that overdraws."""
    quotas, now, made, largest = Quotas(QuotaIndex({ANN: {MUTATION: 10.0}})), 0.0, 0, 0
    for pause_s, partitions in steps:
        now += pause_s
        largest = max(largest, partitions)
        if not quotas.mutate("ann", "", partitions, now, strict=True):
            made += partitions
    assert made <= 110 + 10 * now + largest + 1e-6


def test_the_buckets_of_mutations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota of every client id of a user: client ids are text that anyone can invent."""
    monkeypatch.setattr(rule, "KNOWN_MAX", 10)
    quotas = Quotas(QuotaIndex({((CLIENT_ID, None), (USER, "ann")): {MUTATION: 10.0}}))
    for number in range(100):
        quotas.mutate("ann", f"c{number}", 1, 0.0, strict=True)
    assert len(quotas._tokens) <= 10


@pytest.mark.parametrize("limit", [5e-324, 1e-300, 1e308])
def test_any_quota_that_the_controller_accepts_gives_a_throttle_time(limit: float) -> None:
    """Percents and mutations need not be whole: what a client has used may be infinitely often the smallest quota."""
    quotas = Quotas(QuotaIndex({ANN: {MUTATION: limit, REQUEST: limit}}))
    expected = rule.THROTTLE_MS_MAX if limit < 1 else 0
    assert quotas.mutate("ann", "", 100, 0.0, strict=False) == expected
    assert quotas.mutate("ann", "", 100, 9.0, strict=True) == expected
    assert quotas.count(REQUEST, "ann", "", 0.01, 0.0) == (1000 if limit < 1 else 0)


def connections(**limits: float) -> ConnectionRates:
    rates = ConnectionRates()
    rates.use(
        QuotaIndex({((IP, None if ip == "default" else ip),): {CONNECTION: limit} for ip, limit in limits.items()})
    )
    return rates


def test_an_address_opens_ten_seconds_worth_at_once() -> None:
    """KIP-612: then a connection is closed after its throttle time, which is a second at most, and does not count."""
    rates = connections(default=2.0)
    assert [rates.opened("10.0.0.7", 0.0) for _ in range(20)] == [0] * 20
    assert [rates.opened("10.0.0.7", 0.0) for _ in range(5)] == [500] * 5
    assert rates.opened("10.0.0.8", 0.0) == 0
    assert rates.opened("10.0.0.7", 0.4) > 0
    assert rates.opened("10.0.0.7", 11.0) == 0


def test_an_address_has_its_quota_however_it_is_written() -> None:
    """IPv6 has many forms of one address; the operating system reports the shortest."""
    rates = connections(**{"2001:DB8:0:0:0:0:0:7": 1.0})
    assert [rates.opened("2001:db8::7", 0.0) > 0 for _ in range(11)] == [False] * 10 + [True]
    assert rates.opened("2001:db8::8", 0.0) == 0


def test_addresses_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address can be invented where networks allow it; without a quota nothing is kept."""
    monkeypatch.setattr(rule, "KNOWN_MAX", 10)
    rates = connections(default=2.0)
    for number in range(100):
        rates.opened(f"10.0.0.{number}", 0.0)
    assert len(rates._rates) <= 10
    rates.use(QuotaIndex())
    assert (rates.opened("10.0.0.7", 0.0), len(rates._rates), rates.index) == (0, 0, None)
