"""The checker of recoveries finds orders beyond a node's room (O1) and orders against the newest plan (O6)."""

from __future__ import annotations

from collections.abc import Sequence

from consistency.checking.bounds import Bounds
from consistency.checking.checked_run import CheckedRun
from consistency.checking.counters import Counters
from consistency.checking.node_settings import InForce
from consistency.checking.placement.recovery_order import check_recovery_order
from consistency.checking.schedule import intervals
from spe.stream.history import Event, FaultBegan, FaultEnded, History, Note, ProcessDown, StateChanged
from spe.stream.names import NodeState
from tests.support.recovery_order import three_queries

SECOND = 1_000_000
LOADS = {"fa": 0.5, "fb": 0.4, "fc": 0.3}


def findings(*events: Event, backs: list[str] | None = None, reads: str = "s", others: Sequence[str] = ()) -> list[str]:
    """Rules that are broken once all three have run for 30 s and then died with their nodes.

    Args:
      reads: what fc reads.
      others: spare nodes.
    """
    plan, directory = three_queries(LOADS, backs=backs, reads=reads, others=others)
    homes = {"fa": "n1", "fb": "n2", "fc": "n3"}
    before: list[Event] = [StateChanged(1, f"{f}/0@{n}", NodeState.STABLE, False) for f, n in homes.items()]
    before += [ProcessDown(30 * SECOND, n) for n in homes.values()]
    history = History([*before, *events])
    in_force = InForce(plan, directory, {})
    static = intervals(history, plan, directory, in_force)
    run = CheckedRun(history, static, plan, directory, in_force, Bounds.of(plan, directory), Counters())
    return [one.rule for one in check_recovery_order(run)]


def planned(at_s: float, installs: str, waits: str = "") -> Note:
    return Note(round(at_s * SECOND), "coordinator", "recovery_planned", f"installs={installs} waits={waits}")


def install(at_s: float, replica: str) -> list[Event]:
    at_us = round(at_s * SECOND)
    return [
        Note(at_us, "coordinator", "ordered", f"verb=install replica={replica} number=1"),
        Note(at_us, replica.partition("@")[2], "order", f"verb=install replica={replica} epoch=1 refused="),
        StateChanged(at_us, replica, NodeState.RECOVERING, False),
    ]


def serves(at_s: float, replica: str) -> Event:
    return StateChanged(round(at_s * SECOND), replica, NodeState.STABLE, False)


def test_a_recovery_that_follows_its_plan_has_no_findings() -> None:
    plan = planned(31, "fb/0@n4,fa/0@n5,fc/0@n4")
    both = [*install(31.1, "fb/0@n4"), *install(31.1, "fa/0@n5"), serves(33, "fb/0@n4"), *install(33.1, "fc/0@n4")]
    assert findings(plan, *both) == []


def test_a_node_is_not_filled_beyond_its_room() -> None:
    both = [*install(31, "fa/0@n4"), serves(33, "fa/0@n4"), *install(40, "fb/0@n4")]
    assert findings(*both) == ["room holds at each order"]


def test_orders_follow_the_newest_plan() -> None:
    first, second = planned(31, "fb/0@n4,fc/0@n4"), planned(32, "fa/0@n4,fc/0@n5")
    assert findings(first, second, *install(33, "fb/0@n4")) == ["orders follow the current plan"]
    assert findings(first, *install(33, "fc/0@n4")) == ["orders follow the current plan"], "fb comes first"


def test_no_second_node_may_restore_a_partition() -> None:
    plans = [planned(31, "fb/0@n4"), *install(31.1, "fb/0@n4"), planned(39, "fb/0@n5"), *install(40, "fb/0@n5")]
    assert findings(*plans) == ["a partition that is being restored is not ordered again"]


def test_a_replica_without_a_state_may_be_helped_by_any_node() -> None:
    """H8 follows neither the plan nor the room; before the time of H5 is over, it is an error."""
    flip = [FaultBegan(30 * SECOND, 1, "flip", ("n4",)), FaultEnded(30 * SECOND + 1, 1)]
    both = [planned(31, "fb/0@n4,fa/0@n5"), *install(31.1, "fb/0@n4"), *install(31.1, "fa/0@n5"), serves(33, "fa/0@n5")]
    assert findings(*flip, *both, planned(34, ""), *install(45, "fb/0@n5")) == []
    assert findings(*flip, *both, *install(32, "fb/0@n5")) == [
        "orders follow the current plan",
        "room holds at each order",
    ]


def test_a_node_restores_one_after_the_other() -> None:
    plan = planned(31, "fc/0@n4,fb/0@n4")
    assert findings(plan, *install(32, "fc/0@n4"), *install(44, "fb/0@n4")) == ["a node restores one after the other"]


def test_a_partition_that_waits_for_lost_input_delays_no_other() -> None:
    """fc reads fa, which stays lost."""
    plan, first = planned(31, "fc/0@n4,fb/0@n4"), install(32, "fc/0@n4")
    assert findings(plan, *first, *install(33, "fb/0@n4"), reads="a") == []
    late = findings(plan, *first, *install(44, "fb/0@n4"), reads="a")
    assert late == ["waiting for lost input holds up nothing"]


def test_with_room_for_all_that_waits_nothing_stays_lost() -> None:
    end = Note(90 * SECOND, "n4", "nothing")
    assert set(findings(end, backs=["n4"])) == set(), "n4 has not room for all three"
    two = [*install(31, "fb/0@n4"), serves(33, "fb/0@n4"), end]
    assert set(findings(*two)) == set()
    one = [*install(31, "fa/0@n5"), serves(33, "fa/0@n5"), *install(31, "fb/0@n4"), serves(33, "fb/0@n4"), end]
    assert findings(*one, backs=["n4"], others=["n5"]) == ["enough room implies that all return"]
    spare = findings(*install(31, "fb/0@n4"), serves(33, "fb/0@n4"), end, backs=["n4"], others=["n6"])
    assert spare == ["enough room implies that all return"] * 2, "n6 has room for fa and fc"
