"""Settings that every test shares.

Hypothesis draws the same examples on every run: a pull request must not fail by luck. `HYPOTHESIS_PROFILE=explore`
draws new ones, and many more, for a long look. `again` draws fewer, where tests run a second time on the compiled rules.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from tests import left_out, workers

# Planted bugs and monkeypatches need the Python sources. The first module of the rules decides for this process; brokers and
# commands that tests start as processes of their own run the compiled rules, as users do, where they are built.
if "MINIKAFKA_PURE" not in os.environ:
    os.environ["MINIKAFKA_PURE"] = "1"
    importlib.import_module("minikafka.types")
    del os.environ["MINIKAFKA_PURE"]

# Until the tests are collected: what is imported stays, and to look through it again and again takes a tenth of the time.
gc.disable()

# A shell starts what runs in its background with SIGINT ignored, and all child processes would ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("again", settings.get_profile("ci"), max_examples=20)
settings.register_profile("explore", deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks that spread the tests over workers, and those that report what is left out."""
    for module in (workers, left_out):
        config.pluginmanager.register(module)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end. The simulator looks for lost tasks after every run, and need
    not look through all that.
    """
    # With its first example Hypothesis stores a random generator, and warns if the garbage collector finds no object
    # that refers to it. From Python 3.14 on that object is among the frozen ones, so an example is drawn before.
    given(strategies.none())(lambda _: None)()
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file of tests leaves behind (reports, caches, modules) stays, too. A simulation collects garbage at its
    end: without this, each of them would look through the remains of all files before.
    """
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
