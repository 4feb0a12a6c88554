"""Sort keys of floats: NaN is the largest number, 0 and -0 are equal, whatever else is in the column."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest

from operators.ordering import best, in_reach, sort_keys
from spe.stream.batch import Column


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nan", [[], [math.nan], [math.nan, -math.nan]])
@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("with_ties", [False, True])
def test_floats_are_ordered_like_numbers(descending: bool, nan: list[float], null: bool, with_ties: bool) -> None:
    values = [0.0, 2.5, -math.inf, -0.0, 1e300, math.inf, *nan, -2.5, 0.0]
    valid = np.array([value != 2.5 for value in values]) if null else None
    keys = sort_keys(Column(np.array(values), valid), descending)

    def place(row: int) -> tuple[float, float]:
        if null and values[row] == 2.5:
            return (-math.inf, 0.0)  # null is smaller than everything
        return (math.inf, 0.0) if math.isnan(values[row]) else (0.0, values[row])

    rows = range(len(values))
    wanted = sorted(rows, key=lambda row: tuple(-part if descending else part for part in place(row)))
    earlier = operator.gt if descending else operator.lt
    ranks = [1 + sum(earlier(place(other), place(row)) for other in rows) for row in wanted]
    for k in (1, 3, len(values)):
        if not with_ties:
            ranks = list(range(1, len(values) + 1))
        count = sum(rank <= k for rank in ranks)
        for groups in (None, np.zeros(len(values), np.int64)):
            order, rank, first = best(groups, keys, k, with_ties)
            assert order.tolist() == wanted[:count]
            assert rank.tolist() == ranks[:count]
            assert first.tolist() == [min(wanted[:count])] * count
    if not null:
        assert set(wanted[:3]) <= set(in_reach(keys[0], 3).tolist())
