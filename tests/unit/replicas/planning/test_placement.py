"""Where checkpoints lie (rule L2): the heuristic beside the best, relocations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.experiments.baselines import baseline, best, even
from replicas.planning import placement, placement_problem
from replicas.planning.layout import Place
from replicas.planning.load import SAMPLE_US, LoadHistory, LoadSample
from replicas.planning.placement import correlated
from replicas.planning.placement_problem import NO_NODE, CheckpointProblem
from replicas.planning.shares import SharesOfX
from replicas.planning.topology import Ints
from spe.config import load_data
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from tests.support.distribution import Situations
from tests.unit.replicas.planning.test_shares import config

N1, N2, N3 = NODES = tuple(NodeId(f"n{n}") for n in (1, 2, 3))
G1, G2, G3, G4 = GROUPS = tuple(PartitionId(UnitId("g"), n) for n in (1, 2, 3, 4))
RUNNING = {G1: (N1,), G2: (N1,), G3: (N2,), G4: (N3,)}
LOADS = {G1: (8, 6, 4, 2), G2: (4, 3, 2, 1), G3: (1, 2, 3, 4), G4: (5, 5, 5, 5)}


def example(delta: float = np.inf) -> CheckpointProblem:
    history = LoadHistory()
    for at in range(4):
        for group, loads in LOADS.items():
            history.sample(group, LoadSample(loads[at]), at * SAMPLE_US)
    return placement_problem.checkpoint_problem(
        history, 3 * SAMPLE_US, GROUPS, RUNNING, dict.fromkeys(NODES, Place()), delta=delta
    )


def test_each_checkpoint_has_a_cost_on_each_node() -> None:
    problem = example()
    g1, g2, g3, g4 = problem.cost.tolist()
    assert (g1[1], g2[1], g3[0]) == (-5.0, -2.5, -2.5)
    assert (g1[2], g2[2], g3[2], g4) == (0.0, 0.0, 0.0, [0.0, 0.0, 0.0])
    assert problem.allowed.tolist() == [
        [False, True, True],
        [False, True, True],
        [True, False, True],
        [True, True, False],
    ]


def test_without_a_delta_each_is_where_it_costs_least() -> None:
    places = correlated(example())
    assert places.tolist() == [1, 1, 0, 0], "g4 costs 0 on n1 and n2, and n1 has less"
    assert example().score(places) == -10.0


def test_with_a_delta_the_heuristic_passes_over_full_nodes() -> None:
    """g4 fits nowhere.  The least load and the least cost both lead to n1 here."""
    problem = example(delta=1)
    places = correlated(problem)
    assert places.tolist() == [1, 2, 0, 0]
    assert problem.score(places) == -7.5
    assert problem.loads(places).tolist() == [7.5, 5.0, 2.5]


def test_with_a_delta_the_best_keeps_it() -> None:
    problem = example(delta=1)
    places = best(problem)
    assert places is not None
    assert places.tolist() == [1, 2, 2, 0]
    assert problem.score(places) == -5.0


def test_a_checkpoint_that_fits_nowhere_goes_to_the_least_load() -> None:
    problem = CheckpointProblem(
        cost=np.array([[-9.0, 0.0], [0.0, -9.0], [-1.0, 0.0]]),
        allowed=np.ones((3, 2), np.bool_),
        load=np.array([5.0, 4.0, 3.0]),
        partition=np.arange(3),
        apart=np.zeros((3, 3), np.bool_),
        delta=0.5,
    )
    assert correlated(problem).tolist() == [0, 1, 1]


def test_checkpoint_that_fits_nowhere_takes_no_room() -> None:
    """The mean is 5.5: only the third fits beside nothing, on the second node."""
    problem = CheckpointProblem(
        cost=np.array([[-9.0, -8.0], [-3.0, 0.0]]),
        allowed=np.ones((2, 2), np.bool_),
        load=np.array([9.0, 2.0]),
        partition=np.arange(2),
        apart=np.zeros((2, 2), np.bool_),
        delta=0.0,
    )
    assert correlated(problem).tolist() == [1, 0]


def test_before_anything_is_measured_checkpoints_are_spread() -> None:
    partitions = [PartitionId(UnitId("g"), n) for n in range(6)]
    running = dict.fromkeys(partitions, (N1,))
    problem = placement_problem.checkpoint_problem(
        LoadHistory(), 0, partitions, running, dict.fromkeys(NODES, Place()), delta=1.0
    )
    assert np.bincount(correlated(problem), minlength=3).tolist() == [0, 3, 3]


def test_no_node_has_two_copies_or_copy_and_replica() -> None:
    history = LoadHistory()
    nodes = dict.fromkeys(NODES, Place())
    problem = placement_problem.checkpoint_problem(history, 0, [G1, G1, G3], RUNNING, nodes)
    random = np.random.default_rng(1)
    for places in (correlated(problem), baseline(problem, random), even(problem, random), best(problem)):
        assert places is not None
        assert sorted(places[:2].tolist()) == [1, 2]
        assert places[2] != 1


def test_a_checkpoint_is_in_another_domain_than_its_partition() -> None:
    racks = {N1: Place(domains={"rack": "a"}), N2: Place(domains={"rack": "a"}), N3: Place(domains={"rack": "b"})}
    problem = placement_problem.checkpoint_problem(LoadHistory(), 0, [G1, G4], RUNNING, racks)
    assert problem.allowed.tolist() == [[False, False, True], [True, True, False]]
    wide = {N1: Place(domains={"zone": "z", "rack": "a"}), N2: Place(domains={"zone": "z", "rack": "b"}), N3: Place()}
    problem = placement_problem.checkpoint_problem(LoadHistory(), 0, [G1, G2], {G1: (N1,), G2: (N1, N3)}, wide)
    assert problem.allowed.tolist() == [[False, False, True], [False, True, False]], "the same zone is all there is"


def test_where_all_nodes_run_it_a_partition_has_no_checkpoint() -> None:
    problem = placement_problem.checkpoint_problem(LoadHistory(), 0, [G1], {G1: NODES}, dict.fromkeys(NODES, Place()))
    assert correlated(problem).tolist() == [NO_NODE]


def test_no_checkpoint_lies_where_its_share_of_x_is_too_short() -> None:
    """One unit reads the other; αX is 900 ms, and each needs more than 600 ms of its share."""
    plan, directory = load_data(config([["n1"], ["n1"]], [["n3"], ["n3"]]))
    first, second = PartitionId(UnitId("first"), 0), PartitionId(UnitId("second"), 0)
    nodes = dict.fromkeys((N1, N2, N3), Place())
    problem = placement_problem.checkpoint_problem(
        LoadHistory(), 0, [first, second], directory.placement, nodes, shares=SharesOfX(plan, directory)
    )
    assert problem.allowed.tolist() == [[False, True, False], [False, True, False]]
    assert problem.apart.tolist() == [[False, True], [True, False]], "on n2 the second one would be too much"
    for places in (
        correlated(problem),
        even(problem, np.random.default_rng(1)),
        baseline(problem, np.random.default_rng(1)),
    ):
        assert sorted(places.tolist()) == [NO_NODE, 1]
    apart = placement_problem.checkpoint_problem(
        LoadHistory(),
        0,
        [first, PartitionId(UnitId("second"), 1)],
        directory.placement,
        nodes,
        shares=SharesOfX(plan, directory),
    )
    assert correlated(apart).tolist() == [1, 1], "second/1 does not read first/0"


def test_even_placement_gives_nodes_equally_many_checkpoints() -> None:
    """Three may be on two nodes, three on all: drawn at random the two would often be full too soon."""
    allowed = np.array([[True, True, False]] * 3 + [[True, True, True]] * 3)
    problem = CheckpointProblem(np.zeros((6, 3)), allowed, np.ones(6), np.arange(6), np.zeros((6, 6), np.bool_))
    for seed in range(20):
        counts = np.bincount(even(problem, np.random.default_rng(seed)), minlength=3)
        assert counts.tolist() == [2, 2, 2]


@st.composite
def problems(draw: st.DrawFn) -> CheckpointProblem:
    """Up to 5 checkpoints on up to 4 nodes, some of them copies."""
    many, nodes = draw(st.integers(1, 5)), draw(st.integers(2, 4))
    of = [draw(st.integers(0, many - 1)) for _ in range(many)]
    shape = st.lists(st.lists(st.integers(-4, 4), min_size=nodes, max_size=nodes), min_size=many, max_size=many)
    cost = np.array(draw(shape), np.float64)[of]
    hosts = [draw(st.integers(0, nodes - 1)) for _ in range(many)]
    allowed = np.array([[n != hosts[p] for n in range(nodes)] for p in of])
    load = np.array([draw(st.integers(1, 4)) for _ in range(many)], np.float64)[of]
    apart = (np.array(of)[:, None] == np.array(of)[None, :]) & ~np.eye(many, dtype=np.bool_)
    delta = draw(st.sampled_from([2.0, 1.0, 4.0, np.inf]))
    return CheckpointProblem(cost, allowed, load, np.array(of), apart, delta)


def all_placements(problem: CheckpointProblem) -> list[Ints]:
    many, nodes = problem.cost.shape
    found = (np.array(p) for p in product(range(nodes), repeat=many))
    return [places for places in found if problem.holds(places)]


BESIDE = Situations({"a delta that cannot be kept": 0.05, "a delta that can": 0.1, "copies": 0.3})


@BESIDE.required
@given(problem=problems())
def test_the_best_is_the_best_of_all_and_the_heuristic_is_valid(problem: CheckpointProblem) -> None:
    valid = all_placements(problem)
    mean = problem.load.sum() / problem.cost.shape[1]
    kept = [p for p in valid if (abs(problem.loads(p) - mean) <= problem.delta + 1e-9).all()]
    found, guess = best(problem), correlated(problem)
    assert problem.holds(guess)
    if valid:
        assert (guess != NO_NODE).all()
        assert (found is None) == (not kept)
    if found is not None and kept:
        assert problem.holds(found)
        assert problem.score(found) == pytest.approx(min(map(problem.score, kept)))
        if np.isinf(problem.delta):
            assert problem.score(guess) == pytest.approx(problem.score(found))
    BESIDE.example(
        {
            "a delta that cannot be kept": valid and not kept,
            "copies": problem.apart.any(),
            "a delta that can": kept and np.isfinite(problem.delta),
        }
    )


MOVES = Situations({"some move": 0.4, "one lies where it may not": 0.2, "copies": 0.3})


@MOVES.required
@given(data=st.data(), problem=problems(), epsilon=st.sampled_from([0.0, 1.0, 5.0]))
def test_relocations_end_near_the_heuristic_with_one_move_each(
    data: st.DataObject, problem: CheckpointProblem, epsilon: float
) -> None:
    many, nodes = problem.cost.shape
    now = np.array([data.draw(st.integers(NO_NODE, nodes - 1)) for _ in range(many)])
    places, found = now.copy(), placement.relocations(problem, now, epsilon)
    for move in found:
        assert move.source == now[move.checkpoint]
        assert problem.allowed[move.checkpoint, move.target]
        places[move.checkpoint] = move.target
    assert len({move.checkpoint for move in found}) == len(found) <= many
    guess = correlated(problem)
    if (guess != NO_NODE).all():
        assert problem.score(places) <= problem.score(guess) + epsilon + 1e-9
        assert problem.allowed[np.arange(many), places].all()
    MOVES.example(
        {
            "some move": bool(found),
            "one lies where it may not": any(
                p != NO_NODE and not problem.allowed[k, p] for k, p in enumerate(now.tolist())
            ),
            "copies": problem.apart.any(),
        }
    )


def test_the_best_gain_moves_first_and_none_below_epsilon() -> None:
    problem = example()
    now = np.array([2, 2, 2, 1])  # all at a cost of 0
    assert [(m.checkpoint, m.target) for m in placement.relocations(problem, now, 4.0)] == [(0, 1), (1, 1)]
    assert [m.checkpoint for m in placement.relocations(problem, now, 6.0)] == [0]
    assert placement.relocations(problem, now, 10.0) == []
