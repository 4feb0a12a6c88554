"""Topologies, fidelity, trees and planners against the reference vectors, and against all plans of small topologies."""

from __future__ import annotations

import time
from functools import partial
from itertools import combinations, product
from random import Random

import numpy as np
import pytest

from replicas.planning.dynamic import dynamic
from replicas.planning.exact import exact
from replicas.planning.fidelity import Running, as_masks, completeness, fidelity, losses
from replicas.planning.greedy import greedy
from replicas.planning.program import LinearProgram
from replicas.planning.search import Failure, PlanningProblem
from replicas.planning.structure import structure_aware
from replicas.planning.topology import OperatorDescription, Topology
from replicas.planning.trees import count_trees, trees
from spe.errors import ConfigError
from spe.plan.plan import Partitioning

ONE, SPLIT, MERGE, FULL = Partitioning.ONE_TO_ONE, Partitioning.SPLIT, Partitioning.MERGE, Partitioning.FULL

MERGING = Topology(
    [
        OperatorDescription("s", 4, {}, rates=[4, 3, 2, 1]),
        OperatorDescription("a", 2, {"s": MERGE}),
        OperatorDescription("z", 1, {"a": MERGE}),
    ]
)
JOINING = Topology(
    [
        OperatorDescription("l", 2, {}, rates=[3, 1]),
        OperatorDescription("r", 2, {}, rates=[2, 2]),
        OperatorDescription("j", 2, {"l": FULL, "r": FULL}, correlated=True),
        OperatorDescription("z", 1, {"j": MERGE}),
    ]
)
UNIFORM = Topology(
    [
        OperatorDescription("s", 8, {}, rates=[1] * 8),
        OperatorDescription("a", 4, {"s": MERGE}),
        OperatorDescription("b", 2, {"a": MERGE}),
        OperatorDescription("z", 1, {"b": MERGE}),
    ]
)


def random_topology(random: Random) -> Topology:
    """At most a dozen tasks, every partitioning, joins, skew."""
    specs = [
        OperatorDescription(name, n := random.choice([1, 2, 3]), {}, rates=[random.choice([1, 2, 5]) for _ in range(n)])
        for name in "ab"[: random.choice([1, 2])]
    ]
    for at in range(random.choice([1, 2])):
        tasks = random.choice([1, 2, 3])
        names = [specs[-1].name] if len(specs) == 1 or random.random() < 0.4 else [s.name for s in specs[-2:]]
        inputs = {}
        for name in names:
            before = next(s.tasks for s in specs if s.name == name)
            fits = [FULL]
            fits += [ONE] if before == tasks else []
            fits += [SPLIT] if tasks % before == 0 else []
            fits += [MERGE] if before % tasks == 0 else []
            inputs[name] = random.choice(fits)
        correlated = len(inputs) > 1 and random.random() < 0.5
        shares = [random.choice([1.0, 3.0]) for _ in range(tasks)]
        specs.append(OperatorDescription(f"o{at}", tasks, inputs, correlated=correlated, shares=shares))
    return Topology(specs)


def best(topology: Topology, budget: int) -> float:
    plans = as_masks(combinations(range(topology.tasks), budget), topology.tasks)
    return float(fidelity(topology, plans).max())


def test_the_losses_of_a_join_and_of_a_union() -> None:
    """A loses a quarter, b the half, at equal rates."""
    for correlated, lost in ((True, 0.625), (False, 0.375)):
        sources = [OperatorDescription("a", 4, {}, rates=[1] * 4), OperatorDescription("b", 4, {}, rates=[1] * 4)]
        topology = Topology([*sources, OperatorDescription("z", 1, {"a": MERGE, "b": MERGE}, correlated=correlated)])
        alive = np.ones((1, 9), np.bool_)
        alive[0, [0, 4, 5]] = False
        assert losses(topology, alive)[0, 8] == pytest.approx(lost)
        assert fidelity(topology, alive)[0] == pytest.approx(1 - lost)


@pytest.mark.parametrize(
    ("topology", "alone"),
    [(MERGING, [0.6, 0.7, 0.8, 0.9, 0.3, 0.7, 0]), (JOINING, [0.25, 0.75, 0.5, 0.5, 0.5, 0.5, 0])],
    ids=["merging", "joining"],
)
def test_fidelity_with_one_task_failed(topology: Topology, alone: list[float]) -> None:
    running = Running(topology, np.ones(topology.tasks, np.bool_))
    assert running.values([[t] for t in range(topology.tasks)], alive=False) == pytest.approx(alone)


