"""A run of any size, made at once and without an engine: two sources, failures, and what a client received of it.

The stable stream is computed here with NumPy: a verdict of CONSISTENT says that Spark and NumPy agree on every tuple.
Source b is cut off for FAILED_WINDOWS of every PERIOD windows: results then are tentative, of source a alone; behind
them come an undo, the corrections, and rec_done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from benchmarks.data import mixed
from spe.log.source_log import SourceState
from spe.plan.deploy import ONLY_CLIENT
from spe.stream.batch import Batch, Boundary, Column, Element, RecDone, Rows, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.times import END_OF_TIME
from tests.support import runs

KEYS: Final = 1_000
SOURCES: Final = ("a", "b")
#: Tuples per second of tuple time, of each source.
RATE: Final = 10_000
LARGE: Final = StreamId("large")
SUMS: Final = StreamId("per_second")
#: A failure begins with each PERIOD-th window, from the FIRST_FAILED on.
PERIOD: Final = 10
FAILED_WINDOWS: Final = range(4, 6)
_WINDOW_US: Final = 10_000_000
_STEP_US: Final = 100_000
#: Tuples of a source in a window, and in a record of its log.
_SHARE: Final = RATE * (_WINDOW_US // 1_000_000)
_RECORD: Final = 10_000
_SEGMENT_BYTES: Final = 32 << 20
#: From the end of a step to the receipt of stable results, and of tentative ones.
_ORDINARY_US: Final = 50_000
_WAITING_US: Final = 900_000
CONFIG: Final = """
bucket: 100ms
defaults: {x: 1s, alpha: 0.9, policy: process}
sources:
  a: &source
    schema: {ts: timestamp!, key: int64!, price: float64!, qty: int64!}
    time: ts
    from: {jsonl: none.jsonl}
    replay: {speed: 1, origin: "1970-01-01T00:00:00"}
  b: *source
query:
  all: {union: [a, b]}
  large: {filter: {from: all, where: price * qty >= 10}}
  per_second:
    aggregate:
      from: large
      window: {tumbling: 10s}
      group_by: key
      compute: {orders: count(*), revenue: sum(price * qty), most: max(qty)}
