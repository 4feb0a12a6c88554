"""Arrays of equal length that grow at the end and are written in any order.

B8: whatever their length, a step handles its own entries and a bounded portion in addition.  Growing copies in
portions, a snapshot copies nothing, and a write after a snapshot saves the entries that it overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import ref

import numpy as np
import numpy.typing as npt

from operators import steps
from operators.steps import StepPace, Steps, finished, portions
from spe.stream.batch import Column, Rows, concat_rows
from spe.stream.frozen import Frozen, FrozenArray, IndexArray
from spe.stream.strings import Int32Array

#: dtype, and value of new entries.
Kind = tuple[npt.DTypeLike, Any]
#: An array in a snapshot, frozen or decoded.
Leaf = Any
_LEAST: Final = 16


class Columns:
    """Arrays of equal length.

    Attributes:
      arrays: the entries 0 … count − 1, and room for more.  Adding entries may replace the arrays.
    """

    __slots__ = ("_fills", "_frozen", "arrays", "count")

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.arrays: list[npt.NDArray[Any]] = [np.empty(0, dtype) for dtype, _ in kinds]
        self.count = 0
        self._fills = [fill for _, fill in kinds]
        #: Snapshots of the present arrays that are still referenced.
        self._frozen: list[ref[Frozen]] = []

    @property
    def room(self) -> int:
        """Entries that the arrays can hold."""
        return len(self.arrays[0])

    def reserve(self, more: int) -> Steps[None]:
        """Makes room for ``more`` entries, in portions."""
        wanted = self.count + more
        if wanted <= self.room:
            return
        larger: list[npt.NDArray[Any]] = []
        for old in self.arrays:
            if larger and self.count > steps.COPIED:
                yield
            larger.append(np.empty(max(wanted, 2 * len(old), _LEAST), old.dtype))
            yield from copied(old, larger[-1], self.count)
        self.arrays = larger
        self._frozen = []  # snapshots have the old arrays, which are not written any more

    def add(self, more: int) -> int:
        """Adds ``more`` entries with the initial value; returns the number of the first."""
        old = self.count
        if old + more > self.room:
            finished(self.reserve(more))
        self.count += more
        assert self.count <= self.room, "B8: entries have room before they come"
        for array, fill in zip(self.arrays, self._fills):
            array[old : self.count] = fill
        return old

    def before_write(self, at: IndexArray) -> None:
        """Saves entries for snapshots before they are written."""
        if self._frozen:
            for frozen in self._alive():
                frozen.save(at)

    def replace(self, number: int, array: npt.NDArray[Any]) -> None:
        """Replaces an array; snapshots keep the old one."""
        self.arrays[number] = array

    def freeze(self) -> list[FrozenArray]:
        """Returns the present entries of each array; later writes do not change the result."""
        self._alive()  # drops dead references
        frozen = Frozen(self.arrays, self.count)
        self._frozen.append(ref(frozen))
        return frozen.columns()

    def _alive(self) -> list[Frozen]:
        alive = [frozen for reference in self._frozen if (frozen := reference()) is not None]
        if len(alive) < len(self._frozen):
            self._frozen = [ref(frozen) for frozen in alive]
        return alive

    def load(self, leaves: Sequence[Leaf]) -> Steps[None]:
        """Replaces the arrays by copies of saved ones, in portions."""
        count = len(leaves[0])
        arrays: list[npt.NDArray[Any]] = []
        for leaf, old in zip(leaves, self.arrays, strict=True):
            if arrays and count > steps.COPIED:
                yield
            arrays.append(np.empty(count + count // 2 + _LEAST, old.dtype))
            yield from copied(leaf, arrays[-1], count)
        self.arrays, self.count, self._frozen = arrays, count, []


def copied(leaf: Leaf, out: npt.NDArray[Any], count: int) -> Steps[None]:
    """Writes the first ``count`` entries of an array, a saved array or a list to ``out``, in portions."""
    if isinstance(leaf, FrozenArray):
        yield from leaf.copy_to(out, steps.COPIED)
        return
    for start, stop in portions(count, steps.COPIED if isinstance(leaf, np.ndarray) else steps.RELEASED):
        if start:
            yield
        if isinstance(leaf, np.ndarray):
            out[start:stop] = leaf[start:stop]
        else:  # values may be sequences themselves
            for at in range(start, stop):
                out[at] = leaf[at]


def filled(count: int, fill: int) -> Steps[IndexArray]:
    """Makes an array of ``count`` times ``fill``, in portions."""
    array = np.empty(count, np.intp)
    for start, stop in portions(count, steps.COPIED):
        if start:
            yield
        array[start:stop] = fill
    return array


def chosen(mask: npt.NDArray[np.bool_]) -> Steps[IndexArray]:
    """Computes ``mask.nonzero()[0]``, in portions."""
    return (yield from where(len(mask), lambda start, stop: mask[start:stop]))


def where(count: int, test: Callable[[int, int], npt.NDArray[np.bool_]]) -> Steps[IndexArray]:
    """Returns the entries of 0 … count − 1 for which ``test`` holds, ascending, in portions.

    Args:
      test: (start, stop) -> mask of the entries from ``start`` to before ``stop``.
    """
    parts = []
    for start, stop in portions(count, steps.COPIED):
        if start:
            yield
        parts.append(test(start, stop).nonzero()[0] + start)
    return (yield from picked(parts, [None] * len(parts))) if parts else np.empty(0, np.intp)


def consecutive(start: int, stop: int) -> Steps[IndexArray]:
    """Computes ``np.arange(start, stop)``, in portions."""
    array = np.empty(stop - start, np.intp)
    for first, last in portions(stop - start, steps.COPIED):
        if first:
            yield
        array[first:last] = np.arange(start + first, start + last)
    return array


def inverse(which: IndexArray, numbers: IndexArray, count: int) -> Steps[IndexArray]:
    """Makes an array of ``count`` entries, ``numbers`` at ``which`` and −1 elsewhere, in portions."""
    array = yield from filled(count, -1)
    for start, stop in portions(len(which), steps.INDEXED):
        if start:
            yield
        array[which[start:stop]] = numbers[start:stop]
    return array


def sorted_order(values: npt.NDArray[Any]) -> Steps[IndexArray]:
    """Computes ``values.argsort(kind="stable")``, in portions: divides entries into ranges, and sorts each."""
    count = len(values)
    if count <= 2 * steps.INDEXED:
        return values.argsort(kind="stable")
    # With this sample size a range has about INDEXED / 4 entries.  A frequent value becomes a splitter with its own
    # range, which needs no sorting.  The result does not depend on the sample; it is random, since a regular sample
    # could miss a periodic order.
    looked_at = np.random.default_rng(0).integers(0, count, 256 * (count // steps.INDEXED + 1))
    splitters = np.unique(np.sort(values[looked_at])[::64])
    ranges = np.empty(count, np.int32)
    sizes = np.zeros(2 * len(splitters) + 1, np.int64)
    for start, stop in portions(count, steps.INDEXED):
        some = values[start:stop]
        places = splitters.searchsorted(some, side="right")
        places += splitters.searchsorted(some, side="left")
        ranges[start:stop] = places
        sizes += np.bincount(places, minlength=len(sizes))
        yield
    # Steps write to all of it in any order, so without this the system would clear all its pages in the first step.
    order = yield from filled(count, 0)
    ends = sizes.cumsum()
    free = ends - sizes
    for start, stop in portions(count, steps.INDEXED):
        dealt = ranges[start:stop].argsort(kind="stable")
        which = ranges[start:stop][dealt]
        begins = np.flatnonzero(np.append(True, which[1:] != which[:-1]))
        lengths = np.diff(np.append(begins, len(which)))
        order[(free[which[begins]] - begins).repeat(lengths) + np.arange(len(which))] = dealt + start
        free[which[begins]] += lengths
        yield
    between = ends[::2]
    for end, size in zip(between.tolist(), sizes[::2].tolist()):
        if size > 1:
            part = order[end - size : end]
            order[end - size : end] = part[values[part].argsort(kind="stable")]
            yield
    return order


def picked(
    arrays: Sequence[npt.NDArray[Any]], which: Sequence[IndexArray | Int32Array | None]
) -> Steps[npt.NDArray[Any]]:
    """Concatenates the entries ``which`` of each array (None: all), in portions."""
    counts = [len(a) if w is None else len(w) for a, w in zip(arrays, which, strict=True)]
    if sum(counts) <= steps.INDEXED:
        return np.concatenate([a if w is None else a.take(w) for a, w in zip(arrays, which)])
    out = np.empty(sum(counts), arrays[0].dtype)
    at, pace = 0, StepPace(steps.COPIED)
    for array, index, count in zip(arrays, which, counts):
        for start, stop in portions(count, steps.INDEXED):
            out[at + start : at + stop] = array[start:stop] if index is None else array.take(index[start:stop])
            if pace.is_through(stop - start):
                yield
        at += count
    return out


def picked_rows(parts: Sequence[Rows], which: Sequence[IndexArray | None]) -> Steps[Rows]:
    """Concatenates rows ``which`` of each part as :func:`picked`; strings must be in one dictionary."""
    if sum([len(p) if w is None else len(w) for p, w in zip(parts, which, strict=True)]) <= steps.INDEXED:
        return concat_rows([p if w is None else p.take(w) for p, w in zip(parts, which)])
    time = yield from picked([p.time for p in parts], which)
    t_max = time
    if any(p.t_max is not p.time for p in parts):
        t_max = yield from picked([p.t_max for p in parts], which)
    columns = []
    for pieces in zip(*[p.columns for p in parts]):
        values, valid = (yield from picked([c.values for c in pieces], which)), None
        if any(c.valid is not None for c in pieces):
            masks = [np.broadcast_to(np.True_, len(c)) if c.valid is None else c.valid for c in pieces]
            valid = yield from picked(masks, which)
        columns.append(Column(values, valid, pieces[-1].dictionary))
    return Rows(time, t_max, tuple(columns))
