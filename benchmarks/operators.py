"""Windowed join, top-k and SUnion alone, against the same results from bare NumPy."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from benchmarks.cpu import cpu_for_both
from benchmarks.data import NAMES, SCHEMA, STREAMS, Plain, Shape, as_rows, buckets, elements, merged, plain
from benchmarks.tables import benchmark, beside, chosen, demand
from operators.join.join import Join
from operators.operator import Operator
from operators.sunion.sunion import SUnion
from operators.topk import WindowTopK
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.topk import TopKSpec
from spe.query.windows import TumblingWindow
from spe.stream.batch import AnyArray, Batch, Boundary, Column, Element, Int64Array, Rows
from spe.stream.names import StreamId
from spe.stream.times import SECOND

#: Tuples per stream and slice, slices of a round, what the ratio should not exceed.
SHAPES = ((100, 2_000, None), (1_000, 300, 3.0), (10_000, 40, 3.0))
ROUNDS = 7
#: A tuple meets those of the other stream that are at most so much older or younger: 10,000 before it.
WITHIN_US = 100_000
#: So many keys that it meets about one tuple.
KEYS = 20_000
BEST = 100
_NUMBER = {name: at for at, name in enumerate(NAMES)}

#: Arrays of the same length: time, and the result's columns.
Table = tuple[AnyArray, ...]


class Kernels(Protocol):
    """Bare NumPy."""

    def step(self, streams: Sequence[Plain], end: int) -> Table | None:
        """Results of a slice that ends before ``end``."""
        ...


@dataclass
class _Run:
    """One slice of one side, and its rows in the order of their keys."""

    data: Plain
    keys: Int64Array
    order: Int64Array

    @classmethod
    def of(cls, data: Plain) -> _Run:
        order = data.key.argsort(kind="stable")
        return cls(data, data.key.take(order), order)

    def matches(self, keys: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(index into ``keys``, index into the run) of all equal keys."""
        start = self.keys.searchsorted(keys)
        counts = self.keys.searchsorted(keys, side="right") - start
        probing = np.arange(len(keys)).repeat(counts)
        offsets = (start - (counts.cumsum() - counts)).repeat(counts)
        return probing, self.order.take(np.arange(len(probing)) + offsets)


class JoinKernels:
    """Runs sorted by key, as NumPy does with any integers; pairs leave in the order of time."""

    def __init__(self) -> None:
        self._sides: tuple[list[_Run], list[_Run]] = ([], [])

    def step(self, streams: Sequence[Plain], end: int) -> Table | None:
        new = [_Run.of(data) for data in streams]
        oldest = int(streams[0].time[0]) - WITHIN_US
        pairs: list[Table] = []
        for side, other in ((0, 1), (1, 0)):
            runs = self._sides[other]
            while runs and runs[0].data.time[-1] < oldest:
                runs.pop(0)
            pairs += [self._pairs(new[side], run, side) for run in runs]
        pairs.append(self._pairs(new[0], new[1], 0))
        for side in (0, 1):
            self._sides[side].append(new[side])
        columns = [np.concatenate(parts) for parts in zip(*pairs, strict=True)]
        order = columns[0].argsort(kind="stable")
        return tuple(c.take(order) for c in columns)

    def _pairs(self, new: _Run, old: _Run, side: int) -> Table:
        i, j = old.matches(new.data.key)
        mine, its = new.data.time.take(i), old.data.time.take(j)
        near = np.abs(mine - its) <= WITHIN_US
        i, j, time = i[near], j[near], np.maximum(mine, its)[near]
        own, others = _columns(new.data, i), _columns(old.data, j)
        return (time, *own, *others) if side == 0 else (time, *others, *own)


def _columns(data: Plain, index: Int64Array) -> Table:
    return data.key.take(index), data.value.take(index), data.flag.take(index), data.name.take(index)


