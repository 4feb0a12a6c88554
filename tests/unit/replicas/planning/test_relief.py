"""Moves that bring every node within its caps (rule L5), beside all moves that there are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.planning import relief
from replicas.planning.relief import ReliefProblem
from replicas.planning.topology import Ints
from tests.support.distribution import Situations

INF = np.inf


def problem(
    home: list[int],
    cpu: list[float],
    cap: list[float],
    seconds: list[list[float]],
    *,
    partition: list[int] | None = None,
    memory: list[float] | None = None,
    memory_cap: list[float] | None = None,
    together: tuple[frozenset[tuple[int, int]], ...] = (),
) -> ReliefProblem:
    return ReliefProblem(
        home=np.array(home),
        partition=np.array(range(len(home)) if partition is None else partition),
        need=np.array([cpu, [0.0] * len(home) if memory is None else memory]),
        cap=np.array([cap, [INF] * len(cap) if memory_cap is None else memory_cap]),
        seconds=np.array(seconds, np.float64),
        together=together,
    )


EXAMPLE = problem(
    home=[0, 0, 0, 1], cpu=[0.5, 0.3, 0.2, 0.3], cap=[0.8, 0.8], seconds=[[INF, 4], [INF, 1], [INF, 4], [4, INF]]
)


@pytest.mark.parametrize("exact", [True, False])
def test_relief_makes_the_cheapest_move(exact: bool) -> None:
    assert relief.relieve(EXAMPLE, exact=exact).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("exact", [True, False])
def test_two_short_moves_are_made_before_a_long_one(exact: bool) -> None:
    seconds = [[INF, 9], [INF, 1], [INF, 1]]
    one = problem(home=[0, 0, 0], cpu=[0.4, 0.3, 0.3], cap=[0.6, 0.8], seconds=seconds)
    assert relief.relieve(one, exact=exact).tolist() == [0, 1, 1]


@pytest.mark.parametrize("exact", [True, False])
def test_nothing_moves_while_every_node_is_within_its_caps(exact: bool) -> None:
    calm = problem(home=[0, 1], cpu=[0.8, 0.1], cap=[0.8, 0.8], seconds=[[INF, 1], [1, INF]])
    assert relief.relieve(calm, exact=exact).tolist() == [0, 1]


@pytest.mark.parametrize("exact", [True, False])
def test_memory_has_a_cap_of_its_own(exact: bool) -> None:
    """The cheaper target has no memory left, and the full node is full of nothing but memory."""
    full = problem(
        home=[0, 0, 1],
        cpu=[0.1, 0.1, 0.1],
        cap=[0.8, 0.8, 0.8],
        memory=[5, 4, 6],
        memory_cap=[8, 8, 8],
        seconds=[[INF, 1, 3], [INF, 1, 2], [1, INF, 1]],
    )
    assert relief.relieve(full, exact=exact).tolist() == [0, 2, 1]


def test_another_partition_makes_room_where_nothing_fits() -> None:
    """0.4 fits nowhere until n2's 0.3 has gone to n3; the program sees that."""
    tight = problem(
        home=[0, 0, 1, 1, 2],
        cpu=[0.6, 0.4, 0.3, 0.3, 0.4],
        cap=[0.8, 0.8, 0.8],
        seconds=[[INF, INF, INF], [INF, 1, INF], [INF, INF, 1], [INF, INF, INF], [INF, INF, INF]],
    )
    assert relief.relieve(tight, exact=True).tolist() == [0, 1, 2, 1, 2]
    assert relief.relieve(tight, exact=False).tolist() == [0, 0, 1, 1, 2], "one by one none can go"


@pytest.mark.parametrize("exact", [True, False])
def test_two_replicas_of_a_partition_are_never_on_one_node(exact: bool) -> None:
    twice = problem(
        home=[0, 0, 1], cpu=[0.5, 0.5, 0.1], cap=[0.8, 0.8], partition=[0, 1, 0], seconds=[[INF, 1], [INF, 9], [1, INF]]
    )
    assert relief.relieve(twice, exact=exact).tolist() == [0, 1, 1]


