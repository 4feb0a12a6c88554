"""Counters of checks and situations, summed over runs."""

from __future__ import annotations

from consistency.checking.counters import Counters, show_table
from consistency.checking.coverage import cover
from spe.plan.directory import Standbys
from spe.stream.names import NodeId
from tests.support.histories import told
from tests.support.plans import placed
from tests.support.reachable import REACHABLE_EVENTS, REACHABLE_FAULTS, empty_cells
from tests.unit.consistency.checking.test_checkers import make_plan

RUN = """
0 state u1/0@n1a RECOVERING
0 open u1/0@n1a<a source:a #1 main 0
1 state u1/0@n1a STABLE
1 open client:c n1a #1 main 0
2 recv u1/0@n1a<a source:a #1 main: S1/10x B20
2 recv u1/0@n1a<a source:a #1 closed: S2/20x
3 fault 1 cut source:b>n1a n1a>source:b
3 fault 2 kill n1b
3 down n1b
4 state u1/0@n1a UP_FAILURE
5 state u1/0@n1a STABILIZATION
5 note n1a partner_asks asker=n1b
6 state u1/0@n1a STABLE
"""


def counters() -> Counters:
    found = Counters()
    cover(told(RUN), *make_plan(), found)
    return found


def test_events_of_a_replica_are_counted_by_its_state() -> None:
    assert counters().events == {
        ("RECOVERING", "subscribes"): 1,
        ("RECOVERING", "becomes STABLE"): 1,
        ("STABLE", "is subscribed to"): 1,
        ("STABLE", "stable tuples"): 1,
        ("STABLE", "stable boundary"): 1,
        ("STABLE", "becomes UP_FAILURE"): 1,
        ("RECOVERING", "dies"): 1,
        ("UP_FAILURE", "becomes STABILIZATION"): 1,
        ("STABILIZATION", "partner asks"): 1,
        ("STABILIZATION", "becomes STABLE"): 1,
    }
    assert counters().amounts["reconciliations"] == 1


def test_faults_are_counted_by_the_state_of_the_affected_replica() -> None:
    assert counters().faults == {("cut", "STABLE"): 1, ("kill", "RECOVERING"): 1}
    assert counters().amounts["faults"] == 2


def test_faults_are_counted_by_phase_of_move_and_standby_state() -> None:
    plan, directory = make_plan()
    of = next(iter(directory.placement))
    standby, primary = NodeId("n1b"), NodeId("n1a")
    directory = placed(directory, {of: (primary,)}, {of: Standbys((standby,), 100_000)})
    found = Counters()
    events = f"""
    0 fault 1 kill {standby}
    1 note {standby} checkpoint_taken replica={of}@{standby} maker={primary} bytes=1
    1 note coordinator move_ordered number=4 predicted_us=1 move=x reason=ordered
    1 fault 2 power {standby}
    1 fault 3 freeze coordinator
    2 note {standby} checkpoint_taken replica={of}@{standby} maker={primary} bytes=1
    2 note coordinator move number=4 phase=install source={primary} target={of}@{standby} why=
    2 fault 4 freeze {standby}
    3 state {of}@{standby} STABLE
    3 fault 5 flip {standby}
    4 note coordinator move number=4 phase=done source={primary} target={of}@{standby} why=
    4 fault 6 lie {primary}
    """
    cover(told(events), plan, directory, found)
    states = {"STABLE", "RECOVERING"}
    assert {cell: n for cell, n in found.faults.items() if cell[1] not in states} == {
        ("kill", "standby empty"): 1,
        ("power", "standby has one"): 1,
        ("freeze", "move wait"): 1,
        ("freeze", "move install"): 1,
        ("freeze", "standby has two"): 1,
        ("flip", "move install"): 1,
        ("flip", "standby runs"): 1,
    }


def test_counters_add_up_over_runs() -> None:
    total = counters()
    total.merge(counters())
    assert total.amounts["faults"] == 4
    assert total.events["STABLE", "stable tuples"] == 2
    assert total.faults["cut", "STABLE"] == 2


def test_reachable_cells_without_events_are_listed() -> None:
    events = counters().events
    empty = empty_cells(events, REACHABLE_EVENTS)
    assert ("STABLE", "dies") in empty
    assert ("STABLE", "stable tuples") not in empty
    assert empty_cells(counters().faults, REACHABLE_FAULTS) == sorted(REACHABLE_FAULTS - {("cut", "STABLE")})
    assert empty_cells(dict.fromkeys(REACHABLE_EVENTS, 1), REACHABLE_EVENTS) == []


def test_a_table_has_a_column_per_state() -> None:
    assert show_table({("STABLE", "dies"): 3, ("UP_FAILURE", "wakes"): 12}) == [
        "       STABLE  UP_FAILURE",
        "dies        3           0",
        "wakes       0          12",
    ]
    assert show_table({}) == []
