"""Tentative tuples and the true ones that they stood for, met within a task by NumPy.  No Spark here.

A task has all tuples of both sides that may meet: those of one partition, time and key.  What stood for a true tuple
is known by the stretch: it lies behind the last stable tuple and not beyond the reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from consistency.proof.digests import chain, seeds
from spe.stream.batch import AnyArray, Int64Array
from spe.stream.strings import UInt64Array
from spe.stream.times import BEFORE_TIME

#: What a task gets.  ``major, minor``: ``sequence, row`` of a tentative tuple, ``place`` and 0 of a true one, which has
#: no ``arrived_us``.
GIVEN: Final = ("partition", "time_us", "major", "minor", "arrived_us", "tuple")
#: What it makes of them, see ``accuracy.against_truth``.
MET: Final = ("partition", "episode", "window_us", "arrived_us", "undone_at_us", "tentative", "true", "right")
#: Rows of one Arrow batch.
_BATCH: Final = 65_536
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
class TaskMatcher:
    """What a task does; Spark carries it there.

    Attributes:
      key: attributes that make a tentative tuple and a true one the same result, beside their time.
      window_us: results are taken together by so much tuple time; 0: by equal times.
      tolerance: share of the larger one by which two equal floats may differ.
    """

    stretches: Stretches
    key: tuple[str, ...]
    window_us: int
    tolerance: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """MET of GIVEN: the n-th tentative tuple of a key and a stretch with the n-th true one."""
        every = [batch for batch in batches if len(batch)]
        if not every:
            return
        (both,) = _wide(pa.Table.from_batches(every)).combine_chunks().to_batches()
        partition, time, major, minor = (np.asarray(both.column(name)).astype(np.int64) for name in GIVEN[:4])
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
            tuples = (both.column("tuple").take(which[here]).cast(every[0].schema.field("tuple").type)
                      for which in (ours, theirs))  # fmt: skip
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
        """What is equal for equal values, of floats for those with the same first digits, as ``comparison.content``."""
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
        """Of pairs of tuples, as ``comparison.alike``."""
        x, y, valid = self.values[one], self.values[other], self.valid[one]
        equal = x == y
        if self.values.dtype == np.float64:
            larger = np.maximum(np.abs(x), np.abs(y))
            with np.errstate(invalid="ignore", over="ignore"):  # infinity less infinity, and the largest of both signs
                equal |= (larger < np.inf) & (np.abs(x - y) <= tolerance * larger)
            equal |= np.isnan(x) & np.isnan(y)
        found: AnyArray = (valid == self.valid[other]) & (equal | ~valid)
        return found


def _wide(table: pa.Table) -> pa.Table:
    """With texts that may be more than 2 GiB together."""
    at, field = table.schema.get_field_index("tuple"), table.schema.field("tuple")
    wide = [one.with_type(pa.large_string()) if pa.types.is_string(one.type) else one for one in field.type]
    return table.cast(table.schema.set(at, field.with_type(pa.struct(wide))))


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
