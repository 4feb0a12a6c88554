"""The checker of orders finds two standbys that begin at once (H7); targets of moves do not count."""

from __future__ import annotations

from consistency.checking.bounds import Bounds
from consistency.checking.checked_run import CheckedRun
from consistency.checking.counters import Counters
from consistency.checking.node_settings import InForce
from consistency.checking.placement.orders import check_orders
from consistency.checking.schedule import intervals
from spe.stream.history import Event, History, Note, StateChanged
from spe.stream.names import NodeState
from tests.support.recovery_order import three_queries

SECOND = 1_000_000


def findings(*events: Event) -> list[str]:
    """Rules that are broken while n1, n2 and n3 serve fa, fb and fc."""
    plan, directory = three_queries({})
    homes = {"fa": "n1", "fb": "n2", "fc": "n3"}
    before = [StateChanged(1, f"{f}/0@{n}", NodeState.STABLE, False) for f, n in homes.items()]
    history = History([*before, *events])
    in_force = InForce(plan, directory, {})
    static = intervals(history, plan, directory, in_force)
    run = CheckedRun(history, static, plan, directory, in_force, Bounds.of(plan, directory), Counters())
    return [one.rule for one in check_orders(run)]


def install(at_s: float, replica: str) -> list[Event]:
    at_us = round(at_s * SECOND)
    return [
        Note(at_us, replica.partition("@")[2], "order", f"verb=install replica={replica} epoch=1 refused="),
        StateChanged(at_us, replica, NodeState.RECOVERING, False),
    ]


def move(at_s: float, phase: str) -> Note:
    return Note(round(at_s * SECOND), "coordinator", "move", f"phase={phase} source=n1 target=fa/0@n4 why=")


def test_one_active_begins_at_a_time() -> None:
    assert findings(*install(30, "fa/0@n4"), *install(30.5, "fb/0@n5")) == ["one active begins at a time"]


def test_the_target_of_a_dropped_move_counts_as_stopped() -> None:
    """It stands by again with the directory, without an order."""
    target = [move(29, "install"), *install(30, "fa/0@n4"), move(30.2, "dropped")]
    back = StateChanged(round(30.3 * SECOND), "fa/0@n4", NodeState.RECOVERING, False, False)
    assert findings(*target, back, *install(30.5, "fb/0@n5")) == []
