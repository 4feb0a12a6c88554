"""Estimates the size of an encoded state without encoding it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from spe.stream.batch import Column, Rows
from spe.stream.frozen import FrozenArray
from spe.stream.strings import StringDictionary

#: Entries of a list or map that are measured; the others count with their average.
_MEASURED: Final = 16
#: Bytes of a number or another small value; and overhead of a text.
_NUMBER: Final = 8
_LENGTH: Final = 2


def state_bytes(tree: Any) -> int:
    """Estimates the number of bytes of :func:`spe.wire.state.encode_state` for a tree; copies nothing.

    The time does not depend on the length of lists, maps and arrays.
    """
    return round(_size(tree, set()))


def _size(value: Any, counted: set[int]) -> float:
    if isinstance(value, FrozenArray):
        return len(value) * value.dtype.itemsize
    if isinstance(value, np.ndarray):
        if id(value) in counted:  # written once
            return 0
        counted.add(id(value))
        return value.nbytes
    if isinstance(value, str | bytes):
        return _LENGTH + len(value)
    if isinstance(value, dict):
        return _average(2 * len(value), chain.from_iterable(islice(value.items(), _MEASURED)), counted)
    if isinstance(value, StringDictionary):
        if id(value) in counted:
            return 0
        counted.add(id(value))
        return _average(len(value), islice(value.strings, _MEASURED), counted)
    if isinstance(value, Rows):
        return sum(_size(part, counted) for part in (value.time, value.t_max, *value.columns))
    if isinstance(value, Column):
        return sum(_size(part, counted) for part in (value.values, value.valid, value.dictionary) if part is not None)
    if isinstance(value, list | tuple):
        return _average(len(value), islice(value, _MEASURED), counted)
    return _NUMBER


def _average(count: int, some: Iterable[Any], counted: set[int]) -> float:
    sizes = [_size(value, counted) for value in some]
    return count * sum(sizes) / len(sizes) if sizes else 0
