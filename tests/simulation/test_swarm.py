"""Random configurations under random faults: fixed seeds, and a new range of seeds in each run.

Together with ``seldom.py`` they cover every reachable cell of the coverage tables.

SWARM=1000:2000 pytest tests/simulation/test_swarm.py      these, instead of a new range
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count, islice

import pytest

from consistency.checking.counters import Counters
from replicas.cli.campaigns.campaign import Sums, play_all
from replicas.cli.campaigns.campaign_report import sums_text
from replicas.cli.campaigns.simulate import failure_text, read_seeds
from replicas.cli.campaigns.steering import Steering
from replicas.simulation.scenarios.random_scenario import random_scenario
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from tests.simulation.seldom import seldom
from tests.soak.simulation import COMMAND
from tests.support.reachable import REACHABLE_EVENTS, REACHABLE_FAULTS, REACHABLE_RUNS, empty_cells
from tests.support.rows_compared import judge_rows

CANARIES = range(8)
#: Seeds of the short test, and of the long one, which are enough for the coverage tables.
FEW, MANY = 6, 70
#: CI plays the same seeds each time, so that it judges the change and not the draw.
JUDGED_FROM, JUDGED_MANY_FROM = 1_796_251_000, 1_796_246_402
#: Replicas, standbys and subscriptions, times seconds: the half of all scenarios that is larger takes three quarters
#: of the time, and is left to ``make soak``.
SIZE_MAX = 350


def size(scenario: Scenario) -> float:
    """Estimated cost of a run."""
    plan, directory = scenario.deployed()
    ids = [id for node in directory.nodes for id in directory.replicas_on(node)]
    read = [channel for id in ids for channel in plan.unit[id.unit].channels_in(id.partition)]
    standbys = sum(len(directory.standbys_on(node)) for node in directory.nodes)
    subscriptions = sum(len(directory.producer_addresses(plan, channel)) for channel in read)
    return (len(ids) + standbys + subscriptions) * scenario.heal_us / 1e6


def fresh_seeds(wanted: int, judged_from: int) -> list[int]:
    """Seeds from the environment; otherwise new ones by the time of day, of scenarios that are not large."""
    if given := os.environ.get("SWARM"):
        return list(read_seeds(given))
    first = judged_from if os.environ.get("CI") else 1_000_000 + int(time.time())
    small = (seed for seed in count(first) if size(random_scenario(seed)) <= SIZE_MAX)
    return list(islice(small, wanted))


def play(seeds: list[int], record_property: Callable[[str, object], None]) -> Sums:
    sums = Sums()
    processes = 1 if "PYTEST_XDIST_WORKER" in os.environ else None  # other processes use the other cores
    steering = Steering()
    for result in map(steering.learn, play_all(steering.make, seeds, processes=processes, also=judge_rows)):
        sums.add(result)
    record_property(f"SWARM={seeds[0]}:{seeds[-1] + 1}", sums_text(sums))
    assert not sums.failed, "\n".join(failure_text(failed, COMMAND) for failed in sums.failed)
    return sums


def counters_of_seldom() -> Counters:
    """Counters of the hand-made scenarios, which must hold as well."""
    met = Counters()
    for name, scenario in seldom().items():
        outcome = simulate(scenario)
        assert outcome.findings == [], name
        assert outcome.skipped == [], name
        met.merge(outcome.counters)
    return met


def test_random_runs_keep_every_promise(record_property: Callable[[str, object], None]) -> None:
    sums = play(fresh_seeds(FEW, JUDGED_FROM), record_property)
    assert sums.faults.total() > 4 * FEW


@pytest.mark.long
def test_many_random_runs_meet_everything_that_can_happen(record_property: Callable[[str, object], None]) -> None:
    seeds = fresh_seeds(MANY, JUDGED_MANY_FROM)
    sums = play([*CANARIES, *seeds], record_property)
    amounts = sums.counters.amounts
    assert sums.faults.total() > 4 * len(seeds)
    assert amounts["p1 stable_us"] + amounts["p1 tentative_us"] > len(seeds) * 1e6
    assert amounts["undos"] > 0
    assert amounts["switches"] > 0
    assert amounts["reconciliations"] > 0
    met = counters_of_seldom()
    met.merge(sums.counters)
    assert empty_cells(met.events, REACHABLE_EVENTS) == []
    assert empty_cells(met.faults, REACHABLE_FAULTS) == []
    assert [name for name in sorted(REACHABLE_RUNS) if not met.amounts[name]] == []
