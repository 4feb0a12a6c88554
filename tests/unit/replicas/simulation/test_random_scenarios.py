"""Scenarios drawn from seeds: all can be run, every kind occurs, and a seed always gives the same one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from consistency.faults.kind import Runs
from consistency.faults.kinds import KINDS
from replicas.simulation.scenarios import random_faults
from replicas.simulation.scenarios.feature_set import Feature
from replicas.simulation.scenarios.patterns import Pattern, patterns_of
from replicas.simulation.scenarios.random_scenario import random_scenario
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.scenarios.topologies import MOST_REPLICAS
from spe.config import load_data
from spe.plan.deploy import Deployed
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Partitioning, Plan

SEEDS = range(600)


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    return [random_scenario(seed) for seed in SEEDS]


@pytest.fixture(scope="module")
def plans(deployed: list[Deployed]) -> list[Plan]:
    return [one.plan for one in deployed]


@pytest.fixture(scope="module")
def deployed(scenarios: list[Scenario]) -> list[Deployed]:
    return [load_data(s.config) for s in scenarios]


@pytest.fixture(scope="module")
def directories(deployed: list[Deployed]) -> list[Directory]:
    return [one.directory for one in deployed]


def test_every_kind_of_operator_window_join_and_policy_is_drawn(scenarios: list[Scenario]) -> None:
    drawn: Counter[str] = Counter()
    for scenario in scenarios:
        defaults = scenario.config["defaults"]
        drawn.update([*defaults["policy"].values(), defaults["reconcile"], str(defaults.get("checkpoint"))])
        drawn.update(kind for source in scenario.config["sources"].values() for kind in source["from"]["generator"])
        for entry in scenario.config["query"].values():
            ((operator, body),) = entry.items()
            drawn.update(["skip"] if isinstance(body, dict) and body.get("on_error") == "skip" else [])
            drawn.update([operator, *body.get("window", {}), *(["within"] if "within" in body else [])])
            drawn.update(call.partition("(")[0] for call in body.get("compute", {}).values() if operator == "aggregate")
            drawn.update([body["kind"]] if operator == "join" else [])
    expected = {
        "filter",
        "map",
        "union",
        "aggregate",
        "join",
        "topk",
        "custom",
        "tumbling",
        "sliding",
        "count",
        "within",
        "skip",
    }
    expected |= {"inner", "left", "right", "full", "sum", "avg", "min", "max", "first", "last"}
    expected |= {"process", "delay", "suspend", "checkpoint", "undo", "burst", "None"}
    assert expected <= {kind for kind, n in drawn.items() if n >= 5}


def test_topologies_are_of_every_size_and_none_is_too_large(plans: list[Plan], directories: list[Directory]) -> None:
    replicas = [sum(map(len, directory.placement.values())) for directory in directories]
    assert max(replicas) <= MOST_REPLICAS
    assert min(replicas) == 1
    assert {len({u.fragment for u in plan.units}) for plan in plans} >= {1, 2, 3, 4}
    assert {u.partitions for plan in plans for u in plan.units} >= {1, 2, 3, 4}
    assert {len(plan.sources) for plan in plans} == {1, 2, 3}
    assert {len(plan.query.outputs) for plan in plans} >= {1, 2, 3}
    assert {len(nodes) for directory in directories for nodes in directory.placement.values()} == {1, 2, 3}


def test_faults_name_the_plans_processes_and_fit_the_time(scenarios: list[Scenario]) -> None:
    for scenario in scenarios:
        known = {*scenario.processes(), "all"}
        if not scenario.joins():
            assert len(scenario.faults) <= max(random_faults.COUNTS) + 1  # plus a dead node
        for fault in scenario.faults:
            assert 0 <= fault.at_us < scenario.heal_us
            named = {n for n in (*fault.first, *fault.second) if not n.startswith(("reads:", "state:"))}
            assert named <= known


def test_every_fault_kind_is_drawn_and_each_seed_omits_some(scenarios: list[Scenario]) -> None:
    kinds = [{fault.kind for fault in scenario.faults} for scenario in scenarios]
    assert set().union(*kinds) == set(KINDS)
    assert sum(len(of_one) < len(KINDS) for of_one in kinds) > len(SEEDS) * 3 // 4


def test_every_pattern_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: Counter[str] = Counter()

    def counted(name: str, pattern: Pattern) -> Pattern:
        def draw(*args: Any) -> Iterable[Any]:
            drawn[name] += 1
            return pattern(*args)

        return draw

    def all_counted(runs: Runs) -> dict[str, Pattern]:
        return {name: counted(name, pattern) for name, pattern in patterns_of(runs).items()}

    monkeypatch.setattr(random_faults, "patterns_of", all_counted)
    for seed in SEEDS:
        random_scenario(seed)
    assert {name for name, n in drawn.items() if n >= 3} == {name for runs in Runs for name in patterns_of(runs)}


def test_with_standbys_the_coordinator_fails_as_well(scenarios: list[Scenario], directories: list[Directory]) -> None:
    """It is killed, loses power, has a full disk, is frozen, and is cut off from some processes."""
    met: Counter[str] = Counter()
    for scenario, directory in zip(scenarios, directories, strict=True):
        of_it = [f for f in scenario.faults if COORDINATOR in (*f.first, *f.second)]
        assert directory.coordinated or not of_it
        met.update(str(f.kind) for f in of_it)
    assert {"kill", "power", "restart", "full", "freeze", "cut"} <= set(met)


def test_units_read_each_other_with_every_partitioning(plans: list[Plan]) -> None:
    met: Counter[Partitioning] = Counter()
    for plan in plans:
        divided = [(i, u) for u in plan.units for i in u.inputs if max(i.producers, u.partitions) > 1]
        met.update({i.partitioning(u.partitions) for i, u in divided if i.stream not in plan.sources})
    assert {kind for kind, n in met.items() if n >= 5} == set(Partitioning)


def test_where_steps_are_many_and_slow_state_costs_little() -> None:
    """Else a replica that was away would never catch up, and nothing would be wrong with it."""
    made = [random_scenario(seed, frozenset({Feature.COSTLY_STATE})) for seed in range(80)]
    small = [one for one in made if "turn_us" in one.options]
    assert len(small) > 5
    assert {one.state_ns() for one in small} == {20_000}
    assert len({one.state_ns() for one in made}) == 3


def test_a_seed_gives_the_same_scenario_in_every_process() -> None:
    program = (
        "from replicas.simulation.scenarios.random_scenario import random_scenario; print(random_scenario(7).to_data())"
    )
    texts = {
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": h, "PYTHONPATH": ":".join(sys.path)},
                       capture_output=True, text=True, check=True).stdout
        for h in "12"
    }  # fmt: skip
    assert texts == {f"{random_scenario(7).to_data()}\n"}


@pytest.mark.parametrize("feature", [None, Feature.JOINING, Feature.REJECTED, Feature.BALANCING])
@pytest.mark.parametrize("seed", range(5))
def test_a_scenario_survives_json(seed: int, feature: Feature | None) -> None:
    scenario = random_scenario(seed, frozenset(filter(None, [feature])))
    data: dict[str, Any] = json.loads(scenario.dump())
    assert Scenario.from_data(data) == scenario
