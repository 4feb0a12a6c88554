"""The partition hash: the same on every machine, in every process and release (part of the plan fingerprint)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from spe.batch import Column

#: Goes into the plan fingerprint: another hash is another plan.
HASH_VERSION: Final = 1
_NULL: Final = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash_column(column: Column) -> npt.NDArray[np.uint64]:
    """A 64-bit hash per row, by value: equal values hash alike, and null is a value of its own."""
    if column.dictionary is not None:
        table = column.dictionary.hashes()
        base = table.take(column.values) if len(table) else np.zeros(len(column.values), np.uint64)
    elif column.values.dtype == np.bool_:
        base = column.values.astype(np.uint64)
    else:
        base = np.ascontiguousarray(column.values).view(np.uint64)
    if column.valid is not None:
        base = np.where(column.valid, base, _NULL)
    return _mix(base + np.uint64(0x9E3779B97F4A7C15))


def partition_of(columns: Sequence[Column], count: int) -> npt.NDArray[np.int64]:
    """The partition, 0 … count − 1, of each row by its key columns (at least one)."""
    total = hash_column(columns[0])
    for column in columns[1:]:
        total = _mix(total * np.uint64(0x100000001B3) + hash_column(column))
    return (total % np.uint64(count)).astype(np.int64)
