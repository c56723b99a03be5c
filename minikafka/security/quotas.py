"""Client quotas: which one applies to a request, and how long its client is throttled (KIP-13, 55, 124, 219, 546, 599,
612).

Entities and precedence are those of Kafka's DefaultQuotaCallback, rates those of its SampledStat: samples of a second,
the last :data:`SAMPLES` of them count, and a rate is the amount in them by their age, which is at least ten seconds. So
a client may use up to ten seconds' worth of its quota at once.

Differs from Kafka: its rates forget what is older than eleven seconds, so many connections, each throttled for longer
than that, exceed the quota of their user threefold. Here a leaky bucket of ten seconds' worth remembers, and the longer
throttle time counts. For a client of one connection the two are the same.

Rules for this file: no I/O and no clock; ``now`` is seconds of a monotonic clock. Everything that clients can multiply
(names of clients, and so buckets) is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from minikafka.security.authorizer import address_text

USER, CLIENT_ID, IP = "user", "client-id", "ip"
"""Types of entities, in Kafka's words."""

PRODUCE: Final = "producer_byte_rate"
"""Bytes of Produce requests a second."""
FETCH: Final = "consumer_byte_rate"
"""Bytes of Fetch responses a second."""
REQUEST: Final = "request_percentage"
"""Time of the broker's event loop, in percent: 100 is all of it."""

MUTATION: Final = "controller_mutation_rate"
"""Partitions a second that CreateTopics, CreatePartitions and DeleteTopics create and delete."""
CONNECTION: Final = "connection_creation_rate"
"""Connections a second that an IP address opens."""

KEYS: Final = (PRODUCE, FETCH, REQUEST, MUTATION)
"""Keys of users and client ids."""
IP_KEYS: Final = (CONNECTION,)
WHOLE_KEYS: Final = frozenset({PRODUCE, FETCH, CONNECTION})
"""Keys whose values have no fractions."""

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, sorted by type; a name of None is the default of its type."""

SAMPLES, SAMPLE_S = 11, 1.0
"""Kafka's quota.window.num and quota.window.size.seconds, at their defaults."""

KNOWN_MAX = 10_000
"""Clients whose quotas are remembered, and buckets that are kept."""

CLIENT_ID_LENGTH_MAX = 255
"""Longer client ids, which no quota can name, are remembered by their hash: each may have 32 KB."""

FORGOTTEN_AFTER_S = 3600.0
"""A bucket that is not used for so long is dropped, as in Kafka."""


class Bucket(NamedTuple):
    """The sharers of a rate: a client id of a user, all client ids of a user, or all users of a client id."""

    key: str
    user: str | None
    client_id: str | None


class Bound(NamedTuple):
    """The quota that applies to a request."""

    bucket: Bucket
    limit: float
    """Bytes a second, or percent."""


class QuotaIndex:
    """All quotas of the cluster. Immutable; what applies to a client is remembered."""

    __slots__ = ("_by_ip", "_known", "_quotas")

    def __init__(self, quotas: Mapping[Entity, Mapping[str, float]] | None = None) -> None:
        given = quotas or {}
        self._quotas = {entity: values for entity, values in given.items() if entity[0][0] != IP}
        self._known: dict[tuple[str, str, str], Bound | None] = {}
        self._by_ip: dict[str | None, float] = {
            None if entity[0][1] is None else address_text(entity[0][1]): values[CONNECTION]
            for entity, values in given.items()
            if entity[0][0] == IP and CONNECTION in values
        }

    def __bool__(self) -> bool:
        """Return True if a user or a client id has a quota."""
        return bool(self._quotas)

    @property
    def limits_connections(self) -> bool:
        """Return True if an IP address has a quota."""
        return bool(self._by_ip)

    def connection_rate(self, ip: str) -> float | None:
        """Connections a second that an address may open: its own quota, or the default; None: as many as it likes."""
        return self._by_ip.get(address_text(ip), self._by_ip.get(None))

    def bound(self, key: str, user: str, client_id: str) -> Bound | None:
        """The quota that applies to a client; None: none does.

        Args:
            key: One of KEYS; each has its own most specific quota.
            user: Name of the principal, without its type.
            client_id: As the client sent it, or empty.
        """
        if len(client_id) > CLIENT_ID_LENGTH_MAX:
            client_id = hashlib.sha256(client_id.encode("utf-8", "surrogatepass")).hexdigest()
        asked = (key, user, client_id)
        try:
            return self._known[asked]
        except KeyError:
            pass
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        found = self._known[asked] = self._find(key, user, client_id)
        return found

    def _find(self, key: str, user: str, client_id: str) -> Bound | None:
        both = Bucket(key, user, client_id)
        of_user, of_client = Bucket(key, user, None), Bucket(key, None, client_id)
        levels: tuple[tuple[Entity, Bucket], ...] = (
            (((CLIENT_ID, client_id), (USER, user)), both),
            (((CLIENT_ID, None), (USER, user)), both),
            (((USER, user),), of_user),
            (((CLIENT_ID, client_id), (USER, None)), both),
            (((CLIENT_ID, None), (USER, None)), both),
            (((USER, None),), of_user),
            (((CLIENT_ID, client_id),), of_client),
            (((CLIENT_ID, None),), of_client),
        )
        for entity, bucket in levels:
            limit = self._quotas.get(entity, {}).get(key)
            if limit is not None:
                return Bound(bucket, limit)
        return None