def test_a_sink_counts_by_its_weight() -> None:
    """Two sinks of equal rates, one three times as important: every planner keeps that one."""
    sources = [OperatorDescription(name, 1, {}, rates=[10], fails=False) for name in "ab"]
    sinks = [
        OperatorDescription("light", 1, {"a": ONE}, weight=1.0),
        OperatorDescription("heavy", 1, {"b": ONE}, weight=3.0),
    ]
    topology = Topology([*sources, *sinks])
    alive = np.ones((2, 4), np.bool_)
    alive[0, 2] = alive[1, 3] = False
    assert fidelity(topology, alive) == pytest.approx([0.75, 0.25])
    for plan in (dynamic, greedy, structure_aware, partial(exact, now=time.monotonic)):
        found = plan(PlanningProblem(topology, 1))
        assert (set(found.tasks), found.value) == ({3}, pytest.approx(0.75))


def test_the_optimum_by_budget() -> None:
    assert [dynamic(PlanningProblem(MERGING, b)).value for b in range(8)] == pytest.approx(
        [0, 0, 0, 0.4, 0.7, 0.7, 0.9, 1]
    )
    expected = [0, 0, 0, 0, 0.1875, 0.375, 0.75, 1]
    assert [dynamic(PlanningProblem(JOINING, b)).value for b in range(8)] == pytest.approx(expected)
    assert [dynamic(PlanningProblem(UNIFORM, b)).value * 8 for b in (4, 5, 7, 8)] == pytest.approx([1, 2, 3, 4])


def test_greedy_spends_without_completing_a_tree() -> None:
    assert greedy(PlanningProblem(JOINING, 4)).value == 0
    assert [greedy(PlanningProblem(UNIFORM, b)).value * 8 for b in range(9)] == pytest.approx([0] * 8 + [1])


def test_completeness_misleads_where_inputs_are_joined() -> None:
    plans = as_masks(combinations(range(7), 4), 7)
    at = completeness(JOINING, plans).argmax()
    assert completeness(JOINING, plans)[at] == pytest.approx(0.4375)
    assert fidelity(JOINING, plans)[at] == 0


@pytest.mark.parametrize("seed", range(40))
def test_planners_against_all_plans(seed: int) -> None:
    topology = random_topology(Random(seed))
    for budget in range(topology.tasks + 1):
        problem = PlanningProblem(topology, budget)
        optimum = best(topology, budget)
        assert dynamic(problem).value == pytest.approx(optimum)
        for planner in (greedy, structure_aware):
            plan = planner(problem)
            assert plan.cost <= budget
            assert plan.value <= optimum + 1e-9
        proved = exact(problem, now=time.monotonic)
        assert proved.cost <= budget
        assert proved.value == pytest.approx(optimum)
        assert proved.gap is not None
        assert proved.gap < 1e-5
        assert structure_aware(problem).value >= optimum * 0.5
    assert structure_aware(PlanningProblem(topology, topology.tasks)).value == pytest.approx(1)


@pytest.mark.parametrize("seed", range(15))
def test_the_exact_plan_where_tasks_cost_and_failures_differ(seed: int) -> None:
    """Costs that are no whole numbers; two racks and the worst case, each with its probability."""
    random = Random(seed)
    topology = random_topology(random)
    tasks = range(topology.tasks)
    costs = [random.choice([0.5, 1.0, 1.7]) for _ in tasks]
    racks = [Failure(frozenset(t for t in tasks if t % 2 == side), 0.4) for side in (0, 1)]
    plans = np.array(list(product([False, True], repeat=topology.tasks)))
    for budget in (0.3 * sum(costs), 0.6 * sum(costs)):
        for failures in ((), (*racks, Failure(frozenset(tasks), 0.2))):
            problem = PlanningProblem(topology, budget, costs=costs, failures=failures)
            optimum = problem.values(plans[plans @ costs <= budget + 1e-9]).max()
            proved = exact(problem, now=time.monotonic)
            assert proved.value == pytest.approx(optimum, abs=1e-6)
            assert proved.bound == pytest.approx(optimum, abs=2e-5)
            assert 0 < structure_aware(problem).value <= optimum + 1e-9 or optimum == 0


def test_when_time_is_up_the_exact_planner_reports_the_gap() -> None:
    """A ladder of splits and merges that takes minutes."""
    specs = [OperatorDescription("s", 12, {}, rates=[1 + t % 5 for t in range(12)])]
    for at in range(6):
        kind = FULL if at % 3 == 2 else SPLIT if at % 3 == 0 else MERGE
        tasks = {SPLIT: 2, MERGE: 0.5, FULL: 1}[kind] * specs[-1].tasks
        specs.append(
            OperatorDescription(
                f"o{at}", int(tasks), {specs[-1].name: kind}, shares=[1 + t % 3 for t in range(int(tasks))]
            )
        )
    problem = PlanningProblem(Topology(specs), 40)
    hurried = exact(problem, now=time.monotonic, seconds=0.0)
    assert hurried.value >= structure_aware(problem).value
    assert hurried.bound is not None
    assert hurried.bound > hurried.value
    assert exact(problem, now=time.monotonic, seconds=20.0).value <= hurried.bound


