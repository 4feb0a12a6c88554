"""Recovery order (O1-O6) against all choices and all orders of small cases, and under any sequence of news."""

from __future__ import annotations

import time
from itertools import permutations
from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.planning.recovery.bound import best_area
from replicas.planning.recovery.choosing import LITTLE, Shortage, best_density, densest, dp, operator_centric
from replicas.planning.recovery.forecast import NodeArrival, forecast
from replicas.planning.recovery.goals import CompleteQueries, OutputFidelity, RecoveryGoal
from replicas.planning.recovery.ordering import in_order
from replicas.planning.recovery.program import best_choice
from replicas.planning.recovery.schedule import RecoverySchedule
from replicas.planning.topology import OperatorDescription, Topology
from spe.plan.plan import Partitioning
from tests.support.distribution import Situations

MEETS = Situations({"a partition that two queries share": 0.5, "room for some": 0.3})
HAPPENS = Situations({"a node goes while it restores": 0.05, "a partition waits for room": 0.3})


@st.composite
def queries(draw: st.DrawFn, partitions: int = 8, most: int = 6) -> CompleteQueries:
    """Random sets; depth is the number of the partition."""
    members = draw(
        st.lists(
            st.sets(st.integers(0, partitions - 1), min_size=1, max_size=5), min_size=2, max_size=most, unique_by=tuple
        )
    )
    rows = np.zeros((len(members), partitions), np.bool_)
    for row, chosen in zip(rows, members, strict=True):
        row[list(chosen)] = True
    priority = draw(st.lists(st.integers(1, 9), min_size=len(members), max_size=len(members)))
    return CompleteQueries(rows, np.array(priority, np.float64), np.arange(partitions))


def amounts(partitions: int = 8, least: int = 1) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.integers(least, 6), min_size=partitions, max_size=partitions).map(
        lambda v: np.array(v, np.float64)
    )


def brute_force(short: Shortage) -> float:
    """The best of all sets of partitions."""
    many = len(short.cost)
    rows = (np.arange(1 << many)[:, None] >> np.arange(many)) & 1 == 1
    fits = rows[rows @ short.cost <= short.room + LITTLE]
    return max(short.value(row) for row in fits)


@MEETS.required
@settings(max_examples=60, deadline=None)
@given(queries(), amounts(), st.sampled_from([0.0, 0.3, 0.5, 0.7, 0.8, 1.0]))
def test_dp_and_program_are_optimal_and_best_density_is_close(
    goal: CompleteQueries, cost: np.ndarray, share: float
) -> None:
    everything, room = np.ones(8, np.bool_), share * float(cost.sum())
    short = goal.shortage(~everything, everything, cost, room)
    best = brute_force(short)
    MEETS.example(
        {
            "a partition that two queries share": short.needs.sum(axis=0).max() > 1,
            "room for some": 0 < best < short.priority.sum(),
        }
    )
    proved = best_choice(short, [room])
    assert short.value(dp(short)) == best
    assert short.value(proved.partitions) == best
    assert proved.bound == pytest.approx(best)
    guaranteed = 1 - exp(-1 / short.needs.sum(axis=0).max())
    assert short.value(densest(short)) >= guaranteed * best
    assert short.value(best_density(short)) == best, "so few queries are chosen exactly"
    for choose in (dp, densest, best_density, operator_centric):
        assert choose(short) @ cost <= room + LITTLE


@settings(max_examples=40, deadline=None)
@given(queries(6, 4), amounts(6), amounts(6, 0))
def test_the_order_is_the_best_of_all_orders_of_partitions(
    goal: CompleteQueries, cost: np.ndarray, work: np.ndarray
) -> None:
    """Up to what an order itself takes."""
    nothing = np.zeros(6, np.bool_)
    ordered = in_order(goal, nothing, ~nothing, work)
    assert np.array_equal(np.sum(ordered, axis=0), np.ones(6)), "each partition is in it once"
    flat = [int(p) for one in ordered for p in np.flatnonzero(one)]
    best = max(lost_least(goal, order, work) for order in permutations(range(6)))
    assert lost_least(goal, flat, work) >= best - 6 * 6e-3 * goal.priority.sum()


