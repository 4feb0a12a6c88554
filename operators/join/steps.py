"""Bounds the work of a join: cuts slices into pieces, and candidate pairs into portions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from operators import steps
from operators.ids import IndexArray
from operators.join.runs import SortedRun
from spe.stream.batch import Rows

#: Rows of a slice processed at once: in a slice much longer than the window, distant rows would be paired.
_STEP_ROWS: Final = 8192


@dataclass(slots=True)
class Probe:
    """Rows of one side, to be matched with a run of the other side.

    Attributes:
      side: side of the probing rows, which are the run ``new``.
      run: run of the other side.
      fresh: the run holds rows of the same step, which may come after the probing ones.
      start, stop: per probing row, the range in ``run.order``.
    """

    side: int
    new: SortedRun
    run: SortedRun
    fresh: bool
    start: IndexArray
    stop: IndexArray


def cut(left: Rows | None, right: Rows | None, boundary: int) -> Iterator[tuple[Rows | None, Rows | None, int]]:
    """Cuts a slice into pieces of bounded size, between instants.  U3: cuts do not change the result."""
    times = [rows.time for rows in (left, right) if rows is not None]
    total = sum(len(t) for t in times)
    if total > 2 * _STEP_ROWS:
        cuts = np.unique(np.sort(np.concatenate(times))[_STEP_ROWS::_STEP_ROWS])
        for time in cuts.tolist():
            parts: list[Rows | None] = []
            rests: list[Rows | None] = []
            for rows in (left, right):
                at = 0 if rows is None else int(rows.time.searchsorted(time))
                parts.append(None if rows is None or not at else rows.slice(0, at))
                rests.append(None if rows is None else rows.slice(at, len(rows)))
            yield parts[0], parts[1], time
            left, right = rests
    yield left, right, boundary


def portions(probes: list[Probe]) -> list[tuple[int, int]]:
    """Returns ranges of positions with few enough candidates to expand at once."""
    first = min(int(p.new.positions[0]) for p in probes)
    last = max(int(p.new.positions[-1]) for p in probes) + 1
    load = np.zeros(last - first, np.int64)
    for probe in probes:
        load[probe.new.positions - first] += probe.stop - probe.start
    total = load.cumsum()
    if total[-1] <= steps.PAIRED:
        return [(first, last)]
    cuts = total.searchsorted(np.arange(steps.PAIRED, int(total[-1]), steps.PAIRED), side="right")
    edges = [first, *(np.unique(cuts[cuts > 0]) + first).tolist(), last]
    return [(a, b) for a, b in pairwise(edges) if a < b]