def test_product_of_too_many_outputs_is_bounded() -> None:
    topology = Topology(
        [
            *(OperatorDescription(name, 3, {}, rates=[1, 2, 3]) for name in "abc"),
            OperatorDescription("j", 3, dict.fromkeys("abc", ONE), correlated=True),
        ]
    )
    whole = {"provided": (), "failed": np.ones((1, 12), np.bool_), "weights": np.ones(1), "cost": np.ones(12)}
    full = LinearProgram(topology, {3: 1.0}, **whole).solve(5, 10)
    bounded = LinearProgram(topology, {3: 1.0}, **whole, most=4).solve(5, 10)
    assert full.bound == pytest.approx(0.5)
    assert bounded.bound >= full.bound - 1e-9


@pytest.mark.parametrize("seed", range(40))
def test_trees_are_counted_as_they_are_made(seed: int) -> None:
    topology = random_topology(Random(seed))
    made = list(trees(topology))
    assert len(made) == count_trees(topology)
    assert (fidelity(topology, as_masks(made, topology.tasks)) > 0).all()


@pytest.mark.parametrize("seed", range(40))
def test_incremental_value_equals_recomputed_value(seed: int) -> None:
    random = Random(seed)
    topology = random_topology(random)
    alive = np.array([random.random() < 0.5 for _ in range(topology.tasks)])
    running = Running(topology, alive)
    changes = [random.sample(range(topology.tasks), 2) for _ in range(5)]
    values = running.values(changes)
    for tasks, value in zip(changes, values, strict=True):
        with_them = alive.copy()
        with_them[tasks] = True
        assert value == pytest.approx(fidelity(topology, with_them[None, :])[0])
    running.set(changes[0])
    assert running.value == pytest.approx(values[0])


def test_structure_aware_keeps_its_budget_where_gains_are_small() -> None:
    """Many kinds of extensions, and growth so slow that their best are seldom compared anew."""
    rates = [1 / (t + 1) for t in range(20)]
    specs = [OperatorDescription("o0", 20, {}, rates=rates)]
    for at, kind in enumerate([ONE, FULL, ONE, FULL], 1):
        specs.append(OperatorDescription(f"o{at}", 20, {f"o{at - 1}": kind}))
    topology = Topology(specs)
    for budget in range(5, 100, 9):
        assert structure_aware(PlanningProblem(topology, budget)).cost <= budget


def test_failures_that_are_likely_weigh_more() -> None:
    failures = [Failure(frozenset({0}), 9.0), Failure(frozenset({1}), 1.0)]
    problem = PlanningProblem(MERGING, 1, failures=failures)
    assert greedy(problem).tasks == (0,)
    assert problem.values(as_masks([[0], [1]], 7)) == pytest.approx([0.97, 0.64])


def test_a_join_with_nothing_on_one_side_gives_nothing() -> None:
    sources = [OperatorDescription("a", 1, {}, rates=[1]), OperatorDescription("b", 1, {}, rates=[0])]
    with pytest.raises(ConfigError, match="no sink has any output"):
        Topology([*sources, OperatorDescription("z", 1, {"a": FULL, "b": FULL}, correlated=True)])


@pytest.mark.parametrize(
    ("budget", "costs", "said"),
    [
        (-1, None, "at least 0, got -1"),
        (8, None, "a budget of 8 is beyond all tasks, whose replicas cost 7 together"),
        (1, [1.0] * 6, "7 numbers above 0, one per task"),
        (1, [0.0] * 7, "7 numbers above 0, one per task"),
    ],
)
def test_impossible_planning_problems_are_refused(budget: float, costs: list[float] | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PlanningProblem(MERGING, budget, costs=costs)


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ([OperatorDescription("a", 1, {"b": FULL}), OperatorDescription("b", 1, {"a": FULL})], "a cycle among a, b"),
        (
            [OperatorDescription("a", 3, {}, rates=[1] * 3), OperatorDescription("z", 2, {"a": MERGE})],
            "z: merge does not fit 3 tasks of a and 2 here",
        ),
        ([OperatorDescription("a", 1, {}, rates=[0])], "no sink has any output"),
        ([OperatorDescription("a", 1, {})], "a: reads nothing, so the rates of its tasks must be given"),
        ([OperatorDescription("a", 1, {"x": FULL})], "reads 'x', which is no operator"),
    ],
)
def test_impossible_topologies_are_refused(specs: list[OperatorDescription], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Topology(specs)
