"""Checkpoint/redo against undo/redo: CPU time of one replica's operators, by size of the state and of the failure.

Real time, not virtual: this thread's CPU seconds, medians of several rounds in turns.  Both kinds of instances are
driven as a replica drives them: buckets of 100 ms until the state is full, a mark, tentative buckets of two streams,
then back to the mark and all three streams again, in slices of 20,000 rows per stream.

The model of the paper's table 1, with its p_copy and p_proc fitted to the sweeps of each way: a correction takes
S p_copy + (D + l / 2) λ p_proc, for a state S, a failure of D, l between two marks, and λ tuples/s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.experiments.record import Plot, Row, experiment
from benchmarks.experiments.setup import FAILED, STREAMS, Setup, configuration
from benchmarks.tables import demand
from consistency.dpc.instance import Instance, Released
from consistency.dpc.undo import UndoInstance
from operators.sunion.slice import Slice
from spe.config import load_plan_data
from spe.plan.plan import Limits, Unit
from spe.stream.batch import Batch, Column, Element, Rows
from spe.stream.names import Kind
from spe.stream.times import MILLISECOND, SECOND

WAYS: Final = {"checkpoint": Instance, "undo": UndoInstance}
BUCKET_US: Final = 100 * MILLISECOND
#: The paper's sweeps: states in tuples at 1,000 tuples/s, tuples to reprocess at a state of 20; a failure of 5 s.
STATES: Final = (20, 500, 1000, 2000, 3000, 4000)
RATES: Final = (1000, 3000, 6000, 9000)
#: Beyond the paper, at 100,000 tuples/s.
LARGE_STATES: Final = (10_000, 100_000, 1_000_000)
FAILURE_S: Final = 5
#: l, seconds, at 3,000 tuples/s.  A replica marks its state when the failure begins: l = 0.
INTERVALS_S: Final = (0, 2, 4, 8, 16)


def _points(quick: bool) -> Iterator[Row]:
    yield {"boxes": 1, "large": False}
    if not quick:
        yield {"boxes": 2, "large": False}
        yield {"boxes": 1, "large": True}


@experiment(
    "reconciling",
    "DPC, table 1 and section 6.4",
    _points,
    Plot("state", "curve", "correction_ms/model_ms", ("sweep", "state")),
    Plot("redone", "curve", "correction_ms/model_ms", ("sweep", "failure")),
    Plot("interval_s", "curve", "correction_ms/model_ms", ("sweep", "interval")),
    Plot("state", "curve", "correction_ms", ("sweep", "large state")),
)
def reconciling(quick: bool, boxes: int, large: bool) -> Iterator[Row]:
    """Checkpoint/redo against undo/redo."""
    if large:
        for state in LARGE_STATES:
            yield from correction("large state", Setup(rate=99_999, state=state), 3)
        return
    rounds, most = (1, 2) if quick else (8, None)
    rows: list[Row] = []
    for state in STATES[:most]:
        rows += correction("state", Setup(rate=999, depth=boxes, state=state), rounds)
    for rate in RATES[:most]:
        rows += correction("failure", Setup(rate=rate, depth=boxes, state=20), rounds)
    for interval_s in INTERVALS_S[:most]:
        rows += correction("interval", Setup(depth=boxes, state=20), rounds, interval_s)
    yield from with_model(rows)


def with_model(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows with what the fitted model says of each, by least squares of the relative errors."""
    costs = {}
    for curve in dict.fromkeys(row["curve"] for row in rows):
        mine = [row for row in rows if row["curve"] == curve]
        sizes = np.array([(row["state"] / row["correction_ms"], row["redone"] / row["correction_ms"]) for row in mine])
        costs[curve] = np.linalg.lstsq(sizes, np.ones(len(mine)), rcond=None)[0].tolist()
    for row in rows:
        state_ms, tuple_ms = costs[row["curve"]]
        expected = row["state"] * state_ms + row["redone"] * tuple_ms
        yield {**row, "model_ms": expected, "state_us": 1e3 * state_ms, "tuple_us": 1e3 * tuple_ms}