class TopKKernels:
    """Keeps all of a window, and looks for the best at its end."""

    def __init__(self) -> None:
        self._window: list[Plain] = []

    def step(self, streams: Sequence[Plain], end: int) -> Table | None:
        self._window.append(streams[0])
        if end % SECOND:
            return None
        value = np.concatenate([p.value for p in self._window])
        best = np.argpartition(-value, BEST)[:BEST]
        best = best[(-value[best]).argsort(kind="stable")]
        rows = [np.concatenate([getattr(p, name) for p in self._window]).take(best) for name in ("key", "flag", "name")]
        self._window = []
        return (np.full(BEST, end - 1), rows[0], value[best], rows[1], rows[2])


def make_join() -> Operator:
    left, right = StreamId("l"), StreamId("r")
    spec = JoinSpec(left, right, JoinKind.INNER, (("key", "key"),), lower_us=-WITHIN_US, upper_us=WITHIN_US)
    return Join(spec, SCHEMA, SCHEMA, spec.output_schema([SCHEMA, SCHEMA]))


def make_topk() -> Operator:
    spec = TopKSpec(StreamId("s"), BEST, (("value", True),), window=TumblingWindow(SECOND))
    return WindowTopK(spec, SCHEMA, spec.output_schema([SCHEMA]))


#: Name -> streams, keys of a stream, the operator, the kernels.
MEASURED: dict[str, tuple[int, int, Callable[[], Operator], Callable[[], Kernels]]] = {
    "join within 100 ms": (2, KEYS, make_join, JoinKernels),
    "top 100 of 1 s": (1, 1_000, make_topk, TopKKernels),
}


def slices(shape: Shape, segment: int, streams: int, keys: int) -> Iterator[tuple[list[Plain], int]]:
    """The streams' rows slice by slice, and the end of each."""
    data = [plain(shape, segment, s) for s in range(streams)]
    many = np.random.default_rng(segment)
    known = np.random.default_rng(keys).integers(-(1 << 62), 1 << 62, keys)
    data = [d._replace(key=many.choice(known, shape.tuples)) for d in data]
    for at, cut in enumerate(zip(*(d.cut(shape.batch) for d in data), strict=True), 1):
        yield list(cut), shape.end_us(segment - 1) + at * shape.bucket_us


def measure(name: str, shape: Shape) -> tuple[list[float], list[float]]:
    """CPU seconds per input tuple of operator and kernels, round by round."""
    streams, keys, make, kernels = MEASURED[name]
    operator, bare = make(), kernels()
    took = []
    for number in range(ROUNDS + 1):
        cuts = list(slices(shape, number, streams, keys))
        steps = [([as_rows(p) for p in parts], end) for parts, end in cuts]
        made: list[Rows | None] = []
        wanted: list[Table | None] = []
        seconds = cpu_for_both(
            lambda made=made, steps=steps: made.extend(operator.step(ports, end) for ports, end in steps),
            lambda wanted=wanted, cuts=cuts: wanted.extend(bare.step(parts, end) for parts, end in cuts),
            number,
        )
        took.append([spent / (shape.tuples * streams) for spent in seconds])
        compare([rows for rows in made if rows is not None], [table for table in wanted if table is not None])
    return [ours for ours, _ in took[1:]], [theirs for _, theirs in took[1:]]


def compare(made: list[Rows], wanted: list[Table]) -> None:
    """Raises WrongResult unless both have the same rows at the same times."""
    demand(bool(made) and bool(wanted), "no results")
    columns = [np.concatenate([r.time for r in made])]
    columns += [np.concatenate([_plain(r.columns[i]) for r in made]) for i in range(len(wanted[0]) - 1)]
    expected = [np.concatenate(parts) for parts in zip(*wanted, strict=True)]
    demand(len(columns[0]) == len(expected[0]), f"{len(columns[0])} results instead of {len(expected[0])}")
    demand(bool((np.diff(columns[0]) >= 0).all()), "results are not in order of time")
    mine, its = np.lexsort(columns[::-1]), np.lexsort(expected[::-1])
    for a, b in zip(columns, expected, strict=True):
        demand(bool(np.array_equal(a.take(mine), b.take(its))), "operator and kernels disagree")


def _plain(column: Column) -> AnyArray:
    """Values; strings as numbers of NAMES, for operators have codes of their own."""
    if column.dictionary is None:
        return column.values
    return np.array([_NUMBER.get(text, -1) for text in column.dictionary.strings]).take(column.values)


