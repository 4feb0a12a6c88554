"""Recovery while nodes come and go (O6): arrivals, failures on the way, the paper's figure 2."""

from __future__ import annotations

import time
from functools import partial

import pytest

from replicas.planning.recovery.bound import best_area
from replicas.planning.recovery.goals import QueryChoice
from replicas.planning.recovery.placing import PlannedInstall
from tests.support.recovery import Partitions

TREES = Partitions({"m": "", "z1": "", "x": "m", "y": "m", "z2": "z1"}, {"x": 1, "y": 2, "z2": 1})
ARRIVALS = [(10.0, "n1", 2.0), (20.0, "n2", 2.0), (30.0, "n3", 2.0)]

#: p1 and p2 have not failed.  The figure is a drawing; these streams give the schedules of its table.
FIGURE_2 = Partitions(
    {"p1": "", "p2": "", "p3": "p1", "p4": "p1", "p5": "p1", "p6": "p2", "p7": "p3 p5", "p8": "p4 p5 p6"}
    | {"p9": "p7", "p10": "p7 p4", "p11": "p8", "p12": "p8"},
    {"p9": 1, "p10": 1, "p11": 1, "p12": 1},
)


def test_each_node_takes_partitions_that_complete_most() -> None:
    played = TREES.played(TREES.schedule(), ARRIVALS)
    assert TREES.by_node(played) == {"n1": "m y", "n2": "x z1", "n3": "z2"}
    assert played.points == ((0, 0), (10, 2), (20, 3), (30, 4))
    assert played.area(40) == 90
    everything = TREES.amounts({})
    best = partial(
        best_area, TREES.queries(), TREES.mask(""), everything, 0 * everything, now=time.monotonic, seconds=1.0
    )
    assert best(played.rooms, 40) == 90


def test_operator_by_operator_outputs_come_late() -> None:
    goal = TREES.queries(QueryChoice.OPERATOR_CENTRIC)
    played = TREES.played(TREES.schedule(goal), ARRIVALS)
    assert TREES.by_node(played) == {"n1": "m z1", "n2": "y x", "n3": "z2"}
    assert played.area(40) == 70


@pytest.mark.parametrize(
    ("algorithm", "nodes", "area"),
    [
        (QueryChoice.BEST_DENSITY, ["p3 p5", "p7 p9", "p4 p10", "p6 p8", "p11 p12"], 9),
        (QueryChoice.OPERATOR_CENTRIC, ["p3 p4", "p5 p6", "p7 p8", "p9 p10", "p11 p12"], 6),
    ],
)
def test_figure_2_of_the_paper(algorithm: QueryChoice, nodes: list[str], area: float) -> None:
    """Two partitions per node, one node per unit of time."""
    schedule = FIGURE_2.schedule(FIGURE_2.queries(algorithm))
    schedule.came("n0", 2.0, runs=[0, 1])
    played = FIGURE_2.played(schedule, [(at, f"n{at}", 2.0) for at in range(1, 6)])
    assert FIGURE_2.by_node(played) == {f"n{at}": installs for at, installs in enumerate(nodes, 1)}
    assert played.area(6) == area


def test_only_partitions_of_the_dead_node_start_again() -> None:
    parts = Partitions({"g": "", "h": ""}, {"g": 1, "h": 1})
    schedule = parts.schedule(work={"g": 5, "h": 5})
    schedule.came("n1", 1.0)
    schedule.came("n2", 1.0)
    assert schedule.step() == [PlannedInstall(0, "n1"), PlannedInstall(1, "n2")]
    schedule.went("n1")
    assert schedule.step() == []
    assert schedule.waits == {0: "needs 1.00 of a core; the most room is 0.00, on n2"}
    schedule.came("n3", 1.0)
    assert schedule.step() == [PlannedInstall(0, "n3")]
    schedule.back(1, "n2")
    assert schedule.step() == []
    assert parts.text(schedule.running) == "h"


def test_an_ordered_or_running_partition_is_not_ordered_again() -> None:
    schedule = TREES.schedule()
    schedule.came("n1", 2.0)
    assert [TREES.names[i.partition] for i in schedule.step()] == ["m"]
    assert [TREES.names[i.partition] for i in schedule.planned] == ["y"]
    schedule.came("n2", 2.0)
    assert [TREES.names[i.partition] for i in schedule.step()] == ["y"]
    schedule.back(0, "n1")
    schedule.back(3, "n2")
    assert [TREES.names[i.partition] for i in schedule.step()] == ["x", "z1"]
    assert schedule.step() == []


def test_an_arrival_makes_a_new_plan() -> None:
    """First only the small query fits; with the second node the other one comes first, though the old plan had it not
    at all."""
    parts = Partitions({"a": "", "b": "", "big": "a"}, {"b": 1, "big": 9})
    schedule = parts.schedule(loads={"a": 0.4, "b": 0.5, "big": 0.5}, cap=0.8)
    schedule.came("n1")
    assert [parts.names[i.partition] for i in schedule.step()] == ["b"]
    assert set(schedule.waits) == {0, 2}
    schedule.came("n2")
    schedule.came("n3")
    assert {parts.names[i.partition] for i in schedule.step()} == {"a", "big"}