nodes: [n1, n2]
"""


@dataclass
class Made:
    """The counts of a report on the run.

    Attributes:
      stable: tuples of the true stream.
      tentative: tuples received as tentative.
      right: tentative tuples that are in the true stream.
    """

    stable: int = 0
    tentative: int = 0
    right: int = 0


def make_run(path: Path, tuples: int, output: StreamId) -> Made:
    """Writes the directory of a run that sent ``tuples`` and gave ``output``: whole windows of tuple time."""
    config = yaml.safe_load(CONFIG) | {"outputs": [str(output)]}
    if output != SUMS:
        del config["query"][SUMS]
    windows = max(1, tuples // (_SHARE * len(SOURCES)))
    made, sent = Made(), {StreamId(name): _sent(source, windows) for source, name in enumerate(SOURCES)}
    received = {ONLY_CLIENT: _changes(output, windows, made)}
    begun = SourceState(origin_us=0, begun_us=0)
    runs.make_run(path, config, sent, received, list(_events(windows)), segment_bytes=_SEGMENT_BYTES, begun=begun)
    return made


def _changes(output: StreamId, windows: int, made: Made) -> Iterator[Change]:
    arrived_us = 0
    for at_us, element in _received(output, windows, made):
        arrived_us = max(arrived_us + 1, at_us)
        yield Change(Channel(output, 0), element, arrived_us)


def _events(windows: int) -> Iterator[dict[str, Any]]:
    yield {"t": 0, "event": "begin", "begun_us": 0}
    cut = {"kind": "cut", "from": ["source:b"], "to": ["all"]}
    for window in range(windows):
        if window % PERIOD == FAILED_WINDOWS.start:
            yield {"t": window * _WINDOW_US, "event": "fault_began", **cut}
        if window % PERIOD == FAILED_WINDOWS.stop:
            yield {"t": window * _WINDOW_US, "event": "fault_ended", **cut}
    if (windows - 1) % PERIOD in FAILED_WINDOWS:
        yield {"t": windows * _WINDOW_US, "event": "fault_ended", **cut}
    yield {"t": windows * _WINDOW_US + 5_000_000, "event": "process_ended", "process": "n1", "status": 0}


def _drawn(source: int, first: int, count: int) -> Rows:
    """Rows of a source from its ``first`` tuple on, which follow from their numbers (splitmix64)."""
    ids = np.arange(first, first + count, dtype=np.int64)
    number = mixed(ids * len(SOURCES) + source)
    time = ids * (1_000_000 // RATE) + source
    key = number % KEYS
    price = ((number >> 16) % 4_000) / 4  # quarters: sums are exact in any order
    return Rows(time, time, (Column(time), Column(key), Column(price), Column((number >> 40) % 9 + 1)))


def _sent(source: int, windows: int) -> Iterator[Element]:
    for first in range(0, windows * _SHARE, _RECORD):
        yield Batch(Kind.STABLE, first, first + _RECORD, None, _drawn(source, first, _RECORD))
    yield Boundary(Kind.STABLE, END_OF_TIME, windows * _SHARE)


def _received(output: StreamId, windows: int, made: Made) -> Iterator[tuple[int, Element]]:
    """(wall time, element), in order."""
    results = _filtered if output == LARGE else _summed
    held: list[int] = []  # windows with tentative tuples at the client
    for window in range(windows):
        end = (window + 1) * _WINDOW_US
        if window % PERIOD in FAILED_WINDOWS:
            alone, whole = results(window, SOURCES[:1]), results(window, SOURCES)
            made.right += _common(alone, whole)
            position = made.stable + made.tentative
            yield from _elements(alone, position, window, Kind.TENTATIVE, _WAITING_US)
            made.tentative += len(alone)
            held.append(window)
            if window + 1 < windows and (window + 1) % PERIOD in FAILED_WINDOWS:
                continue
            yield end, Undo(made.stable)
            for corrected in held:
                yield from _stable(results(corrected, SOURCES), corrected, made)
            yield end, RecDone(NodeState.STABLE)
            held = []
        else:
            yield from _stable(results(window, SOURCES), window, made)
    yield windows * _WINDOW_US, Boundary(Kind.STABLE, END_OF_TIME, made.stable)


def _stable(rows: Rows, window: int, made: Made) -> Iterator[tuple[int, Element]]:
    yield from _elements(rows, made.stable, window, Kind.STABLE, _ORDINARY_US)
    made.stable += len(rows)


def _elements(rows: Rows, before: int, window: int, kind: Kind, late_us: int) -> Iterator[tuple[int, Element]]:
    """A batch and a boundary for each step of a window."""
    steps = np.arange(window * _WINDOW_US, (window + 1) * _WINDOW_US + 1, _STEP_US)
    edges = rows.time.searchsorted(steps).tolist()
    for end, (low, high) in zip(steps[1:].tolist(), pairwise(edges)):
        if high > low:
            yield end + late_us, Batch(kind, before + low, before + high, None, rows.slice(low, high))
        yield end + late_us, Boundary(kind, end, before + high if kind is Kind.STABLE else 0)


def _filtered(window: int, sources: tuple[str, ...]) -> Rows:
    """The output ``large`` in a window, from these sources."""
    rows = [_drawn(SOURCES.index(name), window * _SHARE, _SHARE) for name in sources]
    time = np.concatenate([r.time for r in rows])
    order = time.argsort(kind="stable")
    columns = [np.concatenate([r.columns[i].values for r in rows])[order] for i in range(4)]
    return Rows(time[order], time[order], tuple(map(Column, columns))).select(columns[2] * columns[3] >= 10)


def _summed(window: int, sources: tuple[str, ...]) -> Rows:
    """The output ``per_second``: groups in the order of their first tuple."""
    large = _filtered(window, sources)
    _, key, price, qty = (c.values for c in large.columns)
    keys, first, group = np.unique(key, return_index=True, return_inverse=True)
    most = np.zeros(len(keys), np.int64)
    np.maximum.at(most, group, qty)
    orders = np.bincount(group).astype(np.int64)
    revenue = np.bincount(group, price * qty)
    order = first.argsort()
    start = np.full(len(keys), window * _WINDOW_US, np.int64)
    values = (keys, start, start + _WINDOW_US, orders, revenue, most)
    time = start + (_WINDOW_US - 1)
    return Rows(time, time, tuple(Column(v[order]) for v in values))


def _common(some: Rows, all_: Rows) -> int:
    """How many of some rows are among all, with equal attributes."""

    def table(rows: Rows) -> Any:
        return np.rec.fromarrays([rows.time, *[c.values for c in rows.columns]])

    return int(np.isin(table(some), table(all_)).sum())