@pytest.mark.parametrize("exact", [True, False])
def test_moves_that_are_refused_together_are_not_made_together(exact: bool) -> None:
    seconds = [[INF, 1, 5], [INF, 1, 5], [INF, INF, INF]]
    free = problem(home=[0, 0, 0], cpu=[0.3, 0.3, 0.8], cap=[0.8, 0.8, 0.8], seconds=seconds)
    assert relief.relieve(free, exact=exact).tolist() == [1, 1, 0]
    bound = problem(
        home=[0, 0, 0],
        cpu=[0.3, 0.3, 0.8],
        cap=[0.8, 0.8, 0.8],
        seconds=seconds,
        together=(frozenset({(0, 1), (1, 1)}),),
    )
    assert sorted(relief.relieve(bound, exact=exact).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("exact", [True, False])
def test_an_overfull_node_comes_as_near_to_its_cap_as_possible(exact: bool) -> None:
    hot = problem(home=[0, 0, 1], cpu=[0.9, 0.3, 0.2], cap=[0.8, 0.8], seconds=[[INF, 1], [INF, 1], [1, INF]])
    assert relief.relieve(hot, exact=exact).tolist() == [0, 1, 1]


def test_each_node_counts_by_itself_not_their_mean() -> None:
    uneven = problem(home=[0, 0, 1], cpu=[0.5, 0.4, 0.1], cap=[0.8, 0.8], seconds=[[INF, 1], [INF, 1], [1, INF]])
    assert relief.relieve(uneven).tolist() != [0, 0, 1]


@st.composite
def problems(draw: st.DrawFn) -> ReliefProblem:
    """Up to 5 replicas on up to 3 nodes; needs are tenths."""
    many, nodes = draw(st.integers(3, 5)), draw(st.integers(2, 3))
    partition: list[int] = []
    home: list[int] = []
    for replica in range(many):
        of = draw(st.sampled_from([replica, replica, replica, max(0, replica - 1)]))
        taken = {n for p, n in zip(partition, home, strict=True) if p == of}
        if len(taken) == nodes:
            of, taken = replica, set()
        partition.append(of)
        # Many on one node: else nothing is ever full.
        home.append(draw(st.sampled_from([n for n in (0, 0, 0, 0, *range(nodes)) if n not in taken])))
    cpu = [draw(st.sampled_from([1, 2, 3, 4, 6, 9])) / 10 for _ in range(many)]
    memory = [float(draw(st.integers(1, 6))) for _ in range(many)]
    cell = st.sampled_from([1.0, 2.0, 4.0, 7.5, 0.5, INF])
    seconds = [[draw(cell) for _ in range(nodes)] for _ in range(many)]
    pairs = st.sampled_from([(r, n) for r in range(many) for n in range(nodes) if n != home[r]])
    together = tuple(draw(st.lists(st.frozensets(pairs, min_size=2, max_size=2), max_size=1)))
    memory_cap = [draw(st.sampled_from([14.0, INF, 7.0])) for _ in range(nodes)]
    return problem(
        home, cpu, [0.8] * nodes, seconds, partition=partition, memory=memory, memory_cap=memory_cap, together=together
    )


def all_ends(of: ReliefProblem) -> list[Ints]:
    """All that can be made and fill no node beyond its cap, or further beyond it."""
    before = of.excess(of.home)
    ends = (np.array(where) for where in product(range(of.cap.shape[1]), repeat=len(of.home)))
    return [where for where in ends if of.valid(where) and (of.excess(where) <= before + 1e-9).all()]


BESIDE = Situations({"all end within the caps": 0.05, "some cannot": 0.2, "several moves": 0.06, "replicas": 0.3})


@BESIDE.required
@given(of=problems())
def test_the_program_is_optimal_and_greedy_is_valid(of: ReliefProblem) -> None:
    ends = all_ends(of)
    within = [where for where in ends if not of.beyond(where)]
    found, guess = relief.relieve(of, exact=True), relief.relieve(of, exact=False)
    for where in (found, guess):
        assert of.valid(where)
        assert (of.excess(where) <= of.excess(of.home) + 1e-6).all(), "nothing is further beyond its cap"
    if within:
        assert not of.beyond(found)
        assert of.total(found) == pytest.approx(min(map(of.total, within)))
    else:
        assert of.excess(found).sum() == pytest.approx(min(of.excess(where).sum() for where in ends), abs=1e-5)
    BESIDE.example(
        {
            "all end within the caps": of.beyond(of.home) and within,
            "some cannot": not within,
            "several moves": len(of.moves(found)) > 1,
            "replicas": len(set(of.partition.tolist())) < len(of.home),
        }
    )


def test_a_large_problem_is_relieved_one_by_one_and_soon() -> None:
    random = np.random.default_rng(3)
    partitions, nodes = 200, 24
    home = random.integers(0, nodes, partitions)
    home[:20] = 0
    large = problem(
        home.tolist(),
        random.uniform(0.01, 0.1, partitions).tolist(),
        [0.8] * nodes,
        random.uniform(1, 9, (partitions, nodes)).tolist(),
    )
    assert large.beyond(large.home)
    assert not large.beyond(relief.relieve(large))