THROTTLE_MS_MAX = 2**31 - 1
"""The longest throttle time that a response can name."""


def _throttle_ms(seconds: float) -> int:
    """The throttle time of so many seconds; 0 if they are not positive, and THROTTLE_MS_MAX of infinitely many.

    A quota that is not a whole number may be as small as any float: the time until a rate is that low has no bound.
    """
    return round(min(seconds * 1000, THROTTLE_MS_MAX)) if seconds > 0 else 0


class Rate:
    """An amount by time, in samples. The amount of the last ``SAMPLES`` seconds counts."""

    __slots__ = ("_level", "_samples", "_total", "throttled_until", "used_at")

    def __init__(self) -> None:
        self._samples: list[list[float]] = []
        """Of each: when it began, when it was last added to, its amount; the oldest first."""
        self._total = 0.0
        """Their amounts together."""
        self._level = 0.0
        """Of the leaky bucket, at ``used_at``."""
        self.throttled_until = 0.0
        self.used_at = 0.0

    def add(self, amount: float, limit: float, now: float) -> None:
        """Count an amount; a negative one takes back. ``limit`` is what the leaky bucket loses in a second."""
        self._forget(now)
        samples = self._samples
        self._level = max(0.0, self._level - (now - self.used_at) * limit) + amount
        self.used_at = now
        self._total += amount
        if not samples:
            samples.append([now, now, amount])
            return
        newest = samples[-1]
        age = now - newest[0]
        if age >= SAMPLE_S:
            newest = [now - age % SAMPLE_S, now, 0.0]
            samples.append(newest)
        newest[1] = now
        newest[2] += amount

    def window_s(self, now: float) -> float:
        """Time that the rate is an average over."""
        self._forget(now)
        elapsed = now - self._samples[0][0] if self._samples else 0.0
        missing = SAMPLES - 1 - int(elapsed / SAMPLE_S)
        return elapsed + max(0, missing) * SAMPLE_S

    def measure(self, now: float) -> float:
        """Amount a second."""
        window_s = self.window_s(now)
        return self._total / window_s

    def throttle_ms(self, limit: float, now: float) -> int:
        """Milliseconds without a request after which the rate is the limit, and the leaky bucket has room; 0: both are
        so already.
        """
        window_s = self.window_s(now)
        of_rate_s = (self._total / window_s - limit) / limit * window_s
        of_bucket_s = (self._level - (now - self.used_at) * limit) / limit - (SAMPLES - 1) * SAMPLE_S
        return _throttle_ms(max(of_bucket_s, of_rate_s))

    def _forget(self, now: float) -> None:
        samples = self._samples
        gone = 0
        for each in samples:
            if now - each[1] < SAMPLES * SAMPLE_S:
                break
            gone += 1
        if gone:
            del samples[:gone]
            # Summed again, so that errors of rounding do not add up.
            self._total = sum(each[2] for each in samples)


class Tokens:
    """A bucket of permits that refills at the quota's rate (Kafka's TokenBucket). It begins full, and may be overdrawn
    by the request that empties it.
    """

    __slots__ = ("_at", "_tokens")

    def __init__(self, limit: float, now: float) -> None:
        self._tokens = self._burst(limit)
        self._at = now

    @staticmethod
    def _burst(limit: float) -> float:
        return limit * SAMPLES * SAMPLE_S

    def left(self, limit: float, now: float) -> float:
        """Permits; negative: overdrawn."""
        self._tokens = min(self._burst(limit), self._tokens + (now - self._at) * limit)
        self._at = now
        return self._tokens

    def take(self, permits: float, limit: float, now: float) -> None:
        """Use permits, whether they are there or not."""
        self._tokens = self.left(limit, now) - permits


