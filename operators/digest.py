"""A rolling digest of a stable stream, so that replicas can tell in a few bytes whether they made the same tuples."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from spe.batch import Rows, concat_rows
from spe.hashing import mix, value_bits

#: Tuples between two marks: the positions at which replicas compare (docs/rules.md, invariant 4).
MARK_EVERY: Final = 1_000
#: Rows put by before they are hashed: enough that NumPy's cost per call does not show.
HASH_ROWS: Final = 8_192
#: Marks kept, the newest ones.  A replica that lags further behind than this is not compared until it has caught up.
MARKS_KEPT: Final = 64

#: Makes the factor of a row's next column from that of the last; odd, so that no bit of a hash is lost.
_STEP: Final = 0x9E3779B97F4A7C15
#: Factor of a row's place.
_PLACE: Final = 0xD1B54A32D192ED03

#: Digests fit a signed 64-bit integer, so that any codec can carry them; sums modulo 2**63 stay sums.
_MASK: Final = (1 << 63) - 1


class RollingDigest:
    """Σ hash(i, tuple i) modulo 2**63 over the tuples 1 … count of a stream.

    Being a sum it does not depend on how the stream is cut; with the place in the hash it depends on the order.  The
    hash goes by value (a string's text, never its code), over time, t_max and every attribute.  Rows are put by and
    hashed many at a time, or when somebody asks: a small slice costs an append to a list, not some fifty NumPy calls.

    Args:
      count: tuples before this point.
      value: their digest.
    """

    __slots__ = ("_count", "_marks", "_pending", "_value", "count")

    def __init__(self, count: int = 0, value: int = 0) -> None:
        #: Tuples added.
        self.count = count
        self._marks: dict[int, int] = {}
        self._count = count
        self._value = value
        self._pending: list[Rows] = []

    def add(self, rows: Rows) -> None:
        """Takes the next tuples of the stream."""
        self._pending.append(rows)
        self.count += len(rows)
        if self.count - self._count >= HASH_ROWS:
            self._hash()

    def marks(self) -> dict[int, int]:
        """Position (a multiple of MARK_EVERY) -> digest there; in ascending order, the newest MARKS_KEPT."""
        self._hash()
        return self._marks

    def newest_mark(self) -> tuple[int, int]:
        """(position, digest) of the last mark; (0, 0) if there is none.  Cheap: hashes only once a mark is passed."""
        if self.count // MARK_EVERY > self._count // MARK_EVERY:
            self._hash()
        return next(reversed(self._marks.items()), (0, 0))

    def value(self) -> int:
        """The digest of everything added."""
        self._hash()
        return self._value

    def _hash(self) -> None:
        if not self._pending:
            return
        rows = concat_rows(self._pending)
        self._pending = []
        before, count = self._count, len(rows)
        places = np.arange(before + 1, before + count + 1, dtype=np.uint64)
        # uint64 arrays wrap without a word, and that is what is wanted here.
        sums = np.cumsum(mix(places * np.uint64(_PLACE) + _sum_rows(rows)), dtype=np.uint64)
        first = (before // MARK_EVERY + 1) * MARK_EVERY
        for position in range(first, before + count + 1, MARK_EVERY):
            self._marks[position] = (self._value + int(sums[position - before - 1])) & _MASK
        while len(self._marks) > MARKS_KEPT:
            del self._marks[next(iter(self._marks))]
        if count:
            self._value = (self._value + int(sums[-1])) & _MASK
        self._count = before + count


def _sum_rows(rows: Rows) -> npt.NDArray[np.uint64]:
    """A sum per row over time, t_max and all columns, each with an odd factor of its own: one value that differs
    changes it, and so do several unless they cancel out.
    """
    factor = _STEP
    total = rows.time.view(np.uint64) * np.uint64(factor)
    if rows.t_max is not rows.time:  # counted by its distance: equal arrays and the same array must hash alike
        total += (rows.t_max - rows.time).view(np.uint64)
    for column in rows.columns:
        factor = factor * _STEP & 0xFFFF_FFFF_FFFF_FFFF
        bits = value_bits(column)
        if column.values.dtype == np.float64:  # those of round numbers end in zeros, which factors would not change
            bits = bits ^ (bits >> np.uint64(32))
        total += bits * np.uint64(factor)
    return total
