"""Random configurations under random faults: seeds that never change, and a new range of seeds in each run.

SWARM=1000:2000 pytest tests/simulation/test_swarm.py      these, instead of a new range
"""

from __future__ import annotations

import os
import time

import pytest

from replicas.simulation.swarm import random_scenario
from spe.cli.campaign import Sums, play_all
from spe.cli.simulate import failure_text, read_seeds
from spe.cli.sums import sums_text

CANARIES = range(8)
FRESH = 100
#: Where CI judges a change it plays the same seeds each time: the change is judged, and not the draw.
JUDGED = range(1_796_246_402, 1_796_246_472)


def fresh_seeds() -> range:
    """As the environment says; else new ones, by the time of day."""
    if given := os.environ.get("SWARM"):
        return read_seeds(given)
    if os.environ.get("CI"):
        return JUDGED
    first = 1_000_000 + int(time.time())
    return range(first, first + FRESH)


def test_whatever_happens_every_promise_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = fresh_seeds()
    with capsys.disabled():
        print(f"\nSWARM={seeds.start}:{seeds.stop}")
    sums = Sums()
    for result in play_all(random_scenario, [*CANARIES, *seeds]):
        sums.add(result)
    print(sums_text(sums))
    again = "\nagain, shrunk and written: spe simulate --seeds {0}:{1}"
    assert not sums.failed, "\n".join(failure_text(r) + again.format(r.seed, r.seed + 1) for r in sums.failed)
    amounts = sums.counters.amounts
    assert sums.faults.total() > 4 * len(seeds)
    assert amounts["p1 stable_us"] + amounts["p1 tentative_us"] > len(seeds) * 1e6
    assert amounts["undos"] > 0
    assert amounts["switches"] > 0
    assert amounts["reconciliations"] > 0
