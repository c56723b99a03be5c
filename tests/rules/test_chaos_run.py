"""A chaos run that cannot begin (S38): it says so, and leaves neither brokers nor open files."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from minikafka.chaos import runner
from minikafka.chaos.load import Ledger, Work
from minikafka.chaos.outcome import Figures
from minikafka.chaos.processes import ProcessTarget
from minikafka.chaos.reading import find, read
from minikafka.chaos.runner import Run, play
from minikafka.chaos.scenario import Expectation, Hit, Load, Strike
from minikafka.chaos.watch import ClusterState
from minikafka.errors import InvalidConfig, WorldError
from minikafka.hosting.processes import BrokerProcess
from minikafka.types import TopicPartition


class InSync:
    """A watch that sees nothing wrong."""

    state = ClusterState()

    async def until(self, condition: object, timeout_s: float) -> float:
        return 0.0


class Unhurt(ProcessTarget):
    """Its brokers are not there, and nobody misses them."""

    async def heal(self) -> None:
        """Nothing to do."""

    def died(self) -> dict[int, str]:
        return {}


class NeverReady(ProcessTarget):
    """Its brokers do not start."""

    closed = False

    async def start(self) -> None:
        raise WorldError("broker 1 is not ready")

    async def close(self) -> None:
        self.closed = True
        await super().close()


async def test_who_is_about_to_be_started_has_not_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A look between the end of a kill and the start of the broker is no obituary: it would be a false `damaged`."""
    target = ProcessTarget(read(find("kill-loop")), tmp_path)
    hit = Hit(strike=Strike(number=1, at_s=0.0, what="kill", whom="n1"), nodes=(1,))
    go_on = asyncio.Event()

    async def put_right(_: int) -> None:
        await go_on.wait()

    monkeypatch.setattr(target._fleet, "_start", put_right)
    await target.begin(hit)
    assert sorted(target.died()) == [2, 3]  # nobody has started any of them
    ending = asyncio.ensure_future(target.end(hit))
    for _ in range(3):
        await asyncio.sleep(0)
        assert sorted(target.died()) == [2, 3]
    go_on.set()
    await ending
    assert sorted(target.died()) == [1, 2, 3]
    await target.close()


@pytest.mark.parametrize("waiting", [0, 1])
async def test_a_partition_that_takes_nothing_any_more_is_damage(waiting: int, tmp_path: Path):
    """In sync and silent for good, with records that wait for it: no cluster that has recovered is like that."""
    scenario = replace(read(find("majority-loss")), expect=Expectation(converge_s=0.3))
    target = Unhurt(scenario, tmp_path)
    run = Run(scenario, target, seed=1, duration_s=None, folder=tmp_path, say=lambda _: None)
    run._watch = InSync()  # type: ignore[assignment]  # a stand-in
    run._figures.began(1, "kill n1", 0.0)
    run._work.waiting[TopicPartition("orders", 1)] = waiting
    outcome = await run._peace()
    assert ("orders-1 acknowledged nothing" in outcome.missing) == bool(waiting)
    run._ledger.close()
    await target.close()


class Slow(ProcessTarget):
    """A fault of a thread's making: it takes a while, whoever waits for it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.in_force = False
        self.fails_after_s: float | None = None
        self.began = asyncio.Event()

    async def begin(self, hit: Hit) -> None:
        self.began.set()
        if self.fails_after_s is not None:
            await asyncio.sleep(self.fails_after_s)
            raise WorldError("no such process")
        await asyncio.sleep(0.05)
        self.in_force = True

    async def heal(self) -> None:
        assert self.in_force, "half a fault cannot be put right"
        self.in_force = False

    def died(self) -> dict[int, str]:
        return {}


def with_one_fault_at_the_end(target: Slow, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose load ends as soon as its only fault begins."""
    run = Run(read(find("kill-loop")), target, seed=1, duration_s=None, folder=folder, say=lambda _: None)
    run._watch = InSync()  # type: ignore[assignment]  # a stand-in
    strike = Strike(number=1, at_s=0.0, what="pause", whom="n1", lasts_s=5.0)
    monkeypatch.setattr(runner, "strikes_of", lambda *_: (strike,))
    monkeypatch.setattr(run._work, "start", lambda *_: asyncio.sleep(0))
    monkeypatch.setattr(run, "_until", lambda *_: target.began.wait())
    monkeypatch.setattr(run, "_peace", target.heal)
    return run


async def test_a_fault_that_begins_when_the_load_ends_is_begun_and_put_right(tmp_path: Path, monkeypatch):
    """strace was attached by a thread whose result nobody waited for any more: the syncs stayed slow in peace."""
    target = Slow(read(find("kill-loop")), tmp_path)
    run = with_one_fault_at_the_end(target, tmp_path, monkeypatch)
    await run._play()
    assert not target.in_force
    run._ledger.close()
    await target.close()


