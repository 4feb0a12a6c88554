"""Rows report whether they are in order of time, also for parts of them."""

from __future__ import annotations

import numpy as np
import pytest

from spe.stream.batch import Rows


def rows(*times: int) -> Rows:
    time = np.array(times, np.int64)
    return Rows(time, time, ())


@pytest.mark.parametrize("times", [(1, 3, 3, 8), (5, 1, 3, 4), (1, 5, 3, 4), (7,)])
@pytest.mark.parametrize("asked", [False, True])
def test_a_part_may_be_in_order_where_the_whole_is_not(times: tuple[int, ...], asked: bool) -> None:
    """Whether or not the order of the whole was determined before."""
    whole = rows(*times)
    if asked:
        assert whole.span() == (list(times) == sorted(times), min(times), max(times))
    for start in range(len(times)):
        for stop in range(start + 1, len(times) + 1):
            part = times[start:stop]
            assert whole.slice(start, stop).span() == (list(part) == sorted(part), min(part), max(part))


def test_a_slice_may_have_no_rows() -> None:
    whole = rows(1, 2)
    whole.span()
    assert len(whole.slice(1, 1)) == 0