def test_a_shadow_takes_room_and_is_worth_nothing() -> None:
    parts = Partitions({"a": "", "b": "", "c": ""}, {"a": 2, "b": 1, "c": 1})
    schedule = parts.schedule(loads={"a": 0.5, "b": 0.3, "c": 0.4}, cap=0.8)
    schedule.came("n1", runs=[1], shadows=[2])
    assert schedule.room() == {"n1": pytest.approx(0.1)}
    assert schedule.value == 1
    assert schedule.step() == []
    assert set(schedule.waits) == {0, 2}


def test_a_silent_partition_keeps_its_last_load() -> None:
    parts = Partitions({"a": "", "b": "", "c": ""}, {"a": 1, "b": 1, "c": 1})
    schedule = parts.schedule(loads={"a": 0.3, "b": 0.3, "c": 0.3}, cap=0.8)
    schedule.came("n1", runs=[0, 1])
    schedule.measured({0: 0.4})
    assert schedule.room() == {"n1": pytest.approx(0.1)}
    assert schedule.step() == []


def test_a_load_that_moves_by_a_fifth_makes_a_new_plan() -> None:
    parts = Partitions({"a": "", "b": ""}, {"a": 1, "b": 1})
    schedule = parts.schedule(loads={"a": 0.5, "b": 0.35}, cap=0.8)
    schedule.came("n1", runs=[0])
    assert schedule.step() == []
    schedule.measured({0: 0.44})
    assert schedule.step() == []
    schedule.measured({0: 0.39})
    assert schedule.step() == [PlannedInstall(1, "n1")]


def test_joining_node_brings_back_its_own_partitions() -> None:
    schedule = TREES.schedule()
    schedule.came("n1", 1.0, runs=[0])
    assert schedule.step() == []
    schedule.came("n2", 2.0)
    assert [TREES.names[i.partition] for i in schedule.step()] == ["y"]


def test_the_newest_checkpoint_that_can_be_had_is_taken() -> None:
    parts = Partitions({"a": ""}, {"a": 1})
    schedule = parts.schedule(loads={"a": 0.4}, cap=0.8)
    for node, position in (("n1", 5), ("n2", 7), ("n3", 9)):
        schedule.holds(0, node, position)
    schedule.came("n1")
    schedule.came("n2", 0.6)
    assert schedule.step() == [PlannedInstall(0, "n2")]
    schedule = parts.schedule(loads={"a": 0.6}, cap=0.8)
    schedule.holds(0, "n1", 5)
    schedule.holds(0, "n2", 7)
    schedule.came("n1")
    schedule.came("n2", 0.6)
    assert schedule.step() == [PlannedInstall(0, "n1", "n2")]


def test_no_node_is_filled_beyond_its_cap() -> None:
    parts = Partitions({"a": "", "b": ""}, {"a": 1, "b": 1})
    schedule = parts.schedule(loads={"a": 0.5, "b": 0.4}, cap=0.8)
    schedule.came("n1")
    assert schedule.step() == [PlannedInstall(1, "n1")] or schedule.step() == [PlannedInstall(0, "n1")]
    assert len(schedule.waits) == 1


def test_returning_node_has_forgotten_its_orders() -> None:
    """A process that ends and starts between two heartbeats was never seen to go."""
    parts = Partitions({"a": "", "b": ""}, {"a": 1, "b": 1})
    schedule = parts.schedule(cap=0.8, loads={"a": 0.4, "b": 0.4})
    schedule.came("n1")
    assert schedule.step() == [PlannedInstall(0, "n1")]
    schedule.came("n1", restores=[1])
    assert schedule.ordered == {1: "n1"}
    assert schedule.step() == []
    schedule.back(1, "n1")
    assert schedule.step() == [PlannedInstall(0, "n1")]


def test_new_coordinator_continues_from_reports_of_nodes() -> None:
    """What another one ordered is neither ordered again nor taken back."""
    schedule = TREES.schedule()
    schedule.came("n1", 2.0, runs=[0], restores=[3])
    schedule.came("n2", 2.0)
    assert [TREES.names[i.partition] for i in schedule.step()] == ["x"]
    assert schedule.ordered == {3: "n1", 2: "n2"}


def test_node_continues_after_a_restore_that_waits_for_input() -> None:
    """x reads m, which no node has room for: n1 need not wait until x goes on without it."""
    parts = Partitions({"m": "", "x": "m", "y": ""}, {"x": 1, "y": 1})
    schedule = parts.schedule(loads={"m": 0.9, "x": 0.3, "y": 0.3}, cap=0.8)
    schedule.came("n1", restores=[1])
    assert schedule.step() == [PlannedInstall(2, "n1")]


def test_a_node_restores_partitions_one_after_the_other() -> None:
    parts = Partitions({"m": "", "x": "m", "y": ""}, {"x": 1, "y": 1})
    schedule = parts.schedule(loads={"m": 0.9, "x": 0.3, "y": 0.3}, cap=0.8)
    schedule.came("n0", 2.0, runs=[0])
    schedule.came("n1", restores=[1])
    schedule.may_run({2: ["n1"]})
    assert schedule.step() == []
    schedule.back(1, "n1")
    assert schedule.step() == [PlannedInstall(2, "n1")]
