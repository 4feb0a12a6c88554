"""How late a result may be while X changes (X5)."""

from __future__ import annotations

from random import Random

from spe.plan.bound_changes import SharesInForce, ShareStep
from spe.plan.plan import Plan
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import StreamId, UnitId
from spe.stream.times import BEFORE_TIME
from tests.simulation.test_cluster import make_plan

PLAN: Plan = make_plan(2)[0]
U1, U2 = PartitionId(UnitId("u1"), 0), PartitionId(UnitId("u2"), 0)
OUT = Channel(StreamId("s2"), 0)


def shares(first: list[ShareStep], *second: list[ShareStep]) -> SharesInForce:
    return SharesInForce(PLAN, {U1: [first], U2: second or [[(0, 10)]]})


def test_without_changes_it_is_the_sum_along_the_way() -> None:
    one = shares([(5, 7)], [(0, 10)], [(9, 3)])
    assert (one.changes, one.bound_us(OUT)) == ([], 17)
    assert one.entered_us(OUT, 4) == 17
    assert one.entries(OUT) == [(BEFORE_TIME, 17)]
    assert one.bound_us(Channel(StreamId("a"), 0)) == 0


def test_longer_x_counts_for_rows_on_their_way() -> None:
    one = shares([(0, 10), (100, 50)])
    assert one.entered_us(OUT, 79) == 20, "it must have come when the change does"
    assert one.entered_us(OUT, 80) == 60
    assert one.entries(OUT) == [(BEFORE_TIME, 20), (80, 60)]


def test_shorter_x_does_not_count_for_rows_on_their_way() -> None:
    one = shares([(0, 50), (100, 10)])
    assert (one.entered_us(OUT, 99), one.entered_us(OUT, 100)) == (60, 20)
    assert one.entries(OUT) == [(BEFORE_TIME, 60), (100, 20)]


def test_each_unit_counts_with_its_longest_x_on_the_way() -> None:
    """X goes from the first to the second: what waits may meet both."""
    one = shares([(0, 50), (100, 10)], [(0, 10), (100, 50)])
    assert one.entered_us(OUT, 90) == 100
    assert one.entered_us(OUT, 30) == 60
    assert one.entered_us(OUT, 100) == 60


def test_a_node_counts_from_when_it_has_a_role_until_it_has_none() -> None:
    one = shares([(0, 10)], [(0, 10)], [(0, None), (100, 90), (200, None)])
    assert one.entered_us(OUT, 50) == 20
    assert one.entered_us(OUT, 150) == 100
    assert one.entered_us(OUT, 200) == 20
    assert SharesInForce(PLAN, {U1: [[(0, 1)]]}).bound_us(OUT) is None, "of the second nothing is known"


def test_slow_ways_are_longer_and_meet_more_changes() -> None:
    one = shares([(0, 10), (100, 50)])
    assert one.entered_us(OUT, 60, lambda us: 2 * us) == 60
    assert one.entered_us(OUT, 59, lambda us: 2 * us) == 20


def test_steps_of_entries_equal_values_at_each_moment() -> None:
    random = Random(5)
    for _ in range(50):
        one = shares(
            *([(at, random.choice([5, 9, 20, 40])) for at in sorted(random.sample(range(200), 4))] for _ in "ab")
        )
        steps = one.entries(OUT)
        for at in range(-100, 220):
            assert [us for from_us, us in steps if from_us <= at][-1] == one.entered_us(OUT, at), at
