"""State of a join: what it has forgotten, what it needs, and matches that are taken back; small cases by hand."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from operators.join import steps as join_steps
from operators.operator import Operator
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.windows import SlidingWindow
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.operators import Run, Tuple, make, step_sizes

SIDE = Schema.of(key="string", n="int64")
A_ROW: Tuple = (5, ("a", 1))


def join(kind: JoinKind, lower: int, upper: int) -> Operator:
    spec = JoinSpec(StreamId("left"), StreamId("right"), kind, (("key", "key"),), None, lower, upper)
    return make(spec, SIDE, SIDE)


def run_of(operator: Operator, previous: int | None = None) -> Run:
    return Run(operator, [SIDE, SIDE]) if previous is None else Run(operator, [SIDE, SIDE], previous)


def copy_of(operator: Operator, lower: int, upper: int, kind: JoinKind = JoinKind.LEFT) -> Operator:
    copy = join(kind, lower, upper)
    copy.restore(operator.snapshot())
    return copy


def test_a_row_without_an_end_is_due_at_the_end_of_time() -> None:
    """U5: it could be matched for ever."""
    run = run_of(join(JoinKind.LEFT, 0, END_OF_TIME))
    assert run.slice([[A_ROW], []], END_OF_TIME) == [(END_OF_TIME - 1, ("a", 1, None, None))]


@pytest.mark.parametrize("kind", JoinKind)
def test_rows_are_matched_up_to_their_last_instant(kind: JoinKind) -> None:
    """U5: a slice ends there, in which another row came and the two runs of rows were merged."""
    run = run_of(join(kind, 0, 10))
    ports: list[list[Tuple]] = [[A_ROW, (14, ("a", 3))], [(15, ("a", 2))]]
    assert [run.slice(ports, end) for end in (10, 15)] == [[], []]
    assert run.slice(ports, END_OF_TIME) == [(15, ("a", 1, "a", 2)), (15, ("a", 3, "a", 2))]


def test_pairs_come_before_unmatched_rows_of_one_instant() -> None:
    """U5: the row of 5 could be matched up to that instant."""
    ports: list[list[Tuple]] = [[A_ROW, (10, ("b", 2))], [(15, ("b", 3))]]
    rows = run_of(join(JoinKind.LEFT, 0, 10)).slice(ports, END_OF_TIME)
    assert rows == [(15, ("b", 2, "b", 3)), (15, ("a", 1, None, None))]


def test_a_match_after_a_checkpoint_is_not_in_it() -> None:
    """C1: the row that it met may not come again."""
    operator = join(JoinKind.LEFT, -10, 100)
    run = run_of(operator)
    run.slice([[A_ROW], []], 10)
    checkpoint = operator.snapshot()
    assert len(run.slice([[A_ROW], [(12, ("a", 2))]], 20)) == 1
    operator.restore(checkpoint)
    assert run_of(operator, 10).slice([[A_ROW], []], END_OF_TIME) == [(105, ("a", 1, None, None))]


def test_a_restored_join_knows_that_it_has_forgotten() -> None:
    """R9: it cannot be as it was before that."""
    operator = join(JoinKind.INNER, -10, 10)
    run = run_of(operator)
    for end in (10, 100):
        run.slice([[A_ROW], []], end)
    assert not copy_of(operator, -10, 10, JoinKind.INNER).rewind(50)
    assert copy_of(operator, -10, 10, JoinKind.INNER).rewind(100)


def met_and_dropped() -> Operator:
    """A left row of 20 has met a right one of 5, which is not held any more."""
    operator = join(JoinKind.LEFT, -20, 100)
    run = run_of(operator)
    ports: list[list[Tuple]] = [[(20, ("a", 1))], [(5, ("a", 2))]]
    assert [len(run.slice(ports, end)) for end in (10, 22, 40)] == [0, 1, 0]
    return operator


def test_an_outer_row_needs_the_rows_that_it_has_met() -> None:
    """R9, G7: without them it would come out as a row that met none."""
    assert met_and_dropped().oldest_needed() == 5


def test_a_join_that_is_being_restored_needs_the_same_input() -> None:
    """R9, G7: the state comes in portions."""
    with step_sizes():
        operator = met_and_dropped()
        copy = copy_of(operator, -20, 100)
        assert copy.load(), "there is more of it"
        assert copy.oldest_needed() == 5
        while copy.load():
            assert copy.oldest_needed() == 5
        assert copy.oldest_needed() == 5


def test_rows_after_a_restore_come_behind_those_before() -> None:
    """U2: both are due at 20, and the order of arrival decides."""
    left: list[Tuple] = [(1, ("x", 0)), (9, ("a", 1))]
    right: list[Tuple] = [(10, ("b", 2))]
    operator = join(JoinKind.FULL, -10, 11)
    run_of(operator).slice([left, right], 10)
    rows = run_of(copy_of(operator, -10, 11, JoinKind.FULL), 10).slice([left, right], END_OF_TIME)
    assert [(time, values[0] or values[2]) for time, values in rows] == [(12, "x"), (20, "a"), (20, "b")]


@pytest.mark.parametrize("kind", JoinKind)
def test_a_long_slice_is_cut_between_two_instants(kind: JoinKind) -> None:
    """U3: rows of one time on both sides are processed together."""
    ports: list[list[Tuple]] = [[(at // 3, ("a", side * 100 + at)) for at in range(12)] for side in (0, 1)]
    whole = run_of(join(kind, -1, 1)).slice(ports, END_OF_TIME)
    with patch.object(join_steps, "_STEP_ROWS", 2):
        assert run_of(join(kind, -1, 1)).slice(ports, END_OF_TIME) == whole


STAMPED = Schema.of(ts="timestamp", n="int64")
SLIDING = SlidingWindow(10, 5, 0, "ts")


@pytest.mark.parametrize(("time", "starts"), [(9, [0, 5]), (10, [5]), (14, [5]), (15, [])])
def test_a_late_row_joins_in_open_windows_only(time: int, starts: list[int]) -> None:
    """U7: both rows are in [0, 10) and [5, 15); the right one comes when these have ended, or not."""
    spec = JoinSpec(StreamId("left"), StreamId("right"), JoinKind.INNER, (), SLIDING)
    ports: list[list[Tuple]] = [[(6, (6, 1))], [(time, (7, 2))]]
    rows = Run(make(spec, STAMPED, STAMPED), [STAMPED, STAMPED]).slice(ports, END_OF_TIME)
    assert [values[-2] for _, values in rows] == starts
