"""Pairs tentative tuples with the true tuples that they stood for, within a task, by NumPy.  No Spark here.

Readers of either side send packages through Spark: a package has the rows of one side for one task.  A task gets all
tuples of both sides that may be paired: those of one partition, time and key.  The stretch tells which true tuples a
tentative one may stand for: those behind the last stable tuple, up to the reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from consistency.proof.comparing.digests import chain, seeds
from spe.stream.batch import AnyArray, Int64Array
from spe.stream.strings import UInt64Array
from spe.stream.times import BEFORE_TIME

#: Columns read of a side.  ``major, minor`` are ``sequence, row`` of a tentative tuple, and ``place``, 0 of a true one,
#: which has no ``arrived_us``.
_COLUMNS: Final = ("partition", "time_us", "major", "minor", "arrived_us", "tuple")
#: Rows carried by Spark: the number of a task, and a package for it.
PACKAGES: Final = pa.schema([("task", pa.int32()), ("package", pa.binary())])
#: Columns of the result, see ``accuracy.against_truth``.
MET: Final = ("partition", "episode", "window_us", "arrived_us", "undone_at_us", "tentative", "true", "right")
#: Rows of an Arrow batch, and rows that are packed together.
_BATCH: Final = 65_536
_PACKED: Final = 1 << 18
_PACKED_BYTES: Final = 16 << 20
#: The first and last bytes of a text, by which its task is chosen.
_TEXT_BYTES: Final = 64
_ODD: Final = np.uint64(0x9E3779B185EBCA87)
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class Stretches:
    """The stretches between two undos of each partition, ordered by partition and episode.

    Attributes:
      begins: index of the first stretch of each partition; at the end the number of stretches.
      undone_sequence: of the undo behind the stretch; the largest number if there is none.
      undone_at_us: arrival of that undo; 0 if there is none.
      from_id, settled_us: the last tuple that stood before the stretch, and the time that stable tuples had reached.
      reach_us: the largest time of its tentative tuples; the smallest number if there are none.
    """

    partitions: list[int]
    begins: list[int]
    episode: Int64Array
    undone_sequence: Int64Array
    undone_at_us: Int64Array
    from_id: Int64Array
    settled_us: Int64Array
    reach_us: Int64Array

    @classmethod
    def of(cls, table: pa.Table) -> Stretches:
        """Reads the result of ``elements.episodes``."""
        table = table.sort_by([("partition", "ascending"), ("episode", "ascending")])

        def numbers(name: str, instead: int) -> Int64Array:
            filled: Any = table.column(name).fill_null(instead)
            return np.asarray(filled, np.int64)

        partitions, begins = np.unique(numbers("partition", 0), return_index=True)
        kept_id = numbers("kept_id", _LEAST)
        return cls(
            partitions.tolist(),
            [*begins.tolist(), len(table)],
            numbers("episode", 0),
            numbers("undone_sequence", _MOST),
            numbers("undone_at_us", 0),
            np.where(kept_id == _LEAST, numbers("stable_id", 0), kept_id),
            numbers("settled_us", BEFORE_TIME),
            numbers("reach_us", _LEAST),
        )

    def places(self) -> list[tuple[int, int]]:
        """Returns (partition, place) of the first true tuple that each stretch may stand for."""
        partition = np.repeat(np.array(self.partitions, np.int64), np.diff(self.begins))
        return list(zip(partition.tolist(), np.maximum(self.from_id + 1, 1).tolist()))

    def spans(self, from_us: Sequence[int], last_us: int) -> list[tuple[int, int]]:
        """Returns first and last times of true tuples that tentative ones may stand for; disjoint and sorted.

        Args:
          from_us: lower bound, per stretch, of the times of its true tuples.
          last_us: the largest time of any tuple; a stretch may reach to the end of time.
        """
        spans: list[tuple[int, int]] = []
        for begin, end in sorted(zip(from_us, np.minimum(self.reach_us, last_us).tolist())):
            if spans and begin <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            elif begin <= end:
                spans.append((begin, end))
        return spans


@dataclass(frozen=True)
class Packer:
    """Packs rows of one side for the tasks; runs within a Spark task.

    Attributes:
      type: of tuples, in Arrow.
      key: attributes by which tuples are paired, besides their time.
      tasks: number of tasks.
      spans: see ``Stretches.spans``; rows outside them are left out.
    """

    type: pa.DataType
    key: tuple[str, ...]
    tasks: int
    spans: list[tuple[int, int]] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turns TENTATIVE_ROWS or TRUE_ROWS into PACKAGES."""
        for some in _together(self._inside(batches)):
            rows = self._ordered(some)
            task = self._tasks(rows)
            order = task.astype(np.uint16 if self.tasks < 1 << 16 else np.int64).argsort(kind="stable")  # by digits
            rows, tasks = rows.take(pa.array(order)), np.unique(task)
            begins = [*task[order].searchsorted(tasks).tolist(), len(order)]
            packages = [rows.slice(a, b - a).serialize().to_pybytes() for a, b in pairwise(begins)]
            columns = [pa.array(tasks.astype(np.int32)), pa.array(packages, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=PACKAGES)

    def _inside(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Selects the rows within the spans."""
        if self.spans is None:
            yield from batches
            return
        begins, ends = np.array([(_LEAST, _LEAST), *self.spans]).T
        for batch in batches:
            time = np.asarray(batch.column(1))
            inside = time <= ends[begins.searchsorted(time, "right") - 1]
            if inside.any():
                yield batch.filter(pa.array(inside))

    def _ordered(self, some: pa.Table) -> pa.RecordBatch:
        """Brings rows into the layout of a package; the columns of a side are in the order of ``_COLUMNS``."""
        columns = some.columns
        if some.num_columns < len(_COLUMNS):  # of true ones
            more = pa.array(np.zeros(len(some), np.int64)), pa.nulls(len(some), pa.int64())
            columns = [*columns[:3], *more, *columns[3:]]
        (made,) = (
            pa.Table.from_arrays(columns, names=list(_COLUMNS)).cast(_packed(self.type)).combine_chunks().to_batches()
        )
        return made

    def _tasks(self, rows: pa.RecordBatch) -> UInt64Array:
        """Returns the task number of each row."""
        chained, tuples = seeds(len(rows)), rows.column("tuple")
        for name in ("partition", "time_us"):
            chain(chained, np.asarray(rows.column(name)))
        for name in self.key:
            values = tuples.field(name)
            if not pa.types.is_floating(values.type):  # equal floats may differ in their last digits
                chain(chained, np.asarray(values.is_valid()).astype(np.int64))
                chain(chained, _alike_words(values))
        return chained % np.uint64(self.tasks)


@dataclass(frozen=True)
class TaskMatcher:
    """Pairs the tuples of one task; runs within a Spark task.

    Attributes:
      key: attributes that make a tentative tuple and a true one the same result, besides their time.
      window_us: width of a result window in tuple time; 0: results of equal time form a window.
      tolerance: share of the larger value by which two equal floats may differ.
      type: of tuples, in Arrow.
    """

    stretches: Stretches
    key: tuple[str, ...]
    window_us: int
    tolerance: float
    type: pa.DataType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turns packages into MET: pairs the n-th tentative tuple of a key and stretch with the n-th true one."""
        if (both := self._unpacked(batches)) is None:
            return
        partition, time, major, minor = (np.asarray(both.column(name)) for name in _COLUMNS[:4])
        is_true = np.asarray(both.column("arrived_us").is_null())
        row, stretch = self._placed(partition, time, major, is_true)
        values = _values(both.column("tuple"))
        content = seeds(len(time))
        for word in (time, *(word for name in self.key for word in values[name].words())):
            chain(content, word)
        content = content[row]
        chain(content, stretch)
        tentative_at, true_at = _pairs(content, is_true[row], major[row], minor[row])
        present = np.maximum(tentative_at, true_at)
        order = np.lexsort((time[row[present]], stretch[present]))
        tentative_at, true_at, present = tentative_at[order], true_at[order], present[order]
        tentative, true, at, where = tentative_at >= 0, true_at >= 0, row[present], stretch[present]
        right = tentative & true
        ours_row, theirs_row = row[tentative_at[right]], row[true_at[right]]
        alike = np.full(len(ours_row), True)
        for value in values.values():
            alike &= value.alike(ours_row, theirs_row, self.tolerance)
        right[right] = alike
        known = tentative & (self.stretches.undone_sequence[where] < _MOST)
        ours, theirs = (pa.array(row[ours_row], mask=ours_row < 0) for ours_row in (tentative_at, true_at))
        made = (
            pa.array(partition[at], pa.int32()),
            pa.array(self.stretches.episode[where]),
            pa.array(time[at] // self.window_us * self.window_us if self.window_us else time[at]),
            both.column("arrived_us").take(ours),
            pa.array(self.stretches.undone_at_us[where], mask=~known),
        )
        for first in range(0, len(at), _BATCH):
            here = slice(first, first + _BATCH)
            tuples = (both.column("tuple").take(which[here]).cast(self.type) for which in (ours, theirs))
            columns = [*(column[here] for column in made), *tuples, pa.array(right[here])]
            yield pa.RecordBatch.from_arrays(columns, names=list(MET))

    def _unpacked(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch | None:
        """Returns the rows of all packages, None without any."""
        schema, packages = _packed(self.type), [package for batch in batches for package in batch.column("package")]
        every = [pa.ipc.read_record_batch(package.as_buffer(), schema) for package in packages]
        return pa.Table.from_batches(every).combine_chunks().to_batches()[0] if every else None

    def _placed(
        self, partition: Int64Array, time: Int64Array, major: Int64Array, is_true: AnyArray
    ) -> tuple[Int64Array, Int64Array]:
        """Returns (row, its stretch): a true tuple may be in several stretches, or in none."""
        known, placed = self.stretches, [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for number, (first, end) in zip(known.partitions, pairwise(known.begins)):
            here = partition == number
            tentative = np.flatnonzero(here & ~is_true)
            placed.append((tentative, first + known.undone_sequence[first:end].searchsorted(major[tentative])))
            true = np.flatnonzero(here & is_true)
            true = true[major[true].argsort(kind="stable")]
            at = time[true]
            later = np.minimum.accumulate(at[::-1])[::-1]  # least time from there on: times of a source may decrease
            low = major[true].searchsorted(known.from_id[first:end], "right")
            high = later.searchsorted(known.reach_us[first:end], "right")
            for which in np.flatnonzero(low < high).tolist():
                inside = slice(low[which], high[which])
                stood = true[inside][at[inside] <= known.reach_us[first + which]]
                placed.append((stood, np.full(len(stood), first + which)))
        return np.concatenate([rows for rows, _ in placed]), np.concatenate([stretches for _, stretches in placed])


def _pairs(
    content: UInt64Array, is_true: AnyArray, major: Int64Array, minor: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Returns the rows of each pair: the n-th of equal content with the n-th; −1 if there is no counterpart."""
    order = np.lexsort((minor, major, is_true, content))
    content, is_true = content[order], is_true[order]
    begins = np.flatnonzero(np.append(True, content[1:] != content[:-1])[: len(order)])
    sizes = np.diff(begins, append=len(order))
    true = np.diff(np.append(0, is_true.cumsum())[np.append(begins, len(order))])
    begin, tentative, stood = (np.repeat(counts, sizes) for counts in (begins, sizes - true, true))
    nth = np.arange(len(order)) - begin
    left, over = np.flatnonzero(~is_true), np.flatnonzero(is_true & (nth >= 2 * tentative))
    met = nth[left] < stood[left]
    partner = np.where(met, order[np.where(met, left + tentative[left], 0)], -1)
    return np.append(order[left], np.full(len(over), -1)), np.append(partner, order[over])


@dataclass(frozen=True)
class _Values:
    """Values of an attribute in all tuples: floats as they are, others as numbers that are equal for equal values."""

    values: AnyArray
    valid: AnyArray

    def words(self) -> Iterator[Int64Array]:
        """Yields words that are equal for equal values; floats count by first digits, as in ``values.content``."""
        yield self.valid.astype(np.int64)
        if self.values.dtype == np.float64:
            mantissa, exponent = np.frexp(np.where(np.isnan(self.values), np.nan, self.values + 0.0))
            single = mantissa.astype(np.float32)
            up = np.abs(single) == 1
            yield np.where(up, single / 2, single).view(np.int32).astype(np.int64)
            yield (exponent + up).astype(np.int64)
        else:
            yield self.values

    def alike(self, left: Int64Array, right: Int64Array, tolerance: float) -> AnyArray:
        """Compares pairs of tuples as ``values.alike`` does."""
        x, y, valid = self.values[left], self.values[right], self.valid[left]
        equal = x == y
        if self.values.dtype == np.float64:
            larger = np.maximum(np.abs(x), np.abs(y))
            with np.errstate(invalid="ignore", over="ignore"):  # infinity less infinity, and the largest of both signs
                equal |= (larger < np.inf) & (np.abs(x - y) <= tolerance * larger)
            equal |= np.isnan(x) & np.isnan(y)
        same: AnyArray = (valid == self.valid[right]) & (equal | ~valid)
        return same


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Collects batches into tables of a size worth processing."""
    some: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for batch in batches:
        some.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= _PACKED or size >= _PACKED_BYTES:
            yield pa.Table.from_batches(some)
            some, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(some)


def _alike_words(values: Any) -> Int64Array:
    """Returns a number per value, equal for equal values; for a text, of its length, beginning and end."""
    if not pa.types.is_large_string(values.type):
        return np.asarray(values.cast(pa.int64()).fill_null(0))
    values = values.fill_null("")
    _, places, bytes_ = values.buffers()
    edges = np.frombuffer(places, np.int64, len(values) + 1, 8 * values.offset)
    data = np.append(np.frombuffer(bytes_ or b"", np.uint8), np.zeros(8, np.uint8))
    eight, words = sliding_window_view(data, 8), np.diff(edges).view(np.uint64)
    left, size = np.arange(len(values)), np.diff(edges)
    for at in range(0, _TEXT_BYTES, 8):
        left = left[size[left] > at]
        word = eight[edges[left] + at]
        word[np.arange(8) >= (size[left] - at)[:, None]] = 0
        words[left] = words[left] * _ODD + word.view(np.uint64)[:, 0]
    left = left[size[left] > _TEXT_BYTES]
    for at in range(8, _TEXT_BYTES + 1, 8):
        words[left] = words[left] * _ODD + eight[edges[left + 1] - at].view(np.uint64)[:, 0]
    return words.view(np.int64)


def _packed(type_: pa.DataType) -> pa.Schema:
    """Returns the schema of a package; its texts may exceed 2 GiB in total."""
    wide = pa.struct([(f.name, pa.large_string() if pa.types.is_string(f.type) else f.type) for f in type_])
    return pa.schema([*[(name, pa.int64()) for name in _COLUMNS[:-1]], ("tuple", wide)])


def _values(tuples: Any) -> Mapping[str, _Values]:
    columns = {}
    for field, array in zip(tuples.type, tuples.flatten()):
        valid = np.asarray(array.is_valid())
        if pa.types.is_floating(array.type):
            values = np.asarray(array.fill_null(0.0))
        elif pa.types.is_large_string(array.type):
            values = np.asarray(array.dictionary_encode().indices.fill_null(0)).astype(np.int64)
        else:
            values = np.asarray(array.cast(pa.int64()).fill_null(0))
        columns[field.name] = _Values(values, valid)
    return columns
