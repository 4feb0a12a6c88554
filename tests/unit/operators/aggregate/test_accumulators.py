"""The mean of int64: exact sums, rounded once."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from operators.aggregate.accumulators import rounded
from operators.aggregate.calls import Calls
from operators.aggregate.group_cells import Cells
from operators.steps import finished
from operators.strings import KeptStrings
from spe.query.operators.aggregate import AggregateCall
from spe.stream.batch import Column
from spe.stream.schema import Schema

LARGEST, SMALLEST = 2**63 - 1, -(2**63)


def mean_cells() -> Cells:
    return Cells(Calls({"mean": AggregateCall("avg", "n")}, Schema.of(n="int64!")), KeptStrings())


def take(cells: Cells, *values: int) -> None:
    column = Column(np.array(values, np.int64))
    at = cells.cells_of(np.zeros(len(values), np.intp), 1, 0)
    cells.update(at, [column], at)


def mean(cells: Cells) -> float:
    calls = Calls({"mean": AggregateCall("avg", "n")}, Schema.of(n="int64!"))
    return float(calls.results(cells.parts, slice(0, 1))[0].values[0])


def test_a_mean_of_integers_does_not_overflow() -> None:
    cells = mean_cells()
    take(cells, LARGEST, LARGEST, LARGEST)
    assert mean(cells) == 2.0**63
    take(cells, SMALLEST, SMALLEST, SMALLEST, -1, 1)
    assert mean(cells) == -3 / 8


def test_a_mean_merged_from_panes_does_not_overflow() -> None:
    panes = [mean_cells() for _ in range(3)]
    for pane in panes:
        take(pane, SMALLEST, SMALLEST + 1, -5)
    whole = mean_cells()
    for pane in panes:
        finished(whole.absorb(pane, np.zeros(1, np.intp) - (whole.count == 0)))
    assert mean(whole) == float(3 * (2 * SMALLEST - 4)) / 9


@given(st.lists(st.integers(-(2**95), 2**95 - 1) | st.integers(0, 95).map(lambda n: 2**n) | st.integers(), min_size=1))
@example([2**63 + 2**10, 2**63 + 2**10 + 1, 2**63 + 3 * 2**10, -(2**63) - 2**10 - 1, 2**95 - 1, -(2**95), 0, -1])
@example([sign * ((1 << n) + (1 << n - 53) + rest) for n in range(53, 94) for rest in (-1, 0, 1) for sign in (-1, 1)])
def test_sums_of_96_bits_are_rounded_once(sums: list[int]) -> None:
    sums = [(n + 2**95) % 2**96 - 2**95 for n in sums]
    high, low = np.array([n >> 32 for n in sums], np.int64), np.array([n & 2**32 - 1 for n in sums], np.int64)
    assert rounded(high, low).tolist() == [float(n) for n in sums]