def lost_least(goal: RecoveryGoal, order: tuple[int, ...] | list[int], work: np.ndarray) -> float:
    """Area under the value until all is done, one partition after the other."""
    rows = np.zeros((len(order) + 1, len(order)), np.bool_)
    for at, partition in enumerate(order, 1):
        rows[at:, partition] = True
    return float(goal.values(rows[:-1]) @ work[list(order)])


TREES = Topology(
    [
        OperatorDescription("a", 2, {}, rates=[3, 1]),
        OperatorDescription("b", 2, {}, rates=[1, 1]),
        OperatorDescription("j", 2, {"a": Partitioning.FULL, "b": Partitioning.FULL}, correlated=True, output=True),
        OperatorDescription("u", 1, {"j": Partitioning.MERGE, "b": Partitioning.MERGE}),
    ]
)
#: What may happen to a cluster of four nodes: (what, node, partition or load).
NEWS = st.lists(
    st.tuples(st.sampled_from(["came", "came", "went", "back", "back", "load"]), st.integers(0, 3), st.integers(1, 6)),
    max_size=25,
)


@HAPPENS.required
@settings(max_examples=60, deadline=None)
@given(st.sampled_from([OutputFidelity.of(TREES), CompleteQueries.of(TREES)]), amounts(7), NEWS)
def test_schedule_respects_capacity_and_restores_everything(
    goal: RecoveryGoal, cost: np.ndarray, news: list[tuple[str, int, int]]
) -> None:
    schedule = RecoverySchedule(goal, cost, np.ones(7), cap=0.8)
    running: dict[int, str] = {}
    ordered: dict[int, str] = {}
    loads = cost.copy()
    there: set[str] = set()
    met = {"a node goes while it restores": False, "a partition waits for room": False}

    def follow() -> None:
        before = schedule.room()
        for partition, node, _ in schedule.step():
            assert partition not in ordered, "ordered twice"
            assert partition not in running, "it runs"
            before[node] -= loads[partition]
            assert before[node] >= -LITTLE, "beyond the cap"
            assert node in there
            ordered[partition] = node
        assert schedule.ordered == ordered
        planned = {p for p, *_ in schedule.planned}
        everybody = sorted([*running, *ordered, *planned, *schedule.waits])
        assert everybody == list(range(7)), "each runs, is ordered, is planned, or waits"
        met["a partition waits for room"] |= bool(schedule.waits and there)

    for what, number, amount in news:
        node = f"n{number}"
        if what == "came" and node not in there:
            there.add(node)
            schedule.came(node, 10.0)
        elif what == "went" and node in there:
            there.remove(node)
            met["a node goes while it restores"] |= node in ordered.values()
            schedule.went(node)
            for known in (running, ordered):
                for partition in [p for p, n in known.items() if n == node]:
                    del known[partition]
        elif what == "back" and ordered:
            partition = min(ordered)
            running[partition] = ordered.pop(partition)
            schedule.back(partition, running[partition])
        elif what == "load":
            loads[number] = amount
            schedule.measured({number: float(amount)})
        follow()
    schedule.came("enough", 100.0)
    there.add("enough")
    follow()
    while ordered:
        partition = min(ordered)
        running[partition] = ordered.pop(partition)
        schedule.back(partition, running[partition])
        follow()
    assert len(running) == 7
    assert schedule.value == pytest.approx(1.0)
    HAPPENS.example(met)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([OutputFidelity.of(TREES), CompleteQueries.of(TREES)]),
    amounts(7),
    amounts(7, 0),
    st.lists(st.tuples(st.integers(0, 9), st.integers(5, 15)), min_size=1, max_size=4),
)
def test_no_order_is_better_than_the_bound(
    goal: RecoveryGoal, cost: np.ndarray, work: np.ndarray, arrivals: list[tuple[int, int]]
) -> None:
    nothing = np.zeros(7, np.bool_)
    schedule = RecoverySchedule(goal, cost, work, cap=1.0)
    played = forecast(schedule, [NodeArrival(at, f"n{i}", room) for i, (at, room) in enumerate(arrivals)])
    bound = best_area(goal, nothing, cost, work, played.rooms, 30.0, now=time.monotonic, seconds=1.0)
    assert played.area(30.0) <= bound + LITTLE
    assert [at for at, _ in played.points] == sorted(at for at, _ in played.points)
    values = [value for _, value in played.points]
    assert values == sorted(values), "nothing is taken back"
