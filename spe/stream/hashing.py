"""The partition hash: the same on every machine, in every process and release (part of the plan fingerprint)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from spe.stream.batch import Column

#: Part of the plan fingerprint: another hash makes another plan.
HASH_VERSION: Final = 2
_NULL: Final = np.uint64(0x9E3779B97F4A7C15)


def mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Applies splitmix64's finaliser in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def value_bits(column: Column) -> npt.NDArray[np.uint64]:
    """Returns 64 bits per row, equal for equal values; null is a separate value.  May be the column's own memory."""
    if column.dictionary is not None:
        empty = not len(column.dictionary)
        base = np.zeros(len(column.values), np.uint64) if empty else column.dictionary.hashes_of(column.values)
    elif column.values.dtype == np.bool_:
        base = column.values.astype(np.uint64)
    else:
        base = np.ascontiguousarray(column.values).view(np.uint64)
    return base if column.valid is None else np.where(column.valid, base, _NULL)


def hash_column(column: Column) -> npt.NDArray[np.uint64]:
    """Returns a 64-bit hash per row, by value."""
    return mix(value_bits(column) + np.uint64(0x9E3779B97F4A7C15))


def partition_of(columns: Sequence[Column], count: int) -> npt.NDArray[np.int64]:
    """Returns the partition, 0 … count − 1, of each row by its key columns (at least one).

    Partitions have equal ranges of hashes, in order: so 2 of 8 partitions equal 1 of 4 (InputStream.upstream).
    """
    total = hash_column(columns[0])
    for column in columns[1:]:
        total = mix(total * np.uint64(0x100000001B3) + hash_column(column))
    return ((total >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)
