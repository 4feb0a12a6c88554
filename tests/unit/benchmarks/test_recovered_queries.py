"""When a query is recovered (rule O2)."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.experiments.incremental import recovered_s
from spe.stream.times import MILLISECOND, SECOND

ORDINARY_US = 400 * MILLISECOND
#: Lags, ten a second: what a query had before.
GOOD = [ORDINARY_US] * 10


def after(*parts: list[int]) -> float | None:
    return recovered_s(np.array([lag for part in parts for lag in part]), ORDINARY_US)


def silent(seconds: int) -> list[int]:
    """Lags of a query without results."""
    return [ORDINARY_US + at * SECOND // 10 for at in range(10 * seconds)]


def test_a_query_that_lags_no_more_is_recovered_at_once() -> None:
    assert after(GOOD * 6) == 0


def test_a_query_is_recovered_where_five_good_seconds_begin() -> None:
    assert after(silent(3), GOOD * 6) == pytest.approx(3, abs=0.2)


def test_a_lag_of_1_2_times_that_before_is_too_long() -> None:
    assert after([ORDINARY_US * 12 // 10] * 60) is None
    assert after([ORDINARY_US * 12 // 10 - 1] * 60) == 0


def test_the_mean_of_five_seconds_counts() -> None:
    """A lag of 0.5 s more for 0.5 s adds 0.05 s to the mean; one for a second adds 0.1 s."""
    short, long = [[ORDINARY_US + SECOND // 2] * many for many in (5, 10)]
    assert after(short, GOOD * 6) == 0
    assert after(long, GOOD * 6) == pytest.approx(0.3, abs=0.1)


def test_the_first_five_good_seconds_count() -> None:
    assert after(silent(2), GOOD * 4, silent(2), GOOD * 6, silent(2)) == pytest.approx(8, abs=0.3)


def test_less_than_five_good_seconds_at_the_end_are_not_enough() -> None:
    assert after(silent(2), GOOD * 4) is None
    assert after(GOOD * 4) is None
