"""Tentative tuples and the true ones that they stood for, met within a task by NumPy.  No Spark here.

Those who read a side hand it on in packages, which Spark carries as they are: a package is what one task gets of some
rows.  A task has all tuples of both sides that may meet: those of one partition, time and key.  What stood for a true
tuple is known by the stretch: it lies behind the last stable tuple and not beyond the reach.
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

#: What is read of a side.  ``major, minor``: ``sequence, row`` of a tentative tuple, ``place`` and 0 of a true one,
#: which has no ``arrived_us``.
_GIVEN: Final = ("partition", "time_us", "major", "minor", "arrived_us", "tuple")
#: The rows in which Spark carries it: the number of a task, and a package for it.
PACKAGES: Final = pa.schema([("task", pa.int32()), ("package", pa.binary())])
#: What it makes of them, see ``accuracy.against_truth``.
MET: Final = ("partition", "episode", "window_us", "arrived_us", "undone_at_us", "tentative", "true", "right")
#: Rows of one Arrow batch, and those that are packed together.
_BATCH: Final = 65_536
_PACKED: Final = 1 << 18
_PACKED_BYTES: Final = 16 << 20
#: By so many bytes of its beginning, and of its end, a text finds its task.
_TEXT_BYTES: Final = 64
_ODD: Final = np.uint64(0x9E3779B185EBCA87)
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class Stretches:
    """The stretches between two undos of each partition, in order of partition and episode.

    Attributes:
      begins: of each partition the first one, and their number in the end.
      undone_sequence: of the undo behind it; the largest number where there is none.
      undone_at_us: when that came; 0 where there is none.
      from_id, settled_us: the last tuple that stood before it, and the time up to which stable ones had come.
      reach_us: how far tentative tuples came; the smallest number where there are none.
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
        """From what ``elements.episodes`` gives."""
        table = table.sort_by([("partition", "ascending"), ("episode", "ascending")])

        def numbers(name: str, instead: int) -> Int64Array:
            filled: Any = table.column(name).fill_null(instead)
            return np.asarray(filled, np.int64)

        partitions, begins = np.unique(numbers("partition", 0), return_index=True)
        kept = numbers("kept_id", _LEAST)
        return cls(
            partitions.tolist(),
            [*begins.tolist(), len(table)],
            numbers("episode", 0),
            numbers("undone_sequence", _MOST),
            numbers("undone_at_us", 0),
            np.where(kept == _LEAST, numbers("stable_id", 0), kept),
            numbers("settled_us", BEFORE_TIME),
            numbers("reach_us", _LEAST),
        )

    def places(self) -> list[tuple[int, int]]:
        """(partition, place) of the first true tuple that each may have stood for."""
        partition = np.repeat(np.array(self.partitions, np.int64), np.diff(self.begins))
        return list(zip(partition.tolist(), np.maximum(self.from_id + 1, 1).tolist()))

    def spans(self, from_us: Sequence[int], last_us: int) -> list[tuple[int, int]]:
        """First and last time of true tuples that tentative ones may have stood for; apart, and in order.

        Args:
          from_us: no tuple that each stood for has an earlier time.
          last_us: no tuple at all has a later time; a stretch may reach to the end of time.
        """
        found: list[tuple[int, int]] = []
        for begin, end in sorted(zip(from_us, np.minimum(self.reach_us, last_us).tolist())):
            if found and begin <= found[-1][1]:
                found[-1] = (found[-1][0], max(end, found[-1][1]))
            elif begin <= end:
                found.append((begin, end))
        return found


