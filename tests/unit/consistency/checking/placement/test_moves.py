"""The checker of moves: each order ends soon after nothing fails any more."""

from __future__ import annotations

from consistency.checking.bounds import Bounds
from consistency.checking.checked_run import CheckedRun
from consistency.checking.counters import Counters
from consistency.checking.node_settings import InForce
from consistency.checking.placement.moves import allowed_us, check_moves
from consistency.checking.schedule import intervals
from spe.stream.history import Event, History, Note, ProcessDown, ProcessUp
from spe.stream.times import SECOND
from tests.simulation.test_cluster import make_plan

PLAN, DIRECTORY = make_plan(1, replicas=2)
BOUND = allowed_us(PLAN, DIRECTORY)


def found(*events: Event, dead: str = "") -> list[str]:
    history = History(sorted(events, key=lambda event: event.at_us))
    in_force = InForce(PLAN, DIRECTORY, {})
    static = intervals(history, PLAN, DIRECTORY, in_force)
    run = CheckedRun(history, static, PLAN, DIRECTORY, in_force, Bounds.of(PLAN, DIRECTORY), Counters())
    return [finding.what.partition(" is")[0] for finding in check_moves(run, {dead} - {""})]


def ordered(at_us: int, number: int) -> Note:
    return Note(at_us, "coordinator", "move_ordered", f"number={number} move=move reason=ordered")


def phase(at_us: int, number: int, name: str) -> Note:
    return Note(
        at_us, "coordinator", "move", f"number={number} phase={name} source=n1a target=u1/0@n1b why=none at all"
    )


def test_an_order_that_ends_in_time_is_fine() -> None:
    assert found(ordered(0, 1), phase(5, 1, "leave"), phase(BOUND, 1, "done")) == []
    assert found(ordered(0, 1), phase(BOUND, 1, "dropped")) == []


def test_unfinished_order_is_detected() -> None:
    assert found(ordered(0, 1), phase(5, 1, "leave"), ordered(BOUND + SECOND, 2)) == ["move 1"]
    assert found(ordered(0, 1), phase(BOUND + SECOND, 1, "done")) == ["move 1"]


def test_each_order_has_its_time_once_it_is_the_oldest() -> None:
    assert found(ordered(0, 1), ordered(0, 2), phase(BOUND, 1, "done"), phase(2 * BOUND, 2, "done")) == []
    late = phase(2 * BOUND + 1, 2, "done")
    assert found(ordered(0, 1), ordered(0, 2), phase(BOUND, 1, "done"), late) == ["move 2"]


def test_move_is_not_judged_while_a_node_is_away_temporarily() -> None:
    down, up = ProcessDown(BOUND // 2, "n1b"), ProcessUp(BOUND, "n1b", 2)
    late = phase(BOUND + SECOND, 1, "done")
    assert found(ordered(0, 1), down, up, late) == []
    assert found(ordered(0, 1), down, late, dead="n1b") == ["move 1"]
