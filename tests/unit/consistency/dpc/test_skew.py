"""An input whose tuple time lags the others although nothing has failed (S5: it is reported)."""

from __future__ import annotations

from consistency.dpc.skew import InputSkew
from operators.sunion.sunion import SUnion
from spe.stream.batch import Boundary
from spe.stream.names import Kind
from spe.stream.times import END_OF_TIME

BOTH = (True, True)


class Case:
    """Buckets of 10, αX = 30, X = 40; boundaries are ``B(input, wall time, tuple time)``."""

    def __init__(self) -> None:
        self.sunion = SUnion(inputs=[(0, True), (0, True)], streams=1, bucket_us=10)
        self.skew = InputSkew(self.sunion, bucket_us=10, alpha_x_us=30, x_us=40)

    def B(self, at: int, now: int, time: int) -> None:
        self.sunion.inputs[at].add_boundary(Boundary(Kind.STABLE, time, 0), now)


def test_a_lag_beyond_alpha_x_is_reported_once_after_x() -> None:
    case = Case()
    case.B(0, 100, 50)
    case.B(1, 100, 10)
    assert [case.skew.watch(now, BOTH) for now in (130, 131, 170, 171, 172)] == [[], [], [], [1], []]
    assert case.skew.lagging == {1}
    assert (case.skew.foremost(), case.skew.behind_us(1)) == (0, 40)


def test_a_new_lag_is_reported_again() -> None:
    case = Case()
    case.B(0, 100, 50)
    case.B(1, 100, 10)
    case.skew.watch(131, BOTH)
    assert case.skew.watch(171, BOTH) == [1]
    case.B(1, 180, 50)
    case.B(0, 180, 90)
    assert case.skew.watch(195, BOTH) == []
    assert case.skew.lagging == {1}
    case.B(1, 196, 90)
    assert case.skew.watch(196, BOTH) == []
    assert case.skew.lagging == set()
    case.B(0, 200, 150)
    case.B(1, 205, 100)
    case.skew.watch(231, BOTH)
    assert case.skew.watch(271, BOTH) == [1]


def test_an_input_that_was_cut_off_has_x_to_catch_up() -> None:
    case = Case()
    case.B(0, 100, 50)
    case.B(1, 100, 10)
    for now in (140, 300, 500):
        assert case.skew.watch(now, (True, False)) == []
    assert case.skew.watch(510, BOTH) == []
    assert case.skew.watch(549, BOTH) == []
    case.B(1, 549, 50)
    assert case.skew.watch(560, BOTH) == []
    assert not case.skew.lagging


def test_time_in_which_the_node_was_frozen_does_not_count() -> None:
    case = Case()
    case.B(0, 100, 50)
    case.B(1, 100, 10)
    case.skew.watch(131, BOTH)
    case.sunion.clocks.shift(100, 231)
    case.skew.shift(100, 231)
    assert case.skew.watch(270, BOTH) == []
    assert case.skew.watch(271, BOTH) == [1]


def test_ended_and_unheard_inputs_do_not_lag() -> None:
    case = Case()
    case.B(0, 100, 50)
    for now in (131, 171, 300):
        assert case.skew.watch(now, BOTH) == []
    case.B(1, 300, END_OF_TIME)
    for now in (331, 400):
        assert case.skew.watch(now, BOTH) == []


def test_an_episode_lasts_until_the_lag_is_half_of_alpha_x() -> None:
    """Lags of about αX are reported once."""
    case = Case()
    case.B(0, 100, 50)
    case.B(1, 100, 10)
    case.skew.watch(131, BOTH)
    assert case.skew.watch(171, BOTH) == [1]
    case.B(0, 175, 110)
    case.B(1, 175, 60)
    assert case.skew.watch(191, BOTH) == []
    assert case.skew.lagging == {1}, "16 are more than half"
    assert case.skew.watch(206, BOTH) == []
    assert case.skew.watch(246, BOTH) == []
    case.B(1, 247, 110)
    case.skew.watch(247, BOTH)
    assert case.skew.lagging == set()