def correction(sweep: str, setup: Setup, rounds: int, interval_s: int = 0) -> Iterator[Row]:
    """Both ways in turns; what they make must be the same.  Half of the interval of marks has passed since the last."""
    unit = unit_of(setup)
    took: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    rows: dict[str, int] = {}
    for number in range(rounds):
        made = {}
        for way, kind in list(WAYS.items())[:: 1 if number % 2 else -1]:  # the first one has colder caches
            times, rows[way], made[way] = _correct(kind(unit), setup, interval_s / 2)
            took[way].append(times)
        demand(made["checkpoint"] == made["undo"], f"{setup}: the two ways differ")
    redone = round(setup.rate * (FAILURE_S + interval_s / 2))
    for way, rounds_of in took.items():
        mark, back, redo = (median(values) for values in zip(*rounds_of, strict=True))
        yield {
            "sweep": sweep,
            "curve": way if setup.depth == 1 else f"{way} ({setup.depth} boxes)",
            "way": way,
            "state": setup.state,
            "interval_s": interval_s,
            "redone": redone,
            "mark_us": 1e6 * mark,
            "back_ms": 1e3 * back,
            "redo_ms": 1e3 * redo,
            "correction_ms": 1e3 * (back + redo),
            "model_ms": None,
            "state_us": None,
            "tuple_us": None,
            "tuples_per_s": redone / (back + redo),
            "buffered_rows": rows[way],
        }


def unit_of(setup: Setup) -> Unit:
    """All joins of the chain in one unit on one node."""
    data = configuration(setup)
    data["nodes"] = ["n1a"]
    data["fragments"] = {"all": {"operators": list(data["query"]), "replicas": ["n1a"]}}
    return load_plan_data(data).units[0]


def _correct(instance: Instance, setup: Setup, marked_s: float) -> tuple[list[float], int, tuple[int, int]]:
    """([mark, back, redo] in seconds, rows in input buffers, (last id, digest of the results))."""
    full = max(2, -(-setup.state * SECOND // (setup.rate * BUCKET_US)) + 1)
    for at in range(full):
        whole(instance.stable(piece(setup.rate, at, at + 1, Kind.STABLE)))
    buffered = instance.buffered_rows if isinstance(instance, UndoInstance) else 0
    marked, mark = clocked(lambda: instance.mark(full * BUCKET_US))
    fails = full + round(marked_s * SECOND) // BUCKET_US
    for at in range(full, fails):
        whole(instance.stable(piece(setup.rate, at, at + 1, Kind.STABLE)))
    end = fails + FAILURE_S * SECOND // BUCKET_US
    for at in range(fails, end):
        whole(instance.tentative(piece(setup.rate, at, at + 1, Kind.TENTATIVE)))
    back, redo = clocked(lambda: _brought_back(instance, mark))
    step = max(1, Limits().slice_rows * len(STREAMS) * SECOND // (setup.rate * BUCKET_US))
    slices = [piece(setup.rate, at, min(at + step, end), Kind.STABLE) for at in range(full, end, step)]
    again, elements = clocked(lambda: [e for slice_ in slices for e in whole(redo.stable(slice_))])
    return [marked, back, again], buffered, summary(elements)


def _brought_back(instance: Instance, mark: Any) -> Instance:
    redo = instance.back(mark)
    while redo.rebuild(Limits().slice_rows):
        pass
    return redo


def whole(released: Iterator[Released]) -> list[Element]:
    """The elements of the unit's one output, from all portions of a slice."""
    return [element for portion in released if portion is not None for element in portion[1]]


def summary(elements: Sequence[Element]) -> tuple[int, int]:
    """Last id, and a sum in which every number and its place count."""
    last, total = 0, 0
    for element in elements:
        if isinstance(element, Batch):
            last = element.upto_id
            numbers = element.rows.columns[1].values
            total += int((numbers * np.arange(element.from_id + 1, last + 1)).sum())
    return last, total


def piece(rate: int, first: int, last: int, kind: Kind) -> Slice:
    """Buckets ``first`` to ``last`` - 1 of all streams, or without the stream that fails."""
    each = rate * BUCKET_US // (SECOND * len(STREAMS))
    index = np.arange(first * each, last * each)
    stamps = index * BUCKET_US // each
    rows = Rows(stamps, stamps, (Column(stamps), Column(index), Column(index / 2)))
    parts = [[] if name == FAILED and kind is Kind.TENTATIVE else [rows] for name in STREAMS]
    return Slice(parts, last * BUCKET_US, kind)


def clocked(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this thread, and the result."""
    begun = time.thread_time()
    result = work()
    return time.thread_time() - begun, result
