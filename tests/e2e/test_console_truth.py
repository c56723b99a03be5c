"""PAGE 7: the console shows what the replicas are, at every step of a simulated cluster that loses brokers and links."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from minikafka.broker.api.describe import handle_explain_partition
from minikafka.broker.broker import Broker
from minikafka.errors import ProtocolError
from minikafka.replication.leader import LeaderReplica
from minikafka.rest.live import partition_state
from minikafka.rest.views import Views
from minikafka.sim.cluster import SimCluster
from minikafka.testing.local_cluster import LocalCluster
from minikafka.types import NodeId
from minikafka.wire.differences import difference
from minikafka.wire.messages import ExplainPartitionRequest
from tests.e2e.console_kit import url_of, watched_tab
from tests.sim.cluster_kit import ORDERS, Client, simulated

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

STEP_COUNT = 10_000
CHUNK = 1_000
WINDOW = 30
"""Offsets below the newest that a wide page draws."""

FOLD = """async (steps) => {
    const { apply, drawPartition } = await import(document.querySelector("script[src]").src);
    window.folded ??= { state: {}, place: document.body.appendChild(document.createElement("div")) };
    const last = (lane, kind) => [...lane.querySelectorAll(`.cell.${kind}`)].at(-1)?.textContent ?? null;
    return steps.map((changes) => {
        window.folded.state = apply(window.folded.state, changes);
        if (changes.length) drawPartition(window.folded.place, window.folded.state);
        return [...document.querySelectorAll("[data-values]")].map((row) => {
            const lane = document.querySelector(`[data-replica="${row.dataset.values}"]`);
            const cells = [...row.children].slice(0, 6).map((cell) => cell.textContent);
            return [...cells, last(lane, "committed"), last(lane, "open")];
        });
    });
}"""


class Recorder:
    """The frames that a viewer of orders-0 would receive, one for each step, beside what the replicas are."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.frames: list[Any] = []
        self.truths: list[list[list[str | None]]] = []
        self._state: dict[str, Any] = {}
        self._run_until = cluster.sim.run_until

    def run_until(self, deadline: float | None = None, met: Any = None) -> bool:
        """As the world's, and look at every step."""

        def looked() -> bool:
            self._look()
            return met is not None and met()

        return self._run_until(deadline, looked)

    def _look(self) -> None:
        server = next((each for each in self._present() if each.image.partition(ORDERS) is not None), None)
        if server is None or len(self.frames) == STEP_COUNT:
            return
        image = server.image.partition(ORDERS)
        assert image is not None
        views = {each.node_id: view for each in self._present() if (view := _view(each)) is not None}
        state = partition_state(server, ORDERS, image, views)  # type: ignore[arg-type]
        self.frames.append(difference(self._state, state))
        self._state = state
        self.truths.append([self._truth(node, image.leader, image.isr, views) for node in image.replicas])

    def _present(self) -> list[Broker]:
        return [each for node, each in sorted(self.cluster.present().items()) if self.cluster.alive(node)]

    def _truth(self, node: NodeId, leader: NodeId, isr: tuple[NodeId, ...], views: Views) -> list[str | None]:
        """The row of one replica, of the objects that are the replicas themselves."""
        role = "leader" if node == leader else views[node].replica.role if _has(views, node) else "unknown"  # type: ignore[union-attr]
        end, watermark = self._ends(node) if _has(views, node) else (None, None)
        led = self.cluster.brokers[leader].partitions.get(ORDERS) if _has(views, leader) else None
        leads = None if led is None else led.role
        known = None
        if isinstance(leads, LeaderReplica):
            known = end if node == leader else leads.remotes[node].end_offset if node in leads.remotes else None
            known = None if known == -1 else known
        values = [_word(known), _word(watermark)]
        return [
            str(node),
            role,
            "yes" if node in isr else "no",
            _word(end),
            *values,
            *self._cells(end, watermark, views),
        ]

    def _ends(self, node: NodeId) -> tuple[int, int]:
        """Log end and high watermark; of a broker that has just started, those that its disk has."""
        broker = self.cluster.brokers[node]
        replica = broker.partitions.get(ORDERS)
        if replica is not None:
            return replica.log.end_offset, replica.high_watermark
        log = broker.logs.get(ORDERS)
        assert log is not None
        return log.end_offset, min(broker.logs.checkpointed_high_watermark(ORDERS), log.end_offset)

    def _cells(self, end: int | None, watermark: int | None, views: Views) -> tuple[str | None, str | None]:
        """The last solid cell and the last hatched one."""
        if end is None or watermark is None:
            return None, None
        ends = [view.replica.log_end_offset for view in views.values() if view.replica is not None]
        first = max(0, max(ends) - WINDOW)
        solid = min(end, watermark) - 1
        return (str(solid) if solid >= first else None, str(end - 1) if end > watermark and end > first else None)


def _has(views: Views, node: NodeId) -> bool:
    return node in views and views[node].replica is not None


def _word(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _view(broker: Broker) -> Any:
    request = ExplainPartitionRequest(topic=ORDERS.topic, partition=ORDERS.partition)
    try:
        return handle_explain_partition(broker.replicas, broker.partition_history, request)
    except ProtocolError:
        return None


def recorded() -> Recorder:
    """Records, dead leaders and followers, cut links and a lagging follower, until enough steps are seen."""
    with simulated(19, replica_lag_time_max_ms="2000", broker_session_timeout_ms="3000") as cluster:
        recorder = Recorder(cluster)
        cluster.sim.run_until = recorder.run_until  # type: ignore[method-assign]
        client = Client(cluster)
        cluster.create_topic("orders", partitions=1, replication_factor=3)
        while len(recorder.frames) < STEP_COUNT:
            client.send_all([b"tea"] * 10)
            leader = cluster.leader_of(ORDERS)
            follower = next(node for node in (1, 2, 3) if node != leader)
            cluster.cut(follower, leader)
            client.send_all([b"milk"] * 3)
            cluster.run_for(3)
            cluster.heal()
            cluster.settle()
            leader = cluster.leader_of(ORDERS)
            cluster.crash(leader)
            client.send_all([b"after"] * 3)
            cluster.restart(leader)
            cluster.settle()
        return recorder


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """It serves the page, and nothing else."""
    with LocalCluster(brokers=1) as running:
        yield running


@pytest.fixture
def page(browser: Browser, cluster: LocalCluster) -> Iterator[Page]:
    with watched_tab(browser, cluster) as tab:
        yield tab


def test_the_page_shows_what_the_replicas_are_at_every_step(page: Page, cluster: LocalCluster):
    """Table and lanes of 10,000 steps, folded from frames in the browser, against LEO, HW, ISR and remote LEO."""
    with ThreadPoolExecutor(1) as pool:
        recorder = pool.submit(recorded).result()
    page.goto(url_of(cluster))
    shown: list[Any] = []
    for start in range(0, STEP_COUNT, CHUNK):
        shown += page.evaluate(FOLD, recorder.frames[start : start + CHUNK])
    for number, (drawn, truth) in enumerate(zip(shown, recorder.truths, strict=True)):
        assert drawn == truth, f"step {number}"
    rows = [row for truth in recorder.truths for row in truth]
    assert {"yes", "no"} == {row[2] for row in rows}
    assert {"1", "2", "3"} >= {row[0] for row in rows if row[1] == "leader"} != {"1"}
    assert any(row[3] == "unknown" for row in rows)
    assert any(row[1] == "loading" for row in rows)
    assert any(row[3] != row[4] for row in rows if row[1] == "follower")
    assert any(row[7] is not None for row in rows)
