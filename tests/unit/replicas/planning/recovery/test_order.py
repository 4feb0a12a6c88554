"""In which order and where (O2, O4, O5)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.experiments.topologies import Shape, random_topology
from replicas.planning.recovery.goals import CompleteQueries, OutputFidelity, RecoveryGoal
from replicas.planning.recovery.ordering import area, in_order
from replicas.planning.recovery.placing import PlannedInstall, RecoveryProblem, plan_recovery
from replicas.planning.topology import OperatorDescription, Topology
from spe.plan.plan import Partitioning
from tests.support.recovery import Partitions

MERGED = Topology(
    [OperatorDescription("m", 4, {}, rates=[1] * 4), OperatorDescription("s", 1, {"m": Partitioning.MERGE})]
)


def problem(
    partitions: int, cost: list[float], room: dict[str, float], holders: dict[int, set[str]]
) -> RecoveryProblem:
    """Independent partitions, each a query of priority 1."""
    goal = CompleteQueries(np.eye(partitions, dtype=np.bool_), np.ones(partitions), np.zeros(partitions, np.int64))
    nothing = np.zeros(partitions, np.bool_)
    return RecoveryProblem(goal, nothing, np.array(cost), np.zeros(partitions), room, holders)


def test_a_part_of_a_tree_that_does_not_fit_is_restored() -> None:
    nothing, cost, work = np.zeros(5, np.bool_), np.full(5, 0.2), np.zeros(5)
    whole = CompleteQueries.of(MERGED)
    assert not whole.choose(nothing, ~nothing, cost, 0.6).any()
    partly = OutputFidelity.of(MERGED)
    chosen = partly.choose(nothing, ~nothing, cost, 0.6)
    assert (chosen[4], chosen.sum()) == (True, 3)
    assert partly.values(chosen[None, :])[0] == pytest.approx(0.5)
    plan = plan_recovery(RecoveryProblem(partly, nothing, cost, work, {"n1": 0.6}, {}))
    assert {i.partition for i in plan.installs} == set(np.flatnonzero(chosen))
    assert [why for why in plan.waits.values()] == ["needs 0.20 of a core; the most room is 0.00, on n1"] * 2


def test_inputs_come_first_where_results_are_sooner_with_them() -> None:
    """s gives results of one m only after ``partial_after``; the three others of n1 take 3 s."""

    def order(partial_after: float) -> list[int]:
        nothing, each = np.zeros(5, np.bool_), np.ones(5)
        parts = RecoveryProblem(OutputFidelity.of(MERGED), nothing, each, each, {"n1": 5.0}, {})
        plan = plan_recovery(replace(parts, reads=MERGED.reads, partial_after=partial_after))
        return [install.partition for install in plan.installs]

    assert order(2.9) == [0, 4, 1, 2, 3]
    assert order(4.0) == [0, 1, 2, 3, 4]


def test_value_per_second_comes_first() -> None:
    """A is worth 0.3 and takes 6 s, B 0.2 and 2 s."""
    parts = Partitions({"a": "", "b": ""}, {"a": 0.3, "b": 0.2})
    ordered = in_order(parts.queries(), parts.mask(""), parts.mask("ab"), parts.amounts({"a": 6, "b": 2}))
    assert [parts.text(one) for one in ordered] == ["b", "a"]
    played = parts.played(parts.schedule(work={"a": 6, "b": 2}), [(0, "n1", 2)])
    assert played.area(8) == pytest.approx(1.2)


def test_shared_work_is_done_once() -> None:
    """p takes 10 s and serves a and b (1 s, worth 1 each); c alone takes 5 s and is worth 0.9: density 0.09 against
    0.18, but behind each other a and b are worth 2 for 12 s."""
    parts = Partitions({"p": "", "a": "p", "b": "p", "c": ""}, {"a": 1, "b": 1, "c": 0.7})
    work = parts.amounts({"p": 10, "a": 1, "b": 1, "c": 5})
    ordered = in_order(parts.queries(), parts.mask(""), parts.mask("pabc"), work)
    assert [parts.text(one) for one in ordered] == ["p a", "b", "c"]


SHAPES = st.builds(
    partial(Shape, operators=3, parallelism=(1, 3)),
    branching=st.sampled_from([0.4, 1.0]),
    joins=st.sampled_from([0, 1]),
)


@settings(max_examples=40)
@given(shape=SHAPES, seed=st.integers(0, 10_000), complete=st.booleans())
def test_the_order_of_few_is_the_best_of_all_orders(shape: Shape, seed: int, complete: bool) -> None:
    """Six partitions are lost at random; all 720 orders are tried."""
    random = np.random.default_rng(seed)
    topology = random_topology(shape, random)
    goal: RecoveryGoal = (CompleteQueries if complete else OutputFidelity).of(topology)
    chosen = np.zeros(topology.tasks, np.bool_)
    chosen[random.permutation(topology.tasks)[:6]] = True
    work = random.uniform(1, 5, topology.tasks)
    singles = np.eye(topology.tasks, dtype=np.bool_)[chosen]
    orders = np.array(list(permutations(range(len(singles)))))
    before = np.logical_or.accumulate(singles[orders], axis=1)[:, :-1] | ~chosen
    value = goal.values(before.reshape(-1, topology.tasks)).reshape(len(orders), -1)
    first = float(goal.values(~chosen[None, :])[0])
    seconds = work[chosen][orders]
    best = float(((value * seconds[:, 1:]).sum(axis=1) + first * seconds[:, 0]).max())
    ordered = in_order(goal, ~chosen, chosen, work)
    assert np.array_equal(np.sum(ordered, axis=0), chosen), "each of them once"
    assert area(goal, ~chosen, ordered, work) == pytest.approx(best, rel=2e-3)


def test_too_many_extensions_are_ordered_by_density() -> None:
    many = 30
    work = np.arange(many, 0, -1) * 1.0
    goal = CompleteQueries(np.eye(many, dtype=np.bool_), np.ones(many), np.zeros(many, np.int64))
    ordered = in_order(goal, np.zeros(many, np.bool_), np.ones(many, np.bool_), work)
    assert [int(one.argmax()) for one in ordered] == list(reversed(range(many)))
    chain = Topology(
        [
            OperatorDescription("m", many, {}, rates=list(range(1, many + 1))),
            OperatorDescription("s", 1, {"m": Partitioning.MERGE}),
        ]
    )
    ordered = in_order(
        OutputFidelity.of(chain), np.zeros(many + 1, np.bool_), np.ones(many + 1, np.bool_), np.ones(many + 1)
    )
    assert np.flatnonzero(ordered[0]).tolist() == [many - 1, many]
    assert [int(one.argmax()) for one in ordered[1:]] == list(reversed(range(many - 1)))


@pytest.mark.parametrize(
    ("load", "expected"),
    [(0.4, PlannedInstall(0, "n5", None)), (0.6, PlannedInstall(0, "n6", "n5")), (0.8, None)],
)
def test_a_partition_goes_to_its_checkpoint_if_there_is_room(load: float, expected: PlannedInstall | None) -> None:
    plan = plan_recovery(problem(1, [load], {"n5": 0.5, "n6": 0.7}, {0: {"n5"}}))
    assert plan.installs == (() if expected is None else (expected,))
    assert plan.waits == ({} if expected else {0: "needs 0.80 of a core; the most room is 0.70, on n6"})


def test_the_node_with_most_room_is_filled_first() -> None:
    plan = plan_recovery(problem(3, [0.3, 0.3, 0.3], {"n1": 0.5, "n2": 0.7}, {}))
    assert sorted(i.node for i in plan.installs) == ["n1", "n2", "n2"]
    assert {i.fetch for i in plan.installs} == {None}


def test_a_set_without_a_place_makes_room_for_others() -> None:
    """All fit into 1.0 together, but no node holds 0.6: the rest comes back all the same."""
    plan = plan_recovery(problem(3, [0.6, 0.2, 0.2], {"n1": 0.5, "n2": 0.5}, {}))
    assert {i.partition for i in plan.installs} == {1, 2}
    assert plan.waits == {0: "needs 0.60 of a core; the most room is 0.30, on n2"}


def test_extension_that_does_not_fit_does_not_precede_others() -> None:
    """x needs 0.4 and 0.4, of which two nodes with 0.5 and 0.3 hold one; y, worth less, fits."""
    parts = Partitions({"m": "", "x": "m", "y": ""}, {"x": 3, "y": 1})
    cost = parts.amounts({"m": 0.4, "x": 0.4, "y": 0.3})
    nothing = parts.mask("")
    plan = plan_recovery(RecoveryProblem(parts.queries(), nothing, cost, cost, {"n1": 0.5, "n2": 0.3}, {}))
    assert [(parts.names[i.partition], i.node) for i in plan.installs] == [("y", "n1")]
    plan = plan_recovery(RecoveryProblem(parts.queries(), nothing, cost, cost, {"n1": 0.5, "n2": 0.4}, {}))
    assert [(parts.names[i.partition], i.node) for i in plan.installs] == [("m", "n1"), ("x", "n2")]


def test_complete_queries_are_never_worth_more_than_fidelity() -> None:
    rows = (np.arange(32)[:, None] >> np.arange(5)) & 1 == 1
    whole, partly = CompleteQueries.of(MERGED).values(rows), OutputFidelity.of(MERGED).values(rows)
    assert (whole <= partly + 1e-12).all()
    assert whole[-1] == partly[-1] == 1
