"""Shrinking: the result still fails, and nothing can be removed from it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.simulation.scenarios.feature_set import Feature
from replicas.simulation.scenarios.random_scenario import random_scenario
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.scenarios.shrink import ddmin, shrink
from spe.config import load_data
from spe.plan.directory import COORDINATOR
from spe.plan.nodes import Policy
from spe.query.operators.aggregate import AggregateSpec
from spe.query.operators.join import JoinSpec
from spe.stream.times import SECOND


@given(st.sets(st.integers(0, 39)))
def test_ddmin_finds_exactly_the_needed_items(needed: set[int]) -> None:
    assert ddmin(range(40), lambda some: needed <= set(some)) == sorted(needed)


def test_ddmin_finds_a_minimal_cause_among_alternatives() -> None:
    """Either 3 and 30, or 17 alone; no item of the result can be removed."""

    def fails(some: Sequence[int]) -> bool:
        return {3, 30} <= set(some) or 17 in some

    found = ddmin(range(40), fails)
    assert fails(found)
    assert not any(fails([i for i in found if i != one]) for one in found)


def cuts(scenario: Scenario) -> bool:
    return any(f.kind == "cut" for f in scenario.faults)


SEEDS = [s for s in range(40) if cuts(random_scenario(s))][:12]


@pytest.mark.parametrize("seed", SEEDS)
def test_shrinking_leaves_one_fault_and_simplest_configuration(seed: int) -> None:
    shrunk = shrink(random_scenario(seed), cuts, budget=400).scenario
    plan, directory = load_data(shrunk.config)
    assert len(plan.sources) <= 2
    (fault,) = shrunk.faults
    named = {*fault.first, *fault.second}
    assert all(len(nodes) == 1 or set(nodes) <= named for nodes in directory.placement.values())
    assert all(u.partitions == 1 for u in plan.units)
    assert "policy" not in shrunk.config["defaults"]
    assert len(directory.clients) == 1 or "client:second" in named
    who_needs_them = {COORDINATOR, *(n for s in directory.standbys.values() for n in s.nodes)}
    assert not directory.standbys or named & who_needs_them


@pytest.mark.parametrize("kind", [AggregateSpec, JoinSpec])
def test_needed_faults_stay(kind: type) -> None:
    def fails(scenario: Scenario) -> bool:
        plan, directory = load_data(scenario.config)
        has = any(isinstance(o.spec, kind) for o in plan.query.operators)
        return has and any(n.during_failure is Policy.DELAY for n in directory.nodes.values())

    seed = next(s for s in range(200) if fails(random_scenario(s)))
    shrunk = shrink(random_scenario(seed), fails, budget=400).scenario
    assert fails(shrunk)
    assert shrunk.faults == ()


def test_joins_are_removed_singly_with_their_faults() -> None:
    made = (random_scenario(seed, frozenset({Feature.JOINING})) for seed in range(100))
    scenario = next(s for s in made if len(s.newcomers()) == 2 and any("new2" in f.first for f in s.faults))

    def fails(candidate: Scenario) -> bool:
        assert {n for f in candidate.faults for n in f.first if n.startswith("new")} <= candidate.newcomers().keys()
        return any(entry["do"] == "move" and entry["node"] == "new1" for entry in candidate.joins())

    shrunk = shrink(scenario, fails, budget=400).scenario
    assert shrunk.faults == ()
    (left,) = shrunk.joins()
    assert left.keys() == {"at_us", "do", "node", "draw"}


@pytest.mark.parametrize("feature", [Feature.REJECTED, Feature.BALANCING])
def test_nothing_is_left_of_a_feature_that_no_failure_needs(feature: Feature) -> None:
    scenario = random_scenario(3, frozenset({feature}))
    shrunk = shrink(scenario, lambda _: True, budget=1000).scenario
    assert shrunk.options == {}
    assert not shrunk.config.get("coordinator")
    assert list(map(list, shrunk.config["query"].values())) == [["map"]]


def test_rejecting_operators_and_needed_loads_stay() -> None:
    def fails(scenario: Scenario) -> bool:
        rejects = any("on_late" in body for entry in scenario.config["query"].values() for body in entry.values())
        return rejects and any(entry["at_us"] for entry in scenario.row_ns())

    features = frozenset({Feature.REJECTED, Feature.BALANCING})
    scenario = next(s for s in (random_scenario(seed, features) for seed in range(100)) if fails(s))
    shrunk = shrink(scenario, fails, budget=1000).scenario
    assert len(shrunk.row_ns()) == 1
    kinds = [kind for entry in shrunk.config["query"].values() for kind in entry]
    assert sorted(set(kinds)) == ["aggregate", "custom", "map"]
    assert "on_error" not in str(shrunk.config["query"])


def test_a_run_ends_soon_after_its_last_fault() -> None:
    shrunk = shrink(random_scenario(SEEDS[0]), cuts, budget=400).scenario
    (fault,) = shrunk.faults
    assert shrunk.heal_us <= fault.at_us + (fault.for_us or 0) + 2 * SECOND


def test_shrinking_keeps_to_its_budget() -> None:
    runs = 0

    def fails(_: Scenario) -> bool:
        nonlocal runs
        runs += 1
        return True

    assert shrink(random_scenario(SEEDS[0]), fails, budget=7).runs == runs == 7


def test_a_users_configuration_is_not_changed() -> None:
    scenario = random_scenario(SEEDS[0])
    shrunk = shrink(scenario, cuts, faults_only=True).scenario
    assert shrunk.config == scenario.config
    assert len(shrunk.faults) == 1
