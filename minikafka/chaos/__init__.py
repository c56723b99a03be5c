"""Chaos: faults on a running cluster under load, from a text file, and a verdict at the end.

A *scenario* (``scenarios/*.toml``, docs/chaos-scenarios.md) says what cluster, what load, which faults, and what may
come of it. A *target* carries out its faults: ``simulator`` (virtual time, one process), ``processes`` (brokers of this
machine), ``netns``, ``compose``. The same file plays on each, or the target names the fault that it cannot make.

Rules for this package:

1. What a scenario means is decided without a target: :mod:`timeline` turns it and a seed into strikes, and the same
   seed makes the same choices on every target.
2. A target carries out and puts right; it decides nothing and judges nothing.
3. Every run ends in a verdict from the history checker and a comparison of the replicas; a run without one failed.
4. Whatever a run started is gone when it ends, however it ends.

Read minikafka/faults.py, scenario.py, reading.py, target.py, then runner.py.
"""