@dataclass(frozen=True)
class Packer:
    """What a task makes of rows of one side; Spark carries it there.

    Attributes:
      type: of tuples, in Arrow.
      key: attributes by which tuples meet, beside their time.
      tasks: among how many they are distributed.
      spans: see ``Stretches.spans``; what lies in none of them is left out.
    """

    type: pa.DataType
    key: tuple[str, ...]
    tasks: int
    spans: list[tuple[int, int]] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """PACKAGES of TENTATIVE_ROWS or TRUE_ROWS."""
        for some in _together(self._inside(batches)):
            rows = self._given(some)
            task = self._tasks(rows)
            order = task.astype(np.uint16 if self.tasks < 1 << 16 else np.int64).argsort(kind="stable")  # by digits
            rows, found = rows.take(pa.array(order)), np.unique(task)
            begins = [*task[order].searchsorted(found).tolist(), len(order)]
            packages = [rows.slice(a, b - a).serialize().to_pybytes() for a, b in pairwise(begins)]
            columns = [pa.array(found.astype(np.int32)), pa.array(packages, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=PACKAGES)

    def _inside(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Those within the spans."""
        if self.spans is None:
            yield from batches
            return
        begins, ends = np.array([(_LEAST, _LEAST), *self.spans]).T
        for batch in batches:
            time = np.asarray(batch.column(1))
            inside = time <= ends[begins.searchsorted(time, "right") - 1]
            if inside.any():
                yield batch.filter(pa.array(inside))

    def _given(self, some: pa.Table) -> pa.RecordBatch:
        """As they are packed; the columns of a side have the order of ``_GIVEN``."""
        columns = some.columns
        if some.num_columns < len(_GIVEN):  # of true ones
            more = pa.array(np.zeros(len(some), np.int64)), pa.nulls(len(some), pa.int64())
            columns = [*columns[:3], *more, *columns[3:]]
        (made,) = (
            pa.Table.from_arrays(columns, names=list(_GIVEN)).cast(_packed(self.type)).combine_chunks().to_batches()
        )
        return made

    def _tasks(self, rows: pa.RecordBatch) -> UInt64Array:
        """The number of the task of each."""
        chained, tuples = seeds(len(rows)), rows.column("tuple")
        for name in ("partition", "time_us"):
            chain(chained, np.asarray(rows.column(name)))
        for name in self.key:
            values = tuples.field(name)
            if not pa.types.is_floating(values.type):  # equal ones may differ in their last digits
                chain(chained, np.asarray(values.is_valid()).astype(np.int64))
                chain(chained, _alike_words(values))
        return chained % np.uint64(self.tasks)


@dataclass(frozen=True)
class TaskMatcher:
    """What a task does; Spark carries it there.

    Attributes:
      key: attributes that make a tentative tuple and a true one the same result, beside their time.
      window_us: results are taken together by so much tuple time; 0: by equal times.
      tolerance: share of the larger one by which two equal floats may differ.
      type: of tuples, in Arrow.
    """

    stretches: Stretches
    key: tuple[str, ...]
    window_us: int
    tolerance: float
    type: pa.DataType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """MET of packages: the n-th tentative tuple of a key and a stretch with the n-th true one."""
        schema = _packed(self.type)
        every = [
            pa.ipc.read_record_batch(package.as_buffer(), schema)
            for batch in batches
            for package in batch.column("package")
        ]
        if not every:
            return
        (both,) = pa.Table.from_batches(every).combine_chunks().to_batches()
        partition, time, major, minor = (np.asarray(both.column(name)) for name in _GIVEN[:4])
        is_true = np.asarray(both.column("arrived_us").is_null())
        row, stretch = self._placed(partition, time, major, is_true)
        values = _values(both.column("tuple"))
        content = seeds(len(time))
        for word in (time, *(word for name in self.key for word in values[name].words())):
            chain(content, word)
        content = content[row]
        chain(content, stretch)
        given, stood = _pairs(content, is_true[row], major[row], minor[row])
        one_of = np.maximum(given, stood)
        order = np.lexsort((time[row[one_of]], stretch[one_of]))
        given, stood, one_of = given[order], stood[order], one_of[order]
        tentative, true, at, where = given >= 0, stood >= 0, row[one_of], stretch[one_of]
        right = tentative & true
        one, other = row[given[right]], row[stood[right]]
        alike = np.full(len(one), True)
        for value in values.values():
            alike &= value.alike(one, other, self.tolerance)
        right[right] = alike
        known = tentative & (self.stretches.undone_sequence[where] < _MOST)
        ours, theirs = (pa.array(row[one], mask=one < 0) for one in (given, stood))
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

    def _placed(
        self, partition: Int64Array, time: Int64Array, major: Int64Array, is_true: AnyArray
    ) -> tuple[Int64Array, Int64Array]:
        """(row, its stretch): a true tuple is in several stretches, or in none."""
        known, found = self.stretches, [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for number, (first, end) in zip(known.partitions, pairwise(known.begins)):
            here = partition == number
            given = np.flatnonzero(here & ~is_true)
            found.append((given, first + known.undone_sequence[first:end].searchsorted(major[given])))
            true = np.flatnonzero(here & is_true)
            true = true[major[true].argsort(kind="stable")]
            at = time[true]
            later = np.minimum.accumulate(at[::-1])[::-1]  # the least time from there on: a source's may go back
            low = major[true].searchsorted(known.from_id[first:end], "right")
            high = later.searchsorted(known.reach_us[first:end], "right")
            for which in np.flatnonzero(low < high).tolist():
                inside = slice(low[which], high[which])
                stood = true[inside][at[inside] <= known.reach_us[first + which]]
                found.append((stood, np.full(len(stood), first + which)))
        return np.concatenate([rows for rows, _ in found]), np.concatenate([of for _, of in found])


def _pairs(
    content: UInt64Array, is_true: AnyArray, major: Int64Array, minor: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Places of both of each pair, the n-th of equal content with the n-th; −1 where there is no other."""
    order = np.lexsort((minor, major, is_true, content))
    content, is_true = content[order], is_true[order]
    begins = np.flatnonzero(np.append(True, content[1:] != content[:-1])[: len(order)])
    sizes = np.diff(begins, append=len(order))
    true = np.diff(np.append(0, is_true.cumsum())[np.append(begins, len(order))])
    begin, tentative, stood = (np.repeat(one, sizes) for one in (begins, sizes - true, true))
    nth = np.arange(len(order)) - begin
    left, over = np.flatnonzero(~is_true), np.flatnonzero(is_true & (nth >= 2 * tentative))
    met = nth[left] < stood[left]
    partner = np.where(met, order[np.where(met, left + tentative[left], 0)], -1)
    return np.append(order[left], np.full(len(over), -1)), np.append(partner, order[over])


@dataclass(frozen=True)
class _Values:
    """An attribute of all tuples: numbers that are equal where the values are; floats as they are."""

    values: AnyArray
    valid: AnyArray

    def words(self) -> Iterator[Int64Array]:
        """What is equal for equal values, of floats for those with the same first digits, as ``values.content``."""
        yield self.valid.astype(np.int64)
        if self.values.dtype == np.float64:
            mantissa, exponent = np.frexp(np.where(np.isnan(self.values), np.nan, self.values + 0.0))
            single = mantissa.astype(np.float32)
            up = np.abs(single) == 1
            yield np.where(up, single / 2, single).view(np.int32).astype(np.int64)
            yield (exponent + up).astype(np.int64)
        else:
            yield self.values

    def alike(self, one: Int64Array, other: Int64Array, tolerance: float) -> AnyArray:
        """Of pairs of tuples, as ``values.alike``."""
        x, y, valid = self.values[one], self.values[other], self.valid[one]
        equal = x == y
        if self.values.dtype == np.float64:
            larger = np.maximum(np.abs(x), np.abs(y))
            with np.errstate(invalid="ignore", over="ignore"):  # infinity less infinity, and the largest of both signs
                equal |= (larger < np.inf) & (np.abs(x - y) <= tolerance * larger)
            equal |= np.isnan(x) & np.isnan(y)
        found: AnyArray = (valid == self.valid[other]) & (equal | ~valid)
        return found


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches in tables that are worth their while."""
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
    """A number of each value that is equal for equal ones; of a text, of its length, its beginning and its end."""
    if not pa.types.is_large_string(values.type):
        return np.asarray(values.cast(pa.int64()).fill_null(0))
    values = values.fill_null("")
    _, places, bytes_ = values.buffers()
    edges = np.frombuffer(places, np.int64, len(values) + 1, 8 * values.offset)
    data = np.append(np.frombuffer(bytes_ or b"", np.uint8), np.zeros(8, np.uint8))
    eight, found = sliding_window_view(data, 8), np.diff(edges).view(np.uint64)
    left, size = np.arange(len(values)), np.diff(edges)
    for at in range(0, _TEXT_BYTES, 8):
        left = left[size[left] > at]
        word = eight[edges[left] + at]
        word[np.arange(8) >= (size[left] - at)[:, None]] = 0
        found[left] = found[left] * _ODD + word.view(np.uint64)[:, 0]
    left = left[size[left] > _TEXT_BYTES]
    for at in range(8, _TEXT_BYTES + 1, 8):
        found[left] = found[left] * _ODD + eight[edges[left + 1] - at].view(np.uint64)[:, 0]
    return found.view(np.int64)


def _packed(type_: pa.DataType) -> pa.Schema:
    """Of a package.  Texts may be more than 2 GiB together."""
    wide = pa.struct([(f.name, pa.large_string() if pa.types.is_string(f.type) else f.type) for f in type_])
    return pa.schema([*[(name, pa.int64()) for name in _GIVEN[:-1]], ("tuple", wide)])


def _values(tuples: Any) -> Mapping[str, _Values]:
    found = {}
    for field, array in zip(tuples.type, tuples.flatten()):
        valid = np.asarray(array.is_valid())
        if pa.types.is_floating(array.type):
            values = np.asarray(array.fill_null(0.0))
        elif pa.types.is_large_string(array.type):
            values = np.asarray(array.dictionary_encode().indices.fill_null(0)).astype(np.int64)
        else:
            values = np.asarray(array.cast(pa.int64()).fill_null(0))
        found[field.name] = _Values(values, valid)
    return found
