"""Where records go: the same key lands where Kafka puts it (S26)."""

from __future__ import annotations

from random import Random

import pytest
from aiokafka.partitioner import murmur2 as another_murmur2
from hypothesis import given
from hypothesis import strategies as st

from minikafka.client.partitioner import KeyHashes, choose_sticky, murmur2, murmur2_in_steps, partition_of_key


@pytest.mark.parametrize(
    "data, expected", [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107), (b"", 275646681)]
)
def test_murmur2_gives_the_published_values(data: bytes, expected: int):
    """S26: the vectors of KAFKA-FACTS 6; another value would send keys elsewhere than Kafka's clients do."""
    assert murmur2(data) == expected


@given(st.binary(max_size=200), st.integers(4, 50))
def test_murmur2_in_steps_is_murmur2(data: bytes, step_size: int):
    """A step for each ``step_size`` bytes, rounded down to whole words, and one for the end."""
    steps = list(murmur2_in_steps(data, step_size))
    assert steps[-1] == murmur2(data)
    assert len(steps) == 1 + -(-(len(data) & ~3) // (step_size & ~3))


@given(st.binary(max_size=64))
def test_murmur2_agrees_with_an_independent_implementation(data: bytes):
    """S26: every length of tail and every byte, sign bits included."""
    assert murmur2(data) & 0xFFFFFFFF == another_murmur2(data) & 0xFFFFFFFF


@given(st.binary(max_size=16), st.integers(1, 50))
def test_a_key_has_one_partition_in_range(key: bytes, count: int):
    """S26: deterministic, in range, and the remembered hash is the same; an empty key is a key."""
    hashes = KeyHashes()
    assert partition_of_key(key, count) == hashes(key) % count == hashes(key) % count
    assert 0 <= partition_of_key(key, count) < count


def test_the_sticky_partition_changes_and_prefers_short_queues():
    """KIP-794: after batch.size bytes another partition is chosen, weighted by inverse queue length."""
    random = Random(1)
    chosen = [choose_sticky(random, [0, 1, 2], [0, 9, 9], current=1) for _ in range(500)]
    assert 1 not in chosen
    assert chosen.count(0) > 4 * chosen.count(2) > 0


def test_a_single_partition_is_always_chosen():
    """KIP-480: with one candidate there is nothing to change to, however long its queue."""
    assert choose_sticky(Random(1), [3], [7], current=3) == 3


def test_equally_full_queues_are_chosen_evenly():
    """KIP-794: without a difference in load the choice is uniform over the others."""
    random = Random(2)
    chosen = [choose_sticky(random, [0, 1, 2], [5, 5, 5], current=0) for _ in range(1000)]
    assert 400 < chosen.count(1) < 600
    assert 0 not in chosen
