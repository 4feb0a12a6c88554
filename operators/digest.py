"""A rolling digest of a stable stream, so that replicas can compare their tuples by a few bytes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from spe.stream.batch import Rows, concat_rows
from spe.stream.hashing import mix, value_bits

#: Tuples between two marks: the positions at which replicas compare (docs/internals/rules.md, invariant 4).
MARK_EVERY: Final = 1_000
#: Number of rows that are hashed at once: large enough that the cost of a NumPy call does not matter.
HASH_ROWS: Final = 8_192
#: Number of stored marks, the newest ones.  A replica that lags further is not compared until it has caught up.
MARKS_KEPT: Final = 64

#: Ratio of the factors of consecutive columns; odd, so that no bit is lost.
_COLUMN: Final = 0xBF58476D1CE4E5B9
#: Factor of everything before a block.  It differs from _COLUMN: a column must not equal its neighbour a block later.
_BLOCK: Final = 0xD1B54A32D192ED03

_HALF: Final = np.uint64(32)

#: Digests fit a signed 64-bit integer, for any codec; sums modulo 2**63 stay sums.
_MASK: Final = (1 << 63) - 1

#: Factor of a row by its place among the MARK_EVERY of its block: odd pseudo-random numbers, so that exchanged rows do
#: not cancel out.  shape (MARK_EVERY,)
_WEIGHTS: Final = mix(np.arange(1, MARK_EVERY + 1, dtype=np.uint64)) | np.uint64(1)


class RollingDigest:
    """Digest of tuples 1 … count of a stream: Σ hash(tuple) · weight(place in its block of MARK_EVERY), modulo 2**63.

    At the start of a block, the digest so far is multiplied by an odd number.  As a sum, the digest does not depend on
    cuts of the stream; weights and factor make it depend on the order.  The hash uses values (a string's text, never
    its code) of time, t_max and every attribute.  Rows are collected and hashed many at a time, or on request: a small
    slice costs an append to a list, not some fifty NumPy calls.

    Args:
      count: number of tuples before this point.
      value: their digest.
    """

    __slots__ = ("_count", "_marks", "_pending", "_value", "count")

    def __init__(self, count: int = 0, value: int = 0) -> None:
        #: Number of added tuples.
        self.count = count
        self._marks: dict[int, int] = {}
        self._count = count
        self._value = value
        self._pending: list[Rows] = []

    def add(self, rows: Rows) -> None:
        """Adds the next tuples of the stream."""
        self._pending.append(rows)
        self.count += len(rows)
        if self.count - self._count >= HASH_ROWS:
            self._hash()

    def marks(self) -> dict[int, int]:
        """Returns position (a multiple of MARK_EVERY) -> digest there; ascending, the newest MARKS_KEPT."""
        self._hash()
        return self._marks

    def newest_mark(self) -> tuple[int, int]:
        """Returns (position, digest) of the last mark; (0, 0) if there is none.  Hashes only after a new mark."""
        if self.count // MARK_EVERY > self._count // MARK_EVERY:
            self._hash()
        return next(reversed(self._marks.items()), (0, 0))

    def value(self) -> int:
        """Returns the digest of all added tuples."""
        self._hash()
        return self._value

    def _hash(self) -> None:
        if not self._pending:
            return
        rows = concat_rows(self._pending)
        self._pending = []
        first = min(-self._count % MARK_EVERY, len(rows))  # rows missing in the current block
        last = len(rows) - (len(rows) - first) % MARK_EVERY
        for start, stop in ((0, first), (first, last), (last, len(rows))):
            if start < stop:
                self._add_blocks(rows.slice(start, stop))
        for position in list(islice(self._marks, max(len(self._marks) - MARKS_KEPT, 0))):
            del self._marks[position]

    def _add_blocks(self, rows: Rows) -> None:
        """Adds whole blocks, or rows of a single block."""
        place = self._count % MARK_EVERY
        size = min(len(rows), MARK_EVERY - place)
        assert len(rows) % size == 0, "invariant 4: a digest is of whole blocks, wherever the stream is cut"
        weights = _WEIGHTS[place : place + size]
        # uint64 arrays wrap without a warning, as intended here.
        totals = np.zeros(len(rows) // size, np.uint64)
        factor = 1
        for bits in _bits(rows):
            if bits is not None:
                totals += np.einsum("ij,j->i", bits.reshape(-1, size), weights) * np.uint64(factor)
            factor = factor * _COLUMN & 0xFFFF_FFFF_FFFF_FFFF
        value = self._value
        for number, total in enumerate(totals.tolist(), 1):
            value = (value if place else value * _BLOCK) + total & _MASK
            if place + size == MARK_EVERY:
                self._marks[self._count + number * size] = value
        self._value = value
        self._count += len(rows)


def _bits(rows: Rows) -> Iterator[npt.NDArray[np.uint64] | None]:
    """Yields time, t_max and all columns, 64 bits a row; None if all are zero."""
    yield rows.time.view(np.uint64)
    # t_max as a distance: equal arrays and the same array must hash alike
    yield None if rows.t_max is rows.time else (rows.t_max - rows.time).view(np.uint64)
    for column in rows.columns:
        bits = value_bits(column)
        if (
            column.values.dtype.itemsize == 8
        ):  # otherwise a difference in the high bits only would be lost, or cancel out
            folded = bits >> _HALF
            folded ^= bits
            bits = folded
        yield bits