@benchmark(
    "operators", "operator | tuples/stream and slice | NumPy, CPU ns/tuple | operator, CPU ns/tuple | ratio | target"
)
def _operator_rows(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Operators alone.

    Five columns a stream, 100,000 tuples/s of tuple time.  Join: int64 keys, 10,000 tuples of each side before each,
    about one match a tuple; NumPy: runs sorted by key, pairs in the order of time.  Top-k: NumPy keeps the window,
    argpartition and argsort at its end.  In process, paired rounds: median (min-max).
    """
    for name in MEASURED:
        for batch, batches, limit in chosen(SHAPES, arguments):
            yield [name, f"{batch:,}", *beside(*measure(name, Shape(batch, batches)), limit)]


# --- the SUnion: buffering, boundaries, release ---

#: Tuples per stream and slice, slices of a round, what the ratio should not exceed.
SUNION_SHAPES = ((10, 4_000, None), (100, 2_000, None), (1_000, 400, 1.3), (10_000, 60, 1.3), (100_000, 8, 1.3))
SUNION_ROUNDS = 9


def pairs(made: list[Element]) -> Iterator[tuple[Batch, Boundary]]:
    """Batches and their boundaries as from a decoder, which has looked at the times (its check, see `codec`)."""
    for batch, boundary in zip(made[::2], made[1::2], strict=True):
        assert isinstance(batch, Batch)
        assert isinstance(boundary, Boundary)
        batch.rows.span()
        yield batch, boundary


def release(sunion: SUnion, slices: Sequence[Sequence[tuple[Batch, Boundary]]], results: list[Rows] | None) -> None:
    for streams in slices:
        for port, (batch, boundary) in zip(sunion.inputs, streams, strict=True):
            port.add_stable(batch, 0)
            port.add_boundary(boundary, 0)
        piece = sunion.release_stable(1 << 30)
        assert piece is not None
        (rows,) = piece.merged()
        assert rows is not None
        if results is not None:
            results.append(rows)


def kernels(parts: Sequence[Sequence[Plain]], results: list[Plain] | None) -> None:
    for bucket in parts:
        result = merged(bucket)
        if results is not None:
            results.append(result)


def measure_sunion(shape: Shape) -> tuple[list[float], list[float]]:
    """CPU seconds per tuple of SUnion and kernels, round by round."""
    took = []
    sunion = SUnion(inputs=[(0, True)] * len(STREAMS), streams=1, bucket_us=shape.bucket_us)
    for number in range(SUNION_ROUNDS + 1):
        slices = list(zip(*(pairs(elements(shape, number, s)) for s in range(len(STREAMS))), strict=True))
        parts = buckets(shape, number)
        released: list[Rows] = []
        expected: list[Plain] = []
        keep = number == 0  # results that are not freed cost: only the round that does not count keeps them
        ours = partial(release, sunion, slices, released if keep else None)
        theirs = partial(kernels, parts, expected if keep else None)
        took.append([seconds / (shape.tuples * len(STREAMS)) for seconds in cpu_for_both(ours, theirs, number)])
        demand(len(released) == len(expected), "a slice is missing")
        for rows, arrays in zip(released, expected, strict=True):
            for mine, wanted in zip([rows.time, *[c.values for c in rows.columns]], arrays, strict=True):
                demand(bool(np.array_equal(mine, wanted)), "SUnion and kernels disagree")
    return [ours for ours, _ in took[1:]], [theirs for _, theirs in took[1:]]


@benchmark("sunion", "tuples/stream and slice | NumPy, CPU ns/tuple | SUnion, CPU ns/tuple | ratio | target")
def _sunion_rows(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """SUnion alone.

    Three inputs of one stream, one bucket a slice: three batches, as a decoder has checked them, and boundaries in, one
    sorted run out; against concatenate, stable argsort and take of the same five columns.  In process, paired rounds:
    median (min-max).
    """
    for batch, batches, limit in chosen(SUNION_SHAPES, arguments):
        yield [f"{batch:,}", *beside(*measure_sunion(Shape(batch, batches)), limit)]
