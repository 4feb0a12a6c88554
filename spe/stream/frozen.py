"""Copy-on-write arrays: the contents at the time of a snapshot, while their owner goes on writing to them.

The snapshot refers to the owner's arrays.  The owner saves each entry here before it overwrites it for the first time,
so neither the snapshot nor a write after it copies more than the entries that are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]
IndexArray = npt.NDArray[np.intp]

#: Number of entries with fewer indices than this from which they are joined.
_SMALL_ENTRIES: Final = 64


class Frozen:
    """The first ``count`` entries of several arrays, at the time of a snapshot.

    Attributes:
      saved: (indices, their values in each array) of entries overwritten since, in order.
    """

    __slots__ = ("__weakref__", "_is_saved", "arrays", "count", "saved")

    def __init__(self, arrays: Sequence[AnyArray], count: int) -> None:
        self.arrays = tuple(arrays)
        self.count = count
        self.saved: list[tuple[IndexArray, list[AnyArray]]] = []
        self._is_saved: npt.NDArray[np.bool_] | None = None

    def save(self, at: IndexArray) -> int:
        """Saves entries before they are written; returns the number that was newly saved.

        A reader in another thread copies first and applies saved entries afterwards, so saving comes before writing.
        """
        if self._is_saved is None:
            self._is_saved = np.zeros(self.count, np.bool_)
        if len(at) and at.max() >= self.count:
            at = at[at < self.count]
        at = at[~self._is_saved.take(at)]
        if len(at):
            self.saved.append((at, [a.take(at) for a in self.arrays]))
            self._is_saved[at] = True
            if len(self.saved) % _SMALL_ENTRIES == 0:
                self._put_together()
        return len(at)

    def _put_together(self) -> None:
        """Joins the small entries at the end: an array of one number takes as much memory as one of ten."""
        start = len(self.saved)
        while start and len(self.saved[start - 1][0]) < _SMALL_ENTRIES:
            start -= 1
        small = self.saved[start:]
        if len(small) >= _SMALL_ENTRIES:
            values = [np.concatenate(column) for column in zip(*[values for _, values in small], strict=True)]
            self.saved[start:] = [(np.concatenate([at for at, _ in small]), values)]

    def columns(self) -> list[FrozenArray]:
        return [FrozenArray(self, number) for number in range(len(self.arrays))]


class FrozenArray:
    """An array of a :class:`Frozen`; a leaf of a snapshot's tree, stored as the frozen array."""

    __slots__ = ("_frozen", "_number")

    def __init__(self, frozen: Frozen, number: int) -> None:
        self._frozen = frozen
        self._number = number

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._frozen.arrays[self._number].dtype

    def __len__(self) -> int:
        return self._frozen.count

    def copy_to(self, out: AnyArray, size: int) -> Iterator[None]:
        """Writes all entries to ``out``, ``size`` at a time; yields between two portions."""
        frozen, number = self._frozen, self._number
        array = frozen.arrays[number]
        for start in range(0, frozen.count, size):
            if start:
                yield
            stop = min(start + size, frozen.count)
            out[start:stop] = array[start:stop]
        # Entries saved from here on were copied unchanged.
        written = 0
        for at, values in frozen.saved[: len(frozen.saved)]:
            out[at] = values[number]
            written += len(at)
            if written >= size:
                written = 0
                yield

    def array(self) -> AnyArray:
        """Copies all entries at once."""
        out: AnyArray = np.empty(len(self), self.dtype)
        for _ in self.copy_to(out, max(1, len(self))):
            pass
        return out


class Derived:
    """A leaf of a snapshot that can be derived from the others: shared inside the process, stored as None."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value
