"""Random histories of small parts, by name: a seed is a history, and one that fails raises (CI, and soak for longer).

They meet what whole clusters meet too rarely: each step strikes just this part. A failure is replayed with
``python -m tests.sim.histories NAME SEED``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final

from tests.kafka.connection_histories import ConnectionHistory
from tests.rules.compacted_replicas import CompactedReplicas
from tests.rules.consumer_histories import ConsumerHistory
from tests.rules.group_histories import GroupHistory
from tests.rules.offset_histories import OffsetHistory
from tests.rules.producer_replicas import STEPS as PRODUCER_STEPS
from tests.rules.producer_replicas import ProducerReplicas
from tests.rules.test_migrating_lives import migrated
from tests.rules.test_transaction_machine import walked
from tests.rules.transaction_histories import TransactionHistory
from tests.sim import reassignment_histories
from tests.sim.directory_histories import DirectoryHistory
from tests.sim.fetch_histories import FetchHistory
from tests.sim.grounds import LOG_STEPS
from tests.sim.log_histories import LogHistory
from tests.sim.voter_histories import VoterHistory

HISTORIES: Final[Mapping[str, tuple[Callable[[int], object], int]]] = {
    "log": (lambda seed: LogHistory(seed).play(LOG_STEPS), 200),
    "compacted-replicas": (lambda seed: CompactedReplicas(seed).play(80), 60),
    "producer-replicas": (lambda seed: ProducerReplicas(seed).play(PRODUCER_STEPS), 25),
    "transactions": (walked, 20),
    "data-directory": (lambda seed: DirectoryHistory(seed).play(100), 100),
    "deleted-segments": (lambda seed: DirectoryHistory(seed, deletes=True).play(60), 40),
    "voter-files": (lambda seed: VoterHistory(seed).play(100), 80),
    "transactional-id": (lambda seed: TransactionHistory(seed).play(250), 120),
    "fetches": (lambda seed: FetchHistory(seed).play(60), 12),
    "reassignments": (reassignment_histories.play, 20),
    "classic-group": (lambda seed: GroupHistory(seed).play(250), 100),
    "connection": (lambda seed: ConnectionHistory(seed).play(120), 60),
    "consumer-group": (lambda seed: ConsumerHistory(seed).play(250), 60),
    "migrating-group": (migrated, 30),
    "offsets": (lambda seed: OffsetHistory(seed).play(150), 150),
}
"""What plays a seed, and how many of them CI plays: some seconds of each."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.histories", description=__doc__)
    parser.add_argument("name", choices=HISTORIES)
    parser.add_argument("seed", type=int, help="the first one")
    parser.add_argument("--count", type=int, default=1, help="seeds to play")
    options = parser.parse_args()
    play, _ = HISTORIES[options.name]
    for seed in range(options.seed, options.seed + options.count):
        try:
            play(seed)
        except Exception as error:
            error.add_note(f"python -m tests.sim.histories {options.name} {seed}")
            raise


if __name__ == "__main__":
    main()