class Quotas:
    """The rates of one broker's clients, and the throttling that follows from them."""

    def __init__(self, index: QuotaIndex) -> None:
        self.index = index
        """Replaced when quotas are altered; rates stay."""
        self._rates: dict[Bucket, Rate] = {}
        """The least recently used first."""
        self._tokens: dict[Bucket, Tokens] = {}
        """Of MUTATION; the least recently used first."""

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self._rates)

    def count(self, key: str, user: str, client_id: str, amount: float, now: float) -> int:
        """Count what a request has used, and return the milliseconds that its client is throttled.

        ``amount`` is bytes, or seconds of the loop times 100. Throttling by REQUEST is at most one sample long, as in
        Kafka; throttling by bytes lasts until the rate is the limit again.
        """
        bound = self.index.bound(key, user, client_id)
        if bound is None:
            return 0
        rate = self._rate_of(bound.bucket, now)
        rate.add(amount, bound.limit, now)
        throttle_ms = rate.throttle_ms(bound.limit, now)
        if key == REQUEST:
            throttle_ms = min(throttle_ms, round(SAMPLE_S * 1000))
        if throttle_ms:
            rate.throttled_until = max(rate.throttled_until, now + throttle_ms / 1000)
        return throttle_ms

    def mutate(self, user: str, client_id: str, partitions: int, now: float, *, strict: bool) -> int:
        """Count partitions that a client creates or deletes, and return the milliseconds that it is throttled.

        ``strict``: if it is throttled, the partitions were refused, and do not count (KIP-599).
        """
        bound = self.index.bound(MUTATION, user, client_id)
        if bound is None:
            return 0
        tokens = self._tokens.pop(bound.bucket, None)
        if tokens is None:
            while len(self._tokens) >= KNOWN_MAX:
                del self._tokens[next(iter(self._tokens))]
            tokens = Tokens(bound.limit, now)
        self._tokens[bound.bucket] = tokens
        left = tokens.left(bound.limit, now)
        if not strict or left >= 0:
            tokens.take(partitions, bound.limit, now)
            left = 0.0 if strict else tokens.left(bound.limit, now)
        return _throttle_ms(-left / bound.limit)

    def take_back(self, key: str, user: str, client_id: str, amount: float, now: float) -> None:
        """The response that was counted is not sent."""
        bound = self.index.bound(key, user, client_id)
        if bound is not None and bound.bucket in self._rates:
            self._rates[bound.bucket].add(-amount, bound.limit, now)

    def burst_bytes(self, key: str, user: str, client_id: str) -> int | None:
        """Bytes that a client can use at once without exceeding its quota; None: no quota applies."""
        bound = self.index.bound(key, user, client_id)
        return None if bound is None else max(1, int(bound.limit * (SAMPLES - 1) * SAMPLE_S))

    def throttled_ms(self, keys: Iterable[str], user: str, client_id: str, now: float) -> int:
        """Milliseconds that the client is still throttled by one of these quotas."""
        until = now
        for key in keys:
            bound = self.index.bound(key, user, client_id)
            rate = None if bound is None else self._rates.get(bound.bucket)
            if rate is not None:
                until = max(until, rate.throttled_until)
        return round((until - now) * 1000)

    def _rate_of(self, bucket: Bucket, now: float) -> Rate:
        rates = self._rates
        rate = rates.pop(bucket, None)
        if rate is None:
            rate = Rate()
            while rates:
                oldest = next(iter(rates))
                if len(rates) < KNOWN_MAX and now - rates[oldest].used_at < FORGOTTEN_AFTER_S:
                    break
                del rates[oldest]
        rates[bucket] = rate
        return rate


class ConnectionRates:
    """How fast addresses open connections at one broker (KIP-612)."""

    def __init__(self) -> None:
        self.index: QuotaIndex | None = None
        """None: no address has a quota."""
        self._rates: dict[str, Rate] = {}
        """By address, the least recently used first."""

    def use(self, index: QuotaIndex) -> None:
        """Use these quotas. Rates stay as long as there is a quota at all."""
        self.index = index if index.limits_connections else None
        if self.index is None:
            self._rates.clear()

    def opened(self, ip: str, now: float) -> int:
        """Count a connection; return after how many milliseconds it must be closed, or 0: it may stay.

        One that must be closed does not count. As in Kafka it is at most one sample.
        """
        if self.index is None:
            return 0
        limit = self.index.connection_rate(ip)
        if limit is None:
            return 0
        rate = self._rates.pop(ip, None)
        if rate is None:
            while len(self._rates) >= KNOWN_MAX:
                del self._rates[next(iter(self._rates))]
            rate = Rate()
        self._rates[ip] = rate
        rate.add(1.0, limit, now)
        throttle_ms = min(rate.throttle_ms(limit, now), round(SAMPLE_S * 1000))
        if throttle_ms:
            rate.add(-1.0, limit, now)
        return throttle_ms