@pytest.mark.parametrize("after_s", [0.0, 0.05])
async def test_a_fault_that_fails_when_the_load_ends_fails_the_run(tmp_path: Path, monkeypatch, after_s: float):
    """It was swallowed: nobody looked at strikes after the load, and the run counted as one with that fault."""
    target = Slow(read(find("kill-loop")), tmp_path)
    target.fails_after_s = after_s
    run = with_one_fault_at_the_end(target, tmp_path, monkeypatch)
    with pytest.raises(WorldError, match="no such process"):
        await run._play()
    run._ledger.close()
    await target.close()


async def test_a_cluster_that_does_not_start_leaves_nothing_open(tmp_path: Path):
    """S38: whatever a run ends in, its history is whole and its brokers are gone."""
    scenario = read(find("kill-loop"))
    target = NeverReady(scenario, tmp_path)
    run = Run(scenario, target, seed=1, duration_s=None, folder=tmp_path, say=lambda _: None)
    with pytest.raises(WorldError, match="broker 1 is not ready"):
        await run.run()
    assert target.closed
    # The history is whole on the disk, header and all: an open file would still hold it back, and warn when it goes.
    assert (tmp_path / "history.jsonl").read_text().startswith("{")


async def test_the_doors_are_opened_before_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first request to each broker loads code; before, it came with the first fault, which began and ended late."""
    target = ProcessTarget(read(find("storm")), tmp_path)
    asked = []

    async def start() -> None:
        """Nothing runs."""

    async def ask(method: str, address: Any, path: str, document: Any = None) -> dict[str, Any]:
        asked.append((method, path))
        return {}

    monkeypatch.setattr(target._cluster, "start", start)
    monkeypatch.setattr(target, "_ask", ask)
    await target.start()
    assert asked == [("GET", "/v1/faults")] * 3
    await target.close()


class Doors(ProcessTarget):
    """The testing doors of one broker; one answer is lost, that to the first fault that is set."""

    lost = "POST"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.faults: dict[int, Any] = {}
        self.asked = 0

    async def _ask(self, method: str, address: Any, path: str, document: Any = None) -> dict[str, Any]:
        self.asked += 1
        number = self.asked
        self.serve(number, method, path, document)
        if method == self.lost:
            self.lost = ""
            raise TimeoutError
        return {"id": number}

    def serve(self, number: int, method: str, path: str, document: Any) -> None:
        if method == "POST":
            self.faults[number] = document
        elif method == "DELETE" and path == "/v1/faults":
            self.faults.clear()
        elif method == "DELETE":
            del self.faults[int(path.rpartition("/")[2])]


class LoadingDoors(Doors):
    """Their code is loaded with the first request, which the second one overtakes; the first answer is late."""

    first: tuple[Any, ...] = ()

    def serve(self, number: int, method: str, path: str, document: Any) -> None:
        if number == 1:
            self.first, self.lost = (number, method, path, document), method
            return
        super().serve(number, method, path, document)
        if number == 2:
            super().serve(*self.first)


@pytest.mark.parametrize("doors", [Doors, LoadingDoors])
async def test_a_fault_whose_answer_was_late_is_not_set_twice(tmp_path: Path, monkeypatch, doors: type[Doors]):
    """The broker stood still for longer than it was waited for: the first of the two would never be healed."""
    target = doors(read(find("kill-loop")), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(BrokerProcess, "is_running", True)
        cut = Strike(number=7, at_s=0.0, what="cut", whom="n1")
        target._hits[7] = Hit(strike=cut, nodes=(1,), links=((1, 2),))
        await target._apply(1)
        assert list(target.faults.values()) == [{"kind": "drop", "link": "1>2"}]
        target._hits.clear()
        await target._apply(1)
        assert target.faults == {}
    await target.close()


async def test_kafkas_client_logs_again_after_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its warnings are turned off while faults are the rule, and not for what else the process does."""
    logger = logging.getLogger("aiokafka")
    monkeypatch.setattr(logger, "level", logging.INFO)
    ledger = Ledger(tmp_path / "history")
    work = Work(ledger, Figures([]), asyncio.get_running_loop().time)
    await work.start(Load(producers=()), {}, {}, {"bootstrap_servers": ""})
    assert logger.level == logging.CRITICAL
    await work.close()
    ledger.close()
    assert logger.level == logging.INFO


@pytest.mark.parametrize("left", ["history.jsonl", "report.json", "brokers", "broker-1"])
async def test_a_folder_with_an_earlier_run_is_refused(tmp_path: Path, left: str):
    """The brokers there have the earlier run's records: all of them were duplicates in the second, "damage"."""
    (tmp_path / left).mkdir()
    with pytest.raises(InvalidConfig, match=f"holds an earlier run \\({re.escape(left)}\\): choose another"):
        await play(read(find("kill-loop")), "processes", seed=1, folder=tmp_path)
